//! Sessions that another process goes on with ([`PortableSession`]).

use super::cursor::damaged;
use super::prepared::Prepared;
use super::read_ahead::ReadAhead;
use super::transaction::Block;
use super::{ResultColumn, Session, first_settings};
use crate::advisory::{Key, Mode};
use crate::catalog::SessionSequences;
use crate::planner::Planner;
use crate::portable::{
    PortableBlock, PortableColumn, PortableCursor, PortableKey, PortableLock, PortableSession, PortableStatement,
    PortableTransaction,
};
use crate::statement;
use arrow::array::RecordBatch;
use arrow_ipc::reader::StreamReader;
use arrow_ipc::writer::StreamWriter;
use chrono::DateTime;
use std::collections::VecDeque;
use std::sync::Arc;
use tidepool_base::{Error, Result, RoleId, SqlState};
use tidepool_heap::ClientAccount;

impl PortableCursor {
    /// Of the rows that a result has left. `batches` may have other columns before those of the result.
    pub fn of(
        name: &str,
        columns: &[ResultColumn],
        batches: impl IntoIterator<Item = Result<RecordBatch>>,
    ) -> Result<PortableCursor> {
        let column = |column: &ResultColumn| {
            Ok(PortableColumn {
                name: column.name.clone(),
                sql_type: serde_json::to_string(&column.sql_type)
                    .map_err(|error| Error::internal(error.to_string()))?,
                type_oid: column.type_oid,
                type_modifier: column.type_modifier,
                table_oid: column.table_oid,
                attribute: column.attribute,
            })
        };
        let mut writer = None;
        for batch in batches {
            let batch = batch?;
            let writer = match &mut writer {
                Some(writer) => writer,
                None => {
                    let begun =
                        StreamWriter::try_new(Vec::new(), &batch.schema()).map_err(crate::errors::from_arrow)?;
                    writer.insert(begun)
                }
            };
            writer.write(&batch).map_err(crate::errors::from_arrow)?;
        }
        // Which also says that these are all.
        let rows = writer.map_or(Ok(Vec::new()), StreamWriter::into_inner).map_err(crate::errors::from_arrow)?;
        let columns = columns.iter().map(column).collect::<Result<_>>()?;
        Ok(PortableCursor { name: name.to_owned(), columns, rows })
    }

    /// The result's columns, and its rows, which have so many columns before those. XX001 where it is damaged.
    pub fn read(&self, before: usize) -> Result<(Vec<ResultColumn>, ReadAhead)> {
        let column = |column: &PortableColumn| {
            Ok(ResultColumn {
                name: column.name.clone(),
                sql_type: serde_json::from_str(&column.sql_type).map_err(damaged)?,
                type_oid: column.type_oid,
                type_modifier: column.type_modifier,
                table_oid: column.table_oid,
                attribute: column.attribute,
            })
        };
        let columns = self.columns.iter().map(column).collect::<Result<Vec<_>>>()?;
        let mut rest = VecDeque::new();
        if !self.rows.is_empty() {
            let reader = StreamReader::try_new(self.rows.as_slice(), None).map_err(damaged)?;
            for batch in reader {
                let batch = batch.map_err(damaged)?;
                if batch.num_columns() != before + columns.len() {
                    return Err(damaged("its rows have other columns"));
                }
                rest.push_back(batch);
            }
        }
        Ok((columns, ReadAhead::of(rest)))
    }
}

impl Session {
    /// Rises whenever what it knows of sequences may have changed, which statements do that go to their rows by themselves. All else that goes over
    /// stays as it was while no other statements run.
    pub fn sequences_revision(&self) -> u64 {
        self.sequences.lock().revision()
    }

    /// The session as another process can go on with it, but for what is its connection's. `None` while something of it cannot go over:
    /// temporary tables, and cursors of earlier transactions that have rows that are not read ([`settle_cursors`](Session::settle_cursors)), or more than
    /// `bytes_max` of them. A transaction in which something was done is lost by it.
    pub fn to_portable(&mut self, bytes_max: usize) -> Option<PortableSession> {
        let block = match &self.block {
            Some(block) => Some(block.to_portable(&self.settings)?),
            None => None,
        };
        self.portable_with(block, false, bytes_max)
    }

    /// What was done in the block that the session is in, for another process to do again. `None`: that is lost with it.
    pub fn portable_transaction(&self) -> Option<PortableTransaction> {
        if !self.transaction_goes_over() {
            return None;
        }
        let cursors = self.block_cursors()?;
        let transaction = self.block.as_ref()?.to_steps(&self.settings).unwrap_or_else(|error| {
            tracing::warn!("a transaction cannot go over to another host: {error}");
            None
        })?;
        Some(PortableTransaction { cursors, locks: self.portable_locks(true), ..transaction })
    }

    /// Advisory locks: of the transaction, or of the session beyond it.
    fn portable_locks(&self, of_transaction: bool) -> Vec<PortableLock> {
        let held = self.planner.advisory.held_by(self.shared.id, of_transaction);
        let lock = |(key, mode, count)| PortableLock {
            key: match key {
                Key::One(key) => PortableKey::One(key),
                Key::Two(first, second) => PortableKey::Two(first, second),
            },
            is_exclusive: mode == Mode::Exclusive,
            count,
        };
        held.into_iter().map(lock).collect()
    }

    /// Takes advisory locks that the session had at another process. 55P03 where another session has one.
    pub(super) fn take_locks_again(&self, locks: &[PortableLock], of_transaction: bool) -> Result<()> {
        for lock in locks {
            let key = match lock.key {
                PortableKey::One(key) => Key::One(key),
                PortableKey::Two(first, second) => Key::Two(first, second),
            };
            let mode = if lock.is_exclusive { Mode::Exclusive } else { Mode::Shared };
            for _ in 0..lock.count {
                if !self.planner.advisory.try_lock(self.shared.id, key, mode, of_transaction)? {
                    let message = "another session of this server holds an advisory lock of a session that goes over";
                    return Err(Error::new(SqlState::LOCK_NOT_AVAILABLE, message));
                }
            }
        }
        Ok(())
    }

    /// Whether what was done in the block can be done again by another process.
    pub fn transaction_goes_over(&self) -> bool {
        self.block.as_ref().is_some_and(Block::is_explicit_and_whole) && !self.has_unsettled_cursors()
    }

    /// As `to_portable`, as it is once the transaction that it is in is committed. `None` also where that has settings or temporary tables of its own, of which some
    /// stay.
    pub fn to_portable_committed(&mut self, bytes_max: usize) -> Option<PortableSession> {
        if self.block_leaves_session() { self.portable_with(None, true, bytes_max) } else { None }
    }

    /// `ended`: as it is once the block that it is in is committed.
    fn portable_with(
        &mut self,
        block: Option<PortableBlock>,
        ended: bool,
        bytes_max: usize,
    ) -> Option<PortableSession> {
        self.take_requested_settings();
        // Tables of its own would not be there.
        if !self.notices.is_empty() || self.temporary.is_used() {
            return None;
        }
        let cursors = self.portable_cursors(ended, bytes_max)?;
        // A transaction that is rolled back takes what it set with it.
        let settings = self.block.as_ref().map_or(&self.settings, Block::settings_before);
        let (shared, state) = (&self.shared, self.planner.database().state());
        let (values, defaults) = settings.to_portable(&first_settings(&self.planner, &shared.user));
        let prepared = |(name, prepared): (&String, &Prepared)| PortableStatement {
            name: name.clone(),
            text: prepared.statement.text().to_owned(),
            types: prepared.types.clone(),
        };
        let (sequences, latest) = self.sequences.lock().to_portable(&state.catalog);
        Some(PortableSession {
            user: shared.user.clone(),
            role: shared.role.0,
            id: shared.id,
            start_us: shared.start.timestamp_micros(),
            values,
            defaults,
            custom: settings.custom(),
            told: self.settings_reported.told(),
            prepared: self.prepared.iter().map(prepared).collect(),
            sequences,
            latest_sequence: latest.map(|id| id.0),
            locks: self.portable_locks(false),
            block,
            cursors,
            ..PortableSession::default()
        })
    }
}

impl Planner {
    /// Goes on with a session of another process. An error where that is not the same session here: 55P03 where another one has an advisory
    /// lock that it holds, and what settings and statements say.
    pub fn go_on(self: &Arc<Self>, portable: &PortableSession, account: Arc<ClientAccount>) -> Result<Session> {
        let mut settings = first_settings(self, &portable.user);
        let (values, defaults) = (&portable.values, &portable.defaults);
        settings.take_portable((values, defaults), &portable.custom, self.database())?;
        let told = Arc::new(settings.as_told(&portable.told));
        let start = DateTime::from_timestamp_micros(portable.start_us).unwrap_or_default();
        let user = (portable.user.as_str(), RoleId(portable.role));
        let mut session =
            self.begin_session(Some(portable.id), |id| Session::with(self.clone(), id, user, start, settings));
        session.settings_reported = told;
        session.set_account(account);
        session.take_locks_again(&portable.locks, false)?;
        for prepared in &portable.prepared {
            let mut statements =
                statement::parse(&prepared.text)?.into_iter().filter(|statement| !statement.is_empty());
            let (Some(statement), None) = (statements.next(), statements.next()) else {
                return Err(Error::corrupted("a prepared statement that was passed on is not one statement"));
            };
            let bytes = statement.bytes() + (prepared.name.len() + 4 * prepared.types.len()) as u64;
            let held = session.hold(bytes)?.map(Arc::new);
            let known = Prepared { statement, types: prepared.types.clone(), _held: held };
            session.prepared.insert(prepared.name.clone(), known);
        }
        let catalog = &self.database().state().catalog;
        let sequences = SessionSequences::of_portable(&portable.sequences, portable.latest_sequence, catalog);
        *session.sequences.lock() = sequences;
        let settings = session.settings.clone();
        session.hold_settings(&settings)?;
        for cursor in &portable.cursors {
            session.open_portable_cursor(cursor)?;
        }
        if let Some(block) = &portable.block {
            session.go_on_with_block(block, portable.transaction.as_ref())?;
        }
        session.show_status();
        Ok(session)
    }
}
