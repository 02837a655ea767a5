//! `coalesce`, `nullif`, `greatest` and `least`: functions that give one of their arguments, among which literals have the type of
//! the others.
//!
//! DataFusion looks for a type common to text and, say, a date, and finds none. These are its functions, which take such a literal
//! for what it is beside until [`casts::Literals`](crate::casts::Literals) reads it.

use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::Result;
use datafusion::functions::core::{coalesce, greatest, least, nullif};
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::type_coercion::functions::fields_with_udf;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};
use std::sync::Arc;

pub fn functions() -> impl Iterator<Item = Arc<ScalarUDF>> {
    [coalesce(), nullif(), greatest(), least()].into_iter().map(|inner| {
        let signature = Signature::user_defined(inner.signature().volatility);
        Arc::new(ScalarUDF::new_from_impl(Choice { inner, signature }))
    })
}

/// Whether a function is one of these.
pub fn is_choice(name: &str) -> bool {
    matches!(name, "coalesce" | "nullif" | "greatest" | "least")
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Choice {
    inner: Arc<ScalarUDF>,
    signature: Signature,
}

/// What a function takes arguments of these types as.
fn coerced(types: &[DataType], function: &ScalarUDF) -> Result<Vec<DataType>> {
    let field = |data_type: &DataType| Arc::new(Field::new("", data_type.clone(), true));
    let fields = fields_with_udf(&types.iter().map(field).collect::<Vec<_>>(), function)?;
    Ok(fields.iter().map(|field| field.data_type().clone()).collect())
}

impl ScalarUDFImpl for Choice {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let refused = match coerced(types, &self.inner) {
            Ok(types) => return Ok(types),
            Err(refused) => refused,
        };
        let is_open = |data_type: &DataType| {
            matches!(data_type, DataType::Null | DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
        };
        let Some(known) = types.iter().find(|data_type| !is_open(data_type)) else { return Err(refused) };
        let read: Vec<DataType> =
            types.iter().map(|data_type| if is_open(data_type) { known.clone() } else { data_type.clone() }).collect();
        coerced(&read, &self.inner).map_err(|_| refused)
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        self.inner.return_field_from_args(args)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        self.inner.invoke_with_args(args)
    }

    fn simplify(&self, args: Vec<Expr>, info: &SimplifyContext) -> Result<ExprSimplifyResult> {
        self.inner.simplify(args, info)
    }

    fn short_circuits(&self) -> bool {
        self.inner.short_circuits()
    }

    fn conditional_arguments<'a>(&self, args: &'a [Expr]) -> Option<(Vec<&'a Expr>, Vec<&'a Expr>)> {
        self.inner.conditional_arguments(args)
    }
}
