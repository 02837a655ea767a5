//! Aggregates over frames that slide: each row comes in once and goes once.

use super::Checks;
use super::frame::Spans;
use super::layout::Layout;
use crate::aggregate::{State, SumWide};
use crate::room;
use tidepool_base::Result;

/// What a frame's rows come to. Rows come in ascending order, and go in that order.
pub(super) trait Slide {
    /// No rows.
    fn clear(&mut self);
    fn add(&mut self, row: u32);
    /// Of those that are in, the first.
    fn remove(&mut self, row: u32);
}

/// Rows between two checks: of the order of a millisecond.
const CHECK_ROWS: usize = 1 << 16;

/// Tells of each frame: the rows whose frame it is, from one to before another, and what it comes to.
#[inline(always)]
pub(super) fn slide<S: Slide>(
    spans: &Spans,
    layout: &Layout,
    checks: &Checks,
    state: &mut S,
    mut tell: impl FnMut(u32, u32, &S),
) -> Result<()> {
    match spans {
        Spans::Whole => {
            let mut unchecked = 0;
            for partition in layout.partitions() {
                state.clear();
                for start in (partition.start..partition.end).step_by(CHECK_ROWS) {
                    let end = partition.end.min(start.saturating_add(CHECK_ROWS as u32));
                    (start..end).for_each(|row| state.add(row));
                    unchecked += (end - start) as usize;
                    if unchecked >= CHECK_ROWS {
                        checks.check()?;
                        unchecked = 0;
                    }
                }
                tell(partition.start, partition.end, state);
            }
        }
        Spans::Each { start, end } => {
            let (mut first, mut next, mut row) = (0, 0, 0);
            for (start, end) in start.chunks(CHECK_ROWS).zip(end.chunks(CHECK_ROWS)) {
                checks.check()?;
                for (start, end) in start.iter().zip(end) {
                    if *start >= next {
                        state.clear();
                        (first, next) = (*start, *start);
                    }
                    (next..*end).for_each(|row| state.add(row));
                    (first..*start).for_each(|row| state.remove(row));
                    (first, next) = (*start, *end);
                    tell(row, row + 1, state);
                    row += 1;
                }
            }
        }
    }
    Ok(())
}

/// A count of the rows that are taken.
pub(super) struct Count<F> {
    pub takes: F,
    pub count: u64,
}

impl<F: Fn(usize) -> bool> Slide for Count<F> {
    fn clear(&mut self) {
        self.count = 0;
    }

    #[inline(always)]
    fn add(&mut self, row: u32) {
        self.count += u64::from((self.takes)(row as usize));
    }

    #[inline(always)]
    fn remove(&mut self, row: u32) {
        self.count -= u64::from((self.takes)(row as usize));
    }
}

/// A sum of integers, exact.
pub(super) trait Exact: Copy + Default {
    type Value: Copy;
    fn plus(&mut self, value: Self::Value);
    fn minus(&mut self, value: Self::Value);
    fn wide(self) -> SumWide;
}

/// Of 2^64 values of 64 bits at most, so that it fits.
impl Exact for i128 {
    type Value = i64;

    #[inline(always)]
    fn plus(&mut self, value: i64) {
        *self += i128::from(value);
    }

    #[inline(always)]
    fn minus(&mut self, value: i64) {
        *self -= i128::from(value);
    }

    fn wide(self) -> SumWide {
        SumWide::of(self)
    }
}

impl Exact for SumWide {
    type Value = i128;

    #[inline(always)]
    fn plus(&mut self, value: i128) {
        self.add(value);
    }

    #[inline(always)]
    fn minus(&mut self, value: i128) {
        self.merge(SumWide::of(value).negated());
    }

    fn wide(self) -> SumWide {
        self
    }
}

/// A sum of the rows that are taken, and how many they are.
pub(super) struct Sum<'a, E: Exact, F> {
    pub values: &'a [E::Value],
    pub takes: F,
    pub sum: E,
    pub count: u64,
}

impl<E: Exact, F: Fn(usize) -> bool> Slide for Sum<'_, E, F> {
    fn clear(&mut self) {
        (self.sum, self.count) = (E::default(), 0);
    }

    #[inline(always)]
    fn add(&mut self, row: u32) {
        if (self.takes)(row as usize) {
            self.sum.plus(self.values[row as usize]);
            self.count += 1;
        }
    }

    #[inline(always)]
    fn remove(&mut self, row: u32) {
        if (self.takes)(row as usize) {
            self.sum.minus(self.values[row as usize]);
            self.count -= 1;
        }
    }
}

/// What cannot be taken back: sums of floats, the least and the greatest. Two stacks make a queue: what the later rows come to
/// together, and what the earlier ones come to from each of them on, made anew of the later ones when all of the earlier are gone.
/// Each row is merged at most twice.
pub(super) struct Queue<S, O, M> {
    /// What a row is; `None`: nothing.
    pub of: O,
    pub merge: M,
    /// Of each earlier row and those between it and the later ones; the first row last.
    earlier: Vec<Option<S>>,
    later: Option<S>,
    next: u32,
}

impl<S: Copy, O: Fn(u32) -> Option<S>, M: Fn(S, S) -> S> Queue<S, O, M> {
    /// For some frames. 53200 where there is no room for as many rows as it keeps.
    pub fn new(spans: &Spans, of: O, merge: M) -> Result<Queue<S, O, M>> {
        let earlier = room::of_capacity(spans.rows_left_behind())?;
        Ok(Queue { of, merge, earlier, later: None, next: 0 })
    }

    #[inline(always)]
    fn merged(&self, a: Option<S>, b: Option<S>) -> Option<S> {
        match (a, b) {
            (Some(a), Some(b)) => Some((self.merge)(a, b)),
            (one, None) | (None, one) => one,
        }
    }

    /// `None`: of nothing.
    #[inline(always)]
    pub fn value(&self) -> Option<S> {
        self.merged(self.earlier.last().copied().flatten(), self.later)
    }
}

impl<S: Copy, O: Fn(u32) -> Option<S>, M: Fn(S, S) -> S> Slide for Queue<S, O, M> {
    fn clear(&mut self) {
        self.earlier.clear();
        self.later = None;
    }

    #[inline(always)]
    fn add(&mut self, row: u32) {
        self.later = self.merged(self.later, (self.of)(row));
        self.next = row + 1;
    }

    #[inline(always)]
    fn remove(&mut self, row: u32) {
        if self.earlier.is_empty() {
            let mut so_far = None;
            for earlier in (row..self.next).rev() {
                so_far = self.merged((self.of)(earlier), so_far);
                self.earlier.push(so_far);
            }
            self.later = None;
        }
        self.earlier.pop();
    }
}
