//! Text or CSV bytes into batches.

use super::lines::{Line, LineSplitter};
use super::{
    BATCH_BYTES, Columns, CopyFormat, CopyHeader, CopyOnError, CopyOptions, ROW_BYTES_MAX, read_batch, read_on,
    row_too_long,
};
use crate::text::utf8;
use crate::text::{TextReader, TextSettings, shortened};
use arrow_array::{BooleanArray, RecordBatch};
use arrow_schema::SchemaRef;
use tidepool_base::{Error, Result, SqlState};
use tidepool_table::{BATCH_ROWS, TableDef};

/// Characters of a line or value that an error's context shows.
const CONTEXT_CHARACTERS_MAX: usize = 100;

/// Text or CSV bytes, in pieces of any size, into batches of `columns` (positions in the table).
///
/// The batches' fields are nullable whatever the table says: constraints are checked where rows enter the table.
pub struct TextRowReader {
    table: String,
    options: CopyOptions,
    schema: SchemaRef,
    names: Vec<String>,
    readers: Vec<TextReader>,
    /// By column: it takes no NULL.
    required: Vec<bool>,
    /// Where a column that takes none first had one.
    null_place: Option<String>,
    force_null: Vec<bool>,
    force_not_null: Vec<bool>,
    lines: LineSplitter,
    /// The start of a row that is not whole yet.
    rest: Vec<u8>,
    /// One-based number of the file's line that the current row ends on.
    line_number: u64,
    header_pending: bool,
    /// The end marker was seen: what follows is read over.
    ended: bool,
    rows: usize,
    /// Of the lines that they were.
    batch_bytes: usize,
    /// Rows in `readers` to leave out of the batch, with `ON_ERROR ignore`.
    bad_rows: Vec<usize>,
    ignored: u64,
    /// De-escaped text of one field.
    scratch: Vec<u8>,
}

impl TextRowReader {
    pub fn new(
        def: &TableDef,
        columns: &[usize],
        options: &CopyOptions,
        settings: &TextSettings,
    ) -> Result<TextRowReader> {
        if !matches!(options.format, CopyFormat::Text | CopyFormat::Csv) {
            return Err(Error::internal("only text and CSV are read by lines"));
        }
        options.validate()?;
        settings.zone()?;
        let Columns { schema, names, readers, required } =
            Columns::new(def, columns, |sql_type| TextReader::with_capacity(sql_type, settings, BATCH_ROWS))?;
        let name_refs: Vec<&str> = names.iter().map(String::as_str).collect();
        let csv = (options.format == CopyFormat::Csv).then_some((options.quote, options.escape));
        Ok(TextRowReader {
            table: def.name.clone(),
            schema,
            force_null: CopyOptions::listed(&options.force_null, &name_refs)?,
            force_not_null: CopyOptions::listed(&options.force_not_null, &name_refs)?,
            names,
            readers,
            required,
            null_place: None,
            lines: LineSplitter::new(csv),
            rest: Vec::new(),
            batch_bytes: 0,
            line_number: 0,
            header_pending: options.header != CopyHeader::None,
            options: options.clone(),
            ended: false,
            rows: 0,
            bad_rows: Vec::new(),
            ignored: 0,
            scratch: Vec::new(),
        })
    }

    /// Where a column that takes no NULL first had one.
    pub fn null_place(&self) -> Option<&str> {
        self.null_place.as_deref()
    }

    /// Rows left out because of `ON_ERROR ignore`.
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Bytes of a row that is not whole yet.
    pub fn pending_bytes(&self) -> usize {
        self.rest.len()
    }

    /// Batches of up to 8,192 rows that became whole. Errors name line and column in their context.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<RecordBatch>> {
        let mut batches = Vec::new();
        if self.ended {
            return Ok(batches);
        }
        let rest = std::mem::take(&mut self.rest);
        self.rest = read_on(rest, bytes, |bytes| self.read_lines(bytes, false, &mut batches))?;
        if self.rest.len() > ROW_BYTES_MAX {
            let place = format!("COPY {}, line {}", self.table, self.line_number + 1);
            return Err(row_too_long().with_context(place));
        }
        Ok(batches)
    }

    /// The rows that are left. 22P04 when a quoted field is open.
    pub fn finish(&mut self) -> Result<Option<RecordBatch>> {
        let mut batches = Vec::new();
        if !self.ended {
            let buffer = std::mem::take(&mut self.rest);
            self.read_lines(&buffer, true, &mut batches)?;
        }
        // The last row may have completed a batch; then nothing is pending.
        match batches.pop() {
            Some(batch) => Ok(Some(batch)),
            None => self.take_batch(),
        }
    }

    /// Reads whole rows from `bytes` and returns how many bytes they took.
    fn read_lines(&mut self, bytes: &[u8], last: bool, batches: &mut Vec<RecordBatch>) -> Result<usize> {
        let mut start = 0;
        while !self.ended {
            let line = self
                .lines
                .next(bytes, start, last)
                .map_err(|error| error.with_context(format!("COPY {}, line {}", self.table, self.line_number + 1)))?;
            let Some(line) = line else { break };
            self.line_number += 1 + line.inner_breaks;
            start = line.next;
            self.batch_bytes += line.end - line.start;
            self.read_line(bytes, line)?;
            if self.rows == BATCH_ROWS || self.batch_bytes >= BATCH_BYTES {
                batches.extend(self.take_batch()?);
            }
        }
        Ok(if self.ended { bytes.len() } else { start })
    }

    fn read_line(&mut self, bytes: &[u8], line: Line) -> Result<()> {
        let raw = &bytes[line.start..line.end];
        let place = |reader: &TextRowReader| format!("COPY {}, line {}", reader.table, reader.line_number);
        let text = utf8(raw).map_err(|error| error.with_context(place(self)))?;
        if text == "\\." {
            self.ended = true;
            return Ok(());
        }
        if self.options.format == CopyFormat::Csv && self.lines.in_quote() {
            return Err(Error::new(SqlState::BAD_COPY_FILE_FORMAT, "unterminated CSV quoted field")
                .with_context(self.line_context(text)));
        }
        if self.header_pending {
            self.header_pending = false;
            return if self.options.header == CopyHeader::Match { self.match_header(text) } else { Ok(()) };
        }
        let columns = self.readers.len();
        if columns == 0 {
            // Only rows are counted.
            if !text.is_empty() {
                return Err(self.extra_data(text));
            }
            self.rows += 1;
            return Ok(());
        }
        let mut position = 0;
        let mut bad = false;
        let mut null_unwanted = false;
        for column in 0..columns {
            if position > text.len() {
                return Err(Error::new(
                    SqlState::BAD_COPY_FILE_FORMAT,
                    format!("missing data for column \"{}\"", self.names[column]),
                )
                .with_context(self.line_context(text)));
            }
            if bad {
                // The row is left out, but its fields are still counted.
                self.readers[column].append_null();
                let (_, next) = self.field(text, position);
                position = next;
                continue;
            }
            let (field, next) = self.field(text, position);
            position = next;
            let value = match field {
                Found::Plain(start, end) => Some(&text[start..end]),
                Found::Unescaped => match utf8(&self.scratch) {
                    Ok(value) => Some(value),
                    Err(error) => return Err(error.with_context(place(self))),
                },
                Found::Null => None,
                Found::Quoted(start, end) => Some(&text[start..end]),
            };
            // FORCE_NULL looks at quoted values too; FORCE_NOT_NULL keeps unquoted ones from being NULL.
            let value = match (&field, value) {
                (Found::Null, _) if self.force_not_null[column] => Some(self.options.null.as_str()),
                (Found::Quoted(..) | Found::Unescaped, Some(value))
                    if self.force_null[column] && value == self.options.null =>
                {
                    None
                }
                (_, value) => value,
            };
            match value {
                None => {
                    null_unwanted |= self.required[column];
                    self.readers[column].append_null();
                }
                Some(value) => {
                    if let Err(error) = self.readers[column].append(value) {
                        if self.options.on_error == CopyOnError::Ignore {
                            bad = true;
                            self.readers[column].append_null();
                            continue;
                        }
                        let shown = shortened(value, CONTEXT_CHARACTERS_MAX);
                        return Err(error.with_context(format!(
                            "{}, column {}: \"{shown}\"",
                            place(self),
                            self.names[column]
                        )));
                    }
                }
            }
        }
        if position <= text.len() {
            return Err(self.extra_data(text));
        }
        if bad {
            self.bad_rows.push(self.rows);
            self.ignored += 1;
        } else if null_unwanted && self.null_place.is_none() {
            self.null_place = Some(self.line_context(text));
        }
        self.rows += 1;
        Ok(())
    }

    #[cold]
    fn extra_data(&self, text: &str) -> Error {
        Error::new(SqlState::BAD_COPY_FILE_FORMAT, "extra data after last expected column")
            .with_context(self.line_context(text))
    }

    #[cold]
    fn line_context(&self, text: &str) -> String {
        format!("COPY {}, line {}: \"{}\"", self.table, self.line_number, shortened(text, CONTEXT_CHARACTERS_MAX))
    }

    /// The field at `start` and where the next one starts: behind the text's end when this is the last.
    #[inline]
    fn field(&mut self, text: &str, start: usize) -> (Found, usize) {
        if self.options.format == CopyFormat::Csv { self.csv_field(text, start) } else { self.text_field(text, start) }
    }

    #[inline]
    fn text_field(&mut self, text: &str, start: usize) -> (Found, usize) {
        let bytes = text.as_bytes();
        let delimiter = self.options.delimiter;
        let mut end = start;
        while end < bytes.len() && bytes[end] != delimiter && bytes[end] != b'\\' {
            end += 1;
        }
        if end == bytes.len() || bytes[end] == delimiter {
            let null = &bytes[start..end] == self.options.null.as_bytes();
            return (if null { Found::Null } else { Found::Plain(start, end) }, end + 1);
        }
        self.escaped_field(bytes, start)
    }

    /// A field of text format with backslashes in it.
    fn escaped_field(&mut self, bytes: &[u8], start: usize) -> (Found, usize) {
        self.scratch.clear();
        let mut position = start;
        while position < bytes.len() && bytes[position] != self.options.delimiter {
            let byte = bytes[position];
            position += 1;
            if byte != b'\\' {
                self.scratch.push(byte);
                continue;
            }
            // Behind the last one there is nothing to escape.
            if position == bytes.len() {
                break;
            }
            let escape = bytes[position];
            position += 1;
            let value = match escape {
                b'b' => 0x08,
                b'f' => 0x0c,
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'v' => 0x0b,
                b'0'..=b'7' => {
                    let mut value = u32::from(escape - b'0');
                    for _ in 0..2 {
                        match bytes.get(position) {
                            Some(digit @ b'0'..=b'7') => {
                                value = value * 8 + u32::from(digit - b'0');
                                position += 1;
                            }
                            _ => break,
                        }
                    }
                    (value & 0xff) as u8
                }
                b'x' => {
                    let mut value = 0;
                    let mut digits = 0;
                    while let Some(digit) =
                        bytes.get(position).filter(|_| digits < 2).and_then(|byte| (*byte as char).to_digit(16))
                    {
                        value = value * 16 + digit;
                        digits += 1;
                        position += 1;
                    }
                    if digits == 0 { b'x' } else { value as u8 }
                }
                other => other,
            };
            self.scratch.push(value);
        }
        // The null string is compared as written, before backslashes are taken out.
        let null = &bytes[start..position] == self.options.null.as_bytes();
        (if null { Found::Null } else { Found::Unescaped }, position + 1)
    }

    #[inline]
    fn csv_field(&mut self, text: &str, start: usize) -> (Found, usize) {
        let bytes = text.as_bytes();
        let (delimiter, quote) = (self.options.delimiter, self.options.quote);
        let mut end = start;
        while end < bytes.len() && bytes[end] != delimiter && bytes[end] != quote {
            end += 1;
        }
        if end == bytes.len() || bytes[end] == delimiter {
            let null = &bytes[start..end] == self.options.null.as_bytes();
            return (if null { Found::Null } else { Found::Plain(start, end) }, end + 1);
        }
        if end == start {
            // Quotes around the whole field and none within: no copy.
            if let Some(length) = memchr::memchr2(quote, self.options.escape, &bytes[start + 1..]) {
                let close = start + 1 + length;
                if bytes[close] == quote && bytes.get(close + 1).is_none_or(|byte| *byte == delimiter) {
                    return (Found::Quoted(start + 1, close), close + 2);
                }
            }
        }
        self.quoted_field(bytes, start)
    }

    /// A CSV field with quotes within, before or behind it.
    fn quoted_field(&mut self, bytes: &[u8], start: usize) -> (Found, usize) {
        let CopyOptions { delimiter, quote, escape, .. } = self.options;
        self.scratch.clear();
        let mut position = start;
        let mut in_quote = false;
        while position < bytes.len() {
            let byte = bytes[position];
            if in_quote {
                let next = bytes.get(position + 1);
                if byte == escape && next.is_some_and(|next| *next == quote || *next == escape) {
                    self.scratch.push(bytes[position + 1]);
                    position += 2;
                    continue;
                }
                if byte == quote {
                    in_quote = false;
                } else {
                    self.scratch.push(byte);
                }
            } else if byte == delimiter {
                break;
            } else if byte == quote {
                in_quote = true;
            } else {
                self.scratch.push(byte);
            }
            position += 1;
        }
        (Found::Unescaped, position + 1)
    }

    fn match_header(&mut self, text: &str) -> Result<()> {
        let mut position = 0;
        let mut names = Vec::new();
        while position <= text.len() {
            let (field, next) = self.field(text, position);
            position = next;
            names.push(match field {
                Found::Plain(start, end) | Found::Quoted(start, end) => Some(text[start..end].to_owned()),
                Found::Unescaped => Some(String::from_utf8_lossy(&self.scratch).into_owned()),
                Found::Null => None,
            });
        }
        let context = self.line_context(text);
        if names.len() != self.names.len() {
            return Err(Error::new(
                SqlState::BAD_COPY_FILE_FORMAT,
                format!("wrong number of fields in header line: got {}, expected {}", names.len(), self.names.len()),
            )
            .with_context(context));
        }
        for (position, (name, expected)) in names.iter().zip(&self.names).enumerate() {
            let number = position + 1;
            let message = match name {
                Some(name) if name == expected => continue,
                Some(name) => format!(
                    "column name mismatch in header line field {number}: got \"{name}\", expected \"{expected}\""
                ),
                None => format!(
                    "column name mismatch in header line field {number}: got null value (\"{}\"), expected \"{expected}\"",
                    self.options.null
                ),
            };
            return Err(Error::new(SqlState::BAD_COPY_FILE_FORMAT, message).with_context(context));
        }
        Ok(())
    }

    fn take_batch(&mut self) -> Result<Option<RecordBatch>> {
        let rows = std::mem::take(&mut self.rows);
        self.batch_bytes = 0;
        if rows == 0 {
            return Ok(None);
        }
        let columns = self.readers.iter_mut().map(TextReader::finish).collect();
        let mut batch = read_batch(&self.schema, columns, rows)?;
        if !self.bad_rows.is_empty() {
            let mut keep = vec![true; rows];
            for row in self.bad_rows.drain(..) {
                keep[row] = false;
            }
            batch = arrow_select::filter::filter_record_batch(&batch, &BooleanArray::from(keep))
                .map_err(|error| Error::internal(error.to_string()))?;
        }
        Ok((batch.num_rows() > 0).then_some(batch))
    }
}

/// Where a field's text is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    Null,
    /// As it stands in the line.
    Plain(usize, usize),
    /// As it stands between quotes.
    Quoted(usize, usize),
    /// In the scratch buffer.
    Unescaped,
}
