//! Averages of what is known of parts of the rows.

use crate::aggregate::{AggregateCall, AggregateFunction, SumWide, out_of_range, result_bounds};
use crate::expr::{Expr, Function};
use crate::mask::Mask;
use crate::types::{Class, ColumnType};
use crate::vector::{Values, Vector};
use arrow_array::ArrayRef;
use arrow_schema::DataType;
use std::sync::Arc;
use tidepool_base::{Error, Result};

/// What an average is made of, a sum and a count, where what it sums is a number and no sum can be beyond its type. `types`: of the
/// rows, no more than `rows_max`.
pub fn parts(call: &AggregateCall, types: &[ColumnType], rows_max: u64) -> Option<[AggregateCall; 2]> {
    let of = &types[call.argument?];
    let of_sum = match of.class() {
        Class::Float if of.data_type == DataType::Float64 => ColumnType::new(DataType::Float64, true),
        Class::Int | Class::Wide => {
            let (lower, upper) = of.bounds?;
            let limit = lower.unsigned_abs().max(upper.unsigned_abs()).checked_mul(rows_max.into())?;
            let limit = i128::try_from(limit).ok()?;
            let widest = ColumnType::new(DataType::Decimal128(38, of.scale()?), true);
            widest.bounds.filter(|(_, most)| limit <= *most)?;
            widest.within((-limit, limit))
        }
        _ => return None,
    };
    if call.distinct || call.function != AggregateFunction::Avg {
        return None;
    }
    let count = ColumnType::new(DataType::Int64, false);
    Some([
        AggregateCall { function: AggregateFunction::Sum, of: of_sum, ..call.clone() },
        AggregateCall { function: AggregateFunction::Count, of: count, ..call.clone() },
    ])
}

/// The average, as an aggregate makes it: of a sum and a count, which may be 0.
pub fn average(sum: Expr, count: Expr, of: ColumnType) -> Expr {
    let function = Average { sum: sum.of.clone(), of: of.clone() };
    Expr::call(Arc::new(function), vec![sum, count], of)
}

struct Average {
    sum: ColumnType,
    of: ColumnType,
}

impl Function for Average {
    fn name(&self) -> &str {
        "average"
    }

    fn evaluate(&self, arguments: &[ArrayRef], rows: usize) -> Result<ArrayRef> {
        let [sums, counts] = arguments else {
            return Err(Error::internal("an average of other than a sum and a count"));
        };
        let sums = Vector::from_arrow(sums, &self.sum)?;
        let counts = Vector::from_arrow(counts, &ColumnType::new(DataType::Int64, true))?;
        let counts = counts.as_ints()?;
        let is_there = |row: usize| counts[row] > 0 && sums.is_valid(row);
        let valid = Mask::from_fn(rows, is_there);
        let exact = |row: usize| match &sums.values {
            Values::Int(values) => values[row].into(),
            Values::Wide(values) => values[row],
            _ => 0,
        };
        let scale = i32::from(self.sum.scale().unwrap_or(0));
        let values = match (&sums.values, self.of.class()) {
            (Values::Float(values), Class::Float) => {
                let average = |row: usize| if is_there(row) { values[row] / counts[row] as f64 } else { 0.0 };
                Values::Float((0..rows).map(average).collect())
            }
            (_, Class::Float) => {
                let unit = 10f64.powi(-scale);
                let of = |row| SumWide::of(exact(row)).to_f64() * unit / counts[row] as f64;
                Values::Float((0..rows).map(|row| if is_there(row) { of(row) } else { 0.0 }).collect())
            }
            (_, class) => {
                let shift = i32::from(self.of.scale().unwrap_or(0)) - scale;
                let (lower, upper) = result_bounds(&self.of);
                let average = |row: usize| {
                    if !is_there(row) {
                        return Ok(0);
                    }
                    let value = SumWide::of(exact(row)).average(counts[row] as u64, shift);
                    let value = value.filter(|value| lower <= *value && *value <= upper);
                    value.ok_or_else(|| out_of_range(&self.of))
                };
                let values = (0..rows).map(average).collect::<Result<Vec<i128>>>()?;
                match class {
                    Class::Int => Values::Int(values.into_iter().map(|value| value as i64).collect()),
                    _ => Values::Wide(values.into()),
                }
            }
        };
        Vector { values, valid: None }.with_valid(Some(valid)).to_arrow(&self.of)
    }
}
