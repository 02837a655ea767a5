//! What a statement's text says to a connection.

pub(super) fn ends_transaction(text: &str) -> bool {
    let word = text.split(|c: char| !c.is_ascii_alphabetic()).find(|word| !word.is_empty()).unwrap_or_default();
    ["commit", "end", "rollback", "abort"].iter().any(|end| word.eq_ignore_ascii_case(end))
}

/// Rows that a command brought into a table, by its tag.
pub(super) fn rows_loaded(tag: &str, text: &str) -> u64 {
    let count = || tag.rsplit(' ').next().and_then(|rows| rows.parse().ok()).unwrap_or(0);
    if tag.starts_with("INSERT ") || tag.starts_with("SELECT ") {
        return count();
    }
    if tag.starts_with("COPY ") && copies_in(text) { count() } else { 0 }
}

/// Whether a COPY statement reads: its direction is the first FROM or TO outside parentheses and quotes.
fn copies_in(text: &str) -> bool {
    let (mut depth, mut quote, mut word) = (0usize, None, String::new());
    for character in text.chars().chain([' ']) {
        match (quote, character) {
            (Some(open), close) if open == close => quote = None,
            (Some(_), _) => (),
            (None, '\'' | '"') => quote = Some(character),
            (None, '(') => depth += 1,
            (None, ')') => depth = depth.saturating_sub(1),
            (None, c) if c.is_alphanumeric() || c == '_' => word.push(c),
            (None, _) => {
                let direction = std::mem::take(&mut word);
                if depth == 0 && direction.eq_ignore_ascii_case("from") {
                    return true;
                }
                if depth == 0 && direction.eq_ignore_ascii_case("to") {
                    return false;
                }
            }
        }
    }
    false
}

/// A statement's text for the log.
pub(super) fn abbreviate(text: &str) -> String {
    const CHARACTERS_MAX: usize = 500;
    match text.char_indices().nth(CHARACTERS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
