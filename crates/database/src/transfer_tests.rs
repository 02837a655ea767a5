//! Sessions that move money between the same few accounts while the table is merged: sums hold at every moment, and after a restart.

use crate::stress::variable;
use crate::tests::{batch_of, end, in_folder, memory, placement};
use crate::{Changed, Config, Database, Isolation};
use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, UInt64Type};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidepool_base::{RowId, SqlType};
use tidepool_table::{ColumnDef, ScanRequest, TableDef, TableScan, TableVersion};

const ACCOUNTS: i64 = 8;

/// What stays of a row makes most of it, as it does of most rows.
const OWNER: &str = "somebody whose name is longer than the balance is";

/// Ids, accounts and balances.
fn read(version: Arc<TableVersion>) -> Vec<(RowId, i64, i64)> {
    // The column behind the table's is that of row ids.
    let request = ScanRequest {
        projection: vec![0, 1, 3],
        filters: vec![],
        dynamic: None,
        limit: None,
        batch_rows: 4096,
        forms: Vec::new(),
    };
    let mut reader = TableScan::new(version, request).reader();
    let mut rows = Vec::new();
    while let Some(batch) = reader.next_batch().unwrap() {
        let (id, account, balance) = (batch.column(2), batch.column(0), batch.column(1));
        for row in 0..batch.num_rows() {
            rows.push((
                RowId(id.as_primitive::<UInt64Type>().value(row)),
                account.as_primitive::<Int64Type>().value(row),
                balance.as_primitive::<Int64Type>().value(row),
            ));
        }
    }
    rows
}

fn check(database: &Arc<Database>, about: &str) {
    let rows = read(database.version().table("account").unwrap());
    assert_eq!(rows.len() as i64, ACCOUNTS, "{about}: {rows:?}");
    assert_eq!(rows.iter().map(|(_, _, balance)| balance).sum::<i64>(), 100 * ACCOUNTS, "{about}: {rows:?}");
}

/// `UPDATE account SET balance = balance + amount WHERE id = account`, as a session runs it.
fn add(transaction: &mut crate::Transaction, account: i64, amount: i64) {
    loop {
        let version = transaction.begin_statement().unwrap();
        let table = version.table("account").unwrap();
        let found: Vec<(RowId, i64, i64)> =
            read(table.clone()).into_iter().filter(|(_, of, _)| *of == account).collect();
        let [(row, _, balance)] = found[..] else { panic!("account {account} is there {} times", found.len()) };
        let before = transaction.savepoint();
        let id = table.def.id;
        let next = |def: &TableDef, balance: i64| {
            batch_of(
                def,
                &[vec![Some(account.to_string()), Some((balance + amount).to_string()), Some(OWNER.to_owned())]],
            )
        };
        let new = next(&table.def, balance);
        drop((version, table));
        let mut changed = transaction.update("account", &[row], &new).unwrap();
        if transaction.newer(id) == [row] {
            let now = transaction.look_again("account").unwrap();
            let balance = read(now.clone()).into_iter().find(|(of, ..)| *of == row).expect("it is locked").2;
            changed = transaction.change_newer(&now, &[row], Some(&next(&now.def, balance))).unwrap();
        }
        match changed {
            Changed::Rows(done) => {
                assert!(done.value(0), "account {account} was not written");
                transaction.end_statement();
                return;
            }
            Changed::Again => transaction.roll_back_to(&before),
        }
    }
}

fn make_accounts(database: &Arc<Database>) {
    let mut transaction = database.begin().unwrap();
    let columns = vec![
        ColumnDef::new("id", SqlType::BigInt),
        ColumnDef::new("balance", SqlType::BigInt),
        ColumnDef::new("owner", SqlType::Text),
    ];
    let table = transaction.create_table("account", columns, vec![], placement("near")).unwrap();
    let mut writer = transaction.writer("account").unwrap();
    let row = |id: i64| vec![Some(id.to_string()), Some("100".to_owned()), Some(OWNER.to_owned())];
    let rows: Vec<_> = (1..=ACCOUNTS).map(row).collect();
    writer.write(&batch_of(&table.def, &rows)).unwrap();
    transaction.absorb(writer).unwrap();
    transaction.commit().unwrap();
}

fn transfer(database: &Arc<Database>, seed: u64, time: Duration) {
    let (done, moved) = (AtomicBool::new(false), AtomicU64::new(0));
    let start = Instant::now();
    std::thread::scope(|scope| {
        let (done, moved) = (&done, &moved);
        for mover in 0..4 {
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed * 10 + mover);
                while !done.load(Ordering::Relaxed) {
                    let (from, to) = (random.random_range(1..=ACCOUNTS), random.random_range(1..=ACCOUNTS));
                    if from == to {
                        continue;
                    }
                    let mut transaction = database.begin_at(Isolation::ReadCommitted).unwrap();
                    // In the order of accounts, so that nobody waits for ever.
                    for account in [from.min(to), from.max(to)] {
                        add(&mut transaction, account, if account == from { -7 } else { 7 });
                    }
                    if random.random_range(0..8) == 0 {
                        transaction.rollback();
                    } else {
                        transaction.commit().unwrap();
                    }
                    moved.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(move || {
            for round in 1.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                database.merge("account").unwrap();
                database.vacuum();
                if round % 64 == 0 {
                    database.checkpoint().unwrap();
                }
            }
        });
        while start.elapsed() < time {
            check(database, "meanwhile");
        }
        done.store(true, Ordering::Relaxed);
    });
    check(database, "at the end");
    println!("{} transfers", moved.load(Ordering::Relaxed));
}

#[test]
fn sums_hold_while_sessions_write_the_same_rows() {
    let (seed, seconds) = (variable("TIDEPOOL_STRESS_SEED", 1), variable("TIDEPOOL_STRESS_SECONDS", 2));
    let database = Database::open(Config { threads: 1, ..memory() }).unwrap();
    make_accounts(&database);
    transfer(&database, seed, Duration::from_secs(seconds));
}

/// Changes of one row by many sessions are in the log in any order.
#[test]
fn a_restart_finds_what_sessions_made_of_the_same_rows() {
    let (seed, seconds) = (variable("TIDEPOOL_STRESS_SEED", 1), variable("TIDEPOOL_STRESS_SECONDS", 2));
    let folder = tempfile::tempdir().unwrap();
    let open = || Database::open(Config { threads: 1, ..in_folder(folder.path()) }).unwrap();
    let database = open();
    make_accounts(&database);
    end(database);
    for round in 0..4 {
        let database = open();
        check(&database, "found");
        transfer(&database, seed * 10 + round, Duration::from_secs(seconds) / 4);
        let accounts = |database: &Database| {
            let mut rows = read(database.version().table("account").unwrap());
            rows.sort_unstable();
            rows
        };
        let before = accounts(&database);
        end(database);
        let database = open();
        assert_eq!(accounts(&database), before, "round {round}");
        end(database);
    }
}
