//! The rows that a foreign key refers to: of one table, or of the leaves of a partitioned one.

use super::link::Link;
use crate::Transaction;
use crate::catalog::state::DatabaseState;
use crate::write::partition::PartitionTree;
use std::sync::Arc;
use tidepool_base::{Error, Result, RowId, TableId};
use tidepool_table::{IndexKey, Table, TableIndex};
use tidepool_txn::View;

/// A table that has the rows, and its index over what is referred to.
pub(super) struct Parent {
    pub table: Arc<Table>,
    pub index: Arc<TableIndex>,
}

pub(super) struct Parents {
    tree: Option<Arc<PartitionTree>>,
    /// By ordinal; only one where there is no tree. Those that were looked into.
    open: Vec<Option<Parent>>,
}

impl Parents {
    /// `index`: of the table that the foreign key names.
    pub fn of(state: &DatabaseState, table: &Arc<Table>, index: &Arc<TableIndex>) -> Result<Parents> {
        Ok(match state.partition_tree(&table.def)? {
            Some(tree) => Parents { open: tree.leaves().iter().map(|_| None).collect(), tree: Some(tree) },
            None => {
                let only = Parent { table: table.clone(), index: index.clone() };
                Parents { tree: None, open: vec![Some(only)] }
            }
        })
    }

    /// Which leaf it is.
    pub fn leaf(&self, place: usize) -> Option<TableId> {
        self.tree.as_ref().and_then(|tree| tree.leaves().get(place).copied())
    }
}

impl Link {
    /// Where the row is that has a key, if there is one. `None` when no partition takes such rows.
    pub fn place(&self, key: &[u8]) -> Result<Option<usize>> {
        let Some(tree) = &self.parents.tree else { return Ok(Some(0)) };
        let values = self.index.codec().decode(key)?;
        let columns = self.index.positions();
        tree.leaf_of(&|position| columns.iter().position(|known| *known == position).map(|at| values[at].clone()))
    }

    fn is_open(&self, place: usize) -> bool {
        self.parents.open.get(place).is_some_and(Option::is_some)
    }

    pub fn parent_at(&self, place: usize) -> Result<&Parent> {
        let parent = self.parents.open.get(place).and_then(Option::as_ref);
        parent.ok_or_else(|| Error::internal("a leaf is looked into that was not locked"))
    }

    fn open(&mut self, state: &DatabaseState, place: usize, table: &Arc<Table>) -> Result<()> {
        let index = state.index_within(&table.def, self.parent.def.id, self.key.index);
        let index = index.and_then(|index| table.index(index)).ok_or_else(|| {
            Error::internal(format!(
                "partition \"{}\" lacks the index of foreign key \"{}\"",
                table.def.name, self.key.name
            ))
        })?;
        self.parents.open[place] = Some(Parent { table: table.clone(), index: index.clone() });
        Ok(())
    }

    /// Opens all leaves, for who has the locks of all, or writes nothing.
    pub fn open_all(&mut self, state: &DatabaseState) -> Result<()> {
        for place in 0..self.parents.open.len() {
            if let Some(leaf) = self.parents.leaf(place) {
                let table = state.table_of_id(leaf).ok_or_else(|| Error::internal("a partition is gone"))?;
                self.open(state, place, table)?;
            }
        }
        Ok(())
    }

    /// Whether every row that a view shows has its entry.
    pub fn is_complete_for(&self, view: &View) -> bool {
        self.parents.open.iter().flatten().all(|parent| parent.index.is_complete_for(view))
    }

    /// The row that has `key`, as the view sees it, with where it is: an open leaf.
    pub fn referenced(&self, view: &View, key: &[u8]) -> Result<Option<(usize, RowId)>> {
        let Some(place) = self.place(key)? else { return Ok(None) };
        let parent = self.parent_at(place)?;
        let mut own = IndexKey::default();
        parent.index.fetch_key(key)?;
        for row in parent.index.tree().get(view, key).iter() {
            let Some(found) = parent.table.rows.read(view, *row) else { continue };
            parent.index.key_of(&parent.table.rows, found, &mut own)?;
            if own.bytes() == key {
                return Ok(Some((place, *row)));
            }
        }
        Ok(None)
    }
}

impl Transaction {
    /// Shares the lock of the leaf that has a key, if any has.
    pub(super) fn open_parent(&mut self, link: &mut Link, key: &[u8]) -> Result<()> {
        let Some(place) = link.place(key)?.filter(|place| !link.is_open(*place)) else { return Ok(()) };
        let leaf = link.parents.leaf(place).map(|leaf| self.shared_by_id(leaf)).transpose()?.flatten();
        let leaf = leaf.ok_or_else(|| Error::internal("a partition went while its table's lock was held"))?;
        link.open(&self.state(), place, &leaf)
    }
}
