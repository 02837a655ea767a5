//! Prepared statements and portals.

use crate::encode::RowEncoder;
use arrow::array::RecordBatch;
use bytes::Bytes;
use futures::StreamExt;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState};
use tidepool_heap::{ClientAccount, Held, Reservation};
use tidepool_planner::{BatchStream, Datum, PortableCursor, PortablePortal, PreparedStatement, ResultColumn};

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
    batches: BatchStream,
    /// Batches that were read ahead of what the client asked for.
    ahead: VecDeque<RecordBatch>,
    /// There are no others behind those.
    is_settled: bool,
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
        batches: BatchStream,
        tag: impl Into<Cow<'static, str>>,
    ) -> Rows {
        let (ahead, tag) = (VecDeque::new(), tag.into());
        Rows { columns, formats, batches, ahead, is_settled: false, batch: None, tag, held: None }
    }

    /// The next batch. Loses nothing when dropped.
    pub(crate) async fn next(&mut self) -> Option<Result<RecordBatch>> {
        match self.ahead.pop_front() {
            Some(batch) => Some(Ok(batch)),
            None if self.is_settled => None,
            None => self.batches.next().await,
        }
    }

    /// Reads what is left, until that is more than `bytes_max`.
    pub(crate) async fn settle(&mut self, bytes_max: usize) {
        let mut bytes: usize = self.ahead.iter().map(RecordBatch::get_array_memory_size).sum();
        while !self.is_settled && bytes <= bytes_max {
            match self.batches.next().await {
                Some(Ok(batch)) => {
                    bytes += batch.get_array_memory_size();
                    self.ahead.push_back(batch);
                }
                // For when the client asks for it.
                Some(Err(error)) => {
                    self.batches = Box::pin(futures::stream::iter([Err(error)]));
                    break;
                }
                None => self.is_settled = true,
            }
        }
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// For another process. `None` while it has rows that are not read.
    fn to_portable(&self, name: &str) -> Option<PortablePortal> {
        let sent = self.batch.iter().map(|batch| batch.rows.slice(batch.encoder.sent(), batch.encoder.left()));
        let left = sent.chain(self.ahead.iter().cloned()).filter(|batch| batch.num_rows() > 0).map(Ok);
        let rows = self.is_settled.then(|| PortableCursor::of(name, &self.columns, left).ok()).flatten()?;
        Some(PortablePortal { rows, formats: self.formats.clone(), tag: self.tag.to_string() })
    }
}

impl Portal {
    /// Its transaction goes over to another process with it, or without it, as it has nothing to give any more.
    pub(crate) fn goes_over(&self) -> bool {
        match &self.state {
            PortalState::Ready => false,
            PortalState::Open(rows) => rows.is_settled(),
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
        let (columns, ahead) = portable.rows.read(0)?;
        if portable.formats.len() != columns.len() {
            return Err(Error::corrupted("a portal that was passed on is damaged: its formats are not its columns'"));
        }
        let bytes: usize = ahead.iter().map(RecordBatch::get_array_memory_size).sum();
        let held = account.reserve(Held::Sessions, SETTLED_BYTES + bytes as u64)?;
        let nothing = Box::pin(futures::stream::empty());
        let rows = Rows {
            ahead,
            is_settled: true,
            held: Some(held),
            ..Rows::new(columns, portable.formats.clone(), nothing, portable.tag)
        };
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
