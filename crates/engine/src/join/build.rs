//! The build side: rows are kept as they come, and put into a directory once all of them are there.

use super::filter::KeyFilter;
use super::table::{Built, Directory, JoinTable, ranges};
use crate::hash;
use crate::mask::Mask;
use crate::pipeline::{Sink, SinkState, Task, states_of};
use crate::rows::{FrozenRows, RowPtr, Rows};
use crate::text::Owners;
use crate::touch::Touches;
use crate::vector::{Chunk, Values, Vector};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tidepool_base::Result;

/// Rows that a task puts into the directory: few enough that small build sides are put in by several workers.
const TASK_ROWS: usize = 16 << 10;

/// Where a pipeline ends whose rows are a join's build side.
pub struct BuildSink(Arc<JoinTable>);

struct BuildState {
    table: Arc<JoinTable>,
    rows: Rows,
    keyless: Rows,
    total: usize,
    has_null: bool,
    /// Least and greatest value of each key that is an integer, of rows with keys.
    bounds: Vec<Option<(i64, i64)>>,
    hashes: Vec<u64>,
    places: Vec<RowPtr>,
    touches: Touches,
}

impl BuildSink {
    pub fn new(table: &Arc<JoinTable>) -> BuildSink {
        BuildSink(Arc::clone(table))
    }
}

impl JoinTable {
    /// Rows of which no key is NULL that then equals nothing; `None`: all.
    pub(super) fn keyed(&self, chunk: &Chunk, column_of: impl Fn(&super::JoinKey) -> usize) -> Option<Mask> {
        let keys = self.join.keys.iter().filter(|key| !key.nulls_equal);
        keys.fold(None, |mask, key| Mask::both(mask.as_ref(), chunk.columns[column_of(key)].valid.as_ref()))
    }

    /// The keys of a chunk. Those that are nowhere NULL in rows with keys come as if they were not in any.
    pub(super) fn keys(&self, chunk: &Chunk, column_of: impl Fn(&super::JoinKey) -> usize) -> Vec<Vector> {
        let key = |key: &super::JoinKey| {
            let Vector { values, valid } = chunk.columns[column_of(key)].clone();
            Vector { values, valid: valid.filter(|_| key.nulls_equal) }
        };
        self.join.keys.iter().map(key).collect()
    }
}

fn joined(a: Option<(i64, i64)>, b: Option<(i64, i64)>) -> Option<(i64, i64)> {
    match (a, b) {
        (Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
        (a, b) => a.or(b),
    }
}

/// Least and greatest of some values.
fn bounds_of(values: &[i64], valid: Option<&Mask>) -> Option<(i64, i64)> {
    let mut bounds = (i64::MAX, i64::MIN);
    match valid {
        None => values.iter().for_each(|value| bounds = (bounds.0.min(*value), bounds.1.max(*value))),
        Some(valid) => {
            for (row, value) in values.iter().enumerate() {
                if valid.get(row) {
                    bounds = (bounds.0.min(*value), bounds.1.max(*value));
                }
            }
        }
    }
    (bounds.0 <= bounds.1).then_some(bounds)
}

impl Sink for BuildSink {
    fn worker(&self) -> Result<Box<dyn SinkState>> {
        let table = &self.0;
        Ok(Box::new(BuildState {
            table: Arc::clone(table),
            rows: Rows::observed(Arc::clone(&table.layout), table.observer()),
            keyless: Rows::observed(Arc::clone(&table.layout), table.observer()),
            total: 0,
            has_null: false,
            bounds: vec![None; table.join.keys.len()],
            hashes: Vec::new(),
            places: Vec::new(),
            touches: table.touches(),
        }))
    }

    fn finish(&self, round: usize, states: &mut Vec<Box<dyn SinkState>>) -> Result<Vec<Task>> {
        let table = &self.0;
        if round > 0 {
            return numbered(table, round);
        }
        let mut bounds = vec![None; table.join.keys.len()];
        let (mut rows, mut keyless, mut owners) = (Vec::new(), Vec::new(), Owners::default());
        let (mut total, mut has_null) = (0, false);
        for state in states_of::<BuildState>(states) {
            let freeze = |rows: Rows, owners: &mut Owners| -> Option<Arc<FrozenRows>> {
                let rows = (!rows.is_empty()).then(|| Arc::new(rows.freeze()));
                rows.inspect(|rows| owners.join(rows.owners()))
            };
            rows.extend(freeze(state.rows, &mut owners));
            keyless.extend(freeze(state.keyless, &mut owners));
            total += state.total;
            has_null |= state.has_null;
            bounds.iter_mut().zip(state.bounds).for_each(|(all, own)| *all = joined(*all, own));
        }
        let count = rows.iter().map(|rows| rows.len()).sum();
        let directory = table.directory(count, table.int_key().and(bounds.first().copied().flatten()))?;
        let filters = (0..table.join.keys.len())
            .map(|key| KeyFilter::new(&table.join, key, count, bounds[key], &table.pools.filters, table.observer()));
        let filters = filters.collect::<Result<Vec<_>>>()?;
        table.observer().note(|| table.described(&directory, count, bounds.first().copied().flatten()));
        let mut touches = table.touches();
        touches.append(&table.pools.directory, directory.bytes());
        touches.append(&table.pools.filters, filters.iter().flatten().map(KeyFilter::bytes).sum());
        drop(touches);
        // All that a bitmap's rows are good for is in it once they were put in.
        let kept = if let Directory::Bitmap { .. } = directory { Vec::new() } else { rows.clone() };
        table.set(Built {
            rows: kept,
            keyless,
            owners,
            directory,
            has_duplicates: AtomicBool::new(false),
            total,
            has_null,
            filters,
        })?;
        let built = table.built()?;
        if matches!(built.directory, Directory::Empty | Directory::Nested) {
            return Ok(Vec::new());
        }
        let task = |range| {
            let table = Arc::clone(table);
            Box::new(move || match &table.built()?.directory {
                Directory::Ranked(ranked) => table.add_keys(ranked, &range),
                _ => table.insert(table.built()?, &range),
            }) as Task
        };
        Ok(ranges(&rows, TASK_ROWS).into_iter().map(task).collect())
    }
}

/// Numbers the keys of a ranked directory once all of them are known, and then puts the rows into it.
fn numbered(table: &Arc<JoinTable>, round: usize) -> Result<Vec<Task>> {
    let built = table.built()?;
    let Directory::Ranked(ranked) = &built.directory else { return Ok(Vec::new()) };
    if round > 1 {
        return Ok(Vec::new());
    }
    let bitmap_bytes = ranked.bytes();
    let keys = ranked.number(table.observer())?;
    let rows: usize = built.rows.iter().map(|rows| rows.len()).sum();
    built.has_duplicates.store(keys < rows, Ordering::Relaxed);
    let mut touches = table.touches();
    touches.write(&table.pools.directory, bitmap_bytes);
    touches.append(&table.pools.directory, ranked.bytes() - bitmap_bytes);
    let task = |range| {
        let table = Arc::clone(table);
        Box::new(move || table.insert(table.built()?, &range)) as Task
    };
    Ok(ranges(&built.rows, TASK_ROWS).into_iter().map(task).collect())
}

impl SinkState for BuildState {
    fn push(&mut self, chunk: Chunk) -> Result<()> {
        let before = self.used_bytes();
        self.keep(chunk)?;
        let bytes = self.used_bytes() - before;
        self.touches.append(&self.table.pools.rows, bytes);
        Ok(())
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl BuildState {
    fn used_bytes(&self) -> usize {
        self.rows.used_bytes() + self.keyless.used_bytes()
    }

    fn keep(&mut self, chunk: Chunk) -> Result<()> {
        let table = &self.table;
        let column_of = |key: &super::JoinKey| key.build;
        let keyed = table.keyed(&chunk, column_of);
        self.total += chunk.rows;
        self.has_null |= keyed.is_some();
        let keys = table.keys(&chunk, column_of);
        let mut columns: Vec<Vector> = table.stored.iter().map(|column| chunk.columns[*column].clone()).collect();
        if let Some(missing) = keyed.as_ref().map(Mask::not)
            && table.join.keeps_keyless()
        {
            self.places.clear();
            let columns: Vec<&Vector> = columns.iter().collect();
            self.keyless.append(&columns, Some(&missing.positions()), chunk.rows, &mut self.places)?;
        }
        for (field, key) in table.key_fields.iter().zip(&keys) {
            columns[*field] = key.clone();
        }
        for (bounds, key) in self.bounds.iter_mut().zip(&keys) {
            if let Values::Int(values) = &key.values {
                let valid = Mask::both(key.valid.as_ref(), keyed.as_ref());
                *bounds = joined(*bounds, bounds_of(values, valid.as_ref()));
            }
        }
        let positions = keyed.as_ref().map(Mask::positions);
        self.places.clear();
        let columns: Vec<&Vector> = columns.iter().collect();
        self.rows.append(&columns, positions.as_deref(), chunk.rows, &mut self.places)?;
        if table.int_key().is_none() && !keys.is_empty() {
            hash::of_columns_into(&keys.iter().collect::<Vec<_>>(), chunk.rows, &mut self.hashes)?;
            for (place, row) in self.places.iter().enumerate() {
                let index = positions.as_ref().map_or(place, |positions| positions[place] as usize);
                // SAFETY: made just now, of a layout with a header.
                unsafe { row.header() }.store(self.hashes[index], Ordering::Relaxed);
            }
        }
        Ok(())
    }
}
