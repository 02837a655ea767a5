//! A database whose log another one in this process follows, which statements read meanwhile.

use super::*;
use crate::durability::storage::{FoundGroups, SavedFile};
use crate::stress::for_seeds;
use crate::tests::{batch_of, columns, in_folder, insert, memory, placement, rows_of};
use crate::write::index::{INDEXED_AT_ONCE, IndexedAtOnce};
use crate::write::writer::SHORT_ROW_GROUP_ROWS;
use crate::{Changed, DatabaseVersion, MainPlaces, NewIndex, SequenceDef, Transaction};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tidepool_log::files::OpenHow;
use tidepool_log::{FileDevice, Log, LogConfig, NotesUse};
use tidepool_table::{IndexColumn, TableVersion};

const SEGMENT_BYTES: usize = 1 << 20;

/// Row groups are shared as they are, as both databases are in one process.
struct Shared {
    primary: Arc<Database>,
    follower: Arc<Database>,
    merged: Arc<Merges>,
}

#[derive(Default)]
struct Merges(Mutex<HashMap<RowGroupId, Arc<RowGroup>>>);

impl MainPlaces for Merges {
    fn place(&self, store: StoreId, _: u64, main: &NewMain) -> Result<Vec<u8>> {
        if let Some(group) = &main.group {
            self.0.lock().insert(group.id(), Arc::clone(group));
        }
        Ok(store.0.to_le_bytes().to_vec())
    }
}

impl RowGroups for Shared {
    fn loaded(&self, table: &Table, group: RowGroupId, rows: u64, _: Option<&[u8]>) -> Result<Arc<RowGroup>> {
        let file = SavedFile { id: group.0, rows, range: None };
        let (storage, spaces) = (self.primary.storage.as_ref().unwrap(), self.follower.tablespaces());
        let group = storage.load_group(&table.def, &table.placement, &file, spaces, &FoundGroups::default());
        group.map(Arc::new)
    }

    fn merged(&self, table: &Table, group: RowGroupId, _: u64, places: &[u8]) -> Result<Arc<RowGroup>> {
        assert_eq!(places, table.rows.id().0.to_le_bytes());
        Ok(self.merged.0.lock()[&group].clone())
    }
}

struct Pair {
    primary: Arc<Database>,
    follower: Arc<Database>,
    folder: tempfile::TempDir,
}

impl Pair {
    fn new() -> Pair {
        let folder = tempfile::tempdir().unwrap();
        let mut config = in_folder(&folder.path().join("data"));
        config.log.segment_bytes = SEGMENT_BYTES;
        config.log.bytes_max = 1 << 30;
        Pair { primary: Database::open(config).unwrap(), follower: Database::open_following(memory()).unwrap(), folder }
    }

    fn follower(&self, threads: usize) -> Follower {
        let merged = Arc::<Merges>::default();
        self.primary.place_mains(merged.clone()).unwrap();
        let (primary, follower) = (self.primary.clone(), self.follower.clone());
        Follower::new(&self.follower, Arc::new(Shared { primary, follower, merged }), threads).unwrap()
    }

    /// What a start would find of the log by now.
    fn log(&self) -> Vec<LoggedRecord> {
        let (from, to) = (self.folder.path().join("data/log"), self.folder.path().join("copy"));
        let _ = std::fs::remove_dir_all(&to);
        std::fs::create_dir(&to).unwrap();
        let mut names: Vec<PathBuf> = std::fs::read_dir(&from).unwrap().map(|entry| entry.unwrap().path()).collect();
        // The last first: what is begun behind a segment is not there then.
        names.sort();
        for name in names.iter().rev().filter(|name| name.is_file()) {
            std::fs::copy(name, to.join(name.file_name().unwrap())).unwrap();
        }
        let device = FileDevice::open(Arc::new(SystemFiles), &to, SEGMENT_BYTES, OpenHow::default()).unwrap();
        let identity = self.primary.storage.as_ref().unwrap().log_home().unwrap().identity;
        let config = LogConfig { notes: NotesUse::Ignored, bytes_max: 1 << 30, ..LogConfig::new(identity) };
        let mut recovery = Log::open(Arc::new(device), config).unwrap();
        recovery.skip_to(self.follower.transactions().clock().now());
        let mut records = Vec::new();
        while let Some(mut record) = recovery.next_record().unwrap() {
            let (ts, kind) = (record.ts, record.kind);
            let mut pieces = Vec::new();
            while let Some(piece) = record.next_piece().unwrap() {
                pieces.push(piece.to_vec());
            }
            records.push(LoggedRecord { ts, kind, pieces });
        }
        records
    }

    /// What the primary has by now, and its log up to then.
    fn moment(&self) -> (Arc<DatabaseVersion>, Vec<LoggedRecord>) {
        let version = self.primary.version();
        let mut tick = self.primary.begin().unwrap();
        insert(&mut tick, "ticks", 0..1).unwrap();
        // What is durable behind it: all up to the version is.
        tick.commit().unwrap();
        let mut records = self.log();
        records.retain(|record| record.ts <= version.view().ts());
        (version, records)
    }
}

pub(crate) type Content = BTreeMap<String, Vec<String>>;

pub(crate) fn content(version: &DatabaseVersion) -> Content {
    version.versions().map(|table| (table.def.name.clone(), rows_of(table))).collect()
}

fn by_text() -> NewIndex {
    NewIndex {
        name: None,
        columns: vec![IndexColumn { number: 2, descending: false, nulls_first: false }],
        unique: false,
        nulls_not_distinct: false,
        primary: None,
        tablespace: None,
        partition_of: None,
    }
}

fn create(primary: &Arc<Database>, name: &str, key: bool) {
    create_in(primary, name, key, "near");
}

pub(crate) fn create_in(primary: &Arc<Database>, name: &str, key: bool, space: &str) {
    let mut transaction = primary.begin().unwrap();
    let key = if key { vec![0] } else { vec![] };
    transaction.create_table(name, columns(), key, placement(space)).unwrap();
    transaction.create_index(name, by_text()).unwrap();
    transaction.commit().unwrap();
}

/// Some rows of a table.
fn some(random: &mut StdRng, table: &TableVersion, one_of: u32) -> Vec<RowId> {
    let all = (0..table.rows().ranges()).flat_map(|range| (0..1500).map(move |position| RowId::new(range, position)));
    let some = all.filter(|_| random.random_range(0..one_of) == 0);
    some.filter(|row| table.rows().read(table.view(), *row).is_some()).collect()
}

fn batch(table: &TableDef, numbers: std::ops::Range<usize>) -> arrow_array::RecordBatch {
    let text = |number: usize| (!number.is_multiple_of(7)).then(|| format!("a text of {:>8}", number % 500));
    batch_of(table, &numbers.map(|number| vec![Some(number.to_string()), text(number)]).collect::<Vec<_>>())
}

/// One transaction on tables that stay, which may be refused.
pub(crate) fn write(random: &mut StdRng, database: &Arc<Database>, next: &AtomicUsize) -> Result<()> {
    let numbers = |count: usize| {
        let start = next.fetch_add(count, Ordering::Relaxed);
        start..start + count
    };
    let mut transaction = database.begin()?;
    transaction.set_synchronous(false);
    for _ in 0..random.random_range(1..4) {
        let name = ["one", "two", "three"][random.random_range(0..3)];
        match random.random_range(0..12) {
            0..4 => drop(insert(&mut transaction, name, numbers(random.random_range(1..30)))?),
            4 if random.random_range(0..6) == 0 => {
                insert(&mut transaction, name, numbers(SHORT_ROW_GROUP_ROWS + 50))?;
            }
            kind => {
                let version = transaction.begin_statement()?;
                let table = version.table(name).unwrap();
                let rows = some(random, &table, 40);
                let def = table.def.clone();
                drop((version, table));
                match kind {
                    4..7 => drop(transaction.delete(name, &rows)?),
                    _ => drop(transaction.update(name, &rows, &batch(&def, numbers(rows.len())))?),
                }
                transaction.end_statement();
            }
        }
    }
    if random.random_range(0..10) > 0 {
        transaction.commit()?;
    }
    Ok(())
}

/// Takes rows of one table and puts as many into another.
pub(crate) fn transfer(random: &mut StdRng, database: &Arc<Database>, next: &AtomicUsize) -> Result<()> {
    let mut transaction = database.begin()?;
    transaction.set_synchronous(false);
    let (from, to) = if random.random() { ("left", "right") } else { ("right", "left") };
    let version = transaction.begin_statement()?;
    let rows = some(random, &version.table(from).unwrap(), 10);
    drop(version);
    let Changed::Rows(taken) = transaction.delete(from, &rows)? else { return Ok(()) };
    transaction.end_statement();
    let count = taken.true_count();
    let start = next.fetch_add(count, Ordering::Relaxed);
    insert(&mut transaction, to, start..start + count)?;
    transaction.commit().map(drop)
}

/// One change of what exists.
pub(crate) fn define(random: &mut StdRng, database: &Arc<Database>, next: &AtomicUsize) -> Result<()> {
    let number = next.fetch_add(40, Ordering::Relaxed);
    let version = database.version();
    let mine = |table: &Arc<TableVersion>| table.def.name.starts_with('d');
    let names: Vec<String> = version.versions().filter(mine).map(|table| table.def.name.clone()).collect();
    drop(version);
    let mut transaction = database.begin()?;
    let name = names.get(random.random_range(0..names.len().max(1))).cloned().unwrap_or_default();
    match random.random_range(0..8) {
        kind if names.len() < 2 || kind == 0 => {
            let name = format!("d{number}");
            transaction.create_table(&name, columns(), vec![0], placement("far"))?;
            insert(&mut transaction, &name, number..number + 20)?;
        }
        1 => transaction.drop_table(&name)?,
        2 => {
            transaction.truncate(&name)?;
            insert(&mut transaction, &name, number..number + 3)?;
        }
        3 => transaction.rename_table(&name, &format!("d{number}"))?,
        4 => {
            insert(&mut transaction, &name, number..number + 9)?;
            transaction.create_index(&name, by_text())?;
            insert(&mut transaction, &name, number + 10..number + 15)?;
        }
        5 => transaction.set_tablespace(&name, None, "near")?,
        _ => drop(insert(&mut transaction, &name, number..number + 40)?),
    }
    transaction.commit().map(drop)
}

pub(crate) fn refused_write(error: &Error) {
    let codes = [
        SqlState::SERIALIZATION_FAILURE,
        SqlState::UNIQUE_VIOLATION,
        SqlState::DEADLOCK_DETECTED,
        SqlState::UNDEFINED_TABLE,
    ];
    assert!(codes.contains(&error.code()), "{error}");
}

pub(crate) fn check(database: &Database) {
    for checked in database.check(&|| Ok(())).unwrap() {
        assert!(checked.faults.is_empty(), "{}: {:?}", checked.object, checked.faults);
    }
}

/// Threads write, merge and change what exists; at random moments the follower has what the primary had, by each way to its
/// rows, while others read it all the time.
fn follows(seed: u64, moments: usize) {
    let pair = Pair::new();
    let mut follower = pair.follower(2);
    for (name, key) in
        [("ticks", false), ("one", true), ("two", true), ("three", false), ("left", true), ("right", true)]
    {
        create(&pair.primary, name, key);
    }
    let mut transaction = pair.primary.begin().unwrap();
    insert(&mut transaction, "left", 0..200).unwrap();
    transaction.commit().unwrap();
    let next = AtomicUsize::new(1000);
    let (done, looked) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let (pair, next, done, looked) = (&pair, &next, &done, &looked);
        for thread in 0..3u64 {
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed << 8 | thread);
                while !done.load(Ordering::Acquire) {
                    let step = match random.random_range(0..10) {
                        0 if thread == 0 => define(&mut random, &pair.primary, next),
                        1..4 => transfer(&mut random, &pair.primary, next),
                        _ => write(&mut random, &pair.primary, next),
                    };
                    step.unwrap_or_else(|error| refused_write(&error));
                    // The follower's readers have the processors, too.
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
        }
        scope.spawn(move || {
            let mut random = StdRng::seed_from_u64(seed ^ 0x55);
            while !done.load(Ordering::Acquire) {
                let version = pair.primary.version();
                let names: Vec<String> = version.versions().map(|table| table.def.name.clone()).collect();
                drop(version);
                let name = &names[random.random_range(0..names.len())];
                pair.primary.merge(name.as_str()).map_or_else(|error| refused_write(&error), drop);
                pair.primary.vacuum();
                std::thread::sleep(Duration::from_millis(3));
            }
        });
        let look = || {
            scope.spawn(move || {
                while !done.load(Ordering::Acquire) {
                    let version = pair.follower.version();
                    if let (Some(left), Some(right)) = (version.table("left"), version.table("right")) {
                        let count = rows_of(left).len() + rows_of(right).len();
                        assert!(count == 200 || count == 0, "{count} rows as of {:?}", version.view().ts());
                    }
                    drop(version);
                    check(&pair.follower);
                    looked.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let lookers = [look(), look()];
        let mut random = StdRng::seed_from_u64(seed ^ 0x77);
        for _ in 0..moments {
            let (version, mut records) = pair.moment();
            let floor = version.view().ts();
            records.sort_by_key(|record| record.ts);
            // In batches that end anywhere.
            while !records.is_empty() {
                let rest = records.split_off(random.random_range(1..=records.len()));
                let floor = rest.first().map_or(floor, |next| CommitTs(next.ts.0 - 1));
                // They come in the order in which they were written.
                let half = records.len() / 2;
                records.rotate_left(half);
                follower.apply(&pair.follower, Batch { records, floor }).unwrap();
                records = rest;
            }
            follower.apply(&pair.follower, Batch { records, floor }).unwrap();
            let followed = pair.follower.version();
            assert_eq!(followed.view().ts(), floor);
            let (expected, found) = (content(&version), content(&followed));
            let names: Vec<&String> = expected.keys().collect();
            assert_eq!(found.keys().collect::<Vec<_>>(), names, "seed {seed}");
            for name in names {
                assert!(expected[name] == found[name], "seed {seed}: table {name} differs as of {floor:?}");
            }
            for table in version.versions() {
                let of_follower = followed.table(table.def.name.as_str()).unwrap();
                assert_eq!(of_follower.def, table.def);
                assert_eq!(of_follower.table().indexes().len(), table.def.indexes.len());
            }
            drop((version, followed));
            pair.follower.vacuum();
        }
        // However busy the machine is.
        while looked.load(Ordering::Relaxed) == 0 && lookers.iter().all(|looker| !looker.is_finished()) {
            std::thread::yield_now();
        }
        done.store(true, Ordering::Release);
    });
    assert!(looked.load(Ordering::Relaxed) > 0);
    check(&pair.follower);
    check(&pair.primary);
    // Nothing is written before the promotion, and after it all goes on.
    let mut refused = pair.follower.begin().unwrap();
    insert(&mut refused, "one", 1..2).unwrap();
    assert_eq!(refused.commit().unwrap_err().code(), SqlState::READ_ONLY_SQL_TRANSACTION);
    let before = content(&pair.follower.version());
    follower.promote(&pair.follower, CommitTs(0));
    assert!(content(&pair.follower.version()) == before);
    let mut transaction: Transaction = pair.follower.begin().unwrap();
    let start = next.load(Ordering::Relaxed);
    insert(&mut transaction, "one", start..start + 10).unwrap();
    transaction.commit().unwrap();
    for step in 0..20 {
        let mut random = StdRng::seed_from_u64(seed ^ step);
        write(&mut random, &pair.follower, &AtomicUsize::new(start + 100_000 * (1 + step as usize)))
            .unwrap_or_else(|error| refused_write(&error));
    }
    pair.follower.merge("one").unwrap();
    check(&pair.follower);
}

#[test]
fn a_follower_has_what_the_primary_had() {
    for_seeds(1, |seed| follows(seed, 12));
}

/// Also where indexes are filled beside what is applied.
#[test]
fn a_follower_has_what_the_primary_had_while_indexes_are_filled() {
    INDEXED_AT_ONCE.set(Some(IndexedAtOnce { rows: 64, leaves_others: false }));
    for_seeds(1, |seed| follows(seed, 12));
}

/// Apply does not wait for an index of a large table, which keeps keys apart as soon as the follower writes.
#[test]
fn an_index_that_is_made_on_the_primary_does_not_hold_up_apply() {
    INDEXED_AT_ONCE.set(Some(IndexedAtOnce { rows: 64, leaves_others: true }));
    let pair = Pair::new();
    let mut follower = pair.follower(1);
    create(&pair.primary, "ticks", false);
    create(&pair.primary, "t", false);
    let add = |database: &Arc<Database>, numbers: std::ops::Range<usize>| {
        let mut transaction = database.begin().unwrap();
        insert(&mut transaction, "t", numbers).and_then(|_| transaction.commit()).map_err(|error| error.code()).err()
    };
    assert_eq!(add(&pair.primary, 0..2000), None);
    assert!(pair.primary.merge("t").unwrap() > 0);
    assert_eq!(add(&pair.primary, 3000..3100), None);
    while pair.follower.version().table("t").is_none_or(|table| table.main_rows() == 0 || table.delta_rows() > 100) {
        let (version, records) = pair.moment();
        follower.apply(&pair.follower, Batch { records, floor: version.view().ts() }).unwrap();
        pair.follower.vacuum();
    }
    let mut transaction = pair.primary.begin().unwrap();
    insert(&mut transaction, "t", 4000..4100).unwrap();
    transaction.create_index("t", NewIndex { primary: Some(false), ..NewIndex::primary_key([1]) }).unwrap();
    insert(&mut transaction, "t", 5000..5100).unwrap();
    transaction.commit().unwrap();
    assert_eq!(add(&pair.primary, 6000..6100), None);
    let (version, records) = pair.moment();
    follower.apply(&pair.follower, Batch { records, floor: version.view().ts() }).unwrap();
    follower.promote(&pair.follower, CommitTs(0));
    let is_complete = || {
        let version = pair.follower.version();
        let table = version.table("t").unwrap();
        let def = table.def.indexes.iter().find(|index| index.unique).unwrap();
        table.table().index(def.id).unwrap().is_complete_for(table.view())
    };
    for number in [0, 777, 1999, 3050, 4050, 5050, 6050] {
        assert_eq!(add(&pair.follower, number..number + 1), Some(SqlState::UNIQUE_VIOLATION), "{number}");
    }
    assert_eq!(add(&pair.follower, 2000..2010), None);
    assert!(!is_complete());
    check(&pair.follower);
    assert!(is_complete());
    assert_eq!(add(&pair.follower, 2000..2001), Some(SqlState::UNIQUE_VIOLATION));
}

/// What a sequence may have given is in the log before anybody has it, and the follower goes on behind it.
#[test]
fn values_of_sequences_are_not_given_again_by_who_takes_over() {
    let pair = Pair::new();
    let mut follower = pair.follower(1);
    create(&pair.primary, "ticks", false);
    let mut transaction = pair.primary.begin().unwrap();
    let def = SequenceDef {
        id: TableId(0),
        schema: tidepool_base::SchemaId::PUBLIC,
        name: "s".to_owned(),
        data_type: tidepool_base::SqlType::BigInt,
        start: 5,
        increment: 1,
        min: 1,
        max: i64::MAX,
        cache: 1,
        cycle: false,
        owner: None,
        position_id: 0,
    };
    let id = transaction.create_sequence(def).unwrap();
    transaction.commit().unwrap();
    let of = |database: &Database| database.state().catalog.sequence_by_id(id).unwrap().clone();
    let next = |database: &Database| database.next_values(&of(database), 1, false).unwrap()[0];
    let catch_up = |follower: &mut Follower| {
        let (version, records) = pair.moment();
        follower.apply(&pair.follower, Batch { records, floor: version.view().ts() }).unwrap();
    };
    let mut last = 0;
    for round in 0..50 {
        last = next(&pair.primary);
        // Whatever is read of the log from here on has it.
        if round % 20 == 7 {
            catch_up(&mut follower);
            let known = of(&pair.follower).position();
            assert!(known.last_value >= last && known.is_called, "{known:?} after {last}");
        }
    }
    pair.primary.set_sequence(&of(&pair.primary), 1000, true).unwrap();
    catch_up(&mut follower);
    assert_eq!(of(&pair.follower).position().last_value, 1000);
    assert!(last < 1000);
    let given = next(&pair.primary);
    catch_up(&mut follower);
    follower.promote(&pair.follower, CommitTs(0));
    assert!(next(&pair.follower) > given);
}

/// A start passes over what the log says of mains.
#[test]
fn a_start_does_without_the_mains_of_the_log() {
    let pair = Pair::new();
    let _follower = pair.follower(1);
    create(&pair.primary, "t", true);
    let mut transaction = pair.primary.begin().unwrap();
    insert(&mut transaction, "t", 0..500).unwrap();
    transaction.commit().unwrap();
    assert!(pair.primary.merge("t").unwrap() > 0);
    let mut transaction = pair.primary.begin().unwrap();
    insert(&mut transaction, "t", 500..600).unwrap();
    transaction.commit().unwrap();
    create(&pair.primary, "ticks", false);
    assert!(pair.moment().1.iter().any(|record| record.kind == MAIN));
    let before = content(&pair.primary.version());
    let Pair { primary, follower, folder } = pair;
    primary.halt();
    drop((_follower, primary, follower));
    let mut config = in_folder(&folder.path().join("data"));
    config.log.segment_bytes = SEGMENT_BYTES;
    assert!(content(&Database::open(config).unwrap().version()) == before);
}
