//! JSON: checked, and in the one form that `jsonb` has of each value.

use serde::de::IgnoredAny;
use std::fmt::Write;
use tidepool_base::{Error, Result, SqlState};

/// Deeper nesting than clients send, and far less than a thread's stack holds.
const DEPTH_MAX: usize = 1_000;

/// Digits that a number is written out with, at most: PostgreSQL's limit for `numeric`.
const DIGITS_MAX: i64 = 131_072;

/// 22P02 for a text that is no JSON.
pub(crate) fn check_json(text: &str) -> Result<()> {
    serde_json::from_str::<IgnoredAny>(text).map(drop).map_err(|error| {
        let error = error.to_string();
        let mut detail = error[..1].to_ascii_uppercase();
        detail.push_str(&error[1..]);
        detail.push('.');
        malformed().with_detail(detail)
    })
}

/// A text as `jsonb` has it, once it was checked. 22P02, and 22P05 for strings with a zero character.
pub(crate) fn read_jsonb(text: &str) -> Result<String> {
    check_json(text)?;
    jsonb(text)
}

/// JSON as PostgreSQL writes `jsonb`: each key once, with its last value, shorter ones first; a blank after commas and colons; numbers without
/// exponents. Of text that is JSON.
pub fn jsonb(text: &str) -> Result<String> {
    let mut out = String::with_capacity(text.len() + text.len() / 8);
    let mut reading = Reading { rest: text };
    reading.value(&mut out, 0)?;
    Ok(out)
}

/// A text as a JSON string.
pub fn quoted(text: &str, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            control if control < ' ' => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{:04x}", u32::from(control));
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

/// The text that a JSON string stands for. 22P05 where it has a zero character, which no text has.
pub fn decoded(json: &str) -> Result<String> {
    let text: String = serde_json::from_str(json).map_err(|_| malformed())?;
    if text.contains('\0') {
        let error = Error::new(SqlState::UNTRANSLATABLE_CHARACTER, "unsupported Unicode escape sequence");
        return Err(error.with_detail("\\u0000 cannot be converted to text."));
    }
    Ok(text)
}

fn malformed() -> Error {
    Error::new(SqlState::INVALID_TEXT_REPRESENTATION, "invalid input syntax for type json")
}

struct Reading<'a> {
    rest: &'a str,
}

impl<'a> Reading<'a> {
    /// The next character that is no blank.
    fn next(&mut self) -> Result<u8> {
        self.rest = self.rest.trim_start_matches([' ', '\n', '\r', '\t']);
        self.rest.as_bytes().first().copied().ok_or_else(malformed)
    }

    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        taken
    }

    fn string(&mut self) -> Result<String> {
        let bytes = self.rest.as_bytes();
        if bytes.first() != Some(&b'"') {
            return Err(malformed());
        }
        let mut end = 1;
        loop {
            match bytes.get(end).ok_or_else(malformed)? {
                b'\\' => end += 2,
                b'"' => break,
                _ => end += 1,
            }
        }
        decoded(self.take(end + 1))
    }

    fn value(&mut self, out: &mut String, depth: usize) -> Result<()> {
        if depth > DEPTH_MAX {
            return Err(Error::new(SqlState::STATEMENT_TOO_COMPLEX, "stack depth limit exceeded"));
        }
        match self.next()? {
            b'{' => self.object(out, depth),
            b'[' => self.array(out, depth),
            b'"' => {
                quoted(&self.string()?, out);
                Ok(())
            }
            _ => {
                let end = self.rest.find([',', '}', ']', ' ', '\n', '\r', '\t']).unwrap_or(self.rest.len());
                match self.take(end) {
                    "" => Err(malformed()),
                    word @ ("true" | "false" | "null") => {
                        out.push_str(word);
                        Ok(())
                    }
                    digits => number(digits, out),
                }
            }
        }
    }

    fn object(&mut self, out: &mut String, depth: usize) -> Result<()> {
        self.take(1);
        let mut members: Vec<(String, String)> = Vec::new();
        while self.next()? != b'}' {
            if !members.is_empty() && self.take(1) != "," {
                return Err(malformed());
            }
            self.next()?;
            let key = self.string()?;
            if self.next()? != b':' {
                return Err(malformed());
            }
            self.take(1);
            let mut value = String::new();
            self.value(&mut value, depth + 1)?;
            members.push((key, value));
        }
        self.take(1);
        // Of the same key the last one comes last.
        members.sort_by(|left, right| (left.0.len(), &left.0).cmp(&(right.0.len(), &right.0)));
        out.push('{');
        let mut is_first = true;
        for (place, (key, value)) in members.iter().enumerate() {
            if members.get(place + 1).is_some_and(|(next, _)| next == key) {
                continue;
            }
            if !is_first {
                out.push_str(", ");
            }
            is_first = false;
            quoted(key, out);
            out.push_str(": ");
            out.push_str(value);
        }
        out.push('}');
        Ok(())
    }

    fn array(&mut self, out: &mut String, depth: usize) -> Result<()> {
        self.take(1);
        out.push('[');
        let mut is_first = true;
        while self.next()? != b']' {
            if !is_first {
                if self.take(1) != "," {
                    return Err(malformed());
                }
                out.push_str(", ");
            }
            is_first = false;
            self.value(out, depth + 1)?;
        }
        self.take(1);
        out.push(']');
        Ok(())
    }
}

/// A number as `numeric` is written: with the zeros that it was written with, and without an exponent. 22003 for one of too many digits.
fn number(text: &str, out: &mut String) -> Result<()> {
    let (mantissa, exponent) = match text.find(['e', 'E']) {
        Some(at) => (&text[..at], text[at + 1..].parse::<i64>().unwrap_or(i64::MAX)),
        None => (text, 0),
    };
    let (is_negative, mantissa) = mantissa.strip_prefix('-').map_or((false, mantissa), |mantissa| (true, mantissa));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if !whole.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit()) || whole.is_empty() {
        return Err(malformed());
    }
    let is_zero = whole.bytes().chain(fraction.bytes()).all(|byte| byte == b'0');
    if is_negative && !is_zero {
        out.push('-');
    }
    if exponent == 0 {
        out.push_str(whole);
        if !fraction.is_empty() {
            out.push('.');
            out.push_str(fraction);
        }
        return Ok(());
    }
    let point = (whole.len() as i64).saturating_add(exponent);
    let scale = (fraction.len() as i64).saturating_sub(exponent).max(0);
    if scale > 16_383 || !is_zero && point > DIGITS_MAX {
        return Err(Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, "value overflows numeric format"));
    }
    let digits = [whole, fraction].concat();
    let digit = |place: i64| match usize::try_from(place) {
        Ok(place) => digits.as_bytes().get(place).map_or('0', |digit| char::from(*digit)),
        Err(_) => '0',
    };
    let first = (0..point).find(|place| digit(*place) != '0');
    match first.filter(|_| !is_zero) {
        Some(first) => out.extend((first..point).map(digit)),
        None => out.push('0'),
    }
    if scale > 0 {
        out.push('.');
        out.extend((point..point.saturating_add(scale)).map(digit));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn becomes(text: &str, form: &str) {
        assert_eq!(read_jsonb(text).unwrap(), form, "{text}");
        assert_eq!(read_jsonb(form).unwrap(), form, "{form}");
    }

    #[test]
    fn each_value_has_one_form() {
        becomes(r#"{"b": 1, "a":2}"#, r#"{"a": 2, "b": 1}"#);
        becomes(r#" {"bb":1,"a":[ ],"c":{ } ,"aa":null}"#, r#"{"a": [], "c": {}, "aa": null, "bb": 1}"#);
        becomes(r#"{"a":1,"b":2,"a":3}"#, r#"{"a": 3, "b": 2}"#);
        becomes("[1,\n\"x\\u0041\\n\\/é\", true , {\"k\":[[]]}]", r#"[1, "xA\n/é", true, {"k": [[]]}]"#);
        becomes(r#"{"é":1,"zz":2,"z":3}"#, r#"{"z": 3, "zz": 2, "é": 1}"#);
        becomes(r#""\u00e9\u0001\t\"""#, "\"é\\u0001\\t\\\"\"");
    }

    #[test]
    fn numbers_are_written_without_exponents() {
        for (text, form) in [
            ("1.50", "1.50"),
            ("-0", "0"),
            ("-0.0", "0.0"),
            ("1e2", "100"),
            ("1.5E+3", "1500"),
            ("1.50e1", "15.0"),
            ("-12.5e-3", "-0.0125"),
            ("1e-2", "0.01"),
            ("0e5", "0"),
            ("0.00e1", "0.0"),
            ("0.5e1", "5"),
            ("12345678901234567890123456789.000", "12345678901234567890123456789.000"),
        ] {
            becomes(text, form);
        }
        assert_eq!(read_jsonb("1e131072").unwrap_err().code(), SqlState::NUMERIC_VALUE_OUT_OF_RANGE);
        assert_eq!(read_jsonb("1e-16384").unwrap_err().code(), SqlState::NUMERIC_VALUE_OUT_OF_RANGE);
        assert_eq!(read_jsonb("1e99999999999999999999").unwrap_err().code(), SqlState::NUMERIC_VALUE_OUT_OF_RANGE);
    }

    #[test]
    fn what_is_no_json_has_none() {
        for text in ["", "{a}", "[1,]", "{\"a\" 1}", "\"open", "01", "nul", "[1 2]", "{\"a\":1,}"] {
            assert_eq!(read_jsonb(text).unwrap_err().code(), SqlState::INVALID_TEXT_REPRESENTATION, "{text}");
        }
        assert_eq!(read_jsonb("{\"a\\u0000\": 1}").unwrap_err().code(), SqlState::UNTRANSLATABLE_CHARACTER);
        // What was not checked ends in an error, too.
        for text in ["", "{", "[1", "{\"a\"", "\"\\", "[1,", "x"] {
            assert!(jsonb(text).is_err(), "{text}");
        }
        assert_eq!(jsonb(&"[".repeat(5_000)).unwrap_err().code(), SqlState::STATEMENT_TOO_COMPLEX);
    }
}
