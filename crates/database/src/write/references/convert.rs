//! Values of one type as values of another that are equal to them: a foreign key's columns need not have the types of
//! those that they refer to.

use std::borrow::Cow;
use tidepool_base::{Numeric, SqlType};
use tidepool_index::key::KeyValue;

const DAY_US: i64 = 86_400_000_000;

/// A value of a referenced column, as a column that refers to it has it.
pub enum Reverse<'v> {
    Value(KeyValue<'v>),
    /// None is equal to it.
    Nothing,
    /// Several may be.
    Several,
}

fn is_integer(sql_type: SqlType) -> bool {
    matches!(sql_type, SqlType::SmallInt | SqlType::Integer | SqlType::BigInt)
}

fn is_float(sql_type: SqlType) -> bool {
    matches!(sql_type, SqlType::Real | SqlType::DoublePrecision)
}

fn is_string(sql_type: SqlType) -> bool {
    matches!(sql_type, SqlType::Text | SqlType::Varchar { .. } | SqlType::Char { .. })
}

/// Whether a column of one type can refer to one of the other: PostgreSQL compares them as the latter is ordered, after
/// casts that it makes by itself. What a `timestamptz` is beside a `timestamp` depends on the session, so that is left
/// out.
pub fn can_refer(from: SqlType, to: SqlType) -> bool {
    let is_day = |sql_type| matches!(sql_type, SqlType::Date | SqlType::Timestamp { .. });
    !from.is_json()
        && (from.without_precision() == to.without_precision()
            || is_integer(from) && (is_integer(to) || to.is_numeric() || is_float(to))
            || from.is_numeric() && (to.is_numeric() || is_float(to))
            || is_float(from) && is_float(to)
            || is_string(from) && is_string(to)
            || is_day(from) && is_day(to))
}

/// The value of type `to` that is equal to one of type `from`. `None` when there is none.
pub fn convert<'v>(value: KeyValue<'v>, from: SqlType, to: SqlType) -> Option<KeyValue<'v>> {
    if from.without_precision() == to.without_precision() {
        return Some(value);
    }
    let scale = |sql_type: SqlType| match sql_type {
        SqlType::Numeric { scale, .. } => scale,
        _ => 0,
    };
    match value {
        KeyValue::SmallInt(value) => of_number(value.into(), 0, to),
        KeyValue::Integer(value) => of_number(value.into(), 0, to),
        KeyValue::BigInt(value) => of_number(value.into(), 0, to),
        KeyValue::Numeric(value) => of_number(value, scale(from), to),
        KeyValue::Unconstrained(number) => match to {
            SqlType::Real => Some(KeyValue::Real(number.to_f64() as f32)),
            SqlType::DoublePrecision => Some(KeyValue::DoublePrecision(number.to_f64())),
            to => {
                let number = number.trimmed();
                of_number(number.unscaled(), number.scale() as i8, to)
            }
        },
        KeyValue::Real(value) if to == SqlType::DoublePrecision => Some(KeyValue::DoublePrecision(value.into())),
        KeyValue::DoublePrecision(value) if to == SqlType::Real => {
            let narrow = value as f32;
            (f64::from(narrow) == value || value.is_nan()).then_some(KeyValue::Real(narrow))
        }
        KeyValue::Text(text) if matches!(to, SqlType::Char { .. }) => Some(KeyValue::Text(match text {
            Cow::Borrowed(text) => Cow::Borrowed(text.trim_end_matches(' ')),
            Cow::Owned(text) => Cow::Owned(text.trim_end_matches(' ').to_owned()),
        })),
        KeyValue::Text(text) if is_string(to) => Some(KeyValue::Text(text)),
        KeyValue::Date(days) if to.without_precision() == SqlType::TIMESTAMP => {
            i64::from(days).checked_mul(DAY_US).map(KeyValue::Timestamp)
        }
        KeyValue::Timestamp(value) if to == SqlType::Date && value % DAY_US == 0 => {
            i32::try_from(value / DAY_US).ok().map(KeyValue::Date)
        }
        _ => None,
    }
}

/// `value` times ten to the power of minus `scale`.
fn of_number(value: i128, scale: i8, to: SqlType) -> Option<KeyValue<'static>> {
    let rescaled = |to_scale: i8| {
        let digits = i32::from(to_scale) - i32::from(scale);
        let factor = 10_i128.checked_pow(digits.unsigned_abs())?;
        match digits >= 0 {
            true => value.checked_mul(factor),
            false => (value % factor == 0).then_some(value / factor),
        }
    };
    Some(match to {
        SqlType::SmallInt => KeyValue::SmallInt(rescaled(0)?.try_into().ok()?),
        SqlType::Integer => KeyValue::Integer(rescaled(0)?.try_into().ok()?),
        SqlType::BigInt => KeyValue::BigInt(rescaled(0)?.try_into().ok()?),
        SqlType::Numeric { precision, scale } => {
            let value = rescaled(scale)?;
            let fits = value.unsigned_abs() < 10_u128.checked_pow(precision.into())?;
            fits.then_some(KeyValue::Numeric(value))?
        }
        SqlType::UnconstrainedNumeric => KeyValue::Unconstrained(Numeric::of_decimal(value, scale).ok()?),
        // As PostgreSQL casts them before it compares.
        SqlType::Real => KeyValue::Real(value as f32 / 10_f32.powi(scale.into())),
        SqlType::DoublePrecision => KeyValue::DoublePrecision(value as f64 / 10_f64.powi(scale.into())),
        _ => return None,
    })
}

/// What a column of type `from` has that refers to `value` of type `to`.
pub fn reverse<'v>(value: KeyValue<'v>, from: SqlType, to: SqlType) -> Reverse<'v> {
    let rounds = is_float(to) && !is_float(from);
    // Blanks at the end are lost on the way.
    let trims = matches!(to, SqlType::Char { .. }) && !matches!(from, SqlType::Char { .. });
    if rounds || trims {
        return Reverse::Several;
    }
    convert(value, to, from).map_or(Reverse::Nothing, Reverse::Value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMERIC: SqlType = SqlType::Numeric { precision: 5, scale: 2 };

    #[test]
    fn values_become_the_equal_ones_of_other_types() {
        let convert = |value, from, to| convert(value, from, to);
        assert_eq!(convert(KeyValue::BigInt(7), SqlType::BigInt, SqlType::SmallInt), Some(KeyValue::SmallInt(7)));
        assert_eq!(convert(KeyValue::BigInt(70_000), SqlType::BigInt, SqlType::SmallInt), None);
        assert_eq!(convert(KeyValue::Integer(7), SqlType::Integer, NUMERIC), Some(KeyValue::Numeric(700)));
        assert_eq!(convert(KeyValue::Integer(1000), SqlType::Integer, NUMERIC), None);
        assert_eq!(convert(KeyValue::Numeric(700), NUMERIC, SqlType::Integer), Some(KeyValue::Integer(7)));
        assert_eq!(convert(KeyValue::Numeric(701), NUMERIC, SqlType::Integer), None);
        let number = KeyValue::Unconstrained(Numeric::new(7000, 3).unwrap());
        assert_eq!(convert(KeyValue::Numeric(700), NUMERIC, SqlType::UnconstrainedNumeric), Some(number.clone()));
        assert_eq!(
            convert(number.clone(), SqlType::UnconstrainedNumeric, SqlType::Integer),
            Some(KeyValue::Integer(7))
        );
        assert_eq!(convert(number, SqlType::UnconstrainedNumeric, NUMERIC), Some(KeyValue::Numeric(700)));
        let wide = SqlType::Numeric { precision: 20, scale: 4 };
        assert_eq!(convert(KeyValue::Numeric(701), NUMERIC, wide), Some(KeyValue::Numeric(70_100)));
        assert_eq!(convert(KeyValue::Numeric(70_101), wide, NUMERIC), None);
        assert_eq!(convert(KeyValue::Date(-1), SqlType::Date, SqlType::TIMESTAMP), Some(KeyValue::Timestamp(-DAY_US)));
        assert_eq!(convert(KeyValue::Timestamp(1), SqlType::TIMESTAMP, SqlType::Date), None);
        let text = |text| KeyValue::from(text);
        assert_eq!(convert(text("a "), SqlType::Text, SqlType::Char { length: 3 }), Some(text("a")));
        let half = KeyValue::DoublePrecision(0.5);
        assert_eq!(convert(half, SqlType::DoublePrecision, SqlType::Real), Some(KeyValue::Real(0.5)));
        assert_eq!(convert(KeyValue::DoublePrecision(0.1), SqlType::DoublePrecision, SqlType::Real), None);
    }

    #[test]
    fn types_refer_to_those_that_postgresql_compares_them_with() {
        assert!(can_refer(SqlType::SmallInt, SqlType::BigInt) && can_refer(SqlType::BigInt, SqlType::SmallInt));
        assert!(can_refer(SqlType::Integer, NUMERIC) && !can_refer(NUMERIC, SqlType::Integer));
        assert!(can_refer(SqlType::Text, SqlType::Varchar { length_max: Some(3) }));
        assert!(!can_refer(SqlType::Text, SqlType::Integer) && !can_refer(SqlType::Uuid, SqlType::Text));
        assert!(!can_refer(SqlType::TIMESTAMP, SqlType::TIMESTAMPTZ) && !can_refer(SqlType::Json, SqlType::Json));
    }
}
