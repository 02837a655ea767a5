//! What a transaction has written that foreign keys are still to be looked at for.

use crate::catalog::state::DatabaseState;
use crate::write::writer::RowChecks;
use arrow_array::ArrayRef;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tidepool_base::{Error, Result, RowId, SqlState, TableId};
use tidepool_table::rows::RowRef;
use tidepool_table::{ForeignKeyDef, IndexKey, Table, TableDef};
use tidepool_txn::{HeldSnapshot, View};

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
pub(super) type Place = (TableId, RowId);

/// How a row came to have a key no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Loss {
    Deleted,
    Changed,
    /// The row went to another partition. Who refers to the leaf that it was in takes it for deleted, who refers to a
    /// table that both leaves are within for changed.
    Moved,
}

/// A key that a row of a referenced table has no more.
#[derive(Clone, Debug)]
pub(super) struct Lost {
    /// Where it had the key.
    pub(super) place: Place,
    pub(super) loss: Loss,
    /// As the index has it.
    pub(super) key: Vec<u8>,
}

/// Rows that may refer to others.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rows {
    One(RowId),
    /// The first so many of a range.
    Range(u64, usize),
}

#[derive(Debug)]
pub(super) enum Event {
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
pub(super) enum Deferred {
    Written { table: TableId, key: u32, rows: Arc<[Rows]> },
    Lost { table: TableId, key: u32, lost: Arc<[Lost]> },
}

/// What a transaction has still to check. Before a statement there are no events.
#[derive(Debug, Default)]
pub(crate) struct References {
    pub(super) events: Vec<Event>,
    /// In the order that it came about; what was checked early stays.
    pub(super) deferred: Vec<Deferred>,
    pub(super) modes: Modes,
    /// Where rows went that left a leaf, while there are events that know where they were.
    pub(super) moved: HashMap<Place, Place>,
}

/// `SET CONSTRAINTS`: whether foreign keys are deferred, by number, where it is not as they are declared.
#[derive(Clone, Debug, Default)]
pub(super) struct Modes {
    pub(super) all: Option<bool>,
    pub(super) single: BTreeMap<u32, bool>,
}

/// How far a transaction had come.
#[derive(Clone, Debug)]
pub(crate) struct ReferencesSavepoint {
    pub(super) events: usize,
    pub(super) deferred: usize,
    pub(super) modes: Modes,
}

impl References {
    /// Nothing is to be checked later, and `SET CONSTRAINTS` has said nothing.
    pub fn is_idle(&self) -> bool {
        self.events.is_empty()
            && self.deferred.is_empty()
            && self.modes.all.is_none()
            && self.modes.single.is_empty()
            && self.moved.is_empty()
    }

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
    pub(super) fn now_at(&self, mut place: Place) -> Place {
        while let Some(next) = self.moved.get(&place) {
            place = *next;
        }
        place
    }

    pub(super) fn is_deferred(&self, key: &ForeignKeyDef) -> bool {
        let mode = self.modes.single.get(&key.oid).copied().or(self.modes.all);
        key.deferrable && mode.unwrap_or(key.initially_deferred)
    }
}

/// What foreign keys want to know of a table's rows as they are written. Kept from row to row.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// Positions of the columns of each foreign key.
    pub(super) refers: Vec<Vec<usize>>,
    /// Places among the table's indexes of those that others refer to.
    pub(super) referenced: Vec<usize>,
    /// Of the row that was looked at last: it may refer to something else from now on.
    pub(super) refers_anew: bool,
    /// Its keys that will be no more, each with its index.
    pub(super) lost: Vec<(TableId, Vec<u8>)>,
    /// Rows that go do so to be in another leaf.
    pub(super) moves: bool,
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
pub(super) fn same(table: &Table, before: RowRef<'_>, image: &[u8], columns: &[usize]) -> Result<bool> {
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
pub(super) struct Views {
    /// All that is committed by now, and what this transaction wrote.
    pub(super) now: Arc<HeldSnapshot>,
    /// Of a transaction of one snapshot, that and what it wrote; else the same.
    pub(super) own: Arc<HeldSnapshot>,
}

pub(super) fn concurrent_update() -> Error {
    Error::new(SqlState::SERIALIZATION_FAILURE, "could not serialize access due to concurrent update")
}
