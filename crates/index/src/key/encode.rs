use super::{DAY_NS, END, ESCAPE, INTERVAL_LEN, KeyColumn, KeyValue, NULL_FIRST, NULL_LAST, VALUE, numeric_len};
use tidepool_base::{Error, NUMERIC_KEY_BYTES, Result, SqlState, SqlType};

/// Appends a column's value.
#[inline]
pub(super) fn push(column: &KeyColumn, value: &KeyValue<'_>, key: &mut Vec<u8>) -> Result<()> {
    if let KeyValue::Null = value {
        if !column.nullable {
            return Err(Error::internal("a column that is never null is to be indexed as null"));
        }
        key.push(if column.nulls_first { NULL_FIRST } else { NULL_LAST });
        return Ok(());
    }
    if column.nullable {
        key.push(VALUE);
    }
    let start = key.len();
    push_value(column.sql_type, value, key)?;
    if column.descending {
        for byte in &mut key[start..] {
            *byte = !*byte;
        }
    }
    Ok(())
}

#[inline]
fn push_value(sql_type: SqlType, value: &KeyValue<'_>, key: &mut Vec<u8>) -> Result<()> {
    match (sql_type, value) {
        (SqlType::Boolean, KeyValue::Boolean(value)) => key.push(u8::from(*value)),
        (SqlType::SmallInt, KeyValue::SmallInt(value)) => push_signed(i128::from(*value), 2, key),
        (SqlType::Integer, KeyValue::Integer(value)) | (SqlType::Date, KeyValue::Date(value)) => {
            key.extend_from_slice(&(*value as u32 ^ 1 << 31).to_be_bytes());
        }
        (SqlType::BigInt, KeyValue::BigInt(value))
        | (SqlType::Timestamp { .. } | SqlType::TimestampTz { .. }, KeyValue::Timestamp(value)) => {
            key.extend_from_slice(&(*value as u64 ^ 1 << 63).to_be_bytes());
        }
        (SqlType::Real, KeyValue::Real(value)) => {
            let bits = if value.is_nan() { f32::NAN.to_bits() & !(1 << 31) } else { (value + 0.0).to_bits() };
            let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
            key.extend_from_slice(&ordered.to_be_bytes());
        }
        (SqlType::DoublePrecision, KeyValue::DoublePrecision(value)) => {
            let bits = if value.is_nan() { f64::NAN.to_bits() & !(1 << 63) } else { (value + 0.0).to_bits() };
            let ordered = if bits >> 63 == 1 { !bits } else { bits | 1 << 63 };
            key.extend_from_slice(&ordered.to_be_bytes());
        }
        (SqlType::Numeric { precision, .. }, KeyValue::Numeric(value)) => {
            let len = numeric_len(precision);
            if len < 16 && value.unsigned_abs() >= 1 << (8 * len - 1) {
                return Err(Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "numeric field overflow")
                    .with_detail(format!("A field with precision {precision} cannot have so many digits.")));
            }
            push_signed(*value, len, key);
        }
        (SqlType::UnconstrainedNumeric, KeyValue::Unconstrained(value)) => {
            key.extend_from_slice(&value.to_bytes()[..NUMERIC_KEY_BYTES]);
        }
        (SqlType::Interval, KeyValue::Interval { months, days, nanoseconds }) => {
            let days = i128::from(*months) * 30 + i128::from(*days);
            // Below 2^95 in any case.
            push_signed(days * DAY_NS + i128::from(*nanoseconds), INTERVAL_LEN, key);
        }
        (SqlType::Uuid, KeyValue::Uuid(bytes)) => key.extend_from_slice(bytes),
        (SqlType::Uuid, KeyValue::Text(text)) => {
            if let KeyValue::Uuid(bytes) = KeyValue::uuid(text)? {
                key.extend_from_slice(&bytes);
            }
        }
        (SqlType::Text | SqlType::Varchar { .. }, KeyValue::Text(text)) => push_bytes(text.as_bytes(), key),
        (SqlType::Char { .. }, KeyValue::Text(text)) => push_bytes(text.trim_end_matches(' ').as_bytes(), key),
        (SqlType::Bytea, KeyValue::Bytea(bytes)) => push_bytes(bytes, key),
        (sql_type, value) => {
            return Err(Error::internal(format!("a column of type {sql_type} is to be indexed as {value:?}")));
        }
    }
    Ok(())
}

/// The low `len` bytes, with the sign turned.
#[inline]
fn push_signed(value: i128, len: usize, key: &mut Vec<u8>) {
    let turned = value as u128 ^ 1 << (8 * len - 1);
    key.extend_from_slice(&turned.to_be_bytes()[16 - len..]);
}

#[inline]
fn push_bytes(bytes: &[u8], key: &mut Vec<u8>) {
    key.reserve(bytes.len() + 1);
    // Hardly any text has a byte to be replaced.
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|byte| *byte <= ESCAPE) {
        key.extend_from_slice(&rest[..at]);
        key.extend_from_slice(&[ESCAPE, rest[at] + 1]);
        rest = &rest[at + 1..];
    }
    key.extend_from_slice(rest);
    key.push(END);
}
