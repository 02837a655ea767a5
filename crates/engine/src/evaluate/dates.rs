//! Parts of dates and timestamps.

use crate::expr::DatePart;
use crate::types::{Class, ColumnType};
use crate::vector::{Values, Vector};
use arrow_schema::DataType;
use tidepool_base::{Error, Result};

pub const DAY_US: i64 = 86_400_000_000;

/// The widest range of days that a table of their parts is made for.
const TABLE_DAYS: i128 = 32_768;

pub struct Kernel {
    is_date: bool,
    /// The first day's, and the part of each from there on.
    table: Option<(i64, Vec<i16>)>,
}

/// The Gregorian calendar's year, month and day of a day counted from 1970-01-01 on: `civil_from_days` of Howard Hinnant's
/// "chrono-compatible low-level date algorithms" (2013).
pub fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    // Years here begin in March.
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

fn day_of_year(days: i64) -> i64 {
    let (year, month, day) = civil(days);
    let is_leap = year.rem_euclid(4) == 0 && (year.rem_euclid(100) != 0 || year.rem_euclid(400) == 0);
    const BEFORE: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
    BEFORE[(month - 1) as usize] + day + i64::from(is_leap && month > 2)
}

fn part_of(part: DatePart, days: i64) -> i64 {
    match part {
        DatePart::Year => civil(days).0,
        DatePart::Quarter => (civil(days).1 + 2) / 3,
        DatePart::Month => civil(days).1,
        DatePart::Day => civil(days).2,
        DatePart::DayOfWeek => (days + 4).rem_euclid(7),
        DatePart::DayOfYear => day_of_year(days),
        DatePart::Hour | DatePart::Minute => 0,
    }
}

impl Kernel {
    pub fn new(part: DatePart, of: &ColumnType) -> Kernel {
        let is_date = of.data_type == DataType::Date32;
        let table = match of.bounds {
            Some((lower, upper)) if is_date && upper - lower < TABLE_DAYS && lower <= upper => {
                let parts = (lower..=upper).map(|day| i16::try_from(part_of(part, day as i64)));
                parts.collect::<std::result::Result<Vec<i16>, _>>().ok().map(|table| (lower as i64, table))
            }
            _ => None,
        };
        Kernel { is_date, table }
    }
}

/// A value of a NULL may be anything: what is past all dates becomes some date.
#[inline(always)]
fn within(days: i64) -> i64 {
    days.clamp(-(1 << 40), 1 << 40)
}

#[inline(always)]
fn map(values: &[i64], is_date: bool, of_days: impl Fn(i64) -> i64) -> Vec<i64> {
    if is_date {
        values.iter().map(|days| of_days(within(*days))).collect()
    } else {
        values.iter().map(|micros| of_days(micros.div_euclid(DAY_US))).collect()
    }
}

/// The part of each value, as an integer or as a float.
pub fn part(part: DatePart, kernel: &Kernel, vector: &Vector, class: Class) -> Result<Vector> {
    let values = vector.as_ints()?;
    let parts: Vec<i64> = match (part, &kernel.table) {
        (_, Some((first, table))) => {
            let of = |day: &i64| table.get(day.wrapping_sub(*first) as usize).map_or(0, |part| i64::from(*part));
            values.iter().map(of).collect()
        }
        (DatePart::Hour, _) if !kernel.is_date => {
            values.iter().map(|micros| micros.rem_euclid(DAY_US) / 3_600_000_000).collect()
        }
        (DatePart::Minute, _) if !kernel.is_date => {
            values.iter().map(|micros| micros.rem_euclid(3_600_000_000) / 60_000_000).collect()
        }
        (part, _) => map(values, kernel.is_date, |days| part_of(part, days)),
    };
    let values = match class {
        Class::Int => Values::Int(parts.into()),
        Class::Float => Values::Float(parts.into_iter().map(|part| part as f64).collect()),
        _ => return Err(Error::internal("a date part that is no number")),
    };
    Ok(Vector { values, valid: vector.valid.clone() })
}
