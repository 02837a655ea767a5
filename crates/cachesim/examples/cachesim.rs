//! `cachesim SETUP LAST-LEVEL-CACHE-BYTES < TRACE`: reads lackey's trace, prints what it saw as JSON.
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
    let [path, bytes] = args.as_slice() else {
        return Err("usage: cachesim SETUP LAST-LEVEL-CACHE-BYTES < TRACE".to_owned());
    };
    let bytes: u64 = bytes.parse().map_err(|_| format!("not a number of bytes: {bytes}"))?;
    let mut observer: Option<Observer> = None;
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
        match &mut observer {
            Some(observer) => {
                for line in piece[..whole].split(|byte| *byte == b'\n') {
                    if let Some(access) = parse_line(line) {
                        observer.access(access);
                    }
                }
            }
            // Renamed into its place, so it is whole or not there.
            None => {
                if let Ok(text) = fs::read_to_string(path) {
                    observer = Some(Observer::new(Setup::parse(&text)?, bytes));
                    fs::write(format!("{path}.seen"), "").map_err(|error| format!("write {path}.seen: {error}"))?;
                }
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
    let observer = observer.ok_or_else(|| format!("the program never wrote {path}"))?;
    print(observer.intervals());
    Ok(())
}

fn print(intervals: &[Interval]) {
    let intervals = intervals.iter().map(|interval| {
        let ranges = interval.ranges.iter().map(|(name, counts)| {
            format!(
                "\"{name}\": {{\"loads\": {}, \"stores\": {}, \"load_misses\": {}, \"store_misses\": {}, \
                 \"written_back\": {}}}",
                counts.loads, counts.stores, counts.load_misses, counts.store_misses, counts.written_back
            )
        });
        format!("  {{{}}}", ranges.collect::<Vec<_>>().join(", "))
    });
    println!("[\n{}\n]", intervals.collect::<Vec<_>>().join(",\n"));
}
