//! Rows of several hosts of a pod, by key.

use crate::*;
use std::sync::atomic::{AtomicBool, Ordering};

struct Host {
    tidepool: Tidepool,
    host: Arc<PodHost>,
    accounts: PreparedTable,
    by_id: PreparedIndex,
    by_owner: PreparedIndex,
    balance: Column<i64>,
}

const SETTINGS: PodSettings = PodSettings {
    hosts: 2,
    workers: 8,
    tuples: 256,
    block_bytes: 256,
    blocks: 1024,
    ring_bytes: 64 << 10,
    coherent_bytes_max: 1 << 20,
};

/// Accounts of a host: a hundred times its number and on.
const ACCOUNTS: i64 = 10;

fn first(host: usize) -> i64 {
    100 * host as i64
}

fn open(pod: &Arc<Pod>, number: u8) -> Result<Host> {
    let (tidepool, host) = Tidepool::host_of(pod, number)?;
    TableBuilder::new("accounts")
        .column("id", SqlType::BigInt)
        .column("owner", SqlType::Text)
        .column("balance", SqlType::BigInt)
        .primary_key(["id"])
        .index("accounts_by_owner", ["id", "owner"])
        .create(&tidepool)?;
    let accounts = tidepool.table("accounts")?;
    accounts.share_out(&host, &[((100i64,), 0), ((i64::MAX,), 1)])?;
    let ids = first(number.into())..first(number.into()) + ACCOUNTS;
    tidepool.session()?.run(Isolation::Serializable, |access| {
        ids.clone().try_for_each(|id| access.insert(&accounts, (id, "Ebbe", 100i64)).map(|_| ()))
    })?;
    let (by_id, by_owner) = (accounts.primary_key()?, accounts.index("accounts_by_owner")?);
    let balance = accounts.column("balance")?;
    Ok(Host { tidepool, host, accounts, by_id, by_owner, balance })
}

fn hosts() -> [Host; 2] {
    let pod = Pod::in_process(&SETTINGS).unwrap();
    let hosts = [open(&pod, 0).unwrap(), open(&pod, 1).unwrap()];
    assert_eq!(
        pod.open_host(ConfigBuilder::surroundings(None).unwrap().memory_only().build().unwrap(), 1).unwrap_err().code(),
        SqlState::OBJECT_IN_USE
    );
    hosts
}

impl Host {
    /// Does something while this host's peer answers.
    fn beside<T: Send>(&self, peer: &Host, work: impl FnOnce(&Host) -> T + Send) -> T {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let working = scope.spawn(|| {
                let done = work(self);
                is_over.store(true, Ordering::Release);
                done
            });
            while !is_over.load(Ordering::Acquire) && !working.is_finished() {
                peer.host.serve();
                std::thread::yield_now();
            }
            working.join().unwrap()
        })
    }

    fn balance(&self, id: i64) -> Result<Option<i64>> {
        self.tidepool
            .session()?
            .run(Isolation::Serializable, |access| Ok(access.get(&self.by_id, (id,))?.map(|row| row.get(self.balance))))
    }

    fn add(&self, access: Access<'_>, id: i64, amount: i64) -> Result<bool> {
        let Some(row) = access.get(&self.by_id, (id,))? else { return Ok(false) };
        access.update(&self.accounts, row.id(), |row| row.set(self.balance, &(row.old(self.balance) + amount)))
    }

    fn sum(&self) -> i64 {
        self.tidepool
            .session()
            .unwrap()
            .run(Isolation::RepeatableRead, |access| {
                let mut sum = 0;
                access.scan_table(&self.accounts, |row| {
                    sum += row.get(self.balance);
                    Ok(())
                })?;
                Ok(sum)
            })
            .unwrap()
    }
}

#[test]
fn rows_of_another_host_are_found_and_changed() {
    let [one, two] = &hosts();
    one.beside(two, |one| {
        assert_eq!(one.balance(3).unwrap(), Some(100), "its own");
        assert_eq!(one.balance(103).unwrap(), Some(100));
        assert_eq!(one.balance(150).unwrap(), None);
        let mut session = one.tidepool.session().unwrap();
        let is_done =
            session.run(Isolation::Serializable, |access| Ok(one.add(access, 3, -10)? && one.add(access, 103, 10)?));
        assert!(is_done.unwrap());
        assert_eq!(one.balance(103).unwrap(), Some(110));
        // Together, and in ranges.
        let found = session.run(Isolation::RepeatableRead, |access| {
            let together = access.get_all(&one.by_id, &[(3i64,), (103,), (150,), (104,), (50,)])?;
            let together: Vec<_> = together.iter().map(|row| row.as_ref().map(|row| row.get(one.balance))).collect();
            let ids = one.accounts.column::<i64>("id")?;
            let range =
                ScanRange { lower: std::ops::Bound::Included((102i64,)), upper: std::ops::Bound::Included((104,)) };
            let rows = access.scan(&one.by_owner, range, Direction::Backward)?;
            let rows = rows.map(|row| Ok(row?.get(ids))).collect::<Result<Vec<_>>>()?;
            Ok((together, rows))
        });
        assert_eq!(found.unwrap(), (vec![Some(90), Some(110), None, Some(100), None], vec![104, 103, 102]));
        let refused = |done: Result<()>| assert_eq!(done.unwrap_err().code(), SqlState::FEATURE_NOT_SUPPORTED);
        refused(
            session.run(Isolation::Serializable, |access| {
                access.insert(&one.accounts, (150i64, "Flut", 1i64)).map(|_| ())
            }),
        );
        refused(session.run(Isolation::Serializable, |access| {
            let row = access.get(&one.by_id, (103i64,))?.expect("it is there");
            access.delete(&one.accounts, row.id()).map(|_| ())
        }));
        refused(session.run(Isolation::Serializable, |access| {
            access
                .scan(
                    &one.by_id,
                    ScanRange::<(i64,)> { lower: std::ops::Bound::Unbounded, upper: std::ops::Bound::Unbounded },
                    Direction::Forward,
                )
                .map(|_| ())
        }));
    });
    assert_eq!(two.balance(103).unwrap(), Some(110), "the home sees it");
    assert_eq!((one.sum(), two.sum()), (990, 1010));
    assert!(two.host.stats().moved_in >= 2 && one.host.stats().asked > 0);
}

/// Each of two transactions reads a range of which the other writes a row, or adds one.
#[test]
fn what_a_serializable_transaction_read_of_another_host_holds_still() {
    let [one, two] = &hosts();
    one.beside(two, |one| {
        let mut session = one.tidepool.session().unwrap();
        for adds in [false, true] {
            let transaction = session.begin(Isolation::Serializable).unwrap();
            let access = transaction.access();
            let range =
                ScanRange { lower: std::ops::Bound::Included((120i64,)), upper: std::ops::Bound::Included((140,)) };
            let rows = access.scan(&one.by_id, range, Direction::Forward).unwrap().count();
            assert_eq!(rows, 0);
            assert!(one.add(access, 5, 1).unwrap());
            if adds {
                // Meanwhile.
                let added = two.tidepool.session().unwrap().run(Isolation::Serializable, |access| {
                    access.insert(&two.accounts, (130i64, "Flut", 0i64)).map(|_| ())
                });
                added.unwrap();
                assert_eq!(transaction.commit().unwrap_err().code(), SqlState::SERIALIZATION_FAILURE);
            } else {
                transaction.commit().unwrap();
            }
        }
    });
    assert_eq!(one.balance(5).unwrap(), Some(101));
}

#[test]
fn hosts_count_each_others_rows_up_at_once() {
    const COUNTS: usize = 300;
    let hosts = &hosts();
    let ended = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for (me, host) in hosts.iter().enumerate() {
            let ended = &ended;
            scope.spawn(move || {
                let counted = (|| {
                    let mut session = host.tidepool.session()?;
                    for count in 0..COUNTS {
                        let (own, other) = (first(me) + count as i64 % 3, first(1 - me) + count as i64 % 4);
                        session.run(Isolation::Serializable, |access| {
                            Ok(host.add(access, own, -1)? && host.add(access, other, 1)?)
                        })?;
                    }
                    Ok::<_, Error>(())
                })();
                ended.fetch_add(1, Ordering::AcqRel);
                while ended.load(Ordering::Acquire) < 2 {
                    host.host.serve();
                    std::thread::yield_now();
                }
                counted.unwrap();
            });
        }
    });
    let sums = [hosts[0].sum(), hosts[1].sum()];
    assert_eq!(sums, [100 * ACCOUNTS; 2], "as much went either way");
}

/// A host that dies in a transaction: what it had locked is free, and its rows in the pod are there.
#[test]
fn a_survivor_ends_what_a_dead_host_has_begun() {
    let [one, two] = hosts();
    one.beside(&two, |one| assert_eq!(one.balance(101).unwrap(), Some(100)));
    two.beside(&one, |two| assert_eq!(two.balance(1).unwrap(), Some(100)));
    let mut session = two.tidepool.session().unwrap();
    let transaction = session.begin(Isolation::Serializable).unwrap();
    assert!(two.add(transaction.access(), 1, 7).unwrap() && two.add(transaction.access(), 101, 7).unwrap());
    // Nothing of it runs any more.
    std::mem::forget(transaction);
    std::mem::forget(session);
    std::mem::forget(two);
    let mut survivor = one.tidepool.session().unwrap();
    let mut add = |id: i64| {
        let transaction = survivor.begin(Isolation::Serializable)?;
        let is_done = one.add(transaction.access(), id, 1)?;
        transaction.commit().map(|_| is_done)
    };
    assert_eq!(add(1).unwrap_err().code(), SqlState::SERIALIZATION_FAILURE, "it has the row");
    one.host.recover_for(1).unwrap();
    one.host.recover_for(1).unwrap();
    assert!(add(1).unwrap() && add(101).unwrap());
    assert_eq!(add(102).unwrap_err().code(), SqlState::CANNOT_CONNECT_NOW);
    assert_eq!((one.balance(1).unwrap(), one.balance(101).unwrap()), (Some(101), Some(101)));
    assert_eq!(one.host.recover_for(0).unwrap_err().code(), SqlState::INVALID_PARAMETER_VALUE);
}
