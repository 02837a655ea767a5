//! FSST: text as one-byte codes for up to 255 strings of one to eight bytes, learnt from a sample of the segment. Every
//! row is coded by itself, so one row can be decoded without its neighbours, and a range in one go.

use super::ints::Ints;
use super::strings::{BYTES_MAX, Extents, check_text, view_of};
use super::{Rows, Views};
use crate::blob::{Blob, BlobWriter, Section, TreeReader};
use crate::encoding::packing::BLOCK;
use crate::logical::Logical;
use arrow_buffer::Buffer;
use fsst::{Compressor, Decompressor, ESCAPE_CODE, Symbol};
use std::sync::Arc;
use tidepool_base::{Error, Result};

/// Codes are 0 to 254; 255 says that the next byte stands for itself.
const SYMBOLS_MAX: usize = 255;

/// Room behind the text for the decoder to write whole words.
const SLACK: usize = 64;

pub(crate) struct Fsst {
    symbols: Box<[Symbol; SYMBOLS_MAX]>,
    symbol_lengths: Box<[u8; SYMBOLS_MAX]>,
    symbol_count: usize,
    /// Of the codes.
    coded: Extents,
    /// Of the text that they stand for, if that were laid out likewise.
    plain: Extents,
    codes: Section,
}

impl std::fmt::Debug for Fsst {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fsst").field("symbols", &self.symbol_count).field("codes", &self.codes).finish()
    }
}

/// Values made ready to be written this way.
pub(crate) struct Coded {
    compressor: Compressor,
    codes: Vec<u8>,
    ends: Vec<u64>,
}

impl Coded {
    /// Learns from `values` and codes a part of them: what fraction of its bytes remains.
    pub fn sample(values: &[&[u8]]) -> (Compressor, f64) {
        let step = (values.len() / 4096).max(1);
        let sample: Vec<&[u8]> = values.iter().step_by(step).copied().collect();
        let compressor = Compressor::train(&sample);
        let step = (sample.len() / 512).max(1);
        let probe: Vec<&[u8]> = sample.iter().step_by(step).copied().collect();
        let (mut codes, mut ends) = (Vec::new(), Vec::new());
        compressor.compress_bulk_into::<{ Compressor::DEFAULT_BULK_LANES }>(&probe, &mut codes, &mut ends);
        let bytes: usize = probe.iter().map(|value| value.len()).sum();
        (compressor, codes.len() as f64 / bytes.max(1) as f64)
    }

    pub fn of(compressor: Compressor, values: &[&[u8]]) -> Coded {
        let (mut codes, mut ends) = (Vec::new(), Vec::new());
        compressor.compress_bulk_into::<{ Compressor::DEFAULT_BULK_LANES }>(values, &mut codes, &mut ends);
        Coded { compressor, codes, ends }
    }

    /// Bytes of the codes, without lengths.
    pub fn bytes(&self) -> usize {
        self.codes.len()
    }

    pub fn write(&self, values: &[&[u8]], writer: &mut BlobWriter) {
        let symbols: Vec<u8> =
            self.compressor.symbol_table().iter().flat_map(|symbol| symbol.to_u64().to_le_bytes()).collect();
        writer.inline_bytes(&symbols);
        writer.inline_bytes(self.compressor.symbol_lengths());
        let mut start = 0;
        let lengths: Vec<i64> = self
            .ends
            .iter()
            .map(|end| {
                let len = end - start;
                start = *end;
                len as i64
            })
            .collect();
        Extents::write(&lengths, writer);
        Extents::write(&values.iter().map(|value| value.len() as i64).collect::<Vec<_>>(), writer);
        writer.section(&self.codes);
    }
}

impl Fsst {
    pub fn read(reader: &mut TreeReader<'_>, blob: &[u8], rows: usize) -> Result<Fsst> {
        let bad = || Error::corrupted("segment has an impossible symbol table");
        let (table, lengths) = (reader.inline_bytes()?, reader.inline_bytes()?);
        let count = lengths.len();
        if count > SYMBOLS_MAX || table.len() != 8 * count || lengths.iter().any(|len| !(1..=8).contains(len)) {
            return Err(bad());
        }
        let mut symbols = Box::new([Symbol::ZERO; SYMBOLS_MAX]);
        for (symbol, bytes) in symbols.iter_mut().zip(table.as_chunks::<8>().0) {
            *symbol = Symbol::from_slice(bytes);
        }
        let mut symbol_lengths = Box::new([1; SYMBOLS_MAX]);
        symbol_lengths[..count].copy_from_slice(lengths);
        Ok(Fsst {
            symbols,
            symbol_lengths,
            symbol_count: count,
            coded: Extents::read(reader, blob, rows)?,
            plain: Extents::read(reader, blob, rows)?,
            codes: reader.section::<u8>()?,
        })
    }

    pub fn check(&self, blob: &Arc<Blob>, rows: usize, logical: Logical) -> Result<()> {
        let bad = || Error::corrupted("segment's compressed text is broken");
        self.coded.check(blob, rows, self.codes.len)?;
        let codes: &[u8] = blob.slice(self.codes);
        let (_, coded) = self.coded.range(blob, 0..rows);
        let (_, plain) = self.plain.range(blob, 0..rows);
        let (mut start, mut total) = (0, 0);
        for (coded, plain) in coded.iter().zip(&plain) {
            let mut row = codes[start..start + *coded as usize].iter();
            start += *coded as usize;
            let mut len = 0u64;
            while let Some(code) = row.next() {
                if *code == ESCAPE_CODE {
                    row.next().ok_or_else(bad)?;
                    len += 1;
                } else if usize::from(*code) < self.symbol_count {
                    len += u64::from(self.symbol_lengths[usize::from(*code)]);
                } else {
                    return Err(bad());
                }
            }
            if len != u64::from(*plain) {
                return Err(bad());
            }
            total += len;
        }
        if total > BYTES_MAX as u64 {
            return Err(bad());
        }
        self.plain.check(blob, rows, total as usize)?;
        if logical == Logical::Text {
            for first in (0..rows).step_by(8 * BLOCK) {
                let end = rows.min(first + 8 * BLOCK);
                let lengths = &plain[first..end];
                let text = self.decode(blob, first..end, lengths);
                check_text(&text, lengths.iter().map(|len| *len as usize))?;
            }
        }
        Ok(())
    }

    pub fn bytes(&self) -> usize {
        self.coded.bytes() + self.plain.bytes() + self.codes.len
    }

    /// Of each string, in bytes, decoded.
    pub fn lengths(&self) -> &Ints {
        self.plain.lengths()
    }

    fn decompressor(&self) -> Decompressor<'_> {
        Decompressor::new(&self.symbols, &self.symbol_lengths)
    }

    fn decode(&self, blob: &Blob, rows: std::ops::Range<usize>, plain: &[u32]) -> Vec<u8> {
        let coded = self.coded.span(blob, rows);
        let plain: usize = plain.iter().map(|len| *len as usize).sum();
        let mut text = Vec::with_capacity(plain + SLACK);
        let codes = &blob.slice::<u8>(self.codes)[coded];
        let written = self.decompressor().decompress_into(codes, text.spare_capacity_mut());
        assert_eq!(written, plain, "lengths were written beside the codes, or checked against them");
        // SAFETY: the decompressor has initialised so many bytes of the spare capacity.
        unsafe { text.set_len(written) };
        text
    }

    /// The text of one row, in place of what `text` holds.
    pub fn at_into(&self, blob: &Blob, row: usize, text: &mut Vec<u8>) {
        let (start, len) = self.coded.at(blob, row);
        text.clear();
        text.reserve(self.plain.lengths().at(blob, row) as usize + SLACK);
        let codes = &blob.slice::<u8>(self.codes)[start..start + len];
        let written = self.decompressor().decompress_into(codes, text.spare_capacity_mut());
        // SAFETY: the decompressor has initialised so many bytes of the spare capacity.
        unsafe { text.set_len(written) };
    }

    pub fn gather(&self, blob: &Blob, rows: &Rows<'_>) -> Views {
        let mut views = Vec::with_capacity(rows.len());
        let text = match rows {
            Rows::Range(range) => {
                let (_, plain) = self.plain.range(blob, range.clone());
                let text = self.decode(blob, range.clone(), &plain);
                let mut start = 0;
                views.extend(plain.iter().map(|len| {
                    let end = start + *len as usize;
                    let view = view_of(&text[start..end], start as u32);
                    start = end;
                    view
                }));
                text
            }
            Rows::List(rows) => {
                let codes: &[u8] = blob.slice(self.codes);
                let coded = self.coded.list(blob, rows);
                let mut plain: Vec<u32> = Vec::with_capacity(rows.len());
                self.plain.lengths().gather_into(blob, &Rows::List(rows), &mut plain);
                let total: usize = plain.iter().map(|len| *len as usize).sum();
                let mut text: Vec<u8> = Vec::with_capacity(total + SLACK);
                let decompressor = self.decompressor();
                for (start, len) in coded {
                    let before = text.len();
                    let codes = &codes[start as usize..][..len as usize];
                    let written = decompressor.decompress_into(codes, text.spare_capacity_mut());
                    // SAFETY: the decompressor has initialised so many more bytes.
                    unsafe { text.set_len(before + written) };
                    views.push(view_of(&text[before..], before as u32));
                }
                text
            }
        };
        Views { views, buffers: vec![Buffer::from_vec(text)] }
    }
}
