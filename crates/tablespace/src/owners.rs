//! From an address to who owns it, for all tablespaces of the process.
//!
//! Every open tablespace enters its address range into a small table that is read without a lock; behind each range lies
//! a tag a page, which says to which of the query heap's arenas the page belongs, and whether a run of pages starts with
//! it. Zero: to none. A free asks [`page_tag`] about its address: most addresses lie in no tablespace, which two
//! comparisons a tablespace tell.
//!
//! # Why reading needs no lock
//!
//! An address that is asked about is live: its tablespace, if any, cannot be unmapped meanwhile, so its entry stands. An
//! address outside all tablespaces must not match an entry that is being replaced. Entries go in as start, then length,
//! and out as length zero; a reader takes the length first and, on a hit, looks at it again. Were the start another
//! entry's than the length, then the length went through zero in between, and is seen to be another (or is the same, and
//! then the pair is a true range).

use crate::storage::SystemArray;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU16, AtomicUsize, Ordering, fence};
use tidepool_base::{Error, Result, SqlState};
use tidepool_device::PAGE_BYTES;
use tidepool_device::stop;

/// Set in the tag of a run's first page.
const FIRST: u16 = 1 << 15;

/// Tags are from one to this.
pub const TAG_MAX: u16 = FIRST - 1;

/// Open tablespaces a process can have. Every free looks at all that there are, so not many.
pub const TABLESPACES_MAX: usize = 64;

#[derive(Debug)]
struct Entry {
    len: AtomicUsize,
    start: AtomicUsize,
    tags: AtomicPtr<AtomicU16>,
}

static ENTRIES: [Entry; TABLESPACES_MAX] = [const {
    Entry { len: AtomicUsize::new(0), start: AtomicUsize::new(0), tags: AtomicPtr::new(std::ptr::null_mut()) }
}; TABLESPACES_MAX];

/// Addresses below and from here on were never in a tablespace: what most frees ask about. The bounds only ever widen, so
/// reading them apart is safe.
static LOWEST: AtomicUsize = AtomicUsize::new(usize::MAX);
static HIGHEST: AtomicUsize = AtomicUsize::new(0);

/// Entries at and above this index were never used.
static ENTRIES_USED: AtomicUsize = AtomicUsize::new(0);

static CHANGES: Mutex<()> = Mutex::new(());

/// The tag of the page that `address` lies in; `None` when it lies in no tablespace. Zero: the page has none.
#[inline]
pub fn page_tag(address: *const u8) -> Option<u16> {
    let address = address.addr();
    if address < LOWEST.load(Ordering::Relaxed) || address >= HIGHEST.load(Ordering::Relaxed) {
        return None;
    }
    tag_in_entries(address)
}

#[inline]
fn tag_in_entries(address: usize) -> Option<u16> {
    for entry in &ENTRIES[..ENTRIES_USED.load(Ordering::Acquire).min(TABLESPACES_MAX)] {
        let len = entry.len.load(Ordering::Acquire);
        let offset = address.wrapping_sub(entry.start.load(Ordering::Acquire));
        if offset < len && entry.len.load(Ordering::Relaxed) == len {
            let tags = entry.tags.load(Ordering::Acquire);
            // SAFETY: the tags cover the range, and live until the entry is taken out, which is after every live
            // address in the range is gone.
            return Some(unsafe { &*tags.add(offset / PAGE_BYTES) }.load(Ordering::Relaxed) & TAG_MAX);
        }
    }
    None
}

/// One tablespace's entry. Taken out on drop.
#[derive(Debug)]
pub(crate) struct OwnerTable {
    index: usize,
    tags: SystemArray<AtomicU16>,
}

impl OwnerTable {
    pub fn register(start: *const u8, len: usize) -> Result<OwnerTable> {
        let tags: SystemArray<AtomicU16> = SystemArray::zeroed(len.div_ceil(PAGE_BYTES))?;
        let _changes = CHANGES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let Some(index) = ENTRIES.iter().position(|entry| entry.len.load(Ordering::Relaxed) == 0) else {
            return Err(Error::new(
                SqlState::PROGRAM_LIMIT_EXCEEDED,
                format!("more than {TABLESPACES_MAX} tablespaces are not possible"),
            ));
        };
        let entry = &ENTRIES[index];
        // The length became zero before: a reader that sees the new start also sees that or what comes after.
        fence(Ordering::Release);
        entry.tags.store(tags.as_ptr().cast_mut(), Ordering::Relaxed);
        entry.start.store(start.addr(), Ordering::Release);
        entry.len.store(len, Ordering::Release);
        LOWEST.fetch_min(start.addr(), Ordering::Relaxed);
        HIGHEST.fetch_max(start.addr() + len, Ordering::Relaxed);
        ENTRIES_USED.fetch_max(index + 1, Ordering::Release);
        Ok(OwnerTable { index, tags })
    }

    /// Tags a run of pages, which its owner just took.
    pub fn set(&self, run: Range<usize>, tag: u16) {
        debug_assert!((1..=TAG_MAX).contains(&tag));
        for (index, slot) in self.tags[run].iter().enumerate() {
            // Relaxed: whoever frees a block got its address from its owner, which orders this before.
            slot.store(if index == 0 { tag | FIRST } else { tag }, Ordering::Relaxed);
        }
    }

    /// Takes the tag off pages that are about to be given back. Ends the process when one of them has another: it would
    /// be given back by somebody who never took it.
    pub fn clear(&self, run: Range<usize>, tag: u16) {
        for slot in &self.tags[run] {
            // The pages are the caller's, so nobody changes the slot in between.
            let found = slot.load(Ordering::Relaxed);
            slot.store(0, Ordering::Relaxed);
            if found & TAG_MAX != tag {
                stop(format_args!("arena {tag} gives back a page of arena {}", found & TAG_MAX));
            }
        }
    }

    /// Whether `page` lies inside a run of another owner than `tag`: in it, and not its first page.
    pub fn is_inside_another(&self, page: usize, tag: u16) -> bool {
        let Some(slot) = self.tags.get(page) else { return false };
        let found = slot.load(Ordering::Relaxed);
        found != 0 && found & FIRST == 0 && found != tag
    }
}

impl Drop for OwnerTable {
    fn drop(&mut self) {
        let _changes = CHANGES.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        ENTRIES[self.index].len.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_device::Mapping;

    #[test]
    fn addresses_find_their_page_and_only_theirs() {
        let first = Mapping::heap(8 * PAGE_BYTES);
        let second = Mapping::heap(4 * PAGE_BYTES);
        let at = |mapping: &Mapping, offset: usize| mapping.base().as_ptr().wrapping_add(offset).cast_const();
        let table = OwnerTable::register(at(&first, 0), first.len()).unwrap();
        let other = OwnerTable::register(at(&second, 0), second.len()).unwrap();
        table.set(2..5, 7);
        other.set(0..1, 9);
        assert_eq!(page_tag(at(&first, 2 * PAGE_BYTES - 1)), Some(0));
        assert_eq!(page_tag(at(&first, 2 * PAGE_BYTES)), Some(7));
        assert_eq!(page_tag(at(&first, 5 * PAGE_BYTES - 1)), Some(7));
        assert_eq!(page_tag(at(&first, 5 * PAGE_BYTES)), Some(0));
        assert_eq!(page_tag(at(&second, 17)), Some(9));
        assert_eq!(page_tag((&raw const table).cast()), None);
        assert!(table.is_inside_another(3, 8) && table.is_inside_another(4, 8));
        for (page, tag) in [(2, 8), (3, 7), (1, 8), (5, 8), (8, 8)] {
            assert!(!table.is_inside_another(page, tag), "{page} {tag}");
        }
        // What is left of a run when its start is gone.
        table.clear(2..4, 7);
        assert_eq!(page_tag(at(&first, 3 * PAGE_BYTES)), Some(0));
        assert!(table.is_inside_another(4, 8));
        drop(table);
        assert_eq!(page_tag(at(&first, 2 * PAGE_BYTES)), None);
        assert_eq!(page_tag(at(&second, 17)), Some(9));
    }
}
