//! PostgreSQL's words for what DataFusion says in its own. It tells these errors apart by their text only.

use super::{cannot_cast, type_name};
use tidepool_base::{Error, SqlState};

/// The error that a message means, if it is one of those that PostgreSQL has words for.
pub fn known(message: &str) -> Option<Error> {
    let of = |code, text: String| Some(Error::new(code, text));
    let fixed = FIXED.iter().find(|(part, ..)| message.contains(part));
    if let Some((_, code, text)) = fixed {
        return Some(Error::new(*code, *text));
    }
    if message.contains("Unsupported CAST from") || message.contains("asting from") && message.contains("not supported")
    {
        return Some(cannot_cast(message));
    }
    if let Some(name) = between(message, "The window ", " is not defined") {
        return of(SqlState::UNDEFINED_OBJECT, format!("window \"{name}\" does not exist"));
    }
    if let Some(name) = message.strip_prefix("Invalid qualifier ") {
        let name = name.trim_matches('"');
        return of(SqlState::UNDEFINED_TABLE, format!("missing FROM-clause entry for table \"{name}\""));
    }
    if let Some(value) = between(message, "between 0.0 and 1.0 inclusive, ", " is invalid") {
        return of(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, format!("percentile value {value} is not between 0 and 1"));
    }
    if let Some((_, found)) = message.split_once("requires a boolean expression, got ") {
        let found = type_name(found);
        return of(SqlState::DATATYPE_MISMATCH, format!("argument of NOT must be type boolean, not type {found}"));
    }
    if let Some(types) = between(message, "common type to coerce ", " in LIKE expression") {
        let (left, right) = types.split_once(" and ")?;
        let (left, right) = (type_name(left), type_name(right));
        return of(SqlState::UNDEFINED_FUNCTION, format!("operator does not exist: {left} ~~ {right}"));
    }
    if let Some((_, operation)) = message.split_once("Invalid interval arithmetic operation: ") {
        let operation: Vec<&str> = operation.split_ascii_whitespace().collect();
        let [left, op, right] = operation.as_slice() else { return None };
        let (left, right) = (type_name(left), type_name(right));
        return of(SqlState::UNDEFINED_FUNCTION, format!("operator does not exist: {left} {op} {right}"));
    }
    if let Some(counts) = between(message, "Source table contains ", " names given as column alias") {
        let (has, given) = counts.split_once(" columns but only ")?;
        return of(
            SqlState::INVALID_COLUMN_REFERENCE,
            format!("table has {has} columns available but {given} columns specified"),
        );
    }
    if let Some(position) = between(message, "Cannot find column with position ", " in SELECT clause") {
        return of(SqlState::INVALID_COLUMN_REFERENCE, format!("GROUP BY position {position} is not in select list"));
    }
    if let Some((_, found)) = message.split_once("Expected LIMIT to be an integer or null, but got ") {
        let found = type_name(found);
        return of(SqlState::DATATYPE_MISMATCH, format!("argument of LIMIT must be type bigint, not type {found}"));
    }
    if let Some(unit) =
        between(message, "Date part '", "' not supported").or_else(|| between(message, "granularity: '", "'"))
    {
        return of(SqlState::INVALID_PARAMETER_VALUE, format!("unit \"{unit}\" not recognized"));
    }
    for operation in ["INTERSECT", "EXCEPT"] {
        if message.starts_with(operation) && message.contains("different number of columns") {
            return of(SqlState::SYNTAX_ERROR, format!("each {operation} query must have the same number of columns"));
        }
    }
    let operator = between(message, "inary operator '", "' is not supported")?;
    let symbol = match operator {
        "AtArrow" => "@>",
        "ArrowAt" => "<@",
        "Arrow" => "->",
        "LongArrow" => "->>",
        "HashArrow" => "#>",
        "HashLongArrow" => "#>>",
        "AtAt" => "@@",
        "AtQuestion" => "@?",
        "Question" => "?",
        "QuestionAnd" => "?&",
        "QuestionPipe" => "?|",
        "HashMinus" => "#-",
        other => other,
    };
    of(SqlState::FEATURE_NOT_SUPPORTED, format!("operator {symbol} is not supported for these types"))
}

const FIXED: [(&str, SqlState, &str); 12] = [
    (
        "to grouping function is not in grouping columns",
        SqlState::GROUPING_ERROR,
        "arguments to GROUPING must be grouping expressions of the associated query level",
    ),
    (
        "recursive term must have the same number of columns",
        SqlState::SYNTAX_ERROR,
        "each UNION query must have the same number of columns",
    ),
    (
        "ultiple recursive references",
        SqlState::INVALID_RECURSION,
        "recursive reference to a query must not appear more than once",
    ),
    (
        "cannot contain window function calls",
        SqlState::GROUPING_ERROR,
        "aggregate function calls cannot contain window function calls",
    ),
    (
        "or SELECT DISTINCT, ORDER BY expressions",
        SqlState::INVALID_COLUMN_REFERENCE,
        "for SELECT DISTINCT, ORDER BY expressions must appear in select list",
    ),
    (
        "SELECT DISTINCT ON expressions must match",
        SqlState::INVALID_COLUMN_REFERENCE,
        "SELECT DISTINCT ON expressions must match initial ORDER BY expressions",
    ),
    ("nconsistent data length across values list", SqlState::SYNTAX_ERROR, "VALUES lists must all be the same length"),
    ("tep cannot be zero", SqlState::INVALID_PARAMETER_VALUE, "step size cannot equal zero"),
    ("SingleQuotedByteStringLiteral", SqlState::FEATURE_NOT_SUPPORTED, "bit strings are not supported"),
    (
        "WITHIN GROUP is only supported for ordered-set",
        SqlState::WRONG_OBJECT_TYPE,
        "WITHIN GROUP specified, but the function is not an ordered-set aggregate",
    ),
    ("PGPostfixFactorial", SqlState::SYNTAX_ERROR, "syntax error at or near \"!\""),
    ("inary operator: Assignment", SqlState::SYNTAX_ERROR, "syntax error at or near \":=\""),
];

fn between<'m>(message: &'m str, before: &str, after: &str) -> Option<&'m str> {
    message.split_once(before)?.1.split_once(after).map(|(inside, _)| inside)
}
