//! What a peer may ask for.

use crate::codec::{Reader, Writer};
use crate::fault::Fault;

/// Entries that a list in a frame may have: places of a `READ`, writes of a `FLUSH`, allocations of a `REGISTER`.
pub const ENTRIES_MAX: u32 = 4096;

/// No body is longer before the peer is authenticated, and no limit on frames is below it: an error always fits.
pub const FRAME_BYTES_MIN: u32 = 16 << 10;

/// Beyond this a limit is not believed.
const FRAME_BYTES_MAX: u32 = 64 << 20;
const READ_BYTES_MAX: u64 = 1 << 30;
const CREDIT_BYTES_MAX: u64 = 1 << 30;

/// Requests that one connection may ever have under way: the receiver tells duplicates from late ones among four times
/// as many.
pub const REQUESTS_MAX: u32 = 1024;

/// Bounds of one connection. Each side names its own, and the lesser of the two holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a frame's body.
    pub frame_bytes: u32,
    /// Bytes that one `READ` may ask for.
    pub read_bytes: u64,
    /// Bytes of one `BATCH`.
    pub batch_bytes: u32,
    /// Requests under way.
    pub requests: u32,
    /// Credit for requests: bytes of bodies whose requests are under way, in one direction.
    pub request_bytes: u64,
    /// Credit for rows: bytes of `BATCH`es that one request may have on their way.
    pub credit_bytes: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            frame_bytes: 4 << 20,
            read_bytes: 16 << 20,
            batch_bytes: 1 << 20,
            requests: 256,
            request_bytes: 16 << 20,
            credit_bytes: 16 << 20,
        }
    }
}

impl Limits {
    /// What both sides allow.
    pub fn lesser(self, other: Limits) -> Limits {
        Limits {
            frame_bytes: self.frame_bytes.min(other.frame_bytes),
            read_bytes: self.read_bytes.min(other.read_bytes),
            batch_bytes: self.batch_bytes.min(other.batch_bytes),
            requests: self.requests.min(other.requests),
            request_bytes: self.request_bytes.min(other.request_bytes),
            credit_bytes: self.credit_bytes.min(other.credit_bytes),
        }
    }

    /// Whether a connection can work with them.
    pub fn check(&self) -> Result<(), Fault> {
        let good = (FRAME_BYTES_MIN..=FRAME_BYTES_MAX).contains(&self.frame_bytes)
            && (1..=READ_BYTES_MAX).contains(&self.read_bytes)
            && (1..self.frame_bytes).contains(&self.batch_bytes)
            && (1..=REQUESTS_MAX).contains(&self.requests)
            && (u64::from(self.frame_bytes)..=CREDIT_BYTES_MAX).contains(&self.request_bytes)
            && (u64::from(self.batch_bytes)..=CREDIT_BYTES_MAX).contains(&self.credit_bytes);
        if good { Ok(()) } else { Err(Fault::Malformed("its limits are out of range")) }
    }

    pub(crate) fn encode(&self, to: &mut Writer<'_>) {
        to.u32(self.frame_bytes);
        to.u32(self.batch_bytes);
        to.u32(self.requests);
        to.u32(0);
        to.u64(self.read_bytes);
        to.u64(self.request_bytes);
        to.u64(self.credit_bytes);
    }

    pub(crate) fn decode(from: &mut Reader<'_>) -> Result<Limits, Fault> {
        let (frame_bytes, batch_bytes, requests) = (from.u32()?, from.u32()?, from.u32()?);
        from.zero(4)?;
        let (read_bytes, request_bytes, credit_bytes) = (from.u64()?, from.u64()?, from.u64()?);
        let limits = Limits { frame_bytes, read_bytes, batch_bytes, requests, request_bytes, credit_bytes };
        limits.check()?;
        Ok(limits)
    }
}
