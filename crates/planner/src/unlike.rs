//! Comparisons that PostgreSQL has no operator for: of text with numbers, of dates with truth values.
//!
//! DataFusion finds a type for both, mostly by reading the text, and would fail at the first row that is none of it, or at none.

use crate::errors::carry;
use crate::types::type_of;
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::{Expr, ExprSchemable, Operator};
use tidepool_base::{Error, SqlState};

/// Types that are compared with one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Number,
    Text,
    Truth,
    Moment,
    Interval,
    Bytes,
}

/// What a comparison knows of one side.
pub struct Side {
    class: Class,
    name: String,
}

impl Side {
    /// `None`: the type is open, or one that is not looked at here.
    pub fn of_field(field: &Field) -> Option<Side> {
        let class = match field.data_type() {
            DataType::Boolean => Class::Truth,
            DataType::Utf8 | DataType::Utf8View | DataType::LargeUtf8 => Class::Text,
            DataType::Date32 | DataType::Timestamp(..) => Class::Moment,
            DataType::Interval(_) => Class::Interval,
            DataType::Binary | DataType::BinaryView => Class::Bytes,
            DataType::Decimal128(..) => Class::Number,
            data_type if crate::numerics::is_numeric(data_type) => Class::Number,
            data_type if data_type.is_integer() || data_type.is_floating() => Class::Number,
            _ => return None,
        };
        let name = type_of(field)?.to_string();
        let name = name.split('(').next().unwrap_or_default().to_owned();
        Some(Side { class, name })
    }

    pub fn of(expr: &Expr, schema: &DFSchema) -> Option<Side> {
        // A literal is of the type that the other side says, and so is a parameter of none.
        if matches!(expr, Expr::Literal(ScalarValue::Utf8(_) | ScalarValue::Utf8View(_), None) | Expr::Placeholder(_)) {
            return None;
        }
        let (_, field) = expr.to_field(schema).ok()?;
        Side::of_field(&field)
    }
}

/// 42883 for a value and another in its place, of types that have none in common.
pub fn check_default(function: &str, value: Option<Side>, default: Option<Side>) -> Result<()> {
    match (value, default) {
        (Some(value), Some(default)) if value.class != default.class => {
            let message = format!("function {function}({}, integer, {}) does not exist", value.name, default.name);
            let hint =
                "No function matches the given name and argument types. You might need to add explicit type casts.";
            Err(carry(Error::new(SqlState::UNDEFINED_FUNCTION, message).with_hint(hint)))
        }
        _ => Ok(()),
    }
}

/// 42883 for sides that no operator compares.
pub fn check(left: Option<Side>, op: Operator, right: Option<Side>) -> Result<()> {
    match (left, right) {
        (Some(left), Some(right)) if left.class != right.class => {
            let op = if op == Operator::NotEq { "<>".to_owned() } else { op.to_string() };
            let message = format!("operator does not exist: {} {op} {}", left.name, right.name);
            let hint =
                "No operator matches the given name and argument types. You might need to add explicit type casts.";
            Err(carry(Error::new(SqlState::UNDEFINED_FUNCTION, message).with_hint(hint)))
        }
        _ => Ok(()),
    }
}
