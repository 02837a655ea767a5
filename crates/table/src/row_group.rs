//! Row groups: a segment for each column, of the same rows.

use crate::{Placement, Segment};
use arrow_array::RecordBatch;
use std::sync::Arc;
use tidepool_base::{Error, Result, RowGroupId};
use tidepool_tablespace::{Tablespace, Tablespaces};

/// Up to `ROW_GROUP_ROWS` rows of main.
#[derive(Debug)]
pub struct RowGroup {
    id: RowGroupId,
    rows: usize,
    segments: Vec<Arc<Segment>>,
}

impl RowGroup {
    /// Encodes a batch of at most `ROW_GROUP_ROWS` rows, each column into the tablespace that `placement` names.
    pub fn encode(
        id: RowGroupId,
        batch: &RecordBatch,
        placement: &Placement,
        spaces: &Tablespaces,
    ) -> Result<RowGroup> {
        let schema = batch.schema();
        let segments = (batch.columns().iter().zip(schema.fields()).enumerate())
            .map(|(column, (array, field))| {
                let tablespace = spaces.get(placement.column(column))?;
                Segment::encode(array, field, &tablespace).map(Arc::new)
            })
            .collect::<Result<Vec<_>>>()?;
        RowGroup::from_segments(id, segments)
    }

    /// XX001 unless all segments have as many rows; there must be one.
    pub fn from_segments(id: RowGroupId, segments: Vec<Arc<Segment>>) -> Result<RowGroup> {
        let rows = segments.first().ok_or_else(|| Error::internal("a row group has no columns"))?.rows();
        if segments.iter().any(|segment| segment.rows() != rows) {
            return Err(Error::corrupted("a row group's segments differ in their numbers of rows"));
        }
        Ok(RowGroup { id, rows, segments })
    }

    pub fn id(&self) -> RowGroupId {
        self.id
    }

    /// Of what is in it, the same wherever it lies: a checksum of its segments' own ones, so that little is read. XX001 where one
    /// turns out to be damaged.
    pub fn checksum(&self) -> Result<u64> {
        let mut sums = Vec::with_capacity(self.segments.len() * 16);
        for segment in &self.segments {
            sums.extend(segment.encoded_bytes().to_le_bytes());
            sums.extend(segment.checksum()?.to_le_bytes());
        }
        Ok(xxhash_rust::xxh3::xxh3_64(&sums))
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn segments(&self) -> &[Arc<Segment>] {
        &self.segments
    }

    /// Bytes that its segments take.
    pub fn encoded_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.encoded_bytes()).sum()
    }

    /// Something of it lies in memory that `space` is to give up.
    pub fn must_move(&self, space: &Tablespace) -> bool {
        self.segments.iter().any(|segment| segment.is_closing(space))
    }

    /// The same rows with none of them in memory that `space` is to give up; `None` when none are.
    pub fn moved(&self, space: &Tablespace) -> Result<Option<RowGroup>> {
        if !self.must_move(space) {
            return Ok(None);
        }
        let segments = (self.segments.iter())
            .map(|segment| {
                if segment.is_closing(space) {
                    segment.copy_to(segment.tablespace()).map(Arc::new)
                } else {
                    Ok(Arc::clone(segment))
                }
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Some(RowGroup { id: self.id, rows: self.rows, segments }))
    }

    /// As `moved`, as another row group: of the old one others may be told still where it lies.
    pub fn moved_as(&self, id: RowGroupId, space: &Tablespace) -> Result<Option<RowGroup>> {
        Ok(self.moved(space)?.map(|moved| RowGroup { id, ..moved }))
    }

    /// The same rows with each column where `placement` says; segments already there are shared, not copied.
    pub fn place(&self, placement: &Placement, spaces: &Tablespaces) -> Result<RowGroup> {
        let segments = (self.segments.iter().enumerate())
            .map(|(column, segment)| {
                let name = placement.column(column);
                if segment.tablespace().name() == name {
                    return Ok(Arc::clone(segment));
                }
                segment.copy_to(&spaces.get(name)?).map(Arc::new)
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(RowGroup { id: self.id, rows: self.rows, segments })
    }
}
