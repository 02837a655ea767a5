//! Rows that several parts of a plan have in common: kept once, read by each of them.

use crate::observed::Hold;
use crate::pipeline::{Next, Reader, Sink, SinkState, Source, Task, states_of};
use crate::touch::{Meter, Pool, Touches};
use crate::vector::Chunk;
use std::any::Any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use tidepool_base::{Error, Result};
use tidepool_heap::QueryHeap;

/// Of one execution: in no order, and there when the pipelines that make them have run.
#[derive(Debug)]
pub struct CommonRows {
    kept: OnceLock<Kept>,
    meter: Meter,
    pool: Pool,
}

#[derive(Debug, Default)]
struct Kept {
    chunks: Vec<Chunk>,
    _holds: Vec<Hold>,
}

impl CommonRows {
    pub fn metered(meter: Meter) -> Arc<CommonRows> {
        let pool = meter.pool();
        Arc::new(CommonRows { kept: OnceLock::new(), meter, pool })
    }

    fn chunks(&self) -> Result<&[Chunk]> {
        let kept = self.kept.get().ok_or_else(|| Error::internal("common rows are read before they are there"))?;
        Ok(&kept.chunks)
    }
}

pub struct CommonSink(pub Arc<CommonRows>);

struct CommonState {
    rows: Arc<CommonRows>,
    kept: Kept,
    touches: Touches,
}

impl SinkState for CommonState {
    fn push(&mut self, chunk: Chunk) -> Result<()> {
        if chunk.rows == 0 {
            return Ok(());
        }
        if let Some(heap) = QueryHeap::current() {
            heap.check()?;
        }
        self.touches.append(&self.rows.pool, chunk.bytes());
        let observer = self.rows.meter.observer();
        self.kept._holds.extend(chunk.columns.iter().map(|column| observer.hold_values(column)));
        self.kept.chunks.push(chunk);
        Ok(())
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl Sink for CommonSink {
    fn worker(&self) -> Result<Box<dyn SinkState>> {
        let rows = Arc::clone(&self.0);
        Ok(Box::new(CommonState { touches: rows.meter.touches(), rows, kept: Kept::default() }))
    }

    fn finish(&self, round: usize, states: &mut Vec<Box<dyn SinkState>>) -> Result<Vec<Task>> {
        if round == 0 {
            let mut all = Kept::default();
            for state in states_of::<CommonState>(states) {
                let Kept { chunks, _holds } = state.kept;
                all.chunks.extend(chunks);
                all._holds.extend(_holds);
            }
            self.0.kept.set(all).map_err(|_| Error::internal("common rows were kept twice"))?;
        }
        Ok(Vec::new())
    }
}

/// All of them, for one of those who read them.
pub struct CommonSource {
    rows: Arc<CommonRows>,
    next: Arc<AtomicUsize>,
}

impl CommonSource {
    pub fn new(rows: &Arc<CommonRows>) -> CommonSource {
        CommonSource { rows: Arc::clone(rows), next: Arc::default() }
    }
}

impl Source for CommonSource {
    fn reader(&self) -> Result<Box<dyn Reader>> {
        let touches = self.rows.meter.touches();
        Ok(Box::new(CommonReader { rows: Arc::clone(&self.rows), next: Arc::clone(&self.next), touches }))
    }

    fn parallelism(&self) -> Result<usize> {
        Ok(self.rows.chunks()?.len().max(1))
    }
}

struct CommonReader {
    rows: Arc<CommonRows>,
    next: Arc<AtomicUsize>,
    touches: Touches,
}

impl Reader for CommonReader {
    fn next(&mut self) -> Result<Next> {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        let Some(chunk) = self.rows.chunks()?.get(next) else { return Ok(Next::End) };
        self.touches.read(&self.rows.pool, chunk.bytes());
        Ok(Next::Chunk(chunk.clone()))
    }
}
