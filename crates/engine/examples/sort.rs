//! What sorting costs a row: `cargo run --release -p tidepool-engine --example sort`.

use arrow_schema::DataType;
use std::sync::Arc;
use std::time::Instant;
use tidepool_base::Result;
use tidepool_engine::pipeline::{Next, Sink, Source};
use tidepool_engine::sort::{Sort, SortKey, SortSink, Sorted, SortedSource};
use tidepool_engine::types::ColumnType;
use tidepool_engine::vector::{CHUNK_ROWS, Chunk, Vector};

#[global_allocator]
static ALLOCATOR: tidepool_heap::TidepoolAllocator = tidepool_heap::TidepoolAllocator;

const CHUNKS: usize = 1500;

fn random(row: usize) -> i64 {
    let mut z = (row as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z >> 20) as i64
}

/// On this thread, so that its own clock tells what it cost whatever else runs.
fn cpu_ns(since: Instant) -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    stat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(since.elapsed().as_nanos() as u64)
}

fn main() -> Result<()> {
    let types = vec![
        ColumnType::new(DataType::Int64, false).within((0, 999)),
        ColumnType::new(DataType::Int64, false),
        ColumnType::new(DataType::Int64, false),
    ];
    let ints = |chunk: usize, of: &dyn Fn(usize) -> i64| {
        Vector::ints((chunk * CHUNK_ROWS..(chunk + 1) * CHUNK_ROWS).map(of).collect())
    };
    let chunks: Vec<Chunk> = (0..CHUNKS)
        .map(|chunk| {
            let columns = vec![
                ints(chunk, &|row| random(row) % 1000),
                ints(chunk, &|row| random(row + 1)),
                ints(chunk, &|row| row as i64),
            ];
            Chunk::new(CHUNK_ROWS, columns)
        })
        .collect();
    let key = |column, descending| SortKey { column, descending, nulls_first: false };
    for (name, keys, limit) in [
        ("one key", vec![key(1, false)], None),
        ("two keys", vec![key(0, true), key(1, false)], None),
        ("first 100", vec![key(1, true), key(0, false)], Some(100)),
        ("first 10,000", vec![key(1, true), key(0, false)], Some(10_000)),
    ] {
        let mut best = [f64::MAX; 3];
        for _ in 0..5 {
            let sorted = Sorted::new(Sort { keys: keys.clone(), limit, types: types.clone() });
            let sink = SortSink(Arc::clone(&sorted));
            let clock = Instant::now();
            let start = cpu_ns(clock);
            let mut state = sink.worker()?;
            chunks.iter().try_for_each(|chunk| state.push(chunk.clone()))?;
            state.end()?;
            let pushed = cpu_ns(clock);
            sink.finish(0, &mut vec![state])?.into_iter().try_for_each(|task| task())?;
            let merged = cpu_ns(clock);
            let mut reader = SortedSource(sorted).reader()?;
            while let Next::Chunk(_) = reader.next()? {}
            let ns = |ns: u64| ns as f64 / (CHUNKS * CHUNK_ROWS) as f64;
            let times = [ns(pushed - start), ns(merged - pushed), ns(cpu_ns(clock) - merged)];
            if times.iter().sum::<f64>() < best.iter().sum() {
                best = times;
            }
        }
        let [push, merge, read] = best;
        println!("{name:14} {:6.2} ns a row (push {push:.2}, merge {merge:.2}, read {read:.2})", push + merge + read);
    }
    Ok(())
}
