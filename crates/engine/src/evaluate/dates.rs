//! Parts of dates and timestamps.

use super::arithmetic::leaves;
use crate::expr::DatePart;
use crate::simd::map;
use crate::types::Class;
use crate::vector::{Values, Vector};
use tidepool_base::{Error, Result};

pub const DAY_US: i64 = 86_400_000_000;

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

/// Days on either side of 1970-01-01 that [`fields`] works for: half a million years and more.
const NEAR_DAYS: i64 = 1 << 29;

/// `n / DIVISOR` as a product, for `n` below 2^32: `SHIFT` is such that no quotient comes out wrong.
#[inline(always)]
fn quotient<const DIVISOR: u64, const SHIFT: u32>(n: u64) -> u64 {
    (n * ((1 << SHIFT) / DIVISOR + 1)) >> SHIFT
}

/// Year, month from 1 on, and day of the month from 0 on, of a day within [`NEAR_DAYS`]: the algorithm of Neri and
/// Schneider ("Euclidean affine functions and their application to calendar algorithms", 2022), all in products of 32
/// bits, which SIMD has.
#[inline(always)]
fn fields(days: i64) -> (i64, u64, u64) {
    /// Periods of 400 years that are added so that no count is negative.
    const SHIFT: i64 = 3_675;
    let n = (days + 719_468 + SHIFT * 146_097) as u64;
    let n1 = 4 * n + 3;
    let century = quotient::<146_097, 49>(n1);
    let of_century = (n1 - century * 146_097) >> 2;
    let p2 = 2_939_745 * (4 * of_century + 3);
    let year = 100 * century + (p2 >> 32);
    let of_year = quotient::<11_758_980, 55>(p2 & 0xFFFF_FFFF);
    let n3 = 2_141 * of_year + 197_913;
    // A year begins in March here.
    let is_next = of_year >= 306;
    let month = (n3 >> 16) - if is_next { 12 } else { 0 };
    let day = quotient::<2_141, 32>(n3 & 0xFFFF);
    (year as i64 - SHIFT * 400 + i64::from(is_next), month, day)
}

fn near(part: DatePart, days: &[i64]) -> Vec<i64> {
    match part {
        DatePart::Year => map(days, |day| fields(day).0),
        DatePart::Quarter => map(days, |day| (((fields(day).1 + 2) * 86) >> 8) as i64),
        DatePart::Month => map(days, |day| fields(day).1 as i64),
        DatePart::Day => map(days, |day| fields(day).2 as i64 + 1),
        DatePart::DayOfWeek => map(days, |day| {
            // A multiple of 7 above what days may be below 0.
            let n = (day + 4 + 7 * (1 << 27)) as u64;
            (n - quotient::<7, 34>(n) * 7) as i64
        }),
        part => days.iter().map(|day| part_of(part, *day)).collect(),
    }
}

/// Numbers below it floats hold exactly, and the nearest float to a quotient of theirs is on the same side of each whole
/// number as the quotient.
const EXACT: i64 = 1 << 52;

#[inline(always)]
fn floor(value: i64, unit: i64) -> i64 {
    (value as f64 / unit as f64).floor() as i64
}

/// Whole days, towards the past.
fn days_of(micros: &[i64]) -> Vec<i64> {
    if leaves(micros, -EXACT, EXACT) {
        return micros.iter().map(|micros| micros.div_euclid(DAY_US)).collect();
    }
    map(micros, |micros| floor(micros, DAY_US))
}

/// How many units have passed of what each value is in.
fn within(micros: &[i64], of: i64, unit: i64) -> Vec<i64> {
    if leaves(micros, -EXACT, EXACT) {
        return micros.iter().map(|micros| micros.rem_euclid(of) / unit).collect();
    }
    map(micros, |micros| floor(micros - floor(micros, of) * of, unit))
}

/// The part of each value, as an integer or as a float.
pub fn part(part: DatePart, is_date: bool, vector: &Vector, class: Class) -> Result<Vector> {
    let values = vector.as_ints()?;
    let parts: Vec<i64> = match part {
        DatePart::Hour | DatePart::Minute if is_date => vec![0; values.len()],
        DatePart::Hour => within(values, DAY_US, 3_600_000_000),
        DatePart::Minute => within(values, 3_600_000_000, 60_000_000),
        part => {
            let of_timestamps = if is_date { None } else { Some(days_of(values)) };
            let days = of_timestamps.as_deref().unwrap_or(values);
            if leaves(days, -NEAR_DAYS, NEAR_DAYS) {
                // A value of a NULL may be anything: what is past all dates becomes some date.
                days.iter().map(|days| part_of(part, (*days).clamp(-(1 << 40), 1 << 40))).collect()
            } else {
                near(part, days)
            }
        }
    };
    let values = match class {
        Class::Int => Values::Int(parts.into()),
        Class::Float => Values::Float(parts.into_iter().map(|part| part as f64).collect()),
        _ => return Err(Error::internal("a date part that is no number")),
    };
    Ok(Vector { values, valid: vector.valid.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_agree() {
        let eras = (-NEAR_DAYS..=NEAR_DAYS).step_by(146_097 * 97 + 31);
        let ends = [-NEAR_DAYS, NEAR_DAYS - 146_097];
        let days = (-800_000..800_000).chain(eras).chain(ends.into_iter().flat_map(|start| start..=start + 146_097));
        let days: Vec<i64> = days.collect();
        use DatePart::*;
        for part in [Year, Quarter, Month, Day, DayOfWeek, DayOfYear] {
            for (day, near) in days.iter().zip(near(part, &days)) {
                assert_eq!(near, part_of(part, *day), "{part:?} of {day}");
            }
        }
        // Quotients are wrong first where one more is due.
        let centuries = (0..u64::from(u32::MAX) / 146_097).map(|century| century * 146_097);
        for n in centuries.flat_map(|n| [n, n + 1, n + 146_096]) {
            assert_eq!(quotient::<146_097, 49>(n), n / 146_097);
        }
    }

    #[test]
    fn days_are_whole_towards_the_past() {
        let edges = (-52_000..52_000).step_by(7).map(|day: i64| day * DAY_US);
        let micros: Vec<i64> = edges.flat_map(|micros| [micros - 1, micros, micros + 1]).collect();
        let expected: Vec<i64> = micros.iter().map(|micros| micros.div_euclid(DAY_US)).collect();
        assert!(!leaves(&micros, -(1 << 52), 1 << 52));
        assert_eq!(days_of(&micros), expected);
        let expected: Vec<i64> = micros.iter().map(|micros| micros.rem_euclid(DAY_US) / 3_600_000_000).collect();
        assert_eq!(within(&micros, DAY_US, 3_600_000_000), expected);
        let expected: Vec<i64> = micros.iter().map(|micros| micros.rem_euclid(3_600_000_000) / 60_000_000).collect();
        assert_eq!(within(&micros, 3_600_000_000, 60_000_000), expected);
    }
}
