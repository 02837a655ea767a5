//! A pod's memory as this process has it mapped.

#![allow(unsafe_code, reason = "words and lines of mappings, whose proofs are here")]

use crate::access::{Access, Fence, Line, LineBytes, Lines, Part, WordAt};
use crate::layout::{HostId, Layout};
use std::convert::Infallible;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use tidepool_base::{Error, Result, SqlState};
use tidepool_device::{LINE_BYTES, Mapping, discard_lines, fence_lines, write_back_lines};
#[cfg(not(loom))]
use tidepool_pool::pool::Pool;
use tidepool_pool::words::Extent;

const WORDS_OF_LINE: usize = LINE_BYTES / 8;

/// What keeps bytes mapped.
enum Keeper {
    Mapping(Arc<Mapping>),
    /// Models have no pool.
    #[cfg(not(loom))]
    Pool(Arc<Pool>),
}

impl Keeper {
    /// Where the bytes begin that it keeps, and how many there are.
    fn place(&self, extent: Option<Extent>) -> Option<(NonNull<u8>, usize)> {
        match (self, extent) {
            (Keeper::Mapping(mapping), None) => Some((mapping.base(), mapping.len())),
            #[cfg(not(loom))]
            (Keeper::Pool(pool), Some(extent)) => pool.books().memory.extent(extent),
            _ => None,
        }
    }
}

/// Bytes for one of a pod's areas: a part of an extent of a pool, or of a mapping of this process.
pub struct Area {
    base: NonNull<u8>,
    len: usize,
    _keeper: Keeper,
}

// SAFETY: the bytes are mapped as long as the keeper is there, and are used as atomic words alone.
unsafe impl Send for Area {}
// SAFETY: as above.
unsafe impl Sync for Area {}

impl fmt::Debug for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Area({} bytes)", self.len)
    }
}

impl Area {
    /// # Safety
    /// All processes that have the bytes mapped use them by [`Mapped`] alone, or not at all.
    pub unsafe fn of_mapping(mapping: Arc<Mapping>, range: Range<usize>) -> Result<Area> {
        Area::new(Keeper::Mapping(mapping), None, range)
    }

    /// # Safety
    /// As of `of_mapping`; and the pod is the extent's owner in the pool's books.
    #[cfg(not(loom))]
    pub unsafe fn of_extent(pool: Arc<Pool>, extent: Extent, range: Range<usize>) -> Result<Area> {
        Area::new(Keeper::Pool(pool), Some(extent), range)
    }

    fn new(keeper: Keeper, extent: Option<Extent>, range: Range<usize>) -> Result<Area> {
        let wrong = |what: &str| {
            let text = format!("bytes {} to {} are no area of a pod: {what}", range.start, range.end);
            Error::new(SqlState::INVALID_PARAMETER_VALUE, text)
        };
        let (base, len) = keeper.place(extent).ok_or_else(|| wrong("their device is away"))?;
        if range.start > range.end || range.end > len {
            return Err(wrong("they are not all mapped"));
        }
        if !base.addr().get().is_multiple_of(LINE_BYTES) || !range.start.is_multiple_of(LINE_BYTES) {
            return Err(wrong("they do not begin with a line"));
        }
        // SAFETY: inside what is mapped, as was just compared.
        let base = unsafe { base.add(range.start) };
        Ok(Area { base, len: (range.end - range.start) / LINE_BYTES * LINE_BYTES, _keeper: keeper })
    }

    /// # Panics
    /// Where the area does not have these words.
    fn words(&self, first: usize, count: usize) -> &[AtomicU64] {
        let words = self.len / 8;
        assert!(first <= words && count <= words - first, "{count} words at {first} of {words}");
        // SAFETY: inside the area, which is mapped as long as `self`, and aligned, as it begins with a line. All use
        // it as atomic words alone, by the promise that the area was made with.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(first * 8).cast(), count) }
    }

    fn lines(&self, lines: Lines) -> (&[AtomicU64], NonNull<u8>) {
        let words = self.words(lines.first.0 as usize * WORDS_OF_LINE, lines.count as usize * WORDS_OF_LINE);
        (words, NonNull::from(words).cast())
    }
}

/// The two areas of a pod.
#[derive(Debug)]
pub struct Mapped {
    coherent: Area,
    other: Area,
}

impl Mapped {
    /// The areas, if they have room for the layout. New ones are all zeroes.
    pub fn new(layout: Layout, coherent: Area, other: Area) -> Result<Mapped> {
        let needed = [layout.coherent_bytes(), layout.lines() * LINE_BYTES as u64];
        for (area, needed) in [&coherent, &other].into_iter().zip(needed) {
            if (area.len as u64) < needed {
                return Err(Error::new(
                    SqlState::DISK_FULL,
                    format!("an area of a pod has {} bytes and needs {needed}", area.len),
                ));
            }
        }
        Ok(Mapped { coherent, other })
    }

    /// A new pod's memory, in this process alone: for hosts that are threads of one.
    pub fn of_process(layout: Layout) -> Result<Mapped> {
        let coherent = layout.coherent_bytes() as usize;
        let all = coherent + layout.lines() as usize * LINE_BYTES;
        let mapping = Arc::new(Mapping::heap(all));
        // SAFETY: the mapping was just made, and is reached by the two areas alone.
        let (coherent, other) =
            unsafe { (Area::of_mapping(mapping.clone(), 0..coherent)?, Area::of_mapping(mapping, coherent..all)?) };
        let mapped = Mapped::new(layout, coherent, other)?;
        crate::create(&mapped, layout).map_err(|trouble| Error::internal(trouble.to_string()))?;
        Ok(mapped)
    }

    /// The words of a slot, one behind the other: sequence number, standing, snapshot, held snapshot. Of these the slot's host
    /// changes each by any atomic access; others change the standing by compare-and-swap alone.
    pub fn slot(&self, layout: Layout, host: HostId, worker: u16) -> &[AtomicU64; 4] {
        let first = layout.sequence(host, worker).at().0 as usize;
        self.coherent.words(first, 4).first_chunk().expect("as many words were asked for")
    }

    /// The word of a host's horizon, which its host stores to.
    pub fn horizon(&self, layout: Layout, host: HostId) -> &AtomicU64 {
        self.word(layout.horizon(host).at())
    }

    fn word(&self, at: WordAt) -> &AtomicU64 {
        &self.coherent.words(at.0 as usize, 1)[0]
    }
}

impl Access for Mapped {
    type Stop = Infallible;

    fn load(&self, at: WordAt) -> Result<u64, Infallible> {
        Ok(self.word(at).load(Ordering::Acquire))
    }

    fn swap(&self, at: WordAt, from: u64, to: u64) -> Result<Result<(), u64>, Infallible> {
        Ok(self.word(at).compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).map(drop))
    }

    fn write_back_word(&self, at: WordAt) -> Result<(), Infallible> {
        let line = at.0 as usize / WORDS_OF_LINE * WORDS_OF_LINE;
        let words = self.coherent.words(line, WORDS_OF_LINE);
        // SAFETY: a line of the area, which begins with a line and is mapped.
        unsafe { write_back_lines(NonNull::from(words).cast(), LINE_BYTES) };
        Ok(())
    }

    fn fill(&self, line: Line, bytes: &LineBytes) -> Result<(), Infallible> {
        let (words, _) = self.other.lines(Lines { first: line, count: 1 });
        for (word, eight) in words.iter().zip(bytes.as_chunks::<8>().0) {
            word.store(u64::from_le_bytes(*eight), Ordering::Release);
        }
        Ok(())
    }

    fn put(&self, line: Line, bits: u64) -> Result<(), Infallible> {
        self.other.lines(Lines { first: line, count: 1 }).0[0].store(bits, Ordering::Release);
        Ok(())
    }

    fn fetch(&self, line: Line, into: &mut LineBytes) -> Result<(), Infallible> {
        let (words, _) = self.other.lines(Lines { first: line, count: 1 });
        for (word, eight) in words.iter().zip(into.as_chunks_mut::<8>().0) {
            *eight = word.load(Ordering::Relaxed).to_le_bytes();
        }
        Ok(())
    }

    fn write_back(&self, lines: Lines) -> Result<(), Infallible> {
        let (_, first) = self.other.lines(lines);
        // SAFETY: lines of the area, which begins with a line and is mapped.
        unsafe { write_back_lines(first, lines.bytes()) };
        Ok(())
    }

    fn discard(&self, lines: Lines, _part: Part) -> Result<(), Infallible> {
        let (_, first) = self.other.lines(lines);
        // SAFETY: as above.
        unsafe { discard_lines(first, lines.bytes()) };
        Ok(())
    }

    fn fence(&self, _fence: Fence) -> Result<(), Infallible> {
        fence_lines();
        Ok(())
    }

    fn order(&self) -> Result<(), Infallible> {
        fence(Ordering::Acquire);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Blocks, Outcome, Retired};
    use crate::ring::{Receiver, Sender};
    use crate::tuples::{Lock, Seen, Tuples};
    use std::sync::Mutex;
    use std::sync::atomic::AtomicU64 as Clock;
    use tidepool_base::CommitTs;

    const LAYOUT: Layout = Layout { hosts: 2, workers: 1, tuples: 2, ring_lines: 8, block_lines: 2, blocks: 8 };

    /// Mapped memory always makes the access.
    fn told<T>(outcome: Outcome<T, Mapped>) -> T {
        outcome.unwrap_or_else(|trouble| panic!("{trouble:?}"))
    }

    fn area(mapping: &Arc<Mapping>, range: Range<usize>) -> Result<Area> {
        // SAFETY: the mapping is the test's own.
        unsafe { Area::of_mapping(mapping.clone(), range) }
    }

    fn mapped() -> Mapped {
        Mapped::of_process(LAYOUT).unwrap()
    }

    #[test]
    fn messages_come_in_order() {
        const MESSAGES: u32 = if cfg!(miri) { 40 } else { 20_000 };
        let mapped = mapped();
        let (one, two) = (HostId(0), HostId(1));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut sender = told(Sender::attach(&mapped, LAYOUT, one, two));
                for number in 0..MESSAGES {
                    let mut message = vec![number as u8; 4 + number as usize % 200];
                    message[..4].copy_from_slice(&number.to_le_bytes());
                    while !told(sender.send(&mapped, &message)) {
                        std::thread::yield_now();
                    }
                }
            });
            let mut receiver = told(Receiver::attach(&mapped, LAYOUT, one, two));
            for number in 0..MESSAGES {
                loop {
                    if let Some(message) = told(receiver.receive(&mapped)) {
                        assert_eq!(message[..4], number.to_le_bytes());
                        assert_eq!(message[4..], vec![number as u8; number as usize % 200]);
                        break;
                    }
                    std::thread::yield_now();
                }
            }
            assert_eq!(told(receiver.receive(&mapped)), None);
        });
    }

    /// Two hosts count two rows up, under each other's feet.
    #[test]
    fn rows_are_counted_up_together() {
        const COMMITS: u64 = if cfg!(miri) { 10 } else { 2000 };
        let (mapped, clock) = (mapped(), Clock::new(1));
        let tuples = Tuples::new(&mapped, LAYOUT);
        let mut homes = Blocks::new(LAYOUT.blocks(HostId(0)), LAYOUT.block_lines);
        for tuple in 0..2 {
            assert!(told(tuples.move_in(tuple, CommitTs(1), &[0; 80], &mut homes)));
        }
        assert!(!told(tuples.move_in(0, CommitTs(1), &[], &mut homes)), "it is there");
        // Blocks on their way to their hosts.
        let returned: [Mutex<Vec<Retired>>; 2] = Default::default();
        let count = |host: HostId, mut blocks: Blocks| {
            let (me, other) = (usize::from(host.0), usize::from(1 - host.0));
            let mut commits = 0;
            while commits < COMMITS {
                for retired in returned[me].lock().unwrap().drain(..) {
                    blocks.retire(retired).unwrap();
                }
                let mut transaction = told(tuples.begin(host, 0));
                let mut locks = (0..2).map(|tuple| {
                    told(transaction.write(tuple, &mut blocks, |row| {
                        assert!(row.iter().all(|byte| *byte == row[0]), "{row:?}");
                        vec![row[0].wrapping_add(1); 80]
                    }))
                });
                if !locks.all(|lock| lock == Lock::Done) {
                    told(transaction.abort(&mut blocks));
                    std::thread::yield_now();
                    continue;
                }
                let ts = CommitTs(1 + clock.fetch_add(1, Ordering::SeqCst));
                for retired in told(transaction.commit(ts, || commits += 1)) {
                    if let Err(others) = blocks.retire(retired) {
                        returned[other].lock().unwrap().push(others);
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| count(HostId(1), Blocks::new(LAYOUT.blocks(HostId(1)), LAYOUT.block_lines)));
            count(HostId(0), homes);
        });
        let all = 2 * COMMITS;
        for tuple in 0..2 {
            let Seen::Row { image, .. } = told(tuples.read(tuple)) else { panic!("nobody has it locked") };
            assert_eq!(u64::from(image[0]), all % 256, "{all} commits");
        }
        let moved = told(tuples.move_out(1)).unwrap();
        assert_eq!(u64::from(moved.image[79]), all % 256);
        assert_eq!(told(tuples.read(1)), Seen::Absent(crate::words::TupleState::Dead));
    }

    #[test]
    fn areas_are_whole_lines_that_are_mapped() {
        let mapping = Arc::new(Mapping::heap(4096));
        assert!(area(&mapping, 0..4096).is_ok());
        assert!(area(&mapping, 0..1 << 30).unwrap_err().to_string().contains("not all mapped"));
        assert!(area(&mapping, 8..128).unwrap_err().to_string().contains("begin with a line"));
        let (coherent, other) = (area(&mapping, 0..1024).unwrap(), area(&mapping, 1024..2048).unwrap());
        let error = Mapped::new(LAYOUT, coherent, other).unwrap_err();
        assert_eq!(error.code(), SqlState::DISK_FULL);
    }

    /// A pool that is mapped twice, as by two processes.
    #[cfg(not(miri))]
    #[test]
    fn areas_are_parts_of_extents() {
        use tidepool_device::Location;
        use tidepool_pool::pool::CreateOptions;
        let folder = tempfile::tempdir().unwrap();
        let location = Location::File(folder.path().join("pool"));
        let options = CreateOptions {
            devices: vec![(location.clone(), Some(4 * tidepool_pool::layout::EXTENT_BYTES_MIN))],
            extent_bytes: None,
            bytes_max: None,
            label: "test".to_owned(),
            populates: false,
            overcommits: false,
        };
        let pool = Arc::new(Pool::create(&options).unwrap());
        let other = Arc::new(Pool::open(&location).unwrap());
        let of = |pool: &Arc<Pool>, extent: u32| {
            // SAFETY: no host of this pool uses its extents otherwise.
            unsafe { Area::of_extent(pool.clone(), Extent(extent), 4096..1 << 20) }
        };
        let of = |pool: &Arc<Pool>| Mapped::new(LAYOUT, of(pool, 1).unwrap(), of(pool, 2).unwrap()).unwrap();
        let (sending, receiving) = (of(&pool), of(&other));
        told(crate::create(&sending, LAYOUT));
        let mut sender = told(Sender::attach(&sending, LAYOUT, HostId(0), HostId(1)));
        let mut receiver = told(Receiver::attach(&receiving, LAYOUT, HostId(0), HostId(1)));
        assert!(told(sender.send(&sending, b"over shared memory")));
        assert_eq!(told(receiver.receive(&receiving)), Some(&b"over shared memory"[..]));
        // SAFETY: as above.
        let away = unsafe { Area::of_extent(pool, Extent(99), 0..64) };
        assert!(away.unwrap_err().to_string().contains("device is away"));
    }
}
