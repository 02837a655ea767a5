//! Byte strings, uuids and booleans as text, and texts cut for messages.

use super::number::{is_space, syntax_error};
use tidepool_base::{Error, Result, SqlState};

const HEX: &[u8; 16] = b"0123456789abcdef";

/// `\x0aff`.
pub fn write_bytea(bytes: &[u8], out: &mut Vec<u8>) {
    out.reserve(2 + bytes.len() * 2);
    out.extend_from_slice(b"\\x");
    write_hex(bytes, out);
}

fn write_hex(bytes: &[u8], out: &mut Vec<u8>) {
    for byte in bytes {
        out.extend_from_slice(&[HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
    }
}

fn hex_digit(byte: u8) -> Option<u8> {
    (byte as char).to_digit(16).map(|digit| digit as u8)
}

/// Hex and escape forms into `out`, which is cleared first.
pub fn parse_bytea(text: &str, out: &mut Vec<u8>) -> Result<()> {
    out.clear();
    let bytes = text.as_bytes();
    if let [b'\\', b'x' | b'X', hex @ ..] = bytes {
        let mut high: Option<u8> = None;
        for (position, byte) in hex.iter().enumerate() {
            match hex_digit(*byte) {
                Some(digit) => match high.take() {
                    Some(high) => out.push(high << 4 | digit),
                    None => high = Some(digit),
                },
                None if high.is_none() && matches!(byte, b' ' | b'\n' | b'\t' | b'\r') => {}
                None => {
                    let shown = text[2 + position..].chars().next().unwrap_or(' ');
                    return Err(Error::new(
                        SqlState::INVALID_PARAMETER_VALUE,
                        format!("invalid hexadecimal digit: \"{shown}\""),
                    ));
                }
            }
        }
        if high.is_some() {
            return Err(Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                "invalid hexadecimal data: odd number of digits",
            ));
        }
        return Ok(());
    }
    let mut rest = bytes;
    loop {
        match rest {
            [] => return Ok(()),
            [b'\\', b'\\', after @ ..] => {
                out.push(b'\\');
                rest = after;
            }
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            [b'\\', ..] => {
                return Err(Error::new(SqlState::INVALID_TEXT_REPRESENTATION, "invalid input syntax for type bytea"));
            }
            [byte, after @ ..] => {
                out.push(*byte);
                rest = after;
            }
        }
    }
}

/// A uuid's sixteen bytes. Braces, any case, and a hyphen after any group of four digits are taken.
pub fn parse_uuid(text: &str) -> Result<[u8; 16]> {
    let invalid = || syntax_error("uuid", text);
    let mut bytes = text.as_bytes();
    if let [b'{', inner @ .., b'}'] = bytes {
        bytes = inner;
    }
    let mut uuid = [0u8; 16];
    let mut digits = 0;
    let mut after_hyphen = false;
    for byte in bytes {
        if *byte == b'-' && digits > 0 && digits < 32 && digits % 4 == 0 && !after_hyphen {
            after_hyphen = true;
            continue;
        }
        let digit = hex_digit(*byte).filter(|_| digits < 32).ok_or_else(invalid)?;
        uuid[digits / 2] = uuid[digits / 2] << 4 | digit;
        digits += 1;
        after_hyphen = false;
    }
    if digits == 32 { Ok(uuid) } else { Err(invalid()) }
}

/// The canonical 36 characters.
pub fn uuid_text(uuid: &[u8; 16]) -> [u8; 36] {
    let mut text = [b'-'; 36];
    let mut at = 0;
    for (position, byte) in uuid.iter().enumerate() {
        if matches!(position, 4 | 6 | 8 | 10) {
            at += 1;
        }
        text[at] = HEX[usize::from(byte >> 4)];
        text[at + 1] = HEX[usize::from(byte & 15)];
        at += 2;
    }
    text
}

/// `t`, `yes`, `ON`, `1` and so on, and any beginning of a word that leaves no doubt.
pub fn parse_boolean(text: &str) -> Result<bool> {
    match text.as_bytes() {
        b"t" | b"1" | b"true" => return Ok(true),
        b"f" | b"0" | b"false" => return Ok(false),
        _ => {}
    }
    let word = text.trim_matches(is_space).to_ascii_lowercase();
    let begins = |full: &str, least: usize| word.len() >= least && full.starts_with(&word);
    if begins("true", 1) || begins("yes", 1) || begins("on", 2) || word == "1" {
        Ok(true)
    } else if begins("false", 1) || begins("no", 1) || begins("off", 2) || word == "0" {
        Ok(false)
    } else {
        Err(syntax_error("boolean", text))
    }
}

/// At most `length_max` characters of `text`, with `...` after them if there were more.
pub(crate) fn shortened(text: &str, length_max: usize) -> String {
    match text.char_indices().nth(length_max) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_strings_are_read_in_both_forms() {
        let mut out = Vec::new();
        for (text, bytes) in [
            ("\\x", &b""[..]),
            ("\\x0aFF", b"\x0a\xff"),
            ("\\x0a ff", b"\x0a\xff"),
            ("abc", b"abc"),
            ("a\\\\b\\001\\377", b"a\\b\x01\xff"),
        ] {
            parse_bytea(text, &mut out).unwrap();
            assert_eq!(out, bytes, "{text}");
        }
        assert_eq!(parse_bytea("\\x0g", &mut out).unwrap_err().message(), "invalid hexadecimal digit: \"g\"");
        assert_eq!(
            parse_bytea("\\x0", &mut out).unwrap_err().message(),
            "invalid hexadecimal data: odd number of digits"
        );
        assert_eq!(parse_bytea("\\é", &mut out).unwrap_err().code().code(), "22P02");
        assert_eq!(parse_bytea("\\xé", &mut out).unwrap_err().message(), "invalid hexadecimal digit: \"é\"");
    }

    #[test]
    fn uuids_become_canonical() {
        for text in [
            "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
            "{A0EEBC999C0B4EF8BB6D6BB9BD380A11}",
            "a0ee-bc99-9c0b-4ef8-bb6d-6bb9-bd38-0a11",
        ] {
            let uuid = parse_uuid(text).unwrap();
            assert_eq!(&uuid_text(&uuid), b"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11");
        }
        for text in ["", "a0eebc99", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a111", "a0-eebc999c0b4ef8bb6d6bb9bd380a11", "g"]
        {
            assert_eq!(
                parse_uuid(text).unwrap_err().message(),
                format!("invalid input syntax for type uuid: \"{text}\"")
            );
        }
    }

    #[test]
    fn booleans_are_words_or_their_beginnings() {
        for text in ["t", "TRUE", "tr", "y", "yes", "on", "1", " true "] {
            assert!(parse_boolean(text).unwrap(), "{text}");
        }
        for text in ["f", "False", "n", "no", "of", "off", "0"] {
            assert!(!parse_boolean(text).unwrap(), "{text}");
        }
        for text in ["", "o", "2", "truely", "null"] {
            assert_eq!(parse_boolean(text).unwrap_err().code().code(), "22P02", "{text}");
        }
    }
}
