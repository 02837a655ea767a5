//! Whatever rows went through, every way to them gives the same answer: by index, by scan, from delta and from main, under every merge policy and
//! placement.
//!
//! One random history is run over a table for each policy in each placement, and over a model. Queries are asked in two forms, of which
//! an index can take one, of all tables; also in an older snapshot that stays open. `TIDEPOOL_STRESS_SEED` and
//! `TIDEPOOL_STRESS_SECONDS` make it another and a longer history.

use crate::server::TestServer;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::{Duration, Instant};
use tokio_postgres::{Client, SimpleQueryMessage};

const MERGES: [&str; 3] = ["never", "auto", "immediate"];

/// Ids that rows are written by one by one.
const IDS: i64 = 60;

#[derive(Clone, Debug, PartialEq)]
struct Row {
    a: Option<i64>,
    b: i64,
    c: Option<String>,
}

type Model = BTreeMap<i64, Row>;

/// What rows are asked for by.
#[derive(Clone, Debug)]
enum Condition {
    All,
    Id(i64),
    Ids(i64, i64),
    OneOf(Vec<i64>),
    A(i64),
    Between(i64, i64),
    NoA,
    C(String),
    AAndB(i64, i64),
}

impl Condition {
    fn random(random: &mut StdRng) -> Condition {
        let (id, a) = (random.random_range(0..IDS), random.random_range(0..12));
        match random.random_range(0..9) {
            0 => Condition::All,
            1 => Condition::Id(id),
            2 => Condition::Ids(id, id + random.random_range(0..200)),
            3 => Condition::OneOf((0..random.random_range(1..6)).map(|step| id + 7 * step).collect()),
            4 => Condition::A(a),
            5 => Condition::Between(a, a + 2),
            6 => Condition::NoA,
            7 => Condition::C(text_of(a)),
            _ => Condition::AAndB(a, random.random_range(0..1000)),
        }
    }

    /// By columns as they are, so that an index may be used, or by others of the same values.
    fn sql(&self, plain: bool) -> String {
        let (id, a, c) = if plain { ("id", "a", "c") } else { ("(id + 0)", "(a + 0)", "(c || '')") };
        match self {
            Condition::All => "true".to_owned(),
            Condition::Id(of) => format!("{id} = {of}"),
            Condition::Ids(first, last) => format!("{id} BETWEEN {first} AND {last}"),
            Condition::OneOf(ids) => {
                let ids: Vec<String> = ids.iter().map(i64::to_string).collect();
                format!("{id} IN ({})", ids.join(", "))
            }
            Condition::A(of) => format!("{a} = {of}"),
            Condition::Between(first, last) => format!("{a} >= {first} AND {a} <= {last}"),
            Condition::NoA => format!("{a} IS NULL"),
            Condition::C(of) => format!("{c} = '{of}'"),
            Condition::AAndB(of, above) => format!("{a} = {of} AND b > {above}"),
        }
    }

    fn holds(&self, id: i64, row: &Row) -> bool {
        match self {
            Condition::All => true,
            Condition::Id(of) => id == *of,
            Condition::Ids(first, last) => (*first..=*last).contains(&id),
            Condition::OneOf(ids) => ids.contains(&id),
            Condition::A(of) => row.a == Some(*of),
            Condition::Between(first, last) => row.a.is_some_and(|a| (*first..=*last).contains(&a)),
            Condition::NoA => row.a.is_none(),
            Condition::C(of) => row.c.as_ref() == Some(of),
            Condition::AAndB(of, above) => row.a == Some(*of) && row.b > *above,
        }
    }
}

fn text_of(number: i64) -> String {
    format!("{}{number}", "text ".repeat(number as usize % 7))
}

fn shown(value: Option<impl ToString>) -> String {
    value.map_or("NULL".to_owned(), |value| value.to_string())
}

/// The answer's lines, of the rows that meet a condition.
type Expected = fn(&[(i64, &Row)]) -> Vec<String>;

/// What is asked of the rows that meet a condition.
const ASKED: [(&str, Expected); 3] = [
    ("SELECT id, a, b, c FROM {t} WHERE {c} ORDER BY id", |rows| {
        let line = |(id, row): &(i64, &Row)| format!("{id}|{}|{}|{}", shown(row.a), row.b, shown(row.c.as_ref()));
        rows.iter().map(line).collect()
    }),
    ("SELECT count(*), sum(b), min(c), max(a), count(a) FROM {t} WHERE {c}", |rows| {
        let sum = (!rows.is_empty()).then(|| rows.iter().map(|(_, row)| row.b).sum::<i64>());
        let min = rows.iter().filter_map(|(_, row)| row.c.as_ref()).min();
        let max = rows.iter().filter_map(|(_, row)| row.a).max();
        let with_a = rows.iter().filter(|(_, row)| row.a.is_some()).count();
        vec![format!("{}|{}|{}|{}|{with_a}", rows.len(), shown(sum), shown(min), shown(max))]
    }),
    ("SELECT a, count(*), sum(id) FROM {t} WHERE {c} GROUP BY a ORDER BY a NULLS FIRST", |rows| {
        let mut groups: BTreeMap<Option<i64>, (i64, i64)> = BTreeMap::new();
        for (id, row) in rows {
            let (count, sum) = groups.entry(row.a).or_default();
            *count += 1;
            *sum += id;
        }
        groups.iter().map(|(a, (count, sum))| format!("{}|{count}|{sum}", shown(*a))).collect()
    }),
];

async fn answer(client: &Client, sql: &str) -> Vec<String> {
    let messages = client.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    let line = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => {
            let values = (0..row.len()).map(|column| row.get(column).unwrap_or("NULL"));
            Some(values.collect::<Vec<_>>().join("|"))
        }
        _ => None,
    };
    messages.iter().filter_map(line).collect()
}

struct History {
    client: Client,
    tables: Vec<String>,
    model: Model,
    random: StdRng,
    next_id: i64,
}

impl History {
    /// The same statement of every table.
    async fn run(&self, sql: &str) {
        for table in &self.tables {
            let sql = sql.replace("{t}", table);
            self.client.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        }
    }

    fn row(&mut self) -> Row {
        let number = self.random.random_range(0..12);
        Row {
            a: (self.random.random_range(0..6) > 0).then_some(number),
            b: self.random.random_range(-1000..1000),
            c: (self.random.random_range(0..6) > 0).then(|| text_of(self.random.random_range(0..12))),
        }
    }

    /// One change: the statement, which says the same to every table, after it was made to the model.
    fn change(&mut self) -> String {
        let literal = |text: &Option<String>| text.as_ref().map_or("NULL".to_owned(), |text| format!("'{text}'"));
        let condition = loop {
            match Condition::random(&mut self.random) {
                Condition::All if self.random.random_range(0..20) > 0 => {}
                other => break other,
            }
        };
        match self.random.random_range(0..10) {
            0..3 => {
                let mut values = Vec::new();
                for _ in 0..self.random.random_range(1..8) {
                    let (id, row) = (self.random.random_range(0..IDS), self.row());
                    if let Entry::Vacant(place) = self.model.entry(id) {
                        values.push(format!("({id}, {}, {}, {})", shown(row.a), row.b, literal(&row.c)));
                        place.insert(row);
                    }
                }
                match values.is_empty() {
                    true => "SELECT 1".to_owned(),
                    false => format!("INSERT INTO {{t}} VALUES {}", values.join(", ")),
                }
            }
            3 => {
                // Many, so that there is something to encode and to skip.
                let (first, count) = (self.next_id, self.random.random_range(100..800));
                self.next_id += count;
                for id in first..first + count {
                    let row = Row {
                        a: (id % 13 != 0).then_some(id % 13),
                        b: id * 3 % 997,
                        c: Some(format!("text {}", id % 7)),
                    };
                    self.model.insert(id, row);
                }
                format!(
                    "INSERT INTO {{t}} SELECT i, nullif(i % 13, 0), i * 3 % 997, 'text ' || i % 7
                     FROM generate_series({first}, {}) AS g(i)",
                    first + count - 1
                )
            }
            4..6 => {
                let (row, by) = (self.row(), self.random.random_range(1..10));
                for (_, changed) in self.model.iter_mut().filter(|(id, row)| condition.holds(**id, row)) {
                    *changed = Row { a: row.a, b: changed.b + by, c: changed.c.clone() };
                }
                let plain = self.random.random();
                format!("UPDATE {{t}} SET a = {}, b = b + {by} WHERE {}", shown(row.a), condition.sql(plain))
            }
            6 => {
                let (id, row) = (self.random.random_range(0..IDS), self.row());
                let (a, b, c) = (shown(row.a), row.b, literal(&row.c));
                self.model.insert(id, row);
                format!(
                    "INSERT INTO {{t}} VALUES ({id}, {a}, {b}, {c})
                     ON CONFLICT (id) DO UPDATE SET a = excluded.a, b = excluded.b, c = excluded.c"
                )
            }
            7 => {
                // A row gets another key.
                let Some(from) = self.model.keys().nth(self.random.random_range(0..self.model.len().max(1))).copied()
                else {
                    return "SELECT 1".to_owned();
                };
                let to = self.next_id;
                self.next_id += 1;
                if let Some(row) = self.model.remove(&from) {
                    self.model.insert(to, row);
                }
                format!("UPDATE {{t}} SET id = {to} WHERE id = {from}")
            }
            _ => {
                self.model.retain(|id, row| !condition.holds(*id, row));
                let plain = self.random.random();
                format!("DELETE FROM {{t}} WHERE {}", condition.sql(plain))
            }
        }
    }

    /// Some changes in one transaction, all or the last of them undone at times.
    fn transaction(&mut self) -> String {
        let before = self.model.clone();
        let mut sql = "BEGIN".to_owned();
        for _ in 0..self.random.random_range(1..4) {
            let change = self.change();
            sql = format!("{sql}; {change}");
        }
        if self.random.random_range(0..3) == 0 {
            let kept = self.model.clone();
            let undone = self.change();
            sql = format!("{sql}; SAVEPOINT a; {undone}; ROLLBACK TO a");
            self.model = kept;
        }
        if self.random.random_range(0..5) == 0 {
            self.model = before;
            return format!("{sql}; ROLLBACK");
        }
        format!("{sql}; COMMIT")
    }

    /// What does not change rows, of some of the tables.
    async fn upkeep(&mut self, places: &[&str]) {
        for table in self.tables.clone() {
            let place = places[self.random.random_range(0..places.len())];
            let sql = match self.random.random_range(0..24) {
                0..4 => format!("CALL tidepool.merge('{table}')"),
                4 => format!("VACUUM {table}"),
                5 => format!("ALTER TABLE {table} SET TABLESPACE {place}"),
                6 => format!("ALTER TABLE {table} ALTER COLUMN c SET TABLESPACE {place}"),
                7 => format!("REINDEX TABLE {table}"),
                _ => continue,
            };
            self.client.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        }
    }
}

/// Every table's answers beside the model's.
async fn compare(client: &Client, tables: &[String], model: &Model, conditions: &[Condition], about: &str) {
    for condition in conditions {
        let rows: Vec<(i64, &Row)> =
            model.iter().filter(|(id, row)| condition.holds(**id, row)).map(|(id, row)| (*id, row)).collect();
        for (asked, expected) in ASKED {
            let expected = expected(&rows);
            for table in tables {
                for plain in [true, false] {
                    let sql = asked.replace("{t}", table).replace("{c}", &condition.sql(plain));
                    let found = answer(client, &sql).await;
                    assert!(found == expected, "{about}: {sql}\nfound:    {found:?}\nexpected: {expected:?}");
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_way_to_rows_gives_the_same_answer() {
    let variable = |name: &str, default: u64| {
        std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number")))
    };
    let (seed, seconds) = (variable("TIDEPOOL_STRESS_SEED", 1), variable("TIDEPOOL_STRESS_SECONDS", 0));
    let begun = Instant::now();
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start().await;
    let client = server.connect().await;
    let mut places = vec!["near", "far", "filed", "striped"];
    let in_folder = |name: &str| folder.path().join(name).display().to_string();
    for (place, location) in [
        ("filed", format!("file:{}", in_folder("filed"))),
        ("striped", format!("anon:*2, file:{}*1", in_folder("part"))),
        ("paged", "paged:4MB:anon:".to_owned()),
    ] {
        let sql = format!("CREATE TABLESPACE {place} LOCATION '{location}' WITH (size = '64MB')");
        match client.batch_execute(&sql).await {
            Ok(()) if place == "paged" => places.push(place),
            Ok(()) => {}
            // The kernel may refuse userfaultfd(2).
            Err(error) => assert_eq!(place, "paged", "{error:?}"),
        }
    }
    let mut random = StdRng::seed_from_u64(seed);
    let mut rounds = 0;
    while rounds < 1 || begun.elapsed() < Duration::from_secs(seconds) {
        let mut tables = Vec::new();
        for merge in MERGES {
            for place in places.iter().copied().chain(["columns"]) {
                let table = format!("{merge}_{place}");
                let main = if place == "columns" { "near" } else { place };
                // Numbers of either form have the same answers.
                let a = if matches!(place, "columns" | "far") { "numeric" } else { "int" };
                let sql = format!(
                    "DROP TABLE IF EXISTS {table};
                     CREATE TABLE {table} (id int PRIMARY KEY, a {a}, b bigint NOT NULL, c text)
                     WITH (merge = {merge}) TABLESPACE {main};
                     CREATE INDEX {table}_a ON {table} (a, b DESC); CREATE INDEX {table}_c ON {table} (c)"
                );
                client.batch_execute(&sql).await.unwrap();
                if place == "columns" {
                    let sql = format!(
                        "ALTER TABLE {table} ALTER COLUMN c SET TABLESPACE far; ALTER TABLE {table} ALTER COLUMN id SET TABLESPACE far"
                    );
                    client.batch_execute(&sql).await.unwrap();
                }
                tables.push(table);
            }
        }
        let mut history = History {
            client: server.connect().await,
            tables: tables.clone(),
            model: Model::new(),
            random: StdRng::seed_from_u64(random.random()),
            next_id: 1000,
        };
        let mut older: Option<(Client, Model)> = None;
        for step in 0..if seconds == 0 { 4 } else { 12 } {
            let about = format!("seed {seed}, round {rounds}, step {step}");
            for _ in 0..history.random.random_range(1..4) {
                let sql = history.transaction();
                history.run(&sql).await;
            }
            history.upkeep(&places).await;
            let conditions: Vec<Condition> = (0..2).map(|_| Condition::random(&mut history.random)).collect();
            compare(&client, &tables, &history.model, &conditions, &about).await;
            match &older {
                Some((client, model)) => {
                    // A table that moved has no older snapshot's rows to show: who reads it then is told so, or sees them.
                    compare(client, &tables, model, &conditions[..1], &format!("{about}, before")).await;
                    if step % 4 == 3 {
                        older = None;
                    }
                }
                None => {
                    let client = server.connect().await;
                    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1").await.unwrap();
                    older = Some((client, history.model.clone()));
                }
            }
        }
        drop(older);
        let everything = [Condition::All, Condition::NoA, Condition::Ids(0, i64::from(i32::MAX))];
        compare(&client, &tables, &history.model, &everything, &format!("seed {seed}, round {rounds}, at the end"))
            .await;
        rounds += 1;
    }
    // The one form goes by an index, the other one does not.
    for (plain, uses) in [(true, true), (false, false)] {
        let sql = format!("EXPLAIN SELECT * FROM never_near WHERE {}", Condition::Id(1).sql(plain));
        let plan = answer(&client, &sql).await.join("\n");
        assert_eq!(plan.contains("index="), uses, "{plan}");
    }
    println!("seed {seed}: {rounds} rounds");
}
