//! Canonical uuid text as its 16 bytes.

use super::{Rows, Views};
use crate::blob::{Blob, BlobWriter, Section, TreeReader};
use arrow_buffer::Buffer;
use tidepool_base::Result;

pub(crate) const TEXT_BYTES: usize = 36;
const HYPHENS: [usize; 4] = [8, 13, 18, 23];

#[derive(Debug)]
pub(crate) struct Uuids {
    values: Section,
}

/// The 16 bytes of canonical (lower-case, hyphenated) text, first byte lowest.
pub(crate) fn parse(text: &[u8]) -> Option<u128> {
    let text: &[u8; TEXT_BYTES] = text.try_into().ok()?;
    let mut bytes = [0u8; 16];
    let mut digits = 0;
    for (i, c) in text.iter().enumerate() {
        if HYPHENS.contains(&i) {
            if *c != b'-' {
                return None;
            }
            continue;
        }
        let digit = match c {
            b'0'..=b'9' => c - b'0',
            b'a'..=b'f' => c - b'a' + 10,
            _ => return None,
        };
        bytes[digits / 2] = bytes[digits / 2] << 4 | digit;
        digits += 1;
    }
    Some(u128::from_le_bytes(bytes))
}

pub(crate) fn format(value: u128, out: &mut Vec<u8>) {
    for (i, byte) in value.to_le_bytes().iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            out.push(b'-');
        }
        out.push(b"0123456789abcdef"[usize::from(byte >> 4)]);
        out.push(b"0123456789abcdef"[usize::from(byte & 15)]);
    }
}

impl Uuids {
    pub fn write(values: &[u128], writer: &mut BlobWriter) {
        writer.section(values);
    }

    pub fn read(reader: &mut TreeReader<'_>, rows: usize) -> Result<Uuids> {
        Ok(Uuids { values: reader.section_of::<u128>(rows)? })
    }

    pub fn bytes(&self) -> usize {
        self.values.len
    }

    pub fn at(&self, blob: &Blob, row: usize) -> u128 {
        blob.slice::<u128>(self.values)[row]
    }

    pub fn gather(&self, blob: &Blob, rows: &Rows<'_>) -> Views {
        let values = blob.slice::<u128>(self.values);
        let mut text = Vec::with_capacity(rows.len() * TEXT_BYTES);
        match rows {
            Rows::Range(range) => values[range.clone()].iter().for_each(|value| format(*value, &mut text)),
            Rows::List(rows) => rows.iter().for_each(|row| format(values[*row as usize], &mut text)),
        }
        let views = text
            .chunks_exact(TEXT_BYTES)
            .enumerate()
            .map(|(i, text)| super::strings::view_of(text, (i * TEXT_BYTES) as u32))
            .collect();
        Views { views, buffers: vec![Buffer::from_vec(text)] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_text_is_taken_and_comes_back() {
        let text = "01234567-89ab-cdef-fedc-ba9876543210";
        let mut out = Vec::new();
        format(parse(text.as_bytes()).unwrap(), &mut out);
        assert_eq!(out, text.as_bytes());
        for other in ["", "01234567-89AB-cdef-fedc-ba9876543210", "0123456789ab-cdef-fedc-ba98-76543210", &text[1..]] {
            assert_eq!(parse(other.as_bytes()), None, "{other}");
        }
    }
}
