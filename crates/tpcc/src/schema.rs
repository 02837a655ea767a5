//! The nine tables (clause 1.3), and ways to their rows.

use crate::undelivered::Undelivered;
use std::sync::Arc;
use tidepool_embedded::{
    Column, Decimal, MergePolicy, PreparedIndex, PreparedTable, Result, SqlType, TableBuilder, Tidepool, Timestamp,
};

/// Districts of a warehouse, customers of a district, and items: clause 1.2.1, 4.3.3.1.
pub const DISTRICTS: i16 = 10;
pub const CUSTOMERS: i32 = 3000;
pub const ITEMS: i32 = 100_000;

/// Tables in the order that they are made in.
pub const TABLES: [&str; 9] =
    ["warehouse", "district", "customer", "history", "new_order", "orders", "order_line", "item", "stock"];

/// Where rows go, and where indexes do.
#[derive(Clone, Debug)]
pub struct Tablespaces {
    pub rows: String,
    pub indexes: String,
}

impl Tablespaces {
    /// All in one.
    pub fn one(name: &str) -> Tablespaces {
        Tablespaces { rows: name.to_owned(), indexes: name.to_owned() }
    }
}

/// Tables whose rows settle: what was ordered, delivered and paid is read by analytics, and no transaction changes it any more.
const SETTLING: [&str; 3] = ["history", "orders", "order_line"];

const ID: SqlType = SqlType::Integer;
const SMALL: SqlType = SqlType::SmallInt;
const MONEY: SqlType = SqlType::Numeric { precision: 12, scale: 2 };
const RATE: SqlType = SqlType::Numeric { precision: 4, scale: 4 };

fn text(length: u32) -> SqlType {
    SqlType::Varchar { length_max: Some(length) }
}

fn chars(length: u32) -> SqlType {
    SqlType::Char { length }
}

/// Street, city, state and zip.
fn address(table: TableBuilder, prefix: &str) -> TableBuilder {
    table
        .column(format!("{prefix}_street_1"), text(20))
        .column(format!("{prefix}_street_2"), text(20))
        .column(format!("{prefix}_city"), text(20))
        .column(format!("{prefix}_state"), chars(2))
        .column(format!("{prefix}_zip"), chars(9))
}

/// Makes the tables, all of them row stores.
pub fn create(tidepool: &Tidepool, spaces: &Tablespaces) -> Result<()> {
    create_with(tidepool, spaces, MergePolicy::Never)
}

/// As `create`, for analytics beside: rows that settle go to main by `settling`, and others stay where transactions change them.
pub fn create_with(tidepool: &Tidepool, spaces: &Tablespaces, settling: MergePolicy) -> Result<()> {
    let table = |name: &str| {
        let table = TableBuilder::new(name).tablespace(&spaces.rows).index_tablespace(&spaces.indexes);
        // Of the others single rows are all that transactions read, over and over.
        table.merge_policy(if SETTLING.contains(&name) { settling } else { MergePolicy::Never })
    };
    let warehouse = table("warehouse").column("w_id", ID).column("w_name", text(10));
    address(warehouse, "w").column("w_tax", RATE).column("w_ytd", MONEY).primary_key(["w_id"]).create(tidepool)?;
    let district = table("district").column("d_w_id", ID).column("d_id", SMALL).column("d_name", text(10));
    address(district, "d")
        .column("d_tax", RATE)
        .column("d_ytd", MONEY)
        .column("d_next_o_id", ID)
        .primary_key(["d_w_id", "d_id"])
        .create(tidepool)?;
    let customer = table("customer")
        .column("c_w_id", ID)
        .column("c_d_id", SMALL)
        .column("c_id", ID)
        .column("c_first", text(16))
        .column("c_middle", chars(2))
        .column("c_last", text(16));
    address(customer, "c")
        .column("c_phone", chars(16))
        .column("c_since", SqlType::TIMESTAMP)
        .column("c_credit", chars(2))
        .column("c_credit_lim", MONEY)
        .column("c_discount", RATE)
        .column("c_balance", MONEY)
        .column("c_ytd_payment", MONEY)
        .column("c_payment_cnt", ID)
        .column("c_delivery_cnt", ID)
        .column("c_data", text(500))
        .primary_key(["c_w_id", "c_d_id", "c_id"])
        .index("customer_by_name", ["c_w_id", "c_d_id", "c_last", "c_first"])
        .create(tidepool)?;
    table("history")
        .column("h_c_id", ID)
        .column("h_c_d_id", SMALL)
        .column("h_c_w_id", ID)
        .column("h_d_id", SMALL)
        .column("h_w_id", ID)
        .column("h_date", SqlType::TIMESTAMP)
        .column("h_amount", SqlType::Numeric { precision: 6, scale: 2 })
        .column("h_data", text(24))
        .create(tidepool)?;
    table("new_order")
        .column("no_w_id", ID)
        .column("no_d_id", SMALL)
        .column("no_o_id", ID)
        .primary_key(["no_w_id", "no_d_id", "no_o_id"])
        .create(tidepool)?;
    table("orders")
        .column("o_w_id", ID)
        .column("o_d_id", SMALL)
        .column("o_id", ID)
        .column("o_c_id", ID)
        .column("o_entry_d", SqlType::TIMESTAMP)
        .nullable("o_carrier_id", SMALL)
        .column("o_ol_cnt", SMALL)
        .column("o_all_local", SMALL)
        .primary_key(["o_w_id", "o_d_id", "o_id"])
        .index("orders_by_customer", ["o_w_id", "o_d_id", "o_c_id", "o_id"])
        .create(tidepool)?;
    table("order_line")
        .column("ol_w_id", ID)
        .column("ol_d_id", SMALL)
        .column("ol_o_id", ID)
        .column("ol_number", SMALL)
        .column("ol_i_id", ID)
        .column("ol_supply_w_id", ID)
        .nullable("ol_delivery_d", SqlType::TIMESTAMP)
        .column("ol_quantity", SMALL)
        .column("ol_amount", SqlType::Numeric { precision: 6, scale: 2 })
        .column("ol_dist_info", chars(24))
        .primary_key(["ol_w_id", "ol_d_id", "ol_o_id", "ol_number"])
        .create(tidepool)?;
    table("item")
        .column("i_id", ID)
        .column("i_im_id", ID)
        .column("i_name", text(24))
        .column("i_price", SqlType::Numeric { precision: 5, scale: 2 })
        .column("i_data", text(50))
        .primary_key(["i_id"])
        .create(tidepool)?;
    let stock = table("stock").column("s_w_id", ID).column("s_i_id", ID).column("s_quantity", SMALL);
    let stock = (1..=10).fold(stock, |stock, number| stock.column(format!("s_dist_{number:02}"), chars(24)));
    stock
        .column("s_ytd", SqlType::Numeric { precision: 8, scale: 0 })
        .column("s_order_cnt", ID)
        .column("s_remote_cnt", ID)
        .column("s_data", text(50))
        .primary_key(["s_w_id", "s_i_id"])
        .create(tidepool)
}

macro_rules! ways {
    ($name:ident { $($key:ident: $index:expr),* } { $($column:ident: $type:ty),* $(,)? }) => {
        #[derive(Clone, Debug)]
        pub struct $name {
            pub table: PreparedTable,
            $(pub $key: PreparedIndex,)*
            $(pub $column: Column<$type>,)*
        }

        impl $name {
            fn new(tidepool: &Tidepool, name: &str) -> Result<$name> {
                let table = tidepool.table(name)?;
                Ok($name {
                    $($key: match $index {
                        "" => table.primary_key()?,
                        index => table.index(index)?,
                    },)*
                    $($column: table.column(stringify!($column))?,)*
                    table,
                })
            }
        }
    };
}

ways!(Warehouse { key: "" } {
    w_name: str, w_street_1: str, w_street_2: str, w_city: str, w_state: str, w_zip: str, w_tax: Decimal, w_ytd: Decimal,
    w_id: i32,
});
ways!(District { key: "" } {
    d_w_id: i32, d_id: i16, d_name: str, d_street_1: str, d_street_2: str, d_city: str, d_state: str, d_zip: str,
    d_tax: Decimal, d_ytd: Decimal, d_next_o_id: i32,
});
ways!(Customer { key: "", by_name: "customer_by_name" } {
    c_w_id: i32, c_d_id: i16, c_id: i32, c_first: str, c_middle: str, c_last: str, c_street_1: str, c_street_2: str,
    c_city: str, c_state: str, c_zip: str, c_phone: str, c_since: Timestamp, c_credit: str, c_credit_lim: Decimal,
    c_discount: Decimal, c_balance: Decimal, c_ytd_payment: Decimal, c_payment_cnt: i32, c_delivery_cnt: i32, c_data: str,
});
ways!(History {} { h_c_id: i32, h_c_d_id: i16, h_c_w_id: i32, h_d_id: i16, h_w_id: i32, h_amount: Decimal });
ways!(NewOrder { key: "" } { no_w_id: i32, no_d_id: i16, no_o_id: i32 });
ways!(Orders { key: "", by_customer: "orders_by_customer" } {
    o_w_id: i32, o_d_id: i16, o_id: i32, o_c_id: i32, o_entry_d: Timestamp, o_carrier_id: Option<i16>, o_ol_cnt: i16,
});
ways!(OrderLine { key: "" } {
    ol_w_id: i32, ol_d_id: i16, ol_o_id: i32, ol_number: i16, ol_i_id: i32, ol_supply_w_id: i32,
    ol_delivery_d: Option<Timestamp>, ol_quantity: i16, ol_amount: Decimal,
});
ways!(Item { key: "" } { i_name: str, i_price: Decimal, i_data: str });
ways!(Stock { key: "" } {
    s_quantity: i16, s_ytd: Decimal, s_order_cnt: i32, s_remote_cnt: i32, s_data: str,
});

/// All tables, prepared.
#[derive(Clone, Debug)]
pub struct Tables {
    pub warehouse: Warehouse,
    pub district: District,
    pub customer: Customer,
    pub history: History,
    pub new_order: NewOrder,
    pub orders: Orders,
    pub order_line: OrderLine,
    pub item: Item,
    pub stock: Stock,
    /// Of each district, the stock's text for it.
    pub s_dist: Vec<Column<str>>,
    pub(crate) undelivered: Arc<Undelivered>,
}

impl Tables {
    /// 42P01 where they have not been made.
    pub fn prepare(tidepool: &Tidepool) -> Result<Tables> {
        let stock = Stock::new(tidepool, "stock")?;
        let s_dist =
            (1..=10).map(|number| stock.table.column(&format!("s_dist_{number:02}"))).collect::<Result<_>>()?;
        Ok(Tables {
            warehouse: Warehouse::new(tidepool, "warehouse")?,
            district: District::new(tidepool, "district")?,
            customer: Customer::new(tidepool, "customer")?,
            history: History::new(tidepool, "history")?,
            new_order: NewOrder::new(tidepool, "new_order")?,
            orders: Orders::new(tidepool, "orders")?,
            order_line: OrderLine::new(tidepool, "order_line")?,
            item: Item::new(tidepool, "item")?,
            stock,
            s_dist,
            undelivered: Arc::default(),
        })
    }

    /// Every index, by name.
    pub fn indexes(&self) -> [(&'static str, &PreparedIndex); 10] {
        [
            ("warehouse", &self.warehouse.key),
            ("district", &self.district.key),
            ("customer", &self.customer.key),
            ("customer_by_name", &self.customer.by_name),
            ("new_order", &self.new_order.key),
            ("orders", &self.orders.key),
            ("orders_by_customer", &self.orders.by_customer),
            ("order_line", &self.order_line.key),
            ("item", &self.item.key),
            ("stock", &self.stock.key),
        ]
    }
}
