//! What must hold while threads write, read and merge.

use super::history::run_history;
use super::*;

/// Calls `body` with a fresh transaction until it commits, as a client does that tries again.
fn retry(session: &mut Session, isolation: Isolation, mut body: impl FnMut(&mut Session) -> Result<bool, Outcome>) {
    loop {
        session.begin(isolation);
        match body(session) {
            Ok(true) => {
                if session.commit().is_ok() {
                    return;
                }
                session.abort();
            }
            Ok(false) => {
                session.abort();
                return;
            }
            Err(Outcome::Conflict(tag)) => {
                // Whoever waits and is waited for gives up and starts again.
                let _ = session.worker.wait_for(tag, &|| Ok(()));
                session.abort();
            }
            Err(_) => session.abort(),
        }
    }
}

fn written(outcome: Result<Outcome>) -> Result<(), Outcome> {
    match outcome.unwrap() {
        Outcome::Written => Ok(()),
        other => Err(other),
    }
}

/// Money moves between accounts, on several threads, while a thread merges: the sum stays, to every snapshot.
#[test]
#[cfg_attr(miri, ignore = "takes hours there, or maps memory")]
fn money_is_neither_made_nor_lost() {
    let fixture = Fixture::new();
    let accounts = 60;
    let mut session = fixture.session();
    session.begin(Isolation::ReadCommitted);
    let rows: Vec<RowId> = (0..accounts).map(|id| session.insert(id, 1000).unwrap()).collect();
    session.commit().unwrap();
    drop(session);
    let done = AtomicBool::new(false);
    let (fixture, rows) = (&fixture, &rows);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|thread| {
                scope.spawn(move || {
                    let mut session = fixture.session();
                    let mut next = noise(thread);
                    for _ in 0..1500 {
                        let (from, to) = (next() as usize % rows.len(), next() as usize % rows.len());
                        if from == to {
                            continue;
                        }
                        let isolation = [Isolation::RepeatableRead, Isolation::Serializable][next() as usize % 2];
                        let (gives_up, amount) = (next().is_multiple_of(8), next() as i64 % 50);
                        retry(&mut session, isolation, |session| {
                            let (id, balance) = session.read(rows[from]).unwrap();
                            written(session.update(rows[from], id, balance - amount))?;
                            session.next();
                            let savepoint = session.writes.savepoint();
                            let (other, theirs) = session.read(rows[to]).unwrap();
                            written(session.update(rows[to], other, theirs + amount + 7))?;
                            session.next();
                            session.writes.undo_to(savepoint, &session.worker);
                            written(session.update(rows[to], other, theirs + amount))?;
                            Ok(!gives_up)
                        });
                    }
                })
            })
            .collect();
        let (done, reader) = (
            &done,
            scope.spawn(|| {
                let worker = fixture.all.worker().unwrap();
                let mut scans = 0;
                while !done.load(Ordering::Relaxed) || scans == 0 {
                    let view = worker.snapshot();
                    let found = scan(&fixture.store, &view);
                    assert_eq!(found.len(), rows.len());
                    assert_eq!(found.values().map(|(_, value)| value).sum::<i64>(), 1000 * rows.len() as i64);
                    for row in rows {
                        assert_eq!(
                            fixture.store.read(&view, *row).map(|at| row_of(&fixture.store, at)),
                            Some(found[row])
                        );
                    }
                    scans += 1;
                }
            }),
        );
        let merger = scope.spawn(|| {
            let worker = fixture.all.worker().unwrap();
            let mut merges = 0;
            while !done.load(Ordering::Relaxed) {
                if matches!(fixture.merge(&worker, 0).unwrap(), Merged::Replaced { .. }) {
                    merges += 1;
                }
                fixture.store.finish_merge(&worker, 0);
                worker.collect();
            }
            merges
        });
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        assert!(merger.join().unwrap() > 0);
    });
}

/// Rows are inserted, changed, locked and deleted in transactions that leave the sum of all values as it is, on several
/// threads, some of them aborted, some for want of memory; a thread merges, and one reads.
fn run_chaos(seed: u64, rounds: usize, fixture: Fixture) {
    let (accounts, threads) = (20, 3);
    let mut session = fixture.session();
    session.begin(Isolation::ReadCommitted);
    let rows: Vec<RowId> = (0..accounts).map(|id| session.insert(id, 1000).unwrap()).collect();
    session.commit().unwrap();
    drop(session);
    let more: Mutex<Vec<RowId>> = Mutex::default();
    let left = AtomicU64::new(threads);
    std::thread::scope(|scope| {
        let (fixture, rows, more, left) = (&fixture, &rows, &more, &left);
        for thread in 0..threads {
            scope.spawn(move || {
                let mut session = fixture.session();
                let mut next = noise(seed << 8 | thread);
                for _ in 0..rounds {
                    let isolation = [Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Serializable];
                    session.begin(isolation[next() as usize % 3]);
                    let mut inserted = None;
                    let done = one_transaction(&mut session, &mut next, rows, more, &mut inserted);
                    let commits = matches!(done, Ok(Outcome::Written)) && !next().is_multiple_of(8);
                    if let Err(error) = &done {
                        assert_eq!(error.code(), SqlState::OUT_OF_MEMORY, "{error}");
                    }
                    if commits && session.commit().is_ok() {
                        more.lock().unwrap().extend(inserted);
                        continue;
                    }
                    if let Ok(Outcome::Conflict(tag)) = done {
                        // A deadlock is an error, and whoever gets it gives way as all do here.
                        let _ = session.worker.wait_for(tag, &|| Ok(()));
                    }
                    session.abort();
                    if done.is_err() {
                        session.worker.collect();
                    }
                }
                left.fetch_sub(1, Ordering::Relaxed);
            });
        }
        scope.spawn(move || {
            let worker = fixture.all.worker().unwrap();
            while left.load(Ordering::Relaxed) > 0 {
                let view = worker.snapshot();
                let found = scan(&fixture.store, &view);
                assert_eq!(found.values().map(|(_, value)| value).sum::<i64>(), 1000 * accounts, "seed {seed}");
                for (row, state) in &found {
                    assert_eq!(fixture.store.read(&view, *row).map(|at| row_of(&fixture.store, at)), Some(*state));
                }
            }
        });
        scope.spawn(move || {
            let worker = fixture.all.worker().unwrap();
            let mut next = noise(seed);
            while left.load(Ordering::Relaxed) > 0 {
                for number in 0..fixture.store.ranges() {
                    if let Err(error) = fixture.merge(&worker, number) {
                        assert_eq!(error.code(), SqlState::OUT_OF_MEMORY);
                    }
                    fixture.store.finish_merge(&worker, number);
                }
                worker.collect();
                if next().is_multiple_of(100) && fixture.store.ranges() < 4 {
                    fixture.store.seal();
                }
            }
        });
    });
    fixture.check_empty();
}

fn one_transaction(
    session: &mut Session,
    next: &mut impl FnMut() -> u64,
    rows: &[RowId],
    more: &Mutex<Vec<RowId>>,
    inserted: &mut Option<RowId>,
) -> Result<Outcome> {
    let (from, amount) = (rows[next() as usize % rows.len()], next() as i64 % 50);
    // What is read is locked first, or read committed would write what is out of date.
    let lock = [RowLock::NoKeyUpdate, RowLock::Update][next() as usize % 2];
    let view = session.worker.snapshot();
    let locked = session.store.lock_row(&session.worker, &view, &mut session.writes, from, lock)?;
    drop(view);
    if locked != Outcome::Written {
        return Ok(locked);
    }
    let (id, balance) = session.read(from).unwrap();
    session.writes.read_row(&session.store, from);
    let savepoint = session.writes.savepoint();
    if next().is_multiple_of(3) {
        let _ = session.update(from, id, -1)?;
        session.next();
        session.writes.undo_to(savepoint, &session.worker);
    }
    let target = {
        let more = more.lock().unwrap();
        if more.is_empty() { from } else { more[next() as usize % more.len()] }
    };
    match next() % 4 {
        0 if session.store.ranges() < 4 => {
            *inserted = Some(session.insert(-1, amount)?);
            session.update(from, id, balance - amount)
        }
        1 if target != from => {
            let view = session.worker.snapshot();
            let shared = [RowLock::Share, RowLock::KeyShare][next() as usize % 2];
            let locked = session.store.lock_row(&session.worker, &view, &mut session.writes, target, shared)?;
            drop(view);
            if locked != Outcome::Written {
                return Ok(locked);
            }
            session.update(from, id, balance)
        }
        2 | 3 if target != from => {
            let view = session.worker.snapshot();
            let locked =
                session.store.lock_row(&session.worker, &view, &mut session.writes, target, RowLock::Update)?;
            drop(view);
            if locked != Outcome::Written {
                return Ok(locked);
            }
            let (_, theirs) = session.read(target).unwrap();
            let outcome = session.delete(target)?;
            if outcome != Outcome::Written {
                return Ok(outcome);
            }
            session.update(from, id, balance + theirs)
        }
        _ => session.update(from, id, balance),
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes hours there")]
fn chaos_leaves_the_sum_as_it_is() {
    run_chaos(1, 1500, Fixture::new());
    run_chaos(2, 1500, Fixture::tiny());
}

/// By seed, for as long as TIDEPOOL_STRESS_SECONDS says.
#[test]
#[cfg_attr(miri, ignore = "takes hours there")]
fn stress() {
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
    };
    let seconds = std::time::Duration::from_secs(number("TIDEPOOL_STRESS_SECONDS", 0));
    let (mut seed, start) = (number("TIDEPOOL_STRESS_SEED", 1), std::time::Instant::now());
    while start.elapsed() < seconds {
        println!("seed {seed}");
        let fixture = || if seed.is_multiple_of(2) { Fixture::new() } else { Fixture::tiny() };
        run_history(seed, 5000, fixture());
        run_chaos(seed, 3000, fixture());
        seed += 1;
    }
}

/// Short enough for Miri: threads write the same rows, and free each other's versions.
#[test]
fn threads_share_rows() {
    let fixture = Fixture::tiny();
    let (threads, rounds) = (2, if cfg!(miri) { 25 } else { 500 });
    let mut session = fixture.session();
    session.begin(Isolation::ReadCommitted);
    let rows: Vec<RowId> = (0..4).map(|id| session.insert(id, 0).unwrap()).collect();
    session.commit().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (fixture, rows) = (&fixture, &rows);
            scope.spawn(move || {
                let mut session = fixture.session();
                let mut next = noise(thread);
                for round in 0..rounds {
                    let row = rows[next() as usize % rows.len()];
                    retry(&mut session, Isolation::RepeatableRead, |session| {
                        let (id, value) = session.read(row).unwrap();
                        written(session.update(row, id, value + 1))?;
                        Ok(true)
                    });
                    if round % 8 == thread {
                        session.worker.collect();
                    }
                    if round % 16 == 0 && thread == 0 {
                        fixture.merge(&session.worker, 0).unwrap();
                        fixture.store.finish_merge(&session.worker, 0);
                    }
                }
            });
        }
    });
    assert_eq!(session.scan().values().map(|(_, value)| value).sum::<i64>(), (threads * rounds) as i64);
    drop(session);
    fixture.check_empty();
}

/// Threads add one to counters, with `READ COMMITTED`'s way of going on with the newest version.
#[test]
#[cfg_attr(miri, ignore = "takes hours there, or maps memory")]
fn no_update_is_lost() {
    let fixture = Fixture::new();
    let mut session = fixture.session();
    session.begin(Isolation::ReadCommitted);
    let rows: Vec<RowId> = (0..3).map(|id| session.insert(id, 0).unwrap()).collect();
    session.commit().unwrap();
    let (threads, rounds) = (3, 1500);
    let (fixture, rows) = (&fixture, &rows);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let mut session = fixture.session();
                let mut next = noise(thread);
                for _ in 0..rounds {
                    let row = rows[next() as usize % rows.len()];
                    session.begin(Isolation::ReadCommitted);
                    loop {
                        let (id, value) = session.read(row).unwrap();
                        // The view of the update may be newer than that of the read: lock, then read.
                        match session.lock(row, RowLock::NoKeyUpdate) {
                            Outcome::Written => {}
                            Outcome::Conflict(tag) => {
                                session.worker.wait_for(tag, &|| Ok(())).unwrap();
                                continue;
                            }
                            _ => continue,
                        }
                        let (_, newest) = session.read(row).unwrap();
                        assert!(newest >= value);
                        assert_eq!(session.update(row, id, newest + 1).unwrap(), Outcome::Written);
                        break;
                    }
                    session.commit().unwrap();
                }
            });
        }
    });
    let total: i64 = session.scan().values().map(|(_, value)| value).sum();
    assert_eq!(total, threads as i64 * rounds);
}

/// Two rows must not both be zero; each transaction looks at both, at the whole table or by a condition, and clears one.
#[test]
#[cfg_attr(miri, ignore = "takes hours there, or maps memory")]
fn serializable_transactions_do_not_skew() {
    let fixture = Fixture::new();
    let mut session = fixture.session();
    session.begin(Isolation::ReadCommitted);
    let rows: Vec<RowId> = (0..2).map(|id| session.insert(id, 1).unwrap()).collect();
    session.commit().unwrap();
    let (fixture, rows) = (&fixture, &rows);
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            scope.spawn(move || {
                let mut session = fixture.session();
                let mut next = noise(thread);
                for round in 0..1000 {
                    let mine = next() as usize % 2;
                    retry(&mut session, Isolation::Serializable, |session| {
                        let values = rows.iter().map(|row| session.read(*row).unwrap().1).collect::<Vec<_>>();
                        assert_ne!(values, [0, 0], "write skew");
                        match round % 3 {
                            0 => rows.iter().for_each(|row| session.writes.read_row(&session.store, *row)),
                            1 => session.writes.read_table(&session.store),
                            _ => session.writes.read_scan(&session.store, where_id(CompareOp::Lt, 2)),
                        }
                        let value = if values[1 - mine] == 1 { 1 - values[mine] } else { 1 };
                        written(session.update(rows[mine], mine as i64, value))?;
                        Ok(true)
                    });
                }
            });
        }
    });
}
