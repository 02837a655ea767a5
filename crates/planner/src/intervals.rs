//! Intervals that are ordered, grouped and matched by their length, as PostgreSQL does: a month is 30 days and a day 24 hours. And
//! numbers that each have a scale, which are equal whatever it is. And positions in the log, which are held as their texts and ordered by what these say.
//!
//! Arrow compares intervals by their months, then days, then nanoseconds. Operators between two intervals compare lengths from
//! the start ([`crate::operators`]); this rule sees to all that compares without an operator. What is to come out as an interval
//! again (a group's key, a maximum) goes through a key that is ordered by length and remembers the parts.

use crate::arithmetic::{self, Kind};
use crate::casts::{is_comparison, rewrite_plan};
use crate::numerics;
use crate::operators::unnamed;
use crate::rewrites::RewritePlan;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, IntervalUnit};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult};
use datafusion::common::{Column, DFSchema, DFSchemaRef, Result, ScalarValue, internal_err};
use datafusion::functions_aggregate::count::count_udaf;
use datafusion::functions_aggregate::expr_fn::min;
use datafusion::functions_aggregate::sum::sum_udaf;
use datafusion::logical_expr::expr::{AggregateFunction, InList, InSubquery, SetComparison, Sort, WindowFunction};
use datafusion::logical_expr::utils::grouping_set_to_exprlist;
use datafusion::logical_expr::{
    Aggregate, Between, BinaryExpr, Case, Distinct, DistinctOn, Expr, ExprSchemable, GroupingSet, Join, LogicalPlan,
    LogicalPlanBuilder, Operator, Projection, Subquery, Window, WindowFrame, WindowFrameBound, WindowFrameUnits,
    WindowFunctionDefinition, binary_expr, cast, lit, when,
};
use datafusion::optimizer::AnalyzerRule;
use std::sync::Arc;

/// Windows, whose order DataFusion has to know before it settles types: a frame's ends are of the type of what it is over.
#[derive(Debug)]
pub struct IntervalWindows;

impl AnalyzerRule for IntervalWindows {
    fn name(&self) -> &str {
        "interval_windows"
    }

    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        plan.rewrite_up_with_subqueries(&mut |node| match node {
            LogicalPlan::Window(window) => numbered(window),
            node => Ok(Transformed::no(node)),
        })
        .data()
    }
}

/// Goes last in analysis: types do not change any more.
#[derive(Debug)]
pub struct IntervalKeys;

impl AnalyzerRule for IntervalKeys {
    fn name(&self) -> &str {
        "interval_keys"
    }

    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        let plan = rewrite_plan(plan, &expression)?;
        plan.rewrite_up_with_subqueries(&mut node).data()
    }
}

/// What values that may be equal without being the same are compared by, by their type.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keyed {
    Interval,
    /// Numbers that each have a scale.
    Numeric,
    /// `pg_lsn`.
    Position,
}

impl Keyed {
    fn of_type(data_type: &DataType) -> Option<Keyed> {
        match data_type {
            DataType::Interval(_) => Some(Keyed::Interval),
            of if numerics::is_numeric(of) => Some(Keyed::Numeric),
            _ => None,
        }
    }

    fn of(expr: &Expr, schema: &DFSchema) -> Option<Keyed> {
        let data_type = expr.get_type(schema).ok()?;
        if matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View) {
            let (_, field) = expr.to_field(schema).ok()?;
            return (crate::types::marked_oid(&field) == Some(crate::operators::LSN)).then_some(Keyed::Position);
        }
        Keyed::of_type(&data_type)
    }

    /// What is the same for equal values.
    fn length(self, value: Expr) -> Expr {
        match self {
            Keyed::Interval => arithmetic::call(Kind::IntervalLength, vec![value]),
            Keyed::Numeric => numerics::call(numerics::Kind::Key, vec![value]),
            Keyed::Position => of_catalog("pg_lsn_key", value),
        }
    }

    /// What has that order and knows the value.
    fn key(self, value: Expr) -> Expr {
        match self {
            Keyed::Interval => arithmetic::call(Kind::IntervalKey, vec![value]),
            // Their bytes are in their order already.
            Keyed::Numeric => value,
            Keyed::Position => of_catalog("pg_lsn_key", value),
        }
    }

    fn of_key(self, key: Expr) -> Expr {
        match self {
            Keyed::Interval => arithmetic::call(Kind::IntervalOfKey, vec![key]),
            Keyed::Numeric => key,
            Keyed::Position => of_catalog("pg_lsn_of_key", key),
        }
    }

    fn null(self) -> ScalarValue {
        match self {
            Keyed::Interval => ScalarValue::IntervalMonthDayNano(None),
            Keyed::Numeric => ScalarValue::FixedSizeBinary(tidepool_table::NUMERIC_WIDTH, None),
            Keyed::Position => ScalarValue::Utf8View(None),
        }
    }
}

fn of_catalog(name: &str, value: Expr) -> Expr {
    match crate::catalog::function(name) {
        Some(function) => function.call(vec![value]),
        None => value,
    }
}

/// A comparison of a column of numbers with a constant one, in a form that scans know. `None` for another.
fn bounded(left: &Expr, op: Operator, right: &Expr) -> Option<Expr> {
    let column = |expr: &Expr| matches!(expr, Expr::Column(_));
    let (of, towards, constant) = match (left, right) {
        (of, Expr::Literal(value, _)) if column(of) => (of, op, value),
        (Expr::Literal(value, _), of) if column(of) => (of, op.swap()?, value),
        _ => return None,
    };
    match numerics::number_of_scalar(constant) {
        Some(number) => numerics::as_bounds(of, towards, number),
        None if constant.is_null() => None,
        // A bound, made of such a comparison before.
        None => Some(binary_expr(left.clone(), op, right.clone())),
    }
}

/// What a query's values are compared by.
fn lengths_of(by: Keyed, subquery: Subquery) -> Result<Subquery> {
    let plan = subquery.subquery.as_ref().clone();
    let column = by.length(Expr::Column(Column::from(plan.schema().qualified_field(0))));
    let plan = Arc::new(LogicalPlanBuilder::from(plan).project([column])?.build()?);
    Ok(Subquery { subquery: plan, ..subquery })
}

/// What of one expression compares intervals or numbers.
fn expression(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let keyed = |expr: &Expr| Keyed::of(expr, schema);
    Ok(match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right })
            if is_comparison(op)
                && let Some(by) = keyed(&left)
                && keyed(&right) == Some(by) =>
        {
            if by == Keyed::Numeric
                && let Some(bounded) = bounded(&left, op, &right)
            {
                return Ok(Transformed::yes(bounded));
            }
            let [left, right] = [left, right].map(|side| Box::new(by.length(*side)));
            Transformed::yes(Expr::BinaryExpr(BinaryExpr { left, op, right }))
        }
        Expr::Between(Between { expr, negated, low, high }) if let Some(by) = keyed(&expr) => {
            if by == Keyed::Numeric
                && !negated
                && let Some(above) = bounded(&expr, Operator::GtEq, &low)
                && let Some(below) = bounded(&expr, Operator::LtEq, &high)
            {
                return Ok(Transformed::yes(above.and(below)));
            }
            let [expr, low, high] = [expr, low, high].map(|part| Box::new(by.length(*part)));
            Transformed::yes(Expr::Between(Between { expr, negated, low, high }))
        }
        Expr::InList(InList { expr, list, negated }) if let Some(by) = keyed(&expr) => {
            let expr = Box::new(by.length(*expr));
            let list = list.into_iter().map(|item| by.length(item)).collect();
            Transformed::yes(Expr::InList(InList { expr, list, negated }))
        }
        Expr::InSubquery(InSubquery { expr, subquery, negated }) if let Some(by) = keyed(&expr) => {
            let (expr, subquery) = (Box::new(by.length(*expr)), lengths_of(by, subquery)?);
            Transformed::yes(Expr::InSubquery(InSubquery { expr, subquery, negated }))
        }
        Expr::SetComparison(SetComparison { expr, subquery, op, quantifier }) if let Some(by) = keyed(&expr) => {
            let (expr, subquery) = (Box::new(by.length(*expr)), lengths_of(by, subquery)?);
            Transformed::yes(Expr::SetComparison(SetComparison { expr, subquery, op, quantifier }))
        }
        Expr::Case(Case { expr: Some(value), when_then_expr, else_expr }) if let Some(by) = keyed(&value) => {
            let by_length = |(when, then): (Box<Expr>, Box<Expr>)| (Box::new(by.length(*when)), then);
            let when_then_expr = when_then_expr.into_iter().map(by_length).collect();
            Transformed::yes(Expr::Case(Case { expr: Some(Box::new(by.length(*value))), when_then_expr, else_expr }))
        }
        Expr::ScalarFunction(mut function)
            if matches!(function.func.name(), "nullif" | "greatest" | "least")
                && let Some(by) = function.args.first().and_then(keyed)
                // Equal positions are equal texts.
                && !(by == Keyed::Position && function.func.name() == "nullif")
                && function.args.iter().all(|arg| keyed(arg) == Some(by)) =>
        {
            let args = std::mem::take(&mut function.args);
            Transformed::yes(match (function.func.name(), <[Expr; 2]>::try_from(args)) {
                ("nullif", Ok([value, other])) => {
                    let is_equal = by.length(value.clone()).eq(by.length(other));
                    when(is_equal, lit(by.null())).otherwise(value)?
                }
                (_, args) => {
                    let args = args.map_or_else(|args| args, Vec::from);
                    function.args = args.into_iter().map(|arg| by.key(arg)).collect();
                    by.of_key(Expr::ScalarFunction(function))
                }
            })
        }
        Expr::ScalarFunction(mut function)
            if function.func.name() == "array_has"
                && function.args.len() == 2
                && keyed(&function.args[1]) == Some(Keyed::Numeric) =>
        {
            let args = std::mem::take(&mut function.args);
            function.args = args.into_iter().map(|arg| Keyed::Numeric.length(arg)).collect();
            Transformed::yes(Expr::ScalarFunction(function))
        }
        other => Transformed::no(other),
    })
}

/// What of one operator compares intervals by itself.
fn node(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    match plan {
        LogicalPlan::Sort(mut sort) => {
            let mut found = false;
            for key in &mut sort.expr {
                found |= by_length(&mut key.expr, sort.input.schema());
            }
            Ok(Transformed::new_transformed(LogicalPlan::Sort(sort), found))
        }
        LogicalPlan::Join(join) => joined(join),
        LogicalPlan::Projection(projection) => marked(projection),
        LogicalPlan::Aggregate(aggregate) => grouped(aggregate),
        LogicalPlan::Distinct(Distinct::All(input)) => {
            if !input.schema().fields().iter().any(|field| Keyed::of_type(field.data_type()).is_some()) {
                return Ok(Transformed::no(LogicalPlan::Distinct(Distinct::All(input))));
            }
            let columns = input.schema().columns().into_iter().map(Expr::Column).collect();
            grouped(Aggregate::try_new(input, columns, Vec::new())?)
        }
        LogicalPlan::Distinct(Distinct::On(mut on)) => {
            let found = distinct_on(&mut on);
            Ok(Transformed::new_transformed(LogicalPlan::Distinct(Distinct::On(on)), found))
        }
        other => Ok(Transformed::no(other)),
    }
}

/// A column may be known to be of positions only now, as the minimum of some: what is above hears of it.
fn marked(projection: Projection) -> Result<Transformed<LogicalPlan>> {
    let is_marked = |field: &Field| crate::types::marked_oid(field) == Some(crate::operators::LSN);
    let schema = projection.input.schema();
    let is_told =
        |(expr, field): (&Expr, &FieldRef)| is_marked(field) || Keyed::of(expr, schema) != Some(Keyed::Position);
    if !schema.fields().iter().any(|field| is_marked(field))
        || projection.expr.iter().zip(projection.schema.fields()).all(is_told)
    {
        return Ok(Transformed::no(LogicalPlan::Projection(projection)));
    }
    let Projection { expr, input, .. } = projection;
    Ok(Transformed::yes(LogicalPlan::Projection(Projection::try_new(expr, input)?)))
}

/// Whether it is an interval or such a number, and then what it is compared by now.
fn by_length(expr: &mut Expr, schema: &DFSchema) -> bool {
    let by = Keyed::of(expr, schema);
    if let Some(by) = by {
        *expr = by.length(std::mem::take(expr));
    }
    by.is_some()
}

fn sorts_by_length(sorts: &mut [Sort], schema: &DFSchema) -> bool {
    sorts.iter_mut().fold(false, |found, sort| by_length(&mut sort.expr, schema) | found)
}

fn distinct_on(on: &mut DistinctOn) -> bool {
    let schema = on.input.schema();
    let found = on.on_expr.iter_mut().fold(false, |found, expr| by_length(expr, schema) | found);
    on.sort_expr.as_mut().is_some_and(|sorts| sorts_by_length(sorts, schema)) | found
}

fn joined(mut join: Join) -> Result<Transformed<LogicalPlan>> {
    let mut found = false;
    for (left, right) in &mut join.on {
        let by = Keyed::of(left, join.left.schema());
        if by.is_some() && by == Keyed::of(right, join.right.schema()) {
            found |= by_length(left, join.left.schema()) | by_length(right, join.right.schema());
        }
    }
    Ok(Transformed::new_transformed(LogicalPlan::Join(join), found))
}

/// How an output is made of what is computed now, by columns' numbers.
enum Output {
    Same(usize),
    OfKey(usize, Keyed),
    /// A group's key: its length, and the key of one of the group's values.
    Group(usize, usize, Keyed),
    /// An average: a sum and a count.
    Average(usize, usize),
}

/// Functions that are computed now, each once. Their columns come after `first` others.
struct Functions {
    first: usize,
    all: Vec<Expr>,
}

impl Functions {
    /// Its column.
    fn place(&mut self, function: Expr) -> usize {
        let known = self.all.iter().position(|known| *known == function);
        let position = known.unwrap_or_else(|| {
            self.all.push(function);
            self.all.len() - 1
        });
        self.first + position
    }
}

fn grouped(aggregate: Aggregate) -> Result<Transformed<LogicalPlan>> {
    let Aggregate { input, mut group_expr, aggr_expr, schema: meant, .. } = aggregate.clone();
    let schema = input.schema();
    let first = meant.fields().len() - aggr_expr.len();
    let mut functions = Functions { first, all: Vec::new() };
    let mut outputs: Vec<Output> = (0..first).map(Output::Same).collect();
    let mut found = false;
    // As the schema has them: each once.
    for (index, key_of) in grouping_set_to_exprlist(&group_expr)?.into_iter().enumerate() {
        if let Some(by) = Keyed::of(key_of, schema) {
            outputs[index] = Output::Group(index, functions.place(min(by.key(key_of.clone()))), by);
            found = true;
        }
    }
    if found {
        for group in &mut group_expr {
            match group {
                Expr::GroupingSet(GroupingSet::Cube(keys) | GroupingSet::Rollup(keys)) => {
                    keys.iter_mut().for_each(|key| _ = by_length(key, schema));
                }
                Expr::GroupingSet(GroupingSet::GroupingSets(sets)) => {
                    sets.iter_mut().flatten().for_each(|key| _ = by_length(key, schema));
                }
                key => _ = by_length(key, schema),
            }
        }
    }
    for expr in aggr_expr {
        let mut expr = unnamed(expr);
        let Expr::AggregateFunction(function) = &mut expr else {
            return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
        };
        let params = &mut function.params;
        if !function.func.supports_within_group_clause() {
            found |= sorts_by_length(&mut params.order_by, schema);
        }
        if params.distinct && function.func.name() == "count" {
            for argument in &mut params.args {
                found |= by_length(argument, schema);
            }
        }
        // Equal numbers count once: as they are without zeros at their end.
        if params.distinct && matches!(function.func.name(), "sum" | "avg") {
            for argument in &mut params.args {
                if Keyed::of(argument, schema) == Some(Keyed::Numeric) {
                    *argument = numerics::call(numerics::Kind::Trim, vec![std::mem::take(argument)]);
                    found = true;
                }
            }
        }
        let output = match (function.func.name(), params.args.as_mut_slice()) {
            ("min" | "max", [argument])
                if let Some(by @ (Keyed::Interval | Keyed::Position)) = Keyed::of(argument, schema) =>
            {
                *argument = by.key(std::mem::take(argument));
                Output::OfKey(functions.place(expr), by)
            }
            ("avg", [argument]) if Keyed::of(argument, schema) == Some(Keyed::Interval) => {
                let of = |func| Expr::AggregateFunction(AggregateFunction { func, params: params.clone() });
                Output::Average(functions.place(of(sum_udaf())), functions.place(of(count_udaf())))
            }
            _ => {
                outputs.push(Output::Same(functions.place(expr)));
                continue;
            }
        };
        outputs.push(output);
        found = true;
    }
    if !found {
        return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
    }
    let computed = LogicalPlan::Aggregate(Aggregate::try_new(input, group_expr, functions.all)?);
    restored(computed, &outputs, &meant)
}

fn numbered(window: Window) -> Result<Transformed<LogicalPlan>> {
    let Window { input, window_expr, schema: meant } = window.clone();
    let schema = input.schema();
    let first = schema.fields().len();
    let mut functions = Functions { first, all: Vec::new() };
    let mut outputs: Vec<Output> = (0..first).map(Output::Same).collect();
    let mut found = false;
    for expr in window_expr {
        let mut expr = unnamed(expr);
        let Expr::WindowFunction(function) = &mut expr else { return Ok(Transformed::no(LogicalPlan::Window(window))) };
        let params = &mut function.params;
        for key in &mut params.partition_by {
            found |= by_length(key, schema);
        }
        let by_numbers = params.order_by.iter().any(|sort| Keyed::of(&sort.expr, schema) == Some(Keyed::Numeric));
        for sort in &mut params.order_by {
            if Keyed::of(&sort.expr, schema) == Some(Keyed::Numeric) {
                sort.expr = numerics::call(numerics::Kind::KeyText, vec![std::mem::take(&mut sort.expr)]);
            }
        }
        if sorts_by_length(&mut params.order_by, schema) || by_numbers {
            params.window_frame = match by_numbers {
                true => without_distance(&params.window_frame)?,
                false => by_distance(&params.window_frame)?,
            };
            found = true;
        }
        let output = match (function.fun.name(), params.args.as_mut_slice()) {
            ("min" | "max", [argument])
                if let Some(by @ (Keyed::Interval | Keyed::Position)) = Keyed::of(argument, schema) =>
            {
                *argument = by.key(std::mem::take(argument));
                Output::OfKey(functions.place(expr), by)
            }
            ("avg", [argument]) if Keyed::of(argument, schema) == Some(Keyed::Interval) => {
                let of = |func| {
                    let fun = WindowFunctionDefinition::AggregateUDF(func);
                    Expr::from(WindowFunction { fun, params: params.clone() })
                };
                Output::Average(functions.place(of(sum_udaf())), functions.place(of(count_udaf())))
            }
            _ => {
                outputs.push(Output::Same(functions.place(expr)));
                continue;
            }
        };
        outputs.push(output);
        found = true;
    }
    if !found {
        return Ok(Transformed::no(LogicalPlan::Window(window)));
    }
    restored(LogicalPlan::Window(Window::try_new(functions.all, input)?), &outputs, &meant)
}

/// A frame over numbers that each have a scale. 0A000 for one that ends at a distance from the row's.
fn without_distance(frame: &WindowFrame) -> Result<WindowFrame> {
    let is_open = |bound: &WindowFrameBound| match bound {
        WindowFrameBound::Preceding(value) | WindowFrameBound::Following(value) => value.is_null(),
        WindowFrameBound::CurrentRow => true,
    };
    if frame.units == WindowFrameUnits::Range && !(is_open(&frame.start_bound) && is_open(&frame.end_bound)) {
        let message = "RANGE with offset PRECEDING/FOLLOWING is not supported for numeric without precision";
        return Err(crate::errors::carry(tidepool_base::Error::unsupported(message)));
    }
    Ok(frame.clone())
}

/// A frame over intervals as one over their lengths. 22007 for ends that are no intervals.
fn by_distance(frame: &WindowFrame) -> Result<WindowFrame> {
    let distance = |value: &ScalarValue| -> Result<ScalarValue> {
        if value.is_null() {
            return Ok(value.clone());
        }
        match value.cast_to(&DataType::Interval(IntervalUnit::MonthDayNano))? {
            ScalarValue::IntervalMonthDayNano(Some(interval)) => {
                Ok(ScalarValue::Decimal128(Some(arithmetic::length(&interval)), arithmetic::PRECISION, 0))
            }
            _ => internal_err!("a frame that ends at no interval"),
        }
    };
    let bound = |bound: &WindowFrameBound| {
        Ok::<_, datafusion::common::DataFusionError>(match bound {
            WindowFrameBound::Preceding(value) => WindowFrameBound::Preceding(distance(value)?),
            WindowFrameBound::Following(value) => WindowFrameBound::Following(distance(value)?),
            WindowFrameBound::CurrentRow => WindowFrameBound::CurrentRow,
        })
    };
    if frame.units != WindowFrameUnits::Range {
        return Ok(frame.clone());
    }
    Ok(WindowFrame::new_bounds(frame.units, bound(&frame.start_bound)?, bound(&frame.end_bound)?))
}

/// What is computed now, as the columns that there were.
fn restored(computed: LogicalPlan, outputs: &[Output], meant: &DFSchemaRef) -> Result<Transformed<LogicalPlan>> {
    let column = |index: &usize| Expr::Column(Column::from(computed.schema().qualified_field(*index)));
    let output = |(index, output): (usize, &Output)| {
        let value = match output {
            Output::Same(value) => column(value),
            Output::OfKey(key, by) => by.of_key(column(key)),
            // Where a grouping set leaves it out there is none.
            Output::Group(length, key, by) => when(column(length).is_not_null(), by.of_key(column(key))).end()?,
            Output::Average(sum, count) => {
                arithmetic::call(Kind::DivideInterval, vec![column(sum), cast(column(count), DataType::Float64)])
            }
        };
        let (qualifier, field) = meant.qualified_field(index);
        Ok(value.alias_qualified(qualifier.cloned(), field.name()))
    };
    let columns = outputs.iter().enumerate().map(output).collect::<Result<Vec<_>>>()?;
    let plan = Projection::try_new(columns, Arc::new(computed))?;
    Ok(Transformed::yes(LogicalPlan::Projection(plan)))
}
