//! Addresses reserved for more than is mapped: devices come into them and go while the rest is in use.
//!
//! A window is a run of *stripes* of equal length. A stripe is mapped of one device, or of none, and stays where it is
//! while anybody uses a byte of it. Stripes of one device need not be neighbours, nor in the order of the device, so
//! that several devices can share a run of addresses, and an idle stripe can move to where it serves better.
//!
//! Invariants:
//!   * `places[stripe]` names the device and the slot (the device's bytes in units of a stripe) that are mapped there.
//!     It changes only while nobody uses a byte of the stripe; so whoever owns a byte there may rely on it.
//!   * No slot is mapped twice.
//!   * Only the last stripe may be mapped in part, from its start on.
//!
//! `commit` and `release` are called inside the global allocator: they allocate nothing, and wait for nothing but a lock
//! under which nothing is done but looking up or changing an entry.

use crate::mapping::{HUGE_PAGE_BYTES, Mapping, reserve_some, unmap};
use crate::paged::Paged;
use crate::{Device, Protection, stop};
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tidepool_base::{ByteSize, Error, Result};

/// Devices that one window can hold. A bound on what a system call for one range may have to look at.
pub const DEVICES_MAX: usize = 16;

/// Where a stripe's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The number that [`Window::add`] gave to the device.
    pub device: u16,
    /// The device's bytes from `slot` stripes on.
    pub slot: u32,
}

#[derive(Debug)]
pub struct Window {
    base: NonNull<u8>,
    len: usize,
    stripe_bytes: usize,
    /// A mapping that stays as it is, in place of all else.
    fixed: Option<Mapping>,
    /// A lock of the standard library: a futex, so that waiting for it never allocates.
    table: RwLock<Table>,
    // What holds for any of the devices, or for all.
    zeroed: AtomicBool,
    huge_pages: AtomicBool,
    needs_commit: AtomicBool,
}

#[derive(Debug, Default)]
struct Table {
    devices: [Option<Arc<Device>>; DEVICES_MAX],
    places: Vec<Option<Place>>,
}

// SAFETY: the window is owned memory; all methods that touch it take `&self` and are thread-safe system calls.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

/// A run of bytes of one device.
struct Piece {
    /// Byte offsets in the window.
    range: Range<usize>,
    device: Arc<Device>,
    /// Of the first byte in the device.
    offset: usize,
}

impl Window {
    /// Reserves `wanted` bytes of addresses in stripes of `stripe_bytes`, a multiple of 2 MiB, or as much less as there is
    /// where addresses are scarce, but `least` bytes. `wanted` is a multiple of a stripe.
    pub fn reserve_some(wanted: usize, least: usize, stripe_bytes: usize) -> Result<Window> {
        debug_assert!(stripe_bytes.is_multiple_of(HUGE_PAGE_BYTES) && wanted.is_multiple_of(stripe_bytes));
        let least = least.next_multiple_of(stripe_bytes);
        let (base, len) = reserve_some(wanted, least, stripe_bytes)
            .map_err(|error| Error::io(format_args!("reserve addresses for {}", ByteSize(least as u64)), &error))?;
        Ok(Window {
            base,
            len,
            stripe_bytes,
            fixed: None,
            table: RwLock::default(),
            zeroed: AtomicBool::new(true),
            huge_pages: AtomicBool::new(false),
            needs_commit: AtomicBool::new(false),
        })
    }

    /// Exactly `len` bytes of addresses.
    #[cfg(test)]
    fn reserve(len: usize, stripe_bytes: usize) -> Result<Window> {
        Window::reserve_some(len, len, stripe_bytes)
    }

    /// A window that is one mapping, for ever. Paged memory may be mapped in part.
    pub fn fixed(mapping: Mapping) -> Window {
        Window {
            base: mapping.base(),
            len: mapping.len(),
            stripe_bytes: mapping.len(),
            zeroed: AtomicBool::new(mapping.is_zeroed()),
            huge_pages: AtomicBool::new(mapping.has_huge_pages()),
            needs_commit: AtomicBool::new(mapping.needs_commit()),
            fixed: Some(mapping),
            table: RwLock::default(),
        }
    }

    /// The mapping, of a window that is one.
    pub fn mapping(&self) -> Option<&Mapping> {
        self.fixed.as_ref()
    }

    /// The page table, of paged memory.
    pub fn paged(&self) -> Option<&Paged> {
        self.fixed.as_ref().and_then(Mapping::paged)
    }

    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes of addresses, mapped or not.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn stripe_bytes(&self) -> usize {
        self.stripe_bytes
    }

    /// Touching one byte of an aligned 2 MiB may back all of it.
    pub fn has_huge_pages(&self) -> bool {
        self.huge_pages.load(Ordering::Relaxed)
    }

    /// Bytes behind the devices' headers that nobody wrote read as zero.
    pub fn is_zeroed(&self) -> bool {
        self.zeroed.load(Ordering::Relaxed)
    }

    /// `commit` has work to do here.
    pub fn needs_commit(&self) -> bool {
        self.needs_commit.load(Ordering::Relaxed)
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes a device in, of which nothing is mapped yet. Its number, or the device when there are too many.
    pub fn add(&self, device: Device) -> std::result::Result<u16, Box<Device>> {
        // Under the lock nothing is allocated: the allocator's own memory may come of a window.
        let device = Arc::new(device);
        let mut table = self.write();
        let Some(number) = table.devices.iter().position(Option::is_none) else {
            drop(table);
            return Err(Arc::into_inner(device)
                .map(Box::new)
                .unwrap_or_else(|| stop(format_args!("a device is used already"))));
        };
        table.devices[number] = Some(device);
        self.note_traits(&table);
        Ok(number as u16)
    }

    /// Lets a device go, of which nothing is mapped any more.
    pub fn remove(&self, number: u16) -> Option<Arc<Device>> {
        let mut table = self.write();
        debug_assert!(table.places.iter().flatten().all(|place| place.device != number));
        let device = table.devices.get_mut(usize::from(number))?.take();
        self.note_traits(&table);
        device
    }

    pub fn device(&self, number: u16) -> Option<Arc<Device>> {
        self.read().devices.get(usize::from(number)).cloned().flatten()
    }

    fn note_traits(&self, table: &Table) {
        let devices = || table.devices.iter().flatten();
        self.zeroed.store(devices().all(|device| device.is_zeroed()), Ordering::Relaxed);
        self.huge_pages.store(devices().any(|device| device.has_huge_pages()), Ordering::Relaxed);
        self.needs_commit.store(devices().any(|device| device.needs_commit()), Ordering::Relaxed);
    }

    /// What is mapped at a stripe.
    pub fn place(&self, stripe: usize) -> Option<Place> {
        self.read().places.get(stripe).copied().flatten()
    }

    /// What is mapped at each stripe, from the first on.
    pub fn places(&self) -> Vec<Option<Place>> {
        let mut places = Vec::new();
        loop {
            // Under the lock nothing is allocated.
            places.reserve(self.read().places.len());
            let table = self.read();
            if places.capacity() >= table.places.len() {
                places.extend_from_slice(&table.places);
                break;
            }
        }
        while places.last().is_some_and(Option::is_none) {
            places.pop();
        }
        places
    }

    /// Maps the bytes `within` of a stripe at its place: all of the stripe, or what follows what is mapped of it.
    ///
    /// # Safety
    /// Nobody uses these bytes, nor, but to read, another stripe at that place.
    pub unsafe fn map(&self, stripe: usize, place: Place, within: Range<usize>) -> Result<()> {
        let start = stripe * self.stripe_bytes + within.start;
        assert!(within.start < within.end && within.end <= self.stripe_bytes && start + within.len() <= self.len);
        let Some(device) = self.device(place.device) else {
            return Err(Error::internal(format!("a window has no device {}", place.device)));
        };
        let offset = place.slot as usize * self.stripe_bytes + within.start;
        // SAFETY: inside the reservation, and nobody's by the caller's promise.
        unsafe { device.map_at(self.at(start), offset, within.len())? };
        let mut table = self.write();
        if table.places.len() <= stripe {
            table.places.resize(stripe + 1, None);
        }
        table.places[stripe] = Some(place);
        self.note_traits(&table);
        Ok(())
    }

    /// Makes room for all places: from here on mapping a stripe allocates nothing.
    pub fn reserve_places(&self) {
        self.write().places.reserve_exact(self.len / self.stripe_bytes);
    }

    /// Changes what may be done to the bytes of a stripe, which is mapped wholly.
    ///
    /// # Safety
    /// Nobody does anything else there than `protection` allows.
    pub unsafe fn protect(&self, stripe: usize, protection: Protection) -> Result<()> {
        let address = self.at(stripe * self.stripe_bytes).as_ptr();
        // SAFETY: inside the reservation, and the caller's promise.
        if unsafe { libc::mprotect(address.cast(), self.stripe_bytes, protection.flags()) } != 0 {
            return Err(Error::io("protect a tablespace's memory", &io::Error::last_os_error()));
        }
        Ok(())
    }

    /// Takes what is mapped of the stripe from its byte `from` on out of the address space.
    ///
    /// # Safety
    /// Nobody uses these bytes.
    pub unsafe fn unmap(&self, stripe: usize, from: usize) -> Result<()> {
        let len = self.stripe_bytes - from;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        let address = self.at(stripe * self.stripe_bytes + from).as_ptr();
        // SAFETY: inside the reservation, and nobody's by the caller's promise.
        let mapped = unsafe { libc::mmap(address.cast(), len, libc::PROT_NONE, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(Error::io("unmap a tablespace's memory", &io::Error::last_os_error()));
        }
        // After that: what is still there has its place.
        if from == 0
            && let Some(place) = self.write().places.get_mut(stripe)
        {
            *place = None;
        }
        Ok(())
    }

    /// The first piece of `range`: as far as it is one run of one device's bytes.
    fn piece(&self, range: Range<usize>) -> Option<Piece> {
        let table = self.read();
        let place_of = |stripe: usize| table.places.get(stripe).copied().flatten();
        let first = range.start / self.stripe_bytes;
        let place = place_of(first)?;
        let device = table.devices.get(usize::from(place.device))?.clone()?;
        let mut stripe = first;
        while (stripe + 1) * self.stripe_bytes < range.end
            && place_of(stripe + 1)
                == Some(Place { device: place.device, slot: place.slot + (stripe + 1 - first) as u32 })
        {
            stripe += 1;
        }
        let end = range.end.min((stripe + 1) * self.stripe_bytes);
        let offset = place.slot as usize * self.stripe_bytes + range.start % self.stripe_bytes;
        Some(Piece { range: range.start..end, device, offset })
    }

    /// Where the last piece of `range` starts: from there on it is one run of one device's bytes.
    pub fn last_piece_start(&self, range: Range<usize>) -> usize {
        if self.fixed.is_some() {
            return range.start;
        }
        let mut start = range.start;
        while let Some(piece) = self.piece(start..range.end) {
            if piece.range.end == range.end {
                break;
            }
            start = piece.range.end;
        }
        start
    }

    /// Calls `each` with the pieces of `range`, until one fails.
    fn pieces<E>(&self, range: Range<usize>, mut each: impl FnMut(&Piece) -> Result<(), E>) -> Result<(), E> {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} is outside a window of {}", self.len);
        let mut start = range.start;
        while start < range.end {
            let Some(piece) = self.piece(start..range.end) else {
                stop(format_args!("bytes {start} to {} of a window are used, and are not mapped", range.end));
            };
            each(&piece)?;
            start = piece.range.end;
        }
        Ok(())
    }

    /// Reserves the memory or the blocks of `range` (byte offsets), so that writing there cannot fail. Allocates nothing
    /// from the process, not even for the error. What is committed before an error stays so.
    pub fn commit(&self, range: Range<usize>) -> io::Result<()> {
        match &self.fixed {
            Some(mapping) => mapping.commit(range),
            None => self.pieces(range, |piece| piece.device.commit(piece.offset..piece.offset + piece.range.len())),
        }
    }

    /// Backs the pages of `range` (byte offsets, whole pages) with memory now, rather than when each is used first. What
    /// they hold stays.
    pub fn populate(&self, range: Range<usize>) -> io::Result<()> {
        match &self.fixed {
            Some(_) => Ok(()),
            // SAFETY: mapped there.
            None => self
                .pieces(range, |piece| unsafe { piece.device.populate(self.at(piece.range.start), piece.range.len()) }),
        }
    }

    /// Gives the pages of `range` (byte offsets) back to the system; they read as zeroes afterwards. Only pages that lie
    /// wholly inside go. False where a device cannot (device DAX); then those before it may have.
    pub fn release(&self, range: Range<usize>) -> Result<bool> {
        if let Some(mapping) = &self.fixed {
            return mapping.release(range);
        }
        let mut all = true;
        self.pieces(range, |piece| {
            // SAFETY: mapped there, and the range's owner gives it up by calling this.
            all &= unsafe {
                piece.device.release(self.at(piece.range.start), piece.offset..piece.offset + piece.range.len())?
            };
            Ok(())
        })?;
        Ok(all)
    }

    /// Makes writes to `range` durable on devices that persist.
    pub fn persist(&self, range: Range<usize>) -> Result<()> {
        match &self.fixed {
            Some(mapping) => mapping.persist(range),
            // SAFETY: mapped there.
            None => self
                .pieces(range, |piece| unsafe { piece.device.persist(self.at(piece.range.start), piece.range.len()) }),
        }
    }

    /// Copies `bytes` to `offset`, and makes them durable on devices that persist. What is not mapped ends the process.
    ///
    /// # Safety
    /// Nobody else uses these bytes of the window meanwhile.
    pub unsafe fn store(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        match &self.fixed {
            // SAFETY: the caller's promise.
            Some(mapping) => unsafe { mapping.store(offset, bytes) },
            None => self.pieces(offset..offset + bytes.len(), |piece| {
                let part = &bytes[piece.range.start - offset..piece.range.end - offset];
                // SAFETY: mapped there, and the caller's promise.
                unsafe { piece.device.store(self.at(piece.range.start), part) }
            }),
        }
    }

    fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset <= self.len);
        // SAFETY: inside the reservation.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if self.fixed.is_none() {
            // SAFETY: reserved with this length, and nothing refers to it once its owner is dropped.
            unsafe { unmap(self.base, self.len) };
        }
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::{Content, Location, MapOptions};

    const STRIPE: usize = HUGE_PAGE_BYTES;

    fn device(bytes: usize) -> Device {
        Device::open(&Location::Anon, Some(bytes as u64), MapOptions { huge_pages: false }, &|_| Ok(Content::Goes))
            .unwrap()
    }

    fn write(window: &Window, offset: usize, byte: u8) {
        // SAFETY: mapped, and used by one test on one thread.
        unsafe { window.base().add(offset).write(byte) };
    }

    fn read(window: &Window, offset: usize) -> u8 {
        // SAFETY: as above.
        unsafe { window.base().add(offset).read() }
    }

    fn place(device: u16, slot: u32) -> Place {
        Place { device, slot }
    }

    #[test]
    fn where_addresses_are_scarce_fewer_are_reserved() {
        // More than any processor has.
        let window = Window::reserve_some(1 << 60, 3 * STRIPE, STRIPE).unwrap();
        assert!((3 * STRIPE..1 << 57).contains(&window.len()) && window.len().is_multiple_of(STRIPE));
        assert!(Window::reserve_some(1 << 60, 1 << 60, STRIPE).is_err());
    }

    #[test]
    fn devices_share_addresses_and_stripes_come_and_go() {
        let window = Window::reserve(16 * STRIPE, STRIPE).unwrap();
        assert_eq!(window.base().addr().get() % STRIPE, 0);
        let first = window.add(device(3 * STRIPE)).unwrap();
        let second = window.add(device(2 * STRIPE)).unwrap();
        assert_eq!((first, second), (0, 1));
        for (stripe, at) in [place(0, 0), place(1, 0), place(0, 1), place(0, 2)].into_iter().enumerate() {
            // SAFETY: nobody uses anything yet.
            unsafe { window.map(stripe, at, 0..STRIPE).unwrap() };
            write(&window, stripe * STRIPE, stripe as u8 + 1);
        }
        // Stripes 2 and 3 are one run of the first device.
        assert_eq!(window.last_piece_start(0..4 * STRIPE - 1), 2 * STRIPE);
        assert_eq!(window.last_piece_start(5..STRIPE), 5);
        assert!(window.release(STRIPE..3 * STRIPE).unwrap());
        assert_eq!([0, 1, 2, 3].map(|stripe| read(&window, stripe * STRIPE)), [1, 0, 0, 4]);
        // A stripe moves to other addresses: its place is free before it is taken.
        // SAFETY: nobody holds a reference.
        unsafe {
            window.unmap(1, 0).unwrap();
            window.map(9, place(1, 0), 0..4096).unwrap();
            window.map(9, place(1, 0), 4096..STRIPE).unwrap();
        }
        assert_eq!((window.place(1), window.place(9), window.place(100)), (None, Some(place(1, 0)), None));
        write(&window, 10 * STRIPE - 1, 1);
        // SAFETY: as above.
        unsafe { window.unmap(9, 0).unwrap() };
        assert_eq!(window.remove(1).unwrap().len(), 2 * STRIPE);
        assert!(window.device(1).is_none());
    }

    #[test]
    fn devices_are_counted() {
        let window = Window::reserve(STRIPE, STRIPE).unwrap();
        for number in 0..DEVICES_MAX as u16 {
            assert_eq!(window.add(device(STRIPE)).unwrap(), number);
        }
        assert!(window.add(device(STRIPE)).is_err());
        window.remove(3);
        assert_eq!(window.add(device(STRIPE)).unwrap(), 3);
    }
}
