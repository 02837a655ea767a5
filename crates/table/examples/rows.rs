//! What the transactional core costs by itself, without SQL: nanoseconds for a point read and for transactions of one row, by row
//! id and by key, without a log and with one that is not waited for, on one thread and on several.
//!
//! `cargo run --release -p tidepool-table --example rows -- [ROWS [THREADS [PROFILE]]]`; with a profile, delta is paced as
//! that device. The log is in a folder of its own in `TMPDIR`, written out every 200 ms and by whoever has appended 4 MB; what
//! was written is recycled as if a checkpoint had it.

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringViewArray};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use tidepool_base::{CommitTs, Error, Result, RowId, SqlState, SqlType, StoreId, TableId, TablespaceId};
use tidepool_device::{Location, Profile};
use tidepool_index::key::{KeyCodec, KeyColumn, KeyValue};
use tidepool_index::{Index, IndexBuilder};
use tidepool_log::files::{OpenHow, SystemFiles};
use tidepool_log::{Appender, DatabaseIdentity, FileDevice, Log, LogConfig, RecordKind};
use tidepool_table::rows::{Change, Keys, Outcome, RowLayout, RowRef, RowStore, Value, VersionMemory, WriteSet};
use tidepool_table::{ColumnDef, TableDef};
use tidepool_tablespace::{Tablespace, TablespaceConfig};
use tidepool_txn::{Commit, Isolation, Transactions, Validation, Worker};

/// Enough that some run is not interrupted on a busy machine.
const RUNS: usize = 300;

/// Operations of a run, of each thread.
const OPERATIONS: usize = 5_000;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Counts what each thread allocates.
struct Counting;

// SAFETY: the system's allocator does it all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Bench {
    all: Arc<Transactions>,
    store: Arc<RowStore>,
    rows: Vec<RowId>,
    /// From `id` to rows.
    index: Index,
    codec: KeyCodec,
    log: Arc<Log>,
}

/// A transaction's record: rows' ids and images.
struct Logged<'t> {
    writes: &'t mut WriteSet,
    appender: &'t mut Appender,
    record: &'t mut Vec<u8>,
}

impl Commit for Logged<'_> {
    fn reserve(&mut self) -> Result<()> {
        self.record.clear();
        for (store, row, change) in self.writes.changes() {
            self.record.extend(store.id().0.to_le_bytes());
            self.record.extend(row.0.to_le_bytes());
            if let Change::Put { image, .. } = change {
                self.record.extend((image.len() as u32).to_le_bytes());
                self.record.extend(image);
            }
        }
        self.appender.reserve(self.record.len(), &|| Ok(()))
    }

    fn validate(&mut self, check: &Validation<'_>) -> Result<()> {
        self.writes.validate(check)
    }

    fn append(&mut self, ts: CommitTs) {
        self.appender.append(ts, RecordKind(1), self.record);
    }

    fn stamp(&mut self, ts: CommitTs, worker: &Worker) {
        self.writes.stamp(ts, worker);
    }

    fn end_reading(&mut self) {
        self.writes.end_reading();
    }
}

fn table() -> TableDef {
    let columns = vec![
        ColumnDef::new("id", SqlType::BigInt),
        ColumnDef::new("value", SqlType::BigInt),
        ColumnDef::new("note", SqlType::Varchar { length_max: Some(20) }),
    ];
    TableDef::new(TableId(20000), "t", columns, Vec::new())
}

fn space(id: u16, name: &str, profile: Option<Profile>) -> Result<Arc<Tablespace>> {
    let config = TablespaceConfig {
        name: name.into(),
        location: Location::Anon,
        size_bytes: Some(4 << 30),
        profile,
        profiles: Vec::new(),
        huge_pages: true,
        populate_bytes: 0,
    };
    Tablespace::open(TablespaceId(id), config)
}

fn image_of(layout: &RowLayout, id: i64, value: i64) -> Result<Vec<u8>> {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(vec![id])),
        Arc::new(Int64Array::from(vec![value])),
        Arc::new(StringViewArray::from(vec!["twenty characters..."])),
    ];
    let batch =
        RecordBatch::try_new(layout.schema().clone(), columns).map_err(|error| Error::internal(error.to_string()))?;
    let mut image = Vec::new();
    layout.rows(&batch)?.image(0, &mut image)?;
    Ok(image)
}

/// Numbers without a pattern (xorshift).
fn noise(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// One thread's part of a run.
struct Session<'b> {
    bench: &'b Bench,
    worker: Worker,
    writes: WriteSet,
    image: Vec<u8>,
    state: u64,
    key: Vec<u8>,
    appender: Appender,
    record: Vec<u8>,
}

impl Session<'_> {
    fn row(&mut self) -> RowId {
        self.bench.rows[noise(&mut self.state) as usize % self.bench.rows.len()]
    }

    fn value(&self, found: Option<RowRef<'_>>) -> i64 {
        match found {
            Some(RowRef::Version(image)) => match self.bench.store.layout().value(image, 1) {
                Value::Int(value) => value,
                _ => 0,
            },
            _ => 0,
        }
    }

    fn read(&mut self) {
        let row = self.row();
        let view = self.worker.snapshot();
        black_box(self.value(self.bench.store.read(&view, row)));
    }

    /// The key of some row.
    fn draw_key(&mut self) {
        let id = noise(&mut self.state) as usize % self.bench.rows.len();
        self.key.clear();
        self.bench.codec.encode_into([KeyValue::BigInt(id as i64)], &mut self.key).expect("a key");
    }

    fn read_by_key(&mut self) {
        self.draw_key();
        let view = self.worker.snapshot();
        for row in self.bench.index.get(&view, &self.key).iter() {
            black_box(self.value(self.bench.store.read(&view, *row)));
        }
    }

    /// With the log, which is not waited for.
    fn update_by_key(&mut self) {
        self.draw_key();
        self.worker.begin(Isolation::ReadCommitted).expect("no transaction is open");
        let outcome = {
            let view = self.worker.snapshot();
            let row = self.bench.index.get(&view, &self.key)[0];
            self.bench.store.update(&self.worker, &view, &mut self.writes, row, &self.image, Keys::LeaveUnique)
        };
        match outcome.expect("there is room") {
            Outcome::Written => {
                let mut commit =
                    Logged { writes: &mut self.writes, appender: &mut self.appender, record: &mut self.record };
                black_box(self.worker.commit(&mut commit).expect("the log has room"));
            }
            _ => self.worker.abort(|worker| self.writes.undo(worker)),
        }
    }

    fn update(&mut self) {
        let row = self.row();
        self.worker.begin(Isolation::ReadCommitted).expect("no transaction is open");
        let outcome = {
            let view = self.worker.snapshot();
            self.bench.store.update(&self.worker, &view, &mut self.writes, row, &self.image, Keys::LeaveUnique)
        };
        match outcome.expect("there is room") {
            Outcome::Written => drop(black_box(self.worker.commit(&mut self.writes).expect("nothing can fail"))),
            _ => self.worker.abort(|worker| self.writes.undo(worker)),
        }
    }

    fn insert(&mut self) {
        self.worker.begin(Isolation::ReadCommitted).expect("no transaction is open");
        {
            let view = self.worker.snapshot();
            let row = self.bench.store.insert(&self.worker, &view, &mut self.writes, &self.image);
            black_box(row.expect("there is room"));
        }
        self.worker.commit(&mut self.writes).expect("nothing can fail");
    }
}

type Operation = fn(&mut Session<'_>);

/// Nanoseconds of an operation on each of `threads`, allocations of one, the best of many runs.
fn measure(bench: &Bench, threads: usize, operation: impl Fn(&mut Session<'_>) + Sync) -> (f64, f64) {
    let barrier = Barrier::new(threads);
    let (barrier, operation) = (&barrier, &operation);
    let runs: Vec<Vec<(f64, f64)>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || {
                    let mut session = Session {
                        bench,
                        worker: bench.all.worker().expect("there is a slot"),
                        writes: WriteSet::new(),
                        image: image_of(bench.store.layout(), 1, thread as i64).expect("an image"),
                        key: Vec::new(),
                        appender: bench.log.appender().expect("memory"),
                        record: Vec::new(),
                        state: 0x9e37_79b9_7f4a_7c15 ^ (thread as u64 + 1),
                    };
                    (0..RUNS)
                        .map(|_| {
                            barrier.wait();
                            let (start, before) = (Instant::now(), ALLOCATIONS.get());
                            for _ in 0..OPERATIONS {
                                operation(&mut session);
                            }
                            let allocations = (ALLOCATIONS.get() - before) as f64 / OPERATIONS as f64;
                            (start.elapsed().as_nanos() as f64 / OPERATIONS as f64, allocations)
                        })
                        .collect()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread ends")).collect()
    });
    // Of each run the slowest thread counts; of the runs the best.
    (0..RUNS)
        .map(|run| runs.iter().map(|thread| thread[run]).fold((0.0f64, 0.0f64), |a, b| (a.0.max(b.0), a.1.max(b.1))))
        .fold((f64::INFINITY, f64::INFINITY), |a, b| (a.0.min(b.0), a.1.min(b.1)))
}

fn run() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: usize| {
        arguments
            .get(at)
            .map_or(Ok(default), |text| text.parse())
            .map_err(|_| Error::new(SqlState::INVALID_PARAMETER_VALUE, "usage: rows [ROWS [THREADS [PROFILE]]]"))
    };
    let (rows, threads) = (number(0, 1_000_000)?, number(1, 2)?);
    let profile = arguments.get(2).map(|name| Profile::preset(name)).transpose()?;
    let all = Transactions::starting_after(CommitTs(0));
    let (near, delta) = (space(0, "near", None)?, space(1, "delta", profile)?);
    let layout = RowLayout::new(&table())?;
    let store = RowStore::new(StoreId(1), &all, layout, &VersionMemory::new(&delta), &near);
    let codec = KeyCodec::new(vec![KeyColumn::new(SqlType::BigInt)?]);
    let folder = tempfile::tempdir().map_err(|error| Error::io("make a folder for the log", &error))?;
    let device = FileDevice::open(Arc::new(SystemFiles), folder.path(), 64 << 20, OpenHow::default())?;
    let floor = all.clone();
    let log = Log::open(Arc::new(device), LogConfig::new(DatabaseIdentity([1; 16])))?
        .into_log(Box::new(move || CommitTs(floor.floor().0 - 1)))?;
    let index = Index::create(near.clone(), all.clone())?;
    let mut bench = Bench { all, store, rows: Vec::with_capacity(rows), index, codec, log };
    {
        let mut worker = bench.all.worker()?;
        let mut writes = WriteSet::new();
        worker.begin(Isolation::ReadCommitted)?;
        for id in 0..rows {
            let image = image_of(bench.store.layout(), id as i64, 0)?;
            let view = worker.snapshot();
            bench.rows.push(bench.store.insert(&worker, &view, &mut writes, &image)?);
        }
        worker.commit(&mut writes)?;
        let mut builder = IndexBuilder::new(near, bench.all.clone(), 90)?;
        for (id, row) in bench.rows.iter().enumerate() {
            builder.push(&bench.codec.encode([KeyValue::BigInt(id as i64)])?, *row)?;
        }
        bench.index = builder.finish()?;
    }
    let done = Arc::new(AtomicBool::new(false));
    let writer = {
        let (log, done) = (bench.log.clone(), done.clone());
        std::thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(200));
                let kept = log.flush().and_then(|()| log.prepare()).and_then(|()| log.recycle_below(log.durable()));
                kept.expect("the log can be written");
            }
        })
    };
    println!("{rows} rows in delta, {threads} threads, ns an operation");
    println!("{:<34} {:>10} {:>12} {:>12} {:>14}", "", "1 thread", "all threads", "speedup", "allocations");
    let operations: [(&str, Operation); 5] = [
        ("point read, a snapshot each", |session| session.read()),
        ("point read by key", |session| session.read_by_key()),
        ("transaction that updates a row", |session| session.update()),
        ("the same by key, with the log", |session| session.update_by_key()),
        ("transaction that inserts a row", |session| session.insert()),
    ];
    for (name, operation) in operations {
        let (one, allocations) = measure(&bench, 1, operation);
        let (each, _) = measure(&bench, threads, operation);
        let speedup = one * threads as f64 / each;
        println!("{name:<34} {one:>10.1} {each:>12.1} {speedup:>12.2} {allocations:>14.4}");
    }
    done.store(true, Ordering::Relaxed);
    writer.join().expect("the log's thread ends");
    Ok(())
}

fn main() {
    if let Err(error) = run() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
