//! What casts are done by: functions that read and write texts, cut, check and divide.

use crate::conversions::{narrowing, per_value, read_texts, text_settings, write_texts};
use crate::errors::carry;
use crate::float_range;
use crate::types::type_of;
use arrow::array::{Array, AsArray, ListArray, StringViewBuilder};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, FieldRef, Float32Type, Float64Type};
use arrow::error::ArrowError;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, DataFusionError, Result, ScalarValue, internal_err};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, ExprSchemable, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};
use std::hash::Hash;
use std::sync::Arc;
use tidepool_base::{Error, SqlState, SqlType};
use tidepool_database::text::TextReader;

/// Reads texts as a type.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct ReadText {
    sql_type: SqlType,
    target: DataType,
    signature: Signature,
}

impl ReadText {
    pub(super) fn new(sql_type: SqlType, target: DataType) -> ReadText {
        // Stable, not immutable: timestamps depend on the session's zone.
        ReadText { sql_type, target, signature: Signature::any(1, Volatility::Stable) }
    }
}

impl ScalarUDFImpl for ReadText {
    fn name(&self) -> &str {
        "tidepool_read"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        crate::catalog::name_of_call(self.name(), args)
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        Ok(self.target.clone())
    }

    fn return_field_from_args(&self, _args: ReturnFieldArgs) -> Result<FieldRef> {
        crate::planning::check().map_err(carry)?;
        let field = crate::types::field(self.name(), self.sql_type);
        Ok(Arc::new(if *field.data_type() == self.target {
            field
        } else {
            Field::new(self.name(), self.target.clone(), true)
        }))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let settings = text_settings(&args.config_options);
        per_value(args, &|array| read_texts(array, self.sql_type, &settings))
    }
}

/// Reads texts such as `{a,"b c",NULL}` as arrays. 22P02 for those that are none, 0A000 for arrays of arrays.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct ReadArray {
    item: FieldRef,
    of_items: SqlType,
    signature: Signature,
}

impl ReadArray {
    /// `None` for what is no array of values.
    pub(super) fn of(target: &DataType) -> Option<ReadArray> {
        let DataType::List(item) = target else { return None };
        let of_items = type_of(item).filter(|_| !item.data_type().is_nested())?;
        Some(ReadArray { item: item.clone(), of_items, signature: Signature::any(1, Volatility::Stable) })
    }
}

impl ScalarUDFImpl for ReadArray {
    fn name(&self) -> &str {
        "tidepool_read_array"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        crate::catalog::name_of_call(self.name(), args)
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        Ok(DataType::List(self.item.clone()))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let settings = text_settings(&args.config_options);
        per_value(args, &|array| {
            let texts = cast_with_options(array, &DataType::Utf8View, &CastOptions::default())?;
            let mut reader = TextReader::new(self.of_items, &settings);
            let mut lengths = Vec::with_capacity(texts.len());
            for text in texts.as_string_view() {
                let items = text.map_or_else(|| Ok(Vec::new()), read_array_items).map_err(carry)?;
                lengths.push(items.len());
                for item in items {
                    match item {
                        Some(item) => reader.append(&item).map_err(carry)?,
                        None => reader.append_null(),
                    }
                }
            }
            let offsets = OffsetBuffer::from_lengths(lengths);
            let items = reader.finish();
            // Oids and names are held in types of their own.
            let items = match items.data_type() == self.item.data_type() {
                true => items,
                false => cast_with_options(
                    &items,
                    self.item.data_type(),
                    &CastOptions { safe: false, ..Default::default() },
                )?,
            };
            let list = ListArray::try_new(self.item.clone(), offsets, items, texts.nulls().cloned())?;
            Ok(Arc::new(list))
        })
    }
}

/// The items of an array's text form, `{a,"b c",NULL}`. 22P02 where it is none, 0A000 for several dimensions.
pub fn read_array_items(text: &str) -> std::result::Result<Vec<Option<String>>, Error> {
    crate::catalog::array_items(text).ok_or_else(|| {
        let within = text.trim().strip_prefix('{').and_then(|text| text.strip_suffix('}'));
        match within.is_some_and(|within| within.trim_start().starts_with('{')) {
            true => Error::unsupported(format!("array literal \"{text}\" is not supported")),
            false => Error::new(SqlState::INVALID_TEXT_REPRESENTATION, format!("malformed array literal: \"{text}\"")),
        }
    })
}

/// The type that a function reads texts as, if it is one that does.
pub fn reads(function: &ScalarFunction) -> Option<SqlType> {
    Some(function.func.inner().downcast_ref::<ReadText>()?.sql_type)
}

/// Writes values as PostgreSQL's texts.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct WriteText {
    signature: Signature,
}

impl WriteText {
    pub(super) fn new() -> WriteText {
        WriteText { signature: Signature::any(1, Volatility::Stable) }
    }
}

impl ScalarUDFImpl for WriteText {
    fn name(&self) -> &str {
        "tidepool_text"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        crate::catalog::name_of_call(self.name(), args)
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8View)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let settings = text_settings(&args.config_options);
        let field = args.arg_fields.first().cloned();
        per_value(args, &|array| {
            let field = field.as_deref().cloned().unwrap_or_else(|| Field::new("", array.data_type().clone(), true));
            write_texts(array, &field, &settings)
        })
    }
}

/// Cuts texts to a declared length, as an explicit cast does.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Cut {
    sql_type: SqlType,
    signature: Signature,
}

impl Cut {
    pub(super) fn new(sql_type: SqlType) -> Cut {
        Cut { sql_type, signature: Signature::any(1, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for Cut {
    fn name(&self) -> &str {
        "tidepool_cut"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        crate::catalog::name_of_call(self.name(), args)
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8View)
    }

    fn return_field_from_args(&self, _args: ReturnFieldArgs) -> Result<FieldRef> {
        crate::planning::check().map_err(carry)?;
        Ok(Arc::new(crate::types::field(self.name(), self.sql_type)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let (length, trim) = match self.sql_type {
            SqlType::Char { length } => (length as usize, true),
            SqlType::Varchar { length_max: Some(length) } => (length as usize, false),
            _ => (usize::MAX, false),
        };
        per_value(args, &|array| {
            let texts = cast_with_options(array, &DataType::Utf8View, &CastOptions::default())?;
            let mut cut = StringViewBuilder::with_capacity(texts.len());
            for text in texts.as_string_view() {
                cut.append_option(text.map(|text| {
                    let end = text.char_indices().nth(length).map_or(text.len(), |(end, _)| end);
                    if trim { text[..end].trim_end_matches(' ') } else { &text[..end] }
                }));
            }
            Ok(Arc::new(cut.finish()))
        })
    }
}

/// Passes a floating-point divisor through, unless it is zero.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Divisor {
    signature: Signature,
}

impl Divisor {
    pub(super) fn new() -> Divisor {
        Divisor { signature: Signature::any(1, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for Divisor {
    fn name(&self) -> &str {
        "tidepool_divisor"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        crate::catalog::name_of_call(self.name(), args)
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok(arguments.first().cloned().unwrap_or(DataType::Float64))
    }

    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let Some(value) = args.args.pop() else {
            return datafusion::common::internal_err!("a divisor is missing");
        };
        let zero = match &value {
            ColumnarValue::Scalar(ScalarValue::Float64(Some(value))) => *value == 0.0,
            ColumnarValue::Scalar(ScalarValue::Float32(Some(value))) => *value == 0.0,
            ColumnarValue::Scalar(_) => false,
            ColumnarValue::Array(array) => match array.data_type() {
                DataType::Float64 => array.as_primitive::<Float64Type>().iter().any(|value| value == Some(0.0)),
                DataType::Float32 => array.as_primitive::<Float32Type>().iter().any(|value| value == Some(0.0)),
                _ => false,
            },
        };
        if zero {
            return Err(carry(Error::new(SqlState::DIVISION_BY_ZERO, "division by zero")));
        }
        Ok(value)
    }
}

/// The name of a function that gives its argument, under a name in which there is more than its argument's.
pub const KEY: &str = "tidepool_key";

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Key(Signature);

/// A function's only argument, or what is said of it.
pub(super) fn only<T: Clone>(all: &[T]) -> Result<T> {
    all.first().cloned().map_or_else(|| internal_err!("a function is called without its argument"), Ok)
}

pub fn key() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::new_from_impl(Key(Signature::any(1, Volatility::Immutable))))
}

impl ScalarUDFImpl for Key {
    fn name(&self) -> &str {
        KEY
    }

    fn signature(&self) -> &Signature {
        &self.0
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        crate::catalog::name_of_call(self.name(), args)
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        only(types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        crate::planning::check().map_err(carry)?;
        only(args.arg_fields)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        only(&args.args)
    }
}

/// Arithmetic of integers that does not wrap around, and of floating-point numbers that gives what they hold: a whole tree of it as one
/// function of its leaves, because a tree of functions costs the planner time by the cube of its depth.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Checked {
    /// In postfix order.
    steps: Vec<Step>,
    signature: Signature,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Step {
    /// The next argument.
    Leaf,
    Apply(Operator),
}

/// Arrow's quotients of integers are checked.
pub(super) fn is_arithmetic(op: Operator, of_floats: bool) -> bool {
    matches!(op, Operator::Plus | Operator::Minus | Operator::Multiply) || of_floats && op == Operator::Divide
}

impl Checked {
    /// The expression, if it is such arithmetic then checked.
    pub(super) fn over(expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
        let of_floats = match &expr {
            Expr::BinaryExpr(root) if is_arithmetic(root.op, true) => is_float(&root.left, schema),
            _ => return Transformed::no(expr),
        };
        let mut steps = Vec::new();
        let mut leaves = Vec::new();
        collect(&expr, of_floats, &mut steps, &mut leaves);
        let first = leaves.first().and_then(|leaf| leaf.get_type(schema).ok());
        let same = first.is_some_and(|first| {
            (first.is_integer() || of_floats)
                && leaves.iter().skip(1).all(|leaf| leaf.get_type(schema).is_ok_and(|leaf| leaf == first))
        });
        if !same || steps.len() == 1 {
            return Transformed::no(expr);
        }
        let leaves = leaves.into_iter().cloned().collect();
        let checked = Checked { steps, signature: Signature::variadic_any(Volatility::Immutable) };
        Transformed::yes(ScalarUDF::new_from_impl(checked).call(leaves))
    }
}

/// The arithmetic or cast that a function watches over, if it is one that does.
pub fn watched(function: &ScalarFunction) -> Option<Expr> {
    if let Some(cast) = narrowing(function) {
        return Some(cast);
    }
    let checked = function.func.inner().downcast_ref::<Checked>()?;
    let mut leaves = function.args.iter();
    let mut stack: Vec<Expr> = Vec::new();
    for step in checked.steps.iter().copied() {
        let value = match step {
            Step::Leaf => leaves.next()?.clone(),
            Step::Apply(op) => {
                let (right, left) = (stack.pop()?, stack.pop()?);
                datafusion::logical_expr::binary_expr(left, op, right)
            }
        };
        stack.push(value);
    }
    stack.pop()
}

pub(super) fn collect<'a>(expr: &'a Expr, of_floats: bool, steps: &mut Vec<Step>, leaves: &mut Vec<&'a Expr>) {
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_arithmetic(*op, of_floats) => {
            collect(left, of_floats, steps, leaves);
            collect(right, of_floats, steps, leaves);
            steps.push(Step::Apply(*op));
        }
        leaf => {
            steps.push(Step::Leaf);
            leaves.push(leaf);
        }
    }
}

impl ScalarUDFImpl for Checked {
    fn name(&self) -> &str {
        "tidepool_checked"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        crate::catalog::name_of_call(self.name(), args)
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok(arguments.first().cloned().unwrap_or(DataType::Int64))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        use arrow::compute::kernels::numeric::{add, div, mul, sub};
        let out_of_range = || {
            let name = crate::errors::type_name(&args.return_field.data_type().to_string());
            carry(Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, format!("{name} out of range")))
        };
        let mut leaves = args.args.iter();
        let mut stack: Vec<ColumnarValue> = Vec::new();
        for step in &self.steps {
            let value = match step {
                Step::Leaf => leaves.next().cloned(),
                Step::Apply(op) => match (stack.pop(), stack.pop()) {
                    (Some(right), Some(left)) => {
                        let rows = args.number_rows;
                        let applied =
                            datafusion::physical_expr_common::datum::apply(&left, &right, |left, right| match op {
                                Operator::Plus => add(left, right),
                                Operator::Minus => sub(left, right),
                                Operator::Divide => div(left, right),
                                _ => mul(left, right),
                            });
                        if let Ok(result) = &applied {
                            float_range::check_arithmetic(*op, (&left, &right), result, rows)?;
                        }
                        Some(applied.map_err(|error| match error {
                            DataFusionError::ArrowError(error, _) => match *error {
                                ArrowError::ArithmeticOverflow(_) => out_of_range(),
                                other => other.into(),
                            },
                            other => other,
                        })?)
                    }
                    _ => None,
                },
            };
            match value {
                Some(value) => stack.push(value),
                None => return datafusion::common::internal_err!("an operand is missing"),
            }
        }
        match stack.pop() {
            Some(value) => Ok(value),
            None => datafusion::common::internal_err!("an operand is missing"),
        }
    }
}

pub(super) fn is_float(expr: &Expr, schema: &DFSchema) -> bool {
    matches!(expr.get_type(schema), Ok(DataType::Float32 | DataType::Float64))
}
