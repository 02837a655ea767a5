//! PostgreSQL's functions that DataFusion lacks or does differently.
//!
//! Each is a [`Function`]: a name, the argument types it takes, the type it returns, and a body that maps values to a
//! value. Bodies see one row at a time, which is plenty for what clients ask the catalogue and for formatting; what runs
//! over millions of rows (arithmetic, comparison, text search) stays DataFusion's.

mod advisory;
mod bounded;
mod datetime;
mod encoding;
mod format;
mod json;
mod keywords;
mod matches;
mod math;
mod naming;
mod ordered;
pub mod procedures;
mod recovery;
mod sequence;
mod series;
mod sleep;
mod system;
mod text;
mod transactions;

pub use keywords::KEYWORD_COLUMNS;

use super::relations;
use super::value::{Value, array_of, value_at};
use crate::conversions::write_texts;
use crate::errors::carry;
use crate::facts::SessionFacts;
use crate::numerics::is_numeric;
use crate::types::{declared_type, describe};
use bounded::{Making, bytes_of};
use datafusion::arrow::array::{ArrayRef, AsArray};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef, IntervalUnit, TimeUnit};
use datafusion::common::{DataFusionError, Result, ScalarValue, plan_err};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock};
use tidepool_base::{Error, SqlState, SqlType};
use tidepool_heap::QueryHeap;

/// What an argument must be, or be made into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    Any,
    Text,
    Bool,
    Int4,
    Int8,
    Oid,
    Float8,
    /// Decimal or integer.
    Numeric,
    Date,
    Timestamp,
    TimestampTz,
    Interval,
    Bytes,
    /// A list of anything.
    List,
    /// Only last: any number of further arguments of any type.
    Rest,
}

enum Returns {
    /// A PostgreSQL type by `typname`.
    Type(&'static str),
    /// The second one where the first argument is `jsonb`.
    OfFirst(&'static str, &'static str),
    Computed(fn(&[DataType]) -> Result<DataType>),
}

/// What a body may know besides its arguments.
pub struct Call<'a> {
    facts: Option<&'a Arc<SessionFacts>>,
    pub arg_types: &'a [DataType],
    pub arg_fields: &'a [FieldRef],
}

impl Call<'_> {
    pub fn facts(&self) -> Result<&Arc<SessionFacts>> {
        self.facts.ok_or_else(|| DataFusionError::Internal("no session to ask".to_owned()))
    }

    /// The text of a value of the type of `field`, as that type's output function writes it in this session. NULL's is empty.
    pub fn text_of(&self, value: &Value, field: &Field) -> Result<String> {
        match (value, declared_type(field)) {
            (Value::Null, _) => return Ok(String::new()),
            (Value::Int(value), _) => return Ok(value.to_string()),
            (Value::Text(text), None) => return Ok(text.to_string()),
            _ => {}
        }
        let array = array_of(std::slice::from_ref(value), &plain_form(field.data_type()))?;
        let field = field.clone().with_data_type(array.data_type().clone());
        let settings = self.facts.map(|facts| facts.settings.shared_text_settings().clone()).unwrap_or_default();
        let texts = write_texts(&array, &field, &settings)?;
        Ok(texts.as_string_view().value(0).to_owned())
    }
}

/// The form of a type that columns are made in of values.
fn plain_form(data_type: &DataType) -> DataType {
    match data_type {
        DataType::LargeUtf8 => DataType::Utf8View,
        DataType::BinaryView | DataType::LargeBinary => DataType::Binary,
        DataType::Float16 => DataType::Float32,
        DataType::Timestamp(_, zone) => DataType::Timestamp(TimeUnit::Microsecond, zone.clone()),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            let form = plain_form(item.data_type());
            DataType::List(Arc::new(item.as_ref().clone().with_data_type(form).with_nullable(true)))
        }
        DataType::Struct(fields) => {
            let form = |field: &FieldRef| {
                field.as_ref().clone().with_data_type(plain_form(field.data_type())).with_nullable(true)
            };
            DataType::Struct(fields.iter().map(form).collect())
        }
        other => other.clone(),
    }
}

type Body = fn(&Call<'_>, &[Value]) -> Result<Value>;

pub struct Function {
    name: &'static str,
    aliases: Vec<String>,
    overloads: &'static [&'static [Type]],
    returns: Returns,
    /// NULL in, NULL out, without asking the body.
    strict: bool,
    signature: Signature,
    body: Body,
}

impl Function {
    /// Immutable and strict unless changed.
    pub fn new(
        name: &'static str,
        overloads: &'static [&'static [Type]],
        returns: &'static str,
        body: Body,
    ) -> Function {
        Function {
            name,
            aliases: Vec::new(),
            overloads,
            returns: Returns::Type(returns),
            strict: true,
            signature: Signature::user_defined(Volatility::Immutable),
            body,
        }
    }

    pub fn returning(mut self, returns: fn(&[DataType]) -> Result<DataType>) -> Function {
        self.returns = Returns::Computed(returns);
        self
    }

    /// Returns a piece of its first argument: of the second type where that is `jsonb`.
    pub fn of_first(mut self, otherwise: &'static str, of_jsonb: &'static str) -> Function {
        self.returns = Returns::OfFirst(otherwise, of_jsonb);
        self
    }

    pub fn alias(mut self, alias: &str) -> Function {
        self.aliases.push(alias.to_owned());
        self
    }

    /// Sees NULL arguments.
    pub fn nullable(mut self) -> Function {
        self.strict = false;
        self
    }

    /// The same within a statement: asks the session.
    pub fn stable(mut self) -> Function {
        self.signature = Signature::user_defined(Volatility::Stable);
        self
    }

    /// Another value for every row.
    pub fn volatile(mut self) -> Function {
        self.signature = Signature::user_defined(Volatility::Volatile);
        self
    }

    /// The types to coerce arguments to: those of the overload that fits best.
    fn resolve(&self, arg_types: &[DataType]) -> Option<Vec<DataType>> {
        let mut best: Option<(u32, Vec<DataType>)> = None;
        for candidate in self.overloads.iter().filter_map(|overload| fit(overload, arg_types)) {
            if best.as_ref().is_none_or(|best| candidate.0 > best.0) {
                best = Some(candidate);
            }
        }
        best.map(|best| best.1)
    }
}

/// How well the arguments suit an overload, and what they are coerced to; `None` when they do not.
fn fit(overload: &[Type], arg_types: &[DataType]) -> Option<(u32, Vec<DataType>)> {
    let (fixed, rest) = match overload.split_last() {
        Some((Type::Rest, fixed)) => (fixed, true),
        _ => (overload, false),
    };
    if arg_types.len() < fixed.len() || (arg_types.len() > fixed.len() && !rest) {
        return None;
    }
    let mut score = 0;
    let mut types = Vec::with_capacity(arg_types.len());
    for (index, arg) in arg_types.iter().enumerate() {
        let (points, to) = coerce(arg, fixed.get(index).copied().unwrap_or(Type::Any))?;
        score += points;
        types.push(to);
    }
    Some((score, types))
}

/// How well an argument of type `arg` suits `wanted`, and the type it is coerced to. Text suits everything a little,
/// because a quoted literal's type is open until something wants it.
fn coerce(arg: &DataType, wanted: Type) -> Option<(u32, DataType)> {
    use DataType::*;
    let string = matches!(arg, Utf8 | LargeUtf8 | Utf8View);
    let integer = arg.is_integer();
    let null = arg == &Null;
    let timestamp = |zone: Option<&str>| Timestamp(TimeUnit::Microsecond, zone.map(Into::into));
    let interval = Interval(IntervalUnit::MonthDayNano);
    Some(match wanted {
        Type::Any | Type::Rest => (1, arg.clone()),
        Type::Text if string => (5, arg.clone()),
        Type::Text if null => (2, Utf8),
        Type::Text if arg.is_nested() || matches!(arg, Binary | BinaryView | LargeBinary) => return None,
        Type::Text => (0, Utf8),
        Type::Bool if arg == &Boolean => (5, Boolean),
        Type::Bool if null || string => (1, Boolean),
        Type::Int4 if arg == &Int32 => (5, Int32),
        Type::Int4 if integer => (4, Int32),
        Type::Int4 if null || string => (1, Int32),
        Type::Int8 if integer => (if arg == &Int64 { 5 } else { 4 }, Int64),
        Type::Int8 if null || string => (1, Int64),
        Type::Oid if arg == &UInt32 => (5, UInt32),
        Type::Oid if integer => (4, UInt32),
        Type::Oid if null || string => (2, UInt32),
        Type::Float8 if arg.is_floating() => (5, Float64),
        Type::Float8 if arg.is_numeric() || is_numeric(arg) => (3, Float64),
        Type::Float8 if null || string => (1, Float64),
        Type::Numeric if matches!(arg, Decimal128(..)) || is_numeric(arg) => (5, arg.clone()),
        Type::Numeric if integer => (4, Int64),
        Type::Numeric if null || string => (1, Decimal128(38, 10)),
        Type::Date if matches!(arg, Date32 | Date64) => (5, Date32),
        Type::Date if null || string => (1, Date32),
        Type::Timestamp if matches!(arg, Timestamp(_, None)) => (5, timestamp(None)),
        Type::Timestamp if matches!(arg, Date32 | Date64) => (3, timestamp(None)),
        Type::Timestamp if null || string => (2, timestamp(None)),
        Type::TimestampTz if matches!(arg, Timestamp(_, Some(_))) => (5, timestamp(Some("UTC"))),
        Type::TimestampTz if matches!(arg, Timestamp(_, None)) => (3, timestamp(Some("UTC"))),
        Type::TimestampTz if matches!(arg, Date32 | Date64) => (2, timestamp(Some("UTC"))),
        Type::TimestampTz if null || string => (1, timestamp(Some("UTC"))),
        Type::Interval if matches!(arg, Interval(_)) => (5, interval),
        Type::Interval if null || string || matches!(arg, Duration(_)) => (1, interval),
        Type::Bytes if matches!(arg, Binary | BinaryView | LargeBinary) => (5, arg.clone()),
        Type::Bytes if null || string => (1, Binary),
        Type::List if matches!(arg, List(_) | LargeList(_) | FixedSizeList(..)) => (5, arg.clone()),
        Type::List if null => (2, Null),
        _ => return None,
    })
}

impl std::fmt::Debug for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}
impl PartialEq for Function {
    fn eq(&self, other: &Function) -> bool {
        self.name == other.name
    }
}
impl Eq for Function {}
impl Hash for Function {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

/// An argument: a constant is turned into a value once, not once a row.
enum Source {
    Constant(Value),
    Column(ArrayRef),
}

impl ScalarUDFImpl for Function {
    fn name(&self) -> &str {
        self.name
    }
    fn aliases(&self) -> &[String] {
        &self.aliases
    }
    fn signature(&self) -> &Signature {
        &self.signature
    }
    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        name_of_call(self.name(), args)
    }
    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        match self.returns {
            Returns::Type(name) | Returns::OfFirst(name, _) => Ok(relations::arrow_type(name)),
            Returns::Computed(compute) => compute(arg_types),
        }
    }
    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        crate::planning::check().map_err(carry)?;
        Ok(Arc::new(match self.returns {
            Returns::Type(name) => relations::field(self.name, name, true),
            Returns::OfFirst(otherwise, of_jsonb) => {
                let is_jsonb = args.arg_fields.first().is_some_and(|field| describe(field).1 == SqlType::Jsonb.oid());
                relations::field(self.name, if is_jsonb { of_jsonb } else { otherwise }, true)
            }
            Returns::Computed(compute) => {
                let types: Vec<DataType> = args.arg_fields.iter().map(|field| field.data_type().clone()).collect();
                Field::new(self.name, compute(&types)?, true)
            }
        }))
    }
    fn coerce_types(&self, arg_types: &[DataType]) -> Result<Vec<DataType>> {
        match self.resolve(arg_types) {
            // These numbers are cast when the function is called: DataFusion knows of no such cast.
            Some(types) => Ok(types
                .into_iter()
                .zip(arg_types)
                .map(|(to, of)| if is_numeric(of) { of.clone() } else { to })
                .collect()),
            None => {
                let names: Vec<String> = arg_types.iter().map(ToString::to_string).collect();
                plan_err!("function {}({}) does not exist", self.name, names.join(", "))
            }
        }
    }
    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arg_types: Vec<DataType> = args.args.iter().map(ColumnarValue::data_type).collect();
        let facts = SessionFacts::of(&args.config_options);
        let call = Call { facts, arg_types: &arg_types, arg_fields: &args.arg_fields };
        let constant = self.signature.volatility != Volatility::Volatile
            && args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if constant { 1 } else { args.number_rows };
        let wanted = if arg_types.iter().any(is_numeric) { self.resolve(&arg_types) } else { None };
        let as_wanted = |place: usize, array: ArrayRef| match wanted.as_ref().and_then(|wanted| wanted.get(place)) {
            Some(to) if is_numeric(array.data_type()) && to != array.data_type() => crate::numerics::cast(&array, to),
            _ => Ok(array),
        };
        let sources = args
            .args
            .iter()
            .enumerate()
            .map(|(place, arg)| match arg {
                ColumnarValue::Scalar(scalar) => {
                    Ok(Source::Constant(value_at(&as_wanted(place, scalar.to_array()?)?, 0)?))
                }
                ColumnarValue::Array(array) => Ok(Source::Column(as_wanted(place, array.clone())?)),
            })
            .collect::<Result<Vec<Source>>>()?;
        let mut making = Making::new(self.name, &args.config_options);
        let mut values = Vec::with_capacity(rows);
        let mut row_args = Vec::with_capacity(sources.len());
        for row in 0..rows {
            row_args.clear();
            for source in &sources {
                row_args.push(match source {
                    Source::Constant(value) => value.clone(),
                    Source::Column(array) => value_at(array, row)?,
                });
            }
            let unknown = self.strict && row_args.iter().any(Value::is_null);
            let args_bytes = row_args.iter().map(bytes_of).sum();
            let value = match unknown {
                true => Value::Null,
                false => making.value(args_bytes, || (self.body)(&call, &row_args))?,
            };
            making.made(bytes_of(&value))?;
            values.push(value);
        }
        let array = making.column(|| array_of(&values, args.return_field.data_type()))?;
        if constant {
            return Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&array, 0)?));
        }
        Ok(ColumnarValue::Array(array))
    }
}

/// An error with PostgreSQL's code, as DataFusion carries it.
pub fn sql_error(code: SqlState, message: impl Into<String>) -> DataFusionError {
    DataFusionError::External(Box::new(Error::new(code, message)))
}

/// A value that a function cannot take.
pub fn invalid(message: impl Into<String>) -> DataFusionError {
    sql_error(SqlState::INVALID_PARAMETER_VALUE, message)
}

pub use bounded::{bounded, check_batch, wrapped};
pub use datetime::add_interval;
pub use matches::ALL_MATCHES;
pub use naming::name_of_call;
pub use sequence::{SessionSequences, next_value_of};
pub use system::{find_relation, oid_of, remember_start};
pub use text::MATCH_MARKS;

/// Whether a name is a scalar function's, here or of DataFusion.
pub fn is_function(name: &str) -> bool {
    static NAMES: LazyLock<HashSet<String>> = LazyLock::new(|| {
        let names = |f: &Arc<ScalarUDF>| f.aliases().iter().cloned().chain([f.name().to_owned()]).collect::<Vec<_>>();
        let all = || all().into_iter().chain(datafusion::functions::all_default_functions());
        QueryHeap::outside(|| all().flat_map(|function| names(&function)).collect())
    });
    NAMES.contains(name)
}

/// All functions of this module.
/// [`datetime::extract`].
pub fn extract() -> ScalarUDF {
    ScalarUDF::new_from_impl(datetime::extract())
}

pub fn all() -> Vec<Arc<ScalarUDF>> {
    let lists = [
        system::functions(),
        text::functions(),
        format::functions(),
        math::functions(),
        datetime::functions(),
        series::functions(),
        json::functions(),
        keywords::functions(),
        ordered::functions(),
        advisory::functions(),
        sequence::functions(),
        recovery::functions(),
        transactions::functions(),
    ];
    let mut functions: Vec<Arc<ScalarUDF>> =
        lists.into_iter().flatten().map(|function| Arc::new(ScalarUDF::new_from_impl(function))).collect();
    functions.extend(matches::functions().into_iter().map(Arc::new));
    // Asked for by name, too.
    let texts = [datafusion::functions::string::repeat(), datafusion::functions::string::replace()];
    let pads = [datafusion::functions::unicode::lpad(), datafusion::functions::unicode::rpad()];
    functions.extend(texts.iter().chain(&pads).filter_map(wrapped));
    functions.push(Arc::new(sleep::function()));
    functions.push(Arc::new(sequence::next_value()));
    functions.extend(advisory::waiting().into_iter().map(Arc::new));
    functions.push(Arc::new(recovery::waiting()));
    functions
}
