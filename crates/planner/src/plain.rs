//! Plain words for what a user sees: messages and plans name types and values as SQL does, and not as the libraries below do.

use crate::errors::type_name;
use chrono::DateTime;
use std::borrow::Cow;
use tidepool_base::Error;

/// Names of types and literals in the libraries' notation, written as SQL's. What stands between double quotes is somebody's own text and
/// stays as it is.
pub fn text(text: &str) -> Cow<'_, str> {
    if !text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let len = match first {
            '"' => closing(rest, '"'),
            first if first.is_alphanumeric() || first == '_' => {
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                let (word, after) = rest.split_at(end);
                if let Some((written, taken)) = written(word, after) {
                    out.push_str(&written);
                    rest = &after[taken..];
                    continue;
                }
                end
            }
            other => other.len_utf8(),
        };
        out.push_str(&rest[..len]);
        rest = &rest[len..];
    }
    if out == text { Cow::Borrowed(text) } else { Cow::Owned(out) }
}

/// An error in plain words. What has none is a statement of a form that is not supported (0A000): its own words are for the log.
pub fn error(error: &Error) -> Cow<'_, Error> {
    let parts = [Some(error.message()), error.detail(), error.hint(), error.context()];
    let plain = parts.map(|part| part.map(text));
    let is_plain = plain.iter().flatten().all(|part| !is_internal(part));
    if is_plain && plain.iter().flatten().all(|part| matches!(part, Cow::Borrowed(_))) {
        return Cow::Borrowed(error);
    }
    let [message, detail, hint, context] = plain;
    if message.as_deref().is_some_and(is_internal) {
        tracing::debug!(code = error.code().code(), "an error without plain words: {}", error.message());
        let unsupported = Error::unsupported(unsupported_form(error.message()));
        return Cow::Owned(match error.position() {
            Some(position) => unsupported.with_position(position),
            None => unsupported,
        });
    }
    let shown = |part: Option<Cow<'_, str>>| part.filter(|part| !is_internal(part)).map(Cow::into_owned);
    let mut rewritten = Error::new(error.code(), message.unwrap_or_default().into_owned());
    if let Some(detail) = shown(detail) {
        rewritten = rewritten.with_detail(detail);
    }
    if let Some(hint) = shown(hint) {
        rewritten = rewritten.with_hint(hint);
    }
    if let Some(context) = shown(context) {
        rewritten = rewritten.with_context(context);
    }
    if let Some(position) = error.position() {
        rewritten = rewritten.with_position(position);
    }
    if let Some(subject) = error.subject() {
        rewritten = rewritten.with_subject(subject.clone());
    }
    Cow::Owned(rewritten)
}

/// What kind of thing a message of the libraries says is not supported.
fn unsupported_form(message: &str) -> &'static str {
    const FORMS: [(&str, &str); 9] = [
        ("Collate", "COLLATE is not supported here"),
        ("InSubquery", "a subquery in this place is not supported"),
        ("ScalarSubquery", "a subquery in this place is not supported"),
        ("Exists", "a subquery in this place is not supported"),
        ("OuterReferenceColumn", "a subquery that refers to this column of the query around it is not supported"),
        ("WindowFunction", "a window function in this place is not supported"),
        ("AggregateFunction", "an aggregate function in this place is not supported"),
        ("Wildcard", "\"*\" in this place is not supported"),
        ("GroupingSet", "grouping sets of this form are not supported"),
    ];
    let known = FORMS.iter().find(|(word, _)| message.contains(word));
    known.map_or("a statement of this form is not supported", |(_, form)| form)
}

/// Whether a text has a word that means something only to who knows the libraries.
pub fn is_internal(text: &str) -> bool {
    let mut unquoted = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('"') {
        unquoted.push_str(&rest[..at]);
        rest = &rest[at + closing(&rest[at..], '"')..];
    }
    unquoted.push_str(rest);
    const PARTS: [&str; 22] = [
        "DataFusion",
        "datafusion",
        "Arrow",
        "arrow_",
        "sqltorel",
        "LogicalPlan",
        "logical plan",
        "logical expression",
        "physical plan",
        "physical expr",
        "PhysicalExpr",
        "TableScan",
        "SchemaError",
        "ScalarValue",
        "ColumnarValue",
        "RecordBatch",
        "TableProvider",
        "TableReference",
        "TypeSignature",
        "Field {",
        "ast node",
        "tidepool_",
    ];
    let is_type = |word: &str| is_type(word) || word.ends_with("Exec") && word.len() > 4;
    PARTS.iter().any(|part| unquoted.contains(part))
        || unquoted.split(|c: char| !c.is_alphanumeric() && c != '_').any(is_type)
        // The debug form of an expression: `Foo { bar: … }`, `Foo(Bar(…))`.
        || unquoted.contains(": Some(")
        || unquoted.contains("Expr(")
        || unquoted.match_indices(" { ").any(|(at, _)| is_camel(&unquoted[..at]))
}

/// Whether the last word of a text is of the form `ScalarFunction`.
fn is_camel(text: &str) -> bool {
    let word = text.rsplit(|c: char| !c.is_alphanumeric()).next().unwrap_or("");
    word.starts_with(|c: char| c.is_ascii_uppercase()) && word.contains(|c: char| c.is_ascii_lowercase())
}

/// Bytes of a text up to its second quote.
fn closing(text: &str, quote: char) -> usize {
    text[1..].find(quote).map_or(text.len(), |at| at + 2)
}

fn is_type(word: &str) -> bool {
    matches!(
        word,
        "Int8"
            | "Int16"
            | "Int32"
            | "Int64"
            | "UInt8"
            | "UInt16"
            | "UInt32"
            | "UInt64"
            | "Float16"
            | "Float32"
            | "Float64"
            | "Utf8"
            | "LargeUtf8"
            | "Utf8View"
            | "Decimal32"
            | "Decimal64"
            | "Decimal128"
            | "Decimal256"
            | "Date32"
            | "Date64"
            | "Time32"
            | "Time64"
            | "LargeBinary"
            | "BinaryView"
            | "FixedSizeBinary"
            | "FixedSizeList"
            | "LargeList"
            | "IntervalMonthDayNano"
            | "TimestampNanosecond"
            | "TimestampMicrosecond"
            | "TimestampMillisecond"
            | "TimestampSecond"
    )
}

/// What a word and the parentheses after it are in SQL, and how many bytes of `after` that takes in. `None` for other words.
fn written(word: &str, after: &str) -> Option<(String, usize)> {
    let (inside, taken) = match after.starts_with('(') {
        true => {
            let end = matching(after)?;
            (Some(&after[1..end]), end + 1)
        }
        false => (None, 0),
    };
    let value = match (word, inside) {
        ("Boolean", Some(inside)) if matches!(inside, "true" | "false" | "NULL") => inside.to_owned(),
        ("Timestamp", Some(inside)) => {
            let zoned = !inside.contains("None") && inside.contains(',');
            if zoned { "timestamp with time zone" } else { "timestamp without time zone" }.to_owned()
        }
        ("Interval" | "Duration", Some(inside)) if inside.chars().all(char::is_alphanumeric) => "interval".to_owned(),
        ("List" | "LargeList" | "FixedSizeList", Some(inside)) => {
            let element = inside.trim_start_matches("nullable ").trim_start_matches("non-null ");
            let element = element.split_once("data_type: ").map_or(element, |(_, element)| element);
            let element = element.split([',', ';']).next().unwrap_or(element);
            format!("{}[]", type_name(element))
        }
        ("Struct", Some(_)) => "record".to_owned(),
        ("Decimal128" | "Decimal256" | "Decimal64" | "Decimal32", Some(inside)) => {
            match inside.strip_prefix("Some(").and_then(|rest| rest.split_once("),")) {
                Some((digits, rest)) => {
                    let scale = rest.split(',').next_back()?.trim().parse().ok()?;
                    scaled(digits, scale)
                }
                None if inside.starts_with("NULL") || inside.starts_with("None") => "NULL".to_owned(),
                None => match inside.split(',').collect::<Vec<_>>().as_slice() {
                    [value, _, _] => (*value).to_owned(),
                    _ => format!("numeric({})", inside.replace(' ', "")),
                },
            }
        }
        ("TimestampMicrosecond" | "TimestampNanosecond" | "TimestampMillisecond" | "TimestampSecond", Some(inside)) => {
            moment(word, inside)
        }
        ("FixedSizeBinary", Some(inside)) if inside.chars().all(|c| c.is_ascii_digit()) => "numeric".to_owned(),
        (word, Some(inside)) if is_type(word) || matches!(word, "Binary") && inside.starts_with('"') => {
            match inside.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
                Some(text) => format!("'{text}'"),
                None => inside.to_owned(),
            }
        }
        (word, None) if is_type(word) => return Some((type_name(word).to_owned(), 0)),
        _ => return None,
    };
    Some((value, taken))
}

/// Where the parenthesis that a text begins with is closed.
fn matching(text: &str) -> Option<usize> {
    let (mut depth, mut quoted) = (0, false);
    for (at, c) in text.char_indices() {
        match c {
            '"' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

fn scaled(digits: &str, scale: usize) -> String {
    let (sign, digits) = match digits.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", digits),
    };
    if scale == 0 {
        return format!("{sign}{digits}");
    }
    let padded = format!("{digits:0>width$}", width = scale + 1);
    let (whole, fraction) = padded.split_at(padded.len() - scale);
    format!("{sign}{whole}.{fraction}")
}

fn moment(word: &str, inside: &str) -> String {
    let count: Option<i64> = inside.split(',').next().and_then(|count| count.trim().parse().ok());
    let micros = count.and_then(|count| match word {
        "TimestampSecond" => count.checked_mul(1_000_000),
        "TimestampMillisecond" => count.checked_mul(1_000),
        "TimestampMicrosecond" => Some(count),
        _ => Some(count / 1_000),
    });
    match micros.and_then(DateTime::from_timestamp_micros) {
        Some(moment) => format!("'{}'", moment.format("%Y-%m-%d %H:%M:%S%.f")),
        None => "NULL".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_literals_are_sqls() {
        let cases = [
            ("expr=[1 as Int64(1)]", "expr=[1 as 1]"),
            ("a@0 = Utf8View(\"x, (y\") AND b", "a@0 = 'x, (y' AND b"),
            ("from Struct(\"c0\": Int16) to Utf8View", "from record to text"),
            ("List(nullable Int64) and Timestamp(Microsecond, None)", "bigint[] and timestamp without time zone"),
            ("Timestamp(µs, \"UTC\")", "timestamp with time zone"),
            ("x > Decimal128(Some(-5),3,2)", "x > -0.05"),
            ("Decimal128(10, 2)", "numeric(10,2)"),
            ("1.5 as Decimal128(1.5,2,1)", "1.5 as 1.5"),
            ("TimestampMicrosecond(1500000, None)", "'1970-01-01 00:00:01.500'"),
            ("Boolean(true) OR Boolean(NULL)", "true OR NULL"),
            // Names of the user's own.
            ("column \"Int64\" does not exist", "column \"Int64\" does not exist"),
            ("Boolean values", "Boolean values"),
            ("nothing here", "nothing here"),
        ];
        for (from, to) in cases {
            assert_eq!(text(from), to, "{from}");
        }
    }

    #[test]
    fn errors_without_plain_words_are_unsupported_forms() {
        let internal = Error::internal("physical plan does not support logical expression InSubquery(InSubquery)");
        let plain = error(&internal);
        assert_eq!(plain.code().code(), "0A000");
        assert_eq!(plain.message(), "a subquery in this place is not supported");
        let mixed = Error::unsupported("cannot compare Int64").with_detail("Utf8View is text.").with_position(7);
        let plain = error(&mixed);
        assert_eq!(plain.message(), "cannot compare bigint");
        assert_eq!((plain.detail(), plain.position()), (Some("text is text."), Some(7)));
        let own = Error::unsupported("column \"Int64\" is not there");
        assert!(matches!(error(&own), Cow::Borrowed(_)));
    }

    #[test]
    fn the_libraries_words_are_known() {
        for internal in [
            "physical plan does not support logical expression InSubquery(x)",
            "unsupported ast node in sqltorel: Collate",
            "cannot cast Utf8View",
            "ProjectionExec: nothing",
            "Foo { bar: 1 }",
        ] {
            assert!(is_internal(internal), "{internal}");
        }
        for plain in ["column \"Utf8View\" does not exist", "syntax error at or near \"{ a }\"", "division by zero"] {
            assert!(!is_internal(plain), "{plain}");
        }
    }
}
