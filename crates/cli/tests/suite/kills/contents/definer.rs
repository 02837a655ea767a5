//! The session that changes what tables are, alone and while a statement of another session waits for it; and one that
//! merges them and makes checkpoints beside all others.

use super::model::{Change, Column, Delta, Form, Kind, Table, WRITERS, new_columns};
use super::world::{Ended, InDoubt, World, connect, short, sqlstate};
use super::writers;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::Client;

/// A change of a table's definition: the statements, and what the table is after them.
struct Definition {
    sql: Vec<String>,
    after: Table,
}

/// Rows of a table that is made anew with some.
const REFILL: i64 = 17_000;

fn random_definition(random: &mut StdRng, world: &World, at: usize, now: &Table, waited_for: bool) -> Definition {
    let mut after = now.clone();
    let name = &now.name;
    let ordinal = world.next_version();
    let ints: Vec<usize> = (0..now.columns.len()).filter(|column| now.columns[*column].kind == Kind::Int).collect();
    let new_column = |random: &mut StdRng| Column {
        name: format!("v{ordinal}"),
        kind: Kind::Int,
        default: (random.random_range(0..2) == 0).then_some(7_000_000 + ordinal),
    };
    let add = |column: &Column| match column.default {
        Some(default) => format!("ALTER TABLE {name} ADD COLUMN {} bigint DEFAULT {default}", column.name),
        None => format!("ALTER TABLE {name} ADD COLUMN {} bigint", column.name),
    };
    let with = |after: &mut Table, column: Column| {
        after.map_rows(|_, row| row.iter().copied().chain([column.default]).collect());
        after.columns.push(column);
    };
    let without = |after: &mut Table, at: usize| {
        let kept = |column: &usize| *column != at;
        after.map_rows(|_, row| (0..row.len()).filter(kept).map(|column| row[column]).collect());
        after.columns.remove(at);
    };
    let mut sql = Vec::new();
    let kinds = if waited_for { 8 } else { 13 };
    match random.random_range(0..kinds) {
        0 if ints.len() < 6 => {
            let column = new_column(random);
            sql.push(add(&column));
            with(&mut after, column);
        }
        0 | 1 if ints.len() > 1 => {
            let dropped = ints[random.random_range(0..ints.len())];
            sql.push(format!("ALTER TABLE {name} DROP COLUMN {}", now.columns[dropped].name));
            without(&mut after, dropped);
        }
        // As many columns as before, and others.
        1..=3 if !ints.is_empty() => {
            let dropped = ints[random.random_range(0..ints.len())];
            let column = new_column(random);
            sql.push(format!("ALTER TABLE {name} DROP COLUMN {}", now.columns[dropped].name));
            sql.push(add(&column));
            without(&mut after, dropped);
            with(&mut after, column);
        }
        // Two columns change their names.
        4 if ints.len() > 1 => {
            let (one, other) = (ints[0], ints[random.random_range(1..ints.len())]);
            let (of_one, of_other) = (now.columns[one].name.clone(), now.columns[other].name.clone());
            sql.push(format!("ALTER TABLE {name} RENAME COLUMN {of_one} TO between"));
            sql.push(format!("ALTER TABLE {name} RENAME COLUMN {of_other} TO {of_one}"));
            sql.push(format!("ALTER TABLE {name} RENAME COLUMN between TO {of_other}"));
            after.columns[one].name = of_other;
            after.columns[other].name = of_one;
        }
        // Another table of that name, perhaps without what was granted on it.
        5 | 6 => {
            after.clear();
            let alike = random.random_range(0..3) == 0;
            if !alike {
                after.columns = match random.random_range(0..2) {
                    0 => new_columns(random, &mut (ordinal as u32 * 10)),
                    _ => {
                        let mut columns = now.columns.clone();
                        columns[2..].reverse();
                        columns
                    }
                };
                after.partitions = if random.random_range(0..3) == 0 { 3 } else { 0 };
            }
            after.indexed = random.random_range(0..2) == 0;
            // Of one with the same columns it is privileges alone that tell it from the one before.
            after.granted = !alike && random.random_range(0..3) > 0;
            sql.push(format!("DROP TABLE {name}"));
            sql.push(after.create());
            if random.random_range(0..2) == 0 {
                let of = random.random_range(0..WRITERS);
                let count = [3, REFILL][usize::from(random.random_range(0..3) == 0)];
                let first = world.take_keys(at, of, count);
                let (columns, version) = (after.columns.clone(), world.next_version());
                let refill = Change::Insert { form: Form::Series, columns, first, count, version };
                let mut delta = Delta::new();
                refill.apply(&after, of, &mut delta).expect("the columns are the table's");
                sql.push(refill.sql(name, of));
                after.apply(of, &delta);
            }
        }
        7 if now.granted => {
            sql.push(format!("REVOKE ALL ON {name} FROM clerk"));
            after.granted = false;
            // So that others wait.
            let column = new_column(random);
            sql.push(add(&column));
            with(&mut after, column);
        }
        8 => {
            sql.push(format!("TRUNCATE {name}"));
            after.clear();
        }
        9 => {
            sql.push(match now.indexed {
                true => format!("DROP INDEX {name}_by_g"),
                false => format!("CREATE INDEX {name}_by_g ON {name} (g)"),
            });
            after.indexed = !now.indexed;
        }
        10 => {
            let space = ["near", "far"][random.random_range(0..2)];
            sql.push(format!("ALTER TABLE {name} SET TABLESPACE {space}"));
        }
        // All rows in row groups of their own, under another name at first.
        11 => {
            let list = now.list();
            sql.push(format!("CREATE TABLE fresh AS SELECT {list} FROM {name}"));
            sql.push(format!("DROP TABLE {name}"));
            sql.push(format!("ALTER TABLE fresh RENAME TO {name}"));
            sql.push(format!("ALTER TABLE {name} ADD PRIMARY KEY (k)"));
            (after.partitions, after.indexed, after.granted) = (0, false, false);
            after.columns.iter_mut().for_each(|column| column.default = None);
        }
        _ => {
            sql.push(format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO clerk"));
            after.granted = true;
            // So that others wait.
            let column = new_column(random);
            sql.push(add(&column));
            with(&mut after, column);
        }
    }
    Definition { sql, after }
}

/// Changes definitions until the server is gone.
pub async fn define(world: Arc<World>, url: String, seed: u64, is_alone: bool) {
    let mut random = StdRng::seed_from_u64(seed);
    let Some(client) = connect(&url, "tidepool").await else { return };
    loop {
        let done = match random.random_range(0..if is_alone { 8 } else { 2 }) {
            0 => alone(&world, &client, &mut random).await,
            _ => waited_for(&world, &url, &client, &mut random).await,
        };
        if done.is_err() {
            return;
        }
        world.step();
        // Writers have their turn.
        let pause = if is_alone { 0 } else { random.random_range(0..4) };
        world.until(world.steps() + pause).await;
    }
}

async fn alone(world: &World, client: &Client, random: &mut StdRng) -> Result<(), Ended> {
    let at = random.random_range(0..world.tables.len());
    let mut table = world.tables[at].write().await;
    world.check_settled(at)?;
    let definition = random_definition(random, world, at, &table, false);
    let rolls_back = random.random_range(0..5) == 0;
    world.command(client, "BEGIN").await?;
    for sql in &definition.sql {
        match world.outcome(-2, sql, client.batch_execute(sql).await.map(|()| 0)) {
            Ok(_) => {}
            Err(Ended::Refused) => return world.command(client, "ROLLBACK").await,
            Err(gone) => return Err(gone),
        }
    }
    if rolls_back {
        return world.command(client, "ROLLBACK").await;
    }
    match world.outcome(-2, "COMMIT", client.batch_execute("COMMIT").await.map(|()| 0)) {
        Ok(_) => *table = definition.after,
        Err(Ended::Refused) => {}
        Err(gone) => {
            let states = vec![table.clone(), definition.after];
            *world.definitions.lock().unwrap() = Some(InDoubt { table: at, states });
            return Err(gone);
        }
    }
    Ok(())
}

/// Until a session's statement waits for a lock, or is over.
async fn until_it_waits<T>(
    client: &Client,
    pid: i32,
    statement: &tokio::task::JoinHandle<T>,
) -> Result<(), tokio_postgres::Error> {
    let sql = format!("SELECT count(*) FROM pg_stat_activity WHERE pid = {pid} AND wait_event_type = 'Lock'");
    while !statement.is_finished() && client.query_one(&sql, &[]).await?.get::<_, i64>(0) == 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

/// What a statement may say that finds the table changed.
const OVERTAKEN: [&str; 6] = ["40001", "40P01", "42703", "42P01", "42501", "42P10"];

/// A statement that waits for a transaction that changes its table does, in the end, what it would have done after that,
/// or fails.
async fn waited_for(world: &World, url: &str, client: &Client, random: &mut StdRng) -> Result<(), Ended> {
    let at = random.random_range(0..world.tables.len());
    let mut table = world.tables[at].write().await;
    world.check_settled(at)?;
    let of = random.random_range(0..WRITERS);
    let definition = random_definition(random, world, at, &table, true);
    let commits = random.random_range(0..6) > 0;
    let user = if table.granted && random.random_range(0..3) > 0 { "clerk" } else { "tidepool" };
    let other = connect(url, user).await.ok_or(Ended::Gone)?;
    let pid = match other.query_one("SELECT pg_backend_pid()", &[]).await {
        Ok(row) => row.get::<_, i32>(0),
        Err(_) => return Err(Ended::Gone),
    };
    let direct = ["on", "off"][random.random_range(0..2)];
    world.command(&other, &format!("SET tidepool.direct = {direct}")).await?;
    // As a session that has met the table before.
    world.command(&other, &format!("SELECT * FROM {} LIMIT 1", table.name)).await?;
    let change = writers::random_change(random, world, at, &table, of, true);
    let sql = change.sql(&table.name, of);
    if matches!(change, Change::Insert { form: Form::Prepared, .. }) && random.random_range(0..2) == 0 {
        // Its text is known to the server.
        if other.prepare(&sql).await.is_err() {
            return Err(Ended::Gone);
        }
    }
    world.command(client, "BEGIN").await?;
    for sql in &definition.sql {
        match world.outcome(-2, sql, client.batch_execute(sql).await.map(|()| 0)) {
            Ok(_) => {}
            Err(Ended::Refused) => return world.command(client, "ROLLBACK").await,
            Err(gone) => return Err(gone),
        }
    }
    let waiting = {
        let (change, sql) = (change.clone(), sql.clone());
        tokio::spawn(async move { writers::run(&other, &change, &sql).await })
    };
    let (commits, ended) = match until_it_waits(client, pid, &waiting).await {
        Ok(()) => {
            let end = if commits { "COMMIT" } else { "ROLLBACK" };
            (commits, world.outcome(-2, end, client.batch_execute(end).await.map(|()| 0)))
        }
        // A server that stops undoes this transaction, and then the other statement may well come to its end.
        Err(_) => (false, Err(Ended::Gone)),
    };
    let result = waiting.await.expect("the statement's task ends");
    let said = match &result {
        Ok(rows) => format!("{rows} rows"),
        Err(error) => sqlstate(error).unwrap_or_else(|| "the connection is gone".to_owned()),
    };
    world.note(format!("{user}, direct = {direct}, beside it: {} -> {said}", short(&sql)));
    let before = table.clone();
    let settled = if commits { definition.after } else { before.clone() };
    let allowed = user == "tidepool" || settled.granted;
    let mut delta = Delta::new();
    let expected = change.apply(&settled, of, &mut delta).filter(|_| allowed);
    let with_change = || {
        let table = settled.clone();
        table.apply(of, &delta);
        table
    };
    let committed = match ended {
        Ok(_) => true,
        Err(Ended::Refused) => panic!("{}", world.failure("a change of a definition is refused when it commits")),
        Err(Ended::Gone) => false,
    };
    // A server that is told to stop before it reads the COMMIT undoes the definition, and what waited for it may then be done over the table as
    // it was, whatever is heard of that.
    let is_undone = commits && !committed && world.stops();
    let over = |table: Table| {
        let mut delta = Delta::new();
        let changed = change.apply(&table, of, &mut delta).filter(|_| user == "tidepool" || table.granted)?;
        table.apply(of, &delta);
        Some((table, changed))
    };
    match (result, expected) {
        (Ok(rows), _) if is_undone => {
            let over = |table| over(table).filter(|(_, changed)| *changed == rows as usize).map(|(table, _)| table);
            let states: Vec<Table> = [settled, before].into_iter().filter_map(over).collect();
            assert!(!states.is_empty(), "{}", world.failure(&format!("rows of {}", short(&sql))));
            *world.definitions.lock().unwrap() = Some(InDoubt { table: at, states });
            return Err(Ended::Gone);
        }
        (Ok(rows), Some(expected)) => {
            assert_eq!(rows as usize, expected, "{}", world.failure(&format!("rows of {}", short(&sql))));
            // Acknowledged: whatever the definer was told, it is there, and so is what it waited for.
            *table = with_change();
        }
        (Ok(_), None) => {
            let what =
                format!("{user} was let do what it must not: {}, after {}", short(&sql), definition.sql.join("; "));
            panic!("{}", world.failure(&what));
        }
        (Err(error), expected) => match sqlstate(&error) {
            Some(code) if OVERTAKEN.contains(&code.as_str()) || code.starts_with("53") => {
                if committed {
                    *table = settled;
                } else if commits {
                    let states = vec![before, settled];
                    *world.definitions.lock().unwrap() = Some(InDoubt { table: at, states });
                }
            }
            Some(code) if !code.starts_with("57") => {
                panic!("{}", world.failure(&format!("{} fails with {error:?}", short(&sql))));
            }
            _ => {
                let mut states = vec![settled.clone()];
                if expected.is_some() {
                    states.push(with_change());
                }
                if is_undone {
                    states.extend(over(before.clone()).map(|(table, _)| table));
                }
                if commits && !committed {
                    states.push(before);
                }
                *table = settled;
                *world.definitions.lock().unwrap() = Some(InDoubt { table: at, states });
                return Err(Ended::Gone);
            }
        },
    }
    if committed { Ok(()) } else { Err(Ended::Gone) }
}

/// Merges tables and makes checkpoints, as many as the seed has of them, until the server is gone.
pub async fn keep(world: Arc<World>, url: String, seed: u64, checkpoints: bool) {
    let beside = tokio::spawn(merge_beside(world.clone(), url.clone(), !seed));
    let mut random = StdRng::seed_from_u64(seed);
    if let Some(client) = connect(&url, "tidepool").await {
        loop {
            // No sooner than something has happened.
            world.until(world.steps() + random.random_range(1..6)).await;
            let table = random.random_range(0..world.tables.len());
            let sql = match random.random_range(0..4) {
                0 | 1 if checkpoints => "CHECKPOINT".to_owned(),
                2 => "VACUUM".to_owned(),
                _ => format!("CALL tidepool.merge('t{table}')"),
            };
            if !run_upkeep(&world, &client, &sql).await {
                break;
            }
        }
    }
    beside.await.unwrap();
}

/// Merges one table after the other, whatever else is going on: also while a checkpoint is made.
async fn merge_beside(world: Arc<World>, url: String, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let Some(client) = connect(&url, "tidepool").await else { return };
    loop {
        world.until(world.steps() + 1).await;
        let table = random.random_range(0..world.tables.len());
        if !run_upkeep(&world, &client, &format!("CALL tidepool.merge('t{table}')")).await {
            return;
        }
    }
}

/// Runs a statement that changes no rows, and may be refused while a table changes. False: the server is gone.
async fn run_upkeep(world: &World, client: &Client, sql: &str) -> bool {
    match client.batch_execute(sql).await {
        Ok(()) => world.note(format!("{sql} -> done")),
        Err(error) => match sqlstate(&error) {
            Some(code) if !code.starts_with("57") => {
                // The table may be gone for the moment, or change.
                let fine = ["40001", "40P01", "42P01", "53200", "55P03"].contains(&code.as_str());
                assert!(fine, "{}", world.failure(&format!("{sql}: {error:?}")));
            }
            _ => return false,
        },
    }
    true
}
