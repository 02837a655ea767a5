//! What goes wrong on a connection, as a value that takes no memory.
//!
//! A page fault's handler reads through this crate and may not allocate, so the low layers return a [`Fault`]. Code
//! that may allocate turns it into an [`Error`].

use std::fmt;
use std::io;
use tidepool_base::{Error, SqlState};

/// Why a frame, a request or a connection came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The connection is over, and nothing is known of what was under way.
    Closed(&'static str),
    /// The operating system failed to send or receive.
    Io(io::ErrorKind),
    /// The peer sent what the protocol does not allow.
    Malformed(&'static str),
    UnknownKind(u16),
    UnknownFlags(u16),
    UnknownVersions {
        oldest: u16,
        newest: u16,
    },
    /// More than the connection's limits allow.
    Beyond {
        what: &'static str,
        asked: u64,
        limit: u64,
    },
    /// More is under way than the connection's limits allow.
    Busy {
        what: &'static str,
        limit: u64,
    },
    /// A newer epoch has begun; its holder alone may ask.
    Fenced {
        epoch: u64,
        current: u64,
    },
    /// The peer does not know the token.
    Unauthenticated,
    /// The request was cancelled, and had no effect.
    Cancelled,
    /// The peer refused a request, for a reason whose text was not kept.
    Refused(SqlState),
}

impl Fault {
    pub fn code(self) -> SqlState {
        match self {
            Fault::Closed(_) | Fault::Io(_) => SqlState::CONNECTION_FAILURE,
            Fault::Malformed(_) | Fault::UnknownKind(_) | Fault::UnknownFlags(_) => SqlState::PROTOCOL_VIOLATION,
            Fault::UnknownVersions { .. } => SqlState::FEATURE_NOT_SUPPORTED,
            Fault::Beyond { .. } => SqlState::PROGRAM_LIMIT_EXCEEDED,
            Fault::Busy { .. } => SqlState::TOO_MANY_CONNECTIONS,
            Fault::Fenced { .. } => SqlState::ADMIN_SHUTDOWN,
            Fault::Unauthenticated => SqlState::INVALID_PASSWORD,
            Fault::Cancelled => SqlState::QUERY_CANCELED,
            Fault::Refused(code) => code,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Closed(why) => write!(f, "connection lost: {why}"),
            Fault::Io(kind) => write!(f, "connection lost: {kind}"),
            Fault::Malformed(what) => write!(f, "invalid frame: {what}"),
            Fault::UnknownKind(kind) => write!(f, "unknown kind {kind} of frame"),
            Fault::UnknownFlags(flags) => write!(f, "unknown flags {flags:#06x} of a frame"),
            Fault::UnknownVersions { oldest, newest } if oldest == newest => {
                write!(f, "protocol version {oldest} is not supported")
            }
            Fault::UnknownVersions { oldest, newest } => {
                write!(f, "protocol versions {oldest} to {newest} are not supported")
            }
            Fault::Beyond { what, asked, limit } => write!(f, "too many {what}: {asked}, the limit is {limit}"),
            Fault::Busy { what, limit } => write!(f, "too many {what} under way, the limit is {limit}"),
            Fault::Fenced { epoch, current } => write!(f, "epoch {epoch} is over: epoch {current} has begun"),
            Fault::Unauthenticated => f.write_str("authentication failed"),
            Fault::Cancelled => f.write_str("the request was cancelled"),
            Fault::Refused(code) => write!(f, "the peer refused the request with {code}"),
        }
    }
}

impl std::error::Error for Fault {}

impl Fault {
    /// The error that says so. No `From`: with a second one for [`Error`], `?` would tell no closure's type any more, in
    /// all crates above this one.
    pub fn error(self) -> Error {
        let error = Error::new(self.code(), self.to_string());
        match self {
            Fault::UnknownVersions { .. } => {
                let version = crate::frame::VERSION;
                error.with_hint(format!("This peer speaks version {version}. Run the same release on both sides."))
            }
            Fault::Fenced { .. } => error.with_detail("Another process has taken over."),
            Fault::Unauthenticated => error.with_hint("Give both sides the same token."),
            _ => error,
        }
    }
}

impl From<&io::Error> for Fault {
    fn from(error: &io::Error) -> Fault {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Fault::Closed("the peer closed it"),
            kind => Fault::Io(kind),
        }
    }
}
