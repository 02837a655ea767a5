//! File `SEQUENCES`: how far each sequence's values may have been given. Replaced as a whole.
//!
//! The first line is `TIDEPOOL SEQUENCES <format> <xxh3 of the rest, hex>`; the rest is JSON, position id to position. What
//! it says of a sequence counts over the manifest, which is not written as often.

use super::{Storage, in_file};
use crate::sequence::Position;
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::Path;
use tidepool_base::{Error, Result, SqlState};
use tidepool_log::files::Files;
use xxhash_rust::xxh3::xxh3_64;

pub(super) const NAME: &str = "SEQUENCES";
const FIRST_WORDS: &str = "TIDEPOOL SEQUENCES ";
const FORMAT: u32 = 1;

pub(super) fn read(folder: &Path, files: &dyn Files) -> Result<BTreeMap<u32, Position>> {
    let path = folder.join(NAME);
    match files.read(&path) {
        Ok(bytes) => from_bytes(&bytes).map_err(|error| in_file(&path, &error)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(Error::io(format_args!("read file \"{}\"", path.display()), &error)),
    }
}

impl Storage {
    /// What the file says of a sequence.
    pub fn position(&self, id: u32) -> Option<Position> {
        self.positions.lock().get(&id).copied()
    }

    /// Forgets all but the sequences that there are: what others left would be taken for that of a later one.
    pub fn keep_positions(&self, known: impl Iterator<Item = u32>) {
        let known: BTreeSet<u32> = known.collect();
        self.positions.lock().retain(|id, _| known.contains(id));
    }

    /// Makes it durable that values up to `position` may have been given.
    pub fn write_position(&self, id: u32, position: Position) -> Result<()> {
        self.write_positions(&[(id, position)])
    }

    pub fn write_positions(&self, changed: &[(u32, Position)]) -> Result<()> {
        let mut positions = self.positions.lock();
        let mut next = positions.clone();
        next.extend(changed.iter().copied());
        if *positions == next {
            return Ok(());
        }
        self.replace(&self.folder.join(NAME), &[&to_bytes(&next)?])?;
        self.files
            .sync_folder(&self.folder)
            .map_err(|error| Error::io(format_args!("sync folder \"{}\"", self.folder.display()), &error))?;
        *positions = next;
        Ok(())
    }
}

pub(super) fn to_bytes(positions: &BTreeMap<u32, Position>) -> Result<Vec<u8>> {
    let body = serde_json::to_string(positions)
        .map_err(|error| Error::internal(format!("the positions of sequences cannot be written: {error}")))?;
    let body = format!("{body}\n");
    Ok(format!("{FIRST_WORDS}{FORMAT} {:016x}\n{body}", xxh3_64(body.as_bytes())).into_bytes())
}

fn from_bytes(bytes: &[u8]) -> Result<BTreeMap<u32, Position>> {
    let damaged = |what: &str| Error::corrupted(what.to_owned());
    let line_end = memchr::memchr(b'\n', bytes).ok_or_else(|| damaged("it is truncated"))?;
    let line = std::str::from_utf8(&bytes[..line_end]).map_err(|_| damaged("it is damaged"))?;
    let words = line.strip_prefix(FIRST_WORDS).and_then(|rest| rest.split_once(' '));
    let (format, checksum) = words.ok_or_else(|| damaged("it is not a file of Tidepool's"))?;
    let format: u32 = format.parse().map_err(|_| damaged("it is damaged"))?;
    if format != FORMAT {
        return Err(Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("it has format {format}, and this Tidepool reads {FORMAT}"),
        ));
    }
    let body = &bytes[line_end + 1..];
    if u64::from_str_radix(checksum, 16).ok() != Some(xxh3_64(body)) {
        return Err(damaged("its checksum does not match its contents"));
    }
    serde_json::from_slice(body).map_err(|error| damaged(&format!("it cannot be understood: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_survive_and_damage_shows() {
        let positions = BTreeMap::from([
            (16_384, Position { last: i64::MIN, called: true }),
            (16_390, Position { last: 7, called: false }),
        ]);
        let bytes = to_bytes(&positions).unwrap();
        assert_eq!(from_bytes(&bytes).unwrap(), positions);
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            assert!(from_bytes(&flipped).is_err(), "byte {at}");
            assert!(from_bytes(&bytes[..at]).is_err(), "{at} bytes");
        }
    }
}
