//! Subqueries that DataFusion cannot turn into joins.
//!
//! DataFusion decorrelates scalar subqueries that aggregate and compare with the outer row by equality, and `EXISTS` and
//! `IN` in a filter. PostgreSQL's clients write others: a scalar subquery that happens to find one row, `EXISTS` in a select
//! list, `ARRAY(SELECT …)` with any condition; and some it would get wrong ([`pull_up`](super::pull_up)). [`ApplySubqueries`]
//! goes first in analysis and replaces exactly those: by a join ([`unnesting`](super::unnesting)) where that can be done, else by a
//! function over the outer columns they use. It keeps the subquery's plan, puts the row's values in place of the outer
//! columns, and runs it, once for each distinct set of values in a batch.

use super::lateral;
use super::pull_up::{Asked, can_pull_up, has_one_row, outer_columns, without_outputs};
use super::unnesting::{Unnested, has_at_most_one_row, unnest};
use super::value::{Value, value_at};
use crate::arithmetic::length;
use crate::facts::SessionFacts;
use crate::interrupt::Interrupt;
use crate::planner::WORKER_STACK_BYTES;
use datafusion::arrow::array::{
    Array, ArrayRef, BooleanArray, ListArray, RecordBatch, StructArray, new_empty_array, new_null_array,
};
use datafusion::arrow::buffer::OffsetBuffer;
use datafusion::arrow::compute::concat;
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchemaRef, DataFusionError, Result, ScalarValue, internal_err};
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::expr::{Exists, InSubquery, ScalarFunction};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::logical_plan::check_subquery_expr;
use datafusion::logical_expr::type_coercion::binary::comparison_coercion;
use datafusion::logical_expr::{
    ColumnarValue, Expr, LogicalPlan, LogicalPlanBuilder, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Subquery, TypeSignature, Volatility,
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
        plan.transform_down_with_subqueries(|node| {
            let listed = match node {
                LogicalPlan::Join(join) => lateral::as_lists(join)?,
                node => Transformed::no(node),
            };
            if listed.transformed { Ok(listed) } else { rewrite_node(listed.data) }
        })
        .data()
    }
}

fn rewrite_node(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let mut found = false;
    node.apply_expressions(|expr| {
        expr.apply(|expr| {
            found |= matches!(
                expr,
                Expr::ScalarSubquery(_) | Expr::Exists(_) | Expr::InSubquery(_) | Expr::SetComparison(_)
            );
            Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
        })
    })?;
    if !found {
        return Ok(Transformed::no(node));
    }
    let inputs: Vec<DFSchemaRef> = node.inputs().into_iter().map(|input| input.schema().clone()).collect();
    let names = NamePreserver::new(&node);
    let outer = node.clone();
    let mut settled = Settled { outer: &outer, inputs: &inputs, joined: None };
    let rewritten = node.map_expressions(|expr| {
        let name = names.save(&expr);
        let expr = super::comparisons::rewrite(expr, &inputs)?.data;
        let rewritten = expr.transform_up(|expr| {
            Ok(match settled.subquery(&expr)? {
                Some(call) => Transformed::yes(call),
                None => Transformed::no(expr),
            })
        })?;
        Ok(rewritten.update_data(|expr| name.restore(expr)))
    })?;
    let Some(joined) = settled.joined else { return rewritten.map_data(LogicalPlan::recompute_schema) };
    let plan = rewritten.data.map_children(|_| Ok(Transformed::yes(joined.clone())))?.data.recompute_schema()?;
    // What the input has more is nobody's further up.
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
    inputs: &'a [DFSchemaRef],
    /// The operator's input, with the answers of subqueries beside its columns.
    joined: Option<LogicalPlan>,
}

impl Settled<'_> {
    /// What stands for a subquery, when DataFusion has no way to run it in this place. `None`: it has.
    fn subquery(&mut self, expr: &Expr) -> Result<Option<Expr>> {
        let outer = self.outer;
        let filtering = matches!(outer, LogicalPlan::Filter(_) | LogicalPlan::TableScan(_) | LogicalPlan::Join(_));
        match expr {
            Expr::ScalarSubquery(subquery) => {
                let is_supported = outer_columns(&subquery.subquery)?.is_empty()
                    || (check_subquery_expr(outer, &subquery.subquery, expr).is_ok()
                        && can_pull_up(subquery, Asked::Value)?);
                if is_supported {
                    return Ok(None);
                }
                if let Some(unnested) = self.unnested(subquery)? {
                    let is_one = has_at_most_one_row(&subquery.subquery)?;
                    return self.beside(|input| unnested.value_beside(input, is_one)).map(Some);
                }
                self.applied(Kind::Scalar, subquery, None).map(Some)
            }
            Expr::Exists(Exists { subquery, negated }) => {
                if filtering {
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
                if let Some(unnested) = self.unnested(subquery)? {
                    let exists = self.beside(|input| unnested.existence_beside(input))?;
                    return Ok(Some(if *negated { !exists } else { exists }));
                }
                self.applied(Kind::Exists { negated: *negated }, subquery, None).map(Some)
            }
            Expr::InSubquery(InSubquery { expr, subquery, negated }) => {
                let needle = expr.as_ref().clone();
                // One of one row is to equal it, which is a join where the row is found by one.
                if has_one_row(&subquery.subquery) && !outer_columns(&subquery.subquery)?.is_empty() {
                    let value = Expr::ScalarSubquery(subquery.clone());
                    let value = self.subquery(&value)?.unwrap_or(value);
                    return Ok(Some(if *negated { needle.not_eq(value) } else { needle.eq(value) }));
                }
                if filtering && can_pull_up(subquery, Asked::Membership)? {
                    return Ok(None);
                }
                if self.unnested(subquery)?.is_some() {
                    let among = super::comparisons::is_among(needle, subquery.clone(), self.inputs)?;
                    let among = among.transform_up(|expr| {
                        Ok(match self.subquery(&expr)? {
                            Some(answer) => Transformed::yes(answer),
                            None => Transformed::no(expr),
                        })
                    })?;
                    return Ok(Some(if *negated { !among.data } else { among.data }));
                }
                self.applied(Kind::In { negated: *negated }, subquery, Some(needle)).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Of operators with one input.
    fn unnested(&self, subquery: &Subquery) -> Result<Option<Unnested>> {
        match self.outer.inputs()[..] {
            [input] => unnest(input, &subquery.subquery),
            _ => Ok(None),
        }
    }

    /// Puts an answer beside the input's columns.
    fn beside(&mut self, join: impl FnOnce(LogicalPlan) -> Result<(LogicalPlan, Expr)>) -> Result<Expr> {
        let input = self.joined.take().unwrap_or_else(|| self.outer.inputs()[0].clone());
        let (joined, answer) = join(input)?;
        self.joined = Some(joined);
        Ok(answer)
    }

    /// A function that asks the subquery for each row.
    fn applied(&self, kind: Kind, subquery: &Subquery, needle: Option<Expr>) -> Result<Expr> {
        call(self.inputs, kind, subquery, needle)
    }
}

fn call(inputs: &[DFSchemaRef], kind: Kind, subquery: &Subquery, needle: Option<Expr>) -> Result<Expr> {
    let columns = outer_columns(&subquery.subquery)?;
    // A column of a query further out stays an outer reference here too, for that query to settle.
    let argument = |(column, reference): &(Column, Expr)| {
        if inputs.iter().any(|schema| schema.has_column(column)) {
            Expr::Column(column.clone())
        } else {
            reference.clone()
        }
    };
    let mut args: Vec<Expr> = columns.iter().map(argument).collect();
    args.extend(needle);
    let return_type = match kind {
        Kind::Scalar => subquery.subquery.schema().field(0).data_type().clone(),
        _ => DataType::Boolean,
    };
    let columns = columns.into_iter().map(|(column, _)| column).collect();
    Ok(Apply::of(kind, subquery.subquery.clone(), columns, return_type).call(args))
}

/// A subquery of an operator over these inputs as a function that asks it for each row. `None` for one of another form.
pub fn applied(inputs: &[DFSchemaRef], expr: &Expr) -> Result<Option<Expr>> {
    let (kind, subquery, needle) = match expr {
        Expr::ScalarSubquery(subquery) => (Kind::Scalar, subquery, None),
        Expr::Exists(Exists { subquery, negated }) => (Kind::Exists { negated: *negated }, subquery, None),
        Expr::InSubquery(InSubquery { expr, subquery, negated }) => {
            (Kind::In { negated: *negated }, subquery, Some(expr.as_ref().clone()))
        }
        _ => return Ok(None),
    };
    call(inputs, kind, subquery, needle).map(Some)
}

type Bindings = HashMap<Column, ScalarValue>;

/// The plan with values in place of outer columns.
fn bind(plan: LogicalPlan, values: &Bindings) -> Result<LogicalPlan> {
    plan.transform_down(|node| {
        if let LogicalPlan::Subquery(subquery) = node {
            let bound = bind_subquery(subquery, values)?;
            let is_free = !outer_columns(&bound.subquery)?.is_empty();
            let bound = if is_free { LogicalPlan::Subquery(bound) } else { Arc::unwrap_or_clone(bound.subquery) };
            return Ok(Transformed::new(bound, true, TreeNodeRecursion::Jump));
        }
        let names = NamePreserver::new(&node);
        let bound = node.map_expressions(|expr| {
            let name = names.save(&expr);
            let bound = expr.transform_down(|expr| bind_expression(expr, values))?;
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
        other => Transformed::no(other),
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Scalar,
    Exists {
        negated: bool,
    },
    In {
        negated: bool,
    },
    /// All rows, as a list of structs.
    Rows,
}

/// One subquery as a function of the outer columns it uses (and, for `IN`, of what is looked for, last).
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

    /// With a value for each column, and what is looked for.
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
            Kind::In { negated } => {
                let Some(needle) = args.last() else { return internal_err!("IN without a value") };
                if rows == 0 {
                    return Ok(boolean(Some(negated)));
                }
                let mut null = needle.is_null();
                for batch in &batches {
                    let column = batch.column(0);
                    let Some(common) = comparison_coercion(&needle.data_type(), column.data_type()) else {
                        return datafusion::common::plan_err!(
                            "cannot compare {} with {}",
                            needle.data_type(),
                            column.data_type()
                        );
                    };
                    let needle = value_at(&needle.cast_to(&common)?.to_array()?, 0)?;
                    let column = datafusion::arrow::compute::cast(column, &common)?;
                    for row in 0..column.len() {
                        match value_at(&column, row)? {
                            Value::Null => null = true,
                            value if is_equal(&value, &needle) => return Ok(boolean(Some(!negated))),
                            _ => {}
                        }
                    }
                }
                Ok(boolean(if null { None } else { Some(negated) }))
            }
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

/// Of values of one type.
fn is_equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Interval(left), Value::Interval(right)) => length(left) == length(right),
        (left, right) => left == right,
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
