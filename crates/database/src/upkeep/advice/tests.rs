use super::*;
use crate::tests::{database_with_table, insert_and_commit, memory};
use crate::{ColumnRecord, Config, IndexRecord, NewIndex, RelationName, TableRecord};
use std::sync::Arc;
use tidepool_index::Touched;
use tidepool_table::{ColumnAccess, IndexColumn, IndexUse};

/// 150 ns and 1 / 17.8 ns a byte beyond local memory.
fn profile() -> Profile {
    Profile::preset("cxl-asic").unwrap()
}

/// Table `t` of columns `a` and `b`, in main, and a record of 1,000 runs of `a` and 80 lines of `b`.
fn database() -> (Arc<Database>, Workload) {
    let mut config: Config = memory();
    config.far.profile = Some(profile());
    let database = database_with_table(config);
    insert_and_commit(&database, "t", 0..50_000);
    database.merge("t").unwrap();
    let a = ColumnAccess { bytes_sequential: 1_792_000, runs: 1000, rows: 50_000, ..ColumnAccess::default() };
    let b = ColumnAccess { lines_random: 80, rows: 80, ..ColumnAccess::default() };
    let record = |access| ColumnRecord { scans: 1, last_us: 1, access };
    let table =
        TableRecord { scans: 1, last_us: 1, work_ns: 0, columns: vec![record(a), record(b)], indexes: BTreeMap::new() };
    let id = database.version().table("t").unwrap().def.id;
    let workload = Workload { statements: 1, tables: BTreeMap::from([(id, table)]), ..Workload::default() };
    (database, workload)
}

fn with_work(mut workload: Workload, work_ns: u64) -> Workload {
    workload.tables.values_mut().for_each(|table| table.work_ns = work_ns);
    workload
}

fn to(column: Option<&str>, tablespace: &str) -> Move {
    let part = column.map(|column| Part::Column(column.to_owned()));
    Move { schema: None, table: "t".to_owned(), part, tablespace: tablespace.to_owned() }
}

fn apply(database: &Arc<Database>, moves: &[Move]) {
    for step in moves {
        let mut transaction = database.begin().unwrap();
        transaction.lock_table(&step.table, &|| Ok(())).unwrap();
        match &step.part {
            None => transaction.set_tablespace(&step.table, None, &step.tablespace).unwrap(),
            Some(Part::Column(column)) => {
                transaction.set_tablespace(&step.table, Some(column), &step.tablespace).unwrap();
            }
            Some(Part::Index(index)) => {
                transaction.set_index_tablespace(&RelationName::from(index), Some(&step.tablespace)).unwrap();
            }
        }
        transaction.commit().unwrap();
    }
}

fn columns_in(a: &str, b: &str) -> Placements {
    let placement = TablePlacement { columns: vec![a.to_owned(), b.to_owned()], indexes: Vec::new() };
    BTreeMap::from([("t".to_owned(), placement)])
}

fn is_column(part: &PartAdvice, name: &str) -> bool {
    part.part == Part::Column(name.to_owned())
}

#[track_caller]
fn assert_close(left: f64, right: f64) {
    assert!((left - right).abs() <= right.abs() * 1e-3 + 1e-3, "{left} is not {right}");
}

#[test]
fn waits_are_those_that_work_does_not_cover() {
    let (database, workload) = database();
    let far = |workload: &Workload| {
        let advisor = Advisor::new(&database, workload, "far", None).unwrap();
        advisor.stall_ns(&advisor.everywhere("far")).unwrap()
    };
    // 1,000 first lines, 80 lines eight at a time, and 101 us of the link.
    let waits_ns = 1000.0 * 150.0 + 80.0 * 150.0 / 8.0;
    let link_ns = 1_792_000.0 / 17.8 + 80.0 * 64.0 / 17.8;
    assert_close(far(&workload), waits_ns + link_ns);
    assert_close(far(&with_work(workload.clone(), 40_000)), waits_ns + link_ns - 40_000.0);
    assert_close(far(&with_work(workload.clone(), 1_000_000)), waits_ns);
    let advisor = Advisor::new(&database, &workload, "far", None).unwrap();
    assert_eq!(advisor.stall_ns(&advisor.everywhere("near")).unwrap(), 0.0);
    // Only what is far shares the link.
    let b_far = columns_in("near", "far");
    assert_close(advisor.stall_ns(&b_far).unwrap(), 80.0 * 150.0 / 8.0 + 80.0 * 64.0 / 17.8);
}

#[test]
fn the_column_that_costs_most_for_its_bytes_stays_near() {
    let (database, workload) = database();
    let workload = with_work(workload, 1_000_000);
    let advise = |limit: u64| Advisor::new(&database, &workload, "far", None).unwrap().advise(limit, "far").unwrap();
    let all = advise(u64::MAX);
    assert_eq!(all.moves, []);
    assert_eq!((all.near_bytes_now, all.stall_advised_ns), (all.near_bytes_advised, 0.0));
    let bytes = |name: &str| all.parts.iter().find(|part| is_column(part, name)).unwrap().bytes;

    let one = advise(bytes("a"));
    assert_eq!(one.moves, [to(Some("b"), "far")]);
    assert_eq!(one.near_bytes_advised, bytes("a"));
    assert_close(one.stall_advised_ns, 1_500.0);
    assert_eq!(one.stall_bound_ns, one.stall_advised_ns);
    // What would be moved comes first.
    assert!(one.parts.len() == 2 && is_column(&one.parts[0], "b") && is_column(&one.parts[1], "a"), "{:?}", one.parts);

    let none = advise(0);
    assert_eq!(none.moves, [to(None, "far")]);
    assert_eq!((none.near_bytes_advised, none.stall_now_ns), (0, 0.0));
    apply(&database, &none.moves);
    assert_eq!(advise(0).moves, []);
    assert_close(advise(0).stall_now_ns, 151_500.0);

    // And back: first what makes room, then what needs it.
    let back = advise(bytes("a"));
    assert_eq!(back.moves, [to(Some("a"), "near")]);
    apply(&database, &back.moves);
    assert_eq!(advise(bytes("a")).moves, []);
    let swapped = columns_in("far", "near");
    let advisor = Advisor::new(&database, &workload, "far", None).unwrap();
    assert_eq!(advisor.moves(&swapped), [to(Some("a"), "far"), to(Some("b"), "near")]);
}

#[test]
fn what_is_never_read_goes_far_and_delta_takes_of_the_limit() {
    let (database, mut workload) = database();
    for table in workload.tables.values_mut() {
        table.columns.truncate(1);
    }
    let advise = |limit: u64| Advisor::new(&database, &workload, "far", None).unwrap().advise(limit, "far").unwrap();
    let all = advise(u64::MAX);
    assert_eq!(all.moves, [to(Some("b"), "far")]);
    let limit = all.near_bytes_advised;
    assert_eq!(advise(limit).moves, all.moves);
    insert_and_commit(&database, "t", 0..10);
    assert!(advise(limit).near_bytes_now > all.near_bytes_now);
    assert_eq!(advise(limit).moves, [to(None, "far")]);
}

#[test]
fn simple_rules_fill_near_as_columns_fit() {
    let (database, workload) = database();
    let advisor = Advisor::new(&database, &workload, "far", None).unwrap();
    let placed =
        |near_bytes, score: fn(ColumnFacts) -> f64| advisor.place_by(near_bytes, "far", score)["t"].columns.clone();
    let by_rows = |facts: ColumnFacts| facts.rows_read as f64;
    assert_eq!(placed(advisor.bytes(), by_rows), ["near", "near"]);
    assert_eq!(placed(advisor.bytes() - 1, by_rows), ["near", "far"]);
    assert_eq!(placed(advisor.bytes() - 1, |facts| -(facts.rows_read as f64)), ["far", "near"]);
    assert_eq!(placed(0, by_rows), ["far", "far"]);
    assert_eq!(advisor.bytes_in(&advisor.everywhere("far"), "far"), advisor.bytes());
}

#[test]
fn a_real_device_costs_what_the_caller_says() {
    let (database, workload) = database();
    let real = database_with_table(memory());
    let code = |advisor: Result<Advisor>| advisor.err().map(|error| error.code());
    assert_eq!(code(Advisor::new(&real, &workload, "far", None)), Some(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE));
    assert_eq!(code(Advisor::new(&real, &workload, "far", Some(profile()))), None);
    assert_eq!(
        code(Advisor::new(&database, &workload, "far", Some(profile()))),
        Some(SqlState::INVALID_PARAMETER_VALUE)
    );
    assert_eq!(code(Advisor::new(&database, &workload, "near", None)), Some(SqlState::INVALID_PARAMETER_VALUE));
}

/// Indexes on `a` and, without a tablespace of its own, on `b`.
fn make_indexes(database: &Arc<Database>) {
    let mut transaction = database.begin().unwrap();
    transaction.lock_table("t", &|| Ok(())).unwrap();
    for (name, column, tablespace) in [("by_a", 1, Some("near")), ("by_b", 2, None)] {
        let index = NewIndex {
            name: Some(name.to_owned()),
            columns: vec![IndexColumn::ascending(column)],
            unique: false,
            nulls_not_distinct: false,
            primary: None,
            tablespace: tablespace.map(str::to_owned),
            partition_of: None,
        };
        transaction.create_index("t", index).unwrap();
    }
    transaction.commit().unwrap();
}

/// With a record of lookups in the first, which read a megabyte of leaves that are larger than most.
fn with_indexes(database: &Arc<Database>, workload: &mut Workload) {
    make_indexes(database);
    let def = database.version().table("t").unwrap().def.clone();
    let touched = Touched { leaves: 100, copies: 100, copied_bytes: 1 << 20, ..Touched::default() };
    let used = IndexUse { lookups: 100, entries: 6000, touched };
    let record = IndexRecord { scans: 100, last_us: 1, used };
    workload.tables.get_mut(&def.id).unwrap().indexes.insert(def.index("by_a").unwrap().id, record);
}

fn of_index(index: &str, tablespace: &str) -> Move {
    let part = Some(Part::Index(index.to_owned()));
    Move { schema: None, table: "t".to_owned(), part, tablespace: tablespace.to_owned() }
}

#[test]
fn an_index_is_weighed_beside_columns() {
    let (database, mut workload) = database();
    with_indexes(&database, &mut workload);
    let advise = |limit: u64| Advisor::new(&database, &workload, "far", None).unwrap().advise(limit, "far").unwrap();
    let all = advise(u64::MAX);
    // One that was never used goes far, as its table does not.
    assert_eq!(all.moves, [of_index("by_b", "far")]);
    assert_eq!(all.parts.len(), 4);
    let bytes = |name: &str| {
        let is = |part: &&PartAdvice| matches!(&part.part, Part::Column(of) | Part::Index(of) if of == name);
        all.parts.iter().find(is).unwrap().bytes
    };
    assert_eq!(all.near_bytes_now - all.near_bytes_advised, bytes("by_b"));
    assert!(bytes("by_a") > 50_000 * 8, "{}", bytes("by_a"));
    // What its leaves have beyond the first lines is read in a run a leaf. The leaves themselves fit the caches.
    let waits_ns = 100.0 * 150.0;
    let link_ns = (1 << 20) as f64 / 17.8;
    let advisor = Advisor::new(&database, &workload, "far", None).unwrap();
    let mut index_far = advisor.everywhere("near");
    index_far.get_mut("t").unwrap().indexes[0] = "far".to_owned();
    assert_close(advisor.stall_ns(&index_far).unwrap(), waits_ns + link_ns);
    let busy = with_work(workload.clone(), 1_000_000);
    let advisor = Advisor::new(&database, &busy, "far", None).unwrap();
    assert_close(advisor.stall_ns(&index_far).unwrap(), waits_ns);

    let none = advise(0);
    assert_eq!(none.moves, [to(None, "far"), of_index("by_a", "far")]);
    // It costs more than b and less than a, for more bytes than both.
    let one = advise(bytes("by_a"));
    assert_eq!(one.moves, [of_index("by_a", "far"), of_index("by_b", "far")]);
    assert_eq!(one.near_bytes_advised, bytes("a") + bytes("b"));
    let both = advise(bytes("a") + bytes("by_a"));
    assert_eq!(both.moves, [to(Some("b"), "far"), of_index("by_b", "far")]);
    assert_eq!(both.near_bytes_advised, bytes("a") + bytes("by_a"));
}

#[test]
fn indexes_go_with_their_table_or_are_held_back() {
    let (database, mut workload) = database();
    with_indexes(&database, &mut workload);
    let advisor = || Advisor::new(&database, &workload, "far", None).unwrap();
    let placed = |columns: &str, indexes: [&str; 2]| {
        let columns = vec![columns.to_owned(); 2];
        let indexes = indexes.map(str::to_owned).to_vec();
        BTreeMap::from([("t".to_owned(), TablePlacement { columns, indexes })])
    };
    let go = |columns: &str, indexes: [&str; 2], moves: &[Move]| {
        let wanted = placed(columns, indexes);
        assert_eq!(advisor().moves(&wanted), moves);
        apply(&database, moves);
        assert_eq!(advisor().placements(), wanted);
        assert_eq!(advisor().moves(&wanted), []);
    };
    // by_b has no tablespace of its own.
    assert_eq!(advisor().placements(), placed("near", ["near", "near"]));
    go("far", ["near", "far"], &[to(None, "far")]);
    go("far", ["far", "far"], &[of_index("by_a", "far")]);
    // It would go with the table: it gets its own first.
    go("near", ["near", "far"], &[of_index("by_b", "far"), to(None, "near"), of_index("by_a", "near")]);
    go("near", ["far", "near"], &[of_index("by_a", "far"), of_index("by_b", "near")]);
}

#[test]
fn what_statements_use_of_an_index_is_recorded() {
    let (database, _) = database();
    make_indexes(&database);
    database.reset_workload();
    let def = database.version().table("t").unwrap().def.clone();
    let of = |name: &str| {
        let workload = database.workload();
        workload.tables.get(&def.id).map(|table| table.index(def.index(name).unwrap().id)).unwrap_or_default()
    };
    assert_eq!(of("by_a"), IndexRecord::default());
    insert_and_commit(&database, "t", 60_000..60_100);
    let written = of("by_a");
    assert_eq!((written.scans, written.used.lookups), (0, 0));
    // Keys that come in order are put in where the last one went.
    assert!(written.used.touched.writes >= 100 && written.used.touched.leaves >= 1, "{written:?}");
    // An index that is made anew in another place goes on with its record; one that is dropped loses it.
    insert_and_commit(&database, "t", 60_100..60_200);
    apply(&database, &[of_index("by_a", "far")]);
    assert!(of("by_a").used.touched.writes >= 200);
    assert_eq!(of("by_a"), of("by_a"));
    database.reset_workload();
    assert_eq!((of("by_a"), of("by_b")), (IndexRecord::default(), IndexRecord::default()));
}

#[test]
fn the_record_of_an_index_is_kept_until_it_is_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let config = || Config { data_dir: Some(folder.path().to_owned()), ..memory() };
    let database = database_with_table(config());
    make_indexes(&database);
    database.reset_workload();
    insert_and_commit(&database, "t", 0..100);
    let id = database.version().table("t").unwrap().def.id;
    let indexes = |database: &Database| database.workload().tables[&id].indexes.clone();
    let before = indexes(&database);
    assert_eq!(before.len(), 2);
    database.close().unwrap();
    drop(database);
    let database = Database::open(config()).unwrap();
    assert_eq!(indexes(&database), before);
    let mut transaction = database.begin().unwrap();
    transaction.drop_index(&RelationName::from("by_b")).unwrap();
    transaction.commit().unwrap();
    database.checkpoint().unwrap();
    assert_eq!(indexes(&database).len(), 1);
    // From before indexes were counted.
    let old: TableRecord = serde_json::from_str(r#"{"scans": 1, "last_us": 2, "work_ns": 3, "columns": []}"#).unwrap();
    assert_eq!((old.scans, old.indexes.len()), (1, 0));
}
