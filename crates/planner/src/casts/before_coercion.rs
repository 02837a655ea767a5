//! The types of literals, before type coercion, and their values where a cast names the type.

use super::dates::{compare_dates, date_literal, fold_moved, timestamp_literal};
use super::functions::{Cut, ReadText, WriteText, is_float};
use super::plans::{INSTANT, is_comparison, metadata, rewrite_plan};
use crate::conversions::{is_string, text_settings};
use crate::errors::carry;
use crate::numerics;
use crate::operators::{self, unnamed};
use crate::rewrites::RewritePlan;
use crate::rounding;
use crate::types::{declared_type, type_of};
use crate::unlike::{self, Side};
use arrow::datatypes::{DataType, Field, FieldRef, IntervalUnit};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult};
use datafusion::common::{Column, DFSchema, Result, ScalarValue, TableReference};
use datafusion::logical_expr::expr::{
    AggregateFunction, AggregateFunctionParams, Between, InList, ScalarFunction, Sort, WindowFunction,
    WindowFunctionParams,
};
use datafusion::logical_expr::{
    BinaryExpr, Case, Cast, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Operator, Projection, ScalarUDF,
    Subquery, Union, WindowFunctionDefinition, lit,
};
use datafusion::optimizer::analyzer::AnalyzerRule;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidepool_base::{Error, SqlState, SqlType};
use tidepool_database::text::{TextReader, TextSettings};

#[derive(Debug)]
pub struct Literals;

impl AnalyzerRule for Literals {
    fn name(&self) -> &str {
        "tidepool_literals"
    }

    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> Result<LogicalPlan> {
        let settings = text_settings(config);
        let plan = unite_numbers(rewrite_plan(plan, &|expr, schema| type_literals(expr, schema, &settings))?)?;
        settle_values(plan)
    }
}

/// Casts values of a `VALUES` list whose types changed after the list's types were settled. The list's rows become arrays of the
/// settled types without a look at their own: an unscaled decimal would be taken at another scale.
fn settle_values(plan: LogicalPlan) -> Result<LogicalPlan> {
    plan.rewrite_up_with_subqueries(&mut |node| {
        let LogicalPlan::Values(mut list) = node else { return Ok(Transformed::no(node)) };
        let nothing = DFSchema::empty();
        let mut changed = false;
        for row in &mut list.values {
            for (value, field) in row.iter_mut().zip(list.schema.fields()) {
                if value.get_type(&nothing).is_ok_and(|of| of != *field.data_type()) {
                    *value = Expr::Cast(Cast::new(Box::new(std::mem::take(value)), field.data_type().clone()));
                    changed = true;
                }
            }
        }
        Ok(Transformed::new_transformed(LogicalPlan::Values(list), changed))
    })
    .data()
}

/// The text of a literal that has no type yet.
pub fn untyped(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Literal(ScalarValue::Utf8(Some(text)) | ScalarValue::Utf8View(Some(text)), None) => Some(text),
        _ => None,
    }
}

fn is_decimal(expr: &Expr, schema: &DFSchema) -> bool {
    expr.get_type(schema).is_ok_and(|of| matches!(of, DataType::Decimal128(..)) || numerics::is_numeric(&of))
}

fn is_exact(expr: &Expr, schema: &DFSchema) -> bool {
    expr.get_type(schema).is_ok_and(|data_type| numerics::is_exact(&data_type))
}

/// Makes exact numbers ones that each have a scale where there are such numbers among them, unless there are floats.
fn as_numerics<'a>(exprs: impl IntoIterator<Item = &'a mut Expr>, schema: &DFSchema) -> bool {
    let (mut has_numeric, mut others) = (false, Vec::new());
    for expr in exprs {
        match expr.get_type(schema) {
            Ok(of) if numerics::is_numeric(&of) => has_numeric = true,
            Ok(of) if numerics::is_exact(&of) || of == DataType::Null => others.push(expr),
            Ok(DataType::Float32 | DataType::Float64) => return false,
            _ => {}
        }
    }
    if !has_numeric || others.is_empty() {
        return false;
    }
    for expr in others {
        *expr = numerics::as_numeric(std::mem::take(expr));
    }
    true
}

/// As [`as_floats`] or else [`as_numerics`], for comparisons.
fn as_common_type(mut exprs: Vec<&mut Expr>, schema: &DFSchema) -> bool {
    as_floats(exprs.iter_mut().map(|expr| &mut **expr), schema, DataType::Float64)
        || as_numerics(exprs.iter_mut().map(|expr| &mut **expr), schema)
}

/// The same for expressions one of which is the result: exact numbers become `real` beside nothing but `real`.
fn as_result_type(mut exprs: Vec<&mut Expr>, schema: &DFSchema) -> bool {
    let has_double = exprs.iter().any(|expr| matches!(expr.get_type(schema), Ok(DataType::Float64)));
    let float = if has_double { DataType::Float64 } else { DataType::Float32 };
    as_floats(exprs.iter_mut().map(|expr| &mut **expr), schema, float)
        || as_numerics(exprs.iter_mut().map(|expr| &mut **expr), schema)
}

/// Casts expressions that are of one type in the end to it, where DataFusion would take another: exact numbers to floats where there
/// are floats among them, as PostgreSQL compares them, because no decimal holds all floats; and what a clock shows to instants where there
/// are instants among them.
fn as_floats<'a>(exprs: impl IntoIterator<Item = &'a mut Expr>, schema: &DFSchema, float: DataType) -> bool {
    let (mut has_float, mut has_instant, mut decimals, mut readings) = (false, false, Vec::new(), Vec::new());
    for expr in exprs {
        match expr.get_type(schema) {
            Ok(DataType::Float32 | DataType::Float64) => has_float = true,
            Ok(DataType::Decimal128(..) | numerics::NUMERIC) => decimals.push(expr),
            Ok(DataType::Timestamp(_, Some(_))) => has_instant = true,
            Ok(DataType::Timestamp(_, None) | DataType::Date32) => readings.push(expr),
            _ => {}
        }
    }
    let mut changed = false;
    if has_float {
        for expr in decimals {
            *expr = Expr::Cast(Cast::new(Box::new(std::mem::take(expr)), float.clone()));
            changed = true;
        }
    }
    if has_instant {
        for expr in readings {
            *expr = Expr::Cast(Cast::new(Box::new(std::mem::take(expr)), INSTANT.clone()));
            changed = true;
        }
    }
    changed
}

/// The same of two expressions over schemas of their own.
fn as_floats_of_sides(left: &mut Expr, lefts: &DFSchema, right: &mut Expr, rights: &DFSchema) -> bool {
    let is_instant =
        |expr: &Expr, schema: &DFSchema| matches!(expr.get_type(schema), Ok(DataType::Timestamp(_, Some(_))));
    let is_reading = |expr: &Expr, schema: &DFSchema| {
        matches!(expr.get_type(schema), Ok(DataType::Timestamp(_, None) | DataType::Date32))
    };
    let (side, to) = match () {
        () if is_decimal(left, lefts) && is_float(right, rights) => (left, DataType::Float64),
        () if is_float(left, lefts) && is_decimal(right, rights) => (right, DataType::Float64),
        () if is_instant(left, lefts) && is_reading(right, rights) => (right, INSTANT.clone()),
        () if is_reading(left, lefts) && is_instant(right, rights) => (left, INSTANT.clone()),
        () => return false,
    };
    *side = Expr::Cast(Cast::new(Box::new(std::mem::take(side)), to));
    true
}

/// The same of two expressions over schemas of their own, exact numbers beside those that each have a scale.
fn as_numerics_of_sides(left: &mut Expr, lefts: &DFSchema, right: &mut Expr, rights: &DFSchema) -> bool {
    let (Ok(left_type), Ok(right_type)) = (left.get_type(lefts), right.get_type(rights)) else { return false };
    let other = match (numerics::is_numeric(&left_type), numerics::is_numeric(&right_type)) {
        (true, false) if numerics::is_exact(&right_type) => right,
        (false, true) if numerics::is_exact(&left_type) => left,
        _ => return false,
    };
    *other = numerics::as_numeric(std::mem::take(other));
    true
}

/// As [`as_floats_of_sides`] or else [`as_numerics_of_sides`].
fn as_common_type_of_sides(left: &mut Expr, lefts: &DFSchema, right: &mut Expr, rights: &DFSchema) -> bool {
    as_floats_of_sides(left, lefts, right, rights) || as_numerics_of_sides(left, lefts, right, rights)
}

/// Whether it is an instant, or what a clock shows.
fn is_time(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Timestamp(..) | DataType::Date32)
}

/// Values of `char(n)` are held without the blanks at their ends, which what does not make texts of them sees. True if there are some to be
/// put there.
fn pad(expr: &mut Expr, schema: &DFSchema) -> bool {
    let Ok((_, field)) = expr.to_field(schema) else { return false };
    let Some(SqlType::Char { length }) = declared_type(&field) else { return false };
    let Some(padded) = crate::catalog::function("rpad") else { return false };
    *expr = padded.call(vec![operators::unnamed(std::mem::take(expr)), lit(i64::from(length))]);
    true
}

/// Whether blanks at a text's end are of no account to a pattern of `LIKE`: it ends as the text may.
fn ignores_blanks(pattern: &Expr) -> bool {
    untyped(pattern).is_some_and(|pattern| {
        pattern.strip_suffix('%').is_some_and(|start| !start.ends_with('\\') && !start.contains([' ', '_', '%']))
    })
}

fn matches_pattern(op: Operator) -> bool {
    use Operator::{
        ILikeMatch, LikeMatch, NotILikeMatch, NotLikeMatch, RegexIMatch, RegexMatch, RegexNotIMatch, RegexNotMatch,
    };
    matches!(
        op,
        RegexMatch
            | RegexIMatch
            | RegexNotMatch
            | RegexNotIMatch
            | LikeMatch
            | ILikeMatch
            | NotLikeMatch
            | NotILikeMatch
    )
}

/// Whether it is a constant interval of months.
fn has_months(expr: &Expr, settings: &TextSettings) -> bool {
    let read = untyped(expr).and_then(|text| {
        let interval = DataType::Interval(IntervalUnit::MonthDayNano);
        read_literal(text, SqlType::Interval, &interval, settings).ok()
    });
    match read.as_ref().unwrap_or(expr) {
        Expr::Literal(ScalarValue::IntervalMonthDayNano(Some(interval)), _) => interval.months != 0,
        _ => false,
    }
}

/// The text of a literal that a function takes as bytes.
fn bytes_literal(function: &ScalarFunction) -> Option<String> {
    let is_of_bytes = matches!(function.func.name(), "encode" | "sha224" | "sha256" | "sha384" | "sha512");
    function.args.first().filter(|_| is_of_bytes).and_then(untyped).map(str::to_owned)
}

/// Whether it is `date_part` of an interval, and one that takes all of its parts.
fn is_part_of_interval(function: &ScalarFunction, schema: &DFSchema) -> bool {
    let [Expr::Literal(unit, _), of] = &function.args[..] else { return false };
    let unit = unit.try_as_str().flatten().unwrap_or_default().to_ascii_lowercase();
    let units =
        ["quarter", "milliseconds", "millisecond", "msec", "ms", "microseconds", "microsecond", "usec", "us", "epoch"];
    function.func.name() == "date_part"
        && units.contains(&unit.as_str())
        && matches!(of.get_type(schema), Ok(DataType::Interval(_)))
}

/// What says of which type a literal beside it is.
fn is_typed(expr: &Expr, schema: &DFSchema) -> bool {
    untyped(expr).is_none() && !matches!(expr.get_type(schema), Ok(DataType::Null) | Err(_))
}

fn type_literals(expr: Expr, schema: &DFSchema, settings: &TextSettings) -> Result<Transformed<Expr>> {
    match &expr {
        Expr::InList(list) => check_alike(&list.expr, Operator::Eq, &list.list, schema)?,
        Expr::Between(between) => {
            check_alike(&between.expr, Operator::GtEq, [between.low.as_ref()], schema)?;
            check_alike(&between.expr, Operator::LtEq, [between.high.as_ref()], schema)?;
        }
        _ => {}
    }
    match expr {
        Expr::Cast(cast) => type_cast(cast, schema, settings),
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if is_comparison(op) || op.is_numerical_operators() => {
            let arithmetic = op.is_numerical_operators();
            let (left, right, changed) = match (untyped(&left), untyped(&right)) {
                (None, Some(text)) => match literal_like(text, &left, schema, settings, arithmetic)? {
                    Some(literal) => (left, Box::new(literal), true),
                    None => (left, right, false),
                },
                (Some(text), None) => match literal_like(text, &right, schema, settings, arithmetic)? {
                    Some(literal) => (Box::new(literal), right, true),
                    None => (left, right, false),
                },
                _ => (left, right, false),
            };
            let (left, right) = match operators::resolve(*left, op, *right, schema)? {
                Ok(expr) => return Ok(Transformed::yes(fold_moved(expr)?)),
                Err(operands) => operands,
            };
            if is_comparison(op)
                && let Some(compared) = compare_dates(&left, op, &right, schema)
            {
                return Ok(Transformed::yes(compared));
            }
            if is_comparison(op) {
                unlike::check(Side::of(&left, schema), op, Side::of(&right, schema))?;
            }
            let (mut left, mut right) = (left, right);
            let changed = is_comparison(op) && as_common_type(vec![&mut left, &mut right], schema) || changed;
            let changed = is_comparison(op) && as_decimals(&mut left, &mut right, schema) || changed;
            let expr = fold_moved(Expr::BinaryExpr(BinaryExpr { left: Box::new(left), op, right: Box::new(right) }))?;
            let changed = changed || matches!(expr, Expr::Literal(..));
            Ok(if changed { Transformed::yes(expr) } else { Transformed::no(expr) })
        }
        Expr::InList(InList { expr, list, negated }) if list.iter().any(|item| untyped(item).is_some()) => {
            let list = list
                .into_iter()
                .map(|item| match untyped(&item) {
                    Some(text) => Ok(literal_like(text, &expr, schema, settings, false)?.unwrap_or(item)),
                    None => Ok(item),
                })
                .collect::<Result<Vec<_>>>()?;
            let (mut expr, mut list) = (expr, list);
            as_common_type(std::iter::once(expr.as_mut()).chain(&mut list).collect(), schema);
            Ok(Transformed::yes(Expr::InList(InList { expr, list, negated })))
        }
        Expr::InSubquery(mut of) => {
            let changed = compare_with_rows(&mut of.expr, Operator::Eq, &mut of.subquery, schema, settings)?;
            Ok(Transformed::new_transformed(Expr::InSubquery(of), changed))
        }
        Expr::SetComparison(mut of) => {
            let changed = compare_with_rows(&mut of.expr, of.op, &mut of.subquery, schema, settings)?;
            Ok(Transformed::new_transformed(Expr::SetComparison(of), changed))
        }
        Expr::InList(mut of)
            if of.list.iter().chain([of.expr.as_ref()]).any(|item| {
                is_decimal(item, schema) || item.get_type(schema).is_ok_and(|data_type| is_time(&data_type))
            }) =>
        {
            let changed = as_common_type(std::iter::once(of.expr.as_mut()).chain(&mut of.list).collect(), schema);
            Ok(Transformed::new_transformed(Expr::InList(of), changed))
        }
        Expr::Between(mut of)
            if [&of.expr, &of.low, &of.high].into_iter().any(|part| {
                is_decimal(part, schema) || matches!(part.get_type(schema), Ok(DataType::Timestamp(_, Some(_))))
            }) =>
        {
            let mut changed = false;
            for bound in [&mut of.low, &mut of.high] {
                if let Some(text) = untyped(bound)
                    && let Some(literal) = literal_like(text, &of.expr, schema, settings, false)?
                {
                    **bound = literal;
                    changed = true;
                }
            }
            changed |= as_common_type(vec![of.expr.as_mut(), of.low.as_mut(), of.high.as_mut()], schema);
            Ok(Transformed::new_transformed(Expr::Between(of), changed))
        }
        Expr::Between(Between { expr, negated, low, high }) if untyped(&low).is_some() || untyped(&high).is_some() => {
            let bound = |bound: Box<Expr>| match untyped(&bound) {
                Some(text) => Ok(literal_like(text, &expr, schema, settings, false)?.map_or(bound, Box::new)),
                None => Ok::<_, datafusion::common::DataFusionError>(bound),
            };
            let (low, high) = (bound(low)?, bound(high)?);
            Ok(Transformed::yes(Expr::Between(Between { expr, negated, low, high })))
        }
        Expr::Between(Between { expr, negated, low, high })
            if timestamp_literal(&low).or_else(|| timestamp_literal(&high)).is_some() =>
        {
            let Some(date) = operators::date_within(&expr, schema) else {
                return Ok(Transformed::no(Expr::Between(Between { expr, negated, low, high })));
            };
            let bound = |bound: &Expr, op: Operator| match (bound, timestamp_literal(bound)) {
                (_, Some(micros)) => operators::compare_date(op, micros).and_then(|(op, day)| match op {
                    Operator::Gt => day.checked_add(1),
                    _ => Some(day),
                }),
                (Expr::Literal(ScalarValue::Date32(Some(day)), _), None) => Some(*day),
                _ => None,
            };
            match (bound(&low, Operator::GtEq), bound(&high, Operator::LtEq)) {
                (Some(low), Some(high)) => Ok(Transformed::yes(Expr::Between(Between {
                    expr: Box::new(date),
                    negated,
                    low: Box::new(date_literal(low)),
                    high: Box::new(date_literal(high)),
                }))),
                _ => Ok(Transformed::no(Expr::Between(Between { expr, negated, low, high }))),
            }
        }
        Expr::Like(mut like) => {
            // PostgreSQL's escape is the backslash, and it must escape something.
            let escapes = |text: &str| text.len() - text.trim_end_matches('\\').len();
            if untyped(&like.pattern).is_some_and(|pattern| escapes(pattern) % 2 == 1) {
                let message = "LIKE pattern must not end with escape character";
                return Err(carry(Error::new(SqlState::INVALID_ESCAPE_SEQUENCE, message)));
            }
            let is_padded = !ignores_blanks(&like.pattern) && pad(&mut like.expr, schema);
            Ok(Transformed::new_transformed(Expr::Like(like), is_padded))
        }
        Expr::BinaryExpr(BinaryExpr { mut left, op, right }) if matches_pattern(op) => {
            let is_padded = pad(&mut left, schema);
            Ok(Transformed::new_transformed(Expr::BinaryExpr(BinaryExpr { left, op, right }), is_padded))
        }
        Expr::ScalarFunction(mut function) if function.func.name() == "octet_length" && function.args.len() == 1 => {
            let is_padded = pad(&mut function.args[0], schema);
            Ok(Transformed::new_transformed(Expr::ScalarFunction(function), is_padded))
        }
        Expr::Negative(of) if of.get_type(schema).is_ok_and(|of| numerics::is_numeric(&of)) => {
            Ok(Transformed::yes(numerics::call(numerics::Kind::Negate, vec![*of])))
        }
        Expr::ScalarFunction(mut function) if numerics::negates(&function.func) && function.args.len() == 1 => {
            let is_number = function.args[0].get_type(schema).is_ok_and(|of| numerics::is_numeric(&of));
            match function.args.pop() {
                Some(of) if !is_number => Ok(Transformed::yes(Expr::Negative(Box::new(of)))),
                of => {
                    function.args.extend(of);
                    Ok(Transformed::no(Expr::ScalarFunction(function)))
                }
            }
        }
        Expr::ScalarFunction(function)
            if let Some((plain, args)) = numerics::plain_function(&function.func, &function.args, schema) =>
        {
            // The same function under the same name, which other arms may have something to say of.
            type_literals(Expr::ScalarFunction(ScalarFunction::new_udf(plain, args)), schema, settings)
                .map(|typed| Transformed::yes(typed.data))
        }
        Expr::AggregateFunction(mut function) => {
            let plain = numerics::plain_aggregate(&function.func, &function.params.args, schema);
            let mut is_plain = plain.is_some();
            if let Some((plain, args)) = plain {
                function.func = plain;
                function.params.args = args;
            }
            if function.func.name() == "array_agg" && !function.params.distinct {
                is_plain |= function.params.args.iter_mut().any(|item| pad(item, schema));
            }
            let params = &function.params;
            let named = any_alias(params.args.iter().chain(params.filter.as_deref()), &params.order_by);
            // A sum of bigint is numeric, and cannot wrap around.
            let exact = function.func.name() == "sum" && sums_bigint(&params.args, schema);
            // What is between two values is a float; DataFusion goes a millionth of the way at a time between exact ones.
            let between = function.func.name() == "percentile_cont"
                && params.order_by.iter().any(|sort| is_exact(&sort.expr, schema));
            if !named && !exact && !between {
                return Ok(Transformed::new_transformed(Expr::AggregateFunction(function), is_plain));
            }
            let AggregateFunction { func, params } = function;
            let mut params = AggregateFunctionParams {
                args: given(params.args, exact),
                filter: params.filter.map(|filter| Box::new(unnamed(*filter))),
                order_by: unnamed_sorts(params.order_by),
                ..params
            };
            if between {
                let ordered = params.order_by.iter_mut().map(|sort| &mut sort.expr);
                for expr in ordered.chain(params.args.first_mut()) {
                    *expr = Expr::Cast(Cast::new(Box::new(std::mem::take(expr)), DataType::Float64));
                }
            }
            Ok(Transformed::yes(Expr::AggregateFunction(AggregateFunction { func, params })))
        }
        Expr::WindowFunction(mut function) => {
            let plain = match &function.fun {
                WindowFunctionDefinition::AggregateUDF(of) => {
                    numerics::plain_aggregate(of, &function.params.args, schema)
                }
                WindowFunctionDefinition::WindowUDF(_) => None,
            };
            let is_plain = plain.is_some();
            if let Some((plain, args)) = plain {
                function.fun = WindowFunctionDefinition::AggregateUDF(plain);
                function.params.args = args;
            }
            let is_plain = crate::shifts::settle(&mut function, schema, settings)? || is_plain;
            let params = &function.params;
            let expressions = params.args.iter().chain(params.filter.as_deref()).chain(&params.partition_by);
            let named = any_alias(expressions, &params.order_by);
            let exact = function.fun.name() == "sum" && sums_bigint(&params.args, schema);
            if !named && !exact {
                return Ok(Transformed::new_transformed(Expr::WindowFunction(function), is_plain));
            }
            let WindowFunction { fun, params } = *function;
            let params = WindowFunctionParams {
                args: given(params.args, exact),
                filter: params.filter.map(|filter| Box::new(unnamed(*filter))),
                partition_by: params.partition_by.into_iter().map(unnamed).collect(),
                order_by: unnamed_sorts(params.order_by),
                ..params
            };
            Ok(Transformed::yes(Expr::WindowFunction(Box::new(WindowFunction { fun, params }))))
        }
        Expr::ScalarFunction(mut function) if crate::coerced::is_choice(function.func.name()) => {
            let Some(beside) = function.args.iter().find(|argument| is_typed(argument, schema)).cloned() else {
                return Ok(Transformed::no(Expr::ScalarFunction(function)));
            };
            let is_comparison = function.func.name() == "nullif";
            let is_real = matches!(function.args[0].get_type(schema), Ok(DataType::Float32));
            let mut changed = false;
            for argument in &mut function.args {
                if let Some(text) = untyped(argument)
                    && let Some(literal) = literal_like(text, &beside, schema, settings, false)?
                {
                    *argument = literal;
                    changed = true;
                }
            }
            let args: Vec<&mut Expr> = function.args.iter_mut().collect();
            changed |= match is_comparison {
                true => as_common_type(args, schema),
                false => as_result_type(args, schema),
            };
            if is_comparison && is_real && changed {
                // What is given back is the first argument; the other is compared with it as a double.
                let chosen = Box::new(Expr::ScalarFunction(function));
                return Ok(Transformed::yes(Expr::Cast(Cast::new(chosen, DataType::Float32))));
            }
            Ok(Transformed::new_transformed(Expr::ScalarFunction(function), changed))
        }
        Expr::ScalarFunction(function)
            if function.func.name() == "date_bin"
                && function.args.first().is_some_and(|of| has_months(of, settings)) =>
        {
            let message = "timestamps cannot be binned into intervals containing months or years";
            Err(carry(Error::unsupported(message)))
        }
        Expr::ScalarFunction(mut function) if let Some(text) = bytes_literal(&function) => {
            function.args[0] = read_literal(&text, SqlType::Bytea, &DataType::Binary, settings)?;
            Ok(Transformed::yes(Expr::ScalarFunction(function)))
        }
        Expr::ScalarFunction(function) if is_part_of_interval(&function, schema) => {
            // In DataFusion's a year has 360 days, and a second no parts.
            let of = Expr::ScalarFunction(function);
            let returned = of.get_type(schema)?;
            let Expr::ScalarFunction(function) = of else { return Ok(Transformed::no(of)) };
            let extracted = crate::catalog::extract().call(function.args);
            Ok(Transformed::yes(Expr::Cast(Cast::new(Box::new(extracted), returned))))
        }
        Expr::ScalarFunction(mut function) if matches!(function.func.name(), "concat" | "concat_ws") => {
            // By their types' output functions: `t`, which a cast makes `true`.
            let mut changed = false;
            for argument in &mut function.args {
                if pad(argument, schema) {
                    changed = true;
                } else if matches!(argument.get_type(schema), Ok(DataType::Boolean)) {
                    let written = ScalarUDF::new_from_impl(WriteText::new());
                    *argument = written.call(vec![std::mem::take(argument)]);
                    changed = true;
                }
            }
            Ok(Transformed::new_transformed(Expr::ScalarFunction(function), changed))
        }
        Expr::ScalarFunction(mut function)
            if function.func.name() == "array_to_string"
                && matches!(function.args.first().map(|list| list.get_type(schema)),
                    Some(Ok(DataType::List(item))) if !is_string(item.data_type()) && !item.data_type().is_nested()) =>
        {
            // By the items' output functions.
            let texts = DataType::List(Arc::new(Field::new_list_field(DataType::Utf8, true)));
            function.args[0] = Expr::Cast(Cast::new(Box::new(std::mem::take(&mut function.args[0])), texts));
            Ok(Transformed::yes(Expr::ScalarFunction(function)))
        }
        Expr::ScalarFunction(function) if function.func.name() == "array_length" => {
            // An array of nothing has no dimensions.
            let length = Expr::ScalarFunction(function);
            let zero = ScalarValue::Int64(Some(0)).cast_to(&length.get_type(schema)?)?;
            Ok(Transformed::yes(datafusion::functions::core::expr_fn::nullif(length, lit(zero))))
        }
        Expr::ScalarFunction(mut function)
            if function.func.name() == "date_trunc"
                && function.args.first().and_then(untyped).is_some_and(|unit| trunc_unit(unit).is_some()) =>
        {
            let unit = function.args.first().and_then(untyped).and_then(trunc_unit).unwrap_or_default();
            match unit {
                "decade" | "century" | "millennium" => match crate::catalog::function("pg_trunc") {
                    Some(truncated) => {
                        function.args[0] = lit(unit);
                        Ok(Transformed::yes(truncated.call(function.args)))
                    }
                    None => Ok(Transformed::no(Expr::ScalarFunction(function))),
                },
                unit => {
                    function.args[0] = lit(unit);
                    Ok(Transformed::yes(Expr::ScalarFunction(function)))
                }
            }
        }
        Expr::ScalarFunction(mut function) => {
            let scale = match (function.func.name(), function.args.as_slice()) {
                ("ceil" | "floor" | "trunc", [_]) => Some(0),
                ("trunc", [_, Expr::Literal(ScalarValue::Int64(Some(scale @ 0..=38)), _)]) => Some(*scale as i8),
                _ => None,
            };
            let argument = function.args.first().map(|argument| argument.get_type(schema));
            match (scale, argument) {
                (Some(scale), Some(Ok(DataType::Decimal128(precision, from)))) if from > scale => {
                    // A digit more, for what rounds up to the next power of ten.
                    let wide = DataType::Decimal128((precision + 1).min(38), from);
                    let widened = Expr::Cast(Cast::new(Box::new(function.args[0].clone()), wide));
                    function.args[0] = widened;
                    let precision = (precision + 1 - (from - scale) as u8).clamp(1, 38);
                    let expr = Expr::ScalarFunction(function);
                    Ok(Transformed::yes(Expr::Cast(Cast::new(Box::new(expr), DataType::Decimal128(precision, scale)))))
                }
                _ => Ok(Transformed::no(Expr::ScalarFunction(function))),
            }
        }
        Expr::Case(mut case) => {
            let mut changed = false;
            match &case.expr {
                Some(value) if is_typed(value, schema) => {
                    for (when, _) in &mut case.when_then_expr {
                        if let Some(text) = untyped(when)
                            && let Some(literal) = literal_like(text, value, schema, settings, false)?
                        {
                            **when = literal;
                            changed = true;
                        }
                    }
                    if let Some(value) = &mut case.expr {
                        let conditions = case.when_then_expr.iter_mut().map(|(when, _)| when.as_mut());
                        changed |= as_numerics(std::iter::once(value.as_mut()).chain(conditions), schema);
                    }
                }
                Some(_) => {}
                None => check_conditions(&case, schema)?,
            }
            let results = case.when_then_expr.iter_mut().map(|(_, then)| then.as_mut());
            changed |= as_result_type(results.chain(case.else_expr.as_deref_mut()).collect(), schema);
            Ok(Transformed::new_transformed(Expr::Case(case), changed))
        }
        other => Ok(Transformed::no(other)),
    }
}

/// What is compared with a query's rows as they are, and exact numbers as floats where there are floats. True if anything changes.
fn compare_with_rows(
    needle: &mut Expr,
    op: Operator,
    subquery: &mut Subquery,
    schema: &DFSchema,
    settings: &TextSettings,
) -> Result<bool> {
    let rows = subquery.subquery.schema();
    let column = Expr::Column(Column::from(rows.qualified_field(0)));
    if let Some(text) = untyped(needle) {
        let Some(literal) = literal_like(text, &column, rows, settings, false)? else { return Ok(false) };
        *needle = literal;
        return Ok(true);
    }
    unlike::check(Side::of(needle, schema), op, Side::of_field(rows.field(0)))?;
    let mut theirs = column.clone();
    if !as_common_type_of_sides(needle, schema, &mut theirs, rows) {
        return Ok(false);
    }
    if theirs != column {
        let plan = subquery.subquery.as_ref().clone();
        subquery.subquery = Arc::new(LogicalPlanBuilder::from(plan).project([theirs])?.build()?);
    }
    Ok(true)
}

/// 42883 for items of a list, or ends of a range, that `expr` does not compare with.
fn check_alike<'a>(
    expr: &Expr,
    op: Operator,
    others: impl IntoIterator<Item = &'a Expr>,
    schema: &DFSchema,
) -> Result<()> {
    others.into_iter().try_for_each(|other| unlike::check(Side::of(expr, schema), op, Side::of(other, schema)))
}

/// What a unit of `date_trunc` is called that DataFusion does not know under this name.
fn trunc_unit(unit: &str) -> Option<&'static str> {
    Some(match unit.to_ascii_lowercase().as_str() {
        "microseconds" | "usec" | "usecs" | "us" | "microsec" | "microsecs" => "microsecond",
        "milliseconds" | "msec" | "msecs" | "ms" | "millisecon" => "millisecond",
        "seconds" | "sec" | "secs" | "s" => "second",
        "minutes" | "min" | "mins" | "m" => "minute",
        "hours" | "hr" | "hrs" | "h" => "hour",
        "days" | "d" => "day",
        "weeks" | "w" => "week",
        "months" | "mon" | "mons" => "month",
        "qtr" => "quarter",
        "years" | "yr" | "yrs" | "y" => "year",
        "decade" | "decades" | "dec" | "decs" => "decade",
        "century" | "centuries" | "cent" | "c" => "century",
        "millennium" | "millennia" | "mil" | "mils" => "millennium",
        _ => return None,
    })
}

/// 42804 for a condition that is a number.
fn check_conditions(case: &Case, schema: &DFSchema) -> Result<()> {
    for (condition, _) in &case.when_then_expr {
        let Ok(data_type) = condition.get_type(schema) else { continue };
        if data_type.is_numeric() {
            let name = crate::errors::type_name(&data_type.to_string());
            return Err(carry(Error::new(
                SqlState::DATATYPE_MISMATCH,
                format!("argument of CASE/WHEN must be type boolean, not type {name}"),
            )));
        }
    }
    Ok(())
}

/// The other side of a comparison with a constant number as it is, and the constant as a decimal of its own digits, where that side was
/// made a number with a scale for the comparison alone: scans and indexes know decimals.
fn as_decimals(left: &mut Expr, right: &mut Expr, schema: &DFSchema) -> bool {
    let narrow = |side: &mut Expr, constant: &mut Expr| {
        let (Expr::Cast(Cast { expr, field }), Expr::Literal(value, _)) = (&*side, &*constant) else { return false };
        let is_decimal =
            expr.get_type(schema).is_ok_and(|of| matches!(of, DataType::Decimal128(..)) || of.is_integer());
        let number = numerics::number_of_scalar(value).filter(|_| numerics::is_numeric(&value.data_type()));
        let (true, Some(number)) = (is_decimal && numerics::is_numeric(field.data_type()), number) else {
            return false;
        };
        let decimal = numerics::decimal_of(number);
        *side = expr.as_ref().clone();
        *constant = Expr::Literal(decimal, None);
        true
    };
    narrow(left, right) || narrow(right, left)
}

/// Columns that are numbers of different kinds in the parts of a union, and keys of joins of both, as numbers of one kind: floats where
/// one is. So with instants and what a clock shows.
fn unite_numbers(plan: LogicalPlan) -> Result<LogicalPlan> {
    let mut found = false;
    plan.rewrite_up_with_subqueries(&mut |node| {
        let node = match node {
            LogicalPlan::Union(union) => united(union)?,
            LogicalPlan::Join(mut join) => {
                let (lefts, rights) = (join.left.schema().clone(), join.right.schema().clone());
                let mut changed = false;
                for (left, right) in &mut join.on {
                    changed |= as_common_type_of_sides(left, &lefts, right, &rights);
                }
                Transformed::new_transformed(LogicalPlan::Join(join), changed)
            }
            node => Transformed::no(node),
        };
        found |= node.transformed;
        // What is above has other types, too.
        if found { node.data.recompute_schema().map(Transformed::yes) } else { Ok(node) }
    })
    .data()
}

fn united(mut union: Union) -> Result<Transformed<LogicalPlan>> {
    let of = |column: usize| union.inputs.iter().map(move |input| input.schema().field(column).data_type());
    let common = |column: usize| {
        let exact = |of: &DataType| matches!(of, DataType::Decimal128(..)) || numerics::is_numeric(of);
        if let Some(float) = of(column).filter(|of| of.is_floating()).max_by_key(|of| **of == DataType::Float64) {
            return of(column).any(exact).then(|| float.clone());
        }
        let is_unlike = of(column).any(numerics::is_numeric) && !of(column).all(numerics::is_numeric);
        let numbers = of(column).all(|of| numerics::is_exact(of) || matches!(of, DataType::Null));
        if is_unlike && numbers {
            return Some(numerics::NUMERIC);
        }
        // Instants and what a clock shows are instants together.
        let is_mixed_time = of(column).any(|of| matches!(of, DataType::Timestamp(_, Some(_))))
            && of(column).any(|of| matches!(of, DataType::Timestamp(_, None) | DataType::Date32))
            && of(column).all(|of| is_time(of) || *of == DataType::Null);
        is_mixed_time.then(|| INSTANT.clone())
    };
    let mixed: BTreeMap<usize, DataType> =
        (0..union.schema.fields().len()).filter_map(|column| Some((column, common(column)?))).collect();
    if mixed.is_empty() {
        return Ok(Transformed::no(LogicalPlan::Union(union)));
    }
    for input in &mut union.inputs {
        let output = |(column, (qualifier, field)): (usize, (Option<&TableReference>, &FieldRef))| {
            let value = Expr::Column(Column::from((qualifier, field)));
            match mixed.get(&column) {
                Some(target) if target != field.data_type() => Expr::Cast(Cast::new(Box::new(value), target.clone()))
                    .alias_qualified(qualifier.cloned(), field.name()),
                _ => value,
            }
        };
        let outputs: Vec<Expr> = input.schema().iter().enumerate().map(output).collect();
        *input = Arc::new(LogicalPlan::Projection(Projection::try_new(outputs, input.clone())?));
    }
    Ok(Transformed::yes(LogicalPlan::Union(Union::try_new_with_loose_types(union.inputs)?)))
}

fn any_alias<'a>(mut expressions: impl Iterator<Item = &'a Expr>, sorts: &[Sort]) -> bool {
    let alias = |expr: &Expr| matches!(expr, Expr::Alias(_));
    expressions.any(alias) || sorts.iter().any(|sort| alias(&sort.expr))
}

/// Arguments as they are to be: without names, and as numeric where they are `exact`.
fn given(args: Vec<Expr>, exact: bool) -> Vec<Expr> {
    args.into_iter().map(unnamed).map(|arg| if exact { exact_bigint(arg) } else { arg }).collect()
}

fn unnamed_sorts(sorts: Vec<Sort>) -> Vec<Sort> {
    sorts.into_iter().map(|sort| Sort { expr: unnamed(sort.expr), ..sort }).collect()
}

fn sums_bigint(args: &[Expr], schema: &DFSchema) -> bool {
    matches!(args, [arg] if matches!(arg.get_type(schema), Ok(DataType::Int64)))
}

fn exact_bigint(expr: Expr) -> Expr {
    Expr::Cast(Cast::new(Box::new(expr), DataType::Decimal128(20, 0)))
}

/// A literal's text read as the type of the expression beside it; `None` where it stays text.
pub fn literal_like(
    text: &str,
    beside: &Expr,
    schema: &DFSchema,
    settings: &TextSettings,
    arithmetic: bool,
) -> Result<Option<Expr>> {
    // What cannot be typed here is left for type coercion to complain about.
    let Ok(data_type) = beside.get_type(schema) else { return Ok(None) };
    let read = match data_type {
        DataType::Decimal128(..) | DataType::Decimal256(..) => return Ok(Some(decimal_literal(text)?)),
        _ if numerics::is_numeric(&data_type) => true,
        _ if data_type.is_numeric() => true,
        DataType::Boolean | DataType::Date32 | DataType::Timestamp(..) | DataType::Interval(_) => !arithmetic,
        DataType::BinaryView | DataType::Binary => !arithmetic,
        _ if is_string(&data_type) => {
            // Text in one form for each value: what it is compared with must be in that form, too.
            let declared = beside.to_field(schema).ok().and_then(|(_, field)| declared_type(&field));
            return match declared {
                Some(of @ SqlType::Uuid) => Ok(Some(read_literal(text, of, &data_type, settings)?)),
                Some(of @ SqlType::Jsonb) if !arithmetic => Ok(Some(read_literal(text, of, &data_type, settings)?)),
                // Held without its trailing blanks.
                Some(SqlType::Char { .. }) if text.ends_with(' ') && !arithmetic => {
                    Ok(Some(Expr::Literal(ScalarValue::from(text.trim_end_matches(' ')), None)))
                }
                _ => Ok(None),
            };
        }
        _ => false,
    };
    if !read {
        return Ok(None);
    }
    let Some(sql_type) = type_of(&Field::new("", data_type.clone(), true)) else { return Ok(None) };
    Ok(Some(read_literal(text, sql_type, &data_type, settings)?))
}

fn read_literal(text: &str, sql_type: SqlType, target: &DataType, settings: &TextSettings) -> Result<Expr> {
    let mut reader = TextReader::new(sql_type, settings);
    reader.append(text).map_err(carry)?;
    let scalar = ScalarValue::try_from_array(&reader.finish(), 0)?;
    let scalar = if scalar.data_type() == *target { scalar } else { scalar.cast_to(target)? };
    Ok(Expr::Literal(scalar, None))
}

/// A number of just the digits that were written, as for a numeric literal without quotes.
pub fn decimal_literal(text: &str) -> Result<Expr> {
    let number = tidepool_database::text::numeric::parse(text).map_err(carry)?;
    Ok(Expr::Literal(numerics::decimal_of(number), None))
}

fn type_cast(cast: Cast, schema: &DFSchema, settings: &TextSettings) -> Result<Transformed<Expr>> {
    let Cast { expr, field } = cast;
    let target = field.data_type().clone();
    if let Some(text) = untyped(&expr) {
        match type_of(&field) {
            Some(SqlType::Varchar { length_max: Some(length) } | SqlType::Char { length }) => {
                let cut: String = text.chars().take(length as usize).collect();
                let cut = match declared_type(&field) {
                    Some(SqlType::Char { .. }) => cut.trim_end_matches(' ').to_owned(),
                    _ => cut,
                };
                return Ok(Transformed::yes(Expr::Literal(ScalarValue::Utf8View(Some(cut)), Some(metadata(&field)))));
            }
            Some(SqlType::Text | SqlType::Varchar { length_max: None }) if is_string(&target) => {
                // `text '1'` is text from here on, and no longer to be read as what it is compared with.
                let literal = ScalarValue::Utf8View(Some(text.to_owned()));
                return Ok(Transformed::yes(Expr::Literal(
                    literal,
                    Some(metadata(&crate::types::field("", SqlType::Text))),
                )));
            }
            Some(sql_type) if !matches!(target, DataType::Time32(_) | DataType::Time64(_) | DataType::Duration(_)) => {
                let literal = read_literal(text, sql_type, &target, settings)?;
                return Ok(Transformed::yes(match literal {
                    Expr::Literal(scalar, _) if declared_type(&field).is_some() => {
                        Expr::Literal(scalar, Some(metadata(&field)))
                    }
                    literal => literal,
                }));
            }
            _ => return Ok(Transformed::no(Expr::Cast(Cast { expr, field }))),
        }
    }
    if let Expr::Literal(literal, None) = expr.as_ref()
        && let Some(folded) = fold_number(literal, &target)
    {
        return Ok(Transformed::yes(Expr::Literal(folded, None)));
    }
    let declared = declared_type(&field);
    if let Some(declared @ (SqlType::Varchar { length_max: Some(_) } | SqlType::Char { .. })) = declared {
        // An explicit cast cuts; only an assignment complains.
        let plain = Expr::Cast(Cast::new(expr, target));
        return Ok(Transformed::yes(ScalarUDF::new_from_impl(Cut::new(declared)).call(vec![plain])));
    }
    if let Some(declared) = declared.filter(|declared| rounding::has_precision(*declared)) {
        return Ok(Transformed::yes(rounding::rounded(Expr::Cast(Cast::new(expr, target)), declared)));
    }
    if let Some(declared @ (SqlType::Uuid | SqlType::Json | SqlType::Jsonb)) = declared
        && expr.get_type(schema).is_ok_and(|data_type| is_string(&data_type))
    {
        return Ok(Transformed::yes(ScalarUDF::new_from_impl(ReadText::new(declared, target)).call(vec![*expr])));
    }
    Ok(Transformed::no(Expr::Cast(Cast { expr, field })))
}

/// A number as a constant of another type that holds it.
fn fold_number(literal: &ScalarValue, target: &DataType) -> Option<ScalarValue> {
    if numerics::is_numeric(target) {
        return numerics::number_of_scalar(literal).map(numerics::scalar_of);
    }
    let value = match literal {
        ScalarValue::Int32(Some(value)) => i64::from(*value),
        ScalarValue::Int64(Some(value)) => *value,
        _ => return None,
    };
    Some(match target {
        DataType::Int16 => ScalarValue::Int16(Some(i16::try_from(value).ok()?)),
        DataType::Int32 => ScalarValue::Int32(Some(i32::try_from(value).ok()?)),
        DataType::Int64 => ScalarValue::Int64(Some(value)),
        _ => return None,
    })
}
