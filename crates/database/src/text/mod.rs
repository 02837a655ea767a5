//! Text and binary forms of values, as PostgreSQL reads and writes them.
//!
//! A writer is made once a batch and column: it downcasts the array and then writes values without allocating. A reader
//! builds one column in the table's storage types. Text and binary have the same shape, so that protocol and `COPY` treat
//! them alike.

mod binary;
mod builder;
mod bytes;
mod calendar;
mod clocks;
mod datetime;
mod interval;
pub mod json;
mod number;
pub mod numeric;
mod reader;
pub mod single;
mod utf8;
mod writer;

pub use binary::{BinaryReader, BinaryWriter};
pub use calendar::Zone;
pub use clocks::{cross_clocks, crosses_clocks};
pub use reader::TextReader;
pub use writer::TextWriter;

pub(crate) use bytes::shortened;
pub(crate) use utf8::utf8;

/// A `timestamptz`, in microseconds since 1970; in UTC where it names no zone. 22007 for what is none.
pub fn parse_moment(text: &str) -> tidepool_base::Result<i64> {
    datetime::parse_timestamp(text.trim(), datetime::Target::TimestampTz(Zone::UTC))
}

/// A `timestamptz` in UTC.
pub fn moment_text(us: i64) -> String {
    let mut text = Vec::new();
    datetime::write_timestamptz(us, Zone::UTC, &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// The name of items in lists that are PostgreSQL's `int2vector` or `oidvector`: written without braces, counted from 0.
pub const VECTOR_ITEM: &str = "of_vector";

/// Characters of a value that messages about a row show.
pub(crate) const ROW_VALUE_CHARACTERS_MAX: usize = 64;

/// Settings that change text forms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextSettings {
    /// IANA name or fixed offset, for `timestamptz`.
    pub time_zone: String,
    /// Above 0: floats are written with as many digits as they need to read back the same; otherwise with fewer than 15.
    pub extra_float_digits: i32,
}

impl Default for TextSettings {
    fn default() -> TextSettings {
        TextSettings { time_zone: "UTC".to_owned(), extra_float_digits: 1 }
    }
}

impl TextSettings {
    /// The zone that `time_zone` names. 22023 when there is none.
    pub fn zone(&self) -> tidepool_base::Result<Zone> {
        Zone::parse(&self.time_zone)
    }
}
