//! Temporary tables of a session: what may be done with them where nothing else may be written, and their end.
//!
//! They are the session's alone, so writing to them changes nothing that a transaction which may only read has to leave as it is.
//! As in PostgreSQL, such a transaction may change their rows and not make, change or drop them. On a standby, where all
//! transactions only read, it may do that, too.

use super::{Outcome, Session};
use crate::facts::SessionFacts;
use crate::privileges::object_name;
use crate::resolve::{self, Relation};
use crate::statement::{Command, CopySource, QualifiedName};
use chrono::Utc;
use datafusion::sql::sqlparser::ast;
use std::sync::Arc;
use tidepool_base::Result;

impl Session {
    /// What names mean to the session now, within its transaction, of which no statement begins.
    fn facts_now(&self) -> Arc<SessionFacts> {
        let in_block = self.block.as_ref().and_then(|block| block.slot.lock().as_ref().map(|open| open.version()));
        let version = in_block.unwrap_or_else(|| self.planner.database().version_for(&self.temporary));
        self.facts_over(version, Utc::now())
    }

    /// Whether a command writes rows of temporary tables alone.
    pub(super) fn writes_temporary(&self, command: &Command) -> bool {
        let name = match command {
            Command::Insert(insert, _) => match &insert.table {
                ast::TableObject::TableName(name) => Some(name),
                _ => None,
            },
            Command::Update { update, .. } => table_of(&update.table.relation),
            Command::Delete { delete, .. } => {
                let (ast::FromTable::WithFromKeyword(from) | ast::FromTable::WithoutKeyword(from)) = &delete.from;
                from.first().and_then(|from| table_of(&from.relation))
            }
            Command::MergeInto { merge, .. } => table_of(&merge.table),
            Command::Copy(copy) if copy.from => {
                return match &copy.source {
                    CopySource::Table { name, .. } => is_temporary(&self.facts_now(), name),
                    CopySource::Query(_) => false,
                };
            }
            _ => None,
        };
        name.is_some_and(|name| is_temporary(&self.facts_now(), &object_name(name)))
    }

    /// Whether a command that is refused on standby for what it is is about temporary tables alone, which the session may have there. One that is
    /// another host's may not: it could not go back.
    pub(super) fn is_of_temporary(&self, command: &Command) -> bool {
        if self.planner.advisory.is_guest(self.id()) {
            return false;
        }
        match command {
            Command::CreateTable { table, .. } => {
                let schema = object_name(&table.name).schema;
                table.temporary || schema.is_some_and(|schema| resolve::is_temporary(&self.facts_now(), &schema))
            }
            Command::DropTables { names, .. } | Command::Truncate { names, .. } => {
                let facts = self.facts_now();
                names.iter().all(|name| is_temporary(&facts, name))
            }
            Command::AlterTable { name, .. } => is_temporary(&self.facts_now(), name),
            Command::CreateIndex(clause) => is_temporary(&self.facts_now(), &clause.table),
            Command::DropIndexes { names, .. } => {
                let facts = self.facts_now();
                names
                    .iter()
                    .all(|name| super::indexes::index(&facts, name).is_ok_and(|found| found.schema.is_temporary()))
            }
            Command::Copy(_) => self.writes_temporary(command),
            _ => false,
        }
    }

    /// `DISCARD TEMP`.
    pub(super) async fn discard_temporary(&mut self, text: &str) -> Result<Outcome> {
        if self.temporary.is_used() || self.block.is_some() {
            let running = self.running(text);
            self.write(running, |transaction, _| transaction.drop_temporary_tables()).await?;
        }
        Ok(Outcome::command("DISCARD TEMP"))
    }
}

fn table_of(factor: &ast::TableFactor) -> Option<&ast::ObjectName> {
    match factor {
        ast::TableFactor::Table { name, .. } => Some(name),
        _ => None,
    }
}

fn is_temporary(facts: &SessionFacts, name: &QualifiedName) -> bool {
    let found = resolve::relation(facts, name.schema.as_deref(), &name.name);
    matches!(found, Some(Relation::Table(table)) if table.def.is_temporary())
}
