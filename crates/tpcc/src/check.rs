//! The consistency conditions of clause 3.3.2.

use crate::schema::{CUSTOMERS, DISTRICTS, Tables};
use std::collections::HashMap;
use tidepool_embedded::{Access, Direction, Isolation, PreparedIndex, Result, Row, ScanRange, Tidepool};

/// Orders without a new one, of a district as it was loaded.
const SETTLED_AT_LOAD: i64 = 2100;

/// Breaches that are told of each condition, at most.
const TOLD_MAX: usize = 3;

/// What is wrong, by condition.
#[derive(Debug, Default)]
struct Breaches(Vec<(u8, usize, Vec<String>)>);

impl Breaches {
    fn require(&mut self, condition: u8, holds: bool, what: impl FnOnce() -> String) {
        if holds {
            return;
        }
        let at = self.0.iter().position(|(known, ..)| *known == condition).unwrap_or_else(|| {
            self.0.push((condition, 0, Vec::new()));
            self.0.len() - 1
        });
        let (_, count, told) = &mut self.0[at];
        *count += 1;
        if told.len() < TOLD_MAX {
            told.push(what());
        }
    }

    fn told(mut self) -> Vec<String> {
        self.0.sort_by_key(|(condition, ..)| *condition);
        let line = |(condition, count, told): (u8, usize, Vec<String>)| {
            format!("condition {condition}, {count} times: {}", told.join("; "))
        };
        self.0.into_iter().map(line).collect()
    }
}

/// Of a district.
#[derive(Clone, Copy, Debug, Default)]
struct District {
    ytd: i64,
    next: i32,
    history: i64,
    orders: i64,
    last_order: i32,
    new_orders: i64,
    first_new: i32,
    last_new: i32,
    lines_promised: i64,
    lines: i64,
    deliveries: i64,
}

/// Of a customer.
#[derive(Clone, Copy, Debug, Default)]
struct Customer {
    balance: i64,
    ytd_payment: i64,
    paid: i64,
    delivered: i64,
}

/// A payment: the customer's district, the one that it was paid in, customer, warehouse that it was paid in, amount.
type Paid = (i16, i16, i32, i32, i64);

fn each<'a>(
    access: Access<'a>,
    index: &'a PreparedIndex,
    prefix: impl tidepool_embedded::KeyValues + Clone,
    mut take: impl FnMut(&Row<'a>),
) -> Result<()> {
    for row in access.scan(index, ScanRange::prefix(prefix), Direction::Forward)? {
        take(&row?);
    }
    Ok(())
}

/// What is not as it should be: nothing, if all is well. All in one snapshot, warehouse by warehouse.
pub fn check(tidepool: &Tidepool, tables: &Tables, warehouses: i32) -> Result<Vec<String>> {
    let mut session = tidepool.session()?;
    let transaction = session.begin(Isolation::RepeatableRead)?;
    let access = transaction.access();
    let mut breaches = Breaches::default();
    let mut history: HashMap<i32, Vec<Paid>> = HashMap::new();
    // It has no key: by way of the scan that SQL has.
    let h = &tables.history;
    access.scan_table(&h.table, |row| {
        let (c_w, w) = (row.get(h.h_c_w_id), row.get(h.h_w_id));
        let paid = (row.get(h.h_c_d_id), row.get(h.h_d_id), row.get(h.h_c_id), w, row.get(h.h_amount).0);
        history.entry(c_w).or_default().push(paid);
        Ok(())
    })?;
    let mut by_district: HashMap<(i32, i16), i64> = HashMap::new();
    for (_, d, _, w, amount) in history.values().flatten() {
        *by_district.entry((*w, *d)).or_default() += amount;
    }
    for w in 1..=warehouses {
        let own = history.remove(&w).unwrap_or_default();
        check_warehouse(access, tables, w, &own, &by_district, &mut breaches)?;
    }
    Ok(breaches.told())
}

fn check_warehouse(
    access: Access<'_>,
    tables: &Tables,
    w: i32,
    payments: &[Paid],
    by_district: &HashMap<(i32, i16), i64>,
    breaches: &mut Breaches,
) -> Result<()> {
    let Tables { warehouse, district, customer, new_order, orders, order_line, .. } = tables;
    let mut districts = [District::default(); DISTRICTS as usize];
    let mut customers = vec![Customer::default(); DISTRICTS as usize * CUSTOMERS as usize];
    let place = |d: i16, c: i32| (d as usize - 1) * CUSTOMERS as usize + c as usize - 1;
    for (c_d, _, c, _, amount) in payments {
        customers[place(*c_d, *c)].paid += amount;
    }
    let mut w_ytd = 0;
    each(access, &warehouse.key, (w,), |row| w_ytd = row.get(warehouse.w_ytd).0)?;
    each(access, &district.key, (w,), |row| {
        let of = &mut districts[row.get(district.d_id) as usize - 1];
        of.ytd = row.get(district.d_ytd).0;
        of.next = row.get(district.d_next_o_id);
        of.history = by_district.get(&(w, row.get(district.d_id))).copied().unwrap_or(0);
    })?;
    each(access, &customer.key, (w,), |row| {
        let of = &mut customers[place(row.get(customer.c_d_id), row.get(customer.c_id))];
        of.balance = row.get(customer.c_balance).0;
        of.ytd_payment = row.get(customer.c_ytd_payment).0;
        districts[row.get(customer.c_d_id) as usize - 1].deliveries += i64::from(row.get(customer.c_delivery_cnt));
    })?;
    for d in 1..=DISTRICTS {
        let of = &mut districts[d as usize - 1];
        let mut undelivered = Vec::new();
        each(access, &new_order.key, (w, d), |row| {
            let o = row.get(new_order.no_o_id);
            if of.new_orders == 0 {
                of.first_new = o;
            }
            of.last_new = o;
            of.new_orders += 1;
            undelivered.push(o);
        })?;
        // Both in the order of their numbers.
        let mut lines = access.scan(&order_line.key, ScanRange::prefix((w, d)), Direction::Forward)?.peekable();
        let mut pending = undelivered.iter().copied().peekable();
        for order in access.scan(&orders.key, ScanRange::prefix((w, d)), Direction::Forward)? {
            let order = order?;
            let (o, c) = (order.get(orders.o_id), order.get(orders.o_c_id));
            let carrier = order.get(orders.o_carrier_id);
            of.orders += 1;
            of.last_order = o;
            of.lines_promised += i64::from(order.get(orders.o_ol_cnt));
            let is_new = pending.next_if(|pending| *pending == o).is_some();
            breaches.require(5, carrier.is_none() == is_new, || format!("order {w}/{d}/{o}"));
            let mut count = 0;
            while let Some(line) = lines.peek() {
                let line = line.as_ref().map_err(Clone::clone)?;
                if line.get(order_line.ol_o_id) != o {
                    break;
                }
                count += 1;
                let delivered = line.get(order_line.ol_delivery_d);
                breaches.require(7, delivered.is_none() == carrier.is_none(), || {
                    format!("line {w}/{d}/{o}/{}", line.get(order_line.ol_number))
                });
                if delivered.is_some() {
                    customers[place(d, c)].delivered += line.get(order_line.ol_amount).0;
                }
                of.lines += 1;
                lines.next();
            }
            breaches.require(6, count == order.get(orders.o_ol_cnt), || format!("order {w}/{d}/{o}"));
        }
        breaches.require(4, lines.next().is_none(), || format!("district {w}/{d} has lines without order"));
        breaches.require(5, pending.next().is_none(), || format!("district {w}/{d} has new orders without order"));
    }
    breaches.require(1, w_ytd == districts.iter().map(|of| of.ytd).sum::<i64>(), || format!("warehouse {w}"));
    breaches.require(8, w_ytd == districts.iter().map(|of| of.history).sum::<i64>(), || format!("warehouse {w}"));
    for (d, of) in (1..).zip(&districts) {
        let what = || format!("district {w}/{d}: {of:?}");
        let is_last = of.next - 1 == of.last_order && (of.new_orders == 0 || of.last_new == of.last_order);
        breaches.require(2, is_last, what);
        let is_dense = of.new_orders == 0 || i64::from(of.last_new - of.first_new + 1) == of.new_orders;
        breaches.require(3, is_dense, what);
        breaches.require(4, of.lines_promised == of.lines, what);
        breaches.require(9, of.ytd == of.history, what);
        // As it was loaded, and then one less with each delivery.
        breaches.require(11, of.orders - of.new_orders == SETTLED_AT_LOAD + of.deliveries, what);
    }
    for (place, of) in customers.iter().enumerate() {
        let what = || {
            let (d, c) = (place / CUSTOMERS as usize + 1, place % CUSTOMERS as usize + 1);
            format!("customer {w}/{d}/{c}: {of:?}")
        };
        breaches.require(10, of.balance == of.delivered - of.paid, what);
        breaches.require(12, of.balance + of.ytd_payment == of.delivered, what);
    }
    Ok(())
}
