//! Numbers of `numeric` without precision: up to 38 digits, each at the scale that it has.
//!
//! A number travels and is stored as [`NUMERIC_BYTES`] bytes: a key of [`NUMERIC_KEY_BYTES`] that is the same for equal numbers and
//! compares as they do, then the scale.
//!
//! ```text
//! [sign and exponent: 128 + e, 128 - e, or 128 for zero][mantissa: 38 digits, big-endian; of negative numbers all bits turned][scale]
//! ```
//!
//! `e` is 40 more than the number's digits before the point (less than that where zeros follow the point). The mantissa begins with the
//! first digit that is not zero, and zeros fill it up. So `1.5` and `1.50` differ in their last byte only.

use crate::{Error, Result, SqlState};
use std::cmp::Ordering;

/// Digits that a number may have, those after the point included.
pub const NUMERIC_DIGITS: u32 = 38;

/// Bytes that equal numbers have in common.
pub const NUMERIC_KEY_BYTES: usize = 17;

/// Bytes of a number.
pub const NUMERIC_BYTES: usize = 18;

/// Between an exponent's number and its byte's distance from that of zero.
const EXPONENT_BIAS: i32 = 40;
const ZERO: u8 = 128;

/// Digits after the point of a quotient, at least, and significant ones.
const QUOTIENT_DIGITS: i32 = 16;

const POWERS: [u128; 39] = {
    let mut powers = [1u128; 39];
    let mut exponent = 1;
    while exponent < 39 {
        powers[exponent] = powers[exponent - 1] * 10;
        exponent += 1;
    }
    powers
};

/// A number of at most 38 digits, at most 38 of them after the point.
#[derive(Clone, Copy, Debug, Default)]
pub struct Numeric {
    unscaled: i128,
    scale: u8,
}

#[cold]
fn overflow() -> Error {
    Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "value overflows numeric format")
        .with_detail("Numbers of up to 38 digits are held, those after the point included.")
}

fn division_by_zero() -> Error {
    Error::new(SqlState::DIVISION_BY_ZERO, "division by zero")
}

fn digits(magnitude: u128) -> u32 {
    magnitude.checked_ilog10().map_or(0, |digits| digits + 1)
}

/// The product as (high, low) words.
fn wide_product(left: u128, right: u128) -> (u128, u128) {
    const LOW: u128 = u64::MAX as u128;
    let (left_high, left_low) = (left >> 64, left & LOW);
    let (right_high, right_low) = (right >> 64, right & LOW);
    let low = left_low * right_low;
    let first = left_high * right_low;
    let second = left_low * right_high;
    let middle = (low >> 64) + (first & LOW) + (second & LOW);
    let high = left_high * right_high + (first >> 64) + (second >> 64) + (middle >> 64);
    (high, middle << 64 | low & LOW)
}

/// The quotient and rest of a number of two words by one that is above the high word.
fn wide_quotient((high, low): (u128, u128), divisor: u128) -> (u128, u128) {
    if high == 0 {
        return (low / divisor, low % divisor);
    }
    let (mut quotient, mut rest) = (0u128, high);
    for bit in (0..128).rev() {
        let carry = rest >> 127;
        rest = rest << 1 | (low >> bit) & 1;
        quotient <<= 1;
        if carry == 1 || rest >= divisor {
            rest = rest.wrapping_sub(divisor);
            quotient |= 1;
        }
    }
    (quotient, rest)
}

impl Numeric {
    pub const ZERO: Numeric = Numeric { unscaled: 0, scale: 0 };

    /// 22003 for a number of more digits than are held.
    pub fn new(unscaled: i128, scale: u8) -> Result<Numeric> {
        if u32::from(scale) > NUMERIC_DIGITS || unscaled.unsigned_abs() >= POWERS[NUMERIC_DIGITS as usize] {
            return Err(overflow());
        }
        Ok(Numeric { unscaled, scale })
    }

    fn of_magnitude(negative: bool, magnitude: u128, scale: u8) -> Result<Numeric> {
        if magnitude >= POWERS[NUMERIC_DIGITS as usize] {
            return Err(overflow());
        }
        Numeric::new(if negative { -(magnitude as i128) } else { magnitude as i128 }, scale)
    }

    /// A decimal of any scale that the planner's types have.
    pub fn of_decimal(unscaled: i128, scale: i8) -> Result<Numeric> {
        match u8::try_from(scale) {
            Ok(scale) => Numeric::new(unscaled, scale),
            Err(_) => {
                let zeros = usize::from(scale.unsigned_abs());
                let power = POWERS.get(zeros).ok_or_else(overflow)?;
                Numeric::new(unscaled.checked_mul(*power as i128).ok_or_else(overflow)?, 0)
            }
        }
    }

    pub fn of_int(value: i64) -> Numeric {
        Numeric { unscaled: i128::from(value), scale: 0 }
    }

    pub fn unscaled(self) -> i128 {
        self.unscaled
    }

    pub fn scale(self) -> u8 {
        self.scale
    }

    pub fn is_zero(self) -> bool {
        self.unscaled == 0
    }

    pub fn is_negative(self) -> bool {
        self.unscaled < 0
    }

    pub fn to_bytes(self) -> [u8; NUMERIC_BYTES] {
        let mut bytes = [0; NUMERIC_BYTES];
        let magnitude = self.unscaled.unsigned_abs();
        let digits = digits(magnitude);
        if digits == 0 {
            bytes[0] = ZERO;
        } else {
            let exponent = (digits as i32 - i32::from(self.scale) + EXPONENT_BIAS) as u8;
            let mantissa = magnitude * POWERS[(NUMERIC_DIGITS - digits) as usize];
            let (first, mantissa) =
                if self.unscaled < 0 { (ZERO - exponent, !mantissa) } else { (ZERO + exponent, mantissa) };
            bytes[0] = first;
            bytes[1..NUMERIC_KEY_BYTES].copy_from_slice(&mantissa.to_be_bytes());
        }
        bytes[NUMERIC_KEY_BYTES] = self.scale;
        bytes
    }

    /// `None` for bytes that no number has.
    pub fn from_bytes(bytes: &[u8]) -> Option<Numeric> {
        let bytes: &[u8; NUMERIC_BYTES] = bytes.try_into().ok()?;
        let scale = bytes[NUMERIC_KEY_BYTES];
        let (first, rest) = bytes.split_first()?;
        let (mantissa, _) = rest.split_first_chunk::<16>()?;
        let mantissa = u128::from_be_bytes(*mantissa);
        if u32::from(scale) > NUMERIC_DIGITS {
            return None;
        }
        let (negative, exponent, mantissa) = match first.cmp(&ZERO) {
            Ordering::Equal => return (mantissa == 0).then_some(Numeric { unscaled: 0, scale }),
            Ordering::Greater => (false, first - ZERO, mantissa),
            Ordering::Less => (true, ZERO - first, !mantissa),
        };
        let digits = u32::try_from(i32::from(exponent) - EXPONENT_BIAS + i32::from(scale)).ok()?;
        let power = POWERS.get(NUMERIC_DIGITS.checked_sub(digits)? as usize)?;
        let magnitude = mantissa / power;
        let is_sound = digits > 0 && magnitude * power == mantissa && self::digits(magnitude) == digits;
        let unscaled = if negative { -(magnitude as i128) } else { magnitude as i128 };
        is_sound.then_some(Numeric { unscaled, scale })
    }

    /// The number of a key, at the least scale that it can have.
    pub fn from_key(key: &[u8]) -> Option<Numeric> {
        let key: &[u8; NUMERIC_KEY_BYTES] = key.try_into().ok()?;
        let mut bytes = [0; NUMERIC_BYTES];
        bytes[..NUMERIC_KEY_BYTES].copy_from_slice(key);
        // The scale that shows all digits of the mantissa, if there is one; fewer are enough for most.
        let exponent = match key[0].cmp(&ZERO) {
            Ordering::Equal => return Numeric::from_bytes(&bytes),
            Ordering::Greater => key[0] - ZERO,
            Ordering::Less => ZERO - key[0],
        };
        let whole = i32::from(exponent) - EXPONENT_BIAS;
        let scale = (NUMERIC_DIGITS as i32 - whole).clamp(0, NUMERIC_DIGITS as i32);
        (0..=scale).find_map(|scale| {
            bytes[NUMERIC_KEY_BYTES] = scale as u8;
            Numeric::from_bytes(&bytes)
        })
    }

    /// Less digits after the point, rounded half away from zero, or more. 22003 where there is no room for them.
    pub fn rescaled(self, scale: u8) -> Result<Numeric> {
        if scale >= self.scale {
            let more = usize::from(scale - self.scale);
            let magnitude = self.unscaled.unsigned_abs();
            if digits(magnitude) + more as u32 > NUMERIC_DIGITS && magnitude != 0 {
                return Err(overflow());
            }
            return Numeric::new(self.unscaled * POWERS.get(more).map_or(1, |power| *power as i128), scale);
        }
        let power = POWERS[usize::from(self.scale - scale)] as i128;
        let (quotient, rest) = (self.unscaled / power, self.unscaled % power);
        let up = rest.unsigned_abs() * 2 >= power.unsigned_abs();
        Numeric::new(if up { quotient + self.unscaled.signum() } else { quotient }, scale)
    }

    /// As `rescaled`, towards zero.
    pub fn truncated(self, scale: u8) -> Result<Numeric> {
        if scale >= self.scale {
            return self.rescaled(scale);
        }
        Numeric::new(self.unscaled / POWERS[usize::from(self.scale - scale)] as i128, scale)
    }

    /// Rounded at a digit before the point: `places` below zero.
    fn before_point(self, places: i32, rounded: bool) -> Result<Numeric> {
        let zeros = places.unsigned_abs() as usize;
        let Some(power) = POWERS.get(zeros) else { return Ok(Numeric::ZERO) };
        let drop = zeros + usize::from(self.scale);
        let magnitude = self.unscaled.unsigned_abs();
        let kept = match POWERS.get(drop) {
            Some(unit) => {
                let (quotient, rest) = (magnitude / unit, magnitude % unit);
                if rounded && rest >= unit - rest { quotient + 1 } else { quotient }
            }
            None => 0,
        };
        Numeric::of_magnitude(self.unscaled < 0, kept.checked_mul(*power).ok_or_else(overflow)?, 0)
    }

    /// `round(x, places)`.
    pub fn rounded_to(self, places: i32) -> Result<Numeric> {
        match u8::try_from(places.min(NUMERIC_DIGITS as i32)) {
            Ok(scale) => self.rescaled(scale),
            Err(_) => self.before_point(places, true),
        }
    }

    /// `trunc(x, places)`.
    pub fn truncated_to(self, places: i32) -> Result<Numeric> {
        match u8::try_from(places.min(NUMERIC_DIGITS as i32)) {
            Ok(scale) => self.truncated(scale),
            Err(_) => self.before_point(places, false),
        }
    }

    pub fn floor(self) -> Result<Numeric> {
        let whole = self.truncated(0)?;
        if self.unscaled < 0 && whole.compare(&self).is_ne() { whole.minus(Numeric::of_int(1)) } else { Ok(whole) }
    }

    pub fn ceil(self) -> Result<Numeric> {
        let whole = self.truncated(0)?;
        if self.unscaled > 0 && whole.compare(&self).is_ne() { whole.plus(Numeric::of_int(1)) } else { Ok(whole) }
    }

    pub fn abs(self) -> Numeric {
        Numeric { unscaled: self.unscaled.abs(), scale: self.scale }
    }

    pub fn negated(self) -> Numeric {
        Numeric { unscaled: -self.unscaled, scale: self.scale }
    }

    pub fn signum(self) -> Numeric {
        Numeric { unscaled: self.unscaled.signum(), scale: 0 }
    }

    /// Without zeros at the end of its fraction.
    pub fn trimmed(self) -> Numeric {
        let Numeric { mut unscaled, mut scale } = self;
        if unscaled == 0 {
            return Numeric::ZERO;
        }
        while scale > 0 && unscaled % 10 == 0 {
            unscaled /= 10;
            scale -= 1;
        }
        Numeric { unscaled, scale }
    }

    /// At the larger scale of the two. `None` where there is no room for that.
    fn aligned(self, other: Numeric) -> Option<(i128, i128, u8)> {
        let scale = self.scale.max(other.scale);
        let raise = |of: Numeric| of.unscaled.checked_mul(POWERS[usize::from(scale - of.scale)] as i128);
        Some((raise(self)?, raise(other)?, scale))
    }

    pub fn plus(self, other: Numeric) -> Result<Numeric> {
        match self.aligned(other) {
            Some((left, right, scale)) => Numeric::new(left.checked_add(right).ok_or_else(overflow)?, scale),
            // What has no room at this scale by itself may have in the sum.
            None => self.wide_sum(other),
        }
    }

    pub fn minus(self, other: Numeric) -> Result<Numeric> {
        self.plus(other.negated())
    }

    #[cold]
    fn wide_sum(self, other: Numeric) -> Result<Numeric> {
        let scale = self.scale.max(other.scale);
        let magnitude = |of: Numeric| wide_product(of.unscaled.unsigned_abs(), POWERS[usize::from(scale - of.scale)]);
        let (left, right) = (magnitude(self), magnitude(other));
        if (self.unscaled < 0) == (other.unscaled < 0) {
            return Err(overflow());
        }
        let (negative, large, small) =
            if left >= right { (self.unscaled < 0, left, right) } else { (other.unscaled < 0, right, left) };
        let (low, borrow) = large.1.overflowing_sub(small.1);
        match large.0 - small.0 - u128::from(borrow) {
            0 => Numeric::of_magnitude(negative, low, scale),
            _ => Err(overflow()),
        }
    }

    /// The exact product, at the sum of both scales. 22003 where it has more digits than are held.
    pub fn times(self, other: Numeric) -> Result<Numeric> {
        let scale = self.scale + other.scale;
        if let Some(product) = self.unscaled.checked_mul(other.unscaled)
            && u32::from(scale) <= NUMERIC_DIGITS
        {
            return Numeric::new(product, scale);
        }
        // Zeros at the end are no digits that anything is lost with.
        let (left, right) = (self.trimmed(), other.trimmed());
        let product = left.unscaled.checked_mul(right.unscaled).ok_or_else(overflow)?;
        let least = left.scale + right.scale;
        let exact = Numeric::new(product, least)?.trimmed();
        let room = NUMERIC_DIGITS - digits(exact.unscaled.unsigned_abs()) + u32::from(exact.scale);
        exact.rescaled(scale.min(room.min(NUMERIC_DIGITS) as u8))
    }

    /// PostgreSQL's quotient: sixteen significant digits at least, and no fewer after the point than either has, as far as there is room.
    pub fn over(self, divisor: Numeric) -> Result<Numeric> {
        if divisor.unscaled == 0 {
            return Err(division_by_zero());
        }
        let (weight, first) = self.weight();
        let (divisor_weight, divisor_first) = divisor.weight();
        let quotient_weight = weight - divisor_weight - i32::from(first <= divisor_first);
        let scale =
            (QUOTIENT_DIGITS - quotient_weight * 4).max(i32::from(self.scale)).max(i32::from(divisor.scale)).max(0);
        self.quotient(divisor, scale)
    }

    /// The quotient at a scale, or at the largest one that there is room for.
    pub fn quotient(self, divisor: Numeric, scale: i32) -> Result<Numeric> {
        if divisor.unscaled == 0 {
            return Err(division_by_zero());
        }
        let mut scale = scale.clamp(0, NUMERIC_DIGITS as i32);
        loop {
            match self.quotient_at(divisor, scale) {
                Some(quotient) => return Ok(quotient),
                None if scale == 0 => return Err(overflow()),
                None => scale -= 1,
            }
        }
    }

    fn quotient_at(self, divisor: Numeric, scale: i32) -> Option<Numeric> {
        let shift = scale + i32::from(divisor.scale) - i32::from(self.scale);
        let (magnitude, by) = (self.unscaled.unsigned_abs(), divisor.unscaled.unsigned_abs());
        let power = |exponent: u32| POWERS.get(exponent as usize).copied();
        let (dividend, by) = if shift >= 0 {
            let shift = shift.unsigned_abs();
            // Up to 10^76: in two steps, each of which fits.
            let (first, second) = (power(shift.min(NUMERIC_DIGITS))?, power(shift.saturating_sub(NUMERIC_DIGITS))?);
            let product = wide_product(magnitude, first);
            if second != 1 {
                let (high, low) = product;
                if high != 0 {
                    return None;
                }
                (wide_product(low, second), by)
            } else {
                (product, by)
            }
        } else {
            ((0, magnitude), by.checked_mul(power(shift.unsigned_abs())?)?)
        };
        if dividend.0 >= by {
            return None;
        }
        let (quotient, rest) = wide_quotient(dividend, by);
        let quotient = if rest >= by - rest { quotient.checked_add(1)? } else { quotient };
        let negative = (self.unscaled < 0) != (divisor.unscaled < 0);
        Numeric::of_magnitude(negative, quotient, scale as u8).ok()
    }

    /// What is left of a division to a whole number, of the dividend's sign.
    pub fn modulo(self, divisor: Numeric) -> Result<Numeric> {
        if divisor.unscaled == 0 {
            return Err(division_by_zero());
        }
        let scale = self.scale.max(divisor.scale);
        if let Some((left, right, scale)) = self.aligned(divisor) {
            return Numeric::new(left % right, scale);
        }
        let raise = |of: Numeric| wide_product(of.unscaled.unsigned_abs(), POWERS[usize::from(scale - of.scale)]);
        let (dividend, by) = (raise(self), raise(divisor));
        if by.0 != 0 {
            // The divisor is above all that has no fraction beyond its own, or the dividend is as large.
            if dividend < by {
                return self.rescaled(scale);
            }
            return Err(overflow());
        }
        let (_, high) = (dividend.0 / by.1, dividend.0 % by.1);
        let (_, rest) = wide_quotient((high, dividend.1), by.1);
        Numeric::of_magnitude(self.unscaled < 0, rest, scale)
    }

    /// The quotient without its fraction.
    pub fn whole_quotient(self, divisor: Numeric) -> Result<Numeric> {
        let rest = self.modulo(divisor)?;
        self.minus(rest)?.quotient(divisor, 0)
    }

    /// Where the first group of four digits stands, and that group: how PostgreSQL keeps a `numeric`.
    fn weight(self) -> (i32, u32) {
        let magnitude = self.unscaled.unsigned_abs();
        if magnitude == 0 {
            return (0, 0);
        }
        let whole = digits(magnitude) as i32 - i32::from(self.scale);
        let weight = (whole - 1).div_euclid(4);
        // Digits of the first group: those down to the group's end.
        let kept = whole - weight * 4;
        let total = digits(magnitude) as i32;
        let first = if total >= kept {
            magnitude / POWERS[(total - kept) as usize]
        } else {
            magnitude * POWERS[(kept - total) as usize]
        };
        (weight, first as u32)
    }

    pub fn compare(&self, other: &Numeric) -> Ordering {
        match self.aligned(*other) {
            Some((left, right, _)) => left.cmp(&right),
            None => self.to_bytes()[..NUMERIC_KEY_BYTES].cmp(&other.to_bytes()[..NUMERIC_KEY_BYTES]),
        }
    }

    pub fn to_f64(self) -> f64 {
        // Two exact numbers have a quotient that is right to the last bit; others go by their text.
        if self.unscaled.unsigned_abs() < 1 << 53 && self.scale <= 22 {
            return self.unscaled as f64 / POWERS[usize::from(self.scale)] as f64;
        }
        format!("{}e-{}", self.unscaled, self.scale).parse().unwrap_or(f64::NAN)
    }

    /// The whole number nearest to it, halves away from zero. `None` beyond 64 bits.
    pub fn to_i64(self) -> Option<i64> {
        self.rescaled(0).ok().and_then(|whole| i64::try_from(whole.unscaled).ok())
    }
}

impl PartialEq for Numeric {
    fn eq(&self, other: &Numeric) -> bool {
        self.compare(other).is_eq()
    }
}

impl Eq for Numeric {}

impl PartialOrd for Numeric {
    fn partial_cmp(&self, other: &Numeric) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Numeric {
    fn cmp(&self, other: &Numeric) -> Ordering {
        self.compare(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn n(text: &str) -> Numeric {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        Numeric::new(format!("{whole}{fraction}").parse().unwrap(), fraction.len() as u8).unwrap()
    }

    fn same(left: Numeric, right: Numeric) {
        assert_eq!((left.unscaled, left.scale), (right.unscaled, right.scale));
    }

    const SOME: [&str; 22] = [
        "-99999999999999999999999999999999999999",
        "-1000",
        "-999.9999",
        "-1.50",
        "-1.5",
        "-1",
        "-0.5",
        "-0.00000000000000000000000000000000000001",
        "0",
        "0.000",
        "0.00000000000000000000000000000000000001",
        "0.1",
        "0.10",
        "0.99999999999999999999999999999999999999",
        "1",
        "1.0",
        "1.5",
        "9",
        "10",
        "123456789012345678901234567890.12345678",
        "99999999999999999999999999999999999998",
        "99999999999999999999999999999999999999",
    ];

    #[test]
    fn bytes_keep_the_scale_and_keys_compare_as_numbers_do() {
        for left in SOME {
            same(Numeric::from_bytes(&n(left).to_bytes()).unwrap(), n(left));
            let key = &n(left).to_bytes()[..NUMERIC_KEY_BYTES];
            same(Numeric::from_key(key).unwrap(), n(left).trimmed());
            for right in SOME {
                let by_key = key.cmp(&n(right).to_bytes()[..NUMERIC_KEY_BYTES]);
                assert_eq!(by_key, n(left).compare(&n(right)), "{left} {right}");
            }
        }
        let ascending = SOME.windows(2).all(|pair| n(pair[0]) <= n(pair[1]));
        assert!(ascending);
    }

    #[test]
    fn damaged_bytes_are_no_number() {
        for text in SOME {
            let bytes = n(text).to_bytes();
            for at in 0..NUMERIC_BYTES {
                for turned in [1, 0x10, 0x80, 0xff] {
                    let mut damaged = bytes;
                    damaged[at] ^= turned;
                    if let Some(number) = Numeric::from_bytes(&damaged) {
                        assert_eq!(number.to_bytes(), damaged);
                    }
                }
            }
        }
    }

    #[test]
    fn results_have_postgresqls_scales() {
        same(n("1.5").plus(n("2.25")).unwrap(), n("3.75"));
        same(n("1.50").minus(n("1.5")).unwrap(), n("0.00"));
        same(n("1.5").times(n("2.50")).unwrap(), n("3.750"));
        same(n("1").over(n("3")).unwrap(), n("0.33333333333333333333"));
        same(n("10").over(n("4")).unwrap(), n("2.5000000000000000"));
        same(n("0.5").over(n("2")).unwrap(), n("0.25000000000000000000"));
        same(n("7.5").modulo(n("2")).unwrap(), n("1.5"));
        same(n("-7.5").modulo(n("2.00")).unwrap(), n("-1.50"));
        same(n("-2.5").rescaled(0).unwrap(), n("-3"));
        same(n("2.45").rescaled(1).unwrap(), n("2.5"));
        same(n("155").rounded_to(-1).unwrap(), n("160"));
        same(n("155.5").truncated_to(-2).unwrap(), n("100"));
        same(n("-2.5").floor().unwrap(), n("-3"));
        same(n("-2.5").ceil().unwrap(), n("-2"));
        same(n("2.0").ceil().unwrap(), n("2"));
        same(n("1.500").trimmed(), n("1.5"));
        assert_eq!(n("2.5").to_i64(), Some(3));
        assert_eq!(n("-0.1").to_f64(), -0.1);
        assert_eq!(n("12345678901234567890.5").to_f64(), 12345678901234567890.5);
    }

    #[test]
    fn what_has_no_room_is_refused_and_what_has_is_exact() {
        let largest = n(SOME[21]);
        assert!(largest.plus(n("1")).is_err());
        assert!(largest.times(n("10")).is_err());
        same(largest.minus(largest).unwrap(), n("0"));
        same(n("1000000000000000000000").times(n("1000")).unwrap(), n("1000000000000000000000000"));
        assert!(n("0.00000000000000000001").times(n("0.00000000000000000001")).is_err());
        // A fraction of zeros has no digits to be lost.
        let product = n("1.0000000000000000000000").times(n("2.0000000000000000000000")).unwrap();
        same(product, n("2.0000000000000000000000000000000000000"));
        let third = largest.over(n("3")).unwrap();
        same(third, n("33333333333333333333333333333333333333"));
        same(n("1").quotient(n("3"), 50).unwrap(), n("0.33333333333333333333333333333333333333"));
        assert!(n("1").over(n("0")).is_err());
    }
}
