//! Hosts beside one that fills the pool from its data folder: they have all of it, or nothing.

use super::manifest_tests::assert_same;
use super::tests::{Place, WAIT, catch_up, create};
use super::tier2_tests::open;
use super::*;
use crate::Config;
use crate::follow::tests::content;
use crate::tests::{end, in_folder, insert_and_commit, rows};

/// A folder with a database that never was in a pool.
fn fill_folder(place: &Place, name: &str) {
    let alone = Database::open(in_folder(&place.folder(name))).unwrap();
    create(&alone, "t");
    insert_and_commit(&alone, "t", 0..2000);
    alone.close().unwrap();
}

fn with_folder(place: &Place, name: &str, role: PoolRole, folder: &str) -> Config {
    Config { data_dir: Some(place.folder(folder)), ..without_manifests(place, name, role) }
}

/// Manifests are written when the test says so.
fn without_manifests(place: &Place, name: &str, role: PoolRole) -> Config {
    let mut config = place.config(name, role);
    config.pool.as_mut().unwrap().tier1_interval = Duration::from_secs(3600);
    config
}

#[test]
fn who_follows_an_empty_pool_never_goes_on_without_what_a_folder_brings() {
    let place = Place::new();
    fill_folder(&place, "data");
    let early = place.open("early", PoolRole::Standby);
    let primary = open(&place, "primary", PoolRole::Primary, "data");
    insert_and_commit(&primary, "t", 5000..5010);
    let until = Instant::now() + WAIT;
    while early.role() != HostRole::Failed {
        assert!(Instant::now() < until, "{:?}", early.follow_progress());
        assert!(early.version().table("t").is_none(), "a table that lacks its rows");
        std::thread::sleep(Duration::from_millis(1));
    }
    let failure = early.follow_progress().unwrap().failure.unwrap();
    assert_eq!(failure.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "{failure}");
    assert!(failure.to_string().contains("begins after what this host has"), "{failure}");
    assert!(!early.promote(Duration::ZERO).is_ok_and(|promoted| promoted));
    end(early);
    let late = place.open("late", PoolRole::Standby);
    catch_up(&primary, &late);
    assert_same(&content(&late.version()), &content(&primary.version()), "a standby that came later");
    end(late);
    primary.close().unwrap();
}

#[test]
fn who_comes_while_a_pool_is_filled_waits_for_all_of_it() {
    for round in 0..8 {
        let place = Place::new();
        fill_folder(&place, "data");
        let config = with_folder(&place, "primary", PoolRole::Primary, "data");
        let filling = std::thread::spawn(move || Database::open(config).unwrap());
        // At any moment of it: before it has the term, while it has no manifest, and after.
        std::thread::sleep(Duration::from_millis(round * 3));
        let opened = Database::open(place.config("standby", PoolRole::Standby));
        let primary = filling.join().unwrap();
        // Between its look for a log and its first look into it, the log may begin.
        let standby = opened.unwrap_or_else(|refused| {
            assert_eq!(refused.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "{refused}");
            place.open("standby", PoolRole::Standby)
        });
        insert_and_commit(&primary, "t", 5000..5010);
        let until = Instant::now() + WAIT;
        let latest = || standby.follow_progress().unwrap();
        while standby.role() != HostRole::Failed && latest().replayed < primary.log_position().unwrap() {
            assert!(Instant::now() < until, "{:?}", latest());
            std::thread::sleep(Duration::from_millis(1));
        }
        match standby.role() {
            HostRole::Failed => assert!(standby.version().table("t").is_none()),
            _ => assert_same(&content(&standby.version()), &content(&primary.version()), &format!("round {round}")),
        }
        end(standby);
        primary.close().unwrap();
    }
}

#[test]
fn a_folder_is_not_poured_over_another_database_that_has_no_manifest_yet() {
    let place = Place::new();
    fill_folder(&place, "data");
    let first = Database::open(without_manifests(&place, "first", PoolRole::Primary)).unwrap();
    create(&first, "other");
    insert_and_commit(&first, "other", 0..10);
    let expected = rows(&first, "other");
    end(first);
    let refused = Database::open(with_folder(&place, "second", PoolRole::Primary, "data")).unwrap_err();
    assert_eq!(refused.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "{refused}");
    assert!(refused.message().contains("not the one in the pool"), "{refused}");
    let again = Database::open(without_manifests(&place, "third", PoolRole::Primary)).unwrap();
    assert_eq!(rows(&again, "other"), expected);
    assert!(again.version().table("t").is_none());
    again.close().unwrap();
}
