//! `regexp_match` and `regexp_matches`: what groups of a pattern matched, NULL for those that had no part in it.
//!
//! DataFusion's leaves such groups out, so that those behind them have others' places.

use super::{invalid, sql_error};
use crate::catalog::items::Items;
use crate::catalog::value::{Value, array_of};
use datafusion::arrow::array::{Array, AsArray, StringViewArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, ScalarValue, plan_err};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use regex::{Captures, Regex, RegexBuilder};
use std::sync::Arc;
use tidepool_base::SqlState;

/// The function that gives all matches, an array of their groups each.
pub const ALL_MATCHES: &str = "pg_all_matches";

#[derive(Debug, PartialEq, Eq, Hash)]
struct Matches {
    /// All that the flags ask for, as arrays in an array; or the first one's groups.
    is_set: bool,
    signature: Signature,
}

pub fn functions() -> [ScalarUDF; 2] {
    [false, true].map(|is_set| {
        let signature = Signature::user_defined(Volatility::Immutable);
        ScalarUDF::new_from_impl(Matches { is_set, signature })
    })
}

fn groups_type() -> DataType {
    DataType::List(Arc::new(Field::new_list_field(DataType::Utf8View, true)))
}

/// A pattern and its flags, and whether all matches are asked for.
fn compiled(pattern: &str, flags: &str) -> Result<(Regex, bool)> {
    let mut is_global = false;
    let mut pattern = pattern;
    let has_lines = flags.contains(['n', 'm', 'p']);
    if has_lines {
        // A dot is a line's end unless the flags say otherwise.
        pattern = pattern.strip_prefix("(?s)").unwrap_or(pattern);
    }
    let mut builder = RegexBuilder::new(pattern);
    for flag in flags.chars() {
        match flag {
            'g' => is_global = true,
            'i' => drop(builder.case_insensitive(true)),
            'n' | 'm' => drop(builder.multi_line(true)),
            'w' => drop(builder.multi_line(true)),
            'x' => drop(builder.ignore_whitespace(true)),
            'c' | 'e' | 'p' | 's' | 't' => {}
            other => return Err(invalid(format!("invalid regular expression option: \"{other}\""))),
        }
    }
    match builder.build() {
        Ok(regex) => Ok((regex, is_global)),
        Err(_) => Err(sql_error(SqlState::INVALID_REGULAR_EXPRESSION, "invalid regular expression")),
    }
}

fn groups_of(captures: &Captures<'_>) -> Value {
    let text = |group: Option<regex::Match<'_>>| group.map(|group| group.as_str().to_owned()).into();
    Value::List(match captures.len() {
        1 => vec![text(captures.get(0))],
        groups => (1..groups).map(|group| text(captures.get(group))).collect(),
    })
}

/// The groups of all matches. Behind an empty one the next begins a character further on.
fn all_of(regex: &Regex, text: &str) -> Result<Vec<Value>> {
    let (mut all, mut start) = (Items::default(), 0);
    while start <= text.len()
        && let Some(captures) = regex.captures_at(text, start)
    {
        let Some(found) = captures.get(0) else { break };
        all.push(groups_of(&captures))?;
        start = found.end();
        if found.is_empty() {
            start += text[start..].chars().next().map_or(1, char::len_utf8);
        }
    }
    Ok(all.into_vec())
}

impl ScalarUDFImpl for Matches {
    fn name(&self) -> &str {
        if self.is_set { ALL_MATCHES } else { "regexp_match" }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let is_text = |of: &DataType| of.is_string() || *of == DataType::Null;
        match matches!(types.len(), 2 | 3) && types.iter().all(is_text) {
            true => Ok(vec![DataType::Utf8View; types.len()]),
            false => {
                let names: Vec<String> = types.iter().map(ToString::to_string).collect();
                plan_err!("function {}({}) does not exist", self.name(), names.join(", "))
            }
        }
    }

    fn return_type(&self, _types: &[DataType]) -> Result<DataType> {
        Ok(match self.is_set {
            true => DataType::List(Arc::new(Field::new_list_field(groups_type(), true))),
            false => groups_type(),
        })
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let constant = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let texts = arrays.iter().map(|array| Ok(cast(array, &DataType::Utf8View)?)).collect::<Result<Vec<_>>>()?;
        let texts: Vec<&StringViewArray> = texts.iter().map(|array| array.as_string_view()).collect();
        let rows = texts.first().map_or(0, |first| first.len());
        // Of the last pattern and flags; most often there are no others.
        let mut known: Option<(&str, &str, (Regex, bool))> = None;
        let mut values = Vec::with_capacity(rows);
        for row in 0..rows {
            if texts.iter().any(|array| array.is_null(row)) {
                values.push(if self.is_set { Value::List(vec![]) } else { Value::Null });
                continue;
            }
            let (text, pattern) = (texts[0].value(row), texts[1].value(row));
            let flags = texts.get(2).map_or("", |flags| flags.value(row));
            if !matches!(&known, Some((of, with, _)) if (*of, *with) == (pattern, flags)) {
                known = Some((pattern, flags, compiled(pattern, flags)?));
            }
            let Some((_, _, (regex, is_global))) = &known else { continue };
            values.push(match (self.is_set, is_global) {
                (true, true) => Value::List(all_of(regex, text)?),
                (true, false) => Value::List(regex.captures(text).iter().map(groups_of).collect()),
                (false, true) => {
                    let message = "regexp_match() does not support the \"global\" option";
                    return Err(invalid(message));
                }
                (false, false) => regex.captures(text).map_or(Value::Null, |captures| groups_of(&captures)),
            });
        }
        let array = array_of(&values, &self.return_type(&[])?)?;
        Ok(match constant {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&array, 0)?),
            false => ColumnarValue::Array(array),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_matches_count() {
        let count = |pattern: &str, text: &str| all_of(&Regex::new(pattern).unwrap(), text).unwrap().len();
        assert_eq!(count("a*", "aab"), 3);
        assert_eq!(count("", "é€"), 3);
        assert_eq!(count("b", "aab"), 1);
        assert_eq!(count("^", "aab"), 1);
    }
}
