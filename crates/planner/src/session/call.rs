//! `CALL` of procedures that the program registered (`tidepool_database::by_key`).

use super::{Outcome, Session};
use arrow::array::ArrayRef;
use datafusion::sql::sqlparser::ast;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState};
use tidepool_database::by_key::{Procedure, ProcedureArgument};
use tidepool_table::{arrow_type, key_value};

impl Session {
    /// 42883 where there is none that takes so many arguments.
    fn procedure(&self, name: &str, arguments: usize) -> Result<Arc<Procedure>> {
        let procedure = self.planner.database().procedures().get(name);
        procedure.filter(|procedure| procedure.arguments.len() == arguments).ok_or_else(|| {
            let message = match arguments {
                1 => format!("procedure {name} with 1 argument does not exist"),
                _ => format!("procedure {name} with {arguments} arguments does not exist"),
            };
            Error::new(SqlState::UNDEFINED_FUNCTION, message)
                .with_hint("Procedures are registered by the program that has the database inside it.")
        })
    }

    /// The types of a call's parameters: those that the client gave, and of one that is an argument by itself the argument's.
    pub(super) fn call_parameters(&self, name: &str, arguments: &[ast::Expr], given: &[u32]) -> Result<Vec<u32>> {
        let procedure = self.procedure(name, arguments.len())?;
        let mut parameters = given.to_vec();
        for (argument, of) in arguments.iter().zip(&procedure.arguments) {
            let ast::Expr::Value(value) = argument else { continue };
            let ast::Value::Placeholder(placeholder) = &value.value else { continue };
            let Some(number) = placeholder.strip_prefix('$').and_then(|number| number.parse::<usize>().ok()) else {
                continue;
            };
            if number == 0 || number > usize::from(u16::MAX) {
                continue;
            }
            if parameters.len() < number {
                parameters.resize(number, 0);
            }
            if parameters[number - 1] == 0 {
                parameters[number - 1] = of.sql_type.oid();
            }
        }
        Ok(parameters)
    }

    pub(super) async fn call(
        &self,
        text: &str,
        name: &str,
        arguments: &[ast::Expr],
        parameters: &[ArrayRef],
    ) -> Result<Outcome> {
        self.check_writable("CALL")?;
        let procedure = self.procedure(name, arguments.len())?;
        let types: Vec<_> = procedure.arguments.iter().map(|argument| Some(argument.sql_type.to_string())).collect();
        let values = self.evaluated(arguments, &types, parameters).await?;
        let running = self.running(text);
        self.write(running, move |transaction, _| {
            let cast = |(value, argument): (&ArrayRef, &ProcedureArgument)| {
                arrow::compute::cast(value, &arrow_type(argument.sql_type))
                    .map_err(|error| Error::internal(format!("an argument is not of its type: {error}")))
            };
            let values = values.iter().zip(&procedure.arguments).map(cast).collect::<Result<Vec<_>>>()?;
            let values = (values.iter().zip(&procedure.arguments))
                .map(|(value, argument)| key_value(argument.sql_type, value, 0))
                .collect::<Result<Vec<_>>>()?;
            transaction.call(&procedure, &values)
        })
        .await?;
        Ok(Outcome::command("CALL"))
    }
}
