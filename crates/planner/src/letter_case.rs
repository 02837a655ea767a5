//! `lower` and `upper`, one character for each: what PostgreSQL's `C.UTF-8` gives. The library's are those of a language, in which `ß` has two
//! capital letters and a sigma at the end of a word a form of its own.

use arrow::array::{Array, ArrayRef, AsArray, LargeStringArray, StringArray, StringViewArray};
use arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::ColumnarValue;
use std::sync::Arc;

pub fn is_case(name: &str) -> bool {
    matches!(name, "lower" | "upper")
}

fn lower(character: char) -> char {
    character.to_lowercase().next().unwrap_or(character)
}

fn upper(character: char) -> char {
    let mut capitals = character.to_uppercase();
    match (capitals.next(), capitals.next()) {
        (Some(capital), None) => capital,
        _ => character,
    }
}

/// The texts in the other case. `None` where the library's function gives the same.
pub fn converted(name: &str, args: &[ColumnarValue]) -> Result<Option<ColumnarValue>> {
    let [of] = args else { return Ok(None) };
    let of_text = |text: &str| -> String {
        match name {
            "lower" => text.chars().map(lower).collect(),
            _ => text.chars().map(upper).collect(),
        }
    };
    let array = match of {
        ColumnarValue::Array(array) => array.clone(),
        ColumnarValue::Scalar(scalar) => scalar.to_array()?,
    };
    let converted: ArrayRef = match array.data_type() {
        DataType::Utf8 if !array.as_string::<i32>().is_ascii() => {
            Arc::new(array.as_string::<i32>().iter().map(|text| text.map(of_text)).collect::<StringArray>())
        }
        DataType::LargeUtf8 if !array.as_string::<i64>().is_ascii() => {
            Arc::new(array.as_string::<i64>().iter().map(|text| text.map(of_text)).collect::<LargeStringArray>())
        }
        DataType::Utf8View if !array.as_string_view().is_ascii() => {
            Arc::new(array.as_string_view().iter().map(|text| text.map(of_text)).collect::<StringViewArray>())
        }
        _ => return Ok(None),
    };
    Ok(Some(match of {
        ColumnarValue::Array(_) => ColumnarValue::Array(converted),
        ColumnarValue::Scalar(_) => ColumnarValue::Scalar(ScalarValue::try_from_array(&converted, 0)?),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_character_has_one_in_the_other_case() {
        let all = |of: fn(char) -> char, text: &str| text.chars().map(of).collect::<String>();
        assert_eq!(all(lower, "ΧΣ İÉa1"), "χσ iéa1");
        assert_eq!(all(upper, "ß ŉ éχσς1"), "ß ŉ ÉΧΣΣ1");
    }
}
