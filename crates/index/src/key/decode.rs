use super::{DAY_NS, END, ESCAPE, INTERVAL_LEN, KeyColumn, KeyValue, NULL_FIRST, NULL_LAST, VALUE, numeric_len};
use std::borrow::Cow;
use tidepool_base::{Error, NUMERIC_KEY_BYTES, Numeric, Result, SqlType};

pub(super) fn damaged() -> Error {
    Error::corrupted("an index entry's key is damaged")
}

/// Takes a column's value off the front of a key.
pub(super) fn pop(column: &KeyColumn, key: &mut &[u8]) -> Result<KeyValue<'static>> {
    if column.nullable {
        match take(key, 1)?[0] {
            VALUE => {}
            NULL_FIRST if column.nulls_first => return Ok(KeyValue::Null),
            NULL_LAST if !column.nulls_first => return Ok(KeyValue::Null),
            _ => return Err(damaged()),
        }
    }
    let mut fixed = |len: usize| -> Result<u128> {
        let mut word = 0;
        for byte in take(key, len)? {
            word = word << 8 | u128::from(if column.descending { !*byte } else { *byte });
        }
        Ok(word)
    };
    Ok(match column.sql_type {
        SqlType::Boolean => match fixed(1)? {
            0 => KeyValue::Boolean(false),
            1 => KeyValue::Boolean(true),
            _ => return Err(damaged()),
        },
        SqlType::SmallInt => KeyValue::SmallInt(signed(fixed(2)?, 2) as i16),
        SqlType::Integer => KeyValue::Integer(signed(fixed(4)?, 4) as i32),
        SqlType::Date => KeyValue::Date(signed(fixed(4)?, 4) as i32),
        SqlType::BigInt => KeyValue::BigInt(signed(fixed(8)?, 8) as i64),
        SqlType::Timestamp { .. } | SqlType::TimestampTz { .. } => KeyValue::Timestamp(signed(fixed(8)?, 8) as i64),
        SqlType::Real => {
            let ordered = fixed(4)? as u32;
            KeyValue::Real(f32::from_bits(if ordered >> 31 == 1 { ordered & !(1 << 31) } else { !ordered }))
        }
        SqlType::DoublePrecision => {
            let ordered = fixed(8)? as u64;
            KeyValue::DoublePrecision(f64::from_bits(if ordered >> 63 == 1 { ordered & !(1 << 63) } else { !ordered }))
        }
        SqlType::Numeric { precision, .. } => {
            let len = numeric_len(precision);
            let value = signed(fixed(len)?, len);
            // The one number of so many bytes that has no negative is the key of none.
            if len < 16 && value.unsigned_abs() >= 1 << (8 * len - 1) {
                return Err(damaged());
            }
            KeyValue::Numeric(value)
        }
        SqlType::UnconstrainedNumeric => {
            let mut bytes = take(key, NUMERIC_KEY_BYTES)?.to_vec();
            if column.descending {
                bytes.iter_mut().for_each(|byte| *byte = !*byte);
            }
            KeyValue::Unconstrained(Numeric::from_key(&bytes).ok_or_else(damaged)?)
        }
        SqlType::Interval => {
            let total = signed(fixed(INTERVAL_LEN)?, INTERVAL_LEN);
            // One of those that are as long: of whole months and days as far as they go.
            let part = |of: i128| of.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
            let days = total.div_euclid(DAY_NS);
            let months = part(days.div_euclid(30));
            let days = part(days - i128::from(months) * 30);
            let rest = total - (i128::from(months) * 30 + i128::from(days)) * DAY_NS;
            let nanoseconds = i64::try_from(rest).map_err(|_| damaged())?;
            KeyValue::Interval { months, days, nanoseconds }
        }
        SqlType::Uuid => KeyValue::Uuid(fixed(16)?.to_be_bytes()),
        SqlType::Text | SqlType::Varchar { .. } | SqlType::Char { .. } => {
            let text = String::from_utf8(pop_bytes(column, key)?).map_err(|_| damaged())?;
            KeyValue::Text(Cow::Owned(text))
        }
        SqlType::Bytea => KeyValue::Bytea(Cow::Owned(pop_bytes(column, key)?)),
        SqlType::Json | SqlType::Jsonb => return Err(damaged()),
    })
}

fn take<'k>(key: &mut &'k [u8], len: usize) -> Result<&'k [u8]> {
    let (taken, rest) = key.split_at_checked(len).ok_or_else(damaged)?;
    *key = rest;
    Ok(taken)
}

/// Of `len` bytes with the sign turned.
fn signed(word: u128, len: usize) -> i128 {
    let shift = 128 - 8 * len as u32;
    ((word ^ 1 << (8 * len - 1)) << shift) as i128 >> shift
}

fn pop_bytes(column: &KeyColumn, key: &mut &[u8]) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut next = || take(key, 1).map(|byte| if column.descending { !byte[0] } else { byte[0] });
    loop {
        match next()? {
            END => return Ok(bytes),
            ESCAPE => match next()? {
                byte @ (1 | 2) => bytes.push(byte - 1),
                _ => return Err(damaged()),
            },
            byte => bytes.push(byte),
        }
    }
}
