//! The memory of a pool as this process has it mapped.

#![allow(unsafe_code, reason = "words and extents of mappings, whose proofs are here")]

use crate::dealt::{Lines, Slice};
use crate::layout::{DEVICES, PAGE_BYTES};
use crate::memory::{At, Bytes, Memory};
use crate::sync;
use crate::words::Extent;
use std::convert::Infallible;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64};
use tidepool_base::{Error, Result, SqlState};
use tidepool_device::{Device, Mapping, PartMapping, Protection};
use xxhash_rust::xxh3::xxh3_64;

/// One device, and which extents it has.
#[derive(Debug)]
pub(crate) struct Part {
    pub mapping: Mapping,
    /// Where the first of its extents begins: behind others' slices, in a pool that is dealt out.
    pub base: usize,
    pub first: Extent,
    pub extents: u32,
}

/// The first page of a device, or of a slice from `base` on, a word at a time, as others may be writing it.
pub(crate) fn first_page(mapping: &Mapping, base: usize) -> [u8; PAGE_BYTES] {
    let mut page = [0; PAGE_BYTES];
    for (index, eight) in page.chunks_exact_mut(8).enumerate() {
        eight.copy_from_slice(&sync::load(first_word(mapping, base, index)).to_le_bytes());
    }
    page
}

pub(crate) fn write_first_page(mapping: &Mapping, base: usize, page: &[u8; PAGE_BYTES]) -> Result<()> {
    for (index, bytes) in page.chunks_exact(8).enumerate() {
        let mut eight = [0; 8];
        eight.copy_from_slice(bytes);
        sync::store(first_word(mapping, base, index), u64::from_le_bytes(eight));
    }
    mapping.persist(base..base + PAGE_BYTES)
}

fn first_word(mapping: &Mapping, base: usize, index: usize) -> &AtomicU64 {
    assert!(index < PAGE_BYTES / 8 && base.is_multiple_of(8));
    assert!(base <= mapping.len() && mapping.len() - base >= PAGE_BYTES, "a first page at {base}");
    // SAFETY: inside a mapping that lives as long as what is returned, and aligned. All use it as atomic words alone.
    unsafe { AtomicU64::from_ptr(mapping.base().as_ptr().add(base + index * 8).cast()) }
}

/// All devices that are there. Device 0 always is.
#[derive(Debug)]
pub struct Mapped {
    parts: [OnceLock<Part>; DEVICES],
    control_bytes: usize,
    extent_bytes: usize,
    /// A word is flushed from the processor's cache as it is changed.
    is_flushed: bool,
    /// It is mapped to be read alone.
    is_read_only: bool,
    /// But for the page of a host that reads.
    own_page: OnceLock<OwnPage>,
}

/// The page of this process's host, mapped once more to be written, where all else of the books is mapped to be read.
#[derive(Debug)]
struct OwnPage {
    mapping: PartMapping,
    /// Where the page begins in the books, and in what is mapped: that has other pages where devices have larger units.
    at: usize,
    within: usize,
}

impl OwnPage {
    fn word(&self, at: At) -> Option<&AtomicU64> {
        let offset = (at.0 as usize).checked_sub(self.at).filter(|offset| *offset + 8 <= PAGE_BYTES)?;
        // SAFETY: inside the mapping, as `Mapped::map_own_page` has compared, aligned as the books are, and living as long. It is
        // used as an atomic word alone, as all words of the books are.
        Some(unsafe { AtomicU64::from_ptr(self.mapping.base().as_ptr().add(self.within + offset).cast()) })
    }
}

impl Mapped {
    /// The caller says how much of device 0 is the control area, which is not more than is mapped.
    pub(crate) fn new(first: Part, control_bytes: usize, extent_bytes: usize, protection: Protection) -> Mapped {
        assert!(first.base <= first.mapping.len(), "a slice is on its device");
        assert!(control_bytes <= first.mapping.len() - first.base, "the books are on device 0");
        assert!(first.base.is_multiple_of(8), "a slice begins with a word");
        assert!(first.mapping.base().addr().get().is_multiple_of(8), "a mapping begins with a page");
        let is_flushed = first.mapping.device().is_some_and(Device::outlives_machine);
        let is_read_only = protection == Protection::Read;
        let parts = [const { OnceLock::new() }; DEVICES];
        let own_page = OnceLock::new();
        let mapped = Mapped { parts, control_bytes, extent_bytes, is_flushed, is_read_only, own_page };
        mapped.add(0, first);
        mapped
    }

    /// A device that was mapped later. It stays mapped as long as the pool is open.
    pub(crate) fn add(&self, device: usize, part: Part) {
        assert!(
            part.extents as usize <= part.mapping.len().saturating_sub(part.base) / self.extent_bytes,
            "a device has the extents that it says"
        );
        assert!(self.parts[device].set(part).is_ok(), "a device is mapped once");
    }

    pub(crate) fn part(&self, device: usize) -> Option<&Part> {
        self.parts[device].get()
    }

    pub(crate) fn first_device(&self) -> &Device {
        let first = self.parts[0].get().expect("device 0 is always there");
        first.mapping.device().expect("a pool is mapped of devices")
    }

    /// The device of an extent, and its first byte there. `None` where the device is away.
    pub(crate) fn place(&self, extent: Extent) -> Option<(usize, usize)> {
        self.parts.iter().enumerate().find_map(|(device, part)| {
            let part = part.get()?;
            let index = extent.0.checked_sub(part.first.0).filter(|index| *index < part.extents)?;
            Some((device, part.base + index as usize * self.extent_bytes))
        })
    }

    fn part_of(&self, extent: Extent) -> Option<(&Part, usize)> {
        self.parts.iter().filter_map(OnceLock::get).find_map(|part| {
            let index = extent.0.checked_sub(part.first.0).filter(|index| *index < part.extents)?;
            Some((part, part.base + index as usize * self.extent_bytes))
        })
    }

    /// Where an extent is in this process, and how long. `None` where its device is away.
    pub fn extent(&self, extent: Extent) -> Option<(NonNull<u8>, usize)> {
        let (part, offset) = self.part_of(extent)?;
        // SAFETY: `add` has compared the extents with what is mapped.
        Some((unsafe { part.mapping.base().add(offset) }, self.extent_bytes))
    }

    /// The checksum of an extent's bytes, as the books keep it.
    ///
    /// # Safety
    /// No host stores to the extent meanwhile: it is shared, or the caller's own.
    pub(crate) unsafe fn sum(&self, extent: Extent) -> Option<u64> {
        let (base, len) = self.extent(extent)?;
        // SAFETY: mapped as long as `self` is, and constant by the caller's promise.
        let bytes = unsafe { std::slice::from_raw_parts(base.as_ptr(), len) };
        Some(xxh3_64(bytes) & crate::words::Number::MAX.0)
    }

    /// Some words of an extent, and where they are in its device's mapping.
    ///
    /// # Panics
    /// Where they are not words of the extent.
    fn words_of(&self, extent: Extent, offset: usize, len: usize) -> Option<(&Part, usize, &[AtomicU64])> {
        assert!(offset.is_multiple_of(8) && len.is_multiple_of(8), "{len} bytes at {offset} are no words");
        assert!(
            offset <= self.extent_bytes && len <= self.extent_bytes - offset,
            "{len} bytes at {offset} of an extent"
        );
        let (part, start) = self.part_of(extent)?;
        let at = start + offset;
        // SAFETY: inside the mapping, as `add` has compared, and aligned. It lives as long as `self`. Bytes that several
        // hosts use at once are used as atomic words alone, by all of them.
        let words = unsafe {
            let first: *const AtomicU64 = part.mapping.base().as_ptr().add(at).cast();
            std::slice::from_raw_parts(first, len / 8)
        };
        Some((part, at, words))
    }

    fn word(&self, at: At) -> &AtomicU64 {
        let offset = at.0 as usize;
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.control_bytes, "{at:?} is no word of the books");
        let first = self.parts[0].get().expect("device 0 is always there");
        if let Some(word) = self.own_page.get().and_then(|page| page.word(at)) {
            return word;
        }
        // SAFETY: inside the mapping, as `new` has compared, and aligned. All of this process and of others use these words
        // as atomic ones alone; the mapping lives as long as `self`.
        unsafe { AtomicU64::from_ptr(first.mapping.base().as_ptr().add(first.base + offset).cast()) }
    }

    /// # Panics
    /// Where a store would end the process: callers that may not store say so as an error first.
    fn word_to_change(&self, at: At) -> &AtomicU64 {
        assert!(!self.is_read_only || self.is_own(at), "the pool was opened to be read");
        self.word(at)
    }

    fn is_own(&self, at: At) -> bool {
        self.own_page.get().is_some_and(|page| page.word(at).is_some())
    }

    /// Maps the page of the books at `at` to be written, of a pool that is mapped to be read. Once.
    pub(crate) fn map_own_page(&self, at: usize) -> Result<()> {
        assert!(at.is_multiple_of(PAGE_BYTES) && at + PAGE_BYTES <= self.control_bytes, "a page of the books at {at}");
        let first = self.parts[0].get().expect("device 0 is always there");
        let start = first.base + at;
        let location = self.first_device().location();
        let (mapping, from) = Mapping::open_shared_part(location, Protection::ReadWrite, start..start + PAGE_BYTES)?;
        let within = start - from;
        assert!(within + PAGE_BYTES <= mapping.len(), "the page is within what is mapped around it");
        let page = OwnPage { mapping, at, within };
        // What is at the location may be another file by now.
        let is_same = (0..PAGE_BYTES / 8).all(|index| {
            let word = At((at + index * 8) as u32);
            page.word(word).map(sync::load) == Some(sync::load(self.word(word)))
        });
        if !is_same {
            return Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("\"{location}\" changes while it is opened"),
            )
            .with_hint("Start again."));
        }
        assert!(self.own_page.set(page).is_ok(), "a process that reads is one host of its pool");
        Ok(())
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// The futex of the thread that beats for the host of a slot.
    pub(crate) fn thread_word(&self, at: At) -> &AtomicU32 {
        let word = self.word(at);
        // SAFETY: the first half of an aligned word that lives as long as `self`. It is used as this alone.
        unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) }
    }

    /// On memory that outlives the machine, a word is durable before anything is done that rests on it.
    fn flush(&self, at: At) {
        if self.is_flushed {
            let first = self.parts[0].get().expect("device 0 is always there");
            let offset = first.base + at.0 as usize;
            // Cache lines of a live mapping: nothing of it can fail.
            first.mapping.persist(offset..offset + 8).expect("cache lines are flushed");
        }
    }
}

impl Memory for Mapped {
    type Stop = Infallible;

    fn load(&self, at: At) -> std::result::Result<u64, Infallible> {
        Ok(sync::load(self.word(at)))
    }

    fn store(&self, at: At, bits: u64) -> std::result::Result<(), Infallible> {
        sync::store(self.word_to_change(at), bits);
        self.flush(at);
        Ok(())
    }

    fn swap(&self, at: At, from: u64, to: u64) -> std::result::Result<std::result::Result<(), u64>, Infallible> {
        let swapped = sync::swap(self.word_to_change(at), from, to);
        self.flush(at);
        Ok(swapped)
    }

    fn fence(&self) -> std::result::Result<(), Infallible> {
        sync::full_fence();
        Ok(())
    }

    fn zero(&self, extent: Extent) -> std::result::Result<(), Infallible> {
        assert!(!self.is_read_only, "the pool was opened to be read");
        if let Some((part, offset)) = self.part_of(extent) {
            // SAFETY: inside the mapping, and the caller owns the extent: no other host stores there or reads it.
            unsafe { part.mapping.base().add(offset).write_bytes(0, self.extent_bytes) };
        }
        Ok(())
    }
}

fn persist(part: &Part, at: usize, len: usize) {
    if part.mapping.device().is_some_and(Device::outlives_machine) {
        // As of words: cache lines of a live mapping.
        part.mapping.persist(at..at + len).expect("cache lines are flushed");
    }
}

impl Bytes for Mapped {
    fn extent_bytes(&self) -> usize {
        self.extent_bytes
    }

    fn read_bytes(&self, extent: Extent, offset: usize, bytes: &mut [u8]) -> bool {
        let Some((_, _, words)) = self.words_of(extent, offset, bytes.len()) else { return false };
        sync::load_bytes(words, bytes);
        true
    }

    fn write_bytes(&self, extent: Extent, offset: usize, bytes: &[u8]) -> bool {
        assert!(!self.is_read_only, "the pool was opened to be read");
        let Some((part, at, words)) = self.words_of(extent, offset, bytes.len()) else { return false };
        sync::store_bytes(words, bytes);
        persist(part, at, bytes.len());
        true
    }

    fn persist_bytes(&self, extent: Extent, offset: usize, len: usize) -> bool {
        let Some((part, at, _)) = self.words_of(extent, offset, len) else { return false };
        persist(part, at, len);
        true
    }

    fn persist_word(&self, at: At) {
        self.flush(at);
    }

    fn map_ahead(&self, extent: Extent) {
        if let Some((part, start)) = self.part_of(extent) {
            part.mapping.map_ahead(start..start + self.extent_bytes);
        }
    }
}

/// A device that is dealt out, and who has which slice of it.
#[derive(Debug)]
pub(crate) struct DealtDevice {
    pub mapping: Mapping,
    pub slice_bytes: usize,
    pub extent_bytes: usize,
}

impl DealtDevice {
    /// Where a slice begins.
    pub fn base_of(&self, slice: Slice) -> usize {
        self.extent_bytes + usize::from(slice.0) * self.slice_bytes
    }

    fn word(&self, at: At) -> &AtomicU64 {
        let offset = at.0 as usize;
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.extent_bytes.min(self.mapping.len()), "{at:?}");
        // SAFETY: inside a mapping that lives as long as what is returned, and aligned. All use these words as atomic ones
        // alone.
        unsafe { AtomicU64::from_ptr(self.mapping.base().as_ptr().add(offset).cast()) }
    }
}

impl Lines for DealtDevice {
    type Stop = Infallible;

    fn load(&self, at: At) -> std::result::Result<u64, Infallible> {
        Ok(sync::load(self.word(at)))
    }

    fn store(&self, at: At, bits: u64) -> std::result::Result<(), Infallible> {
        sync::store(self.word(at), bits);
        Ok(())
    }

    fn write_back(&self, at: At) -> std::result::Result<(), Infallible> {
        let offset = at.0 as usize;
        // Cache lines of a live mapping.
        self.mapping.persist(offset..offset + 8).expect("cache lines are flushed");
        Ok(())
    }

    fn drop_line(&self, at: At) -> std::result::Result<(), Infallible> {
        let offset = at.0 as usize;
        self.mapping.drop_cached(offset..offset + 8);
        Ok(())
    }

    fn fence(&self) -> std::result::Result<(), Infallible> {
        sync::full_fence();
        Ok(())
    }

    fn drop_slice(&self, slice: Slice) -> std::result::Result<(), Infallible> {
        let base = self.base_of(slice);
        self.mapping.drop_cached(base..base + self.slice_bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Layout;
    use crate::memory::Books;
    use crate::words::{Contents, Database, Generation, Host, Incarnation, Kind, Number, Owner, Slot};

    /// Small extents, over memory of the process: Miri looks at every access.
    #[test]
    fn words_and_extents_are_in_their_places() {
        const EXTENT: usize = PAGE_BYTES;
        let layout = Layout { slots: 2, databases: 2, extents: 256 };
        let part = Part { mapping: Mapping::heap(256 * EXTENT), base: 0, first: Extent(0), extents: 256 };
        let memory = Mapped::new(part, layout.control_bytes(), EXTENT, Protection::ReadWrite);
        let books = Books { memory, layout };
        let other = Part { mapping: Mapping::heap(3 * EXTENT), base: EXTENT, first: Extent(256), extents: 2 };
        books.memory.add(3, other);
        let host = |slot| Host { slot: Slot(slot), incarnation: Incarnation(1) };
        let (extent, data) = (Extent(255), Database(1));
        let Ok(()) = books.store(layout.owner(extent), Owner::Free { holds: Contents::Unknown }) else { panic!() };
        let (base, len) = books.memory.extent(extent).unwrap();
        assert_eq!(len, EXTENT);
        // SAFETY: the test's own.
        unsafe { base.as_ptr().write_bytes(7, len) };
        std::thread::scope(|scope| {
            let books = &books;
            let lease = |slot| {
                let Ok(leased) = books.lease(host(slot), data, extent, Kind::Main) else { panic!() };
                // SAFETY: the host that leased it owns it, and the memory is there.
                leased.then(|| unsafe {
                    let (base, len) = books.memory.extent(extent).unwrap();
                    (base.as_ptr().read(), base.as_ptr().add(len - 1).read())
                })
            };
            let (one, two) = (scope.spawn(move || lease(0)), scope.spawn(move || lease(1)));
            let found = [one.join().unwrap(), two.join().unwrap()];
            assert_eq!(found.iter().flatten().collect::<Vec<_>>(), [&(0, 0)], "one of them has it, zeroed");
        });
        let Ok(Owner::Filling { by, .. }) = books.load(layout.owner(extent)) else { panic!() };
        // SAFETY: no host stores to it any more.
        let sum = unsafe { books.memory.sum(extent) }.unwrap();
        assert_eq!(sum, xxh3_64(&[0; EXTENT]) & Number::MAX.0);
        let Ok(true) = books.publish(by, data, extent, Generation(4), Number(sum)) else { panic!() };
        assert!(books.memory.extent(Extent(257)).is_some() && books.memory.extent(Extent(258)).is_none());
        let (mut bytes, written) = ([1; 24], [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]);
        assert!(books.memory.write_bytes(Extent(257), EXTENT - 16, &written));
        assert!(books.memory.read_bytes(Extent(257), EXTENT - 24, &mut bytes));
        assert_eq!(bytes[8..], written);
        assert_eq!(bytes[..8], [0; 8]);
        assert!(!books.memory.read_bytes(Extent(258), 0, &mut bytes));
        let word = books.memory.thread_word(layout.thread_word(Slot(1)));
        word.store(5, std::sync::atomic::Ordering::SeqCst);
        let page = first_page(&books.memory.part(0).unwrap().mapping, 0);
        assert!(page.iter().all(|byte| *byte == 0));
        write_first_page(&books.memory.part(3).unwrap().mapping, EXTENT, &[9; PAGE_BYTES]).unwrap();
        assert_eq!(first_page(&books.memory.part(3).unwrap().mapping, EXTENT), [9; PAGE_BYTES]);
    }
}
