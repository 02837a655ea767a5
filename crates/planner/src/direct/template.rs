//! Texts that differ in literals only.
//!
//! A template is a statement's text with parameters in the place of literals: `WHERE id = 7` becomes `WHERE id = $1`. Not every literal
//! can be a parameter: `ORDER BY 1` names a column, `numeric(10, 2)` a type, `'1 day'` after `interval` is of a type of its own. What
//! might be anything but a plain value stays as it is. The statement that is then parsed is the template, so a
//! literal in the wrong place does no harm but to be an error of the template's, which sends the text on the general path.

use super::datum::Datum;
use super::expr;
use std::fmt::Write;
use tidepool_base::{Result, SqlType};
use tidepool_database::text::TextSettings;

/// A literal that a template has a parameter for.
#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    Int(i64),
    Text(String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    /// The text with parameters, of which the first `given` are the text's own.
    pub text: String,
    pub given: usize,
    pub literals: Vec<Literal>,
    /// A letter for each literal's kind: of two texts with the same template and kinds the same comes.
    pub kinds: String,
}

impl Literal {
    /// Its value as one of a type. 22P02, 22003, 22007, 22008 for a text that is none.
    pub fn read(&self, of: SqlType, settings: &TextSettings) -> Result<Datum<'static>> {
        match self {
            Literal::Int(value) => Ok(Datum::Int(*value)),
            Literal::Text(text) => expr::read(text, of, settings),
        }
    }
}

impl Template {
    /// Type oids of all parameters, where the statement's own are of these: 0 for a text, whose type the statement says.
    pub fn oids(&self, given: &[u32]) -> Vec<u32> {
        let literals = self.kinds.bytes().map(|kind| match kind {
            b'i' => SqlType::Integer.oid(),
            b'l' => SqlType::BigInt.oid(),
            _ => 0,
        });
        given.iter().copied().chain(literals).collect()
    }

    /// Whether literals that become parameters of these types keep their values: a numeric literal has the digits that it is written with, a parameter
    /// those of its type.
    pub fn is_exact(&self, types: &[SqlType]) -> bool {
        let mut texts = self.kinds.bytes().zip(types).filter(|(kind, _)| *kind == b's');
        texts.all(|(_, of)| !matches!(of, SqlType::Numeric { .. }))
    }

    /// Whether a literal that it keeps may stand for another time whenever it is read.
    pub fn names_moments(&self) -> bool {
        let mut at = 0;
        while let Some(start) = self.text[at..].find('\'') {
            let Some((text, end)) = quoted(&self.text, at + start) else { return true };
            if is_moment(&text) {
                return true;
            }
            at = end;
        }
        false
    }

    /// What a statement of this template is known by, whose own parameters are of these types.
    pub fn key(&self, given: &[u32]) -> String {
        let mut key = String::with_capacity(self.text.len() + self.kinds.len() + 1 + 6 * given.len());
        key.push_str(&self.text);
        key.push('\0');
        key.push_str(&self.kinds);
        for oid in given {
            _ = write!(key, ",{oid}");
        }
        key
    }
}

/// Texts longer than this are not looked at.
const BYTES_MAX: usize = 16 << 10;
const LITERALS_MAX: usize = 512;

/// Words after which a literal is a plain value.
const BEFORE_VALUE: [&str; 8] = ["and", "or", "between", "set", "limit", "offset", "then", "else"];

/// Words whose brackets have plain values in them.
const BEFORE_LIST: [&str; 9] = ["values", "in", "and", "or", "where", "not", "set", "on", "by"];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Token {
    /// The last word's place.
    Word(usize, usize),
    Open {
        plain: bool,
    },
    Other(u8),
    None,
}

/// `None` for a text that none is made of: it is no single statement of the kinds that programs are made of, or has something
/// in it that is not read here.
pub fn of(sql: &str) -> Option<Template> {
    let bytes = sql.as_bytes();
    if bytes.len() > BYTES_MAX {
        return None;
    }
    let word_at = |start: usize| {
        let rest = &bytes[start..];
        let end = rest.iter().position(|byte| !is_word(*byte)).unwrap_or(rest.len());
        start + end
    };
    let is = |start: usize, end: usize, word: &str| sql[start..end].eq_ignore_ascii_case(word);
    let first = bytes.iter().position(|byte| !byte.is_ascii_whitespace())?;
    let first_end = word_at(first);
    let is_select = is(first, first_end, "select") || is(first, first_end, "with");
    if !is_select && !["insert", "update", "delete", "merge"].iter().any(|word| is(first, first_end, word)) {
        return None;
    }
    let mut given = 0;
    // A query's literals before FROM are columns of its own; behind ORDER BY and GROUP BY, and in RETURNING, too.
    let mut pinned = is_select;
    // Whether their literals are plain values, and what comes after them.
    let mut brackets: Vec<(bool, bool)> = Vec::new();
    let mut before = Token::None;
    let mut at = first;
    let mut out = String::with_capacity(bytes.len() + 16);
    let mut literals: Vec<Literal> = Vec::new();
    let mut places: Vec<(usize, u32)> = Vec::new();
    let mut kinds = String::new();
    let mut copied = first;
    while at < bytes.len() {
        let byte = bytes[at];
        match byte {
            _ if byte.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            b'-' if bytes.get(at + 1) == Some(&b'-') => {
                at = bytes[at..].iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| at + end);
                continue;
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let end = sql[at + 2..].find("*/")?;
                if sql[at + 2..at + 2 + end].contains("/*") {
                    return None;
                }
                at += end + 4;
                continue;
            }
            b'"' => {
                let end = bytes[at + 1..].iter().position(|byte| *byte == b'"')?;
                before = Token::Other(b'"');
                at += end + 2;
            }
            b'$' => {
                let end = word_at(at + 1);
                let number: usize = sql[at + 1..end].parse().ok()?;
                given = given.max(number);
                before = Token::Other(b'$');
                at = end;
            }
            b'\'' => {
                let (text, end) = quoted(sql, at)?;
                let plain = match before {
                    Token::Word(start, end) => BEFORE_VALUE[..3].iter().any(|word| is(start, end, word)),
                    Token::Open { plain } => plain,
                    Token::Other(byte) => matches!(byte, b'=' | b'<' | b'>' | b','),
                    Token::None => false,
                };
                if plain && !pinned && brackets.iter().all(|(plain, _)| *plain) && !is_cast(bytes, end) {
                    out.push_str(&sql[copied..at]);
                    places.push((out.len(), literals.len() as u32));
                    literals.push(Literal::Text(text));
                    kinds.push('s');
                    copied = end;
                }
                before = Token::Other(b'\'');
                at = end;
            }
            b'0'..=b'9' => {
                let end = word_at(at);
                let is_whole = bytes[at..end].iter().all(u8::is_ascii_digit)
                    && bytes.get(end) != Some(&b'.')
                    && !matches!(before, Token::Other(b'.'));
                let plain = match before {
                    // How many rows a query within another gives decides what becomes of it.
                    Token::Word(start, end) if !brackets.is_empty() => {
                        BEFORE_VALUE.iter().any(|word| is(start, end, word) && !["limit", "offset"].contains(word))
                    }
                    Token::Word(start, end) => BEFORE_VALUE.iter().any(|word| is(start, end, word)),
                    Token::Open { plain } => plain,
                    Token::Other(byte) => {
                        matches!(byte, b'=' | b'<' | b'>' | b',' | b'+' | b'-' | b'*' | b'/' | b'%')
                    }
                    Token::None => false,
                };
                let value: Option<i64> = if is_whole { sql[at..end].parse().ok() } else { None };
                if let Some(value) = value
                    && plain
                    && !pinned
                    && brackets.iter().all(|(plain, _)| *plain)
                    && !is_cast(bytes, end)
                {
                    out.push_str(&sql[copied..at]);
                    places.push((out.len(), literals.len() as u32));
                    literals.push(Literal::Int(value));
                    kinds.push(if i32::try_from(value).is_ok() { 'i' } else { 'l' });
                    copied = end;
                }
                before = Token::Other(b'0');
                at = end;
            }
            _ if is_word(byte) => {
                let end = word_at(at);
                // `E'…'`, `B'…'`, `U&'…'` and their like.
                if matches!(bytes.get(end), Some(b'\'' | b'&')) {
                    return None;
                }
                if is_select && is(at, end, "from") {
                    pinned = false;
                } else if ["by", "returning", "for", "select"].iter().any(|word| is(at, end, word)) && at > first {
                    pinned = true;
                } else if is(at, end, "limit") || is(at, end, "offset") || is(at, end, "where") {
                    pinned = false;
                }
                before = Token::Word(at, end);
                at = end;
            }
            b'(' => {
                let plain = match before {
                    Token::Word(start, end) => BEFORE_LIST.iter().any(|word| is(start, end, word)),
                    Token::Open { plain } => plain,
                    Token::Other(byte) => !matches!(byte, b'"' | b'\'' | b'$' | b')'),
                    Token::None => false,
                };
                // A query of its own says by itself which of its literals are.
                let rest = bytes[at + 1..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
                let next = at + 1 + rest;
                let is_query = ["select", "with"].iter().any(|word| is(next, word_at(next), word));
                brackets.push((plain || is_query, pinned));
                before = Token::Open { plain };
                at += 1;
            }
            b')' => {
                pinned = brackets.pop()?.1;
                before = Token::Other(b')');
                at += 1;
            }
            b';' => {
                // The last one.
                if !sql[at + 1..].trim().is_empty() {
                    return None;
                }
                break;
            }
            _ => {
                before = Token::Other(byte);
                at += 1;
            }
        }
        if literals.len() > LITERALS_MAX {
            return None;
        }
    }
    out.push_str(&sql[copied..at]);
    // Numbers of parameters come last: only now it is known how many the text has.
    let mut text = String::with_capacity(out.len() + 4 * places.len());
    let mut from = 0;
    for (place, literal) in places {
        text.push_str(&out[from..place]);
        // A sign before it is an operator then.
        _ = write!(text, "${}", given + literal as usize + 1);
        from = place;
    }
    text.push_str(&out[from..]);
    Some(Template { text, given, literals, kinds })
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// Whether a text may be read as another time whenever it is.
pub fn is_moment(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    ["now", "today", "tomorrow", "yesterday"].iter().any(|word| text.contains(word))
}

/// `::` follows.
fn is_cast(bytes: &[u8], end: usize) -> bool {
    let mut rest = bytes[end..].iter().skip_while(|byte| byte.is_ascii_whitespace());
    rest.next() == Some(&b':')
}

/// The text in quotes at `start`, and where it ends.
fn quoted(sql: &str, start: usize) -> Option<(String, usize)> {
    let mut text = String::new();
    let mut at = start + 1;
    loop {
        let end = at + sql[at..].find('\'')?;
        text.push_str(&sql[at..end]);
        if sql.as_bytes().get(end + 1) != Some(&b'\'') {
            return Some((text, end + 1));
        }
        text.push('\'');
        at = end + 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn becomes(sql: &str, text: &str) {
        assert_eq!(of(sql).map(|template| template.text).as_deref(), Some(text), "{sql}");
    }

    #[test]
    fn values_become_parameters() {
        becomes("SELECT a FROM t WHERE b = 7 AND c IN ('x', 'y')", "SELECT a FROM t WHERE b = $1 AND c IN ($2, $3)");
        becomes("SELECT 1, 'x' FROM t ORDER BY 2 LIMIT 5", "SELECT 1, 'x' FROM t ORDER BY 2 LIMIT $1");
        becomes("SELECT a FROM t WHERE b = $1 AND c = 3", "SELECT a FROM t WHERE b = $1 AND c = $2");
        becomes(
            "SELECT a FROM t WHERE d > date '2026-01-01' AND e = '5'::int",
            "SELECT a FROM t WHERE d > date '2026-01-01' AND e = '5'::int",
        );
    }

    #[test]
    fn a_query_within_another_says_which_of_its_literals_are_values() {
        becomes(
            "WITH m AS (SELECT 1 AS one FROM t WHERE a = 4) SELECT 2, one FROM m WHERE one < 9",
            "WITH m AS (SELECT 1 AS one FROM t WHERE a = $1) SELECT 2, one FROM m WHERE one < $2",
        );
        becomes(
            "SELECT (SELECT max(b) FROM u WHERE c = 3), 7 FROM t WHERE EXISTS (SELECT 1 FROM v WHERE d = 8)",
            "SELECT (SELECT max(b) FROM u WHERE c = $1), 7 FROM t WHERE EXISTS (SELECT 1 FROM v WHERE d = $2)",
        );
        // How many of its rows are wanted decides what becomes of it.
        becomes(
            "SELECT x FROM t, LATERAL (SELECT x FROM u WHERE a = 5 ORDER BY x LIMIT 2) AS f LIMIT 3",
            "SELECT x FROM t, LATERAL (SELECT x FROM u WHERE a = $1 ORDER BY x LIMIT 2) AS f LIMIT $2",
        );
        becomes(
            "SELECT a FROM generate_series(1, 10) AS g(a) WHERE a = 2",
            "SELECT a FROM generate_series(1, 10) AS g(a) WHERE a = $1",
        );
    }

    #[test]
    fn literals_that_stand_for_moments_are_known() {
        for (sql, names) in [
            ("SELECT 'now'::timestamptz", true),
            ("SELECT a FROM t WHERE b = 'it''s' AND d < date 'Tomorrow'", true),
            ("SELECT now(), 'then' FROM t", false),
            // A parameter is read each time.
            ("SELECT a FROM t WHERE d = 'today'", false),
        ] {
            assert_eq!(of(sql).map(|template| template.names_moments()), Some(names), "{sql}");
        }
    }

    #[test]
    fn what_is_not_read_here_has_none() {
        for sql in
            ["CREATE TABLE t (a int)", "SELECT E'a\\n' FROM t", "SELECT 1; SELECT 2", "SELECT a FROM t WHERE b = 'open"]
        {
            assert_eq!(of(sql), None, "{sql}");
        }
    }
}
