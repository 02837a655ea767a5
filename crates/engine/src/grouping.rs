//! Grouping sets: rows once for each set, without the keys that the set has not, and groups of them all.

use crate::aggregate::{
    Aggregate, AggregateCall, AggregateFunction, AggregateSource, AggregateTable, SumWide, out_of_range, result_bounds,
};
use crate::expr::{Expr, Function};
use crate::mask::Mask;
use crate::pipeline::{Next, Operator, Out, Reader, Source, Step};
use crate::types::{Class, ColumnType};
use crate::vector::{Chunk, Values, Vector};
use arrow_array::ArrayRef;
use arrow_schema::DataType;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidepool_base::{Error, Result};

/// One of the sets: which of the keys it has, and the number that tells its groups from those of others.
#[derive(Clone, Debug)]
pub struct KeySet {
    pub keys: Vec<bool>,
    pub id: i64,
}

/// Groups by each of some sets of keys. Columns of the result: the keys, NULL where a set has them not; the set's number; the functions.
#[derive(Clone, Debug)]
pub struct GroupingSets {
    pub input: Vec<ColumnType>,
    /// Columns of the input, each once. No function's argument or filter is one of them.
    pub keys: Vec<usize>,
    pub sets: Vec<KeySet>,
    /// Of the sets' numbers.
    pub id: ColumnType,
    pub functions: Vec<AggregateCall>,
    /// Functions that count: of no rows they are 0, and others NULL. Told apart from the functions' own, which may sum counts.
    pub counts: Vec<bool>,
    /// No more rows come, of the input.
    pub rows_max: u64,
}

impl GroupingSets {
    /// What comes out of [`Expand`]: the input's columns and the set's number.
    fn expanded(&self) -> Vec<ColumnType> {
        let of = |(column, of): (usize, &ColumnType)| {
            let is_key = self.keys.contains(&column);
            ColumnType { nullable: of.nullable || is_key, ..of.clone() }
        };
        self.input.iter().enumerate().map(of).chain([self.id.clone()]).collect()
    }

    /// The groups of what comes out of [`Expand`].
    pub fn aggregate(&self) -> Aggregate {
        Aggregate {
            input: self.expanded(),
            keys: self.keys.iter().copied().chain([self.input.len()]).collect(),
            functions: self.functions.clone(),
            rows_max: self.rows_max.saturating_mul(self.sets.len() as u64),
        }
    }

    pub fn columns(&self) -> Vec<ColumnType> {
        self.aggregate().columns()
    }

    /// Fails for functions of types that they have not, and for sets of other keys.
    pub fn check(&self) -> Result<()> {
        let used = || self.functions.iter().flat_map(|call| call.argument.into_iter().chain(call.filter));
        if used().any(|column| self.keys.contains(&column)) {
            return Err(Error::internal("a function of a grouping set's key"));
        }
        if self.sets.iter().any(|set| set.keys.len() != self.keys.len()) || self.counts.len() != self.functions.len() {
            return Err(Error::internal("a grouping set of other keys"));
        }
        if self.keys.iter().any(|key| self.input.get(*key).is_none()) || self.id.class() != Class::Int {
            return Err(Error::internal("a grouping set of a column that is not there"));
        }
        AggregateTable::new(&self.aggregate()).map(drop)
    }

    /// The groups that there are without rows: one for each set without keys.
    fn of_nothing(&self) -> Chunk {
        let ids: Vec<i64> = self.sets.iter().filter(|set| !set.keys.contains(&true)).map(|set| set.id).collect();
        let rows = ids.len();
        let columns = self.columns();
        let (of_keys, of_functions) = columns.split_at(self.keys.len() + 1);
        let keys = of_keys[..self.keys.len()].iter().map(|of| Vector::nulls(of, rows));
        let functions = of_functions.iter().zip(&self.counts).map(|(of, is_count)| match (is_count, of.class()) {
            (true, Class::Int) => Vector::ints(vec![0; rows]),
            _ => Vector::nulls(of, rows),
        });
        Chunk::new(rows, keys.chain([Vector::ints(ids)]).chain(functions).collect())
    }
}

/// A function over what another one gave of parts of the rows; `None` where there is none. `column`: where that is.
pub fn merging(call: &AggregateCall, column: usize) -> Option<AggregateCall> {
    use AggregateFunction as F;
    let function = match call.function {
        F::Count | F::Sum => F::Sum,
        F::Min | F::Max | F::BoolAnd | F::BoolOr => call.function,
        _ => return None,
    };
    let takes_repeated = matches!(call.function, F::Min | F::Max | F::BoolAnd | F::BoolOr);
    let merging =
        AggregateCall { function, argument: Some(column), filter: None, distinct: false, of: call.of.clone() };
    (takes_repeated || !call.distinct).then_some(merging)
}

/// What an average is made of, a sum and a count, where what it sums is a number and no sum can be beyond its type. `types`: of the
/// rows, no more than `rows_max`.
pub fn parts(call: &AggregateCall, types: &[ColumnType], rows_max: u64) -> Option<[AggregateCall; 2]> {
    let of = &types[call.argument?];
    let of_sum = match of.class() {
        Class::Float if of.data_type == DataType::Float64 => ColumnType::new(DataType::Float64, true),
        Class::Int | Class::Wide => {
            let (lower, upper) = of.bounds?;
            let limit = lower.unsigned_abs().max(upper.unsigned_abs()).checked_mul(rows_max.into())?;
            let limit = i128::try_from(limit).ok()?;
            let widest = ColumnType::new(DataType::Decimal128(38, of.scale()?), true);
            widest.bounds.filter(|(_, most)| limit <= *most)?;
            widest.within((-limit, limit))
        }
        _ => return None,
    };
    if call.distinct || call.function != AggregateFunction::Avg {
        return None;
    }
    let count = ColumnType::new(DataType::Int64, false);
    Some([
        AggregateCall { function: AggregateFunction::Sum, of: of_sum, ..call.clone() },
        AggregateCall { function: AggregateFunction::Count, of: count, ..call.clone() },
    ])
}

/// The average, as an aggregate makes it: of a sum and a count, which may be 0.
pub fn average(sum: Expr, count: Expr, of: ColumnType) -> Expr {
    let function = Average { sum: sum.of.clone(), of: of.clone() };
    Expr::call(Arc::new(function), vec![sum, count], of)
}

struct Average {
    sum: ColumnType,
    of: ColumnType,
}

impl Function for Average {
    fn name(&self) -> &str {
        "average"
    }

    fn evaluate(&self, arguments: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
        let [sums, counts] = arguments else {
            return Err(Error::internal("an average of other than a sum and a count"));
        };
        let sums = Vector::from_arrow(sums, &self.sum)?;
        let counts = Vector::from_arrow(counts, &ColumnType::new(DataType::Int64, true))?;
        let counts = counts.as_ints()?;
        let is_there = |row: usize| counts[row] > 0 && sums.is_valid(row);
        let valid = Mask::from_fn(rows, is_there);
        let exact = |row: usize| match &sums.values {
            Values::Int(values) => values[row].into(),
            Values::Wide(values) => values[row],
            _ => 0,
        };
        let scale = i32::from(self.sum.scale().unwrap_or(0));
        let values = match (&sums.values, self.of.class()) {
            (Values::Float(values), Class::Float) => {
                let average = |row: usize| if is_there(row) { values[row] / counts[row] as f64 } else { 0.0 };
                Values::Float((0..rows).map(average).collect())
            }
            (_, Class::Float) => {
                let unit = 10f64.powi(-scale);
                let of = |row| SumWide::of(exact(row)).to_f64() * unit / counts[row] as f64;
                Values::Float((0..rows).map(|row| if is_there(row) { of(row) } else { 0.0 }).collect())
            }
            (_, class) => {
                let shift = i32::from(self.of.scale().unwrap_or(0)) - scale;
                let (lower, upper) = result_bounds(&self.of);
                let average = |row: usize| {
                    if !is_there(row) {
                        return Ok(0);
                    }
                    let value = SumWide::of(exact(row)).average(counts[row] as u64, shift);
                    let value = value.filter(|value| lower <= *value && *value <= upper);
                    value.ok_or_else(|| out_of_range(&self.of))
                };
                let values = (0..rows).map(average).collect::<Result<Vec<i128>>>()?;
                match class {
                    Class::Int => Values::Int(values.into_iter().map(|value| value as i64).collect()),
                    _ => Values::Wide(values.into()),
                }
            }
        };
        Vector { values, valid: None }.with_valid(Some(valid)).to_arrow(&self.of)
    }
}

/// Gives each row once for each set.
#[derive(Debug)]
pub struct Expand {
    sets: Arc<GroupingSets>,
    /// Whether any row came.
    seen: Arc<AtomicBool>,
}

impl Expand {
    pub fn new(sets: &Arc<GroupingSets>) -> Expand {
        Expand { sets: Arc::clone(sets), seen: Arc::default() }
    }

    /// The groups of what it gives.
    pub fn groups(&self, table: &Arc<AggregateTable>) -> SetGroups {
        SetGroups {
            sets: Arc::clone(&self.sets),
            groups: AggregateSource::new(table),
            seen: Arc::clone(&self.seen),
            is_told: Arc::default(),
        }
    }
}

impl Operator for Expand {
    fn worker(&self) -> Result<Box<dyn Step>> {
        Ok(Box::new(ExpandStep { sets: Arc::clone(&self.sets), seen: Arc::clone(&self.seen) }))
    }
}

struct ExpandStep {
    sets: Arc<GroupingSets>,
    seen: Arc<AtomicBool>,
}

impl Step for ExpandStep {
    fn push(&mut self, chunk: Chunk, out: Out<'_>) -> Result<()> {
        if chunk.rows == 0 {
            return Ok(());
        }
        self.seen.store(true, Ordering::Relaxed);
        let GroupingSets { input, keys, sets, .. } = self.sets.as_ref();
        let nulls: Vec<Vector> = keys.iter().map(|key| Vector::nulls(&input[*key], chunk.rows)).collect();
        for set in sets {
            let mut columns = chunk.columns.clone();
            for ((key, is_kept), nulls) in keys.iter().zip(&set.keys).zip(&nulls) {
                if !is_kept {
                    columns[*key] = nulls.clone();
                }
            }
            columns.push(Vector { values: Values::Int(vec![set.id; chunk.rows].into()), valid: None });
            out(Chunk::new(chunk.rows, columns))?;
        }
        Ok(())
    }
}

/// The groups; of no rows, those that there are nevertheless.
#[derive(Debug)]
pub struct SetGroups {
    sets: Arc<GroupingSets>,
    groups: AggregateSource,
    seen: Arc<AtomicBool>,
    is_told: Arc<AtomicBool>,
}

impl Source for SetGroups {
    fn reader(&self) -> Result<Box<dyn Reader>> {
        if self.seen.load(Ordering::Relaxed) {
            return self.groups.reader();
        }
        let is_first = !self.is_told.swap(true, Ordering::Relaxed);
        Ok(Box::new(Nothing(is_first.then(|| self.sets.of_nothing()))))
    }

    fn parallelism(&self) -> Result<usize> {
        if self.seen.load(Ordering::Relaxed) { self.groups.parallelism() } else { Ok(1) }
    }
}

struct Nothing(Option<Chunk>);

impl Reader for Nothing {
    fn next(&mut self) -> Result<Next> {
        Ok(self.0.take().filter(|groups| groups.rows > 0).map_or(Next::End, Next::Chunk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::AggregateSink;
    use crate::pipeline::Sink;
    use crate::vector::CHUNK_ROWS;
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
}
