//! What the tables have, as their clients know it.
//!
//! Each value says where it belongs: it follows from its row's key, its column's name and the number of the statement that
//! wrote it. So a value in another row or another column is told from the right one, and a client computes what the
//! server computes of a series of numbers.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Mutex, MutexGuard};

/// Sessions that change rows, each of keys of its own: those that leave its number by this many.
pub const WRITERS: i64 = 3;

/// Values of the column `g`, so that no key of its index has many rows.
const GROUPS: i64 = 251;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Group,
    Text,
    Int,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    pub name: String,
    pub kind: Kind,
    pub default: Option<i64>,
}

/// Without its key, by column. Texts go by their number.
pub type Row = Box<[Option<i64>]>;

/// What a transaction leaves of rows: `None` of those that are gone.
pub type Delta = BTreeMap<i64, Option<Row>>;

/// The value of a column in the row with a key, as written by a statement.
pub fn value(column: &Column, key: i64, version: i64) -> i64 {
    (key * 31 + salt(&column.name, version)) % modulus(column)
}

fn salt(name: &str, version: i64) -> i64 {
    name.bytes().fold(version * 17, |salt, byte| (salt * 131 + i64::from(byte)) % 1_000_003)
}

fn modulus(column: &Column) -> i64 {
    match column.kind {
        Kind::Group => GROUPS,
        Kind::Text | Kind::Int => 1_000_033,
    }
}

/// The same, of an expression for the key.
pub fn value_sql(column: &Column, key: &str, version: i64) -> String {
    let number = format!("({key} * 31 + {}) % {}", salt(&column.name, version), modulus(column));
    match column.kind {
        Kind::Text => format!("'n' || ({number})"),
        Kind::Group | Kind::Int => number,
    }
}

/// As COPY and clients see it.
pub fn shown(kind: Kind, value: Option<i64>) -> String {
    match (kind, value) {
        (_, None) => "\\N".to_owned(),
        (Kind::Text, Some(number)) => format!("n{number}"),
        (_, Some(number)) => number.to_string(),
    }
}

pub fn literal(kind: Kind, value: i64) -> String {
    match kind {
        Kind::Text => format!("'n{value}'"),
        Kind::Group | Kind::Int => value.to_string(),
    }
}

#[derive(Debug)]
pub struct Table {
    pub name: String,
    /// None: it is a plain table.
    pub partitions: u32,
    /// Beside the key `k`.
    pub columns: Vec<Column>,
    /// It has an index on `g`.
    pub indexed: bool,
    /// The clerk may read and write it.
    pub granted: bool,
    /// By writer; each of them changes its own while it shares the table.
    pub slices: Vec<Mutex<BTreeMap<i64, Row>>>,
}

impl Clone for Table {
    fn clone(&self) -> Table {
        let slices = (0..WRITERS).map(|of| Mutex::new(self.slice(of).clone())).collect();
        Table { name: self.name.clone(), columns: self.columns.clone(), slices, ..*self }
    }
}

pub fn new_columns(random: &mut impl rand::Rng, ordinal: &mut u32) -> Vec<Column> {
    let column = |name: &str, kind, default| Column { name: name.to_owned(), kind, default };
    let mut columns = vec![column("g", Kind::Group, None), column("note", Kind::Text, None)];
    for _ in 0..random.random_range(2..4) {
        *ordinal += 1;
        columns.push(column(&format!("w{ordinal}"), Kind::Int, None));
    }
    columns
}

impl Table {
    pub fn new(name: &str, partitions: u32, columns: Vec<Column>) -> Table {
        let slices = (0..WRITERS).map(|_| Mutex::default()).collect();
        Table { name: name.to_owned(), partitions, columns, indexed: false, granted: false, slices }
    }

    pub fn slice(&self, of: i64) -> MutexGuard<'_, BTreeMap<i64, Row>> {
        self.slices[of as usize].lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn len(&self) -> usize {
        (0..WRITERS).map(|of| self.slice(of).len()).sum()
    }

    pub fn clear(&mut self) {
        (0..WRITERS).for_each(|of| self.slice(of).clear());
    }

    pub fn apply(&self, of: i64, delta: &Delta) {
        let mut slice = self.slice(of);
        for (key, row) in delta {
            match row {
                Some(row) => drop(slice.insert(*key, row.clone())),
                None => drop(slice.remove(key)),
            }
        }
    }

    /// All rows, by key.
    pub fn rows(&self) -> BTreeMap<i64, Row> {
        (0..WRITERS)
            .flat_map(|of| self.slice(of).iter().map(|(key, row)| (*key, row.clone())).collect::<Vec<_>>())
            .collect()
    }

    pub fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.name == name)
    }

    pub fn names(&self) -> Vec<String> {
        self.columns.iter().map(|column| column.name.clone()).collect()
    }

    /// The key and all columns.
    pub fn list(&self) -> String {
        format!("k, {}", self.names().join(", "))
    }

    pub fn map_rows(&mut self, change: impl Fn(i64, Row) -> Row) {
        for slice in &mut self.slices {
            let slice = slice.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
            *slice = std::mem::take(slice).into_iter().map(|(key, row)| (key, change(key, row))).collect();
        }
    }

    /// As it is made, without rows.
    pub fn create(&self) -> String {
        let mut columns = vec!["k bigint PRIMARY KEY".to_owned()];
        for column in &self.columns {
            let sql_type = if column.kind == Kind::Text { "text" } else { "bigint" };
            let default =
                column.default.map_or(String::new(), |default| format!(" DEFAULT {}", literal(column.kind, default)));
            columns.push(format!("{} {sql_type}{default}", column.name));
        }
        let (name, columns) = (&self.name, columns.join(", "));
        let mut sql = match self.partitions {
            0 => format!("CREATE TABLE {name} ({columns});"),
            _ => format!("CREATE TABLE {name} ({columns}) PARTITION BY HASH (k);"),
        };
        for at in 0..self.partitions {
            let of = self.partitions;
            sql += &format!(
                " CREATE TABLE {name}_{at} PARTITION OF {name} FOR VALUES WITH (MODULUS {of}, REMAINDER {at});"
            );
        }
        if self.indexed {
            sql += &format!(" CREATE INDEX {name}_by_g ON {name} (g);");
        }
        if self.granted {
            sql += &format!(" GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO clerk;");
        }
        sql
    }
}

/// How rows come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Copy,
    /// `INSERT … SELECT` of a series of numbers.
    Series,
    Values,
    /// `INSERT … SELECT` of rows that are spelt out.
    SelectValues,
    /// One row, with parameters.
    Prepared,
    Upsert,
    Merge,
}

/// A statement that changes rows of one writer.
#[derive(Clone, Debug)]
pub enum Change {
    /// Of keys `first`, `first + WRITERS`, …; the columns are those that the statement names.
    Insert {
        form: Form,
        columns: Vec<Column>,
        first: i64,
        count: i64,
        version: i64,
    },
    Update {
        columns: Vec<Column>,
        from: i64,
        to: i64,
        version: i64,
    },
    Delete {
        from: i64,
        to: i64,
    },
}

impl Change {
    /// What it comes to in a table, over what its transaction has changed already. `None`: it must fail, as the table does not have what
    /// it names.
    pub fn apply(&self, table: &Table, of: i64, delta: &mut Delta) -> Option<usize> {
        let slice = table.slice(of);
        let now = |delta: &Delta, key: i64| match delta.get(&key) {
            Some(row) => row.clone(),
            None => slice.get(&key).cloned(),
        };
        let places = |columns: &[Column]| {
            columns
                .iter()
                .map(|column| table.column(&column.name).map(|at| (at, column.clone())))
                .collect::<Option<Vec<_>>>()
        };
        match self {
            Change::Insert { columns, first, count, version, form } => {
                let places = places(columns)?;
                for key in (0..*count).map(|step| first + step * WRITERS) {
                    let known = now(delta, key);
                    assert!(
                        known.is_none() || matches!(form, Form::Upsert | Form::Merge),
                        "the workload repeats a key"
                    );
                    let mut row = known.unwrap_or_else(|| table.columns.iter().map(|column| column.default).collect());
                    places.iter().for_each(|(at, column)| row[*at] = Some(value(column, key, *version)));
                    delta.insert(key, Some(row));
                }
                Some(*count as usize)
            }
            Change::Update { from, to, .. } | Change::Delete { from, to } => {
                let places = match self {
                    Change::Update { columns, .. } => places(columns)?,
                    _ => Vec::new(),
                };
                let bounds = (Bound::Included(*from), Bound::Included(*to));
                let mut keys: Vec<i64> = slice.range(bounds).map(|(key, _)| *key).collect();
                keys.extend(delta.range(bounds).map(|(key, _)| *key));
                keys.sort_unstable();
                keys.dedup();
                let mut changed = 0;
                for key in keys {
                    let Some(mut row) = now(delta, key) else { continue };
                    changed += 1;
                    match self {
                        Change::Update { version, .. } => {
                            places.iter().for_each(|(at, column)| row[*at] = Some(value(column, key, *version)));
                            delta.insert(key, Some(row));
                        }
                        _ => drop(delta.insert(key, None)),
                    }
                }
                Some(changed)
            }
        }
    }

    /// As text. `COPY` takes its rows apart from it, `Prepared` its values.
    pub fn sql(&self, table: &str, of: i64) -> String {
        let within = |from: &i64, to: &i64| match from == to {
            true => format!("k = {from}"),
            false => format!("k BETWEEN {from} AND {to} AND k % {WRITERS} = {of}"),
        };
        match self {
            Change::Insert { form, columns, first, count, version } => {
                let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
                let into = format!("{table} (k, {})", names.join(", "));
                let rows = || {
                    let row = |key: i64| {
                        let values = columns.iter().map(|column| literal(column.kind, value(column, key, *version)));
                        format!("({key}, {})", values.collect::<Vec<_>>().join(", "))
                    };
                    (0..*count).map(|step| row(first + step * WRITERS)).collect::<Vec<_>>().join(", ")
                };
                let settings = |from: &str| {
                    names.iter().map(|name| format!("{name} = {from}.{name}")).collect::<Vec<_>>().join(", ")
                };
                match form {
                    Form::Copy => format!("COPY {into} FROM STDIN"),
                    Form::Series => {
                        let key = format!("({first}::bigint + n * {WRITERS})");
                        let values: Vec<String> =
                            columns.iter().map(|column| value_sql(column, &key, *version)).collect();
                        let last = count - 1;
                        format!(
                            "INSERT INTO {into} SELECT {key}, {} FROM generate_series(0, {last}) AS s(n)",
                            values.join(", ")
                        )
                    }
                    Form::Values => format!("INSERT INTO {into} VALUES {}", rows()),
                    Form::SelectValues => format!("INSERT INTO {into} SELECT * FROM (VALUES {}) AS s", rows()),
                    Form::Prepared => {
                        let places: Vec<String> = (0..columns.len()).map(|at| format!("${}", at + 2)).collect();
                        format!("INSERT INTO {into} VALUES ($1, {})", places.join(", "))
                    }
                    Form::Upsert => format!(
                        "INSERT INTO {into} VALUES {} ON CONFLICT (k) DO UPDATE SET {}",
                        rows(),
                        settings("excluded")
                    ),
                    Form::Merge => format!(
                        "MERGE INTO {table} AS t USING (VALUES {}) AS s(k, {1}) ON t.k = s.k
                         WHEN MATCHED THEN UPDATE SET {2} WHEN NOT MATCHED THEN INSERT (k, {1}) VALUES (s.k, {3})",
                        rows(),
                        names.join(", "),
                        settings("s"),
                        names.iter().map(|name| format!("s.{name}")).collect::<Vec<_>>().join(", ")
                    ),
                }
            }
            Change::Update { columns, from, to, version } => {
                let settings: Vec<String> = columns
                    .iter()
                    .map(|column| format!("{} = {}", column.name, value_sql(column, "k", *version)))
                    .collect();
                format!("UPDATE {table} SET {} WHERE {}", settings.join(", "), within(from, to))
            }
            Change::Delete { from, to } => format!("DELETE FROM {table} WHERE {}", within(from, to)),
        }
    }
}
