//! Rows that several hosts read and write: a host's part in a pod.
//!
//! A row whose home has moved it into the pod has a *tuple* there ([`tidepool_pod::tuples`]), and its head says which
//! ([`Found::Pod`](super::version::Found)). Each version of it is a block that was written once; the newest's first word is
//! a version's `begin`. So what the module above says of versions goes for them, too, by the tags and timestamps that
//! all hosts share, with these differences:
//!
//! * What is looked at is a *copy* in this host's own memory. It is as good as the block as long as the tuple's word is what
//!   it was when the block was read: each change of a word makes another word. A copy is lent to views as a version is,
//!   and freed as one: when the horizon has passed the time that another took its place.
//! * A tag in a copy may be out of date. A transaction stamps what it wrote for good before its sequence number moves on,
//!   so the block is read once more where the tag's transaction is over.
//! * The newest version that a writer replaces has a timestamp, so all older ones have. They are read as they are: their
//!   blocks are not written again while a host has a snapshot that needs them (the horizon of all hosts).
//! * Beneath the oldest version in the pod is what the home had when it moved the row in: its *base*, the version that was in
//!   the head, or what main has.
//! * A row in the pod keeps its keys, and is not deleted: for that it goes home first. So its index entries are right.
//!
//! # Moving
//!
//! In: the tuple is reserved, the base is put down, the head is changed, shared locks are looked for, and then the tuple
//! is shown. Out: the tuple's word is frozen and then dead, and only then the head is changed: at no moment can both
//! places be written. Readers of the home that find a tuple which is not shown yet go to the base; those that find one that
//! is dead look at the head again.

mod store;

pub(super) use store::Between;
pub use store::{MovedIn, PodRow};

use super::RowStore;
use super::version::Version;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use tidepool_base::{CommitTs, Error, Result, RowId, SqlState};
use tidepool_heap::QueryHeap;
use tidepool_pod::layout::{HostId, Layout};
use tidepool_pod::mapped::Mapped;
use tidepool_pod::memory::Refers;
use tidepool_pod::memory::{Blocks, Draft, Outcome, Retired};
use tidepool_pod::tuples::{Origin, Tuples, Written};
use tidepool_pod::words::{Begin, TupleState, TupleWord};
use tidepool_txn::{Transactions, View, Worker};

/// So long a copy is believed without looking at its block: a tuple's word counts 2²¹ changes, and comes again after that.
const BELIEVED_NS: u64 = 500_000_000;

/// A row id of a tuple rather than of a row of this host's: the upper bit; then the generation and the number of the tuple.
const POD_ROW: u64 = 1 << 63;
const GENERATION_MASK: u32 = (1 << 31) - 1;

/// What counts of rows in the pod, since the host began.
#[derive(Debug, Default)]
pub struct PodCounters {
    pub moved_in: AtomicU64,
    pub moved_out: AtomicU64,
    /// Versions that were read from this host's own copies.
    pub copies_read: AtomicU64,
    /// Versions that were read from the pod.
    pub blocks_read: AtomicU64,
    pub versions_written: AtomicU64,
    /// Writes that another host was in the way of.
    pub conflicts: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A version in the pod, as this host has read or written it.
#[derive(Debug)]
pub(super) struct Copied {
    /// The tuple's word that refers to it.
    word: TupleWord,
    /// When the block was known to be what the word refers to.
    known_at: AtomicU64,
    /// As a version's: a tag becomes a timestamp once.
    begin: AtomicU64,
    /// Of the transaction that wrote it, where that is this host's.
    command: u32,
    older: Option<tidepool_pod::memory::BlockRef>,
    origin: Origin,
    image: Box<[u8]>,
}

/// What became of looking at a tuple's newest version.
pub(super) enum Newest<'v> {
    Copy(&'v Copied),
    /// The home is about to show it.
    Coming,
    /// The row is at its home.
    Left,
}

/// A version as a transaction put it into the pod.
#[derive(Debug)]
pub(super) struct PodWrite {
    pub member: Arc<PodMember>,
    pub tuple: u32,
    pub written: Written,
}

/// A host's part in a pod.
pub struct PodMember {
    memory: Arc<Mapped>,
    layout: Layout,
    host: HostId,
    transactions: Arc<Transactions>,
    /// Of each tuple the copy that was made last, from `Box::into_raw`, or null.
    copies: Box<[AtomicPtr<Copied>]>,
    /// Copies that another took the place of, or that were made for one look.
    replaced: Mutex<Vec<Owned>>,
    blocks: Mutex<Blocks>,
    /// Tuples of this home that have no row.
    free: Mutex<Vec<u32>>,
    /// Rows of this home that are in the pod.
    rows: Mutex<HashMap<u32, (Weak<RowStore>, RowId)>>,
    /// Beneath them, by tuple from the home's first on: a version's marked word, or zero.
    bases: Box<[AtomicU64]>,
    /// Rows that are to go home before they are written again, as somebody wants to delete them or change their keys.
    wanted_home: Box<[AtomicBool]>,
    /// Blocks that were replaced, with the time that a horizon has to pass.
    retired: Mutex<VecDeque<(u64, Retired)>>,
    /// Blocks of other hosts that are on their way to them.
    homeward: Mutex<Vec<(HostId, u64)>>,
    /// Something of the pod cannot be what it is.
    fault: OnceLock<String>,
    pub counters: PodCounters,
}

/// A copy that no place refers to any more.
struct Owned(NonNull<Copied>);

// SAFETY: a copy is bytes and atomic words.
unsafe impl Send for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: from `Box::into_raw`, taken out of its place once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl std::fmt::Debug for PodMember {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PodMember({:?})", self.host)
    }
}

impl PodMember {
    /// A host that uses the pod's memory by these transactions, whose slots are there. Nobody else is this host, and no
    /// word of the pod refers to a block of it, or has a tuple of it in use.
    pub fn new(memory: Arc<Mapped>, layout: Layout, host: HostId, transactions: Arc<Transactions>) -> Arc<PodMember> {
        let own = layout.tuples_of(host);
        Arc::new(PodMember {
            memory,
            layout,
            host,
            transactions,
            copies: (0..layout.tuples).map(|_| AtomicPtr::default()).collect(),
            replaced: Mutex::default(),
            blocks: Mutex::new(Blocks::new(layout.blocks(host), layout.block_lines)),
            free: Mutex::new(own.clone().rev().collect()),
            rows: Mutex::default(),
            bases: own.clone().map(|_| AtomicU64::new(0)).collect(),
            wanted_home: own.map(|_| AtomicBool::new(false)).collect(),
            retired: Mutex::default(),
            homeward: Mutex::default(),
            fault: OnceLock::new(),
            counters: PodCounters::default(),
        })
    }

    pub fn host(&self) -> HostId {
        self.host
    }

    pub fn layout(&self) -> Layout {
        self.layout
    }

    pub fn memory(&self) -> &Arc<Mapped> {
        &self.memory
    }

    fn tuples(&self) -> Tuples<'_, Mapped> {
        Tuples::new(&self.memory, self.layout)
    }

    /// What a transition of the pod's memory came to. What cannot be is remembered, and ends all further commits.
    fn told<T>(&self, outcome: Outcome<T, Mapped>) -> Result<T> {
        outcome.map_err(|trouble| {
            let text = self.fault.get_or_init(|| trouble.to_string());
            Error::corrupted(format!("the pod's memory is damaged: {text}"))
        })
    }

    /// XX001 once something of the pod was found damaged.
    pub fn check(&self) -> Result<()> {
        match self.fault.get() {
            None => Ok(()),
            Some(text) => Err(Error::corrupted(format!("the pod's memory is damaged: {text}"))),
        }
    }

    /// Rows of this home that are in the pod.
    pub fn rows_in(&self) -> usize {
        self.rows.lock().len()
    }

    /// Blocks of this host that nothing is in.
    pub fn free_blocks(&self) -> usize {
        self.blocks.lock().free()
    }

    /// The newest version of a tuple, under the view that it is lent to.
    fn newest<'v>(&'v self, view: &'v View, tuple: u32) -> Result<Newest<'v>> {
        let _ = view;
        let place = &self.copies[tuple as usize];
        loop {
            let word = self.told(self.tuples().load(tuple))?;
            match word.state() {
                TupleState::Live | TupleState::Frozen => {}
                TupleState::Moving => return Ok(Newest::Coming),
                TupleState::Free | TupleState::Dead => return Ok(Newest::Left),
            }
            let pointer = place.load(Ordering::Acquire);
            // SAFETY: null, or from `keep`: freed only when the horizon has passed the time that another took its place, and
            // the view was drawn before this look.
            let known = unsafe { pointer.as_ref() };
            // After the word was loaded: who sleeps between the two finds the copy old.
            let now = self.transactions.clock().now().0;
            if let Some(known) = known
                && known.word.block() == word.block()
                && known.word == word_as_live(word)
                && now.saturating_sub(known.known_at.load(Ordering::Relaxed)) < BELIEVED_NS
            {
                count(&self.counters.copies_read);
                return Ok(Newest::Copy(known));
            }
            count(&self.counters.blocks_read);
            let Some(version) = self.told(self.tuples().newest(tuple, word))? else { continue };
            let copied = QueryHeap::outside(|| Copied {
                word: word_as_live(word),
                known_at: AtomicU64::new(now),
                begin: AtomicU64::new(version.begin.word()),
                command: 0,
                older: version.older,
                origin: version.origin,
                image: version.image.into_boxed_slice(),
            });
            if let Some(known) = known
                && known.word == copied.word
                && known.image == copied.image
            {
                // Still the same: only its age was in doubt.
                if let Begin::At(ts) = version.begin {
                    known.begin.store(ts.0, Ordering::Release);
                }
                known.known_at.store(now, Ordering::Relaxed);
                return Ok(Newest::Copy(known));
            }
            if let Ok(kept) = self.replace(tuple, pointer, QueryHeap::outside(|| Box::new(copied))) {
                // SAFETY: as above.
                return Ok(Newest::Copy(unsafe { kept.as_ref() }));
            }
        }
    }

    /// Puts a copy in the place of another, or gives it back where that is not there any more.
    fn replace(
        &self,
        tuple: u32,
        old: *mut Copied,
        new: Box<Copied>,
    ) -> std::result::Result<NonNull<Copied>, Box<Copied>> {
        let new = NonNull::from(Box::leak(new));
        let place = &self.copies[tuple as usize];
        // Release: what is behind the pointer was written before.
        match place.compare_exchange(old, new.as_ptr(), Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => {
                if let Some(old) = NonNull::new(old) {
                    self.set_aside(old);
                }
                Ok(new)
            }
            // SAFETY: leaked above, and seen by nobody.
            Err(_) => Err(unsafe { Box::from_raw(new.as_ptr()) }),
        }
    }

    /// Puts down what a transaction of this host has written, whatever other threads have read of it meanwhile.
    fn put_down(&self, tuple: u32, copied: Copied) {
        let mut copied = QueryHeap::outside(|| Box::new(copied));
        loop {
            let old = self.copies[tuple as usize].load(Ordering::Acquire);
            match self.replace(tuple, old, copied) {
                Ok(_) => return,
                Err(again) => copied = again,
            }
        }
    }

    fn set_aside(&self, copied: NonNull<Copied>) {
        QueryHeap::outside(|| self.replaced.lock().push(Owned(copied)));
    }

    /// Has the begin of a copy looked at anew, whose tag's transaction is over. False: it is not the newest any more.
    fn refresh(&self, tuple: u32, copied: &Copied) -> Result<bool> {
        let word = self.told(self.tuples().load(tuple))?;
        if word_as_live(word) != copied.word {
            return Ok(false);
        }
        let Some(version) = self.told(self.tuples().newest(tuple, word))? else { return Ok(false) };
        if let Begin::At(ts) = version.begin {
            copied.begin.store(ts.0, Ordering::Release);
        }
        Ok(true)
    }

    /// The version beneath one that the view does not see. `None`: the pod has none.
    fn older<'v>(&'v self, view: &'v View, copied: &Copied) -> Result<Option<&'v Copied>> {
        let _ = view;
        let Some(block) = copied.older else { return Ok(None) };
        count(&self.counters.blocks_read);
        let version = self.told(self.tuples().older(block))?;
        let kept = QueryHeap::outside(|| {
            NonNull::from(Box::leak(Box::new(Copied {
                word: copied.word,
                known_at: AtomicU64::new(0),
                begin: AtomicU64::new(version.begin.word()),
                command: 0,
                older: version.older,
                origin: version.origin,
                image: version.image.into_boxed_slice(),
            })))
        });
        self.set_aside(kept);
        // SAFETY: what is set aside is freed only when the horizon has passed a later time than the view's.
        Ok(Some(unsafe { kept.as_ref() }))
    }

    /// A block to write. 53200 where all are in use.
    fn take_block(&self, worker: &Worker) -> Result<Draft> {
        let take = || self.blocks.lock().take();
        take()
            .or_else(|| {
                worker.transactions().try_advance_horizon();
                self.free_due();
                take()
            })
            .ok_or_else(|| Error::new(SqlState::OUT_OF_MEMORY, "the pod has no free block for this host"))
    }

    fn put_back(&self, draft: Draft) {
        self.blocks.lock().put_back(draft);
    }

    /// Takes in blocks that no snapshot of any host can find any more, and those that other hosts have sent.
    fn free_due(&self) {
        let horizon = self.transactions.horizon_of_all().0;
        let mut retired = self.retired.lock();
        while let Some((ts, _)) = retired.front()
            && *ts < horizon
        {
            if let Some((_, block)) = retired.pop_front() {
                self.take_in(block);
            }
        }
    }

    fn take_in(&self, block: Retired) {
        if let Err(block) = self.blocks.lock().retire(block)
            && let Some(owner) = self.layout.owner(block.block().first())
        {
            self.homeward.lock().push((owner, block.word()));
        }
    }

    /// Blocks of other hosts that are to be sent to them: words of messages for [`PodMember::take_home`].
    pub fn homeward(&self) -> Vec<(HostId, u64)> {
        std::mem::take(&mut *self.homeward.lock())
    }

    /// Takes in a block that another host sends home.
    pub fn take_home(&self, word: u64) {
        // A word that is no block of this host's is none that a host sends.
        drop(self.blocks.lock().retire(Retired::of_word(word)));
    }

    /// Frees what views need no more. To be called now and then, by each worker that reads and writes rows of the pod.
    pub fn tidy(&self, worker: &Worker) {
        self.free_due();
        let replaced = {
            let mut replaced = self.replaced.lock();
            if replaced.len() < 64 { return } else { std::mem::take(&mut *replaced) }
        };
        QueryHeap::outside(|| worker.retire_with(worker.retirement_ts(), move || drop(replaced)));
    }

    /// Before a commit: what was put in is found by others after this host's death, too. XX001 where the pod is damaged.
    pub(super) fn make_durable<'w>(&self, writes: impl Iterator<Item = &'w PodWrite>) -> Result<()> {
        self.check()?;
        self.told(self.tuples().secure(writes.map(|write| &write.written)))
    }

    /// After a commit at `ts`, which outlives this host.
    pub(super) fn stamp(&self, writes: Vec<PodWrite>, ts: CommitTs) {
        let words: Vec<_> = writes.iter().map(|write| (write.tuple, write.written.word())).collect();
        let stamped = self.told(self.tuples().stamp(writes.into_iter().map(|write| write.written), ts));
        let Ok(replaced) = stamped else { return };
        let mut retired = self.retired.lock();
        replaced.into_iter().for_each(|block| retired.push_back((ts.0, block)));
        drop(retired);
        for (tuple, word) in words {
            // SAFETY: the copy of what this transaction wrote, or another that took its place, which stays until the
            // transaction's worker has closed its snapshot.
            let known = unsafe { self.copies[tuple as usize].load(Ordering::Acquire).as_ref() };
            if let Some(known) = known.filter(|known| known.word == word) {
                known.begin.store(ts.0, Ordering::Release);
            }
        }
    }

    /// Takes back what a transaction wrote, the last first.
    pub(super) fn take_back(&self, writes: Vec<PodWrite>) {
        let taken = self.told(self.tuples().take_back(writes.into_iter().map(|write| write.written)));
        if let Ok(blocks) = taken {
            // This host's own, and no word refers to them.
            blocks.into_iter().for_each(|block| self.take_in(block));
        }
    }

    pub(super) fn is_wanted_home(&self, tuple: u32) -> bool {
        let first = self.layout.tuples_of(self.host).start;
        self.wanted_home[(tuple - first) as usize].load(Ordering::Relaxed)
    }

    pub(super) fn want_home(&self, tuple: u32, is_wanted: bool) {
        let first = self.layout.tuples_of(self.host).start;
        self.wanted_home[(tuple - first) as usize].store(is_wanted, Ordering::Relaxed);
    }

    fn base(&self, tuple: u32) -> Option<Version> {
        let first = self.layout.tuples_of(self.host).start;
        let word = self.bases[(tuple - first) as usize].load(Ordering::Acquire);
        (word != 0).then(|| Version::of_marked(word).0)
    }

    fn set_base(&self, tuple: u32, base: Option<Version>) {
        let first = self.layout.tuples_of(self.host).start;
        self.bases[(tuple - first) as usize].store(base.map_or(0, |base| base.marked(0)), Ordering::Release);
    }

    /// The bases of a store that is no more, taken out.
    pub(super) fn take_bases(&self, store: *const RowStore) -> Vec<Version> {
        let mut bases = Vec::new();
        self.rows.lock().retain(|tuple, (of, _)| {
            let is_of = std::ptr::eq(of.as_ptr(), store);
            if is_of && let Some(base) = self.base(*tuple) {
                bases.push(base);
                self.set_base(*tuple, None);
            }
            !is_of
        });
        bases
    }
}

/// A tuple's word while the home is about to take the row out refers to the same version as before.
fn word_as_live(word: TupleWord) -> TupleWord {
    match word.state() {
        TupleState::Frozen => word.before_freeze(),
        _ => word,
    }
}

impl Drop for PodMember {
    fn drop(&mut self) {
        for place in &mut self.copies {
            if let Some(copied) = NonNull::new(*place.get_mut()) {
                drop(Owned(copied));
            }
        }
    }
}

/// Whether a row id names a tuple of the pod instead of a row of this host's.
#[inline]
pub fn is_pod_row(row: RowId) -> bool {
    row.0 & POD_ROW != 0
}

fn pod_row(tuple: u32, generation: u32) -> RowId {
    RowId(POD_ROW | u64::from(generation & GENERATION_MASK) << 32 | u64::from(tuple))
}

fn of_pod_row(row: RowId) -> (u32, u32) {
    (row.0 as u32, (row.0 >> 32) as u32 & GENERATION_MASK)
}

const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<PodMember>();
};
