//! Databases that live in a pool, several of one in this process: each is a host of its own.

use super::*;
use crate::tests::{columns, insert, insert_and_commit, memory, placement, rows};
use crate::write::writer::SHORT_ROW_GROUP_ROWS;
use crate::{Config, Isolation, SequenceDef};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use tidepool_device::Location;
use tidepool_pool::check::check;
use tidepool_pool::liveness::forget;
use tidepool_pool::member::{JoinOptions, Member};
use tidepool_pool::pool::{CreateOptions, Pool};
use tidepool_pool::words::{HostState, Kind, Role};

pub(super) const WAIT: Duration = Duration::from_secs(60);

/// Rows of a transaction that make a row group of main.
pub(super) const LOAD: usize = SHORT_ROW_GROUP_ROWS + 50;

pub(super) struct Place(tempfile::TempDir);

/// One of the hosts of a pool.
pub(super) fn config_at(location: Location, name: &str, role: PoolRole, host_timeout: Duration) -> Config {
    let pool = PoolSettings {
        name: Some(name.to_owned()),
        role: Some(role),
        guards: true,
        host_timeout,
        ..PoolSettings::new(location)
    };
    let mut config = Config { pool: Some(pool), ..memory() };
    (config.far.location, config.far.size_bytes) = (Location::Pool, None);
    config
}

impl Place {
    pub fn new() -> Place {
        Place::of(1 << 30)
    }

    pub fn of(bytes: u64) -> Place {
        let shm = Path::new("/dev/shm");
        let parent = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
        let place = Place(tempfile::Builder::new().prefix("tidepool-roles-").tempdir_in(parent).unwrap());
        let options = CreateOptions {
            devices: vec![(place.location(), Some(bytes))],
            extent_bytes: None,
            bytes_max: None,
            label: String::new(),
            populates: false,
            overcommits: false,
        };
        Pool::create(&options).unwrap();
        place
    }

    pub fn location(&self) -> Location {
        Location::File(self.0.path().join("pool"))
    }

    /// A folder beside the pool's file.
    pub fn folder(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    pub fn config(&self, name: &str, role: PoolRole) -> Config {
        config_at(self.location(), name, role, Duration::from_secs(30))
    }

    /// A new file beside the pool.
    pub fn file(&self, name: &str) -> std::fs::File {
        std::fs::File::create(self.0.path().join(name)).unwrap()
    }

    /// What is in all of those.
    pub fn errors(&self) -> String {
        let files = std::fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().path());
        let files = files.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("errors"));
        files.map(|path| format!("{}: {}\n", path.display(), std::fs::read_to_string(&path).unwrap())).collect()
    }

    pub fn open(&self, name: &str, role: PoolRole) -> Arc<Database> {
        Database::open(self.config(name, role)).unwrap()
    }

    /// Nothing of the books is damaged or lost.
    pub fn checked(&self) {
        let pool = Pool::open(&self.location()).unwrap();
        let report = check(&pool, true).unwrap();
        assert!(report.faults.is_empty(), "{:?}", report.faults);
    }
}

pub(super) fn create(database: &Arc<Database>, name: &str) {
    let mut transaction = database.begin().unwrap();
    transaction.create_table(name, columns(), vec![0], placement("near")).unwrap();
    transaction.commit().unwrap();
}

/// Waits until a follower shows all that a primary has committed by now.
pub(super) fn catch_up(primary: &Database, follower: &Database) {
    let ts = primary.version().view().ts();
    let end = Instant::now() + WAIT;
    let latest = |database: &Database| database.follow_progress().unwrap();
    // What is durable is in the log by then; a floor above it comes with the next block.
    while latest(follower).replayed < primary.log_position().unwrap() {
        assert!(Instant::now() < end, "{:?} of {ts}", latest(follower));
        assert_eq!(latest(follower).failure.map(|error| error.to_string()), None);
        std::thread::yield_now();
    }
}

#[test]
fn what_a_primary_committed_is_there_after_a_restart() {
    let place = Place::new();
    let database = place.open("one", PoolRole::Primary);
    assert_eq!(database.role(), HostRole::Primary);
    create(&database, "t");
    insert_and_commit(&database, "t", 0..50);
    let before = rows(&database, "t");
    assert_eq!(before.len(), 50);
    database.close().unwrap();
    drop(database);
    for round in 0..3 {
        let database = place.open("two", PoolRole::Auto);
        assert_eq!(database.role(), HostRole::Primary);
        assert_eq!(rows(&database, "t").len(), 50 + 10 * round);
        let start = 1000 * (round + 1);
        insert_and_commit(&database, "t", start..start + 10);
        database.close().unwrap();
    }
    place.checked();
}

#[test]
fn a_standby_shows_what_its_primary_commits_and_refuses_to_write() {
    let place = Place::new();
    let primary = place.open("one", PoolRole::Auto);
    create(&primary, "t");
    let standby = place.open("two", PoolRole::Auto);
    assert_eq!((primary.role(), standby.role()), (HostRole::Primary, HostRole::Following));
    assert!(standby.role().is_in_recovery());
    for round in 0..20 {
        insert_and_commit(&primary, "t", round * 10..round * 10 + 10);
        catch_up(&primary, &standby);
        assert_eq!(rows(&standby, "t"), rows(&primary, "t"));
    }
    let mut transaction = standby.begin().unwrap();
    assert_eq!(insert(&mut transaction, "t", 900..901).unwrap_err().code(), SqlState::READ_ONLY_SQL_TRANSACTION);
    drop(transaction);
    let refused = Database::open(place.config("three", PoolRole::Primary)).unwrap_err();
    assert_eq!(refused.code(), SqlState::OBJECT_IN_USE);
    assert_eq!(primary.promote(WAIT).unwrap_err().code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    standby.close().unwrap();
    primary.close().unwrap();
    place.checked();
}

#[test]
fn a_primary_that_was_taken_over_from_answers_nothing() {
    let place = Place::new();
    let old = place.open("old", PoolRole::Primary);
    create(&old, "t");
    insert_and_commit(&old, "t", 0..10);
    let next = place.open("next", PoolRole::Standby);
    // It writes in a transaction that is open when the other takes over.
    let mut open = old.begin().unwrap();
    insert(&mut open, "t", 100..110).unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let of_watch = Arc::clone(&told);
    next.watch_role(Box::new(move |role| of_watch.lock().push(role)));
    // One that reads here since before may write here after.
    let mut reader = next.begin().unwrap();
    let mut session = next.direct_session().unwrap();
    reader.begin_statement().unwrap();
    assert!(next.promote(WAIT).unwrap());
    // They are told by the thread that took over, which others may be quicker than.
    let end = Instant::now() + WAIT;
    while told.lock().len() < 3 && Instant::now() < end {
        std::thread::yield_now();
    }
    assert_eq!(*told.lock(), [HostRole::Following, HostRole::TakingOver, HostRole::Primary]);
    assert_eq!(open.commit().unwrap_err().code(), SqlState::CRASH_SHUTDOWN);
    assert_eq!(old.check_reigns().unwrap_err().code(), SqlState::CRASH_SHUTDOWN);
    let mut late = old.begin().unwrap();
    assert_eq!(late.begin_statement().unwrap_err().code(), SqlState::CRASH_SHUTDOWN);
    let mut direct = old.direct_session().unwrap();
    assert_eq!(direct.begin(Isolation::RepeatableRead).unwrap_err().code(), SqlState::CRASH_SHUTDOWN);
    drop((late, direct));
    assert_eq!(old.wait_role(HostRole::Primary, WAIT), HostRole::Fenced);
    assert_eq!(rows(&next, "t").len(), 10);
    insert(&mut reader, "t", 10..15).unwrap();
    reader.commit().unwrap();
    session.run(Isolation::Serializable, |_| Ok(())).unwrap();
    drop(session);
    // What the new primary commits is there for the next.
    old.close().unwrap_err();
    drop(old);
    next.close().unwrap();
    drop(next);
    let last = place.open("last", PoolRole::Auto);
    assert_eq!(rows(&last, "t").len(), 15);
    last.close().unwrap();
    place.checked();
}

#[test]
fn standbys_take_over_from_one_another_and_lose_nothing() {
    let place = Place::new();
    let mut primary = place.open("host-0", PoolRole::Auto);
    create(&primary, "t");
    let mut expected = 0;
    for round in 1..8 {
        let next = place.open(&format!("host-{round}"), PoolRole::Standby);
        let third = place.open(&format!("third-{round}"), PoolRole::Standby);
        insert_and_commit(&primary, "t", round * 100..round * 100 + 20);
        expected += 20;
        assert!(next.promote(WAIT).unwrap());
        assert_eq!(rows(&next, "t").len(), expected, "round {round}");
        insert_and_commit(&next, "t", round * 100 + 50..round * 100 + 55);
        expected += 5;
        // The other standby reads on where the next term begins.
        catch_up(&next, &third);
        assert_eq!(rows(&third, "t"), rows(&next, "t"));
        third.close().unwrap();
        let _ = primary.close();
        primary = next;
    }
    primary.close().unwrap();
    place.checked();
}

/// `CREATE INDEX CONCURRENTLY` in its second transaction, when its primary dies: nobody will end it.
#[test]
fn an_index_that_a_primary_was_making_is_gone_after_a_take_over() {
    use crate::{NewIndex, RelationName};
    use tidepool_table::IndexColumn;
    let place = Place::new();
    let old = place.open("old", PoolRole::Auto);
    create(&old, "t");
    insert_and_commit(&old, "t", 0..200);
    let (next, third) = (place.open("next", PoolRole::Standby), place.open("third", PoolRole::Standby));
    let new = || NewIndex {
        name: Some("by_text".to_owned()),
        columns: vec![IndexColumn::ascending(2)],
        unique: false,
        nulls_not_distinct: false,
        primary: None,
        tablespace: None,
        partition_of: None,
    };
    let make = |database: &Arc<Database>, ends: bool| {
        let begun = AtomicUsize::new(0);
        let begin = || match begun.fetch_add(1, Ordering::Relaxed) {
            1 if !ends => Err(Error::internal("killed")),
            _ => database.begin(),
        };
        database.create_index_online(begin, &RelationName::from("t"), |_| Ok(new())).map(drop)
    };
    let indexes = |database: &Database| {
        let version = database.version();
        let table = version.table("t").unwrap();
        table.def.indexes.iter().map(|index| (index.name.clone(), index.building)).collect::<Vec<_>>()
    };
    make(&old, false).unwrap_err();
    insert_and_commit(&old, "t", 200..250);
    for standby in [&next, &third] {
        catch_up(&old, standby);
        assert_eq!(indexes(standby)[1..], [("by_text".to_owned(), true)]);
    }
    assert!(next.promote(WAIT).unwrap());
    assert_eq!(indexes(&next).len(), 1, "{:?}", indexes(&next));
    // Its name is free again, and whoever follows has the new one.
    make(&next, true).unwrap();
    insert_and_commit(&next, "t", 300..350);
    catch_up(&next, &third);
    for host in [&next, &third] {
        assert_eq!(indexes(host)[1..], [("by_text".to_owned(), false)]);
        crate::follow::tests::check(host);
    }
    // And whoever has nothing but the log, or a manifest.
    old.close().unwrap_err();
    third.close().unwrap();
    next.close().unwrap();
    drop((old, next, third));
    let last = place.open("last", PoolRole::Auto);
    assert_eq!(indexes(&last)[1..], [("by_text".to_owned(), false)]);
    assert_eq!(rows(&last, "t").len(), 300);
    last.close().unwrap();
}

#[test]
fn an_auto_standby_takes_over_where_a_term_was_handed_in() {
    let place = Place::new();
    let first = place.open("one", PoolRole::Auto);
    create(&first, "t");
    insert_and_commit(&first, "t", 0..5);
    let second = place.open("two", PoolRole::Auto);
    let third = place.open("three", PoolRole::Standby);
    first.close().unwrap();
    while second.role() != HostRole::Primary {
        assert_ne!(second.wait_role(second.role(), WAIT), HostRole::Failed);
    }
    assert_eq!(third.role(), HostRole::Following);
    assert_eq!(rows(&second, "t").len(), 5);
    second.close().unwrap();
    third.close().unwrap();
}

#[test]
fn values_of_sequences_are_given_once_by_all_primaries() {
    let place = Place::new();
    let first = place.open("one", PoolRole::Auto);
    let mut transaction = first.begin().unwrap();
    transaction.create_sequence(sequence("s", &first)).unwrap();
    transaction.commit().unwrap();
    let of = |database: &Arc<Database>, count: u64| {
        let state = database.state();
        let sequence = state.catalog.sequences.values().next().unwrap().clone();
        database.next_values(&sequence, count, false)
    };
    let given = of(&first, 5).unwrap();
    let second = place.open("two", PoolRole::Standby);
    assert_eq!(of(&second, 1).unwrap_err().code(), SqlState::READ_ONLY_SQL_TRANSACTION);
    assert!(second.promote(WAIT).unwrap());
    let next = of(&second, 1).unwrap();
    assert!(next[0] > given[4], "{next:?} after {given:?}");
    // What was written ahead is durable before a value leaves: an old primary gives what it has, and not more.
    assert_eq!(of(&first, 64).unwrap_err().code(), SqlState::CRASH_SHUTDOWN);
    let _ = first.close();
    second.close().unwrap();
}

pub(super) fn sequence(name: &str, database: &Database) -> SequenceDef {
    SequenceDef {
        id: database.next_table_id(),
        schema: tidepool_base::SchemaId::PUBLIC,
        name: name.to_owned(),
        data_type: tidepool_base::SqlType::BigInt,
        start: 1,
        increment: 1,
        min: 1,
        max: i64::MAX,
        cache: 1,
        cycle: false,
        owner: None,
        position_id: database.next_table_id().0,
    }
}

/// Threads write, merge, load and change what exists, and standbys come, follow and take over meanwhile.
#[test]
fn standbys_have_what_the_primary_had_with_its_loads_merges_and_tables() {
    use crate::follow::tests as busy;
    let place = Place::new();
    let mut primary = place.open("host-0", PoolRole::Auto);
    for (name, key, space) in [("one", true, "near"), ("two", true, "far"), ("three", false, "far")] {
        busy::create_in(&primary, name, key, space);
    }
    let next = AtomicUsize::new(1000);
    for round in 1..5u64 {
        let done = AtomicBool::new(false);
        let standby = place.open(&format!("host-{round}"), PoolRole::Standby);
        std::thread::scope(|scope| {
            let (primary, next, done) = (&primary, &next, &done);
            for thread in 0..2 {
                scope.spawn(move || {
                    let mut random = StdRng::seed_from_u64(round << 8 | thread);
                    for number in 0..60 {
                        let step = match number % 12 {
                            7 if thread == 0 => busy::define(&mut random, primary, next),
                            3 => primary.merge(["one", "two", "three"][random.random_range(0..3)]).map(drop),
                            9 => {
                                let start = next.fetch_add(LOAD, Ordering::Relaxed);
                                let mut transaction = primary.begin().unwrap();
                                insert(&mut transaction, "two", start..start + LOAD).unwrap();
                                transaction.commit().map(drop)
                            }
                            _ => busy::write(&mut random, primary, next),
                        };
                        step.unwrap_or_else(|error| busy::refused_write(&error));
                    }
                    done.store(true, Ordering::Release);
                });
            }
            while !done.load(Ordering::Acquire) {
                busy::check(&standby);
            }
        });
        // Commits that did not wait are durable with one that does.
        let number = next.fetch_add(1, Ordering::Relaxed);
        insert_and_commit(&primary, "one", number..number + 1);
        catch_up(&primary, &standby);
        assert!(busy::content(&primary.version()) == busy::content(&standby.version()), "round {round}");
        assert!(standby.promote(WAIT).unwrap());
        assert!(busy::content(&primary.version()) == busy::content(&standby.version()), "round {round}");
        busy::check(&standby);
        let _ = primary.close();
        primary = standby;
    }
    let before = busy::content(&primary.version());
    primary.close().unwrap();
    drop(primary);
    let last = place.open("last", PoolRole::Auto);
    assert!(busy::content(&last.version()) == before);
    busy::check(&last);
    last.merge("two").unwrap();
    last.close().unwrap();
    place.checked();
}

#[test]
fn a_promoted_standby_loads() {
    for before in 0..3 {
        let place = Place::new();
        let first = place.open("one", PoolRole::Auto);
        crate::follow::tests::create_in(&first, "t", true, "far");
        let load = |database: &Arc<Database>, start: usize| {
            let mut transaction = database.begin().unwrap();
            insert(&mut transaction, "t", start..start + LOAD).unwrap();
            transaction.commit().unwrap();
        };
        if before == 1 {
            load(&first, 0);
        }
        let second = place.open("two", PoolRole::Standby);
        if before == 2 {
            load(&first, 0);
        }
        assert!(second.promote(WAIT).unwrap());
        load(&second, 1_000_000);
        load(&second, 2_000_000);
        assert_eq!(rows(&second, "t").len(), LOAD * (2 + usize::from(before > 0)));
        crate::follow::tests::check(&second);
        let _ = first.close();
        second.close().unwrap();
    }
}

#[test]
fn a_standby_comes_to_have_the_mains_of_a_primary_that_writes_no_more() {
    let place = Place::new();
    let primary = place.open("one", PoolRole::Auto);
    create(&primary, "t");
    let standby = place.open("two", PoolRole::Standby);
    insert_and_commit(&primary, "t", 0..500);
    assert_eq!(primary.merge("t").unwrap(), 500);
    let delta = |database: &Database| database.version().table("t").unwrap().delta_rows();
    let end = Instant::now() + WAIT;
    catch_up(&primary, &standby);
    while delta(&standby) > 0 {
        primary.tick();
        catch_up(&primary, &standby);
        standby.vacuum();
        assert!(Instant::now() < end, "{} rows are left", delta(&standby));
    }
    // It comes to rest, by whichever thread.
    (0..5).for_each(|_| primary.tick());
    let position = primary.log_position();
    (0..5).for_each(|_| primary.tick());
    assert_eq!(primary.log_position(), position);
    catch_up(&primary, &standby);
    assert!(rows(&standby, "t") == rows(&primary, "t"));
    standby.close().unwrap();
    primary.close().unwrap();
}

#[test]
fn what_a_statement_shows_is_durable() {
    let place = Place::new();
    let primary = place.open("one", PoolRole::Auto);
    create(&primary, "t");
    for number in 0..50 {
        let mut transaction = primary.begin().unwrap();
        // It does not wait, and others see it at once.
        transaction.set_synchronous(false);
        insert(&mut transaction, "t", number..number + 1).unwrap();
        let committed = transaction.commit().unwrap();
        let mut reader = primary.begin().unwrap();
        let version = reader.begin_statement().unwrap();
        assert!(version.view().ts() >= committed);
        assert!(primary.durable().unwrap() >= committed, "what is seen may be taken back");
        drop(version);
    }
    // Where nothing is to be waited for, nothing is written. (The background thread has the log say now and then that it is complete.)
    primary.halt();
    let position = primary.log_position();
    for _ in 0..50 {
        primary.begin().unwrap().begin_statement().unwrap();
    }
    assert_eq!(primary.log_position(), position);
    primary.close().unwrap();
}

/// A primary that beats no more and cannot be ended from here, as if it were on another machine. It found ten rows.
fn silent_primary(place: &Place) -> (Arc<Pool>, Member) {
    // It made the database, and had rows there.
    let database = place.open("before", PoolRole::Primary);
    create(&database, "t");
    insert_and_commit(&database, "t", 0..10);
    database.close().unwrap();
    drop(database);
    let pool = Arc::new(Pool::open(&place.location()).unwrap());
    let options = JoinOptions {
        role: Role::Primary,
        database: Some(crate::config::POOL_DATABASE_DEFAULT.to_owned()),
        beat: Duration::from_secs(3600),
        ..JoinOptions::tool("far away")
    };
    let silent = Member::join(Arc::clone(&pool), &options).unwrap();
    let taken = silent.take_over(silent.reign().unwrap()).unwrap().unwrap();
    silent.run(taken).unwrap().unwrap();
    (pool, silent)
}

fn opened_as_primary(config: Config) -> Arc<Database> {
    let database = Database::open(config).unwrap();
    while database.role() != HostRole::Primary {
        database.wait_role(database.role(), WAIT);
    }
    assert_eq!(rows(&database, "t").len(), 10);
    database
}

/// Nothing is known of it: what it owns stays its own, and everybody sees that, until an operator says that it is dead.
#[test]
fn a_primary_that_is_out_of_reach_is_suspect() {
    let place = Place::new();
    let (pool, silent) = silent_primary(&place);
    let leased = silent.lease(Kind::Heap, 3).unwrap();
    let host = silent.host();
    let next = opened_as_primary(config_at(place.location(), "next", PoolRole::Auto, Duration::from_millis(100)));
    let state = || pool.told(pool.books().load(pool.layout().ident(host.slot))).unwrap().state;
    let end = Instant::now() + WAIT;
    while state() != HostState::Suspect {
        assert!(Instant::now() < end, "it is {:?}", state());
        std::thread::yield_now();
    }
    assert_eq!(check(&pool, false).unwrap().quarantined, leased.len() as u64);
    assert_eq!(next.living_predecessor(), Some(host));
    // It wakes.
    assert!(!silent.is_current().unwrap());
    // The next one may be the first to free it.
    forget(&pool, host, true).unwrap();
    assert_eq!(check(&pool, false).unwrap().quarantined, 0);
    let end = Instant::now() + WAIT;
    while next.living_predecessor().is_some() {
        assert!(Instant::now() < end);
        std::thread::yield_now();
    }
    next.close().unwrap();
    drop((next, silent, pool));
    place.checked();
}

#[test]
fn a_command_makes_sure_of_a_primary_that_is_out_of_reach() {
    let place = Place::new();
    let (pool, silent) = silent_primary(&place);
    let reign = silent.reign().unwrap();
    let leased = silent.lease(Kind::Heap, 3).unwrap();
    let (log, dead) = (place.folder("fenced"), place.folder("is-dead"));
    let mut config = config_at(place.location(), "next", PoolRole::Auto, Duration::from_millis(100));
    config.pool.as_mut().unwrap().fence_command = Some(format!(
        "echo \"$TIDEPOOL_HOST_NAME $TIDEPOOL_HOST_SLOT $TIDEPOOL_HOST_INCARNATION\" >> '{}'; test -e '{}'",
        log.display(),
        dead.display()
    ));
    let next = opened_as_primary(config);
    let runs = || std::fs::read_to_string(&log).unwrap_or_default();
    let wait_for = |what: &dyn Fn() -> bool| {
        let end = Instant::now() + WAIT;
        while !what() {
            assert!(Instant::now() < end, "{}", runs());
            std::thread::yield_now();
        }
    };
    // It fails: what the other owns stays its own.
    wait_for(&|| !runs().is_empty());
    let host = silent.host();
    assert_eq!(runs().lines().next(), Some(&*format!("far away {} {}", host.slot.0, host.incarnation.0)));
    assert_eq!(next.living_predecessor(), Some(host));
    let owner = |extent| pool.told(pool.books().load(pool.layout().owner(extent))).unwrap();
    assert!(leased.iter().all(|extent| owner(*extent).writer() == Some(host)));
    // It is run again, and succeeds: that is free.
    std::fs::write(&dead, "").unwrap();
    wait_for(&|| next.living_predecessor().is_none());
    assert!(leased.iter().all(|extent| owner(*extent).writer() != Some(host)));
    assert!(runs().lines().count() >= 2, "{}", runs());
    assert!(!silent.is_current().unwrap() && pool.told(pool.books().reign(silent.database())).unwrap() != reign);
    next.close().unwrap();
    drop((next, silent, pool));
    place.checked();
}
