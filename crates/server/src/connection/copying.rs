//! `COPY` from a client and to it.

use super::{Connection, Trouble, attended};
use crate::encode::FLUSH_BYTES;
use crate::protocol::backend;
use crate::protocol::frontend::Message;
use crate::startup::Failure;
use futures::StreamExt;
use std::pin::pin;
use std::sync::atomic::Ordering;
use tidepool_base::{Error, SqlState};
use tidepool_planner::{CopyIn, CopyOut};

/// Before the row in a CopyData message.
const COPY_HEAD_BYTES: usize = 5;

impl Connection {
    pub(super) async fn copy_in(&mut self, mut copy: CopyIn) -> Result<u64, Trouble> {
        self.send_notices();
        backend::copy_in_response(&mut self.wire.output, copy.columns, copy.binary);
        self.wire.flush().await?;
        loop {
            let message = match self.wire.message()? {
                Some(message) => message,
                None => {
                    // Not `next_message`: a stopping server lets a COPY end within the time of grace.
                    self.wire.fill().await?;
                    continue;
                }
            };
            match message {
                Message::CopyData(data) => {
                    let charge = self.wire.take_charge();
                    attended(&mut self.wire, &self.cancel, pin!(copy.write(data, charge))).await??;
                }
                Message::CopyDone => return Ok(attended(&mut self.wire, &self.cancel, pin!(copy.finish())).await??),
                Message::CopyFail(reason) => {
                    drop(copy);
                    let message = format!("COPY from stdin failed: {reason}");
                    return Err(Error::new(SqlState::QUERY_CANCELED, message).into());
                }
                Message::Flush | Message::Sync => (),
                Message::Terminate => return Err(Failure::Gone.into()),
                Message::Malformed { error, .. } => return Err(error.into()),
                _ => {
                    let message = "unexpected message type during COPY from stdin";
                    return Err(Error::new(SqlState::PROTOCOL_VIOLATION, message).into());
                }
            }
        }
    }

    /// Each row in a message of its own, as PostgreSQL sends them: some clients count on it.
    pub(super) async fn copy_out(&mut self, mut copy: CopyOut) -> Result<u64, Trouble> {
        self.send_notices();
        backend::copy_out_response(&mut self.wire.output, copy.columns, copy.binary);
        while let Some(rows) = attended(&mut self.wire, &self.cancel, pin!(copy.data.next())).await? {
            let rows = rows?;
            let mut start = 0;
            for end in rows.ends {
                self.wire.reserve_output(end - start + COPY_HEAD_BYTES)?;
                backend::copy_data(&mut self.wire.output, &rows.bytes[start..end]);
                start = end;
                if self.wire.output.len() >= FLUSH_BYTES {
                    self.wire.flush().await?;
                }
            }
        }
        backend::copy_done(&mut self.wire.output);
        Ok(copy.rows.load(Ordering::Relaxed))
    }
}
