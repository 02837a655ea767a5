//! Which pages have memory: taken from the system before they are used, and given back when they are idle.

use crate::Tablespace;
use crate::extents::{CHUNK_PAGES, Extents};
use crate::space::bytes_of;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_device::PAGE_BYTES;

/// Most that one system call gives back, so that a trim never holds much that others could use.
const TRIM_PAGES_MAX: usize = (64 << 20) / PAGE_BYTES;

/// What a thread populates at a time.
const POPULATE_PAGES: usize = (64 << 20) / PAGE_BYTES;

impl Tablespace {
    /// Takes memory from the system until `populate_bytes` of the configuration are backed, as far as these are free whole
    /// huge pages. Later `trim`s leave so much. Where several processors are there, they share the work: most of it is the
    /// system's, which zeroes what it gives.
    ///
    /// 53200 when the machine has not so much memory to give; else what the system answers.
    pub fn populate(&self) -> Result<()> {
        if self.paged().is_some() || self.leased.is_some() {
            return Ok(());
        }
        let config = self.config();
        let wanted = config.populate_bytes.min(self.size_bytes()) as usize / PAGE_BYTES;
        self.pages_kept.store(wanted, Ordering::Relaxed);
        let missing = wanted.saturating_sub(self.lock().touched_pages());
        if missing == 0 {
            return Ok(());
        }
        let bytes = ByteSize((missing * PAGE_BYTES) as u64);
        if config.location.is_anonymous() {
            self.check_available(bytes, tidepool_device::memory_available_bytes())?;
        }
        let chunks_left = AtomicUsize::new(missing.div_ceil(CHUNK_PAGES));
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = workers.min(missing.div_ceil(POPULATE_PAGES));
        let populated = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..workers).map(|_| scope.spawn(|| self.populate_some(&chunks_left))).collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        populated.map_err(|error| Error::io(format_args!("populate {bytes} of tablespace \"{}\"", self.name()), &error))
    }

    /// The system would rather end a process than refuse to back its pages.
    pub(crate) fn check_available(&self, wanted: ByteSize, available: Option<u64>) -> Result<()> {
        match available {
            Some(available) if available < wanted.0 => Err(Error::new(
                SqlState::OUT_OF_MEMORY,
                format!("could not populate {wanted} of tablespace \"{}\"", self.name()),
            )
            .with_detail(format!("The machine has {} left.", ByteSize(available)))),
            _ => Ok(()),
        }
    }

    fn populate_some(&self, chunks_left: &AtomicUsize) -> io::Result<()> {
        let mut from = 0;
        loop {
            let step = |left: usize| (left > 0).then(|| left.saturating_sub(POPULATE_PAGES / CHUNK_PAGES));
            let Ok(left) = chunks_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, step) else { return Ok(()) };
            let mut pages = left.min(POPULATE_PAGES / CHUNK_PAGES) * CHUNK_PAGES;
            while pages > 0 {
                let Some(run) = self.lock().take_untouched_chunks(from, pages) else { return Ok(()) };
                from = run.end;
                pages -= run.len();
                // The run is this thread's, and others may go on.
                let populated = self.window.commit(bytes_of(&run)).and_then(|()| self.window.populate(bytes_of(&run)));
                let mut extents = self.lock();
                // On failure, too: some of it may be backed.
                extents.set_touched(run.clone(), true);
                extents.give_back(run);
                self.note_free(&extents);
                drop(extents);
                populated?;
            }
        }
    }

    /// Of the pages that are backed, so many may be given back as whole huge pages without what is to stay populated; or all.
    fn spare_pages(&self, extents: &Extents) -> usize {
        match self.pages_kept.load(Ordering::Relaxed) {
            kept if kept > 0 && !self.is_closed() => {
                extents.touched_pages().saturating_sub(kept) / CHUNK_PAGES * CHUNK_PAGES
            }
            _ => extents.touched_pages(),
        }
    }

    /// Gives the chunks that `run` lies in back to the system, as far as they are wholly free.
    pub(crate) fn release_chunks(&self, run: &Range<usize>) {
        loop {
            let mut extents = self.lock();
            let spare = self.spare_pages(&extents);
            if spare == 0 {
                return;
            }
            let Some(chunks) = extents.take_free_chunks(run, spare.min(TRIM_PAGES_MAX)) else { return };
            drop(extents);
            if self.keeps_some_of(&chunks) {
                // It is being closed.
                self.lock().give_back(chunks);
                return;
            }
            let released = self.window.release(bytes_of(&chunks));
            let mut extents = self.lock();
            let given = matches!(released, Ok(true));
            if given {
                extents.set_touched(chunks.clone(), false);
            }
            extents.give_back(chunks);
            self.note_free(&extents);
            if !given {
                // A device that cannot. If it only failed, the next trim says so.
                return;
            }
        }
    }

    /// Gives free pages back to the system until at most `keep_bytes` of free memory stay resident, or what is to stay
    /// populated. Returns the bytes given back.
    ///
    /// From the top down, whole huge pages first. What is being given back cannot be taken meanwhile.
    pub fn trim(&self, keep_bytes: u64) -> Result<u64> {
        if let Some(leased) = self.leased.as_deref() {
            return Ok(self.trim_leased(leased, keep_bytes));
        }
        let keep = usize::try_from(keep_bytes / PAGE_BYTES as u64).unwrap_or(usize::MAX);
        let mut given = 0;
        for whole_chunks in [true, false] {
            let mut below = usize::MAX;
            loop {
                let mut extents = self.lock();
                let free = extents.touched_pages().saturating_sub(extents.used_pages());
                // Whole chunks may go further than asked, as half a huge page cannot be given back.
                let unit = if whole_chunks { CHUNK_PAGES } else { 1 };
                let asked = free.saturating_sub(keep).next_multiple_of(unit);
                let most = asked.min(self.spare_pages(&extents)).min(TRIM_PAGES_MAX);
                if most == 0 {
                    break;
                }
                let Some(run) = extents.take_touched_below(below, whole_chunks, most) else {
                    break;
                };
                // One device at a time, as one may give back and another not.
                let start = self.window.last_piece_start(bytes_of(&run)) / PAGE_BYTES;
                if start > run.start {
                    extents.give_back(run.start..start);
                }
                let run = start..run.end;
                drop(extents);
                let result = self.window.release(bytes_of(&run));
                below = run.start;
                let mut extents = self.lock();
                if matches!(result, Ok(true)) {
                    given += (extents.touched_in(run.clone()) * PAGE_BYTES) as u64;
                    extents.set_touched(run.clone(), false);
                }
                extents.give_back(run);
                self.note_free(&extents);
                drop(extents);
                // False: a device that cannot give back, or pages smaller than its unit.
                result?;
            }
        }
        Ok(given)
    }
}
