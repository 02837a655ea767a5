//! Files of rows: one per row group of main, one per chunk of delta. Never changed once written.
//!
//! ```text
//! offset  bytes  meaning
//!      0      8  "TIDEROWS"
//!      8      4  format version
//!     12      4  kind: 1 main, 2 delta
//!     16      8  table
//!     24      8  row group or chunk
//!     32      8  rows
//!     40      8  parts
//!     48   16*n  for each part: its length, its xxh3
//!      …      8  xxh3 of everything before
//!      …         the parts, one behind the other, to the file's end
//! ```
//!
//! All numbers are little-endian. Main has one part a column, the segment's own bytes; delta has one part, an Arrow IPC
//! stream.

use tidepool_base::{Error, Result, SqlState};
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &[u8; 8] = b"TIDEROWS";
const FORMAT_VERSION: u32 = 1;
const FIXED_BYTES: usize = 48;
/// More columns than any table has: bounds what a damaged header can make us read.
const PARTS_MAX: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    Main,
    Delta,
}

impl Kind {
    fn number(self) -> u32 {
        match self {
            Kind::Main => 1,
            Kind::Delta => 2,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Kind::Main => "main",
            Kind::Delta => "delta",
        }
    }
}

/// What a file's header says it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub kind: Kind,
    pub table: u64,
    pub id: u64,
    pub rows: u64,
}

pub(crate) fn header(identity: &Identity, parts: &[&[u8]]) -> Vec<u8> {
    let mut header = Vec::with_capacity(FIXED_BYTES + parts.len() * 16 + 8);
    header.extend_from_slice(MAGIC);
    header.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    header.extend_from_slice(&identity.kind.number().to_le_bytes());
    for number in [identity.table, identity.id, identity.rows, parts.len() as u64] {
        header.extend_from_slice(&number.to_le_bytes());
    }
    for part in parts {
        header.extend_from_slice(&(part.len() as u64).to_le_bytes());
        header.extend_from_slice(&xxh3_64(part).to_le_bytes());
    }
    let checksum = xxh3_64(&header);
    header.extend_from_slice(&checksum.to_le_bytes());
    header
}

/// The parts of a file that must be `expected`. XX001 when it is damaged or another, 55000 when it is of another version;
/// messages say what is wrong, the caller which file.
pub(crate) fn parts<'a>(bytes: &'a [u8], expected: &Identity) -> Result<Vec<&'a [u8]>> {
    let damaged = |what: &str| Error::corrupted(what.to_owned());
    let number = |at: usize| -> Result<u64> {
        let bytes = bytes.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
        bytes.map(u64::from_le_bytes).ok_or_else(|| damaged("it is truncated"))
    };
    if bytes.len() < FIXED_BYTES {
        return Err(damaged("it is truncated"));
    }
    if &bytes[..8] != MAGIC {
        return Err(damaged("it is not a file of Tidepool's"));
    }
    let (version, kind) = (number(8)? as u32, (number(8)? >> 32) as u32);
    if version != FORMAT_VERSION {
        return Err(Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("it has format {version}, and this Tidepool reads {FORMAT_VERSION}"),
        ));
    }
    let count = number(40)?;
    if count > PARTS_MAX {
        return Err(damaged("its header is damaged"));
    }
    let header_end = FIXED_BYTES + count as usize * 16;
    if bytes.len() < header_end + 8 {
        return Err(damaged("it is truncated"));
    }
    if number(header_end)? != xxh3_64(&bytes[..header_end]) {
        return Err(damaged("its header is damaged"));
    }
    if (kind, number(16)?, number(24)?, number(32)?)
        != (expected.kind.number(), expected.table, expected.id, expected.rows)
    {
        return Err(damaged("it belongs to other rows"));
    }
    let mut parts = Vec::with_capacity(count as usize);
    let mut at = header_end + 8;
    for position in 0..count as usize {
        let (length, checksum) = (number(FIXED_BYTES + position * 16)?, number(FIXED_BYTES + position * 16 + 8)?);
        let end = usize::try_from(length).ok().and_then(|length| at.checked_add(length));
        let part = end.and_then(|end| bytes.get(at..end)).ok_or_else(|| damaged("it is truncated"))?;
        if xxh3_64(part) != checksum {
            return Err(damaged("its checksum does not match its contents"));
        }
        at += part.len();
        parts.push(part);
    }
    if at != bytes.len() {
        return Err(damaged("there are bytes behind its end"));
    }
    Ok(parts)
}

/// XX001 unless the bytes are all of a row group, and undamaged, whichever table's it is.
pub(crate) fn check_main(bytes: &[u8], id: u64, rows: u64) -> Result<()> {
    let table = bytes.get(16..24).and_then(|table| table.try_into().ok()).map_or(0, u64::from_le_bytes);
    parts(bytes, &Identity { kind: Kind::Main, table, id, rows }).map(drop)
}
