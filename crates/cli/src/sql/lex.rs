//! Where a statement ends: the first semicolon outside quotes, comments and parentheses.

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Plain,
    /// `'…'`; in `E'…'` a backslash escapes.
    Text {
        escapes: bool,
    },
    Name,
    LineComment,
    BlockComment {
        depth: u32,
    },
}

/// The length of the first statement in `text` with its semicolon, or `None` while it has not ended. Dollar quotes
/// (`$tag$ … $tag$`) are skipped whole.
pub fn statement_end(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut state = State::Plain;
    let mut parentheses = 0u32;
    let mut at = 0;
    while at < bytes.len() {
        let (byte, next) = (bytes[at], bytes.get(at + 1).copied());
        at += 1;
        state = match (state, byte) {
            (State::Plain, b';') if parentheses == 0 => return Some(at),
            (State::Plain, b'(') => {
                parentheses += 1;
                state
            }
            (State::Plain, b')') => {
                parentheses = parentheses.saturating_sub(1);
                state
            }
            (State::Plain, b'\'') => {
                let escapes = at >= 2
                    && matches!(bytes[at - 2], b'e' | b'E')
                    && !at.checked_sub(3).is_some_and(|before| is_word(bytes[before]));
                State::Text { escapes }
            }
            (State::Plain, b'"') => State::Name,
            (State::Plain, b'-') if next == Some(b'-') => State::LineComment,
            (State::Plain, b'/') if next == Some(b'*') => {
                at += 1;
                State::BlockComment { depth: 1 }
            }
            (State::Plain, b'$') if !at.checked_sub(2).is_some_and(|before| is_word(bytes[before])) => {
                if let Some(tag) = dollar_tag(&text[at - 1..]) {
                    at += tag.len() - 1;
                    match text[at..].find(tag) {
                        Some(end) => at += end + tag.len(),
                        None => return None,
                    }
                }
                state
            }
            (State::Text { escapes: true }, b'\\') => {
                at += 1;
                state
            }
            // A doubled quote ends the text and begins it again.
            (State::Text { .. }, b'\'') | (State::Name, b'"') | (State::LineComment, b'\n') => State::Plain,
            (State::BlockComment { depth }, b'*') if next == Some(b'/') => {
                at += 1;
                if depth == 1 { State::Plain } else { State::BlockComment { depth: depth - 1 } }
            }
            (State::BlockComment { depth }, b'/') if next == Some(b'*') => {
                at += 1;
                State::BlockComment { depth: depth + 1 }
            }
            _ => state,
        };
    }
    None
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// `$$` or `$tag$` at the beginning of `text`.
fn dollar_tag(text: &str) -> Option<&str> {
    let len = text[1..].find('$')?;
    let tag = &text[1..1 + len];
    let is_tag = tag.bytes().all(is_word) && !tag.starts_with(|c: char| c.is_ascii_digit());
    is_tag.then(|| &text[..len + 2])
}

/// Nothing but blanks and comments.
pub fn is_blank(text: &str) -> bool {
    let mut rest = text.trim_start();
    loop {
        if rest.is_empty() {
            return true;
        }
        if rest.starts_with("--") {
            rest = rest.split_once('\n').map_or("", |(_, rest)| rest).trim_start();
        } else if rest.starts_with("/*") {
            match rest.split_once("*/") {
                Some((_, after)) => rest = after.trim_start(),
                None => return false,
            }
        } else {
            return false;
        }
    }
}
