//! Number literals with PostgreSQL's types: `integer` where they fit it, else `bigint`, else `numeric`.
//!
//! DataFusion reads every whole number as `bigint`. One that should be `integer` is put into a cast, which
//! `casts::Literals` folds again. Where DataFusion insists on seeing the number itself (limits, ordinals, frame bounds,
//! arguments that functions look at while they are planned), it is left as it is; such a place is marked by the number's
//! flag, which PostgreSQL's dialect has no other use for.

use crate::walk::walk_mut;
use datafusion::sql::sqlparser::ast::{
    AccessExpr, CastKind, DataType, Distinct, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments,
    GroupByExpr, LimitClause, NamedWindowDefinition, NamedWindowExpr, OrderByKind, Query, Select, SetExpr, Subscript,
    TableFactor, UnaryOperator, Value, ValueWithSpan, VisitorMut, WindowFrame, WindowFrameBound, WindowSpec,
    WindowType,
};
use std::ops::ControlFlow;

/// Types the literals of a query. `assigned`: the rows of its `VALUES` get their types from the columns they fill.
pub fn type_numbers(query: &mut Query, assigned: bool) {
    if assigned && let SetExpr::Values(values) = query.body.as_mut() {
        values.rows.iter_mut().flat_map(|row| &mut row.content).for_each(keep);
    }
    let _ = walk_mut(query, &mut Types);
}

/// Leaves a number, if it is one, as it is.
fn keep(expr: &mut Expr) {
    match expr {
        Expr::Value(ValueWithSpan { value: Value::Number(_, kept), .. }) => *kept = true,
        Expr::UnaryOp { op: UnaryOperator::Minus | UnaryOperator::Plus, expr } => keep(expr),
        _ => {}
    }
}

fn number(expr: &Expr) -> Option<&str> {
    match expr {
        Expr::Value(ValueWithSpan { value: Value::Number(number, false), .. }) => Some(number),
        _ => None,
    }
}

/// Functions whose result has the type of their arguments. All others convert what they are given.
fn is_polymorphic(name: &str) -> bool {
    matches!(
        name,
        "abs"
            | "array_agg"
            | "array_append"
            | "array_cat"
            | "array_position"
            | "array_positions"
            | "array_prepend"
            | "array_remove"
            | "array_remove_all"
            | "array_replace"
            | "array_replace_all"
            | "avg"
            | "coalesce"
            | "first_value"
            | "gcd"
            | "greatest"
            | "last_value"
            | "lcm"
            | "least"
            | "max"
            | "min"
            | "nullif"
            | "pg_array_remove"
            | "pg_series"
            | "pg_typeof"
            | "sign"
            | "sum"
            | "tidepool_negate"
            | "tidepool_open"
            | "to_hex"
            | "unnest"
    )
}

struct Types;

impl Types {
    fn function(function: &mut Function) {
        let name = function.name.0.last().and_then(|part| part.as_ident()).map(crate::statement::fold);
        let name = name.unwrap_or_default();
        if !is_polymorphic(&name)
            && let FunctionArguments::List(list) = &mut function.args
        {
            // Of these the second argument alone is not the result's type.
            let is_shift = matches!(name.as_str(), "lag" | "lead");
            let (skip, take) = if is_shift { (1, 1) } else { (0, usize::MAX) };
            for arg in list.args.iter_mut().skip(skip).take(take) {
                if let FunctionArg::Unnamed(FunctionArgExpr::Expr(expr))
                | FunctionArg::Named { arg: FunctionArgExpr::Expr(expr), .. } = arg
                {
                    keep(expr);
                }
            }
        }
        if let Some(WindowType::WindowSpec(window)) = &mut function.over
            && let Some(frame) = &mut window.window_frame
        {
            Types::frame(frame);
        }
    }

    fn frame(frame: &mut WindowFrame) {
        for bound in std::iter::once(&mut frame.start_bound).chain(&mut frame.end_bound) {
            if let WindowFrameBound::Preceding(Some(bound)) | WindowFrameBound::Following(Some(bound)) = bound {
                keep(bound);
            }
        }
    }
}

/// The cast that gives a number its type, where DataFusion would give another.
fn typed(digits: &str, negative: bool, literal: Expr) -> Option<Expr> {
    let cast = |expr: Expr, data_type: DataType| {
        Some(Expr::Cast { kind: CastKind::DoubleColon, expr: Box::new(expr), data_type, array: false, format: None })
    };
    let signed = if negative { format!("-{digits}") } else { digits.to_owned() };
    if signed.parse::<i32>().is_ok() {
        return cast(literal, DataType::Int4(None));
    }
    let whole = digits.bytes().all(|byte| byte.is_ascii_digit());
    if digits.contains(['e', 'E']) || whole && signed.parse::<i64>().is_err() {
        let text = Expr::Value(Value::SingleQuotedString(signed).with_empty_span());
        return cast(text, DataType::Numeric(datafusion::sql::sqlparser::ast::ExactNumberInfo::None));
    }
    None
}

impl VisitorMut for Types {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        match &mut query.limit_clause {
            Some(LimitClause::LimitOffset { limit, offset, .. }) => {
                limit.iter_mut().for_each(keep);
                offset.iter_mut().for_each(|offset| keep(&mut offset.value));
            }
            Some(LimitClause::OffsetCommaLimit { offset, limit }) => {
                keep(offset);
                keep(limit);
            }
            None => {}
        }
        if let Some(fetch) = &mut query.fetch {
            fetch.quantity.iter_mut().for_each(keep);
        }
        if let Some(order) = &mut query.order_by
            && let OrderByKind::Expressions(order) = &mut order.kind
        {
            order.iter_mut().for_each(|by| keep(&mut by.expr));
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        if let GroupByExpr::Expressions(by, _) = &mut select.group_by {
            for expr in by {
                match expr {
                    Expr::Rollup(sets) | Expr::Cube(sets) | Expr::GroupingSets(sets) => {
                        sets.iter_mut().flatten().for_each(keep);
                    }
                    expr => keep(expr),
                }
            }
        }
        for NamedWindowDefinition(_, window) in &mut select.named_window {
            if let NamedWindowExpr::WindowSpec(WindowSpec { window_frame: Some(frame), .. }) = window {
                Types::frame(frame);
            }
        }
        if let Some(Distinct::On(on)) = &mut select.distinct {
            on.iter_mut().for_each(keep);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        let args = match factor {
            TableFactor::Table { args: Some(args), .. } => &mut args.args,
            TableFactor::Function { args, .. } => args,
            _ => return ControlFlow::Continue(()),
        };
        for arg in args {
            if let FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) = arg {
                keep(expr);
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        match expr {
            Expr::UnaryOp { op: UnaryOperator::Minus, expr: inner } => {
                if let Some(digits) = number(inner).map(str::to_owned) {
                    keep(inner);
                    if let Some(typed) = typed(&digits, true, expr.clone()) {
                        *expr = typed;
                    }
                }
            }
            Expr::Function(function) => Types::function(function),
            // The cast says which type.
            Expr::Cast { expr, .. } if number(expr).is_some_and(|digits| !digits.contains(['e', 'E'])) => keep(expr),
            Expr::Tuple(items) => items.iter_mut().for_each(keep),
            Expr::CompoundFieldAccess { access_chain, .. } => {
                for access in access_chain {
                    match access {
                        AccessExpr::Subscript(Subscript::Index { index }) => keep(index),
                        AccessExpr::Subscript(Subscript::Slice { lower_bound, upper_bound, stride }) => {
                            [lower_bound, upper_bound, stride].into_iter().flatten().for_each(keep);
                        }
                        AccessExpr::Dot(_) => {}
                    }
                }
            }
            Expr::Substring { substring_from, substring_for, .. } => {
                [substring_from, substring_for].into_iter().flatten().for_each(|expr| keep(expr));
            }
            Expr::Overlay { overlay_from, overlay_for, .. } => {
                keep(overlay_from);
                overlay_for.iter_mut().for_each(|expr| keep(expr));
            }
            Expr::Interval(interval) => keep(&mut interval.value),
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        match expr {
            Expr::Value(ValueWithSpan { value: Value::Number(_, kept @ true), .. }) => *kept = false,
            Expr::Value(ValueWithSpan { value: Value::Number(digits, false), .. }) => {
                let digits = digits.clone();
                if let Some(typed) = typed(&digits, false, expr.clone()) {
                    *expr = typed;
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}
