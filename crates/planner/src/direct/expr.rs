//! Expressions of one row, evaluated as they are written.
//!
//! They are made of a plan's expressions after analysis, so names are resolved, types are settled and casts are where they
//! belong. What there is no form for here, the general path is for.

use super::datum::{Datum, is_covered, is_ordered, is_text};
use crate::casts;
use crate::errors::{from_arrow, from_datafusion};
use arrow::array::{ArrayRef, AsArray, Datum as ArrowDatum, Scalar};
use arrow::compute::kernels::numeric;
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, FieldRef, TimeUnit};
use arrow::error::ArrowError;
use datafusion::common::config::ConfigOptions;
use datafusion::common::{DFSchema, ExprSchema};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr as PlanExpr, ExprSchemable, Operator, ScalarFunctionArgs, ScalarUDF, Volatility,
};
use std::cmp::Ordering;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState, SqlType};
use tidepool_database::Sequence;
use tidepool_database::text::{TextReader, TextSettings};
use tidepool_engine::evaluate::Fault;
use tidepool_engine::expr::ArithmeticOp;
use tidepool_table::rows::{RowLayout, RowRef};

/// A row of one of a statement's tables.
#[derive(Clone, Copy)]
pub enum Row<'v> {
    /// Not looked up yet.
    None,
    Stored {
        layout: &'v RowLayout,
        types: &'v [SqlType],
        row: RowRef<'v>,
    },
}

impl<'v> Row<'v> {
    #[inline]
    pub fn column(&self, column: usize) -> Result<Datum<'v>> {
        match self {
            Row::None => Err(Error::internal("a row is used before it is found")),
            Row::Stored { layout, types, row: RowRef::Version(image) } => {
                Datum::of_value(layout.value(image, column), types[column])
            }
            Row::Stored { layout, types, row: RowRef::Main { group, position } } => {
                let mut room = Vec::new();
                let value = layout.value_in_main(group, *position, column, &mut room)?;
                Datum::of_value(value, types[column]).map(Datum::into_owned)
            }
        }
    }
}

/// What an expression is evaluated over.
#[derive(Clone, Copy)]
pub struct Frame<'f> {
    pub parameters: &'f [Datum<'static>],
    /// A row of each table.
    pub rows: &'f [Row<'f>],
    /// What an earlier stage gave: a new row, or what a query aggregates to.
    pub slots: &'f [Datum<'f>],
    pub context: &'f dyn Context,
}

/// What expressions may ask of the statement.
pub trait Context {
    /// Microseconds since 1970: when the transaction began.
    fn now_us(&self) -> i64;
    fn text_settings(&self) -> &TextSettings;
    fn next_value(&self, sequence: &Arc<Sequence>) -> Result<i64>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntKind {
    Small,
    Normal,
    Big,
}

impl IntKind {
    fn of(data_type: &DataType) -> Option<IntKind> {
        Some(match data_type {
            DataType::Int16 => IntKind::Small,
            DataType::Int32 => IntKind::Normal,
            DataType::Int64 => IntKind::Big,
            _ => return None,
        })
    }

    fn has(self, value: i64) -> bool {
        match self {
            IntKind::Small => i16::try_from(value).is_ok(),
            IntKind::Normal => i32::try_from(value).is_ok(),
            IntKind::Big => true,
        }
    }

    fn name(self) -> &'static str {
        match self {
            IntKind::Small => "smallint",
            IntKind::Normal => "integer",
            IntKind::Big => "bigint",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    fn of(op: Operator) -> Option<Comparison> {
        Some(match op {
            Operator::Eq => Comparison::Equal,
            Operator::NotEq => Comparison::NotEqual,
            Operator::Lt => Comparison::Less,
            Operator::LtEq => Comparison::LessOrEqual,
            Operator::Gt => Comparison::Greater,
            Operator::GtEq => Comparison::GreaterOrEqual,
            _ => return None,
        })
    }

    /// The same comparison, its sides changed.
    pub fn swapped(self) -> Comparison {
        match self {
            Comparison::Less => Comparison::Greater,
            Comparison::LessOrEqual => Comparison::GreaterOrEqual,
            Comparison::Greater => Comparison::Less,
            Comparison::GreaterOrEqual => Comparison::LessOrEqual,
            same => same,
        }
    }

    fn holds(self, ordering: Ordering) -> bool {
        match self {
            Comparison::Equal => ordering.is_eq(),
            Comparison::NotEqual => ordering.is_ne(),
            Comparison::Less => ordering.is_lt(),
            Comparison::LessOrEqual => ordering.is_le(),
            Comparison::Greater => ordering.is_gt(),
            Comparison::GreaterOrEqual => ordering.is_ge(),
        }
    }
}

/// A function without side effects that always gives the same for the same.
#[derive(Clone)]
pub struct Call {
    function: Arc<ScalarUDF>,
    arguments: Vec<(Expr, FieldRef)>,
    returns: FieldRef,
    options: Arc<ConfigOptions>,
}

#[derive(Clone)]
pub enum Expr {
    Constant(Datum<'static>),
    /// From zero.
    Parameter(usize),
    Column {
        table: usize,
        column: usize,
    },
    Slot(usize),
    /// The row's id, which nothing is computed of.
    RowId(usize),
    Now,
    NextValue(Arc<Sequence>),
    /// Of integers of one type, checked; the error says which.
    Integer {
        op: Arithmetic,
        kind: IntKind,
        of: Box<[Expr; 2]>,
    },
    /// Of anything else: factors that bring numerics to one scale, and Arrow's own arithmetic where that overflows.
    Number {
        op: Arithmetic,
        factors: Option<(i128, i128)>,
        types: Box<(DataType, DataType, DataType)>,
        of: Box<[Expr; 2]>,
    },
    Negative(Box<Expr>, DataType),
    Concat(Box<[Expr; 2]>),
    Compare {
        op: Comparison,
        of: Box<[Expr; 2]>,
    },
    /// `IS [NOT] DISTINCT FROM`.
    Distinct {
        negated: bool,
        of: Box<[Expr; 2]>,
    },
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Not(Box<Expr>),
    IsNull {
        of: Box<Expr>,
        negated: bool,
    },
    In {
        of: Box<Expr>,
        list: Vec<Expr>,
        negated: bool,
    },
    Case {
        when: Vec<(Expr, Expr)>,
        otherwise: Option<Box<Expr>>,
    },
    /// A whole number as one of a narrower type.
    Narrow {
        kind: IntKind,
        of: Box<Expr>,
        types: Box<(DataType, DataType)>,
    },
    /// A number as a numeric of more digits after the point.
    Rescale {
        factor: i128,
        limit: i128,
        of: Box<Expr>,
        types: Box<(DataType, DataType)>,
    },
    Cast {
        of: Box<Expr>,
        types: Box<(DataType, DataType)>,
    },
    /// A text read as a value of a type, as the session reads it.
    Read {
        of: Box<Expr>,
        sql_type: SqlType,
    },
    Call(Box<Call>),
}

/// What an output of a plan's input is here; `None` for one that there is no form for, which does no harm while nobody wants it.
pub type Inputs = [Option<Expr>];

pub struct Compiler<'c> {
    /// For functions that ask for nothing of the session.
    pub options: &'c Arc<ConfigOptions>,
    pub sequence: &'c dyn Fn(&str) -> Option<Arc<Sequence>>,
}

impl Compiler<'_> {
    /// `None`: there is no form for it.
    pub fn compile(&self, expr: &PlanExpr, schema: &DFSchema, inputs: &Inputs) -> Option<Expr> {
        let compiled = self.form(expr, schema, inputs)?;
        Some(fold(compiled))
    }

    fn form(&self, expr: &PlanExpr, schema: &DFSchema, inputs: &Inputs) -> Option<Expr> {
        let of = |expr: &PlanExpr| self.compile(expr, schema, inputs);
        let type_of = |expr: &PlanExpr| expr.get_type(schema).ok();
        Some(match expr {
            PlanExpr::Alias(alias) => of(&alias.expr)?,
            PlanExpr::Column(column) => inputs[schema.maybe_index_of_column(column)?].clone()?,
            PlanExpr::Literal(value, _) => Expr::Constant(Datum::of_scalar(value)?),
            PlanExpr::Placeholder(placeholder) => {
                let number: usize = placeholder.id.strip_prefix('$')?.parse().ok()?;
                placeholder.field.as_ref().filter(|field| is_covered(field.data_type()))?;
                Expr::Parameter(number.checked_sub(1)?)
            }
            PlanExpr::BinaryExpr(binary) => self.binary(binary, schema, inputs)?,
            PlanExpr::Not(of_expr) => Expr::Not(Box::new(of(of_expr)?)),
            PlanExpr::IsNull(expr) => Expr::IsNull { of: Box::new(of(expr)?), negated: false },
            PlanExpr::IsNotNull(expr) => Expr::IsNull { of: Box::new(of(expr)?), negated: true },
            PlanExpr::Negative(expr) => {
                let data_type = type_of(expr)?;
                let is_number = IntKind::of(&data_type).is_some()
                    || matches!(data_type, DataType::Decimal128(..) | DataType::Float32 | DataType::Float64);
                is_number.then(|| of(expr).map(|of| Expr::Negative(Box::new(of), data_type)))??
            }
            PlanExpr::Between(between) => {
                let data_type = type_of(&between.expr)?;
                let same =
                    [&between.low, &between.high].iter().all(|bound| type_of(bound).as_ref() == Some(&data_type));
                if !same || !is_ordered(&data_type) {
                    return None;
                }
                let value = of(&between.expr)?;
                let bound = |bound: &PlanExpr| Some(as_held(of(bound)?, bound, &between.expr, schema));
                let low = Box::new([value.clone(), bound(&between.low)?]);
                let low = Expr::Compare { op: Comparison::GreaterOrEqual, of: low };
                let high = Expr::Compare { op: Comparison::LessOrEqual, of: Box::new([value, bound(&between.high)?]) };
                let both = Expr::And(vec![low, high]);
                if between.negated { Expr::Not(Box::new(both)) } else { both }
            }
            PlanExpr::InList(list) => {
                let data_type = type_of(&list.expr)?;
                let same = list.list.iter().all(|item| type_of(item).as_ref() == Some(&data_type));
                if !same || !is_ordered(&data_type) {
                    return None;
                }
                Expr::In {
                    of: Box::new(of(&list.expr)?),
                    list: list
                        .list
                        .iter()
                        .map(|item| Some(as_held(of(item)?, item, &list.expr, schema)))
                        .collect::<Option<_>>()?,
                    negated: list.negated,
                }
            }
            PlanExpr::Case(case) => {
                let result = type_of(expr)?;
                let same = |expr: &PlanExpr| type_of(expr).filter(|of| *of == result || *of == DataType::Null);
                let mut when = Vec::with_capacity(case.when_then_expr.len());
                for (condition, value) in &case.when_then_expr {
                    same(value)?;
                    let condition = match &case.expr {
                        None if type_of(condition)? == DataType::Boolean => of(condition)?,
                        None => return None,
                        Some(base) => {
                            let data_type = type_of(base)?;
                            if !is_ordered(&data_type) || type_of(condition)? != data_type {
                                return None;
                            }
                            Expr::Compare { op: Comparison::Equal, of: Box::new([of(base)?, of(condition)?]) }
                        }
                    };
                    when.push((condition, of(value)?));
                }
                let otherwise = match &case.else_expr {
                    Some(otherwise) => {
                        same(otherwise)?;
                        Some(Box::new(of(otherwise)?))
                    }
                    None => None,
                };
                Expr::Case { when, otherwise }
            }
            PlanExpr::Cast(cast) => {
                let (from, to) = (type_of(&cast.expr)?, cast.field.data_type().clone());
                self.cast(of(&cast.expr)?, from, to)?
            }
            PlanExpr::ScalarFunction(function) => self.call(function, schema, inputs)?,
            _ => return None,
        })
    }

    fn cast(&self, of: Expr, from: DataType, to: DataType) -> Option<Expr> {
        if from == to || is_text(&from) && is_text(&to) || matches!(of, Expr::RowId(_)) {
            return Some(of);
        }
        if !is_covered(&from) && from != DataType::UInt64 || !is_covered(&to) {
            return None;
        }
        if from == DataType::Null {
            return Some(Expr::Constant(Datum::Null));
        }
        let types = Box::new((from.clone(), to.clone()));
        let of = Box::new(of);
        Some(match (&from, &to) {
            (from, to) if IntKind::of(from).is_some() && IntKind::of(to).is_some() => {
                let (from, kind) = (IntKind::of(from)?, IntKind::of(to)?);
                if kind as u8 >= from as u8 { *of } else { Expr::Narrow { kind, of, types } }
            }
            (from, DataType::Decimal128(precision, scale)) if IntKind::of(from).is_some() && *scale >= 0 => {
                rescale(0, *precision, *scale, of, types)?
            }
            (DataType::Decimal128(from_precision, from), DataType::Decimal128(precision, scale))
                if scale == from && precision >= from_precision =>
            {
                *of
            }
            (DataType::Decimal128(_, from), DataType::Decimal128(precision, scale)) if scale >= from => {
                rescale(*from, *precision, *scale, of, types)?
            }
            // What the session says of time zones is in the types.
            (DataType::Timestamp(TimeUnit::Microsecond, _), DataType::Timestamp(TimeUnit::Microsecond, _))
                if [&from, &to].iter().all(|data_type| is_utc(data_type)) =>
            {
                *of
            }
            (from, to) if is_text(from) || is_text(to) => return None,
            _ => Expr::Cast { of, types },
        })
    }

    fn binary(&self, binary: &BinaryExpr, schema: &DFSchema, inputs: &Inputs) -> Option<Expr> {
        let BinaryExpr { left, op, right } = binary;
        match op {
            Operator::And | Operator::Or => {
                let mut all = Vec::new();
                for side in [left, right] {
                    match (op, self.compile(side, schema, inputs)?) {
                        (Operator::And, Expr::And(of)) | (Operator::Or, Expr::Or(of)) => all.extend(of),
                        (_, one) => all.push(one),
                    }
                }
                return Some(if *op == Operator::And { Expr::And(all) } else { Expr::Or(all) });
            }
            _ => {}
        }
        let (left_type, right_type) = (left.get_type(schema).ok()?, right.get_type(schema).ok()?);
        let mut of = Box::new([self.compile(left, schema, inputs)?, self.compile(right, schema, inputs)?]);
        if casts::is_comparison(*op) {
            let [of_left, of_right] = *of;
            of = Box::new([as_held(of_left, left, right, schema), as_held(of_right, right, left, schema)]);
        }
        if let Some(op) = Comparison::of(*op) {
            let comparable = left_type == right_type || is_text(&left_type) && is_text(&right_type);
            return (comparable && is_ordered(&left_type)).then_some(Expr::Compare { op, of });
        }
        match op {
            Operator::IsDistinctFrom | Operator::IsNotDistinctFrom => {
                let negated = *op == Operator::IsNotDistinctFrom;
                (left_type == right_type && is_ordered(&left_type)).then_some(Expr::Distinct { negated, of })
            }
            Operator::StringConcat if is_text(&left_type) && is_text(&right_type) => Some(Expr::Concat(of)),
            _ => {
                let op = match op {
                    Operator::Plus => Arithmetic::Add,
                    Operator::Minus => Arithmetic::Subtract,
                    Operator::Multiply => Arithmetic::Multiply,
                    Operator::Divide => Arithmetic::Divide,
                    Operator::Modulo => Arithmetic::Modulo,
                    _ => return None,
                };
                let is_number = |data_type: &DataType| {
                    IntKind::of(data_type).is_some()
                        || matches!(data_type, DataType::Decimal128(..) | DataType::Float32 | DataType::Float64)
                };
                if !is_number(&left_type) || !is_number(&right_type) {
                    return None;
                }
                let result = PlanExpr::BinaryExpr(binary.clone()).get_type(schema).ok()?;
                let factors = match (&left_type, &right_type, op) {
                    (
                        DataType::Decimal128(_, left),
                        DataType::Decimal128(_, right),
                        Arithmetic::Add | Arithmetic::Subtract,
                    ) => {
                        let scale = (*left).max(*right);
                        let factor = |of: i8| 10i128.checked_pow(u32::try_from(scale - of).ok()?);
                        Some((factor(*left)?, factor(*right)?))
                    }
                    (DataType::Decimal128(..), DataType::Decimal128(..), Arithmetic::Multiply) => Some((1, 1)),
                    _ => None,
                };
                Some(Expr::Number { op, factors, types: Box::new((left_type, right_type, result)), of })
            }
        }
    }

    fn call(&self, function: &ScalarFunction, schema: &DFSchema, inputs: &Inputs) -> Option<Expr> {
        if let Some(watched) = casts::watched(function) {
            return self.checked(&watched, schema, inputs);
        }
        if let Some(sql_type) = casts::reads(function) {
            let [text] = function.args.as_slice() else { return None };
            return Some(Expr::Read { of: Box::new(self.compile(text, schema, inputs)?), sql_type });
        }
        match (function.func.name(), function.args.as_slice()) {
            ("now", []) => return Some(Expr::Now),
            ("nextval", [PlanExpr::Literal(name, _)]) => {
                let name = match Datum::of_scalar(name) {
                    Some(Datum::Text(name)) => name.into_owned(),
                    Some(Datum::Int(oid)) => oid.to_string(),
                    _ => match name {
                        datafusion::common::ScalarValue::UInt32(Some(oid)) => oid.to_string(),
                        _ => return None,
                    },
                };
                return Some(Expr::NextValue((self.sequence)(&name)?));
            }
            _ => {}
        }
        if function.func.name() == "coalesce" {
            let result = PlanExpr::ScalarFunction(function.clone()).get_type(schema).ok()?;
            let mut when = Vec::with_capacity(function.args.len());
            for argument in &function.args {
                let data_type = argument.get_type(schema).ok()?;
                let same =
                    data_type == result || is_text(&data_type) && is_text(&result) || data_type == DataType::Null;
                let value = same.then(|| self.compile(argument, schema, inputs))??;
                when.push((Expr::IsNull { of: Box::new(value.clone()), negated: true }, value));
            }
            return Some(Expr::Case { when, otherwise: None });
        }
        let name = function.func.name();
        // How many digits it leaves is settled once constants are.
        let is_to_digits = matches!(name, "round" | "trunc") && function.args.len() > 1;
        let is_callable = name.starts_with("tidepool_") || CALLABLE.contains(&name) && !is_to_digits;
        if !is_callable || function.func.signature().volatility != Volatility::Immutable {
            return None;
        }
        let arguments = (function.args.iter())
            .map(|argument| {
                let (_, field) = argument.to_field(schema).ok()?;
                is_covered(field.data_type()).then_some(())?;
                Some((self.compile(argument, schema, inputs)?, field))
            })
            .collect::<Option<Vec<_>>>()?;
        let (_, returns) = PlanExpr::ScalarFunction(function.clone()).to_field(schema).ok()?;
        is_covered(returns.data_type()).then_some(())?;
        let options = self.options.clone();
        Some(Expr::Call(Box::new(Call { function: function.func.clone(), arguments, returns, options })))
    }

    /// Integer arithmetic that does not wrap around.
    fn checked(&self, expr: &PlanExpr, schema: &DFSchema, inputs: &Inputs) -> Option<Expr> {
        let PlanExpr::BinaryExpr(BinaryExpr { left, op, right }) = expr else {
            return self.compile(expr, schema, inputs);
        };
        let op = match op {
            Operator::Plus => Arithmetic::Add,
            Operator::Minus => Arithmetic::Subtract,
            Operator::Multiply => Arithmetic::Multiply,
            _ => return self.compile(expr, schema, inputs),
        };
        let data_type = left.get_type(schema).ok()?;
        let Some(kind) = IntKind::of(&data_type) else { return self.compile(expr, schema, inputs) };
        let of = [self.checked(left, schema, inputs)?, self.checked(right, schema, inputs)?];
        Some(Expr::Integer { op, kind, of: Box::new(of) })
    }
}

/// DataFusion's functions that can be called as they are, without having been made into something else while planning.
const CALLABLE: [&str; 21] = [
    "abs",
    "ceil",
    "floor",
    "round",
    "trunc",
    "sign",
    "sqrt",
    "power",
    "upper",
    "lower",
    "character_length",
    "length",
    "octet_length",
    "substr",
    "replace",
    "btrim",
    "ltrim",
    "rtrim",
    "left",
    "right",
    "md5",
];

fn is_utc(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Timestamp(_, zone)
        if zone.as_ref().is_none_or(|zone| matches!(zone.as_ref(), "UTC" | "+00:00" | "+00")))
}

fn rescale(from: i8, precision: u8, scale: i8, of: Box<Expr>, types: Box<(DataType, DataType)>) -> Option<Expr> {
    let factor = 10i128.checked_pow(u32::try_from(scale - from).ok()?)?;
    Some(Expr::Rescale { factor, limit: 10i128.checked_pow(u32::from(precision))?, of, types })
}

/// What does not depend on anything, evaluated; unless that is an error, which is for whoever comes by it.
fn fold(expr: Expr) -> Expr {
    struct Nothing(TextSettings);
    impl Context for Nothing {
        fn now_us(&self) -> i64 {
            0
        }
        fn text_settings(&self) -> &TextSettings {
            &self.0
        }
        fn next_value(&self, _: &Arc<Sequence>) -> Result<i64> {
            Err(Error::internal("no sequence is asked"))
        }
    }
    let mut depends = false;
    expr.visit(&mut |expr| {
        depends |= matches!(
            expr,
            Expr::Parameter(_)
                | Expr::Column { .. }
                | Expr::Slot(_)
                | Expr::RowId(_)
                | Expr::Now
                | Expr::NextValue(_)
                | Expr::Read { .. }
        );
    });
    if depends || matches!(expr, Expr::Constant(_)) {
        return expr;
    }
    let context = Nothing(TextSettings::default());
    let frame = Frame { parameters: &[], rows: &[], slots: &[], context: &context };
    match expr.evaluate(&frame).map(Datum::into_owned) {
        Ok(value) => Expr::Constant(value),
        Err(_) => expr,
    }
}

fn one(datum: &Datum<'_>, data_type: &DataType) -> Result<ArrayRef> {
    datum.to_scalar(data_type)?.to_array().map_err(from_datafusion)
}

/// Arrow's own cast of one value, but that it refuses a double which no `real` holds.
#[cold]
fn arrow_cast(datum: &Datum<'_>, from: &DataType, to: &DataType) -> Result<Datum<'static>> {
    if (from, to) == (&DataType::Float64, &DataType::Float32) {
        let narrow = crate::float_range::narrow(one(datum, from)?.as_primitive()).map_err(from_datafusion)?;
        return Datum::of_array(&(Arc::new(narrow) as ArrayRef), 0);
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let cast = cast_with_options(&one(datum, from)?, to, &options).map_err(from_arrow)?;
    Datum::of_array(&cast, 0)
}

/// Arrow's own arithmetic of two values, with its errors.
fn arrow_arithmetic(
    op: Arithmetic,
    left: &Datum<'_>,
    right: &Datum<'_>,
    types: &(DataType, DataType, DataType),
) -> Result<Datum<'static>> {
    let (left, right) = (Scalar::new(one(left, &types.0)?), Scalar::new(one(right, &types.1)?));
    let (left, right): (&dyn ArrowDatum, &dyn ArrowDatum) = (&left, &right);
    let of = match op {
        Arithmetic::Add => numeric::add_wrapping(left, right),
        Arithmetic::Subtract => numeric::sub_wrapping(left, right),
        Arithmetic::Multiply => numeric::mul_wrapping(left, right),
        Arithmetic::Divide => numeric::div(left, right),
        Arithmetic::Modulo => numeric::rem(left, right),
    };
    Datum::of_array(&of.map_err(from_arrow)?, 0)
}

impl Expr {
    /// Sees this and all below it.
    pub fn visit(&self, see: &mut dyn FnMut(&Expr)) {
        see(self);
        let mut all = |of: &[Expr]| of.iter().for_each(|expr| expr.visit(see));
        match self {
            Expr::Constant(_)
            | Expr::Parameter(_)
            | Expr::Column { .. }
            | Expr::Slot(_)
            | Expr::RowId(_)
            | Expr::Now
            | Expr::NextValue(_) => {}
            Expr::Integer { of, .. }
            | Expr::Number { of, .. }
            | Expr::Concat(of)
            | Expr::Compare { of, .. }
            | Expr::Distinct { of, .. } => all(of.as_slice()),
            Expr::And(of) | Expr::Or(of) => all(of),
            Expr::Negative(of, _)
            | Expr::Not(of)
            | Expr::IsNull { of, .. }
            | Expr::Narrow { of, .. }
            | Expr::Rescale { of, .. }
            | Expr::Cast { of, .. }
            | Expr::Read { of, .. } => of.visit(see),
            Expr::In { of, list, .. } => {
                of.visit(see);
                list.iter().for_each(|expr| expr.visit(see));
            }
            Expr::Case { when, otherwise } => {
                for (condition, value) in when {
                    condition.visit(see);
                    value.visit(see);
                }
                otherwise.iter().for_each(|expr| expr.visit(see));
            }
            Expr::Call(call) => call.arguments.iter().for_each(|(expr, _)| expr.visit(see)),
        }
    }

    /// The last of the tables whose columns it needs, and one more; 0: none.
    pub fn tables(&self) -> usize {
        let mut tables = 0;
        self.visit(&mut |expr| match expr {
            Expr::Column { table, .. } | Expr::RowId(table) => tables = tables.max(table + 1),
            _ => {}
        });
        tables
    }

    /// Another value each time.
    pub fn is_volatile(&self) -> bool {
        let mut found = false;
        self.visit(&mut |expr| found |= matches!(expr, Expr::NextValue(_)));
        found
    }

    /// With the tables that its columns are of numbered otherwise.
    pub fn renumbered(&mut self, number: &dyn Fn(usize) -> usize) {
        match self {
            Expr::Column { table, .. } | Expr::RowId(table) => *table = number(*table),
            Expr::Constant(_) | Expr::Parameter(_) | Expr::Slot(_) | Expr::Now | Expr::NextValue(_) => {}
            Expr::Integer { of, .. }
            | Expr::Number { of, .. }
            | Expr::Concat(of)
            | Expr::Compare { of, .. }
            | Expr::Distinct { of, .. } => of.iter_mut().for_each(|expr| expr.renumbered(number)),
            Expr::And(of) | Expr::Or(of) => of.iter_mut().for_each(|expr| expr.renumbered(number)),
            Expr::Negative(of, _)
            | Expr::Not(of)
            | Expr::IsNull { of, .. }
            | Expr::Narrow { of, .. }
            | Expr::Rescale { of, .. }
            | Expr::Cast { of, .. }
            | Expr::Read { of, .. } => of.renumbered(number),
            Expr::In { of, list, .. } => {
                of.renumbered(number);
                list.iter_mut().for_each(|expr| expr.renumbered(number));
            }
            Expr::Case { when, otherwise } => {
                for (condition, value) in when {
                    condition.renumbered(number);
                    value.renumbered(number);
                }
                otherwise.iter_mut().for_each(|expr| expr.renumbered(number));
            }
            Expr::Call(call) => call.arguments.iter_mut().for_each(|(expr, _)| expr.renumbered(number)),
        }
    }

    /// Whether it is true; NULL is not.
    #[inline]
    pub fn holds(&self, frame: &Frame<'_>) -> Result<bool> {
        Ok(self.evaluate(frame)? == Datum::Boolean(true))
    }

    pub fn evaluate<'f>(&'f self, frame: &Frame<'f>) -> Result<Datum<'f>> {
        Ok(match self {
            Expr::Constant(value) => value.lend(),
            Expr::Parameter(number) => match frame.parameters.get(*number) {
                Some(value) => value.lend(),
                None => return Err(Error::internal("a parameter has no value")),
            },
            Expr::Column { table, column } => frame.rows[*table].column(*column)?,
            Expr::Slot(slot) => frame.slots[*slot].lend(),
            Expr::RowId(_) => return Err(Error::internal("a row's id is no value")),
            Expr::Now => Datum::Int(frame.context.now_us()),
            Expr::NextValue(sequence) => Datum::Int(frame.context.next_value(sequence)?),
            Expr::Integer { op, kind, of } => match (of[0].evaluate(frame)?, of[1].evaluate(frame)?) {
                (Datum::Int(left), Datum::Int(right)) => {
                    let value = match op {
                        Arithmetic::Add => left.checked_add(right),
                        Arithmetic::Subtract => left.checked_sub(right),
                        _ => left.checked_mul(right),
                    };
                    match value.filter(|value| kind.has(*value)) {
                        Some(value) => Datum::Int(value),
                        None => {
                            let message = format!("{} out of range", kind.name());
                            return Err(Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, message));
                        }
                    }
                }
                _ => Datum::Null,
            },
            Expr::Number { op, factors, types, of } => number(*op, *factors, types, of, frame)?,
            Expr::Negative(of, data_type) => match of.evaluate(frame)? {
                Datum::Int(value) => match value
                    .checked_neg()
                    .filter(|value| IntKind::of(data_type).is_some_and(|kind| kind.has(*value)))
                {
                    Some(value) => Datum::Int(value),
                    None => {
                        let message = format!("Overflow happened on: - {value}");
                        return Err(from_arrow(ArrowError::ArithmeticOverflow(message)));
                    }
                },
                Datum::Numeric(value) => Datum::Numeric(-value),
                Datum::Real(value) => Datum::Real(-value),
                Datum::Double(value) => Datum::Double(-value),
                _ => Datum::Null,
            },
            Expr::Concat(of) => match (of[0].evaluate(frame)?, of[1].evaluate(frame)?) {
                (Datum::Text(left), Datum::Text(right)) => Datum::Text((left.into_owned() + &right).into()),
                _ => Datum::Null,
            },
            Expr::Compare { op, of } => {
                let (left, right) = (of[0].evaluate(frame)?, of[1].evaluate(frame)?);
                match left.is_null() || right.is_null() {
                    true => Datum::Null,
                    false => Datum::Boolean(op.holds(left.order(&right))),
                }
            }
            Expr::Distinct { negated, of } => {
                let (left, right) = (of[0].evaluate(frame)?, of[1].evaluate(frame)?);
                let same = match (left.is_null(), right.is_null()) {
                    (false, false) => left.order(&right).is_eq(),
                    (left, right) => left && right,
                };
                Datum::Boolean(same == *negated)
            }
            Expr::And(of) => {
                let mut all = Datum::Boolean(true);
                for expr in of {
                    match expr.evaluate(frame)? {
                        Datum::Boolean(true) => {}
                        Datum::Boolean(false) => return Ok(Datum::Boolean(false)),
                        _ => all = Datum::Null,
                    }
                }
                all
            }
            Expr::Or(of) => {
                let mut any = Datum::Boolean(false);
                for expr in of {
                    match expr.evaluate(frame)? {
                        Datum::Boolean(false) => {}
                        Datum::Boolean(true) => return Ok(Datum::Boolean(true)),
                        _ => any = Datum::Null,
                    }
                }
                any
            }
            Expr::Not(of) => match of.evaluate(frame)? {
                Datum::Boolean(value) => Datum::Boolean(!value),
                _ => Datum::Null,
            },
            Expr::IsNull { of, negated } => Datum::Boolean(of.evaluate(frame)?.is_null() != *negated),
            Expr::In { of, list, negated } => {
                let value = of.evaluate(frame)?;
                if value.is_null() {
                    return Ok(Datum::Null);
                }
                let mut has_null = false;
                for item in list {
                    let item = item.evaluate(frame)?;
                    if item.is_null() {
                        has_null = true;
                    } else if value.order(&item).is_eq() {
                        return Ok(Datum::Boolean(!negated));
                    }
                }
                if has_null { Datum::Null } else { Datum::Boolean(*negated) }
            }
            Expr::Case { when, otherwise } => {
                for (condition, value) in when {
                    if condition.holds(frame)? {
                        return value.evaluate(frame);
                    }
                }
                match otherwise {
                    Some(otherwise) => otherwise.evaluate(frame)?,
                    None => Datum::Null,
                }
            }
            Expr::Narrow { kind, of, types } => match of.evaluate(frame)? {
                Datum::Int(value) if kind.has(value) => Datum::Int(value),
                Datum::Null => Datum::Null,
                other => arrow_cast(&other, &types.0, &types.1)?,
            },
            Expr::Rescale { factor, limit, of, types } => {
                let value = of.evaluate(frame)?;
                let unscaled = match &value {
                    Datum::Int(value) => i128::from(*value),
                    Datum::Numeric(value) => *value,
                    _ => return Ok(Datum::Null),
                };
                match unscaled.checked_mul(*factor).filter(|scaled| -limit < *scaled && scaled < limit) {
                    Some(scaled) => Datum::Numeric(scaled),
                    None => arrow_cast(&value, &types.0, &types.1)?,
                }
            }
            Expr::Cast { of, types } => match of.evaluate(frame)? {
                Datum::Null => Datum::Null,
                value => arrow_cast(&value, &types.0, &types.1)?,
            },
            Expr::Read { of, sql_type } => match of.evaluate(frame)? {
                Datum::Text(text) => read(&text, *sql_type, frame.context.text_settings())?,
                _ => Datum::Null,
            },
            Expr::Call(call) => {
                let arguments = (call.arguments.iter())
                    .map(|(expr, field)| Ok(ColumnarValue::Scalar(expr.evaluate(frame)?.to_scalar(field.data_type())?)))
                    .collect::<Result<Vec<_>>>()?;
                let arguments = ScalarFunctionArgs {
                    args: arguments,
                    arg_fields: call.arguments.iter().map(|(_, field)| field.clone()).collect(),
                    number_rows: 1,
                    return_field: call.returns.clone(),
                    config_options: call.options.clone(),
                };
                let value = call.function.invoke_with_args(arguments).map_err(from_datafusion)?;
                Datum::of_array(&value.into_array(1).map_err(from_datafusion)?, 0)?
            }
        })
    }
}

/// A text that is compared with a column, as the column holds its texts: uuids and `jsonb` in their one form, a `char` without trailing blanks.
fn as_held(of: Expr, text: &PlanExpr, beside: &PlanExpr, schema: &DFSchema) -> Expr {
    let (PlanExpr::Column(column), false) = (beside, matches!(text, PlanExpr::Column(_))) else { return of };
    let Ok(field) = schema.field_from_column(column) else { return of };
    let sql_type = match crate::types::declared_type(field) {
        Some(of @ (SqlType::Uuid | SqlType::Jsonb)) => of,
        // However long it is: it is only compared.
        Some(SqlType::Char { .. }) => SqlType::Char { length: u32::MAX },
        _ => return of,
    };
    Expr::Read { of: Box::new(of), sql_type }
}

fn number<'f>(
    op: Arithmetic,
    factors: Option<(i128, i128)>,
    types: &(DataType, DataType, DataType),
    of: &'f [Expr; 2],
    frame: &Frame<'f>,
) -> Result<Datum<'f>> {
    let (left, right) = (of[0].evaluate(frame)?, of[1].evaluate(frame)?);
    if left.is_null() || right.is_null() {
        return Ok(Datum::Null);
    }
    let quick = match (&left, &right, op, factors) {
        (Datum::Numeric(left), Datum::Numeric(right), op, Some((left_factor, right_factor))) => {
            let sides = left.checked_mul(left_factor).zip(right.checked_mul(right_factor));
            let value = sides.and_then(|(left, right)| match op {
                Arithmetic::Add => left.checked_add(right),
                Arithmetic::Subtract => left.checked_sub(right),
                _ => left.checked_mul(right),
            });
            value.map(Datum::Numeric)
        }
        (Datum::Double(left), Datum::Double(right), Arithmetic::Add, _) => Some(Datum::Double(left + right)),
        (Datum::Double(left), Datum::Double(right), Arithmetic::Subtract, _) => Some(Datum::Double(left - right)),
        (Datum::Double(left), Datum::Double(right), Arithmetic::Multiply, _) => Some(Datum::Double(left * right)),
        _ => None,
    };
    let value = match quick {
        Some(value) => value,
        None => arrow_arithmetic(op, &left, &right, types)?,
    };
    match (&left, &right, &value) {
        (Datum::Double(left), Datum::Double(right), Datum::Double(value)) => in_range(op, *left, *right, *value)?,
        (Datum::Real(left), Datum::Real(right), Datum::Real(value)) => {
            in_range(op, (*left).into(), (*right).into(), (*value).into())?;
        }
        _ => {}
    }
    Ok(value)
}

/// 22003 for a result that no floating-point number holds.
fn in_range(op: Arithmetic, left: f64, right: f64, value: f64) -> Result<()> {
    let op = match op {
        Arithmetic::Add => ArithmeticOp::Add,
        Arithmetic::Subtract => ArithmeticOp::Subtract,
        Arithmetic::Multiply => ArithmeticOp::Multiply,
        Arithmetic::Divide => ArithmeticOp::Divide,
        Arithmetic::Modulo => return Ok(()),
    };
    match Fault::of(op, left, right, value) {
        _ if op == ArithmeticOp::Divide && right == 0.0 && !left.is_nan() => {
            Err(Error::new(SqlState::DIVISION_BY_ZERO, "division by zero"))
        }
        Some(fault) => Err(fault.error()),
        None => Ok(()),
    }
}

/// A text as a value of a type: 22P02, 22003, 22007, 22008.
pub fn read(text: &str, sql_type: SqlType, settings: &TextSettings) -> Result<Datum<'static>> {
    if let Some(number) = tidepool_database::text::single::integer(text, sql_type) {
        return number.map(Datum::Int);
    }
    let mut reader = TextReader::new(sql_type, settings);
    reader.append(text)?;
    Datum::of_array(&reader.finish(), 0)
}
