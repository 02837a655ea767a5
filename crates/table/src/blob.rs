//! The container of a segment: a header, sections at 64-byte boundaries, and a tree that says what they are.
//!
//! Little endian, position independent:
//!
//! ```text
//!  0  magic "TIDESEG\0"
//!  8  format version, u32
//! 12  rows, u32
//! 16  checksum, u64: XXH3 of bytes 0..16 and of all from byte 24 on
//! 24  length of the whole blob, u64
//! 32  offset of the tree, u64; it reaches to the end of the blob
//! 40  null count, u32
//! 44  logical type: tag u8, two parameters u8, zero u8
//! 48  bytes of the same values as plain Arrow, u64
//! 56  zero, u64
//! 64  sections, each at a multiple of 64
//!  …  the tree: statistics, then validity, then the encoding, each a tag and its parameters, a section being named by
//!     its offset and length (u64 each)
//! ```
//!
//! Whatever is read from a blob is checked against the blob's bounds here and against each other in `encoding`, so that
//! no blob, however made, can make a reader panic or leave its bytes.

use arrow_buffer::Buffer;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::ptr::NonNull;
use std::sync::Arc;
use tidepool_base::{Error, Result};
use tidepool_tablespace::Region;
use xxhash_rust::xxh3::Xxh3Default;

pub(crate) const ALIGNMENT: usize = 64;
pub(crate) const HEADER_BYTES: usize = 64;
const MAGIC: &[u8; 8] = b"TIDESEG\0";
const FORMAT_VERSION: u32 = 1;

/// Types without padding and without forbidden bit patterns.
///
/// # Safety
/// Every bit pattern of the type's size is a value of it, and it has no padding.
pub(crate) unsafe trait Plain: Copy + Default + 'static {}
macro_rules! plain {
    ($($t:ty),*) => { $(
        // SAFETY: primitive numbers have no padding and no invalid values.
        unsafe impl Plain for $t {}
    )* };
}
plain!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128, f32, f64);

/// The bytes as values. Panics unless they are aligned and whole, which sections are checked for when they are read.
#[inline]
pub(crate) fn cast_slice<T: Plain>(bytes: &[u8]) -> &[T] {
    assert!(bytes.as_ptr().cast::<T>().is_aligned() && bytes.len().is_multiple_of(size_of::<T>()));
    // SAFETY: alignment and length were just checked, and `Plain` admits any bits.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<T>(), bytes.len() / size_of::<T>()) }
}

/// The values as bytes.
#[inline]
pub(crate) fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: `Plain` types have no padding, so all their bytes are initialised.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) }
}

/// A run of a blob's bytes, known to lie within it and to be aligned for the type it was read as.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Section {
    pub offset: usize,
    pub len: usize,
}

impl Section {
    /// Part of the section, in bytes from its start.
    pub fn part(self, offset: usize, len: usize) -> Section {
        debug_assert!(offset + len <= self.len);
        Section { offset: self.offset + offset, len }
    }
}

/// A blob's bytes, at rest in a region.
#[derive(Debug)]
pub(crate) struct Blob {
    region: Region,
    len: usize,
}

// The bytes never change once a blob is made, so a panic elsewhere cannot leave them half written.
impl RefUnwindSafe for Blob {}
impl UnwindSafe for Blob {}

impl Blob {
    /// `region`'s first `len` bytes.
    pub fn new(region: Region, len: usize) -> Result<Arc<Blob>> {
        if len > region.len() || !region.as_ptr().addr().is_multiple_of(ALIGNMENT) {
            return Err(Error::internal("a segment's region is too short or not aligned"));
        }
        Ok(Arc::new(Blob { region, len }))
    }

    pub fn region(&self) -> &Region {
        &self.region
    }

    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.region[..self.len]
    }

    #[inline]
    pub fn slice<T: Plain>(&self, section: Section) -> &[T] {
        cast_slice(&self.region[section.offset..section.offset + section.len])
    }

    /// The section as an Arrow buffer that keeps the blob alive, without a copy.
    pub fn buffer(self: &Arc<Self>, section: Section) -> Buffer {
        let bytes: &[u8] = self.slice(section);
        if bytes.is_empty() {
            return Buffer::from_vec(Vec::<u8>::new());
        }
        let start = NonNull::from(bytes).cast::<u8>();
        // SAFETY: the bytes lie in the region, which does not move or change and lives as long as this blob, which the
        // buffer keeps alive.
        unsafe { Buffer::from_custom_allocation(start, section.len, Arc::clone(self) as _) }
    }
}

/// What the fixed header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub rows: usize,
    pub null_count: usize,
    pub logical_type: [u8; 3],
    pub raw_bytes: u64,
}

fn checksum(blob: &[u8]) -> u64 {
    let mut hasher = Xxh3Default::new();
    hasher.update(&blob[..16]);
    hasher.update(&blob[24..]);
    hasher.digest()
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes[offset..offset + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().expect("eight bytes"))
}

/// XXH3 of all that is read to open a blob, the checksum of the whole included: where this is known to be right, the rest
/// can be checked later. XX001 when it is no blob.
pub(crate) fn head_checksum(blob: &[u8]) -> Result<u64> {
    open(blob)?;
    let mut hasher = Xxh3Default::new();
    hasher.update(&blob[..HEADER_BYTES]);
    hasher.update(&blob[u64_at(blob, 32) as usize..]);
    Ok(hasher.digest())
}

/// The checksum that a blob, which was opened, has of itself.
pub(crate) fn written_checksum(blob: &[u8]) -> u64 {
    u64_at(blob, 16)
}

/// XX001 when the checksum is not that of the bytes.
pub(crate) fn verify_checksum(blob: &[u8]) -> Result<()> {
    if blob.len() < HEADER_BYTES || u64_at(blob, 16) != checksum(blob) {
        return Err(Error::corrupted("segment checksum mismatch"));
    }
    Ok(())
}

/// The header and a reader of the tree, or XX001.
pub(crate) fn open(blob: &[u8]) -> Result<(Header, TreeReader<'_>)> {
    if blob.len() < HEADER_BYTES || &blob[..8] != MAGIC {
        return Err(Error::corrupted("not a segment"));
    }
    let version = u32_at(blob, 8);
    if version != FORMAT_VERSION {
        return Err(Error::corrupted(format!("segment format {version} is not one that this version reads")));
    }
    if u64_at(blob, 24) != blob.len() as u64 {
        return Err(Error::corrupted("segment is not as long as it says"));
    }
    let tree_offset = usize::try_from(u64_at(blob, 32)).unwrap_or(usize::MAX);
    if !(HEADER_BYTES..=blob.len()).contains(&tree_offset) {
        return Err(Error::corrupted("segment's tree lies outside of it"));
    }
    let header = Header {
        rows: u32_at(blob, 12) as usize,
        null_count: u32_at(blob, 40) as usize,
        logical_type: [blob[44], blob[45], blob[46]],
        raw_bytes: u64_at(blob, 48),
    };
    if header.null_count > header.rows || header.rows > crate::ROW_GROUP_ROWS {
        return Err(Error::corrupted("segment has impossible row counts"));
    }
    Ok((header, TreeReader { tree: &blob[tree_offset..], sections_end: tree_offset }))
}

/// Gathers a blob's sections and its tree.
#[derive(Debug)]
pub(crate) struct BlobWriter {
    bytes: Vec<u8>,
    tree: Vec<u8>,
}

impl BlobWriter {
    pub fn new() -> BlobWriter {
        BlobWriter { bytes: vec![0; HEADER_BYTES], tree: Vec::new() }
    }

    pub fn u8(&mut self, value: u8) {
        self.tree.push(value);
    }

    pub fn u64(&mut self, value: u64) {
        self.tree.extend_from_slice(&value.to_le_bytes());
    }

    pub fn i64(&mut self, value: i64) {
        self.tree.extend_from_slice(&value.to_le_bytes());
    }

    pub fn i128(&mut self, value: i128) {
        self.tree.extend_from_slice(&value.to_le_bytes());
    }

    /// Bytes within the tree itself, for what is small and read once.
    pub fn inline_bytes(&mut self, bytes: &[u8]) {
        self.u64(bytes.len() as u64);
        self.tree.extend_from_slice(bytes);
    }

    pub fn section<T: Plain>(&mut self, values: &[T]) {
        const { assert!(cfg!(target_endian = "little"), "sections are written as they lie in memory") };
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
        let bytes = bytes_of(values);
        self.u64(self.bytes.len() as u64);
        self.u64(bytes.len() as u64);
        self.bytes.extend_from_slice(bytes);
    }

    pub fn finish(mut self, header: Header) -> Vec<u8> {
        let tree_offset = self.bytes.len() as u64;
        self.bytes.extend_from_slice(&self.tree);
        let length = self.bytes.len() as u64;
        let bytes = &mut self.bytes;
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&(header.rows as u32).to_le_bytes());
        bytes[24..32].copy_from_slice(&length.to_le_bytes());
        bytes[32..40].copy_from_slice(&tree_offset.to_le_bytes());
        bytes[40..44].copy_from_slice(&(header.null_count as u32).to_le_bytes());
        bytes[44..47].copy_from_slice(&header.logical_type);
        bytes[48..56].copy_from_slice(&header.raw_bytes.to_le_bytes());
        seal(bytes);
        self.bytes
    }
}

/// Writes the checksum of what the blob holds now.
pub(crate) fn seal(blob: &mut [u8]) {
    let sum = checksum(blob);
    blob[16..24].copy_from_slice(&sum.to_le_bytes());
}

/// Reads a tree front to back; every answer is XX001 where the tree ends early or names bytes outside the sections.
#[derive(Debug)]
pub(crate) struct TreeReader<'a> {
    tree: &'a [u8],
    sections_end: usize,
}

impl<'a> TreeReader<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let (head, tail) =
            self.tree.split_at_checked(len).ok_or_else(|| Error::corrupted("segment's tree ends early"))?;
        self.tree = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.bytes(N)?.try_into().expect("as many bytes as were asked for"))
    }

    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.bytes(1)?[0])
    }

    pub fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn i64(&mut self) -> Result<i64> {
        self.array().map(i64::from_le_bytes)
    }

    pub fn i128(&mut self) -> Result<i128> {
        self.array().map(i128::from_le_bytes)
    }

    pub fn inline_bytes(&mut self) -> Result<&'a [u8]> {
        let len = usize::try_from(self.u64()?).unwrap_or(usize::MAX);
        self.bytes(len)
    }

    /// A section of whole values of type `T`.
    pub fn section<T: Plain>(&mut self) -> Result<Section> {
        let (offset, len) = (self.u64()?, self.u64()?);
        let inside = offset >= HEADER_BYTES as u64
            && offset % ALIGNMENT as u64 == 0
            && offset.checked_add(len).is_some_and(|end| end <= self.sections_end as u64);
        if !inside || len % size_of::<T>() as u64 != 0 {
            return Err(Error::corrupted("segment's section lies outside of it"));
        }
        Ok(Section { offset: offset as usize, len: len as usize })
    }

    /// A section of exactly `count` values of type `T`.
    pub fn section_of<T: Plain>(&mut self, count: usize) -> Result<Section> {
        let section = self.section::<T>()?;
        if section.len != count * size_of::<T>() {
            return Err(Error::corrupted("segment's section has the wrong length"));
        }
        Ok(section)
    }

    pub fn end(self) -> Result<()> {
        if self.tree.is_empty() { Ok(()) } else { Err(Error::corrupted("segment's tree has more than it should")) }
    }
}
