//! Room for records: segments that are ready to be written, and who may write how much.
//!
//! A commit takes its room before it is decided, so that writing it cannot fail for the want of it. Appenders take *leases*
//! of many records at a time: only that, and what a leader does once a round, is under this lock.
//!
//! Invariant: `leased_bytes <= free_bytes`. What is leased is what appenders hold, what they have appended and is not
//! written, and what the leader may fill up pages with. A frame counts with all that it can take with it
//! ([`frame_cost`]); what is lost at a segment's end is left out of `free_bytes` from the start ([`SEAM_BYTES`]).

use crate::device::{LogDevice, LogSegment};
use crate::format::{
    BLOCK_ALIGNMENT, BLOCK_HEADER_BYTES, FRAME_HEADER_WORDS, FRAME_PAYLOAD_MAX, MARK_BYTES, SEGMENT_HEADER_BYTES,
};
use crate::recovery::Written;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use tidepool_base::CommitTs;

/// What a frame of so many words takes of a segment at most: it may be alone in its block, with a mark of the time.
pub(crate) const fn frame_cost(words: usize) -> u64 {
    (words * 8 + BLOCK_HEADER_BYTES + MARK_BYTES + BLOCK_ALIGNMENT) as u64
}

/// At most so much is left at the end of a segment, where the next frame does not fit.
pub(crate) const SEAM_BYTES: usize =
    FRAME_PAYLOAD_MAX + (FRAME_HEADER_WORDS + 1) * 8 + BLOCK_HEADER_BYTES + MARK_BYTES + BLOCK_ALIGNMENT;

/// What can surely be used of a segment, from `offset` on.
pub(crate) fn usable_bytes(device: &dyn LogDevice, offset: usize) -> u64 {
    device.segment_bytes().saturating_sub(offset + SEAM_BYTES) as u64
}

/// A lock that the models leave out, whatever became of the thread that held it last.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[derive(Debug)]
pub(crate) struct Room {
    /// Left in the segment that is being written.
    pub current_bytes: u64,
    /// Segments that are not begun, in the order in which they will be.
    pub prepared: VecDeque<(u64, Arc<dyn LogSegment>)>,
    pub leased_bytes: u64,
    /// Segments that are full, oldest first.
    pub written: VecDeque<Written>,
    /// Segments from this one on hold parts of records that are not complete. `None`: no segment does.
    pub pinned_from: Option<u64>,
    /// Of the next segment to be prepared.
    pub number_next: u64,
    /// Of the segment that is being written, 0 before the first.
    pub number_current: u64,
    /// There is a block in that, for good.
    pub current_is_begun: bool,
    /// The last checkpoint has everything up to here.
    pub checkpoint: CommitTs,
}

impl Room {
    pub fn free_bytes(&self, device: &dyn LogDevice) -> u64 {
        self.current_bytes + self.prepared.len() as u64 * usable_bytes(device, SEGMENT_HEADER_BYTES)
    }

    /// Leases `bytes`, and up to `spare` more. `None`: there is no such room.
    pub fn lease(&mut self, device: &dyn LogDevice, bytes: u64, spare: u64) -> Option<u64> {
        let left = self.free_bytes(device).saturating_sub(self.leased_bytes);
        // No more than a share of what is left: others want some too.
        let leased = bytes + spare.min(left.saturating_sub(bytes) / 4);
        (bytes <= left).then(|| {
            self.leased_bytes += leased;
            leased
        })
    }

    /// Segments that there are.
    pub fn segments(&self) -> u64 {
        (self.written.len() + self.prepared.len()) as u64 + u64::from(self.number_current > 0)
    }

    /// Segments that a checkpoint would make superfluous, and the one that is written. Those that an archive keeps are none.
    pub fn wanting_segments(&self) -> u64 {
        let full = self.written.iter().filter(|written| written.ts_max > self.checkpoint).count() as u64;
        full + u64::from(self.number_current > 0)
    }

    /// Segments that are full and that something follows. The last is none until the next segment has a block, which goes on
    /// from there: until then a reader finds the log's end in it.
    fn followed(&self) -> usize {
        match self.number_current > 0 && self.current_is_begun {
            true => self.written.len(),
            false => self.written.len().saturating_sub(1),
        }
    }

    /// The first segment that a reader needs who has everything up to `ts`. 0: no segment has a block yet.
    pub fn needed_from(&self, ts: CommitTs) -> u64 {
        let last = self.superfluous_to(ts).unwrap_or(0);
        let needed = self.written.iter().map(|written| written.number).find(|number| *number > last);
        let current = Some(self.number_current).filter(|number| *number > 0 && self.current_is_begun);
        needed.or(current).unwrap_or(0)
    }

    /// The last of the segments that are superfluous, from the oldest on.
    pub fn superfluous_to(&self, ts: CommitTs) -> Option<u64> {
        let is_pinned = |number: u64| self.pinned_from.is_some_and(|pinned| pinned <= number);
        let followed = self.written.iter().take(self.followed());
        let superfluous = followed.take_while(|one| one.ts_max <= ts && !is_pinned(one.number));
        superfluous.last().map(|one| one.number)
    }

    /// The oldest segment, if it is full and nothing above `ts` has bytes in it.
    pub fn superfluous(&self, ts: CommitTs) -> Option<u64> {
        let oldest = self.written.front().filter(|_| self.followed() > 0)?;
        let is_pinned = self.pinned_from.is_some_and(|pinned| pinned <= oldest.number);
        (oldest.ts_max <= ts && !is_pinned).then_some(oldest.number)
    }
}
