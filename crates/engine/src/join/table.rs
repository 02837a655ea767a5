//! The build side's rows, and the directory by which they are found.
//!
//! Which directory a table has depends on the keys that came:
//!
//! * **Bitmap**: whether a row of the probe side matches is all that is asked, and the one key is an integer of a
//!   narrow range: a bit a value, and no rows at all.
//! * **Dense**: one integer key of a narrow range: the address of a row by the key's value.
//! * **Ranked**: one integer key of a wider range: the address of a row by how many keys are less ([`super::ranked`]).
//! * **Hash**: entries of eight bytes, each 48 bits of a row's address and 16 bits that tell which hashes are in its
//!   list, so that most keys without a match end there (Leis et al., "Morsel-Driven Parallelism", SIGMOD 2014, section
//!   4.2; several bits a hash as in Birler et al., "Simple, Efficient, and Robust Hash Tables for Join Processing",
//!   DaMoN 2024).
//!
//! Rows that share an entry are a list through their headers, which also have a bit for rows that have found a match.
//! The directory is apart from the rows: it is small enough to stay near when they are far.

use super::Join;
use super::filter::KeyFilter;
use super::ranked::Ranked;
use super::residual::Residual;
use super::words::Words;
use crate::hash;
use crate::observed::Observer;
use crate::rows::{FrozenRows, RowLayout, RowPtr};
use crate::run::Interruption;
use crate::text::Owners;
use crate::touch::{Meter, Pool, Touches};
use crate::types::Class;
use crate::vector::{Values, Vector};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tidepool_base::{Error, Result};
use tidepool_heap::QueryHeap;

/// What of an entry or a header is an address.
pub const ADDRESS: u64 = (1 << 48) - 1;
/// Of a header: the row has found a match.
pub const MATCHED: u64 = 1 << 63;

/// Rows that are put into the directory together.
const INSERT_ROWS: usize = 512;

const LINE_BYTES: usize = 64;

/// A dense directory of so many words is small for any number of rows.
const DENSE_WORDS_MIN: u64 = 16 << 10;
/// Bits of a bitmap, for each of the rows: as much memory as a hash directory takes.
const BITMAP_BITS_PER_ROW: u64 = 128;
const BITMAP_BITS_MIN: u64 = 1 << 18;
/// Values of a ranked directory, for each of the rows: as much memory as a hash directory takes.
const RANKED_VALUES_PER_ROW: u64 = 64;
/// A directory of such a part of the last-level cache is taken to stay in it beside what else a query touches.
const CACHE_PARTS: u64 = 4;

/// What is narrow for an integer key.
#[derive(Clone, Copy, Debug)]
pub struct Narrow {
    /// Words of a dense directory, for each of the rows.
    pub dense_words_per_row: u64,
    pub dense_words_min: u64,
}

impl Narrow {
    /// For `words` words: in near memory a dense directory's one look is worth its size; in far memory what is small is looked up in the cache, and only
    /// what stays there anyway may be larger.
    fn of_heap(words: u64) -> Narrow {
        let stays = || words.saturating_mul(8) <= tidepool_device::last_level_cache_bytes() / CACHE_PARTS;
        let dense_words_per_row = if QueryHeap::is_far() && !stays() { 1 } else { 8 };
        Narrow { dense_words_per_row, dense_words_min: DENSE_WORDS_MIN }
    }
}

/// The bits that tell that a hash is in an entry's list. They are not among those that choose the entry.
#[inline(always)]
pub fn tag(hash: u64) -> u64 {
    (1 << (48 + (hash & 15))) | (1 << (48 + (hash >> 4 & 15))) | (1 << (48 + (hash >> 8 & 15)))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// No row has a key.
    Empty,
    /// There are no keys.
    Nested,
    Bitmap,
    Dense,
    Ranked,
    Hash,
}

#[derive(Debug)]
pub enum Directory {
    Empty,
    Nested,
    /// Bit `key - min`.
    Bitmap {
        min: i64,
        bits: Words,
    },
    /// Word `key - min`.
    Dense {
        min: i64,
        slots: Words,
    },
    Ranked(Ranked),
    /// Word `hash >> shift`.
    Hash {
        shift: u32,
        slots: Words,
    },
}

/// What the build side left.
#[derive(Debug)]
pub struct Built {
    /// That are in the directory, or would be if there were one.
    pub rows: Vec<Arc<FrozenRows>>,
    /// With NULL for a key that then equals nothing.
    pub keyless: Vec<Arc<FrozenRows>>,
    pub owners: Owners,
    pub directory: Directory,
    /// Some key has two rows that are in the directory.
    pub has_duplicates: AtomicBool,
    /// How many rows came, those that were not kept among them.
    pub total: usize,
    /// A key is NULL, and equals nothing then.
    pub has_null: bool,
    pub filters: Vec<Option<KeyFilter>>,
}

impl Directory {
    pub fn bytes(&self) -> usize {
        match self {
            Directory::Empty | Directory::Nested => 0,
            Directory::Bitmap { bits: words, .. }
            | Directory::Dense { slots: words, .. }
            | Directory::Hash { slots: words, .. } => words.len() * 8,
            Directory::Ranked(ranked) => ranked.bytes(),
        }
    }
}

impl Built {
    /// Whether rows are read to find out which of them a key has.
    pub fn looks_at_rows(&self) -> bool {
        match self.directory {
            Directory::Dense { .. } | Directory::Ranked(_) => self.has_duplicates.load(Ordering::Relaxed),
            Directory::Hash { .. } => true,
            Directory::Empty | Directory::Nested | Directory::Bitmap { .. } => false,
        }
    }
}

/// What a join has in the query heap.
#[derive(Debug)]
pub(super) struct Pools {
    pub rows: Pool,
    pub directory: Pool,
    pub filters: Pool,
}

/// A join's build side. Made empty; full once the pipeline that ends in its [`super::BuildSink`] is over.
pub struct JoinTable {
    pub(super) join: Join,
    /// What is kept of the build side, by position there.
    pub(super) stored: Vec<usize>,
    /// Which stored column each key is, and each column that comes out.
    pub(super) key_fields: Vec<usize>,
    pub(super) output_fields: Vec<usize>,
    pub(super) layout: Arc<RowLayout>,
    pub(super) residual: Option<Residual>,
    pub(super) interruption: Arc<dyn Interruption>,
    built: OnceLock<Built>,
    meter: Meter,
    /// `None`: as the heap has it in which the table is built.
    narrow: Option<Narrow>,
    pub(super) pools: Pools,
    /// For an anti join of the build side that is aware of NULL: a row of the probe side came; one with NULL did.
    pub(super) probe_came: AtomicBool,
    pub(super) probe_null_came: AtomicBool,
}

/// Rows of a block.
#[derive(Clone)]
pub struct Range {
    pub rows: Arc<FrozenRows>,
    pub first: RowPtr,
    pub count: usize,
}

/// Rows in pieces of some.
pub fn ranges(rows: &[Arc<FrozenRows>], most: usize) -> Vec<Range> {
    let mut ranges = Vec::new();
    for rows in rows {
        let width = rows.layout().width();
        for (first, count) in rows.blocks() {
            for start in (0..count).step_by(most) {
                // SAFETY: `start` is a row of the block.
                let first = unsafe { first.forward(start, width) };
                ranges.push(Range { rows: Arc::clone(rows), first, count: most.min(count - start) });
            }
        }
    }
    ranges
}

impl Range {
    /// Where the rows are.
    pub fn pointers(&self) -> impl Iterator<Item = RowPtr> + '_ {
        let width = self.rows.layout().width();
        // SAFETY: within the range, which is within a block.
        (0..self.count).map(move |row| unsafe { self.first.forward(row, width) })
    }
}

impl JoinTable {
    /// 0A000 where columns of the build side cannot be kept in rows; XX000 for a join that is none.
    pub fn new(join: Join, interruption: Arc<dyn Interruption>) -> Result<Arc<JoinTable>> {
        JoinTable::metered(join, interruption, Meter::default())
    }

    /// As above, with an account of what it touches.
    pub fn metered(join: Join, interruption: Arc<dyn Interruption>, meter: Meter) -> Result<Arc<JoinTable>> {
        JoinTable::narrow(join, interruption, meter, None)
    }

    pub(super) fn narrow(
        join: Join,
        interruption: Arc<dyn Interruption>,
        meter: Meter,
        narrow: Option<Narrow>,
    ) -> Result<Arc<JoinTable>> {
        join.check()?;
        let stored = join.stored();
        let field_of = |column: &usize| stored.iter().position(|stored| stored == column).unwrap_or(usize::MAX);
        let key_fields: Vec<usize> = join.keys.iter().map(|key| field_of(&key.build)).collect();
        let output_fields =
            if join.kind.tests_probe() { Vec::new() } else { join.build_output.iter().map(field_of).collect() };
        let mut types: Vec<_> = stored.iter().map(|column| join.build_types[*column].clone()).collect();
        if !join.keeps_keyless() {
            for (key, field) in join.keys.iter().zip(&key_fields) {
                types[*field].nullable &= key.nulls_equal;
            }
        }
        let layout = Arc::new(RowLayout::new(types, 8, 0)?);
        let residual = join.residual.clone().map(|expr| Residual::new(expr, &join, |column| field_of(&column)));
        Ok(Arc::new(JoinTable {
            join,
            stored,
            key_fields,
            output_fields,
            layout,
            residual: residual.transpose()?,
            interruption,
            built: OnceLock::new(),
            pools: Pools { rows: meter.pool(), directory: meter.pool(), filters: meter.pool() },
            meter,
            narrow,
            probe_came: AtomicBool::new(false),
            probe_null_came: AtomicBool::new(false),
        }))
    }

    pub fn join(&self) -> &Join {
        &self.join
    }

    /// How rows are found; `None` before the build side is complete.
    pub fn variant(&self) -> Option<Variant> {
        self.built.get().map(|built| match built.directory {
            Directory::Empty => Variant::Empty,
            Directory::Nested => Variant::Nested,
            Directory::Bitmap { .. } => Variant::Bitmap,
            Directory::Dense { .. } => Variant::Dense,
            Directory::Ranked(_) => Variant::Ranked,
            Directory::Hash { .. } => Variant::Hash,
        })
    }

    /// Rows of the build side; `None` before it is complete.
    pub fn build_rows(&self) -> Option<usize> {
        self.built.get().map(|built| built.total)
    }

    /// What the build side tells of a key of rows that can match: whoever scans the probe side may drop others, and
    /// rows whose key is NULL. `None` where that would change the result, and where nothing is known or asked for
    /// ([`Join::filters`]).
    pub fn key_filter(&self, key: usize) -> Option<&KeyFilter> {
        self.built.get()?.filters.get(key)?.as_ref()
    }

    /// For a worker's account.
    pub(super) fn touches(&self) -> Touches {
        self.meter.touches()
    }

    pub(crate) fn observer(&self) -> &Observer {
        self.meter.observer()
    }

    pub(super) fn built(&self) -> Result<&Built> {
        self.built.get().ok_or_else(|| Error::internal("a join's table before its rows"))
    }

    pub(super) fn set(&self, built: Built) -> Result<()> {
        self.built.set(built).map_err(|_| Error::internal("a join's table is made twice"))
    }

    /// Asked where a chunk may lead to much work.
    pub(super) fn check(&self) -> Result<()> {
        if let Some(heap) = QueryHeap::current() {
            heap.check()?;
        }
        self.interruption.check()
    }

    /// The key's field, if there is one key and that is an integer.
    pub(super) fn int_key(&self) -> Option<usize> {
        match &self.join.keys[..] {
            [key] if !key.nulls_equal && self.join.probe_types[key.probe].class() == Class::Int => {
                self.key_fields.first().copied()
            }
            _ => None,
        }
    }

    /// Whether rows of one key are as good as one of them.
    pub(super) fn is_set(&self) -> bool {
        self.join.kind.tests_probe() && self.join.residual.is_none()
    }

    /// The directory for some rows, empty. `bounds` are those of an only key that is an integer.
    pub(super) fn directory(&self, rows: usize, bounds: Option<(i64, i64)>) -> Result<Directory> {
        if self.join.keys.is_empty() {
            return Ok(Directory::Nested);
        }
        if rows == 0 {
            return Ok(Directory::Empty);
        }
        let observer = self.observer();
        if let Some((min, max)) = bounds {
            let last = max.wrapping_sub(min) as u64;
            let rows = rows as u64;
            if self.is_set() && last < (rows.saturating_mul(BITMAP_BITS_PER_ROW)).max(BITMAP_BITS_MIN) {
                return Ok(Directory::Bitmap { min, bits: Words::new(last as usize / 64 + 1, observer)? });
            }
            let narrow = self.narrow.unwrap_or_else(|| Narrow::of_heap(last.saturating_add(1)));
            if last < (rows.saturating_mul(narrow.dense_words_per_row)).max(narrow.dense_words_min) {
                return Ok(Directory::Dense { min, slots: Words::new(last as usize + 1, observer)? });
            }
            if last < rows.saturating_mul(RANKED_VALUES_PER_ROW) {
                return Ok(Directory::Ranked(Ranked::new(min, last, observer)?));
            }
        }
        let slots = (rows * 2).next_power_of_two().max(64);
        Ok(Directory::Hash { shift: 64 - slots.trailing_zeros(), slots: Words::new(slots, observer)? })
    }

    /// How rows are found, and why so: for `rows` rows and the bounds that [`JoinTable::directory`] was told.
    pub(super) fn described(&self, directory: &Directory, rows: usize, bounds: Option<(i64, i64)>) -> String {
        let keys = bounds.map(|(min, max)| format!("{min} to {max}")).unwrap_or_default();
        let method = match directory {
            Directory::Empty => "none, as no row of the build side has a key".to_owned(),
            Directory::Nested => format!("nested loop over {rows} rows, as there are no keys"),
            Directory::Bitmap { .. } => {
                format!("bitmap of keys {keys}, as all that is asked of one narrow integer is whether it is there")
            }
            Directory::Dense { .. } => format!("array of rows by key {keys}, as the key is one narrow integer"),
            Directory::Ranked(ranked) => {
                let why = if QueryHeap::is_far() { ", which is small where memory is far" } else { "" };
                format!("array of {rows} rows by the rank of keys {keys} in a bitmap of {}{why}", ranked.values())
            }
            Directory::Hash { slots, .. } => {
                let why = match &self.join.keys[..] {
                    [key] if key.nulls_equal => "NULL equals NULL".to_owned(),
                    [key] if self.int_key().is_none() => {
                        format!("the key is {}", self.join.build_types[key.build].class())
                    }
                    [_] => format!("keys {keys} are too far apart for {rows} rows"),
                    keys => format!("there are {} keys", keys.len()),
                };
                format!("hash directory of {} addresses for {rows} rows, as {why}", slots.len())
            }
        };
        format!("Join Method: {method}")
    }

    /// Puts rows into the directory. Any number of threads do so at once.
    pub(super) fn insert(&self, built: &Built, range: &Range) -> Result<()> {
        let mut touches = self.touches();
        let width = self.layout.width();
        let mut pointers = Vec::with_capacity(INSERT_ROWS);
        // Loaded for nothing but that the directory's lines are there when they are changed: changes wait for one
        // another, loads do not.
        let mut entries: Vec<u64> = Vec::with_capacity(INSERT_ROWS);
        let (mut places, mut slot_places) = (Vec::new(), Vec::new());
        let mut all = range.pointers();
        loop {
            pointers.clear();
            pointers.extend(all.by_ref().take(INSERT_ROWS));
            if pointers.is_empty() {
                return Ok(());
            }
            touches.read(&self.pools.rows, pointers.len() * width);
            self.insert_into_filters(built, &pointers, &mut places);
            touches.look_up(&self.pools.filters, places.iter().map(|(word, _)| 64 + *word as u64 * 8), 8, true);
            // SAFETY: the range has the rows, of this layout, and nobody writes their columns.
            let key = |field| unsafe { self.layout.gather(field, &pointers, &built.owners) };
            let int_key = self.int_key().map(key);
            match &built.directory {
                Directory::Empty | Directory::Nested => {}
                Directory::Bitmap { min, bits } => {
                    let keys = ints(&int_key)?;
                    let address = |key: &i64| 64 + key.wrapping_sub(*min) as u64 / 64 * 8;
                    touches.look_up(&self.pools.directory, keys.iter().map(address), 8, true);
                    for key in keys {
                        let bit = key.wrapping_sub(*min) as u64;
                        let (word, bit) = (&bits[bit as usize / 64], 1 << (bit % 64));
                        if word.load(Ordering::Relaxed) & bit == 0 {
                            word.fetch_or(bit, Ordering::Relaxed);
                        }
                    }
                }
                Directory::Dense { min, slots } => {
                    slot_places.clear();
                    slot_places.extend(ints(&int_key)?.iter().map(|key| key.wrapping_sub(*min) as usize));
                    touches.write(&self.pools.rows, pointers.len() * width.min(LINE_BYTES));
                    self.insert_at(built, slots, &slot_places, &pointers, &mut entries, &mut touches);
                }
                Directory::Ranked(ranked) => {
                    let (keys, slots) = (ints(&int_key)?, ranked.slots()?);
                    let address = |key: &i64| ranked.address(*key);
                    touches.look_up(&self.pools.directory, keys.iter().map(address), 16, false);
                    slot_places.clear();
                    slot_places.extend(keys.iter().map(|key| ranked.place(*key, slots)));
                    touches.write(&self.pools.rows, pointers.len() * width.min(LINE_BYTES));
                    self.insert_at(built, slots, &slot_places, &pointers, &mut entries, &mut touches);
                }
                Directory::Hash { shift, slots } => {
                    let hashes: Vec<u64> = match &int_key {
                        Some(_) => ints(&int_key)?.iter().map(|key| hash::of_int(*key)).collect(),
                        // SAFETY: the range has the row; until it is in the directory, its header has its hash.
                        None => pointers.iter().map(|row| unsafe { row.header() }.load(Ordering::Relaxed)).collect(),
                    };
                    let entry = |hash: &u64| slots[(hash >> shift) as usize].load(Ordering::Relaxed);
                    entries.clear();
                    entries.extend(hashes.iter().map(entry));
                    let address = |hash: &u64| 64 + (hash >> shift) * 8;
                    touches.look_up(&self.pools.directory, hashes.iter().map(address), 8, true);
                    touches.write(&self.pools.rows, pointers.len() * width.min(LINE_BYTES));
                    let alike = hashes.iter().zip(&entries).filter(|(hash, entry)| *entry & tag(**hash) == tag(**hash));
                    touches.look_up(&self.pools.rows, alike.map(|(_, entry)| entry & ADDRESS), 1, false);
                    for (hash, entry) in hashes.iter().zip(&entries) {
                        if entry & tag(*hash) == tag(*hash) {
                            // SAFETY: entries have addresses of rows.
                            unsafe { RowPtr::from_address(entry & ADDRESS) }.prefetch();
                        }
                    }
                    for (hash, row) in hashes.iter().zip(&pointers) {
                        self.insert_hashed(built, &slots[(hash >> shift) as usize], *hash, *row);
                    }
                }
            }
        }
    }

    /// Each row into the list of the slot of its key.
    fn insert_at(
        &self,
        built: &Built,
        slots: &[AtomicU64],
        places: &[usize],
        rows: &[RowPtr],
        entries: &mut Vec<u64>,
        touches: &mut Touches,
    ) {
        entries.clear();
        entries.extend(places.iter().map(|place| slots[*place].load(Ordering::Relaxed)));
        touches.look_up(&self.pools.directory, places.iter().map(|place| 64 + *place as u64 * 8), 8, true);
        let mut has_duplicates = false;
        for (place, row) in places.iter().zip(rows) {
            let slot = &slots[*place];
            let mut old = slot.load(Ordering::Acquire);
            loop {
                has_duplicates |= old != 0;
                // SAFETY: the range has the row, and its header is used as shared everywhere.
                unsafe { row.header() }.store(old, Ordering::Relaxed);
                match slot.compare_exchange_weak(old, row.address(), Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => break,
                    Err(now) => old = now,
                }
            }
        }
        if has_duplicates {
            built.has_duplicates.store(true, Ordering::Relaxed);
        }
    }

    /// Notes the keys of rows in a ranked directory, before they are numbered.
    pub(super) fn add_keys(&self, ranked: &Ranked, range: &Range) -> Result<()> {
        let mut touches = self.touches();
        let Some(field) = self.int_key() else { return Err(Error::internal("ranks of keys that are no integers")) };
        let owners = Owners::default();
        let all: Vec<RowPtr> = range.pointers().collect();
        for rows in all.chunks(INSERT_ROWS) {
            // SAFETY: the range has the rows, of this layout, nobody writes their columns, and integers lie in them.
            let keys = unsafe { self.layout.gather(field, rows, &owners) };
            let keys = keys.as_ints()?;
            touches.read(&self.pools.rows, rows.len() * self.layout.width());
            touches.look_up(&self.pools.directory, keys.iter().map(|key| ranked.address(*key)), 16, true);
            keys.iter().for_each(|key| ranked.add(*key));
        }
        Ok(())
    }

    /// Into an entry's list, unless its key is there and once is enough.
    fn insert_hashed(&self, built: &Built, slot: &AtomicU64, hash: u64, row: RowPtr) {
        let tag = tag(hash);
        let mut old = slot.load(Ordering::Acquire);
        // Rows up to this one were looked at.
        let mut seen = 0;
        loop {
            let may_be_there = old & tag == tag;
            if may_be_there && (self.is_set() || !built.has_duplicates.load(Ordering::Relaxed)) {
                let mut other = old & ADDRESS;
                while other != seen {
                    // SAFETY: what is in the directory are rows of the table's; `other` has been published with all of
                    // its columns.
                    let (is_same, next) = unsafe {
                        let other = RowPtr::from_address(other);
                        let is_same = self.key_fields.iter().all(|field| self.layout.same(*field, other, row));
                        (is_same, other.header().load(Ordering::Relaxed) & ADDRESS)
                    };
                    if is_same {
                        if self.is_set() {
                            return;
                        }
                        built.has_duplicates.store(true, Ordering::Relaxed);
                        break;
                    }
                    other = next;
                }
                seen = old & ADDRESS;
            }
            // SAFETY: `row` is one of the table's, and its header is used as shared everywhere.
            unsafe { row.header() }.store(old & ADDRESS, Ordering::Relaxed);
            let new = row.address() | (old & !ADDRESS) | tag;
            match slot.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }

    /// The row that follows in an entry's list.
    ///
    /// # Safety
    ///
    /// `row` is one of the table's, which is complete.
    #[inline(always)]
    pub(super) unsafe fn next(row: RowPtr) -> RowPtr {
        // SAFETY: the caller's word; headers have addresses of rows, or 0.
        unsafe { RowPtr::from_address(row.header().load(Ordering::Relaxed) & ADDRESS) }
    }

    /// Notes that rows have found a match.
    ///
    /// # Safety
    ///
    /// The rows are the table's.
    pub(super) unsafe fn mark_matched(rows: &[RowPtr]) {
        for row in rows {
            // SAFETY: the caller's word.
            let header = unsafe { row.header() };
            if header.load(Ordering::Relaxed) & MATCHED == 0 {
                header.fetch_or(MATCHED, Ordering::Relaxed);
            }
        }
    }
}

fn ints(key: &Option<Vector>) -> Result<&[i64]> {
    match key {
        Some(Vector { values: Values::Int(values), .. }) => Ok(values),
        _ => Err(Error::internal("a directory by integers of other keys")),
    }
}

impl Join {
    /// Whether rows without a key are kept: they come out, or count for what is unknown.
    pub(super) fn keeps_keyless(&self) -> bool {
        self.kind.keeps_build() || (self.null_aware && self.residual.is_some())
    }

    /// Whether something is to be learnt of rows that NULL may make equal, row by row.
    pub(super) fn tries_nulls(&self) -> bool {
        self.null_aware && self.residual.is_some()
    }
}
