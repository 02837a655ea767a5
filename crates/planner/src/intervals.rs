//! Intervals that are ordered, grouped and matched by their length, as PostgreSQL does: a month is 30 days and a day 24 hours.
//!
//! Arrow compares intervals by their months, then days, then nanoseconds. Operators between two intervals compare lengths from
//! the start ([`crate::operators`]); this rule sees to all that compares without an operator. What is to come out as an interval
//! again (a group's key, a maximum) goes through a key that is ordered by length and remembers the parts.

use crate::arithmetic::{self, Kind};
use crate::casts::{is_comparison, rewrite_plan};
use crate::operators::unnamed;
use datafusion::arrow::datatypes::{DataType, IntervalUnit};
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
    LogicalPlanBuilder, Projection, Subquery, Window, WindowFrame, WindowFrameBound, WindowFrameUnits,
    WindowFunctionDefinition, cast, lit, when,
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
        plan.transform_up_with_subqueries(|node| match node {
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
        plan.transform_up_with_subqueries(node).data()
    }
}

fn length(interval: Expr) -> Expr {
    arithmetic::call(Kind::IntervalLength, vec![interval])
}

fn key(interval: Expr) -> Expr {
    arithmetic::call(Kind::IntervalKey, vec![interval])
}

fn of_key(key: Expr) -> Expr {
    arithmetic::call(Kind::IntervalOfKey, vec![key])
}

fn is_interval(expr: &Expr, schema: &DFSchema) -> bool {
    matches!(expr.get_type(schema), Ok(DataType::Interval(_)))
}

/// The lengths of a query's intervals.
fn lengths_of(subquery: Subquery) -> Result<Subquery> {
    let plan = subquery.subquery.as_ref().clone();
    let column = length(Expr::Column(Column::from(plan.schema().qualified_field(0))));
    let plan = Arc::new(LogicalPlanBuilder::from(plan).project([column])?.build()?);
    Ok(Subquery { subquery: plan, ..subquery })
}

/// What of one expression compares intervals.
fn expression(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let is_interval = |expr: &Expr| is_interval(expr, schema);
    let lengths = |exprs: Vec<Expr>| exprs.into_iter().map(length).collect::<Vec<_>>();
    Ok(match expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right })
            if is_comparison(op) && is_interval(&left) && is_interval(&right) =>
        {
            let [left, right] = [left, right].map(|side| Box::new(length(*side)));
            Transformed::yes(Expr::BinaryExpr(BinaryExpr { left, op, right }))
        }
        Expr::Between(Between { expr, negated, low, high }) if is_interval(&expr) => {
            let [expr, low, high] = [expr, low, high].map(|part| Box::new(length(*part)));
            Transformed::yes(Expr::Between(Between { expr, negated, low, high }))
        }
        Expr::InList(InList { expr, list, negated }) if is_interval(&expr) => {
            let expr = Box::new(length(*expr));
            Transformed::yes(Expr::InList(InList { expr, list: lengths(list), negated }))
        }
        Expr::InSubquery(InSubquery { expr, subquery, negated }) if is_interval(&expr) => {
            let (expr, subquery) = (Box::new(length(*expr)), lengths_of(subquery)?);
            Transformed::yes(Expr::InSubquery(InSubquery { expr, subquery, negated }))
        }
        Expr::SetComparison(SetComparison { expr, subquery, op, quantifier }) if is_interval(&expr) => {
            let (expr, subquery) = (Box::new(length(*expr)), lengths_of(subquery)?);
            Transformed::yes(Expr::SetComparison(SetComparison { expr, subquery, op, quantifier }))
        }
        Expr::Case(Case { expr: Some(value), when_then_expr, else_expr }) if is_interval(&value) => {
            let by_length = |(when, then): (Box<Expr>, Box<Expr>)| (Box::new(length(*when)), then);
            let when_then_expr = when_then_expr.into_iter().map(by_length).collect();
            Transformed::yes(Expr::Case(Case { expr: Some(Box::new(length(*value))), when_then_expr, else_expr }))
        }
        Expr::ScalarFunction(mut function)
            if matches!(function.func.name(), "nullif" | "greatest" | "least")
                && !function.args.is_empty()
                && function.args.iter().all(is_interval) =>
        {
            let args = std::mem::take(&mut function.args);
            Transformed::yes(match (function.func.name(), <[Expr; 2]>::try_from(args)) {
                ("nullif", Ok([value, other])) => {
                    let is_equal = length(value.clone()).eq(length(other));
                    when(is_equal, lit(ScalarValue::IntervalMonthDayNano(None))).otherwise(value)?
                }
                (_, args) => {
                    function.args = args.map_or_else(|args| args, Vec::from).into_iter().map(key).collect();
                    of_key(Expr::ScalarFunction(function))
                }
            })
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
        LogicalPlan::Aggregate(aggregate) => grouped(aggregate),
        LogicalPlan::Distinct(Distinct::All(input)) => {
            if !input.schema().fields().iter().any(|field| matches!(field.data_type(), DataType::Interval(_))) {
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

/// Whether it is an interval, and then its length now.
fn by_length(expr: &mut Expr, schema: &DFSchema) -> bool {
    let found = is_interval(expr, schema);
    if found {
        *expr = length(std::mem::take(expr));
    }
    found
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
        if is_interval(left, join.left.schema()) && is_interval(right, join.right.schema()) {
            found |= by_length(left, join.left.schema()) | by_length(right, join.right.schema());
        }
    }
    Ok(Transformed::new_transformed(LogicalPlan::Join(join), found))
}

/// How an output is made of what is computed now, by columns' numbers.
enum Output {
    Same(usize),
    OfKey(usize),
    /// A group's key: its length, and the key of one of the group's intervals.
    Group(usize, usize),
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
        if is_interval(key_of, schema) {
            outputs[index] = Output::Group(index, functions.place(min(key(key_of.clone()))));
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
        let output = match (function.func.name(), params.args.as_mut_slice()) {
            ("min" | "max", [argument]) if is_interval(argument, schema) => {
                *argument = key(std::mem::take(argument));
                Output::OfKey(functions.place(expr))
            }
            ("avg", [argument]) if is_interval(argument, schema) => {
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
        if sorts_by_length(&mut params.order_by, schema) {
            params.window_frame = by_distance(&params.window_frame)?;
            found = true;
        }
        let output = match (function.fun.name(), params.args.as_mut_slice()) {
            ("min" | "max", [argument]) if is_interval(argument, schema) => {
                *argument = key(std::mem::take(argument));
                Output::OfKey(functions.place(expr))
            }
            ("avg", [argument]) if is_interval(argument, schema) => {
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
            Output::OfKey(key) => of_key(column(key)),
            // Where a grouping set leaves it out there is none.
            Output::Group(length, key) => when(column(length).is_not_null(), of_key(column(key))).end()?,
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
