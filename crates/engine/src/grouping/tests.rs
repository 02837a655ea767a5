//! Against a model that groups one row at a time.

use super::*;
use crate::aggregate::AggregateSink;
use crate::expr::Expr;
use crate::mask::Mask;
use crate::pipeline::Sink;
use crate::vector::CHUNK_ROWS;
use arrow_schema::DataType;
use std::collections::BTreeMap;

fn types() -> Vec<ColumnType> {
    let int = || ColumnType::new(DataType::Int64, true);
    vec![int().within((0, 4)), int(), ColumnType::new(DataType::Decimal128(10, 2), true)]
}

type Row = [Option<i64>; 3];

fn rows(count: usize) -> Vec<Row> {
    let mut seed = 3u64;
    let mut next = move |end: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let value = (seed >> 33) % (end + 1);
        (value < end).then_some(value as i64)
    };
    (0..count)
        .map(|_| [next(5), next(3).map(|value| value * 1_000_000_007), next(90).map(|value| value - 40)])
        .collect()
}

fn chunks(rows: &[Row]) -> Vec<Chunk> {
    let chunk = |rows: &[Row]| {
        let column = |column: usize| {
            let values = rows.iter().map(|row| row[column].unwrap_or(77)).collect();
            let valid = Mask::from_fn(rows.len(), |row| rows[row][column].is_some());
            Vector::ints(values).with_valid(Some(valid))
        };
        Chunk::new(rows.len(), (0..3).map(column).collect())
    };
    rows.chunks(700).map(chunk).collect()
}

fn run(sets: GroupingSets, chunks: &[Chunk]) -> Vec<Chunk> {
    sets.check().unwrap();
    let sets = Arc::new(sets);
    let table = AggregateTable::new(&sets.aggregate()).unwrap();
    let (expand, sink) = (Expand::new(&sets), AggregateSink::new(&table));
    let groups = expand.groups(&table);
    let mut workers =
        [(expand.worker().unwrap(), sink.worker().unwrap()), (expand.worker().unwrap(), sink.worker().unwrap())];
    for (index, chunk) in chunks.iter().enumerate() {
        let (step, state) = &mut workers[index % 2];
        step.push(chunk.clone(), &mut |chunk| state.push(chunk)).unwrap();
    }
    let mut states = workers.into_iter().map(|(_, state)| state).collect::<Vec<_>>();
    states.iter_mut().for_each(|state| state.end().unwrap());
    for round in 0.. {
        let tasks = sink.finish(round, &mut states).unwrap();
        if tasks.is_empty() {
            break;
        }
        tasks.into_iter().for_each(|task| task().unwrap());
    }
    let mut out = Vec::new();
    for _ in 0..2 {
        let mut reader = groups.reader().unwrap();
        while let Next::Chunk(chunk) = reader.next().unwrap() {
            assert!(chunk.rows <= 2 * CHUNK_ROWS);
            out.push(chunk);
        }
    }
    out
}

fn int(vector: &Vector, row: usize) -> Option<i128> {
    vector.is_valid(row).then(|| match &vector.values {
        Values::Int(values) => values[row].into(),
        Values::Wide(values) => values[row],
        other => panic!("{other:?}"),
    })
}

fn call(function: AggregateFunction, of: ColumnType) -> AggregateCall {
    AggregateCall { function, argument: Some(2), filter: None, distinct: false, of }
}

fn functions() -> Vec<AggregateCall> {
    let decimal = |scale| ColumnType::new(DataType::Decimal128(38, scale), true);
    vec![
        call(AggregateFunction::Count, ColumnType::new(DataType::Int64, false)),
        call(AggregateFunction::Sum, decimal(2)),
        call(AggregateFunction::Max, ColumnType { nullable: true, ..types()[2].clone() }),
        call(AggregateFunction::Avg, decimal(6)),
    ]
}

fn sets(kept: &[[bool; 2]]) -> Vec<KeySet> {
    kept.iter().enumerate().map(|(id, keys)| KeySet { keys: keys.to_vec(), id: id as i64 }).collect()
}

/// A set and its keys.
type Key = (i64, [Option<i64>; 2]);

/// What the functions give.
type Groups = BTreeMap<Key, [Option<i128>; 4]>;

fn model(rows: &[Row], sets: &[KeySet]) -> Groups {
    let mut groups: BTreeMap<Key, Vec<Option<i64>>> = BTreeMap::new();
    for set in sets {
        if set.keys == [false, false] {
            groups.insert((set.id, [None, None]), Vec::new());
        }
        for row in rows {
            let key = |key: usize| row[key].filter(|_| set.keys[key]);
            groups.entry((set.id, [key(0), key(1)])).or_default().push(row[2]);
        }
    }
    let of = |values: Vec<Option<i64>>| {
        let values: Vec<i128> = values.into_iter().flatten().map(i128::from).collect();
        let (sum, count) = (values.iter().sum::<i128>(), values.len() as i128);
        let some = |value: i128| (count > 0).then_some(value);
        let average = if count == 0 { 0 } else { (sum * 20_000 + count * sum.signum()) / (count * 2) };
        [Some(count), some(sum), values.iter().max().copied(), some(average)]
    };
    groups.into_iter().map(|(key, values)| (key, of(values))).collect()
}

fn groups(found: &[Chunk], average: impl Fn(&Chunk, usize) -> Option<i128>) -> Groups {
    let mut groups = Groups::new();
    for chunk in found {
        for row in 0..chunk.rows {
            let key = |column: usize| int(&chunk.columns[column], row).map(|value| value as i64);
            let value = |column: usize| int(&chunk.columns[3 + column], row);
            let values = [value(0), value(1), value(2), average(chunk, row)];
            let is_new = groups.insert((key(2).unwrap(), [key(0), key(1)]), values).is_none();
            assert!(is_new, "a group twice");
        }
    }
    groups
}

#[test]
fn rows_are_grouped_by_every_set() {
    let id = || ColumnType::new(DataType::UInt8, false);
    let choices: [&[[bool; 2]]; 4] = [
        &[[true, true], [true, false], [false, false]],
        &[[true, true], [false, true], [true, false], [false, false], [true, true]],
        &[[false, false]],
        &[[false, true], [true, false], [false, false], [false, false]],
    ];
    for count in [0, 1, 5000] {
        let rows = rows(count);
        for kept in choices {
            let sets = sets(kept);
            let expected = model(&rows, &sets);
            let functions = functions();
            let counts = vec![true, false, false, false];
            let grouping = GroupingSets {
                input: types(),
                keys: vec![0, 1],
                sets: sets.clone(),
                id: id(),
                functions: functions.clone(),
                counts,
                rows_max: count as u64,
            };
            let found = run(grouping, &chunks(&rows));
            assert_eq!(groups(&found, |chunk, row| int(&chunk.columns[6], row)), expected);
            // The same of groups by both keys.
            let parts = parts(&functions[3], &types(), count as u64).unwrap();
            let finest: Vec<AggregateCall> = functions[..3].iter().chain(&parts).cloned().collect();
            let first = GroupingSets {
                input: types(),
                keys: vec![0, 1],
                sets: self::sets(&[[true, true]]),
                id: id(),
                functions: finest.clone(),
                counts: vec![true, false, false, false, true],
                rows_max: count as u64,
            };
            let input = first.columns();
            let merged = finest.iter().enumerate().map(|(index, call)| merging(call, 3 + index).unwrap()).collect();
            let counts = first.counts.clone();
            let found = run(first, &chunks(&rows));
            let second = GroupingSets {
                input,
                keys: vec![0, 1],
                sets,
                id: id(),
                functions: merged,
                counts,
                rows_max: count as u64,
            };
            let columns = second.columns();
            let found = run(second, &found);
            let column = |index: usize| Expr::column(index, columns[index].clone());
            let average = average(column(6), column(7), functions[3].of.clone());
            let of = |chunk: &Chunk, row| int(&crate::evaluate::evaluate(&average, chunk).unwrap(), row);
            assert_eq!(groups(&found, of), expected);
        }
    }
}

fn aggregated(aggregate: &Aggregate, chunks: &[Chunk]) -> Vec<Chunk> {
    let table = AggregateTable::new(aggregate).unwrap();
    let sink = AggregateSink::new(&table);
    let mut states = vec![sink.worker().unwrap(), sink.worker().unwrap()];
    for (index, chunk) in chunks.iter().enumerate() {
        states[index % 2].push(chunk.clone()).unwrap();
    }
    states.iter_mut().for_each(|state| state.end().unwrap());
    for round in 0.. {
        let tasks = sink.finish(round, &mut states).unwrap();
        if tasks.is_empty() {
            break;
        }
        tasks.into_iter().for_each(|task| task().unwrap());
    }
    let mut reader = AggregateSource::new(&table).reader().unwrap();
    std::iter::from_fn(|| match reader.next().unwrap() {
        Next::Chunk(chunk) => Some(chunk),
        _ => None,
    })
    .collect()
}

#[test]
fn sets_are_made_of_each_other() {
    type Choice = (&'static [[bool; 2]], &'static [Option<usize>]);
    let choices: [Choice; 4] = [
        (&[[true, true], [true, false], [false, false]], &[None, None, Some(1)]),
        (&[[false, false], [true, true], [false, true], [true, true]], &[None, None, None, Some(2)]),
        (&[[false, false], [false, false]], &[None, Some(0)]),
        // Of two that have its keys, the one whose key has fewer values.
        (&[[false, true], [true, false], [false, false]], &[None, None, Some(1)]),
    ];
    for count in [0, 1, 5000] {
        let rows = rows(count);
        for (kept, of) in choices {
            let functions = functions();
            let parts = parts(&functions[3], &types(), count as u64).unwrap();
            let finest: Vec<AggregateCall> = functions[..3].iter().chain(&parts).cloned().collect();
            let merged = finest.iter().enumerate().map(|(index, call)| merging(call, 2 + index).unwrap()).collect();
            let finest = Aggregate { input: types(), keys: vec![0, 1], functions: finest, rows_max: count as u64 };
            let sets = sets(kept);
            let grouping = Arc::new(GroupingSets {
                input: finest.columns(),
                keys: vec![0, 1],
                sets: sets.clone(),
                id: ColumnType::new(DataType::UInt8, false),
                functions: merged,
                counts: vec![true, false, false, false, true],
                rows_max: count as u64,
            });
            grouping.check().unwrap();
            let levels = grouping.cascade(&finest).unwrap();
            assert_eq!(levels.iter().map(|level| level.of).collect::<Vec<_>>(), of);
            let of_all = aggregated(&finest, &chunks(&rows));
            let mut made: Vec<Vec<Chunk>> = Vec::new();
            let mut found = Vec::new();
            for level in &levels {
                let groups = match &level.aggregate {
                    Some(aggregate) => aggregated(aggregate, level.of.map_or(&of_all, |of| &made[of])),
                    None => of_all.clone(),
                };
                let mut step = grouping.of_level(level).worker().unwrap();
                for chunk in &groups {
                    let mut keep = |chunk| {
                        found.push(chunk);
                        Ok(())
                    };
                    step.push(chunk.clone(), &mut keep).unwrap();
                }
                made.push(groups);
            }
            let columns = grouping.columns();
            let column = |index: usize| Expr::column(index, columns[index].clone());
            let average = average(column(6), column(7), functions[3].of.clone());
            let of = |chunk: &Chunk, row| int(&crate::evaluate::evaluate(&average, chunk).unwrap(), row);
            assert_eq!(groups(&found, of), model(&rows, &sets));
        }
    }
}

#[test]
fn what_is_no_group_of_all_keys_makes_no_others() {
    let functions = vec![AggregateCall { argument: Some(2), ..functions().swap_remove(2) }];
    let finest = Aggregate { input: types(), keys: vec![0, 1], functions: functions.clone(), rows_max: 9 };
    let grouping = |keys: Vec<usize>, functions: Vec<AggregateCall>| GroupingSets {
        input: finest.columns(),
        keys,
        sets: sets(&[[true, true], [true, false]]),
        id: ColumnType::new(DataType::UInt8, false),
        counts: vec![false; functions.len()],
        functions,
        rows_max: 9,
    };
    assert!(grouping(vec![0, 1], functions.clone()).cascade(&finest).is_some());
    assert!(grouping(vec![1, 0], functions.clone()).cascade(&finest).is_none());
    let average = AggregateCall { function: AggregateFunction::Avg, ..functions[0].clone() };
    assert!(grouping(vec![0, 1], vec![average]).cascade(&finest).is_none());
}

#[test]
fn what_cannot_be_merged_is_not() {
    let mut distinct = functions().swap_remove(0);
    distinct.distinct = true;
    assert!(merging(&distinct, 0).is_none());
    assert!(parts(&distinct, &types(), 10).is_none());
    let average = functions().swap_remove(3);
    assert!(merging(&average, 0).is_none());
    // A sum of so many may be beyond any type.
    let widest = vec![ColumnType::new(DataType::Decimal128(38, 2), true); 3];
    assert!(parts(&average, &widest, 2).is_none());
}
