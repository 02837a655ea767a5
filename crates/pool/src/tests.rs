//! Pools on files: made, opened, joined, checked and destroyed, in one process.

use super::*;
use crate::check::{check, usage};
use crate::death::Evidence;
use crate::liveness::{Finding, Watcher, bury_life_left, forget, life_left};
use crate::member::{JoinOptions, Member};
use crate::memory::At;
use crate::show::{self, find_host};
use crate::simulated::Random;
use crate::words::{Generation, Kind, Role, SLOTS, Segment, TermState, Word};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

struct Place {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

/// Memory of this kernel where there is a gigabyte of it, as containers may have very little.
fn place() -> Place {
    let shm = "/dev/shm";
    let room = std::process::Command::new("df").args(["--block-size=1", "--output=avail", shm]).output();
    let bytes =
        room.ok().and_then(|room| String::from_utf8(room.stdout).ok()?.lines().last()?.trim().parse::<u64>().ok());
    let parent = match bytes {
        Some(bytes) if bytes >= 1 << 30 => PathBuf::from(shm),
        _ => std::env::temp_dir(),
    };
    let folder = tempfile::Builder::new().prefix("tidepool-pool-").tempdir_in(parent).unwrap();
    let path = folder.path().join("pool");
    Place { _folder: folder, path }
}

impl Place {
    fn location(&self) -> Location {
        Location::File(self.path.clone())
    }

    fn second(&self) -> Location {
        Location::File(self.path.with_extension("second"))
    }

    fn options(&self, extents: u64) -> CreateOptions {
        CreateOptions {
            devices: vec![(self.location(), Some(extents * EXTENT_BYTES_MIN))],
            extent_bytes: None,
            bytes_max: None,
            label: "test".to_owned(),
            populates: false,
            overcommits: false,
        }
    }

    /// A pool of `extents` extents, one of which has the books, with database `a`.
    fn pool(&self, extents: u64) -> Arc<Pool> {
        let pool = Arc::new(Pool::create(&self.options(extents)).unwrap());
        let tool = Member::join(Arc::clone(&pool), &JoinOptions::tool("test")).unwrap();
        tool.create_database("a", 0).unwrap();
        tool.leave().unwrap();
        pool
    }
}

fn join(pool: &Arc<Pool>, name: &str, database: &str) -> Member {
    let options = JoinOptions { role: Role::Standby, database: Some(database.to_owned()), ..JoinOptions::tool(name) };
    Member::join(Arc::clone(pool), &options).unwrap()
}

fn owner(pool: &Pool, extent: Extent) -> Owner {
    pool.told(pool.books().load(pool.layout().owner(extent))).unwrap()
}

#[allow(unsafe_code, reason = "tests write to extents of their own")]
fn fill(pool: &Pool, extent: Extent, byte: u8) {
    let (base, len) = pool.extent(extent).unwrap();
    // SAFETY: mapped as long as the pool is open, and the test's own.
    unsafe { base.as_ptr().write_bytes(byte, len) };
}

#[allow(unsafe_code, reason = "tests read extents of their own")]
fn first_byte(pool: &Pool, extent: Extent) -> u8 {
    let (base, len) = pool.extent(extent).unwrap();
    // SAFETY: as above.
    unsafe {
        let (first, last) = (base.as_ptr().read(), base.as_ptr().add(len - 1).read());
        assert_eq!(first, last);
        first
    }
}

fn free(pool: &Pool) -> u64 {
    usage(pool).unwrap().iter().filter(|((state, ..), _)| *state == "free").map(|(_, count)| *count).sum()
}

#[test]
fn a_pool_is_made_once_and_opened_by_many() {
    let place = place();
    let pool = place.pool(8);
    assert_eq!(std::fs::metadata(&place.path).unwrap().len(), 16 << 20);
    assert_eq!(Pool::create(&place.options(8)).unwrap_err().code(), SqlState::DUPLICATE_OBJECT);
    let other = Pool::open(&place.location()).unwrap();
    assert_eq!((other.label(), other.superblock().identity), ("test", pool.superblock().identity));
    assert_eq!(other.database("a").unwrap(), Database(0));
    assert_eq!(other.database("b").unwrap_err().code(), SqlState::INVALID_CATALOG_NAME);
    assert_eq!(free(&other), 7);
    let report = check(&other, true).unwrap();
    assert!(report.is_clean() && report.remarks.is_empty(), "{report:?}");
}

#[test]
fn what_cannot_be_a_pool_is_said() {
    let place = place();
    let error = Pool::open(&place.location()).unwrap_err();
    assert_eq!(error.code(), SqlState::UNDEFINED_FILE);
    std::fs::write(&place.path, vec![0; 1 << 20]).unwrap();
    assert!(Pool::open(&place.location()).unwrap_err().message().contains("there is no pool in"));
    std::fs::write(&place.path, vec![1; 1 << 20]).unwrap();
    assert!(Pool::open(&place.location()).unwrap_err().message().contains("not Tidepool's"));
    assert!(Pool::create(&place.options(8)).unwrap_err().message().contains("not Tidepool's"));
    assert_eq!(std::fs::read(&place.path).unwrap(), vec![1; 1 << 20], "nothing was changed");
    std::fs::remove_file(&place.path).unwrap();
    let code = |options: CreateOptions| Pool::create(&options).unwrap_err().code();
    assert_eq!(code(place.options(1)), SqlState::DISK_FULL);
    assert!(!place.path.exists(), "a file that was made in vain is removed");
    assert_eq!(
        code(CreateOptions { extent_bytes: Some(3 << 20), ..place.options(8) }),
        SqlState::INVALID_PARAMETER_VALUE
    );
    assert_eq!(code(CreateOptions { label: "a\nb".into(), ..place.options(8) }), SqlState::INVALID_PARAMETER_VALUE);
    assert_eq!(code(CreateOptions { devices: vec![], ..place.options(8) }), SqlState::INVALID_PARAMETER_VALUE);
    let anonymous = vec![(Location::Anon, Some(16 << 20))];
    assert_eq!(code(CreateOptions { devices: anonymous, ..place.options(8) }), SqlState::INVALID_PARAMETER_VALUE);
    let file = std::fs::File::create(&place.path).unwrap();
    file.set_len(16 << 20).unwrap();
    // A file of fixed size is taken as it is.
    let fixed = CreateOptions { devices: vec![(place.location(), None)], ..place.options(0) };
    assert_eq!(Pool::create(&fixed).unwrap().superblock().extents, 8);
    file.set_len(8 << 20).unwrap();
    let error = Pool::open(&place.location()).unwrap_err();
    assert!(error.message().contains("was shortened"), "{error}");
}

#[test]
fn extents_go_from_host_to_host_and_are_zeroed_between_databases() {
    let place = place();
    let pool = place.pool(5);
    let (one, two) = (join(&pool, "one", "a"), join(&pool, "two", "a"));
    two.create_database("b", 3).unwrap();
    let other = join(&pool, "other", "b");
    assert_eq!(one.create_database("b", 0).unwrap_err().code(), SqlState::DUPLICATE_DATABASE);

    let leased = one.lease(Kind::Heap, 4).unwrap();
    assert_eq!(two.lease(Kind::Heap, 1).unwrap_err().code(), SqlState::DISK_FULL);
    leased.iter().for_each(|extent| fill(&pool, *extent, 7));
    // Within a database what it holds is kept.
    one.hand(leased[0], two.host().slot).unwrap();
    assert_eq!(one.give_back(leased[0]).unwrap_err().code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    assert_eq!(two.offered().unwrap(), [leased[0]]);
    assert_eq!(two.take(leased[0]).unwrap(), Contents::Of(Database(0)));
    assert_eq!(first_byte(&pool, leased[0]), 7);
    assert!(one.take_back(leased[0]).is_err());
    // Between databases it is not.
    one.hand(leased[1], other.host().slot).unwrap();
    assert_eq!(other.take(leased[1]).unwrap(), Contents::Zeroes);
    assert_eq!(first_byte(&pool, leased[1]), 0);
    one.give_back(leased[2]).unwrap();
    let again = other.lease(Kind::Near, 1).unwrap();
    assert_eq!((again[0], first_byte(&pool, again[0])), (leased[2], 0));
    other.give_back(again[0]).unwrap();
    // Nor is it shown to the database that had it, as others did meanwhile.
    assert_eq!(two.lease(Kind::Delta, 1).unwrap(), [leased[2]]);
    assert_eq!(first_byte(&pool, leased[2]), 0);

    assert!(check(&pool, false).unwrap().is_clean());
    for member in [one, two, other] {
        member.leave().unwrap();
    }
    assert_eq!((free(&pool), pool.hosts().unwrap().len()), (4, 0));
    let kinds: Vec<_> = pool.told(pool.books().events()).unwrap().iter().map(|event| event.kind).collect();
    assert!(kinds.starts_with(&[EventKind::Created, EventKind::Joined, EventKind::DatabaseMade]), "{kinds:?}");
    assert_eq!(kinds.iter().filter(|kind| **kind == EventKind::Left).count(), 4);
}

/// The next database has the same place in the directory.
#[test]
fn what_a_database_left_is_not_shown_to_the_next_of_its_place() {
    let place = place();
    let pool = place.pool(4);
    let member = join(&pool, "one", "a");
    let leased = member.lease(Kind::Heap, 2).unwrap();
    leased.iter().for_each(|extent| fill(&pool, *extent, 7));
    member.give_back(leased[0]).unwrap();
    // Freed by its leaving.
    member.leave().unwrap();
    let tool = Member::join(Arc::clone(&pool), &JoinOptions::tool("tool")).unwrap();
    let before = pool.database("a").unwrap();
    tool.drop_database("a").unwrap();
    assert_eq!(tool.create_database("next", 0).unwrap(), before);
    let next = join(&pool, "two", "next");
    for extent in next.lease(Kind::Heap, 3).unwrap() {
        assert_eq!(first_byte(&pool, extent), 0);
    }
}

#[test]
fn what_is_published_is_compared_and_goes_with_its_database() {
    let place = place();
    let pool = place.pool(6);
    let member = join(&pool, "one", "a");
    let leased = member.lease(Kind::Main, 2).unwrap();
    leased.iter().for_each(|extent| fill(&pool, *extent, 9));
    leased.iter().for_each(|extent| member.publish(*extent, Generation(0)).unwrap());
    assert!(member.publish(leased[0], Generation(0)).is_err(), "it is published already");
    let report = check(&pool, true).unwrap();
    assert!(report.is_clean() && report.compared == 2, "{report:?}");
    let file = std::fs::OpenOptions::new().write(true).open(&place.path).unwrap();
    file.write_at(&[8], u64::from(leased[1].0) * EXTENT_BYTES_MIN + 12345).unwrap();
    let report = check(&pool, true).unwrap();
    assert_eq!(report.faults, [format!("extent {}: its contents do not have their checksum", leased[1].0)]);
    assert!(check(&pool, false).unwrap().is_clean(), "contents are read when that is asked for");

    assert_eq!(member.drop_database("a").unwrap_err().code(), SqlState::OBJECT_IN_USE);
    member.leave().unwrap();
    assert_eq!(free(&pool), 3);
    let tool = Member::join(Arc::clone(&pool), &JoinOptions::tool("tool")).unwrap();
    assert_eq!(tool.drop_database("a").unwrap(), 2);
    assert_eq!(tool.drop_database("a").unwrap_err().code(), SqlState::INVALID_CATALOG_NAME);
    assert_eq!(free(&pool), 5);
    // Its place is used again, by a database that is shown nothing of it.
    tool.create_database("c", 0).unwrap();
    assert_eq!(pool.database("c").unwrap(), Database(0));
}

#[test]
fn a_device_that_is_missing_is_named_where_it_is_needed() {
    let place = place();
    let mut options = place.options(4);
    options.devices.push((place.second(), Some(4 * EXTENT_BYTES_MIN)));
    let pool = Arc::new(Pool::create(&options).unwrap());
    assert_eq!(free(&pool), 6);
    assert_eq!(Pool::open(&place.second()).unwrap_err().code(), SqlState::WRONG_OBJECT_TYPE);
    drop(pool);
    let away = place.path.with_extension("away");
    std::fs::rename(place.path.with_extension("second"), &away).unwrap();

    let pool = Arc::new(Pool::open(&place.location()).unwrap());
    assert_eq!(pool.missing().len(), 1);
    let error = pool.extent(Extent(5)).unwrap_err();
    assert_eq!(error.code(), SqlState::IO_ERROR);
    assert!(error.message().contains(&place.second().to_string()), "{error}");
    // What does not need it goes on.
    let member = Member::join(Arc::clone(&pool), &JoinOptions::tool("one")).unwrap();
    assert_eq!(member.lease(Kind::Heap, 3).unwrap(), [Extent(1), Extent(2), Extent(3)]);
    assert_eq!(member.lease(Kind::Heap, 1).unwrap_err().code(), SqlState::DISK_FULL);
    let report = check(&pool, true).unwrap();
    assert!(matches!(report.faults.as_slice(), [fault] if fault.contains("is missing")), "{report:?}");
    member.leave().unwrap();

    // Another device in its place is not taken for it.
    std::fs::copy(&place.path, place.path.with_extension("second")).unwrap();
    let wrong = Pool::open(&place.location()).unwrap();
    let missing = wrong.missing();
    assert!(missing[0].error.message().contains("is not device 1"), "{missing:?}");
    std::fs::rename(&away, place.path.with_extension("second")).unwrap();
    let whole = Pool::open(&place.location()).unwrap();
    assert!(whole.missing().is_empty() && whole.is_there(Extent(5)));
}

#[test]
fn memory_that_is_not_there_is_not_taken() {
    let place = place();
    let size = Some(64 * EXTENT_BYTES_MIN);
    let made = || vec![open_new(&place.location(), size, EXTENT_BYTES_MIN).unwrap()];
    let made = made();
    let wanted = made[0].mapping.device().unwrap().memory_to_commit();
    check_memory(&made, None).unwrap();
    check_memory(&made, Some(wanted)).unwrap();
    if wanted > 0 {
        assert!(wanted > 63 * EXTENT_BYTES_MIN, "but for what was read of it: {wanted}");
        let error = check_memory(&made, Some(wanted - 1)).unwrap_err();
        assert_eq!(error.code(), SqlState::OUT_OF_MEMORY);
        assert!(error.detail().is_some_and(|detail| detail.contains("takes all of it when it is made")), "{error:?}");
        reserve(&made[0], 64, EXTENT_BYTES_MIN, false).unwrap();
        assert_eq!(made[0].mapping.device().unwrap().memory_to_commit(), 0, "what is there is not wanted again");
    }
}

#[test]
fn a_slot_is_free_again_and_its_next_life_is_another() {
    let place = place();
    let pool = place.pool(4);
    let first = join(&pool, "one", "a");
    let host = first.host();
    first.leave().unwrap();
    let second = join(&pool, "two", "a");
    assert_eq!((second.host().slot, second.host().incarnation.0), (host.slot, host.incarnation.0 + 1));
    let all: Vec<_> = (1..SLOTS).map(|_| join(&pool, "more", "a")).collect();
    let error = Member::join(Arc::clone(&pool), &JoinOptions::tool("too many")).unwrap_err();
    assert_eq!(error.code(), SqlState::TOO_MANY_CONNECTIONS);
    let names: Vec<_> = pool.hosts().unwrap().into_iter().filter_map(|view| view.text.map(|text| text.name)).collect();
    assert_eq!((names.len(), names[0].as_str()), (SLOTS, "two"));
    drop(all);
    assert_eq!(pool.hosts().unwrap().len(), 1);
}

#[test]
fn a_host_that_was_taken_for_dead_does_nothing_more() {
    let place = place();
    let pool = place.pool(4);
    let (sleeper, other) = (join(&pool, "sleeper", "a"), join(&pool, "other", "a"));
    let leased = sleeper.lease(Kind::Heap, 1).unwrap();
    assert!(pool.told(pool.books().suspect(sleeper.host())).unwrap());
    // Suspicion frees nothing, and the host is told.
    assert_eq!(owner(&pool, leased[0]).writer(), Some(sleeper.host()));
    assert_eq!(check(&pool, false).unwrap().quarantined, 1);
    assert_eq!(sleeper.lease(Kind::Heap, 1).unwrap_err().code(), SqlState::ADMIN_SHUTDOWN);
    // An operator's word does, who has to insist where the host is plainly alive.
    let by_name = find_host(&pool, "sleeper").unwrap();
    assert_eq!(by_name.host, find_host(&pool, &sleeper.host().slot.0.to_string()).unwrap().host);
    assert_eq!(find_host(&pool, "nobody").unwrap_err().code(), SqlState::UNDEFINED_OBJECT);
    assert_eq!(forget(&pool, sleeper.host(), false).unwrap_err().code(), SqlState::OBJECT_IN_USE);
    assert!(forget(&pool, by_name.host, true).unwrap());
    assert_eq!(other.lease(Kind::Heap, 3).unwrap().len(), 3);
    assert_eq!(sleeper.give_back(leased[0]).unwrap_err().code(), SqlState::ADMIN_SHUTDOWN);
    assert!(check(&pool, false).unwrap().is_clean());
}

#[test]
fn a_process_that_puts_another_in_its_place_leaves_nothing_in_quarantine() {
    let place = place();
    let pool = place.pool(4);
    let before = join(&pool, "before", "a");
    before.lease(Kind::Heap, 2).unwrap();
    let left = life_left(&pool, before.host());
    // As after `exec`, which unmaps and unlocks all.
    let after = Pool::open(&place.location()).unwrap();
    let is_there = || after.hosts().unwrap().iter().any(|view| view.host == before.host());
    let mut fields: Vec<&str> = left.split(':').collect();
    let other = (std::process::id() + 1).to_string();
    for (field, wrong) in [(0, "00"), (1, "64"), (2, "77"), (3, other.as_str())] {
        let right = std::mem::replace(&mut fields[field], wrong);
        assert!(!bury_life_left(&after, &fields.join(":")).unwrap() && is_there(), "{fields:?}");
        fields[field] = right;
    }
    assert!(!bury_life_left(&pool, &left).unwrap() && is_there(), "it has not left yet");
    assert!(bury_life_left(&after, &left).unwrap() && !is_there());
    assert!(!bury_life_left(&after, &left).unwrap(), "that is once");
    assert_eq!(check(&after, false).unwrap().quarantined, 0);
}

#[test]
fn a_command_confirms_what_nobody_can_see() {
    let place = place();
    let pool = place.pool(4);
    let host = join(&pool, "one", "a");
    let watcher = Watcher::new(Arc::new(Pool::open(&place.location()).unwrap()));
    let error = watcher.fence(host.host(), "exit 3").unwrap_err();
    assert!(error.message().contains("exit status: 3"), "{error}");
    let told = place.path.with_extension("told");
    let command = format!("echo $TIDEPOOL_HOST_NAME $TIDEPOOL_HOST_SLOT > {}", told.display());
    let death = watcher.fence(host.host(), &command).unwrap();
    assert_eq!(death.evidence, Evidence::FenceCommand);
    assert_eq!(std::fs::read_to_string(told).unwrap(), format!("one {}\n", host.host().slot.0));
    assert!(watcher.bury(host.host(), &death).unwrap());
    assert!(!host.is_current().unwrap());
}

#[test]
fn a_watcher_hears_beats_and_sees_locks() {
    let place = place();
    let pool = place.pool(4);
    let host = join(&pool, "one", "a");
    let silent = JoinOptions { beat: Duration::from_secs(3600), ..JoinOptions::tool("silent") };
    let silent = Member::join(Arc::clone(&pool), &silent).unwrap();
    let mut watcher = Watcher::new(Arc::new(Pool::open(&place.location()).unwrap()));
    let mut found = std::collections::HashMap::new();
    // Until the one is silent; the other beats, however late.
    let patience = Duration::from_millis(200);
    while found.get(&silent.host()) != Some(&Finding::Silent) {
        found = watcher.look(patience).unwrap().into_iter().collect();
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(found.contains_key(&host.host()));
    assert!(!found.values().any(|finding| matches!(finding, Finding::Dead(_))));
    // This process's own hosts are none of its business, nor are their locks seen.
    let mut own = Watcher::new(Arc::clone(&pool));
    assert!(own.look(patience).unwrap().is_empty());
    assert_eq!(own.bury_the_dead().unwrap(), 0);
}

/// Every bit of the books that turns is found. `TIDEPOOL_STRESS_FAULTS`: how many.
#[test]
fn each_bit_that_turns_is_found() {
    let place = place();
    let pool = place.pool(16);
    let member = join(&pool, "one", "a");
    let extents = member.lease(Kind::Main, 3).unwrap();
    member.publish(extents[0], Generation(0)).unwrap();
    member.hand(member.lease(Kind::Heap, 1).unwrap()[0], Slot(9)).unwrap();
    // It beats no more, so that only what is seeded changes.
    let host = member.host();
    std::mem::forget(member);
    let faults = std::env::var("TIDEPOOL_STRESS_FAULTS").map_or(200, |text| text.parse().unwrap());
    let books = pool.layout().control_bytes() as u64;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&place.path).unwrap();
    let before = check(&pool, false).unwrap();
    assert!(before.is_clean() && before.remarks.is_empty(), "{before:?}");
    let beats = crate::layout::HostNumber::Beats as u64..crate::layout::HostNumber::WallUs as u64 + 8;
    let page = u64::from(pool.layout().ident(host.slot).at.0);
    let thread_word = |slot: Slot| u64::from(pool.layout().thread_word(slot).0);
    let held = thread_word(host.slot)..thread_word(host.slot) + 4;
    let mut random = Random::new(1);
    // Words without a check of their own are few, and drawn too seldom.
    let held_by_nobody = (0..64).map(|bit| thread_word(Slot(20)) * 8 + bit);
    let beyond_the_kernels = (32..64).map(|bit| thread_word(host.slot) * 8 + bit);
    let drawn = (0..faults).map(|_| random.below(books * 8));
    for bit in held_by_nobody.chain(beyond_the_kernels).chain(drawn) {
        let (offset, mask) = (bit / 8, 1u8 << (bit % 8));
        if (page + beats.start..page + beats.end).contains(&offset) || held.contains(&offset) {
            continue;
        }
        let mut byte = [0];
        file.read_at(&mut byte, offset).unwrap();
        file.write_at(&[byte[0] ^ mask], offset).unwrap();
        let report = check(&pool, false).unwrap();
        assert!(!report.is_clean() || !report.remarks.is_empty(), "bit {bit} at byte {offset} is not found");
        file.write_at(&byte, offset).unwrap();
    }
    let after = check(&pool, false).unwrap();
    assert!(after.is_clean() && after.remarks.is_empty(), "{after:?}");
}

#[test]
fn damaged_words_are_errors_and_never_decisions() {
    let place = place();
    let pool = place.pool(4);
    let at = pool.layout().owner(Extent(2)).at;
    let Ok(bits) = pool.books().memory.load(at);
    let Ok(()) = pool.books().memory.store(at, bits ^ 1 << 60);
    let member = join(&pool, "one", "a");
    let error = member.lease(Kind::Heap, 3).unwrap_err();
    assert_eq!(error.code(), SqlState::DATA_CORRUPTED);
    assert!(error.to_string().contains("tidepool pool check"), "{error}");
    let report = check(&pool, false).unwrap();
    assert!(matches!(report.faults.as_slice(), [fault] if fault.contains("extent 2")), "{report:?}");
    let Ok(()) = pool.books().memory.store(at, bits);
    let Ok(()) = pool.books().memory.store(At(pool.layout().owner(Extent(3)).at.0), Owner::Control.bits());
    assert!(member.lease(Kind::Heap, 1).is_ok());
}

#[test]
fn what_is_in_use_is_not_destroyed() {
    let place = place();
    let pool = place.pool(4);
    let member = join(&pool, "one", "a");
    let error = Pool::open(&place.location()).unwrap().destroy(false).unwrap_err();
    assert_eq!(error.code(), SqlState::OBJECT_IN_USE);
    assert!(error.detail().unwrap_or_default().contains("\"one\" is attached"), "{error}");
    member.leave().unwrap();
    assert_eq!(Pool::open(&place.location()).unwrap().destroy(false).unwrap(), [place.location()]);
    assert!(Pool::open(&place.location()).unwrap_err().message().contains("there is no pool in"));
    // The file can be a pool again.
    Pool::create(&CreateOptions { devices: vec![(place.location(), None)], ..place.options(0) }).unwrap();
}

#[test]
fn a_pool_is_shown_in_words() {
    let place = place();
    let mut options = place.options(4);
    options.devices.push((place.second(), Some(4 * EXTENT_BYTES_MIN)));
    let pool = Arc::new(Pool::create(&options).unwrap());
    let tool = Member::join(Arc::clone(&pool), &JoinOptions::tool("maker")).unwrap();
    tool.create_database("orders", 3).unwrap();
    let member = join(&pool, "h1", "orders");
    let leased = member.lease(Kind::Main, 1).unwrap();
    member.publish(leased[0], Generation(0)).unwrap();
    member.lease(Kind::Delta, 2).unwrap();
    std::fs::remove_file(place.path.with_extension("second")).unwrap();
    let other = Pool::open(&place.location()).unwrap();
    let text = show::list(&other).unwrap();
    let rows: Vec<String> = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for expected in [
        "0 orders live 0 0 6 MB",
        "private delta orders 2 4 MB",
        "shared main orders 1 2 MB",
        "free 3 6 MB",
        "control 2 4 MB",
    ] {
        assert!(rows.iter().any(|row| row == expected), "{expected:?} is missing from {text}");
    }
    assert!(
        rows.iter().any(|row| row.starts_with("1 h1 standby attached 1 orders ") && row.contains(" held ")),
        "{text}"
    );
    assert!(text.contains("missing: could not open"), "{text}");
    let events = show::events(&other, 2).unwrap();
    assert_eq!(events.lines().count(), 3, "{events}");
    assert!(events.lines().last().unwrap().contains("host joined"), "{events}");
}

#[test]
fn features_are_written_when_they_are_asked_for() {
    let place = place();
    let pool = place.pool(4);
    assert!(!pool.finalize().unwrap(), "the first format has no later features");
    assert!(pool.raise_features(0, 0, 6).unwrap());
    assert!(!pool.raise_features(0, 0, 2).unwrap());
    let again = Pool::open(&place.location()).unwrap();
    assert_eq!((again.superblock().may_ignore, again.superblock().epoch), (6, 3));
    assert!(check(&again, false).unwrap().is_clean());
    // A later release's, which this one must not touch.
    assert!(pool.raise_features(1 << 20, 0, 0).unwrap());
    assert_eq!(Pool::open(&place.location()).unwrap_err().code(), SqlState::FEATURE_NOT_SUPPORTED);
}

#[test]
fn a_device_is_added_while_hosts_are_at_work() {
    let place = place();
    let pool = place.pool(4);
    let member = join(&pool, "one", "a");
    member.lease(Kind::Heap, 3).unwrap();
    assert_eq!(member.lease(Kind::Heap, 1).unwrap_err().code(), SqlState::DISK_FULL);
    let other = Pool::open(&place.location()).unwrap();
    let refused = |size| other.add_device(&place.second(), Some(size)).unwrap_err().code();
    assert_eq!(refused(EXTENT_BYTES_MIN), SqlState::DISK_FULL);
    assert_eq!(refused(16 * EXTENT_BYTES_MIN), SqlState::PROGRAM_LIMIT_EXCEEDED);
    assert!(!place.path.with_extension("second").exists(), "a file that was made in vain is removed");
    other.add_device(&place.second(), Some(3 * EXTENT_BYTES_MIN)).unwrap();
    assert_eq!(other.add_device(&place.location(), None).unwrap_err().code(), SqlState::DUPLICATE_OBJECT);
    assert_eq!(free(&other), 2);
    // The host finds it when it runs out.
    let leased = member.lease(Kind::Heap, 2).unwrap();
    assert_eq!(leased, [Extent(5), Extent(6)]);
    fill(&pool, leased[1], 3);
    assert_eq!(first_byte(&other, leased[1]), 3);
    assert!(check(&other, true).unwrap().is_clean());
    assert!(Pool::open(&place.location()).unwrap().missing().is_empty());
}

#[test]
fn of_two_hosts_that_make_a_database_at_once_at_most_one_does() {
    let place = place();
    let pool = place.pool(8);
    let tools: Vec<_> = (0..2).map(|_| Member::join(Arc::clone(&pool), &JoinOptions::tool("tool")).unwrap()).collect();
    for round in 0..300 {
        let start = std::sync::Barrier::new(2);
        let make = |tool: &Member| {
            start.wait();
            tool.create_database("twice", 0)
        };
        let made: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = tools.iter().map(|tool| scope.spawn(|| make(tool))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let count = made.iter().filter(|made| made.is_ok()).count();
        assert!(count <= 1, "round {round}");
        for error in made.into_iter().filter_map(Result::err) {
            assert_eq!(error.code(), SqlState::DUPLICATE_DATABASE, "{error}");
        }
        let found = pool.databases().unwrap().iter().filter(|view| view.name == "twice").count();
        assert_eq!(found, count);
        if count > 0 {
            tools[0].drop_database("twice").unwrap();
        }
    }
}

#[test]
fn extents_are_larger_in_larger_pools() {
    let of = |gib: u64| extent_bytes_of(gib << 30) >> 20;
    assert_eq!([1, 32, 33, 128, 1024, 100_000].map(of), [2, 2, 4, 8, 64, 512]);
}

#[test]
fn a_database_has_no_more_than_its_quota() {
    let place = place();
    let pool = place.pool(8);
    let tool = Member::join(Arc::clone(&pool), &JoinOptions::tool("tool")).unwrap();
    tool.create_database("small", 3).unwrap();
    let (one, two) = (join(&pool, "one", "small"), join(&pool, "two", "small"));
    let leased = one.lease(Kind::Heap, 2).unwrap();
    let error = two.lease(Kind::Main, 2).unwrap_err();
    assert!(
        error.message().contains("quota") && error.detail().unwrap().contains("may have 6 MB, has 4 MB"),
        "{error}"
    );
    let filled = two.lease(Kind::Main, 1).unwrap();
    two.publish(filled[0], Generation(0)).unwrap();
    assert!(one.lease(Kind::Heap, 1).is_err(), "what is shared counts, too");
    one.give_back(leased[0]).unwrap();
    assert!(two.lease(Kind::Heap, 1).is_ok());
    assert!(join(&pool, "other", "a").lease(Kind::Heap, 4).is_ok(), "others have what is left");
}

#[test]
fn a_pool_that_was_opened_to_be_read_is_not_changed() {
    let place = place();
    let pool = place.pool(4);
    let member = join(&pool, "one", "a");
    let reader = Arc::new(Pool::open_to_read(&place.location()).unwrap());
    assert!(check(&reader, true).unwrap().is_clean());
    assert!(show::list(&reader).unwrap().contains("one"));
    let mut watcher = Watcher::new(Arc::clone(&reader));
    assert_eq!(watcher.look(Duration::MAX).unwrap().len(), 1);
    let refused = [
        Member::join(Arc::clone(&reader), &JoinOptions::tool("tool")).err(),
        watcher.fence(member.host(), "true").err(),
        forget(&reader, member.host(), true).err(),
        reader.add_device(&place.second(), Some(16 << 20)).err(),
        reader.finalize().err(),
        Pool::open_to_read(&place.location()).unwrap().destroy(true).err(),
    ];
    for error in refused {
        assert_eq!(error.map(|error| error.code()), Some(SqlState::INSUFFICIENT_PRIVILEGE));
    }
    assert!(member.is_current().unwrap());
}

#[test]
fn a_standby_takes_over_from_a_primary_that_sleeps() {
    let place = place();
    let pool = place.pool(12);
    let (old, new) = (join(&pool, "old", "a"), join(&pool, "new", "a"));
    let database = old.database();
    let books = pool.books();
    // The first term.
    let begun = old.take_over(old.reign().unwrap()).unwrap().unwrap();
    let root = old.adopt().unwrap().unwrap();
    assert!(old.open_log(begun, 1).unwrap());
    let reign = old.run(begun).unwrap().unwrap();
    assert_eq!((reign.term, reign.state), (Term(1), TermState::Running));
    let log = old.lease(Kind::Log, 1).unwrap()[0];
    let segment = Segment { term: reign.term, extent: log };
    assert!(pool.told(books.enter_segment(database, 1, segment)).unwrap());
    let main = old.lease(Kind::Main, 2).unwrap();
    old.publish(main[0], root.generation).unwrap();
    let root = old.publish_root(root, main[0]).unwrap().unwrap();
    assert!(old.is_settled(Term(1)).unwrap());
    new.raise_hold(root.generation).unwrap();

    // It sleeps, and another takes over.
    let mut watcher = Watcher::new(Arc::new(Pool::open(&place.location()).unwrap()));
    assert!(watcher.suspect(old.host()).unwrap() && !watcher.suspect(old.host()).unwrap());
    let taken = new.take_over(new.reign().unwrap()).unwrap().unwrap();
    assert!(new.take_over(reign).unwrap().is_none(), "that term is over");
    assert_eq!(pool.told(books.segment(database, 1, Term(1))).unwrap(), Some(log));
    let end = End::at(1, 8192);
    assert_eq!(new.seal(Term(1), end).unwrap(), Some(end));
    assert_eq!(new.seal(Term(1), End::at(1, 64)).unwrap(), Some(end), "a term is sealed once");
    let stamped = new.adopt().unwrap().unwrap();
    assert_eq!((stamped.place, stamped.generation.0), (main[0], root.generation.0 + 1));
    assert!(new.open_log(taken, 2).unwrap());
    let running = new.run(taken).unwrap().unwrap();
    for extent in [log, main[1]] {
        assert!(matches!(owner(&pool, extent), Owner::Orphan { by, .. } if by == old.host()));
    }

    // It wakes, and nothing of what it does comes to anything.
    assert!(!old.is_settled(Term(1)).unwrap());
    assert!(old.adopt().unwrap().is_none(), "what it would find is another's");
    assert!(old.publish_root(root, main[1]).unwrap().is_none());
    assert!(old.publish(main[1], root.generation).is_err());
    assert!(old.take_over(running).is_err());
    assert!(!old.end_reign(reign).unwrap());

    // A root without what it left: free once it is dead and nobody holds an older one.
    let next = new.publish_root(stamped, main[0]).unwrap().unwrap();
    let reclaim = |extent| new.reclaim(extent, owner(&pool, extent), next.generation).unwrap();
    assert!(!reclaim(log));
    drop(old);
    assert!(!reclaim(log), "the successor itself holds an older root");
    new.raise_hold(next.generation).unwrap();
    assert!(reclaim(log) && reclaim(main[1]));
    assert!(!reclaim(log));
    assert!(new.end_reign(running).unwrap());
    assert_eq!(watcher.bury_the_dead().unwrap(), 0);
    let report = check(&pool, true).unwrap();
    assert!(report.is_clean() && report.compared == 1, "{report:?}");
    // What comes after it in its place begins with nothing, and later.
    drop(new);
    let tool = Member::join(Arc::clone(&pool), &JoinOptions::tool("tool")).unwrap();
    tool.drop_database("a").unwrap();
    tool.create_database("next", 0).unwrap();
    let next = join(&pool, "next", "next");
    let root = pool.databases().unwrap()[0].root;
    assert_eq!((next.database(), root.place.0, root.generation.0), (database, 0, stamped.generation.0 + 2));
    assert_eq!((next.reign().unwrap().term, next.reign().unwrap().state), (running.term, TermState::Ended));
    assert_eq!(pool.told(books.segment(database, 1, Term(1))).unwrap(), None);
    assert_eq!(pool.told(books.end_of(database, Term(1))).unwrap(), Some(End::Empty), "its log goes on from nothing");
    let kinds: Vec<_> = pool.told(books.events()).unwrap().iter().map(|event| event.kind).collect();
    for kind in [EventKind::TookOver, EventKind::Suspected, EventKind::Sealed] {
        assert!(kinds.contains(&kind), "{kind:?} is missing from {kinds:?}");
    }
}

/// A host found out that extents go back, and slept until they were used anew: it returns none of them.
#[test]
fn what_was_used_anew_is_not_returned_for_what_it_was() {
    let place = place();
    let pool = place.pool(8);
    let (one, two) = (join(&pool, "one", "a"), join(&pool, "two", "a"));
    let (books, database) = (pool.books(), one.database());
    let root = one.root().unwrap();
    let main = one.lease(Kind::Main, 1).unwrap()[0];
    one.publish(main, root.generation).unwrap();
    let found = one.owner(main).unwrap();
    let next = pool.told(books.publish_root(database, root, main)).unwrap().unwrap();
    for host in [&one, &two] {
        host.raise_hold(next.generation).unwrap();
    }
    assert!(one.reclaim(main, found, next.generation).unwrap());
    let count = free(&pool) as usize;
    let again = one.lease(Kind::Main, count).unwrap();
    again.iter().filter(|extent| **extent != main).for_each(|extent| one.give_back(*extent).unwrap());
    one.publish(main, next.generation).unwrap();
    assert!(!two.reclaim(main, found, next.generation).unwrap());
    assert!(matches!(owner(&pool, main), Owner::Shared { generation, .. } if generation == next.generation));
    // Of a log that two primaries left one after the other.
    let log = one.lease(Kind::Log, 1).unwrap()[0];
    drop(one);
    let found = two.owner(log).unwrap();
    assert!(pool.told(books.return_log(two.host(), database, log, found)).unwrap());
    assert!(pool.told(books.free(two.host(), log, Contents::Of(database))).unwrap());
    let three = join(&pool, "three", "a");
    let count = free(&pool) as usize;
    assert!(three.lease(Kind::Log, count).unwrap().contains(&log));
    drop(three);
    assert!(!pool.told(books.return_log(two.host(), database, log, found)).unwrap());
    assert!(matches!(owner(&pool, log), Owner::Orphan { .. }));
}
