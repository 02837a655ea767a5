//! Rows in ranges of keys.

use super::access::{Access, Row};
use crate::pod::Placed;
use std::ops::Bound;
use std::sync::Arc;
use tidepool_base::{Result, RowId};
use tidepool_index::key::KeyBounds;
use tidepool_index::{Cursor, Direction};
use tidepool_table::rows::typed::KeyValues;
use tidepool_table::rows::{RowRef, Savepoint, ScanRead};
use tidepool_table::{IndexAccess, IndexKey, Table, TableIndex};

/// A range of an index's keys, by values of its first columns.
#[derive(Clone, Copy, Debug)]
pub struct ScanRange<K> {
    pub lower: Bound<K>,
    pub upper: Bound<K>,
}

impl ScanRange<()> {
    /// Everything.
    pub fn all() -> ScanRange<()> {
        ScanRange { lower: Bound::Unbounded, upper: Bound::Unbounded }
    }
}

impl<K: KeyValues + Clone> ScanRange<K> {
    /// Keys that begin with these values.
    pub fn prefix(values: K) -> ScanRange<K> {
        ScanRange { lower: Bound::Included(values.clone()), upper: Bound::Included(values) }
    }

    /// Keys from those that begin with the first values to those that begin with the second.
    pub fn between(first: K, last: K) -> ScanRange<K> {
        ScanRange { lower: Bound::Included(first), upper: Bound::Included(last) }
    }
}

/// Rows in a range of keys, one after the other.
pub struct KeyScan<'a> {
    access: Access<'a>,
    table: &'a Arc<Table>,
    index: &'a Arc<TableIndex>,
    bounds: KeyBounds,
    direction: Direction,
    /// Entries that were read together, of which those from `at` on are still to come.
    ahead: Vec<Ahead<'a>>,
    at: usize,
    /// How many are read together next.
    wanted: usize,
    /// What the transaction had written by then.
    looked_at: Savepoint,
    memory: ScanMemory,
    is_over: bool,
    /// Those of another host, all at once.
    elsewhere: Option<std::vec::IntoIter<Row<'a>>>,
}

/// What a scan works with, kept from one to the next.
#[derive(Default)]
pub(super) struct ScanMemory {
    cursor: Cursor,
    /// Of the entries that were read together, one behind the other.
    keys: Vec<u8>,
    /// Of rows that are looked at.
    key: IndexKey,
    /// The last entry's key that was come to.
    last: Vec<u8>,
}

/// Scans at a time of which a transaction keeps the memory.
const SCANS_KEPT: usize = 4;

#[derive(Clone, Copy)]
struct Ahead<'a> {
    row: RowId,
    key_end: usize,
    found: Option<RowRef<'a>>,
}

/// Rows that are read together, at most.
const AHEAD_MAX: usize = 16;

/// Above all keys that begin with `key`, if anything is.
fn above(mut key: Vec<u8>) -> Option<Vec<u8>> {
    while let Some(last) = key.pop() {
        if last < u8::MAX {
            key.push(last + 1);
            return Some(key);
        }
    }
    None
}

fn bounds<K: KeyValues>(index: &TableIndex, range: &ScanRange<K>) -> Result<KeyBounds> {
    let key = |values: &K| -> Result<Vec<u8>> {
        let mut key = Vec::with_capacity(32);
        values.encode(index.codec(), &mut key)?;
        Ok(key)
    };
    Ok(KeyBounds {
        lower: match &range.lower {
            Bound::Included(values) => Bound::Included(key(values)?),
            Bound::Excluded(values) => match above(key(values)?) {
                Some(above) => Bound::Included(above),
                // No key comes behind one of nothing but 255.
                None => Bound::Excluded(vec![u8::MAX; tidepool_index::KEY_BYTES_MAX]),
            },
            Bound::Unbounded => Bound::Unbounded,
        },
        upper: match &range.upper {
            Bound::Included(values) => above(key(values)?).map_or(Bound::Unbounded, Bound::Excluded),
            Bound::Excluded(values) => Bound::Excluded(key(values)?),
            Bound::Unbounded => Bound::Unbounded,
        },
    })
}

impl<'a> KeyScan<'a> {
    pub(super) fn new(
        access: Access<'a>,
        (table, placed): (&'a Arc<Table>, Option<&Placed>),
        index: &'a Arc<TableIndex>,
        range: ScanRange<impl KeyValues>,
        direction: Direction,
    ) -> Result<KeyScan<'a>> {
        let bounds = bounds(index, &range)?;
        let home = placed.map(|placed| placed.home_of(index, &bounds)).transpose()?.flatten();
        if let (Some(placed), Some(home)) = (placed, home) {
            let rows = access.scan_elsewhere((placed, home), table, index, bounds.clone(), direction)?;
            let looked_at = access.work.borrow().writes.savepoint();
            return Ok(KeyScan {
                access,
                table,
                index,
                bounds,
                direction,
                ahead: Vec::new(),
                at: 0,
                wanted: 0,
                looked_at,
                memory: ScanMemory::default(),
                is_over: false,
                elsewhere: Some(rows.into_iter()),
            });
        }
        index.fetch_range(bounds.range())?;
        let mut work = access.work.borrow_mut();
        let mut memory = work.scans.pop().unwrap_or_default();
        memory.cursor.restart(bounds.range(), direction);
        memory.last.clear();
        let looked_at = work.writes.savepoint();
        drop(work);
        Ok(KeyScan {
            access,
            table,
            index,
            bounds,
            direction,
            ahead: Vec::new(),
            at: 0,
            wanted: 1,
            looked_at,
            memory,
            is_over: false,
            elsewhere: None,
        })
    }

    /// As it is, but reads so many rows at once to begin with, where the caller knows that he will ask for them: else it begins
    /// with one. What comes does not depend on it.
    pub fn expecting(mut self, rows: usize) -> KeyScan<'a> {
        self.wanted = rows.clamp(1, AHEAD_MAX);
        self
    }

    fn step(&mut self) -> Result<Option<Row<'a>>> {
        let (view, rows) = (self.access.view, &self.table.rows);
        loop {
            if self.at == self.ahead.len() && !self.look_ahead() {
                self.is_over = true;
                return Ok(None);
            }
            let Ahead { row, key_end, found } = self.ahead[self.at];
            let key_start = if self.at == 0 { 0 } else { self.ahead[self.at - 1].key_end };
            let ScanMemory { keys, key: scratch, last, .. } = &mut self.memory;
            let key = &keys[key_start..key_end];
            self.at += 1;
            // The transaction may have changed it since.
            let has_written = self.access.work.borrow().writes.savepoint() != self.looked_at;
            let Some(found) = (if has_written { rows.read_again(view, row) } else { found }) else { continue };
            let mut work = self.access.work.borrow_mut();
            let image = work.main_images.image_of(rows, row, found)?;
            // A row has entries for versions that the view does not see, too.
            if !self.index.has_key(rows, RowRef::Version(&image), key, scratch)? {
                continue;
            }
            work.lately.read(rows, row);
            if self.access.remembers_reads {
                last.clear();
                last.extend_from_slice(key);
            }
            return Ok(Some(Row::new(row, image)));
        }
    }

    /// Reads some rows at once, so that they are waited for together. False: there are none.
    fn look_ahead(&mut self) -> bool {
        let _pausing = tidepool_fiber::pausing();
        let wanted = self.wanted;
        self.wanted = (wanted * 8).min(AHEAD_MAX);
        (self.at, self.looked_at) = (0, self.access.work.borrow().writes.savepoint());
        self.ahead.clear();
        self.ahead.reserve(wanted);
        let ScanMemory { cursor, keys, .. } = &mut self.memory;
        keys.clear();
        let mut ids = [RowId(0); AHEAD_MAX];
        while self.ahead.len() < wanted {
            let Some((key, row)) = cursor.next(self.index.tree(), self.access.view) else { break };
            keys.extend_from_slice(key);
            ids[self.ahead.len()] = row;
            self.ahead.push(Ahead { row, key_end: keys.len(), found: None });
        }
        let (ids, ahead) = (&ids[..self.ahead.len()], &mut self.ahead);
        self.table.rows.read_together(self.access.view, ids, |place, found| ahead[place].found = found);
        !ahead.is_empty()
    }

    /// Puts down what was looked at: up to the last row that was come to, or all.
    fn remember(&mut self) {
        let mut bounds =
            std::mem::replace(&mut self.bounds, KeyBounds { lower: Bound::Unbounded, upper: Bound::Unbounded });
        if !self.is_over {
            if self.memory.last.is_empty() {
                return;
            }
            let last = self.memory.last.clone();
            match self.direction {
                Direction::Forward => bounds.upper = Bound::Included(last),
                Direction::Backward => bounds.lower = Bound::Included(last),
            }
        }
        let access = IndexAccess::of_range(self.index, bounds);
        let read = ScanRead::new(&[], Some(&access));
        self.access.work.borrow_mut().writes.read_scan(&self.table.rows, read);
    }
}

impl<'a> Iterator for KeyScan<'a> {
    type Item = Result<Row<'a>>;

    #[inline]
    fn next(&mut self) -> Option<Result<Row<'a>>> {
        if let Some(rows) = &mut self.elsewhere {
            return rows.next().map(Ok);
        }
        if self.is_over { None } else { self.step().transpose() }
    }
}

impl Drop for KeyScan<'_> {
    fn drop(&mut self) {
        if self.elsewhere.is_some() {
            return;
        }
        if self.access.remembers_reads {
            self.remember();
        }
        let scans = &mut self.access.work.borrow_mut().scans;
        if scans.len() < SCANS_KEPT {
            scans.push(std::mem::take(&mut self.memory));
        }
    }
}
