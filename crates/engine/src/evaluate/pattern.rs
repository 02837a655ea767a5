//! `LIKE`: patterns, parsed once and searched for with the fastest means that they allow.

use super::arithmetic::rows_of_interest;
use super::logic;
use super::search::Searcher;
use super::text::compare_with;
use crate::expr::Pattern;
use crate::mask::Mask;
use crate::text::Text;
use crate::vector::{Texts, Vector};
use arrow_schema::DataType;
use tidepool_base::{Error, Result, SqlState};
use tidepool_table::CompareOp;

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
    Literal(Box<Searcher>),
    /// With characters that may be any; and what it begins with.
    Wild {
        wanted: Vec<Option<u8>>,
        lead: Box<Searcher>,
    },
}

impl Part {
    fn new(part: &[Option<u8>], ignores_case: bool) -> Part {
        let mut wanted = Vec::with_capacity(part.len());
        // Between characters that may be any lies whole text.
        for run in part.chunk_by(|a, b| a.is_some() == b.is_some()) {
            match run.iter().copied().collect::<Option<Vec<u8>>>() {
                Some(bytes) if ignores_case => wanted.extend(folded(&bytes).into_iter().map(Some)),
                _ => wanted.extend_from_slice(run),
            }
        }
        let lead: Vec<u8> = wanted.iter().copied().map_while(|byte| byte).collect();
        let searcher = Box::new(Searcher::new(&lead));
        if lead.len() == wanted.len() { Part::Literal(searcher) } else { Part::Wild { wanted, lead: searcher } }
    }

    /// The end of its match at the start of `bytes`.
    fn at_start(&self, bytes: &[u8], is_text: bool) -> Option<usize> {
        match self {
            Part::Literal(part) => bytes.starts_with(part.needle()).then(|| part.needle().len()),
            Part::Wild { wanted, .. } => {
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
            Part::Literal(part) => bytes.ends_with(part.needle()).then(|| bytes.len() - part.needle().len()),
            Part::Wild { wanted, .. } => {
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
            Part::Literal(part) => part.find(bytes).map(|start| start + part.needle().len()),
            Part::Wild { lead, .. } => {
                let mut start = 0;
                loop {
                    start += lead.find(bytes.get(start..)?)?;
                    if let Some(end) = self.at_start(&bytes[start..], is_text) {
                        return Some(start + end);
                    }
                    start += if is_text { width(*bytes.get(start)?) } else { 1 };
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

/// What can be told by a value's length and first four bytes: which rows may match, and whether all of them do.
fn by_head(texts: &Texts, first: &[u8]) -> (Mask, bool) {
    let (known, len) = (first.len().min(4), first.len() as u32);
    let mut prefix = [0; 4];
    prefix[..known].copy_from_slice(&first[..known]);
    let prefix = u32::from_le_bytes(prefix);
    let bits = if known == 4 { u32::MAX } else { (1 << (8 * known)) - 1 };
    let may_match = |text: Text| {
        let head = text.head();
        ((head >> 32) as u32 & bits == prefix) & (head as u32 >= len)
    };
    (Mask::of_values(texts.values(), may_match), first.len() <= 4)
}

pub fn like(vector: &Vector, matcher: &Matcher, negated: bool, live: Option<&Mask>) -> Result<Vector> {
    let texts = vector.as_texts()?;
    let rows = vector.len();
    let mut candidates = rows_of_interest(rows, vector.valid.as_ref(), live);
    let mut is_certain = false;
    if let Some(Part::Literal(first)) = &matcher.first
        && !matcher.ignores_case
    {
        if matcher.is_whole {
            candidates = compare_with(CompareOp::Eq, texts, first.needle());
            is_certain = true;
        } else {
            let (may_match, is_all) = by_head(texts, first.needle());
            candidates = candidates.and(&may_match);
            is_certain = is_all && matcher.middle.is_empty() && matcher.last.is_none();
        }
    }
    let found = if is_certain {
        candidates
    } else {
        let mut lower = Vec::new();
        let mut matches = |row: usize| {
            let mut bytes = texts.bytes(row);
            if matcher.ignores_case {
                fold_into(bytes, &mut lower);
                bytes = &lower;
            }
            matcher.matches(bytes)
        };
        let mut words = candidates.words().to_vec();
        for (index, word) in words.iter_mut().enumerate() {
            let mut left = *word;
            while left != 0 {
                let bit = left.trailing_zeros();
                left &= left - 1;
                *word ^= u64::from(!matches(index * 64 + bit as usize)) << bit;
            }
        }
        Mask::from_words(words, rows)
    };
    let found = if negated { found.not() } else { found };
    Ok(logic::of_mask(found).with_valid(vector.valid.clone()))
}
