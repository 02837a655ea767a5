use crate::{Contents, Left, Purpose, Tablespace, TablespaceConfig, Tablespaces, page_tag};
use std::num::NonZero;
use std::sync::Arc;
use tidepool_base::{ByteSize, SqlState, TablespaceId};
use tidepool_device::{Location, Mapping, Profile, paged};

const PAGE: usize = 4096;

pub(crate) fn config(name: &str, size: u64) -> TablespaceConfig {
    TablespaceConfig {
        name: name.into(),
        location: Location::Anon,
        size_bytes: Some(size),
        profile: None,
        profiles: Vec::new(),
        huge_pages: true,
        populate_bytes: 0,
    }
}

fn heap_space(pages: usize) -> Arc<Tablespace> {
    let size = pages * PAGE;
    Tablespace::over(TablespaceId(9), config("t", size as u64), Mapping::heap(size)).unwrap()
}

/// The ledger adds up, and `Free` is what is resident without an owner.
pub(crate) fn check(space: &Tablespace) {
    let usage = space.usage();
    let rows = space.ledger();
    let used: u64 = rows.iter().filter(|row| row.purpose != Purpose::Free).map(|row| row.bytes).sum();
    let total: u64 = rows.iter().map(|row| row.bytes).sum();
    assert_eq!((usage.used_bytes, usage.resident_bytes), (used, total));
    if !space.is_leased() {
        assert!(usage.resident_bytes <= usage.size_bytes);
        assert_eq!(space.available_bytes(), usage.size_bytes - used);
    }
    assert!(rows.iter().all(|row| row.bytes <= row.bytes_peak));
}

#[test]
fn regions_are_counted_until_dropped() {
    let space = heap_space(64);
    let mut main = space.allocate(10_000, Purpose::Main).unwrap();
    let delta = space.allocate(PAGE, Purpose::Delta).unwrap();
    let empty = space.allocate(0, Purpose::Main).unwrap();
    assert!(empty.is_empty());
    assert_eq!((main.len(), main.purpose()), (10_000, Purpose::Main));
    main.fill(3);
    assert_eq!(main[9_999], 3);
    assert!(space.contains(main.as_ptr()) && !space.contains((&raw const space).cast()));
    assert_eq!((space.bytes(Purpose::Main), space.bytes(Purpose::Delta)), (3 * PAGE as u64, PAGE as u64));
    check(&space);
    drop(main);
    drop(delta);
    drop(empty);
    check(&space);
    assert_eq!(space.usage().used_bytes, 0);
    assert_eq!(space.bytes(Purpose::Free), 4 * PAGE as u64);
    assert_eq!(space.ledger()[Purpose::Main as usize].bytes_peak, 3 * PAGE as u64);
    // Idle memory is used again before new memory is touched.
    let again = space.allocate(4 * PAGE, Purpose::Index).unwrap();
    assert_eq!((space.bytes(Purpose::Free), space.usage().resident_bytes), (0, 4 * PAGE as u64));
    assert!(space.allocate_run(PAGE, PAGE, Purpose::Log).unwrap().zeroed);
    drop(again);
    assert!(!space.allocate_run(PAGE, PAGE, Purpose::Log).unwrap().zeroed);
}

#[test]
fn a_full_tablespace_says_so() {
    let space = heap_space(16);
    let held = space.allocate(10 * PAGE, Purpose::Main).unwrap();
    let error = space.allocate(7 * PAGE, Purpose::Main).unwrap_err();
    assert_eq!(error.code(), SqlState::OUT_OF_MEMORY);
    assert_eq!(error.message(), "tablespace \"t\" is full");
    assert_eq!(error.detail(), Some("28 kB are wanted; 24 kB of 64 kB are free, 24 kB of them in one piece."));
    assert_eq!(space.allocate(usize::MAX, Purpose::Main).unwrap_err().code(), SqlState::OUT_OF_MEMORY);
    check(&space);
    drop(held);
    space.allocate(16 * PAGE, Purpose::Main).unwrap();
}

#[test]
fn trimming_gives_idle_memory_back() {
    let space = heap_space(2000);
    let low = space.allocate(100 * PAGE, Purpose::Main).unwrap();
    let high = space.allocate(1200 * PAGE, Purpose::Heap).unwrap();
    drop(high);
    assert_eq!(space.bytes(Purpose::Free), 1200 * PAGE as u64);
    assert_eq!(space.trim(u64::MAX).unwrap(), 0);
    let given = space.trim(300 * PAGE as u64).unwrap();
    assert!(given >= 900 * PAGE as u64);
    assert!(space.bytes(Purpose::Free) <= 300 * PAGE as u64);
    check(&space);
    space.trim(0).unwrap();
    assert_eq!((space.bytes(Purpose::Free), space.usage().resident_bytes), (0, 100 * PAGE as u64));
    let run = space.allocate_run(1000 * PAGE, PAGE, Purpose::Heap).unwrap();
    assert!(run.zeroed);
    // SAFETY: the run is 1000 pages long and this test's.
    let bytes = unsafe { std::slice::from_raw_parts(run.address.as_ptr(), 1000 * PAGE) };
    let step = if cfg!(miri) { 4099 } else { 1 };
    assert!(bytes.iter().step_by(step).all(|byte| *byte == 0));
    drop(low);
    check(&space);
}

#[test]
fn pages_are_taken_and_given_back_from_many_threads() {
    take_and_give_back_from_many_threads(&heap_space(1500));
}

pub(crate) fn take_and_give_back_from_many_threads(space: &Arc<Tablespace>) {
    let rounds = if cfg!(miri) { 10 } else { 2000 };
    std::thread::scope(|scope| {
        for thread in 1..=4u16 {
            scope.spawn(move || {
                let mut held = Vec::new();
                for round in 0..rounds {
                    let pages = 1 + (round * 7 + thread as usize) % 60;
                    if let Some(run) = space.allocate_tagged(pages * PAGE, PAGE, thread) {
                        let address = run.address;
                        // SAFETY: the first byte of pages that are this thread's.
                        unsafe { address.write(thread as u8) };
                        held.push((address, pages));
                    }
                    if round % 3 != 0 && !held.is_empty() {
                        let (address, pages) = held.swap_remove(round % held.len());
                        assert_eq!(page_tag(address.as_ptr()), Some(thread));
                        // SAFETY: these pages are this thread's; the second call gives the rest of the run.
                        unsafe {
                            assert_eq!(address.read(), thread as u8);
                            space.free_tagged(address.add((pages - 1) * PAGE), PAGE, thread);
                            if pages > 1 {
                                space.free_tagged(address, (pages - 1) * PAGE, thread);
                            }
                        }
                    }
                    if round % 500 == 499 {
                        space.trim(0).unwrap();
                    }
                }
                for (address, pages) in held {
                    // SAFETY: these pages are this thread's.
                    unsafe { space.free_tagged(address, pages * PAGE, thread) };
                }
            });
        }
    });
    assert_eq!(space.usage().used_bytes, 0);
    check(space);
}

/// Two owners' runs of random lengths, freed in parts, page by page in a model: where one ends, none of the other goes on.
#[test]
fn a_run_never_ends_where_the_middle_of_anothers_begins() {
    let (padded, refused) = runs_of_two_owners(&heap_space(200), 200);
    assert!(cfg!(miri) || padded > 0 && refused > 0, "{padded} {refused}");
}

/// In a tablespace of so many pages. How often a page was left free between two owners, and how often nothing was found.
pub(crate) fn runs_of_two_owners(space: &Arc<Tablespace>, pages: usize) -> (usize, usize) {
    let base = space.address_range().start;
    // Only its provenance is used.
    let first_page = space.allocate_tagged(PAGE, PAGE, 1).unwrap().address;
    // SAFETY: taken a moment ago.
    unsafe { space.free_tagged(first_page, PAGE, 1) };
    // Owner, and whether a run starts here.
    let mut model: Vec<Option<(u16, bool)>> = vec![None; pages];
    let mut random = 1u64;
    let mut below = move |limit: usize| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) as usize % limit
    };
    let (mut taken, mut padded, mut refused) = (0, 0, 0);
    for _ in 0..if cfg!(miri) { 60 } else { 20_000 } {
        let tag = 1 + below(2) as u16;
        if below(2) == 0 {
            let most = if below(4) == 0 { 40 } else { 6 };
            let count = 1 + below(most);
            let free_runs = model.split(|page| page.is_some()).filter(|run| run.len() >= count).count();
            let Some(run) = space.allocate_tagged(count * PAGE, PAGE, tag) else {
                refused += usize::from(free_runs > 0);
                continue;
            };
            let start = (run.address.as_ptr().addr() - base) / PAGE;
            let end = start + count;
            assert!(model[start..end].iter().all(Option::is_none));
            model[start..end].fill(Some((tag, false)));
            model[start] = Some((tag, true));
            if let Some(Some((other, first))) = model.get(end) {
                assert!(*first || *other == tag, "pages {start} to {end} of {tag} end inside a run of {other}");
            }
            taken += 1;
            let beyond = model.get(end + 1).copied().flatten();
            padded += usize::from(model.get(end) == Some(&None) && beyond == Some((3 - tag, false)));
        } else {
            // A part of some run.
            let start = below(pages);
            let Some((tag, _)) = model[start] else { continue };
            let most = 1 + below(6);
            let mut end = start + 1;
            while end < pages && end - start < most && model[end] == Some((tag, false)) {
                end += 1;
            }
            let address = first_page.map_addr(|_| NonZero::new(base + start * PAGE).unwrap());
            // SAFETY: pages that were taken with this tag, and are used by nobody.
            unsafe { space.free_tagged(address, (end - start) * PAGE, tag) };
            model[start..end].fill(None);
        }
        let used = model.iter().flatten().count();
        assert_eq!(space.bytes(Purpose::Heap), (used * PAGE) as u64);
        check(space);
    }
    assert!(taken > 0);
    (padded, refused)
}

#[test]
#[cfg_attr(miri, ignore = "maps memory")]
fn whole_huge_pages_are_aligned_and_resident_as_a_whole() {
    let space = Tablespace::open(TablespaceId(0), config("t", 64 << 20)).unwrap();
    let small = space.allocate(100, Purpose::Main).unwrap();
    let aligned = space.allocate_pages(PAGE, 16 << 20, Purpose::Heap).unwrap();
    assert_eq!(aligned.as_ptr().addr() % (16 << 20), 0);
    // SAFETY: taken above and of no use.
    unsafe { space.free_pages(aligned, PAGE, Purpose::Heap) };
    let large = space.allocate(4 << 20, Purpose::Main).unwrap();
    assert_eq!(large.as_ptr().addr() % (2 << 20), 0);
    check(&space);
    drop((small, large));
    let usage = space.usage();
    assert_eq!(usage.used_bytes, 0);
    // What was a table's went back at once. The huge page of the heap's stays for the next statement, unless a table had
    // some of it.
    let shared = aligned.as_ptr().addr() - space.address_range().start < 6 << 20;
    assert_eq!(usage.resident_bytes, if shared { 0 } else { 2 << 20 });
    space.trim(0).unwrap();
    assert_eq!(space.usage().resident_bytes, 0);
}

/// Bytes of a range of addresses that the system has memory for.
fn backed_bytes(range: std::ops::Range<usize>) -> usize {
    let mut states = vec![0u8; range.len() / PAGE];
    // SAFETY: it writes a byte for each page, and looks at nothing behind the addresses.
    let rc = unsafe { libc::mincore(range.start as *mut libc::c_void, range.len(), states.as_mut_ptr()) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    states.iter().filter(|state| **state & 1 != 0).count() * PAGE
}

#[test]
#[cfg_attr(miri, ignore = "maps memory")]
fn what_is_populated_is_there_before_it_is_used_and_stays() {
    for location in ["anon:".to_owned(), format!("file:/dev/shm/tidepool-populated-{}", std::process::id())] {
        if location.contains("shm") && !std::path::Path::new("/dev/shm").is_dir() {
            continue;
        }
        let location: Location = location.parse().unwrap();
        let config = TablespaceConfig { location: location.clone(), populate_bytes: 16 << 20, ..config("p", 64 << 20) };
        config.check_populate().unwrap();
        let space = Tablespace::open(TablespaceId(4), config.clone()).unwrap();
        let mapped = {
            let range = space.address_range();
            range.start..range.start + (64 << 20)
        };
        assert!(backed_bytes(mapped.clone()) <= 4 << 20);
        space.populate().unwrap();
        let populated = backed_bytes(mapped.clone());
        assert!((16 << 20..20 << 20).contains(&populated), "{populated}");
        let resident = space.usage().resident_bytes;
        assert!((16 << 20..20 << 20).contains(&resident), "{resident}");
        check(&space);
        // What is used first is what is there.
        let mut region = space.allocate(12 << 20, Purpose::Main).unwrap();
        region.fill(1);
        assert_eq!(backed_bytes(mapped.clone()), populated);
        let mut more = space.allocate(24 << 20, Purpose::Main).unwrap();
        more.fill(1);
        assert!(backed_bytes(mapped.clone()) >= 36 << 20);
        // Beyond it all goes back.
        drop(more);
        drop(region);
        space.trim(0).unwrap();
        let resident = space.usage().resident_bytes;
        assert!((16 << 20..20 << 20).contains(&resident), "{resident}");
        assert!((16 << 20..20 << 20).contains(&backed_bytes(mapped)));
        space.populate().unwrap();
        assert_eq!(space.usage().resident_bytes, resident);
        check(&space);
        drop(space);
        if let Location::File(path) = &location {
            std::fs::remove_file(path).unwrap();
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "maps memory")]
fn more_than_there_is_cannot_be_populated() {
    let more = TablespaceConfig { populate_bytes: 9 << 20, ..config("p", 8 << 20) };
    let error = more.check_populate().unwrap_err();
    assert_eq!(error.code(), SqlState::INVALID_PARAMETER_VALUE);
    assert_eq!(error.message(), "9 MB of tablespace \"p\" are to be populated, and it has 8 MB");
    // One that has become smaller has all of it populated.
    let space = Tablespace::open(TablespaceId(4), more).unwrap();
    space.populate().unwrap();
    assert!((6 << 20..=8 << 20).contains(&space.usage().resident_bytes));
    let paged = TablespaceConfig {
        location: "paged:1MB:anon:".parse().unwrap(),
        populate_bytes: 1 << 20,
        ..config("p", 8 << 20)
    };
    assert_eq!(paged.check_populate().unwrap_err().code(), SqlState::INVALID_PARAMETER_VALUE);
    // Where there is not so much memory, nobody is ended for it.
    let error = space.check_available(ByteSize(8 << 20), Some(7 << 20)).unwrap_err();
    assert_eq!((error.code(), error.detail()), (SqlState::OUT_OF_MEMORY, Some("The machine has 7 MB left.")));
    space.check_available(ByteSize(8 << 20), Some(8 << 20)).unwrap();
    space.check_available(ByteSize(8 << 20), None).unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "maps memory")]
fn tablespaces_are_created_found_and_dropped() {
    let spaces = Tablespaces::open(config("x", 8 << 20), config("y", 8 << 20)).unwrap();
    assert_eq!((spaces.near().name(), spaces.far().id()), ("near", TablespaceId(1)));
    let pool = spaces.create(config("pool", 4 << 20)).unwrap();
    assert_eq!(pool.id(), TablespaceId(2));
    for name in ["pool", "near", "far"] {
        assert_eq!(spaces.create(config(name, 1 << 20)).unwrap_err().code(), SqlState::DUPLICATE_OBJECT);
        assert_eq!(spaces.get(name).unwrap().name(), name);
    }
    assert_eq!(spaces.list().len(), 3);
    assert_eq!(spaces.ledger().len(), 3 * Purpose::ALL.len());
    for name in ["near", "far"] {
        assert_eq!(spaces.drop(name).unwrap_err().code(), SqlState::RESERVED_NAME);
    }
    let held = pool.allocate(100, Purpose::Main).unwrap();
    let error = spaces.drop("pool").unwrap_err();
    assert_eq!((error.code(), error.detail()), (SqlState::OBJECT_IN_USE, Some("It holds 4 kB of main.")));
    drop(held);
    spaces.drop("pool").unwrap();
    // Whoever still holds it gets nothing more out of it.
    assert_eq!(pool.allocate(1, Purpose::Main).unwrap_err().code(), SqlState::UNDEFINED_OBJECT);
    for result in [spaces.get("pool").map(|_| ()), spaces.drop("pool")] {
        assert_eq!(result.unwrap_err().code(), SqlState::UNDEFINED_OBJECT);
    }
    assert_eq!(spaces.create(config("pool", 1 << 20)).unwrap().id(), TablespaceId(3));
}

#[test]
#[cfg_attr(miri, ignore = "maps files")]
fn a_file_is_kept_by_its_superblock() {
    let folder = match std::env::var_os("TIDEPOOL_TEST_FOLDER") {
        Some(folder) => folder.into(),
        None if std::path::Path::new("/dev/shm").is_dir() => "/dev/shm".into(),
        None => std::env::temp_dir(),
    };
    let path = folder.join(format!("tidepool-space-{}", std::process::id()));
    let file = |size| TablespaceConfig { location: Location::File(path.clone()), size_bytes: size, ..config("f", 0) };
    let open = |size| Tablespace::open(TablespaceId(2), file(size));
    for _ in 0..3 {
        let space = open(Some(8 << 20)).unwrap();
        assert_eq!(space.bytes(Purpose::Metadata), PAGE as u64);
        let mut region = space.allocate(5 << 20, Purpose::Main).unwrap();
        assert!(region.iter().all(|byte| *byte == 0));
        region.fill(0xee);
        assert_eq!(open(None).unwrap_err().code(), SqlState::OBJECT_IN_USE);
        check(&space);
        drop(region);
        assert_eq!(space.usage().resident_bytes, 2 << 20);
        assert_eq!(space.trim(0).unwrap(), (2 << 20) - PAGE as u64);
    }
    let bytes = std::fs::read(&path).unwrap();
    assert!(bytes.starts_with(b"TIDEPOOL") && bytes[PAGE..].iter().all(|byte| *byte == 0));
    // All of it when no size is given, and more when more is asked for.
    assert_eq!(open(None).unwrap().size_bytes(), 8 << 20);
    assert_eq!(open(Some(12 << 20)).unwrap().size_bytes(), 12 << 20);
    // Another's file stays as it is.
    std::fs::write(&path, b"my thesis, only copy").unwrap();
    let error = open(Some(8 << 20)).unwrap_err();
    assert_eq!(error.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    assert!(error.context().unwrap().contains("tablespace \"f\""));
    assert_eq!(std::fs::read(&path).unwrap(), b"my thesis, only copy");
    std::fs::remove_file(path).unwrap();
}

#[test]
#[cfg_attr(miri, ignore = "reads the machine")]
fn a_profile_paces_and_nonsense_is_refused() {
    let profile = Profile::preset("fpga-prototype").unwrap();
    let paced = TablespaceConfig { profile: Some(profile.clone()), ..config("t", 1 << 20) };
    let space = Tablespace::open(TablespaceId(1), paced.clone()).unwrap();
    assert_eq!(space.pacer().unwrap().model().shares()[0].profile, Some(profile.clone()));
    let bad = Profile { read_gb_per_s: 0.0, ..profile };
    let error = Tablespace::open(TablespaceId(1), TablespaceConfig { profile: Some(bad), ..paced }).unwrap_err();
    assert_eq!(error.code(), SqlState::INVALID_PARAMETER_VALUE);
}

#[test]
#[cfg_attr(miri, ignore = "maps memory")]
fn paged_memory_is_counted_by_purpose_and_place() {
    if let Err(error) = paged::available() {
        tidepool_base::cannot_test(&error);
        return;
    }
    const MIB: u64 = 1 << 20;
    let network = Profile::preset("rdma-56g-paging").unwrap();
    let location: Location = "paged:1MB:anon:".parse().unwrap();
    let paged_config = TablespaceConfig { location, profile: Some(network), ..config("p", 16 << 20) };
    let space = Tablespace::open(TablespaceId(1), paged_config.clone()).unwrap();
    // A fault waits for the network: nothing is charged beside that.
    assert!(space.pacer().is_none());
    let paging = space.paged().unwrap();
    let places = |purpose: Purpose| paging.places(purpose as usize);
    let total = |purpose: Purpose| places(purpose).local + places(purpose).remote;
    let mut main = space.allocate(6 << 20, Purpose::Main).unwrap();
    main.fill(7);
    let mut delta = space.allocate(2 << 20, Purpose::Delta).unwrap();
    delta.fill(9);
    assert_eq!((total(Purpose::Main), total(Purpose::Delta)), (6 * MIB, 2 * MIB));
    assert_eq!(places(Purpose::Main).local + places(Purpose::Delta).local, MIB);
    assert!(main.iter().all(|byte| *byte == 7) && delta.iter().all(|byte| *byte == 9));
    drop(main);
    // A table's memory goes back at once.
    assert_eq!((total(Purpose::Main), total(Purpose::Free)), (0, 0));
    assert_eq!(space.trim(0).unwrap(), 0);
    // What is left: two copies at most of two megabytes.
    assert!((2 * MIB..=4 * MIB).contains(&space.usage().resident_bytes));
    assert!(delta.iter().all(|byte| *byte == 9));

    let refused = |location: &str, profile: Option<&str>| {
        let profile = profile.map(|name| Profile::preset(name).unwrap());
        let config = TablespaceConfig { location: location.parse().unwrap(), profile, ..paged_config.clone() };
        let error = Tablespace::open(TablespaceId(2), config).unwrap_err();
        assert_eq!(error.code(), SqlState::INVALID_PARAMETER_VALUE);
        error.message().to_owned()
    };
    assert!(refused("paged:1MB:anon:", Some("cxl-asic")).contains("\"cxl-asic\" is no network"));
    assert!(refused("paged:17MB:anon:", None).contains("larger than the paged memory"));
    assert!(refused("paged:5%:anon:", None).contains("too small"));
}

#[test]
#[cfg_attr(miri, ignore = "maps memory")]
fn paged_memory_grows_and_shrinks_and_so_does_its_cache() {
    if let Err(error) = paged::available() {
        tidepool_base::cannot_test(&error);
        return;
    }
    let paged_config =
        TablespaceConfig { location: "paged:4MB:anon:".parse().unwrap(), size_bytes: Some(16 << 20), ..config("p", 0) };
    let space = Tablespace::open(TablespaceId(1), paged_config).unwrap();
    let paging = space.paged().unwrap();
    let location = || space.config().location.to_string();
    let mut low = space.allocate(10 * MIB, Purpose::Main).unwrap();
    low.fill(1);
    // What is prepared and dropped leaves nothing.
    let change = space.resize(64 << 20).unwrap();
    assert_eq!((space.size_bytes(), change.left_bytes()), (16 << 20, 0));
    drop(change);
    assert_eq!((space.size_bytes(), paging.len()), (16 << 20, 16 * MIB));
    space.resize((64 << 20) - 1).unwrap().finish().unwrap();
    assert_eq!((space.size_bytes(), space.config().size_bytes), (64 << 20, Some(64 << 20)));
    assert_eq!((paging.cache_bytes(), location()), (4 << 20, "paged:4MB:anon:".to_owned()));
    let mut high = space.allocate(40 * MIB, Purpose::Main).unwrap();
    high.fill(2);
    assert_eq!(space.resize(44 << 20).unwrap_err().code(), SqlState::OUT_OF_MEMORY);
    drop(low);
    // What lies behind the end is kept until it is moved.
    let change = space.resize(44 << 20).unwrap();
    assert_eq!((space.size_bytes(), change.left_bytes()), (44 << 20, 6 << 20));
    assert!(space.is_closing(&high) && !space.is_closing(&high[..MIB]));
    assert_eq!(space.resize_cache("2MB".parse().unwrap(), None).unwrap_err().code(), SqlState::OBJECT_IN_USE);
    drop(change);
    assert_eq!((space.size_bytes(), space.is_closing(&high)), (64 << 20, false));
    let change = space.resize(44 << 20).unwrap();
    drop(high);
    assert_eq!(change.left_bytes(), 0);
    let mut moved = space.allocate(40 * MIB, Purpose::Main).unwrap();
    moved.fill(3);
    change.finish().unwrap();
    assert_eq!((space.size_bytes(), paging.len()), (44 << 20, 44 * MIB));
    assert!(moved.iter().all(|byte| *byte == 3));
    assert!(space.allocate(5 * MIB, Purpose::Main).is_err());
    // The cache, alone and with the size; a share follows the size.
    for (cache, size, now, shown) in [
        ("1MB", None, 1, "paged:1MB:anon:"),
        ("8MB", None, 8, "paged:8MB:anon:"),
        ("25%", Some(48 << 20), 12, "paged:25%:anon:"),
        ("50%", Some(64 << 20), 32, "paged:50%:anon:"),
    ] {
        space.resize_cache(cache.parse().unwrap(), size).unwrap().finish().unwrap();
        assert_eq!((paging.cache_bytes(), location()), (now << 20, shown.to_owned()));
        assert!(paging.local_bytes() <= now << 20 && moved.iter().all(|byte| *byte == 3));
    }
    space.resize(48 << 20).unwrap().finish().unwrap();
    assert_eq!(paging.cache_bytes(), 24 << 20);
    space.resize_cache("24MB".parse().unwrap(), None).unwrap().finish().unwrap();
    // Dropped, it is given back at once.
    drop(moved);
    assert_eq!((paging.local_bytes(), space.usage().resident_bytes, resident(&space.address_range())), (0, 0, 0));
    let error = space.resize(16 << 20).unwrap_err();
    assert_eq!(error.code(), SqlState::INVALID_PARAMETER_VALUE);
    assert!(error.message().contains("larger than the paged memory"), "{error:?}");
    space.resize_cache("2MB".parse().unwrap(), Some(2 << 20)).unwrap().finish().unwrap();
    assert_eq!((space.size_bytes(), paging.cache_bytes()), (2 << 20, 2 << 20));
    for (size, cache, code) in [
        (Some(0), "2MB", SqlState::INVALID_PARAMETER_VALUE),
        (None, "512kB", SqlState::INVALID_PARAMETER_VALUE),
        (None, "4MB", SqlState::INVALID_PARAMETER_VALUE),
        (Some(1 << 43), "2MB", SqlState::PROGRAM_LIMIT_EXCEEDED),
    ] {
        assert_eq!(space.resize_cache(cache.parse().unwrap(), size).unwrap_err().code(), code, "{size:?} {cache}");
    }
    // Nor can it be one of several.
    let stripe = "anon:".parse().unwrap();
    assert_eq!(space.add_location(stripe, None).unwrap_err().code(), SqlState::FEATURE_NOT_SUPPORTED);
    let plain = Tablespace::open(TablespaceId(2), config("t", 4 << 20)).unwrap();
    let error = plain.resize_cache("1MB".parse().unwrap(), None).unwrap_err();
    assert_eq!(error.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
}

/// `TIDEPOOL_TEST_DEVICES='dax:/dev/dax0.0 numa:1 file:/mnt/far/x' cargo test -- --ignored devices`
#[test]
#[ignore = "needs devices, named in TIDEPOOL_TEST_DEVICES"]
fn devices_hold_data_and_are_found_again() {
    let devices = std::env::var("TIDEPOOL_TEST_DEVICES").expect("TIDEPOOL_TEST_DEVICES names devices");
    for device in devices.split_whitespace() {
        let location: Location = device.parse().unwrap();
        let persists = !location.is_anonymous();
        let device_config = TablespaceConfig { location, ..config("t", 32 << 20) };
        for _ in 0..2 {
            let space = Tablespace::open(TablespaceId(1), device_config.clone()).unwrap();
            let mut region = space.allocate(20 << 20, Purpose::Main).unwrap();
            for page in region.chunks_mut(PAGE) {
                page.fill(page.as_ptr().addr() as u8 ^ 0x5a);
            }
            assert!(region.chunks(PAGE).all(|page| page.iter().all(|byte| *byte == page.as_ptr().addr() as u8 ^ 0x5a)));
            if persists {
                assert_eq!(space.bytes(Purpose::Metadata), PAGE as u64);
                let error = Tablespace::open(TablespaceId(1), device_config.clone()).unwrap_err();
                assert_eq!(error.code(), SqlState::OBJECT_IN_USE, "{device}");
            }
            drop(region);
            space.trim(0).unwrap();
            check(&space);
        }
        let huge = TablespaceConfig { size_bytes: Some(1 << 44), ..device_config.clone() };
        let error = Tablespace::open(TablespaceId(1), huge).unwrap_err();
        assert!(matches!(error.code(), SqlState::DISK_FULL | SqlState::PROGRAM_LIMIT_EXCEEDED), "{device}: {error:?}");
        println!("{device}: {error}");
    }
}

/// `VmRSS` of `range` of this process, bytes, from the kernel's own books.
fn resident(range: &std::ops::Range<usize>) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut inside, mut bytes) = (false, 0);
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or("");
        if let Some((start, end)) = first.split_once('-')
            && let (Ok(start), Ok(_)) = (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16))
        {
            inside = range.contains(&start);
        } else if inside && first == "Rss:" {
            bytes += words.next().unwrap().parse::<u64>().unwrap() * 1024;
        }
    }
    bytes
}

const MIB: usize = 1 << 20;

#[test]
#[cfg_attr(miri, ignore = "maps memory")]
fn a_tablespace_grows_and_shrinks_while_it_is_in_use() {
    let space = Tablespace::open(TablespaceId(3), config("t", 4 << 20)).unwrap();
    let mut low = space.allocate(3 * MIB, Purpose::Main).unwrap();
    low.fill(1);
    assert!(space.allocate(3 * MIB, Purpose::Main).is_err());
    space.resize(64 << 20).unwrap().finish().unwrap();
    assert_eq!((space.size_bytes(), space.config().size_bytes), (64 << 20, Some(64 << 20)));
    let mut high = space.allocate(40 * MIB, Purpose::Main).unwrap();
    high.fill(2);
    check(&space);
    // What tables hold does not fit.
    let error = space.resize(30 << 20).unwrap_err();
    assert_eq!(error.code(), SqlState::OUT_OF_MEMORY);
    assert!(error.detail().unwrap().starts_with("Tables and headers take 43 MB of it,"), "{error:?}");
    // It fits, but lies in the way. Undone, all is as it was.
    drop(low);
    let change = space.resize(41 << 20).unwrap();
    assert_eq!(space.size_bytes(), 42 << 20);
    assert_eq!(change.left_bytes(), 2 << 20);
    assert!(space.is_closing(&high) && !space.is_closing(&high[..MIB]));
    assert_eq!(space.resize(1 << 20).unwrap_err().code(), SqlState::OBJECT_IN_USE);
    drop(change);
    assert_eq!((space.size_bytes(), space.is_closing(&high)), (64 << 20, false));
    // Moved down, it makes room.
    let change = space.resize(43 << 20).unwrap();
    drop(high);
    assert_eq!(change.left_bytes(), 0);
    let mut moved = space.allocate(40 * MIB, Purpose::Main).unwrap();
    moved.fill(3);
    change.finish().unwrap();
    assert_eq!((space.size_bytes(), moved[40 * MIB - 1]), (44 << 20, 3));
    assert!(space.allocate(5 * MIB, Purpose::Main).is_err());
    check(&space);
    assert_eq!(resident(&space.address_range()), space.usage().resident_bytes);
    // Dropped, it is given back at once.
    drop(moved);
    assert_eq!((resident(&space.address_range()), space.usage().resident_bytes), (0, 0));
    assert_eq!(space.resize(0).unwrap_err().code(), SqlState::INVALID_PARAMETER_VALUE);
    assert_eq!(space.resize(1 << 45).unwrap_err().code(), SqlState::PROGRAM_LIMIT_EXCEEDED);
    for size in [4 << 10, 100 << 20, 2 << 20] {
        space.resize(size).unwrap().finish().unwrap();
        assert_eq!(space.size_bytes(), size);
        assert_eq!(space.allocate(size as usize, Purpose::Main).unwrap().len(), size as usize);
    }
    assert_eq!(heap_space(4).resize(1 << 20).unwrap_err().code(), SqlState::FEATURE_NOT_SUPPORTED);
}

#[test]
#[cfg_attr(miri, ignore = "maps files")]
fn a_file_grows_and_shrinks_with_its_tablespace() {
    let folder = if std::path::Path::new("/dev/shm").is_dir() { "/dev/shm".into() } else { std::env::temp_dir() };
    let path = folder.join(format!("tidepool-elastic-{}", std::process::id()));
    let file = |size| TablespaceConfig { location: Location::File(path.clone()), size_bytes: size, ..config("f", 0) };
    let len = || std::fs::metadata(&path).unwrap().len();
    {
        let space = Tablespace::open(TablespaceId(2), file(Some(6 << 20))).unwrap();
        let mut region = space.allocate(5 * MIB, Purpose::Main).unwrap();
        region.fill(7);
        space.resize((11 << 20) + 1).unwrap().finish().unwrap();
        assert_eq!((len(), space.size_bytes()), ((11 << 20) + 4096, (11 << 20) + 4096));
        let mut more = space.allocate(5 * MIB, Purpose::Main).unwrap();
        assert!(more.iter().all(|byte| *byte == 0));
        more.fill(8);
        assert!(region.iter().all(|byte| *byte == 7));
        drop(more);
        space.resize(6 << 20).unwrap().finish().unwrap();
        assert_eq!(len(), 6 << 20);
        // What was cut off is zeroed when it comes back.
        space.resize(12 << 20).unwrap().finish().unwrap();
        assert!(space.allocate(6 * MIB, Purpose::Main).unwrap().iter().all(|byte| *byte == 0));
        let error = space.resize(1 << 43).unwrap_err();
        assert!(matches!(error.code(), SqlState::DISK_FULL | SqlState::PROGRAM_LIMIT_EXCEEDED), "{error:?}");
        assert_eq!(len(), 12 << 20);
        check(&space);
    }
    assert_eq!(Tablespace::open(TablespaceId(2), file(None)).unwrap().size_bytes(), 12 << 20);
    std::fs::remove_file(path).unwrap();
}

/// A file in memory that is removed with what is returned.
struct TemporaryFile(std::path::PathBuf);

impl TemporaryFile {
    fn new(name: &str) -> TemporaryFile {
        let folder = if std::path::Path::new("/dev/shm").is_dir() { "/dev/shm".into() } else { std::env::temp_dir() };
        TemporaryFile(folder.join(format!("tidepool-striped-{}-{name}", std::process::id())))
    }

    fn location(&self) -> Location {
        Location::File(self.0.clone())
    }

    fn len(&self) -> u64 {
        std::fs::metadata(&self.0).unwrap().len()
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// How many of the stripes from `from` on each of the window's devices has.
fn dealt(space: &Tablespace, from: usize) -> std::collections::BTreeMap<u16, usize> {
    let mut dealt = std::collections::BTreeMap::new();
    for place in space.window.places().into_iter().skip(from).flatten() {
        *dealt.entry(place.device).or_default() += 1;
    }
    dealt
}

fn striped(location: &str, size: u64) -> TablespaceConfig {
    TablespaceConfig { location: location.parse().unwrap(), ..config("s", size) }
}

#[test]
#[cfg_attr(miri, ignore = "maps memory")]
fn stripes_go_to_locations_by_weight() {
    let file = TemporaryFile::new("weights");
    let location = format!("anon:*3, file:{}*1", file.0.display());
    let space = Tablespace::open(TablespaceId(4), striped(&location, 64 << 20)).unwrap();
    assert_eq!((space.size_bytes(), file.len()), (64 << 20, 16 << 20));
    assert_eq!(dealt(&space, 0), [(0, 24), (1, 8)].into());
    assert_eq!(dealt(&space, 16), [(0, 12), (1, 4)].into(), "evenly");
    assert_eq!(space.bytes(Purpose::Metadata), PAGE as u64);
    let mut region = space.allocate(40 * MIB, Purpose::Main).unwrap();
    region.fill(5);
    assert!(region.iter().all(|byte| *byte == 5));
    check(&space);
    // Grown and shrunk, the weights still hold.
    space.resize(128 << 20).unwrap().finish().unwrap();
    assert_eq!((dealt(&space, 0), file.len()), ([(0, 48), (1, 16)].into(), 32 << 20));
    drop(region);
    // Half of every stripe is taken, so some are in the way.
    let mut pieces: Vec<crate::Region> = (0..127).map(|_| space.allocate(MIB, Purpose::Main).unwrap()).collect();
    let mut number = 0;
    pieces.retain_mut(|piece| {
        number += 1;
        piece.fill(number);
        number % 2 == 0
    });
    let change = space.resize(90 << 20).unwrap();
    assert_eq!(space.size_bytes(), 90 << 20);
    assert!((17 << 20..=20 << 20).contains(&change.left_bytes()), "{}", change.left_bytes());
    assert!((18..=21).contains(&pieces.iter().filter(|piece| space.is_closing(piece)).count()));
    drop(change);
    assert_eq!((space.size_bytes(), pieces.iter().filter(|piece| space.is_closing(piece)).count()), (128 << 20, 0));
    let change = space.resize(90 << 20).unwrap();
    for piece in &mut pieces {
        if space.is_closing(piece) {
            let mut copy = space.allocate(MIB, Purpose::Main).unwrap();
            copy.copy_from_slice(piece);
            *piece = copy;
        }
    }
    change.finish().unwrap();
    assert_eq!((space.size_bytes(), space.config().size_bytes), (90 << 20, Some(90 << 20)));
    assert_eq!(dealt(&space, 0), [(0, 34), (1, 11)].into());
    // It may be as long as before, with holes.
    assert!(std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&file.0).unwrap()) * 512 <= 22 << 20);
    for (piece, number) in pieces.iter().zip((2..).step_by(2)) {
        assert!(piece.iter().all(|byte| *byte == number));
    }
    check(&space);
    // In one piece again.
    drop(pieces);
    drop(space.allocate(84 * MIB, Purpose::Main).unwrap());
    assert_eq!(space.usage().used_bytes, PAGE as u64);
    check(&space);
}

#[test]
#[cfg_attr(miri, ignore = "maps memory")]
fn locations_come_and_go() {
    let (first, second) = (TemporaryFile::new("first"), TemporaryFile::new("second"));
    let space = Tablespace::open(TablespaceId(5), config("s", 10 << 20)).unwrap();
    let mut kept = space.allocate(3 * MIB, Purpose::Main).unwrap();
    kept.fill(1);
    let stripe = |location: Location, weight| tidepool_device::Stripe { location, weight };
    space.add_location(stripe(first.location(), 1), None).unwrap().finish().unwrap();
    assert_eq!((space.size_bytes(), first.len()), (20 << 20, 10 << 20));
    let profile = Profile::preset("cxl-asic").unwrap();
    space.add_location(stripe(second.location(), 2), Some(profile)).unwrap().finish().unwrap();
    assert_eq!((space.size_bytes(), second.len()), (40 << 20, 20 << 20));
    let shown = format!("anon:*1, file:{}*1, file:{}*2", first.0.display(), second.0.display());
    assert_eq!(space.config().location.to_string(), shown);
    assert_eq!(space.config().profile_names().as_deref(), Some("none+none+cxl-asic"));
    assert_eq!(space.pacer().unwrap().model().read_latency_ns(), 0.5 * 100.0 + 0.5 * 250.0);
    assert_eq!(space.bytes(Purpose::Metadata), 2 * PAGE as u64);
    // What comes now is spread over all three.
    let stripes = |bytes: &[u8]| {
        let start = bytes.as_ptr().addr() - space.address_range().start;
        let places =
            (start / (2 * MIB)..(start + bytes.len()).div_ceil(2 * MIB)).map(|at| space.window.place(at).unwrap());
        places.map(|place| place.device).collect::<std::collections::BTreeSet<_>>()
    };
    let mut spread = space.allocate(12 * MIB, Purpose::Main).unwrap();
    spread.fill(2);
    assert_eq!(stripes(&spread), [0, 1, 2].into());
    assert!(kept.iter().all(|byte| *byte == 1));
    check(&space);

    // Nothing of what is refused stays.
    let missing = space.drop_location(&"numa:7".parse().unwrap()).unwrap_err();
    assert_eq!(missing.code(), SqlState::UNDEFINED_OBJECT);
    let full: Vec<crate::Region> = (0..5).map(|_| space.allocate(3 * MIB, Purpose::Main).unwrap()).collect();
    assert_eq!(space.drop_location(&second.location()).unwrap_err().code(), SqlState::OUT_OF_MEMORY);
    drop(full);
    let bad = TemporaryFile::new("bad");
    std::fs::write(&bad.0, b"somebody else's").unwrap();
    let refused = space.add_location(stripe(bad.location(), 1), None).unwrap_err();
    assert_eq!(refused.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    assert_eq!(bad.len(), 15);
    let gone = TemporaryFile::new("gone");
    drop(space.add_location(stripe(gone.location(), 1), None).unwrap());
    assert!(!gone.0.exists());
    assert_eq!((space.size_bytes(), space.config().location.to_string()), (40 << 20, shown));

    // A device goes when what it holds has moved. Until then it can be kept after all.
    drop(space.drop_location(&second.location()).unwrap());
    assert_eq!((space.size_bytes(), dealt(&space, 0)), (40 << 20, [(0, 5), (1, 5), (2, 10)].into()));
    let change = space.drop_location(&second.location()).unwrap();
    assert!(change.left_bytes() > 0 && space.is_closing(&spread));
    drop(spread);
    assert_eq!(change.left_bytes(), 0);
    change.finish().unwrap();
    assert_eq!((space.size_bytes(), dealt(&space, 0)), (20 << 20, [(0, 5), (1, 5)].into()));
    assert_eq!(space.bytes(Purpose::Metadata), PAGE as u64);
    assert!(space.pacer().is_none());
    assert!(
        Tablespace::open(TablespaceId(6), TablespaceConfig { location: second.location(), ..config("f", 4 << 20) })
            .is_ok()
    );
    let mut large = space.allocate(9 * MIB, Purpose::Main).unwrap();
    large.fill(3);
    drop(large);
    let change = space.drop_location(&first.location()).unwrap();
    assert!(kept.iter().all(|byte| *byte == 1));
    while change.left_bytes() > 0 {
        assert!(space.is_closing(&kept));
        let mut copy = space.allocate(kept.len(), Purpose::Main).unwrap();
        copy.copy_from_slice(&kept);
        kept = copy;
    }
    change.finish().unwrap();
    assert!(kept.iter().all(|byte| *byte == 1));
    assert_eq!((space.size_bytes(), space.config().location.clone()), (10 << 20, Location::Anon));
    let last = space.drop_location(&Location::Anon).unwrap_err();
    assert_eq!(last.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    check(&space);
    assert_eq!(resident(&space.address_range()), space.usage().resident_bytes);
    drop(kept);
    let all = space.allocate(10 * MIB, Purpose::Main).unwrap();
    drop(all);
    assert_eq!(space.usage().resident_bytes, 0);
}

/// Reproducible and without a dependency.
pub(crate) struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// Owners that know what they wrote, while the tablespace changes beneath them.
#[test]
#[cfg_attr(miri, ignore = "maps memory")]
fn contents_survive_any_sequence_of_changes() {
    let files: Vec<TemporaryFile> = (0..3).map(|number| TemporaryFile::new(&format!("sequence-{number}"))).collect();
    let mut changes = [0; 3];
    for seed in 1..=6u64 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed));
        let space = Tablespace::open(TablespaceId(7), config("s", 24 << 20)).unwrap();
        let mut owned: Vec<(crate::Region, u8)> = Vec::new();
        for step in 0..150u32 {
            match random.below(6) {
                0..=2 => {
                    let len = 1 + random.below(5 * MIB);
                    if let Ok(mut region) = space.allocate(len, Purpose::Main) {
                        region.fill(step as u8);
                        owned.push((region, step as u8));
                    }
                }
                3 if !owned.is_empty() => drop(owned.swap_remove(random.below(owned.len()))),
                _ => {
                    let file = files[random.below(files.len())].location();
                    let kind = random.below(3);
                    let change = match kind {
                        0 => space.resize(((4 + random.below(60)) * MIB) as u64),
                        1 => {
                            let weight = 1 + random.below(3) as u32;
                            space.add_location(tidepool_device::Stripe { location: file, weight }, None)
                        }
                        _ => space.drop_location(&file),
                    };
                    let Ok(change) = change else { continue };
                    // Moves what it can; gives up where there is no room.
                    for (region, _) in &mut owned {
                        if space.is_closing(region)
                            && let Ok(mut copy) = space.allocate(region.len(), Purpose::Main)
                        {
                            copy.copy_from_slice(region);
                            *region = copy;
                        }
                    }
                    if change.left_bytes() == 0 && random.below(4) > 0 {
                        change.finish().unwrap();
                        changes[kind] += 1;
                    }
                }
            }
            check(&space);
            for (region, fill) in &owned {
                let at = random.below(region.len());
                assert_eq!((region[0], region[at], region[region.len() - 1]), (*fill, *fill, *fill), "{seed} {step}");
            }
        }
        for (region, fill) in &owned {
            assert!(region.iter().all(|byte| byte == fill), "{seed}");
        }
        owned.clear();
        space.trim(0).unwrap();
        let header_bytes = space.bytes(Purpose::Metadata);
        assert_eq!(space.usage().used_bytes, header_bytes);
    }
    assert!(changes.iter().all(|count| *count > 5), "{changes:?}");
}

#[test]
#[cfg_attr(miri, ignore = "maps memory")]
fn striped_tablespaces_need_a_size_that_their_weights_fit() {
    let error = |location: &str, size: u64| Tablespace::open(TablespaceId(8), striped(location, size)).unwrap_err();
    assert_eq!(error("anon:*50, anon:*1", 8 << 20).code(), SqlState::INVALID_PARAMETER_VALUE);
    let none = TablespaceConfig { size_bytes: None, ..striped("anon:, anon:", 0) };
    assert_eq!(Tablespace::open(TablespaceId(8), none).unwrap_err().code(), SqlState::INVALID_PARAMETER_VALUE);
    let many = vec!["anon:"; 17].join(", ");
    assert_eq!(error(&many, 1 << 30).code(), SqlState::PROGRAM_LIMIT_EXCEEDED);
    // Files that are there are taken as they are, as far as their weights allow.
    let (one, two) = (TemporaryFile::new("one"), TemporaryFile::new("two"));
    for (file, mib) in [(&one, 9), (&two, 7)] {
        std::fs::write(&file.0, vec![0u8; mib * MIB]).unwrap();
    }
    let location = format!("file:{}*2, file:{}*1", one.0.display(), two.0.display());
    let space =
        Tablespace::open(TablespaceId(8), TablespaceConfig { size_bytes: None, ..striped(&location, 0) }).unwrap();
    assert_eq!(space.size_bytes(), 12 << 20);
}

#[test]
#[cfg_attr(miri, ignore = "maps memory")]
fn what_is_kept_is_found_by_whoever_names_the_content() {
    let folder = std::env::temp_dir().join(format!("tidepool-found-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let location = Location::File(folder.join("device"));
    let config = TablespaceConfig { location, ..config("kept", 8 << 20) };
    let left = |contents: &Contents| Left { contents: contents.clone(), places: Vec::new(), is_needed: false };
    let find = |config: &TablespaceConfig, contents: &Contents| {
        Tablespace::open_found(TablespaceId(7), config.clone(), Some(&left(contents))).unwrap()
    };
    let space = Tablespace::open(TablespaceId(5), config.clone()).unwrap();
    assert!(space.attach(4096, 10, Purpose::Main).is_none(), "nothing was named");
    let mut first = space.allocate(5000, Purpose::Main).unwrap();
    first.fill(7);
    let mut second = space.allocate(100, Purpose::Main).unwrap();
    second.fill(8);
    let places = [(first.offset(), first.len()), (second.offset(), second.len())];
    let contents = space.contents().unwrap();
    space.keep([places[0]]);
    drop((first, second, space));

    // Twice: whoever attaches does not use it up.
    for _ in 0..2 {
        let space = find(&config, &contents);
        assert_eq!(space.contents().as_ref(), Some(&contents), "what was found stays what it is");
        let found = space.attach(places[0].0, places[0].1, Purpose::Main).unwrap();
        assert!(found.iter().all(|byte| *byte == 7));
        assert!(space.attach(places[0].0 + 4096, 10, Purpose::Main).is_none(), "somebody has it");
        for (offset, len) in [(0, 10), (4097, 10), (8 << 20, 10), (u64::MAX - 4095, 10), (8192, usize::MAX)] {
            assert!(space.attach(offset, len, Purpose::Main).is_none(), "{len} at {offset}");
        }
        // What is not kept is gone.
        let gone = space.attach(places[1].0, places[1].1, Purpose::Main).unwrap();
        assert!(gone.iter().all(|byte| *byte == 0));
        assert_eq!(space.bytes(Purpose::Main), 3 * 4096);
        check(&space);
        let mut left = space.allocate(64 << 10, Purpose::Delta).unwrap();
        left.fill(9);
        space.end_attaching();
        assert!(space.attach(1 << 20, 10, Purpose::Main).is_none(), "it is over");
        space.keep([places[0]]);
    }
    // A process that ends without closing leaves all. What is not attached goes then.
    let space = find(&config, &contents);
    let mut region = space.allocate(1 << 20, Purpose::Main).unwrap();
    region.fill(3);
    let place = region.offset();
    std::mem::forget((region, Arc::clone(&space)));
    assert_eq!(Tablespace::open(TablespaceId(6), config.clone()).unwrap_err().code(), SqlState::OBJECT_IN_USE);
    std::mem::drop(space);
    let other = TablespaceConfig { location: Location::File(folder.join("other")), ..config.clone() };
    std::fs::copy(folder.join("device"), folder.join("other")).unwrap();
    let space = find(&other, &contents);
    let found = space.attach(place, 1 << 20, Purpose::Main).unwrap();
    assert!(found.iter().all(|byte| *byte == 3));
    drop(found);
    space.end_attaching();
    space.keep([places[0]]);
    drop(space);
    let space = find(&other, &contents);
    assert!(space.attach(place, 1 << 20, Purpose::Main).unwrap().iter().all(|byte| *byte == 0), "it was given back");
    space.keep([places[0]]);
    // A change of size makes another content of it.
    space.resize(16 << 20).unwrap().finish().unwrap();
    let larger = space.contents().unwrap();
    assert!(larger.identity == contents.identity && larger.number > contents.number);
    drop(space);
    let other = TablespaceConfig { size_bytes: Some(16 << 20), ..other };
    let wrong = [contents, Contents { boot: Some("another".to_owned()), ..larger.clone() }];
    // What is needed and not there is an error, which changes nothing.
    for wrong in &wrong {
        let needed = Left { is_needed: true, ..left(wrong) };
        let error = Tablespace::open_found(TablespaceId(7), other.clone(), Some(&needed)).unwrap_err();
        assert_eq!(error.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    }
    let needed = Left { is_needed: true, places: vec![(1 << 20, 10)], ..left(&larger) };
    let space = Tablespace::open_found(TablespaceId(7), other.clone(), Some(&needed)).unwrap();
    let mut log = space.attach(1 << 20, 10, Purpose::Main).unwrap();
    log.fill(5);
    space.keep_always([(log.offset(), log.len())]);
    space.keep([]);
    drop((log, space));
    // Closed by whoever did not attach it, it stays all the same.
    drop(Tablespace::open_found(TablespaceId(7), other.clone(), Some(&needed)).unwrap());
    let space = Tablespace::open_found(TablespaceId(7), other.clone(), Some(&needed)).unwrap();
    assert!(space.attach(1 << 20, 10, Purpose::Main).unwrap().iter().all(|byte| *byte == 5));
    drop(space);
    for (location, size) in [("anon:", 1 << 20), ("anon:, anon:", 4 << 20), ("paged:64kB:anon:", 1 << 20)] {
        let location: Location = location.parse().unwrap();
        let config = TablespaceConfig { location: location.clone(), size_bytes: Some(size), ..other.clone() };
        let error = Tablespace::open_found(TablespaceId(9), config, Some(&needed)).unwrap_err();
        assert_eq!(error.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "{location}");
    }
    for wrong in wrong {
        let space = find(&other, &wrong);
        assert!(space.attach(places[0].0, 10, Purpose::Main).is_none());
        assert!(space.contents().unwrap().number > larger.number);
    }
    std::fs::remove_dir_all(folder).unwrap();
}
