//! Dates, times and intervals: PostgreSQL's arithmetic and constructors.

use super::Type::*;
use super::{Call, Function, invalid, sql_error};
use crate::catalog::value::Value;
use crate::errors::carry;
use chrono::{DateTime, Datelike, Days, Duration, Months, NaiveDate, NaiveDateTime, Timelike, Utc};
use datafusion::arrow::datatypes::{DataType, IntervalMonthDayNano, TimeUnit};
use datafusion::common::{DataFusionError, Result};
use tidepool_base::SqlState;
use tidepool_database::text::Zone;

const NS_PER_DAY: i64 = 86_400_000_000_000;
const US_PER_DAY: i64 = 86_400_000_000;

pub fn functions() -> Vec<Function> {
    vec![
        Function::new("now", &[&[]], "timestamptz", |call, _| Ok(call.facts()?.transaction_start.into()))
            .alias("current_timestamp")
            .alias("transaction_timestamp")
            .stable(),
        Function::new("statement_timestamp", &[&[]], "timestamptz", |call, _| Ok(call.facts()?.statement_start.into()))
            .stable(),
        Function::new("clock_timestamp", &[&[]], "timestamptz", |_, _| Ok(Utc::now().into())).volatile(),
        Function::new("localtimestamp", &[&[]], "timestamp", |call, _| {
            let zone = session_zone(call)?;
            Ok(Value::Timestamp(
                local(call.facts()?.transaction_start.timestamp_micros(), zone)?.and_utc().timestamp_micros(),
            ))
        })
        .stable(),
        Function::new("timeofday", &[&[]], "text", |_, _| {
            Ok(Utc::now().format("%a %b %d %H:%M:%S%.6f %Y UTC").to_string().into())
        })
        .volatile(),
        Function::new(
            "age",
            &[&[Timestamp], &[TimestampTz], &[Timestamp, Timestamp], &[TimestampTz, TimestampTz]],
            "interval",
            |call, args| {
                let zoned = matches!(call.arg_types.first(), Some(DataType::Timestamp(_, Some(_))));
                let zone = session_zone(call)?;
                // Instants are counted between on the session's clock.
                let micros = |value: &Value| match value {
                    Value::Timestamp(micros) if zoned => local(*micros, zone).map(micros_of),
                    Value::Timestamp(micros) => Ok(*micros),
                    _ => Ok(0),
                };
                match args {
                    [later, earlier] => age(micros(later)?, micros(earlier)?),
                    [earlier] => {
                        let today = local(call.facts()?.transaction_start.timestamp_micros(), zone)?.date();
                        age(micros_of(today.and_hms_opt(0, 0, 0).unwrap_or_default()), micros(earlier)?)
                    }
                    _ => Err(invalid("age takes one or two timestamps")),
                }
            },
        )
        .stable(),
        Function::new("justify_hours", &[&[Interval]], "interval", |_, args| {
            let Value::Interval(interval) = args[0] else { return Ok(Value::Null) };
            Ok(Value::Interval(justify_hours(interval)))
        }),
        Function::new("justify_days", &[&[Interval]], "interval", |_, args| {
            let Value::Interval(interval) = args[0] else { return Ok(Value::Null) };
            Ok(Value::Interval(justify_days(interval)))
        }),
        Function::new("justify_interval", &[&[Interval]], "interval", |_, args| {
            let Value::Interval(interval) = args[0] else { return Ok(Value::Null) };
            Ok(Value::Interval(justify_interval(interval)))
        }),
        Function::new("make_timestamp", &[&[Int4, Int4, Int4, Int4, Int4, Float8]], "timestamp", |_, args| {
            make_timestamp(args).map(|time| Value::Timestamp(micros_of(time)))
        }),
        Function::new(
            "make_timestamptz",
            &[&[Int4, Int4, Int4, Int4, Int4, Float8], &[Int4, Int4, Int4, Int4, Int4, Float8, Text]],
            "timestamptz",
            |call, args| {
                let zone = match args.get(6) {
                    Some(zone) => parse_zone(zone.as_str())?,
                    None => session_zone(call)?,
                };
                Ok(Value::Timestamp(to_utc(make_timestamp(args)?, zone)))
            },
        )
        .stable(),
        Function::new(
            "make_interval",
            &[
                &[],
                &[Int4],
                &[Int4, Int4],
                &[Int4, Int4, Int4],
                &[Int4, Int4, Int4, Int4],
                &[Int4, Int4, Int4, Int4, Int4],
                &[Int4, Int4, Int4, Int4, Int4, Int4],
                &[Int4, Int4, Int4, Int4, Int4, Int4, Float8],
            ],
            "interval",
            |_, args| {
                let part = |index: usize| args.get(index).map_or(0, Value::as_int);
                let overflow = || sql_error(SqlState::DATETIME_FIELD_OVERFLOW, "interval out of range");
                let months = i32::try_from(part(0) * 12 + part(1)).map_err(|_| overflow())?;
                let days = i32::try_from(part(2) * 7 + part(3)).map_err(|_| overflow())?;
                let seconds = args.get(6).map_or(0.0, Value::as_float) * 1e9;
                let nanoseconds = (part(4) * 3600 + part(5) * 60).checked_mul(1_000_000_000).ok_or_else(overflow)?;
                let nanoseconds = nanoseconds.checked_add(seconds as i64).ok_or_else(overflow)?;
                Ok(Value::Interval(IntervalMonthDayNano::new(months, days, nanoseconds)))
            },
        ),
        Function::new(
            "isfinite",
            &[&[Date], &[Timestamp], &[TimestampTz], &[Interval]],
            "bool",
            |_, _| Ok(true.into()),
        ),
        Function::new("pg_extract_second", &[&[Timestamp], &[TimestampTz], &[Interval]], "numeric", |_, args| {
            // No zone is off by a part of a minute nowadays.
            let micros = match args[0] {
                Value::Timestamp(micros) => micros.rem_euclid(60_000_000),
                Value::Interval(interval) => interval.nanoseconds / 1_000 % 60_000_000,
                _ => return Ok(Value::Null),
            };
            Ok(Value::Decimal(micros.into(), 6))
        })
        .returning(|_| Ok(DataType::Decimal128(8, 6))),
        extract(),
        // `date_trunc` of the units that DataFusion has not.
        Function::new("pg_trunc", &[&[Text, Timestamp], &[Text, TimestampTz]], "timestamp", |call, args| {
            let Value::Timestamp(micros) = args[1] else { return Ok(Value::Null) };
            let zone = match call.arg_types.get(1) {
                Some(DataType::Timestamp(_, Some(_))) => session_zone(call)?,
                _ => Zone::UTC,
            };
            let year = local(micros, zone)?.year();
            // Decades begin with a year that ends in 0, the others with one that ends in 1; the year 0 is 1 BC.
            let first = match args[0].as_str() {
                "decade" => year.div_euclid(10) * 10,
                "century" => (year - 1).div_euclid(100) * 100 + 1,
                _ => (year - 1).div_euclid(1000) * 1000 + 1,
            };
            let first = NaiveDate::from_ymd_opt(first, 1, 1).and_then(|date| date.and_hms_opt(0, 0, 0));
            Ok(Value::Timestamp(to_utc(first.ok_or_else(overflow)?, zone)))
        })
        .returning(|types| {
            Ok(match types.get(1) {
                Some(DataType::Timestamp(_, Some(_))) => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
                _ => DataType::Timestamp(TimeUnit::Microsecond, None),
            })
        })
        .stable(),
        Function::new("pg_moved", &[&[TimestampTz, Interval]], "timestamptz", |call, args| {
            let (Value::Timestamp(micros), Value::Interval(interval)) = (&args[0], &args[1]) else {
                return Ok(Value::Null);
            };
            add_interval_in(session_zone(call)?, *micros, interval).map(Value::Timestamp)
        })
        .stable(),
        Function::new("pg_moved_back", &[&[TimestampTz, Interval]], "timestamptz", |call, args| {
            let (Value::Timestamp(micros), Value::Interval(interval)) = (&args[0], &args[1]) else {
                return Ok(Value::Null);
            };
            let back = IntervalMonthDayNano::new(
                interval.months.checked_neg().ok_or_else(overflow)?,
                interval.days.checked_neg().ok_or_else(overflow)?,
                interval.nanoseconds.checked_neg().ok_or_else(overflow)?,
            );
            add_interval_in(session_zone(call)?, *micros, &back).map(Value::Timestamp)
        })
        .stable(),
        // `x AT TIME ZONE z`: to the clock on the wall there, or from it.
        Function::new("timezone", TIME_ZONES, "timestamp", |call, args| {
            let Value::Timestamp(micros) = args[1] else { return Ok(Value::Null) };
            let zone = match &args[0] {
                // As `+hh:mm` of a timestamp, and not as a zone's name has its sign.
                Value::Interval(interval) => zone_of(interval)?,
                name => parse_zone(name.as_str())?,
            };
            Ok(Value::Timestamp(match call.arg_types.get(1) {
                Some(DataType::Timestamp(_, Some(_))) => micros_of(local(micros, zone)?),
                _ => to_utc(naive(micros)?, zone),
            }))
        })
        .returning(|types| {
            Ok(match types.get(1) {
                Some(DataType::Timestamp(_, Some(_))) => DataType::Timestamp(TimeUnit::Microsecond, None),
                _ => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            })
        }),
    ]
}

/// `extract` of what DataFusion's `date_part` does not know.
pub fn extract() -> Function {
    let overloads: &[&[_]] = &[&[Text, Date], &[Text, Timestamp], &[Text, TimestampTz], &[Text, Interval]];
    Function::new("pg_extract", overloads, "numeric", |call, args| {
        let unit = args[0].as_str().to_ascii_lowercase();
        let micros = match (&args[1], call.arg_types.get(1)) {
            (Value::Timestamp(micros), Some(DataType::Timestamp(_, Some(_)))) => {
                let zone = session_zone(call)?;
                match of_offset(&unit, offset_seconds(*micros, zone)) {
                    Some(part) => Some(part),
                    None => of_time(&unit, local(*micros, zone)?),
                }
            }
            (Value::Timestamp(micros), _) => of_time(&unit, naive(*micros)?),
            (Value::Date(days), _) => of_time(&unit, date_of(*days)?.into()),
            (Value::Interval(interval), _) => of_interval(&unit, interval),
            _ => return Ok(Value::Null),
        };
        match (micros, &args[1]) {
            // Whole, at midnight.
            (Some(micros), Value::Date(_)) => Ok(Value::Decimal(micros / 1_000_000, 0)),
            (Some(micros), _) => Ok(Value::Decimal(micros, 6)),
            (None, _) => Err(invalid(format!("unit \"{unit}\" not recognized"))),
        }
    })
    .returning(|types| {
        Ok(match types.get(1) {
            Some(DataType::Date32) => DataType::Decimal128(12, 0),
            _ => DataType::Decimal128(24, 6),
        })
    })
    .stable()
}

/// In millionths, of seconds east of UTC.
fn of_offset(unit: &str, east: i32) -> Option<i128> {
    let whole = match unit {
        "timezone" => east,
        "timezone_hour" => east / 3600,
        "timezone_minute" => east / 60 % 60,
        _ => return None,
    };
    Some(i128::from(whole) * 1_000_000)
}

/// In millionths.
fn of_time(unit: &str, time: NaiveDateTime) -> Option<i128> {
    // There is no year 0: the year before 1 is 1 BC, and centuries count from both.
    let year = time.year();
    let counted = |years: i32| if year > 0 { (year + years - 1) / years } else { (year - years) / years };
    let whole = match unit {
        "century" => counted(100),
        "millennium" => counted(1000),
        "decade" => year.div_euclid(10),
        // The year before 1 is -1.
        "isoyear" => match time.iso_week().year() {
            year @ 1.. => year,
            year => year - 1,
        },
        "julian" => {
            let of_day =
                i128::from(time.time().num_seconds_from_midnight()) * 1_000_000 + i128::from(time.nanosecond() / 1_000);
            return Some(
                i128::from(days_of(time.date()) + 2_440_588) * 1_000_000 + of_day * 1_000_000 / 86_400_000_000,
            );
        }
        _ => return None,
    };
    Some(i128::from(whole) * 1_000_000)
}

/// In millionths.
fn of_interval(unit: &str, interval: &IntervalMonthDayNano) -> Option<i128> {
    let (months, micros) = (interval.months, i128::from(interval.nanoseconds / 1_000));
    let whole = match unit {
        "quarter" => months % 12 / 3 + 1,
        "decade" => months / 120,
        "century" => months / 1200,
        "millennium" => months / 12_000,
        "milliseconds" | "millisecond" | "msec" | "ms" => return Some(micros % 60_000_000 * 1_000),
        "microseconds" | "microsecond" | "usec" | "us" => return Some(micros % 60_000_000 * 1_000_000),
        // A year is 365.25 days, a month without its year 30.
        "epoch" => {
            let days = i128::from(months % 12) * 30 + i128::from(interval.days);
            return Some(i128::from(months / 12) * 31_557_600_000_000 + days * 86_400_000_000 + micros);
        }
        _ => return None,
    };
    Some(i128::from(whole) * 1_000_000)
}

fn overflow() -> DataFusionError {
    sql_error(SqlState::DATETIME_FIELD_OVERFLOW, "timestamp out of range")
}

pub fn naive(micros: i64) -> Result<NaiveDateTime> {
    DateTime::from_timestamp_micros(micros).map(|time| time.naive_utc()).ok_or_else(overflow)
}

pub fn micros_of(time: NaiveDateTime) -> i64 {
    time.and_utc().timestamp_micros()
}

pub fn date_of(days: i32) -> Result<NaiveDate> {
    NaiveDate::from_ymd_opt(1970, 1, 1)
        .and_then(|epoch| epoch.checked_add_signed(Duration::days(i64::from(days))))
        .ok_or_else(overflow)
}

pub fn days_of(date: NaiveDate) -> i32 {
    // chrono's dates span 262,000 years either way: fewer than 2^27 days.
    date.num_days_from_ce() - 719_163
}

pub fn date_text(days: i32) -> String {
    date_of(days).map_or_else(|_| String::new(), |date| date.format("%Y-%m-%d").to_string())
}

pub fn timestamp_text(micros: i64) -> String {
    naive(micros).map_or_else(|_| String::new(), |time| time.format("%Y-%m-%d %H:%M:%S%.f").to_string())
}

/// Whichever way the zone is given.
const TIME_ZONES: &[&[super::Type]] =
    &[&[Text, Timestamp], &[Text, TimestampTz], &[Interval, Timestamp], &[Interval, TimestampTz]];

/// So far east of UTC. 22023 for days and months.
fn zone_of(interval: &IntervalMonthDayNano) -> Result<Zone> {
    if interval.months != 0 || interval.days != 0 {
        let mut text = Vec::new();
        tidepool_database::text::single::write_duration(*interval, &mut text);
        let text = String::from_utf8_lossy(&text);
        return Err(invalid(format!("interval time zone \"{text}\" must not include months or days")));
    }
    i32::try_from(interval.nanoseconds / 1_000_000_000).map(Zone::Fixed).map_err(|_| overflow())
}

pub fn parse_zone(name: &str) -> Result<Zone> {
    Zone::written(name).ok_or_else(|| invalid(format!("time zone \"{name}\" not recognized")))
}

pub fn session_zone(call: &Call<'_>) -> Result<Zone> {
    call.facts()?.settings.shared_text_settings().zone().map_err(carry)
}

/// The clock on the wall in `zone` at an instant.
pub fn local(micros: i64, zone: Zone) -> Result<NaiveDateTime> {
    naive(micros.saturating_add(i64::from(zone.offset_at_utc(micros)) * 1_000_000))
}

/// Seconds east of UTC at an instant.
pub fn offset_seconds(micros: i64, zone: Zone) -> i32 {
    zone.offset_at_utc(micros)
}

/// The instant at which the wall clock in `zone` shows `time`. Twice in a year it shows a time twice or never: then that of
/// standard time, or by the offset that held just before.
pub fn to_utc(time: NaiveDateTime, zone: Zone) -> i64 {
    let micros = micros_of(time);
    micros.saturating_sub(i64::from(zone.offset_at_local(micros)) * 1_000_000)
}

/// An instant moved by an interval: its months and days are counted on the clock of `zone`, before its time.
pub fn add_interval_in(zone: Zone, micros: i64, interval: &IntervalMonthDayNano) -> Result<i64> {
    let mut micros = micros;
    for (months, days) in [(interval.months, 0), (0, interval.days)] {
        if (months, days) != (0, 0) {
            let moved = add_interval(micros_of(local(micros, zone)?), &IntervalMonthDayNano::new(months, days, 0))?;
            micros = to_utc(naive(moved)?, zone);
        }
    }
    add_interval(micros, &IntervalMonthDayNano::new(0, 0, interval.nanoseconds))
}

fn make_timestamp(args: &[Value]) -> Result<NaiveDateTime> {
    let part = |index: usize| args[index].as_int();
    let date = NaiveDate::from_ymd_opt(part(0) as i32, part(1) as u32, part(2) as u32);
    let seconds = args[5].as_float();
    let micros = (seconds * 1e6).round() as i64;
    let range = (0..24).contains(&part(3)) && (0..60).contains(&part(4)) && (0.0..=60.0).contains(&seconds);
    let time = date.filter(|_| range).and_then(|date| date.and_hms_opt(part(3) as u32, part(4) as u32, 0));
    time.and_then(|time| time.checked_add_signed(Duration::microseconds(micros)))
        .ok_or_else(|| sql_error(SqlState::DATETIME_FIELD_OVERFLOW, "date/time field value out of range"))
}

/// A timestamp moved by an interval: months first (the day clipped to the month's last), then days, then time.
pub fn add_interval(micros: i64, interval: &IntervalMonthDayNano) -> Result<i64> {
    let time = naive(micros)?;
    let months = Months::new(interval.months.unsigned_abs());
    let time = if interval.months >= 0 { time.checked_add_months(months) } else { time.checked_sub_months(months) };
    let days = Days::new(u64::from(interval.days.unsigned_abs()));
    let time = time
        .and_then(|time| if interval.days >= 0 { time.checked_add_days(days) } else { time.checked_sub_days(days) });
    time.and_then(|time| time.checked_add_signed(Duration::nanoseconds(interval.nanoseconds)))
        .map(micros_of)
        .ok_or_else(overflow)
}

/// The symbolic difference: years and months, then days of the earlier month, then time.
fn age(later: i64, earlier: i64) -> Result<Value> {
    if later < earlier {
        let Value::Interval(positive) = age(earlier, later)? else { return Ok(Value::Null) };
        return Ok(Value::Interval(IntervalMonthDayNano::new(-positive.months, -positive.days, -positive.nanoseconds)));
    }
    let (late, early) = (naive(later)?, naive(earlier)?);
    let micros_in_day = |time: NaiveDateTime| {
        i64::from(time.num_seconds_from_midnight()) * 1_000_000 + i64::from(time.nanosecond() / 1_000)
    };
    let mut months = (late.year() - early.year()) * 12 + late.month() as i32 - early.month() as i32;
    let mut days = late.day() as i32 - early.day() as i32;
    let mut micros = micros_in_day(late) - micros_in_day(early);
    if micros < 0 {
        micros += US_PER_DAY;
        days -= 1;
    }
    if days < 0 {
        months -= 1;
        days += days_in_month(early.year(), early.month());
    }
    Ok(Value::Interval(IntervalMonthDayNano::new(months, days, micros * 1_000)))
}

fn days_in_month(year: i32, month: u32) -> i32 {
    let next =
        if month == 12 { NaiveDate::from_ymd_opt(year + 1, 1, 1) } else { NaiveDate::from_ymd_opt(year, month + 1, 1) };
    next.and_then(|next| next.pred_opt()).map_or(30, |last| last.day() as i32)
}

fn justify_hours(interval: IntervalMonthDayNano) -> IntervalMonthDayNano {
    let (mut days, mut time) =
        (interval.days + (interval.nanoseconds / NS_PER_DAY) as i32, interval.nanoseconds % NS_PER_DAY);
    if days > 0 && time < 0 {
        time += NS_PER_DAY;
        days -= 1;
    } else if days < 0 && time > 0 {
        time -= NS_PER_DAY;
        days += 1;
    }
    IntervalMonthDayNano::new(interval.months, days, time)
}

fn justify_days(interval: IntervalMonthDayNano) -> IntervalMonthDayNano {
    let (mut months, mut days) = (interval.months + interval.days / 30, interval.days % 30);
    if months > 0 && days < 0 {
        days += 30;
        months -= 1;
    } else if months < 0 && days > 0 {
        days -= 30;
        months += 1;
    }
    IntervalMonthDayNano::new(months, days, interval.nanoseconds)
}

fn justify_interval(interval: IntervalMonthDayNano) -> IntervalMonthDayNano {
    let IntervalMonthDayNano { mut months, mut days, nanoseconds: mut time } = justify_days(justify_hours(interval));
    // All signs alike.
    if months > 0 && (days < 0 || (days == 0 && time < 0)) {
        days += 30;
        months -= 1;
    } else if months < 0 && (days > 0 || (days == 0 && time > 0)) {
        days -= 30;
        months += 1;
    }
    if days > 0 && time < 0 {
        time += NS_PER_DAY;
        days -= 1;
    } else if days < 0 && time > 0 {
        time -= NS_PER_DAY;
        days += 1;
    }
    IntervalMonthDayNano::new(months, days, time)
}
