//! How many rows come out of a plan, and what its columns then look like.
//!
//! From the statistics of the tables upwards: values are taken to be spread evenly between a column's bounds, columns to
//! be independent of each other, and the keys of a smaller side of a join to occur on the larger one. All of these are
//! wrong now and then; a join order only needs them to be right about what is large and what is small.

use crate::scan::{TableProvider, datum_scalar, scalar_f64};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::{Column, DFSchema, JoinType, ScalarValue, Statistics};
use datafusion::datasource::source_as_provider;
use datafusion::logical_expr::utils::split_conjunction;
use datafusion::logical_expr::{Distinct, Expr, FetchType, LogicalPlan, Operator, TableScan};
use std::borrow::Cow;
use tidepool_table::{TableDef, TableStatistics};

/// Rows of something that nothing is known about.
const ROWS_UNKNOWN: f64 = 1000.0;

/// Shares of rows that pass a condition nothing is known about.
const PASS_RANGE: f64 = 1.0 / 3.0;
const PASS_CONTAINS: f64 = 0.05;
const PASS_PREFIX: f64 = 0.03;
const PASS_UNKNOWN: f64 = 0.25;

#[derive(Clone, Debug)]
pub struct ColumnEstimate {
    /// Different values, at least one.
    pub distinct: f64,
    /// Bounds on a number line; `None` when unknown or not a number.
    pub min: Option<f64>,
    pub max: Option<f64>,
    pub null_fraction: f64,
    /// No value occurs twice.
    pub unique: bool,
}

impl ColumnEstimate {
    fn unknown(rows: f64) -> ColumnEstimate {
        ColumnEstimate { distinct: rows.max(1.0), min: None, max: None, null_fraction: 0.0, unique: false }
    }
}

/// One for each column of the plan's schema, in order.
#[derive(Clone, Debug)]
pub struct Estimate {
    pub rows: f64,
    pub columns: Vec<ColumnEstimate>,
}

/// Different values left when `rows` of `rows_before` rows are drawn from a column of `distinct` values.
fn distinct_left(distinct: f64, rows_before: f64, rows: f64) -> f64 {
    if rows >= rows_before || distinct <= 1.0 {
        return distinct.min(rows.max(1.0));
    }
    let each = rows_before / distinct;
    let kept = 1.0 - (1.0 - rows / rows_before).powf(each);
    (distinct * kept).clamp(1.0, rows.max(1.0))
}

/// Different combinations of columns with these numbers of different values, among `rows` rows.
fn combinations(distinct: impl IntoIterator<Item = f64>, rows: f64) -> f64 {
    let all: f64 = distinct.into_iter().product::<f64>().max(1.0);
    // Drawing `rows` times out of `all` boxes.
    let hit = if all > rows * 50.0 { rows } else { all * (1.0 - (-rows / all).exp()) };
    hit.clamp(1.0, rows.max(1.0))
}

/// Every column of a table, unfiltered.
pub fn of_table(def: &TableDef, statistics: &TableStatistics, schema: &SchemaRef) -> Estimate {
    let rows = statistics.rows as f64;
    let columns = schema
        .fields()
        .iter()
        .enumerate()
        .map(|(index, field)| {
            let Some(column) = statistics.columns.get(index) else { return ColumnEstimate::unknown(rows) };
            let bound = |datum: &Option<tidepool_table::Datum>| {
                datum.as_ref().and_then(|datum| datum_scalar(datum, field.data_type())).and_then(|v| scalar_f64(&v))
            };
            let unique = column.unique || def.primary_key == [index];
            let null_fraction = if rows > 0.0 { column.null_count as f64 / rows } else { 0.0 };
            let values = rows * (1.0 - null_fraction);
            let distinct = match column.distinct_count {
                _ if unique => values,
                Some(count) => (count as f64).min(values),
                None => values,
            };
            ColumnEstimate {
                distinct: distinct.max(1.0),
                min: bound(&column.min),
                max: bound(&column.max),
                null_fraction,
                unique,
            }
        })
        .collect();
    Estimate { rows, columns }
}

/// Every column of some other source of rows, unfiltered.
fn of_provider(statistics: Option<Statistics>, columns: usize) -> Estimate {
    let statistics = statistics.unwrap_or_default();
    let rows = statistics.num_rows.get_value().map_or(ROWS_UNKNOWN, |rows| *rows as f64);
    let column = |index: usize| {
        let Some(column) = statistics.column_statistics.get(index) else { return ColumnEstimate::unknown(rows) };
        let nulls = column.null_count.get_value().map_or(0.0, |nulls| *nulls as f64);
        let values = (rows - nulls).max(1.0);
        ColumnEstimate {
            distinct: column.distinct_count.get_value().map_or(values, |count| (*count as f64).clamp(1.0, values)),
            min: column.min_value.get_value().and_then(scalar_f64),
            max: column.max_value.get_value().and_then(scalar_f64),
            null_fraction: if rows > 0.0 { nulls / rows } else { 0.0 },
            ..ColumnEstimate::unknown(rows)
        }
    };
    Estimate { rows, columns: (0..columns).map(column).collect() }
}

/// The column that an expression is, however it is renamed or cast.
pub fn as_column(expr: &Expr) -> Option<&Column> {
    match expr {
        Expr::Column(column) => Some(column),
        Expr::Alias(alias) => as_column(&alias.expr),
        Expr::Cast(cast) => as_column(&cast.expr),
        Expr::TryCast(cast) => as_column(&cast.expr),
        _ => None,
    }
}

/// The value of a literal, or the one that a parameter is taken for.
fn as_literal(expr: &Expr) -> Option<Cow<'_, ScalarValue>> {
    match expr {
        Expr::Literal(value, _) => Some(Cow::Borrowed(value)),
        Expr::Placeholder(placeholder) => crate::generic::value_for_estimates(&placeholder.id).map(Cow::Owned),
        Expr::Alias(alias) => as_literal(&alias.expr),
        Expr::Cast(cast) => as_literal(&cast.expr),
        _ => None,
    }
}

/// What became of a sample of rows.
#[derive(Clone, Copy, Debug)]
pub struct Tried {
    pub passed: usize,
    pub rows: usize,
    /// There are no others.
    pub all: bool,
}

impl Tried {
    /// The share of all rows that pass, where statistics expect `expected`. The more have passed the more the sample is to be believed; none
    /// says that hardly any do.
    fn pass(self, expected: f64) -> f64 {
        let (passed, rows) = (self.passed as f64, self.rows.max(1) as f64);
        if self.all {
            return passed / rows;
        }
        if self.passed == 0 {
            return expected.min(0.7 / rows);
        }
        let belief = passed / (passed + 2.0);
        let plausible = expected.clamp(passed / rows / 20.0, (passed + 3.0) / rows);
        (passed / rows).powf(belief) * plausible.powf(1.0 - belief)
    }
}

/// The part of a column's values that several conditions leave together.
#[derive(Clone, Copy, Default)]
struct Range {
    low: Option<f64>,
    high: Option<f64>,
}

impl Estimate {
    fn column(&self, schema: &DFSchema, column: &Column) -> Option<(usize, &ColumnEstimate)> {
        let index =
            schema.maybe_index_of_column(column).or_else(|| schema.index_of_column_by_name(None, &column.name))?;
        Some((index, self.columns.get(index)?))
    }

    /// Different values of an expression.
    pub fn distinct(&self, expr: &Expr, schema: &DFSchema) -> f64 {
        if as_literal(expr).is_some() {
            return 1.0;
        }
        if let Some(column) = as_column(expr) {
            return self.column(schema, column).map_or(self.rows, |(_, column)| column.distinct).max(1.0);
        }
        let of_columns = combinations(
            expr.column_refs().into_iter().filter_map(|c| self.column(schema, c)).map(|(_, c)| c.distinct),
            self.rows,
        );
        match expr {
            Expr::ScalarFunction(function) => {
                if function.name() == "date_part"
                    && let [part, source] = &function.args[..]
                    && let Some(part) = as_literal(part)
                    && let Some(Some(part)) = part.try_as_str()
                {
                    let days = source
                        .column_refs()
                        .into_iter()
                        .find_map(|c| self.column(schema, c))
                        .and_then(|(_, c)| Some(c.max? - c.min?))
                        .map_or(3650.0, |span| if span > 1e6 { span / 86_400e6 } else { span });
                    return match part.to_ascii_lowercase().as_str() {
                        "year" => (days / 365.0).ceil().max(1.0),
                        "month" => 12.0,
                        "day" => 31.0,
                        "quarter" => 4.0,
                        "hour" => 24.0,
                        "minute" | "second" => 60.0,
                        "dow" | "isodow" => 7.0,
                        _ => of_columns.min(days.max(1.0)),
                    };
                }
                match &function.args[..] {
                    // No more values than what it is a function of.
                    [argument] => self.distinct(argument, schema).min(of_columns),
                    // A part of a text takes far fewer values than the text.
                    [_, _, ..] => of_columns.sqrt().max(of_columns.min(25.0)),
                    [] => of_columns,
                }
            }
            Expr::Cast(cast) => self.distinct(&cast.expr, schema).min(of_columns),
            Expr::Case(case) => (case.when_then_expr.len() as f64 + 1.0).max(2.0).min(of_columns.max(2.0)),
            _ => of_columns,
        }
    }

    /// Keeps what all of `conditions` let pass.
    pub fn filter<'a>(&mut self, conditions: impl IntoIterator<Item = &'a Expr>, schema: &DFSchema) {
        self.filter_tried(conditions, schema, || None);
    }

    /// As `filter`, where the conditions can be tried together on a sample, unless a key leaves a row at most.
    pub fn filter_tried<'a>(
        &mut self,
        conditions: impl IntoIterator<Item = &'a Expr>,
        schema: &DFSchema,
        tried: impl FnOnce() -> Option<Tried>,
    ) {
        let mut pass = 1.0;
        let mut ranges: Vec<(usize, Range)> = Vec::new();
        let mut distinct_max: Vec<(usize, f64)> = Vec::new();
        for conjunct in conditions.into_iter().flat_map(split_conjunction) {
            if let Some(bounds) = self.as_range(conjunct, schema) {
                for (index, range) in bounds {
                    match ranges.iter_mut().find(|(known, _)| *known == index) {
                        Some((_, known)) => {
                            known.low = max_of(known.low, range.low);
                            known.high = min_of(known.high, range.high);
                        }
                        None => ranges.push((index, range)),
                    }
                }
                continue;
            }
            pass *= self.pass(conjunct, schema);
            let (expr, count) = match conjunct {
                Expr::BinaryExpr(binary) if binary.op == Operator::Eq => {
                    match (as_literal(&binary.left), as_literal(&binary.right)) {
                        (None, Some(_)) => (binary.left.as_ref(), 1.0),
                        (Some(_), None) => (binary.right.as_ref(), 1.0),
                        _ => continue,
                    }
                }
                Expr::InList(list) if !list.negated => (list.expr.as_ref(), list.list.len() as f64),
                Expr::BinaryExpr(binary) if binary.op == Operator::Or => {
                    // Equalities with one column, as a rewritten IN list has them.
                    let mut count = 0.0;
                    let Some(column) = or_of_equalities(conjunct, &mut count) else { continue };
                    (column, count)
                }
                _ => continue,
            };
            if let Some((index, _)) = as_column(expr).and_then(|column| self.column(schema, column)) {
                distinct_max.push((index, count));
            }
        }
        for (index, range) in &ranges {
            pass *= self.range_pass(*index, *range);
        }
        let by_key = distinct_max.iter().any(|(index, count)| *count <= 1.0 && self.columns[*index].unique);
        if !by_key && let Some(tried) = tried() {
            pass = tried.pass(pass);
        }
        let rows_before = self.rows;
        self.rows = (self.rows * pass.clamp(0.0, 1.0)).max(if self.rows > 0.0 { 1.0 } else { 0.0 });
        for (index, range) in ranges {
            let share = self.range_pass(index, range);
            let column = &mut self.columns[index];
            column.min = max_of(column.min, range.low.filter(|_| column.min.is_some()));
            column.max = min_of(column.max, range.high.filter(|_| column.max.is_some()));
            column.distinct = (column.distinct * share).max(1.0);
            column.null_fraction = 0.0;
        }
        for (index, count) in distinct_max {
            let column = &mut self.columns[index];
            column.distinct = column.distinct.min(count.max(1.0));
            column.null_fraction = 0.0;
        }
        self.shrink(rows_before);
    }

    /// Distinct counts after rows went from `rows_before` to `rows`.
    fn shrink(&mut self, rows_before: f64) {
        let rows = self.rows;
        for column in &mut self.columns {
            column.distinct = distinct_left(column.distinct, rows_before, rows);
        }
    }

    fn range_pass(&self, index: usize, range: Range) -> f64 {
        let column = &self.columns[index];
        let (Some(min), Some(max)) = (column.min, column.max) else {
            let bounds = usize::from(range.low.is_some()) + usize::from(range.high.is_some());
            return PASS_RANGE.powi(bounds as i32);
        };
        let low = range.low.unwrap_or(min).max(min);
        let high = range.high.unwrap_or(max).min(max);
        if high < low {
            return 0.0;
        }
        if max <= min {
            return 1.0;
        }
        let share = (high - low) / (max - min);
        (share.max(1.0 / column.distinct) * (1.0 - column.null_fraction)).clamp(0.0, 1.0)
    }

    /// A condition as bounds of columns whose values are on a number line.
    fn as_range(&self, expr: &Expr, schema: &DFSchema) -> Option<Vec<(usize, Range)>> {
        let bounded = |column: &Expr| {
            let (index, column) = self.column(schema, as_column(column)?)?;
            column.min.is_some().then_some(index)
        };
        match expr {
            Expr::Between(between) if !between.negated => {
                let index = bounded(&between.expr)?;
                let low = scalar_f64(&*as_literal(&between.low)?)?;
                let high = scalar_f64(&*as_literal(&between.high)?)?;
                Some(vec![(index, Range { low: Some(low), high: Some(high) })])
            }
            Expr::BinaryExpr(binary) => {
                let (column, value, flipped) = match as_literal(&binary.right) {
                    Some(value) => (&binary.left, value, false),
                    None => (&binary.right, as_literal(&binary.left)?, true),
                };
                let value = scalar_f64(&value)?;
                let index = bounded(column)?;
                let range = match (binary.op, flipped) {
                    (Operator::Lt | Operator::LtEq, false) | (Operator::Gt | Operator::GtEq, true) => {
                        Range { low: None, high: Some(value) }
                    }
                    (Operator::Gt | Operator::GtEq, false) | (Operator::Lt | Operator::LtEq, true) => {
                        Range { low: Some(value), high: None }
                    }
                    _ => return None,
                };
                Some(vec![(index, range)])
            }
            _ => None,
        }
    }

    /// The share of rows that a condition is true for.
    pub fn pass(&self, expr: &Expr, schema: &DFSchema) -> f64 {
        if let Some(bounds) = self.as_range(expr, schema) {
            return bounds.into_iter().map(|(index, range)| self.range_pass(index, range)).product();
        }
        match expr {
            Expr::Alias(alias) => self.pass(&alias.expr, schema),
            Expr::Literal(ScalarValue::Boolean(Some(true)), _) => 1.0,
            Expr::Literal(..) => 0.0,
            Expr::Not(inner) => (1.0 - self.pass(inner, schema)).clamp(0.0, 1.0),
            Expr::Column(column) => match self.column(schema, column) {
                Some((_, estimate)) => 1.0 / estimate.distinct.clamp(1.0, 2.0),
                None => 0.5,
            },
            Expr::IsNull(inner) => self.null_share(inner, schema),
            Expr::IsNotNull(inner) => 1.0 - self.null_share(inner, schema),
            Expr::InList(list) => {
                let pass = (list.list.len() as f64 / self.distinct(&list.expr, schema)).min(1.0);
                if list.negated { 1.0 - pass } else { pass }
            }
            Expr::Like(like) => {
                let distinct = self.distinct(&like.expr, schema);
                let pattern = as_literal(&like.pattern);
                let pass = match pattern.as_ref().and_then(|pattern| pattern.try_as_str().flatten()) {
                    Some(pattern) => like_pass(pattern, distinct),
                    None => PASS_CONTAINS,
                };
                if like.negated { 1.0 - pass } else { pass }
            }
            Expr::Between(between) => {
                let pass = PASS_UNKNOWN;
                if between.negated { 1.0 - pass } else { pass }
            }
            Expr::ScalarFunction(function) => match function.name() {
                "starts_with" => PASS_PREFIX.max(1.0 / self.distinct(&function.args[0], schema)),
                "contains" | "ends_with" | "regexp_like" => {
                    PASS_CONTAINS.max(1.0 / self.distinct(&function.args[0], schema))
                }
                _ => PASS_UNKNOWN,
            },
            Expr::BinaryExpr(binary) => match binary.op {
                Operator::And => {
                    let mut copy = Estimate { rows: 1e12, columns: self.columns.clone() };
                    copy.filter([expr], schema);
                    (copy.rows / 1e12).clamp(0.0, 1.0)
                }
                Operator::Or => {
                    let fail = (1.0 - self.pass(&binary.left, schema)) * (1.0 - self.pass(&binary.right, schema));
                    1.0 - fail
                }
                Operator::Eq | Operator::IsNotDistinctFrom => {
                    if let Some(outside) = self.outside(&binary.left, &binary.right, schema)
                        && outside
                    {
                        return 0.0;
                    }
                    1.0 / self.distinct(&binary.left, schema).max(self.distinct(&binary.right, schema)).max(1.0)
                }
                Operator::NotEq | Operator::IsDistinctFrom => {
                    1.0 - 1.0 / self.distinct(&binary.left, schema).max(self.distinct(&binary.right, schema)).max(1.0)
                }
                Operator::Lt | Operator::LtEq | Operator::Gt | Operator::GtEq => {
                    let literal = as_literal(&binary.left).is_some() || as_literal(&binary.right).is_some();
                    if literal { PASS_RANGE } else { 0.5 }
                }
                Operator::LikeMatch | Operator::ILikeMatch | Operator::RegexMatch | Operator::RegexIMatch => {
                    PASS_CONTAINS
                }
                Operator::NotLikeMatch | Operator::NotILikeMatch | Operator::RegexNotMatch => 1.0 - PASS_CONTAINS,
                _ => PASS_UNKNOWN,
            },
            Expr::InSubquery(_) | Expr::Exists(_) => 0.5,
            _ => PASS_UNKNOWN,
        }
    }

    /// Whether a column is compared with a literal outside its bounds, if known.
    fn outside(&self, left: &Expr, right: &Expr, schema: &DFSchema) -> Option<bool> {
        let (column, value) = match as_literal(right) {
            Some(value) => (left, value),
            None => (right, as_literal(left)?),
        };
        let value = scalar_f64(&value)?;
        let (_, column) = self.column(schema, as_column(column)?)?;
        Some(value < column.min? || value > column.max?)
    }

    fn null_share(&self, expr: &Expr, schema: &DFSchema) -> f64 {
        as_column(expr).and_then(|c| self.column(schema, c)).map_or(0.1, |(_, column)| column.null_fraction)
    }

    fn cap(&mut self, rows: f64) {
        if self.rows > rows {
            let before = self.rows;
            self.rows = rows;
            self.shrink(before);
        }
    }
}

fn max_of(left: Option<f64>, right: Option<f64>) -> Option<f64> {
    match (left, right) {
        (Some(left), Some(right)) => Some(left.max(right)),
        (one, other) => one.or(other),
    }
}

fn min_of(left: Option<f64>, right: Option<f64>) -> Option<f64> {
    match (left, right) {
        (Some(left), Some(right)) => Some(left.min(right)),
        (one, other) => one.or(other),
    }
}

fn or_of_equalities<'a>(expr: &'a Expr, count: &mut f64) -> Option<&'a Expr> {
    let Expr::BinaryExpr(binary) = expr else { return None };
    match binary.op {
        Operator::Or => {
            let left = or_of_equalities(&binary.left, count)?;
            let right = or_of_equalities(&binary.right, count)?;
            (left == right).then_some(left)
        }
        Operator::Eq => {
            *count += 1.0;
            as_literal(&binary.right)?;
            Some(&binary.left)
        }
        _ => None,
    }
}

/// The share of texts that match a LIKE pattern.
fn like_pass(pattern: &str, distinct: f64) -> f64 {
    let pieces = pattern.split('%').filter(|piece| !piece.is_empty()).count();
    let pass = match pieces {
        0 => 1.0,
        _ if !pattern.contains(['%', '_']) => return 1.0 / distinct,
        1 if !pattern.starts_with('%') => PASS_PREFIX,
        pieces => PASS_CONTAINS / pieces as f64,
    };
    pass.max(1.0 / distinct)
}

/// Rows and columns of a plan whose inputs are estimated already.
/// How many rows a plan has.
pub fn estimated_rows(plan: &LogicalPlan) -> f64 {
    of_plan(plan).rows
}

fn of_plan(plan: &LogicalPlan) -> Estimate {
    let inputs: Vec<Estimate> = plan.inputs().into_iter().map(of_plan).collect();
    of_node(plan, &inputs)
}

pub fn of_node(plan: &LogicalPlan, inputs: &[Estimate]) -> Estimate {
    let mut estimate = node(plan, inputs);
    let rows = estimate.rows;
    estimate.columns.resize_with(plan.schema().fields().len(), || ColumnEstimate::unknown(rows));
    estimate
}

fn node(plan: &LogicalPlan, inputs: &[Estimate]) -> Estimate {
    match plan {
        LogicalPlan::TableScan(scan) => of_scan(scan, true),
        LogicalPlan::Projection(projection) => {
            let input = &inputs[0];
            let schema = projection.input.schema();
            let columns = projection
                .expr
                .iter()
                .map(|expr| match as_column(expr).and_then(|column| input.column(schema, column)) {
                    Some((_, column)) => column.clone(),
                    None => {
                        ColumnEstimate { distinct: input.distinct(expr, schema), ..ColumnEstimate::unknown(input.rows) }
                    }
                })
                .collect();
            Estimate { rows: input.rows, columns }
        }
        LogicalPlan::Filter(filter) => {
            let mut estimate = inputs[0].clone();
            estimate.filter([&filter.predicate], filter.input.schema());
            estimate
        }
        LogicalPlan::Aggregate(aggregate) => {
            let input = &inputs[0];
            let schema = aggregate.input.schema();
            let grouping_sets = matches!(&aggregate.group_expr[..], [Expr::GroupingSet(_)]);
            let keys: Vec<&Expr> = match &aggregate.group_expr[..] {
                [Expr::GroupingSet(set)] => set.distinct_expr(),
                keys => keys.iter().collect(),
            };
            let mut columns: Vec<ColumnEstimate> = keys
                .iter()
                .map(|key| match as_column(key).and_then(|column| input.column(schema, column)) {
                    Some((_, column)) => column.clone(),
                    None => {
                        ColumnEstimate { distinct: input.distinct(key, schema), ..ColumnEstimate::unknown(input.rows) }
                    }
                })
                .collect();
            let rows = match columns.iter().any(|column| column.unique) {
                true => input.rows,
                false => combinations(columns.iter().map(|column| column.distinct), input.rows),
            };
            let rows = if keys.is_empty() { 1.0 } else { rows };
            let rows = if grouping_sets { rows * 1.3 } else { rows };
            let one_key = columns.len() == 1 && !grouping_sets;
            for column in &mut columns {
                column.distinct = column.distinct.min(rows).max(1.0);
                column.unique |= one_key;
            }
            Estimate { rows, columns }
        }
        LogicalPlan::Join(join) => {
            let [left, right] = inputs else { return unknown(plan) };
            let on: Vec<(&Expr, &Expr)> = join.on.iter().map(|(left, right)| (left, right)).collect();
            of_join(
                join.join_type,
                (left, join.left.schema()),
                (right, join.right.schema()),
                &on,
                join.filter.as_ref(),
                join.schema.fields().len(),
            )
        }
        LogicalPlan::Distinct(Distinct::All(_)) => {
            let mut estimate = inputs[0].clone();
            if !estimate.columns.iter().any(|column| column.unique) {
                let rows = combinations(estimate.columns.iter().map(|column| column.distinct), estimate.rows);
                estimate.rows = rows;
            }
            let rows = estimate.rows;
            let one = estimate.columns.len() == 1;
            for column in &mut estimate.columns {
                column.distinct = column.distinct.min(rows).max(1.0);
                column.unique |= one;
            }
            estimate
        }
        LogicalPlan::Limit(limit) => {
            let mut estimate = inputs[0].clone();
            if let Ok(FetchType::Literal(Some(fetch))) = limit.get_fetch_type() {
                estimate.cap(fetch as f64);
            }
            estimate
        }
        LogicalPlan::Sort(sort) => {
            let mut estimate = inputs[0].clone();
            if let Some(fetch) = sort.fetch {
                estimate.cap(fetch as f64);
            }
            estimate
        }
        LogicalPlan::Union(_) => {
            let rows = inputs.iter().map(|input| input.rows).sum();
            let mut columns = inputs.first().map_or_else(Vec::new, |input| input.columns.clone());
            for (index, column) in columns.iter_mut().enumerate() {
                let of_all = |part: fn(&ColumnEstimate) -> f64| {
                    inputs.iter().filter_map(|input| input.columns.get(index)).map(part).fold(0.0, f64::max)
                };
                column.distinct = of_all(|column| column.distinct);
                column.null_fraction = of_all(|column| column.null_fraction);
                column.min = None;
                column.max = None;
                column.unique = false;
            }
            Estimate { rows, columns }
        }
        LogicalPlan::EmptyRelation(empty) => {
            Estimate { rows: f64::from(u8::from(empty.produce_one_row)), columns: Vec::new() }
        }
        LogicalPlan::Values(values) => Estimate { rows: values.values.len() as f64, columns: Vec::new() },
        LogicalPlan::SubqueryAlias(_) | LogicalPlan::Repartition(_) | LogicalPlan::Window(_) => inputs[0].clone(),
        _ => match inputs {
            [input] => Estimate { rows: input.rows, columns: Vec::new() },
            _ => unknown(plan),
        },
    }
}

/// A scan of a table, or of something else. `tries`: its conditions are tried on a sample.
fn of_scan(scan: &TableScan, tries: bool) -> Estimate {
    let provider = source_as_provider(&scan.source).ok();
    let schema = scan.source.schema();
    let table = provider.as_ref().and_then(|provider| provider.downcast_ref::<TableProvider>());
    let mut estimate = match table {
        Some(table) => table.estimate(),
        None => of_provider(provider.as_ref().and_then(|provider| provider.statistics()), schema.fields().len()),
    };
    if !scan.filters.is_empty()
        && let Ok(schema) = DFSchema::try_from_qualified_schema(scan.table_name.clone(), &schema)
    {
        let tried = || table.filter(|_| tries).and_then(|table| table.tried(&scan.filters));
        estimate.filter_tried(&scan.filters, &schema, tried);
    }
    if let Some(projection) = &scan.projection {
        estimate.columns = projection.iter().map(|&index| estimate.columns[index].clone()).collect();
    }
    if let Some(fetch) = scan.fetch {
        estimate.cap(fetch as f64);
    }
    estimate
}

/// A scan that is known to give about so many rows.
pub fn of_few(scan: &TableScan, rows: f64) -> Estimate {
    let mut estimate = of_scan(scan, false);
    estimate.cap(rows.max(1.0));
    estimate.rows = rows;
    let columns = scan.projected_schema.fields().len();
    estimate.columns.resize_with(columns, || ColumnEstimate::unknown(rows));
    estimate
}

fn unknown(plan: &LogicalPlan) -> Estimate {
    let columns = plan.schema().fields().iter().map(|_| ColumnEstimate::unknown(ROWS_UNKNOWN)).collect();
    Estimate { rows: ROWS_UNKNOWN, columns }
}

type Side<'a> = (&'a Estimate, &'a DFSchema);

/// The share of pairs that all the equalities together let through.
pub fn equalities_pass(left: Side<'_>, right: Side<'_>, on: &[(&Expr, &Expr)]) -> f64 {
    let distinct = |(left_key, right_key): &(&Expr, &Expr)| {
        (left.0.distinct(left_key, left.1), right.0.distinct(right_key, right.1))
    };
    let distinct: Vec<(f64, f64)> = on.iter().map(distinct).collect();
    let all: f64 = distinct.iter().map(|(left, right)| left.max(*right)).product();
    if on.len() == 1 {
        return 1.0 / all.max(1.0);
    }
    let of_left = distinct.iter().map(|(left, _)| left).product();
    let of_right = distinct.iter().map(|(_, right)| right).product();
    let joint = joint_distinct(all, (of_left, left.0.rows), (of_right, right.0.rows));
    share_with_partners(&distinct, (left.0.rows, right.0.rows)) / joint
}

/// Of several keys, each with its different values on two sides of so many rows: the share of rows, on the side that has more combinations of
/// them, that have a partner by each key alone. The other side's may be a part that a condition left.
pub fn share_with_partners(keys: &[(f64, f64)], rows: (f64, f64)) -> f64 {
    let left: f64 = keys.iter().map(|(left, _)| left).product();
    let right: f64 = keys.iter().map(|(_, right)| right).product();
    let left_has_more = left.min(rows.0) >= right.min(rows.1);
    let share = |(left, right): &(f64, f64)| if left_has_more { right / left.max(1.0) } else { left / right.max(1.0) };
    keys.iter().map(share).fold(1.0, f64::min)
}

/// Different combinations of several keys over both sides: there cannot be more of them than a side has rows.
pub fn joint_distinct(all: f64, left: (f64, f64), right: (f64, f64)) -> f64 {
    let capped_left = left.0.min(left.1);
    let capped_right = right.0.min(right.1);
    let capped = left.0 > left.1 || right.0 > right.1;
    let joint = if capped { capped_left.min(capped_right) } else { capped_left.max(capped_right) };
    joint.min(all).max(1.0)
}

/// The share of left rows that find a partner on the right.
pub fn partner_share(left: Side<'_>, right: Side<'_>, on: &[(&Expr, &Expr)], filter: bool) -> f64 {
    if right.0.rows < 1.0 {
        return 0.0;
    }
    let mut share: f64 = 1.0;
    for (left_key, right_key) in on {
        let left_distinct = left.0.distinct(left_key, left.1);
        let right_distinct = right.0.distinct(right_key, right.1);
        share = share.min(right_distinct / left_distinct.max(1.0));
    }
    (if filter { share * 0.8 } else { share }).clamp(0.0, 1.0)
}

fn of_join(
    join_type: JoinType,
    left: Side<'_>,
    right: Side<'_>,
    on: &[(&Expr, &Expr)],
    filter: Option<&Expr>,
    columns: usize,
) -> Estimate {
    let flipped: Vec<(&Expr, &Expr)> = on.iter().map(|(left, right)| (*right, *left)).collect();
    let one_sided = |side: Side<'_>, share: f64| {
        let mut estimate = side.0.clone();
        estimate.cap((side.0.rows * share).max(1.0));
        estimate
    };
    match join_type {
        JoinType::LeftSemi => return one_sided(left, partner_share(left, right, on, filter.is_some())),
        JoinType::RightSemi => return one_sided(right, partner_share(right, left, &flipped, filter.is_some())),
        JoinType::LeftAnti => {
            return one_sided(left, (1.0 - partner_share(left, right, on, filter.is_some())).max(0.05));
        }
        JoinType::RightAnti => {
            return one_sided(right, (1.0 - partner_share(right, left, &flipped, filter.is_some())).max(0.05));
        }
        JoinType::LeftMark => return left.0.clone(),
        JoinType::RightMark => return right.0.clone(),
        _ => {}
    }
    let mut rows = left.0.rows * right.0.rows * equalities_pass(left, right, on);
    let mut out: Vec<ColumnEstimate> = left.0.columns.iter().chain(&right.0.columns).cloned().collect();
    if let Some(filter) = filter
        && let Ok(schema) = left.1.join(right.1)
    {
        let both = Estimate { rows: rows.max(1.0), columns: out.clone() };
        rows *= both.pass(filter, &schema);
    }
    let rows = match join_type {
        JoinType::Left => rows.max(left.0.rows),
        JoinType::Right => rows.max(right.0.rows),
        JoinType::Full => rows.max(left.0.rows).max(right.0.rows),
        _ => rows.max(1.0),
    };
    let is_unique = |side: Side<'_>, key: &Expr| {
        as_column(key).and_then(|column| side.0.column(side.1, column)).is_some_and(|(_, column)| column.unique)
    };
    let left_once = on.iter().any(|(_, key)| is_unique(right, key));
    let right_once = on.iter().any(|(key, _)| is_unique(left, key));
    let left_columns = left.0.columns.len();
    for (index, column) in out.iter_mut().enumerate() {
        let (side_rows, once) =
            if index < left_columns { (left.0.rows, left_once) } else { (right.0.rows, right_once) };
        column.distinct = distinct_left(column.distinct, side_rows, rows);
        column.unique &= once && join_type == JoinType::Inner;
    }
    for (left_key, right_key) in on {
        if join_type == JoinType::Inner
            && let (Some((l, _)), Some((r, _))) = (
                as_column(left_key).and_then(|column| left.0.column(left.1, column)),
                as_column(right_key).and_then(|column| right.0.column(right.1, column)),
            )
        {
            let distinct = out[l].distinct.min(out[left_columns + r].distinct);
            out[l].distinct = distinct;
            out[left_columns + r].distinct = distinct;
        }
    }
    out.truncate(columns);
    Estimate { rows, columns: out }
}
