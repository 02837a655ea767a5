//! `LOCK TABLE`: a table, its partitions, or what a view reads, kept to the end of the transaction.
//!
//! Readers take no locks, so they wait for nobody and nobody waits for them, whatever the mode: they read what was committed before.

use super::partitions::partitions_of;
use super::{Outcome, Session};
use crate::facts::SessionFacts;
use crate::resolve::{self, Relation};
use crate::statement::{LockedRelation, QualifiedName};
use std::collections::BTreeSet;
use tidepool_base::{Error, Result, SqlState, TableId};
use tidepool_database::{LockMode, ViewDef};

impl Session {
    pub(super) async fn lock_tables(
        &mut self,
        text: &str,
        relations: &[LockedRelation],
        mode: LockMode,
        nowait: bool,
    ) -> Result<Outcome> {
        if self.block.is_none() {
            let message = "LOCK TABLE can only be used in transaction blocks";
            return Err(Error::new(SqlState::NO_ACTIVE_SQL_TRANSACTION, message));
        }
        // Its snapshot, if it is to have one, is drawn when it has the locks.
        let running = self.running_over(text, Session::facts_unbegun);
        let mut tables = Vec::new();
        for relation in relations {
            add_tables(&running.facts, relation, &mut tables)?;
        }
        if self.settings.is_standby() {
            // Nobody writes here: what is in the way of no writer is in nobody's.
            return Ok(Outcome::command("LOCK TABLE"));
        }
        let lock = self.write(running, move |transaction, interrupt| {
            let mut locked = BTreeSet::new();
            tables.reverse();
            while let Some((id, only)) = tables.pop() {
                let Some(table) = transaction.version().table_by_id(id) else { continue };
                if !locked.insert(id) {
                    continue;
                }
                let not_at_once = || {
                    let message = format!("could not obtain lock on relation \"{}\"", table.def.name);
                    Err(Error::new(SqlState::LOCK_NOT_AVAILABLE, message))
                };
                match nowait {
                    true => transaction.lock_table_as(&*table.def, mode, &not_at_once)?,
                    false => transaction.lock_table_as(&*table.def, mode, &interrupt.lock_wait())?,
                }
                if !only {
                    // As they are under the lock.
                    let now = transaction.version().table_by_id(id);
                    let partitions = now.map_or_else(Vec::new, |table| partitions_of(&table.def));
                    tables.extend(partitions.into_iter().rev().map(|partition| (partition, false)));
                }
            }
            Ok(())
        });
        lock.await?;
        Ok(Outcome::command("LOCK TABLE"))
    }
}

/// Adds the tables that a name means, each with whether it is without its partitions. What is the system's is never changed.
fn add_tables(facts: &SessionFacts, named: &LockedRelation, tables: &mut Vec<(TableId, bool)>) -> Result<()> {
    let LockedRelation { name, only } = named;
    match resolve::relation(facts, name.schema.as_deref(), &name.name) {
        Some(Relation::Table(table)) => tables.push((table.def.id, *only)),
        Some(Relation::View(view)) => add_read(facts, &view, tables),
        Some(Relation::System(_)) => {}
        Some(Relation::Sequence(_)) => return Err(not_lockable(name, "sequences")),
        None if super::indexes::index(facts, name).is_ok() => return Err(not_lockable(name, "indexes")),
        None => return Err(resolve::missing_among(facts, name)),
    }
    Ok(())
}

/// What a view reads, and views that it reads.
fn add_read(facts: &SessionFacts, view: &ViewDef, tables: &mut Vec<(TableId, bool)>) {
    for relation in &view.relations {
        facts.footing.relation(relation.id);
        let views = &facts.version.catalog.views;
        match views.values().find(|view| view.id == relation.id) {
            Some(view) => add_read(facts, view, tables),
            None => tables.push((relation.id, false)),
        }
    }
}

fn not_lockable(name: &QualifiedName, kind: &str) -> Error {
    Error::new(SqlState::WRONG_OBJECT_TYPE, format!("cannot lock relation \"{}\"", name.name))
        .with_detail(format!("This operation is not supported for {kind}."))
}
