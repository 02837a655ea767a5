//! DataFusion's errors as PostgreSQL's: code, and PostgreSQL's words where it has its own.
//!
//! DataFusion tells most errors apart by their text only, so this reads text; what it does not know keeps its message.

mod words;

use datafusion::arrow::error::ArrowError;
use datafusion::common::{DataFusionError, SchemaError};
use tidepool_base::{Error, SqlState, nearest};

/// Carries a Tidepool error through DataFusion and Arrow unharmed.
pub fn carry(error: Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

pub fn from_datafusion(error: DataFusionError) -> Error {
    match error {
        DataFusionError::External(inner) => match inner.downcast::<Error>() {
            Ok(error) => *error,
            Err(inner) => match inner.downcast::<DataFusionError>() {
                Ok(error) => from_datafusion(*error),
                Err(inner) => match inner.downcast::<ArrowError>() {
                    Ok(error) => from_arrow(*error),
                    Err(inner) if inner.to_string().starts_with("regex parse error") => {
                        Error::new(SqlState::INVALID_REGULAR_EXPRESSION, "invalid regular expression")
                            .with_detail(sentence(inner.to_string().lines().last().unwrap_or_default()))
                    }
                    Err(inner) => Error::internal(inner.to_string()),
                },
            },
        },
        DataFusionError::ArrowError(error, _) => from_arrow(*error),
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => from_datafusion(*inner),
        DataFusionError::Collection(mut errors) => match errors.is_empty() {
            false => from_datafusion(errors.swap_remove(0)),
            true => Error::internal("an empty collection of errors"),
        },
        DataFusionError::Shared(inner) => from_shared(&inner),
        DataFusionError::SchemaError(error, _) => from_schema(&error),
        DataFusionError::ResourcesExhausted(message) => {
            Error::new(SqlState::OUT_OF_MEMORY, "out of memory").with_detail(sentence(first_line(&message)))
        }
        DataFusionError::NotImplemented(message) if message.contains("WHERE") => from_plan(&message),
        DataFusionError::NotImplemented(message) => {
            words::known(first_line(&message)).unwrap_or_else(|| Error::unsupported(lower(first_line(&message))))
        }
        DataFusionError::Plan(message) => from_plan(&message),
        DataFusionError::Configuration(message) => {
            Error::new(SqlState::INVALID_PARAMETER_VALUE, lower(first_line(&message)))
        }
        DataFusionError::Execution(message) => from_execution(&message),
        DataFusionError::ExecutionJoin(error) if error.is_panic() => Error::internal("a query operator failed"),
        DataFusionError::ExecutionJoin(_) => canceled(),
        DataFusionError::SQL(error, _) => Error::new(SqlState::SYNTAX_ERROR, lower(&error.to_string())),
        DataFusionError::IoError(error) => Error::io("read or write", &error),
        other => from_execution(first_line(&other.strip_backtrace())),
    }
}

/// An error that several streams share cannot be taken apart; what matters of it is copied.
fn from_shared(error: &DataFusionError) -> Error {
    match error {
        DataFusionError::External(inner) => match inner.downcast_ref::<Error>() {
            Some(error) => error.clone(),
            None => match inner.downcast_ref::<DataFusionError>() {
                Some(error) => from_shared(error),
                None => Error::internal(inner.to_string()),
            },
        },
        DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => from_shared(inner),
        DataFusionError::Shared(inner) => from_shared(inner),
        DataFusionError::SchemaError(error, _) => from_schema(error),
        DataFusionError::ResourcesExhausted(message) => {
            from_datafusion(DataFusionError::ResourcesExhausted(message.clone()))
        }
        DataFusionError::NotImplemented(message) => from_datafusion(DataFusionError::NotImplemented(message.clone())),
        DataFusionError::Plan(message) => from_plan(message),
        DataFusionError::Execution(message) => from_execution(message),
        DataFusionError::ArrowError(error, _) => match error.as_ref() {
            ArrowError::DivideByZero => from_arrow(ArrowError::DivideByZero),
            ArrowError::ExternalError(inner) => match inner.downcast_ref::<Error>() {
                Some(error) => error.clone(),
                None => match inner.downcast_ref::<DataFusionError>() {
                    Some(error) => from_shared(error),
                    None => Error::internal(inner.to_string()),
                },
            },
            ArrowError::ArithmeticOverflow(message) => from_arrow(ArrowError::ArithmeticOverflow(message.clone())),
            other => from_arrow_message(&other.to_string()),
        },
        other => from_execution(first_line(&other.strip_backtrace())),
    }
}

/// For a name that begins with another database's.
pub fn cross_database(name: impl std::fmt::Display) -> Error {
    Error::unsupported(format!("cross-database references are not implemented: {name}"))
}

pub fn canceled() -> Error {
    Error::new(SqlState::QUERY_CANCELED, "canceling statement due to user request")
}

/// 40001: of a statement that would keep its client from going over to the next primary.
pub fn gives_way() -> Error {
    let message = "canceling statement because another server takes the database over";
    Error::new(SqlState::SERIALIZATION_FAILURE, message).with_hint("The transaction might succeed if retried.")
}

pub fn from_arrow(error: ArrowError) -> Error {
    match error {
        ArrowError::ExternalError(inner) => from_datafusion(DataFusionError::External(inner)),
        ArrowError::DivideByZero => Error::new(SqlState::DIVISION_BY_ZERO, "division by zero"),
        ArrowError::ArithmeticOverflow(message) => overflow(&message),
        ArrowError::MemoryError(message) => {
            Error::new(SqlState::OUT_OF_MEMORY, "out of memory").with_detail(sentence(&message))
        }
        ArrowError::OffsetOverflowError(_) => {
            Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "a value or batch of text exceeds 2 GB")
        }
        ArrowError::NotYetImplemented(message) => Error::unsupported(lower(&message)),
        other => from_arrow_message(&other.to_string()),
    }
}

fn overflow(message: &str) -> Error {
    // `Overflow happened on: 1 + 9223372036854775807` gives no type.
    Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "value out of range").with_detail(sentence(message))
}

fn from_arrow_message(message: &str) -> Error {
    if let Some(error) = power_error(&message.to_ascii_lowercase()) {
        return error;
    }
    if message.contains("Divide by zero") {
        return Error::new(SqlState::DIVISION_BY_ZERO, "division by zero");
    }
    // Cannot cast string 'seven' to value of Int32 type
    if let Some((_, rest)) = message.split_once("Cannot cast string '")
        && let Some((value, rest)) = rest.rsplit_once("' to value of ")
    {
        let name = type_name(rest.trim_end_matches(" type"));
        return invalid_input(name, value);
    }
    // Cannot parse 'x' as Boolean, and other readers' words
    if let Some((_, rest)) = message.split_once("Error parsing timestamp from '")
        && let Some((value, _)) = rest.split_once('\'')
    {
        return invalid_input("timestamp", value);
    }
    if let Some((_, rest)) = message.split_once("Can't cast value ")
        && let Some((value, name)) = rest.rsplit_once(" to type ")
    {
        let name = type_name(name);
        return match name {
            "boolean" => invalid_input(name, value.trim_matches('"')),
            "smallint" | "integer" | "bigint" => {
                Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, format!("{name} out of range"))
            }
            _ => Error::new(
                SqlState::NUMERIC_VALUE_OUT_OF_RANGE,
                format!("value \"{value}\" is out of range for type {name}"),
            ),
        };
    }
    // value of 100000000000000000000 is out of range Int64
    if let Some((_, name)) = message.split_once(" is out of range ") {
        let name = type_name(name);
        return Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, format!("{name} out of range"));
    }
    if message.contains("too large to store in a Decimal")
        || message.contains("too small to store in a Decimal")
        || message.contains("Cannot cast to Decimal")
        || message.contains("causes overflow")
    {
        return Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "numeric field overflow")
            .with_detail(sentence(strip_kind(message)));
    }
    if message.to_ascii_lowercase().contains("overflow") {
        return overflow(strip_kind(message));
    }
    if message.contains("Invalid timezone") {
        return Error::new(SqlState::INVALID_PARAMETER_VALUE, lower(strip_kind(message)));
    }
    if message.starts_with("Parser error") {
        return Error::new(SqlState::INVALID_DATETIME_FORMAT, lower(strip_kind(message)));
    }
    if message.starts_with("Cast error") {
        return Error::new(SqlState::INVALID_TEXT_REPRESENTATION, lower(strip_kind(message)));
    }
    if message.contains("egular expression") || message.contains("regex") {
        return Error::new(SqlState::INVALID_REGULAR_EXPRESSION, "invalid regular expression")
            .with_detail(sentence(strip_kind(message)));
    }
    Error::new(SqlState::DATA_EXCEPTION, lower(strip_kind(message)))
}

fn power_error(lowered: &str) -> Option<Error> {
    let messages = ["cannot take square root of a negative number", "zero raised to a negative power is undefined"];
    let message = messages.into_iter().find(|message| lowered.contains(message))?;
    Some(Error::new(SqlState::INVALID_ARGUMENT_FOR_POWER_FUNCTION, message))
}

fn invalid_input(type_name: &str, value: &str) -> Error {
    let code = match type_name {
        "date" | "timestamp" | "interval" | "time" => SqlState::INVALID_DATETIME_FORMAT,
        _ => SqlState::INVALID_TEXT_REPRESENTATION,
    };
    Error::new(code, format!("invalid input syntax for type {type_name}: \"{value}\""))
}

/// Arrow's name of a type as PostgreSQL's.
pub fn type_name(arrow: &str) -> &'static str {
    match arrow.split(['(', ' ']).next().unwrap_or("") {
        "Boolean" => "boolean",
        "Int8" | "Int16" | "UInt8" => "smallint",
        "Int32" | "UInt16" => "integer",
        "Int64" | "UInt32" | "UInt64" => "bigint",
        "Float16" | "Float32" => "real",
        "Float64" => "double precision",
        "Decimal32" | "Decimal64" | "Decimal128" | "Decimal256" => "numeric",
        "Utf8" | "LargeUtf8" | "Utf8View" => "text",
        "Date32" | "Date64" => "date",
        "Time32" | "Time64" => "time",
        "Timestamp" => "timestamp",
        "Interval" | "Duration" => "interval",
        "Binary" | "LargeBinary" | "BinaryView" => "bytea",
        "FixedSizeBinary" => "numeric",
        "Struct" => "record",
        "List" | "LargeList" | "FixedSizeList" => "array",
        "Null" => "unknown",
        _ => "value",
    }
}

fn from_schema(error: &SchemaError) -> Error {
    match error {
        SchemaError::FieldNotFound { field, valid_fields } => {
            let error = match &field.relation {
                Some(relation) => {
                    let known = valid_fields
                        .iter()
                        .any(|valid| valid.relation.as_ref().is_some_and(|valid| valid.table() == relation.table()));
                    if !known && !valid_fields.is_empty() {
                        return Error::new(
                            SqlState::UNDEFINED_TABLE,
                            format!("missing FROM-clause entry for table \"{}\"", relation.table()),
                        );
                    }
                    Error::new(
                        SqlState::UNDEFINED_COLUMN,
                        format!("column {}.{} does not exist", relation.table(), field.name),
                    )
                }
                None => Error::new(SqlState::UNDEFINED_COLUMN, format!("column \"{}\" does not exist", field.name)),
            };
            // A name with this mark is ours, of an output that cannot be named here.
            let may_be_meant = || valid_fields.iter().filter(|valid| !valid.name.starts_with('\u{1}'));
            let meant = nearest(&field.name, may_be_meant().map(|valid| valid.name.as_str()));
            match meant.and_then(|name| may_be_meant().find(|valid| valid.name == name)) {
                Some(valid) => {
                    let name = match &valid.relation {
                        Some(relation) => format!("{}.{}", relation.table(), valid.name),
                        None => valid.name.clone(),
                    };
                    error.with_hint(format!("Perhaps you meant to reference the column \"{name}\"."))
                }
                None => error,
            }
        }
        SchemaError::AmbiguousReference { field } => {
            Error::new(SqlState::AMBIGUOUS_COLUMN, format!("column reference \"{}\" is ambiguous", field.name))
        }
        SchemaError::DuplicateQualifiedField { qualifier, .. } => Error::new(
            SqlState::DUPLICATE_ALIAS,
            format!("table name \"{}\" specified more than once", qualifier.table()),
        ),
        SchemaError::DuplicateUnqualifiedField { name } => {
            Error::new(SqlState::DUPLICATE_COLUMN, format!("column \"{name}\" specified more than once"))
        }
    }
}

fn from_plan(message: &str) -> Error {
    let first = first_line(message);
    if let Some(error) = words::known(first) {
        return error;
    }
    if let Some((_, rest)) = message.split_once("Invalid function '") {
        let name = rest.split('\'').next().unwrap_or("");
        let error = undefined_function(name);
        // DataFusion names the one that is least unlike, however unlike it is.
        let proposed = rest.split_once("Did you mean '").and_then(|(_, rest)| rest.split('\'').next());
        return match proposed.and_then(|proposed| nearest(name, [proposed])) {
            Some(near) if !near.starts_with("tidepool") => error.with_hint(format!("Perhaps you meant \"{near}\".")),
            _ => error,
        };
    }
    if let Some((_, rest)) = message.split_once("table function '") {
        let name = rest.split('\'').next().unwrap_or("");
        return undefined_function(name);
    }
    if message.contains("appears in the SELECT clause satisfies this requirement")
        || message.contains("must be in GROUP BY")
        || message.contains("must appear in the GROUP BY")
    {
        let column = match message.split_once("column \"") {
            Some((_, rest)) => rest.split("\" must").next().unwrap_or("").to_owned(),
            None => message
                .split_once("HAVING clause references: ")
                .and_then(|(_, rest)| rest.split_once(" must appear"))
                .map_or_else(String::new, |(column, _)| column.to_owned()),
        };
        return Error::new(
            SqlState::GROUPING_ERROR,
            format!("column \"{column}\" must appear in the GROUP BY clause or be used in an aggregate function"),
        );
    }
    if message.contains("ggregate function") && message.contains("WHERE") {
        return Error::new(SqlState::GROUPING_ERROR, "aggregate functions are not allowed in WHERE");
    }
    for operation in [
        "comparison operation ",
        "boolean operation ",
        "regex operation ",
        "bitwise operation ",
        "concat operation ",
        "arithmetic expression ",
        "for operation ",
    ] {
        if (message.contains("Cannot infer") || message.contains("Cannot coerce"))
            && let Some((_, rest)) = message.split_once(operation)
        {
            let rest = rest.split(" to valid types").next().unwrap_or(rest);
            let words: Vec<&str> = rest.split(' ').collect();
            if let [left, .., right] = words.as_slice() {
                let operator = words[1..words.len() - 1]
                    .iter()
                    .find(|word| word.len() <= 4 && !word.ends_with(')'))
                    .unwrap_or(&"=");
                // What joins conditions is no operator.
                if matches!(*operator, "AND" | "OR") {
                    let found = [left, right].into_iter().find(|side| **side != "Boolean").unwrap_or(right);
                    let found = type_name(found.trim_end_matches('.'));
                    return Error::new(
                        SqlState::DATATYPE_MISMATCH,
                        format!("argument of {operator} must be type boolean, not type {found}"),
                    );
                }
                return Error::new(
                    SqlState::UNDEFINED_FUNCTION,
                    format!(
                        "operator does not exist: {} {operator} {}",
                        type_name(left),
                        type_name(right.trim_end_matches('.'))
                    ),
                )
                .with_hint(
                    "No operator matches the given name and argument types. You might need to add explicit type casts.",
                );
            }
        }
    }
    if let Some((_, rest)) = message.split_once("Failed to coerce arguments to satisfy a call to '") {
        return undefined_function_types(rest);
    }
    if let Some((_, rest)) = message.split_once("No function matches the given name and argument types '") {
        let call = rest.split('\'').next().unwrap_or("");
        let (name, types) = call.split_once('(').unwrap_or((call, ""));
        return undefined_call(name, types.strip_suffix(')').unwrap_or(types)).with_hint(
            "No function matches the given name and argument types. You might need to add explicit type casts.",
        );
    }
    if message.contains("does not support zero arguments")
        || message.contains("function requires")
        || message.contains("expects") && message.contains("argument")
    {
        return Error::new(SqlState::UNDEFINED_FUNCTION, lower(first));
    }
    if message.contains("calls cannot be nested") {
        return Error::new(SqlState::GROUPING_ERROR, "aggregate function calls cannot be nested");
    }
    if message.contains("LIMIT must be >= 0") {
        return Error::new(SqlState::INVALID_ROW_COUNT_IN_LIMIT, "LIMIT must not be negative");
    }
    if message.contains("OFFSET must be >=") {
        return Error::new(SqlState::INVALID_ROW_COUNT_IN_OFFSET, "OFFSET must not be negative");
    }
    if message.contains("Too many columns! The subquery")
        || message.contains("Scalar subquery should only return one column")
        || message.contains("single column")
    {
        return Error::new(SqlState::SYNTAX_ERROR, "subquery must return only one column");
    }
    if message.contains("Projections require unique expression names") || message.contains("duplicate") {
        return Error::new(SqlState::DUPLICATE_COLUMN, lower(first));
    }
    if message.contains("Cannot automatically convert")
        || message.contains("Cannot cast")
        || message.contains("Unsupported CAST")
    {
        return cannot_cast(message);
    }
    if message.contains("UNION") && (message.contains("number of columns") || message.contains("same number")) {
        return Error::new(SqlState::SYNTAX_ERROR, "each UNION query must have the same number of columns");
    }
    if message.contains("Order by column out of bounds") || message.contains("ORDER BY position") {
        return Error::new(SqlState::INVALID_COLUMN_REFERENCE, lower(first));
    }
    if message.contains("coerce") || message.contains("type") {
        return Error::new(SqlState::DATATYPE_MISMATCH, lower(first));
    }
    Error::unsupported(lower(first))
}

/// Nobody changes what the system's relations show.
pub fn system_relation(name: &str) -> Error {
    Error::new(SqlState::INSUFFICIENT_PRIVILEGE, format!("cannot change system relation \"{name}\""))
}

fn undefined_function(name: &str) -> Error {
    let unmatched = match name {
        "make_array" => Some("ARRAY"),
        "coalesce" => Some("COALESCE"),
        "greatest" => Some("GREATEST"),
        "least" => Some("LEAST"),
        _ => None,
    };
    if let Some(what) = unmatched {
        return Error::new(SqlState::DATATYPE_MISMATCH, format!("{what} types cannot be matched"));
    }
    if name == "array_element" {
        return Error::new(SqlState::DATATYPE_MISMATCH, "cannot subscript a value of this type: it is no array");
    }
    Error::new(SqlState::UNDEFINED_FUNCTION, format!("function {name} does not exist"))
}

fn undefined_function_types(rest: &str) -> Error {
    let name = rest.split('\'').next().unwrap_or("");
    let types = rest
        .split_once("coercion from ")
        .and_then(|(_, rest)| rest.split_once(" to the signature"))
        .map_or("", |(types, _)| types);
    undefined_call(name, types)
        .with_hint("No function matches the given name and argument types. You might need to add explicit type casts.")
}

/// For a call of arguments of these types, in Arrow's words.
fn undefined_call(name: &str, types: &str) -> Error {
    let mut depth = 0;
    let types: Vec<&str> = types
        .split(|c| {
            match c {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            c == ',' && depth == 0
        })
        .map(|name| type_name(name.trim()))
        .collect();
    let types = types.join(", ");
    let error = undefined_function(name);
    match name {
        "tidepool_negate" => Error::new(SqlState::UNDEFINED_FUNCTION, format!("operator does not exist: - {types}")),
        _ if error.code() != SqlState::UNDEFINED_FUNCTION => error,
        _ if types.is_empty() || types == "value" => error,
        _ => Error::new(SqlState::UNDEFINED_FUNCTION, format!("function {name}({types}) does not exist")),
    }
}

fn cannot_cast(message: &str) -> Error {
    let message = message.strip_suffix(" not supported").unwrap_or(message);
    for (before, between) in
        [("convert ", " to "), ("CAST from ", " to "), ("asting from ", " to "), ("Cannot cast ", " to ")]
    {
        if let Some((_, rest)) = message.split_once(before)
            && let Some((from, to)) = rest.split_once(between)
        {
            return Error::new(
                SqlState::CANNOT_COERCE,
                format!("cannot cast type {} to {}", type_name(from.trim_start_matches("type ")), type_name(to)),
            );
        }
    }
    Error::new(SqlState::CANNOT_COERCE, lower(first_line(message)))
}

fn from_execution(message: &str) -> Error {
    let first = first_line(message);
    if let Some(error) = words::known(first) {
        return error;
    }
    let lowered = message.to_ascii_lowercase();
    if lowered.contains("divide by zero") || lowered.contains("division by zero") {
        Error::new(SqlState::DIVISION_BY_ZERO, "division by zero")
    } else if lowered.contains("more than one row") || lowered.contains("scalarsubquery has") {
        Error::new(SqlState::CARDINALITY_VIOLATION, "more than one row returned by a subquery used as an expression")
    } else if let Some(error) = power_error(&lowered) {
        error
    } else if lowered.contains("regular expression") || lowered.contains("regex parse error") {
        Error::new(SqlState::INVALID_REGULAR_EXPRESSION, lower(first))
    } else if let Some((_, rest)) = message.split_once("laceholder '")
        && rest.contains("was not provided a value")
    {
        let name = rest.split('\'').next().unwrap_or("");
        Error::new(SqlState::UNDEFINED_PARAMETER, format!("there is no parameter {name}"))
    } else if lowered.contains("overflow") {
        overflow(first)
    } else if message.contains("Cannot cast string")
        || message.contains("Can't cast value")
        || message.contains("too large to store")
    {
        from_arrow_message(message)
    } else if lowered.contains("error parsing") || lowered.contains("unable to parse") {
        Error::new(SqlState::INVALID_DATETIME_FORMAT, lower(first))
    } else if lowered.contains("memory") && lowered.contains("exhausted") {
        Error::new(SqlState::OUT_OF_MEMORY, "out of memory").with_detail(sentence(first))
    } else {
        Error::new(SqlState::DATA_EXCEPTION, lower(first))
    }
}

/// DataFusion appends backtraces and lists of candidates in further lines.
fn first_line(message: &str) -> &str {
    let message = message.split("\n\nbacktrace:").next().unwrap_or(message);
    message.lines().next().unwrap_or("").trim()
}

/// `Cast error: x` to `x`.
fn strip_kind(message: &str) -> &str {
    let message = first_line(message);
    match message.split_once(": ") {
        Some((kind, rest)) if kind.ends_with("error") || kind.ends_with("Error") => rest,
        _ => message,
    }
}

/// PostgreSQL's primary messages start lower-case, unless with a name.
fn lower(message: &str) -> String {
    let mut chars = message.chars();
    match (chars.next(), message.chars().nth(1)) {
        (Some(first), Some(second)) if first.is_uppercase() && !second.is_uppercase() => {
            first.to_lowercase().chain(chars).collect::<String>().trim_end_matches('.').to_owned()
        }
        _ => message.trim_end_matches('.').to_owned(),
    }
}

fn sentence(message: &str) -> String {
    let message = message.trim();
    let mut chars = message.chars();
    let mut text: String = chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default();
    if !text.ends_with(['.', '!', '?']) {
        text.push('.');
    }
    text
}
