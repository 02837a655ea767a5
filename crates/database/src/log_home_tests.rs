//! Where the log is, whether it is missed, and how it moves.

use crate::found_tests::killed;
use crate::tests::{columns, end, in_folder, insert_and_commit, placement, rows};
use crate::{Config, Database, TablespaceChange, check_folder, reset_log};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tidepool_base::{Error, SqlState};
use tidepool_device::Location;
use tidepool_tablespace::{Purpose, TablespaceConfig};

/// A data folder, `far` on a file beside it.
fn config(folder: &Path) -> Config {
    let data = in_folder(&folder.join("data"));
    let location = Location::File(folder.join("device"));
    let far = TablespaceConfig { location, size_bytes: Some(16 << 20), ..data.far.clone() };
    let mut config = Config { far, ..data };
    config.log.checkpoint_timeout = Duration::from_secs(3600);
    config.log.segment_bytes = 64 << 10;
    config.log.bytes_max = 1 << 20;
    config
}

/// The same, with the log in `far`.
fn far_log(folder: &Path) -> Config {
    let mut config = config(folder);
    config.log.tablespace = Some("far".to_owned());
    config
}

fn with_table(config: Config) -> Arc<Database> {
    let database = Database::open(config).unwrap();
    let mut transaction = database.begin().unwrap();
    transaction.create_table("t", columns(), vec![], placement("near")).unwrap();
    transaction.commit().unwrap();
    insert_and_commit(&database, "t", 0..10);
    database
}

fn count(config: Config) -> usize {
    let database = Database::open(config).unwrap();
    let count = rows(&database, "t").len();
    end(database);
    count
}

fn is_missing(error: &Error) -> bool {
    error.code() == SqlState::DATA_CORRUPTED && error.message().starts_with("the log is missing")
}

fn check_is_sound(config: &Config) {
    for checked in check_folder(config).unwrap() {
        assert!(checked.faults.is_empty(), "{checked:?}");
    }
}

/// Where segments of a log went that transactions were committed to, a start and a check say so.
#[test]
fn a_log_whose_last_segment_went_is_not_taken_for_one_that_ended_before() {
    let root = tempfile::tempdir().unwrap();
    let first = root.path().join("first");
    let database = with_table(config(&first));
    // Of one segment; of several, the oldest of which a checkpoint gave up.
    for round in 0..3usize {
        let copy = killed(&first, &format!("killed-{round}"));
        let log = copy.join("data/log");
        let mut segments: Vec<_> = std::fs::read_dir(&log).unwrap().map(|entry| entry.unwrap().path()).collect();
        segments.retain(|path| {
            let bytes = std::fs::read(path).unwrap();
            path.extension().is_some_and(|it| it == "log")
                && bytes[8..16] == *b"TIDEPLOG"
                && path.file_stem().unwrap().to_str().unwrap()
                    == format!("{:016x}", u64::from_le_bytes(bytes[48..56].try_into().unwrap()))
        });
        segments.sort();
        let last = segments.last().unwrap();
        let bytes = std::fs::read(last).unwrap();
        let is_told = |what: &str| {
            let error = Database::open(config(&copy)).unwrap_err();
            assert_eq!(error.code(), SqlState::DATA_CORRUPTED, "{what}");
            assert!(error.message().contains("log segment"), "{what}: {error}");
            assert!(error.hint().is_some_and(|hint| hint.contains("reset-log")), "{what}");
            let checked = check_folder(&config(&copy)).unwrap();
            assert!(checked[1].faults.iter().any(|fault| fault.contains("log segment")), "{what}: {checked:?}");
        };
        std::fs::remove_file(last).unwrap();
        is_told("removed");
        std::fs::write(last, "").unwrap();
        is_told("emptied");
        std::fs::write(last, vec![0; bytes.len()]).unwrap();
        is_told("replaced by an unused one");
        std::fs::write(last, &bytes).unwrap();
        let note = log.join("SEGMENTS");
        let noted = std::fs::read(&note).unwrap();
        std::fs::remove_file(&note).unwrap();
        assert_eq!(Database::open(config(&copy)).unwrap_err().code(), SqlState::DATA_CORRUPTED);
        std::fs::write(&note, noted).unwrap();
        check_is_sound(&config(&copy));
        let again = Database::open(config(&copy)).unwrap();
        assert_eq!(rows(&again, "t"), rows(&database, "t"));
        // What was closed has nothing that anybody needs.
        again.close().unwrap();
        drop(again);
        let last = std::fs::read_dir(&log)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some());
        std::fs::remove_file(last.max().unwrap()).unwrap();
        assert_eq!(count(config(&copy)), rows(&database, "t").len());
        for number in 0..60 {
            let from = 1_000 * (round + 1) + number * 10;
            insert_and_commit(&database, "t", from..from + 10);
        }
        if round == 1 {
            database.checkpoint().unwrap();
            insert_and_commit(&database, "t", 90_000..90_010);
        }
    }
    database.close().unwrap();
}

#[test]
fn a_log_in_memory_is_found_by_the_next_process() {
    let root = tempfile::tempdir().unwrap();
    let first = root.path().join("first");
    let database = with_table(far_log(&first));
    assert_eq!(database.tablespaces().far().bytes(Purpose::Log), (1 << 20) + 4096);
    assert!(!first.join("data/log").exists());
    for round in 1..4usize {
        insert_and_commit(&database, "t", round * 10..round * 10 + 10);
        let copy = killed(&first, &format!("killed-{round}"));
        // Looking at it takes nothing away.
        check_is_sound(&far_log(&copy));
        check_is_sound(&far_log(&copy));
        let again = Database::open(far_log(&copy)).unwrap();
        assert_eq!(rows(&again, "t").len(), 10 + round * 10);
        insert_and_commit(&again, "t", 1000..1001);
        let twice = killed(&copy, &format!("killed-{round}-again"));
        assert_eq!(count(far_log(&twice)), 11 + round * 10);
        if round == 2 {
            database.checkpoint().unwrap();
        }
    }
    // Round and round.
    for number in 0..400 {
        insert_and_commit(&database, "t", 2000 + number * 10..2010 + number * 10);
    }
    database.close().unwrap();
    drop(database);
    assert_eq!(count(far_log(&first)), 4040);
}

#[test]
fn a_log_in_memory_that_is_lost_is_missed() {
    let root = tempfile::tempdir().unwrap();
    let first = root.path().join("first");
    let database = with_table(far_log(&first));
    database.checkpoint().unwrap();
    insert_and_commit(&database, "t", 10..20);
    // The device is gone; is another; was used by somebody else.
    let gone = killed(&first, "gone");
    std::fs::remove_file(gone.join("device")).unwrap();
    let other = killed(&first, "other");
    std::fs::remove_file(other.join("device")).unwrap();
    end(Database::open(Config { data_dir: None, ..config(&other) }).unwrap());
    let used = killed(&first, "used");
    end(Database::open(Config { data_dir: None, ..config(&used) }).unwrap());
    // And the configuration no longer has it.
    let without = killed(&first, "without");
    let near = config(&without).near;
    let elsewhere = Config { far: TablespaceConfig { name: "far".into(), ..near }, ..config(&without) };
    for config in [far_log(&gone), far_log(&other), far_log(&used), config(&used), elsewhere.clone()] {
        for _ in 0..2 {
            let error = Database::open(config.clone()).unwrap_err();
            assert!(is_missing(&error), "{error}");
        }
        let faults: usize = check_folder(&config).unwrap().iter().map(|checked| checked.faults.len()).sum();
        assert_eq!(faults, 1);
    }
    // That was a mistake, and no harm was done.
    assert_eq!(count(far_log(&without)), 20);
    // It was not.
    assert!(reset_log(&far_log(&used), false).unwrap().is_none());
    assert_eq!(count(far_log(&used)), 10);
    check_is_sound(&far_log(&used));
}

#[test]
fn a_folder_without_the_log_is_noticed() {
    let root = tempfile::tempdir().unwrap();
    let first = root.path().join("first");
    let database = with_table(config(&first));
    database.checkpoint().unwrap();
    insert_and_commit(&database, "t", 10..20);
    let gone = killed(&first, "gone");
    std::fs::remove_dir_all(gone.join("data/log")).unwrap();
    let empty = killed(&first, "empty");
    std::fs::remove_dir_all(empty.join("data/log")).unwrap();
    std::fs::create_dir(empty.join("data/log")).unwrap();
    let foreign = killed(&first, "foreign");
    end(with_table(config(&root.path().join("second"))));
    std::fs::copy(root.path().join("second/data/log/LOG"), foreign.join("data/log/LOG")).unwrap();
    for folder in [&gone, &empty, &foreign] {
        let error = Database::open(config(folder)).unwrap_err();
        assert!(is_missing(&error), "{error}");
    }
    // What can be read is not given up.
    let whole = killed(&first, "whole");
    assert_eq!(reset_log(&config(&whole), false).unwrap_err().code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    assert_eq!(count(config(&whole)), 20);
    let whole = killed(&first, "forced");
    let aside = reset_log(&config(&whole), true).unwrap().unwrap();
    assert!(aside.join("LOG").exists());
    assert_eq!(count(config(&whole)), 10);
    assert!(reset_log(&config(&foreign), false).unwrap().is_some());
    assert_eq!(count(config(&foreign)), 10);
    // A log that was closed may go.
    database.close().unwrap();
    assert_eq!(insert(&database).code(), SqlState::ADMIN_SHUTDOWN);
    drop(database);
    std::fs::remove_dir_all(first.join("data/log")).unwrap();
    assert_eq!(count(config(&first)), 20);
}

fn insert(database: &Arc<Database>) -> Error {
    let mut transaction = database.begin().unwrap();
    let inserted = crate::tests::insert(&mut transaction, "t", 90..91);
    inserted.map(|_| ()).and_then(|()| transaction.commit().map(|_| ())).unwrap_err()
}

#[test]
fn a_log_moves_to_where_the_configuration_says() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("here");
    let mut elsewhere = config(&folder);
    elsewhere.log.folder = Some(root.path().join("elsewhere"));
    let mut larger = far_log(&folder);
    larger.log.bytes_max = 2 << 20;
    let places = [config(&folder), far_log(&folder), larger, elsewhere, config(&folder), far_log(&folder)];
    let mut last = with_table(places[0].clone());
    for (number, config) in places.into_iter().enumerate().skip(1) {
        insert_and_commit(&last, "t", number * 10..number * 10 + 10);
        // By what a process leaves that is killed, and by one that is closed.
        if number % 2 == 0 {
            let copy = killed(&folder, &format!("killed-{number}"));
            end(last);
            std::fs::remove_dir_all(&folder).unwrap();
            std::fs::rename(copy, &folder).unwrap();
        } else {
            last.close().unwrap();
            drop(last);
        }
        last = Database::open(config.clone()).unwrap();
        assert_eq!(rows(&last, "t").len(), number * 10 + 10, "{:?}", config.log);
        let far = last.tablespaces().far().bytes(Purpose::Log);
        let in_memory = config.log.tablespace.as_ref().map_or(0, |_| config.log.bytes_max + 4096);
        assert_eq!(far, in_memory, "the one before is gone");
        let is_there = |folder: &Path| folder.join("LOG").exists();
        assert_eq!(is_there(&folder.join("data/log")), config.log.folder.is_none() && in_memory == 0);
        assert_eq!(is_there(&root.path().join("elsewhere")), config.log.folder.is_some());
    }
}

#[test]
fn what_a_move_left_behind_is_removed_by_the_next_start() {
    let root = tempfile::tempdir().unwrap();
    let here = root.path().join("here");
    let database = with_table(config(&here));
    let before = killed(&here, "before");
    database.close().unwrap();
    drop(database);
    let database = Database::open(far_log(&here)).unwrap();
    insert_and_commit(&database, "t", 10..20);
    // As if it had been killed before it removed the files.
    for (name, config) in [("back", config as fn(&Path) -> Config), ("on", far_log)] {
        let copy = killed(&here, name);
        for entry in std::fs::read_dir(before.join("data/log")).unwrap().map(Result::unwrap) {
            std::fs::copy(entry.path(), copy.join("data/log").join(entry.file_name())).unwrap();
        }
        let database = Database::open(config(&copy)).unwrap();
        assert_eq!(rows(&database, "t").len(), 20, "{name}");
        insert_and_commit(&database, "t", 20..30);
        assert_eq!(copy.join("data/log/LOG").exists(), name == "back");
        let again = killed(&copy, &format!("{name}-again"));
        assert_eq!(count(config(&again)), 30);
    }
}

#[test]
fn what_cannot_have_the_log_is_refused_and_what_has_it_stays_as_it_is() {
    let root = tempfile::tempdir().unwrap();
    let refused = |change: &dyn Fn(&mut Config)| {
        let mut config = far_log(&root.path().join("refused"));
        change(&mut config);
        Database::open(config).unwrap_err()
    };
    let error = refused(&|config| config.log.tablespace = Some("near".to_owned()));
    assert_eq!(error.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    assert!(error.detail().unwrap().contains("cannot be found again"), "{error:?}");
    let error = refused(&|config| config.log.bytes_max = 64 << 20);
    assert_eq!(error.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    assert!(error.detail().unwrap().contains("64.0 MB"), "{error:?}");
    let error = refused(&|config| config.log.tablespace = Some("nowhere".to_owned()));
    assert_eq!(error.code(), SqlState::UNDEFINED_OBJECT);

    let database = with_table(far_log(&root.path().join("here")));
    let error = database.alter_tablespace("far", &TablespaceChange::Size { bytes: 32 << 20 }, &()).unwrap_err();
    assert_eq!(error.code(), SqlState::OBJECT_IN_USE);
    assert!(error.message().contains("log"), "{error}");
    // The configuration can make it larger.
    insert_and_commit(&database, "t", 10..20);
    let copy = killed(&root.path().join("here"), "copy");
    let mut larger = far_log(&copy);
    larger.far.size_bytes = Some(32 << 20);
    assert_eq!(count(larger), 20);
}
