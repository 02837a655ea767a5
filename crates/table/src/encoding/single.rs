//! The value of one row, read by itself: no array is made of it, and its neighbours stay encoded where the encoding allows. A delta's
//! block is added up to the row, and the lengths of text in its block.

use super::{Payload, mismatch};
use crate::blob::Blob;
use tidepool_base::Result;

impl Payload {
    pub fn int_at(&self, blob: &Blob, row: usize) -> Result<i64> {
        match self {
            Payload::Ints(ints) => Ok(ints.at(blob, row)),
            Payload::Dictionary(dictionary) => dictionary.int_at(blob, row),
            _ => Err(mismatch()),
        }
    }

    /// Of decimals and intervals.
    pub fn wide_at(&self, blob: &Blob, row: usize) -> Result<i128> {
        match self {
            Payload::Ints(ints) => Ok(ints.at(blob, row).into()),
            Payload::Dictionary(dictionary) => dictionary.wide_at(blob, row),
            Payload::Plain(plain) => plain.wide_at(blob, row),
            _ => Err(mismatch()),
        }
    }

    pub fn float_at(&self, blob: &Blob, row: usize) -> Result<f64> {
        match self {
            Payload::ScaledFloats(scaled) => Ok(scaled.at(blob, row)),
            Payload::Dictionary(dictionary) => dictionary.float_at(blob, row),
            Payload::Plain(plain) => plain.float_at(blob, row),
            _ => Err(mismatch()),
        }
    }

    /// Text or bytes: where they lie, or in `room`.
    pub fn bytes_at<'b>(&self, blob: &'b Blob, row: usize, room: &'b mut Vec<u8>) -> Result<&'b [u8]> {
        match self {
            Payload::Dictionary(dictionary) => dictionary.bytes_at(blob, row),
            Payload::Strings(strings) => Ok(strings.at(blob, row)),
            Payload::Fsst(fsst) => {
                fsst.at_into(blob, row, room);
                Ok(room)
            }
            Payload::Uuids(uuids) => {
                room.clear();
                super::uuid::format(uuids.at(blob, row), room);
                Ok(room)
            }
            _ => Err(mismatch()),
        }
    }

    /// The 16 bytes of a uuid, if they lie there as such.
    pub fn uuid_at(&self, blob: &Blob, row: usize) -> Option<u128> {
        match self {
            Payload::Uuids(uuids) => Some(uuids.at(blob, row)),
            _ => None,
        }
    }
}
