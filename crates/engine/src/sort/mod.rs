//! Sorting, and the first rows of what would be sorted.
//!
//! Each worker keeps its chunks, and of each row a key ([`keys`]) with the row's place. Keys are sorted in runs, which are merged
//! by ranges of keys, each by any worker; rows follow once. With a limit, a worker drops what is beyond the last of the first
//! rows that it has seen, and what is beyond any other worker's.

pub(crate) mod keys;
mod pick;
#[cfg(test)]
mod tests;

use crate::expr::Scalar;
use crate::observed::{Hold, Kept, Observer};
use crate::pipeline::{Next, Reader, Sink, SinkState, Source, Task, states_of};
use crate::room;
use crate::touch::{Meter, Pool, Touches};
use crate::types::{Class, ColumnType};
use crate::vector::{CHUNK_ROWS, Chunk};
use keys::KeyPlan;
use pick::{PLACES, Parts, Place};
use std::any::Any;
use std::cmp::Ordering;
use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use tidepool_base::{Error, Result};
use tidepool_heap::QueryHeap;
use tidepool_table::KeyTest;

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

/// Rows of a run: what a worker sorts at a time, within some milliseconds.
const RUN_ROWS: usize = 1 << 16;
/// Rows of a range that is merged at a time.
const RANGE_ROWS: usize = 1 << 16;
/// Keys of a run that tell where ranges begin.
const SAMPLE: usize = 64;
/// With a limit beyond it, all is sorted.
const FIRST_MAX: usize = 1 << 17;
/// Rows that a worker gathers at least before it looks for those that cannot be among the first.
const HELD_MIN: usize = 2 * CHUNK_ROWS;

/// A row's key and place.
#[derive(Clone, Copy, Debug)]
struct Item {
    upper: u64,
    lower: u64,
    place: Place,
}

impl Item {
    #[inline(always)]
    fn key(&self) -> u128 {
        u128::from(self.upper) << 64 | u128::from(self.lower)
    }
}

/// What a sort's pipelines share.
pub struct Sorted {
    sort: Sort,
    plan: Result<KeyPlan>,
    /// With a limit: no row whose key has a greater upper half is among the first.
    threshold: AtomicU64,
    /// With a limit, of a first key that is an integer: no row behind it is among the first. Until it is known, the last value there is.
    last: AtomicI64,
    workers: AtomicUsize,
    ranges: OnceLock<Vec<OnceLock<Range>>>,
    meter: Meter,
    pools: Pools,
}

/// Rows in order.
struct Range {
    rows: Chunk,
    _holds: Vec<Hold>,
}

/// What it has in the query heap.
struct Pools {
    chunks: Pool,
    items: Pool,
    sorted: Arc<Pool>,
}

impl fmt::Debug for Sorted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sorted").field("sort", &self.sort).finish_non_exhaustive()
    }
}

impl Sorted {
    pub fn new(sort: Sort) -> Arc<Sorted> {
        Sorted::metered(sort, Meter::default())
    }

    /// As above, with an account of what it touches.
    pub fn metered(sort: Sort, meter: Meter) -> Arc<Sorted> {
        let plan = KeyPlan::new(&sort.keys, &sort.types);
        let is_descending = sort.keys.first().is_some_and(|key| key.descending);
        Arc::new(Sorted {
            sort,
            plan,
            threshold: AtomicU64::new(u64::MAX),
            last: AtomicI64::new(if is_descending { i64::MIN } else { i64::MAX }),
            workers: AtomicUsize::new(0),
            ranges: OnceLock::new(),
            pools: Pools { chunks: meter.pool(), items: meter.pool(), sorted: Arc::new(meter.pool()) },
            meter,
        })
    }

    /// With a limit, for scans: whether a value of the first key can be one of the first rows'. Of a key without NULLs whose values
    /// are integers.
    pub fn bound(self: &Arc<Self>) -> Option<Arc<dyn KeyTest>> {
        let key = self.sort.keys.first()?;
        let of = self.sort.types.get(key.column)?;
        let is_plain = of.class() == Class::Int && of.dictionary.is_none() && !of.nullable;
        (is_plain && self.first().is_some()).then(|| Arc::new(Bound(Arc::clone(self))) as Arc<dyn KeyTest>)
    }

    /// How many of the first rows workers look for.
    fn first(&self) -> Option<usize> {
        self.sort.limit.filter(|limit| *limit <= FIRST_MAX)
    }

    /// All rows in order, in pieces, once they are sorted.
    pub(crate) fn pieces(&self) -> Result<Vec<Chunk>> {
        let unsorted = || Error::internal("rows are read before they are sorted");
        let ranges = self.ranges.get().ok_or_else(unsorted)?;
        let pieces = ranges.iter().map(|range| Ok(range.get().ok_or_else(unsorted)?.rows.clone()));
        pieces.filter(|piece: &Result<Chunk>| piece.as_ref().map_or(true, |piece| piece.rows > 0)).collect()
    }

    /// What [`Sorted::pieces`] lie in.
    pub(crate) fn pool(&self) -> Arc<Pool> {
        Arc::clone(&self.pools.sorted)
    }

    fn observer(&self) -> &Observer {
        self.meter.observer()
    }

    fn note_method(&self, rows: usize, runs: usize, ranges: usize) {
        let how = || match (self.first(), self.sort.limit) {
            (Some(limit), _) => format!("top-N, as only the first {limit} are wanted"),
            (None, Some(limit)) => format!("full sort, as the first {limit} are more than {FIRST_MAX}"),
            (None, None) => "full sort".to_owned(),
        };
        self.observer().note(|| {
            let is_decisive = self.plan.as_ref().is_ok_and(|plan| plan.is_decisive);
            let ties = if is_decisive { "" } else { "; rows of equal 16-byte keys compared by column" };
            format!("Sort Method: {}; rows={rows} runs={runs} ranges={ranges}{ties}", how())
        });
    }

    fn plan(&self) -> Result<&KeyPlan> {
        self.plan.as_ref().map_err(Clone::clone)
    }
}

/// What a scan is asked for by a sort of which only the first rows are wanted.
#[derive(Debug)]
struct Bound(Arc<Sorted>);

impl KeyTest for Bound {
    fn bounds(&self) -> Option<(i64, i64)> {
        let last = self.0.last.load(Relaxed);
        let descending = self.0.sort.keys.first().is_some_and(|key| key.descending);
        Some(if descending { (last, i64::MAX) } else { (i64::MIN, last) })
    }

    fn and_values(&self, values: &[i64], words: &mut [u64]) {
        let Some((lower, upper)) = self.bounds() else { return };
        for (word, values) in words.iter_mut().zip(values.chunks(64)) {
            let within =
                values.iter().enumerate().map(|(bit, value)| u64::from((lower..=upper).contains(value)) << bit);
            *word &= within.fold(0, |bits, bit| bits | bit);
        }
    }

    /// It comes back once the bound is known.
    fn is_retired(&self) -> bool {
        self.bounds() == Some((i64::MIN, i64::MAX))
    }
}

/// The order of two rows, `row` tells where they are.
#[inline(always)]
fn compare<'c>(plan: &KeyPlan, row: impl Fn(Place) -> (&'c Chunk, usize), a: &Item, b: &Item) -> Ordering {
    let order = a.key().cmp(&b.key());
    if plan.is_decisive || order.is_ne() { order } else { plan.compare(row(a.place), row(b.place)) }
}

/// Puts rows in order.
fn sort_items<'c>(plan: &KeyPlan, row: impl Fn(Place) -> (&'c Chunk, usize) + Copy, items: &mut [Item]) {
    if plan.is_decisive {
        items.sort_unstable_by_key(Item::key);
    } else {
        items.sort_unstable_by(|a, b| compare(plan, row, a, b));
    }
}

fn check_heap() -> Result<()> {
    QueryHeap::current().map_or(Ok(()), |heap| heap.check())
}

/// Takes the rows that are sorted.
#[derive(Debug)]
pub struct SortSink(pub Arc<Sorted>);

/// Sorted items.
struct Run {
    items: Vec<Item>,
    _hold: Hold,
}

struct SortState {
    sorted: Arc<Sorted>,
    worker: usize,
    chunks: Vec<Chunk>,
    kept: Kept,
    /// Sorted.
    runs: Vec<Run>,
    /// Not yet sorted.
    items: Vec<Item>,
    /// With a limit: rows that are gathered before the first of them are looked for again.
    held_max: usize,
    touches: Touches,
}

impl SortState {
    fn take(&mut self, chunk: Chunk) -> Result<()> {
        let sorted = Arc::clone(&self.sorted);
        let keys = sorted.plan()?.encode(&chunk)?;
        let number = self.chunks.len();
        let item = |row: usize, key: u128| Item {
            upper: (key >> 64) as u64,
            lower: key as u64,
            place: Place::new(self.worker, number, row),
        };
        let Some(limit) = sorted.first() else {
            room::grow(&mut self.items, chunk.rows)?;
            self.items.extend(keys.iter().enumerate().map(|(row, key)| item(row, *key)));
            self.touches.append(&sorted.pools.chunks, chunk.bytes());
            self.touches.append(&sorted.pools.items, chunk.rows * size_of::<Item>());
            self.keep(chunk);
            return if self.items.len() >= RUN_ROWS { self.end_run() } else { Ok(()) };
        };
        let threshold = sorted.threshold.load(Relaxed);
        let mut rows: Vec<u32> = Vec::new();
        for (row, key) in keys.iter().enumerate() {
            if (key >> 64) as u64 <= threshold {
                self.items.push(item(rows.len(), *key));
                rows.push(row as u32);
            }
        }
        if rows.len() == chunk.rows {
            self.keep(chunk);
        } else if !rows.is_empty() {
            self.keep(chunk.gather(&rows)?);
        }
        if self.items.len() >= self.held_max { self.shrink(limit) } else { Ok(()) }
    }

    fn keep(&mut self, chunk: Chunk) {
        self.kept.keep(&chunk);
        self.chunks.push(chunk);
    }

    /// Keeps the first rows alone.
    fn shrink(&mut self, limit: usize) -> Result<()> {
        if limit == 0 {
            self.items.clear();
            self.chunks.clear();
            self.kept.drop_values();
            return Ok(());
        }
        let plan = self.sorted.plan()?;
        let chunks = &self.chunks;
        let row = |place: Place| (&chunks[place.chunk()], place.row());
        if self.items.len() > limit {
            let (_, last, _) = self.items.select_nth_unstable_by(limit - 1, |a, b| compare(plan, row, a, b));
            self.sorted.threshold.fetch_min(last.upper, Relaxed);
            if let Some(first) = self.sorted.sort.keys.first() {
                let (chunk, row) = row(last.place);
                match chunk.columns[first.column].scalar(row) {
                    Scalar::Int(value) if first.descending => _ = self.sorted.last.fetch_max(value, Relaxed),
                    Scalar::Int(value) => _ = self.sorted.last.fetch_min(value, Relaxed),
                    _ => {}
                }
            }
            self.items.truncate(limit);
        }
        // The last chunk of a worker may be shorter; what lies here is of this worker alone.
        let places: Vec<Place> =
            self.items.iter().map(|item| Place::new(0, item.place.chunk(), item.place.row())).collect();
        let parts = Parts::new(vec![std::mem::take(&mut self.chunks)]);
        self.kept.drop_values();
        for (number, places) in places.chunks(CHUNK_ROWS).enumerate() {
            self.keep(parts.gather(places)?);
            let items = &mut self.items[number * CHUNK_ROWS..];
            for (row, item) in items.iter_mut().take(places.len()).enumerate() {
                item.place = Place::new(self.worker, number, row);
            }
        }
        Ok(())
    }

    fn end_run(&mut self) -> Result<()> {
        check_heap()?;
        let plan = self.sorted.plan()?;
        let mut items = std::mem::take(&mut self.items);
        let chunks = &self.chunks;
        let row = |place: Place| (&chunks[place.chunk()], place.row());
        sort_items(plan, row, &mut items);
        let hold = self.sorted.observer().hold_vec(&items);
        self.runs.push(Run { items, _hold: hold });
        Ok(())
    }
}

impl SinkState for SortState {
    fn push(&mut self, chunk: Chunk) -> Result<()> {
        if chunk.rows <= PLACES {
            return self.take(chunk);
        }
        (0..chunk.rows)
            .step_by(CHUNK_ROWS)
            .try_for_each(|start| self.take(chunk.slice(start, CHUNK_ROWS.min(chunk.rows - start))))
    }

    fn end(&mut self) -> Result<()> {
        if let Some(limit) = self.sorted.first() {
            self.shrink(limit)?;
        }
        self.end_run()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

/// Sorted runs of all workers, and their chunks.
struct Runs {
    sorted: Arc<Sorted>,
    parts: Parts,
    runs: Vec<Run>,
    _kept: Vec<Kept>,
}

impl Runs {
    fn compare(&self, a: &Item, b: &Item) -> Ordering {
        // Whoever made these had a plan.
        self.sorted.plan().map_or(Ordering::Equal, |plan| compare(plan, |place| self.parts.row(place), a, b))
    }

    /// Where ranges of about equal size begin: the first row of each but the first.
    fn splitters(&self, ranges: usize) -> Vec<Item> {
        let mut sample: Vec<Item> = Vec::new();
        for run in &self.runs {
            sample.extend(run.items.iter().step_by((run.items.len() / SAMPLE).max(1)));
        }
        sample.sort_by(|a, b| self.compare(a, b));
        (1..ranges).map(|range| sample[range * sample.len() / ranges]).collect()
    }

    /// The rows from one splitter up to another.
    fn range(&self, from: Option<&Item>, to: Option<&Item>, limit: usize) -> Result<Range> {
        check_heap()?;
        let pieces = self.runs.iter().map(|Run { items: run, .. }| {
            let place = |splitter: &Item| run.partition_point(|item| self.compare(item, splitter).is_lt());
            let (start, end) = (from.map_or(0, place), to.map_or(run.len(), place));
            &run[start..end.max(start)]
        });
        let pieces: Vec<&[Item]> = pieces.collect();
        let mut items = room::of_capacity(pieces.iter().map(|piece| piece.len()).sum())?;
        pieces.into_iter().for_each(|piece| items.extend_from_slice(piece));
        sort_items(self.sorted.plan()?, |place| self.parts.row(place), &mut items);
        items.truncate(limit);
        let mut touches = self.sorted.meter.touches();
        touches.read(&self.sorted.pools.items, items.len() * size_of::<Item>());
        let places: Vec<Place> = room::collected(items.len(), items.iter().map(|item| item.place))?;
        drop(items);
        if places.is_empty() {
            return Ok(Range { rows: Chunk::default(), _holds: Vec::new() });
        }
        let chunk = self.parts.gather(&places)?;
        let value_bytes = chunk.bytes().div_ceil(chunk.rows * chunk.columns.len().max(1));
        let address = |place: &Place| 64 + place.number() * value_bytes as u64;
        // A value of each column, in arrays apart.
        for _ in &chunk.columns {
            touches.look_up(&self.sorted.pools.chunks, places.iter().map(address), value_bytes, false);
        }
        touches.append(&self.sorted.pools.sorted, chunk.bytes());
        let holds = chunk.columns.iter().map(|column| self.sorted.observer().hold_values(column)).collect();
        Ok(Range { rows: chunk, _holds: holds })
    }
}

impl Sink for SortSink {
    fn worker(&self) -> Result<Box<dyn SinkState>> {
        self.0.plan()?;
        let worker = self.0.workers.fetch_add(1, Relaxed);
        if worker >= PLACES {
            return Err(Error::unsupported("more than 65,536 workers"));
        }
        Ok(Box::new(SortState {
            sorted: Arc::clone(&self.0),
            worker,
            chunks: Vec::new(),
            kept: Kept::new(self.0.observer()),
            runs: Vec::new(),
            items: Vec::new(),
            touches: self.0.meter.touches(),
            held_max: (self.0.first().unwrap_or(0) * 2).max(HELD_MIN),
        }))
    }

    fn finish(&self, round: usize, states: &mut Vec<Box<dyn SinkState>>) -> Result<Vec<Task>> {
        if round > 0 {
            return Ok(Vec::new());
        }
        let mut workers = vec![Vec::new(); self.0.workers.load(Relaxed)];
        let (mut runs, mut kept) = (Vec::new(), Vec::new());
        for state in states_of::<SortState>(states) {
            let mut state = *state;
            runs.append(&mut state.runs);
            workers[state.worker] = state.chunks;
            kept.push(state.kept);
        }
        runs.retain(|run: &Run| !run.items.is_empty());
        let rows: usize = runs.iter().map(|run| run.items.len()).sum();
        let first = self.0.first();
        let count = if first.is_none() { rows.div_ceil(RANGE_ROWS).max(1) } else { 1 };
        let limit = first.unwrap_or(usize::MAX);
        self.0.note_method(rows, runs.len(), count);
        let runs = Arc::new(Runs { sorted: Arc::clone(&self.0), parts: Parts::new(workers), runs, _kept: kept });
        let splitters = Arc::new(if count > 1 { runs.splitters(count) } else { Vec::new() });
        let ranges = (0..count).map(|_| OnceLock::new()).collect();
        self.0.ranges.set(ranges).map_err(|_| Error::internal("a sort was finished twice"))?;
        let task = |range: usize| -> Task {
            let (runs, splitters) = (Arc::clone(&runs), Arc::clone(&splitters));
            Box::new(move || {
                let from = range.checked_sub(1).map(|before| &splitters[before]);
                let chunk = runs.range(from, splitters.get(range), limit)?;
                // Once: each range has one task.
                if let Some(ranges) = runs.sorted.ranges.get() {
                    let _ = ranges[range].set(chunk);
                }
                Ok(())
            })
        };
        Ok((0..count).map(task).collect())
    }
}

/// The rows in order, for one reader.
#[derive(Debug)]
pub struct SortedSource(pub Arc<Sorted>);

impl Source for SortedSource {
    fn reader(&self) -> Result<Box<dyn Reader>> {
        let left = self.0.sort.limit.unwrap_or(usize::MAX);
        let touches = self.0.meter.touches();
        Ok(Box::new(SortedReader { sorted: Arc::clone(&self.0), range: 0, next: 0, left, touches }))
    }

    fn parallelism(&self) -> Result<usize> {
        Ok(1)
    }
}

struct SortedReader {
    sorted: Arc<Sorted>,
    range: usize,
    next: usize,
    /// Rows until the limit.
    left: usize,
    touches: Touches,
}

impl Reader for SortedReader {
    fn next(&mut self) -> Result<Next> {
        let Some(ranges) = self.sorted.ranges.get() else { return Ok(Next::End) };
        loop {
            let Some(range) = ranges.get(self.range) else { return Ok(Next::End) };
            let Range { rows, .. } =
                range.get().ok_or_else(|| Error::internal("rows are read before they are sorted"))?;
            if self.left == 0 {
                return Ok(Next::End);
            }
            if self.next < rows.rows {
                let len = (rows.rows - self.next).min(CHUNK_ROWS).min(self.left);
                self.left -= len;
                let chunk = rows.slice(self.next, len);
                self.next += len;
                self.touches.read(&self.sorted.pools.sorted, chunk.bytes());
                return Ok(Next::Chunk(chunk));
            }
            (self.range, self.next) = (self.range + 1, 0);
        }
    }
}
