//! Which segments there have to be: a note on the device, beside the segments.
//!
//! The end of a log cannot be told from a log whose last segments are missing, were emptied, or were replaced by ones that were never
//! begun. So the device has a note of two numbers: *first*, below which segments may have been given up, and *begun*, up to which
//! they were begun. From *first* to *begun* all have to be there, each with its header. A reader that does not get to *begun*
//! has not found the log's end.
//!
//! When a note is made durable:
//!
//! * of a segment that is begun, after its first bytes are durable and before anybody is told that a commit in it is;
//! * of segments that are given up, before the first of them goes.
//!
//! So a crash at any point leaves a note that the segments satisfy. Segments are begun rarely: a commit costs nothing for it.
//!
//! A note is a line of 64 bytes. There are two lines, written by turns, so that a torn write leaves the one before; of two that
//! are valid the one with the greater turn counts.
//!
//! | offset | bytes | meaning |
//! | --- | --- | --- |
//! | 0 | 8 | checksum of bytes 8 to 63, as in `format.rs` |
//! | 8 | 8 | `TIDESEGS` |
//! | 16 | 8 | turn |
//! | 24 | 8 | first |
//! | 32 | 8 | begun, 0 where no segment was |
//! | 40 | 24 | zero |
//!
//! A log of an earlier release has no note until it is opened for writing.

use crate::device::{LogDevice, NOTE_BYTES};
use crate::format::{DatabaseIdentity, checksum_of, get, put};
use crate::room::lock;
use std::sync::{Arc, Mutex};
use tidepool_base::{Result, crash_point};

const MAGIC: [u8; 8] = *b"TIDESEGS";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Note {
    turn: u64,
    pub first: u64,
    pub begun: u64,
}

impl Note {
    fn to_bytes(self, identity: DatabaseIdentity) -> [u8; NOTE_BYTES] {
        let mut bytes = [0; NOTE_BYTES];
        bytes[8..16].copy_from_slice(&MAGIC);
        put(&mut bytes, 16, self.turn);
        put(&mut bytes, 24, self.first);
        put(&mut bytes, 32, self.begun);
        let checksum = checksum_of(&bytes[8..], identity);
        put(&mut bytes, 0, checksum);
        bytes
    }

    /// `None`: it is damaged, or another database's.
    fn read(bytes: &[u8; NOTE_BYTES], identity: DatabaseIdentity) -> Option<Note> {
        let note = Note { turn: get(bytes, 16), first: get(bytes, 24), begun: get(bytes, 32) };
        (*bytes == note.to_bytes(identity)).then_some(note)
    }

    /// The note that a device has. `None`: it has none.
    pub fn of(device: &dyn LogDevice, identity: DatabaseIdentity) -> Result<Option<Note>> {
        let lines = device.notes()?;
        Ok(lines.iter().filter_map(|line| Note::read(line, identity)).max_by_key(|note| note.turn))
    }

    /// The first of the segments that there have to be.
    pub fn required(&self) -> Option<u64> {
        (self.begun > 0).then_some(self.first.min(self.begun))
    }
}

/// The note of a log that is open. Taken by the leader of a round and by whoever recycles, within their own locks.
#[derive(Debug)]
pub(crate) struct Notes {
    device: Arc<dyn LogDevice>,
    identity: DatabaseIdentity,
    now: Mutex<Note>,
}

impl Notes {
    /// Notes what is there when a log is opened, whatever was noted before.
    pub fn start(device: Arc<dyn LogDevice>, identity: DatabaseIdentity, first: u64, begun: u64) -> Result<Notes> {
        let before = Note::of(&*device, identity)?.unwrap_or_default();
        let notes = Notes { device, identity, now: Mutex::new(before) };
        notes.write(&mut lock(&notes.now), |note| (note.first, note.begun) = (first, begun))?;
        Ok(notes)
    }

    fn write(&self, now: &mut Note, change: impl FnOnce(&mut Note)) -> Result<()> {
        let mut next = Note { turn: now.turn + 1, ..*now };
        change(&mut next);
        self.device.write_note(next.turn % 2 == 1, &next.to_bytes(self.identity))?;
        *now = next;
        crash_point("log.noted");
        Ok(())
    }

    /// A segment is begun, durably.
    pub fn begun(&self, number: u64) -> Result<()> {
        let mut now = lock(&self.now);
        if now.begun >= number {
            return Ok(());
        }
        self.write(&mut now, |note| {
            if note.begun == 0 {
                note.first = number;
            }
            note.begun = number;
        })
    }

    /// Segments below `first` are about to go.
    pub fn given_up_below(&self, first: u64) -> Result<()> {
        let mut now = lock(&self.now);
        if now.first >= first {
            return Ok(());
        }
        self.write(&mut now, |note| note.first = first)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_read_as_it_was_written_and_damage_shows() {
        let (own, other) = (DatabaseIdentity([1; 16]), DatabaseIdentity([2; 16]));
        let note = Note { turn: 7, first: 3, begun: u64::MAX >> 32 };
        let bytes = note.to_bytes(own);
        assert_eq!(Note::read(&bytes, own), Some(note));
        assert_eq!(Note::read(&bytes, other), None);
        assert_eq!(Note::read(&[0; NOTE_BYTES], own), None);
        for bit in 0..NOTE_BYTES * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Note::read(&flipped, own), None, "bit {bit}");
        }
    }
}
