//! What a statement takes and returns, before it runs.

use super::change::Source;
use super::settings::spelled;
use super::{Description, ResultColumn, Session};
use crate::facts::SessionFacts;
use crate::names::OutputNames;
use crate::origins;
use crate::query;
use crate::statement::{Command, Statement};
use crate::types;
use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use chrono::Utc;
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::sqlparser::ast;
use std::sync::Arc;
use tidepool_base::Result;

impl Session {
    /// Parameter types (those the client gave, the rest inferred) and result columns.
    pub async fn describe(&mut self, statement: &Statement, parameter_oids: &[u32]) -> Result<Description> {
        let described = self.describe_inner(statement, parameter_oids).await;
        let described = described.map_err(|error| crate::misplaced::explained(error, statement.command()));
        described.map_err(|error| {
            self.fail();
            statement.place(error)
        })
    }

    pub(super) async fn describe_inner(&mut self, statement: &Statement, given: &[u32]) -> Result<Description> {
        self.check_not_failed(statement)?;
        let none = |columns| Ok(Description { parameters: given.to_vec(), columns });
        match statement.command() {
            Command::Query(_)
            | Command::Locking { .. }
            | Command::Insert(..)
            | Command::Update { .. }
            | Command::Delete { .. }
            | Command::MergeInto { .. } => {}
            Command::Explain { options, .. } => return none(Some(vec![super::explain::plan_column(options.format)])),
            Command::Advise(_) => return none(Some(crate::placement::advice_columns())),
            Command::Check => return none(Some(super::upkeep::check_columns())),
            Command::Switchover(_) => return none(Some(super::upkeep::switchover_columns())),
            Command::PoolYield { .. } => return none(Some(super::upkeep::pool_yield_columns())),
            Command::Backup { .. } => return none(Some(super::upkeep::backup_columns())),
            Command::Show { name: None } => {
                return none(Some(vec![
                    ResultColumn::text("name"),
                    ResultColumn::text("setting"),
                    ResultColumn::text("description"),
                ]));
            }
            Command::Show { name: Some(name) } => return none(Some(vec![ResultColumn::text(&spelled(name))])),
            Command::Fetch { name, discard: false, .. } => {
                let columns = self.cursor(name)?.columns.clone();
                return none(Some(columns));
            }
            Command::Call { name, arguments } => {
                let parameters = self.call_parameters(name, arguments, given)?;
                return Ok(Description { parameters, columns: None });
            }
            Command::Execute { name, .. } => {
                let prepared = self.prepared(name)?;
                let description = Box::pin(self.describe_inner(&prepared.statement, &prepared.types)).await?;
                return none(description.columns);
            }
            _ => return none(None),
        }
        let facts = self.facts(Utc::now());
        // What a cancel ends, and the statement's timeout.
        let _described = self.interrupt();
        let text = statement.text().to_owned();
        let locks = statement.locks_rows();
        let statement = statement.clone();
        let given = given.to_vec();
        let describing = async move {
            let statement = if locks { crate::locking::parts::without_locks(&statement) } else { statement };
            describe(&facts, &statement, &given)
        };
        self.plan_apart(&text, describing).await
    }
}

pub(crate) fn describe(facts: &Arc<SessionFacts>, statement: &Statement, given: &[u32]) -> Result<Description> {
    describe_command(facts, statement.command(), given)
}

pub(crate) fn describe_command(facts: &Arc<SessionFacts>, command: &Command, given: &[u32]) -> Result<Description> {
    let state = facts.planner.state(facts);
    match command {
        Command::Query(query) | Command::Locking { query, .. } => describe_query_by(&state, facts, query, given),
        command @ (Command::Insert(..)
        | Command::Update { .. }
        | Command::Delete { .. }
        | Command::MergeInto { .. }) => {
            let given = match command {
                Command::Insert(insert, _) => crate::parameters::settled(insert.as_ref(), given),
                Command::Update { update, .. } => crate::parameters::settled(update.as_ref(), given),
                Command::Delete { delete, .. } => crate::parameters::settled(delete.as_ref(), given),
                Command::MergeInto { merge, .. } => crate::parameters::settled(merge.as_ref(), given),
                _ => given.to_vec(),
            };
            let (reading, fields) = Source::read(facts, command, &given)?;
            let source = reading.plan(&state, facts, query::fields_of_oids(&fields))?;
            let parameters = source.parameter_oids(&fields)?;
            if !source.returns() {
                return Ok(Description { parameters, columns: None });
            }
            let (reading, _) = Source::read(facts, command, &parameters)?;
            let mut source = reading.plan(&state, facts, query::fields_of_oids(&parameters))?;
            source.plan = query::bind(source.plan, &nulls_of(&parameters))?;
            let schema = analyzed_schema(&state, source.plan.clone())?;
            Ok(Description { parameters, columns: source.columns(&schema) })
        }
        _ => Ok(Description { parameters: given.to_vec(), columns: None }),
    }
}

/// A query's parameters and columns.
pub(crate) fn describe_query(facts: &Arc<SessionFacts>, query: &ast::Query, given: &[u32]) -> Result<Description> {
    describe_query_by(&facts.planner.state(facts), facts, query, given)
}

fn describe_query_by(
    state: &SessionState,
    facts: &Arc<SessionFacts>,
    ast_query: &ast::Query,
    given: &[u32],
) -> Result<Description> {
    let mut given = crate::parameters::settled(ast_query, given);
    if let Some((probe, arrays)) = crate::parameters::element_probe(ast_query, &given) {
        let plan = query::logical_plan(state, facts, probe, query::fields_of_oids(&given), None)?;
        let elements = query::parameter_oids(&plan, &given)?;
        given.resize(elements.len(), 0);
        for index in arrays {
            given[index - 1] = types::array_of_oid(elements[index - 1]);
        }
    }
    let given = given.as_slice();
    let fields = query::fields_of_oids(given);
    let names = OutputNames::of(ast_query);
    let plan = query::logical_plan(state, facts, Box::new(ast_query.clone()), fields, None)?;
    let parameters = query::parameter_oids(&plan, given)?;
    // Types are only final after coercion, and with the parameters' types known.
    let plan = if parameters.as_slice() == given {
        plan
    } else {
        query::logical_plan(state, facts, Box::new(ast_query.clone()), query::fields_of_oids(&parameters), None)?
    };
    let plan = query::bind(plan, &nulls_of(&parameters))?;
    let origins = origins::of_plan(facts, &plan);
    let schema = analyzed_schema(state, plan)?;
    let mut columns = query::columns(&schema, &names);
    origins::mark(&mut columns, &origins);
    Ok(Description { parameters, columns: Some(columns) })
}

fn nulls_of(parameters: &[u32]) -> Vec<ArrayRef> {
    let null = |field: Option<FieldRef>| {
        let data_type = field.map_or(DataType::Utf8View, |field| field.data_type().clone());
        arrow::array::new_null_array(&data_type, 1)
    };
    query::fields_of_oids(parameters).into_iter().map(null).collect()
}

/// A plan's outputs after coercion.
fn analyzed_schema(state: &SessionState, plan: LogicalPlan) -> Result<SchemaRef> {
    let analyzed = crate::optimizer::analyze(state, plan).map_err(crate::errors::from_datafusion)?;
    Ok(types::canonical_schema(analyzed.schema().as_arrow()))
}
