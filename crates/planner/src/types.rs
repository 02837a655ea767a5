//! SQL types at the edges of a plan: declared types to Arrow, result fields to PostgreSQL's oids, and result batches in
//! the one Arrow form that each SQL type has.

use crate::conversions::{convert, text_settings};
use crate::statement::fold;
use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef, TimeUnit};
use datafusion::common::Result as PlanResult;
use datafusion::common::config::ConfigOptions;
use datafusion::logical_expr::planner::TypePlanner;
use datafusion::sql::sqlparser::ast::{self, ArrayElemTypeDef, CharacterLength, ExactNumberInfo, TimezoneInfo};
use std::collections::HashMap;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState, SqlType, TIMESTAMP_DIGITS_MAX};
use tidepool_table::{NUMERIC_WIDTH, SQL_TYPE_METADATA, arrow_type};

/// Field metadata key that overrides the PostgreSQL type oid a result column is described with, as decimal text. For
/// types that no table column can have (`oid`, `name`, `int4[]`). The Arrow type must fit the type's wire form.
pub const TYPE_OID_METADATA: &str = "tidepool.oid";

/// The SQL type that a type name in SQL means.
pub fn sql_type(data_type: &ast::DataType) -> Result<SqlType> {
    use ast::DataType as T;
    Ok(match data_type {
        T::Boolean | T::Bool => SqlType::Boolean,
        T::SmallInt(_) | T::Int2(_) => SqlType::SmallInt,
        T::Int(_) | T::Integer(_) | T::Int4(_) => SqlType::Integer,
        T::BigInt(_) | T::Int8(_) => SqlType::BigInt,
        T::Real | T::Float4 => SqlType::Real,
        T::Float8 | T::DoublePrecision => SqlType::DoublePrecision,
        T::Float(ExactNumberInfo::None) => SqlType::DoublePrecision,
        T::Float(ExactNumberInfo::Precision(bits)) => match bits {
            1..=24 => SqlType::Real,
            25..=53 => SqlType::DoublePrecision,
            0 => return Err(invalid("precision for type float must be at least 1 bit")),
            _ => return Err(invalid("precision for type float must be less than 54 bits")),
        },
        T::Numeric(info) | T::Decimal(info) | T::Dec(info) => numeric(info)?,
        T::Text => SqlType::Text,
        T::Varchar(length) | T::CharacterVarying(length) | T::CharVarying(length) => {
            SqlType::Varchar { length_max: character_length(length.as_ref(), "varchar")? }
        }
        T::Char(length) | T::Character(length) => {
            SqlType::Char { length: character_length(length.as_ref(), "char")?.unwrap_or(1) }
        }
        T::Date => SqlType::Date,
        T::Timestamp(precision, zone) => {
            // PostgreSQL takes what is beyond the most as the most, with a warning.
            let precision = precision.map(|digits| digits.min(u64::from(TIMESTAMP_DIGITS_MAX)) as u8);
            match zone {
                TimezoneInfo::None | TimezoneInfo::WithoutTimeZone => SqlType::Timestamp { precision },
                TimezoneInfo::Tz | TimezoneInfo::WithTimeZone => SqlType::TimestampTz { precision },
            }
        }
        T::Interval { fields: None, precision: None } => SqlType::Interval,
        T::Bytea => SqlType::Bytea,
        T::Uuid => SqlType::Uuid,
        T::JSON => SqlType::Json,
        T::JSONB => SqlType::Jsonb,
        T::Custom(name, modifiers) => return custom(name, modifiers),
        T::Time(..) => {
            return Err(Error::unsupported("type time is not supported").with_hint("Use timestamp or interval."));
        }
        T::Array(_) => return Err(Error::unsupported("columns of array types are not supported")),
        other => {
            return Err(Error::new(
                SqlState::UNDEFINED_OBJECT,
                format!("type \"{}\" does not exist", other.to_string().to_lowercase()),
            ));
        }
    })
}

fn custom(name: &ast::ObjectName, modifiers: &[String]) -> Result<SqlType> {
    let parts: Vec<String> = name.0.iter().filter_map(|part| part.as_ident().map(fold)).collect();
    let last = match parts.as_slice() {
        [name] => name.as_str(),
        [schema, name] if schema == "pg_catalog" => name.as_str(),
        _ => "",
    };
    let digits = || {
        let digits = modifiers.first().and_then(|modifier| modifier.parse::<u8>().ok());
        digits.map(|digits| digits.min(TIMESTAMP_DIGITS_MAX))
    };
    let length = || modifiers.first().and_then(|modifier| modifier.parse::<u32>().ok());
    Ok(match last {
        "bool" => SqlType::Boolean,
        "int2" => SqlType::SmallInt,
        "int4" | "int" => SqlType::Integer,
        "int8" => SqlType::BigInt,
        "float4" => SqlType::Real,
        "float8" => SqlType::DoublePrecision,
        "timestamptz" => SqlType::TimestampTz { precision: digits() },
        "timestamp" => SqlType::Timestamp { precision: digits() },
        "date" => SqlType::Date,
        "interval" => SqlType::Interval,
        "text" => SqlType::Text,
        "varchar" => SqlType::Varchar { length_max: length() },
        "bpchar" => match length() {
            Some(length) => SqlType::Char { length },
            None => SqlType::Text,
        },
        "numeric" | "decimal" => match modifiers {
            [] => SqlType::UnconstrainedNumeric,
            [precision] => numeric(&ExactNumberInfo::Precision(parse_modifier(precision)?))?,
            [precision, scale, ..] => {
                numeric(&ExactNumberInfo::PrecisionAndScale(parse_modifier(precision)?, parse_modifier(scale)? as i64))?
            }
        },
        "bytea" => SqlType::Bytea,
        "uuid" => SqlType::Uuid,
        "json" => SqlType::Json,
        "jsonb" => SqlType::Jsonb,
        "serial" | "bigserial" | "smallserial" | "serial2" | "serial4" | "serial8" => {
            return Err(Error::unsupported(format!("type {last} is not supported: there are no sequences"))
                .with_hint("Use integer or bigint and give the values, or uuid DEFAULT gen_random_uuid()."));
        }
        "money" | "inet" | "cidr" | "macaddr" | "xml" | "point" | "bit" | "varbit" | "tsvector" | "timetz" | "time" => {
            return Err(Error::unsupported(format!("type {last} is not supported")));
        }
        _ => return Err(Error::new(SqlState::UNDEFINED_OBJECT, format!("type \"{name}\" does not exist"))),
    })
}

fn parse_modifier(text: &str) -> Result<u64> {
    text.trim().parse().map_err(|_| Error::new(SqlState::SYNTAX_ERROR, format!("invalid type modifier \"{text}\"")))
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(SqlState::INVALID_PARAMETER_VALUE, message)
}

fn numeric(info: &ExactNumberInfo) -> Result<SqlType> {
    let (precision, scale) = match *info {
        ExactNumberInfo::None => return Ok(SqlType::UnconstrainedNumeric),
        ExactNumberInfo::Precision(precision) => (precision, 0),
        ExactNumberInfo::PrecisionAndScale(precision, scale) => (precision, scale),
    };
    if !(1..=38).contains(&precision) {
        return Err(invalid(format!("NUMERIC precision {precision} must be between 1 and 38"))
            .with_detail("Numbers of up to 38 digits are held exactly."));
    }
    if scale < 0 || scale as u64 > precision {
        return Err(invalid(format!("NUMERIC scale {scale} must be between 0 and precision {precision}")));
    }
    Ok(SqlType::Numeric { precision: precision as u8, scale: scale as i8 })
}

fn character_length(length: Option<&CharacterLength>, name: &str) -> Result<Option<u32>> {
    let Some(CharacterLength::IntegerLength { length, .. }) = length else { return Ok(None) };
    match *length {
        0 => Err(invalid(format!("length for type {name} must be at least 1"))),
        // PostgreSQL's limit.
        1..=10_485_760 => Ok(Some(*length as u32)),
        _ => Err(invalid(format!("length for type {name} cannot exceed 10485760"))),
    }
}

/// A nullable field of a SQL type, marked with it.
pub fn field(name: &str, sql_type: SqlType) -> Field {
    let json = serde_json::to_string(&sql_type).unwrap_or_default();
    Field::new(name, arrow_type(sql_type), true).with_metadata(HashMap::from([(SQL_TYPE_METADATA.to_owned(), json)]))
}

/// The declared SQL type that a field is marked with, if its data type still is that type's.
pub fn declared_type(field: &Field) -> Option<SqlType> {
    let sql_type: SqlType = serde_json::from_str(field.metadata().get(SQL_TYPE_METADATA)?).ok()?;
    (arrow_type(sql_type) == *field.data_type()).then_some(sql_type)
}

/// The SQL type of a result field: the declared one, or the natural one of its Arrow type. `None` where no SQL type
/// fits (lists, structs, …).
pub fn type_of(field: &Field) -> Option<SqlType> {
    if let Some(declared) = declared_type(field) {
        return Some(declared);
    }
    Some(match field.data_type() {
        DataType::Boolean => SqlType::Boolean,
        DataType::Int8 | DataType::Int16 | DataType::UInt8 => SqlType::SmallInt,
        DataType::Int32 | DataType::UInt16 => SqlType::Integer,
        // DataFusion counts rows and items in UInt64; none counts beyond 2^63.
        DataType::Int64 | DataType::UInt32 | DataType::UInt64 => SqlType::BigInt,
        DataType::Float16 | DataType::Float32 => SqlType::Real,
        DataType::Float64 => SqlType::DoublePrecision,
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale) => SqlType::Numeric { precision: *precision, scale: *scale },
        DataType::Decimal256(_, scale) => SqlType::Numeric { precision: 38, scale: *scale },
        DataType::FixedSizeBinary(NUMERIC_WIDTH) => SqlType::UnconstrainedNumeric,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Null => SqlType::Text,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            SqlType::Bytea
        }
        DataType::Date32 | DataType::Date64 => SqlType::Date,
        DataType::Timestamp(_, None) => SqlType::TIMESTAMP,
        DataType::Timestamp(_, Some(_)) => SqlType::TIMESTAMPTZ,
        DataType::Interval(_) | DataType::Duration(_) | DataType::Time32(_) | DataType::Time64(_) => SqlType::Interval,
        DataType::Dictionary(_, value) => {
            return type_of(&Field::new(field.name(), value.as_ref().clone(), true));
        }
        DataType::RunEndEncoded(_, value) => return type_of(value),
        _ => return None,
    })
}

/// PostgreSQL's oid of the array type over `element`.
fn array_oid(element: SqlType) -> u32 {
    match element {
        SqlType::Boolean => 1000,
        SqlType::Bytea => 1001,
        SqlType::BigInt => 1016,
        SqlType::SmallInt => 1005,
        SqlType::Integer => 1007,
        SqlType::Real => 1021,
        SqlType::DoublePrecision => 1022,
        SqlType::Char { .. } => 1014,
        SqlType::Varchar { .. } => 1015,
        SqlType::Date => 1182,
        SqlType::Timestamp { .. } => 1115,
        SqlType::TimestampTz { .. } => 1185,
        SqlType::Interval => 1187,
        SqlType::Numeric { .. } | SqlType::UnconstrainedNumeric => 1231,
        SqlType::Uuid => 2951,
        SqlType::Json => 199,
        SqlType::Jsonb => 3807,
        SqlType::Text => 1009,
    }
}

/// The oid of the PostgreSQL type that a field is marked with. A cast keeps the metadata of what it casts: a type that
/// no longer fits is not believed.
pub fn marked_oid(field: &Field) -> Option<u32> {
    let oid = field.metadata().get(TYPE_OID_METADATA)?.parse().ok()?;
    crate::catalog::type_of_oid(oid).is_none_or(|expected| alike(&expected, field.data_type())).then_some(oid)
}

/// The type that a field is marked with by its oid, if it is one that columns have as a text: what functions give back.
pub fn marked_type(field: &Field) -> Option<SqlType> {
    sql_type_of_oid(marked_oid(field)?).filter(|of| of.is_json() || *of == SqlType::Uuid)
}

/// The oid of the array type over the type `oid`, for parameters.
pub fn array_of_oid(oid: u32) -> u32 {
    array_oid(sql_type_of_oid(oid).unwrap_or(SqlType::Text))
}

/// `oid[]`.
const OID_ARRAY: u32 = 1028;

/// How a result field is described to a client: (SQL type, oid, modifier).
pub fn describe(field: &Field) -> (SqlType, u32, i32) {
    if let Some(oid) = marked_oid(field) {
        return (type_of(field).unwrap_or(SqlType::Text), oid, -1);
    }
    if let DataType::List(element) | DataType::LargeList(element) | DataType::FixedSizeList(element, _) =
        field.data_type()
    {
        return (SqlType::Text, array_oid(type_of(element).unwrap_or(SqlType::Text)), -1);
    }
    match (type_of(field), declared_type(field)) {
        (Some(sql_type), Some(_)) => (sql_type, sql_type.oid(), sql_type.type_modifier()),
        // An undeclared numeric's precision is the planner's bound, not the user's choice.
        (Some(sql_type), None) => (sql_type, sql_type.oid(), -1),
        (None, _) => (SqlType::Text, SqlType::Text.oid(), -1),
    }
}

/// Whether two Arrow types are forms of one kind of value.
fn alike(left: &DataType, right: &DataType) -> bool {
    let string = |data_type: &DataType| matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    let bytes =
        |data_type: &DataType| matches!(data_type, DataType::Binary | DataType::LargeBinary | DataType::BinaryView);
    match (left, right) {
        (DataType::Timestamp(_, left), DataType::Timestamp(_, right)) => left.is_some() == right.is_some(),
        (left, right) => {
            string(left) && string(right)
                || bytes(left) && bytes(right)
                || left.is_integer() && right.is_integer()
                || std::mem::discriminant(left) == std::mem::discriminant(right)
        }
    }
}

/// The SQL type of an array type's elements, for parameters.
pub fn element_of_oid(oid: u32) -> Option<SqlType> {
    Some(match oid {
        1000 => SqlType::Boolean,
        1001 => SqlType::Bytea,
        1002 | 1003 | 1009 | 1014 | 1015 => SqlType::Text,
        1005 => SqlType::SmallInt,
        1007 | 1028 => SqlType::Integer,
        1016 => SqlType::BigInt,
        1021 => SqlType::Real,
        1022 => SqlType::DoublePrecision,
        1115 => SqlType::TIMESTAMP,
        1182 => SqlType::Date,
        1185 => SqlType::TIMESTAMPTZ,
        1187 => SqlType::Interval,
        1231 => SqlType::UnconstrainedNumeric,
        2951 => SqlType::Uuid,
        _ => return None,
    })
}

/// The SQL type of a PostgreSQL type oid, for parameters. `None` for 0 and unknown ones.
pub fn sql_type_of_oid(oid: u32) -> Option<SqlType> {
    Some(match oid {
        16 => SqlType::Boolean,
        17 => SqlType::Bytea,
        20 => SqlType::BigInt,
        21 => SqlType::SmallInt,
        23 | 26 => SqlType::Integer,
        18 | 19 | 25 => SqlType::Text,
        114 => SqlType::Json,
        3802 => SqlType::Jsonb,
        700 => SqlType::Real,
        701 => SqlType::DoublePrecision,
        1042 | 1043 => SqlType::Varchar { length_max: None },
        1082 => SqlType::Date,
        1114 => SqlType::TIMESTAMP,
        1184 => SqlType::TIMESTAMPTZ,
        1186 => SqlType::Interval,
        1700 => SqlType::UnconstrainedNumeric,
        2950 => SqlType::Uuid,
        _ => return None,
    })
}

/// The Arrow type in which a result column leaves the planner.
pub fn canonical_type(field: &Field) -> DataType {
    match field.data_type() {
        DataType::List(element) | DataType::LargeList(element) | DataType::FixedSizeList(element, _) => {
            let inner = canonical_type(element);
            DataType::List(Arc::new(element.as_ref().clone().with_data_type(inner)))
        }
        DataType::Null => DataType::Utf8View,
        // The scale is kept: `arrow_type` of the natural type says the same.
        _ => type_of(field).map_or_else(|| DataType::Utf8View, arrow_type),
    }
}

/// A batch with each column in its canonical type.
pub fn canonical_batch(batch: &RecordBatch, schema: &SchemaRef, config: &ConfigOptions) -> Result<RecordBatch> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let columns: Vec<ArrayRef> = batch
        .columns()
        .iter()
        .zip(schema.fields())
        .map(|(column, field)| {
            if column.data_type() == field.data_type() {
                return Ok(column.clone());
            }
            // Duration and time have no direct way to interval in every unit; nanoseconds do.
            let column = match column.data_type() {
                DataType::Time32(_) | DataType::Time64(_) => {
                    let nanoseconds = cast_with_options(column, &DataType::Time64(TimeUnit::Nanosecond), &options)
                        .and_then(|column| cast_with_options(&column, &DataType::Int64, &options))
                        .and_then(|column| {
                            cast_with_options(&column, &DataType::Duration(TimeUnit::Nanosecond), &options)
                        });
                    nanoseconds.map_err(crate::errors::from_arrow)?
                }
                // Rows, and arrays of them, leave as their texts.
                DataType::Struct(_) | DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..) => {
                    let converted = convert(column, field, &text_settings(config));
                    return converted.map_err(crate::errors::from_datafusion);
                }
                _ => column.clone(),
            };
            crate::numerics::cast(&column, field.data_type()).map_err(crate::errors::from_datafusion)
        })
        .collect::<Result<_>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(schema.clone(), columns, &options).map_err(crate::errors::from_arrow)
}

/// The schema of `canonical_batch`. All fields nullable: a plan may know less than its data.
pub fn canonical_schema(schema: &Schema) -> SchemaRef {
    let fields: Vec<Field> = schema
        .fields()
        .iter()
        .map(|field| {
            let mut canonical = field.as_ref().clone().with_data_type(canonical_type(field)).with_nullable(true);
            // Only oids are unsigned, and only their lists lose sight of it on the way.
            if let DataType::List(element) = field.data_type()
                && *element.data_type() == DataType::UInt32
            {
                canonical.metadata_mut().entry(TYPE_OID_METADATA.to_owned()).or_insert_with(|| OID_ARRAY.to_string());
            }
            canonical
        })
        .collect();
    Arc::new(Schema::new(fields))
}

/// Type names in expressions (`x::varchar(5)`, `date '…'`).
#[derive(Debug)]
pub struct PostgresTypes;

impl TypePlanner for PostgresTypes {
    fn plan_type_field(&self, data_type: &ast::DataType) -> PlanResult<Option<FieldRef>> {
        if let ast::DataType::Array(ArrayElemTypeDef::SquareBracket(element, _)) = data_type {
            let Some(element) = self.plan_type_field(element)? else { return Ok(None) };
            return Ok(Some(Arc::new(Field::new(
                "",
                DataType::List(Arc::new(element.as_ref().clone().with_name("item"))),
                true,
            ))));
        }
        if let Some(system) = system_type_name(data_type).and_then(|name| crate::catalog::system_type(&name)) {
            return Ok(Some(Arc::new(Field::new("", system, true))));
        }
        if matches!(data_type, ast::DataType::Time(None, TimezoneInfo::None | TimezoneInfo::WithoutTimeZone)) {
            return Ok(None);
        }
        match sql_type(data_type) {
            // Forms without a length need no mark.
            Ok(sql_type) => Ok(Some(Arc::new(match sql_type {
                SqlType::Varchar { length_max: Some(_) }
                | SqlType::Char { .. }
                | SqlType::Timestamp { precision: Some(_) }
                | SqlType::TimestampTz { precision: Some(_) }
                | SqlType::Uuid
                | SqlType::Json
                | SqlType::Jsonb => field("", sql_type),
                _ => Field::new("", arrow_type(sql_type), true),
            }))),
            Err(error) => Err(crate::errors::carry(error)),
        }
    }
}

fn system_type_name(data_type: &ast::DataType) -> Option<String> {
    match data_type {
        ast::DataType::Regclass => Some("regclass".to_owned()),
        ast::DataType::Custom(name, _) => match name.0.as_slice() {
            [name] => name.as_ident().map(fold),
            [schema, name] if schema.as_ident().is_some_and(|schema| fold(schema) == "pg_catalog") => {
                name.as_ident().map(fold)
            }
            _ => None,
        },
        _ => None,
    }
}

/// The one value of a parameter array.
pub fn scalar(array: &dyn Array) -> Result<datafusion::common::ScalarValue> {
    datafusion::common::ScalarValue::try_from_array(array, 0).map_err(crate::errors::from_datafusion)
}
