//! The protocols against many interleavings, on the slots and the horizon as they are:
//! `RUSTFLAGS="--cfg loom" cargo test --release -p tidepool-txn --lib model`.
//!
//! loom's memory is weak: a load may find an old value unless something orders it, so a fence that is missing is missed.

use crate::sync::{AtomicU64, AtomicUsize, Ordering};
use crate::{Appended, Commit, Isolation, NEVER, Reads, Standing, Tag, Transactions, Validation, Worker};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use tidepool_base::{CommitTs, Result};

/// loom's threads share by loom's `Arc` what they write, and by this one what has atomics of its own.
type All = std::sync::Arc<Transactions>;

fn model(bound: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(bound);
    builder.check(run);
}

/// Versions, of which one transaction writes some.
struct Versions(Vec<AtomicU64>);

impl Versions {
    fn new(count: usize) -> Arc<Versions> {
        Arc::new(Versions((0..count).map(|_| AtomicU64::new(NEVER.0)).collect()))
    }

    fn write(&self, index: usize, worker: &Worker) {
        self.0[index].store(worker.tag_to_write().word(), Ordering::Release);
    }
}

struct Work<'a> {
    versions: &'a Versions,
    written: &'a [usize],
    read: Option<usize>,
}

struct OneRead<'a>(&'a AtomicU64);

impl Reads for OneRead<'_> {
    fn still_hold(&self, check: &Validation<'_>) -> Result<bool> {
        Ok(check.standing(self.0) != Standing::Conflict)
    }
}

impl Commit for Work<'_> {
    fn reserve(&mut self) -> Result<()> {
        Ok(())
    }

    fn validate(&mut self, check: &Validation<'_>) -> Result<()> {
        let read = self.read.map(|index| OneRead(&self.versions.0[index]));
        check.check(read.iter().map(|read| read as &dyn Reads))
    }

    fn append(&mut self, _: CommitTs) {}

    fn stamp(&mut self, ts: CommitTs, _: &Worker) {
        for index in self.written {
            self.versions.0[*index].store(ts.0, Ordering::Release);
        }
    }
}

fn write_two(all: &All, worker: &mut Worker, versions: &Versions) -> CommitTs {
    worker.begin(Isolation::ReadCommitted).unwrap();
    versions.write(0, worker);
    versions.write(1, worker);
    let ts = worker.commit(&mut Work { versions, written: &[0, 1], read: None }).unwrap().unwrap();
    assert!(all.clock().now() >= ts);
    ts
}

/// A reader sees both versions of a transaction or none, whatever the transaction is doing meanwhile.
#[test]
fn a_commit_is_seen_whole_or_not_at_all() {
    model(3, || {
        let all = Transactions::starting_after(CommitTs(0));
        let (mut writer, reader) = (all.worker().unwrap(), all.worker().unwrap());
        let versions = Versions::new(2);
        let other = {
            let (all, versions) = (All::clone(&all), Arc::clone(&versions));
            thread::spawn(move || {
                let snapshot = reader.snapshot();
                let first = snapshot.sees(&all, &versions.0[0], 0);
                let second = snapshot.sees(&all, &versions.0[1], 0);
                assert_eq!(first, second, "half of a transaction");
                let ts = snapshot.ts();
                drop(snapshot);
                (ts, first)
            })
        };
        let c = write_two(&all, &mut writer, &versions);
        let (s, seen) = other.join().unwrap();
        assert_eq!(seen, c <= s, "the timestamps tell the same");
    });
}

/// What a commit that returned wrote is seen by whoever hears of it.
#[test]
fn what_was_acknowledged_is_seen() {
    model(3, || {
        let all = Transactions::starting_after(CommitTs(0));
        let (mut writer, reader) = (all.worker().unwrap(), all.worker().unwrap());
        let versions = Versions::new(2);
        let told = Arc::new(AtomicUsize::new(0));
        let other = {
            let (all, versions, told) = (All::clone(&all), Arc::clone(&versions), Arc::clone(&told));
            thread::spawn(move || {
                if told.load(Ordering::Acquire) == 1 {
                    assert!(reader.snapshot().sees(&all, &versions.0[0], 0));
                }
            })
        };
        write_two(&all, &mut writer, &versions);
        told.store(1, Ordering::Release);
        other.join().unwrap();
    });
}

/// The slot is used again at once, so a reader may find its tag gone, or another transaction where it looks for this one.
#[test]
fn a_tag_is_told_from_the_next_transaction_of_its_slot() {
    model(3, || {
        let all = Transactions::starting_after(CommitTs(0));
        let (mut writer, reader) = (all.worker().unwrap(), all.worker().unwrap());
        let versions = Versions::new(3);
        let other = {
            let (all, versions) = (All::clone(&all), Arc::clone(&versions));
            thread::spawn(move || {
                let snapshot = reader.snapshot();
                let seen = [0, 2, 1].map(|index| snapshot.sees(&all, &versions.0[index], 0));
                assert_eq!(seen[0], seen[2], "half of a transaction");
                assert!(seen[0] || !seen[1], "the second without the first");
            })
        };
        write_two(&all, &mut writer, &versions);
        // The second is aborted after it was about to commit, or commits.
        writer.begin(Isolation::ReadCommitted).unwrap();
        versions.write(2, &writer);
        writer.commit(&mut Work { versions: &versions, written: &[2], read: None }).unwrap();
        other.join().unwrap();
    });
}

/// Nor is an aborted transaction taken for the next one, which commits.
#[test]
fn an_aborted_version_stays_unseen() {
    model(3, || {
        let all = Transactions::starting_after(CommitTs(0));
        let (mut writer, reader) = (all.worker().unwrap(), all.worker().unwrap());
        let versions = Versions::new(2);
        let other = {
            let (all, versions) = (All::clone(&all), Arc::clone(&versions));
            thread::spawn(move || {
                let snapshot = reader.snapshot();
                assert!(!snapshot.sees(&all, &versions.0[0], 0));
            })
        };
        writer.begin(Isolation::ReadCommitted).unwrap();
        versions.write(0, &writer);
        writer.abort(|_| versions.0[0].store(NEVER.0, Ordering::Release));
        writer.begin(Isolation::ReadCommitted).unwrap();
        versions.write(1, &writer);
        writer.commit(&mut Work { versions: &versions, written: &[1], read: None }).unwrap();
        other.join().unwrap();
    });
}

/// Memory behind a pointer is replaced, retired and freed while a snapshot may be looking at it.
#[test]
fn nothing_is_freed_under_a_snapshot() {
    model(3, || {
        let all = Transactions::starting_after(CommitTs(0));
        let (writer, reader) = (all.worker().unwrap(), all.worker().unwrap());
        let memory: Arc<[UnsafeCell<u64>; 2]> = Arc::new([UnsafeCell::new(0), UnsafeCell::new(0)]);
        let current = Arc::new(AtomicUsize::new(0));
        let other = {
            let (memory, current) = (Arc::clone(&memory), Arc::clone(&current));
            thread::spawn(move || {
                // Twice, as the second may come after the first one let the horizon pass.
                for _ in 0..2 {
                    let snapshot = reader.snapshot();
                    let at = current.load(Ordering::Acquire);
                    // SAFETY: loom tells if anybody writes here meanwhile.
                    memory[at].with(|value| unsafe { assert_eq!(*value, 0) });
                    drop(snapshot);
                }
            })
        };
        current.store(1, Ordering::Release);
        let retired = writer.retirement_ts();
        if all.advance_horizon() > retired {
            // SAFETY: as above.
            memory[0].with_mut(|value| unsafe { *value = 1 });
        }
        other.join().unwrap();
    });
}

/// Two move the horizon, one of them with an old look at the clock.
#[test]
fn no_snapshot_is_below_the_horizon() {
    model(2, || {
        let all = Transactions::starting_after(CommitTs(0));
        let reader = all.worker().unwrap();
        let movers: Vec<_> = (0..2)
            .map(|_| {
                let all = All::clone(&all);
                thread::spawn(move || drop(all.advance_horizon()))
            })
            .collect();
        let snapshot = reader.snapshot();
        assert!(snapshot.ts() >= all.horizon());
        for mover in movers {
            mover.join().unwrap();
        }
        assert!(snapshot.ts() >= all.horizon());
        assert!(all.advance_horizon() <= snapshot.ts());
    });
}

fn skew(all: &All, worker: &mut Worker, versions: &Versions, written: usize, read: usize) -> bool {
    worker.begin(Isolation::Serializable).unwrap();
    let sees = {
        let snapshot = worker.snapshot();
        snapshot.sees(all, &versions.0[read], 0)
    };
    if sees {
        worker.abort(|_| ());
        return false;
    }
    versions.write(written, worker);
    match worker.commit(&mut Work { versions, written: &[written], read: Some(read) }) {
        Ok(_) => true,
        Err(_) => {
            worker.abort(|_| versions.0[written].store(NEVER.0, Ordering::Release));
            false
        }
    }
}

/// Each writes one version if the other's is not there: in no serial order both.
#[test]
fn of_two_committers_that_read_what_the_other_writes_one_fails() {
    model(3, || {
        let all = Transactions::starting_after(CommitTs(0));
        let (mut one, mut two) = (all.worker().unwrap(), all.worker().unwrap());
        let versions = Versions::new(2);
        let other = {
            let (all, versions) = (All::clone(&all), Arc::clone(&versions));
            thread::spawn(move || skew(&all, &mut two, &versions, 1, 0))
        };
        let first = skew(&all, &mut one, &versions, 0, 1);
        let second = other.join().unwrap();
        assert!(!(first && second), "write skew");
    });
}

/// The log calls durable what is below the floor: by then it was appended.
#[test]
fn what_is_below_the_floor_was_appended() {
    struct Work<'a>(&'a AtomicU64);
    impl Commit for Work<'_> {
        fn reserve(&mut self) -> Result<()> {
            Ok(())
        }
        fn append(&mut self, ts: CommitTs) {
            self.0.store(ts.0, Ordering::Release);
        }
        fn stamp(&mut self, _: CommitTs, _: &Worker) {}
    }
    model(2, || {
        let all = Transactions::starting_after(CommitTs(0));
        let mut writer = all.worker().unwrap();
        let appended = Arc::new(AtomicU64::new(0));
        let other = {
            let (all, appended) = (All::clone(&all), Arc::clone(&appended));
            thread::spawn(move || {
                // Late, so that a commit may be below the floor.
                for _ in 0..2 {
                    all.clock().now();
                }
                let floor = all.floor();
                (floor, appended.load(Ordering::Acquire))
            })
        };
        writer.begin(Isolation::ReadCommitted).unwrap();
        writer.tag_to_write();
        let c = writer.commit(&mut Work(&appended)).unwrap().unwrap();
        let (floor, seen) = other.join().unwrap();
        assert!(c >= floor || seen == c.0, "a commit below the floor was not in the log");
    });
}

/// A statement that need not wait for the log shows no commit whose record is not durable. Here none ever is.
#[test]
fn what_is_shown_without_waiting_is_durable() {
    struct Work<'a> {
        versions: &'a Versions,
        appended: &'a Appended,
    }
    impl Commit for Work<'_> {
        fn reserve(&mut self) -> Result<()> {
            Ok(())
        }
        fn append(&mut self, ts: CommitTs) {
            self.appended.note(ts);
        }
        fn stamp(&mut self, ts: CommitTs, _: &Worker) {
            self.versions.0[0].store(ts.0, Ordering::Release);
        }
    }
    model(3, || {
        let all = Transactions::starting_after(CommitTs(0));
        let (mut writer, reader) = (all.worker().unwrap(), all.worker().unwrap());
        let (versions, appended) = (Versions::new(1), Arc::new(Appended::default()));
        let other = {
            let (all, versions, appended) = (All::clone(&all), Arc::clone(&versions), Arc::clone(&appended));
            thread::spawn(move || {
                // Late, so that a commit may be below the floor.
                all.clock().now();
                let snapshot = reader.snapshot();
                let waits = appended.may_be_shown(&all, snapshot.ts(), || CommitTs(0));
                let is_seen = snapshot.sees(&all, &versions.0[0], 0);
                assert!(waits || !is_seen, "a commit is shown that the log may lose");
            })
        };
        writer.begin(Isolation::ReadCommitted).unwrap();
        versions.write(0, &writer);
        writer.commit(&mut Work { versions: &versions, appended: &appended }).unwrap().unwrap();
        other.join().unwrap();
    });
}

/// Whoever marks a transaction as awaited is told of its end, or finds it over.
#[test]
fn a_waiter_is_not_forgotten() {
    model(3, || {
        let slot = Arc::new(crate::slots::Slots::new());
        let tag = Tag::new(0, slot.get(0).sequence());
        let other = {
            let slot = Arc::clone(&slot);
            thread::spawn(move || slot.get(0).mark_waited(tag))
        };
        let told = slot.get(0).end_sequence(tag.sequence() + 1);
        let waits = other.join().unwrap();
        assert_eq!(waits, told);
    });
}

/// A row that an applier changes at 10, of two versions: the older one's memory is freed when the horizon is past that.
struct Applied {
    memory: [UnsafeCell<u64>; 2],
    head: AtomicUsize,
    begin: AtomicU64,
}

/// What is applied is seen from its publication on, and nobody looks at what it replaced once that is freed.
#[test]
fn what_is_applied_is_seen_when_it_is_published_and_what_it_replaced_stays_for_older_snapshots() {
    model(3, || {
        let all = Transactions::following(CommitTs(5));
        let reader = all.worker().unwrap();
        let row = Applied {
            memory: [UnsafeCell::new(1), UnsafeCell::new(0)],
            head: AtomicUsize::new(0),
            begin: AtomicU64::new(5),
        };
        let row = Arc::new(row);
        let other = {
            let row = Arc::clone(&row);
            thread::spawn(move || {
                // Twice, as the second may come after the first one let the horizon pass.
                for _ in 0..2 {
                    let snapshot = reader.snapshot();
                    let s = snapshot.ts().0;
                    let is_new = match row.head.load(Ordering::Acquire) {
                        0 => false,
                        _ => row.begin.load(Ordering::Acquire) <= s,
                    };
                    assert_eq!(is_new, s >= 10, "as of {s}");
                    // SAFETY: loom tells if anybody writes here meanwhile.
                    row.memory[usize::from(is_new)]
                        .with(|value| unsafe { assert_eq!(*value, if is_new { 2 } else { 1 }) });
                    drop(snapshot);
                }
            })
        };
        // SAFETY: loom tells if anybody reads it before it is published.
        row.memory[1].with_mut(|value| unsafe { *value = 2 });
        row.begin.store(10, Ordering::Relaxed);
        row.head.store(1, Ordering::Release);
        all.follow(CommitTs(10));
        all.follow(CommitTs(11));
        if all.advance_horizon() > CommitTs(10) {
            // SAFETY: as above.
            row.memory[0].with_mut(|value| unsafe { *value = 0 });
        }
        other.join().unwrap();
    });
}

/// Rows and what is beside them, each in a place of its own, that is written without an order: the publication gives it one.
#[test]
fn a_batch_is_seen_whole_or_not_at_all() {
    model(3, || {
        let all = Transactions::following(CommitTs(5));
        let readers = [all.worker().unwrap(), all.worker().unwrap()];
        let versions = Versions::new(2);
        let others: Vec<_> = readers
            .into_iter()
            .map(|reader| {
                let (all, versions) = (All::clone(&all), Arc::clone(&versions));
                thread::spawn(move || {
                    let snapshot = reader.snapshot();
                    let first = snapshot.sees(&all, &versions.0[0], 0);
                    let second = snapshot.sees(&all, &versions.0[1], 0);
                    assert_eq!((first, second), (snapshot.ts().0 >= 10, snapshot.ts().0 >= 10));
                })
            })
            .collect();
        versions.0[0].store(9, Ordering::Relaxed);
        versions.0[1].store(10, Ordering::Relaxed);
        all.follow(CommitTs(10));
        for other in others {
            other.join().unwrap();
        }
    });
}

/// What is taken out of reach without a timestamp of its own (a main, a page of heads) is retired as of what is applied.
#[test]
fn nothing_is_freed_under_a_snapshot_of_one_who_follows() {
    model(3, || {
        let all = Transactions::following(CommitTs(5));
        let (writer, reader) = (all.worker().unwrap(), all.worker().unwrap());
        let memory: Arc<[UnsafeCell<u64>; 2]> = Arc::new([UnsafeCell::new(0), UnsafeCell::new(0)]);
        let current = Arc::new(AtomicUsize::new(0));
        let other = {
            let (memory, current) = (Arc::clone(&memory), Arc::clone(&current));
            thread::spawn(move || {
                for _ in 0..2 {
                    let snapshot = reader.snapshot();
                    let at = current.load(Ordering::Acquire);
                    // SAFETY: loom tells if anybody writes here meanwhile.
                    memory[at].with(|value| unsafe { assert_eq!(*value, 0) });
                    drop(snapshot);
                }
            })
        };
        all.follow(CommitTs(6));
        current.store(1, Ordering::Release);
        let retired = writer.retirement_ts();
        all.follow(CommitTs(7));
        if all.advance_horizon() > retired {
            // SAFETY: as above.
            memory[0].with_mut(|value| unsafe { *value = 1 });
        }
        other.join().unwrap();
    });
}

/// Who is promoted commits above all that was applied, beside readers that drew their snapshots before or after.
#[test]
fn a_commit_after_the_promotion_is_seen_whole_and_after_all_that_was_applied() {
    model(2, || {
        let all = Transactions::following(CommitTs(5));
        let (mut writer, reader) = (all.worker().unwrap(), all.worker().unwrap());
        let versions = Versions::new(3);
        let other = {
            let (all, versions) = (All::clone(&all), Arc::clone(&versions));
            thread::spawn(move || {
                let before = reader.snapshot().ts();
                let snapshot = reader.snapshot();
                assert!(snapshot.ts() >= before, "time goes on where it stood");
                let seen = [0, 1, 2].map(|index| snapshot.sees(&all, &versions.0[index], 0));
                assert_eq!(seen[0], seen[1], "half of a transaction");
                assert!(seen[2] || !seen[0], "a commit without what was applied before");
            })
        };
        versions.0[2].store(20, Ordering::Relaxed);
        all.follow(CommitTs(20));
        all.promote(CommitTs(10));
        let c = write_two(&all, &mut writer, &versions);
        assert!(c > CommitTs(20));
        other.join().unwrap();
    });
}

/// Whoever finds that the process writes finds the log that was made ready for it: a commit looks at the clock, and then for the log.
#[test]
fn who_writes_after_the_promotion_finds_the_log() {
    model(3, || {
        let all = Transactions::following(CommitTs(5));
        let log = Arc::new(AtomicUsize::new(0));
        let other = {
            let (all, log) = (All::clone(&all), Arc::clone(&log));
            thread::spawn(move || {
                if !all.clock().is_following() {
                    assert_eq!(log.load(Ordering::Relaxed), 1, "a commit has no record");
                }
            })
        };
        log.store(1, Ordering::Relaxed);
        all.promote(CommitTs(7));
        other.join().unwrap();
    });
}
