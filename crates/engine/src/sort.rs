//! Sorting, and the first rows of what would be sorted.
//!
//! Each worker keeps its chunks; with a limit it sorts them and drops what cannot be among the first as often as it has
//! gathered several times as many. The last to finish merges what is left.

use crate::hash::float_bits;
use crate::pipeline::{Next, Reader, Sink, SinkState, Source, Task, states_of};
use crate::types::ColumnType;
use crate::vector::{CHUNK_ROWS, Chunk, Values, Vector};
use parking_lot::Mutex;
use std::any::Any;
use std::cmp::Ordering;
use std::sync::{Arc, OnceLock};
use tidepool_base::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SortKey {
    pub column: usize,
    pub descending: bool,
    pub nulls_first: bool,
}

#[derive(Clone, Debug)]
pub struct Sort {
    pub keys: Vec<SortKey>,
    /// Only so many of the first rows are wanted.
    pub limit: Option<usize>,
    pub types: Vec<ColumnType>,
}

/// What a sort's pipelines share.
pub struct Sorted {
    sort: Sort,
    chunk: OnceLock<Chunk>,
}

impl Sorted {
    pub fn new(sort: Sort) -> Arc<Sorted> {
        Arc::new(Sorted { sort, chunk: OnceLock::new() })
    }
}

/// An integer that orders as PostgreSQL orders floats.
fn float_order(value: f64) -> i64 {
    let bits = float_bits(value) as i64;
    bits ^ (((bits >> 63) as u64) >> 1) as i64
}

/// Rows' order by some keys.
fn order(chunk: &Chunk, keys: &[SortKey]) -> Result<Vec<u32>> {
    type Compare<'c> = Box<dyn Fn(u32, u32) -> Ordering + 'c>;
    fn by<'c, T: Ord>(vector: &'c Vector, key: SortKey, value: impl Fn(usize) -> T + 'c) -> Compare<'c> {
        Box::new(move |a, b| {
            let (a, b) = (a as usize, b as usize);
            if vector.valid.is_some() {
                match (vector.is_valid(a), vector.is_valid(b)) {
                    (true, true) => {}
                    (false, false) => return Ordering::Equal,
                    (a_valid, _) => {
                        return if a_valid == key.nulls_first { Ordering::Greater } else { Ordering::Less };
                    }
                }
            }
            let order = value(a).cmp(&value(b));
            if key.descending { order.reverse() } else { order }
        })
    }
    let compare = |key: &SortKey| -> Result<Compare<'_>> {
        let vector = &chunk.columns[key.column];
        Ok(match &vector.values {
            Values::Int(values) => by(vector, *key, |row| values[row]),
            Values::Wide(values) => by(vector, *key, |row| values[row]),
            Values::Float(values) => by(vector, *key, |row| float_order(values[row])),
            Values::Bool(values) => by(vector, *key, |row| values.get(row)),
            Values::Text(texts) => by(vector, *key, |row| texts.bytes(row)),
            Values::Other(_) => return Err(Error::internal("a sort key of a type without an order")),
        })
    };
    let compares = keys.iter().map(compare).collect::<Result<Vec<_>>>()?;
    let mut rows: Vec<u32> = (0..chunk.rows as u32).collect();
    rows.sort_by(|a, b| {
        compares.iter().map(|compare| compare(*a, *b)).find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
    });
    Ok(rows)
}

fn joined(chunks: &[Chunk]) -> Result<Option<Chunk>> {
    let Some(first) = chunks.first() else { return Ok(None) };
    let rows: usize = chunks.iter().map(|chunk| chunk.rows).sum();
    if rows > u32::MAX as usize {
        return Err(Error::unsupported("more than 4,294,967,295 rows cannot be sorted"));
    }
    let column = |index: usize| Vector::concat(&chunks.iter().map(|chunk| &chunk.columns[index]).collect::<Vec<_>>());
    let columns = (0..first.columns.len()).map(column).collect::<Result<Vec<_>>>()?;
    Ok(Some(Chunk { rows, columns }))
}

/// Rows that a worker gathers before it looks for those that cannot be among the first.
const HELD_MIN: usize = 16 * CHUNK_ROWS;

pub struct SortSink(pub Arc<Sorted>);

struct SortState {
    sorted: Arc<Sorted>,
    chunks: Vec<Chunk>,
    rows: usize,
}

impl SortState {
    fn shrink(&mut self, limit: usize) -> Result<()> {
        if let Some(all) = joined(&std::mem::take(&mut self.chunks))? {
            let mut order = order(&all, &self.sorted.sort.keys)?;
            order.truncate(limit);
            let chunk = all.gather(&order)?;
            self.rows = chunk.rows;
            self.chunks.push(chunk);
        }
        Ok(())
    }
}

impl SinkState for SortState {
    fn push(&mut self, chunk: Chunk) -> Result<()> {
        self.rows += chunk.rows;
        self.chunks.push(chunk);
        match self.sorted.sort.limit {
            Some(limit) if self.rows > HELD_MIN.max(limit.saturating_mul(4)) => self.shrink(limit),
            _ => Ok(()),
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl Sink for SortSink {
    fn worker(&self) -> Result<Box<dyn SinkState>> {
        Ok(Box::new(SortState { sorted: Arc::clone(&self.0), chunks: Vec::new(), rows: 0 }))
    }

    fn finish(&self, round: usize, states: &mut Vec<Box<dyn SinkState>>) -> Result<Vec<Task>> {
        if round > 0 {
            return Ok(Vec::new());
        }
        let sorted = Arc::clone(&self.0);
        let chunks: Vec<Chunk> = states_of::<SortState>(states).into_iter().flat_map(|state| state.chunks).collect();
        let chunks = Mutex::new(chunks);
        Ok(vec![Box::new(move || {
            if let Some(all) = joined(&std::mem::take(&mut *chunks.lock()))? {
                let mut order = order(&all, &sorted.sort.keys)?;
                order.truncate(sorted.sort.limit.unwrap_or(usize::MAX));
                let all = all.gather(&order)?;
                // Set once: there is one task.
                let _ = sorted.chunk.set(all);
            }
            Ok(())
        })])
    }
}

/// The rows in order, for one reader.
pub struct SortedSource(pub Arc<Sorted>);

impl Source for SortedSource {
    fn reader(&self) -> Result<Box<dyn Reader>> {
        Ok(Box::new(SortedReader { sorted: Arc::clone(&self.0), next: 0 }))
    }

    fn parallelism(&self) -> Result<usize> {
        Ok(1)
    }
}

struct SortedReader {
    sorted: Arc<Sorted>,
    next: usize,
}

impl Reader for SortedReader {
    fn next(&mut self) -> Result<Next> {
        let Some(all) = self.sorted.chunk.get() else { return Ok(Next::End) };
        if self.next >= all.rows {
            return Ok(Next::End);
        }
        let len = (all.rows - self.next).min(CHUNK_ROWS);
        let chunk = all.slice(self.next, len);
        self.next += len;
        Ok(Next::Chunk(chunk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{Array, ArrayRef, Float64Array, Int64Array, StringViewArray};
    use arrow_schema::DataType;

    fn sorted(types: &[ColumnType], chunks: Vec<Chunk>, keys: Vec<SortKey>, limit: Option<usize>) -> Vec<Chunk> {
        let sorted = Sorted::new(Sort { keys, limit, types: types.to_vec() });
        let sink = SortSink(Arc::clone(&sorted));
        let mut workers = [sink.worker().unwrap(), sink.worker().unwrap()];
        for (index, chunk) in chunks.into_iter().enumerate() {
            workers[index % 2].push(chunk).unwrap();
        }
        let mut states = workers.into_iter().collect();
        for task in sink.finish(0, &mut states).unwrap() {
            task().unwrap();
        }
        let mut reader = SortedSource(sorted).reader().unwrap();
        let mut out = Vec::new();
        while let Next::Chunk(chunk) = reader.next().unwrap() {
            out.push(chunk);
        }
        out
    }

    #[test]
    fn rows_come_in_order() {
        let types = [
            ColumnType::new(DataType::Int64, true),
            ColumnType::new(DataType::Float64, true),
            ColumnType::new(DataType::Utf8View, true),
        ];
        let mut seed = 7u64;
        let mut next = move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed >> 40
        };
        let mut rows: Vec<(Option<i64>, Option<f64>, Option<String>)> = Vec::new();
        let mut chunks = Vec::new();
        for _ in 0..40 {
            let part: Vec<_> = (0..2000)
                .map(|_| {
                    let float = match next() % 9 {
                        0 => None,
                        1 => Some(f64::NAN),
                        2 => Some(-0.0),
                        other => Some(other as f64 - 5.0),
                    };
                    let int = (next() % 7 > 0).then(|| next() as i64 % 50);
                    (int, float, (next() % 5 > 0).then(|| format!("{:x}", next() % 100_000)))
                })
                .collect();
            let arrays: [ArrayRef; 3] = [
                Arc::new(part.iter().map(|row| row.0).collect::<Int64Array>()),
                Arc::new(part.iter().map(|row| row.1).collect::<Float64Array>()),
                Arc::new(part.iter().map(|row| row.2.clone()).collect::<StringViewArray>()),
            ];
            let columns = arrays.iter().zip(&types).map(|(array, of)| Vector::from_arrow(array, of).unwrap());
            chunks.push(Chunk::new(part.len(), columns.collect()));
            rows.extend(part);
        }
        for (nulls_first, descending, limit) in
            [(false, false, None), (true, false, Some(10)), (false, true, Some(5000)), (true, true, Some(0))]
        {
            let key = |column| SortKey { column, descending, nulls_first };
            let found = sorted(&types, chunks.clone(), vec![key(0), key(1), key(2)], limit);
            let float = |value: f64| if value.is_nan() { i64::MAX } else { (value * 2.0) as i64 };
            fn side<T: Ord>(a: Option<T>, b: Option<T>, nulls_first: bool, descending: bool) -> Ordering {
                match (a, b) {
                    (None, None) => Ordering::Equal,
                    (None, _) => {
                        if nulls_first {
                            Ordering::Less
                        } else {
                            Ordering::Greater
                        }
                    }
                    (_, None) => {
                        if nulls_first {
                            Ordering::Greater
                        } else {
                            Ordering::Less
                        }
                    }
                    (Some(a), Some(b)) => {
                        if descending {
                            b.cmp(&a)
                        } else {
                            a.cmp(&b)
                        }
                    }
                }
            }
            let mut expected = rows.clone();
            expected.sort_by(|a, b| {
                side(a.0, b.0, nulls_first, descending)
                    .then(side(a.1.map(float), b.1.map(float), nulls_first, descending))
                    .then(side(a.2.as_ref(), b.2.as_ref(), nulls_first, descending))
            });
            expected.truncate(limit.unwrap_or(usize::MAX));
            let mut at = 0;
            for chunk in &found {
                let ints = chunk.columns[0].to_arrow(&types[0]).unwrap();
                let texts = chunk.columns[2].to_arrow(&types[2]).unwrap();
                let part = &expected[at..at + chunk.rows];
                assert_eq!(ints.as_ref(), &part.iter().map(|row| row.0).collect::<Int64Array>() as &dyn Array);
                let part = part.iter().map(|row| row.2.clone()).collect::<StringViewArray>();
                assert_eq!(texts.as_ref(), &part as &dyn Array);
                at += chunk.rows;
            }
            assert_eq!(at, expected.len());
        }
    }
}
