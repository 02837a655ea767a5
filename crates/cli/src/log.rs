//! What the lines of the log are made of.

use std::fmt::{self, Write};
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::debug_fn;

/// Fields whose control characters are escaped: what clients say of themselves makes no lines of its own, and nothing that a
/// terminal obeys.
pub fn fields() -> impl for<'w> FormatFields<'w> + Send + Sync + 'static {
    debug_fn(|writer, field, value| match field.name() {
        "message" => write!(Escaped(writer), "{value:?}"),
        name => write!(Escaped(writer), "{name}={value:?}"),
    })
    .delimited(" ")
}

struct Escaped<W>(W);

impl<W: Write> Write for Escaped<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(place) = rest.find(is_escaped) {
            self.0.write_str(&rest[..place])?;
            let mut after = rest[place..].chars();
            if let Some(character) = after.next() {
                write!(self.0, "{}", character.escape_default())?;
            }
            rest = after.as_str();
        }
        self.0.write_str(rest)
    }
}

/// Whether a reader of the log could take it for something else than a part of its line.
fn is_escaped(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_breaks_its_line() {
        let mut line = String::new();
        let name = "a\nERROR forged\r\x1b[2J\u{202e}\t\u{85}é";
        write!(Escaped(&mut line), "role \"{name}\" does not exist").unwrap();
        let right = r#"role "a\nERROR forged\r\u{1b}[2J\u{202e}\t\u{85}é" does not exist"#;
        assert_eq!(line, right);
    }
}
