//! What a tablespace is mapped of, and how that changes while it is in use.
//!
//! A change goes in steps, so that it leaves all of it or nothing:
//!
//! 1. *prepared*: what can fail is done. New memory is there but closed; memory that is to go is closed, so that nobody
//!    takes more of it, and whoever owns some keeps it.
//! 2. Its user moves what lies in closed memory elsewhere, or waits for it to be given back ([`Reshape::left_bytes`]), and
//!    records the configuration to come.
//! 3. *finished*: memory that is to go is unmapped and given back, new memory is opened. Or *dropped*, which undoes step 1.
//!
//! A device's superblock never promises more than the device has: it is written after the device has grown, and before it
//! shrinks.

use crate::space::bytes_of;
use crate::superblock::Superblock;
use crate::{Tablespace, TablespaceConfig};
use std::cell::Cell;
use std::ops::Range;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_device::{
    Device, HEADER_BYTES, HUGE_PAGE_BYTES, MapOptions, PAGE_BYTES, Place, Window, memory_total_bytes,
};

/// Most pages that a tablespace has books for.
const PAGES_MAX: u64 = u32::MAX as u64;

/// A tablespace can grow to so many times the size it was opened with, and to the machine's memory in any case. Addresses
/// and books that are never used cost nothing.
const GROWTH_MAX: u64 = 16;

/// Stripes that a tablespace has when it is opened, at least, if they are not as small as can be. With [`GROWTH_MAX`] that
/// bounds its mappings: a process may have 65,530 (`vm.max_map_count`).
const STRIPES_MIN: u64 = 1024;

#[derive(Debug, Default)]
pub(crate) struct Shape {
    parts: Vec<Part>,
    /// Bytes mapped, from the window's start on.
    len: usize,
}

#[derive(Debug)]
struct Part {
    device: u16,
    /// As it was found, then as it was last written. `None`: the device does not persist, or is new.
    superblock: Option<Superblock>,
}

impl Shape {
    /// One mapping that never changes.
    pub fn fixed() -> Shape {
        Shape::default()
    }

    /// Opens what `config` names, and reserves addresses to map it at.
    pub fn open(config: &TablespaceConfig) -> Result<(Window, Shape)> {
        let (device, superblock) = open_device(config)?;
        let len = device.len();
        let stripe = stripe_bytes(len, device.page_size());
        let window = match reserved_bytes(len, stripe).and_then(|reserved| Window::reserve_some(reserved, len, stripe))
        {
            Ok(window) => window,
            Err(error) => {
                device.undo_open();
                return Err(error);
            }
        };
        let number = window.add(device).map_err(|_| Error::internal("a new window has no room for a device"))?;
        Ok((window, Shape { parts: vec![Part { device: number, superblock }], len }))
    }

    /// Puts devices back as they were found, when nothing came of opening the tablespace.
    pub fn undo_open(&mut self, window: &Window) {
        for part in self.parts.drain(..) {
            if let Some(device) = window.device(part.device) {
                device.undo_open();
            }
        }
    }

    /// Gives the content of files back to the system.
    pub fn clear(&mut self, window: &Window, name: &str) {
        for part in &self.parts {
            if let Some(device) = window.device(part.device)
                && let Err(error) = device.clear()
            {
                tracing::warn!(tablespace = name, %error, "a device's memory was not given back");
            }
        }
    }
}

fn open_device(config: &TablespaceConfig) -> Result<(Device, Option<Superblock>)> {
    let found = Cell::new(None);
    let name = config.location.to_string();
    let options = MapOptions { huge_pages: config.huge_pages, network: None };
    let device = Device::open(&config.location, config.size_bytes, options, &|header| {
        found.set(Superblock::read(header, &name)?);
        Ok(())
    })?;
    Ok((device, found.get()))
}

/// Bytes of a stripe, for a tablespace of `len` bytes on devices with pages of `page_size`.
fn stripe_bytes(len: usize, page_size: usize) -> usize {
    let share = (len as u64 / STRIPES_MIN).next_power_of_two();
    (share as usize).max(HUGE_PAGE_BYTES).max(page_size)
}

fn reserved_bytes(len: usize, stripe: usize) -> Result<usize> {
    let machine = memory_total_bytes().unwrap_or(0);
    let most = PAGES_MAX * PAGE_BYTES as u64 / stripe as u64 * stripe as u64;
    let wanted = (len as u64).saturating_mul(GROWTH_MAX).max(machine).next_multiple_of(stripe as u64).min(most);
    if (len as u64) > wanted {
        return Err(Error::new(
            SqlState::PROGRAM_LIMIT_EXCEEDED,
            format!("a tablespace of {} is not possible", ByteSize(len as u64)),
        )
        .with_detail(format!("A tablespace holds from 4 kB to {}.", ByteSize(most))));
    }
    Ok(wanted as usize)
}

impl Tablespace {
    /// Maps all that a new tablespace has.
    pub(crate) fn map_all(&self) -> Result<()> {
        let mut shape = self.lock_shape();
        let Shape { parts, len } = &mut *shape;
        self.map_run(0..*len)?;
        self.open_pages(0..*len / PAGE_BYTES);
        for part in parts {
            if self.persists(part) {
                self.take_header(0)?;
                self.write_superblock(part, *len)?;
            }
        }
        Ok(())
    }

    /// Maps `range` of the only part, byte offsets in the window and in the device alike.
    fn map_run(&self, range: Range<usize>) -> Result<()> {
        let stripe_bytes = self.window.stripe_bytes();
        let mut start = range.start;
        while start < range.end {
            let stripe = start / stripe_bytes;
            let end = range.end.min((stripe + 1) * stripe_bytes);
            let within = start - stripe * stripe_bytes..end - stripe * stripe_bytes;
            // SAFETY: these pages are closed and were never open, or were unmapped since.
            if let Err(error) = unsafe { self.window.map(stripe, Place { device: 0, slot: stripe as u32 }, within) } {
                // SAFETY: as above.
                unsafe { self.unmap_run(range.start..start) };
                return Err(error);
            }
            start = end;
        }
        Ok(())
    }

    /// Takes `range` out of the address space, up to the end of its last stripe.
    ///
    /// # Safety
    /// Nobody uses a byte from the range's start on.
    unsafe fn unmap_run(&self, range: Range<usize>) {
        let stripe_bytes = self.window.stripe_bytes();
        let mut start = range.start;
        while start < range.end {
            let stripe = start / stripe_bytes;
            // SAFETY: the caller's promise.
            if let Err(error) = unsafe { self.window.unmap(stripe, start - stripe * stripe_bytes) } {
                // The memory itself was given back; what stays is a mapping that nobody uses.
                tracing::warn!(tablespace = self.name(), %error, "addresses were not given back");
            }
            start = (stripe + 1) * stripe_bytes;
        }
    }

    fn persists(&self, part: &Part) -> bool {
        self.window.device(part.device).is_some_and(|device| device.persists())
    }

    /// Writes into a device's header that `len` bytes of it are in use.
    fn write_superblock(&self, part: &mut Part, len: usize) -> Result<()> {
        let superblock = Superblock::next(part.superblock, len as u64)?;
        // SAFETY: the page was taken for this when the device was mapped, and the shape, which is locked, guards it.
        superblock.write(unsafe { std::slice::from_raw_parts_mut(self.window.base().as_ptr(), HEADER_BYTES) });
        part.superblock = Some(superblock);
        tracing::debug!(tablespace = self.name(), superblock = superblock.describe(), "superblock written");
        self.window.persist(0..HEADER_BYTES)
    }

    /// Prepares to grow or shrink to `size_bytes`, rounded up to the device's unit. 54000 beyond the addresses that were
    /// reserved; 53100 when the device has no room; 53200 when what tables hold does not fit; 55006 while another change is
    /// under way; 0A000 for memory that cannot change.
    pub fn resize(&self, size_bytes: u64) -> Result<Reshape<'_>> {
        let shape = self.changeable_shape()?;
        let device = self.window.device(shape.parts[0].device);
        let device = device.ok_or_else(|| Error::internal("a tablespace has no device"))?;
        if size_bytes == 0 {
            return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "the size of a tablespace cannot be zero"));
        }
        let (from, to) = (shape.len, device.rounded_len(size_bytes)?);
        if to > self.window.len() {
            return Err(Error::new(
                SqlState::PROGRAM_LIMIT_EXCEEDED,
                format!("tablespace \"{}\" cannot grow to {}", self.name(), ByteSize(to as u64)),
            )
            .with_detail(format!(
                "When it was opened, addresses for {} were reserved.",
                ByteSize(self.window.len() as u64)
            ))
            .with_hint("A restart reserves addresses for its present size anew."));
        }
        let config = TablespaceConfig { size_bytes: Some(to as u64), ..(*self.config()).clone() };
        let step = if to > from {
            device.resize(to)?;
            self.map_run(from..to).inspect_err(|_| back_to(&device, from))?;
            Step::Grow { from, to }
        } else if to < from {
            let held = self.lasting_bytes();
            if held > to as u64 {
                return Err(self.too_full(to as u64, held));
            }
            self.is_shrinking.store(true, Ordering::Release);
            self.close_pages(to / PAGE_BYTES..from / PAGE_BYTES);
            Step::Shrink { from, to }
        } else {
            Step::Done
        };
        Ok(Reshape { space: self, shape, config, step })
    }

    fn changeable_shape(&self) -> Result<MutexGuard<'_, Shape>> {
        let Some(shape) = self.try_lock_shape() else {
            return Err(Error::new(
                SqlState::OBJECT_IN_USE,
                format!("tablespace \"{}\" is being altered by another session", self.name()),
            ));
        };
        if shape.parts.is_empty() {
            return Err(Error::unsupported(format!(
                "tablespace \"{}\" at {} keeps the size and the place it was made with",
                self.name(),
                self.config().location
            )));
        }
        Ok(shape)
    }

    fn too_full(&self, size: u64, held: u64) -> Error {
        Error::new(
            SqlState::OUT_OF_MEMORY,
            format!("tablespace \"{}\" holds more than {}", self.name(), ByteSize(size)),
        )
        .with_detail(format!("Tables and headers take {} of it.", ByteSize(held)))
        .with_hint("Move tables elsewhere with ALTER TABLE … SET TABLESPACE first.")
    }
}

fn back_to(device: &Device, len: usize) {
    if let Err(error) = device.resize(len) {
        tracing::warn!(device = %device.location(), %error, "a device keeps a size that it was given in vain");
    }
}

/// A change that is prepared. Dropped, it is undone.
#[derive(Debug)]
#[must_use = "a change that is not finished is undone"]
pub struct Reshape<'a> {
    space: &'a Tablespace,
    shape: MutexGuard<'a, Shape>,
    config: TablespaceConfig,
    step: Step,
}

/// In bytes.
#[derive(Debug)]
enum Step {
    Done,
    Grow { from: usize, to: usize },
    Shrink { from: usize, to: usize },
}

impl Reshape<'_> {
    /// What the tablespace's configuration will be.
    pub fn config(&self) -> &TablespaceConfig {
        &self.config
    }

    /// Bytes in closed memory that have an owner still.
    pub fn left_bytes(&self) -> u64 {
        match self.step {
            Step::Shrink { from, to } => self.space.used_bytes_in(to / PAGE_BYTES..from / PAGE_BYTES),
            Step::Done | Step::Grow { .. } => 0,
        }
    }

    /// Makes the change. Nothing may be left in closed memory.
    pub fn finish(mut self) -> Result<()> {
        if self.left_bytes() > 0 {
            return Err(Error::internal("a tablespace is cut off where somebody owns memory"));
        }
        let space = self.space;
        match std::mem::replace(&mut self.step, Step::Done) {
            Step::Done => {}
            Step::Grow { from, to } => {
                self.shape.len = to;
                self.note_superblock();
                space.open_pages(from / PAGE_BYTES..to / PAGE_BYTES);
            }
            Step::Shrink { from, to } => {
                self.shape.len = to;
                let pages = to / PAGE_BYTES..from / PAGE_BYTES;
                if let Err(error) = space.give_up(pages.clone()) {
                    tracing::warn!(tablespace = space.name(), %error, "memory was not given back");
                }
                // SAFETY: these pages are closed, and nobody owns one.
                unsafe { space.unmap_run(bytes_of(&pages)) };
                space.cut(pages.start);
                space.is_shrinking.store(false, Ordering::Release);
                self.note_superblock();
                if let Some(device) = space.window.device(self.shape.parts[0].device) {
                    back_to(&device, to);
                }
            }
        }
        space.set_config(self.config.clone());
        Ok(())
    }
}

impl Reshape<'_> {
    fn note_superblock(&mut self) {
        let space = self.space;
        let Shape { parts, len } = &mut *self.shape;
        for part in parts.iter_mut().filter(|part| space.persists(part)) {
            if let Err(error) = space.write_superblock(part, *len) {
                // Nothing relies on it before the device is opened anew, which writes another.
                tracing::warn!(tablespace = space.name(), %error, "a device's header was not written");
            }
        }
    }
}

impl Drop for Reshape<'_> {
    fn drop(&mut self) {
        let space = self.space;
        match self.step {
            Step::Done => {}
            Step::Grow { from, to } => {
                // SAFETY: mapped by `resize`, and never opened.
                unsafe { space.unmap_run(from..to) };
                if let Some(device) = space.window.device(self.shape.parts[0].device) {
                    back_to(&device, from);
                }
            }
            Step::Shrink { from, to } => {
                space.is_shrinking.store(false, Ordering::Release);
                space.open_pages(to / PAGE_BYTES..from / PAGE_BYTES);
            }
        }
    }
}
