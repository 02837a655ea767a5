//! Reading a manifest where it lies.

use super::{
    BODY_SUM_AT, EXTENT_BYTES, FORMAT, HEADER_BYTES, HEADER_SUM_AT, IMAGE_BYTES, LogPoint, MAGIC, ManifestHeader,
    PLACE_BYTES, Placed, RANGE_BYTES, SECTIONS, SECTIONS_AT, Section, TABLE_BYTES, WORD_BYTES,
};
use tidepool_base::{CommitTs, Error, Result, RowGroupId, SqlState, StoreId, TableId};
use tidepool_pool::words::Extent;
use tidepool_tablespace::PoolPlace;
use xxhash_rust::xxh3::xxh3_64;

/// A manifest in memory that several hosts may read, the checksums of which were right.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ManifestView<'a> {
    header: ManifestHeader,
    sections: [&'a [u8]; SECTIONS],
    bytes: &'a [u8],
}

/// What a manifest says of a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableView<'a> {
    manifest: ManifestView<'a>,
    pub id: TableId,
    pub store: StoreId,
    pub columns: u32,
    ranges: (u64, u64),
    images: (u64, u64),
}

/// What it says of a range.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RangeView<'a> {
    manifest: ManifestView<'a>,
    columns: u32,
    pub number: u64,
    pub group: RowGroupId,
    pub rows: u64,
    /// The horizon of the merge that made it main: what the log says of earlier ones is over. Zero: none did.
    pub made_at: CommitTs,
    first_place: u64,
    dead: u64,
}

/// What of a table is not in main, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImageView {
    pub number: u64,
    pub rows: u64,
    pub place: Placed,
}

pub(super) fn damaged(what: &str) -> Error {
    Error::corrupted(format!("a manifest in the pool is damaged: {what}"))
}

fn eight(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

fn four(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

/// An index and a count of one word.
fn counted(word: u64) -> (u64, u64) {
    (word & ((1 << 40) - 1), word >> 40)
}

impl<'a> ManifestView<'a> {
    /// How many bytes the manifest has that begins with these, at least a header's, and on how many extents they lie. XX001
    /// unless they are one's header.
    pub fn extent_of(bytes: &[u8]) -> Result<(u64, usize)> {
        if bytes.len() < HEADER_BYTES || &bytes[..8] != MAGIC {
            return Err(damaged("it does not begin as one"));
        }
        let format = four(bytes, 8).unwrap_or_default();
        if eight(bytes, HEADER_SUM_AT) != Some(xxh3_64(&bytes[..HEADER_SUM_AT])) {
            return Err(damaged("its header's checksum is wrong"));
        }
        if format != FORMAT {
            let message = format!("a manifest in the pool has format {format}, and this Tidepool reads {FORMAT}");
            return Err(Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message));
        }
        let len = eight(bytes, 24).ok_or_else(|| damaged("it has no length"))?;
        Ok((len, four(bytes, 20).unwrap_or_default() as usize))
    }

    /// The extents that a manifest lies on, as far as these bytes of its beginning say them.
    pub fn own_extents_in(bytes: &[u8]) -> impl Iterator<Item = Extent> + '_ {
        let count = four(bytes, 20).unwrap_or_default() as usize;
        let list = bytes.get(HEADER_BYTES..).unwrap_or_default();
        list.chunks_exact(EXTENT_BYTES).take(count).map(|record| Extent(four(record, 0).unwrap_or_default()))
    }

    /// Reads a manifest of exactly these bytes. XX001 where they are damaged, 55000 where they are of another release.
    pub fn read(bytes: &'a [u8]) -> Result<ManifestView<'a>> {
        if ManifestView::extent_of(bytes)?.0 != bytes.len() as u64 {
            return Err(damaged("it has another length"));
        }
        if eight(bytes, BODY_SUM_AT) != Some(xxh3_64(&bytes[HEADER_BYTES..])) {
            return Err(damaged("its checksum is wrong"));
        }
        let number = |at| eight(bytes, at).ok_or_else(|| damaged("its header is cut short"));
        let mut sections: [&[u8]; SECTIONS] = [&[]; SECTIONS];
        for (place, section) in sections.iter_mut().enumerate() {
            let at = SECTIONS_AT + place * 16;
            let (offset, len) = (number(at)?, number(at + 8)?);
            let range = usize::try_from(offset).ok().zip(usize::try_from(len).ok());
            let range = range.and_then(|(offset, len)| Some(offset..offset.checked_add(len)?));
            *section = range.and_then(|range| bytes.get(range)).ok_or_else(|| damaged("a section lies outside"))?;
        }
        let records = [TABLE_BYTES, RANGE_BYTES, PLACE_BYTES, IMAGE_BYTES, EXTENT_BYTES, WORD_BYTES];
        if sections[1..].iter().zip(records).any(|(section, record)| !section.len().is_multiple_of(record)) {
            return Err(damaged("a section ends within a record"));
        }
        let header = ManifestHeader {
            term: four(bytes, 12).unwrap_or_default(),
            generation: four(bytes, 16).unwrap_or_default(),
            previous: number(32)?,
            commit_ts: CommitTs(number(40)?),
            log: Some(LogPoint { term: number(48)?, segment: number(56)? }).filter(|log| log.segment > 0),
        };
        Ok(ManifestView { header, sections, bytes })
    }

    pub fn header(&self) -> &ManifestHeader {
        &self.header
    }

    /// The extents that it names: those that it lies on, those of main and those of images.
    pub fn named_extents(&self) -> impl Iterator<Item = Extent> + use<'a> {
        let named = self.section(Section::Extents).chunks_exact(EXTENT_BYTES);
        let named = named.map(|record| Extent(four(record, 0).unwrap_or_default()));
        ManifestView::own_extents_in(self.bytes).chain(named)
    }

    pub fn catalogue(&self) -> &'a [u8] {
        self.section(Section::Catalogue)
    }

    fn section(&self, section: Section) -> &'a [u8] {
        self.sections[section as usize]
    }

    fn record(&self, section: Section, bytes: usize, index: u64) -> Result<&'a [u8]> {
        let start = usize::try_from(index).ok().and_then(|index| index.checked_mul(bytes));
        let range = start.and_then(|start| Some(start..start.checked_add(bytes)?));
        range.and_then(|range| self.section(section).get(range)).ok_or_else(|| damaged("an index lies outside"))
    }

    fn words<const N: usize>(record: &[u8]) -> [u64; N] {
        std::array::from_fn(|place| eight(record, place * 8).unwrap_or_default())
    }

    pub fn tables(&self) -> impl Iterator<Item = Result<TableView<'a>>> + use<'a> {
        let manifest = *self;
        let count = self.section(Section::Tables).len() / TABLE_BYTES;
        (0..count as u64).map(move |index| manifest.table(index))
    }

    fn table(&self, index: u64) -> Result<TableView<'a>> {
        let record = self.record(Section::Tables, TABLE_BYTES, index)?;
        let [id, store, range, ranges, image, images] = Self::words(record);
        Ok(TableView {
            manifest: *self,
            id: TableId(id as u32),
            columns: (id >> 32) as u32,
            store: StoreId(store),
            ranges: (range, ranges),
            images: (image, images),
        })
    }

    fn place(&self, words: [u64; 4]) -> Result<Placed> {
        let [extents, offset, len, head] = words;
        let (first, count) = counted(extents);
        let extents = (first..first + count).map(|index| {
            let record = self.record(Section::Extents, EXTENT_BYTES, index)?;
            Ok(Extent(four(record, 0).unwrap_or_default()))
        });
        let extents = extents.collect::<Result<Vec<_>>>()?;
        if extents.is_empty() {
            return Err(damaged("a place lies on no extent"));
        }
        Ok(Placed { at: PoolPlace { extents, offset, len }, head })
    }
}

impl<'a> TableView<'a> {
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = Result<RangeView<'a>>> + use<'a> {
        let table = *self;
        (0..self.ranges.1 as usize).map(move |index| table.range(index as u64))
    }

    /// A range by its number; ranges are in order. `None`: the table has none of that number in main.
    #[cfg(test)]
    pub fn range_numbered(&self, number: u64) -> Result<Option<RangeView<'a>>> {
        let (mut low, mut high) = (0, self.ranges.1);
        while low < high {
            let middle = low + (high - low) / 2;
            let range = self.range(middle)?;
            match range.number.cmp(&number) {
                std::cmp::Ordering::Equal => return Ok(Some(range)),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Ok(None)
    }

    fn range(&self, index: u64) -> Result<RangeView<'a>> {
        let index = self.ranges.0.checked_add(index).ok_or_else(|| damaged("an index lies outside"))?;
        let record = self.manifest.record(Section::Ranges, RANGE_BYTES, index)?;
        let [number, group, rows, made_at, first_place, dead] = ManifestView::words(record);
        let (group, made_at) = (RowGroupId(group), CommitTs(made_at));
        let (manifest, columns) = (self.manifest, self.columns);
        Ok(RangeView { manifest, columns, number, group, rows, made_at, first_place, dead })
    }

    pub fn images(&self) -> impl Iterator<Item = Result<ImageView>> + use<'a> {
        let table = *self;
        (0..self.images.1).map(move |index| {
            let index = table.images.0.checked_add(index).ok_or_else(|| damaged("an index lies outside"))?;
            let record = table.manifest.record(Section::Images, IMAGE_BYTES, index)?;
            let [number, rows, place @ ..] = ManifestView::words::<6>(record);
            Ok(ImageView { number, rows, place: table.manifest.place(place)? })
        })
    }
}

impl RangeView<'_> {
    /// Where the segment of a column lies.
    pub fn segment(&self, column: u32) -> Result<Placed> {
        let index = self.first_place.checked_add(u64::from(column)).filter(|_| column < self.columns);
        let index = index.ok_or_else(|| damaged("an index lies outside"))?;
        self.manifest.place(ManifestView::words(self.manifest.record(Section::Places, PLACE_BYTES, index)?))
    }

    /// Positions that are no rows, a bit each; empty when none is.
    pub fn dead(&self) -> Result<Vec<u64>> {
        let (first, count) = counted(self.dead);
        let word = |index| {
            let record = self.manifest.record(Section::Dead, WORD_BYTES, index)?;
            Ok(eight(record, 0).unwrap_or_default())
        };
        (first..first + count).map(word).collect()
    }
}
