//! Only the first rows of each partition: others are dropped before they are sorted.
//!
//! Of each partition a worker keeps the keys that come first of all that it has seen, as many as are wanted. A row behind all of them
//! has at least so many before it, and neither its rank nor that of any row behind it is asked for. Where there are too many
//! partitions, or hardly any row is dropped, nothing is looked at any more.

use super::{Window, WindowCall, WindowFunction};
use crate::pipeline::SinkState;
use crate::sort::SortKey;
use crate::sort::keys::KeyPlan;
use crate::vector::Chunk;
use hashbrown::HashMap;
use std::any::Any;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tidepool_base::Result;

/// Keys that a worker keeps, of all partitions.
const KEYS_MAX: usize = 1 << 16;
/// Rows after which it is asked whether it pays.
const JUDGED_AFTER: u64 = 1 << 15;
/// Then at least one of so many rows must have been dropped.
const DROPPED_OF: u64 = 8;

impl Window {
    /// Rows of a rank above `most` are not wanted, by a function of this window. Whether they can be left out without another one's value
    /// for a wanted row becoming another.
    pub fn can_begin_with(&self, function: usize, most: u64) -> bool {
        use WindowFunction as F;
        let is_of_rows_before = |call: &WindowCall| {
            matches!(
                call.function,
                F::RowNumber | F::Rank | F::DenseRank | F::Shift(i64::MIN..=0) | F::HasShift(i64::MIN..=0)
            )
        };
        let is_rank = self.functions.get(function).is_some_and(|call| matches!(call.function, F::RowNumber | F::Rank));
        is_rank && most <= KEYS_MAX as u64 && !self.order.is_empty() && self.functions.iter().all(is_of_rows_before)
    }
}

/// How rows are told apart, and what was dropped.
#[derive(Debug)]
pub(super) struct First {
    /// Rows of a greater rank are not wanted.
    most: usize,
    partition: KeyPlan,
    order: KeyPlan,
    seen: AtomicU64,
    dropped: AtomicU64,
}

impl First {
    /// `None` where partitions' keys are no numbers.
    pub fn of(window: &Window, partition: &[SortKey]) -> Result<Option<Arc<First>>> {
        let Some(most) = window.first.and_then(|most| usize::try_from(most).ok()) else { return Ok(None) };
        let partition = KeyPlan::new(partition, &window.input)?;
        let order = KeyPlan::new(&window.order, &window.input)?;
        let (seen, dropped) = Default::default();
        Ok(partition.is_decisive.then(|| Arc::new(First { most, partition, order, seen, dropped })))
    }

    pub fn described(&self) -> String {
        let (dropped, seen) = (self.dropped.load(Relaxed), self.seen.load(Relaxed));
        format!("First Rows: up to rank {}, {dropped} of {seen} rows dropped before they were sorted", self.most)
    }
}

/// A worker's.
pub(super) struct FirstRows {
    first: Arc<First>,
    /// The keys that come first, the last of them on top.
    partitions: HashMap<u128, BinaryHeap<u128>>,
    keys: usize,
    seen: u64,
    dropped: u64,
    is_over: bool,
    then: Box<dyn SinkState>,
}

impl FirstRows {
    pub fn new(first: &Arc<First>, then: Box<dyn SinkState>) -> FirstRows {
        let (partitions, keys, seen, dropped, is_over) = Default::default();
        FirstRows { first: Arc::clone(first), partitions, keys, seen, dropped, is_over, then }
    }

    /// Whether a row may be wanted.
    #[inline]
    fn is_first(&mut self, partition: u128, key: u128) -> bool {
        let keys = self.partitions.entry(partition).or_default();
        if keys.len() < self.first.most {
            keys.push(key);
            self.keys += 1;
            return true;
        }
        let Some(mut last) = keys.peek_mut() else { return false };
        let order = key.cmp(&*last);
        if order.is_lt() {
            *last = key;
        }
        order.is_le()
    }
}

impl SinkState for FirstRows {
    fn push(&mut self, chunk: Chunk) -> Result<()> {
        if self.is_over {
            return self.then.push(chunk);
        }
        let partitions = self.first.partition.encode(&chunk)?;
        let keys = self.first.order.encode(&chunk)?;
        let mut rows: Vec<u32> = Vec::new();
        for (row, (partition, key)) in partitions.into_iter().zip(keys).enumerate() {
            if self.is_first(partition, key) {
                rows.push(row as u32);
            }
        }
        self.seen += chunk.rows as u64;
        self.dropped += (chunk.rows - rows.len()) as u64;
        let does_not_pay = self.seen >= JUDGED_AFTER && self.dropped * DROPPED_OF < self.seen;
        if does_not_pay || self.keys > KEYS_MAX {
            self.is_over = true;
            self.partitions = HashMap::new();
        }
        match rows.len() {
            0 => Ok(()),
            kept if kept == chunk.rows => self.then.push(chunk),
            _ => self.then.push(chunk.gather(&rows)?),
        }
    }

    fn end(&mut self) -> Result<()> {
        self.first.seen.fetch_add(self.seen, Relaxed);
        self.first.dropped.fetch_add(self.dropped, Relaxed);
        self.then.end()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self.then.into_any()
    }
}
