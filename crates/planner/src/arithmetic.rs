//! PostgreSQL's arithmetic where Arrow's differs: decimal division keeps sixteen digits and rounds, differences of
//! timestamps are counted in days, intervals are scaled and compared by their parts.

use crate::errors::carry;
use arrow::array::{
    Array, ArrayRef, AsArray, BinaryViewArray, Decimal128Array, Float32Array, Float64Array, IntervalMonthDayNanoArray,
};
use arrow::datatypes::{
    DataType, Decimal128Type, Float32Type, Float64Type, IntervalMonthDayNano, IntervalMonthDayNanoType, IntervalUnit,
    TimeUnit, TimestampMicrosecondType, i256,
};
use datafusion::common::{Result, ScalarValue, internal_err, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use std::sync::Arc;
use tidepool_base::{Error, SqlState};

/// Digits after the point of a quotient and of an average, at least: what PostgreSQL shows of most.
pub const QUOTIENT_SCALE: i8 = 16;

/// Products keep all their digits up to this scale; beyond, a third factor would leave no room before the point.
const PRODUCT_SCALE: i8 = 20;

pub const PRECISION: u8 = 38;
const INTERVAL_KEY_BYTES: usize = 24;
const DAY_US: i64 = 86_400_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    DivideDecimals,
    MultiplyDecimals,
    SubtractTimestamps,
    MultiplyInterval,
    DivideInterval,
    /// An interval's length for comparison: months of 30 days, in nanoseconds.
    IntervalLength,
    /// An interval as bytes: its length, for an order by it, then its months and days.
    IntervalKey,
    /// The interval that a key is of.
    IntervalOfKey,
    /// Rounds a float to a whole number, halves to the even one.
    RoundFloat,
    /// Passes through what has a logarithm.
    LogarithmArgument,
}

#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Arithmetic {
    kind: Kind,
    signature: Signature,
}

pub fn call(kind: Kind, arguments: Vec<Expr>) -> Expr {
    let signature = Signature::user_defined(Volatility::Immutable);
    ScalarUDF::new_from_impl(Arithmetic { kind, signature }).call(arguments)
}

/// Whether a product of these scales loses digits here.
pub fn is_large_product(left: i8, right: i8) -> bool {
    i16::from(left) + i16::from(right) > i16::from(PRODUCT_SCALE)
}

/// The decimal type that holds a number's type exactly; `None` for others.
pub fn decimal_type(data_type: &DataType) -> Option<DataType> {
    Some(match data_type {
        DataType::Int8 | DataType::UInt8 => DataType::Decimal128(3, 0),
        DataType::Int16 | DataType::UInt16 => DataType::Decimal128(5, 0),
        DataType::Int32 | DataType::UInt32 => DataType::Decimal128(10, 0),
        DataType::Int64 | DataType::UInt64 => DataType::Decimal128(20, 0),
        DataType::Decimal32(precision, scale) | DataType::Decimal64(precision, scale) => {
            DataType::Decimal128(*precision, *scale)
        }
        DataType::Decimal128(..) => data_type.clone(),
        _ => return None,
    })
}

fn scales(types: &[DataType]) -> Result<(i8, i8)> {
    match types {
        [DataType::Decimal128(_, left), DataType::Decimal128(_, right)] => Ok((*left, *right)),
        _ => internal_err!("decimal arithmetic over {types:?}"),
    }
}

const INTERVAL: DataType = DataType::Interval(IntervalUnit::MonthDayNano);

impl ScalarUDFImpl for Arithmetic {
    fn name(&self) -> &str {
        match self.kind {
            Kind::DivideDecimals => "tidepool_divide",
            Kind::MultiplyDecimals => "tidepool_multiply",
            Kind::SubtractTimestamps => "tidepool_elapsed",
            Kind::MultiplyInterval => "tidepool_interval_times",
            Kind::DivideInterval => "tidepool_interval_by",
            Kind::IntervalLength => "tidepool_interval_length",
            Kind::IntervalKey => "tidepool_interval_key",
            Kind::IntervalOfKey => "tidepool_interval_of_key",
            Kind::RoundFloat => "tidepool_round",
            Kind::LogarithmArgument => "tidepool_logarithm_of",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let timestamp = |data_type: &DataType| match data_type {
            DataType::Timestamp(_, zone) => DataType::Timestamp(TimeUnit::Microsecond, zone.clone()),
            _ => DataType::Timestamp(TimeUnit::Microsecond, None),
        };
        Ok(match self.kind {
            Kind::DivideDecimals | Kind::MultiplyDecimals => {
                let decimals: Option<Vec<DataType>> = types.iter().map(decimal_type).collect();
                let Some(decimals) = decimals else { return plan_err!("decimal arithmetic over {types:?}") };
                decimals
            }
            Kind::SubtractTimestamps => types.iter().map(timestamp).collect(),
            Kind::MultiplyInterval | Kind::DivideInterval => vec![INTERVAL, DataType::Float64],
            Kind::IntervalLength | Kind::IntervalKey => vec![INTERVAL],
            Kind::IntervalOfKey => vec![DataType::BinaryView],
            Kind::RoundFloat | Kind::LogarithmArgument => match types {
                [DataType::Float32] => vec![DataType::Float32],
                _ => vec![DataType::Float64],
            },
        })
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        crate::catalog::name_of_call(self.name(), args)
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(match self.kind {
            Kind::DivideDecimals => {
                let (left, right) = scales(types)?;
                DataType::Decimal128(PRECISION, QUOTIENT_SCALE.max(left).max(right))
            }
            Kind::MultiplyDecimals => {
                let (left, right) = scales(types)?;
                DataType::Decimal128(PRECISION, PRODUCT_SCALE.max(left).max(right))
            }
            Kind::SubtractTimestamps | Kind::MultiplyInterval | Kind::DivideInterval | Kind::IntervalOfKey => INTERVAL,
            Kind::IntervalKey => DataType::BinaryView,
            Kind::IntervalLength => DataType::Decimal128(PRECISION, 0),
            Kind::RoundFloat | Kind::LogarithmArgument => types.first().cloned().unwrap_or(DataType::Float64),
        })
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let constant = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let array: ArrayRef =
            match (self.kind, arrays.as_slice()) {
                (Kind::DivideDecimals | Kind::MultiplyDecimals, [left, right]) => {
                    decimals(self.kind, left, right, args.return_field.data_type())?
                }
                (Kind::SubtractTimestamps, [left, right]) => {
                    let left = left.as_primitive::<TimestampMicrosecondType>();
                    let right = right.as_primitive::<TimestampMicrosecondType>();
                    let elapsed = left.iter().zip(right).map(|(left, right)| match (left, right) {
                        (Some(left), Some(right)) => elapsed(left, right).map(Some),
                        _ => Ok(None),
                    });
                    Arc::new(elapsed.collect::<Result<IntervalMonthDayNanoArray>>()?)
                }
                (Kind::MultiplyInterval | Kind::DivideInterval, [interval, factor]) => {
                    let intervals = interval.as_primitive::<IntervalMonthDayNanoType>();
                    let factors = factor.as_primitive::<Float64Type>();
                    let scaled = intervals.iter().zip(factors).map(|(interval, factor)| match (interval, factor) {
                        (Some(interval), Some(factor)) => scale_interval(self.kind, interval, factor).map(Some),
                        _ => Ok(None),
                    });
                    Arc::new(scaled.collect::<Result<IntervalMonthDayNanoArray>>()?)
                }
                (Kind::IntervalLength, [interval]) => {
                    let lengths: Decimal128Array = interval
                        .as_primitive::<IntervalMonthDayNanoType>()
                        .iter()
                        .map(|interval| interval.map(|interval| length(&interval)))
                        .collect();
                    Arc::new(lengths.with_precision_and_scale(PRECISION, 0)?)
                }
                (Kind::IntervalKey, [interval]) => {
                    let intervals = interval.as_primitive::<IntervalMonthDayNanoType>().iter();
                    Arc::new(intervals.map(|interval| interval.map(key_of)).collect::<BinaryViewArray>())
                }
                (Kind::IntervalOfKey, [key]) => {
                    let keys = key.as_binary_view().iter();
                    let intervals = keys.map(|key| key.map(interval_of_key).transpose());
                    Arc::new(intervals.collect::<Result<IntervalMonthDayNanoArray>>()?)
                }
                (Kind::RoundFloat, [value]) => match value.data_type() {
                    DataType::Float32 => {
                        Arc::new(value.as_primitive::<Float32Type>().unary::<_, Float32Type>(f32::round_ties_even)
                            as Float32Array)
                    }
                    _ => Arc::new(value.as_primitive::<Float64Type>().unary::<_, Float64Type>(f64::round_ties_even)
                        as Float64Array),
                },
                (Kind::LogarithmArgument, [value]) => {
                    let smallest = match value.data_type() {
                        DataType::Float32 => arrow::compute::min(value.as_primitive::<Float32Type>()).map(f64::from),
                        _ => arrow::compute::min(value.as_primitive::<Float64Type>()),
                    };
                    let what = match smallest {
                        Some(0.0) => "zero",
                        Some(smallest) if smallest < 0.0 => "a negative number",
                        _ => "",
                    };
                    if !what.is_empty() {
                        let message = format!("cannot take logarithm of {what}");
                        return Err(carry(Error::new(SqlState::INVALID_ARGUMENT_FOR_LOGARITHM, message)));
                    }
                    value.clone()
                }
                _ => return internal_err!("{} was called with {} arguments", self.name(), arrays.len()),
            };
        match constant {
            true => Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&array, 0)?)),
            false => Ok(ColumnarValue::Array(array)),
        }
    }
}

fn decimals(kind: Kind, left: &ArrayRef, right: &ArrayRef, result: &DataType) -> Result<ArrayRef> {
    let types = [left.data_type().clone(), right.data_type().clone()];
    let (left_scale, right_scale) = scales(&types)?;
    let &DataType::Decimal128(precision, scale) = result else {
        return internal_err!("decimal arithmetic into {result}");
    };
    let left = left.as_primitive::<Decimal128Type>();
    let right = right.as_primitive::<Decimal128Type>();
    let values = left.iter().zip(right).map(|(left, right)| match (left, right) {
        (Some(left), Some(right)) => {
            let value = match kind {
                Kind::DivideDecimals => {
                    divide(left, right, i32::from(scale) + i32::from(right_scale) - i32::from(left_scale))
                }
                _ => multiply(left, right, i32::from(left_scale) + i32::from(right_scale) - i32::from(scale)),
            };
            value.map(Some)
        }
        _ => Ok(None),
    });
    let values = values.collect::<Result<Decimal128Array>>()?;
    Ok(Arc::new(values.with_precision_and_scale(precision, scale)?))
}

fn power_of_ten(exponent: u32) -> Option<i128> {
    10i128.checked_pow(exponent)
}

/// Quotient rounded half away from zero.
fn rounded(dividend: i128, divisor: i128) -> i128 {
    let (quotient, rest) = (dividend / divisor, dividend % divisor);
    if rest.unsigned_abs() >= divisor.unsigned_abs() - rest.unsigned_abs() {
        quotient + if (dividend < 0) == (divisor < 0) { 1 } else { -1 }
    } else {
        quotient
    }
}

fn rounded_wide(dividend: i256, divisor: i256) -> Option<i128> {
    let quotient = dividend.checked_div(divisor)?;
    let rest = dividend.checked_rem(divisor)?;
    let twice = rest.wrapping_abs().checked_mul(i256::from_i128(2))?;
    let quotient = if twice >= divisor.wrapping_abs() {
        let step = if dividend.is_negative() == divisor.is_negative() { 1 } else { -1 };
        quotient.checked_add(i256::from_i128(step))?
    } else {
        quotient
    };
    quotient.to_i128()
}

/// A value that a decimal of 38 digits holds.
fn in_range(value: Option<i128>) -> Result<i128> {
    const LIMIT: u128 = 10u128.pow(PRECISION as u32);
    value.filter(|value| value.unsigned_abs() < LIMIT).ok_or_else(|| {
        let error = Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "value overflows numeric format");
        carry(error.with_detail("Numbers of up to 38 digits are held, those after the point included."))
    })
}

/// `left / right`, with the dividend scaled up by a power of ten first.
fn divide(left: i128, right: i128, shift: i32) -> Result<i128> {
    if right == 0 {
        return Err(carry(Error::new(SqlState::DIVISION_BY_ZERO, "division by zero")));
    }
    let shift = shift.unsigned_abs();
    if let Some(dividend) = power_of_ten(shift).and_then(|factor| left.checked_mul(factor)) {
        return in_range(Some(rounded(dividend, right)));
    }
    let wide = i256::from_i128(10)
        .checked_pow(shift)
        .and_then(|factor| i256::from_i128(left).checked_mul(factor))
        .and_then(|dividend| rounded_wide(dividend, i256::from_i128(right)));
    in_range(wide)
}

/// `left * right`, with the product scaled down by a power of ten.
fn multiply(left: i128, right: i128, shift: i32) -> Result<i128> {
    let product = i256::from_i128(left).wrapping_mul(i256::from_i128(right));
    let divisor = i256::from_i128(10).checked_pow(shift.max(0).unsigned_abs());
    in_range(divisor.and_then(|divisor| rounded_wide(product, divisor)))
}

/// The exact quotient of two constants, to as many digits as PostgreSQL gives it: at least sixteen significant ones.
pub fn constant_quotient(left: (i128, i8), right: (i128, i8)) -> Result<(i128, i8)> {
    if right.0 == 0 {
        return divide(1, 0, 0).map(|value| (value, 0));
    }
    let (left_weight, left_first) = weight(left.0, left.1);
    let (right_weight, right_first) = weight(right.0, right.1);
    let quotient_weight = left_weight - right_weight - i32::from(left_first <= right_first);
    let scale = (i32::from(QUOTIENT_SCALE) - quotient_weight * 4).max(i32::from(left.1)).max(i32::from(right.1)).max(0);
    // As many digits as there is room for.
    let mut scale = scale.min(i32::from(PRECISION) - 1);
    loop {
        let shift = scale + i32::from(right.1) - i32::from(left.1);
        match divide(left.0, right.0, shift.max(0)) {
            Ok(value) => return Ok((value, scale as i8)),
            Err(error) if scale == 0 => return Err(error),
            Err(_) => scale -= 1,
        }
    }
}

/// Where a number's first group of four digits stands, and that group: how PostgreSQL keeps a `numeric`.
fn weight(value: i128, scale: i8) -> (i32, i128) {
    if value == 0 {
        return (0, 0);
    }
    let mut digits = value.unsigned_abs() as i128;
    let mut weight = 0;
    // Aligned so that groups end at the point.
    let mut below = i32::from(scale);
    while below % 4 != 0 {
        match digits.checked_mul(10) {
            Some(longer) => digits = longer,
            None => break,
        }
        below += 1;
    }
    weight -= below / 4;
    while digits >= 10_000 {
        digits /= 10_000;
        weight += 1;
    }
    (weight, digits)
}

fn elapsed(later: i64, earlier: i64) -> Result<IntervalMonthDayNano> {
    let overflow = || carry(Error::new(SqlState::DATETIME_FIELD_OVERFLOW, "interval out of range"));
    let micros = later.checked_sub(earlier).ok_or_else(overflow)?;
    let days = i32::try_from(micros / DAY_US).map_err(|_| overflow())?;
    Ok(IntervalMonthDayNano::new(0, days, micros % DAY_US * 1_000))
}

pub fn length(interval: &IntervalMonthDayNano) -> i128 {
    let days = i128::from(interval.months) * 30 + i128::from(interval.days);
    days * i128::from(DAY_US) * 1_000 + i128::from(interval.nanoseconds)
}

fn key_of(interval: IntervalMonthDayNano) -> [u8; INTERVAL_KEY_BYTES] {
    let mut key = [0; INTERVAL_KEY_BYTES];
    // Without its sign's bit turned, what is negative would come last.
    key[..16].copy_from_slice(&(length(&interval) ^ i128::MIN).to_be_bytes());
    key[16..20].copy_from_slice(&interval.months.to_be_bytes());
    key[20..].copy_from_slice(&interval.days.to_be_bytes());
    key
}

fn interval_of_key(key: &[u8]) -> Result<IntervalMonthDayNano> {
    let parts = key.split_first_chunk::<16>().and_then(|(length, rest)| {
        let (months, rest) = rest.split_first_chunk::<4>()?;
        Some((i128::from_be_bytes(*length) ^ i128::MIN, i32::from_be_bytes(*months), <[u8; 4]>::try_from(rest).ok()?))
    });
    let interval = parts.and_then(|(whole, months, days)| {
        let mut interval = IntervalMonthDayNano::new(months, i32::from_be_bytes(days), 0);
        interval.nanoseconds = i64::try_from(whole.checked_sub(length(&interval))?).ok()?;
        Some(interval)
    });
    interval.map_or_else(|| internal_err!("no key of an interval"), Ok)
}

/// PostgreSQL's `interval_mul` and `interval_div`: what is left of a month becomes days of 30 to it, what is left of a
/// day becomes time.
fn scale_interval(kind: Kind, interval: IntervalMonthDayNano, factor: f64) -> Result<IntervalMonthDayNano> {
    const DAY_SECONDS: f64 = 86_400.0;
    let overflow = || carry(Error::new(SqlState::DATETIME_FIELD_OVERFLOW, "interval out of range"));
    if kind == Kind::DivideInterval && factor == 0.0 {
        return Err(carry(Error::new(SqlState::DIVISION_BY_ZERO, "division by zero")));
    }
    let scale = |value: f64| if kind == Kind::DivideInterval { value / factor } else { value * factor };
    let whole = |value: f64| {
        let fits = value.is_finite() && value >= f64::from(i32::MIN) && value <= f64::from(i32::MAX);
        if fits { Ok(value as i32) } else { Err(overflow()) }
    };
    let microseconds = |value: f64| (value * 1e6).round_ties_even() / 1e6;
    let months_exact = scale(f64::from(interval.months));
    let days_exact = scale(f64::from(interval.days));
    let months = whole(months_exact)?;
    let mut days = whole(days_exact)?;
    let month_days = microseconds((months_exact - f64::from(months)) * 30.0);
    let mut seconds = microseconds((days_exact - f64::from(days) + month_days - month_days.trunc()) * DAY_SECONDS);
    if seconds.abs() >= DAY_SECONDS {
        let more = (seconds / DAY_SECONDS).trunc();
        days = days.checked_add(more as i32).ok_or_else(overflow)?;
        seconds -= more * DAY_SECONDS;
    }
    days = days.checked_add(month_days as i32).ok_or_else(overflow)?;
    let micros = (scale(interval.nanoseconds as f64 / 1e3) + seconds * 1e6).round_ties_even();
    if !micros.is_finite() || micros.abs() >= i64::MAX as f64 / 1e3 {
        return Err(overflow());
    }
    Ok(IntervalMonthDayNano::new(months, days, micros as i64 * 1_000))
}
