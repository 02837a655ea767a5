//! Lists that functions make, of which nobody knows how long they become before they are made.
//!
//! What is allocated beyond a statement's memory is noticed at the next look, and taken from the process until then. A list that only grows is not
//! looked at: of a text of some megabytes it may become gigabytes. So a list that is long has to have the room before it grows.

use crate::errors::carry;
use datafusion::common::{Result, exec_err};
use tidepool_heap::QueryHeap;

/// What is made of constants while the statement is planned.
pub const PLANNED_BYTES_MAX: usize = 64 << 10;

/// Items between two looks whether what they hold themselves has had the room.
const LOOK_ITEMS: usize = 4_096;

/// Items that a list begins with.
const FIRST_ITEMS: usize = 4;

/// Makes something of so many bytes once the statement's memory has room for it.
pub fn room<T>(bytes: usize, make: impl FnOnce() -> T) -> Result<T> {
    if bytes > PLANNED_BYTES_MAX && crate::planning::is_planning() {
        // Whoever computes constants leaves it as it is.
        return exec_err!("a value of {bytes} bytes is made when the statement runs");
    }
    QueryHeap::with_room(bytes, make).map_err(carry)
}

/// A list that grows only where the statement's memory has room for it.
#[derive(Debug)]
pub struct Items<T>(Vec<T>);

impl<T> Default for Items<T> {
    fn default() -> Items<T> {
        Items(Vec::new())
    }
}

impl<T> Items<T> {
    /// Of items that are there already, or are made one by one.
    pub fn of(items: impl Iterator<Item = Result<T>>) -> Result<Vec<T>> {
        let mut list = Items::default();
        for item in items {
            list.push(item?)?;
        }
        Ok(list.0)
    }

    /// 53200 where there is no room for it.
    #[inline]
    pub fn push(&mut self, item: T) -> Result<()> {
        if self.0.len() == self.0.capacity() || self.0.len().is_multiple_of(LOOK_ITEMS) {
            self.look()?;
        }
        self.0.push(item);
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn into_vec(self) -> Vec<T> {
        self.0
    }

    #[cold]
    fn look(&mut self) -> Result<()> {
        let items = self.0.len();
        if items < self.0.capacity() {
            return QueryHeap::current().map_or(Ok(()), |heap| heap.check()).map_err(carry);
        }
        let more = items.max(FIRST_ITEMS);
        match items.saturating_add(more).saturating_mul(size_of::<T>()) {
            bytes if bytes <= PLANNED_BYTES_MAX => self.0.reserve_exact(more),
            bytes => room(bytes, || self.0.reserve_exact(more))?,
        }
        Ok(())
    }
}
