use super::*;
use crate::text::TextSettings;
use arrow_array::RecordBatch;
use arrow_select::concat::concat_batches;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tidepool_base::{SqlType, TableId};
use tidepool_table::{ColumnDef, TableDef};

fn table(columns: &[(&str, SqlType)]) -> TableDef {
    let columns = columns.iter().map(|(name, sql_type)| ColumnDef::new(*name, *sql_type)).collect();
    TableDef::new(TableId(16384), "t", columns, vec![])
}

fn two_columns() -> TableDef {
    table(&[("a", SqlType::Integer), ("b", SqlType::Text)])
}

fn csv() -> CopyOptions {
    CopyOptions::new(CopyFormat::Csv)
}

fn text() -> CopyOptions {
    CopyOptions::new(CopyFormat::Text)
}

fn read_pieces(def: &TableDef, options: &CopyOptions, pieces: &[&[u8]]) -> Result<Option<RecordBatch>> {
    let columns: Vec<usize> = (0..def.columns.len()).collect();
    let mut reader = RowReader::new(def, &columns, options, &TextSettings::default())?;
    let mut batches = Vec::new();
    for piece in pieces {
        batches.extend(reader.feed(piece)?);
    }
    batches.extend(reader.finish()?);
    Ok(batches.first().map(RecordBatch::schema).map(|schema| concat_batches(&schema, &batches).unwrap()))
}

/// Rows as the text format writes them, for comparison.
fn rows(def: &TableDef, options: &CopyOptions, input: &[u8]) -> Result<Vec<String>> {
    Ok(read_pieces(def, options, &[input])?.map_or_else(Vec::new, |batch| shown(def, &batch)))
}

fn shown(def: &TableDef, batch: &RecordBatch) -> Vec<String> {
    String::from_utf8(written(def, &text(), batch)).unwrap().lines().map(str::to_owned).collect()
}

fn written(def: &TableDef, options: &CopyOptions, batch: &RecordBatch) -> Vec<u8> {
    let names: Vec<String> = def.columns.iter().map(|column| column.name.clone()).collect();
    let types: Vec<SqlType> = def.columns.iter().map(|column| column.sql_type).collect();
    let mut writer = RowWriter::new(&names, &types, options, &TextSettings::default()).unwrap();
    let mut out = EncodedRows::default();
    writer.start(&mut out);
    writer.write(batch, &mut out).unwrap();
    writer.finish(&mut out);
    assert_eq!(out.ends.last(), Some(&out.bytes.len()));
    out.bytes
}

#[test]
fn text_rows_are_read() {
    let def = two_columns();
    for (input, expected) in [
        ("1\tx\n2\t\\N\n", vec!["1\tx", "2\t\\N"]),
        ("1\tx\n2\ty", vec!["1\tx", "2\ty"]),
        ("1\t\n", vec!["1\t"]),
        ("1\ta\\tb\\\\c\\nd\n", vec!["1\ta\\tb\\\\c\\nd"]),
        ("1\ta\\\nb\n", vec!["1\ta\\nb"]),
        ("1\t\\x41\\102\\q\n", vec!["1\tABq"]),
        ("1\tx\r\n2\ty\r\n", vec!["1\tx", "2\ty"]),
        ("1\tx\r2\ty\r", vec!["1\tx", "2\ty"]),
        ("1\tx\n\\.\nnonsense", vec!["1\tx"]),
        ("1\t\\xc3\\xa9\n", vec!["1\té"]),
        ("", vec![]),
    ] {
        assert_eq!(rows(&def, &text(), input.as_bytes()).unwrap(), expected, "{input:?}");
    }
}

#[test]
fn csv_rows_are_read() {
    let def = two_columns();
    for (input, expected) in [
        ("1,x\n2,\n3,\"\"\n", vec!["1\tx", "2\t\\N", "3\t"]),
        ("1,\"a,b\"\"c\"\n", vec!["1\ta,b\"c"]),
        ("1,\"two\nlines\"\n2,y\n", vec!["1\ttwo\\nlines", "2\ty"]),
        ("1,a\"b,c\"d\n", vec!["1\tab,cd"]),
        ("\"1\",\"x\"\r\n2,\"r\r\nn\"\r\n", vec!["1\tx", "2\tr\\r\\nn"]),
        ("1,x\n\\.\n2,y\n", vec!["1\tx"]),
        ("1,\\n\n", vec!["1\t\\\\n"]),
    ] {
        assert_eq!(rows(&def, &csv(), input.as_bytes()).unwrap(), expected, "{input:?}");
    }
    let escape = CopyOptions { escape: b'\\', ..csv() };
    assert_eq!(rows(&def, &escape, b"1,\"a\\\"b\\\\\"\n").unwrap(), ["1\ta\"b\\\\"]);
    let nulls = CopyOptions { null: "NIL".to_owned(), ..csv() };
    assert_eq!(rows(&def, &nulls, b"1,NIL\n2,\"NIL\"\n3,\n").unwrap(), ["1\t\\N", "2\tNIL", "3\t"]);
    let force = CopyOptions { force_null: Some(vec!["b".to_owned()]), ..csv() };
    assert_eq!(rows(&def, &force, b"1,\"\"\n").unwrap(), ["1\t\\N"]);
    let force = CopyOptions { force_not_null: Some(vec!["b".to_owned()]), ..csv() };
    assert_eq!(rows(&def, &force, b"1,\n").unwrap(), ["1\t"]);
    let one = table(&[("a", SqlType::Text)]);
    assert_eq!(rows(&one, &csv(), b"x\n\ny\n").unwrap(), ["x", "\\N", "y"]);
}

#[test]
fn headers_are_skipped_or_matched() {
    let def = two_columns();
    let skip = CopyOptions { header: CopyHeader::Yes, ..csv() };
    assert_eq!(rows(&def, &skip, b"whatever\n1,x\n").unwrap(), ["1\tx"]);
    let matching = CopyOptions { header: CopyHeader::Match, ..csv() };
    assert_eq!(rows(&def, &matching, b"a,\"b\"\n1,x\n").unwrap(), ["1\tx"]);
    let error = rows(&def, &matching, b"a,c\n1,x\n").unwrap_err();
    assert_eq!(error.message(), "column name mismatch in header line field 2: got \"c\", expected \"b\"");
    let error = rows(&def, &matching, b"a\n1,x\n").unwrap_err();
    assert_eq!(error.message(), "wrong number of fields in header line: got 1, expected 2");
}

#[test]
fn errors_say_what_and_where() {
    let def = two_columns();
    for (options, input, code, message, context) in [
        (text(), &b"1\tx\n2\n"[..], "22P04", "missing data for column \"b\"", "COPY t, line 2: \"2\""),
        (text(), b"1\tx\ty\n", "22P04", "extra data after last expected column", "COPY t, line 1: \"1\tx\ty\""),
        (csv(), b"1,x\n\n2,y\n", "22P02", "invalid input syntax for type integer: \"\"", ""),
        (
            csv(),
            b"1,\"a\nb\"\nzwei,y\n",
            "22P02",
            "invalid input syntax for type integer: \"zwei\"",
            "COPY t, line 3, column a: \"zwei\"",
        ),
        (
            text(),
            b"99999999999\tx\n",
            "22003",
            "value \"99999999999\" is out of range for type integer",
            "COPY t, line 1, column a: \"99999999999\"",
        ),
        (csv(), b"1,\"open\n", "22P04", "unterminated CSV quoted field", "COPY t, line 2: \"1,\"open\n\""),
        (csv(), b"1,x\n2,\xff\n", "22021", "invalid byte sequence for encoding \"UTF8\": 0xff", "COPY t, line 2"),
        (csv(), b"1,a\0b\n", "22021", "invalid byte sequence for encoding \"UTF8\": 0x00", "COPY t, line 1"),
        (csv(), b"1,x\n2,y\rz\n", "22P04", "unquoted carriage return found in data", "COPY t, line 2"),
        (text(), b"1\tx\r\n2\ty\n", "22P04", "literal newline found in data", "COPY t, line 2"),
    ] {
        let error = rows(&def, &options, input).unwrap_err();
        let shown = String::from_utf8_lossy(input);
        // An empty line of two columns is a missing one, as in PostgreSQL; an empty first field is NULL in CSV.
        if context.is_empty() {
            assert_eq!(error.message(), "missing data for column \"b\"", "{shown:?}");
            continue;
        }
        assert_eq!((error.code().code(), error.message()), (code, message), "{shown:?}");
        assert_eq!(error.context(), Some(context), "{shown:?}");
    }
}

#[test]
fn bad_rows_can_be_left_out() {
    let def = two_columns();
    let options = CopyOptions { on_error: CopyOnError::Ignore, ..csv() };
    let columns = [0, 1];
    let mut reader = RowReader::new(&def, &columns, &options, &TextSettings::default()).unwrap();
    assert!(reader.feed(b"1,x\nzwei,y\n3,z\n").unwrap().is_empty());
    let batch = reader.finish().unwrap().unwrap();
    assert_eq!(shown(&def, &batch), ["1\tx", "3\tz"]);
    assert_eq!(reader.ignored(), 1);
    assert!(reader.feed(b"4\n").and_then(|_| reader.finish()).is_err(), "a missing column is no bad value");
}

#[test]
fn some_columns_in_any_order_can_be_read() {
    let def = table(&[("a", SqlType::Integer), ("b", SqlType::Text), ("c", SqlType::Date)]);
    let mut reader = RowReader::new(&def, &[2, 0], &csv(), &TextSettings::default()).unwrap();
    reader.feed(b"2020-01-05,7\n").unwrap();
    let batch = reader.finish().unwrap().unwrap();
    assert_eq!(batch.schema().field(0).name(), "c");
    assert_eq!(batch.num_columns(), 2);
}

const ALL_TYPES: &[(&str, SqlType)] = &[
    ("bool", SqlType::Boolean),
    ("small", SqlType::SmallInt),
    ("int", SqlType::Integer),
    ("big", SqlType::BigInt),
    ("real", SqlType::Real),
    ("double", SqlType::DoublePrecision),
    ("num", SqlType::Numeric { precision: 20, scale: 5 }),
    ("unconstrained", SqlType::UnconstrainedNumeric),
    ("text", SqlType::Text),
    ("varchar", SqlType::Varchar { length_max: Some(16) }),
    ("char", SqlType::Char { length: 8 }),
    ("date", SqlType::Date),
    ("ts", SqlType::TIMESTAMP),
    ("tstz", SqlType::TIMESTAMPTZ),
    ("interval", SqlType::Interval),
    ("bytea", SqlType::Bytea),
    ("uuid", SqlType::Uuid),
    ("json", SqlType::Json),
    ("jsonb", SqlType::Jsonb),
];

/// A random value's text; texts are full of what the formats treat specially.
fn random_value(random: &mut StdRng, sql_type: SqlType) -> String {
    let nasty = ["a", "\"", ",", "\\", "\n", "\t", "é", " ", "\r\n", "\\.", "\\N", "NULL", "'", "\r", "😀"];
    let word = |random: &mut StdRng, length: usize| {
        (0..random.random_range(0..=length)).map(|_| nasty[random.random_range(0..nasty.len())]).collect::<String>()
    };
    match sql_type {
        SqlType::Boolean => ["t", "f"][random.random_range(0..2)].to_owned(),
        SqlType::SmallInt => random.random::<i16>().to_string(),
        SqlType::Integer => random.random::<i32>().to_string(),
        SqlType::BigInt => random.random::<i64>().to_string(),
        SqlType::Real => (random.random::<f32>() * 1e10).to_string(),
        SqlType::DoublePrecision => f64::from_bits(random.random::<u64>() & !(0x7ff << 52) | (1000 << 52)).to_string(),
        SqlType::Numeric { .. } => {
            format!("{}.{:05}", random.random_range(-999_999_999i64..999_999_999), random.random_range(0..100_000))
        }
        SqlType::UnconstrainedNumeric => {
            let scale = random.random_range(0..30);
            format!("{}.{:0scale$}", random.random_range(-999_999i64..999_999), random.random_range(0..10u64))
        }
        SqlType::Text => word(random, 8),
        SqlType::Varchar { .. } => word(random, 4),
        SqlType::Char { .. } => word(random, 2),
        SqlType::Date => {
            format!(
                "{}-{:02}-{:02}",
                random.random_range(1000..9999),
                random.random_range(1..13),
                random.random_range(1..29)
            )
        }
        SqlType::Timestamp { .. } | SqlType::TimestampTz { .. } => format!(
            "{}-05-06 {:02}:{:02}:59.{:06}",
            random.random_range(1000..9999),
            random.random_range(0..24),
            random.random_range(0..60),
            random.random_range(0..1_000_000)
        ),
        SqlType::Interval => format!(
            "{} mons {} days {:02}:10:11.5",
            random.random_range(-100..100),
            random.random_range(-100..100),
            random.random_range(0..100)
        ),
        SqlType::Bytea => format!("\\x{:016x}", random.random::<u64>()),
        SqlType::Uuid => format!("{:032x}", random.random::<u128>()),
        SqlType::Json | SqlType::Jsonb => serde_json::to_string(&word(random, 5)).unwrap(),
    }
}

fn random_batch(random: &mut StdRng, def: &TableDef, rows: usize) -> RecordBatch {
    let mut columns = Vec::new();
    for column in &def.columns {
        let mut reader = crate::text::TextReader::new(column.sql_type, &TextSettings::default());
        for _ in 0..rows {
            if random.random_bool(0.15) {
                reader.append_null();
            } else {
                let value = random_value(random, column.sql_type);
                reader.append(&value).unwrap_or_else(|error| panic!("{}: {value:?}: {error}", column.sql_type));
            }
        }
        columns.push(reader.finish());
    }
    RecordBatch::try_new(def.arrow_schema(), columns).unwrap()
}

#[test]
fn what_is_written_reads_back_wherever_it_is_cut() {
    let def = table(ALL_TYPES);
    let mut random = StdRng::seed_from_u64(1);
    let formats = [
        text(),
        csv(),
        CopyOptions { escape: b'\\', quote: b'\'', delimiter: b'|', ..csv() },
        CopyOptions { force_quote: Some(vec![]), header: CopyHeader::Match, null: "NULL".to_owned(), ..csv() },
        CopyOptions { delimiter: b';', null: "".to_owned(), header: CopyHeader::Yes, ..text() },
        CopyOptions::new(CopyFormat::Binary),
    ];
    for round in 0..40 {
        let batch = random_batch(&mut random, &def, 1 + round * 3);
        for options in &formats {
            let bytes = written(&def, options, &batch);
            let mut pieces: Vec<&[u8]> = Vec::new();
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let length = random.random_range(1..=rest.len().min(if round % 2 == 0 { 3 } else { 500 }));
                let (piece, after) = rest.split_at(length);
                pieces.push(piece);
                rest = after;
            }
            let whole = read_pieces(&def, options, &[&bytes]).unwrap().unwrap();
            let cut = read_pieces(&def, options, &pieces).unwrap().unwrap();
            assert_eq!(whole, cut);
            // An empty text and NULL cannot be told apart where NULL is written as nothing.
            if !(options.format == CopyFormat::Text && options.null.is_empty()) {
                assert_eq!(whole.columns(), batch.columns(), "{options:?}");
            }
        }
    }
}

#[test]
fn random_bytes_never_panic() {
    let def = two_columns();
    let mut random = StdRng::seed_from_u64(2);
    let alphabet = b"1,\"\\\n\r\t.x\xc3";
    for _ in 0..5_000 {
        let bytes: Vec<u8> =
            (0..random.random_range(0..40)).map(|_| alphabet[random.random_range(0..alphabet.len())]).collect();
        for options in [text(), csv(), CopyOptions { escape: b'\\', ..csv() }] {
            let at = random.random_range(0..=bytes.len());
            let whole = read_pieces(&def, &options, &[&bytes]);
            let cut = read_pieces(&def, &options, &[&bytes[..at], &bytes[at..]]);
            assert_eq!(whole.is_ok(), cut.is_ok(), "{bytes:?} cut at {at}, {options:?}");
            if let (Ok(whole), Ok(cut)) = (whole, cut) {
                assert_eq!(whole, cut);
            }
        }
    }
}

#[test]
fn a_null_that_is_not_allowed_is_placed() {
    let mut def = two_columns();
    def.columns[0].nullable = false;
    let place = |options: &CopyOptions, input: &[u8]| {
        let mut reader = RowReader::new(&def, &[0, 1], options, &TextSettings::default()).unwrap();
        reader.feed(input).unwrap();
        reader.null_place().map(str::to_owned)
    };
    assert_eq!(place(&csv(), b"1,x\n,y\n,z\n").as_deref(), Some("COPY t, line 2: \",y\""));
    assert_eq!(place(&csv(), b"1,\n2,\n"), None);
    let ignore = CopyOptions { on_error: CopyOnError::Ignore, ..text() };
    let input = b"1\tx\n\\N\ty\n";
    assert_eq!(place(&ignore, input).as_deref(), Some("COPY t, line 2: \"\\N\ty\""));
    let row = b"\0\x02\0\0\0\x04\0\0\0\x07\xff\xff\xff\xff";
    let null = b"\0\x02\xff\xff\xff\xff\xff\xff\xff\xff";
    let binary = [b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0", &row[..], null].concat();
    assert_eq!(place(&CopyOptions::new(CopyFormat::Binary), &binary).as_deref(), Some("COPY t, line 2"));
}

#[test]
fn binary_is_what_postgresql_writes() {
    let def = two_columns();
    // COPY (VALUES (1, 'x'), (NULL, NULL)) TO … WITH (FORMAT binary), by PostgreSQL 15.
    let file = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0\
        \0\x02\0\0\0\x04\0\0\0\x01\0\0\0\x01x\
        \0\x02\xff\xff\xff\xff\xff\xff\xff\xff\
        \xff\xff";
    let binary = CopyOptions::new(CopyFormat::Binary);
    assert_eq!(rows(&def, &binary, file).unwrap(), ["1\tx", "\\N\t\\N"]);
    let batch = read_pieces(&def, &binary, &[file]).unwrap().unwrap();
    assert_eq!(written(&def, &binary, &batch), file);
    // The trailer may be missing, and a header's extension is passed over.
    assert_eq!(rows(&def, &binary, &file[..file.len() - 2]).unwrap().len(), 2);
    let mut extended = file.to_vec();
    extended[18] = 3;
    extended.splice(19..19, *b"abc");
    assert_eq!(rows(&def, &binary, &extended).unwrap().len(), 2);

    let changed = |at: usize, value: u8| {
        let mut bytes = file.to_vec();
        bytes[at] = value;
        bytes
    };
    for (input, message, context) in [
        (b"1,x\n".to_vec(), "COPY file signature not recognized", None),
        (file[..9].to_vec(), "COPY file signature not recognized", None),
        (Vec::new(), "COPY file signature not recognized", None),
        (file[..13].to_vec(), "invalid COPY file header (missing flags)", None),
        (file[..17].to_vec(), "invalid COPY file header (missing length)", None),
        (changed(12, 1), "invalid COPY file header (WITH OIDS)", None),
        (changed(11, 1), "unrecognized critical flags in COPY file header", None),
        (changed(15, 0x80), "invalid COPY file header (missing length)", None),
        (changed(15, 1), "invalid COPY file header (wrong length)", None),
        (changed(20, 3), "row field count is 3, expected 2", Some("COPY t, line 1")),
        (changed(21, 0x80), "invalid field size", Some("COPY t, line 1, column a")),
        (changed(30, 9), "unexpected EOF in COPY data", Some("COPY t, line 1")),
        (file[..file.len() - 5].to_vec(), "unexpected EOF in COPY data", Some("COPY t, line 2")),
        ([&file[..], b"x"].concat(), "received copy data after EOF marker", Some("COPY t, line 3")),
    ] {
        let error = rows(&def, &binary, &input).unwrap_err();
        assert_eq!((error.code().code(), error.message(), error.context()), ("22P04", message, context));
    }
    let three_bytes = [&file[..19], b"\0\x02\0\0\0\x03abc\xff\xff\xff\xff\xff\xff"].concat();
    let error = rows(&def, &binary, &three_bytes).unwrap_err();
    assert_eq!((error.code().code(), error.context()), ("22P03", Some("COPY t, line 1, column a")));
}

#[test]
fn damaged_binary_data_is_refused_or_read_but_never_panics() {
    let def = table(ALL_TYPES);
    let mut random = StdRng::seed_from_u64(2);
    let options = CopyOptions::new(CopyFormat::Binary);
    let bytes = written(&def, &options, &random_batch(&mut random, &def, 20));
    for _ in 0..3_000 {
        let mut damaged = bytes.clone();
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..damaged.len());
            damaged[at] ^= 1 << random.random_range(0..8);
        }
        damaged.truncate(random.random_range(0..=damaged.len()));
        let _ = read_pieces(&def, &options, &[&damaged]);
    }
}

#[test]
fn batches_have_at_most_8192_rows() {
    let def = table(&[("a", SqlType::Integer)]);
    let input: String = (0..20_000).map(|value| format!("{value}\n")).collect();
    let mut reader = RowReader::new(&def, &[0], &csv(), &TextSettings::default()).unwrap();
    let batches = reader.feed(input.as_bytes()).unwrap();
    let rows: Vec<usize> = batches.iter().chain(&reader.finish().unwrap()).map(RecordBatch::num_rows).collect();
    assert_eq!(rows, [8192, 8192, 3616]);
}

mod parquet_files {
    use super::*;
    use arrow_array::{ArrayRef, StringArray};
    use std::path::Path;
    use std::sync::Arc;

    fn all_names_and_types(def: &TableDef) -> (Vec<String>, Vec<SqlType>) {
        def.columns.iter().map(|column| (column.name.clone(), column.sql_type)).unzip()
    }

    #[test]
    fn every_type_survives_a_parquet_file() {
        let def = table(ALL_TYPES);
        let folder = tempfile::tempdir().unwrap();
        let mut random = StdRng::seed_from_u64(3);
        let batch = random_batch(&mut random, &def, 10_000);
        let (names, types) = all_names_and_types(&def);
        for compression in [ParquetCompression::None, ParquetCompression::Snappy, ParquetCompression::Zstd] {
            let path = folder.path().join("all.parquet");
            let options = CopyOptions { compression, ..CopyOptions::new(CopyFormat::Parquet) };
            let mut writer = ParquetWriter::create_with(&path, &names, &types, batch.schema(), &options).unwrap();
            writer.write(&batch).unwrap();
            assert_eq!(writer.finish().unwrap(), 10_000);
            let columns: Vec<usize> = (0..def.columns.len()).collect();
            let batches: Vec<RecordBatch> =
                read_parquet(&path, &def, &columns, &TextSettings::default()).unwrap().collect::<Result<_>>().unwrap();
            assert!(batches.len() > 1);
            let back = concat_batches(&batches[0].schema(), &batches).unwrap();
            for (column, (left, right)) in def.columns.iter().zip(back.columns().iter().zip(batch.columns())) {
                assert_eq!(left, right, "{}", column.sql_type);
            }
        }
    }

    #[test]
    fn columns_match_by_name_and_values_are_checked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet");
        let source = table(&[("B", SqlType::Text), ("A", SqlType::BigInt)]);
        let mut reader = RowReader::new(&source, &[0, 1], &csv(), &TextSettings::default()).unwrap();
        reader.feed(b"12,5000000000\n").unwrap();
        let batch = reader.finish().unwrap().unwrap();
        let (names, types) = all_names_and_types(&source);
        let mut writer = ParquetWriter::create(&path, &names, &types, batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();

        let read = |columns: &[(&str, SqlType)]| {
            let def = table(columns);
            let all: Vec<usize> = (0..columns.len()).collect();
            read_parquet(&path, &def, &all, &TextSettings::default())?
                .collect::<Result<Vec<_>>>()
                .map(|batches| shown(&def, &batches[0]))
        };
        assert_eq!(read(&[("a", SqlType::BigInt), ("b", SqlType::Integer)]).unwrap(), ["5000000000\t12"]);
        assert_eq!(read(&[("x", SqlType::Text), ("y", SqlType::BigInt)]).unwrap(), ["12\t5000000000"]);
        assert_eq!(read(&[("a", SqlType::Integer)]).unwrap_err().code().code(), "22003");
        assert_eq!(read(&[("a", SqlType::Text)]).unwrap(), ["5000000000"]);
        assert_eq!(read(&[("b", SqlType::Varchar { length_max: Some(1) })]).unwrap_err().code().code(), "22001");
        assert_eq!(read(&[("b", SqlType::Date)]).unwrap_err().code().code(), "22007");
        let error = read(&[("a", SqlType::BigInt), ("c", SqlType::Text)]).unwrap_err();
        assert_eq!(error.code().code(), "42703");
        assert!(error.message().starts_with("column \"c\" is missing from Parquet file"));
        assert_eq!(read(&[("a", SqlType::Bytea)]).map(drop).map_err(|error| error.code().code()), Err("42804"));
    }

    #[test]
    fn foreign_truncated_and_missing_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet");
        let def = two_columns();
        let read = || {
            read_parquet(&path, &def, &[0, 1], &TextSettings::default())
                .and_then(|rows| rows.collect::<Result<Vec<_>>>())
                .map(|batches| batches.iter().map(RecordBatch::num_rows).sum::<usize>())
        };
        assert_eq!(read().unwrap_err().code().code(), "58P01");
        std::fs::write(&path, b"a,b\n1,x\n").unwrap();
        assert_eq!(read().unwrap_err().code().code(), "22P04");
        std::fs::write(&path, b"").unwrap();
        assert_eq!(read().unwrap_err().code().code(), "22P04");
        let mut random = StdRng::seed_from_u64(4);
        let batch = random_batch(&mut random, &def, 5_000);
        let (names, types) = all_names_and_types(&def);
        let mut writer = ParquetWriter::create(&path, &names, &types, batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        assert_eq!(read().unwrap(), 5_000);
        let whole = std::fs::read(&path).unwrap();
        for length in [4, whole.len() / 2, whole.len() - 1] {
            std::fs::write(&path, &whole[..length]).unwrap();
            let error = read().unwrap_err();
            assert_eq!(error.code().code(), "22P04");
            assert!(error.message().contains("t.parquet"));
        }
        for at in (0..whole.len()).step_by(whole.len() / 200) {
            let mut wrong = whole.clone();
            wrong[at] ^= 0x55;
            std::fs::write(&path, &wrong).unwrap();
            let _ = read();
        }
    }

    /// Intervals as other programs write them: three little-endian words, of months, days and milliseconds.
    fn write_intervals(path: &Path, rows: &[Option<[u32; 3]>]) {
        use ::parquet::data_type::{FixedLenByteArray, FixedLenByteArrayType, Int32Type};
        use ::parquet::file::writer::SerializedFileWriter;
        let message = "message m { REQUIRED INT32 id; OPTIONAL FIXED_LEN_BYTE_ARRAY (12) i (INTERVAL); }";
        let schema = ::parquet::schema::parser::parse_message_type(message).unwrap();
        let file = std::fs::File::create(path).unwrap();
        let mut writer = SerializedFileWriter::new(file, schema.into(), Default::default()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let ids: Vec<i32> = (0..rows.len() as i32).collect();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int32Type>().write_batch(&ids, None, None).unwrap();
        column.close().unwrap();
        let bytes = |words: &[u32; 3]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let values: Vec<FixedLenByteArray> =
            rows.iter().flatten().map(|words| FixedLenByteArray::from(bytes(words))).collect();
        let levels: Vec<i16> = rows.iter().map(|row| row.is_some().into()).collect();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<FixedLenByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
    }

    #[test]
    fn intervals_keep_their_months() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("i.parquet");
        let rows = [Some([1, 2, 3_000]), None, Some([14, 0, 0]), Some([0, 0, 86_400_001]), Some([u32::MAX, 1, 0])];
        let many: Vec<Option<[u32; 3]>> = rows.iter().copied().cycle().take(20_000).collect();
        write_intervals(&path, &many);
        let def = table(&[("i", SqlType::Interval), ("id", SqlType::Integer)]);
        let batches: Vec<RecordBatch> =
            read_parquet(&path, &def, &[0, 1], &TextSettings::default()).unwrap().collect::<Result<_>>().unwrap();
        let lines: Vec<String> = batches.iter().flat_map(|batch| shown(&def, batch)).collect();
        assert_eq!(lines.len(), 20_000);
        let expected =
            ["1 mon 2 days 00:00:03\t0", "\\N\t1", "1 year 2 mons\t2", "24:00:00.001\t3", "-1 mons +1 day\t4"];
        assert_eq!(&lines[..5], expected);
        assert!(lines[19_995].starts_with("1 mon 2 days"));
    }

    #[test]
    fn texts_have_no_zero_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet");
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["a\0b"]));
        let batch = RecordBatch::try_from_iter([("a", texts)]).unwrap();
        let mut writer = ParquetWriter::create(&path, &["a".to_owned()], &[SqlType::Text], batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        for sql_type in [SqlType::Text, SqlType::Varchar { length_max: Some(5) }, SqlType::Char { length: 5 }] {
            let def = table(&[("a", sql_type)]);
            let read = read_parquet(&path, &def, &[0], &TextSettings::default()).unwrap().collect::<Result<Vec<_>>>();
            assert_eq!(read.map(drop).unwrap_err().code().code(), "22021", "{sql_type}");
        }
    }

    #[test]
    fn an_unfinished_file_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet");
        let def = two_columns();
        let (names, types) = all_names_and_types(&def);
        drop(ParquetWriter::create(&path, &names, &types, def.arrow_schema()).unwrap());
        assert!(!path.exists());
    }
}
