//! Redo records: what a transaction did, as the log has it.
//!
//! A record is a row of entries. It is written in one piece, or in several of about a megabyte; no entry is in two of them,
//! and each piece names its stores anew.
//!
//! | byte | then | meaning |
//! | --- | --- | --- |
//! | 1 | store (8) | what follows is of this store |
//! | 2 | row (8), bytes (4), image | a row as it is from now on |
//! | 3 | row (8) | a row is gone |
//! | 4 | range (8), row group (8), rows (8) | a range was loaded, whose row group is in a file |
//! | 5 | bytes (4), JSON | what exists was changed ([`CatalogChange`]) |
//! | 6 | row (8), timestamp (8), checksum (4), bytes (4), steps | a row is from now on what [`Patch`] makes of it as it was since then |
//! | 7 | range (8), row group (8), rows (8), bytes (4), places | a range was loaded, whose row group is in a pool |
//! | 8 | id (8), lowest id (8) | the transaction's id, and that all with lower ids had ended ([`LoggedId`]) |
//!
//! Of a row that is changed where it was changed before, a patch is all that is written: of most rows that are changed little is. A patch may be
//! read before what it is a patch of, as records are not in the order of their timestamps.
//!
//! All numbers are little-endian. The rows of a store that nothing creates, or that is gone by the log's end, are passed over.

use crate::catalog::comment::Commented;
use crate::catalog::relation::ViewDef;
use crate::catalog::roles::{Access, AccessObject, RoleDef};
use crate::catalog::sequence::SequenceDef;
use crate::catalog::state::{Changes, Coming};
use crate::durability::ids::NextIds;
use crate::durability::small::MainPlaces;
use crate::durability::storage::SavedSchema;
use crate::durability::transaction_ids::{LoggedId, TransactionIds};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tidepool_base::{CommitTs, Error, Result, RoleId, RowGroupId, RowId, SchemaId, StoreId, TableId, crash_point};
use tidepool_log::{Appender, Log, RecordKind};
use tidepool_table::rows::patch::{self, Patch};
use tidepool_table::rows::{Change, Replaced, WriteSet};
use tidepool_table::{Placement, Table, TableDef};
use tidepool_txn::{Appended, Commit, Validation, View, Worker};

/// A committed transaction.
pub(crate) const COMMIT: RecordKind = RecordKind(1);

/// A main that a merge made ([`crate::durability::small::MainRecord`]). A start need not know of it: the merge is done again.
pub(crate) const MAIN: RecordKind = RecordKind(2);

/// How far values of a sequence may have been given ([`crate::durability::small::SequenceRecord`]). A start need not know of it: a file says so.
pub(crate) const SEQUENCE: RecordKind = RecordKind(3);

/// A manifest in the pool is as of a moment before it. Whoever applies the log passes over it; that it is there keeps who takes over from
/// drawing timestamps that the manifest covers.
pub(crate) const CHECKPOINT: RecordKind = RecordKind(128);

/// Nothing. Its block says that all before it is complete, to those who follow and wait for that.
pub(crate) const TICK: RecordKind = RecordKind(129);

/// From here on what there is of a record is written ahead of the commit.
const PIECE_BYTES: usize = 1 << 20;

const STORE: u8 = 1;
const PUT: u8 = 2;
const DELETE: u8 = 3;
const LOAD: u8 = 4;
const CATALOG: u8 = 5;
const PATCH: u8 = 6;
const LOAD_IN_POOL: u8 = 7;
const ID: u8 = 8;

/// What a patch takes more than an image, beside its steps.
const PATCH_BYTES: usize = 12;

/// What a transaction changed of what exists: by id what takes an object's place, `None` for one that went.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CatalogChange {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<(TableId, Option<StoredTable>)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub schemas: Vec<(SchemaId, Option<SavedSchema>)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub views: Vec<(TableId, Option<ViewDef>)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sequences: Vec<(TableId, Option<SequenceDef>)>,
    /// Of sequences that stand elsewhere than at their starts, by their position ids: for who does not know these yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub restarts: Vec<(u32, i64)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub comments: Vec<(Commented, Option<String>)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<(RoleId, Option<RoleDef>)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub access: Vec<(AccessObject, Option<Access>)>,
    /// Ids below these may have been given out.
    pub next_table_id: u32,
    pub next_row_group_id: u64,
    pub next_store_id: u64,
}

/// A table without its rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredTable {
    pub def: TableDef,
    pub placement: Placement,
    pub store: StoreId,
}

impl StoredTable {
    pub fn new(table: &Table) -> StoredTable {
        StoredTable { def: TableDef::clone(&table.def), placement: table.placement.clone(), store: table.rows.id() }
    }
}

impl CatalogChange {
    /// `next`: drawn when all that the changes name had been.
    pub fn new(next: NextIds, changes: &Changes) -> CatalogChange {
        let schema = |schema: &Arc<_>| SavedSchema::new(schema);
        CatalogChange {
            tables: changes.tables.iter().map(|(id, table)| (*id, table.as_deref().map(StoredTable::new))).collect(),
            schemas: changes.schemas.iter().map(|(id, to)| (*id, to.as_ref().map(schema))).collect(),
            views: changes.views.iter().map(|(id, to)| (*id, to.as_deref().cloned())).collect(),
            sequences: (changes.sequences.iter())
                .map(|(id, to)| (*id, to.as_ref().map(|sequence| sequence.def.clone())))
                .collect(),
            restarts: (changes.sequences.values().flatten())
                .filter_map(|sequence| Some((sequence.def.position_id, sequence.restart()?)))
                .collect(),
            comments: (changes.comments.iter())
                .map(|(about, text)| (about.clone(), text.as_deref().map(str::to_owned)))
                .collect(),
            roles: changes.roles.iter().map(|(id, to)| (*id, to.as_deref().cloned())).collect(),
            access: changes.access.iter().map(|(object, to)| (object.clone(), to.as_deref().cloned())).collect(),
            next_table_id: next.oid,
            next_row_group_id: next.row_group,
            next_store_id: next.store,
        }
    }
}

impl CatalogChange {
    /// Ids below these may have been drawn when it was made.
    pub fn next_ids(&self) -> NextIds {
        let (oid, row_group, store) = (self.next_table_id, self.next_row_group_id, self.next_store_id);
        NextIds { oid, row_group, store, chunk: 0 }
    }
}

/// One thing of a record.
#[derive(Debug)]
pub(crate) enum Entry<'r> {
    Store(StoreId),
    Put(RowId, &'r [u8]),
    Patch(RowId, Patch<'r>),
    Delete(RowId),
    /// Without places the row group is in a file.
    Load {
        range: u64,
        group: RowGroupId,
        rows: u64,
        places: Option<&'r [u8]>,
    },
    Catalog(Box<CatalogChange>),
    Id(LoggedId),
}

/// Whether a record whose first piece this is changes what exists.
pub(crate) fn changes_catalog(piece: &[u8]) -> bool {
    piece.first() == Some(&CATALOG)
}

/// Reads a piece's next entry off its front.
pub(crate) fn next_entry<'r>(piece: &mut &'r [u8]) -> Result<Option<Entry<'r>>> {
    let Some((kind, rest)) = piece.split_first() else { return Ok(None) };
    *piece = rest;
    let entry = match *kind {
        STORE => Entry::Store(StoreId(number(piece)?)),
        PUT => Entry::Put(RowId(number(piece)?), bytes(piece)?),
        PATCH => {
            let (row, base) = (RowId(number(piece)?), CommitTs(number(piece)?));
            let (checksum, rest) = piece.split_first_chunk().ok_or_else(|| broken("it is cut off"))?;
            *piece = rest;
            Entry::Patch(row, Patch { base, checksum: u32::from_le_bytes(*checksum), steps: bytes(piece)? })
        }
        DELETE => Entry::Delete(RowId(number(piece)?)),
        LOAD | LOAD_IN_POOL => {
            let (range, group, rows) = (number(piece)?, number(piece)?, number(piece)?);
            let places = if *kind == LOAD_IN_POOL { Some(bytes(piece)?) } else { None };
            Entry::Load { range, group: RowGroupId(group), rows, places }
        }
        CATALOG => {
            let change = serde_json::from_slice(bytes(piece)?);
            Entry::Catalog(change.map_err(|error| broken(&format!("a change of definitions: {error}")))?)
        }
        ID => Entry::Id(LoggedId { id: number(piece)?, oldest: number(piece)? }),
        other => return Err(broken(&format!("entry {other}"))),
    };
    Ok(Some(entry))
}

/// The checksum held, so this is what was written: another release's, or a bug.
pub(crate) fn broken(what: &str) -> Error {
    Error::corrupted("a record of the log cannot be understood").with_detail(what.to_owned())
}

pub(crate) fn number(piece: &mut &[u8]) -> Result<u64> {
    let (number, rest) = piece.split_first_chunk().ok_or_else(|| broken("it is cut off"))?;
    *piece = rest;
    Ok(u64::from_le_bytes(*number))
}

pub(crate) fn bytes<'r>(piece: &mut &'r [u8]) -> Result<&'r [u8]> {
    let (len, rest) = piece.split_first_chunk().ok_or_else(|| broken("it is cut off"))?;
    let (bytes, rest) =
        rest.split_at_checked(u32::from_le_bytes(*len) as usize).ok_or_else(|| broken("it is cut off"))?;
    *piece = rest;
    Ok(bytes)
}

/// A session's end of the log.
#[derive(Debug)]
pub(crate) struct Redo {
    appender: Appender,
    /// What of the record is not written ahead.
    record: Vec<u8>,
    kind: RecordKind,
    /// There is a record to be appended.
    is_ready: bool,
    /// Where another process may take over: the greatest timestamp that was appended, for those that may not show it before it
    /// is durable.
    appended: Option<Arc<Appended>>,
}

impl Redo {
    pub fn new(log: &Arc<Log>, appended: Option<Arc<Appended>>) -> Result<Redo> {
        Ok(Redo { appender: log.appender()?, record: Vec::new(), kind: COMMIT, is_ready: false, appended })
    }

    /// Makes the record of a transaction, and takes the room for it: appending it cannot fail. `view` sees what the
    /// transaction wrote. `places`: where those who follow find row groups, if somebody may. Waits for room; `interrupted` is asked meanwhile. 53100 when the log's device is full, 58030 when
    /// it has failed. The transaction then is as it was.
    pub fn prepare(
        &mut self,
        writes: &WriteSet,
        catalog: Option<&CatalogChange>,
        id: Option<LoggedId>,
        view: &View,
        places: Option<&dyn MainPlaces>,
        interrupted: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        self.abandon();
        let prepared = self.prepare_record(writes, catalog, id, view, places, interrupted);
        if prepared.is_err() {
            self.abandon();
        }
        prepared
    }

    /// As `prepare`, of a record that is not of a transaction's rows.
    pub fn prepare_small(&mut self, kind: RecordKind, payload: &[u8]) -> Result<()> {
        self.abandon();
        self.record.extend_from_slice(payload);
        self.appender.reserve(self.record.len(), &|| Ok(())).inspect_err(|_| self.record.clear())?;
        (self.kind, self.is_ready) = (kind, true);
        Ok(())
    }

    fn prepare_record(
        &mut self,
        writes: &WriteSet,
        catalog: Option<&CatalogChange>,
        id: Option<LoggedId>,
        view: &View,
        places: Option<&dyn MainPlaces>,
        interrupted: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        if let Some(catalog) = catalog {
            let json = serde_json::to_vec(catalog)
                .map_err(|error| Error::internal(format!("a change of definitions cannot be written: {error}")))?;
            self.record.push(CATALOG);
            self.push_bytes(&json);
        }
        if let Some(LoggedId { id, oldest }) = id {
            self.push_entry(ID, id);
            self.record.extend(oldest.to_le_bytes());
        }
        let mut last = None;
        for (store, row, change) in writes.changes().filter(|(store, ..)| !store.id().is_temporary()) {
            if self.record.len() >= PIECE_BYTES {
                interrupted()?;
                self.appender.spill(&self.record, interrupted)?;
                self.is_ready = true;
                self.record.clear();
                last = None;
            }
            if last != Some(store.id()) {
                last = Some(store.id());
                self.push_entry(STORE, store.id().0);
            }
            match change {
                Change::Put { image, replaced } => {
                    if !replaced.is_some_and(|replaced| self.push_patch(row, replaced, image)) {
                        self.push_entry(PUT, row.0);
                        self.push_bytes(image);
                    }
                }
                Change::Deleted => self.push_entry(DELETE, row.0),
                Change::Loaded => {
                    let range = store.range(view, row.range());
                    let group = range.and_then(|range| range.group());
                    let group = group.ok_or_else(|| Error::internal("a loaded range has no row group"))?;
                    let places = places.map_or(Ok(None), |places| places.place_loaded(group))?;
                    self.push_entry(if places.is_some() { LOAD_IN_POOL } else { LOAD }, row.range());
                    self.record.extend(group.id().0.to_le_bytes());
                    self.record.extend((group.rows() as u64).to_le_bytes());
                    if let Some(places) = places {
                        self.push_bytes(&places);
                    }
                }
            }
        }
        if self.record.is_empty() && !self.is_ready {
            return Ok(());
        }
        self.appender.reserve(self.record.len(), interrupted)?;
        self.is_ready = true;
        Ok(())
    }

    /// False, and nothing is pushed, where the image itself is no longer.
    fn push_patch(&mut self, row: RowId, replaced: Replaced<'_>, image: &[u8]) -> bool {
        let start = self.record.len();
        self.push_entry(PATCH, row.0);
        self.record.extend(replaced.ts.0.to_le_bytes());
        // Checksum and length: once it is known that there is a patch.
        self.record.extend([0; 8]);
        let steps = self.record.len();
        let most = image.len().saturating_sub(PATCH_BYTES);
        if !patch::make(replaced.image, image, most, &mut self.record) {
            self.record.truncate(start);
            return false;
        }
        let len = (self.record.len() - steps) as u32;
        self.record[steps - 8..steps - 4].copy_from_slice(&patch::checksum(image).to_le_bytes());
        self.record[steps - 4..steps].copy_from_slice(&len.to_le_bytes());
        true
    }

    fn push_entry(&mut self, kind: u8, number: u64) {
        self.record.push(kind);
        self.record.extend(number.to_le_bytes());
    }

    fn push_bytes(&mut self, bytes: &[u8]) {
        // Images and definitions are far smaller than 4 GB.
        self.record.extend((bytes.len() as u32).to_le_bytes());
        self.record.extend(bytes);
    }

    pub fn append(&mut self, ts: CommitTs) {
        if std::mem::take(&mut self.is_ready) {
            if let Some(appended) = &self.appended {
                // Before the commit's slot is free: whoever finds it so finds this.
                appended.note(ts);
            }
            self.appender.append(ts, self.kind, &self.record);
        }
        self.clear();
    }

    /// The transaction comes to nothing.
    pub fn abandon(&mut self) {
        self.appender.abandon();
        self.is_ready = false;
        self.clear();
    }

    fn clear(&mut self) {
        self.kind = COMMIT;
        self.record.clear();
        // Of a large record.
        self.record.shrink_to(PIECE_BYTES);
    }
}

/// A crash point, at which tests may look at what others see.
pub(crate) fn point(name: &'static str) {
    crash_point(name);
    #[cfg(test)]
    AT_POINT.with_borrow_mut(|look| look.as_mut().into_iter().for_each(|look| look(name)));
}

#[cfg(test)]
type Look = Box<dyn FnMut(&'static str)>;

#[cfg(test)]
thread_local! {
    /// What is called when this thread's commits come to a point.
    pub(crate) static AT_POINT: std::cell::RefCell<Option<Look>> = const { std::cell::RefCell::new(None) };
}

/// A transaction that is written to a log, if there is one.
pub(crate) struct Logged<'t> {
    pub writes: &'t mut WriteSet,
    /// Prepared.
    pub redo: Option<&'t mut Redo>,
    /// What exists from then on, if it changes that.
    pub coming: Option<&'t Coming>,
    /// If its client asked for it.
    pub id: Option<(&'t TransactionIds, u64)>,
    /// It is of temporary tables alone.
    pub is_apart: bool,
}

impl Commit for Logged<'_> {
    fn reserve(&mut self) -> Result<()> {
        self.writes.secure()
    }

    fn is_shared(&self) -> bool {
        self.writes.is_shared()
    }

    fn validate(&mut self, check: &Validation<'_>) -> Result<()> {
        self.writes.validate(check)
    }

    fn append(&mut self, ts: CommitTs) {
        point("commit.decided");
        // First: whoever finds its record finds this.
        if let Some((ids, id)) = self.id {
            ids.commit(id, ts);
        }
        if let Some(redo) = &mut self.redo {
            redo.append(ts);
        }
    }

    fn stamp(&mut self, ts: CommitTs, worker: &Worker) {
        if let Some(coming) = self.coming {
            coming.stamp(ts);
        }
        self.writes.stamp(ts, worker);
        point("commit.stamped");
    }

    fn end_reading(&mut self) {
        self.writes.end_reading();
    }

    fn is_apart(&self) -> bool {
        self.is_apart
    }
}
