//! Restarts: what the log has that no checkpoint has.

use crate::tests::{columns, database_with_table, in_folder, insert, insert_and_commit, placement, rows};
use crate::{Changed, Database};
use std::path::Path;
use std::sync::Arc;
use tidepool_base::RowId;
use tidepool_table::ROW_GROUP_ROWS;

/// Ids of the rows of `t`, in their order.
fn ids(database: &Database) -> Vec<RowId> {
    let table = database.version().table("t").unwrap();
    let all = (0..table.rows().ranges()).flat_map(|range| (0..RowId::RANGE_ROWS).map(move |at| RowId::new(range, at)));
    all.filter(|row| table.rows().read(table.view(), *row).is_some()).collect()
}

fn reopened(folder: &Path) -> Arc<Database> {
    Database::open(in_folder(folder)).unwrap()
}

fn sorted(mut rows: Vec<String>) -> Vec<String> {
    rows.sort_unstable();
    rows
}

/// Rows of all kinds, definitions, and what undoes them.
#[test]
fn all_that_was_committed_is_found_without_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let database = database_with_table(in_folder(folder.path()));
    insert_and_commit(&database, "t", 0..20_000);
    database.checkpoint().unwrap();
    // A whole row group, and some rows behind it.
    insert_and_commit(&database, "t", 20_000..20_000 + ROW_GROUP_ROWS + 7);
    let third: Vec<RowId> = ids(&database).into_iter().step_by(3).collect();
    let mut transaction = database.begin().unwrap();
    assert!(matches!(transaction.delete("t", &third).unwrap(), Changed::Rows(_)));
    transaction.commit().unwrap();
    let mut transaction = database.begin().unwrap();
    transaction.create_table("u", columns(), vec![0], placement("far")).unwrap();
    insert(&mut transaction, "u", 0..300_000).unwrap();
    transaction.commit().unwrap();
    let mut transaction = database.begin().unwrap();
    transaction.create_table("gone", columns(), vec![], placement("near")).unwrap();
    insert(&mut transaction, "gone", 0..10).unwrap();
    transaction.commit().unwrap();
    let mut transaction = database.begin().unwrap();
    transaction.drop_table("gone").unwrap();
    transaction.truncate("u").unwrap();
    insert(&mut transaction, "u", 5..9).unwrap();
    transaction.rename_table("t", "v").unwrap();
    transaction.commit().unwrap();
    let mut transaction = database.begin().unwrap();
    transaction.set_tablespace("v", None, "far").unwrap();
    transaction.commit().unwrap();
    insert_and_commit(&database, "v", 500_000..500_003);
    let mut undone = database.begin().unwrap();
    insert(&mut undone, "v", 600_000..600_003).unwrap();
    drop(undone);
    let (v, u) = (sorted(rows(&database, "v")), sorted(rows(&database, "u")));
    let all = 20_000 + ROW_GROUP_ROWS + 7;
    assert_eq!((v.len(), u.len()), (all - all.div_ceil(3) + 3, 4));
    // What moves into main is in the folder as it was.
    assert!(database.merge("v").unwrap() > 0);
    drop(database);
    for checkpoint in [false, true, false] {
        let database = reopened(folder.path());
        assert!(sorted(rows(&database, "v")) == v && sorted(rows(&database, "u")) == u);
        assert_eq!(database.version().tables.len(), 2);
        assert_eq!(database.version().table("v").unwrap().placement, placement("far"));
        if checkpoint {
            database.checkpoint().unwrap();
            assert!(!database.stats().dirty);
        }
    }
    // And it goes on.
    let database = reopened(folder.path());
    insert_and_commit(&database, "u", 9..12);
    drop(database);
    assert_eq!(rows(&reopened(folder.path()), "u").len(), 7);
}

/// Ids that were given out are not given out again, with and without a checkpoint.
#[test]
fn ids_go_on_where_they_ended() {
    let folder = tempfile::tempdir().unwrap();
    let mut last = (0, 0);
    for round in 0..4 {
        let database = match round {
            0 => database_with_table(in_folder(folder.path())),
            _ => reopened(folder.path()),
        };
        let mut transaction = database.begin().unwrap();
        let name = format!("t{round}");
        let table = transaction.create_table(&name, columns(), vec![], placement("near")).unwrap();
        transaction.commit().unwrap();
        let now = (table.def.id.0, table.rows.id().0);
        assert!(now.0 > last.0 && now.1 > last.1, "{now:?} {last:?}");
        last = now;
        if round == 1 {
            database.checkpoint().unwrap();
        }
    }
}

/// Rows that are inserted after a restart have ids of their own.
#[test]
fn rows_keep_their_ids() {
    let folder = tempfile::tempdir().unwrap();
    let database = database_with_table(in_folder(folder.path()));
    insert_and_commit(&database, "t", 0..10);
    let before = ids(&database);
    drop(database);
    for round in 0..3 {
        let database = reopened(folder.path());
        assert_eq!(ids(&database)[..10], before);
        insert_and_commit(&database, "t", 10..11);
        assert_eq!(ids(&database).len(), 11 + round);
    }
    let database = reopened(folder.path());
    assert_eq!(database.version().table("t").unwrap().rows().ranges(), 1, "restarts do not scatter rows");
}
