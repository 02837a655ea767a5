//! `COPY` between a table or query and the client or a file.

use super::change::Verb;
use super::parts::Begun;
use super::query::query_of;
use super::{Outcome, Session};
use crate::execute::joined;
use crate::resolve::{self, Relation};
use crate::statement::{Command, CopyEndpoint, CopySource, CopyStatement, Statement};
use arrow::array::ArrayRef;
use std::sync::atomic::Ordering;
use tidepool_base::{Error, Result, SqlState};

impl Session {
    pub(super) async fn copy(
        &mut self,
        text: &str,
        statement: &Statement,
        copy: &CopyStatement,
        parameters: &[ArrayRef],
    ) -> Result<Outcome> {
        if let CopySource::Query(query) = &copy.source
            && let Some(verb) = Verb::of(query.command())
        {
            // Before the client is told that rows come.
            self.check_writable(verb.name())?;
        }
        let Begun { running, statement: rest, .. } = self.begin_statement(text, statement, parameters, true).await?;
        if copy.from {
            let CopySource::Table { name, columns } = &copy.source else {
                return Err(Error::new(SqlState::SYNTAX_ERROR, "COPY FROM needs a table"));
            };
            if !self.writes_temporary(statement.command()) {
                self.check_writable("COPY FROM")?;
            }
            let load = crate::copy::Load::new(&running.facts, name, columns, &copy.options, &copy.endpoint)?;
            return match &copy.endpoint {
                CopyEndpoint::Client => Ok(Outcome::CopyIn(load.read_client(self, running).await?)),
                CopyEndpoint::File(path) => {
                    let path = path.clone();
                    let skipped = load.skipped();
                    let rows = self
                        .write(running, move |transaction, interrupt| load.read_file(transaction, interrupt, &path))
                        .await?;
                    self.rows_skipped(skipped.load(Ordering::Relaxed));
                    Ok(Outcome::command(format!("COPY {rows}")))
                }
            };
        }
        let table = match &copy.source {
            CopySource::Table { name, columns } => {
                let schema = match resolve::relation(&running.facts, name.schema.as_deref(), &name.name) {
                    Some(Relation::Table(table)) => table.def.arrow_schema(),
                    Some(Relation::System(relation)) => relation.arrow_schema().clone(),
                    Some(Relation::View(view)) => {
                        let message = format!("cannot copy from view \"{}\"", view.name);
                        return Err(Error::new(SqlState::WRONG_OBJECT_TYPE, message)
                            .with_hint("Try the COPY (SELECT ...) TO variant."));
                    }
                    Some(Relation::Sequence(sequence)) => {
                        let message = format!("cannot copy from sequence \"{}\"", sequence.def.name);
                        return Err(Error::new(SqlState::WRONG_OBJECT_TYPE, message));
                    }
                    None => return Err(resolve::missing_among(&running.facts, name)),
                };
                Some(crate::copy::select(name, columns, &schema)?)
            }
            CopySource::Query(_) => None,
        };
        let source = copy.source.clone();
        let query = move || match (table, &source) {
            (Some(query), _) => Ok(query),
            (None, CopySource::Query(_)) if matches!(rest.command(), Command::Query(_)) => query_of(&rest),
            (None, CopySource::Query(statement)) => query_of(statement),
            (None, CopySource::Table { .. }) => Err(Error::internal("a table makes no query")),
        };
        let settings = running.facts.settings.text_settings();
        let options = crate::copy::options(&copy.options, &copy.endpoint)?;
        let (columns, schema, batches) = self.start(running, query, parameters, None).await?;
        let unload = crate::copy::Unload::new(&columns, &schema, &options, &settings)?;
        match &copy.endpoint {
            CopyEndpoint::Client => unload.into_client(batches).map(Outcome::CopyOut),
            CopyEndpoint::File(path) => {
                let path = path.clone();
                let rows =
                    joined(self.planner.workers().spawn_blocking(move || unload.into_file(batches, &path)).await)?;
                Ok(Outcome::command(format!("COPY {rows}")))
            }
        }
    }
}
