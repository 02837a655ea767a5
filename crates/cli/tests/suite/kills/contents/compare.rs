//! All rows of all tables, by every way to them, beside what their clients know.

use super::model::{Column, Kind, Row, Table, WRITERS};
use super::world::World;
use super::writers::KEYS_END;
use futures::TryStreamExt;
use rand::Rng;
use rand::rngs::StdRng;
use std::collections::{BTreeMap, BTreeSet};
use tokio_postgres::{Client, SimpleQueryMessage};

/// Differences that are shown.
const SHOWN: usize = 8;

type Rows = BTreeMap<i64, Row>;

/// Rows as they came, so that one that came twice is seen.
type Found = Vec<(i64, Row)>;

fn parsed(kind: Kind, text: Option<&str>) -> Result<Option<i64>, String> {
    let number = |text: &str| text.parse().map(Some).map_err(|_| format!("the value {text:?}"));
    match (text, kind) {
        (None | Some("\\N"), _) => Ok(None),
        (Some(text), Kind::Text) => number(text.strip_prefix('n').ok_or_else(|| format!("the text {text:?}"))?),
        (Some(text), _) => number(text),
    }
}

fn row<'t>(columns: &[Column], mut fields: impl Iterator<Item = Option<&'t str>>) -> Result<(i64, Row), String> {
    let key = fields.next().flatten().and_then(|key| key.parse().ok()).ok_or("a row without a key")?;
    let values: Vec<Option<i64>> = columns
        .iter()
        .map(|column| parsed(column.kind, fields.next().ok_or("a row that is too short")?))
        .collect::<Result<_, String>>()
        .map_err(|what| format!("in row {key}: {what}"))?;
    Ok((key, values.into()))
}

async fn copied(client: &Client, columns: &[Column], sql: &str) -> Result<Found, String> {
    let failed = |error: tokio_postgres::Error| format!("{sql}: {error:?}");
    let pieces: Vec<bytes::Bytes> = client.copy_out(sql).await.map_err(failed)?.try_collect().await.map_err(failed)?;
    let text = pieces.concat();
    let text = std::str::from_utf8(&text).map_err(|_| format!("{sql}: no UTF-8"))?;
    text.lines().map(|line| row(columns, line.split('\t').map(Some)).map_err(|what| format!("{sql}: {what}"))).collect()
}

async fn selected(client: &Client, columns: &[Column], sql: &str) -> Result<Found, String> {
    let messages = client.simple_query(sql).await.map_err(|error| format!("{sql}: {error:?}"))?;
    let rows = messages.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    });
    rows.map(|fields| row(columns, (0..fields.len()).map(|at| fields.get(at)))).collect()
}

/// What is different, in words. `None`: nothing.
fn difference(mut found: Found, expected: &Rows, columns: &[Column]) -> Option<String> {
    found.sort();
    let mut said = Vec::new();
    let (mut missing, mut more, mut twice, mut other) = (0, 0, 0, 0);
    let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    let mut last = None;
    let mut note = |count: &mut usize, line: &dyn Fn() -> String| {
        *count += 1;
        if *count <= SHOWN {
            said.push(line());
        }
    };
    let mut keys = BTreeSet::new();
    for (key, row) in &found {
        keys.insert(*key);
        if last == Some(*key) {
            note(&mut twice, &|| format!("{key} is there again: {row:?}"));
        }
        last = Some(*key);
        match expected.get(key) {
            None => note(&mut more, &|| format!("{key} is there and should not be: {row:?}")),
            Some(right) if right != row => note(&mut other, &|| format!("{key} is {row:?} instead of {right:?}")),
            Some(_) => {}
        }
    }
    for key in expected.keys().filter(|key| !keys.contains(key)) {
        note(&mut missing, &|| format!("{key} is missing"));
    }
    if missing + more + twice + other == 0 {
        return None;
    }
    Some(format!(
        "of {} rows {missing} are missing, {more} are too many, {twice} come again, {other} have other values ({}):\n  {}",
        expected.len(),
        names.join(", "),
        said.join("\n  ")
    ))
}

/// What the server says of a table: all that definitions change of it, and that is to be seen.
#[derive(Debug)]
struct Shape {
    /// Of its columns but the key.
    names: Vec<String>,
    /// Partitions.
    leaves: u32,
    indexed: bool,
    /// To the clerk.
    granted: bool,
}

async fn shape(client: &Client, name: &str) -> Shape {
    let columns = format!(
        "SELECT attname::text FROM pg_attribute WHERE attrelid = '{name}'::regclass AND attnum > 0 AND NOT attisdropped
         ORDER BY attnum"
    );
    let columns = client.query(&columns, &[]).await.unwrap_or_else(|error| panic!("{columns}: {error:?}"));
    let leaves = format!("SELECT count(*) FROM pg_inherits WHERE inhparent = '{name}'::regclass");
    let leaves: i64 = client.query_one(&leaves, &[]).await.unwrap().get(0);
    let index = format!("SELECT count(*) FROM pg_class WHERE relname = '{name}_by_g'");
    let index: i64 = client.query_one(&index, &[]).await.unwrap().get(0);
    let granted = format!("SELECT has_table_privilege('clerk', '{name}', 'SELECT')");
    let granted = client.query_one(&granted, &[]).await.unwrap().get(0);
    Shape {
        names: columns.iter().skip(1).map(|row| row.get(0)).collect(),
        leaves: leaves as u32,
        indexed: index > 0,
        granted,
    }
}

/// Compares everything, takes what was in doubt for what it has become, and looks at all ways to the rows.
pub async fn compare(world: &World, url: &str, random: &mut StdRng) {
    let client = super::world::connect(url, "tidepool").await.expect("the server is ready");
    let definition = world.definitions.lock().unwrap().take();
    let mut found = Vec::new();
    for (at, table) in world.tables.iter().enumerate() {
        let mut table = table.write().await;
        let found_shape = shape(&client, &table.name).await;
        let Shape { names, leaves, indexed, granted } = &found_shape;
        let states = definition.as_ref().filter(|doubt| doubt.table == at).map(|doubt| &doubt.states);
        let of_shape = |state: &Table| {
            state.names() == *names
                && state.partitions == *leaves
                && state.indexed == *indexed
                && state.granted == *granted
        };
        let possible: Vec<&Table> = match states {
            Some(states) => states.iter().filter(|state| of_shape(state)).collect(),
            None => [&*table].into_iter().filter(|state| of_shape(state)).collect(),
        };
        let Some(first) = possible.first() else {
            let known = states.map_or(&*table, |states| &states[0]);
            let known = Shape {
                names: known.names(),
                leaves: known.partitions,
                indexed: known.indexed,
                granted: known.granted,
            };
            let what = format!("{} is {found_shape:?}, not {known:?}", table.name);
            panic!("{}", world.failure(&what));
        };
        let columns = first.columns.clone();
        let sql = format!("COPY {} ({}) TO STDOUT", table.name, table_list(&columns));
        let rows = copied(&client, &columns, &sql).await.unwrap_or_else(|what| panic!("{}", world.failure(&what)));
        // Of several of that shape the one with these rows; none: the first, so that the difference is told.
        if states.is_some() {
            let has_rows = |state: &&&Table| difference(rows.clone(), &state.rows(), &columns).is_none();
            let settled = (**possible.iter().find(has_rows).unwrap_or(first)).clone();
            *table = settled;
        }
        found.push(rows);
    }
    for of in 0..WRITERS {
        let Some(deltas) = world.doubts.lock().unwrap()[of as usize].take() else { continue };
        // A transaction is there if the first of its changes is; if it is there in part, the comparison says so.
        let mut decided = None;
        for (at, delta) in &deltas {
            let table = world.tables[*at].read().await;
            let slice = table.slice(of);
            let telling = delta.iter().find(|(key, row)| slice.get(key) != row.as_ref());
            if let (Some((key, row)), None) = (telling, decided) {
                let there = found[*at].iter().find(|(found, _)| found == key).map(|(_, row)| row);
                decided = Some(there == row.as_ref());
            }
        }
        if decided == Some(true) {
            for (at, delta) in &deltas {
                world.tables[*at].read().await.apply(of, delta);
            }
        }
        world
            .note(format!("{of}: what was under way is {}", if decided == Some(true) { "there" } else { "not there" }));
    }
    let others = connected(url).await;
    let mut tables = 0;
    for (table, found) in world.tables.iter().zip(found) {
        let table = table.read().await;
        tables += 1 + table.partitions;
        let rows = table.rows();
        if let Some(what) = difference(found, &rows, &table.columns) {
            panic!("{}", world.failure(&format!("{} by COPY: {what}", table.name)));
        }
        if let Err(what) = every_way(&others, &client, &table, &rows, random).await {
            panic!("{}", world.failure(&format!("{}, {what}", table.name)));
        }
    }
    let sql = "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
        WHERE nspname = 'public' AND relkind IN ('r', 'p')";
    let there: i64 = client.query_one(sql, &[]).await.unwrap().get(0);
    assert_eq!(there, i64::from(tables), "{}", world.failure("tables and partitions"));
    for row in client.query("CALL tidepool.check()", &[]).await.unwrap() {
        let (object, fault): (String, Option<String>) = (row.get(0), row.get(2));
        assert_eq!(fault, None, "{}", world.failure(&format!("check of {object}")));
    }
}

fn table_list(columns: &[Column]) -> String {
    ["k"].into_iter().chain(columns.iter().map(|column| column.name.as_str())).collect::<Vec<_>>().join(", ")
}

/// Sessions by what runs their statements.
struct Sessions {
    /// The engine, and DataFusion's operators.
    engines: [(Client, &'static str); 2],
    /// By keys without a plan, and planned.
    direct: [(Client, &'static str); 2],
}

async fn connected(url: &str) -> Sessions {
    let session = async |settings: &'static str| {
        let client = super::world::connect(url, "tidepool").await.expect("the server is ready");
        client.batch_execute(settings).await.unwrap_or_else(|error| panic!("{settings}: {error:?}"));
        (client, settings)
    };
    Sessions {
        engines: [
            session("SET tidepool.engine = tidepool; SET tidepool.direct = off").await,
            session("SET tidepool.engine = datafusion; SET tidepool.direct = off").await,
        ],
        direct: [session("SET tidepool.direct = on").await, session("SET tidepool.direct = off").await],
    }
}

/// Keys of a range that is read at a time by the index: few enough that it is taken for less than a scan, also without a plan.
const AT_A_TIME: usize = 2_000;

async fn every_way(
    sessions: &Sessions,
    plain: &Client,
    table: &Table,
    rows: &Rows,
    random: &mut StdRng,
) -> Result<(), String> {
    let (name, list, columns) = (&table.name, table.list(), &table.columns);
    let told = |way: &str, found: Found, expected: &Rows| match difference(found, expected, columns) {
        Some(what) => Err(format!("{way}: {what}")),
        None => Ok(()),
    };
    for (client, settings) in &sessions.engines {
        let sql = format!("COPY (SELECT {list} FROM {name}) TO STDOUT");
        told(&format!("{settings}: {sql}"), copied(client, columns, &sql).await?, rows)?;
        groups(client, table, rows).await.map_err(|what| format!("{settings}: {what}"))?;
    }
    // The primary key: ranges of it one after another, and single keys, of which some are not there.
    let keys: Vec<i64> = rows.keys().copied().collect();
    let mut bounds: Vec<i64> = keys.iter().step_by(AT_A_TIME).copied().collect();
    bounds.push(KEYS_END);
    if let Some(first) = bounds.first_mut() {
        *first = -1;
    }
    let (client, settings) = &sessions.direct[0];
    for range in bounds.windows(2) {
        let (from, to) = (range[0], range[1]);
        let sql = format!("SELECT {list} FROM {name} WHERE k >= {from} AND k < {to}");
        let within = rows.range(from..to).map(|(key, row)| (*key, row.clone())).collect();
        told(&format!("{settings}: {sql}"), selected(client, columns, &sql).await?, &within)?;
    }
    for (client, settings) in &sessions.direct {
        for _ in 0..40 {
            let near = match keys.is_empty() {
                true => 0,
                false => keys[random.random_range(0..keys.len())],
            };
            let wanted: Vec<i64> = match random.random_range(0..2) {
                0 => vec![near + random.random_range(-1..2) * i64::from(random.random_range(0..3) == 0)],
                _ => (0..30).map(|step| near + step * 7).collect(),
            };
            let shown = wanted.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
            let sql = match &wanted[..] {
                [key] => format!("SELECT {list} FROM {name} WHERE k = {key}"),
                _ => format!("SELECT {list} FROM {name} WHERE k IN ({shown})"),
            };
            let within = wanted.iter().filter_map(|key| rows.get(key).map(|row| (*key, row.clone()))).collect();
            told(&format!("{settings}: {sql}"), selected(client, columns, &sql).await?, &within)?;
        }
    }
    // The other index, or as many scans with that condition.
    let at = table.column("g").ok_or("no column g")?;
    let mut by_group: BTreeMap<Option<i64>, Rows> = BTreeMap::new();
    for (key, row) in rows {
        by_group.entry(row[at]).or_default().insert(*key, row.clone());
    }
    let (client, settings) = &sessions.direct[0];
    for (group, within) in &by_group {
        if !table.indexed && random.random_range(0..50) > 0 {
            continue;
        }
        let condition = group.map_or("g IS NULL".to_owned(), |group| format!("g = {group}"));
        let sql = format!("SELECT {list} FROM {name} WHERE {condition}");
        told(&format!("{settings}: {sql}"), selected(client, columns, &sql).await?, within)?;
    }
    // Each partition by itself: the rows of all of them are the table's.
    let mut of_partitions = Found::new();
    for at in 0..table.partitions {
        let sql = format!("COPY {name}_{at} ({list}) TO STDOUT");
        of_partitions.extend(copied(plain, columns, &sql).await?);
    }
    if table.partitions > 0 {
        told("its partitions", of_partitions, rows)?;
    }
    Ok(())
}

/// Rows by group, which engines count over codes and statistics.
async fn groups(client: &Client, table: &Table, rows: &Rows) -> Result<(), String> {
    let at = table.column("g").ok_or("no column g")?;
    let last = table.columns.len() - 1;
    let name = &table.columns[last].name;
    let sql = format!(
        "SELECT g, count(*), count({name}), sum(k)::bigint, count(DISTINCT note) FROM {} GROUP BY g",
        table.name
    );
    let mut expected: BTreeMap<Option<i64>, (i64, i64, i64, BTreeSet<i64>)> = BTreeMap::new();
    let note = table.column("note").ok_or("no column note")?;
    for (key, row) in rows {
        let group = expected.entry(row[at]).or_default();
        group.0 += 1;
        group.1 += i64::from(row[last].is_some());
        group.2 += key;
        group.3.extend(row[note]);
    }
    let found = client.query(&sql, &[]).await.map_err(|error| format!("{sql}: {error:?}"))?;
    let found: BTreeMap<Option<i64>, (i64, i64, i64, i64)> =
        found.iter().map(|row| (row.get(0), (row.get(1), row.get(2), row.get(3), row.get(4)))).collect();
    let expected: BTreeMap<_, _> = expected
        .into_iter()
        .map(|(group, (count, values, sum, notes))| (group, (count, values, sum, notes.len() as i64)))
        .collect();
    if found == expected { Ok(()) } else { Err(format!("{sql}: {found:?} instead of {expected:?}")) }
}
