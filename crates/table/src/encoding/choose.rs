//! Which encoding some values get: candidates are told apart by exact sizes where these are cheap to know, and by a
//! sample where they are not; a form that is quicker to read wins over one that is a little smaller.

use super::dictionary::float_order;
use super::fsst::Coded;
use super::ints::Ints;
use super::packing::width_of;
use super::scaled::Scaling;
use super::strings::{BYTES_MAX, INLINE_MAX};
use super::{
    Dictionary, Plain, Strings, TAG_DICTIONARY, TAG_FSST, TAG_INTS, TAG_PLAIN, TAG_SCALED_FLOATS, TAG_STRINGS,
    TAG_UUIDS, Uuids, uuid,
};
use crate::blob::BlobWriter;
use hashbrown::HashMap;
use std::hash::Hash;
use tidepool_base::{Error, Result, SqlState};

/// A column's values, a NULL being a repetition of a neighbour.
pub(crate) enum Column<'a> {
    Ints(Vec<i64>),
    /// Decimals that fit 64 bits: never in a dictionary of integers, which is for integer types.
    NarrowDecimals(Vec<i64>),
    Wide(Vec<i128>),
    Floats {
        values: Vec<f64>,
        single: bool,
    },
    Strings {
        values: Vec<&'a [u8]>,
        uuid: bool,
    },
}

/// Below so many rows a choice is not worth its time.
const ROWS_MIN: usize = 64;

/// Distinct values in ascending order, and each row's position among them. `None` beyond `limit` values.
fn dictionary<K: Copy, O: Ord + Hash + Copy>(
    values: &[K],
    limit: usize,
    order: impl Fn(K) -> O,
) -> Option<(Vec<K>, Vec<i64>)> {
    let mut found: HashMap<O, u32> = HashMap::new();
    let (mut distinct, mut codes) = (Vec::new(), Vec::with_capacity(values.len()));
    for value in values {
        let code = *found.entry(order(*value)).or_insert_with(|| {
            distinct.push(*value);
            distinct.len() as u32 - 1
        });
        if distinct.len() > limit {
            return None;
        }
        codes.push(code);
    }
    let mut by_value: Vec<u32> = (0..distinct.len() as u32).collect();
    by_value.sort_unstable_by_key(|code| order(distinct[*code as usize]));
    let mut rank = vec![0i64; distinct.len()];
    for (position, code) in by_value.iter().enumerate() {
        rank[*code as usize] = position as i64;
    }
    let sorted = by_value.iter().map(|code| distinct[*code as usize]).collect();
    Some((sorted, codes.iter().map(|code| rank[*code as usize]).collect()))
}

/// Bytes of a dictionary of so many values for so many rows, before any pattern in the codes is used.
fn dictionary_bytes(distinct: usize, rows: usize, value_bytes: usize) -> usize {
    distinct * value_bytes + rows * width_of(distinct.saturating_sub(1) as u64) as usize / 8
}

/// Writes the values in the encoding that suits them. `distinct` is an estimate of how many there are.
/// 54000 for more than 2 GB of text.
pub(crate) fn write(column: &Column<'_>, distinct: usize, writer: &mut BlobWriter) -> Result<()> {
    match column {
        Column::Ints(values) => write_ints(values, distinct, true, writer),
        Column::NarrowDecimals(values) => write_ints(values, distinct, false, writer),
        Column::Wide(values) => write_wide(values, distinct, writer),
        Column::Floats { values, single } => write_floats(values, *single, distinct, writer),
        Column::Strings { values, uuid } => return write_strings(values, *uuid, distinct, writer),
    }
    Ok(())
}

fn write_ints(values: &[i64], distinct: usize, dictionary_too: bool, writer: &mut BlobWriter) {
    let plan = Ints::plan(values);
    if dictionary_too && values.len() >= ROWS_MIN && dictionary_bytes(distinct, values.len(), 8) < plan.bytes / 4 * 3 {
        let found = dictionary(values, values.len() / 4, |value| value)
            .filter(|(sorted, codes)| sorted.len() * 8 + Ints::plan(codes).bytes < plan.bytes / 4 * 3);
        if let Some((sorted, codes)) = found {
            writer.u8(TAG_DICTIONARY);
            Dictionary::write_ints(&sorted, &codes, writer);
            return;
        }
    }
    writer.u8(TAG_INTS);
    Ints::write(plan, values, writer);
}

fn write_wide(values: &[i128], distinct: usize, writer: &mut BlobWriter) {
    if dictionary_bytes(distinct, values.len(), 16) < values.len() * 16 / 4 * 3
        && let Some((sorted, codes)) = dictionary(values, values.len() / 2 + 1, |value| value)
    {
        writer.u8(TAG_DICTIONARY);
        Dictionary::write_wide(&sorted, &codes, writer);
    } else {
        writer.u8(TAG_PLAIN);
        Plain::write_wide(values, writer);
    }
}

fn write_floats(values: &[f64], single: bool, distinct: usize, writer: &mut BlobWriter) {
    let plain_bytes = values.len() * if single { 4 } else { 8 };
    let scaled = if values.len() < ROWS_MIN { None } else { Scaling::of(values, single) };
    let scaled = scaled.filter(|scaled| scaled.bytes() < plain_bytes / 10 * 9);
    let other_bytes = scaled.as_ref().map_or(plain_bytes, Scaling::bytes);
    if dictionary_bytes(distinct, values.len(), 8) < other_bytes / 5 * 4 || distinct == 1 {
        let found = dictionary(values, values.len() / 4 + 1, float_order)
            .filter(|(sorted, codes)| sorted.len() * 8 + Ints::plan(codes).bytes < other_bytes);
        if let Some((sorted, codes)) = found {
            writer.u8(TAG_DICTIONARY);
            Dictionary::write_floats(&sorted, &codes, writer);
            return;
        }
    }
    if let Some(scaled) = scaled {
        writer.u8(TAG_SCALED_FLOATS);
        scaled.write(writer);
    } else {
        writer.u8(TAG_PLAIN);
        Plain::write_floats(values, single, writer);
    }
}

fn write_strings(values: &[&[u8]], uuid: bool, distinct: usize, writer: &mut BlobWriter) -> Result<()> {
    let total: usize = values.iter().map(|value| value.len()).sum();
    if total > BYTES_MAX {
        return Err(Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "too much text in one row group")
            .with_detail(format!("The values of one column add up to {total} bytes; at most 2 GB fit.")));
    }
    let rows = values.len();
    let plain_bytes = total + rows * width_of(total as u64 / rows.max(1) as u64) as usize / 8;
    // Only long values lie outside of their view.
    let long: usize = values.iter().map(|value| value.len()).filter(|len| *len > INLINE_MAX).sum();
    let value_bytes = 16 + long / rows.max(1);

    // FSST hardly ever leaves less than a third: no need to learn symbols where a dictionary is far below that.
    let repeats = dictionary_bytes(distinct, rows, value_bytes) < plain_bytes / 4;
    let fsst = (rows >= ROWS_MIN && total >= 4096 && !uuid && !repeats).then(|| Coded::sample(values));
    let fsst = fsst.filter(|(_, ratio)| *ratio < 0.85);
    let uuids: Option<Vec<u128>> = if uuid { values.iter().map(|value| uuid::parse(value)).collect() } else { None };
    let other_bytes = match (&fsst, &uuids) {
        (_, Some(_)) => rows * 16,
        (Some((_, ratio)), _) => {
            (total as f64 * ratio) as usize + rows * 2 * width_of(total as u64 / rows as u64) as usize / 8
        }
        _ => plain_bytes,
    };
    // A code is read far quicker than text is decoded, and a condition is evaluated once an entry.
    if distinct <= 1 || dictionary_bytes(distinct, rows, value_bytes) < other_bytes / 4 * 5 {
        let found = dictionary(values, rows / 2 + 1, |value| value).filter(|(sorted, codes)| {
            let long: usize = sorted.iter().map(|value| value.len()).filter(|len| *len > INLINE_MAX).sum();
            sorted.len() == 1 || sorted.len() * 16 + long + Ints::plan(codes).bytes < other_bytes / 4 * 5
        });
        if let Some((sorted, codes)) = found {
            writer.u8(TAG_DICTIONARY);
            Dictionary::write_strings(&sorted, &codes, writer);
            return Ok(());
        }
    }
    if let Some(uuids) = uuids {
        writer.u8(TAG_UUIDS);
        Uuids::write(&uuids, writer);
        return Ok(());
    }
    if let Some((compressor, _)) = fsst {
        let coded = Coded::of(compressor, values);
        if coded.bytes() < total / 10 * 9 {
            writer.u8(TAG_FSST);
            coded.write(values, writer);
            return Ok(());
        }
    }
    writer.u8(TAG_STRINGS);
    Strings::write(values, writer);
    Ok(())
}
