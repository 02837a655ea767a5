//! What PostgreSQL's clients ask of roles: whether this is a standby, how far the log has come, and its promotion. And `pg_lsn`,
//! which is held as its text.

use super::Type::{Any, Int8, Numeric, Text};
use super::{Call, Function, sql_error};
use crate::catalog::value::Value;
use crate::errors::carry;
use crate::facts::SessionFacts;
use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray};
use datafusion::arrow::datatypes::{DataType, Int64Type};
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::async_udf::{AsyncScalarUDF, AsyncScalarUDFImpl};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, Volatility,
};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidepool_base::{Error, SqlState};
use tidepool_database::text::numeric::NUMERIC;
use tidepool_database::{FollowProgress, HostRole, Lsn};

/// How often a client that waits for a promotion looks whether it has come to that.
const PROMOTION_LOOKS: Duration = Duration::from_millis(5);

/// 55000 for what only a standby has an answer to.
fn check_standby(facts: &SessionFacts) -> Result<()> {
    match facts.planner.database().is_following() {
        true => Ok(()),
        false => Err(carry(
            Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "recovery is not in progress")
                .with_hint("Recovery control functions can only be executed during recovery."),
        )),
    }
}

/// 42501 unless the statement works for a superuser.
fn check_superuser(facts: &SessionFacts, function: &str) -> Result<()> {
    match facts.role.is_superuser {
        true => Ok(()),
        false => Err(sql_error(SqlState::INSUFFICIENT_PRIVILEGE, format!("permission denied for function {function}"))),
    }
}

/// The end of the log. 55000 on a standby, which writes none.
fn written(call: &Call<'_>, _: &[Value]) -> Result<Value> {
    let database = call.facts()?.planner.database();
    if database.is_following() {
        return Err(carry(
            Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "recovery is in progress")
                .with_hint("WAL control functions cannot be executed during recovery."),
        ));
    }
    Ok(database.written_lsn().to_string().into())
}

/// What a standby has come to. It is kept after a promotion.
fn progress(call: &Call<'_>) -> Result<FollowProgress> {
    Ok(call.facts()?.planner.database().follow_progress().unwrap_or_default())
}

/// A position that a standby has come to; NULL before the first.
fn position(call: &Call<'_>, of: impl FnOnce(&FollowProgress) -> tidepool_database::LogPosition) -> Result<Value> {
    let progress = progress(call)?;
    if progress.term == 0 {
        return Ok(Value::Null);
    }
    Ok(call.facts()?.planner.database().lsn_of(of(&progress)).to_string().into())
}

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

fn pause(call: &Call<'_>, function: &str, paused: bool) -> Result<Value> {
    let facts = call.facts()?;
    check_superuser(facts, function)?;
    check_standby(facts)?;
    facts.planner.database().pause_replay(paused).map_err(carry)?;
    Ok("".into())
}

pub fn functions() -> Vec<Function> {
    vec![
        Function::new("pg_is_in_recovery", &[&[]], "bool", |call, _| {
            Ok(call.facts()?.planner.database().is_following().into())
        })
        .volatile(),
        Function::new("pg_current_wal_lsn", &[&[]], "pg_lsn", written)
            .alias("pg_current_wal_insert_lsn")
            .alias("pg_current_wal_flush_lsn")
            .volatile(),
        Function::new("pg_last_wal_receive_lsn", &[&[]], "pg_lsn", |call, _| {
            position(call, |progress| progress.received)
        })
        .volatile(),
        Function::new("pg_last_wal_replay_lsn", &[&[]], "pg_lsn", |call, _| {
            position(call, |progress| progress.replayed)
        })
        .volatile(),
        Function::new("pg_last_xact_replay_timestamp", &[&[]], "timestamptz", |call, _| {
            Ok(progress(call)?.replayed_at.map(chrono::DateTime::<chrono::Utc>::from).into())
        })
        .volatile(),
        Function::new("pg_get_wal_replay_pause_state", &[&[]], "text", |call, _| {
            check_standby(call.facts()?)?;
            Ok(call.facts()?.planner.database().replay_pause().name().into())
        })
        .volatile(),
        Function::new("pg_is_wal_replay_paused", &[&[]], "bool", |call, _| {
            check_standby(call.facts()?)?;
            Ok(call.facts()?.planner.database().replay_pause().is_asked().into())
        })
        .volatile(),
        Function::new("pg_wal_replay_pause", &[&[]], "text", |call, _| pause(call, "pg_wal_replay_pause", true))
            .volatile(),
        Function::new("pg_wal_replay_resume", &[&[]], "text", |call, _| pause(call, "pg_wal_replay_resume", false))
            .volatile(),
        Function::new("pg_lsn_in", &[&[Text]], "pg_lsn", |_, args| Ok(lsn(&args[0])?.to_string().into())),
        Function::new("pg_lsn", &[&[Numeric]], "pg_lsn", |_, args| moved(&"0/0".into(), &args[0], 1)),
        Function::new("pg_lsn_cmp", &[&[Text, Text]], "int4", |_, args| {
            Ok((lsn(&args[0])?.cmp(&lsn(&args[1])?) as i32).into())
        }),
        // A number that is in the positions' order.
        Function::new("pg_lsn_key", &[&[Text]], "int8", |_, args| {
            Ok(Value::Int(lsn(&args[0])?.0.cast_signed() ^ i64::MIN))
        }),
        Function::new("pg_lsn_of_key", &[&[Int8]], "pg_lsn", |_, args| {
            Ok(Lsn((args[0].as_int() ^ i64::MIN).cast_unsigned()).to_string().into())
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

/// `pg_promote([wait [, wait_seconds]])`: asks a standby to take over, and waits until it has, by default.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Promote {
    signature: Signature,
}

pub fn waiting() -> ScalarUDF {
    let forms = vec![
        TypeSignature::Nullary,
        TypeSignature::Exact(vec![DataType::Boolean]),
        TypeSignature::Exact(vec![DataType::Boolean, DataType::Int64]),
    ];
    let signature = Signature::one_of(forms, Volatility::Volatile);
    AsyncScalarUDF::new(Arc::new(Promote { signature })).into_scalar_udf()
}

impl ScalarUDFImpl for Promote {
    fn name(&self) -> &str {
        "pg_promote"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _types: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, _args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        internal_err!("pg_promote waits asynchronously")
    }
}

#[async_trait::async_trait]
impl AsyncScalarUDFImpl for Promote {
    async fn invoke_async_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let Some(facts) = SessionFacts::of(&args.config_options).cloned() else {
            return internal_err!("no session to promote for");
        };
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let mut promoted = Vec::with_capacity(args.number_rows);
        for row in 0..args.number_rows {
            let at = |array: &ArrayRef| row.min(array.len().saturating_sub(1));
            if arrays.iter().any(|array| array.is_null(at(array))) {
                promoted.push(None);
                continue;
            }
            let waits = arrays.first().is_none_or(|array| array.as_boolean().value(at(array)));
            let seconds = arrays.get(1).map_or(60, |array| array.as_primitive::<Int64Type>().value(at(array)));
            promoted.push(Some(promote(&facts, waits, seconds).await?));
        }
        Ok(ColumnarValue::Array(Arc::new(promoted.into_iter().collect::<BooleanArray>())))
    }
}

/// True where the server is primary now, or will be and is not waited for.
async fn promote(facts: &Arc<SessionFacts>, waits: bool, seconds: i64) -> Result<bool> {
    check_superuser(facts, "pg_promote")?;
    check_standby(facts)?;
    let seconds = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).ok_or_else(|| {
        sql_error(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "\"wait_seconds\" must not be negative or zero")
    })?;
    let database = facts.planner.database();
    let (start, patience) = (Instant::now(), Duration::from_secs(seconds));
    loop {
        // Asks, and says what is in the way.
        match database.promote(Duration::ZERO) {
            Ok(true) => return Ok(true),
            // It has become so since it was asked.
            Err(_) if database.role() == HostRole::Primary => return Ok(true),
            Err(error) => return Err(carry(error)),
            Ok(false) if !waits => return Ok(true),
            Ok(false) if start.elapsed() >= patience => return Ok(false),
            Ok(false) => tokio::time::sleep(PROMOTION_LOOKS).await,
        }
    }
}
