//! PostgreSQL's constructs as calls of functions and operators that can be planned: the part of `rewrite` that looks at
//! one expression at a time.

use super::rewrite::{args_of, call, literal, string_literal, take, text};
use crate::walk::{names_column, walk};
use datafusion::sql::sqlparser::ast::*;
use std::cell::Cell;
use std::ops::ControlFlow;

/// An expression that PostgreSQL's grammar has and DataFusion's planner does not know; left as it is otherwise.
pub fn expression(expr: &mut Expr) {
    match expr {
        Expr::Value(ValueWithSpan { value: Value::UnicodeStringLiteral(value), .. }) => *expr = text(value.clone()),
        Expr::Interval(interval) => {
            if let Some(written) = interval_text(interval) {
                *expr = cast(text(written), DataType::Interval { fields: None, precision: None });
            }
        }
        Expr::Like { negated: _, any: false, expr: _, pattern, escape_char }
        | Expr::ILike { negated: _, any: false, expr: _, pattern, escape_char } => {
            if let Some(escape) = escape_char.as_ref().and_then(|escape| escape.clone().value.into_string()) {
                if escape.chars().nth(1).is_some() {
                    return;
                }
                let inner = take(pattern);
                **pattern = match string_literal(&inner) {
                    Some(written) => text(like_escape(written, escape.chars().next())),
                    None => call("like_escape", vec![inner, text(escape)]),
                };
                *escape_char = None;
            }
        }
        Expr::SimilarTo { negated, expr: value, pattern, escape_char } => {
            let escape = match escape_char {
                None => Some('\\'),
                Some(escape) => {
                    let escape = escape.clone().value.into_string().unwrap_or_default();
                    if escape.chars().nth(1).is_some() {
                        return;
                    }
                    escape.chars().next()
                }
            };
            let pattern = take(pattern);
            let right = match string_literal(&pattern) {
                Some(written) => text(similar_pattern(written, escape)),
                None => call("similar_to_escape", vec![pattern, text(escape.map(String::from).unwrap_or_default())]),
            };
            let op = if *negated { BinaryOperator::PGRegexNotMatch } else { BinaryOperator::PGRegexMatch };
            *expr = Expr::Nested(Box::new(Expr::BinaryOp { left: Box::new(take(value)), op, right: Box::new(right) }));
        }
        Expr::UnaryOp { op, expr: value } => {
            let name = match op {
                UnaryOperator::PGAbs => "abs",
                UnaryOperator::PGSquareRoot => "sqrt",
                UnaryOperator::PGCubeRoot => "cbrt",
                UnaryOperator::BitwiseNot => {
                    // All bits turned: -1 with those of the value taken out.
                    let (left, right) = (Box::new(super::rewrite::number(-1)), Box::new(take(value)));
                    *expr = Expr::Nested(Box::new(Expr::BinaryOp { left, op: BinaryOperator::PGBitwiseXor, right }));
                    return;
                }
                _ => return,
            };
            *expr = call(name, vec![take(value)]);
        }
        Expr::Extract { field, expr: value, .. } => {
            let field = field.to_string().to_lowercase();
            match field.as_str() {
                "second" | "seconds" => *expr = call("pg_extract_second", vec![take(value)]),
                "epoch" => {
                    let extracted = take(expr);
                    *expr = cast(extracted, DataType::Numeric(ExactNumberInfo::PrecisionAndScale(20, 6)));
                }
                "century" | "decade" | "millennium" | "isoyear" | "timezone" | "timezone_hour" | "timezone_minute" => {
                    let extracted = call("pg_extract", vec![text(field), take(value)]);
                    *expr = cast(extracted, DataType::Numeric(ExactNumberInfo::PrecisionAndScale(12, 0)));
                }
                "julian" => *expr = call("pg_extract", vec![text(field), take(value)]),
                // Whole numbers to DataFusion, whose quotients are whole numbers again.
                _ => {
                    let extracted = take(expr);
                    *expr = cast(extracted, DataType::Numeric(ExactNumberInfo::PrecisionAndScale(12, 0)));
                }
            }
        }
        Expr::Function(_) => function(expr),
        // A row is NULL, or is not, if each of its fields is.
        Expr::IsNull(value) => {
            if let Some(fields) = row_of(value) {
                each_of(expr, fields, Expr::IsNull);
            }
        }
        Expr::IsNotNull(value) => {
            if let Some(fields) = row_of(value) {
                each_of(expr, fields, Expr::IsNotNull);
            }
        }
        Expr::InSubquery { .. } | Expr::AnyOp { .. } | Expr::AllOp { .. } => {
            note_quantifiers(expr);
            super::row_subquery::value(expr);
        }
        // DataFusion looks for the columns of an array that is written out in the query itself only, not in those around it.
        Expr::Array(Array { elem, .. }) if elem.iter().any(names_column) => {
            *expr = call("make_array", std::mem::take(elem));
        }
        // An array and nothing is the array; of which type nothing is, nobody says.
        Expr::BinaryOp { left, op: BinaryOperator::StringConcat, right }
            if is_null(left) && matches!(**right, Expr::Array(_)) =>
        {
            *expr = take(right);
        }
        Expr::BinaryOp { left, op: BinaryOperator::StringConcat, right }
            if is_null(right) && matches!(**left, Expr::Array(_)) =>
        {
            *expr = take(left);
        }
        Expr::BinaryOp { left, op, right } => {
            if let (Some(lefts), Some(rights)) = (row_of(left), row_of(right))
                && let Some(compared) = compare_rows(&lefts, op, &rights)
            {
                *expr = compared;
            }
        }
        Expr::InList { expr: value, list, negated } => {
            if let Some(lefts) = row_of(value) {
                if !may_copy(&lefts, list.len()) {
                    return;
                }
                let equal = list.iter().map(|item| compare_rows(&lefts, &BinaryOperator::Eq, &row_of(item)?));
                let equal: Option<Vec<Expr>> = equal.collect();
                if let Some(any) = equal.and_then(|equal| joined(equal, BinaryOperator::Or)) {
                    *expr = if *negated { Expr::UnaryOp { op: UnaryOperator::Not, expr: Box::new(any) } } else { any };
                }
            }
        }
        _ => {}
    }
}

fn is_null(expr: &Expr) -> bool {
    matches!(expr, Expr::Value(value) if matches!(value.value, Value::Null))
}

/// The fields of a row that is written out.
pub fn row_of(expr: &Expr) -> Option<Vec<Expr>> {
    match expr {
        Expr::Tuple(fields) => Some(fields.clone()),
        Expr::Function(function) if function.name.to_string().eq_ignore_ascii_case("row") => {
            args_of(&mut function.clone())
        }
        _ => None,
    }
}

fn each_of(expr: &mut Expr, fields: Vec<Expr>, test: impl Fn(Box<Expr>) -> Expr) {
    let tests = fields.into_iter().map(|field| test(Box::new(field))).collect();
    if let Some(all) = joined(tests, BinaryOperator::And) {
        *expr = all;
    }
}

/// Parts of an expression that copies may have without being counted.
const SMALL_PARTS: usize = 16;

/// Parts that the copies made of one statement's expressions may have: of rows in rows, each is twice as large as the one within.
const COPIED_PARTS_MAX: usize = 100_000;

thread_local! {
    static COPIED_PARTS: Cell<usize> = const { Cell::new(0) };
}

/// Counts copies from here on.
pub fn begin_copies() {
    COPIED_PARTS.set(0);
}

/// Whether more copies were asked for than may be made.
pub fn copied_too_much() -> bool {
    COPIED_PARTS.get() > COPIED_PARTS_MAX
}

fn may_copy(exprs: &[Expr], times: usize) -> bool {
    let parts = exprs.iter().map(parts).filter(|parts| *parts > SMALL_PARTS).sum::<usize>().saturating_mul(times);
    COPIED_PARTS.set(COPIED_PARTS.get().saturating_add(parts));
    !copied_too_much()
}

/// Quantified comparisons within one: DataFusion writes out what each compares several times.
const QUANTIFIERS_WITHIN_MAX: usize = 5;

fn note_quantifiers(expr: &Expr) {
    struct Quantifiers(usize);

    impl Visitor for Quantifiers {
        type Break = ();

        fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
            self.0 += usize::from(matches!(expr, Expr::AnyOp { .. } | Expr::AllOp { .. }));
            ControlFlow::Continue(())
        }
    }

    let mut within = Quantifiers(0);
    let _ = match expr {
        Expr::AnyOp { left, .. } | Expr::AllOp { left, .. } => walk(left, &mut within),
        _ => ControlFlow::Continue(()),
    };
    if within.0 > QUANTIFIERS_WITHIN_MAX {
        COPIED_PARTS.set(usize::MAX);
    }
}

/// Expressions that an expression consists of.
pub fn parts(expr: &Expr) -> usize {
    struct Parts(usize);

    impl Visitor for Parts {
        type Break = ();

        fn pre_visit_expr(&mut self, _: &Expr) -> ControlFlow<()> {
            self.0 += 1;
            ControlFlow::Continue(())
        }
    }

    let mut parts = Parts(0);
    let _ = walk(expr, &mut parts);
    parts.0
}

fn binary(left: Expr, op: BinaryOperator, right: Expr) -> Expr {
    Expr::Nested(Box::new(Expr::BinaryOp { left: Box::new(left), op, right: Box::new(right) }))
}

fn joined(parts: Vec<Expr>, op: BinaryOperator) -> Option<Expr> {
    parts.into_iter().reduce(|left, right| binary(left, op.clone(), right))
}

/// Rows compare by their first fields that differ.
pub fn compare_rows(lefts: &[Expr], op: &BinaryOperator, rights: &[Expr]) -> Option<Expr> {
    use BinaryOperator::{And, Eq, Gt, GtEq, Lt, LtEq, NotEq, Or};
    let is_copied = !matches!(op, Eq | NotEq);
    if lefts.len() != rights.len() || is_copied && (!may_copy(lefts, 2) || !may_copy(rights, 2)) {
        return None;
    }
    let each = |op: &BinaryOperator| {
        lefts
            .iter()
            .zip(rights)
            .map(|(left, right)| binary(left.clone(), op.clone(), right.clone()))
            .collect::<Vec<_>>()
    };
    let strict = match op {
        Eq => return joined(each(&Eq), And),
        NotEq => return joined(each(&NotEq), Or),
        Lt | LtEq => Lt,
        Gt | GtEq => Gt,
        _ => return None,
    };
    let mut fields = lefts.iter().zip(rights).rev();
    let (left, right) = fields.next()?;
    let last = binary(left.clone(), op.clone(), right.clone());
    Some(fields.fold(last, |rest, (left, right)| {
        let equal = binary(left.clone(), Eq, right.clone());
        binary(binary(left.clone(), strict.clone(), right.clone()), Or, binary(equal, And, rest))
    }))
}

pub fn cast(expr: Expr, data_type: DataType) -> Expr {
    Expr::Cast { kind: CastKind::DoubleColon, expr: Box::new(expr), data_type, array: false, format: None }
}

/// What `interval '…' unit` says, for the reader of intervals. `None` where it cannot say it.
fn interval_text(interval: &Interval) -> Option<String> {
    if interval.leading_precision.is_some() || interval.fractional_seconds_precision.is_some() {
        return None;
    }
    let written = string_literal(&interval.value)?;
    let plain = written.trim().trim_start_matches(['-', '+']);
    let number = !plain.is_empty() && plain.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let Some(leading) = &interval.leading_field else { return Some(written.to_owned()) };
    let unit = interval.last_field.as_ref().unwrap_or(leading).to_string().to_lowercase();
    if number {
        // What is smaller than the unit is cut off.
        let whole = if unit.starts_with("second") { written } else { written.split('.').next().unwrap_or(written) };
        return Some(format!("{} {unit}", whole.trim()));
    }
    // The unit at the end says where the text ends, which it does by itself; units within it could be cut off.
    let words = written.bytes().any(|byte| byte.is_ascii_alphabetic());
    let minutes = leading.to_string().eq_ignore_ascii_case("minute") && unit == "second";
    match (&interval.last_field, words) {
        (_, true) => None,
        (Some(_), false) if minutes && written.matches(':').count() == 1 => Some(format!("00:{}", written.trim())),
        (Some(_), false) => Some(written.to_owned()),
        (None, false) => None,
    }
}

/// A `LIKE` pattern with its own escape character, as one with the backslash.
pub fn like_escape(pattern: &str, escape: Option<char>) -> String {
    let mut out = String::with_capacity(pattern.len() + 4);
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        if Some(character) == escape {
            out.push('\\');
            out.extend(characters.next());
        } else if character == '\\' {
            out.push_str("\\\\");
        } else {
            out.push(character);
        }
    }
    out
}

/// A `SIMILAR TO` pattern as a regular expression.
pub fn similar_pattern(pattern: &str, escape: Option<char>) -> String {
    let mut out = String::from("(?s)^(?:");
    let mut class = false;
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        match character {
            _ if Some(character) == escape => {
                out.push('\\');
                out.extend(characters.next());
            }
            _ if class => {
                if character == '\\' {
                    out.push('\\');
                }
                out.push(character);
                class = character != ']';
            }
            '[' => {
                out.push('[');
                class = true;
            }
            '%' => out.push_str(".*"),
            '_' => out.push('.'),
            '(' => out.push_str("(?:"),
            '\\' | '.' | '^' | '$' => {
                out.push('\\');
                out.push(character);
            }
            other => out.push(other),
        }
    }
    out.push_str(")$");
    out
}

fn function(expr: &mut Expr) {
    let Expr::Function(function) = expr else { return };
    if let Some(WindowType::WindowSpec(WindowSpec { window_frame: Some(frame), .. })) = &mut function.over {
        restore_frame(frame);
    }
    let Some(name) = super::rewrite::function_name(&function.name) else { return };
    match name.as_str() {
        "array_remove" => rename(function, "pg_array_remove"),
        "array_replace" => rename(function, "array_replace_all"),
        "variance" => rename(function, "var_samp"),
        "unnest" => {
            if let FunctionArguments::List(list) = &mut function.args
                && let [FunctionArg::Unnamed(FunctionArgExpr::Expr(array))] = list.args.as_mut_slice()
            {
                flatten(array);
            }
        }
        "make_interval" => named_arguments(function),
        "json_agg" | "jsonb_agg" => {
            let output = if name == "json_agg" { "json_of_items" } else { "jsonb_of_items" };
            let Some(mut args) = args_of(function) else { return };
            if args.len() != 1 {
                return;
            }
            let item = call("to_json_item", vec![args.swap_remove(0)]);
            *expr = call(output, vec![collected(function, item)]);
        }
        "json_object_agg" | "jsonb_object_agg" => {
            let output = if name == "json_object_agg" { "json_of_pairs" } else { "jsonb_of_pairs" };
            let Some(args) = args_of(function) else { return };
            let [key, value] =
                <[Expr; 2]>::try_from(args).unwrap_or_else(|_| [literal(Value::Null), literal(Value::Null)]);
            let key = call("to_json_key", vec![key]);
            let value = call("to_json_item", vec![value]);
            *expr = call(output, vec![collected(function, key), collected(function, value)]);
        }
        "percentile_disc" | "mode" if !function.within_group.is_empty() => {
            let Some(mut args) = args_of(function) else { return };
            let order = std::mem::take(&mut function.within_group);
            let Some(item) = order.first().map(|by| by.expr.clone()) else { return };
            let mut items = collected(function, item);
            if let Expr::Function(Function { args: FunctionArguments::List(list), .. }) = &mut items {
                list.clauses = vec![FunctionArgumentClause::OrderBy(order)];
            }
            args.insert(0, items);
            *expr = call(&format!("pg_{name}"), args);
        }
        "regexp_substr" => {
            let Some(args) = args_of(function) else { return };
            let [value, pattern] =
                <[Expr; 2]>::try_from(args).unwrap_or_else(|_| [literal(Value::Null), literal(Value::Null)]);
            let group = |left: Expr, right: Expr| {
                Expr::Nested(Box::new(Expr::BinaryOp {
                    left: Box::new(left),
                    op: BinaryOperator::StringConcat,
                    right: Box::new(right),
                }))
            };
            let grouped = match string_literal(&pattern) {
                Some(written) => text(format!("({written})")),
                None => group(group(text("("), pattern), text(")")),
            };
            let found = call("regexp_match", vec![value, grouped]);
            *expr = call("array_element", vec![found, super::rewrite::number(1)]);
        }
        "date_part" => {
            if let FunctionArguments::List(list) = &function.args
                && let Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(field))) = list.args.first()
                && string_literal(field).is_some_and(|field| {
                    matches!(
                        field.to_ascii_lowercase().as_str(),
                        "century"
                            | "decade"
                            | "millennium"
                            | "isoyear"
                            | "julian"
                            | "timezone"
                            | "timezone_hour"
                            | "timezone_minute"
                    )
                })
            {
                rename(function, "pg_extract");
                let part = take(expr);
                *expr = cast(part, DataType::DoublePrecision);
            } else if let FunctionArguments::List(list) = &function.args
                && let [
                    FunctionArg::Unnamed(FunctionArgExpr::Expr(field)),
                    FunctionArg::Unnamed(FunctionArgExpr::Expr(value)),
                ] = list.args.as_slice()
                && string_literal(field)
                    .is_some_and(|field| matches!(field.to_ascii_lowercase().as_str(), "second" | "seconds"))
            {
                *expr = cast(call("pg_extract_second", vec![value.clone()]), DataType::DoublePrecision);
            } else {
                let part = take(expr);
                *expr = cast(part, DataType::DoublePrecision);
            }
        }
        _ => {}
    }
}

/// An array of arrays that is written out as one of all their items, which is what a set is made of.
pub fn flatten(array: &mut Expr) {
    let mut within: &Expr = array;
    let mut dimensions = 0;
    while let Expr::Array(Array { elem, .. }) = within
        && let Some(first) = elem.first()
    {
        dimensions += 1;
        within = first;
    }
    for _ in 1..dimensions {
        *array = call("flatten", vec![take(array)]);
    }
}

/// Arrays that are written alike are told apart, as the columns that are made of them have to have names of their own.
pub fn tell_apart(arrays: &mut [Expr]) {
    let written = arrays.to_vec();
    for (at, array) in arrays.iter_mut().enumerate() {
        for _ in written[..at].iter().filter(|before| **before == written[at]) {
            *array = call("coalesce", vec![take(array)]);
        }
    }
}

/// Offsets of a window's frame stay as they were written: they must be constants that can be seen.
pub fn restore_frame(frame: &mut WindowFrame) {
    for bound in std::iter::once(&mut frame.start_bound).chain(&mut frame.end_bound) {
        let (WindowFrameBound::Preceding(Some(bound)) | WindowFrameBound::Following(Some(bound))) = bound else {
            continue;
        };
        if let Expr::Cast { expr, data_type: DataType::Interval { .. }, .. } = bound.as_mut()
            && string_literal(expr).is_some()
        {
            **bound = Expr::Interval(Interval {
                value: Box::new(take(expr)),
                leading_field: None,
                leading_precision: None,
                last_field: None,
                fractional_seconds_precision: None,
            });
        }
    }
}

fn rename(function: &mut Function, name: &str) {
    function.name = ObjectName::from(vec![Ident::new(name)]);
}

/// `array_agg` of another expression, with the function's order, filter and window.
fn collected(function: &Function, item: Expr) -> Expr {
    let mut collected =
        Function { name: ObjectName::from(vec![Ident::new("array_agg")]), within_group: vec![], ..function.clone() };
    if let FunctionArguments::List(list) = &mut collected.args {
        list.args = vec![FunctionArg::Unnamed(FunctionArgExpr::Expr(item))];
    }
    Expr::Function(collected)
}

/// `make_interval(days => 3)` by position.
fn named_arguments(function: &mut Function) {
    const NAMES: [&str; 7] = ["years", "months", "weeks", "days", "hours", "mins", "secs"];
    let FunctionArguments::List(list) = &mut function.args else { return };
    if !list.args.iter().any(|arg| matches!(arg, FunctionArg::Named { .. } | FunctionArg::ExprNamed { .. })) {
        return;
    }
    let mut values: Vec<Expr> = NAMES.iter().map(|_| super::rewrite::number(0)).collect();
    for (position, arg) in list.args.iter().enumerate() {
        let (slot, value) = match arg {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(value)) => (Some(position), value),
            FunctionArg::ExprNamed { name: Expr::Identifier(name), arg: FunctionArgExpr::Expr(value), .. }
            | FunctionArg::Named { name, arg: FunctionArgExpr::Expr(value), .. } => {
                (NAMES.iter().position(|known| name.value.eq_ignore_ascii_case(known)), value)
            }
            _ => return,
        };
        match slot.and_then(|slot| values.get_mut(slot)) {
            Some(slot) => *slot = value.clone(),
            None => return,
        }
    }
    list.args = values.into_iter().map(|value| FunctionArg::Unnamed(FunctionArgExpr::Expr(value))).collect();
}

/// In order.
const AGGREGATES: [&str; 39] = [
    "array_agg",
    "avg",
    "bit_and",
    "bit_or",
    "bit_xor",
    "bool_and",
    "bool_or",
    "corr",
    "count",
    "covar_pop",
    "covar_samp",
    "every",
    "json_agg",
    "json_object_agg",
    "jsonb_agg",
    "jsonb_object_agg",
    "max",
    "median",
    "min",
    "mode",
    "percentile_cont",
    "percentile_disc",
    "regr_avgx",
    "regr_avgy",
    "regr_count",
    "regr_intercept",
    "regr_r2",
    "regr_slope",
    "regr_sxx",
    "regr_sxy",
    "regr_syy",
    "stddev",
    "stddev_pop",
    "stddev_samp",
    "string_agg",
    "sum",
    "var_pop",
    "var_samp",
    "variance",
];

/// Whether a function of this name, in lower case, is an aggregate, where only syntax is looked at.
pub fn is_aggregate(name: &str) -> bool {
    AGGREGATES.binary_search(&name).is_ok()
}
