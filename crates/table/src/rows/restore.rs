//! Making a store again of what was kept of it: main, rows of a checkpoint, rows of a log.
//!
//! Rows come in any order. Of each the newest stays, by its timestamp; deletions stay until the end, as something older
//! may come after them. Nobody else uses the store meanwhile.

use super::RowStore;
use super::page::PAGE_HEADS;
use super::patch::Patch;
use super::range::{MainPart, Range, WORDS};
use super::version::{Found, Keys, Kind, Version};
use crate::RowGroup;
use crate::bits::words_for;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidepool_base::{CommitTs, Error, Result, RowId};
use tidepool_txn::{View, Worker};

/// What came of a change of a row that is restored. Exhaustive and mutually exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Patched {
    Done,
    /// What it is a change of is not there yet.
    Early,
}

/// No store skips so many ranges.
pub(super) const GAP_MAX: u64 = 1 << 24;

fn gone_and_not_there() -> Error {
    Error::corrupted("a row is gone that is not there")
}

impl RowStore {
    /// Makes `group` the main of a range, but for the positions in `dead`. XX001 when the range has one already.
    pub fn restore_main(&self, worker: &Worker, number: u64, group: Arc<RowGroup>, dead: &[usize]) -> Result<()> {
        let mut bits = Vec::new();
        if !dead.is_empty() {
            bits.resize(words_for(group.rows()), 0);
        }
        for position in dead {
            *bits.get_mut(position / 64).ok_or_else(gone_and_not_there)? |= 1u64 << (position % 64);
        }
        self.restore_main_made_at(worker, number, group, bits, CommitTs(0))
    }

    /// As `restore_main`, of a main that a merge with this horizon made: what a log says of earlier ones is passed over. `dead` has a
    /// bit for each position that is no row, as far as there are such.
    pub fn restore_main_made_at(
        &self,
        worker: &Worker,
        number: u64,
        group: Arc<RowGroup>,
        mut dead: Vec<u64>,
        made_at: CommitTs,
    ) -> Result<()> {
        let range = self.range_to_restore(number)?;
        if range.main(&worker.snapshot_now()).is_some() {
            return Err(Error::corrupted(format!("range {number} has two row groups")));
        }
        let words = words_for(group.rows());
        if dead.len() > words || group.rows() > RowId::RANGE_ROWS {
            return Err(gone_and_not_there());
        }
        if !dead.is_empty() {
            dead.resize(words, 0);
        }
        range.replace_main(Some(MainPart::restored(group, dead, made_at.0)), worker);
        Ok(())
    }

    /// A row as of `ts`, or that it was deleted then. Does nothing if something newer is there. XX001 when the image is not
    /// one of this table's, 53200 as `insert`.
    pub fn restore_row(&self, view: &View, row: RowId, image: Option<&[u8]>, ts: CommitTs) -> Result<()> {
        self.check_view(view);
        if let Some(image) = image {
            self.layout().check(image)?;
        }
        let range = self.range_to_restore(row.range())?;
        let head = range.head_to_write(view, row.position())?;
        let before = match head.load() {
            Found::Version(version) => Some(version),
            Found::Null | Found::TakingOut => None,
            Found::Pod(_) => return Err(Error::internal("a row is restored that is in the pod")),
        };
        if let Some(before) = before {
            // SAFETY: in the head, and nobody else uses the store.
            let newer = unsafe { before.header() }.begin.load(Ordering::Relaxed) > ts.0;
            if newer {
                return Ok(());
            }
        }
        let kind = if image.is_some() { Kind::Row } else { Kind::Deleted };
        let version = Version::write(&self.memory, 0, ts.0, 0, (kind, Keys::Change), None, image.unwrap_or(&[]))?;
        if !head.replace(before, version) {
            return Err(Error::internal("a row is written while the table is restored"));
        }
        range.mark(row.position());
        if let Some(before) = before {
            // SAFETY: out of reach since, and nobody else uses the store.
            unsafe { before.free(&self.memory) };
        }
        Ok(())
    }

    /// A row as a change of what it was makes it, as of `ts`. What the store has of a checkpoint is as of `checkpoint`, or in main. Does
    /// nothing if something newer is there. Errors as of `restore_row`; XX001 also when the row is not what the change is of.
    pub fn restore_patch(
        &self,
        view: &View,
        row: RowId,
        patch: &Patch<'_>,
        ts: CommitTs,
        checkpoint: CommitTs,
    ) -> Result<Patched> {
        self.check_view(view);
        let of_checkpoint = patch.base <= checkpoint;
        let range = self.range_to_restore(row.range())?;
        let found = range.head(view, row.position()).map(|head| head.load());
        let mut image = Vec::new();
        if let Some(Found::Version(version)) = found {
            // SAFETY: in the head, and nobody else uses the store.
            let header = unsafe { version.header() };
            let begin = CommitTs(header.begin.load(Ordering::Relaxed));
            // Of the same transaction it is a later change.
            if begin >= ts {
                return Ok(Patched::Done);
            }
            if begin != patch.base && !(of_checkpoint && begin == checkpoint) {
                return Ok(Patched::Early);
            }
            if header.kind() != Kind::Row {
                return Err(Error::corrupted("a row was changed that is gone"));
            }
            // SAFETY: as above.
            patch.apply(unsafe { version.image() }, &mut image)?;
        } else {
            let main = range.main(view).filter(|main| of_checkpoint && main.has(row.position()));
            let Some(main) = main else { return Ok(Patched::Early) };
            let mut old = Vec::new();
            self.layout().image_in_main(&main.group, row.position(), &mut old)?;
            patch.apply(&old, &mut image)?;
        }
        self.restore_row(view, row, Some(&image), ts)?;
        Ok(Patched::Done)
    }

    /// A row that has no id yet: of a folder that kept none.
    pub fn restore_new(&self, view: &View, image: &[u8], ts: CommitTs) -> Result<()> {
        let row = self.take_id(0);
        self.restore_row(view, row, Some(image), ts)
    }

    /// Takes out deletions that nothing is beneath. New rows go to the last range's free end.
    pub fn end_restoring(&self, view: &View) {
        self.check_view(view);
        let mut free = None;
        for number in 0..self.directory.len() {
            let Some(range) = self.directory.get(number) else { break };
            let main = range.main(view);
            let mut end = 0;
            let words = if range.has_marks() { WORDS } else { 0 };
            for word in 0..words {
                let mut headed = range.headed(word);
                while headed != 0 {
                    let position = word * 64 + headed.trailing_zeros() as usize;
                    headed &= headed - 1;
                    end = position + 1;
                    let Some(Found::Version(version)) = range.head(view, position).map(|head| head.load()) else {
                        continue;
                    };
                    // SAFETY: in the head, and nobody else uses the store.
                    let deleted = unsafe { version.header() }.kind() == Kind::Deleted;
                    if deleted
                        && !main.is_some_and(|main| main.has(position))
                        && range.take_out(view, position, version)
                    {
                        // SAFETY: out of reach since, and nobody else uses the store.
                        unsafe { version.free(&self.memory) };
                    }
                }
            }
            let end = end.next_multiple_of(PAGE_HEADS);
            free = (main.is_none() && end < RowId::RANGE_ROWS).then(|| RowId::new(number, end));
        }
        // What was taken while restoring came from ranges behind all that were there.
        self.seal();
        *self.open.lock() = free;
    }

    fn range_to_restore(&self, number: u64) -> Result<&Range> {
        if number >= self.directory.len() + GAP_MAX {
            return Err(Error::corrupted(format!("a row is in range {number}, of {}", self.directory.len())));
        }
        while self.directory.len() <= number {
            self.add_range(Range::new(self.heads()));
        }
        self.directory.get(number).ok_or_else(|| Error::internal(format!("there is no range {number}")))
    }
}
