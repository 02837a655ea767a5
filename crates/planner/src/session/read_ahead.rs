//! A result's batches, some of which are read before they are asked for.

use super::BatchStream;
use arrow::array::RecordBatch;
use futures::StreamExt;
use parking_lot::Mutex;
use std::collections::VecDeque;
use tidepool_base::Result;

/// The batches that a result has left.
pub struct ReadAhead {
    /// Never locked: a stream alone is not `Sync`, and a session that is not could not be lent across an await.
    stream: Mutex<BatchStream>,
    ahead: VecDeque<RecordBatch>,
    /// The stream has no more.
    is_settled: bool,
}

impl ReadAhead {
    pub fn new(stream: BatchStream) -> ReadAhead {
        ReadAhead { stream: Mutex::new(stream), ahead: VecDeque::new(), is_settled: false }
    }

    /// Of batches that are all there.
    pub fn of(batches: VecDeque<RecordBatch>) -> ReadAhead {
        ReadAhead { stream: Mutex::new(Box::pin(futures::stream::empty())), ahead: batches, is_settled: true }
    }

    /// Loses nothing when dropped.
    pub async fn next(&mut self) -> Option<Result<RecordBatch>> {
        match self.ahead.pop_front() {
            Some(batch) => Some(Ok(batch)),
            None if self.is_settled => None,
            None => self.stream.get_mut().next().await,
        }
    }

    /// The next one will be this.
    pub fn put_back(&mut self, batch: RecordBatch) {
        self.ahead.push_front(batch);
    }

    /// Reads ahead until there is no more, or that is more than `bytes_max`. An error comes with `next`, too, behind what came before it.
    pub async fn settle(&mut self, bytes_max: usize) -> Result<()> {
        let mut bytes = self.bytes_held();
        while !self.is_settled && bytes <= bytes_max {
            match self.stream.get_mut().next().await {
                Some(Ok(batch)) => {
                    bytes += batch.get_array_memory_size();
                    self.ahead.push_back(batch);
                }
                Some(Err(error)) => {
                    self.stream = Mutex::new(Box::pin(futures::stream::iter([Err(error.clone())])));
                    return Err(error);
                }
                None => self.is_settled = true,
            }
        }
        Ok(())
    }

    /// All that there is has been read.
    pub fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// What was read ahead.
    pub fn ahead(&self) -> &VecDeque<RecordBatch> {
        &self.ahead
    }

    pub(super) fn ahead_mut(&mut self) -> &mut VecDeque<RecordBatch> {
        &mut self.ahead
    }

    /// What was read ahead takes so much memory.
    pub fn bytes_held(&self) -> usize {
        self.ahead.iter().map(RecordBatch::get_array_memory_size).sum()
    }
}
