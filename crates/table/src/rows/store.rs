//! A table's rows: where each is, and what a view sees of it.

use super::locks::RowLocks;
use super::page::{HeadMemory, PAGE_HEADS};
use super::range::{Directory, Range};
use super::reclaim::Gone;
use super::sync::{AtomicU64, prefetch};
use super::version::{Found, Kind, Version};
use super::{RowLayout, VersionMemory};
use crate::RowGroup;
use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, Weak};
use tidepool_base::{Result, RowId, StoreId};
use tidepool_tablespace::Tablespace;
use tidepool_txn::{Retired, Transactions, View};

/// Rows that are looked up side by side.
const TOGETHER: usize = 16;

/// Threads that do not share anything when they take row ids.
const SHARDS: usize = 64;

/// A row as a view sees it.
#[derive(Clone, Copy, Debug)]
pub enum RowRef<'v> {
    /// The image of a version.
    Version(&'v [u8]),
    Main {
        group: &'v Arc<RowGroup>,
        position: usize,
    },
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Line<T>(T);

/// Row ids that a shard has not given out yet.
#[derive(Debug, Default)]
struct Ids {
    next: u64,
    end: u64,
}

/// A table's rows.
pub struct RowStore {
    id: StoreId,
    pub(super) transactions: Arc<Transactions>,
    layout: RowLayout,
    pub(super) memory: Arc<VersionMemory>,
    heads: Arc<HeadMemory>,
    pub(super) directory: Directory,
    ids: Box<[Line<Mutex<Ids>>]>,
    /// The first row id that was given to no shard; at a range's start, the range is still to be made. Locked before
    /// `directory.adding`.
    pub(super) open: Mutex<Option<RowId>>,
    pub(super) locks: RowLocks,
    pub(super) gone: OnceLock<Box<dyn Gone>>,
    /// Of a table whose rows other hosts read and write, too.
    pub(super) pod: OnceLock<Arc<super::PodMember>>,
    /// As a version's `begin`: since when the table has its rows in another store, or in others besides.
    pub(super) redefined: AtomicU64,
    /// Of a temporary table: what is to be freed ([`RowStore::retire`]).
    pub(super) retired: Mutex<Vec<Retired>>,
    /// For what it retires itself.
    pub(super) me: Weak<RowStore>,
}

impl std::fmt::Debug for RowStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RowStore({} ranges)", self.directory.len())
    }
}

/// What a view sees of a chain of versions.
pub(super) enum Seen<'v> {
    Image(&'v [u8]),
    Deleted,
    /// Nothing: what main has counts.
    Main,
}

impl RowStore {
    /// An empty table, with versions in `memory` and heads in `near`, or, where that is full, beside the versions.
    ///
    /// Heads are near, as each read of a row goes through one, and so that a row in delta costs one access to far
    /// memory.
    pub fn new(
        id: StoreId,
        transactions: &Arc<Transactions>,
        layout: RowLayout,
        memory: &Arc<VersionMemory>,
        near: &Arc<Tablespace>,
    ) -> Arc<RowStore> {
        Arc::new_cyclic(|me| RowStore {
            id,
            me: Weak::clone(me),
            transactions: Arc::clone(transactions),
            layout,
            memory: Arc::clone(memory),
            heads: Arc::new(HeadMemory::new(near, memory.tablespace())),
            directory: Directory::new(),
            ids: (0..SHARDS).map(|_| Line::default()).collect(),
            open: Mutex::new(None),
            locks: RowLocks::new(),
            gone: OnceLock::new(),
            pod: OnceLock::new(),
            redefined: AtomicU64::new(0),
            retired: Mutex::default(),
        })
    }

    pub fn id(&self) -> StoreId {
        self.id
    }

    pub fn layout(&self) -> &RowLayout {
        &self.layout
    }

    pub fn memory(&self) -> &Arc<VersionMemory> {
        &self.memory
    }

    pub(super) fn heads(&self) -> &Arc<HeadMemory> {
        &self.heads
    }

    /// Who is told of versions that are gone. Once.
    pub fn set_gone(&self, gone: Box<dyn Gone>) {
        let set = self.gone.set(gone);
        debug_assert!(set.is_ok());
    }

    /// Whether its table has its rows elsewhere, as the view sees it.
    #[inline]
    pub fn is_left(&self, view: &View) -> bool {
        self.redefined.load(Ordering::Relaxed) != 0 && view.sees(&self.transactions, &self.redefined, u32::MAX)
    }

    /// Ranges that there are.
    pub fn ranges(&self) -> u64 {
        self.directory.len()
    }

    /// A row id that nobody had.
    pub(super) fn take_id(&self, shard: usize) -> RowId {
        let mut ids = self.ids[shard % SHARDS].0.lock();
        if ids.next == ids.end {
            *ids = self.take_ids();
        }
        ids.next += 1;
        RowId(ids.next - 1)
    }

    #[cold]
    fn take_ids(&self) -> Ids {
        let mut open = self.open.lock();
        let next = match *open {
            Some(next) => next,
            None => RowId::new(self.add_range(Range::new(&self.heads)), 0),
        };
        let end = RowId(next.0 + PAGE_HEADS as u64);
        *open = (end.position() != 0).then_some(end);
        Ids { next: next.0, end: end.0 }
    }

    pub(super) fn add_range(&self, range: Range) -> u64 {
        let _adding = self.directory.adding.lock();
        self.directory.push(range)
    }

    /// Rows that are inserted from now on go to a new range, but for what threads have begun. For merging what there
    /// is.
    pub fn seal(&self) {
        *self.open.lock() = None;
        for ids in &self.ids {
            *ids.0.lock() = Ids::default();
        }
    }

    /// The range's end as far as ids were given out.
    pub(crate) fn used_rows(&self, number: u64) -> usize {
        match *self.open.lock() {
            Some(next) if next.range() == number => next.position(),
            _ => RowId::RANGE_ROWS,
        }
    }

    #[inline]
    pub(super) fn check_view(&self, view: &View) {
        assert!(view.is_of(&self.transactions), "a view of other transactions");
    }

    /// The row as `view` sees it. Shares nothing with other threads, allocates nothing.
    #[inline]
    pub fn read<'v>(&'v self, view: &'v View, row: RowId) -> Option<RowRef<'v>> {
        self.read_charging(
            view,
            row,
            |version| {
                if tidepool_fiber::may_pause() {
                    version.prefetch();
                    self.memory.arrive();
                }
            },
            |bytes| self.memory.charge_read(bytes),
        )
    }

    /// Of the row as `view` sees it: the same in every process that has the same row. `None`: it is not there.
    pub fn checksum_of(&self, view: &View, row: RowId) -> Result<Option<u32>> {
        Ok(match self.read(view, row) {
            Some(RowRef::Version(image)) => Some(super::patch::checksum(image)),
            Some(RowRef::Main { group, position }) => {
                let mut image = Vec::new();
                self.layout.image_in_main(group, position, &mut image)?;
                Some(super::patch::checksum(&image))
            }
            None => None,
        })
    }

    /// Whether what is read of versions is accounted for.
    #[inline]
    pub fn is_paced(&self) -> bool {
        self.memory.is_paced()
    }

    /// As `read`, of a row that was read a moment ago, and so comes from the caches: it is accounted for already.
    #[inline]
    pub fn read_again<'v>(&'v self, view: &'v View, row: RowId) -> Option<RowRef<'v>> {
        self.read_charging(view, row, |_| (), |_| ())
    }

    #[inline]
    fn read_charging<'v>(
        &'v self,
        view: &'v View,
        row: RowId,
        arrive: impl Fn(Version),
        charge: impl Fn(usize),
    ) -> Option<RowRef<'v>> {
        self.check_view(view);
        let range = self.directory.get(row.range())?;
        let found = range.head(view, row.position()).map(|head| head.load());
        if let Some(Found::Version(version)) = found {
            arrive(version);
            match self.seen_charging(view, version, 0, charge) {
                Seen::Image(image) => return Some(RowRef::Version(image)),
                Seen::Deleted => return None,
                Seen::Main => {}
            }
        } else if let Some(Found::Pod(_)) = found {
            return self.read_in_pod(view, range, row.position());
        }
        self.read_main(view, range, row.position())
    }

    /// As `read` of each of some rows, told in their order. What memory is waited for is waited for together.
    pub fn read_together<'v>(
        &'v self,
        view: &'v View,
        rows: &[RowId],
        mut take: impl FnMut(usize, Option<RowRef<'v>>),
    ) {
        self.check_view(view);
        for (chunk, start) in rows.chunks(TOGETHER).zip((0..).step_by(TOGETHER)) {
            let mut heads = [None; TOGETHER];
            for (row, place) in chunk.iter().zip(&mut heads) {
                *place = self.directory.get(row.range()).map(|range| (range, range.head(view, row.position())));
                if let Some((_, Some(head))) = place {
                    prefetch(*head);
                }
            }
            let mut versions = [None; TOGETHER];
            let mut in_pod = 0u32;
            for (at, (head, version)) in heads.iter().zip(&mut versions).enumerate() {
                let Some((_, Some(head))) = head else { continue };
                match head.load() {
                    Found::Version(found) => {
                        found.prefetch();
                        *version = Some(found);
                    }
                    Found::Pod(_) => in_pod |= 1 << at,
                    Found::Null | Found::TakingOut => {}
                }
            }
            if versions.iter().any(Option::is_some) {
                self.memory.about_to_read(versions.iter().flatten().map(|version| version.address()));
                self.memory.arrive();
            }
            let read = Cell::new(0);
            for (at, row) in chunk.iter().enumerate() {
                let found = heads[at].and_then(|(range, _)| {
                    let seen = match versions[at] {
                        Some(version) => self.seen_charging(view, version, 0, |bytes| read.set(read.get() + bytes)),
                        None if in_pod >> at & 1 != 0 => self.seen_in_pod(view, range, row.position()),
                        None => Seen::Main,
                    };
                    match seen {
                        Seen::Image(image) => Some(RowRef::Version(image)),
                        Seen::Deleted => None,
                        Seen::Main => self.read_main(view, range, row.position()),
                    }
                });
                take(start + at, found);
            }
            self.memory.charge_read(read.get());
        }
    }

    pub(super) fn read_main<'v>(&self, view: &'v View, range: &'v Range, position: usize) -> Option<RowRef<'v>> {
        let main = range.main(view)?;
        let there =
            main.has(position) && view.sees(&self.transactions, &range.begin, range.command.load(Ordering::Relaxed));
        there.then_some(RowRef::Main { group: &main.group, position })
    }

    /// What `view` sees of a chain whose first version was in a head under it.
    #[inline]
    pub(super) fn seen<'v>(&self, view: &'v View, version: Version) -> Seen<'v> {
        self.seen_charging(view, version, 0, |bytes| self.memory.charge_read(bytes))
    }

    /// As `seen`; main has what was written up to `upto`. `charge` is told of the bytes read of each version.
    #[inline]
    pub(super) fn seen_charging<'v>(
        &self,
        view: &'v View,
        mut version: Version,
        upto: u64,
        charge: impl Fn(usize),
    ) -> Seen<'v> {
        loop {
            // SAFETY: from a head under the view, and then from versions that it does not see: see the module.
            let header = unsafe { version.header::<'v>() };
            let kind = header.kind();
            if kind != Kind::Lock && view.sees(&self.transactions, &header.begin, header.command()) {
                // A tag is above all timestamps; and what is not stamped yet is in no main.
                if header.begin.load(Ordering::Relaxed) <= upto {
                    return Seen::Main;
                }
                charge(header.bytes());
                if kind == Kind::Deleted {
                    return Seen::Deleted;
                }
                // SAFETY: as above.
                return Seen::Image(unsafe { version.image() });
            }
            charge(size_of_val(header));
            match header.older() {
                Some(older) => version = older,
                None => return Seen::Main,
            }
        }
    }

    /// Appends the images of a chain, whose first version was in a head under the view, down to what the view sees; main has what was
    /// written up to `upto`. What is read is the caller's to charge for.
    pub(super) fn images_down_to_seen<'v>(
        &self,
        view: &'v View,
        version: Version,
        upto: u64,
        images: &mut Vec<&'v [u8]>,
    ) {
        let mut next = Some(version);
        while let Some(version) = next {
            // SAFETY: from a head under the view, and then from versions that it does not see: see the module.
            let header = unsafe { version.header::<'v>() };
            let sees = header.kind() != Kind::Lock && view.sees(&self.transactions, &header.begin, header.command());
            if sees && header.begin.load(Ordering::Relaxed) <= upto {
                return;
            }
            if header.kind() == Kind::Row {
                // SAFETY: as above; the image is in the header's block.
                images.push(unsafe { version.image() });
            }
            next = if sees { None } else { header.older() };
        }
    }

    /// Whether `wanted` is true of the row as some snapshot may see it, or as somebody is about to write it. Under a
    /// view of the horizon (`Worker::pin_horizon`).
    pub fn any_version(&self, horizon: &View, row: RowId, wanted: &mut dyn FnMut(RowRef<'_>) -> bool) -> bool {
        self.check_view(horizon);
        let Some(range) = self.directory.get(row.range()) else { return false };
        let mut found = range.head(horizon, row.position()).map(|head| head.load());
        if let Some(Found::Pod(tuple)) = found {
            let mut is_wanted = false;
            let base = self.images_in_pod(horizon, tuple, &mut |image, _| {
                is_wanted = wanted(RowRef::Version(image));
                !is_wanted
            });
            if is_wanted {
                return true;
            }
            found = base.map(Found::Version);
        }
        while let Some(Found::Version(version)) = found {
            // SAFETY: as in `seen`.
            let header = unsafe { version.header() };
            // SAFETY: as above.
            if header.kind() == Kind::Row && wanted(RowRef::Version(unsafe { version.image() })) {
                return true;
            }
            if header.kind() != Kind::Lock && horizon.sees(&self.transactions, &header.begin, header.command()) {
                return false;
            }
            found = header.older().map(Found::Version);
        }
        // Whoever loaded the range may not have committed yet.
        range.main(horizon).is_some_and(|main| {
            main.has(row.position()) && wanted(RowRef::Main { group: &main.group, position: row.position() })
        })
    }
}

impl Drop for RowStore {
    fn drop(&mut self) {
        for range in self.directory.ranges_mut() {
            let versions: Vec<Version> = range.heads_left().collect();
            for version in versions {
                // SAFETY: in its head, so it was never retired; and nobody has the store any more.
                unsafe { version.free(&self.memory) };
            }
        }
        for version in self.pod.get().map(|pod| pod.take_bases(self)).unwrap_or_default() {
            // SAFETY: beneath a row that was in the pod, where nobody looks any more.
            unsafe { version.free(&self.memory) };
        }
        for version in super::reclaim::unreached(std::mem::take(self.retired.get_mut())) {
            // SAFETY: retired, in no head, and not freed yet; and nobody has the store any more.
            unsafe { version.free(&self.memory) };
        }
    }
}
