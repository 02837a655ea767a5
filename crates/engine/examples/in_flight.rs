//! How many lines a core has on their way while rows are looked up: `cargo run --release -p tidepool-engine --example in_flight [MIB]`.
//!
//! A chunk's loads as the engine makes them, a loop over addresses that are known, beside loads of which each tells the next
//! address. The ratio is what [`tidepool_engine::touch::IN_FLIGHT`] says. Medians; the memory must be far larger than the last
//! cache.

use std::hint::black_box;
use std::time::Instant;
use tidepool_engine::touch::IN_FLIGHT;
use tidepool_engine::vector::CHUNK_ROWS;

const LINE_WORDS: usize = 8;
const LOADS: usize = 4 << 20;
const ROUNDS: usize = 5;

fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

fn median(mut of: impl FnMut() -> f64) -> f64 {
    let mut all: Vec<f64> = (0..ROUNDS).map(|_| of()).collect();
    all.sort_by(f64::total_cmp);
    all[ROUNDS / 2]
}

fn main() {
    let mib: usize = std::env::args().nth(1).map_or(4096, |mib| mib.parse().expect("a number of MiB"));
    let lines = (mib << 20) / 64;
    // Each line names another, in one cycle over all of them (Sattolo).
    let mut order: Vec<u32> = (0..lines as u32).collect();
    let mut state = 88_172_645_463_325_252;
    for last in (1..lines).rev() {
        order.swap(last, next(&mut state) as usize % last);
    }
    let mut words = vec![0u64; lines * LINE_WORDS];
    for (line, following) in order.iter().enumerate() {
        words[line * LINE_WORDS] = u64::from(*following);
    }
    drop(order);
    let mut line = 0u64;
    let dependent = median(|| {
        let start = Instant::now();
        for _ in 0..LOADS {
            line = words[line as usize * LINE_WORDS];
        }
        black_box(line);
        start.elapsed().as_nanos() as f64 / LOADS as f64
    });
    let mut entries: Vec<u64> = Vec::with_capacity(CHUNK_ROWS);
    let mut hashes = vec![0u64; CHUNK_ROWS];
    let looked_up = median(|| {
        let mut spent = 0;
        for _ in 0..LOADS / CHUNK_ROWS {
            hashes.iter_mut().for_each(|hash| *hash = next(&mut state) % lines as u64);
            let start = Instant::now();
            entries.clear();
            entries.extend(hashes.iter().map(|hash| words[*hash as usize * LINE_WORDS]));
            black_box(&entries);
            spent += start.elapsed().as_nanos();
        }
        spent as f64 / LOADS as f64
    });
    println!("{mib} MiB: a load that waits for the one before {dependent:.1} ns, one of a chunk's {looked_up:.1} ns");
    println!("in flight: {:.1} (accounted with {IN_FLIGHT})", dependent / looked_up);
}
