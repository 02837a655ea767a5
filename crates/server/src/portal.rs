//! Prepared statements and portals.

use crate::encode::RowEncoder;
use arrow::array::RecordBatch;
use bytes::Bytes;
use std::borrow::Cow;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState};
use tidepool_heap::{ClientAccount, Held, Reservation};
use tidepool_planner::{Datum, PortableCursor, PortablePortal, PreparedStatement, ReadAhead, ResultColumn};

/// What a portal of another process takes beside its rows.
const SETTLED_BYTES: u64 = 4 << 10;

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
    /// `None`: it was another process's, and has its rows.
    pub(crate) prepared: Option<Arc<Prepared>>,
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
    Open(Box<Rows>),
    /// Gave all its rows.
    Exhausted { tag: Cow<'static, str> },
    /// Ran and had no rows to give, or failed.
    Done,
}

/// A query's rows, as far as they are not sent yet.
pub(crate) struct Rows {
    pub(crate) columns: Vec<ResultColumn>,
    pub(crate) formats: Vec<i16>,
    pub(crate) batches: ReadAhead,
    pub(crate) batch: Option<EncodedBatch>,
    pub(crate) tag: Cow<'static, str>,
    /// Once they wait for the client to ask for more.
    pub(crate) held: Option<Reservation>,
}

/// A batch whose rows are being sent.
pub(crate) struct EncodedBatch {
    pub(crate) encoder: RowEncoder,
    pub(crate) rows: RecordBatch,
}

impl Rows {
    pub(crate) fn new(
        columns: Vec<ResultColumn>,
        formats: Vec<i16>,
        batches: ReadAhead,
        tag: impl Into<Cow<'static, str>>,
    ) -> Rows {
        Rows { columns, formats, batches, batch: None, tag: tag.into(), held: None }
    }

    /// For another process. `None` while it has rows that are not read.
    fn to_portable(&self, name: &str) -> Option<PortablePortal> {
        let sent = self.batch.iter().map(|batch| batch.rows.slice(batch.encoder.sent(), batch.encoder.left()));
        let left = sent.chain(self.batches.ahead().iter().cloned()).filter(|batch| batch.num_rows() > 0).map(Ok);
        let rows = self.batches.is_settled().then(|| PortableCursor::of(name, &self.columns, left).ok()).flatten()?;
        Some(PortablePortal { rows, formats: self.formats.clone(), tag: self.tag.to_string() })
    }
}

impl Portal {
    /// Its transaction goes over to another process with it, or without it, as it has nothing to give any more.
    pub(crate) fn goes_over(&self) -> bool {
        match &self.state {
            PortalState::Ready => false,
            PortalState::Open(rows) => rows.batches.is_settled(),
            PortalState::Exhausted { .. } | PortalState::Done => true,
        }
    }

    /// `None`: it cannot be asked any more.
    pub(crate) fn to_portable(&self, name: &str) -> Option<PortablePortal> {
        match &self.state {
            PortalState::Open(rows) => rows.to_portable(name),
            // It may be asked again, and says that there are no more.
            PortalState::Exhausted { tag } => {
                let described = self.prepared.as_ref().and_then(|prepared| prepared.of.description.columns.clone());
                let columns = described.unwrap_or_default();
                let formats = expand_formats(&self.result_formats, columns.len()).ok()?;
                let rows = PortableCursor::of(name, &columns, []).ok()?;
                Some(PortablePortal { rows, formats, tag: tag.to_string() })
            }
            PortalState::Ready | PortalState::Done => None,
        }
    }

    /// One of another process. XX001 where it is damaged, 53200 where there is no room for it.
    pub(crate) fn of_portable(portable: PortablePortal, account: &Arc<ClientAccount>) -> Result<Portal> {
        let (columns, batches) = portable.rows.read(0)?;
        if portable.formats.len() != columns.len() {
            return Err(Error::corrupted("a portal that was passed on is damaged: its formats are not its columns'"));
        }
        let held = account.reserve(Held::Sessions, SETTLED_BYTES + batches.bytes_held() as u64)?;
        let mut rows = Rows::new(columns, portable.formats.clone(), batches, portable.tag);
        rows.held = Some(held);
        Ok(Portal {
            prepared: None,
            parameters: Vec::new(),
            parameter_formats: Vec::new(),
            values: Vec::new(),
            result_formats: portable.formats,
            state: PortalState::Open(Box::new(rows)),
            _held: [None, None],
        })
    }
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
