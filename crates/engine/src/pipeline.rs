//! Pipelines: a source, operators, and a sink that takes what comes out of them.
//!
//! A pipeline's parts are shared by its workers; each worker has a state of its own of each part. A part may look at
//! what earlier pipelines made (a join's table, a runtime filter) once its states are made: pipelines run in order.

use crate::counters::Counters;
use crate::touch::Account;
use crate::vector::Chunk;
use std::any::Any;
use std::sync::Arc;
use tidepool_base::Result;

/// What a source has for a worker.
#[derive(Debug)]
pub enum Next {
    /// May be empty.
    Chunk(Chunk),
    /// Nothing yet: whoever has more wakes the run.
    Blocked,
    End,
}

/// Where a pipeline's chunks come from. Its readers share the work: together they give every chunk once.
pub trait Source: Send + Sync {
    fn reader(&self) -> Result<Box<dyn Reader>>;

    /// How many workers find something to do.
    fn parallelism(&self) -> Result<usize> {
        Ok(usize::MAX)
    }
}

pub trait Reader: Send {
    fn next(&mut self) -> Result<Next>;
}

/// Takes chunks for what comes after.
pub type Out<'a> = &'a mut dyn FnMut(Chunk) -> Result<()>;

/// What is done with chunks on their way.
pub trait Operator: Send + Sync {
    fn worker(&self) -> Result<Box<dyn Step>>;
}

pub trait Step: Send {
    /// Hands on any number of chunks, of any size that is not far above [`crate::vector::CHUNK_ROWS`].
    fn push(&mut self, chunk: Chunk, out: Out<'_>) -> Result<()>;

    /// This worker has no more: whatever is held goes on.
    fn end(&mut self, _out: Out<'_>) -> Result<()> {
        Ok(())
    }

    /// True when no chunk that comes can make a difference: the worker stops.
    fn is_satisfied(&self) -> bool {
        false
    }
}

/// A piece of a sink's finishing, for any worker. Checks [`crate::run::Interruption`] itself if it takes longer than some
/// milliseconds.
pub type Task = Box<dyn FnOnce() -> Result<()> + Send>;

/// Where a pipeline's chunks go.
pub trait Sink: Send + Sync {
    fn worker(&self) -> Result<Box<dyn SinkState>>;

    /// All workers are done: what is left to be done is given as rounds of tasks. A round begins when the one before it is over;
    /// asked with 0, 1, … until no task is given.
    fn finish(&self, round: usize, states: &mut Vec<Box<dyn SinkState>>) -> Result<Vec<Task>>;

    /// False while it can take no more chunks; whoever takes some from it wakes the run.
    fn is_ready(&self) -> bool {
        true
    }

    /// True when no chunk that comes can make a difference: the pipeline ends.
    fn is_satisfied(&self) -> bool {
        false
    }
}

pub trait SinkState: Any + Send {
    fn push(&mut self, chunk: Chunk) -> Result<()>;

    /// This worker has no more.
    fn end(&mut self) -> Result<()> {
        Ok(())
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}

/// From a source through operators into a sink.
pub struct Pipeline {
    pub source: Arc<dyn Source>,
    pub operators: Vec<Arc<dyn Operator>>,
    pub sink: Arc<dyn Sink>,
    /// What its parts count in: the source, each operator, the sink.
    pub counters: Vec<Arc<Counters>>,
    pub account: Option<Arc<dyn Account>>,
}

/// States as the type that a sink made them of. Panics on another sink's: that is a mistake in the engine.
pub fn states_of<T: 'static>(states: &mut Vec<Box<dyn SinkState>>) -> Vec<Box<T>> {
    let downcast = |state: Box<dyn SinkState>| match state.into_any().downcast::<T>() {
        Ok(state) => state,
        Err(_) => panic!("a sink was given another one's state"),
    };
    std::mem::take(states).into_iter().map(downcast).collect()
}
