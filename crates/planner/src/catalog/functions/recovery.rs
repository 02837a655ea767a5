//! What PostgreSQL's clients ask of roles: whether this is a standby, how far the log has come, and its promotion. And `pg_lsn`,
//! which is held as its text.

use super::Type::{Any, Numeric, Text};
use super::{Function, sql_error};
use crate::catalog::value::Value;
use crate::errors::carry;
use datafusion::arrow::datatypes::DataType;
use datafusion::common::Result;
use tidepool_base::SqlState;
use tidepool_database::Lsn;
use tidepool_database::text::numeric::NUMERIC;

fn lsn(value: &Value) -> Result<Lsn> {
    value.as_str().parse().map_err(carry)
}

/// A position so many bytes on.
fn moved(from: &Value, by: &Value, sign: i128) -> Result<Value> {
    let Value::Decimal(unscaled, scale) = by else {
        return Ok(match by {
            Value::Int(by) => shifted(lsn(from)?, sign * i128::from(*by))?,
            _ => Value::Null,
        });
    };
    let by = crate::catalog::value::rescale(*unscaled, *scale, 0)?;
    shifted(lsn(from)?, sign * by)
}

fn shifted(from: Lsn, by: i128) -> Result<Value> {
    let to = u64::try_from(i128::from(from.0) + by);
    let to = to.map_err(|_| sql_error(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "pg_lsn out of range"))?;
    Ok(Lsn(to).to_string().into())
}

fn numeric(_: &[DataType]) -> Result<DataType> {
    Ok(NUMERIC)
}

pub fn functions() -> Vec<Function> {
    vec![
        Function::new("pg_is_in_recovery", &[&[]], "bool", |call, _| {
            Ok(call.facts()?.planner.database().is_following().into())
        })
        .volatile(),
        Function::new("pg_lsn_in", &[&[Text]], "pg_lsn", |_, args| Ok(lsn(&args[0])?.to_string().into())),
        Function::new("pg_lsn", &[&[Numeric]], "pg_lsn", |_, args| moved(&"0/0".into(), &args[0], 1)),
        Function::new("pg_lsn_cmp", &[&[Text, Text]], "int4", |_, args| {
            Ok((lsn(&args[0])?.cmp(&lsn(&args[1])?) as i32).into())
        }),
        Function::new("pg_lsn_larger", &[&[Text, Text]], "pg_lsn", |_, args| {
            Ok(lsn(&args[0])?.max(lsn(&args[1])?).to_string().into())
        }),
        Function::new("pg_lsn_smaller", &[&[Text, Text]], "pg_lsn", |_, args| {
            Ok(lsn(&args[0])?.min(lsn(&args[1])?).to_string().into())
        }),
        Function::new("pg_lsn_pli", &[&[Text, Numeric]], "pg_lsn", |_, args| moved(&args[0], &args[1], 1)),
        Function::new("pg_lsn_mii", &[&[Text, Numeric]], "pg_lsn", |_, args| moved(&args[0], &args[1], -1)),
        Function::new("pg_wal_lsn_diff", &[&[Text, Text]], "numeric", |_, args| {
            let (left, right) = (lsn(&args[0])?, lsn(&args[1])?);
            Ok(Value::Decimal(i128::from(left.0) - i128::from(right.0), 0))
        })
        .returning(numeric)
        .alias("pg_lsn_mi"),
        Function::new("xid8_in", &[&[Any]], "xid8", |_, args| {
            Ok(match &args[0] {
                Value::Text(text) => {
                    let number = text.trim().parse::<i64>().ok().filter(|number| *number >= 0);
                    let number = number.ok_or_else(|| {
                        let message = format!("invalid input syntax for type xid8: \"{text}\"");
                        sql_error(SqlState::INVALID_TEXT_REPRESENTATION, message)
                    });
                    Value::Int(number?)
                }
                number => Value::Int(number.as_int()),
            })
        }),
    ]
}
