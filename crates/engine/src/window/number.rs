//! Rows numbered as they come.

use super::Window;
use crate::pipeline::{Operator, Out, Step};
use crate::vector::{Chunk, Vector};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use tidepool_base::{Error, Result};

/// `row_number()` over rows without partitions and order: of all workers together, whichever's rows come first.
pub struct NumberRows {
    output: Arc<[usize]>,
    functions: usize,
    /// Rows that came.
    seen: Arc<AtomicI64>,
}

impl NumberRows {
    /// Fails unless [`Window::numbers_rows`].
    pub fn new(window: &Window) -> Result<NumberRows> {
        if !window.numbers_rows() {
            return Err(Error::internal("a window of more than numbers"));
        }
        window.check()?;
        Ok(NumberRows {
            output: window.output.as_slice().into(),
            functions: window.functions.len(),
            seen: Arc::default(),
        })
    }
}

impl Operator for NumberRows {
    fn worker(&self) -> Result<Box<dyn Step>> {
        let NumberRows { output, functions, seen } = self;
        Ok(Box::new(NumberStep { output: Arc::clone(output), functions: *functions, seen: Arc::clone(seen) }))
    }
}

struct NumberStep {
    output: Arc<[usize]>,
    functions: usize,
    seen: Arc<AtomicI64>,
}

impl Step for NumberStep {
    fn push(&mut self, chunk: Chunk, out: Out<'_>) -> Result<()> {
        let rows = chunk.rows as i64;
        let first = self.seen.fetch_add(rows, Ordering::Relaxed);
        let numbers = Vector::ints((first + 1..=first + rows).collect());
        let own = self.output.iter().map(|column| chunk.columns[*column].clone());
        let columns = own.chain(std::iter::repeat_n(numbers, self.functions)).collect();
        out(Chunk::new(chunk.rows, columns))
    }
}
