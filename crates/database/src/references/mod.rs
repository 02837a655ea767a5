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
//! write to it.

mod act;
mod check;
mod convert;
mod define;
mod link;
#[cfg(test)]
mod tests;

pub(crate) use check::verify;
pub use define::NewForeignKey;

use crate::catalog::{DatabaseState, RelationName};
use crate::{RowChecks, Transaction};
use arrow_array::ArrayRef;
use link::Link;
use std::collections::BTreeMap;
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

/// A key that a row of a referenced table has no more.
#[derive(Clone, Debug)]
struct Lost {
    row: RowId,
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
    Written { table: TableId, rows: Rows },
    Lost { table: TableId, index: TableId, deleted: bool, lost: Lost },
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
    }

    fn is_deferred(&self, key: &ForeignKeyDef) -> bool {
        let mode = self.modes.single.get(&key.oid).copied().or(self.modes.all);
        key.deferrable && mode.unwrap_or(key.initially_deferred)
    }
}

/// By table, the tables whose foreign keys refer to it.
pub(crate) fn referencing(tables: &BTreeMap<RelationName, Arc<Table>>) -> BTreeMap<TableId, Vec<TableId>> {
    let mut all: BTreeMap<TableId, Vec<TableId>> = BTreeMap::new();
    for table in tables.values() {
        for key in &table.def.foreign_keys {
            let of_parent = all.entry(key.referenced).or_default();
            if !of_parent.contains(&table.def.id) {
                of_parent.push(table.def.id);
            }
        }
    }
    all
}

impl DatabaseState {
    /// The foreign keys that refer to a table, each with the table that has it.
    pub fn foreign_keys_to(&self, table: TableId) -> impl Iterator<Item = (&Arc<Table>, &ForeignKeyDef)> {
        let children = self.referencing.get(&table).into_iter().flatten();
        let children = children.filter_map(|child| self.table_of_id(*child));
        children.flat_map(move |child| {
            let keys = child.def.foreign_keys.iter().filter(move |key| key.referenced == table);
            keys.map(move |key| (child, key))
        })
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
}

impl Watch {
    pub fn of(state: &DatabaseState, table: &Table) -> Watch {
        let mut watch = Watch::default();
        watch.refers.extend(table.def.foreign_keys.iter().map(|key| table.def.positions(&key.columns)));
        for (_, key) in state.foreign_keys_to(table.def.id) {
            watch.referenced.extend(table.indexes().iter().position(|index| index.id() == key.index));
        }
        watch.referenced.sort_unstable();
        watch.referenced.dedup();
        watch
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
        let lost = watch.lost.drain(..);
        let lost = lost.map(|(index, key)| Event::Lost { table: id, index, deleted, lost: Lost { row, key } });
        self.references.events.extend(lost);
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

    /// A foreign key of a table, by number, with both tables' locks shared. `None` when it is gone.
    fn link(&mut self, child: TableId, key: u32) -> Result<Option<Link>> {
        let Some(child) = self.shared_by_id(child)? else { return Ok(None) };
        let Some(key) = child.def.foreign_keys.iter().find(|known| known.oid == key) else { return Ok(None) };
        let Some(parent) = self.shared_by_id(key.referenced)? else { return Ok(None) };
        let state = self.state();
        Link::new(key, &child, &parent, state.schema_name(child.def.schema)).map(Some)
    }

    fn wait(&self, tag: tidepool_txn::Tag) -> Result<()> {
        let patience = self.patience();
        self.worker().wait_for(tag, &*patience.begin_wait())
    }
}
