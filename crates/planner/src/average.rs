//! `avg` of integers and decimals: a decimal of sixteen digits after the point, rounded, as PostgreSQL gives it.
//!
//! DataFusion's own does the work, to one digit more than is shown.

use crate::arithmetic::{QUOTIENT_SCALE, decimal_type};
use arrow::array::{ArrayRef, AsArray, BooleanArray, Decimal128Array};
use arrow::datatypes::{DataType, Decimal128Type, Field, FieldRef, IntervalUnit};
use datafusion::common::{Result, ScalarValue, plan_err};
use datafusion::functions_aggregate::average::avg_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, GroupsAccumulator, ReversedUDAF, Signature, Volatility,
};
use std::sync::Arc;

#[derive(Debug, PartialEq, Eq, Hash)]
struct Average {
    inner: Arc<AggregateUDF>,
    signature: Signature,
}

pub fn function() -> AggregateUDF {
    AggregateUDF::new_from_impl(Average {
        inner: avg_udaf(),
        signature: Signature::user_defined(Volatility::Immutable),
    })
}

/// The scale that is shown, and the one that is computed.
fn scales(data_type: &DataType) -> Option<(i8, i8)> {
    match data_type {
        DataType::Decimal128(_, scale) => {
            let shown = QUOTIENT_SCALE.max(*scale);
            Some((shown, (shown + 1).min(38)))
        }
        _ => None,
    }
}

/// The arguments for DataFusion's own, and the scale to round to.
fn widened<'a>(args: AccumulatorArgs<'a>) -> (AccumulatorArgs<'a>, Option<i8>) {
    let scales = args.expr_fields.first().and_then(|field| scales(field.data_type()));
    let Some((shown, computed)) = scales else { return (args, None) };
    let field = Field::new(args.return_field.name(), DataType::Decimal128(38, computed), true);
    (AccumulatorArgs { return_field: Arc::new(field), ..args }, Some(shown))
}

impl AggregateUDFImpl for Average {
    fn name(&self) -> &str {
        "avg"
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let [data_type] = types else { return plan_err!("avg takes one argument") };
        if let Some(decimal) = decimal_type(data_type) {
            return Ok(vec![decimal]);
        }
        match data_type {
            DataType::Float16 | DataType::Float32 | DataType::Float64 | DataType::Null => Ok(vec![DataType::Float64]),
            // Made a sum and a count by `crate::intervals`.
            DataType::Interval(_) => Ok(vec![DataType::Interval(IntervalUnit::MonthDayNano)]),
            DataType::Decimal256(..) | DataType::Duration(_) => Ok(types.to_vec()),
            other => plan_err!("No function matches the given name and argument types 'avg({other})'"),
        }
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        if let [interval @ DataType::Interval(_)] = types {
            return Ok(interval.clone());
        }
        match types.first().and_then(scales) {
            Some((shown, _)) => Ok(DataType::Decimal128(38, shown)),
            None => self.inner.return_type(types),
        }
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let (args, scale) = widened(args);
        Ok(rounding(self.inner.accumulator(args)?, scale))
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let (args, scale) = widened(args);
        Ok(rounding(self.inner.create_sliding_accumulator(args)?, scale))
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        self.inner.state_fields(args)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        self.inner.groups_accumulator_supported(widened(args).0)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        let (args, scale) = widened(args);
        let inner = self.inner.create_groups_accumulator(args)?;
        Ok(match scale {
            Some(scale) => Box::new(RoundedGroups { inner, scale }),
            None => inner,
        })
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }
}

fn rounded(value: i128, drop: u32) -> i128 {
    let Some(factor) = 10i128.checked_pow(drop) else { return 0 };
    let (quotient, rest) = (value / factor, value % factor);
    if drop > 0 && rest.abs() * 2 >= factor { quotient + value.signum() } else { quotient }
}

/// `inner`, its result rounded to `scale` if there is one.
fn rounding(inner: Box<dyn Accumulator>, scale: Option<i8>) -> Box<dyn Accumulator> {
    match scale {
        Some(scale) => Box::new(Rounded { inner, scale }),
        None => inner,
    }
}

struct Rounded {
    inner: Box<dyn Accumulator>,
    scale: i8,
}

impl std::fmt::Debug for Rounded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rounded({:?})", self.inner)
    }
}

impl Accumulator for Rounded {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.inner.update_batch(values)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(match self.inner.evaluate()? {
            ScalarValue::Decimal128(value, _, computed) => {
                let drop = u32::from((computed - self.scale).unsigned_abs());
                ScalarValue::Decimal128(value.map(|value| rounded(value, drop)), 38, self.scale)
            }
            other => other,
        })
    }

    fn size(&self) -> usize {
        self.inner.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.inner.state()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.inner.merge_batch(states)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.inner.retract_batch(values)
    }

    fn supports_retract_batch(&self) -> bool {
        self.inner.supports_retract_batch()
    }
}

struct RoundedGroups {
    inner: Box<dyn GroupsAccumulator>,
    scale: i8,
}

impl GroupsAccumulator for RoundedGroups {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.inner.update_batch(values, group_indices, opt_filter, total_num_groups)
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let array = self.inner.evaluate(emit_to)?;
        let &DataType::Decimal128(_, computed) = array.data_type() else { return Ok(array) };
        let drop = u32::from((computed - self.scale).unsigned_abs());
        let values: Decimal128Array = array.as_primitive::<Decimal128Type>().unary(|value| rounded(value, drop));
        Ok(Arc::new(values.with_precision_and_scale(38, self.scale)?))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        self.inner.state(emit_to)
    }

    fn merge_batch(&mut self, values: &[ArrayRef], group_indices: &[usize], total_num_groups: usize) -> Result<()> {
        self.inner.merge_batch(values, group_indices, total_num_groups)
    }

    fn convert_to_state(&self, values: &[ArrayRef], opt_filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        self.inner.convert_to_state(values, opt_filter)
    }

    fn size(&self) -> usize {
        self.inner.size()
    }
}
