//! Bytes of clients as text.

use tidepool_base::{Error, Result, SqlState};

/// Bytes as text, or 22021 with the offending bytes as PostgreSQL shows them. Refuses zero bytes.
pub(crate) fn utf8(bytes: &[u8]) -> Result<&str> {
    let invalid = |wrong: &[u8]| {
        let shown: Vec<String> = wrong.iter().map(|byte| format!("0x{byte:02x}")).collect();
        Error::new(
            SqlState::CHARACTER_NOT_IN_REPERTOIRE,
            format!("invalid byte sequence for encoding \"UTF8\": {}", shown.join(" ")),
        )
    };
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        let length = match bytes[at] {
            0xf0..=0xf7 => 4,
            0xe0..=0xef => 3,
            0xc0..=0xdf => 2,
            _ => 1,
        };
        invalid(&bytes[at..bytes.len().min(at + length)])
    })?;
    if memchr::memchr(0, bytes).is_some() { Err(invalid(&[0])) } else { Ok(text) }
}
