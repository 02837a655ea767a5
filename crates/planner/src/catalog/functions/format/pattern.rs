//! Date and time patterns: `YYYY-MM-DD HH24:MI:SS` and the rest.

use crate::catalog::functions::sql_error;
use chrono::{Datelike, NaiveDate, NaiveDateTime, Timelike};
use datafusion::arrow::datatypes::IntervalMonthDayNano;
use datafusion::common::{DataFusionError, Result};
use tidepool_base::SqlState;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const ROMAN: [&str; 12] = ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX", "X", "XI", "XII"];

/// What a pattern can show.
pub struct Moment {
    year: i64,
    month: i64,
    day: i64,
    hour: i64,
    minute: i64,
    second: i64,
    micros: i64,
    /// `None` for an interval, which lies on no day.
    date: Option<NaiveDate>,
    /// The zone's name, and seconds east of UTC.
    zone: Option<(String, i32)>,
}

impl Moment {
    pub fn of(time: NaiveDateTime) -> Moment {
        Moment {
            year: i64::from(time.year()),
            month: i64::from(time.month()),
            day: i64::from(time.day()),
            hour: i64::from(time.hour()),
            minute: i64::from(time.minute()),
            second: i64::from(time.second()),
            micros: i64::from(time.nanosecond() / 1_000),
            date: Some(time.date()),
            zone: None,
        }
    }

    pub fn in_zone(mut self, name: String, offset_seconds: i32) -> Moment {
        self.zone = Some((name, offset_seconds));
        self
    }

    pub fn of_interval(interval: &IntervalMonthDayNano) -> Moment {
        let micros = interval.nanoseconds / 1_000;
        Moment {
            year: i64::from(interval.months / 12),
            month: i64::from(interval.months % 12),
            day: i64::from(interval.days),
            hour: micros / 3_600_000_000,
            minute: micros / 60_000_000 % 60,
            second: micros / 1_000_000 % 60,
            micros: micros % 1_000_000,
            date: None,
            zone: None,
        }
    }
}

/// The field names, longest first where one begins another. Matching ignores case except where case is the point.
const FIELDS: [&str; 56] = [
    "SSSSS", "SSSS", "A.M.", "P.M.", "B.C.", "A.D.", "Y,YYY", "IYYY", "YYYY", "IYY", "YYY", "MONTH", "HH24", "HH12",
    "IDDD", "DDD", "DAY", "MON", "FF1", "FF2", "FF3", "FF4", "FF5", "FF6", "TZH", "TZM", "AM", "PM", "BC", "AD", "IY",
    "YY", "HH", "MI", "SS", "MS", "US", "MM", "DY", "DD", "ID", "IW", "WW", "CC", "RM", "TZ", "OF", "I", "Y", "D", "W",
    "J", "Q", "FX", "TM", "SP",
];

enum Piece<'a> {
    /// The field's name in upper case, as written, and whether `FM`, `TH` or `th` go with it.
    Field {
        name: &'static str,
        written: &'a str,
        fill: bool,
        ordinal: Option<&'a str>,
    },
    Text(String),
}

fn pieces(format: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut rest = format;
    let mut fill = true;
    while !rest.is_empty() {
        if rest.len() >= 2 && rest.is_char_boundary(2) && rest[..2].eq_ignore_ascii_case("FM") {
            fill = false;
            rest = &rest[2..];
            continue;
        }
        if let Some(after) = rest.strip_prefix("\\\"") {
            pieces.push(Piece::Text("\"".to_owned()));
            rest = after;
            continue;
        }
        if let Some(after) = rest.strip_prefix('"') {
            let mut text = String::new();
            let mut characters = after.char_indices();
            let mut end = after.len();
            while let Some((index, character)) = characters.next() {
                match character {
                    '"' => {
                        end = index + 1;
                        break;
                    }
                    '\\' => text.extend(characters.next().map(|next| next.1)),
                    other => text.push(other),
                }
            }
            pieces.push(Piece::Text(text));
            rest = &after[end..];
            continue;
        }
        let field = FIELDS.iter().find(|field| {
            rest.len() >= field.len()
                && rest.is_char_boundary(field.len())
                && rest[..field.len()].eq_ignore_ascii_case(field)
        });
        let Some(name) = field else {
            let mut characters = rest.chars();
            pieces.push(Piece::Text(characters.next().map(String::from).unwrap_or_default()));
            rest = characters.as_str();
            continue;
        };
        let written = &rest[..name.len()];
        rest = &rest[name.len()..];
        if matches!(*name, "FX" | "TM" | "SP") {
            continue;
        }
        let ordinal =
            (rest.len() >= 2 && rest.is_char_boundary(2) && rest[..2].eq_ignore_ascii_case("TH")).then(|| &rest[..2]);
        if ordinal.is_some() {
            rest = &rest[2..];
        }
        pieces.push(Piece::Field { name, written, fill, ordinal });
        fill = true;
    }
    pieces
}

/// A word in the case that the pattern is written in.
fn cased(word: &str, written: &str) -> String {
    if written.chars().all(|c| !c.is_lowercase()) {
        word.to_uppercase()
    } else if written.chars().all(|c| !c.is_uppercase()) {
        word.to_lowercase()
    } else {
        word.to_owned()
    }
}

/// `moment` as `format` says.
pub fn write(format: &str, moment: &Moment) -> String {
    let mut out = String::new();
    for piece in pieces(format) {
        match piece {
            Piece::Text(text) => out.push_str(&text),
            Piece::Field { name, written, fill, ordinal } => {
                let start = out.len();
                write_field(&mut out, name, written, fill, moment);
                if let Some(ordinal) = ordinal {
                    let number: i64 = out[start..].trim().parse().unwrap_or(0);
                    out.push_str(&cased(ordinal_suffix(number), ordinal));
                }
            }
        }
    }
    out
}

fn ordinal_suffix(number: i64) -> &'static str {
    match (number.abs() % 10, number.abs() % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    }
}

fn write_field(out: &mut String, name: &str, written: &str, fill: bool, m: &Moment) {
    let number = |out: &mut String, value: i64, width: usize| {
        if fill && value < 0 {
            out.push_str(&format!("-{:0width$}", -value));
        } else if fill {
            out.push_str(&format!("{value:0width$}"));
        } else {
            out.push_str(&value.to_string());
        }
    };
    let word = |out: &mut String, word: &str, width: usize| {
        let word = cased(word, written);
        out.push_str(&word);
        if fill {
            out.extend(std::iter::repeat_n(' ', width.saturating_sub(word.chars().count())));
        }
    };
    // Years before the first are counted from 1 BC.
    let year = if m.date.is_some() && m.year <= 0 { 1 - m.year } else { m.year };
    let iso_year = m.date.map_or(year, |date| i64::from(date.iso_week().year()));
    let hour12 = if m.hour % 12 == 0 { 12 } else { m.hour % 12 };
    let month_index = (m.month - 1).clamp(0, 11) as usize;
    let weekday = m.date.map(|date| date.weekday().num_days_from_sunday() as usize);
    let day_of_year = m.date.map_or(m.day, |date| i64::from(date.ordinal()));
    match name {
        "HH24" => number(out, m.hour, 2),
        "HH" | "HH12" => number(out, hour12, 2),
        "MI" => number(out, m.minute, 2),
        "SS" => number(out, m.second, 2),
        "MS" => number(out, m.micros / 1_000, 3),
        "US" => number(out, m.micros, 6),
        "FF1" | "FF2" | "FF3" | "FF4" | "FF5" | "FF6" => {
            let digits = format!("{:06}", m.micros);
            out.push_str(&digits[..usize::from(name.as_bytes()[2] - b'0')]);
        }
        "SSSS" | "SSSSS" => number(out, m.hour * 3600 + m.minute * 60 + m.second, 1),
        "AM" | "PM" => out.push_str(&cased(if m.hour % 24 >= 12 { "PM" } else { "AM" }, written)),
        "A.M." | "P.M." => out.push_str(&cased(if m.hour % 24 >= 12 { "P.M." } else { "A.M." }, written)),
        "BC" | "AD" => out.push_str(&cased(if m.year <= 0 { "BC" } else { "AD" }, written)),
        "B.C." | "A.D." => out.push_str(&cased(if m.year <= 0 { "B.C." } else { "A.D." }, written)),
        "Y,YYY" => out.push_str(&format!("{},{:03}", year / 1000, year % 1000)),
        "YYYY" => number(out, year, 4),
        "YYY" => number(out, year % 1000, 3),
        "YY" => number(out, year % 100, 2),
        "Y" => number(out, year % 10, 1),
        "IYYY" => number(out, iso_year, 4),
        "IYY" => number(out, iso_year % 1000, 3),
        "IY" => number(out, iso_year % 100, 2),
        "I" => number(out, iso_year % 10, 1),
        "MONTH" => word(out, MONTHS[month_index], 9),
        "MON" => word(out, &MONTHS[month_index][..3], 3),
        "MM" => number(out, m.month, 2),
        "RM" => {
            let roman = cased(ROMAN[month_index], written);
            out.push_str(&if fill { format!("{roman:<4}") } else { roman });
        }
        "DAY" => word(out, weekday.map_or("", |day| DAYS[day]), 9),
        "DY" => word(out, weekday.map_or("", |day| &DAYS[day][..3]), 3),
        "DDD" => number(out, day_of_year, 3),
        "IDDD" => {
            let day = m.date.map_or(day_of_year, |date| {
                i64::from(date.iso_week().week0()) * 7 + i64::from(date.weekday().number_from_monday())
            });
            number(out, day, 3);
        }
        "DD" => number(out, m.day, 2),
        "D" => number(out, weekday.map_or(0, |day| day as i64 + 1), 1),
        "ID" => number(out, m.date.map_or(0, |date| i64::from(date.weekday().number_from_monday())), 1),
        "W" => number(out, (m.day - 1) / 7 + 1, 1),
        "WW" => number(out, (day_of_year - 1) / 7 + 1, 2),
        "IW" => number(out, m.date.map_or(0, |date| i64::from(date.iso_week().week())), 2),
        "CC" => number(out, (year + 99) / 100, 2),
        // Julian day 2,440,588 is 1970-01-01.
        "J" => number(out, m.date.map_or(0, |date| i64::from(date.num_days_from_ce()) + 1_721_425), 1),
        "Q" => number(out, (m.month - 1) / 3 + 1, 1),
        "TZ" => {
            if let Some((zone, _)) = &m.zone {
                out.push_str(&cased(zone, written));
            }
        }
        "TZH" | "TZM" | "OF" => {
            let seconds = m.zone.as_ref().map_or(0, |zone| zone.1);
            let sign = if seconds < 0 { '-' } else { '+' };
            let (hours, minutes) = (seconds.abs() / 3600, seconds.abs() / 60 % 60);
            match name {
                "TZM" => out.push_str(&format!("{minutes:02}")),
                "OF" if minutes != 0 => out.push_str(&format!("{sign}{hours:02}:{minutes:02}")),
                _ => out.push_str(&format!("{sign}{hours:02}")),
            }
        }
        _ => {}
    }
}

/// What a pattern found in a text.
pub struct Read {
    pub time: NaiveDateTime,
    pub offset_seconds: Option<i32>,
}

#[derive(Default)]
struct Found {
    year: Option<i64>,
    month: Option<i64>,
    day: Option<i64>,
    day_of_year: Option<i64>,
    hour: i64,
    hour12: Option<i64>,
    minute: i64,
    second: i64,
    micros: i64,
    afternoon: Option<bool>,
    before_christ: bool,
    century: Option<i64>,
    julian: Option<i64>,
    iso_year: Option<i64>,
    iso_week: Option<i64>,
    iso_day: Option<i64>,
    seconds_of_day: Option<i64>,
    zone_hours: Option<(i64, bool)>,
    zone_minutes: i64,
}

/// Reads `text` as `format` says.
pub fn read(text: &str, format: &str) -> Result<Read> {
    let mut found = Found::default();
    let mut rest = text;
    let pieces = pieces(format);
    for (index, piece) in pieces.iter().enumerate() {
        match piece {
            Piece::Text(separator) => {
                // A separator matches any one separator, or none; other text matches itself by its length.
                for character in separator.chars() {
                    match rest.chars().next() {
                        Some(next)
                            if next == character || (!character.is_alphanumeric() && !next.is_alphanumeric()) =>
                        {
                            rest = &rest[next.len_utf8()..];
                        }
                        Some(next) if character.is_alphanumeric() => rest = &rest[next.len_utf8()..],
                        _ => {}
                    }
                }
            }
            Piece::Field { name, ordinal, fill, .. } => {
                if !matches!(*name, "TZH") {
                    rest = rest.trim_start();
                }
                if rest.is_empty() {
                    break;
                }
                // A number is as wide as its field where another field follows at once, else as long as it goes.
                let adjacent = matches!(pieces.get(index + 1), Some(Piece::Field { .. }));
                read_field(name, &mut rest, &mut found, adjacent && *fill)?;
                if ordinal.is_some() && rest.len() >= 2 && rest.is_char_boundary(2) {
                    rest = &rest[2..];
                }
            }
        }
    }
    found.settle(text)
}

fn bad_value(text: &str, name: &str) -> DataFusionError {
    sql_error(SqlState::INVALID_DATETIME_FORMAT, format!("invalid value \"{text}\" for \"{name}\""))
}

fn out_of_range(text: &str) -> DataFusionError {
    sql_error(SqlState::DATETIME_FIELD_OVERFLOW, format!("date/time field value out of range: \"{text}\""))
}

fn take_number(rest: &mut &str, width: usize, name: &str) -> Result<(i64, usize)> {
    let negative = rest.starts_with('-');
    let digits_start = usize::from(negative || rest.starts_with('+'));
    let count = rest[digits_start..].bytes().take(width).take_while(u8::is_ascii_digit).count();
    let end = digits_start + count;
    let value: i64 = rest[digits_start..end].parse().map_err(|_| {
        let word: String = rest.chars().take(width.min(10)).collect();
        bad_value(&word, name)
    })?;
    *rest = &rest[end..];
    Ok((if negative { -value } else { value }, count))
}

fn take_word(rest: &mut &str, words: &[&str], length: Option<usize>) -> Option<usize> {
    let index = words.iter().position(|word| {
        let word = &word[..length.unwrap_or(word.len()).min(word.len())];
        rest.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word))
    })?;
    *rest = &rest[length.unwrap_or(words[index].len()).min(words[index].len())..];
    Some(index)
}

fn read_field(name: &str, rest: &mut &str, found: &mut Found, adjacent: bool) -> Result<()> {
    let wide = |width: usize| if adjacent { width } else { 18 };
    match name {
        "YYYY" | "IYYY" => {
            let (value, _) = take_number(rest, wide(4), name)?;
            if name == "YYYY" { found.year = Some(value) } else { found.iso_year = Some(value) }
        }
        "Y,YYY" => {
            let (thousands, _) = take_number(rest, 3, name)?;
            *rest = rest.strip_prefix(',').unwrap_or(rest);
            let (units, _) = take_number(rest, 3, name)?;
            found.year = Some(thousands * 1000 + units);
        }
        "YYY" | "YY" | "Y" | "IYY" | "IY" | "I" => {
            let (value, digits) = take_number(rest, wide(name.len()), name)?;
            // Short years lie between 1970 and 2069.
            let year = match digits {
                0..=2 => {
                    if value < 70 {
                        value + 2000
                    } else {
                        value + 1900
                    }
                }
                3 => {
                    if value < 520 {
                        value + 2000
                    } else {
                        value + 1000
                    }
                }
                _ => value,
            };
            if name.starts_with('I') { found.iso_year = Some(year) } else { found.year = Some(year) }
        }
        "MM" => found.month = Some(take_number(rest, 2, name)?.0),
        "MONTH" | "MON" => {
            let length = (name == "MON").then_some(3);
            let index = take_word(rest, &MONTHS, length).or_else(|| take_word(rest, &MONTHS, Some(3)));
            found.month =
                Some(index.ok_or_else(|| bad_value(rest.split_whitespace().next().unwrap_or(""), name))? as i64 + 1);
        }
        "RM" => {
            // Longer numerals first, so that VIII is not read as V.
            let mut numerals: Vec<usize> = (0..12).collect();
            numerals.sort_by_key(|&index| std::cmp::Reverse(ROMAN[index].len()));
            let index = numerals
                .into_iter()
                .find(|&i| rest.get(..ROMAN[i].len()).is_some_and(|t| t.eq_ignore_ascii_case(ROMAN[i])));
            let index = index.ok_or_else(|| bad_value(rest, name))?;
            *rest = &rest[ROMAN[index].len()..];
            found.month = Some(index as i64 + 1);
        }
        "DD" => found.day = Some(take_number(rest, 2, name)?.0),
        "DDD" => found.day_of_year = Some(take_number(rest, 3, name)?.0),
        "DAY" | "DY" => {
            let length = (name == "DY").then_some(3);
            if take_word(rest, &DAYS, length).or_else(|| take_word(rest, &DAYS, Some(3))).is_none() {
                return Err(bad_value(rest.split_whitespace().next().unwrap_or(""), name));
            }
        }
        "D" | "W" | "WW" | "Q" => drop(take_number(rest, 2, name)?),
        "ID" => found.iso_day = Some(take_number(rest, 1, name)?.0),
        "IW" => found.iso_week = Some(take_number(rest, 2, name)?.0),
        "HH24" => found.hour = take_number(rest, 2, name)?.0,
        "HH" | "HH12" => {
            let hour = take_number(rest, 2, name)?.0;
            if !(1..=12).contains(&hour) {
                return Err(sql_error(
                    SqlState::INVALID_DATETIME_FORMAT,
                    format!("hour \"{hour}\" is invalid for the 12-hour clock"),
                ));
            }
            found.hour12 = Some(hour);
        }
        "MI" => found.minute = take_number(rest, 2, name)?.0,
        "SS" => found.second = take_number(rest, 2, name)?.0,
        "SSSS" | "SSSSS" => found.seconds_of_day = Some(take_number(rest, 5, name)?.0),
        "MS" | "US" | "FF1" | "FF2" | "FF3" | "FF4" | "FF5" | "FF6" => {
            let width = match name {
                "MS" => 3,
                "US" => 6,
                _ => usize::from(name.as_bytes()[2] - b'0'),
            };
            let (value, digits) = take_number(rest, width, name)?;
            found.micros += value * 10i64.pow(6 - digits.min(6) as u32);
        }
        "AM" | "PM" | "A.M." | "P.M." => {
            let index = take_word(rest, &["A.M.", "P.M.", "AM", "PM"], None).ok_or_else(|| bad_value(rest, name))?;
            found.afternoon = Some(index % 2 == 1);
        }
        "BC" | "AD" | "B.C." | "A.D." => {
            let index = take_word(rest, &["B.C.", "A.D.", "BC", "AD"], None).ok_or_else(|| bad_value(rest, name))?;
            found.before_christ = index % 2 == 0;
        }
        "CC" => found.century = Some(take_number(rest, 2, name)?.0),
        "J" => found.julian = Some(take_number(rest, 9, name)?.0),
        "TZH" => {
            let negative = rest.starts_with('-');
            found.zone_hours = Some((take_number(rest, 2, name)?.0.abs(), negative));
        }
        "TZM" => found.zone_minutes = take_number(rest, 2, name)?.0,
        "OF" => {
            let negative = rest.starts_with('-');
            found.zone_hours = Some((take_number(rest, 2, name)?.0.abs(), negative));
            if let Some(after) = rest.strip_prefix(':') {
                *rest = after;
                found.zone_minutes = take_number(rest, 2, name)?.0;
            }
        }
        _ => {
            return Err(sql_error(
                SqlState::FEATURE_NOT_SUPPORTED,
                format!("formatting field \"{name}\" is only supported in to_char"),
            ));
        }
    }
    Ok(())
}

impl Found {
    fn settle(self, text: &str) -> Result<Read> {
        let mut year = self.year.or(self.century.map(|century| (century - 1) * 100 + 1)).unwrap_or(1);
        if self.year.is_none() && self.century.is_none() && self.julian.is_none() && self.iso_year.is_none() {
            // PostgreSQL's year 0 is 1 BC.
            year = 0;
        }
        if self.before_christ {
            year = 1 - year;
        }
        let year = i32::try_from(year).map_err(|_| out_of_range(text))?;
        let date = if let Some(julian) = self.julian {
            i32::try_from(julian - 1_721_425).ok().and_then(NaiveDate::from_num_days_from_ce_opt)
        } else if let Some(iso_year) = self.iso_year {
            let week = u32::try_from(self.iso_week.unwrap_or(1)).map_err(|_| out_of_range(text))?;
            let day = chrono::Weekday::try_from((self.iso_day.unwrap_or(1) - 1).clamp(0, 6) as u8)
                .unwrap_or(chrono::Weekday::Mon);
            i32::try_from(iso_year).ok().and_then(|year| NaiveDate::from_isoywd_opt(year, week, day))
        } else if let Some(day) = self.day_of_year {
            u32::try_from(day).ok().and_then(|day| NaiveDate::from_yo_opt(year, day))
        } else {
            let month = u32::try_from(self.month.unwrap_or(1)).ok();
            let day = u32::try_from(self.day.unwrap_or(1)).ok();
            month.zip(day).and_then(|(month, day)| NaiveDate::from_ymd_opt(year, month, day))
        };
        let hour = match (self.hour12, self.afternoon) {
            (Some(hour), Some(afternoon)) => hour % 12 + if afternoon { 12 } else { 0 },
            (Some(hour), None) => hour % 12,
            (None, _) => self.hour,
        };
        let (hour, minute, second) = match self.seconds_of_day {
            Some(seconds) => (seconds / 3600, seconds / 60 % 60, seconds % 60),
            None => (hour, self.minute, self.second),
        };
        let part = |value: i64| u32::try_from(value).ok();
        let time = part(hour)
            .zip(part(minute))
            .zip(part(second))
            .zip(part(self.micros))
            .and_then(|(((hour, minute), second), micros)| date?.and_hms_micro_opt(hour, minute, second, micros));
        let offset_seconds = self.zone_hours.map(|(hours, negative)| {
            let seconds = (hours * 3600 + self.zone_minutes * 60) as i32;
            if negative { -seconds } else { seconds }
        });
        Ok(Read { time: time.ok_or_else(|| out_of_range(text))?, offset_seconds })
    }
}
