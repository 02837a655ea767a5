//! Conversions of columns between types as PostgreSQL makes them, where Arrow's kernels do otherwise: between `timestamptz`
//! and readings of a clock, which is the session's, and of arrays, item by item.
//!
//! The zone is looked up when a conversion runs: a plan says nothing of it.

use crate::errors::carry;
use crate::facts::SessionFacts;
use crate::types::type_of;
use crate::{float_range, numerics};
use arrow::array::{Array, ArrayRef, AsArray, Float64Array, ListArray, StringViewBuilder, Time64NanosecondArray};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type, TimestampMicrosecondType};
use datafusion::common::config::ConfigOptions;
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    Cast, ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use std::sync::Arc;
use tidepool_base::{Error, SqlState, SqlType};
use tidepool_database::text::{TextReader, TextSettings, TextWriter, cross_clocks, crosses_clocks};
use tidepool_table::arrow_type;

/// How values are read and written in the session that `config` belongs to.
pub fn text_settings(config: &ConfigOptions) -> TextSettings {
    match SessionFacts::of(config) {
        Some(facts) => facts.settings.text_settings(),
        None => TextSettings::default(),
    }
}

/// Applies a function of arrays to a function's one argument, which may be one value for all rows.
pub fn per_value(
    mut args: ScalarFunctionArgs,
    function: &dyn Fn(&ArrayRef) -> Result<ArrayRef>,
) -> Result<ColumnarValue> {
    match args.args.pop() {
        Some(ColumnarValue::Array(array)) => Ok(ColumnarValue::Array(function(&array)?)),
        Some(ColumnarValue::Scalar(scalar)) => {
            let array = function(&scalar.to_array()?)?;
            Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&array, 0)?))
        }
        None => internal_err!("an argument is missing"),
    }
}

pub fn is_string(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::Utf8View | DataType::LargeUtf8)
}

fn is_float(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Float16 | DataType::Float32 | DataType::Float64)
}

/// Whether Arrow's cast from one type to the other is not PostgreSQL's. In UTC instants are what a clock shows.
fn differs(from: &DataType, to: &DataType, is_utc: bool) -> bool {
    use DataType::{Decimal128, FixedSizeList, LargeList, List};
    match (from, to) {
        (List(from) | LargeList(from) | FixedSizeList(from, _), List(to)) => {
            let (from, to) = (from.data_type(), to.data_type());
            is_string(from) != is_string(to)
                || numerics::is_numeric(from) != numerics::is_numeric(to)
                || to.is_integer() && (is_float(from) || matches!(from, Decimal128(..)))
                || differs(from, to, is_utc)
        }
        (from, DataType::Time64(_)) if is_string(from) => true,
        (DataType::Float64, DataType::Float32) => true,
        (from, to) => !is_utc && crosses_clocks(from, to),
    }
}

/// The conversion of a value to another type, if Arrow's cast is not it; else the value.
pub fn conversion(value: Expr, from: &DataType, to: &FieldRef, is_utc: bool) -> std::result::Result<Expr, Expr> {
    if differs(from, to.data_type(), is_utc) { Ok(conversion_of(value, to)) } else { Err(value) }
}

/// The conversion of a value to a type.
pub fn conversion_of(value: Expr, to: &FieldRef) -> Expr {
    ScalarUDF::new_from_impl(Convert::to(to)).call(vec![value])
}

/// The cast that a conversion of a double to `real` stands for, if the function is one: whoever evaluates it refuses what is out of range.
pub fn narrowing(function: &ScalarFunction) -> Option<Expr> {
    let convert = function.func.inner().downcast_ref::<Convert>()?;
    let ([value], DataType::Float32) = (function.args.as_slice(), convert.to.data_type()) else { return None };
    Some(Expr::Cast(Cast { expr: Box::new(value.clone()), field: convert.to.clone() }))
}

/// Makes values of another type of its argument.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Convert {
    to: FieldRef,
    signature: Signature,
}

impl Convert {
    fn to(to: &FieldRef) -> Convert {
        Convert { to: to.clone(), signature: Signature::any(1, Volatility::Stable) }
    }
}

impl ScalarUDFImpl for Convert {
    fn name(&self) -> &str {
        "tidepool_convert"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        crate::catalog::name_of_call(self.name(), args)
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        Ok(self.to.data_type().clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let settings = text_settings(&args.config_options);
        per_value(args, &|array| convert(array, &self.to, &settings))
    }
}

/// The values of `array` as those of another type.
pub fn convert(array: &ArrayRef, to: &Field, settings: &TextSettings) -> Result<ArrayRef> {
    let (from, target) = (array.data_type(), to.data_type());
    if from == target {
        return Ok(array.clone());
    }
    match (from, target) {
        (DataType::List(_), DataType::List(item)) => {
            let list = array.as_list::<i32>();
            let items = convert(list.values(), item, settings)?;
            let nulls = list.nulls().cloned();
            Ok(Arc::new(ListArray::try_new(item.clone(), list.offsets().clone(), items, nulls)?))
        }
        (DataType::LargeList(item) | DataType::FixedSizeList(item, _), DataType::List(_)) => {
            convert(&arrow_cast(array, &DataType::List(item.clone()))?, to, settings)
        }
        (from, DataType::Time64(_)) if is_string(from) => arrow_cast(&read_times(array)?, target),
        (from, target) if is_string(from) && !is_string(target) => match type_of(to) {
            Some(sql_type) => arrow_cast(&read_texts(array, sql_type, settings)?, target),
            None => arrow_cast(array, target),
        },
        // An output function writes one letter, a cast the word.
        (DataType::Boolean, target) if is_string(target) => arrow_cast(array, target),
        (from, target) if is_string(target) && !is_string(from) => {
            arrow_cast(&write_texts(array, &Field::new("", from.clone(), true), settings)?, target)
        }
        (from, target) if numerics::is_numeric(from) || numerics::is_numeric(target) => numerics::cast(array, target),
        (from, target) if crosses_clocks(from, target) => {
            cross_clocks(array, target, settings.zone().map_err(carry)?).map_err(carry)
        }
        (DataType::Float64, DataType::Float32) => Ok(Arc::new(float_range::narrow(array.as_primitive())?)),
        // Halves to the even number, as PostgreSQL's rint.
        (from, target) if is_float(from) && target.is_integer() => {
            let floats = arrow_cast(array, &DataType::Float64)?;
            let rounded: Float64Array = floats.as_primitive::<Float64Type>().unary(f64::round_ties_even);
            arrow_cast(&(Arc::new(rounded) as ArrayRef), target)
        }
        (DataType::Decimal128(precision, scale @ 1..), target) if target.is_integer() => {
            let whole = DataType::Decimal128((precision - *scale as u8 + 1).clamp(1, 38), 0);
            arrow_cast(&arrow_cast(array, &whole)?, target)
        }
        _ => arrow_cast(array, target),
    }
}

fn arrow_cast(array: &ArrayRef, target: &DataType) -> Result<ArrayRef> {
    if array.data_type() == target {
        return Ok(array.clone());
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    Ok(cast_with_options(array, target, &options)?)
}

/// Texts read as values of a type.
pub fn read_texts(array: &ArrayRef, sql_type: SqlType, settings: &TextSettings) -> Result<ArrayRef> {
    let texts = cast_with_options(array, &DataType::Utf8View, &CastOptions::default())?;
    let mut reader = TextReader::new(sql_type, settings);
    for text in texts.as_string_view() {
        match text {
            Some(text) => reader.append(text).map_err(carry)?,
            None => reader.append_null(),
        }
    }
    Ok(reader.finish())
}

/// Texts read as times of day, by the reader of timestamps: as those of a day.
fn read_times(array: &ArrayRef) -> Result<ArrayRef> {
    const DAY: i64 = 10_957;
    const US_PER_DAY: i64 = 86_400_000_000;
    let texts = cast_with_options(array, &DataType::Utf8View, &CastOptions::default())?;
    let read = |text: &str| {
        let clock = text.trim();
        let clock = if clock.eq_ignore_ascii_case("allballs") { "00:00" } else { clock };
        let invalid = || {
            let message = format!("invalid input syntax for type time: \"{text}\"");
            carry(Error::new(SqlState::INVALID_DATETIME_FORMAT, message))
        };
        let mut reader = TextReader::new(SqlType::TIMESTAMP, &TextSettings::default());
        reader.append(&format!("2000-01-01 {clock}")).map_err(|error| match error.code() {
            SqlState::INVALID_DATETIME_FORMAT => invalid(),
            code => carry(Error::new(code, format!("date/time field value out of range: \"{text}\""))),
        })?;
        let micros = reader.finish().as_primitive::<TimestampMicrosecondType>().value(0) - DAY * US_PER_DAY;
        // What rounds up to the end of the day is that.
        if clock.is_empty() || !(0..=US_PER_DAY).contains(&micros) { Err(invalid()) } else { Ok(micros * 1_000) }
    };
    let times = texts.as_string_view().iter().map(|text| text.map(read).transpose());
    Ok(Arc::new(times.collect::<Result<Time64NanosecondArray>>()?))
}

/// Values of the type of `field` as their texts.
pub fn write_texts(array: &ArrayRef, of: &Field, settings: &TextSettings) -> Result<ArrayRef> {
    let writer = match (of.data_type(), type_of(of)) {
        (_, Some(sql_type)) => {
            let array = arrow_cast(array, &arrow_type(sql_type))?;
            TextWriter::new(array.as_ref(), sql_type, settings)
        }
        (DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _), None) => {
            TextWriter::new(array.as_ref(), type_of(item).unwrap_or(SqlType::Text), settings)
        }
        _ => TextWriter::new(array.as_ref(), SqlType::Text, settings),
    };
    let writer = writer.map_err(carry)?;
    let mut texts = StringViewBuilder::with_capacity(array.len());
    let mut text = Vec::new();
    for row in 0..array.len() {
        text.clear();
        if writer.write(row, &mut text) {
            texts.append_value(String::from_utf8_lossy(&text));
        } else {
            texts.append_null();
        }
    }
    Ok(Arc::new(texts.finish()))
}
