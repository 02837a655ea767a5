//! Pools that are lost or damaged: whatever was copied into the data folder is there again.

use super::attach_tests::{damage, place_of};
use super::manifest_tests::{assert_same, member, write_manifest};
use super::tests::{Place, WAIT, catch_up, create, sequence};
use super::*;
use crate::Config;
use crate::follow::tests::{check, content, refused_write, write};
use crate::stress::for_seeds;
use crate::tests::{end, insert, insert_and_commit, rows};
use crate::write::writer::SHORT_ROW_GROUP_ROWS;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use tidepool_base::RowId;
use tidepool_device::Location;
use tidepool_pool::words::Root;

/// Rows of a transaction that make a row group of main.
pub(super) const LOAD: usize = SHORT_ROW_GROUP_ROWS + 50;

fn try_open(place: &Place, name: &str, role: PoolRole, folder: &str) -> Result<Arc<Database>> {
    let mut config = place.config(name, role);
    config.data_dir = Some(place.folder(folder));
    if let Some(pool) = &mut config.pool {
        pool.tier1_interval = Duration::from_secs(3600);
    }
    Database::open(config)
}

pub(super) fn open(place: &Place, name: &str, role: PoolRole, folder: &str) -> Arc<Database> {
    try_open(place, name, role, folder).unwrap()
}

/// Waits until the folder has all that is committed.
pub(super) fn copied(database: &Arc<Database>) {
    let ts = database.version().view().ts();
    database.log.get().unwrap().wait_durable(ts, || Ok(())).unwrap();
    let end = Instant::now() + WAIT;
    loop {
        let tier = database.second_tier().unwrap();
        assert!(tier.failure.is_none(), "{tier:?}");
        if tier.is_complete && tier.copied_ts >= ts {
            return;
        }
        assert!(Instant::now() < end, "{tier:?} of {ts}");
        database.tick();
        std::thread::yield_now();
    }
}

fn pool_file(place: &Place) -> PathBuf {
    let Location::File(path) = place.location() else { panic!("a pool in a file") };
    path
}

pub(super) fn lose(place: &Place) {
    std::fs::remove_file(pool_file(place)).unwrap();
}

/// Other bytes in a file from there on.
pub(super) fn scribble(path: &std::path::Path, from: u64, len: usize) {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(&vec![0xa5; len], from).unwrap();
}

#[test]
fn a_pool_that_is_lost_is_made_anew_with_all_that_was_committed() {
    let place = Place::new();
    let database = open(&place, "one", PoolRole::Primary, "data");
    create(&database, "t");
    let mut transaction = database.begin().unwrap();
    transaction.create_sequence(sequence("s", &database)).unwrap();
    transaction.commit().unwrap();
    let of = |database: &Arc<Database>| {
        let sequence = database.state().catalog.sequences.values().next().unwrap().clone();
        database.next_values(&sequence, 1, false).unwrap()[0]
    };
    insert_and_commit(&database, "t", 0..3000);
    assert!(database.merge("t").unwrap() > 0);
    let given = of(&database);
    // The first checkpoint, and what comes after it: changes of main, loads, merges, definitions.
    database.checkpoint().unwrap();
    insert_and_commit(&database, "t", 10_000..10_000 + LOAD);
    let mut transaction = database.begin().unwrap();
    transaction.delete("t", &(0..100).map(|row| RowId::new(0, row * 3)).collect::<Vec<_>>()).unwrap();
    insert(&mut transaction, "t", 3000..3700).unwrap();
    transaction.commit().unwrap();
    assert!(database.merge("t").unwrap() > 0);
    create(&database, "later");
    insert_and_commit(&database, "later", 0..LOAD);
    let last = of(&database);
    assert!(last > given);
    insert_and_commit(&database, "later", 50_000..50_010);
    copied(&database);
    let expected = content(&database.version());
    end(database);
    lose(&place);

    let database = open(&place, "two", PoolRole::Auto, "data");
    assert_eq!(database.role(), HostRole::Primary);
    assert_same(&content(&database.version()), &expected, "after the first loss");
    check(&database);
    let next = of(&database);
    assert!(next > last, "{next} after {last}");
    assert!(database.second_tier().unwrap().is_complete || database.second_tier().unwrap().failure.is_none());
    insert_and_commit(&database, "later", 60_000..60_010);
    copied(&database);
    let expected = content(&database.version());
    end(database);
    // The pool is there, and has the same.
    let database = open(&place, "three", PoolRole::Auto, "data");
    assert_same(&content(&database.version()), &expected, "from the pool");
    insert_and_commit(&database, "t", 70_000..70_100);
    copied(&database);
    let expected = content(&database.version());
    database.close().unwrap();
    drop(database);
    lose(&place);
    let database = open(&place, "four", PoolRole::Primary, "data");
    assert_same(&content(&database.version()), &expected, "after the second loss");
    check(&database);
    // A standby follows what was filled, and takes over.
    let standby = open(&place, "five", PoolRole::Standby, "other");
    insert_and_commit(&database, "later", 80_000..80_010);
    catch_up(&database, &standby);
    let expected = content(&database.version());
    assert_same(&content(&standby.version()), &expected, "a standby of what was filled");
    assert!(standby.promote(WAIT).unwrap());
    let _ = database.close();
    drop(database);
    standby.close().unwrap();
    drop(standby);
    place.checked();
}

/// The file of a pool is removed while its primary lives: what it has is not made anew beside it.
#[test]
fn a_pool_is_not_made_anew_beside_a_server_that_has_the_one_before() {
    use tidepool_pool::control::ControlListener;
    let place = Place::new();
    let database = open(&place, "one", PoolRole::Primary, "data");
    create(&database, "t");
    insert_and_commit(&database, "t", 0..10);
    database.checkpoint().unwrap();
    copied(&database);
    // As the server does.
    let pool = tidepool_pool::pool::Pool::open(&place.location()).unwrap();
    let view = pool.hosts().unwrap().remove(0);
    let socket = PathBuf::from(view.text.unwrap().control_socket);
    let listener = ControlListener::bind(&socket, &pool, view.host).unwrap();
    assert!(database.pool().unwrap().pool().displaced().is_empty());
    lose(&place);
    assert_eq!(database.pool().unwrap().pool().displaced(), [0]);
    // A copy of its folder, elsewhere.
    let copy = std::process::Command::new("cp").arg("-r").args([place.folder("data"), place.folder("copy")]).status();
    assert!(copy.unwrap().success());
    let refused = try_open(&place, "two", PoolRole::Auto, "copy").unwrap_err();
    assert_eq!(refused.code(), SqlState::OBJECT_IN_USE);
    assert!(refused.message().contains("has another pool than there is"), "{refused:?}");
    assert!(!pool_file(&place).exists());
    // It goes on as it did.
    insert_and_commit(&database, "t", 10..20);
    copied(&database);
    let expected = content(&database.version());
    drop((listener, pool));
    end(database);
    let database = open(&place, "two", PoolRole::Auto, "data");
    assert_same(&content(&database.version()), &expected, "of the folder");
    database.close().unwrap();
    drop(database);
    place.checked();
}

/// What is damaged where, and the start that finds it.
#[test]
fn a_pool_that_is_damaged_is_filled_from_the_folder() {
    for what in ["superblock", "manifests", "log", "directory", "truncated"] {
        let place = Place::of(256 << 20);
        let database = open(&place, "one", PoolRole::Primary, "data");
        create(&database, "t");
        insert_and_commit(&database, "t", 0..3000);
        database.merge("t").unwrap();
        assert!(write_manifest(&database));
        insert_and_commit(&database, "t", 4000..4100);
        assert!(write_manifest(&database));
        database.checkpoint().unwrap();
        insert_and_commit(&database, "t", 5000..5100);
        copied(&database);
        let expected = content(&database.version());
        let member = member(&database);
        let pool = Arc::clone(member.pool());
        let extent_bytes = pool.extent_bytes();
        let extents: Vec<u32> = match what {
            "manifests" => {
                assert_ne!(member.root().unwrap(), Root::NEW);
                of_kind(&pool, tidepool_pool::words::Kind::Manifest)
            }
            "log" => of_kind(&pool, tidepool_pool::words::Kind::Log),
            _ => Vec::new(),
        };
        assert_eq!(extents.is_empty(), !matches!(what, "manifests" | "log"), "{what}");
        let root = tidepool_pool::words::Word::bits(member.root().unwrap());
        drop((member, pool));
        end(database);
        let path = pool_file(&place);
        match what {
            "superblock" => scribble(&path, 0, 4096),
            // One bit of the word that says which manifest is in force.
            "directory" => {
                let file = std::fs::File::open(&path).unwrap();
                let mut bytes = vec![0; 1 << 20];
                file.read_exact_at(&mut bytes, 0).unwrap();
                let at = bytes.chunks_exact(8).position(|word| word == root.to_le_bytes()).unwrap() * 8;
                let file = std::fs::File::options().write(true).open(&path).unwrap();
                file.write_all_at(&(root ^ 2).to_le_bytes(), at as u64).unwrap();
            }
            "truncated" => std::fs::File::options().write(true).open(&path).unwrap().set_len(64 << 20).unwrap(),
            // Behind the first block.
            "log" => extents.iter().for_each(|extent| scribble(&path, u64::from(*extent) * extent_bytes + 4096, 4096)),
            _ => extents.iter().for_each(|extent| scribble(&path, u64::from(*extent) * extent_bytes + 300, 64)),
        }
        let database = open(&place, "two", PoolRole::Auto, "data");
        assert_same(&content(&database.version()), &expected, what);
        check(&database);
        insert_and_commit(&database, "t", 6000..6100);
        database.close().unwrap();
        drop(database);
        place.checked();
    }
}

fn of_kind(pool: &tidepool_pool::pool::Pool, kind: tidepool_pool::words::Kind) -> Vec<u32> {
    let books = pool.books();
    let all =
        books.layout.all_extents().map(|extent| (extent, pool.told(books.load(books.layout.owner(extent))).unwrap()));
    all.filter(|(_, owner)| owner.kind() == Some(kind)).map(|(extent, _)| extent.0).collect()
}

/// Nothing of main is looked at by a start. What is damaged there is read from the folder when it is wanted.
#[test]
fn what_is_damaged_of_main_is_read_from_the_folder() {
    let place = Place::new();
    let database = open(&place, "one", PoolRole::Primary, "data");
    create(&database, "t");
    insert_and_commit(&database, "t", 0..LOAD);
    insert_and_commit(&database, "t", LOAD..2 * LOAD);
    assert!(write_manifest(&database));
    database.checkpoint().unwrap();
    copied(&database);
    let places = [(0, 0), (0, 1), (1, 1)].map(|(group, column)| place_of(&database, "t", group, column));
    let expected = content(&database.version());
    end(database);
    // Heads of two columns, and what is behind that of another.
    for (at, offset) in places.iter().zip([32, 4096, 40]) {
        damage(&place, at, offset);
    }
    let database = open(&place, "two", PoolRole::Primary, "data");
    assert_same(&content(&database.version()), &expected, "with what is in the folder");
    check(&database);
    insert_and_commit(&database, "t", 500_000..500_010);
    assert!(write_manifest(&database));
    database.close().unwrap();
}

/// A host that attached to a manifest writes changes of rows as they were as of that, and the folder's checkpoint is older.
#[test]
fn changes_of_rows_that_were_attached_fit_an_older_checkpoint_and_a_standby() {
    let place = Place::new();
    let database = open(&place, "one", PoolRole::Primary, "data");
    for name in ["one", "two", "three"] {
        create(&database, name);
        insert_and_commit(&database, name, 0..300);
    }
    database.checkpoint().unwrap();
    copied(&database);
    insert_and_commit(&database, "one", 300..301);
    let standby = open(&place, "standby", PoolRole::Standby, "other");
    assert!(write_manifest(&database));
    end(database);
    let database = open(&place, "two", PoolRole::Primary, "data");
    assert!(database.second_tier().unwrap().is_complete, "the copy goes on");
    let (mut random, next) = (StdRng::seed_from_u64(7), AtomicUsize::new(1000));
    for _ in 0..100 {
        write(&mut random, &database, &next).unwrap_or_else(|error| refused_write(&error));
    }
    insert_and_commit(&database, "one", 900..901);
    copied(&database);
    catch_up(&database, &standby);
    let expected = content(&database.version());
    assert_same(&content(&standby.version()), &expected, "a standby that followed all the time");
    end(standby);
    end(database);
    lose(&place);
    let database = open(&place, "three", PoolRole::Primary, "data");
    assert_same(&content(&database.version()), &expected, "from the folder");
    check(&database);
    database.close().unwrap();
}

#[test]
fn a_standby_is_backed_up() {
    let place = Place::new();
    let primary = open(&place, "one", PoolRole::Primary, "data");
    create(&primary, "t");
    let mut transaction = primary.begin().unwrap();
    transaction.create_sequence(sequence("s", &primary)).unwrap();
    transaction.commit().unwrap();
    let of = |database: &Arc<Database>| {
        let sequence = database.state().catalog.sequences.values().next().unwrap().clone();
        database.next_values(&sequence, 1, false).unwrap()[0]
    };
    insert_and_commit(&primary, "t", 0..LOAD);
    primary.merge("t").unwrap();
    insert_and_commit(&primary, "t", 50_000..50_100);
    let given = of(&primary);
    // One with a folder of its own, and one without.
    let standby = open(&place, "two", PoolRole::Standby, "other");
    let bare = place.open("three", PoolRole::Standby);
    for (name, host) in [("first", &standby), ("second", &bare)] {
        catch_up(&primary, host);
        let expected = content(&primary.version());
        let copied = host.backup(&place.folder(name), &|| Ok(())).unwrap();
        assert!(copied.tables == 1 && copied.files >= 2, "{copied:?}");
        let refused = host.backup(&place.folder(name), &|| Ok(())).unwrap_err();
        assert_eq!(refused.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
        let alone = Config { data_dir: Some(place.folder(name)), ..crate::tests::memory() };
        let restored = Database::open(alone).unwrap();
        assert_same(&content(&restored.version()), &expected, name);
        check(&restored);
        assert!(of(&restored) > given);
        restored.close().unwrap();
    }
    bare.close().unwrap();
    standby.close().unwrap();
    primary.close().unwrap();
}

#[test]
fn a_folder_that_another_one_is_ahead_of_is_taken_and_one_that_is_ahead_is_not() {
    let place = Place::new();
    let first = open(&place, "one", PoolRole::Primary, "first");
    create(&first, "t");
    insert_and_commit(&first, "t", 0..10);
    first.checkpoint().unwrap();
    copied(&first);
    let second = open(&place, "two", PoolRole::Standby, "second");
    assert!(second.promote(WAIT).unwrap());
    let _ = first.close();
    end(first);
    insert_and_commit(&second, "t", 100..110);
    second.checkpoint().unwrap();
    copied(&second);
    let expected = rows(&second, "t");
    end(second);
    lose(&place);
    // The newer copy: the older one is of an earlier life.
    let second = open(&place, "two", PoolRole::Primary, "second");
    assert_eq!(rows(&second, "t"), expected);
    let first = open(&place, "one", PoolRole::Standby, "first");
    assert!(first.promote(WAIT).unwrap());
    let _ = second.close();
    end(second);
    insert_and_commit(&first, "t", 200..210);
    first.checkpoint().unwrap();
    copied(&first);
    end(first);
    lose(&place);
    // The older one, by mistake: the newer one is not overwritten, and says so.
    let second = open(&place, "two", PoolRole::Primary, "second");
    assert_eq!(rows(&second, "t"), expected);
    let refused = try_open(&place, "one", PoolRole::Auto, "first").unwrap_err();
    assert_eq!(refused.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "{refused}");
    second.close().unwrap();
    drop(second);
    lose(&place);
    let first = open(&place, "one", PoolRole::Auto, "first");
    assert_eq!(rows(&first, "t").len(), expected.len() + 10);
    first.close().unwrap();
}

#[test]
fn a_data_folder_is_brought_into_a_pool_and_a_second_tier_is_none_of_a_server_without_one() {
    let place = Place::new();
    let alone = || Config { data_dir: Some(place.folder("data")), ..crate::tests::memory() };
    let database = Database::open(alone()).unwrap();
    create(&database, "t");
    insert_and_commit(&database, "t", 0..LOAD);
    insert_and_commit(&database, "t", 50_000..50_010);
    let expected = rows(&database, "t");
    end(database);
    // Its log has what its checkpoint lacks.
    let refused = try_open(&place, "one", PoolRole::Auto, "data").unwrap_err();
    assert_eq!(refused.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "{refused}");
    let database = Database::open(alone()).unwrap();
    database.close().unwrap();
    drop(database);
    let database = open(&place, "one", PoolRole::Auto, "data");
    assert_eq!(rows(&database, "t"), expected);
    insert_and_commit(&database, "t", 60_000..60_010);
    copied(&database);
    let expected = rows(&database, "t");
    // A backup is a data folder of its own.
    database.backup(&place.folder("backup"), &|| Ok(())).unwrap();
    end(database);
    let refused = Database::open(alone()).unwrap_err();
    assert_eq!(refused.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "{refused}");
    let restored = Database::open(Config { data_dir: Some(place.folder("backup")), ..crate::tests::memory() }).unwrap();
    assert_eq!(rows(&restored, "t"), expected);
    restored.close().unwrap();
}

/// A primary that writes, merges and changes what exists, with checkpoints in the folder at random moments. Its pool is lost, damaged
/// or there at each end.
fn any_loss(seed: u64, rounds: usize) {
    let place = Place::of(1 << 30);
    let mut random = StdRng::seed_from_u64(seed);
    let mut primary = open(&place, "first", PoolRole::Auto, "data");
    work::create_tables(&primary);
    let next = AtomicUsize::new(1000);
    for round in 0..rounds {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (database, next, done) = (&primary, &next, &done);
            work::start(scope, database, next, done, seed << 8 | round as u64);
            for _ in 0..random.random_range(1..5) {
                match random.random() {
                    true => drop(write_manifest(database)),
                    false => database.checkpoint().unwrap(),
                }
                std::thread::sleep(Duration::from_millis(random.random_range(0..20)));
            }
            done.store(true, Ordering::Release);
        });
        insert_and_commit(&primary, "ticks", round..round + 1);
        if !primary.second_tier().unwrap().is_complete {
            primary.checkpoint().unwrap();
        }
        copied(&primary);
        let expected = content(&primary.version());
        if random.random() {
            end(primary);
        } else {
            primary.close().unwrap();
            drop(primary);
        }
        let is_lost = random.random_range(0..3) > 0;
        if is_lost {
            lose(&place);
        }
        primary = open(&place, &format!("host-{round}"), PoolRole::Auto, "data");
        assert_eq!(primary.role(), HostRole::Primary);
        let when = format!("seed {seed}, round {round}, lost: {is_lost}");
        assert_same(&content(&primary.version()), &expected, &when);
        check(&primary);
    }
    primary.close().unwrap();
    drop(primary);
    place.checked();
}

#[test]
fn whatever_was_copied_is_there_after_any_loss() {
    for_seeds(1, |seed| any_loss(seed, 5));
}
