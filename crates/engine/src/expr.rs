//! Expressions over the columns of a chunk, typed and with what is known of their values.
//!
//! Whoever makes one goes through [`Expr`]'s constructors, which work out its type, bounds and class; evaluating them is
//! [`crate::evaluate`]'s. Both sides of a comparison are of one class and, if they are decimals, of one scale: the
//! constructors see to it.

use crate::later::LaterValue;
use crate::types::{Class, ColumnType, type_bounds};
use arrow_array::ArrayRef;
use arrow_schema::DataType;
use std::fmt;
use std::sync::Arc;
use tidepool_base::{Error, Result};
use tidepool_table::CompareOp;

/// One value, in the form that its class has.
#[derive(Clone, Debug, PartialEq)]
pub enum Scalar {
    Null,
    Int(i64),
    Wide(i128),
    Float(f64),
    Bool(bool),
    Text(Arc<[u8]>),
    /// An array of one row.
    Other(ArrayRef),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArithmeticOp {
    Add,
    Subtract,
    Multiply,
    /// Of integers towards zero; of floats. 22012 by zero.
    Divide,
    /// With the dividend's sign. 22012 by zero.
    Modulo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatePart {
    Year,
    Quarter,
    Month,
    Day,
    /// Sunday is 0.
    DayOfWeek,
    DayOfYear,
    Hour,
    Minute,
}

/// What lengths of text are counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextUnit {
    Characters,
    Bytes,
}

/// What the engine has no operator for: a function over Arrow arrays, of deterministic result. Gets as many rows as it
/// is to answer for, and none besides those whose value is wanted.
pub trait Function: Send + Sync {
    fn name(&self) -> &str;
    /// Arguments are arrays of one length, `rows`, of the arguments' data types.
    fn evaluate(&self, arguments: &[ArrayRef], rows: usize) -> Result<ArrayRef>;
}

/// Two are the same if they are one.
impl PartialEq for dyn Function {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::addr_eq(self, other)
    }
}

/// `LIKE`'s pattern: what comes between its `%`s, escapes resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Between `%`s; a byte that is `None` stands for any one character.
    pub parts: Vec<Vec<Option<u8>>>,
    pub starts_open: bool,
    pub ends_open: bool,
    pub ignores_case: bool,
}

#[derive(Clone, PartialEq)]
pub enum Node {
    /// Of the chunk, by position.
    Column(usize),
    Literal(Scalar),
    /// What a subquery of the plan's gives, by number. Executions have a place for it.
    Later {
        number: usize,
        value: Option<LaterValue>,
    },
    Arithmetic {
        op: ArithmeticOp,
        left: Box<Expr>,
        right: Box<Expr>,
    },
    Negate(Box<Expr>),
    Compare {
        op: CompareOp,
        left: Box<Expr>,
        right: Box<Expr>,
    },
    /// NULL equals NULL, and nothing else; never NULL itself.
    IsDistinct {
        negated: bool,
        left: Box<Expr>,
        right: Box<Expr>,
    },
    And(Vec<Expr>),
    Or(Vec<Expr>),
    Not(Box<Expr>),
    IsNull {
        value: Box<Expr>,
        negated: bool,
    },
    /// `IS [NOT] TRUE`, `FALSE`.
    IsBool {
        value: Box<Expr>,
        is: bool,
        negated: bool,
    },
    /// One of some values that are not NULL. `has_null`: then what is not among them is NULL.
    In {
        value: Box<Expr>,
        values: Vec<Scalar>,
        has_null: bool,
        negated: bool,
    },
    Like {
        value: Box<Expr>,
        pattern: Pattern,
        negated: bool,
    },
    /// The first branch whose condition is true; only that is evaluated for a row.
    Case {
        branches: Vec<(Expr, Expr)>,
        otherwise: Option<Box<Expr>>,
    },
    /// The first that is not NULL.
    Coalesce(Vec<Expr>),
    /// Between the numeric types, dates and timestamps, within what [`Expr::cast`] takes.
    Cast(Box<Expr>),
    /// Of a date or a timestamp without a zone: an integer.
    Part {
        part: DatePart,
        value: Box<Expr>,
    },
    /// Characters of text, from the `start`th (from 1 on) for `len`. What lies before the first counts.
    Substring {
        value: Box<Expr>,
        start: i64,
        len: Option<i64>,
    },
    /// Characters of text, or bytes.
    Length {
        value: Box<Expr>,
        unit: TextUnit,
    },
    /// A value of a dictionary's code.
    Decode(Box<Expr>),
    /// A test of a dictionary's values, looked up by code. NULL stays NULL.
    CodeTest {
        value: Box<Expr>,
        passes: Arc<[bool]>,
    },
    Call {
        function: Arc<dyn Function>,
        arguments: Vec<Expr>,
    },
}

#[derive(Clone, PartialEq)]
pub struct Expr {
    pub node: Node,
    pub of: ColumnType,
}

impl fmt::Debug for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Scalar {
    pub fn is_null(&self) -> bool {
        matches!(self, Scalar::Null)
    }

    pub fn as_i128(&self) -> Option<i128> {
        match self {
            Scalar::Int(value) => Some((*value).into()),
            Scalar::Wide(value) => Some(*value),
            _ => None,
        }
    }
}

fn refused(what: &str) -> Error {
    Error::internal(format!("the engine has no {what}"))
}

fn boolean(nullable: bool) -> ColumnType {
    ColumnType::new(DataType::Boolean, nullable)
}

impl Expr {
    pub fn column(index: usize, of: ColumnType) -> Expr {
        Expr { node: Node::Column(index), of }
    }

    /// A value of the type, in any form of an integer that holds it.
    pub fn literal(value: Scalar, data_type: DataType) -> Expr {
        let mut of = ColumnType::new(data_type, value.is_null());
        if let Some(int) = value.as_i128() {
            of = of.within((int, int));
        }
        let value = match (value.as_i128(), of.class()) {
            (Some(int), Class::Int) => Scalar::Int(int as i64),
            (Some(int), Class::Wide) => Scalar::Wide(int),
            _ => value,
        };
        Expr { node: Node::Literal(value), of }
    }

    /// What subquery `number` gives, of whose column `of` is.
    pub fn later(number: usize, of: ColumnType) -> Expr {
        Expr { node: Node::Later { number, value: None }, of: ColumnType { nullable: true, ..of } }
    }

    pub fn class(&self) -> Class {
        self.of.class()
    }

    /// Which column it is, if it is one as it stands.
    pub fn as_column(&self) -> Option<usize> {
        if let Node::Column(index) = &self.node { Some(*index) } else { None }
    }

    pub fn as_literal(&self) -> Option<&Scalar> {
        if let Node::Literal(value) = &self.node { Some(value) } else { None }
    }

    /// Of two numbers of one kind: integers, decimals, or floats. The result's type is what SQL's rules say. An integer
    /// result that leaves the type, or a decimal one that leaves 128 bits, is 22003.
    ///
    /// Addends are brought to the result's scale; a product's scale is the sum of its factors'. Decimals are neither divided
    /// nor taken modulo here.
    pub fn arithmetic(op: ArithmeticOp, left: Expr, right: Expr, data_type: DataType) -> Result<Expr> {
        use ArithmeticOp::{Add, Divide, Modulo, Multiply, Subtract};
        let mut of = ColumnType::new(data_type, left.of.nullable || right.of.nullable);
        if of.class() == Class::Float {
            let (left, right) = (left.cast(of.data_type.clone())?, right.cast(of.data_type.clone())?);
            return Ok(Expr { node: Node::Arithmetic { op, left: left.into(), right: right.into() }, of });
        }
        let scale = of.scale().ok_or_else(|| refused("arithmetic of this type"))?;
        let (left, right) = match op {
            Add | Subtract | Modulo | Divide => (left.rescaled(scale)?, right.rescaled(scale)?),
            Multiply => {
                let sum = left.of.scale().zip(right.of.scale()).map(|(a, b)| i16::from(a) + i16::from(b));
                if sum != Some(scale.into()) {
                    return Err(refused("product of this scale"));
                }
                (left, right)
            }
        };
        if scale != 0 && matches!(op, Divide | Modulo) {
            return Err(refused("quotient of decimals"));
        }
        let both = left.of.bounds.zip(right.of.bounds);
        let bounds = both.and_then(|((a, b), (c, d))| match op {
            Add => a.checked_add(c).zip(b.checked_add(d)),
            Subtract => a.checked_sub(d).zip(b.checked_sub(c)),
            Multiply => {
                let all = [a.checked_mul(c)?, a.checked_mul(d)?, b.checked_mul(c)?, b.checked_mul(d)?];
                all.iter().min().copied().zip(all.iter().max().copied())
            }
            Divide => {
                let limit = a.unsigned_abs().max(b.unsigned_abs());
                let limit = i128::try_from(limit).ok()?;
                Some((-limit, limit))
            }
            Modulo => {
                let limit = c.unsigned_abs().max(d.unsigned_abs());
                let limit = i128::try_from(limit).ok()?;
                Some((-limit, limit))
            }
        });
        // A decimal's declared digits are no bound: sums and products may pass them, as long as 128 bits hold them.
        if matches!(of.data_type, DataType::Decimal128(..)) {
            of.bounds = Some(bounds.unwrap_or((i128::MIN, i128::MAX)));
        } else if let (Some(bounds), Some(limits)) = (bounds, type_bounds(&of.data_type)) {
            of.bounds = Some((bounds.0.max(limits.0), bounds.1.min(limits.1)));
        }
        Ok(Expr { node: Node::Arithmetic { op, left: left.into(), right: right.into() }, of })
    }

    /// A decimal or integer with another number of digits after the point, at least as many as it has.
    pub fn rescaled(self, scale: i8) -> Result<Expr> {
        let own = self.of.scale().ok_or_else(|| refused("scale of this type"))?;
        if own == scale {
            return Ok(self);
        }
        if scale < own {
            return Err(refused("rounding of decimals within an operation"));
        }
        self.cast(DataType::Decimal128(38, scale))
    }

    pub fn negate(self) -> Result<Expr> {
        let mut of = self.of.clone();
        match of.class() {
            Class::Float => {}
            Class::Int | Class::Wide if of.dictionary.is_none() && of.scale().is_some() => {
                let negated = of.bounds.and_then(|(lower, upper)| upper.checked_neg().zip(lower.checked_neg()));
                of.bounds = match (negated, type_bounds(&of.data_type)) {
                    (negated, _) if matches!(of.data_type, DataType::Decimal128(..)) => {
                        Some(negated.unwrap_or((i128::MIN, i128::MAX)))
                    }
                    (Some(negated), Some(limits)) => Some((negated.0.max(limits.0), negated.1.min(limits.1))),
                    (_, limits) => limits,
                };
            }
            _ => return Err(refused("negation of this type")),
        }
        Ok(Expr { node: Node::Negate(self.into()), of })
    }

    /// Both sides in one form: of one scale, and integers both or neither; decimals may still be of two classes. Text in a dictionary
    /// is decoded unless the other side has the same.
    pub fn matched(left: Expr, right: Expr) -> Result<(Expr, Expr)> {
        let same_dictionary = match (&left.of.dictionary, &right.of.dictionary) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (None, None) => true,
            _ => false,
        };
        let (left, right) = if same_dictionary { (left, right) } else { (left.decoded(), right.decoded()) };
        match (left.class(), right.class()) {
            (Class::Int | Class::Wide, Class::Int | Class::Wide) => {
                if let (Some(a), Some(b)) = (left.of.scale(), right.of.scale()) {
                    let scale = a.max(b);
                    return Ok((left.rescaled(scale)?, right.rescaled(scale)?));
                }
                Ok((left, right))
            }
            (a, b) if a == b && a != Class::Other => Ok((left, right)),
            _ => Err(refused("comparison of these types")),
        }
    }

    pub fn compare(op: CompareOp, left: Expr, right: Expr) -> Result<Expr> {
        let (left, right) = Expr::matched(left, right)?;
        let of = boolean(left.of.nullable || right.of.nullable);
        Ok(Expr { node: Node::Compare { op, left: left.into(), right: right.into() }, of })
    }

    pub fn is_distinct(left: Expr, right: Expr, negated: bool) -> Result<Expr> {
        let (left, right) = Expr::matched(left, right)?;
        Ok(Expr { node: Node::IsDistinct { negated, left: left.into(), right: right.into() }, of: boolean(false) })
    }

    /// True for no conditions.
    pub fn and(conditions: Vec<Expr>) -> Expr {
        let of = boolean(conditions.iter().any(|condition| condition.of.nullable));
        Expr { node: Node::And(conditions), of }
    }

    /// False for no conditions.
    pub fn or(conditions: Vec<Expr>) -> Expr {
        let of = boolean(conditions.iter().any(|condition| condition.of.nullable));
        Expr { node: Node::Or(conditions), of }
    }

    pub fn negated(self) -> Expr {
        let of = boolean(self.of.nullable);
        Expr { node: Node::Not(self.into()), of }
    }

    pub fn is_null(self, negated: bool) -> Expr {
        Expr { node: Node::IsNull { value: self.into(), negated }, of: boolean(false) }
    }

    pub fn is_bool(self, is: bool, negated: bool) -> Expr {
        Expr { node: Node::IsBool { value: self.into(), is, negated }, of: boolean(false) }
    }

    /// `values` are of the type of `self`, decimals of its scale.
    pub fn in_list(self, values: Vec<Scalar>, negated: bool) -> Result<Expr> {
        let value = self.decoded();
        if value.class() == Class::Other {
            return Err(refused("list of this type"));
        }
        let has_null = values.iter().any(Scalar::is_null);
        let of = boolean(value.of.nullable || has_null);
        let values = values.into_iter().filter(|value| !value.is_null());
        let values = values
            .filter_map(|scalar| match (scalar.as_i128(), value.class()) {
                // One that the column's class has no room for is none of its values.
                (Some(int), Class::Int) => i64::try_from(int).ok().map(Scalar::Int),
                (Some(int), Class::Wide) => Some(Scalar::Wide(int)),
                _ => Some(scalar),
            })
            .collect();
        Ok(Expr { node: Node::In { value: value.into(), values, has_null, negated }, of })
    }

    pub fn like(self, pattern: Pattern, negated: bool) -> Result<Expr> {
        let value = self.decoded();
        if value.class() != Class::Text {
            return Err(refused("LIKE of this type"));
        }
        let of = boolean(value.of.nullable);
        Ok(Expr { node: Node::Like { value: value.into(), pattern, negated }, of })
    }

    /// Branches and `otherwise` of one data type. Bounds are those of all of them.
    pub fn case(branches: Vec<(Expr, Expr)>, otherwise: Option<Expr>) -> Result<Expr> {
        let (conditions, values): (Vec<Expr>, Vec<Expr>) = branches.into_iter().unzip();
        let is_total = otherwise.is_some();
        let mut values = Expr::alike(values.into_iter().chain(otherwise).collect())?;
        let of = Expr::common(&values, |any| any || !is_total);
        let otherwise = if is_total { values.pop().map(Box::new) } else { None };
        Ok(Expr { node: Node::Case { branches: conditions.into_iter().zip(values).collect(), otherwise }, of })
    }

    pub fn coalesce(values: Vec<Expr>) -> Result<Expr> {
        let values = Expr::alike(values)?;
        let mut of = Expr::common(&values, |any| any);
        of.nullable = values.iter().all(|value| value.of.nullable);
        Ok(Expr { node: Node::Coalesce(values), of })
    }

    /// Decoded, and of one class. They are of one data type but for digits of decimals.
    fn alike(values: Vec<Expr>) -> Result<Vec<Expr>> {
        let values: Vec<Expr> = values.into_iter().map(Expr::decoded).collect();
        let first = values.first().ok_or_else(|| refused("choice among nothing"))?;
        let (first, scale) = (first.of.data_type.clone(), first.of.scale());
        let is_alike = |value: &Expr| match (&first, &value.of.data_type) {
            (DataType::Decimal128(..), DataType::Decimal128(..)) => value.of.scale() == scale,
            (a, b) => a == b,
        };
        if values.iter().all(is_alike) { Ok(values) } else { Err(refused("choice among different types")) }
    }

    fn common(values: &[Expr], nullable: impl Fn(bool) -> bool) -> ColumnType {
        let of = &values[0].of;
        let bounds = values.iter().map(|value| value.of.bounds).reduce(|a, b| {
            let ((a, b), (c, d)) = a.zip(b)?;
            Some((a.min(c), b.max(d)))
        });
        ColumnType {
            data_type: of.data_type.clone(),
            nullable: nullable(values.iter().any(|value| value.of.nullable)),
            bounds: bounds.flatten(),
            dictionary: None,
        }
    }

    /// Integers, decimals and floats into one another, dates into timestamps; what is of the type already stays. A value that the
    /// type has no room for is 22003; halves are rounded away from zero, but of floats to integers to even.
    pub fn cast(self, data_type: DataType) -> Result<Expr> {
        if self.of.data_type == data_type {
            return Ok(self);
        }
        let mut of = ColumnType::new(data_type, self.of.nullable);
        let (from, to) = (self.of.scale(), of.scale());
        let is_float = |of: &ColumnType| of.class() == Class::Float;
        match (from, to) {
            (Some(from), Some(to)) => {
                let moved = |value: i128| -> Option<i128> {
                    let digits = u32::from((i16::from(to) - i16::from(from)).unsigned_abs());
                    let power = 10i128.checked_pow(digits)?;
                    if to >= from {
                        return value.checked_mul(power);
                    }
                    let rest = (value % power).abs();
                    Some(value / power + if rest >= power - rest { value.signum() } else { 0 })
                };
                if let Some((lower, upper)) = self.of.bounds
                    && let (Some(lower), Some(upper)) = (moved(lower), moved(upper))
                {
                    of = of.within((lower, upper));
                }
            }
            _ if (is_float(&self.of) || from.is_some()) && (is_float(&of) || to.is_some()) => {}
            _ if self.of.data_type == DataType::Date32
                && matches!(of.data_type, DataType::Timestamp(_, None))
                && of.class() == Class::Int =>
            {
                const DAY_US: i128 = 86_400_000_000;
                if let Some((lower, upper)) = self.of.bounds {
                    of = of.within((lower * DAY_US, upper * DAY_US));
                }
            }
            _ => return Err(refused("cast between these types")),
        }
        Ok(Expr { node: Node::Cast(self.into()), of })
    }

    pub fn part(part: DatePart, value: Expr, data_type: DataType) -> Result<Expr> {
        // DataFusion has functions that give nanoseconds, which are none of the engine's classes.
        if !matches!(value.of.data_type, DataType::Date32 | DataType::Timestamp(_, None)) || value.class() != Class::Int
        {
            return Err(refused("date part of this type"));
        }
        let of = ColumnType::new(data_type, value.of.nullable);
        let of = match (part, value.of.bounds) {
            (DatePart::Year, Some((lower, upper))) => {
                let day = if value.of.data_type == DataType::Date32 { 1 } else { 86_400_000_000 };
                // A year has 365 days or 366. A year off at each end is no harm.
                let years = |value: i128, days: i128| value.div_euclid(day * days);
                let lower = years(lower, 365).min(years(lower, 366));
                let upper = years(upper, 365).max(years(upper, 366));
                of.within((1969 + lower, 1971 + upper))
            }
            (DatePart::Year, None) => of,
            (DatePart::Quarter, _) => of.within((1, 4)),
            (DatePart::Month, _) => of.within((1, 12)),
            (DatePart::Day, _) => of.within((1, 31)),
            (DatePart::DayOfWeek, _) => of.within((0, 6)),
            (DatePart::DayOfYear, _) => of.within((1, 366)),
            (DatePart::Hour, _) => of.within((0, 23)),
            (DatePart::Minute, _) => of.within((0, 59)),
        };
        if !matches!(of.class(), Class::Int | Class::Float) {
            return Err(refused("date part as this type"));
        }
        Ok(Expr { node: Node::Part { part, value: value.into() }, of })
    }

    pub fn substring(self, start: i64, len: Option<i64>) -> Result<Expr> {
        let value = self.decoded();
        if value.class() != Class::Text {
            return Err(refused("substring of this type"));
        }
        let of = ColumnType::new(value.of.data_type.clone(), value.of.nullable);
        Ok(Expr { node: Node::Substring { value: value.into(), start, len }, of })
    }

    /// As Int32 or Int64.
    pub fn length(self, unit: TextUnit, data_type: DataType) -> Result<Expr> {
        let value = self.decoded();
        let is_binary = matches!(value.of.data_type, DataType::Binary | DataType::BinaryView);
        if value.class() != Class::Text || is_binary && unit == TextUnit::Characters {
            return Err(refused("length of this type"));
        }
        let of = ColumnType::new(data_type, value.of.nullable).within((0, i128::from(i32::MAX)));
        if of.class() != Class::Int {
            return Err(refused("length as this type"));
        }
        Ok(Expr { node: Node::Length { value: value.into(), unit }, of })
    }

    /// Text itself, where codes stand for it.
    pub fn decoded(self) -> Expr {
        if self.of.dictionary.is_none() {
            return self;
        }
        let of = ColumnType::new(self.of.data_type.clone(), self.of.nullable);
        Expr { node: Node::Decode(self.into()), of }
    }

    /// Any function of Arrow arrays.
    pub fn call(function: Arc<dyn Function>, arguments: Vec<Expr>, of: ColumnType) -> Expr {
        let arguments = arguments.into_iter().map(Expr::decoded).collect();
        Expr { node: Node::Call { function, arguments }, of }
    }

    /// Its parts.
    pub fn children(&self) -> Vec<&Expr> {
        match &self.node {
            Node::Column(_) | Node::Literal(_) | Node::Later { .. } => Vec::new(),
            Node::Arithmetic { left, right, .. }
            | Node::Compare { left, right, .. }
            | Node::IsDistinct { left, right, .. } => vec![left, right],
            Node::Negate(value)
            | Node::Not(value)
            | Node::Cast(value)
            | Node::Decode(value)
            | Node::IsNull { value, .. }
            | Node::IsBool { value, .. }
            | Node::In { value, .. }
            | Node::Like { value, .. }
            | Node::Part { value, .. }
            | Node::Substring { value, .. }
            | Node::Length { value, .. }
            | Node::CodeTest { value, .. } => vec![value],
            Node::And(parts) | Node::Or(parts) | Node::Coalesce(parts) | Node::Call { arguments: parts, .. } => {
                parts.iter().collect()
            }
            Node::Case { branches, otherwise } => {
                let of_branches = branches.iter().flat_map(|(condition, value)| [condition, value]);
                of_branches.chain(otherwise.as_deref()).collect()
            }
        }
    }

    pub(crate) fn children_mut(&mut self) -> Vec<&mut Expr> {
        match &mut self.node {
            Node::Column(_) | Node::Literal(_) | Node::Later { .. } => Vec::new(),
            Node::Arithmetic { left, right, .. }
            | Node::Compare { left, right, .. }
            | Node::IsDistinct { left, right, .. } => vec![left, right],
            Node::Negate(value)
            | Node::Not(value)
            | Node::Cast(value)
            | Node::Decode(value)
            | Node::IsNull { value, .. }
            | Node::IsBool { value, .. }
            | Node::In { value, .. }
            | Node::Like { value, .. }
            | Node::Part { value, .. }
            | Node::Substring { value, .. }
            | Node::Length { value, .. }
            | Node::CodeTest { value, .. } => vec![value],
            Node::And(parts) | Node::Or(parts) | Node::Coalesce(parts) | Node::Call { arguments: parts, .. } => {
                parts.iter_mut().collect()
            }
            Node::Case { branches, otherwise } => {
                let of_branches = branches.iter_mut().flat_map(|(condition, value)| [condition, value]);
                of_branches.chain(otherwise.as_deref_mut()).collect()
            }
        }
    }

    /// Adds the columns that it reads.
    pub fn columns_into(&self, columns: &mut std::collections::BTreeSet<usize>) {
        if let Node::Column(index) = &self.node {
            columns.insert(*index);
        }
        self.children().into_iter().for_each(|child| child.columns_into(columns));
    }

    /// Columns of integers, and the greatest value that each has where this condition is true.
    pub fn upper_bounds(&self) -> Vec<(usize, i64)> {
        let (op, left, right) = match &self.node {
            Node::And(parts) => return parts.iter().flat_map(Expr::upper_bounds).collect(),
            Node::Compare { op, left, right } => (*op, left.as_ref(), right.as_ref()),
            _ => return Vec::new(),
        };
        let is_integer = |of: &ColumnType| of.class() == Class::Int && of.scale() == Some(0) && of.dictionary.is_none();
        let (column, bound) = match (&left.node, &right.node) {
            (Node::Column(column), Node::Literal(Scalar::Int(value))) if is_integer(&left.of) => match op {
                CompareOp::Le | CompareOp::Eq => (*column, Some(*value)),
                CompareOp::Lt => (*column, value.checked_sub(1)),
                _ => return Vec::new(),
            },
            (Node::Literal(Scalar::Int(value)), Node::Column(column)) if is_integer(&right.of) => match op {
                CompareOp::Ge | CompareOp::Eq => (*column, Some(*value)),
                CompareOp::Gt => (*column, value.checked_sub(1)),
                _ => return Vec::new(),
            },
            _ => return Vec::new(),
        };
        bound.map(|bound| (column, bound)).into_iter().collect()
    }

    /// The same values with wider bounds, of the class that these have.
    pub fn widened(self, bounds: Option<(i128, i128)>) -> Expr {
        let of = ColumnType { bounds, ..self.of.clone() };
        if of.class() == self.class() { self } else { Expr { node: Node::Cast(self.into()), of } }
    }

    /// With the values of an execution's subqueries, by number.
    pub(crate) fn with_later(mut self, values: &[LaterValue]) -> Expr {
        self.bind(values);
        self
    }

    fn bind(&mut self, values: &[LaterValue]) {
        if let Node::Later { number, value } = &mut self.node {
            *value = values.get(*number).cloned();
        }
        self.children_mut().into_iter().for_each(|child| child.bind(values));
    }

    /// With each column where `map` says it is.
    pub fn moved(mut self, map: &impl Fn(usize) -> usize) -> Expr {
        self.renumber(map);
        self
    }

    fn renumber(&mut self, map: &impl Fn(usize) -> usize) {
        if let Node::Column(index) = &mut self.node {
            *index = map(*index);
        }
        self.children_mut().into_iter().for_each(|child| child.renumber(map));
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn list(f: &mut fmt::Formatter<'_>, parts: &[Expr], between: &str) -> fmt::Result {
            for (index, part) in parts.iter().enumerate() {
                write!(f, "{}{part}", if index == 0 { "" } else { between })?;
            }
            Ok(())
        }
        let not = |negated: &bool| if *negated { "NOT " } else { "" };
        match &self.node {
            Node::Column(index) => write!(f, "#{index}"),
            Node::Literal(Scalar::Null) => write!(f, "NULL"),
            Node::Literal(Scalar::Int(value)) => write!(f, "{value}"),
            Node::Literal(Scalar::Wide(value)) => write!(f, "{value}"),
            Node::Literal(Scalar::Float(value)) => write!(f, "{value}"),
            Node::Literal(Scalar::Bool(value)) => write!(f, "{value}"),
            Node::Literal(Scalar::Text(value)) => write!(f, "'{}'", String::from_utf8_lossy(value)),
            Node::Literal(Scalar::Other(_)) => write!(f, "a value"),
            Node::Later { number, .. } => write!(f, "$subquery{number}"),
            Node::Arithmetic { op, left, right } => {
                let op = match op {
                    ArithmeticOp::Add => "+",
                    ArithmeticOp::Subtract => "-",
                    ArithmeticOp::Multiply => "*",
                    ArithmeticOp::Divide => "/",
                    ArithmeticOp::Modulo => "%",
                };
                write!(f, "({left} {op} {right})")
            }
            Node::Negate(value) => write!(f, "(- {value})"),
            Node::Compare { op, left, right } => {
                let op = match op {
                    CompareOp::Eq => "=",
                    CompareOp::Ne => "<>",
                    CompareOp::Lt => "<",
                    CompareOp::Le => "<=",
                    CompareOp::Gt => ">",
                    CompareOp::Ge => ">=",
                };
                write!(f, "({left} {op} {right})")
            }
            Node::IsDistinct { negated, left, right } => {
                write!(f, "({left} IS {}DISTINCT FROM {right})", not(negated))
            }
            Node::And(parts) => {
                write!(f, "(")?;
                list(f, parts, " AND ")?;
                write!(f, ")")
            }
            Node::Or(parts) => {
                write!(f, "(")?;
                list(f, parts, " OR ")?;
                write!(f, ")")
            }
            Node::Not(value) => write!(f, "(NOT {value})"),
            Node::IsNull { value, negated } => write!(f, "({value} IS {}NULL)", not(negated)),
            Node::IsBool { value, is, negated } => {
                write!(f, "({value} IS {}{})", not(negated), if *is { "TRUE" } else { "FALSE" })
            }
            Node::In { value, values, negated, .. } => {
                write!(f, "({value} {}IN ({} values))", not(negated), values.len())
            }
            Node::Like { value, negated, .. } => write!(f, "({value} {}LIKE …)", not(negated)),
            Node::Case { branches, otherwise } => {
                write!(f, "CASE")?;
                for (condition, value) in branches {
                    write!(f, " WHEN {condition} THEN {value}")?;
                }
                if let Some(otherwise) = otherwise {
                    write!(f, " ELSE {otherwise}")?;
                }
                write!(f, " END")
            }
            Node::Coalesce(parts) => {
                write!(f, "coalesce(")?;
                list(f, parts, ", ")?;
                write!(f, ")")
            }
            Node::Cast(value) => write!(f, "({value})::{}", self.of.data_type),
            Node::Part { part, value } => write!(f, "extract({part:?} from {value})"),
            Node::Substring { value, start, len } => match len {
                Some(len) => write!(f, "substring({value}, {start}, {len})"),
                None => write!(f, "substring({value}, {start})"),
            },
            Node::Length { value, unit: TextUnit::Characters } => write!(f, "character_length({value})"),
            Node::Length { value, unit: TextUnit::Bytes } => write!(f, "octet_length({value})"),
            Node::Decode(value) => write!(f, "{value}"),
            Node::CodeTest { value, .. } => write!(f, "test({value})"),
            Node::Call { function, arguments } => {
                write!(f, "{}(", function.name())?;
                list(f, arguments, ", ")?;
                write!(f, ")")
            }
        }
    }
}
