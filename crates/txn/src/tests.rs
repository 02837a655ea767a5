use crate::*;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tidepool_base::{CommitTs, Error, Result, SqlState};

/// A transaction that writes one version.
struct One<'a> {
    begin: &'a AtomicU64,
    reads: Vec<Box<dyn Reads>>,
}

impl<'a> One<'a> {
    fn write(begin: &'a AtomicU64, worker: &Worker) -> One<'a> {
        begin.store(worker.tag_to_write().word(), Ordering::Release);
        One { begin, reads: Vec::new() }
    }
}

impl Commit for One<'_> {
    fn reserve(&mut self) -> Result<()> {
        Ok(())
    }

    fn validate(&mut self, check: &Validation<'_>) -> Result<()> {
        check.check(self.reads.iter().map(|read| &**read))
    }

    fn append(&mut self, _: CommitTs) {}

    fn stamp(&mut self, ts: CommitTs, _: &Worker) {
        self.begin.store(ts.0, Ordering::Release);
    }
}

fn undo(begin: &AtomicU64) -> impl FnOnce(&Worker) + '_ {
    |_| begin.store(NEVER.0, Ordering::Release)
}

fn transactions() -> Arc<Transactions> {
    Transactions::starting_after(CommitTs(7))
}

#[test]
fn a_snapshot_sees_what_was_committed_before_it_and_what_it_wrote_itself() {
    let all = transactions();
    let (mut writer, mut reader) = (all.worker().unwrap(), all.worker().unwrap());
    let begin = AtomicU64::new(0);
    writer.begin(Isolation::ReadCommitted).unwrap();
    reader.begin(Isolation::RepeatableRead).unwrap();
    let mut work = One::write(&begin, &writer);
    let own_command = writer.snapshot().command();
    assert!(!writer.snapshot().sees(&all, &begin, own_command), "a statement does not see its own rows");
    writer.next_command().unwrap();
    assert!(writer.snapshot().sees(&all, &begin, own_command));
    assert!(!reader.snapshot().sees(&all, &begin, own_command));
    let early = reader.hold();
    let c = writer.commit(&mut work).unwrap().unwrap();
    assert_eq!(begin.load(Ordering::Relaxed), c.0);
    assert!(!reader.snapshot().sees(&all, &begin, 1), "a repeatable read is repeated");
    assert!(reader.snapshot_now().sees(&all, &begin, 1));
    assert!(!early.sees(&all, &begin, 1));
    assert!(all.worker().unwrap().snapshot().ts() >= c, "a commit waits for its own timestamp");
    assert_eq!(reader.commit(&mut work).unwrap(), None);
}

#[test]
fn an_aborted_version_is_seen_by_nobody() {
    let all = transactions();
    let mut writer = all.worker().unwrap();
    let begin = AtomicU64::new(0);
    writer.begin(Isolation::ReadCommitted).unwrap();
    One::write(&begin, &writer);
    let tag = writer.tag();
    assert_eq!(all.status(tag), Status::Running);
    writer.abort(|worker| {
        assert_eq!(worker.transactions().status(tag), Status::Aborted);
        undo(&begin)(worker);
    });
    assert_eq!(all.status(tag), Status::Gone);
    assert!(!writer.snapshot().sees(&all, &begin, 0));
}

#[test]
fn the_horizon_follows_the_oldest_snapshot() {
    let all = transactions();
    let mut worker = all.worker().unwrap();
    let first = all.advance_horizon();
    let snapshot = worker.snapshot();
    let held = worker.hold();
    let at = snapshot.ts();
    assert!(at >= first);
    assert_eq!(all.advance_horizon(), at);
    drop(snapshot);
    assert_eq!(all.advance_horizon(), held.ts());
    assert_eq!(all.snapshots(), vec![(0, held.ts())]);
    let pin = all.worker().unwrap().pin_horizon();
    assert_eq!(pin.ts(), held.ts());
    drop(held);
    assert_eq!(all.advance_horizon(), pin.ts());
    drop(pin);
    assert!(all.advance_horizon() > at);
    worker.begin(Isolation::RepeatableRead).unwrap();
    let own = worker.snapshot().ts();
    assert_eq!(all.advance_horizon(), own, "a transaction keeps its snapshot from statement to statement");
    worker.abort(|_| ());
    assert!(all.advance_horizon() > own);
}

#[derive(Default)]
struct Graveyard(Mutex<Vec<u64>>);

impl Reclaim for Graveyard {
    fn reclaim(&self, items: &[Retired], _: &Worker) {
        self.0.lock().unwrap().extend(items.iter().map(|item| item.words[0]));
    }
}

#[test]
fn what_is_retired_goes_when_the_horizon_is_past_it() {
    let all = transactions();
    let (worker, other) = (all.worker().unwrap(), all.worker().unwrap());
    let graveyard = Arc::new(Graveyard::default());
    let owner: Arc<dyn Reclaim> = graveyard.clone();
    let looking = other.snapshot();
    let called = Arc::new(AtomicUsize::new(0));
    for word in 0..3 {
        worker.retire(worker.retirement_ts(), &owner, [word, 0]);
    }
    let call = Arc::clone(&called);
    worker.retire_with(worker.retirement_ts(), move || {
        call.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(worker.collect(), 4);
    drop(looking);
    // Time passes before the clock moves on.
    while worker.collect() > 0 {}
    assert_eq!(*graveyard.0.lock().unwrap(), [0, 1, 2]);
    assert_eq!(called.load(Ordering::Relaxed), 1);
    worker.retire(worker.retirement_ts(), &owner, [9, 0]);
    drop(worker);
    while other.collect() > 0 {}
    assert_eq!(graveyard.0.lock().unwrap().last(), Some(&9));
    assert_eq!(Arc::strong_count(&graveyard), 2, "owners are let go of");
    other.retire(other.retirement_ts(), &owner, [10, 0]);
    drop((other, owner));
    assert_eq!(graveyard.0.lock().unwrap().last(), Some(&10), "the last worker leaves nothing");
    assert_eq!(Arc::strong_count(&graveyard), 1);
}

#[test]
fn the_floor_is_below_whoever_is_committing() {
    struct Check<'a>(&'a AtomicU64, Arc<Transactions>, u64);
    impl Commit for Check<'_> {
        fn reserve(&mut self) -> Result<()> {
            self.2 = self.1.clock().now().0;
            Ok(())
        }
        fn append(&mut self, ts: CommitTs) {
            assert!(self.1.floor() <= ts);
            assert!(self.1.floor().0 <= ts.0 && ts.0 > self.2);
        }
        fn stamp(&mut self, ts: CommitTs, _: &Worker) {
            assert!(self.1.floor() <= ts);
            self.0.store(ts.0, Ordering::Release);
        }
    }
    let all = transactions();
    let mut worker = all.worker().unwrap();
    worker.begin(Isolation::ReadCommitted).unwrap();
    let begin = AtomicU64::new(worker.tag_to_write().word());
    let before = all.clock().now();
    assert!(all.floor() >= before, "a transaction that only runs holds nothing up");
    let c = worker.commit(&mut Check(&begin, Arc::clone(&all), 0)).unwrap().unwrap();
    let now = all.clock().now();
    assert!(all.floor() >= now && now >= c);
}

#[test]
fn a_failed_commit_leaves_the_transaction_running() {
    struct Full;
    impl Commit for Full {
        fn reserve(&mut self) -> Result<()> {
            Err(Error::new(SqlState::DISK_FULL, "the log is full"))
        }
        fn append(&mut self, _: CommitTs) {
            unreachable!()
        }
        fn stamp(&mut self, _: CommitTs, _: &Worker) {
            unreachable!()
        }
    }
    let all = transactions();
    let mut worker = all.worker().unwrap();
    worker.begin(Isolation::ReadCommitted).unwrap();
    let begin = AtomicU64::new(worker.tag_to_write().word());
    assert_eq!(worker.commit(&mut Full).unwrap_err().code(), SqlState::DISK_FULL);
    assert_eq!(all.status(worker.tag()), Status::Running);
    let mut work = One { begin: &begin, reads: Vec::new() };
    assert!(worker.commit(&mut work).unwrap().is_some());
}

#[test]
fn who_may_not_sleep_is_told() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    let all = transactions();
    let mut workers: Vec<Worker> = (0..3).map(|_| all.worker().unwrap()).collect();
    for worker in &mut workers {
        worker.begin(Isolation::ReadCommitted).unwrap();
        worker.tag_to_write();
    }
    let told = Arc::new(AtomicU32::new(0));
    let tell = || {
        let told = Arc::clone(&told);
        move || {
            told.fetch_add(1, Ordering::Relaxed);
        }
    };
    let tags: Vec<Tag> = workers.iter().map(Worker::tag).collect();
    workers[1].set_hurried(true);
    assert!(workers[1].wait_for(tags[0], &|| Ok(())).is_err());
    assert!(workers[1].was_held_up());
    assert!(workers[1].when_free(tell()).unwrap());
    assert_eq!(all.waits(), [(tags[1], tags[0])]);
    // The one that it waits for would wait for it.
    assert_eq!(all.when_over(tags[0], tags[1], tell()).unwrap_err().code(), SqlState::DEADLOCK_DETECTED);
    all.when_over(tags[2], tags[0], tell()).unwrap();
    all.stop_waiting(tags[2]);
    assert_eq!(told.load(Ordering::Relaxed), 0);
    workers[0].abort(|_| ());
    assert_eq!(told.load(Ordering::Relaxed), 1);
    assert!(all.waits().is_empty());
    // At once.
    all.when_over(tags[1], tags[0], tell()).unwrap();
    assert_eq!(told.load(Ordering::Relaxed), 2);
    workers[1].set_hurried(false);
    assert!(!workers[1].was_held_up());
    assert!(!workers[1].when_free(tell()).unwrap(), "it is not known");
    workers.iter_mut().for_each(|worker| worker.abort(|_| ()));
}

#[test]
fn waiters_wake_up_and_cycles_are_found() {
    let all = transactions();
    let mut workers: Vec<Worker> = (0..3).map(|_| all.worker().unwrap()).collect();
    for worker in &mut workers {
        worker.begin(Isolation::ReadCommitted).unwrap();
        worker.tag_to_write();
    }
    let tags: Vec<Tag> = workers.iter().map(Worker::tag).collect();
    let never = || Ok(());
    let mut threads = Vec::new();
    let mut rest = workers.split_off(1);
    let first = workers.pop().unwrap();
    // The second waits for the third, the first for the second.
    let third = rest.pop().unwrap();
    let second = rest.pop().unwrap();
    for (worker, target) in [(second, tags[2]), (first, tags[1])] {
        threads.push(std::thread::spawn(move || {
            let mut worker = worker;
            let waited = worker.wait_for(target, &never);
            worker.abort(|_| ());
            waited
        }));
    }
    while all.waits() != [(tags[0], tags[1]), (tags[1], tags[2])] {
        std::thread::yield_now();
    }
    let error = third.wait_for(tags[0], &never).unwrap_err();
    assert_eq!((error.code(), error.message()), (SqlState::DEADLOCK_DETECTED, "deadlock detected"));
    let [a, b, c] = [tags[0], tags[1], tags[2]];
    assert_eq!(
        error.detail().unwrap(),
        format!(
            "Transaction {c} waits for transaction {a}. Transaction {a} waits for transaction {b}. \
             Transaction {b} waits for transaction {c}."
        )
    );
    let mut third = third;
    third.abort(|_| ());
    for thread in threads {
        thread.join().unwrap().unwrap();
    }
    assert!(all.waits().is_empty());
    assert!(third.wait_for(tags[0], &never).is_ok(), "what is over is not waited for");
}

#[test]
fn waiting_is_interrupted() {
    let all = transactions();
    let (mut holder, mut waiter) = (all.worker().unwrap(), all.worker().unwrap());
    for worker in [&mut holder, &mut waiter] {
        worker.begin(Isolation::ReadCommitted).unwrap();
        worker.tag_to_write();
    }
    let timeout = || Err(Error::new(SqlState::LOCK_NOT_AVAILABLE, "canceling statement due to lock timeout"));
    let error = waiter.wait_for(holder.tag(), &timeout).unwrap_err();
    assert_eq!(error.code(), SqlState::LOCK_NOT_AVAILABLE);
    assert!(all.waits().is_empty());
    holder.abort(|_| ());
    waiter.abort(|_| ());
}

struct Read(Arc<AtomicU64>);

impl Reads for Read {
    fn still_hold(&self, check: &Validation<'_>) -> Result<bool> {
        Ok(check.standing(&self.0) != Standing::Conflict)
    }
}

#[test]
fn a_serializable_transaction_fails_when_what_it_read_has_changed() {
    let all = transactions();
    let (mut reader, mut writer) = (all.worker().unwrap(), all.worker().unwrap());
    let (read, written) = (Arc::new(AtomicU64::new(0)), AtomicU64::new(0));
    reader.begin(Isolation::Serializable).unwrap();
    assert!(reader.snapshot().sees(&all, &read, 0));
    let mut work = One::write(&written, &reader);
    work.reads.push(Box::new(Read(Arc::clone(&read))));
    writer.begin(Isolation::ReadCommitted).unwrap();
    let mut other = One::write(&read, &writer);
    writer.commit(&mut other).unwrap();
    let error = reader.commit(&mut work).unwrap_err();
    assert_eq!(error.code(), SqlState::SERIALIZATION_FAILURE);
    reader.abort(undo(&written));
    // Nobody changed it this time, though somebody is about to.
    reader.begin(Isolation::Serializable).unwrap();
    assert!(reader.snapshot().sees(&all, &read, 0));
    let mut work = One::write(&written, &reader);
    work.reads.push(Box::new(Read(Arc::clone(&read))));
    writer.begin(Isolation::ReadCommitted).unwrap();
    let mut other = One::write(&read, &writer);
    let c = reader.commit(&mut work).unwrap().unwrap();
    assert!(writer.commit(&mut other).unwrap().unwrap() >= c);
}

#[test]
#[cfg_attr(miri, ignore = "thousands of slots take minutes there")]
fn slots_are_used_again_and_run_out() {
    let all = transactions();
    let mut workers: Vec<Worker> = (0..SLOTS_MAX).map(|_| all.worker().unwrap()).collect();
    assert_eq!(all.worker().unwrap_err().code(), SqlState::TOO_MANY_CONNECTIONS);
    drop(workers.remove(17));
    assert_eq!(all.worker().unwrap().index(), 17);
    assert_eq!(all.workers(), SLOTS_MAX - 1);
}

/// Two counters move in opposite directions, in transactions of one writer each at a time: no snapshot sees a sum but zero.
#[test]
fn snapshots_are_consistent_while_threads_write() {
    let all = transactions();
    let versions = if cfg!(miri) { 30 } else { 400 };
    let begins: Arc<Vec<[AtomicU64; 2]>> =
        Arc::new((0..versions).map(|_| [AtomicU64::new(NEVER.0), AtomicU64::new(NEVER.0)]).collect());
    struct Pair<'a>(&'a [AtomicU64; 2]);
    impl Commit for Pair<'_> {
        fn reserve(&mut self) -> Result<()> {
            Ok(())
        }
        fn append(&mut self, _: CommitTs) {}
        fn stamp(&mut self, ts: CommitTs, _: &Worker) {
            for begin in self.0 {
                begin.store(ts.0, Ordering::Release);
            }
        }
    }
    let writers: Vec<_> = (0..2)
        .map(|half| {
            let (all, begins) = (Arc::clone(&all), Arc::clone(&begins));
            std::thread::spawn(move || {
                let mut worker = all.worker().unwrap();
                for pair in begins.iter().skip(half).step_by(2) {
                    worker.begin(Isolation::ReadCommitted).unwrap();
                    for begin in pair {
                        begin.store(worker.tag_to_write().word(), Ordering::Release);
                    }
                    worker.commit(&mut Pair(pair)).unwrap();
                }
            })
        })
        .collect();
    let worker = all.worker().unwrap();
    loop {
        let done = writers.iter().all(|writer| writer.is_finished());
        let snapshot = worker.snapshot();
        for [first, second] in begins.iter().rev() {
            assert_eq!(snapshot.sees(&all, first, 0), snapshot.sees(&all, second, 0));
        }
        if done {
            assert!(begins.iter().all(|[first, _]| snapshot.sees(&all, first, 0)));
            break;
        }
    }
    for writer in writers {
        writer.join().unwrap();
    }
}

#[test]
fn who_follows_shows_what_is_applied_and_writes_nothing_until_promoted() {
    let all = Transactions::following(CommitTs(50));
    let (mut writer, reader) = (all.worker().unwrap(), all.worker().unwrap());
    let begin = AtomicU64::new(60);
    let early = reader.hold();
    assert_eq!((early.ts(), all.horizon()), (CommitTs(50), CommitTs(50)));
    assert!(!early.sees(&all, &begin, 0));
    all.follow(CommitTs(70));
    assert!(reader.snapshot().sees(&all, &begin, 0));
    assert_eq!(all.advance_horizon(), CommitTs(50), "an old statement holds the horizon back");
    drop(early);
    assert_eq!(all.advance_horizon(), CommitTs(70));
    let word = AtomicU64::new(0);
    writer.begin(Isolation::ReadCommitted).unwrap();
    let mut work = One::write(&word, &writer);
    let refused = writer.commit(&mut work).unwrap_err();
    assert_eq!(refused.code(), SqlState::READ_ONLY_SQL_TRANSACTION);
    writer.abort(undo(&word));
    writer.begin(Isolation::RepeatableRead).unwrap();
    assert!(writer.snapshot().sees(&all, &begin, 0));
    all.promote(CommitTs(1000));
    let mut work = One::write(&word, &writer);
    let c = writer.commit(&mut work).unwrap().unwrap();
    assert!(c > CommitTs(1000));
    assert!(reader.snapshot().ts() >= c);
    assert!(all.advance_horizon() >= c);
    all.follow(CommitTs(1 << 60));
    assert!(all.clock().now() < CommitTs(1 << 60), "what comes late is not followed");
}

/// A transaction of what nobody else reads: one version in the place of another.
struct Apart<'a>(One<'a>, Arc<AtomicUsize>);

impl Commit for Apart<'_> {
    fn reserve(&mut self) -> Result<()> {
        Err(Error::internal("what is apart is in no log"))
    }

    fn append(&mut self, _: CommitTs) {
        panic!("what is apart is in no log");
    }

    fn stamp(&mut self, ts: CommitTs, worker: &Worker) {
        self.0.stamp(ts, worker);
        let freed = self.1.clone();
        worker.retire_with(ts, move || _ = freed.fetch_add(1, Ordering::Relaxed));
    }

    fn is_apart(&self) -> bool {
        true
    }
}

#[test]
fn what_is_apart_is_committed_by_who_follows_and_what_it_replaced_outlives_snapshots_of_then() {
    let all = Transactions::following(CommitTs(50));
    let mut writer = all.worker().unwrap();
    let (word, freed) = (AtomicU64::new(0), Arc::new(AtomicUsize::new(0)));
    let early = all.worker().unwrap().hold();
    for round in 0..3 {
        writer.begin(Isolation::ReadCommitted).unwrap();
        let mut work = Apart(One::write(&word, &writer), freed.clone());
        assert_eq!(writer.commit(&mut work).unwrap(), Some(CommitTs(50)), "round {round}");
        assert!(writer.snapshot().sees(&all, &word, 1), "the next statement sees it");
    }
    assert_eq!(writer.collect(), 3, "somebody looks at what was there, or may begin to");
    all.follow(CommitTs(60));
    assert_eq!((writer.collect(), freed.load(Ordering::Relaxed)), (3, 0), "somebody still does");
    drop(early);
    assert_eq!((writer.collect(), freed.load(Ordering::Relaxed)), (0, 3));
}
