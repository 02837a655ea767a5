//! Main: row groups of immutable, checksummed, position-independent segments.

use crate::{ColumnStatistics, EncodingKind, Placement};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::Field;
use std::ops::Range;
use std::sync::Arc;
use tidepool_base::{Result, RowGroupId};
use tidepool_tablespace::{Tablespace, Tablespaces};

/// One column of one row group: a self-describing blob in one region (header with magic, format version, checksum,
/// encoding, row count, statistics; then the encoded bytes). Valid at any address.
#[derive(Debug)]
pub struct Segment {}

impl Segment {
    /// Picks an encoding by the data and writes the blob into `tablespace`.
    pub fn encode(_array: &ArrayRef, _field: &Field, _tablespace: &Arc<Tablespace>) -> Result<Segment> {
        unimplemented!()
    }

    /// Takes a blob that was read from elsewhere: checks magic, version, lengths and checksum (XX001 if any is off)
    /// and copies it into `tablespace`.
    pub fn load(_bytes: &[u8], _field: &Field, _tablespace: &Arc<Tablespace>) -> Result<Segment> {
        unimplemented!()
    }

    /// The same bytes in another tablespace.
    pub fn copy_to(&self, _tablespace: &Arc<Tablespace>) -> Result<Segment> {
        unimplemented!()
    }

    /// The whole blob, header included.
    pub fn bytes(&self) -> &[u8] {
        unimplemented!()
    }

    /// Recomputes the checksum: XX001 when it differs.
    pub fn verify(&self) -> Result<()> {
        unimplemented!()
    }

    pub fn tablespace(&self) -> &Arc<Tablespace> {
        unimplemented!()
    }
    pub fn encoding(&self) -> EncodingKind {
        unimplemented!()
    }
    pub fn rows(&self) -> usize {
        unimplemented!()
    }
    /// Bytes the same values take as plain Arrow.
    pub fn raw_bytes(&self) -> u64 {
        unimplemented!()
    }
    pub fn statistics(&self) -> &ColumnStatistics {
        unimplemented!()
    }

    /// Vectorised decode of a row range.
    pub fn decode(&self, _rows: Range<usize>) -> Result<ArrayRef> {
        unimplemented!()
    }

    /// Decode of chosen rows (ascending) without decoding their neighbours where the encoding allows.
    pub fn take(&self, _rows: &[u32]) -> Result<ArrayRef> {
        unimplemented!()
    }
}

#[derive(Debug)]
pub struct RowGroup {}

impl RowGroup {
    /// Encodes a batch of at most `ROW_GROUP_ROWS` rows, each column into the tablespace that `placement` names.
    pub fn encode(
        _id: RowGroupId,
        _batch: &RecordBatch,
        _placement: &Placement,
        _spaces: &Tablespaces,
    ) -> Result<RowGroup> {
        unimplemented!()
    }
    pub fn from_segments(_id: RowGroupId, _segments: Vec<Arc<Segment>>) -> Result<RowGroup> {
        unimplemented!()
    }
    pub fn id(&self) -> RowGroupId {
        unimplemented!()
    }
    pub fn rows(&self) -> usize {
        unimplemented!()
    }
    pub fn segments(&self) -> &[Arc<Segment>] {
        unimplemented!()
    }
    /// The same rows with each column where `placement` says; segments already there are shared, not copied.
    pub fn place(&self, _placement: &Placement, _spaces: &Tablespaces) -> Result<RowGroup> {
        unimplemented!()
    }
}
