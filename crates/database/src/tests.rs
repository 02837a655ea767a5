//! The database as a whole: transactions, loading, the data folder.

use crate::text::{TextReader, TextSettings, TextWriter};
use crate::{
    Access, AccessObject, Config, Database, Grant, Isolation, NewIndex, Patience, Privileges, RoleDef, TableSize,
    TablespaceChange, Transaction,
};
use arrow_array::RecordBatch;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result, RoleId, SqlState, SqlType};
use tidepool_device::Location;
use tidepool_log::files::{Fault, Files, Operation, SimulatedFiles};
use tidepool_table::{ColumnDef, Placement, ROW_GROUP_ROWS, ScanRequest, TableDef, TableScan, TableVersion};
use tidepool_tablespace::TablespaceConfig;

const MIB: u64 = 1 << 20;

pub(crate) fn memory() -> Config {
    Config { threads: 2, ..Config::in_memory(256 * MIB, 256 * MIB) }
}

pub(crate) fn in_folder(folder: &Path) -> Config {
    Config { data_dir: Some(folder.to_owned()), ..memory() }
}

pub(crate) fn near() -> Placement {
    placement("near")
}

pub(crate) fn placement(space: &str) -> Placement {
    Placement { main: space.to_owned(), delta: space.to_owned(), columns: Default::default() }
}

fn column(name: &str, sql_type: SqlType, nullable: bool) -> ColumnDef {
    ColumnDef { nullable, ..ColumnDef::new(name, sql_type) }
}

pub(crate) fn columns() -> Vec<ColumnDef> {
    vec![column("a", SqlType::Integer, false), column("b", SqlType::Varchar { length_max: Some(20) }, true)]
}

fn create(transaction: &mut Transaction, name: &str) {
    transaction.create_table(name, columns(), vec![], near()).unwrap();
}

/// Rows `(number, "row number")`.
pub(crate) fn batch(table: &TableVersion, numbers: std::ops::Range<usize>) -> RecordBatch {
    let settings = TextSettings::default();
    let mut a = TextReader::new(SqlType::Integer, &settings);
    let mut b = TextReader::new(SqlType::Varchar { length_max: Some(20) }, &settings);
    for number in numbers {
        a.append(&number.to_string()).unwrap();
        if number % 7 == 3 { b.append_null() } else { b.append(&format!("row {number}")).unwrap() }
    }
    RecordBatch::try_new(table.def.arrow_schema(), vec![a.finish(), b.finish()]).unwrap()
}

/// Rows of texts.
pub(crate) fn batch_of(def: &TableDef, rows: &[Vec<Option<String>>]) -> RecordBatch {
    let settings = TextSettings::default();
    let columns = def.columns.iter().enumerate().map(|(place, column)| {
        let mut reader = TextReader::new(column.sql_type, &settings);
        for row in rows {
            match &row[place] {
                Some(text) => reader.append(text).unwrap(),
                None => reader.append_null(),
            }
        }
        reader.finish()
    });
    RecordBatch::try_new(def.arrow_schema(), columns.collect()).unwrap()
}

pub(crate) fn insert(transaction: &mut Transaction, table: &str, numbers: std::ops::Range<usize>) -> Result<u64> {
    let mut writer = transaction.writer(table)?;
    let version = writer.table().clone();
    let mut start = numbers.start;
    while start < numbers.end {
        let end = numbers.end.min(start + 8192);
        writer.write(&batch(&version, start..end))?;
        start = end;
    }
    transaction.absorb(writer)
}

pub(crate) fn insert_and_commit(database: &Arc<Database>, table: &str, numbers: std::ops::Range<usize>) {
    let mut transaction = database.begin().unwrap();
    insert(&mut transaction, table, numbers).unwrap();
    transaction.commit().unwrap();
}

pub(crate) fn database_with_table(config: Config) -> Arc<Database> {
    let database = Database::open(config).unwrap();
    let mut transaction = database.begin().unwrap();
    create(&mut transaction, "t");
    transaction.commit().unwrap();
    database
}

/// The rows of a table as text, sorted.
pub(crate) fn rows(database: &Database, table: &str) -> Vec<String> {
    rows_of(database.version().table(table).expect("the table exists"))
}

pub(crate) fn rows_of(version: Arc<TableVersion>) -> Vec<String> {
    let mut rows = scanned(version);
    rows.sort();
    rows
}

/// In the order in which one reader finds them.
fn scanned(version: Arc<TableVersion>) -> Vec<String> {
    let request = ScanRequest {
        projection: (0..version.def.columns.len()).collect(),
        filters: vec![],
        dynamic: None,
        limit: None,
        batch_rows: 4096,
        forms: Vec::new(),
    };
    let types: Vec<SqlType> = version.def.columns.iter().map(|column| column.sql_type).collect();
    let mut reader = TableScan::new(version, request).reader();
    let mut rows = Vec::new();
    while let Some(batch) = reader.next_batch().unwrap() {
        let writers: Vec<TextWriter> = batch
            .columns()
            .iter()
            .zip(&types)
            .map(|(array, sql_type)| TextWriter::new(array, *sql_type, &TextSettings::default()).unwrap())
            .collect();
        for row in 0..batch.num_rows() {
            let mut line = Vec::new();
            for writer in &writers {
                if !writer.write(row, &mut line) {
                    line.extend_from_slice(b"NULL");
                }
                line.push(b'|');
            }
            rows.push(String::from_utf8(line).unwrap());
        }
    }
    rows
}

fn lines(numbers: impl Iterator<Item = usize>) -> Vec<String> {
    let line = |number: usize| {
        let text = if number % 7 == 3 { "NULL".to_owned() } else { format!("row {number}") };
        format!("{number}|{text}|")
    };
    numbers.map(line).collect()
}

fn expected(numbers: impl Iterator<Item = usize>) -> Vec<String> {
    let mut rows = lines(numbers);
    rows.sort();
    rows
}

fn used_bytes(database: &Database) -> u64 {
    database.tablespaces().list().iter().map(|space| space.usage().used_bytes).sum()
}

/// Ends a database without a checkpoint, as a kill does. Its folder is free and its host has left the pool once this returns: threads of
/// the database may hold it at the moment of a drop, and would let go of both some time after it.
pub(crate) fn end(database: Arc<Database>) {
    database.halt();
    if let Some(roles) = &database.roles {
        roles.stop();
    }
    drop(database);
}

/// What a transaction leaves behind is freed in the background.
fn wait_until_freed(database: &Database, most: u64) {
    let patience = Instant::now() + Duration::from_secs(60);
    while used_bytes(database) > most {
        assert!(Instant::now() < patience, "{} bytes, not {most}", used_bytes(database));
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn changes_show_at_commit_and_not_before() {
    let database = Database::open(memory()).unwrap();
    let mut writer = database.begin().unwrap();
    create(&mut writer, "t");
    insert(&mut writer, "t", 0..100).unwrap();
    assert!(database.version().table("t").is_none());
    assert_eq!(rows_of(writer.version().table("t").unwrap()), expected(0..100));
    let before = database.version().commit_ts;
    let after = writer.commit().unwrap();
    assert!(after > before);
    assert_eq!(rows(&database, "t"), expected(0..100));

    let old = database.version();
    insert_and_commit(&database, "t", 100..150);
    assert_eq!(rows_of(old.table("t").unwrap()), expected(0..100), "a reader's version does not change");
    assert_eq!(rows(&database, "t"), expected(0..150));
}

#[test]
fn what_is_rolled_back_leaves_nothing() {
    let database = database_with_table(memory());
    let before = used_bytes(&database);
    let mut transaction = database.begin().unwrap();
    insert(&mut transaction, "t", 0..200_000).unwrap();
    create(&mut transaction, "u");
    assert!(used_bytes(&database) > before);
    transaction.rollback();
    let mut transaction = database.begin().unwrap();
    let mut writer = transaction.writer("t").unwrap();
    let table = writer.table().clone();
    writer.write(&batch(&table, 0..8192)).unwrap();
    drop(writer);
    drop(transaction);
    // But for the pages that pointed at its rows.
    wait_until_freed(&database, before + (256 << 10));
    assert!(database.locks().is_empty());
    assert!(rows(&database, "t").is_empty());
    assert!(database.version().table("u").is_none());
}

#[test]
fn a_savepoint_brings_back_what_was_there() {
    let database = database_with_table(memory());
    let mut transaction = database.begin().unwrap();
    insert(&mut transaction, "t", 0..3).unwrap();
    let savepoint = transaction.savepoint();
    insert(&mut transaction, "t", 3..ROW_GROUP_ROWS + 10).unwrap();
    create(&mut transaction, "later");
    transaction.rename_table("t", "renamed").unwrap();
    transaction.roll_back_to(&savepoint);
    assert!(transaction.version().table("later").is_none());
    assert!(transaction.version().table("renamed").is_none());
    // Its name is free for others again; that of the table written before is not.
    let mut other = database.begin().unwrap();
    other.lock_name("later", &|| Err(Error::internal("locked"))).unwrap();
    assert!(other.lock_name("t", &|| Err(Error::internal("locked"))).is_err());
    other.rollback();
    insert(&mut transaction, "t", 3..5).unwrap();
    transaction.roll_back_to(&savepoint);
    insert(&mut transaction, "t", 7..8).unwrap();
    transaction.commit().unwrap();
    assert_eq!(rows(&database, "t"), expected([0, 1, 2, 7].into_iter()));
}

#[test]
fn loads_become_row_groups_and_small_inserts_delta() {
    let database = database_with_table(memory());
    insert_and_commit(&database, "t", 0..ROW_GROUP_ROWS + 20_000);
    let size = TableSize::of(&database.version().table("t").unwrap());
    assert_eq!((size.row_groups, size.delta_rows), (2, 0));
    assert!(size.main_bytes() < size.main_raw_bytes());
    let start = ROW_GROUP_ROWS + 20_000;
    for number in 0..300 {
        insert_and_commit(&database, "t", start + number..start + number + 1);
    }
    let size = TableSize::of(&database.version().table("t").unwrap());
    assert_eq!(size.delta_rows, 300);
    assert_eq!(rows(&database, "t"), expected(0..start + 300));
    assert_eq!(database.merge("t").unwrap(), 300);
    assert_eq!(database.merge("t").unwrap(), 0);
    let size = TableSize::of(&database.version().table("t").unwrap());
    assert_eq!((size.delta_rows, size.row_groups), (0, 3));
    assert_eq!(rows(&database, "t"), expected(0..start + 300));
}

#[test]
fn loads_leave_rows_in_their_order() {
    let database = database_with_table(memory());
    let loads = [0, ROW_GROUP_ROWS + 7000, 2 * ROW_GROUP_ROWS + 9000, 2 * ROW_GROUP_ROWS + 9500, 4 * ROW_GROUP_ROWS];
    loads.windows(2).for_each(|ends| insert_and_commit(&database, "t", ends[0]..ends[1]));
    database.merge("t").unwrap();
    assert_eq!(scanned(database.version().table("t").unwrap()), lines(0..4 * ROW_GROUP_ROWS));
}

#[test]
fn much_delta_is_merged_by_itself() {
    let database = database_with_table(memory());
    for piece in 0..14 {
        insert_and_commit(&database, "t", piece * 10_000..(piece + 1) * 10_000);
    }
    database.tend_rows();
    let size = TableSize::of(&database.version().table("t").unwrap());
    assert!(size.main_rows >= ROW_GROUP_ROWS as u64 && size.delta_rows < ROW_GROUP_ROWS as u64);
    assert_eq!(rows(&database, "t"), expected(0..140_000));
}

#[test]
fn constraints_are_checked_where_rows_enter() {
    let database = database_with_table(memory());
    let mut transaction = database.begin().unwrap();
    let mut writer = transaction.writer("t").unwrap();
    let table = writer.table().clone();
    let settings = TextSettings::default();
    let row = |a: Option<&str>, b: &str| {
        let mut first = TextReader::new(SqlType::Integer, &settings);
        match a {
            Some(a) => first.append(a).unwrap(),
            None => first.append_null(),
        }
        let mut second = TextReader::new(SqlType::Text, &settings);
        second.append(b).unwrap();
        let schema = arrow_schema::Schema::new(
            table
                .def
                .arrow_schema()
                .fields()
                .iter()
                .map(|field| field.as_ref().clone().with_nullable(true))
                .collect::<Vec<_>>(),
        );
        RecordBatch::try_new(Arc::new(schema), vec![first.finish(), second.finish()]).unwrap()
    };
    let error = writer.write(&row(None, "x")).unwrap_err();
    assert_eq!(error.code().code(), "23502");
    assert_eq!(error.message(), "null value in column \"a\" of relation \"t\" violates not-null constraint");
    assert_eq!(error.detail(), Some("Failing row contains (null, x)."));
    let error = writer.write(&row(Some("1"), &"x".repeat(21))).unwrap_err();
    assert_eq!(error.message(), "value too long for type character varying(20)");
    writer.write(&row(Some("1"), &format!("{}   ", "x".repeat(20)))).unwrap();
    transaction.absorb(writer).unwrap();
    transaction.commit().unwrap();
    assert_eq!(rows(&database, "t"), [format!("1|{}|", "x".repeat(20))]);
}

#[test]
fn names_are_checked() {
    let database = database_with_table(memory());
    let mut transaction = database.begin().unwrap();
    let code = |result: Result<()>| result.unwrap_err().code().code();
    assert_eq!(code(transaction.create_table("t", columns(), vec![], near()).map(drop)), "42P07");
    assert_eq!(code(transaction.create_table("u", columns(), vec![], placement("moon")).map(drop)), "42704");
    let twice = vec![column("a", SqlType::Text, true), column("a", SqlType::Text, true)];
    assert_eq!(code(transaction.create_table("u", twice, vec![], near()).map(drop)), "42701");
    assert_eq!(code(transaction.create_table(&"x".repeat(64), columns(), vec![], near()).map(drop)), "42622");
    assert_eq!(code(transaction.drop_table("u")), "42P01");
    assert_eq!(code(transaction.truncate("u")), "42P01");
    assert_eq!(code(transaction.writer("u").map(drop)), "42P01");
    assert_eq!(code(transaction.set_tablespace("t", None, "moon")), "42704");
    assert_eq!(code(transaction.set_tablespace("t", Some("c"), "far")), "42703");
    create(&mut transaction, "u");
    assert_eq!(code(transaction.rename_table("u", "t")), "42P07");
    transaction.rename_table("u", "v").unwrap();
    transaction.drop_table("t").unwrap();
    transaction.rename_table("v", "t").unwrap();
    transaction.rename_column("t", "b", "c").unwrap();
    transaction.commit().unwrap();
    let version = database.version();
    assert_eq!(version.tables.len(), 1);
    assert_eq!(version.table("t").unwrap().def.columns[1].name, "c");
}

#[test]
fn writers_wait_for_each_other_and_a_cycle_is_an_error() {
    let database = database_with_table(memory());
    let mut transaction = database.begin().unwrap();
    create(&mut transaction, "u");
    transaction.commit().unwrap();

    let mut first = database.begin().unwrap();
    first.lock_table("t", &|| Ok(())).unwrap();
    let mut second = database.begin().unwrap();
    second.lock_table("u", &|| Ok(())).unwrap();
    let asked = AtomicUsize::new(0);
    let cancelled = || match asked.fetch_add(1, Ordering::Relaxed) {
        3 => Err(Error::new(SqlState::QUERY_CANCELED, "canceling statement due to user request")),
        _ => Ok(()),
    };
    assert_eq!(second.lock_table("t", &cancelled).unwrap_err().code().code(), "57014");
    assert_eq!(database.locks().iter().filter(|lock| !lock.granted).count(), 0);

    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let locked = second.lock_table("t", &|| Ok(()));
            drop(second);
            locked
        });
        while !database.locks().iter().any(|lock| !lock.granted) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let error = first.lock_table("u", &|| Ok(())).unwrap_err();
        assert_eq!((error.code().code(), error.message()), ("40P01", "deadlock detected"));
        drop(first);
        waiter.join().unwrap().unwrap();
    });
    assert!(database.locks().is_empty());
}

#[test]
fn two_writers_of_one_table_lose_nothing() {
    let database = database_with_table(memory());
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let database = &database;
            scope.spawn(move || {
                for piece in 0..25 {
                    let start = (thread * 25 + piece) * 10;
                    insert_and_commit(database, "t", start..start + 10);
                }
            });
        }
    });
    assert_eq!(rows(&database, "t"), expected(0..1000));
}

#[test]
fn a_waiter_finds_the_table_gone() {
    let database = database_with_table(memory());
    let mut dropper = database.begin().unwrap();
    dropper.drop_table("t").unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| database.begin().unwrap().lock_table("t", &|| Ok(())));
        while !database.locks().iter().any(|lock| !lock.granted) {
            std::thread::sleep(Duration::from_millis(1));
        }
        dropper.commit().unwrap();
        assert_eq!(waiter.join().unwrap().unwrap_err().code().code(), "42P01");
    });
}

#[test]
fn tables_and_columns_move_between_tablespaces() {
    let database = database_with_table(memory());
    insert_and_commit(&database, "t", 0..150_000);
    insert_and_commit(&database, "t", 150_000..150_010);
    let main_in = |space: &str| {
        let ledger = database.tablespaces().get(space).unwrap().ledger();
        ledger.iter().filter(|row| row.purpose.name() == "main").map(|row| row.bytes).sum::<u64>()
    };
    let reader = database.version();
    assert_eq!(main_in("far"), 0);
    let mut transaction = database.begin().unwrap();
    transaction.set_tablespace("t", None, "far").unwrap();
    transaction.commit().unwrap();
    assert!(main_in("far") > 0 && main_in("near") > 0, "the old version is still being read");
    drop(reader);
    assert_eq!(main_in("near"), 0);
    assert_eq!(rows(&database, "t"), expected(0..150_010));
    let mut transaction = database.begin().unwrap();
    transaction.set_tablespace("t", Some("b"), "near").unwrap();
    transaction.commit().unwrap();
    let size = TableSize::of(&database.version().table("t").unwrap());
    assert_eq!((size.columns[0].tablespace.as_str(), size.columns[1].tablespace.as_str()), ("far", "near"));
    assert!(main_in("far") > 0 && main_in("near") > 0);
    assert_eq!(rows(&database, "t"), expected(0..150_010));
    // A move that is interrupted leaves the table where it was.
    let before = (main_in("near"), main_in("far"));
    let mut transaction = database.begin().unwrap();
    transaction.set_patience(Arc::new(Cancelled));
    assert_eq!(transaction.set_tablespace("t", None, "near").unwrap_err().code().code(), "57014");
    drop(transaction);
    assert_eq!((main_in("near"), main_in("far")), before);
}

#[test]
fn a_statement_ends_within_a_batch_that_it_writes() {
    let database = database_with_table(memory());
    let mut transaction = database.begin().unwrap();
    let table = transaction.writer("t").unwrap().table().clone();
    let ids = transaction.insert_checked(&"t".into(), &batch(&table, 0..1000)).unwrap();
    transaction.commit().unwrap();
    for work in ["update", "delete", "insert"] {
        let mut transaction = database.begin().unwrap();
        transaction.set_patience(Arc::new(Cancelled));
        let ended = match work {
            "update" => transaction.update("t", &ids, &batch(&table, 1000..2000)).map(drop),
            "delete" => transaction.delete("t", &ids).map(drop),
            _ => insert(&mut transaction, "t", 1000..2000).map(drop),
        };
        assert_eq!(ended.unwrap_err().code().code(), "57014", "{work}");
        assert!(transaction.rows_written() < 100, "{} rows", transaction.rows_written());
    }
    assert_eq!(rows(&database, "t"), expected(0..1000));
}

#[test]
fn a_full_tablespace_ends_the_load_and_nothing_else() {
    let database = database_with_table(Config { threads: 2, ..Config::in_memory(4 * MIB, 64 * MIB) });
    insert_and_commit(&database, "t", 0..1000);
    let before = used_bytes(&database);
    let mut transaction = database.begin().unwrap();
    let loaded = (|| {
        let mut writer = transaction.writer("t")?;
        let table = writer.table().clone();
        for piece in 0..400 {
            writer.write(&batch(&table, piece * 8192..(piece + 1) * 8192))?;
        }
        transaction.absorb(writer)
    })();
    assert_eq!(loaded.unwrap_err().code().code(), "53200");
    drop(transaction);
    // Row groups that were under way end on their own threads.
    wait_until_freed(&database, before);
    assert_eq!(used_bytes(&database), before);
    assert_eq!(rows(&database, "t"), expected(0..1000));
}

#[test]
fn everything_committed_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let database = database_with_table(in_folder(folder.path()));
    insert_and_commit(&database, "t", 0..150_000);
    insert_and_commit(&database, "t", 150_000..150_500);
    database
        .create_tablespace(TablespaceConfig {
            name: "extra".to_owned(),
            location: Location::Anon,
            size_bytes: Some(32 * MIB),
            profile: None,
            profiles: Vec::new(),
            huge_pages: false,
            populate_bytes: 0,
        })
        .unwrap();
    let mut transaction = database.begin().unwrap();
    transaction.create_table("u", columns(), vec![0], placement("extra")).unwrap();
    insert(&mut transaction, "u", 0..10).unwrap();
    transaction.set_tablespace("t", Some("b"), "far").unwrap();
    transaction.commit().unwrap();
    let mut transaction = database.begin().unwrap();
    let ada = RoleDef { password: Some("SCRAM-SHA-256$x".to_owned()), ..RoleDef::new(RoleId(0), "ada") };
    let ada = transaction.create_role(ada).unwrap();
    let table = AccessObject::Relation(transaction.version().table("u").unwrap().def.id);
    let mut access = Access::of(ada);
    access.columns.insert(
        1,
        vec![Grant {
            grantee: RoleId::PUBLIC,
            grantor: ada,
            privileges: Privileges::SELECT,
            options: Privileges::NONE,
        }],
    );
    transaction.set_access(table.clone(), access.clone());
    transaction.commit().unwrap();
    let (commit_ts, table_id) = (database.version().commit_ts, database.next_table_id());
    database.close().unwrap();
    drop(database);

    let database = Database::open(in_folder(folder.path())).unwrap();
    assert!(database.version().commit_ts >= commit_ts);
    assert_eq!(rows(&database, "t"), expected(0..150_500));
    assert_eq!(rows(&database, "u"), expected(0..10));
    let version = database.version();
    let (t, u) = (version.table("t").unwrap(), version.table("u").unwrap());
    assert_eq!((t.placement.column(0), t.placement.column(1), u.placement.main.as_str()), ("near", "far", "extra"));
    assert_eq!(u.def.primary_key, [0]);
    assert_eq!(version.catalog.role("ada").unwrap().password.as_deref(), Some("SCRAM-SHA-256$x"));
    assert_eq!((version.catalog.access(&table), version.catalog.owner_of(&table)), (access, ada));
    assert!(database.next_table_id() >= table_id);
    assert_eq!(database.drop_tablespace("extra").unwrap_err().code().code(), "55006");
    let mut transaction = database.begin().unwrap();
    transaction.drop_table("u").unwrap();
    transaction.commit().unwrap();
    let weak = Arc::downgrade(u.rows());
    drop((version, t, u));
    assert_eq!(weak.strong_count(), 0);
    database.drop_tablespace("extra").unwrap();
    insert_and_commit(&database, "t", 150_500..150_600);
    end(database);
    assert!(Database::open(in_folder(folder.path())).unwrap().tablespaces().get("extra").is_err());
}

#[test]
fn a_killed_process_keeps_what_was_made_durable() {
    let folder = tempfile::tempdir().unwrap();
    let database = database_with_table(in_folder(folder.path()));
    insert_and_commit(&database, "t", 0..20_000);
    insert_and_commit(&database, "t", 20_000..20_010);
    database.checkpoint().unwrap();
    let mut open = database.begin().unwrap();
    insert(&mut open, "t", 20_010..60_000).unwrap();
    std::fs::write(folder.path().join("rows/main-00000000000000ff.rows.7.new"), b"half a file").unwrap();
    drop(open);
    end(database);
    let database = Database::open(in_folder(folder.path())).unwrap();
    assert_eq!(rows(&database, "t"), expected(0..20_010));
    assert!(!folder.path().join("rows/main-00000000000000ff.rows.7.new").exists());
}

#[test]
fn files_are_removed_when_nothing_names_them() {
    let folder = tempfile::tempdir().unwrap();
    let count = || std::fs::read_dir(folder.path().join("rows")).unwrap().count();
    let database = database_with_table(in_folder(folder.path()));
    insert_and_commit(&database, "t", 0..20_000);
    assert_eq!(count(), 1);
    for number in 0..10 {
        insert_and_commit(&database, "t", number..number + 1);
        database.checkpoint().unwrap();
    }
    assert!(count() < 8);
    let mut transaction = database.begin().unwrap();
    transaction.truncate("t").unwrap();
    transaction.commit().unwrap();
    // The manifest still names them, until the next checkpoint.
    assert!(count() > 0);
    database.checkpoint().unwrap();
    assert_eq!(count(), 0);
}

#[test]
fn one_process_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let database = Database::open(in_folder(folder.path())).unwrap();
    let error = Database::open(in_folder(folder.path())).unwrap_err();
    assert_eq!(error.code().code(), "55006");
    assert!(error.message().contains("is in use by another process"));
    end(database);
    Database::open(in_folder(folder.path())).unwrap();
}

#[test]
fn foreign_folders_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("thesis.txt"), b"mine").unwrap();
    let error = Database::open(in_folder(folder.path())).unwrap_err();
    assert_eq!(error.code().code(), "55000");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    let file = folder.path().join("thesis.txt");
    assert!(Database::open(in_folder(&file)).is_err());
}

/// All files of a folder, deepest last.
fn all_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(all_files(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}

#[test]
fn damaged_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let database = database_with_table(in_folder(folder.path()));
    insert_and_commit(&database, "t", 0..20_000);
    insert_and_commit(&database, "t", 20_000..20_100);
    database.close().unwrap();
    drop(database);
    let files: Vec<PathBuf> = all_files(folder.path())
        .into_iter()
        .filter(|path| {
            !path.ends_with("LOCK") && !path.ends_with("ACCESS") && !path.starts_with(folder.path().join("log"))
        })
        .collect();
    assert_eq!(files.len(), 4, "{files:?}");
    for path in &files {
        let whole = std::fs::read(path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let refused = |what: &str| {
            let error = Database::open(in_folder(folder.path())).map(drop).unwrap_err();
            assert!(error.message().contains(name), "{what}: {error:?}");
            error.code().code()
        };
        for length in [0, 1, 7, 20, whole.len() / 2, whole.len() - 1] {
            std::fs::write(path, &whole[..length]).unwrap();
            assert_eq!(refused("truncated"), "XX001");
        }
        for at in (0..whole.len()).step_by((whole.len() / 60).max(1)) {
            let mut wrong = whole.clone();
            wrong[at] ^= 1;
            std::fs::write(path, &wrong).unwrap();
            let code = refused("one bit flipped");
            assert!(code == "XX001" || code == "55000", "{code}");
        }
        std::fs::write(path, b"some other program's file, with quite a lot of text in it to be read").unwrap();
        assert_eq!(refused("foreign"), "XX001");
        let mut longer = whole.clone();
        longer.extend_from_slice(b"tail");
        std::fs::write(path, &longer).unwrap();
        assert_eq!(refused("longer"), "XX001");
        std::fs::remove_file(path).unwrap();
        assert_eq!(refused("missing"), "XX001");
        std::fs::write(path, &whole).unwrap();
    }
    assert_eq!(rows(&Database::open(in_folder(folder.path())).unwrap(), "t"), expected(0..20_100));
    // Another version's manifest.
    let manifest = folder.path().join("MANIFEST");
    let text = std::fs::read_to_string(&manifest).unwrap().replacen("MANIFEST 1", "MANIFEST 2", 1);
    std::fs::write(&manifest, text).unwrap();
    let error = Database::open(in_folder(folder.path())).map(drop).unwrap_err();
    assert_eq!(error.code().code(), "55000");
    assert!(error.message().contains("of another version"));
}

/// A simulated disk, on which a fault of the kind can be injected.
fn on_disk(disk: &SimulatedFiles) -> Arc<Database> {
    let config = in_folder("/data".as_ref());
    disk.create_folder("/data".as_ref()).unwrap();
    Database::open_with(config, Arc::new(disk.clone()), None).unwrap()
}

fn fill_up(disk: &SimulatedFiles, operation: Operation, after: u64) {
    disk.inject(Fault { operation, after, times: u64::MAX, errno: 28 });
}

#[test]
fn a_full_disk_refuses_the_commit_and_keeps_the_rest() {
    let disk = SimulatedFiles::new(1);
    let database = on_disk(&disk);
    let mut transaction = database.begin().unwrap();
    create(&mut transaction, "t");
    insert(&mut transaction, "t", 0..20_000).unwrap();
    transaction.commit().unwrap();
    insert_and_commit(&database, "t", 20_000..20_005);
    database.checkpoint().unwrap();
    let rows_folder = Path::new("/data/rows");
    let (files, used, before) = (disk.list(rows_folder).unwrap(), used_bytes(&database), database.state());
    // Whichever row group cannot be written.
    for after in 0..2 {
        fill_up(&disk, Operation::Create, after);
        let mut transaction = database.begin().unwrap();
        insert(&mut transaction, "t", 100_000..100_000 + 2 * ROW_GROUP_ROWS).unwrap();
        let error = transaction.commit().unwrap_err();
        assert_eq!(error.code().code(), "53100", "{error:?}");
        assert_eq!(database.version().commit_ts, before.commit_ts);
        assert_eq!(disk.list(rows_folder).unwrap(), files);
        wait_until_freed(&database, used + (256 << 10));
        assert_eq!(database.create_tablespace(space("extra")).unwrap_err().code().code(), "53100");
        assert!(database.tablespaces().get("extra").is_err());
        disk.clear_faults();
    }
    // Small commits go to the log, which has room.
    fill_up(&disk, Operation::Create, 0);
    insert_and_commit(&database, "t", 20_005..20_010);
    assert_eq!(database.checkpoint().unwrap_err().code().code(), "53100");
    assert!(database.stats().dirty);
    disk.clear_faults();
    database.checkpoint().unwrap();
    end(database);
    assert_eq!(rows(&on_disk(&disk), "t"), expected(0..20_010));
}

fn space(name: &str) -> TablespaceConfig {
    TablespaceConfig {
        name: name.to_owned(),
        location: Location::Anon,
        size_bytes: Some(16 * MIB),
        profile: None,
        profiles: Vec::new(),
        huge_pages: false,
        populate_bytes: 0,
    }
}

#[test]
fn a_checkpoint_is_made_in_the_background() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = in_folder(folder.path());
    config.log.checkpoint_timeout = Duration::from_secs(1);
    let database = database_with_table(config);
    insert_and_commit(&database, "t", 0..10);
    assert!(database.stats().dirty);
    while database.stats().dirty {
        std::thread::sleep(Duration::from_millis(100));
    }
    // The background thread may still be writing.
    end(database);
    assert_eq!(rows(&Database::open(in_folder(folder.path())).unwrap(), "t"), expected(0..10));
}

#[test]
fn altered_tablespaces_are_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let alter = |database: &Arc<Database>, name: &str, change: TablespaceChange| {
        database.alter_tablespace(name, &change, &()).unwrap();
    };
    let size = |mib: u64| TablespaceChange::Size { bytes: mib * MIB };
    let sizes = |database: &Database| -> Vec<u64> {
        database.tablespaces().list().iter().map(|space| space.size_bytes() / MIB).collect()
    };
    {
        let database = Database::open(in_folder(folder.path())).unwrap();
        database.create_tablespace(space("pool")).unwrap();
        alter(&database, "far", size(64));
        alter(&database, "pool", size(48));
        let stripe = "anon:*2".parse().unwrap();
        let profile = Some("cxl-asic".to_owned());
        alter(&database, "pool", TablespaceChange::AddLocation { stripe, profile });
        assert_eq!(sizes(&database), [256, 64, 144]);
    }
    {
        let database = Database::open(in_folder(folder.path())).unwrap();
        assert_eq!(sizes(&database), [256, 64, 144]);
        let config = database.tablespaces().get("pool").unwrap().config();
        assert_eq!(config.location.to_string(), "anon:*1, anon:*2");
        assert_eq!(config.profile_names().as_deref(), Some("none+cxl-asic"));
        alter(&database, "pool", TablespaceChange::DropLocation { location: Location::Anon });
        alter(&database, "far", size(32));
    }
    {
        let database = Database::open(in_folder(folder.path())).unwrap();
        assert_eq!(sizes(&database), [256, 32, 48]);
        assert!(database.tablespaces().get("pool").unwrap().pacer().is_none());
    }
    // Configured anew, a tablespace is what the configuration says.
    let mut configured = in_folder(folder.path());
    configured.far.size_bytes = Some(128 * MIB);
    assert_eq!(sizes(&Database::open(configured).unwrap()), [256, 128, 48]);
    assert_eq!(sizes(&Database::open(in_folder(folder.path())).unwrap()), [256, 256, 48]);
}

#[test]
fn altered_paged_tablespaces_are_found_again() {
    if let Err(error) = tidepool_device::paged::available() {
        tidepool_base::cannot_test(&error);
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let configured = || {
        let mut config = in_folder(folder.path());
        config.far.location = "paged:25%:anon:".parse().unwrap();
        config
    };
    let state = |database: &Database| -> Vec<(u64, u64)> {
        let spaces = ["far", "pool"].map(|name| database.tablespaces().get(name).unwrap());
        spaces.map(|space| (space.size_bytes() / MIB, space.paged().unwrap().cache_bytes() / MIB)).to_vec()
    };
    {
        let database = Database::open(configured()).unwrap();
        let location = "paged:4MB:anon:".parse().unwrap();
        database.create_tablespace(TablespaceConfig { location, ..space("pool") }).unwrap();
        database.alter_tablespace("far", &TablespaceChange::Size { bytes: 64 * MIB }, &()).unwrap();
        let change = TablespaceChange::Cache { cache: "10%".parse().unwrap(), size_bytes: Some(80 * MIB) };
        database.alter_tablespace("pool", &change, &()).unwrap();
        assert_eq!(state(&database), [(64, 16), (80, 8)]);
    }
    assert_eq!(state(&Database::open(configured()).unwrap()), [(64, 16), (80, 8)]);
    let mut anew = configured();
    anew.far.location = "paged:50%:anon:".parse().unwrap();
    assert_eq!(state(&Database::open(anew).unwrap()), [(256, 128), (80, 8)]);
}

#[test]
fn what_was_dropped_just_before_makes_room() {
    let config = Config { threads: 2, ..Config::in_memory(256 * MIB, 64 * MIB) };
    let database = Database::open(config).unwrap();
    let smaller = TablespaceChange::Size { bytes: 4 * MIB };
    for merges in [false, true] {
        let mut transaction = database.begin().unwrap();
        transaction.create_table("t", columns(), vec![], placement("far")).unwrap();
        transaction.create_index("t", NewIndex { unique: false, primary: None, ..NewIndex::primary_key([1]) }).unwrap();
        transaction.commit().unwrap();
        for part in 0..16 {
            insert_and_commit(&database, "t", part * 8_000..(part + 1) * 8_000);
        }
        if merges {
            database.merge("t").unwrap();
        }
        let error = database.alter_tablespace("far", &smaller, &()).unwrap_err();
        assert_eq!(error.code(), SqlState::OUT_OF_MEMORY);
        let mut transaction = database.begin().unwrap();
        transaction.drop_table("t").unwrap();
        transaction.commit().unwrap();
        database.alter_tablespace("far", &smaller, &()).unwrap();
        database.alter_tablespace("far", &TablespaceChange::Size { bytes: 64 * MIB }, &()).unwrap();
    }
}

#[test]
fn a_change_that_cannot_be_recorded_is_not_made() {
    let disk = SimulatedFiles::new(1);
    let database = on_disk(&disk);
    fill_up(&disk, Operation::Create, 0);
    for bytes in [512 * MIB, 16 * MIB] {
        let error = database.alter_tablespace("far", &TablespaceChange::Size { bytes }, &()).unwrap_err();
        assert_eq!(error.code().code(), "53100");
        assert_eq!(database.tablespaces().far().size_bytes(), 256 * MIB);
    }
    disk.clear_faults();
    database.alter_tablespace("far", &TablespaceChange::Size { bytes: 16 * MIB }, &()).unwrap();
    assert_eq!(database.tablespaces().far().size_bytes(), 16 * MIB);
}

struct Cancelled;

impl Patience for Cancelled {
    fn check(&self) -> Result<()> {
        Err(Error::new(SqlState::QUERY_CANCELED, "cancelled"))
    }

    fn begin_wait(&self) -> Box<dyn Fn() -> Result<()> + '_> {
        Box::new(|| self.check())
    }
}

/// Rows that were committed but not saved yet are saved with a table that is renamed meanwhile.
#[test]
fn a_renamed_table_keeps_rows_that_were_not_saved_yet() {
    let folder = tempfile::tempdir().unwrap();
    let database = database_with_table(in_folder(folder.path()));
    insert_and_commit(&database, "t", 0..10);
    database.checkpoint().unwrap();
    end(database);
    let database = Database::open(in_folder(folder.path())).unwrap();
    insert_and_commit(&database, "t", 10..20);
    let mut transaction = database.begin().unwrap();
    transaction.rename_table("t", "u").unwrap();
    transaction.commit().unwrap();
    database.close().unwrap();
    drop(database);
    let database = Database::open(in_folder(folder.path())).unwrap();
    assert_eq!(rows(&database, "u"), expected(0..20));
}

/// A snapshot from before a table was moved does not write to where it was.
#[test]
fn rows_are_not_written_to_where_a_table_was() {
    let database = database_with_table(memory());
    insert_and_commit(&database, "t", 0..10);
    let mut late = database.begin_at(Isolation::RepeatableRead).unwrap();
    late.begin_statement().unwrap();
    let mut mover = database.begin().unwrap();
    mover.set_tablespace("t", None, "far").unwrap();
    mover.commit().unwrap();
    assert_eq!(insert(&mut late, "t", 10..20).unwrap_err().code(), SqlState::SERIALIZATION_FAILURE);
    drop(late);
    assert_eq!(rows(&database, "t"), expected(0..10));
}

/// A commit that writes rows and changes what exists is seen whole, or not at all, whenever somebody looks: its rows are
/// visible from its decision on, and the state is set after they are stamped.
#[test]
fn what_exists_and_rows_change_at_the_same_moment() {
    let database = Database::open(memory()).unwrap();
    let mut transaction = database.begin().unwrap();
    create(&mut transaction, "before");
    create(&mut transaction, "rows");
    transaction.commit().unwrap();

    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let look = {
        let (database, seen) = (database.clone(), seen.clone());
        move |point: &'static str| {
            let whole = |version: &crate::DatabaseVersion| {
                let rows = rows_of(version.table("rows").unwrap()).len();
                (rows, version.table("before").is_some(), version.table("after").is_some())
            };
            let mut looked = vec![whole(&database.version())];
            for isolation in [Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Serializable] {
                let mut reader = database.begin_at(isolation).unwrap();
                looked.push(whole(&reader.version()));
                let version = reader.begin_statement().unwrap();
                looked.push(whole(&version));
                assert!(version.state().commit_ts <= version.view().ts(), "{point}");
            }
            seen.lock().unwrap().push((point, looked));
        }
    };
    let mut early = database.begin_at(Isolation::RepeatableRead).unwrap();
    early.begin_statement().unwrap();
    let mut transaction = database.begin().unwrap();
    insert(&mut transaction, "rows", 0..10).unwrap();
    transaction.drop_table("before").unwrap();
    create(&mut transaction, "after");
    crate::durability::redo::AT_POINT.set(Some(Box::new(look.clone())));
    transaction.commit().unwrap();
    crate::durability::redo::AT_POINT.set(None);
    look("committed");

    let seen = seen.lock().unwrap();
    assert_eq!(
        seen.iter().map(|(point, _)| *point).collect::<Vec<_>>(),
        ["commit.decided", "commit.stamped", "committed"]
    );
    for (point, looked) in seen.iter() {
        for seen in looked {
            assert_eq!(*seen, (10, false, true), "{point}");
        }
    }
    let version = early.begin_statement().unwrap();
    assert_eq!(rows_of(version.table("rows").unwrap()).len(), 0);
    assert!(version.table("before").is_some() && version.table("after").is_none());
}

/// What ends a checkpoint or a merge from outside leaves the folder, or the rows, as they were or as they are to be; the next one does the rest.
#[test]
fn checkpoints_and_merges_can_be_ended() {
    let folder = tempfile::tempdir().unwrap();
    let config = in_folder(folder.path());
    let database = database_with_table(config.clone());
    // There are enough rows for the background thread to merge them.
    database.halt();
    database.checkpoint().unwrap();
    for piece in 0..14 {
        insert_and_commit(&database, "t", piece * 10_000..(piece + 1) * 10_000);
    }
    let manifest = || std::fs::read(folder.path().join("MANIFEST")).unwrap();
    let files = || std::fs::read_dir(folder.path().join("rows")).unwrap().count();
    let before = (manifest(), files());
    // Asked once more each time before the end comes, until it comes too late.
    type Interruptible<'a> = &'a dyn Fn(&dyn Fn() -> Result<()>) -> Result<()>;
    let ended_after = |work: Interruptible<'_>| {
        let mut refused = 0;
        loop {
            let asked = std::cell::Cell::new(0);
            let interrupted = || {
                asked.set(asked.get() + 1);
                match asked.get() > refused {
                    true => Err(Error::new(SqlState::QUERY_CANCELED, "canceling statement due to user request")),
                    false => Ok(()),
                }
            };
            match work(&interrupted) {
                Ok(()) => return refused,
                Err(error) => assert_eq!(error.code(), SqlState::QUERY_CANCELED),
            }
            refused += 1;
        }
    };
    let asked = ended_after(&|interrupted| {
        let saved = database.checkpoint_unless(interrupted);
        if saved.is_err() {
            assert!(database.stats().dirty && (manifest(), files()) == before);
        }
        saved
    });
    assert!(asked >= 2 && manifest() != before.0, "{asked}");
    let asked = ended_after(&|interrupted| {
        let merged = database.merge_unless("t", interrupted).map(drop);
        assert_eq!(rows(&database, "t"), expected(0..140_000));
        merged
    });
    assert!(asked >= 2, "{asked}");
    assert_eq!(TableSize::of(&database.version().table("t").unwrap()).delta_rows, 0);
    database.close().unwrap();
    drop(database);
    assert_eq!(rows(&Database::open(config).unwrap(), "t"), expected(0..140_000));
}
