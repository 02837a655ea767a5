//! What transactions remember of rows, and the tables that foreign keys lead to.

use super::link::Link;
use super::pending::{Event, Loss, Lost, Rows, Views, Watch};
use crate::Transaction;
use crate::catalog::relation::RelationName;
use std::sync::Arc;
use tidepool_base::{Error, Result, RowId, SqlState, TableId};
use tidepool_table::Table;
use tidepool_txn::Isolation;

impl Transaction {
    pub(crate) fn watch(&self, table: &Table) -> Watch {
        Watch::of(&self.state(), table)
    }

    /// A row was inserted.
    pub(crate) fn inserted(&mut self, table: &Table, row: RowId) {
        if !table.def.foreign_keys.is_empty() {
            self.references.events.push(Event::Written { table: table.def.id, rows: Rows::One(row) });
        }
    }

    /// A range was loaded.
    pub(crate) fn loaded_range(&mut self, table: &Table, range: u64, rows: usize) {
        if !table.def.foreign_keys.is_empty() {
            self.references.events.push(Event::Written { table: table.def.id, rows: Rows::Range(range, rows) });
        }
    }

    /// The row that `watch` looked at last was changed, or is gone.
    pub(crate) fn changed(&mut self, table: &Table, row: RowId, watch: &mut Watch, deleted: bool) {
        let id = table.def.id;
        if watch.refers_anew {
            self.references.events.push(Event::Written { table: id, rows: Rows::One(row) });
        }
        let loss = match deleted {
            true if watch.moves => Loss::Moved,
            true => Loss::Deleted,
            false => Loss::Changed,
        };
        let lost = watch.lost.drain(..);
        let lost = lost.map(|(index, key)| Event::Lost { index, lost: Lost { place: (id, row), loss, key } });
        self.references.events.extend(lost);
    }

    /// Rows that left a leaf which others refer to are in another one now.
    pub(crate) fn moved(&mut self, from: &Table, left: impl IntoIterator<Item = RowId>, to: &Table, now: &[RowId]) {
        let places = left.into_iter().zip(now).map(|(row, now)| ((from.def.id, row), (to.def.id, *now)));
        self.references.moved.extend(places);
    }

    /// 0A000 where a row cannot leave a leaf for another within `root`, as some foreign key refers to what the leaf is
    /// within, but `root` is not.
    pub(crate) fn check_may_move(&self, leaf: TableId, root: TableId) -> Result<()> {
        let state = self.state();
        let mut between = state.table_of_id(leaf).and_then(|leaf| leaf.def.partition_of);
        while let Some(table) = between.filter(|table| *table != root).and_then(|table| state.table_of_id(table)) {
            if state.foreign_keys_to(table.def.id).any(|(_, key)| key.part_of.is_none()) {
                let root = state.table_of_id(root).map_or("", |root| &root.def.name);
                let message = "cannot move tuple across partitions when a non-root ancestor of the source partition is \
                               directly referenced in a foreign key";
                return Err(Error::unsupported(message)
                    .with_detail(format!(
                        "A foreign key points to ancestor \"{}\" but not the root ancestor \"{root}\".",
                        table.def.name
                    ))
                    .with_hint(format!("Consider defining the foreign key on table \"{root}\".")));
            }
            between = table.def.partition_of;
        }
        Ok(())
    }

    /// What there is now, this transaction's work up to now included.
    pub(super) fn views(&self) -> Result<Views> {
        self.worker().next_command()?;
        let now = Arc::new(self.worker().hold_now());
        let own = match self.isolation() {
            Isolation::ReadCommitted => now.clone(),
            Isolation::RepeatableRead | Isolation::Serializable => Arc::new(self.worker().hold()),
        };
        Ok(Views { now, own })
    }

    pub(super) fn has_one_snapshot(&self) -> bool {
        self.isolation() != Isolation::ReadCommitted
    }

    /// A table by its id, its lock shared. `None` when it is gone.
    pub(super) fn shared_by_id(&mut self, id: TableId) -> Result<Option<Arc<Table>>> {
        loop {
            let state = self.state();
            let Some(table) = state.table_of_id(id) else { return Ok(None) };
            let name = RelationName::from(&*table.def);
            match self.lock_rows(&name) {
                Ok(()) => {}
                // It was renamed, or dropped, while its lock was waited for.
                Err(error) if error.code() == SqlState::UNDEFINED_TABLE => continue,
                Err(error) => return Err(error),
            }
            let state = self.state();
            if let Some(table) = state.table_of_id(id)
                && RelationName::from(&*table.def) == name
            {
                return Ok(Some(table.clone()));
            }
        }
    }

    /// The leaves of a table by ordinal, or itself, their locks shared, as that of all that they are within is.
    pub(super) fn shared_leaves(&mut self, table: &Arc<Table>) -> Result<Vec<Arc<Table>>> {
        self.share_nodes(table)?;
        let Some(tree) = self.state().partition_tree(&table.def)? else { return Ok(vec![table.clone()]) };
        let gone = || Error::internal("a partition went while its table's lock was held");
        let leaf = |leaf: &TableId| self.shared_by_id(*leaf)?.ok_or_else(gone);
        tree.leaves().iter().map(leaf).collect()
    }

    /// A foreign key of a table, by number, with the locks of both shared. `None` when it is gone.
    pub(super) fn link(&mut self, child: TableId, key: u32) -> Result<Option<Link>> {
        let Some(child) = self.shared_by_id(child)? else { return Ok(None) };
        let Some(key) = child.def.foreign_keys.iter().find(|known| known.oid == key) else { return Ok(None) };
        let Some(parent) = self.shared_by_id(key.referenced)? else { return Ok(None) };
        self.share_nodes(&parent)?;
        let leaves = self.shared_leaves(&child)?;
        Link::new(&self.state(), key, &child, leaves, &parent).map(Some)
    }

    /// Shares the locks of the partitioned tables within one, so that the partitions stay what they are.
    pub(super) fn share_nodes(&mut self, table: &Arc<Table>) -> Result<()> {
        let mut left = vec![table.clone()];
        while let Some(table) = left.pop() {
            for partition in table.def.partitioning.iter().flat_map(|of| &of.partitions) {
                let state = self.state();
                if state.table_of_id(partition.id).is_some_and(|partition| partition.def.partitioning.is_some()) {
                    left.extend(self.shared_by_id(partition.id)?);
                }
            }
        }
        Ok(())
    }

    pub(super) fn wait(&self, tag: tidepool_txn::Tag) -> Result<()> {
        let patience = self.patience();
        self.worker().wait_for(tag, &*patience.begin_wait())
    }
}
