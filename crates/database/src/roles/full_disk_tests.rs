//! A second tier whose disk is full: what the pool has goes on, what needs the disk is refused, and all of it is in the folder once
//! there is room.

use super::manifest_tests::{assert_same, write_manifest};
use super::tests::{Place, WAIT, create};
use super::tier2_tests::{LOAD, copied, lose};
use super::*;
use crate::follow::tests::{check, content};
use crate::stress::with_files;
use crate::tests::{end, insert, insert_and_commit, rows};
use std::io;
use std::path::Path;
use tidepool_log::files::{Files, OpenHow, StoredFile, SystemFiles};

/// A disk that has no room for what is new while it is full. What is there can be read, written over and removed.
#[derive(Clone, Debug, Default)]
struct Disk {
    is_full: Arc<AtomicBool>,
    /// So often something was refused.
    refused: Arc<AtomicU64>,
}

#[derive(Debug)]
struct DiskFile {
    file: Arc<dyn StoredFile>,
    disk: Disk,
}

impl Disk {
    fn fill(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Release);
    }

    fn room(&self) -> io::Result<()> {
        if !self.is_full.load(Ordering::Acquire) {
            return Ok(());
        }
        self.refused.fetch_add(1, Ordering::Relaxed);
        Err(io::Error::from_raw_os_error(28))
    }

    fn file(&self, file: io::Result<Arc<dyn StoredFile>>) -> io::Result<Arc<dyn StoredFile>> {
        Ok(Arc::new(DiskFile { file: file?, disk: self.clone() }))
    }
}

impl Files for Disk {
    fn create(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn StoredFile>> {
        self.room()?;
        self.file(SystemFiles.create(path, how))
    }

    fn open(&self, path: &Path, how: OpenHow) -> io::Result<Arc<dyn StoredFile>> {
        self.file(SystemFiles.open(path, how))
    }

    fn rename(&self, source: &Path, target: &Path) -> io::Result<()> {
        SystemFiles.rename(source, target)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        SystemFiles.remove(path)
    }

    fn create_folder(&self, path: &Path) -> io::Result<()> {
        if !path.is_dir() {
            self.room()?;
        }
        SystemFiles.create_folder(path)
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        SystemFiles.sync_folder(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        SystemFiles.list(path)
    }
}

impl StoredFile for DiskFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        if len > self.file.len()? {
            self.disk.room()?;
        }
        self.file.allocate(len)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, bytes)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        if offset + bytes.len() as u64 > self.file.len()? {
            self.disk.room()?;
        }
        self.file.write_at(offset, bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

fn open(place: &Place, name: &str, disk: &Disk) -> Arc<Database> {
    let mut config = place.config(name, PoolRole::Auto);
    config.data_dir = Some(place.folder("data"));
    if let Some(pool) = &mut config.pool {
        pool.tier1_interval = Duration::from_secs(3600);
    }
    with_files(Arc::new(disk.clone()), || Database::open(config).unwrap())
}

/// Rows for so many segments of the pool's log that the copy needs room for another file.
fn fill_segments(database: &Arc<Database>, first: usize) -> usize {
    let begun = database.log_position().unwrap().segment();
    let mut next = first;
    while database.log_position().unwrap().segment() < begun + 2 {
        insert_and_commit(database, "t", next..next + 2000);
        next += 2000;
    }
    next
}

/// The copy fails, and says why.
fn fails(database: &Database) {
    let until = Instant::now() + WAIT;
    loop {
        let tier = database.second_tier().unwrap();
        if let Some(failure) = &tier.failure {
            assert_eq!(failure.code(), SqlState::DISK_FULL, "{failure}");
            return;
        }
        assert!(Instant::now() < until, "{tier:?}");
        std::thread::yield_now();
    }
}

/// The copy goes on by itself.
fn goes_on(database: &Arc<Database>) {
    let until = Instant::now() + WAIT;
    while database.second_tier().unwrap().failure.is_some() {
        assert!(Instant::now() < until, "{:?}", database.second_tier());
        std::thread::yield_now();
    }
    copied(database);
}

fn code<T>(result: Result<T>) -> Option<SqlState> {
    result.err().map(|error| error.code())
}

#[test]
fn commits_go_on_while_the_disk_is_full_and_are_copied_when_there_is_room() {
    let (place, disk) = (Place::new(), Disk::default());
    let database = open(&place, "one", &disk);
    create(&database, "t");
    create(&database, "loads");
    insert_and_commit(&database, "t", 0..100);
    database.checkpoint().unwrap();
    copied(&database);
    let before = database.second_tier().unwrap();

    disk.fill(true);
    let next = fill_segments(&database, 1000);
    fails(&database);
    // The pool's word counts, for those that wait on a thread and without one.
    insert_and_commit(&database, "t", next..next + 10);
    let (told, waits) = std::sync::mpsc::channel();
    let ts = database.version().view().ts();
    database.when_durable(ts, move |outcome| told.send(outcome).unwrap());
    waits.recv().unwrap().unwrap();
    let tier = database.second_tier().unwrap();
    assert!(
        tier.copied < database.log_position().unwrap() && tier.copied_ts < ts && tier.checkpoint == before.checkpoint
    );
    // What is in files first is refused, whole.
    let mut load = database.begin().unwrap();
    let loaded = insert(&mut load, "loads", 0..LOAD).and_then(|_| load.commit());
    assert_eq!(code(loaded), Some(SqlState::DISK_FULL));
    assert!(rows(&database, "loads").is_empty());
    assert_eq!(code(database.checkpoint()), Some(SqlState::DISK_FULL));
    // By whichever thread: merges go on.
    database.merge("t").unwrap();
    assert!(!database.version().table("t").unwrap().row_groups.is_empty());
    assert!(disk.refused.load(Ordering::Relaxed) > 2);
    let expected = content(&database.version());

    // A host that dies then loses nothing, and one that starts then serves.
    end(database);
    let database = open(&place, "two", &disk);
    assert_eq!(database.role(), HostRole::Primary);
    assert_same(&content(&database.version()), &expected, "after a start beside a full disk");
    let next = fill_segments(&database, next + 10_000);
    fails(&database);
    insert_and_commit(&database, "t", next..next + 10);

    disk.fill(false);
    goes_on(&database);
    insert_and_commit(&database, "loads", 0..LOAD);
    insert_and_commit(&database, "t", next + 10..next + 20);
    copied(&database);
    let database = lose_the_pool(database, &place, &disk);
    database.checkpoint().unwrap();
    database.close().unwrap();
    drop(database);
    place.checked();
}

/// Ends a host with its pool. The next has all of it from the folder alone.
fn lose_the_pool(database: Arc<Database>, place: &Place, disk: &Disk) -> Arc<Database> {
    let expected = content(&database.version());
    end(database);
    lose(place);
    let database = open(place, "three", disk);
    assert_same(&content(&database.version()), &expected, "from the folder alone");
    check(&database);
    database
}

/// The folder is new, so there is no file of the copy yet.
#[test]
fn a_second_tier_that_cannot_begin_is_begun_when_there_is_room() {
    let (place, disk) = (Place::new(), Disk::default());
    end(open(&place, "one", &disk));
    std::fs::remove_dir_all(place.folder("data")).unwrap();
    std::fs::create_dir_all(place.folder("data/rows")).unwrap();
    disk.fill(true);
    let database = open(&place, "two", &disk);
    assert_eq!(database.role(), HostRole::Primary);
    create(&database, "t");
    fails(&database);
    assert!(!database.second_tier().unwrap().is_complete);
    // Manifests cover the log, which stays for the copy all the same.
    let mut next = 0;
    for _ in 0..3 {
        next = fill_segments(&database, next);
        write_manifest(&database);
    }
    // There is no checkpoint that could be refused.
    database.checkpoint().unwrap();
    disk.fill(false);
    let until = Instant::now() + WAIT;
    while database.second_tier().unwrap().failure.is_some() {
        assert!(Instant::now() < until, "{:?}", database.second_tier());
        std::thread::yield_now();
    }
    database.checkpoint().unwrap();
    insert_and_commit(&database, "t", next..next + 100);
    copied(&database);
    let database = lose_the_pool(database, &place, &disk);
    database.close().unwrap();
}
