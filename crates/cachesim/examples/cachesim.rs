//! `cachesim SETUP LAST-LEVEL-CACHE-BYTES... < TRACE`: reads lackey's trace, prints what it saw with each cache as JSON.
//!
//! The watched program writes SETUP (see [`Setup`]) when it is ready, and goes on when `SETUP.seen` exists: then all of the
//! trace up to there has been read.

use std::fs;
use std::io::{self, Read};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;
use tidepool_cachesim::{Interval, Observer, Setup, parse_line};

/// A pipe's worth, at its largest.
const PIECE_BYTES: usize = 1 << 20;

/// Between two reads, when the pipe was nearly empty. valgrind writes a hundred bytes at a time: a reader that waits for them
/// is woken for each, and costs more than valgrind itself.
const PAUSE: Duration = Duration::from_micros(500);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cachesim: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (path, sizes) = match args.as_slice() {
        [path, sizes @ ..] if !sizes.is_empty() => (path, sizes),
        _ => return Err("usage: cachesim SETUP LAST-LEVEL-CACHE-BYTES... < TRACE".to_owned()),
    };
    let number = |bytes: &String| bytes.parse().map_err(|_| format!("not a number of bytes: {bytes}"));
    let sizes = sizes.iter().map(number).collect::<Result<Vec<u64>, String>>()?;
    // One a cache; none until the program is ready.
    let mut observers: Vec<Observer> = Vec::new();
    let mut input = io::stdin().lock();
    let mut piece = vec![0; PIECE_BYTES];
    // The start of a line whose end is still to come.
    let mut kept = 0;
    loop {
        let read = input.read(&mut piece[kept..]).map_err(|error| format!("read the trace: {error}"))?;
        if read == 0 {
            break;
        }
        let filled = kept + read;
        let whole = piece[..filled].iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        if observers.is_empty() {
            // Renamed into its place, so it is whole or not there.
            if let Ok(text) = fs::read_to_string(path) {
                let setup = Setup::parse(&text)?;
                observers = sizes.iter().map(|bytes| Observer::new(setup.clone(), *bytes)).collect();
                fs::write(format!("{path}.seen"), "").map_err(|error| format!("write {path}.seen: {error}"))?;
            }
        } else {
            let accesses = piece[..whole].split(|byte| *byte == b'\n').filter_map(parse_line);
            for access in accesses {
                observers.iter_mut().for_each(|observer| observer.access(access));
            }
        }
        if whole == 0 && filled == piece.len() {
            return Err("a line of a megabyte is not lackey's".to_owned());
        }
        piece.copy_within(whole..filled, 0);
        kept = filled - whole;
        if read < PIECE_BYTES / 4 {
            thread::sleep(PAUSE);
        }
    }
    if observers.is_empty() {
        return Err(format!("the program never wrote {path}"));
    }
    let caches: Vec<String> = sizes
        .iter()
        .zip(&observers)
        .map(|(bytes, observer)| {
            let intervals = intervals(observer.intervals());
            format!("{{\"last_level_cache_bytes\": {bytes}, \"intervals\": [\n{intervals}\n]}}")
        })
        .collect();
    println!("[{}]", caches.join(",\n"));
    Ok(())
}

fn intervals(intervals: &[Interval]) -> String {
    let intervals = intervals.iter().map(|interval| {
        let ranges = interval.ranges.iter().map(|(name, counts)| {
            format!(
                "\"{name}\": {{\"loads\": {}, \"stores\": {}, \"load_misses\": {}, \"store_misses\": {}, \
                 \"written_back\": {}, \"left_dirty\": {}}}",
                counts.loads,
                counts.stores,
                counts.load_misses,
                counts.store_misses,
                counts.written_back,
                counts.left_dirty
            )
        });
        format!("  {{{}}}", ranges.collect::<Vec<_>>().join(", "))
    });
    intervals.collect::<Vec<_>>().join(",\n")
}
