//! TPC-C as clients of other databases have it: BenchBase's statements, prepared, sent ahead of their answers as JDBC's batches are,
//! and go-tpc's, which name several rows at once. They give what they are to give, and go to their rows without a plan.

use crate::server::TestServer;
use futures::future::{join_all, try_join_all};
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Client, Statement};

const TABLES: &str = "
CREATE TABLE warehouse (w_id int NOT NULL, w_ytd decimal(12,2) NOT NULL, w_tax decimal(4,4) NOT NULL, w_name varchar(10) NOT NULL,
                        w_state char(2) NOT NULL, PRIMARY KEY (w_id));
CREATE TABLE item (i_id int NOT NULL, i_name varchar(24) NOT NULL, i_price decimal(5,2) NOT NULL, i_data varchar(50) NOT NULL,
                   i_im_id int NOT NULL, PRIMARY KEY (i_id));
CREATE TABLE stock (s_w_id int NOT NULL, s_i_id int NOT NULL, s_quantity int NOT NULL, s_ytd decimal(8,2) NOT NULL,
                    s_order_cnt int NOT NULL, s_remote_cnt int NOT NULL, s_data varchar(50) NOT NULL, s_dist_01 char(24) NOT NULL,
                    FOREIGN KEY (s_w_id) REFERENCES warehouse (w_id), FOREIGN KEY (s_i_id) REFERENCES item (i_id),
                    PRIMARY KEY (s_w_id, s_i_id));
CREATE TABLE district (d_w_id int NOT NULL, d_id int NOT NULL, d_ytd decimal(12,2) NOT NULL, d_tax decimal(4,4) NOT NULL,
                       d_next_o_id int NOT NULL, d_name varchar(10) NOT NULL,
                       FOREIGN KEY (d_w_id) REFERENCES warehouse (w_id), PRIMARY KEY (d_w_id, d_id));
CREATE TABLE customer (c_w_id int NOT NULL, c_d_id int NOT NULL, c_id int NOT NULL, c_discount decimal(4,4) NOT NULL,
                       c_credit char(2) NOT NULL, c_last varchar(16) NOT NULL, c_first varchar(16) NOT NULL,
                       c_balance decimal(12,2) NOT NULL, c_ytd_payment float NOT NULL, c_payment_cnt int NOT NULL,
                       c_delivery_cnt int NOT NULL, c_since timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP, c_data varchar(500) NOT NULL,
                       FOREIGN KEY (c_w_id, c_d_id) REFERENCES district (d_w_id, d_id), PRIMARY KEY (c_w_id, c_d_id, c_id));
CREATE INDEX idx_customer_name ON customer (c_w_id, c_d_id, c_last, c_first);
CREATE TABLE history (h_c_id int NOT NULL, h_c_d_id int NOT NULL, h_c_w_id int NOT NULL, h_d_id int NOT NULL, h_w_id int NOT NULL,
                      h_date timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP, h_amount decimal(6,2) NOT NULL, h_data varchar(24) NOT NULL);
CREATE TABLE oorder (o_w_id int NOT NULL, o_d_id int NOT NULL, o_id int NOT NULL, o_c_id int NOT NULL, o_carrier_id int DEFAULT NULL,
                     o_ol_cnt int NOT NULL, o_all_local int NOT NULL, o_entry_d timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP,
                     PRIMARY KEY (o_w_id, o_d_id, o_id));
CREATE INDEX idx_order ON oorder (o_w_id, o_d_id, o_c_id, o_id);
CREATE TABLE new_order (no_w_id int NOT NULL, no_d_id int NOT NULL, no_o_id int NOT NULL, PRIMARY KEY (no_w_id, no_d_id, no_o_id));
CREATE TABLE order_line (ol_w_id int NOT NULL, ol_d_id int NOT NULL, ol_o_id int NOT NULL, ol_number int NOT NULL, ol_i_id int NOT NULL,
                         ol_delivery_d timestamp NULL DEFAULT NULL, ol_amount decimal(6,2) NOT NULL, ol_supply_w_id int NOT NULL,
                         ol_quantity decimal(6,2) NOT NULL, ol_dist_info char(24) NOT NULL,
                         PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number));
INSERT INTO warehouse VALUES (1, 300, 0.1, 'w', 'BY');
INSERT INTO item SELECT i, 'item ' || i, 1.5, 'data', i FROM generate_series(1, 200) AS g(i);
INSERT INTO stock SELECT 1, i, 50, 0, 0, 0, 'data', 'dist' FROM generate_series(1, 200) AS g(i);
INSERT INTO district SELECT 1, d, 30, 0.05, 31, 'd' FROM generate_series(1, 10) AS g(d);
INSERT INTO customer SELECT 1, d, c, 0.1, 'GC', CASE WHEN c % 3 = 0 THEN 'BARBARBAR' ELSE 'ABLE' END, 'first ' || c, -10, 10, 1, 0, now(), 'data'
    FROM generate_series(1, 10) AS g(d), generate_series(1, 30) AS h(c);
INSERT INTO oorder SELECT 1, d, o, 31 - o, CASE WHEN o < 21 THEN 5 END, 5, 1, now() FROM generate_series(1, 10) AS g(d), generate_series(1, 30) AS h(o);
INSERT INTO new_order SELECT 1, d, o FROM generate_series(1, 10) AS g(d), generate_series(21, 30) AS h(o);
INSERT INTO order_line SELECT 1, d, o, l, o * 5 + l, NULL, 2.5, 1, 5, 'dist'
    FROM generate_series(1, 10) AS g(d), generate_series(1, 30) AS h(o), generate_series(1, 5) AS k(l);
";

const GET_CUSTOMER: &str =
    "SELECT C_DISCOUNT, C_LAST, C_CREDIT FROM customer WHERE C_W_ID = $1 AND C_D_ID = $2 AND C_ID = $3";
const GET_TAX: &str = "SELECT W_TAX FROM warehouse WHERE W_ID = $1";
const GET_DISTRICT: &str = "SELECT D_NEXT_O_ID, D_TAX FROM district WHERE D_W_ID = $1 AND D_ID = $2 FOR UPDATE";
const NEXT_ORDER: &str = "UPDATE district SET D_NEXT_O_ID = D_NEXT_O_ID + 1 WHERE D_W_ID = $1 AND D_ID = $2";
const ADD_ORDER: &str = "INSERT INTO oorder (O_ID, O_D_ID, O_W_ID, O_C_ID, O_ENTRY_D, O_OL_CNT, O_ALL_LOCAL) VALUES ($1, $2, $3, $4, now(), $5, $6)";
const ADD_NEW_ORDER: &str = "INSERT INTO new_order (NO_O_ID, NO_D_ID, NO_W_ID) VALUES ($1, $2, $3)";
const GET_ITEM: &str = "SELECT I_PRICE, I_NAME , I_DATA FROM item WHERE I_ID = $1";
const GET_STOCK: &str = "SELECT S_QUANTITY, S_DATA, S_DIST_01 FROM stock WHERE S_I_ID = $1 AND S_W_ID = $2 FOR UPDATE";
const CHANGE_STOCK: &str = "UPDATE stock SET S_QUANTITY = $1 , S_YTD = S_YTD + $2::int, S_ORDER_CNT = S_ORDER_CNT + 1, S_REMOTE_CNT = S_REMOTE_CNT + $3
     WHERE S_I_ID = $4 AND S_W_ID = $5";
const ADD_LINE: &str = "INSERT INTO order_line (OL_O_ID, OL_D_ID, OL_W_ID, OL_NUMBER, OL_I_ID, OL_SUPPLY_W_ID, OL_QUANTITY, OL_AMOUNT, OL_DIST_INFO)
     VALUES ($1, $2, $3, $4, $5, $6, 5, 7.5, $7)";
const PAY_WAREHOUSE: &str = "UPDATE warehouse SET W_YTD = W_YTD + $1::int WHERE W_ID = $2";
const PAY_DISTRICT: &str = "UPDATE district SET D_YTD = D_YTD + $1::int WHERE D_W_ID = $2 AND D_ID = $3";
const BY_NAME: &str =
    "SELECT C_FIRST, C_ID, C_BALANCE FROM customer WHERE C_W_ID = $1 AND C_D_ID = $2 AND C_LAST = $3 ORDER BY C_FIRST";
const PAY_CUSTOMER: &str = "UPDATE customer SET C_BALANCE = C_BALANCE - $1::int, C_YTD_PAYMENT = C_YTD_PAYMENT + 1, C_PAYMENT_CNT = C_PAYMENT_CNT + 1
     WHERE C_W_ID = $2 AND C_D_ID = $3 AND C_ID = $4";
const ADD_HISTORY: &str = "INSERT INTO history (H_C_D_ID, H_C_W_ID, H_C_ID, H_D_ID, H_W_ID, H_DATE, H_AMOUNT, H_DATA)
     VALUES ($1, $2, $3, $4, $5, '2024-01-01', 5, $6)";
const LAST_ORDER: &str = "SELECT O_ID, O_CARRIER_ID FROM oorder WHERE O_W_ID = $1 AND O_D_ID = $2 AND O_C_ID = $3 ORDER BY O_ID DESC LIMIT 1";
const LINES: &str =
    "SELECT OL_I_ID, OL_DELIVERY_D FROM order_line WHERE OL_O_ID = $1 AND OL_D_ID = $2 AND OL_W_ID = $3";
const OLDEST: &str =
    "SELECT NO_O_ID FROM new_order WHERE NO_D_ID = $1 AND NO_W_ID = $2 ORDER BY NO_O_ID ASC LIMIT 1 FOR UPDATE";
const TAKE: &str = "DELETE FROM new_order WHERE NO_O_ID = $1 AND NO_D_ID = $2 AND NO_W_ID = $3";
const CARRY: &str = "UPDATE oorder SET O_CARRIER_ID = $1 WHERE O_ID = $2 AND O_D_ID = $3 AND O_W_ID = $4";
const DELIVER: &str =
    "UPDATE order_line SET OL_DELIVERY_D = now() WHERE OL_O_ID = $1 AND OL_D_ID = $2 AND OL_W_ID = $3";
const TOTAL: &str =
    "SELECT SUM(OL_AMOUNT) AS OL_TOTAL FROM order_line WHERE OL_O_ID = $1 AND OL_D_ID = $2 AND OL_W_ID = $3";
const LOW_STOCK: &str =
    "SELECT COUNT(DISTINCT (S_I_ID)) AS STOCK_COUNT FROM order_line, stock WHERE OL_W_ID = $1 AND OL_D_ID = $2
     AND OL_O_ID < $3 AND OL_O_ID >= $4 AND S_W_ID = $1 AND S_I_ID = OL_I_ID AND S_QUANTITY < $5";
/// go-tpc's, with as many rows as there are districts.
const SOME_STOCK: &str =
    "SELECT s_i_id, s_quantity FROM stock WHERE (s_w_id, s_i_id) IN (($1,$2),($3,$4),($5,$6)) FOR UPDATE";
const SOME_ITEMS: &str = "SELECT i_id FROM item WHERE i_id IN ($1,$2,$3)";
const TAKE_SOME: &str = "DELETE FROM new_order WHERE (no_w_id, no_d_id, no_o_id) IN (($1,$2,$3),($4,$5,$6))";
const CARRY_SOME: &str = "UPDATE oorder SET o_carrier_id = $1 WHERE (o_w_id, o_d_id, o_id) IN (($2,$3,$4),($5,$6,$7))";
const DELIVER_SOME: &str =
    "UPDATE order_line SET ol_delivery_d = $1 WHERE (ol_w_id, ol_d_id, ol_o_id) IN (($2,$3,$4),($5,$6,$7))";
const TOTALS: &str = "SELECT ol_d_id, SUM(ol_amount) FROM order_line WHERE (ol_w_id, ol_d_id, ol_o_id) IN (($1,$2,$3),($4,$5,$6)) GROUP BY ol_d_id";

/// What `EXPLAIN` says of how a statement goes to its rows, over these values.
async fn directly(client: &Client, sql: &str, values: &[&str]) -> Vec<String> {
    let mut sql = format!("EXPLAIN {sql}");
    for (place, value) in values.iter().enumerate().rev() {
        sql = sql.replace(&format!("${}", place + 1), value);
    }
    let rows = client.query(&sql, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).filter(|line: &String| line.starts_with("Direct: ")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn statements_of_tpcc_clients_go_to_their_rows() {
    let (server, client) = TestServer::start_connected().await;
    client.batch_execute(TABLES).await.unwrap();
    let (one, two, three, last) = ("1", "2", "3", "'BARBARBAR'");
    let several = vec![one, one, two, one, two, three];
    let carried = [vec![one], several.clone()].concat();
    let delivered = [vec!["'2024-01-01 10:00:00'"], several.clone()].concat();
    let of_index = |index: &str, table: &str| format!("Direct: index lookup using {index} on {table}");
    let scan = |index: &str, table: &str| format!("Direct: index scan using {index} on {table}");
    let cases: Vec<(&str, Vec<&str>, Vec<String>)> = vec![
        (GET_CUSTOMER, vec![one, one, one], vec![of_index("customer_pkey", "customer")]),
        (GET_TAX, vec![one], vec![of_index("warehouse_pkey", "warehouse")]),
        (GET_DISTRICT, vec![one, one], vec![of_index("district_pkey", "district")]),
        (NEXT_ORDER, vec![one, one], vec![of_index("district_pkey", "district")]),
        (ADD_ORDER, vec![one, one, one, one, one, one], vec!["Direct: insert into oorder".to_owned()]),
        (ADD_NEW_ORDER, vec![one, one, one], vec!["Direct: insert into new_order".to_owned()]),
        (GET_ITEM, vec![one], vec![of_index("item_pkey", "item")]),
        (GET_STOCK, vec![one, one], vec![of_index("stock_pkey", "stock")]),
        (CHANGE_STOCK, vec![one, one, one, one, one], vec![of_index("stock_pkey", "stock")]),
        (ADD_LINE, vec![one, one, one, one, one, one, "'dist'"], vec!["Direct: insert into order_line".to_owned()]),
        (PAY_WAREHOUSE, vec![one, one], vec![of_index("warehouse_pkey", "warehouse")]),
        (PAY_DISTRICT, vec![one, one, one], vec![of_index("district_pkey", "district")]),
        (BY_NAME, vec![one, one, last], vec![scan("idx_customer_name", "customer")]),
        (PAY_CUSTOMER, vec![one, one, one, one], vec![of_index("customer_pkey", "customer")]),
        (ADD_HISTORY, vec![one, one, one, one, one, "'h'"], vec!["Direct: insert into history".to_owned()]),
        (LAST_ORDER, vec![one, one, one], vec!["Direct: index scan backward using idx_order on oorder".to_owned()]),
        (LINES, vec![one, one, one], vec![scan("order_line_pkey", "order_line")]),
        (OLDEST, vec![one, one], vec![scan("new_order_pkey", "new_order")]),
        (TAKE, vec![one, one, one], vec![of_index("new_order_pkey", "new_order")]),
        (CARRY, vec![one, one, one, one], vec![of_index("oorder_pkey", "oorder")]),
        (DELIVER, vec![one, one, one], vec![scan("order_line_pkey", "order_line")]),
        (TOTAL, vec![one, one, one], vec![scan("order_line_pkey", "order_line")]),
        (
            LOW_STOCK,
            vec![one, one, three, one, three],
            vec![scan("order_line_pkey", "order_line"), of_index("stock_pkey", "stock")],
        ),
        (SOME_STOCK, several.clone(), vec![of_index("stock_pkey", "stock")]),
        (SOME_ITEMS, vec![one, two, three], vec![of_index("item_pkey", "item")]),
        (TAKE_SOME, several.clone(), vec![of_index("new_order_pkey", "new_order")]),
        (CARRY_SOME, carried, vec![of_index("oorder_pkey", "oorder")]),
        (DELIVER_SOME, delivered, vec![scan("order_line_pkey", "order_line")]),
        (TOTALS, several.clone(), vec![scan("order_line_pkey", "order_line")]),
    ];
    for (sql, values, expected) in cases {
        assert_eq!(directly(&client, sql, &values).await, expected, "{sql}");
    }
    server.stop().await;
}

/// The bytes of a numeric in its binary form.
#[derive(Debug, PartialEq)]
struct Numeric(Vec<u8>);

impl<'a> FromSql<'a> for Numeric {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Numeric, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Numeric(raw.to_vec()))
    }

    fn accepts(of: &Type) -> bool {
        *of == Type::NUMERIC
    }
}

/// BenchBase's statements of the transactions, prepared by one connection.
struct Terminal {
    client: Client,
    statements: std::collections::HashMap<&'static str, Statement>,
}

impl Terminal {
    async fn new(server: &TestServer) -> Terminal {
        let client = server.connect().await;
        let texts = [
            GET_CUSTOMER,
            GET_TAX,
            GET_DISTRICT,
            NEXT_ORDER,
            ADD_ORDER,
            ADD_NEW_ORDER,
            GET_ITEM,
            GET_STOCK,
            CHANGE_STOCK,
            ADD_LINE,
            PAY_WAREHOUSE,
            PAY_DISTRICT,
            BY_NAME,
            PAY_CUSTOMER,
            ADD_HISTORY,
            LAST_ORDER,
            LINES,
            OLDEST,
            TAKE,
            CARRY,
            DELIVER,
            TOTAL,
            LOW_STOCK,
        ];
        // All at once, as a client that sends ahead does.
        let statements = try_join_all(texts.iter().map(|text| client.prepare(text))).await.unwrap();
        Terminal { statements: texts.into_iter().zip(statements).collect(), client }
    }

    async fn change(&self, text: &str, parameters: &[&(dyn ToSql + Sync)]) -> u64 {
        self.client.execute(&self.statements[text], parameters).await.unwrap()
    }

    async fn rows(&self, text: &str, parameters: &[&(dyn ToSql + Sync)]) -> Vec<tokio_postgres::Row> {
        self.client.query(&self.statements[text], parameters).await.unwrap()
    }

    /// A new order of so many lines, with the stock's changes and the lines each in one batch.
    async fn order(&self, district: i32, customer: i32, items: &[i32]) -> i32 {
        self.client.batch_execute("BEGIN").await.unwrap();
        let count = items.len() as i32;
        assert_eq!(self.rows(GET_CUSTOMER, &[&1, &district, &customer]).await.len(), 1);
        assert_eq!(self.rows(GET_TAX, &[&1]).await.len(), 1);
        let order: i32 = self.rows(GET_DISTRICT, &[&1, &district]).await[0].get(0);
        assert_eq!(self.change(NEXT_ORDER, &[&1, &district]).await, 1);
        assert_eq!(self.change(ADD_ORDER, &[&order, &district, &1, &customer, &count, &1]).await, 1);
        assert_eq!(self.change(ADD_NEW_ORDER, &[&order, &district, &1]).await, 1);
        let mut left = Vec::new();
        for item in items {
            let price: Numeric = self.rows(GET_ITEM, &[item]).await[0].get(0);
            assert_eq!(price, Numeric(vec![0, 2, 0, 0, 0, 0, 0, 2, 0, 1, 0x13, 0x88]), "1 and 5000 ten-thousandths");
            let quantity: i32 = self.rows(GET_STOCK, &[item, &1]).await[0].get(0);
            left.push(if quantity >= 15 { quantity - 5 } else { quantity + 86 });
        }
        let stock = items
            .iter()
            .zip(&left)
            .map(async |(item, left)| self.change(CHANGE_STOCK, &[left, &5, &0, item, &1]).await);
        assert!(join_all(stock).await.iter().all(|count| *count == 1));
        let lines = items.iter().zip(1..).map(async |(item, number): (&i32, i32)| {
            self.change(ADD_LINE, &[&order, &district, &1, &number, item, &1, &"dist"]).await
        });
        assert!(join_all(lines).await.iter().all(|count| *count == 1));
        self.client.batch_execute("COMMIT").await.unwrap();
        order
    }

    async fn pay(&self, district: i32) {
        self.client.batch_execute("BEGIN").await.unwrap();
        assert_eq!(self.change(PAY_WAREHOUSE, &[&5, &1]).await, 1);
        assert_eq!(self.change(PAY_DISTRICT, &[&5, &1, &district]).await, 1);
        let named = self.rows(BY_NAME, &[&1, &district, &"BARBARBAR"]).await;
        let firsts: Vec<&str> = named.iter().map(|row| row.get(0)).collect();
        assert_eq!(firsts.len(), 10);
        assert!(firsts.is_sorted());
        let customer: i32 = named[named.len() / 2].get(1);
        assert_eq!(self.change(PAY_CUSTOMER, &[&5, &1, &district, &customer]).await, 1);
        assert_eq!(self.change(ADD_HISTORY, &[&district, &1, &customer, &district, &1, &"h"]).await, 1);
        self.client.batch_execute("COMMIT").await.unwrap();
    }

    /// Delivers each district's oldest order: which they were.
    async fn deliver(&self) -> Vec<i32> {
        let mut delivered = Vec::new();
        self.client.batch_execute("BEGIN").await.unwrap();
        for district in 1..=10 {
            let oldest = self.rows(OLDEST, &[&district, &1]).await;
            // Another may have taken it while this one waited: then it has none, as PostgreSQL has it.
            let [oldest] = oldest.as_slice() else { continue };
            let order: i32 = oldest.get(0);
            assert_eq!(self.change(TAKE, &[&order, &district, &1]).await, 1);
            assert_eq!(self.change(CARRY, &[&7, &order, &district, &1]).await, 1);
            assert!(self.change(DELIVER, &[&order, &district, &1]).await >= 5);
            assert!(self.rows(TOTAL, &[&order, &district, &1]).await[0].get::<_, Option<Numeric>>(0).is_some());
            delivered.push(order);
        }
        self.client.batch_execute("COMMIT").await.unwrap();
        delivered
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn transactions_of_a_tpcc_client_leave_the_database_consistent() {
    let (server, client) = TestServer::start_connected().await;
    client.batch_execute(TABLES).await.unwrap();
    let terminals: Vec<Terminal> = join_all((0..6).map(|_| Terminal::new(&server))).await;
    let work = terminals.iter().zip(0i32..).map(async |(terminal, number)| {
        for round in 0..10i32 {
            let district = (number + round) % 10 + 1;
            // In one order everywhere, so that nobody waits for one who waits for him.
            let items: Vec<i32> = (0..5 + round).map(|line| number + 1 + 7 * line).collect();
            let order = terminal.order(district, number * 4 + 1, &items).await;
            assert!(order > 30);
            terminal.pay(district).await;
            let last = terminal.rows(LAST_ORDER, &[&1, &district, &(number * 4 + 1)]).await;
            assert!(last[0].get::<_, i32>(0) >= order);
            if round % 5 == 4 {
                terminal.deliver().await;
            }
            let low: i64 = terminal.rows(LOW_STOCK, &[&1, &district, &order, &(order - 20), &1000]).await[0].get(0);
            assert!((25..=200).contains(&low), "{low}");
        }
    });
    join_all(work).await;
    let of = async |sql: &str| client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0);
    for (condition, sql) in [
        ("1", "SELECT count(*) FROM warehouse WHERE w_ytd <> (SELECT sum(d_ytd) FROM district)"),
        (
            "2",
            "SELECT count(*) FROM district WHERE d_next_o_id - 1 <> (SELECT max(o_id) FROM oorder WHERE o_d_id = d_id)
               OR d_next_o_id - 1 <> (SELECT max(no_o_id) FROM new_order WHERE no_d_id = d_id)",
        ),
        (
            "3",
            "SELECT count(*) FROM (SELECT max(no_o_id) - min(no_o_id) + 1 - count(*) AS n FROM new_order GROUP BY no_d_id) WHERE n <> 0",
        ),
        (
            "4",
            "SELECT count(*) FROM (SELECT (SELECT sum(o_ol_cnt) FROM oorder) - (SELECT count(*) FROM order_line) AS n) WHERE n <> 0",
        ),
        (
            "5",
            "SELECT count(*) FROM oorder LEFT JOIN new_order ON no_d_id = o_d_id AND no_o_id = o_id WHERE (o_carrier_id IS NULL) = (no_o_id IS NULL)",
        ),
        (
            "7",
            "SELECT count(*) FROM oorder, order_line WHERE o_id = ol_o_id AND o_d_id = ol_d_id AND o_id > 20 AND (ol_delivery_d IS NULL) <> (o_carrier_id IS NULL)",
        ),
        ("8", "SELECT count(*) FROM warehouse WHERE w_ytd <> 300 + (SELECT sum(h_amount) FROM history)"),
    ] {
        assert_eq!(of(sql).await, 0, "condition {condition}");
    }
    assert_eq!(of("SELECT count(*) FROM oorder").await, 300 + 60);
    assert_eq!(of("SELECT count(*) FROM history").await, 60);
    assert_eq!(
        of("SELECT sum(s_order_cnt)::bigint FROM stock").await,
        of("SELECT count(*) FROM order_line WHERE ol_o_id > 30").await
    );
    server.stop().await;
}
