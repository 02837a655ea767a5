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
//! A tablespace of one location is *plain*: byte n of the window is byte n of the device, and it grows and shrinks at the
//! end by any number of pages. One of several is *striped* (`striped.rs`), and consists of whole stripes. A *paged* one
//! (`paged.rs`) grows and shrinks at its end too.
//!
//! A device's superblock never promises more than the device has: it is written after the device has grown, and before it
//! shrinks.

use crate::layout;
use crate::leased::Leasing;
use crate::paged::Paging;
use crate::space::bytes_of;
use crate::superblock::Superblock;
use crate::{Left, Tablespace, TablespaceConfig};
use std::cell::Cell;
use std::ops::Range;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_device::{
    Content, CostModel, DEVICES_MAX, Device, HEADER_BYTES, HUGE_PAGE_BYTES, Location, MapOptions, PAGE_BYTES, Place,
    Profile, Share, Stripe, Window, memory_total_bytes,
};

/// Most pages that a tablespace has books for.
const PAGES_MAX: u64 = u32::MAX as u64;

/// A tablespace can grow to so many times the size it was opened with, and to the machine's memory in any case. Addresses
/// and books that are never used cost nothing.
const GROWTH_MAX: u64 = 16;

/// Stripes that a tablespace has when it is opened, at least, if they are not as small as can be. Each may be a mapping of
/// its own, of which a process has 65,530 (`vm.max_map_count`).
const STRIPES_MIN: u64 = 1024;

/// Stripes that a tablespace of several locations can have.
const STRIPES_MAX: usize = 16 << 10;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One mapping that never changes.
    #[default]
    Fixed,
    Plain,
    Striped,
    Paged,
    /// Over a pool (`leased.rs`).
    Leased,
}

#[derive(Debug, Default)]
pub(crate) struct Shape {
    pub kind: Kind,
    /// None of fixed and of paged ones.
    pub parts: Vec<Part>,
    /// Of plain and paged ones: bytes mapped, from the window's start on.
    pub len: usize,
}

#[derive(Debug)]
pub(crate) struct Part {
    /// The window's number for it.
    pub device: u16,
    pub stripe: Stripe,
    pub profile: Option<Profile>,
    /// As it was found, then as it was last written. `None`: the device does not persist, or is new.
    superblock: Option<Superblock>,
    /// What it holds stays.
    pub keeps: bool,
    /// The page of the window that holds the device's header, once it is mapped.
    header: Option<usize>,
    /// Of a striped one: slots that are mapped nowhere, in descending order.
    pub idle: Vec<u32>,
}

impl Shape {
    pub fn fixed() -> Shape {
        Shape::default()
    }

    pub fn paged(len: usize) -> Shape {
        Shape { kind: Kind::Paged, len, ..Shape::default() }
    }

    /// Opens what `config` names, and reserves addresses to map it at.
    pub fn open(config: &TablespaceConfig, left: Option<&Left>) -> Result<(Window, Shape)> {
        let stripes = config.location.stripes();
        let mut opened = Vec::with_capacity(stripes.len());
        let result = if stripes.len() == 1 {
            Shape::open_plain(config, stripes, left, &mut opened)
        } else if let Some(left) = left.filter(|left| left.is_needed) {
            return Err(left.missing(&config.location));
        } else {
            Shape::open_striped(config, stripes, &mut opened)
        };
        result.inspect_err(|_| opened.iter().for_each(|(device, _): &(Device, _)| device.undo_open())).and_then(
            |(window, mut shape)| {
                for (part, (device, superblock)) in shape.parts.iter_mut().zip(opened) {
                    part.device = window.add(device).map_err(|_| too_many())?;
                    part.superblock = superblock;
                }
                Ok((window, shape))
            },
        )
    }

    fn open_plain(
        config: &TablespaceConfig,
        stripes: Vec<Stripe>,
        left: Option<&Left>,
        opened: &mut Vec<(Device, Option<Superblock>)>,
    ) -> Result<(Window, Shape)> {
        let mut parts: Vec<Part> =
            stripes.into_iter().enumerate().map(|(index, stripe)| Part::new(config, index, stripe)).collect();
        let location = &parts[0].stripe.location;
        let keeps = |found: Option<&Superblock>| {
            let is_known = found.is_some_and(|found| left.is_some_and(|left| left.contents.is_of(found)));
            match left.filter(|left| left.is_needed && !is_known) {
                Some(left) => Err(left.missing(location)),
                None => Ok(is_known),
            }
        };
        opened.push(open_device(location, config.size_bytes, config.huge_pages, &keeps)?);
        // Once more: nobody was asked if the device never keeps anything.
        let is_known = keeps(opened[0].1.as_ref())?;
        parts[0].keeps = is_known;
        let device = &opened[0].0;
        let len = device.len();
        let stripe_bytes = stripe_bytes(len as u64, device.page_size());
        let window = Window::reserve_some(reserved_bytes(len, stripe_bytes)?, len, stripe_bytes)?;
        Ok((window, Shape { kind: Kind::Plain, parts, len }))
    }

    fn open_striped(
        config: &TablespaceConfig,
        stripes: Vec<Stripe>,
        opened: &mut Vec<(Device, Option<Superblock>)>,
    ) -> Result<(Window, Shape)> {
        if stripes.len() > DEVICES_MAX {
            return Err(too_many());
        }
        let weights: Vec<u32> = stripes.iter().map(|stripe| stripe.weight).collect();
        let mut parts: Vec<Part> =
            stripes.into_iter().enumerate().map(|(index, stripe)| Part::new(config, index, stripe)).collect();
        let open = |part: &Part, size| open_device(&part.stripe.location, size, config.huge_pages, &|_| Ok(false));
        let (stripe, counts) = match config.size_bytes {
            Some(size) => {
                let stripe = stripe_bytes(size, HUGE_PAGE_BYTES);
                let total = usize::try_from(size.div_ceil(stripe as u64)).unwrap_or(usize::MAX).min(1 << 24);
                let counts = layout::counts(&weights, total);
                if counts.contains(&0) {
                    return Err(too_small_for_weights(size, stripe));
                }
                for (part, count) in parts.iter().zip(&counts) {
                    opened.push(open(part, Some((count * stripe) as u64))?);
                }
                (stripe, counts)
            }
            None => {
                for part in &parts {
                    opened.push(open(part, None)?);
                }
                // As much of each as the smallest for its weight allows.
                let total: u64 = opened.iter().map(|(device, _)| device.len() as u64).sum();
                let stripe = stripe_bytes(total, HUGE_PAGE_BYTES);
                let rounds =
                    opened.iter().zip(&weights).map(|((device, _), weight)| device.len() / stripe / *weight as usize);
                let rounds = rounds.min().unwrap_or(0);
                if rounds == 0 {
                    return Err(too_small_for_weights(total, stripe));
                }
                (stripe, weights.iter().map(|weight| rounds * *weight as usize).collect())
            }
        };
        for (device, _) in opened.iter() {
            check_unit(device, stripe)?;
        }
        for (part, count) in parts.iter_mut().zip(&counts) {
            part.idle = (0..*count as u32).rev().collect();
        }
        let len = counts.iter().sum::<usize>() * stripe;
        let most = (STRIPES_MAX * stripe).max(len);
        let window = Window::reserve_some(reserved_bytes(len, stripe)?.min(most), len, stripe)?;
        Ok((window, Shape { kind: Kind::Striped, parts, len: 0 }))
    }

    /// Puts devices back as they were found, when nothing came of opening the tablespace.
    pub fn undo_open(&mut self, window: &Window) {
        for part in self.parts.drain(..) {
            if let Some(device) = window.device(part.device) {
                device.undo_open();
            }
        }
    }

    /// Gives the content of files back to the system: nothing behind the headers is kept from one run to the next.
    pub fn clear(&self, window: &Window, name: &str) {
        for device in self.parts.iter().filter_map(|part| window.device(part.device)) {
            clear(&device, name);
        }
    }

    /// What accesses cost, if any part of it stands for another device.
    pub fn cost_model(&self) -> Result<Option<CostModel>> {
        if self.parts.iter().all(|part| part.profile.is_none()) {
            return Ok(None);
        }
        let total: u32 = self.parts.iter().map(|part| part.stripe.weight).sum();
        let share = |part: &Part| Share {
            part: f64::from(part.stripe.weight) / f64::from(total),
            profile: part.profile.clone(),
        };
        CostModel::striped_on_this_machine(self.parts.iter().map(share).collect()).map(Some)
    }

    pub fn weights(&self) -> Vec<u32> {
        self.parts.iter().map(|part| part.stripe.weight).collect()
    }
}

impl Part {
    fn new(config: &TablespaceConfig, index: usize, stripe: Stripe) -> Part {
        let profile = config.profile_of(index).cloned();
        Part { device: 0, stripe, profile, superblock: None, keeps: false, header: None, idle: Vec::new() }
    }
}

pub(crate) fn clear(device: &Device, name: &str) {
    if let Err(error) = device.clear() {
        tracing::warn!(tablespace = name, %error, "a device's memory was not given back");
    }
}

/// `keeps`: whether what it holds is to stay; an error leaves it as it is.
fn open_device(
    location: &Location,
    size: Option<u64>,
    huge_pages: bool,
    keeps: &dyn Fn(Option<&Superblock>) -> Result<bool>,
) -> Result<(Device, Option<Superblock>)> {
    let found = Cell::new(None);
    let name = location.to_string();
    let device = Device::open(location, size, MapOptions { huge_pages }, &|header| {
        let superblock = Superblock::read(header, &name)?;
        found.set(superblock);
        Ok(if keeps(superblock.as_ref())? { Content::Stays } else { Content::Goes })
    })?;
    Ok((device, found.get()))
}

fn too_many() -> Error {
    Error::new(
        SqlState::PROGRAM_LIMIT_EXCEEDED,
        format!("a tablespace of more than {DEVICES_MAX} locations is not possible"),
    )
}

fn too_small_for_weights(size: u64, stripe: usize) -> Error {
    Error::new(
        SqlState::INVALID_PARAMETER_VALUE,
        format!("{} are too little for several locations with these weights", ByteSize(size)),
    )
    .with_detail(format!("Each location has at least one stripe of {}.", ByteSize(stripe as u64)))
}

fn check_unit(device: &Device, stripe: usize) -> Result<()> {
    if device.page_size() <= stripe {
        return Ok(());
    }
    Err(Error::unsupported(format!(
        "\"{}\" has pages of {}, larger than this tablespace's stripes of {}",
        device.location(),
        ByteSize(device.page_size() as u64),
        ByteSize(stripe as u64)
    )))
}

/// Bytes of a stripe, for a tablespace of `len` bytes on devices with pages of `page_size`.
fn stripe_bytes(len: u64, page_size: usize) -> usize {
    let share = (len / STRIPES_MIN).min(1 << 40).next_power_of_two();
    (share as usize).max(HUGE_PAGE_BYTES).max(page_size)
}

/// Addresses for a tablespace of `len` bytes, in whole stripes.
pub(crate) fn reserved_bytes(len: usize, stripe: usize) -> Result<usize> {
    let machine = memory_total_bytes().unwrap_or(0);
    let most = PAGES_MAX * PAGE_BYTES as u64 / stripe as u64 * stripe as u64;
    let wanted =
        (len as u64).saturating_mul(GROWTH_MAX).max(machine).min(most).next_multiple_of(stripe as u64).min(most);
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
        if shape.kind == Kind::Striped {
            return self.lay_all(&mut shape);
        }
        let Shape { parts, len, .. } = &mut *shape;
        self.map_run(0..*len)?;
        self.open_pages(0..*len / PAGE_BYTES);
        for part in parts {
            self.take_header_of(part, 0, *len, Kind::Plain)?;
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
            unsafe { self.unmap(stripe, start - stripe * stripe_bytes) };
            start = (stripe + 1) * stripe_bytes;
        }
    }

    /// Takes the bytes of a stripe from `from` on out of the address space.
    ///
    /// # Safety
    /// Nobody uses them.
    pub(crate) unsafe fn unmap(&self, stripe: usize, from: usize) {
        // SAFETY: the caller's promise.
        if let Err(error) = unsafe { self.window.unmap(stripe, from) } {
            // The memory itself was given back; what stays is a mapping that nobody uses.
            tracing::warn!(tablespace = self.name(), %error, "addresses were not given back");
        }
    }

    /// Takes page `page`, which was just opened, for the header of a device that persists, and writes that `len` bytes of
    /// it are in use.
    pub(crate) fn take_header_of(&self, part: &mut Part, page: usize, len: usize, kind: Kind) -> Result<()> {
        if part.header.is_some() || !self.window.device(part.device).is_some_and(|device| device.persists()) {
            return Ok(());
        }
        self.take_header(page)?;
        part.header = Some(page);
        self.write_superblock(part, len, kind, part.keeps)
    }

    pub(crate) fn header_of(&self, part: &Part) -> Option<usize> {
        part.header
    }

    fn write_superblock(&self, part: &mut Part, len: usize, kind: Kind, keeps: bool) -> Result<()> {
        let Some(page) = part.header else { return Ok(()) };
        let superblock = Superblock::next(part.superblock, len as u64, keeps)?;
        let at = bytes_of(&(page..page + 1));
        // SAFETY: the page was taken for this when the device was mapped, and the shape, which is locked, guards it.
        let header = unsafe { std::slice::from_raw_parts_mut(self.window.base().as_ptr().add(at.start), HEADER_BYTES) };
        superblock.write(header);
        part.superblock = Some(superblock);
        self.note_contents(kind, part.device, &superblock);
        tracing::debug!(tablespace = self.name(), superblock = superblock.describe(), "superblock written");
        self.window.persist(at)
    }

    /// As above, where nothing can be done about a failure.
    pub(crate) fn note_superblock(&self, part: &mut Part, len: usize, kind: Kind) {
        // Whoever owned memory that goes has moved.
        if let Err(error) = self.write_superblock(part, len, kind, false) {
            // Nothing relies on it before the device is opened anew, which writes another.
            tracing::warn!(tablespace = self.name(), %error, "a device's header was not written");
        }
    }

    /// Prepares to grow or shrink to `size_bytes`, rounded up to whole units of the device, or stripes where there are
    /// several. 54000 beyond the addresses that were reserved; 53100 when a device has no room; 53200 when what tables
    /// hold does not fit; 55006 while another change is under way; 0A000 for memory that cannot change; 22023 when the
    /// cache of paged memory would be too small or too large.
    pub fn resize(&self, size_bytes: u64) -> Result<Reshape<'_>> {
        let shape = self.changeable_shape()?;
        if size_bytes == 0 {
            return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "the size of a tablespace cannot be zero"));
        }
        match shape.kind {
            Kind::Striped => return self.resize_striped(shape, size_bytes),
            Kind::Paged => return self.resize_paged(shape, Some(size_bytes), None),
            Kind::Leased => return self.resize_leased(shape, size_bytes),
            Kind::Plain | Kind::Fixed => {}
        }
        let device = self.device_of(&shape.parts[0])?;
        let (from, to) = (shape.len, device.rounded_len(size_bytes)?);
        self.check_addresses(to as u64)?;
        let config = TablespaceConfig { size_bytes: Some(to as u64), ..(*self.config()).clone() };
        let step = if to > from {
            device.resize(to)?;
            self.map_run(from..to).inspect_err(|_| back_to(&device, from))?;
            Step::GrowEnd { from, to }
        } else if to < from {
            self.check_fits(to as u64, 0)?;
            self.is_shrinking.store(true, Ordering::Release);
            self.close_pages(to / PAGE_BYTES..from / PAGE_BYTES);
            Step::ShrinkEnd { from, to }
        } else {
            Step::Done
        };
        Ok(Reshape { space: self, shape, config, step })
    }

    /// Prepares to take in another location, with room for its weight: each unit of weight holds the same. Codes as of
    /// `resize`, and those of opening a device.
    pub fn add_location(&self, stripe: Stripe, profile: Option<Profile>) -> Result<Reshape<'_>> {
        let shape = self.divisible_shape()?;
        self.add_striped(shape, stripe, profile)
    }

    /// Prepares to do without a location and the room that it brought. 42704 when there is no such, 55000 for the only
    /// one, else as `resize`.
    pub fn drop_location(&self, location: &Location) -> Result<Reshape<'_>> {
        let shape = self.divisible_shape()?;
        self.drop_striped(shape, location)
    }

    pub(crate) fn device_of(&self, part: &Part) -> Result<std::sync::Arc<Device>> {
        self.window.device(part.device).ok_or_else(|| Error::internal("a tablespace has no device"))
    }

    pub(crate) fn check_addresses(&self, size: u64) -> Result<()> {
        if size <= self.window.len() as u64 {
            return Ok(());
        }
        Err(Error::new(
            SqlState::PROGRAM_LIMIT_EXCEEDED,
            format!("tablespace \"{}\" cannot grow to {}", self.name(), ByteSize(size)),
        )
        .with_detail(format!("When it was opened, addresses for {} were reserved.", ByteSize(self.window.len() as u64)))
        .with_hint("A restart reserves addresses for its present size anew."))
    }

    /// Whether what lasts fits into `size` bytes, but for `leaving` bytes that go.
    pub(crate) fn check_fits(&self, size: u64, leaving: u64) -> Result<()> {
        let held = self.lasting_bytes().saturating_sub(leaving);
        if held <= size {
            return Ok(());
        }
        Err(Error::new(
            SqlState::OUT_OF_MEMORY,
            format!("tablespace \"{}\" holds more than {}", self.name(), ByteSize(size)),
        )
        .with_detail(format!(
            "Tables and headers take {} of it, with what was dropped or moved and statements under way still read.",
            ByteSize(held)
        ))
        .with_hint(
            "Move tables elsewhere with ALTER TABLE … SET TABLESPACE first, or try again when statements have ended.",
        ))
    }

    /// Of memory that can have several locations; 0A000 for paged memory and that of a pool.
    fn divisible_shape(&self) -> Result<MutexGuard<'_, Shape>> {
        let shape = self.changeable_shape()?;
        if matches!(shape.kind, Kind::Paged | Kind::Leased) {
            return Err(Error::unsupported(format!(
                "\"{}\" of tablespace \"{}\" cannot be one of several locations",
                self.config().location,
                self.name()
            )));
        }
        Ok(shape)
    }

    pub(crate) fn changeable_shape(&self) -> Result<MutexGuard<'_, Shape>> {
        let Some(shape) = self.try_lock_shape() else {
            return Err(Error::new(
                SqlState::OBJECT_IN_USE,
                format!("tablespace \"{}\" is being altered by another session", self.name()),
            ));
        };
        if shape.kind == Kind::Fixed {
            return Err(Error::unsupported(format!(
                "tablespace \"{}\" at {} keeps the size and the place it was made with",
                self.name(),
                self.config().location
            )));
        }
        Ok(shape)
    }

    /// The configuration of what `parts` are, of `size` bytes.
    pub(crate) fn config_of<'a>(
        &self,
        parts: impl Iterator<Item = &'a Part> + Clone,
        size: u64,
    ) -> Result<TablespaceConfig> {
        let location = Location::of_stripes(parts.clone().map(|part| part.stripe.clone()).collect())?;
        let mut profiles: Vec<Option<Profile>> = parts.map(|part| part.profile.clone()).collect();
        let alike = profiles.windows(2).all(|pair| pair[0] == pair[1]);
        let profile = if alike { profiles.drain(..).next().flatten() } else { None };
        Ok(TablespaceConfig { location, profile, profiles, size_bytes: Some(size), ..(*self.config()).clone() })
    }

    pub(crate) fn new_part(&self, stripe: Stripe, profile: Option<Profile>, bytes: u64) -> Result<(Device, Part)> {
        let (device, superblock) =
            open_device(&stripe.location, Some(bytes), self.config().huge_pages, &|_| Ok(false))?;
        if let Err(error) = check_unit(&device, self.window.stripe_bytes()) {
            device.undo_open();
            return Err(error);
        }
        Ok((device, Part { device: 0, stripe, profile, superblock, keeps: false, header: None, idle: Vec::new() }))
    }

    /// Prepares the end of a plain tablespace to be a whole stripe: maps what is missing. Returns the bytes, to be opened.
    pub(crate) fn fill_last_stripe(&self, shape: &Shape) -> Result<Range<usize>> {
        let to = shape.len.next_multiple_of(self.window.stripe_bytes());
        if to > shape.len {
            let device = self.device_of(&shape.parts[0])?;
            device.resize(to)?;
            self.map_run(shape.len..to).inspect_err(|_| back_to(&device, shape.len))?;
        }
        Ok(shape.len..to)
    }

    /// Undoes that.
    pub(crate) fn empty_last_stripe(&self, shape: &Shape, filled: &Range<usize>) {
        if !filled.is_empty() {
            // SAFETY: mapped by `fill_last_stripe`, and never opened.
            unsafe { self.unmap_run(filled.clone()) };
            if let Ok(device) = self.device_of(&shape.parts[0]) {
                back_to(&device, filled.start);
            }
        }
    }
}

pub(crate) fn too_many_locations() -> Error {
    too_many()
}

pub(crate) fn too_many_stripes(name: &str, stripe: usize) -> Error {
    Error::new(
        SqlState::PROGRAM_LIMIT_EXCEEDED,
        format!("tablespace \"{name}\" cannot have more than {STRIPES_MAX} stripes of {}", ByteSize(stripe as u64)),
    )
    .with_hint("A restart chooses stripes for its present size anew.")
}

pub(crate) const fn pages_max() -> u64 {
    PAGES_MAX
}

pub(crate) const fn stripes_max() -> usize {
    STRIPES_MAX
}

pub(crate) fn back_to(device: &Device, len: usize) {
    if let Err(error) = device.resize(len) {
        tracing::warn!(device = %device.location(), %error, "a device keeps a size that it was given in vain");
    }
}

/// A change that is prepared. Dropped, it is undone.
#[derive(Debug)]
#[must_use = "a change that is not finished is undone"]
pub struct Reshape<'a> {
    pub(crate) space: &'a Tablespace,
    pub(crate) shape: MutexGuard<'a, Shape>,
    pub(crate) config: TablespaceConfig,
    pub(crate) step: Step,
}

#[derive(Debug)]
pub(crate) enum Step {
    Done,
    /// Of a plain tablespace; in bytes.
    GrowEnd {
        from: usize,
        to: usize,
    },
    ShrinkEnd {
        from: usize,
        to: usize,
    },
    Paging(Paging),
    Lease(Leasing),
    /// Of a striped one, or one that is about to be. Boxed: a rare step, larger than the others.
    Grow(Box<Growth>),
    Shrink(Box<Shrinking>),
}

#[derive(Debug)]
pub(crate) struct Growth {
    /// Stripes that are mapped, and closed.
    pub fresh: Vec<usize>,
    /// Bytes that make a plain tablespace's end a whole stripe, mapped and closed.
    pub filled: Range<usize>,
    /// Devices that grew, with the length they had.
    pub before: Vec<(u16, usize)>,
    pub part: Option<Part>,
}

#[derive(Debug)]
pub(crate) struct Shrinking {
    /// Stripes that are closed and had an owner, or may have.
    pub closed: Vec<usize>,
    /// Slots that were free, and are mapped nowhere any more.
    pub unmapped: Vec<Place>,
    /// The part that goes, if one does.
    pub part: Option<usize>,
}

impl Reshape<'_> {
    /// What the tablespace's configuration will be.
    pub fn config(&self) -> &TablespaceConfig {
        &self.config
    }

    /// Bytes in closed memory that have an owner still.
    pub fn left_bytes(&self) -> u64 {
        match &self.step {
            Step::ShrinkEnd { from, to } => self.space.used_bytes_in(to / PAGE_BYTES..from / PAGE_BYTES),
            Step::Paging(paging) if paging.to < paging.from => {
                self.space.used_bytes_in(paging.to / PAGE_BYTES..paging.from / PAGE_BYTES)
            }
            Step::Shrink(shrinking) => self.left_in_stripes(shrinking),
            Step::Lease(_) => self.space.left_in_leases(),
            Step::Done | Step::GrowEnd { .. } | Step::Paging(_) | Step::Grow(_) => 0,
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
            Step::GrowEnd { from, to } => {
                self.shape.len = to;
                space.note_superblock(&mut self.shape.parts[0], to, Kind::Plain);
                space.open_pages(from / PAGE_BYTES..to / PAGE_BYTES);
            }
            Step::ShrinkEnd { from, to } => {
                self.shape.len = to;
                let pages = to / PAGE_BYTES..from / PAGE_BYTES;
                space.give_up(pages.clone());
                // SAFETY: these pages are closed, and nobody owns one.
                unsafe { space.unmap_run(bytes_of(&pages)) };
                space.cut(pages.start);
                space.is_shrinking.store(false, Ordering::Release);
                space.note_superblock(&mut self.shape.parts[0], to, Kind::Plain);
                back_to(&*space.device_of(&self.shape.parts[0])?, to);
            }
            Step::Paging(paging) => space.finish_paging(&mut self.shape, &paging),
            Step::Lease(leasing) => space.finish_leasing(&leasing),
            Step::Grow(growth) => self.finish_growth(*growth)?,
            Step::Shrink(shrinking) => self.finish_shrinking(*shrinking),
        }
        space.set_config(self.config.clone());
        Ok(())
    }
}

impl Drop for Reshape<'_> {
    fn drop(&mut self) {
        let space = self.space;
        match std::mem::replace(&mut self.step, Step::Done) {
            Step::Done => {}
            Step::GrowEnd { from, to } => {
                // SAFETY: mapped by `resize`, and never opened.
                unsafe { space.unmap_run(from..to) };
                if let Ok(device) = space.device_of(&self.shape.parts[0]) {
                    back_to(&device, from);
                }
            }
            Step::ShrinkEnd { from, to } => {
                space.is_shrinking.store(false, Ordering::Release);
                space.open_pages(to / PAGE_BYTES..from / PAGE_BYTES);
            }
            Step::Paging(paging) => space.undo_paging(&paging),
            Step::Lease(leasing) => space.undo_leasing(&leasing),
            Step::Grow(growth) => self.undo_growth(*growth),
            Step::Shrink(shrinking) => self.undo_shrinking(*shrinking),
        }
    }
}
