//! Rows as `COPY` reads them: text, CSV and binary.

use arrow_array::RecordBatch;
use tidepool_base::{Result, SqlType, TableId};
use tidepool_database::copy::{CopyFormat, CopyHeader, CopyOnError, CopyOptions, RowReader};
use tidepool_database::text::TextSettings;
use tidepool_table::{ColumnDef, TableDef};

fn table() -> TableDef {
    let types = [
        SqlType::Integer,
        SqlType::Text,
        SqlType::Numeric { precision: 10, scale: 2 },
        SqlType::TIMESTAMPTZ,
        SqlType::Boolean,
        SqlType::DoublePrecision,
        SqlType::Date,
        SqlType::Interval,
        SqlType::Bytea,
        SqlType::Uuid,
        SqlType::Char { length: 3 },
    ];
    let column = |(index, sql_type): (usize, &SqlType)| ColumnDef::new(format!("c{index}"), *sql_type);
    TableDef::new(TableId(20_000), "t", types.iter().enumerate().map(column).collect(), Vec::new())
}

/// The first byte chooses the format and the options, the second one the pieces in which the rest comes.
fn options(choice: u8) -> CopyOptions {
    let mut options = CopyOptions::new(match choice % 3 {
        0 => CopyFormat::Text,
        1 => CopyFormat::Csv,
        _ => CopyFormat::Binary,
    });
    if choice & 0x10 != 0 {
        options.header = CopyHeader::Yes;
    }
    if choice & 0x20 != 0 {
        options.on_error = CopyOnError::Ignore;
    }
    if choice & 0x40 != 0 {
        options.delimiter = b'|';
    }
    options
}

pub fn seeds() -> Vec<Vec<u8>> {
    let mut text = vec![0, 7];
    text.extend_from_slice(
        b"1\tone\\ttwo\t1.25\t2024-02-29 12:00:00+01\tt\t1e10\t0044-03-15 BC\t1 mon -2 days\t\\\\x00ff\t\
          a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11\tab\n\\N\t\\N\t\\N\t\\N\t\\N\t\\N\t\\N\t\\N\t\\N\t\\N\t\\N\n\\.\n",
    );
    let mut csv = vec![1, 40];
    csv.extend_from_slice(
        b"1,\"one, \"\"two\"\"\nthree\",-0.5,infinity,f,NaN,infinity,00:00:01,\\x,a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11,a\r\n2,,,,,,,,,,\r\n",
    );
    let mut binary = vec![2, 255];
    binary.extend_from_slice(b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0");
    binary.extend_from_slice(&11_i16.to_be_bytes());
    let values: [&[u8]; 11] = [
        &5_i32.to_be_bytes(),
        b"text",
        b"\0\x02\0\0\0\0\0\x02\0\x01\x09\xc4",
        &725_846_400_000_000_i64.to_be_bytes(),
        &[1],
        &2.5_f64.to_be_bytes(),
        &9000_i32.to_be_bytes(),
        b"\0\0\0\0\0\x0f\x42\x40\0\0\0\x01\0\0\0\x02",
        &[0, 255],
        &[7; 16],
        b"ab ",
    ];
    for value in values {
        binary.extend_from_slice(&(value.len() as i32).to_be_bytes());
        binary.extend_from_slice(value);
    }
    binary.extend_from_slice(&(-1_i16).to_be_bytes());
    let with = |seed: &[u8], choice: u8| [&[choice], &seed[1..]].concat();
    vec![with(&text, 0x30), with(&csv, 0x10), with(&csv, 0x71), text, csv, binary]
}

/// All rows, read from pieces of `len` bytes.
fn read(def: &TableDef, options: &CopyOptions, bytes: &[u8], len: usize) -> Result<(Vec<RecordBatch>, u64)> {
    let columns: Vec<usize> = (0..def.columns.len()).collect();
    let mut reader = RowReader::new(def, &columns, options, &TextSettings::default())?;
    let mut batches = Vec::new();
    for piece in bytes.chunks(len.max(1)) {
        batches.extend(reader.feed(piece)?);
    }
    batches.extend(reader.finish()?);
    Ok((batches, reader.ignored()))
}

/// Whatever the bytes are, the rows are the same in whichever pieces they come, or the same error comes of them.
pub fn run(input: &[u8]) {
    let [choice, len, bytes @ ..] = input else { return };
    let (def, options) = (table(), options(*choice));
    let whole = read(&def, &options, bytes, bytes.len());
    let pieces = read(&def, &options, bytes, usize::from(*len));
    let rows = |batches: &[RecordBatch]| batches.iter().map(RecordBatch::num_rows).sum::<usize>();
    match (whole, pieces) {
        (Ok((whole, ignored)), Ok((pieces, ignored_in_pieces))) => {
            assert_eq!((rows(&whole), ignored), (rows(&pieces), ignored_in_pieces));
        }
        (Err(whole), Err(pieces)) => assert_eq!(whole.code(), pieces.code(), "{whole} or {pieces}"),
        (whole, pieces) => panic!("{:?} whole, {:?} in pieces", whole.map(|_| ()), pieces.map(|_| ())),
    }
}
