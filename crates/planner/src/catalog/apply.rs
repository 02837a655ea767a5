//! Subqueries that DataFusion cannot turn into joins.
//!
//! DataFusion decorrelates scalar subqueries that aggregate and compare with the outer row by equality, and `EXISTS` and
//! `IN` in a filter. PostgreSQL's clients write others: a scalar subquery that happens to find one row, `EXISTS` in a select
//! list, `ARRAY(SELECT …)` with any condition; and some it would get wrong ([`pull_up`](super::pull_up)). [`ApplySubqueries`]
//! goes first in analysis and replaces exactly those: by a join ([`unnesting`](super::unnesting)) where that can be done, else by a
//! function over the outer columns they use. It keeps the subquery's plan, puts the row's values in place of the outer
//! columns, and runs it, once for each distinct set of values in a batch.

use super::comparisons::{Comparison, has_rows, is_never_null, is_ordered, is_set_operator, perhaps_null};
use super::lateral;
use super::pull_up::{Asked, can_pull_up, has_one_row, outer_columns, without_outputs};
use super::truth::{Place, transform};
use super::unnesting::{Unnested, has_at_most_one_row, unnest};
use crate::casts::map_expressions;
use crate::facts::SessionFacts;
use crate::interrupt::Interrupt;
use crate::optimizer::has_query;
use crate::planner::WORKER_STACK_BYTES;
use crate::rewrites::{RewritePlan, RewriteTree};
use datafusion::arrow::array::{
    Array, ArrayRef, BooleanArray, ListArray, RecordBatch, StructArray, new_empty_array, new_null_array,
};
use datafusion::arrow::buffer::OffsetBuffer;
use datafusion::arrow::compute::concat;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, DFSchemaRef, DataFusionError, JoinType, Result, ScalarValue, internal_err};
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::expr::{Exists, InSubquery, ScalarFunction, SetComparison, SetQuantifier};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::logical_plan::check_subquery_expr;
use datafusion::logical_expr::utils::{conjunction, merge_schema, split_conjunction, split_conjunction_owned};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable, Filter, Join, LogicalPlan, LogicalPlanBuilder, Operator, ReturnFieldArgs,
    ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Subquery, TypeSignature, Volatility, binary_expr,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::physical_plan::{ExecutionPlan, collect};
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tidepool_base::{Error, SqlState, panic_point};
use tidepool_heap::QueryHeap;
use tokio::runtime::Runtime;

#[derive(Debug)]
pub struct ApplySubqueries;

impl AnalyzerRule for ApplySubqueries {
    fn name(&self) -> &str {
        "apply_subqueries"
    }

    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        plan.rewrite_down_with_subqueries(&mut settled).data()
    }
}

/// An operator without the correlated subqueries of its own.
fn settled(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    match node {
        LogicalPlan::Join(join) => {
            let listed = lateral::as_lists(join)?;
            match listed.data {
                LogicalPlan::Join(join) if !listed.transformed => rewrite_node(raised(join)?),
                _ => Ok(listed),
            }
        }
        LogicalPlan::Filter(filter) => match lateral::filtered_before(filter)? {
            // Nothing is left of the filter.
            join @ LogicalPlan::Join(_) => settled(join),
            node => rewrite_node(node),
        },
        node => rewrite_node(node),
    }
}

/// An inner join whose conditions ask queries, as a filter over it: a query may name columns of both sides, and may become a join.
fn raised(mut join: Join) -> Result<LogicalPlan> {
    if join.join_type != JoinType::Inner || !join.filter.as_ref().is_some_and(has_query) {
        return Ok(LogicalPlan::Join(join));
    }
    let conditions = join.filter.take().map(split_conjunction_owned).unwrap_or_default();
    let (asking, others) = conditions.into_iter().partition::<Vec<_>, _>(has_query);
    join.filter = conjunction(others);
    let plan = LogicalPlan::Join(join);
    match conjunction(asking) {
        Some(condition) => Ok(LogicalPlan::Filter(Filter::try_new(condition, Arc::new(plan))?)),
        None => Ok(plan),
    }
}

/// Whether not all of its parts are evaluated for each row.
fn is_lazy(expr: &Expr) -> bool {
    match expr {
        Expr::Case(_) => true,
        Expr::ScalarFunction(function) => function.name() == "coalesce",
        Expr::BinaryExpr(binary) => binary.op == Operator::Or,
        _ => false,
    }
}

fn rewrite_node(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let mut found = false;
    node.apply_expressions(|expr| {
        found |= has_query(expr);
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    if !found {
        return Ok(Transformed::no(node));
    }
    let inputs: Vec<LogicalPlan> = node.inputs().into_iter().cloned().collect();
    let (outer, place) = (node.clone(), Place::within(&node));
    let mut is_asked = true;
    node.apply_expressions(|expr| {
        for part in split_conjunction(expr) {
            is_asked &= !part.exists(|expr| Ok(is_lazy(expr) && has_query(expr)))?;
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    let mut settled = Settled { outer: &outer, schema: merge_schema(&node.inputs()), joined: inputs, is_asked };
    let rewritten = map_expressions(node, &mut |expr| {
        transform(expr, place, &mut |expr, place| {
            Ok(match settled.query(&expr, place)? {
                Some(answer) => Transformed::yes(answer),
                None => Transformed::no(expr),
            })
        })
    })?;
    let is_as_before = |(now, before): (&LogicalPlan, &LogicalPlan)| now.schema() == before.schema();
    if settled.joined.iter().zip(outer.inputs()).all(is_as_before) {
        return rewritten.map_data(LogicalPlan::recompute_schema);
    }
    let mut joined = settled.joined.into_iter();
    let plan = rewritten.data.map_children(|input| Ok(Transformed::yes(joined.next().unwrap_or(input))))?;
    let plan = plan.data.recompute_schema()?;
    // What the inputs have more is nobody's further up.
    let is_wider = plan.schema().fields().len() > outer.schema().fields().len();
    let plan = if is_wider {
        let columns = outer.schema().columns().into_iter().map(Expr::Column);
        LogicalPlanBuilder::from(plan).project(columns)?.build()?
    } else {
        plan
    };
    Ok(Transformed::yes(plan))
}

/// The subqueries of one operator's expressions.
struct Settled<'a> {
    outer: &'a LogicalPlan,
    /// Its inputs, with the answers of subqueries beside their columns.
    joined: Vec<LogicalPlan>,
    /// That of all of them.
    schema: DFSchema,
    /// None stands where a row may go by without asking it.
    is_asked: bool,
}

impl Settled<'_> {
    fn is_filter(&self) -> bool {
        matches!(self.outer, LogicalPlan::Filter(_) | LogicalPlan::TableScan(_))
    }

    /// What stands for a query in this place. `None`: it stays what it is, for [`among`](super::among) or DataFusion to run.
    fn query(&mut self, expr: &Expr, place: Place) -> Result<Option<Expr>> {
        match expr {
            Expr::ScalarSubquery(subquery) if is_never_null(subquery) => {
                let subquery = Expr::ScalarSubquery(perhaps_null(subquery.clone())?);
                Ok(Some(self.query(&subquery, place)?.unwrap_or(subquery)))
            }
            Expr::ScalarSubquery(subquery) => {
                // DataFusion lets others pass, and has no way to run them.
                let joins = self.is_filter() || matches!(self.outer, LogicalPlan::Projection(_));
                let is_supported = outer_columns(&subquery.subquery)?.is_empty()
                    || (joins
                        && check_subquery_expr(self.outer, &subquery.subquery, expr).is_ok()
                        && can_pull_up(subquery, Asked::Value)?);
                if is_supported {
                    return Ok(None);
                }
                if let Some((input, unnested)) = self.unnested(subquery)? {
                    let is_one = has_at_most_one_row(&subquery.subquery)?;
                    return self.beside(input, |input| unnested.value_beside(input, is_one)).map(Some);
                }
                self.applied(Kind::Scalar, subquery).map(Some)
            }
            Expr::Exists(Exists { subquery, negated }) => {
                let is_alone = outer_columns(&subquery.subquery)?.is_empty();
                // Within an expression it may come to stand in another query.
                if self.is_filter() && !(is_alone && place.shows_unknown()) {
                    if can_pull_up(subquery, Asked::Existence)? {
                        return Ok(None);
                    }
                    if let Some(plan) = without_outputs(&subquery.subquery)? {
                        let subquery = Subquery { subquery: Arc::new(plan), ..subquery.clone() };
                        if can_pull_up(&subquery, Asked::Existence)? {
                            return Ok(Some(Expr::Exists(Exists { subquery, negated: *negated })));
                        }
                    }
                }
                if is_alone {
                    return has_rows(subquery, *negated).map(Some);
                }
                if let Some((input, unnested)) = self.unnested(subquery)? {
                    let exists = self.beside(input, |input| unnested.existence_beside(input))?;
                    return Ok(Some(if *negated { !exists } else { exists }));
                }
                self.applied(Kind::Exists { negated: *negated }, subquery).map(Some)
            }
            Expr::InSubquery(InSubquery { expr: needle, subquery, negated }) => {
                let (op, quantifier) = match negated {
                    false => (Operator::Eq, SetQuantifier::Any),
                    true => (Operator::NotEq, SetQuantifier::All),
                };
                self.comparison(needle, op, quantifier, subquery, place)
            }
            Expr::SetComparison(SetComparison { expr: needle, subquery, op, quantifier }) => {
                let is_membership = match quantifier {
                    SetQuantifier::Any => *op == Operator::Eq,
                    SetQuantifier::All => *op == Operator::NotEq,
                };
                let settled = self.comparison(needle, *op, *quantifier, subquery, place)?;
                Ok(settled.or_else(|| {
                    let negated = *quantifier == SetQuantifier::All;
                    let within = || InSubquery::new(needle.clone(), subquery.clone(), negated);
                    is_membership.then(|| Expr::InSubquery(within()))
                }))
            }
            _ => Ok(None),
        }
    }

    fn comparison(
        &mut self,
        needle: &Expr,
        op: Operator,
        quantifier: SetQuantifier,
        subquery: &Subquery,
        place: Place,
    ) -> Result<Option<Expr>> {
        let is_correlated = !outer_columns(&subquery.subquery)?.is_empty();
        let column = subquery.subquery.schema().field(0);
        // A parameter may have no type yet.
        let is_plain = is_ordered(column.data_type())
            && needle.get_type(&self.schema).map_or(true, |data_type| is_ordered(&data_type));
        if !is_correlated && is_plain && is_set_operator(op) {
            return Ok(None);
        }
        // One of one row is to equal it, which is a join where the row is found by one.
        if is_correlated && has_one_row(&subquery.subquery) {
            let value = Expr::ScalarSubquery(subquery.clone());
            let value = self.query(&value, Place::Value)?.unwrap_or(value);
            return Ok(Some(binary_expr(needle.clone(), op, value)));
        }
        let is_membership = op == Operator::Eq && quantifier == SetQuantifier::Any;
        // Below a cast the compared column has the cast's name, and is one more beside itself where a condition names it, too.
        let is_cast = needle.get_type(&self.schema).is_ok_and(|of| of != *column.data_type()) && is_correlated;
        let may_join =
            self.is_filter() && !place.shows_unknown() && !needle.contains_outer() && !has_query(needle) && !is_cast;
        if is_membership && may_join && can_pull_up(subquery, Asked::Membership)? {
            return Ok(None);
        }
        let compared = Comparison::new(needle.clone(), op, subquery, &self.schema)?;
        let is_known = is_plain && !column.is_nullable() && !needle.nullable(&self.schema).unwrap_or(true);
        let query = match place.shows_unknown() && !is_known {
            true => compared.value(quantifier)?,
            false => compared.condition(quantifier, is_known)?,
        };
        let settled = self.query(&query, place)?;
        Ok(Some(settled.unwrap_or(query)))
    }

    /// Beside the rows of one of the operator's inputs.
    fn unnested(&self, subquery: &Subquery) -> Result<Option<(usize, Unnested)>> {
        let columns = outer_columns(&subquery.subquery)?;
        for (place, (input, joined)) in self.outer.inputs().into_iter().zip(&self.joined).enumerate() {
            // With answers beside it, which grow with each, only for what names one of them.
            let names_own = columns.iter().all(|(column, _)| input.schema().has_column(column));
            if let Some(unnested) = unnest(if names_own { input } else { joined }, &subquery.subquery, self.is_asked)? {
                return Ok(Some((place, unnested)));
            }
        }
        Ok(None)
    }

    /// Puts an answer beside an input's columns.
    fn beside(&mut self, place: usize, join: impl FnOnce(LogicalPlan) -> Result<(LogicalPlan, Expr)>) -> Result<Expr> {
        let (joined, answer) = join(self.joined[place].clone())?;
        self.joined[place] = joined;
        self.schema = merge_schema(&self.joined.iter().collect::<Vec<_>>());
        Ok(answer)
    }

    /// A function that asks the subquery for each row.
    fn applied(&self, kind: Kind, subquery: &Subquery) -> Result<Expr> {
        call(&self.schema, kind, subquery)
    }
}

fn call(schema: &DFSchema, kind: Kind, subquery: &Subquery) -> Result<Expr> {
    let columns = outer_columns(&subquery.subquery)?;
    // A column of a query further out stays an outer reference here too, for that query to settle.
    let argument = |(column, reference): &(Column, Expr)| {
        if schema.has_column(column) { Expr::Column(column.clone()) } else { reference.clone() }
    };
    let args: Vec<Expr> = columns.iter().map(argument).collect();
    let return_type = match kind {
        Kind::Scalar => subquery.subquery.schema().field(0).data_type().clone(),
        _ => DataType::Boolean,
    };
    let columns = columns.into_iter().map(|(column, _)| column).collect();
    Ok(Apply::of(kind, subquery.subquery.clone(), columns, return_type).call(args))
}

/// A subquery of an operator over these inputs as a function that asks it for each row. `None` for what is none.
pub fn applied(inputs: &[DFSchemaRef], expr: &Expr) -> Result<Option<Expr>> {
    let mut schema = DFSchema::empty();
    inputs.iter().for_each(|input| schema.merge(input));
    let (needle, op, quantifier, subquery) = match expr {
        Expr::ScalarSubquery(subquery) => return call(&schema, Kind::Scalar, subquery).map(Some),
        Expr::Exists(Exists { subquery, negated }) => {
            return call(&schema, Kind::Exists { negated: *negated }, subquery).map(Some);
        }
        Expr::InSubquery(InSubquery { expr, subquery, negated: false }) => {
            (expr, Operator::Eq, SetQuantifier::Any, subquery)
        }
        Expr::InSubquery(InSubquery { expr, subquery, negated: true }) => {
            (expr, Operator::NotEq, SetQuantifier::All, subquery)
        }
        Expr::SetComparison(SetComparison { expr, subquery, op, quantifier }) => (expr, *op, *quantifier, subquery),
        _ => return Ok(None),
    };
    match Comparison::new(needle.as_ref().clone(), op, subquery, &schema)?.value(quantifier)? {
        Expr::ScalarSubquery(value) => call(&schema, Kind::Scalar, &value).map(Some),
        _ => Ok(None),
    }
}

type Bindings = HashMap<Column, ScalarValue>;

/// The plan with values in place of outer columns.
fn bind(plan: LogicalPlan, values: &Bindings) -> Result<LogicalPlan> {
    plan.rewrite_down(&mut |node| {
        if let LogicalPlan::Subquery(subquery) = node {
            let bound = bind_subquery(subquery, values)?;
            let is_free = !outer_columns(&bound.subquery)?.is_empty();
            let bound = if is_free { LogicalPlan::Subquery(bound) } else { Arc::unwrap_or_clone(bound.subquery) };
            return Ok(Transformed::new(bound, true, TreeNodeRecursion::Jump));
        }
        let names = NamePreserver::new(&node);
        let bound = node.rewrite_expressions(&mut |expr| {
            let name = names.save(&expr);
            let bound = expr.rewrite_down(&mut |expr| bind_expression(expr, values))?;
            Ok(bound.update_data(|expr| name.restore(expr)))
        })?;
        if bound.transformed { bound.map_data(LogicalPlan::recompute_schema) } else { Ok(bound) }
    })
    .data()
}

fn bind_subquery(subquery: Subquery, values: &Bindings) -> Result<Subquery> {
    let plan = bind(subquery.subquery.as_ref().clone(), values)?;
    let outer_ref_columns = subquery
        .outer_ref_columns
        .into_iter()
        .filter(|expr| !matches!(expr, Expr::OuterReferenceColumn(_, column) if values.contains_key(column)))
        .collect();
    Ok(Subquery { subquery: Arc::new(plan), outer_ref_columns, spans: subquery.spans })
}

fn bind_expression(expr: Expr, values: &Bindings) -> Result<Transformed<Expr>> {
    Ok(match expr {
        Expr::OuterReferenceColumn(_, ref column) => match values.get(column) {
            Some(value) => Transformed::yes(Expr::Literal(value.clone(), None)),
            None => Transformed::no(expr),
        },
        Expr::ScalarSubquery(subquery) => Transformed::yes(Expr::ScalarSubquery(bind_subquery(subquery, values)?)),
        Expr::Exists(exists) => Transformed::yes(Expr::Exists(Exists {
            subquery: bind_subquery(exists.subquery, values)?,
            negated: exists.negated,
        })),
        Expr::InSubquery(within) => Transformed::yes(Expr::InSubquery(InSubquery {
            subquery: bind_subquery(within.subquery, values)?,
            ..within
        })),
        Expr::SetComparison(of) => {
            Transformed::yes(Expr::SetComparison(SetComparison { subquery: bind_subquery(of.subquery, values)?, ..of }))
        }
        other => Transformed::no(other),
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Scalar,
    Exists {
        negated: bool,
    },
    /// All rows, as a list of structs.
    Rows,
}

/// One subquery as a function of the outer columns it uses.
#[derive(Debug)]
pub struct Apply {
    id: u64,
    kind: Kind,
    plan: Arc<LogicalPlan>,
    columns: Vec<Column>,
    return_type: DataType,
    /// Volatile only so that nothing is computed while planning.
    signature: Signature,
}

impl PartialEq for Apply {
    fn eq(&self, other: &Apply) -> bool {
        self.id == other.id
    }
}
impl Eq for Apply {}
impl Hash for Apply {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl ScalarUDFImpl for Apply {
    fn name(&self) -> &str {
        "subquery"
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn schema_name(&self, _args: &[Expr]) -> Result<String> {
        Ok(format!("subquery_{}", self.id))
    }
    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        Ok(self.return_type.clone())
    }
    fn return_field_from_args(&self, _args: ReturnFieldArgs) -> Result<FieldRef> {
        let answer = Field::new(self.name(), self.return_type.clone(), true);
        // A scalar is of the type that the query says, and not only held as one.
        Ok(Arc::new(match (self.kind, self.plan.schema().fields().first()) {
            (Kind::Scalar, Some(output)) if *output.data_type() == self.return_type => {
                answer.with_metadata(output.metadata().clone())
            }
            _ => answer,
        }))
    }
    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let Some(facts) = SessionFacts::of(&args.config_options) else {
            return internal_err!("no session to run a subquery in");
        };
        let interrupt = facts.planner.shared(facts.session_id).map(|session| session.interrupt());
        let interrupt = interrupt.filter(|interrupt| interrupt.strong_count() > 0);
        let statement = Statement { interrupt, heap: QueryHeap::current() };
        let mut state = facts.planner.state(facts);
        // The plans are small and run one after the other.
        state.config_mut().options_mut().execution.target_partitions = 1;
        // Of constants alone there is one answer for all rows.
        let is_constant = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_constant { args.number_rows.min(1) } else { args.number_rows };
        let arrays = args.args.iter().map(|arg| arg.to_array(rows)).collect::<Result<Vec<_>>>()?;
        let answers = apart(|runtime| {
            let mut answers: Vec<ArrayRef> = Vec::with_capacity(rows);
            let mut known: HashMap<Vec<ScalarValue>, ArrayRef> = HashMap::new();
            for row in 0..rows {
                let key: Vec<_> =
                    arrays.iter().map(|array| ScalarValue::try_from_array(array, row)).collect::<Result<_>>()?;
                let answer = match known.get(&key) {
                    Some(answer) => answer.clone(),
                    None => {
                        let answer = self.answer(runtime, &statement, &state, &key)?;
                        known.insert(key, answer.clone());
                        answer
                    }
                };
                answers.push(answer);
            }
            Ok(answers)
        })?;
        if answers.is_empty() {
            return Ok(ColumnarValue::Array(new_null_array(&self.return_type, 0)));
        }
        if is_constant {
            return Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&answers[0], 0)?));
        }
        let parts: Vec<&dyn Array> = answers.iter().map(AsRef::as_ref).collect();
        Ok(ColumnarValue::Array(concat(&parts)?))
    }
}

impl Apply {
    pub fn of(kind: Kind, plan: Arc<LogicalPlan>, columns: Vec<Column>, return_type: DataType) -> Apply {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Apply {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            kind,
            plan,
            columns,
            return_type,
            signature: Signature::one_of(
                vec![TypeSignature::VariadicAny, TypeSignature::Nullary],
                Volatility::Volatile,
            ),
        }
    }

    /// With a value for each column.
    pub fn call(self, args: Vec<Expr>) -> Expr {
        Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(ScalarUDF::new_from_impl(self)), args))
    }

    /// One row: the subquery's answer for these outer values. Planned outside the heap, as all plans are, and run inside.
    fn answer(
        &self,
        runtime: &Runtime,
        statement: &Statement,
        state: &SessionState,
        args: &[ScalarValue],
    ) -> Result<ArrayRef> {
        panic_point("planner.subquery");
        let values: Bindings = self.columns.iter().cloned().zip(args.iter().cloned()).collect();
        let plan = bind(self.plan.as_ref().clone(), &values)?;
        let plan = runtime.block_on(state.create_physical_plan(&plan))?;
        let plan = statement.guarded(plan)?;
        let batches = runtime.block_on(statement.unless_interrupted(collect(plan, state.task_ctx())))?;
        let rows: usize = batches.iter().map(|batch| batch.num_rows()).sum();
        let boolean = |value: Option<bool>| -> ArrayRef { Arc::new(BooleanArray::from(vec![value])) };
        match self.kind {
            Kind::Exists { negated } => Ok(boolean(Some((rows > 0) != negated))),
            Kind::Scalar => match rows {
                0 => Ok(new_null_array(&self.return_type, 1)),
                1 => match batches.iter().find(|batch| batch.num_rows() == 1) {
                    Some(batch) => Ok(datafusion::arrow::compute::cast(batch.column(0), &self.return_type)?),
                    None => internal_err!("a row was counted and not found"),
                },
                _ => Err(super::functions::sql_error(
                    SqlState::CARDINALITY_VIOLATION,
                    "more than one row returned by a subquery used as an expression",
                )),
            },
            Kind::Rows => self.listed(&batches, rows),
        }
    }
}

impl Apply {
    /// Rows as one list.
    fn listed(&self, batches: &[RecordBatch], rows: usize) -> Result<ArrayRef> {
        let DataType::List(item) = &self.return_type else { return internal_err!("rows that are no list") };
        let DataType::Struct(fields) = item.data_type() else { return internal_err!("rows that are no structs") };
        let column = |(place, field): (usize, &Arc<Field>)| -> Result<ArrayRef> {
            let parts: Vec<ArrayRef> = batches
                .iter()
                .map(|batch| Ok(datafusion::arrow::compute::cast(batch.column(place), field.data_type())?))
                .collect::<Result<_>>()?;
            let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
            Ok(if parts.is_empty() { new_empty_array(field.data_type()) } else { concat(&parts)? })
        };
        let columns = fields.iter().enumerate().map(column).collect::<Result<Vec<_>>>()?;
        let rows_of = StructArray::try_new_with_length(fields.clone(), columns, None, rows)?;
        let offsets = OffsetBuffer::from_lengths([rows]);
        Ok(Arc::new(ListArray::try_new(item.clone(), offsets, Arc::new(rows_of), None)?))
    }
}

/// The statement that a subquery is a part of.
struct Statement {
    /// `None`: nobody can interrupt it.
    interrupt: Option<Weak<Interrupt>>,
    heap: Option<Arc<QueryHeap>>,
}

impl Statement {
    /// The same plan, whose operators look whether the statement has ended between batches.
    fn guarded(&self, plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        let interrupt = self.interrupt.as_ref().and_then(Weak::upgrade);
        interrupt.map_or(Ok(plan.clone()), |interrupt| crate::guard::wrap(plan, &interrupt).map_err(ended))
    }

    /// Runs inside the statement's heap, unless the statement ends before, or has ended: its client may have an error already while
    /// rows are still worked through.
    async fn unless_interrupted<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let work = async {
            match &self.heap {
                Some(heap) => crate::heap::scope(heap, work).await,
                None => work.await,
            }
        };
        let Some(interrupt) = &self.interrupt else { return work.await };
        let Some(interrupt) = interrupt.upgrade() else { return Err(ended(crate::errors::canceled())) };
        interrupt.check().map_err(ended)?;
        tokio::select! {
            worked = work => worked,
            error = interrupt.wait() => Err(ended(error)),
        }
    }
}

fn ended(error: Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// Runs `work` to its end from inside a function that cannot wait: on a thread and a runtime of its own, as this thread's
/// runtime may need this very thread to get any further. Outside of any heap, until `work` says otherwise.
fn apart<T: Send>(work: impl FnOnce(&Runtime) -> Result<T> + Send) -> Result<T> {
    let failed = |error| DataFusionError::External(Box::new(Error::io("start a thread for a subquery", &error)));
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().map_err(failed)?;
        work(&runtime)
    };
    QueryHeap::outside(|| {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("tidepool-subquery".into()).stack_size(WORKER_STACK_BYTES);
            let thread = thread.spawn_scoped(scope, run).map_err(failed)?;
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}
