//! Numbers of `numeric` without precision: their texts and binary forms, and arrays of them from and into arrays of other numbers.

use super::number::{parse_exact, write_decimal};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    Decimal128Type, Decimal256Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, FixedSizeBinaryArray, PrimitiveArray};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::DataType;
use std::sync::Arc;
use tidepool_base::{Error, Numeric, Result, SqlState};
use tidepool_table::NUMERIC_WIDTH;

/// How Arrow holds the numbers.
pub const NUMERIC: DataType = DataType::FixedSizeBinary(NUMERIC_WIDTH);

/// The number of these bytes. XX001 for bytes that are none.
pub fn number_of(bytes: &[u8]) -> Result<Numeric> {
    Numeric::from_bytes(bytes).ok_or_else(|| Error::corrupted("a number's bytes are damaged"))
}

/// 22P02 for a text that is no number, 22003 for one of more digits than are held.
pub fn parse(text: &str) -> Result<Numeric> {
    let (unscaled, scale) = parse_exact(text)?;
    Numeric::new(unscaled, scale)
}

pub fn write(value: Numeric, out: &mut Vec<u8>) {
    write_decimal(value.unscaled(), i32::from(value.scale()), out);
}

/// An array of numbers.
pub fn array_of(numbers: impl Iterator<Item = Option<Numeric>>) -> Result<ArrayRef> {
    let bytes = numbers.map(|number| number.map(Numeric::to_bytes));
    FixedSizeBinaryArray::try_from_sparse_iter_with_size(bytes, NUMERIC_WIDTH)
        .map(|array| Arc::new(array) as ArrayRef)
        .map_err(|error| Error::internal(error.to_string()))
}

/// The numbers of an array.
pub fn numbers(array: &dyn Array) -> impl Iterator<Item = Result<Option<Numeric>>> + '_ {
    array.as_fixed_size_binary().iter().map(|bytes| bytes.map(number_of).transpose())
}

/// A float's number as PostgreSQL casts it: of so many significant digits, without zeros at the end.
pub fn of_float(value: f64, digits: usize) -> Result<Numeric> {
    if !value.is_finite() {
        let name = if value.is_nan() { "NaN" } else { "infinity" };
        return Err(Error::unsupported(format!("cannot convert {name} to numeric")));
    }
    parse(&format!("{value:.*e}", digits - 1)).map(Numeric::trimmed)
}

/// An array of numbers of any type as numbers that each have a scale. `None` for an array of other values.
pub fn from_array(array: &ArrayRef) -> Option<Result<ArrayRef>> {
    fn each<T: ArrowPrimitiveType>(
        array: &ArrayRef,
        number: impl Fn(T::Native) -> Result<Numeric>,
    ) -> Result<ArrayRef> {
        let numbers = array.as_primitive::<T>().iter().map(|value| value.map(&number).transpose());
        array_of(numbers.collect::<Result<Vec<_>>>()?.into_iter())
    }
    fn int<T: ArrowPrimitiveType>(array: &ArrayRef) -> Result<ArrayRef>
    where
        i128: From<T::Native>,
    {
        each::<T>(array, |value| Numeric::new(i128::from(value), 0))
    }
    let overflow = || Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "value overflows numeric format");
    Some(match array.data_type() {
        DataType::FixedSizeBinary(NUMERIC_WIDTH) => Ok(array.clone()),
        DataType::Int8 => int::<Int8Type>(array),
        DataType::Int16 => int::<Int16Type>(array),
        DataType::Int32 => int::<Int32Type>(array),
        DataType::Int64 => int::<Int64Type>(array),
        DataType::UInt8 => int::<UInt8Type>(array),
        DataType::UInt16 => int::<UInt16Type>(array),
        DataType::UInt32 => int::<UInt32Type>(array),
        DataType::UInt64 => int::<UInt64Type>(array),
        DataType::Float32 => each::<Float32Type>(array, |value| of_float(f64::from(value), 6)),
        DataType::Float64 => each::<Float64Type>(array, |value| of_float(value, 15)),
        DataType::Decimal128(_, scale) => each::<Decimal128Type>(array, |value| Numeric::of_decimal(value, *scale)),
        DataType::Decimal256(_, scale) => each::<Decimal256Type>(array, |value| {
            value.to_i128().ok_or_else(overflow).and_then(|value| Numeric::of_decimal(value, *scale))
        }),
        DataType::Decimal32(precision, scale) | DataType::Decimal64(precision, scale) => {
            let wide = DataType::Decimal128(*precision, *scale);
            let cast = arrow_cast::cast(array, &wide).map_err(|error| Error::internal(error.to_string()));
            return Some(cast.and_then(|array| from_array(&array).unwrap_or(Ok(array))));
        }
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
            let texts = match arrow_cast::cast(array, &DataType::Utf8View) {
                Ok(texts) => texts,
                Err(error) => return Some(Err(Error::internal(error.to_string()))),
            };
            let numbers = texts.as_string_view().iter().map(|text| text.map(parse).transpose());
            numbers.collect::<Result<Vec<_>>>().and_then(|numbers| array_of(numbers.into_iter()))
        }
        DataType::Null => array_of(std::iter::repeat_n(None, array.len())),
        _ => return None,
    })
}

/// Numbers that each have a scale as an array of another type of numbers, rounded half away from zero; or of texts. 22003 for what the
/// type does not hold. `None` where the type is of other values.
pub fn into_array(array: &ArrayRef, target: &DataType) -> Option<Result<ArrayRef>> {
    fn each<T: ArrowPrimitiveType>(
        array: &ArrayRef,
        target: &DataType,
        value: impl Fn(Numeric) -> Result<T::Native>,
    ) -> Result<ArrayRef> {
        let values = numbers(array).map(|number| number?.map(&value).transpose());
        let values = values.collect::<Result<PrimitiveArray<T>>>()?;
        Ok(Arc::new(values.with_data_type(target.clone())))
    }
    fn int<T: ArrowPrimitiveType>(array: &ArrayRef, target: &DataType, name: &str) -> Result<ArrayRef>
    where
        T::Native: TryFrom<i64>,
    {
        each::<T>(array, target, |number| {
            number
                .to_i64()
                .and_then(|value| value.try_into().ok())
                .ok_or_else(|| Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, format!("{name} out of range")))
        })
    }
    Some(match target {
        DataType::FixedSizeBinary(NUMERIC_WIDTH) => Ok(array.clone()),
        DataType::Int16 => int::<Int16Type>(array, target, "smallint"),
        DataType::Int32 => int::<Int32Type>(array, target, "integer"),
        DataType::Int64 => int::<Int64Type>(array, target, "bigint"),
        DataType::UInt32 => int::<UInt32Type>(array, target, "oid"),
        DataType::Float32 => each::<Float32Type>(array, target, |number| Ok(number.to_f64() as f32)),
        DataType::Float64 => each::<Float64Type>(array, target, |number| Ok(number.to_f64())),
        DataType::Decimal128(precision, scale @ 0..) => {
            each::<Decimal128Type>(array, target, |number| decimal(number, *precision, *scale))
        }
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
            let mut texts = arrow_array::builder::StringViewBuilder::with_capacity(array.len());
            let mut text = Vec::new();
            for number in numbers(array) {
                match number {
                    Ok(Some(number)) => {
                        text.clear();
                        write(number, &mut text);
                        texts.append_value(String::from_utf8_lossy(&text));
                    }
                    Ok(None) => texts.append_null(),
                    Err(error) => return Some(Err(error)),
                }
            }
            arrow_cast::cast(&texts.finish(), target).map_err(|error| Error::internal(error.to_string()))
        }
        _ => return None,
    })
}

/// A number as one of `numeric(precision, scale)`, without its scale. 22003 where it has more digits before the point.
pub fn decimal(number: Numeric, precision: u8, scale: i8) -> Result<i128> {
    super::number::rescale(number.unscaled(), i32::from(number.scale()), precision, scale)
}

/// An array as another type, from and into numbers that each have a scale too. As Arrow casts all others, without replacing what does
/// not fit by NULL.
pub fn cast_array(array: &ArrayRef, target: &DataType) -> std::result::Result<ArrayRef, CastError> {
    let cast = if array.data_type() == target {
        None
    } else if *target == NUMERIC {
        from_array(array)
    } else if *array.data_type() == NUMERIC {
        into_array(array, target)
    } else {
        None
    };
    match cast {
        Some(cast) => cast.map_err(CastError::Value),
        None if array.data_type() == target => Ok(array.clone()),
        None => {
            let options = CastOptions { safe: false, ..CastOptions::default() };
            cast_with_options(array, target, &options).map_err(CastError::Arrow)
        }
    }
}

/// Why an array could not be cast.
pub enum CastError {
    Value(Error),
    Arrow(arrow_schema::ArrowError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{Float64Array, Int64Array, StringArray};

    fn shown(array: &ArrayRef) -> Vec<String> {
        let texts = into_array(array, &DataType::Utf8).unwrap().unwrap();
        texts.as_string::<i32>().iter().map(|text| text.unwrap_or("NULL").to_owned()).collect()
    }

    #[test]
    fn numbers_keep_their_scale_from_any_type() {
        let of = |array: ArrayRef| shown(&from_array(&array).unwrap().unwrap());
        assert_eq!(of(Arc::new(Int64Array::from(vec![Some(-7), None]))), ["-7", "NULL"]);
        assert_eq!(of(Arc::new(Float64Array::from(vec![0.1, 1e20, -2.50]))), ["0.1", "100000000000000000000", "-2.5"]);
        assert_eq!(
            of(Arc::new(StringArray::from(vec!["1.50", " 1e-21 ", "1e3", "00.0"]))),
            ["1.50", "0.000000000000000000001", "1000", "0.0"]
        );
    }

    #[test]
    fn what_has_too_many_digits_is_refused() {
        for text in ["1e38", "1e-39", "123456789012345678901234567890.123456789"] {
            assert_eq!(parse(text).unwrap_err().code(), SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "{text}");
        }
        for text in ["", "1.2.3", "abc", "1e"] {
            assert_eq!(parse(text).unwrap_err().code(), SqlState::INVALID_TEXT_REPRESENTATION, "{text}");
        }
        let array = array_of([Some(parse("70000.5").unwrap())].into_iter()).unwrap();
        assert!(into_array(&array, &DataType::Int16).unwrap().is_err());
        let rounded = into_array(&array, &DataType::Int64).unwrap().unwrap();
        assert_eq!(rounded.as_primitive::<Int64Type>().value(0), 70001);
        assert!(into_array(&array, &DataType::Decimal128(5, 1)).unwrap().is_err());
    }
}
