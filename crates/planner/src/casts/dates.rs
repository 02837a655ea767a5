//! Comparisons and arithmetic of dates that are constants.

use crate::operators::{self};
use arrow::datatypes::DataType;
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::{BinaryExpr, Cast, Expr, ExprSchemable, Operator};

pub(super) fn timestamp_literal(expr: &Expr) -> Option<i64> {
    match expr {
        Expr::Literal(ScalarValue::TimestampMicrosecond(Some(micros), None), _) => Some(*micros),
        _ => None,
    }
}

pub(super) fn date_literal(day: i32) -> Expr {
    Expr::Literal(ScalarValue::Date32(Some(day)), None)
}

/// `date '1998-12-01' - interval '90 days'` as one constant.
pub(super) fn fold_moved(expr: Expr) -> Result<Expr> {
    const DAY_US: i64 = 86_400_000_000;
    let Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::Plus | Operator::Minus), right }) = &expr else {
        return Ok(expr);
    };
    let start = match left.as_ref() {
        Expr::Cast(Cast { expr, field }) if *field.data_type() == operators::TIMESTAMP => match expr.as_ref() {
            Expr::Literal(ScalarValue::Date32(Some(day)), _) => i64::from(*day).checked_mul(DAY_US),
            _ => None,
        },
        literal => timestamp_literal(literal),
    };
    match (start, right.as_ref()) {
        (Some(micros), Expr::Literal(ScalarValue::IntervalMonthDayNano(Some(interval)), _)) => {
            let micros = operators::moved(micros, *op, *interval)?;
            Ok(Expr::Literal(ScalarValue::TimestampMicrosecond(Some(micros), None), None))
        }
        _ => Ok(expr),
    }
}

/// A comparison of a date with a timestamp: as dates where the timestamp is a constant, else as timestamps.
pub(super) fn compare_dates(left: &Expr, op: Operator, right: &Expr, schema: &DFSchema) -> Option<Expr> {
    let date = |expr: &Expr| matches!(expr.get_type(schema), Ok(DataType::Date32));
    let timestamp = |expr: &Expr| expr.get_type(schema).is_ok_and(|data_type| data_type == operators::TIMESTAMP);
    let as_timestamp = |expr: &Expr| Expr::Cast(Cast::new(Box::new(expr.clone()), operators::TIMESTAMP));
    let binary = |left: Expr, op: Operator, right: Expr| Some(datafusion::logical_expr::binary_expr(left, op, right));
    if let (Some(date), Some(micros)) = (operators::date_within(left, schema), timestamp_literal(right))
        && let Some((op, day)) = operators::compare_date(op, micros)
    {
        return binary(date, op, date_literal(day));
    }
    if let (Some(micros), Some(date)) = (timestamp_literal(left), operators::date_within(right, schema))
        && let Some(swapped) = op.swap()
        && let Some((op, day)) = operators::compare_date(swapped, micros)
    {
        return binary(date, op, date_literal(day));
    }
    if date(left) && timestamp(right) {
        return binary(as_timestamp(left), op, right.clone());
    }
    if timestamp(left) && date(right) {
        return binary(left.clone(), op, as_timestamp(right));
    }
    None
}
