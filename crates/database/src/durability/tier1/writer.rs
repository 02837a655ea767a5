//! Putting a manifest together.

use super::{
    BODY_SUM_AT, EXTENT_BYTES, FORMAT, HEADER_BYTES, HEADER_SUM_AT, IMAGE_BYTES, MAGIC, ManifestHeader, PLACE_BYTES,
    Placed, RANGE_BYTES, SECTIONS, SECTIONS_AT, Section, TABLE_BYTES, WORD_BYTES,
};
use tidepool_base::{CommitTs, Error, Result, RowGroupId, SqlState, StoreId, TableId};
use tidepool_pool::words::Extent;
use xxhash_rust::xxh3::xxh3_64;

/// A manifest that comes to be: tables one after the other, of each its ranges by their numbers, and its images.
#[derive(Debug, Default)]
pub(crate) struct ManifestWriter {
    catalogue: Vec<u8>,
    tables: Vec<u8>,
    ranges: Vec<u8>,
    places: Vec<u8>,
    images: Vec<u8>,
    extents: Vec<u8>,
    dead: Vec<u8>,
    /// Of the table that is being added: columns, and the last range's number.
    columns: Option<u32>,
    last_range: Option<u64>,
    table_at: usize,
}

impl ManifestWriter {
    /// All but what tables have in memory.
    pub fn set_catalogue(&mut self, catalogue: Vec<u8>) {
        self.catalogue = catalogue;
    }

    /// The same of two manifests that say the same, whenever they are as of.
    pub fn digest(&self) -> u64 {
        let sections =
            [&self.catalogue, &self.tables, &self.ranges, &self.places, &self.images, &self.extents, &self.dead];
        let sums = sections.map(|section| xxh3_64(section));
        xxh3_64(&sums.map(u64::to_le_bytes).concat())
    }

    /// Begins with a table.
    pub fn table(&mut self, id: TableId, store: StoreId, columns: u32) {
        self.table_at = self.tables.len();
        put(&mut self.tables, &[u64::from(id.0) | u64::from(columns) << 32, store.0]);
        let (range, image) = (self.ranges.len() / RANGE_BYTES, self.images.len() / IMAGE_BYTES);
        put(&mut self.tables, &[range as u64, 0, image as u64, 0]);
        (self.columns, self.last_range) = (Some(columns), None);
    }

    /// Adds a range of the table: where the segments of its row group lie, one a column, and which positions of it are dead, a
    /// bit each; empty when none is. XX000 unless ranges come by rising numbers.
    pub fn range(
        &mut self,
        number: u64,
        group: RowGroupId,
        rows: u64,
        made_at: CommitTs,
        segments: &[Placed],
        dead: &[u64],
    ) -> Result<()> {
        let columns = self.columns.ok_or_else(|| Error::internal("a range of no table"))?;
        if self.last_range.is_some_and(|last| last >= number) || segments.len() != columns as usize {
            return Err(Error::internal("a manifest's ranges are not in order, or lack columns"));
        }
        self.last_range = Some(number);
        let first = self.places.len() / PLACE_BYTES;
        let words = self.dead.len() / WORD_BYTES;
        put(&mut self.ranges, &[number, group.0, rows, made_at.0, first as u64]);
        put(&mut self.ranges, &[words as u64 | (dead.len() as u64) << 40]);
        for segment in segments {
            let record = self.place(segment)?;
            put(&mut self.places, &record);
        }
        put(&mut self.dead, dead);
        self.count(24);
        Ok(())
    }

    /// Adds an image of the table's delta.
    pub fn image(&mut self, number: u64, rows: u64, place: &Placed) -> Result<()> {
        if self.columns.is_none() {
            return Err(Error::internal("an image of no table"));
        }
        let record = self.place(place)?;
        put(&mut self.images, &[number, rows]);
        put(&mut self.images, &record);
        self.count(40);
        Ok(())
    }

    /// Counts one more in the table's record.
    fn count(&mut self, field: usize) {
        let at = self.table_at + field;
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.tables[at..at + 8]);
        self.tables[at..at + 8].copy_from_slice(&(u64::from_le_bytes(bytes) + 1).to_le_bytes());
    }

    fn place(&mut self, place: &Placed) -> Result<[u64; 4]> {
        if place.at.extents.is_empty() {
            return Err(Error::internal("a place on no extent"));
        }
        let first = (self.extents.len() / EXTENT_BYTES) as u64;
        for extent in &place.at.extents {
            self.extents.extend_from_slice(&extent.0.to_le_bytes());
        }
        Ok([first | (place.at.extents.len() as u64) << 40, place.at.offset, place.at.len, place.head])
    }

    /// All of it, as it is to lie in the pool, on extents of so many bytes. `lease` is asked for as many extents as it takes.
    pub fn finish(
        self,
        header: &ManifestHeader,
        extent_bytes: usize,
        lease: impl FnOnce(usize) -> Result<Vec<Extent>>,
    ) -> Result<Vec<u8>> {
        let sections: [(Section, &[u8]); SECTIONS] = [
            (Section::Catalogue, &self.catalogue),
            (Section::Tables, &self.tables),
            (Section::Ranges, &self.ranges),
            (Section::Places, &self.places),
            (Section::Images, &self.images),
            (Section::Extents, &self.extents),
            (Section::Dead, &self.dead),
        ];
        let all: usize = sections.iter().map(|(_, bytes)| bytes.len().next_multiple_of(8)).sum();
        // They are said within the first.
        let len_on = |count: usize| HEADER_BYTES + (count * EXTENT_BYTES).next_multiple_of(8) + all;
        let mut count = 1;
        while len_on(count) > count * extent_bytes {
            count += 1;
        }
        if HEADER_BYTES + count * EXTENT_BYTES > extent_bytes {
            return Err(Error::new(
                SqlState::PROGRAM_LIMIT_EXCEEDED,
                "the manifest is too large for the pool's extents",
            ));
        }
        let own = lease(count)?;
        let mut bytes = vec![0; HEADER_BYTES];
        bytes.reserve_exact(len_on(count) - HEADER_BYTES);
        own.iter().for_each(|extent| bytes.extend_from_slice(&extent.0.to_le_bytes()));
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        for (section, content) in sections {
            let at = SECTIONS_AT + section as usize * 16;
            let offset = bytes.len() as u64;
            bytes[at..at + 8].copy_from_slice(&offset.to_le_bytes());
            bytes[at + 8..at + 16].copy_from_slice(&(content.len() as u64).to_le_bytes());
            bytes.extend_from_slice(content);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
        }
        bytes[..8].copy_from_slice(MAGIC);
        let mut at = 8;
        for number in [FORMAT, header.term, header.generation, own.len() as u32] {
            bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
            at += 4;
        }
        let (term, segment) = header.log.map_or((0, 0), |log| (log.term, log.segment));
        let len = bytes.len() as u64;
        for number in [len, header.previous, header.commit_ts.0, term, segment, 0] {
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
            at += 8;
        }
        let sum = xxh3_64(&bytes[HEADER_BYTES..]);
        bytes[BODY_SUM_AT..BODY_SUM_AT + 8].copy_from_slice(&sum.to_le_bytes());
        let sum = xxh3_64(&bytes[..HEADER_SUM_AT]);
        bytes[HEADER_SUM_AT..HEADER_SUM_AT + 8].copy_from_slice(&sum.to_le_bytes());
        Ok(bytes)
    }
}

fn put(to: &mut Vec<u8>, numbers: &[u64]) {
    numbers.iter().for_each(|number| to.extend_from_slice(&number.to_le_bytes()));
}

const _: () = assert!(TABLE_BYTES == 6 * 8 && RANGE_BYTES == 6 * 8 && PLACE_BYTES == 4 * 8 && IMAGE_BYTES == 6 * 8);
