//! Keys of indexes: bytes to values, and values to bytes that compare as they do.

use std::borrow::Cow;
use std::cmp::Ordering;
use tidepool_base::SqlType;
use tidepool_index::key::{KeyCodec, KeyColumn, KeyValue};

const TYPES: [SqlType; 14] = [
    SqlType::Boolean,
    SqlType::SmallInt,
    SqlType::Integer,
    SqlType::BigInt,
    SqlType::Numeric { precision: 9, scale: 2 },
    SqlType::Numeric { precision: 18, scale: 2 },
    SqlType::Numeric { precision: 38, scale: 10 },
    SqlType::Text,
    SqlType::Date,
    SqlType::TIMESTAMP,
    SqlType::Bytea,
    SqlType::Uuid,
    SqlType::DoublePrecision,
    SqlType::Interval,
];

/// The first byte says how many columns there are, one byte each what they are; the rest is a key, or two rows of values.
fn columns(input: &[u8]) -> Option<(Vec<KeyColumn>, &[u8])> {
    let (count, rest) = input.split_first()?;
    let count = usize::from(count % 4) + 1;
    let (choices, rest) = rest.split_at_checked(count)?;
    let column = |choice: &u8| {
        let column = KeyColumn::new(TYPES[usize::from(choice & 15) % TYPES.len()]).ok()?;
        let column = if choice & 0x10 != 0 { column.descending() } else { column };
        let column = if choice & 0x20 != 0 { column.nulls_first(choice & 0x40 != 0) } else { column };
        Some(if choice & 0x80 != 0 { column.not_null() } else { column })
    };
    Some((choices.iter().map(column).collect::<Option<Vec<_>>>()?, rest))
}

pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for choice in 0..=255_u8 {
        let head = [1, choice, 7];
        let Some((columns, _)) = columns(&[&head[..], &[0; 64]].concat()) else { continue };
        let mut rest: &[u8] =
            b"some bytes of which values are made, \0 and \x01 and \xff among them, for this column and that";
        let Some(row) = row(&columns, &mut rest) else { continue };
        let Ok(key) = KeyCodec::new(columns).encode(row) else { continue };
        seeds.push([&head[..], &key].concat());
    }
    seeds
}

/// Takes `len` bytes.
fn take<'i>(rest: &mut &'i [u8], len: usize) -> Option<&'i [u8]> {
    let (bytes, after) = rest.split_at_checked(len)?;
    *rest = after;
    Some(bytes)
}

fn word<const LEN: usize>(rest: &mut &[u8]) -> Option<[u8; LEN]> {
    take(rest, LEN)?.try_into().ok()
}

/// A row of values made of bytes.
fn row<'i>(columns: &[KeyColumn], rest: &mut &'i [u8]) -> Option<Vec<KeyValue<'i>>> {
    columns.iter().map(|column| value(column, rest)).collect()
}

fn value<'i>(column: &KeyColumn, rest: &mut &'i [u8]) -> Option<KeyValue<'i>> {
    let [first] = word(rest)?;
    if column.is_nullable() && first % 5 == 0 {
        return Some(KeyValue::Null);
    }
    Some(match column.sql_type() {
        SqlType::Boolean => KeyValue::Boolean(first % 2 == 0),
        SqlType::SmallInt => KeyValue::SmallInt(i16::from_le_bytes(word(rest)?)),
        SqlType::Integer => KeyValue::Integer(i32::from_le_bytes(word(rest)?)),
        SqlType::BigInt => KeyValue::BigInt(i64::from_le_bytes(word(rest)?)),
        SqlType::Numeric { precision, .. } => {
            KeyValue::Numeric(i128::from_le_bytes(word(rest)?) % 10_i128.pow(u32::from(precision)))
        }
        SqlType::Date => KeyValue::Date(i32::from_le_bytes(word(rest)?)),
        SqlType::Timestamp { .. } => KeyValue::Timestamp(i64::from_le_bytes(word(rest)?)),
        SqlType::Uuid => KeyValue::Uuid(word(rest)?),
        SqlType::DoublePrecision => KeyValue::DoublePrecision(f64::from_le_bytes(word(rest)?)),
        SqlType::Interval => KeyValue::Interval {
            months: i32::from_le_bytes(word(rest)?),
            days: i32::from_le_bytes(word(rest)?),
            nanoseconds: i64::from_le_bytes(word(rest)?),
        },
        SqlType::Bytea => KeyValue::Bytea(Cow::Borrowed(take(rest, usize::from(first % 9))?)),
        _ => KeyValue::Text(Cow::Borrowed(std::str::from_utf8(take(rest, usize::from(first % 9))?).ok()?)),
    })
}

/// As SQL orders two values of one column. `None` for types whose order is not written down here again.
fn compare(column: &KeyColumn, left: &KeyValue<'_>, right: &KeyValue<'_>, nulls_first: bool) -> Option<Ordering> {
    let order = match (left, right) {
        (KeyValue::Null, KeyValue::Null) => return Some(Ordering::Equal),
        (KeyValue::Null, _) => return Some(if nulls_first { Ordering::Less } else { Ordering::Greater }),
        (_, KeyValue::Null) => return Some(if nulls_first { Ordering::Greater } else { Ordering::Less }),
        (KeyValue::Boolean(left), KeyValue::Boolean(right)) => left.cmp(right),
        (KeyValue::SmallInt(left), KeyValue::SmallInt(right)) => left.cmp(right),
        (KeyValue::Integer(left), KeyValue::Integer(right)) | (KeyValue::Date(left), KeyValue::Date(right)) => {
            left.cmp(right)
        }
        (KeyValue::BigInt(left), KeyValue::BigInt(right)) | (KeyValue::Timestamp(left), KeyValue::Timestamp(right)) => {
            left.cmp(right)
        }
        (KeyValue::Numeric(left), KeyValue::Numeric(right)) => left.cmp(right),
        (KeyValue::Text(left), KeyValue::Text(right)) => left.as_bytes().cmp(right.as_bytes()),
        (KeyValue::Bytea(left), KeyValue::Bytea(right)) => left.cmp(right),
        (KeyValue::Uuid(left), KeyValue::Uuid(right)) => left.cmp(right),
        _ => return None,
    };
    Some(if column.is_descending() { order.reverse() } else { order })
}

/// Bytes are no key, or the key of values that have a key; and keys compare as rows do.
pub fn run(input: &[u8]) {
    let Some((columns, bytes)) = columns(input) else { return };
    let codec = KeyCodec::new(columns.clone());
    if let Ok(values) = codec.decode(bytes) {
        let again = codec.encode(values.iter().cloned()).unwrap_or_else(|error| panic!("{values:?}: {error}"));
        let decoded = codec.decode(&again).unwrap_or_else(|error| panic!("{values:?}: {error}"));
        assert_eq!(again, codec.encode(decoded).unwrap_or_else(|error| panic!("{values:?}: {error}")));
    }
    let mut rest = bytes;
    let (Some(left), Some(right)) = (row(&columns, &mut rest), row(&columns, &mut rest)) else { return };
    let (Ok(left_key), Ok(right_key)) = (codec.encode(left.iter().cloned()), codec.encode(right.iter().cloned()))
    else {
        return;
    };
    let mut order = Ordering::Equal;
    for (index, column) in columns.iter().enumerate() {
        // `KeyColumn` does not say where its NULLs go, but a key of one NULL does: 0 before every value, 2 behind.
        let nulls_first =
            KeyCodec::new(vec![*column]).encode([KeyValue::Null]).is_ok_and(|key| key.first() == Some(&0));
        match compare(column, &left[index], &right[index], nulls_first) {
            Some(Ordering::Equal) => {}
            Some(other) => {
                order = other;
                break;
            }
            None => return,
        }
    }
    assert_eq!(left_key.cmp(&right_key), order, "{left:?} and {right:?} in {columns:?}");
}
