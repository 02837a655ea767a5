//! The memory that a node lends: one mapping, of which runs of units are free or taken.
//!
//! Bytes go in and out by copying, under a lock for each unit, so that two connections that read and write the same unit
//! take turns. Nobody outside of this module has an address in the mapping.

use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::ops::Range;
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_device::{Content, Location, MapOptions, Mapping};

/// What is taken and given back is a multiple of this.
pub const UNIT_BYTES: u64 = 64 << 10;

/// Units share this many locks. Two units with the same lock only wait for each other's copying.
const STRIPES: usize = 1024;

/// The first bytes of a file or device that a node has used.
const MAGIC: &[u8; 16] = b"TIDEPOOL NODE\0\0\x01";

#[derive(Debug)]
pub struct Arena {
    mapping: Mapping,
    stripes: Box<[RwLock<()>]>,
    free: Mutex<Free>,
    /// Bytes that can be lent.
    bytes: u64,
}

/// Free runs: where each begins and how long it is, in bytes. No two touch.
#[derive(Debug)]
struct Free {
    runs: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Arena {
    /// Maps `size` bytes of `location`, which is this machine's memory: `anon:`, `numa:`, `file:` or `dax:`. 22023 for
    /// others, 55000 for a file that holds something else.
    pub fn open(location: &Location, size: Option<u64>) -> Result<Arena> {
        let named = match location {
            Location::Anon | Location::Numa(_) => {
                location.require_size(size)?;
                false
            }
            Location::File(_) | Location::Dax(_) => true,
            _ => {
                return Err(Error::new(
                    SqlState::INVALID_PARAMETER_VALUE,
                    format!("a memory node cannot lend memory of \"{location}\""),
                )
                .with_hint("Write anon:, numa:NODE, file:PATH or dax:PATH."));
            }
        };
        let check = |header: &[u8]| {
            if header.starts_with(MAGIC) || header.iter().all(|byte| *byte == 0) {
                return Ok(Content::Goes);
            }
            Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("device \"{location}\" holds something that is not a memory node's"),
            )
            .with_hint("Name another place, or zero its first 4 kB to give it to the node with all it holds."))
        };
        let options = MapOptions { huge_pages: !named };
        let mapping = Mapping::open_checked(location, size, options, &check)?;
        Arena::over(mapping, named)
    }

    /// Lends `mapping`, of which the first unit stays the node's if `is_named`: it says whose the device is.
    fn over(mapping: Mapping, is_named: bool) -> Result<Arena> {
        let first = if is_named { UNIT_BYTES } else { 0 };
        let end = mapping.len() as u64 / UNIT_BYTES * UNIT_BYTES;
        if end <= first {
            return Err(Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("a memory node cannot lend {}", ByteSize(mapping.len() as u64)),
            )
            .with_hint("Give it 1 MB or more."));
        }
        let bytes = end - first;
        let arena = Arena {
            stripes: (0..STRIPES).map(|_| RwLock::new(())).collect(),
            free: Mutex::new(Free { runs: BTreeMap::from([(first, bytes)]), bytes }),
            bytes,
            mapping,
        };
        if is_named {
            let failed = |error: &std::io::Error| Error::io("reserve the first page of a memory node's device", error);
            arena.mapping.commit(0..MAGIC.len()).map_err(|error| failed(&error))?;
            arena.write(0, MAGIC);
        }
        Ok(arena)
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn free_bytes(&self) -> u64 {
        self.free.lock().bytes
    }

    /// Takes so many bytes, rounded up to whole units, that read as zeroes. `None`: there is no such run. 53100 when the
    /// device's file system is full.
    pub fn take(&self, bytes: u64) -> Result<Option<Range<u64>>> {
        let Some(bytes) = bytes.max(1).checked_next_multiple_of(UNIT_BYTES) else { return Ok(None) };
        let run = {
            let mut free = self.free.lock();
            let Some((&start, &len)) = free.runs.iter().find(|(_, len)| **len >= bytes) else { return Ok(None) };
            free.runs.remove(&start);
            if len > bytes {
                free.runs.insert(start + bytes, len - bytes);
            }
            free.bytes -= bytes;
            start..start + bytes
        };
        // Beyond what is free in a file system a write would end the process.
        if let Err(error) = self.mapping.commit(run.start as usize..run.end as usize) {
            self.put_back(run);
            return Err(Error::io("reserve memory for a tablespace", &error));
        }
        if !self.mapping.is_zeroed() {
            self.clear(&run);
        }
        Ok(Some(run))
    }

    /// Gives back what was taken. Nobody reads what it held any more: it is cleared first.
    pub fn give(&self, run: Range<u64>) {
        let whole = self.mapping.page_size() as u64;
        let is_aligned = run.start.is_multiple_of(whole) && run.end.is_multiple_of(whole);
        let released =
            is_aligned && self.mapping.release(run.start as usize..run.end as usize).is_ok_and(|released| released);
        if !released {
            self.clear(&run);
        }
        self.put_back(run);
    }

    fn put_back(&self, run: Range<u64>) {
        let mut free = self.free.lock();
        let (mut start, mut end) = (run.start, run.end);
        free.bytes += end - start;
        if let Some((&before, &len)) = free.runs.range(..start).next_back()
            && before + len == start
        {
            free.runs.remove(&before);
            start = before;
        }
        if let Some(len) = free.runs.remove(&end) {
            end += len;
        }
        free.runs.insert(start, end - start);
    }

    fn clear(&self, run: &Range<u64>) {
        static ZEROES: [u8; 64 << 10] = [0; 64 << 10];
        for start in run.clone().step_by(ZEROES.len()) {
            self.write(start, &ZEROES[..(run.end - start).min(ZEROES.len() as u64) as usize]);
        }
    }

    /// Copies bytes from `offset` on. Each unit is of one moment; several may be of several.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        self.check(offset, into.len());
        let mut at = offset as usize;
        let mut left = into;
        while !left.is_empty() {
            let count = left.len().min(UNIT_BYTES as usize - at % UNIT_BYTES as usize);
            let (part, rest) = left.split_at_mut(count);
            let _shared = self.stripe(at).read();
            // SAFETY: inside the mapping, which lives as long as the arena. Writes to this unit hold its lock alone,
            // and nobody but this module has an address in the mapping.
            unsafe { part.as_mut_ptr().copy_from_nonoverlapping(self.mapping.base().as_ptr().add(at), count) };
            (at, left) = (at + count, rest);
        }
    }

    /// Copies bytes to `offset` on, with the same promise.
    pub fn write(&self, offset: u64, bytes: &[u8]) {
        self.check(offset, bytes.len());
        let mut at = offset as usize;
        let mut left = bytes;
        while !left.is_empty() {
            let count = left.len().min(UNIT_BYTES as usize - at % UNIT_BYTES as usize);
            let (part, rest) = left.split_at(count);
            let _alone = self.stripe(at).write();
            // SAFETY: as in `read`; other reads and writes of this unit wait for the lock.
            unsafe { self.mapping.base().as_ptr().add(at).copy_from_nonoverlapping(part.as_ptr(), count) };
            (at, left) = (at + count, rest);
        }
    }

    fn stripe(&self, at: usize) -> &RwLock<()> {
        &self.stripes[at / UNIT_BYTES as usize % STRIPES]
    }

    /// # Panics
    /// When the bytes are not inside the mapping: callers have checked them against what was taken.
    fn check(&self, offset: u64, len: usize) {
        let end = offset.checked_add(len as u64);
        assert!(end.is_some_and(|end| end <= self.mapping.len() as u64), "{len} bytes at {offset} are outside");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(units: u64) -> Arena {
        Arena::over(Mapping::heap((units * UNIT_BYTES) as usize), false).unwrap()
    }

    #[test]
    fn runs_are_taken_once_join_again_and_come_back_empty() {
        let arena = arena(10);
        let runs: Vec<_> = [1, UNIT_BYTES * 3, UNIT_BYTES + 1].map(|bytes| arena.take(bytes).unwrap().unwrap()).into();
        assert_eq!(arena.free_bytes(), 4 * UNIT_BYTES);
        assert_eq!(runs[0].end, runs[1].start);
        assert!(arena.take(5 * UNIT_BYTES).unwrap().is_none() && arena.take(u64::MAX).unwrap().is_none());
        arena.write(runs[1].start + 5, b"secret");
        let mut bytes = [1; 6];
        arena.read(runs[1].start + 5, &mut bytes);
        assert_eq!(&bytes, b"secret");
        for run in [1, 0, 2] {
            arena.give(runs[run].clone());
        }
        let all = arena.take(10 * UNIT_BYTES).unwrap().expect("one run again");
        arena.read(runs[1].start + 5, &mut bytes);
        assert_eq!(bytes, [0; 6]);
        assert_eq!((all, arena.free_bytes()), (0..10 * UNIT_BYTES, 0));
    }

    #[test]
    fn copies_cross_units() {
        let arena = arena(4);
        let bytes: Vec<u8> = (0..3 * UNIT_BYTES as usize).map(|at| (at % 251) as u8).collect();
        arena.write(100, &bytes);
        let mut found = vec![0; bytes.len()];
        arena.read(100, &mut found);
        assert!(found == bytes);
    }

    #[test]
    fn a_file_is_the_nodes_or_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("memory");
        let location = Location::File(path.clone());
        let arena = Arena::open(&location, Some(1 << 20)).unwrap();
        assert_eq!(arena.bytes(), (1 << 20) - UNIT_BYTES);
        let run = arena.take(UNIT_BYTES).unwrap().unwrap();
        arena.write(run.start, b"left");
        drop(arena);
        let arena = Arena::open(&location, Some(1 << 20)).unwrap();
        let run = arena.take(UNIT_BYTES).unwrap().unwrap();
        let mut bytes = [1; 4];
        arena.read(run.start, &mut bytes);
        assert_eq!(bytes, [0; 4], "what a node left is nobody's to read");
        drop(arena);
        std::fs::write(&path, vec![b'x'; 1 << 20]).unwrap();
        let refused = Arena::open(&location, Some(1 << 20)).unwrap_err();
        assert_eq!(refused.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
        assert_eq!(std::fs::read(&path).unwrap(), vec![b'x'; 1 << 20]);
        for location in ["pool:", "paged:1MB:anon:", "anon:, anon:"] {
            let error = Arena::open(&location.parse().unwrap(), Some(1 << 20)).unwrap_err();
            assert_eq!(error.code(), SqlState::INVALID_PARAMETER_VALUE);
        }
        assert_eq!(Arena::open(&Location::Anon, None).unwrap_err().code(), SqlState::INVALID_PARAMETER_VALUE);
    }
}
