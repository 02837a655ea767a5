//! `PREPARE`, `EXECUTE` and `DEALLOCATE`.

use super::query::query_of;
use super::{Outcome, PreparedStatement, Session};
use crate::statement::{self, Statement};
use crate::types;
use arrow::array::ArrayRef;
use datafusion::sql::sqlparser::ast;
use futures::StreamExt;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState, SqlType};
use tidepool_heap::Reservation;

#[derive(Clone)]
pub(super) struct Prepared {
    pub(super) statement: Statement,
    pub(super) types: Vec<u32>,
    /// Also while it runs.
    pub(super) _held: Option<Arc<Reservation>>,
}

impl Session {
    pub(super) fn prepared(&self, name: &str) -> Result<Prepared> {
        let by_protocol = || {
            let known = self.by_protocol.get(name)?.upgrade()?;
            let statement = known.statement.clone()?;
            Some(Prepared { statement, types: known.description.parameters.clone(), _held: None })
        };
        self.prepared.get(name).cloned().or_else(by_protocol).ok_or_else(|| {
            Error::new(SqlState::INVALID_SQL_STATEMENT_NAME, format!("prepared statement \"{name}\" does not exist"))
        })
    }

    /// Names a statement that the protocol prepared: `EXECUTE` and `EXPLAIN EXECUTE` find it, too.
    pub fn name_statement(&mut self, name: &str, statement: &Arc<PreparedStatement>) {
        self.by_protocol.insert(name.to_owned(), Arc::downgrade(statement));
    }

    /// Forgets a statement that the protocol prepared.
    pub fn forget_statement(&mut self, name: &str) {
        self.by_protocol.remove(name);
    }

    fn is_prepared_by_protocol(&self, name: &str) -> bool {
        self.by_protocol.get(name).is_some_and(|statement| statement.strong_count() > 0)
    }

    pub(super) async fn prepare(
        &mut self,
        name: &str,
        types: &[ast::DataType],
        statement: &Statement,
    ) -> Result<Outcome> {
        if self.prepared.contains_key(name) || self.is_prepared_by_protocol(name) {
            return Err(Error::new(
                SqlState::DUPLICATE_PREPARED_STATEMENT,
                format!("prepared statement \"{name}\" already exists"),
            ));
        }
        let oid = |data_type: &ast::DataType| match data_type {
            ast::DataType::Array(_) if let Some(oid) = crate::parameters::type_oid(data_type) => Ok(oid),
            data_type => types::sql_type(data_type).map(SqlType::oid),
        };
        let types = types.iter().map(oid).collect::<Result<Vec<_>>>()?;
        let description = Box::pin(self.describe_inner(statement, &types)).await?;
        let held = self.hold(statement.bytes() + (name.len() + 4 * description.parameters.len()) as u64)?;
        let types = description.parameters;
        let prepared = Prepared { statement: statement.clone(), types, _held: held.map(Arc::new) };
        self.prepared.insert(name.to_owned(), prepared);
        Ok(Outcome::command("PREPARE"))
    }

    pub(super) async fn execute_prepared(&mut self, name: &str, arguments: &[ast::Expr]) -> Result<Outcome> {
        let prepared = self.prepared(name)?;
        let parameters = self.arguments(name, &prepared, arguments).await?;
        Box::pin(self.execute_inner(&prepared.statement, &parameters)).await
    }

    /// The values of `EXECUTE`, of the types that the statement takes.
    pub(super) async fn arguments(
        &self,
        name: &str,
        prepared: &Prepared,
        arguments: &[ast::Expr],
    ) -> Result<Vec<ArrayRef>> {
        if prepared.types.len() != arguments.len() {
            return Err(Error::new(
                SqlState::SYNTAX_ERROR,
                format!("wrong number of parameters for prepared statement \"{name}\""),
            )
            .with_detail(format!(
                "Expected {} parameters but got {}.",
                prepared.types.len(),
                arguments.len()
            )));
        }
        let types: Vec<_> = prepared.types.iter().map(|oid| type_name(*oid)).collect();
        self.evaluated(arguments, &types, &[]).await
    }

    /// The values of expressions, as casts to types where these are known, evaluated by a query of one row.
    pub(super) async fn evaluated(
        &self,
        expressions: &[ast::Expr],
        types: &[Option<String>],
        parameters: &[ArrayRef],
    ) -> Result<Vec<ArrayRef>> {
        let mut values = Vec::with_capacity(expressions.len());
        if !expressions.is_empty() {
            let casts: Vec<String> = expressions
                .iter()
                .zip(types)
                .map(|(expression, sql_type)| match sql_type {
                    Some(sql_type) => format!("({expression})::{sql_type}"),
                    None => format!("({expression})"),
                })
                .collect();
            let statements = statement::parse(&format!("SELECT {}", casts.join(", ")))?;
            let Some(statement) = statements.into_iter().next() else {
                return Err(Error::internal("arguments make no query"));
            };
            let running = self.running("EXECUTE");
            let (_, _, mut batches) = self.start(running, move || query_of(&statement), parameters, None).await?;
            while let Some(batch) = batches.next().await {
                values.extend(batch?.columns().iter().cloned());
            }
        }
        Ok(values)
    }

    /// `None`: all.
    pub(super) fn deallocate(&mut self, name: Option<&str>) -> Result<Outcome> {
        match name {
            Some(name) => {
                self.prepared(name)?;
                self.prepared.remove(name);
                self.by_protocol.remove(name);
                Ok(Outcome::command("DEALLOCATE"))
            }
            None => {
                self.prepared.clear();
                self.by_protocol.clear();
                Ok(Outcome::command("DEALLOCATE ALL"))
            }
        }
    }
}

/// As a cast names the type.
fn type_name(oid: u32) -> Option<String> {
    let array = || types::element_of_oid(oid).map(|element| format!("{element}[]"));
    types::sql_type_of_oid(oid).map(|sql_type| sql_type.to_string()).or_else(array)
}
