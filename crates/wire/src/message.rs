//! Bodies of frames: what a compute process asks of a node, and what it is told.
//!
//! All that follows is in the order in which it lies in the body. A list is a count of 4 bytes, then its entries.
//! *Rest* is what the body has left. A body has nothing behind these fields.
//!
//! | kind | request | answer |
//! | --- | --- | --- |
//! | `REGISTER` | list of (bytes u64, purpose u16, zero 6) | `REGISTER`: list of place u64 |
//! | `DEREGISTER` | list of place u64 | `DONE` |
//! | `READ` | list of (place u64, bytes u32) | `DATA`…: offset u64 in all that was asked for, rest |
//! | `FLUSH` | stage u32, list of (place u64, bytes u32), rest: their bytes | `DONE` |
//! | `PUBLISH` | root u64, number u64 | `DONE` |
//! | `APPEND` | log u64, position u64, rest | `DURABLE`: position u64 |
//! | `FRAGMENT` | credit u64, rest | `BATCH`…: number u64, rest; then `DONE` |
//! | `CREDIT` | bytes u64 of batches that may be sent in all | none |
//! | `CANCEL` | empty | that of the request which it names |
//! | `PING` | word u64 | `PING`: the same word |
//!
//! `DONE` has bits u32 (1: cancelled), zero u32, rows u64, bytes u64, batches u64, nanoseconds u64. `ERROR` has the
//! SQLSTATE in 5 bytes, bits u8 (1: a detail, 2: a hint), zero u16, and three texts of UTF-8: bytes u32, then these.
//! Either can end any request.

use crate::codec::{Entry, List, Payload, Reader, Writer};
use crate::fault::Fault;
use crate::frame::{Flags, Kind};
use tidepool_base::{Error, SqlState};

/// A text of an error is cut to this, so that one fits into the shortest frame that a connection must take.
const TEXT_BYTES_MAX: usize = 4 << 10;

/// Where something lies in a node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(pub u64);

impl Place {
    /// Where a `READ` finds what was published last: 32 bytes, which are the root u64, its number u64 (zero: nothing
    /// was published), XXH3-64 of these 16 bytes, and 8 zeroes.
    pub const ROOT: Place = Place(u64::MAX << 12);

    /// In a `DEREGISTER`: all places of the same tablespace that other clients registered, and what they published.
    /// So a process that comes after another one need not know what that had.
    pub const OTHERS: Place = Place(u64::MAX);
}

/// So many bytes at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    pub place: Place,
    pub bytes: u32,
}

/// Memory to be had at a node. What purposes there are is for those to say who have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Allocation {
    pub bytes: u64,
    pub purpose: u16,
}

impl Entry for Place {
    const BYTES: usize = 8;

    fn put(&self, to: &mut Vec<u8>) {
        Writer(to).u64(self.0);
    }

    fn take(bytes: &[u8]) -> Result<Place, Fault> {
        Reader(bytes).u64().map(Place)
    }
}

impl Entry for Extent {
    const BYTES: usize = 12;

    fn put(&self, to: &mut Vec<u8>) {
        let mut to = Writer(to);
        to.u64(self.place.0);
        to.u32(self.bytes);
    }

    fn take(bytes: &[u8]) -> Result<Extent, Fault> {
        let mut from = Reader(bytes);
        Ok(Extent { place: Place(from.u64()?), bytes: from.u32()? })
    }
}

impl Entry for Allocation {
    const BYTES: usize = 16;

    fn put(&self, to: &mut Vec<u8>) {
        let mut to = Writer(to);
        to.u64(self.bytes);
        to.u16(self.purpose);
        to.bytes(&[0; 6]);
    }

    fn take(bytes: &[u8]) -> Result<Allocation, Fault> {
        let mut from = Reader(bytes);
        let allocation = Allocation { bytes: from.u64()?, purpose: from.u16()? };
        from.zero(6)?;
        Ok(allocation)
    }
}

/// All bytes of extents together.
pub fn total_bytes(extents: &List<'_, Extent>) -> u64 {
    extents.iter().map(|extent| u64::from(extent.bytes)).sum()
}

/// What a compute process asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Request<'a> {
    Register(List<'a, Allocation>),
    Deregister(List<'a, Place>),
    Read(List<'a, Extent>),
    /// Bytes for places, which become what is read there when a `PUBLISH` names their stage; stage 0: at once.
    Flush {
        stage: u32,
        extents: List<'a, Extent>,
        payload: Payload<'a>,
    },
    Publish {
        root: u64,
        number: u64,
    },
    Append {
        log: u64,
        position: u64,
        payload: &'a [u8],
    },
    Fragment {
        credit: u64,
        plan: &'a [u8],
    },
    /// Bytes of batches that the request's answer may have in all, from its beginning. So one that comes twice, or
    /// after a later one, does no harm.
    Credit {
        granted: u64,
    },
    Cancel,
    Ping(u64),
}

impl<'a> Request<'a> {
    pub fn kind(&self) -> Kind {
        match self {
            Request::Register(_) => Kind::Register,
            Request::Deregister(_) => Kind::Deregister,
            Request::Read(_) => Kind::Read,
            Request::Flush { .. } => Kind::Flush,
            Request::Publish { .. } => Kind::Publish,
            Request::Append { .. } => Kind::Append,
            Request::Fragment { .. } => Kind::Fragment,
            Request::Credit { .. } => Kind::Credit,
            Request::Cancel => Kind::Cancel,
            Request::Ping(_) => Kind::Ping,
        }
    }

    /// Adds the body to `to`, but for the payload, which follows it.
    pub fn encode(&self, to: &mut Vec<u8>) -> Result<Payload<'a>, Fault> {
        let mut to = Writer(to);
        match *self {
            Request::Register(ref list) => list.encode(&mut to)?,
            Request::Deregister(ref list) => list.encode(&mut to)?,
            Request::Read(ref list) => list.encode(&mut to)?,
            Request::Flush { stage, ref extents, payload } => {
                if total_bytes(extents) != payload.len() as u64 {
                    return Err(Fault::Malformed("its extents and its bytes differ"));
                }
                to.u32(stage);
                extents.encode(&mut to)?;
                return Ok(payload);
            }
            Request::Publish { root, number } => {
                to.u64(root);
                to.u64(number);
            }
            Request::Append { log, position, payload } => {
                to.u64(log);
                to.u64(position);
                return Ok(Payload::Whole(payload));
            }
            Request::Fragment { credit, plan } => {
                to.u64(credit);
                return Ok(Payload::Whole(plan));
            }
            Request::Credit { granted } => to.u64(granted),
            Request::Cancel => {}
            Request::Ping(word) => to.u64(word),
        }
        Ok(Payload::Whole(&[]))
    }

    /// Reads the body of a frame that goes to a node.
    pub fn decode(kind: Kind, flags: Flags, body: &'a [u8]) -> Result<Request<'a>, Fault> {
        if flags != Flags::NONE {
            return Err(Fault::Malformed("a request has flags"));
        }
        let mut from = Reader(body);
        let request = match kind {
            Kind::Register => Request::Register(from.list()?),
            Kind::Deregister => Request::Deregister(from.list()?),
            Kind::Read => Request::Read(from.list()?),
            Kind::Flush => {
                let stage = from.u32()?;
                let extents = from.list()?;
                let payload = Payload::Whole(from.rest());
                if total_bytes(&extents) != payload.len() as u64 {
                    return Err(Fault::Malformed("its extents and its bytes differ"));
                }
                Request::Flush { stage, extents, payload }
            }
            Kind::Publish => Request::Publish { root: from.u64()?, number: from.u64()? },
            Kind::Append => Request::Append { log: from.u64()?, position: from.u64()?, payload: from.rest() },
            Kind::Fragment => Request::Fragment { credit: from.u64()?, plan: from.rest() },
            Kind::Credit => Request::Credit { granted: from.u64()? },
            Kind::Cancel => Request::Cancel,
            Kind::Ping => Request::Ping(from.u64()?),
            Kind::Hello => return Err(Fault::Malformed("the connection is open already")),
            Kind::Data | Kind::Durable | Kind::Batch | Kind::Done | Kind::Error => {
                return Err(Fault::Malformed("an answer came as a request"));
            }
        };
        from.end()?;
        Ok(request)
    }
}

/// What a request came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// It was given up, and had no effect.
    pub cancelled: bool,
    pub rows: u64,
    pub bytes: u64,
    pub batches: u64,
    pub nanoseconds: u64,
}

/// An error as it travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal<'a> {
    pub code: [u8; 5],
    pub message: &'a str,
    pub detail: Option<&'a str>,
    pub hint: Option<&'a str>,
}

/// As much of a text as an error's frame takes.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

impl<'a> Refusal<'a> {
    pub fn of(error: &'a Error) -> Refusal<'a> {
        let code = error.code().code().as_bytes();
        Refusal {
            code: std::array::from_fn(|at| code.get(at).copied().unwrap_or(b'0')),
            message: cut(error.message()),
            detail: error.detail().map(cut),
            hint: error.hint().map(cut),
        }
    }

    /// The code, if it is one that this release knows.
    pub fn sqlstate(&self) -> SqlState {
        str::from_utf8(&self.code).ok().and_then(SqlState::from_code).unwrap_or(SqlState::INTERNAL_ERROR)
    }

    pub fn to_error(&self) -> Error {
        let mut error = Error::new(self.sqlstate(), self.message);
        if let Some(detail) = self.detail {
            error = error.with_detail(detail);
        }
        if let Some(hint) = self.hint {
            error = error.with_hint(hint);
        }
        error
    }
}

pub(crate) const DONE_CANCELLED: u32 = 1;

const HAS_DETAIL: u8 = 1;
const HAS_HINT: u8 = 2;

/// What a node says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Answer<'a> {
    Registered(List<'a, Place>),
    /// Some of the bytes that a `READ` asked for, all its extents in a row.
    Data {
        offset: u64,
        payload: Payload<'a>,
    },
    Durable {
        position: u64,
    },
    /// Rows of a fragment, the `number`th piece from 0 on.
    Batch {
        number: u64,
        payload: &'a [u8],
    },
    Done(Done),
    Error(Refusal<'a>),
    Pong(u64),
}

impl<'a> Answer<'a> {
    pub fn kind(&self) -> Kind {
        match self {
            Answer::Registered(_) => Kind::Register,
            Answer::Data { .. } => Kind::Data,
            Answer::Durable { .. } => Kind::Durable,
            Answer::Batch { .. } => Kind::Batch,
            Answer::Done(_) => Kind::Done,
            Answer::Error(_) => Kind::Error,
            Answer::Pong(_) => Kind::Ping,
        }
    }

    /// Adds the body to `to`, but for the payload, which follows it.
    pub fn encode(&self, to: &mut Vec<u8>) -> Result<Payload<'a>, Fault> {
        let mut to = Writer(to);
        match *self {
            Answer::Registered(ref places) => places.encode(&mut to)?,
            Answer::Data { offset, payload } => {
                to.u64(offset);
                return Ok(payload);
            }
            Answer::Durable { position } => to.u64(position),
            Answer::Batch { number, payload } => {
                to.u64(number);
                return Ok(Payload::Whole(payload));
            }
            Answer::Done(done) => {
                to.u32(if done.cancelled { DONE_CANCELLED } else { 0 });
                to.u32(0);
                to.u64(done.rows);
                to.u64(done.bytes);
                to.u64(done.batches);
                to.u64(done.nanoseconds);
            }
            Answer::Error(refusal) => {
                to.bytes(&refusal.code);
                let bits = [(refusal.detail, HAS_DETAIL), (refusal.hint, HAS_HINT)];
                to.u8(bits.iter().filter(|(text, _)| text.is_some()).map(|(_, bit)| bit).sum());
                to.u16(0);
                for text in [Some(refusal.message), refusal.detail, refusal.hint].into_iter().flatten() {
                    let text = cut(text);
                    to.u32(text.len() as u32);
                    to.bytes(text.as_bytes());
                }
            }
            Answer::Pong(word) => to.u64(word),
        }
        Ok(Payload::Whole(&[]))
    }

    /// Reads the body of a frame that comes from a node.
    pub fn decode(kind: Kind, flags: Flags, body: &'a [u8]) -> Result<Answer<'a>, Fault> {
        if !flags.contains(Flags::ANSWER) {
            return Err(Fault::Malformed("a request came as an answer"));
        }
        let last = flags.contains(Flags::LAST);
        let mut from = Reader(body);
        let answer = match kind {
            Kind::Register => Answer::Registered(from.list()?),
            Kind::Data => Answer::Data { offset: from.u64()?, payload: Payload::Whole(from.rest()) },
            Kind::Durable => Answer::Durable { position: from.u64()? },
            Kind::Batch => Answer::Batch { number: from.u64()?, payload: from.rest() },
            Kind::Done => {
                let bits = from.u32()?;
                from.zero(4)?;
                if bits & !DONE_CANCELLED != 0 {
                    return Err(Fault::Malformed("unknown bits of its end"));
                }
                Answer::Done(Done {
                    cancelled: bits & DONE_CANCELLED != 0,
                    rows: from.u64()?,
                    bytes: from.u64()?,
                    batches: from.u64()?,
                    nanoseconds: from.u64()?,
                })
            }
            Kind::Error => {
                let (code, bits) = (from.array()?, from.u8()?);
                from.zero(2)?;
                if bits & !(HAS_DETAIL | HAS_HINT) != 0 || !code.iter().all(u8::is_ascii_alphanumeric) {
                    return Err(Fault::Malformed("its error has no code"));
                }
                let mut text = || -> Result<&'a str, Fault> {
                    let count = from.u32()? as usize;
                    str::from_utf8(from.bytes(count)?).map_err(|_| Fault::Malformed("its error is not UTF-8"))
                };
                let message = text()?;
                let detail = if bits & HAS_DETAIL != 0 { Some(text()?) } else { None };
                let hint = if bits & HAS_HINT != 0 { Some(text()?) } else { None };
                Answer::Error(Refusal { code, message, detail, hint })
            }
            Kind::Ping => Answer::Pong(from.u64()?),
            Kind::Hello => return Err(Fault::Malformed("the connection is open already")),
            Kind::Deregister
            | Kind::Read
            | Kind::Flush
            | Kind::Publish
            | Kind::Append
            | Kind::Fragment
            | Kind::Credit
            | Kind::Cancel => return Err(Fault::Malformed("a request came as an answer")),
        };
        from.end()?;
        // What comes in several frames says which is the last one; the rest are last ones themselves.
        let several = matches!(kind, Kind::Data | Kind::Batch);
        if !several && !last || kind == Kind::Batch && last {
            return Err(Fault::Malformed("it is not where an answer ends"));
        }
        Ok(answer)
    }
}
