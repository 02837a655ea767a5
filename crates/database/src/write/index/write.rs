//! Entries of rows that a transaction writes.
//!
//! The row comes first, then its entries: whoever finds an entry finds its row, and whoever drops entries of what is gone
//! sees that the row has the key anew.

use super::text::duplicate_key;
use crate::Transaction;
use std::sync::Arc;
use tidepool_base::{Error, Part, Result, RowId, Subject};
use tidepool_table::rows::{Keys, RowRef};
use tidepool_table::{Entered, IndexKey, RowGroup, Table, TableIndex};
use tidepool_txn::View;

/// Keys of a row before and after a change, by the places of the table's indexes.
#[derive(Default)]
pub(crate) struct ChangedKeys {
    before: IndexKey,
    after: Vec<(bool, IndexKey)>,
}

impl ChangedKeys {
    /// Looks at what is to become of a row. False: it is not there, as the view sees it.
    pub fn look(&mut self, table: &Table, view: &View, row: RowId, image: &[u8]) -> Result<bool> {
        self.after.resize_with(table.indexes().len(), Default::default);
        if self.after.is_empty() {
            return Ok(true);
        }
        let Some(before) = table.rows.read(view, row) else { return Ok(false) };
        for (index, (changes, after)) in table.indexes().iter().zip(&mut self.after) {
            index.key_of(&table.rows, before, &mut self.before)?;
            index.key_of(&table.rows, RowRef::Version(image), after)?;
            *changes = *after != self.before;
        }
        Ok(true)
    }

    /// Which keys stay as they are.
    pub fn left(&self, table: &Table) -> Keys {
        let mut changed = table.indexes().iter().zip(&self.after).filter(|(_, (changes, _))| *changes).peekable();
        if changed.peek().is_none() {
            return Keys::Leave;
        }
        if changed.any(|(index, _)| index.is_unique()) { Keys::Change } else { Keys::LeaveUnique }
    }
}

impl Transaction {
    /// Puts a row that was inserted into all indexes. 23505 where another has its key; waits for those who may come to.
    pub(crate) fn enter_row(&mut self, table: &Table, view: &View, row: RowId, image: &[u8]) -> Result<()> {
        let mut key = IndexKey::default();
        for index in table.indexes() {
            index.key_of(&table.rows, RowRef::Version(image), &mut key)?;
            self.enter(table, index, view, row, &key)?;
        }
        Ok(())
    }

    /// As `enter_row`, for a row that was changed.
    pub(crate) fn enter_changed(&mut self, table: &Table, view: &View, row: RowId, keys: &ChangedKeys) -> Result<()> {
        for (index, (changes, after)) in table.indexes().iter().zip(&keys.after) {
            if *changes {
                self.enter(table, index, view, row, after)?;
            }
        }
        Ok(())
    }

    /// As `enter_row`, for all rows of a range.
    pub(crate) fn enter_group(&mut self, table: &Table, view: &View, number: u64, group: &RowGroup) -> Result<()> {
        let patience = self.patience();
        for index in table.indexes() {
            let keys = index.keys_of_group(group)?;
            for (count, (key, row)) in keys.in_order().enumerate() {
                if count.is_multiple_of(1 << 12) {
                    patience.check()?;
                }
                self.enter(table, index, view, RowId::new(number, row), key)?;
            }
        }
        Ok(())
    }

    pub(super) fn enter(
        &mut self,
        table: &Table,
        index: &Arc<TableIndex>,
        view: &View,
        row: RowId,
        key: &IndexKey,
    ) -> Result<()> {
        loop {
            match index.enter(&table.rows, view, row, key, &mut self.fingers)? {
                Entered::Done => return Ok(()),
                // It was dropped since the transaction's snapshot: nobody finds anything by it any more.
                Entered::Taken(_) if self.is_dropped(table, index) => return Ok(()),
                Entered::Taken(_) => {
                    // Who goes on after a savepoint knows of the key.
                    self.read_all_of(table);
                    return Err(self.taken(table, index, key));
                }
                Entered::Wait(tag) => {
                    let patience = self.patience();
                    self.worker().wait_for(tag, &*patience.begin_wait())?;
                }
            }
        }
    }
}

impl Transaction {
    /// Whether an index that the transaction's snapshot has is there no more.
    fn is_dropped(&self, table: &Table, index: &TableIndex) -> bool {
        let is_own = self.changes.tables.contains_key(&table.def.id);
        let now = self.database.state();
        let lacks = |now: &Arc<Table>| !now.indexes().iter().any(|known| known.is_kept_by(index));
        !is_own && now.table_of_id(table.def.id).is_some_and(lacks)
    }

    fn taken(&self, table: &Table, index: &TableIndex, key: &IndexKey) -> Error {
        match table.def.indexes.iter().find(|def| def.id == index.id()) {
            Some(def) => duplicate_key(&table.def, def, index, key.bytes()).with_subject(Subject {
                schema: self.state().schema_name(table.def.schema).to_owned(),
                table: table.def.name.clone(),
                part: Part::Constraint(def.name.clone()),
            }),
            None => Error::internal("an index is in no definition"),
        }
    }
}
