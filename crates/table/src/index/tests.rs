//! Indexes after histories of several sessions: what a scan finds, they find.

use super::*;
use crate::rows::{Outcome, Savepoint, WriteSet};
use crate::schema::{IndexColumn, IndexDef};
use crate::testing::{noise, placement, spaces, stored, table};
use crate::{
    BATCH_ROWS, ColumnFilter, CompareOp, Datum, RowGroup, ScanMetrics, ScanRequest, Table, TableScan, TableVersion,
};
use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, UInt64Type};
use arrow_array::{Array, Int64Array, RecordBatch, StringViewArray};
use std::collections::{BTreeMap, BTreeSet};
use tidepool_base::RowGroupId;
use tidepool_tablespace::Tablespaces;
use tidepool_txn::{HeldSnapshot, Isolation, Worker};

fn index_def(id: u32, columns: Vec<IndexColumn>, unique: bool) -> IndexDef {
    IndexDef {
        id: TableId(id),
        name: format!("i{id}"),
        columns,
        unique,
        nulls_not_distinct: false,
        constraint: None,
        tablespace: None,
        partition_of: None,
        building: false,
    }
}

type Row = (i64, Option<i64>, String);

struct Fixture {
    spaces: Tablespaces,
    table: Arc<Table>,
    transactions: Arc<Transactions>,
    worker: Worker,
}

fn text(value: i64) -> String {
    "é".repeat(value.rem_euclid(5) as usize)
}

fn batch_of(table: &Table, rows: &[Row]) -> RecordBatch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(rows.iter().map(|row| Some(row.0)).collect::<Int64Array>()),
        Arc::new(rows.iter().map(|row| row.1).collect::<Int64Array>()),
        Arc::new(rows.iter().map(|row| Some(&*row.2)).collect::<StringViewArray>()),
    ];
    RecordBatch::try_new(table.def.arrow_schema(), columns).unwrap()
}

/// Unique on `id`, and two that are not.
fn fixture() -> Fixture {
    let spaces = spaces();
    let mut def =
        TableDef::clone(&table(&[("id", SqlType::BigInt), ("value", SqlType::BigInt), ("name", SqlType::Text)]));
    let falling = IndexColumn { number: 2, descending: true, nulls_first: false };
    def.indexes = vec![
        index_def(1, vec![IndexColumn::ascending(1)], true),
        index_def(2, vec![falling, IndexColumn::ascending(3)], false),
    ];
    let (table, worker) = stored(&spaces, Arc::new(def), placement("near"));
    let transactions = Arc::clone(worker.transactions());
    let made: Vec<TableIndex> = (table.def.indexes.iter())
        .map(|def| TableIndex::create(&table.def, def, spaces.far(), &transactions, Some(CommitTs(0))).unwrap())
        .collect();
    let table = Arc::new(table.with_def(table.def.clone()).with_indexes(made));
    Fixture { spaces, table, transactions, worker }
}

impl Fixture {
    fn encode(&self, batch: &RecordBatch, id: u64) -> RowGroup {
        RowGroup::encode(RowGroupId(id), batch, &self.table.placement, &self.spaces).unwrap()
    }

    fn version(&self, view: HeldSnapshot) -> Arc<TableVersion> {
        Arc::new(TableVersion::of(&self.table, &Arc::new(view)))
    }

    /// Every row that the view sees has its entries, and following entries finds nothing else.
    fn check(&self, view: HeldSnapshot, what: &str) -> BTreeMap<RowId, Row> {
        let version = self.version(view);
        let rows = scan(&version);
        for index in self.table.indexes() {
            index.tree().check(version.view()).unwrap();
            let mut key = IndexKey::default();
            for (id, row) in &rows {
                let batch = batch_of(&self.table, std::slice::from_ref(row));
                let columns: Vec<ArrayRef> =
                    index.positions().iter().map(|column| batch.column(*column).clone()).collect();
                index.key_at(&columns, 0, &mut key).unwrap();
                // Not all, so that others are fetched by who writes.
                if !index.is_complete_for(version.view()) {
                    if id.0.is_multiple_of(3) {
                        continue;
                    }
                    assert!(index.is_ready_for(version.view()), "{what}");
                    index.fetch_key(key.bytes()).unwrap();
                }
                let found = index.tree().get(version.view(), key.bytes());
                assert!(found.contains(id), "{what}: row {id} of {row:?} is not in index {}", index.id());
                let read = self.table.rows.read(version.view(), *id).unwrap();
                let mut again = IndexKey::default();
                index.key_of(&self.table.rows, read, &mut again).unwrap();
                assert_eq!(again, key, "{what}");
                if index.is_unique() {
                    let with_key = |other: &&RowId| {
                        let Some(read) = self.table.rows.read(version.view(), **other) else { return false };
                        index.key_of(&self.table.rows, read, &mut again).unwrap();
                        again == key
                    };
                    assert_eq!(found.iter().filter(with_key).count(), 1, "{what}: key of {row:?}");
                }
            }
        }
        if !self.table.indexes().iter().all(|index| index.is_complete_for(version.view())) {
            return rows;
        }
        // Through an index as by a scan.
        for (column, op) in [(0, CompareOp::Eq), (0, CompareOp::Ge), (1, CompareOp::Eq), (1, CompareOp::Lt)] {
            for value in [0, 3, 29, 58] {
                let filters = vec![ColumnFilter::Compare { column, op, value: Datum::Int(value) }];
                let filters = match (column, value) {
                    (1, 58) => vec![ColumnFilter::IsNull { column }],
                    (0, 58) => vec![ColumnFilter::In { column, values: (0..9).map(Datum::Int).collect() }],
                    _ => filters,
                };
                let access = IndexAccess::of_any(&version, &filters).expect("an index on either");
                let by_index = TableScan::through(version.clone(), request(filters.clone()), &access);
                let by_scan = TableScan::new(version.clone(), request(filters));
                assert_eq!(collect(&by_index), collect(&by_scan), "{what}: #{column} {op:?} {value}");
            }
        }
        rows
    }
}

fn request(filters: Vec<ColumnFilter>) -> ScanRequest {
    ScanRequest {
        projection: vec![0, 1, 2, 3],
        filters,
        dynamic: None,
        limit: None,
        batch_rows: BATCH_ROWS,
        forms: Vec::new(),
    }
}

fn scan(version: &Arc<TableVersion>) -> BTreeMap<RowId, Row> {
    collect(&TableScan::new(version.clone(), request(Vec::new())))
}

fn collect(scan: &Arc<TableScan>) -> BTreeMap<RowId, Row> {
    let mut reader = scan.reader();
    let mut rows = BTreeMap::new();
    while let Some(batch) = reader.next_batch().unwrap() {
        let numbers = |column: usize| batch.column(column).as_primitive::<Int64Type>();
        for place in 0..batch.num_rows() {
            let value = numbers(1);
            let row = (
                numbers(0).value(place),
                (!value.is_null(place)).then(|| value.value(place)),
                batch.column(2).as_string_view().value(place).to_owned(),
            );
            rows.insert(RowId(batch.column(3).as_primitive::<UInt64Type>().value(place)), row);
        }
    }
    rows
}

struct Session {
    worker: Worker,
    writes: WriteSet,
    savepoints: Vec<Savepoint>,
}

impl Session {
    fn abort(&mut self) {
        let writes = &mut self.writes;
        self.worker.abort(|worker| writes.undo(worker));
        self.savepoints.clear();
    }

    /// Puts a row's entries in. False: the transaction is to be aborted.
    fn enter(&self, table: &Table, view: &View, id: RowId, row: &Row) -> bool {
        let batch = batch_of(table, std::slice::from_ref(row));
        let mut key = IndexKey::default();
        table.indexes().iter().all(|index| {
            let columns: Vec<ArrayRef> = index.positions().iter().map(|column| batch.column(*column).clone()).collect();
            index.key_at(&columns, 0, &mut key).unwrap();
            index.enter(&table.rows, view, id, &key, &mut Fingers::default()).unwrap() == Entered::Done
        })
    }
}

/// `found`: at which step indexes are put over the rows that there are, as those of a process that attaches to them.
fn run(seed: u64, steps: usize, found: Option<usize>) {
    let mut fixture = fixture();
    let mut table = Arc::clone(&fixture.table);
    let mut next = noise(seed);
    let mut known: Vec<RowId> = Vec::new();
    let mut sessions: Vec<Session> = (0..4)
        .map(|_| Session {
            worker: fixture.transactions.worker().unwrap(),
            writes: WriteSet::new(),
            savepoints: Vec::new(),
        })
        .collect();
    let merger = fixture.transactions.worker().unwrap();
    let mut groups = 1;
    let mut held: Vec<HeldSnapshot> = Vec::new();
    for step in 0..steps {
        if found == Some(step) {
            held.clear();
            sessions.iter_mut().for_each(Session::abort);
            // Only the new ones are told of what is gone.
            let without = Arc::new(table.with_def(Arc::clone(&table.def)).without_indexes(|_| true));
            let version = Arc::new(TableVersion::of(&without, &Arc::new(fixture.worker.hold())));
            let made = (table.def.indexes.iter())
                .map(|def| TableIndex::over(&version, def, fixture.spaces.far(), &fixture.transactions).unwrap());
            fixture.table = Arc::new(without.with_def(Arc::clone(&table.def)).with_indexes(made));
            table = Arc::clone(&fixture.table);
        }
        if found.is_some_and(|found| found < step) && next().is_multiple_of(40) {
            let index = &table.indexes()[next() as usize % 2];
            match next() % 3 {
                0 => drop(index.backfill_next(&|| Ok(())).unwrap()),
                1 => {
                    let bounds = index.codec().bounds(
                        &[],
                        Bound::Included(&KeyValue::BigInt(next() as i64 % 60)),
                        Bound::Excluded(&KeyValue::BigInt(next() as i64 % 60)),
                    );
                    index.fetch_range(bounds.unwrap().range()).unwrap();
                }
                _ if next().is_multiple_of(5) => index.backfill(2, &|| Ok(())).unwrap(),
                _ => {}
            }
        }
        let who = next() as usize % sessions.len();
        let me = &mut sessions[who];
        if !me.worker.is_active() {
            let isolation = if next().is_multiple_of(2) { Isolation::ReadCommitted } else { Isolation::RepeatableRead };
            me.worker.begin(isolation).unwrap();
        }
        // Few, so that they meet.
        let id = next() as i64 % 60;
        let value = (!next().is_multiple_of(5)).then(|| next() as i64 % 7);
        let row: Row = (id, value, text(next() as i64 % 50));
        let mut image = Vec::new();
        let batch = batch_of(&table, std::slice::from_ref(&row));
        table.rows.layout().rows(&batch).unwrap().image(0, &mut image).unwrap();
        match next() % 32 {
            0..=7 => {
                let view = me.worker.snapshot();
                let id = table.rows.insert(&me.worker, &view, &mut me.writes, &image).unwrap();
                known.push(id);
                let entered = me.enter(&table, &view, id, &row);
                drop(view);
                if entered { me.worker.next_command().unwrap() } else { me.abort() }
            }
            8..=18 if !known.is_empty() => {
                let id = known[next() as usize % known.len()];
                let view = me.worker.snapshot();
                let outcome = table
                    .rows
                    .update(&me.worker, &view, &mut me.writes, id, &image, crate::rows::Keys::Change)
                    .unwrap();
                let fails = outcome == Outcome::Written && !me.enter(&table, &view, id, &row);
                drop(view);
                if fails { me.abort() } else { me.worker.next_command().unwrap() }
            }
            19..=21 if !known.is_empty() => {
                let id = known[next() as usize % known.len()];
                let view = me.worker.snapshot();
                let _ = table.rows.delete(&me.worker, &view, &mut me.writes, id).unwrap();
                drop(view);
                me.worker.next_command().unwrap();
            }
            22 => me.savepoints.push(me.writes.savepoint()),
            23 => {
                if let Some(savepoint) = me.savepoints.pop() {
                    me.writes.undo_to(savepoint, &me.worker);
                }
            }
            24 => {
                // A row group, of which one key may be taken.
                let rows: Vec<Row> = (0..40).map(|place| (1000 * step as i64 + place, value, text(place))).collect();
                let mut rows = rows;
                if next().is_multiple_of(2) {
                    rows[17].0 = id;
                }
                let group = Arc::new(fixture.encode(&batch_of(&table, &rows), groups));
                groups += 1;
                let view = me.worker.snapshot();
                let number = table.rows.load(&me.worker, &view, &mut me.writes, group).unwrap();
                let all = rows.iter().zip(0..).all(|(row, position)| {
                    known.push(RowId::new(number, position));
                    me.enter(&table, &view, RowId::new(number, position), row)
                });
                drop(view);
                if all { me.worker.next_command().unwrap() } else { me.abort() }
            }
            25..=27 => {
                me.worker.commit(&mut me.writes).unwrap();
                me.savepoints.clear();
            }
            28 => me.abort(),
            29 => {
                for number in 0..table.rows.ranges() {
                    groups += 1;
                    let id = groups;
                    table.rows.merge_range(&merger, number, &mut |batch| Ok(fixture.encode(batch, id))).unwrap();
                }
            }
            30 => {
                for number in 0..table.rows.ranges() {
                    table.rows.finish_merge(&merger, number);
                }
                merger.collect();
            }
            _ => {
                let mine = me.worker.hold();
                fixture.check(mine, &format!("seed {seed}, step {step}"));
                if held.len() < 3 {
                    held.push(merger.hold());
                } else {
                    let old = held.swap_remove(next() as usize % 3);
                    fixture.check(old, &format!("seed {seed}, step {step}, a view from before"));
                }
            }
        }
        if next().is_multiple_of(100) {
            table.rows.seal();
        }
    }
    held.clear();
    sessions.iter_mut().for_each(Session::abort);
    drop(sessions);
    for index in table.indexes() {
        index.backfill(3, &|| Ok(())).unwrap();
        assert!(index.is_complete_for(&fixture.worker.hold()));
    }
    // When nobody looks any more, nothing is left but what there is.
    for _ in 0..2 {
        for number in 0..table.rows.ranges() {
            groups += 1;
            let id = groups;
            table.rows.merge_range(&merger, number, &mut |batch| Ok(fixture.encode(batch, id))).unwrap();
            table.rows.finish_merge(&merger, number);
        }
        while fixture.worker.collect() + merger.collect() > 0 {}
    }
    let rows = fixture.check(fixture.worker.hold(), &format!("seed {seed}, at the end"));
    let ids: BTreeSet<i64> = rows.values().map(|row| row.0).collect();
    assert_eq!(ids.len(), rows.len(), "seed {seed}: a key is there twice");
    for index in table.indexes() {
        let report = index.tree().check(&fixture.worker.hold()).unwrap();
        assert_eq!(report.entries, rows.len() as u64, "seed {seed}: index {} has entries of nothing", index.id());
    }
    // Made anew of the same rows, they are the same.
    let version = fixture.version(fixture.worker.hold());
    let requests: Vec<BuildRequest> =
        table.def.indexes.iter().map(|def| BuildRequest { def: def.clone(), space: fixture.spaces.near() }).collect();
    let twice = |_: usize, _: &TableIndex, _: &[u8]| Err(Error::internal("a key is there twice"));
    for threads in [1, 3] {
        let made = build_indexes(&version, &fixture.transactions, &requests, threads, &twice, &|| Ok(())).unwrap();
        for (made, kept) in made.iter().zip(table.indexes()) {
            assert_eq!(entries(made, version.view()), entries(kept, version.view()), "seed {seed}");
        }
    }
    fixture.worker.rest();
}

#[test]
fn lookups_are_counted_by_their_scan_and_all_else_by_the_index() {
    let fixture = fixture();
    let table = &fixture.table;
    let mut me =
        Session { worker: fixture.transactions.worker().unwrap(), writes: WriteSet::new(), savepoints: vec![] };
    me.worker.begin(Isolation::ReadCommitted).unwrap();
    for number in 0..2000 {
        let row: Row = (number, Some(number % 10), text(number));
        let batch = batch_of(table, std::slice::from_ref(&row));
        let mut image = Vec::new();
        table.rows.layout().rows(&batch).unwrap().image(0, &mut image).unwrap();
        let view = me.worker.snapshot();
        let id = table.rows.insert(&me.worker, &view, &mut me.writes, &image).unwrap();
        assert!(me.enter(table, &view, id, &row));
        drop(view);
        me.worker.next_command().unwrap();
    }
    me.worker.commit(&mut me.writes).unwrap();
    for index in table.indexes() {
        let IndexUse { lookups, entries, touched } = index.take_use();
        assert_eq!((lookups, entries), (0, 0));
        // Where a leaf is full, the entry is put in with a second attempt.
        assert!((2000..2200).contains(&touched.writes) && touched.leaves >= 2000, "{touched:?}");
        assert!(index.take_use().is_empty());
    }

    let version = fixture.version(fixture.worker.hold());
    let through = |column, value| {
        let filters = vec![ColumnFilter::Compare { column, op: CompareOp::Eq, value: Datum::Int(value) }];
        let access = IndexAccess::of_any(&version, &filters).unwrap();
        let scan = TableScan::through(version.clone(), request(filters), &access);
        let rows = collect(&scan).len();
        (rows, scan.metrics())
    };
    let (rows, metrics) = through(0, 77);
    let (index, used) = metrics.index.unwrap();
    assert_eq!((rows, index, used.lookups, used.entries, used.touched.leaves), (1, TableId(1), 1, 1, 1));
    let far = |metrics: &ScanMetrics| metrics.tablespaces.iter().find(|read| read.tablespace == "far").unwrap().bytes;
    assert_eq!(far(&metrics), used.touched.bytes_read());
    assert!(table.indexes()[0].take_use().is_empty());

    let (rows, metrics) = through(1, 7);
    let (index, used) = metrics.index.unwrap();
    assert_eq!((rows, index, used.lookups, used.entries), (200, TableId(2), 1, 200));
    assert_eq!(far(&metrics), used.touched.bytes_read());
    // A planner's question how many there would be.
    assert!(table.indexes()[1].take_use().touched.leaves > 0);
    assert_eq!(TableScan::new(version.clone(), request(Vec::new())).metrics().index, None);
}

fn entries(index: &TableIndex, view: &View) -> Vec<(Vec<u8>, RowId)> {
    use std::ops::Bound::Unbounded;
    let mut cursor = tidepool_index::Cursor::new((Unbounded, Unbounded), tidepool_index::Direction::Forward);
    let mut all = Vec::new();
    while let Some((key, row)) = cursor.next(index.tree(), view) {
        all.push((key.to_vec(), row));
    }
    all
}

#[test]
#[cfg_attr(miri, ignore = "maps memory")]
fn indexes_agree_with_scans_after_any_history() {
    for seed in 0..8 {
        run(seed, 1500, None);
    }
}

/// Also while entries of rows that were there before are put in, whoever needs them first.
#[test]
#[cfg_attr(miri, ignore = "maps memory")]
fn indexes_over_rows_that_were_found_agree_with_scans_after_any_history() {
    for seed in 0..24 {
        run(seed, 1500, Some(300 + 40 * seed as usize));
    }
}

/// A key is there once from the first moment on, whatever of the index is filled, and of whatever type it is.
#[test]
#[cfg_attr(miri, ignore = "maps memory")]
fn keys_of_rows_that_were_found_are_taken() {
    use crate::rows::Value;
    let numeric = SqlType::Numeric { precision: 12, scale: 2 };
    let types: Vec<(SqlType, Vec<Value<'_>>)> = vec![
        (SqlType::Boolean, vec![Value::Boolean(true), Value::Boolean(false)]),
        (SqlType::SmallInt, vec![Value::Int(-7), Value::Int(7)]),
        (SqlType::Integer, vec![Value::Int(1), Value::Int(i32::MIN.into())]),
        (SqlType::BigInt, vec![Value::Int(1), Value::Int(i64::MAX)]),
        (SqlType::Real, vec![Value::Real(-0.0), Value::Real(f32::NAN), Value::Real(0.1)]),
        (SqlType::DoublePrecision, vec![Value::Double(0.0), Value::Double(f64::NAN), Value::Double(0.1)]),
        (numeric, vec![Value::Numeric(-5), Value::Numeric(1_234_567)]),
        (SqlType::Date, vec![Value::Int(-800), Value::Int(20_000)]),
        (SqlType::Timestamp { precision: None }, vec![Value::Int(-1), Value::Int(1 << 50)]),
        (SqlType::Text, vec![Value::Bytes(b""), Value::Bytes(b"a\0b"), Value::Bytes("é".as_bytes())]),
        (SqlType::Char { length: 4 }, vec![Value::Bytes(b"ab  "), Value::Bytes(b"abcd")]),
        (SqlType::Bytea, vec![Value::Bytes(&[]), Value::Bytes(&[0, 1, 255])]),
        (SqlType::Uuid, vec![Value::Uuid([0xab; 16]), Value::Uuid([7; 16])]),
    ];
    for (sql_type, values) in types {
        let spaces = spaces();
        let mut def = TableDef::clone(&table(&[("key", sql_type)]));
        def.indexes =
            vec![IndexDef { nulls_not_distinct: true, ..index_def(1, vec![IndexColumn::ascending(1)], true) }];
        let (table, worker) = stored(&spaces, Arc::new(def), placement("near"));
        let table = Arc::new(table);
        let mut me = Session { worker, writes: WriteSet::new(), savepoints: vec![] };
        let image_of = |value: Value<'_>| {
            let mut image = Vec::new();
            table.rows.layout().image_of([value], &mut image).unwrap();
            image
        };
        me.worker.begin(Isolation::ReadCommitted).unwrap();
        let view = me.worker.snapshot();
        let all = values.iter().copied().chain([Value::Null]);
        for value in all.clone() {
            table.rows.insert(&me.worker, &view, &mut me.writes, &image_of(value)).unwrap();
        }
        drop(view);
        me.worker.commit(&mut me.writes).unwrap();
        let encode = |batch: &RecordBatch| RowGroup::encode(RowGroupId(1), batch, &table.placement, &spaces);
        table.rows.seal();
        table.rows.merge_range(&me.worker, 0, &mut |batch| encode(batch)).unwrap();
        table.rows.finish_merge(&me.worker, 0);
        me.worker.collect();
        let view = Arc::new(me.worker.hold());
        let version = Arc::new(TableVersion::of(&table, &view));
        assert_eq!((version.main_rows(), version.delta_rows()), (values.len() as u64 + 1, 0), "{sql_type:?}");
        let index = TableIndex::over(&version, &table.def.indexes[0], spaces.far(), me.worker.transactions()).unwrap();
        drop((version, view));
        me.worker.begin(Isolation::ReadCommitted).unwrap();
        let view = me.worker.snapshot();
        let mut key = IndexKey::default();
        for value in all {
            let image = image_of(value);
            let row = table.rows.insert(&me.worker, &view, &mut me.writes, &image).unwrap();
            index.key_of(&table.rows, RowRef::Version(&image), &mut key).unwrap();
            let entered = index.enter(&table.rows, &view, row, &key, &mut Fingers::default()).unwrap();
            assert!(matches!(entered, Entered::Taken(_)), "{value:?} of {sql_type:?}: {entered:?}");
            assert!(!index.is_complete_for(&view));
        }
        drop(view);
        me.abort();
    }
}
