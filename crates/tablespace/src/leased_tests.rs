//! Tablespaces over a pool: over one that only counts, which Miri can follow, and over pools of files.

use super::*;
use crate::Region;
use crate::tests::{Random, check, config, runs_of_two_owners, take_and_give_back_from_many_threads};
use tidepool_device::{Location, Mapping};

/// Extents as numbers, and what a pool's books would say of each.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    states: Mutex<Vec<&'static str>>,
    /// Nothing can be given back.
    refuses: std::sync::atomic::AtomicBool,
}

impl Counted {
    fn states(&self) -> MutexGuard<'_, Vec<&'static str>> {
        self.states.lock().unwrap()
    }

    pub fn lease(&self, kind: Kind) -> Result<Extent, Refusal> {
        let mut states = self.states();
        let free = states.iter().position(|state| *state == "free").ok_or(Refusal::Full)?;
        states[free] = if kind.is_shared() { "filling" } else { "private" };
        Ok(Extent(free as u32))
    }

    pub fn give_back(&self, extent: Extent, is_shared: bool) -> Result<()> {
        if self.refuses.load(Ordering::Relaxed) {
            return Err(Error::internal("another host may still read it"));
        }
        let state = std::mem::replace(&mut self.states()[extent.0 as usize], "free");
        assert_eq!(state == "shared", is_shared);
        assert_ne!(state, "free");
        Ok(())
    }

    pub fn publish(&self, extent: Extent) -> Result<()> {
        let state = std::mem::replace(&mut self.states()[extent.0 as usize], "shared");
        assert_eq!(state, "filling");
        Ok(())
    }
}

const STRIPE: usize = 64 * PAGE_BYTES;

/// A tablespace of so many stripes of addresses, over so many extents.
fn counted(stripes: usize, extents: usize, publishes: bool) -> Arc<Tablespace> {
    let window = Window::fixed(Mapping::heap(stripes * STRIPE));
    let lessor = Counted { states: Mutex::new(vec!["free"; extents]), ..Counted::default() };
    let leased =
        Leased::new(Lessor::Counted(lessor), &window, STRIPE, LeaseOptions { publishes, guards: true, keeps: false })
            .unwrap();
    let config = TablespaceConfig { location: Location::Pool, size_bytes: None, ..config("t", 0) };
    let space = Tablespace::new_leased(TablespaceId(9), config, window, leased).unwrap();
    space.set_bound(None).unwrap();
    space
}

fn states(space: &Tablespace) -> Vec<&'static str> {
    let Some(Lessor::Counted(counted)) = space.leased.as_deref().map(|leased| &leased.lessor) else { panic!() };
    counted.states().clone()
}

/// What the pool's books say and what the tablespace's say is the same.
fn agree(space: &Tablespace) {
    check(space);
    let states = states(space);
    let leases = space.leases();
    for state in ["private", "filling", "shared"] {
        let of_books: u64 = leases.iter().filter(|lease| lease.0 == state).map(|lease| lease.2).sum();
        assert_eq!(of_books as usize, states.iter().filter(|found| **found == state).count(), "{state} {leases:?}");
    }
    let leased = space.leased.as_deref().unwrap();
    assert_eq!(leased.held_bytes() as usize, states.iter().filter(|state| **state != "free").count() * STRIPE);
    let (used, free): (u64, u64) = (space.used_bytes(), space.bytes(Purpose::Free));
    assert_eq!(used + free, leased.held_bytes());
    assert_eq!(leases.iter().map(|lease| lease.3).sum::<u64>(), used);
}

#[test]
fn a_leased_tablespace_is_as_any_to_threads_and_arenas() {
    let space = counted(32, 24, false);
    take_and_give_back_from_many_threads(&space);
    agree(&space);
    space.trim(0).unwrap();
    assert!(states(&space).iter().all(|state| *state == "free"));
    // All of it is leased: the addresses are those of the extents.
    runs_of_two_owners(&counted(4, 4, false), 256);
}

#[test]
fn extents_come_and_go_by_what_they_are_for() {
    let space = counted(16, 8, true);
    agree(&space);
    let heap = space.allocate(PAGE_BYTES, Purpose::Heap).unwrap();
    let delta = space.allocate(PAGE_BYTES, Purpose::Delta).unwrap();
    let index = space.allocate(PAGE_BYTES, Purpose::Index).unwrap();
    let main = space.allocate(PAGE_BYTES, Purpose::Main).unwrap();
    assert_eq!(states(&space)[..4], ["private", "private", "private", "filling"]);
    agree(&space);
    let kinds: Vec<_> = space.leases().iter().map(|lease| (lease.0, lease.1)).collect();
    let expected = [("private", "heap"), ("private", "delta"), ("private", "index"), ("filling", "main")];
    assert_eq!(kinds, expected);
    // Of the heap's, for the next statement; of main's, at once.
    drop((heap, main));
    assert_eq!(states(&space)[..4], ["private", "private", "private", "free"]);
    assert_eq!(space.trim(u64::MAX).unwrap(), 0);
    assert_eq!(space.trim(0).unwrap(), STRIPE as u64);
    assert_eq!(states(&space)[..4], ["free", "private", "private", "free"]);
    // A run of several extents, which are side by side whichever they are.
    let mut wide = space.allocate(3 * STRIPE + 5, Purpose::Index).unwrap();
    wide.fill(9);
    agree(&space);
    assert_eq!(space.allocate(3 * STRIPE, Purpose::Delta).unwrap_err().code(), SqlState::DISK_FULL);
    agree(&space);
    drop((delta, index, wide));
    // What is idle of one class is given back for another.
    let main = space.allocate(8 * STRIPE, Purpose::Main).unwrap();
    assert!(states(&space).iter().all(|state| *state == "filling"));
    drop(main);
    assert!(states(&space).iter().all(|state| *state == "free"));
}

#[test]
fn what_could_not_be_given_back_is_given_back_later() {
    let space = counted(16, 8, true);
    let refuse = |refuses: bool| {
        let Some(Lessor::Counted(counted)) = space.leased.as_deref().map(|leased| &leased.lessor) else { panic!() };
        counted.refuses.store(refuses, Ordering::Relaxed);
    };
    let regions: Vec<_> = (0..3).map(|_| space.allocate(STRIPE, Purpose::Main).unwrap()).collect();
    refuse(true);
    drop(regions);
    let left = |state: &str| states(&space).iter().filter(|found| **found == state).count();
    assert_eq!((left("free"), space.leases().len()), (5, 0), "nothing of it is mapped");
    assert_eq!(space.trim(0).unwrap(), 0);
    refuse(false);
    assert_eq!(space.trim(0).unwrap(), 3 * STRIPE as u64);
    assert_eq!(left("free"), 8);
    agree(&space);
    // So that all can be had again, before the pool is said to be full.
    let regions: Vec<_> = (0..3).map(|_| space.allocate(STRIPE, Purpose::Main).unwrap()).collect();
    refuse(true);
    drop(regions);
    refuse(false);
    let all = space.allocate(8 * STRIPE, Purpose::Main).unwrap();
    agree(&space);
    drop(all);
}

#[test]
fn main_is_published_when_it_is_full_and_written() {
    let space = counted(64, 40, true);
    let half = STRIPE / 2;
    let mut first = space.allocate(half, Purpose::Main).unwrap();
    let mut second = space.allocate(half, Purpose::Main).unwrap();
    first.publish();
    assert_eq!(states(&space)[0], "filling");
    second.fill(3);
    second.publish();
    second.publish();
    assert_eq!(states(&space)[0], "shared");
    // What is given back there is not taken again.
    drop(first);
    agree(&space);
    let third = space.allocate(PAGE_BYTES, Purpose::Main).unwrap();
    assert_eq!(states(&space)[..2], ["shared", "filling"]);
    drop(second);
    assert_eq!(states(&space)[..2], ["free", "filling"]);
    // Nor in one that is being filled.
    let fourth = space.allocate(STRIPE - PAGE_BYTES, Purpose::Main).unwrap();
    drop(fourth);
    let fifth = space.allocate(PAGE_BYTES, Purpose::Main).unwrap();
    assert_eq!(states(&space).iter().filter(|state| **state != "free").count(), 2);
    drop((third, fifth));
    assert!(states(&space).iter().all(|state| *state == "free"));

    // Never more than so many that are being filled, whatever comes.
    let mut held: Vec<Region> = Vec::new();
    for _ in 0..20 {
        let mut region = space.allocate(STRIPE / 2 + PAGE_BYTES, Purpose::Main).unwrap();
        region.publish();
        held.push(region);
        let filling = states(&space).iter().filter(|state| **state == "filling").count();
        assert!(filling <= FILLING_MAX, "{filling}");
        agree(&space);
    }
    assert_eq!(states(&space).iter().filter(|state| **state == "shared").count(), 20 - FILLING_MAX);
    // One that is full and not written yet is not published.
    let unwritten = space.allocate(2 * STRIPE, Purpose::Main).unwrap();
    assert_eq!(states(&space).iter().filter(|state| **state == "filling").count(), FILLING_MAX + 2);
    drop(unwritten);
    agree(&space);
    drop(held);
    assert!(states(&space).iter().all(|state| *state == "free"));
}

/// Whatever is taken, written, given back, and however the bound changes: no byte is lost, and the books agree.
#[test]
fn contents_survive_any_sequence_of_leases() {
    let (seeds, steps) = if cfg!(miri) { (1, 40) } else { (8, 1500) };
    let mut shrunk = 0;
    for seed in 1..=seeds {
        for publishes in [false, true] {
            let mut random = Random(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed));
            let space = counted(64, 32, publishes);
            let mut owned: Vec<(Region, u8)> = Vec::new();
            for step in 0..steps {
                let purpose = [Purpose::Main, Purpose::Delta, Purpose::Index][random.below(3)];
                match random.below(8) {
                    0..=3 => {
                        let most = [STRIPE / 8, 3 * STRIPE][random.below(2)];
                        let len = 1 + random.below(most);
                        if let Ok(mut region) = space.allocate(len, purpose) {
                            (region[0], region[len / 2], region[len - 1]) = (step as u8, step as u8, step as u8);
                            if random.below(10) > 0 {
                                region.publish();
                            }
                            owned.push((region, step as u8));
                        }
                    }
                    4 | 5 if !owned.is_empty() => drop(owned.swap_remove(random.below(owned.len()))),
                    6 => drop(space.trim(random.below(8 * STRIPE) as u64)),
                    _ => {
                        let bytes = ((4 + random.below(28)) * STRIPE) as u64;
                        let Ok(change) = space.resize(bytes) else { continue };
                        for (region, _) in &mut owned {
                            if region.is_closing()
                                && let Ok(mut copy) = space.allocate(region.len(), region.purpose())
                            {
                                copy.copy_from_slice(region);
                                copy.publish();
                                *region = copy;
                            }
                        }
                        if change.left_bytes() == 0 && random.below(4) > 0 {
                            change.finish().unwrap();
                            assert_eq!(space.size_bytes(), bytes);
                            shrunk += usize::from(space.usage().resident_bytes <= bytes);
                        }
                    }
                }
                agree(&space);
                for (region, fill) in &owned {
                    let found = (region[0], region[region.len() / 2], region[region.len() - 1]);
                    assert_eq!(found, (*fill, *fill, *fill), "{seed} {step}");
                }
            }
            owned.clear();
            space.trim(0).unwrap();
            agree(&space);
            assert!(states(&space).iter().all(|state| *state == "free"), "{:?}", states(&space));
        }
    }
    assert!(shrunk > 0);
}

#[cfg(not(any(miri, loom)))]
mod over_files {
    use super::*;
    use std::path::PathBuf;
    use tidepool_pool::check::{check as check_pool, usage};
    use tidepool_pool::liveness::forget;
    use tidepool_pool::member::JoinOptions;
    use tidepool_pool::pool::{CreateOptions, Pool};
    use tidepool_pool::words::Role;

    const MIB: usize = 1 << 20;

    struct Place {
        _folder: tempfile::TempDir,
        path: PathBuf,
    }

    /// A pool of so many extents of 2 MB, with databases `a` and `b`, the latter of at most 4 extents.
    fn place(extents: u64) -> (Place, Arc<Pool>) {
        let shm = std::path::Path::new("/dev/shm");
        let parent = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
        let folder = tempfile::Builder::new().prefix("tidepool-leased-").tempdir_in(parent).unwrap();
        let path = folder.path().join("pool");
        let options = CreateOptions {
            devices: vec![(Location::File(path.clone()), Some(extents * 2 * MIB as u64))],
            extent_bytes: None,
            bytes_max: None,
            label: String::new(),
            populates: false,
            overcommits: false,
        };
        let pool = Arc::new(Pool::create(&options).unwrap());
        let tool = Member::join(Arc::clone(&pool), &JoinOptions::tool("test")).unwrap();
        tool.create_database("a", 0).unwrap();
        tool.create_database("b", 4).unwrap();
        (Place { _folder: folder, path }, pool)
    }

    fn join(pool: &Arc<Pool>, database: &str) -> Arc<Member> {
        let options =
            JoinOptions { role: Role::Primary, database: Some(database.to_owned()), ..JoinOptions::tool(database) };
        Arc::new(Member::join(Arc::clone(pool), &options).unwrap())
    }

    fn over(member: &Arc<Member>, size: Option<usize>, publishes: bool) -> Arc<Tablespace> {
        let config =
            TablespaceConfig { location: Location::Pool, size_bytes: size.map(|size| size as u64), ..config("t", 0) };
        Tablespace::open_leased(TablespaceId(3), config, member, LeaseOptions { publishes, guards: true, keeps: false })
            .unwrap()
    }

    fn count(pool: &Pool, state: &str) -> u64 {
        usage(pool).unwrap().into_iter().filter(|(key, _)| key.0 == state).map(|(_, count)| count).sum()
    }

    #[test]
    fn a_tablespace_has_what_another_of_the_process_does_not_use() {
        let (_place, pool) = place(13);
        let host = join(&pool, "a");
        let (near, far) = (over(&host, None, true), over(&host, None, true));
        // 12 extents, which one has and does not use, but for one.
        let used = near.allocate(MIB, Purpose::Heap).unwrap();
        let idle: Vec<_> = (0..20).map(|_| near.allocate(MIB, Purpose::Delta).unwrap()).collect();
        drop(idle);
        assert_eq!((count(&pool, "private"), count(&pool, "free")), (11, 1));
        let some = far.allocate(4 * MIB, Purpose::Index).unwrap();
        assert!((8..=9).contains(&(near.leases().iter().map(|lease| lease.2).sum::<u64>())), "as many as are wanted");
        let more = far.allocate(16 * MIB, Purpose::Heap).unwrap();
        let error = far.allocate(4 * MIB, Purpose::Heap).unwrap_err();
        assert_eq!(error.code(), SqlState::DISK_FULL, "what is used stays");
        drop((some, more, used));
        let all = near.allocate(24 * MIB, Purpose::Delta).unwrap();
        drop((all, near));
        // One that is gone is asked no more.
        let all = far.allocate(24 * MIB, Purpose::Heap).unwrap();
        drop(all);
    }

    #[test]
    fn several_hosts_lease_from_one_pool() {
        let (place, pool) = place(17);
        let other = Arc::new(Pool::open(&Location::File(place.path.clone())).unwrap());
        let (one, two) = (join(&pool, "a"), join(&other, "b"));
        let (first, second) = (over(&one, None, true), over(&two, None, true));
        assert_eq!((first.size_bytes(), second.available_bytes()), (32 * MIB as u64, 32 * MIB as u64));
        let mut held: Vec<Region> = Vec::new();
        for _ in 0..3 {
            let mut region = first.allocate(2 * MIB, Purpose::Main).unwrap();
            region.fill(7);
            region.publish();
            held.push(region);
            let mut heap = first.allocate(3 * MIB, Purpose::Heap).unwrap();
            heap.fill(8);
            held.push(heap);
        }
        assert_eq!((count(&pool, "shared"), count(&pool, "private")), (3, 6));
        assert!(check_pool(&pool, true).unwrap().is_clean());
        // The other one's quota, its own bound, then the pool's end.
        let of_second = second.allocate(8 * MIB, Purpose::Index).unwrap();
        let error = second.allocate(MIB, Purpose::Heap).unwrap_err();
        assert_eq!(error.code(), SqlState::OUT_OF_MEMORY);
        assert!(error.message().contains("quota"), "{error}");
        drop(of_second);
        second.trim(0).unwrap();
        let bounded = over(&one, Some(4 * MIB), false);
        let error = bounded.allocate(5 * MIB, Purpose::Main).unwrap_err();
        assert_eq!((error.code(), error.message()), (SqlState::OUT_OF_MEMORY, "tablespace \"t\" is full"));
        let error = first.allocate(15 * MIB, Purpose::Delta).unwrap_err();
        assert_eq!(error.code(), SqlState::DISK_FULL);
        assert_eq!(error.message(), format!("pool \"file:{}\" is full", place.path.display()));
        assert_eq!(error.detail(), Some("16 MB are wanted and 14 MB are free."));
        // What it holds is what it held, and other databases see nothing of it.
        assert!(
            held.iter()
                .all(|region| region.iter().all(|byte| *byte == if region.purpose() == Purpose::Main { 7 } else { 8 }))
        );
        drop(held);
        first.trim(0).unwrap();
        assert_eq!(count(&pool, "free"), 16);
        let seen = second.allocate(8 * MIB, Purpose::Heap).unwrap();
        assert!(seen.iter().all(|byte| *byte == 0));
        drop(seen);
        drop((first, second, bounded));
        assert_eq!(count(&pool, "free"), 16);
        assert!(check_pool(&pool, true).unwrap().is_clean());
    }

    #[test]
    fn a_store_that_comes_late_meets_no_memory_and_alignment_holds() {
        let (_place, pool) = place(33);
        let member = join(&pool, "a");
        let space = over(&member, None, true);
        let aligned = space.allocate_pages(PAGE_BYTES, 16 * MIB, Purpose::Heap).unwrap();
        assert_eq!(aligned.as_ptr().addr() % (16 * MIB), 0);
        // SAFETY: taken above and of no use.
        unsafe { space.free_pages(aligned, PAGE_BYTES, Purpose::Heap) };
        let mut region = space.allocate(2 * MIB, Purpose::Main).unwrap();
        region.fill(1);
        region.publish();
        let at = region.as_ptr().addr();
        let protection = |address: usize| {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let of = |line: &str| {
                let (range, rest) = line.split_once(' ')?;
                let (from, to) = range.split_once('-')?;
                let bounds = usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(to, 16).ok()?;
                bounds.contains(&address).then(|| rest[..4].to_owned())
            };
            maps.lines().find_map(of).unwrap_or_default()
        };
        assert_eq!(protection(at), "r--s");
        drop(region);
        assert_eq!(protection(at), "---p");
        let fresh = space.allocate(2 * MIB, Purpose::Main).unwrap();
        assert_eq!(protection(fresh.as_ptr().addr()), "rw-s");
    }

    #[test]
    fn what_a_dead_host_had_is_free_and_what_it_published_goes_with_its_database() {
        let (place, pool) = place(17);
        let other = Arc::new(Pool::open(&Location::File(place.path.clone())).unwrap());
        let dying = join(&other, "a");
        let space = over(&dying, None, true);
        let mut shared = space.allocate(2 * MIB, Purpose::Main).unwrap();
        shared.publish();
        let filling = space.allocate(MIB, Purpose::Main).unwrap();
        let private = space.allocate(3 * MIB, Purpose::Delta).unwrap();
        let host = dying.host();
        // As if it were killed: nothing of it runs any more.
        std::mem::forget((shared, filling, private, space));
        assert!(forget(&pool, host, true).unwrap());
        assert_eq!((count(&pool, "free"), count(&pool, "shared"), count(&pool, "orphan")), (14, 1, 1));
        // It finds out, and gets nothing more.
        let late = over(&dying, None, true);
        assert_eq!(late.allocate(MIB, Purpose::Heap).unwrap_err().code(), SqlState::ADMIN_SHUTDOWN);
        // The next host of the database finds nothing that names them.
        let next = join(&pool, "a");
        assert_eq!(next.reclaim_unnamed().unwrap(), 2);
        assert_eq!(count(&pool, "free"), 16);
        assert!(check_pool(&pool, true).unwrap().is_clean());
    }

    #[test]
    fn a_device_that_came_in_the_place_of_the_pools_is_refused() {
        let (place, pool) = place(9);
        let member = join(&pool, "a");
        std::fs::rename(&place.path, place.path.with_extension("old")).unwrap();
        std::fs::copy(place.path.with_extension("old"), &place.path).unwrap();
        let config = TablespaceConfig { location: Location::Pool, size_bytes: None, ..config("t", 0) };
        let error = Tablespace::open_leased(TablespaceId(3), config, &member, LeaseOptions::default()).unwrap_err();
        assert_eq!(error.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "{error}");
    }

    #[test]
    fn extents_of_a_device_that_is_not_known_yet_are_passed_over() {
        let (place, pool) = place(9);
        let member = join(&pool, "a");
        let space = over(&member, Some(64 * MIB), false);
        let (low, high) =
            (space.allocate(10 * MIB, Purpose::Main).unwrap(), space.allocate(6 * MIB, Purpose::Main).unwrap());
        pool.add_device(&Location::File(place.path.with_extension("second")), Some(16 * MIB as u64)).unwrap();
        drop(low);
        let again = space.allocate(10 * MIB, Purpose::Main).unwrap();
        space.look_at_pool().unwrap();
        let more = space.allocate(12 * MIB, Purpose::Main).unwrap();
        drop((high, again, more));
    }

    #[test]
    fn a_bound_can_be_lowered_while_it_is_in_use() {
        let (_place, pool) = place(65);
        let member = join(&pool, "a");
        for publishes in [false, true] {
            let space = over(&member, Some(64 * MIB), publishes);
            let mut held: Vec<Region> = Vec::new();
            for number in 0..40u8 {
                let mut region = space.allocate(MIB, Purpose::Main).unwrap();
                region.fill(number);
                region.publish();
                held.push(region);
            }
            // One of two stays: all extents are half empty.
            let mut number = 0;
            held.retain(|_| {
                number += 1;
                number % 2 == 0
            });
            assert_eq!(space.resize(16 * MIB as u64).unwrap_err().code(), SqlState::OUT_OF_MEMORY);
            let change = space.resize(24 * MIB as u64).unwrap();
            assert!(change.left_bytes() > 0);
            // The new bound holds from now on.
            let wide = space.allocate(26 * MIB, Purpose::Index);
            assert_eq!(wide.unwrap_err().code(), SqlState::OUT_OF_MEMORY);
            for region in &mut held {
                if region.is_closing() {
                    let mut copy = space.allocate(region.len(), Purpose::Main).unwrap();
                    copy.copy_from_slice(region);
                    copy.publish();
                    *region = copy;
                }
            }
            assert_eq!(change.left_bytes(), 0);
            change.finish().unwrap();
            let usage = space.usage();
            assert!(usage.resident_bytes <= 24 * MIB as u64, "{usage:?}");
            assert_eq!((usage.size_bytes, space.config().size_bytes), (24 * MIB as u64, Some(24 * MIB as u64)));
            assert!(held.iter().zip(0..).all(|(region, index)| region.iter().all(|byte| *byte == 2 * index + 1)));
            let wide = space.allocate(6 * MIB, Purpose::Main);
            assert_eq!(wide.unwrap_err().code(), SqlState::OUT_OF_MEMORY);
            // Undone, all is as before.
            drop(space.resize(22 * MIB as u64).unwrap());
            assert_eq!(space.size_bytes(), 24 * MIB as u64);
            drop(held);
            drop(space.allocate(22 * MIB, Purpose::Index).unwrap());
            assert_eq!(space.allocate(26 * MIB, Purpose::Index).unwrap_err().code(), SqlState::OUT_OF_MEMORY);
            space.trim(0).unwrap();
            drop(space);
            assert!(check_pool(&pool, true).unwrap().is_clean());
        }
        assert_eq!(count(&pool, "free"), 64);
    }

    #[test]
    fn extents_in_which_little_is_are_emptied_for_others() {
        let (_place, pool) = place(65);
        let member = join(&pool, "a");
        for publishes in [false, true] {
            let space = over(&member, Some(64 * MIB), publishes);
            assert!(space.condense(1).unwrap().is_none(), "there is nothing to empty");
            let mut held: Vec<Region> = Vec::new();
            for number in 0..32u8 {
                let mut region = space.allocate(MIB / 2, Purpose::Main).unwrap();
                region.fill(number);
                region.publish();
                held.push(region);
            }
            assert!(space.condense(1).unwrap().is_none(), "full extents are not emptied");
            // A quarter is left of each extent.
            let mut number = 0;
            held.retain(|_| {
                number += 1;
                number % 4 == 0
            });
            let before = count(&pool, "free");
            // Four extents with a quarter in use make one, or go where others have room if a page can be taken again.
            let change = space.condense(3).unwrap().unwrap();
            let mut moved = 0;
            for region in &mut held {
                if region.is_closing() {
                    let mut copy = space.allocate(region.len(), Purpose::Main).unwrap();
                    copy.copy_from_slice(region);
                    copy.publish();
                    *region = copy;
                    moved += 1;
                }
            }
            assert_eq!((moved, change.left_bytes()), (if publishes { 4 } else { 3 }, 0));
            drop(change);
            assert_eq!(count(&pool, "free"), before + 3, "publishes: {publishes}");
            assert!(held.iter().zip(0..).all(|(region, index)| region.iter().all(|byte| *byte == 4 * index + 3)));
            // What is not moved stays, and its extent serves on.
            let change = space.condense(100).unwrap().unwrap();
            assert!(change.left_bytes() > 0);
            drop(change);
            assert_eq!(count(&pool, "free"), before + 3);
            assert_eq!((space.size_bytes(), space.config().size_bytes), (64 * MIB as u64, Some(64 * MIB as u64)));
            drop(space.allocate(20 * MIB, Purpose::Index).unwrap());
            drop(held);
            space.trim(0).unwrap();
            drop(space);
            assert!(check_pool(&pool, true).unwrap().is_clean());
        }
        assert_eq!(count(&pool, "free"), 64);
    }

    /// What one host put into the pool another one reads where it lies, by the places alone, in whatever order it comes upon
    /// them and as often; and it stays when both let go of it.
    #[test]
    fn another_host_reads_what_was_published_where_it_lies() {
        let (place, pool) = place(65);
        let other = Arc::new(Pool::open(&Location::File(place.path.clone())).unwrap());
        let followed = |id, member: &Arc<Member>| {
            let config = TablespaceConfig { location: Location::Pool, size_bytes: None, ..config("t", 0) };
            let options = LeaseOptions { publishes: true, guards: true, keeps: true };
            Tablespace::open_leased(TablespaceId(id), config, member, options).unwrap()
        };
        let (one, two) = (join(&pool, "a"), join(&other, "a"));
        let (first, second) = (followed(3, &one), followed(4, &two));
        let mut written: Vec<(Region, u8)> = Vec::new();
        for (number, len) in [MIB / 2, 5 * MIB, 100, 3 * MIB, 7, MIB, 2 * MIB, 4 * MIB + 5].into_iter().enumerate() {
            let mut region = first.allocate(len, Purpose::Main).unwrap();
            region.fill(number as u8 + 1);
            region.publish();
            written.push((region, number as u8 + 1));
        }
        let places: Vec<_> = written.iter().map(|(region, fill)| (region.pool_place().unwrap(), *fill)).collect();
        assert!(places.iter().any(|(place, _)| place.extents.len() > 1));
        // The shortest first: longer ones that share an extent come later, and once more as if a log named them twice.
        let mut by_len: Vec<_> = places.iter().chain(&places).collect();
        by_len.sort_by_key(|(place, _)| place.len);
        let attached: Vec<(Region, u8)> = std::thread::scope(|scope| {
            let attach = |(place, fill): &(PoolPlace, u8)| (second.attach_published(place).unwrap(), *fill);
            let threads: Vec<_> = by_len
                .chunks(5)
                .map(|places| scope.spawn(move || places.iter().map(|place| attach(place)).collect::<Vec<_>>()))
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        let are_right = |all: &[(Region, u8)]| all.iter().all(|(region, fill)| region.iter().all(|byte| byte == fill));
        assert!(are_right(&attached));
        let used = |space: &Tablespace| {
            let mut extents = space.used_extents();
            extents.sort_unstable_by_key(|extent| extent.0);
            extents.dedup();
            extents
        };
        assert_eq!(used(&first), used(&second));
        let named = used(&first).len() as u64;
        // Both let go of it. Nothing goes back, and what was being filled is published.
        drop((written, first));
        assert!(are_right(&attached));
        assert_eq!((count(&pool, "filling"), count(&pool, "shared")), (0, named));
        drop(attached);
        assert_eq!(second.used_bytes(), 0);
        assert!(second.used_extents().is_empty());
        assert_eq!(count(&pool, "shared"), named);
        let (place, fill) = &places[1];
        let again = second.attach_published(place).unwrap();
        assert!(again.iter().all(|byte| byte == fill));
        assert!(check_pool(&pool, true).unwrap().is_clean());
        drop(again);
        assert!(second.used_extents().is_empty());
        // What is claimed counts as used, and is mapped once it is wanted.
        let claimed: Vec<_> = places.iter().map(|(place, _)| second.claim_published(place.clone()).unwrap()).collect();
        let bytes: u64 = places.iter().map(|(place, _)| place.len.next_multiple_of(4096)).sum();
        let state = || (used(&second).len() as u64, second.used_bytes(), second.bytes(Purpose::Free));
        assert_eq!(state(), (named, bytes, 0));
        assert!(second.close().is_err());
        let region = claimed[1].attach().unwrap();
        assert!(region.iter().all(|byte| byte == fill));
        assert_eq!((used(&second).len() as u64, second.used_bytes()), (named, bytes));
        // Only what is mapped keeps its extents then.
        drop(claimed);
        assert_eq!(used(&second).len(), place.extents.len());
        assert_eq!(second.used_bytes(), place.len.next_multiple_of(4096));
        drop(region);
        assert_eq!((used(&second).len(), second.used_bytes()), (0, 0));
        let again = second.attach_published(place).unwrap();
        // What is no place is refused, and changes nothing.
        for (extents, offset, len) in [
            (vec![Extent(1 << 20)], 0, 100),
            (place.extents.clone(), 1, 5 * MIB),
            (place.extents.clone(), 0, 100),
            (vec![], 0, 0),
            (vec![place.extents[0]], 4096, 2 * MIB),
        ] {
            let place = PoolPlace { extents, offset, len: len as u64 };
            let error = second.attach_published(&place).unwrap_err();
            assert_eq!(error.code(), SqlState::DATA_CORRUPTED);
            assert_eq!(second.claim_published(place).unwrap_err().code(), SqlState::DATA_CORRUPTED);
        }
        drop(again);
        assert!(second.used_extents().is_empty());
    }
}
