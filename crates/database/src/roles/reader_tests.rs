//! Readers of a database that lives in a pool: they show what its primary commits, through every change of role, and nobody waits
//! for them.

use super::manifest_tests::{assert_same, generation_held, member, open, write_manifest};
use super::tests::{LOAD, Place, WAIT, catch_up, create};
use super::*;
use crate::config::PoolRole;
use crate::follow::tests::{check, content};
use crate::stress::for_seeds;
use crate::tests::{end, insert, insert_and_commit, rows};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::atomic::{AtomicBool, AtomicUsize};

fn open_reader(place: &Place, name: &str) -> Arc<Database> {
    place.open(name, PoolRole::Reader)
}

#[test]
fn readers_show_what_is_committed_and_refuse_to_write() {
    let place = Place::new();
    let refused = Database::open(place.config("early", PoolRole::Reader)).unwrap_err();
    assert_eq!(refused.code(), SqlState::INVALID_CATALOG_NAME, "a reader makes no database");
    let primary = place.open("one", PoolRole::Auto);
    create(&primary, "t");
    insert_and_commit(&primary, "t", 0..LOAD);
    let (first, second) = (open_reader(&place, "r1"), open_reader(&place, "r2"));
    assert!(first.is_reader() && !primary.is_reader());
    assert_eq!(first.role(), HostRole::Following);
    for round in 0..10 {
        let start = 100_000 + round * 10;
        insert_and_commit(&primary, "t", start..start + 10);
        for reader in [&first, &second] {
            catch_up(&primary, reader);
            assert_eq!(rows(reader, "t"), rows(&primary, "t"));
        }
    }
    let mut transaction = first.begin().unwrap();
    assert_eq!(insert(&mut transaction, "t", 1..2).unwrap_err().code(), SqlState::READ_ONLY_SQL_TRANSACTION);
    drop(transaction);
    let refused = first.promote(WAIT).unwrap_err();
    assert_eq!(refused.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    let refused = primary
        .switch_over("r1", &SwitchoverOptions { lag_max: u64::MAX, ..SwitchoverOptions::default() })
        .unwrap_err();
    assert_eq!(refused.message(), "host \"r1\" is a reader, and cannot become primary");
    first.close().unwrap();
    drop(first);
    assert_eq!(primary.standbys().len(), 1);
    insert_and_commit(&primary, "t", 200_000..200_010);
    catch_up(&primary, &second);
    check(&second);
    second.close().unwrap();
    drop(second);
    primary.close().unwrap();
    drop(primary);
    place.checked();
}

/// Readers see each new primary, and are never one.
#[test]
fn readers_follow_from_term_to_term() {
    let place = Place::new();
    let mut primary = place.open("host-0", PoolRole::Auto);
    create(&primary, "t");
    let readers = [open_reader(&place, "r1"), open_reader(&place, "r2")];
    let mut expected = 0;
    for round in 1..5 {
        let next = place.open(&format!("host-{round}"), PoolRole::Standby);
        insert_and_commit(&primary, "t", round * 1000..round * 1000 + 20);
        expected += 20;
        primary.merge("t").unwrap();
        assert!(next.promote(WAIT).unwrap());
        insert_and_commit(&next, "t", round * 1000 + 500..round * 1000 + 505);
        expected += 5;
        let _ = primary.close();
        primary = next;
        for reader in &readers {
            catch_up(&primary, reader);
            assert_eq!(rows(reader, "t").len(), expected, "round {round}");
            assert_eq!(rows(reader, "t"), rows(&primary, "t"));
            assert_eq!(reader.role(), HostRole::Following);
        }
    }
    // The last primary ends, and nobody takes over.
    primary.close().unwrap();
    drop(primary);
    for reader in &readers {
        assert_eq!(reader.wait_role(HostRole::Following, Duration::from_millis(200)), HostRole::Following);
        assert_eq!(rows(reader, "t").len(), expected);
    }
    // One that comes while there is no primary shows the same.
    let late = open_reader(&place, "r3");
    assert_eq!(rows(&late, "t").len(), expected);
    let primary = place.open("host-9", PoolRole::Auto);
    insert_and_commit(&primary, "t", 9000..9001);
    for reader in readers.iter().chain([&late]) {
        catch_up(&primary, reader);
        assert_eq!(rows(reader, "t").len(), expected + 1);
        check(reader);
    }
    readers.into_iter().chain([late]).for_each(end);
    primary.close().unwrap();
    drop(primary);
    place.checked();
}

/// A primary that writes, loads, merges and changes what exists, with manifests at any moment, under readers that come and go.
fn any_way(seed: u64, rounds: usize) {
    let place = Place::of(1 << 30);
    let mut random = StdRng::seed_from_u64(seed);
    let primary = open(&place, "first", PoolRole::Auto);
    work::create_tables(&primary);
    let next = AtomicUsize::new(1000);
    let mut stays: Option<Arc<Database>> = None;
    for round in 0..rounds {
        let done = AtomicBool::new(false);
        let came = std::thread::scope(|scope| {
            let (database, next, done) = (&primary, &next, &done);
            work::start(scope, database, next, done, seed << 8 | round as u64);
            let mut came = None;
            for step in 0..random.random_range(2..5) {
                write_manifest(database);
                if step == 1 {
                    came = Some(open_reader(&place, &format!("reader-{round}")));
                }
                std::thread::sleep(Duration::from_millis(random.random_range(0..20)));
            }
            done.store(true, Ordering::Release);
            came
        });
        insert_and_commit(&primary, "ticks", round..round + 1);
        let expected = content(&primary.version());
        for reader in stays.iter().chain(&came) {
            catch_up(&primary, reader);
            assert_same(&content(&reader.version()), &expected, &format!("seed {seed}, round {round}: a reader"));
            check(reader);
        }
        match came {
            Some(came) if random.random() => {
                if let Some(before) = stays.replace(came) {
                    end(before);
                }
            }
            Some(came) => came.close().unwrap(),
            None => {}
        }
    }
    stays.into_iter().for_each(end);
    primary.close().unwrap();
    drop(primary);
    place.checked();
}

#[test]
fn a_reader_has_what_its_primary_has_whichever_way_it_comes_to_that() {
    for_seeds(1, |seed| any_way(seed, 4));
}

/// A statement at a reader neither holds back what the primary frees of its own, nor is it ended by that.
#[test]
fn a_long_statement_at_a_reader_holds_its_mains_and_nothing_else() {
    let place = Place::new();
    let primary = open(&place, "one", PoolRole::Primary);
    create(&primary, "t");
    insert_and_commit(&primary, "t", 0..3000);
    assert!(primary.merge("t").unwrap() > 0);
    write_manifest(&primary);
    let reader = open_reader(&place, "reader");
    let held = reader.version();
    let seen = content(&held);
    let before = primary.transactions().advance_horizon();
    for round in 1..12 {
        insert_and_commit(&primary, "t", round * 3000..round * 3000 + 300);
        assert!(primary.merge("t").unwrap() > 0, "round {round}");
        primary.vacuum();
        write_manifest(&primary);
    }
    assert!(primary.transactions().advance_horizon() > before, "the primary's horizon is its own");
    assert!(content(&held) == seen, "the statement shows what it showed");
    let limbo = primary.pool_limbo().unwrap().unwrap().len();
    assert!(limbo > 2, "{limbo}");
    drop(held);
    catch_up(&primary, &reader);
    assert_eq!(rows(&reader, "t"), rows(&primary, "t"));
    // It goes, and so does what it held.
    end(reader);
    let settled = Instant::now() + WAIT;
    let mut number = 900_000;
    while primary.pool_limbo().unwrap().unwrap().len() + 2 > limbo {
        assert!(Instant::now() < settled, "{} extents of {limbo}", primary.pool_limbo().unwrap().unwrap().len());
        insert_and_commit(&primary, "t", number..number + 1);
        number += 1;
        write_manifest(&primary);
    }
    primary.close().unwrap();
    drop(primary);
    place.checked();
}

/// As `tidepool.read_after` has statements do.
fn wait_until_shown(reader: &Arc<Database>, position: crate::Lsn) {
    let (told, shown) = std::sync::mpsc::channel();
    let _wait = reader.when_shown(position, move |outcome| told.send(outcome).unwrap());
    shown.recv_timeout(WAIT).expect("it is shown, or not").unwrap();
    assert!(reader.shows(position));
}

#[test]
fn what_was_written_at_the_primary_is_read_after_its_position() {
    let place = Place::new();
    let primary = place.open("one", PoolRole::Auto);
    create(&primary, "t");
    let readers = [open_reader(&place, "r1"), open_reader(&place, "r2")];
    assert!(primary.shows(crate::Lsn(u64::MAX)), "who writes the log shows all of it");
    // Nothing is written behind it, so that the log does not say by itself that it is complete.
    for number in 0..40 {
        insert_and_commit(&primary, "t", number..number + 1);
        let position = primary.written_lsn();
        for reader in &readers {
            wait_until_shown(reader, position);
            assert_eq!(rows(reader, "t").len(), number + 1);
        }
    }
    // One that attaches to a manifest shows what that has.
    write_manifest(&primary);
    let position = primary.written_lsn();
    let late = open_reader(&place, "r3");
    wait_until_shown(&late, position);
    assert_eq!(rows(&late, "t").len(), 40);
    // What is not there yet is waited for until it is; whoever gives up, or is told that the server ends, is told once.
    let far = crate::Lsn(position.0 + (1 << 40));
    drop(late.when_shown(far, |_| unreachable!("it does not wait any more")));
    let (told, shown) = std::sync::mpsc::channel();
    let wait = late.when_shown(far, move |outcome| told.send(outcome).unwrap());
    assert!(shown.try_recv().is_err());
    late.close().unwrap();
    assert_eq!(shown.recv_timeout(WAIT).unwrap().unwrap_err().code(), SqlState::ADMIN_SHUTDOWN);
    drop(wait);
    readers.into_iter().chain([late]).for_each(end);
    primary.close().unwrap();
    drop(primary);
    place.checked();
}

/// Delta and indexes of tables in a tablespace over the pool lie in extents that the primary grants.
#[test]
fn a_reader_has_rows_in_memory_of_the_pool_that_it_is_granted() {
    let place = Place::new();
    let primary = place.open("one", PoolRole::Auto);
    let mut transaction = primary.begin().unwrap();
    transaction.create_table("f", crate::tests::columns(), vec![0], crate::tests::placement("far")).unwrap();
    transaction.commit().unwrap();
    insert_and_commit(&primary, "f", 0..5000);
    let reader = open_reader(&place, "r1");
    catch_up(&primary, &reader);
    assert_eq!(rows(&reader, "f"), rows(&primary, "f"));
    let far = reader.tablespaces().get("far").unwrap();
    assert!(!far.leases().is_empty(), "it leases");
    // It goes on under another primary.
    let next = place.open("two", PoolRole::Standby);
    assert!(next.promote(WAIT).unwrap());
    let _ = primary.close();
    drop(primary);
    insert_and_commit(&next, "f", 10_000..60_000);
    catch_up(&next, &reader);
    assert_eq!(rows(&reader, "f").len(), 55_000);
    check(&reader);
    drop(far);
    reader.close().unwrap();
    drop(reader);
    next.close().unwrap();
    drop(next);
    place.checked();
}

#[test]
fn a_reader_that_holds_too_much_is_sent_away() {
    let place = Place::new();
    let mut config = place.config("one", PoolRole::Primary);
    if let Some(pool) = &mut config.pool {
        (pool.reader_hold_max, pool.host_timeout) = (Some(12 << 20), Duration::from_millis(100));
        pool.tier1_interval = Duration::from_secs(3600);
    }
    let primary = Database::open(config).unwrap();
    create(&primary, "t");
    insert_and_commit(&primary, "t", 0..3000);
    assert!(primary.merge("t").unwrap() > 0);
    write_manifest(&primary);
    let (reader, other) = (open_reader(&place, "r1"), open_reader(&place, "r2"));
    let held = reader.version();
    let told = Arc::new(Mutex::new(Vec::new()));
    let of_watch = Arc::clone(&told);
    reader.watch_role(Box::new(move |role| of_watch.lock().push(role)));
    let end_of_wait = Instant::now() + WAIT;
    let (mut round, mut ticks) = (1, 1_000_000);
    while reader.role() == HostRole::Following {
        assert!(Instant::now() < end_of_wait, "{:?}", primary.host_holds());
        insert_and_commit(&primary, "t", round * 3000..round * 3000 + 300);
        primary.merge("t").unwrap();
        primary.vacuum();
        write_manifest(&primary);
        // Time goes on for the other one, which adopts the main and then lets the one before go, however late.
        let generation = u64::from(member(&primary).root().unwrap().generation.0);
        while generation_held(&other) < generation {
            assert!(Instant::now() < end_of_wait, "{} of {generation}", generation_held(&other));
            ticks += 1;
            insert_and_commit(&primary, "t", ticks..ticks + 1);
            catch_up(&primary, &other);
            other.vacuum();
            std::thread::sleep(Duration::from_millis(20));
        }
        round += 1;
    }
    assert_eq!(reader.wait_role(HostRole::Following, WAIT), HostRole::Fenced);
    let mut transaction = reader.begin().unwrap();
    assert_eq!(transaction.begin_statement().map(drop).unwrap_err().code(), SqlState::CRASH_SHUTDOWN);
    drop(transaction);
    assert_eq!(other.role(), HostRole::Following);
    // It is dead once it has ended, and then nothing is kept for it.
    drop(held);
    end(reader);
    let is_gone = |database: &Database| database.standbys().iter().all(|host| host.name != "r1");
    while !is_gone(&primary) || primary.host_holds().unwrap().is_some_and(|holds| holds.len() > 1) {
        assert!(Instant::now() < end_of_wait);
        std::thread::yield_now();
    }
    end(other);
    primary.close().unwrap();
    drop(primary);
    place.checked();
}
