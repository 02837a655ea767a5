//! Memory for versions: blocks of some sizes, cut from slabs of a delta's tablespace.
//!
//! A *slab* is 64 KiB of blocks of one size. Which blocks are free is in a bitmap in the process's own memory, so that
//! taking and freeing touch nothing far. A slab has a *home*, one of the shards, whose threads alone take blocks of it:
//! they claim the free bits of a word at a time, under the shard's lock, which nobody else wants. Anybody frees, by
//! setting a bit.
//!
//! A slab is *current* (its shard takes from it), *listed* (its shard may take it next) or neither (few blocks are
//! free). All of that changes under the shard's lock. Whoever frees the block that makes a slab worth listing, or
//! wholly free, sees to it; a slab that ceases to be current is looked at again, as what was freed meanwhile was passed
//! over.
//!
//! What is larger than a slab's blocks has pages of its own.

use parking_lot::Mutex;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use tidepool_base::{Error, Result, SqlState};
use tidepool_device::{Access, PAGE_BYTES, Pattern};
use tidepool_tablespace::{GatherSlot, Purpose, Tablespace};

#[cfg(not(miri))]
const SLAB_BYTES: usize = 64 << 10;
/// Miri's tablespace is small.
#[cfg(miri)]
const SLAB_BYTES: usize = 16 << 10;

/// Blocks are aligned to this, which leaves the low bits of their addresses to whoever stores them.
pub(crate) const BLOCK_ALIGN: usize = 32;

const LINE_BYTES: usize = 64;

/// Sizes of blocks: whole halves of cache lines, at most a quarter more than is asked for from 128 bytes on.
const CLASSES: [u16; 23] = [
    32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048, 3072, 4096,
    8192,
];

/// Lines that a core has under way from memory at a time: as of the engine's probes (`engine/examples/in_flight.rs` measures them).
const LINES_IN_FLIGHT: f64 = 10.0;

const WORDS: usize = SLAB_BYTES / BLOCK_ALIGN / 64;

/// Bytes of blocks of one size that a shard keeps: a part of what a core's own cache holds.
const MAGAZINE_BYTES: usize = 64 << 10;

/// Threads that do not share anything when they take blocks.
const SHARDS: usize = 64;

/// Slabs of one chunk of the tables below.
const CHUNK: usize = 1024;

const _: () = assert!(SLAB_BYTES.is_multiple_of(PAGE_BYTES) && CLASSES[CLASSES.len() - 1] as usize <= SLAB_BYTES);

/// Into a slab, whose pointer's provenance was exposed when it was made.
#[inline]
fn pointer_to(address: usize) -> NonNull<u8> {
    NonNull::new(std::ptr::with_exposed_provenance_mut(address)).expect("nothing lies at zero")
}

fn class_of(len: usize) -> Option<usize> {
    (len <= usize::from(CLASSES[CLASSES.len() - 1])).then(|| CLASSES.partition_point(|size| usize::from(*size) < len))
}

/// The books of one slab, used again for another one when it is gone.
#[derive(Debug)]
struct Slab {
    address: AtomicUsize,
    class: AtomicU32,
    home: AtomicU32,
    /// Bits set in `bits`, or about to be.
    free: AtomicU32,
    /// Changed under the home's lock.
    listed: AtomicBool,
    bits: [std::sync::atomic::AtomicU64; WORDS],
}

impl Slab {
    fn blocks(&self) -> u32 {
        (SLAB_BYTES / usize::from(CLASSES[self.class.load(Ordering::Relaxed) as usize])) as u32
    }

    /// Free blocks from which on a slab is worth going back to.
    fn list_at(&self) -> u32 {
        (self.blocks() / 8).max(1)
    }
}

/// Numbers of slabs count from one; zero is none.
type SlabNumber = u32;

#[derive(Debug, Default)]
struct Class {
    current: SlabNumber,
    /// Blocks of word `word` of the current slab that are claimed and not taken yet.
    claimed: u64,
    word: usize,
    listed: Vec<SlabNumber>,
    /// Addresses of blocks that were freed here, the last one first.
    magazine: Vec<usize>,
}

#[derive(Debug, Default)]
struct Shard {
    classes: [Class; CLASSES.len()],
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Line<T>(T);

/// A vector that grows in chunks and is read without a lock.
type Chunks<T> = Box<[OnceLock<Box<[T]>>]>;

fn chunks<T>(len: usize) -> Chunks<T> {
    (0..len.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect()
}

/// The versions' part of one tablespace, for all tables whose delta is there.
#[derive(Debug)]
pub struct VersionMemory {
    space: Arc<Tablespace>,
    shards: Box<[Line<Mutex<Shard>>]>,
    /// By address: which slab lies there.
    numbers: Chunks<AtomicU32>,
    slabs: Chunks<Slab>,
    spare: Mutex<Spare>,
}

#[derive(Debug, Default)]
struct Spare {
    /// Slabs that are gone.
    numbers: Vec<SlabNumber>,
    /// Numbers given out so far.
    used: SlabNumber,
}

impl VersionMemory {
    pub fn new(space: &Arc<Tablespace>) -> Arc<VersionMemory> {
        let places = space.address_range().len() / SLAB_BYTES + 2;
        Arc::new(VersionMemory {
            space: Arc::clone(space),
            shards: (0..SHARDS).map(|_| Line::default()).collect(),
            numbers: chunks(places),
            slabs: chunks(places),
            spare: Mutex::default(),
        })
    }

    pub fn tablespace(&self) -> &Arc<Tablespace> {
        &self.space
    }

    /// Which slab lies at an address, to be read and set.
    fn number_at(&self, address: usize) -> &AtomicU32 {
        let place = address / SLAB_BYTES - self.space.address_range().start / SLAB_BYTES;
        let chunk = self.numbers[place / CHUNK].get_or_init(|| (0..CHUNK).map(|_| AtomicU32::new(0)).collect());
        &chunk[place % CHUNK]
    }

    fn slab(&self, number: SlabNumber) -> &Slab {
        let index = number as usize - 1;
        let new = || Slab {
            address: AtomicUsize::new(0),
            class: AtomicU32::new(0),
            home: AtomicU32::new(0),
            free: AtomicU32::new(0),
            listed: AtomicBool::new(false),
            bits: [const { std::sync::atomic::AtomicU64::new(0) }; WORDS],
        };
        &self.slabs[index / CHUNK].get_or_init(|| (0..CHUNK).map(|_| new()).collect())[index % CHUNK]
    }

    /// A block of at least `len` bytes, aligned to `BLOCK_ALIGN`, of any content. Threads with different `shard`s,
    /// below 64, share nothing. 53200 when the tablespace is full.
    pub(crate) fn allocate(&self, shard: usize, len: usize) -> Result<NonNull<u8>> {
        let Some(class) = class_of(len) else {
            let pages = len.next_multiple_of(PAGE_BYTES);
            return self.space.allocate_pages(pages, PAGE_BYTES, Purpose::Delta).ok_or_else(|| self.full(pages));
        };
        let home = shard % SHARDS;
        match self.take(home, class) {
            Ok(block) => Ok(block),
            Err(_) => {
                self.empty_magazines();
                self.take(home, class)
            }
        }
    }

    #[inline]
    fn take(&self, home: usize, class: usize) -> Result<NonNull<u8>> {
        let mut shard = self.shards[home].0.lock();
        let books = &mut shard.classes[class];
        if let Some(address) = books.magazine.pop() {
            return Ok(pointer_to(address));
        }
        if books.claimed == 0 && !self.claim(books) {
            self.next_slab(books, class, home)?;
        }
        let slab = self.slab(books.current);
        let block = books.word * 64 + books.claimed.trailing_zeros() as usize;
        books.claimed &= books.claimed - 1;
        let address = slab.address.load(Ordering::Relaxed) + block * usize::from(CLASSES[class]);
        Ok(pointer_to(address))
    }

    /// Claims the next free blocks of the current slab.
    fn claim(&self, books: &mut Class) -> bool {
        if books.current == 0 {
            return false;
        }
        let slab = self.slab(books.current);
        // From the present word on, so that a new slab is written in the order of its addresses.
        for word in (books.word..WORDS).chain(0..books.word) {
            if slab.bits[word].load(Ordering::Relaxed) == 0 {
                continue;
            }
            // Acquire: what the blocks held was looked at before they were freed.
            books.claimed = slab.bits[word].swap(0, Ordering::Acquire);
            books.word = word;
            slab.free.fetch_sub(books.claimed.count_ones(), Ordering::Relaxed);
            return true;
        }
        false
    }

    /// Another current slab, with a claim on some of its blocks.
    fn next_slab(&self, books: &mut Class, class: usize, home: usize) -> Result<()> {
        let before = std::mem::take(&mut books.current);
        if before != 0 {
            let slab = self.slab(before);
            if slab.free.load(Ordering::Acquire) >= slab.list_at() {
                slab.listed.store(true, Ordering::Relaxed);
                books.listed.push(before);
            }
        }
        while let Some(listed) = books.listed.pop() {
            self.slab(listed).listed.store(false, Ordering::Relaxed);
            books.current = listed;
            books.word = 0;
            // Counted free a moment before the bits are set: there may be nothing to claim yet.
            if self.claim(books) {
                return Ok(());
            }
        }
        books.current = 0;
        let address =
            self.space.allocate_pages(SLAB_BYTES, SLAB_BYTES, Purpose::Delta).ok_or_else(|| self.full(SLAB_BYTES))?;
        address.as_ptr().expose_provenance();
        let number = {
            let mut spare = self.spare.lock();
            spare.numbers.pop().unwrap_or_else(|| {
                spare.used += 1;
                spare.used
            })
        };
        let slab = self.slab(number);
        let address = address.as_ptr().addr();
        slab.address.store(address, Ordering::Relaxed);
        slab.class.store(class as u32, Ordering::Relaxed);
        slab.home.store(home as u32, Ordering::Relaxed);
        slab.listed.store(false, Ordering::Relaxed);
        let blocks = slab.blocks();
        slab.free.store(blocks, Ordering::Relaxed);
        for (word, bits) in slab.bits.iter().enumerate() {
            let left = (blocks as usize).saturating_sub(word * 64).min(64);
            bits.store(if left == 64 { u64::MAX } else { (1 << left) - 1 }, Ordering::Relaxed);
        }
        // Release: whoever frees a block finds its slab's books as they are now.
        self.number_at(address).store(number, Ordering::Release);
        books.current = number;
        books.word = 0;
        self.claim(books);
        Ok(())
    }

    /// As `free`, by a thread that takes blocks of `shard`: it may have this one again soon.
    ///
    /// # Safety
    /// That of `free`.
    #[inline]
    pub(crate) unsafe fn free_by(&self, shard: usize, address: NonNull<u8>, len: usize) {
        if let Some(class) = class_of(len) {
            let magazine = &mut self.shards[shard % SHARDS].0.lock().classes[class].magazine;
            if magazine.len() < MAGAZINE_BYTES / usize::from(CLASSES[class]) {
                magazine.push(address.as_ptr().expose_provenance());
                return;
            }
        }
        // SAFETY: the caller's.
        unsafe { self.free(address, len) };
    }

    /// Gives back what shards keep.
    #[cold]
    fn empty_magazines(&self) {
        for home in self.shards.iter() {
            for (class, size) in CLASSES.iter().enumerate() {
                let kept = std::mem::take(&mut home.0.lock().classes[class].magazine);
                for address in kept {
                    // SAFETY: freed by its owner, and in no magazine any more. The length is one of the class.
                    unsafe { self.free(pointer_to(address), usize::from(*size)) };
                }
            }
        }
    }

    /// Gives a block back.
    ///
    /// # Safety
    /// `address` came from `allocate` with the same `len`, and nobody uses the block any more.
    pub(crate) unsafe fn free(&self, address: NonNull<u8>, len: usize) {
        let Some(class) = class_of(len) else {
            // SAFETY: the caller's; a block of this length is a run of pages.
            unsafe { self.space.free_pages(address, len.next_multiple_of(PAGE_BYTES), Purpose::Delta) };
            return;
        };
        let slab = self.slab(self.number_at(address.as_ptr().addr()).load(Ordering::Acquire));
        let block = (address.as_ptr().addr() - slab.address.load(Ordering::Relaxed)) / usize::from(CLASSES[class]);
        // Before the bit: once it is set the block may be taken, and with it counted off.
        let free = slab.free.fetch_add(1, Ordering::AcqRel) + 1;
        let (blocks, list_at, home) = (slab.blocks(), slab.list_at(), slab.home.load(Ordering::Relaxed));
        let number = self.number_at(address.as_ptr().addr()).load(Ordering::Relaxed);
        slab.bits[block / 64].fetch_or(1 << (block % 64), Ordering::Release);
        if free == list_at || free == blocks {
            self.note(number, home as usize, class);
        }
    }

    /// Lists a slab, or gives it back if it is wholly free. It may be gone by now, and its books another's.
    #[cold]
    fn note(&self, number: SlabNumber, home: usize, class: usize) {
        let mut shard = self.shards[home].0.lock();
        let books = &mut shard.classes[class];
        let slab = self.slab(number);
        let is_it = slab.address.load(Ordering::Relaxed) != 0
            && slab.home.load(Ordering::Relaxed) == home as u32
            && slab.class.load(Ordering::Relaxed) == class as u32;
        if !is_it || books.current == number {
            return;
        }
        let all_set = || slab.bits.iter().map(|bits| bits.load(Ordering::Acquire).count_ones()).sum::<u32>();
        // One that is wholly free stays for the next need.
        let is_empty = slab.free.load(Ordering::Acquire) == slab.blocks() && all_set() == slab.blocks();
        let listed = slab.listed.load(Ordering::Relaxed);
        if is_empty && books.listed.len() > usize::from(listed) {
            books.listed.retain(|other| *other != number);
            self.give_back(slab, number);
        } else if !listed {
            slab.listed.store(true, Ordering::Relaxed);
            books.listed.push(number);
        }
    }

    /// A slab all of whose blocks are free and that no shard knows any more.
    fn give_back(&self, slab: &Slab, number: SlabNumber) {
        let address = slab.address.swap(0, Ordering::Relaxed);
        self.number_at(address).store(0, Ordering::Relaxed);
        self.free_slab(address);
        self.spare.lock().numbers.push(number);
    }

    fn free_slab(&self, address: usize) {
        // SAFETY: the slab's pages were taken so, and no block of it is in use.
        unsafe { self.space.free_pages(pointer_to(address), SLAB_BYTES, Purpose::Delta) };
    }

    /// Gives back slabs that were kept for the next need.
    pub fn trim(&self) {
        self.empty_magazines();
        for home in self.shards.iter() {
            let mut shard = home.0.lock();
            for books in &mut shard.classes {
                if books.current != 0 {
                    // What is claimed of the present one goes back to it, and it to the others.
                    let slab = self.slab(books.current);
                    slab.free.fetch_add(books.claimed.count_ones(), Ordering::AcqRel);
                    slab.bits[books.word].fetch_or(std::mem::take(&mut books.claimed), Ordering::Release);
                    if slab.free.load(Ordering::Acquire) >= slab.list_at() {
                        slab.listed.store(true, Ordering::Relaxed);
                        books.listed.push(std::mem::take(&mut books.current));
                    }
                }
                books.listed.retain(|number| {
                    let slab = self.slab(*number);
                    let blocks = slab.blocks();
                    let set = slab.bits.iter().map(|bits| bits.load(Ordering::Acquire).count_ones()).sum::<u32>();
                    if slab.free.load(Ordering::Acquire) == blocks && set == blocks {
                        self.give_back(slab, *number);
                        return false;
                    }
                    true
                });
            }
        }
    }

    #[cold]
    fn full(&self, len: usize) -> Error {
        match self.space.allocate(len, Purpose::Delta) {
            Err(error) => error,
            // There is room, but none that is aligned as slabs are.
            Ok(_) => Error::new(SqlState::OUT_OF_MEMORY, format!("tablespace \"{}\" is full", self.space.name()))
                .with_detail("What is free is in pieces that are too small for rows.")
                .with_hint("Make the tablespace larger, or put less into it."),
        }
    }

    #[inline]
    pub(crate) fn is_paced(&self) -> bool {
        self.space.pacer().is_some()
    }

    /// Versions at these addresses are about to be read together.
    #[inline]
    pub(crate) fn about_to_read(&self, addresses: impl Iterator<Item = usize>) {
        self.space.about_to_read_each(addresses);
    }

    /// A version that was asked for is come to: see [`Tablespace::arrive`].
    #[inline]
    pub(crate) fn arrive(&self) {
        self.space.arrive();
    }

    /// Accounts the read of `len` bytes of versions that were reached through pointers known beforehand: as many lines are waited
    /// for together as a core has under way.
    #[inline]
    pub(crate) fn charge_read(&self, len: usize) {
        if self.space.pacer().is_some() {
            let lines = len.div_ceil(LINE_BYTES) as u64;
            let working_set = self.space.bytes(Purpose::Delta);
            let access = Access::read_random(lines, working_set, (lines as f64).min(LINES_IN_FLIGHT));
            self.space.gather(GatherSlot::ReadVersions, &[access]);
        }
    }

    /// Accounts the write of a new version. Nobody waits for it, as stores are buffered; its lines, one block behind the other, come from
    /// the device, as the caches ask for what they are about to change, and go back there.
    #[inline]
    pub(crate) fn charge_write(&self, len: usize) {
        if self.space.pacer().is_some() {
            let bytes = Pattern::Sequential { bytes: len as u64, runs: 0 };
            let accesses = [false, true].map(|write| Access { pattern: bytes, write });
            self.space.gather(GatherSlot::WrittenVersions, &accesses);
        }
    }
}

impl Drop for VersionMemory {
    fn drop(&mut self) {
        // Tables have freed what they had, and hold this until then.
        let used = self.spare.get_mut().used;
        for number in 1..=used {
            let address = self.slab(number).address.load(Ordering::Relaxed);
            if address != 0 {
                self.free_slab(address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{heap_space, noise};
    use std::collections::HashMap;

    fn fill(address: NonNull<u8>, len: usize, with: u8) {
        // SAFETY: a block of the test's own.
        unsafe { address.as_ptr().write_bytes(with, len) };
    }

    fn holds(address: NonNull<u8>, len: usize, with: u8) -> bool {
        // SAFETY: a block of the test's own, written by `fill`.
        let bytes = unsafe { std::slice::from_raw_parts(address.as_ptr(), len) };
        bytes.iter().step_by(if cfg!(miri) { 101 } else { 1 }).all(|byte| *byte == with)
    }

    fn check_model(rounds: usize, threads: usize) {
        let space = heap_space();
        let memory = VersionMemory::new(&space);
        // Blocks travel between threads, as versions do that one writes and another frees.
        let shared: Mutex<HashMap<usize, (usize, u8)>> = Mutex::default();
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let (memory, shared) = (&memory, &shared);
                scope.spawn(move || {
                    let mut next = noise(thread as u64);
                    for _ in 0..rounds {
                        if !next().is_multiple_of(3) {
                            let len = match next() % 20 {
                                0 => 9000 + next() as usize % 20_000,
                                1..4 => 1 + next() as usize % 8192,
                                _ => 24 + next() as usize % 200,
                            };
                            let Ok(address) = memory.allocate(thread, len) else { continue };
                            assert!(address.as_ptr().addr().is_multiple_of(BLOCK_ALIGN));
                            let with = next() as u8;
                            fill(address, len, with);
                            address.as_ptr().expose_provenance();
                            let before = shared.lock().insert(address.as_ptr().addr(), (len, with));
                            assert!(before.is_none(), "a block has two owners");
                        } else {
                            let mut shared = shared.lock();
                            let key = shared.keys().next().copied();
                            let Some((at, (len, with))) = key.and_then(|key| shared.remove_entry(&key)) else {
                                continue;
                            };
                            drop(shared);
                            let address = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(at)).unwrap();
                            assert!(holds(address, len, with));
                            let keeps = next().is_multiple_of(2);
                            // SAFETY: taken out of the map by this thread alone.
                            unsafe {
                                if keeps { memory.free_by(thread, address, len) } else { memory.free(address, len) }
                            }
                        }
                    }
                });
            }
        });
        for (at, (len, with)) in shared.into_inner() {
            let address = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(at)).unwrap();
            assert!(holds(address, len, with));
            // SAFETY: as above.
            unsafe { memory.free(address, len) };
        }
        let current = CLASSES.len() * threads * SLAB_BYTES;
        memory.trim();
        assert!(space.bytes(Purpose::Delta) <= current as u64, "empty slabs go back");
        drop(memory);
        assert_eq!(space.bytes(Purpose::Delta), 0);
    }

    #[test]
    fn blocks_have_one_owner_and_their_memory_comes_back() {
        check_model(if cfg!(miri) { 150 } else { 20_000 }, 2);
    }

    #[test]
    fn a_full_tablespace_is_an_error_until_something_is_freed() {
        let space = heap_space();
        let memory = VersionMemory::new(&space);
        let mut blocks = Vec::new();
        let error = loop {
            match memory.allocate(0, 3000) {
                Ok(block) => blocks.push(block),
                Err(error) => break error,
            }
        };
        assert_eq!(error.code(), SqlState::OUT_OF_MEMORY);
        assert_eq!(error.message(), "tablespace \"near\" is full");
        for block in blocks {
            // SAFETY: taken above.
            unsafe { memory.free_by(0, block, 3000) };
        }
        assert!(memory.allocate(1, 100).is_ok(), "slabs of one size become another's");
    }

    #[test]
    fn what_a_thread_freed_it_takes_again_and_no_other() {
        let space = heap_space();
        let memory = VersionMemory::new(&space);
        let first = memory.allocate(0, 100).unwrap();
        // SAFETY: taken above.
        unsafe { memory.free_by(0, first, 100) };
        let other = memory.allocate(1, 100).unwrap();
        assert_ne!(other, first);
        let again = memory.allocate(0, 110).unwrap();
        assert_eq!(again, first, "of the same size");
        // SAFETY: taken above, all of them.
        unsafe {
            memory.free_by(1, again, 110);
            memory.free_by(1, other, 100);
        }
        assert_eq!(memory.allocate(1, 100).unwrap(), other, "the last one first");
    }
}
