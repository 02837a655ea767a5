//! Versions: a header and a row image, in memory of the delta's tablespace.
//!
//! ```text
//!  0  begin    u64, a commit timestamp or the tag of who wrote it (`tidepool_txn::Tag`)
//!  8  older    u64, address of the version that this one replaced; zero: main has it, or there was none
//! 16  command  u32, of its transaction
//! 20  meta     u32, length of the image (28 bits) and flags
//! 24  image
//! ```
//!
//! Only `begin` ever changes: to a timestamp, once. A version is taken out of reach by what points at it, and `older`
//! is not followed from a version that every snapshot sees, so what it points at then may be gone.

use super::memory::{BLOCK_ALIGN, VersionMemory};
use super::sync::{AtomicPtr, AtomicU64, Witness, prefetch};
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use tidepool_base::Result;

#[repr(C)]
#[derive(Debug)]
pub(crate) struct Header {
    pub begin: AtomicU64,
    older: *mut Header,
    command: u32,
    meta: u32,
    witness: Witness,
}

pub(crate) const HEADER_BYTES: usize = size_of::<Header>();
const LINE_BYTES: usize = 64;
const LEN_MASK: u32 = (1 << 28) - 1;
const _: () = assert!((cfg!(loom) || HEADER_BYTES == 24) && super::IMAGE_BYTES_MAX <= 1 << 28);

/// What a version is. Exhaustive and mutually exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    /// Holds the row's image.
    Row = 0,
    /// The row is not there any more.
    Deleted = 1,
    /// Only locks the row: readers go on to the older version.
    Lock = 2,
}

/// What a version leaves of the keys that its row had. Exhaustive and mutually exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Keys {
    /// Perhaps nothing.
    Change = 0,
    /// Those that others may refer to.
    LeaveUnique = 1,
    /// Those of all indexes.
    Leave = 3,
}

/// A version somewhere. That it may be looked at is for whoever has it to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version(NonNull<Header>);

// SAFETY: an address; what is done with it is unsafe, and says what it needs.
unsafe impl Send for Version {}
// SAFETY: as above.
unsafe impl Sync for Version {}

impl Version {
    #[inline]
    pub fn address(self) -> usize {
        self.0.as_ptr().addr()
    }

    /// Asks the processor to fetch what short rows have of it.
    #[inline]
    pub fn prefetch(self) {
        prefetch(self.0.as_ptr());
        prefetch(self.0.as_ptr().cast::<u8>().wrapping_add(LINE_BYTES));
    }

    /// Writes a new version, which nobody else can reach yet. `begin`: a tag's word, or a timestamp. `keys`: what becomes of the row's keys; where the unique ones are as they were,
    /// which those who locked only the key do not mind. 53200 when the memory is full.
    pub fn write(
        memory: &VersionMemory,
        shard: usize,
        begin: u64,
        command: u32,
        (kind, keys): (Kind, Keys),
        older: Option<Version>,
        image: &[u8],
    ) -> Result<Version> {
        debug_assert!(image.len() <= LEN_MASK as usize);
        let len = HEADER_BYTES + image.len();
        let block = memory.allocate(shard, len)?;
        let header = block.cast::<Header>();
        let meta = image.len() as u32 | (kind as u32) << 28 | (keys as u32) << 30;
        // SAFETY: the block was just taken: it is this function's alone, aligned to 32, and as long as header and
        // image.
        unsafe {
            header.write(Header {
                begin: AtomicU64::new(begin),
                older: older.map_or(std::ptr::null_mut(), |older| older.0.as_ptr()),
                command,
                meta,
                witness: Witness::written(),
            });
            block.add(HEADER_BYTES).copy_from_nonoverlapping(NonNull::from(image).cast(), image.len());
        }
        memory.charge_write(len);
        Ok(Version(header))
    }

    /// # Safety
    /// The version is alive for `'v`: the caller found it under a view that lasts as long, or wrote it and has not
    /// retired it.
    #[inline]
    pub unsafe fn header<'v>(self) -> &'v Header {
        // SAFETY: written before it was published, and alive.
        let header = unsafe { self.0.as_ref() };
        header.witness.read();
        header
    }

    /// # Safety
    /// As `header`.
    #[inline]
    pub unsafe fn image<'v>(self) -> &'v [u8] {
        // SAFETY: the caller's. The image lies behind the header in the same block, and never changes.
        unsafe {
            let len = self.header().image_len();
            std::slice::from_raw_parts(self.0.cast::<u8>().add(HEADER_BYTES).as_ptr(), len)
        }
    }

    /// # Safety
    /// Nobody can reach it any more, and it is freed once.
    pub unsafe fn free(self, memory: &VersionMemory) {
        // SAFETY: the caller's. It was allocated with this length.
        unsafe {
            let bytes = self.header().bytes();
            self.0.as_ref().witness.freed();
            memory.free(self.0.cast(), bytes);
        }
    }

    /// By a thread that writes versions with that `shard`.
    ///
    /// # Safety
    /// As `free`, and `bytes` are its header's.
    #[inline]
    pub unsafe fn free_bytes(self, memory: &VersionMemory, shard: usize, bytes: usize) {
        // SAFETY: the caller's. It was allocated with this length.
        unsafe {
            self.0.as_ref().witness.freed();
            memory.free_by(shard, self.0.cast(), bytes);
        }
    }

    /// As a word whose low bits are `mark`.
    pub fn marked(self, mark: u64) -> u64 {
        debug_assert!(mark < BLOCK_ALIGN as u64);
        self.0.as_ptr().expose_provenance() as u64 | mark
    }

    /// From `marked`.
    pub fn of_marked(word: u64) -> (Version, u64) {
        let mask = BLOCK_ALIGN as u64 - 1;
        let pointer = std::ptr::with_exposed_provenance_mut::<Header>((word & !mask) as usize);
        (Version(NonNull::new(pointer).expect("a version's address")), word & mask)
    }
}

impl Header {
    #[inline]
    pub fn older(&self) -> Option<Version> {
        NonNull::new(self.older).map(Version)
    }

    #[inline]
    pub fn command(&self) -> u32 {
        self.command
    }

    #[inline]
    pub fn kind(&self) -> Kind {
        match self.meta >> 28 & 3 {
            0 => Kind::Row,
            1 => Kind::Deleted,
            _ => Kind::Lock,
        }
    }

    #[inline]
    pub fn leaves_key(&self) -> bool {
        self.meta >> 30 & 1 != 0
    }

    /// Its row has the same keys in all indexes as the version that it replaced: that one's entries are this one's.
    #[inline]
    pub fn keeps_entries(&self) -> bool {
        self.meta >> 31 != 0
    }

    #[inline]
    fn image_len(&self) -> usize {
        (self.meta & LEN_MASK) as usize
    }

    /// Of header and image.
    #[inline]
    pub fn bytes(&self) -> usize {
        HEADER_BYTES + self.image_len()
    }
}

/// In a head: it is being taken out. Nobody may put anything there until it is null; readers take it for null.
const TAKING_OUT: *mut Header = std::ptr::without_provenance_mut(8);

/// In a head, beside the number of a tuple above it: the row is in the pod. As `TAKING_OUT`, it is below what versions are
/// aligned to.
const IN_POD: usize = 16;
const TUPLE_SHIFT: u32 = BLOCK_ALIGN.trailing_zeros();

/// A row's newest version.
#[derive(Debug, Default)]
#[repr(transparent)]
pub(crate) struct Head(AtomicPtr<Header>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Main has the row, if there is one.
    Null,
    TakingOut,
    Version(Version),
    /// The pod has the row, in this tuple.
    Pod(u32),
}

impl Head {
    #[inline]
    pub fn load(&self) -> Found {
        // Acquire: what is behind the pointer was written before.
        let pointer = self.0.load(Ordering::Acquire);
        // One comparison for what is no version.
        if pointer.addr() & (BLOCK_ALIGN - 1) != 0 {
            return if pointer == TAKING_OUT {
                Found::TakingOut
            } else {
                Found::Pod((pointer.addr() >> TUPLE_SHIFT) as u32)
            };
        }
        NonNull::new(pointer).map_or(Found::Null, |header| Found::Version(Version(header)))
    }

    fn pointer(version: Option<Version>) -> *mut Header {
        version.map_or(std::ptr::null_mut(), |version| version.0.as_ptr())
    }

    /// Puts `new` in the place of `old`, if that is there.
    #[inline]
    pub fn replace(&self, old: Option<Version>, new: Version) -> bool {
        self.0.compare_exchange(Self::pointer(old), new.0.as_ptr(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Puts back what was there before: for whoever's version is there, which nobody else may replace.
    pub fn restore(&self, before: Option<Version>) {
        self.0.store(Self::pointer(before), Ordering::Release);
    }

    /// Puts a tuple of the pod in the place of `old`, if that is there.
    pub fn move_in(&self, old: Option<Version>, tuple: u32) -> bool {
        let new = std::ptr::without_provenance_mut((tuple as usize) << TUPLE_SHIFT | IN_POD);
        self.0.compare_exchange(Self::pointer(old), new, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Begins to take `version` out.
    pub fn begin_taking_out(&self, version: Version) -> bool {
        self.0.compare_exchange(version.0.as_ptr(), TAKING_OUT, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// As `begin_taking_out`, where there is nothing: so that nothing comes.
    pub fn begin_taking_away(&self) -> bool {
        let null = std::ptr::null_mut();
        self.0.compare_exchange(null, TAKING_OUT, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    pub fn end_taking_out(&self) {
        // Release: whoever puts a version here sees what was done meanwhile.
        self.0.store(std::ptr::null_mut(), Ordering::Release);
    }
}
