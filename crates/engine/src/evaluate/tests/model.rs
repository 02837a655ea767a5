//! What expressions mean, a row at a time, written without a look at how columns of them are evaluated.

use crate::expr::{ArithmeticOp, DatePart, Expr, Node, Pattern, Scalar, TextUnit};
use crate::types::{Class, type_bounds};
use arrow_schema::DataType;
use std::cmp::Ordering;
use tidepool_table::CompareOp;

#[derive(Clone, Debug)]
pub enum Model {
    Null,
    Int(i128),
    Float(f64),
    Bool(bool),
    Text(Vec<u8>),
}

use Model::{Bool, Float, Int, Null, Text};

/// An error's code.
pub type Outcome = Result<Model, &'static str>;

impl PartialEq for Model {
    fn eq(&self, other: &Model) -> bool {
        match (self, other) {
            (Null, Null) => true,
            (Int(a), Int(b)) => a == b,
            (Float(a), Float(b)) => a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()),
            (Bool(a), Bool(b)) => a == b,
            (Text(a), Text(b)) => a == b,
            _ => false,
        }
    }
}

pub fn of_scalar(scalar: &Scalar) -> Model {
    match scalar {
        Scalar::Null => Null,
        Scalar::Int(value) => Int((*value).into()),
        Scalar::Wide(value) => Int(*value),
        Scalar::Float(value) => Float(*value),
        Scalar::Bool(value) => Bool(*value),
        Scalar::Text(value) => Text(value.to_vec()),
        Scalar::Other(_) => unreachable!("none in tests"),
    }
}

fn order(a: &Model, b: &Model) -> Ordering {
    match (a, b) {
        (Int(a), Int(b)) => a.cmp(b),
        (Float(a), Float(b)) => match (a.is_nan(), b.is_nan()) {
            (false, false) => a.partial_cmp(b).unwrap(),
            (a, b) => a.cmp(&b),
        },
        (Bool(a), Bool(b)) => a.cmp(b),
        (Text(a), Text(b)) => a.cmp(b),
        _ => panic!("{a:?} beside {b:?}"),
    }
}

fn within(value: Option<i128>, data_type: &DataType) -> Outcome {
    let value = value.ok_or("22003")?;
    let (lower, upper) = match data_type {
        DataType::Decimal128(..) => (i128::MIN, i128::MAX),
        other => type_bounds(other).unwrap(),
    };
    if (lower..=upper).contains(&value) { Ok(Int(value)) } else { Err("22003") }
}

fn arithmetic(op: ArithmeticOp, a: &Model, b: &Model, data_type: &DataType) -> Outcome {
    match (a, b) {
        (Null, _) | (_, Null) => Ok(Null),
        (Int(a), Int(b)) => {
            if matches!(op, ArithmeticOp::Divide | ArithmeticOp::Modulo) && *b == 0 {
                return Err("22012");
            }
            let value = match op {
                ArithmeticOp::Add => a.checked_add(*b),
                ArithmeticOp::Subtract => a.checked_sub(*b),
                ArithmeticOp::Multiply => a.checked_mul(*b),
                ArithmeticOp::Divide => a.checked_div(*b),
                ArithmeticOp::Modulo => a.checked_rem(*b),
            };
            within(value, data_type)
        }
        (Float(a), Float(b)) => {
            if matches!(op, ArithmeticOp::Divide | ArithmeticOp::Modulo) && *b == 0.0 && !a.is_nan() {
                return Err("22012");
            }
            let value = if *data_type == DataType::Float32 {
                let (a, b) = (*a as f32, *b as f32);
                f64::from(match op {
                    ArithmeticOp::Add => a + b,
                    ArithmeticOp::Subtract => a - b,
                    ArithmeticOp::Multiply => a * b,
                    ArithmeticOp::Divide => a / b,
                    ArithmeticOp::Modulo => a % b,
                })
            } else {
                match op {
                    ArithmeticOp::Add => a + b,
                    ArithmeticOp::Subtract => a - b,
                    ArithmeticOp::Multiply => a * b,
                    ArithmeticOp::Divide => a / b,
                    ArithmeticOp::Modulo => a % b,
                }
            };
            let overflows = value.is_infinite() && a.is_finite() && (b.is_finite() || op == ArithmeticOp::Divide);
            let vanishes = value == 0.0
                && *a != 0.0
                && match op {
                    ArithmeticOp::Multiply => *b != 0.0,
                    ArithmeticOp::Divide => b.is_finite(),
                    _ => false,
                };
            if overflows || vanishes { Err("22003") } else { Ok(Float(value)) }
        }
        _ => panic!("{a:?} {op:?} {b:?}"),
    }
}

fn compare(op: CompareOp, a: &Model, b: &Model) -> Model {
    if *a == Null || *b == Null {
        return Null;
    }
    let order = order(a, b);
    Bool(match op {
        CompareOp::Eq => order == Ordering::Equal,
        CompareOp::Ne => order != Ordering::Equal,
        CompareOp::Lt => order == Ordering::Less,
        CompareOp::Le => order != Ordering::Greater,
        CompareOp::Gt => order == Ordering::Greater,
        CompareOp::Ge => order != Ordering::Less,
    })
}

/// `None` is any text; `Some(None)` any character.
pub fn matches(text: &[char], pattern: &[Option<Option<char>>]) -> bool {
    match pattern {
        [] => text.is_empty(),
        [None, rest @ ..] => (0..=text.len()).any(|skip| matches(&text[skip..], rest)),
        [Some(wanted), rest @ ..] => match text {
            [first, others @ ..] => wanted.is_none_or(|wanted| wanted == *first) && matches(others, rest),
            [] => false,
        },
    }
}

fn like(text: &[u8], pattern: &Pattern) -> bool {
    let lower = |text: &str| if pattern.ignores_case { text.to_lowercase() } else { text.to_owned() };
    let mut wanted = Vec::new();
    for (index, part) in pattern.parts.iter().enumerate() {
        if index > 0 || pattern.starts_open {
            wanted.push(None);
        }
        for run in part.chunk_by(|a, b| a.is_some() && b.is_some()) {
            match run.iter().copied().collect::<Option<Vec<u8>>>() {
                Some(bytes) => {
                    let run = lower(std::str::from_utf8(&bytes).unwrap());
                    wanted.extend(run.chars().map(|char| Some(Some(char))));
                }
                None => wanted.push(Some(None)),
            }
        }
    }
    if pattern.ends_open {
        wanted.push(None);
    }
    let text: Vec<char> = lower(std::str::from_utf8(text).unwrap()).chars().collect();
    matches(&text, &wanted)
}

fn cast(value: Model, from: &Expr, to: &Expr) -> Outcome {
    let (source, target) = (&from.of.data_type, &to.of.data_type);
    let scale = |expr: &Expr| i32::from(expr.of.scale().unwrap_or(0));
    let limited = |value: i128| match type_bounds(target) {
        Some((lower, upper)) if value < lower || value > upper => Err("22003"),
        _ => Ok(Int(value)),
    };
    let rounded = |value: f64| if *target == DataType::Float32 { f64::from(value as f32) } else { value };
    match (value, to.class()) {
        (Null, _) => Ok(Null),
        (Int(days), _) if *source == DataType::Date32 => {
            let micros = days * 86_400_000_000;
            if i64::try_from(micros).is_ok() { Ok(Int(micros)) } else { Err("22008") }
        }
        (Int(value), Class::Float) if scale(from) == 0 && *target == DataType::Float32 => {
            Ok(Float((value as f32).into()))
        }
        (Int(value), Class::Float) => Ok(Float(rounded(value as f64 / 10f64.powi(scale(from))))),
        (Int(value), _) => {
            let digits = scale(to) - scale(from);
            let power = 10i128.pow(digits.unsigned_abs());
            if digits >= 0 {
                return limited(value.checked_mul(power).ok_or("22003")?);
            }
            let away = if value < 0 { -power / 2 } else { power / 2 };
            limited((value + away) / power)
        }
        (Float(value), Class::Float) => match rounded(value) {
            result if result.is_infinite() != value.is_infinite() || (result == 0.0) != (value == 0.0) => Err("22003"),
            result => Ok(Float(result)),
        },
        (Float(value), _) => {
            let value = match target {
                DataType::Decimal128(..) => (value * 10f64.powi(scale(to))).round(),
                _ => value.round_ties_even(),
            };
            // Nothing of what is tested ends just here.
            if value.is_nan() || value.abs() >= 1e38 { Err("22003") } else { limited(value as i128) }
        }
        (value, _) => panic!("a cast of {value:?}"),
    }
}

/// Year, month, day and day of the year, by counting.
fn calendar(days: i64) -> (i64, i64, i64, i64) {
    let leap = |year: i64| year.rem_euclid(4) == 0 && (year.rem_euclid(100) != 0 || year.rem_euclid(400) == 0);
    let mut year = 1970 + days.div_euclid(146_097) * 400;
    let mut rest = days.rem_euclid(146_097);
    while rest >= 365 + i64::from(leap(year)) {
        rest -= 365 + i64::from(leap(year));
        year += 1;
    }
    let of_year = rest + 1;
    let lengths = [31, 28 + i64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if rest < length {
            break;
        }
        rest -= length;
        month += 1;
    }
    (year, month, rest + 1, of_year)
}

fn part(part: DatePart, value: i128, is_date: bool) -> i64 {
    let micros = if is_date { value * 86_400_000_000 } else { value };
    let (days, of_day) = (micros.div_euclid(86_400_000_000) as i64, micros.rem_euclid(86_400_000_000) as i64);
    let (year, month, day, of_year) = calendar(days);
    match part {
        DatePart::Year => year,
        DatePart::Quarter => (month - 1) / 3 + 1,
        DatePart::Month => month,
        DatePart::Day => day,
        DatePart::DayOfWeek => (days.rem_euclid(7) + 4) % 7,
        DatePart::DayOfYear => of_year,
        DatePart::Hour => of_day / 3_600_000_000,
        DatePart::Minute => of_day / 60_000_000 % 60,
    }
}

fn substring(text: &[u8], start: i64, len: Option<i64>) -> Vec<u8> {
    let chars = std::str::from_utf8(text).unwrap().chars();
    let kept = chars
        .zip(1i128..)
        .filter(|(_, at)| *at >= i128::from(start) && len.is_none_or(|len| *at < i128::from(start) + i128::from(len)));
    kept.map(|(char, _)| char).collect::<String>().into_bytes()
}

/// Of one row, `columns` being its values (of a coded column, the text).
pub fn model(expr: &Expr, columns: &[Model]) -> Outcome {
    let of = |expr: &Expr| model(expr, columns);
    let flip = |value: bool, negated: &bool| Bool(value != *negated);
    Ok(match &expr.node {
        Node::Column(index) => columns[*index].clone(),
        Node::Literal(scalar) => of_scalar(scalar),
        Node::Later { value, .. } => of_scalar(value.as_ref().and_then(|value| value.get()).unwrap()),
        Node::Arithmetic { op, left, right } => arithmetic(*op, &of(left)?, &of(right)?, &expr.of.data_type)?,
        Node::Negate(value) => match of(value)? {
            Int(value) => within(value.checked_neg(), &expr.of.data_type)?,
            Float(value) => Float(-value),
            value => value,
        },
        Node::Compare { op, left, right } => compare(*op, &of(left)?, &of(right)?),
        Node::IsDistinct { negated, left, right } => {
            let (left, right) = (of(left)?, of(right)?);
            let differs = match (&left, &right) {
                (Null, Null) => false,
                (Null, _) | (_, Null) => true,
                (left, right) => order(left, right) != Ordering::Equal,
            };
            flip(differs, negated)
        }
        Node::And(parts) | Node::Or(parts) => {
            let decides = matches!(expr.node, Node::Or(_));
            let mut result = Bool(!decides);
            for part in parts {
                match of(part)? {
                    Bool(value) if value == decides => return Ok(Bool(decides)),
                    Null => result = Null,
                    _ => {}
                }
            }
            result
        }
        Node::Not(value) => match of(value)? {
            Bool(value) => Bool(!value),
            value => value,
        },
        Node::IsNull { value, negated } => flip(of(value)? == Null, negated),
        Node::IsBool { value, is, negated } => flip(of(value)? == Bool(*is), negated),
        Node::In { value, values, has_null, negated } => {
            let value = of(value)?;
            if values.is_empty() && !has_null {
                return Ok(Bool(*negated));
            }
            if value == Null {
                return Ok(Null);
            }
            let found = values.iter().any(|one| order(&value, &of_scalar(one)) == Ordering::Equal);
            if !found && *has_null { Null } else { flip(found, negated) }
        }
        Node::Like { value, pattern, negated } => match of(value)? {
            Text(text) => flip(like(&text, pattern), negated),
            value => value,
        },
        Node::Case { branches, otherwise } => {
            for (condition, value) in branches {
                if of(condition)? == Bool(true) {
                    return of(value);
                }
            }
            otherwise.as_ref().map_or(Ok(Null), |otherwise| of(otherwise))?
        }
        Node::Coalesce(values) => {
            for value in values {
                let value = of(value)?;
                if value != Null {
                    return Ok(value);
                }
            }
            Null
        }
        Node::Cast(value) => cast(of(value)?, value, expr)?,
        Node::Part { part: which, value } => match of(value)? {
            Int(micros) => {
                let part = part(*which, micros, value.of.data_type == DataType::Date32);
                if expr.class() == Class::Float { Float(part as f64) } else { Int(part.into()) }
            }
            value => value,
        },
        Node::Substring { value, start, len } => match of(value)? {
            Text(_) if len.is_some_and(|len| len < 0) => return Err("22000"),
            Text(text) => Text(substring(&text, *start, *len)),
            value => value,
        },
        Node::Length { value, unit } => match of(value)? {
            Text(text) => Int(match unit {
                TextUnit::Characters => std::str::from_utf8(&text).unwrap().chars().count() as i128,
                TextUnit::Bytes => text.len() as i128,
            }),
            value => value,
        },
        Node::Decode(value) => of(value)?,
        Node::CodeTest { .. } => unreachable!("only made of others"),
        // The one function of the tests.
        Node::Call { arguments, .. } => match of(&arguments[0])? {
            Int(7) => return Err("22023"),
            Int(value) => Int(value / 2),
            value => value,
        },
    })
}
