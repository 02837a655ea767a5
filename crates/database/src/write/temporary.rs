//! What transactions do with temporary tables at their end, and with all of them at once.

use crate::Transaction;
use crate::catalog::relation::RelationName;
use crate::catalog::state::DatabaseState;
use std::sync::Arc;
use tidepool_base::{Error, Result, TEMPORARY_OIDS};
use tidepool_heap::QueryHeap;
use tidepool_table::{OnCommit, Table, TableDef};

impl Transaction {
    /// Does with temporary tables what their `ON COMMIT` says. 0A000 where others refer to rows that are to go, and for a table that would
    /// need one of them later.
    pub(crate) fn settle_temporary_tables(&mut self) -> Result<()> {
        let Some(temporary) = self.temporary.clone() else { return Ok(()) };
        let changes_some = self.changes_temporary_tables();
        if temporary.is_used() || changes_some {
            self.changes.tables.values().flatten().try_for_each(|table| check_lasts(&table.def))?;
        }
        if !changes_some && !temporary.settles() {
            return Ok(());
        }
        let state = self.state();
        for (name, table) in temporary_tables(&state) {
            match table.def.on_commit {
                OnCommit::PreserveRows => {}
                OnCommit::DeleteRows if !self.written.contains_key(&table.def.id) => {}
                OnCommit::DeleteRows => {
                    check_referenced(&state, table)?;
                    self.truncate_outside(name)?;
                }
                OnCommit::Drop => self.drop_with_dependents(&state, name, table)?,
            }
        }
        Ok(())
    }

    /// Drops a table with its columns' sequences, and foreign keys of others that refer to it.
    fn drop_with_dependents(&mut self, state: &DatabaseState, name: &RelationName, table: &Table) -> Result<()> {
        for child in referring(state, table).filter(|child| child.def.on_commit != OnCommit::Drop) {
            for key in child.def.foreign_keys.iter().filter(|key| key.referenced == table.def.id) {
                self.drop_foreign_key(RelationName::from(&*child.def), &key.name)?;
            }
        }
        for sequence in state.catalog.owned_sequences(table.def.id) {
            self.changes.sequences.insert(sequence.def.id, None);
        }
        self.drop_table_outside(name)
    }

    /// Drops all temporary tables of its session (`DISCARD TEMP`).
    pub fn drop_temporary_tables(&mut self) -> Result<()> {
        QueryHeap::outside(|| {
            let state = self.state();
            let Some(schema) = state.temporary_schema() else { return Ok(()) };
            for (name, _) in temporary_tables(&state) {
                self.drop_table_outside(name)?;
            }
            for sequence in state.catalog.sequences.values().filter(|sequence| sequence.def.schema == schema) {
                self.changes.sequences.insert(sequence.def.id, None);
            }
            Ok(())
        })
    }

    /// Whether it makes, changes or drops temporary tables of its session.
    pub fn changes_temporary_tables(&self) -> bool {
        self.changes.tables.keys().chain(self.changes.sequences.keys()).any(|id| id.is_temporary())
    }
}

/// Those of the state's session. Their schemas come after all others.
fn temporary_tables(state: &DatabaseState) -> impl Iterator<Item = (&RelationName, &Arc<Table>)> {
    let schema = state.temporary_schema();
    schema.into_iter().flat_map(|schema| state.tables.range(RelationName::new(schema, "")..))
}

/// Other tables whose foreign keys refer to a table.
fn referring<'s>(state: &'s DatabaseState, table: &'s Table) -> impl Iterator<Item = &'s Arc<Table>> {
    let children = state.referencing.get(&table.def.id).into_iter().flatten();
    children.filter(|child| **child != table.def.id).filter_map(|child| state.table_of_id(*child))
}

/// 0A000 where rows of another table would refer to rows that are gone.
fn check_referenced(state: &DatabaseState, table: &Table) -> Result<()> {
    match referring(state, table).find(|child| child.def.on_commit != OnCommit::DeleteRows) {
        None => Ok(()),
        Some(child) => {
            let (child, parent) = (&child.def.name, &table.def.name);
            let error = Error::unsupported("unsupported ON COMMIT and foreign key combination");
            Err(error.with_detail(format!(
                "Table \"{child}\" references \"{parent}\", but they do not have the same ON COMMIT setting."
            )))
        }
    }
}

/// 0A000 for a table that lasts and takes values from what does not.
fn check_lasts(table: &TableDef) -> Result<()> {
    let defaults = table.columns.iter().filter_map(|column| column.default.as_deref());
    let mut all = defaults.chain(table.checks.iter().map(|check| check.condition.as_str()));
    match !table.is_temporary() && all.any(names_temporary) {
        false => Ok(()),
        true => {
            let message = format!("table \"{}\" cannot depend on a temporary sequence", table.name);
            Err(Error::unsupported(message))
        }
    }
}

/// Whether a stored expression names a temporary relation, by its oid.
fn names_temporary(expression: &str) -> bool {
    let named = expression.match_indices("'::REGCLASS").filter_map(|(at, _)| expression[..at].rsplit('\'').next());
    named.filter_map(|oid| oid.parse().ok()).any(|oid| TEMPORARY_OIDS.contains(&oid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_expressions_tell_what_does_not_last() {
        assert!(names_temporary("1 + nextval('1073741824'::REGCLASS)"));
        assert!(names_temporary("nextval('16400'::REGCLASS) + nextval('1073741999'::REGCLASS)"));
        for lasting in ["nextval('16400'::REGCLASS)", "1073741824", "'1073741824'", "'x'::REGCLASS", ""] {
            assert!(!names_temporary(lasting), "{lasting}");
        }
    }
}
