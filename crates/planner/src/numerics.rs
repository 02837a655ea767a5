//! Numbers of `numeric` without precision, each of which has a scale: what DataFusion does not know of them.
//!
//! They are byte strings of a width that nothing else has ([`tidepool_base::Numeric`]), so their type alone says what they are, whatever
//! becomes of a field's metadata. Numbers whose scale is known while a query is planned (literals, `numeric(p, s)` and what is
//! computed of them) stay Arrow's decimals; where the two meet, the decimal becomes one of these.

use crate::errors::carry;
use crate::real_sums;
use arrow::array::{Array, ArrayRef, AsArray, BinaryViewArray, ListArray, StringViewArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type, UInt64Type};
use datafusion::common::{DFSchema, Result, ScalarValue, exec_err, internal_err, plan_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::type_coercion::functions::fields_with_udf;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Cast, ColumnarValue, Expr, ExprSchemable, GroupsAccumulator, Operator,
    ReturnFieldArgs, ReversedUDAF, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use tidepool_base::{NUMERIC_BYTES, NUMERIC_KEY_BYTES, Numeric};
pub use tidepool_database::text::numeric::NUMERIC;
use tidepool_database::text::numeric::{CastError, array_of, cast_array, numbers};
use tidepool_table::NUMERIC_WIDTH;

/// What numbers are compared by: byte strings that are the same for equal ones, and that the engine knows too.
const KEY: DataType = DataType::BinaryView;

pub fn is_numeric(data_type: &DataType) -> bool {
    *data_type == NUMERIC
}

/// Whether values of a type are exact numbers, of whatever form.
pub fn is_exact(data_type: &DataType) -> bool {
    data_type.is_integer() || matches!(data_type, DataType::Decimal128(..)) || is_numeric(data_type)
}

/// The number that a scalar is, if it is an exact one.
pub fn number_of_scalar(value: &ScalarValue) -> Option<Numeric> {
    match value {
        ScalarValue::FixedSizeBinary(NUMERIC_WIDTH, Some(bytes)) => Numeric::from_bytes(bytes),
        ScalarValue::Decimal128(Some(value), _, scale) => Numeric::of_decimal(*value, *scale).ok(),
        ScalarValue::Int16(Some(value)) => Some(Numeric::of_int(i64::from(*value))),
        ScalarValue::Int32(Some(value)) => Some(Numeric::of_int(i64::from(*value))),
        ScalarValue::Int64(Some(value)) => Some(Numeric::of_int(*value)),
        _ => None,
    }
}

pub fn scalar_of(number: Numeric) -> ScalarValue {
    ScalarValue::FixedSizeBinary(NUMERIC_WIDTH, Some(number.to_bytes().to_vec()))
}

/// A literal number as a decimal of just its digits.
pub fn decimal_of(number: Numeric) -> ScalarValue {
    let digits = number.unscaled().unsigned_abs().checked_ilog10().map_or(1, |digits| digits + 1);
    let precision = digits.max(u32::from(number.scale())).clamp(1, 38) as u8;
    ScalarValue::Decimal128(Some(number.unscaled()), precision, number.scale() as i8)
}

/// An expression of exact numbers as one of numbers that each have a scale.
pub fn as_numeric(expr: Expr) -> Expr {
    if let Expr::Literal(value, _) = &expr {
        if let Some(number) = number_of_scalar(value) {
            return Expr::Literal(scalar_of(number), None);
        }
        if value.is_null() {
            return Expr::Literal(ScalarValue::FixedSizeBinary(NUMERIC_WIDTH, None), None);
        }
    }
    Expr::Cast(Cast::new(Box::new(expr), NUMERIC))
}

/// A comparison of a column with a constant, as one of byte strings, which a scan tests and an index finds: before a number's
/// bytes come those of all lesser numbers, and equal ones differ in their last byte. `None` for another comparison.
pub fn as_bounds(column: &Expr, op: Operator, number: Numeric) -> Option<Expr> {
    let bound = |last: u8| {
        let mut bytes = number.to_bytes();
        bytes[NUMERIC_BYTES - 1] = last;
        Expr::Literal(ScalarValue::FixedSizeBinary(NUMERIC_WIDTH, Some(bytes.to_vec())), None)
    };
    let compare = |op: Operator, last: u8| datafusion::logical_expr::binary_expr(column.clone(), op, bound(last));
    Some(match op {
        Operator::Lt => compare(Operator::Lt, 0),
        Operator::LtEq => compare(Operator::LtEq, u8::MAX),
        Operator::Gt => compare(Operator::Gt, u8::MAX),
        Operator::GtEq => compare(Operator::GtEq, 0),
        Operator::Eq => compare(Operator::GtEq, 0).and(compare(Operator::LtEq, u8::MAX)),
        Operator::NotEq => compare(Operator::Lt, 0).or(compare(Operator::Gt, u8::MAX)),
        _ => return None,
    })
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// From and into other types.
    Cast(DataType),
    /// What a number is compared by; the numbers of an array each.
    Key,
    /// The same as text: DataFusion orders windows by texts, but not by bytes.
    KeyText,
    Plus,
    Minus,
    Times,
    Over,
    Modulo,
    Negate,
    /// Leaves zeros at the end of the fraction out.
    Trim,
    /// Gives decimals a scale each, and lets all else pass.
    Open,
    /// Lets a value pass, without what its field says of it.
    Plain,
}

impl Kind {
    pub fn of(op: Operator) -> Option<Kind> {
        Some(match op {
            Operator::Plus => Kind::Plus,
            Operator::Minus => Kind::Minus,
            Operator::Multiply => Kind::Times,
            Operator::Divide => Kind::Over,
            Operator::Modulo => Kind::Modulo,
            _ => return None,
        })
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
pub struct NumericFunction {
    kind: Kind,
    signature: Signature,
}

pub fn call(kind: Kind, arguments: Vec<Expr>) -> Expr {
    let signature = Signature::user_defined(Volatility::Immutable);
    ScalarUDF::new_from_impl(NumericFunction { kind, signature }).call(arguments)
}

/// Functions that queries are given before they are planned.
pub fn functions() -> [Arc<ScalarUDF>; 2] {
    [Kind::Open, Kind::Negate].map(|kind| {
        let signature = Signature::user_defined(Volatility::Immutable);
        Arc::new(ScalarUDF::new_from_impl(NumericFunction { kind, signature }))
    })
}

/// Whether a function stands for a minus before a value.
pub fn negates(function: &ScalarUDF) -> bool {
    function.inner().downcast_ref::<NumericFunction>().is_some_and(|own| own.kind == Kind::Negate)
}

fn carried(error: CastError) -> datafusion::common::DataFusionError {
    match error {
        CastError::Value(error) => carry(error),
        CastError::Arrow(error) => error.into(),
    }
}

/// Whether it is the type of arrays of these numbers.
pub fn is_list_of(data_type: &DataType) -> bool {
    matches!(data_type, DataType::List(item) if is_numeric(item.data_type()))
}

/// DataFusion's own function in place of one that takes these numbers too, where there are none: the engine and DataFusion's rules know
/// that one.
pub fn plain_aggregate(
    function: &AggregateUDF,
    args: &[Expr],
    schema: &DFSchema,
) -> Option<(Arc<AggregateUDF>, Vec<Expr>)> {
    let own = function.inner().downcast_ref::<AggregateWithNumeric>()?;
    let is_own = |arg: &Expr| arg.get_type(schema).map_or(true, |of| is_numeric(&of));
    if matches!(function.name(), "sum" | "avg") && args.iter().any(is_own) {
        return None;
    }
    let types: Result<Vec<DataType>> = args.iter().map(|arg| arg.get_type(schema)).collect();
    if types.is_ok_and(|types| real_sums::is_sum(function.name(), &types)) {
        return None;
    }
    Some((own.inner.clone(), cast_to(&DataType::Float64, args, schema)))
}

/// An array as another type, from and into numbers that each have a scale too.
pub fn cast(array: &ArrayRef, target: &DataType) -> Result<ArrayRef> {
    if let (DataType::List(_), DataType::List(item)) = (array.data_type(), target) {
        let list = array.as_list::<i32>();
        let values = cast(list.values(), item.data_type())?;
        let list = ListArray::try_new(item.clone(), list.offsets().clone(), values, list.nulls().cloned())?;
        return Ok(Arc::new(list));
    }
    cast_array(array, target).map_err(carried)
}

fn mapped(array: &ArrayRef, of: impl Fn(Numeric) -> tidepool_base::Result<Numeric>) -> Result<ArrayRef> {
    let results = numbers(array).map(|number| number?.map(&of).transpose());
    results.collect::<tidepool_base::Result<Vec<_>>>().and_then(|all| array_of(all.into_iter())).map_err(carry)
}

fn zipped(
    left: &ArrayRef,
    right: &ArrayRef,
    of: impl Fn(Numeric, Numeric) -> tidepool_base::Result<Numeric>,
) -> Result<ArrayRef> {
    let results = numbers(left).zip(numbers(right)).map(|(left, right)| match (left?, right?) {
        (Some(left), Some(right)) => of(left, right).map(Some),
        _ => Ok(None),
    });
    results.collect::<tidepool_base::Result<Vec<_>>>().and_then(|all| array_of(all.into_iter())).map_err(carry)
}

fn keys(array: &ArrayRef) -> ArrayRef {
    let numbers = array.as_fixed_size_binary().iter();
    Arc::new(numbers.map(|number| number.map(|number| &number[..NUMERIC_KEY_BYTES])).collect::<BinaryViewArray>())
}

fn key_texts(array: &ArrayRef) -> ArrayRef {
    let text = |number: &[u8]| number[..NUMERIC_KEY_BYTES].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let numbers = array.as_fixed_size_binary().iter();
    Arc::new(numbers.map(|number| number.map(text)).collect::<StringViewArray>())
}

impl ScalarUDFImpl for NumericFunction {
    fn name(&self) -> &str {
        match self.kind {
            Kind::Cast(_) => "tidepool_cast_numeric",
            Kind::Key => "tidepool_numeric_key",
            Kind::KeyText => "tidepool_numeric_key_text",
            Kind::Plus => "tidepool_numeric_plus",
            Kind::Minus => "tidepool_numeric_minus",
            Kind::Times => "tidepool_numeric_times",
            Kind::Over => "tidepool_numeric_over",
            Kind::Modulo => "tidepool_numeric_modulo",
            Kind::Negate => crate::row_types::NEGATE,
            Kind::Trim => "tidepool_numeric_trim",
            Kind::Open => crate::row_types::OPEN,
            Kind::Plain => "tidepool_plain",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match self.kind {
            Kind::Cast(_) | Kind::Open | Kind::Plain => Ok(types.to_vec()),
            Kind::Key if matches!(types, [of] if is_list_of(of)) => Ok(types.to_vec()),
            Kind::Negate => match types {
                [of] if of.is_numeric()
                    || is_numeric(of)
                    || matches!(of, DataType::Interval(_) | DataType::Timestamp(..) | DataType::Null) =>
                {
                    Ok(types.to_vec())
                }
                _ => plan_err!("unary operator '-' only supports signed numeric, interval and timestamp types"),
            },
            _ if types.iter().all(|of| is_exact(of) || *of == DataType::Null) => Ok(vec![NUMERIC; types.len()]),
            _ => plan_err!("arithmetic of numeric over {types:?}"),
        }
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        crate::catalog::name_of_call(self.name(), args)
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(match &self.kind {
            Kind::Open | Kind::Plain | Kind::Negate => match (types, &self.kind) {
                ([DataType::Decimal128(..)], Kind::Open) => NUMERIC,
                ([other], _) => other.clone(),
                _ => return plan_err!("{} takes one argument", self.name()),
            },
            Kind::Cast(target) => target.clone(),
            Kind::Key => match types {
                [DataType::List(_)] => DataType::List(Arc::new(Field::new_list_field(KEY, true))),
                _ => KEY,
            },
            Kind::KeyText => DataType::Utf8View,
            _ => NUMERIC,
        })
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        crate::planning::check().map_err(carry)?;
        if let (Kind::Open, [field]) = (&self.kind, args.arg_fields)
            && !matches!(field.data_type(), DataType::Decimal128(..))
        {
            return Ok(field.clone());
        }
        let types: Vec<DataType> = args.arg_fields.iter().map(|field| field.data_type().clone()).collect();
        Ok(Arc::new(Field::new(self.name(), self.return_type(&types)?, true)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        evaluated(&args.args, |arrays| match (&self.kind, arrays) {
            (Kind::Open, [array]) if matches!(array.data_type(), DataType::Decimal128(..)) => cast(array, &NUMERIC),
            (Kind::Open | Kind::Plain, [array]) => Ok(array.clone()),
            (Kind::Cast(target), [array]) => cast(array, target),
            (Kind::Key, [array]) if is_list_of(array.data_type()) => {
                let list = array.as_list::<i32>();
                let item = Arc::new(Field::new_list_field(KEY, true));
                let (offsets, nulls) = (list.offsets().clone(), list.nulls().cloned());
                Ok(Arc::new(ListArray::try_new(item, offsets, keys(list.values()), nulls)?))
            }
            (Kind::Key, [array]) => Ok(keys(array)),
            (Kind::KeyText, [array]) => Ok(key_texts(array)),
            (Kind::Trim, [array]) => mapped(array, |number| Ok(number.trimmed())),
            (Kind::Negate, [array]) if !is_numeric(array.data_type()) => {
                Ok(arrow::compute::kernels::numeric::neg(array)?)
            }
            (Kind::Negate, [array]) => mapped(array, |number| Ok(number.negated())),
            (Kind::Plus, [left, right]) => zipped(left, right, Numeric::plus),
            (Kind::Minus, [left, right]) => zipped(left, right, Numeric::minus),
            (Kind::Times, [left, right]) => zipped(left, right, Numeric::times),
            (Kind::Over, [left, right]) => zipped(left, right, Numeric::over),
            (Kind::Modulo, [left, right]) => zipped(left, right, Numeric::modulo),
            (kind, arrays) => internal_err!("{kind:?} of {} arguments", arrays.len()),
        })
    }
}

/// Evaluates over arrays; of constants alone once.
fn evaluated(args: &[ColumnarValue], of: impl Fn(&[ArrayRef]) -> Result<ArrayRef>) -> Result<ColumnarValue> {
    let constant = args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
    let array = of(&ColumnarValue::values_to_arrays(args)?)?;
    match constant {
        true => Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&array, 0)?)),
        false => Ok(ColumnarValue::Array(array)),
    }
}

/// DataFusion's function of numbers, with these numbers too: those that PostgreSQL has for `numeric` on them as they are, others on
/// floats.
#[derive(Debug, PartialEq, Eq, Hash)]
struct WithNumeric {
    inner: Arc<ScalarUDF>,
    /// What it takes such numbers as where it has nothing of its own for them.
    others: DataType,
    signature: Signature,
}

/// Types with another in place of that of these numbers.
fn replaced(types: &[DataType], by: &DataType) -> Vec<DataType> {
    types.iter().map(|of| if is_numeric(of) { by.clone() } else { of.clone() }).collect()
}

/// The arguments of a function that takes such numbers as floats, cast to them, and DataFusion's own function. `None` for others.
pub fn plain_function(function: &ScalarUDF, args: &[Expr], schema: &DFSchema) -> Option<(Arc<ScalarUDF>, Vec<Expr>)> {
    let own = function.inner().downcast_ref::<WithNumeric>()?;
    let is_number = |arg: &Expr| arg.get_type(schema).is_ok_and(|of| is_numeric(&of));
    if own.is_own() && args.first().is_some_and(is_number) {
        return None;
    }
    Some((own.inner.clone(), cast_to(&own.others, args, schema)))
}

/// Arguments with values of another type in place of these numbers.
fn cast_to(target: &DataType, args: &[Expr], schema: &DFSchema) -> Vec<Expr> {
    let is_number = |arg: &Expr| arg.get_type(schema).is_ok_and(|of| is_numeric(&of));
    let of = |arg: &Expr| match is_number(arg) {
        true => Expr::Cast(Cast::new(Box::new(crate::operators::unnamed(arg.clone())), target.clone())),
        false => arg.clone(),
    };
    args.iter().map(of).collect()
}

/// The function, under the same name, for numbers that each have a scale too.
pub fn extended(inner: Arc<ScalarUDF>) -> Arc<ScalarUDF> {
    taking(inner, DataType::Float64)
}

/// As `extended`, of a function that takes such numbers as their texts.
pub fn extended_text(inner: Arc<ScalarUDF>) -> Arc<ScalarUDF> {
    taking(inner, DataType::Utf8View)
}

fn taking(inner: Arc<ScalarUDF>, others: DataType) -> Arc<ScalarUDF> {
    let signature = Signature::user_defined(inner.signature().volatility);
    Arc::new(ScalarUDF::new_from_impl(WithNumeric { inner, others, signature }))
}

impl WithNumeric {
    fn is_own(&self) -> bool {
        matches!(self.inner.name(), "abs" | "ceil" | "floor" | "round" | "trunc")
    }
}

impl ScalarUDFImpl for WithNumeric {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        if self.is_own() && types.first().is_some_and(is_numeric) {
            return Ok(match types.len() {
                1 => vec![NUMERIC],
                _ => vec![NUMERIC, DataType::Int64],
            });
        }
        let field = |data_type: &DataType| Arc::new(Field::new("", data_type.clone(), true));
        let fields = replaced(types, &self.others).iter().map(field).collect::<Vec<_>>();
        let fields = fields_with_udf(&fields, self.inner.as_ref())?;
        // `casts::Literals` casts these numbers: DataFusion knows of no such cast.
        let coerced = fields.iter().zip(types);
        Ok(coerced.map(|(field, of)| if is_numeric(of) { NUMERIC } else { field.data_type().clone() }).collect())
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        crate::catalog::name_of_call(self.name(), args)
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types.first() {
            Some(of) if is_numeric(of) && self.is_own() => Ok(NUMERIC),
            _ => self.inner.return_type(&replaced(types, &self.others)),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        crate::planning::check().map_err(carry)?;
        let fields = args.arg_fields;
        if !fields.iter().any(|field| is_numeric(field.data_type())) {
            return self.inner.return_field_from_args(args);
        }
        let types: Vec<DataType> = fields.iter().map(|field| field.data_type().clone()).collect();
        Ok(Arc::new(Field::new(self.name(), self.return_type(&types)?, true)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if !args.args.first().is_some_and(|arg| is_numeric(&arg.data_type())) {
            return self.inner.invoke_with_args(args);
        }
        evaluated(&args.args, |arrays| match (self.inner.name(), arrays) {
            ("abs", [array]) => mapped(array, |number| Ok(number.abs())),
            ("ceil", [array]) => mapped(array, Numeric::ceil),
            ("floor", [array]) => mapped(array, Numeric::floor),
            ("round", [array]) => mapped(array, |number| number.rescaled(0)),
            ("trunc", [array]) => mapped(array, |number| number.truncated(0)),
            (name @ ("round" | "trunc"), [array, places]) => {
                let places = places.as_primitive::<Int64Type>();
                let results = numbers(array).zip(places).map(|(number, places)| match (number?, places) {
                    (Some(number), Some(places)) => {
                        let places = places.clamp(-1000, 1000) as i32;
                        match name {
                            "round" => number.rounded_to(places.min(38)).map(Some),
                            _ => number.truncated_to(places.min(38)).map(Some),
                        }
                    }
                    _ => Ok(None),
                });
                let results = results.collect::<tidepool_base::Result<Vec<_>>>();
                results.and_then(|all| array_of(all.into_iter())).map_err(carry)
            }
            (name, arrays) => exec_err!("{name} of {} arguments", arrays.len()),
        })
    }

    fn simplify(&self, args: Vec<Expr>, info: &SimplifyContext) -> Result<ExprSimplifyResult> {
        let of = args.first().and_then(|first| info.get_data_type(first).ok());
        if of.is_none_or(|of| is_numeric(&of)) {
            return Ok(ExprSimplifyResult::Original(args));
        }
        self.inner.simplify(args, info)
    }
}

/// DataFusion's aggregate function, of these numbers too: `sum` and `avg` of them as they are, others of floats.
#[derive(Debug, PartialEq, Eq, Hash)]
struct AggregateWithNumeric {
    inner: Arc<AggregateUDF>,
    signature: Signature,
}

/// The aggregate function, under the same name, for numbers that each have a scale too.
pub fn extended_aggregate(inner: Arc<AggregateUDF>) -> Arc<AggregateUDF> {
    let signature = Signature::user_defined(inner.signature().volatility);
    Arc::new(AggregateUDF::new_from_impl(AggregateWithNumeric { inner, signature }))
}

/// The aggregate functions of numbers.
pub fn aggregates() -> impl Iterator<Item = Arc<AggregateUDF>> {
    const NAMES: [&str; 20] = [
        "percentile_cont",
        "sum",
        "stddev",
        "stddev_pop",
        "var",
        "var_pop",
        "corr",
        "covar_samp",
        "covar_pop",
        "median",
        "regr_avgx",
        "regr_avgy",
        "regr_count",
        "regr_intercept",
        "regr_r2",
        "regr_slope",
        "regr_sxx",
        "regr_sxy",
        "regr_syy",
        "approx_median",
    ];
    let known = datafusion::functions_aggregate::all_default_aggregate_functions();
    let of_numbers = known.into_iter().filter(|function| NAMES.contains(&function.name()));
    of_numbers.chain([Arc::new(crate::average::function())]).map(extended_aggregate)
}

fn of_numbers(fields: &[FieldRef]) -> bool {
    fields.first().is_some_and(|field| is_numeric(field.data_type()))
}

impl AggregateUDFImpl for AggregateWithNumeric {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        if matches!(types, [of] if is_numeric(of)) && matches!(self.name(), "sum" | "avg")
            || real_sums::is_sum(self.name(), types)
        {
            return Ok(types.to_vec());
        }
        let field = |data_type: &DataType| Arc::new(Field::new("", data_type.clone(), true));
        let fields = replaced(types, &DataType::Float64).iter().map(field).collect::<Vec<_>>();
        let fields = fields_with_udf(&fields, self.inner.as_ref())?;
        let coerced = fields.iter().zip(types);
        Ok(coerced.map(|(field, of)| if is_numeric(of) { NUMERIC } else { field.data_type().clone() }).collect())
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [of] if is_numeric(of) && matches!(self.name(), "sum" | "avg") => Ok(NUMERIC),
            types if real_sums::is_sum(self.name(), types) => Ok(DataType::Float32),
            _ => self.inner.return_type(&replaced(types, &DataType::Float64)),
        }
    }

    fn is_nullable(&self) -> bool {
        self.inner.is_nullable()
    }

    fn supports_within_group_clause(&self) -> bool {
        self.inner.supports_within_group_clause()
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        if real_sums::of_fields(self.name(), args.expr_fields) {
            return Ok(real_sums::accumulator(args.is_distinct));
        }
        match of_numbers(args.expr_fields) {
            true if args.is_distinct => {
                Ok(Box::new(DistinctTotal { averages: self.name() == "avg", seen: BTreeMap::new() }))
            }
            true => Ok(Box::new(Total { averages: self.name() == "avg", sum: None, count: 0 })),
            false => self.inner.accumulator(args),
        }
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        match of_numbers(args.expr_fields) || real_sums::of_fields(self.name(), args.expr_fields) {
            true => self.accumulator(args),
            false => self.inner.create_sliding_accumulator(args),
        }
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        if real_sums::of_fields(self.name(), args.input_fields) {
            return Ok(real_sums::state_fields(&args));
        }
        if !of_numbers(args.input_fields) {
            return self.inner.state_fields(args);
        }
        let field = |part: &str, data_type| Arc::new(Field::new(format!("{}[{part}]", args.name), data_type, true));
        if args.is_distinct {
            let item = Arc::new(Field::new_list_field(NUMERIC, true));
            return Ok(vec![field("distinct", DataType::List(item))]);
        }
        Ok(vec![field("sum", NUMERIC), field("count", DataType::UInt64)])
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        !of_numbers(args.expr_fields)
            && !real_sums::of_fields(self.name(), args.expr_fields)
            && self.inner.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        self.inner.create_groups_accumulator(args)
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        self.inner.reverse_udf()
    }

    fn order_sensitivity(&self) -> datafusion::logical_expr::utils::AggregateOrderSensitivity {
        self.inner.order_sensitivity()
    }

    fn is_descending(&self) -> Option<bool> {
        self.inner.is_descending()
    }

    fn default_value(&self, data_type: &DataType) -> Result<ScalarValue> {
        match is_numeric(data_type) {
            true => Ok(ScalarValue::FixedSizeBinary(NUMERIC_WIDTH, None)),
            false => self.inner.default_value(data_type),
        }
    }
}

/// A sum of numbers, or their average.
#[derive(Debug)]
struct Total {
    averages: bool,
    sum: Option<Numeric>,
    count: u64,
}

impl Total {
    fn add(&mut self, number: Numeric) -> Result<()> {
        self.sum = Some(match self.sum {
            Some(sum) => sum.plus(number).map_err(carry)?,
            None => number,
        });
        Ok(())
    }
}

impl Accumulator for Total {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let Some(values) = values.first() else { return internal_err!("a sum of nothing") };
        for number in numbers(values) {
            if let Some(number) = number.map_err(carry)? {
                self.count += 1;
                self.add(number)?;
            }
        }
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let Some(values) = values.first() else { return internal_err!("a sum of nothing") };
        for number in numbers(values) {
            if let Some(number) = number.map_err(carry)? {
                self.count -= 1;
                self.add(number.negated())?;
            }
        }
        if self.count == 0 {
            self.sum = None;
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let result = match self.sum {
            Some(sum) if self.averages => {
                let count = Numeric::of_int(i64::try_from(self.count).unwrap_or(i64::MAX));
                Some(sum.over(count).map_err(carry)?)
            }
            sum => sum,
        };
        Ok(ScalarValue::FixedSizeBinary(NUMERIC_WIDTH, result.map(|number| number.to_bytes().to_vec())))
    }

    fn size(&self) -> usize {
        size_of::<Total>()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let sum = self.sum.map(|number| number.to_bytes().to_vec());
        Ok(vec![ScalarValue::FixedSizeBinary(NUMERIC_WIDTH, sum), ScalarValue::UInt64(Some(self.count))])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let [sums, counts] = states else { return internal_err!("a sum of no parts") };
        for sum in numbers(sums) {
            if let Some(sum) = sum.map_err(carry)? {
                self.add(sum)?;
            }
        }
        self.count += counts.as_primitive::<UInt64Type>().iter().flatten().sum::<u64>();
        Ok(())
    }
}

/// A sum of numbers, or their average, equal ones counted once.
#[derive(Debug)]
struct DistinctTotal {
    averages: bool,
    seen: BTreeMap<Vec<u8>, Numeric>,
}

impl DistinctTotal {
    fn see(&mut self, values: &ArrayRef) -> Result<()> {
        for number in numbers(values) {
            if let Some(number) = number.map_err(carry)? {
                self.seen.entry(number.to_bytes()[..NUMERIC_KEY_BYTES].to_vec()).or_insert(number);
            }
        }
        Ok(())
    }
}

impl Accumulator for DistinctTotal {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        values.first().map_or_else(|| internal_err!("a sum of nothing"), |values| self.see(values))
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let mut total = Total { averages: self.averages, sum: None, count: self.seen.len() as u64 };
        self.seen.values().try_for_each(|number| total.add(*number))?;
        total.evaluate()
    }

    fn size(&self) -> usize {
        size_of::<DistinctTotal>() + self.seen.len() * (NUMERIC_KEY_BYTES + size_of::<(Vec<u8>, Numeric)>())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let values = array_of(self.seen.values().copied().map(Some)).map_err(carry)?;
        let item = Arc::new(Field::new_list_field(NUMERIC, true));
        let offsets = OffsetBuffer::from_lengths([values.len()]);
        Ok(vec![ScalarValue::List(Arc::new(ListArray::try_new(item, offsets, values, None)?))])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let [lists] = states else { return internal_err!("a sum of no parts") };
        lists.as_list::<i32>().iter().flatten().try_for_each(|values| self.see(&values))
    }
}
