//! What the transactional core costs by itself: nanoseconds for a point read and for transactions of one row, without an
//! index, a log or SQL, on one thread and on several.
//!
//! `cargo run --release -p tidepool-table --example rows -- [ROWS [THREADS [PROFILE]]]`; with a profile, delta is paced as
//! that device.

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringViewArray};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::time::Instant;
use tidepool_base::{CommitTs, Error, Result, RowId, SqlState, SqlType, StoreId, TableId, TablespaceId};
use tidepool_device::{Location, Profile};
use tidepool_table::rows::{Outcome, RowLayout, RowRef, RowStore, Value, VersionMemory, WriteSet};
use tidepool_table::{ColumnDef, TableDef};
use tidepool_tablespace::{Tablespace, TablespaceConfig};
use tidepool_txn::{Isolation, Transactions, Worker};

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

    fn update(&mut self) {
        let row = self.row();
        self.worker.begin(Isolation::ReadCommitted).expect("no transaction is open");
        let outcome = {
            let view = self.worker.snapshot();
            self.bench.store.update(&self.worker, &view, &mut self.writes, row, &self.image, true)
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
    let mut bench = Bench { all, store, rows: Vec::with_capacity(rows) };
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
    }
    println!("{rows} rows in delta, {threads} threads, ns an operation");
    println!("{:<34} {:>10} {:>12} {:>12} {:>14}", "", "1 thread", "all threads", "speedup", "allocations");
    let operations: [(&str, Operation); 3] = [
        ("point read, a snapshot each", |session| session.read()),
        ("transaction that updates a row", |session| session.update()),
        ("transaction that inserts a row", |session| session.insert()),
    ];
    for (name, operation) in operations {
        let (one, allocations) = measure(&bench, 1, operation);
        let (each, _) = measure(&bench, threads, operation);
        let speedup = one * threads as f64 / each;
        println!("{name:<34} {one:>10.1} {each:>12.1} {speedup:>12.2} {allocations:>14.4}");
    }
    Ok(())
}

fn main() {
    if let Err(error) = run() {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
