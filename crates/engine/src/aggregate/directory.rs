//! Which row has a key: a table of (tag, address) entries with linear probing.
//!
//! An entry has 16 bits of the row's hash beside its address, so that hardly any other row is looked at (Leis et al.,
//! SIGMOD 2014, section 4.2). Rows of a chunk are looked up together, a column at a time.

use crate::observed::{Hold, Observer};
use crate::room;
use crate::rows::{RowLayout, RowPtr, Rows};
use crate::vector::Vector;
use tidepool_base::{Error, Result};
use tidepool_heap::QueryHeap;

/// Upper bits of a hash that tell a row's partition, at most.
pub(super) const PARTITION_BITS: u32 = 8;
pub(super) const PARTITIONS: usize = 1 << PARTITION_BITS;

/// Told by so many bits, more than none.
#[inline(always)]
pub(super) fn partition_of(hash: u64, bits: u32) -> usize {
    (hash >> (64 - bits)) as usize
}

const TAG_SHIFT: u32 = 48;
const ADDRESS: u64 = (1 << TAG_SHIFT) - 1;
/// Instead of an address: a row that is being made, and its number among those. No address in user space has this bit.
const PENDING: u64 = 1 << 47;
const ENTRIES_MIN: usize = 1024;
/// Directories of more bytes than this are not in the cache: their entries are prefetched.
const CACHED_BYTES: usize = 256 << 10;
/// So are rows, where there are more.
const CACHED_ROWS: usize = 8192;
const AHEAD: usize = 16;

/// The bits below the partition's, at the place that they have in an entry. Never 0, as no row's entry is.
#[inline(always)]
fn tag(hash: u64) -> u64 {
    (hash << PARTITION_BITS & !ADDRESS) | 1 << TAG_SHIFT
}

/// Where the header of a row keeps its hash.
pub(super) const HASH: usize = 0;
pub(super) const HEADER_BYTES: usize = 8;

/// # Safety
///
/// The row is there, with a header.
#[inline(always)]
pub(super) unsafe fn hash_of(row: RowPtr) -> u64 {
    // SAFETY: the caller's word.
    unsafe { row.read(HASH) }
}

/// Rows of new keys.
pub(super) enum Fresh<'a> {
    /// Made of these columns, the keys first.
    Append(&'a mut Rows, &'a [&'a Vector]),
    /// There already: these, one for each row that is looked up. Those that are new go to the list.
    Given(&'a [RowPtr], &'a mut Vec<RowPtr>),
    /// There are none.
    Never,
}

#[derive(Debug)]
pub(super) struct Directory {
    /// A power of two of them; 0: empty.
    entries: Vec<u64>,
    count: usize,
    observer: Observer,
    hold: Hold,
}

pub(super) fn check_heap() -> Result<()> {
    QueryHeap::current().map_or(Ok(()), |heap| heap.check())
}

impl Directory {
    pub fn new(observer: &Observer) -> Directory {
        Directory { entries: Vec::new(), count: 0, observer: observer.clone(), hold: Hold::default() }
    }

    /// With room for half as many rows, so that it grows once at most.
    pub fn for_rows(rows: usize, observer: &Observer) -> Result<Directory> {
        let mut directory = Directory::new(observer);
        directory.set_entries(rows.next_power_of_two().max(ENTRIES_MIN))?;
        Ok(directory)
    }

    /// So many, which are of no rows. Those that there were are gone before.
    fn set_entries(&mut self, entries: usize) -> Result<()> {
        (self.entries, self.hold) = Default::default();
        self.entries = room::filled(0, entries)?;
        self.hold = self.observer.hold_vec(&self.entries);
        Ok(())
    }

    pub fn bytes(&self) -> usize {
        self.entries.len() * 8
    }

    pub fn len(&self) -> usize {
        self.count
    }

    /// Of the first entry that a hash may have.
    pub fn address(&self, hash: u64) -> u64 {
        let slot = hash as usize & self.entries.len().saturating_sub(1);
        self.entries.as_ptr().addr() as u64 + slot as u64 * 8
    }

    pub fn clear(&mut self) {
        self.entries.fill(0);
        self.count = 0;
    }

    /// Takes in rows whose keys are all different. It was empty.
    ///
    /// # Safety
    ///
    /// The rows are there, with their hashes in their headers.
    pub unsafe fn adopt(&mut self, rows: Vec<RowPtr>) -> Result<()> {
        debug_assert!(self.entries.is_empty());
        self.count = rows.len();
        // SAFETY: the caller's word.
        unsafe { self.make_room(0, || Ok(rows)) }
    }

    /// Makes room for more rows, at most half of it taken; `rows` are all that it has, in any order.
    ///
    /// # Safety
    ///
    /// The rows are there, with their hashes in their headers.
    pub unsafe fn make_room(&mut self, more: usize, rows: impl FnOnce() -> Result<Vec<RowPtr>>) -> Result<()> {
        let wanted = ((self.count + more) * 2).next_power_of_two().max(ENTRIES_MIN);
        if wanted <= self.entries.len() {
            return Ok(());
        }
        if wanted > 1 << 32 {
            return Err(Error::unsupported("more than 2^31 groups of one partition"));
        }
        self.set_entries(wanted)?;
        if self.count == 0 {
            return Ok(());
        }
        let (rows, mask) = (rows()?, wanted - 1);
        for (index, row) in rows.iter().enumerate() {
            if let Some(next) = rows.get(index + AHEAD) {
                next.prefetch();
            }
            // SAFETY: the caller's word.
            let hash = unsafe { hash_of(*row) };
            let mut slot = hash as usize & mask;
            while self.entries[slot] != 0 {
                slot = (slot + 1) & mask;
            }
            self.entries[slot] = tag(hash) | row.address();
        }
        Ok(())
    }

    #[inline(always)]
    fn prefetch(&self, slot: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch of any address does nothing but perhaps fill a cache line.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(self.entries.as_ptr().wrapping_add(slot).cast::<i8>());
        }
    }

    /// Looks where each hash says. What is there goes to `found`; rows whose entry may be theirs to `check`, others to
    /// `active`: how many of each. All are as long as `hashes`, and the directory is not empty.
    #[inline(never)]
    fn look<const PREFETCHES: bool>(
        &self,
        hashes: &[u64],
        found: &mut [u64],
        check: &mut [u32],
        active: &mut [u32],
    ) -> (usize, usize) {
        let rows = hashes.len();
        assert!(check.len() == rows && active.len() == rows && self.entries.len().is_power_of_two());
        let mask = self.entries.len() - 1;
        let (mut checked, mut looking) = (0, 0);
        if PREFETCHES {
            hashes.iter().take(AHEAD).for_each(|hash| self.prefetch(*hash as usize & mask));
        }
        for (row, (hash, found)) in hashes.iter().zip(found).enumerate() {
            if PREFETCHES && let Some(next) = hashes.get(row + AHEAD) {
                self.prefetch(*next as usize & mask);
            }
            // SAFETY: the mask is the last index.
            let entry = unsafe { *self.entries.get_unchecked(*hash as usize & mask) };
            let is_hit = entry & !ADDRESS == tag(*hash);
            *found = entry & ADDRESS;
            // Both are written and one is counted: no branch to be guessed.
            // SAFETY: neither count is above `row`, which is below the length of both.
            unsafe {
                *check.get_unchecked_mut(checked) = row as u32;
                *active.get_unchecked_mut(looking) = row as u32;
            }
            checked += usize::from(is_hit);
            looking += usize::from(!is_hit);
        }
        (checked, looking)
    }

    /// Finds the row of each key, or makes it one. Room was made for as many. With [`Fresh::Never`], a key without a row is an
    /// error.
    ///
    /// # Safety
    ///
    /// All rows that it has, and those given, are there and of the layout, whose first columns the keys are; nobody writes their
    /// columns meanwhile.
    pub unsafe fn locate(
        &mut self,
        layout: &RowLayout,
        keys: &[&Vector],
        hashes: &[u64],
        mut fresh: Fresh<'_>,
        out: &mut Vec<RowPtr>,
    ) -> Result<()> {
        let rows = hashes.len();
        let Some(mask) = self.entries.len().checked_sub(1).filter(|_| rows > 0) else {
            return if rows == 0 { Ok(()) } else { Err(Error::internal("a look-up in a directory without room")) };
        };
        let mut found: Vec<u64> = vec![0; rows];
        let (mut check, mut active): (Vec<u32>, Vec<u32>) = (vec![0; rows], vec![0; rows]);
        let (checked, looking) = if self.bytes() <= CACHED_BYTES {
            self.look::<false>(hashes, &mut found, &mut check, &mut active)
        } else {
            self.look::<true>(hashes, &mut found, &mut check, &mut active)
        };
        check.truncate(checked);
        active.truncate(looking);
        // Where rows have come to; only wanted if some are not where their hash says.
        let mut slots: Vec<u32> = Vec::new();
        if looking > 0 {
            slots.extend(hashes.iter().map(|hash| (*hash as usize & mask) as u32));
        }
        if self.count > CACHED_ROWS {
            // SAFETY: addresses of rows.
            check.iter().for_each(|row| unsafe { RowPtr::from_address(found[*row as usize]) }.prefetch());
        }
        let mut made: Vec<u32> = Vec::new();
        let (mut stored, mut keep, mut pointers) = (Vec::with_capacity(rows), Vec::new(), Vec::new());
        loop {
            made.clear();
            for &row in &active {
                let row = row as usize;
                let tag = tag(hashes[row]);
                let mut slot = slots[row] as usize;
                loop {
                    let entry = self.entries[slot];
                    if entry == 0 {
                        let address = match &fresh {
                            Fresh::Append(..) => PENDING | made.len() as u64,
                            Fresh::Given(given, _) => given[row].address(),
                            Fresh::Never => return Err(Error::internal("a key has no group")),
                        };
                        made.push(row as u32);
                        self.entries[slot] = tag | address;
                        found[row] = address;
                        break;
                    }
                    if entry & !ADDRESS == tag {
                        found[row] = entry & ADDRESS;
                        check.push(row as u32);
                        break;
                    }
                    slot = (slot + 1) & mask;
                }
                slots[row] = slot as u32;
            }
            self.count += made.len();
            if !made.is_empty() {
                match &mut fresh {
                    Fresh::Append(rows, columns) => {
                        pointers.clear();
                        rows.append(columns, Some(&made), hashes.len(), &mut pointers)?;
                        for (row, pointer) in made.iter().zip(&pointers) {
                            let row = *row as usize;
                            // SAFETY: made just now, with a header.
                            unsafe { pointer.write(HASH, hashes[row]) };
                            found[row] = pointer.address();
                            self.entries[slots[row] as usize] = tag(hashes[row]) | found[row];
                        }
                        for row in &check {
                            let address = &mut found[*row as usize];
                            if *address & PENDING != 0 {
                                *address = pointers[(*address ^ PENDING) as usize].address();
                            }
                        }
                    }
                    Fresh::Given(given, list) => list.extend(made.iter().map(|row| given[*row as usize])),
                    Fresh::Never => {}
                }
            }
            stored.clear();
            // SAFETY: addresses of rows.
            stored.extend(check.iter().map(|row| unsafe { RowPtr::from_address(found[*row as usize]) }));
            keep.clear();
            keep.resize(check.len(), 1);
            for (column, vector) in keys.iter().enumerate() {
                // SAFETY: the caller's word.
                unsafe { layout.compare(column, vector, &check, &stored, true, &mut keep)? };
            }
            active.clear();
            for (row, keep) in check.iter().zip(&keep) {
                if *keep == 0 {
                    if slots.is_empty() {
                        slots.extend(hashes.iter().map(|hash| (*hash as usize & mask) as u32));
                    }
                    let slot = &mut slots[*row as usize];
                    *slot = ((*slot as usize + 1) & mask) as u32;
                    active.push(*row);
                }
            }
            check.clear();
            if active.is_empty() {
                break;
            }
        }
        // SAFETY: addresses of rows.
        out.extend(found.iter().map(|address| unsafe { RowPtr::from_address(*address) }));
        Ok(())
    }
}

/// A hash whose row is in the partition of another one.
#[inline(always)]
pub(super) fn partition_hash(partition: u64, hash: u64) -> u64 {
    let lower = u64::MAX >> PARTITION_BITS;
    partition & !lower | hash & lower
}
