//! Sessions that take turns on one thread.

use super::*;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

const ACCOUNTS: i64 = 8;
const OPENING: i64 = 1000;

struct Bank {
    tidepool: Tidepool,
    accounts: PreparedTable,
    by_id: PreparedIndex,
    balance: Column<i64>,
}

/// Accounts in far memory, where waiting for it is paced.
fn bank(config: Config) -> Bank {
    let tidepool = Tidepool::open(config).unwrap();
    TableBuilder::new("accounts")
        .column("id", SqlType::BigInt)
        .column("balance", SqlType::BigInt)
        .primary_key(["id"])
        .tablespace("far")
        .index_tablespace("far")
        .merge_policy(MergePolicy::Never)
        .create(&tidepool)
        .unwrap();
    let accounts = tidepool.table("accounts").unwrap();
    let (by_id, balance) = (accounts.primary_key().unwrap(), accounts.column("balance").unwrap());
    let mut session = tidepool.session().unwrap();
    for id in 0..ACCOUNTS {
        session.run(Isolation::Serializable, |access| access.insert(&accounts, (id, OPENING))).unwrap();
    }
    Bank { tidepool, accounts, by_id, balance }
}

fn paced() -> Config {
    let mut config = Config::in_memory(64 << 20, 64 << 20);
    config.far.profile = Some(config.profile("fpga-prototype").unwrap());
    config
}

impl Bank {
    fn change(&self, access: Access<'_>, id: i64, amount: i64) -> Result<()> {
        let account = access.get(&self.by_id, (id,))?.expect("an account");
        access.update(&self.accounts, account.id(), |row| row.set(self.balance, &(row.old(self.balance) + amount)))?;
        Ok(())
    }

    fn balances(&self) -> Vec<i64> {
        let mut session = self.tidepool.session().unwrap();
        let read = |access: Access<'_>| -> Result<Vec<i64>> {
            access
                .scan(&self.by_id, ScanRange::all(), Direction::Forward)?
                .map(|row| Ok(row?.get(self.balance)))
                .collect()
        };
        session.run(Isolation::RepeatableRead, read).unwrap()
    }
}

/// They write the same rows in any order, so that they wait for each other, in circles, too, and have to begin again.
#[test]
fn transfers_of_one_thread_and_of_two_add_up() {
    const TRANSFERS: i64 = 300;
    let bank = bank(paced());
    let committed = AtomicI64::new(0);
    let (bank, committed) = (&bank, &committed);
    let waits: Vec<Waits> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|thread| {
                scope.spawn(move || {
                    let tasks = (0..4).map(|task| {
                        move |session: &mut DirectSession| -> Result<()> {
                            for transfer in 0..TRANSFERS {
                                let from = (thread * 3 + task * 5 + transfer * 7) % ACCOUNTS;
                                let to = (from + 1 + transfer % (ACCOUNTS - 1)) % ACCOUNTS;
                                session.run(Isolation::Serializable, |access| {
                                    bank.change(access, from, -1)?;
                                    // The row is locked, and the next may want it.
                                    pass();
                                    bank.change(access, to, 1)
                                })?;
                                committed.fetch_add(1, Ordering::Relaxed);
                            }
                            Ok(())
                        }
                    });
                    let (done, waits) = bank.tidepool.side_by_side(tasks).unwrap();
                    done.into_iter().collect::<Result<()>>().unwrap();
                    waits
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(committed.load(Ordering::Relaxed), 2 * 4 * TRANSFERS);
    assert_eq!(bank.balances().iter().sum::<i64>(), ACCOUNTS * OPENING);
    assert!(waits.iter().all(|waits| waits.pauses > 0), "{waits:?}");
}

#[test]
fn a_task_waits_for_a_transaction_of_another_thread_while_others_go_on() {
    let bank = bank(paced());
    let mut holder = bank.tidepool.session().unwrap();
    let holding = holder.begin(Isolation::Serializable).unwrap();
    bank.change(holding.access(), 0, 5).unwrap();
    let is_other_done = AtomicBool::new(false);
    let (bank, is_other_done) = (&bank, &is_other_done);
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let tasks = [0, 1].map(|task| {
                move |session: &mut DirectSession| {
                    let done = session.run(Isolation::Serializable, |access| bank.change(access, task, 1));
                    is_other_done.fetch_or(task == 1, Ordering::Release);
                    done
                }
            });
            bank.tidepool.side_by_side(tasks).unwrap().0.into_iter().collect::<Result<()>>()
        });
        // The first waits for what is held here; the second must not.
        while !is_other_done.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        assert!(!thread.is_finished());
        holding.commit().unwrap();
        thread.join().unwrap().unwrap();
    });
    assert_eq!(bank.balances()[..2], [OPENING + 6, OPENING + 1]);
}

/// A panic in one ends all, and takes back what none has committed.
#[test]
fn a_panic_rolls_back_what_is_under_way() {
    let bank = bank(paced());
    let bank = &bank;
    let tasks = (0..3).map(|task| {
        move |session: &mut DirectSession| {
            session.run(Isolation::Serializable, |access| {
                bank.change(access, task, 1)?;
                pass();
                assert!(task != 1, "the second fails");
                pass();
                Ok(())
            })
        }
    });
    let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| bank.tidepool.side_by_side(tasks)));
    assert!(failed.is_err());
    assert_eq!(bank.balances(), [OPENING; ACCOUNTS as usize]);
    // Nothing is left locked.
    let mut session = bank.tidepool.session().unwrap();
    session.run(Isolation::Serializable, |access| (0..3).try_for_each(|id| bank.change(access, id, 1))).unwrap();
}

/// Commits that wait for the log: of tasks side by side several are written at once.
#[test]
fn commits_of_tasks_side_by_side_are_durable_when_they_return() {
    let folder = tempfile::tempdir().unwrap();
    let config = || Config { data_dir: Some(folder.path().to_owned()), ..paced() };
    {
        let bank = bank(config());
        let bank = &bank;
        let tasks = (0..4).map(|task| {
            move |session: &mut DirectSession| -> Result<()> {
                for _ in 0..20 {
                    let transaction = session.begin(Isolation::Serializable)?;
                    bank.change(transaction.access(), task, 1)?;
                    let committed = transaction.commit()?.expect("something was written");
                    assert!(bank.tidepool.database().durable().is_some_and(|durable| durable >= committed));
                }
                Ok(())
            }
        });
        bank.tidepool.side_by_side(tasks).unwrap().0.into_iter().collect::<Result<()>>().unwrap();
    }
    let tidepool = Tidepool::open(config()).unwrap();
    let accounts = tidepool.table("accounts").unwrap();
    let (by_id, balance) = (accounts.primary_key().unwrap(), accounts.column::<i64>("balance").unwrap());
    let mut session = tidepool.session().unwrap();
    for id in 0..ACCOUNTS {
        let read = |access: Access<'_>| Ok(access.get(&by_id, (id,))?.map(|row| row.get(balance)));
        let expected = if id < 4 { OPENING + 20 } else { OPENING };
        assert_eq!(session.run(Isolation::RepeatableRead, read).unwrap(), Some(expected));
    }
}
