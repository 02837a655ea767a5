//! Comparing text, decoding it, and taking parts of it. Results point into the bytes that they are made of.

use super::compare::holds;
use crate::dictionary::Dictionary;
use crate::expr::TextUnit;
use crate::mask::Mask;
use crate::text::{INLINE_MAX, Owners, Text};
use crate::types::ColumnType;
use crate::vector::{Texts, Values, Vector};
use arrow_buffer::Buffer;
use arrow_schema::DataType;
use tidepool_base::{Error, Result, SqlState};
use tidepool_table::CompareOp;

/// One value in all rows.
pub fn repeat(bytes: &[u8], rows: usize) -> Texts {
    if bytes.len() <= INLINE_MAX {
        // SAFETY: short values need no owner.
        return unsafe { Texts::new(vec![Text::short(bytes); rows], Owners::default()) };
    }
    let buffer = Buffer::from(bytes.to_vec());
    // SAFETY: the buffer becomes the owner.
    unsafe {
        let text = Text::new(&buffer);
        Texts::new(vec![text; rows], Owners::of(vec![buffer]))
    }
}

pub fn compare_with(op: CompareOp, texts: &Texts, constant: &[u8]) -> Mask {
    let values = texts.values();
    // SAFETY: the constant outlives its use here.
    let constant = unsafe { Text::new(constant) };
    let (head, rest) = (constant.head(), constant.rest());
    // SAFETY: `texts` own their values, and the constant outlives this.
    let order = |value: Text| unsafe { value.compare(&constant) };
    // SAFETY: as above.
    let equals = |value: Text| unsafe { value.equals(&constant) };
    match op {
        CompareOp::Eq if constant.is_short() => {
            Mask::of_values(values, |value| (value.head() == head) & (value.rest() == rest))
        }
        CompareOp::Ne if constant.is_short() => {
            Mask::of_values(values, |value| (value.head() != head) | (value.rest() != rest))
        }
        CompareOp::Eq => Mask::of_values(values, equals),
        CompareOp::Ne => Mask::of_values(values, |value| !equals(value)),
        op => Mask::of_values(values, |value| holds(op, order(value))),
    }
}

pub fn compare(op: CompareOp, a: &Texts, b: &Texts) -> Mask {
    // SAFETY: `a` and `b` own their values.
    let order = |a: Text, b: Text| unsafe { a.compare(&b) };
    // SAFETY: as above.
    let equals = |a: Text, b: Text| unsafe { a.equals(&b) };
    match op {
        CompareOp::Eq => Mask::of_pairs(a.values(), b.values(), equals),
        CompareOp::Ne => Mask::of_pairs(a.values(), b.values(), |a, b| !equals(a, b)),
        op => Mask::of_pairs(a.values(), b.values(), |a, b| holds(op, order(a, b))),
    }
}

/// Values of codes.
pub fn decode(codes: &Vector, dictionary: &Dictionary) -> Result<Vector> {
    let values = dictionary.values();
    // The code of a NULL may be anything.
    let value = |code: &i64| values.get(*code as usize).copied().unwrap_or(Text::EMPTY);
    let texts = codes.as_ints()?.iter().map(value).collect();
    // SAFETY: the dictionary's owners hold its values.
    let texts = unsafe { Texts::new(texts, dictionary.owners().clone()) };
    Ok(Vector { values: Values::Text(texts), valid: codes.valid.clone() })
}

/// Where the characters from `start` on (from 0) end, `len` of them.
fn range_of(bytes: &[u8], start: usize, len: usize, is_binary: bool) -> (usize, usize) {
    let end = start.saturating_add(len).min(bytes.len());
    // Only what is looked at must be a byte a character.
    if is_binary || bytes[..end].is_ascii() {
        return (start.min(end), end);
    }
    let mut starts = bytes.iter().enumerate().filter(|(_, byte)| **byte & 0xC0 != 0x80).map(|(index, _)| index);
    let from = starts.by_ref().nth(start);
    let Some(from) = from else { return (bytes.len(), bytes.len()) };
    let to = if len == 0 { Some(from) } else { starts.nth(len - 1) };
    (from, to.unwrap_or(bytes.len()))
}

/// Of valid UTF-8.
fn characters(bytes: &[u8]) -> usize {
    // All bytes but those that continue a character.
    bytes.iter().filter(|byte| (**byte as i8) >= -0x40).count()
}

/// How long values are.
pub fn length(vector: &Vector, unit: TextUnit) -> Result<Vector> {
    let texts = vector.as_texts()?;
    let of = |row: usize| match unit {
        TextUnit::Bytes => texts.values()[row].len() as i64,
        TextUnit::Characters => characters(texts.bytes(row)) as i64,
    };
    Ok(Vector { valid: vector.valid.clone(), ..Vector::ints((0..vector.len()).map(of).collect()) })
}

/// Whether PostgreSQL refuses such a length.
pub fn is_refused(len: Option<i64>) -> bool {
    len.is_some_and(|len| len < 0)
}

pub fn substring(vector: &Vector, start: i64, len: Option<i64>, of: &ColumnType) -> Result<Vector> {
    if is_refused(len) {
        let any = vector.valid.as_ref().map_or(!vector.is_empty(), |valid| !valid.is_none());
        if any {
            return Err(Error::new(SqlState::DATA_EXCEPTION, "negative substring length not allowed"));
        }
        return Ok(Vector::nulls(of, vector.len()));
    }
    let texts = vector.as_texts()?;
    let is_binary = matches!(of.data_type, DataType::Binary | DataType::BinaryView);
    // What lies before the first character counts, but is not there.
    let end = len.map_or(i64::MAX, |len| start.saturating_add(len)).max(1);
    let first = start.max(1);
    let skip = usize::try_from(first - 1).unwrap_or(usize::MAX);
    let take = usize::try_from(end.saturating_sub(first).max(0)).unwrap_or(usize::MAX);
    let values = (0..vector.len()).map(|row| {
        let bytes = texts.bytes(row);
        let (from, to) = range_of(bytes, skip, take, is_binary);
        let part = &bytes[from..to];
        // A short value may lie in the vector itself, which nobody owns; a part of it is short too.
        // SAFETY: a longer part is one of a long value, which the source's owners hold.
        unsafe { Text::new(part) }
    });
    let values = values.collect();
    // SAFETY: as above.
    let texts = unsafe { Texts::new(values, texts.owners().clone()) };
    Ok(Vector { values: Values::Text(texts), valid: vector.valid.clone() })
}
