//! `synchronous_standby_names`: which standbys a commit waits for, in PostgreSQL's words.
//!
//! ```text
//! names                 as FIRST 1 (names)
//! n (names)             as FIRST n (names)
//! FIRST n (names)       the first n of those that are there, in the order of the names
//! ANY n (names)         any n of those that are there
//! ```
//!
//! Names are separated by commas. `*` stands for any host. Without double quotes a name has letters, digits and `_`; case does not count.

use std::fmt;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState};

/// Which of the standbys that are named have to have a commit. Exhaustive and mutually exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    First,
    Any,
}

/// Standbys that a commit waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandbyNames {
    text: Arc<str>,
    pub choice: Choice,
    /// So many of them; at least one.
    pub count: usize,
    names: Vec<String>,
}

impl fmt::Display for StandbyNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Name(String),
    Number(String),
    First,
    Any,
    Sign(char),
    Junk(String),
}

impl Token {
    fn text(&self) -> String {
        match self {
            Token::Name(text) | Token::Number(text) | Token::Junk(text) => text.clone(),
            Token::First => "FIRST".to_owned(),
            Token::Any => "ANY".to_owned(),
            Token::Sign(sign) => sign.to_string(),
        }
    }
}

fn tokens(text: &str) -> Vec<(Token, &str)> {
    let mut tokens = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\n', '\r', '\x0c', '\x0b']);
        let Some(first) = rest.chars().next() else { return tokens };
        let is_start = |letter: char| letter.is_ascii_alphabetic() || letter == '_' || !letter.is_ascii();
        let run = |holds: &dyn Fn(char) -> bool| rest.find(|letter| !holds(letter)).unwrap_or(rest.len());
        let (token, len) = match first {
            '*' | '(' | ')' | ',' => (if first == '*' { Token::Name("*".into()) } else { Token::Sign(first) }, 1),
            '0'..='9' => {
                let len = run(&|letter| letter.is_ascii_digit());
                (Token::Number(rest[..len].to_owned()), len)
            }
            '"' => match quoted(rest) {
                Some((name, len)) => (Token::Name(name), len),
                None => (Token::Junk(rest.to_owned()), rest.len()),
            },
            _ if is_start(first) => {
                let len = run(&|letter| is_start(letter) || letter.is_ascii_digit() || letter == '$');
                let word = &rest[..len];
                let token = match word {
                    _ if word.eq_ignore_ascii_case("first") => Token::First,
                    _ if word.eq_ignore_ascii_case("any") => Token::Any,
                    _ => Token::Name(word.to_owned()),
                };
                (token, len)
            }
            _ => (Token::Junk(first.to_string()), first.len_utf8()),
        };
        tokens.push((token, &rest[..len]));
        rest = &rest[len..];
    }
}

/// A name in double quotes, and how long it is with these.
fn quoted(text: &str) -> Option<(String, usize)> {
    let mut name = String::new();
    let mut letters = text.char_indices().skip(1).peekable();
    while let Some((at, letter)) = letters.next() {
        if letter != '"' {
            name.push(letter);
        } else if letters.peek().is_some_and(|(_, next)| *next == '"') {
            letters.next();
            name.push('"');
        } else {
            return Some((name, at + 1));
        }
    }
    None
}

impl StandbyNames {
    /// `None` for an empty text: no commit waits. 22023 where it cannot be understood.
    pub fn parse(text: &str) -> Result<Option<Arc<StandbyNames>>> {
        if text.is_empty() {
            return Ok(None);
        }
        let wrong = |detail: String| {
            let message = format!("invalid value for parameter \"synchronous_standby_names\": \"{text}\"");
            Error::new(SqlState::INVALID_PARAMETER_VALUE, message).with_detail(detail)
        };
        let tokens = tokens(text);
        let unexpected = |at: usize| {
            wrong(match tokens.get(at) {
                Some((_, found)) => format!("syntax error at or near \"{found}\""),
                None => "syntax error at end of input".to_owned(),
            })
        };
        let kind = |at: usize| tokens.get(at).map(|(token, _)| token);
        let (choice, count, mut at) = match (kind(0), kind(1), kind(2)) {
            (Some(Token::First), Some(Token::Number(count)), Some(Token::Sign('('))) => (Choice::First, Some(count), 3),
            (Some(Token::Any), Some(Token::Number(count)), Some(Token::Sign('('))) => (Choice::Any, Some(count), 3),
            (Some(Token::Number(count)), Some(Token::Sign('(')), _) => (Choice::First, Some(count), 2),
            (Some(Token::First | Token::Any), Some(Token::Number(_)), _) => return Err(unexpected(2)),
            (Some(Token::First | Token::Any), _, _) => return Err(unexpected(1)),
            _ => (Choice::First, None, 0),
        };
        let mut names = Vec::new();
        loop {
            match kind(at) {
                Some(name @ (Token::Name(_) | Token::Number(_))) => names.push(name.text()),
                _ => return Err(unexpected(at)),
            }
            at += 1;
            match kind(at) {
                Some(Token::Sign(',')) => at += 1,
                _ => break,
            }
        }
        if count.is_some() {
            if kind(at) != Some(&Token::Sign(')')) {
                return Err(unexpected(at));
            }
            at += 1;
        }
        if at < tokens.len() {
            return Err(unexpected(at));
        }
        let count = count.map_or(Ok(1), |count| count.parse::<i32>()).unwrap_or(i32::MAX);
        let count = usize::try_from(count).unwrap_or(0);
        if count == 0 {
            return Err(wrong(format!("number of synchronous standbys ({count}) must be greater than zero")));
        }
        Ok(Some(Arc::new(StandbyNames { text: text.into(), choice, count, names })))
    }

    /// A host's place among the names, from 1 on; of those of whom any will do, always 1. 0: it is not named.
    pub fn priority(&self, host: &str) -> usize {
        self.priority_where(|name| name == "*" || name.eq_ignore_ascii_case(host))
    }

    /// As `priority`, of a host that `*` does not stand for.
    pub fn priority_of_reader(&self, host: &str) -> usize {
        self.priority_where(|name| name != "*" && name.eq_ignore_ascii_case(host))
    }

    fn priority_where(&self, is_its: impl Fn(&str) -> bool) -> usize {
        let is_its = |name: &String| is_its(name);
        match (self.names.iter().position(is_its), self.choice) {
            (None, _) => 0,
            (Some(place), Choice::First) => place + 1,
            (Some(_), Choice::Any) => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (Choice, usize, Vec<String>) {
        let names = StandbyNames::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let names = names.unwrap();
        assert_eq!(names.to_string(), text);
        (names.choice, names.count, names.names.clone())
    }

    #[test]
    fn names_are_read_as_postgresql_reads_them() {
        assert_eq!(StandbyNames::parse("").unwrap(), None);
        let of = |choice, count, names: &[&str]| (choice, count, names.iter().map(|name| (*name).to_owned()).collect());
        for (text, choice, count, names) in [
            ("h1", Choice::First, 1, &["h1"][..]),
            ("h1, h2", Choice::First, 1, &["h1", "h2"]),
            ("*", Choice::First, 1, &["*"]),
            ("2 (h1,h2)", Choice::First, 2, &["h1", "h2"]),
            ("FIRST 2 (h1, h2, h3)", Choice::First, 2, &["h1", "h2", "h3"]),
            ("first 1(*)", Choice::First, 1, &["*"]),
            ("Any 1 (h1 ,\"first\")", Choice::Any, 1, &["h1", "first"]),
            ("\"a-b\",\"c\"\"d\"", Choice::First, 1, &["a-b", "c\"d"]),
            ("1, 2", Choice::First, 1, &["1", "2"]),
            ("ANY 1 (7)", Choice::Any, 1, &["7"]),
            ("_x$1", Choice::First, 1, &["_x$1"]),
            ("3 (h1)", Choice::First, 3, &["h1"]),
        ] {
            assert_eq!(parsed(text), of(choice, count, names), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        for (text, detail) in [
            (" ", "syntax error at end of input"),
            ("first", "syntax error at end of input"),
            ("ANY", "syntax error at end of input"),
            ("FIRST 1", "syntax error at end of input"),
            ("FIRST (h1)", "syntax error at or near \"(\""),
            ("FIRST 1 h1", "syntax error at or near \"h1\""),
            ("1 (h1", "syntax error at end of input"),
            ("h1 h2", "syntax error at or near \"h2\""),
            ("h1,", "syntax error at end of input"),
            ("(h1)", "syntax error at or near \"(\""),
            ("h-1", "syntax error at or near \"-\""),
            ("\"h1", "syntax error at or near \"\"h1\""),
            ("h1, any", "syntax error at or near \"any\""),
            ("0 (h1)", "number of synchronous standbys (0) must be greater than zero"),
            ("ANY 0 (h1)", "number of synchronous standbys (0) must be greater than zero"),
        ] {
            let error = StandbyNames::parse(text).unwrap_err();
            assert_eq!((error.code().code(), error.detail()), ("22023", Some(detail)), "{text}");
        }
    }

    #[test]
    fn a_host_has_its_place_among_the_names() {
        let of = |text: &str, host: &str| StandbyNames::parse(text).unwrap().unwrap().priority(host);
        assert_eq!(["h1", "H2", "h3"].map(|host| of("FIRST 1 (h1, h2)", host)), [1, 2, 0]);
        assert_eq!(["h1", "h2", "h3"].map(|host| of("ANY 1 (h1, h2)", host)), [1, 1, 0]);
        assert_eq!(["h1", "h9"].map(|host| of("h1, *", host)), [1, 2]);
        let of_reader = |text: &str, host: &str| StandbyNames::parse(text).unwrap().unwrap().priority_of_reader(host);
        assert_eq!(["*", "h1, *", "*, r", "ANY 1 (r)"].map(|text| of_reader(text, "r")), [0, 0, 2, 1]);
    }
}
