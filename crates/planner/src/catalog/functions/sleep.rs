//! `pg_sleep`: waits without holding a thread, so that a cancelled statement stops waiting at once.

use super::invalid;
use datafusion::arrow::array::{Array, AsArray};
use datafusion::arrow::datatypes::{DataType, Float64Type};
use datafusion::common::{Result, ScalarValue, internal_err};
use datafusion::logical_expr::async_udf::{AsyncScalarUDF, AsyncScalarUDFImpl};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, PartialEq, Eq, Hash)]
struct Sleep {
    signature: Signature,
}

pub fn function() -> ScalarUDF {
    let signature = Signature::exact(vec![DataType::Float64], Volatility::Volatile);
    AsyncScalarUDF::new(Arc::new(Sleep { signature })).into_scalar_udf()
}

impl ScalarUDFImpl for Sleep {
    fn name(&self) -> &str {
        "pg_sleep"
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    /// PostgreSQL's is `void`, which clients receive as empty text.
    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }
    fn invoke_with_args(&self, _args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        internal_err!("pg_sleep waits asynchronously")
    }
}

#[async_trait::async_trait]
impl AsyncScalarUDFImpl for Sleep {
    async fn invoke_async_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let [seconds] = arrays.as_slice() else {
            return Err(invalid("pg_sleep takes one argument"));
        };
        let seconds = seconds.as_primitive::<Float64Type>();
        for row in 0..args.number_rows.min(seconds.len()) {
            if seconds.is_valid(row) && seconds.value(row) > 0.0 {
                let wait =
                    Duration::try_from_secs_f64(seconds.value(row)).map_err(|_| invalid("sleep time out of range"))?;
                tokio::time::sleep(wait).await;
            }
        }
        ColumnarValue::Scalar(ScalarValue::from("")).into_array(args.number_rows).map(ColumnarValue::Array)
    }
}
