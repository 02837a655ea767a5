//! Rows as bytes one after the other, at addresses that do not change: what hash tables and sorts keep.
//!
//! A row is a header (its owner's: a link, a hash), a byte for eight of the columns that may be NULL, and the columns'
//! values, an integer in as few bytes as its bounds need. Bytes of text beyond [`crate::text::INLINE_MAX`] lie in
//! blocks beside.

use crate::hash::float_bits;
use crate::mask::Mask;
use crate::observed::{Hold, Observer};
use crate::room;
use crate::text::{Owners, Text};
use crate::types::{Class, ColumnType};
use crate::vector::{Texts, Values, Vector};
use arrow_buffer::Buffer;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tidepool_base::{Error, Result};
use tidepool_heap::QueryHeap;

/// The address of a row; null for one that is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowPtr(*mut u8);

// SAFETY: an address by itself is nobody's; those who read or write through it say why they may.
unsafe impl Send for RowPtr {}
// SAFETY: as above.
unsafe impl Sync for RowPtr {}

impl RowPtr {
    pub const NONE: RowPtr = RowPtr(std::ptr::null_mut());

    #[inline]
    pub fn is_none(self) -> bool {
        self.0.is_null()
    }

    /// The address, to be kept in a directory: its upper 16 bits are 0.
    #[inline]
    pub fn address(self) -> u64 {
        self.0.expose_provenance() as u64
    }

    /// # Safety
    ///
    /// `address` is from [`RowPtr::address`], or 0.
    #[inline]
    pub unsafe fn from_address(address: u64) -> RowPtr {
        RowPtr(std::ptr::with_exposed_provenance_mut(address as usize))
    }

    /// # Safety
    ///
    /// The row is there, and the bytes from `offset` on are within it and of a `T`; nobody writes them meanwhile.
    #[inline(always)]
    pub unsafe fn read<T: Copy>(self, offset: usize) -> T {
        // SAFETY: the caller's word.
        unsafe { self.0.add(offset).cast::<T>().read_unaligned() }
    }

    /// # Safety
    ///
    /// The row is there, the bytes are within it, and nobody else reads or writes them meanwhile.
    #[inline(always)]
    pub unsafe fn write<T: Copy>(self, offset: usize, value: T) {
        // SAFETY: the caller's word.
        unsafe { self.0.add(offset).cast::<T>().write_unaligned(value) }
    }

    /// The row `count` rows on.
    ///
    /// # Safety
    ///
    /// It is in the same block, or just behind its last row; rows have `width` bytes.
    #[inline(always)]
    pub unsafe fn forward(self, count: usize, width: usize) -> RowPtr {
        // SAFETY: the caller's word.
        RowPtr(unsafe { self.0.add(count * width) })
    }

    /// The first eight bytes of its header, for threads that share it.
    ///
    /// # Safety
    ///
    /// The row is there as long as the result is used, its layout has a header of at least eight bytes and a width that
    /// eight divides, and whoever reads or writes the header's first eight meanwhile does so by this, too.
    #[inline(always)]
    pub unsafe fn header<'a>(self) -> &'a AtomicU64 {
        debug_assert!(self.0.addr().is_multiple_of(8));
        // SAFETY: blocks begin at a cache line, so rows at a multiple of eight bytes; for the rest, the caller's word.
        unsafe { AtomicU64::from_ptr(self.0.cast()) }
    }

    /// Brings the row's first line into the cache.
    #[inline(always)]
    pub fn prefetch(self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch of any address does nothing but perhaps fill a cache line.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(self.0.cast::<i8>());
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    I8,
    I16,
    I32,
    I64,
    I128,
    F64,
    Bool,
    Text,
}

#[derive(Clone, Debug)]
struct Field {
    offset: usize,
    kind: Kind,
    /// Offset and bit of its flag, which is 1 for NULL.
    null: Option<(usize, u8)>,
}

/// Where in a row each column is.
#[derive(Clone, Debug)]
pub struct RowLayout {
    columns: Vec<ColumnType>,
    fields: Vec<Field>,
    width: usize,
}

impl RowLayout {
    /// Whether columns of this type can be kept in rows.
    pub fn holds(of: &ColumnType) -> bool {
        of.class() != Class::Other
    }

    /// `header` bytes come first, then the columns; `trailer` bytes, at an offset that 8 divides, last. Fails for a
    /// column that [`RowLayout::holds`] not.
    pub fn new(columns: Vec<ColumnType>, header: usize, trailer: usize) -> Result<RowLayout> {
        let kind = |of: &ColumnType| {
            let fits = |bits: u32| {
                let limit = 1i128 << (bits - 1);
                of.bounds.is_some_and(|(lower, upper)| -limit <= lower && upper < limit)
            };
            Ok(match of.class() {
                Class::Int if fits(8) => Kind::I8,
                Class::Int if fits(16) => Kind::I16,
                Class::Int if fits(32) => Kind::I32,
                Class::Int => Kind::I64,
                Class::Wide => Kind::I128,
                Class::Float => Kind::F64,
                Class::Bool => Kind::Bool,
                Class::Text => Kind::Text,
                Class::Other => return Err(Error::internal(format!("rows do not hold {}", of.data_type))),
            })
        };
        let mut offset = header;
        let nullable = columns.iter().filter(|of| of.nullable).count();
        let nulls = offset..offset + nullable.div_ceil(8);
        offset = nulls.end;
        let (mut fields, mut flags) = (Vec::with_capacity(columns.len()), 0);
        for of in &columns {
            let kind = kind(of)?;
            let null = of.nullable.then(|| {
                flags += 1;
                (nulls.start + (flags - 1) / 8, 1 << ((flags - 1) % 8))
            });
            fields.push(Field { offset, kind, null });
            offset += match kind {
                Kind::I8 | Kind::Bool => 1,
                Kind::I16 => 2,
                Kind::I32 => 4,
                Kind::I64 | Kind::F64 => 8,
                Kind::I128 | Kind::Text => 16,
            };
        }
        let width = offset.next_multiple_of(8) + trailer;
        Ok(RowLayout { columns, fields, width })
    }

    pub fn columns(&self) -> &[ColumnType] {
        &self.columns
    }

    /// Bytes of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Where the trailer begins.
    pub fn trailer(&self, trailer: usize) -> usize {
        self.width - trailer
    }

    /// Writes a column of rows that are being made. `rows`: of the vector, those that are written; all if `None`.
    ///
    /// # Safety
    ///
    /// The rows are of this layout and nobody else has them yet. As many as are written.
    unsafe fn scatter(
        &self,
        column: usize,
        vector: &Vector,
        rows: Option<&[u32]>,
        to: &[RowPtr],
        texts: &mut TextBlocks,
    ) -> Result<()> {
        let field = &self.fields[column];
        #[inline(always)]
        fn each<T: Copy>(values: &[T], rows: Option<&[u32]>, to: &[RowPtr], mut write: impl FnMut(RowPtr, T)) {
            match rows {
                None => values.iter().zip(to).for_each(|(value, row)| write(*row, *value)),
                Some(rows) => rows.iter().zip(to).for_each(|(index, row)| write(*row, values[*index as usize])),
            }
        }
        let offset = field.offset;
        // SAFETY: all writes below are of the field's kind at its offset, in rows that the caller vouches for.
        unsafe {
            match (&vector.values, field.kind) {
                (Values::Int(values), Kind::I8) => each(values, rows, to, |row, value| row.write(offset, value as i8)),
                (Values::Int(values), Kind::I16) => {
                    each(values, rows, to, |row, value| row.write(offset, value as i16))
                }
                (Values::Int(values), Kind::I32) => {
                    each(values, rows, to, |row, value| row.write(offset, value as i32))
                }
                (Values::Int(values), Kind::I64) => each(values, rows, to, |row, value| row.write(offset, value)),
                (Values::Wide(values), Kind::I128) => each(values, rows, to, |row, value| row.write(offset, value)),
                (Values::Float(values), Kind::F64) => each(values, rows, to, |row, value| row.write(offset, value)),
                (Values::Bool(values), Kind::Bool) => {
                    for (place, row) in to.iter().enumerate() {
                        let index = rows.map_or(place, |rows| rows[place] as usize);
                        row.write(offset, u8::from(values.get(index)));
                    }
                }
                (Values::Text(values), Kind::Text) => {
                    for (place, row) in to.iter().enumerate() {
                        let index = rows.map_or(place, |rows| rows[place] as usize);
                        let text = values.values()[index];
                        let valid = text.is_short() || vector.is_valid(index);
                        let kept = match (text.is_short(), valid) {
                            (true, _) => text,
                            (_, false) => Text::EMPTY,
                            _ => texts.keep(values.bytes(index))?,
                        };
                        row.write(offset, kept);
                    }
                }
                _ => return Err(Error::internal("a column of another class than its row's")),
            }
            if let (Some((at, bit)), Some(valid)) = (field.null, &vector.valid) {
                for (place, row) in to.iter().enumerate() {
                    let index = rows.map_or(place, |rows| rows[place] as usize);
                    if !valid.get(index) {
                        row.write(at, row.read::<u8>(at) | bit);
                    }
                }
            } else if vector.valid.is_some() {
                return Err(Error::internal("NULL in a column that has none"));
            }
        }
        Ok(())
    }

    /// A column of some rows; NULL for rows that are not there. `owners` hold what the rows' texts lie in.
    ///
    /// # Safety
    ///
    /// The rows that are there are of this layout, and nobody writes this column of theirs meanwhile.
    pub unsafe fn gather(&self, column: usize, rows: &[RowPtr], owners: &Owners) -> Vector {
        let field = &self.fields[column];
        #[inline(always)]
        fn each<T>(rows: &[RowPtr], missing: T, read: impl Fn(RowPtr) -> T) -> Vec<T>
        where
            T: Copy,
        {
            rows.iter().map(|row| if row.is_none() { missing } else { read(*row) }).collect()
        }
        let offset = field.offset;
        // SAFETY: all reads below are of the field's kind at its offset, in rows that the caller vouches for.
        let values = unsafe {
            match field.kind {
                Kind::I8 => Values::Int(each(rows, 0, |row| i64::from(row.read::<i8>(offset))).into()),
                Kind::I16 => Values::Int(each(rows, 0, |row| i64::from(row.read::<i16>(offset))).into()),
                Kind::I32 => Values::Int(each(rows, 0, |row| i64::from(row.read::<i32>(offset))).into()),
                Kind::I64 => Values::Int(each(rows, 0, |row| row.read::<i64>(offset)).into()),
                Kind::I128 => Values::Wide(each(rows, 0, |row| row.read::<i128>(offset)).into()),
                Kind::F64 => Values::Float(each(rows, 0.0, |row| row.read::<f64>(offset)).into()),
                Kind::Bool => {
                    Values::Bool(Mask::of_values(rows, |row: RowPtr| !row.is_none() && row.read::<u8>(offset) != 0))
                }
                Kind::Text => {
                    Values::Text(Texts::new(each(rows, Text::EMPTY, |row| row.read::<Text>(offset)), owners.clone()))
                }
            }
        };
        let missing = rows.iter().any(|row| row.is_none());
        let valid = match field.null {
            Some((at, bit)) => {
                Some(Mask::of_values(rows, |row: RowPtr| {
                    // SAFETY: the flag lies within the row.
                    !row.is_none() && unsafe { row.read::<u8>(at) & bit == 0 }
                }))
            }
            None if missing => Some(Mask::of_values(rows, |row: RowPtr| !row.is_none())),
            None => None,
        };
        Vector { values, valid: None }.with_valid(valid)
    }

    /// Where a column of `rows` of the vector is not the column of the stored row beside, `keep` becomes 0. NULL equals
    /// NULL if `nulls_equal`, else nothing.
    ///
    /// # Safety
    ///
    /// The stored rows are there and of this layout, and nobody writes this column of theirs meanwhile; so is what
    /// their texts lie in.
    pub unsafe fn compare(
        &self,
        column: usize,
        vector: &Vector,
        rows: &[u32],
        stored: &[RowPtr],
        nulls_equal: bool,
        keep: &mut [u8],
    ) -> Result<()> {
        let field = &self.fields[column];
        let offset = field.offset;
        #[inline(always)]
        fn each<T: Copy>(
            values: &[T],
            rows: &[u32],
            stored: &[RowPtr],
            keep: &mut [u8],
            equal: impl Fn(RowPtr, T) -> bool,
        ) {
            for ((keep, index), row) in keep.iter_mut().zip(rows).zip(stored) {
                *keep &= u8::from(equal(*row, values[*index as usize]));
            }
        }
        // SAFETY: all reads below are of the field's kind at its offset, in rows that the caller vouches for.
        unsafe {
            let nulls: Option<Vec<u8>> = (field.null.is_some() || vector.valid.is_some()).then(|| keep.to_vec());
            match (&vector.values, field.kind) {
                (Values::Int(values), Kind::I8) => {
                    each(values, rows, stored, keep, |row, value| i64::from(row.read::<i8>(offset)) == value);
                }
                (Values::Int(values), Kind::I16) => {
                    each(values, rows, stored, keep, |row, value| i64::from(row.read::<i16>(offset)) == value);
                }
                (Values::Int(values), Kind::I32) => {
                    each(values, rows, stored, keep, |row, value| i64::from(row.read::<i32>(offset)) == value);
                }
                (Values::Int(values), Kind::I64) => {
                    each(values, rows, stored, keep, |row, value| row.read::<i64>(offset) == value);
                }
                (Values::Wide(values), Kind::I128) => {
                    each(values, rows, stored, keep, |row, value| row.read::<i128>(offset) == value);
                }
                (Values::Float(values), Kind::F64) => each(values, rows, stored, keep, |row, value| {
                    float_bits(row.read::<f64>(offset)) == float_bits(value)
                }),
                (Values::Bool(values), Kind::Bool) => {
                    for ((keep, index), row) in keep.iter_mut().zip(rows).zip(stored) {
                        *keep &= u8::from((row.read::<u8>(offset) != 0) == values.get(*index as usize));
                    }
                }
                (Values::Text(values), Kind::Text) => {
                    // What a NULL of the vector's has in its place may point nowhere.
                    for ((keep, index), row) in keep.iter_mut().zip(rows).zip(stored) {
                        let valid = vector.is_valid(*index as usize);
                        *keep &= u8::from(valid && row.read::<Text>(offset).equals(&values.values()[*index as usize]));
                    }
                }
                _ => return Err(Error::internal("a key of another class than its row's")),
            }
            let Some(before) = nulls else { return Ok(()) };
            for (place, (index, row)) in rows.iter().zip(stored).enumerate() {
                let here = !vector.is_valid(*index as usize);
                let there = field.null.is_some_and(|(at, bit)| row.read::<u8>(at) & bit != 0);
                if here || there {
                    keep[place] = before[place] & u8::from(nulls_equal && here && there);
                }
            }
        }
        Ok(())
    }

    /// Whether a column of two stored rows is equal; NULL equals NULL.
    ///
    /// # Safety
    ///
    /// Both rows are there and of this layout, and nobody writes this column of theirs meanwhile; so is what their
    /// texts lie in.
    pub unsafe fn same(&self, column: usize, a: RowPtr, b: RowPtr) -> bool {
        let field = &self.fields[column];
        let offset = field.offset;
        // SAFETY: reads of the field's kind at its offset, in rows that the caller vouches for.
        unsafe {
            if let Some((at, bit)) = field.null {
                let nulls = (a.read::<u8>(at) & bit, b.read::<u8>(at) & bit);
                if nulls.0 | nulls.1 != 0 {
                    return nulls.0 == nulls.1;
                }
            }
            match field.kind {
                Kind::I8 | Kind::Bool => a.read::<u8>(offset) == b.read::<u8>(offset),
                Kind::I16 => a.read::<i16>(offset) == b.read::<i16>(offset),
                Kind::I32 => a.read::<i32>(offset) == b.read::<i32>(offset),
                Kind::I64 => a.read::<i64>(offset) == b.read::<i64>(offset),
                Kind::I128 => a.read::<i128>(offset) == b.read::<i128>(offset),
                Kind::F64 => float_bits(a.read(offset)) == float_bits(b.read(offset)),
                Kind::Text => a.read::<Text>(offset).equals(&b.read::<Text>(offset)),
            }
        }
    }
}

/// Bytes of text that rows point to. A block never moves.
#[derive(Debug, Default)]
struct TextBlocks {
    blocks: Vec<Vec<u8>>,
    holds: Vec<Hold>,
    observer: Observer,
    /// Of all texts.
    bytes: usize,
}

const TEXT_BLOCK_BYTES: usize = 64 << 10;

impl TextBlocks {
    /// A copy that stays where it is as long as the block does.
    fn keep(&mut self, bytes: &[u8]) -> Result<Text> {
        let fits = self.blocks.last().is_some_and(|block| block.capacity() - block.len() >= bytes.len());
        if !fits {
            let block = tidepool_heap::bulk(|| room::of_capacity(bytes.len().max(TEXT_BLOCK_BYTES)))?;
            self.holds.push(self.observer.hold_vec(&block));
            self.blocks.push(block);
        }
        let Some(block) = self.blocks.last_mut() else { unreachable!("just pushed") };
        let start = block.len();
        block.extend_from_slice(bytes);
        self.bytes += bytes.len();
        // SAFETY: the block has room, so it did not move, and never will: it is only appended to within its capacity.
        // Whoever has the row has the block (`Rows`).
        Ok(unsafe { Text::new(&block[start..]) })
    }
}

/// A block of rows, at a multiple of a cache line. Its bytes never move.
#[derive(Debug)]
struct Block {
    first: std::ptr::NonNull<u8>,
    bytes: usize,
    rows: usize,
    _hold: Hold,
}

// SAFETY: a block owns its bytes; who reads or writes rows of it by their addresses says why no other does so
// meanwhile.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// Of some bytes, more than 0.
    fn new(bytes: usize, observer: &Observer) -> Result<Block> {
        let layout = Block::layout(bytes);
        assert!(bytes > 0);
        // SAFETY: the layout has bytes.
        let allocate = || unsafe { std::alloc::alloc(layout) };
        let first = QueryHeap::with_room(bytes, || tidepool_heap::bulk(allocate))?;
        let Some(first) = std::ptr::NonNull::new(first) else { std::alloc::handle_alloc_error(layout) };
        let hold = observer.hold(first.as_ptr().addr(), bytes);
        Ok(Block { first, bytes, rows: 0, _hold: hold })
    }

    fn layout(bytes: usize) -> std::alloc::Layout {
        std::alloc::Layout::from_size_align(bytes, 64).unwrap_or_else(|_| panic!("a block of {bytes} bytes"))
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, of this layout.
        unsafe { std::alloc::dealloc(self.first.as_ptr(), Block::layout(self.bytes)) }
    }
}

/// Rows of one layout, in the order in which they were made.
#[derive(Debug)]
pub struct Rows {
    layout: Arc<RowLayout>,
    blocks: Vec<Block>,
    texts: TextBlocks,
    len: usize,
}

const BLOCK_BYTES_MIN: usize = 16 << 10;
const BLOCK_BYTES_MAX: usize = 1 << 20;
/// A block takes no more of the room that the heap has than one in so many.
const ROOM_SHARE: u64 = 256;

impl Rows {
    pub fn new(layout: Arc<RowLayout>) -> Rows {
        Rows::observed(layout, &Observer::default())
    }

    /// Whose memory is what an operator holds.
    pub fn observed(layout: Arc<RowLayout>, observer: &Observer) -> Rows {
        let texts = TextBlocks { observer: observer.clone(), ..TextBlocks::default() };
        Rows { layout, blocks: Vec::new(), texts, len: 0 }
    }

    /// Without rows, of the same layout and the same operator's.
    pub fn alike(&self) -> Rows {
        Rows::observed(Arc::clone(&self.layout), &self.texts.observer)
    }

    pub fn layout(&self) -> &Arc<RowLayout> {
        &self.layout
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        let blocks: usize = self.blocks.iter().map(|block| block.bytes).sum();
        blocks + self.texts.blocks.iter().map(Vec::capacity).sum::<usize>()
    }

    /// Bytes of its rows, and of the texts that lie beside them.
    pub fn used_bytes(&self) -> usize {
        self.len * self.layout.width + self.texts.bytes
    }

    /// Adds at most `count` rows whose bytes are yet to be written: where the first is, and how many.
    fn room(&mut self, count: usize) -> Result<(*mut u8, usize)> {
        let width = self.layout.width.max(1);
        if self.blocks.last().is_none_or(|block| block.bytes / width == block.rows) {
            let last = self.blocks.last().map_or(BLOCK_BYTES_MIN / 2, |block| block.bytes);
            // What turns out to be too much is a small part of what there is.
            let room = QueryHeap::room_bytes().map_or(BLOCK_BYTES_MAX, |room| (room / ROOM_SHARE) as usize);
            let most = room.clamp(BLOCK_BYTES_MIN, BLOCK_BYTES_MAX);
            let bytes = (last * 2).clamp(BLOCK_BYTES_MIN, most).max(width * 16);
            self.blocks.push(Block::new(bytes, &self.texts.observer)?);
        }
        let Some(block) = self.blocks.last_mut() else { unreachable!("it has room") };
        let take = count.min(block.bytes / width - block.rows);
        // SAFETY: there is room for `take` rows behind those there are, which nobody has yet.
        let first = unsafe { block.first.as_ptr().add(block.rows * width) };
        block.rows += take;
        self.len += take;
        Ok((first, take))
    }

    /// Adds rows of which all bytes are 0, and tells where they are.
    pub fn reserve(&mut self, count: usize, out: &mut Vec<RowPtr>) -> Result<()> {
        room::grow(out, count)?;
        let width = self.layout.width;
        let mut left = count;
        while left > 0 {
            let (first, take) = self.room(left)?;
            // SAFETY: these rows are new.
            unsafe { first.write_bytes(0, take * width) };
            // SAFETY: each row lies within the block.
            out.extend((0..take).map(|row| RowPtr(unsafe { first.add(row * width) })));
            left -= take;
        }
        Ok(())
    }

    /// Adds rows of some columns, of all `rows` of them or of those named. What is beside the columns is 0. Appends
    /// where they are.
    pub fn append(
        &mut self,
        columns: &[&Vector],
        rows: Option<&[u32]>,
        count: usize,
        out: &mut Vec<RowPtr>,
    ) -> Result<()> {
        let first = out.len();
        self.reserve(rows.map_or(count, <[u32]>::len), out)?;
        let layout = Arc::clone(&self.layout);
        for (column, vector) in columns.iter().enumerate() {
            // SAFETY: made just now, of this layout.
            unsafe { layout.scatter(column, vector, rows, &out[first..], &mut self.texts)? };
        }
        Ok(())
    }

    /// Adds copies of rows of the same layout, all of their bytes. What their texts lie in stays theirs.
    ///
    /// # Safety
    ///
    /// The rows are there, none of them is of `self`, and nobody writes them meanwhile.
    pub unsafe fn copy(&mut self, from: &[RowPtr]) -> Result<()> {
        /// # Safety
        ///
        /// As many rows of `width` bytes may be written from `to` on.
        #[inline(always)]
        unsafe fn each(from: &[RowPtr], to: *mut u8, width: usize) {
            for (index, from) in from.iter().enumerate() {
                // SAFETY: the caller's word.
                unsafe { std::ptr::copy_nonoverlapping(from.0, to.add(index * width), width) };
            }
        }
        let mut left = from;
        while !left.is_empty() {
            let (to, take) = self.room(left.len())?;
            let (now, rest) = left.split_at(take);
            // Known widths are copied in place.
            // SAFETY: there is room for them; the rows are the caller's.
            unsafe {
                match self.layout.width {
                    16 => each(now, to, 16),
                    24 => each(now, to, 24),
                    32 => each(now, to, 32),
                    40 => each(now, to, 40),
                    48 => each(now, to, 48),
                    64 => each(now, to, 64),
                    width => each(now, to, width),
                }
            }
            left = rest;
        }
        Ok(())
    }

    /// Forgets its rows. What their texts lie in stays, for copies of them.
    pub fn clear(&mut self) {
        self.blocks.drain(..self.blocks.len().saturating_sub(1));
        if let Some(block) = self.blocks.last_mut() {
            block.rows = 0;
        }
        self.len = 0;
    }

    /// Where its rows are, block by block: the first row of each, and how many there are.
    pub fn blocks(&self) -> impl Iterator<Item = (RowPtr, usize)> + '_ {
        self.blocks.iter().map(|block| (RowPtr(block.first.as_ptr()), block.rows))
    }

    /// All rows, in order.
    pub fn pointers(&self) -> Result<Vec<RowPtr>> {
        room::collected(self.len, pointers(self.blocks(), self.layout.width))
    }

    /// No more is added: what the texts lie in can be shared. The rows stay where they are.
    pub fn freeze(self) -> FrozenRows {
        let buffers = self.texts.blocks.into_iter().map(Buffer::from_vec).collect();
        let owners = Owners::of(buffers);
        FrozenRows { layout: self.layout, blocks: self.blocks, len: self.len, owners, _text_holds: self.texts.holds }
    }
}

/// The rows of blocks, each `width` bytes long.
fn pointers(blocks: impl Iterator<Item = (RowPtr, usize)>, width: usize) -> impl Iterator<Item = RowPtr> {
    // SAFETY: within the block.
    blocks.flat_map(move |(first, rows)| (0..rows).map(move |row| RowPtr(unsafe { first.0.add(row * width) })))
}

/// Rows to which no more are added. Their columns stay; a header or trailer may be written by whoever has them.
#[derive(Debug)]
pub struct FrozenRows {
    layout: Arc<RowLayout>,
    blocks: Vec<Block>,
    len: usize,
    owners: Owners,
    _text_holds: Vec<Hold>,
}

impl FrozenRows {
    pub fn layout(&self) -> &Arc<RowLayout> {
        &self.layout
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What the rows' texts lie in.
    pub fn owners(&self) -> &Owners {
        &self.owners
    }

    pub fn blocks(&self) -> impl Iterator<Item = (RowPtr, usize)> + '_ {
        self.blocks.iter().map(|block| (RowPtr(block.first.as_ptr()), block.rows))
    }

    /// All rows, in order.
    pub fn pointers(&self) -> Result<Vec<RowPtr>> {
        room::collected(self.len, pointers(self.blocks(), self.layout.width))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{ArrayRef, BooleanArray, Float64Array, Int64Array, StringViewArray};
    use arrow_schema::DataType;

    #[test]
    fn columns_come_back() {
        let rows = 5000usize;
        let text = |row: usize| (!row.is_multiple_of(7)).then(|| "x".repeat(row % 30));
        let arrays: Vec<ArrayRef> = vec![
            Arc::new((0..rows).map(|row| (row % 5 > 0).then_some(row as i64 % 100)).collect::<Int64Array>()),
            Arc::new((0..rows).map(|row| Some(row as i64 * 1_000_000_007)).collect::<Int64Array>()),
            Arc::new((0..rows).map(|row| (row % 3 > 0).then_some(row as f64)).collect::<Float64Array>()),
            Arc::new((0..rows).map(|row| (row % 4 > 0).then_some(row % 2 == 0)).collect::<BooleanArray>()),
            Arc::new((0..rows).map(text).collect::<StringViewArray>()),
        ];
        let types = vec![
            ColumnType::new(DataType::Int64, true).within((0, 99)),
            ColumnType::new(DataType::Int64, false),
            ColumnType::new(DataType::Float64, true),
            ColumnType::new(DataType::Boolean, true),
            ColumnType::new(DataType::Utf8View, true),
        ];
        let vectors: Vec<Vector> =
            arrays.iter().zip(&types).map(|(array, of)| Vector::from_arrow(array, of).unwrap()).collect();
        let layout = Arc::new(RowLayout::new(types.clone(), 8, 8).unwrap());
        let mut stored = Rows::new(layout.clone());
        let mut pointers = Vec::new();
        let columns: Vec<&Vector> = vectors.iter().collect();
        stored.append(&columns, None, rows, &mut pointers).unwrap();
        let odd: Vec<u32> = (0..rows as u32).filter(|row| row % 2 == 1).collect();
        stored.append(&columns, Some(&odd), rows, &mut pointers).unwrap();
        assert_eq!(stored.pointers().unwrap(), pointers);
        let all: Vec<u32> = (0..rows as u32).chain(odd).collect();
        for (column, vector) in vectors.iter().enumerate() {
            let mut keep = vec![1; all.len()];
            // SAFETY: made above, of this layout.
            unsafe { layout.compare(column, vector, &all, &pointers, true, &mut keep).unwrap() };
            assert!(keep.iter().all(|keep| *keep == 1), "column {column}");
            let mut shifted = all.clone();
            shifted.rotate_left(1);
            let mut keep = vec![1; all.len()];
            // SAFETY: as above.
            unsafe { layout.compare(column, vector, &shifted, &pointers, false, &mut keep).unwrap() };
            let expected =
                arrow_select::take::take(&arrays[column], &arrow_array::UInt32Array::from(all.clone()), None).unwrap();
            let moved =
                arrow_select::take::take(&arrays[column], &arrow_array::UInt32Array::from(shifted), None).unwrap();
            for (row, keep) in keep.iter().enumerate() {
                use arrow_array::Array;
                let equal = !expected.is_null(row)
                    && !moved.is_null(row)
                    && expected.slice(row, 1).as_ref() == moved.slice(row, 1).as_ref();
                assert_eq!(*keep == 1, equal, "column {column}, row {row}");
            }
        }
        let frozen = stored.freeze();
        pointers.push(RowPtr::NONE);
        let wanted: Vec<Option<u32>> = all.iter().map(|row| Some(*row)).chain([None]).collect();
        for (column, of) in types.iter().enumerate() {
            // SAFETY: as above.
            let back = unsafe { layout.gather(column, &pointers, frozen.owners()) };
            let expected =
                arrow_select::take::take(&arrays[column], &arrow_array::UInt32Array::from(wanted.clone()), None)
                    .unwrap();
            assert_eq!(&back.to_arrow(of).unwrap(), &expected, "column {column}");
        }
    }
}
