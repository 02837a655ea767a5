//! What a process leaves in a device's memory, for the next one to find.
//!
//! The superblock says since when nothing was cleared or moved there (its *content*). An owner records that with the places
//! of what it relies on, and names it when it opens the device anew: if it is the same, the memory is left as it is, and
//! [`Tablespace::attach`] gives the places out again. What is there is the owner's to check: places may have been used
//! for something else since they were recorded.
//!
//! Of tablespaces of one location only: where several lie in stripes, which stripe lies where is not recorded.

use crate::shape::Kind;
use crate::space::bytes_of;
use crate::superblock::Superblock;
use crate::{Purpose, Region, Tablespace};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidepool_device::PAGE_BYTES;

/// Most that one system call gives back.
const RELEASED_PAGES_MAX: usize = (1 << 30) / PAGE_BYTES;

/// What distinguishes the content of one device from that of any other, and from what was there at other times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// The device's, random.
    pub identity: [u8; 16],
    /// Grows whenever what was there is of no use any more.
    pub number: u64,
    /// Of memory that does not outlive the machine (a file in the page cache): since which start of that it is there.
    pub boot: Option<String>,
}

impl Contents {
    pub(crate) fn is_of(&self, identity: [u8; 16], number: u64) -> bool {
        let here = self.boot.is_none() || self.boot == boot();
        here && number != 0 && (self.identity, self.number) == (identity, number)
    }
}

/// Names the machine's present run. `None` where the system does not tell.
fn boot() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_owned())
}

impl Tablespace {
    /// What a later process can name to find the present content. `None`: none will.
    pub fn contents(&self) -> Option<Contents> {
        self.contents.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// The superblock of a part was written.
    pub(crate) fn note_contents(&self, kind: Kind, device: u16, superblock: &Superblock) {
        let of_plain = || {
            let outlives = self.window.device(device)?.outlives_machine();
            let boot = if outlives { None } else { Some(boot()?) };
            Some(Contents { identity: superblock.identity, number: superblock.content, boot })
        };
        let contents = if kind == Kind::Plain { of_plain() } else { None };
        *self.contents.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = contents;
    }

    /// The bytes at a place that an earlier owner had, if the content is what was named when the tablespace was opened, and
    /// nobody has them yet. They are as they were left, if the place was not given back meanwhile.
    pub fn attach(self: &Arc<Self>, offset: u64, len: usize, purpose: Purpose) -> Option<Region> {
        let start = usize::try_from(offset).ok().filter(|start| start.is_multiple_of(PAGE_BYTES))?;
        let end = start.checked_add(len)?.checked_next_multiple_of(PAGE_BYTES)?;
        if !self.finds.load(Ordering::Relaxed) || len == 0 || end > self.window.len() {
            return None;
        }
        let run = start / PAGE_BYTES..end / PAGE_BYTES;
        let address = self.take_found(&run, purpose)?;
        // SAFETY: the pages were just taken.
        Some(unsafe { Region::new(Arc::clone(self), address, len, purpose) })
    }

    /// Whether these bytes had memory when the first was attached.
    pub(crate) fn is_backed(&self, bytes: &Range<usize>) -> bool {
        // Of a tablespace of one location, the first device, whose bytes are the window's.
        let runs = self.backed.get_or_init(|| self.window.device(0).map_or_else(Vec::new, |device| device.backed()));
        let after = runs.partition_point(|run| run.start <= bytes.start);
        after > 0 && bytes.end <= runs[after - 1].end
    }

    /// Says that nothing more is attached: what else was left goes back to the system, and the tablespace is like any.
    pub fn end_attaching(&self) {
        if !self.finds.swap(false, Ordering::Relaxed) {
            return;
        }
        let mut from = 0;
        while let Some(run) = self.take_unused(from, RELEASED_PAGES_MAX) {
            from = run.end;
            if let Err(error) = self.window.release(bytes_of(&run)) {
                tracing::warn!(tablespace = self.name(), %error, "what was left in memory was not given back");
            }
            self.put_back(run);
        }
    }

    /// Keeps these bytes (offset and length each) when the tablespace is closed, and gives the rest back then.
    pub fn keep(&self, places: impl IntoIterator<Item = (u64, usize)>) {
        let mut pages: Vec<Range<usize>> = places
            .into_iter()
            .map(|(offset, len)| offset as usize / PAGE_BYTES..(offset as usize + len).div_ceil(PAGE_BYTES))
            .collect();
        pages.sort_unstable_by_key(|run| run.start);
        *self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = pages;
    }

    pub(crate) fn keeps_some_of(&self, pages: &Range<usize>) -> bool {
        let kept = self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let after = kept.partition_point(|run| run.end <= pages.start);
        kept.get(after).is_some_and(|run| run.start < pages.end)
    }

    /// When it is closed: gives back what is not kept.
    pub(crate) fn leave(&self) {
        let kept = std::mem::take(&mut *self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        let shape = self.lock_shape();
        let Some(last) = kept.last().filter(|_| shape.kind == Kind::Plain) else {
            return shape.clear(&self.window, self.name());
        };
        // The header's page comes first.
        let starts = std::iter::once(1).chain(kept.iter().map(|run| run.end));
        let ends = kept.iter().map(|run| run.start).chain([(shape.len / PAGE_BYTES).max(last.end)]);
        for (start, end) in starts.zip(ends) {
            if start < end
                && let Err(error) = self.window.release(bytes_of(&(start..end)))
            {
                tracing::warn!(tablespace = self.name(), %error, "a device's memory was not given back");
            }
        }
    }
}

impl Region {
    /// Bytes from the tablespace's first to the region's.
    pub fn offset(&self) -> u64 {
        (self.as_ptr().addr() - self.tablespace().window.base().addr().get()) as u64
    }

    /// Makes its bytes durable, where the device outlives the machine. 58030 when that fails.
    pub fn flush(&self) -> tidepool_base::Result<()> {
        let space = self.tablespace();
        if space.contents().is_none_or(|contents| contents.boot.is_some()) {
            return Ok(());
        }
        let start = self.offset() as usize;
        space.window.persist(start..start + self.len_bytes())
    }
}
