//! Integers, floats and decimals as PostgreSQL reads and prints them.

use arrow_buffer::i256;
use std::io::Write;
use tidepool_base::{Error, Result, SqlState};

/// `invalid input syntax for type …`, 22P02.
#[cold]
pub fn syntax_error(type_name: &str, text: &str) -> Error {
    Error::new(SqlState::INVALID_TEXT_REPRESENTATION, format!("invalid input syntax for type {type_name}: \"{text}\""))
}

/// `value … is out of range for type …`, 22003.
#[cold]
pub fn range_error(type_name: &str, text: &str) -> Error {
    Error::new(
        SqlState::NUMERIC_VALUE_OUT_OF_RANGE,
        format!("value \"{}\" is out of range for type {type_name}", text.trim()),
    )
}

/// An integer between `min` and `max`.
#[inline]
pub fn parse_int(text: &str, type_name: &str, min: i64, max: i64) -> Result<i64> {
    let bytes = text.as_bytes();
    let (negative, digits) = match bytes {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, bytes),
    };
    // Eighteen digits always fit an i64.
    if !digits.is_empty() && digits.len() <= 18 {
        let mut value = 0i64;
        let mut valid = true;
        for byte in digits {
            let digit = byte.wrapping_sub(b'0');
            valid &= digit <= 9;
            value = value.wrapping_mul(10).wrapping_add(i64::from(digit));
        }
        if valid {
            let value = if negative { -value } else { value };
            return if value >= min && value <= max { Ok(value) } else { Err(range_error(type_name, text)) };
        }
    }
    parse_int_slowly(text, type_name, min, max)
}

/// Blanks around it, other radixes, underscores between digits, and many digits.
#[cold]
fn parse_int_slowly(text: &str, type_name: &str, min: i64, max: i64) -> Result<i64> {
    let invalid = || syntax_error(type_name, text);
    let bytes = text.trim_matches(is_space).as_bytes();
    let (negative, digits) = match bytes {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, bytes),
    };
    let mut value: Option<i128> = Some(0);
    for byte in digits {
        let digit = (*byte as char).to_digit(10).ok_or_else(invalid)?;
        value = value.and_then(|value| value.checked_mul(10)).and_then(|value| value.checked_add(i128::from(digit)));
    }
    if digits.is_empty() {
        return Err(invalid());
    }
    let value = value.map(|value| if negative { -value } else { value });
    match value {
        Some(value) if value >= i128::from(min) && value <= i128::from(max) => Ok(value as i64),
        _ => Err(range_error(type_name, text)),
    }
}

/// What C's `isspace` says, as PostgreSQL asks it.
pub fn is_space(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c')
}

/// A `double precision`, or a `real` when `single`.
#[inline]
pub fn parse_float(text: &str, single: bool) -> Result<f64> {
    let type_name = if single { "real" } else { "double precision" };
    let trimmed = text.trim_matches(is_space);
    let bytes = trimmed.as_bytes();
    let number = matches!(bytes.first(), Some(b'0'..=b'9' | b'+' | b'-' | b'.'))
        && bytes.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'));
    if !number {
        let (negative, word) = match bytes.first() {
            Some(b'-') => (true, &trimmed[1..]),
            Some(b'+') => (false, &trimmed[1..]),
            _ => (false, trimmed),
        };
        let value = if word.eq_ignore_ascii_case("infinity") || word.eq_ignore_ascii_case("inf") {
            f64::INFINITY
        } else if word.eq_ignore_ascii_case("nan") && bytes.len() == 3 {
            f64::NAN
        } else {
            return Err(syntax_error(type_name, text));
        };
        return Ok(if negative { -value } else { value });
    }
    let out_of_range = || {
        Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, format!("\"{trimmed}\" is out of range for type {type_name}"))
    };
    let nonzero = bytes.iter().take_while(|byte| !matches!(byte, b'e' | b'E')).any(|byte| matches!(byte, b'1'..=b'9'));
    let value = if single {
        f64::from(trimmed.parse::<f32>().map_err(|_| syntax_error(type_name, text))?)
    } else {
        trimmed.parse::<f64>().map_err(|_| syntax_error(type_name, text))?
    };
    if value.is_infinite() || (value == 0.0 && nonzero) { Err(out_of_range()) } else { Ok(value) }
}

/// Powers of ten that fit an i128.
pub const POWERS_OF_TEN: [i128; 39] = {
    let mut powers = [1i128; 39];
    let mut exponent = 1;
    while exponent < 39 {
        powers[exponent] = powers[exponent - 1] * 10;
        exponent += 1;
    }
    powers
};

#[cold]
pub fn numeric_overflow(precision: u8, scale: i8) -> Error {
    let digits = i32::from(precision) - i32::from(scale);
    let bound = if digits == 0 { "1".to_owned() } else { format!("10^{digits}") };
    Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "numeric field overflow").with_detail(format!(
        "A field with precision {precision}, scale {scale} must round to an absolute value less than {bound}."
    ))
}

/// A decimal of `precision` digits, `scale` of them after the point; unscaled. Rounds half away from zero.
#[inline]
pub fn parse_numeric(text: &str, precision: u8, scale: i8) -> Result<i128> {
    let bytes = text.as_bytes();
    // The common case: a sign, up to eighteen digits and a point among them, no more digits after it than the scale.
    if bytes.len() <= 19 && scale >= 0 {
        let (negative, digits) = match bytes {
            [b'-', rest @ ..] => (true, rest),
            _ => (false, bytes),
        };
        let mut value = 0i64;
        let mut point = usize::MAX;
        let mut valid = !digits.is_empty() && digits.len() <= 18;
        for (position, byte) in digits.iter().enumerate() {
            let digit = byte.wrapping_sub(b'0');
            if digit <= 9 {
                value = value.wrapping_mul(10).wrapping_add(i64::from(digit));
            } else if *byte == b'.' && point == usize::MAX && digits.len() > 1 {
                point = position;
            } else {
                valid = false;
                break;
            }
        }
        let fraction = if point == usize::MAX { 0 } else { digits.len() - point - 1 };
        if valid && fraction <= scale as usize {
            let shift = POWERS_OF_TEN[(scale as usize - fraction).min(38)];
            return match i128::from(value).checked_mul(shift) {
                Some(value) if value < POWERS_OF_TEN[usize::from(precision.min(38))] => {
                    Ok(if negative { -value } else { value })
                }
                _ => Err(numeric_overflow(precision, scale)),
            };
        }
    }
    parse_numeric_slowly(text, precision, scale)
}

/// What a text says of a number: its sign, its digits, and how many of them come after the point (before it, if negative).
enum Scanned {
    Digits { negative: bool, digits: Vec<u8>, fraction: i64 },
    Whole(i64),
}

fn scan(text: &str) -> Result<Scanned> {
    let invalid = || syntax_error("numeric", text);
    let trimmed = text.trim_matches(is_space);
    let (negative, body) = match trimmed.as_bytes() {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    if [&b"nan"[..], b"inf", b"infinity"].iter().any(|word| body.eq_ignore_ascii_case(word)) {
        return Err(Error::unsupported(format!("numeric \"{trimmed}\" is not supported"))
            .with_hint("Use double precision for values that are not finite."));
    }
    if let [b'0', b'x' | b'X' | b'o' | b'O' | b'b' | b'B', ..] = body {
        return parse_int_slowly(text, "numeric", i64::MIN, i64::MAX).map(Scanned::Whole);
    }
    let mut digits: Vec<u8> = Vec::with_capacity(body.len());
    let mut fraction = 0i64;
    let mut seen_point = false;
    let mut position = 0;
    while position < body.len() {
        match body[position] {
            byte @ b'0'..=b'9' => {
                digits.push(byte - b'0');
                fraction += i64::from(seen_point);
            }
            b'.' if !seen_point => seen_point = true,
            _ => break,
        }
        position += 1;
    }
    if digits.is_empty() {
        return Err(invalid());
    }
    if position < body.len() {
        if !matches!(body[position], b'e' | b'E') {
            return Err(invalid());
        }
        let exponent = std::str::from_utf8(&body[position + 1..]).map_err(|_| invalid())?;
        let exponent: i64 = exponent.parse().map_err(|_| invalid())?;
        if exponent.abs() > 100_000 {
            return Err(Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "value overflows numeric format"));
        }
        fraction -= exponent;
    }
    Ok(Scanned::Digits { negative, digits, fraction })
}

/// A number with all digits that its text has: the number without its scale, and that. 22003 for more than 38 of them, zeros at the
/// end of the fraction aside.
pub fn parse_exact(text: &str) -> Result<(i128, u8)> {
    let (negative, mut digits, mut fraction) = match scan(text)? {
        Scanned::Whole(value) => return Ok((i128::from(value), 0)),
        Scanned::Digits { negative, digits, fraction } => (negative, digits, fraction),
    };
    let overflow = || {
        Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "value overflows numeric format")
            .with_detail("Numbers of up to 38 digits are held, those after the point included.")
    };
    let mut value = 0i128;
    let significant = |digits: &[u8]| digits.len() - digits.iter().take_while(|digit| **digit == 0).count();
    while fraction > 0 && (fraction > 38 || significant(&digits) > 38) && digits.last() == Some(&0) {
        digits.pop();
        fraction -= 1;
    }
    if fraction < 0 && significant(&digits) > 0 {
        let zeros = usize::try_from(-fraction).map_err(|_| overflow())?;
        if significant(&digits) + zeros > 38 {
            return Err(overflow());
        }
        digits.resize(digits.len() + zeros, 0);
    }
    let scale = u8::try_from(fraction.max(0)).ok().filter(|scale| *scale <= 38).ok_or_else(overflow)?;
    if significant(&digits) > 38 {
        return Err(overflow());
    }
    for digit in digits {
        value = value * 10 + i128::from(digit);
    }
    Ok((if negative { -value } else { value }, scale))
}

#[cold]
fn parse_numeric_slowly(text: &str, precision: u8, scale: i8) -> Result<i128> {
    let (negative, digits, fraction) = match scan(text)? {
        Scanned::Whole(value) => return rescale(i128::from(value), 0, precision, scale),
        Scanned::Digits { negative, digits, fraction } => (negative, digits, fraction),
    };
    // Keep `kept` leading digits, then append zeroes: the unscaled value at `scale`.
    let kept = digits.len() as i64 - (fraction - i64::from(scale));
    let mut value = 0i128;
    let overflow = || numeric_overflow(precision, scale);
    if kept >= 0 {
        for position in 0..kept {
            let digit = digits.get(position as usize).copied().unwrap_or(0);
            if value == 0 && digit == 0 {
                continue;
            }
            value = value
                .checked_mul(10)
                .and_then(|value| value.checked_add(i128::from(digit)))
                .filter(|value| *value < POWERS_OF_TEN[38])
                .ok_or_else(overflow)?;
        }
        if digits.get(kept as usize).is_some_and(|digit| *digit >= 5) {
            value += 1;
        }
    }
    if value >= POWERS_OF_TEN[usize::from(precision.min(38))] {
        return Err(overflow());
    }
    Ok(if negative { -value } else { value })
}

/// `value` with `from` digits after the point into one with `scale`, rounding half away from zero.
pub fn rescale(value: i128, from: i32, precision: u8, scale: i8) -> Result<i128> {
    let shift = i32::from(scale) - from;
    let overflow = || numeric_overflow(precision, scale);
    let rescaled = if shift >= 0 {
        if value == 0 {
            0
        } else {
            let power = POWERS_OF_TEN.get(shift as usize).ok_or_else(overflow)?;
            value.checked_mul(*power).ok_or_else(overflow)?
        }
    } else {
        match POWERS_OF_TEN.get(shift.unsigned_abs() as usize) {
            Some(power) => {
                let (quotient, remainder) = (value / power, value % power);
                // Unsigned, because twice a remainder of up to 10^38 - 1 is beyond i128.
                quotient + if remainder.unsigned_abs() * 2 >= power.unsigned_abs() { value.signum() } else { 0 }
            }
            None => 0,
        }
    };
    if rescaled.unsigned_abs() < POWERS_OF_TEN[usize::from(precision.min(38))].unsigned_abs() {
        Ok(rescaled)
    } else {
        Err(overflow())
    }
}

/// Digits of `value`, right-aligned in `buffer`; returns where they start.
#[inline]
fn digits_u64(mut value: u64, buffer: &mut [u8; 40], mut end: usize) -> usize {
    const PAIRS: &[u8; 200] = b"0001020304050607080910111213141516171819\
2021222324252627282930313233343536373839\
4041424344454647484950515253545556575859\
6061626364656667686970717273747576777879\
8081828384858687888990919293949596979899";
    while value >= 100 {
        let pair = (value % 100) as usize * 2;
        value /= 100;
        end -= 2;
        buffer[end..end + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
    }
    if value >= 10 {
        let pair = value as usize * 2;
        end -= 2;
        buffer[end..end + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
    } else {
        end -= 1;
        buffer[end] = b'0' + value as u8;
    }
    end
}

#[inline]
pub fn write_u64(value: u64, out: &mut Vec<u8>) {
    let mut buffer = [0u8; 40];
    let start = digits_u64(value, &mut buffer, 40);
    out.extend_from_slice(&buffer[start..]);
}

#[inline]
pub fn write_i64(value: i64, out: &mut Vec<u8>) {
    if value < 0 {
        out.push(b'-');
    }
    write_u64(value.unsigned_abs(), out);
}

/// A number of at least `width` digits.
#[inline]
pub fn write_padded(value: u64, width: usize, out: &mut Vec<u8>) {
    let mut buffer = [b'0'; 40];
    let start = digits_u64(value, &mut buffer, 40);
    out.extend_from_slice(&buffer[start.min(40 - width)..]);
}

/// An unscaled decimal with its point put in and its fraction padded to `scale` digits.
#[inline]
pub fn write_decimal(value: i128, scale: i32, out: &mut Vec<u8>) {
    if value < 0 {
        out.push(b'-');
    }
    let magnitude = value.unsigned_abs();
    let mut buffer = [b'0'; 40];
    let start = match u64::try_from(magnitude) {
        Ok(small) => digits_u64(small, &mut buffer, 40),
        Err(_) => {
            const CHUNK: u128 = 10u128.pow(19);
            let (high, low) = (magnitude / CHUNK, (magnitude % CHUNK) as u64);
            let low_start = digits_u64(low, &mut buffer, 40);
            buffer[21..low_start].fill(b'0');
            match u64::try_from(high) {
                Ok(high) => digits_u64(high, &mut buffer, 21),
                Err(_) => {
                    // Three chunks: a u128 has at most 39 digits, so this one is a single digit.
                    let high_start = digits_u64((high % CHUNK) as u64, &mut buffer, 21);
                    buffer[2..high_start].fill(b'0');
                    digits_u64((high / CHUNK) as u64, &mut buffer, 2)
                }
            }
        }
    };
    place_point(&buffer[start..], scale, out);
}

pub fn write_decimal256(value: i256, scale: i32, out: &mut Vec<u8>) {
    match value.to_i128() {
        Some(small) => write_decimal(small, scale, out),
        None => {
            let text = value.to_string();
            let digits = text.strip_prefix('-').unwrap_or(&text);
            if digits.len() < text.len() {
                out.push(b'-');
            }
            place_point(digits.as_bytes(), scale, out);
        }
    }
}

#[inline]
fn place_point(digits: &[u8], scale: i32, out: &mut Vec<u8>) {
    if scale <= 0 {
        out.extend_from_slice(digits);
        if digits != b"0" {
            out.resize(out.len() + scale.unsigned_abs() as usize, b'0');
        }
        return;
    }
    let scale = scale as usize;
    if digits.len() > scale {
        let (whole, fraction) = digits.split_at(digits.len() - scale);
        out.extend_from_slice(whole);
        out.push(b'.');
        out.extend_from_slice(fraction);
    } else {
        out.extend_from_slice(b"0.");
        out.resize(out.len() + scale - digits.len(), b'0');
        out.extend_from_slice(digits);
    }
}

/// A fixed buffer to format into without allocating.
struct Stack {
    bytes: [u8; 64],
    len: usize,
}

impl Write for Stack {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let count = bytes.len().min(self.bytes.len() - self.len);
        self.bytes[self.len..self.len + count].copy_from_slice(&bytes[..count]);
        self.len += count;
        Ok(count)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The shortest text that reads back as the same value; with `extra_float_digits` of 0 or less, rounded as `%.*g` does.
pub fn write_f64(value: f64, extra_float_digits: i32, out: &mut Vec<u8>) {
    if extra_float_digits > 0 {
        write_float(value, 15, |stack| write!(stack, "{value:e}"), out);
    } else {
        let digits = (15 + extra_float_digits).max(1) as usize;
        write_float(value, digits as i32, |stack| write!(stack, "{value:.*e}", digits - 1), out);
    }
}

pub fn write_f32(value: f32, extra_float_digits: i32, out: &mut Vec<u8>) {
    if extra_float_digits > 0 {
        write_float(f64::from(value), 6, |stack| write!(stack, "{value:e}"), out);
    } else {
        let digits = (6 + extra_float_digits).max(1) as usize;
        write_float(f64::from(value), digits as i32, |stack| write!(stack, "{value:.*e}", digits - 1), out);
    }
}

/// `format` writes `d.ddde±x`. Exponents from -4 to `fixed_below` (exclusive) are laid out without one, as C's `%g` does.
fn write_float(
    value: f64,
    fixed_below: i32,
    format: impl FnOnce(&mut Stack) -> std::io::Result<()>,
    out: &mut Vec<u8>,
) {
    if value.is_nan() {
        return out.extend_from_slice(b"NaN");
    }
    if value.is_infinite() {
        return out.extend_from_slice(if value > 0.0 { b"Infinity" } else { b"-Infinity" });
    }
    if value == 0.0 {
        return out.extend_from_slice(if value.is_sign_negative() { b"-0" } else { b"0" });
    }
    let mut stack = Stack { bytes: [0; 64], len: 0 };
    // 64 bytes hold a sign, 17 digits, a point and an exponent, so this cannot fail.
    let _ = format(&mut stack);
    let text = &stack.bytes[..stack.len];
    let (text, negative) = match text {
        [b'-', rest @ ..] => (rest, true),
        _ => (text, false),
    };
    let split = text.iter().position(|byte| *byte == b'e').unwrap_or(text.len());
    let exponent: i32 =
        std::str::from_utf8(&text[(split + 1).min(text.len())..]).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let mut digits = [0u8; 64];
    let mut count = 0;
    for byte in text[..split].iter().filter(|byte| byte.is_ascii_digit()) {
        digits[count] = *byte;
        count += 1;
    }
    while count > 1 && digits[count - 1] == b'0' {
        count -= 1;
    }
    let digits = &digits[..count];
    if negative {
        out.push(b'-');
    }
    if exponent < -4 || exponent >= fixed_below {
        out.push(digits[0]);
        if count > 1 {
            out.push(b'.');
            out.extend_from_slice(&digits[1..]);
        }
        out.push(b'e');
        out.push(if exponent < 0 { b'-' } else { b'+' });
        write_padded(u64::from(exponent.unsigned_abs()), 2, out);
    } else if exponent < 0 {
        out.extend_from_slice(b"0.");
        out.resize(out.len() + (-exponent - 1) as usize, b'0');
        out.extend_from_slice(digits);
    } else {
        let whole = exponent as usize + 1;
        if count <= whole {
            out.extend_from_slice(digits);
            out.resize(out.len() + whole - count, b'0');
        } else {
            out.extend_from_slice(&digits[..whole]);
            out.push(b'.');
            out.extend_from_slice(&digits[whole..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn integers_are_read_as_postgresql_reads_them() {
        let int = |text: &str| parse_int(text, "integer", i64::from(i32::MIN), i64::from(i32::MAX));
        for (text, value) in [("0", 0), ("-2147483648", -2147483648), ("+7", 7), (" 42 ", 42)] {
            assert_eq!(int(text).unwrap(), value, "{text}");
        }
        for text in ["", " ", "x", "1x", "1.5", "--1", "_1", "1_", "1_0", "0x", "0x1F", "0b1", "1 2", "+"] {
            let error = int(text).unwrap_err();
            assert_eq!(error.code().code(), "22P02", "{text}");
            assert_eq!(error.message(), format!("invalid input syntax for type integer: \"{text}\""));
        }
        for text in ["2147483648", "99999999999", "99999999999999999999999999999999999999999999999999"] {
            let error = int(text).unwrap_err();
            assert_eq!(error.message(), format!("value \"{text}\" is out of range for type integer"));
            assert_eq!(error.code().code(), "22003");
        }
        assert_eq!(parse_int("-9223372036854775808", "bigint", i64::MIN, i64::MAX).unwrap(), i64::MIN);
        assert!(parse_int("9223372036854775808", "bigint", i64::MIN, i64::MAX).is_err());
    }

    #[test]
    fn floats_print_shortest_with_postgresqls_thresholds() {
        for (value, text) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.0, "1"),
            (0.1, "0.1"),
            (1e20, "1e+20"),
            (1e15, "1e+15"),
            (123456789012345.0, "123456789012345"),
            (1234567890123456.0, "1.234567890123456e+15"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (-1.5e-300, "-1.5e-300"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "Infinity"),
            (f64::NEG_INFINITY, "-Infinity"),
            (0.30000000000000004, "0.30000000000000004"),
            (f64::MAX, "1.7976931348623157e+308"),
            (5e-324, "5e-324"),
        ] {
            assert_eq!(shown(|out| write_f64(value, 1, out)), text);
        }
        assert_eq!(shown(|out| write_f64(0.30000000000000004, 0, out)), "0.3");
        assert_eq!(shown(|out| write_f64(1.0 / 3.0, -5, out)), "0.3333333333");
        assert_eq!(shown(|out| write_f32(0.1, 1, out)), "0.1");
        assert_eq!(shown(|out| write_f32(1e6, 1, out)), "1e+06");
        assert_eq!(shown(|out| write_f32(123456.0, 1, out)), "123456");
        assert_eq!(shown(|out| write_f32(16777216.0, 1, out)), "1.6777216e+07");
    }

    #[test]
    fn floats_are_read_and_out_of_range_ones_refused() {
        assert_eq!(parse_float(" 1.5e3 ", false).unwrap(), 1500.0);
        assert_eq!(parse_float("-inf", false).unwrap(), f64::NEG_INFINITY);
        assert!(parse_float("nan", false).unwrap().is_nan());
        assert_eq!(parse_float(".5", false).unwrap(), 0.5);
        for text in ["", "x", "1e", "1.2.3", "-nan", "e5", "0x10", "1,5"] {
            assert_eq!(parse_float(text, false).unwrap_err().code().code(), "22P02", "{text}");
        }
        for (text, single) in [("1e400", false), ("1e-400", false), ("1e39", true), ("-1e-60", true)] {
            let error = parse_float(text, single).unwrap_err();
            assert_eq!(error.code().code(), "22003");
            assert!(error.message().starts_with(&format!("\"{text}\" is out of range for type ")));
        }
    }

    #[test]
    fn numerics_round_half_away_from_zero_and_overflow_with_detail() {
        for (text, unscaled) in [
            ("1", 100),
            ("1.5", 150),
            ("-1.005", -101),
            ("1.004999", 100),
            ("0.005", 1),
            ("-0.004", 0),
            ("1e2", 10000),
            (".5", 50),
            ("5.", 500),
            ("  7.25 ", 725),
            ("123e-2", 123),
            ("999.994", 99999),
            ("0000000000000000000000000000000000000000000001", 100),
        ] {
            assert_eq!(parse_numeric(text, 5, 2).unwrap(), unscaled, "{text}");
        }
        for text in ["999.995", "1000", "1e3", "100000000000000000000000000000000000000000"] {
            let error = parse_numeric(text, 5, 2).unwrap_err();
            assert_eq!(error.message(), "numeric field overflow", "{text}");
            assert_eq!(
                error.detail(),
                Some("A field with precision 5, scale 2 must round to an absolute value less than 10^3.")
            );
        }
        for text in ["", ".", "-", "1.2.3", "1e", "abc", "1 2", "--1"] {
            assert_eq!(parse_numeric(text, 5, 2).unwrap_err().code().code(), "22P02", "{text}");
        }
        assert_eq!(parse_numeric("NaN", 5, 2).unwrap_err().code(), SqlState::FEATURE_NOT_SUPPORTED);
        assert_eq!(parse_numeric("1e999999999", 5, 2).unwrap_err().code(), SqlState::NUMERIC_VALUE_OUT_OF_RANGE);
        assert_eq!(parse_numeric("99999999999999999999999999999999999999", 38, 0).unwrap(), 10i128.pow(38) - 1);
        assert_eq!(rescale(-15, 1, 5, 0).unwrap(), -2);
        assert_eq!(rescale(7, 0, 5, 2).unwrap(), 700);
    }

    #[test]
    fn decimals_are_padded_to_their_scale() {
        for (value, scale, text) in [
            (0i128, 2, "0.00"),
            (5, 2, "0.05"),
            (-5, 3, "-0.005"),
            (12345, 2, "123.45"),
            (7, 0, "7"),
            (7, -2, "700"),
            (10i128.pow(37), 10, "1000000000000000000000000000.0000000000"),
            (10i128.pow(19), 0, "10000000000000000000"),
            (i128::MAX, 0, "170141183460469231731687303715884105727"),
            (i128::MIN, 5, "-1701411834604692317316873037158841.05728"),
        ] {
            assert_eq!(shown(|out| write_decimal(value, scale, out)), text);
        }
        let wide = i256::from_i128(i128::MAX).wrapping_mul(i256::from_i128(1000));
        assert_eq!(shown(|out| write_decimal256(wide, 2, out)), "1701411834604692317316873037158841057270.00");
    }
}
