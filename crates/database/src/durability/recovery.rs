//! What a data folder had when it was left: the last checkpoint, and what the log has since.
//!
//! Records come in the order in which they were written, which is not that of timestamps: a row goes by the newest, and
//! changes of definitions are applied in their order at the end. Rows of a store that is made by a later record wait for it, and
//! so does a patch for the row that it is a patch of.

use crate::catalog::comment::Comments;
use crate::catalog::relation::RelationName;
use crate::catalog::sequence::Position;
use crate::catalog::state::{Catalog, DatabaseState};
use crate::durability::ids;
use crate::durability::redo::{COMMIT, CatalogChange, Entry, MAIN, SEQUENCE, StoredTable, next_entry};
use crate::durability::storage::{Census, FoundGroups, Manifest, SavedFile, Storage};
use crate::write::index::add_declared_keys;
use crate::{Database, SchemaDef, Sequence, SequenceDef};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidepool_base::{ByteSize, CommitTs, Error, Result, RowGroupId, RowId, SqlState, StoreId, TableId};
use tidepool_log::Recovery;
use tidepool_table::rows::patch::Patch;
use tidepool_table::rows::{Patched, RowStore};
use tidepool_table::{Placement, Table, TableDef};
use tidepool_txn::{View, Worker};

/// Rows that a table's store is made again from.
struct Restored {
    def: Arc<TableDef>,
    placement: Placement,
    rows: Arc<RowStore>,
    /// The log had something of it.
    changed: bool,
}

/// What a start came upon.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recovered {
    /// The log had something that the checkpoint has not.
    pub had_records: bool,
    /// Primary keys of an earlier release got their indexes.
    pub keys_added: bool,
}

/// A change of rows whose store is not known yet.
enum Waiting {
    Row(RowId, Option<Vec<u8>>, CommitTs),
    Patch(RowId, Early),
    Load { range: u64, file: SavedFile },
}

/// A patch that is kept.
struct Early {
    base: CommitTs,
    checksum: u32,
    steps: Vec<u8>,
    ts: CommitTs,
}

impl Early {
    fn new(patch: &Patch<'_>, ts: CommitTs) -> Early {
        Early { base: patch.base, checksum: patch.checksum, steps: patch.steps.to_vec(), ts }
    }

    fn patch(&self) -> Patch<'_> {
        Patch { base: self.base, checksum: self.checksum, steps: &self.steps }
    }
}

struct Replay<'d> {
    database: &'d Database,
    storage: &'d Storage,
    worker: Worker,
    stores: HashMap<StoreId, Restored>,
    waiting: HashMap<StoreId, Vec<Waiting>>,
    /// Patches of rows that are not there yet as they were since then: at most one each.
    early: HashMap<(StoreId, RowId, CommitTs), Early>,
    /// Rows that the record at hand has brought, while there are such patches.
    came: Vec<(StoreId, RowId, CommitTs)>,
    checkpoint: CommitTs,
    changes: Vec<(CommitTs, CatalogChange)>,
    /// Row groups that the log names.
    loaded: Vec<RowGroupId>,
    /// Whose row groups are, by the manifest and the log.
    census: Census,
    records: u64,
}

impl Database {
    /// Reads the checkpoint that `manifest` describes, then the log, and makes what is found the present state. XX001 when
    /// something of it is damaged, or an id is there twice.
    pub(crate) fn recover(&self, storage: &Storage, manifest: &Manifest, log: &mut Recovery) -> Result<Recovered> {
        let mut replay = Replay {
            database: self,
            storage,
            worker: self.transactions().worker()?,
            stores: HashMap::new(),
            waiting: HashMap::new(),
            early: HashMap::new(),
            came: Vec::new(),
            checkpoint: manifest.commit_ts,
            changes: Vec::new(),
            loaded: Vec::new(),
            census: Census::default(),
            records: 0,
        };
        let tables = replay.checkpoint(manifest)?;
        log.skip_to(manifest.commit_ts);
        replay.log(log)?;
        replay.check_early()?;
        replay.finish(manifest, tables, log)
    }
}

impl Replay<'_> {
    /// The tables of the checkpoint, with their rows.
    fn checkpoint(&mut self, manifest: &Manifest) -> Result<BTreeMap<TableId, StoredTable>> {
        let mut tables = BTreeMap::new();
        let mut found = self.storage.find(manifest, self.database.tablespaces(), self.database.config().threads)?;
        for saved in &manifest.tables {
            // Where there are none yet there is no log: it names rows by their stores.
            let store = saved.store.unwrap_or_else(|| self.database.next_store_id());
            let table = StoredTable { def: saved.def.clone(), placement: saved.placement.clone(), store };
            let rows = self.make(&table)?;
            for file in &saved.row_groups {
                self.census.row_group(RowGroupId(file.id), saved.def.id, store)?;
            }
            let threads = self.database.config().threads;
            let view = self.worker.snapshot_now();
            let spaces = self.database.tablespaces();
            self.storage.load_table(
                saved,
                spaces,
                threads,
                &rows,
                &self.worker,
                &view,
                manifest.commit_ts,
                &mut found,
            )?;
            tables.insert(saved.def.id, table);
        }
        Ok(tables)
    }

    fn make(&mut self, table: &StoredTable) -> Result<Arc<RowStore>> {
        let def = Arc::new(table.def.clone());
        let rows = self.database.rows_of_store(table.store, &def, &table.placement)?;
        let restored = Restored { def, placement: table.placement.clone(), rows: rows.clone(), changed: false };
        self.stores.insert(table.store, restored);
        Ok(rows)
    }

    fn log(&mut self, log: &mut Recovery) -> Result<()> {
        while let Some(mut record) = log.next_record()? {
            self.records += 1;
            let (ts, kind, position) = (record.ts, record.kind, record.position);
            let of_record = |error: Error| {
                let detail =
                    format!("In the log at {position}: {}", error.detail().unwrap_or("a committed transaction."));
                Error::new(error.code(), error.message().to_owned()).with_detail(detail)
            };
            // A merge is done again, a file has the position, and other kinds may be passed over.
            if kind == MAIN || kind == SEQUENCE || kind.may_be_skipped() {
                continue;
            }
            if kind != COMMIT {
                return Err(of_record(Error::new(
                    SqlState::FEATURE_NOT_SUPPORTED,
                    format!("the log has a record of kind {}, which this release does not know", kind.0),
                )));
            }
            while let Some(mut piece) = record.next_piece()? {
                self.piece(&mut piece, ts).map_err(of_record)?;
            }
            self.end_record().map_err(of_record)?;
        }
        Ok(())
    }

    fn piece(&mut self, piece: &mut &[u8], ts: CommitTs) -> Result<()> {
        let mut store = None;
        let no_store = || Error::corrupted("a record of the log names no store");
        let view = self.worker.hold_now();
        while let Some(entry) = next_entry(piece)? {
            match entry {
                Entry::Store(id) => {
                    self.database.ids.pass_store(id);
                    store = Some(id);
                }
                Entry::Put(row, image) => self.row(&view, store.ok_or_else(no_store)?, row, Some(image), ts)?,
                Entry::Patch(row, patch) => self.patch(&view, store.ok_or_else(no_store)?, row, &patch, ts)?,
                Entry::Delete(row) => self.row(&view, store.ok_or_else(no_store)?, row, None, ts)?,
                Entry::Load { range, group, rows, .. } => {
                    self.database.ids.pass_row_group(group);
                    self.loaded.push(group);
                    let file = SavedFile { id: group.0, rows, range: Some(range) };
                    self.load(store.ok_or_else(no_store)?, range, file)?;
                }
                Entry::Catalog(change) => self.change(ts, *change)?,
                Entry::Id(id) => self.database.transaction_ids.note(id, ts),
            }
        }
        Ok(())
    }

    fn row(&mut self, view: &View, store: StoreId, row: RowId, image: Option<&[u8]>, ts: CommitTs) -> Result<()> {
        match self.stores.get_mut(&store) {
            Some(restored) => {
                restored.changed = true;
                restored.rows.restore_row(view, row, image, ts)?;
                self.bring(store, row, ts);
                Ok(())
            }
            None => {
                let waiting = Waiting::Row(row, image.map(<[u8]>::to_vec), ts);
                self.waiting.entry(store).or_default().push(waiting);
                Ok(())
            }
        }
    }

    fn patch(&mut self, view: &View, store: StoreId, row: RowId, patch: &Patch<'_>, ts: CommitTs) -> Result<()> {
        let Some(restored) = self.stores.get_mut(&store) else {
            let waiting = Waiting::Patch(row, Early::new(patch, ts));
            self.waiting.entry(store).or_default().push(waiting);
            return Ok(());
        };
        restored.changed = true;
        match restored.rows.restore_patch(view, row, patch, ts, self.checkpoint)? {
            Patched::Done => self.bring(store, row, ts),
            Patched::Early => drop(self.early.insert((store, row, patch.base), Early::new(patch, ts))),
        }
        Ok(())
    }

    fn bring(&mut self, store: StoreId, row: RowId, ts: CommitTs) {
        if !self.early.is_empty() {
            self.came.push((store, row, ts));
        }
    }

    /// Goes on with patches that waited for what a whole record has brought: it may have changed a row more than once.
    fn end_record(&mut self) -> Result<()> {
        let view = self.worker.hold_now();
        for (store, row, mut ts) in std::mem::take(&mut self.came) {
            let Some(restored) = self.stores.get(&store) else { continue };
            while let Some(early) = self.early.remove(&(store, row, ts)) {
                match restored.rows.restore_patch(&view, row, &early.patch(), early.ts, self.checkpoint)? {
                    Patched::Done => ts = early.ts,
                    Patched::Early => return Err(Error::internal("a row is not what was restored of it")),
                }
            }
        }
        Ok(())
    }

    /// XX001 for patches that nothing has come for, and nothing newer in their place.
    fn check_early(&mut self) -> Result<()> {
        let view = self.worker.hold_now();
        for ((store, row, base), early) in std::mem::take(&mut self.early) {
            let Some(restored) = self.stores.get(&store) else { continue };
            let patched = restored.rows.restore_patch(&view, row, &early.patch(), early.ts, self.checkpoint)?;
            if patched == Patched::Early {
                return Err(Error::corrupted("the log has a change of a row, and not the row")
                    .with_detail(format!("Row {} was changed at {}, as it was since {}.", row.0, early.ts.0, base.0)));
            }
        }
        Ok(())
    }

    fn load(&mut self, store: StoreId, range: u64, file: SavedFile) -> Result<()> {
        match self.stores.get_mut(&store) {
            Some(restored) => {
                restored.changed = true;
                self.census.row_group(RowGroupId(file.id), restored.def.id, store)?;
                let spaces = self.database.tablespaces();
                let group = self.storage.load_group(
                    &restored.def,
                    &restored.placement,
                    &file,
                    spaces,
                    &FoundGroups::default(),
                )?;
                restored.rows.restore_main(&self.worker, range, Arc::new(group), &[])
            }
            None => {
                self.waiting.entry(store).or_default().push(Waiting::Load { range, file });
                Ok(())
            }
        }
    }

    fn change(&mut self, ts: CommitTs, change: CatalogChange) -> Result<()> {
        self.database.ids.pass(&change.next_ids());
        for (_, table) in &change.tables {
            let Some(table) = table.as_ref().filter(|table| !self.stores.contains_key(&table.store)) else { continue };
            self.make(table)?;
            let view = self.worker.hold_now();
            for waiting in self.waiting.remove(&table.store).unwrap_or_default() {
                match waiting {
                    Waiting::Row(row, image, ts) => self.row(&view, table.store, row, image.as_deref(), ts)?,
                    Waiting::Patch(row, early) => self.patch(&view, table.store, row, &early.patch(), early.ts)?,
                    Waiting::Load { range, file } => self.load(table.store, range, file)?,
                }
            }
        }
        self.changes.push((ts, change));
        Ok(())
    }

    fn finish(
        mut self,
        manifest: &Manifest,
        mut stored: BTreeMap<TableId, StoredTable>,
        log: &Recovery,
    ) -> Result<Recovered> {
        let mut schemas = manifest.schemas();
        let mut views: BTreeMap<_, _> = manifest.views.iter().map(|view| (view.id, Arc::new(view.clone()))).collect();
        let mut sequences: BTreeMap<TableId, (SequenceDef, Option<Position>)> =
            manifest.sequences.iter().map(|saved| (saved.def.id, (saved.def.clone(), Some(saved.position)))).collect();
        let mut comments: Comments =
            manifest.comments.iter().map(|(about, text)| (about.clone(), Arc::from(text.as_str()))).collect();
        let mut roles = manifest.roles();
        let mut access: BTreeMap<_, _> =
            manifest.access.iter().map(|(object, access)| (object.clone(), Arc::new(access.clone()))).collect();
        self.changes.sort_by_key(|(ts, _)| *ts);
        for (_, change) in self.changes {
            for (id, table) in change.tables {
                match table {
                    Some(table) => drop(stored.insert(id, table)),
                    None => drop(stored.remove(&id)),
                }
            }
            for (id, schema) in change.schemas {
                match schema {
                    Some(schema) => drop(schemas.insert(id, Arc::new(SchemaDef { id, name: schema.name }))),
                    None => drop(schemas.remove(&id)),
                }
            }
            for (id, view) in change.views {
                match view {
                    Some(view) => drop(views.insert(id, Arc::new(view))),
                    None => drop(views.remove(&id)),
                }
            }
            for (about, text) in change.comments {
                match text {
                    Some(text) => drop(comments.insert(about, Arc::from(text))),
                    None => drop(comments.remove(&about)),
                }
            }
            for (id, role) in change.roles {
                match role {
                    Some(role) => drop(roles.insert(id, Arc::new(role))),
                    None => drop(roles.remove(&id)),
                }
            }
            for (object, to) in change.access {
                match to {
                    Some(to) => drop(access.insert(object, Arc::new(to))),
                    None => drop(access.remove(&object)),
                }
            }
            for (id, def) in change.sequences {
                let Some(def) = def else {
                    sequences.remove(&id);
                    continue;
                };
                // One that starts again stands elsewhere.
                let before = sequences.remove(&id).filter(|(before, _)| before.position_id == def.position_id);
                let restart = change.restarts.iter().find(|(position_id, _)| *position_id == def.position_id);
                let restart = restart.map(|(_, value)| Position { last: *value, called: false });
                sequences.insert(id, (def, before.and_then(|(_, position)| position).or(restart)));
            }
        }
        // Now that all that was drawn is known.
        let mut defs: Vec<&mut TableDef> = stored.values_mut().map(|table| &mut table.def).collect();
        let keys_added = add_declared_keys(&mut defs, || self.database.next_table_id().0);
        let view = self.worker.hold_now();
        let mut tables = BTreeMap::new();
        let saved: HashMap<TableId, _> = manifest.tables.iter().map(|saved| (saved.def.id, saved)).collect();
        let mut seen = HashSet::new();
        for table in stored.into_values() {
            let restored = self.stores.remove(&table.store);
            let restored = restored.ok_or_else(|| Error::internal("a table of the log has no rows"))?;
            if !seen.insert(table.store) {
                return Err(Error::corrupted("two tables of the log have the same rows"));
            }
            restored.rows.end_restoring(&view);
            let table = Arc::new(Table::new(Arc::new(table.def), table.placement, restored.rows));
            match saved.get(&table.def.id) {
                Some(saved) if !restored.changed && saved.store == Some(table.rows.id()) => {
                    self.storage.loaded(&table, saved);
                }
                _ => {
                    table.begin_write();
                    table.end_write();
                }
            }
            tables.insert(RelationName::from(&*table.def), table);
        }
        let position = |def: &SequenceDef, position: Option<_>| {
            let start = || Position { last: def.start, called: false };
            self.storage.position(def.position_id).or(position).unwrap_or_else(start)
        };
        let sequences: BTreeMap<_, _> = sequences
            .into_values()
            .map(|(def, saved)| {
                let position = position(&def, saved);
                (RelationName::from(&def), Arc::new(Sequence::at(def, position)))
            })
            .collect();
        self.storage.keep_positions(sequences.values().map(|sequence| sequence.def.position_id));
        let views = views.into_values().map(|view| (RelationName::from(&*view), view)).collect();
        let catalog = Arc::new(Catalog { schemas, views, sequences, comments, roles, access });
        let mut state = DatabaseState::new(manifest.commit_ts.max(log.ts_max()), tables, catalog);
        state.forget_access_to_missing();
        ids::check_state(&state, &self.database.ids)?;
        self.storage.recovered(&state, &view, &self.loaded)?;
        self.database.set_state(state);
        let restarted = self.storage.restarted();
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        if of(&restarted.attached) > 0 {
            tracing::info!(
                "{} of tables were found in memory, {} of main read from files",
                ByteSize(of(&restarted.attached_bytes)),
                ByteSize(of(&restarted.read_bytes))
            );
        }
        if self.records > 0 {
            tracing::info!("the log had {} transactions since the last checkpoint", self.records);
        }
        drop(view);
        self.worker.rest();
        Ok(Recovered { had_records: self.records > 0, keys_added })
    }
}
