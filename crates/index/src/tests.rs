use crate::content::Content;
use crate::node::{Fence, SMALL_WORDS, Target, Words};
use crate::testing::{Random, index, space, transactions};
use crate::{Counted, Cursor, Direction, Fingers, Index, IndexBuilder, KEY_BYTES_MAX, Touched, UniqueInsert, Verdict};
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;
use tidepool_base::{RowId, SqlState, TablespaceId};
use tidepool_device::{Location, Profile};
use tidepool_tablespace::{Purpose, Tablespace, TablespaceConfig};
use tidepool_txn::View;

type Model = BTreeSet<(Vec<u8>, u64)>;

/// How the keys of a test look.
#[derive(Clone, Copy, Debug)]
enum Keys {
    /// Eight bytes, all over.
    Random,
    /// Eight bytes, close together.
    Dense,
    /// Few keys, many rows each.
    Repeated,
    /// Any bytes, zeroes and prefixes of one another among them.
    Short,
    /// Long common beginnings.
    Paths,
    /// Up to the limit.
    Long,
}

const ALL_KEYS: [Keys; 6] = [Keys::Random, Keys::Dense, Keys::Repeated, Keys::Short, Keys::Paths, Keys::Long];

impl Keys {
    fn key(self, random: &mut Random) -> Vec<u8> {
        match self {
            Keys::Random => random.next().to_be_bytes().to_vec(),
            Keys::Dense => (random.below(5000) as u64 + (7 << 40)).to_be_bytes().to_vec(),
            Keys::Repeated => vec![b'k'; 1 + random.below(12)],
            Keys::Short => (0..random.below(9)).map(|_| [0, 0, 1, 255][random.below(4)]).collect(),
            Keys::Paths => {
                let mut key = b"https://example.org/".to_vec();
                for _ in 0..random.below(6) {
                    key.extend_from_slice([&b"a/"[..], b"articles/", b"images/", b"x"][random.below(4)]);
                }
                key.extend_from_slice(random.below(300).to_string().as_bytes());
                key
            }
            Keys::Long => {
                let len = [0, 3, 200, 900, 2000, KEY_BYTES_MAX][random.below(6)];
                let mut key = vec![random.below(3) as u8; len];
                if let Some(last) = key.last_mut() {
                    *last = random.next() as u8;
                }
                if let Some(middle) = key.get_mut(len / 2) {
                    *middle = random.next() as u8 & 3;
                }
                key
            }
        }
    }
}

/// Everything in a range, both ways, as it should be.
fn assert_range(index: &Index, view: &View, model: &Model, lower: Bound<&[u8]>, upper: Bound<&[u8]>) {
    let is_in = |key: &[u8]| {
        let above = match lower {
            Bound::Included(bound) => key >= bound,
            Bound::Excluded(bound) => key > bound,
            Bound::Unbounded => true,
        };
        let below = match upper {
            Bound::Included(bound) => key <= bound,
            Bound::Excluded(bound) => key < bound,
            Bound::Unbounded => true,
        };
        above && below
    };
    let mut expected: Vec<(Vec<u8>, u64)> = model.iter().filter(|(key, _)| is_in(key)).cloned().collect();
    for direction in [Direction::Forward, Direction::Backward] {
        let mut cursor = Cursor::new((lower, upper), direction);
        let mut found = Vec::new();
        while let Some((key, row)) = cursor.next(index, view) {
            found.push((key.to_vec(), row.0));
        }
        assert!(found == expected, "{lower:?} to {upper:?} {direction:?}: {} of {}", found.len(), expected.len());
        assert!(cursor.next_row(index, view).is_none());
        expected.reverse();
    }
    let estimate = index.estimate(view, (lower, upper));
    let exact = expected.len() as f64;
    assert!(estimate <= exact * 8.0 + 600.0 && exact <= estimate * 8.0 + 600.0, "{estimate} for {exact}");
}

fn bound<'k>(random: &mut Random, key: &'k [u8]) -> Bound<&'k [u8]> {
    match random.below(5) {
        0 => Bound::Unbounded,
        1 | 2 => Bound::Included(key),
        _ => Bound::Excluded(key),
    }
}

fn assert_same(index: &Index, view: &View, model: &Model, random: &mut Random, keys: Keys) {
    let report = index.check(view).unwrap();
    assert_eq!(report.entries, model.len() as u64, "{keys:?}");
    assert_range(index, view, model, Bound::Unbounded, Bound::Unbounded);
    for _ in 0..if cfg!(miri) { 2 } else { 6 } {
        let (a, b) = (keys.key(random), keys.key(random));
        let rows: Vec<u64> = index.get(view, &a).iter().map(|row| row.0).collect();
        for row in [0, 1, 7, u64::MAX].into_iter().chain(rows.iter().copied().take(5)) {
            assert_eq!(index.has(view, &a, RowId(row)), model.contains(&(a.clone(), row)), "{keys:?}");
        }
        let expected: Vec<u64> = model.range((a.clone(), 0)..=(a.clone(), u64::MAX)).map(|(_, row)| *row).collect();
        assert_eq!(rows, expected);
        let many: Vec<Vec<u8>> = (0..random.below(40)).map(|_| keys.key(random)).collect();
        let mut told = vec![0; many.len()];
        index.get_together(
            view,
            many.len(),
            |place| &many[place],
            |place, rows| {
                assert_eq!(**rows, *index.get(view, &many[place]));
                told[place] += 1;
            },
        );
        assert!(told.iter().all(|times| *times == 1), "{told:?}");
        let (a, b) = if a <= b { (a, b) } else { (b, a) };
        assert_range(index, view, model, bound(random, &a), bound(random, &b));
    }
}

#[test]
fn does_as_a_sorted_set_does() {
    for (seed, keys) in ALL_KEYS.into_iter().enumerate() {
        let mut random = Random(seed as u64 + 11);
        let (index, view) = index(if cfg!(miri) { 2 << 10 } else { 64 << 10 });
        let view = &*view;
        let mut model = Model::new();
        let mut fingers = Fingers::default();
        let operations = if cfg!(miri) { 150 } else { 12_000 };
        for phase in 0..3 {
            // Mostly in, then as many out as in, then mostly out.
            let puts = [9, 5, 1][phase];
            for step in 0..operations {
                let key = keys.key(&mut random);
                let row = [0, random.next() % 50, u64::MAX, random.next()][random.below(4)];
                if random.below(10) < puts {
                    let inserted = index.insert_near(view, &key, RowId(row), &mut fingers).unwrap();
                    assert_eq!(inserted, model.insert((key, row)));
                } else {
                    let entry = match model.range((key.clone(), 0)..).next() {
                        Some(entry) if random.below(8) > 0 => entry.clone(),
                        _ => (key, row),
                    };
                    assert_eq!(index.remove(view, &entry.0, RowId(entry.1)), model.remove(&entry));
                }
                if step % (operations / 2) == 0 {
                    assert_same(&index, view, &model, &mut random, keys);
                }
            }
            assert_same(&index, view, &model, &mut random, keys);
        }
        for (key, row) in std::mem::take(&mut model) {
            assert!(index.remove(view, &key, RowId(row)));
        }
        assert_same(&index, view, &model, &mut random, keys);
        let report = index.check(view).unwrap();
        assert!(report.leaves <= 2, "{keys:?}: {report:?}");
        assert!(report.levels <= 2, "{keys:?}: {report:?}");
    }
}

#[test]
fn building_is_as_inserting() {
    for (seed, keys) in ALL_KEYS.into_iter().enumerate() {
        for fill in [100, 70, 10] {
            let mut random = Random(seed as u64 + 5);
            let count = if cfg!(miri) { 60 } else { 6000 };
            let mut model: Model = (0..count).map(|_| (keys.key(&mut random), random.next() % 7)).collect();
            let transactions = transactions();
            let view = &transactions.worker().unwrap().hold();
            let mut builder = IndexBuilder::new(space(64 << 10), transactions, fill).unwrap();
            let mut before: Option<&[u8]> = None;
            for (key, row) in &model {
                assert_eq!(builder.push(key, RowId(*row)).unwrap(), before == Some(key));
                before = Some(key);
            }
            if let Some((key, row)) = model.last() {
                assert!(builder.push(key, RowId(*row)).is_err());
            }
            assert_eq!(builder.count(), model.len() as u64);
            let index = builder.finish().unwrap();
            assert_same(&index, view, &model, &mut random, keys);
            let report = index.check(view).unwrap();
            if matches!(keys, Keys::Random | Keys::Dense) && !cfg!(miri) {
                let expected = f64::from(fill) / 100.0;
                assert!((expected * 0.6 - 0.05..=expected + 0.12).contains(&report.fill), "{fill}: {report:?}");
            }
            for _ in 0..count {
                let (key, row) = (keys.key(&mut random), random.next() % 7);
                assert_eq!(index.insert(view, &key, RowId(row)).unwrap(), model.insert((key, row)));
            }
            assert_same(&index, view, &model, &mut random, keys);
        }
    }
}

#[test]
fn an_empty_index_is_one() {
    let transactions = transactions();
    let view = &transactions.worker().unwrap().hold();
    let index = IndexBuilder::new(space(1 << 10), transactions, 90).unwrap().finish().unwrap();
    assert!(index.get(view, b"").is_empty());
    assert!(!index.remove(view, b"", RowId(0)));
    assert_range(&index, view, &Model::new(), Bound::Unbounded, Bound::Excluded(b"x"));
    assert!(index.insert(view, b"", RowId(3)).unwrap());
    assert_eq!(*index.get(view, b""), [RowId(3)]);
    assert_eq!(index.check(view).unwrap().entries, 1);
}

#[test]
fn a_key_that_is_too_long_is_refused() {
    let (index, view) = index(1 << 10);
    let view = &*view;
    let key = vec![1; KEY_BYTES_MAX + 1];
    let error = index.insert(view, &key, RowId(1)).unwrap_err();
    assert_eq!(error.code(), SqlState::PROGRAM_LIMIT_EXCEEDED);
    assert_eq!(error.message(), "index row size 2705 exceeds index row size maximum 2704");
    assert!(index.insert(view, &key[1..], RowId(1)).unwrap());
    assert_eq!(*index.get(view, &key[1..]), [RowId(1)]);
    assert!(index.get(view, &key).is_empty());
}

#[test]
#[cfg_attr(miri, ignore = "fills a tablespace")]
fn a_full_tablespace_leaves_the_index_as_it_was() {
    for keys in [Keys::Random, Keys::Long] {
        let (index, view) = index(160);
        let view = &*view;
        let mut random = Random(3);
        let mut model = Model::new();
        let mut refused = 0;
        while refused < 50 {
            let (key, row) = (keys.key(&mut random), random.next());
            match index.insert(view, &key, RowId(row)) {
                Ok(new) => assert_eq!(new, model.insert((key, row))),
                Err(error) => {
                    assert_eq!(error.code(), SqlState::OUT_OF_MEMORY);
                    assert_eq!(error.message(), "tablespace \"t\" is full");
                    refused += 1;
                }
            }
        }
        assert!(model.len() > 20);
        assert_same(&index, view, &model, &mut random, keys);
        // Room again.
        for (key, row) in model.iter().filter(|(_, row)| row % 4 > 0).cloned().collect::<Vec<_>>() {
            assert!(index.remove(view, &key, RowId(row)));
            model.remove(&(key, row));
        }
        assert_same(&index, view, &model, &mut random, keys);
        assert!(index.insert(view, b"more", RowId(1)).unwrap());
    }
}

#[test]
fn memory_is_counted_and_comes_back() {
    let space = space(16 << 10);
    let transactions = transactions();
    let worker = transactions.worker().unwrap();
    let index = Index::create(space.clone(), transactions).unwrap();
    let small = index.memory();
    assert_eq!((small.held_bytes, small.used_bytes, small.inner_bytes), (space.bytes(Purpose::Index), 1024, 0));
    let count = if cfg!(miri) { 300 } else { 100_000u64 };
    for key in 0..count {
        index.insert(&worker.snapshot(), &key.to_be_bytes(), RowId(key)).unwrap();
    }
    let large = index.memory();
    assert_eq!(large.held_bytes, space.bytes(Purpose::Index));
    // Keys in order fill their nodes.
    assert!(large.used_bytes < count * 18 || cfg!(miri));
    assert!(large.used_bytes > count * 16 && large.used_bytes <= large.held_bytes, "{large:?}");
    let report = index.check(&worker.snapshot()).unwrap();
    assert_eq!(large.used_bytes - large.inner_bytes, report.leaves * 1024);
    for key in 0..count {
        assert!(index.remove(&worker.snapshot(), &key.to_be_bytes(), RowId(key)));
    }
    index.reclaim();
    let emptied = index.memory();
    assert!(emptied.used_bytes <= 2 * 1024, "{emptied:?}");
    assert!(emptied.held_bytes < large.held_bytes / 2 || cfg!(miri), "{large:?} {emptied:?}");
    drop(index);
    assert_eq!(space.bytes(Purpose::Index), 0);
}

#[test]
fn an_index_moves_to_another_tablespace() {
    let (from, to) = (space(16 << 10), space(16 << 10));
    let transactions = transactions();
    let worker = transactions.worker().unwrap();
    let index = Index::create(from.clone(), transactions).unwrap();
    let snapshot = worker.snapshot();
    let view = &*snapshot;
    let mut random = Random(8);
    let mut model = Model::new();
    for keys in [Keys::Random, Keys::Long] {
        for _ in 0..if cfg!(miri) { 60 } else { 3000 } {
            let (key, row) = (keys.key(&mut random), random.next());
            assert_eq!(index.insert(view, &key, RowId(row)).unwrap(), model.insert((key, row)));
        }
    }
    let mut cursor = Cursor::new((Bound::Unbounded, Bound::Unbounded), Direction::Forward);
    cursor.next(&index, view);
    assert_eq!(index.relocate(view).unwrap(), 0);
    index.set_tablespace(to.clone());
    let moved = index.relocate(view).unwrap();
    assert!(moved > 1);
    // Somebody may still be there.
    index.reclaim();
    assert!(from.bytes(Purpose::Index) > 0);
    drop(snapshot);
    index.reclaim();
    assert_eq!(from.bytes(Purpose::Index), 0);
    let snapshot = worker.snapshot();
    let view = &*snapshot;
    assert_eq!(index.memory().held_bytes, to.bytes(Purpose::Index));
    assert_same(&index, view, &model, &mut random, Keys::Random);
    let mut left = 1;
    while cursor.next_row(&index, view).is_some() {
        left += 1;
    }
    assert_eq!(left, model.len());
}

/// Leaves that looking these keys up came to, and lines of inner nodes.
fn looked_at(index: &Index, view: &View, keys: impl Iterator<Item = u64>) -> (u64, u64) {
    let mut counted = Counted::default();
    for key in keys {
        assert_eq!(*index.get_counting(view, &key.to_be_bytes(), &mut counted), [RowId(key)]);
    }
    (counted.touched.leaves, counted.touched.inner_lines)
}

#[test]
fn keys_that_are_looked_up_again_are_found_without_the_tree() {
    const KEYS: u64 = 3000;
    let (index, view) = index(4 << 10);
    for key in 0..KEYS {
        index.insert(&view, &key.to_be_bytes(), RowId(key)).unwrap();
    }
    let tree = index.memory();
    assert_eq!(tree.directory_bytes, 0);
    // Fewer look-ups than are worth it, and then enough.
    looked_at(&index, &view, 0..KEYS / 8);
    assert_eq!(index.memory().directory_bytes, 0);
    for _ in 0..2 {
        looked_at(&index, &view, 0..KEYS);
    }
    let memory = index.memory();
    assert!(memory.directory_bytes >= 8 * KEYS && memory.directory_bytes < 32 * KEYS, "{memory:?}");
    assert_eq!(memory.held_bytes, tree.held_bytes + memory.directory_bytes);
    // All but the first keys of leaves, and those few whose places others have.
    let (leaves, inner_lines) = looked_at(&index, &view, 0..KEYS);
    assert_eq!(leaves, KEYS);
    assert!(inner_lines < KEYS / 2, "{inner_lines} lines");
    // Together the same.
    let keys: Vec<[u8; 8]> = (0..KEYS).map(u64::to_be_bytes).collect();
    index.take_touched();
    index.get_together(&view, keys.len(), |at| &keys[at], |at, rows| assert_eq!(**rows, [RowId(at as u64)]));
    assert!(index.take_touched().inner_lines < KEYS / 2);
    // What is not there is not there, and what has moved within its leaf, or to another, is found.
    assert!(index.get(&view, &KEYS.to_be_bytes()).is_empty());
    for key in (0..KEYS).step_by(3) {
        assert!(index.remove(&view, &key.to_be_bytes(), RowId(key)));
        assert!(index.get(&view, &key.to_be_bytes()).is_empty());
    }
    for key in 0..KEYS {
        let mut before = key.to_be_bytes().to_vec();
        before.push(0);
        index.insert(&view, &before, RowId(KEYS + key)).unwrap();
    }
    for key in 0..KEYS {
        let expected: &[RowId] = if key % 3 == 0 { &[] } else { &[RowId(key)] };
        assert_eq!(*index.get(&view, &key.to_be_bytes()), *expected);
    }
    index.check(&view).unwrap();
}

#[test]
fn a_tree_that_outgrows_its_table_of_hashes_gets_another() {
    let (index, view) = index(16 << 10);
    let mut keys = 0;
    let mut bytes = Vec::new();
    for size in [1000u64, 4000, 16_000] {
        for key in keys..size {
            index.insert(&view, &key.to_be_bytes(), RowId(key)).unwrap();
        }
        keys = size;
        for _ in 0..4 {
            looked_at(&index, &view, 0..keys);
        }
        let (_, inner_lines) = looked_at(&index, &view, 0..keys);
        assert!(inner_lines < keys, "{inner_lines} lines of {keys} look-ups");
        bytes.push(index.memory().directory_bytes);
    }
    assert!(bytes.is_sorted() && bytes[0] > 0 && bytes[2] > 8 * 16_000, "{bytes:?}");
}

/// Memory of nodes goes back only once the table that may name it has been left, and the table only when nobody is in it.
#[test]
fn a_table_of_hashes_is_left_before_nodes_that_it_names() {
    const KEYS: u64 = 4000;
    let space = space(4 << 10);
    let transactions = transactions();
    let worker = transactions.worker().unwrap();
    let index = Index::create(space.clone(), transactions).unwrap();
    let snapshot = worker.snapshot();
    for key in 0..KEYS {
        index.insert(&snapshot, &key.to_be_bytes(), RowId(key)).unwrap();
    }
    for _ in 0..2 {
        looked_at(&index, &snapshot, 0..KEYS);
    }
    let before = index.memory();
    assert!(before.directory_bytes > 0);
    for key in 0..KEYS - 1 {
        assert!(index.remove(&snapshot, &key.to_be_bytes(), RowId(key)));
    }
    let after = index.memory();
    assert_eq!((after.directory_bytes, after.held_bytes), (0, before.held_bytes));
    drop(snapshot);
    index.reclaim();
    assert!(index.memory().held_bytes < before.held_bytes / 4);
    assert_eq!(index.memory().held_bytes, space.bytes(Purpose::Index));
    assert_eq!(*index.get(&worker.snapshot(), &(KEYS - 1).to_be_bytes()), [RowId(KEYS - 1)]);
}

#[test]
fn keys_in_order_are_put_in_where_the_last_one_went() {
    const KEYS: u64 = 2000;
    let (index, view) = index(8 << 10);
    let view = &*view;
    let mut fingers = Fingers::default();
    // Two runs in turns, each in order at a place of its own, and keys that are there already.
    let key = |run: u64, n: u64| [run, n].map(u64::to_be_bytes).concat();
    for n in 0..KEYS {
        let outcome = index.insert_unique_near(view, &key(1, n), RowId(n), &mut fingers, |_| Verdict::Taken).unwrap();
        assert_eq!(outcome, UniqueInsert::Inserted);
    }
    let leaves = index.take_touched().leaves;
    assert!(leaves < KEYS / 10, "{leaves}");
    for n in 0..KEYS {
        fingers.rest();
        assert!(index.insert_near(view, &key(2, n), RowId(n), &mut fingers).unwrap());
        let outcome =
            index.insert_unique_near(view, &key(2, n), RowId(n + 1), &mut fingers, |_| Verdict::Taken).unwrap();
        assert_eq!(outcome, UniqueInsert::Taken(RowId(n)));
    }
    // What others did meanwhile may have taken the leaf out of the caches.
    let leaves = index.take_touched().leaves;
    assert!((KEYS..KEYS * 11 / 10).contains(&leaves), "{leaves}");
    assert_eq!(index.check(view).unwrap().entries, 2 * KEYS);
    for n in 0..KEYS {
        assert_eq!(*index.get(view, &key(1, n)), [RowId(n)]);
        assert_eq!(*index.get(view, &key(2, n)), [RowId(n)]);
    }
}

/// No leaf is come to by its address once memory of the tree has gone back.
#[test]
fn a_finger_is_left_before_the_node_that_it_names() {
    const KEYS: u64 = 4000;
    let space = space(4 << 10);
    let transactions = transactions();
    let worker = transactions.worker().unwrap();
    let index = Index::create(space.clone(), transactions).unwrap();
    let mut fingers = Fingers::default();
    for key in 0..KEYS {
        index.insert_near(&worker.snapshot(), &key.to_be_bytes(), RowId(key), &mut fingers).unwrap();
    }
    let (before, departures) = (index.memory(), index.arena.departures());
    for key in 1..KEYS {
        assert!(index.remove(&worker.snapshot(), &key.to_be_bytes(), RowId(key)));
    }
    index.reclaim();
    assert!(index.memory().held_bytes < before.held_bytes / 4);
    assert!(index.arena.departures() > departures);
    let mut touched = Touched::default();
    let view = worker.snapshot();
    assert!(fingers.leaf(&index, &Target::first_of(&KEYS.to_be_bytes()), &mut touched).is_none());
    for key in 1..KEYS {
        assert!(index.insert_near(&view, &key.to_be_bytes(), RowId(key), &mut fingers).unwrap());
    }
    assert_eq!(index.check(&view).unwrap().entries, KEYS);
}

#[test]
fn a_place_is_compared_with_the_upper_fence() {
    let fences = [("m", 0), ("m\0", 3), ("mmmmmmmm", 7), ("mmmmmmmmm", 0), ("mmmmmmmm\0\0", 2)];
    let keys = ["", "m", "m\0", "m\0\0", "ma", "mmmmmmmm", "mmmmmmmm\0", "mmmmmmmm\0\0\0", "mmmmmmmmm", "n", "l"];
    for (fence_key, fence_row) in fences {
        let fence = Fence { key: fence_key.into(), row: fence_row };
        let (index, _view) = index(64);
        let empty = Content::default().build(0..0, &Fence::default(), Some(&fence), 0, SMALL_WORDS);
        let node = index.filled(&empty, 0).unwrap();
        for key in keys {
            for row in [0, 2, 3, 7, u64::MAX] {
                let is_below = (key.as_bytes(), row) < (fence_key.as_bytes(), fence_row);
                let place = Target::before(key.as_bytes(), row);
                assert_eq!(node.node().is_below_upper_fence(&place), is_below, "{key:?} {row} {fence:?}");
            }
        }
        node.retire(&index.arena);
    }
}

#[test]
fn a_unique_key_is_judged_by_its_rows() {
    let (index, view) = index(8 << 10);
    let view = &*view;
    let key = b"key";
    let put = |row, judge: &mut dyn FnMut(RowId) -> Verdict| index.insert_unique(view, key, RowId(row), judge).unwrap();
    for row in 0..if cfg!(miri) { 60 } else { 400 } {
        // Dead rows: several leaves of them.
        let mut asked = Vec::new();
        let row = (row * 7919) % 1009;
        let outcome = put(row, &mut |other| {
            // Anew, after a leaf was split.
            if asked.last().is_some_and(|last| *last >= other.0) {
                asked.clear();
            }
            asked.push(other.0);
            Verdict::Free
        });
        assert_eq!(outcome, UniqueInsert::Inserted);
        assert!(!asked.contains(&row));
        assert_eq!(asked.len() + 1, index.get(view, key).len());
    }
    assert!(index.check(view).unwrap().leaves > 3 || cfg!(miri));
    let last = index.get(view, key).last().map_or(0, |row| row.0);
    for in_the_way in [0, 504, last, 77] {
        let outcome = put(5000, &mut |other| if other.0 >= in_the_way { Verdict::Taken } else { Verdict::Free });
        assert!(matches!(outcome, UniqueInsert::Taken(row) if row.0 >= in_the_way));
        let outcome = put(5000, &mut |other| if other.0 >= in_the_way { Verdict::Wait } else { Verdict::Free });
        assert!(matches!(outcome, UniqueInsert::Wait(row) if row.0 >= in_the_way));
    }
    let present = index.get(view, key)[17].0;
    assert_eq!(
        put(present, &mut |other| if other.0 == present { Verdict::Taken } else { Verdict::Free }),
        UniqueInsert::Present
    );
    // Neighbours are other keys.
    for other in [&b"kex"[..], b"ke", b"key\0", b"kez"] {
        let outcome = index.insert_unique(view, other, RowId(1), |_| Verdict::Taken).unwrap();
        assert_eq!(outcome, UniqueInsert::Inserted);
    }
    index.check(view).unwrap();
}

fn anonymous(mib: u64, profile: Option<&str>) -> Arc<Tablespace> {
    let config = TablespaceConfig {
        name: "anonymous".into(),
        location: Location::Anon,
        size_bytes: Some(mib << 20),
        profile: profile.map(|name| Profile::preset(name).unwrap()),
        profiles: Vec::new(),
        huge_pages: false,
        populate_bytes: 0,
    };
    Tablespace::open(TablespaceId(8), config).unwrap()
}

#[test]
#[cfg_attr(miri, ignore = "maps memory")]
fn an_index_makes_way_when_its_tablespace_shrinks() {
    let space = anonymous(32, None);
    let transactions = transactions();
    let worker = transactions.worker().unwrap();
    // At the lower end, so that the index lies where the tablespace is to end.
    let below = space.allocate(12 << 20, Purpose::Main).unwrap();
    let index = Index::create(space.clone(), transactions).unwrap();
    for key in 0..100_000u64 {
        index.insert(&worker.snapshot(), &key.to_be_bytes(), RowId(key)).unwrap();
    }
    drop(below);
    let change = space.resize(10 << 20).unwrap();
    assert!(change.left_bytes() > 0);
    assert!(index.relocate(&worker.snapshot()).unwrap() > 1000);
    index.reclaim();
    assert_eq!(change.left_bytes(), 0);
    change.finish().unwrap();
    assert_eq!(index.check(&worker.snapshot()).unwrap().entries, 100_000);
    assert_eq!(*index.get(&worker.snapshot(), &77_777u64.to_be_bytes()), [RowId(77_777)]);
}

#[test]
#[cfg_attr(miri, ignore = "maps memory")]
fn what_is_touched_of_paced_memory_is_accounted() {
    let lines = |space: &Tablespace| {
        let paced = space.paced();
        paced.iter().find(|(purpose, _)| *purpose == Purpose::Index).map_or(0, |(_, counters)| counters.lines)
    };
    let mut counts = BTreeSet::new();
    for profile in [None, Some("cxl-asic")] {
        let space = anonymous(32, profile);
        let transactions = transactions();
        let view = &transactions.worker().unwrap().hold();
        let index = Index::create(space.clone(), transactions).unwrap();
        for key in 0..20_000u64 {
            index.insert(view, &key.to_be_bytes(), RowId(key)).unwrap();
        }
        let inserted = lines(&space);
        let by_insertions = index.take_touched();
        let mut by_gets = Counted::default();
        for key in 0..1000u64 {
            assert_eq!(index.get_counting(view, &(key * 20).to_be_bytes(), &mut by_gets).len(), 1);
        }
        let got = lines(&space) - inserted;
        let mut cursor = Cursor::counting((Bound::Unbounded, Bound::Unbounded), Direction::Forward);
        while cursor.next_row(&index, view).is_some() {}
        let scanned = lines(&space) - inserted - got;
        let by_scan = cursor.counted();
        counts.insert(format!("{by_insertions:?} {:?} {:?}", by_gets.touched, by_scan.touched));
        // Each is counted once.
        assert!(index.take_touched().is_empty());
        assert_eq!(index.get(view, &7u64.to_be_bytes()).len(), 1);
        assert_eq!(index.take_touched().leaves, 1);
        assert!(by_insertions.leaves >= 20_000 && by_insertions.writes >= 20_000, "{by_insertions:?}");
        assert_eq!((by_gets.touched.leaves, by_gets.touched.writes), (1000, 0));
        assert!(by_scan.touched.leaves > 20_000 / 64 && by_scan.touched.copies <= by_scan.touched.leaves);
        assert_eq!((by_gets.paced.lines, by_scan.paced.lines), (got, scanned));
        if profile.is_none() {
            assert_eq!((inserted, got, scanned), (0, 0, 0));
        } else {
            // A leaf, and of one inner node or two the header, slots and a payload.
            assert!((19 * 1000..27 * 1000).contains(&got), "{got}");
            assert!(inserted > 20_000 * 19 && scanned > 20_000 * 16 / 64, "{inserted} {scanned}");
        }
    }
    // Whether or not it is paced.
    assert_eq!(counts.len(), 1, "{counts:?}");
}

/// Keys of several groups, each of which grows at its end, as the orders of a shop's branches do: leaves are left full, and what is taken out
/// of them and put back in finds its place.
#[test]
fn groups_that_grow_at_their_ends_leave_full_leaves() {
    let (groups, keys) = if cfg!(miri) { (2, 150u32) } else { (10, 3000) };
    for (tail, entry_words) in [(&b""[..], 2), (b"ab", 3), (b"more than a slot has room for", 6)] {
        let (index, view) = index(8 << 10);
        let key = |group: u16, at: u32| [&[7, 7], &group.to_be_bytes()[..], &at.to_be_bytes(), tail].concat();
        let mut fingers = Fingers::default();
        for at in 0..keys {
            for group in 0..groups {
                let row = RowId(u64::from(at));
                assert!(index.insert_near(&view, &key(group, at), row, &mut fingers).unwrap());
            }
        }
        let entries = index.check(&view).unwrap().entries;
        assert_eq!(entries, u64::from(keys) * u64::from(groups));
        let used_bytes = index.memory().used_bytes;
        assert!(
            cfg!(miri) || used_bytes * 8 / 10 < entries * entry_words * 8,
            "{used_bytes} bytes of {entries} entries"
        );

        for at in (0..keys).step_by(2) {
            assert!(index.remove(&view, &key(1, at), RowId(u64::from(at))));
        }
        index.check(&view).unwrap();
        for at in 0..keys {
            assert_eq!(index.insert(&view, &key(1, at), RowId(u64::from(at))).unwrap(), at % 2 == 0);
            let behind = [&key(1, at)[..], &[0]].concat();
            assert!(index.insert(&view, &behind, RowId(0)).unwrap());
        }
        assert_eq!(index.check(&view).unwrap().entries, entries + u64::from(keys));
    }
}
