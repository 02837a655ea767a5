//! `LIKE`: patterns, parsed once and searched for with the fastest means that they allow.

use super::logic;
use crate::expr::Pattern;
use crate::mask::Mask;
use crate::vector::Vector;
use arrow_schema::DataType;
use memchr::memmem::Finder;
use tidepool_base::{Error, Result, SqlState};

impl Pattern {
    /// `%` is any text, `_` any character; what follows `escape` is itself. 22025 for a pattern that ends in its escape.
    pub fn parse(pattern: &str, escape: Option<char>, ignores_case: bool) -> Result<Pattern> {
        let mut parts: Vec<Vec<Option<u8>>> = vec![Vec::new()];
        let mut last = Vec::new();
        let mut chars = pattern.chars();
        let push = |part: &mut Vec<Option<u8>>, char: char| {
            part.extend(char.encode_utf8(&mut [0; 4]).bytes().map(Some));
        };
        while let Some(char) = chars.next() {
            match char {
                _ if Some(char) == escape => match chars.next() {
                    Some(char) => push(&mut last, char),
                    None => {
                        let message = "LIKE pattern must not end with escape character";
                        return Err(Error::new(SqlState::INVALID_ESCAPE_SEQUENCE, message));
                    }
                },
                '%' => parts.push(std::mem::take(&mut last)),
                '_' => last.push(None),
                char => push(&mut last, char),
            }
        }
        let has_any = parts.len() > 1;
        parts.push(last);
        // The first is a place holder; what is left out between two `%`s changes nothing.
        let starts_open = has_any && parts[1].is_empty();
        let ends_open = has_any && parts.last().is_some_and(Vec::is_empty);
        parts.retain(|part| !part.is_empty());
        Ok(Pattern { parts, starts_open, ends_open, ignores_case })
    }
}

/// A pattern with what searches for its parts.
pub struct Matcher {
    first: Option<Part>,
    middle: Vec<Part>,
    last: Option<Part>,
    /// Nothing may come between what is matched.
    is_whole: bool,
    ignores_case: bool,
    is_text: bool,
}

enum Part {
    Literal(Box<Finder<'static>>),
    /// With characters that may be any.
    Wild(Vec<Option<u8>>),
}

impl Part {
    fn new(part: &[Option<u8>], ignores_case: bool) -> Part {
        match part.iter().copied().collect::<Option<Vec<u8>>>() {
            Some(bytes) if !ignores_case => Part::Literal(Box::new(Finder::new(&bytes).into_owned())),
            Some(bytes) => {
                let folded = folded(&bytes);
                Part::Literal(Box::new(Finder::new(&folded).into_owned()))
            }
            None if !ignores_case => Part::Wild(part.to_vec()),
            None => {
                // Between characters that may be any lies whole text.
                let mut all = Vec::new();
                for run in part.chunk_by(|a, b| a.is_some() == b.is_some()) {
                    match run.iter().copied().collect::<Option<Vec<u8>>>() {
                        Some(bytes) => all.extend(folded(&bytes).into_iter().map(Some)),
                        None => all.extend_from_slice(run),
                    }
                }
                Part::Wild(all)
            }
        }
    }

    /// The end of its match at the start of `bytes`.
    fn at_start(&self, bytes: &[u8], is_text: bool) -> Option<usize> {
        match self {
            Part::Literal(finder) => bytes.starts_with(finder.needle()).then(|| finder.needle().len()),
            Part::Wild(wanted) => {
                let mut at = 0;
                for wanted in wanted {
                    let byte = *bytes.get(at)?;
                    at += match wanted {
                        Some(wanted) if *wanted == byte => 1,
                        Some(_) => return None,
                        None if is_text => width(byte),
                        None => 1,
                    };
                }
                (at <= bytes.len()).then_some(at)
            }
        }
    }

    /// The start of its match that reaches to the end of `bytes`.
    fn at_end(&self, bytes: &[u8], is_text: bool) -> Option<usize> {
        match self {
            Part::Literal(finder) => bytes.ends_with(finder.needle()).then(|| bytes.len() - finder.needle().len()),
            Part::Wild(wanted) => {
                let mut at = bytes.len();
                for wanted in wanted.iter().rev() {
                    at = at.checked_sub(1)?;
                    match wanted {
                        Some(wanted) if *wanted == bytes[at] => {}
                        Some(_) => return None,
                        None => {
                            while is_text && at > 0 && bytes[at] & 0xC0 == 0x80 {
                                at -= 1;
                            }
                        }
                    }
                }
                Some(at)
            }
        }
    }

    /// The end of its first match in `bytes`.
    fn find(&self, bytes: &[u8], is_text: bool) -> Option<usize> {
        match self {
            Part::Literal(finder) => finder.find(bytes).map(|start| start + finder.needle().len()),
            Part::Wild(_) => {
                let mut start = 0;
                loop {
                    if let Some(end) = self.at_start(&bytes[start..], is_text) {
                        return Some(start + end);
                    }
                    start += if is_text { width(*bytes.get(start)?) } else { 1 };
                    if start >= bytes.len() {
                        return None;
                    }
                }
            }
        }
    }
}

/// Bytes of the character that a byte begins.
#[inline]
fn width(byte: u8) -> usize {
    match byte {
        0..0xC0 => 1,
        0xC0..0xE0 => 2,
        0xE0..0xF0 => 3,
        _ => 4,
    }
}

fn fold_into(bytes: &[u8], out: &mut Vec<u8>) {
    out.clear();
    if bytes.is_ascii() {
        out.extend(bytes.iter().map(u8::to_ascii_lowercase));
        return;
    }
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            let mut lower = char.to_lowercase();
            // Where a small letter is more than one character, the letter stays as it is.
            let char = match (lower.next(), lower.next()) {
                (Some(lower), None) => lower,
                _ => char,
            };
            out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
        }
        out.extend_from_slice(chunk.invalid());
    }
}

fn folded(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    fold_into(bytes, &mut out);
    out
}

impl Matcher {
    pub fn new(pattern: &Pattern, data_type: &DataType) -> Matcher {
        let parts = pattern.parts.iter().filter(|part| !part.is_empty());
        let mut parts: Vec<Part> = parts.map(|part| Part::new(part, pattern.ignores_case)).collect();
        let is_whole = !pattern.starts_open && !pattern.ends_open && parts.len() <= 1;
        let first = (!pattern.starts_open && !parts.is_empty()).then(|| parts.remove(0));
        let last = if pattern.ends_open { None } else { parts.pop() };
        Matcher {
            first,
            middle: parts,
            last,
            is_whole,
            ignores_case: pattern.ignores_case,
            is_text: matches!(data_type, DataType::Utf8 | DataType::Utf8View),
        }
    }

    fn matches(&self, bytes: &[u8]) -> bool {
        let mut bytes = bytes;
        if let Some(first) = &self.first {
            match first.at_start(bytes, self.is_text) {
                Some(end) => bytes = &bytes[end..],
                None => return false,
            }
        }
        if self.is_whole {
            return bytes.is_empty();
        }
        if let Some(last) = &self.last {
            match last.at_end(bytes, self.is_text) {
                Some(start) => bytes = &bytes[..start],
                None => return false,
            }
        }
        for part in &self.middle {
            match part.find(bytes, self.is_text) {
                Some(end) => bytes = &bytes[end..],
                None => return false,
            }
        }
        true
    }
}

pub fn like(vector: &Vector, matcher: &Matcher, negated: bool) -> Result<Vector> {
    let texts = vector.as_texts()?;
    let mask = if matcher.ignores_case {
        let mut lower = Vec::new();
        Mask::from_fn(vector.len(), |row| {
            fold_into(texts.bytes(row), &mut lower);
            matcher.matches(&lower) != negated
        })
    } else {
        Mask::from_fn(vector.len(), |row| matcher.matches(texts.bytes(row)) != negated)
    };
    Ok(logic::of_mask(mask).with_valid(vector.valid.clone()))
}
