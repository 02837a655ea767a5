//! Prepared statements and portals.

use crate::encode::RowEncoder;
use bytes::Bytes;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState};
use tidepool_heap::Reservation;
use tidepool_planner::{BatchStream, Datum, PreparedStatement, ResultColumn};

/// A statement that a client prepared by a Parse message.
pub(crate) struct Prepared {
    pub(crate) name: String,
    pub(crate) of: Arc<PreparedStatement>,
    /// Types of parameters, as the client gave them.
    pub(crate) oids: Vec<u32>,
    /// `None` for a small one without a name.
    pub(crate) _held: Option<Reservation>,
}

/// A prepared statement with its parameters.
pub(crate) struct Portal {
    pub(crate) prepared: Arc<Prepared>,
    /// As they came, to be decoded where the statement is planned, and their formats.
    pub(crate) parameters: Vec<Option<Bytes>>,
    pub(crate) parameter_formats: Vec<i16>,
    /// Of a statement that goes to its rows by itself: the same, decoded.
    pub(crate) values: Vec<Datum<'static>>,
    /// As the client gave them: none, one for all, or one a column.
    pub(crate) result_formats: Vec<i16>,
    pub(crate) state: PortalState,
    /// What it is charged with, and the message that its values are in.
    pub(crate) _held: [Option<Reservation>; 2],
}

pub(crate) enum PortalState {
    /// Not run yet.
    Ready,
    /// Runs, or waits for the client to ask for more rows.
    Open(Rows),
    /// Gave all its rows.
    Exhausted { tag: &'static str },
    /// Ran and had no rows to give, or failed.
    Done,
}

/// A query's rows, as far as they are not sent yet.
pub(crate) struct Rows {
    pub(crate) columns: Vec<ResultColumn>,
    pub(crate) formats: Vec<i16>,
    pub(crate) batches: BatchStream,
    pub(crate) batch: Option<RowEncoder>,
    pub(crate) tag: &'static str,
    /// Once they wait for the client to ask for more.
    pub(crate) held: Option<Reservation>,
}

/// One format for each of `columns` columns.
pub(crate) fn expand_formats(formats: &[i16], columns: usize) -> Result<Vec<i16>> {
    match formats {
        [] => Ok(vec![0; columns]),
        [one] => Ok(vec![*one; columns]),
        all if all.len() == columns => Ok(all.to_vec()),
        all => Err(Error::new(
            SqlState::PROTOCOL_VIOLATION,
            format!("bind message has {} result formats but query has {columns} columns", all.len()),
        )),
    }
}
