//! A column being built, in the storage type of its SQL type.

use arrow_array::ArrayRef;
use arrow_array::builder::{ArrayBuilder, Date32Builder};
use arrow_array::builder::{
    BinaryViewBuilder, BooleanBuilder, Decimal128Builder, FixedSizeBinaryBuilder, Float32Builder, Float64Builder,
    Int16Builder, Int32Builder, Int64Builder, IntervalMonthDayNanoBuilder, StringViewBuilder,
    TimestampMicrosecondBuilder,
};
use arrow_schema::DataType;
use tidepool_base::SqlType;
use tidepool_table::NUMERIC_WIDTH;

pub enum ColumnBuilder {
    Boolean(BooleanBuilder),
    SmallInt(Int16Builder),
    Integer(Int32Builder),
    BigInt(Int64Builder),
    Real(Float32Builder),
    Double(Float64Builder),
    Numeric(Decimal128Builder),
    Unconstrained(FixedSizeBinaryBuilder),
    Text(StringViewBuilder),
    Date(Date32Builder),
    Timestamp(TimestampMicrosecondBuilder),
    Interval(IntervalMonthDayNanoBuilder),
    Bytea(BinaryViewBuilder),
}

macro_rules! each {
    ($self:expr, $builder:ident => $body:expr) => {
        match $self {
            ColumnBuilder::Boolean($builder) => $body,
            ColumnBuilder::SmallInt($builder) => $body,
            ColumnBuilder::Integer($builder) => $body,
            ColumnBuilder::BigInt($builder) => $body,
            ColumnBuilder::Real($builder) => $body,
            ColumnBuilder::Double($builder) => $body,
            ColumnBuilder::Numeric($builder) => $body,
            ColumnBuilder::Unconstrained($builder) => $body,
            ColumnBuilder::Text($builder) => $body,
            ColumnBuilder::Date($builder) => $body,
            ColumnBuilder::Timestamp($builder) => $body,
            ColumnBuilder::Interval($builder) => $body,
            ColumnBuilder::Bytea($builder) => $body,
        }
    };
}

impl ColumnBuilder {
    /// With room for `capacity` values: 0 for few of them.
    pub fn new(sql_type: SqlType, capacity: usize) -> ColumnBuilder {
        match sql_type {
            SqlType::Boolean => ColumnBuilder::Boolean(BooleanBuilder::with_capacity(capacity)),
            SqlType::SmallInt => ColumnBuilder::SmallInt(Int16Builder::with_capacity(capacity)),
            SqlType::Integer => ColumnBuilder::Integer(Int32Builder::with_capacity(capacity)),
            SqlType::BigInt => ColumnBuilder::BigInt(Int64Builder::with_capacity(capacity)),
            SqlType::Real => ColumnBuilder::Real(Float32Builder::with_capacity(capacity)),
            SqlType::DoublePrecision => ColumnBuilder::Double(Float64Builder::with_capacity(capacity)),
            SqlType::Numeric { precision, scale } => ColumnBuilder::Numeric(
                Decimal128Builder::with_capacity(capacity).with_data_type(DataType::Decimal128(precision, scale)),
            ),
            SqlType::UnconstrainedNumeric => {
                ColumnBuilder::Unconstrained(FixedSizeBinaryBuilder::with_capacity(capacity, NUMERIC_WIDTH))
            }
            SqlType::Text
            | SqlType::Varchar { .. }
            | SqlType::Char { .. }
            | SqlType::Json
            | SqlType::Jsonb
            | SqlType::Uuid => ColumnBuilder::Text(StringViewBuilder::with_capacity(capacity)),
            SqlType::Date => ColumnBuilder::Date(Date32Builder::with_capacity(capacity)),
            SqlType::Timestamp { .. } => ColumnBuilder::Timestamp(TimestampMicrosecondBuilder::with_capacity(capacity)),
            SqlType::TimestampTz { .. } => ColumnBuilder::Timestamp(
                TimestampMicrosecondBuilder::with_capacity(capacity).with_timezone_opt(Some("UTC")),
            ),
            SqlType::Interval => ColumnBuilder::Interval(IntervalMonthDayNanoBuilder::with_capacity(capacity)),
            SqlType::Bytea => ColumnBuilder::Bytea(BinaryViewBuilder::with_capacity(capacity)),
        }
    }

    #[inline]
    pub fn append_null(&mut self) {
        each!(self, builder => builder.append_null())
    }

    pub fn len(&self) -> usize {
        each!(self, builder => builder.len())
    }

    /// The column built so far; the builder is empty afterwards.
    pub fn finish(&mut self) -> ArrayRef {
        each!(self, builder => ArrayBuilder::finish(builder))
    }
}
