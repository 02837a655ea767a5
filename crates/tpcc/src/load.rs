//! The initial population (clause 4.3.3.1), row by row through the embedded API.

use crate::random::{Random, last_name};
use crate::schema::{CUSTOMERS, DISTRICTS, ITEMS, Tables};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicI32, Ordering};
use tidepool_embedded::{Access, Decimal, DirectSession, Isolation, Result, Tidepool, Timestamp};

/// Rows of one transaction, about.
const BATCH: i32 = 500;

/// Orders that are delivered already.
const DELIVERED: i32 = 2100;

pub(crate) fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp(since.as_micros() as i64)
}

/// Loads items, and then warehouses on as many threads.
pub fn load(tidepool: &Tidepool, tables: &Tables, warehouses: i32, threads: usize) -> Result<()> {
    load_some(tidepool, tables, 1..=warehouses, threads)
}

/// As `load`, of some of the warehouses.
pub(crate) fn load_some(
    tidepool: &Tidepool,
    tables: &Tables,
    warehouses: RangeInclusive<i32>,
    threads: usize,
) -> Result<()> {
    items(&mut session(tidepool)?, tables)?;
    let next = AtomicI32::new(*warehouses.start());
    let warehouses = *warehouses.end();
    let run = || -> Result<()> {
        let mut session = session(tidepool)?;
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number > warehouses {
                return Ok(());
            }
            warehouse(&mut session, tables, number)?;
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a thread of the load"))
    })
}

fn session(tidepool: &Tidepool) -> Result<DirectSession> {
    let mut session = tidepool.session()?;
    session.set_synchronous(false);
    Ok(session)
}

/// The numbers from 1 to `last`, some in each transaction.
fn in_batches(
    session: &mut DirectSession,
    last: i32,
    batch: i32,
    mut add: impl FnMut(Access<'_>, i32) -> Result<()>,
) -> Result<()> {
    let mut first = 1;
    while first <= last {
        let end = (first + batch).min(last + 1);
        session.run(Isolation::RepeatableRead, |access| (first..end).try_for_each(|number| add(access, number)))?;
        first = end;
    }
    Ok(())
}

fn items(session: &mut DirectSession, tables: &Tables) -> Result<()> {
    let random = &mut Random::new(1);
    in_batches(session, ITEMS, BATCH, |access, number| {
        let image = random.within(1, 10_000) as i32;
        let name = random.text(14, 24);
        let price = Decimal(random.within(100, 10_000) as i64);
        let data = random.data(26, 50);
        access.insert(&tables.item.table, (number, image, name, price, data)).map(drop)
    })
}

fn warehouse(session: &mut DirectSession, tables: &Tables, w: i32) -> Result<()> {
    let random = &mut Random::new(1000 + w as u64);
    let tax = |random: &mut Random| Decimal(random.within(0, 2000) as i64);
    session.run(Isolation::RepeatableRead, |access| {
        let r = &mut *random;
        let (name, street_1, street_2, city) = (r.text(6, 10), r.text(10, 20), r.text(10, 20), r.text(10, 20));
        let (state, zip, tax) = (r.text(2, 2), r.zip(), tax(r));
        let row = (w, name, street_1, street_2, city, state, zip, tax, Decimal(30_000_000));
        access.insert(&tables.warehouse.table, row).map(drop)
    })?;
    in_batches(session, ITEMS, BATCH, |access, number| {
        let quantity = random.within(10, 100) as i16;
        let dist: [String; 10] = std::array::from_fn(|_| random.text(24, 24));
        let [d1, d2, d3, d4, d5, d6, d7, d8, d9, d10] = &dist;
        let data = random.data(26, 50);
        let counts = (Decimal(0), 0i32, 0i32);
        let row = (w, number, quantity, d1, d2, d3, d4, d5, d6, d7, d8, d9, d10, counts.0, counts.1, counts.2, data);
        access.insert(&tables.stock.table, row).map(drop)
    })?;
    for d in 1..=DISTRICTS {
        session.run(Isolation::RepeatableRead, |access| {
            let r = &mut *random;
            let (name, street_1, street_2, city) = (r.text(6, 10), r.text(10, 20), r.text(10, 20), r.text(10, 20));
            let (state, zip, tax) = (r.text(2, 2), r.zip(), tax(r));
            let row = (w, d, name, street_1, street_2, city, state, zip, tax, Decimal(3_000_000), CUSTOMERS + 1);
            access.insert(&tables.district.table, row).map(drop)
        })?;
        customers(session, tables, random, w, d)?;
        orders(session, tables, random, w, d)?;
    }
    Ok(())
}

fn customers(session: &mut DirectSession, tables: &Tables, random: &mut Random, w: i32, d: i16) -> Result<()> {
    let since = now();
    in_batches(session, CUSTOMERS, BATCH, |access, c| {
        let r = &mut *random;
        let last = if c <= 1000 { last_name(c as usize - 1) } else { r.last_name_to_load() };
        let (first, street_1, street_2, city) = (r.text(8, 16), r.text(10, 20), r.text(10, 20), r.text(10, 20));
        let (state, zip, phone) = (r.text(2, 2), r.zip(), r.digits(16));
        let credit = if r.percent(10) { "BC" } else { "GC" };
        let discount = Decimal(r.within(0, 5000) as i64);
        let data = r.text(300, 500);
        let row = (
            w,
            d,
            c,
            first,
            "OE",
            last,
            street_1,
            street_2,
            city,
            state,
            zip,
            phone,
            since,
            credit,
            Decimal(5_000_000),
            discount,
            Decimal(-1000),
            Decimal(1000),
            1i32,
            0i32,
            data,
        );
        access.insert(&tables.customer.table, row)?;
        let history = (c, d, w, d, w, since, Decimal(1000), r.text(12, 24));
        access.insert(&tables.history.table, history).map(drop)
    })
}

fn orders(session: &mut DirectSession, tables: &Tables, random: &mut Random, w: i32, d: i16) -> Result<()> {
    let entry = now();
    let customers = random.permutation(CUSTOMERS);
    in_batches(session, CUSTOMERS, BATCH / 10, |access, o| {
        let r = &mut *random;
        let is_delivered = o <= DELIVERED;
        let carrier = is_delivered.then(|| r.within(1, 10) as i16);
        let lines = r.within(5, 15) as i16;
        access.insert(&tables.orders.table, (w, d, o, customers[o as usize - 1], entry, carrier, lines, 1i16))?;
        for line in 1..=lines {
            let item = r.within(1, ITEMS as u64) as i32;
            let amount = if is_delivered { 0 } else { r.within(1, 999_999) as i64 };
            let info = r.text(24, 24);
            let delivered = is_delivered.then_some(entry);
            let row = (w, d, o, line, item, w, delivered, 5i16, Decimal(amount), info);
            access.insert(&tables.order_line.table, row)?;
        }
        if !is_delivered {
            access.insert(&tables.new_order.table, (w, d, o))?;
        }
        Ok(())
    })
}
