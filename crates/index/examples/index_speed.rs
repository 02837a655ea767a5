//! What an index costs: nanoseconds an operation, of each thread, and bytes an entry.
//!
//! `cargo run --release -p tidepool-index --example index_speed -- [MILLIONS] [PROFILE|none] [KEYS …]`
//!
//! Keys: `integer` (8 bytes in random order), `sequence` (8 bytes in order), `uuid` (16 bytes), `text` (12 to 34 bytes). With
//! a profile the tablespace is paced as that device. Each thread has its own part of the keys for insertions and takes any
//! for look-ups; a scan goes over all entries.
//! Times are of each thread's processor, so that a busy machine changes them less.

use std::hint::black_box;
use std::ops::Bound;
use std::sync::{Arc, Barrier};
use std::time::Duration;
use tidepool_base::{CommitTs, RowId, TablespaceId};
use tidepool_device::{Location, Profile};
use tidepool_index::{Cursor, Direction, Index, IndexBuilder};
use tidepool_tablespace::{Tablespace, TablespaceConfig};
use tidepool_txn::{Transactions, View};

/// A bijection that looks random.
fn mix(n: u64) -> u64 {
    let n = (n ^ n >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
    let n = (n ^ n >> 27).wrapping_mul(0x81da_def4_bc2d_d44d);
    n ^ n >> 33
}

/// The key of entry `n`, in a buffer, so that making it costs little.
fn key_of<'b>(kind: &str, n: u64, buffer: &'b mut [u8; 40]) -> &'b [u8] {
    match kind {
        "sequence" => {
            buffer[..8].copy_from_slice(&n.to_be_bytes());
            &buffer[..8]
        }
        "integer" => {
            buffer[..8].copy_from_slice(&mix(n).to_be_bytes());
            &buffer[..8]
        }
        "uuid" => {
            buffer[..8].copy_from_slice(&mix(n).to_be_bytes());
            buffer[8..16].copy_from_slice(&mix(n ^ 0x5555).to_be_bytes());
            &buffer[..16]
        }
        "text" => {
            const WORDS: [&[u8]; 4] = [b"north/", b"northern-lights/", b"harbour/", b"old-town/street/"];
            let random = mix(n);
            let mut len = 0;
            let mut push = |bytes: &[u8]| {
                buffer[len..len + bytes.len()].copy_from_slice(bytes);
                len += bytes.len();
            };
            push(WORDS[(random & 3) as usize]);
            for digit in 0..14 {
                push(&[b'a' + (random >> (4 * digit + 2) & 15) as u8]);
                if digit >= 6 && random >> (4 * digit + 6) == 0 {
                    break;
                }
            }
            &buffer[..len]
        }
        other => panic!("no keys are called {other}"),
    }
}

/// Processor time of this thread.
fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists on Linux and `time` is valid for writing.
    let answer = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(answer, 0, "a thread can read its own clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Nanoseconds an operation of `work(thread)`, which does `count` of them: of the thread that took longest.
fn measure(threads: u64, count: u64, work: impl Fn(u64) + Sync) -> f64 {
    let barrier = Barrier::new(threads as usize);
    std::thread::scope(|scope| {
        let one = |thread| {
            let (barrier, work) = (&barrier, &work);
            move || {
                barrier.wait();
                let start = now();
                work(thread);
                now() - start
            }
        };
        let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(one(thread))).collect();
        let each = handles.into_iter().map(|handle| handle.join().expect("no operation fails"));
        each.max().unwrap_or_default().as_nanos() as f64 / count as f64
    })
}

fn space(profile: Option<Profile>) -> Arc<Tablespace> {
    let config = TablespaceConfig {
        name: "index".into(),
        location: Location::Anon,
        size_bytes: Some(6 << 30),
        profile,
        profiles: Vec::new(),
        huge_pages: true,
        populate_bytes: 0,
    };
    Tablespace::open(TablespaceId(0), config).expect("anonymous memory")
}

fn scan(index: &Index, view: &View, expected: u64, with_keys: bool) {
    let mut cursor = Cursor::new((Bound::Unbounded, Bound::Unbounded), Direction::Forward);
    let mut count = 0;
    if with_keys {
        while let Some((key, row)) = cursor.next(index, view) {
            black_box((key, row));
            count += 1;
        }
    } else {
        while let Some(row) = cursor.next_row(index, view) {
            black_box(row);
            count += 1;
        }
    }
    assert_eq!(count, expected, "a scan finds every entry");
}

fn run(kind: &str, count: u64, threads: u64, profile: &Option<Profile>) {
    let space = space(profile.clone());
    let transactions = Transactions::starting_after(CommitTs(0));
    // One for all: an index needs it for keeping memory only.
    let view = &*transactions.worker().expect("a slot").hold();
    let index = Index::create(space.clone(), transactions.clone()).expect("room");
    let each = count / threads;
    let count = each * threads;
    let insert = measure(threads, each, |thread| {
        let mut buffer = [0; 40];
        for n in thread * each..(thread + 1) * each {
            let new = index.insert(view, key_of(kind, n, &mut buffer), RowId(n)).expect("room");
            assert!(new);
        }
    });
    let gets = each / 2;
    let get = measure(threads, gets, |thread| {
        let mut buffer = [0; 40];
        for n in 0..gets {
            let n = mix(n + thread * count) % count;
            let rows = index.get(view, key_of(kind, n, &mut buffer));
            assert!(rows.contains(&RowId(n)));
        }
    });
    let rows = measure(threads, count, |_| scan(&index, view, count, false));
    let keys = measure(threads, count, |_| scan(&index, view, count, true));
    let bytes = index.memory().used_bytes as f64 / count as f64;
    let report = index.check(view).expect("a sound tree");
    assert_eq!(report.entries, count);

    let mut cursor = Cursor::new((Bound::Unbounded, Bound::Unbounded), Direction::Forward);
    let mut builder = IndexBuilder::new(space, transactions, 90).expect("room");
    let start = now();
    while let Some((key, row)) = cursor.next(&index, view) {
        builder.push(key, row).expect("room");
    }
    let built = builder.finish().expect("room");
    let build = (now() - start).as_nanos() as f64 / count as f64;
    let built_bytes = built.memory().used_bytes as f64 / count as f64;
    drop(index);
    let built_get = measure(threads, gets, |thread| {
        let mut buffer = [0; 40];
        for n in 0..gets {
            let n = mix(n + thread * count) % count;
            assert!(!built.get(view, key_of(kind, n, &mut buffer)).is_empty());
        }
    });
    let remove = measure(threads, each, |thread| {
        let mut buffer = [0; 40];
        for n in thread * each..(thread + 1) * each {
            assert!(built.remove(view, key_of(kind, n, &mut buffer), RowId(n)));
        }
    });
    println!(
        "{kind:>9} {threads:>7} {insert:>8.0} {get:>6.0} {rows:>6.1} {keys:>6.1} {bytes:>6.1} {:>5.2} {:>6} {build:>6.0} {built_get:>6.0} \
         {built_bytes:>6.1} {remove:>6.0}",
        report.fill, report.levels
    );
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let millions: f64 = arguments.next().map_or(10.0, |count| count.parse().expect("a number of millions"));
    let profile = arguments.next().filter(|name| name != "none");
    let profile = profile.map(|name| Profile::preset(&name).expect("the name of a profile"));
    let kinds: Vec<String> = arguments.collect();
    println!(
        "{:>9} {:>7} {:>8} {:>6} {:>6} {:>6} {:>6} {:>5} {:>6} {:>6} {:>6} {:>6} {:>6}",
        "keys",
        "threads",
        "insert",
        "get",
        "rows",
        "scan",
        "bytes",
        "fill",
        "levels",
        "build",
        "get",
        "bytes",
        "remove"
    );
    for kind in ["integer", "sequence", "uuid", "text"] {
        if kinds.is_empty() || kinds.iter().any(|wanted| wanted == kind) {
            for threads in [1, 2] {
                run(kind, (millions * 1e6) as u64, threads, &profile);
            }
        }
    }
}
