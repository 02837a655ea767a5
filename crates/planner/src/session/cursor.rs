//! Cursors: `DECLARE`, `FETCH`, `MOVE` and `CLOSE`.

use super::query::query_of;
use super::{BatchStream, Outcome, ResultColumn, Session};
use crate::statement::{Command, FetchCount, Statement};
use arrow::array::{ArrayRef, RecordBatch};
use futures::StreamExt;
use parking_lot::Mutex;
use tidepool_base::{Error, Result, SqlState};

pub(super) struct Cursor {
    pub(super) columns: Vec<ResultColumn>,
    /// Never locked: a stream alone is not `Sync`, and a session that is not could not be lent across an await.
    batches: Mutex<BatchStream>,
    /// Rows of the last batch not yet fetched.
    rest: Option<RecordBatch>,
    pub(super) hold: bool,
    /// In the order of opening.
    pub(super) number: u64,
}

impl Session {
    /// The columns of an open cursor: a portal to the protocol, which may describe it.
    pub fn cursor_columns(&self, name: &str) -> Option<&[ResultColumn]> {
        self.cursors.get(name).map(|cursor| cursor.columns.as_slice())
    }

    pub(super) fn cursor(&self, name: &str) -> Result<&Cursor> {
        self.cursors.get(name).ok_or_else(|| no_cursor(name))
    }

    pub(super) async fn declare(
        &mut self,
        name: &str,
        hold: bool,
        query: &Statement,
        parameters: &[ArrayRef],
    ) -> Result<Outcome> {
        if !hold && self.block.as_ref().is_none_or(|block| !block.explicit) {
            return Err(Error::new(
                SqlState::NO_ACTIVE_SQL_TRANSACTION,
                "DECLARE CURSOR can only be used in transaction blocks",
            ));
        }
        if self.cursors.contains_key(name) {
            return Err(Error::new(SqlState::DUPLICATE_CURSOR, format!("cursor \"{name}\" already exists")));
        }
        let (columns, batches): (_, BatchStream) = match query.command() {
            Command::Query(_) => {
                let begun = self.begin_statement(query.text(), query, parameters, true).await?;
                let rest = begun.statement;
                let (columns, _, batches) = self.start(begun.running, move || query_of(&rest), parameters).await?;
                (columns, Box::pin(batches))
            }
            Command::Locking { .. } if hold => {
                let message = "DECLARE CURSOR WITH HOLD ... FOR UPDATE/SHARE is not supported";
                return Err(Error::unsupported(message).with_detail("Holdable cursors must be READ ONLY."));
            }
            // All rows are locked at once, and not as they are fetched.
            Command::Locking { .. } => match self.select_locking(query.text(), query, parameters, None).await? {
                Outcome::Rows { columns, batches, .. } => (columns, batches),
                _ => return Err(Error::internal("a query without rows")),
            },
            _ => return Err(Error::unsupported("only queries can be declared as cursors")),
        };
        let number = self.next_cursor;
        self.next_cursor += 1;
        let cursor = Cursor { columns, batches: Mutex::new(batches), rest: None, hold, number };
        self.cursors.insert(name.to_owned(), cursor);
        Ok(Outcome::command("DECLARE CURSOR"))
    }

    pub(super) async fn fetch(&mut self, name: &str, count: FetchCount, discard: bool) -> Result<Outcome> {
        let Some(cursor) = self.cursors.get_mut(name) else { return Err(no_cursor(name)) };
        let mut left = match count {
            FetchCount::Rows(rows) => rows,
            FetchCount::All => u64::MAX,
        };
        let mut fetched = Vec::new();
        let mut rows = 0;
        while left > 0 {
            let batch = match cursor.rest.take() {
                Some(batch) => batch,
                None => match cursor.batches.get_mut().next().await {
                    Some(batch) => batch?,
                    None => break,
                },
            };
            let take = usize::try_from(left).unwrap_or(usize::MAX).min(batch.num_rows());
            if take < batch.num_rows() {
                cursor.rest = Some(batch.slice(take, batch.num_rows() - take));
            }
            rows += take as u64;
            left -= take as u64;
            if !discard {
                fetched.push(Ok(batch.slice(0, take)));
            }
        }
        if discard {
            return Ok(Outcome::command(format!("MOVE {rows}")));
        }
        Ok(Outcome::Rows {
            columns: cursor.columns.clone(),
            batches: Box::pin(futures::stream::iter(fetched)),
            tag: "FETCH",
        })
    }

    /// `None`: all.
    pub(super) fn close(&mut self, name: Option<&str>) -> Result<Outcome> {
        match name {
            Some(name) => {
                self.cursor(name)?;
                self.cursors.remove(name);
                Ok(Outcome::command("CLOSE CURSOR"))
            }
            None => {
                self.cursors.clear();
                Ok(Outcome::command("CLOSE CURSOR ALL"))
            }
        }
    }
}

fn no_cursor(name: &str) -> Error {
    Error::new(SqlState::INVALID_CURSOR_NAME, format!("cursor \"{name}\" does not exist"))
}
