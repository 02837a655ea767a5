//! Functions whose values may be long, or that work long on one batch.
//!
//! DataFusion makes them of whole batches, however long they become. Here no value becomes longer than PostgreSQL lets one be (54000), no
//! more of a batch is made at once than is little beside a statement's memory, which has to have the room, and between such parts the
//! statement can be ended. What is long is not made while the statement is planned, outside its memory.
//!
//! One mechanism for all of them: DataFusion's functions by name, and `||`, are wrapped ([`wrapped`], [`bounded`]) with what is known of how long
//! their values become ([`sizes`]); functions of this crate, which make value by value, count what they make ([`Making`]).

mod sizes;

pub use sizes::bytes_of;

use crate::catalog::items::{PLANNED_BYTES_MAX, room};
use crate::errors::carry;
use crate::facts::SessionFacts;
use crate::interrupt::Interrupt;
use crate::rewrites::{RewritePlan, RewriteTree};
use datafusion::arrow::array::{Array, ArrayRef, RecordBatch};
use datafusion::arrow::compute::concat;
use datafusion::arrow::compute::kernels::concat_elements::concat_elements_dyn;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DataFusionError, Result, ScalarValue, exec_err};
use datafusion::logical_expr::binary::BinaryTypeCoercer;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, LogicalPlan, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};
use sizes::{Texts, Widths, count, counts, number};
use std::sync::{Arc, LazyLock};
use tidepool_base::{Error, SqlState};
use tidepool_heap::QueryHeap;

/// PostgreSQL's bound of a value.
const VALUE_BYTES_MAX: usize = 0x3fff_ffff - 4;

/// PostgreSQL's bound of an array's items.
const ITEMS_MAX: usize = 134_217_727;

/// What is made at once.
const PART_BYTES_MAX: usize = 16 << 20;

/// Of what takes long for what it is: patterns above all.
const SLOW_PART_BYTES_MAX: usize = 1 << 20;

/// Offsets of a column that has all of a batch's values in one buffer end here.
const COLUMN_BYTES_MAX: usize = i32::MAX as usize;

/// Rows between two looks whether the statement is still wanted, and what of values is made between two looks whether there is room.
const LOOK_ROWS: usize = 64;
const LOOK_BYTES: usize = 1 << 20;

/// What a function of this crate takes for a value while it makes it of texts. What it takes beyond that is noticed soon.
const MAKING_COPIES: usize = 1;

/// PostgreSQL's `levenshtein` takes no more characters: it takes time with the square of them.
const LEVENSHTEIN_CHARACTERS_MAX: usize = 255;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Repeat,
    Pad,
    Replace,
    /// All arguments together.
    Sum,
    /// As `Sum`, with the first between all others.
    Joined,
    /// A text in another case.
    Cased,
    Translate,
    /// All of an array or of arrays.
    Arrays,
    /// Items of one value.
    Items,
    Series,
    Split,
    /// The items of an array with a separator between them.
    JoinedItems,
    PatternReplace,
    /// All matches of a pattern, with their groups.
    Matches,
    /// Is no longer than its arguments, and takes long for it.
    Slow,
    Levenshtein,
    /// Has bounds of its own: one of this crate's.
    Own,
}

impl Kind {
    fn of(name: &str) -> Option<Kind> {
        Some(match name {
            "repeat" => Kind::Repeat,
            "lpad" | "rpad" => Kind::Pad,
            "replace" => Kind::Replace,
            "concat" | "overlay" | "reverse" | "struct" | "named_struct" => Kind::Sum,
            "concat_ws" => Kind::Joined,
            "upper" | "lower" | "initcap" => Kind::Cased,
            "translate" => Kind::Translate,
            "array_append" | "array_prepend" | "array_concat" | "array_union" | "array_replace"
            | "array_replace_all" | "array_replace_n" | "make_array" => Kind::Arrays,
            "array_repeat" | "array_resize" => Kind::Items,
            "range" | "generate_series" => Kind::Series,
            "string_to_array" => Kind::Split,
            "array_to_string" => Kind::JoinedItems,
            "regexp_replace" => Kind::PatternReplace,
            super::matches::ALL_MATCHES => Kind::Matches,
            "regexp_match" | "regexp_like" | "regexp_count" | "regexp_instr" | "split_part" | "strpos" => Kind::Slow,
            "levenshtein" => Kind::Levenshtein,
            _ => return None,
        })
    }

    fn is_array(self) -> bool {
        matches!(self, Kind::Arrays | Kind::Items | Kind::Series | Kind::Split | Kind::Matches)
    }

    /// Bytes that are made at once.
    fn part_bytes(self) -> usize {
        match self {
            Kind::PatternReplace | Kind::Matches | Kind::Slow => SLOW_PART_BYTES_MAX,
            _ => PART_BYTES_MAX,
        }
    }
}

/// 54000 for a value that is longer than one may be, in PostgreSQL's words for what makes it.
fn too_long(kind: Kind, bytes: usize) -> DataFusionError {
    match kind {
        Kind::Repeat | Kind::Pad | Kind::Cased | Kind::Translate => {
            sql_error(SqlState::PROGRAM_LIMIT_EXCEEDED, "requested length too large")
        }
        kind if kind.is_array() => sql_error(
            SqlState::PROGRAM_LIMIT_EXCEEDED,
            format!("array size exceeds the maximum allowed ({})", VALUE_BYTES_MAX + 4),
        ),
        _ => buffer_full(bytes),
    }
}

/// PostgreSQL's words for a text that outgrows the buffer that it is made in.
fn buffer_full(bytes: usize) -> DataFusionError {
    carry(full_buffer(bytes))
}

fn full_buffer(bytes: usize) -> Error {
    Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "out of memory")
        .with_detail(format!("Cannot enlarge string buffer to {bytes} bytes; the most is {VALUE_BYTES_MAX}."))
}

use super::sql_error;

/// What can end the statement that a function is called in.
fn interrupt_of(options: &ConfigOptions) -> Option<Arc<Interrupt>> {
    let facts = SessionFacts::of(options)?;
    facts.planner.shared(facts.session_id)?.interrupt().upgrade()
}

/// What a function of this crate has made of a batch, value by value.
pub struct Making<'a> {
    name: &'static str,
    options: &'a ConfigOptions,
    /// Once it was looked for: most calls are over before.
    interrupt: Option<Option<Arc<Interrupt>>>,
    rows: usize,
    bytes: usize,
    looked_at: usize,
}

impl<'a> Making<'a> {
    pub fn new(name: &'static str, options: &'a ConfigOptions) -> Making<'a> {
        Making { name, options, interrupt: None, rows: 0, bytes: 0, looked_at: 0 }
    }

    /// Makes a value of arguments of so many bytes together, once there is room.
    pub fn value<T>(&mut self, args_bytes: usize, make: impl FnOnce() -> Result<T>) -> Result<T> {
        self.rows += 1;
        if self.rows.is_multiple_of(LOOK_ROWS) || args_bytes >= LOOK_BYTES {
            self.look()?;
        }
        if args_bytes < LOOK_BYTES {
            return make();
        }
        room(args_bytes.saturating_mul(MAKING_COPIES), make)?
    }

    /// Counts a value that was made.
    pub fn made(&mut self, bytes: usize) -> Result<()> {
        if bytes > VALUE_BYTES_MAX {
            return Err(buffer_full(bytes));
        }
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > PLANNED_BYTES_MAX && crate::planning::is_planning() {
            return exec_err!("the values of {} are made when the statement runs", self.name);
        }
        if self.bytes - self.looked_at >= LOOK_BYTES {
            self.looked_at = self.bytes;
            self.look()?;
        }
        Ok(())
    }

    /// Makes a column of the values, which takes their bytes once more.
    pub fn column<T>(&self, make: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.bytes < LOOK_BYTES {
            return make();
        }
        within_column(self.bytes)?;
        room(self.bytes.saturating_mul(2), make)?
    }

    fn look(&mut self) -> Result<()> {
        if let Some(interrupt) = self.interrupt.get_or_insert_with(|| interrupt_of(self.options)) {
            interrupt.check().map_err(carry)?;
        }
        QueryHeap::current().map_or(Ok(()), |heap| heap.check()).map_err(carry)
    }
}

/// Whether a text of so many bytes may become so much longer.
pub fn may_grow(bytes: usize, more: usize) -> Result<()> {
    match bytes.saturating_add(more) {
        sum if sum > VALUE_BYTES_MAX => Err(buffer_full(sum)),
        _ => Ok(()),
    }
}

/// 53200 where a batch's values do not fit in one column.
fn within_column(bytes: usize) -> Result<()> {
    if bytes <= COLUMN_BYTES_MAX {
        return Ok(());
    }
    let error = Error::new(SqlState::OUT_OF_MEMORY, "out of memory")
        .with_detail(format!("The values of some rows that are worked on together take {bytes} bytes."));
    Err(carry(error))
}

/// 54000 for a value of a batch that is longer than one may be: an aggregate may have made it.
pub fn check_batch(batch: &RecordBatch, bytes: usize) -> tidepool_base::Result<()> {
    if bytes <= VALUE_BYTES_MAX {
        return Ok(());
    }
    let longest = batch.columns().iter().filter_map(|column| sizes::widths_of(column.as_ref()).into_iter().max());
    match longest.max() {
        Some(longest) if longest > VALUE_BYTES_MAX => Err(full_buffer(longest)),
        _ => Ok(()),
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Bounded {
    kind: Kind,
    inner: Arc<ScalarUDF>,
    /// One value of constants is copied for each row by what it is given to.
    is_spread: bool,
}

/// A function with bounds, where it may need them.
pub fn wrapped(function: &Arc<ScalarUDF>) -> Option<Arc<ScalarUDF>> {
    if function.inner().downcast_ref::<Bounded>().is_some()
        || function.inner().downcast_ref::<super::Function>().is_some()
    {
        return None;
    }
    let kind = Kind::of(function.name())?;
    Some(Arc::new(ScalarUDF::new_from_impl(Bounded { kind, inner: function.clone(), is_spread: false })))
}

/// Puts bounds to what a plan's expressions call.
pub fn bounded(plan: LogicalPlan) -> Result<LogicalPlan> {
    let mut node = |node: LogicalPlan| {
        let mut calls = false;
        node.apply_expressions(|expr| {
            calls = calls || expr.exists(|expr| Ok(is_unbounded(expr)))?;
            Ok(datafusion::common::tree_node::TreeNodeRecursion::Continue)
        })?;
        if !calls {
            return Ok(Transformed::no(node));
        }
        let names = NamePreserver::new(&node);
        node.rewrite_expressions(&mut |expr| {
            let name = names.save(&expr);
            let expr = spread(expr.rewrite_up(&mut |expr| Ok(with_bounds(expr)))?.data, false)?;
            Ok(Transformed::yes(name.restore(expr)))
        })
    };
    Ok(plan.rewrite_down_with_subqueries(&mut node)?.data)
}

/// Whether it has bounds, and takes a constant for what it is.
fn is_bounded(function: &ScalarUDF) -> bool {
    let inner = function.inner();
    inner.downcast_ref::<Bounded>().is_some() || inner.downcast_ref::<super::Function>().is_some()
}

/// Notes which calls' values are copied for each row, should they be constants: those that are given to something else than such a call.
fn spread(expr: Expr, is_within: bool) -> Result<Expr> {
    let takes_constants = matches!(&expr, Expr::ScalarFunction(call) if is_bounded(&call.func));
    let expr = expr.map_children(|child| Ok(Transformed::yes(spread(child, takes_constants)?)))?.data;
    let Expr::ScalarFunction(call) = expr else { return Ok(expr) };
    if !takes_constants || is_within || call.args.iter().any(Expr::any_column_refs) {
        return Ok(Expr::ScalarFunction(call));
    }
    let (kind, inner) = match call.func.inner().downcast_ref::<Bounded>() {
        Some(bounded) => (bounded.kind, bounded.inner.clone()),
        None => (Kind::Own, call.func.clone()),
    };
    let func = Arc::new(ScalarUDF::new_from_impl(Bounded { kind, inner, is_spread: true }));
    Ok(Expr::ScalarFunction(ScalarFunction { func, ..call }))
}

fn is_unbounded(expr: &Expr) -> bool {
    match expr {
        Expr::BinaryExpr(BinaryExpr { op, .. }) => *op == Operator::StringConcat,
        Expr::ScalarFunction(call) => is_bounded(&call.func) || wrapped(&call.func).is_some(),
        _ => false,
    }
}

fn with_bounds(expr: Expr) -> Transformed<Expr> {
    static CONCATENATION: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| {
        QueryHeap::outside(|| {
            let inner = Arc::new(ScalarUDF::new_from_impl(Concatenation(Signature::any(2, Volatility::Immutable))));
            Arc::new(ScalarUDF::new_from_impl(Bounded { kind: Kind::Sum, inner, is_spread: false }))
        })
    });
    match expr {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::StringConcat, right }) => {
            let call = ScalarFunction::new_udf(CONCATENATION.clone(), vec![*left, *right]);
            Transformed::yes(Expr::ScalarFunction(call))
        }
        Expr::ScalarFunction(call) => match wrapped(&call.func) {
            Some(func) => Transformed::yes(Expr::ScalarFunction(ScalarFunction { func, ..call })),
            None => Transformed::no(Expr::ScalarFunction(call)),
        },
        expr => Transformed::no(expr),
    }
}

/// `||` of two texts or two `bytea`, as DataFusion's operators have it.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Concatenation(Signature);

impl ScalarUDFImpl for Concatenation {
    fn name(&self) -> &'static str {
        "||"
    }
    fn signature(&self) -> &Signature {
        &self.0
    }
    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [left, right] => BinaryTypeCoercer::new(left, &Operator::StringConcat, right).get_result_type(),
            _ => exec_err!("|| stands between two values"),
        }
    }
    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        crate::planning::check().map_err(carry)?;
        let types: Vec<DataType> = args.arg_fields.iter().map(|field| field.data_type().clone()).collect();
        let nullable = args.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Arc::new(Field::new(self.name(), self.return_type(&types)?, nullable)))
    }
    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let is_constant = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_constant { 1 } else { args.number_rows };
        let [left, right] = args.args.as_slice() else { return exec_err!("|| stands between two values") };
        let made = concat_elements_dyn(&left.to_array(rows)?, &right.to_array(rows)?)?;
        match is_constant {
            true => Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&made, 0)?)),
            false => Ok(ColumnarValue::Array(made)),
        }
    }
}

impl Bounded {
    /// How long the values become, by row.
    fn sizes(&self, args: &[ColumnarValue], rows: usize, options: &Arc<ConfigOptions>) -> Result<Vec<usize>> {
        let texts = |place: usize| args.get(place).map_or(Ok(Texts::One(String::new())), Texts::of);
        let by_row = |size: &dyn Fn(usize) -> usize| -> Vec<usize> { (0..rows).map(size).collect() };
        let widths = || -> Vec<Widths> { args.iter().map(Widths::of).collect() };
        let sum = |widths: &[Widths], row| widths.iter().fold(0usize, |sum, arg| sum.saturating_add(arg.row(row)));
        let sizes: Vec<usize> = match (self.kind, args) {
            (Kind::Repeat, [text, times]) => {
                let texts = Texts::of(text)?;
                by_row(&|row| texts.row(row).len().saturating_mul(count(times, row)))
            }
            (Kind::Pad, [_, characters, ..]) => by_row(&|row| sizes::characters(count(characters, row))),
            (Kind::Replace, [_, _, _]) => {
                let (text, from, to) = (texts(0)?, texts(1)?, texts(2)?);
                by_row(&|row| sizes::replaced(text.row(row), from.row(row), to.row(row)))
            }
            (Kind::Sum | Kind::Slow, _) => {
                let widths = widths();
                by_row(&|row| sum(&widths, row))
            }
            (Kind::Joined, [_, ..]) => {
                let widths = widths();
                let between = args.len().saturating_sub(2);
                by_row(&|row| sum(&widths[1..], row).saturating_add(widths[0].row(row).saturating_mul(between)))
            }
            (Kind::Cased, [_]) => {
                let text = texts(0)?;
                by_row(&|row| sizes::cased(text.row(row)))
            }
            (Kind::Translate, [_, _, _]) => {
                let (text, to) = (texts(0)?, texts(2)?);
                by_row(&|row| sizes::translated(text.row(row), to.row(row)))
            }
            (Kind::Arrays, _) => {
                let widths = widths();
                let items = |row| args.iter().map(|arg| sizes::items(arg, row)).sum::<usize>();
                within_items((0..rows).map(items).max())?;
                by_row(&|row| sum(&widths, row))
            }
            (Kind::Items, [first, second, rest @ ..]) => {
                // `array_repeat` has the value first, `array_resize` last.
                let (value, times) = match self.inner.name() {
                    "array_repeat" => (first, second),
                    _ => (rest.first().unwrap_or(first), second),
                };
                let width = Widths::of(value);
                within_items((0..rows).map(|row| count(times, row)).max())?;
                by_row(&|row| count(times, row).saturating_mul(width.row(row).max(8)))
            }
            (Kind::Series, [first, rest @ ..]) => {
                let items = |row| {
                    let (start, stop) = match rest.first() {
                        Some(stop) => (number(first, row).unwrap_or(0), number(stop, row).unwrap_or(0)),
                        None => (0, number(first, row).unwrap_or(0)),
                    };
                    let step = rest.get(1).map_or(1, |step| number(step, row).unwrap_or(1)).unsigned_abs().max(1);
                    usize::try_from(start.abs_diff(stop) / step).unwrap_or(usize::MAX)
                };
                within_items((0..rows).map(items).max())?;
                by_row(&|row| items(row).saturating_mul(8))
            }
            (Kind::Split, [_, separator, ..]) => {
                let (text, between) = (texts(0)?, texts(1)?);
                let is_null = |row| match separator {
                    ColumnarValue::Scalar(scalar) => scalar.is_null(),
                    ColumnarValue::Array(array) => array.is_null(row),
                };
                by_row(&|row| sizes::split(text.row(row), (!is_null(row)).then(|| between.row(row))))
            }
            (Kind::JoinedItems, [array, separator, rest @ ..]) => {
                let (array_widths, separator) = (Widths::of(array), Widths::of(separator));
                let null = rest.first().map_or(Widths::One(0), Widths::of);
                by_row(&|row| {
                    let each = separator.row(row).saturating_add(null.row(row));
                    array_widths.row(row).saturating_add(sizes::items(array, row).saturating_mul(each))
                })
            }
            (Kind::PatternReplace, [_, _, _, ..]) => {
                let (text, pattern, to, flags) = (texts(0)?, texts(1)?, texts(2)?, texts(3)?);
                by_row(&|row| {
                    let counted = || sizes::matches(text.row(row), pattern.row(row), flags.row(row), options);
                    sizes::pattern_replaced(text.row(row), to.row(row), flags.row(row), counted)
                })
            }
            (Kind::Matches, [_, _, ..]) => {
                let (text, pattern, flags) = (texts(0)?, texts(1)?, texts(2)?);
                by_row(&|row| {
                    let counted = || sizes::matches(text.row(row), pattern.row(row), flags.row(row), options);
                    sizes::matched(text.row(row), pattern.row(row), counted)
                })
            }
            (Kind::Levenshtein, [_, _, ..]) => {
                let (left, right) = (texts(0)?, texts(1)?);
                let is_long = |text: &str| text.chars().nth(LEVENSHTEIN_CHARACTERS_MAX).is_some();
                if (0..rows).any(|row| is_long(left.row(row)) || is_long(right.row(row))) {
                    let most = LEVENSHTEIN_CHARACTERS_MAX;
                    let message = format!("levenshtein argument exceeds maximum length of {most} characters");
                    return Err(sql_error(SqlState::INVALID_PARAMETER_VALUE, message));
                }
                vec![0; rows]
            }
            _ => vec![0; rows],
        };
        match sizes.iter().find(|size| **size > VALUE_BYTES_MAX) {
            None => Ok(sizes),
            Some(size) => Err(too_long(self.kind, *size)),
        }
    }
}

fn within_items(most: Option<usize>) -> Result<()> {
    match most {
        Some(most) if most > ITEMS_MAX => Err(sql_error(
            SqlState::PROGRAM_LIMIT_EXCEEDED,
            format!("array size exceeds the maximum allowed ({ITEMS_MAX})"),
        )),
        _ => Ok(()),
    }
}

impl ScalarUDFImpl for Bounded {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }
    fn signature(&self) -> &Signature {
        self.inner.signature()
    }
    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        super::name_of_call(self.name(), args)
    }
    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(arg_types)
    }
    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        crate::planning::check().map_err(carry)?;
        self.inner.return_field_from_args(args)
    }
    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.coerce_types(arg_types)
    }
    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = args.number_rows;
        let made = self.made(args)?;
        if let ColumnarValue::Scalar(scalar) = &made
            && self.is_spread
        {
            let bytes = sizes::width_of(scalar).saturating_mul(rows);
            if bytes > LOOK_BYTES {
                within_column(bytes)?;
                room(bytes, || ())?;
            }
        }
        Ok(made)
    }
}

impl Bounded {
    fn made(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if self.kind == Kind::Own {
            return self.inner.invoke_with_args(args);
        }
        if matches!(self.kind, Kind::Repeat | Kind::Pad)
            && let Some(argument) = args.args.get_mut(1)
        {
            *argument = counts(argument)?;
        }
        let is_constant = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if is_constant { 1 } else { args.number_rows };
        let sizes = self.sizes(&args.args, rows, &args.config_options)?;
        let total: usize = sizes.iter().copied().fold(0, usize::saturating_add);
        if total > PLANNED_BYTES_MAX && crate::planning::is_planning() {
            // Whoever computes constants leaves it as it is.
            return exec_err!("a value of {total} bytes is made when the statement runs");
        }
        let part_bytes = self.kind.part_bytes();
        if total <= part_bytes {
            return self.inner.invoke_with_args(args);
        }
        let interrupt = interrupt_of(&args.config_options);
        let mut parts: Vec<ArrayRef> = Vec::new();
        let mut start = 0;
        while start < rows {
            if let Some(interrupt) = &interrupt {
                interrupt.check().map_err(carry)?;
            }
            let mut end = start + 1;
            let mut bytes = sizes[start];
            while end < rows && bytes.saturating_add(sizes[end]) <= part_bytes {
                bytes += sizes[end];
                end += 1;
            }
            let sliced = args.args.iter().map(|arg| match arg {
                ColumnarValue::Array(array) => ColumnarValue::Array(array.slice(start, end - start)),
                scalar => scalar.clone(),
            });
            let part = ScalarFunctionArgs {
                args: sliced.collect(),
                arg_fields: args.arg_fields.clone(),
                number_rows: end - start,
                return_field: args.return_field.clone(),
                config_options: args.config_options.clone(),
            };
            // Twice: it is copied once it is whole.
            let made = room(bytes.saturating_mul(2), || self.inner.invoke_with_args(part))??;
            if is_constant {
                return Ok(made);
            }
            parts.push(made.into_array(end - start)?);
            start = end;
        }
        if !matches!(args.return_field.data_type(), DataType::Utf8View | DataType::BinaryView | DataType::LargeUtf8) {
            within_column(if self.kind == Kind::Slow { 0 } else { total })?;
        }
        let parts: Vec<&dyn Array> = parts.iter().map(AsRef::as_ref).collect();
        if self.kind == Kind::Slow {
            return Ok(ColumnarValue::Array(concat(&parts)?));
        }
        Ok(ColumnarValue::Array(room(total, || concat(&parts))??))
    }
}
