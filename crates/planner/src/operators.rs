//! Operators with PostgreSQL's meaning for the types they stand between.
//!
//! Asked twice: while a query is planned, so that what is built upon an operator sees its type; and by `casts::Literals`
//! once parameters have values, for operators whose operands had no type before.

use crate::arithmetic::{self, Kind};
use crate::numerics;
use arrow::datatypes::{DataType, Field, IntervalMonthDayNano, IntervalUnit, TimeUnit};
use datafusion::common::tree_node::TreeNode;
use datafusion::common::{Column, DFSchema, DataFusionError, Result, ScalarValue, TableReference};
use datafusion::logical_expr::expr::{Alias, Sort};
use datafusion::logical_expr::planner::{
    ExprPlanner, PlannerResult, RawAggregateExpr, RawBinaryExpr, RawFieldAccessExpr, RawWindowExpr,
};
use datafusion::logical_expr::{
    BinaryExpr, Cast, Expr, ExprSchemable, GetFieldAccess, Operator, binary_expr, lit, when,
};
use datafusion::sql::sqlparser::ast::BinaryOperator;
use tidepool_base::{Error, SqlState};
use tidepool_database::text::VECTOR_ITEM;

pub const TIMESTAMP: DataType = DataType::Timestamp(TimeUnit::Microsecond, None);
const INTERVAL: DataType = DataType::Interval(IntervalUnit::MonthDayNano);

/// What an aggregate is given, called by what it is: DataFusion names leave casts out, so `avg(b)` and `avg(b::bigint)` would be
/// one column. `casts::Literals` takes the names away again, keeping the aggregate's own.
fn name_casts(expr: Expr) -> Result<Expr> {
    let casts = expr.exists(|part| Ok(matches!(part, Expr::Cast(_) | Expr::TryCast(_))))?;
    if !casts || expr.column_refs().is_empty() {
        return Ok(expr);
    }
    let name = expr.to_string();
    Ok(expr.alias(name))
}

/// What an aggregate is given, computed of the rows that its filter lets pass alone: of others it may fail.
fn filtered(arg: Expr, filter: &Expr) -> Result<Expr> {
    let may_fail = arg.exists(|part| {
        Ok(match part {
            Expr::BinaryExpr(BinaryExpr { op, .. }) => matches!(op, Operator::Divide | Operator::Modulo),
            Expr::Cast(_) | Expr::ScalarFunction(_) => true,
            _ => false,
        })
    })?;
    if !may_fail || !arg.any_column_refs() || filter.is_volatile() || crate::optimizer::has_query(filter) {
        return Ok(arg);
    }
    when(filter.clone(), arg).end()
}

fn name_sorts(sorts: Vec<Sort>) -> Result<Vec<Sort>> {
    sorts.into_iter().map(|sort| Ok(Sort { expr: name_casts(sort.expr)?, ..sort })).collect()
}

/// Undoes [`name_casts`].
pub fn unnamed(expr: Expr) -> Expr {
    match expr {
        Expr::Alias(Alias { expr, .. }) => *expr,
        expr => expr,
    }
}

/// The operands, unless the operator is one of those that PostgreSQL reads otherwise than DataFusion.
pub type Resolved = std::result::Result<Expr, (Expr, Expr)>;

#[derive(Debug)]
pub struct Operators;

impl ExprPlanner for Operators {
    fn plan_binary_op(&self, expr: RawBinaryExpr, schema: &DFSchema) -> Result<PlannerResult<RawBinaryExpr>> {
        let RawBinaryExpr { op, left, right } = expr;
        let operator = match &op {
            BinaryOperator::Plus => Operator::Plus,
            BinaryOperator::Minus => Operator::Minus,
            BinaryOperator::Multiply => Operator::Multiply,
            BinaryOperator::Divide => Operator::Divide,
            BinaryOperator::Modulo => Operator::Modulo,
            BinaryOperator::Eq => Operator::Eq,
            BinaryOperator::NotEq => Operator::NotEq,
            BinaryOperator::Lt => Operator::Lt,
            BinaryOperator::LtEq => Operator::LtEq,
            BinaryOperator::Gt => Operator::Gt,
            BinaryOperator::GtEq => Operator::GtEq,
            BinaryOperator::PGExp => {
                return Ok(PlannerResult::Planned(crate::coerced::powers().call(vec![left, right])));
            }
            BinaryOperator::StringConcat => {
                let text = |side: Expr| match side.get_type(schema) {
                    Ok(of) if numerics::is_numeric(&of) => cast(side, DataType::Utf8View),
                    _ => side,
                };
                let (left, right) = (text(left), text(right));
                return Ok(PlannerResult::Original(RawBinaryExpr { op, left, right }));
            }
            BinaryOperator::PGOverlap => {
                return Ok(PlannerResult::Planned(datafusion::functions_nested::expr_fn::array_has_any(left, right)));
            }
            BinaryOperator::Arrow => return json("json_get", op, left, right),
            BinaryOperator::LongArrow => return json("json_get_text", op, left, right),
            BinaryOperator::HashArrow => return json("json_get_path", op, left, right),
            BinaryOperator::HashLongArrow => return json("json_get_path_text", op, left, right),
            _ => return Ok(PlannerResult::Original(RawBinaryExpr { op, left, right })),
        };
        Ok(match resolve(left, operator, right, schema)? {
            Ok(expr) => PlannerResult::Planned(expr),
            Err((left, right)) => PlannerResult::Original(RawBinaryExpr { op, left, right }),
        })
    }

    fn plan_aggregate(&self, mut expr: RawAggregateExpr) -> Result<PlannerResult<RawAggregateExpr>> {
        // Grouping keys are what they are: `grouping` is looked up among them.
        if expr.func.name() != "grouping" {
            if let Some(filter) = &expr.filter {
                expr.args = expr.args.into_iter().map(|arg| filtered(arg, filter)).collect::<Result<_>>()?;
            }
            expr.args = expr.args.into_iter().map(name_casts).collect::<Result<_>>()?;
            expr.filter = expr.filter.map(|filter| name_casts(*filter).map(Box::new)).transpose()?;
            expr.order_by = name_sorts(expr.order_by)?;
        }
        Ok(PlannerResult::Original(expr))
    }

    fn plan_window(&self, mut expr: RawWindowExpr) -> Result<PlannerResult<RawWindowExpr>> {
        expr.args = expr.args.into_iter().map(name_casts).collect::<Result<_>>()?;
        expr.filter = expr.filter.map(|filter| name_casts(*filter).map(Box::new)).transpose()?;
        expr.partition_by = expr.partition_by.into_iter().map(name_casts).collect::<Result<_>>()?;
        expr.order_by = name_sorts(expr.order_by)?;
        Ok(PlannerResult::Original(expr))
    }

    /// Items of `int2vector` and `oidvector` are counted from 0, and only rows have fields.
    fn plan_field_access(
        &self,
        mut expr: RawFieldAccessExpr,
        schema: &DFSchema,
    ) -> Result<PlannerResult<RawFieldAccessExpr>> {
        let data_type = expr.expr.get_type(schema)?;
        match &mut expr.field_access {
            GetFieldAccess::ListIndex { key } => {
                if matches!(&data_type, DataType::List(item) if item.name() == VECTOR_ITEM) {
                    **key = binary_expr(std::mem::take(&mut **key), Operator::Plus, lit(1));
                }
                // DataFusion counts negative ones from the end.
                **key = from_first(std::mem::take(&mut **key), None)?;
            }
            GetFieldAccess::ListRange { start, .. } => {
                **start = from_first(std::mem::take(&mut **start), Some(lit(1i64)))?;
            }
            GetFieldAccess::NamedStructField { name } if !matches!(data_type, DataType::Struct(_) | DataType::Null) => {
                let field = name.try_as_str().flatten().unwrap_or_default();
                let of = crate::types::type_of(&Field::new("", data_type, true));
                let of = of.map_or_else(|| "unknown".to_owned(), |sql_type| sql_type.to_string());
                let message = format!("column notation .{field} applied to type {of}, which is not a composite type");
                return Err(DataFusionError::External(Box::new(Error::new(SqlState::WRONG_OBJECT_TYPE, message))));
            }
            _ => {}
        }
        Ok(PlannerResult::Original(expr))
    }

    /// `t.id` where no relation nearby is called `t`, but a column is: that has no fields. See [`crate::correlated`].
    fn plan_compound_identifier(
        &self,
        field: &Field,
        _qualifier: Option<&TableReference>,
        nested_names: &[String],
    ) -> Result<PlannerResult<Vec<Expr>>> {
        let name = nested_names.last().map(String::as_str).unwrap_or_default();
        let column = Column::new(Some(TableReference::bare(field.name().as_str())), name);
        Ok(PlannerResult::Planned(Expr::Column(column)))
    }
}

fn json(function: &str, op: BinaryOperator, left: Expr, right: Expr) -> Result<PlannerResult<RawBinaryExpr>> {
    Ok(match crate::catalog::function(function) {
        Some(function) => PlannerResult::Planned(function.call(vec![left, right])),
        None => PlannerResult::Original(RawBinaryExpr { op, left, right }),
    })
}

/// A literal whose type is open.
fn is_untyped(expr: &Expr) -> bool {
    matches!(expr, Expr::Literal(ScalarValue::Utf8(Some(_)) | ScalarValue::Utf8View(Some(_)), None))
}

fn cast(expr: Expr, data_type: DataType) -> Expr {
    Expr::Cast(Cast::new(Box::new(expr), data_type))
}

/// A literal beside an arithmetic operator, as the type that the other side calls for.
fn read_beside(literal: Expr, other: &DataType, op: Operator) -> Result<Expr> {
    let target = match other {
        DataType::Timestamp(..) | DataType::Date32 if op == Operator::Plus => INTERVAL,
        DataType::Interval(_) if matches!(op, Operator::Multiply | Operator::Divide) => DataType::Float64,
        DataType::Decimal128(..) => {
            return match &literal {
                Expr::Literal(value, _) => match value.try_as_str() {
                    Some(Some(text)) => crate::casts::decimal_literal(text),
                    _ => Ok(cast(literal, other.clone())),
                },
                _ => Ok(cast(literal, other.clone())),
            };
        }
        other => other.clone(),
    };
    Ok(cast(literal, target))
}

/// Whether an operand is made of numbers by arithmetic only. A type is found out by walking all that is below, which in a
/// long chain adds up; this looks at its leaves.
fn is_number(mut expr: &Expr, decimals: bool, schema: &DFSchema) -> bool {
    let number = |data_type: &DataType| match data_type {
        DataType::Decimal128(..) => decimals,
        DataType::Float32 => false,
        data_type => data_type.is_numeric(),
    };
    let leaf = |expr: &Expr| match expr {
        Expr::Literal(value, _) => number(&value.data_type()),
        Expr::Cast(cast) => number(cast.field.data_type()),
        Expr::Column(_) => expr.get_type(schema).is_ok_and(|data_type| number(&data_type)),
        _ => false,
    };
    while let Expr::BinaryExpr(BinaryExpr { left, op, right }) = expr
        && op.is_numerical_operators()
    {
        if !leaf(right) {
            return false;
        }
        expr = left;
    }
    leaf(expr)
}

fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

/// PostgreSQL's oid of `pg_lsn`.
pub const LSN: u32 = 3220;

/// Operators beside positions in the log, which are held as their texts: these are in no order. What compares without an operator, [`crate::intervals`]
/// sees to.
fn of_positions(left: Expr, op: Operator, right: Expr, schema: &DFSchema) -> Result<Resolved> {
    let is_lsn = |side: &Expr| match side {
        Expr::Column(_) | Expr::ScalarFunction(_) | Expr::Alias(_) | Expr::AggregateFunction(_) | Expr::Case(_) => {
            side.to_field(schema).is_ok_and(|(_, field)| crate::types::marked_oid(&field) == Some(LSN))
        }
        _ => false,
    };
    let (of_left, of_right) = (is_lsn(&left), is_lsn(&right));
    let name = match op {
        _ if !of_left && !of_right => return Ok(Err((left, right))),
        // These know equal texts, and NULL.
        Operator::IsDistinctFrom | Operator::IsNotDistinctFrom => return Ok(Err((left, right))),
        op if crate::casts::is_comparison(op) => "pg_lsn_cmp",
        Operator::Minus if of_left && (of_right || is_untyped(&right)) => "pg_wal_lsn_diff",
        Operator::Minus if of_left => "pg_lsn_mii",
        Operator::Plus if of_left => "pg_lsn_pli",
        _ => return Ok(Err((left, right))),
    };
    let Some(function) = crate::catalog::function(name) else { return Ok(Err((left, right))) };
    let called = function.call(vec![left, right]);
    Ok(Ok(match name {
        "pg_lsn_cmp" => binary_expr(called, op, lit(0i32)),
        _ => called,
    }))
}

pub fn resolve(left: Expr, op: Operator, right: Expr, schema: &DFSchema) -> Result<Resolved> {
    use DataType::{Date32, Decimal128, Float32, Float64, Interval, Timestamp};
    let decimals = !matches!(op, Operator::Multiply | Operator::Divide);
    if is_number(&right, decimals, schema) && is_number(&left, decimals, schema) {
        return Ok(Err((left, right)));
    }
    let types = (left.get_type(schema), right.get_type(schema));
    // A parameter without a type yet; what is wrong otherwise, others will say.
    let (Ok(mut left_type), Ok(mut right_type)) = types else { return Ok(Err((left, right))) };
    let (mut left, mut right) = (left, right);
    let reads = |data_type: &DataType| {
        data_type.is_numeric()
            || numerics::is_numeric(data_type)
            || matches!(data_type, Date32 | Timestamp(..) | Interval(_))
    };
    if op.is_numerical_operators() {
        if is_untyped(&right) && reads(&left_type) {
            right = read_beside(right, &left_type, op)?;
            right_type = right.get_type(schema)?;
        } else if is_untyped(&left) && reads(&right_type) {
            left = read_beside(left, &right_type, op)?;
            left_type = left.get_type(schema)?;
        }
    }
    if crate::casts::is_comparison(op) {
        // DataFusion knows no type for these and text.
        let reads = |data_type: &DataType| {
            matches!(data_type, Interval(_) | DataType::Boolean | DataType::Binary | DataType::BinaryView)
        };
        if is_untyped(&right) && reads(&left_type) {
            right = cast(right, left_type.clone());
            right_type = left_type.clone();
        } else if is_untyped(&left) && reads(&right_type) {
            left = cast(left, right_type.clone());
            left_type = right_type.clone();
        }
    }
    if is_text(&left_type) || is_text(&right_type) {
        match of_positions(left, op, right, schema)? {
            Ok(expr) => return Ok(Ok(expr)),
            Err(sides) => (left, right) = sides,
        }
    }
    let number = |data_type: &DataType| data_type.is_numeric() || numerics::is_numeric(data_type);
    let decimal = |data_type: &DataType| matches!(data_type, Decimal128(..));
    let exact = |data_type: &DataType| arithmetic::decimal_type(data_type).is_some();
    let comparison = crate::casts::is_comparison(op);
    if numerics::is_numeric(&left_type) || numerics::is_numeric(&right_type) {
        let float = |data_type: &DataType| data_type.is_floating();
        if float(&left_type) || float(&right_type) {
            return Ok(Ok(binary_expr(cast(left, Float64), op, cast(right, Float64))));
        }
        if numerics::is_exact(&left_type) && numerics::is_exact(&right_type) {
            let is_same = left_type == right_type;
            return Ok(match numerics::Kind::of(op) {
                Some(kind) => {
                    let number = |side: Expr, of: &DataType| match numerics::is_numeric(of) {
                        true => side,
                        false => numerics::as_numeric(side),
                    };
                    Ok(numerics::call(kind, vec![number(left, &left_type), number(right, &right_type)]))
                }
                None if comparison && !is_same => {
                    Ok(binary_expr(numerics::as_numeric(left), op, numerics::as_numeric(right)))
                }
                None => Err((left, right)),
            });
        }
    }
    Ok(Ok(match (&left_type, op, &right_type) {
        (Date32, Operator::Plus | Operator::Minus, Interval(_)) => binary_expr(cast(left, TIMESTAMP), op, right),
        (Interval(_), Operator::Plus, Date32) => binary_expr(cast(right, TIMESTAMP), op, left),
        (Interval(_), Operator::Plus, Timestamp(..)) => binary_expr(right, op, left),
        (Date32, Operator::Minus, Date32) => cast(binary_expr(left, op, right), DataType::Int32),
        (Timestamp(..) | Date32, Operator::Minus, Timestamp(..) | Date32) => {
            let zone =
                [&left_type, &right_type].into_iter().find(|side| matches!(side, Timestamp(_, Some(_)))).cloned();
            let common = zone.unwrap_or(TIMESTAMP);
            let side = |side: Expr, data_type: &DataType| {
                if *data_type == common { side } else { cast(side, common.clone()) }
            };
            let sides = vec![side(left, &left_type), side(right, &right_type)];
            arithmetic::call(Kind::SubtractTimestamps, sides)
        }
        // What is no `real` makes both of them `double precision`.
        (Float32, _, of) | (of, _, Float32) if op.is_numerical_operators() && exact(of) => {
            binary_expr(cast(left, Float64), op, cast(right, Float64))
        }
        (Interval(_), Operator::Multiply, factor) if number(factor) => {
            arithmetic::call(Kind::MultiplyInterval, vec![left, right])
        }
        (factor, Operator::Multiply, Interval(_)) if number(factor) => {
            arithmetic::call(Kind::MultiplyInterval, vec![right, left])
        }
        (Interval(_), Operator::Divide, factor) if number(factor) => {
            arithmetic::call(Kind::DivideInterval, vec![left, right])
        }
        (Interval(_), _, Interval(_)) if comparison => {
            let length = |side: Expr| arithmetic::call(Kind::IntervalLength, vec![side]);
            binary_expr(length(left), op, length(right))
        }
        (dividend, Operator::Divide, divisor)
            if (decimal(dividend) || decimal(divisor)) && exact(dividend) && exact(divisor) =>
        {
            match (constant(&left), constant(&right)) {
                (Some(dividend), Some(divisor)) => {
                    let (value, scale) = arithmetic::constant_quotient(dividend, divisor)?;
                    Expr::Literal(ScalarValue::Decimal128(Some(value), 38, scale), None)
                }
                _ => arithmetic::call(Kind::DivideDecimals, vec![left, right]),
            }
        }
        (Decimal128(_, left_scale), Operator::Multiply, Decimal128(_, right_scale))
            if arithmetic::is_large_product(*left_scale, *right_scale) =>
        {
            arithmetic::call(Kind::MultiplyDecimals, vec![left, right])
        }
        _ => return Ok(Err((left, right))),
    }))
}

/// A subscript, or something else for one before the first.
fn from_first(subscript: Expr, before: Option<Expr>) -> Result<Expr> {
    match &subscript {
        Expr::Literal(ScalarValue::Int64(Some(1..)) | ScalarValue::Int32(Some(1..)), _) => Ok(subscript),
        _ => {
            let within = binary_expr(subscript.clone(), Operator::Gt, lit(0));
            let mut choice = when(within, cast(subscript, DataType::Int64));
            match before {
                Some(before) => choice.otherwise(before),
                None => choice.end(),
            }
        }
    }
}

/// A number that is known as it was written: (unscaled value, scale).
fn constant(expr: &Expr) -> Option<(i128, i8)> {
    match expr {
        Expr::Literal(ScalarValue::Decimal128(Some(value), _, scale @ 0..), _) => Some((*value, *scale)),
        Expr::Literal(ScalarValue::Int32(Some(value)), _) => Some((i128::from(*value), 0)),
        Expr::Literal(ScalarValue::Int64(Some(value)), _) => Some((i128::from(*value), 0)),
        Expr::Cast(Cast { expr, field }) => {
            let exact = field.data_type().is_integer();
            constant(expr).filter(|(_, scale)| exact && (*scale == 0 || !field.data_type().is_integer()))
        }
        _ => None,
    }
}

/// A comparison of a date with a constant point in time, as one with a date, which a scan can skip by. `None` where no
/// date says the same.
pub fn compare_date(op: Operator, micros: i64) -> Option<(Operator, i32)> {
    const DAY_US: i64 = 86_400_000_000;
    let day = i32::try_from(micros.div_euclid(DAY_US)).ok()?;
    if micros.rem_euclid(DAY_US) == 0 {
        return Some((op, day));
    }
    // Dates are midnights: none lies between the day's own and the moment.
    match op {
        Operator::Lt | Operator::LtEq => Some((Operator::LtEq, day)),
        Operator::Gt | Operator::GtEq => Some((Operator::Gt, day)),
        _ => None,
    }
}

/// The date within a comparison's side: an expression of type date, or a date made into a timestamp for comparing it.
pub fn date_within(expr: &Expr, schema: &DFSchema) -> Option<Expr> {
    if let Expr::Cast(Cast { expr: inner, field }) = expr
        && *field.data_type() == TIMESTAMP
        && matches!(inner.get_type(schema), Ok(DataType::Date32))
    {
        return Some(inner.as_ref().clone());
    }
    matches!(expr.get_type(schema), Ok(DataType::Date32)).then(|| expr.clone())
}

/// A constant timestamp moved by a constant interval.
pub fn moved(micros: i64, op: Operator, interval: IntervalMonthDayNano) -> Result<i64> {
    let moved = if op == Operator::Minus { negated(&interval) } else { Some(interval) };
    let overflow = || crate::errors::carry(Error::new(SqlState::DATETIME_FIELD_OVERFLOW, "interval out of range"));
    crate::catalog::add_interval(micros, &moved.ok_or_else(overflow)?)
}

fn negated(interval: &IntervalMonthDayNano) -> Option<IntervalMonthDayNano> {
    Some(IntervalMonthDayNano::new(
        interval.months.checked_neg()?,
        interval.days.checked_neg()?,
        interval.nanoseconds.checked_neg()?,
    ))
}
