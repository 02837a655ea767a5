//! The log's bytes.
//!
//! All integers are little-endian. Checksums are XXH3-64 of all that follows the checksum, with the database's identity as
//! the seed.
//!
//! # Segment
//!
//! The log is a row of *segments* of equal size, numbered from 1 on. A segment that a checkpoint made superfluous is used
//! again under a later number, and what was in it stays until it is written over. A segment is a header of 4,096 bytes,
//! then blocks.
//!
//! | offset | bytes | meaning |
//! | --- | --- | --- |
//! | 0 | 8 | checksum of bytes 8 to 127 |
//! | 8 | 8 | `TIDEPLOG` |
//! | 16 | 4 | format version, 1 |
//! | 20 | 4 | zero |
//! | 24 | 8 | bytes of a segment |
//! | 32 | 16 | identity of the database |
//! | 48 | 8 | number |
//! | 56 | 8 | *chain*: checksum of the log's last block before this segment, 0 if there never was one |
//! | 64 | 8 | position at which the segment before ended, 0 if there never was one |
//! | 72 | 8 | *term* in which the segment was written, 0 in a log that one host has to itself |
//! | 80 | 8 | term of the segment before |
//! | 88 | 8 | of the log's first segment: the timestamp up to which commits were there before the log and are not in it, or 0 |
//! | 96 | 32 | zero |
//!
//! A segment *is begun* if and only if its header is valid and has the number that the segment is stored under. Everything in
//! the segment before is durable before a segment's header is written.
//!
//! # Terms
//!
//! The log of a database in a pool has a *term* for each host that was primary, and each term its own segments. A term ends
//! at its *seal*, a position that is known before the next term's first segment is begun: that one has the seal as the
//! position at which the segment before ended. What its host still wrote behind the seal is no part of the log, and
//! numbers of segments may come twice, in two terms; chains tell them apart. Numbers of one term grow, and some may be left
//! out.
//!
//! # Block
//!
//! What one thread wrote out at once for everybody is one or more blocks. A block starts at a multiple of 64.
//!
//! | offset | bytes | meaning |
//! | --- | --- | --- |
//! | 0 | 8 | checksum of the rest of the header and of the frames |
//! | 8 | 4 | `BLK1` |
//! | 12 | 4 | bytes of the frames |
//! | 16 | 8 | position of this block |
//! | 24 | 8 | *chain*: checksum of the block before |
//! | 32 | 8 | *life*: a random number that each opening of the log draws |
//! | 40 | 8 | *durable*: a position; all before it was durable when this block was written |
//! | 48 | 8 | greatest timestamp in the block, 0 if there is none |
//! | 56 | 8 | *floor*: a timestamp; every commit at or below it is in the log up to the end of this block |
//! | 64 | | frames |
//!
//! The next block starts where this one ends, rounded up to 64, or to 4,096 from there. A block *follows* another if and
//! only if it lies in one of these two places, its checksum is right, it names its own position, and its chain is the
//! other's checksum. So neither bytes of a segment's earlier use, nor what a crash left behind the end of the log, are ever
//! taken for what was written after it.
//!
//! A thread may have its record written while one with an earlier timestamp is yet to come. What a crash leaves of that is
//! no prefix of history: so of the blocks of one life, records above the greatest floor that one of them names are no
//! records. Nobody was told that they are. Timestamps of a life are above all records and floors of lives before it: who follows the
//! log has taken those floors for the truth.
//!
//! # End of the log
//!
//! The log ends where no block follows and the next segment is not begun. If there is anything valid farther on that
//! says, by its durable position or by its being in a later segment, that this place was durable once, then the log
//! is damaged. If not, it was cut short by a crash, and nothing behind its end was ever acknowledged. That no segment is missing there is
//! told by a note beside the segments (`notes.rs`).
//!
//! # Frame
//!
//! | offset | bytes | meaning |
//! | --- | --- | --- |
//! | 0 | 4 | bytes of the payload |
//! | 4 | 1 | kind of the record |
//! | 5 | 1 | bits: 1 `PART`, 2 `CONTINUED`, 4 `STREAM`, 8 `ABANDONED` |
//! | 6 | 2 | zero |
//! | 8 | 8 | timestamp; of a part 0 |
//! | 16 | 8 | only with `STREAM`: number of the stream |
//! | | | payload, padded with zeroes to a multiple of 8 |
//!
//! A record of one frame needs no stream. A larger one is a *stream*: parts, which carry its payload but no timestamp, and
//! a last frame that has the timestamp and the rest. Without the last frame there is no record. `CONTINUED` says that the
//! next frame of the stream goes on with what the writer gave as one piece. `ABANDONED` ends a stream that is no record. A
//! stream does not outlive its life.
//!
//! # Time
//!
//! The last block that is written out at once, which may raise the floor, ends with a *mark*: the end, `ABANDONED`, of stream 2^64 - 1, which nobody begins, with
//! kind 255 and 8 bytes: microseconds since 1970 by the writer's clock, no fewer than the mark before has in this life. The clock
//! was read after the floor was asked for, and before the block was written. So of a commit that a block's floor covers, and none
//! before, the mark is no earlier than the moment at which it began, and no later than the one at which it was acknowledged. Who
//! knows no marks takes one for what it says it is, the end of nothing.
//!
//! A record whose kind is 128 or more may be passed over by a reader that does not know it. Without any other the log cannot
//! be understood.

use std::fmt;
use std::io::Read;
use tidepool_base::{CommitTs, Error, Result, SqlState};
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub(crate) const FORMAT_VERSION: u32 = 1;
pub(crate) const SEGMENT_HEADER_BYTES: usize = 4096;
const SEGMENT_FIELDS_BYTES: usize = 128;
const SEGMENT_MAGIC: [u8; 8] = *b"TIDEPLOG";
const MEMORY_MAGIC: [u8; 8] = *b"TIDELOGM";

pub(crate) const BLOCK_HEADER_BYTES: usize = 64;
const BLOCK_MAGIC: [u8; 4] = *b"BLK1";
/// A block starts at a multiple of this: a line of the cache, so that lines are flushed once.
pub(crate) const BLOCK_ALIGNMENT: usize = 64;
/// A page of the system's cache and of disks: unless room is short, a block starts at a multiple of this in a file, so that
/// writing it never touches what is durable.
pub(crate) const PAGE_BYTES: usize = 4096;
/// No block's frames are longer: a reader holds one block.
pub(crate) const BLOCK_FRAMES_MAX: usize = 1 << 20;

/// Words of a frame's header, and one more for its stream.
pub(crate) const FRAME_HEADER_WORDS: usize = 2;
/// No frame's payload is longer: with its header it takes half of an appender's chunk.
pub(crate) const FRAME_PAYLOAD_MAX: usize = (32 << 10) - (FRAME_HEADER_WORDS + 1) * 8;

/// What a mark takes of a block.
pub(crate) const MARK_BYTES: usize = (FRAME_HEADER_WORDS + 2) * 8;
const MARK_KIND: u8 = 255;
const MARK_STREAM: u64 = u64::MAX;

pub(crate) const PART: u8 = 1;
pub(crate) const CONTINUED: u8 = 2;
pub(crate) const STREAM: u8 = 4;
pub(crate) const ABANDONED: u8 = 8;
const FLAGS: u8 = PART | CONTINUED | STREAM | ABANDONED;

/// A byte of the log: number of the segment and offset in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogPosition(u64);

impl LogPosition {
    pub(crate) fn new(segment: u64, offset: usize) -> LogPosition {
        debug_assert!(segment < 1 << 32 && offset < 1 << 32);
        LogPosition(segment << 32 | offset as u64)
    }

    /// As one number, which grows with the log: the segment's number in the upper half.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    pub fn from_bits(bits: u64) -> LogPosition {
        LogPosition(bits)
    }

    /// Number of the segment.
    pub fn segment(self) -> u64 {
        self.0 >> 32
    }

    /// Bytes from the segment's start.
    pub fn offset(self) -> usize {
        (self.0 & 0xffff_ffff) as usize
    }
}

impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {} of log segment {}", self.offset(), self.segment())
    }
}

/// Whose log it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DatabaseIdentity(pub [u8; 16]);

impl DatabaseIdentity {
    /// A new one, of the system's random numbers.
    pub fn random() -> Result<DatabaseIdentity> {
        let mut identity = [0; 16];
        random_bytes(&mut identity)?;
        Ok(DatabaseIdentity(identity))
    }

    /// As it is shown.
    pub fn parse(text: &str) -> Option<DatabaseIdentity> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_hex)?;
        Some(DatabaseIdentity(number.to_be_bytes()))
    }

    fn seed(self) -> u64 {
        xxh3_64_with_seed(&self.0, 0)
    }
}

/// As all that is on a device has it.
pub(crate) fn checksum_of(bytes: &[u8], identity: DatabaseIdentity) -> u64 {
    xxh3_64_with_seed(bytes, identity.seed())
}

impl fmt::Display for DatabaseIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for DatabaseIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

pub(crate) fn random_bytes(bytes: &mut [u8]) -> Result<()> {
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(bytes))
        .map_err(|error| Error::io("get random bytes", &error))
}

pub(crate) fn put(bytes: &mut [u8], offset: usize, value: u64) {
    bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
}

pub(crate) fn get(bytes: &[u8], offset: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(word)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub segment_bytes: u64,
    pub identity: DatabaseIdentity,
    pub number: u64,
    pub chain: u64,
    pub previous_end: LogPosition,
    pub term: u64,
    pub previous_term: u64,
    pub begins_after: CommitTs,
}

impl SegmentHeader {
    /// Writes it into the first bytes of a segment.
    pub fn write(&self, bytes: &mut [u8]) {
        bytes[..SEGMENT_HEADER_BYTES].fill(0);
        bytes[8..16].copy_from_slice(&SEGMENT_MAGIC);
        put(bytes, 16, u64::from(FORMAT_VERSION));
        put(bytes, 24, self.segment_bytes);
        bytes[32..48].copy_from_slice(&self.identity.0);
        put(bytes, 48, self.number);
        put(bytes, 56, self.chain);
        put(bytes, 64, self.previous_end.0);
        put(bytes, 72, self.term);
        put(bytes, 80, self.previous_term);
        put(bytes, 88, self.begins_after.0);
        let checksum = xxh3_64_with_seed(&bytes[8..SEGMENT_FIELDS_BYTES], self.identity.seed());
        put(bytes, 0, checksum);
    }

    /// Of this format, of any database.
    pub fn read_any(bytes: &[u8]) -> Option<SegmentHeader> {
        let mut found = DatabaseIdentity([0; 16]);
        found.0.copy_from_slice(bytes.get(32..48)?);
        SegmentHeader::read(bytes, found, "").ok().flatten()
    }

    /// `None`: there is no header, or it is damaged. An error: it is another release's, or another database's. `name` says
    /// which segment it is.
    pub fn read(bytes: &[u8], identity: DatabaseIdentity, name: &str) -> Result<Option<SegmentHeader>> {
        if bytes.len() < SEGMENT_FIELDS_BYTES || bytes[8..16] != SEGMENT_MAGIC {
            return Ok(None);
        }
        let mut found = DatabaseIdentity([0; 16]);
        found.0.copy_from_slice(&bytes[32..48]);
        if xxh3_64_with_seed(&bytes[8..SEGMENT_FIELDS_BYTES], found.seed()) != get(bytes, 0) {
            return Ok(None);
        }
        let version = get(bytes, 16) as u32;
        if version != FORMAT_VERSION {
            return Err(Error::new(
                SqlState::FEATURE_NOT_SUPPORTED,
                format!("log segment \"{name}\" has format version {version}"),
            )
            .with_detail(format!("This release of Tidepool reads version {FORMAT_VERSION}.")));
        }
        if found != identity {
            return Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("log segment \"{name}\" belongs to another database"),
            )
            .with_detail(format!("It is of database {found}; this one is {identity}.")));
        }
        Ok(Some(SegmentHeader {
            segment_bytes: get(bytes, 24),
            identity: found,
            number: get(bytes, 48),
            chain: get(bytes, 56),
            previous_end: LogPosition(get(bytes, 64)),
            term: get(bytes, 72),
            previous_term: get(bytes, 80),
            begins_after: CommitTs(get(bytes, 88)),
        }))
    }
}

/// What the first page of a log in memory says (`memory_device.rs`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryHeader {
    pub segment_bytes: usize,
    pub slots: usize,
    pub identity: DatabaseIdentity,
}

impl MemoryHeader {
    pub fn to_bytes(self) -> [u8; BLOCK_ALIGNMENT] {
        let mut bytes = [0; BLOCK_ALIGNMENT];
        bytes[8..16].copy_from_slice(&MEMORY_MAGIC);
        put(&mut bytes, 16, u64::from(FORMAT_VERSION));
        put(&mut bytes, 24, self.segment_bytes as u64);
        bytes[32..48].copy_from_slice(&self.identity.0);
        put(&mut bytes, 48, self.slots as u64);
        let checksum = xxh3_64_with_seed(&bytes[8..], self.identity.seed());
        put(&mut bytes, 0, checksum);
        bytes
    }

    /// `None`: it is damaged, or another database's.
    pub fn read(bytes: &[u8], identity: DatabaseIdentity) -> Option<MemoryHeader> {
        let header = MemoryHeader {
            segment_bytes: usize::try_from(get(bytes, 24)).ok()?,
            slots: usize::try_from(get(bytes, 48)).ok()?,
            identity,
        };
        (bytes == header.to_bytes()).then_some(header)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockHeader {
    pub frames_bytes: usize,
    pub position: LogPosition,
    pub chain: u64,
    pub life: u64,
    pub durable: LogPosition,
    pub ts_max: CommitTs,
    pub floor: CommitTs,
}

impl BlockHeader {
    /// Seals a block, whose frames are in `bytes` behind the header. Returns its checksum.
    pub fn seal(&self, bytes: &mut [u8], identity: DatabaseIdentity) -> u64 {
        bytes[8..12].copy_from_slice(&BLOCK_MAGIC);
        bytes[12..16].copy_from_slice(&(self.frames_bytes as u32).to_le_bytes());
        put(bytes, 16, self.position.0);
        put(bytes, 24, self.chain);
        put(bytes, 32, self.life);
        put(bytes, 40, self.durable.0);
        put(bytes, 48, self.ts_max.0);
        put(bytes, 56, self.floor.0);
        let end = BLOCK_HEADER_BYTES + self.frames_bytes;
        let checksum = xxh3_64_with_seed(&bytes[8..end], identity.seed());
        put(bytes, 0, checksum);
        checksum
    }

    /// What a header says, whether it is true or not. `None`: there is none.
    pub fn peek(bytes: &[u8]) -> Option<BlockHeader> {
        if bytes.len() < BLOCK_HEADER_BYTES || bytes[8..12] != BLOCK_MAGIC {
            return None;
        }
        let frames_bytes = (get(bytes, 8) >> 32) as usize;
        (frames_bytes <= BLOCK_FRAMES_MAX).then(|| BlockHeader {
            frames_bytes,
            position: LogPosition(get(bytes, 16)),
            chain: get(bytes, 24),
            life: get(bytes, 32),
            durable: LogPosition(get(bytes, 40)),
            ts_max: CommitTs(get(bytes, 48)),
            floor: CommitTs(get(bytes, 56)),
        })
    }

    /// The checksum of the block that `bytes` starts with, if it is right. `bytes` holds all of the block.
    pub fn verify(&self, bytes: &[u8], identity: DatabaseIdentity) -> Option<u64> {
        let end = BLOCK_HEADER_BYTES + self.frames_bytes;
        let checksum = get(bytes, 0);
        (bytes.len() >= end && xxh3_64_with_seed(&bytes[8..end], identity.seed()) == checksum).then_some(checksum)
    }

    pub fn end(&self) -> usize {
        self.position.offset() + BLOCK_HEADER_BYTES + self.frames_bytes
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub payload_bytes: usize,
    pub kind: u8,
    pub flags: u8,
    pub ts: CommitTs,
}

impl FrameHeader {
    pub fn words(&self) -> [u64; FRAME_HEADER_WORDS] {
        [self.payload_bytes as u64 | u64::from(self.kind) << 32 | u64::from(self.flags) << 40, self.ts.0]
    }

    pub fn of(words: [u64; FRAME_HEADER_WORDS]) -> FrameHeader {
        FrameHeader {
            payload_bytes: (words[0] & 0xffff_ffff) as usize,
            kind: (words[0] >> 32) as u8,
            flags: (words[0] >> 40) as u8,
            ts: CommitTs(words[1]),
        }
    }

    /// Words of the whole frame.
    pub fn frame_words(&self) -> usize {
        FRAME_HEADER_WORDS + usize::from(self.flags & STREAM != 0) + self.payload_bytes.div_ceil(8)
    }
}

/// The words of a mark.
pub(crate) fn mark_words(us: u64) -> [u64; MARK_BYTES / 8] {
    let header = FrameHeader { payload_bytes: 8, kind: MARK_KIND, flags: STREAM | ABANDONED, ts: CommitTs(0) };
    let [first, second] = header.words();
    [first, second, MARK_STREAM, us]
}

/// When a block was written, if it says so. `block` is all of it.
pub(crate) fn marked_time(block: &[u8]) -> Option<u64> {
    let mut at = BLOCK_HEADER_BYTES;
    while at < block.len() {
        let frame = Frame::read(block, at, block.len())?;
        let header = frame.header;
        if (header.kind, header.flags, frame.stream) == (MARK_KIND, STREAM | ABANDONED, MARK_STREAM)
            && header.payload_bytes == 8
        {
            return Some(get(block, frame.payload_start));
        }
        at = frame.next;
    }
    None
}

/// A frame of a block that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub header: FrameHeader,
    pub stream: u64,
    /// Offset of the payload from the block's start.
    pub payload_start: usize,
    /// Offset of the next frame.
    pub next: usize,
}

impl Frame {
    /// The frame at `start` of a block of `end` bytes. `None`: there is none that fits.
    pub fn read(block: &[u8], start: usize, end: usize) -> Option<Frame> {
        if end > block.len() || start.checked_add(FRAME_HEADER_WORDS * 8)? > end {
            return None;
        }
        let header = FrameHeader::of([get(block, start), get(block, start + 8)]);
        let next = start.checked_add(header.frame_words() * 8)?;
        if next > end || header.flags & !FLAGS != 0 {
            return None;
        }
        let streams = header.flags & STREAM != 0;
        let stream = if streams { get(block, start + FRAME_HEADER_WORDS * 8) } else { 0 };
        let payload_start = start + (FRAME_HEADER_WORDS + usize::from(streams)) * 8;
        Some(Frame { header, stream, payload_start, next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: DatabaseIdentity = DatabaseIdentity([7; 16]);

    #[test]
    fn a_segment_is_of_one_database_and_version() {
        let header = SegmentHeader {
            segment_bytes: 1 << 20,
            identity: IDENTITY,
            number: 5,
            chain: 9,
            previous_end: LogPosition::new(4, 8192),
            term: 3,
            previous_term: 2,
            begins_after: CommitTs(11),
        };
        let mut bytes = vec![1; SEGMENT_HEADER_BYTES];
        assert_eq!(SegmentHeader::read(&bytes, IDENTITY, "5").unwrap(), None);
        header.write(&mut bytes);
        assert_eq!(SegmentHeader::read(&bytes, IDENTITY, "5").unwrap(), Some(header));
        let error = SegmentHeader::read(&bytes, DatabaseIdentity([8; 16]), "5").unwrap_err();
        assert_eq!(error.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
        bytes[50] ^= 1;
        assert_eq!(SegmentHeader::read(&bytes, IDENTITY, "5").unwrap(), None);
        bytes[50] ^= 1;
        bytes[16] = 2;
        let checksum = xxh3_64_with_seed(&bytes[8..SEGMENT_FIELDS_BYTES], IDENTITY.seed());
        put(&mut bytes, 0, checksum);
        let error = SegmentHeader::read(&bytes, IDENTITY, "5").unwrap_err();
        assert_eq!(error.code(), SqlState::FEATURE_NOT_SUPPORTED);
    }

    #[test]
    fn every_changed_bit_of_a_block_is_noticed() {
        let header = BlockHeader {
            frames_bytes: 24,
            position: LogPosition::new(3, 4096),
            chain: 1,
            life: 2,
            durable: LogPosition::new(3, 4096),
            ts_max: CommitTs(77),
            floor: CommitTs(70),
        };
        let mut bytes = vec![0; BLOCK_HEADER_BYTES + 24];
        let frame = FrameHeader { payload_bytes: 5, kind: 3, flags: 0, ts: CommitTs(77) };
        for (index, word) in frame.words().into_iter().enumerate() {
            put(&mut bytes, BLOCK_HEADER_BYTES + index * 8, word);
        }
        let checksum = header.seal(&mut bytes, IDENTITY);
        let read = |bytes: &[u8]| BlockHeader::peek(bytes).and_then(|header| header.verify(bytes, IDENTITY));
        assert_eq!(BlockHeader::peek(&bytes), Some(header));
        assert_eq!(read(&bytes), Some(checksum));
        assert_eq!(Frame::read(&bytes, BLOCK_HEADER_BYTES, bytes.len()).unwrap().header, frame);
        for bit in (0..bytes.len() * 8).step_by(if cfg!(miri) { 13 } else { 1 }) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(read(&bytes), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(header.verify(&bytes, DatabaseIdentity([8; 16])), None);
    }
}
