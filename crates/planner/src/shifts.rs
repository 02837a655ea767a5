//! `lag` and `lead`: a value of another row, or a default.
//!
//! Both decide the type together; DataFusion casts the default to the value's, which cuts it. A row that is NULL rows away is none, where
//! DataFusion takes NULL for one row.

use crate::casts::{INSTANT, literal_like, untyped};
use crate::operators::TIMESTAMP;
use crate::unlike::{self, Side};
use crate::{numerics, row_types};
use arrow::datatypes::DataType;
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::{Cast, Expr, ExprSchemable};
use tidepool_database::text::TextSettings;

/// Settles the types of the function's arguments, if it is one of the two. True if anything changes.
pub fn settle(function: &mut WindowFunction, schema: &DFSchema, settings: &TextSettings) -> Result<bool> {
    if !matches!(function.fun.name(), "lag" | "lead") {
        return Ok(false);
    }
    let name = function.fun.name().to_owned();
    let args = &mut function.params.args;
    let mut changed = false;
    if let [value, _, default] = args.as_mut_slice() {
        changed = settle_types(&name, value, default, schema, settings)?;
    }
    if args.get(1).is_some_and(is_null) {
        let nothing = ScalarValue::try_from(&args[0].get_type(schema)?)?;
        *args = vec![Expr::Literal(nothing, None)];
        changed = true;
    }
    Ok(changed)
}

fn is_null(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(value, _) => value.is_null(),
        Expr::Cast(cast) => is_null(&cast.expr),
        _ => false,
    }
}

fn settle_types(
    name: &str,
    value: &mut Expr,
    default: &mut Expr,
    schema: &DFSchema,
    settings: &TextSettings,
) -> Result<bool> {
    if let Some(text) = untyped(default) {
        let read = literal_like(text, value, schema, settings, false)?;
        let is_read = read.is_some();
        read.into_iter().for_each(|read| *default = read);
        return Ok(is_read);
    }
    if let Some(text) = untyped(value) {
        let read = literal_like(text, default, schema, settings, false)?;
        let is_read = read.is_some();
        read.into_iter().for_each(|read| *value = read);
        return Ok(is_read);
    }
    unlike::check_default(name, Side::of(value, schema), Side::of(default, schema))?;
    let (Ok(of_value), Ok(of_default)) = (value.get_type(schema), default.get_type(schema)) else { return Ok(false) };
    let is_time = |of: &DataType| matches!(of, DataType::Date32 | DataType::Timestamp(..));
    let common = match (&of_value, &of_default) {
        (left, right) if left == right => return Ok(false),
        (left, right) if is_time(left) && is_time(right) => {
            let has_zone = [left, right].into_iter().any(|of| matches!(of, DataType::Timestamp(_, Some(_))));
            Some(if has_zone { INSTANT.clone() } else { TIMESTAMP })
        }
        (left, right) => row_types::common(left, right),
    };
    let Some(common) = common else { return Ok(false) };
    let mut changed = false;
    for (expr, of) in [(value, of_value), (default, of_default)] {
        if of == common {
            continue;
        }
        let inner = std::mem::take(expr);
        *expr = match numerics::is_numeric(&common) {
            true => numerics::as_numeric(inner),
            false => Expr::Cast(Cast::new(Box::new(inner), common.clone())),
        };
        changed = true;
    }
    Ok(changed)
}
