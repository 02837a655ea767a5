//! Sessions that load, change and delete rows of their own in tables that they share.

use super::model::{Change, Column, Delta, Form, Table, WRITERS, shown, value};
use super::world::{Ended, World, connect};
use bytes::Bytes;
use futures::SinkExt;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use tokio::sync::RwLockReadGuard;
use tokio_postgres::Client;
use tokio_postgres::types::ToSql;

/// Rows of a load that become a row group by themselves, and so many that they become two.
const SHORT_GROUP: i64 = 16 * 1024;
const LONG_LOAD: i64 = 128 * 1024 + SHORT_GROUP;

/// No key is as large.
pub const KEYS_END: i64 = 1 << 50;

/// A table with more rows is made smaller.
const ROWS_MAX: usize = 100_000;

/// Runs a statement, with rows or parameters of its own where it takes some. How many rows it says.
pub async fn run(client: &Client, change: &Change, sql: &str) -> Result<u64, tokio_postgres::Error> {
    match change {
        Change::Insert { form: Form::Copy, columns, first, count, version } => {
            let sink = client.copy_in::<_, Bytes>(sql).await?;
            tokio::pin!(sink);
            let mut text = String::new();
            for step in 0..*count {
                let key = first + step * WRITERS;
                text += &key.to_string();
                for column in columns {
                    text.push('\t');
                    text += &shown(column.kind, Some(value(column, key, *version)));
                }
                text.push('\n');
                if text.len() > 60_000 {
                    sink.send(Bytes::from(std::mem::take(&mut text))).await?;
                }
            }
            sink.send(Bytes::from(text)).await?;
            sink.finish().await
        }
        Change::Insert { form: Form::Prepared, columns, first, version, .. } => {
            let texts: Vec<String> =
                columns.iter().map(|column| shown(column.kind, Some(value(column, *first, *version)))).collect();
            let numbers: Vec<i64> = columns.iter().map(|column| value(column, *first, *version)).collect();
            let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![first];
            for (at, column) in columns.iter().enumerate() {
                parameters.push(if column.kind == super::model::Kind::Text { &texts[at] } else { &numbers[at] });
            }
            client.execute(sql, &parameters).await
        }
        _ => {
            let messages = client.simple_query(sql).await?;
            let done = messages.iter().find_map(|message| match message {
                tokio_postgres::SimpleQueryMessage::CommandComplete(rows) => Some(*rows),
                _ => None,
            });
            Ok(done.unwrap_or_default())
        }
    }
}

/// A change of a table's rows. `small`: of few of them.
pub fn random_change(random: &mut StdRng, world: &World, table: usize, now: &Table, of: i64, small: bool) -> Change {
    let version = world.next_version();
    let columns = |random: &mut StdRng| random_columns(random, now);
    let known = |random: &mut StdRng| {
        let slice = now.slice(of);
        let (first, last) = (slice.keys().next().copied()?, slice.keys().next_back().copied()?);
        slice.range(random.random_range(first..=last)..).next().map(|(key, _)| *key)
    };
    let of_rows = now.len();
    let kinds = if small { 9 } else { 16 };
    match random.random_range(0..kinds) {
        0 => {
            let Some(from) = known(random) else { return series(random, world, table, of, columns, version) };
            Change::Update { columns: columns(random), from, to: from, version }
        }
        1 => {
            let Some(from) = known(random) else { return series(random, world, table, of, columns, version) };
            let rows = if small { 30 } else { random.random_range(1..20_000) };
            Change::Update { columns: columns(random), from, to: from + rows * WRITERS, version }
        }
        2 => {
            let Some(from) = known(random) else { return series(random, world, table, of, columns, version) };
            let rows = [0, 20, if small { 20 } else { 5_000 }][random.random_range(0..3)];
            Change::Delete { from, to: from + rows * WRITERS }
        }
        3..9 => {
            let form =
                [Form::Copy, Form::Series, Form::Values, Form::SelectValues, Form::Prepared, Form::Upsert, Form::Merge];
            let form = form[random.random_range(0..form.len())];
            let count = match form {
                Form::Prepared => 1,
                _ => [1, 3, 40][random.random_range(0..3)],
            };
            // Some of them there already.
            let (first, count) = match (form, known(random)) {
                (Form::Upsert | Form::Merge, Some(key)) if random.random_range(0..2) == 0 => {
                    (key, count.min((world.next_key(table, of) - key) / WRITERS))
                }
                _ => (world.take_keys(table, of, count), count),
            };
            Change::Insert { form, columns: columns(random), first, count, version }
        }
        _ if of_rows > ROWS_MAX => Change::Delete { from: 0, to: KEYS_END },
        9..15 => random_load(random, world, table, now, of),
        _ => load(random, world, table, of, columns, LONG_LOAD, version),
    }
}

fn random_columns(random: &mut StdRng, now: &Table) -> Vec<Column> {
    let mut columns: Vec<Column> = now.columns.iter().filter(|_| random.random_range(0..4) > 0).cloned().collect();
    if columns.is_empty() {
        columns.push(now.columns[0].clone());
    }
    if random.random_range(0..3) == 0 {
        columns.reverse();
    }
    columns
}

/// A load of one short row group in each partition.
fn random_load(random: &mut StdRng, world: &World, table: usize, now: &Table, of: i64) -> Change {
    let count = i64::from(now.partitions.max(1)) * (SHORT_GROUP + random.random_range(0..2_000));
    let columns = |random: &mut StdRng| random_columns(random, now);
    load(random, world, table, of, columns, count, world.next_version())
}

fn series(
    random: &mut StdRng,
    world: &World,
    table: usize,
    of: i64,
    columns: impl Fn(&mut StdRng) -> Vec<Column>,
    version: i64,
) -> Change {
    let first = world.take_keys(table, of, 5);
    Change::Insert { form: Form::Series, columns: columns(random), first, count: 5, version }
}

fn load(
    random: &mut StdRng,
    world: &World,
    table: usize,
    of: i64,
    columns: impl Fn(&mut StdRng) -> Vec<Column>,
    count: i64,
    version: i64,
) -> Change {
    let form = [Form::Copy, Form::Copy, Form::Series][random.random_range(0..3)];
    let first = world.take_keys(table, of, count);
    Change::Insert { form, columns: columns(random), first, count, version }
}

/// Transactions until the server is gone.
pub async fn write(world: Arc<World>, url: String, of: i64, seed: u64, is_alone: bool) {
    let mut random = StdRng::seed_from_u64(seed);
    let Some(client) = connect(&url, "tidepool").await else { return };
    while transaction(&world, &client, of, &mut random, is_alone).await.is_ok() {
        world.step();
    }
}

async fn transaction(
    world: &World,
    client: &Client,
    of: i64,
    random: &mut StdRng,
    is_alone: bool,
) -> Result<(), Ended> {
    if random.random_range(0..4) == 0 {
        let direct = ["on", "off"][random.random_range(0..2)];
        world.command(client, &format!("SET tidepool.direct = {direct}")).await?;
    }
    let blocks = random.random_range(0..3) == 0;
    // In one order, so that nobody waits for one who waits for him.
    let mut chosen: Vec<usize> =
        (0..if blocks { 2 } else { 1 }).map(|_| random.random_range(0..world.tables.len())).collect();
    chosen.sort_unstable();
    chosen.dedup();
    let mut tables: Vec<(usize, RwLockReadGuard<'_, Table>)> = Vec::new();
    for at in chosen {
        tables.push((at, world.tables[at].read().await));
    }
    let mut deltas: Vec<Delta> = tables.iter().map(|_| Delta::new()).collect();
    let changes = if blocks { random.random_range(1..4) } else { 1 };
    if blocks {
        world.command(client, "BEGIN").await?;
    }
    let mut is_whole = true;
    for _ in 0..changes {
        let at = random.random_range(0..tables.len());
        let (number, table) = (tables[at].0, &*tables[at].1);
        // One that is alone loads: it is there for that.
        let loads = is_alone && table.len() < ROWS_MAX && random.random_range(0..2) == 0;
        let change = match loads {
            true => random_load(random, world, number, table, of),
            false => random_change(random, world, number, table, of, false),
        };
        let sql = change.sql(&table.name, of);
        let mut delta = deltas[at].clone();
        let expected = change.apply(table, of, &mut delta).expect("the columns are the table's");
        let undone = blocks && random.random_range(0..5) == 0;
        if undone {
            world.command(client, "SAVEPOINT s").await?;
        }
        match world.outcome(of, &sql, run(client, &change, &sql).await) {
            Ok(rows) => {
                let rows = rows as usize;
                assert_eq!(rows, expected, "{}", world.failure(&format!("rows of {}", super::world::short(&sql))));
                match undone {
                    true => world.command(client, "ROLLBACK TO s; RELEASE s").await?,
                    false => deltas[at] = delta,
                }
            }
            Err(Ended::Refused) => {
                is_whole = false;
                break;
            }
            Err(gone) => {
                if !blocks {
                    let numbers = tables.iter().map(|(number, _)| *number);
                    world.in_doubt(of, numbers.zip([delta]).collect());
                }
                return Err(gone);
            }
        }
    }
    if blocks {
        let rolls_back = !is_whole || random.random_range(0..6) == 0;
        let end = if rolls_back { "ROLLBACK" } else { "COMMIT" };
        let numbers: Vec<usize> = tables.iter().map(|(number, _)| *number).collect();
        match world.outcome(of, end, client.batch_execute(end).await.map(|()| 0)) {
            Ok(_) if rolls_back => return Ok(()),
            Ok(_) => {}
            Err(Ended::Refused) => return Ok(()),
            Err(gone) => {
                if !rolls_back {
                    world.in_doubt(of, numbers.into_iter().zip(deltas).collect());
                }
                return Err(gone);
            }
        }
    } else if !is_whole {
        return Ok(());
    }
    for ((_, table), delta) in tables.iter().zip(&deltas) {
        table.apply(of, delta);
    }
    Ok(())
}
