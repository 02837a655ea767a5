//! Attaching touches nothing of main, and what is touched later is as it was, or told to be damaged.

use super::following::Following;
use super::manifest_tests::{assert_same, open, write_manifest};
use super::tests::{LOAD, Place, catch_up, create};
use super::*;
use crate::ColumnSource;
use crate::catalog::relation::RelationName;
use crate::durability::tier1::placed;
use crate::follow::tests::{check, content};
use crate::tests::{columns, end, insert, insert_and_commit, placement, rows};
use crate::write::index::{INDEXED_AT_ONCE, IndexedAtOnce};
use tidepool_base::RowId;
use tidepool_pool::memory::Bytes;
use tidepool_pool::pool::Pool;
use tidepool_pool::words::{Contents, Kind, Owner};
use tidepool_table::TableDef;
use tidepool_tablespace::PoolPlace;

/// No index of a table with more rows is made, but by who looks for keys.
fn leave_indexes_empty() {
    INDEXED_AT_ONCE.set(Some(IndexedAtOnce { rows: 64, leaves_others: true }));
}

/// By table, for each column, how many of its segments are open.
fn open_segments(database: &Database, name: &str) -> Vec<usize> {
    let table = database.version().table(name).unwrap();
    let count = |column: usize| table.row_groups.iter().filter(|group| group.segments()[column].is_open()).count();
    (0..table.def.columns.len()).map(count).collect()
}

fn load(database: &Arc<Database>, name: &str, count: usize) {
    for part in 0..count {
        insert_and_commit(database, name, part * LOAD..(part + 1) * LOAD);
    }
}

/// Where hosts that attach find a segment.
pub(super) fn place_of(database: &Database, name: &str, group: usize, column: usize) -> PoolPlace {
    let table = database.version().table(name).unwrap();
    let places = database.roles.as_ref().unwrap().places().places(&table.row_groups[group]).unwrap();
    placed(&places).unwrap()[column].at.clone()
}

/// One bit of what is at a place turns.
pub(super) fn damage(place: &Place, at: &PoolPlace, offset: usize) {
    let pool = Pool::open(&place.location()).unwrap();
    let (offset, mut word) = (at.offset as usize + offset, [0; 8]);
    assert!(pool.books().memory.read_bytes(at.extents[0], offset, &mut word));
    word[3] ^= 16;
    assert!(pool.books().memory.write_bytes(at.extents[0], offset, &word));
}

fn insert_error(database: &Arc<Database>, name: &str, number: usize) -> Option<Error> {
    let mut transaction = database.begin().unwrap();
    insert(&mut transaction, name, number..number + 1).and_then(|_| transaction.commit()).err()
}

#[test]
fn attaching_opens_nothing_of_main_however_much_there_is() {
    leave_indexes_empty();
    let place = Place::new();
    let mut parts = 0;
    for more in [1, 4, 15] {
        let database = open(&place, "writer", PoolRole::Primary);
        if parts == 0 {
            create(&database, "t");
        }
        for part in parts..parts + more {
            insert_and_commit(&database, "t", part * LOAD..(part + 1) * LOAD);
        }
        parts += more;
        write_manifest(&database);
        // What the log has behind the manifest is applied, and touches nothing else.
        insert_and_commit(&database, "t", 1_000_000 + parts..1_000_001 + parts);
        let expected = content(&database.version());
        end(database);

        let database = open(&place, "next", PoolRole::Primary);
        assert_eq!(database.version().table("t").unwrap().row_groups.len(), parts);
        assert_eq!(open_segments(&database, "t"), [0, 0]);
        let standby = open(&place, "standby", PoolRole::Standby);
        catch_up(&database, &standby);
        assert_eq!(open_segments(&standby, "t"), [0, 0]);
        assert!(standby.promote(Duration::from_secs(60)).unwrap());
        assert_eq!(open_segments(&standby, "t"), [0, 0]);
        let _ = database.close();
        drop(database);
        // A manifest names what was never touched.
        assert!(write_manifest(&standby));
        assert_eq!(open_segments(&standby, "t"), [0, 0]);
        // A key is looked for in its column alone.
        assert_eq!(insert_error(&standby, "t", 5).unwrap().code(), SqlState::UNIQUE_VIOLATION);
        assert_eq!(open_segments(&standby, "t"), [parts, 0]);
        assert_same(&content(&standby.version()), &expected, "what the standby took over");
        assert_eq!(open_segments(&standby, "t"), [parts, parts]);
        check(&standby);
        end(standby);
    }
    place.checked();
}

/// Tables of which nothing was touched are merged, changed, moved and dropped; manifests keep what of them is still needed, and
/// give the rest back.
/// Who attaches is said to follow once it has applied what there is, and is no bytes behind then, although its manifest had all of it.
#[test]
fn who_attached_to_all_there_is_is_not_behind() {
    let place = Place::new();
    let primary = open(&place, "writer", PoolRole::Primary);
    primary.halt();
    create(&primary, "t");
    insert_and_commit(&primary, "t", 0..50);
    write_manifest(&primary);
    let standby = place.config("standby", PoolRole::Standby);
    let host = PoolHost::join(&standby).unwrap().unwrap();
    let (standby, mut following) = Following::attach(standby, &host, None).unwrap();
    standby.halt();
    assert_eq!(primary.standbys().iter().map(|standby| standby.is_following).collect::<Vec<_>>(), [false]);
    let trial = |lag_max| SwitchoverOptions { lag_max, is_trial: true, ..SwitchoverOptions::default() };
    let refused = primary.switch_over("standby", &trial(u64::MAX)).unwrap_err();
    assert_eq!(refused.message(), "host \"standby\" has not caught up with the log yet");
    while following.read(&standby).unwrap() {}
    assert_eq!(primary.switch_over("standby", &trial(0)).unwrap().lag_bytes, 0);
    let shown = primary.standbys();
    assert_eq!((shown[0].is_following, shown[0].replayed), (true, primary.written_lsn()));
    assert_eq!(rows(&standby, "t"), rows(&primary, "t"));
    end(standby);
    end(primary);
}

#[test]
fn what_was_never_touched_is_kept_merged_changed_and_dropped() {
    let place = Place::new();
    let database = open(&place, "writer", PoolRole::Primary);
    for name in ["kept", "merged", "changed", "moved", "dropped"] {
        // An index would look at keys.
        let mut transaction = database.begin().unwrap();
        transaction.create_table(name, columns(), Vec::new(), placement("near")).unwrap();
        transaction.commit().unwrap();
        load(&database, name, 3);
    }
    write_manifest(&database);
    end(database);

    let database = open(&place, "next", PoolRole::Primary);
    let kept = place_of(&database, "kept", 2, 1);
    let mut transaction = database.begin().unwrap();
    transaction.delete("merged", &(0..100).map(|row| RowId::new(1, row * 3)).collect::<Vec<_>>()).unwrap();
    transaction.commit().unwrap();
    insert_and_commit(&database, "merged", 900_000..903_000);
    assert!(database.merge("merged").unwrap() > 0);
    let mut transaction = database.begin().unwrap();
    transaction.drop_table("dropped").unwrap();
    transaction.set_tablespace("moved", None, "far").unwrap();
    // Its row groups are others then, of the same segments.
    let def = TableDef::clone(&database.version().table("changed").unwrap().def);
    let sources = [ColumnSource::Kept(0), ColumnSource::Kept(1)];
    transaction.rewrite_table(&RelationName::from("changed"), def, &sources, &[], &|_| Ok(Vec::new())).unwrap();
    transaction.commit().unwrap();
    assert_eq!([open_segments(&database, "kept"), open_segments(&database, "changed")], [[0, 0], [0, 0]]);
    let changed = place_of(&database, "changed", 1, 1);
    // Often enough for all that is unnamed to go.
    for round in 0..4 {
        insert_and_commit(&database, "kept", 950_000 + round..950_001 + round);
        database.vacuum();
        write_manifest(&database);
    }
    assert_eq!(open_segments(&database, "kept"), [0, 0]);
    assert_eq!(place_of(&database, "kept", 2, 1), kept, "it is where it was");
    let limbo = database.pool_limbo().unwrap().unwrap();
    assert!(!limbo.contains(&kept.extents[0]) && !limbo.contains(&changed.extents[0]));
    let expected = content(&database.version());
    end(database);
    let database = open(&place, "last", PoolRole::Primary);
    assert_same(&content(&database.version()), &expected, "after a restart");
    check(&database);
    database.close().unwrap();
    drop(database);
    place.checked();
}

/// What is damaged is told when it is wanted, and to nobody else. So is damage of a segment's head, which attaching used to look at.
#[test]
fn damage_is_told_to_who_touches_it() {
    leave_indexes_empty();
    let place = Place::new();
    let database = open(&place, "writer", PoolRole::Primary);
    create(&database, "t");
    create(&database, "other");
    load(&database, "t", 3);
    load(&database, "other", 1);
    write_manifest(&database);
    let other = rows(&database, "other");
    // Its head, what is behind that, and the key's.
    let (head, body, key) =
        (place_of(&database, "t", 1, 1), place_of(&database, "t", 2, 1), place_of(&database, "t", 0, 0));
    end(database);
    damage(&place, &head, 32);
    damage(&place, &body, 4096);
    let database = open(&place, "next", PoolRole::Primary);
    let read = |database: &Arc<Database>, group: usize, column: usize| {
        let table = database.version().table("t").unwrap();
        let group = &table.row_groups[group];
        let id = group.id().0;
        group.segments()[column].decode(0..group.rows()).map(drop).map_err(|error| (error, id))
    };
    for _ in 0..2 {
        for group in [1, 2] {
            let (error, id) = read(&database, group, 1).unwrap_err();
            assert_eq!(error.code(), SqlState::DATA_CORRUPTED);
            assert_eq!(error.message(), format!("column 2 of row group {id} is damaged in the pool"));
        }
        assert!((0..3).all(|group| read(&database, group, 0).is_ok()) && read(&database, 0, 1).is_ok());
    }
    // Estimates do without, and say that they are none.
    assert!(!database.version().table("t").unwrap().statistics().exact);
    assert_eq!(insert_error(&database, "t", 900_000), None);
    assert_eq!(rows(&database, "other"), other);
    // A manifest still names what is damaged: it may be read elsewhere.
    assert!(write_manifest(&database));
    end(database);

    damage(&place, &key, 40);
    let database = open(&place, "last", PoolRole::Primary);
    let error = insert_error(&database, "t", 900_001).unwrap();
    assert_eq!(error.code(), SqlState::DATA_CORRUPTED, "nobody knows whether the key is there: {error}");
    assert_eq!(insert_error(&database, "other", 900_001), None);
    end(database);
}

/// What a manifest names has to be the database's by the pool's books.
#[test]
fn a_manifest_that_names_what_the_pool_gave_away_is_damaged() {
    let place = Place::new();
    let database = open(&place, "writer", PoolRole::Primary);
    create(&database, "t");
    load(&database, "t", 2);
    write_manifest(&database);
    let extent = place_of(&database, "t", 1, 0).extents[0];
    end(database);
    let pool = Pool::open(&place.location()).unwrap();
    let owner = pool.books().layout.owner(extent);
    let before = pool.told(pool.books().load(owner)).unwrap();
    assert_eq!(before.kind(), Some(Kind::Main));
    pool.told(pool.books().store(owner, Owner::Free { holds: Contents::Unknown })).unwrap();
    let config = |name: &str| place.config(name, PoolRole::Primary);
    let error = Database::open(config("next")).unwrap_err();
    assert_eq!(error.code(), SqlState::DATA_CORRUPTED, "{error}");
    assert!(error.message().contains(&format!("extent {}", extent.0)), "{error}");
    pool.told(pool.books().store(owner, before)).unwrap();
    let database = Database::open(config("last")).unwrap();
    check(&database);
    end(database);
}
