//! Rows as values of Rust: columns with their places worked out once, values read straight from an image, and images made of
//! values. No Arrow on the way.
//!
//! | Rust | SQL |
//! | --- | --- |
//! | `bool`, `i16`, `i32`, `i64`, `f32`, `f64` | `boolean`, `smallint`, `integer`, `bigint`, `real`, `double precision` |
//! | [`Date`], [`Timestamp`] | `date`; `timestamp` and `timestamptz` |
//! | [`Decimal`] | `numeric` of at most 18 digits |
//! | `i128` | `numeric` of more digits, without its scale |
//! | [`Numeric`] | `numeric` without precision |
//! | `str`, `[u8]` | `text`, `varchar`, `char`; `bytea` |
//! | `[u8; 16]` | `uuid` |
//! | `Option` of these | the same where it may be NULL |

use super::layout::{Column as Slot, Kind, RowLayout, end_at, fixed, put_end};
use crate::{ColumnDef, TableDef};
use std::borrow::Cow;
use std::marker::PhantomData;
use tidepool_base::{Error, NUMERIC_BYTES, Numeric, Result, SqlState, SqlType, round_microseconds};
use tidepool_index::key::KeyValue;

/// Days since 1970-01-01.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Date(pub i32);

/// Microseconds since 1970-01-01; of a `timestamptz`, in UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp(pub i64);

/// A number of a `numeric` column without its scale, which is the column's: 12.34 of scale 2 is 1234.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Decimal(pub i64);

/// A type that a column's values are read as.
pub trait FieldType: 'static {
    /// A value in a row's image.
    type Value<'a>;

    #[doc(hidden)]
    fn fits(sql_type: SqlType) -> bool;

    /// NULL is one of its values.
    #[doc(hidden)]
    const NULLABLE: bool = false;

    #[doc(hidden)]
    fn read<'a, T>(image: &'a [u8], column: &Column<T>) -> Self::Value<'a>
    where
        T: ?Sized;
}

/// A type whose values can be put into an image.
pub trait Field {
    /// What the value is in a key.
    fn key(&self) -> KeyValue<'_>;

    #[doc(hidden)]
    fn put(&self, writer: &mut ImageWriter<'_>, place: usize) -> Result<()>;
}

/// A column of a table, for reading its values as `T`. Of the layout that it was made for.
pub struct Column<T: ?Sized> {
    index: u32,
    at: u32,
    before: u32,
    fixed_bytes: u32,
    of: PhantomData<fn(&T)>,
}

impl<T: ?Sized> Clone for Column<T> {
    fn clone(&self) -> Column<T> {
        *self
    }
}

impl<T: ?Sized> Copy for Column<T> {}

impl<T: ?Sized> std::fmt::Debug for Column<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Column({})", self.index)
    }
}

impl<T: FieldType + ?Sized> Column<T> {
    /// 42703 where the table has no such column, 42804 where its values are not of the type.
    pub fn new(layout: &RowLayout, def: &TableDef, name: &str) -> Result<Column<T>> {
        let index = def.column_index(name).ok_or_else(|| {
            let message = format!("column \"{name}\" of relation \"{}\" does not exist", def.name);
            Error::new(SqlState::UNDEFINED_COLUMN, message)
        })?;
        let column = &def.columns[index];
        if !T::fits(column.sql_type) || (column.nullable && !T::NULLABLE) {
            let null = if column.nullable { ", which may be null," } else { "" };
            let message = format!("column \"{name}\" of type {}{null} is not read as this type", column.sql_type);
            return Err(Error::new(SqlState::DATATYPE_MISMATCH, message));
        }
        let Slot { offset, before, .. } = layout.columns[index];
        Ok(Column {
            index: index as u32,
            at: offset as u32,
            before: before as u32,
            fixed_bytes: layout.fixed_bytes as u32,
            of: PhantomData,
        })
    }

    /// The column's value in a row's image.
    #[inline]
    pub fn of<'a>(&self, image: &'a [u8]) -> T::Value<'a> {
        T::read(image, self)
    }
}

impl<T: ?Sized> Column<T> {
    /// The column's position in its table.
    #[inline]
    pub fn index(&self) -> usize {
        self.index as usize
    }
}

#[inline]
fn variable<'a, T: ?Sized>(image: &'a [u8], column: &Column<T>) -> &'a [u8] {
    let start = if column.before == 0 { column.fixed_bytes as usize } else { end_at(image, column.before as usize) };
    &image[start..end_at(image, column.at as usize)]
}

/// A timestamp with as many digits as the column keeps.
#[inline]
fn rounded(timestamp: Timestamp, writer: &ImageWriter<'_>, place: usize) -> i64 {
    let digits = writer.def.columns[place].sql_type.rounds_to();
    digits.map_or(timestamp.0, |digits| round_microseconds(timestamp.0, digits))
}

macro_rules! fixed_type {
    ($type:ty, $bytes:ty, $($sql:pat_param)|+, $of:expr, $to:expr, $key:expr, $kinds:pat) => {
        impl FieldType for $type {
            type Value<'a> = $type;

            fn fits(sql_type: SqlType) -> bool {
                matches!(sql_type, $($sql)|+)
            }

            #[inline]
            fn read<T: ?Sized>(image: &[u8], column: &Column<T>) -> $type {
                $of(<$bytes>::from_le_bytes(fixed(image, column.at as usize)))
            }
        }

        impl Field for $type {
            #[inline]
            fn key(&self) -> KeyValue<'_> {
                $key(*self)
            }

            #[inline]
            fn put(&self, writer: &mut ImageWriter<'_>, place: usize) -> Result<()> {
                let slot = writer.layout.columns[place];
                if !matches!(slot.kind, $kinds) {
                    return Err(writer.mismatch(place));
                }
                let value: $bytes = $to(*self, &*writer, place);
                writer.put_fixed(place, slot.offset, &value.to_le_bytes());
                Ok(())
            }
        }
    };
}

fixed_type!(i16, i16, SqlType::SmallInt, |v| v, |v, _, _| v, KeyValue::SmallInt, Kind::Int16);
fixed_type!(i32, i32, SqlType::Integer, |v| v, |v, _, _| v, KeyValue::Integer, Kind::Int32);
fixed_type!(i64, i64, SqlType::BigInt, |v| v, |v, _, _| v, KeyValue::BigInt, Kind::Int64);
fixed_type!(f32, f32, SqlType::Real, |v| v, |v, _, _| v, KeyValue::Real, Kind::Float32);
fixed_type!(f64, f64, SqlType::DoublePrecision, |v| v, |v, _, _| v, KeyValue::DoublePrecision, Kind::Float64);
fixed_type!(Date, i32, SqlType::Date, Date, |v: Date, _, _| v.0, |v: Date| KeyValue::Date(v.0), Kind::Date);
fixed_type!(
    Timestamp,
    i64,
    SqlType::Timestamp { .. } | SqlType::TimestampTz { .. },
    Timestamp,
    rounded,
    |v: Timestamp| KeyValue::Timestamp(v.0),
    Kind::Timestamp | Kind::TimestampTz
);

impl FieldType for bool {
    type Value<'a> = bool;

    fn fits(sql_type: SqlType) -> bool {
        sql_type == SqlType::Boolean
    }

    #[inline]
    fn read<T: ?Sized>(image: &[u8], column: &Column<T>) -> bool {
        image[column.at as usize] != 0
    }
}

impl Field for bool {
    #[inline]
    fn key(&self) -> KeyValue<'_> {
        KeyValue::Boolean(*self)
    }

    #[inline]
    fn put(&self, writer: &mut ImageWriter<'_>, place: usize) -> Result<()> {
        let slot = writer.layout.columns[place];
        match slot.kind {
            Kind::Boolean => writer.put_fixed(place, slot.offset, &[u8::from(*self)]),
            _ => return Err(writer.mismatch(place)),
        }
        Ok(())
    }
}

impl FieldType for Decimal {
    type Value<'a> = Decimal;

    fn fits(sql_type: SqlType) -> bool {
        matches!(sql_type, SqlType::Numeric { precision, .. } if precision <= super::layout::SHORT_DIGITS_MAX)
    }

    #[inline]
    fn read<T: ?Sized>(image: &[u8], column: &Column<T>) -> Decimal {
        Decimal(i64::from_le_bytes(fixed(image, column.at as usize)))
    }
}

impl Field for Decimal {
    #[inline]
    fn key(&self) -> KeyValue<'_> {
        KeyValue::Numeric(self.0.into())
    }

    #[inline]
    fn put(&self, writer: &mut ImageWriter<'_>, place: usize) -> Result<()> {
        let slot = writer.layout.columns[place];
        match slot.kind {
            Kind::ShortDecimal { precision, .. } => {
                if self.0.unsigned_abs() >= 10u64.pow(precision.into()) {
                    return Err(writer.overflow(place));
                }
                writer.put_fixed(place, slot.offset, &self.0.to_le_bytes());
            }
            Kind::Decimal { .. } => writer.put_fixed(place, slot.offset, &i128::from(self.0).to_le_bytes()),
            _ => return Err(writer.mismatch(place)),
        }
        Ok(())
    }
}

/// Of `numeric` of any number of digits.
impl FieldType for i128 {
    type Value<'a> = i128;

    fn fits(sql_type: SqlType) -> bool {
        matches!(sql_type, SqlType::Numeric { precision, .. } if precision > super::layout::SHORT_DIGITS_MAX)
    }

    #[inline]
    fn read<T: ?Sized>(image: &[u8], column: &Column<T>) -> i128 {
        i128::from_le_bytes(fixed(image, column.at as usize))
    }
}

impl Field for i128 {
    #[inline]
    fn key(&self) -> KeyValue<'_> {
        KeyValue::Numeric(*self)
    }

    fn put(&self, writer: &mut ImageWriter<'_>, place: usize) -> Result<()> {
        let slot = writer.layout.columns[place];
        match slot.kind {
            Kind::Decimal { precision, .. } => {
                if self.unsigned_abs() >= 10u128.pow(precision.into()) {
                    return Err(writer.overflow(place));
                }
                writer.put_fixed(place, slot.offset, &self.to_le_bytes());
                Ok(())
            }
            Kind::ShortDecimal { .. } => match i64::try_from(*self) {
                Ok(short) => Decimal(short).put(writer, place),
                Err(_) => Err(writer.overflow(place)),
            },
            _ => Err(writer.mismatch(place)),
        }
    }
}

impl FieldType for Numeric {
    type Value<'a> = Numeric;

    fn fits(sql_type: SqlType) -> bool {
        sql_type == SqlType::UnconstrainedNumeric
    }

    /// Damaged bytes, which no image that was checked has, read as zero.
    #[inline]
    fn read<T: ?Sized>(image: &[u8], column: &Column<T>) -> Numeric {
        Numeric::from_bytes(&fixed::<NUMERIC_BYTES>(image, column.at as usize)).unwrap_or_default()
    }
}

impl Field for Numeric {
    fn key(&self) -> KeyValue<'_> {
        KeyValue::Unconstrained(*self)
    }

    fn put(&self, writer: &mut ImageWriter<'_>, place: usize) -> Result<()> {
        let slot = writer.layout.columns[place];
        match slot.kind {
            Kind::Numeric => writer.put_fixed(place, slot.offset, &self.to_bytes()),
            _ => return Err(writer.mismatch(place)),
        }
        Ok(())
    }
}

impl FieldType for [u8; 16] {
    type Value<'a> = [u8; 16];

    fn fits(sql_type: SqlType) -> bool {
        sql_type == SqlType::Uuid
    }

    #[inline]
    fn read<T: ?Sized>(image: &[u8], column: &Column<T>) -> [u8; 16] {
        fixed(image, column.at as usize)
    }
}

impl Field for [u8; 16] {
    #[inline]
    fn key(&self) -> KeyValue<'_> {
        KeyValue::Uuid(*self)
    }

    fn put(&self, writer: &mut ImageWriter<'_>, place: usize) -> Result<()> {
        let slot = writer.layout.columns[place];
        if slot.kind != Kind::Uuid {
            return Err(writer.mismatch(place));
        }
        writer.put_fixed(place, slot.offset, self);
        Ok(())
    }
}

/// As far as it is text.
#[inline]
fn text_before(bytes: &[u8]) -> &str {
    if bytes.is_ascii() {
        // SAFETY: ASCII is UTF-8. Looking for nothing else is several times as quick for a few dozen bytes.
        return unsafe { std::str::from_utf8_unchecked(bytes) };
    }
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or(""),
    }
}

impl FieldType for str {
    type Value<'a> = &'a str;

    fn fits(sql_type: SqlType) -> bool {
        matches!(sql_type, SqlType::Text | SqlType::Varchar { .. } | SqlType::Char { .. }) || sql_type.is_json()
    }

    #[inline]
    fn read<'a, T: ?Sized>(image: &'a [u8], column: &Column<T>) -> &'a str {
        // Every image was checked when it came from outside. One that was not is shown as far as it is text.
        text_before(variable(image, column))
    }
}

impl Field for str {
    #[inline]
    fn key(&self) -> KeyValue<'_> {
        KeyValue::Text(Cow::Borrowed(self))
    }

    #[inline]
    fn put(&self, writer: &mut ImageWriter<'_>, place: usize) -> Result<()> {
        let slot = writer.layout.columns[place];
        if slot.kind != Kind::Text {
            return Err(writer.mismatch(place));
        }
        let text = writer.fitted(place, self)?;
        writer.put_variable(place, text.as_bytes())
    }
}

impl FieldType for [u8] {
    type Value<'a> = &'a [u8];

    fn fits(sql_type: SqlType) -> bool {
        sql_type == SqlType::Bytea
    }

    #[inline]
    fn read<'a, T: ?Sized>(image: &'a [u8], column: &Column<T>) -> &'a [u8] {
        variable(image, column)
    }
}

impl Field for [u8] {
    #[inline]
    fn key(&self) -> KeyValue<'_> {
        KeyValue::Bytea(Cow::Borrowed(self))
    }

    fn put(&self, writer: &mut ImageWriter<'_>, place: usize) -> Result<()> {
        if writer.layout.columns[place].kind != Kind::Bytes {
            return Err(writer.mismatch(place));
        }
        writer.put_variable(place, self)
    }
}

/// Read as [`Column::<Option<Text>>`]: what may be NULL has to have a size.
#[derive(Clone, Copy, Debug)]
pub struct Text;

/// As [`Text`], of `bytea`.
#[derive(Clone, Copy, Debug)]
pub struct Bytes;

impl FieldType for Text {
    type Value<'a> = &'a str;

    fn fits(sql_type: SqlType) -> bool {
        str::fits(sql_type)
    }

    #[inline]
    fn read<'a, T: ?Sized>(image: &'a [u8], column: &Column<T>) -> &'a str {
        str::read(image, column)
    }
}

impl FieldType for Bytes {
    type Value<'a> = &'a [u8];

    fn fits(sql_type: SqlType) -> bool {
        <[u8]>::fits(sql_type)
    }

    #[inline]
    fn read<'a, T: ?Sized>(image: &'a [u8], column: &Column<T>) -> &'a [u8] {
        <[u8]>::read(image, column)
    }
}

impl<F: FieldType> FieldType for Option<F> {
    type Value<'a> = Option<F::Value<'a>>;

    fn fits(sql_type: SqlType) -> bool {
        F::fits(sql_type)
    }

    const NULLABLE: bool = true;

    #[inline]
    fn read<'a, T: ?Sized>(image: &'a [u8], column: &Column<T>) -> Option<F::Value<'a>> {
        let index = column.index as usize;
        let is_null = image[index / 8] & (1 << (index % 8)) != 0;
        if is_null { None } else { Some(F::read(image, column)) }
    }
}

impl<F: Field> Field for Option<F> {
    #[inline]
    fn key(&self) -> KeyValue<'_> {
        self.as_ref().map_or(KeyValue::Null, Field::key)
    }

    #[inline]
    fn put(&self, writer: &mut ImageWriter<'_>, place: usize) -> Result<()> {
        match self {
            Some(value) => value.put(writer, place),
            None => writer.put_null(place),
        }
    }
}

impl<F: Field + ?Sized> Field for &F {
    #[inline]
    fn key(&self) -> KeyValue<'_> {
        (**self).key()
    }

    #[inline]
    fn put(&self, writer: &mut ImageWriter<'_>, place: usize) -> Result<()> {
        (**self).put(writer, place)
    }
}

impl Field for String {
    fn key(&self) -> KeyValue<'_> {
        self.as_str().key()
    }

    fn put(&self, writer: &mut ImageWriter<'_>, place: usize) -> Result<()> {
        self.as_str().put(writer, place)
    }
}

/// A value of any type, where its type is known at run time only.
impl Field for KeyValue<'_> {
    fn key(&self) -> KeyValue<'_> {
        self.clone()
    }

    fn put(&self, writer: &mut ImageWriter<'_>, place: usize) -> Result<()> {
        match self {
            KeyValue::Null => writer.put_null(place),
            KeyValue::Boolean(value) => value.put(writer, place),
            KeyValue::SmallInt(value) => value.put(writer, place),
            KeyValue::Integer(value) => value.put(writer, place),
            KeyValue::BigInt(value) => value.put(writer, place),
            KeyValue::Real(value) => value.put(writer, place),
            KeyValue::DoublePrecision(value) => value.put(writer, place),
            KeyValue::Numeric(value) => value.put(writer, place),
            KeyValue::Unconstrained(value) => value.put(writer, place),
            KeyValue::Text(value) => (**value).put(writer, place),
            KeyValue::Date(value) => Date(*value).put(writer, place),
            KeyValue::Timestamp(value) => Timestamp(*value).put(writer, place),
            KeyValue::Bytea(value) => (**value).put(writer, place),
            KeyValue::Uuid(value) => value.put(writer, place),
            KeyValue::Interval { months, days, nanoseconds } => {
                let slot = writer.layout.columns[place];
                if slot.kind != Kind::Interval {
                    return Err(writer.mismatch(place));
                }
                let mut bytes = [0; 16];
                bytes[..4].copy_from_slice(&months.to_le_bytes());
                bytes[4..8].copy_from_slice(&days.to_le_bytes());
                bytes[8..].copy_from_slice(&nanoseconds.to_le_bytes());
                writer.put_fixed(place, slot.offset, &bytes);
                Ok(())
            }
        }
    }
}

/// All values of a row, in the order of the table's columns: a tuple, or a slice of values.
pub trait RowValues {
    #[doc(hidden)]
    fn count(&self) -> usize;

    #[doc(hidden)]
    fn put_all(&self, writer: &mut ImageWriter<'_>) -> Result<()>;
}

/// The values of an index's first columns: a tuple, or a slice of values.
pub trait KeyValues {
    #[doc(hidden)]
    fn count(&self) -> usize;

    /// Appends the key, and says whether one of the values is NULL.
    #[doc(hidden)]
    fn encode(&self, codec: &tidepool_index::key::KeyCodec, key: &mut Vec<u8>) -> Result<bool>;
}

impl<F: Field> RowValues for [F] {
    fn count(&self) -> usize {
        self.len()
    }

    fn put_all(&self, writer: &mut ImageWriter<'_>) -> Result<()> {
        self.iter().enumerate().try_for_each(|(place, value)| value.put(writer, place))
    }
}

impl<F: Field> KeyValues for [F] {
    fn count(&self) -> usize {
        self.len()
    }

    fn encode(&self, codec: &tidepool_index::key::KeyCodec, key: &mut Vec<u8>) -> Result<bool> {
        let mut has_null = false;
        for (place, value) in self.iter().enumerate() {
            let value = value.key();
            has_null |= value == KeyValue::Null;
            codec.push(place, &value, key)?;
        }
        Ok(has_null)
    }
}

impl<V: RowValues + ?Sized> RowValues for &V {
    fn count(&self) -> usize {
        (**self).count()
    }

    fn put_all(&self, writer: &mut ImageWriter<'_>) -> Result<()> {
        (**self).put_all(writer)
    }
}

impl<V: KeyValues + ?Sized> KeyValues for &V {
    fn count(&self) -> usize {
        (**self).count()
    }

    fn encode(&self, codec: &tidepool_index::key::KeyCodec, key: &mut Vec<u8>) -> Result<bool> {
        (**self).encode(codec, key)
    }
}

macro_rules! tuples {
    ($($name:ident $place:tt),+) => {
        impl<$($name: Field),+> RowValues for ($($name,)+) {
            fn count(&self) -> usize {
                [$($place),+].len()
            }

            #[inline]
            fn put_all(&self, writer: &mut ImageWriter<'_>) -> Result<()> {
                $(self.$place.put(writer, $place)?;)+
                Ok(())
            }
        }

        impl<$($name: Field),+> KeyValues for ($($name,)+) {
            fn count(&self) -> usize {
                [$($place),+].len()
            }

            #[inline]
            fn encode(&self, codec: &tidepool_index::key::KeyCodec, key: &mut Vec<u8>) -> Result<bool> {
                let mut has_null = false;
                $({
                    let value = self.$place.key();
                    has_null |= matches!(value, KeyValue::Null);
                    codec.push($place, &value, key)?;
                })+
                Ok(has_null)
            }
        }
    };
}

macro_rules! all_tuples {
    ([$($done:tt)*]) => {};
    ([] $name:ident $place:tt $($rest:tt)*) => {
        tuples!($name $place);
        all_tuples!([$name $place] $($rest)*);
    };
    ([$($done:tt)+] $name:ident $place:tt $($rest:tt)*) => {
        tuples!($($done)+, $name $place);
        all_tuples!([$($done)+, $name $place] $($rest)*);
    };
}

all_tuples!([] A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7 I 8 J 9 K 10 L 11 M 12 N 13 O 14 P 15 Q 16 R 17 S 18 T 19 U 20 V 21 W 22 X 23);

/// An empty key: a scan of everything.
impl KeyValues for () {
    fn count(&self) -> usize {
        0
    }

    fn encode(&self, _: &tidepool_index::key::KeyCodec, _: &mut Vec<u8>) -> Result<bool> {
        Ok(false)
    }
}

/// Makes an image of values, or changes one. Values of variable length are put in the order of their columns.
pub struct ImageWriter<'w> {
    layout: &'w RowLayout,
    def: &'w TableDef,
    image: &'w mut Vec<u8>,
}

impl<'w> ImageWriter<'w> {
    /// Puts a row's image in place of what `image` holds. 23502 for NULL where none may be, 22001 and 22003 for what is too long
    /// or too large, 42804 for a value of another type, 42601 for too few or too many of them, 54000 for a row that is too long.
    #[inline]
    pub fn make(
        layout: &'w RowLayout,
        def: &'w TableDef,
        values: &(impl RowValues + ?Sized),
        image: &'w mut Vec<u8>,
    ) -> Result<()> {
        if values.count() != layout.columns.len() {
            return Err(wrong_count(def, values.count()));
        }
        image.clear();
        image.resize(layout.fixed_bytes, 0);
        values.put_all(&mut ImageWriter { layout, def, image })
    }

    /// To change an image of the layout, which is a row's.
    pub fn change(layout: &'w RowLayout, def: &'w TableDef, image: &'w mut Vec<u8>) -> ImageWriter<'w> {
        ImageWriter { layout, def, image }
    }

    /// Puts a value in place of a column's. Errors as of `make`.
    #[inline]
    pub fn set<T: ?Sized, F: Field + ?Sized>(&mut self, column: Column<T>, value: &F) -> Result<()> {
        let index = column.index as usize;
        if !self.layout.columns[index].kind.is_variable() {
            return value.put(self, index);
        }
        self.replace_variable(index, value)
    }

    /// As it was, with another value of a column of variable length.
    fn replace_variable<F: Field + ?Sized>(&mut self, index: usize, value: &F) -> Result<()> {
        let layout = self.layout;
        let slot = layout.columns[index];
        let start = if slot.before == 0 { layout.fixed_bytes } else { end_at(self.image, slot.before) };
        let old_end = end_at(self.image, slot.offset);
        let tail = self.image.split_off(old_end);
        self.image.truncate(start);
        value.put(self, index)?;
        let moved = self.image.len() as i64 - old_end as i64;
        self.image.extend_from_slice(&tail);
        for later in layout.columns[index + 1..].iter().filter(|column| column.kind.is_variable()) {
            let end = (end_at(self.image, later.offset) as i64 + moved) as u32;
            self.image[later.offset..later.offset + 4].copy_from_slice(&end.to_le_bytes());
        }
        if self.image.len() > super::IMAGE_BYTES_MAX {
            return Err(Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "row is too long"));
        }
        Ok(())
    }

    #[inline]
    fn put_fixed(&mut self, place: usize, at: usize, bytes: &[u8]) {
        self.image[place / 8] &= !(1 << (place % 8));
        self.image[at..at + bytes.len()].copy_from_slice(bytes);
    }

    #[inline]
    fn put_variable(&mut self, place: usize, bytes: &[u8]) -> Result<()> {
        self.image[place / 8] &= !(1 << (place % 8));
        self.image.extend_from_slice(bytes);
        put_end(self.image, self.layout.columns[place].offset)
    }

    fn put_null(&mut self, place: usize) -> Result<()> {
        let column = &self.def.columns[place];
        if !column.nullable {
            return Err(self.null_in(column));
        }
        let slot = self.layout.columns[place];
        self.image[place / 8] |= 1 << (place % 8);
        let bytes = slot.kind.slot_bytes();
        self.image[slot.offset..slot.offset + bytes].fill(0);
        if slot.kind.is_variable() { put_end(self.image, slot.offset) } else { Ok(()) }
    }

    #[cold]
    fn null_in(&self, column: &ColumnDef) -> Error {
        let message = format!(
            "null value in column \"{}\" of relation \"{}\" violates not-null constraint",
            column.name, self.def.name
        );
        Error::new(SqlState::NOT_NULL_VIOLATION, message)
    }

    /// A text as its column takes it: without trailing blanks where it is padded with them. 22001 where it is too long.
    #[inline]
    fn fitted<'t>(&self, place: usize, text: &'t str) -> Result<&'t str> {
        let (length, text) = match self.def.columns[place].sql_type {
            SqlType::Varchar { length_max: Some(length) } => (length as usize, text),
            SqlType::Char { length } => (length as usize, text.trim_end_matches(' ')),
            _ => return Ok(text),
        };
        // As many bytes as characters at least.
        if text.len() <= length { Ok(text) } else { self.shortened(place, text, length) }
    }

    #[cold]
    fn shortened<'t>(&self, place: usize, text: &'t str, length: usize) -> Result<&'t str> {
        match text.char_indices().nth(length) {
            None => Ok(text),
            // Blanks that are too many are cut off, as in PostgreSQL.
            Some((at, _)) if text[at..].bytes().all(|byte| byte == b' ') => Ok(&text[..at]),
            Some(_) => Err(Error::new(
                SqlState::STRING_DATA_RIGHT_TRUNCATION,
                format!("value too long for type {}", self.def.columns[place].sql_type),
            )),
        }
    }

    #[cold]
    fn mismatch(&self, place: usize) -> Error {
        let column = &self.def.columns[place];
        let message = format!("column \"{}\" is of type {}, and the value is of another", column.name, column.sql_type);
        Error::new(SqlState::DATATYPE_MISMATCH, message)
    }

    #[cold]
    fn overflow(&self, place: usize) -> Error {
        let column = &self.def.columns[place];
        Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "numeric field overflow")
            .with_detail(format!("Column \"{}\" of type {} cannot hold it.", column.name, column.sql_type))
    }
}

#[cold]
fn wrong_count(def: &TableDef, count: usize) -> Error {
    let (columns, name) = (def.columns.len(), &def.name);
    Error::new(SqlState::SYNTAX_ERROR, format!("{count} values for the {columns} columns of relation \"{name}\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::Value;
    use crate::testing::table;

    fn def() -> TableDef {
        let mut def = TableDef::clone(&table(&[
            ("id", SqlType::BigInt),
            ("name", SqlType::Varchar { length_max: Some(5) }),
            ("price", SqlType::Numeric { precision: 5, scale: 2 }),
            ("note", SqlType::Text),
            ("code", SqlType::Char { length: 3 }),
            ("day", SqlType::Date),
        ]));
        def.columns[0].nullable = false;
        def.columns[1].nullable = false;
        def
    }

    fn image(def: &TableDef, values: impl RowValues) -> Result<Vec<u8>> {
        let mut image = Vec::new();
        ImageWriter::make(&RowLayout::new(def)?, def, &values, &mut image)?;
        RowLayout::new(def)?.check(&image)?;
        Ok(image)
    }

    #[test]
    fn values_come_back_as_they_went() {
        let def = def();
        let layout = RowLayout::new(&def).unwrap();
        let row = (7i64, "Ebbe", Some(Decimal(1234)), None::<&str>, Some("a  "), Some(Date(3)));
        let image = image(&def, row).unwrap();
        assert_eq!(Column::<i64>::new(&layout, &def, "id").unwrap().of(&image), 7);
        assert_eq!(Column::<str>::new(&layout, &def, "name").unwrap().of(&image), "Ebbe");
        assert_eq!(Column::<Option<Decimal>>::new(&layout, &def, "price").unwrap().of(&image), Some(Decimal(1234)));
        assert_eq!(Column::<Option<Text>>::new(&layout, &def, "note").unwrap().of(&image), None);
        assert_eq!(Column::<Option<Text>>::new(&layout, &def, "code").unwrap().of(&image), Some("a"));
        assert_eq!(Column::<Option<Date>>::new(&layout, &def, "day").unwrap().of(&image), Some(Date(3)));
        assert_eq!(layout.value(&image, 2), Value::Numeric(1234));
    }

    #[test]
    fn changed_images_are_those_of_the_changed_values() {
        let def = def();
        let layout = RowLayout::new(&def).unwrap();
        let name = Column::<str>::new(&layout, &def, "name").unwrap();
        let note = Column::<Option<Text>>::new(&layout, &def, "note").unwrap();
        let price = Column::<Option<Decimal>>::new(&layout, &def, "price").unwrap();
        let mut changed = image(&def, (7i64, "Ebbe", None::<Decimal>, Some("low"), Some("x"), None::<Date>)).unwrap();
        let mut writer = ImageWriter::change(&layout, &def, &mut changed);
        writer.set(name, "Flut").unwrap();
        writer.set(name, "Tide").unwrap();
        writer.set(note, &None::<&str>).unwrap();
        writer.set(price, &Decimal(5)).unwrap();
        let expected = image(&def, (7i64, "Tide", Some(Decimal(5)), None::<&str>, Some("x"), None::<Date>)).unwrap();
        assert_eq!(changed, expected);
        let mut writer = ImageWriter::change(&layout, &def, &mut changed);
        writer.set(note, "higher").unwrap();
        writer.set(name, "").unwrap();
        let expected = image(&def, (7i64, "", Some(Decimal(5)), Some("higher"), Some("x"), None::<Date>)).unwrap();
        assert_eq!(changed, expected);
        layout.check(&changed).unwrap();
    }

    #[test]
    fn timestamps_are_rounded_to_their_columns_precision() {
        let sql_type = SqlType::TimestampTz { precision: Some(3) };
        let def = TableDef::clone(&table(&[("at", sql_type), ("exact", SqlType::TIMESTAMP)]));
        let layout = RowLayout::new(&def).unwrap();
        let image = image(&def, (Some(Timestamp(1_600_000_000_001_500)), Some(Timestamp(1_501)))).unwrap();
        assert_eq!(layout.value(&image, 0), Value::Int(1_600_000_000_002_000));
        assert_eq!(layout.value(&image, 1), Value::Int(1_501));
    }

    #[test]
    fn what_a_table_does_not_take_is_refused() {
        let def = def();
        let code = |row: Result<Vec<u8>>| row.unwrap_err().code();
        let row = |name| (7i64, name, Decimal(1), "", "", Date(1));
        assert_eq!(code(image(&def, (7i64, None::<&str>, Decimal(1), "", "", Date(1)))), SqlState::NOT_NULL_VIOLATION);
        assert_eq!(code(image(&def, (7i32, "a", Decimal(1), "", "", Date(1)))), SqlState::DATATYPE_MISMATCH);
        assert_eq!(code(image(&def, row("longer"))), SqlState::STRING_DATA_RIGHT_TRUNCATION);
        let large = (7i64, "a", Decimal(100_000), "", "", Date(1));
        assert_eq!(code(image(&def, large)), SqlState::NUMERIC_VALUE_OUT_OF_RANGE);
        assert_eq!(code(image(&def, (7i64, "a", Decimal(1), "", "", Date(1), 1i32))), SqlState::SYNTAX_ERROR);
        assert_eq!(code(image(&def, (7i64,))), SqlState::SYNTAX_ERROR);
        image(&def, row("fünf ")).unwrap();
        let layout = RowLayout::new(&def).unwrap();
        assert_eq!(Column::<i64>::new(&layout, &def, "none").unwrap_err().code(), SqlState::UNDEFINED_COLUMN);
        assert_eq!(Column::<i32>::new(&layout, &def, "id").unwrap_err().code(), SqlState::DATATYPE_MISMATCH);
        assert_eq!(Column::<Decimal>::new(&layout, &def, "price").unwrap_err().code(), SqlState::DATATYPE_MISMATCH);
    }
}
