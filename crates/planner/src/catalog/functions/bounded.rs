//! Functions whose values may be far longer than what they are made of.
//!
//! DataFusion makes them of whole batches, however long they become. Here no value becomes longer than PostgreSQL lets one be (54000), no
//! more of a batch is made at once than is little beside a statement's memory, which has to have the room, and between such parts the
//! statement can be ended. What is long is not made while the statement is planned, outside its memory.

use super::sql_error;
use crate::errors::carry;
use crate::facts::SessionFacts;
use datafusion::arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use datafusion::arrow::compute::{cast, concat};
use datafusion::arrow::datatypes::{DataType, FieldRef, Int64Type};
use datafusion::common::{Result, ScalarValue, exec_err};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};
use std::sync::Arc;
use tidepool_base::SqlState;
use tidepool_heap::QueryHeap;

/// PostgreSQL's bound of a value.
const VALUE_BYTES_MAX: usize = 0x3fff_ffff - 4;

/// What is made at once.
const PART_BYTES_MAX: usize = 16 << 20;

/// What is made of constants while the statement is planned.
const PLANNED_BYTES_MAX: usize = 64 << 10;

/// Bytes of a character at most.
const CHARACTER_BYTES_MAX: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Repeat,
    Pad,
    Replace,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Bounded {
    kind: Kind,
    inner: Arc<ScalarUDF>,
}

pub fn functions() -> Vec<ScalarUDF> {
    let bounded = |(kind, inner)| ScalarUDF::new_from_impl(Bounded { kind, inner });
    [
        (Kind::Repeat, datafusion::functions::string::repeat()),
        (Kind::Replace, datafusion::functions::string::replace()),
        (Kind::Pad, datafusion::functions::unicode::lpad()),
        (Kind::Pad, datafusion::functions::unicode::rpad()),
    ]
    .map(bounded)
    .into()
}

/// A text argument; the text of a row is borrowed of it.
enum Texts {
    One(String),
    Column(ArrayRef),
}

impl Texts {
    fn of(argument: &ColumnarValue) -> Result<Texts> {
        Ok(match argument {
            ColumnarValue::Scalar(scalar) => Texts::One(scalar.try_as_str().flatten().unwrap_or_default().to_owned()),
            ColumnarValue::Array(array) if array.data_type() == &DataType::Utf8View => Texts::Column(array.clone()),
            ColumnarValue::Array(array) => Texts::Column(cast(array, &DataType::Utf8View)?),
        })
    }

    fn row(&self, row: usize) -> &str {
        match self {
            Texts::One(text) => text,
            Texts::Column(array) if array.is_null(row) => "",
            Texts::Column(array) => array.as_string_view().value(row),
        }
    }
}

/// A number argument, negative ones taken for zero.
fn counts(argument: &ColumnarValue) -> Result<ColumnarValue> {
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

fn count(argument: &ColumnarValue, row: usize) -> usize {
    let count = match argument {
        ColumnarValue::Scalar(ScalarValue::Int64(count)) => *count,
        ColumnarValue::Array(array) if array.data_type() == &DataType::Int64 => {
            array.is_valid(row).then(|| array.as_primitive::<Int64Type>().value(row))
        }
        _ => None,
    };
    count.map_or(0, |count| usize::try_from(count).unwrap_or(0))
}

impl Bounded {
    /// How long the values become, by row.
    fn sizes(&self, args: &[ColumnarValue], rows: usize) -> Result<Vec<usize>> {
        let sizes: Vec<usize> = match (self.kind, args) {
            (Kind::Repeat, [text, times]) => {
                let texts = Texts::of(text)?;
                (0..rows).map(|row| texts.row(row).len().saturating_mul(count(times, row))).collect()
            }
            // PostgreSQL reckons with its longest characters.
            (Kind::Pad, [_, characters, ..]) => {
                (0..rows).map(|row| count(characters, row).saturating_mul(CHARACTER_BYTES_MAX)).collect()
            }
            (Kind::Replace, [text, from, to]) => {
                let (texts, from, to) = (Texts::of(text)?, Texts::of(from)?, Texts::of(to)?);
                let size = |row| {
                    let (text, from, to): (&str, &str, &str) = (texts.row(row), from.row(row), to.row(row));
                    let found = if from.is_empty() || to.len() <= from.len() { 0 } else { text.matches(from).count() };
                    text.len().saturating_add(found.saturating_mul(to.len().saturating_sub(from.len())))
                };
                (0..rows).map(size).collect()
            }
            _ => vec![0; rows],
        };
        match sizes.iter().all(|size| *size <= VALUE_BYTES_MAX) {
            true => Ok(sizes),
            false => Err(sql_error(SqlState::PROGRAM_LIMIT_EXCEEDED, "requested length too large")),
        }
    }
}

impl ScalarUDFImpl for Bounded {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }
    fn signature(&self) -> &Signature {
        self.inner.signature()
    }
    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(arg_types)
    }
    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        self.inner.return_field_from_args(args)
    }
    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.coerce_types(arg_types)
    }
    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if self.kind != Kind::Replace
            && let Some(argument) = args.args.get_mut(1)
        {
            *argument = counts(argument)?;
        }
        let is_constant = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_constant { 1 } else { args.number_rows };
        let sizes = self.sizes(&args.args, rows)?;
        let total: usize = sizes.iter().copied().fold(0, usize::saturating_add);
        if total > PLANNED_BYTES_MAX && crate::planning::is_planning() {
            // Whoever computes constants leaves it as it is.
            return exec_err!("a value of {total} bytes is made when the statement runs");
        }
        if total <= PART_BYTES_MAX {
            return self.inner.invoke_with_args(args);
        }
        let facts = SessionFacts::of(&args.config_options).cloned();
        let interrupt = facts.and_then(|facts| facts.planner.shared(facts.session_id)?.interrupt().upgrade());
        let mut parts: Vec<ArrayRef> = Vec::new();
        let mut start = 0;
        while start < rows {
            if let Some(interrupt) = &interrupt {
                interrupt.check().map_err(carry)?;
            }
            let mut end = start + 1;
            let mut bytes = sizes[start];
            while end < rows && bytes.saturating_add(sizes[end]) <= PART_BYTES_MAX {
                bytes += sizes[end];
                end += 1;
            }
            let sliced = args.args.iter().map(|arg| match arg {
                ColumnarValue::Array(array) => ColumnarValue::Array(array.slice(start, end - start)),
                scalar => scalar.clone(),
            });
            let part = ScalarFunctionArgs {
                args: sliced.collect(),
                arg_fields: args.arg_fields.clone(),
                number_rows: end - start,
                return_field: args.return_field.clone(),
                config_options: args.config_options.clone(),
            };
            // Twice: it is copied once it is whole.
            let made = QueryHeap::with_room(bytes.saturating_mul(2), || self.inner.invoke_with_args(part));
            let made = made.map_err(carry)??;
            if is_constant {
                return Ok(made);
            }
            parts.push(made.into_array(end - start)?);
            start = end;
        }
        let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
        Ok(ColumnarValue::Array(concat(&parts)?))
    }
}
