//! Restarts: what the log has that no checkpoint has.

mod partitioned;

use crate::stress::for_seeds;
use crate::tests::{
    batch_of, columns, database_with_table, end, in_folder, insert, insert_and_commit, placement, rows,
};
use crate::write::writer::SHORT_ROW_GROUP_ROWS;
use crate::{Changed, Config, Database, Isolation, Transaction};
use arrow_array::RecordBatch;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use tidepool_base::{Result, RowId, SqlState};
use tidepool_log::files::{Fault, Files, Operation, SimulatedFiles};
use tidepool_table::{ROW_GROUP_ROWS, TableDef, TableVersion};

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
    end(database);
    for checkpoint in [false, true, false] {
        let database = reopened(folder.path());
        assert!(sorted(rows(&database, "v")) == v && sorted(rows(&database, "u")) == u);
        assert_eq!(database.version().tables.len(), 2);
        assert_eq!(database.version().table("v").unwrap().placement, placement("far"));
        if checkpoint {
            database.checkpoint().unwrap();
            assert!(!database.stats().dirty);
        }
        end(database);
    }
    // And it goes on.
    let database = reopened(folder.path());
    insert_and_commit(&database, "u", 9..12);
    end(database);
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
        drop(table);
        if round == 1 {
            database.checkpoint().unwrap();
        }
        end(database);
    }
}

/// Rows that are inserted after a restart have ids of their own.
#[test]
fn rows_keep_their_ids() {
    let folder = tempfile::tempdir().unwrap();
    let database = database_with_table(in_folder(folder.path()));
    insert_and_commit(&database, "t", 0..10);
    let before = ids(&database);
    end(database);
    for round in 0..3 {
        let database = reopened(folder.path());
        assert_eq!(ids(&database)[..10], before);
        insert_and_commit(&database, "t", 10..11);
        assert_eq!(ids(&database).len(), 11 + round);
        end(database);
    }
    let database = reopened(folder.path());
    assert_eq!(database.version().table("t").unwrap().rows().ranges(), 1, "restarts do not scatter rows");
}

/// A session's commit is written ahead of one of another session's that it builds upon, where its buffer is the first to be looked at.
#[test]
fn a_change_is_found_that_was_logged_before_what_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    let database = database_with_table(in_folder(folder.path()));
    let update = |transaction: &mut Transaction, row: RowId, number: usize| {
        let version = transaction.begin_statement().unwrap();
        let new = long(&version.table("t").unwrap(), number..number + 1);
        drop(version);
        assert!(matches!(transaction.update("t", &[row], &new).unwrap(), Changed::Rows(_)));
        transaction.end_statement();
    };
    let begin = || {
        let mut transaction = database.begin_at(Isolation::ReadCommitted).unwrap();
        transaction.set_synchronous(false);
        transaction
    };
    insert_and_commit(&database, "t", 0..200);
    let rows = ids(&database);
    for row in &rows {
        let mut first = begin();
        update(&mut first, *row, 1);
        first.commit().unwrap();
    }
    for (number, row) in rows.iter().enumerate() {
        let (mut one, mut other) = (begin(), begin());
        update(&mut one, *row, 10_000 + number);
        one.commit().unwrap();
        update(&mut other, *row, 20_000 + number);
        other.commit().unwrap();
        // By turns each of the two sessions is the one that builds upon the other.
        let (mut one, mut other) = (begin(), begin());
        update(&mut other, *row, 30_000 + number);
        other.commit().unwrap();
        update(&mut one, *row, 40_001 + number);
        one.commit().unwrap();
    }
    let before = content(&database);
    insert_and_commit(&database, "t", 300..301);
    end(database);
    let mut found = content(&reopened(folder.path()));
    let of_t = found.get_mut("t").unwrap();
    of_t.retain(|row| !row.contains("row 300"));
    assert!(found == before);
}

/// All tables' rows, in order; of partitioned tables their partitions.
type Content = BTreeMap<String, Vec<String>>;

fn content(database: &Database) -> Content {
    let version = database.version();
    let of = |def: &TableDef| match def.partitioning {
        Some(_) => partitioned::content(database, def),
        None => rows(database, &def.name),
    };
    version.tables.values().map(|table| (table.def.name.clone(), sorted(of(&table.def)))).collect()
}

/// Rows with texts so long that the log says of most changes of them how they differ.
fn long(table: &TableVersion, numbers: std::ops::Range<usize>) -> RecordBatch {
    let text = |number: usize| (!number.is_multiple_of(5)).then(|| format!("a row of {number:>11}"));
    let row = |number: usize| vec![Some(number.to_string()), text(number)];
    batch_of(&table.def, &numbers.map(row).collect::<Vec<_>>())
}

/// One transaction of a random history.
fn step(random: &mut StdRng, database: &Arc<Database>, next: &mut usize) -> Result<Transaction> {
    let mut transaction = database.begin()?;
    for _ in 0..random.random_range(1..4) {
        if random.random_range(0..3) == 0 {
            partitioned::step(random, &mut transaction, next)?;
            continue;
        }
        let version = transaction.version();
        let plain = version.tables.values().filter(|of| of.def.partitioning.is_none() && of.def.partition_of.is_none());
        let names: Vec<String> = plain.map(|table| table.def.name.clone()).collect();
        let name = names.get(random.random_range(0..names.len().max(1))).cloned().unwrap_or_default();
        let mut numbers = |count: usize| {
            *next += count;
            *next - count..*next
        };
        match random.random_range(0..20) {
            _ if names.is_empty() => {
                let name = format!("t{}", numbers(1).start);
                transaction.create_table(&name, columns(), vec![], placement("near"))?;
            }
            0..8 => drop(insert(&mut transaction, &name, numbers(random.random_range(1..40)))?),
            // Fewer than make a row group; and as many as do, of which the log has the name alone.
            8 => {
                let many = if random.random_range(0..3) == 0 { SHORT_ROW_GROUP_ROWS + 100 } else { 9_000 };
                insert(&mut transaction, &name, numbers(many))?;
            }
            kind @ 9..14 => {
                let version = transaction.begin_statement()?;
                let table = version.table(name.as_str()).expect("it was listed");
                let all = (0..table.rows().ranges())
                    .flat_map(|range| (0..600).map(move |position| RowId::new(range, position)))
                    .filter(|row| table.rows().read(table.view(), *row).is_some());
                let some: Vec<RowId> = all.filter(|_| random.random_range(0..10) == 0).collect();
                if kind < 12 {
                    assert!(matches!(transaction.delete(name.as_str(), &some)?, Changed::Rows(_)));
                } else {
                    let rows = long(&table, numbers(some.len()));
                    drop((version, table));
                    assert!(matches!(transaction.update(name.as_str(), &some, &rows)?, Changed::Rows(_)));
                }
            }
            14 => {
                let name = format!("t{}", numbers(1).start);
                let space = if random.random() { "near" } else { "far" };
                transaction.create_table(&name, columns(), vec![], placement(space))?;
            }
            15 => transaction.rename_table(&name, &format!("t{}", numbers(1).start))?,
            16 => transaction.set_tablespace(&name, None, if random.random() { "near" } else { "far" })?,
            17 => transaction.truncate(&name)?,
            18 if names.len() > 1 => transaction.drop_table(&name)?,
            _ => {}
        }
    }
    Ok(transaction)
}

/// Of a history of transactions, checkpoints and merges on a disk that fails, fills up, tears and forgets, a start finds all
/// that was acknowledged, and of what comes after that a part from the beginning on.
fn crashes(seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let disk = SimulatedFiles::new(seed);
    disk.create_folder("/data".as_ref()).unwrap();
    let open = || {
        let mut config = Config { threads: 1, ..in_folder("/data".as_ref()) };
        config.log.segment_bytes = 64 << 10;
        config.log.bytes_max = 512 << 10;
        Database::open_with(config, Arc::new(disk.clone()), None)
    };
    let mut next = 0;
    // What may be found, oldest first.
    let mut possible = vec![Content::new()];
    for round in 0..6 {
        let database = open().unwrap_or_else(|error| panic!("seed {seed}, round {round}: {error}"));
        let found = content(&database);
        assert!(
            possible.contains(&found),
            "seed {seed}, round {round}: {:?} is none of {:?}",
            found.iter().map(|(name, rows)| (name, rows.len())).collect::<Vec<_>>(),
            possible
                .iter()
                .map(|c| c.iter().map(|(name, rows)| (name, rows.len())).collect::<Vec<_>>())
                .collect::<Vec<_>>(),
        );
        possible = vec![found];
        if random.random_range(0..3) == 0 {
            let operations =
                [Operation::Write, Operation::Sync, Operation::Create, Operation::SyncFolder, Operation::Rename];
            disk.inject(Fault {
                operation: operations[random.random_range(0..operations.len())],
                after: random.random_range(0..60),
                times: if random.random() { 1 } else { u64::MAX },
                errno: if random.random() { 28 } else { 5 },
            });
        }
        for _ in 0..random.random_range(0..40) {
            match random.random_range(0..12) {
                0 => {
                    if database.checkpoint().is_ok() {
                        possible.drain(..possible.len() - 1);
                    }
                }
                1 => {
                    for name in content(&database).keys() {
                        database.merge(name.as_str()).unwrap();
                    }
                    assert!(Some(&content(&database)) == possible.last(), "seed {seed}: a merge changes nothing");
                }
                _ => {
                    let before = content(&database);
                    let mut transaction = step(&mut random, &database, &mut next).unwrap();
                    let synchronous = random.random_range(0..3) > 0;
                    transaction.set_synchronous(synchronous);
                    let wrote = transaction.has_changes();
                    match transaction.commit() {
                        Ok(_) => {
                            possible.push(content(&database));
                            if synchronous && wrote {
                                possible.drain(..possible.len() - 1);
                            }
                        }
                        Err(error) => {
                            let codes = [SqlState::DISK_FULL, SqlState::IO_ERROR];
                            assert!(codes.contains(&error.code()), "seed {seed}: {error}");
                            let now = content(&database);
                            // The log failed after it was decided: it may be found or not.
                            if now != before {
                                possible.push(now);
                            }
                        }
                    }
                }
            }
        }
        database.halt();
        match random.random_range(0..3) {
            0 => disk.kill(),
            _ => disk.crash(),
        }
        disk.clear_faults();
        drop(database);
    }
}

#[test]
fn what_was_acknowledged_survives_a_disk_that_fails_and_forgets() {
    for_seeds(6, crashes);
}
