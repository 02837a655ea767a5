//! Where the engine meets streams of Arrow batches: an inlet as a source, an outlet as a sink. Both are polled as futures are, by
//! whatever drives them.

use crate::pipeline::{Next, Reader, Sink, SinkState, Source, Task};
use crate::run::Waker;
use crate::types::ColumnType;
use crate::vector::{CHUNK_ROWS, Chunk, Vector};
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use parking_lot::Mutex;
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll};
use tidepool_base::{Error, Result};

/// Columns of some rows.
#[derive(Clone, Debug)]
pub struct Batch {
    pub rows: usize,
    pub columns: Vec<ArrayRef>,
}

/// Batches that wait, at most, and bytes of them from which on none is added: whoever is to read them may take long, or never do.
const BATCHES_MAX: usize = 8;
const BYTES_MAX: usize = 2 << 20;

#[derive(Default)]
struct Queue {
    /// With their bytes.
    batches: VecDeque<(Batch, usize)>,
    bytes: usize,
    /// What comes after them.
    over: Option<Result<()>>,
    waiting: Option<std::task::Waker>,
}

/// Bytes of a batch's values, shared buffers counted by what is used of them.
fn bytes_of(batch: &Batch) -> usize {
    let column = |array: &ArrayRef| match array.data_type() {
        DataType::Utf8View => 16 * array.len() + array.as_string_view().total_buffer_bytes_used(),
        DataType::BinaryView => 16 * array.len() + array.as_binary_view().total_buffer_bytes_used(),
        other => array.len() * other.primitive_width().unwrap_or(1),
    };
    batch.columns.iter().map(column).sum()
}

impl Queue {
    fn has_room(&self) -> bool {
        self.batches.len() < BATCHES_MAX && self.bytes < BYTES_MAX
    }

    fn push(&mut self, batch: Batch) {
        let bytes = bytes_of(&batch);
        self.bytes += bytes;
        self.batches.push_back((batch, bytes));
    }

    fn pop(&mut self) -> Option<Batch> {
        let (batch, bytes) = self.batches.pop_front()?;
        self.bytes -= bytes;
        Some(batch)
    }

    fn wake(&mut self) {
        if let Some(waiting) = self.waiting.take() {
            waiting.wake();
        }
    }
}

/// Batches from elsewhere, for a run.
pub struct Inlet {
    types: Vec<ColumnType>,
    queue: Mutex<Queue>,
    run: Waker,
}

impl Inlet {
    /// `run` is to be given to the run that reads it.
    pub fn new(types: Vec<ColumnType>, run: Waker) -> Arc<Inlet> {
        Arc::new(Inlet { types, queue: Mutex::default(), run })
    }

    /// Ready when another batch may be pushed.
    pub fn poll_room(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut queue = self.queue.lock();
        if queue.has_room() {
            return Poll::Ready(());
        }
        queue.waiting = Some(context.waker().clone());
        Poll::Pending
    }

    pub fn push(&self, batch: Batch) {
        self.queue.lock().push(batch);
        self.run.wake();
    }

    /// No more comes. An error is the run's.
    pub fn end(&self, result: Result<()>) {
        self.queue.lock().over.get_or_insert(result);
        self.run.wake();
    }
}

/// Reads an inlet.
pub struct InletSource(pub Arc<Inlet>);

impl Source for InletSource {
    fn reader(&self) -> Result<Box<dyn Reader>> {
        Ok(Box::new(InletReader { inlet: Arc::clone(&self.0), rest: None }))
    }
}

struct InletReader {
    inlet: Arc<Inlet>,
    rest: Option<Chunk>,
}

impl Reader for InletReader {
    fn next(&mut self) -> Result<Next> {
        let chunk = match self.rest.take() {
            Some(chunk) => chunk,
            None => {
                let mut queue = self.inlet.queue.lock();
                let Some(batch) = queue.pop() else {
                    return match &queue.over {
                        None => Ok(Next::Blocked),
                        Some(Ok(())) => Ok(Next::End),
                        Some(Err(error)) => Err(error.clone()),
                    };
                };
                queue.wake();
                drop(queue);
                let columns = batch.columns.iter().zip(&self.inlet.types);
                let columns = columns.map(|(array, of)| Vector::from_arrow(array, of)).collect::<Result<Vec<_>>>()?;
                Chunk::new(batch.rows, columns)
            }
        };
        if chunk.rows <= 2 * CHUNK_ROWS {
            return Ok(Next::Chunk(chunk));
        }
        let first = chunk.slice(0, CHUNK_ROWS);
        self.rest = Some(chunk.slice(CHUNK_ROWS, chunk.rows - CHUNK_ROWS));
        Ok(Next::Chunk(first))
    }
}

/// A run's result, as batches for whoever asks.
pub struct Outlet {
    types: Vec<ColumnType>,
    queue: Mutex<Queue>,
    run: Waker,
}

impl Outlet {
    /// `run` is to be given to the run that fills it.
    pub fn new(types: Vec<ColumnType>, run: Waker) -> Arc<Outlet> {
        Arc::new(Outlet { types, queue: Mutex::default(), run })
    }

    /// The next batch; `None` at the end.
    pub fn poll_next(&self, context: &mut Context<'_>) -> Poll<Option<Result<Batch>>> {
        let mut queue = self.queue.lock();
        let had_room = queue.has_room();
        if let Some(batch) = queue.pop() {
            let has_room = queue.has_room();
            drop(queue);
            if has_room && !had_room {
                self.run.wake();
            }
            return Poll::Ready(Some(Ok(batch)));
        }
        match &mut queue.over {
            Some(Ok(())) => Poll::Ready(None),
            Some(over) => Poll::Ready(std::mem::replace(over, Ok(())).err().map(Err)),
            None => {
                queue.waiting = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// The run is over.
    pub fn end(&self, result: Result<()>) {
        let mut queue = self.queue.lock();
        queue.over.get_or_insert(result);
        queue.wake();
    }
}

/// Fills an outlet.
pub struct OutletSink(pub Arc<Outlet>);

impl Sink for OutletSink {
    fn worker(&self) -> Result<Box<dyn SinkState>> {
        Ok(Box::new(OutletState { outlet: Arc::clone(&self.0), held: Vec::new(), rows: 0 }))
    }

    fn finish(&self, _round: usize, states: &mut Vec<Box<dyn SinkState>>) -> Result<Vec<Task>> {
        states.clear();
        Ok(Vec::new())
    }

    fn is_ready(&self) -> bool {
        self.0.queue.lock().has_room()
    }
}

struct OutletState {
    outlet: Arc<Outlet>,
    /// Small chunks, which leave together.
    held: Vec<Chunk>,
    rows: usize,
}

impl OutletState {
    fn flush(&mut self) -> Result<()> {
        let held = std::mem::take(&mut self.held);
        let rows = std::mem::take(&mut self.rows);
        if rows == 0 {
            return Ok(());
        }
        let column = |(index, of): (usize, &ColumnType)| {
            let parts: Vec<&Vector> = held.iter().map(|chunk| &chunk.columns[index]).collect();
            match parts[..] {
                [one] => one.to_arrow(of),
                _ => Vector::concat(&parts)?.to_arrow(of),
            }
        };
        let columns = self.outlet.types.iter().enumerate().map(column).collect::<Result<Vec<_>>>()?;
        let mut queue = self.outlet.queue.lock();
        queue.push(Batch { rows, columns });
        queue.wake();
        Ok(())
    }
}

impl SinkState for OutletState {
    fn push(&mut self, chunk: Chunk) -> Result<()> {
        if chunk.columns.len() != self.outlet.types.len() {
            return Err(Error::internal("a result of another number of columns"));
        }
        self.rows += chunk.rows;
        self.held.push(chunk);
        if self.rows >= CHUNK_ROWS { self.flush() } else { Ok(()) }
    }

    fn end(&mut self) -> Result<()> {
        self.flush()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}
