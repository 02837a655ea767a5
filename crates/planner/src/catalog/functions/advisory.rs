//! Advisory locks: `pg_advisory_lock` and its family.

use super::Type::*;
use super::{Function, invalid};
use crate::advisory::{Key, Mode};
use crate::catalog::value::{Value, value_at};
use crate::errors::carry;
use crate::facts::SessionFacts;
use datafusion::arrow::array::{ArrayRef, BooleanArray, StringArray};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::async_udf::{AsyncScalarUDF, AsyncScalarUDFImpl};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, Volatility,
};
use std::sync::Arc;

fn key(args: &[Value]) -> Result<Key> {
    match args {
        [Value::Int(key)] => Ok(Key::One(*key)),
        [Value::Int(high), Value::Int(low)] => {
            let half = |value: i64| i32::try_from(value).map_err(|_| super::math::out_of_range("integer"));
            Ok(Key::Two(half(*high)?, half(*low)?))
        }
        _ => Err(invalid("an advisory lock has one or two numbers")),
    }
}

pub fn functions() -> Vec<Function> {
    vec![
        Function::new("pg_advisory_unlock", &[&[Int8], &[Int4, Int4]], "bool", |call, args| {
            let facts = call.facts()?;
            Ok(facts.planner.advisory.unlock(facts.session_id, key(args)?, Mode::Exclusive).into())
        })
        .volatile(),
        Function::new("pg_advisory_unlock_shared", &[&[Int8], &[Int4, Int4]], "bool", |call, args| {
            let facts = call.facts()?;
            Ok(facts.planner.advisory.unlock(facts.session_id, key(args)?, Mode::Shared).into())
        })
        .volatile(),
        Function::new("pg_advisory_unlock_all", &[&[]], "text", |call, _| {
            let facts = call.facts()?;
            facts.planner.advisory.unlock_all(facts.session_id);
            Ok("".into())
        })
        .volatile(),
    ]
}

/// Takes a lock: `pg_advisory_lock` waits for it, `pg_try_advisory_lock` says whether it could be had.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Lock {
    name: &'static str,
    mode: Mode,
    /// Until the transaction ends, rather than the session.
    transaction: bool,
    waits: bool,
    signature: Signature,
}

pub fn waiting() -> Vec<ScalarUDF> {
    let lock = |name, mode, transaction, waits| {
        let forms = vec![TypeSignature::Exact(vec![DataType::Int64]), TypeSignature::Exact(vec![DataType::Int64; 2])];
        let signature = Signature::one_of(forms, Volatility::Volatile);
        AsyncScalarUDF::new(Arc::new(Lock { name, mode, transaction, waits, signature })).into_scalar_udf()
    };
    vec![
        lock("pg_advisory_lock", Mode::Exclusive, false, true),
        lock("pg_advisory_lock_shared", Mode::Shared, false, true),
        lock("pg_advisory_xact_lock", Mode::Exclusive, true, true),
        lock("pg_advisory_xact_lock_shared", Mode::Shared, true, true),
        lock("pg_try_advisory_lock", Mode::Exclusive, false, false),
        lock("pg_try_advisory_lock_shared", Mode::Shared, false, false),
        lock("pg_try_advisory_xact_lock", Mode::Exclusive, true, false),
        lock("pg_try_advisory_xact_lock_shared", Mode::Shared, true, false),
    ]
}

impl ScalarUDFImpl for Lock {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    /// PostgreSQL's waiting ones return `void`, which clients receive as empty text.
    fn return_type(&self, _types: &[DataType]) -> Result<DataType> {
        Ok(if self.waits { DataType::Utf8 } else { DataType::Boolean })
    }

    fn invoke_with_args(&self, _args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        internal_err!("{} waits asynchronously", self.name)
    }
}

#[async_trait::async_trait]
impl AsyncScalarUDFImpl for Lock {
    async fn invoke_async_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let Some(facts) = SessionFacts::of(&args.config_options).cloned() else {
            return internal_err!("no session to lock for");
        };
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let mut taken = Vec::with_capacity(args.number_rows);
        for row in 0..args.number_rows {
            let values =
                arrays.iter().map(|array| value_at(array, row.min(array.len() - 1))).collect::<Result<Vec<_>>>()?;
            if values.iter().any(Value::is_null) {
                taken.push(None);
                continue;
            }
            let key = key(&values)?;
            let locks = &facts.planner.advisory;
            taken.push(Some(if self.waits {
                let timeout = facts.settings.lock_timeout();
                locks.lock(facts.session_id, key, self.mode, self.transaction, timeout).await.map_err(carry)?;
                true
            } else {
                locks.try_lock(facts.session_id, key, self.mode, self.transaction).map_err(carry)?
            }));
        }
        let array: ArrayRef = match self.waits {
            true => Arc::new(taken.iter().map(|taken| taken.map(|_| "")).collect::<StringArray>()),
            false => Arc::new(taken.into_iter().collect::<BooleanArray>()),
        };
        Ok(ColumnarValue::Array(array))
    }
}
