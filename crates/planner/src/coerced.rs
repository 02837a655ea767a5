//! DataFusion's functions that take arguments of more types here, or as other types, than they do by themselves.
//!
//! `coalesce`, `nullif`, `greatest` and `least` give one of their arguments. DataFusion looks for a type common to text and, say, a date,
//! and finds none; these take such a literal for what it is beside until [`casts::Literals`](crate::casts::Literals) reads it.
//!
//! Functions of floating-point numbers are of `double precision` alone in PostgreSQL, so a `real` is made one, and a whole number,
//! too, where it would not be.

use crate::errors::carry;
use crate::growth::choices;
use crate::{float_range, letter_case, numerics};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::Result;
use datafusion::functions::core::{coalesce, greatest, least, nullif};
use datafusion::functions::math::{
    abs, acos, acosh, asin, asinh, atan, atan2, atanh, cbrt, ceil, cos, cosh, cot, degrees, exp, floor, ln, log, log2,
    log10, power, radians, round, sin, sinh, sqrt, tan, tanh, trunc,
};
use datafusion::functions::string::{concat, concat_ws, lower, upper};
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::type_coercion::functions::fields_with_udf;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};
use std::sync::Arc;

pub fn functions() -> impl Iterator<Item = Arc<ScalarUDF>> {
    let choices = [coalesce(), nullif(), greatest(), least()].map(|inner| (inner, Rule::Choice));
    let of_floats = [
        acos(),
        acosh(),
        asin(),
        asinh(),
        atan(),
        atan2(),
        atanh(),
        cbrt(),
        ceil(),
        cos(),
        cosh(),
        cot(),
        degrees(),
        exp(),
        floor(),
        ln(),
        log(),
        log10(),
        log2(),
        radians(),
        round(),
        sin(),
        sinh(),
        sqrt(),
        tan(),
        tanh(),
        trunc(),
    ];
    let coerced = |inner: Arc<ScalarUDF>, rule| {
        let signature = Signature::user_defined(inner.signature().volatility);
        Arc::new(ScalarUDF::new_from_impl(Coerced { inner, rule, signature }))
    };
    let choices = choices.into_iter().map(move |(inner, rule)| coerced(inner, rule));
    let of_floats = of_floats.into_iter().map(move |inner| numerics::extended(coerced(inner, Rule::Floats)));
    let texts = [concat(), concat_ws()].map(numerics::extended_text);
    let cases = [lower(), upper()].into_iter().map(move |inner| coerced(inner, Rule::Plain));
    choices.chain(of_floats).chain(cases).chain([numerics::extended(abs()), powers()]).chain(texts)
}

/// A number to the power of another.
pub fn powers() -> Arc<ScalarUDF> {
    let signature = Signature::user_defined(power().signature().volatility);
    numerics::extended(Arc::new(ScalarUDF::new_from_impl(Coerced { inner: power(), rule: Rule::Plain, signature })))
}

/// Whether a function gives one of its arguments.
pub fn is_choice(name: &str) -> bool {
    matches!(name, "coalesce" | "nullif" | "greatest" | "least")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Rule {
    Choice,
    Floats,
    /// Of the types that DataFusion has for it.
    Plain,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Coerced {
    inner: Arc<ScalarUDF>,
    rule: Rule,
    signature: Signature,
}

/// What a function takes arguments of these types as, by itself.
fn coerced(types: &[DataType], function: &ScalarUDF) -> Result<Vec<DataType>> {
    let field = |data_type: &DataType| Arc::new(Field::new("", data_type.clone(), true));
    let fields = fields_with_udf(&types.iter().map(field).collect::<Vec<_>>(), function)?;
    Ok(fields.iter().map(|field| field.data_type().clone()).collect())
}

/// Literals that have no type yet as what they are beside.
fn choice(types: &[DataType], function: &ScalarUDF) -> Result<Vec<DataType>> {
    if types.iter().any(numerics::is_numeric) {
        let is_number =
            |of: &DataType| numerics::is_exact(of) || of.is_floating() || of.is_string() || *of == DataType::Null;
        if types.iter().all(is_number) {
            // `casts::Literals` casts them to one type: DataFusion knows of no such cast.
            return Ok(types.to_vec());
        }
    }
    let is_open = |data_type: &DataType| {
        matches!(data_type, DataType::Null | DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
    };
    // A literal beside an array is one: DataFusion would read it as an item.
    if let Some(array) = types.iter().find(|data_type| data_type.is_list())
        && types.iter().all(|data_type| is_open(data_type) || data_type == array)
    {
        return Ok(vec![array.clone(); types.len()]);
    }
    let refused = match coerced(types, function) {
        Ok(types) => return Ok(types),
        Err(refused) => refused,
    };
    let Some(known) = types.iter().find(|data_type| !is_open(data_type)) else { return Err(refused) };
    let read: Vec<DataType> =
        types.iter().map(|data_type| if is_open(data_type) { known.clone() } else { data_type.clone() }).collect();
    coerced(&read, function).map_err(|_| refused)
}

fn floats(types: &[DataType], function: &ScalarUDF) -> Result<Vec<DataType>> {
    // With a number of digits, whole numbers are rounded as such.
    let has_digits = matches!(function.name(), "round" | "trunc") && types.len() > 1;
    let is_double = |data_type: &DataType| *data_type == DataType::Float32 || data_type.is_integer() && !has_digits;
    let types: Vec<DataType> =
        types.iter().map(|of| if is_double(of) { DataType::Float64 } else { of.clone() }).collect();
    coerced(&types, function)
}

impl ScalarUDFImpl for Coerced {
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
        match self.rule {
            Rule::Choice => choice(types, &self.inner),
            Rule::Floats => floats(types, &self.inner),
            Rule::Plain => coerced(types, &self.inner),
        }
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        crate::catalog::name_of_call(self.name(), args)
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match self.rule == Rule::Choice && types.iter().any(numerics::is_numeric) {
            true if types.iter().any(DataType::is_floating) => Ok(DataType::Float64),
            true => Ok(numerics::NUMERIC),
            false => self.inner.return_type(types),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        crate::planning::check().map_err(carry)?;
        let types: Vec<DataType> = args.arg_fields.iter().map(|field| field.data_type().clone()).collect();
        if self.rule == Rule::Choice && types.iter().any(numerics::is_numeric) {
            return Ok(Arc::new(Field::new(self.name(), self.return_type(&types)?, true)));
        }
        self.inner.return_field_from_args(args)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if letter_case::is_case(self.name())
            && let Some(converted) = letter_case::converted(self.name(), &args.args)?
        {
            return Ok(converted);
        }
        if self.rule == Rule::Choice || !float_range::is_watched(self.name()) {
            return self.inner.invoke_with_args(args);
        }
        let given = args.args.clone();
        let result = self.inner.invoke_with_args(args)?;
        float_range::check(self.name(), &given, &result)?;
        Ok(result)
    }

    fn simplify(&self, args: Vec<Expr>, info: &SimplifyContext) -> Result<ExprSimplifyResult> {
        // One within the other is one of all: else each is written out twice.
        let args = match self.name() {
            "coalesce" => choices(&args).into_iter().cloned().collect(),
            _ => args,
        };
        self.inner.simplify(args, info)
    }

    fn short_circuits(&self) -> bool {
        self.inner.short_circuits()
    }

    fn conditional_arguments<'a>(&self, args: &'a [Expr]) -> Option<(Vec<&'a Expr>, Vec<&'a Expr>)> {
        self.inner.conditional_arguments(args)
    }
}
