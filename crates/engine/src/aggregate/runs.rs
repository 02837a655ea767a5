//! Neighbouring rows of one key.

use crate::hash::float_bits;
use crate::mask::Mask;
use crate::vector::{Values, Vector};

/// Neighbours that are looked at before all are.
const SAMPLE: usize = 64;

/// Whether a row's key is that of the row before it. NULL is NULL's.
pub(super) fn is_same(column: &Vector, row: usize) -> bool {
    match (column.is_valid(row - 1), column.is_valid(row)) {
        (true, true) => {}
        (a, b) => return a == b,
    }
    match &column.values {
        Values::Int(values) => values[row - 1] == values[row],
        Values::Wide(values) => values[row - 1] == values[row],
        Values::Float(values) => float_bits(values[row - 1]) == float_bits(values[row]),
        Values::Bool(values) => values.get(row - 1) == values.get(row),
        Values::Text(values) => values.are_equal(row - 1, row),
        Values::Other(_) => false,
    }
}

/// Where runs of equal keys end, if a run has two rows or more on average.
pub(super) fn ends(keys: &[&Vector], rows: usize) -> Option<Vec<u32>> {
    if rows < SAMPLE {
        return None;
    }
    let start = rows.div_ceil(2) - SAMPLE / 2 + 1;
    let same = (start..start + SAMPLE - 1).filter(|row| keys.iter().all(|key| is_same(key, *row)));
    if same.count() * 5 < SAMPLE * 2 {
        return None;
    }
    // 1: another key than before.
    let mut changes = vec![0u8; rows];
    changes[0] = 1;
    fn each<T: Copy>(changes: &mut [u8], values: &[T], differ: impl Fn(T, T) -> bool) {
        for (change, (before, value)) in changes[1..].iter_mut().zip(values.iter().zip(&values[1..])) {
            *change |= u8::from(differ(*before, *value));
        }
    }
    for key in keys {
        match (&key.values, &key.valid) {
            (Values::Int(values), None) => each(&mut changes, values, |a, b| a != b),
            (Values::Wide(values), None) => each(&mut changes, values, |a, b| a != b),
            (Values::Float(values), None) => each(&mut changes, values, |a, b| float_bits(a) != float_bits(b)),
            (Values::Text(values), None) => {
                for (change, differs) in changes[1..].iter_mut().zip(values.changes()) {
                    *change |= u8::from(differs);
                }
            }
            _ => {
                for (row, change) in changes.iter_mut().enumerate().skip(1) {
                    *change |= u8::from(!is_same(key, row));
                }
            }
        }
    }
    let starts = Mask::of_values(&changes, |change| change != 0);
    if starts.count() * 2 > rows {
        return None;
    }
    let mut ends = starts.positions();
    ends.push(rows as u32);
    ends.remove(0);
    Some(ends)
}
