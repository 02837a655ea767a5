//! The five transactions (clauses 2.4 to 2.8).

use crate::load::now;
use crate::random::{LastName, Random};
use crate::schema::{DISTRICTS, Tables};
use std::ops::Bound;
use tidepool_embedded::{Access, Decimal, Direction, Error, Result, Row, ScanRange, SqlState};

/// Lines of an order, at most.
pub const LINES_MAX: usize = 15;

/// The five, in the order of the standard mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    NewOrder,
    Payment,
    OrderStatus,
    Delivery,
    StockLevel,
}

pub const KINDS: [Kind; 5] = [Kind::NewOrder, Kind::Payment, Kind::OrderStatus, Kind::Delivery, Kind::StockLevel];

impl Kind {
    /// Writes nothing. It reads as of its snapshot, which is as good as serial order beside serializable writers.
    pub fn is_read_only(self) -> bool {
        matches!(self, Kind::OrderStatus | Kind::StockLevel)
    }
}

/// How a customer is named.
#[derive(Clone, Copy, Debug)]
pub enum By {
    Id(i32),
    Name(LastName),
}

#[derive(Clone, Copy, Debug)]
pub struct Line {
    pub item: i32,
    pub supplier: i32,
    pub quantity: i16,
}

/// What a terminal asks for.
#[derive(Clone, Debug)]
pub enum Input {
    NewOrder { w: i32, d: i16, c: i32, lines: [Line; LINES_MAX], count: usize },
    Payment { w: i32, d: i16, c_w: i32, c_d: i16, customer: By, amount: i64 },
    OrderStatus { w: i32, d: i16, customer: By },
    Delivery { w: i32, carrier: i16 },
    StockLevel { w: i32, d: i16, threshold: i16 },
}

/// Of an item that there is not: the one in a hundred of clause 2.4.1.4.
const NO_ITEM: i32 = 100_001;

impl Input {
    /// Draws what the specification says, for a terminal of warehouse `w` of `warehouses`.
    pub fn draw(kind: Kind, random: &mut Random, w: i32, warehouses: i32) -> Input {
        let d = random.within(1, DISTRICTS as u64) as i16;
        match kind {
            Kind::NewOrder => {
                let c = random.customer();
                let count = random.within(5, LINES_MAX as u64) as usize;
                let mut lines = [Line { item: 0, supplier: w, quantity: 0 }; LINES_MAX];
                for line in &mut lines[..count] {
                    line.item = random.item();
                    if warehouses > 1 && random.percent(1) {
                        line.supplier = other(random, w, warehouses);
                    }
                    line.quantity = random.within(1, 10) as i16;
                }
                if random.percent(1) {
                    lines[count - 1].item = NO_ITEM;
                }
                Input::NewOrder { w, d, c, lines, count }
            }
            Kind::Payment => {
                let (c_w, c_d) = match warehouses > 1 && random.percent(15) {
                    true => (other(random, w, warehouses), random.within(1, DISTRICTS as u64) as i16),
                    false => (w, d),
                };
                let customer = by(random);
                Input::Payment { w, d, c_w, c_d, customer, amount: random.within(100, 500_000) as i64 }
            }
            Kind::OrderStatus => Input::OrderStatus { w, d, customer: by(random) },
            Kind::Delivery => Input::Delivery { w, carrier: random.within(1, 10) as i16 },
            Kind::StockLevel => Input::StockLevel { w, d, threshold: random.within(10, 20) as i16 },
        }
    }
}

/// Shares of transactions that use another host's rows, percent, as the papers on Pasha and Tigon have them: of new orders
/// the *first* line alone is of another host's stock, of payments the customer is another host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct RemoteShares {
    pub new_order: u8,
    pub payment: u8,
}

impl Input {
    /// As `draw`, for a terminal of warehouse `w` of a host that has `own` of the warehouses.
    pub fn draw_of_host(
        kind: Kind,
        random: &mut Random,
        w: i32,
        own: (i32, i32),
        warehouses: i32,
        remote: RemoteShares,
    ) -> Input {
        // One warehouse: nothing of another's is drawn.
        let mut input = Input::draw(kind, random, w, 1);
        let others = warehouses - (own.1 - own.0 + 1);
        let elsewhere = |random: &mut Random| {
            let drawn = random.within(1, others as u64) as i32;
            if drawn >= own.0 { drawn + (own.1 - own.0 + 1) } else { drawn }
        };
        match &mut input {
            Input::NewOrder { lines, .. } => {
                lines.iter_mut().for_each(|line| line.supplier = w);
                if others > 0 && random.percent(remote.new_order.into()) {
                    lines[0].supplier = elsewhere(random);
                }
            }
            Input::Payment { c_w, c_d, .. } => {
                (*c_w, *c_d) = (w, *c_d);
                if others > 0 && random.percent(remote.payment.into()) {
                    *c_w = elsewhere(random);
                    *c_d = random.within(1, DISTRICTS as u64) as i16;
                }
            }
            Input::OrderStatus { .. } | Input::Delivery { .. } | Input::StockLevel { .. } => {}
        }
        input
    }
}

fn other(random: &mut Random, w: i32, warehouses: i32) -> i32 {
    let drawn = random.within(1, warehouses as u64 - 1) as i32;
    if drawn >= w { drawn + 1 } else { drawn }
}

fn by(random: &mut Random) -> By {
    if random.percent(60) { By::Name(random.last_name()) } else { By::Id(random.customer()) }
}

/// What a transaction came to. Exhaustive and mutually exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// To be committed.
    Done,
    /// To be rolled back, as the specification has it: an item is not there.
    NotFound,
}

fn missing(what: &str) -> Error {
    Error::new(SqlState::DATA_CORRUPTED, format!("TPC-C: {what} is not there"))
}

/// What terminals would show is read, and then let go of.
#[inline]
fn show<T>(shown: T) {
    std::hint::black_box(shown);
}

impl Tables {
    /// Runs one within a transaction.
    #[inline]
    pub fn run(&self, access: Access<'_>, input: &Input) -> Result<Outcome> {
        match input {
            Input::NewOrder { w, d, c, lines, count } => self.new_order(access, *w, *d, *c, &lines[..*count]),
            Input::Payment { w, d, c_w, c_d, customer, amount } => {
                self.payment(access, *w, *d, *c_w, *c_d, customer, *amount)
            }
            Input::OrderStatus { w, d, customer } => self.order_status(access, *w, *d, customer),
            Input::Delivery { w, carrier } => self.delivery(access, *w, *carrier),
            Input::StockLevel { w, d, threshold } => self.stock_level(access, *w, *d, *threshold),
        }
    }

    fn new_order(&self, access: Access<'_>, w: i32, d: i16, c: i32, lines: &[Line]) -> Result<Outcome> {
        let Tables { warehouse, district, customer, item, stock, .. } = self;
        let of_warehouse = access.get(&warehouse.key, (w,))?.ok_or_else(|| missing("a warehouse"))?;
        let w_tax = of_warehouse.get(warehouse.w_tax).0;
        let of_district = access.get(&district.key, (w, d))?.ok_or_else(|| missing("a district"))?;
        let (d_tax, o) = (of_district.get(district.d_tax).0, of_district.get(district.d_next_o_id));
        access.update(&district.table, of_district.id(), |row| row.set(district.d_next_o_id, &(o + 1)))?;
        let of_customer = access.get(&customer.key, (w, d, c))?.ok_or_else(|| missing("a customer"))?;
        let discount = of_customer.get(customer.c_discount).0;
        show((of_customer.get(customer.c_last), of_customer.get(customer.c_credit)));
        let all_local = i16::from(lines.iter().all(|line| line.supplier == w));
        let entry = now();
        access.insert(&self.orders.table, (w, d, o, c, entry, None::<i16>, lines.len() as i16, all_local))?;
        access.insert(&self.new_order.table, (w, d, o))?;
        let mut total = 0;
        let (mut items, mut stocks) = ([(0,); LINES_MAX], [(0, 0); LINES_MAX]);
        for (line, (item, stock)) in lines.iter().zip(items.iter_mut().zip(&mut stocks)) {
            (*item, *stock) = ((line.item,), (line.supplier, line.item));
        }
        let items = access.get_all(&item.key, &items[..lines.len()])?;
        let stocks = access.get_all(&stock.key, &stocks[..lines.len()])?;
        for ((number, line), (of_item, of_stock)) in (1..).zip(lines).zip(items.into_iter().zip(stocks)) {
            let Some(of_item) = of_item else { return Ok(Outcome::NotFound) };
            let price = of_item.get(item.i_price).0;
            let of_stock = of_stock.ok_or_else(|| missing("an item's stock"))?;
            let is_brand =
                of_item.get(item.i_data).contains("ORIGINAL") && of_stock.get(stock.s_data).contains("ORIGINAL");
            show((of_item.get(item.i_name), is_brand));
            access.update(&stock.table, of_stock.id(), |row| {
                let quantity = row.old(stock.s_quantity) - line.quantity;
                row.set(stock.s_quantity, &if quantity >= 10 { quantity } else { quantity + 91 })?;
                row.set(stock.s_ytd, &Decimal(row.old(stock.s_ytd).0 + i64::from(line.quantity)))?;
                row.set(stock.s_order_cnt, &(row.old(stock.s_order_cnt) + 1))?;
                if line.supplier != w {
                    row.set(stock.s_remote_cnt, &(row.old(stock.s_remote_cnt) + 1))?;
                }
                Ok(())
            })?;
            let amount = price * i64::from(line.quantity);
            total += amount;
            let info = of_stock.get(self.s_dist[d as usize - 1]);
            let values = (
                w,
                d,
                o,
                number as i16,
                line.item,
                line.supplier,
                None::<tidepool_embedded::Timestamp>,
                line.quantity,
                Decimal(amount),
                info,
            );
            access.insert(&self.order_line.table, values)?;
        }
        // Of rates of four digits behind the point.
        show(total * (10_000 - discount) / 10_000 * (10_000 + w_tax + d_tax) / 10_000);
        Ok(Outcome::Done)
    }

    /// The customer: of several of a name, ordered by first names, the one in the middle (clause 2.5.2.2).
    fn customer<'a>(&'a self, access: Access<'a>, w: i32, d: i16, by: &By) -> Result<Row<'a>> {
        let Tables { customer, .. } = self;
        match by {
            By::Id(id) => access.get(&customer.key, (w, d, *id))?.ok_or_else(|| missing("a customer")),
            By::Name(name) => {
                let range = ScanRange::prefix((w, d, name.as_str()));
                let mut rows =
                    access.scan(&customer.by_name, range, Direction::Forward)?.collect::<Result<Vec<_>>>()?;
                if rows.is_empty() {
                    return Err(missing("a customer of a name"));
                }
                let middle = rows.len().div_ceil(2) - 1;
                Ok(rows.swap_remove(middle))
            }
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn payment(&self, access: Access<'_>, w: i32, d: i16, c_w: i32, c_d: i16, by: &By, amount: i64) -> Result<Outcome> {
        let Tables { warehouse, district, customer, .. } = self;
        let of_warehouse = access.get(&warehouse.key, (w,))?.ok_or_else(|| missing("a warehouse"))?;
        show((of_warehouse.get(warehouse.w_street_1), of_warehouse.get(warehouse.w_zip)));
        access.update(&warehouse.table, of_warehouse.id(), |row| {
            row.set(warehouse.w_ytd, &Decimal(row.old(warehouse.w_ytd).0 + amount))
        })?;
        let of_district = access.get(&district.key, (w, d))?.ok_or_else(|| missing("a district"))?;
        show((of_district.get(district.d_street_1), of_district.get(district.d_zip)));
        access.update(&district.table, of_district.id(), |row| {
            row.set(district.d_ytd, &Decimal(row.old(district.d_ytd).0 + amount))
        })?;
        let payer = self.customer(access, c_w, c_d, by)?;
        let c = payer.get(customer.c_id);
        show((payer.get(customer.c_first), payer.get(customer.c_street_1), payer.get(customer.c_since)));
        access.update(&customer.table, payer.id(), |row| {
            row.set(customer.c_balance, &Decimal(row.old(customer.c_balance).0 - amount))?;
            row.set(customer.c_ytd_payment, &Decimal(row.old(customer.c_ytd_payment).0 + amount))?;
            row.set(customer.c_payment_cnt, &(row.old(customer.c_payment_cnt) + 1))?;
            if payer.get(customer.c_credit) == "BC" {
                let mut data = format!("{c} {c_d} {c_w} {d} {w} {}.{:02} ", amount / 100, amount % 100);
                data.push_str(payer.get(customer.c_data));
                data.truncate(500);
                row.set(customer.c_data, data.as_str())?;
            }
            Ok(())
        })?;
        let mut data = HistoryData::default();
        data.push(of_warehouse.get(warehouse.w_name));
        data.push("    ");
        data.push(of_district.get(district.d_name));
        access.insert(&self.history.table, (c, c_d, c_w, d, w, now(), Decimal(amount), data.as_str()))?;
        Ok(Outcome::Done)
    }

    fn order_status(&self, access: Access<'_>, w: i32, d: i16, by: &By) -> Result<Outcome> {
        let Tables { customer, orders, order_line, .. } = self;
        let asking = self.customer(access, w, d, by)?;
        let c = asking.get(customer.c_id);
        show((asking.get(customer.c_balance), asking.get(customer.c_first), asking.get(customer.c_middle)));
        let range = ScanRange::prefix((w, d, c));
        let newest = access.scan(&orders.by_customer, range, Direction::Backward)?.next().transpose()?;
        let newest = newest.ok_or_else(|| missing("a customer's order"))?;
        let o = newest.get(orders.o_id);
        show((newest.get(orders.o_entry_d), newest.get(orders.o_carrier_id)));
        let lines = access.scan(&order_line.key, ScanRange::prefix((w, d, o)), Direction::Forward)?;
        for line in lines.expecting(newest.get(orders.o_ol_cnt) as usize) {
            let line = line?;
            show((line.get(order_line.ol_i_id), line.get(order_line.ol_supply_w_id), line.get(order_line.ol_quantity)));
            show((line.get(order_line.ol_amount), line.get(order_line.ol_delivery_d)));
        }
        Ok(Outcome::Done)
    }

    fn delivery(&self, access: Access<'_>, w: i32, carrier: i16) -> Result<Outcome> {
        let Tables { new_order, orders, order_line, customer, .. } = self;
        let delivered = now();
        let mut oldest = [None; DISTRICTS as usize];
        for (d, oldest) in (1..=DISTRICTS).zip(&mut oldest) {
            let first = Bound::Included((w, d, self.undelivered.first(w, d)));
            let range = ScanRange { lower: first, upper: Bound::Included((w, d, i32::MAX)) };
            let mut undelivered = access.scan(&new_order.key, range, Direction::Forward)?;
            // Or all orders of the district are delivered.
            if let Some(row) = undelivered.next().transpose()? {
                let o = row.get(new_order.no_o_id);
                self.undelivered.found(w, d, o);
                *oldest = Some((d, o, row.id()));
            }
        }
        // What is known of the districts is read of all at once.
        let (mut order_keys, mut payer_keys, mut count) =
            ([(0, 0, 0); DISTRICTS as usize], [(0, 0, 0); DISTRICTS as usize], 0);
        for (d, o, _) in oldest.iter().flatten() {
            order_keys[count] = (w, *d, *o);
            count += 1;
        }
        let of_orders = access.get_all(&orders.key, &order_keys[..count])?;
        for ((d, ..), (order, key)) in oldest.iter().flatten().zip(of_orders.iter().zip(&mut payer_keys)) {
            let order = order.as_ref().ok_or_else(|| missing("an order"))?;
            *key = (w, *d, order.get(orders.o_c_id));
        }
        let payers = access.get_all(&customer.key, &payer_keys[..count])?;
        let mut of_order = Vec::with_capacity(LINES_MAX);
        for ((d, o, undelivered), (order, payer)) in oldest.into_iter().flatten().zip(of_orders.iter().zip(payers)) {
            let order = order.as_ref().ok_or_else(|| missing("an order"))?;
            access.delete(&new_order.table, undelivered)?;
            access.update(&orders.table, order.id(), |row| row.set(orders.o_carrier_id, &carrier))?;
            let mut total = 0;
            let lines = access.scan(&order_line.key, ScanRange::prefix((w, d, o)), Direction::Forward)?;
            // First all, as what the transaction writes meanwhile would make the scan look again.
            let count = order.get(orders.o_ol_cnt) as usize;
            of_order.clear();
            for line in lines.expecting(count) {
                of_order.push(line?);
            }
            for line in &of_order {
                total += line.get(order_line.ol_amount).0;
                access.update(&order_line.table, line.id(), |row| row.set(order_line.ol_delivery_d, &delivered))?;
            }
            let payer = payer.ok_or_else(|| missing("a customer"))?;
            access.update(&customer.table, payer.id(), |row| {
                row.set(customer.c_balance, &Decimal(row.old(customer.c_balance).0 + total))?;
                row.set(customer.c_delivery_cnt, &(row.old(customer.c_delivery_cnt) + 1))
            })?;
        }
        Ok(Outcome::Done)
    }

    fn stock_level(&self, access: Access<'_>, w: i32, d: i16, threshold: i16) -> Result<Outcome> {
        let Tables { district, order_line, stock, .. } = self;
        let of_district = access.get(&district.key, (w, d))?.ok_or_else(|| missing("a district"))?;
        let next = of_district.get(district.d_next_o_id);
        let range = ScanRange { lower: Bound::Included((w, d, next - 20)), upper: Bound::Excluded((w, d, next)) };
        let mut items = [0; 20 * LINES_MAX];
        let mut count = 0;
        for line in access.scan(&order_line.key, range, Direction::Forward)? {
            items[count] = line?.get(order_line.ol_i_id);
            count += 1;
        }
        let items = &mut items[..count];
        items.sort_unstable();
        let mut keys = [(w, 0); 20 * LINES_MAX];
        let mut distinct = 0;
        for (at, item) in items.iter().enumerate() {
            if at == 0 || items[at - 1] != *item {
                keys[distinct].1 = *item;
                distinct += 1;
            }
        }
        let mut low = 0;
        for of_stock in access.get_all(&stock.key, &keys[..distinct])? {
            let of_stock = of_stock.ok_or_else(|| missing("an item's stock"))?;
            low += u32::from(of_stock.get(stock.s_quantity) < threshold);
        }
        show(low);
        Ok(Outcome::Done)
    }
}

/// Two names and four blanks.
#[derive(Default)]
struct HistoryData {
    bytes: [u8; 24],
    length: usize,
}

impl HistoryData {
    fn push(&mut self, text: &str) {
        let end = self.length + text.len();
        self.bytes[self.length..end].copy_from_slice(text.as_bytes());
        self.length = end;
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or("")
    }
}
