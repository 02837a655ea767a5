//! The first tier in a pool: a manifest in binary form, which every host of the database attaches to.
//!
//! What it says of a range or of a segment is a record of a fixed size at an index, so opening it takes one pass over its bytes,
//! for the checksum. Its extents need not be neighbours, so whoever reads it copies it first: some 32 bytes a segment.
//!
//! ```text
//! offset  bytes  of the header
//!      0      8  "TIDETIR1"
//!      8      4  format, 1
//!     12      4  term of the primary that wrote it
//!     16      4  generation of the root that names it
//!     20      4  extents that it lies on
//!     24      8  bytes in all, the header's included
//!     32      8  where the root in force before it was, as that root's word; zero: there was none
//!     40      8  commit timestamp that it is as of
//!     48      8  log: term of the segment from which on records are to be read
//!     56      8  log: that segment; zero: from its beginning
//!     64      8  zero
//!     72    112  sections: offset and length of each, in the order of `Section`
//!    184      8  XXH3-64 of everything behind the header
//!    192      8  XXH3-64 of bytes 0 to 191
//!    200         the extents that it lies on, 4 bytes each; then sections, each at a multiple of 8
//! ```
//!
//! All numbers are little-endian. Sections are arrays of records, but for the catalogue (JSON, as in a data folder's manifest)
//! and dead positions (words of 64 bits).
//!
//! | section | bytes of a record | what |
//! | --- | --- | --- |
//! | tables | 48 | id, columns, store, first range, ranges, first image, images |
//! | ranges | 48 | number, row group, rows, horizon of the merge that made it main, first place, dead words (index, count) |
//! | places | 32 | first of its extents, their count, offset within the first, length, checksum of its head |
//! | images | 48 | number, rows, a place |
//! | extents | 4 | extents that places lie on, in the order of their bytes |
//!
//! Invariants: a manifest is written once, to extents that only its writer owns, made durable, and then named by the root's
//! swap; it is never changed. Bytes that a host reads may be damaged, so every index and offset is looked at before it is
//! followed, and the checksums before that.

mod attach;
mod checkpoint;
mod found;
mod reader;
mod room;
mod writer;

#[cfg(test)]
mod tests;

pub(crate) use checkpoint::{Checkpoints, Written};
pub(crate) use found::FoundManifest;
use reader::{ManifestView, TableView};
pub(crate) use room::shared_extents;
use writer::ManifestWriter;

use crate::roles::places::take;
use tidepool_base::{CommitTs, Result};
use tidepool_tablespace::PoolPlace;

const MAGIC: &[u8; 8] = b"TIDETIR1";
const FORMAT: u32 = 1;
const HEADER_BYTES: usize = 200;
const SECTIONS_AT: usize = 72;
const BODY_SUM_AT: usize = 184;
const HEADER_SUM_AT: usize = 192;

const TABLE_BYTES: usize = 48;
const RANGE_BYTES: usize = 48;
const PLACE_BYTES: usize = 32;
const IMAGE_BYTES: usize = 48;
const EXTENT_BYTES: usize = 4;
const WORD_BYTES: usize = 8;

/// Sections, by their place in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Section {
    Catalogue = 0,
    Tables = 1,
    Ranges = 2,
    Places = 3,
    Images = 4,
    Extents = 5,
    /// Words of dead positions.
    Dead = 6,
}

const SECTIONS: usize = 7;

/// What of a manifest is not of tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ManifestHeader {
    pub term: u32,
    pub generation: u32,
    /// The word of the root before; zero: there was none.
    pub previous: u64,
    pub commit_ts: CommitTs,
    /// `None`: all of the log there is.
    pub log: Option<LogPoint>,
}

/// The segment from which on the log has what a manifest lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogPoint {
    pub term: u64,
    pub segment: u64,
}

/// Of a row group, as the log has them.
pub(crate) fn placed(places: &[u8]) -> Result<Vec<Placed>> {
    let (rest, mut all) = (&mut &*places, Vec::new());
    while !rest.is_empty() {
        let (at, head) = take(rest)?;
        all.push(Placed { at, head });
    }
    Ok(all)
}

/// Where bytes lie in the pool, and what tells that they are still there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placed {
    pub at: PoolPlace,
    /// XXH3 of a segment's head; of other bytes zero.
    pub head: u64,
}
