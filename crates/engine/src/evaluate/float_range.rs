//! Results of arithmetic that no floating-point number holds: 22003, where processors give infinity, or zero.
//!
//! Infinity comes of infinity, and zero of zero. What comes of other operands is out of range. One pass over the results tells whether any may
//! be; only then are operands looked at.

use super::arithmetic::Side;
use crate::expr::ArithmeticOp;
use crate::simd::{map, simd};
use tidepool_base::{Error, Result, SqlState};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Overflow,
    Underflow,
}

impl Fault {
    pub fn error(self) -> Error {
        let what = match self {
            Fault::Overflow => "overflow",
            Fault::Underflow => "underflow",
        };
        Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, format!("value out of range: {what}"))
    }

    /// That of an operation's result, if it has one.
    pub fn of(op: ArithmeticOp, left: f64, right: f64, result: f64) -> Option<Fault> {
        match () {
            () if overflows(op)(left, right, result) => Some(Fault::Overflow),
            () if underflows(op)(left, right, result) => Some(Fault::Underflow),
            () => None,
        }
    }

    /// That of a double made `real`, if it has one.
    #[inline(always)]
    pub fn of_narrowing(value: f64, result: f32) -> Option<Fault> {
        match () {
            () if result.is_infinite() && !value.is_infinite() => Some(Fault::Overflow),
            () if result == 0.0 && value != 0.0 => Some(Fault::Underflow),
            () => None,
        }
    }
}

/// Whether a result is infinite which its operands do not make so.
#[inline(always)]
fn overflows(op: ArithmeticOp) -> impl Fn(f64, f64, f64) -> bool + Copy {
    // Whatever is divided by infinity is finite.
    let looks_right = op != ArithmeticOp::Divide;
    move |left: f64, right: f64, result: f64| {
        (result.abs() == f64::INFINITY)
            & (left.abs() != f64::INFINITY)
            & (!looks_right | (right.abs() != f64::INFINITY))
    }
}

/// Whether a product or a quotient is zero which its operands do not make so.
#[inline(always)]
fn underflows(op: ArithmeticOp) -> impl Fn(f64, f64, f64) -> bool + Copy {
    let (is_product, is_quotient) = (op == ArithmeticOp::Multiply, op == ArithmeticOp::Divide);
    move |left: f64, right: f64, result: f64| {
        (result == 0.0) & (left != 0.0) & (is_product & (right != 0.0) | is_quotient & (right.abs() != f64::INFINITY))
    }
}

simd! {
    fn any[](values: &[f64], test: impl Fn(f64) -> bool) -> bool {
        let mut any = 0u64;
        for value in values {
            any |= u64::from(test(*value));
        }
        any != 0
    }

    fn any_pair[](values: &[f64], results: &[f64], test: impl Fn(f64, f64) -> bool) -> bool {
        let mut any = 0u64;
        for (value, result) in values.iter().zip(results) {
            any |= u64::from(test(*value, *result));
        }
        any != 0
    }

    fn any_triple[](left: &[f64], right: &[f64], results: &[f64], test: impl Fn(f64, f64, f64) -> bool) -> bool {
        let mut any = 0u64;
        for ((left, right), result) in left.iter().zip(right).zip(results) {
            any |= u64::from(test(*left, *right, *result));
        }
        any != 0
    }

    /// Writes results over the left operands, and tells of their faults: whether any overflowed, and whether any vanished.
    fn over_checked[](
        values: &mut [f64],
        other: &[f64],
        f: impl Fn(f64, f64) -> f64,
        overflows: impl Fn(f64, f64, f64) -> bool,
        underflows: impl Fn(f64, f64, f64) -> bool,
    ) -> (bool, bool) {
        let (mut over, mut under) = (0u64, 0u64);
        for (value, other) in values.iter_mut().zip(other) {
            let result = f(*value, *other);
            over |= u64::from(overflows(*value, *other, result));
            under |= u64::from(underflows(*value, *other, result));
            *value = result;
        }
        (over != 0, under != 0)
    }

    fn over_checked_with[](
        values: &mut [f64],
        other: f64,
        f: impl Fn(f64, f64) -> f64,
        overflows: impl Fn(f64, f64, f64) -> bool,
        underflows: impl Fn(f64, f64, f64) -> bool,
    ) -> (bool, bool) {
        let (mut over, mut under) = (0u64, 0u64);
        for value in values {
            let result = f(*value, other);
            over |= u64::from(overflows(*value, other, result));
            under |= u64::from(underflows(*value, other, result));
            *value = result;
        }
        (over != 0, under != 0)
    }
}

/// Fails if the result of a row of interest is out of range. `rows` gives those.
pub(super) fn check(
    op: ArithmeticOp,
    left: Side<'_, f64>,
    right: Side<'_, f64>,
    results: &[f64],
    rows: impl FnOnce() -> Vec<u32>,
) -> Result<()> {
    let may_vanish = matches!(op, ArithmeticOp::Multiply | ArithmeticOp::Divide);
    if !any(results, |result| (result.abs() == f64::INFINITY) | (may_vanish & (result == 0.0))) {
        return Ok(());
    }
    // Zeroes are frequent, and mostly those of operands.
    let (over, under) = (overflows(op), underflows(op));
    let faulty = move |left: f64, right: f64, result: f64| over(left, right, result) | under(left, right, result);
    let is_faulty = match (left, right) {
        (Side::Slice(left), Side::Slice(right)) => any_triple(left, right, results, faulty),
        (Side::Slice(left), Side::Constant(b)) => any_pair(left, results, |a, result| faulty(a, b, result)),
        (Side::Constant(a), Side::Slice(right)) => any_pair(right, results, |b, result| faulty(a, b, result)),
        (Side::Constant(a), Side::Constant(b)) => any(results, |result| faulty(a, b, result)),
    };
    if !is_faulty {
        return Ok(());
    }
    let fault = |row: u32| {
        let row = row as usize;
        Fault::of(op, left.get(row), right.get(row), results[row])
    };
    match rows().into_iter().find_map(fault) {
        Some(fault) => Err(fault.error()),
        None => Ok(()),
    }
}

/// Doubles as `real`, each held as a double. Fails if that of a row of interest, which `rows` gives, is out of range.
pub(super) fn narrow(values: &[f64], rows: impl FnOnce() -> Vec<u32>) -> Result<Vec<f64>> {
    let results = map(values, |value| f64::from(value as f32));
    let faulty = |value: f64, result: f64| {
        (result.abs() == f64::INFINITY) & (value.abs() != f64::INFINITY) | (result == 0.0) & (value != 0.0)
    };
    if any_pair(values, &results, faulty) {
        let fault = |row: u32| Fault::of_narrowing(values[row as usize], values[row as usize] as f32);
        if let Some(fault) = rows().into_iter().find_map(fault) {
            return Err(fault.error());
        }
    }
    Ok(results)
}

/// Sums, differences and products written over an operand, all of whose rows are of interest. `is_right`: the values are the right operand.
pub(super) fn over(op: ArithmeticOp, values: &mut [f64], other: Side<'_, f64>, is_right: bool) -> Result<()> {
    #[inline(always)]
    fn side(op: ArithmeticOp, values: &mut [f64], other: Side<'_, f64>, f: impl Fn(f64, f64) -> f64) -> (bool, bool) {
        // Of these operations, faults are the same whichever operand is which.
        match other {
            Side::Slice(other) => over_checked(values, other, f, overflows(op), underflows(op)),
            Side::Constant(other) => over_checked_with(values, other, f, overflows(op), underflows(op)),
        }
    }
    let faults = match (op, is_right) {
        (ArithmeticOp::Add, _) => side(ArithmeticOp::Add, values, other, |a, b| a + b),
        (ArithmeticOp::Subtract, false) => side(ArithmeticOp::Subtract, values, other, |a, b| a - b),
        (ArithmeticOp::Subtract, true) => side(ArithmeticOp::Subtract, values, other, |b, a| a - b),
        _ => side(ArithmeticOp::Multiply, values, other, |a, b| a * b),
    };
    match faults {
        (true, _) => Err(Fault::Overflow.error()),
        (_, true) => Err(Fault::Underflow.error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_out_of_range_that_operands_do_not_explain() {
        use ArithmeticOp::{Add, Divide, Multiply, Subtract};
        let values = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            1e308,
            -1e308,
            1e-308,
            1e-200,
            5e-324,
            f64::MAX,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
        ];
        let mut faults = 0;
        for (op, f) in [
            (Add, (|a, b| a + b) as fn(f64, f64) -> f64),
            (Subtract, |a, b| a - b),
            (Multiply, |a, b| a * b),
            (Divide, |a, b| a / b),
        ] {
            for a in values {
                for b in values.into_iter().filter(|b| op != Divide || *b != 0.0) {
                    let result = f(a, b);
                    let expected = match op {
                        _ if result.is_infinite() && !a.is_infinite() && (op == Divide || !b.is_infinite()) => {
                            Some(Fault::Overflow)
                        }
                        Multiply if result == 0.0 && a != 0.0 && b != 0.0 => Some(Fault::Underflow),
                        Divide if result == 0.0 && a != 0.0 && !b.is_infinite() => Some(Fault::Underflow),
                        _ => None,
                    };
                    assert_eq!(Fault::of(op, a, b, result), expected, "{op:?} {a} {b}");
                    faults += usize::from(expected.is_some());
                    // The pair in the midst of others, whichever side is one value for all rows.
                    let (left, right) = ([1.0, 1.0, a, 1.0, 2.0], [2.0, 2.0, b, 2.0, 2.0]);
                    let whole =
                        |left: [f64; 5], right: [f64; 5]| -> [f64; 5] { std::array::from_fn(|i| f(left[i], right[i])) };
                    let all = || vec![0, 1, 2, 3, 4];
                    let results = whole(left, right);
                    let slices = check(op, Side::Slice(&left), Side::Slice(&right), &results, all);
                    assert_eq!(slices.is_err(), expected.is_some());
                    // A row that is of no interest has no fault.
                    check(op, Side::Slice(&left), Side::Slice(&right), &results, || vec![0, 1, 3, 4]).unwrap();
                    let results = whole([a; 5], right);
                    let constant = check(op, Side::Constant(a), Side::Slice(&right), &results, || vec![2]);
                    assert_eq!(constant.is_err(), expected.is_some());
                    if op != Divide {
                        for is_right in [false, true] {
                            let (mut own, other) = if is_right { (right, left) } else { (left, right) };
                            let done = over(op, &mut own, Side::Slice(&other), is_right);
                            assert_eq!(done.is_err(), expected.is_some());
                            assert!(
                                own.iter()
                                    .zip(whole(left, right))
                                    .all(|(a, b)| a.to_bits() == b.to_bits() || b.is_nan())
                            );
                        }
                    }
                }
            }
        }
        assert!(faults > 20);
    }
}
