//! Threads at one index: each owns keys and knows what became of them, readers go over all of it.

use crate::testing::{Random, space, transactions};
use crate::{Cursor, Direction, Fingers, Index, UniqueInsert, Verdict};
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tidepool_base::RowId;
use tidepool_txn::Worker;

const WRITERS: u64 = 3;

/// How often a root is put above another and taken away.
const ROOTS: u64 = 10_000;

/// Says that a thread is done, also when it failed.
struct Done<'d>(&'d AtomicU64);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Keys that neighbour other threads', some of them long, and few enough that nodes split and join all the time.
fn key(random: &mut Random) -> Vec<u8> {
    let mut key = (random.below(700) as u16).to_be_bytes().to_vec();
    let tail = [0, 0, 0, 4, 9, 40, 700][random.below(7)];
    key.resize(2 + tail, b'.');
    key
}

/// Goes over everything: entries of keys that stay must all be there, in order, once.
fn read(index: &Index, worker: &Worker, stays: &[Vec<u8>], direction: Direction) {
    let mut cursor = Cursor::new((Bound::Unbounded, Bound::Unbounded), direction);
    let mut before: Option<(Vec<u8>, u64)> = None;
    let mut found = 0;
    while let Some((key, row)) = cursor.next(index, &worker.snapshot()) {
        let entry = (key.to_vec(), row.0);
        if let Some(before) = before.replace(entry.clone()) {
            let in_order = if direction == Direction::Forward { before < entry } else { before > entry };
            assert!(in_order, "{before:?} before {entry:?}");
        }
        found += usize::from(row.0 == u64::MAX);
    }
    assert_eq!(found, stays.len(), "{direction:?}");
    index.get_together(
        &worker.snapshot(),
        stays.len(),
        |place| &stays[place],
        |place, rows| {
            assert!(rows.contains(&RowId(u64::MAX)), "{:?}", stays[place]);
        },
    );
}

#[test]
fn threads_see_what_they_did() {
    let (rounds, kib) = if cfg!(miri) { (60, 2 << 10) } else { (40_000, 64 << 10) };
    let transactions = transactions();
    let index = Index::create(space(kib), transactions.clone()).unwrap();
    let worker = transactions.worker().unwrap();
    let mut random = Random(1);
    let stays: BTreeSet<Vec<u8>> = (0..rounds / 20).map(|_| key(&mut random)).collect();
    let stays: Vec<Vec<u8>> = stays.into_iter().collect();
    for key in &stays {
        assert!(index.insert(&worker.snapshot(), key, RowId(u64::MAX)).unwrap());
    }
    let (others, done) = (space(kib), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (index, transactions, stays, done) = (&index, &transactions, &stays, &done);
        for writer in 0..WRITERS {
            scope.spawn(move || {
                let _done = Done(done);
                let worker = transactions.worker().unwrap();
                let mut random = Random(100 + writer);
                let mut mine = BTreeSet::new();
                let mut fingers = Fingers::default();
                for round in 0..rounds {
                    // In waves, so that the tree grows and shrinks.
                    let puts = if round * 6 / rounds % 2 == 0 { 8 } else { 2 };
                    let (key, row) = (key(&mut random), writer + WRITERS * random.below(3) as u64);
                    let is_mine = mine.contains(&(key.clone(), row));
                    if random.below(10) < puts {
                        let view = worker.snapshot();
                        assert_eq!(index.insert_near(&view, &key, RowId(row), &mut fingers).unwrap(), !is_mine);
                        mine.insert((key.clone(), row));
                    } else {
                        assert_eq!(index.remove(&worker.snapshot(), &key, RowId(row)), is_mine);
                        mine.remove(&(key.clone(), row));
                    }
                    let rows = index.get(&worker.snapshot(), &key);
                    for other in 0..3 {
                        let row = writer + WRITERS * other;
                        assert_eq!(rows.contains(&RowId(row)), mine.contains(&(key.clone(), row)));
                    }
                    assert!(rows.is_sorted());
                }
                for (key, row) in &mine {
                    assert!(index.get(&worker.snapshot(), key).contains(&RowId(*row)));
                }
            });
        }
        scope.spawn(move || {
            let mut random = Random(7);
            let worker = transactions.worker().unwrap();
            while done.load(Ordering::Relaxed) < WRITERS {
                read(index, &worker, stays, [Direction::Forward, Direction::Backward][random.below(2)]);
                if !cfg!(miri) {
                    index.check(&worker.snapshot()).unwrap();
                }
                let key = &stays[random.below(stays.len())];
                assert_eq!(index.get(&worker.snapshot(), key).last(), Some(&RowId(u64::MAX)));
                if cfg!(miri) {
                    break;
                }
            }
        });
        scope.spawn(move || {
            let home = index.tablespace();
            let worker = transactions.worker().unwrap();
            for round in 0.. {
                index.set_tablespace(if round % 2 == 0 { others.clone() } else { home.clone() });
                index.relocate(&worker.snapshot()).unwrap();
                index.reclaim();
                if done.load(Ordering::Relaxed) == WRITERS || cfg!(miri) || round == 40 {
                    break;
                }
            }
        });
    });
    read(&index, &worker, &stays, Direction::Forward);
    index.check(&worker.snapshot()).unwrap();
}

/// Whether a row is alive is what its owner says, under no lock of the index.
#[test]
fn of_threads_that_insert_one_key_one_wins() {
    let rounds = if cfg!(miri) { 3 } else { 2000 };
    let transactions = transactions();
    let index = Index::create(space(8 << 10), transactions.clone()).unwrap();
    let worker = transactions.worker().unwrap();
    let dead = if cfg!(miri) { 40 } else { 150 };
    let key_of = |round: u64| (round % 5).to_be_bytes();
    // Several leaves of dead rows of each key.
    for round in 0..5 {
        for row in 0..dead {
            assert!(index.insert(&worker.snapshot(), &key_of(round), RowId(row * 1_000_003)).unwrap());
        }
    }
    let alive: Vec<AtomicBool> = (0..4 * rounds + 1).map(|_| AtomicBool::new(false)).collect();
    let barrier = std::sync::Barrier::new(3);
    let winners: Vec<AtomicU64> = (0..rounds).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        let (index, transactions, alive, barrier, winners) = (&index, &transactions, &alive, &barrier, &winners);
        for thread in 0..3 {
            scope.spawn(move || {
                let mut random = Random(thread);
                let worker = transactions.worker().unwrap();
                let mut fingers = Fingers::default();
                for round in 0..rounds {
                    barrier.wait();
                    // Anywhere among the dead rows; alive before it can be found.
                    let number = (4 * round + thread + 1) as usize;
                    let row = RowId((1 + random.below(170) as u64 * 1_000_003 * 4) | (number as u64) << 40);
                    alive[number].store(true, Ordering::Relaxed);
                    let judge = |other: RowId| {
                        let other = (other.0 >> 40) as usize;
                        let is_alive = other > 0 && alive[other].load(Ordering::Relaxed);
                        if is_alive { Verdict::Taken } else { Verdict::Free }
                    };
                    let view = worker.snapshot();
                    match index.insert_unique_near(&view, &key_of(round), row, &mut fingers, judge).unwrap() {
                        UniqueInsert::Inserted => {
                            winners[round as usize].fetch_add(1, Ordering::Relaxed);
                        }
                        UniqueInsert::Taken(_) => alive[number].store(false, Ordering::Relaxed),
                        other => panic!("{other:?}"),
                    }
                    barrier.wait();
                    alive[number].store(false, Ordering::Relaxed);
                    if random.below(2) == 0 {
                        index.remove(&worker.snapshot(), &key_of(round), row);
                    }
                }
            });
        }
    });
    assert!(winners.iter().all(|winners| winners.load(Ordering::Relaxed) == 1));
    index.check(&worker.snapshot()).unwrap();
}

/// What was the root a moment ago has not all keys any more where the tree has grown, and is not damaged.
#[test]
#[cfg_attr(miri, ignore = "takes too long")]
fn a_tree_whose_root_comes_and_goes_can_be_looked_over() {
    let transactions = transactions();
    let index = Index::create(space(64 << 10), transactions.clone()).unwrap();
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (index, transactions, done) = (&index, &transactions, &done);
        scope.spawn(move || {
            let _done = Done(done);
            let worker = transactions.worker().unwrap();
            // More than one leaf holds.
            let keys: Vec<Vec<u8>> = (0..60u64).map(|row| [&row.to_be_bytes()[..], &[b'.'; 700]].concat()).collect();
            for _ in 0..ROOTS {
                for key in &keys {
                    index.insert(&worker.snapshot(), key, RowId(1)).unwrap();
                }
                for key in &keys {
                    index.remove(&worker.snapshot(), key, RowId(1));
                }
                index.reclaim();
            }
        });
        scope.spawn(move || {
            let worker = transactions.worker().unwrap();
            let mut levels = BTreeSet::new();
            while done.load(Ordering::Relaxed) == 0 {
                levels.insert(index.check(&worker.snapshot()).unwrap().levels);
            }
            assert!(levels.len() > 1, "{levels:?}");
        });
    });
}
