//! Tablespaces and data for this crate's tests.

use crate::rows::{RowLayout, RowStore, VersionMemory, WriteSet};
use crate::sketch::hash_u64;
use crate::{ColumnDef, NUMERIC_WIDTH, Placement, RowGroup, Table, TableDef, TableVersion, arrow_type};
use arrow_array::types::IntervalMonthDayNano;
use arrow_array::{
    ArrayRef, BinaryViewArray, BooleanArray, Date32Array, Decimal128Array, FixedSizeBinaryArray, Float32Array,
    Float64Array, Int16Array, Int32Array, Int64Array, IntervalMonthDayNanoArray, RecordBatch, StringViewArray,
    TimestampMicrosecondArray,
};
use arrow_schema::Field;
use std::sync::Arc;
use tidepool_base::{CommitTs, Numeric, RowId, SqlType, StoreId, TableId, TablespaceId};
use tidepool_device::{Location, Mapping};
use tidepool_tablespace::{Tablespace, TablespaceConfig, Tablespaces};
use tidepool_txn::{Isolation, Transactions, View, Worker};

fn config(name: &str, size_bytes: u64) -> TablespaceConfig {
    TablespaceConfig {
        name: name.into(),
        location: Location::Anon,
        size_bytes: Some(size_bytes),
        profile: None,
        profiles: Vec::new(),
        huge_pages: false,
        populate_bytes: 0,
    }
}

/// A tablespace on the heap, which Miri can follow.
pub(crate) fn heap_space() -> Arc<Tablespace> {
    let size = 2 << 20;
    Tablespace::over(TablespaceId(0), config("near", size as u64), Mapping::heap(size)).unwrap()
}

pub(crate) fn spaces() -> Tablespaces {
    Tablespaces::open(config("near", 256 << 20), config("far", 256 << 20)).unwrap()
}

pub(crate) fn placement(main: &str) -> Placement {
    Placement { main: main.into(), delta: "near".into(), columns: Default::default() }
}

pub(crate) fn field(sql_type: SqlType) -> Field {
    ColumnDef::new("c", sql_type).field()
}

pub(crate) fn table(columns: &[(&str, SqlType)]) -> Arc<TableDef> {
    let columns = columns.iter().map(|(name, sql_type)| ColumnDef::new(*name, *sql_type)).collect();
    Arc::new(TableDef::new(TableId(20000), "t", columns, Vec::new()))
}

/// A table without rows, and somebody to write to it.
pub(crate) fn stored(spaces: &Tablespaces, def: Arc<TableDef>, placement: Placement) -> (Arc<Table>, Worker) {
    let transactions = Transactions::starting_after(CommitTs(0));
    let memory = VersionMemory::new(&spaces.get(&placement.delta).unwrap());
    let layout = RowLayout::new(&def).unwrap();
    let rows = RowStore::new(StoreId(1), &transactions, layout, &memory, &spaces.near());
    (Arc::new(Table::new(def, placement, rows)), transactions.worker().unwrap())
}

/// What a transaction that does `work` writes, committed.
pub(crate) fn write(worker: &mut Worker, work: impl FnOnce(&Worker, &View, &mut WriteSet)) {
    let mut writes = WriteSet::new();
    worker.begin(Isolation::ReadCommitted).unwrap();
    let view = worker.snapshot();
    work(worker, &view, &mut writes);
    drop(view);
    worker.commit(&mut writes).unwrap();
}

pub(crate) fn insert(table: &Table, worker: &mut Worker, batch: &RecordBatch) -> Vec<RowId> {
    let (mut ids, mut image) = (Vec::new(), Vec::new());
    write(worker, |worker, view, writes| {
        let rows = table.rows.layout().rows(batch).unwrap();
        for row in 0..batch.num_rows() {
            rows.image(row, &mut image).unwrap();
            ids.push(table.rows.insert(worker, view, writes, &image).unwrap());
        }
    });
    ids
}

pub(crate) fn load(table: &Table, worker: &mut Worker, group: RowGroup) {
    let group = Arc::new(group);
    write(worker, |worker, view, writes| {
        table.rows.load(worker, view, writes, group).unwrap();
    });
}

pub(crate) fn version(table: &Arc<Table>, worker: &mut Worker) -> Arc<TableVersion> {
    Arc::new(TableVersion::of(table, &Arc::new(worker.hold())))
}

/// Numbers without a pattern, the same in every run.
pub(crate) fn noise(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_add(1);
        hash_u64(state ^ 0x5bd1_e995)
    }
}

/// An array of `sql_type` whose row `i` is made of `value(i)`; `None` is NULL.
pub(crate) fn array_of(sql_type: SqlType, rows: usize, mut value: impl FnMut(usize) -> Option<i64>) -> ArrayRef {
    let values: Vec<Option<i64>> = (0..rows).map(&mut value).collect();
    let text = |v: i64| match v.rem_euclid(3) {
        0 => format!("{v}"),
        1 => format!("word {v} of some length, with käse"),
        _ => format!("twelve {:5}", v % 100_000),
    };
    let array: ArrayRef = match sql_type {
        SqlType::Boolean => Arc::new(values.iter().map(|v| v.map(|v| v & 1 == 1)).collect::<BooleanArray>()),
        SqlType::SmallInt => Arc::new(values.iter().map(|v| v.map(|v| v as i16)).collect::<Int16Array>()),
        SqlType::Integer => Arc::new(values.iter().map(|v| v.map(|v| v as i32)).collect::<Int32Array>()),
        SqlType::BigInt => Arc::new(values.iter().copied().collect::<Int64Array>()),
        SqlType::Real => Arc::new(values.iter().map(|v| v.map(|v| v as f32 / 4.0)).collect::<Float32Array>()),
        SqlType::DoublePrecision => {
            Arc::new(values.iter().map(|v| v.map(|v| v as f64 / 100.0)).collect::<Float64Array>())
        }
        SqlType::Numeric { .. } => Arc::new(
            values.iter().map(|v| v.map(i128::from)).collect::<Decimal128Array>().with_data_type(arrow_type(sql_type)),
        ),
        SqlType::UnconstrainedNumeric => {
            let number = |v: i64| Numeric::new(v.into(), v.rem_euclid(5) as u8).unwrap().to_bytes();
            let numbers = values.iter().map(|v| v.map(number));
            Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(numbers, NUMERIC_WIDTH).unwrap())
        }
        SqlType::Date => Arc::new(values.iter().map(|v| v.map(|v| v as i32)).collect::<Date32Array>()),
        SqlType::Timestamp { .. } => Arc::new(values.iter().copied().collect::<TimestampMicrosecondArray>()),
        SqlType::TimestampTz { .. } => {
            Arc::new(values.iter().copied().collect::<TimestampMicrosecondArray>().with_timezone("UTC"))
        }
        SqlType::Interval => Arc::new(
            values
                .iter()
                .map(|v| v.map(|v| IntervalMonthDayNano::new(v as i32, -(v as i32), v.wrapping_mul(1_000_003))))
                .collect::<IntervalMonthDayNanoArray>(),
        ),
        SqlType::Bytea => Arc::new(values.iter().map(|v| v.map(|v| text(v).into_bytes())).collect::<BinaryViewArray>()),
        SqlType::Uuid => Arc::new(
            values
                .iter()
                .map(|v| {
                    v.map(|v| {
                        let h = hash_u64(v as u64);
                        format!(
                            "{:08x}-{:04x}-4{:03x}-8{:03x}-{:012x}",
                            h as u32,
                            v as u16,
                            h >> 52,
                            h >> 40 & 0xfff,
                            h >> 16
                        )
                    })
                })
                .collect::<StringViewArray>(),
        ),
        _ => Arc::new(values.iter().map(|v| v.map(text)).collect::<StringViewArray>()),
    };
    array
}
