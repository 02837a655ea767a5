//! Groups as columns of the result.

use super::functions::{AggregateFunction, Output, out_of_range, result_bounds};
use super::plan::Plan;
use super::states::{
    Accumulator, ExactMoments, Moments, Primitive, Sum64, Sum128, SumFloat, SumWide, float_of_key, int_of_key,
};
use super::texts::TextState;
use crate::evaluate::Fault;
use crate::mask::Mask;
use crate::rows::RowPtr;
use crate::text::{Owners, Text};
use crate::types::{Class, ColumnType};
use crate::vector::{Chunk, Texts, Values, Vector};
use arrow_schema::DataType;
use std::sync::atomic::Ordering;
use tidepool_base::{Error, Result};

/// Some groups' columns.
///
/// # Safety
///
/// The rows are there and of the plan's layout, and nobody writes them meanwhile. `owners` hold what their texts lie in.
pub(super) unsafe fn chunk(plan: &Plan, rows: &[RowPtr], owners: &Owners) -> Result<Chunk> {
    // SAFETY: the caller's word.
    let keys = (0..plan.keys.len()).map(|column| Ok(unsafe { plan.layout.gather(column, rows, owners) }));
    let outputs = plan.outputs.iter().zip(&plan.columns[plan.keys.len()..]);
    // SAFETY: as above.
    let outputs = outputs.map(|(output, of)| unsafe { column(plan, *output, of, rows, owners) });
    let columns = keys.chain(outputs).collect::<Result<Vec<Vector>>>()?;
    Ok(Chunk::new(rows.len(), columns))
}

/// # Safety
///
/// As for [`chunk`].
unsafe fn column(plan: &Plan, output: Output, of: &ColumnType, rows: &[RowPtr], owners: &Owners) -> Result<Vector> {
    let accumulators = &plan.accumulators;
    // SAFETY: counts are at the offset of one; the rest is the caller's word.
    let count = |accumulator: usize, row: RowPtr| unsafe { row.read::<u64>(accumulators[accumulator].offset) };
    let seen = |seen: Option<usize>| seen.map(|seen| Mask::of_values(rows, |row| count(seen, row) > 0));
    let single = of.data_type == DataType::Float32;
    let real = |value: f64| if single { f64::from(value as f32) } else { value };
    // A sum of finite numbers is not infinite.
    let in_range = |values: Vec<f64>| match values.iter().any(|value| value.is_infinite()) {
        true if !plan.has_infinite.load(Ordering::Relaxed) => Err(Fault::Overflow.error()),
        _ => Ok(Values::Float(values.into())),
    };
    let sums = |value: &dyn Fn(RowPtr) -> f64| in_range(rows.iter().map(|row| real(value(*row))).collect::<Vec<f64>>());
    let floats = |value: &dyn Fn(RowPtr) -> f64| {
        Values::Float(rows.iter().map(|row| real(value(*row))).collect::<Vec<f64>>().into())
    };
    Ok(match output {
        // SAFETY: the caller's word.
        Output::Stored(column) => unsafe { plan.layout.gather(column, rows, owners) },
        Output::Count(accumulator) => small(of, rows, |row| count(accumulator, row) as i64)?,
        Output::Sum { sum, seen: valid } => {
            let (sum, valid) = (&accumulators[sum], seen(valid));
            let vector = match sum.primitive {
                Primitive::SumFloat => {
                    // SAFETY: the state is of that type; the rest is the caller's word.
                    let values = sums(&|row| unsafe { row.read::<SumFloat>(sum.offset) }.0)?;
                    Vector { values, valid: None }
                }
                // SAFETY: the state is of that type; the rest is the caller's word.
                Primitive::SumInt64 => small(of, rows, |row| unsafe { row.read::<Sum64>(sum.offset) }.0)?,
                // A sum of nothing is 0, which every type holds.
                _ => integers(of, rows, |row| {
                    // SAFETY: the caller's word.
                    unsafe { sum_of(sum, row) }.get().ok_or_else(|| out_of_range(of))
                })?,
            };
            vector.with_valid(valid)
        }
        Output::Average { sum, count: counted, shift } => {
            let sum = &accumulators[sum];
            let valid = Some(Mask::of_values(rows, |row| count(counted, row) > 0));
            let vector = match (sum.primitive, of.class()) {
                (Primitive::SumFloat, _) => {
                    let average = |row: RowPtr| {
                        // SAFETY: the state is of that type; the rest is the caller's word.
                        unsafe { row.read::<SumFloat>(sum.offset) }.0 / count(counted, row) as f64
                    };
                    Vector { values: sums(&average)?, valid: None }
                }
                (_, Class::Float) => {
                    let unit = 10f64.powi(shift);
                    // SAFETY: the caller's word.
                    let average = |row| unsafe { sum_of(sum, row) }.to_f64() * unit / count(counted, row) as f64;
                    Vector { values: floats(&average), valid: None }
                }
                _ => integers(of, rows, |row| match count(counted, row) {
                    0 => Ok(0),
                    // SAFETY: the caller's word.
                    count => unsafe { sum_of(sum, row) }.average(count, shift).ok_or_else(|| out_of_range(of)),
                })?,
            };
            vector.with_valid(valid)
        }
        Output::Extreme { value, seen: valid } => {
            let accumulator = &accumulators[value];
            let offset = accumulator.offset;
            let (least, is_wide) = match accumulator.primitive {
                Primitive::Extreme { least } => (least, false),
                Primitive::WideExtreme { least } => (least, true),
                _ => return Err(Error::internal("an extreme of another accumulator")),
            };
            let flip = if least { u64::MAX } else { 0 };
            // SAFETY: the state is of that type; the rest is the caller's word.
            let key = |row: RowPtr| unsafe { row.read::<u64>(offset) } ^ flip;
            let values = match of.class() {
                Class::Int => Values::Int(rows.iter().map(|row| int_of_key(key(*row))).collect::<Vec<i64>>().into()),
                Class::Float => floats(&|row| float_of_key(key(row))),
                Class::Bool => Values::Bool(Mask::of_values(rows, |row| key(row) == 1)),
                Class::Wide if is_wide => {
                    let flip = if least { u128::MAX } else { 0 };
                    let value = |row: &RowPtr| {
                        // SAFETY: the state is of that type; the rest is the caller's word.
                        (unsafe { row.read::<u128>(offset) } ^ flip ^ 1 << 127) as i128
                    };
                    Values::Wide(rows.iter().map(value).collect::<Vec<i128>>().into())
                }
                _ => return Err(Error::internal("an extreme of another class than planned")),
            };
            Vector { values, valid: None }.with_valid(seen(valid))
        }
        Output::Text(accumulator) => {
            let offset = accumulators[accumulator].offset;
            // SAFETY: the state is of that type; the rest is the caller's word.
            let states: Vec<TextState> = rows.iter().map(|row| unsafe { row.read::<TextState>(offset) }).collect();
            let texts: Vec<Text> = states.iter().map(TextState::text).collect();
            // SAFETY: the caller's word.
            let values = Values::Text(unsafe { Texts::new(texts, owners.clone()) });
            let valid = Mask::from_fn(states.len(), |row| states[row].is_there());
            Vector { values, valid: None }.with_valid(Some(valid))
        }
        Output::Moments { moments, of: function } => {
            let Accumulator { primitive, offset, unit, .. } = accumulators[moments];
            use AggregateFunction as F;
            let is_sample = matches!(function, F::VarSamp | F::StddevSamp);
            let is_root = matches!(function, F::StddevPop | F::StddevSamp);
            if primitive == Primitive::ExactMoments {
                // SAFETY: the state is of that type; the rest is the caller's word.
                let moments: Vec<ExactMoments> = rows.iter().map(|row| unsafe { row.read(offset) }).collect();
                let less = u64::from(is_sample);
                let value = |of: &ExactMoments| {
                    let pairs = u128::from(of.count) * u128::from(of.count.saturating_sub(less));
                    let variance = of.spread() as f64 / pairs as f64 / unit / unit;
                    real(if is_root { variance.sqrt() } else { variance })
                };
                let values = Values::Float(moments.iter().map(value).collect::<Vec<f64>>().into());
                let valid = Mask::from_fn(moments.len(), |row| moments[row].count > less);
                return Ok(Vector { values, valid: None }.with_valid(Some(valid)));
            }
            // SAFETY: the state is of that type; the rest is the caller's word.
            let moments: Vec<Moments> = rows.iter().map(|row| unsafe { row.read::<Moments>(offset) }).collect();
            let less = if is_sample { 1.0 } else { 0.0 };
            let value = |of: &Moments| {
                // Rounding may leave a little less than nothing; NaN stays.
                let squares = if of.squares < 0.0 { 0.0 } else { of.squares };
                let variance = squares / (of.count - less);
                real(if is_root { variance.sqrt() } else { variance })
            };
            let values = in_range(moments.iter().map(value).collect())?;
            let valid = Mask::from_fn(moments.len(), |row| moments[row].count > less);
            Vector { values, valid: None }.with_valid(Some(valid))
        }
    })
}

/// A column of integers or decimals. Fails (22003) for values that its type does not hold.
fn integers(of: &ColumnType, rows: &[RowPtr], value: impl Fn(RowPtr) -> Result<i128>) -> Result<Vector> {
    let (lower, upper) = result_bounds(of);
    let value = |row: &RowPtr| {
        let value = value(*row)?;
        if lower <= value && value <= upper { Ok(value) } else { Err(out_of_range(of)) }
    };
    let values = match of.class() {
        Class::Int => {
            let values = rows.iter().map(|row| value(row).map(|value| value as i64)).collect::<Result<Vec<i64>>>()?;
            Values::Int(values.into())
        }
        Class::Wide => Values::Wide(rows.iter().map(value).collect::<Result<Vec<i128>>>()?.into()),
        _ => return Err(Error::internal("an aggregate's result is no number")),
    };
    Ok(Vector { values, valid: None })
}

/// As [`integers`], of values that need no check in most types.
fn small(of: &ColumnType, rows: &[RowPtr], value: impl Fn(RowPtr) -> i64) -> Result<Vector> {
    let (lower, upper) = result_bounds(of);
    if i128::from(i64::MIN) < lower || upper < i128::from(i64::MAX) {
        return integers(of, rows, |row| Ok(value(row).into()));
    }
    let values = match of.class() {
        Class::Int => Values::Int(rows.iter().map(|row| value(*row)).collect::<Vec<i64>>().into()),
        Class::Wide => Values::Wide(rows.iter().map(|row| i128::from(value(*row))).collect::<Vec<i128>>().into()),
        _ => return Err(Error::internal("an aggregate's result is no number")),
    };
    Ok(Vector { values, valid: None })
}

/// # Safety
///
/// The row is there, with that accumulator's state.
unsafe fn sum_of(sum: &Accumulator, row: RowPtr) -> SumWide {
    // SAFETY: `Primitive` says of which type the state is; the rest is the caller's word.
    unsafe {
        match sum.primitive {
            Primitive::SumInt64 => SumWide::of(row.read::<Sum64>(sum.offset).0.into()),
            Primitive::SumInt128 => SumWide::of(row.read::<Sum128>(sum.offset).0),
            Primitive::SumWide => row.read(sum.offset),
            _ => SumWide::default(),
        }
    }
}

impl SumWide {
    pub fn to_f64(self) -> f64 {
        if let Some(value) = self.get() {
            return value as f64;
        }
        let (limbs, is_negative) = self.magnitude();
        let value = limbs.iter().rev().fold(0.0, |value, limb| value * 2f64.powi(64) + *limb as f64);
        if is_negative { -value } else { value }
    }

    /// The quotient by `count` times ten to the power of `shift`, rounded half away from zero. `None` if 128 bits do not hold it.
    pub fn average(self, count: u64, shift: i32) -> Option<i128> {
        let (limbs, is_negative) = self.magnitude();
        let signed = |value: u128| i128::try_from(value).ok().map(|value| if is_negative { -value } else { value });
        // Most fit: 128 bits are divided many times slower.
        if limbs[1] == 0 && limbs[2] == 0 && (0..=19).contains(&shift) {
            let power = 10u64.pow(shift as u32);
            if let Some(rest) = (limbs[0] % count).checked_mul(power) {
                let up = u128::from(rest % count >= count - rest % count);
                return signed(u128::from(limbs[0] / count) * u128::from(power) + u128::from(rest / count) + up);
            }
        }
        let (mut quotient, mut rest) = (0u128, 0u128);
        for limb in limbs.iter().rev() {
            let dividend = rest << 64 | u128::from(*limb);
            if quotient >> 64 != 0 {
                return None;
            }
            quotient = (quotient << 64) | (dividend / u128::from(count));
            rest = dividend % u128::from(count);
        }
        if shift < 0 {
            // What is dropped ends in a whole digit: the rest of the division cannot make it a half.
            let power = 10u128.checked_pow(shift.unsigned_abs())?;
            return signed(quotient / power + u128::from(quotient % power >= power / 2));
        }
        let mut left = shift as u32;
        while left > 0 {
            let digits = left.min(18);
            let power = 10u128.pow(digits);
            let dividend = rest * power;
            quotient = quotient.checked_mul(power)?.checked_add(dividend / u128::from(count))?;
            rest = dividend % u128::from(count);
            left -= digits;
        }
        signed(quotient.checked_add(u128::from(rest * 2 >= u128::from(count)))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::states::State;

    #[test]
    fn averages_are_rounded_half_away_from_zero() {
        let average = |values: &[i128], count: u64, shift: i32| {
            let mut sum = SumWide::default();
            values.iter().for_each(|value| sum.add(*value));
            sum.average(count, shift)
        };
        assert_eq!(average(&[1], 2, 0), Some(1));
        assert_eq!(average(&[-1], 2, 0), Some(-1));
        assert_eq!(average(&[1], 3, 16), Some(3_333_333_333_333_333));
        assert_eq!(average(&[-2], 3, 16), Some(-6_666_666_666_666_667));
        assert_eq!(average(&[15], 1, -1), Some(2));
        assert_eq!(average(&[-14], 1, -1), Some(-1));
        assert_eq!(average(&[1], 7, 36), Some(142_857_142_857_142_857_142_857_142_857_142_857));
        assert_eq!(average(&[i128::MAX, i128::MAX, i128::MAX], 3, 0), Some(i128::MAX));
        assert_eq!(average(&[i128::MIN, i128::MIN + 2], 2, 0), Some(i128::MIN + 1));
        assert_eq!(average(&[i128::MAX, i128::MAX, i128::MIN, i128::MIN], 4, 0), Some(-1));
        assert_eq!(average(&[i128::MAX], 1, 1), None);
        assert_eq!(average(&[i128::from(u64::MAX)], u64::MAX, 16), Some(10_000_000_000_000_000));
        assert_eq!(average(&[i128::from(i64::MAX)], 1000, 16), Some(92_233_720_368_547_758_070_000_000_000_000));
    }
}
