//! What aggregation costs a row: `cargo run --release -p tidepool-engine --example aggregate [NAME]`.

use arrow_schema::DataType;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;
use tidepool_base::Result;
use tidepool_engine::aggregate::{
    Aggregate, AggregateCall, AggregateFunction as F, AggregateSink, AggregateSource, AggregateTable,
};
use tidepool_engine::pipeline::{Next, Sink, Source, Task};
use tidepool_engine::text::{Owners, Text};
use tidepool_engine::types::ColumnType;
use tidepool_engine::vector::{CHUNK_ROWS, Chunk, Texts, Values, Vector};

/// As the server's: what is freed goes to whoever asks next, not back to the system.
#[global_allocator]
static ALLOCATOR: tidepool_heap::TidepoolAllocator = tidepool_heap::TidepoolAllocator;

const ROWS: usize = 6_000_000;

fn random(row: usize, salt: u64) -> u64 {
    let mut z = (row as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(salt.wrapping_mul(0xd1b5_4a32_d192_ed03));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn decimal(scale: i8, upper: i128) -> ColumnType {
    ColumnType::new(DataType::Decimal128(15, scale), false).within((0, upper))
}

fn call(function: F, argument: Option<usize>, of: DataType) -> AggregateCall {
    AggregateCall { function, argument, filter: None, distinct: false, of: ColumnType::new(of, true) }
}

fn chunks(columns: &[&dyn Fn(usize) -> Vector]) -> Vec<Chunk> {
    let of_chunk = |start: usize| {
        let rows = CHUNK_ROWS.min(ROWS - start);
        let columns: Vec<Vector> = columns.iter().map(|column| column(start).slice(0, rows)).collect();
        Chunk::new(rows, columns)
    };
    (0..ROWS).step_by(CHUNK_ROWS).map(of_chunk).collect()
}

/// A few chunks over and over, which stay in the cache, as a scan's do.
fn cached(columns: &[&dyn Fn(usize) -> Vector]) -> Vec<Chunk> {
    let few: Vec<Chunk> =
        (0..8).map(|chunk| Chunk::new(CHUNK_ROWS, columns.iter().map(|of| of(chunk * CHUNK_ROWS)).collect())).collect();
    (0..ROWS / CHUNK_ROWS).map(|chunk| few[chunk % few.len()].clone()).collect()
}

fn ints(start: usize, value: impl Fn(usize) -> i64) -> Vector {
    Vector::ints((start..start + CHUNK_ROWS).map(value).collect())
}

/// This thread's time on a processor: other load does not count. `None` where the system does not tell.
fn cpu_ns() -> Option<u64> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    stat.split(' ').next()?.parse().ok()
}

/// Runs it on some threads. The time that the busiest was at work.
fn timed(threads: usize, work: impl Fn() + Sync) -> u64 {
    let busiest = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let (start, before) = (Instant::now(), cpu_ns());
                work();
                let elapsed = start.elapsed().as_nanos() as u64;
                let used = before.zip(cpu_ns()).map_or(elapsed, |(before, after)| after - before);
                // Its clock is too coarse for short times.
                let used = if used == 0 { elapsed } else { used };
                busiest.fetch_max(used, Ordering::Relaxed);
            });
        }
    });
    busiest.into_inner()
}

/// Times of the three phases, in ns a row, and the groups.
fn run(aggregate: &Aggregate, chunks: &[Chunk], threads: usize) -> Result<([f64; 3], usize)> {
    let table = AggregateTable::new(aggregate)?;
    let sink = AggregateSink::new(&table);
    let next = AtomicUsize::new(0);
    let states = Mutex::new(Vec::new());
    let pushed = timed(threads, || {
        let mut state = sink.worker().expect("a worker");
        // Neighbouring chunks go to one worker, as a morsel's do.
        loop {
            let first = next.fetch_add(16, Ordering::Relaxed);
            if first >= chunks.len() {
                break;
            }
            for chunk in &chunks[first..chunks.len().min(first + 16)] {
                state.push(chunk.clone()).expect("a push");
            }
        }
        state.end().expect("an end");
        states.lock().expect("states").push(state);
    });
    let mut states = states.into_inner().expect("states");
    let mut finished = 0;
    for round in 0.. {
        let before = cpu_ns();
        let tasks: Mutex<Vec<Task>> = Mutex::new(sink.finish(round, &mut states)?);
        finished += before.zip(cpu_ns()).map_or(0, |(before, after)| after - before);
        if tasks.lock().expect("tasks").is_empty() {
            break;
        }
        finished += timed(threads, || {
            loop {
                let Some(task) = tasks.lock().expect("tasks").pop() else { break };
                task().expect("a task");
            }
        });
    }
    let source = AggregateSource::new(&table);
    let groups = AtomicUsize::new(0);
    let read = timed(threads, || {
        let mut reader = source.reader().expect("a reader");
        while let Next::Chunk(chunk) = reader.next().expect("a chunk") {
            groups.fetch_add(chunk.rows, Ordering::Relaxed);
        }
    });
    let ns = |time: u64| time as f64 / ROWS as f64;
    Ok(([ns(pushed), ns(finished), ns(read)], groups.into_inner()))
}

fn measure(name: &str, aggregate: &Aggregate, chunks: &[Chunk]) -> Result<()> {
    for threads in [1, 2] {
        let mut best = ([f64::MAX; 3], 0);
        for _ in 0..5 {
            let result = run(aggregate, chunks, threads)?;
            if result.0.iter().sum::<f64>() < best.0.iter().sum() {
                best = result;
            }
        }
        let ([push, finish, read], groups) = best;
        let all = push + finish + read;
        println!(
            "{name:24} {threads} threads, {groups:8} groups: {all:6.2} ns a row (push {push:.2}, finish {finish:.2}, read {read:.2})"
        );
    }
    Ok(())
}

fn main() -> Result<()> {
    let wanted = std::env::args().nth(1);
    let is_wanted = |name: &str| wanted.as_ref().is_none_or(|wanted| name.contains(wanted.as_str()));
    let count = || call(F::Count, None, DataType::Int64);
    let sum = |argument, scale| call(F::Sum, Some(argument), DataType::Decimal128(38, scale));
    let average = |argument| call(F::Avg, Some(argument), DataType::Decimal128(38, 16));
    let amount = |start| ints(start, |row| (random(row, 9) % 10_000_000) as i64);
    let flag = |start| ints(start, |row| [0, 1, 1, 2][(random(row, 1) % 4) as usize]);
    let status = |start| ints(start, |row| [0, 0, 1, 0][(random(row, 1) % 4) as usize]);
    if is_wanted("few") {
        let key = |upper| ColumnType::new(DataType::Int32, false).within((0, upper));
        let aggregate = Aggregate {
            input: vec![
                key(2),
                key(1),
                decimal(2, 5000),
                decimal(2, 10_000_000),
                decimal(4, 1_000_000_000),
                decimal(6, 100_000_000_000),
                decimal(2, 10),
            ],
            keys: vec![0, 1],
            functions: vec![sum(2, 2), sum(3, 2), sum(4, 4), sum(5, 6), average(2), average(3), average(6), count()],
            rows_max: ROWS as u64,
        };
        let columns: [&dyn Fn(usize) -> Vector; 7] = [
            &flag,
            &status,
            &|start| ints(start, |row| (random(row, 2) % 5000) as i64),
            &amount,
            &|start| ints(start, |row| (random(row, 4) % 1_000_000_000) as i64),
            &|start| ints(start, |row| (random(row, 5) % 100_000_000_000) as i64),
            &|start| ints(start, |row| (random(row, 6) % 10) as i64),
        ];
        measure("few, as in Q1", &aggregate, &cached(&columns))?;
    }
    let of_key = |key: ColumnType, functions: Vec<AggregateCall>| Aggregate {
        input: vec![key, decimal(2, 10_000_000)],
        keys: vec![0],
        functions,
        rows_max: ROWS as u64,
    };
    if is_wanted("one") {
        let mut aggregate = of_key(ColumnType::new(DataType::Int64, false), vec![sum(1, 2), count()]);
        aggregate.keys.clear();
        measure("one", &aggregate, &cached(&[&flag, &amount]))?;
    }
    if is_wanted("dates") {
        let key = ColumnType::new(DataType::Date32, false).within((8000, 10_600));
        let date = |start| ints(start, |row| 8000 + (random(row, 3) % 2526) as i64);
        measure("dates", &of_key(key, vec![sum(1, 2), count()]), &cached(&[&date, &amount]))?;
    }
    let key = || ColumnType::new(DataType::Int64, false).within((0, 6_000_000_000));
    for (name, value) in [
        ("clustered", &(|row: usize| (row / 4) as i64 * 4) as &dyn Fn(usize) -> i64),
        ("ascending", &|row| row as i64 * 5),
        ("shuffled", &|row| (random(row, 7) % 1_500_000) as i64),
        ("unique", &|row| (row as i64).wrapping_mul(7_919) % 6_000_000_000),
        ("skewed", &|row| if random(row, 7).is_multiple_of(2) { 1 } else { (random(row, 8) % 1_500_000) as i64 }),
        ("ten thousand", &|row| (random(row, 7) % 10_000) as i64 * 100_003),
    ] {
        if is_wanted(name) {
            let keys = |start| ints(start, value);
            measure(name, &of_key(key(), vec![sum(1, 2), count()]), &chunks(&[&keys, &amount]))?;
        }
    }
    if is_wanted("text") {
        let texts = |start: usize| {
            let text = |row| Text::short(format!("name {:05}", random(row, 7) % 10_000).as_bytes());
            // SAFETY: all of them are short.
            let texts = unsafe { Texts::new((start..start + CHUNK_ROWS).map(text).collect(), Owners::default()) };
            Vector { values: Values::Text(texts), valid: None }
        };
        let key = ColumnType::new(DataType::Utf8View, false);
        measure("text", &of_key(key, vec![sum(1, 2), count()]), &chunks(&[&texts, &amount]))?;
    }
    if is_wanted("distinct") {
        let keys = |start| ints(start, |row| (random(row, 7) % 18_000) as i64 * 100_003);
        let values = |start| ints(start, |row| (random(row, 8) % 10_000) as i64);
        let functions = vec![AggregateCall { distinct: true, ..call(F::Count, Some(1), DataType::Int64) }];
        measure("distinct", &of_key(key(), functions), &chunks(&[&keys, &values]))?;
    }
    Ok(())
}
