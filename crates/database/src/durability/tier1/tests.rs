use super::*;
use tidepool_base::{RowGroupId, SqlState, StoreId, TableId};
use tidepool_pool::words::Extent;
use xxhash_rust::xxh3::xxh3_64;

fn place(seed: u64) -> Placed {
    let extents = (0..1 + seed % 3).map(|step| Extent((seed * 7 + step * 100) as u32)).collect();
    let at = PoolPlace { extents, offset: seed * 4096, len: 1000 + seed };
    Placed { at, head: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) }
}

/// Small, so that a manifest lies on several.
const EXTENT_BYTES: usize = 1024;

fn header() -> ManifestHeader {
    let log = Some(LogPoint { term: 2, segment: 9 });
    ManifestHeader { term: 3, generation: 12, previous: 77, commit_ts: CommitTs(1 << 50), log }
}

/// Two tables and one without rows; of the second, ranges 0, 2, 4, …
fn manifest() -> Vec<u8> {
    let mut writer = ManifestWriter::default();
    writer.set_catalogue(b"{\"catalogue\": true}".to_vec());
    writer.table(TableId(16_384), StoreId(1), 2);
    writer.range(7, RowGroupId(70), 131_072, CommitTs(5), &[place(1), place(2)], &[]).unwrap();
    writer.image(4, 10, &place(3)).unwrap();
    writer.table(TableId(16_390), StoreId(2), 0);
    writer.table(TableId(16_400), StoreId(3), 1);
    for number in 0..50 {
        let dead: Vec<u64> = (0..number % 4).map(|word| 1 << word).collect();
        writer.range(2 * number, RowGroupId(100 + number), 64 * 4, CommitTs(number), &[place(number)], &dead).unwrap();
    }
    let own = |count: usize| Ok((0..count as u32).map(|index| Extent(1000 - index)).collect());
    writer.finish(&header(), EXTENT_BYTES, own).unwrap()
}

#[test]
fn what_is_written_is_read_in_place() {
    let bytes = manifest();
    let extents = bytes.len().div_ceil(EXTENT_BYTES);
    assert!(extents > 3);
    assert_eq!(ManifestView::extent_of(&bytes[..HEADER_BYTES]).unwrap(), (bytes.len() as u64, extents));
    let own: Vec<Extent> = (0..extents as u32).map(|index| Extent(1000 - index)).collect();
    assert_eq!(ManifestView::own_extents_in(&bytes[..EXTENT_BYTES]).collect::<Vec<_>>(), own);
    let manifest = ManifestView::read(&bytes).unwrap();
    assert_eq!((manifest.header(), manifest.catalogue()), (&header(), &b"{\"catalogue\": true}"[..]));
    let tables: Vec<TableView<'_>> = manifest.tables().collect::<Result<_, _>>().unwrap();
    assert_eq!(
        tables.iter().map(|table| (table.id.0, table.store.0, table.columns)).collect::<Vec<_>>(),
        [(16_384, 1, 2), (16_390, 2, 0), (16_400, 3, 1)]
    );
    let range = tables[0].range_numbered(7).unwrap().unwrap();
    assert_eq!((range.group, range.rows, range.made_at), (RowGroupId(70), 131_072, CommitTs(5)));
    assert_eq!([range.segment(0).unwrap(), range.segment(1).unwrap()], [place(1), place(2)]);
    assert!(range.segment(2).is_err());
    let images: Vec<_> = tables[0].images().collect::<Result<_, _>>().unwrap();
    assert_eq!(
        images.iter().map(|image| (image.number, image.rows, image.place.clone())).collect::<Vec<_>>(),
        [(4, 10, place(3))]
    );
    assert_eq!((tables[1].ranges().len(), tables[1].images().count()), (0, 0));
    let named: Vec<Extent> = manifest.named_extents().collect();
    assert!([1, 2, 3, 49].iter().all(|seed| place(*seed).at.extents.iter().all(|extent| named.contains(extent))));
    assert!(own.iter().all(|extent| named.contains(extent)));
    assert_eq!(tables[2].ranges().len(), 50);
    for number in 0..50 {
        assert!(tables[2].range_numbered(2 * number + 1).unwrap().is_none());
        let range = tables[2].range_numbered(2 * number).unwrap().unwrap();
        assert_eq!((range.group.0, range.segment(0).unwrap()), (100 + number, place(number)));
        assert_eq!(range.dead().unwrap(), (0..number % 4).map(|word| 1 << word).collect::<Vec<u64>>());
    }
}

#[test]
fn any_byte_that_changes_is_found() {
    let bytes = manifest();
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        assert!(ManifestView::read(&changed).is_err(), "byte {at}");
    }
    for len in 0..bytes.len() {
        assert!(ManifestView::read(&bytes[..len]).is_err(), "{len} bytes");
    }
}

/// Indexes that lie outside are errors also where the checksums are right, as those of a manifest by a mistaken program are.
#[test]
fn indexes_that_lie_outside_are_errors() {
    let right = manifest();
    let resealed = |at: usize, word: u64| {
        let mut bytes = right.clone();
        bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        let sum = xxh3_64(&bytes[HEADER_BYTES..]);
        bytes[BODY_SUM_AT..BODY_SUM_AT + 8].copy_from_slice(&sum.to_le_bytes());
        let sum = xxh3_64(&bytes[..HEADER_SUM_AT]);
        bytes[HEADER_SUM_AT..HEADER_SUM_AT + 8].copy_from_slice(&sum.to_le_bytes());
        bytes
    };
    let follow = |bytes: &[u8]| {
        let Ok(manifest) = ManifestView::read(bytes) else { return };
        for table in manifest.tables().flatten() {
            // A count may be anything.
            for range in table.ranges().take(1000).flatten() {
                (0..table.columns.min(8)).for_each(|column| drop(range.segment(column)));
                drop(range.dead());
            }
            table.images().take(1000).for_each(drop);
            drop(table.range_numbered(3));
        }
    };
    for at in (SECTIONS_AT..right.len() - 8).step_by(8) {
        for word in [u64::MAX, 1 << 39, 1 << 63, (right.len() / 3) as u64] {
            follow(&resealed(at, word));
        }
    }
}

#[test]
fn mistakes_in_writing_and_other_formats_are_told() {
    let mut writer = ManifestWriter::default();
    assert!(writer.range(0, RowGroupId(1), 1, CommitTs(0), &[], &[]).is_err());
    assert!(writer.image(1, 1, &place(1)).is_err());
    writer.table(TableId(1), StoreId(1), 1);
    assert!(writer.range(0, RowGroupId(1), 1, CommitTs(0), &[], &[]).is_err(), "a column is missing");
    writer.range(5, RowGroupId(1), 1, CommitTs(0), &[place(1)], &[]).unwrap();
    assert!(writer.range(5, RowGroupId(2), 1, CommitTs(0), &[place(1)], &[]).is_err(), "twice");
    let mut other = manifest();
    other[8] = 2;
    let sum = xxh3_64(&other[..HEADER_SUM_AT]);
    other[HEADER_SUM_AT..HEADER_SUM_AT + 8].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(ManifestView::read(&other).unwrap_err().code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
}
