//! Pools that are dealt out, on their devices: made, opened slice by slice, looked at, given up.
//!
//! A slice is opened as a pool of its own. What is between machines is in [`dealt`](crate::dealt).

use crate::dealt::{Deals, Lines, MACHINES_MAX, Machine, Slice, Taking, hold_at, told_at};
use crate::death::{Death, Evidence};
use crate::layout::{Layout, PAGE_BYTES};
use crate::liveness::Watcher;
use crate::mapped::{DealtDevice, Part, first_page, write_first_page};
use crate::member::bury;
use crate::memory::{At, Trouble};
use crate::pool::{
    CreateOptions, Made, Pool, check_extent_bytes, check_memory, extent_bytes_of, forget_files, invalid, make_books,
    open_device, open_new, page_of, reserve, told, too_small,
};
use crate::superblock::{DEALT, FirstPage, LABEL_BYTES, Superblock};
use crate::system;
use crate::words::{DeviceState, DeviceWord, EventKind, Extent, Hold, HoldState, Number, SLOTS, Slot, Word};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result, SqlState, crash_point};
use tidepool_device::{Device, Location, Mapping, Protection};
use xxhash_rust::xxh3::xxh3_64;

/// How long another process of this machine may take for taking or giving up a slice.
const TAKING_WAIT: Duration = Duration::from_secs(60);

/// Behind the locks of slots: a process of a machine that takes a slice, or gives it up, has the lock of this byte.
const TAKING_LOCKS: u64 = (1 + MACHINES_MAX as u64) * SLOTS as u64;

/// Behind these: a process that has a slice open as its machine's has a part in the lock of this byte, and of each machine's such.
const USING_LOCKS: u64 = TAKING_LOCKS + MACHINES_MAX as u64;

fn using_lock(machine: Machine, slice: Slice) -> u64 {
    USING_LOCKS + u64::from(machine.0) * u64::from(MACHINES_MAX) + u64::from(slice.0)
}

/// Bits that tell this start of the machine from others.
fn start() -> u32 {
    xxh3_64(system::boot_id().as_bytes()) as u32 & Hold::START_MASK
}

/// A slice that a process has open as a pool.
#[derive(Debug)]
pub struct OpenSlice {
    slice: Slice,
    /// Who holds it, by which tenure. `None`: it is read, whoever holds it.
    held: Option<(DealtPool, Machine, u32)>,
}

impl OpenSlice {
    pub fn slice(&self) -> Slice {
        self.slice
    }

    /// Its machine holds it still: no operator has said that it is dead. To be looked at now and then; that a machine which is
    /// alive is not said to be dead is the operator's word.
    pub fn is_held(&self) -> Result<bool> {
        let Some((dealt, machine, tenure)) = &self.held else { return Ok(true) };
        let standing = dealt.told(dealt.deals.standing(self.slice, *machine))?;
        Ok(standing.is_some_and(|hold| hold.tenure == *tenure))
    }
}

impl Drop for OpenSlice {
    fn drop(&mut self) {
        if let Some((dealt, machine, _)) = &self.held
            && let Ok(device) = dealt.device()
        {
            // A process that is being started has the descriptor until it runs its program, and with it the lock.
            let _ = device.unlock_byte(using_lock(*machine, self.slice));
        }
    }
}

/// Who has a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceView {
    pub slice: Slice,
    pub holder: Option<(Machine, Hold)>,
}

/// A pool that is dealt out, as a whole.
#[derive(Debug)]
pub struct DealtPool {
    deals: Deals<DealtDevice>,
    superblock: Superblock,
    location: Location,
}

/// What divides a device of so many extents. The first one is nobody's slice.
fn slice_extents(extents: u32, machines: u8) -> u32 {
    extents.saturating_sub(1) / u32::from(machines)
}

impl DealtPool {
    /// Makes a pool of one device that holds nothing, with a slice for each of so many machines.
    pub fn create(options: &CreateOptions, machines: u8) -> Result<DealtPool> {
        crate::pool::check_name("label", &options.label, LABEL_BYTES)?;
        if !(1..=MACHINES_MAX).contains(&machines) {
            return Err(invalid(format!("a pool is dealt out to 1 to {MACHINES_MAX} hosts")));
        }
        let [(location, size)] = &options.devices[..] else {
            return Err(Error::unsupported("a pool of several devices that is dealt out")
                .with_hint("Make a pool of each device."));
        };
        if options.bytes_max.is_some() {
            return Err(Error::unsupported("a pool that is dealt out and grows later")
                .with_detail("Its slices are divided when it is made."));
        }
        let extent_bytes = options.extent_bytes.unwrap_or_else(|| extent_bytes_of(size.unwrap_or(0)));
        check_extent_bytes(extent_bytes)?;
        let mut made = vec![open_new(location, *size, extent_bytes)?];
        let result = DealtPool::make(options, machines, extent_bytes, &made[0]);
        if result.is_err() {
            forget_files(&made);
        }
        result?;
        made.clear();
        DealtPool::open(location, Protection::ReadWrite)
    }

    fn make(options: &CreateOptions, machines: u8, extent_bytes: u64, made: &Made) -> Result<()> {
        if !options.overcommits {
            check_memory(std::slice::from_ref(made), tidepool_device::memory_available_bytes())?;
        }
        let extents = u32::try_from(made.mapping.len() as u64 / extent_bytes).unwrap_or(Extent::MAX.0);
        let of_slice = slice_extents(extents, machines);
        let layout = Layout::new(of_slice);
        let least = layout.control_extents(extent_bytes) + 1;
        if of_slice < least {
            let least = (u64::from(least) * u64::from(machines) + 1) * extent_bytes;
            return Err(too_small(&made.location, &made.mapping, least));
        }
        reserve(made, extents, extent_bytes, options.populates)?;
        let identity = || system::random_identity().map_err(|error| Error::io("get random bytes", &error));
        let of_pool = Superblock {
            machines: machines.into(),
            is_coherent: false,
            must_know: DEALT,
            ..Superblock::new(identity()?, extent_bytes, &options.label)
        };
        let open = || -> Result<Mapping> {
            let mapping = Mapping::open_shared(&made.location, Protection::ReadWrite)?;
            write_back(&mapping)?;
            Ok(mapping)
        };
        let device = DealtDevice {
            mapping: open()?,
            slice_bytes: of_slice as usize * extent_bytes as usize,
            extent_bytes: extent_bytes as usize,
        };
        let word = DeviceWord { first: Extent(0), extents: of_slice, state: DeviceState::Present };
        for slice in (0..machines).map(Slice) {
            let base = device.base_of(slice);
            let part = Part { mapping: open()?, base, first: Extent(0), extents: of_slice };
            // What a machine's caches have of zeroes says nothing of the memory: each zeroes what it takes.
            make_books(part, layout, extent_bytes, &[word], &[false], &[&made.location])?;
            let superblock = Superblock {
                identity: identity()?,
                size_bytes: u64::from(of_slice) * extent_bytes,
                extents: of_slice,
                extents_max: of_slice,
                slice: u32::from(slice.0) + 1,
                ..of_pool.clone()
            };
            write_first_page(&device.mapping, base, &page_of(&superblock))?;
        }
        for page in 1..=usize::from(MACHINES_MAX) {
            write_first_page(&device.mapping, page * PAGE_BYTES, &[0; PAGE_BYTES])?;
        }
        let deals = Deals { memory: device, machines };
        told(&made.location, deals.format())?;
        let superblock =
            Superblock { size_bytes: u64::from(extents) * extent_bytes, extents, extents_max: extents, ..of_pool };
        // With this there is a pool.
        write_first_page(&deals.memory.mapping, 0, &page_of(&superblock))
    }

    /// Opens a pool that is dealt out. 22023 where it is not.
    pub fn open(location: &Location, protection: Protection) -> Result<DealtPool> {
        DealtPool::find(location, protection)?.ok_or_else(|| {
            invalid(format!("pool \"{location}\" is not dealt out: all hosts see each other's stores"))
                .with_hint("Leave out the machine and the slice.")
        })
    }

    /// As `open`. `None`: it is not dealt out.
    pub fn find(location: &Location, protection: Protection) -> Result<Option<DealtPool>> {
        let (mapping, superblock) = open_device(location, protection)?;
        let Some(machines) = u8::try_from(superblock.machines).ok().filter(|machines| *machines > 0) else {
            return Ok(None);
        };
        write_back(&mapping)?;
        let extent_bytes = superblock.extent_bytes as usize;
        let slice_bytes = slice_extents(superblock.extents, machines) as usize * extent_bytes;
        let memory = DealtDevice { mapping, slice_bytes, extent_bytes };
        let deals = Deals { memory, machines };
        Ok(Some(DealtPool { deals, superblock, location: location.clone() }))
    }

    pub fn location(&self) -> &Location {
        &self.location
    }

    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    pub fn machines(&self) -> u8 {
        self.deals.machines
    }

    pub fn slice_bytes(&self) -> u64 {
        self.deals.memory.slice_bytes as u64
    }

    pub(crate) fn told<T>(&self, outcome: Result<T, Trouble<Infallible>>) -> Result<T> {
        told(&self.location, outcome)
    }

    /// Who has which slice now.
    pub fn slices(&self) -> Result<Vec<SliceView>> {
        let mut views = Vec::new();
        for slice in self.deals.all_slices() {
            let mut holder = None;
            for machine in self.deals.all_machines() {
                if let Some(hold) = self.told(self.deals.standing(slice, machine))? {
                    holder = Some((machine, hold));
                }
            }
            views.push(SliceView { slice, holder });
        }
        Ok(views)
    }

    /// What is damaged of that which is between the slices: superblock, words, and zeroes elsewhere.
    pub fn faults(&self) -> Result<Vec<String>> {
        let memory = &self.deals.memory;
        let mut faults: Vec<String> = Superblock::faults(&first_page(&memory.mapping, 0))
            .into_iter()
            .map(|fault| format!("{fault} is damaged"))
            .collect();
        let mut words = std::collections::BTreeSet::new();
        for slice in self.deals.all_slices() {
            for machine in self.deals.all_machines() {
                let hold = hold_at(slice, machine);
                words.insert(hold.0);
                if Hold::read(self.fetched(hold)).is_err() {
                    faults.push(format!("what host {} has of {} is damaged", u32::from(machine.0) + 1, shown(slice)));
                }
                for of in self.deals.all_machines() {
                    let told = told_at(slice, machine, of);
                    words.insert(told.0);
                    if Number::read(self.fetched(told)).is_err() {
                        faults.push(format!(
                            "what host {} was told of {} is damaged",
                            u32::from(machine.0) + 1,
                            shown(slice)
                        ));
                    }
                }
            }
        }
        let end = (1 + u32::from(MACHINES_MAX)) * PAGE_BYTES as u32;
        for at in (PAGE_BYTES as u32..end).step_by(8).filter(|at| !words.contains(at)) {
            let bits = self.fetched(At(at));
            if bits != 0 {
                faults.push(format!("byte {at} of the pool is not zero: {bits:#018x}"));
            }
        }
        Ok(faults)
    }

    fn fetched(&self, at: At) -> u64 {
        let memory = &self.deals.memory;
        let Ok(bits) = memory.drop_line(at).and_then(|()| memory.fence()).and_then(|()| memory.load(at));
        bits
    }

    fn check(&self, what: &str, number: u8) -> Result<()> {
        if number < self.machines() {
            return Ok(());
        }
        Err(invalid(format!("pool \"{}\" has no {what} {}", self.location, u32::from(number) + 1))
            .with_hint(format!("It is dealt out to hosts 1 to {}.", self.machines())))
    }

    fn device(&self) -> Result<&Device> {
        self.deals.memory.mapping.device().ok_or_else(|| Error::internal("a pool is mapped of devices"))
    }

    /// Has no other process of this machine take or give up the slice until what is returned is dropped.
    fn alone(&self, slice: Slice) -> Result<Alone<'_>> {
        let (device, byte) = (self.device()?, TAKING_LOCKS + u64::from(slice.0));
        let end = Instant::now() + TAKING_WAIT;
        while !device.lock_byte(byte).map_err(lock_failed)? {
            if Instant::now() >= end {
                return Err(Error::new(
                    SqlState::OBJECT_IN_USE,
                    format!("another process of this machine takes or gives up {}", shown(slice)),
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Alone { device, byte })
    }

    /// The slice is gone from this machine's caches, and no other machine may take it for held by this one. 55006 while a
    /// process of this machine uses it.
    pub fn release(location: &Location, machine: Machine, slice: Slice) -> Result<()> {
        let dealt = DealtPool::open(location, Protection::ReadWrite)?;
        dealt.check("host", machine.0)?;
        dealt.check("slice", slice.0)?;
        let _alone = dealt.alone(slice)?;
        let standing = dealt.told(dealt.deals.standing(slice, machine))?;
        if standing.is_none_or(|hold| hold.start != start()) {
            return Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("host {} does not hold {}", u32::from(machine.0) + 1, shown(slice)),
            )
            .with_hint("tidepool pool list shows who does. Only the machine that holds it can give it up."));
        }
        // One that has opened it, and is about to join.
        let using = using_lock(machine, slice);
        if dealt.device()?.is_byte_locked(using).map_err(lock_failed)? {
            let hosts = dealt.pool_of(slice, Protection::Read, None)?.hosts()?;
            let in_use = Error::new(SqlState::OBJECT_IN_USE, format!("{} is in use", shown(slice)));
            let error = match hosts.first() {
                Some(view) => {
                    let name = view.text.as_ref().map_or("", |text| text.name.as_str());
                    in_use.with_detail(format!("{} \"{name}\" is {}.", view.host, view.ident.state.text()))
                }
                None => in_use.with_detail("A process of this machine has it open."),
            };
            return Err(error.with_hint("Stop it first."));
        }
        if standing.is_some_and(|hold| hold.state == HoldState::Held) {
            let pool = Arc::new(dealt.pool_of(slice, Protection::ReadWrite, None)?);
            Watcher::new(Arc::clone(&pool)).bury_the_dead()?;
            if let Some(view) = pool.hosts()?.first() {
                let name = view.text.as_ref().map_or("", |text| text.name.as_str());
                return Err(Error::new(SqlState::OBJECT_IN_USE, format!("{} is in use", shown(slice)))
                    .with_detail(format!("{} \"{name}\" is {}.", view.host, view.ident.state.text()))
                    .with_hint("Stop it, or forget it if it is dead: tidepool pool forget."));
            }
        }
        dealt.told(dealt.deals.give_up(slice, machine, start())).map(drop)
    }

    /// An operator says that the machine which holds a slice is dead as a whole, or has been started anew since. It must be
    /// true. The machine that was told. 55006 where that machine is this one, which is alive, unless the operator insists.
    pub fn note_over(&self, slice: Slice, by: Machine, insists: bool) -> Result<Option<Machine>> {
        self.check("host", by.0)?;
        self.check("slice", slice.0)?;
        let _alone = self.alone(slice)?;
        let views = self.slices()?;
        let view = views.iter().find(|view| view.slice == slice);
        let Some((of, hold)) = view.and_then(|view| view.holder) else { return Ok(None) };
        if hold.start == start() && !insists {
            let error = format!("{} is held by this machine, which is alive", shown(slice));
            return Err(Error::new(SqlState::OBJECT_IN_USE, error)
                .with_detail("What its caches have of the slice may be written back at any time.")
                .with_hint("Give the slice up instead: tidepool pool release."));
        }
        Ok(self.told(self.deals.note_over(slice, by, of, hold.tenure))?.then_some(of))
    }

    /// Gives up the pool with all slices. 55006 while a machine holds one.
    pub fn destroy(self, even_if_used: bool) -> Result<Location> {
        let held = self.slices()?.into_iter().find_map(|view| Some((view.slice, view.holder?.0)));
        if let (Some((slice, machine)), false) = (held, even_if_used) {
            return Err(held_by(&self.location, slice, machine));
        }
        write_first_page(&self.deals.memory.mapping, 0, &[0; PAGE_BYTES])?;
        Ok(self.location)
    }

    /// A slice as a pool.
    fn pool_of(&self, slice: Slice, protection: Protection, held: Option<(DealtPool, Machine, u32)>) -> Result<Pool> {
        let mapping = Mapping::open_shared(&self.location, protection)?;
        write_back(&mapping)?;
        let device = mapping.device().ok_or_else(|| Error::internal("a pool is mapped of devices"))?;
        if device.kernel_identity()? != self.device()?.kernel_identity()? {
            return Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("\"{}\" is another file or device than a moment ago", self.location),
            ));
        }
        let base = self.deals.memory.base_of(slice);
        let shown = format!("{}, {}", self.location, shown(slice));
        let FirstPage::Pool(superblock) = Superblock::read(&first_page(&mapping, base), &shown)? else {
            return Err(Error::corrupted(format!("the superblock of \"{shown}\" is damaged")));
        };
        let size_is = superblock.size_bytes == self.deals.memory.slice_bytes as u64;
        if superblock.slice != u32::from(slice.0) + 1 || superblock.device != 0 || !size_is {
            return Err(Error::corrupted(format!("the superblock of \"{shown}\" contradicts itself")));
        }
        let part = Part { mapping, base, first: superblock.first, extents: superblock.extents };
        Pool::over(&self.location, *superblock, part, protection, Some(OpenSlice { slice, held }))
    }
}

struct Alone<'a> {
    device: &'a Device,
    byte: u64,
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        // Otherwise it goes when the device is closed.
        let _ = self.device.unlock_byte(self.byte);
    }
}

fn lock_failed(error: std::io::Error) -> Error {
    Error::io("lock a byte of the pool", &error)
}

fn write_back(mapping: &Mapping) -> Result<()> {
    mapping.device().map_or(Ok(()), Device::write_back)
}

fn shown(slice: Slice) -> String {
    format!("slice {}", u32::from(slice.0) + 1)
}

fn held_by(location: &Location, slice: Slice, machine: Machine) -> Error {
    let (of, number) = (shown(slice), u32::from(machine.0) + 1);
    Error::new(SqlState::OBJECT_IN_USE, format!("{of} of pool \"{location}\" is held by host {number}"))
        .with_detail("Its caches may have parts of the slice that nobody else sees.")
        .with_hint(format!(
            "Give it up there: tidepool pool release {location} --machine {number} --slice {}. If that machine is dead as a whole: tidepool pool forget, with --slice and --machine.",
            u32::from(slice.0) + 1
        ))
}

impl Pool {
    /// Opens a slice of a pool that is dealt out, which this machine holds from then on. 55006 where another one has it.
    pub fn open_slice(location: &Location, machine: Machine, slice: Slice) -> Result<Pool> {
        let dealt = DealtPool::open(location, Protection::ReadWrite)?;
        dealt.check("host", machine.0)?;
        dealt.check("slice", slice.0)?;
        let of_pool = DealtPool::open(location, Protection::ReadWrite)?;
        let _alone = dealt.alone(slice)?;
        // Until the pool is closed: nobody gives the slice up from under this process.
        let held = |tenure| -> Result<Option<(DealtPool, Machine, u32)>> {
            of_pool.device()?.share_byte(using_lock(machine, slice)).map_err(lock_failed)?;
            Ok(Some((of_pool, machine, tenure)))
        };
        match dealt.told(dealt.deals.take(slice, machine, start()))? {
            Taking::Refused(by) if by == machine => {
                let number = u32::from(machine.0) + 1;
                Err(Error::new(
                    SqlState::OBJECT_IN_USE,
                    format!("{} of pool \"{location}\" is held by host {number}, of another start", shown(slice)),
                )
                .with_detail("The machine was started anew since it took the slice, or another one has its number.")
                .with_hint(format!(
                    "If no machine that is on has it: tidepool pool forget {location} --slice {} --machine {number}.",
                    u32::from(slice.0) + 1
                )))
            }
            Taking::Refused(by) => Err(held_by(location, slice, by)),
            Taking::Kept(tenure) => dealt.pool_of(slice, Protection::ReadWrite, held(tenure)?),
            Taking::Taken(tenure) => {
                let pool = dealt.pool_of(slice, Protection::ReadWrite, held(tenure)?)?;
                for view in pool.hosts()? {
                    // Whoever held the slice before has given it up, or is dead, with all its processes.
                    bury(&pool, view.host, &Death::by(Evidence::Machine), EventKind::Died)?;
                }
                crash_point("pool.slice.buried");
                dealt.told(dealt.deals.keep(slice, machine, start(), tenure))?;
                crash_point("pool.slice.kept");
                pool.record(EventKind::SliceTaken, Slot(0), u64::from(machine.0) + 1)?;
                Ok(pool)
            }
        }
    }

    /// Opens a slice to look at it, whoever holds it. What its holder does meanwhile may be half seen.
    pub fn open_slice_to_read(location: &Location, slice: Slice) -> Result<Pool> {
        let dealt = DealtPool::open(location, Protection::Read)?;
        dealt.check("slice", slice.0)?;
        let Ok(()) = dealt.deals.memory.drop_slice(slice);
        dealt.pool_of(slice, Protection::Read, None)
    }
}

#[cfg(test)]
#[path = "slices_tests.rs"]
mod tests;
