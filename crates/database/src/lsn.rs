//! Places in the log as clients see them.

use std::fmt;
use std::str::FromStr;
use tidepool_base::{Error, Result, SqlState};

/// A place in the log, in bytes from where it began. Grows from term to term; PostgreSQL's `pg_lsn`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xffff_ffff)
    }
}

impl FromStr for Lsn {
    type Err = Error;

    /// 22P02 for what is no position.
    fn from_str(text: &str) -> Result<Lsn> {
        let half = |half: &str| match half.len() {
            1..=8 if half.bytes().all(|byte| byte.is_ascii_hexdigit()) => u64::from_str_radix(half, 16).ok(),
            _ => None,
        };
        let halves = text.split_once('/').and_then(|(high, low)| Some((half(high)?, half(low)?)));
        halves.map(|(high, low)| Lsn(high << 32 | low)).ok_or_else(|| {
            let message = format!("invalid input syntax for type pg_lsn: \"{text}\"");
            Error::new(SqlState::INVALID_TEXT_REPRESENTATION, message)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_written_as_postgresql_writes_them() {
        for (text, number) in
            [("0/0", 0), ("16/B374D848", 0x16_b374_d848), ("FFFFFFFF/ffffffff", u64::MAX), ("1/10", 0x1_0000_0010)]
        {
            let lsn: Lsn = text.parse().unwrap();
            assert_eq!((lsn.0, lsn.to_string()), (number, text.to_uppercase()));
        }
        for text in
            ["", "/", "1", "1/", "/1", "x/1", "1/x", "123456789/1", "1/123456789", " 1/1", "1/1 ", "-1/1", "+1/1"]
        {
            assert_eq!(text.parse::<Lsn>().unwrap_err().code(), SqlState::INVALID_TEXT_REPRESENTATION, "{text}");
        }
    }
}
