//! Segments of main: blobs that a data folder or far memory holds.

use arrow_array::types::{Decimal128Type, Int32Type};
use arrow_array::{ArrayRef, BooleanArray, Float64Array, PrimitiveArray, StringViewArray};
use std::cell::OnceCell;
use std::sync::Arc;
use tidepool_base::SqlType;
use tidepool_device::Location;
use tidepool_table::{ColumnDef, Segment};
use tidepool_tablespace::{Tablespace, TablespaceConfig, Tablespaces};
use xxhash_rust::xxh3::Xxh3Default;

const TYPES: [SqlType; 5] = [
    SqlType::Integer,
    SqlType::Text,
    SqlType::Numeric { precision: 30, scale: 4 },
    SqlType::Boolean,
    SqlType::DoublePrecision,
];

thread_local! {
    static SPACES: OnceCell<Tablespaces> = const { OnceCell::new() };
}

fn space() -> Arc<Tablespace> {
    let config = |name: &str| TablespaceConfig {
        name: name.into(),
        location: Location::Anon,
        size_bytes: Some(64 << 20),
        profile: None,
        profiles: Vec::new(),
        huge_pages: false,
        populate_bytes: 0,
    };
    SPACES.with(|spaces| {
        let open = || Tablespaces::open(config("near"), config("far")).unwrap_or_else(|error| panic!("{error}"));
        spaces.get_or_init(open).near()
    })
}

/// Columns that call for each encoding: constant, packed, dictionary, text by symbols, floats, with and without NULLs.
fn arrays() -> Vec<(u8, ArrayRef)> {
    let ints = |f: &dyn Fn(i32) -> Option<i32>| -> ArrayRef {
        Arc::new((0..3000).map(f).collect::<PrimitiveArray<Int32Type>>())
    };
    let texts =
        |f: &dyn Fn(i32) -> Option<String>| -> ArrayRef { Arc::new((0..700).map(f).collect::<StringViewArray>()) };
    let numbers = |f: &dyn Fn(i128) -> Option<i128>| -> ArrayRef {
        let array: PrimitiveArray<Decimal128Type> = (0..500).map(f).collect();
        Arc::new(array.with_precision_and_scale(30, 4).unwrap_or_else(|error| panic!("{error}")))
    };
    vec![
        (0, ints(&|_| Some(7))),
        (0, ints(&|row| (row % 9 != 0).then_some(row * row))),
        (0, ints(&|row| Some(row.wrapping_mul(0x9e37_79b9_u32 as i32)))),
        (0, ints(&|row| Some(row / 100))),
        (0, ints(&|_| None)),
        (1, texts(&|row| Some(format!("value {}", row % 12)))),
        (1, texts(&|row| (row % 5 != 0).then(|| format!("a longer text, number {row}, that differs in each row")))),
        (2, numbers(&|row| Some(row * 10_i128.pow(20)))),
        (2, numbers(&|row| (row % 3 == 0).then_some(-row))),
        (3, Arc::new((0..900).map(|row| (row % 7 != 0).then_some(row % 2 == 0)).collect::<BooleanArray>())),
        (4, Arc::new((0..900).map(|row| Some(f64::from(row) / 3.0)).collect::<Float64Array>())),
        (4, Arc::new((0..900).map(|row| Some(f64::from(row) / 100.0)).collect::<Float64Array>())),
    ]
}

pub fn seeds() -> Vec<Vec<u8>> {
    let space = space();
    let seed = |(choice, array): (u8, ArrayRef)| {
        let field = ColumnDef::new("c", TYPES[usize::from(choice)]).field();
        let segment = Segment::encode(&array, &field, &space).unwrap_or_else(|error| panic!("{error}"));
        [&[choice], segment.read_whole().unwrap_or_else(|error| panic!("{error}"))].concat()
    };
    arrays().into_iter().map(seed).collect()
}

/// The right checksum for a blob as it is: XXH3 of bytes 0 to 15 and of all from byte 24 on.
fn seal(blob: &mut [u8]) {
    if blob.len() < 24 {
        return;
    }
    let mut hasher = Xxh3Default::new();
    hasher.update(&blob[..16]);
    hasher.update(&blob[24..]);
    let checksum = hasher.digest();
    blob[16..24].copy_from_slice(&checksum.to_le_bytes());
}

/// A blob is refused, or every row of it can be read. The first byte is the column's type, and says whether the checksum is
/// put right before.
pub fn run(input: &[u8]) {
    let Some((choice, blob)) = input.split_first() else { return };
    let mut blob = blob.to_vec();
    if choice & 0x80 == 0 {
        seal(&mut blob);
    }
    let field = ColumnDef::new("c", TYPES[usize::from(choice & 0x7f) % TYPES.len()]).field();
    let Ok(segment) = Segment::load(&blob, &field, &space()) else { return };
    let rows = segment.rows();
    let read = |what: &str, result: tidepool_base::Result<ArrayRef>, len: usize| match result {
        Ok(array) => assert_eq!(array.len(), len, "{what}"),
        Err(error) => panic!("a segment that was found sound cannot be read, {what}: {error}"),
    };
    read("whole", segment.decode(0..rows), rows);
    read("its second half", segment.decode(rows / 2..rows), rows - rows / 2);
    let chosen: Vec<u32> = (0..rows as u32).step_by(3).collect();
    read("every third row", segment.take(&chosen), chosen.len());
    segment.check().unwrap_or_else(|error| panic!("sound at first, and then: {error}"));
    let _ = (segment.statistics(), segment.raw_bytes(), segment.encoding());
}
