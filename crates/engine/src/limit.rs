//! The first rows of what comes, after some that are passed over.

use crate::pipeline::{Operator, Out, Step};
use crate::vector::Chunk;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidepool_base::Result;

/// Hands on `fetch` rows, once `skip` rows are passed over. Of all workers together, whichever's rows come first.
pub struct Limit {
    skip: u64,
    fetch: u64,
    /// Rows that came.
    seen: Arc<AtomicU64>,
}

impl Limit {
    pub fn new(skip: usize, fetch: Option<usize>) -> Limit {
        Limit { skip: skip as u64, fetch: fetch.map_or(u64::MAX, |fetch| fetch as u64), seen: Arc::default() }
    }
}

impl Operator for Limit {
    fn worker(&self) -> Result<Box<dyn Step>> {
        let end = self.skip.saturating_add(self.fetch);
        Ok(Box::new(LimitStep { skip: self.skip, end, seen: Arc::clone(&self.seen) }))
    }
}

struct LimitStep {
    skip: u64,
    end: u64,
    seen: Arc<AtomicU64>,
}

impl Step for LimitStep {
    fn push(&mut self, chunk: Chunk, out: Out<'_>) -> Result<()> {
        let rows = chunk.rows as u64;
        let first = self.seen.fetch_add(rows, Ordering::Relaxed);
        let from = self.skip.max(first).min(first + rows);
        let to = self.end.min(first + rows).max(from);
        if to - from == rows {
            return out(chunk);
        }
        if to > from { out(chunk.slice((from - first) as usize, (to - from) as usize)) } else { Ok(()) }
    }

    fn is_satisfied(&self) -> bool {
        self.seen.load(Ordering::Relaxed) >= self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vector::Vector;

    #[test]
    fn rows_are_cut_at_both_ends() {
        for (skip, fetch) in [(0, Some(0)), (0, Some(5)), (3, Some(5)), (7, None), (100, Some(1)), (10, Some(10))] {
            let limit = Limit::new(skip, fetch);
            let mut steps = [limit.worker().unwrap(), limit.worker().unwrap()];
            let mut found = Vec::new();
            for chunk in 0..5i64 {
                let values = (chunk * 4..chunk * 4 + 4).collect();
                let step = &mut steps[chunk as usize % 2];
                let take = &mut |chunk: Chunk| {
                    found.extend_from_slice(chunk.columns[0].as_ints()?);
                    Ok(())
                };
                step.push(Chunk::new(4, vec![Vector::ints(values)]), take).unwrap();
            }
            let expected: Vec<i64> = (0..20).skip(skip).take(fetch.unwrap_or(20)).collect();
            assert_eq!(found, expected);
            assert_eq!(steps[0].is_satisfied(), fetch.is_some_and(|fetch| skip + fetch <= 20));
        }
    }
}
