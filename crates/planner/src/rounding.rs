//! Timestamps of a chosen precision: casts and assignments round to it.

use crate::conversions::per_value;
use crate::errors::carry;
use crate::types::declared_type;
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::Result;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use std::sync::Arc;
use tidepool_base::SqlType;

/// Whether the type says how many digits of a second's fraction its values have.
pub fn has_precision(sql_type: SqlType) -> bool {
    matches!(sql_type, SqlType::Timestamp { precision: Some(_) } | SqlType::TimestampTz { precision: Some(_) })
}

/// A timestamp as a value of the type: rounded to its precision, and marked with it.
pub fn rounded(timestamp: Expr, sql_type: SqlType) -> Expr {
    ScalarUDF::new_from_impl(Rounded::new(sql_type)).call(vec![timestamp])
}

/// What is assigned to a column of the type, from a source that has this field. It is of the type's storage already.
pub fn assigned(value: Expr, source: &Field, sql_type: SqlType) -> Expr {
    let is_rounded = sql_type.rounds_to().is_none() || declared_type(source) == Some(sql_type);
    if is_rounded { value } else { rounded(value, sql_type) }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Rounded {
    sql_type: SqlType,
    signature: Signature,
}

impl Rounded {
    fn new(sql_type: SqlType) -> Rounded {
        Rounded { sql_type, signature: Signature::any(1, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for Rounded {
    fn name(&self) -> &str {
        "tidepool_rounded"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        crate::catalog::name_of_call(self.name(), args)
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        Ok(tidepool_table::arrow_type(self.sql_type))
    }

    fn return_field_from_args(&self, _args: ReturnFieldArgs) -> Result<FieldRef> {
        crate::planning::check().map_err(carry)?;
        Ok(Arc::new(crate::types::field(self.name(), self.sql_type)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let target = tidepool_table::arrow_type(self.sql_type);
        per_value(args, &|array| {
            let times = crate::numerics::cast(array, &target)?;
            Ok(tidepool_database::rounded(&times, self.sql_type).unwrap_or(times))
        })
    }
}
