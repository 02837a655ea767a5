//! What a row store does with rows in the pod.

use super::super::range::Range;
use super::super::reclaim::PLAIN;
use super::super::store::Seen;
use super::super::sync::spin;
use super::super::version::{Found, Keys, Kind, Version};
use super::super::{Outcome, RowRef, RowStore, WriteSet};
use super::{Copied, Newest, PodMember, PodWrite, count, of_pod_row, pod_row};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidepool_base::{CommitTs, Error, Result, RowId, SqlState};
use tidepool_pod::words::TupleState;
use tidepool_txn::{NEVER, Standing, Status, Tag, Validation, View, Worker};

/// A row that another host's transaction is to find in the pod. Exhaustive and mutually exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MovedIn {
    /// Under this id other hosts read and write it.
    In(RowId),
    /// A transaction has the row: ask again.
    Busy,
    /// It was changed, or deleted, after the snapshot.
    Newer,
    /// It is not there.
    Gone,
    /// The pod has no place for it: no tuple, no block, or none that is long enough.
    Full,
}

/// A row of another host, as a view sees it. Exhaustive and mutually exclusive.
#[derive(Clone, Copy, Debug)]
pub enum PodRow<'v> {
    Image(&'v [u8]),
    /// The row was put into the pod after the snapshot, or changed more often since than the pod shows.
    Newer,
    /// It has gone home, and may come again under another id.
    Left,
}

/// What a view sees of a tuple.
enum Shown<'v> {
    Image(&'v Copied),
    /// Nothing of what the pod has.
    Beneath,
    Left,
}

impl PodMember {
    /// Whether a view sees a copy; `None` where it is not the newest any more, and was to be.
    fn sees(&self, view: &View, tuple: u32, copied: &Copied) -> Result<Option<bool>> {
        loop {
            let word = copied.begin.load(Ordering::Acquire);
            if word == view.own().word() {
                return Ok(Some(copied.command < view.command()));
            }
            if let Some(sees) = self.transactions.word_is_before(word, view.ts()) {
                return Ok(Some(sees));
            }
            if !self.refresh(tuple, copied)? {
                return Ok(None);
            }
        }
    }

    /// What a view sees of a tuple, of this use of it where one is named.
    fn shown<'v>(&'v self, view: &'v View, tuple: u32, generation: Option<u32>) -> Result<Shown<'v>> {
        'anew: loop {
            let mut copied = match self.newest(view, tuple)? {
                Newest::Copy(copied) => copied,
                Newest::Coming => return Ok(Shown::Beneath),
                Newest::Left => return Ok(Shown::Left),
            };
            if !is_use(tuple, generation, copied) {
                return Ok(Shown::Left);
            }
            loop {
                match self.sees(view, tuple, copied)? {
                    Some(true) => return Ok(Shown::Image(copied)),
                    Some(false) => {}
                    None => continue 'anew,
                }
                match self.older(view, copied)? {
                    Some(older) => copied = older,
                    None => return Ok(Shown::Beneath),
                }
            }
        }
    }
}

impl RowStore {
    /// Has rows of the store come and go in a pod. Once.
    pub fn join(&self, member: &Arc<PodMember>) {
        let set = self.pod.set(Arc::clone(member));
        debug_assert!(set.is_ok());
    }

    pub fn pod(&self) -> Option<&Arc<PodMember>> {
        self.pod.get()
    }

    /// What the view sees of a row whose head says that it is in the pod.
    #[cold]
    pub(in super::super) fn seen_in_pod<'v>(&'v self, view: &'v View, range: &'v Range, position: usize) -> Seen<'v> {
        loop {
            let tuple = match range.head(view, position).map(|head| head.load()) {
                Some(Found::Pod(tuple)) => tuple,
                // It has gone home meanwhile.
                Some(Found::Version(version)) => return self.seen_charging(view, version, 0, |_| ()),
                Some(Found::Null | Found::TakingOut) | None => return Seen::Main,
            };
            // A head that names a tuple is of a store that has joined.
            let Some(member) = self.pod.get() else { return Seen::Main };
            match member.shown(view, tuple, None) {
                Ok(Shown::Image(copied)) => return Seen::Image(&copied.image),
                Ok(Shown::Beneath) => {
                    return match member.base(tuple) {
                        Some(base) => self.seen_charging(view, base, 0, |_| ()),
                        None => Seen::Main,
                    };
                }
                Ok(Shown::Left) => spin(),
                // Remembered, so that nothing more is committed.
                Err(_) => return Seen::Main,
            }
        }
    }

    /// As the view sees it, of a row whose head says that it is in the pod.
    #[cold]
    pub(in super::super) fn read_in_pod<'v>(
        &'v self,
        view: &'v View,
        range: &'v Range,
        position: usize,
    ) -> Option<RowRef<'v>> {
        match self.seen_in_pod(view, range, position) {
            Seen::Image(image) => Some(RowRef::Version(image)),
            Seen::Deleted => None,
            Seen::Main => self.read_main(view, range, position),
        }
    }

    /// The images that any snapshot may see of a row in the pod, or that somebody is about to write, from the newest on, and what
    /// lies beneath, if that is a version.
    pub(in super::super) fn images_in_pod<'v>(
        &'v self,
        view: &'v View,
        tuple: u32,
        take: &mut dyn FnMut(&'v [u8], u64) -> bool,
    ) -> Option<Version> {
        let member = self.pod.get()?;
        if let Ok(Newest::Copy(first)) = member.newest(view, tuple) {
            let mut copied = first;
            loop {
                if !take(&copied.image, copied.begin.load(Ordering::Acquire)) {
                    return None;
                }
                match member.older(view, copied) {
                    Ok(Some(older)) => copied = older,
                    Ok(None) | Err(_) => break,
                }
            }
        }
        member.base(tuple)
    }

    /// A row of another host by its id in the pod.
    pub fn read_pod<'v>(&'v self, view: &'v View, row: RowId) -> Result<PodRow<'v>> {
        self.check_view(view);
        let Some(member) = self.pod.get() else { return Err(no_member()) };
        let (tuple, generation) = of_pod_row(row);
        if tuple >= member.layout.tuples {
            return Ok(PodRow::Left);
        }
        Ok(match member.shown(view, tuple, Some(generation))? {
            Shown::Image(copied) => PodRow::Image(&copied.image),
            Shown::Beneath => PodRow::Newer,
            Shown::Left => PodRow::Left,
        })
    }

    /// Replaces the image of a row of another host, whose keys stay as they are. As [`RowStore::update`]; `Deleted` where
    /// the row has gone home.
    pub fn update_pod(
        self: &Arc<Self>,
        worker: &Worker,
        view: &View,
        writes: &mut WriteSet,
        row: RowId,
        image: &[u8],
    ) -> Result<Outcome> {
        self.check_view(view);
        let (tuple, generation) = of_pod_row(row);
        let written = self.write_in_pod(worker, view, writes, row, (tuple, Some(generation)), Some(image))?;
        Ok(written.unwrap_or(Outcome::Deleted))
    }

    /// Writes a version of a tuple: another image, or the same one again, which locks the row. `None`: the row has gone home.
    pub(in super::super) fn write_in_pod(
        self: &Arc<Self>,
        worker: &Worker,
        view: &View,
        writes: &mut WriteSet,
        row: RowId,
        (tuple, generation): (u32, Option<u32>),
        image: Option<&[u8]>,
    ) -> Result<Option<Outcome>> {
        let Some(member) = self.pod.get() else { return Err(no_member()) };
        if tuple >= member.layout.tuples {
            return Ok(None);
        }
        loop {
            let before = match member.newest(view, tuple)? {
                Newest::Copy(copied) => copied,
                Newest::Coming => {
                    spin();
                    continue;
                }
                Newest::Left => return Ok(None),
            };
            if !is_use(tuple, generation, before) {
                return Ok(None);
            }
            let begin = before.begin.load(Ordering::Acquire);
            let is_own = begin == worker.tag().word();
            match Tag::of_word(begin) {
                _ if is_own && image.is_none() => return Ok(Some(Outcome::Written)),
                _ if is_own && before.command >= view.command() => return Ok(Some(Outcome::SelfModified)),
                _ if is_own => {}
                Some(tag) => match self.transactions.status(tag) {
                    // It is about to stamp, or has: what is older must have a timestamp.
                    Status::Committed(_) => {
                        spin();
                        member.refresh(tuple, before)?;
                        continue;
                    }
                    Status::Gone => {
                        member.refresh(tuple, before)?;
                        continue;
                    }
                    Status::Running | Status::Committing(_) | Status::Aborted => {
                        count(&member.counters.conflicts);
                        return Ok(Some(Outcome::Conflict(tag)));
                    }
                },
                None if begin > view.ts().0 => {
                    return Ok(Some(Outcome::Newer { ts: CommitTs(begin), deleted: false }));
                }
                None => {}
            }
            let word = member.told(member.tuples().load(tuple))?;
            if word != before.word || word.state() != TupleState::Live {
                // Another version, or the home is taking the row out.
                spin();
                continue;
            }
            let image = image.unwrap_or(&before.image);
            if image.len() > member.tuples().row_bytes_max() {
                return Err(Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "row is too long for the pod").with_detail(
                    format!("The pod's blocks have room for {} bytes.", member.tuples().row_bytes_max()),
                ));
            }
            let draft = member.take_block(worker)?;
            let newest = tidepool_pod::tuples::Version {
                begin: tidepool_pod::words::Begin::of_word(begin),
                older: before.older,
                origin: before.origin,
                image: Vec::new(),
            };
            let tag = tidepool_pod::words::Tag::of_word(worker.tag_to_write().word());
            let Some(tag) = tag else { return Err(Error::internal("a transaction's tag is no tag")) };
            let written = match member.told(member.tuples().put(tuple, word, &newest, tag, image, draft))? {
                Ok(written) => written,
                Err(draft) => {
                    member.put_back(draft);
                    continue;
                }
            };
            count(&member.counters.versions_written);
            worker.commit_after(if is_own { CommitTs(0) } else { CommitTs(begin) });
            let after = written.word();
            let copied = Copied {
                word: after,
                known_at: self.transactions.clock().now().0.into(),
                begin: tag.word().into(),
                command: view.writes_as(),
                // As `put` has it.
                older: if is_own { before.older } else { tidepool_pod::memory::Refers::block(word) },
                origin: before.origin,
                image: image.into(),
            };
            member.put_down(tuple, copied);
            writes.wrote_in_pod(self, row, PodWrite { member: Arc::clone(member), tuple, written });
            return Ok(Some(Outcome::Written));
        }
    }

    /// Moves a row of this host's into the pod for a transaction of another that reads as of `snapshot`. `store`: the number that hosts
    /// know the store by.
    pub fn move_in(self: &Arc<Self>, worker: &Worker, row: RowId, store: u32, snapshot: CommitTs) -> Result<MovedIn> {
        let Some(member) = self.pod.get() else { return Err(no_member()) };
        let view = worker.snapshot_now();
        let Some(range) = self.directory.get(row.range()) else { return Ok(MovedIn::Gone) };
        let head = range.head_to_write(&view, row.position())?;
        let mut in_main = Vec::new();
        let (base, begin, image) = match head.load() {
            Found::Pod(tuple) => {
                return Ok(match member.newest(&view, tuple)? {
                    Newest::Copy(copied) => MovedIn::In(pod_row(tuple, copied.origin.generation)),
                    Newest::Coming | Newest::Left => MovedIn::Busy,
                });
            }
            Found::TakingOut => return Ok(MovedIn::Busy),
            Found::Null => match self.read_main(&view, range, row.position()) {
                Some(RowRef::Main { group, position }) => {
                    self.layout().image_in_main(group, position, &mut in_main)?;
                    let upto = range.main(&view).map_or(0, |main| main.upto());
                    (None, upto.max(range.begin.load(Ordering::Acquire)), &in_main[..])
                }
                _ => return Ok(MovedIn::Gone),
            },
            Found::Version(version) => {
                // SAFETY: in the head under the view.
                let header = unsafe { version.header() };
                let begin = header.begin.load(Ordering::Acquire);
                let is_first = header.older().is_none() && self.read_main(&view, range, row.position()).is_none();
                if is_first && header.kind() == Kind::Row {
                    // The row is new: to who does not see that there is none.
                    let sees = self.transactions.word_is_before(begin, snapshot);
                    if sees == Some(false) || begin == NEVER.0 {
                        return Ok(MovedIn::Gone);
                    }
                }
                if Tag::of_word(begin).is_some() || begin == NEVER.0 || header.kind() == Kind::Lock {
                    return Ok(MovedIn::Busy);
                }
                if header.kind() == Kind::Deleted {
                    return Ok(if begin > snapshot.0 { MovedIn::Newer } else { MovedIn::Gone });
                }
                // SAFETY: as above.
                (Some(version), begin, unsafe { version.image() })
            }
        };
        if Tag::of_word(begin).is_some() {
            return Ok(MovedIn::Busy);
        }
        if begin > snapshot.0 {
            return Ok(MovedIn::Newer);
        }
        if image.len() > member.tuples().row_bytes_max() {
            return Ok(MovedIn::Full);
        }
        let Some(tuple) = member.free.lock().pop() else { return Ok(MovedIn::Full) };
        let reserved =
            member.take_block(worker).and_then(|draft| Ok((draft, member.told(member.tuples().reserve(tuple))?)));
        let (draft, moving) = match reserved {
            Ok((draft, Some(moving))) => (draft, moving),
            Ok((draft, None)) => {
                member.put_back(draft);
                return Err(Error::corrupted(format!("tuple {tuple} of the pod is in use and should be free")));
            }
            Err(error) if error.code() == SqlState::OUT_OF_MEMORY => {
                member.free.lock().push(tuple);
                return Ok(MovedIn::Full);
            }
            Err(error) => return Err(error),
        };
        let generation = moving.generation();
        member.set_base(tuple, base);
        let is_placed = head.move_in(base, tuple);
        if is_placed {
            range.mark(row.position());
        }
        // With shared locks the row stays at home: they are in near memory, where other hosts do not look.
        let is_locked = || self.locks.in_the_way(&self.transactions, row, worker.tag(), false).is_some();
        if !is_placed || is_locked() {
            if is_placed {
                head.restore(base);
            }
            member.set_base(tuple, None);
            member.put_back(draft);
            member.told(member.tuples().give_up(moving))?;
            member.free.lock().push(tuple);
            return Ok(MovedIn::Busy);
        }
        member.rows.lock().insert(tuple, (self.me.clone(), row));
        member.told(member.tuples().show(moving, CommitTs(begin), (store, row.0), image, draft))?;
        count(&member.counters.moved_in);
        Ok(MovedIn::In(pod_row(tuple, generation)))
    }

    /// Brings a row of this host's home, if no transaction has it and all snapshots of all hosts see its newest version. False:
    /// not now.
    pub fn move_out(self: &Arc<Self>, worker: &Worker, row: RowId) -> Result<bool> {
        let Some(member) = self.pod.get() else { return Err(no_member()) };
        let view = worker.snapshot_now();
        let Some(range) = self.directory.get(row.range()) else { return Ok(true) };
        let Some(head) = range.head(&view, row.position()) else { return Ok(true) };
        let Found::Pod(tuple) = head.load() else { return Ok(true) };
        let Newest::Copy(newest) = member.newest(&view, tuple)? else { return Ok(false) };
        let mut begin = newest.begin.load(Ordering::Acquire);
        if let Some(tag) = Tag::of_word(begin) {
            if self.transactions.status(tag) != Status::Gone || !member.refresh(tuple, newest)? {
                return Ok(false);
            }
            begin = newest.begin.load(Ordering::Acquire);
            if Tag::of_word(begin).is_some() {
                return Ok(false);
            }
        }
        let base = member.base(tuple);
        let is_unchanged = newest.older.is_none();
        let is_seen_by_all =
            || begin < self.transactions.try_advance_horizon().0.min(self.transactions.horizon_of_all().0);
        if !is_unchanged && !is_seen_by_all() {
            return Ok(false);
        }
        let after = match (is_unchanged, base) {
            (true, base) => base,
            (false, _) => Some(Version::write(
                &self.memory,
                worker.index(),
                begin,
                0,
                (Kind::Row, Keys::Leave),
                None,
                &newest.image,
            )?),
        };
        let moved = member.told(member.tuples().move_out_as(tuple, newest.word, CommitTs(begin), Vec::new()))?;
        let Some(moved) = moved else {
            if let (false, Some(version)) = (is_unchanged, after) {
                // SAFETY: nobody has seen it.
                unsafe { version.free(&self.memory) };
            }
            return Ok(false);
        };
        member.rows.lock().remove(&tuple);
        member.want_home(tuple, false);
        head.restore(after);
        member.set_base(tuple, None);
        let ts = worker.retirement_ts();
        member.retired.lock().push_back((ts.0, moved.retired));
        if let (false, Some(base), Some(me)) = (is_unchanged, base, self.me.upgrade()) {
            // Its keys are those of the version that takes its place.
            self.retire(worker, &(me as _), ts, [base.marked(PLAIN), row.0]);
        }
        member.free.lock().push(tuple);
        count(&member.counters.moved_out);
        Ok(true)
    }

    /// What others made of a row in the pod between a transaction's snapshot and its commit.
    pub(in super::super) fn between_in_pod<'v>(
        &'v self,
        check: &'v Validation<'_>,
        tuple: u32,
        generation: Option<u32>,
    ) -> Result<Between<'v>> {
        let Some(member) = self.pod.get() else { return Err(no_member()) };
        let view = check.view();
        let beneath = |after| {
            let base = if member.layout.home(tuple) == member.host { member.base(tuple) } else { None };
            Ok(Between::Beneath { after, base })
        };
        'anew: loop {
            let mut copied = match member.newest(view, tuple)? {
                Newest::Copy(copied) => copied,
                Newest::Coming => return beneath(None),
                Newest::Left => return Ok(Between::Left),
            };
            if !is_use(tuple, generation, copied) {
                return Ok(Between::Left);
            }
            let mut after: Option<&[u8]> = None;
            loop {
                match check.standing_of(copied.begin.load(Ordering::Acquire)) {
                    // What it replaced was the newest.
                    Some(Standing::Own) => return Ok(Between::Same),
                    Some(Standing::Seen) => {
                        return Ok(match after {
                            None => Between::Same,
                            Some(after) => Between::Changed { before: &copied.image, after },
                        });
                    }
                    Some(Standing::Conflict) => after = after.or(Some(&copied.image)),
                    Some(Standing::Later) => {}
                    None => match member.refresh(tuple, copied)? {
                        true => continue,
                        false => continue 'anew,
                    },
                }
                match member.older(view, copied)? {
                    Some(older) => copied = older,
                    None => return beneath(after),
                }
            }
        }
    }

    /// Whether a row of this host is the same as of a commit of a transaction of another.
    pub fn holds_for_another(&self, check: &Validation<'_>, row: RowId) -> Result<bool> {
        let Some(range) = self.directory.get(row.range()) else { return Ok(true) };
        let mut found = range.head(check.view(), row.position()).map(|head| head.load());
        if let Some(Found::Pod(tuple)) = found {
            match self.between_in_pod(check, tuple, None)? {
                Between::Same => return Ok(true),
                // What it read is beneath, and only what comes after its commit is above.
                Between::Beneath { after: None, base } => found = base.map(Found::Version),
                Between::Beneath { .. } | Between::Changed { .. } | Between::Left => return Ok(false),
            }
        }
        while let Some(Found::Version(version)) = found {
            // SAFETY: from a head under the view, and then from versions that are not decided or only lock the row: see the
            // module above.
            let header = unsafe { version.header() };
            if header.kind() != Kind::Lock {
                match check.standing(&header.begin) {
                    Standing::Own | Standing::Seen => return Ok(true),
                    Standing::Conflict => return Ok(false),
                    // What is beneath one that this host's view sees may be gone.
                    Standing::Later if Tag::of_word(header.begin.load(Ordering::Acquire)).is_none() => {
                        return Ok(false);
                    }
                    Standing::Later => {}
                }
            }
            found = header.older().map(Found::Version);
        }
        Ok(check.standing(&range.begin) != Standing::Conflict)
    }

    /// Whether a row of another host that was read is the same as of the commit.
    pub(in super::super) fn holds_elsewhere(&self, check: &Validation<'_>, row: RowId) -> Result<bool> {
        let (tuple, generation) = of_pod_row(row);
        // One that has gone home may have been changed there.
        Ok(matches!(self.between_in_pod(check, tuple, Some(generation))?, Between::Same))
    }
}

/// What others made of a row in the pod between a snapshot and a commit. Exhaustive and mutually exclusive.
pub(in super::super) enum Between<'v> {
    Same,
    Changed {
        before: &'v [u8],
        after: &'v [u8],
    },
    /// What the snapshot sees is beneath, in this host's memory.
    Beneath {
        after: Option<&'v [u8]>,
        base: Option<Version>,
    },
    /// The row has gone home.
    Left,
}

/// Whether a copy is of the use of its tuple that a row id names, if one does.
fn is_use(tuple: u32, generation: Option<u32>, copied: &Copied) -> bool {
    generation.is_none_or(|generation| pod_row(tuple, generation) == pod_row(tuple, copied.origin.generation))
}

fn no_member() -> Error {
    Error::internal("rows of a table that is in no pod are looked for in one")
}
