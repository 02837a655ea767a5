//! Quoting, arrays, and odds and ends over text.

use super::Type::*;
use super::bounded::may_grow;
use super::{Call, Function, encoding, invalid};
use crate::catalog::items::{self, Items};
use crate::catalog::objects::{quote_identifier, split_name};
use crate::catalog::syntax::{like_escape, similar_pattern};
use crate::catalog::value::Value;
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, plan_err};
use rand::RngCore;
use std::sync::Arc;
use tidepool_base::SqlState;
use tidepool_database::text::VECTOR_ITEM;

pub fn functions() -> Vec<Function> {
    vec![
        Function::new("quote_ident", &[&[Text]], "text", |_, args| Ok(quote_identifier(args[0].as_str()).into())),
        Function::new("quote_literal", &[&[Text]], "text", |_, args| Ok(quote_literal(args[0].as_str()).into())),
        Function::new("quote_nullable", &[&[Text]], "text", |_, args| {
            Ok(match &args[0] {
                Value::Null => "NULL".into(),
                value => quote_literal(value.as_str()).into(),
            })
        })
        .nullable(),
        Function::new("parse_ident", &[&[Text], &[Text, Bool]], "_text", |_, args| {
            Ok(split_name(args[0].as_str()).into())
        }),
        Function::new("like_escape", &[&[Text, Text]], "text", |_, args| {
            Ok(like_escape(args[0].as_str(), escape(args[1].as_str())?).into())
        }),
        Function::new("similar_to_escape", &[&[Text], &[Text, Text]], "text", |_, args| {
            let escape = match args.get(1) {
                Some(written) => escape(written.as_str())?,
                None => Some('\\'),
            };
            Ok(similar_pattern(args[0].as_str(), escape).into())
        }),
        Function::new("gen_random_uuid", &[&[]], "uuid", |_, _| Ok(random_uuid().into())).volatile(),
        // Of `TABLESAMPLE`: the row's id, how many neighbours are taken together, the percentage, the seed, and whether there is one.
        Function::new(crate::samples::FUNCTION, &[&[Int8, Int8, Float8, Float8, Bool]], "bool", |_, args| {
            sampled(args).map(Value::from)
        })
        .nullable()
        .volatile(),
        // Of the extension uuid-ossp.
        Function::new("uuid_generate_v4", &[&[]], "uuid", |_, _| Ok(random_uuid().into())).volatile(),
        Function::new("uuid_nil", &[&[]], "uuid", |_, _| Ok(NIL_UUID.into())),
        Function::new("num_nulls", &[&[Rest]], "int4", |_, args| {
            Ok(args.iter().filter(|arg| arg.is_null()).count().into())
        })
        .nullable(),
        Function::new("num_nonnulls", &[&[Rest]], "int4", |_, args| {
            Ok(args.iter().filter(|arg| !arg.is_null()).count().into())
        })
        .nullable(),
        Function::new("chr", &[&[Int4]], "text", |_, args| {
            let number = args[0].as_int();
            let refused = |code, message: String| Err(super::sql_error(code, message));
            match u32::try_from(number).ok().map(|number| (number, char::from_u32(number))) {
                None => refused(SqlState::INVALID_PARAMETER_VALUE, "character number must be positive".to_owned()),
                Some((0, _)) => refused(SqlState::PROGRAM_LIMIT_EXCEEDED, "null character not permitted".to_owned()),
                Some((_, Some(character))) => Ok(character.to_string().into()),
                Some((0..=0x10_ffff, None)) => refused(
                    SqlState::PROGRAM_LIMIT_EXCEEDED,
                    format!("requested character not valid for encoding: {number}"),
                ),
                Some(_) => refused(
                    SqlState::PROGRAM_LIMIT_EXCEEDED,
                    format!("requested character too large for encoding: {number}"),
                ),
            }
        }),
        Function::new("to_hex", &[&[Int4], &[Int8]], "text", |call, args| {
            let number = args[0].as_int();
            Ok(match call.arg_types.first() {
                Some(DataType::Int64) => format!("{number:x}"),
                _ => format!("{:x}", number as i32),
            }
            .into())
        }),
        Function::new("encode", &[&[Bytes, Text]], "text", |_, args| {
            let Value::Bytes(bytes) = &args[0] else { return Ok(Value::Null) };
            Ok(encoding::encode(bytes, args[1].as_str())?.into())
        }),
        Function::new("decode", &[&[Text, Text]], "bytea", |_, args| {
            encoding::decode(args[0].as_str(), args[1].as_str()).map(Value::Bytes)
        }),
        // DataFusion's makes text of bytes first.
        Function::new("length", &[&[Text], &[Bytes]], "int4", |_, args| {
            Ok(length(&args[0], |text| text.chars().count()).into())
        }),
        Function::new("octet_length", &[&[Text], &[Bytes]], "int4", |_, args| Ok(length(&args[0], str::len).into())),
        Function::new("array_upper", &[&[List, Int4]], "int4", |call, args| {
            let first = first_subscript(call);
            array_bound(args, &|len| first + len - 1)
        }),
        Function::new("array_lower", &[&[List, Int4]], "int4", |call, args| {
            let first = first_subscript(call);
            array_bound(args, &|_| first)
        }),
        // NULL is an item like others.
        Function::new("pg_array_remove", &[&[List, Any]], "_text", |_, args| {
            let Value::List(list) = &args[0] else { return Ok(Value::Null) };
            Ok(Value::List(list.iter().filter(|item| !is_same(item, &args[1])).cloned().collect()))
        })
        .nullable()
        .returning(|types| Ok(list_type(types)?.clone())),
        // What `regexp_replace` marked as matches is cut out.
        Function::new("pg_split_at_matches", &[&[Text]], "_text", |_, args| {
            Ok(Value::List(split_at_matches(args[0].as_str())?))
        }),
        // The flags of a function that splits text, and that for all matches.
        Function::new("pg_split_flags", &[&[Text, Text]], "text", |_, args| match args[0].as_str() {
            flags if flags.contains('g') => {
                Err(invalid(format!("{}() does not support the \"global\" option", args[1].as_str())))
            }
            flags => Ok(format!("{flags}g").into()),
        }),
        // A pattern that no literal says.
        Function::new("pg_pattern", &[&[Text]], "text", |_, args| {
            Ok(crate::catalog::patterns::translated(args[0].as_str()).into_owned().into())
        }),
        Function::new("array_ndims", &[&[List]], "int4", |_, args| {
            Ok(match bounds_of(&args[0]).len() {
                0 => Value::Null,
                dimensions => dimensions.into(),
            })
        }),
        Function::new("array_dims", &[&[List]], "text", |call, args| {
            let first = first_subscript(call);
            let bounds = bounds_of(&args[0]).into_iter().map(|length| format!("[{first}:{}]", first + length - 1));
            let written: String = bounds.collect();
            Ok(if written.is_empty() { Value::Null } else { written.into() })
        }),
        // ARRAY(SELECT …) over no rows is an empty array, where the aggregate that stands for it gives NULL.
        Function::new("array_or_empty", &[&[List]], "_text", |_, args| {
            Ok(if args[0].is_null() { Value::List(vec![]) } else { args[0].clone() })
        })
        .nullable()
        .returning(|types| Ok(list_type(types)?.clone())),
        Function::new("pg_subscripts", &[&[List, Int4], &[List, Int4, Bool]], "_int4", |call, args| {
            let Value::List(list) = &args[0] else { return Ok(Value::Null) };
            let count = if args[1].as_int() == 1 { list.len() } else { 0 };
            let reverse = args.get(2).is_some_and(Value::as_bool);
            let first = first_subscript(call);
            let numbers = (first..first + count).map(Value::from);
            Ok(Value::List(if reverse { numbers.rev().collect() } else { numbers.collect() }))
        }),
        // Of `WITH ORDINALITY`.
        Function::new("pg_ordinals", &[&[List]], "_int4", |_, args| {
            let Value::List(list) = &args[0] else { return Ok(Value::Null) };
            Ok(Value::List((1..=list.len()).map(Value::from).collect()))
        }),
        // `information_schema._pg_expandarray`: each item with its position.
        Function::new("pg_expand_array", &[&[List]], "_text", |_, args| {
            let Value::List(list) = &args[0] else { return Ok(Value::Null) };
            let pairs =
                list.iter().enumerate().map(|(index, item)| Value::Struct(vec![item.clone(), (index + 1).into()]));
            Ok(Value::List(pairs.collect()))
        })
        .returning(|types| {
            let DataType::List(item) = list_type(types)? else { return plan_err!("an array is expected") };
            let x = Field::new("x", item.data_type().clone(), true);
            let pair = DataType::Struct(vec![x, Field::new("n", DataType::Int32, true)].into());
            Ok(DataType::List(Arc::new(Field::new_list_field(pair, true))))
        }),
    ]
}

/// How long an array is in each of its dimensions; an empty one has none.
fn bounds_of(array: &Value) -> Vec<usize> {
    let (mut bounds, mut within) = (Vec::new(), array);
    while let Value::List(items) = within
        && let Some(first) = items.first()
    {
        bounds.push(items.len());
        within = first;
    }
    bounds
}

/// Whether two items of arrays are the same, both being NULL included.
fn is_same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Null, other) | (other, Value::Null) => other.is_null(),
        (Value::Int(left), Value::Int(right)) => left == right,
        (Value::Decimal(left, scale), Value::Decimal(right, other)) => {
            let widened =
                |value: i128, by: i8| 10i128.checked_pow(by.max(0) as u32).and_then(|by| value.checked_mul(by));
            match (widened(*left, other - scale), widened(*right, scale - other)) {
                (Some(left), Some(right)) => left == right,
                _ => false,
            }
        }
        (Value::Int(number), Value::Decimal(value, scale)) | (Value::Decimal(value, scale), Value::Int(number)) => {
            is_same(&Value::Decimal(i128::from(*number), 0), &Value::Decimal(*value, *scale))
        }
        (Value::Float(_), Value::Int(_) | Value::Decimal(..) | Value::Float(_))
        | (Value::Int(_) | Value::Decimal(..), Value::Float(_)) => left.as_float() == right.as_float(),
        // A literal of no type is of the items'.
        (Value::Text(left), Value::Text(right)) => left == right,
        (item, Value::Text(text)) | (Value::Text(text), item) => display(item) == text.as_ref(),
        (left, right) => display(left) == display(right),
    }
}

/// Before and after a match that is marked.
pub const MATCH_MARKS: [char; 2] = ['\u{1}', '\u{3}'];

/// The parts of a text between matches. Empty matches at its ends, and right behind others, are none.
fn split_at_matches(marked: &str) -> Result<Vec<Value>> {
    let length = marked.chars().filter(|character| !MATCH_MARKS.contains(character)).count();
    let (mut parts, mut part) = (Items::default(), String::new());
    let (mut at, mut match_end) = (0, 0);
    let mut characters = marked.chars();
    while let Some(character) = characters.next() {
        if character != MATCH_MARKS[0] {
            part.push(character);
            at += 1;
            continue;
        }
        let start = at;
        let matched: String = characters.by_ref().take_while(|character| *character != MATCH_MARKS[1]).collect();
        at += matched.chars().count();
        if start < length && at > match_end {
            parts.push(Value::text(std::mem::take(&mut part)))?;
        }
        match_end = at;
    }
    parts.push(Value::text(part))?;
    Ok(parts.into_vec())
}

fn sampled(args: &[Value]) -> Result<bool> {
    let [row, block, percentage, seed, is_repeatable] = args else { return plan_err!("five arguments are expected") };
    if percentage.is_null() {
        let message = "TABLESAMPLE parameter cannot be null";
        return Err(super::sql_error(SqlState::INVALID_TABLESAMPLE_ARGUMENT, message));
    }
    if is_repeatable.as_bool() && seed.is_null() {
        let message = "TABLESAMPLE REPEATABLE parameter cannot be null";
        return Err(super::sql_error(SqlState::INVALID_TABLESAMPLE_REPEAT, message));
    }
    crate::samples::check_percentage(percentage.as_float()).map_err(crate::errors::carry)?;
    let share = percentage.as_float() / 100.0;
    if !is_repeatable.as_bool() {
        return Ok(rand::random::<f64>() < share);
    }
    let neighbours = row.as_int() as u64 / block.as_int().max(1) as u64;
    // All zeros are one seed.
    let seed = mixed((seed.as_float() + 0.0).to_bits());
    let chance = mixed(neighbours ^ seed) >> 11;
    Ok((chance as f64) < share * (1u64 << 53) as f64)
}

/// The bits of a number, each of which depends on all of its own (SplitMix64).
fn mixed(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

fn length(value: &Value, of_text: fn(&str) -> usize) -> usize {
    match value {
        Value::Bytes(bytes) => bytes.len(),
        text => of_text(text.as_str()),
    }
}

fn list_type(types: &[DataType]) -> Result<&DataType> {
    match types.first() {
        Some(list @ DataType::List(_)) => Ok(list),
        _ => plan_err!("an array is expected"),
    }
}

/// Of the first argument, an array or a vector.
fn first_subscript(call: &Call<'_>) -> usize {
    match call.arg_types.first() {
        Some(DataType::List(item)) if item.name() == VECTOR_ITEM => 0,
        _ => 1,
    }
}

fn array_bound(args: &[Value], bound: &dyn Fn(usize) -> usize) -> Result<Value> {
    let mut list = &args[0];
    for _ in 1..args[1].as_int() {
        match list {
            Value::List(items) if !items.is_empty() => list = &items[0],
            _ => return Ok(Value::Null),
        }
    }
    Ok(match list {
        Value::List(items) if !items.is_empty() && args[1].as_int() > 0 => bound(items.len()).into(),
        _ => Value::Null,
    })
}

pub fn quote_literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    if text.contains('\\') { format!("E'{}'", quoted.replace('\\', "\\\\")) } else { format!("'{quoted}'") }
}

const NIL_UUID: &str = "00000000-0000-0000-0000-000000000000";

/// A version 4 UUID.
fn random_uuid() -> String {
    let mut bytes = [0u8; 16];
    rand::rng().fill_bytes(&mut bytes);
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// `format('%s %I %L', …)`: PostgreSQL's, with positions (`%2$s`), widths (`%10s`, `%-10s`, `%*s`) and `%%`.
pub fn format(call: &Call<'_>, args: &[Value]) -> Result<Value> {
    let Value::Text(pattern) = &args[0] else { return Ok(Value::Null) };
    let values = &args[1..];
    let mut out = String::new();
    let mut next = 0;
    let mut characters = pattern.chars().peekable();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let mut digits = String::new();
        let mut left = false;
        let mut width: Option<usize> = None;
        let conversion = loop {
            match characters.next() {
                None => return Err(invalid("unterminated format() type specifier")),
                Some('-') => left = true,
                Some('*') => {
                    let value = values.get(next).map_or(0, Value::as_int);
                    next += 1;
                    left |= value < 0;
                    width = Some(value.unsigned_abs() as usize);
                }
                Some('$') => {
                    next = digits
                        .parse::<usize>()
                        .ok()
                        .and_then(|n| n.checked_sub(1))
                        .ok_or_else(|| invalid("format specifies argument 0, but arguments are numbered from 1"))?;
                    digits.clear();
                }
                Some(digit) if digit.is_ascii_digit() => digits.push(digit),
                Some(other) => break other,
            }
        };
        let width = match width {
            Some(width) => width,
            None if digits.is_empty() => 0,
            // As PostgreSQL reads it, with its numbers.
            None => match digits.parse::<i32>() {
                Ok(width) => usize::try_from(width).unwrap_or(0),
                Err(_) => return Err(super::sql_error(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "number is out of range")),
            },
        };
        let text = match conversion {
            '%' => "%".to_owned(),
            's' | 'I' | 'L' => {
                let Some(value) = values.get(next) else { return Err(invalid("too few arguments for format()")) };
                next += 1;
                let shown = match call.arg_fields.get(next) {
                    Some(field) => call.text_of(value, field)?,
                    None => display(value),
                };
                match (conversion, value) {
                    ('s', Value::Null) => String::new(),
                    ('I', Value::Null) => return Err(invalid("null values cannot be formatted as an SQL identifier")),
                    ('L', Value::Null) => "NULL".to_owned(),
                    ('I', _) => quote_identifier(&shown),
                    ('L', _) => quote_literal(&shown),
                    _ => shown,
                }
            }
            other => return Err(invalid(format!("unrecognized format() type specifier \"{other}\""))),
        };
        let blanks = width.saturating_sub(text.chars().count());
        may_grow(out.len().saturating_add(text.len()), blanks)?;
        // Twice: what is there may be copied to where there is room.
        let room = if blanks >= 1 << 20 { (out.len() + blanks) * 2 } else { 0 };
        let padding = items::room(room, || {
            out.reserve(blanks + text.len());
            " ".repeat(blanks)
        })?;
        if left {
            out.push_str(&text);
            out.push_str(&padding);
        } else {
            out.push_str(&padding);
            out.push_str(&text);
        }
    }
    Ok(out.into())
}

fn escape(written: &str) -> Result<Option<char>> {
    let mut characters = written.chars();
    let escape = characters.next();
    match characters.next() {
        None => Ok(escape),
        Some(_) => Err(super::sql_error(SqlState::INVALID_ESCAPE_SEQUENCE, "invalid escape string")),
    }
}

/// A value without its type as an output function writes it.
pub fn display(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Bool(value) => if *value { "t" } else { "f" }.to_owned(),
        Value::Int(value) => value.to_string(),
        Value::Float(value) => value.to_string(),
        Value::Decimal(value, scale) => super::format::decimal_text(*value, *scale),
        Value::Text(text) => text.to_string(),
        Value::Date(days) => super::datetime::date_text(*days),
        Value::Timestamp(micros) => super::datetime::timestamp_text(*micros),
        Value::List(items) => format!("{{{}}}", items.iter().map(display).collect::<Vec<_>>().join(",")),
        other => format!("{other:?}"),
    }
}
