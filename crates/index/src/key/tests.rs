use super::*;
use crate::testing::Random;
use std::cmp::Ordering;
use std::ops::Bound;

const TYPES: [SqlType; 20] = [
    SqlType::Boolean,
    SqlType::SmallInt,
    SqlType::Integer,
    SqlType::BigInt,
    SqlType::Real,
    SqlType::DoublePrecision,
    SqlType::Numeric { precision: 9, scale: 2 },
    SqlType::Numeric { precision: 18, scale: 0 },
    SqlType::Numeric { precision: 38, scale: 10 },
    SqlType::UnconstrainedNumeric,
    SqlType::Text,
    SqlType::Varchar { length_max: Some(9) },
    SqlType::Char { length: 9 },
    SqlType::Date,
    SqlType::TIMESTAMP,
    SqlType::TIMESTAMPTZ,
    SqlType::Interval,
    SqlType::Bytea,
    SqlType::Uuid,
    SqlType::Bytea,
];

/// Any integer of so many bits, the small ones and the ends often.
fn integer(random: &mut Random, bits: u32) -> i128 {
    let wide = (u128::from(random.next()) << 64 | u128::from(random.next())) as i128 >> (128 - bits);
    match random.below(5) {
        0 => wide % 3,
        1 => [i128::MIN >> (128 - bits), i128::MAX >> (128 - bits), 0][random.below(3)],
        2 => wide >> random.below(bits as usize),
        _ => wide,
    }
}

fn string(random: &mut Random, letters: &[&'static str]) -> String {
    (0..random.below(6)).map(|_| letters[random.below(letters.len())]).collect()
}

fn value(random: &mut Random, sql_type: SqlType) -> KeyValue<'static> {
    let float = |random: &mut Random| match random.below(4) {
        0 => {
            [f64::NAN, -f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, f64::MIN_POSITIVE / 8.0][random.below(7)]
        }
        1 => random.below(5) as f64 - 2.0,
        _ => f64::from_bits(random.next()),
    };
    match sql_type {
        SqlType::Boolean => KeyValue::Boolean(random.below(2) == 1),
        SqlType::SmallInt => KeyValue::SmallInt(integer(random, 16) as i16),
        SqlType::Integer => KeyValue::Integer(integer(random, 32) as i32),
        SqlType::BigInt => KeyValue::BigInt(integer(random, 64) as i64),
        SqlType::Real => KeyValue::Real(float(random) as f32),
        SqlType::DoublePrecision => KeyValue::DoublePrecision(float(random)),
        SqlType::Numeric { precision, .. } => KeyValue::Numeric(integer(random, 127) % 10_i128.pow(precision.into())),
        SqlType::UnconstrainedNumeric => {
            let scale = random.below(39) as u8;
            let value = integer(random, 127) % 10_i128.pow(1 + random.below(38) as u32);
            KeyValue::Unconstrained(Numeric::new(value, scale).unwrap())
        }
        SqlType::Text | SqlType::Varchar { .. } | SqlType::Json | SqlType::Jsonb => KeyValue::Text(
            string(random, &["a", "ab", "\u{1}", "\0", " ", "\u{2}", "é", "\u{10ffff}", "\u{7f}"]).into(),
        ),
        SqlType::Char { .. } => KeyValue::Text(string(random, &["a", " ", "\t", "b"]).into()),
        SqlType::Date => KeyValue::Date(integer(random, 32) as i32),
        SqlType::Timestamp { .. } | SqlType::TimestampTz { .. } => KeyValue::Timestamp(integer(random, 64) as i64),
        SqlType::Interval => KeyValue::Interval {
            months: [0, 1, integer(random, 32) as i32][random.below(3)],
            days: [0, 30, -30, integer(random, 32) as i32][random.below(4)],
            nanoseconds: [0, 86_400_000_000_000, integer(random, 64) as i64][random.below(3)],
        },
        SqlType::Bytea => KeyValue::Bytea((0..random.below(5)).map(|_| [0, 1, 2, 254, 255][random.below(5)]).collect()),
        SqlType::Uuid => KeyValue::Uuid(std::array::from_fn(|_| [0, 255, random.next() as u8][random.below(3)])),
    }
}

/// What PostgreSQL says of two values that are not NULL.
fn compare(a: &KeyValue<'_>, b: &KeyValue<'_>, sql_type: SqlType) -> Ordering {
    fn floats(a: f64, b: f64) -> Ordering {
        match (a.is_nan(), b.is_nan()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            (false, false) => {
                if a < b {
                    Ordering::Less
                } else if a > b {
                    Ordering::Greater
                } else {
                    Ordering::Equal
                }
            }
        }
    }
    match (a, b) {
        (KeyValue::Boolean(a), KeyValue::Boolean(b)) => a.cmp(b),
        (KeyValue::SmallInt(a), KeyValue::SmallInt(b)) => a.cmp(b),
        (KeyValue::Integer(a), KeyValue::Integer(b)) | (KeyValue::Date(a), KeyValue::Date(b)) => a.cmp(b),
        (KeyValue::BigInt(a), KeyValue::BigInt(b)) | (KeyValue::Timestamp(a), KeyValue::Timestamp(b)) => a.cmp(b),
        (KeyValue::Real(a), KeyValue::Real(b)) => floats((*a).into(), (*b).into()),
        (KeyValue::DoublePrecision(a), KeyValue::DoublePrecision(b)) => floats(*a, *b),
        (KeyValue::Numeric(a), KeyValue::Numeric(b)) => a.cmp(b),
        (KeyValue::Unconstrained(a), KeyValue::Unconstrained(b)) => a.compare(b),
        (KeyValue::Text(a), KeyValue::Text(b)) if matches!(sql_type, SqlType::Char { .. }) => {
            a.trim_end_matches(' ').as_bytes().cmp(b.trim_end_matches(' ').as_bytes())
        }
        (KeyValue::Text(a), KeyValue::Text(b)) => a.as_bytes().cmp(b.as_bytes()),
        (KeyValue::Bytea(a), KeyValue::Bytea(b)) => a.cmp(b),
        (KeyValue::Uuid(a), KeyValue::Uuid(b)) => a.cmp(b),
        (
            KeyValue::Interval { months, days, nanoseconds },
            KeyValue::Interval { months: months_b, days: days_b, nanoseconds: nanoseconds_b },
        ) => {
            let hours = |months: &i32, days: &i32| (i128::from(*months) * 30 + i128::from(*days)) * 24;
            let length = |months, days, ns: &i64| hours(months, days) * 3_600_000_000_000 + i128::from(*ns);
            length(months, days, nanoseconds).cmp(&length(months_b, days_b, nanoseconds_b))
        }
        other => panic!("{other:?}"),
    }
}

fn compare_in(column: &KeyColumn, a: &KeyValue<'_>, b: &KeyValue<'_>) -> Ordering {
    let null_first = if column.nulls_first { Ordering::Less } else { Ordering::Greater };
    match (a == &KeyValue::Null, b == &KeyValue::Null) {
        (true, true) => Ordering::Equal,
        (true, false) => null_first,
        (false, true) => null_first.reverse(),
        (false, false) => {
            let order = compare(a, b, column.sql_type);
            if column.descending { order.reverse() } else { order }
        }
    }
}

fn column(random: &mut Random) -> KeyColumn {
    let column = KeyColumn::new(TYPES[random.below(TYPES.len())]).unwrap();
    let column = if random.below(2) == 0 { column } else { column.descending() };
    match random.below(4) {
        0 => column.nulls_first(true),
        1 => column.nulls_first(false),
        2 => column.not_null(),
        _ => column,
    }
}

fn row(random: &mut Random, columns: &[KeyColumn]) -> Vec<KeyValue<'static>> {
    let mut each = |column: &KeyColumn| {
        if column.nullable && random.below(4) == 0 { KeyValue::Null } else { value(random, column.sql_type) }
    };
    columns.iter().map(&mut each).collect()
}

const ROUNDS: usize = if cfg!(miri) { 30 } else { 20_000 };

#[test]
fn bytes_are_ordered_as_values_are() {
    let mut random = Random(5);
    for _ in 0..ROUNDS {
        let columns: Vec<KeyColumn> = (0..1 + random.below(3)).map(|_| column(&mut random)).collect();
        let codec = KeyCodec::new(columns.clone());
        let rows: Vec<_> = (0..4).map(|_| row(&mut random, &columns)).collect();
        for a in &rows {
            for b in &rows {
                let expected = columns
                    .iter()
                    .zip(a)
                    .zip(b)
                    .fold(Ordering::Equal, |order, ((column, a), b)| order.then_with(|| compare_in(column, a, b)));
                let keys = [a, b].map(|row| codec.encode(row.clone()).unwrap());
                assert_eq!(keys[0].cmp(&keys[1]), expected, "{columns:?}\n{a:?}\n{b:?}");
            }
        }
    }
}

#[test]
fn keys_give_their_values_back() {
    let mut random = Random(6);
    for _ in 0..ROUNDS {
        let columns: Vec<KeyColumn> = (0..1 + random.below(3)).map(|_| column(&mut random)).collect();
        let codec = KeyCodec::new(columns.clone());
        let values = row(&mut random, &columns);
        let key = codec.encode(values.clone()).unwrap();
        let decoded = codec.decode(&key).unwrap();
        for ((column, value), decoded) in columns.iter().zip(&values).zip(&decoded) {
            assert_eq!(compare_in(column, value, decoded), Ordering::Equal, "{column:?} {value:?} {decoded:?}");
            let is_padded = matches!(value, KeyValue::Text(text) if text.ends_with(' '));
            if column.is_reversible() && !is_padded {
                assert_eq!(value, decoded);
            }
        }
        // Damaged ones are told, or are some other values: no panic.
        let mut damaged = key;
        for _ in 0..3 {
            if !damaged.is_empty() {
                let at = random.below(damaged.len());
                damaged[at] = random.next() as u8;
                damaged.truncate(1 + random.below(damaged.len()));
            }
            if let Err(error) = codec.decode(&damaged) {
                assert_eq!(error.code(), SqlState::DATA_CORRUPTED);
            }
        }
    }
}

#[test]
fn bounds_hold_what_conditions_say() {
    let mut random = Random(7);
    for _ in 0..ROUNDS {
        let columns: Vec<KeyColumn> = (0..3).map(|_| column(&mut random)).collect();
        let codec = KeyCodec::new(columns.clone());
        let equal = random.below(3);
        let mut rows: Vec<_> = (0..5).map(|_| row(&mut random, &columns)).collect();
        let like = rows[0].clone();
        for row in &mut rows[1..] {
            row[..equal].clone_from_slice(&like[..equal]);
        }
        let mut bound_value = || value(&mut random, columns[equal].sql_type);
        let (low, high) = (bound_value(), bound_value());
        let mut bound_at = |value| [Bound::Included(value), Bound::Excluded(value), Bound::Unbounded][random.below(3)];
        let (lower, upper) = (bound_at(&low), bound_at(&high));
        let bounds = codec.bounds(&like[..equal], lower, upper).unwrap();
        for row in &rows {
            let key = codec.encode(row.clone()).unwrap();
            let order = |bound: &KeyValue<'_>| compare(&row[equal], bound, columns[equal].sql_type);
            let is_null = row[equal] == KeyValue::Null;
            let is_bounded = (lower, upper) != (Bound::Unbounded, Bound::Unbounded);
            let same =
                columns[..equal].iter().zip(row).zip(&like).all(|((column, a), b)| compare_in(column, a, b).is_eq());
            let expected = same
                && !(is_null && is_bounded)
                && match lower {
                    Bound::Included(bound) => order(bound).is_ge(),
                    Bound::Excluded(bound) => order(bound).is_gt(),
                    Bound::Unbounded => true,
                }
                && match upper {
                    Bound::Included(bound) => order(bound).is_le(),
                    Bound::Excluded(bound) => order(bound).is_lt(),
                    Bound::Unbounded => true,
                };
            let (lower_key, upper_key) = bounds.range();
            let above = match lower_key {
                Bound::Included(bound) => &key[..] >= bound,
                Bound::Excluded(bound) => &key[..] > bound,
                Bound::Unbounded => true,
            };
            let below = match upper_key {
                Bound::Included(bound) => &key[..] <= bound,
                Bound::Excluded(bound) => &key[..] < bound,
                Bound::Unbounded => true,
            };
            assert_eq!(above && below, expected, "{columns:?} {like:?} {lower:?} {upper:?} {row:?}");
        }
    }
}

#[test]
fn what_cannot_be_a_key_is_refused() {
    for of in [SqlType::Json, SqlType::Jsonb] {
        assert_eq!(KeyColumn::new(of).unwrap_err().code(), SqlState::UNDEFINED_OBJECT);
    }
    let codec = KeyCodec::new(vec![KeyColumn::new(SqlType::Uuid).unwrap().not_null()]);
    assert_eq!(codec.encode([KeyValue::Null]).unwrap_err().code(), SqlState::INTERNAL_ERROR);
    assert_eq!(codec.encode([KeyValue::Integer(1)]).unwrap_err().code(), SqlState::INTERNAL_ERROR);
    for text in ["", "0", "00112233-4455-6677-8899-aabbccddeef", "00112233-4455-6677-8899-aabbccddeeff0", "g"] {
        assert_eq!(codec.encode([text.into()]).unwrap_err().code(), SqlState::INVALID_TEXT_REPRESENTATION);
    }
    let text = "00112233-4455-6677-8899-aabbccddeeff";
    assert_eq!(codec.encode([text.into()]).unwrap(), 0x00112233_44556677_8899aabb_ccddeeff_u128.to_be_bytes());
    let narrow = KeyCodec::new(vec![KeyColumn::new(SqlType::Numeric { precision: 9, scale: 0 }).unwrap()]);
    let error = narrow.encode([KeyValue::Numeric(1 << 40)]).unwrap_err();
    assert_eq!(error.code(), SqlState::NUMERIC_VALUE_OUT_OF_RANGE);
}
