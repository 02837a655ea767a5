//! Insertion into an index whose keys are to be unique.
//!
//! Entries of one key may belong to several rows all the same: of versions that are gone for most snapshots but not for
//! all, of rows that are deleted but not yet purged. Which of them is in the way only the table knows.
//!
//! Whoever inserts a key holds the leaf in which the key's first entry is, or would be. So of two that insert the same key
//! one comes after the other, also when the key's entries go on in further leaves, which are then locked one by one.

use crate::finger::Fingers;
use crate::lock::Restart;
use crate::node::{Side, Target, Words};
use crate::pace::Touched;
use crate::tree::{Attempt, Index, Locked, Wait, check_key};
use tidepool_base::{Result, RowId};
use tidepool_txn::View;

/// What stands between a new entry and an old one of the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: the old row no longer has the key, and will not have it again.
    Free,
    /// The old row has the key.
    Taken,
    /// That is for a transaction to decide that is still running.
    Wait,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UniqueInsert {
    Inserted,
    /// This very entry was there already, and no other is in the way.
    Present,
    /// This row has the key.
    Taken(RowId),
    /// Whether this row has the key is not decided yet.
    Wait(RowId),
}

impl Index {
    /// Puts an entry in unless `judge` finds another one of the same key in the way.
    ///
    /// `judge` is asked about each row with an entry of this key but `row` itself, in order, until it answers other than
    /// `Free`; perhaps anew, if the leaf has to be split. It runs under the leaf's lock: it must be quick, wait for nobody and
    /// leave this index alone. 54000 and 53200 as `insert`.
    pub fn insert_unique(
        &self,
        view: &View,
        key: &[u8],
        row: RowId,
        judge: impl FnMut(RowId) -> Verdict,
    ) -> Result<UniqueInsert> {
        self.insert_unique_near(view, key, row, &mut Fingers::default(), judge)
    }

    /// As `insert_unique`, of a thread that puts several in, which is quicker where they come in order.
    pub fn insert_unique_near(
        &self,
        view: &View,
        key: &[u8],
        row: RowId,
        fingers: &mut Fingers,
        mut judge: impl FnMut(RowId) -> Verdict,
    ) -> Result<UniqueInsert> {
        check_key(key)?;
        let target = Target::before(key, row.0);
        loop {
            match self.retry(view, None, |touched| self.try_insert_unique(&target, fingers, &mut judge, touched)) {
                Attempt::Done(outcome) => return Ok(outcome),
                Attempt::Full(words) => self.make_room(&target, 0, words)?,
            }
        }
    }

    fn try_insert_unique(
        &self,
        target: &Target<'_>,
        fingers: &mut Fingers,
        judge: &mut impl FnMut(RowId) -> Verdict,
        touched: &mut Touched,
    ) -> std::result::Result<Attempt<UniqueInsert>, Restart> {
        let first_of_key = Target::first_of(target.key);
        let (node, version, mut start) = self.leaf_to_write(&first_of_key, fingers, touched)?;
        let mut leaf = Locked::new(node, version)?;
        touched.write();
        // Kept until the end: the first leaf, and the one that the entry belongs into.
        let mut first = None;
        let mut place: Option<(Option<Locked>, usize)> = None;
        let mut is_present = false;
        loop {
            let node = leaf.node();
            let shape = node.shape();
            let rest = target.key.get(shape.prefix_len()..).unwrap_or(&[]);
            let mut position = start;
            while position < shape.count() && node.has_key(position, rest) {
                let row = RowId(node.row(position));
                if row.0 == target.row {
                    is_present = true;
                } else {
                    match judge(row) {
                        Verdict::Free => {}
                        Verdict::Taken => return Ok(Attempt::Done(UniqueInsert::Taken(row))),
                        Verdict::Wait => return Ok(Attempt::Done(UniqueInsert::Wait(row))),
                    }
                }
                position += 1;
            }
            let next_row = if position == shape.count() { node.upper_fence_has_key(target.key) } else { None };
            let is_place = place.is_none() && next_row.is_none_or(|next_row| target.row < next_row);
            if is_place {
                // The key's first entry goes where one would have been.
                let at = if position == start { start } else { node.position(shape, target) };
                place = Some((None, at));
            }
            let Some(next_row) = next_row else { break };
            let from = Target::before(target.key, next_row);
            let spot = self.descend(&from, Side::Right, 0, Wait::No, touched)?;
            let next = Locked::new(spot.node, spot.version)?;
            start = next.node().position(next.node().shape(), &from);
            let before = std::mem::replace(&mut leaf, next);
            match &mut place {
                Some((held @ None, _)) => *held = Some(before),
                _ if first.is_none() => first = Some(before),
                // Neither the first nor the place: whoever inserts this key waits for the first.
                _ => drop(before),
            }
        }
        if is_present {
            return Ok(Attempt::Done(UniqueInsert::Present));
        }
        let (held, position) = place.unwrap_or((None, 0));
        let mut leaf = held.unwrap_or(leaf);
        Ok(match leaf.put_row(position, target) {
            Ok(()) => Attempt::Done(UniqueInsert::Inserted),
            Err(words) => Attempt::Full(words),
        })
    }
}
