//! Plans that serve whatever the values of their parameters are.
//!
//! A statement that comes again with other values is planned once: its literals are taken for parameters as `direct::template` says, and its plan is
//! optimised and kept with placeholders in it. To run it the values take the placeholders' places, and what they stand in is simplified, so that the engine
//! finds the conditions that it would have found in a plan of its own; which index a scan uses, which side of a join is built, and how much of a table is
//! read is found out after that in any case. Estimates that choose the order of joins look at the values that the plan was made for.
//!
//! Values that say how many rows are wanted (`LIMIT`, `OFFSET`) have plans of their own ([`Template::pinned`]). Each statement is planned by itself where
//! * a parameter is NULL: what is known never to be true makes another plan,
//! * the values that a plan would be made for read so much that planning is not what takes time ([`ROWS_MAX`]),
//! * its outputs would be of other types than those of the statement as it was written.
//!
//! The first time that a text is seen nothing of this is tried: most texts never come again. Nor is it for a text that comes again as it was, whose own plan is
//! kept ([`plan_cache`]), nor after one whose own plan reads much: only others with other values are served, and these are planned in vain as they are.

use crate::direct::template;
use crate::facts::SessionFacts;
use crate::optimizer::{estimate, nulls};
use crate::origins::{self, Origins};
use crate::plan_cache::{self, KeptPlan, TemplateState};
use crate::rewrites::{RewritePlan, RewriteTree};
use crate::session::{Shape, Source, describe, describe_command, describe_query};
use crate::settings::PlanSharing;
use crate::statement::{Command, Statement};
use crate::types;
use arrow::array::ArrayRef;
use arrow::datatypes::{Field, FieldRef};
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, Result as PlanResult, ScalarValue};
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr::Placeholder;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan};
use datafusion::sql::sqlparser::ast;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tidepool_base::{Result, SqlType};
use tidepool_database::LookedUp;

/// Rows that all scans of a plan are expected to give back, at most.
const ROWS_MAX: f64 = 100_000.0;

/// Nodes and expressions of a plan that connections' threads, whose stacks are small, bind and lower: it cannot be nested deeper.
const PARTS_FEW: u64 = 512;

/// What stands for the transaction's time in the plan of a template: it is another one each time.
const MOMENT: &str = "$now";

/// Statements of a template that cannot be served, after which none is tried any more.
const FAILURES_MAX: u8 = 3;

/// By how much the rows of a scan may differ from what the order of joins was chosen for, and from how many rows on that matters.
const ROWS_RATIO: f64 = 8.0;
const ROWS_FEW: f64 = 2_000.0;

/// A statement whose plan may serve others, too.
pub(crate) struct Request {
    template: template::Template,
    key: String,
    /// Types of the parameters that the client gave, and their values.
    given: Vec<u32>,
    values: Vec<ScalarValue>,
    /// The plan that was found for it, with its values in it.
    found: Option<Planned>,
}

/// A statement with its literals in it.
#[derive(Clone, Copy)]
pub(crate) enum Written<'a> {
    Query(&'a ast::Query),
    /// One that writes.
    Change(&'a Command),
}

/// What is known of statements that differ in values only.
#[derive(Debug)]
pub(crate) struct Template {
    /// Of all parameters, those that stand for literals last.
    fields: Vec<FieldRef>,
    /// Of those that stand for literals.
    literals: Vec<SqlType>,
    /// Parameters whose values the plan depends on.
    pub pinned: Vec<usize>,
    /// Of statements that write: what becomes of the plan's rows.
    change: Option<Arc<ChangeOf>>,
}

/// What is kept of statements that write.
#[derive(Debug)]
struct ChangeOf {
    shape: Arc<Shape>,
    /// What planning looked up: the statement looks again once it has its locks.
    looked_up: LookedUp,
}

/// An optimised plan with a statement's values in it.
pub(crate) struct Planned {
    pub plan: LogicalPlan,
    /// Where its outputs come from.
    pub origins: Arc<Origins>,
    /// Of a statement that writes, with the values of all of its parameters.
    pub change: Option<(Arc<Shape>, Vec<ScalarValue>)>,
}

impl Template {
    /// What it takes of memory, about.
    pub fn bytes(&self) -> u64 {
        (self.fields.len() * 2 * size_of::<Field>() + self.literals.len() * size_of::<SqlType>()) as u64
    }

    fn pinned_of(&self, values: &[ScalarValue]) -> Vec<ScalarValue> {
        self.pinned.iter().map(|index| values[*index].clone()).collect()
    }
}

impl Request {
    /// `None` for a statement that none of this is for.
    pub fn of(text: &str, parameters: &[ArrayRef]) -> Option<Request> {
        let template = template::of(text)?;
        if template.given != parameters.len() {
            return None;
        }
        let oid = |array: &ArrayRef| types::describe(&Field::new("", array.data_type().clone(), true)).1;
        let given: Vec<u32> = parameters.iter().map(oid).collect();
        let values: Vec<ScalarValue> =
            parameters.iter().map(|array| types::scalar(array.as_ref())).collect::<Result<_, _>>().ok()?;
        if values.iter().any(ScalarValue::is_null) {
            return None;
        }
        let key = template.key(&given);
        Some(Request { template, key, given, values, found: None })
    }

    /// Whether a plan was found for it.
    pub fn is_found(&self) -> bool {
        self.found.is_some()
    }

    /// Whether there is a plan for it already, which has its values then. It is shallow enough for any thread's stack.
    pub fn find(&mut self, facts: &Arc<SessionFacts>) -> bool {
        let found = catch_unwind(AssertUnwindSafe(|| {
            let plans = &facts.planner.plans;
            let template = plans.serving(facts, &self.key)?;
            let values = self.all_values(&template, facts)?;
            let kept = plans.find_variant(facts, &self.key, &template.pinned_of(&values))?;
            (kept.parts <= PARTS_FEW).then_some(())?;
            let bound = bind(&facts.planner.state(facts), facts, &template, &kept, values).ok().flatten()?;
            plans.note_reused();
            Some(bound)
        }));
        // What panicked here is planned anew, and panics where it is told.
        self.found = found.ok().flatten();
        self.found.is_some()
    }

    /// Values of all parameters; `None` where a literal is no value of its parameter's type.
    fn all_values(&self, template: &Template, facts: &SessionFacts) -> Option<Vec<ScalarValue>> {
        let settings = facts.settings.shared_text_settings();
        let (given, literals) = template.fields.split_at_checked(self.given.len())?;
        let mut values = self.values.clone();
        if values.iter().zip(given).any(|(value, field)| value.data_type() != *field.data_type()) {
            return None;
        }
        for ((literal, of), field) in self.template.literals.iter().zip(&template.literals).zip(literals) {
            // A bad one is for the statement's own plan to complain about.
            let datum = literal.read(*of, settings).ok()?;
            values.push(datum.to_scalar(field.data_type()).ok()?);
        }
        Some(values)
    }
}

/// Has the next statement of the template know what one's own plan is like.
pub(crate) fn note_own(facts: &SessionFacts, request: &Request, optimized: &LogicalPlan) {
    facts.planner.plans.note_own(facts, &request.key, reads_much(optimized));
}

/// The statement's optimised plan from that of its template. `None`: the statement is to be planned by itself.
pub(crate) fn planned(
    state: &SessionState,
    facts: &Arc<SessionFacts>,
    request: &mut Request,
    written: Written<'_>,
) -> Result<Option<Planned>> {
    if let Some(found) = request.found.take() {
        return Ok(Some(found));
    }
    let planned = match facts.planner.plans.template(facts, &request.key) {
        TemplateState::Serves(template) => serve(state, facts, request, &template),
        TemplateState::Seen { failures, reads_much: false } => begin(state, facts, request, written, failures),
        TemplateState::Unseen if facts.settings.plan_sharing() == PlanSharing::Always => {
            begin(state, facts, request, written, 0)
        }
        TemplateState::Unseen | TemplateState::Seen { reads_much: true, .. } | TemplateState::Refused => None,
    };
    crate::planning::check()?;
    Ok(planned)
}

/// The plan for the statement's pinned values, which is made now if there is none.
fn serve(state: &SessionState, facts: &Arc<SessionFacts>, request: &Request, template: &Template) -> Option<Planned> {
    let values = request.all_values(template, facts)?;
    if let Some(kept) = facts.planner.plans.find_variant(facts, &request.key, &template.pinned_of(&values)) {
        let bound = bind(state, facts, template, &kept, values).ok().flatten()?;
        facts.planner.plans.note_reused();
        return Some(bound);
    }
    let statement = statement_of(request)?;
    let (logical, _) = logical_plan(state, facts, statement.command(), &template.fields)?;
    let (kept, planned) = begin_variant(state, facts, request, template, logical, values)?;
    facts.planner.plans.keep_variant(facts, kept);
    Some(planned)
}

/// As `serve`, of a template that nothing is known of but that it failed so often before.
fn begin(
    state: &SessionState,
    facts: &Arc<SessionFacts>,
    request: &Request,
    written: Written<'_>,
    failures: u8,
) -> Option<Planned> {
    let plans = &facts.planner.plans;
    let template = template_of(state, facts, request, written);
    // Then it says nothing of the template that there is none.
    crate::planning::check().ok()?;
    let Some((template, logical)) = template else {
        tracing::debug!(template = request.template.text, "planned by itself each time");
        plans.keep_template(facts, &request.key, TemplateState::Refused);
        return None;
    };
    let begun = request
        .all_values(&template, facts)
        .and_then(|values| begin_variant(state, facts, request, &template, logical, values));
    crate::planning::check().ok()?;
    match begun {
        Some((kept, planned)) => {
            plans.keep_template(facts, &request.key, TemplateState::Serves(Arc::new(template)));
            plans.keep_variant(facts, kept);
            Some(planned)
        }
        // With other values it may be another matter.
        None => {
            let failures = failures + 1;
            let known = match failures < FAILURES_MAX {
                true => TemplateState::Seen { failures, reads_much: false },
                false => TemplateState::Refused,
            };
            plans.keep_template(facts, &request.key, known);
            None
        }
    }
}

/// A plan that the statement's pinned values need; and the statement's own.
fn begin_variant(
    state: &SessionState,
    facts: &Arc<SessionFacts>,
    request: &Request,
    template: &Template,
    logical: LogicalPlan,
    values: Vec<ScalarValue>,
) -> Option<(Arc<KeptPlan>, Planned)> {
    let kept = optimized(state, facts, request, template, logical, &values)?;
    let planned = bind(state, facts, template, &kept, values).ok().flatten()?;
    (!reads_much(&planned.plan)).then_some((kept, planned))
}

/// Whether the rows that an optimised plan's scans give back are so many that planning is not what takes time.
fn reads_much(plan: &LogicalPlan) -> bool {
    rows_of_scans(plan).iter().sum::<f64>() > ROWS_MAX
}

fn statement_of(request: &Request) -> Option<Statement> {
    let mut statements = crate::statement::parse(&request.template.text).ok()?;
    let statement = statements.pop()?;
    (statements.is_empty() && !statement.locks_rows()).then_some(statement)
}

/// The template, and its plan as it is written.
fn template_of(
    state: &SessionState,
    facts: &Arc<SessionFacts>,
    request: &Request,
    written: Written<'_>,
) -> Option<(Template, LogicalPlan)> {
    let statement = statement_of(request)?;
    let oids = request.template.oids(&request.given);
    let described = describe(facts, &statement, &oids).ok()?;
    if described.parameters.len() != oids.len() {
        return None;
    }
    let given = request.given.len();
    let types = described.parameters[given..].iter().map(|oid| types::sql_type_of_oid(*oid));
    let literals: Vec<SqlType> = types.collect::<Option<_>>()?;
    // Blanks at a text's end count, unless they are compared with those of a char.
    let of_char = SqlType::Char { length: 1 }.oid();
    if !request.template.is_exact(&literals) || described.parameters[given..].contains(&of_char) {
        return None;
    }
    let fields: Vec<FieldRef> =
        crate::query::fields_of_oids(&described.parameters).into_iter().collect::<Option<_>>()?;
    let (logical, shape) = logical_plan(state, facts, statement.command(), &fields)?;
    if !literals.is_empty() {
        let as_written = match written {
            Written::Query(query) => describe_query(facts, query, &request.given),
            Written::Change(command) => describe_command(facts, command, &request.given),
        };
        if as_written.ok()?.columns != described.columns {
            return None;
        }
        if let Written::Change(command) = written
            && !gives_the_same(state, &logical, &logical_plan(state, facts, command, &fields[..given])?.0)?
        {
            return None;
        }
    }
    let change = shape.map(|shape| Arc::new(ChangeOf { shape, looked_up: facts.footing.looked_up() }));
    if !plan_cache::may_keep(&logical).ok()? {
        return None;
    }
    let (mut pinned, mut serves) = (Vec::new(), true);
    let visited = logical.apply_with_subqueries(|node| {
        match node {
            LogicalPlan::Limit(_) => node.expressions().iter().for_each(|expr| pinned.extend(placeholders(expr))),
            // All values together settle the types of its columns.
            LogicalPlan::Values(_) => serves &= node.expressions().iter().all(|expr| placeholders(expr).is_empty()),
            _ => {}
        }
        Ok(TreeNodeRecursion::Continue)
    });
    visited.ok()?;
    pinned.sort_unstable();
    pinned.dedup();
    serves &= pinned.last().is_none_or(|last| *last < fields.len());
    serves.then_some((Template { fields, literals, pinned, change }, logical))
}

/// The plan as it is written; of a statement that writes, with what becomes of its rows.
fn logical_plan(
    state: &SessionState,
    facts: &Arc<SessionFacts>,
    command: &Command,
    fields: &[FieldRef],
) -> Option<(LogicalPlan, Option<Arc<Shape>>)> {
    let fields = fields.iter().cloned().map(Some).collect();
    match command {
        Command::Query(query) => {
            let plan = crate::query::logical_plan(state, facts, query.clone(), fields, None).ok()?;
            Some((of_any_time(plan).ok()?, None))
        }
        command => {
            let source = Source::planned(state, facts, command, fields).ok()?;
            Some((of_any_time(source.plan).ok()?, Some(source.shape)))
        }
    }
}

/// The plan with a parameter in the place of the transaction's time.
fn of_any_time(plan: LogicalPlan) -> PlanResult<LogicalPlan> {
    let is_time = |expr: &Expr| matches!(expr, Expr::ScalarFunction(function) if function.func.name() == "now" && function.args.is_empty());
    let tells = |expr: &Expr| expr.exists(|expr| Ok(is_time(expr)));
    let mut replace = |node: LogicalPlan| {
        let names = NamePreserver::new(&node);
        node.rewrite_expressions(&mut |expr| {
            if !tells(&expr)? {
                return Ok(Transformed::no(expr));
            }
            let name = names.save(&expr);
            let expr = expr.rewrite_up(&mut |expr| {
                if !is_time(&expr) {
                    return Ok(Transformed::no(expr));
                }
                let (_, field) = expr.to_field(&DFSchema::empty())?;
                Ok(Transformed::yes(Expr::Placeholder(Placeholder::new_with_field(MOMENT.to_owned(), Some(field)))))
            })?;
            Ok(Transformed::yes(name.restore(expr.data)))
        })
    };
    Ok(plan.rewrite_down_with_subqueries(&mut replace)?.data)
}

/// The transaction's time.
fn moment(facts: &SessionFacts) -> ScalarValue {
    ScalarValue::TimestampMicrosecond(Some(facts.transaction_start.timestamp_micros()), Some("UTC".into()))
}

/// Whether the rows that are written have the same types in both plans before they are cast to those of the columns. A literal, which has the type
/// that it is cast to, and a parameter may differ.
fn gives_the_same(state: &SessionState, template: &LogicalPlan, written: &LogicalPlan) -> Option<bool> {
    let template = crate::optimizer::analyze(state, template.clone()).ok()?;
    let written = crate::optimizer::analyze(state, written.clone()).ok()?;
    let (mut one, mut other) = (&template, &written);
    while let (LogicalPlan::Projection(of_one), LogicalPlan::Projection(of_other)) = (one, other) {
        if of_one.expr.len() != of_other.expr.len() {
            return Some(false);
        }
        for (place, expr) in of_other.expr.iter().enumerate() {
            let types = [of_one.schema.field(place).data_type(), of_other.schema.field(place).data_type()];
            let is_literal = matches!(expr.clone().unalias(), Expr::Literal(..));
            if types[0] != types[1] && !is_literal {
                return Some(false);
            }
        }
        (one, other) = (&of_one.input, &of_other.input);
    }
    Some(true)
}

/// Parameters in an expression, from 0.
fn placeholders(expr: &Expr) -> Vec<usize> {
    let mut found = Vec::new();
    // It never fails: nothing in it does.
    let _ = expr.apply(|expr| {
        if let Expr::Placeholder(placeholder) = expr {
            found.extend(index_of(&placeholder.id));
        }
        Ok(TreeNodeRecursion::Continue)
    });
    found
}

fn index_of(id: &str) -> Option<usize> {
    id.strip_prefix('$')?.parse::<usize>().ok()?.checked_sub(1)
}

/// The plan of a template for pinned values, to be kept; estimates look at all values.
fn optimized(
    state: &SessionState,
    facts: &Arc<SessionFacts>,
    request: &Request,
    template: &Template,
    logical: LogicalPlan,
    values: &[ScalarValue],
) -> Option<Arc<KeptPlan>> {
    let pinned = |id: &str| {
        let index = index_of(id).filter(|index| template.pinned.contains(index))?;
        Some(values[index].clone())
    };
    let logical = replaced(logical, &pinned, None).ok()?;
    let origins = Arc::new(origins::of_plan(facts, &logical));
    let (optimized, rows) = looking_at(values, facts, || {
        facts.planner.plans.note_made();
        let optimized = crate::optimizer::optimize(state, &logical).ok()?;
        let rows = rows_of_scans(&optimized);
        Some((optimized, rows))
    })?;
    KeptPlan::of_template(facts, &request.key, template.pinned_of(values), &optimized, origins, rows).map(Arc::new)
}

/// The plan with all values in it. `None` where its order of joins was chosen for quite others.
fn bind(
    state: &SessionState,
    facts: &SessionFacts,
    template: &Template,
    kept: &KeptPlan,
    values: Vec<ScalarValue>,
) -> PlanResult<Option<Planned>> {
    let (plan, origins) = kept.bound(facts)?;
    let value_of = |id: &str| match id {
        MOMENT => Some(moment(facts)),
        id => values.get(index_of(id)?).cloned(),
    };
    let plan = replaced(plan, &value_of, Some(state))?;
    if kept.rows.len() > 2 {
        let now = rows_of_scans(&plan);
        let differs = |(then, now): (&f64, &f64)| {
            let (less, more) = if then < now { (then, now) } else { (now, then) };
            *more > ROWS_FEW && *more > less * ROWS_RATIO
        };
        if now.len() != kept.rows.len() || kept.rows.iter().zip(&now).any(differs) {
            return Ok(None);
        }
    }
    let change = template.change.as_ref().map(|change| {
        facts.footing.look_up(&change.looked_up);
        (change.shape.clone(), values)
    });
    Ok(Some(Planned { plan, origins, change }))
}

/// The plan with values in the places of parameters; with a session, the conditions that they stand in are simplified.
fn replaced(
    plan: LogicalPlan,
    value_of: &dyn Fn(&str) -> Option<ScalarValue>,
    simplify: Option<&SessionState>,
) -> PlanResult<LogicalPlan> {
    let mut replace = |node: LogicalPlan| {
        let mut any = false;
        node.apply_expressions(|expr| {
            any |= expr.exists(|expr| Ok(matches!(expr, Expr::Placeholder(_))))?;
            Ok(if any { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })?;
        if !any {
            return Ok(Transformed::no(node));
        }
        let simplifier = match simplify {
            Some(state) if is_condition(&node) => {
                let now = state.execution_props().query_execution_start_time;
                Some(nulls::simplifier(&node, Arc::clone(state.config_options()), now)?)
            }
            _ => None,
        };
        let names = NamePreserver::new(&node);
        node.rewrite_expressions(&mut |expr| {
            if !expr.exists(|expr| Ok(matches!(expr, Expr::Placeholder(_))))? {
                return Ok(Transformed::no(expr));
            }
            let name = names.save(&expr);
            let expr = expr
                .rewrite_up(&mut |expr| {
                    let Expr::Placeholder(placeholder) = &expr else { return Ok(Transformed::no(expr)) };
                    Ok(match value_of(&placeholder.id) {
                        Some(value) => Transformed::yes(Expr::Literal(value, None)),
                        None => Transformed::no(expr),
                    })
                })?
                .data;
            let expr = match &simplifier {
                Some(simplifier) => simplifier.simplify(nulls::seen_to(expr, simplifier)?)?,
                None => expr,
            };
            Ok(Transformed::yes(name.restore(expr)))
        })
    };
    Ok(plan.rewrite_down_with_subqueries(&mut replace)?.data)
}

/// Whether its expressions are conditions, whose names nobody refers to.
fn is_condition(node: &LogicalPlan) -> bool {
    matches!(node, LogicalPlan::Filter(_) | LogicalPlan::TableScan(_) | LogicalPlan::Join(_))
}

/// Rows that each scan is expected to give back, in the plan's order.
fn rows_of_scans(plan: &LogicalPlan) -> Vec<f64> {
    let mut rows = Vec::new();
    // It never fails: nothing in it does.
    let _ = plan.apply_with_subqueries(|node| {
        if matches!(node, LogicalPlan::TableScan(_)) {
            rows.push(estimate::estimated_rows(node));
        }
        Ok(TreeNodeRecursion::Continue)
    });
    rows
}

thread_local! {
    /// Values of the parameters of the plan that this thread optimises, and the transaction's time.
    static VALUES: RefCell<(Vec<ScalarValue>, Option<ScalarValue>)> = const { RefCell::new((Vec::new(), None)) };
}

/// Optimises with estimates that look at these values.
fn looking_at<T>(values: &[ScalarValue], facts: &SessionFacts, optimize: impl FnOnce() -> T) -> T {
    struct Before((Vec<ScalarValue>, Option<ScalarValue>));

    impl Drop for Before {
        fn drop(&mut self) {
            VALUES.replace(std::mem::take(&mut self.0));
        }
    }

    let _before = Before(VALUES.replace((values.to_vec(), Some(moment(facts)))));
    optimize()
}

/// The value that estimates take a parameter for.
pub(crate) fn value_for_estimates(id: &str) -> Option<ScalarValue> {
    VALUES.with_borrow(|(values, moment)| match id {
        MOMENT => moment.clone(),
        id => values.get(index_of(id)?).cloned(),
    })
}

/// A condition with the values that estimates take its parameters for.
pub(crate) fn with_values(condition: Expr) -> PlanResult<Expr> {
    let mut replace = |expr: Expr| {
        let Expr::Placeholder(placeholder) = &expr else { return Ok(Transformed::no(expr)) };
        Ok(match value_for_estimates(&placeholder.id) {
            Some(value) => Transformed::yes(Expr::Literal(value, None)),
            None => Transformed::no(expr),
        })
    };
    Ok(condition.rewrite_up(&mut replace)?.data)
}
