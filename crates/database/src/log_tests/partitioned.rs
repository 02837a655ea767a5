//! Partitioned tables of random histories: rows that move, partitions that come and go.

use crate::tests::{batch_of, columns, insert, placement, rows};
use crate::{Changed, ChangedRows, Database, DatabaseVersion, NewPartition, RelationName, Transaction, ordinal_bits};
use rand::Rng;
use rand::rngs::StdRng;
use std::sync::Arc;
use tidepool_base::{Result, RowId};
use tidepool_table::{PartitionBound, PartitionStrategy, Partitioning, RangeBound, TableDef};

/// Numbers that a partition takes.
const WIDTH: usize = 40;

fn bounds(bound: &PartitionBound) -> Option<(i64, i64)> {
    match bound {
        PartitionBound::Range { from, to } => {
            let number = |end: &[RangeBound]| match end {
                [RangeBound::Value(text)] => text.parse().unwrap(),
                other => panic!("a bound that nobody made: {other:?}"),
            };
            Some((number(from), number(to)))
        }
        _ => None,
    }
}

fn attach(
    transaction: &mut Transaction,
    root: &TableDef,
    name: &str,
    space: &str,
    bound: PartitionBound,
    rows: std::ops::Range<usize>,
) -> Result<()> {
    transaction.create_table(name, columns(), vec![], placement(space))?;
    insert(transaction, name, rows)?;
    transaction.attach_partition(&RelationName::from(name), &NewPartition { parent: root.id, bound })
}

/// One change of a random history, of partitioned tables alone.
pub fn step(random: &mut StdRng, transaction: &mut Transaction, next: &mut usize) -> Result<()> {
    let version = transaction.begin_statement()?;
    let roots: Vec<Arc<TableDef>> =
        version.tables.values().filter(|table| table.def.partitioning.is_some()).map(|of| of.def.clone()).collect();
    let space = if random.random() { "near" } else { "far" };
    let mut named = |prefix: &str| {
        *next += 1;
        format!("{prefix}{next}")
    };
    if roots.is_empty() || roots.len() < 3 && random.random_range(0..8) == 0 {
        let (root, rest) = (named("r"), named("p"));
        let def = transaction.create_table(&root, columns(), vec![], placement(space))?.def.clone();
        let columns = vec![def.columns[0].number];
        let partitioning = Partitioning { strategy: PartitionStrategy::Range, columns, partitions: Vec::new() };
        let def = TableDef { partitioning: Some(partitioning), ..TableDef::clone(&def) };
        transaction.set_table_def(&RelationName::from(root.as_str()), def.clone())?;
        return attach(transaction, &def, &rest, space, PartitionBound::Default, 0..0);
    }
    let root = roots[random.random_range(0..roots.len())].clone();
    let partitions = root.partitioning.iter().flat_map(|of| &of.partitions);
    let ranges: Vec<_> = partitions.filter_map(|of| bounds(&of.bound).map(|bounds| (of.id, bounds))).collect();
    match random.random_range(0..8) {
        0 | 1 => {
            let name = named("p");
            let from = *next + 1;
            *next += WIDTH;
            let end = |number: usize| vec![RangeBound::Value(number.to_string())];
            let bound = PartitionBound::Range { from: end(from), to: end(from + WIDTH) };
            attach(transaction, &root, &name, space, bound, from..from + random.random_range(0..WIDTH))
        }
        kind @ (2 | 3) if !ranges.is_empty() => {
            let (id, _) = ranges[random.random_range(0..ranges.len())];
            let name = RelationName::from(&*version.table_of_id(id).expect("it is listed").def);
            match kind {
                2 => transaction.detach_partition(root.id, &name),
                _ => transaction.drop_table(&name),
            }
        }
        4 => {
            let from = ranges.first().map_or(0, |(_, (from, _))| *from as usize);
            insert(transaction, &root.name, from.saturating_sub(5)..from + random.random_range(1..30)).map(drop)
        }
        kind => change(random, transaction, &version, &root, &ranges, kind == 5),
    }
}

/// Takes rows away through the partitioned table, or gives them numbers of other partitions.
fn change(
    random: &mut StdRng,
    transaction: &mut Transaction,
    version: &DatabaseVersion,
    root: &Arc<TableDef>,
    ranges: &[(tidepool_base::TableId, (i64, i64))],
    deletes: bool,
) -> Result<()> {
    let tree = version.partition_tree(root)?.expect("it is partitioned");
    let mut ids = Vec::new();
    for (ordinal, leaf) in tree.leaves().iter().enumerate() {
        let table = version.table_by_id(*leaf).expect("a leaf is there");
        for range in table.parts() {
            let all = (0..60).map(|position| RowId::new(range, position));
            let there = all.filter(|row| table.rows().read(table.view(), *row).is_some());
            ids.extend(there.map(|row| RowId(row.0 | ordinal_bits(ordinal))));
        }
    }
    ids.retain(|_| random.random_range(0..3) == 0);
    let name = RelationName::from(&**root);
    let done = if deletes {
        transaction.change_rows_of(&name, Some(&tree), &ids, ChangedRows::Go)?
    } else {
        let mut number = |_: &RowId| match ranges.len() {
            0 => 0,
            count => {
                // Not above it: a partition that comes later may take such rows, which the default partition would have.
                let (_, (from, to)) = ranges[random.random_range(0..count)];
                random.random_range(from - 2..to)
            }
        };
        let texts: Vec<_> =
            ids.iter().map(|id| vec![Some(number(id).to_string()), Some(format!("moved {}", id.0 % 97))]).collect();
        let mut writer = transaction.writer(&name)?;
        let rows = batch_of(root, &texts);
        transaction.change_rows_of(
            &name,
            Some(&tree),
            &ids,
            ChangedRows::Become { rows: &rows, writer: &mut writer },
        )?
    };
    assert!(matches!(done, Changed::Rows(done) if done.true_count() == ids.len()));
    Ok(())
}

/// What a partitioned table has in the place of rows; each row of a partition is where it belongs.
pub fn content(database: &Database, def: &TableDef) -> Vec<String> {
    let version = database.version();
    let partitions = || def.partitioning.iter().flat_map(|of| &of.partitions);
    let all: Vec<_> = partitions().filter_map(|of| bounds(&of.bound)).collect();
    let mut lines = Vec::new();
    for partition in partitions() {
        let table = version.table_of_id(partition.id).expect("a partition is there");
        assert_eq!(table.def.partition_of, Some(def.id));
        for row in rows(database, &table.def.name) {
            let number: i64 = row.split('|').next().and_then(|text| text.parse().ok()).expect("a row has a number");
            let has = |(from, to): &(i64, i64)| (*from..*to).contains(&number);
            let belongs = bounds(&partition.bound).map_or_else(|| !all.iter().any(has), |bounds| has(&bounds));
            assert!(belongs, "{row} is in {} of {}", table.def.name, def.name);
        }
        lines.push(format!("{} {:?}", table.def.name, partition.bound));
    }
    lines
}
