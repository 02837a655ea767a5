//! How long values may become, before they are made.

use super::VALUE_BYTES_MAX;
use crate::catalog::value::Value;
use datafusion::arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field, Int64Type};
use datafusion::common::config::ConfigOptions;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs};
use std::sync::Arc;

/// Bytes of a character at most.
const CHARACTER_BYTES_MAX: usize = 4;

/// A letter in another case has so many times as many bytes at most.
const CASE_GROWTH: usize = 3;

/// What is taken for the text, or the item of an array, that a value of another type is.
const OTHER_BYTES: usize = 16;

/// Beyond so much it pays to look how often a pattern is found.
const COUNTED_BYTES_MIN: usize = 1 << 20;

/// A text argument; the text of a row is borrowed of it.
pub enum Texts {
    One(String),
    Column(ArrayRef),
}

impl Texts {
    pub fn of(argument: &ColumnarValue) -> Result<Texts> {
        Ok(match argument {
            ColumnarValue::Scalar(scalar) => Texts::One(scalar.try_as_str().flatten().unwrap_or_default().to_owned()),
            ColumnarValue::Array(array) if array.data_type() == &DataType::Utf8View => Texts::Column(array.clone()),
            ColumnarValue::Array(array) => Texts::Column(cast(array, &DataType::Utf8View)?),
        })
    }

    pub fn row(&self, row: usize) -> &str {
        match self {
            Texts::One(text) => text,
            Texts::Column(array) if array.is_null(row) => "",
            Texts::Column(array) => array.as_string_view().value(row),
        }
    }
}

/// A number argument, negative ones taken for zero.
pub fn counts(argument: &ColumnarValue) -> Result<ColumnarValue> {
    Ok(match argument {
        ColumnarValue::Scalar(ScalarValue::Int64(count)) => {
            ColumnarValue::Scalar(ScalarValue::Int64(count.map(|count| count.max(0))))
        }
        ColumnarValue::Array(array) if array.data_type() == &DataType::Int64 => {
            let counts: Int64Array = array.as_primitive::<Int64Type>().unary(|count| count.max(0));
            ColumnarValue::Array(Arc::new(counts))
        }
        other => other.clone(),
    })
}

/// Whole numbers by row, negative ones and NULL as zero.
pub fn count(argument: &ColumnarValue, row: usize) -> usize {
    usize::try_from(number(argument, row).unwrap_or(0)).unwrap_or(0)
}

pub fn number(argument: &ColumnarValue, row: usize) -> Option<i64> {
    match argument {
        ColumnarValue::Scalar(scalar) => match scalar.cast_to(&DataType::Int64).ok()? {
            ScalarValue::Int64(number) => number,
            _ => None,
        },
        ColumnarValue::Array(array) if array.data_type() == &DataType::Int64 => {
            array.is_valid(row).then(|| array.as_primitive::<Int64Type>().value(row))
        }
        ColumnarValue::Array(array) if array.data_type().is_integer() => {
            let one = cast(&array.slice(row, 1), &DataType::Int64).ok()?;
            one.is_valid(0).then(|| one.as_primitive::<Int64Type>().value(0))
        }
        ColumnarValue::Array(_) => None,
    }
}

/// Bytes of an argument's values, by row.
pub enum Widths {
    One(usize),
    Column(Vec<usize>),
}

impl Widths {
    pub fn of(argument: &ColumnarValue) -> Widths {
        match argument {
            ColumnarValue::Scalar(scalar) => Widths::One(width_of(scalar)),
            ColumnarValue::Array(array) => Widths::Column(widths_of(array.as_ref())),
        }
    }

    pub fn row(&self, row: usize) -> usize {
        match self {
            Widths::One(width) => *width,
            Widths::Column(widths) => widths.get(row).copied().unwrap_or(0),
        }
    }
}

pub fn width_of(scalar: &ScalarValue) -> usize {
    match scalar {
        ScalarValue::Binary(bytes) | ScalarValue::BinaryView(bytes) | ScalarValue::LargeBinary(bytes) => {
            bytes.as_ref().map_or(0, Vec::len)
        }
        ScalarValue::List(list) => widths_of(list.as_ref()).iter().sum(),
        scalar => match scalar.try_as_str() {
            Some(text) => text.map_or(0, str::len),
            None => OTHER_BYTES,
        },
    }
}

pub fn widths_of(array: &dyn Array) -> Vec<usize> {
    let views = |views: &[u128]| views.iter().map(|view| *view as u32 as usize).collect();
    match array.data_type() {
        DataType::Utf8View => views(array.as_string_view().views()),
        DataType::BinaryView => views(array.as_binary_view().views()),
        DataType::Utf8 => array.as_string::<i32>().offsets().lengths().collect(),
        DataType::LargeUtf8 => array.as_string::<i64>().offsets().lengths().collect(),
        DataType::Binary => array.as_binary::<i32>().offsets().lengths().collect(),
        DataType::LargeBinary => array.as_binary::<i64>().offsets().lengths().collect(),
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            let items = widths_of(list.values().as_ref());
            let ranges = list.offsets().windows(2);
            ranges
                .map(|range| {
                    let items = items.get(range[0] as usize..range[1] as usize).unwrap_or_default();
                    items.iter().fold(items.len() * OTHER_BYTES, |sum, item| sum.saturating_add(*item))
                })
                .collect()
        }
        DataType::Struct(_) => {
            let mut sums = vec![0usize; array.len()];
            for column in array.as_struct().columns() {
                sums.iter_mut().zip(widths_of(column.as_ref())).for_each(|(sum, width)| *sum += width);
            }
            sums
        }
        _ => vec![OTHER_BYTES; array.len()],
    }
}

/// Items of an array argument by row; of what is no array, none.
pub fn items(argument: &ColumnarValue, row: usize) -> usize {
    let length = |array: &dyn Array, row: usize| match array.data_type() {
        DataType::List(_) => array.as_list::<i32>().value_length(row) as usize,
        _ => 0,
    };
    match argument {
        ColumnarValue::Scalar(ScalarValue::List(list)) => length(list.as_ref(), 0),
        ColumnarValue::Scalar(_) => 0,
        ColumnarValue::Array(array) => length(array.as_ref(), row),
    }
}

/// Of a text in another case.
pub fn cased(text: &str) -> usize {
    if text.is_ascii() { text.len() } else { text.len().saturating_mul(CASE_GROWTH) }
}

pub fn characters(count: usize) -> usize {
    // PostgreSQL reckons with its longest characters.
    count.saturating_mul(CHARACTER_BYTES_MAX)
}

pub fn replaced(text: &str, from: &str, to: &str) -> usize {
    let found = if from.is_empty() || to.len() <= from.len() { 0 } else { text.matches(from).count() };
    text.len().saturating_add(found.saturating_mul(to.len().saturating_sub(from.len())))
}

/// Each character may become the longest of those it is replaced by.
pub fn translated(text: &str, to: &str) -> usize {
    match to.chars().map(char::len_utf8).max() {
        None | Some(1) => text.len(),
        Some(longest) => text.len().saturating_mul(longest),
    }
}

/// The parts of a text, and what an array takes for each.
pub fn split(text: &str, separator: Option<&str>) -> usize {
    let parts = match separator {
        None => text.len(),
        Some("") => 1,
        Some(separator) => text.matches(separator).count() + 1,
    };
    text.len().saturating_add(parts.saturating_mul(OTHER_BYTES))
}

/// `regexp_replace`. `counted`: how often the pattern is found, where that may matter.
pub fn pattern_replaced(text: &str, to: &str, flags: &str, counted: impl FnOnce() -> Option<usize>) -> usize {
    // Each may stand for all of the text, and all matches together for the text once.
    let references = to.matches('\\').count();
    let own = text.len().saturating_mul(1 + references);
    if !flags.contains('g') {
        return own.saturating_add(to.len());
    }
    let most = own.saturating_add((text.len() + 1).saturating_mul(to.len()));
    if most <= COUNTED_BYTES_MIN {
        return most;
    }
    match counted() {
        Some(found) => own.saturating_add(found.saturating_mul(to.len())),
        // What is wrong with the pattern is told when it is used.
        None => most.min(VALUE_BYTES_MAX),
    }
}

/// All matches of a pattern: of each, what its groups take beside their texts, which each may be of all of the text.
pub fn matched(text: &str, pattern: &str, counted: impl FnOnce() -> Option<usize>) -> usize {
    let groups = pattern.matches('(').count() + 1;
    let each = groups.saturating_mul(4 * OTHER_BYTES);
    let texts = text.len().saturating_mul(groups);
    let most = texts.saturating_add((text.len() + 1).saturating_mul(each));
    if most <= COUNTED_BYTES_MIN {
        return most;
    }
    match counted() {
        Some(found) => texts.saturating_add(found.saturating_mul(each)),
        None => most.min(VALUE_BYTES_MAX),
    }
}

/// How often a pattern is found in a text.
pub fn matches(text_of: &str, pattern: &str, flags: &str, options: &Arc<ConfigOptions>) -> Option<usize> {
    let text = |text: &str| ColumnarValue::Scalar(ScalarValue::Utf8(Some(text.to_owned())));
    let flags: String = flags.chars().filter(|flag| *flag != 'g').collect();
    let first = ColumnarValue::Scalar(ScalarValue::Int64(Some(1)));
    let args = vec![text(text_of), text(pattern), first, text(&flags)];
    let field = |arg: &ColumnarValue| Arc::new(Field::new("", arg.data_type(), true));
    let call = ScalarFunctionArgs {
        arg_fields: args.iter().map(field).collect(),
        args,
        number_rows: 1,
        return_field: Arc::new(Field::new("", DataType::Int64, true)),
        config_options: options.clone(),
    };
    match datafusion::functions::regex::regexp_count().invoke_with_args(call).ok()? {
        ColumnarValue::Scalar(ScalarValue::Int64(Some(found))) => usize::try_from(found).ok(),
        _ => None,
    }
}

/// Bytes of a value that a function made.
pub fn bytes_of(value: &Value) -> usize {
    match value {
        Value::Text(text) => text.len(),
        Value::Bytes(bytes) => bytes.len(),
        Value::List(items) | Value::Struct(items) => {
            items.iter().fold(0usize, |sum, item| sum.saturating_add(size_of::<Value>() + bytes_of(item)))
        }
        _ => 0,
    }
}
