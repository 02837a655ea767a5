//! `SELECT … FOR UPDATE` and its kin: which rows are locked, as a plan.
//!
//! The plan is the query's, with the rows' ids of each table whose rows are locked before its outputs.

pub mod parts;
mod read;

use crate::errors::from_datafusion;
use crate::facts::SessionFacts;
use crate::names::OutputNames;
use crate::origins::{self, Origins};
use crate::query::{self, ParameterFields, Within};
use crate::resolve::Relation;
use crate::session::ResultColumn;
use crate::statement::LockClause;
use crate::statement::locking as statement;
use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Schema};
use datafusion::catalog::TableProvider as DataFusionTable;
use datafusion::common::{Column, ScalarValue};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Cast, Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::sqlparser::ast;
use read::{Reader, Source, View};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState};
use tidepool_database::{LockWait, PartitionTree};
use tidepool_table::TableVersion;
use tidepool_table::rows::RowLock;

pub use read::Reading;

/// A table in `FROM` whose rows are locked.
#[derive(Clone)]
pub struct Target {
    pub version: Arc<TableVersion>,
    pub lock: RowLock,
    pub wait: LockWait,
    /// Of a partitioned table: what rows' ids name them within.
    pub tree: Option<Arc<PartitionTree>>,
}

/// A query that locks rows, planned.
pub struct Planned {
    /// Ids, one column a target, and then the query's outputs.
    pub plan: LogicalPlan,
    pub targets: Vec<Target>,
    /// Of the rows that are locked, those passed over, and then how many are given back.
    pub skip: usize,
    pub fetch: Option<usize>,
    /// The plan counts them itself.
    pub is_limited: bool,
    names: OutputNames,
    origins: Origins,
}

impl Planned {
    /// What the query gives back. `schema` is the plan's, coerced.
    pub fn columns(&self, schema: &Schema) -> Vec<ResultColumn> {
        let mut columns = query::columns(schema, &OutputNames::none()).split_off(self.targets.len());
        let names = self.names.apply(columns.iter().map(|column| column.name.clone()));
        for (column, name) in columns.iter_mut().zip(names) {
            column.name = name;
        }
        origins::mark(&mut columns, &self.origins);
        columns
    }
}

/// `parameters` are the statement's; they are bound here. `counts`: `LIMIT` and `OFFSET` are left to whoever locks rows.
pub fn plan(
    state: &SessionState,
    facts: &Arc<SessionFacts>,
    reading: &Reading,
    parameters: &[ArrayRef],
    counts: bool,
) -> Result<Planned> {
    let clause = reading.clause;
    let rows = sources_of(state, facts, reading)?;
    let fields = query::parameter_fields(parameters);
    let plan = planned(state, facts, reading.query.clone(), fields, rows, reading.within.as_ref(), clause)?;
    let mut plan = query::bind(plan, parameters)?;
    let (mut skip, mut fetch) = (0, None);
    let mut is_limited = statement::is_limited(&reading.query);
    if let LogicalPlan::Limit(limit) = &plan
        && counts
    {
        let numbers = count(limit.skip.as_deref()).and_then(|skip| Ok((skip, count(limit.fetch.as_deref())?)));
        match numbers {
            Ok(numbers) => {
                (skip, fetch) = (numbers.0.unwrap_or(0), numbers.1);
                plan = limit.input.as_ref().clone();
                is_limited = false;
            }
            Err(error) if error.code() != SqlState::FEATURE_NOT_SUPPORTED => return Err(error),
            // The plan counts them itself, before it is known who has them.
            Err(_) if reading.targets.iter().any(|target| target.wait == LockWait::Skip) => {
                let message = format!("with {clause} SKIP LOCKED, LIMIT and OFFSET must be numbers");
                return Err(Error::unsupported(message));
            }
            Err(_) => {}
        }
    }
    let origins = origins::of_plan(facts, &plan);
    let schema = plan.schema().clone();
    let ids = schema.fields().len() - reading.targets.len();
    let output = |index: usize| Expr::Column(Column::from(schema.qualified_field(index)));
    // In the order of the targets, whichever came up first. What leaves a plan has a type of SQL's.
    let id = |place: usize| {
        let name = read::id_name(place);
        let index = (ids..schema.fields().len()).find(|index| *schema.field(*index).name() == name);
        let index = index.ok_or_else(|| Error::internal("rows to be locked have no ids"))?;
        Ok(Expr::Cast(Cast::new(Box::new(output(index)), DataType::Int64)).alias(name))
    };
    let outputs = (0..reading.targets.len()).map(id).chain((0..ids).map(|index| Ok(output(index))));
    let plan = LogicalPlanBuilder::from(plan.clone())
        .project(outputs.collect::<Result<Vec<_>>>()?)
        .and_then(LogicalPlanBuilder::build)
        .map_err(from_datafusion)?;
    let (targets, names) = (reading.targets.clone(), reading.names.clone());
    Ok(Planned { plan, targets, skip, fetch, is_limited, names, origins })
}

/// What the names in a reading's query stand for.
fn sources_of(
    state: &SessionState,
    facts: &Arc<SessionFacts>,
    reading: &Reading,
) -> Result<BTreeMap<String, Arc<dyn DataFusionTable>>> {
    let mut rows: BTreeMap<String, Arc<dyn DataFusionTable>> = BTreeMap::new();
    for (name, source) in &reading.sources {
        let provider = match source {
            Source::Table { version, place, readable, view } => {
                let id = read::id_name(*place);
                let (version, readable) = (version.clone(), readable.clone());
                let relation = Relation::Table(version.clone());
                let provider = crate::scan::TableProvider::to_lock(&facts.version, version, *place, &id, readable)?;
                match view {
                    Some(view) => crate::view::as_it_was(&view.def, &relation, provider, Some(&id))?,
                    None => provider,
                }
            }
            Source::View { view, query, places, clause } => {
                let plan = planned(state, facts, query.clone(), Vec::new(), rows.clone(), Some(view), clause)?;
                let ids = places.iter().map(|place| read::id_name(*place));
                crate::view::as_table(&view.def, plan, ids)?
            }
        };
        rows.insert(name.clone(), provider);
    }
    Ok(rows)
}

/// The plan of a query that locks rows with its parameters as they are, and the rows' ids behind its outputs.
pub fn unbound(
    state: &SessionState,
    facts: &Arc<SessionFacts>,
    reading: &Reading,
    fields: ParameterFields,
) -> Result<LogicalPlan> {
    let rows = sources_of(state, facts, reading)?;
    planned(state, facts, reading.query.clone(), fields, rows, reading.within.as_ref(), reading.clause)
}

/// A query that a cursor might change rows of: a scan of one table, in any order, with its rows' ids.
pub fn updatable(facts: &Arc<SessionFacts>, query: &ast::Query) -> Option<Reading> {
    let ast::SetExpr::Select(select) = query.body.as_ref() else { return None };
    let is_one = matches!(select.from.as_slice(), [table] if table.joins.is_empty());
    if !is_one || query.order_by.is_some() || query.with.is_some() {
        return None;
    }
    let mut reader = Reader::of_readers(facts);
    let all = LockClause { lock: RowLock::KeyShare, of: Vec::new(), wait: LockWait::Wait };
    let reading = reader.read(Box::new(query.clone()), &[all], None).ok()?;
    (reader.parts.is_empty() && reading.targets.len() == 1).then_some(reading)
}

/// The plan of a query whose last outputs are ids.
fn planned(
    state: &SessionState,
    facts: &Arc<SessionFacts>,
    query: Box<ast::Query>,
    fields: ParameterFields,
    rows: BTreeMap<String, Arc<dyn DataFusionTable>>,
    view: Option<&View>,
    clause: &str,
) -> Result<LogicalPlan> {
    let within = view.map(|view| Within { view: &view.def, depth: view.depth });
    let plan = query::logical_plan_with_rows(state, facts, query, fields, rows, within).map_err(|error| {
        // The ids are no keys of a group.
        match error.code() == SqlState::GROUPING_ERROR {
            true => Error::unsupported(format!("{clause} is not allowed with aggregate functions")),
            false => error,
        }
    })?;
    refuse_windows(&plan, clause)?;
    Ok(plan)
}

/// The number that a `LIMIT` or `OFFSET` comes to. 0A000 for one that is not known before the query runs.
fn count(expr: Option<&Expr>) -> Result<Option<usize>> {
    let mut expr = match expr {
        Some(expr) => expr,
        None => return Ok(None),
    };
    while let Expr::Cast(Cast { expr: inner, .. }) = expr {
        expr = inner;
    }
    let number = match expr {
        Expr::Literal(value, _) => value.cast_to(&DataType::Int64).ok(),
        _ => None,
    };
    match number {
        Some(ScalarValue::Int64(None)) => Ok(None),
        Some(ScalarValue::Int64(Some(number))) => usize::try_from(number)
            .map(Some)
            .map_err(|_| Error::new(SqlState::INVALID_ROW_COUNT_IN_LIMIT, "LIMIT must not be negative")),
        _ => Err(Error::unsupported("a LIMIT that is no number")),
    }
}

fn refuse_windows(plan: &LogicalPlan, clause: &str) -> Result<()> {
    let mut plan = plan;
    loop {
        plan = match plan {
            LogicalPlan::Projection(projection) => &projection.input,
            LogicalPlan::Sort(sort) => &sort.input,
            LogicalPlan::Limit(limit) => &limit.input,
            LogicalPlan::Window(_) => {
                return Err(Error::unsupported(format!("{clause} is not allowed with window functions")));
            }
            LogicalPlan::Unnest(_) => {
                let what = "set-returning functions in the target list";
                return Err(Error::unsupported(format!("{clause} is not allowed with {what}")));
            }
            _ => return Ok(()),
        }
    }
}
