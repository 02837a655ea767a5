//! JSON: reading it, and making it of values.
//!
//! `json` is text that was checked when it came in, and keeps its blanks and its order of keys; what is taken out of it
//! is a piece of that text. What the `jsonb_…` functions return is written as PostgreSQL writes `jsonb`: each key once,
//! shorter ones first.

use super::Type::*;
use super::{Call, Function, invalid};
use crate::catalog::items::Items;
use crate::catalog::value::Value;
use crate::errors::carry;
use crate::types::{TYPE_OID_METADATA, declared_type};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::Result;
use tidepool_base::SqlType;
use tidepool_database::text::json::{self, jsonb};

pub fn functions() -> Vec<Function> {
    let mut list = vec![
        Function::new("json_get", &[&[Text, Text], &[Text, Int8]], "json", |_, args| {
            Ok(member(args[0].as_str(), &args[1])?.map(str::to_owned).into())
        })
        .of_first("json", "jsonb"),
        Function::new("json_get_text", &[&[Text, Text], &[Text, Int8]], "text", |_, args| {
            Ok(match member(args[0].as_str(), &args[1])? {
                Some(found) => plain(found)?,
                None => Value::Null,
            })
        }),
        Function::new("json_get_path", &[&[Text, Text], &[Text, List]], "json", |_, args| {
            Ok(at_path(args[0].as_str(), &path(&args[1..]))?.map(str::to_owned).into())
        })
        .of_first("json", "jsonb"),
        Function::new("json_get_path_text", &[&[Text, Text], &[Text, List]], "text", |_, args| {
            match at_path(args[0].as_str(), &path(&args[1..]))? {
                Some(found) => plain(found),
                None => Ok(Value::Null),
            }
        }),
        Function::new("json_extract_path", &[&[Text, Rest]], "json", |_, args| {
            Ok(at_path(args[0].as_str(), &path(&args[1..]))?.map(str::to_owned).into())
        })
        .alias("jsonb_extract_path")
        .of_first("json", "jsonb"),
        Function::new("json_extract_path_text", &[&[Text, Rest]], "text", |_, args| {
            match at_path(args[0].as_str(), &path(&args[1..]))? {
                Some(found) => plain(found),
                None => Ok(Value::Null),
            }
        })
        .alias("jsonb_extract_path_text"),
        Function::new("json_array_length", &[&[Text]], "int4", |_, args| Ok(items(args[0].as_str())?.len().into()))
            .alias("jsonb_array_length"),
        Function::new("json_typeof", &[&[Text]], "text", |_, args| {
            Ok(match args[0].as_str().trim_start().as_bytes().first() {
                Some(b'{') => "object",
                Some(b'[') => "array",
                Some(b'"') => "string",
                Some(b't' | b'f') => "boolean",
                Some(b'n') => "null",
                _ => "number",
            }
            .into())
        })
        .alias("jsonb_typeof"),
        Function::new("json_items", &[&[Text]], "_json", |_, args| {
            let items = items(args[0].as_str())?.into_iter();
            Ok(Value::List(Items::of(items.map(|item| Ok(Value::text(item))))?))
        })
        .of_first("_json", "_jsonb"),
        Function::new("json_item_texts", &[&[Text]], "_text", |_, args| {
            Ok(Value::List(Items::of(items(args[0].as_str())?.into_iter().map(plain))?))
        }),
        Function::new("json_keys", &[&[Text]], "_text", |_, args| {
            let members = members(args[0].as_str())?;
            Ok(Value::List(Items::of(members.into_iter().map(|(key, _)| Ok(Value::text(key))))?))
        }),
        Function::new("to_json", &[&[Any]], "json", |call, args| Ok(of_argument(call, args, 0)?.into())),
        Function::new("to_jsonb", &[&[Any]], "jsonb", |call, args| {
            Ok(binary_form(&of_argument(call, args, 0)?)?.into())
        }),
        // An item of an array in the making, where NULL has a text too.
        Function::new("to_json_item", &[&[Any]], "json", |call, args| Ok(of_argument(call, args, 0)?.into()))
            .nullable(),
        Function::new("to_json_key", &[&[Any]], "json", |call, args| Ok(key_of(call, args, 0)?.into())).nullable(),
        Function::new("array_to_json", &[&[List], &[List, Bool]], "json", |call, args| {
            Ok(of_argument(call, args, 0)?.into())
        }),
        Function::new("json_build_array", &[&[], &[Rest]], "json", |call, args| {
            let items = (0..args.len()).map(|index| of_argument(call, args, index)).collect::<Result<Vec<_>>>()?;
            Ok(format!("[{}]", items.join(", ")).into())
        })
        .nullable(),
        Function::new("jsonb_build_array", &[&[], &[Rest]], "jsonb", |call, args| {
            let items = (0..args.len()).map(|index| of_argument(call, args, index)).collect::<Result<Vec<_>>>()?;
            Ok(binary_form(&format!("[{}]", items.join(", ")))?.into())
        })
        .nullable(),
        Function::new("json_build_object", &[&[], &[Rest]], "json", |call, args| Ok(object(call, args)?.into()))
            .nullable(),
        Function::new("jsonb_build_object", &[&[], &[Rest]], "jsonb", |call, args| {
            Ok(binary_form(&object(call, args)?)?.into())
        })
        .nullable(),
        Function::new("json_of_items", &[&[List]], "json", |_, args| Ok(of_items(&args[0]).into())),
        Function::new("jsonb_of_items", &[&[List]], "jsonb", |_, args| Ok(binary_form(&of_items(&args[0]))?.into())),
        Function::new("json_of_pairs", &[&[List, List]], "json", |_, args| Ok(of_pairs(&args[0], &args[1]).into())),
        Function::new("jsonb_of_pairs", &[&[List, List]], "jsonb", |_, args| {
            Ok(binary_form(&of_pairs(&args[0], &args[1]))?.into())
        }),
    ];
    list.push(Function::new("row_to_json", &[&[Any]], "json", |call, args| Ok(of_argument(call, args, 0)?.into())));
    list
}

fn list(value: &Value) -> &[Value] {
    match value {
        Value::List(items) => items,
        _ => &[],
    }
}

fn of_items(items: &Value) -> String {
    let objects = list(items).iter().any(|item| item.as_str().starts_with('{'));
    let texts: Vec<&str> = list(items).iter().map(Value::as_str).collect();
    // PostgreSQL puts rows on lines of their own.
    format!("[{}]", texts.join(if objects { ", \n " } else { ", " }))
}

fn of_pairs(keys: &Value, values: &Value) -> String {
    let pairs: Vec<String> = list(keys)
        .iter()
        .zip(list(values))
        .map(|(key, value)| format!("{} : {}", key.as_str(), value.as_str()))
        .collect();
    format!("{{ {} }}", pairs.join(", "))
}

fn object(call: &Call<'_>, args: &[Value]) -> Result<String> {
    if args.len() % 2 == 1 {
        return Err(invalid("argument list must have even number of elements"));
    }
    let pairs = (0..args.len())
        .step_by(2)
        .map(|index| Ok(format!("{} : {}", key_of(call, args, index)?, of_argument(call, args, index + 1)?)));
    Ok(format!("{{{}}}", pairs.collect::<Result<Vec<_>>>()?.join(", ")))
}

fn key_of(call: &Call<'_>, args: &[Value], index: usize) -> Result<String> {
    match &args[index] {
        Value::Null => Err(invalid("null value not allowed for object key")),
        Value::Text(text) => Ok(quoted(text)),
        _ => Ok(quoted(&of_argument(call, args, index)?)),
    }
}

fn is_json(field: &Field) -> bool {
    declared_type(field).is_some_and(SqlType::is_json)
        || field.metadata().get(TYPE_OID_METADATA).is_some_and(|oid| oid == "114" || oid == "3802")
}

fn of_argument(call: &Call<'_>, args: &[Value], index: usize) -> Result<String> {
    match (&args[index], call.arg_fields.get(index)) {
        (Value::Text(text), Some(field)) if is_json(field) => Ok(text.to_string()),
        (value, Some(field)) => of_value(call, value, field),
        (value, None) => of_value(call, value, &Field::new("", DataType::Null, true)),
    }
}

fn of_value(call: &Call<'_>, value: &Value, field: &Field) -> Result<String> {
    Ok(match (value, field.data_type()) {
        (Value::Null, _) => "null".to_owned(),
        (Value::Bool(value), _) => value.to_string(),
        (Value::Float(value), _) if !value.is_finite() => quoted(&call.text_of(&Value::Float(*value), field)?),
        (Value::Int(_) | Value::Float(_) | Value::Decimal(..), _) => call.text_of(value, field)?,
        (Value::Text(text), _) if is_json(field) => text.to_string(),
        (Value::Timestamp(_), DataType::Timestamp(_, zone)) => {
            quoted(&iso_8601(&call.text_of(value, field)?, zone.is_some()))
        }
        (Value::List(items), DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _)) => {
            let items = items.iter().map(|value| of_value(call, value, item)).collect::<Result<Vec<String>>>()?;
            format!("[{}]", items.join(","))
        }
        (Value::Struct(values), DataType::Struct(fields)) => {
            // The fields of a row that is written out have no names of their own; DataFusion counts them from `c0` on.
            let is_written = fields.iter().enumerate().all(|(place, field)| *field.name() == format!("c{place}"));
            let pair = |(place, (value, field)): (usize, (&Value, &FieldRef))| {
                let name = if is_written { format!("f{}", place + 1) } else { field.name().clone() };
                Ok(format!("{}:{}", quoted(&name), of_value(call, value, field)?))
            };
            let pairs = values.iter().zip(fields).enumerate().map(pair).collect::<Result<Vec<String>>>()?;
            format!("{{{}}}", pairs.join(","))
        }
        (other, _) => quoted(&call.text_of(other, field)?),
    })
}

/// A timestamp's text as JSON has it: with a `T`, and with the minutes of its zone.
fn iso_8601(text: &str, zoned: bool) -> String {
    let (text, era) = text.strip_suffix(" BC").map_or((text, ""), |text| (text, " BC"));
    let mut iso = text.replacen(' ', "T", 1);
    let hours_only = iso.rfind(['+', '-']).is_some_and(|sign| iso.len() - sign == 3);
    if zoned && hours_only {
        iso.push_str(":00");
    }
    iso + era
}

/// A text as a JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    json::quoted(text, &mut out);
    out
}

// ---- Reading ----

/// Where the value at the start of `text` ends.
fn value_end(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    match bytes.first()? {
        b'"' => {
            let mut at = 1;
            while at < bytes.len() {
                match bytes[at] {
                    b'\\' => at += 2,
                    b'"' => return Some(at + 1),
                    _ => at += 1,
                }
            }
            None
        }
        b'{' | b'[' => {
            let (mut at, mut depth) = (0, 0usize);
            while at < bytes.len() {
                match bytes[at] {
                    b'"' => {
                        at += value_end(&text[at..])?;
                        continue;
                    }
                    b'{' | b'[' => depth += 1,
                    b'}' | b']' => {
                        depth -= 1;
                        if depth == 0 {
                            return Some(at + 1);
                        }
                    }
                    _ => {}
                }
                at += 1;
            }
            None
        }
        _ => {
            let end = text.find([',', '}', ']', ' ', '\n', '\r', '\t']).unwrap_or(text.len());
            (end > 0).then_some(end)
        }
    }
}

fn malformed() -> datafusion::common::DataFusionError {
    super::sql_error(tidepool_base::SqlState::INVALID_TEXT_REPRESENTATION, "invalid input syntax for type json")
}

const BLANKS: [char; 4] = [' ', '\n', '\r', '\t'];

/// The items of an array; 22023 for anything else.
fn items(json: &str) -> Result<Vec<&str>> {
    let Some(mut rest) = json.trim_matches(BLANKS).strip_prefix('[') else {
        return Err(invalid("cannot get elements of what is not an array"));
    };
    let mut items = Items::default();
    loop {
        rest = rest.trim_start_matches(BLANKS);
        if rest.starts_with(']') && items.is_empty() {
            return Ok(items.into_vec());
        }
        let end = value_end(rest).ok_or_else(malformed)?;
        items.push(&rest[..end])?;
        rest = rest[end..].trim_start_matches(BLANKS);
        match rest.as_bytes().first() {
            Some(b',') => rest = &rest[1..],
            Some(b']') => return Ok(items.into_vec()),
            _ => return Err(malformed()),
        }
    }
}

/// The members of an object, in order; 22023 for anything else.
fn members(json: &str) -> Result<Vec<(String, &str)>> {
    let Some(mut rest) = json.trim_matches(BLANKS).strip_prefix('{') else {
        return Err(invalid("cannot get members of what is not an object"));
    };
    let mut members = Items::default();
    loop {
        rest = rest.trim_start_matches(BLANKS);
        if rest.starts_with('}') && members.is_empty() {
            return Ok(members.into_vec());
        }
        let end = value_end(rest).ok_or_else(malformed)?;
        let key = decoded(&rest[..end])?;
        rest = rest[end..].trim_start_matches(BLANKS).strip_prefix(':').ok_or_else(malformed)?;
        rest = rest.trim_start_matches(BLANKS);
        let end = value_end(rest).ok_or_else(malformed)?;
        members.push((key, &rest[..end]))?;
        rest = rest[end..].trim_start_matches(BLANKS);
        match rest.as_bytes().first() {
            Some(b',') => rest = &rest[1..],
            Some(b'}') => return Ok(members.into_vec()),
            _ => return Err(malformed()),
        }
    }
}

/// What a key of an object or an index of an array (from its end, if negative) leads to.
fn member<'a>(json: &'a str, key: &Value) -> Result<Option<&'a str>> {
    let json = json.trim_matches(BLANKS);
    Ok(match key {
        Value::Text(key) if json.starts_with('{') => {
            members(json)?.into_iter().rev().find(|(name, _)| name == key).map(|(_, value)| value)
        }
        Value::Int(index) if json.starts_with('[') => {
            let items = items(json)?;
            let position = if *index < 0 { items.len() as i64 + index } else { *index };
            usize::try_from(position).ok().and_then(|position| items.get(position).copied())
        }
        _ => None,
    })
}

fn path(args: &[Value]) -> Vec<String> {
    let mut path = Vec::new();
    for arg in args {
        match arg {
            Value::List(items) => path.extend(items.iter().map(|item| item.as_str().to_owned())),
            Value::Text(text) if args.len() == 1 && text.starts_with('{') && text.ends_with('}') => {
                let inner = text[1..text.len() - 1].split(',').map(|part| part.trim().trim_matches('"').to_owned());
                path.extend(inner.filter(|part| !part.is_empty()));
            }
            other => path.push(super::text::display(other)),
        }
    }
    path
}

fn at_path<'a>(json: &'a str, path: &[String]) -> Result<Option<&'a str>> {
    let mut current = json.trim_matches(BLANKS);
    for step in path {
        let key = match (current.starts_with('['), step.parse::<i64>()) {
            (true, Ok(index)) => Value::Int(index),
            _ => Value::text(step.clone()),
        };
        match member(current, &key)? {
            Some(found) => current = found,
            None => return Ok(None),
        }
    }
    Ok(Some(current))
}

fn decoded(json: &str) -> Result<String> {
    json::decoded(json).map_err(carry)
}

/// A value as text: strings without their quotes, JSON's null as NULL.
fn plain(json: &str) -> Result<Value> {
    Ok(match json.as_bytes().first() {
        Some(b'"') => Value::text(decoded(json)?),
        Some(b'n') => Value::Null,
        _ => Value::text(json),
    })
}

/// JSON as PostgreSQL writes `jsonb`.
fn binary_form(json: &str) -> Result<String> {
    jsonb(json).map_err(carry)
}
