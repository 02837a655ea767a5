//! Values of expressions over the rows of a chunk.
//!
//! An expression is prepared once ([`Prepared`]) and evaluated for many chunks. Evaluation goes node by node over whole
//! columns. Where only some rows count (what a `CASE` leaves to a branch, what earlier conditions let through), a node is
//! told which, as a mask: values in other rows mean nothing, and what would be an error there is none. If few rows count, they
//! are evaluated alone.

mod arithmetic;
mod call;
mod case;
mod cast;
mod compare;
mod dates;
mod float_range;
mod list;
mod logic;
mod lookup;
mod pattern;
mod prepare;
mod search;
mod simplify;
#[cfg(test)]
mod tests;
mod text;

use crate::dictionary::Dictionary;
use crate::expr::{DatePart, Expr, Function, Scalar, TextUnit};
use crate::later::LaterValue;
use crate::mask::Mask;
use crate::types::{Class, ColumnType};
use crate::vector::{Chunk, Values, Vector};
use std::cell::RefCell;
use std::sync::Arc;
use tidepool_base::{Error, Result};
use tidepool_table::CompareOp;

pub use float_range::Fault;
pub use simplify::simplify;

/// A value for each row; the vector's class is the expression's.
pub fn evaluate(expr: &Expr, chunk: &Chunk) -> Result<Vector> {
    Prepared::new(expr)?.evaluate(chunk)
}

/// The rows for which a boolean expression is true, which NULL is not.
pub fn select(expr: &Expr, chunk: &Chunk) -> Result<Mask> {
    Prepared::new(expr)?.select(chunk)
}

/// An expression with what its evaluation needs: sets of a list's values, searchers of patterns, which operations need checks.
pub struct Prepared {
    op: Op,
    of: ColumnType,
    /// Of a row, in comparisons of integers; roughly.
    cost: usize,
    /// A function must not see rows that do not count.
    has_call: bool,
    can_fail: bool,
}

enum Op {
    Column(usize),
    Literal(Scalar),
    Later(Option<LaterValue>),
    Arithmetic {
        kernel: arithmetic::Kernel,
        left: Box<Prepared>,
        right: Box<Prepared>,
    },
    Negate {
        kernel: arithmetic::Kernel,
        value: Box<Prepared>,
    },
    Compare {
        op: CompareOp,
        left: Box<Prepared>,
        right: Box<Prepared>,
    },
    IsDistinct {
        negated: bool,
        left: Box<Prepared>,
        right: Box<Prepared>,
    },
    And(Vec<Prepared>),
    Or(Vec<Prepared>),
    Not(Box<Prepared>),
    IsNull {
        value: Box<Prepared>,
        negated: bool,
    },
    IsBool {
        value: Box<Prepared>,
        is: bool,
        negated: bool,
    },
    In {
        value: Box<Prepared>,
        set: list::Set,
        has_null: bool,
        negated: bool,
    },
    Like {
        value: Box<Prepared>,
        matcher: pattern::Matcher,
        negated: bool,
    },
    Case {
        branches: Vec<(Prepared, Prepared)>,
        otherwise: Option<Box<Prepared>>,
    },
    Coalesce(Vec<Prepared>),
    Cast {
        kernel: cast::Kernel,
        value: Box<Prepared>,
    },
    Part {
        part: DatePart,
        is_date: bool,
        value: Box<Prepared>,
    },
    Substring {
        value: Box<Prepared>,
        start: i64,
        len: Option<i64>,
    },
    Length {
        value: Box<Prepared>,
        unit: TextUnit,
    },
    Decode {
        value: Box<Prepared>,
        dictionary: Arc<Dictionary>,
    },
    CodeTest {
        value: Box<Prepared>,
        test: list::CodeTest,
    },
    Call {
        function: Arc<dyn Function>,
        arguments: Vec<Prepared>,
    },
    /// Of a column of codes: what is the case for each, and lastly for NULL.
    Lookup {
        codes: usize,
        results: Vector,
    },
}

/// The rows that an expression is evaluated for: a chunk's, or some of them.
struct Input<'a> {
    chunk: &'a Chunk,
    rows: usize,
    picked: Option<Picked>,
}

struct Picked {
    positions: Vec<u32>,
    /// Columns of those rows alone, made when first asked for.
    columns: RefCell<Vec<(usize, Vector)>>,
}

impl<'a> Input<'a> {
    fn of(chunk: &'a Chunk) -> Input<'a> {
        Input { chunk, rows: chunk.rows, picked: None }
    }

    /// Some of its rows.
    fn pick(&self, positions: &[u32]) -> Input<'a> {
        let positions: Vec<u32> = match &self.picked {
            Some(picked) => positions.iter().map(|row| picked.positions[*row as usize]).collect(),
            None => positions.to_vec(),
        };
        let picked = Picked { positions, columns: RefCell::new(Vec::new()) };
        Input { chunk: self.chunk, rows: picked.positions.len(), picked: Some(picked) }
    }

    fn column(&self, index: usize) -> Result<Vector> {
        let column = self.chunk.columns.get(index);
        let column = column.ok_or_else(|| Error::internal(format!("a chunk has no column {index}")))?;
        let Some(picked) = &self.picked else { return Ok(column.clone()) };
        let mut columns = picked.columns.borrow_mut();
        if let Some((_, known)) = columns.iter().find(|(known, _)| *known == index) {
            return Ok(known.clone());
        }
        let gathered = column.gather(&picked.positions)?;
        columns.push((index, gathered.clone()));
        Ok(gathered)
    }
}

/// What evaluating gives: one value for all rows, or one for each.
#[derive(Clone)]
enum Value {
    Constant(Scalar),
    Vector(Vector),
}

impl Value {
    fn is_null(&self) -> bool {
        matches!(self, Value::Constant(Scalar::Null))
    }

    fn into_vector(self, of: &ColumnType, rows: usize) -> Result<Vector> {
        match self {
            Value::Vector(vector) => Ok(vector),
            Value::Constant(scalar) => repeat(&scalar, of, rows),
        }
    }

    fn valid(&self) -> Option<&Mask> {
        match self {
            Value::Constant(_) => None,
            Value::Vector(vector) => vector.valid.as_ref(),
        }
    }
}

/// A column with one value in all its rows.
fn repeat(scalar: &Scalar, of: &ColumnType, rows: usize) -> Result<Vector> {
    let values = match (scalar, of.class()) {
        (Scalar::Null, _) => return Ok(Vector::nulls(of, rows)),
        (Scalar::Int(value), Class::Int) => Values::Int(vec![*value; rows].into()),
        (Scalar::Int(value), Class::Wide) => Values::Wide(vec![i128::from(*value); rows].into()),
        (Scalar::Wide(value), Class::Wide) => Values::Wide(vec![*value; rows].into()),
        (Scalar::Float(value), Class::Float) => Values::Float(vec![*value; rows].into()),
        (Scalar::Bool(value), Class::Bool) => Values::Bool(if *value { Mask::all(rows) } else { Mask::none(rows) }),
        (Scalar::Text(value), Class::Text) => Values::Text(text::repeat(value, rows)),
        (Scalar::Other(array), Class::Other) => {
            let rows = arrow_array::UInt32Array::from(vec![0; rows]);
            let array = arrow_select::take::take(array.as_ref(), &rows, None);
            let array = array.map_err(|error| Error::internal(error.to_string()))?;
            return Vector::from_arrow(&array, of);
        }
        (scalar, class) => return Err(Error::internal(format!("a constant {scalar:?} for a column of {class:?}"))),
    };
    Ok(Vector { values, valid: None })
}

/// Rows that count of those that counted so far; `None` stands for all.
fn narrowed(live: Option<&Mask>, by: &Mask) -> Mask {
    live.map_or_else(|| by.clone(), |live| live.and(by))
}

/// Bits of some rows, put where those rows are.
fn scatter_mask(bits: &Mask, positions: &[u32], rows: usize) -> Mask {
    let mut words = vec![0u64; rows.div_ceil(64)];
    for (index, row) in positions.iter().enumerate() {
        words[*row as usize / 64] |= u64::from(bits.get(index)) << (row % 64);
    }
    Mask::from_words(words, rows)
}

impl Prepared {
    /// A value for each row; the vector's class is the expression's.
    pub fn evaluate(&self, chunk: &Chunk) -> Result<Vector> {
        self.value(&Input::of(chunk), None)?.into_vector(&self.of, chunk.rows)
    }

    /// The rows for which a boolean expression is true, which NULL is not.
    pub fn select(&self, chunk: &Chunk) -> Result<Mask> {
        if self.of.class() != Class::Bool {
            return Err(Error::internal("a condition that is no boolean"));
        }
        self.truth(&Input::of(chunk), None, true)
    }

    /// The column that it is, if it is nothing more.
    pub fn as_column(&self) -> Option<usize> {
        if let Op::Column(index) = &self.op { Some(*index) } else { None }
    }

    pub fn column_type(&self) -> &ColumnType {
        &self.of
    }

    /// Values of the rows of `live`, or of all; in other rows anything, and no error is raised for them.
    fn value(&self, input: &Input<'_>, live: Option<&Mask>) -> Result<Value> {
        let rows = input.rows;
        let vector = match &self.op {
            Op::Column(index) => input.column(*index)?,
            Op::Literal(scalar) => return Ok(Value::Constant(scalar.clone())),
            Op::Later(value) => {
                let known = value.as_ref().and_then(|value| value.get()).cloned();
                return known.map(Value::Constant).ok_or_else(|| Error::internal("a subquery that has not run"));
            }
            Op::Arithmetic { kernel, left, right } => {
                let (left, right) = (left.value(input, live)?, right.value(input, live)?);
                return arithmetic::binary(kernel, left, right, rows, live, &self.of);
            }
            Op::Negate { kernel, value } => {
                return arithmetic::negate(kernel, value.value(input, live)?, rows, live, &self.of);
            }
            Op::Compare { op, left, right } => {
                return compare::compare(*op, left.value(input, live)?, right.value(input, live)?, rows);
            }
            Op::IsDistinct { negated, left, right } => {
                let (left, right) = (left.value(input, live)?, right.value(input, live)?);
                compare::is_distinct(left, right, *negated, rows)?
            }
            Op::And(parts) => logic::value(parts, true, self.of.nullable, input, live)?,
            Op::Or(parts) => logic::value(parts, false, self.of.nullable, input, live)?,
            Op::Not(value) => logic::not(value.value(input, live)?, rows)?,
            Op::IsNull { .. } | Op::IsBool { .. } => logic::of_mask(self.truth(input, live, true)?),
            Op::In { value, set, has_null, negated } => {
                return list::within(value.value(input, live)?, set, *has_null, *negated, &value.of, rows);
            }
            Op::Like { value, matcher, negated } => {
                let value = value.value(input, live)?.into_vector(&value.of, rows)?;
                pattern::like(&value, matcher, *negated, live)?
            }
            Op::Case { branches, otherwise } => case::case(branches, otherwise.as_deref(), &self.of, input, live)?,
            Op::Coalesce(values) => case::coalesce(values, &self.of, input, live)?,
            Op::Cast { kernel, value } => {
                return cast::cast(kernel, value.value(input, live)?, &value.of, &self.of, rows, live);
            }
            Op::Part { part, is_date, value } => {
                let value = value.value(input, live)?.into_vector(&value.of, rows)?;
                dates::part(*part, *is_date, &value, self.of.class())?
            }
            Op::Substring { value, start, len } => {
                let value = value.value(input, live)?.into_vector(&value.of, rows)?;
                text::substring(&value, *start, *len, &self.of)?
            }
            Op::Length { value, unit } => {
                text::length(&value.value(input, live)?.into_vector(&value.of, rows)?, *unit)?
            }
            Op::Decode { value, dictionary } => {
                text::decode(&value.value(input, live)?.into_vector(&value.of, rows)?, dictionary)?
            }
            Op::CodeTest { value, test } => test.apply(&value.value(input, live)?.into_vector(&value.of, rows)?)?,
            Op::Call { function, arguments } => call::call(function.as_ref(), arguments, &self.of, input)?,
            Op::Lookup { codes, results } => lookup::lookup(&input.column(*codes)?, results)?,
        };
        Ok(Value::Vector(vector))
    }

    /// The rows of `live`, or all, for which a boolean expression is `wanted`; other rows' bits mean nothing.
    fn truth(&self, input: &Input<'_>, live: Option<&Mask>, wanted: bool) -> Result<Mask> {
        match &self.op {
            Op::And(parts) if wanted => logic::every(parts, true, input, live),
            Op::And(parts) => logic::any(parts, false, input, live),
            Op::Or(parts) if wanted => logic::any(parts, true, input, live),
            Op::Or(parts) => logic::every(parts, false, input, live),
            Op::Not(value) => value.truth(input, live, !wanted),
            Op::IsNull { value, negated } => {
                let valid = match value.value(input, live)? {
                    Value::Constant(scalar) if scalar.is_null() => Mask::none(input.rows),
                    Value::Constant(_) => Mask::all(input.rows),
                    Value::Vector(vector) => vector.valid.unwrap_or_else(|| Mask::all(input.rows)),
                };
                Ok(if *negated == wanted { valid } else { valid.not() })
            }
            Op::IsBool { value, is, negated } => {
                let is = value.truth(input, live, *is)?;
                Ok(if *negated == wanted { is.not() } else { is })
            }
            _ => logic::truth_of(self.value(input, live)?, wanted, input.rows),
        }
    }

    /// Whether it costs less to take `count` rows out of `rows` and to evaluate those alone.
    fn pays_to_pick(&self, count: usize, rows: usize) -> bool {
        /// Of a row that is taken out and whose result is put back.
        const PICK_COST: usize = 6;
        if self.has_call {
            return count < rows;
        }
        // Even to look for them costs as much as a comparison or two of all rows.
        count * (self.cost + PICK_COST) + rows * 2 < rows * self.cost
    }

    /// As [`Prepared::truth`], but bits outside `live` are 0.
    fn truth_within(&self, input: &Input<'_>, live: &Mask, wanted: bool) -> Result<Mask> {
        let count = live.count();
        if count == 0 {
            return Ok(Mask::none(input.rows));
        }
        if self.pays_to_pick(count, input.rows) {
            let positions = live.positions();
            let bits = self.truth(&input.pick(&positions), None, wanted)?;
            return Ok(scatter_mask(&bits, &positions, input.rows));
        }
        Ok(self.truth(input, (count < input.rows).then_some(live), wanted)?.and(live))
    }

    /// As [`Prepared::value`].
    fn value_within(&self, input: &Input<'_>, live: &Mask) -> Result<Value> {
        let count = live.count();
        if count == 0 {
            return Ok(Value::Constant(Scalar::Null));
        }
        if self.pays_to_pick(count, input.rows) {
            let positions = live.positions();
            return match self.value(&input.pick(&positions), None)? {
                Value::Vector(vector) => Ok(Value::Vector(case::scatter(&vector, &positions, input.rows)?)),
                constant => Ok(constant),
            };
        }
        self.value(input, (count < input.rows).then_some(live))
    }
}
