//! The page table: where each page is, which pages leave the cache, and who may change what.
//!
//! # States
//!
//! | place | the page's content is | mapped |
//! | --- | --- | --- |
//! | `EMPTY` | zeroes: never touched, or given back | no |
//! | `REMOTE` | its copy, which is the remote node's | no |
//! | `INACTIVE` | its copy, which counts as the local cache's | no |
//! | `ACTIVE` | in the window, in the local cache | yes |
//!
//! `STORED` says that the copy holds content (otherwise it stands for zeroes), `WRITABLE` that the page is mapped for
//! writing and may differ from its copy, `MODIFIED` that it may differ from what the remote node has, so that it has to be
//! sent there when it leaves the cache.
//!
//! # Replacement
//!
//! Two lists, as in Linux and in LegoBase. But which mapped pages are used cannot be seen from outside of the kernel, so
//! the lists are a segmented first-in-first-out queue (Turner and Levy, Segmented FIFO Page Replacement, SIGMETRICS 1981):
//! a page that comes to the end of the active list is unmapped and becomes inactive, and one that is touched there goes
//! back to the head of the active list without any network. A page leaves the cache at the end of the inactive list, which
//! is kept at a quarter of the cache. As long as the cache has room, nothing is unmapped.
//!
//! Under [`Replacement::Midpoint`], which is for memory that has hints, mapped pages are in two lists, as in InnoDB: one that
//! comes to the cache goes to the *old* one, and to the active one only when it is touched again after it was unmapped. Pages
//! are unmapped from the old list while that is three eighths of the cache. So a scan drives out what scans brought.
//! Pages of protected owners, which are small and touched by all, go to the active list instead of being unmapped, as long
//! as they are no more than their share.
//!
//! # Locks
//!
//! Each page's state has a lock bit. Everything about a page, its mapping and its copy included, changes under its lock
//! alone; a page is on the list that its place names whenever it is not locked. The lists have a lock of their own, under
//! which page locks are only tried.
//!
//! A fault holds its page's lock while it tries others, and `release` waits for several, of pages that nobody faults on.
//! So whoever waits for a page lock waits for somebody who waits for none, and locks end. (Whoever waits for a frame holds
//! a page that is in no list, and takes none from others.)
//!
//! # No write is lost
//!
//! What a page holds is lost in two places only: when its mapping is dropped (`Memory::unmap`) and when its copy is
//! (`Memory::discard`). The latter is its owner's wish. The former happens in `demote`, under the page's lock:
//!
//! * The page is not `WRITABLE`. It was mapped write-protected, in one step with its content, and only a fault takes the
//!   protection away, which takes the lock first and sets `WRITABLE`. So no store has reached it since it was mapped, and
//!   its content is that of its copy, or zeroes when there is none.
//! * The page is `WRITABLE`. It is protected first. When that call returns, no processor holds a translation that allows a
//!   store, so its content stands still; then it is copied, then unmapped. A store that comes in between faults, waits for
//!   the lock, finds the page inactive and maps the copy, which has all stores that came before.
//!
//! Each fault maps the copy under the lock, so two faults on one page map it once: the second finds it mapped, or finds it
//! gone again and maps it anew. Whoever resumes on a page that was evicted meanwhile just faults again.

use super::storage::Slots;
#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::ops::Range;
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// Who owns pages, for counting: any number below this.
pub const OWNERS_MAX: usize = 8;

/// Pages that are unmapped together, so that processors drop their translations once for all of them.
pub(super) const BATCH_MAX: usize = 32;

/// Pages that go to the remote node together.
pub(crate) const SENT_MAX: usize = 16;

/// How far from the end of the inactive list pages are looked for that could go along with one.
const SENT_SCANNED: usize = 64;

/// How far from the end of a list protected pages are looked for.
const KEPT_SCANNED: usize = 256;

const PLACE: u32 = 0b11;
const EMPTY: u32 = 0;
const REMOTE: u32 = 1;
const INACTIVE: u32 = 2;
const ACTIVE: u32 = 3;
const LOCKED: u32 = 1 << 2;
const WRITABLE: u32 = 1 << 3;
const MODIFIED: u32 = 1 << 4;
const STORED: u32 = 1 << 5;
const OLD: u32 = 1 << 6;
const OWNER_SHIFT: u32 = 8;
const OWNER: u32 = (OWNERS_MAX as u32 - 1) << OWNER_SHIFT;

const _: () = assert!(OWNERS_MAX.is_power_of_two());

fn place(state: u32) -> u32 {
    state & PLACE
}

fn with_place(state: u32, place: u32) -> u32 {
    state & !PLACE | place
}

fn is_local(state: u32) -> bool {
    place(state) >= INACTIVE
}

fn owner(state: u32) -> usize {
    ((state & OWNER) >> OWNER_SHIFT) as usize
}

/// What the table does to memory, and how it waits. Nothing here may fail, allocate, or touch a page of the window that
/// is not mapped.
pub(crate) trait Memory {
    /// Whether a page's copy stays when the page is mapped. If not, each page with content is copied out before it is
    /// unmapped, whether it was written or not.
    fn keeps_copies(&self) -> bool {
        true
    }
    /// How many modified pages it is as well to send together.
    fn sends_at_once(&self) -> usize {
        1
    }
    /// Has the remote node take the copies of these locked, inactive pages, which were modified.
    fn send(&self, _pages: &[u32]) {}
    /// A locked page has left the cache: its copy is the remote node's alone.
    fn left(&self, _page: u32) {}
    /// Maps pages that only the remote node has, in ascending order and write-protected.
    fn map_together(&self, pages: &[u32]) {
        pages.iter().for_each(|page| self.map(*page, true, false));
    }

    /// Maps a page with the content of its copy, or with zeroes; write-protected unless `writable`, in one step.
    fn map(&self, page: u32, stored: bool, writable: bool);
    /// Lets a mapped page be written.
    fn unprotect(&self, page: u32);
    /// Once this returns no store reaches these mapped pages.
    fn protect(&self, run: Range<u32>);
    /// From the window to the copy.
    fn copy_out(&self, page: u32);
    /// Drops mapped pages.
    fn unmap(&self, runs: &[Range<u32>]);
    /// Drops pages, mapped or not, and their copies.
    fn discard(&self, run: Range<u32>);
    /// Somebody else has to go on first; `tries` counts how often that was so.
    fn pause(&self, tries: u32);
}

/// Which pages leave the cache first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replacement {
    /// Those that came first and were not touched since they were unmapped.
    SegmentedFifo,
    /// Those that came and were not touched again; of `protected` owners, a bit each, none as long as they have no more than
    /// `share` percent of the cache.
    Midpoint { protected: u32, share: u8 },
}

/// What a thread that faulted was about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Touch {
    Read,
    Write,
    /// The processor did not say.
    #[cfg_attr(target_arch = "x86_64", allow(dead_code, reason = "this one does"))]
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resolution {
    /// Another thread had been here.
    Already,
    /// First write to a page that was read before.
    Unprotected,
    /// Inactive: the cache had it.
    Soft,
    /// First touch: nothing to fetch.
    Zeroed,
    Fetched,
}

/// What one fault took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    pub resolution: Resolution,
    pub evicted: u32,
    /// Of those, pages that were modified.
    pub written_back: u32,
    pub demoted: u32,
}

/// Pages by where they are, for one owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// In the local cache.
    pub local: u64,
    /// At the remote node only.
    pub remote: u64,
}

/// A doubly linked list through `next` and `prev`. Pages are numbered from one in links: zero is none.
#[derive(Debug)]
struct List {
    /// Most recent.
    head: AtomicU32,
    tail: AtomicU32,
    len: AtomicU32,
}

impl List {
    fn new() -> List {
        List { head: AtomicU32::new(0), tail: AtomicU32::new(0), len: AtomicU32::new(0) }
    }
}

#[derive(Debug)]
pub(crate) struct Table {
    states: Slots<AtomicU32>,
    /// Towards the tail.
    next: Slots<AtomicU32>,
    /// Towards the head.
    prev: Slots<AtomicU32>,
    /// Guards links and lists, which are atomics only because that keeps them free of unsafe code.
    lists_locked: AtomicBool,
    active: List,
    /// Mapped as well, and not touched again so far. Empty but under [`Replacement::Midpoint`].
    old: List,
    inactive: List,
    replacement: Replacement,
    /// Pages in the cache, and those on their way there.
    resident: AtomicU32,
    /// At most so many.
    capacity: AtomicU32,
    /// By owner.
    local: [AtomicU64; OWNERS_MAX],
    remote: [AtomicU64; OWNERS_MAX],
    /// Pages whose copy takes memory.
    stored: AtomicU64,
}

impl Table {
    /// `None` when there is no memory for the books of `pages` pages. `capacity` is not zero.
    pub fn new(pages: u32, capacity: u32, replacement: Replacement) -> Option<Table> {
        Some(Table {
            replacement,
            old: List::new(),
            states: Slots::zeroed(pages as usize)?,
            next: Slots::zeroed(pages as usize + 1)?,
            prev: Slots::zeroed(pages as usize + 1)?,
            lists_locked: AtomicBool::new(false),
            active: List::new(),
            inactive: List::new(),
            resident: AtomicU32::new(0),
            capacity: AtomicU32::new(capacity),
            local: std::array::from_fn(|_| AtomicU64::new(0)),
            remote: std::array::from_fn(|_| AtomicU64::new(0)),
            stored: AtomicU64::new(0),
        })
    }

    pub fn capacity(&self) -> u32 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Pages in the cache.
    pub fn resident(&self) -> u32 {
        self.resident.load(Ordering::Relaxed)
    }

    /// Pages in the cache that are mapped.
    pub fn active(&self) -> u32 {
        self.active.len.load(Ordering::Relaxed) + self.old.len.load(Ordering::Relaxed)
    }

    /// The list that a page in this state is on.
    fn list_of(&self, state: u32) -> &List {
        match place(state) {
            ACTIVE if state & OLD != 0 => &self.old,
            ACTIVE => &self.active,
            _ => &self.inactive,
        }
    }

    /// Whether pages that come are old until they are touched again.
    fn is_midpoint(&self) -> bool {
        matches!(self.replacement, Replacement::Midpoint { .. })
    }

    /// Whether pages are brought before they are touched.
    pub fn is_told(&self) -> bool {
        self.is_midpoint()
    }

    /// Whether a page is to stay mapped because of whose it is.
    fn is_protected(&self, state: u32) -> bool {
        match self.replacement {
            Replacement::SegmentedFifo => false,
            Replacement::Midpoint { protected, share } => {
                let owner = owner(state);
                protected >> owner & 1 != 0
                    && self.local[owner].load(Ordering::Relaxed) * 100 <= u64::from(self.capacity()) * u64::from(share)
            }
        }
    }

    /// Pages whose copy takes memory.
    pub fn stored(&self) -> u64 {
        self.stored.load(Ordering::Relaxed)
    }

    pub fn places(&self, owner: usize) -> Places {
        Places { local: self.local[owner].load(Ordering::Relaxed), remote: self.remote[owner].load(Ordering::Relaxed) }
    }

    /// Changes how many pages the cache holds, and evicts what is too much. Returns what left. One caller at a time.
    pub fn set_capacity(&self, capacity: u32, memory: &impl Memory) -> Outcome {
        self.capacity.store(capacity.max(1), Ordering::Relaxed);
        // Pairs with the one in `take_frame`: either a frame that is being taken is seen here, or this capacity there.
        fence(Ordering::SeqCst);
        let mut outcome = Outcome { resolution: Resolution::Already, evicted: 0, written_back: 0, demoted: 0 };
        let mut tries = 0;
        while self.resident() > self.capacity() {
            if !self.evict(memory, &mut outcome) {
                memory.pause(tries);
                tries += 1;
            }
        }
        outcome
    }

    /// Resolves a fault on `page`. `arrive` is told whether the page is fetched, and how many were written back for it,
    /// and returns when the fetched page has arrived; until then it is nobody's.
    pub fn fault(&self, page: u32, touch: Touch, memory: &impl Memory, arrive: impl FnOnce(bool, u32)) -> Outcome {
        let mut outcome = Outcome { resolution: Resolution::Already, evicted: 0, written_back: 0, demoted: 0 };
        let state = self.lock(page, memory);
        match place(state) {
            ACTIVE if state & WRITABLE != 0 || touch == Touch::Read => self.unlock(page, state),
            ACTIVE => {
                memory.unprotect(page);
                outcome.resolution = Resolution::Unprotected;
                self.unlock(page, state | WRITABLE | MODIFIED);
            }
            INACTIVE => {
                outcome.resolution = Resolution::Soft;
                self.with_lists(memory, |table| table.remove(&table.inactive, page));
                self.map_active(page, state, touch, memory);
            }
            before => {
                outcome.resolution = if before == REMOTE { Resolution::Fetched } else { Resolution::Zeroed };
                self.take_frame(memory, &mut outcome);
                if before == REMOTE || outcome.written_back > 0 {
                    arrive(before == REMOTE, outcome.written_back);
                }
                self.local[owner(state)].fetch_add(1, Ordering::Relaxed);
                if before == REMOTE {
                    self.remote[owner(state)].fetch_sub(1, Ordering::Relaxed);
                }
                let old = if self.is_midpoint() { OLD } else { 0 };
                self.map_active(page, state | old, touch, memory);
            }
        }
        outcome
    }

    /// Brings pages that only the remote node has, as far as nobody else has them and there are frames for them at once. They
    /// are in ascending order, and as many as go together at most. Returns how many came, and what left for them.
    pub fn bring(&self, pages: &[u32], memory: &impl Memory) -> (u32, Outcome) {
        let mut outcome = Outcome { resolution: Resolution::Fetched, evicted: 0, written_back: 0, demoted: 0 };
        let mut taken = [0; SENT_MAX];
        let mut count = 0;
        for page in pages.iter().take(SENT_MAX) {
            if !self.is_remote(*page) || !self.try_lock(*page) {
                continue;
            }
            // A thread that waited for a frame here would hold pages while it did; and those who wait for one elsewhere
            // hold one page each, of which there are fewer than frames.
            if self.is_remote(*page) && self.try_take_frame(memory, &mut outcome) {
                taken[count] = *page;
                count += 1;
            } else {
                self.unlock(*page, self.states[*page as usize].load(Ordering::Relaxed));
            }
        }
        let taken = &taken[..count];
        if taken.is_empty() {
            return (0, outcome);
        }
        memory.map_together(taken);
        let old = if self.is_midpoint() { OLD } else { 0 };
        let after = |page: &u32| with_place(self.states[*page as usize].load(Ordering::Relaxed), ACTIVE) | old;
        self.with_lists(memory, |table| taken.iter().for_each(|page| table.push(table.list_of(after(page)), *page)));
        for page in taken {
            let owner = owner(after(page));
            self.local[owner].fetch_add(1, Ordering::Relaxed);
            self.remote[owner].fetch_sub(1, Ordering::Relaxed);
            self.unlock(*page, after(page));
        }
        (count as u32, outcome)
    }

    /// Whether only the remote node has the page, as far as can be told without its lock.
    pub fn is_remote(&self, page: u32) -> bool {
        place(self.states[page as usize].load(Ordering::Relaxed)) == REMOTE
    }

    /// As `take_frame`, without waiting. False: there was none.
    fn try_take_frame(&self, memory: &impl Memory, outcome: &mut Outcome) -> bool {
        for _ in 0..8 {
            let resident = self.resident();
            if resident >= self.capacity() {
                if !self.evict(memory, outcome) {
                    return false;
                }
                continue;
            }
            if self.resident.compare_exchange(resident, resident + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                fence(Ordering::SeqCst);
                if self.resident() <= self.capacity() {
                    return true;
                }
                self.resident.fetch_sub(1, Ordering::Relaxed);
            }
        }
        false
    }

    /// Maps a locked page that has a frame, puts it at the head of the active list and unlocks it.
    fn map_active(&self, page: u32, state: u32, touch: Touch, memory: &impl Memory) {
        let writable = touch == Touch::Write;
        memory.map(page, state & STORED != 0, writable);
        let state = with_place(state, ACTIVE);
        self.with_lists(memory, |table| table.push(table.list_of(state), page));
        let written = if writable { WRITABLE | MODIFIED } else { 0 };
        self.unlock(page, state | written);
    }

    /// Counts one page more as resident, after others have left if need be.
    fn take_frame(&self, memory: &impl Memory, outcome: &mut Outcome) {
        let mut tries = 0;
        loop {
            let resident = self.resident();
            if resident < self.capacity() {
                // Relaxed: a number. What a frame holds is ordered by the locks of the pages that leave and come.
                let taken =
                    self.resident.compare_exchange(resident, resident + 1, Ordering::Relaxed, Ordering::Relaxed);
                if taken.is_ok() {
                    fence(Ordering::SeqCst);
                    if self.resident() <= self.capacity() {
                        return;
                    }
                    // The cache was made smaller meanwhile.
                    self.resident.fetch_sub(1, Ordering::Relaxed);
                }
            } else if !self.evict(memory, outcome) {
                // All pages are on their way in or out.
                memory.pause(tries);
                tries += 1;
            }
        }
    }

    /// Takes one page out of the cache. False when all were locked.
    fn evict(&self, memory: &impl Memory, outcome: &mut Outcome) -> bool {
        // Two at least, as one leaves meanwhile: so the list grows to its share.
        let batch = (self.capacity() / 16).clamp(2, BATCH_MAX as u32);
        if self.inactive.len.load(Ordering::Relaxed) + batch <= (self.capacity() / 4).max(batch) {
            outcome.demoted += self.demote(batch, memory);
        }
        let mut page = [0];
        if self.take_from_tail(&self.inactive, &mut page, memory).is_empty() {
            return false;
        }
        let [page] = page;
        // Locked by `take_from_tail`, so nobody changes it.
        let state = self.states[page as usize].load(Ordering::Relaxed);
        outcome.evicted += 1;
        if state & MODIFIED != 0 {
            outcome.written_back += self.send(page, memory);
        }
        memory.left(page);
        let place = if state & STORED != 0 { REMOTE } else { EMPTY };
        self.local[owner(state)].fetch_sub(1, Ordering::Relaxed);
        if place == REMOTE {
            self.remote[owner(state)].fetch_add(1, Ordering::Relaxed);
        }
        self.unlock(page, with_place(state, place) & !MODIFIED);
        self.resident.fetch_sub(1, Ordering::Relaxed);
        true
    }

    /// Has the remote node take a locked, modified page that was just taken from the inactive list. Others near the list's
    /// end go along, if that is as well, and stay where they are. Returns how many went.
    fn send(&self, page: u32, memory: &impl Memory) -> u32 {
        let mut pages = [0; SENT_MAX];
        pages[0] = page;
        let most = memory.sends_at_once().clamp(1, SENT_MAX);
        let mut count = 1;
        if most > 1 {
            self.with_lists(memory, |table| {
                let mut link = table.inactive.tail.load(Ordering::Relaxed);
                for _ in 0..SENT_SCANNED {
                    if count == most || link == 0 {
                        break;
                    }
                    let other = link - 1;
                    link = table.prev[link as usize].load(Ordering::Relaxed);
                    let is_modified = |page: u32| table.states[page as usize].load(Ordering::Relaxed) & MODIFIED != 0;
                    if is_modified(other) && table.try_lock(other) {
                        if is_modified(other) {
                            pages[count] = other;
                            count += 1;
                        } else {
                            let state = table.states[other as usize].load(Ordering::Relaxed);
                            table.unlock(other, state);
                        }
                    }
                }
            });
        }
        memory.send(&pages[..count]);
        // They are in their list still: nobody takes a locked page out of one.
        for other in &pages[1..count] {
            let state = self.states[*other as usize].load(Ordering::Relaxed);
            self.unlock(*other, state & !MODIFIED);
        }
        count as u32
    }

    /// Locks some of the pages of `run` that are at the remote node only, and of which `wanted` says so: the first ones
    /// that nobody has locked, as many as go together. Hands them to `with`, if there are any, and unlocks them. Returns
    /// where the next ones may be.
    pub fn visit_remote(
        &self,
        run: Range<u32>,
        wanted: impl Fn(u32) -> bool,
        memory: &impl Memory,
        with: impl FnOnce(&[u32]),
    ) -> u32 {
        let mut pages = [0; SENT_MAX];
        let most = memory.sends_at_once().clamp(1, SENT_MAX);
        let (mut count, mut page) = (0, run.start);
        while page < run.end && count < most {
            if self.is_remote(page) && wanted(page) && self.try_lock(page) {
                if self.is_remote(page) && wanted(page) {
                    pages[count] = page;
                    count += 1;
                } else {
                    self.unlock(page, self.states[page as usize].load(Ordering::Relaxed));
                }
            }
            page += 1;
        }
        if count > 0 {
            with(&pages[..count]);
        }
        for page in &pages[..count] {
            self.unlock(*page, self.states[*page as usize].load(Ordering::Relaxed));
        }
        page
    }

    /// Makes the oldest `count` active pages inactive. Returns how many there were.
    fn demote(&self, count: u32, memory: &impl Memory) -> u32 {
        let mut pages = [0; BATCH_MAX];
        let pages = self.take_oldest(&mut pages[..count as usize], memory);
        if pages.is_empty() {
            return 0;
        }
        // What was mapped one after the other often lies side by side.
        pages.sort_unstable();
        let is_writable = |page: u32| self.states[page as usize].load(Ordering::Relaxed) & WRITABLE != 0;
        let mut runs = [const { 0..0 }; BATCH_MAX];
        for run in runs_of(pages, &mut runs, |before, page| is_writable(before) == is_writable(page)) {
            if is_writable(run.start) {
                memory.protect(run.clone());
                run.clone().for_each(|page| memory.copy_out(page));
            } else if !memory.keeps_copies() {
                let has_content = |page: &u32| self.states[*page as usize].load(Ordering::Relaxed) & STORED != 0;
                run.clone().filter(has_content).for_each(|page| memory.copy_out(page));
            }
        }
        memory.unmap(runs_of(pages, &mut runs, |_, _| true));
        self.with_lists(memory, |table| pages.iter().for_each(|page| table.push(&table.inactive, *page)));
        for page in &*pages {
            let state = self.states[*page as usize].load(Ordering::Relaxed);
            let mut after = with_place(state, INACTIVE) & !(WRITABLE | OLD);
            if state & WRITABLE != 0 && state & STORED == 0 {
                after |= STORED;
                self.stored.fetch_add(1, Ordering::Relaxed);
            }
            self.unlock(*page, after);
        }
        pages.len() as u32
    }

    /// Takes mapped pages that are to be unmapped from their list, locked: as many as fit `into`, or fewer.
    fn take_oldest<'a>(&self, into: &'a mut [u32], memory: &impl Memory) -> &'a mut [u32] {
        // Whether there are others than protected pages to be had, active and old.
        let [active, old] = match self.is_midpoint() {
            true => self.keep_protected(into.len(), memory).map(|others| others > 0),
            false => [true, false],
        };
        let is_old_full = self.old.len.load(Ordering::Relaxed) * 8 >= self.capacity() * 3;
        let (first, second) =
            if old && (is_old_full || !active) { (&self.old, &self.active) } else { (&self.active, &self.old) };
        let taken = self.take_from_tail(first, into, memory).len();
        let taken = if taken > 0 { taken } else { self.take_from_tail(second, into, memory).len() };
        &mut into[..taken]
    }

    /// Has protected pages at the end of each list of mapped pages go to the head of the active one, until `count` others are
    /// there. Returns how many others there were in the active list, and in the old one.
    fn keep_protected(&self, count: usize, memory: &impl Memory) -> [usize; 2] {
        let state = |page: u32| self.states[page as usize].load(Ordering::Relaxed);
        self.with_lists(memory, |table| {
            [&table.active, &table.old].map(|list| {
                let mut link = list.tail.load(Ordering::Relaxed);
                let mut others = 0;
                for _ in 0..KEPT_SCANNED {
                    if link == 0 || others == count {
                        break;
                    }
                    let page = link - 1;
                    link = table.prev[link as usize].load(Ordering::Relaxed);
                    if table.is_protected(state(page)) && table.try_lock(page) {
                        if table.is_protected(state(page)) {
                            table.remove(list, page);
                            table.push(&table.active, page);
                            table.unlock(page, state(page) & !OLD);
                        } else {
                            table.unlock(page, state(page));
                        }
                    } else {
                        others += 1;
                    }
                }
                others
            })
        })
    }

    /// Takes the oldest pages that are not locked from a list, locked: as many as fit `into`.
    fn take_from_tail<'a>(&self, list: &List, into: &'a mut [u32], memory: &impl Memory) -> &'a mut [u32] {
        let mut taken = 0;
        self.with_lists(memory, |table| {
            let mut link = list.tail.load(Ordering::Relaxed);
            while taken < into.len() && link != 0 {
                let page = link - 1;
                link = table.prev[link as usize].load(Ordering::Relaxed);
                if table.try_lock(page) {
                    table.remove(list, page);
                    into[taken] = page;
                    taken += 1;
                }
            }
        });
        &mut into[..taken]
    }

    /// Empties the pages of `run`, which nobody touches until this returns.
    pub fn release(&self, run: Range<u32>, memory: &impl Memory) {
        let mut start = run.start;
        while start < run.end {
            let part = start..run.end.min(start + BATCH_MAX as u32 * 2);
            start = part.end;
            if part.clone().all(|page| self.is_empty(page)) {
                continue;
            }
            for page in part.clone() {
                let state = self.lock(page, memory);
                if is_local(state) {
                    self.with_lists(memory, |table| table.remove(table.list_of(state), page));
                    self.local[owner(state)].fetch_sub(1, Ordering::Relaxed);
                } else if place(state) == REMOTE {
                    self.remote[owner(state)].fetch_sub(1, Ordering::Relaxed);
                }
            }
            memory.discard(part.clone());
            for page in part.clone() {
                let state = self.states[page as usize].load(Ordering::Relaxed);
                if state & STORED != 0 {
                    self.stored.fetch_sub(1, Ordering::Relaxed);
                }
                self.unlock(page, state & OWNER);
                if is_local(state) {
                    self.resident.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Whether a page that nobody touches has neither content nor memory.
    fn is_empty(&self, page: u32) -> bool {
        // Relaxed: what the caller knows of the page was ordered when it came to own it. No other thread makes an empty
        // page anything else.
        self.states[page as usize].load(Ordering::Relaxed) & !OWNER == EMPTY
    }

    /// Notes whose pages these are from now on.
    pub fn set_owner(&self, run: Range<u32>, to: usize, memory: &impl Memory) {
        debug_assert!(to < OWNERS_MAX);
        for page in run {
            let state = self.lock(page, memory);
            let counts = match place(state) {
                EMPTY => None,
                REMOTE => Some(&self.remote),
                _ => Some(&self.local),
            };
            if let Some(counts) = counts {
                counts[owner(state)].fetch_sub(1, Ordering::Relaxed);
                counts[to].fetch_add(1, Ordering::Relaxed);
            }
            self.unlock(page, state & !OWNER | (to as u32) << OWNER_SHIFT);
        }
    }

    /// Waits for the page's lock; its state without it.
    fn lock(&self, page: u32, memory: &impl Memory) -> u32 {
        let slot = &self.states[page as usize];
        let mut tries = 0;
        loop {
            let state = slot.load(Ordering::Relaxed);
            if state & LOCKED == 0
                && slot.compare_exchange(state, state | LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return state;
            }
            memory.pause(tries);
            tries += 1;
        }
    }

    fn try_lock(&self, page: u32) -> bool {
        let slot = &self.states[page as usize];
        let state = slot.load(Ordering::Relaxed);
        state & LOCKED == 0
            && slot.compare_exchange(state, state | LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn unlock(&self, page: u32, state: u32) {
        debug_assert!(self.states[page as usize].load(Ordering::Relaxed) & LOCKED != 0);
        // Release: the next holder sees what was done to page, copy and links.
        self.states[page as usize].store(state & !LOCKED, Ordering::Release);
    }

    fn with_lists<R>(&self, memory: &impl Memory, change: impl FnOnce(&Table) -> R) -> R {
        let mut tries = 0;
        while self.lists_locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            memory.pause(tries);
            tries += 1;
        }
        let result = change(self);
        self.lists_locked.store(false, Ordering::Release);
        result
    }

    /// Under the lists' lock, as are all that follow.
    fn push(&self, list: &List, page: u32) {
        let link = page + 1;
        let head = list.head.load(Ordering::Relaxed);
        self.prev[link as usize].store(0, Ordering::Relaxed);
        self.next[link as usize].store(head, Ordering::Relaxed);
        if head == 0 {
            list.tail.store(link, Ordering::Relaxed);
        } else {
            self.prev[head as usize].store(link, Ordering::Relaxed);
        }
        list.head.store(link, Ordering::Relaxed);
        list.len.store(list.len.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    fn remove(&self, list: &List, page: u32) {
        let link = page as usize + 1;
        let prev = self.prev[link].load(Ordering::Relaxed);
        let next = self.next[link].load(Ordering::Relaxed);
        let after = if prev == 0 { &list.head } else { &self.next[prev as usize] };
        after.store(next, Ordering::Relaxed);
        let before = if next == 0 { &list.tail } else { &self.prev[next as usize] };
        before.store(prev, Ordering::Relaxed);
        list.len.store(list.len.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
    }
}

/// Sorted pages as runs of neighbours of which `alike` says that they belong together.
fn runs_of<'a>(
    pages: &[u32],
    runs: &'a mut [Range<u32>; BATCH_MAX],
    alike: impl Fn(u32, u32) -> bool,
) -> &'a [Range<u32>] {
    let mut count = 0;
    for &page in pages {
        if count > 0 && runs[count - 1].end == page && alike(page - 1, page) {
            runs[count - 1].end = page + 1;
        } else {
            runs[count] = page..page + 1;
            count += 1;
        }
    }
    &runs[..count]
}

/// What [`Table`] rests on, held against a memory made of numbers.
#[cfg(test)]
#[path = "model.rs"]
mod model;
