//! Keys: SQL values as bytes that compare as the values do, in PostgreSQL's order.
//!
//! A key is its columns' encodings one after the other. None of a column's encodings begins with another of them, so what
//! follows never decides before the column does.
//!
//! | type | encoding |
//! | --- | --- |
//! | `boolean` | one byte, 0 or 1 |
//! | `smallint`, `integer`, `bigint`, `date`, `timestamp`, `timestamptz` | big-endian with the sign bit turned |
//! | `numeric(p, s)` | the unscaled number likewise, in 4, 8 or 16 bytes as `p` needs |
//! | `numeric` without precision | 17 bytes, the same for equal numbers of whatever scale ([`tidepool_base::Numeric`]) |
//! | `real`, `double precision` | big-endian; of negative ones all bits turned, of others the sign; one NaN, above all; one zero |
//! | `interval` | its length in nanoseconds, a month as 30 days and a day as 24 hours, likewise in 12 bytes |
//! | `uuid` | its 16 bytes |
//! | `text`, `varchar`, `char` (without its trailing blanks), `bytea` | the bytes, 0 as 1 1 and 1 as 1 2, and a 0 at the end |
//!
//! Text is in the order of its bytes, collation `C`. A column that can be NULL begins with a byte that says so: 1 before a
//! value, and 0 or 2 for NULL, as it comes first or last. Of a descending column all bytes behind that are turned.
//!
//! ```
//! use tidepool_base::SqlType;
//! use tidepool_index::key::{KeyCodec, KeyColumn, KeyValue};
//!
//! let codec = KeyCodec::new(vec![KeyColumn::new(SqlType::Text)?, KeyColumn::new(SqlType::Integer)?.descending()]);
//! let key = |name, number| codec.encode([KeyValue::from(name), KeyValue::Integer(number)]);
//! assert!(key("harbour", 7)? < key("harbour", -7)?);
//! assert!(key("harbour", -7)? < key("harbours", 7)?);
//! # Ok::<(), tidepool_base::Error>(())
//! ```

mod decode;
mod encode;
mod range;
#[cfg(test)]
mod tests;

pub use range::KeyBounds;
use std::borrow::Cow;
use tidepool_base::{Error, Numeric, Result, SqlState, SqlType};

/// One value of a key, as Arrow holds it.
#[derive(Clone, Debug, PartialEq)]
pub enum KeyValue<'v> {
    Null,
    Boolean(bool),
    SmallInt(i16),
    Integer(i32),
    BigInt(i64),
    Real(f32),
    DoublePrecision(f64),
    /// The number without its scale, which is the column's.
    Numeric(i128),
    /// Of `numeric` without precision.
    Unconstrained(Numeric),
    /// `text`, `varchar` and `char`.
    Text(Cow<'v, str>),
    /// Days since 1970-01-01.
    Date(i32),
    /// Microseconds since 1970-01-01; of a `timestamptz`, in UTC.
    Timestamp(i64),
    Interval {
        months: i32,
        days: i32,
        nanoseconds: i64,
    },
    Bytea(Cow<'v, [u8]>),
    Uuid([u8; 16]),
}

impl<'v> From<&'v str> for KeyValue<'v> {
    fn from(text: &'v str) -> KeyValue<'v> {
        KeyValue::Text(Cow::Borrowed(text))
    }
}

impl<'v> From<&'v [u8]> for KeyValue<'v> {
    fn from(bytes: &'v [u8]) -> KeyValue<'v> {
        KeyValue::Bytea(Cow::Borrowed(bytes))
    }
}

impl KeyValue<'_> {
    /// A `uuid` from its canonical text. 22P02 for anything else.
    pub fn uuid(text: &str) -> Result<KeyValue<'static>> {
        let mut bytes = [0; 16];
        let mut digits = text.bytes().filter(|byte| *byte != b'-').map(|byte| (byte as char).to_digit(16));
        for byte in &mut bytes {
            let (Some(Some(high)), Some(Some(low))) = (digits.next(), digits.next()) else { return Err(no_uuid(text)) };
            *byte = (high << 4 | low) as u8;
        }
        if digits.next().is_some() { Err(no_uuid(text)) } else { Ok(KeyValue::Uuid(bytes)) }
    }
}

fn no_uuid(text: &str) -> Error {
    Error::new(SqlState::INVALID_TEXT_REPRESENTATION, format!("invalid input syntax for type uuid: \"{text}\""))
}

/// How one column of an index is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyColumn {
    sql_type: SqlType,
    nullable: bool,
    descending: bool,
    nulls_first: bool,
}

impl KeyColumn {
    /// Ascending, with NULLs, which come last. 42704 for a type without an order.
    pub fn new(sql_type: SqlType) -> Result<KeyColumn> {
        if sql_type.is_json() {
            return Err(Error::new(
                SqlState::UNDEFINED_OBJECT,
                format!("data type {sql_type} has no default operator class for access method \"btree\""),
            )
            .with_hint("You must specify an operator class for the index or define a default operator class for the data type."));
        }
        Ok(KeyColumn { sql_type, nullable: true, descending: false, nulls_first: false })
    }

    /// There are no NULLs: their byte is saved.
    pub fn not_null(self) -> KeyColumn {
        KeyColumn { nullable: false, ..self }
    }

    /// `DESC`: NULLs come first, unless [`KeyColumn::nulls_first`] says otherwise afterwards.
    pub fn descending(self) -> KeyColumn {
        KeyColumn { descending: true, nulls_first: true, ..self }
    }

    /// `NULLS FIRST` or `NULLS LAST`.
    pub fn nulls_first(self, first: bool) -> KeyColumn {
        KeyColumn { nulls_first: first, ..self }
    }

    pub fn sql_type(&self) -> SqlType {
        self.sql_type
    }

    /// There may be NULLs: a byte before each value says that it is none.
    pub fn is_nullable(&self) -> bool {
        self.nullable
    }

    pub fn is_descending(&self) -> bool {
        self.descending
    }

    /// Whether decoding gives back the very value. An `interval`'s parts are lost, and so are the sign of a zero
    /// and the zeros after a number without precision.
    pub fn is_reversible(&self) -> bool {
        !matches!(
            self.sql_type,
            SqlType::Interval | SqlType::Real | SqlType::DoublePrecision | SqlType::UnconstrainedNumeric
        )
    }
}

/// Makes keys of rows, and rows of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyCodec {
    columns: Vec<KeyColumn>,
}

impl KeyCodec {
    pub fn new(columns: Vec<KeyColumn>) -> KeyCodec {
        KeyCodec { columns }
    }

    pub fn columns(&self) -> &[KeyColumn] {
        &self.columns
    }

    /// The key of these values, of the first columns if they are fewer. XX000 for values that are not of the columns' types.
    pub fn encode<'v>(&self, values: impl IntoIterator<Item = KeyValue<'v>>) -> Result<Vec<u8>> {
        let mut key = Vec::new();
        self.encode_into(values, &mut key)?;
        Ok(key)
    }

    /// As `encode`, behind what is in `key`.
    pub fn encode_into<'v>(&self, values: impl IntoIterator<Item = KeyValue<'v>>, key: &mut Vec<u8>) -> Result<()> {
        for (index, value) in values.into_iter().enumerate() {
            self.push(index, &value, key)?;
        }
        Ok(())
    }

    /// Appends the value of column `index`.
    #[inline]
    pub fn push(&self, index: usize, value: &KeyValue<'_>, key: &mut Vec<u8>) -> Result<()> {
        let Some(column) = self.columns.get(index) else {
            return Err(Error::internal("a key has more values than its index has columns"));
        };
        encode::push(column, value, key)
    }

    /// The values of a key, as far as it goes. XX001 for bytes that no values have.
    ///
    /// Of a column that is not reversible it is a value that is equal to the one that was encoded.
    pub fn decode(&self, key: &[u8]) -> Result<Vec<KeyValue<'static>>> {
        let mut rest = key;
        let mut values = Vec::with_capacity(self.columns.len());
        for column in &self.columns {
            if rest.is_empty() {
                break;
            }
            values.push(decode::pop(column, &mut rest)?);
        }
        if rest.is_empty() { Ok(values) } else { Err(decode::damaged()) }
    }
}

const NULL_FIRST: u8 = 0;
/// Before a value of a column that may be NULL.
pub const NOT_NULL: u8 = 1;
const VALUE: u8 = NOT_NULL;
const NULL_LAST: u8 = 2;

/// Ends a string.
const END: u8 = 0;
/// Comes before what stands for a byte that is 0 or 1.
const ESCAPE: u8 = 1;

/// Bytes of a `numeric`, as its digits need.
fn numeric_len(precision: u8) -> usize {
    match precision {
        // 10^9 and 10^18 are below 2^31 and 2^63.
        0..=9 => 4,
        10..=18 => 8,
        _ => 16,
    }
}

const INTERVAL_LEN: usize = 12;
const DAY_NS: i128 = 86_400_000_000_000;
