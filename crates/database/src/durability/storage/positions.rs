//! File `SEQUENCES`: how far each sequence's values may have been given. Replaced as a whole.
//!
//! The first line is `TIDEPOOL SEQUENCES <format> <xxh3 of the rest, hex>`; the rest is JSON: how often the file was written, and
//! position id to position. (Format 1, of earlier releases, has only the latter.) What it says of a sequence counts over the
//! manifest, which is not written as often.
//!
//! The manifest says how often the file had been written: one that is missing, or was written less often, is not the one
//! that the manifest knows. To go on without it would give values twice.

use super::{Manifest, Storage, in_file};
use crate::catalog::sequence::{KeptPositions, Position};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::Path;
use tidepool_base::{Error, Result, SqlState};
use tidepool_log::files::Files;
use xxhash_rust::xxh3::xxh3_64;

pub(super) const NAME: &str = "SEQUENCES";
const FIRST_WORDS: &str = "TIDEPOOL SEQUENCES ";
const FORMAT: u32 = 2;
/// Without the number of times.
const FORMAT_BEFORE: u32 = 1;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Positions {
    /// How often the file was written; 0 where it never was by this release.
    written: u64,
    by_id: BTreeMap<u32, Position>,
}

impl Positions {
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.by_id.keys().copied()
    }
}

/// XX001 when it is damaged, or not the one that the manifest knows.
pub(super) fn read(folder: &Path, files: &dyn Files, manifest: &Manifest) -> Result<Positions> {
    let path = folder.join(NAME);
    let positions = match files.read(&path) {
        Ok(bytes) => from_bytes(&bytes).map_err(|error| in_file(&path, &error))?,
        Err(error) if error.kind() == ErrorKind::NotFound && manifest.positions_written == 0 => Positions::default(),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(advised(Error::corrupted(format!("file \"{}\" is missing", path.display()))));
        }
        Err(error) => return Err(Error::io(format_args!("read file \"{}\"", path.display()), &error)),
    };
    if positions.written < manifest.positions_written {
        return Err(advised(Error::corrupted(format!("file \"{}\" is older than the manifest", path.display()))));
    }
    Ok(positions)
}

fn advised(error: Error) -> Error {
    error
        .with_detail("It says how far values of sequences were given. Without it they would be given again.")
        .with_hint(
            "Bring it back; or have sequences go on where the last checkpoint had them, with tidepool reset-sequences.",
        )
}

/// Makes the file of a folder that no process uses anew, of what the manifest says. 55000 when it can be read.
pub(super) fn reset(folder: &Path, files: &dyn Files, manifest: &Manifest) -> Result<()> {
    match read(folder, files, manifest) {
        Err(error) if error.code() == SqlState::DATA_CORRUPTED => {}
        Err(error) => return Err(error),
        Ok(_) => {
            let message = format!("file \"{}\" can be read, and is not given up", folder.join(NAME).display());
            return Err(Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message));
        }
    }
    let by_id = manifest.sequences.iter().map(|saved| (saved.def.position_id, saved.position)).collect();
    let positions = Positions { written: manifest.positions_written + 1, by_id };
    let (path, new) = (folder.join(NAME), folder.join(format!("{NAME}.new")));
    let failed = |error: std::io::Error| Error::io(format_args!("write file \"{}\"", path.display()), &error);
    super::files::write(files, &new, &[&to_bytes(&positions)?]).map_err(failed)?;
    files.rename(&new, &path).map_err(failed)?;
    files.sync_folder(folder).map_err(failed)
}

impl KeptPositions for Storage {
    fn write_position(&self, id: u32, position: Position) -> Result<()> {
        self.write_positions(&[(id, position)])
    }
}

impl Storage {
    /// What the file says of a sequence.
    pub fn position(&self, id: u32) -> Option<Position> {
        self.positions.lock().by_id.get(&id).copied()
    }

    /// Forgets all but the sequences that there are: what others left would be taken for that of a later one.
    pub fn keep_positions(&self, known: impl Iterator<Item = u32>) {
        let known: BTreeSet<u32> = known.collect();
        self.positions.lock().by_id.retain(|id, _| known.contains(id));
    }

    /// How often the file was written: for a manifest that is about to be.
    pub(super) fn positions_written(&self) -> u64 {
        self.positions.lock().written
    }

    /// Makes the file of a folder that has none yet, or of an earlier release, before a manifest says that there is one.
    pub fn make_positions_file(&self) -> Result<()> {
        let mut positions = self.positions.lock();
        if positions.written > 0 {
            return Ok(());
        }
        self.replace_positions(&mut positions, |_| ())
    }

    pub fn write_positions(&self, changed: &[(u32, Position)]) -> Result<()> {
        let mut positions = self.positions.lock();
        if changed.iter().all(|(id, position)| positions.by_id.get(id) == Some(position)) {
            return Ok(());
        }
        self.replace_positions(&mut positions, |by_id| by_id.extend(changed.iter().copied()))
    }

    /// Durably. When it fails nobody knows which of the two a restart finds: it is as if this one had not been written.
    fn replace_positions(
        &self,
        positions: &mut Positions,
        change: impl FnOnce(&mut BTreeMap<u32, Position>),
    ) -> Result<()> {
        let mut next = Positions { written: positions.written + 1, by_id: positions.by_id.clone() };
        change(&mut next.by_id);
        self.replace(&self.folder.join(NAME), &[&to_bytes(&next)?])?;
        self.files
            .sync_folder(&self.folder)
            .map_err(|error| Error::io(format_args!("sync folder \"{}\"", self.folder.display()), &error))?;
        *positions = next;
        Ok(())
    }
}

pub(super) fn to_bytes(positions: &Positions) -> Result<Vec<u8>> {
    let body = serde_json::to_string(positions)
        .map_err(|error| Error::internal(format!("the positions of sequences cannot be written: {error}")))?;
    let body = format!("{body}\n");
    Ok(format!("{FIRST_WORDS}{FORMAT} {:016x}\n{body}", xxh3_64(body.as_bytes())).into_bytes())
}

fn from_bytes(bytes: &[u8]) -> Result<Positions> {
    let damaged = |what: &str| Error::corrupted(what.to_owned());
    let line_end = memchr::memchr(b'\n', bytes).ok_or_else(|| damaged("it is truncated"))?;
    let line = std::str::from_utf8(&bytes[..line_end]).map_err(|_| damaged("it is damaged"))?;
    let words = line.strip_prefix(FIRST_WORDS).and_then(|rest| rest.split_once(' '));
    let (format, checksum) = words.ok_or_else(|| damaged("it is not a file of Tidepool's"))?;
    let format: u32 = format.parse().map_err(|_| damaged("it is damaged"))?;
    if ![FORMAT, FORMAT_BEFORE].contains(&format) {
        return Err(Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("it has format {format}, and this Tidepool reads {FORMAT}"),
        ));
    }
    let body = &bytes[line_end + 1..];
    if u64::from_str_radix(checksum, 16).ok() != Some(xxh3_64(body)) {
        return Err(damaged("its checksum does not match its contents"));
    }
    let understood = match format {
        FORMAT_BEFORE => serde_json::from_slice(body).map(|by_id| Positions { written: 0, by_id }),
        _ => serde_json::from_slice(body),
    };
    understood.map_err(|error| damaged(&format!("it cannot be understood: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_survive_and_damage_shows() {
        let by_id = BTreeMap::from([
            (16_384, Position { last: i64::MIN, called: true }),
            (16_390, Position { last: 7, called: false }),
        ]);
        let positions = Positions { written: 12, by_id: by_id.clone() };
        let bytes = to_bytes(&positions).unwrap();
        assert_eq!(from_bytes(&bytes).unwrap(), positions);
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            assert!(from_bytes(&flipped).is_err(), "byte {at}");
            assert!(from_bytes(&bytes[..at]).is_err(), "{at} bytes");
        }
        let body = format!("{}\n", serde_json::to_string(&by_id).unwrap());
        let before = format!("{FIRST_WORDS}{FORMAT_BEFORE} {:016x}\n{body}", xxh3_64(body.as_bytes()));
        assert_eq!(from_bytes(before.as_bytes()).unwrap(), Positions { written: 0, by_id });
    }
}
