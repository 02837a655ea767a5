//! Following another process's log: what it committed is applied here, beside statements that read.
//!
//! The log comes in batches: all records up to a floor, which the log says is complete. They are applied in the order of their
//! timestamps, and become visible together when the floor is published. So a snapshot here is a state that the other process
//! had. Rows are dealt to threads by store and range, each range always to the same thread; a change of what exists is a
//! barrier, behind which the next rows are dealt. If a record cannot be applied, following ends: what was published before is there,
//! and what was applied since is seen by nobody.
//!
//! Whoever follows writes nothing: a commit is refused (25006) until the follower is promoted. It merges nothing either: the
//! log says which mains the other process made, and where they are, and these are adopted when nobody looks at what was before.
//!
//! Leaves to others: where batches come from ([`Batches`]), and how a row group that a record names is come by ([`RowGroups`]).

#[cfg(test)]
pub(crate) mod tests;

use crate::catalog::relation::SchemaDef;
use crate::catalog::sequence::Position;
use crate::catalog::state::{Changes, Coming};
use crate::database::Follows;
use crate::durability::redo::{COMMIT, CatalogChange, Entry, MAIN, SEQUENCE, StoredTable, changes_catalog, next_entry};
use crate::durability::small::{MainRecord, SequenceRecord};
use crate::{Config, Database, DatabaseState, Sequence};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tidepool_base::{CommitTs, Error, Result, RowGroupId, RowId, SqlState, StoreId, TableId};
use tidepool_heap::QueryHeap;
use tidepool_log::RecordKind;
use tidepool_log::files::SystemFiles;
use tidepool_table::rows::{Applied, Applier, NewMain, RowChange, RowStore};
use tidepool_table::{RowGroup, Table, TableDef, TableIndex};
use tidepool_txn::{HeldSnapshot, Transactions, Worker};

/// Changes of rows from which on a batch is worth more than one thread.
const SHARED_FROM: usize = 256;

/// How often a change is tried again when memory is full: statements that keep it may end.
const FULL_TRIES: u32 = 1_000;
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// A record of the log.
#[derive(Clone, Debug)]
pub struct LoggedRecord {
    pub ts: CommitTs,
    pub kind: RecordKind,
    pub pieces: Vec<Vec<u8>>,
}

/// Records up to a floor.
#[derive(Clone, Debug)]
pub struct Batch {
    /// All with timestamps up to the floor and above the one before, in any order.
    pub records: Vec<LoggedRecord>,
    pub floor: CommitTs,
}

/// Where batches come from. What is given is acknowledged, and will not be taken back.
pub trait Batches {
    /// The next one; `None`: there will be no more.
    fn next_batch(&mut self) -> Result<Option<Batch>>;
}

/// How row groups that the log names are come by.
pub trait RowGroups: Send + Sync {
    /// Of a load. The log names its places in a pool, if it is in one, and otherwise its file.
    fn loaded(&self, table: &Table, group: RowGroupId, rows: u64, places: Option<&[u8]>) -> Result<Arc<RowGroup>>;

    /// Of a merge, from where [`crate::MainPlaces`] put it.
    fn merged(&self, table: &Table, group: RowGroupId, rows: u64, places: &[u8]) -> Result<Arc<RowGroup>>;
}

/// A table whose rows are applied.
struct Followed {
    table: Arc<Table>,
    applied: Applied,
}

/// What one thread applies with.
struct Shard {
    worker: Worker,
    applier: Applier,
}

struct Job<'r> {
    to: Arc<Followed>,
    ts: CommitTs,
    what: What<'r>,
}

enum What<'r> {
    Row(RowId, RowChange<'r>),
    Load(u64, Arc<RowGroup>),
    Main(u64, NewMain),
}

impl What<'_> {
    fn range(&self) -> u64 {
        match self {
            What::Row(row, _) => row.range(),
            What::Load(range, _) | What::Main(range, _) => *range,
        }
    }
}

/// Applies a log to a database that follows.
pub struct Follower {
    transactions: Arc<Transactions>,
    stores: HashMap<StoreId, Arc<Followed>>,
    shards: Vec<Shard>,
    groups: Arc<dyn RowGroups>,
    /// By their numbers, also of sequences that are being made.
    positions: HashMap<u32, Position>,
    /// What the stores had before anything was applied is as of this.
    checkpoint: CommitTs,
    /// No record came with a later timestamp.
    seen: CommitTs,
    rows: u64,
}

impl std::fmt::Debug for Follower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Follower({} stores, {} rows applied)", self.stores.len(), self.rows)
    }
}

impl Database {
    /// A database without a data folder that follows a log from its beginning. 0A000 with a data folder.
    pub fn open_following(config: Config) -> Result<Arc<Database>> {
        if config.data_dir.is_some() {
            return Err(Error::unsupported("a database that follows a log has no data folder of its own"));
        }
        let follows = Follows { storage: None, applied: CommitTs(0), host: None, catalogue: None };
        Database::open_as(config, Arc::new(SystemFiles), None, Some(follows))
    }

    /// Whether it is another process that writes.
    pub fn is_following(&self) -> bool {
        self.transactions().is_following()
    }
}

impl Follower {
    /// Of a database that follows, and to which nobody else applies. `threads` apply rows.
    pub fn new(database: &Arc<Database>, groups: Arc<dyn RowGroups>, threads: usize) -> Result<Follower> {
        if !database.is_following() {
            return Err(Error::internal("a database that writes cannot follow"));
        }
        let shard = || Ok(Shard { worker: database.transactions().worker()?, applier: Applier::default() });
        let mut follower = Follower {
            transactions: Arc::clone(database.transactions()),
            stores: HashMap::new(),
            shards: (0..threads.max(1)).map(|_| shard()).collect::<Result<_>>()?,
            groups,
            positions: HashMap::new(),
            checkpoint: database.transactions().clock().now(),
            seen: CommitTs(0),
            rows: 0,
        };
        database.state().tables.values().for_each(|table| follower.follow(table));
        Ok(follower)
    }

    /// Up to where everything is applied.
    pub fn applied_ts(&self) -> CommitTs {
        self.transactions.clock().now()
    }

    /// Changes of rows that were applied.
    pub fn rows_applied(&self) -> u64 {
        self.rows
    }

    /// Applies until there is no more. The database is the one that it was made for.
    pub fn run(&mut self, database: &Arc<Database>, batches: &mut dyn Batches) -> Result<()> {
        while let Some(batch) = batches.next_batch()? {
            self.apply(database, batch)?;
        }
        Ok(())
    }

    /// Applies a batch, and publishes it.
    pub fn apply(&mut self, database: &Arc<Database>, mut batch: Batch) -> Result<()> {
        QueryHeap::outside(|| {
            batch.records.sort_by_key(|record| record.ts);
            let (first, last) = (batch.records.first(), batch.records.last());
            if first.is_some_and(|record| record.ts <= self.applied_ts())
                || last.is_some_and(|record| record.ts > batch.floor)
            {
                return Err(Error::internal("a batch has what another one should have had"));
            }
            self.seen = self.seen.max(last.map_or(CommitTs(0), |record| record.ts));
            let mut rest = &batch.records[..];
            let changes = |record: &LoggedRecord| {
                record.kind == COMMIT && record.pieces.first().is_some_and(|piece| changes_catalog(piece))
            };
            while let Some(at) = rest.iter().position(changes) {
                let (before, after) = rest.split_at(at);
                let (change, after) = after.split_at(1);
                self.apply_rows(database, before, CommitTs(change[0].ts.0 - 1))?;
                self.change(database, &change[0])?;
                rest = after;
            }
            self.apply_rows(database, rest, batch.floor)
        })
    }

    fn follow(&mut self, table: &Arc<Table>) {
        let applied = Applied::new(&table.rows, table.indexes(), self.checkpoint);
        self.stores.insert(table.rows.id(), Arc::new(Followed { table: Arc::clone(table), applied }));
    }

    /// Puts a main that the other process made in the place of a range's, whose record was applied before this: it is found later than
    /// its record. True: it was adopted, or will be; false: the table is gone, or has that main.
    pub(crate) fn adopt(
        &mut self,
        database: &Database,
        main: MainRecord,
        group: Option<Arc<RowGroup>>,
    ) -> Result<bool> {
        let Some(to) = self.stores.get(&main.store) else { return Ok(false) };
        let (rows, worker) = (to.applied.store(), &self.shards[0].worker);
        let has =
            rows.range(&worker.snapshot_now(), main.range).and_then(|range| range.group().map(|group| group.id()));
        if has.is_some() && has == group.as_ref().map(|group| group.id()) {
            return Ok(false);
        }
        let adopted = NewMain { group, dead: main.dead, horizon: main.horizon };
        if !rows.adopt_main(worker, main.range, adopted)? {
            database.unfinished.lock().push((Arc::clone(rows), main.range));
        }
        Ok(true)
    }

    /// The table whose rows are in a store, if there is one.
    pub(crate) fn table_of(&self, store: StoreId) -> Option<&Arc<Table>> {
        self.stores.get(&store).map(|followed| &followed.table)
    }

    /// Rows of records, and then that everything up to `upto` is there.
    fn apply_rows(&mut self, database: &Database, records: &[LoggedRecord], upto: CommitTs) -> Result<()> {
        let touched = self.put_rows(database, records)?;
        self.publish(&touched, || (), upto);
        for shard in &mut self.shards {
            shard.worker.collect();
        }
        Ok(())
    }

    fn publish(&self, touched: &BTreeMap<StoreId, Arc<Followed>>, announce: impl FnOnce(), upto: CommitTs) {
        touched.values().for_each(|to| to.table.begin_write());
        announce();
        self.transactions.follow(upto);
        touched.values().for_each(|to| to.table.end_write());
    }

    /// Puts the rows of records in place, which nobody sees yet. Returns whose they are.
    fn put_rows<'r>(
        &mut self,
        database: &Database,
        records: &'r [LoggedRecord],
    ) -> Result<BTreeMap<StoreId, Arc<Followed>>> {
        let mut touched = BTreeMap::new();
        let mut dealt: Vec<Vec<Job<'r>>> = self.shards.iter().map(|_| Vec::new()).collect();
        let mut count = 0;
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        let mut deal = |job: Job<'r>| {
            let shard = hasher.hash_one((job.to.table.rows.id().0, job.what.range())) as usize % dealt.len();
            count += 1;
            dealt[shard].push(job);
        };
        for record in records {
            if record.kind == MAIN {
                let payload = record.pieces.concat();
                let main = MainRecord::from_bytes(&payload)?;
                main.group.iter().for_each(|(group, _)| database.ids.pass_row_group(*group));
                // Of a table that is gone by now.
                let Some(to) = self.stores.get(&main.store) else { continue };
                let merged = |(group, rows)| self.groups.merged(&to.table, group, rows, &main.places);
                let group = main.group.map(merged).transpose()?;
                let what = What::Main(main.range, NewMain { group, dead: main.dead, horizon: main.horizon });
                deal(Job { to: Arc::clone(to), ts: record.ts, what });
                continue;
            }
            if record.kind == SEQUENCE {
                let SequenceRecord { position_id, position } = SequenceRecord::from_bytes(&record.pieces.concat())?;
                self.positions.insert(position_id, position);
                let state = database.state();
                let of = |sequence: &&Arc<Sequence>| sequence.def.position_id == position_id;
                if let Some(sequence) = state.catalog.sequences.values().find(of) {
                    sequence.follow(position);
                }
                continue;
            }
            if record.kind.may_be_skipped() {
                continue;
            }
            if record.kind != COMMIT {
                return Err(Error::new(
                    SqlState::FEATURE_NOT_SUPPORTED,
                    format!("the log has a record of kind {}, which this release does not know", record.kind.0),
                ));
            }
            for piece in &record.pieces {
                let (mut piece, mut to) = (&piece[..], None);
                while let Some(entry) = next_entry(&mut piece)? {
                    let what = match entry {
                        Entry::Store(id) => {
                            to = self.stores.get(&id);
                            if let Some(to) = to {
                                touched.entry(id).or_insert_with(|| Arc::clone(to));
                            }
                            continue;
                        }
                        Entry::Catalog(_) => continue,
                        Entry::Id(id) => {
                            database.transaction_ids.note(id, record.ts);
                            continue;
                        }
                        Entry::Put(row, image) => What::Row(row, RowChange::Put(image)),
                        Entry::Patch(row, patch) => What::Row(row, RowChange::Patch(patch)),
                        Entry::Delete(row) => What::Row(row, RowChange::Delete),
                        Entry::Load { range, group, rows, places } => {
                            database.ids.pass_row_group(group);
                            let Some(to) = to else { continue };
                            What::Load(range, self.groups.loaded(&to.table, group, rows, places)?)
                        }
                    };
                    if let Some(to) = to {
                        deal(Job { to: Arc::clone(to), ts: record.ts, what });
                    }
                }
            }
        }
        self.rows += count as u64;
        let unfinished = Mutex::new(Vec::new());
        let mut shards = self.shards.iter_mut().zip(dealt).filter(|(_, jobs)| !jobs.is_empty());
        let done = if count < SHARED_FROM || shards.size_hint().1 == Some(1) {
            shards.try_for_each(|(shard, jobs)| shard.apply(jobs, &unfinished))
        } else {
            std::thread::scope(|scope| {
                let unfinished = &unfinished;
                let threads: Vec<_> =
                    shards.map(|(shard, jobs)| scope.spawn(move || shard.apply(jobs, unfinished))).collect();
                let joined = threads.into_iter().map(|thread| {
                    thread.join().unwrap_or_else(|_| Err(Error::internal("a thread that applies the log panicked")))
                });
                joined.collect::<Vec<Result<()>>>().into_iter().collect::<Result<()>>()
            })
        };
        database.unfinished.lock().append(&mut unfinished.into_inner());
        done.map(|()| touched)
    }

    /// A record that changes what exists: its rows, and that, are seen together.
    fn change(&mut self, database: &Arc<Database>, record: &LoggedRecord) -> Result<()> {
        let _commit = database.commit.lock();
        let mut piece = record.pieces.first().map_or(&[][..], |piece| piece);
        let Some(Entry::Catalog(change)) = next_entry(&mut piece)? else {
            return Err(Error::internal("a record changes nothing of what exists"));
        };
        let before = database.state();
        let mut filled = Vec::new();
        let changes = self.changes(database, &before, *change, record.ts, &mut filled)?;
        let gone: Vec<StoreId> = (changes.tables.iter())
            .filter_map(|(id, to)| Some((before.table_of_id(*id)?.rows.id(), to.as_ref().map(|table| table.rows.id()))))
            .filter(|(from, to)| Some(*from) != *to)
            .map(|(from, _)| from)
            .collect();
        changes.tables.values().flatten().for_each(|table| self.follow(table));
        let touched = self.put_rows(database, std::slice::from_ref(record))?;
        let next = before.with(record.ts, &changes);
        let mut announced = None;
        let announce = || announced = Some(database.announce(Arc::new(Coming::at(record.ts, next.clone()))));
        self.publish(&touched, announce, record.ts);
        database.set_state(next);
        drop(announced);
        for store in gone {
            self.stores.remove(&store);
        }
        database.backfill(filled)
    }

    /// What a record makes of what exists, with indexes over all rows that are applied by now. Apply does not wait for those of large
    /// tables: they are put into `filled`.
    fn changes(
        &mut self,
        database: &Database,
        before: &DatabaseState,
        change: CatalogChange,
        ts: CommitTs,
        filled: &mut Vec<Weak<TableIndex>>,
    ) -> Result<Changes> {
        database.ids.pass(&change.next_ids());
        let view = Arc::new(self.shards[0].worker.hold_now());
        let mut changes = Changes::default();
        for (id, stored) in change.tables {
            let table = stored.map(|stored| self.table(database, before, id, stored, &view, ts, filled)).transpose()?;
            changes.tables.insert(id, table.map(Arc::new));
        }
        for (id, schema) in change.schemas {
            changes.schemas.insert(id, schema.map(|schema| Arc::new(SchemaDef { id, name: schema.name })));
        }
        changes.views = change.views.into_iter().map(|(id, view)| (id, view.map(Arc::new))).collect();
        for (id, def) in change.sequences {
            let sequence = def.map(|def| {
                let known = before.catalog.sequence_by_id(id).filter(|known| known.def.position_id == def.position_id);
                let restart = change.restarts.iter().find(|(position_id, _)| *position_id == def.position_id);
                if let (None, Some((id, value))) = (known, restart) {
                    // Unless values of it have been given meanwhile.
                    self.positions.entry(*id).or_insert(Position { last: *value, called: false });
                }
                let sequence = known.map_or_else(|| Sequence::new(def.clone()), |known| known.with_def(def.clone()));
                if let Some(position) = self.positions.get(&def.position_id) {
                    sequence.follow(*position);
                }
                sequence
            });
            changes.sequences.insert(id, sequence.map(Arc::new));
        }
        changes.comments = change.comments.into_iter().map(|(about, text)| (about, text.map(Arc::from))).collect();
        changes.roles = change.roles.into_iter().map(|(id, role)| (id, role.map(Arc::new))).collect();
        changes.access = change.access.into_iter().map(|(object, access)| (object, access.map(Arc::new))).collect();
        Ok(changes)
    }

    #[expect(clippy::too_many_arguments, reason = "what a change has at hand")]
    fn table(
        &self,
        database: &Database,
        before: &DatabaseState,
        id: TableId,
        stored: StoredTable,
        view: &Arc<HeldSnapshot>,
        ts: CommitTs,
        filled: &mut Vec<Weak<TableIndex>>,
    ) -> Result<Table> {
        database.ids.pass_store(stored.store);
        let mut def = stored.def;
        def.number_columns();
        let def = Arc::new(def);
        let space = |table: &Table, index| database.tablespaces().get(table.index_tablespace(index));
        if let Some(known) = before.table_of_id(id).filter(|known| known.rows.id() == stored.store) {
            let keys_stay = |index: TableId| same_keys(&known.def, &def, index);
            let table = known.with_def(Arc::clone(&def)).without_indexes(|index| !keys_stay(index));
            if def.indexes.iter().all(|index| table.index(index.id).is_some()) {
                return Ok(table);
            }
            return database.with_followed_indexes(table, view, filled);
        }
        let rows: Arc<RowStore> = database.rows_of_store(stored.store, &def, &stored.placement)?;
        let table = Table::new(Arc::clone(&def), stored.placement, rows);
        let made = (def.indexes.iter())
            .map(|index| TableIndex::create(&def, index, space(&table, index)?, database.transactions(), Some(ts)))
            .collect::<Result<Vec<_>>>()?;
        Ok(table.with_indexes(made))
    }

    /// Ends following: everything that the other process acknowledged is applied, and from now on this one writes, with timestamps above `after`
    /// and all that was applied.
    pub fn promote(self, database: &Database, after: CommitTs) {
        if database.roles.is_none() {
            database.transaction_ids.succeed();
        }
        QueryHeap::outside(|| {
            for to in self.stores.values() {
                to.table.rows.end_applying(&self.shards[0].worker.snapshot_now());
            }
            for shard in &self.shards {
                shard.worker.rest();
            }
            debug_assert!(Arc::ptr_eq(database.transactions(), &self.transactions));
            database.transactions().promote(after.max(self.seen));
        });
    }
}

/// Whether an index has the keys in both definitions.
fn same_keys(before: &TableDef, after: &TableDef, index: TableId) -> bool {
    let of = |def: &TableDef| {
        let index = def.indexes.iter().find(|known| known.id == index)?;
        Some((index.columns.clone(), index.unique, index.nulls_not_distinct, index.is_primary()))
    };
    of(before) == of(after)
}

impl Shard {
    fn apply(&mut self, jobs: Vec<Job<'_>>, unfinished: &Mutex<Vec<(Arc<RowStore>, u64)>>) -> Result<()> {
        let (mut at, mut tries) = (0, 0);
        while at < jobs.len() {
            let done = self.apply_some(&jobs[at..], unfinished);
            match done {
                (some, Ok(())) => at += some,
                (some, Err(error)) => {
                    tries = if some > 0 { 1 } else { tries + 1 };
                    if error.code() != SqlState::OUT_OF_MEMORY || tries == FULL_TRIES {
                        return Err(error);
                    }
                    at += some;
                    self.worker.collect();
                    std::thread::sleep(FULL_PAUSE);
                }
            }
        }
        self.applier.rest();
        Ok(())
    }

    /// How many were done, and why no more.
    fn apply_some(&mut self, jobs: &[Job<'_>], unfinished: &Mutex<Vec<(Arc<RowStore>, u64)>>) -> (usize, Result<()>) {
        let worker = &self.worker;
        let view = worker.snapshot_now();
        for (done, job) in jobs.iter().enumerate() {
            let to = &job.to.applied;
            let applied = match &job.what {
                What::Row(row, change) => self.applier.apply(to, worker, &view, *row, *change, job.ts),
                What::Load(range, group) => {
                    self.applier.apply_load(to, worker, &view, *range, Arc::clone(group), job.ts)
                }
                What::Main(range, main) => to.store().adopt_main(worker, *range, main.clone()).map(|is_done| {
                    if !is_done {
                        unfinished.lock().push((Arc::clone(to.store()), *range));
                    }
                }),
            };
            if let Err(error) = applied {
                return (done, Err(error));
            }
        }
        (jobs.len(), Ok(()))
    }
}
