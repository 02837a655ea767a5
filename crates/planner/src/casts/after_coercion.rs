//! The casts that Arrow does not do as PostgreSQL does, after type coercion.

use super::functions::is_float;
use super::functions::{Checked, Divisor, ReadArray, ReadText, WriteText};
use super::plans::{INSTANT, map_expressions, rewrite_plan};
use crate::arithmetic::{self, Kind};
use crate::conversions::{conversion, conversion_of, is_string, text_settings};
use crate::errors::carry;
use crate::numerics;
use crate::rewrites::{RewritePlan, RewriteTree};
use crate::types::type_of;
use arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, Result, ScalarValue};
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{BinaryExpr, Cast, Expr, ExprSchemable, LogicalPlan, Operator, ScalarUDF};
use datafusion::optimizer::analyzer::AnalyzerRule;
use std::sync::Arc;
use tidepool_database::text::Zone;
use tidepool_table::arrow_type;

#[derive(Debug)]
pub struct Casts;

impl AnalyzerRule for Casts {
    fn name(&self) -> &str {
        "tidepool_casts"
    }

    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        let zone = text_settings(config).zone().map_err(carry)?;
        let is_utc = zone == Zone::UTC;
        let zone: Arc<str> = Arc::from(zone.arrow_name());
        let plan = rewrite_plan(plan, &|expr, schema| match expr {
            Expr::Cast(cast) => postgres_cast(cast, schema, is_utc),
            Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::Plus | Operator::Minus), right })
                if !is_utc
                    && left.get_type(schema).is_ok_and(|data_type| data_type == *INSTANT)
                    && matches!(right.get_type(schema), Ok(DataType::Interval(_))) =>
            {
                // Days are those of the session's clock.
                let name = if op == Operator::Plus { "pg_moved" } else { "pg_moved_back" };
                Ok(match crate::catalog::function(name) {
                    Some(moved) => Transformed::yes(moved.call(vec![*left, *right])),
                    None => Transformed::no(Expr::BinaryExpr(BinaryExpr { left, op, right })),
                })
            }
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::Divide, right })
                if matches!(right.get_type(schema), Ok(DataType::Float32 | DataType::Float64))
                    && !matches!(&*right, Expr::ScalarFunction(function) if function.func.name() == "tidepool_divisor") =>
            {
                let right = match &*right {
                    // A constant that is not zero needs no watching.
                    Expr::Literal(ScalarValue::Float64(Some(value)), _) if *value != 0.0 => right,
                    Expr::Literal(ScalarValue::Float32(Some(value)), _) if *value != 0.0 => right,
                    _ => Box::new(ScalarUDF::new_from_impl(Divisor::new()).call(vec![*right])),
                };
                Ok(Transformed::yes(Expr::BinaryExpr(BinaryExpr { left, op: Operator::Divide, right })))
            }
            Expr::ScalarFunction(function)
                if function.func.name() == "round"
                    && function.args.len() == 1
                    && is_float(&function.args[0], schema) =>
            {
                Ok(Transformed::yes(arithmetic::call(Kind::RoundFloat, function.args)))
            }
            Expr::ScalarFunction(mut function)
                if matches!(function.func.name(), "ln" | "log" | "log10" | "log2")
                    && function.args.iter().all(|argument| is_float(argument, schema)) =>
            {
                let watched = |argument: Expr| arithmetic::call(Kind::LogarithmArgument, vec![argument]);
                function.args = function.args.into_iter().map(watched).collect();
                Ok(Transformed::yes(Expr::ScalarFunction(function)))
            }
            Expr::ScalarFunction(mut function)
                if matches!(function.func.name(), "date_part" | "date_trunc") && !is_utc =>
            {
                // Parts of a point in time are those on the session's clock.
                let Some(argument) = function.args.get_mut(1) else {
                    return Ok(Transformed::no(Expr::ScalarFunction(function)));
                };
                match argument.get_type(schema) {
                    Ok(known @ DataType::Timestamp(unit, Some(_))) if known == *INSTANT => {
                        let here = DataType::Timestamp(unit, Some(zone.clone()));
                        *argument = Expr::Cast(Cast::new(Box::new(argument.clone()), here));
                        let truncates = function.func.name() == "date_trunc";
                        let taken = Expr::ScalarFunction(function);
                        // The point in time is held as all others are, whatever asks next.
                        Ok(Transformed::yes(match truncates {
                            true => Expr::Cast(Cast::new(Box::new(taken), known)),
                            false => taken,
                        }))
                    }
                    _ => Ok(Transformed::no(Expr::ScalarFunction(function))),
                }
            }
            other => Ok(Transformed::no(other)),
        })?;
        check_arithmetic(plan)
    }
}

/// Arrow's integers wrap around.
pub(super) fn check_arithmetic(plan: LogicalPlan) -> Result<LogicalPlan> {
    let checked = plan.rewrite_up_with_subqueries(&mut |plan| {
        let schema = merge_schema(&plan.inputs());
        let plan = map_expressions(plan, &mut |expr| expr.rewrite_down(&mut |expr| Ok(Checked::over(expr, &schema))))?;
        if plan.transformed { plan.map_data(LogicalPlan::recompute_schema) } else { Ok(plan) }
    })?;
    Ok(checked.data)
}

pub(super) fn postgres_cast(cast: Cast, schema: &DFSchema, is_utc: bool) -> Result<Transformed<Expr>> {
    let Ok(source) = cast.expr.get_type(schema) else { return Ok(Transformed::no(Expr::Cast(cast))) };
    let target = cast.field.data_type().clone();
    let Cast { expr, field } = cast;
    let again = |expr: Expr| Expr::Cast(Cast { expr: Box::new(expr), field: field.clone() });
    Ok(match (&source, &target) {
        // What a number stands for goes with it through a cast, but not through a function.
        (DataType::UInt32, DataType::UInt32) if is_regproc(&expr, schema) => {
            Transformed::yes(conversion_of(*expr, &field))
        }
        (source, target) if source == target => Transformed::no(again(*expr)),
        (source, target)
            if numerics::is_numeric(source)
                || numerics::is_numeric(target) && !is_string(source)
                || numerics::is_list_of(target) && matches!(source, DataType::List(_)) =>
        {
            Transformed::yes(numerics::call(numerics::Kind::Cast(target.clone()), vec![*expr]))
        }
        // Arrow cuts the fraction off; PostgreSQL rounds.
        (
            DataType::Float32 | DataType::Float64,
            DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64,
        ) if !is_round(&expr) => Transformed::yes(again(arithmetic::call(Kind::RoundFloat, vec![*expr]))),
        (
            DataType::Float16 | DataType::Decimal128(..) | DataType::Decimal256(..),
            DataType::Int8 | DataType::Int16 | DataType::Int32 | DataType::Int64,
        ) if !is_round(&expr) && !matches!(source, DataType::Decimal128(_, 0)) => {
            Transformed::yes(again(datafusion::functions::math::expr_fn::round(vec![*expr])))
        }
        (source, target) if is_string(source) && !is_string(target) && !matches!(target, DataType::Null) => {
            match type_of(&field) {
                Some(sql_type) if arrow_type(sql_type) == *target && matches!(*expr, Expr::Literal(..)) => {
                    // A literal that coercion gave a type to: read once, here.
                    match &*expr {
                        Expr::Literal(value, _) => match value.try_as_str() {
                            Some(Some(_)) => Transformed::yes(
                                ScalarUDF::new_from_impl(ReadText::new(sql_type, target.clone())).call(vec![*expr]),
                            ),
                            _ => Transformed::no(again(*expr)),
                        },
                        _ => Transformed::no(again(*expr)),
                    }
                }
                Some(sql_type) if arrow_type(sql_type) == *target => Transformed::yes(
                    ScalarUDF::new_from_impl(ReadText::new(sql_type, target.clone())).call(vec![*expr]),
                ),
                _ => match ReadArray::of(target) {
                    Some(read) => Transformed::yes(ScalarUDF::new_from_impl(read).call(vec![*expr])),
                    None => match conversion(*expr, source, &field, is_utc) {
                        Ok(converted) => Transformed::yes(converted),
                        Err(expr) => Transformed::no(again(expr)),
                    },
                },
            }
        }
        (
            DataType::List(_)
            | DataType::LargeList(_)
            | DataType::FixedSizeList(..)
            | DataType::Struct(_)
            | DataType::Float32
            | DataType::Float64
            | DataType::Timestamp(..)
            | DataType::Interval(_)
            | DataType::Binary
            | DataType::BinaryView
            | DataType::LargeBinary,
            target,
        ) if is_string(target) => {
            let written = ScalarUDF::new_from_impl(WriteText::new()).call(vec![*expr]);
            Transformed::yes(if *target == DataType::Utf8View { written } else { again(written) })
        }
        (DataType::UInt32, target) if is_string(target) && is_regproc(&expr, schema) => {
            match crate::catalog::function("regproc_out") {
                Some(written) => Transformed::yes(again(written.call(vec![*expr]))),
                None => Transformed::no(again(*expr)),
            }
        }
        // A reading of the clock is the session's, both ways; the point in time itself is kept in UTC.
        (source, _) => match conversion(*expr, source, &field, is_utc) {
            Ok(converted) => Transformed::yes(converted),
            Err(expr) => Transformed::no(again(expr)),
        },
    })
}

pub(super) fn is_regproc(expr: &Expr, schema: &DFSchema) -> bool {
    const REGPROC: u32 = 24;
    expr.to_field(schema).is_ok_and(|(_, field)| crate::types::marked_oid(&field) == Some(REGPROC))
}

pub(super) fn is_round(expr: &Expr) -> bool {
    matches!(expr, Expr::ScalarFunction(function) if matches!(function.func.name(), "round" | "trunc" | "floor" | "ceil" | "tidepool_round"))
}
