//! SQL's words, for clients that ask which of them to quote.

use super::Function;
use crate::catalog::value::Value;
use datafusion::arrow::datatypes::{DataType, Field};
use std::sync::Arc;

/// Columns of `pg_get_keywords()`.
pub const KEYWORD_COLUMNS: [&str; 5] = ["word", "catcode", "barelabel", "catdesc", "baredesc"];

pub fn functions() -> Vec<Function> {
    vec![Function::new("pg_keywords", &[&[]], "_text", |_, _| Ok(Value::List(keywords()))).returning(|_| {
        let field = |name: &str| match name {
            "barelabel" => Field::new(name, DataType::Boolean, true),
            _ => Field::new(name, DataType::Utf8, true),
        };
        let row = DataType::Struct(KEYWORD_COLUMNS.iter().map(|name| field(name)).collect());
        Ok(DataType::List(Arc::new(Field::new_list_field(row, true))))
    })]
}

fn keywords() -> Vec<Value> {
    let lines = include_str!("../data/keywords.txt").lines().filter(|line| !line.starts_with('#'));
    let row = |line: &'static str| {
        let [word, category, label] = line.split(' ').collect::<Vec<_>>().try_into().ok()?;
        let category_meant = match category {
            "U" => "unreserved",
            "C" => "unreserved (cannot be function or type name)",
            "T" => "reserved (can be function or type name)",
            _ => "reserved",
        };
        let is_label = label == "t";
        let label_meant = if is_label { "can be bare label" } else { "requires AS" };
        Some(Value::Struct(vec![
            word.into(),
            category.into(),
            is_label.into(),
            category_meant.into(),
            label_meant.into(),
        ]))
    };
    lines.filter_map(row).collect()
}
