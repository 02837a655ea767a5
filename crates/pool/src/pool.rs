//! A pool on its devices: made, opened, looked at and destroyed.
//!
//! Nothing of a pool's size or place changes after it was made, and no hole is ever punched: what is dealt out is memory
//! that is there. So devices that can neither grow nor shrink (device DAX, famfs) serve as well as tmpfs, hugetlbfs, files and
//! fsdax.

use crate::dealt::MACHINES_MAX;
use crate::layout::{
    DEVICES, EVENTS, EXTENT_BYTES_MAX, EXTENT_BYTES_MIN, HostNumber, Layout, NAME_BYTES, PAGE_BYTES, SEGMENTS, TERMS,
};
use crate::mapped::{Mapped, Part, first_page, write_first_page};
use crate::memory::{Books, Bytes, Memory, Outcome, Trouble};
use crate::slices::OpenSlice;
use crate::superblock::{self, FirstPage, LABEL_BYTES, Superblock};
use crate::system;
use crate::words::{
    Contents, Database, DeviceState, DeviceWord, End, Entry, EntryState, EventHead, EventKind, EventPart, Extent,
    First, Host, HostState, Ident, Number, Owner, Reign, Role, Root, SLOTS, Seal, Segment, Slot, Term,
};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ptr::NonNull;
use tidepool_base::{ByteSize, Error, Result, SqlState, crash_point};
use tidepool_device::{Content, Device, Location, MapOptions, Mapping, Protection};

/// Extents are larger in larger pools, so that there are not many more than so many: each that a process has may be a mapping of
/// its own, and Linux lets a process have 65,530 of these (`vm.max_map_count`).
const EXTENTS_WANTED: u64 = 1 << 14;

/// A reader that has not beaten for so many seconds is named where the pool is full.
const SILENT_S: u64 = 5;

/// What a pool is made of.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// The first has the books. Without a size, all of an existing file or DAX device.
    pub devices: Vec<(Location, Option<u64>)>,
    pub extent_bytes: Option<u64>,
    /// Bytes for which the books have room, with devices that are added later. By default four times as much as there is.
    pub bytes_max: Option<u64>,
    pub label: String,
    /// Back all of it with memory now.
    pub populates: bool,
    /// Make it where the machine has less free memory, too.
    pub overcommits: bool,
}

/// A device that could not be opened.
#[derive(Clone, Debug)]
pub struct Missing {
    pub device: usize,
    pub location: String,
    pub first: Extent,
    pub extents: u32,
    pub error: Error,
}

/// What the books say of a host.
#[derive(Clone, Debug)]
pub struct HostView {
    pub host: Host,
    pub ident: Ident,
    pub text: Option<HostText>,
    pub beats: Number,
    pub wall_us: Number,
    pub gen_held: Number,
}

/// The lines of a host's page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostText {
    pub name: String,
    pub version: String,
    pub boot_id: String,
    pub pid: u32,
    pub start: u64,
    pub process_namespace: u64,
    /// The file or device that its lock is on.
    pub lock_on: String,
    pub address: String,
    pub control_socket: String,
}

impl HostText {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let one = |text: &str| text.chars().filter(|letter| !letter.is_control()).take(120).collect::<String>();
        let lines = [
            one(&self.name),
            one(&self.version),
            one(&self.boot_id),
            self.pid.to_string(),
            self.start.to_string(),
            self.process_namespace.to_string(),
            one(&self.lock_on),
            one(&self.address),
            one(&self.control_socket),
        ];
        let mut bytes = lines.join("\n").into_bytes();
        bytes.truncate(crate::layout::HOST_TEXT_BYTES);
        bytes
    }

    pub(crate) fn of_bytes(bytes: &[u8]) -> HostText {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.trim_end_matches('\0').split('\n').map(str::to_owned);
        let mut next = || lines.next().unwrap_or_default();
        HostText {
            name: next(),
            version: next(),
            boot_id: next(),
            pid: next().parse().unwrap_or(0),
            start: next().parse().unwrap_or(0),
            process_namespace: next().parse().unwrap_or(0),
            lock_on: next(),
            address: next(),
            control_socket: next(),
        }
    }
}

/// What the books say of a database.
#[derive(Clone, Debug)]
pub struct DatabaseView {
    pub database: Database,
    pub name: String,
    pub identity: [u8; 16],
    pub entry: Entry,
    pub reign: Reign,
    pub root: Root,
    pub quota: Number,
}

/// An open pool.
#[derive(Debug)]
pub struct Pool {
    books: Books<Mapped>,
    superblock: Superblock,
    location: Location,
    missing: Mutex<Vec<Missing>>,
    /// Slots of hosts of this process. Locks are of the open device, so that it does not see its own.
    own: Mutex<BTreeSet<Slot>>,
    /// Of a pool that is dealt out it is one slice.
    slice: Option<OpenSlice>,
    /// A host joins that reads, and writes its own page alone.
    is_readers: bool,
}

impl<M: Memory> Books<M> {
    /// Writes all words anew. What is not a word is zero already. `zeroed`: of each device, whether all of it is.
    pub fn format(&self, devices: &[DeviceWord], zeroed: &[bool], control_extents: u32) -> Outcome<(), M> {
        let layout = self.layout;
        for device in 0..DEVICES {
            self.store(layout.device(device), devices.get(device).copied().unwrap_or(DeviceWord::NONE))?;
            self.write_text(layout.device_text(device), &[])?;
        }
        for database in layout.all_databases() {
            self.store(layout.entry(database), Entry::NEW)?;
            self.store(layout.term(database), Reign::NEW)?;
            self.store(layout.root(database), Root::NEW)?;
            self.store(layout.quota(database), Number(0))?;
            self.write_text(layout.database_text(database), &[])?;
            for line in 0..TERMS as u32 {
                // As if the term 32 before had used the line.
                let before = Term(line.wrapping_sub(TERMS as u32));
                self.store(layout.first(database, Term(line)), First::new(before, 0))?;
                self.store(layout.seal(database, Term(line)), Seal::new(before, End::Empty))?;
            }
            for number in 0..SEGMENTS as u64 {
                self.store(layout.segment(database, number), Segment::NONE)?;
            }
        }
        for slot in layout.all_slots() {
            self.store(layout.ident(slot), Ident::NEW)?;
            for number in HostNumber::ALL {
                self.store(layout.host_number(slot, *number), Number(0))?;
            }
            self.write_text(layout.host_text(slot), &[])?;
        }
        self.store(layout.event_next(), Number(0))?;
        for event in 0..EVENTS as u64 {
            let (head, time, about) = layout.event(event);
            self.store(head, EventHead::NONE)?;
            self.store(time, EventPart::NONE)?;
            self.store(about, EventPart::NONE)?;
        }
        for extent in layout.all_extents() {
            let device =
                devices.iter().position(|device| (device.first.0..device.first.0 + device.extents).contains(&extent.0));
            let owner = match device {
                None => Owner::Absent,
                Some(device) if extent == devices[device].first || extent.0 < control_extents => Owner::Control,
                Some(device) if zeroed[device] => Owner::Free { holds: Contents::Zeroes },
                Some(_) => Owner::Free { holds: Contents::Unknown },
            };
            self.store(layout.owner(extent), owner)?;
            self.store(layout.sum(extent), Number(0))?;
        }
        Ok(())
    }
}

pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::new(SqlState::INVALID_PARAMETER_VALUE, message)
}

/// What a name or label may be: it stands in a page of the books, and in lines of text.
pub(crate) fn check_name(what: &str, name: &str, bytes_max: usize) -> Result<()> {
    if name.len() > bytes_max || name.chars().any(char::is_control) {
        return Err(invalid(format!("{what} \"{name}\" is not valid"))
            .with_detail(format!("It is longer than {bytes_max} bytes, or has a control character.")));
    }
    Ok(())
}

/// A device while a pool is made of it.
pub(crate) struct Made {
    pub location: Location,
    pub mapping: Mapping,
    /// The file was there before.
    was_there: bool,
}

/// The extents of a pool of so many bytes.
pub(crate) fn extent_bytes_of(bytes: u64) -> u64 {
    bytes.div_ceil(EXTENTS_WANTED).next_power_of_two().clamp(EXTENT_BYTES_MIN, EXTENT_BYTES_MAX)
}

pub(crate) fn check_extent_bytes(extent_bytes: u64) -> Result<()> {
    if extent_bytes.is_power_of_two() && (EXTENT_BYTES_MIN..=EXTENT_BYTES_MAX).contains(&extent_bytes) {
        return Ok(());
    }
    Err(invalid(format!("extents of {} are not possible", ByteSize(extent_bytes))).with_hint(format!(
        "Write a power of two from {} to {}.",
        ByteSize(EXTENT_BYTES_MIN),
        ByteSize(EXTENT_BYTES_MAX)
    )))
}

impl Pool {
    /// Makes a pool of devices that hold nothing.
    pub fn create(options: &CreateOptions) -> Result<Pool> {
        check_name("label", &options.label, LABEL_BYTES)?;
        if options.devices.is_empty() || options.devices.len() > DEVICES {
            return Err(invalid(format!("a pool has 1 to {DEVICES} devices")));
        }
        let mut made = Vec::new();
        let result = Pool::make(options, &mut made);
        if result.is_err() {
            forget_files(&made);
        }
        let extent_bytes = result?;
        // The locks of making it go, and it is opened as by every host.
        let location = made[0].location.clone();
        drop(made);
        let pool = Pool::open(&location)?;
        debug_assert_eq!(pool.superblock.extent_bytes, extent_bytes);
        pool.record(EventKind::Created, Slot(0), 0)?;
        Ok(pool)
    }

    fn make(options: &CreateOptions, made: &mut Vec<Made>) -> Result<u64> {
        let asked: u64 = options.devices.iter().filter_map(|(_, size)| *size).sum();
        let extent_bytes =
            options.extent_bytes.unwrap_or_else(|| extent_bytes_of(asked.max(options.bytes_max.unwrap_or(0))));
        check_extent_bytes(extent_bytes)?;
        for (location, size) in &options.devices {
            made.push(open_new(location, *size, extent_bytes)?);
        }
        if !options.overcommits {
            check_memory(made, tidepool_device::memory_available_bytes())?;
        }
        // Which extents are whose, and that there are some.
        let mut first = 0;
        let mut words = Vec::new();
        for device in made.iter() {
            let extents = device.mapping.len() as u64 / extent_bytes;
            let extents = u32::try_from(extents).ok().filter(|extents| first + extents <= Extent::MAX.0);
            let Some(extents) = extents else {
                return Err(invalid("the pool has too many extents").with_hint("Make extents larger: --extent."));
            };
            words.push(DeviceWord { first: Extent(first), extents, state: DeviceState::Present });
            first += extents;
        }
        let wanted = options.bytes_max.map_or(u64::from(first) * 4, |bytes| bytes / extent_bytes);
        let extents_max = wanted.clamp(u64::from(first), u64::from(Extent::MAX.0)) as u32;
        let layout = Layout::new(extents_max);
        let control = layout.control_extents(extent_bytes);
        for (index, (device, word)) in made.iter().zip(&words).enumerate() {
            let least = if index == 0 { control + 1 } else { 2 };
            if word.extents < least {
                return Err(too_small(&device.location, &device.mapping, u64::from(least) * extent_bytes));
            }
            reserve(device, word.extents, extent_bytes, options.populates)?;
        }
        let identity = system::random_identity().map_err(|error| Error::io("get random bytes", &error))?;
        let superblock = |device: usize| Superblock {
            size_bytes: u64::from(words[device].extents) * extent_bytes,
            device: device as u32,
            first: words[device].first,
            extents: words[device].extents,
            extents_max,
            ..Superblock::new(identity, extent_bytes, &options.label)
        };
        let zeroed: Vec<bool> = made.iter().map(|device| device.mapping.is_zeroed()).collect();
        // The books, by a mapping that no other process can have: the device is locked while it is made.
        let mapping = Mapping::open_shared(&made[0].location, Protection::ReadWrite)?;
        let part = Part { mapping, base: 0, first: Extent(0), extents: words[0].extents };
        let locations: Vec<_> = made.iter().map(|device| &device.location).collect();
        make_books(part, layout, extent_bytes, &words, &zeroed, &locations)?;
        // With the superblock of device 0, last, there is a pool.
        for device in (0..made.len()).rev() {
            write_first_page(&made[device].mapping, 0, &page_of(&superblock(device)))?;
        }
        Ok(extent_bytes)
    }

    /// Opens a pool by its first device. Devices that cannot be opened are missing, which is no error until they are needed.
    pub fn open(location: &Location) -> Result<Pool> {
        Pool::open_as(location, Protection::ReadWrite)
    }

    /// Opens a pool to look at it. Nothing of it can be changed by this process.
    pub fn open_to_read(location: &Location) -> Result<Pool> {
        Pool::open_as(location, Protection::Read)
    }

    /// Opens a pool for one host that reads: everything is mapped to be read, but for the host's own page once it joins. So no
    /// stray store of this process changes what others have.
    pub fn open_as_reader(location: &Location) -> Result<Pool> {
        let mut pool = Pool::open_as(location, Protection::Read)?;
        pool.is_readers = true;
        Ok(pool)
    }

    fn open_as(location: &Location, protection: Protection) -> Result<Pool> {
        let (mapping, superblock) = open_device(location, protection)?;
        if superblock.machines > 0 {
            return Err(needs_slice(location, superblock.machines));
        }
        if superblock.device != 0 {
            return Err(Error::new(
                SqlState::WRONG_OBJECT_TYPE,
                format!("\"{location}\" is device {} of a pool", superblock.device),
            )
            .with_hint("Name its first device."));
        }
        let part = Part { mapping, base: 0, first: superblock.first, extents: superblock.extents };
        Pool::over(location, superblock, part, protection, None)
    }

    /// The pool whose books are at the beginning of its first device's part.
    pub(crate) fn over(
        location: &Location,
        superblock: Superblock,
        part: Part,
        protection: Protection,
        slice: Option<OpenSlice>,
    ) -> Result<Pool> {
        let layout = Layout::new(superblock.extents_max);
        if (layout.control_bytes() as u64) > superblock.size_bytes {
            return Err(Error::corrupted(format!("the superblock of device \"{location}\" contradicts itself")));
        }
        let memory = Mapped::new(part, layout.control_bytes(), superblock.extent_bytes as usize, protection);
        let books = Books { memory, layout };
        let (missing, own) = (Mutex::default(), Mutex::default());
        let pool = Pool { books, superblock, location: location.clone(), missing, own, slice, is_readers: false };
        pool.refresh()?;
        Ok(pool)
    }

    /// Of a pool that is dealt out, the slice that this is.
    pub fn slice(&self) -> Option<&OpenSlice> {
        self.slice.as_ref()
    }

    /// Machines do not see each other's stores, and this is one's slice.
    pub fn is_dealt(&self) -> bool {
        self.slice.is_some()
    }

    /// The byte whose lock says that the host of a slot is alive.
    pub(crate) fn lock_of(&self, slot: Slot) -> u64 {
        let before = self.slice.as_ref().map_or(0, |open| 1 + u64::from(open.slice().0));
        before * SLOTS as u64 + u64::from(slot.0)
    }

    /// Opens devices that were added by others meanwhile, or that were missing and are there again.
    pub fn refresh(&self) -> Result<()> {
        let protection = if self.books.memory.is_read_only() { Protection::Read } else { Protection::ReadWrite };
        let mut missing = self.missing.lock();
        missing.clear();
        for device in 1..DEVICES {
            let word = self.told(self.books.load(self.layout().device(device)))?;
            if word.state != DeviceState::Present || self.books.memory.part(device).is_some() {
                continue;
            }
            let text = self.told(self.books.read_text(self.layout().device_text(device)))?.unwrap_or_default();
            let shown = String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned();
            match other_device(&shown, device, word, &self.superblock, protection) {
                Ok(part) => self.books.memory.add(device, part),
                Err(error) => {
                    let (first, extents) = (word.first, word.extents);
                    missing.push(Missing { device, location: shown, first, extents, error });
                }
            }
        }
        Ok(())
    }

    /// Adds a device that holds nothing to a pool that is in use. Hosts that run out of extents, or meet one that is on it,
    /// open it then. Without a size, all of an existing file or DAX device.
    pub fn add_device(&self, location: &Location, size: Option<u64>) -> Result<()> {
        self.check_writable()?;
        if self.slice.is_some() {
            return Err(
                Error::unsupported("adding a device to a pool that is dealt out").with_hint("Make another pool of it.")
            );
        }
        let mut made = Vec::new();
        let result = self.add(location, size, &mut made);
        if result.is_err() {
            forget_files(&made);
        }
        result
    }

    fn add(&self, location: &Location, size: Option<u64>, made: &mut Vec<Made>) -> Result<()> {
        let extent_bytes = self.extent_bytes();
        let device = open_new(location, size, extent_bytes)?;
        let is_zeroed = device.mapping.is_zeroed();
        let extents = device.mapping.len() as u64 / extent_bytes;
        made.push(device);
        check_memory(made, tidepool_device::memory_available_bytes())?;
        let (layout, mapping) = (self.layout(), &made[0].mapping);
        // Behind all that there are, at a number that no device has.
        let claimed = loop {
            let mut first = 0;
            let mut free = None;
            for device in 0..DEVICES {
                let word = self.told(self.books.load(layout.device(device)))?;
                match word.state {
                    DeviceState::Absent => _ = free.get_or_insert(device),
                    _ => first = first.max(word.first.0 + word.extents),
                }
            }
            let Some(device) = free else {
                return Err(Error::new(
                    SqlState::PROGRAM_LIMIT_EXCEEDED,
                    format!("pool \"{}\" has {DEVICES} devices", self.location),
                ));
            };
            if extents < 2 {
                return Err(too_small(location, mapping, 2 * extent_bytes));
            }
            let end = u64::from(first) + extents;
            if end > u64::from(layout.extents) {
                return Err(Error::new(
                    SqlState::PROGRAM_LIMIT_EXCEEDED,
                    format!("pool \"{}\" cannot grow so far", self.location),
                )
                .with_detail(format!(
                    "Its books have room for {}, and {} are wanted.",
                    ByteSize(u64::from(layout.extents) * extent_bytes),
                    ByteSize(end * extent_bytes)
                ))
                .with_hint("Make a pool with a larger --max-size."));
            }
            let word = DeviceWord { first: Extent(first), extents: extents as u32, state: DeviceState::Adding };
            if self.told(self.books.swap(layout.device(device), DeviceWord::NONE, word))? {
                break (device, word);
            }
        };
        let (number, word) = claimed;
        crash_point("pool.device.adding");
        reserve(&made[0], word.extents, extent_bytes, false)?;
        let shown = location.to_string();
        self.told(self.books.write_text(layout.device_text(number), shown.as_bytes()))?;
        let superblock = Superblock {
            epoch: 2,
            size_bytes: u64::from(word.extents) * extent_bytes,
            device: number as u32,
            first: word.first,
            extents: word.extents,
            made_us: system::wall_us(),
            boot_id: system::boot_id(),
            ..self.superblock.clone()
        };
        write_first_page(&made[0].mapping, 0, &page_of(&superblock))?;
        for extent in word.first.0..word.first.0 + word.extents {
            let holds = if is_zeroed { Contents::Zeroes } else { Contents::Unknown };
            let owner = if extent == word.first.0 { Owner::Control } else { Owner::Free { holds } };
            self.told(self.books.swap(layout.owner(Extent(extent)), Owner::Absent, owner))?;
        }
        let present = DeviceWord { state: DeviceState::Present, ..word };
        self.told(self.books.swap(layout.device(number), word, present))?;
        self.record(EventKind::DeviceAdded, Slot(0), number as u64)?;
        // The lock of making it goes before it is opened as by every host.
        made.clear();
        self.refresh()
    }

    /// 42501 where the pool was opened to be read.
    pub fn check_writable(&self) -> Result<()> {
        if self.books.memory.is_read_only() {
            return Err(Error::new(
                SqlState::INSUFFICIENT_PRIVILEGE,
                format!("pool \"{}\" was opened to be read", self.location),
            ));
        }
        Ok(())
    }

    /// It was opened for a host that reads.
    pub fn is_readers(&self) -> bool {
        self.is_readers
    }

    pub fn books(&self) -> &Books<Mapped> {
        &self.books
    }

    pub fn location(&self) -> &Location {
        &self.location
    }

    pub fn label(&self) -> &str {
        &self.superblock.label
    }

    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    pub fn layout(&self) -> Layout {
        self.books.layout
    }

    pub fn extent_bytes(&self) -> u64 {
        self.superblock.extent_bytes
    }

    /// Devices that the books name and that could not be opened.
    pub fn missing(&self) -> Vec<Missing> {
        self.missing.lock().clone()
    }

    pub(crate) fn own(&self) -> &Mutex<BTreeSet<Slot>> {
        &self.own
    }

    /// What a transition came to, or that the books are damaged (XX001).
    pub fn told<T>(&self, outcome: Result<T, Trouble<Infallible>>) -> Result<T> {
        told(&self.location, outcome)
    }

    /// Where an extent is in this process, and how long. 58030 where its device is missing.
    pub fn extent(&self, extent: Extent) -> Result<(NonNull<u8>, usize)> {
        if let Some(found) = self.books.memory.extent(extent) {
            return Ok(found);
        }
        self.refresh()?;
        self.books.memory.extent(extent).ok_or_else(|| {
            let of = |missing: &&Missing| (missing.first.0..missing.first.0 + missing.extents).contains(&extent.0);
            match self.missing.lock().iter().find(of) {
                Some(missing) => Error::new(
                    SqlState::IO_ERROR,
                    format!("device \"{}\" of pool \"{}\" is missing", missing.location, self.location),
                )
                .with_detail(format!("Extent {} is on it. {}.", extent.0, missing.error.message()))
                .with_hint("Make the device available."),
                None => Error::internal(format!("pool \"{}\" has no extent {}", self.location, extent.0)),
            }
        })
    }

    /// On which device an extent is, and from which byte on. `None` where the device is away.
    pub fn place(&self, extent: Extent) -> Option<(usize, usize)> {
        self.books.memory.place(extent)
    }

    /// The location of a device that is there.
    pub fn device_location(&self, device: usize) -> Option<Location> {
        Some(self.books.memory.part(device)?.mapping.device()?.location().clone())
    }

    /// What tells the file or device of a device that is there from others of this kernel. Another may be at its location by
    /// now.
    pub fn device_identity(&self, device: usize) -> Option<(u64, u64)> {
        self.books.memory.part(device)?.mapping.device()?.kernel_identity().ok()
    }

    /// Devices that this process has mapped and that are not what is at their locations now: their files were removed, or
    /// others took their places. What is mapped stays as it is, and nobody who comes finds it.
    pub fn displaced(&self) -> Vec<usize> {
        let is_displaced = |device: &usize| {
            let Some(location) = self.device_location(*device) else { return false };
            let (Location::File(path) | Location::Dax(path)) = &location else { return false };
            let mapped = self.device_identity(*device);
            match std::fs::metadata(path) {
                Ok(metadata) => {
                    mapped.is_some_and(|mapped| mapped != tidepool_device::identity_of(&location, &metadata))
                }
                Err(error) => error.kind() == std::io::ErrorKind::NotFound,
            }
        };
        (0..DEVICES).filter(is_displaced).collect()
    }

    /// Extents that any host can lease.
    pub fn free_extents(&self) -> Result<u64> {
        Ok(self.room()?.1)
    }

    /// Extents that hosts can own, and those of them that are free, of the devices that are there.
    pub fn room(&self) -> Result<(u64, u64)> {
        let (mut all, mut free) = (0, 0);
        for device in 0..DEVICES {
            let Some(part) = self.books.memory.part(device) else { continue };
            // Device by device: looking for the device of each extent takes longer than reading its word.
            for extent in (part.first.0..part.first.0 + part.extents).map(Extent) {
                match self.told(self.books.load(self.layout().owner(extent)))? {
                    Owner::Absent | Owner::Control => {}
                    Owner::Free { .. } => (all, free) = (all + 1, free + 1),
                    _ => all += 1,
                }
            }
        }
        Ok((all, free))
    }

    /// 53100: it has not so many free extents.
    pub(crate) fn full(&self, wanted: u64, free: u64) -> Error {
        let bytes = |extents: u64| ByteSize(extents * self.extent_bytes());
        Error::new(SqlState::DISK_FULL, format!("pool \"{}\" is full", self.location))
            .with_detail(format!("{} are wanted and {} are free.", bytes(wanted), bytes(free)))
            .with_hint(match self.silent_reader() {
                Some(hint) => hint,
                None => "Free memory, stop a host or add a device: tidepool pool add.".to_owned(),
            })
    }

    /// What to do about a reader that says nothing any more, and holds what it may read.
    fn silent_reader(&self) -> Option<String> {
        let now = system::wall_us();
        let is_silent = |view: &HostView| {
            let beat = now.saturating_sub(view.wall_us.0) / 1_000_000;
            (view.ident.role == Role::Reader && beat >= SILENT_S).then_some(beat)
        };
        let hosts = self.hosts().ok()?;
        let (view, seconds) = hosts.iter().filter_map(|view| Some((view, is_silent(view)?))).max_by_key(|one| one.1)?;
        let text = view.text.as_ref()?;
        let (name, process, location) = (&text.name, text.pid, &self.location);
        Some(format!(
            "Reader \"{name}\" has said nothing for {seconds} s, and keeps what it may read: end its process {process}. If it is dead: tidepool pool forget {location} {name}."
        ))
    }

    /// Its device is there.
    pub fn is_there(&self, extent: Extent) -> bool {
        self.books.memory.extent(extent).is_some()
    }

    pub fn record(&self, kind: EventKind, slot: Slot, detail: u64) -> Result<()> {
        if self.is_readers {
            return Ok(());
        }
        self.check_writable()?;
        self.told(self.books.append_event(kind, slot, system::wall_us() / 1000, detail))
    }

    /// What the books say of the hosts whose slots are not free.
    pub fn hosts(&self) -> Result<Vec<HostView>> {
        let mut hosts = Vec::new();
        for slot in self.layout().all_slots() {
            let ident = self.told(self.books.load(self.layout().ident(slot)))?;
            if ident.state != HostState::Free {
                hosts.push(self.host_view(slot, ident)?);
            }
        }
        Ok(hosts)
    }

    /// What a host is to its database now, in a word: what it joined as may be another.
    pub fn role_of(&self, view: &HostView) -> Result<&'static str> {
        if view.ident.database == Database::NONE {
            return Ok(view.ident.role.text());
        }
        let reign = self.told(self.books.reign(view.ident.database))?;
        Ok(match view.ident.state {
            _ if reign.is_of(view.host) && view.ident.state.is_live() => Role::Primary.text(),
            _ if matches!(view.ident.role, Role::Reader | Role::Copy) => view.ident.role.text(),
            HostState::Attached | HostState::Following | HostState::Promoting => Role::Standby.text(),
            _ => view.ident.role.text(),
        })
    }

    pub(crate) fn host_view(&self, slot: Slot, ident: Ident) -> Result<HostView> {
        let number = |which| self.told(self.books.load(self.layout().host_number(slot, which)));
        let text = self.told(self.books.read_text(self.layout().host_text(slot)))?;
        Ok(HostView {
            host: Host { slot, incarnation: ident.incarnation },
            ident,
            text: text.map(|bytes| HostText::of_bytes(&bytes)),
            beats: number(HostNumber::Beats)?,
            wall_us: number(HostNumber::WallUs)?,
            gen_held: number(HostNumber::GenHeld)?,
        })
    }

    /// The databases that are made.
    pub fn databases(&self) -> Result<Vec<DatabaseView>> {
        let mut databases = Vec::new();
        let layout = self.layout();
        for database in layout.all_databases() {
            let entry = self.told(self.books.load(layout.entry(database)))?;
            if entry.state == EntryState::Free {
                continue;
            }
            let text = self.told(self.books.read_text(layout.database_text(database)))?.unwrap_or_default();
            let (name, rest) = text.split_at_checked(NAME_BYTES).unwrap_or_default();
            let mut identity = [0; 16];
            identity.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
            databases.push(DatabaseView {
                database,
                name: String::from_utf8_lossy(name).trim_end_matches('\0').to_owned(),
                identity,
                entry,
                reign: self.told(self.books.reign(database))?,
                root: self.told(self.books.load(layout.root(database)))?,
                quota: self.told(self.books.load(layout.quota(database)))?,
            });
        }
        Ok(databases)
    }

    /// The database of this name. 3D000 where there is none.
    pub fn database(&self, name: &str) -> Result<Database> {
        let databases = self.databases()?;
        let found = databases.iter().find(|view| view.name == name && view.entry.state == EntryState::Live);
        found.map(|view| view.database).ok_or_else(|| {
            Error::new(
                SqlState::INVALID_CATALOG_NAME,
                format!("database \"{name}\" does not exist in pool \"{}\"", self.location),
            )
        })
    }

    /// Lets this release write what the one before does not know. Until then both can use the pool. False where there is
    /// nothing to let.
    pub fn finalize(&self) -> Result<bool> {
        let (must_know, must_know_to_write, may_ignore) = superblock::FEATURES_WRITTEN;
        self.raise_features(must_know, must_know_to_write, may_ignore)
    }

    /// Adds features to the superblocks of all devices. The first one's last, as it is read first.
    pub(crate) fn raise_features(&self, must_know: u64, must_know_to_write: u64, may_ignore: u64) -> Result<bool> {
        self.check_writable()?;
        if let Some(missing) = self.missing().first() {
            return Err(missing.error.clone().with_hint("All devices of the pool must be there."));
        }
        let mut is_changed = false;
        for device in (0..DEVICES).rev() {
            let Some(part) = self.books.memory.part(device) else { continue };
            let mut page = first_page(&part.mapping, part.base);
            let FirstPage::Pool(found) = Superblock::read(&page, &self.location.to_string())? else { continue };
            let next = Superblock {
                epoch: found.epoch + 1,
                must_know: found.must_know | must_know,
                must_know_to_write: found.must_know_to_write | must_know_to_write,
                may_ignore: found.may_ignore | may_ignore,
                ..(*found).clone()
            };
            let has_all = (next.must_know, next.must_know_to_write, next.may_ignore)
                == (found.must_know, found.must_know_to_write, found.may_ignore);
            if !has_all {
                next.write(&mut page);
                write_first_page(&part.mapping, part.base, &page)?;
                is_changed = true;
            }
        }
        if is_changed {
            self.record(EventKind::Finalized, Slot(0), 0)?;
        }
        Ok(is_changed)
    }

    /// Gives up whatever is in the pool: no device of it is one any more. 55006 while a host is alive, or may be.
    pub fn destroy(self, even_if_used: bool) -> Result<Vec<Location>> {
        self.check_writable()?;
        if self.slice.is_some() {
            return Err(Error::unsupported("destroying a slice of a pool that is dealt out")
                .with_hint("Drop its databases, or destroy the pool, with all slices."));
        }
        if !even_if_used && let Some(host) = self.hosts()?.first() {
            let name = host.text.as_ref().map_or("", |text| text.name.as_str());
            return Err(Error::new(SqlState::OBJECT_IN_USE, format!("pool \"{}\" is in use", self.location))
                .with_detail(format!("{} \"{name}\" is {}.", host.host, host.ident.state.text()))
                .with_hint("Stop its hosts, or forget those that are dead: tidepool pool forget."));
        }
        let mut locations = Vec::new();
        // Device 0 first: without it no host opens the others.
        for device in 0..DEVICES {
            if let Some(part) = self.books.memory.part(device) {
                write_first_page(&part.mapping, part.base, &[0; PAGE_BYTES])?;
                locations.extend(part.mapping.device().map(|device| device.location().clone()));
            }
        }
        Ok(locations)
    }

    /// Gives up what is at a location that was a pool's first device and cannot be opened as that any more, so that a pool can be
    /// made there. 55006 while a host of this machine has it open.
    pub fn give_up_damaged(location: &Location) -> Result<()> {
        if let Location::File(path) = location
            && path.metadata().is_ok_and(|metadata| metadata.len() < PAGE_BYTES as u64)
        {
            let failed = |error| Error::io(format_args!("remove file \"{}\"", path.display()), &error);
            return std::fs::remove_file(path).map_err(failed);
        }
        let mapping = Mapping::open_shared(location, Protection::ReadWrite)?;
        let device = mapping.device().ok_or_else(|| invalid(format!("\"{location}\" is no device")))?;
        let page = first_page(&mapping, 0);
        match Superblock::read(&page, &location.to_string()) {
            // It is others', too.
            Ok(FirstPage::Pool(superblock)) if superblock.machines > 0 => {
                return Err(needs_slice(location, superblock.machines));
            }
            Ok(_) => {}
            Err(error) if error.code() == SqlState::DATA_CORRUPTED || !Superblock::may_be_one(&page) => {}
            // Somebody else's by now.
            Err(error) => return Err(error),
        }
        for slot in 0..(1 + u64::from(MACHINES_MAX)) * SLOTS as u64 {
            let held = device.is_byte_locked(slot).map_err(|error| Error::io("look at a lock of the pool", &error))?;
            if held {
                return Err(Error::new(SqlState::OBJECT_IN_USE, format!("pool \"{location}\" is in use"))
                    .with_detail("A process of this machine has the lock of one of its slots.")
                    .with_hint("Stop the servers that use it."));
            }
        }
        write_first_page(&mapping, 0, &[0; PAGE_BYTES])
    }
}

/// 22023: which of its slices is meant.
fn needs_slice(location: &Location, machines: u32) -> Error {
    Error::new(
        SqlState::INVALID_PARAMETER_VALUE,
        format!("pool \"{location}\" is dealt out to {machines} hosts, which do not see each other's stores"),
    )
    .with_hint("Say which of them this machine is: --machine, or pool.machine in the configuration.")
}

/// Writes the books of a pool, or of a slice, that nobody else has open. `part`: of its first device.
pub(crate) fn make_books(
    part: Part,
    layout: Layout,
    extent_bytes: u64,
    words: &[DeviceWord],
    zeroed: &[bool],
    locations: &[&Location],
) -> Result<()> {
    let control = layout.control_extents(extent_bytes);
    let memory = Mapped::new(part, layout.control_bytes(), extent_bytes as usize, Protection::ReadWrite);
    let books = Books { memory, layout };
    let Ok(()) = (0..control).try_for_each(|extent| books.memory.zero(Extent(extent)));
    let told = |outcome| told(locations[0], outcome);
    told(books.format(words, zeroed, control))?;
    for (device, location) in locations.iter().enumerate() {
        told(books.write_text(layout.device_text(device), location.to_string().as_bytes()))?;
    }
    (0..control).for_each(|extent| _ = books.memory.persist_bytes(Extent(extent), 0, extent_bytes as usize));
    Ok(())
}

/// Opens a device for a pool that is made of it: it is locked, and holds nothing.
pub(crate) fn open_new(location: &Location, size: Option<u64>, extent_bytes: u64) -> Result<Made> {
    let (Location::File(path) | Location::Dax(path)) = location else {
        return Err(invalid(format!("several processes cannot share \"{location}\""))
            .with_hint("Name a file: or dax: location."));
    };
    let was_there = path.exists();
    let check = |page: &[u8]| match Superblock::read(page, &location.to_string())? {
        FirstPage::New => Ok(Content::Stays),
        FirstPage::Pool(superblock) => Err(Error::new(
            SqlState::DUPLICATE_OBJECT,
            format!("\"{location}\" is device {} of a pool already", superblock.device),
        )
        .with_hint("Open it, or destroy it first: tidepool pool destroy.")),
    };
    let size = size.map(|size| size.next_multiple_of(extent_bytes));
    let mapping = Mapping::open_checked(location, size, MapOptions { huge_pages: true }, &check)?;
    Ok(Made { location: location.clone(), mapping, was_there })
}

/// 53200: the machine's memory, all of which devices on a tmpfs take when the pool is made, is not there. What a host stores to
/// must be there, as a store that fails ends its process; with less than that, the kernel would end processes, now or later.
pub(crate) fn check_memory(made: &[Made], available: Option<u64>) -> Result<()> {
    let wanted: u64 = made.iter().filter_map(|made| made.mapping.device()).map(Device::memory_to_commit).sum();
    let Some(available) = available.filter(|available| *available < wanted) else { return Ok(()) };
    Err(Error::new(SqlState::OUT_OF_MEMORY, "the machine has less free memory than the pool takes")
        .with_detail(format!(
            "A pool in memory takes all of it when it is made, so that no store to it can fail later: {} are wanted, and {} are free.",
            ByteSize(wanted),
            ByteSize(available)
        ))
        .with_hint("Make it smaller, or free memory. With --overcommit it is made all the same, and the kernel may end processes."))
}

/// Sees to it that no store to the extents can fail.
pub(crate) fn reserve(device: &Made, extents: u32, extent_bytes: u64, populates: bool) -> Result<()> {
    let failed = |error: &std::io::Error| Error::io(format_args!("reserve room for \"{}\"", device.location), error);
    device.mapping.commit(0..extents as usize * extent_bytes as usize).map_err(|error| failed(&error))?;
    if populates {
        device.mapping.populate().map_err(|error| failed(&error))?;
    }
    Ok(())
}

/// Removes files that were made a moment ago and are of no use.
pub(crate) fn forget_files(made: &[Made]) {
    for device in made.iter().filter(|device| !device.was_there) {
        if let Location::File(path) = &device.location {
            // A file that stays when this fails does no harm.
            let _ = std::fs::remove_file(path);
        }
    }
}

pub(crate) fn too_small(location: &Location, mapping: &Mapping, least: u64) -> Error {
    Error::new(SqlState::DISK_FULL, format!("\"{location}\" is too small for a pool")).with_detail(format!(
        "It has {}, and needs {} at least.",
        ByteSize(mapping.len() as u64),
        ByteSize(least)
    ))
}

pub(crate) fn page_of(superblock: &Superblock) -> [u8; PAGE_BYTES] {
    let mut page = [0; PAGE_BYTES];
    // Both copies, so that one may be lost from the first day on.
    Superblock { epoch: superblock.epoch - 1, ..superblock.clone() }.write(&mut page);
    superblock.write(&mut page);
    page
}

pub(crate) fn told<T>(location: &Location, outcome: Result<T, Trouble<Infallible>>) -> Result<T> {
    outcome.map_err(|trouble| {
        let Trouble::Damaged { .. } = trouble;
        Error::corrupted(format!("the books of pool \"{location}\" are damaged"))
            .with_detail(format!("In them, {trouble}."))
            .with_hint("Run tidepool pool check.")
    })
}

pub(crate) fn open_device(location: &Location, protection: Protection) -> Result<(Mapping, Superblock)> {
    let mapping = Mapping::open_shared(location, protection)?;
    let FirstPage::Pool(superblock) = Superblock::read(&first_page(&mapping, 0), &location.to_string())? else {
        return Err(Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("there is no pool in \"{location}\""),
        )
        .with_hint("Make one: tidepool pool create."));
    };
    if (mapping.len() as u64) < superblock.size_bytes {
        return Err(Error::corrupted(format!("device \"{location}\" was shortened")).with_detail(format!(
            "It has {} of {}.",
            ByteSize(mapping.len() as u64),
            ByteSize(superblock.size_bytes)
        )));
    }
    Ok((mapping, *superblock))
}

fn other_device(shown: &str, device: usize, word: DeviceWord, of: &Superblock, protection: Protection) -> Result<Part> {
    let location: Location = shown.parse()?;
    let (mapping, superblock) = open_device(&location, protection)?;
    let is_right = superblock.identity == of.identity
        && superblock.device as usize == device
        && (superblock.first, superblock.extents) == (word.first, word.extents);
    if !is_right {
        return Err(Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("\"{location}\" is not device {device} of the pool"),
        ));
    }
    Ok(Part { mapping, base: 0, first: word.first, extents: word.extents })
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
