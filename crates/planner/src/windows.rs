//! Windows that are made of others, written out: DataFusion looks a window up by its name, and not what that one is made of.
//!
//! `OVER (w ORDER BY b)` and `WINDOW v AS (w ORDER BY b)` take the partitions of `w`, and its order where they have none. What
//! PostgreSQL refuses of windows is refused here.

use crate::statement::fold;
use crate::walk::walk_mut;
use datafusion::sql::sqlparser::ast::{
    DuplicateTreatment, Expr, FunctionArguments, NamedWindowDefinition, NamedWindowExpr, Query, Select, SetExpr,
    UnaryOperator, Value, VisitorMut, WindowFrame, WindowFrameBound, WindowFrameUnits, WindowSpec, WindowType,
};
use std::ops::ControlFlow;
use tidepool_base::{Error, Result, SqlState};

/// Writes out the windows of a query and of all queries within it.
pub fn write_out(query: &mut Query) -> Result<()> {
    match walk_mut(query, &mut Queries) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

struct Queries;

impl VisitorMut for Queries {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        let named = match query.body.as_mut() {
            SetExpr::Select(select) => match in_select(select) {
                Ok(named) => named,
                Err(error) => return ControlFlow::Break(error),
            },
            body => return in_body(body).map_or_else(ControlFlow::Break, ControlFlow::Continue),
        };
        match &mut query.order_by {
            Some(order_by) => walk_mut(order_by, &mut Functions { named: &named, depth: 0 }),
            None => ControlFlow::Continue(()),
        }
    }
}

fn in_body(body: &mut SetExpr) -> Result<()> {
    match body {
        SetExpr::Select(select) => in_select(select).map(|_| ()),
        SetExpr::SetOperation { left, right, .. } => in_body(left).and_then(|()| in_body(right)),
        _ => Ok(()),
    }
}

/// Returns the windows that have names here.
fn in_select(select: &mut Select) -> Result<Vec<(String, WindowSpec)>> {
    let mut named: Vec<(String, WindowSpec)> = Vec::new();
    for NamedWindowDefinition(name, definition) in &mut select.named_window {
        let name = fold(name);
        if named.iter().any(|(known, _)| *known == name) {
            return Err(windowing(format!("window \"{name}\" is already defined")));
        }
        let NamedWindowExpr::WindowSpec(spec) = definition else { continue };
        merge(spec, &named)?;
        named.push((name, spec.clone()));
    }
    let mut functions = Functions { named: &named, depth: 0 };
    for item in &mut select.projection {
        if let ControlFlow::Break(error) = walk_mut(item, &mut functions) {
            return Err(error);
        }
    }
    Ok(named)
}

/// Goes through the window functions of one query, not those of queries within it.
struct Functions<'a> {
    named: &'a [(String, WindowSpec)],
    depth: usize,
}

impl VisitorMut for Functions<'_> {
    type Break = Error;

    fn pre_visit_query(&mut self, _query: &mut Query) -> ControlFlow<Error> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _query: &mut Query) -> ControlFlow<Error> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        if self.depth == 0
            && let Expr::Function(function) = expr
        {
            if function.over.is_some()
                && let FunctionArguments::List(list) = &function.args
                && list.duplicate_treatment == Some(DuplicateTreatment::Distinct)
            {
                return ControlFlow::Break(Error::unsupported("DISTINCT is not implemented for window functions"));
            }
            if let Some(WindowType::WindowSpec(spec)) = &mut function.over {
                return merge(spec, self.named).map_or_else(ControlFlow::Break, ControlFlow::Continue);
            }
        }
        ControlFlow::Continue(())
    }
}

/// Gives a window what the one that it names has.
fn merge(spec: &mut WindowSpec, named: &[(String, WindowSpec)]) -> Result<()> {
    take_named(spec, named)?;
    match &spec.window_frame {
        Some(frame) => check_frame(frame, spec.order_by.len()),
        None => Ok(()),
    }
}

fn take_named(spec: &mut WindowSpec, named: &[(String, WindowSpec)]) -> Result<()> {
    let Some(name) = spec.window_name.take() else { return Ok(()) };
    let name = fold(&name);
    let Some((_, base)) = named.iter().find(|(known, _)| *known == name) else {
        return Err(Error::new(SqlState::UNDEFINED_OBJECT, format!("window \"{name}\" does not exist")));
    };
    if !spec.partition_by.is_empty() {
        return Err(windowing(format!("cannot override PARTITION BY clause of window \"{name}\"")));
    }
    if !spec.order_by.is_empty() && !base.order_by.is_empty() {
        return Err(windowing(format!("cannot override ORDER BY clause of window \"{name}\"")));
    }
    if base.window_frame.is_some() {
        let error = windowing(format!("cannot copy window \"{name}\" because it has a frame clause"));
        let is_name_alone = spec.order_by.is_empty() && spec.window_frame.is_none();
        return Err(match is_name_alone {
            true => error.with_hint("Omit the parentheses in this OVER clause."),
            false => error,
        });
    }
    spec.partition_by.clone_from(&base.partition_by);
    if spec.order_by.is_empty() {
        spec.order_by.clone_from(&base.order_by);
    }
    Ok(())
}

fn check_frame(frame: &WindowFrame, keys: usize) -> Result<()> {
    use WindowFrameBound::{CurrentRow, Following, Preceding};
    let (start, end) = (&frame.start_bound, &frame.end_bound);
    let message = match (start, end) {
        (Following(None), _) => Some("frame start cannot be UNBOUNDED FOLLOWING"),
        (_, Some(Preceding(None))) => Some("frame end cannot be UNBOUNDED PRECEDING"),
        (Following(Some(_)), None) => Some("frame starting from following row cannot end with current row"),
        (CurrentRow, Some(Preceding(Some(_)))) => Some("frame starting from current row cannot have preceding rows"),
        (Following(Some(_)), Some(Preceding(Some(_)) | CurrentRow)) => {
            Some("frame starting from following row cannot have preceding rows")
        }
        _ => None,
    };
    if let Some(message) = message {
        return Err(windowing(message));
    }
    let offset = |bound: &WindowFrameBound| match bound {
        Preceding(Some(offset)) | Following(Some(offset)) => Some(offset.as_ref().clone()),
        _ => None,
    };
    let offsets = [("starting", offset(start)), ("ending", end.as_ref().and_then(offset))];
    match frame.units {
        WindowFrameUnits::Groups if keys == 0 => return Err(windowing("GROUPS mode requires an ORDER BY clause")),
        WindowFrameUnits::Range if keys != 1 && offsets.iter().any(|(_, offset)| offset.is_some()) => {
            let message = "RANGE with offset PRECEDING/FOLLOWING requires exactly one ORDER BY column";
            return Err(windowing(message));
        }
        _ => {}
    }
    for (which, offset) in offsets {
        let Some(offset) = offset else { continue };
        let mode = match frame.units {
            WindowFrameUnits::Rows => "ROWS",
            WindowFrameUnits::Groups => "GROUPS",
            WindowFrameUnits::Range => "RANGE",
        };
        let names_column = matches!(&offset, Expr::Identifier(_) | Expr::CompoundIdentifier(_));
        if names_column {
            let message = format!("argument of {mode} must not contain variables");
            return Err(Error::new(SqlState::INVALID_COLUMN_REFERENCE, message));
        }
        if is_negative(&offset) {
            let message = match frame.units {
                WindowFrameUnits::Range => "invalid preceding or following size in window function".to_owned(),
                _ => format!("frame {which} offset must not be negative"),
            };
            return Err(Error::new(SqlState::INVALID_PRECEDING_OR_FOLLOWING_SIZE, message));
        }
    }
    Ok(())
}

/// Whether it is written as less than nothing.
fn is_negative(offset: &Expr) -> bool {
    match offset {
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => matches!(expr.as_ref(), Expr::Value(_)),
        Expr::Nested(inner) | Expr::Cast { expr: inner, .. } => is_negative(inner),
        Expr::Interval(interval) => is_negative(&interval.value),
        Expr::Value(value) => match &value.value {
            Value::SingleQuotedString(text) => text.trim_start().starts_with('-'),
            _ => false,
        },
        _ => false,
    }
}

fn windowing(message: impl Into<String>) -> Error {
    Error::new(SqlState::WINDOWING_ERROR, message)
}
