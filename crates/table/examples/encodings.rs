//! What TPC-H's tables take when encoded, and how fast they are written and read.
//!
//! `cargo run --release -p tidepool-table --example encodings -- [SCALE] [TABLE …]`
//!
//! Times are of one thread's processor, so that a busy machine changes them little.

use arrow_array::RecordBatch;
use arrow_select::concat::concat_batches;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidepool_base::{CommitTs, RowGroupId, StoreId, TableId};
use tidepool_device::Location;
use tidepool_table::rows::{RowLayout, RowStore, VersionMemory, WriteSet};
use tidepool_table::{
    BATCH_ROWS, ColumnDef, ColumnFilter, CompareOp, Datum, Placement, ROW_GROUP_ROWS, RowGroup, ScanRequest, Table,
    TableDef, TableScan, TableVersion, sql_type_of_field,
};
use tidepool_tablespace::{TablespaceConfig, Tablespaces};
use tidepool_txn::{Isolation, Transactions};
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RegionArrow, SupplierArrow,
};

type Batches = Box<dyn Iterator<Item = RecordBatch>>;

fn generate(table: &str, scale: f64) -> Batches {
    macro_rules! batches {
        ($generator:ident, $arrow:ident) => {
            Box::new(
                $arrow::new($generator::new(scale, 1, 1))
                    .with_batch_size(ROW_GROUP_ROWS)
                    .map(|batch| batch.expect("generated rows fit their schema")),
            )
        };
    }
    match table {
        "lineitem" => batches!(LineItemGenerator, LineItemArrow),
        "orders" => batches!(OrderGenerator, OrderArrow),
        "customer" => batches!(CustomerGenerator, CustomerArrow),
        "part" => batches!(PartGenerator, PartArrow),
        "partsupp" => batches!(PartSuppGenerator, PartSuppArrow),
        "supplier" => batches!(SupplierGenerator, SupplierArrow),
        "nation" => batches!(NationGenerator, NationArrow),
        "region" => batches!(RegionGenerator, RegionArrow),
        other => panic!("TPC-H has no table {other}"),
    }
}

/// Processor time of this thread.
fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists on Linux and `time` is valid for writing.
    let answer = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(answer, 0, "a thread can read its own clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let scale: f64 = arguments.next().map_or(1.0, |scale| scale.parse().expect("a scale factor"));
    let tables: Vec<String> = arguments.collect();
    let all = ["lineitem", "orders", "partsupp", "part", "customer", "supplier", "nation", "region"];
    let space = |name: &str, gib: u64| TablespaceConfig {
        name: name.into(),
        location: Location::Anon,
        size_bytes: Some(gib << 30),
        profile: None,
        profiles: Vec::new(),
        huge_pages: true,
        populate_bytes: 0,
    };
    let spaces = Tablespaces::open(space("near", 4), space("far", 1)).expect("room for two tablespaces");
    let mut total = (0, 0);
    for table in all.iter().filter(|table| tables.is_empty() || tables.iter().any(|wanted| wanted == *table)) {
        let (raw, encoded) = measure(table, scale, &spaces);
        total = (total.0 + raw, total.1 + encoded);
    }
    println!("all: {:.1} MB as Arrow, {:.1} MB encoded", total.0 as f64 / 1e6, total.1 as f64 / 1e6);
}

fn measure(table: &str, scale: f64, spaces: &Tablespaces) -> (u64, u64) {
    let placement = Placement { main: "near".into(), delta: "near".into(), columns: BTreeMap::new() };
    let mut groups = Vec::new();
    let mut encoding = Duration::ZERO;
    let mut schema = None;
    let mut encode = |rows: RecordBatch| {
        let start = now();
        let id = RowGroupId(groups.len() as u64);
        groups.push(Arc::new(RowGroup::encode(id, &rows, &placement, spaces).expect("rows are encoded")));
        encoding += now() - start;
    };
    let mut pending: Vec<RecordBatch> = Vec::new();
    for batch in generate(table, scale) {
        schema = Some(batch.schema());
        pending.push(batch);
        let rows: usize = pending.iter().map(RecordBatch::num_rows).sum();
        if rows >= ROW_GROUP_ROWS {
            let all = concat_batches(&pending[0].schema(), &pending).expect("one schema");
            encode(all.slice(0, ROW_GROUP_ROWS));
            pending = vec![all.slice(ROW_GROUP_ROWS, rows - ROW_GROUP_ROWS)];
        }
    }
    let rest = concat_batches(&pending[0].schema(), &pending).expect("one schema");
    if rest.num_rows() > 0 {
        encode(rest);
    }
    let schema = schema.expect("a table has rows");
    let columns = (schema.fields().iter())
        .map(|field| ColumnDef {
            nullable: field.is_nullable(),
            ..ColumnDef::new(field.name(), sql_type_of_field(field))
        })
        .collect();
    let def = TableDef::new(TableId(16384), table, columns, Vec::new());
    let version = stored(def, &placement, spaces, groups);
    let rows = version.rows_max();
    println!("{table}: {rows} rows, encoded in {:.2} s", encoding.as_secs_f64());

    let usage = version.column_usage();
    for (column, usage) in usage.iter().enumerate() {
        let request = |projection| ScanRequest {
            projection,
            filters: Vec::new(),
            dynamic: None,
            limit: None,
            batch_rows: BATCH_ROWS,
            forms: Vec::new(),
        };
        let best = (0..3).map(|_| scan(&version, request(vec![column])).0).min().expect("three runs");
        let encodings: Vec<String> = usage.encodings.iter().map(|(kind, count)| format!("{kind} x{count}")).collect();
        println!(
            "  {:16} {:8.2} MB -> {:7.2} MB  decode {:6.2} ns/row {:6.2} GB/s of Arrow  {}",
            version.def.columns[column].name,
            usage.raw_bytes as f64 / 1e6,
            usage.encoded_bytes as f64 / 1e6,
            best.as_secs_f64() * 1e9 / rows as f64,
            usage.raw_bytes as f64 / 1e9 / best.as_secs_f64(),
            encodings.join(", "),
        );
    }
    if table == "lineitem" {
        queries(&version);
    }
    let (raw, encoded) =
        (usage.iter().map(|usage| usage.raw_bytes).sum(), usage.iter().map(|usage| usage.encoded_bytes).sum());
    println!("  {:16} {:8.2} MB -> {:7.2} MB", "all", raw as f64 / 1e6, encoded as f64 / 1e6);
    (raw, encoded)
}

/// A table with these row groups.
fn stored(def: TableDef, placement: &Placement, spaces: &Tablespaces, groups: Vec<Arc<RowGroup>>) -> Arc<TableVersion> {
    let transactions = Transactions::starting_after(CommitTs(0));
    let layout = RowLayout::new(&def).expect("all types are a column's");
    let rows = RowStore::new(StoreId(1), &transactions, layout, &VersionMemory::new(&spaces.near()), &spaces.near());
    let mut worker = transactions.worker().expect("the first of thousands");
    let mut writes = WriteSet::new();
    worker.begin(Isolation::ReadCommitted).expect("none runs");
    let view = worker.snapshot();
    for group in groups {
        rows.load(&worker, &view, &mut writes, group).expect("there is room");
    }
    drop(view);
    worker.commit(&mut writes).expect("nothing is in the way");
    let table = Arc::new(Table::new(Arc::new(def), placement.clone(), rows));
    Arc::new(TableVersion::of(&table, &Arc::new(worker.hold())))
}

fn scan(version: &Arc<TableVersion>, request: ScanRequest) -> (Duration, usize) {
    let start = now();
    let mut reader = TableScan::new(Arc::clone(version), request).reader();
    let mut rows = 0;
    while let Some(batch) = reader.next_batch().expect("a scan reads") {
        rows += batch.num_rows();
    }
    (now() - start, rows)
}

/// The scans of some queries, one reader.
fn queries(version: &Arc<TableVersion>) {
    let column = |name: &str| version.def.column_index(name).expect("lineitem has the column");
    let date = |days: i64| Datum::Int(days);
    let compare = |name: &str, op, value| ColumnFilter::Compare { column: column(name), op, value };
    // 1994-01-01, 1995-01-01 and 1998-09-02 in days since 1970.
    let q6 = || {
        vec![
            compare("l_shipdate", CompareOp::Ge, date(8766)),
            compare("l_shipdate", CompareOp::Lt, date(9131)),
            compare("l_discount", CompareOp::Ge, Datum::Decimal(5)),
            compare("l_discount", CompareOp::Le, Datum::Decimal(7)),
            compare("l_quantity", CompareOp::Lt, Datum::Decimal(2400)),
        ]
    };
    let q1_columns =
        ["l_returnflag", "l_linestatus", "l_quantity", "l_extendedprice", "l_discount", "l_tax"].map(column).to_vec();
    let text = |value: &str| Datum::Text(value.into());
    let runs: Vec<(&str, Vec<usize>, Vec<ColumnFilter>)> = vec![
        ("Q6 (1.9 %)", vec![column("l_extendedprice"), column("l_discount")], q6()),
        ("Q6's rows, none of their columns", vec![], q6()),
        ("Q6's dates", vec![], q6()[..2].to_vec()),
        ("Q6's discounts", vec![], q6()[2..4].to_vec()),
        ("Q6's quantities", vec![], q6()[4..].to_vec()),
        ("a date", vec![], vec![compare("l_shipdate", CompareOp::Eq, date(8766))]),
        (
            "five of the discounts",
            vec![],
            vec![ColumnFilter::In { column: column("l_discount"), values: [0, 3, 4, 7, 9].map(Datum::Decimal).into() }],
        ),
        (
            "Q6 without filters",
            ["l_shipdate", "l_discount", "l_quantity", "l_extendedprice"].map(column).to_vec(),
            vec![],
        ),
        ("Q1 (98 %)", q1_columns.clone(), vec![compare("l_shipdate", CompareOp::Le, date(10471))]),
        ("Q1 without filter", q1_columns, vec![]),
        (
            "Q12's modes",
            vec![column("l_orderkey"), column("l_shipmode")],
            vec![ColumnFilter::In { column: column("l_shipmode"), values: vec![text("MAIL"), text("SHIP")] }],
        ),
        ("one order", (0..16).collect(), vec![compare("l_orderkey", CompareOp::Eq, Datum::Int(3_000_000))]),
        (
            "comment equals",
            vec![column("l_orderkey")],
            vec![compare("l_comment", CompareOp::Eq, text("ly final dependencies: slyly bold "))],
        ),
        ("row count", vec![], vec![]),
    ];
    for (name, projection, filters) in runs {
        let run = || {
            let request = ScanRequest {
                projection: projection.clone(),
                filters: filters.clone(),
                dynamic: None,
                limit: None,
                batch_rows: BATCH_ROWS,
                forms: Vec::new(),
            };
            scan(version, request)
        };
        let mut best = run();
        for _ in 0..4 {
            let next = run();
            best = if next.0 < best.0 { next } else { best };
        }
        println!("  scan of {name}: {:.1} ms, {} rows", best.0.as_secs_f64() * 1e3, best.1);
    }
}
