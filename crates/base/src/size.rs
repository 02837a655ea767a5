//! Byte sizes as people write them: `512MB`, `4GiB`, `2 TB`. Every unit is a power of 1,024, as in PostgreSQL.

use crate::{Error, Result, SqlState};
use std::{fmt, str::FromStr};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

impl ByteSize {
    pub const KIB: u64 = 1 << 10;
    pub const MIB: u64 = 1 << 20;
    pub const GIB: u64 = 1 << 30;
    pub const TIB: u64 = 1 << 40;
}

impl FromStr for ByteSize {
    type Err = Error;

    fn from_str(text: &str) -> Result<ByteSize> {
        let invalid = || {
            Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("invalid size: \"{text}\""))
                .with_hint("Write a number and a unit: B, kB, MB, GB or TB, as in 512MB.")
        };
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let scale = match unit.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kb" | "kib" => ByteSize::KIB,
            "m" | "mb" | "mib" => ByteSize::MIB,
            "g" | "gb" | "gib" => ByteSize::GIB,
            "t" | "tb" | "tib" => ByteSize::TIB,
            _ => return Err(invalid()),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(scale).map(ByteSize).ok_or_else(invalid);
        }
        let value = number.parse::<f64>().map_err(|_| invalid())? * scale as f64;
        // 2^63 bytes is beyond any address space, and below it f64 to u64 is exact enough for a size.
        if value.is_finite() && value < 9.2e18 { Ok(ByteSize(value as u64)) } else { Err(invalid()) }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (scale, unit) in [(Self::TIB, "TB"), (Self::GIB, "GB"), (Self::MIB, "MB"), (Self::KIB, "kB")] {
            if self.0 >= scale {
                let value = self.0 as f64 / scale as f64;
                return if self.0.is_multiple_of(scale) {
                    write!(f, "{value:.0} {unit}")
                } else {
                    write!(f, "{value:.1} {unit}")
                };
            }
        }
        write!(f, "{} B", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_shown() {
        for (text, bytes) in [("0", 0), ("17B", 17), ("512MB", 512 << 20), ("1.5 GiB", 3 << 29), ("2t", 2 << 40)] {
            assert_eq!(text.parse::<ByteSize>().unwrap().0, bytes, "{text}");
        }
        for text in ["", "MB", "-1", "1 XB", "99999999999TB", "1e400", "1.2.3GB"] {
            assert_eq!(text.parse::<ByteSize>().unwrap_err().code(), SqlState::INVALID_PARAMETER_VALUE, "{text}");
        }
        assert_eq!(ByteSize(3 << 29).to_string(), "1.5 GB");
        assert_eq!(ByteSize(512 << 20).to_string(), "512 MB");
    }
}
