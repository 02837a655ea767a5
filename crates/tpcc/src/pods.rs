//! TPC-C over the hosts of a pod: each has warehouses of its own, and transactions use rows of others by shares.
//!
//! Stock and customers are shared out by warehouse; items each host has for itself, and the other tables' rows are used by
//! their home alone. New orders and payments only, as in the papers on Pasha and Tigon.

use crate::load::load_some;
use crate::random::Random;
use crate::run::Mix;
use crate::schema::{Tables, Tablespaces, create};
pub use crate::transactions::RemoteShares;
use crate::transactions::{Input, Kind, Outcome};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tidepool_embedded::{Error, Isolation, Pod, PodHost, PodSettings, PodStats, Result, SqlState, Tidepool};

#[derive(Clone, Copy, Debug)]
pub struct PodPlan {
    pub hosts: u8,
    pub warehouses_of_each: i32,
    pub warm_up: Duration,
    pub duration: Duration,
    pub mix: Mix,
    pub remote: RemoteShares,
    pub isolation: Isolation,
    pub seed: u64,
    pub settings: PodSettings,
}

/// What was measured. Each host has one thread; nothing of the pod's memory is paced.
#[derive(Clone, Debug, Serialize)]
pub struct PodRunResult {
    pub hosts: u8,
    pub remote: RemoteShares,
    pub seconds: f64,
    pub transactions: u64,
    pub per_second: f64,
    pub retries: u64,
    pub rolled_back: u64,
    pub moved_in: u64,
    pub messages_asked: u64,
    pub copies_read: u64,
    pub blocks_read: u64,
    pub versions_written: u64,
    pub conflicts: u64,
    /// What of the sums over all hosts is not as it must be.
    pub breaches: Vec<String>,
}

struct Host {
    tidepool: Tidepool,
    host: Arc<PodHost>,
    tables: Tables,
    /// Its warehouses, from the first to the last.
    warehouses: (i32, i32),
}

/// Sums that the transactions change together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sums {
    stock_ytd: i64,
    line_quantity: i64,
    customer_payment: i64,
    district_ytd: i64,
    warehouse_ytd: i64,
}

impl Host {
    fn open(pod: &Arc<Pod>, plan: &PodPlan, number: u8) -> Result<Host> {
        let (tidepool, host) = Tidepool::host_of(pod, number)?;
        create(&tidepool, &Tablespaces::one("near"))?;
        let tables = Tables::prepare(&tidepool)?;
        let each = plan.warehouses_of_each;
        let bounds: Vec<_> = (0..plan.hosts).map(|host| ((i32::from(host + 1) * each + 1,), host)).collect();
        tables.stock.table.share_out(&host, &bounds)?;
        tables.customer.table.share_out(&host, &bounds)?;
        let warehouses = (i32::from(number) * each + 1, i32::from(number + 1) * each);
        load_some(&tidepool, &tables, warehouses.0..=warehouses.1, 1)?;
        Ok(Host { tidepool, host, tables, warehouses })
    }

    fn sums(&self) -> Result<Sums> {
        let Tables { stock, order_line, customer, district, warehouse, .. } = &self.tables;
        self.tidepool.session()?.run(Isolation::RepeatableRead, |access| {
            let mut sums = Sums::default();
            access.scan_table(&stock.table, |row| {
                sums.stock_ytd += row.get(stock.s_ytd).0;
                Ok(())
            })?;
            access.scan_table(&order_line.table, |row| {
                sums.line_quantity += i64::from(row.get(order_line.ol_quantity));
                Ok(())
            })?;
            access.scan_table(&customer.table, |row| {
                sums.customer_payment += row.get(customer.c_ytd_payment).0;
                Ok(())
            })?;
            access.scan_table(&district.table, |row| {
                sums.district_ytd += row.get(district.d_ytd).0;
                Ok(())
            })?;
            access.scan_table(&warehouse.table, |row| {
                sums.warehouse_ytd += row.get(warehouse.w_ytd).0;
                Ok(())
            })?;
            Ok(sums)
        })
    }
}

fn sums_of(hosts: &[Host]) -> Result<Sums> {
    hosts.iter().try_fold(Sums::default(), |all, host| {
        let of_host = host.sums()?;
        Ok(Sums {
            stock_ytd: all.stock_ytd + of_host.stock_ytd,
            line_quantity: all.line_quantity + of_host.line_quantity,
            customer_payment: all.customer_payment + of_host.customer_payment,
            district_ytd: all.district_ytd + of_host.district_ytd,
            warehouse_ytd: all.warehouse_ytd + of_host.warehouse_ytd,
        })
    })
}

/// What the sums say that changed by different amounts.
fn breaches(before: &Sums, after: &Sums) -> Vec<String> {
    let mut breaches = Vec::new();
    let mut same = |what: &str, one: i64, two: i64| {
        if one != two {
            breaches.push(format!("{what}: {one} and {two}"));
        }
    };
    let stock = after.stock_ytd - before.stock_ytd;
    same("stock that was ordered and lines of orders", stock, after.line_quantity - before.line_quantity);
    let paid = after.customer_payment - before.customer_payment;
    same("payments of customers and of districts", paid, after.district_ytd - before.district_ytd);
    same("payments of customers and of warehouses", paid, after.warehouse_ytd - before.warehouse_ytd);
    breaches
}

#[derive(Default)]
struct Counts {
    transactions: AtomicU64,
    retries: AtomicU64,
    rolled_back: AtomicU64,
    measuring: AtomicBool,
    over: AtomicBool,
    /// Threads that have ended their last transaction: the others may still ask them.
    ended: AtomicUsize,
}

/// One thread's terminal, until the run is over and all others are, too.
fn terminal(host: &Host, plan: &PodPlan, counts: &Counts) -> Result<()> {
    let ran = terminal_run(host, plan, counts);
    if ran.is_err() {
        counts.over.store(true, Ordering::Relaxed);
    }
    counts.ended.fetch_add(1, Ordering::AcqRel);
    while counts.ended.load(Ordering::Acquire) < usize::from(plan.hosts) {
        host.host.serve();
        std::thread::yield_now();
    }
    ran
}

fn terminal_run(host: &Host, plan: &PodPlan, counts: &Counts) -> Result<()> {
    let mut session = host.tidepool.session()?;
    let mut random = Random::new(plan.seed + u64::from(host.host.number()));
    let warehouses = i32::from(plan.hosts) * plan.warehouses_of_each;
    while !counts.over.load(Ordering::Relaxed) {
        let kind = plan.mix.draw(&mut random);
        let w = random.within(host.warehouses.0 as u64, host.warehouses.1 as u64) as i32;
        let input = Input::draw_of_host(kind, &mut random, w, host.warehouses, warehouses, plan.remote);
        loop {
            let transaction = session.begin(plan.isolation)?;
            let done = match host.tables.run(transaction.access(), &input) {
                Ok(Outcome::Done) => transaction.commit().map(|_| true),
                Ok(Outcome::NotFound) => {
                    transaction.roll_back();
                    Ok(false)
                }
                Err(error) => Err(error),
            };
            let is_measured = counts.measuring.load(Ordering::Relaxed);
            match done {
                Ok(is_done) => {
                    if is_measured {
                        counts.transactions.fetch_add(1, Ordering::Relaxed);
                        counts.rolled_back.fetch_add(u64::from(!is_done), Ordering::Relaxed);
                    }
                    break;
                }
                Err(error) if matches!(error.code(), SqlState::SERIALIZATION_FAILURE | SqlState::DEADLOCK_DETECTED) => {
                    counts.retries.fetch_add(u64::from(is_measured), Ordering::Relaxed);
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

fn difference(after: PodStats, before: PodStats) -> PodStats {
    PodStats {
        rows_in: after.rows_in,
        moved_in: after.moved_in,
        moved_out: after.moved_out,
        copies_read: after.copies_read - before.copies_read,
        blocks_read: after.blocks_read - before.blocks_read,
        versions_written: after.versions_written - before.versions_written,
        conflicts: after.conflicts - before.conflicts,
        asked: after.asked - before.asked,
        answered: after.answered - before.answered,
    }
}

/// Loads a pod and runs one terminal a host. 22023 for a mix with transactions that read what others may write meanwhile.
pub fn run_pod(plan: &PodPlan) -> Result<PodRunResult> {
    if plan.mix.0[Kind::OrderStatus as usize..].iter().any(|share| *share > 0) {
        return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "a pod runs new orders and payments alone"));
    }
    let pod = Pod::in_process(&plan.settings)?;
    let hosts = (0..plan.hosts).map(|number| Host::open(&pod, plan, number)).collect::<Result<Vec<_>>>()?;
    let before = sums_of(&hosts)?;
    let counts = Counts::default();
    let stats = || hosts.iter().map(|host| host.host.stats()).collect::<Vec<_>>();
    let (seconds, since) = std::thread::scope(|scope| -> Result<(f64, Vec<PodStats>)> {
        let terminals: Vec<_> = hosts.iter().map(|host| scope.spawn(|| terminal(host, plan, &counts))).collect();
        let sleep = |time: Duration| {
            let start = Instant::now();
            while start.elapsed() < time && !counts.over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5).min(time));
            }
            start.elapsed().as_secs_f64()
        };
        sleep(plan.warm_up);
        let since = stats();
        counts.measuring.store(true, Ordering::Relaxed);
        let seconds = sleep(plan.duration);
        counts.measuring.store(false, Ordering::Relaxed);
        counts.over.store(true, Ordering::Relaxed);
        for terminal in terminals {
            terminal.join().expect("a thread of terminals")?;
        }
        Ok((seconds, since))
    })?;
    let of_run: Vec<_> = stats().into_iter().zip(since).map(|(after, before)| difference(after, before)).collect();
    let sum = |of: fn(&PodStats) -> u64| of_run.iter().map(of).sum();
    let transactions = counts.transactions.into_inner();
    Ok(PodRunResult {
        hosts: plan.hosts,
        remote: plan.remote,
        seconds,
        transactions,
        per_second: transactions as f64 / seconds,
        retries: counts.retries.into_inner(),
        rolled_back: counts.rolled_back.into_inner(),
        moved_in: sum(|stats| stats.moved_in),
        messages_asked: sum(|stats| stats.asked),
        copies_read: sum(|stats| stats.copies_read),
        blocks_read: sum(|stats| stats.blocks_read),
        versions_written: sum(|stats| stats.versions_written),
        conflicts: sum(|stats| stats.conflicts),
        breaches: breaches(&before, &sums_of(&hosts)?),
    })
}
