//! A pod's memory as this process has it mapped.

#![allow(unsafe_code, reason = "words and lines of mappings, whose proofs are here")]

use crate::access::{Access, Fence, Line, LineBytes, Lines, Part, WordAt};
use crate::layout::Layout;
use std::convert::Infallible;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use tidepool_base::{Error, Result, SqlState};
use tidepool_device::{LINE_BYTES, Mapping, discard_lines, fence_lines, write_back_lines};
use tidepool_pool::pool::Pool;
use tidepool_pool::words::Extent;

const WORDS_OF_LINE: usize = LINE_BYTES / 8;

/// What keeps bytes mapped.
enum Keeper {
    Mapping(Arc<Mapping>),
    Pool(Arc<Pool>),
}

impl Keeper {
    /// Where the bytes begin that it keeps, and how many there are.
    fn place(&self, extent: Option<Extent>) -> Option<(NonNull<u8>, usize)> {
        match (self, extent) {
            (Keeper::Mapping(mapping), None) => Some((mapping.base(), mapping.len())),
            (Keeper::Pool(pool), Some(extent)) => pool.books().memory.extent(extent),
            _ => None,
        }
    }
}

/// Bytes for one of a pod's areas: a part of an extent of a pool, or of a mapping of this process.
pub struct Area {
    base: NonNull<u8>,
    len: usize,
    _keeper: Keeper,
}

// SAFETY: the bytes are mapped as long as the keeper is there, and are used as atomic words alone.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl fmt::Debug for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Area({} bytes)", self.len)
    }
}

impl Area {
    /// # Safety
    /// All processes that have the bytes mapped use them by [`Mapped`] alone, or not at all.
    pub unsafe fn of_mapping(mapping: Arc<Mapping>, range: Range<usize>) -> Result<Area> {
        Area::new(Keeper::Mapping(mapping), None, range)
    }

    /// # Safety
    /// As of `of_mapping`; and the pod is the extent's owner in the pool's books.
    pub unsafe fn of_extent(pool: Arc<Pool>, extent: Extent, range: Range<usize>) -> Result<Area> {
        Area::new(Keeper::Pool(pool), Some(extent), range)
    }

    fn new(keeper: Keeper, extent: Option<Extent>, range: Range<usize>) -> Result<Area> {
        let wrong = |what: &str| {
            let text = format!("bytes {} to {} are no area of a pod: {what}", range.start, range.end);
            Error::new(SqlState::INVALID_PARAMETER_VALUE, text)
        };
        let (base, len) = keeper.place(extent).ok_or_else(|| wrong("their device is away"))?;
        if range.start > range.end || range.end > len {
            return Err(wrong("they are not all mapped"));
        }
        if !base.addr().get().is_multiple_of(LINE_BYTES) || !range.start.is_multiple_of(LINE_BYTES) {
            return Err(wrong("they do not begin with a line"));
        }
        // SAFETY: inside what is mapped, as was just compared.
        let base = unsafe { base.add(range.start) };
        Ok(Area { base, len: (range.end - range.start) / LINE_BYTES * LINE_BYTES, _keeper: keeper })
    }

    /// # Panics
    /// Where the area does not have these words.
    fn words(&self, first: usize, count: usize) -> &[AtomicU64] {
        let words = self.len / 8;
        assert!(first <= words && count <= words - first, "{count} words at {first} of {words}");
        // SAFETY: inside the area, which is mapped as long as `self`, and aligned, as it begins with a line. All use it as atomic
        // words alone, by the promise that the area was made with.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(first * 8).cast(), count) }
    }

    fn lines(&self, lines: Lines) -> (&[AtomicU64], NonNull<u8>) {
        let words = self.words(lines.first.0 as usize * WORDS_OF_LINE, lines.count as usize * WORDS_OF_LINE);
        (words, NonNull::from(words).cast())
    }
}

/// The two areas of a pod.
#[derive(Debug)]
pub struct Mapped {
    coherent: Area,
    other: Area,
}

impl Mapped {
    /// The areas, if they have room for the layout. New ones are all zeroes.
    pub fn new(layout: Layout, coherent: Area, other: Area) -> Result<Mapped> {
        let needed = [layout.coherent_bytes(), layout.lines() * LINE_BYTES as u64];
        for (area, needed) in [&coherent, &other].into_iter().zip(needed) {
            if (area.len as u64) < needed {
                return Err(Error::new(
                    SqlState::DISK_FULL,
                    format!("an area of a pod has {} bytes and needs {needed}", area.len),
                ));
            }
        }
        Ok(Mapped { coherent, other })
    }

    fn word(&self, at: WordAt) -> &AtomicU64 {
        &self.coherent.words(at.0 as usize, 1)[0]
    }
}

impl Access for Mapped {
    type Stop = Infallible;

    fn load(&self, at: WordAt) -> Result<u64, Infallible> {
        Ok(self.word(at).load(Ordering::Acquire))
    }

    fn swap(&self, at: WordAt, from: u64, to: u64) -> Result<Result<(), u64>, Infallible> {
        Ok(self.word(at).compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).map(drop))
    }

    fn write_back_word(&self, at: WordAt) -> Result<(), Infallible> {
        let line = at.0 as usize / WORDS_OF_LINE * WORDS_OF_LINE;
        let words = self.coherent.words(line, WORDS_OF_LINE);
        // SAFETY: a line of the area, which begins with a line and is mapped.
        unsafe { write_back_lines(NonNull::from(words).cast(), LINE_BYTES) };
        Ok(())
    }

    fn fill(&self, line: Line, bytes: &LineBytes) -> Result<(), Infallible> {
        let (words, _) = self.other.lines(Lines { first: line, count: 1 });
        for (word, eight) in words.iter().zip(bytes.as_chunks::<8>().0) {
            word.store(u64::from_le_bytes(*eight), Ordering::Release);
        }
        Ok(())
    }

    fn put(&self, line: Line, bits: u64) -> Result<(), Infallible> {
        self.other.lines(Lines { first: line, count: 1 }).0[0].store(bits, Ordering::Release);
        Ok(())
    }

    fn fetch(&self, line: Line, into: &mut LineBytes) -> Result<(), Infallible> {
        let (words, _) = self.other.lines(Lines { first: line, count: 1 });
        for (word, eight) in words.iter().zip(into.as_chunks_mut::<8>().0) {
            *eight = word.load(Ordering::Relaxed).to_le_bytes();
        }
        Ok(())
    }

    fn write_back(&self, lines: Lines) -> Result<(), Infallible> {
        let (_, first) = self.other.lines(lines);
        // SAFETY: lines of the area, which begins with a line and is mapped.
        unsafe { write_back_lines(first, lines.bytes()) };
        Ok(())
    }

    fn discard(&self, lines: Lines, _part: Part) -> Result<(), Infallible> {
        let (_, first) = self.other.lines(lines);
        // SAFETY: as above.
        unsafe { discard_lines(first, lines.bytes()) };
        Ok(())
    }

    fn fence(&self, _fence: Fence) -> Result<(), Infallible> {
        fence_lines();
        Ok(())
    }

    fn order(&self) -> Result<(), Infallible> {
        fence(Ordering::Acquire);
        Ok(())
    }
}
