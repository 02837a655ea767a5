//! Windows: functions of a row's partition, and of the rows of it that its frame has.
//!
//! Rows are sorted by their partitions' keys and the order within ([`crate::sort`]), so that partitions are found, and their rows put
//! in order, by all workers, however many partitions there are. Sorted rows come in pieces, which are cut where partitions begin;
//! each segment, of some whole partitions, is computed by any worker. All functions of one partitioning and order share this.
//! Each of them takes time that is linear in the rows, whatever their frames ([`slide`]).

mod aggregates;
mod evaluate;
mod first;
mod frame;
mod functions;
mod layout;
mod number;
mod slide;
#[cfg(test)]
mod tests;

pub use frame::{Distance, Frame, FrameBound, FrameUnits};
pub use functions::{WindowCall, WindowFunction};
pub use number::NumberRows;

use crate::observed::{Hold, Kept};
use crate::pipeline::{Next, Reader, Sink, SinkState, Source, Task, states_of};
use crate::run::Interruption;
use crate::sort::keys::KeyPlan;
use crate::sort::{Sort, SortKey, SortSink, Sorted};
use crate::touch::{Meter, Pool, Touches};
use crate::types::{Class, ColumnType};
use crate::vector::{CHUNK_ROWS, Chunk, Vector};
use first::{First, FirstRows};
use layout::{Marks, Segment};
use parking_lot::Mutex;
use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use tidepool_base::{Error, Result};
use tidepool_heap::QueryHeap;

/// Functions over one partitioning and order of the input's rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    pub input: Vec<ColumnType>,
    /// Columns whose values rows of a partition have in common; NULL is one.
    pub partition: Vec<usize>,
    pub order: Vec<SortKey>,
    pub functions: Vec<WindowCall>,
    /// Columns of the input that come out, in front of the functions' columns.
    pub output: Vec<usize>,
    /// Rows of a rank above it may be missing: [`Window::can_begin_with`] it.
    pub first: Option<u64>,
}

impl Window {
    /// The result's columns.
    pub fn columns(&self) -> Vec<ColumnType> {
        let own = self.output.iter().map(|column| self.input[*column].clone());
        own.chain(self.functions.iter().map(|call| call.of.clone())).collect()
    }

    /// Whether rows are but numbered as they come: there is no need to gather them.
    pub fn numbers_rows(&self) -> bool {
        let is_number = |call: &WindowCall| call.function == WindowFunction::RowNumber;
        self.partition.is_empty() && self.order.is_empty() && self.functions.iter().all(is_number)
    }

    /// Fails for functions of types that they have not, and for keys of [`Class::Other`].
    pub fn check(&self) -> Result<()> {
        let of = |column: usize| self.input.get(column).ok_or_else(|| Error::internal("a column that is not there"));
        for column in self.partition.iter().copied().chain(self.order.iter().map(|key| key.column)) {
            if of(column)?.class() == Class::Other {
                return Err(Error::internal("a window's key of a type without an order"));
            }
        }
        for column in &self.output {
            of(*column)?;
        }
        for call in &self.functions {
            call.check(&self.input)?;
            if let Some(frame) = call.own_frame().filter(|frame| frame.has_values()) {
                let [key] = self.order.as_slice() else {
                    return Err(Error::internal("a range of values without one order key"));
                };
                let class = of(key.column)?.class();
                let fits = |bound| match bound {
                    FrameBound::At(Distance::Whole(_)) => matches!(class, Class::Int | Class::Wide),
                    FrameBound::At(Distance::Float(_)) => class == Class::Float,
                    _ => true,
                };
                if of(key.column)?.dictionary.is_some() || !fits(frame.start) || !fits(frame.end) {
                    return Err(Error::internal("a range of values of such a type"));
                }
            }
        }
        Ok(())
    }

    fn has_keys(&self) -> bool {
        !self.partition.is_empty() || !self.order.is_empty()
    }
}

/// What tasks that take long ask from time to time.
struct Checks(Arc<dyn Interruption>);

impl Checks {
    fn check(&self) -> Result<()> {
        QueryHeap::current().map_or(Ok(()), |heap| heap.check())?;
        self.0.check()
    }
}

/// How its rows tell partitions and peers apart.
#[derive(Debug)]
struct Keys {
    partition: KeyPlan,
    /// `None`: nobody asks.
    order: Option<KeyPlan>,
}

/// A segment's rows and what was computed of them.
#[derive(Debug)]
struct Computed {
    runs: Vec<Chunk>,
    functions: Vec<Vector>,
    _holds: Vec<Hold>,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Open,
    /// Rows are being sorted.
    Sorting(Arc<Sorted>),
    /// It is being looked where partitions begin.
    Marking {
        pieces: Arc<Vec<Chunk>>,
        marks: Arc<Vec<OnceLock<Marks>>>,
    },
    Over,
}

/// A window and its rows: [`WindowSink`] takes them, [`WindowSource`] reads them afterwards.
pub struct WindowTable {
    window: Window,
    keys: Keys,
    first: Option<Arc<First>>,
    checks: Checks,
    /// `None`: without keys, rows stay as they come.
    sorting: Mutex<Option<Arc<Sorted>>>,
    stage: Mutex<Stage>,
    computed: OnceLock<Vec<Mutex<Option<Computed>>>>,
    /// Segments that readers took.
    taken: AtomicUsize,
    meter: Meter,
    pools: Pools,
}

/// What it has in the query heap.
struct Pools {
    /// In order.
    rows: Arc<Pool>,
    functions: Pool,
}

impl fmt::Debug for WindowTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WindowTable").field("window", &self.window).finish_non_exhaustive()
    }
}

impl WindowTable {
    /// Fails as [`Window::check`] does.
    pub fn new(window: &Window, interruption: Arc<dyn Interruption>) -> Result<Arc<WindowTable>> {
        WindowTable::metered(window, interruption, Meter::default())
    }

    /// As above, with an account of what it touches.
    pub fn metered(window: &Window, interruption: Arc<dyn Interruption>, meter: Meter) -> Result<Arc<WindowTable>> {
        window.check()?;
        let partition: Vec<SortKey> = window
            .partition
            .iter()
            .map(|column| SortKey { column: *column, descending: false, nulls_first: false })
            .collect();
        let has_peers = !window.order.is_empty() && window.functions.iter().any(WindowCall::has_peers);
        let keys = Keys {
            partition: KeyPlan::new(&partition, &window.input)?,
            order: has_peers.then(|| KeyPlan::new(&window.order, &window.input)).transpose()?,
        };
        let first = First::of(window, &partition)?;
        if let Some(first) = first.clone() {
            meter.observer().note_late(move || Some(first.described()));
        }
        let sorting = window.has_keys().then(|| {
            let keys = partition.into_iter().chain(window.order.iter().copied()).collect();
            Sorted::metered(Sort { keys, limit: None, types: window.input.clone() }, meter.clone())
        });
        let rows = sorting.as_ref().map_or_else(|| Arc::new(meter.pool()), |sorted| sorted.pool());
        Ok(Arc::new(WindowTable {
            window: window.clone(),
            keys,
            first,
            checks: Checks(interruption),
            sorting: Mutex::new(sorting),
            stage: Mutex::default(),
            computed: OnceLock::new(),
            taken: AtomicUsize::new(0),
            pools: Pools { rows, functions: meter.pool() },
            meter,
        }))
    }

    fn marks(&self, pieces: &[Chunk], piece: usize) -> Result<Marks> {
        self.checks.check()?;
        let before = piece.checked_sub(1).map(|before| &pieces[before]);
        let keys = self.window.partition.iter().copied().chain(self.window.order.iter().map(|key| key.column));
        let key_bytes = keys.map(|column| pieces[piece].columns[column].bytes()).sum();
        self.meter.touches().read(&self.pools.rows, key_bytes);
        let partitions = layout::changes(&self.keys.partition, &pieces[piece], before)?;
        let groups = self.keys.order.as_ref().map(|order| layout::changes(order, &pieces[piece], before));
        let groups = groups.transpose()?.map(|groups| groups.or(&partitions));
        Ok(Marks { partitions, groups })
    }

    fn computed(&self) -> Result<&Vec<Mutex<Option<Computed>>>> {
        self.computed.get().ok_or_else(|| Error::internal("windows are read before they are there"))
    }

    /// Tasks that compute segments.
    fn compute(self: &Arc<WindowTable>, segments: Vec<Segment>) -> Result<Vec<Task>> {
        let places = segments.iter().map(|_| Mutex::new(None)).collect();
        self.meter.observer().note(|| {
            let order = if self.window.has_keys() { "sorted" } else { "as they came, as there are no keys" };
            format!("Window Method: rows {order}; parts={}", segments.len())
        });
        self.computed.set(places).map_err(|_| Error::internal("a window was finished twice"))?;
        let task = |(place, segment): (usize, Segment)| -> Task {
            let table = Arc::clone(self);
            Box::new(move || {
                let arguments = table.window.functions.iter().filter_map(|call| call.argument);
                let bytes_of =
                    |column: usize| segment.runs.iter().map(|run| run.columns[column].bytes()).sum::<usize>();
                let argument_bytes = arguments.map(bytes_of).sum();
                let functions = evaluate::evaluate(&table.window, &segment, &table.checks)?;
                let mut touches = table.meter.touches();
                touches.read(&table.pools.rows, argument_bytes);
                touches.append(&table.pools.functions, functions.iter().map(Vector::bytes).sum());
                let own = |run: Chunk| {
                    let columns = table.window.output.iter().map(|column| run.columns[*column].clone()).collect();
                    Chunk { rows: run.rows, columns }
                };
                let runs: Vec<Chunk> = segment.runs.into_iter().map(own).collect();
                let kept = runs.iter().flat_map(|run| &run.columns).chain(&functions);
                let holds = kept.map(|column| table.meter.observer().hold_values(column)).collect();
                *table.computed()?[place].lock() = Some(Computed { runs, functions, _holds: holds });
                Ok(())
            })
        };
        Ok(segments.into_iter().enumerate().map(task).collect())
    }
}

/// Takes the rows.
#[derive(Debug)]
pub struct WindowSink(pub Arc<WindowTable>);

/// Rows that stay as they come.
struct Unsorted {
    table: Arc<WindowTable>,
    chunks: Vec<Chunk>,
    kept: Kept,
    touches: Touches,
}

impl SinkState for Unsorted {
    fn push(&mut self, chunk: Chunk) -> Result<()> {
        if chunk.rows > 0 {
            self.kept.keep(&chunk);
            self.touches.append(&self.table.pools.rows, chunk.bytes());
            self.chunks.push(chunk);
        }
        Ok(())
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl Sink for WindowSink {
    fn worker(&self) -> Result<Box<dyn SinkState>> {
        match self.0.sorting.lock().as_ref() {
            Some(sorted) => {
                let sorting = SortSink(Arc::clone(sorted)).worker()?;
                Ok(match &self.0.first {
                    Some(first) => Box::new(FirstRows::new(first, sorting)),
                    None => sorting,
                })
            }
            None => {
                let kept = Kept::new(self.0.meter.observer());
                let (table, touches) = (Arc::clone(&self.0), self.0.meter.touches());
                Ok(Box::new(Unsorted { table, chunks: Vec::new(), kept, touches }))
            }
        }
    }

    fn finish(&self, _round: usize, states: &mut Vec<Box<dyn SinkState>>) -> Result<Vec<Task>> {
        let table = &self.0;
        let mut stage = table.stage.lock();
        match std::mem::replace(&mut *stage, Stage::Over) {
            Stage::Open => match table.sorting.lock().take() {
                Some(sorted) => {
                    let tasks = SortSink(Arc::clone(&sorted)).finish(0, states)?;
                    *stage = Stage::Sorting(sorted);
                    Ok(tasks)
                }
                None => {
                    let chunks = states_of::<Unsorted>(states).into_iter().flat_map(|state| state.chunks);
                    let runs: Vec<Chunk> = chunks.collect();
                    table.compute(layout::whole(runs)?)
                }
            },
            Stage::Sorting(sorted) => {
                let pieces = Arc::new(sorted.pieces()?);
                let marks: Arc<Vec<OnceLock<Marks>>> = Arc::new(pieces.iter().map(|_| OnceLock::new()).collect());
                let task = |piece: usize| -> Task {
                    let (table, pieces, marks) = (Arc::clone(table), Arc::clone(&pieces), Arc::clone(&marks));
                    Box::new(move || {
                        let set = marks[piece].set(table.marks(&pieces, piece)?);
                        set.map_err(|_| Error::internal("a piece was marked twice"))
                    })
                };
                let tasks: Vec<Task> = (0..pieces.len()).map(task).collect();
                if tasks.is_empty() {
                    return table.compute(Vec::new());
                }
                *stage = Stage::Marking { pieces, marks };
                Ok(tasks)
            }
            Stage::Marking { pieces, marks } => {
                let marks =
                    Arc::into_inner(marks).into_iter().flatten().filter_map(OnceLock::into_inner).collect::<Vec<_>>();
                if marks.len() != pieces.len() {
                    return Err(Error::internal("partitions are looked for before they are found"));
                }
                table.compute(layout::segments(&pieces, &marks)?)
            }
            Stage::Over => Ok(Vec::new()),
        }
    }
}

/// Gives the rows, with the functions' columns. Every row comes once.
#[derive(Debug)]
pub struct WindowSource(pub Arc<WindowTable>);

impl Source for WindowSource {
    fn reader(&self) -> Result<Box<dyn Reader>> {
        let (table, touches) = (Arc::clone(&self.0), self.0.meter.touches());
        Ok(Box::new(WindowReader { table, segment: None, run: 0, next: 0, passed: 0, touches }))
    }

    fn parallelism(&self) -> Result<usize> {
        Ok(self.0.computed()?.len().max(1))
    }
}

struct WindowReader {
    table: Arc<WindowTable>,
    segment: Option<Computed>,
    run: usize,
    /// The next row, within the run, and rows of the runs before it.
    next: usize,
    passed: usize,
    touches: Touches,
}

impl Reader for WindowReader {
    fn next(&mut self) -> Result<Next> {
        loop {
            let Some(Computed { runs, functions, .. }) = &self.segment else {
                let computed = self.table.computed()?;
                let Some(place) = computed.get(self.table.taken.fetch_add(1, Ordering::Relaxed)) else {
                    return Ok(Next::End);
                };
                self.segment = place.lock().take();
                (self.run, self.next, self.passed) = (0, 0, 0);
                continue;
            };
            let Some(run) = runs.get(self.run) else {
                self.segment = None;
                continue;
            };
            if self.next == run.rows {
                self.passed += run.rows;
                (self.run, self.next) = (self.run + 1, 0);
                continue;
            }
            let len = (run.rows - self.next).min(CHUNK_ROWS);
            let mut chunk = run.slice(self.next, len);
            self.touches.read(&self.table.pools.rows, chunk.bytes());
            let functions = functions.iter().map(|function| function.slice(self.passed + self.next, len));
            let functions: Vec<Vector> = functions.collect();
            self.touches.read(&self.table.pools.functions, functions.iter().map(Vector::bytes).sum());
            chunk.columns.extend(functions);
            self.next += len;
            return Ok(Next::Chunk(chunk));
        }
    }
}
