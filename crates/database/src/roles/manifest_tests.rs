//! Restarts and standbys from manifests: contents are what they were, wherever they come from, and room goes back.

use super::tests::{Place, WAIT, catch_up, create, sequence};
use super::*;
use crate::durability::tier1::FoundManifest;
use crate::follow::tests::{Content, check, content};
use crate::stress::for_seeds;
use crate::tests::{batch_of, columns, end, insert, insert_and_commit, placement, rows};
use crate::write::index::{INDEXED_AT_ONCE, IndexedAtOnce};
use crate::{CurrentTransaction, TransactionFate};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use tidepool_base::RowId;
use tidepool_pool::check::usage;
use tidepool_pool::layout::HostNumber;
use tidepool_pool::member::Member;
use tidepool_pool::memory::Bytes;
use tidepool_pool::pool::Pool;
use tidepool_pool::words::Extent;

/// Manifests are written when the test says so.
pub(super) fn open(place: &Place, name: &str, role: PoolRole) -> Arc<Database> {
    let mut config = place.config(name, role);
    if let Some(pool) = &mut config.pool {
        pool.tier1_interval = Duration::from_secs(3600);
    }
    Database::open(config).unwrap()
}

pub(super) fn write_manifest(database: &Database) -> bool {
    let checkpoints = Arc::clone(database.roles.as_ref().unwrap().checkpoints().unwrap());
    checkpoints.write(database).unwrap().is_some()
}

pub(super) fn member(database: &Database) -> Arc<Member> {
    Arc::clone(database.roles.as_ref().unwrap().host().member())
}

/// The oldest generation whose main and images the host may still read.
pub(super) fn generation_held(database: &Database) -> u64 {
    let member = member(database);
    let (pool, slot) = (member.pool(), member.host().slot);
    pool.told(pool.books().load(pool.layout().host_number(slot, HostNumber::GenHeld))).unwrap().0
}

/// Extents by what the books say of them.
fn count(place: &Place, what: impl Fn(&str, &str) -> bool) -> u64 {
    let pool = Pool::open(&place.location()).unwrap();
    let all = usage(&pool).unwrap().into_iter();
    all.filter(|((state, kind, _), _)| what(state, kind)).map(|(_, count)| count).sum()
}

#[test]
fn a_restart_attaches_to_what_the_manifest_names() {
    let place = Place::new();
    let database = open(&place, "one", PoolRole::Primary);
    create(&database, "t");
    create(&database, "empty");
    let mut transaction = database.begin().unwrap();
    transaction.create_sequence(sequence("s", &database)).unwrap();
    transaction.commit().unwrap();
    let of = |database: &Arc<Database>| {
        let sequence = database.state().catalog.sequences.values().next().unwrap().clone();
        database.next_values(&sequence, 1, false).unwrap()[0]
    };
    insert_and_commit(&database, "t", 0..3000);
    assert!(database.merge("t").unwrap() > 0);
    database.vacuum();
    // Rows of main that are gone, and some that are in versions.
    let mut transaction = database.begin().unwrap();
    transaction.delete("t", &(0..100).map(|row| RowId::new(0, row * 3)).collect::<Vec<_>>()).unwrap();
    insert(&mut transaction, "t", 3000..3700).unwrap();
    transaction.commit().unwrap();
    let given = of(&database);
    assert!(write_manifest(&database));
    assert!(!write_manifest(&database), "nothing has changed");
    // The log has these alone.
    insert_and_commit(&database, "t", 4000..4100);
    let before = rows(&database, "t");
    assert_eq!(before.len(), 3700);
    end(database);

    let database = open(&place, "two", PoolRole::Primary);
    let table = database.version().table("t").unwrap();
    assert_eq!(table.row_groups.len(), 1, "main is where it was");
    assert!(table.row_groups[0].segments().iter().all(|segment| segment.tablespace().is_leased()));
    drop(table);
    assert_eq!(rows(&database, "t"), before);
    assert_eq!(rows(&database, "empty").len(), 0);
    assert!(of(&database) > given);
    check(&database);
    // It goes on as any: what was attached is merged, and named again.
    insert_and_commit(&database, "t", 5000..5100);
    database.merge("t").unwrap();
    let before = rows(&database, "t");
    assert!(write_manifest(&database));
    database.close().unwrap();
    drop(database);
    let database = open(&place, "three", PoolRole::Primary);
    assert_eq!(rows(&database, "t"), before);
    check(&database);
    database.close().unwrap();
    drop(database);
    place.checked();
}

/// Ids of transactions, through manifests, a log that lacks what these have, and hosts that attach.
#[test]
fn ids_say_what_became_of_their_transactions_at_hosts_that_attach() {
    let place = Place::new();
    let mut database = open(&place, "one", PoolRole::Primary);
    create(&database, "t");
    let mut known = Vec::new();
    for round in 0..4 {
        for (commits, writes) in [(true, true), (false, true), (true, false)] {
            let current = Arc::new(CurrentTransaction::default());
            let mut transaction = database.begin().unwrap();
            transaction.set_current(Arc::clone(&current));
            let id = current.assign_id(&database).unwrap();
            assert_eq!(current.assign_id(&database).unwrap(), id);
            assert_eq!(database.transaction_fate(id).unwrap(), Some(TransactionFate::InProgress));
            if writes {
                let row = known.len();
                insert(&mut transaction, "t", row..row + 1).unwrap();
            }
            if commits {
                transaction.commit().unwrap();
            } else {
                drop(transaction);
            }
            assert_eq!(current.assigned_id(), None);
            known.push((id, if commits { TransactionFate::Committed } else { TransactionFate::Aborted }));
            if round != 1 {
                write_manifest(&database);
            }
        }
        end(database);
        database = open(&place, &format!("host{round}"), PoolRole::Primary);
        for (id, fate) in &known {
            assert_eq!(database.transaction_fate(*id).unwrap(), Some(*fate), "{id} in round {round}");
        }
    }
    let mut ids: Vec<u64> = known.iter().map(|(id, _)| *id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), known.len());
    database.close().unwrap();
}

pub(super) fn assert_same(found: &Content, expected: &Content, when: &str) {
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{when}");
    for (name, rows) in expected {
        let differs = found[name].iter().filter(|row| rows.binary_search(row).is_err());
        let lacks = rows.iter().filter(|row| found[name].binary_search(row).is_err());
        let (differs, lacks) = (differs.collect::<Vec<_>>(), lacks.collect::<Vec<_>>());
        assert!(found[name] == *rows, "{when}: table {name} lacks {lacks:?} and has {differs:?}");
    }
}

/// Every way to a state: a primary that writes, merges and changes what exists, hosts that attach and follow beside it, and
/// restarts, with manifests between any two of these.
fn any_way(seed: u64, rounds: usize) {
    // Of a manifest every few milliseconds, as these are, a standby that lags behind holds many.
    let place = Place::of(1 << 30);
    let mut random = StdRng::seed_from_u64(seed);
    let mut primary = open(&place, "first", PoolRole::Auto);
    work::create_tables(&primary);
    let next = AtomicUsize::new(1000);
    for round in 0..rounds {
        let done = AtomicBool::new(false);
        let standby = std::thread::scope(|scope| {
            let (database, next, done) = (&primary, &next, &done);
            work::start(scope, database, next, done, seed << 8 | round as u64);
            let mut standby = None;
            for step in 0..random.random_range(2..6) {
                write_manifest(database);
                if step == 1 {
                    standby = Some(open(&place, &format!("standby-{round}"), PoolRole::Standby));
                }
                std::thread::sleep(Duration::from_millis(random.random_range(0..20)));
            }
            done.store(true, Ordering::Release);
            standby
        });
        let name = format!("host-{round}");
        // Durable, and so is all before it.
        insert_and_commit(&primary, "ticks", round..round + 1);
        let expected = content(&primary.version());
        if let Some(standby) = standby {
            catch_up(&primary, &standby);
            assert_same(&content(&standby.version()), &expected, &format!("seed {seed}, round {round}: the standby"));
            check(&standby);
            let failover = random.random_range(0..3) == 0;
            if failover {
                assert!(standby.promote(Duration::from_secs(60)).unwrap());
                let _ = primary.close();
                primary = standby;
            } else {
                end(standby);
            }
        }
        assert_same(&content(&primary.version()), &expected, &format!("seed {seed}, round {round}: after a fail-over"));
        if random.random() {
            end(primary);
        } else {
            primary.close().unwrap();
            drop(primary);
        }
        primary = open(&place, &name, PoolRole::Auto);
        assert_eq!(primary.role(), HostRole::Primary);
        assert_same(&content(&primary.version()), &expected, &format!("seed {seed}, round {round}: after a restart"));
        check(&primary);
    }
    primary.close().unwrap();
    drop(primary);
    place.checked();
}

#[test]
fn whichever_way_a_host_comes_to_a_state_it_is_the_same() {
    for_seeds(1, |seed| any_way(seed, 5));
}

/// Also while indexes are filled that it found without.
#[test]
fn whichever_way_a_host_comes_to_a_state_its_indexes_are_the_same() {
    INDEXED_AT_ONCE.set(Some(IndexedAtOnce { rows: 64, leaves_others: false }));
    for_seeds(1, |seed| any_way(seed, 5));
}

/// A standby that starts from a manifest has indexes before it takes over, and whoever writes then waits for none.
#[test]
fn a_standby_takes_over_with_the_indexes_that_it_has() {
    let place = Place::new();
    let primary = open(&place, "one", PoolRole::Primary);
    create(&primary, "t");
    insert_and_commit(&primary, "t", 0..3000);
    assert!(primary.merge("t").unwrap() > 0);
    assert!(write_manifest(&primary));
    insert_and_commit(&primary, "t", 3000..3100);
    let index = |database: &Arc<Database>| {
        let version = database.version();
        let table = version.table("t").unwrap();
        let index = table.table().indexes().first().cloned();
        index.map(|index| (index.is_complete_for(table.view()), index))
    };
    let code_of = |database: &Arc<Database>, numbers: std::ops::Range<usize>| {
        let mut transaction = database.begin().unwrap();
        insert(&mut transaction, "t", numbers).and_then(|_| transaction.commit()).map_err(|error| error.code()).err()
    };
    // As of a large table, whose index nobody fills while this looks.
    INDEXED_AT_ONCE.set(Some(IndexedAtOnce { rows: 64, leaves_others: true }));
    let standby = open(&place, "two", PoolRole::Standby);
    catch_up(&primary, &standby);
    let (was_complete, before) = index(&standby).expect("it has its index");
    assert!(!was_complete);
    assert!(standby.promote(Duration::from_secs(60)).unwrap());
    let (is_complete, after) = index(&standby).unwrap();
    assert!(after.is_kept_by(&before) && !is_complete, "it is not made anew");
    for number in [0, 2999, 3050] {
        assert_eq!(code_of(&standby, number..number + 1), Some(SqlState::UNIQUE_VIOLATION), "{number}");
    }
    assert_eq!(code_of(&standby, 5000..5001), None);
    drop((before, after));
    let _ = primary.close();
    drop(primary);

    // And one that has had the time has all of it.
    INDEXED_AT_ONCE.set(Some(IndexedAtOnce { rows: 64, leaves_others: false }));
    write_manifest(&standby);
    let next = open(&place, "three", PoolRole::Standby);
    catch_up(&standby, &next);
    let end = Instant::now() + WAIT;
    while !index(&next).unwrap().0 {
        assert!(Instant::now() < end);
        std::thread::yield_now();
    }
    assert!(next.promote(Duration::from_secs(60)).unwrap());
    assert!(index(&next).unwrap().0);
    assert_eq!(code_of(&next, 5000..5001), Some(SqlState::UNIQUE_VIOLATION));
    check(&next);
    let _ = standby.close();
    drop(standby);
    next.close().unwrap();
    drop(next);
    place.checked();
}

/// Whatever is replaced goes back: main, images, manifests and the log. Not while a host holds it.
#[test]
fn what_no_manifest_names_goes_back_to_the_pool() {
    let place = Place::new();
    let primary = open(&place, "one", PoolRole::Primary);
    create(&primary, "t");
    let round = |number: usize| {
        insert_and_commit(&primary, "t", number * 300..number * 300 + 300);
        primary.merge("t").unwrap();
        primary.vacuum();
        insert_and_commit(&primary, "t", 1_000_000 + number * 300..1_000_000 + number * 300 + 300);
        write_manifest(&primary);
    };
    (0..6).for_each(&round);
    let is_its = |state: &str, kind: &str| matches!(state, "shared" | "filling" | "log") || kind == "log";
    let settled = count(&place, is_its);
    (6..30).for_each(&round);
    assert!(count(&place, is_its) <= settled + 2, "{} extents after {settled}", count(&place, is_its));
    // A host that attached to an older one, and a statement there, keep what they may read.
    let standby = open(&place, "two", PoolRole::Standby);
    let held = standby.version();
    let seen = content(&held);
    catch_up(&primary, &standby);
    (30..38).for_each(&round);
    let grown = count(&place, is_its);
    assert!(grown > settled + 4, "{grown} extents after {settled}");
    assert!(primary.pool_limbo().unwrap().unwrap().len() as u64 + settled + 6 > grown);
    assert_eq!(standby.pool_limbo().unwrap(), None);
    assert!(content(&held) == seen);
    drop(held);
    // Once nobody does, all of it goes back.
    let of_primary = member(&primary);
    let held = || generation_held(&standby);
    let end_of_wait = Instant::now() + Duration::from_secs(60);
    while held() < u64::from(of_primary.root().unwrap().generation.0) {
        assert!(Instant::now() < end_of_wait, "the standby holds generation {}", held());
        // As the thread that writes them does all the time.
        write_manifest(&primary);
        standby.vacuum();
        std::thread::yield_now();
    }
    drop(of_primary);
    while count(&place, is_its) > settled + 6 {
        assert!(Instant::now() < end_of_wait, "{} extents after {settled}", count(&place, is_its));
        write_manifest(&primary);
        standby.vacuum();
        std::thread::yield_now();
    }
    catch_up(&primary, &standby);
    assert_eq!(rows(&standby, "t"), rows(&primary, "t"));
    end(standby);
    primary.close().unwrap();
    drop(primary);
    place.checked();
}

/// A standby that takes over while a main of its predecessor's waits to take the place of an older one, for whoever looks at a
/// version.
fn taking_over_with_a_main_to_adopt(
    place: &Place,
    manifests_before: usize,
) -> (Arc<Database>, Arc<Database>, Arc<crate::DatabaseVersion>) {
    let old = open(place, "old", PoolRole::Primary);
    create(&old, "t");
    insert_and_commit(&old, "t", 0..3000);
    assert!(old.merge("t").unwrap() > 0);
    write_manifest(&old);
    let next = open(place, "next", PoolRole::Standby);
    catch_up(&old, &next);
    let reader = next.version();
    change_and_commit(&old);
    assert!(old.merge("t").unwrap() > 0);
    old.vacuum();
    // The record of the merge is durable with this.
    insert_and_commit(&old, "t", 3900..3901);
    for round in 0..manifests_before {
        insert_and_commit(&old, "t", 4000 + 10 * round..4001 + 10 * round);
        assert!(write_manifest(&old));
    }
    catch_up(&old, &next);
    assert!(next.promote(WAIT).unwrap());
    assert!(is_adopting(&next), "the main waits for the reader");
    let end_of_wait = Instant::now() + WAIT;
    while next.roles.as_ref().unwrap().checkpoints().is_none() {
        assert!(Instant::now() < end_of_wait);
        std::thread::yield_now();
    }
    (old, next, reader)
}

/// Of the first range, so that a merge makes a main of it that takes another one's place.
fn change_and_commit(database: &Arc<Database>) {
    let def = database.version().table("t").unwrap().def.clone();
    let ids: Vec<RowId> = (0..100).map(|position| RowId::new(0, position)).collect();
    let line = |row: usize| vec![Some((20_000 + row).to_string()), Some(format!("changed {row}"))];
    let changed = batch_of(&def, &(0..ids.len()).map(line).collect::<Vec<_>>());
    let mut transaction = database.begin().unwrap();
    transaction.update("t", &ids, &changed).unwrap();
    transaction.commit().unwrap();
}

fn is_adopting(database: &Database) -> bool {
    database.unfinished_merges().iter().any(|(rows, number)| rows.is_adopting(*number))
}

fn group_of(database: &Database) -> tidepool_base::RowGroupId {
    database.version().table("t").unwrap().row_groups[0].id()
}

/// A manifest names the main that a primary has. One that takes its place later, though a predecessor made it, is told to those
/// who began with that manifest: otherwise they would go on with what goes back to the pool.
#[test]
fn a_host_has_the_main_that_its_primary_adopted_after_the_manifest() {
    let place = Place::new();
    let (old, next, reader) = taking_over_with_a_main_to_adopt(&place, 0);
    end(old);
    assert!(write_manifest(&next));
    let third = open(&place, "third", PoolRole::Standby);
    let before = group_of(&next);
    assert_eq!(group_of(&third), before);
    drop(reader);
    let wait = Instant::now() + WAIT;
    while is_adopting(&next) {
        assert!(Instant::now() < wait);
        next.vacuum();
    }
    let after = group_of(&next);
    assert_ne!(before, after);
    // Its extents go back now, as soon as no host holds them.
    while group_of(&third) != after {
        assert!(Instant::now() < wait, "the third host has the main before");
        let number = next_number();
        insert_and_commit(&next, "t", number..number + 1);
        third.vacuum();
        std::thread::yield_now();
    }
    assert!(third.promote(WAIT).unwrap());
    assert_eq!(rows(&third, "t").len(), rows(&next, "t").len());
    check(&third);
    end(next);
    third.close().unwrap();
    drop(third);
    place.checked();
}

fn next_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(10_000);
    NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
}

/// Who attaches passes over the records that a manifest's view covers. So the view is not drawn while a main has a record, and
/// not its place yet.
#[test]
fn a_host_has_the_main_whose_record_its_manifest_covers() {
    let place = Place::new();
    let primary = open(&place, "one", PoolRole::Primary);
    create(&primary, "t");
    insert_and_commit(&primary, "t", 0..3000);
    assert!(primary.merge("t").unwrap() > 0);
    primary.vacuum();
    change_and_commit(&primary);
    let (comes, came) = std::sync::mpsc::channel();
    let (goes_on, may_go_on) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let primary = &primary;
        scope.spawn(move || {
            tidepool_base::at_crash_points(Some(Box::new(move |name| {
                if name == "main.told" {
                    comes.send(()).unwrap();
                    may_go_on.recv().unwrap();
                }
            })));
            assert!(primary.merge("t").unwrap() > 0);
        });
        came.recv().unwrap();
        let writer = scope.spawn(|| write_manifest(primary));
        // One that does not wait for the merge is there by then.
        let end = Instant::now() + Duration::from_secs(1);
        while !writer.is_finished() && Instant::now() < end {
            std::thread::yield_now();
        }
        goes_on.send(()).unwrap();
    });
    let next = open(&place, "two", PoolRole::Standby);
    let end_of_wait = Instant::now() + WAIT;
    while group_of(&next) != group_of(&primary) {
        assert!(Instant::now() < end_of_wait, "the host has the main before");
        let number = next_number();
        insert_and_commit(&primary, "t", number..number + 1);
        next.vacuum();
        std::thread::yield_now();
    }
    end(next);
    primary.close().unwrap();
    drop(primary);
    place.checked();
}

/// A primary that is asleep has found out what no host needs but those that hold older manifests. It wakes when one of these has
/// taken over, and is still looking at that.
#[test]
fn a_primary_that_wakes_takes_nothing_from_a_successor_that_still_looks_at_it() {
    let place = Place::new();
    let (old, next, reader) = taking_over_with_a_main_to_adopt(&place, 4);
    let mapped = || {
        let spaces = next.tablespaces().list();
        let roles = next.roles.as_ref().unwrap();
        spaces.iter().chain([roles.places().space()]).flat_map(|space| space.attached_extents()).collect::<Vec<_>>()
    };
    let attached = mapped();
    assert!(write_manifest(&next) && !attached.is_empty());
    let _ = old.roles.as_ref().unwrap().checkpoints().unwrap().write(&old);
    let owners = attached.iter().map(|extent| member(&next).owner(*extent).unwrap());
    let stays = |owner: tidepool_pool::words::Owner| owner.kind() == Some(tidepool_pool::words::Kind::Main);
    assert!(owners.into_iter().all(stays), "what the successor looks at went back");
    assert_eq!(rows(&next, "t").len(), 3005);
    // Once it looks at nothing of that, it holds what it has itself.
    let held = || generation_held(&next);
    let generation = || u64::from(member(&next).root().unwrap().generation.0);
    assert!(held() < generation());
    drop(reader);
    let wait = Instant::now() + WAIT;
    while held() < generation() {
        assert!(Instant::now() < wait, "{} of {}", held(), generation());
        next.vacuum();
        let number = next_number();
        insert_and_commit(&next, "t", number..number + 1);
        write_manifest(&next);
    }
    end(old);
    check(&next);
    next.close().unwrap();
    drop(next);
    place.checked();
}

/// A manifest of which a bit was lost is told apart; the one before takes its place, with more of the log.
#[test]
fn a_damaged_manifest_gives_way_to_the_one_before() {
    let place = Place::new();
    let database = open(&place, "one", PoolRole::Primary);
    create(&database, "t");
    insert_and_commit(&database, "t", 0..500);
    database.merge("t").unwrap();
    write_manifest(&database);
    insert_and_commit(&database, "t", 500..700);
    database.merge("t").unwrap();
    write_manifest(&database);
    insert_and_commit(&database, "t", 700..800);
    write_manifest(&database);
    let before = rows(&database, "t");
    let root = member(&database).root().unwrap();
    end(database);
    let damage = |extent: Extent, at: usize| {
        let pool = Pool::open(&place.location()).unwrap();
        let mut word = [0; 8];
        assert!(pool.books().memory.read_bytes(extent, at, &mut word));
        word[3] ^= 16;
        assert!(pool.books().memory.write_bytes(extent, at, &word));
    };
    damage(root.place, 304);
    let database = open(&place, "two", PoolRole::Primary);
    assert_eq!(rows(&database, "t"), before);
    check(&database);
    // The next one is whole again.
    insert_and_commit(&database, "t", 900..910);
    assert!(write_manifest(&database));
    let before = rows(&database, "t");
    end(database);
    let database = open(&place, "three", PoolRole::Primary);
    assert_eq!(rows(&database, "t"), before);
    let found = FoundManifest::in_force(&member(&database)).unwrap().unwrap();
    assert!(!found.is_before);
    end(database);
    // With all of them damaged it is told.
    let pool = Pool::open(&place.location()).unwrap();
    let all: Vec<Extent> = pool.layout().all_extents().collect();
    let is_manifest = |extent: &Extent| {
        let owner = pool.told(pool.books().load(pool.layout().owner(*extent))).unwrap();
        owner.kind() == Some(tidepool_pool::words::Kind::Manifest)
    };
    let manifests: Vec<Extent> = all.into_iter().filter(is_manifest).collect();
    assert!(manifests.len() >= 2);
    drop(pool);
    manifests.into_iter().for_each(|extent| damage(extent, 16));
    let error = Database::open(place.config("four", PoolRole::Primary)).unwrap_err();
    assert_eq!(error.code(), SqlState::DATA_CORRUPTED, "{error}");
    assert!(error.message().contains("manifest"), "{error}");
    assert!(error.hint().is_some());
}

/// What attaching takes by the size of main, for `docs`: `cargo test --release -p tidepool-database --lib attaching_by -- --ignored
/// --nocapture`.
#[test]
#[ignore = "a measurement"]
fn attaching_by_the_size_of_main() {
    let place = Place::of(8 << 30);
    let mut loaded = 0;
    for ranges in [30, 300, 3000] {
        let database = open(&place, "writer", PoolRole::Primary);
        if loaded == 0 {
            let mut transaction = database.begin().unwrap();
            transaction.create_table("t", columns(), Vec::new(), placement("near")).unwrap();
            transaction.commit().unwrap();
        }
        while loaded < ranges {
            let mut transaction = database.begin().unwrap();
            let rows = crate::write::writer::SHORT_ROW_GROUP_ROWS + 50;
            insert(&mut transaction, "t", loaded * rows..(loaded + 1) * rows).unwrap();
            transaction.commit().unwrap();
            loaded += 1;
        }
        let begun = Instant::now();
        write_manifest(&database);
        println!("{ranges} ranges: a manifest is written in {:?}", begun.elapsed());
        end(database);
        for _ in 0..3 {
            let begun = Instant::now();
            let database = open(&place, "reader", PoolRole::Standby);
            let attached = begun.elapsed();
            let version = database.version();
            let table = version.table("t").unwrap();
            let segments: usize = table.row_groups.iter().map(|group| group.segments().len()).sum();
            println!("{segments} segments: a standby is open after {attached:?}, {} rows", table.main_rows());
            drop((version, table));
            end(database);
        }
    }
}

/// What a restart takes of a table with a primary key, by its rows: until it answers, and until a row can be written.
#[test]
#[ignore = "a measurement"]
fn restarting_with_a_key_by_rows() {
    let place = Place::of(8 << 30);
    let mut loaded = 0;
    for millions in [1, 6] {
        let database = open(&place, "writer", PoolRole::Primary);
        if loaded == 0 {
            create(&database, "t");
        }
        while loaded < millions * 1_000_000 {
            let mut transaction = database.begin().unwrap();
            insert(&mut transaction, "t", loaded..loaded + 100_000).unwrap();
            transaction.commit().unwrap();
            loaded += 100_000;
        }
        write_manifest(&database);
        end(database);
        for _ in 0..2 {
            let begun = Instant::now();
            let database = open(&place, "next", PoolRole::Primary);
            let answers = begun.elapsed();
            insert_and_commit(&database, "t", loaded..loaded + 1);
            loaded += 1;
            println!("{loaded} rows: answers after {answers:?}, writes after {:?}", begun.elapsed());
            let is_complete = || {
                let version = database.version();
                let table = version.table("t").unwrap();
                table.table().indexes()[0].is_complete_for(table.view())
            };
            while !is_complete() {
                std::thread::sleep(Duration::from_millis(1));
            }
            println!("{loaded} rows: its index is complete after {:?}", begun.elapsed());
            end(database);
        }
    }
}
