//! `generate_series` as an array, for places where DataFusion's table function cannot stand: in a select list, over an
//! outer query's columns, over timestamps.

use super::Type::*;
use super::datetime::{add_interval_in, session_zone};
use super::{Function, invalid, sql_error};
use crate::catalog::items::Items;
use crate::catalog::value::Value;
use datafusion::arrow::datatypes::{DataType, Field, IntervalMonthDayNano};
use datafusion::common::{Result, plan_err};
use std::sync::Arc;
use tidepool_base::SqlState;
use tidepool_database::text::Zone;

/// As one value, a longer series would be a burden: a table function makes those.
const ITEMS_MAX: usize = 10_000_000;

pub fn functions() -> Vec<Function> {
    vec![
        Function::new(
            "pg_series",
            &[
                &[Int4, Int4],
                &[Int4, Int4, Int4],
                &[Int8, Int8],
                &[Int8, Int8, Int8],
                &[Timestamp, Timestamp, Interval],
                &[TimestampTz, TimestampTz, Interval],
            ],
            "_int8",
            |call, args| {
                let zoned = matches!(call.arg_types.first(), Some(DataType::Timestamp(_, Some(_))));
                series(args, if zoned { session_zone(call)? } else { Zone::UTC })
            },
        )
        .stable()
        .returning(|types| match types.first() {
            Some(item) => Ok(DataType::List(Arc::new(Field::new_list_field(item.clone(), true)))),
            None => plan_err!("generate_series takes two or three arguments"),
        }),
    ]
}

/// Days of timestamps are those of the clock in `zone`.
fn series(args: &[Value], zone: Zone) -> Result<Value> {
    let mut items = Items::default();
    let too_long =
        || sql_error(SqlState::PROGRAM_LIMIT_EXCEEDED, format!("a series here is limited to {ITEMS_MAX} values"));
    match (&args[0], &args[1], args.get(2)) {
        (Value::Int(start), Value::Int(stop), step) => {
            let step = step.map_or(1, Value::as_int);
            if step == 0 {
                return Err(invalid("step size cannot equal zero"));
            }
            let mut current = *start;
            while if step > 0 { current <= *stop } else { current >= *stop } {
                if items.len() == ITEMS_MAX {
                    return Err(too_long());
                }
                items.push(Value::Int(current))?;
                match current.checked_add(step) {
                    Some(next) => current = next,
                    None => break,
                }
            }
        }
        (Value::Timestamp(start), Value::Timestamp(stop), Some(Value::Interval(step))) => {
            let forward = length(step);
            if forward == 0 {
                return Err(invalid("step size cannot equal zero"));
            }
            let mut current = *start;
            while if forward > 0 { current <= *stop } else { current >= *stop } {
                if items.len() == ITEMS_MAX {
                    return Err(too_long());
                }
                items.push(Value::Timestamp(current))?;
                current = add_interval_in(zone, current, step)?;
            }
        }
        _ => return Err(invalid("generate_series takes integers, or timestamps and an interval")),
    }
    Ok(Value::List(items.into_vec()))
}

/// An interval's length for comparison: months of 30 days, in nanoseconds.
fn length(interval: &IntervalMonthDayNano) -> i128 {
    const DAY_NS: i128 = 86_400_000_000_000;
    (i128::from(interval.months) * 30 + i128::from(interval.days)) * DAY_NS + i128::from(interval.nanoseconds)
}
