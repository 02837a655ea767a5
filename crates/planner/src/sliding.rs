//! Aggregates over frames that leave rows behind: those of DataFusion's that cannot take a row back, or give something other than NULL
//! where no row is left.
//!
//! The rows of the frame are kept, and each result is aggregated anew.

use arrow::array::{Array, ArrayRef};
use arrow::compute::concat;
use arrow::datatypes::{DataType, FieldRef, Schema};
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::functions_aggregate::all_default_aggregate_functions;
use datafusion::logical_expr::function::{AccumulatorArgs, AggregateFunctionSimplification, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, GroupsAccumulator, ReversedUDAF, SetMonotonicity, Signature,
};
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};
use std::collections::VecDeque;
use std::sync::Arc;

/// The functions that are taken anew for each frame.
pub fn aggregates() -> impl Iterator<Item = Arc<AggregateUDF>> {
    const NAMES: [&str; 4] = ["bit_and", "bit_or", "bit_xor", "string_agg"];
    let known = all_default_aggregate_functions().into_iter().filter(|function| NAMES.contains(&function.name()));
    known.map(|inner| Arc::new(AggregateUDF::new_from_impl(Sliding { inner })))
}

/// DataFusion's function, but for frames that leave rows behind.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Sliding {
    inner: Arc<AggregateUDF>,
}

impl AggregateUDFImpl for Sliding {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(types)
    }

    fn return_field(&self, fields: &[FieldRef]) -> Result<FieldRef> {
        self.inner.return_field(fields)
    }

    fn is_nullable(&self) -> bool {
        self.inner.is_nullable()
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.coerce_types(types)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.inner.accumulator(args)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        self.inner.state_fields(args)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        self.inner.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        self.inner.create_groups_accumulator(args)
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(Frame {
            call: Call {
                function: self.inner.clone(),
                return_field: args.return_field,
                schema: args.schema.clone(),
                ignore_nulls: args.ignore_nulls,
                order_bys: args.order_bys.to_vec(),
                is_reversed: args.is_reversed,
                name: args.name.to_owned(),
                is_distinct: args.is_distinct,
                exprs: args.exprs.to_vec(),
                expr_fields: args.expr_fields.to_vec(),
            },
            rows: VecDeque::new(),
        }))
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.inner.order_sensitivity()
    }

    fn simplify(&self) -> Option<AggregateFunctionSimplification> {
        self.inner.simplify()
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        self.inner.reverse_udf()
    }

    fn is_descending(&self) -> Option<bool> {
        self.inner.is_descending()
    }

    fn default_value(&self, data_type: &DataType) -> Result<ScalarValue> {
        self.inner.default_value(data_type)
    }

    fn supports_null_handling_clause(&self) -> bool {
        self.inner.supports_null_handling_clause()
    }

    fn supports_within_group_clause(&self) -> bool {
        self.inner.supports_within_group_clause()
    }

    fn set_monotonicity(&self, data_type: &DataType) -> SetMonotonicity {
        self.inner.inner().set_monotonicity(data_type)
    }
}

/// What accumulators are made of.
#[derive(Debug)]
struct Call {
    function: Arc<AggregateUDF>,
    return_field: FieldRef,
    schema: Schema,
    ignore_nulls: bool,
    order_bys: Vec<PhysicalSortExpr>,
    is_reversed: bool,
    name: String,
    is_distinct: bool,
    exprs: Vec<Arc<dyn PhysicalExpr>>,
    expr_fields: Vec<FieldRef>,
}

impl Call {
    fn accumulator(&self) -> Result<Box<dyn Accumulator>> {
        self.function.accumulator(AccumulatorArgs {
            return_field: self.return_field.clone(),
            schema: &self.schema,
            ignore_nulls: self.ignore_nulls,
            order_bys: &self.order_bys,
            is_reversed: self.is_reversed,
            name: &self.name,
            is_distinct: self.is_distinct,
            exprs: &self.exprs,
            expr_fields: &self.expr_fields,
        })
    }
}

/// The rows of a frame: the arguments' arrays, the oldest first.
#[derive(Debug)]
struct Frame {
    call: Call,
    rows: VecDeque<Vec<ArrayRef>>,
}

fn rows_of(arguments: &[ArrayRef]) -> usize {
    arguments.first().map_or(0, |argument| argument.len())
}

impl Accumulator for Frame {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        if rows_of(values) > 0 {
            self.rows.push_back(values.to_vec());
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let mut gone = rows_of(values);
        while gone > 0 {
            let Some(oldest) = self.rows.front_mut() else {
                return internal_err!("a frame leaves rows behind that it did not have");
            };
            let rows = rows_of(oldest);
            if rows > gone {
                oldest.iter_mut().for_each(|argument| *argument = argument.slice(gone, rows - gone));
                return Ok(());
            }
            gone -= rows;
            self.rows.pop_front();
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let mut accumulator = self.call.accumulator()?;
        if self.rows.len() > 1 {
            let arguments = self.rows.front().map_or(0, Vec::len);
            let whole = |place: usize| {
                let parts: Vec<&dyn Array> = self.rows.iter().map(|rows| rows[place].as_ref()).collect();
                concat(&parts)
            };
            let joined = (0..arguments).map(whole).collect::<std::result::Result<Vec<ArrayRef>, _>>()?;
            self.rows.clear();
            self.rows.push_back(joined);
        }
        if let Some(rows) = self.rows.front() {
            accumulator.update_batch(rows)?;
        }
        accumulator.evaluate()
    }

    fn size(&self) -> usize {
        let arrays = self.rows.iter().flatten();
        size_of::<Frame>() + arrays.map(|array| array.get_array_memory_size()).sum::<usize>()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        internal_err!("a frame's rows are aggregated in one place")
    }

    fn merge_batch(&mut self, _states: &[ArrayRef]) -> Result<()> {
        internal_err!("a frame's rows are aggregated in one place")
    }
}
