//! `to_char`, `to_date`, `to_timestamp` and `to_number` with PostgreSQL's patterns, and `format`.

mod number;
mod pattern;

pub use number::decimal_text;

use super::Type::*;
use super::datetime::{days_of, local, micros_of, naive, offset_seconds, session_zone, to_utc};
use super::{Function, sql_error};
use crate::catalog::value::Value;
use datafusion::arrow::datatypes::DataType;
use pattern::Moment;
use tidepool_base::SqlState;

pub fn functions() -> Vec<Function> {
    vec![
        Function::new("format", &[&[Text], &[Text, Rest]], "text", super::text::format).nullable(),
        Function::new(
            "to_char",
            &[
                &[Timestamp, Text],
                &[TimestampTz, Text],
                &[Interval, Text],
                &[Int8, Text],
                &[Float8, Text],
                &[Numeric, Text],
            ],
            "text",
            |call, args| {
                let format = args[1].as_str();
                Ok(match &args[0] {
                    Value::Timestamp(micros) => {
                        let moment = match call.arg_types.first() {
                            Some(DataType::Timestamp(_, Some(_))) => {
                                let zone = session_zone(call)?;
                                let offset = offset_seconds(*micros, zone);
                                // A zone of hours alone is called what its setting begins with: `<+03>-03`.
                                let setting = call.facts()?.settings.get("timezone").unwrap_or_default();
                                let own = setting.strip_prefix('<').and_then(|rest| rest.split_once('>'));
                                let name = own.map_or_else(|| zone.abbreviation(*micros), |(name, _)| name.to_owned());
                                Moment::of(local(*micros, zone)?).in_zone(name, offset)
                            }
                            _ => Moment::of(naive(*micros)?),
                        };
                        pattern::write(format, &moment).into()
                    }
                    Value::Interval(interval) => pattern::write(format, &Moment::of_interval(interval)).into(),
                    Value::Float(value) if !value.is_finite() => number::special(format, *value).into(),
                    Value::Float(value) => number::write_float(format, *value).into(),
                    Value::Int(value) => number::write(format, i128::from(*value), 0).into(),
                    Value::Decimal(value, scale) => number::write(format, *value, *scale).into(),
                    _ => Value::Null,
                })
            },
        )
        .stable(),
        Function::new("to_date", &[&[Text, Text]], "date", |_, args| {
            Ok(Value::Date(days_of(pattern::read(args[0].as_str(), args[1].as_str())?.time.date())))
        }),
        Function::new("to_timestamp", &[&[Float8], &[Text, Text]], "timestamptz", |call, args| {
            let [text, format] = args else {
                let micros = args[0].as_float() * 1e6;
                if micros.abs() >= i64::MAX as f64 || micros.is_nan() {
                    return Err(sql_error(SqlState::DATETIME_FIELD_OVERFLOW, "timestamp out of range"));
                }
                return Ok(Value::Timestamp(micros.round() as i64));
            };
            let read = pattern::read(text.as_str(), format.as_str())?;
            Ok(Value::Timestamp(match read.offset_seconds {
                Some(offset) => micros_of(read.time) - i64::from(offset) * 1_000_000,
                None => to_utc(read.time, session_zone(call)?),
            }))
        })
        .stable(),
        Function::new("to_number", &[&[Text, Text]], "numeric", |_, args| {
            let (value, scale) = number::read(args[0].as_str(), args[1].as_str())?;
            Ok(Value::Decimal(value, scale))
        })
        .returning(|_| Ok(crate::numerics::NUMERIC)),
    ]
}
