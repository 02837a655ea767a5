//! Foreign keys: rows of one table, the child's, refer to rows of another one, the parent's, by a key.
//!
//! A statement writes its rows first; what of them matters to foreign keys is remembered as [`Event`]s. When it is over,
//! [`Transaction::check_references`] deals with all of them together, a set of keys at a time:
//!
//! 1. Keys that are no more, of each foreign key in the order that they were made: what it wants done to rows that refer
//!    to them is done (`act`), or nobody may refer to them.
//! 2. Rows that were written: the row that each refers to is found through the parent's index, and locked `FOR KEY SHARE`
//!    to the transaction's end.
//!
//! What was done to other rows makes further events, which are dealt with in the same way.
//!
//! # Partitioned tables
//!
//! A foreign key of a partitioned table is also one of each of its partitions, which knows whose part it is: rows that are
//! written are checked by their leaf's. Keys that are no more are dealt with by the foreign key that is no part, for all
//! leaves of its table. A reference to a partitioned table finds its row in the one leaf that the key belongs to: the
//! unique index has all columns of the partition key. So a row that moves to another leaf has another key, and what is
//! done about it is what is done about a change.
//!
//! # Why no row is left without the one that it refers to
//!
//! Let one transaction write a row that refers to a key, and another take the key away. The former locks the parent's row
//! and looks at what is committed by then; the latter puts a version into that row's head first, and then looks for rows
//! that refer to it, in a view drawn after that. If the lock comes first, the latter waits for the former's end before it
//! looks. If the version does, the former waits, and finds the key gone, or there if the latter came to nothing.
//!
//! Both look at what is committed now, whatever their statements' views show. A transaction of one snapshot does not refer
//! to rows that its snapshot does not show, and gives up (40001) where it would have to change rows that are newer.
//!
//! # Locks of tables
//!
//! Whoever checks a foreign key shares the locks of both tables; whoever makes or drops one has both alone, and puts
//! another `Table` of the same definition in the parent's place, so that a transaction with a snapshot from before cannot
//! write to it. Of a partitioned table that goes for all its partitions, but that of a table referred to only those leaves
//! are locked that are looked into.

mod act;
mod check;
mod convert;
mod define;
mod inherit;
mod link;
mod parents;
mod state;
#[cfg(test)]
mod tests;

pub(crate) use check::verify;
pub use define::NewForeignKey;
pub use state::Referring;
pub(crate) use state::referencing;

use crate::catalog::{DatabaseState, RelationName};
use crate::{RowChecks, Transaction};
use arrow_array::ArrayRef;
use link::Link;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tidepool_base::{Error, Result, RowId, SqlState, TableId};
use tidepool_table::rows::RowRef;
use tidepool_table::{ForeignKeyDef, IndexKey, Table, TableDef};
use tidepool_txn::{HeldSnapshot, Isolation, View};

/// What only SQL can tell of rows that are changed because others were.
pub trait RowRules {
    /// A table's `CHECK` constraints. Not asked of a table without any.
    fn checks(&self, table: &Arc<TableDef>) -> Result<Arc<dyn RowChecks>>;

    /// `rows` values of a column's default, in the column's type.
    fn defaults(&self, table: &Arc<TableDef>, column: usize, rows: usize) -> Result<ArrayRef>;
}

/// Without SQL: XX000 where it is needed.
impl RowRules for () {
    fn checks(&self, table: &Arc<TableDef>) -> Result<Arc<dyn RowChecks>> {
        Err(Error::internal(format!("the constraints of table \"{}\" are not checked", table.name)))
    }

    fn defaults(&self, table: &Arc<TableDef>, _: usize, _: usize) -> Result<ArrayRef> {
        Err(Error::internal(format!("the defaults of table \"{}\" are not known", table.name)))
    }
}

/// A row of a table.
type Place = (TableId, RowId);

/// How a row came to have a key no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Loss {
    Deleted,
    Changed,
    /// The row went to another partition. Who refers to the leaf that it was in takes it for deleted, who refers to a
    /// table that both leaves are within for changed.
    Moved,
}

/// A key that a row of a referenced table has no more.
#[derive(Clone, Debug)]
struct Lost {
    /// Where it had the key.
    place: Place,
    loss: Loss,
    /// As the index has it.
    key: Vec<u8>,
}

/// Rows that may refer to others.
#[derive(Clone, Copy, Debug)]
enum Rows {
    One(RowId),
    /// The first so many of a range.
    Range(u64, usize),
}

#[derive(Debug)]
enum Event {
    Written {
        table: TableId,
        rows: Rows,
    },
    /// `index`: of the row's table.
    Lost {
        index: TableId,
        lost: Lost,
    },
}

/// What is checked at the transaction's end.
#[derive(Debug)]
enum Deferred {
    Written { table: TableId, key: u32, rows: Arc<[Rows]> },
    Lost { table: TableId, key: u32, lost: Arc<[Lost]> },
}

/// What a transaction has still to check. Before a statement there are no events.
#[derive(Debug, Default)]
pub(crate) struct References {
    events: Vec<Event>,
    /// In the order that it came about; what was checked early stays.
    deferred: Vec<Deferred>,
    modes: Modes,
    /// Where rows went that left a leaf, while there are events that know where they were.
    moved: HashMap<Place, Place>,
}

/// `SET CONSTRAINTS`: whether foreign keys are deferred, by number, where it is not as they are declared.
#[derive(Clone, Debug, Default)]
struct Modes {
    all: Option<bool>,
    single: BTreeMap<u32, bool>,
}

/// How far a transaction had come.
#[derive(Clone, Debug)]
pub(crate) struct ReferencesSavepoint {
    events: usize,
    deferred: usize,
    modes: Modes,
}

impl References {
    pub fn savepoint(&self) -> ReferencesSavepoint {
        ReferencesSavepoint { events: self.events.len(), deferred: self.deferred.len(), modes: self.modes.clone() }
    }

    pub fn roll_back_to(&mut self, savepoint: &ReferencesSavepoint) {
        self.events.truncate(savepoint.events);
        self.deferred.truncate(savepoint.deferred);
        self.modes.clone_from(&savepoint.modes);
        // Numbers of rows that are undone may come again.
        self.moved.clear();
    }

    /// Where a row is by now.
    fn now_at(&self, mut place: Place) -> Place {
        while let Some(next) = self.moved.get(&place) {
            place = *next;
        }
        place
    }

    fn is_deferred(&self, key: &ForeignKeyDef) -> bool {
        let mode = self.modes.single.get(&key.oid).copied().or(self.modes.all);
        key.deferrable && mode.unwrap_or(key.initially_deferred)
    }
}

/// What foreign keys want to know of a table's rows as they are written. Kept from row to row.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Positions of the columns of each foreign key.
    refers: Vec<Vec<usize>>,
    /// Places among the table's indexes of those that others refer to.
    referenced: Vec<usize>,
    /// Of the row that was looked at last: it may refer to something else from now on.
    refers_anew: bool,
    /// Its keys that will be no more, each with its index.
    lost: Vec<(TableId, Vec<u8>)>,
    /// Rows that go do so to be in another leaf.
    moves: bool,
}

impl Watch {
    pub fn of(state: &DatabaseState, table: &Table) -> Watch {
        let mut watch = Watch::default();
        watch.refers.extend(table.def.foreign_keys.iter().map(|key| table.def.positions(&key.columns)));
        for referring in state.foreign_keys_on(table.def.id) {
            watch.referenced.extend(table.indexes().iter().position(|index| index.id() == referring.index));
        }
        watch.referenced.sort_unstable();
        watch.referenced.dedup();
        watch
    }

    /// For rows that are taken out of a leaf and put into another.
    pub fn of_moving(state: &DatabaseState, table: &Table) -> Watch {
        Watch { moves: true, ..Watch::of(state, table) }
    }

    /// Whether others refer to rows of the table.
    pub fn is_referenced(&self) -> bool {
        !self.referenced.is_empty()
    }

    /// Looks at what is to become of a row; `None`: it goes.
    pub fn look(&mut self, table: &Table, view: &View, row: RowId, image: Option<&[u8]>) -> Result<()> {
        self.refers_anew = false;
        self.lost.clear();
        let refers = !self.refers.is_empty() && image.is_some();
        if !refers && self.referenced.is_empty() {
            return Ok(());
        }
        let Some(before) = table.rows.read(view, row) else { return Ok(()) };
        if let Some(image) = image {
            for columns in &self.refers {
                self.refers_anew |= !same(table, before, image, columns)?;
            }
        }
        let (mut key, mut after) = (IndexKey::default(), IndexKey::default());
        for index in self.referenced.iter().map(|place| &table.indexes()[*place]) {
            index.key_of(&table.rows, before, &mut key)?;
            if let Some(image) = image {
                index.key_of(&table.rows, RowRef::Version(image), &mut after)?;
            }
            // Nobody refers to NULLs.
            if !key.has_null() && (image.is_none() || after != key) {
                self.lost.push((index.id(), key.bytes().to_vec()));
            }
        }
        Ok(())
    }
}

/// Whether columns of a row stay as they are.
fn same(table: &Table, before: RowRef<'_>, image: &[u8], columns: &[usize]) -> Result<bool> {
    let layout = table.rows.layout();
    match before {
        RowRef::Version(before) => {
            Ok(columns.iter().all(|column| layout.value(before, *column) == layout.value(image, *column)))
        }
        RowRef::Main { group, position } => {
            for column in columns {
                let after = layout.decode(&[image], &[*column])?;
                if after[..] != [group.segments()[*column].take(&[position as u32])?] {
                    return Ok(false);
                }
            }
            Ok(true)
        }
    }
}

/// What checks look at.
struct Views {
    /// All that is committed by now, and what this transaction wrote.
    now: Arc<HeldSnapshot>,
    /// Of a transaction of one snapshot, that and what it wrote; else the same.
    own: Arc<HeldSnapshot>,
}

fn concurrent_update() -> Error {
    Error::new(SqlState::SERIALIZATION_FAILURE, "could not serialize access due to concurrent update")
}

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
    fn views(&self) -> Result<Views> {
        self.worker().next_command()?;
        let now = Arc::new(self.worker().hold_now());
        let own = match self.isolation() {
            Isolation::ReadCommitted => now.clone(),
            Isolation::RepeatableRead | Isolation::Serializable => Arc::new(self.worker().hold()),
        };
        Ok(Views { now, own })
    }

    fn has_one_snapshot(&self) -> bool {
        self.isolation() != Isolation::ReadCommitted
    }

    /// A table by its id, its lock shared. `None` when it is gone.
    fn shared_by_id(&mut self, id: TableId) -> Result<Option<Arc<Table>>> {
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
    fn shared_leaves(&mut self, table: &Arc<Table>) -> Result<Vec<Arc<Table>>> {
        self.share_nodes(table)?;
        let Some(tree) = self.state().partition_tree(&table.def)? else { return Ok(vec![table.clone()]) };
        let gone = || Error::internal("a partition went while its table's lock was held");
        let leaf = |leaf: &TableId| self.shared_by_id(*leaf)?.ok_or_else(gone);
        tree.leaves().iter().map(leaf).collect()
    }

    /// A foreign key of a table, by number, with the locks of both shared. `None` when it is gone.
    fn link(&mut self, child: TableId, key: u32) -> Result<Option<Link>> {
        let Some(child) = self.shared_by_id(child)? else { return Ok(None) };
        let Some(key) = child.def.foreign_keys.iter().find(|known| known.oid == key) else { return Ok(None) };
        let Some(parent) = self.shared_by_id(key.referenced)? else { return Ok(None) };
        self.share_nodes(&parent)?;
        let leaves = self.shared_leaves(&child)?;
        Link::new(&self.state(), key, &child, leaves, &parent).map(Some)
    }

    /// Shares the locks of the partitioned tables within one, so that the partitions stay what they are.
    fn share_nodes(&mut self, table: &Arc<Table>) -> Result<()> {
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

    fn wait(&self, tag: tidepool_txn::Tag) -> Result<()> {
        let patience = self.patience();
        self.worker().wait_for(tag, &*patience.begin_wait())
    }
}
