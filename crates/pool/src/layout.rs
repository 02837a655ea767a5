//! Where everything of a pool is.
//!
//! All integers are little-endian. Nothing moves after the pool was made: the file is never shortened or extended.
//!
//! # A device
//!
//! An extent is 2 MiB, or more in pools of more than 32 GB. Extents of all devices are numbered together, each device's in one run.
//! The first page of a device is its superblock (`superblock.rs`); the extent that it is in belongs to no host.
//!
//! # The control area: the first extents of device 0
//!
//! | offset | bytes | what |
//! | --- | --- | --- |
//! | 0 | 4,096 | superblock |
//! | 4,096 | 16 × 256 | devices: `DEVICE`; checksum of the text; text: the location as it was given, padded with zeroes |
//! | 8,192 | 16 × 4,096 | directory of databases |
//! | 73,728 | 64 × 4,096 | hosts |
//! | 335,872 | 16 × 32,768 | log table: 4,096 `SEGMENT` words a database; segment `n` is word `n` modulo 4,096 |
//! | 860,160 | 4,096 | number of the next event, then zeroes |
//! | 864,256 | 4,096 × 32 | events: three words each, then 8 bytes of zeroes |
//! | 995,328 | 8 an extent | `OWNER` words, of every extent of every device that may ever be added |
//! | behind | 8 an extent | checksums of shared extents, as numbers: the low 60 bits |
//!
//! A page of the directory:
//!
//! | offset | bytes | what |
//! | --- | --- | --- |
//! | 0 | 3 × 8 | `ENTRY`, `TERM`, `ROOT` |
//! | 64 | 8 | quota in extents, 0 for none |
//! | 120 | 8 | checksum of the 128 bytes that follow |
//! | 128 | 128 | name, padded with zeroes to 64 bytes; identity, 16 bytes; zeroes |
//! | 1,024 | 32 × 64 | terms: term `t` is line `t` modulo 32: `FIRST`, `SEAL` |
//!
//! A page of a host, in lines of 64 bytes that have one writer each:
//!
//! | offset | bytes | writer | what |
//! | --- | --- | --- | --- |
//! | 0 | 8 | any host, by swap | `IDENT` |
//! | 64 | 3 × 8 | itself | beats so far; its monotonic clock and its wall clock then, in microseconds |
//! | 128 | 6 × 8 | itself | `gen_held`, `log_needed`, `applied_ts`, `applied_pos`, `wanted`, `room` |
//! | 192 | 8 | itself | `needed` |
//! | 200 | 8 | others, by swap | `kick` |
//! | 256 | 8 | itself | checksum of the 760 bytes that follow |
//! | 264 | 760 | itself | lines of text: name, version, boot id, process, its start time, address, control socket |
//! | 1,024 | 8 | the kernel | the thread that beats, as a robust futex; it is marked when that thread ends. No check: the kernel knows none |
//!
//! Checksums are XXH3-64. Whatever has no meaning here is zero.

use crate::memory::{At, Field};
use crate::words::{
    DATABASES, Database, DeviceWord, Entry, EventHead, EventPart, Extent, First, Ident, Number, Owner, Reign, Root,
    SLOTS, Seal, Segment, Slot, Term,
};
use std::ops::Range;

pub const PAGE_BYTES: usize = 4096;

pub const DEVICES: usize = 16;
pub const TERMS: usize = 32;
pub const SEGMENTS: usize = 4096;
pub const EVENTS: usize = 4096;

/// The smallest extent: a huge page.
pub const EXTENT_BYTES_MIN: u64 = 2 << 20;

/// The largest: a seal's offset reaches so far.
pub const EXTENT_BYTES_MAX: u64 = 512 << 20;

const DEVICE_BYTES: usize = 256;
const LINE: usize = 64;
const EVENT_BYTES: usize = 32;

const DEVICES_AT: usize = PAGE_BYTES;
const DIRECTORY_AT: usize = DEVICES_AT + DEVICES * DEVICE_BYTES;
const HOSTS_AT: usize = DIRECTORY_AT + DATABASES * PAGE_BYTES;
const SEGMENTS_AT: usize = HOSTS_AT + SLOTS * PAGE_BYTES;
const EVENT_NEXT_AT: usize = SEGMENTS_AT + DATABASES * SEGMENTS * 8;
const EVENTS_AT: usize = EVENT_NEXT_AT + PAGE_BYTES;
const OWNERS_AT: usize = EVENTS_AT + EVENTS * EVENT_BYTES;

const _: () = assert!(DIRECTORY_AT == 8_192 && HOSTS_AT == 73_728 && SEGMENTS_AT == 335_872);
const _: () = assert!(EVENT_NEXT_AT == 860_160 && EVENTS_AT == 864_256 && OWNERS_AT == 995_328);

pub const DEVICE_TEXT_BYTES: usize = DEVICE_BYTES - 16;
pub const DATABASE_TEXT_BYTES: usize = 128;
pub const NAME_BYTES: usize = 64;
pub const HOST_TEXT_BYTES: usize = 760;

/// Where text is whose checksum is the word before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text {
    pub at: At,
    pub bytes: usize,
}

impl Text {
    pub fn checksum(self) -> At {
        At(self.at.0 - 8)
    }
}

/// How many of everything a pool has. The places of things do not depend on it, but for where the owners end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub slots: u8,
    pub databases: u8,
    /// Extents for which there are owners.
    pub extents: u32,
}

impl Layout {
    pub fn new(extents: u32) -> Layout {
        Layout { slots: SLOTS as u8, databases: DATABASES as u8, extents }
    }

    /// Bytes of the control area that are used.
    pub fn control_bytes(self) -> usize {
        OWNERS_AT + self.extents as usize * 16
    }

    /// Extents that the control area takes.
    pub fn control_extents(self, extent_bytes: u64) -> u32 {
        (self.control_bytes() as u64).div_ceil(extent_bytes) as u32
    }

    pub fn all_slots(self) -> impl Iterator<Item = Slot> {
        (0..self.slots).map(Slot)
    }

    pub fn all_databases(self) -> impl Iterator<Item = Database> {
        (0..self.databases).map(Database)
    }

    pub fn all_extents(self) -> impl Iterator<Item = Extent> {
        (0..self.extents).map(Extent)
    }

    pub fn owner(self, extent: Extent) -> Field<Owner> {
        debug_assert!(extent.0 < self.extents);
        field(OWNERS_AT + extent.0 as usize * 8)
    }

    /// The checksum of an extent's bytes, from when it was published.
    pub fn sum(self, extent: Extent) -> Field<Number> {
        field(OWNERS_AT + (self.extents as usize + extent.0 as usize) * 8)
    }

    /// The extent whose owner is at `at`.
    pub fn extent_of(self, at: At) -> Option<Extent> {
        let index = (at.0 as usize).checked_sub(OWNERS_AT)? / 8;
        (index < self.extents as usize).then_some(Extent(index as u32))
    }

    fn host(slot: Slot) -> usize {
        HOSTS_AT + usize::from(slot.0) * PAGE_BYTES
    }

    /// Where the page of a host begins.
    pub(crate) fn host_page(self, slot: Slot) -> usize {
        Layout::host(slot)
    }

    pub fn ident(self, slot: Slot) -> Field<Ident> {
        field(Layout::host(slot))
    }

    pub fn host_number(self, slot: Slot, which: HostNumber) -> Field<Number> {
        field(Layout::host(slot) + which as usize)
    }

    pub fn host_text(self, slot: Slot) -> Text {
        Text { at: at(Layout::host(slot) + 264), bytes: HOST_TEXT_BYTES }
    }

    /// The word that the kernel marks when the thread that beats has ended. Its low four bytes are a futex.
    pub fn thread_word(self, slot: Slot) -> At {
        at(Layout::host(slot) + 1024)
    }

    fn database(database: Database) -> usize {
        DIRECTORY_AT + usize::from(database.0) * PAGE_BYTES
    }

    pub fn entry(self, database: Database) -> Field<Entry> {
        field(Layout::database(database))
    }

    pub fn term(self, database: Database) -> Field<Reign> {
        field(Layout::database(database) + 8)
    }

    pub fn root(self, database: Database) -> Field<Root> {
        field(Layout::database(database) + 16)
    }

    pub fn quota(self, database: Database) -> Field<Number> {
        field(Layout::database(database) + 64)
    }

    pub fn database_text(self, database: Database) -> Text {
        Text { at: at(Layout::database(database) + 128), bytes: DATABASE_TEXT_BYTES }
    }

    fn term_line(database: Database, term: Term) -> usize {
        Layout::database(database) + 1024 + term.0 as usize % TERMS * LINE
    }

    pub fn first(self, database: Database, term: Term) -> Field<First> {
        field(Layout::term_line(database, term))
    }

    pub fn seal(self, database: Database, term: Term) -> Field<Seal> {
        field(Layout::term_line(database, term) + 8)
    }

    pub fn segment(self, database: Database, number: u64) -> Field<Segment> {
        let index = number as usize % SEGMENTS;
        field(SEGMENTS_AT + (usize::from(database.0) * SEGMENTS + index) * 8)
    }

    pub fn device(self, device: usize) -> Field<DeviceWord> {
        field(DEVICES_AT + device * DEVICE_BYTES)
    }

    pub fn device_text(self, device: usize) -> Text {
        Text { at: at(DEVICES_AT + device * DEVICE_BYTES + 16), bytes: DEVICE_TEXT_BYTES }
    }

    pub fn event_next(self) -> Field<Number> {
        field(EVENT_NEXT_AT)
    }

    pub fn event(self, sequence: u64) -> (Field<EventHead>, Field<EventPart>, Field<EventPart>) {
        let first = EVENTS_AT + sequence as usize % EVENTS * EVENT_BYTES;
        (field(first), field(first + 8), field(first + 16))
    }

    /// The bytes of the control area that are zero, in ascending order.
    pub fn gaps(self) -> Vec<Range<usize>> {
        let mut used: Vec<Range<usize>> = Vec::new();
        let text = |text: Text| text.checksum().0 as usize..text.at.0 as usize + text.bytes;
        let mut words = |first: usize, count: usize| used.push(first..first + count * 8);
        for device in 0..DEVICES {
            words(self.device(device).at.0 as usize, 1);
        }
        for database in (0..DATABASES as u8).map(Database) {
            words(self.entry(database).at.0 as usize, 3);
            words(self.quota(database).at.0 as usize, 1);
            for term in 0..TERMS as u32 {
                words(self.first(database, Term(term)).at.0 as usize, 2);
            }
            words(self.segment(database, 0).at.0 as usize, SEGMENTS);
        }
        for slot in (0..SLOTS as u8).map(Slot) {
            words(self.ident(slot).at.0 as usize, 1);
            for which in HostNumber::ALL {
                words(self.host_number(slot, *which).at.0 as usize, 1);
            }
            words(self.thread_word(slot).0 as usize, 1);
        }
        words(EVENT_NEXT_AT, 1);
        for event in 0..EVENTS as u64 {
            words(self.event(event).0.at.0 as usize, 3);
        }
        words(OWNERS_AT, 2 * self.extents as usize);
        used.extend((0..DEVICES).map(|device| text(self.device_text(device))));
        used.extend((0..DATABASES as u8).map(|database| text(self.database_text(Database(database)))));
        used.extend((0..SLOTS as u8).map(|slot| text(self.host_text(Slot(slot)))));
        used.sort_by_key(|range| range.start);
        let mut gaps = Vec::new();
        // Behind the superblock.
        let mut end = PAGE_BYTES;
        for range in used {
            debug_assert!(range.start >= end, "two things at byte {}", range.start);
            if range.start > end {
                gaps.push(end..range.start);
            }
            end = range.end;
        }
        gaps
    }
}

/// The numbers of a host's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum HostNumber {
    Beats = 64,
    MonotonicUs = 72,
    WallUs = 80,
    /// The lowest generation whose extents it may touch. 0: it touches any.
    GenHeld = 128,
    /// The first segment of the log that it needs.
    LogNeeded = 136,
    AppliedTs = 144,
    AppliedPosition = 152,
    /// The position in the log that statements there wait for; 0: none did.
    Wanted = 160,
    /// Extents that it asks a primary for, or gives back; 0: nothing.
    Room = 168,
    /// Extents that it would have free in the pool: hosts give way until so many are. 0: it asks for none.
    Needed = 192,
    Kick = 200,
}

impl HostNumber {
    pub const ALL: &[HostNumber] = &[
        HostNumber::Beats,
        HostNumber::MonotonicUs,
        HostNumber::WallUs,
        HostNumber::GenHeld,
        HostNumber::LogNeeded,
        HostNumber::AppliedTs,
        HostNumber::AppliedPosition,
        HostNumber::Wanted,
        HostNumber::Room,
        HostNumber::Needed,
        HostNumber::Kick,
    ];
}

fn at(offset: usize) -> At {
    // What is kept of 2^24 extents ends below 2^29.
    At(offset as u32)
}

fn field<W>(offset: usize) -> Field<W> {
    Field::new(at(offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_overlaps_and_every_byte_is_known() {
        let layout = Layout::new(10_240);
        let gaps = layout.gaps();
        assert!(gaps.windows(2).all(|pair| pair[0].end < pair[1].start));
        assert!(gaps.iter().all(|gap| gap.start.is_multiple_of(8) && gap.end.is_multiple_of(8)));
        assert_eq!(layout.control_bytes(), 995_328 + 2 * 81_920);
        assert_eq!(layout.control_extents(EXTENT_BYTES_MIN), 1);
        assert_eq!(layout.extent_of(layout.owner(Extent(77)).at), Some(Extent(77)));
        assert_eq!(layout.extent_of(layout.ident(Slot(0)).at), None);
    }
}
