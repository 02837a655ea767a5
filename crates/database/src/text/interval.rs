//! Intervals as text: PostgreSQL's `postgres` style on output; that, the verbose style, the SQL standard's and ISO 8601 on input.

use super::calendar::{US_PER_DAY, US_PER_HOUR, US_PER_MINUTE, US_PER_SECOND};
use super::datetime::fraction_us;
use super::number::{write_i64, write_padded};
use arrow_buffer::IntervalMonthDayNano;
use tidepool_base::{Error, Result, SqlState};

/// `1 year 2 mons -3 days +04:05:06.5`.
pub fn write_interval(months: i32, days: i32, us: i64, out: &mut Vec<u8>) {
    let start = out.len();
    let mut before = false;
    for (value, unit) in [(months / 12, "year"), (months % 12, "mon"), (days, "day")] {
        if value != 0 {
            if out.len() > start {
                out.push(b' ');
            }
            if before && value > 0 {
                out.push(b'+');
            }
            write_i64(i64::from(value), out);
            out.push(b' ');
            out.extend_from_slice(unit.as_bytes());
            if value != 1 {
                out.push(b's');
            }
            before = value < 0;
        }
    }
    let empty = out.len() == start;
    if us != 0 || empty {
        if !empty {
            out.push(b' ');
        }
        if us < 0 {
            out.push(b'-');
        } else if before {
            out.push(b'+');
        }
        let magnitude = us.unsigned_abs();
        let seconds = magnitude / US_PER_SECOND as u64;
        write_padded(seconds / 3600, 2, out);
        out.push(b':');
        write_padded(seconds / 60 % 60, 2, out);
        out.push(b':');
        write_padded(seconds % 60, 2, out);
        super::datetime::write_fraction((magnitude % US_PER_SECOND as u64) as i64, out);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Unit {
    Microsecond,
    Millisecond,
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
    Decade,
    Century,
    Millennium,
}

fn unit(word: &str) -> Option<Unit> {
    Some(match word {
        "us" | "usec" | "usecs" | "usecond" | "useconds" | "microsecond" | "microseconds" | "microsecon" => {
            Unit::Microsecond
        }
        "ms" | "msec" | "msecs" | "msecond" | "mseconds" | "millisecond" | "milliseconds" | "millisecon" => {
            Unit::Millisecond
        }
        "s" | "sec" | "secs" | "second" | "seconds" => Unit::Second,
        "m" | "min" | "mins" | "minute" | "minutes" => Unit::Minute,
        "h" | "hr" | "hrs" | "hour" | "hours" => Unit::Hour,
        "d" | "day" | "days" => Unit::Day,
        "w" | "week" | "weeks" => Unit::Week,
        "mon" | "mons" | "month" | "months" => Unit::Month,
        "y" | "yr" | "yrs" | "year" | "years" => Unit::Year,
        "dec" | "decs" | "decade" | "decades" => Unit::Decade,
        "c" | "cent" | "century" | "centuries" => Unit::Century,
        "mil" | "mils" | "millennium" | "millennia" => Unit::Millennium,
        _ => return None,
    })
}

#[derive(Default)]
struct Sum {
    months: i64,
    days: i64,
    us: i128,
}

/// A number as written: its whole part, and its fraction in millionths with the whole part's sign.
#[derive(Clone, Copy)]
struct Number {
    whole: i64,
    millionths: i64,
}

impl Number {
    /// Digits with at most one point; no sign.
    fn parse(text: &str, negative: bool) -> Option<Number> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        if !whole.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let whole: i64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        let millionths = fraction_us(fraction)?;
        let sign = if negative { -1 } else { 1 };
        Some(Number { whole: sign * whole, millionths: sign * millionths })
    }
}

impl Sum {
    fn add(&mut self, number: Number, unit: Unit) -> Option<()> {
        let Number { whole, millionths } = number;
        let time = |us_per_unit: i64| {
            i128::from(whole) * i128::from(us_per_unit)
                + i128::from(millionths) * i128::from(us_per_unit) / i128::from(US_PER_SECOND)
        };
        match unit {
            Unit::Microsecond => self.us += time(1),
            Unit::Millisecond => self.us += time(1000),
            Unit::Second => self.us += time(US_PER_SECOND),
            Unit::Minute => self.us += time(US_PER_MINUTE),
            Unit::Hour => self.us += time(US_PER_HOUR),
            Unit::Day => self.days(whole, millionths, 1)?,
            Unit::Week => self.days(whole, millionths, 7)?,
            Unit::Month => {
                self.months = self.months.checked_add(whole)?;
                // A fraction of a month is one of thirty days.
                self.days(0, millionths, 30)?;
            }
            Unit::Year => self.years(whole, millionths, 1)?,
            Unit::Decade => self.years(whole, millionths, 10)?,
            Unit::Century => self.years(whole, millionths, 100)?,
            Unit::Millennium => self.years(whole, millionths, 1000)?,
        }
        Some(())
    }

    fn days(&mut self, whole: i64, millionths: i64, scale: i64) -> Option<()> {
        let fraction = millionths * scale;
        self.days = self.days.checked_add(whole.checked_mul(scale)?)?.checked_add(fraction / 1_000_000)?;
        self.us += i128::from(fraction % 1_000_000) * i128::from(US_PER_DAY / 1_000_000);
        Some(())
    }

    fn years(&mut self, whole: i64, millionths: i64, scale: i64) -> Option<()> {
        // PostgreSQL rounds a fraction of a year to whole months.
        let fraction = (millionths as f64 * scale as f64 * 12.0 / 1e6).round_ties_even() as i64;
        self.months = self.months.checked_add(whole.checked_mul(scale * 12)?)?.checked_add(fraction)?;
        Some(())
    }
}

pub fn parse_interval(text: &str) -> Result<IntervalMonthDayNano> {
    let invalid =
        || Error::new(SqlState::INVALID_DATETIME_FORMAT, format!("invalid input syntax for type interval: \"{text}\""));
    let overflow =
        || Error::new(SqlState::DATETIME_FIELD_OVERFLOW, format!("interval field value out of range: \"{text}\""));
    let lower = text.trim().to_ascii_lowercase();
    if matches!(lower.as_str(), "infinity" | "-infinity" | "+infinity") {
        return Err(Error::unsupported(format!("interval \"{}\" is not supported", text.trim())));
    }
    let sum = match lower.strip_prefix('p') {
        Some(rest) => parse_iso(rest).ok_or_else(invalid)?,
        None => parse_words(&lower, invalid)?,
    };
    let months = i32::try_from(sum.months).map_err(|_| overflow())?;
    let days = i32::try_from(sum.days).map_err(|_| overflow())?;
    let nanoseconds = sum.us.checked_mul(1000).and_then(|ns| i64::try_from(ns).ok()).ok_or_else(overflow)?;
    Ok(IntervalMonthDayNano::new(months, days, nanoseconds))
}

/// What follows the `P` of ISO 8601: `1Y2M3DT4H5M6.5S`, or `0001-02-03T04:05:06`.
fn parse_iso(text: &str) -> Option<Sum> {
    let mut sum = Sum::default();
    if text.is_empty() {
        return None;
    }
    let (date, time) = match text.split_once('t') {
        Some((_, "")) => return None,
        Some((date, time)) => (date, time),
        None => (text, ""),
    };
    if date.contains('-') && !date.bytes().any(|byte| byte.is_ascii_alphabetic()) && !date.starts_with('-') {
        let mut parts = date.split('-');
        for unit in [Unit::Year, Unit::Month, Unit::Day] {
            sum.add(Number::parse(parts.next()?, false)?, unit)?;
        }
        if parts.next().is_some() {
            return None;
        }
    } else {
        iso_parts(date, false, &mut sum)?;
    }
    if time.contains(':') {
        sum.us += i128::from(clock(time)?);
    } else {
        iso_parts(time, true, &mut sum)?;
    }
    Some(sum)
}

fn iso_parts(mut text: &str, time: bool, sum: &mut Sum) -> Option<()> {
    while !text.is_empty() {
        let split = text.find(|c: char| c.is_ascii_alphabetic())?;
        let (number, rest) = text.split_at(split);
        let (negative, digits) = match number.as_bytes().first()? {
            b'-' => (true, &number[1..]),
            b'+' => (false, &number[1..]),
            _ => (false, number),
        };
        let unit = match (&rest[..1], time) {
            ("y", false) => Unit::Year,
            ("m", false) => Unit::Month,
            ("w", false) => Unit::Week,
            ("d", false) => Unit::Day,
            ("h", true) => Unit::Hour,
            ("m", true) => Unit::Minute,
            ("s", true) => Unit::Second,
            _ => return None,
        };
        sum.add(Number::parse(digits, negative)?, unit)?;
        text = &rest[1..];
    }
    Some(())
}

/// `04:05:06.5` or `04:05` in microseconds; hours may be many.
fn clock(text: &str) -> Option<i64> {
    let mut parts = text.split(':');
    let hours: i64 = digits(parts.next()?)?;
    let second = parts.next()?;
    let (hours, minutes, seconds) = match parts.next() {
        Some(seconds) => (hours, digits(second)?, seconds),
        // Two parts with a point are minutes and seconds.
        None if second.contains('.') => (0, hours, second),
        None => (hours, digits(second)?, "0"),
    };
    if parts.next().is_some() || minutes > 59 {
        return None;
    }
    let (seconds, fraction) = seconds.split_once('.').unwrap_or((seconds, ""));
    let seconds = digits(seconds)?;
    if seconds > 60 {
        return None;
    }
    hours
        .checked_mul(US_PER_HOUR)?
        .checked_add(minutes * US_PER_MINUTE + seconds * US_PER_SECOND + fraction_us(fraction)?)
}

fn digits(text: &str) -> Option<i64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

/// `1 year 2 mons -3 days 04:05:06`, `@ 1 hour ago`, `1-2`, `1d 2h`.
fn parse_words(text: &str, invalid: impl Fn() -> Error) -> Result<Sum> {
    let mut sum = Sum::default();
    let mut any = false;
    let mut pending: Option<Number> = None;
    let mut rest = text.trim_start_matches(['@', ' ']);
    let mut ago = false;
    while !rest.is_empty() {
        let first = rest.as_bytes()[0];
        if first.is_ascii_whitespace() || first == b',' {
            rest = &rest[1..];
            continue;
        }
        if ago {
            return Err(invalid());
        }
        if first.is_ascii_alphabetic() {
            let end = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            rest = after;
            match (word, pending.take()) {
                ("ago", None) if any => ago = true,
                ("and", None) => {}
                (word, Some(number)) => {
                    sum.add(number, unit(word).ok_or_else(&invalid)?).ok_or_else(&invalid)?;
                    any = true;
                }
                _ => return Err(invalid()),
            }
            continue;
        }
        let (negative, body) = match first {
            b'-' => (true, &rest[1..]),
            b'+' => (false, &rest[1..]),
            _ => (false, rest),
        };
        let end = body.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | ':' | '-'))).unwrap_or(body.len());
        let (field, after) = body.split_at(end);
        rest = after;
        if field.is_empty() {
            return Err(invalid());
        }
        // A number followed by a clock or by years and months is one of days.
        if let Some(number) = pending.take() {
            if field.contains(':') {
                sum.add(number, Unit::Day).ok_or_else(&invalid)?;
                any = true;
            } else {
                return Err(invalid());
            }
        }
        if field.contains(':') {
            let us = clock(field).ok_or_else(&invalid)?;
            sum.us += i128::from(if negative { -us } else { us });
            any = true;
        } else if let Some((years, months)) = field.split_once('-') {
            let (years, months) =
                digits(years).zip(digits(months)).filter(|(_, months)| *months < 12).ok_or_else(&invalid)?;
            let total = years.checked_mul(12).and_then(|total| total.checked_add(months)).ok_or_else(&invalid)?;
            sum.months = sum.months.checked_add(if negative { -total } else { total }).ok_or_else(&invalid)?;
            any = true;
        } else {
            pending = Some(Number::parse(field, negative).ok_or_else(&invalid)?);
        }
    }
    if let Some(number) = pending {
        // Without a unit: seconds.
        sum.add(number, Unit::Second).ok_or_else(&invalid)?;
        any = true;
    }
    if !any {
        return Err(invalid());
    }
    if ago {
        sum.months = -sum.months;
        sum.days = -sum.days;
        sum.us = -sum.us;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        let value = parse_interval(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let mut out = Vec::new();
        write_interval(value.months, value.days, value.nanoseconds / 1000, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn intervals_are_read_and_printed_in_postgres_style() {
        for (text, expected) in [
            ("1 year 2 mons 3 days 04:05:06.5", "1 year 2 mons 3 days 04:05:06.5"),
            ("0", "00:00:00"),
            ("1 day", "1 day"),
            ("-1 days", "-1 days"),
            ("1 day -00:00:01", "1 day -00:00:01"),
            ("-1 day +02:03:00", "-1 days +02:03:00"),
            ("-1 year 2 mons", "-10 mons"),
            ("14 months", "1 year 2 mons"),
            ("1.5 days", "1 day 12:00:00"),
            ("1.5 months", "1 mon 15 days"),
            ("1.5 years", "1 year 6 mons"),
            ("2 weeks", "14 days"),
            ("1-2", "1 year 2 mons"),
            ("3 4:05", "3 days 04:05:00"),
            ("@ 1 hour ago", "-01:00:00"),
            ("90 seconds", "00:01:30"),
            ("100 hours", "100:00:00"),
            ("1h30m", "01:30:00"),
            ("250 ms", "00:00:00.25"),
            ("P1Y2M3DT4H5M6.5S", "1 year 2 mons 3 days 04:05:06.5"),
            ("P0001-02-03T04:05:06", "1 year 2 mons 3 days 04:05:06"),
            ("PT36H", "36:00:00"),
            ("P-1M", "-1 mons"),
            ("1 century", "100 years"),
            ("12.5", "00:00:12.5"),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
    }

    #[test]
    fn wrong_intervals_are_refused() {
        for text in ["", "x", "1 blue", "P", "PT", "1 year year", "ago", "1 day ago 2", "1:2:3:4", "P1", "1 2", "1:99"]
        {
            let error = parse_interval(text).unwrap_err();
            assert_eq!(error.code().code(), "22007", "{text}");
        }
        assert_eq!(parse_interval("3000000000 days").unwrap_err().code().code(), "22008");
        assert_eq!(parse_interval("infinity").unwrap_err().code(), SqlState::FEATURE_NOT_SUPPORTED);
    }

    #[test]
    fn what_is_printed_reads_back() {
        for months in [-25, -12, -1, 0, 1, 13] {
            for days in [-40, -1, 0, 1, 400] {
                for us in [-90_061_000_001i64, -1, 0, 1, 86_400_000_000 * 3] {
                    let mut out = Vec::new();
                    write_interval(months, days, us, &mut out);
                    let text = std::str::from_utf8(&out).unwrap();
                    assert_eq!(
                        parse_interval(text).unwrap(),
                        IntervalMonthDayNano::new(months, days, us * 1000),
                        "{text}"
                    );
                }
            }
        }
    }
}
