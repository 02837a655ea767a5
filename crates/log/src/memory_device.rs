//! A log in a region of a tablespace: byte-addressable memory, which survives the process on `dax:` and `file:` devices
//! that do.
//!
//! The region is a page that says what it is, then slots of a segment each; segment `n` lies in slot `n % slots`. A write is
//! durable when it returns, so there is nothing to sync. What a device costs that the tablespace stands for is charged as
//! sequential writes and reads.
//!
//! The first page, integers little-endian:
//!
//! | offset | bytes | meaning |
//! | --- | --- | --- |
//! | 0 | 8 | checksum of bytes 8 to 63, as in `format.rs` |
//! | 8 | 8 | `TIDELOGM` |
//! | 16 | 8 | format version, 1 |
//! | 24 | 8 | bytes of a segment |
//! | 32 | 16 | identity of the database |
//! | 48 | 8 | slots |
//! | 56 | 8 | zero |
//! | 64 | 128 | the two lines of the note of segments (`notes.rs`) |
//!
//! Its first 64 bytes are written last, when no slot has the header of a segment any more.

use crate::device::{LogDevice, LogSegment, NOTE_BYTES};
use crate::format::{BLOCK_ALIGNMENT, DatabaseIdentity, MemoryHeader, PAGE_BYTES, SegmentHeader};
use std::sync::{Arc, Mutex, MutexGuard};
use tidepool_base::{ByteSize, Error, Result, SqlState, crash_point};
use tidepool_device::Access;
use tidepool_tablespace::{Purpose, Region};

/// Fewer could not be written while others wait for a checkpoint.
const SLOTS_MIN: usize = 3;

/// Of the note's lines in the first page.
const NOTES_START: usize = BLOCK_ALIGNMENT;

#[derive(Debug)]
pub struct MemoryDevice {
    memory: Arc<Memory>,
    identity: DatabaseIdentity,
}

#[derive(Debug)]
struct Memory {
    /// Written by one thread at a time: the leader of a round, or whoever recycles.
    region: Mutex<Region>,
    slots: usize,
    segment_bytes: usize,
    name: String,
}

impl MemoryDevice {
    /// Bytes of the region that a log of `log_bytes` takes, in whole segments.
    pub fn region_bytes(log_bytes: u64, segment_bytes: usize) -> u64 {
        (PAGE_BYTES as u64).saturating_add(log_bytes / (segment_bytes.max(1) as u64) * segment_bytes as u64)
    }

    /// An empty log in `region`, of [`Purpose::Log`], whatever was there. `segment_bytes` is a multiple of 4,096.
    pub fn create(region: Region, segment_bytes: usize, identity: DatabaseIdentity) -> Result<MemoryDevice> {
        let slots = region.len().saturating_sub(PAGE_BYTES) / segment_bytes.max(1);
        if !segment_bytes.is_multiple_of(PAGE_BYTES) || segment_bytes < 16 * PAGE_BYTES || slots < SLOTS_MIN {
            return Err(Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!(
                    "a log of {} in segments of {} is not possible",
                    ByteSize(region.len() as u64),
                    ByteSize(segment_bytes as u64)
                ),
            )
            .with_detail("A log has at least three segments, each of 64 kB or more in steps of 4 kB."));
        }
        let device = MemoryDevice::over(region, MemoryHeader { segment_bytes, slots, identity });
        for slot in 0..slots {
            device.clear_header(slot as u64)?;
        }
        let header = MemoryHeader { segment_bytes, slots, identity }.to_bytes();
        device.memory.lock().store(0, &header)?;
        Ok(device)
    }

    /// The log that `create` made in a region, which this is again. XX001 when it is not there any more.
    pub fn open(region: Region, identity: DatabaseIdentity) -> Result<MemoryDevice> {
        let header = region.get(..BLOCK_ALIGNMENT).and_then(|bytes| MemoryHeader::read(bytes, identity));
        let fits = |header: &MemoryHeader| {
            let slots = region.len().saturating_sub(PAGE_BYTES) / header.segment_bytes.max(1);
            header.slots == slots && slots >= SLOTS_MIN
        };
        let header = header.filter(fits).ok_or_else(|| {
            Error::corrupted(format!("tablespace \"{}\" has no log of this database", region.tablespace().name()))
        })?;
        Ok(MemoryDevice::over(region, header))
    }

    fn over(region: Region, header: MemoryHeader) -> MemoryDevice {
        let name = format!("tablespace \"{}\"", region.tablespace().name());
        let MemoryHeader { segment_bytes, slots, identity } = header;
        MemoryDevice { memory: Arc::new(Memory { region: Mutex::new(region), slots, segment_bytes, name }), identity }
    }

    /// The region, when nobody uses the log any more.
    pub fn into_region(self) -> Option<Region> {
        let memory = Arc::into_inner(self.memory)?;
        Some(memory.region.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    fn handle(&self, number: u64) -> Arc<dyn LogSegment> {
        Arc::new(MemorySegment { memory: self.memory.clone(), slot: (number % self.memory.slots as u64) as usize })
    }

    fn header(&self, slot: usize) -> Result<Option<SegmentHeader>> {
        let region = self.memory.lock();
        let start = self.memory.start_of(slot);
        SegmentHeader::read(&region[start..start + PAGE_BYTES], self.identity, &self.memory.name)
    }

    fn clear_header(&self, number: u64) -> Result<()> {
        self.handle(number).write(0, &[0; BLOCK_ALIGNMENT])
    }
}

impl Memory {
    fn start_of(&self, slot: usize) -> usize {
        PAGE_BYTES + slot * self.segment_bytes
    }

    fn lock(&self) -> MutexGuard<'_, Region> {
        self.region.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl LogDevice for MemoryDevice {
    fn name(&self) -> String {
        self.memory.name.clone()
    }

    fn segment_name(&self, number: u64) -> String {
        format!("{number} in {}", self.memory.name)
    }

    fn segment_bytes(&self) -> usize {
        self.memory.segment_bytes
    }

    fn segments_max(&self) -> u64 {
        self.memory.slots as u64
    }

    fn write_alignment(&self) -> usize {
        BLOCK_ALIGNMENT
    }

    fn block_alignment(&self) -> usize {
        BLOCK_ALIGNMENT
    }

    fn segments(&self) -> Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for slot in 0..self.memory.slots {
            let number = self.header(slot)?.map(|header| header.number);
            numbers.extend(number.filter(|number| *number > 0 && number % self.memory.slots as u64 == slot as u64));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn open(&self, number: u64) -> Result<Arc<dyn LogSegment>> {
        Ok(self.handle(number))
    }

    /// Its user keeps fewer segments than there are slots, and takes the numbers in order.
    fn create(&self, number: u64) -> Result<Arc<dyn LogSegment>> {
        self.clear_header(number)?;
        crash_point("log.segment.created");
        Ok(self.handle(number))
    }

    fn recycle(&self, source: u64, target: u64) -> Result<Arc<dyn LogSegment>> {
        self.remove(source)?;
        self.create(target)
    }

    fn remove(&self, number: u64) -> Result<()> {
        self.clear_header(number)?;
        crash_point("log.segment.removed");
        Ok(())
    }

    fn notes(&self) -> Result<Vec<[u8; NOTE_BYTES]>> {
        let region = self.memory.lock();
        let line = |at: usize| region.get(at..at + NOTE_BYTES).and_then(|line| line.try_into().ok());
        Ok([NOTES_START, NOTES_START + NOTE_BYTES].into_iter().filter_map(line).collect())
    }

    fn write_note(&self, second: bool, line: &[u8; NOTE_BYTES]) -> Result<()> {
        let at = NOTES_START + if second { NOTE_BYTES } else { 0 };
        self.memory.lock().store(at, line)
    }
}

#[derive(Debug)]
struct MemorySegment {
    memory: Arc<Memory>,
    slot: usize,
}

impl MemorySegment {
    fn start(&self) -> usize {
        self.memory.start_of(self.slot)
    }
}

impl LogSegment for MemorySegment {
    fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<usize> {
        let region = self.memory.lock();
        let from = offset.min(self.memory.segment_bytes);
        let count = bytes.len().min(self.memory.segment_bytes - from);
        bytes[..count].copy_from_slice(&region[self.start() + from..][..count]);
        region.tablespace().charge(Purpose::Log, &[Access::read_sequential(count as u64)]);
        Ok(count)
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        if offset > self.memory.segment_bytes || bytes.len() > self.memory.segment_bytes - offset {
            return Err(Error::internal(format!("{} bytes at {offset} of a log segment", bytes.len())));
        }
        let mut region = self.memory.lock();
        region.store(self.start() + offset, bytes)?;
        region.tablespace().charge(Purpose::Log, &[Access::write_sequential(bytes.len() as u64)]);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        // Durable since it was written, as far as the device lets anything be.
        Ok(())
    }
}
