//! Sessions that run random transactions and write down what they saw.

use super::history::{History, Key, Level, Op, Step, Transaction};
use crate::server::code;
use rand::Rng;
use rand::rngs::StdRng;
use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;
use tokio_postgres::{Client, Error, Row};

/// Lists of either kind.
const LISTS: i64 = 5;
/// Of lists and registers.
const GROUPS: i64 = 2;
/// Registers that are written to are among the last so many that were made.
const RECENT: i64 = 8;

/// What a transaction may come to without fault of its own.
const REFUSALS: [&str; 3] = ["40001", "40P01", "23505"];

/// The tables of one round.
#[derive(Clone)]
pub struct Tables {
    pub lists: String,
    pub elements: String,
    pub registers: String,
}

impl Tables {
    pub fn of_round(round: usize) -> Tables {
        let named = |kind: &str| format!("{kind}_{round}");
        Tables { lists: named("lists"), elements: named("elements"), registers: named("registers") }
    }

    pub fn names(&self) -> [&String; 3] {
        [&self.lists, &self.elements, &self.registers]
    }

    pub fn create(&self, merge: &str, place: &str) -> String {
        let how = format!("WITH (merge = {merge}) TABLESPACE {place}");
        let Tables { lists, elements, registers } = self;
        format!(
            "CREATE TABLE {lists} (id int PRIMARY KEY, grp int NOT NULL, items text NOT NULL) {how};
             CREATE TABLE {elements} (list int, pos int, tag int NOT NULL, value bigint NOT NULL, PRIMARY KEY (list, pos)) {how};
             CREATE TABLE {registers} (id int PRIMARY KEY, grp int NOT NULL, value bigint NOT NULL, previous bigint) {how};
             CREATE INDEX ON {lists} (grp)"
        )
    }

    pub fn drop(&self) -> String {
        self.names().map(|name| format!("DROP TABLE {name}")).join("; ")
    }
}

/// What the sessions of a round share.
pub struct Recorder {
    start: Instant,
    value: AtomicI64,
    register: AtomicI64,
}

impl Recorder {
    pub fn new() -> Recorder {
        Recorder { start: Instant::now(), value: AtomicI64::new(1), register: AtomicI64::new(1) }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn next_value(&self) -> i64 {
        self.value.fetch_add(1, Ordering::Relaxed)
    }
}

fn list(id: i64) -> Key {
    Key { table: "lists", group: id % GROUPS, id }
}

fn elements(id: i64) -> Key {
    Key { table: "elements", group: 0, id }
}

fn register(id: i64) -> Key {
    Key { table: "registers", group: id % GROUPS, id }
}

fn values(items: &str) -> Vec<i64> {
    items.split(',').map(|item| item.parse().expect("a number")).collect()
}

pub struct Session {
    pub number: usize,
    pub client: Client,
    pub tables: Tables,
    pub recorder: std::sync::Arc<Recorder>,
    pub random: StdRng,
}

impl Session {
    /// Transactions of one level, or of all.
    pub async fn run(mut self, level: Option<Level>, transactions: usize) -> History {
        let mut history = History::new();
        for _ in 0..transactions {
            let level = level.unwrap_or_else(|| Level::ALL[self.random.random_range(0..3)]);
            history.push(self.transact(level).await);
        }
        history
    }

    async fn transact(&mut self, level: Level) -> Transaction {
        let began = self.recorder.now();
        let mut steps = Vec::new();
        let wanted = self.random.random_range(1..6);
        let mut done = self.client.batch_execute(&format!("BEGIN ISOLATION LEVEL {}", level.sql())).await;
        for _ in 0..wanted {
            if done.is_err() {
                break;
            }
            done = self.step(&mut steps).await;
        }
        let mut committed = false;
        if done.is_ok() {
            let gives_up = self.random.random_range(0..12) == 0;
            done = self.client.batch_execute(if gives_up { "ROLLBACK" } else { "COMMIT" }).await;
            committed = done.is_ok() && !gives_up;
        }
        if let Err(error) = done {
            assert!(REFUSALS.contains(&code(&error)), "{level:?}, {steps:?}: {error:?}");
            // Nothing, where the commit was refused.
            self.client.batch_execute("ROLLBACK").await.expect("a rollback");
        }
        Transaction { session: self.number, level, began, ended: self.recorder.now(), committed, steps }
    }

    /// One operation, now and then undone.
    async fn step(&mut self, steps: &mut Vec<Step>) -> Result<(), Error> {
        let undone = self.random.random_range(0..12) == 0;
        if undone {
            self.client.batch_execute("SAVEPOINT before").await?;
        }
        let ops = match self.random.random_range(0..3) {
            0 => self.on_lists().await?,
            1 => self.on_elements().await?,
            _ => self.on_registers().await?,
        };
        steps.extend(ops.into_iter().map(|op| Step { op, undone }));
        if undone {
            self.client.batch_execute("ROLLBACK TO before").await?;
        }
        Ok(())
    }

    async fn query(&self, sql: String) -> Result<Vec<Row>, Error> {
        self.client.query(&sql, &[]).await
    }

    fn lock(&mut self) -> &'static str {
        ["", "", "", " FOR UPDATE", " FOR SHARE"][self.random.random_range(0..5)]
    }

    async fn on_lists(&mut self) -> Result<Vec<Op>, Error> {
        let (table, id) = (self.tables.lists.clone(), self.random.random_range(0..LISTS));
        let lock = self.lock();
        let (keys, clause): (Vec<i64>, String) = match self.random.random_range(0..8) {
            0..3 => {
                let value = self.recorder.next_value();
                let update = format!("UPDATE {table} SET items = items || ',{value}' WHERE id = {id}");
                let insert = format!(
                    "INSERT INTO {table} VALUES ({id}, {}, '{value}')
                     ON CONFLICT (id) DO UPDATE SET items = {table}.items || ',{value}'",
                    list(id).group
                );
                if self.random.random() || self.client.execute(&update, &[]).await? == 0 {
                    self.client.execute(&insert, &[]).await?;
                }
                return Ok(vec![Op::Append { key: list(id), value }]);
            }
            3 => (vec![id], format!("id = {id}")),
            // No index has it.
            4 => (vec![id], format!("id + 0 = {id}")),
            5 => ((id..LISTS).collect(), format!("id >= {id}")),
            6 => {
                let group = id % GROUPS;
                ((0..LISTS).filter(|id| id % GROUPS == group).collect(), format!("grp = {group}"))
            }
            _ => ((0..LISTS).collect(), "true".to_owned()),
        };
        let rows = self.query(format!("SELECT id, items FROM {table} WHERE {clause}{lock}")).await?;
        let found: HashMap<i32, Vec<i64>> = rows.iter().map(|row| (row.get(0), values(row.get(1)))).collect();
        assert_eq!(found.len(), rows.len(), "a row comes once");
        assert!(found.keys().all(|id| keys.contains(&i64::from(*id))), "{clause}: {found:?}");
        let read = |id: i64| Op::List { key: list(id), values: found.get(&(id as i32)).cloned().unwrap_or_default() };
        Ok(keys.into_iter().map(read).collect())
    }

    async fn on_elements(&mut self) -> Result<Vec<Op>, Error> {
        let (table, id) = (self.tables.elements.clone(), self.random.random_range(0..LISTS));
        let by = ["list", "tag", "list + 0"][self.random.random_range(0..3)];
        let key = elements(id);
        Ok(match self.random.random_range(0..8) {
            0..3 => {
                let value = self.recorder.next_value();
                let sql = format!(
                    "INSERT INTO {table} SELECT {id}, coalesce(max(pos), 0) + 1, {id}, {value} FROM {table} WHERE {by} = {id}"
                );
                self.client.execute(&sql, &[]).await?;
                vec![Op::Append { key, value }]
            }
            3..5 => {
                let row = self.query(format!("SELECT count(*) FROM {table} WHERE {by} = {id}")).await?;
                vec![Op::Length { key, length: row[0].get::<_, i64>(0) as usize }]
            }
            5 => {
                let sql = format!("SELECT coalesce(max(pos), 0)::bigint FROM {table} WHERE {by} = {id}");
                vec![Op::Length { key, length: self.query(sql).await?[0].get::<_, i64>(0) as usize }]
            }
            6 => {
                let rows = self.query(format!("SELECT value FROM {table} WHERE {by} = {id} ORDER BY pos")).await?;
                vec![Op::List { key, values: rows.iter().map(|row| row.get(0)).collect() }]
            }
            _ => {
                let rows = self.query(format!("SELECT list, value FROM {table} ORDER BY list, pos")).await?;
                let of = |id: i64| rows.iter().filter(move |row| i64::from(row.get::<_, i32>(0)) == id);
                let read = |id| Op::List { key: elements(id), values: of(id).map(|row| row.get(1)).collect() };
                (0..LISTS).map(read).collect()
            }
        })
    }

    async fn on_registers(&mut self) -> Result<Vec<Op>, Error> {
        let table = self.tables.registers.clone();
        let last = self.recorder.register.load(Ordering::Relaxed);
        let id = self.random.random_range((last - RECENT).max(0)..=last);
        let key = register(id);
        let clause = [format!("id = {id}"), format!("id + 0 = {id}")][self.random.random_range(0..2)].clone();
        let lock = self.lock();
        Ok(match self.random.random_range(0..10) {
            0..2 => {
                let (id, value) = (self.recorder.register.fetch_add(1, Ordering::Relaxed), self.recorder.next_value());
                let sql = format!("INSERT INTO {table} VALUES ({id}, {}, {value})", register(id).group);
                self.client.execute(&sql, &[]).await?;
                vec![Op::Write { key: register(id), before: None, value: Some(value) }]
            }
            2..4 => {
                let value = self.recorder.next_value();
                let sql =
                    format!("UPDATE {table} SET previous = value, value = {value} WHERE {clause} RETURNING previous");
                match self.query(sql).await?.first() {
                    Some(row) => vec![Op::Write { key, before: row.get(0), value: Some(value) }],
                    None => vec![Op::Row { key, value: None }],
                }
            }
            4 => {
                // Values of their own for all of a group.
                let (group, values) = (key.group, 64);
                let first = self.recorder.value.fetch_add(values, Ordering::Relaxed);
                let sql = format!(
                    "UPDATE {table} SET previous = value, value = {first} + id % {values}
                     WHERE grp = {group} AND id > {last} - {RECENT} RETURNING id, previous, value"
                );
                let write = |row: &Row| Op::Write {
                    key: register(row.get::<_, i32>(0).into()),
                    before: row.get(1),
                    value: row.get(2),
                };
                self.query(sql).await?.iter().map(write).collect()
            }
            5..7 => {
                let rows = self.query(format!("DELETE FROM {table} WHERE {clause} RETURNING value")).await?;
                match rows.first() {
                    Some(row) => vec![Op::Write { key, before: row.get(0), value: None }],
                    None => vec![Op::Row { key, value: None }],
                }
            }
            7 => {
                let rows = self.query(format!("SELECT value FROM {table} WHERE {clause}{lock}")).await?;
                vec![Op::Row { key, value: rows.first().map(|row| row.get(0)) }]
            }
            _ => {
                let group = key.group;
                let sql = format!("SELECT id, value FROM {table} WHERE grp = {group}{lock}");
                let rows = self.query(sql).await?;
                let rows = rows.iter().map(|row| (row.get::<_, i32>(0).into(), row.get(1))).collect();
                vec![Op::Group { table: "registers", group, rows }]
            }
        })
    }

    /// Everything, once all others are done.
    pub async fn look_at_all(self) -> History {
        let began = self.recorder.now();
        let Tables { lists, elements: of_elements, registers } = &self.tables;
        let mut ops = Vec::new();
        let rows = self.query(format!("SELECT id, items FROM {lists}")).await.unwrap();
        let found: HashMap<i32, Vec<i64>> = rows.iter().map(|row| (row.get(0), values(row.get(1)))).collect();
        let read = |id: i64| Op::List { key: list(id), values: found.get(&(id as i32)).cloned().unwrap_or_default() };
        ops.extend((0..LISTS).map(read));
        let rows = self.query(format!("SELECT list, value FROM {of_elements} ORDER BY list, pos")).await.unwrap();
        let of = |id: i64| rows.iter().filter(move |row| i64::from(row.get::<_, i32>(0)) == id);
        ops.extend((0..LISTS).map(|id| Op::List { key: elements(id), values: of(id).map(|row| row.get(1)).collect() }));
        for group in 0..GROUPS {
            let rows = self.query(format!("SELECT id, value FROM {registers} WHERE grp = {group}")).await.unwrap();
            let rows = rows.iter().map(|row| (row.get::<_, i32>(0).into(), row.get(1))).collect();
            ops.push(Op::Group { table: "registers", group, rows });
        }
        let steps = ops.into_iter().map(|op| Step { op, undone: false }).collect();
        let (session, ended) = (self.number, self.recorder.now());
        vec![Transaction { session, level: Level::ReadCommitted, began, ended, committed: true, steps }]
    }
}
