//! Whole tables: scans over main and delta, statistics, merging, moving.

use crate::rows::{Merged, Outcome};
use crate::testing::{self, array_of, insert, load, noise, placement, spaces, stored, table, write};
use crate::{
    ColumnAccess, ColumnFilter, CompareOp, Datum, FilterSource, Form, RowGroup, ScanRequest, Table, TableScan,
    TableVersion,
};
use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, UInt64Type};
use arrow_array::{Array, ArrayRef, BooleanArray, Int64Array, RecordBatch, StringViewArray, UInt32Array};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use tidepool_base::{Error, Result, RowGroupId, RowId, SqlState, SqlType};
use tidepool_device::{Location, Profile};
use tidepool_tablespace::{Purpose, TablespaceConfig, Tablespaces};
use tidepool_txn::{Isolation, Worker};

const MONEY: SqlType = SqlType::Numeric { precision: 12, scale: 2 };
const COLUMNS: [(&str, SqlType); 6] = [
    ("id", SqlType::BigInt),
    ("word", SqlType::Text),
    ("price", MONEY),
    ("day", SqlType::Date),
    ("note", SqlType::Text),
    ("flag", SqlType::Boolean),
];

/// Rows `first..first + rows`, each of a different `id`.
fn rows(first: usize, rows: usize) -> RecordBatch {
    let words = ["alpha", "beta", "gamma with a long tail behind it", "delta"];
    let mut next = noise(first as u64);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter_values((first..first + rows).map(|i| i as i64))),
        Arc::new((0..rows).map(|i| (i % 13 != 0).then(|| words[(i + first) % 4])).collect::<StringViewArray>()),
        array_of(MONEY, rows, |_| Some((next() % 100_000) as i64)),
        array_of(SqlType::Date, rows, |i| (i % 7 != 3).then_some(9_000 + ((i + first) / 50) as i64)),
        Arc::new(StringViewArray::from_iter_values(
            (0..rows).map(|i| format!("the quick brown fox number {} jumps over {}", i * 31 % 977, i % 5)),
        )),
        array_of(SqlType::Boolean, rows, |i| Some(i64::from(i % 11 == 0))),
    ];
    RecordBatch::try_new(table(&COLUMNS).arrow_schema(), columns).unwrap()
}

/// Row groups of these sizes, and delta of these, each a transaction's; and all their rows.
fn build(spaces: &Tablespaces, groups: &[usize], deltas: &[usize]) -> (Arc<TableVersion>, RecordBatch) {
    let (table, mut worker, all) = build_table(spaces, groups, deltas);
    (testing::version(&table, &mut worker), all)
}

fn build_table(spaces: &Tablespaces, groups: &[usize], deltas: &[usize]) -> (Arc<Table>, Worker, RecordBatch) {
    let placement = placement("far");
    let (table, mut worker) = stored(spaces, table(&COLUMNS), placement.clone());
    let (mut first, mut all) = (0, Vec::new());
    for (id, len) in groups.iter().enumerate() {
        let batch = rows(first, *len);
        first += len;
        load(&table, &mut worker, RowGroup::encode(RowGroupId(id as u64), &batch, &placement, spaces).unwrap());
        all.push(batch);
    }
    for len in deltas {
        // A slice, as writers may well hand over.
        let batch = rows(first, len + 3).slice(0, *len);
        first += len;
        insert(&table, &mut worker, &batch);
        all.push(batch);
    }
    let all = arrow_select::concat::concat_batches(&table.def.arrow_schema(), &all).unwrap();
    (table, worker, all)
}

fn request(projection: Vec<usize>, filters: Vec<ColumnFilter>, batch_rows: usize) -> ScanRequest {
    ScanRequest { projection, filters, dynamic: None, limit: None, batch_rows, forms: Vec::new() }
}

/// All rows of a scan read by turns with two readers, in the order of the first column.
fn read(scan: &Arc<TableScan>, batch_rows: usize) -> RecordBatch {
    let mut readers = [scan.reader(), scan.reader()];
    let mut batches = Vec::new();
    let mut open = true;
    while open {
        open = false;
        for reader in &mut readers {
            if let Some(batch) = reader.next_batch().unwrap() {
                assert!((1..=batch_rows).contains(&batch.num_rows()), "{} rows", batch.num_rows());
                assert_eq!(batch.schema(), scan.schema());
                batches.push(batch);
                open = true;
            }
        }
    }
    let all = arrow_select::concat::concat_batches(&scan.schema(), &batches).unwrap();
    let ids = all.column(0).as_primitive::<Int64Type>();
    let mut order: Vec<u32> = (0..all.num_rows() as u32).collect();
    order.sort_by_key(|row| ids.value(*row as usize));
    arrow_select::take::take_record_batch(&all, &UInt32Array::from(order)).unwrap()
}

fn compare(column: usize, op: CompareOp, value: Datum) -> ColumnFilter {
    ColumnFilter::Compare { column, op, value }
}

fn function(column: usize, f: impl Fn(&ArrayRef) -> Result<BooleanArray> + Send + Sync + 'static) -> ColumnFilter {
    ColumnFilter::Function { column, function: Arc::new(f) }
}

/// Whether row `row` of `all` passes, worked out value by value.
type Expected = Box<dyn Fn(&RecordBatch, usize) -> bool>;

fn conditions() -> Vec<(ColumnFilter, Expected)> {
    let text = |batch: &RecordBatch, column: usize, row: usize| {
        let array = batch.column(column).as_string_view();
        array.is_valid(row).then(|| array.value(row).to_string())
    };
    let int = |batch: &RecordBatch, column: usize, row: usize| {
        let array = arrow_cast::cast(batch.column(column), &arrow_schema::DataType::Int64).unwrap();
        array.is_valid(row).then(|| array.as_primitive::<Int64Type>().value(row))
    };
    let cents = |batch: &RecordBatch, row: usize| {
        batch.column(2).as_primitive::<arrow_array::types::Decimal128Type>().value(row)
    };
    vec![
        (compare(0, CompareOp::Ge, Datum::Int(2_000)), Box::new(move |b, r| int(b, 0, r) >= Some(2_000))),
        (compare(0, CompareOp::Lt, Datum::Int(9_100)), Box::new(move |b, r| int(b, 0, r).is_some_and(|v| v < 9_100))),
        (
            compare(1, CompareOp::Gt, Datum::Text("beta".into())),
            Box::new(move |b, r| text(b, 1, r).is_some_and(|v| *v > *"beta")),
        ),
        (
            ColumnFilter::In { column: 1, values: vec![Datum::Text("alpha".into()), Datum::Text("delta".into())] },
            Box::new(move |b, r| text(b, 1, r).is_some_and(|v| v == "alpha" || v == "delta")),
        ),
        (ColumnFilter::IsNull { column: 1 }, Box::new(move |b, r| text(b, 1, r).is_none())),
        (compare(2, CompareOp::Le, Datum::Decimal(60_000)), Box::new(move |b, r| cents(b, r) <= 60_000)),
        (ColumnFilter::IsNotNull { column: 3 }, Box::new(move |b, r| int(b, 3, r).is_some())),
        (compare(3, CompareOp::Ne, Datum::Int(9_020)), Box::new(move |b, r| int(b, 3, r).is_some_and(|v| v != 9_020))),
        (
            compare(4, CompareOp::Ge, Datum::Text("the quick brown fox number 5".into())),
            Box::new(move |b, r| text(b, 4, r).is_some_and(|v| *v >= *"the quick brown fox number 5")),
        ),
        (
            function(4, |array| {
                Ok(array.as_string_view().iter().map(|v| v.map(|v| v.ends_with('3'))).collect::<BooleanArray>())
            }),
            Box::new(move |b, r| text(b, 4, r).is_some_and(|v| v.ends_with('3'))),
        ),
        (compare(5, CompareOp::Eq, Datum::Boolean(true)), Box::new(|b, r| b.column(5).as_boolean().value(r))),
    ]
}

#[test]
fn a_scan_produces_exactly_the_rows_that_pass_all_filters() {
    let spaces = spaces();
    let (version, all) = build(&spaces, &[5_000, 1_500, 3_000], &[700, 1, 1_200]);
    let conditions = conditions();
    let mut next = noise(77);
    let mut seen = 0;
    for round in 0..150 {
        let chosen: Vec<usize> = match round {
            0 => Vec::new(),
            1..=11 => vec![round - 1],
            _ => (0..1 + next() as usize % 4).map(|_| next() as usize % conditions.len()).collect(),
        };
        let batch_rows = [8_192, 1_024, 100, 3_000][round % 4];
        let mut projection = vec![0];
        projection.extend((1..6).filter(|_| next().is_multiple_of(2)).rev());
        let filters = chosen.iter().map(|i| conditions[*i].0.clone()).collect();
        let scan = TableScan::new(Arc::clone(&version), request(projection.clone(), filters, batch_rows));
        let found = read(&scan, batch_rows);
        let passing: Vec<u32> = (0..all.num_rows())
            .filter(|row| chosen.iter().all(|i| conditions[*i].1(&all, *row)))
            .map(|row| row as u32)
            .collect();
        seen += passing.len();
        let expected = all.project(&projection).unwrap();
        let expected = arrow_select::take::take_record_batch(&expected, &UInt32Array::from(passing)).unwrap();
        assert_eq!(found.columns(), expected.columns(), "filters {chosen:?}, projection {projection:?}");
        assert_eq!(scan.metrics().rows_produced, expected.num_rows() as u64);
    }
    assert!(seen > 10_000);
}

#[test]
fn values_come_as_integers_and_codes() {
    let spaces = spaces();
    for (groups, deltas) in [(&[5_000, 30_000][..], &[][..]), (&[5_000, 3_000], &[700]), (&[], &[100])] {
        let (version, all) = build(&spaces, groups, deltas);
        let delta = version.delta_columns(&[1]).unwrap().unwrap();
        let dictionary = version.dictionary(1, &delta[0]).unwrap();
        assert_eq!(dictionary.as_ref().map(|dictionary| dictionary.values().len()), Some(4));
        let codes = dictionary.clone().map_or(Form::Arrow, Form::Codes);
        for filters in [vec![], vec![compare(2, CompareOp::Lt, Datum::Decimal(1_000))]] {
            let forms = vec![Form::Ints, Form::Ints, Form::Ints, codes.clone(), Form::Arrow];
            let request = ScanRequest { forms, ..request(vec![0, 2, 3, 1, 4], filters.clone(), 2_048) };
            let found = read(&TableScan::new(Arc::clone(&version), request), 2_048);
            let plain =
                TableScan::new(Arc::clone(&version), self::request(vec![0, 2, 3, 1, 4], filters.clone(), 2_048));
            let plain = read(&plain, 2_048);
            assert_eq!(found.num_rows(), plain.num_rows());
            assert!(!filters.is_empty() || found.num_rows() == all.num_rows());
            for column in 0..3 {
                let expected = crate::encoding::ints_of(plain.column(column)).unwrap();
                assert_eq!(found.column(column), &expected, "column {column}");
            }
            if let Some(dictionary) = &dictionary {
                let (codes, words) = (found.column(3).as_primitive::<Int64Type>(), plain.column(3).as_string_view());
                for row in 0..found.num_rows() {
                    let word = codes.is_valid(row).then(|| &*dictionary.values()[codes.value(row) as usize]);
                    assert_eq!(word, words.is_valid(row).then(|| words.value(row).as_bytes()), "row {row}");
                }
            }
            assert_eq!(found.column(4), plain.column(4));
        }
    }
}

#[test]
fn row_groups_that_cannot_match_are_not_read() {
    let spaces = spaces();
    let (version, _) = build(&spaces, &[5_000, 5_000, 5_000], &[]);
    let scan = TableScan::new(
        Arc::clone(&version),
        request(vec![0, 4], vec![compare(0, CompareOp::Eq, Datum::Int(7_777))], 8_192),
    );
    assert_eq!(read(&scan, 8_192).num_rows(), 1);
    let metrics = scan.metrics();
    assert_eq!((metrics.row_groups, metrics.row_groups_skipped, metrics.rows_scanned), (3, 2, 5_000));
    let whole = version.row_groups[1].segments()[4].encoded_bytes();
    let read = &metrics.tablespaces[0];
    assert!(
        read.tablespace == "far" && (1..whole).contains(&read.bytes),
        "{read:?} of {whole} bytes of one column alone"
    );
}

#[test]
fn a_limit_holds_over_all_readers_and_row_counts_need_no_columns() {
    let spaces = spaces();
    let (version, all) = build(&spaces, &[20_000, 20_000], &[500]);
    for limit in [0, 1, 99, 8_192, 30_000, 1 << 40] {
        let scan = TableScan::new(
            Arc::clone(&version),
            ScanRequest { limit: Some(Arc::new(AtomicUsize::new(limit))), ..request(vec![], vec![], 8_192) },
        );
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let mut reader = scan.reader();
                std::thread::spawn(move || {
                    let mut rows = 0;
                    while let Some(batch) = reader.next_batch().unwrap() {
                        rows += batch.num_rows();
                    }
                    rows
                })
            })
            .collect();
        let rows: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(rows, limit.min(all.num_rows()));
        let scan = TableScan::new(
            Arc::clone(&version),
            ScanRequest { limit: Some(Arc::new(AtomicUsize::new(limit))), ..request((0..6).collect(), vec![], 8_192) },
        );
        assert_eq!(read(&scan, 8_192).num_rows(), limit.min(all.num_rows()));
        // Two readers may each have decoded what only one of them could hand out.
        let decoded_bytes: u64 = scan.metrics().tablespaces.iter().map(|read| read.decoded_bytes).sum();
        assert!(limit > 8_192 || decoded_bytes <= 200 * limit as u64);
    }
}

#[test]
fn single_row_chunks_leave_together() {
    let spaces = spaces();
    let chunks: Vec<usize> = (0..600).map(|i| if i == 300 { 5_000 } else { 1 }).collect();
    let (version, all) = build(&spaces, &[100], &chunks);
    let scan = TableScan::new(Arc::clone(&version), request((0..6).collect(), vec![], 1_024));
    assert_eq!(read(&scan, 1_024).columns(), all.columns());
    let mut reader = TableScan::new(version, request(vec![], vec![], 1_024)).reader();
    let mut sizes = Vec::new();
    while let Some(batch) = reader.next_batch().unwrap() {
        sizes.push(batch.num_rows());
    }
    assert_eq!(sizes.iter().sum::<usize>(), all.num_rows());
    assert!(sizes.len() <= 10, "{sizes:?}");
}

/// Wants ids from a bound on that others raise.
struct Rising(AtomicU64);

impl FilterSource for Rising {
    fn generation(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
    fn filters(&self) -> Vec<ColumnFilter> {
        let bound = self.generation() as i64;
        if bound == 0 { Vec::new() } else { vec![compare(0, CompareOp::Ge, Datum::Int(bound))] }
    }
}

#[test]
fn dynamic_filters_are_taken_up_while_the_scan_runs() {
    let spaces = spaces();
    let (version, all) = build(&spaces, &[30_000, 30_000, 30_000], &[1_000]);
    let rising = Arc::new(Rising(AtomicU64::new(0)));
    let scan =
        TableScan::new(version, ScanRequest { dynamic: Some(rising.clone() as _), ..request(vec![0], vec![], 1_024) });
    let mut reader = scan.reader();
    assert_eq!(reader.next_batch().unwrap().unwrap().num_rows(), 1_024);
    rising.0.store(85_500, Ordering::Relaxed);
    let mut ids = Vec::new();
    while let Some(batch) = reader.next_batch().unwrap() {
        ids.extend(batch.column(0).as_primitive::<Int64Type>().values().iter().copied());
    }
    assert_eq!(ids, (85_500..all.num_rows() as i64).collect::<Vec<_>>());
    assert!(scan.metrics().row_groups_skipped >= 1);
}

#[test]
fn a_function_never_sees_rows_that_other_filters_put_aside() {
    let spaces = spaces();
    let (version, _) = build(&spaces, &[5_000], &[300]);
    let picky = |column| {
        function(column, |array| {
            let ids = array.as_primitive::<Int64Type>();
            if ids.values().iter().any(|id| id % 2 == 1) {
                return Err(Error::new(SqlState::DIVISION_BY_ZERO, "division by zero"));
            }
            Ok(ids.iter().map(|id| id.map(|id| id % 10 == 0)).collect::<BooleanArray>())
        })
    };
    let even: Vec<Datum> = (0..6_000).step_by(2).map(Datum::Int).collect();
    let filters = vec![picky(0), ColumnFilter::In { column: 0, values: even }];
    // Delta takes filters as they come.
    let filters = filters.into_iter().rev().collect();
    let scan = TableScan::new(Arc::clone(&version), request(vec![0], filters, 8_192));
    assert_eq!(read(&scan, 8_192).num_rows(), 530);
    let scan = TableScan::new(Arc::clone(&version), request(vec![0], vec![picky(0)], 8_192));
    assert_eq!(scan.reader().next_batch().unwrap_err().code(), SqlState::DIVISION_BY_ZERO);
    let wrong = compare(0, CompareOp::Eq, Datum::Text("x".into()));
    let scan = TableScan::new(version, request(vec![0], vec![wrong], 8_192));
    assert_eq!(scan.reader().next_batch().unwrap_err().code(), SqlState::INTERNAL_ERROR);
}

#[test]
fn merging_moves_rows_into_main_and_scans_find_the_same() {
    let spaces = spaces();
    let (table, mut worker, all) = build_table(&spaces, &[2_000, 500], &[100_000, 31_000, 10]);
    let before = testing::version(&table, &mut worker);
    assert_eq!((before.main_rows(), before.delta_rows()), (2_500, 131_010));
    let mut next_id = 100;
    let placement = table.placement.clone();
    for number in 0..table.rows.ranges() {
        let merged = table.rows.merge_range(&worker, number, &mut |batch| {
            next_id += 1;
            RowGroup::encode(RowGroupId(next_id), batch, &placement, &spaces)
        });
        let moves = number >= 2;
        assert_eq!(matches!(merged.unwrap(), Merged::Replaced { .. }), moves, "range {number}");
    }
    // Who looked before still does.
    let scan = TableScan::new(Arc::clone(&before), request((0..6).collect(), vec![], 8_192));
    assert_eq!(read(&scan, 8_192).columns(), all.columns());
    assert!(!table.rows.finish_merge(&worker, 2), "somebody looks at the main before");
    drop((before, scan));
    for number in 0..table.rows.ranges() {
        assert!(table.rows.finish_merge(&worker, number));
    }
    let after = testing::version(&table, &mut worker);
    assert_eq!((after.main_rows(), after.delta_rows()), (all.num_rows() as u64, 0));
    let scan = TableScan::new(after, request((0..6).collect(), vec![], 8_192));
    assert_eq!(read(&scan, 8_192).columns(), all.columns());
    drop(scan);
    assert_eq!(worker.collect(), 0, "nobody looks any more");
    drop((table, worker));
    let left: u64 = spaces.ledger().iter().filter(|row| row.purpose == Purpose::Main).map(|row| row.bytes).sum();
    assert_eq!(left, 0, "segments give their memory back");
}

#[test]
fn rows_of_main_that_were_changed_or_deleted_are_found_as_each_view_sees_them() {
    let spaces = spaces();
    let (table, mut worker, all) = build_table(&spaces, &[10_000], &[300]);
    let before = testing::version(&table, &mut worker);
    let ids = |version: &Arc<TableVersion>| {
        let scan = TableScan::new(Arc::clone(version), request(vec![0, 6], vec![], 8_192));
        let batch = read(&scan, 8_192);
        let ids: Vec<RowId> =
            batch.column(1).as_primitive::<UInt64Type>().values().iter().map(|id| RowId(*id)).collect();
        ids
    };
    let rows_before = ids(&before);
    assert_eq!(rows_before.len(), 10_300);
    // Every seventh row is deleted, every fifth of the others becomes another one.
    let others = rows(50_000, 10_300);
    write(&mut worker, |worker, view, writes| {
        let (images, mut image) = (table.rows.layout().rows(&others).unwrap(), Vec::new());
        for (place, row) in rows_before.iter().enumerate() {
            let outcome = if place.is_multiple_of(7) {
                table.rows.delete(worker, view, writes, *row)
            } else if place.is_multiple_of(5) {
                images.image(place, &mut image).unwrap();
                table.rows.update(worker, view, writes, *row, &image, crate::rows::Keys::Change)
            } else {
                continue;
            };
            assert_eq!(outcome.unwrap(), Outcome::Written);
        }
    });
    let scan = TableScan::new(Arc::clone(&before), request((0..6).collect(), vec![], 8_192));
    assert_eq!(read(&scan, 8_192).columns(), all.columns(), "the view from before");
    let changed = |place: usize| !place.is_multiple_of(7) && place.is_multiple_of(5);
    let stay: Vec<u32> = (0..10_300)
        .filter(|place: &usize| !place.is_multiple_of(7) && !changed(*place))
        .map(|place| place as u32)
        .collect();
    let come: Vec<u32> = (0..10_300).filter(|place| changed(*place)).map(|place| place as u32).collect();
    let take = |batch: &RecordBatch, list: Vec<u32>| {
        arrow_select::take::take_record_batch(batch, &UInt32Array::from(list)).unwrap()
    };
    let expected = [take(&all, stay), take(&others, come)];
    let expected = arrow_select::concat::concat_batches(&expected[0].schema(), &expected).unwrap();
    let after = testing::version(&table, &mut worker);
    for merged in [false, true] {
        let version = if merged {
            let mut next_id = 0;
            for number in 0..table.rows.ranges() {
                let placement = &table.placement;
                let encode = &mut |batch: &RecordBatch| {
                    next_id += 1;
                    RowGroup::encode(RowGroupId(100 + next_id), batch, placement, &spaces)
                };
                let _ = table.rows.merge_range(&worker, number, encode).unwrap();
            }
            testing::version(&table, &mut worker)
        } else {
            Arc::clone(&after)
        };
        for batch_rows in [100, 8_192] {
            let scan = TableScan::new(Arc::clone(&version), request((0..6).collect(), vec![], batch_rows));
            assert_eq!(read(&scan, batch_rows).columns(), expected.columns(), "merged {merged}");
            let filter = vec![compare(0, CompareOp::Ge, Datum::Int(50_000))];
            let scan = TableScan::new(Arc::clone(&version), request(vec![0], filter, batch_rows));
            assert_eq!(read(&scan, batch_rows).num_rows(), (0..10_300).filter(|place| changed(*place)).count());
            assert_eq!(ids(&version).len(), expected.num_rows());
        }
        // Merged rows keep their marks until nobody looks at what was before.
        assert_eq!(version.statistics().rows as usize, expected.num_rows(), "merged {merged}");
    }
    assert_eq!(after.statistics().rows as usize, expected.num_rows());
    assert!(!after.statistics().exact && testing::version(&table, &mut worker).rows_max() >= 8_000);
}

/// What main holds is taken out of heads when nobody looks at the main before, be there a scan of the present one or not.
#[test]
fn a_scan_finds_each_row_once_while_versions_are_taken_out() {
    let spaces = spaces();
    // After so many batches; and whether the rows are scanned, or picked.
    for (after, picked) in (0..4).flat_map(|after| [(after, false), (after, true)]) {
        let (table, mut worker, _) = build_table(&spaces, &[3_000], &[]);
        let ids: Vec<RowId> = (0..3_000).map(|position| RowId::new(0, position)).collect();
        let others = rows(50_000, 3_000);
        write(&mut worker, |worker, view, writes| {
            let (images, mut image) = (table.rows.layout().rows(&others).unwrap(), Vec::new());
            for (place, row) in ids.iter().enumerate().filter(|(place, _)| place % 3 > 0) {
                images.image(place, &mut image).unwrap();
                let outcome = if place % 3 == 1 {
                    table.rows.update(worker, view, writes, *row, &image, crate::rows::Keys::Change)
                } else {
                    table.rows.delete(worker, view, writes, *row)
                };
                assert_eq!(outcome.unwrap(), Outcome::Written);
            }
        });
        let encode = &mut |batch: &RecordBatch| RowGroup::encode(RowGroupId(7), batch, &table.placement, &spaces);
        let merged = table.rows.merge_range(&worker, 0, encode).unwrap();
        assert_eq!(merged, Merged::Replaced { rows: 2_000, dead: 999 });
        let version = testing::version(&table, &mut worker);
        let request = request(vec![0], vec![], 300);
        let scan = match picked {
            true => TableScan::picked(Arc::clone(&version), request, &ids),
            false => TableScan::new(Arc::clone(&version), request),
        };
        let (mut reader, mut found) = (scan.reader(), Vec::new());
        for batch in 0.. {
            if batch == after {
                assert!(table.rows.finish_merge(&worker, 0));
                assert_eq!(table.rows.range(version.view(), 0).unwrap().apart(0).len(), 999, "what is not there");
            }
            let Some(batch) = reader.next_batch().unwrap() else { break };
            found.extend_from_slice(batch.column(0).as_primitive::<Int64Type>().values());
        }
        found.sort_unstable();
        let expected = (0..3_000).step_by(3).chain((50_001..53_000).step_by(3));
        assert_eq!(found.len(), 2_000, "after {after} batches, picked {picked}");
        assert!(expected.eq(found), "after {after} batches, picked {picked}");
    }
}

#[test]
fn a_row_group_moves_by_column() {
    let spaces = spaces();
    let (version, all) = build(&spaces, &[3_000], &[]);
    let mut placement = version.placement.clone();
    placement.columns.insert(4, "near".into());
    let moved = version.row_groups[0].place(&placement, &spaces).unwrap();
    let names: Vec<&str> = moved.segments().iter().map(|segment| segment.tablespace().name()).collect();
    assert_eq!(names, ["far", "far", "far", "far", "near", "far"]);
    assert!(Arc::ptr_eq(&moved.segments()[0], &version.row_groups[0].segments()[0]));
    let moved = Arc::new(moved);
    let (table, mut worker, _) = build_table(&spaces, &[3_000], &[]);
    let replaced = table.rows.replace_group(&worker, 0, &mut |_| Ok(Some(Arc::clone(&moved))));
    assert!(replaced.unwrap());
    let version = testing::version(&table, &mut worker);
    let usage = version.column_usage();
    assert_eq!(usage[4].tablespaces.keys().collect::<Vec<_>>(), ["near"]);
    assert_eq!(usage[4].tablespaces["near"], usage[4].encoded_bytes);
    assert!(usage[0].raw_bytes > usage[0].encoded_bytes);
    let scan = TableScan::new(Arc::clone(&version), request((0..6).collect(), vec![], 999));
    assert_eq!(read(&scan, 999).columns(), all.columns());
    placement.columns.insert(0, "nowhere".into());
    assert_eq!(version.row_groups[0].place(&placement, &spaces).unwrap_err().code(), SqlState::UNDEFINED_OBJECT);
}

#[test]
fn statistics_cover_main_and_delta() {
    let spaces = spaces();
    let (version, _) = build(&spaces, &[5_000, 5_000], &[50]);
    let statistics = version.statistics();
    assert!(Arc::ptr_eq(&statistics, &version.statistics()));
    assert_eq!(statistics.rows, 10_050);
    let id = &statistics.columns[0];
    assert_eq!((&id.min, &id.max), (&Some(Datum::Int(0)), &Some(Datum::Int(10_049))));
    assert_eq!((id.unique, id.distinct_count, id.null_count), (true, Some(10_050), 0));
    let word = &statistics.columns[1];
    assert_eq!((word.unique, word.distinct_count), (false, Some(4)));
    assert_eq!(word.null_count, 385 + 385 + 4);
    assert!(word.value_bytes_avg > 16.0 && word.value_bytes_avg < 32.0, "{}", word.value_bytes_avg);
    // Some of the ids once more: no longer unique.
    let (again, mut worker, _) = build_table(&spaces, &[5_000], &[]);
    insert(&again, &mut worker, &rows(100, 50));
    assert!(!testing::version(&again, &mut worker).statistics().columns[0].unique);
    let (empty, mut worker) = stored(&spaces, table(&COLUMNS), placement("near"));
    let empty = testing::version(&empty, &mut worker).statistics();
    assert_eq!((empty.rows, empty.columns.len(), &empty.columns[0].min), (0, 6, &None));
}

#[test]
fn a_sample_has_whole_rows_from_all_over_the_table() {
    let spaces = spaces();
    let (version, all) = build(&spaces, &[5_000, 5_000], &[50]);
    let ids = |columns: &[ArrayRef]| columns[0].as_primitive::<Int64Type>().values().to_vec();
    let drawn = version.sample(&[0]).unwrap().unwrap();
    let sampled = ids(&drawn);
    assert!((1_900..=2_048).contains(&sampled.len()), "{}", sampled.len());
    let distinct: std::collections::BTreeSet<i64> = sampled.iter().copied().collect();
    assert_eq!(distinct.len(), sampled.len());
    for stretch in 0..10 {
        let of = |id: &&i64| (stretch * 1_000..(stretch + 1) * 1_000).contains(*id);
        assert!((150..260).contains(&sampled.iter().filter(of).count()), "stretch {stretch}");
    }
    assert!(sampled.iter().any(|id| *id >= 10_000), "nothing of delta");
    // Columns that are asked for later are of the same rows.
    let later = version.sample(&[1, 0, 2]).unwrap().unwrap();
    assert_eq!(&later[1], &drawn[0]);
    let rows = UInt32Array::from_iter_values(sampled.iter().map(|id| *id as u32));
    for (column, array) in [(1, &later[0]), (2, &later[2])] {
        assert_eq!(&arrow_select::take::take(all.column(column), &rows, None).unwrap(), array, "column {column}");
    }
    // Of a small table, all.
    let (small, all) = build(&spaces, &[300], &[7]);
    assert_eq!(&small.sample(&[0]).unwrap().unwrap()[0], all.column(0));
    let (empty, mut worker) = stored(&spaces, table(&COLUMNS), placement("near"));
    assert_eq!(testing::version(&empty, &mut worker).sample(&[0]).unwrap().unwrap()[0].len(), 0);
}

#[test]
fn reading_from_a_paced_tablespace_is_charged() {
    let config = |profile| TablespaceConfig {
        name: String::new(),
        location: Location::Anon,
        size_bytes: Some(64 << 20),
        profile,
        profiles: Vec::new(),
        huge_pages: false,
        populate_bytes: 0,
    };
    let slow = Profile {
        name: "slow".into(),
        read_latency_ns: 2_000.0,
        write_latency_ns: 2_000.0,
        read_gb_per_s: 0.05,
        write_gb_per_s: 0.05,
        mixed_gb_per_s: Default::default(),
        link: None,
        granularity_bytes: 64,
        source: "made up".into(),
    };
    let spaces = Tablespaces::open(config(None), config(Some(slow))).unwrap();
    let (version, _) = build(&spaces, &[20_000], &[100]);
    let scan = TableScan::new(version, request((0..6).collect(), vec![], 8_192));
    assert_eq!(read(&scan, 8_192).num_rows(), 20_100);
    // What is counted by column is what was charged.
    let metrics = scan.metrics();
    let counted = |read: &ColumnAccess| read.bytes_sequential + read.delta_bytes + 64 * read.lines_random;
    let charged: u64 = metrics.tablespaces.iter().map(|read| read.bytes).sum();
    assert_eq!(metrics.columns.iter().map(counted).sum::<u64>(), charged);
    assert!(metrics.columns.iter().all(|read| read.rows == 20_100 && read.delta_bytes > 0 && read.delta_runs == 1));
    assert_eq!(metrics.readers, 2);
    for read in metrics.tablespaces {
        assert!(read.bytes > 0 && read.decoded_bytes > 0);
        assert_eq!(read.stall_ns > 0, read.tablespace == "far", "{read:?}");
    }
}

#[test]
fn a_full_tablespace_refuses_and_keeps_nothing() {
    let spaces = spaces();
    let config = TablespaceConfig {
        name: "tiny".into(),
        location: Location::Anon,
        size_bytes: Some(64 << 10),
        profile: None,
        profiles: Vec::new(),
        huge_pages: false,
        populate_bytes: 0,
    };
    let tiny = spaces.create(config).unwrap();
    let error = RowGroup::encode(RowGroupId(1), &rows(0, 20_000), &placement("tiny"), &spaces).unwrap_err();
    assert_eq!(error.code(), SqlState::OUT_OF_MEMORY);
    assert_eq!(tiny.ledger().iter().filter(|row| row.purpose == Purpose::Main).map(|row| row.bytes).sum::<u64>(), 0);
}

/// What a version's scan finds in a column of integers and one of text.
fn found(version: &Arc<TableVersion>) -> (Vec<Option<i64>>, Vec<Option<String>>) {
    let scan = TableScan::new(Arc::clone(version), request(vec![0, 1], vec![], 1_000));
    let (mut numbers, mut texts) = (Vec::new(), Vec::new());
    let mut reader = scan.reader();
    while let Some(batch) = reader.next_batch().unwrap() {
        numbers.extend(batch.column(0).as_primitive::<Int64Type>().iter());
        texts.extend(batch.column(1).as_string_view().iter().map(|text| text.map(str::to_owned)));
    }
    (numbers, texts)
}

#[test]
fn what_is_known_of_delta_holds_for_every_view() {
    for seed in 0..30 {
        let mut next = noise(seed);
        let mut next = move |bound: u64| next() % bound;
        let spaces = spaces();
        let placement = placement("far");
        let (table, mut worker) =
            stored(&spaces, table(&[("n", SqlType::BigInt), ("t", SqlType::Text)]), placement.clone());
        let mut other = worker.transactions().worker().unwrap();
        let row = |value: u64| -> RecordBatch {
            let number = array_of(SqlType::BigInt, 1, |_| (!value.is_multiple_of(9)).then_some(value as i64));
            let text = array_of(SqlType::Text, 1, |_| (!value.is_multiple_of(7)).then_some(value as i64 / 40));
            RecordBatch::try_new(table.def.arrow_schema(), vec![number, text]).unwrap()
        };
        let image = |value: u64| {
            let (batch, mut image) = (row(value), Vec::new());
            table.rows.layout().rows(&batch).unwrap().image(0, &mut image).unwrap();
            image
        };
        let (mut ids, mut group): (Vec<RowId>, u64) = (Vec::new(), 0);
        // Versions are also made of views that were drawn long before.
        let mut views = Vec::new();
        let mut versions: Vec<Arc<TableVersion>> = Vec::new();
        // The other worker's transaction, while it is open.
        let mut open: Option<crate::rows::WriteSet> = None;
        for step in 0..300u64 {
            // Values grow wider, so that what was known before is often not enough.
            let value = 500 + next(step + 2) * 3 - step.min(400);
            match next(8) {
                0..3 => {
                    table.begin_write();
                    write(&mut worker, |worker, view, writes| match ids.get(next(ids.len() as u64 + 1) as usize) {
                        Some(row) if next(6) == 0 => drop(table.rows.delete(worker, view, writes, *row)),
                        Some(row) => drop(table.rows.update(
                            worker,
                            view,
                            writes,
                            *row,
                            &image(value),
                            crate::rows::Keys::Change,
                        )),
                        None => ids.push(table.rows.insert(worker, view, writes, &image(value)).unwrap()),
                    });
                    table.end_write();
                }
                3 => {
                    let mut writes = open.take().unwrap_or_else(|| {
                        other.begin(Isolation::ReadCommitted).unwrap();
                        crate::rows::WriteSet::new()
                    });
                    other.next_command().unwrap();
                    let view = other.snapshot();
                    match ids.get(next(ids.len() as u64 + 1) as usize) {
                        Some(row) => drop(table.rows.update(
                            &other,
                            &view,
                            &mut writes,
                            *row,
                            &image(value),
                            crate::rows::Keys::Change,
                        )),
                        None => _ = table.rows.insert(&other, &view, &mut writes, &image(value)).unwrap(),
                    }
                    drop(view);
                    other.next_command().unwrap();
                    let own = TableVersion::of(&table, &Arc::new(other.hold())).with_own_writes(!writes.is_empty());
                    check_known(&Arc::new(own));
                    if next(3) == 0 {
                        table.begin_write();
                        other.commit(&mut writes).unwrap();
                        table.end_write();
                    } else if next(4) == 0 {
                        other.abort(|worker| writes.undo(worker));
                    } else {
                        open = Some(writes);
                    }
                }
                4 if next(2) == 0 => {
                    let encode = &mut |batch: &RecordBatch| {
                        group += 1;
                        RowGroup::encode(RowGroupId(group), batch, &placement, &spaces)
                    };
                    _ = table.rows.merge_range(&worker, 0, encode).unwrap();
                    table.rows.finish_merge(&worker, 0);
                    // Who was there before looks by the main of then.
                    if let Some(view) = views.first() {
                        check_known(&Arc::new(TableVersion::of(&table, view)));
                        versions.iter().for_each(check_known);
                    }
                }
                5 if !versions.is_empty() => drop(versions.swap_remove(next(versions.len() as u64) as usize)),
                6 => views.push(Arc::new(worker.hold())),
                _ if views.len() > 3 => drop(views.swap_remove(0)),
                _ if !views.is_empty() => {
                    let view = &views[next(views.len() as u64) as usize];
                    versions.push(Arc::new(TableVersion::of(&table, view)));
                }
                _ => {}
            }
            if !versions.is_empty() {
                check_known(&versions[next(versions.len() as u64) as usize]);
            }
        }
        if let Some(mut writes) = open {
            other.abort(|worker| writes.undo(worker));
        }
    }
}

fn check_known(version: &Arc<TableVersion>) {
    let delta = version.delta_columns(&[0, 1]).unwrap().unwrap();
    let (numbers, texts) = found(version);
    let main = |value: &i64| {
        version.row_groups.iter().any(|group| {
            let statistics = group.segments()[0].statistics().unwrap();
            matches!((&statistics.min, &statistics.max), (Some(Datum::Int(min)), Some(Datum::Int(max))) if min <= value && value <= max)
        })
    };
    let known = |value: &i64| {
        main(value) || delta[0].bounds.is_some_and(|(min, max)| min <= (*value).into() && i128::from(*value) <= max)
    };
    let main_nulls = version.row_groups.iter().any(|group| group.segments()[0].statistics().unwrap().null_count > 0);
    for number in &numbers {
        assert!(number.as_ref().map_or(main_nulls || delta[0].nulls > 0, known), "{number:?} of {delta:?}");
    }
    // Main may have other encodings than dictionaries.
    let Some(dictionary) = version.dictionary(1, &delta[1]).unwrap() else { return };
    let forms = vec![Form::Codes(Arc::clone(&dictionary))];
    let scan = TableScan::new(Arc::clone(version), ScanRequest { forms, ..request(vec![1], vec![], 1_000) });
    let (mut reader, mut decoded) = (scan.reader(), Vec::new());
    while let Some(batch) = reader.next_batch().unwrap() {
        let text = |code: i64| String::from_utf8(dictionary.values()[code as usize].to_vec()).unwrap();
        decoded.extend(batch.column(0).as_primitive::<Int64Type>().iter().map(|code| code.map(text)));
    }
    assert_eq!(decoded, texts);
}
