//! Copies of another pool's database: what they show is what the primary had, whatever becomes of either, and they take its place with
//! all that the folder has.

use super::manifest_tests::{assert_same, write_manifest};
use super::tests::{LOAD, Place, WAIT, create, sequence};
use super::tier2_tests::{lose, open, scribble};
use super::*;
use crate::Config;
use crate::durability::redo::TICK;
use crate::follow::tests::{check, content, refused_write, write};
use crate::stress::for_seeds;
use crate::tests::{end, insert, insert_and_commit, rows};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use tidepool_base::RowId;
use tidepool_pool::pool::Pool;

fn config_of(place: &Place, name: &str, from: &Path) -> Config {
    let mut config = place.config(name, PoolRole::Copy);
    if let Some(pool) = &mut config.pool {
        pool.copy_from = Some(from.to_owned());
        pool.tier1_interval = Duration::from_secs(3600);
    }
    config
}

fn try_copy(place: &Place, name: &str, from: &Path) -> Result<Arc<Database>> {
    Database::open(config_of(place, name, from))
}

fn open_copy(place: &Place, name: &str, from: &Path) -> Arc<Database> {
    try_copy(place, name, from).unwrap()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + WAIT;
    while !is_so() {
        assert!(Instant::now() < end, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Has the log say that all is complete which was committed by now.
fn mark(database: &Arc<Database>) {
    let marked = database.commit_small(TICK, &[]).unwrap();
    database.log.get().unwrap().wait_durable(marked, || Ok(())).unwrap();
}

/// Waits until the folder has all that is committed.
fn copied(database: &Arc<Database>) {
    let ts = database.version().view().ts();
    wait_until("it is in the folder", || {
        mark(database);
        let tier = database.second_tier().unwrap();
        assert!(tier.failure.is_none(), "{tier:?}");
        tier.is_complete && tier.copied_ts >= ts
    });
}

/// Waits until a copy shows all that its primary has committed by now, and compares.
fn same(primary: &Arc<Database>, copy: &Arc<Database>, when: &str) {
    let (version, end) = (primary.version(), Instant::now() + WAIT);
    copied(primary);
    while copy.follow_progress().unwrap().applied < version.view().ts() {
        let (progress, state) = (copy.follow_progress(), copy.copy());
        assert!(Instant::now() < end, "{when}: {progress:?} {state:?} of {}", version.view().ts());
        assert_eq!(copy.role(), HostRole::Following, "{when}: {progress:?}");
        mark(primary);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_same(&content(&copy.version()), &content(&version), when);
    check(copy);
}

fn groups(database: &Arc<Database>, name: &str) -> Vec<tidepool_base::RowGroupId> {
    let table = database.version().table(name).unwrap();
    table.row_groups.iter().map(|group| group.id()).collect()
}

#[test]
fn a_copy_shows_what_its_primary_commits_and_takes_its_place() {
    let (place, other) = (Place::new(), Place::new());
    let folder = place.folder("data");
    let primary = open(&place, "one", PoolRole::Primary, "data");
    create(&primary, "t");
    let mut transaction = primary.begin().unwrap();
    transaction.create_sequence(sequence("s", &primary)).unwrap();
    transaction.commit().unwrap();
    let of = |database: &Arc<Database>| {
        let sequence = database.state().catalog.sequences.values().next().unwrap().clone();
        database.next_values(&sequence, 1, false)
    };
    insert_and_commit(&primary, "t", 0..3000);
    assert!(primary.merge("t").unwrap() > 0);
    primary.checkpoint().unwrap();
    insert_and_commit(&primary, "t", 10_000..10_000 + LOAD);
    copied(&primary);
    let copy = open_copy(&other, "copy", &folder);
    assert_eq!((copy.role(), copy.is_following()), (HostRole::Following, true));
    same(&primary, &copy, "at first");
    // Changes of main, loads, definitions, values of sequences.
    let mut transaction = primary.begin().unwrap();
    transaction.delete("t", &(0..100).map(|row| RowId::new(0, row * 3)).collect::<Vec<_>>()).unwrap();
    insert(&mut transaction, "t", 3000..3700).unwrap();
    transaction.commit().unwrap();
    create(&primary, "later");
    insert_and_commit(&primary, "later", 0..LOAD);
    let given = of(&primary).unwrap()[0];
    same(&primary, &copy, "beside writers");
    // What a merge made comes with the checkpoint.
    assert!(primary.merge("t").unwrap() > 0);
    insert_and_commit(&primary, "later", 900_000..900_010);
    same(&primary, &copy, "after a merge");
    assert_ne!(groups(&primary, "t"), groups(&copy, "t"));
    primary.checkpoint().unwrap();
    wait_until("mains are adopted", || {
        copy.vacuum();
        groups(&primary, "t") == groups(&copy, "t")
    });
    insert_and_commit(&primary, "later", 900_010..900_020);
    same(&primary, &copy, "after the checkpoint");
    // It writes nothing.
    let mut transaction = copy.begin().unwrap();
    let refused = insert(&mut transaction, "t", 5000..5001).and_then(|_| transaction.commit());
    assert_eq!(refused.unwrap_err().code(), SqlState::READ_ONLY_SQL_TRANSACTION);
    assert_eq!(of(&copy).unwrap_err().code(), SqlState::READ_ONLY_SQL_TRANSACTION);
    wait_until("the end is known", || copy.lag_bytes() == Some(0) && copy.copy().unwrap().looked_at.is_some());
    let state = copy.copy().unwrap();
    assert!(state.written_at.unwrap() <= SystemTime::now() && state.begun_anew == 0, "{state:?}");
    assert!(copy.upstream().is_none() && copy.second_tier().is_none());

    let expected = content(&primary.version());
    end(primary);
    lose(&place);
    assert!(copy.promote(WAIT).unwrap());
    assert_eq!((copy.role(), copy.is_following()), (HostRole::Primary, false));
    assert!(copy.copy().is_none());
    assert_same(&content(&copy.version()), &expected, "promoted");
    assert!(of(&copy).unwrap()[0] > given);
    insert_and_commit(&copy, "t", 50_000..50_010);
    let expected = content(&copy.version());
    end(copy);
    // It is what it became, whatever it is started as.
    std::fs::remove_dir_all(&folder).unwrap();
    let copy = open_copy(&other, "again", &folder);
    assert_eq!(copy.role(), HostRole::Primary);
    assert_same(&content(&copy.version()), &expected, "started again");
    check(&copy);
    let standby = other.open("standby", PoolRole::Standby);
    insert_and_commit(&copy, "t", 60_000..60_010);
    super::tests::catch_up(&copy, &standby);
    assert_same(&content(&standby.version()), &content(&copy.version()), "a standby of it");
    assert!(standby.promote(WAIT).unwrap());
    end(copy);
    insert_and_commit(&standby, "t", 70_000..70_010);
    write_manifest(&standby);
    standby.close().unwrap();
    drop(standby);
    other.checked();
}

#[test]
fn a_copy_is_refused_where_it_would_be_none() {
    let (place, other) = (Place::new(), Place::new());
    let folder = place.folder("data");
    let prerequisite = |refused: Result<Arc<Database>>, text: &str| {
        let error = refused.unwrap_err();
        assert_eq!(error.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "{error}");
        assert!(error.message().contains(text), "{error}");
    };
    let primary = open(&place, "one", PoolRole::Primary, "data");
    create(&primary, "t");
    insert_and_commit(&primary, "t", 0..10);
    primary.checkpoint().unwrap();
    copied(&primary);
    prerequisite(try_copy(&place, "copy", &folder), "has the database that is to be copied");
    prerequisite(try_copy(&other, "copy", &other.folder("none")), "has nothing that a copy can begin with");
    let copy = open_copy(&other, "copy", &folder);
    for role in [PoolRole::Primary, PoolRole::Auto, PoolRole::Standby] {
        let error = Database::open(other.config("beside", role)).unwrap_err();
        assert_eq!(error.code(), SqlState::OBJECT_IN_USE, "{error}");
    }
    assert_eq!(try_copy(&other, "beside", &folder).unwrap_err().code(), SqlState::OBJECT_IN_USE);
    // Beside it there is room for another database.
    let mut config = config_of(&other, "second", &folder);
    config.pool.as_mut().unwrap().database = "second".to_owned();
    let second = Database::open(config.clone()).unwrap();
    same(&primary, &second, "the second");
    end(second);
    // The data folder of a copy is for what it becomes.
    config.data_dir = Some(place.folder("full"));
    let alone = Database::open(crate::tests::in_folder(&place.folder("full"))).unwrap();
    alone.close().unwrap();
    drop(alone);
    prerequisite(Database::open(config), "has a database already");
    end(copy);
    let mut config = config_of(&other, "third", &folder);
    config.data_dir = Some(other.folder("new"));
    let copy = Database::open(config).unwrap();
    same(&primary, &copy, "with a folder");
    end(primary);
    assert!(copy.promote(WAIT).unwrap());
    insert_and_commit(&copy, "t", 20..30);
    copy.checkpoint().unwrap();
    copied(&copy);
    let expected = rows(&copy, "t");
    end(copy);
    lose(&other);
    let copy = open(&other, "fourth", PoolRole::Auto, "new");
    assert_eq!(rows(&copy, "t"), expected);
    copy.close().unwrap();
}

/// A primary that writes, merges, changes what exists, makes checkpoints and begins new terms, and copies that are ended and begin
/// again.
fn any_history(seed: u64, rounds: usize) {
    let (place, other) = (Place::of(1 << 30), Place::of(1 << 30));
    let mut random = StdRng::seed_from_u64(seed);
    let folder = place.folder("data");
    let mut primary = open(&place, "first", PoolRole::Auto, "data");
    work::create_tables(&primary);
    primary.checkpoint().unwrap();
    copied(&primary);
    let next = AtomicUsize::new(1000);
    let mut copy = open_copy(&other, "copy", &folder);
    for round in 0..rounds {
        let when = format!("seed {seed}, round {round}");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (database, next, done) = (&primary, &next, &done);
            work::start(scope, database, next, done, seed << 8 | round as u64);
            for _ in 0..random.random_range(1..5) {
                match random.random_range(0..3) {
                    0 => drop(write_manifest(database)),
                    1 => database.checkpoint().unwrap(),
                    _ => check(&copy),
                }
                if random.random_range(0..4) == 0 {
                    end(std::mem::replace(&mut copy, open_copy_anew(&other, &folder, &when)));
                }
                std::thread::sleep(Duration::from_millis(random.random_range(0..20)));
            }
            done.store(true, Ordering::Release);
        });
        insert_and_commit(&primary, "ticks", round..round + 1);
        if !primary.second_tier().unwrap().is_complete {
            primary.checkpoint().unwrap();
        }
        same(&primary, &copy, &when);
        match random.random_range(0..3) {
            // A term ends by a death, or not.
            0 => end(primary),
            1 => {
                primary.close().unwrap();
                drop(primary);
            }
            _ => continue,
        }
        primary = open(&place, &format!("host-{round}"), PoolRole::Auto, "data");
        same_or_begun(&primary, &copy, &when);
    }
    let expected = content(&primary.version());
    copied(&primary);
    end(primary);
    lose(&place);
    assert!(copy.promote(WAIT).unwrap());
    assert_same(&content(&copy.version()), &expected, &format!("seed {seed}, promoted"));
    check(&copy);
    for _ in 0..20 {
        write(&mut random, &copy, &next).unwrap_or_else(|error| refused_write(&error));
    }
    write_manifest(&copy);
    let (expected, config) = (content(&copy.version()), copy.config().clone());
    copy.close().unwrap();
    drop(copy);
    let copy = Database::open(config).unwrap();
    assert_same(&content(&copy.version()), &expected, &format!("seed {seed}, started again"));
    end(copy);
    other.checked();
}

/// Under another database of the pool, as the one before is still there.
fn open_copy_anew(place: &Place, folder: &Path, when: &str) -> Arc<Database> {
    static NAMES: AtomicUsize = AtomicUsize::new(0);
    let mut config = config_of(place, "copy", folder);
    let number = NAMES.fetch_add(1, Ordering::Relaxed);
    config.pool.as_mut().unwrap().database = format!("copy-{number}");
    config.pool.as_mut().unwrap().name = Some(format!("copy-{number}"));
    Database::open(config).unwrap_or_else(|error| panic!("{when}: {error}"))
}

/// A primary that begins its copy of the log anew has a checkpoint for it, or will have.
fn same_or_begun(primary: &Arc<Database>, copy: &Arc<Database>, when: &str) {
    if !primary.second_tier().unwrap().is_complete {
        primary.checkpoint().unwrap();
    }
    same(primary, copy, when);
}

#[test]
fn a_copy_has_what_there_was_whatever_becomes_of_both() {
    for_seeds(2, |seed| any_history(seed, 5));
}

/// Brings what a folder has to another one, as `rsync` does: `whole` or each file in part, and in any order.
fn bring(from: &Path, to: &Path, random: &mut StdRng, is_whole: bool) {
    let mut files = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        std::fs::create_dir_all(to.join(&folder)).unwrap();
        for entry in std::fs::read_dir(from.join(&folder)).unwrap() {
            let entry = entry.unwrap();
            let path = folder.join(entry.file_name());
            match entry.path().is_dir() {
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    files.shuffle(random);
    let mut manifest = files.extract_if(.., |path| path.ends_with("MANIFEST")).collect::<Vec<_>>();
    // As it should be brought: files that a manifest names before it, though nothing rests on that.
    if is_whole || random.random() {
        files.append(&mut manifest);
    } else {
        files.splice(0..0, manifest);
    }
    for path in files {
        let Ok(mut bytes) = std::fs::read(from.join(&path)) else { continue };
        let (is_log, to) = (path.extension().is_some_and(|ext| ext == "log"), to.join(&path));
        match is_whole || path.ends_with("MANIFEST") {
            true => {
                let next = to.with_extension("new");
                std::fs::write(&next, bytes).unwrap();
                std::fs::rename(next, to).unwrap();
            }
            false if random.random_range(0..4) == 0 => {}
            false => {
                let cut = random.random_range(0..bytes.len() + 1);
                match is_log {
                    // What comes later is zero until then, or the file is short.
                    true if random.random() => bytes[cut..].fill(0),
                    _ => bytes.truncate(cut),
                }
                std::fs::write(to, bytes).unwrap();
            }
        }
    }
    if is_whole {
        for folder in ["rows", "log"] {
            remove_others(&from.join(folder), &to.join(folder));
        }
    }
}

fn remove_others(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(to).unwrap() {
        let entry = entry.unwrap();
        let origin = from.join(entry.file_name());
        match entry.path().is_dir() {
            true if !origin.exists() => std::fs::remove_dir_all(entry.path()).unwrap(),
            true => remove_others(&origin, &entry.path()),
            false if !origin.exists() => std::fs::remove_file(entry.path()).unwrap(),
            false => {}
        }
    }
}

fn in_pieces(seed: u64) {
    let (place, other) = (Place::of(1 << 30), Place::of(1 << 30));
    let mut random = StdRng::seed_from_u64(seed);
    let (folder, brought) = (place.folder("data"), other.folder("brought"));
    let mut primary = open(&place, "first", PoolRole::Auto, "data");
    work::create_tables(&primary);
    primary.checkpoint().unwrap();
    copied(&primary);
    bring(&folder, &brought, &mut random, true);
    let copy = open_copy(&other, "copy", &brought);
    let next = AtomicUsize::new(1000);
    for round in 0..6 {
        for _ in 0..random.random_range(5..40) {
            let _ = write(&mut random, &primary, &next).map_err(|error| refused_write(&error));
        }
        if random.random_range(0..3) == 0 {
            let mut transaction = primary.begin().unwrap();
            let first = 1_000_000 * (round + 1);
            insert(&mut transaction, "three", first..first + LOAD).unwrap();
            transaction.commit().unwrap();
        }
        if random.random() {
            primary.checkpoint().unwrap();
        }
        if random.random_range(0..3) == 0 {
            end(primary);
            primary = open(&place, &format!("host-{round}"), PoolRole::Auto, "data");
        }
        insert_and_commit(&primary, "ticks", round..round + 1);
        if !primary.second_tier().unwrap().is_complete {
            primary.checkpoint().unwrap();
        }
        copied(&primary);
        let shown = content(&copy.version());
        for _ in 0..random.random_range(0..3) {
            bring(&folder, &brought, &mut random, false);
            std::thread::sleep(Duration::from_millis(random.random_range(0..60)));
            // What it shows is some state there was: at least it goes on.
            assert_eq!(copy.role(), HostRole::Following, "seed {seed}, round {round}: {:?}", copy.follow_progress());
        }
        drop(shown);
        let expected = content(&primary.version());
        let ts = primary.version().view().ts();
        bring(&folder, &brought, &mut random, true);
        let end = Instant::now() + WAIT;
        while copy.follow_progress().unwrap().applied < ts {
            assert_eq!(copy.role(), HostRole::Following, "{:?}", copy.follow_progress());
            assert!(Instant::now() < end, "seed {seed}, round {round}: {:?} {:?}", copy.copy(), copy.follow_progress());
            copied(&primary);
            bring(&folder, &brought, &mut random, true);
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_same(&content(&copy.version()), &expected, &format!("seed {seed}, round {round}"));
        check(&copy);
    }
    end(primary);
    end(copy);
}

#[test]
fn a_folder_may_come_in_pieces() {
    for_seeds(2, in_pieces);
}

/// So much log that segments go in the end.
fn write_much(database: &Arc<Database>) {
    for _ in 0..20 {
        let mut transaction = database.begin().unwrap();
        transaction.truncate("t").unwrap();
        insert(&mut transaction, "t", 0..500).unwrap();
        transaction.commit().unwrap();
    }
}

#[test]
fn a_copy_that_is_too_far_behind_begins_anew_and_shows_what_it_had_until_then() {
    let (place, other) = (Place::new(), Place::new());
    let folder = place.folder("data");
    let primary = open(&place, "one", PoolRole::Primary, "data");
    create(&primary, "t");
    create(&primary, "u");
    insert_and_commit(&primary, "u", 0..LOAD);
    primary.checkpoint().unwrap();
    let copy = open_copy(&other, "copy", &folder);
    same(&primary, &copy, "at first");
    copy.pause_replay(true).unwrap();
    wait_until("it pauses", || copy.replay_pause() == ReplayPause::Paused);
    let before = content(&copy.version());
    let held = copy.version();
    let first = |folder: &Path| {
        let logs = std::fs::read_dir(folder.join("log")).unwrap().next().unwrap().unwrap().path();
        std::fs::read_dir(logs).unwrap().map(|entry| entry.unwrap().file_name()).min().unwrap()
    };
    let mut oldest = vec![first(&folder)];
    insert_and_commit(&primary, "u", 700_000..700_000 + LOAD);
    primary.merge("u").unwrap();
    wait_until("segments go", || {
        write_much(&primary);
        primary.checkpoint().unwrap();
        copied(&primary);
        // The one that it has open can be read to its end, whatever becomes of its name.
        oldest.push(first(&folder));
        oldest.dedup();
        oldest.len() > 2
    });
    assert_same(&content(&copy.version()), &before, "paused");
    copy.pause_replay(false).unwrap();
    same(&primary, &copy, "begun anew");
    assert_eq!(copy.copy().unwrap().begun_anew, 1);
    assert_same(&content(&held), &before, "of a statement that began before");
    drop(held);
    create(&primary, "later");
    insert_and_commit(&primary, "later", 0..LOAD);
    same(&primary, &copy, "and it goes on");
    end(primary);
    assert!(copy.promote(WAIT).unwrap());
    end(copy);
    other.checked();
}

#[test]
fn what_is_damaged_is_named_and_no_promotion_passes_over_it() {
    let (place, other) = (Place::new(), Place::new());
    let (folder, brought) = (place.folder("data"), other.folder("brought"));
    let primary = open(&place, "one", PoolRole::Primary, "data");
    create(&primary, "t");
    primary.checkpoint().unwrap();
    copied(&primary);
    let mut random = StdRng::seed_from_u64(1);
    bring(&folder, &brought, &mut random, true);
    let copy = open_copy(&other, "copy", &brought);
    insert_and_commit(&primary, "t", 0..10);
    let middle = content(&primary.version());
    copied(&primary);
    bring(&folder, &brought, &mut random, true);
    wait_until("it has the first rows", || content(&copy.version()) == middle);
    let place_of_end = primary.log_position().unwrap();
    insert_and_commit(&primary, "t", 10..20);
    insert_and_commit(&primary, "t", 20..30);
    copied(&primary);
    let all = content(&primary.version());
    // A block behind what it has is damaged, and others are behind that.
    bring(&folder, &place.folder("damaged"), &mut random, true);
    let logs = std::fs::read_dir(brought.join("log")).unwrap().next().unwrap().unwrap().path();
    let segment = std::fs::read_dir(&logs).unwrap().map(|entry| entry.unwrap().path()).max().unwrap();
    let name = segment.strip_prefix(&brought).unwrap();
    scribble(&place.folder("damaged").join(name), place_of_end.offset() as u64 + 100, 16);
    std::fs::copy(place.folder("damaged").join(name), &segment).unwrap();
    wait_until("it is told", || copy.copy().unwrap().failure.is_some());
    let failure = copy.copy().unwrap().failure.unwrap();
    assert_eq!(failure.code(), SqlState::DATA_CORRUPTED, "{failure}");
    assert!(failure.message().contains(&logs.display().to_string()), "{failure}");
    let refused = copy.promote(WAIT).unwrap_err();
    assert_eq!(refused.code(), SqlState::DATA_CORRUPTED);
    assert!(refused.detail().unwrap().contains("is damaged"), "{refused:?}");
    assert_eq!(copy.role(), HostRole::Following);
    assert_same(&content(&copy.version()), &middle, "refused");
    // The file comes whole.
    std::fs::copy(folder.join(name), &segment).unwrap();
    wait_until("it goes on", || content(&copy.version()) == all && copy.copy().unwrap().failure.is_none());
    // A load whose file does not come.
    insert_and_commit(&primary, "t", 1000..1000 + LOAD);
    copied(&primary);
    let loaded = content(&primary.version());
    std::fs::copy(folder.join(name), &segment).unwrap();
    wait_until("the file is missed", || copy.copy().unwrap().failure.is_some());
    let refused = copy.promote(WAIT).unwrap_err();
    assert!(refused.detail().unwrap().contains(".rows"), "{refused:?}");
    bring(&folder, &brought, &mut random, true);
    let end_of_wait = Instant::now() + WAIT;
    while content(&copy.version()) != loaded {
        assert!(Instant::now() < end_of_wait, "{:?} {:?}", copy.copy(), copy.follow_progress());
        std::thread::yield_now();
    }
    end(primary);
    lose(&place);
    assert!(copy.promote(WAIT).unwrap());
    assert_same(&content(&copy.version()), &loaded, "promoted");
    end(copy);
}

/// The primary's data folder is put back to an earlier moment, and goes on from there.
#[test]
fn a_folder_that_is_behind_is_not_taken() {
    let (place, other) = (Place::new(), Place::new());
    let (folder, brought) = (place.folder("data"), other.folder("brought"));
    let mut random = StdRng::seed_from_u64(1);
    let primary = open(&place, "one", PoolRole::Primary, "data");
    create(&primary, "t");
    primary.checkpoint().unwrap();
    copied(&primary);
    bring(&folder, &place.folder("early"), &mut random, true);
    // Timestamps go with time, and the life to come begins with those of the checkpoint.
    std::thread::sleep(Duration::from_secs(3));
    insert_and_commit(&primary, "t", 0..10);
    copied(&primary);
    let expected = content(&primary.version());
    bring(&folder, &brought, &mut random, true);
    let copy = open_copy(&other, "copy", &brought);
    wait_until("it has all", || content(&copy.version()) == expected);
    end(primary);
    lose(&place);
    let primary = open(&place, "two", PoolRole::Primary, "early");
    let early = primary.storage.as_ref().unwrap().folder().to_owned();
    copied(&primary);
    end(primary);
    bring(&early, &brought, &mut random, true);
    wait_until("it is told", || {
        copy.copy().unwrap().failure.is_some_and(|failure| failure.message().contains("behind this copy"))
            || copy.copy().unwrap().begun_anew > 0
    });
    // Where it took long, the other life is later by its timestamps.
    if copy.copy().unwrap().begun_anew == 0 {
        assert_same(&content(&copy.version()), &expected, "of a folder that is behind");
        assert!(copy.promote(WAIT).unwrap());
        assert_same(&content(&copy.version()), &expected, "promoted");
    }
    end(copy);
}

#[test]
fn a_copy_follows_its_primary_into_a_pool_that_was_made_anew() {
    let (place, other) = (Place::new(), Place::new());
    let folder = place.folder("data");
    let primary = open(&place, "one", PoolRole::Primary, "data");
    create(&primary, "t");
    insert_and_commit(&primary, "t", 0..LOAD);
    primary.checkpoint().unwrap();
    let copy = open_copy(&other, "copy", &folder);
    same(&primary, &copy, "at first");
    end(primary);
    lose(&place);
    let primary = open(&place, "two", PoolRole::Auto, "data");
    insert_and_commit(&primary, "t", 500_000..500_010);
    same(&primary, &copy, "of the new pool");
    assert_eq!(copy.copy().unwrap().begun_anew, 1);
    let identity = Pool::open(&place.location()).unwrap().databases().unwrap()[0].identity;
    end(primary);
    assert!(copy.promote(WAIT).unwrap());
    assert_ne!(Pool::open(&other.location()).unwrap().databases().unwrap()[0].identity, identity);
    end(copy);
}
