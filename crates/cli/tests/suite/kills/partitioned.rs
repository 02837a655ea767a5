//! Partitioned tables of the workload: rows that move between partitions, taking those along that refer to them, and
//! partitions that are made, attached, detached and dropped.

use super::{CLIENTS, KEPT_PARTITIONS, number};
use tokio_postgres::Client;

/// Rows of each client that move with each of its transactions.
const MOVING: i64 = 3;

/// Rows move between two plain partitions, one far, and two within a third; what refers to them is partitioned otherwise.
pub fn make() -> String {
    format!(
        "CREATE TABLE moving (client int, id int, k int, number bigint, PRIMARY KEY (client, id, k)) PARTITION BY LIST (k);
         CREATE TABLE moving_0 PARTITION OF moving FOR VALUES IN (0) TABLESPACE far;
         CREATE TABLE moving_1 PARTITION OF moving FOR VALUES IN (1);
         CREATE TABLE moving_2 PARTITION OF moving DEFAULT PARTITION BY HASH (client);
         CREATE TABLE moving_20 PARTITION OF moving_2 FOR VALUES WITH (MODULUS 2, REMAINDER 0);
         CREATE TABLE moving_21 PARTITION OF moving_2 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
         INSERT INTO moving SELECT c, i, i % 4, 0 FROM generate_series(0, {}) AS c, generate_series(1, {MOVING}) AS i;
         CREATE TABLE follow (client int, id int, k int, FOREIGN KEY (client, id, k) REFERENCES moving ON UPDATE CASCADE)
             PARTITION BY RANGE (k);
         CREATE TABLE follow_0 PARTITION OF follow FOR VALUES FROM (0) TO (2);
         CREATE TABLE follow_1 PARTITION OF follow FOR VALUES FROM (2) TO (4) TABLESPACE far;
         INSERT INTO follow SELECT client, id, k FROM moving;
         CREATE TABLE sliced (k bigint, x bigint) PARTITION BY LIST (k);
         CREATE TABLE slice_1 PARTITION OF sliced FOR VALUES IN (1);
         INSERT INTO sliced SELECT 1, x FROM generate_series(0, 1) AS g(x);",
        CLIENTS - 1
    )
}

/// What transaction `next` of a client does.
pub fn moved(client: usize, next: i64) -> String {
    format!("UPDATE moving SET k = (id + {next}) % 4, number = {next} WHERE client = {client};")
}

/// A partition comes with its rows, the last one leaves, and one that left is dropped: the definer's transaction `next`.
pub fn sliced(next: i64) -> String {
    format!(
        "CREATE TABLE slice_{next} (k bigint, x bigint);
         INSERT INTO slice_{next} SELECT {next}, x FROM generate_series(1, {next}) AS g(x);
         ALTER TABLE sliced ATTACH PARTITION slice_{next} FOR VALUES IN ({next});
         INSERT INTO sliced VALUES ({next}, 0);
         ALTER TABLE sliced DETACH PARTITION slice_{};
         DROP TABLE IF EXISTS slice_{};",
        next - 1,
        (next - KEPT_PARTITIONS).max(0)
    )
}

/// A partition that leaves and comes back while others move rows to it.
pub const BACK: &str = "BEGIN; ALTER TABLE follow DETACH PARTITION follow_1;
     ALTER TABLE follow ATTACH PARTITION follow_1 FOR VALUES FROM (2) TO (4); COMMIT";

/// What every snapshot has: one row of `follow` for each of `moving`, as many as ever.
pub const WATCH: &str = "SELECT (SELECT count(*) FROM moving), (SELECT count(*) FROM follow),
     (SELECT count(*) FROM moving JOIN follow USING (client, id, k))";

pub async fn watch(client: &Client) -> Result<[i64; 3], tokio_postgres::Error> {
    client.query_one(WATCH, &[]).await.map(|row| [0, 1, 2].map(|column| row.get(column)))
}

pub const WATCHED: [i64; 3] = [MOVING * CLIENTS as i64; 3];

/// `last`: by client, the last transaction that is there; `slices`: the last of the definer's.
pub async fn check(client: &Client, last: &[i64], slices: i64, about: &str) {
    assert_eq!(watch(client).await.unwrap(), WATCHED, "{about}");
    for (of, last) in last.iter().enumerate() {
        let there =
            format!("SELECT count(*) FROM moving WHERE client = {of} AND number = {last} AND k = (id + {last}) % 4");
        assert_eq!(number(client, &there).await, MOVING, "{about}: the rows of {of} that move, of {last}");
    }
    let astray = "SELECT (SELECT count(*) FROM moving_0 WHERE k <> 0) + (SELECT count(*) FROM moving_1 WHERE k <> 1)
        + (SELECT count(*) FROM moving_2 WHERE k < 2) + (SELECT count(*) FROM follow_0 WHERE k > 1)
        + (SELECT count(*) FROM follow_1 WHERE k < 2)";
    assert_eq!(number(client, astray).await, 0, "{about}");
    let within = "SELECT relname FROM pg_inherits JOIN pg_class ON oid = inhrelid WHERE inhparent = 'sliced'::regclass";
    let rows = client.query(within, &[]).await.unwrap();
    let names: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(names, [format!("slice_{slices}")], "{about}");
    for of in (slices - KEPT_PARTITIONS + 1).max(1)..=slices {
        let rows = format!("SELECT count(*) FROM slice_{of} WHERE k = {of} AND x BETWEEN 0 AND {of}");
        assert_eq!(number(client, &rows).await, of + 1, "{about}: slice {of}");
    }
    let there = "SELECT count(*) FROM pg_class WHERE relname LIKE 'slice\\_%' AND relkind = 'r'";
    assert_eq!(number(client, there).await, KEPT_PARTITIONS.min(slices), "{about}");
}
