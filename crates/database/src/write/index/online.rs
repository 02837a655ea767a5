//! Indexes made and dropped beside others' changes of rows (`CONCURRENTLY`).
//!
//! Two transactions make one. The first has the table to itself for a moment: it puts the index there without entries, and
//! commits, so whoever changes rows from then on keeps it. The second keeps others from changing the table, but not its
//! rows. It puts in the entries of what its view shows, and says that the index is complete. In between, and for ever where
//! the second one comes to nothing by its process's end, the index is *building*: nobody relies on it, and a start or a take-over
//! drops it.
//!
//! One is made anew as another beside it, which takes its place when it is complete.
//!
//! One is dropped without waiting for writers either: those that go on with the table that they have put entries in
//! that nobody looks for.

#[cfg(test)]
mod tests;

use super::NewIndex;
use super::build::duplicated;
use crate::catalog::relation::RelationName;
use crate::write::locks::LockMode;
use crate::write::transaction::table_of;
use crate::{Database, Transaction};
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState, TableId};
use tidepool_heap::QueryHeap;
use tidepool_table::{IndexDef, Table, TableDef, TableIndex, TableVersion, fill_index};

impl Database {
    /// Makes an index while others change rows of its table, in transactions that `begin` gives. Returns its name. As
    /// [`Transaction::create_index`]; where it comes to nothing there is no index, unless it is ended while it waits for
    /// another who alters the table. 0A000 for a partitioned table.
    pub fn create_index_online(
        &self,
        begin: impl Fn() -> Result<Transaction>,
        table: &RelationName,
        new: impl FnOnce(&TableDef) -> Result<NewIndex>,
    ) -> Result<String> {
        QueryHeap::outside(|| {
            let mut declaring = begin()?;
            let (table, index) = declaring.declare_index(table, new)?;
            declaring.commit()?;
            fill_declared(begin()?, table, index.id, Transaction::complete)?;
            Ok(index.name)
        })
    }

    /// Makes an index anew while others change rows of its table. As [`Database::create_index_online`]; 42704 when there
    /// is none.
    pub fn reindex_online(&self, begin: impl Fn() -> Result<Transaction>, name: &RelationName) -> Result<()> {
        QueryHeap::outside(|| {
            let mut declaring = begin()?;
            let (table, old, new) = declaring.declare_again(name)?;
            declaring.commit()?;
            fill_declared(begin()?, table, new, |transaction, table, new| transaction.replace_index(table, old, new))
        })
    }
}

/// Fills an index, and has `finish` say what becomes of it; or discards it.
fn fill_declared(
    mut transaction: Transaction,
    table: TableId,
    index: TableId,
    finish: impl FnOnce(&mut Transaction, &Arc<Table>, TableId) -> Result<()>,
) -> Result<()> {
    let name = transaction.lock_to_fill(table, index)?;
    let filled = transaction.fill(&name, index).and_then(|table| finish(&mut transaction, &table, index));
    if filled.is_err() {
        // What told it to end does not end this.
        transaction.set_patience(Arc::new(()));
        transaction.discard(&name, index)?;
    }
    let committed = transaction.commit();
    filled.and(committed.map(drop))
}

impl Transaction {
    /// Drops an index while others change rows of its table. 42704 when there is none.
    pub fn drop_index_online(&mut self, name: &RelationName) -> Result<()> {
        QueryHeap::outside(|| {
            let (table, index) = self.locked_index(name, LockMode::ShareUpdateExclusive)?;
            self.discard(&RelationName::from(&*table.def), index.id)
        })
    }

    /// An index that writers keep, and that has no entries of rows that there are.
    fn declare_index(
        &mut self,
        name: &RelationName,
        new: impl FnOnce(&TableDef) -> Result<NewIndex>,
    ) -> Result<(TableId, IndexDef)> {
        let table = self.locked_table(name)?;
        if table.def.partitioning.is_some() {
            return Err(Error::unsupported(format!(
                "cannot create index on partitioned table \"{}\" concurrently",
                table.def.name
            )));
        }
        let new = new(&table.def)?;
        let index = IndexDef { building: true, ..self.define(&table.def, new)? };
        self.add_incomplete(&table, &index, &index)?;
        Ok((table.def.id, index))
    }

    /// One like an index that there is, to take its place. Returns its table, and both.
    fn declare_again(&mut self, name: &RelationName) -> Result<(TableId, TableId, TableId)> {
        let (table, old) = self.locked_index(name, LockMode::AccessExclusive)?;
        if table.def.partitioning.is_some() {
            return Err(Error::unsupported(format!("cannot reindex partitioned index \"{}\" concurrently", old.name)));
        }
        let id = self.database.next_table_id();
        let new_name = self.state().free_name(name.schema, [&old.name, ""], "ccnew", &[]);
        self.lock(&RelationName::new(name.schema, &new_name))?;
        let new = IndexDef { id, name: new_name, constraint: None, partition_of: None, building: true, ..old.clone() };
        // Its keys are the old one's, also where that serves a primary key.
        self.add_incomplete(&table, &new, &IndexDef { id, ..old.clone() })?;
        Ok((table.def.id, old.id, id))
    }

    fn add_incomplete(&mut self, table: &Table, index: &IndexDef, keys: &IndexDef) -> Result<()> {
        let mut def = TableDef::clone(&table.def);
        def.indexes.push(index.clone());
        let space = self.database.tablespaces().get(table.index_tablespace(index))?;
        let made = TableIndex::create(&def, keys, space, self.database.transactions(), None)?;
        self.change(table.with_def(Arc::new(def)).with_indexes([made]));
        Ok(())
    }

    /// Keeps others from changing the table, by whatever name it goes. 42704 when the index has been dropped.
    fn lock_to_fill(&mut self, table: TableId, index: TableId) -> Result<RelationName> {
        let gone = || Error::new(SqlState::UNDEFINED_OBJECT, "the index was dropped while it was made");
        let find = |state: &crate::DatabaseState| -> Option<RelationName> {
            let table = state.table_of_id(table)?;
            table.index(index).map(|_| RelationName::from(&*table.def))
        };
        loop {
            let name = find(&self.state()).ok_or_else(gone)?;
            self.lock_as(&name, LockMode::ShareUpdateExclusive)?;
            if find(&self.state()).ok_or_else(gone)? == name {
                return Ok(name);
            }
        }
    }

    fn fill(&mut self, name: &RelationName, id: TableId) -> Result<Arc<Table>> {
        let (table, def) = self.to_fill(name, id)?;
        let index = table.index(id).ok_or_else(|| Error::internal("an index has no tree"))?;
        let view = Arc::new(self.worker().hold_now());
        let version = Arc::new(TableVersion::of(&table, &view));
        let patience = self.patience();
        fill_index(
            &version,
            index,
            self.database.config().threads,
            &|tag| self.worker().wait_for(tag, &*patience.begin_wait()),
            &|key| duplicated(&table.def, &def, index, key),
            &|| patience.check(),
        )?;
        drop(version);
        Ok(table)
    }

    fn complete(&mut self, table: &Arc<Table>, id: TableId) -> Result<()> {
        self.change_index(table, id, |index| index.building = false);
        Ok(())
    }

    fn replace_index(&mut self, table: &Arc<Table>, old: TableId, new: TableId) -> Result<()> {
        let missing = || Error::internal("an index has no tree");
        let replaced = table.index(old).ok_or_else(missing)?;
        let made = table.index(new).ok_or_else(missing)?.in_place_of(replaced);
        let mut def = TableDef::clone(&table.def);
        def.indexes.retain(|index| index.id != new);
        def.indexes.iter_mut().filter(|index| index.id == old).for_each(|index| index.building = false);
        self.change(table.with_def(Arc::new(def)).with_indexes([made]));
        Ok(())
    }

    fn to_fill(&self, name: &RelationName, id: TableId) -> Result<(Arc<Table>, IndexDef)> {
        let table = table_of(&self.state(), name)?;
        let def = table.def.indexes.iter().find(|index| index.id == id).cloned();
        let def = def.ok_or_else(|| Error::internal("an index is in no definition"))?;
        Ok((table, def))
    }

    fn discard(&mut self, name: &RelationName, id: TableId) -> Result<()> {
        let (table, _) = self.to_fill(name, id)?;
        let mut def = TableDef::clone(&table.def);
        def.indexes.retain(|index| index.id != id);
        self.change(table.with_def(Arc::new(def)));
        Ok(())
    }
}
