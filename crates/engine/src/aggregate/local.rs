//! A worker's own groups: all of them in a table that stays in its cache, or else rows of them in partitions.
//!
//! Pre-aggregation is that of Leis et al. (SIGMOD 2014, section 4.4): a table that has grown as far as it may is written out by
//! partitions and starts empty again, so that what goes to memory is what repeats least. Where hardly anything repeats, rows go to
//! the partitions without being looked up.

use super::directory::{Directory, Fresh, HASH, PARTITION_BITS, PARTITIONS, check_heap, hash_of, partition_of};
use crate::hash;
use crate::room;
use crate::rows::{RowLayout, RowPtr, Rows};
use crate::text::Owners;
use crate::touch::{Meter, Pool, Touches};
use crate::vector::{CHUNK_ROWS, Vector};
use std::sync::Arc;
use tidepool_base::Result;

/// Half of a core's second-level cache. What a table takes beyond it must be worth it.
const CACHE_BYTES: usize = 512 << 10;
/// So many times as large a table becomes at first, to see whether rows repeat: what a core's second-level cache holds.
const TRIED_TIMES: usize = 4;
/// A core's part of the last-level cache.
const TABLE_BYTES_MAX: usize = 4 << 20;
/// Rows that go to the partitions together, when they are not looked up: what a core's second-level cache holds beside.
const STAGED_BYTES: usize = 256 << 10;
/// Rows that are not looked up before it is tried again whether they repeat.
const SKIPPED_ROWS: u64 = 1 << 20;
/// Rows of all workers that one task merges, or so: of more there are several tasks.
const MERGED_ROWS: usize = 1 << 13;

/// When a table writes itself out, and how it is merged: the bounds above, or less for tests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub cache_bytes: usize,
    pub table_bytes_max: usize,
    pub staged_bytes: usize,
    pub skipped_rows: u64,
    pub merged_rows: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            cache_bytes: CACHE_BYTES,
            table_bytes_max: TABLE_BYTES_MAX,
            staged_bytes: STAGED_BYTES,
            skipped_rows: SKIPPED_ROWS,
            merged_rows: MERGED_ROWS,
        }
    }
}

/// What went to partitions while rows still came.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outgrown {
    /// How often the table was written out, and the groups that it had.
    pub times: u64,
    pub groups: u64,
    /// Rows that were not looked up.
    pub skipped: u64,
}

#[derive(Debug)]
pub(super) struct LocalTable {
    keys: usize,
    limits: Limits,
    /// How large it may become now, and how often a group had been found when that was settled.
    bytes_max: usize,
    repetition: f64,
    /// It grows by some, to see what that is worth.
    is_trying: bool,
    directory: Directory,
    /// What the directory has, or what is staged; and the text of all rows.
    pub rows: Rows,
    /// None until the first are written.
    pub partitions: Vec<Rows>,
    /// Where rows are that were not written out, by partitions that may be fewer: the end of each.
    pub shares: Option<(Vec<RowPtr>, Vec<usize>)>,
    /// Looked up since the table was empty.
    rows_in: u64,
    is_skipping: bool,
    skipped: u64,
    pub outgrown: Outgrown,
    /// Whether a key may have more than one row.
    pub repeats: bool,
    touches: Touches,
    /// Of `rows` and the directory, which are made in the same memory again and again.
    own: Pool,
    own_bytes_max: usize,
}

impl LocalTable {
    /// `keys`: how many of the layout's columns are the key.
    pub fn new(layout: &Arc<RowLayout>, keys: usize, limits: Limits, meter: &Meter) -> LocalTable {
        LocalTable {
            keys,
            limits,
            bytes_max: limits.cache_bytes,
            repetition: 0.0,
            is_trying: true,
            directory: Directory::new(meter.observer()),
            rows: Rows::observed(Arc::clone(layout), meter.observer()),
            partitions: Vec::new(),
            shares: None,
            rows_in: 0,
            is_skipping: false,
            skipped: 0,
            outgrown: Outgrown::default(),
            repeats: false,
            touches: meter.touches(),
            own: meter.pool(),
            own_bytes_max: 0,
        }
    }

    /// Rows for some keys: of each, its group's, or one that is made just for it. They stay until [`LocalTable::settle`].
    pub fn locate(&mut self, columns: &[&Vector], hashes: &[u64], out: &mut Vec<RowPtr>) -> Result<()> {
        if self.is_skipping {
            let first = out.len();
            self.rows.append(columns, None, hashes.len(), out)?;
            for (row, hash) in out[first..].iter().zip(hashes) {
                // SAFETY: made just now, with a header.
                unsafe { row.write(HASH, *hash) };
            }
            self.skipped += hashes.len() as u64;
            self.outgrown.skipped += hashes.len() as u64;
            self.touches.write(&self.own, hashes.len() * self.rows.layout().width());
            return Ok(());
        }
        self.rows_in += hashes.len() as u64;
        let layout = Arc::clone(self.rows.layout());
        let (first, used_before) = (out.len(), self.rows.used_bytes());
        let rows = &mut self.rows;
        // SAFETY: the directory has the rows of `rows`, which only this worker has.
        unsafe {
            self.directory.make_room(hashes.len(), || rows.pointers())?;
            let fresh = Fresh::Append(rows, columns);
            self.directory.locate(&layout, &columns[..self.keys], hashes, fresh, out)?;
        }
        self.touch(hashes, &out[first..], used_before);
        Ok(())
    }

    /// Keys with these hashes were looked up, and have those rows; some of them are new.
    fn touch(&mut self, hashes: &[u64], rows: &[RowPtr], used_before: usize) {
        let used = self.rows.used_bytes();
        let own_bytes = used + self.directory.bytes();
        let grown = own_bytes.saturating_sub(self.own_bytes_max);
        self.own_bytes_max += grown;
        self.touches.append(&self.own, grown);
        self.touches.write(&self.own, (used - used_before).saturating_sub(grown));
        self.touches.look_up(&self.own, hashes.iter().map(|hash| self.directory.address(*hash)), 8, false);
        let width = self.rows.layout().width();
        self.touches.look_up(&self.own, rows.iter().map(|row| row.address()), width, true);
    }

    /// Takes rows that were made elsewhere, of keys that are all different, before any of its own: as its own if they are few.
    pub fn absorb(&mut self, rows: Rows, groups: &Pool) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let layout = Arc::clone(rows.layout());
        for batch in rows.pointers()?.chunks(CHUNK_ROWS) {
            let none = Owners::default();
            // SAFETY: nobody else has the rows. The columns are gone before the rows, which have what texts lie in.
            let keys: Vec<Vector> =
                (0..self.keys).map(|column| unsafe { layout.gather(column, batch, &none) }).collect();
            let hashes = hash::of_columns(&keys.iter().collect::<Vec<_>>(), batch.len())?;
            for (row, hash) in batch.iter().zip(hashes) {
                // SAFETY: they have headers.
                unsafe { row.write(HASH, hash) };
            }
        }
        self.rows = rows;
        if self.rows.used_bytes() > self.bytes_max / 2 {
            return self.write_out(groups);
        }
        self.rows_in += self.rows.len() as u64;
        // SAFETY: its own by now, with headers.
        unsafe { self.directory.adopt(self.rows.pointers()?)? };
        self.own_bytes_max = self.rows.used_bytes() + self.directory.bytes();
        self.touches.append(&self.own, self.directory.bytes());
        Ok(())
    }

    /// Writes rows out if there are too many. No row that was given is of use any more.
    pub fn settle(&mut self, groups: &Pool) -> Result<()> {
        let rows_bytes = self.rows.len() * self.rows.layout().width();
        if self.is_skipping {
            if rows_bytes >= self.limits.staged_bytes {
                self.write_out(groups)?;
                if self.skipped >= self.limits.skipped_rows {
                    (self.is_skipping, self.skipped) = (false, 0);
                    (self.is_trying, self.repetition) = (true, 0.0);
                }
            }
            return Ok(());
        }
        if rows_bytes + self.directory.bytes() <= self.bytes_max {
            return Ok(());
        }
        let group_count = self.directory.len() as u64;
        let repetition = self.rows_in as f64 / group_count.max(1) as f64;
        // Of G equally frequent groups, a table of 0.6 G has been filled by one and a half times as many rows: so all of
        // them are about to fit into one of double the size. Of a few frequent groups among many, a larger table finds no
        // more.
        let is_worth_more = repetition >= if self.is_trying { 2.0 } else { 1.5 } && repetition >= self.repetition * 1.4;
        let is_largest = self.bytes_max >= self.limits.table_bytes_max;
        // Groups that come again and again in the same order are all different until the last one has come. That costs less
        // to find out, once, than to take such groups for ones that do not repeat.
        let tried_bytes_max = (TRIED_TIMES * self.limits.cache_bytes).min(self.limits.table_bytes_max);
        let is_trying = self.is_trying && self.bytes_max < tried_bytes_max;
        if is_trying || !is_largest && is_worth_more {
            self.is_trying &= is_trying;
            self.bytes_max = (self.bytes_max * 2).min(self.limits.table_bytes_max);
            if !is_trying {
                self.repetition = repetition;
            }
            return Ok(());
        }
        // The next one may be as large if it already is as large as any.
        if self.is_trying || !is_largest {
            (self.bytes_max, self.repetition) = (self.limits.cache_bytes, f64::INFINITY);
        }
        self.is_trying = false;
        self.is_skipping = self.rows_in < group_count * 2;
        self.outgrown.times += 1;
        self.outgrown.groups += group_count;
        self.write_out(groups)
    }

    /// To the partitions, with all that is there. `groups`: what these lie in.
    pub fn write_out(&mut self, groups: &Pool) -> Result<()> {
        if self.rows.is_empty() && !self.partitions.is_empty() {
            return Ok(());
        }
        check_heap()?;
        let bytes = self.rows.len() * self.rows.layout().width();
        self.touches.read(&self.own, bytes);
        self.touches.append(groups, bytes);
        self.repeats |= !self.partitions.is_empty() || self.skipped > 0;
        if self.partitions.is_empty() {
            let new = || self.rows.alike();
            self.partitions = std::iter::repeat_with(new).take(PARTITIONS).collect();
        }
        let (sorted, ends) = self.sorted(PARTITION_BITS)?;
        let mut start = 0;
        for (partition, end) in self.partitions.iter_mut().zip(ends) {
            // SAFETY: rows of this layout, which only this worker has, and which are not in the partition.
            unsafe { partition.copy(&sorted[start..end])? };
            start = end;
        }
        self.rows.clear();
        self.directory.clear();
        self.rows_in = 0;
        Ok(())
    }

    /// Tells which rows are in which of some partitions, told by so many upper bits of their hashes, and leaves them where they
    /// are: for tables that were never written out.
    pub fn share_out(&mut self, bits: u32) -> Result<()> {
        check_heap()?;
        self.touches.read(&self.own, self.rows.len() * self.rows.layout().width());
        self.shares = Some(self.sorted(bits)?);
        Ok(())
    }

    /// Rows by partitions, and the end of each.
    fn sorted(&self, bits: u32) -> Result<(Vec<RowPtr>, Vec<usize>)> {
        let rows = self.rows.pointers()?;
        // SAFETY: the worker's own rows, which have headers.
        let partition = |row: &RowPtr| partition_of(unsafe { hash_of(*row) }, bits) as u8;
        let partitions = room::collected(rows.len(), rows.iter().map(partition))?;
        let mut places = vec![0usize; 1 << bits];
        partitions.iter().for_each(|partition| places[usize::from(*partition)] += 1);
        let mut sum = 0;
        for place in &mut places {
            sum += std::mem::replace(place, sum);
        }
        let mut sorted = room::filled(RowPtr::NONE, rows.len())?;
        for (row, partition) in rows.iter().zip(&partitions) {
            let place = &mut places[usize::from(*partition)];
            sorted[*place] = *row;
            *place += 1;
        }
        Ok((sorted, places))
    }
}
