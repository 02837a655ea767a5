//! Recovery to a moment: what comes of a backup and an archive is what there was, whole, at random moments, before and after
//! restarts and take-overs; what is missing is named, and then there is no folder.

use super::manifest_tests::assert_same;
use super::tests::{Place, WAIT, catch_up, sequence};
use super::*;
use crate::follow::tests::{Content, check, content, create_in, define, refused_write, write};
use crate::stress::for_seeds;
use crate::tests::{end, in_folder, insert_and_commit, rows};
use crate::{Config, Lsn, RecoveryTarget, recover_to, remove_archive_before};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;

fn nobody() -> Result<()> {
    Ok(())
}

/// As the database was.
struct Moment {
    us: u64,
    lsn: Lsn,
    content: Content,
    /// A value that the sequence had given.
    given: i64,
}

fn now_us() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros() as u64
}

fn draw(database: &Database) -> i64 {
    let sequence = database.state().catalog.sequences.values().next().unwrap().clone();
    database.next_values(&sequence, 1, false).unwrap()[0]
}

fn create_all(database: &Arc<Database>) {
    for (name, key) in [("one", true), ("two", true), ("three", false)] {
        create_in(database, name, key, "near");
    }
    let mut transaction = database.begin().unwrap();
    transaction.create_sequence(sequence("s", database)).unwrap();
    transaction.commit().unwrap();
}

/// Nothing is committed after this, until a microsecond has passed.
fn moment(database: &Arc<Database>, given: i64) -> Moment {
    let version = database.version();
    database.log.get().unwrap().wait_durable(version.view().ts(), || Ok(())).unwrap();
    let us = now_us();
    while now_us() < us + 2 {
        std::thread::yield_now();
    }
    Moment { us: us + 1, lsn: database.written_lsn(), content: content(&version), given }
}

fn work(random: &mut StdRng, database: &Arc<Database>, next: &AtomicUsize) {
    for _ in 0..random.random_range(1..6) {
        match random.random_range(0..12) {
            0 => define(random, database, next).unwrap_or_else(|error| refused_write(&error)),
            1 => drop(database.merge(["one", "two", "three"][random.random_range(0..3)]).unwrap()),
            2 => database.checkpoint().unwrap(),
            _ => write(random, database, next).unwrap_or_else(|error| refused_write(&error)),
        }
    }
}

fn check_recovery(backup: &Path, archive: &Path, to: &Path, moment: &Moment, target: RecoveryTarget, when: &str) {
    let recovered = recover_to(backup, archive, &in_folder(to), &[], target, &nobody);
    recovered.unwrap_or_else(|error| panic!("{when}: {error} {:?}", error.detail()));
    let database = Database::open(in_folder(to)).unwrap();
    assert_same(&content(&database.version()), &moment.content, when);
    check(&database);
    assert!(draw(&database) > moment.given, "{when}: a value of a sequence comes again");
    // It goes on, by itself.
    insert_and_commit(&database, "three", 5_000_000..5_000_010);
    database.close().unwrap();
    drop(database);
    std::fs::remove_dir_all(to).unwrap();
}

/// Moments of these, each from a backup before it, by time or by place in the log.
fn check_moments(
    random: &mut StdRng,
    place: &Path,
    archive: &Path,
    backups: &[(usize, PathBuf)],
    moments: &[Moment],
    count: usize,
) {
    for _ in 0..count {
        let at = random.random_range(0..moments.len() - 1);
        let earlier: Vec<_> = backups.iter().filter(|(taken, _)| *taken <= at).collect();
        let Some((_, backup)) = earlier.get(random.random_range(0..earlier.len().max(1))) else { continue };
        let moment = &moments[at];
        let target = match random.random_range(0..2) {
            0 => RecoveryTarget::Time { us: moment.us, inclusive: random.random() },
            _ => RecoveryTarget::Lsn { lsn: moment.lsn, inclusive: true },
        };
        check_recovery(
            backup,
            archive,
            &place.join("new"),
            moment,
            target,
            &format!("{at} of {}, from {}: {target:?}", moments.len(), backup.display()),
        );
    }
}

fn archiving(mut config: Config, archive: &Path) -> Config {
    config.log.archive = Some(archive.to_owned());
    config.log.archive_timeout = Duration::from_millis(10);
    (config.log.segment_bytes, config.log.bytes_max) = (128 << 10, 1 << 20);
    config
}

fn alone(seed: u64) {
    let folder = tempfile::tempdir().unwrap();
    let (archive, data) = (folder.path().join("archive"), folder.path().join("data"));
    let config = archiving(in_folder(&data), &archive);
    let (mut random, next) = (StdRng::seed_from_u64(seed), AtomicUsize::new(1000));
    let mut database = Database::open(config.clone()).unwrap();
    create_all(&database);
    let (mut backups, mut moments, mut given) = (Vec::new(), Vec::new(), 0);
    for round in 0..24 {
        if round % 9 == 0 {
            let to = folder.path().join(format!("backup{round}"));
            database.backup(&to, &nobody).unwrap();
            backups.push((moments.len(), to));
        }
        work(&mut random, &database, &next);
        if random.random_range(0..3) == 0 {
            given = draw(&database);
        }
        moments.push(moment(&database, given));
        match random.random_range(0..12) {
            0 => database.close().unwrap(),
            1 => {}
            _ => continue,
        }
        end(database);
        database = Database::open(config.clone()).unwrap();
    }
    database.close().unwrap();
    assert_eq!(database.archiver().unwrap().log.failures, 0);
    drop(database);
    assert!(!data.join("unarchived").exists() || std::fs::read_dir(data.join("unarchived")).unwrap().next().is_none());
    check_moments(&mut random, folder.path(), &archive, &backups, &moments, 6);
    let (last, new) = (moments.last().unwrap(), folder.path().join("new"));
    for (_, backup) in &backups {
        check_recovery(backup, &archive, &new, last, RecoveryTarget::End, "all");
    }
    // What the last backup does not need goes.
    let (taken, backup) = backups.last().unwrap();
    remove_archive_before(backup, &archive).unwrap();
    check_recovery(
        backup,
        &archive,
        &new,
        &moments[*taken],
        RecoveryTarget::Lsn { lsn: moments[*taken].lsn, inclusive: true },
        "last",
    );
    check_recovery(backup, &archive, &new, last, RecoveryTarget::End, "all of the last");
}

#[test]
fn a_database_is_recovered_to_any_moment() {
    for_seeds(2, alone);
}

#[test]
fn a_recovery_that_cannot_be_whole_is_refused_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let archive = at("archive");
    let config = archiving(in_folder(&at("data")), &archive);
    let database = Database::open(in_folder(&at("data"))).unwrap();
    create_all(&database);
    database.backup(&at("plain"), &nobody).unwrap();
    database.close().unwrap();
    drop(database);
    let config = Config { log: crate::config::LogSettings { segment_bytes: 16 << 20, ..config.log.clone() }, ..config };
    let database = Database::open(config.clone()).unwrap();
    database.backup(&at("backup"), &nobody).unwrap();
    insert_and_commit(&database, "three", 0..crate::write::writer::SHORT_ROW_GROUP_ROWS + 50);
    let before = moment(&database, 0);
    insert_and_commit(&database, "three", 400_000..400_010);
    let last = moment(&database, 0);
    let identity = database.storage.as_ref().unwrap().log_home().unwrap().identity.to_string();
    database.close().unwrap();
    drop(database);
    let refused = |backup: &str, target: RecoveryTarget| {
        let error = recover_to(&at(backup), &archive, &in_folder(&at("new")), &[], target, &nobody).unwrap_err();
        assert!(!at("new").join("MANIFEST").exists());
        error
    };
    assert_eq!(refused("plain", RecoveryTarget::End).code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    let error = refused("backup", RecoveryTarget::Time { us: last.us + 1_000_000_000, inclusive: true });
    assert_eq!(error.message(), "recovery ended before configured recovery target was reached");
    refused("backup", RecoveryTarget::Lsn { lsn: Lsn(last.lsn.0 + 64), inclusive: true });
    // A load's file.
    let rows_folder = archive.join(&identity).join("rows");
    let file = std::fs::read_dir(&rows_folder).unwrap().next().unwrap().unwrap().path();
    let bytes = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let error = refused("backup", RecoveryTarget::End);
    assert!(error.code() == SqlState::DATA_CORRUPTED && error.message().contains("is missing"), "{error}");
    let mut damaged = bytes.clone();
    damaged[bytes.len() / 2] ^= 1;
    std::fs::write(&file, damaged).unwrap();
    let error = refused("backup", RecoveryTarget::End);
    assert!(error.code() == SqlState::DATA_CORRUPTED && error.message().contains("is damaged"), "{error}");
    std::fs::write(&file, bytes).unwrap();
    // The log.
    let segment = std::fs::read_dir(archive.join(&identity)).unwrap().map(|entry| entry.unwrap().path());
    let segment = segment.filter(|path| path.extension().is_some_and(|ext| ext == "log")).max().unwrap();
    let bytes = std::fs::read(&segment).unwrap();
    std::fs::remove_file(&segment).unwrap();
    let error = refused("backup", RecoveryTarget::End);
    assert!(error.message().contains("archive"), "{error}");
    std::fs::write(&segment, &bytes[..bytes.len() - 100]).unwrap();
    let error = refused("backup", RecoveryTarget::End);
    assert!(error.code() == SqlState::DATA_CORRUPTED && error.message().contains("is damaged"), "{error}");
    std::fs::write(&segment, &bytes).unwrap();
    let target = RecoveryTarget::Time { us: before.us, inclusive: true };
    check_recovery(&at("backup"), &archive, &at("new"), &before, target, "before");
    // A backup that was served is another database.
    Database::open(in_folder(&at("backup"))).unwrap().close().unwrap();
    assert_eq!(refused("backup", RecoveryTarget::End).code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
}

fn in_pool(seed: u64) {
    let place = Place::new();
    let archive = place.folder("archive");
    let open = |name: &str, role: PoolRole| {
        let mut config = archiving(place.config(name, role), &archive);
        config.data_dir = Some(place.folder(&format!("data-{name}")));
        if let Some(pool) = &mut config.pool {
            pool.tier1_interval = Duration::from_millis(50);
        }
        Database::open(config).unwrap()
    };
    let (mut random, next) = (StdRng::seed_from_u64(seed), AtomicUsize::new(1000));
    let mut database = open("h0", PoolRole::Primary);
    create_all(&database);
    let (mut backups, mut moments, mut given) = (Vec::new(), Vec::new(), 0);
    for term in 1..5 {
        let standby = open(&format!("h{term}"), PoolRole::Standby);
        for round in 0..5 {
            if round == 1 && term % 2 == 1 {
                let to = place.folder(&format!("backup{term}"));
                if random.random() {
                    database.backup(&to, &nobody).unwrap();
                } else {
                    catch_up(&database, &standby);
                    standby.backup(&to, &nobody).unwrap();
                }
                backups.push((moments.len(), to));
            }
            work(&mut random, &database, &next);
            if random.random_range(0..3) == 0 {
                given = draw(&database);
            }
            moments.push(moment(&database, given));
        }
        match term % 2 {
            // It dies, with the end of its log not archived perhaps; files of loads are (see the decision's limits).
            0 => {
                let unarchived = place.folder(&format!("data-h{}", term - 1)).join("unarchived");
                let until = Instant::now() + WAIT;
                while std::fs::read_dir(&unarchived).is_ok_and(|mut files| files.next().is_some()) {
                    assert!(Instant::now() < until);
                    std::thread::yield_now();
                }
                end(database);
            }
            // It sleeps while another takes over, and wakes.
            _ => {
                let unarchived = place.folder(&format!("data-h{}", term - 1)).join("unarchived");
                let until = Instant::now() + WAIT;
                while std::fs::read_dir(&unarchived).is_ok_and(|mut files| files.next().is_some()) {
                    assert!(Instant::now() < until);
                    std::thread::yield_now();
                }
                assert!(standby.promote(WAIT).unwrap());
                let mut late = database.begin().unwrap();
                let late = crate::tests::insert(&mut late, "three", 7_000_000..7_000_010).and_then(|_| late.commit());
                assert_eq!(late.unwrap_err().code(), SqlState::CRASH_SHUTDOWN);
                end(database);
            }
        }
        if term % 2 == 0 {
            assert!(standby.promote(WAIT).unwrap());
        }
        database = standby;
    }
    work(&mut random, &database, &next);
    moments.push(moment(&database, given));
    database.close().unwrap();
    assert_eq!(database.archiver().unwrap().log.failures, 0, "{:?}", database.archiver());
    drop(database);
    let to = place.folder("out");
    std::fs::create_dir(&to).unwrap();
    check_moments(&mut random, &to, &archive, &backups, &moments, 6);
    let last = moments.last().unwrap();
    for (_, backup) in &backups {
        check_recovery(backup, &archive, &to.join("new"), last, RecoveryTarget::End, "all");
    }
    // What was recovered is brought into a pool, with an archive of its own.
    let (taken, backup) = &backups[0];
    let target = RecoveryTarget::Lsn { lsn: moments[*taken].lsn, inclusive: true };
    recover_to(backup, &archive, &in_folder(&to.join("data")), &[], target, &nobody).unwrap();
    let another = Place::new();
    let mut config = archiving(another.config("new", PoolRole::Primary), &archive);
    config.data_dir = Some(to.join("data"));
    let database = Database::open(config).unwrap();
    assert_same(&content(&database.version()), &moments[*taken].content, "in another pool");
    insert_and_commit(&database, "three", 5_000_000..5_000_010);
    database.backup(&to.join("backup"), &nobody).unwrap();
    insert_and_commit(&database, "three", 5_000_010..5_000_020);
    let expected = moment(&database, 0);
    assert!(!rows(&database, "three").is_empty());
    database.close().unwrap();
    drop(database);
    check_recovery(&to.join("backup"), &archive, &to.join("new"), &expected, RecoveryTarget::End, "of the new line");
    assert_eq!(std::fs::read_dir(&archive).unwrap().count(), 2);
}

#[test]
fn a_database_in_a_pool_is_recovered_to_any_moment_across_terms() {
    for_seeds(2, in_pool);
}

/// Files in a folder, if it is there.
fn files_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).map(|entries| entries.map(|entry| entry.unwrap().path()).collect());
    entries.unwrap_or_default()
}

/// A host dies before the archive has the file of a load. Its successor archives the log that names it. A recovery past the load is
/// refused, and says what to look for; one up to there goes well. With the file, which the dead host's folder has, all of it does.
#[test]
fn a_load_whose_host_died_before_it_was_archived_is_missed_and_found_again() {
    for returns in [false, true] {
        let place = Place::new();
        let archive = place.folder("archive");
        let open = |name: &str, role: PoolRole, timeout: Duration| {
            let mut config = archiving(place.config(name, role), &archive);
            config.data_dir = Some(place.folder(&format!("data-{name}")));
            config.log.archive_timeout = timeout;
            Database::open(config).unwrap()
        };
        let long = Duration::from_secs(3600);
        let database = open("dies", PoolRole::Primary, long);
        create_all(&database);
        // The archive begins with what there is, and goes on within the hour.
        let until = Instant::now() + WAIT;
        while database.archiver().unwrap().log.archived_at.is_none() {
            assert!(Instant::now() < until, "{:?}", database.archiver());
            std::thread::yield_now();
        }
        let backup = place.folder("backup");
        database.backup(&backup, &nobody).unwrap();
        insert_and_commit(&database, "three", 0..10);
        let before = moment(&database, 0);
        insert_and_commit(&database, "three", 1000..1000 + crate::write::writer::SHORT_ROW_GROUP_ROWS + 50);
        let unarchived = place.folder("data-dies").join("unarchived");
        assert_eq!(files_in(&unarchived).len(), 1, "the archive has it already");
        // As a kill ends it.
        end(database);
        let kept = files_in(&unarchived);
        assert_eq!(kept.len(), 1);

        let database = open("next", PoolRole::Auto, Duration::from_millis(10));
        assert_eq!(database.role(), HostRole::Primary);
        insert_and_commit(&database, "three", 500_000..500_010);
        let last = moment(&database, 0);
        let rows_folder = {
            let identity = database.roles.as_ref().unwrap().identity().to_string();
            archive.join(identity).join("rows")
        };
        let new = place.folder("new");
        if returns {
            // The host that died is back, and follows.
            let back = open("dies", PoolRole::Standby, long);
            let until = Instant::now() + WAIT;
            while !files_in(&unarchived).is_empty() {
                assert!(Instant::now() < until, "a host that is back does not archive what it kept");
                std::thread::yield_now();
            }
            back.close().unwrap();
        }
        database.close().unwrap();
        drop(database);
        let time = RecoveryTarget::Time { us: before.us, inclusive: true };
        check_recovery(&backup, &archive, &new, &before, time, "before the load");
        if !returns {
            let error = recover_to(&backup, &archive, &in_folder(&new), &[], RecoveryTarget::End, &nobody).unwrap_err();
            assert!(!new.join("MANIFEST").exists());
            let name = kept[0].file_name().unwrap().to_str().unwrap();
            assert!(error.code() == SqlState::DATA_CORRUPTED && error.message().contains(name), "{error}");
            assert!(error.hint().is_some_and(|hint| hint.contains("unarchived")), "{error:?}");
            std::fs::copy(&kept[0], rows_folder.join(name)).unwrap();
        }
        check_recovery(&backup, &archive, &new, &last, RecoveryTarget::End, "with the load's file");
    }
}
