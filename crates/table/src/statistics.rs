//! Minimum, maximum, null count and distinct count, by segment and by table.

use crate::sketch::Sketch;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;

/// One non-null value, in storage form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Datum {
    Boolean(bool),
    /// Int16/32/64, Date32 (days) and timestamps (us) widened.
    Int(i64),
    /// Decimal128, unscaled.
    Decimal(i128),
    /// Float32/64 widened. Ordered as PostgreSQL orders floats: NaN above all.
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
}

impl Datum {
    /// The order of a column's values: floats as PostgreSQL orders them, text by its bytes. `None` for two kinds that
    /// no one column holds.
    pub fn compare(&self, other: &Datum) -> Option<Ordering> {
        match (self, other) {
            (Datum::Boolean(a), Datum::Boolean(b)) => Some(a.cmp(b)),
            (Datum::Int(a), Datum::Int(b)) => Some(a.cmp(b)),
            (Datum::Decimal(a), Datum::Decimal(b)) => Some(a.cmp(b)),
            (Datum::Float(a), Datum::Float(b)) => Some(float_key(*a).cmp(&float_key(*b))),
            (Datum::Text(a), Datum::Text(b)) => Some(a.as_bytes().cmp(b.as_bytes())),
            (Datum::Bytes(a), Datum::Bytes(b)) => Some(a.cmp(b)),
            _ => None,
        }
    }
}

/// An integer that orders as PostgreSQL orders floats: -0 equals 0, every NaN equals every other and is above all.
#[inline]
pub(crate) fn float_key(value: f64) -> i64 {
    // Adding 0 turns -0 into 0 and nothing else into anything else.
    let bits = if value.is_nan() { f64::NAN.to_bits() & !(1 << 63) } else { (value + 0.0).to_bits() } as i64;
    bits ^ (((bits >> 63) as u64) >> 1) as i64
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct ColumnStatistics {
    /// Inclusive bounds; `None` when unknown, or all values are NULL. A long text's lower bound may be shorter than any
    /// value, and its upper bound unknown.
    pub min: Option<Datum>,
    pub max: Option<Datum>,
    pub null_count: u64,
    /// Estimated from merged sketches.
    pub distinct_count: Option<u64>,
    /// Average bytes of a value as a scan hands it out.
    pub value_bytes_avg: f64,
    /// No value occurs twice, known for certain (a dense or strictly ordered column).
    pub unique: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct TableStatistics {
    pub rows: u64,
    /// As of when they were worked out, rows, bounds and null counts are what they say, not estimates.
    pub exact: bool,
    /// Estimated: what the versions of delta take.
    pub delta_bytes: u64,
    pub columns: Vec<ColumnStatistics>,
    /// Of each column, what its distinct values were counted with.
    pub(crate) sketches: Vec<Sketch>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_order_as_in_postgresql() {
        let ascending =
            [f64::NEG_INFINITY, -1.5, -f64::MIN_POSITIVE, 0.0, 5e-324, 1.0, f64::MAX, f64::INFINITY, f64::NAN];
        for pair in ascending.windows(2) {
            assert!(float_key(pair[0]) < float_key(pair[1]), "{pair:?}");
        }
        assert_eq!(float_key(-0.0), float_key(0.0));
        assert_eq!(float_key(f64::NAN), float_key(-f64::NAN));
        assert_eq!(Datum::Float(f64::NAN).compare(&Datum::Float(f64::INFINITY)), Some(Ordering::Greater));
        assert_eq!(Datum::Int(1).compare(&Datum::Float(1.0)), None);
    }
}
