//! `sum` of `real`, which is `real`: DataFusion's is of `double precision`.
//!
//! Sums are kept as doubles and rounded once, at the end, as the engine does.

use crate::float_range;
use arrow::array::{ArrayRef, AsArray};
use arrow::datatypes::{DataType, Field, FieldRef, Float32Type, Float64Type, Int64Type};
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::logical_expr::Accumulator;
use datafusion::logical_expr::function::StateFieldsArgs;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Whether a function of this name over these types is such a sum.
pub fn is_sum(name: &str, types: &[DataType]) -> bool {
    name == "sum" && matches!(types, [DataType::Float32])
}

pub fn of_fields(name: &str, fields: &[FieldRef]) -> bool {
    name == "sum" && matches!(fields, [field] if *field.data_type() == DataType::Float32)
}

pub fn accumulator(is_distinct: bool) -> Box<dyn Accumulator> {
    if is_distinct { Box::new(Distinct::default()) } else { Box::new(Sum::default()) }
}

pub fn state_fields(args: &StateFieldsArgs) -> Vec<FieldRef> {
    let field = |part: &str, data_type| Arc::new(Field::new(format!("{}[{part}]", args.name), data_type, true));
    if args.is_distinct {
        let item = Arc::new(Field::new_list_field(DataType::Float32, true));
        return vec![field("distinct", DataType::List(item))];
    }
    vec![field("sum", DataType::Float64), field("count", DataType::Int64)]
}

#[derive(Debug, Default)]
struct Sum {
    sum: f64,
    count: i64,
}

impl Sum {
    fn add(&mut self, values: &[ArrayRef], sign: f64) -> Result<()> {
        let [values] = values else { return internal_err!("a sum of one argument is given {}", values.len()) };
        for value in values.as_primitive::<Float32Type>().iter().flatten() {
            self.sum += sign * f64::from(value);
            self.count += sign as i64;
        }
        if self.count == 0 {
            self.sum = 0.0;
        }
        Ok(())
    }
}

impl Accumulator for Sum {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.add(values, 1.0)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.add(values, -1.0)
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(ScalarValue::Float32(if self.count > 0 { Some(float_range::sum_as_real(self.sum)?) } else { None }))
    }

    fn size(&self) -> usize {
        size_of::<Sum>()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![ScalarValue::Float64(Some(self.sum)), ScalarValue::Int64(Some(self.count))])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let [sums, counts] = states else { return internal_err!("a sum's state has two parts") };
        self.sum += sums.as_primitive::<Float64Type>().iter().flatten().sum::<f64>();
        self.count += counts.as_primitive::<Int64Type>().iter().flatten().sum::<i64>();
        Ok(())
    }
}

/// Each value once.
#[derive(Debug, Default)]
struct Distinct {
    /// By their bits, all zeros being one.
    seen: BTreeSet<u32>,
}

impl Distinct {
    fn see(&mut self, values: &ArrayRef) {
        let bits = values.as_primitive::<Float32Type>().iter().flatten().map(|value| match value {
            0.0 => 0,
            value if value.is_nan() => f32::NAN.to_bits(),
            value => value.to_bits(),
        });
        self.seen.extend(bits);
    }
}

impl Accumulator for Distinct {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let [values] = values else { return internal_err!("a sum of one argument is given {}", values.len()) };
        self.see(values);
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let sum: f64 = self.seen.iter().map(|bits| f64::from(f32::from_bits(*bits))).sum();
        Ok(ScalarValue::Float32(if self.seen.is_empty() { None } else { Some(float_range::sum_as_real(sum)?) }))
    }

    fn size(&self) -> usize {
        size_of::<Distinct>() + self.seen.len() * 16
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let values: Vec<ScalarValue> =
            self.seen.iter().map(|bits| ScalarValue::Float32(Some(f32::from_bits(*bits)))).collect();
        Ok(vec![ScalarValue::List(ScalarValue::new_list_nullable(&values, &DataType::Float32))])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let [lists] = states else { return internal_err!("a state has one part") };
        lists.as_list::<i32>().iter().flatten().for_each(|values| self.see(&values));
        Ok(())
    }
}
