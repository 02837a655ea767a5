//! What a log lies on: numbered segments of one size.

use std::fmt::Debug;
use std::sync::Arc;
use tidepool_base::Result;

/// Of a line of the note.
pub const NOTE_BYTES: usize = 64;

/// A device that holds segments. Of a segment that is there, writing does not fail for want of room.
pub trait LogDevice: Send + Sync + Debug {
    /// What errors call it.
    fn name(&self) -> String;

    /// What errors call a segment.
    fn segment_name(&self, number: u64) -> String;

    /// Bytes of a segment, a multiple of 4,096.
    fn segment_bytes(&self) -> usize;

    /// Segments that it can hold at most.
    fn segments_max(&self) -> u64;

    /// Writes start and end at multiples of this, and so do the addresses that they come from. A power of two from 64 on.
    fn write_alignment(&self) -> usize;

    /// Where blocks are best started, so that writing one does not touch what is durable.
    fn block_alignment(&self) -> usize;

    /// The numbers under which there are segments, in ascending order.
    fn segments(&self) -> Result<Vec<u64>>;

    /// A segment that is there.
    fn open(&self, number: u64) -> Result<Arc<dyn LogSegment>>;

    /// A new segment, durably there, with nothing in it that is a header of that number. 53100 when there is no room.
    fn create(&self, number: u64) -> Result<Arc<dyn LogSegment>>;

    /// A new segment as `create` makes it, under `number` or the next one that is free.
    fn create_next(&self, number: u64) -> Result<(u64, Arc<dyn LogSegment>)> {
        Ok((number, self.create(number)?))
    }

    /// A segment that is superfluous can be made a later one at once: nobody else reads it.
    fn recycles(&self) -> bool {
        true
    }

    /// Makes segment `source` segment `target`, durably. What is in it stays. To be tried again after an error, as is
    /// `remove`.
    fn recycle(&self, source: u64, target: u64) -> Result<Arc<dyn LogSegment>>;

    /// Removes a segment, durably.
    fn remove(&self, number: u64) -> Result<()>;

    /// All that is superfluous by now was removed. A device that others read gives it back where they let it go.
    fn all_removed(&self) -> Result<()> {
        Ok(())
    }

    /// The lines that `write_note` wrote, as far as they are there, whatever is in them.
    fn notes(&self) -> Result<Vec<[u8; NOTE_BYTES]>>;

    /// Writes one of two lines, durably. The other stays as it is, whatever happens meanwhile.
    fn write_note(&self, second: bool, line: &[u8; NOTE_BYTES]) -> Result<()>;
}

pub trait LogSegment: Send + Sync + Debug {
    /// Reads from `offset` on until `bytes` is full or the segment ends. Returns the bytes read.
    fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<usize>;

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<()>;

    /// Makes bytes durable that another writer left, which may not have come to that.
    fn persist(&self, offset: usize, len: usize) -> Result<()> {
        let _ = (offset, len);
        Ok(())
    }

    /// Makes all that was written durable, and the log's own for good: after this, it may be acknowledged. After an error
    /// nobody knows what is.
    fn sync(&self) -> Result<()>;
}
