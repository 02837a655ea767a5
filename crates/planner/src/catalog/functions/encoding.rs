//! `encode` and `decode`: bytes as text in base64, hexadecimal digits or escapes.

use super::invalid;
use datafusion::common::Result;
use std::fmt::Write;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Characters of a line of base64, as in RFC 2045.
const LINE: usize = 76;

fn unknown(form: &str) -> datafusion::common::DataFusionError {
    invalid(format!("unrecognized encoding: \"{form}\""))
}

pub fn encode(bytes: &[u8], form: &str) -> Result<String> {
    let mut out = String::new();
    match form.to_ascii_lowercase().as_str() {
        // Writing to a string cannot fail.
        "hex" => bytes.iter().for_each(|byte| {
            let _ = write!(out, "{byte:02x}");
        }),
        "escape" => {
            for byte in bytes {
                match byte {
                    b'\\' => out.push_str("\\\\"),
                    0 | 0x80.. => {
                        let _ = write!(out, "\\{byte:03o}");
                    }
                    byte => out.push(char::from(*byte)),
                }
            }
        }
        "base64" => {
            let mut in_line = 0;
            for chunk in bytes.chunks(3) {
                let word = chunk.iter().fold(0, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
                if in_line == LINE {
                    out.push('\n');
                    in_line = 0;
                }
                for digit in 0..4 {
                    let index = (word >> (18 - 6 * digit) & 63) as usize;
                    out.push(if digit > chunk.len() { '=' } else { char::from(ALPHABET[index]) });
                }
                in_line += 4;
            }
        }
        _ => return Err(unknown(form)),
    }
    Ok(out)
}

pub fn decode(text: &str, form: &str) -> Result<Vec<u8>> {
    match form.to_ascii_lowercase().as_str() {
        "hex" => from_hex(text),
        "escape" => from_escapes(text),
        "base64" => from_base64(text),
        _ => Err(unknown(form)),
    }
}

fn from_hex(text: &str) -> Result<Vec<u8>> {
    let digit = |character: char| {
        let digit = character.to_digit(16).map(|digit| digit as u8);
        digit.ok_or_else(|| invalid(format!("invalid hexadecimal digit: \"{character}\"")))
    };
    let mut characters = text.chars();
    let mut out = Vec::new();
    while let Some(first) = characters.next() {
        // Between bytes, not within them.
        if matches!(first, ' ' | '\n' | '\t' | '\r') {
            continue;
        }
        let high = digit(first)?;
        let second = characters.next().ok_or_else(|| invalid("invalid hexadecimal data: odd number of digits"))?;
        out.push(high << 4 | digit(second)?);
    }
    Ok(out)
}

fn from_escapes(text: &str) -> Result<Vec<u8>> {
    let mut bytes = text.bytes().peekable();
    let mut out = Vec::new();
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        if bytes.peek() == Some(&b'\\') {
            bytes.next();
            out.push(b'\\');
            continue;
        }
        let mut value = 0;
        for most in [b'3', b'7', b'7'] {
            match bytes.next() {
                Some(digit @ b'0'..) if digit <= most => value = value << 3 | (digit - b'0'),
                _ => {
                    return Err(super::sql_error(
                        tidepool_base::SqlState::INVALID_TEXT_REPRESENTATION,
                        "invalid input syntax for type bytea",
                    ));
                }
            }
        }
        out.push(value);
    }
    Ok(out)
}

fn from_base64(text: &str) -> Result<Vec<u8>> {
    let (mut word, mut digits, mut end) = (0u32, 0, 0);
    let mut out = Vec::new();
    for character in text.chars().filter(|character| !matches!(character, ' ' | '\n' | '\t' | '\r')) {
        let value = if character == '=' {
            // Only at the end of four, after two or three.
            if end == 0 {
                end = match digits {
                    2 => 1,
                    3 => 2,
                    _ => return Err(invalid("unexpected \"=\" while decoding base64 sequence")),
                };
            }
            0
        } else {
            let index = ALPHABET.iter().position(|digit| char::from(*digit) == character);
            match index {
                Some(index) if end == 0 => index as u32,
                _ => {
                    let message = format!("invalid symbol \"{character}\" found while decoding base64 sequence");
                    return Err(invalid(message));
                }
            }
        };
        word = word << 6 | value;
        digits += 1;
        if digits == 4 {
            let whole = [(word >> 16) as u8, (word >> 8) as u8, word as u8];
            out.extend_from_slice(&whole[..if end == 0 { 3 } else { end }]);
            (word, digits) = (0, 0);
        }
    }
    if digits != 0 {
        return Err(invalid("invalid base64 end sequence"));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back() {
        for length in 0..200usize {
            let bytes: Vec<u8> = (0..length).map(|at| (at * 37 + length) as u8).collect();
            for form in ["base64", "hex", "escape"] {
                assert_eq!(decode(&encode(&bytes, form).unwrap(), form).unwrap(), bytes, "{form}");
            }
        }
        assert_eq!(encode(b"\0\xff", "base64").unwrap(), "AP8=");
        assert_eq!(encode(&[7; 60], "base64").unwrap().lines().map(str::len).collect::<Vec<_>>(), [76, 4]);
        for (text, form) in [("Z", "base64"), ("QQ=", "base64"), ("=", "base64"), ("a", "hex"), ("\\9", "escape")] {
            assert!(decode(text, form).is_err(), "{text}");
        }
    }
}
