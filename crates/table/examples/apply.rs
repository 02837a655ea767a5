//! What applying another process's log to rows costs, beside readers: changes of rows at random, a second, with one key and with
//! four, on one thread and on two.
//!
//! `cargo run --release -p tidepool-table --example apply -- [ROWS [CHANGES [READERS]]]`. Each change is of one row, of its own
//! transaction, and comes as the log has it: as a patch. They are published 1,000 at a time. Readers look rows up by id, each
//! under a snapshot of its own.

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringViewArray};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use tidepool_base::{CommitTs, Error, Result, RowId, SqlType, StoreId, TableId, TablespaceId};
use tidepool_device::Location;
use tidepool_table::rows::patch::{self, Patch};
use tidepool_table::rows::{Applied, Applier, RowChange, RowLayout, RowStore, VersionMemory};
use tidepool_table::{ColumnDef, IndexColumn, IndexDef, TableDef, TableIndex};
use tidepool_tablespace::{Tablespace, TablespaceConfig};
use tidepool_txn::Transactions;

/// Changes that are published together.
const BATCH: usize = 1_000;

/// Runs of which the best counts.
const RUNS: usize = 3;

fn space(id: u16, name: &str) -> Result<Arc<Tablespace>> {
    let config = TablespaceConfig {
        name: name.to_owned(),
        location: Location::Anon,
        size_bytes: Some(4 << 30),
        profile: None,
        profiles: Vec::new(),
        huge_pages: false,
        populate_bytes: 0,
    };
    Tablespace::open(TablespaceId(id), config)
}

fn table(keys: usize) -> TableDef {
    let columns = ["id", "a", "b", "c"].map(|name| ColumnDef::new(name, SqlType::BigInt));
    let columns = columns.into_iter().chain([ColumnDef::new("note", SqlType::Text)]).collect();
    let mut def = TableDef::new(TableId(20_000), "t", columns, Vec::new());
    def.number_columns();
    let index = |number: usize| IndexDef {
        id: TableId(20_001 + number as u32),
        name: format!("i{number}"),
        columns: vec![IndexColumn { number: number as u16 + 1, descending: false, nulls_first: false }],
        unique: number == 0,
        nulls_not_distinct: false,
        constraint: None,
        tablespace: None,
        partition_of: None,
        building: false,
    };
    def.indexes = (0..keys).map(index).collect();
    def
}

fn batch(def: &TableDef, ids: std::ops::Range<usize>, salt: usize) -> Result<RecordBatch> {
    let column = |of: &dyn Fn(usize) -> usize| -> ArrayRef {
        Arc::new(ids.clone().map(|id| of(id) as i64).collect::<Int64Array>())
    };
    let scattered = |id: usize, by: usize| (id * by + salt * 7919) % 1_000_003;
    let note = "what the row says beside its numbers, which mostly stays as it is";
    let columns: Vec<ArrayRef> = vec![
        column(&|id| id),
        column(&|id| scattered(id, 31)),
        column(&|id| scattered(id, 37)),
        column(&|id| scattered(id, 41)),
        Arc::new(ids.clone().map(|_| Some(note)).collect::<StringViewArray>()),
    ];
    RecordBatch::try_new(def.arrow_schema(), columns).map_err(|error| Error::internal(error.to_string()))
}

/// Numbers without a pattern.
fn noise(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

struct Change {
    row: RowId,
    base: CommitTs,
    checksum: u32,
    steps: Vec<u8>,
    ts: CommitTs,
}

fn run(rows: usize, changes: usize, keys: usize, threads: usize, readers: usize) -> Result<(f64, f64)> {
    let (near, far) = (space(1, "near")?, space(2, "far")?);
    let def = table(keys);
    let all = Transactions::following(CommitTs(0));
    let store = RowStore::new(StoreId(1), &all, RowLayout::new(&def)?, &VersionMemory::new(&far), &near);
    let indexes = (def.indexes.iter())
        .map(|index| TableIndex::create(&def, index, near.clone(), &all, Some(CommitTs(0))).map(Arc::new))
        .collect::<Result<Vec<_>>>()?;
    let to = Applied::new(&store, &indexes, CommitTs(0));
    let (mut images, mut image) = (Vec::with_capacity(rows), Vec::new());
    {
        let (worker, mut applier) = (all.worker()?, Applier::default());
        let first = batch(&def, 0..rows, 0)?;
        let of = store.layout().rows(&first)?;
        for id in 0..rows {
            of.image(id, &mut image)?;
            applier.apply(
                &to,
                &worker,
                &worker.snapshot_now(),
                RowId(id as u64),
                RowChange::Put(&image),
                CommitTs(10),
            )?;
            images.push((image.clone(), CommitTs(10)));
        }
        all.follow(CommitTs(10));
    }
    let mut state = 0x1234_5678_9abc_def1;
    let mut log = Vec::with_capacity(changes);
    for number in 0..changes {
        let id = noise(&mut state) as usize % rows;
        let one = batch(&def, id..id + 1, number + 1)?;
        store.layout().rows(&one)?.image(0, &mut image)?;
        let (before, base) = &mut images[id];
        let mut steps = Vec::new();
        if !patch::make(before, &image, usize::MAX, &mut steps) {
            return Err(Error::internal("a patch"));
        }
        let ts = CommitTs(20 + number as u64);
        log.push(Change { row: RowId(id as u64), base: *base, checksum: patch::checksum(&image), steps, ts });
        (*before, *base) = (image.clone(), ts);
    }
    drop(images);
    let (done, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    let seconds = std::thread::scope(|scope| -> Result<f64> {
        for reader in 0..readers {
            let (all, store, done, reads) = (&all, &store, &done, &reads);
            scope.spawn(move || {
                let Ok(worker) = all.worker() else { return };
                let mut state = 77 + reader as u64;
                while !done.load(Ordering::Relaxed) {
                    for _ in 0..64 {
                        let view = worker.snapshot();
                        let row = RowId(noise(&mut state) % rows as u64);
                        assert!(store.read(&view, row).is_some());
                    }
                    reads.fetch_add(64, Ordering::Relaxed);
                }
            });
        }
        let mut shards = (0..threads).map(|_| Ok((all.worker()?, Applier::default()))).collect::<Result<Vec<_>>>()?;
        let start = Instant::now();
        for changes in log.chunks(BATCH) {
            let apply = |shard: usize, (worker, applier): &mut (tidepool_txn::Worker, Applier)| -> Result<()> {
                let view = worker.snapshot_now();
                for change in changes.iter().filter(|change| change.row.range() as usize % threads == shard) {
                    let patch = Patch { base: change.base, checksum: change.checksum, steps: &change.steps };
                    applier.apply(&to, worker, &view, change.row, RowChange::Patch(patch), change.ts)?;
                }
                drop(view);
                worker.collect();
                Ok(())
            };
            if threads == 1 {
                apply(0, &mut shards[0])?;
            } else {
                std::thread::scope(|scope| {
                    let apply = &apply;
                    let on: Vec<_> = (shards.iter_mut().enumerate())
                        .map(|(shard, of)| scope.spawn(move || apply(shard, of)))
                        .collect();
                    on.into_iter().try_for_each(|thread| {
                        thread.join().unwrap_or_else(|_| Err(Error::internal("a thread panicked")))
                    })
                })?;
            }
            all.follow(changes.last().map_or(CommitTs(0), |change| change.ts));
        }
        let seconds = start.elapsed().as_secs_f64();
        done.store(true, Ordering::Relaxed);
        Ok(seconds)
    });
    done.store(true, Ordering::Relaxed);
    let seconds = seconds?;
    all.promote(CommitTs(0));
    Ok((changes as f64 / seconds, reads.load(Ordering::Relaxed) as f64 / seconds))
}

fn main() -> Result<()> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<usize>().expect("a number"));
    let rows = numbers.next().unwrap_or(1_000_000);
    let changes = numbers.next().unwrap_or(1_000_000);
    let readers = numbers.next().unwrap_or(2);
    println!("{rows} rows, {changes} changes, {readers} readers; rows a second, and looked up meanwhile");
    for keys in [1, 4] {
        for threads in [1, 2] {
            let mut best = (0.0, 0.0);
            for _ in 0..RUNS {
                let (applied, read) = run(rows, changes, keys, threads, readers)?;
                if applied > best.0 {
                    best = (applied, read);
                }
            }
            println!("{keys} keys, {threads} threads: {:>10.0} {:>12.0}", best.0, best.1);
        }
    }
    Ok(())
}
