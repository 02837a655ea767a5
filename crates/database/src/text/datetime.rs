//! Dates, timestamps and times as text: ISO on output, PostgreSQL's forms on input (`DateStyle` is `ISO, MDY`).

use super::calendar::{
    DATE_MAX, DATE_MIN, TIMESTAMP_MAX, TIMESTAMP_MIN, US_PER_DAY, US_PER_HOUR, US_PER_MINUTE, US_PER_SECOND, Zone,
    civil_from_days, days_from_civil, days_in_month, parse_offset,
};
use super::number::write_padded;
use tidepool_base::{Error, Result, SqlState};

// ---------------------------------------------------------------------------------------------------------- output

/// Days since 1970 as `2020-01-05`, or `0044-03-15 BC`.
pub fn write_date(days: i64, out: &mut Vec<u8>) {
    let (year, month, day) = civil_from_days(days);
    write_ymd(if year > 0 { year } else { 1 - year }, month, day, out);
    if year <= 0 {
        out.extend_from_slice(b" BC");
    }
}

#[inline]
fn write_ymd(year: i64, month: u32, day: u32, out: &mut Vec<u8>) {
    write_padded(year as u64, 4, out);
    let (month, day) = (month as u8, day as u8);
    out.extend_from_slice(&[b'-', b'0' + month / 10, b'0' + month % 10, b'-', b'0' + day / 10, b'0' + day % 10]);
}

/// Microseconds of a day as `04:05:06.5`.
pub fn write_time(us: i64, out: &mut Vec<u8>) {
    let seconds = us / US_PER_SECOND;
    let two = |value: i64| [b'0' + (value / 10) as u8, b'0' + (value % 10) as u8];
    let ([h1, h2], [m1, m2], [s1, s2]) = (two(seconds / 3600), two(seconds / 60 % 60), two(seconds % 60));
    out.extend_from_slice(&[h1, h2, b':', m1, m2, b':', s1, s2]);
    write_fraction(us % US_PER_SECOND, out);
}

/// `.5` for 500,000 microseconds, nothing for none.
pub fn write_fraction(us: i64, out: &mut Vec<u8>) {
    if us != 0 {
        out.push(b'.');
        write_padded(us.unsigned_abs(), 6, out);
        while out.last() == Some(&b'0') {
            out.pop();
        }
    }
}

pub fn write_timestamp(us: i64, out: &mut Vec<u8>) {
    let bc = write_timestamp_body(us, out);
    if bc {
        out.extend_from_slice(b" BC");
    }
}

/// True when the year is BC, which the caller writes at the very end.
fn write_timestamp_body(us: i64, out: &mut Vec<u8>) -> bool {
    let (year, month, day) = civil_from_days(us.div_euclid(US_PER_DAY));
    write_ymd(if year > 0 { year } else { 1 - year }, month, day, out);
    out.push(b' ');
    write_time(us.rem_euclid(US_PER_DAY), out);
    year <= 0
}

/// The local time in `zone` and its offset: `2020-01-05 10:00:00+01`.
pub fn write_timestamptz(utc_us: i64, zone: Zone, out: &mut Vec<u8>) {
    let offset = zone.offset_at_utc(utc_us);
    let bc = write_timestamp_body(utc_us.saturating_add(i64::from(offset) * US_PER_SECOND), out);
    out.push(if offset < 0 { b'-' } else { b'+' });
    let offset = u64::from(offset.unsigned_abs());
    write_padded(offset / 3600, 2, out);
    if offset % 3600 != 0 {
        out.push(b':');
        write_padded(offset / 60 % 60, 2, out);
        if offset % 60 != 0 {
            out.push(b':');
            write_padded(offset % 60, 2, out);
        }
    }
    if bc {
        out.extend_from_slice(b" BC");
    }
}

// ----------------------------------------------------------------------------------------------------------- input

/// Which type the text is read as; names it in errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Date,
    Timestamp,
    TimestampTz(Zone),
}

impl Target {
    fn name(self) -> &'static str {
        match self {
            Target::Date => "date",
            Target::Timestamp => "timestamp",
            Target::TimestampTz(_) => "timestamp with time zone",
        }
    }

    #[cold]
    fn syntax(self, text: &str) -> Error {
        Error::new(
            SqlState::INVALID_DATETIME_FORMAT,
            format!("invalid input syntax for type {}: \"{text}\"", self.name()),
        )
    }

    #[cold]
    fn out_of_range(self, text: &str) -> Error {
        let what = if self == Target::Date { "date" } else { "timestamp" };
        Error::new(SqlState::DATETIME_FIELD_OVERFLOW, format!("{what} out of range: \"{text}\""))
    }
}

#[cold]
fn field_error(text: &str) -> Error {
    Error::new(SqlState::DATETIME_FIELD_OVERFLOW, format!("date/time field value out of range: \"{text}\""))
}

#[inline]
fn two_digits(bytes: &[u8]) -> Option<u32> {
    let (high, low) = (bytes[0].wrapping_sub(b'0'), bytes[1].wrapping_sub(b'0'));
    if high <= 9 && low <= 9 { Some(u32::from(high) * 10 + u32::from(low)) } else { None }
}

/// `2020-01-05` and nothing else; `None` for anything that is not exactly that, valid or not.
#[inline]
fn iso_date(bytes: &[u8]) -> Option<i64> {
    if bytes.len() != 10 || bytes[4] != b'-' || bytes[7] != b'-' {
        return None;
    }
    let year = i64::from(two_digits(&bytes[0..2])? * 100 + two_digits(&bytes[2..4])?);
    let (month, day) = (two_digits(&bytes[5..7])?, two_digits(&bytes[8..10])?);
    if year == 0 || month == 0 || month > 12 || day == 0 || day > days_in_month(year, month) {
        return None;
    }
    Some(days_from_civil(year, i64::from(month), i64::from(day)))
}

/// `10:20:30` with up to six more digits after a point, in microseconds.
#[inline]
fn iso_time(bytes: &[u8]) -> Option<i64> {
    if bytes.len() < 8 || bytes[2] != b':' || bytes[5] != b':' {
        return None;
    }
    let (hour, minute, second) = (two_digits(&bytes[0..2])?, two_digits(&bytes[3..5])?, two_digits(&bytes[6..8])?);
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let mut fraction = 0;
    if bytes.len() > 8 {
        if bytes[8] != b'.' || bytes.len() == 9 || bytes.len() > 15 {
            return None;
        }
        for position in 9..15 {
            let digit = bytes.get(position).copied().unwrap_or(b'0').wrapping_sub(b'0');
            if digit > 9 {
                return None;
            }
            fraction = fraction * 10 + i64::from(digit);
        }
    }
    Some(i64::from(hour * 3600 + minute * 60 + second) * US_PER_SECOND + fraction)
}

/// Days since 1970.
#[inline]
pub fn parse_date(text: &str) -> Result<i32> {
    if let Some(days) = iso_date(text.as_bytes()) {
        return Ok(days as i32);
    }
    let parsed = parse_general(text, Target::Date)?;
    if parsed.days < DATE_MIN || parsed.days > DATE_MAX {
        return Err(Target::Date.out_of_range(text));
    }
    Ok(parsed.days as i32)
}

/// Microseconds since 1970: local for `Timestamp`, UTC for `TimestampTz`.
#[inline]
pub fn parse_timestamp(text: &str, target: Target) -> Result<i64> {
    let bytes = text.as_bytes();
    if bytes.len() >= 10
        && let Some(days) = iso_date(&bytes[..10])
    {
        let time = match bytes.get(10) {
            None => Some(0),
            Some(b' ' | b'T') => iso_time(&bytes[11..]),
            Some(_) => None,
        };
        if let Some(time) = time {
            let local = days * US_PER_DAY + time;
            return Ok(match target {
                Target::TimestampTz(zone) => local - i64::from(zone.offset_at_local(local)) * US_PER_SECOND,
                _ => local,
            });
        }
    }
    let parsed = parse_general(text, target)?;
    let local = parsed.days.checked_mul(US_PER_DAY).and_then(|us| us.checked_add(parsed.time_us));
    let us = local.and_then(|local| match (target, parsed.zone) {
        (Target::TimestampTz(_), Some(zone)) | (Target::TimestampTz(zone), None) => {
            local.checked_sub(i64::from(zone.offset_at_local(local)) * US_PER_SECOND)
        }
        _ => Some(local),
    });
    us.filter(|us| (TIMESTAMP_MIN..=TIMESTAMP_MAX).contains(us)).ok_or_else(|| target.out_of_range(text))
}

struct Parsed {
    days: i64,
    time_us: i64,
    zone: Option<Zone>,
}

const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];
const DAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];

/// `jan`, `sept` or `january` into 1.
fn month_number(word: &str) -> Option<u32> {
    if word == "sept" {
        return Some(9);
    }
    MONTHS.iter().position(|name| *name == word || (word.len() == 3 && name.starts_with(word))).map(|at| at as u32 + 1)
}

fn is_day_name(word: &str) -> bool {
    matches!(word, "tues" | "wednes" | "weds" | "thur" | "thurs")
        || DAYS.iter().any(|name| *name == word || (word.len() == 3 && name.starts_with(word)))
}

/// What was seen so far. A date's parts may come in several orders and fields.
#[derive(Default)]
struct Fields {
    /// Numbers of the date not yet known as year, month or day: value and digits.
    numbers: Vec<(i64, usize)>,
    month_by_name: Option<u32>,
    ymd: Option<(i64, u32, u32)>,
    time_us: Option<i64>,
    zone: Option<Zone>,
    pm: Option<bool>,
    bc: bool,
    /// `epoch`, `now`, `today` and their like: microseconds UTC, and whether it is a local midnight.
    special: Option<Special>,
}

impl Fields {
    fn has_date(&self) -> bool {
        self.ymd.is_some() || self.numbers.len() == 3 || (self.numbers.len() == 2 && self.month_by_name.is_some())
    }
}

#[derive(Clone, Copy)]
enum Special {
    Epoch,
    Now,
    Day(i64),
}

/// The slow path: PostgreSQL's `ParseDateTime` and `DecodeDateTime`, for what people and other programs write.
#[cold]
fn parse_general(text: &str, target: Target) -> Result<Parsed> {
    let syntax = || target.syntax(text);
    let lower = text.trim().to_ascii_lowercase();
    let bytes = lower.as_bytes();
    if matches!(lower.as_str(), "infinity" | "-infinity" | "+infinity") {
        return Err(Error::unsupported(format!("{} \"{}\" is not supported", target.name(), text.trim())));
    }
    let mut fields = Fields::default();
    let mut position = 0;
    let mut after_t = false;
    while position < bytes.len() {
        let start = position;
        let byte = bytes[position];
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' | b',' => {
                position += 1;
                continue;
            }
            b'0'..=b'9' => {
                while position < bytes.len() && bytes[position].is_ascii_digit() {
                    position += 1;
                }
                let next = bytes.get(position).copied();
                if next == Some(b':') {
                    while position < bytes.len() && matches!(bytes[position], b'0'..=b'9' | b':' | b'.') {
                        position += 1;
                    }
                    if fields.time_us.is_some() {
                        return Err(syntax());
                    }
                    fields.time_us = Some(clock_time(&lower[start..position], text, target)?);
                } else if matches!(next, Some(b'-' | b'/' | b'.'))
                    && fields.ymd.is_none()
                    && fields.numbers.is_empty()
                    && !after_t
                {
                    // A whole date in one field, its parts digits or a month's name. An ISO `t` ends it.
                    while position < bytes.len() {
                        let byte = bytes[position];
                        let part = byte.is_ascii_digit()
                            || matches!(byte, b'-' | b'/' | b'.')
                            || (byte.is_ascii_alphabetic() && !iso_t(bytes, position));
                        if !part {
                            break;
                        }
                        position += 1;
                    }
                    date_field(&lower[start..position], &mut fields, text, target)?;
                } else {
                    number_field(&lower[start..position], after_t, &mut fields, text, target)?;
                    if next.is_some_and(|byte| byte.is_ascii_alphabetic())
                        && matches!(lower.get(position..position + 2), Some("st" | "nd" | "rd" | "th"))
                    {
                        position += 2;
                    }
                }
                after_t = false;
            }
            b'+' | b'-' => {
                position += 1;
                while position < bytes.len() && matches!(bytes[position], b'0'..=b'9' | b':') {
                    position += 1;
                }
                if fields.time_us.is_none() && !fields.has_date() || fields.zone.is_some() {
                    return Err(syntax());
                }
                let offset = parse_offset(&bytes[start..position]).ok_or_else(|| {
                    Error::new(
                        SqlState::DATETIME_FIELD_OVERFLOW,
                        format!("time zone displacement out of range: \"{text}\""),
                    )
                })?;
                fields.zone = Some(Zone::Fixed(offset));
            }
            b'a'..=b'z' => {
                while position < bytes.len()
                    && (bytes[position].is_ascii_alphabetic() || matches!(bytes[position], b'_' | b'/'))
                {
                    position += 1;
                }
                let word = &lower[start..position];
                if word == "t" && fields.time_us.is_none() {
                    after_t = true;
                } else {
                    // Some zone names have digits and dashes: etc/gmt+5, america/port-au-prince.
                    if word.contains('/') {
                        while position < bytes.len() && !bytes[position].is_ascii_whitespace() {
                            position += 1;
                        }
                    }
                    word_field(&lower[start..position], &mut fields, text, target)?;
                    // The rest of Jan-05-2020 is no offset.
                    if fields.month_by_name.is_some() && fields.numbers.is_empty() && bytes.get(position) == Some(&b'-')
                    {
                        position += 1;
                    }
                }
            }
            _ => return Err(syntax()),
        }
    }
    assemble(fields, text, target)
}

/// A `t` between a date and a time, rather than a letter of a month's name.
fn iso_t(bytes: &[u8], position: usize) -> bool {
    bytes[position] == b't'
        && bytes[position - 1].is_ascii_digit()
        && bytes.get(position + 1).is_some_and(u8::is_ascii_digit)
}

/// `10:20`, `10:20:30.5`.
fn clock_time(field: &str, text: &str, target: Target) -> Result<i64> {
    let syntax = || target.syntax(text);
    let (clock, fraction) = match field.split_once('.') {
        Some((clock, fraction)) => (clock, Some(fraction)),
        None => (field, None),
    };
    let mut parts = [0i64; 3];
    let mut count = 0;
    for part in clock.split(':') {
        if count == 3 || part.is_empty() && count < 2 {
            return Err(syntax());
        }
        parts[count] = if part.is_empty() { 0 } else { part.parse().map_err(|_| field_error(text))? };
        count += 1;
    }
    let fraction_us = match fraction {
        None => 0,
        Some(_) if count == 1 => return Err(syntax()),
        Some(fraction) => fraction_us(fraction).ok_or_else(syntax)?,
    };
    let [hour, minute, second] = if count == 2 && fraction.is_some() { [0, parts[0], parts[1]] } else { parts };
    let us = hour * US_PER_HOUR + minute * US_PER_MINUTE + second * US_PER_SECOND + fraction_us;
    // 24:00:00 and a leap second's :60 are taken, as in PostgreSQL.
    if minute > 59 || second > 60 || hour > 24 || us > US_PER_DAY {
        return Err(field_error(text));
    }
    Ok(us)
}

/// Digits after a point in microseconds, rounded half up.
pub fn fraction_us(digits: &str) -> Option<i64> {
    let mut us = 0;
    for position in 0..6 {
        us = us * 10 + i64::from(digits.as_bytes().get(position).map_or(0, |byte| byte.wrapping_sub(b'0')));
    }
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    Some(us + i64::from(digits.as_bytes().get(6).is_some_and(|digit| *digit >= b'5')))
}

/// `2020-01-05`, `1/5/2020`, `05-jan-2020`, `2020.1.5`.
fn date_field(field: &str, fields: &mut Fields, text: &str, target: Target) -> Result<()> {
    let mut parts = 0;
    for part in field.split(['-', '/', '.']) {
        parts += 1;
        if part.is_empty() || parts > 3 {
            return Err(target.syntax(text));
        }
        if part.bytes().all(|byte| byte.is_ascii_digit()) {
            let value = part.parse().map_err(|_| field_error(text))?;
            fields.numbers.push((value, part.len()));
        } else {
            let month = month_number(part).ok_or_else(|| target.syntax(text))?;
            if fields.month_by_name.replace(month).is_some() {
                return Err(target.syntax(text));
            }
        }
    }
    Ok(())
}

/// A run of digits by itself.
fn number_field(field: &str, after_t: bool, fields: &mut Fields, text: &str, target: Target) -> Result<()> {
    let value: i64 = field.parse().map_err(|_| field_error(text))?;
    let date_known = fields.has_date();
    match field.len() {
        8 if !date_known && fields.numbers.is_empty() => {
            fields.ymd = Some((value / 10_000, (value / 100 % 100) as u32, (value % 100) as u32));
        }
        6 if !date_known && fields.numbers.is_empty() && !after_t => {
            fields.ymd = Some((two_digit_year(value / 10_000), (value / 100 % 100) as u32, (value % 100) as u32));
        }
        4 | 6 if date_known && fields.time_us.is_none() => {
            let clock = if field.len() == 4 { value * 100 } else { value };
            let (hour, minute, second) = (clock / 10_000, clock / 100 % 100, clock % 100);
            if hour > 24 || minute > 59 || second > 60 {
                return Err(field_error(text));
            }
            fields.time_us = Some(hour * US_PER_HOUR + minute * US_PER_MINUTE + second * US_PER_SECOND);
        }
        1 | 2 if date_known && fields.time_us.is_none() => {
            if value > 24 {
                return Err(field_error(text));
            }
            fields.time_us = Some(value * US_PER_HOUR);
        }
        _ if date_known => return Err(target.syntax(text)),
        _ => fields.numbers.push((value, field.len())),
    }
    Ok(())
}

fn word_field(word: &str, fields: &mut Fields, text: &str, target: Target) -> Result<()> {
    if let Some(month) = month_number(word) {
        if fields.month_by_name.replace(month).is_some() {
            return Err(target.syntax(text));
        }
        return Ok(());
    }
    if is_day_name(word) {
        return Ok(());
    }
    match word {
        "am" => fields.pm = Some(false),
        "pm" => fields.pm = Some(true),
        "bc" => fields.bc = true,
        "ad" | "at" | "on" => {}
        "epoch" => fields.special = Some(Special::Epoch),
        "now" => fields.special = Some(Special::Now),
        "today" => fields.special = Some(Special::Day(0)),
        "tomorrow" => fields.special = Some(Special::Day(1)),
        "yesterday" => fields.special = Some(Special::Day(-1)),
        "allballs" => {
            fields.time_us = Some(0);
            fields.zone = Some(Zone::UTC);
        }
        _ => {
            let zone = Zone::named(word).ok_or_else(|| {
                if word.contains('/') {
                    Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("time zone \"{word}\" not recognized"))
                } else {
                    target.syntax(text)
                }
            })?;
            if fields.zone.replace(zone).is_some() {
                return Err(target.syntax(text));
            }
        }
    }
    Ok(())
}

fn two_digit_year(year: i64) -> i64 {
    if year < 70 { year + 2000 } else { year + 1900 }
}

fn assemble(mut fields: Fields, text: &str, target: Target) -> Result<Parsed> {
    let syntax = || target.syntax(text);
    if let Some(special) = fields.special {
        if fields.ymd.is_some() || !fields.numbers.is_empty() || fields.month_by_name.is_some() {
            return Err(syntax());
        }
        let zone = match target {
            Target::TimestampTz(zone) => zone,
            _ => Zone::UTC,
        };
        let local_now = || {
            let utc = chrono::Utc::now().timestamp_micros();
            utc + i64::from(zone.offset_at_utc(utc)) * US_PER_SECOND
        };
        return Ok(match special {
            Special::Epoch => Parsed { days: 0, time_us: 0, zone: Some(Zone::UTC) },
            Special::Now => {
                let now = local_now();
                Parsed { days: now.div_euclid(US_PER_DAY), time_us: now.rem_euclid(US_PER_DAY), zone: None }
            }
            Special::Day(shift) => Parsed {
                days: local_now().div_euclid(US_PER_DAY) + shift,
                time_us: fields.time_us.unwrap_or(0),
                zone: fields.zone,
            },
        });
    }
    let mut year_digits = 4;
    let (mut year, month, day) = match (fields.ymd, fields.month_by_name, fields.numbers.as_slice()) {
        (Some(ymd), None, []) => ymd,
        // A month's name between or beside two numbers: the longer one, or the last, is the year.
        (None, Some(month), [first, second]) => {
            let year_first = first.1 > 2 && second.1 <= 2;
            let (year, day) = if year_first { (first, second) } else { (second, first) };
            year_digits = year.1;
            (year.0, month, day.0 as u32)
        }
        (None, None, [first, second, third]) => {
            if first.1 > 2 {
                year_digits = first.1;
                (first.0, second.0 as u32, third.0 as u32)
            } else {
                year_digits = third.1;
                (third.0, first.0 as u32, second.0 as u32)
            }
        }
        _ => return Err(syntax()),
    };
    if fields.bc {
        if year == 0 {
            return Err(field_error(text));
        }
        year = 1 - year;
    } else if year_digits <= 2 {
        year = two_digit_year(year);
    } else if year == 0 {
        return Err(field_error(text));
    }
    if month == 0 || month > 12 || day == 0 || day > 31 {
        let error = field_error(text);
        return Err(if fields.ymd.is_none() {
            error.with_hint("Perhaps you need a different \"DateStyle\" setting.")
        } else {
            error
        });
    }
    if day > days_in_month(year, month) || year > 6_000_000 {
        return Err(field_error(text));
    }
    let mut time_us = fields.time_us.take().unwrap_or(0);
    if let Some(pm) = fields.pm {
        let hour = time_us / US_PER_HOUR;
        if hour > 12 {
            return Err(field_error(text));
        }
        if pm && hour < 12 {
            time_us += 12 * US_PER_HOUR;
        } else if !pm && hour == 12 {
            time_us -= 12 * US_PER_HOUR;
        }
    }
    Ok(Parsed { days: days_from_civil(year, i64::from(month), i64::from(day)), time_us, zone: fields.zone })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn date(text: &str) -> String {
        let mut out = Vec::new();
        write_date(i64::from(parse_date(text).unwrap_or_else(|error| panic!("{text}: {error}"))), &mut out);
        String::from_utf8(out).unwrap()
    }

    fn timestamp(text: &str) -> String {
        let mut out = Vec::new();
        write_timestamp(
            parse_timestamp(text, Target::Timestamp).unwrap_or_else(|error| panic!("{text}: {error}")),
            &mut out,
        );
        String::from_utf8(out).unwrap()
    }

    fn timestamptz(text: &str, zone: &str) -> String {
        let zone = Zone::parse(zone).unwrap();
        let mut out = Vec::new();
        let us = parse_timestamp(text, Target::TimestampTz(zone)).unwrap_or_else(|error| panic!("{text}: {error}"));
        write_timestamptz(us, zone, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_zone_may_stand_behind_a_date_alone() {
        for (text, utc) in [
            ("2026-11-25 +02", "2026-11-24 22:00:00+00"),
            ("2026-11-25 -05:30", "2026-11-25 05:30:00+00"),
            ("nov 25 2026 +01", "2026-11-24 23:00:00+00"),
            ("20261125 -3", "2026-11-25 03:00:00+00"),
        ] {
            assert_eq!(timestamptz(text, "UTC"), utc);
        }
        assert_eq!(timestamp("2026-11-25 +02"), "2026-11-25 00:00:00");
        assert_eq!(date("2026-11-25 +02"), "2026-11-25");
        for text in ["2026 +00", "2026-11-25-08", "nov 25 +00"] {
            assert!(parse_timestamp(text, Target::Timestamp).is_err(), "{text}");
        }
    }

    #[test]
    fn dates_are_read_in_the_forms_people_write() {
        for text in [
            "2020-01-05",
            "2020/01/05",
            "2020/1/5",
            "20200105",
            "200105",
            "Jan 5 2020",
            "January 5, 2020",
            "5 Jan 2020",
            "05-Jan-2020",
            "Jan-05-2020",
            "2020-Jan-05",
            "1/5/2020",
            "01/05/20",
            " 2020-1-5 ",
            "Sunday, January 5th, 2020",
            "2020-01-05 10:11:12",
            "2020-01-05T23:59:59Z",
            "2020.01.05",
            "2020 Jan 5",
            "2020-01-05 AD",
        ] {
            assert_eq!(date(text), "2020-01-05", "{text}");
        }
        assert_eq!(date("epoch"), "1970-01-01");
        assert_eq!(date("0044-03-15 BC"), "0044-03-15 BC");
        assert_eq!(date("4714-11-24 BC"), "4714-11-24 BC");
        assert_eq!(date("5874897-12-31"), "5874897-12-31");
        assert_eq!(date("12345-06-07"), "12345-06-07");
        assert_eq!(date("01-02-69"), "2069-01-02");
        assert_eq!(date("2000-02-29"), "2000-02-29");
    }

    #[test]
    fn wrong_dates_have_postgresqls_codes() {
        for text in [
            "",
            "x",
            "2020",
            "2020-01",
            "2020-01-05-06",
            "Jan Feb 2020",
            "2020--01",
            "1/2",
            "blue moon",
            "2020-01-05 x",
        ] {
            let error = parse_date(text).unwrap_err();
            assert_eq!(error.code().code(), "22007", "{text}");
            assert_eq!(error.message(), format!("invalid input syntax for type date: \"{text}\""));
        }
        for text in ["2020-13-01", "2020-02-30", "2019-02-29", "0000-01-01", "2020-01-00", "20201301"] {
            let error = parse_date(text).unwrap_err();
            assert_eq!(error.code().code(), "22008", "{text}");
            assert_eq!(error.message(), format!("date/time field value out of range: \"{text}\""));
        }
        assert_eq!(parse_date("5874898-01-01").unwrap_err().message(), "date out of range: \"5874898-01-01\"");
        assert_eq!(parse_date("infinity").unwrap_err().code(), SqlState::FEATURE_NOT_SUPPORTED);
        assert!(parse_date("99999999999999999999-01-01").is_err());
    }

    #[test]
    fn timestamps_are_read_and_printed() {
        for (text, shown) in [
            ("2020-01-05 10:20:30", "2020-01-05 10:20:30"),
            ("2020-01-05T10:20:30.5", "2020-01-05 10:20:30.5"),
            ("2020-01-05 10:20:30.1234567", "2020-01-05 10:20:30.123457"),
            ("2020-01-05", "2020-01-05 00:00:00"),
            ("2020-01-05 10:20", "2020-01-05 10:20:00"),
            ("2020-01-05 10:20 PM", "2020-01-05 22:20:00"),
            ("Jan 5 2020 12:00 am", "2020-01-05 00:00:00"),
            ("20200105T102030", "2020-01-05 10:20:30"),
            ("20200105 1020", "2020-01-05 10:20:00"),
            ("2020-01-05 24:00:00", "2020-01-06 00:00:00"),
            // The zone of a timestamp without one is read over.
            ("2020-01-05 10:20:30+05:30", "2020-01-05 10:20:30"),
            ("0044-03-15 12:00:00 BC", "0044-03-15 12:00:00 BC"),
            ("1969-12-31 23:59:59.999999", "1969-12-31 23:59:59.999999"),
            ("294246-12-31 23:59:59.999999", "294246-12-31 23:59:59.999999"),
            ("epoch", "1970-01-01 00:00:00"),
        ] {
            assert_eq!(timestamp(text), shown, "{text}");
        }
        for (text, code) in [
            ("2020-01-05 25:00", "22008"),
            ("2020-01-05 10:60", "22008"),
            ("2020-01-05 10", ""),
            ("10:20", "22007"),
            ("2020-01-05 10:20:30 Mars/Olympus", "22023"),
            ("2020-01-05 10:20 nowhere", "22007"),
            ("294248-01-01", "22008"),
            ("2020-01-05 10:20:30+99", "22008"),
        ] {
            match parse_timestamp(text, Target::Timestamp) {
                Ok(_) => assert_eq!(code, "", "{text}"),
                Err(error) => assert_eq!(error.code().code(), code, "{text}"),
            }
        }
    }

    #[test]
    fn timestamps_with_zone_move_to_the_sessions_zone() {
        for (text, zone, shown) in [
            ("2020-01-05 10:00:00+00", "UTC", "2020-01-05 10:00:00+00"),
            ("2020-01-05 10:00:00", "Europe/Berlin", "2020-01-05 10:00:00+01"),
            ("2020-07-05 10:00:00Z", "Europe/Berlin", "2020-07-05 12:00:00+02"),
            ("2020-07-05 10:00:00 America/New_York", "UTC", "2020-07-05 14:00:00+00"),
            ("2020-07-05 10:00:00 PST", "UTC", "2020-07-05 18:00:00+00"),
            ("2020-07-05 10:00:00-03:30", "Asia/Kolkata", "2020-07-05 19:00:00+05:30"),
            ("2020-07-05T10:00:00.25+0530", "<-03:30>03:30", "2020-07-05 01:00:00.25-03:30"),
            ("0044-03-15 12:00:00+00 BC", "UTC", "0044-03-15 12:00:00+00 BC"),
            ("epoch", "Europe/Berlin", "1970-01-01 01:00:00+01"),
        ] {
            assert_eq!(timestamptz(text, zone), shown, "{text}");
        }
    }

    #[test]
    fn every_day_and_random_bytes_survive() {
        for days in (-800_000..3_000_000).step_by(1_237) {
            let mut out = Vec::new();
            write_date(days, &mut out);
            assert_eq!(i64::from(parse_date(std::str::from_utf8(&out).unwrap()).unwrap()), days);
        }
        let alphabet = b"0123456789-/.:+ tzjanpmbc,";
        let mut state = 1u64;
        for _ in 0..50_000 {
            let mut text = String::new();
            for _ in 0..(state % 23) {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                text.push(alphabet[(state >> 33) as usize % alphabet.len()] as char);
            }
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let _ = parse_date(&text);
            let _ = parse_timestamp(&text, Target::TimestampTz(Zone::UTC));
            let _ = super::super::interval::parse_interval(&text);
        }
    }
}
