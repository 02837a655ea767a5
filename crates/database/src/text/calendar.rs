//! Days and microseconds since 1970-01-01 as proleptic Gregorian dates, and time zones.
//!
//! Years are astronomical: 1 BC is 0. Everything is plain integer arithmetic, so no input can be out of a library's range.

use chrono::{DateTime, LocalResult, NaiveDateTime, Offset, TimeZone};
use chrono_tz::{OffsetName, Tz};
use tidepool_base::{Error, Result, SqlState};

pub const US_PER_SECOND: i64 = 1_000_000;
pub const US_PER_MINUTE: i64 = 60 * US_PER_SECOND;
pub const US_PER_HOUR: i64 = 60 * US_PER_MINUTE;
pub const US_PER_DAY: i64 = 24 * US_PER_HOUR;

/// PostgreSQL's first and last dates, 4714-11-24 BC and 5874897-12-31.
pub const DATE_MIN: i64 = days_from_civil(-4713, 11, 24);
pub const DATE_MAX: i64 = days_from_civil(5_874_897, 12, 31);
/// PostgreSQL's first timestamp, and the last that microseconds since 1970 can count to: in January 294247.
pub const TIMESTAMP_MIN: i64 = DATE_MIN * US_PER_DAY;
pub const TIMESTAMP_MAX: i64 = i64::MAX;

/// Howard Hinnant's algorithm: eras of 400 years, years that start in March.
pub const fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// (year, month, day).
pub const fn civil_from_days(days: i64) -> (i64, u32, u32) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_shifted + 2) / 5 + 1;
    let month = if month_shifted < 10 { month_shifted + 3 } else { month_shifted - 9 };
    let year = year_of_era + era * 400 + if month <= 2 { 1 } else { 0 };
    (year, month as u32, day as u32)
}

pub fn days_in_month(year: i64, month: u32) -> u32 {
    match month {
        2 if year.rem_euclid(4) == 0 && (year.rem_euclid(100) != 0 || year.rem_euclid(400) == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// How `timestamptz` is shown and read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Zone {
    /// Seconds east of UTC.
    Fixed(i32),
    Named(Tz),
}

/// Abbreviations that people write after a time, with their seconds east of UTC.
const ABBREVIATIONS: &[(&str, i32)] = &[
    ("utc", 0),
    ("gmt", 0),
    ("z", 0),
    ("zulu", 0),
    ("ut", 0),
    ("wet", 0),
    ("west", 3600),
    ("bst", 3600),
    ("cet", 3600),
    ("met", 3600),
    ("cest", 7200),
    ("mest", 7200),
    ("eet", 7200),
    ("eest", 10800),
    ("msk", 10800),
    ("ist", 7200),
    ("jst", 32400),
    ("kst", 32400),
    ("aest", 36000),
    ("aedt", 39600),
    ("nzst", 43200),
    ("nzdt", 46800),
    ("est", -18000),
    ("edt", -14400),
    ("cst", -21600),
    ("cdt", -18000),
    ("mst", -25200),
    ("mdt", -21600),
    ("pst", -28800),
    ("pdt", -25200),
    ("akst", -32400),
    ("akdt", -28800),
    ("hst", -36000),
];

impl Zone {
    pub const UTC: Zone = Zone::Fixed(0);

    /// A setting: an IANA name in any case, or POSIX's form, in which hours count towards the west: `UTC+3`, `<+03>-3`, `-03:00`. 22023
    /// when there is none such.
    pub fn parse(text: &str) -> Result<Zone> {
        let trimmed = text.trim();
        iana(trimmed).or_else(|| posix(trimmed)).ok_or_else(|| {
            Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("invalid value for parameter \"TimeZone\": \"{text}\""),
            )
            .with_hint("Give a name such as Europe/Berlin, or the hours east of UTC as a number.")
        })
    }

    /// The name of a setting as it is shown; for an offset what was written.
    pub fn canonical_name(text: &str) -> Option<String> {
        match Zone::parse(text).ok()? {
            Zone::Named(zone) => Some(zone.name().to_owned()),
            Zone::Fixed(0) if iana(text.trim()).is_some() => Some(text.trim().to_uppercase()),
            Zone::Fixed(_) => Some(text.trim().to_owned()),
        }
    }

    /// What a zone is called that is so many seconds east of UTC: `<+05:30>-05:30`.
    pub fn posix_name(east: i32) -> String {
        let shown = |sign: char, seconds: u32| {
            let minutes =
                if seconds.is_multiple_of(3600) { String::new() } else { format!(":{:02}", seconds / 60 % 60) };
            format!("{sign}{:02}{minutes}", seconds / 3600)
        };
        let (here, back) = if east < 0 { ('-', '+') } else { ('+', '-') };
        format!("<{}>{}", shown(here, east.unsigned_abs()), shown(back, east.unsigned_abs()))
    }

    /// A zone in SQL: an abbreviation, or what a setting may be.
    pub fn written(text: &str) -> Option<Zone> {
        let trimmed = text.trim();
        Zone::named(trimmed).or_else(|| posix(trimmed))
    }

    /// An abbreviation or an IANA name, in any case.
    pub fn named(text: &str) -> Option<Zone> {
        if let Some((_, offset)) = ABBREVIATIONS.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)) {
            return Some(Zone::Fixed(*offset));
        }
        iana(text)
    }

    /// The name under which Arrow knows it.
    pub fn arrow_name(self) -> String {
        match self {
            Zone::Fixed(east) => {
                let sign = if east < 0 { '-' } else { '+' };
                let minutes = east.unsigned_abs() / 60;
                format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60)
            }
            Zone::Named(zone) => zone.name().to_owned(),
        }
    }

    /// What its time is called at an instant: `CET`, `-03`. Nothing for a zone that has no names.
    pub fn abbreviation(self, utc_us: i64) -> String {
        match self {
            Zone::Fixed(0) => "UTC".to_owned(),
            Zone::Fixed(_) => String::new(),
            Zone::Named(zone) => {
                zone.offset_from_utc_datetime(&naive(utc_us)).abbreviation().map(str::to_owned).unwrap_or_default()
            }
        }
    }

    /// Seconds east of UTC at an instant.
    pub fn offset_at_utc(self, utc_us: i64) -> i32 {
        match self {
            Zone::Fixed(offset) => offset,
            Zone::Named(zone) => zone.offset_from_utc_datetime(&naive(utc_us)).fix().local_minus_utc(),
        }
    }

    /// Seconds east of UTC at a local time. Where a clock shows it twice, standard time is meant; where it never does,
    /// the offset from before the jump counts, both as in PostgreSQL.
    pub fn offset_at_local(self, local_us: i64) -> i32 {
        match self {
            Zone::Fixed(offset) => offset,
            Zone::Named(zone) => match zone.offset_from_local_datetime(&naive(local_us)) {
                LocalResult::Single(offset) => offset.fix().local_minus_utc(),
                LocalResult::Ambiguous(first, second) => {
                    first.fix().local_minus_utc().min(second.fix().local_minus_utc())
                }
                LocalResult::None => {
                    let before = naive(local_us.saturating_sub(US_PER_DAY));
                    zone.offset_from_utc_datetime(&before).fix().local_minus_utc()
                }
            },
        }
    }
}

fn iana(text: &str) -> Option<Zone> {
    const UTC: [&str; 4] = ["utc", "gmt", "z", "zulu"];
    if UTC.iter().any(|name| name.eq_ignore_ascii_case(text)) {
        return Some(Zone::UTC);
    }
    if let Ok(zone) = text.parse::<Tz>() {
        return Some(Zone::Named(zone));
    }
    chrono_tz::TZ_VARIANTS.iter().find(|zone| zone.name().eq_ignore_ascii_case(text)).map(|zone| Zone::Named(*zone))
}

/// A name of three letters or more, or anything in `<>`, or none; then hours towards the west.
fn posix(text: &str) -> Option<Zone> {
    let offset = match text.strip_prefix('<') {
        Some(rest) => rest.split_once('>')?.1,
        None => {
            let offset = text.trim_start_matches(|c: char| c.is_ascii_alphabetic());
            let letters = text.len() - offset.len();
            if (1..3).contains(&letters) {
                return None;
            }
            offset
        }
    };
    let signed =
        if offset.starts_with(|c: char| c.is_ascii_digit()) { format!("+{offset}") } else { offset.to_owned() };
    Some(Zone::Fixed(-parse_offset(signed.as_bytes())?))
}

/// Clamped to the years a zone's rules are looked up in: beyond them only the last rule matters.
fn naive(us: i64) -> NaiveDateTime {
    const LIMIT_US: i64 = 200_000 * 365 * US_PER_DAY;
    DateTime::from_timestamp_micros(us.clamp(-LIMIT_US, LIMIT_US)).unwrap_or_default().naive_utc()
}

/// `+5`, `-0330`, `+05:30`, `+05:30:15` into seconds east of UTC.
pub fn parse_offset(bytes: &[u8]) -> Option<i32> {
    let (sign, rest) = match bytes.split_first()? {
        (b'+', rest) => (1, rest),
        (b'-', rest) => (-1, rest),
        _ => return None,
    };
    let number = |digits: &[u8]| -> Option<i32> {
        if digits.is_empty() || digits.len() > 2 || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        Some(digits.iter().fold(0, |value, digit| value * 10 + i32::from(digit - b'0')))
    };
    let (hours, minutes, seconds) = if rest.contains(&b':') {
        let mut parts = rest.split(|byte| *byte == b':');
        let hours = number(parts.next()?)?;
        let minutes = number(parts.next()?)?;
        let seconds = parts.next().map_or(Some(0), number)?;
        if parts.next().is_some() {
            return None;
        }
        (hours, minutes, seconds)
    } else {
        match rest.len() {
            1 | 2 => (number(rest)?, 0, 0),
            3 => (number(&rest[..1])?, number(&rest[1..])?, 0),
            4 => (number(&rest[..2])?, number(&rest[2..])?, 0),
            6 => (number(&rest[..2])?, number(&rest[2..4])?, number(&rest[4..])?),
            _ => return None,
        }
    };
    // PostgreSQL's MAX_TZDISP_HOUR.
    if hours > 15 || minutes > 59 || seconds > 59 {
        return None;
    }
    Some(sign * (hours * 3600 + minutes * 60 + seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_dates_are_inverse() {
        for days in (-3_000_000..3_000_000).step_by(97).chain([DATE_MIN, DATE_MAX, 0, -1, 10_957]) {
            let (year, month, day) = civil_from_days(days);
            assert_eq!(days_from_civil(year, i64::from(month), i64::from(day)), days);
            assert!(day >= 1 && day <= days_in_month(year, month));
        }
        assert_eq!(civil_from_days(0), (1970, 1, 1));
        assert_eq!(civil_from_days(10_957), (2000, 1, 1));
        assert_eq!(days_from_civil(2000, 2, 29), 11_016);
    }

    #[test]
    fn zones_shift_and_unknown_ones_are_refused() {
        let berlin = Zone::parse("europe/berlin").unwrap();
        assert_eq!(berlin.offset_at_utc(days_from_civil(2020, 7, 1) * US_PER_DAY), 7200);
        assert_eq!(berlin.offset_at_utc(days_from_civil(2020, 1, 1) * US_PER_DAY), 3600);
        // 02:30 on 2020-03-29 never happened in Berlin; 02:30 on 2020-10-25 did twice.
        assert_eq!(berlin.offset_at_local(days_from_civil(2020, 3, 29) * US_PER_DAY + 150 * US_PER_MINUTE), 3600);
        assert_eq!(berlin.offset_at_local(days_from_civil(2020, 10, 25) * US_PER_DAY + 150 * US_PER_MINUTE), 3600);
        assert_eq!(berlin.offset_at_utc(i64::MAX), berlin.offset_at_utc(i64::MAX - 1));
        // POSIX counts towards the west.
        for (text, east) in [("+05:30", -19_800), ("-0330", 12_600), ("UTC+3", -10_800), ("<+03>-03", 10_800)] {
            assert_eq!(Zone::parse(text).unwrap(), Zone::Fixed(east), "{text}");
        }
        assert_eq!(Zone::posix_name(19_800), "<+05:30>-05:30");
        assert_eq!(Zone::parse(&Zone::posix_name(-10_800)).unwrap(), Zone::Fixed(-10_800));
        assert_eq!(Zone::canonical_name("europe/berlin").unwrap(), "Europe/Berlin");
        assert_eq!(berlin.abbreviation(0), "CET");
        assert_eq!(Zone::written("cest"), Some(Zone::Fixed(7200)));
        assert_eq!(Zone::parse("cest").unwrap_err().code(), SqlState::INVALID_PARAMETER_VALUE);
        assert_eq!(Zone::parse("Mars/Olympus").unwrap_err().code(), SqlState::INVALID_PARAMETER_VALUE);
        assert_eq!(parse_offset(b"+99"), None);
    }
}
