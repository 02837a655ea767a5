//! Restarts that find main in memory.

use crate::tests::{columns, end, in_folder, insert, insert_and_commit, placement, rows};
use crate::{Changed, Config, Database, TablespaceChange};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidepool_base::RowId;
use tidepool_device::Location;
use tidepool_table::ROW_GROUP_ROWS;
use tidepool_tablespace::{Purpose, TablespaceConfig};

/// A data folder, and `far` on a file beside it.
fn config(folder: &Path) -> Config {
    let data = in_folder(&folder.join("data"));
    let location = Location::File(folder.join("device"));
    let far = TablespaceConfig { location, size_bytes: Some(64 << 20), ..data.far.clone() };
    let mut config = Config { far, ..data };
    config.log.checkpoint_timeout = Duration::from_secs(3600);
    config
}

/// What a process that is killed now leaves behind: a copy of all files.
pub(crate) fn killed(from: &Path, name: &str) -> PathBuf {
    fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
        std::fs::create_dir_all(to)?;
        for entry in std::fs::read_dir(from)? {
            let entry = entry?;
            let to = to.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                copy(&entry.path(), &to)?;
            } else {
                std::fs::copy(entry.path(), to)?;
            }
        }
        Ok(())
    }
    let to = from.with_file_name(name);
    // The log's writer makes segments ahead of need, under a name that goes when they are whole: then it is another moment's.
    while let Err(error) = copy(from, &to) {
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
        std::fs::remove_dir_all(&to).unwrap();
    }
    to
}

/// Segments found in memory, and those read from files.
fn restarted(database: &Database) -> (u64, u64) {
    let restarted = database.storage.as_ref().unwrap().restarted();
    (restarted.attached.load(Ordering::Relaxed), restarted.read.load(Ordering::Relaxed))
}

fn main_bytes(database: &Database) -> u64 {
    database.tablespaces().far().bytes(Purpose::Main)
}

/// Of several huge pages.
const ROWS: usize = 8 * ROW_GROUP_ROWS + 20_000;

/// Nine row groups far, one near.
fn with_tables(folder: &Path) -> Arc<Database> {
    let database = Database::open(config(folder)).unwrap();
    let mut transaction = database.begin().unwrap();
    transaction.create_table("t", columns(), vec![], placement("far")).unwrap();
    transaction.create_table("n", columns(), vec![], placement("near")).unwrap();
    insert(&mut transaction, "t", 0..ROWS).unwrap();
    insert(&mut transaction, "n", 0..20_000).unwrap();
    transaction.commit().unwrap();
    database.checkpoint().unwrap();
    database
}

/// The data folder has all that a device has: whatever became of that, a start goes on.
#[test]
fn a_device_that_cannot_be_opened_keeps_no_start_from_going_on() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("first");
    std::fs::create_dir(&folder).unwrap();
    let database = with_tables(&folder);
    insert_and_commit(&database, "t", ROWS..ROWS + 100);
    let before = rows(&database, "t");
    end(database);
    let device = folder.join("device");
    let sound = std::fs::read(&device).unwrap();
    let of_other_version = {
        let mut bytes = sound.clone();
        for copy in [0, 2048] {
            bytes[copy + 8] ^= 1;
        }
        bytes
    };
    let aside = folder.join("aside");
    std::fs::create_dir(&aside).unwrap();
    let contents = [Some(b"a letter to a friend\n".to_vec()), Some(vec![7; 1 << 20]), Some(of_other_version), None];
    for content in contents {
        let now = config(&folder);
        let now = match &content {
            Some(bytes) => {
                std::fs::write(&device, bytes).unwrap();
                now
            }
            // Its folder is gone.
            None => {
                let location = Location::File(folder.join("nowhere/device"));
                Config { far: TablespaceConfig { location, ..now.far.clone() }, ..now }
            }
        };
        // Whoever begins anew with it is told.
        assert!(Database::open(Config { data_dir: Some(aside.join("new")), ..now.clone() }).is_err());
        for round in 0..2 {
            let again = Database::open(now.clone()).unwrap();
            let far = again.tablespaces().far();
            assert!(far.stands_in() && far.config().location == now.far.location);
            let larger = TablespaceChange::Size { bytes: 80 << 20 };
            assert_eq!(again.alter_tablespace("far", &larger, &()).unwrap_err().code().code(), "55000");
            assert!(rows(&again, "t") == before);
            assert_eq!(rows(&again, "n").len(), 20_000);
            if round == 1 {
                again.close().unwrap();
            }
            end(again);
        }
        if let Some(bytes) = content {
            assert!(std::fs::read(&device).unwrap() == bytes, "somebody else's file stays as it is");
        }
    }
    std::fs::write(&device, sound).unwrap();
    let again = Database::open(config(&folder)).unwrap();
    assert!(!again.tablespaces().far().stands_in());
    assert!(rows(&again, "t") == before);
    again.close().unwrap();
    drop(again);
    // And from then on it is used as ever.
    let again = Database::open(config(&folder)).unwrap();
    assert_eq!(restarted(&again).1, 2, "near is gone, far is there");
    again.close().unwrap();
}

#[test]
fn main_is_found_in_memory_after_a_kill_and_after_a_stop() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("first");
    std::fs::create_dir(&folder).unwrap();
    let database = with_tables(&folder);
    assert_eq!(restarted(&database), (0, 0));
    // What came after the checkpoint is the log's: rows, changes of rows of main, a merge that puts other row groups there.
    insert_and_commit(&database, "t", ROWS..ROWS + 100);
    let mut transaction = database.begin().unwrap();
    let gone: Vec<RowId> = (0..500).map(|position| RowId::new(1, position * 7)).collect();
    assert!(matches!(transaction.delete("t", &gone).unwrap(), Changed::Rows(_)));
    transaction.commit().unwrap();
    let before = rows(&database, "t");
    database.halt();
    let early = killed(&folder, "early");
    assert_eq!(database.merge("t").unwrap(), 600);
    for round in 0..20 {
        // Memory that the merge would have left, were it not held.
        insert_and_commit(&database, "t", ROWS + 100 + round..ROWS + 101 + round);
        database.vacuum();
    }
    let later = rows(&database, "t");
    database.halt();
    let late = killed(&folder, "late");
    for (folder, expected) in [(early, before), (late, later)] {
        let again = Database::open(config(&folder)).unwrap();
        assert_eq!(restarted(&again), (18, 2), "near is gone, far is there");
        assert_eq!(rows(&again, "t"), expected);
        assert_eq!(rows(&again, "n").len(), 20_000);
        // And from then on.
        insert_and_commit(&again, "t", 1_000_000..1_000_010);
        let expected = rows(&again, "t");
        again.close().unwrap();
        drop(again);
        let third = Database::open(config(&folder)).unwrap();
        assert_eq!(restarted(&third).1, 2);
        assert_eq!(rows(&third, "t"), expected);
        third.close().unwrap();
    }
    database.close().unwrap();
    drop(database);
    let again = Database::open(config(&folder)).unwrap();
    assert_eq!(restarted(&again).1, 2, "a stop leaves it, too");
}

#[test]
fn what_is_not_as_it_was_left_is_read_from_files() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("first");
    std::fs::create_dir(&folder).unwrap();
    let database = with_tables(&folder);
    database.halt();
    let expected = rows(&database, "t");
    let places: Vec<(u64, u64)> = {
        let table = database.version().table("t").unwrap();
        let segments = table.row_groups.iter().flat_map(|group| group.segments());
        segments.map(|segment| segment.place().unwrap()).map(|place| (place.offset, place.len)).collect()
    };
    let change = |name: &str, what: &dyn Fn(&std::fs::File)| {
        let folder = killed(&folder, name);
        let device = std::fs::File::options().write(true).open(folder.join("device")).unwrap();
        what(&device);
        folder
    };
    let check = |folder: &Path, found: (u64, u64)| {
        let database = Database::open(config(folder)).unwrap();
        assert_eq!(restarted(&database), (found.0, found.1 + 2), "{}", folder.display());
        assert_eq!(rows(&database, "t"), expected, "{}", folder.display());
        // What was read is found at the next start.
        if found.1 > 0 {
            database.checkpoint().unwrap();
            database.halt();
            let next = killed(folder, &format!("{}-next", folder.file_name().unwrap().display()));
            assert_eq!(restarted(&Database::open(config(&next)).unwrap()), (18, 2), "{}", folder.display());
        }
        // Damaged ones are mended: what is read from here on, and written, is right.
        assert_eq!(rows(&database, "t"), expected);
        let mut transaction = database.begin().unwrap();
        transaction.set_tablespace("t", None, "near").unwrap();
        transaction.commit().unwrap();
        database.close().unwrap();
        drop(database);
        assert_eq!(rows(&Database::open(config(folder)).unwrap(), "t"), expected);
    };
    // The head of one, the body of another, and a whole one that reads as zeroes.
    check(&change("head", &|device| device.write_all_at(&[9], places[0].0 + 3).unwrap()), (17, 1));
    check(&change("body", &|device| device.write_all_at(b"TIDE", places[1].0 + places[1].1 / 2).unwrap()), (18, 0));
    let zeroes = vec![0; places[4].1 as usize];
    check(&change("zeroes", &|device| device.write_all_at(&zeroes, places[4].0).unwrap()), (17, 1));
    // One segment where another was.
    let other = {
        let device = std::fs::File::open(folder.join("device")).unwrap();
        let mut bytes = vec![0; places[0].1 as usize];
        device.read_exact_at(&mut bytes, places[0].0).unwrap();
        bytes
    };
    check(&change("swapped", &|device| device.write_all_at(&other, places[2].0).unwrap()), (17, 1));
    // A device that was somebody else's meanwhile, one that is new, and one that is another.
    let used = killed(&folder, "used");
    end(Database::open(Config { data_dir: None, ..config(&used) }).unwrap());
    check(&used, (0, 18));
    let new = killed(&folder, "new");
    std::fs::remove_file(new.join("device")).unwrap();
    check(&new, (0, 18));
    let apart = home.path().join("apart");
    std::fs::create_dir(&apart).unwrap();
    end(with_tables(&apart));
    let another = killed(&folder, "another");
    std::fs::copy(apart.join("device"), another.join("device")).unwrap();
    check(&another, (0, 18));
    // One that has become smaller keeps what is within.
    let shorter = killed(&folder, "shorter");
    let device = std::fs::File::options().write(true).open(shorter.join("device")).unwrap();
    device.set_len(4096).unwrap();
    check(&shorter, (0, 18));
}

#[test]
fn delta_is_found_in_memory_too() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("first");
    std::fs::create_dir(&folder).unwrap();
    let database = with_tables(&folder);
    insert_and_commit(&database, "t", ROWS..ROWS + 2_000);
    database.checkpoint().unwrap();
    insert_and_commit(&database, "t", ROWS + 2_000..ROWS + 2_500);
    let expected = rows(&database, "t");
    let files = database.storage.as_ref().unwrap().delta_files();
    assert!(files > 1, "delta takes several files");
    let images = |database: &Database| database.storage.as_ref().unwrap().restarted().images.load(Ordering::Relaxed);
    database.halt();
    let sound = killed(&folder, "sound");
    let damaged = killed(&folder, "damaged");
    // Whatever it is of the image that contains a row's text.
    let device = std::fs::File::options().read(true).write(true).open(damaged.join("device")).unwrap();
    let bytes = std::fs::read(damaged.join("device")).unwrap();
    let row = format!("row {}", ROWS + 1_000).into_bytes();
    for place in (0..bytes.len() - row.len()).filter(|place| bytes[*place..].starts_with(&row)) {
        device.write_all_at(b"R", place as u64).unwrap();
    }
    for (folder, found) in [(sound, files), (damaged, files - 1)] {
        let again = Database::open(config(&folder)).unwrap();
        assert_eq!((images(&again) as usize, restarted(&again)), (found, (18, 2)));
        assert_eq!(rows(&again, "t"), expected);
        again.close().unwrap();
        drop(again);
        // What was made anew is found again; and goes with the table.
        let again = Database::open(config(&folder)).unwrap();
        assert_eq!(images(&again) as usize, again.storage.as_ref().unwrap().delta_files());
        assert_eq!(rows(&again, "t"), expected);
        let mut transaction = again.begin().unwrap();
        transaction.drop_table("t").unwrap();
        transaction.commit().unwrap();
        while again.tablespaces().far().bytes(Purpose::Delta) > 0 {
            again.vacuum();
        }
    }
}

#[test]
fn memory_is_held_for_a_restart_no_longer_than_of_use() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("first");
    std::fs::create_dir(&folder).unwrap();
    let database = with_tables(&folder);
    let full = main_bytes(&database);
    // A merge's old row group goes at the next checkpoint.
    insert_and_commit(&database, "t", ROWS..ROWS + 10);
    let mut transaction = database.begin().unwrap();
    let changed: Vec<RowId> = (0..10).map(|position| RowId::new(0, position)).collect();
    assert!(matches!(transaction.delete("t", &changed).unwrap(), Changed::Rows(_)));
    transaction.commit().unwrap();
    database.merge("t").unwrap();
    while main_bytes(&database) > full + full / 8 {
        database.vacuum();
        database.checkpoint().unwrap();
    }
    // A tablespace that shrinks gets it at once, and what is then found is what was written since.
    let bytes = main_bytes(&database) * 2 + (8 << 20);
    database.alter_tablespace("far", &TablespaceChange::Size { bytes }, &()).unwrap();
    let expected = rows(&database, "t");
    database.halt();
    let before = killed(&folder, "before");
    database.checkpoint().unwrap();
    let after = killed(&folder, "after");
    for (folder, found) in [(before, 0), (after, 20)] {
        let again = Database::open(config(&folder)).unwrap();
        assert_eq!(restarted(&again).0, found);
        assert_eq!(rows(&again, "t"), expected);
    }
    // A table that is dropped leaves nothing.
    let mut transaction = database.begin().unwrap();
    transaction.drop_table("t").unwrap();
    transaction.commit().unwrap();
    while main_bytes(&database) > 0 {
        database.vacuum();
    }
}
