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
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use tidepool_base::{Error, Result, SqlState};
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

/// What an owner left in a device's memory, as its records have it.
#[derive(Clone, Debug)]
pub struct Left {
    pub contents: Contents,
    /// What is of use there: offset and length of each, as for [`Tablespace::keep`].
    pub places: Vec<(u64, usize)>,
    /// The owner cannot do without it: where it is not, the device is left as it is and not opened.
    pub is_needed: bool,
}

/// Pages that stay as they are when a tablespace is closed, in ascending order each.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    places: Vec<Range<usize>>,
    always: Vec<Range<usize>>,
}

impl Contents {
    pub(crate) fn is_of(&self, superblock: &Superblock) -> bool {
        let found = (superblock.identity, superblock.content);
        self.is_of_this_run() && self.number != 0 && (self.identity, self.number) == found
    }

    fn is_of_this_run(&self) -> bool {
        self.boot.is_none() || self.boot == boot()
    }
}

impl Left {
    /// 55000: it is needed, and not there. `device` names it.
    pub(crate) fn missing(&self, device: &dyn std::fmt::Display) -> Error {
        let why = if self.contents.is_of_this_run() {
            "It is another device, or somebody has used it since."
        } else {
            "The machine was started anew since, which its memory does not survive."
        };
        Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("device \"{device}\" does not hold what was left there"),
        )
        .with_detail(why)
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

    /// As `keep`, of what was found.
    pub(crate) fn keep_left(&self, left: &Left) {
        if self.finds.load(Ordering::Relaxed) {
            self.keep(left.places.iter().copied());
        }
    }

    /// Keeps these bytes (offset and length each) when the tablespace is closed, and gives the rest back then.
    pub fn keep(&self, places: impl IntoIterator<Item = (u64, usize)>) {
        self.lock_kept().places = pages_of(places);
    }

    /// Keeps these too, whatever `keep` is told.
    pub fn keep_always(&self, places: impl IntoIterator<Item = (u64, usize)>) {
        self.lock_kept().always = pages_of(places);
    }

    /// As `keep_always`, of one place more.
    pub fn keep_this_too(&self, place: (u64, usize)) {
        let mut kept = self.lock_kept();
        kept.always.extend(pages_of([place]));
        kept.always.sort_unstable_by_key(|run| run.start);
    }

    pub(crate) fn keeps_some_of(&self, pages: &Range<usize>) -> bool {
        let kept = self.lock_kept();
        [&kept.places, &kept.always].into_iter().any(|kept| {
            let after = kept.partition_point(|run| run.end <= pages.start);
            kept.get(after).is_some_and(|run| run.start < pages.end)
        })
    }

    pub(crate) fn lock_kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// When it is closed: gives back what is not kept.
    pub(crate) fn leave(&self) {
        if let Some(leased) = &self.leased {
            return self.leave_pool(leased);
        }
        let kept = std::mem::take(&mut *self.lock_kept());
        let mut kept = [kept.places, kept.always].concat();
        kept.sort_unstable_by_key(|run| run.start);
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

/// The pages that these bytes touch, in ascending order.
fn pages_of(places: impl IntoIterator<Item = (u64, usize)>) -> Vec<Range<usize>> {
    let mut pages: Vec<Range<usize>> = places
        .into_iter()
        .map(|(offset, len)| offset as usize / PAGE_BYTES..(offset as usize + len).div_ceil(PAGE_BYTES))
        .collect();
    pages.sort_unstable_by_key(|run| run.start);
    pages
}

impl Region {
    /// Bytes from the tablespace's first to the region's.
    pub fn offset(&self) -> u64 {
        (self.as_ptr().addr() - self.tablespace().window.base().addr().get()) as u64
    }

    /// Makes its bytes durable, where the device outlives the machine. 58030 when that fails.
    pub fn flush(&self) -> Result<()> {
        let space = self.tablespace();
        if space.contents().is_none_or(|contents| contents.boot.is_some()) {
            return Ok(());
        }
        let start = self.offset() as usize;
        space.window.persist(start..start + self.len_bytes())
    }
}
