//! What every encoding must do, asked of all of them with the data that each is for: come back by range, by row and by
//! list; answer every filter as the plain values do; survive a trip through bytes; and refuse every damaged blob.

use crate::bits;
use crate::encoding::EncodingKind;
use crate::filter::{ColumnFilter, CompareOp, KeyTest, Predicate, SegmentTest};
use crate::logical::Logical;
use crate::segment::datum_at;
use crate::testing::{array_of, field, heap_space, noise};
use crate::{Datum, Segment, blob};
use arrow_array::cast::AsArray;
use arrow_array::{
    Array, ArrayRef, BinaryViewArray, BooleanArray, Decimal128Array, Float32Array, Float64Array, Int64Array,
    StringViewArray,
};
use std::sync::Arc;
use tidepool_base::{Error, SqlState, SqlType};

struct Case {
    name: &'static str,
    sql_type: SqlType,
    array: ArrayRef,
}

const MONEY: SqlType = SqlType::Numeric { precision: 15, scale: 2 };
const HUGE: SqlType = SqlType::Numeric { precision: 38, scale: 0 };
const TYPES: [SqlType; 17] = [
    SqlType::Boolean,
    SqlType::SmallInt,
    SqlType::Integer,
    SqlType::BigInt,
    SqlType::Real,
    SqlType::DoublePrecision,
    MONEY,
    SqlType::Text,
    SqlType::Date,
    SqlType::TIMESTAMP,
    SqlType::TIMESTAMPTZ,
    SqlType::Interval,
    SqlType::Bytea,
    SqlType::Uuid,
    SqlType::Json,
    SqlType::Jsonb,
    SqlType::UnconstrainedNumeric,
];

/// Rows that end within a block; fewer under Miri.
const ROWS: usize = if cfg!(miri) { 1_100 } else { 3_000 };

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |name, sql_type, array: ArrayRef| cases.push(Case { name, sql_type, array });
    for sql_type in TYPES {
        add("empty", sql_type, array_of(sql_type, 0, |_| None));
        add("one row", sql_type, array_of(sql_type, 1, |_| Some(77)));
        add("one NULL", sql_type, array_of(sql_type, 1, |_| None));
        add("all NULL", sql_type, array_of(sql_type, ROWS, |_| None));
        add("constant", sql_type, array_of(sql_type, ROWS, |_| Some(7)));
        add("constant or NULL", sql_type, array_of(sql_type, ROWS, |i| (i % 3 > 0).then_some(7)));
        add("runs", sql_type, array_of(sql_type, ROWS, |i| Some((i / 700 * 31 % 5) as i64)));
        add("runs with NULLs", sql_type, array_of(sql_type, ROWS, |i| (i % 90 > 5).then_some((i / 500) as i64)));
        add("ascending", sql_type, array_of(sql_type, ROWS, |i| Some(i as i64 * 3 + (i % 2) as i64)));
        let mut next = noise(1);
        add("few values", sql_type, array_of(sql_type, ROWS, |_| Some((next() % 9) as i64 * 1_000)));
        let mut next = noise(2);
        add("noise", sql_type, array_of(sql_type, ROWS, |_| Some((next() % 30_000) as i64 - 15_000)));
        let mut next = noise(3);
        add(
            "noise with NULLs",
            sql_type,
            array_of(sql_type, ROWS, |_| Some((next() % 20_000) as i64).filter(|v| v % 4 != 0)),
        );
        add("few rows", sql_type, array_of(sql_type, 40, |i| (i != 9).then_some(i as i64 * i as i64 * 5)));
    }
    let mut next = noise(4);
    add("64-bit noise", SqlType::BigInt, array_of(SqlType::BigInt, ROWS, |_| Some(next() as i64)));
    add(
        "extremes",
        SqlType::BigInt,
        Arc::new((0..ROWS).map(|i| Some([i64::MIN, i64::MAX, 0, -1][i % 4])).collect::<Int64Array>()),
    );
    add(
        "outlier in one block",
        SqlType::BigInt,
        array_of(SqlType::BigInt, ROWS, |i| Some(if i == 1_030 { i64::MAX } else { i as i64 % 11 })),
    );
    add(
        "few distant values",
        SqlType::BigInt,
        array_of(SqlType::BigInt, ROWS, |i| Some([5, 1 << 40, -(1 << 50), 77, 1 << 20][i * i % 5])),
    );
    let wide =
        |values: Vec<i128>| Arc::new(Decimal128Array::from(values).with_data_type(crate::arrow_type(HUGE))) as ArrayRef;
    let mut next = noise(5);
    let big = 10i128.pow(37);
    add("wide decimals", HUGE, wide((0..ROWS).map(|_| i128::from(next()) * 1_000_000_007 - big).collect()));
    add("few wide decimals", HUGE, wide((0..ROWS).map(|i| [big, -big, 0, 12, 1 << 90][i * 7 % 5]).collect()));
    let mut next = noise(6);
    let odd = [f64::NAN, -f64::NAN, 0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::MIN_POSITIVE, f64::MAX];
    add(
        "floats of all kinds",
        SqlType::DoublePrecision,
        Arc::new(Float64Array::from_iter_values(
            (0..ROWS).map(|i| if i % 3 == 0 { odd[i % 8] } else { f64::from_bits(next() >> 2 | 1 << 61) }),
        )),
    );
    let mut next = noise(7);
    add(
        "prices with oddities",
        SqlType::DoublePrecision,
        Arc::new(Float64Array::from_iter_values(
            (0..ROWS).map(|i| if i % 100 == 3 { odd[i / 100 % 8] } else { (next() % 1_000_000) as f64 / 100.0 }),
        )),
    );
    let mut next = noise(8);
    add(
        "single prices with oddities",
        SqlType::Real,
        Arc::new(Float32Array::from_iter_values(
            (0..ROWS).map(|i| if i % 100 == 3 { odd[i / 100 % 8] as f32 } else { (next() % 10_000) as f32 / 10.0 }),
        )),
    );
    add(
        "few odd floats",
        SqlType::DoublePrecision,
        Arc::new(Float64Array::from_iter_values((0..ROWS).map(|i| odd[i * 5 % 8]))),
    );
    let words = ["carefully", "final", "deposits", "sleep", "quickly", "ironic", "käse", "", "accounts", "among"];
    let mut next = noise(9);
    let mut sentence = || (0..next() % 8).map(|_| words[next() as usize % 10]).collect::<Vec<_>>().join(" ");
    let sentences: Vec<Option<String>> =
        (0..ROWS).map(|i| Some(format!("{} {i}", sentence())).filter(|_| i % 50 != 0)).collect();
    add("sentences", SqlType::Text, Arc::new(sentences.iter().cloned().collect::<StringViewArray>()));
    add(
        "sentences as bytes",
        SqlType::Bytea,
        Arc::new(sentences.iter().map(|s| s.as_ref().map(|s| s.as_bytes())).collect::<BinaryViewArray>()),
    );
    let mut next = noise(10);
    let random: Vec<Vec<u8>> = (0..ROWS).map(|i| (0..i % 40).map(|_| next() as u8).collect::<Vec<u8>>()).collect();
    add("random bytes", SqlType::Bytea, Arc::new(BinaryViewArray::from_iter_values(&random)));
    add(
        "one long text among short",
        SqlType::Text,
        Arc::new(StringViewArray::from_iter_values(
            (0..ROWS).map(|i| if i == 1_000 { "long ".repeat(20_000) } else { format!("{:x}", i * 7919) }),
        )),
    );
    add(
        "not quite uuids",
        SqlType::Uuid,
        Arc::new(StringViewArray::from_iter_values((0..ROWS).map(|i| format!("{{{i:032x}}}")))),
    );
    cases
}

fn encode(case: &Case) -> Segment {
    Segment::encode(&case.array, &field(case.sql_type), &heap_space())
        .unwrap_or_else(|error| panic!("{} {}: {error}", case.name, case.sql_type))
}

/// Equal as values are: bit for bit in floats, whatever NULL slots hold.
fn assert_same(left: &ArrayRef, right: &ArrayRef, context: &str) {
    left.to_data().validate_full().unwrap_or_else(|error| panic!("{context}: {error}"));
    assert_eq!(left.data_type(), right.data_type(), "{context}");
    let bits = |array: &ArrayRef| -> Vec<Option<u64>> {
        match Logical::of(array.data_type()).unwrap() {
            Logical::Float64 => {
                array.as_primitive::<arrow_array::types::Float64Type>().iter().map(|v| v.map(f64::to_bits)).collect()
            }
            _ => array
                .as_primitive::<arrow_array::types::Float32Type>()
                .iter()
                .map(|v| v.map(|v| v.to_bits().into()))
                .collect(),
        }
    };
    if Logical::of(left.data_type()).unwrap().is_float() {
        assert_eq!(bits(left), bits(right), "{context}");
    } else {
        assert_eq!(left, right, "{context}");
    }
}

fn pick(array: &ArrayRef, rows: &[u32]) -> ArrayRef {
    arrow_select::take::take(array.as_ref(), &arrow_array::UInt32Array::from(rows.to_vec()), None).unwrap()
}

#[test]
fn every_encoding_is_used() {
    let found: Vec<EncodingKind> = cases().iter().map(|case| encode(case).encoding().unwrap()).collect();
    for kind in [
        EncodingKind::Constant,
        EncodingKind::RunLength,
        EncodingKind::FrameOfReference,
        EncodingKind::Delta,
        EncodingKind::Dictionary,
        EncodingKind::DictionaryRunLength,
        EncodingKind::DecimalFloat,
        EncodingKind::Fsst,
        EncodingKind::Uuid,
        EncodingKind::Plain,
    ] {
        assert!(found.contains(&kind), "no case is encoded as {kind}");
    }
}

#[test]
fn values_come_back_by_range_by_list_and_one_by_one() {
    for case in cases() {
        let segment = encode(&case);
        let context = format!("{} {} ({})", case.name, case.sql_type, segment.encoding().unwrap());
        let rows = case.array.len();
        segment.check().unwrap();
        assert_eq!(segment.rows(), rows);
        assert_same(&segment.decode(0..rows).unwrap(), &case.array, &context);
        for (start, end) in [(0, 1), (0, 1_024), (1_000, 1_100), (1_024, 2_048), (37, ROWS), (ROWS - 1, ROWS), (9, 9)] {
            if end <= rows {
                let expected = case.array.slice(start, end - start);
                assert_same(&segment.decode(start..end).unwrap(), &expected, &context);
            }
        }
        for step in [1, 2, 7, 100, 1_500] {
            let list: Vec<u32> = (step as u32 / 2..rows as u32).step_by(step).collect();
            assert_same(&segment.take(&list).unwrap(), &pick(&case.array, &list), &context);
        }
        for row in (0..rows).step_by(431) {
            let expected = if case.array.is_null(row) {
                None
            } else {
                datum_at(&case.array, row, Logical::of(case.array.data_type()).unwrap()).unwrap()
            };
            // NaN is not equal to itself; the order of datums knows better.
            let value = segment.value(row).unwrap();
            let same = match (&value, &expected) {
                (Some(value), Some(expected)) => value.compare(expected).is_some_and(|order| order.is_eq()),
                (value, expected) => value == expected,
            };
            assert!(same, "{context}, row {row}: {value:?} instead of {expected:?}");
        }
    }
}

#[test]
fn statistics_bound_and_count_the_values() {
    for case in cases() {
        let segment = encode(&case);
        let context = format!("{} {}", case.name, case.sql_type);
        let logical = Logical::of(case.array.data_type()).unwrap();
        let statistics = segment.statistics().unwrap();
        assert_eq!(statistics.null_count as usize, case.array.null_count(), "{context}");
        let values: Vec<Datum> = (0..case.array.len())
            .filter(|row| case.array.is_valid(*row))
            .filter_map(|row| datum_at(&case.array, row, logical).unwrap())
            .collect();
        for value in &values {
            let (min, max) = (statistics.min.as_ref().unwrap(), statistics.max.as_ref());
            assert!(min.compare(value).unwrap().is_le(), "{context}: {min:?} is above {value:?}");
            assert!(max.is_none_or(|max| max.compare(value).unwrap().is_ge()), "{context}: {max:?} is below {value:?}");
        }
        let mut ordered = values.clone();
        ordered.sort_by(|a, b| a.compare(b).unwrap());
        ordered.dedup_by(|a, b| a.compare(b).unwrap().is_eq());
        if logical != Logical::Interval {
            let (distinct, estimate) = (ordered.len() as f64, statistics.distinct_count.unwrap() as f64);
            assert!((estimate - distinct).abs() <= distinct * 0.2 + 1.0, "{context}: {estimate} for {distinct}");
            assert!(!statistics.unique || ordered.len() == case.array.len(), "{context}");
        }
    }
}

/// Some keys, and nothing else.
#[derive(Debug)]
struct Keys(std::collections::BTreeSet<i64>);

impl KeyTest for Keys {
    fn bounds(&self) -> Option<(i64, i64)> {
        self.0.first().copied().zip(self.0.last().copied())
    }

    fn and_values(&self, values: &[i64], words: &mut [u64]) {
        for (row, value) in values.iter().enumerate() {
            if !self.0.contains(value) {
                words[row / 64] &= !(1 << (row % 64));
            }
        }
    }
}

/// Filters to try: comparisons with values that are there, that are not, and beyond both ends; sets; NULL tests; functions.
fn filters(array: &ArrayRef, logical: Logical) -> Vec<(String, ColumnFilter)> {
    let mut filters = vec![
        ("is null".to_string(), ColumnFilter::IsNull { column: 0 }),
        ("is not null".to_string(), ColumnFilter::IsNotNull { column: 0 }),
        (
            "function, not strict".to_string(),
            ColumnFilter::Function {
                column: 0,
                function: Arc::new(|array: &ArrayRef| {
                    Ok((0..array.len()).map(|row| Some(array.is_null(row))).collect::<BooleanArray>())
                }),
            },
        ),
    ];
    if logical == Logical::Interval {
        return filters;
    }
    let present: Vec<usize> = (0..array.len()).filter(|row| array.is_valid(*row)).collect();
    let mut values: Vec<Datum> = present
        .iter()
        .step_by((present.len() / 5).max(1))
        .map(|row| datum_at(array, *row, logical).unwrap().unwrap())
        .collect();
    values.extend(match logical {
        Logical::Boolean => vec![Datum::Boolean(false), Datum::Boolean(true)],
        Logical::Float32 | Logical::Float64 => {
            vec![Datum::Float(f64::NAN), Datum::Float(-0.0), Datum::Float(f64::NEG_INFINITY), Datum::Float(12.345)]
        }
        Logical::Decimal { .. } => vec![Datum::Decimal(i128::MIN), Datum::Decimal(i128::MAX), Datum::Decimal(8)],
        Logical::Text => {
            vec![Datum::Text(String::new()), Datum::Text("word 5".into()), Datum::Text("\u{10ffff}".into())]
        }
        Logical::Bytes | Logical::Numeric => {
            vec![Datum::Bytes(Vec::new()), Datum::Bytes(vec![128]), Datum::Bytes(vec![255; 9])]
        }
        _ => vec![Datum::Int(i64::MIN), Datum::Int(i64::MAX), Datum::Int(8)],
    });
    for value in &values {
        for op in [CompareOp::Eq, CompareOp::Ne, CompareOp::Lt, CompareOp::Le, CompareOp::Gt, CompareOp::Ge] {
            let filter = ColumnFilter::Compare { column: 0, op, value: value.clone() };
            filters.push((format!("{op:?} {value:?}"), filter));
        }
    }
    for step in [1, 2, 4] {
        let values: Vec<Datum> = values.iter().step_by(step).cloned().collect();
        filters.push((format!("in {values:?}"), ColumnFilter::In { column: 0, values }));
    }
    if logical.is_int() {
        let int = |datum: &Datum| match datum {
            Datum::Int(value) => *value,
            other => i64::from(*other == Datum::Boolean(true)),
        };
        for step in [1, 3] {
            let keys: std::collections::BTreeSet<i64> = values.iter().step_by(step).map(int).collect();
            filters.push((format!("keys {keys:?}"), ColumnFilter::Keys { column: 0, keys: Arc::new(Keys(keys)) }));
        }
        filters.push(("no keys".to_string(), ColumnFilter::Keys { column: 0, keys: Arc::new(Keys([].into())) }));
    }
    filters.push(("in nothing".to_string(), ColumnFilter::In { column: 0, values: Vec::new() }));
    let pivot = values[values.len() / 2].clone();
    filters.push((
        format!("function, at most {pivot:?}"),
        ColumnFilter::Function {
            column: 0,
            function: Arc::new(move |array: &ArrayRef| {
                let logical = Logical::of(array.data_type())?;
                (0..array.len())
                    .map(|row| {
                        if array.is_null(row) {
                            return Ok(None);
                        }
                        Ok(datum_at(array, row, logical)?.map(|value| value.compare(&pivot).unwrap().is_le()))
                    })
                    .collect::<Result<BooleanArray, Error>>()
            }),
        },
    ));
    filters
}

/// What SQL says of one row.
fn passes(filter: &ColumnFilter, value: Option<&Datum>, row: &ArrayRef) -> bool {
    match filter {
        ColumnFilter::IsNull { .. } => row.is_null(0),
        ColumnFilter::IsNotNull { .. } => row.is_valid(0),
        ColumnFilter::Compare { op, value: constant, .. } => value.is_some_and(|value| {
            let order = value.compare(constant).unwrap();
            match op {
                CompareOp::Eq => order.is_eq(),
                CompareOp::Ne => order.is_ne(),
                CompareOp::Lt => order.is_lt(),
                CompareOp::Le => order.is_le(),
                CompareOp::Gt => order.is_gt(),
                CompareOp::Ge => order.is_ge(),
            }
        }),
        ColumnFilter::In { values, .. } => {
            value.is_some_and(|value| values.iter().any(|constant| value.compare(constant).unwrap().is_eq()))
        }
        ColumnFilter::Keys { keys, .. } => match value {
            Some(Datum::Int(value)) => {
                let mut word = [1];
                keys.and_values(&[*value], &mut word);
                word[0] == 1
            }
            Some(Datum::Boolean(value)) => {
                let mut word = [1];
                keys.and_values(&[i64::from(*value)], &mut word);
                word[0] == 1
            }
            _ => false,
        },
        ColumnFilter::Function { function, .. } => {
            let answer = function(row).unwrap();
            answer.is_valid(0) && answer.value(0)
        }
    }
}

#[test]
fn filters_answer_as_the_values_do() {
    for case in cases() {
        let segment = encode(&case);
        let logical = segment.sound().unwrap().logical();
        let rows = case.array.len();
        let values: Vec<(Option<Datum>, ArrayRef)> = (0..rows)
            .map(|row| {
                let value = case.array.is_valid(row).then(|| datum_at(&case.array, row, logical).unwrap()).flatten();
                (value, case.array.slice(row, 1))
            })
            .collect();
        for (name, filter) in filters(&case.array, logical) {
            let context = format!("{} {} ({}): {name}", case.name, case.sql_type, segment.encoding().unwrap());
            let opened = segment.sound().unwrap();
            let expected: Vec<u32> = (0..rows as u32)
                .filter(|row| passes(&filter, values[*row as usize].0.as_ref(), &values[*row as usize].1))
                .collect();
            let predicate = Predicate::new(&filter, logical).unwrap();
            if predicate.excludes(opened.statistics(), rows) {
                assert!(expected.is_empty(), "{context}");
            }
            let test =
                SegmentTest::new(&predicate, opened.statistics(), opened.payload(), opened.blob(), rows, logical)
                    .unwrap();
            let run = |range: std::ops::Range<usize>, words: &mut [u64]| {
                test.and_rows(
                    opened.payload(),
                    opened.validity(),
                    opened.blob(),
                    logical,
                    range,
                    predicate.null_passes,
                    words,
                    &mut |_, _| {},
                )
                .unwrap();
            };
            for start in [0, 1_024].into_iter().filter(|start| *start <= rows) {
                let mut words = bits::ones(rows - start);
                run(start..rows, &mut words);
                let mut found = Vec::new();
                bits::positions(&words, start as u32, &mut found);
                let expected: Vec<u32> = expected.iter().copied().filter(|row| *row >= start as u32).collect();
                assert_eq!(found, expected, "{context}, from {start}");
            }
            // Rows that are out already stay out.
            let mut words = bits::ones(rows);
            words.iter_mut().enumerate().for_each(|(i, word)| *word &= 0x1248_8421_0101_ffff_u64.rotate_left(i as u32));
            words.iter_mut().skip(20).take(16).for_each(|word| *word = 0);
            let before = words.clone();
            run(0..rows, &mut words);
            let mut found = Vec::new();
            bits::positions(&words, 0, &mut found);
            let expected: Vec<u32> =
                expected.iter().copied().filter(|row| before[*row as usize / 64] >> (row % 64) & 1 == 1).collect();
            assert_eq!(found, expected, "{context}, some rows out");
            // On Arrow, as for rows not yet merged.
            let mut words = bits::ones(rows);
            predicate.and_array(&case.array, &mut words).unwrap();
            let mut found = Vec::new();
            bits::positions(&words, 0, &mut found);
            let all: Vec<u32> = (0..rows as u32)
                .filter(|row| passes(&filter, values[*row as usize].0.as_ref(), &values[*row as usize].1))
                .collect();
            assert_eq!(found, all, "{context}, on arrow");
        }
    }
}

#[test]
fn a_segment_travels_as_bytes() {
    let other = heap_space();
    for case in cases() {
        let segment = encode(&case);
        let loaded = Segment::load(segment.read_whole().unwrap(), &field(case.sql_type), &other).unwrap();
        let context = format!("{} {}", case.name, case.sql_type);
        // As text: NaN, which a bound may be, is not equal to itself.
        assert_eq!(format!("{:?}", loaded.statistics()), format!("{:?}", segment.statistics()), "{context}");
        assert_same(&loaded.decode(0..loaded.rows()).unwrap(), &case.array, &context);
        let copy = segment.copy_to(&other).unwrap();
        assert_eq!(copy.read_whole().unwrap(), segment.read_whole().unwrap());
        if case.sql_type != SqlType::Boolean {
            let error = Segment::load(segment.read_whole().unwrap(), &field(SqlType::Boolean), &other).unwrap_err();
            assert_eq!(error.code(), SqlState::DATA_CORRUPTED, "{context}");
        }
    }
}

/// Reads everything in every way; only panics, undefined behaviour and invalid text are wrong here.
fn read_all(segment: &Segment) {
    let rows = segment.rows();
    segment.decode(0..rows).unwrap().to_data().validate_full().unwrap();
    let list: Vec<u32> = (0..rows as u32).step_by(17).collect();
    segment.take(&list).unwrap().to_data().validate_full().unwrap();
    let array = segment.decode(0..rows).unwrap();
    let segment = segment.sound().unwrap();
    for (_, filter) in filters(&array, segment.logical()).into_iter().step_by(5) {
        let predicate = Predicate::new(&filter, segment.logical()).unwrap();
        let test = SegmentTest::new(
            &predicate,
            segment.statistics(),
            segment.payload(),
            segment.blob(),
            rows,
            segment.logical(),
        );
        let Ok(test) = test else { continue };
        let mut words = bits::ones(rows);
        let (payload, validity, blob) = (segment.payload(), segment.validity(), segment.blob());
        test.and_rows(
            payload,
            validity,
            blob,
            segment.logical(),
            0..rows,
            predicate.null_passes,
            &mut words,
            &mut |_, _| {},
        )
        .unwrap();
    }
}

#[test]
fn damaged_blobs_are_refused_or_harmless() {
    let space = heap_space();
    let mut next = noise(11);
    let (mut refused, mut harmless) = (0, 0);
    for case in cases() {
        if cfg!(miri) && !next().is_multiple_of(8) {
            continue;
        }
        let segment = encode(&case);
        let field = field(case.sql_type);
        let whole = segment.read_whole().unwrap().to_vec();
        let mut flipped = whole.clone();
        flipped[next() as usize % whole.len()] ^= 1;
        assert_eq!(Segment::load(&flipped, &field, &space).unwrap_err().code(), SqlState::DATA_CORRUPTED);

        // With the checksum made to fit, so that the structure itself is what is checked.
        let mut attempt = |mut bytes: Vec<u8>| {
            if bytes.len() >= blob::HEADER_BYTES {
                blob::seal(&mut bytes);
            }
            match Segment::load(&bytes, &field, &space) {
                Ok(segment) => {
                    harmless += 1;
                    read_all(&segment);
                }
                Err(error) => {
                    refused += 1;
                    assert_eq!(error.code(), SqlState::DATA_CORRUPTED, "{} {}: {error}", case.name, case.sql_type);
                }
            }
        };
        for len in [0, 1, 40, 63, 64, 65, whole.len() / 2, whole.len() - 1] {
            attempt(whole[..len.min(whole.len())].to_vec());
            let mut cut = whole[..len.min(whole.len())].to_vec();
            if cut.len() >= blob::HEADER_BYTES {
                let len = cut.len() as u64;
                cut[24..32].copy_from_slice(&len.to_le_bytes());
                attempt(cut);
            }
        }
        let tree = u64::from_le_bytes(whole[32..40].try_into().unwrap()) as usize;
        let tries = if cfg!(miri) { 6 } else { 60 };
        for i in 0..tries {
            let mut bytes = whole.clone();
            // The header and the tree say where everything is: most of the damage goes there.
            let range = match i % 4 {
                0 => 8..blob::HEADER_BYTES,
                1 | 2 => tree..bytes.len(),
                _ => blob::HEADER_BYTES.min(bytes.len() - 1)..bytes.len(),
            };
            for _ in 0..1 + next() % 3 {
                let at = range.start + next() as usize % range.len();
                bytes[at] = match next() % 4 {
                    0 => 0,
                    1 => 255,
                    2 => bytes[at].wrapping_add(1),
                    _ => next() as u8,
                };
            }
            attempt(bytes);
        }
    }
    assert!(refused > 20 && harmless > 5, "{refused} refused, {harmless} harmless");
}
