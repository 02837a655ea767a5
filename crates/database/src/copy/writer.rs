//! Batches into text or CSV bytes.

use super::{CopyFormat, CopyHeader, CopyOptions, EncodedRows};
use crate::text::{TextSettings, TextWriter};
use arrow_array::RecordBatch;
use tidepool_base::{Error, Result, SqlType};

pub struct TextRowWriter {
    options: CopyOptions,
    settings: TextSettings,
    names: Vec<String>,
    types: Vec<SqlType>,
    force_quote: Vec<bool>,
    /// By byte: it cannot stand for itself in a value.
    special: [bool; 256],
}

impl TextRowWriter {
    pub fn new(
        names: &[String],
        types: &[SqlType],
        options: &CopyOptions,
        settings: &TextSettings,
    ) -> Result<TextRowWriter> {
        if !matches!(options.format, CopyFormat::Text | CopyFormat::Csv) {
            return Err(Error::internal("only text and CSV are written by lines"));
        }
        options.validate()?;
        let name_refs: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut special = [false; 256];
        let csv = options.format == CopyFormat::Csv;
        let bytes: &[u8] = if csv { b"\n\r" } else { b"\\\n\r\t\x08\x0c\x0b" };
        for byte in bytes.iter().chain(&[options.delimiter]) {
            special[usize::from(*byte)] = true;
        }
        if csv {
            special[usize::from(options.quote)] = true;
        }
        Ok(TextRowWriter {
            force_quote: CopyOptions::listed(&options.force_quote, &name_refs)?,
            options: options.clone(),
            settings: settings.clone(),
            names: names.to_vec(),
            types: types.to_vec(),
            special,
        })
    }

    /// The header line, if any.
    pub fn start(&mut self, rows: &mut EncodedRows) {
        if self.options.header == CopyHeader::None {
            return;
        }
        let out = &mut rows.bytes;
        for (position, name) in self.names.iter().enumerate() {
            if position > 0 {
                out.push(self.options.delimiter);
            }
            let start = out.len();
            out.extend_from_slice(name.as_bytes());
            self.guard(start, false, out);
        }
        out.push(b'\n');
        rows.end_row();
    }

    pub fn write(&mut self, batch: &RecordBatch, rows: &mut EncodedRows) -> Result<()> {
        let columns = batch.columns().iter().zip(&self.types);
        let writers = columns
            .map(|(array, sql_type)| TextWriter::new(array, *sql_type, &self.settings))
            .collect::<Result<Vec<_>>>()?;
        if writers.len() != self.names.len() {
            return Err(Error::internal("a batch's columns are not those of its COPY"));
        }
        for row in 0..batch.num_rows() {
            let out = &mut rows.bytes;
            for (position, writer) in writers.iter().enumerate() {
                if position > 0 {
                    out.push(self.options.delimiter);
                }
                let start = out.len();
                if writer.write(row, out) {
                    self.guard(start, self.force_quote[position], out);
                } else {
                    out.extend_from_slice(self.options.null.as_bytes());
                }
            }
            out.push(b'\n');
            rows.end_row();
        }
        Ok(())
    }

    /// Makes the value behind `start` read back as itself: quotes it, or puts backslashes in.
    #[inline]
    fn guard(&self, start: usize, force: bool, out: &mut Vec<u8>) {
        let csv = self.options.format == CopyFormat::Csv;
        let value = &out[start..];
        let special = value.iter().any(|byte| self.special[usize::from(*byte)]);
        if csv {
            // A value that looks like NULL, or alone like the end marker, must be quoted.
            if special || force || value == self.options.null.as_bytes() || (self.names.len() == 1 && value == b"\\.") {
                self.quote(start, out);
            }
        } else if special {
            self.escape(start, out);
        }
    }

    fn quote(&self, start: usize, out: &mut Vec<u8>) {
        let CopyOptions { quote, escape, .. } = self.options;
        let value = out.split_off(start);
        out.push(quote);
        for byte in value {
            if byte == quote || byte == escape {
                out.push(escape);
            }
            out.push(byte);
        }
        out.push(quote);
    }

    fn escape(&self, start: usize, out: &mut Vec<u8>) {
        let value = out.split_off(start);
        for byte in value {
            let letter = match byte {
                0x08 => b'b',
                0x0c => b'f',
                b'\n' => b'n',
                b'\r' => b'r',
                b'\t' => b't',
                0x0b => b'v',
                other => other,
            };
            if self.special[usize::from(byte)] {
                out.push(b'\\');
                out.push(letter);
            } else {
                out.push(byte);
            }
        }
    }
}
