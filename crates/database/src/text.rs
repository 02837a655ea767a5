//! Text forms of values, as PostgreSQL reads and writes them.

use arrow_array::{Array, ArrayRef};
use tidepool_base::{Result, SqlType};

/// Settings that change text forms.
#[derive(Clone, Debug)]
pub struct TextSettings {
    /// IANA name or fixed offset, for `timestamptz`.
    pub time_zone: String,
    pub extra_float_digits: i32,
}

/// Writes values of one column.
pub struct TextWriter {}

impl TextWriter {
    pub fn new(_array: &dyn Array, _sql_type: SqlType, _settings: &TextSettings) -> Result<TextWriter> {
        unimplemented!()
    }
    /// Appends the text of row `row` to `out`; false (and nothing appended) for NULL.
    pub fn write(&self, _row: usize, _out: &mut Vec<u8>) -> bool {
        unimplemented!()
    }
}

/// Builds one column from texts. Errors are PostgreSQL's: 22P02, 22003, 22007, 22008, 22001.
pub struct TextReader {}

impl TextReader {
    pub fn new(_sql_type: SqlType, _settings: &TextSettings) -> TextReader {
        unimplemented!()
    }
    pub fn append(&mut self, _text: &str) -> Result<()> {
        unimplemented!()
    }
    pub fn append_null(&mut self) {
        unimplemented!()
    }
    pub fn finish(&mut self) -> ArrayRef {
        unimplemented!()
    }
}
