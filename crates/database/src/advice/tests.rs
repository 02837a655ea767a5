use super::*;
use crate::tests::{database_with_table, insert_and_commit, memory};
use crate::{ColumnRecord, Config};
use tidepool_table::ColumnAccess;

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
    let table = TableRecord { scans: 1, last_us: 1, work_ns: 0, columns: vec![record(a), record(b)] };
    let id = database.version().table("t").unwrap().def.id;
    let workload = Workload { statements: 1, tables: BTreeMap::from([(id, table)]), ..Workload::default() };
    (database, workload)
}

fn with_work(mut workload: Workload, work_ns: u64) -> Workload {
    workload.tables.values_mut().for_each(|table| table.work_ns = work_ns);
    workload
}

fn to(column: Option<&str>, tablespace: &str) -> Move {
    Move { schema: None, table: "t".to_owned(), column: column.map(str::to_owned), tablespace: tablespace.to_owned() }
}

fn apply(database: &Arc<Database>, moves: &[Move]) {
    for step in moves {
        let mut transaction = database.begin().unwrap();
        transaction.lock_table(&step.table, &|| Ok(())).unwrap();
        transaction.set_tablespace(&step.table, step.column.as_deref(), &step.tablespace).unwrap();
        transaction.commit().unwrap();
    }
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
    let b_far = BTreeMap::from([("t".to_owned(), vec!["near".to_owned(), "far".to_owned()])]);
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
    let bytes = |name: &str| all.columns.iter().find(|column| column.column == name).unwrap().bytes;

    let one = advise(bytes("a"));
    assert_eq!(one.moves, [to(Some("b"), "far")]);
    assert_eq!(one.near_bytes_advised, bytes("a"));
    assert_close(one.stall_advised_ns, 1_500.0);
    assert_eq!(one.stall_bound_ns, one.stall_advised_ns);
    // What would be moved comes first.
    assert_eq!(one.columns.iter().map(|column| column.column.as_str()).collect::<Vec<_>>(), ["b", "a"]);

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
    let swapped = BTreeMap::from([("t".to_owned(), vec!["far".to_owned(), "near".to_owned()])]);
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
    let placed = |near_bytes, score: fn(ColumnFacts) -> f64| advisor.place_by(near_bytes, "far", score)["t"].clone();
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
