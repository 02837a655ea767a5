//! Ids that are drawn from counters, and names of files: which may be drawn again, and when.
//!
//! | what | drawn from | names | may be drawn again |
//! | --- | --- | --- | --- |
//! | oid ([`TableId`], `SchemaId`, `RoleId`, indexes, constraints, positions of sequences) | `oid` | rows of catalogues; where a sequence stands in file `SEQUENCES` | never, once a manifest, a record of the log or file `SEQUENCES` names it |
//! | row group ([`RowGroupId`]) | `row_group` | `rows/main-<id>.rows`, its memory after a restart | never, once a manifest or a record of the log names it, or such a file is there |
//! | store ([`StoreId`]) | `store` | the rows that a record of the log speaks of | never, once a manifest or a record of the log names it |
//! | chunk | `chunk` | `rows/delta-<id>.rows`, its image in memory | never, once a manifest names it, or such a file is there |
//! | range of a store | the store | rows, by the upper part of their ids | never within the store: restoring a row or a row group makes all ranges up to its own |
//! | row | its range | a row | when nothing shows the row that had it any more: the newer timestamp wins |
//! | timestamp (`CommitTs`) | the clock of `txn` | a commit | never, once a manifest or any block of the log has it: the clock starts behind both |
//! | segment of the log | the log | `<number>.log` | never within the log of one identity, once it was begun (`tidepool_log`) |
//! | identity of a log, life of an opening | random numbers | a log; its blocks | never, as far as 128 and 64 bits go |
//! | ids of temporary tables, of what is in them and of their rows | [`TEMPORARY_OIDS`](tidepool_base::TEMPORARY_OIDS), [`TEMPORARY_IDS`](tidepool_base::TEMPORARY_IDS) | nothing outside the process | by each process; the counters above never come there |
//! | temporary file | `Storage::next_temporary` | `<name>.<number>.new` | by each process: what is there under such a name is nobody's, and is replaced |
//! | transaction, statement, tablespace, session | counters of the process | nothing outside the process | by each process |
//!
//! What keeps it so:
//!
//! * A start raises each counter above everything that names an id before anything is drawn: what the manifest names, file
//!   `SEQUENCES` and the names of files in `rows` ([`Ids::of_folder`]), then each entry of the log as it is read
//!   ([`Ids::pass_row_group`] and its like).
//! * What a manifest or a record says of the counters ([`Ids::next`]) is asked for after everything that it names was drawn.
//! * A second use is an error (XX001), and nothing is taken over: of a manifest when it is read and before it is written
//!   ([`check_manifest`]), of the log with it while it is read, at a start and by `tidepool check` ([`Census`]), of what a start comes
//!   to ([`check_state`]), of a row file when a row group is to be written under a name that other rows have
//!   (`Storage::write_group`), of a timestamp when a record of the log is read (`tidepool_log`).
//!
//! A row group may be named more than once for the same rows: a table that is moved, or altered in its place, has another store with the
//! same row groups. Each is in one range of one table at any time.

use crate::{DatabaseState, SequenceDef};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tidepool_base::{Error, Result, RoleId, RowGroupId, SchemaId, StoreId, TableId};
use tidepool_table::TableDef;

/// Below are ids of PostgreSQL's own objects.
pub(crate) const FIRST_OID: u32 = 16_384;

/// No counter comes this far: a file with such a name is nobody's.
pub(crate) const NO_ID: u64 = 1 << 60;

/// The counters of a database.
#[derive(Debug)]
pub(crate) struct Ids {
    oid: AtomicU32,
    row_group: AtomicU64,
    store: AtomicU64,
    chunk: AtomicU64,
}

/// Ids below these may have been drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextIds {
    pub oid: u32,
    pub row_group: u64,
    pub store: u64,
    pub chunk: u64,
}

impl Ids {
    /// Of a database that may have drawn what is below `next`.
    pub fn starting_at(next: &NextIds) -> Ids {
        Ids {
            oid: AtomicU32::new(next.oid.max(FIRST_OID)),
            row_group: AtomicU64::new(next.row_group.max(1)),
            store: AtomicU64::new(next.store.max(1)),
            chunk: AtomicU64::new(next.chunk.max(1)),
        }
    }

    pub fn draw_oid(&self) -> u32 {
        self.oid.fetch_add(1, Ordering::Relaxed)
    }

    pub fn draw_row_group(&self) -> RowGroupId {
        RowGroupId(self.row_group.fetch_add(1, Ordering::Relaxed))
    }

    pub fn draw_store(&self) -> StoreId {
        StoreId(self.store.fetch_add(1, Ordering::Relaxed))
    }

    /// Has an oid drawn again.
    #[cfg(test)]
    pub fn set_oid(&self, next: u32) {
        self.oid.store(next, Ordering::Relaxed);
    }

    /// Has a row group's id drawn again.
    #[cfg(test)]
    pub fn set_row_group(&self, next: u64) {
        self.row_group.store(next, Ordering::Relaxed);
    }

    pub fn draw_chunk(&self) -> u64 {
        self.chunk.fetch_add(1, Ordering::Relaxed)
    }

    /// Something names this one: it is not drawn again.
    pub fn pass_oid(&self, oid: u32) {
        self.oid.fetch_max(oid.saturating_add(1), Ordering::Relaxed);
    }

    pub fn pass_row_group(&self, id: RowGroupId) {
        self.row_group.fetch_max(id.0.saturating_add(1), Ordering::Relaxed);
    }

    pub fn pass_store(&self, id: StoreId) {
        // A record of the log names its store with each piece.
        if self.store.load(Ordering::Relaxed) <= id.0 {
            self.store.fetch_max(id.0.saturating_add(1), Ordering::Relaxed);
        }
    }

    pub fn pass_chunk(&self, id: u64) {
        self.chunk.fetch_max(id.saturating_add(1), Ordering::Relaxed);
    }

    /// What a record of the log says may have been drawn.
    pub fn pass(&self, next: &NextIds) {
        self.oid.fetch_max(next.oid, Ordering::Relaxed);
        self.row_group.fetch_max(next.row_group, Ordering::Relaxed);
        self.store.fetch_max(next.store, Ordering::Relaxed);
        self.chunk.fetch_max(next.chunk, Ordering::Relaxed);
    }

    /// To be asked after everything was drawn that what is written names: what is drawn later may be drawn again by the next
    /// process.
    pub fn next(&self) -> NextIds {
        NextIds {
            oid: self.oid.load(Ordering::Relaxed),
            row_group: self.row_group.load(Ordering::Relaxed),
            store: self.store.load(Ordering::Relaxed),
            chunk: self.chunk.load(Ordering::Relaxed),
        }
    }
}

/// XX001 when two of the objects that a start has come upon have one oid. All of them are passed.
pub(crate) fn check_state(state: &DatabaseState, ids: &Ids) -> Result<()> {
    let catalog = &state.catalog;
    let each = |take: &mut dyn FnMut(u32, Object)| {
        each_oid_of(
            state.tables.values().map(|table| &*table.def),
            catalog.views.values().map(|view| view.id),
            catalog.sequences.values().map(|sequence| &sequence.def),
            catalog.schemas.keys().copied(),
            catalog.roles.keys().copied(),
            take,
        );
    };
    each(&mut |oid, _| ids.pass_oid(oid));
    check_objects(|take| each(take))
}

/// XX001 when two of the objects that `each` shows have one oid.
pub(crate) fn check_objects(each: impl FnOnce(&mut dyn FnMut(u32, Object))) -> Result<()> {
    let mut objects = BTreeMap::new();
    let mut doubled = None;
    each(&mut |oid, object| {
        if object != Object::Constraint
            && let Some(other) = objects.insert(oid, object)
        {
            doubled.get_or_insert((oid, other, object));
        }
    });
    match doubled {
        Some((oid, one, other)) => Err(Error::corrupted(format!("id {oid} is there twice")).with_detail(format!(
            "It is the id of {} and of {}.",
            one.name(),
            other.name()
        ))),
        None => Ok(()),
    }
}

/// What has an oid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Object {
    Relation,
    Schema,
    Role,
    Constraint,
    Position,
}

impl Object {
    fn name(self) -> &'static str {
        match self {
            Object::Relation => "a relation",
            Object::Schema => "a schema",
            Object::Role => "a role",
            Object::Constraint => "a constraint",
            Object::Position => "a sequence's position",
        }
    }
}

pub(crate) fn each_oid_of<'d>(
    tables: impl Iterator<Item = &'d TableDef>,
    views: impl Iterator<Item = TableId>,
    sequences: impl Iterator<Item = &'d SequenceDef>,
    schemas: impl Iterator<Item = SchemaId>,
    roles: impl Iterator<Item = RoleId>,
    take: &mut dyn FnMut(u32, Object),
) {
    let mut drawn = |oid: u32, object| {
        if oid >= FIRST_OID {
            take(oid, object);
        }
    };
    tables.for_each(|def| each_oid_of_table(def, &mut drawn));
    views.for_each(|view| drawn(view.0, Object::Relation));
    for sequence in sequences {
        drawn(sequence.id.0, Object::Relation);
        drawn(sequence.position_id, Object::Position);
    }
    schemas.for_each(|schema| drawn(schema.0, Object::Schema));
    roles.for_each(|role| drawn(role.0, Object::Role));
}

fn each_oid_of_table(def: &TableDef, take: &mut dyn FnMut(u32, Object)) {
    take(def.id.0, Object::Relation);
    for index in &def.indexes {
        take(index.id.0, Object::Relation);
        index.constraint.iter().for_each(|constraint| take(constraint.oid, Object::Constraint));
    }
    def.checks.iter().for_each(|check| take(check.oid, Object::Constraint));
    for key in &def.foreign_keys {
        take(key.oid, Object::Constraint);
        key.referenced_parts.iter().for_each(|part| take(part.oid, Object::Constraint));
    }
}
