//! Interleavings of the real tree, on nodes of few words.
//!
//! Each of these, taken out, makes a look-up fail here: the acquire fence of `lock::check`, the release fence of `lock::lock`,
//! the acquire of `lock::read`, the release of `lock::unlock_changed`, the second look at a parent in `descend_by`, the second
//! look at the root, the check of the leaf in `get`; and `a_node_that_is_used_again` the version that goes on in `lock::reuse`, and
//! `an_entry_that_is_wanted_again` the full fence in `remove_unless`, or in who inserts; and `a_hint` the check in `Hint::follow`, its
//! look at the level, and the acquire of `Table::find`; and `a_finger` that a leaf is locked at the version at which it was looked at, and
//! the look at its upper fence.

use crate::sync::{AtomicU64, Ordering, fence};
use crate::testing::{space, transactions};
use crate::{Cursor, Direction, Fingers, Index, Verdict};
use loom::thread;
use std::ops::Bound;
use std::sync::Arc;
use tidepool_base::RowId;
use tidepool_txn::HeldSnapshot;

struct Machine {
    index: Index,
    view: HeldSnapshot,
}

impl Machine {
    /// With an entry for each key.
    fn new(keys: &[u8]) -> Arc<Machine> {
        let transactions = transactions();
        let index = Index::create(space(64), transactions.clone()).unwrap();
        let view = transactions.worker().unwrap().hold();
        for key in keys {
            index.insert(&view, &[*key], RowId(u64::from(*key))).unwrap();
        }
        Arc::new(Machine { index, view })
    }

    fn other(self: &Arc<Machine>, work: impl FnOnce(&Machine) + 'static) -> thread::JoinHandle<()> {
        let machine = self.clone();
        thread::spawn(move || work(&machine))
    }

    fn insert(&self, key: u8) {
        assert!(self.index.insert(&self.view, &[key], RowId(u64::from(key))).unwrap());
    }

    fn assert_has(&self, key: u8) {
        assert_eq!(*self.index.get(&self.view, &[key]), [RowId(u64::from(key))]);
    }
}

/// Looks at what comes of it under every interleaving of few changes of thread that nobody has to wait for.
fn explore(changes: usize, scenario: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(changes);
    model.max_branches = 100_000;
    let runs = std::sync::atomic::AtomicUsize::new(0);
    let runs = Arc::new(runs);
    let count = runs.clone();
    model.check(move || {
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        scenario()
    });
    println!("{} interleavings", runs.load(std::sync::atomic::Ordering::Relaxed));
}

/// Five entries fill a leaf.
const FULL: [u8; 5] = [1, 3, 5, 7, 9];

#[test]
fn a_look_up_finds_what_a_split_moves() {
    explore(2, || {
        let machine = Machine::new(&FULL);
        let thread = machine.other(|machine| machine.insert(6));
        machine.assert_has(9);
        thread.join().unwrap();
        machine.assert_has(6);
    });
}

/// Without the second look at the parent in `descend_by` this fails: the key's new place is behind a fence that is not the key.
#[test]
fn a_look_up_finds_what_a_split_below_the_root_moves() {
    explore(2, || {
        let machine = Machine::new(&[1, 3, 5, 7, 9, 20, 30, 40, 50]);
        let thread = machine.other(|machine| machine.insert(25));
        machine.assert_has(50);
        thread.join().unwrap();
        machine.assert_has(25);
        assert_eq!(machine.index.check(&machine.view).unwrap().leaves, 3);
    });
}

#[test]
fn a_cursor_delivers_what_is_there_all_along() {
    for direction in [Direction::Forward, Direction::Backward] {
        explore(1, move || {
            let machine = Machine::new(&FULL);
            let thread = machine.other(|machine| machine.insert(6));
            let mut cursor = Cursor::new((Bound::Unbounded, Bound::Unbounded), direction);
            let mut rows = Vec::new();
            while let Some(row) = cursor.next_row(&machine.index, &machine.view) {
                rows.push(row.0 as u8);
            }
            if direction == Direction::Backward {
                rows.reverse();
            }
            assert!(rows == FULL || rows == [1, 3, 5, 6, 7, 9], "{rows:?}");
            thread.join().unwrap();
        });
    }
}

#[test]
fn two_insertions_into_a_full_leaf_both_count() {
    explore(1, || {
        let machine = Machine::new(&FULL);
        let thread = machine.other(|machine| machine.insert(6));
        machine.insert(2);
        thread.join().unwrap();
        for key in [1, 2, 3, 5, 6, 7, 9] {
            machine.assert_has(key);
        }
        assert_eq!(machine.index.check(&machine.view).unwrap().entries, 7);
    });
}

/// A leaf is emptied and joined, and its memory becomes another leaf while somebody is on the way to it.
#[test]
fn a_node_that_is_used_again_misleads_nobody() {
    explore(1, || {
        let machine = Machine::new(&[1, 3, 5, 7, 9, 10]);
        let thread = machine.other(|machine| {
            for key in [7, 9, 10] {
                assert!(machine.index.remove(&machine.view, &[key], RowId(u64::from(key))));
            }
            for key in [2, 4, 6] {
                machine.insert(key);
            }
        });
        machine.assert_has(5);
        let rows = machine.index.get(&machine.view, &[9]);
        assert!(rows.is_empty() || *rows == [RowId(9)]);
        thread.join().unwrap();
        assert_eq!(machine.index.check(&machine.view).unwrap().entries, 6);
    });
}

/// A leaf that a hint names is split, or emptied and its memory made another leaf, while somebody follows the hint.
#[test]
fn a_hint_that_is_out_of_date_misleads_nobody() {
    explore(2, || {
        let machine = Machine::new(&FULL);
        machine.index.arena.set_directory(8);
        FULL.iter().for_each(|key| machine.assert_has(*key));
        let thread = machine.other(|machine| machine.insert(6));
        machine.assert_has(9);
        thread.join().unwrap();
        machine.assert_has(6);
        machine.assert_has(9);
    });
    explore(1, || {
        let machine = Machine::new(&[1, 3, 5, 7, 9, 10]);
        machine.index.arena.set_directory(8);
        [3, 9, 10].iter().for_each(|key| machine.assert_has(*key));
        let thread = machine.other(|machine| {
            for key in [7, 9, 10] {
                assert!(machine.index.remove(&machine.view, &[key], RowId(u64::from(key))));
            }
            for key in [2, 4, 6] {
                machine.insert(key);
            }
        });
        machine.assert_has(3);
        let rows = machine.index.get(&machine.view, &[9]);
        assert!(rows.is_empty() || *rows == [RowId(9)]);
        thread.join().unwrap();
        assert!(machine.index.get(&machine.view, &[10]).is_empty());
    });
}

/// A leaf that a finger names is split, or emptied and its memory made another leaf, while somebody puts an entry in by it.
#[test]
fn a_finger_that_is_out_of_date_misleads_nobody() {
    let insert = |machine: &Machine, key: u8, fingers: &mut Fingers| {
        assert!(machine.index.insert_near(&machine.view, &[key], RowId(u64::from(key)), fingers).unwrap());
    };
    explore(2, move || {
        let machine = Machine::new(&FULL[..4]);
        let mut fingers = Fingers::default();
        insert(&machine, FULL[4], &mut fingers);
        let thread = machine.other(|machine| machine.insert(6));
        insert(&machine, 8, &mut fingers);
        thread.join().unwrap();
        [1, 3, 5, 6, 7, 8, 9].iter().for_each(|key| machine.assert_has(*key));
        assert_eq!(machine.index.check(&machine.view).unwrap().entries, 7);
    });
    explore(1, move || {
        let machine = Machine::new(&[1, 3, 5, 7, 9]);
        let mut fingers = Fingers::default();
        insert(&machine, 10, &mut fingers);
        let thread = machine.other(|machine| {
            for key in [7, 9, 10] {
                assert!(machine.index.remove(&machine.view, &[key], RowId(u64::from(key))));
            }
            for key in [2, 4, 6] {
                machine.insert(key);
            }
        });
        insert(&machine, 11, &mut fingers);
        thread.join().unwrap();
        [1, 2, 3, 4, 5, 6, 11].iter().for_each(|key| machine.assert_has(*key));
        assert_eq!(machine.index.check(&machine.view).unwrap().entries, 7);
    });
}

/// What one thread has put into the table another follows: what the leaf is made of comes with it.
#[test]
fn a_hint_of_another_thread_can_be_followed() {
    explore(2, || {
        let machine = Machine::new(&FULL);
        machine.index.arena.set_directory(8);
        let thread = machine.other(|machine| {
            machine.insert(6);
            machine.assert_has(6);
        });
        let rows = machine.index.get(&machine.view, &[6]);
        assert!(rows.is_empty() || *rows == [RowId(6)]);
        thread.join().unwrap();
    });
}

#[test]
fn of_two_that_insert_a_key_one_wins() {
    explore(2, || {
        // Four dead rows of the key, so that it may go on in a second leaf.
        let machine = Machine::new(&[]);
        for row in 1..5 {
            machine.index.insert(&machine.view, &[5], RowId(10 * row)).unwrap();
        }
        let insert = |machine: &Machine, row: u64| {
            let judge = |other: RowId| if other.0 % 10 == 0 { Verdict::Free } else { Verdict::Taken };
            machine.index.insert_unique(&machine.view, &[5], RowId(row), judge).unwrap()
        };
        let thread = machine.other(move |machine| {
            insert(machine, 11);
        });
        insert(&machine, 33);
        thread.join().unwrap();
        let alive = machine.index.get(&machine.view, &[5]).iter().filter(|row| row.0 % 10 > 0).count();
        assert_eq!(alive, 1);
    });
}

/// Whoever makes a row's key visible, and then finds its entry there, can rely on it: also when it was on its way out.
#[test]
fn an_entry_that_is_wanted_again_stays_or_comes_after() {
    explore(2, || {
        let machine = Machine::new(&[1, 3, 5]);
        let visible = Arc::new(AtomicU64::new(0));
        let thread = {
            let visible = visible.clone();
            machine.other(move |machine| {
                let is_wanted = || visible.load(Ordering::Relaxed) == 1;
                machine.index.remove_unless(&machine.view, &[3], RowId(3), is_wanted);
            })
        };
        visible.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        machine.index.insert(&machine.view, &[3], RowId(3)).unwrap();
        thread.join().unwrap();
        machine.assert_has(3);
    });
}
