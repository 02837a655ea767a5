//! Cursors: `DECLARE`, `FETCH`, `MOVE` and `CLOSE`.

use super::change::part;
use super::query::query_of;
use super::read_ahead::ReadAhead;
use super::{BatchStream, Outcome, ResultColumn, Session};
use crate::facts::SessionFacts;
use crate::locking;
use crate::names::OutputNames;
use crate::portable::{PortableBlockCursor, PortableCursor};
use crate::query;
use crate::statement::current::cursor_of;
use crate::statement::{Command, FetchCount, Statement};
use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use std::sync::Arc;
use tidepool_base::{Error, Result, RowId, SqlState, TableId};
use tidepool_heap::Reservation;
use tidepool_table::TableDef;

pub(super) struct Cursor {
    pub(super) columns: Vec<ResultColumn>,
    /// Of the rows that are not fetched yet.
    batches: ReadAhead,
    pub(super) hold: bool,
    /// In the order of opening.
    pub(super) number: u64,
    pub(super) place: Place,
    _held: Option<Reservation>,
}

/// What a cursor takes beside its rows: its plan, its heap, and what carries its batches.
const CURSOR_BYTES: u64 = 64 << 10;
/// As [`CURSOR_BYTES`], of one that has its rows by itself.
const SETTLED_BYTES: u64 = 4 << 10;

/// What of a cursor's rows is kept by itself once its transaction is committed. A cursor with more reads on as it is fetched, and has a heap and a
/// snapshot until then.
const HELD_BYTES_MAX: usize = 4 << 20;

/// Where a cursor is, for `WHERE CURRENT OF`.
#[derive(Clone)]
pub(super) struct Place {
    cursor: String,
    /// Tables whose rows' ids come before the batches' outputs: those that it locks rows of, or the one that it scans.
    tables: Vec<TableId>,
    locks: bool,
    /// From a transaction that is over.
    pub(super) is_held: bool,
    /// `None` before the first row and after the last.
    row: Option<Vec<RowId>>,
}

impl Place {
    /// The row of a table that the cursor is at. 24000 if there is none, or if it cannot be told.
    pub fn row_of(&self, def: &TableDef) -> Result<RowId> {
        let (cursor, table) = (&self.cursor, &def.name);
        let refused = |message: String| Error::new(SqlState::INVALID_CURSOR_STATE, message);
        if self.is_held {
            return Err(refused(format!("cursor \"{cursor}\" is held from a previous transaction")));
        }
        let mut places = (0..self.tables.len()).filter(|place| self.tables[*place] == def.id);
        let place = match (places.next(), places.next(), self.locks) {
            (Some(place), None, _) => place,
            (None, _, true) => {
                let what = "does not have a FOR UPDATE/SHARE reference to table";
                return Err(refused(format!("cursor \"{cursor}\" {what} \"{table}\"")));
            }
            (Some(_), Some(_), true) => {
                let what = "has multiple FOR UPDATE/SHARE references to table";
                return Err(refused(format!("cursor \"{cursor}\" {what} \"{table}\"")));
            }
            _ => {
                return Err(refused(format!(
                    "cursor \"{cursor}\" is not a simply updatable scan of table \"{table}\""
                )));
            }
        };
        match &self.row {
            Some(row) => Ok(row[place]),
            None => Err(refused(format!("cursor \"{cursor}\" is not positioned on a row"))),
        }
    }
}

impl Cursor {
    /// What the rows that were read take in another process, about.
    fn bytes(&self) -> usize {
        let column = |column: &ArrayRef| column.to_data().get_slice_memory_size().unwrap_or(usize::MAX);
        self.batches.ahead().iter().flat_map(RecordBatch::columns).map(column).fold(0, usize::saturating_add)
    }

    /// `None` while it has rows that are not read. `has_ids`: with the ids of rows that it can be at.
    fn to_portable(&self, has_ids: bool) -> Result<Option<PortableCursor>> {
        if !self.batches.is_settled() {
            return Ok(None);
        }
        let shown = if has_ids { 0 } else { self.place.tables.len() };
        let batches = self.batches.ahead().iter().map(|batch| part(batch, shown..batch.num_columns()));
        PortableCursor::of(&self.place.cursor, &self.columns, batches).map(Some)
    }
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
        let held = self.hold(CURSOR_BYTES + query.bytes())?;
        let mut tables = Vec::new();
        let (columns, batches): (_, BatchStream) = match query.command() {
            Command::Query(_) => {
                let begun = self.begin_statement(query.text(), query, parameters, true).await?;
                let rest = begun.statement;
                match self.plan_updatable(&begun.running.facts, &rest, parameters).await? {
                    Some((locking, planned)) => {
                        tables = locking.targets.iter().map(|target| target.version.def.id).collect();
                        let columns = locking.columns(&planned.schema);
                        (columns, Box::pin(self.run(begun.running, planned)?))
                    }
                    None => {
                        let query = move || query_of(&rest);
                        let (columns, _, batches) = self.start(begun.running, query, parameters, None).await?;
                        (columns, Box::pin(batches))
                    }
                }
            }
            Command::Locking { .. } if hold => {
                let message = "DECLARE CURSOR WITH HOLD ... FOR UPDATE/SHARE is not supported";
                return Err(Error::unsupported(message).with_detail("Holdable cursors must be READ ONLY."));
            }
            // All rows are locked at once, and not as they are fetched.
            Command::Locking { .. } => {
                match self.select_locking(query.text(), query, parameters, None, Some(&mut tables)).await? {
                    Outcome::Rows { columns, batches, .. } => (columns, batches),
                    _ => return Err(Error::internal("a query without rows")),
                }
            }
            _ => return Err(Error::unsupported("only queries can be declared as cursors")),
        };
        let number = self.next_cursor;
        self.next_cursor += 1;
        let locks = matches!(query.command(), Command::Locking { .. });
        let place = Place { cursor: name.to_owned(), tables, locks, is_held: false, row: None };
        let batches = ReadAhead::new(batches);
        let cursor = Cursor { columns, batches, hold, number, place, _held: held };
        self.cursors.insert(name.to_owned(), cursor);
        // Its transaction was the statement.
        if self.block.is_none() {
            self.keep_held_cursors().await.inspect_err(|_| drop(self.cursors.remove(name)))?;
        }
        Ok(Outcome::command("DECLARE CURSOR"))
    }

    /// A query with its rows' ids, if a cursor could change them.
    async fn plan_updatable(
        &self,
        facts: &Arc<SessionFacts>,
        statement: &Statement,
        parameters: &[ArrayRef],
    ) -> Result<Option<(locking::Planned, query::Planned)>> {
        let (facts, statement, parameters) = (facts.clone(), statement.clone(), parameters.to_vec());
        let text = statement.text().to_owned();
        let planning = self.plan_apart(&text, async move {
            let Command::Query(query) = statement.command() else { return Ok(None) };
            let Some(reading) = locking::updatable(&facts, query) else { return Ok(None) };
            let state = facts.planner.state(&facts);
            // What is wrong with it is told when it is planned as it stands.
            let Ok(locking) = locking::plan(&state, &facts, &reading, &parameters, false) else { return Ok(None) };
            let Ok(plan) = query::physical_plan(&state, &locking.plan).await else {
                return Ok(None);
            };
            Ok(Some((locking, query::planned(state, plan, &OutputNames::none()))))
        });
        planning.await
    }

    /// Where the cursor is that a statement names after `WHERE CURRENT OF`.
    pub(super) fn current_of(&self, command: &Command) -> Result<Option<Place>> {
        let condition = match command {
            Command::Update { update, .. } => update.selection.as_ref(),
            Command::Delete { delete, .. } => delete.selection.as_ref(),
            _ => None,
        };
        let Some(name) = cursor_of(condition) else { return Ok(None) };
        Ok(Some(self.cursor(name)?.place.clone()))
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
            let batch = match cursor.batches.next().await {
                Some(batch) => batch?,
                None => break,
            };
            let take = usize::try_from(left).unwrap_or(usize::MAX).min(batch.num_rows());
            if take < batch.num_rows() {
                cursor.batches.put_back(batch.slice(take, batch.num_rows() - take));
            }
            rows += take as u64;
            left -= take as u64;
            let ids = cursor.place.tables.len();
            if ids > 0 && take > 0 {
                cursor.place.row = Some(ids_of(&batch, ids, take - 1)?);
            }
            if !discard {
                fetched.push(Ok(part(&batch.slice(0, take), ids..batch.num_columns())?));
            }
        }
        if left > 0 {
            cursor.place.row = None;
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

    /// Reads what cursors have left, so that they can go over to another process: at most `bytes_max` of each.
    pub async fn settle_cursors(&mut self, bytes_max: usize) {
        for cursor in self.cursors.values_mut() {
            // An error is for who fetches it.
            _ = cursor.batches.settle(bytes_max).await;
        }
    }

    /// Reads what cursors `WITH HOLD` of the block that ends have left, as far as it is not much: they outlive the statements that they come from. The
    /// error of such a cursor's query, which is its transaction's.
    pub(super) async fn keep_held_cursors(&mut self) -> Result<()> {
        let is_kept = |cursor: &Cursor| cursor.hold && !cursor.place.is_held;
        let names: Vec<String> =
            self.cursors.iter().filter(|(_, cursor)| is_kept(cursor)).map(|(name, _)| name.clone()).collect();
        for name in names {
            let Some(cursor) = self.cursors.get_mut(&name) else { continue };
            cursor.batches.settle(HELD_BYTES_MAX).await?;
            // A row that it is at is no row to change any more, so its rows need no ids.
            let Some(portable) = cursor.to_portable(false)? else { continue };
            // As long as there is no memory for them the rows stay where the query has them.
            if let Ok(kept) = self.opened(&portable, 0) {
                self.cursors.insert(name, kept);
            }
        }
        Ok(())
    }

    /// Cursors that outlive their transactions, for another process, with rows of at most `bytes_max`. `ended`: as they are once the block that the
    /// session is in is committed. `None` while one has more rows, or some that are not read.
    pub(super) fn portable_cursors(&self, ended: bool, bytes_max: usize) -> Option<Vec<PortableCursor>> {
        // Those of a transaction that is open end with it.
        let stays = |cursor: &&Cursor| cursor.hold && (ended || self.block.is_none() || cursor.place.is_held);
        let mut cursors: Vec<&Cursor> = self.cursors.values().filter(stays).collect();
        if cursors.iter().map(|cursor| cursor.bytes()).fold(0, usize::saturating_add) > bytes_max {
            return None;
        }
        cursors.sort_by_key(|cursor| cursor.number);
        // Without the ids of rows: they can be at none any more.
        cursors.into_iter().map(|cursor| cursor.to_portable(false).ok().flatten()).collect()
    }

    /// Whether a cursor of the block that the session is in has rows that are not read.
    pub(super) fn has_unsettled_cursors(&self) -> bool {
        self.cursors.values().any(|cursor| !cursor.place.is_held && !cursor.batches.is_settled())
    }

    /// Cursors of the block that the session is in, for another process that goes on with it. `None` while one has rows that are not read.
    pub(super) fn block_cursors(&self) -> Option<Vec<PortableBlockCursor>> {
        let block = self.block.as_ref()?;
        let mut cursors: Vec<&Cursor> = self.cursors.values().filter(|cursor| !cursor.place.is_held).collect();
        cursors.sort_by_key(|cursor| cursor.number);
        let portable = |cursor: &Cursor| {
            let Place { tables, locks, row, .. } = &cursor.place;
            let savepoints = block.savepoints.iter().filter(|savepoint| savepoint.next_cursor() <= cursor.number);
            Some(PortableBlockCursor {
                cursor: cursor.to_portable(true).ok().flatten()?,
                tables: tables.iter().map(|table| table.0).collect(),
                locks: *locks,
                hold: cursor.hold,
                row: row.as_ref().map(|row| row.iter().map(|id| id.0).collect()),
                savepoints: savepoints.count() as u32,
            })
        };
        cursors.into_iter().map(portable).collect()
    }

    /// Opens a cursor of a block of another process, where that was. `own`: a row of a table that the block has made, as it is here, by its id there.
    pub(super) fn open_block_cursor(
        &mut self,
        portable: &PortableBlockCursor,
        own: impl Fn(TableId, RowId) -> RowId,
    ) -> Result<()> {
        let tables: Vec<TableId> = portable.tables.iter().map(|table| TableId(*table)).collect();
        let mut cursor = self.opened(&portable.cursor, tables.len())?;
        for batch in cursor.batches.ahead_mut() {
            let mut columns = batch.columns().to_vec();
            for (column, table) in columns.iter_mut().zip(&tables) {
                let ids = column.as_primitive_opt::<Int64Type>().ok_or_else(|| damaged("its rows have no ids"))?;
                *column = Arc::new(ids.unary::<_, Int64Type>(|id| own(*table, RowId(id as u64)).0 as i64));
            }
            *batch = RecordBatch::try_new(batch.schema(), columns).map_err(crate::errors::from_arrow)?;
        }
        let row = match &portable.row {
            Some(row) if row.len() != tables.len() => return Err(damaged("it is at rows of other tables")),
            Some(row) => Some(tables.iter().zip(row).map(|(table, id)| own(*table, RowId(*id))).collect()),
            None => None,
        };
        cursor.hold = portable.hold;
        cursor.place =
            Place { cursor: portable.cursor.name.clone(), tables, locks: portable.locks, is_held: false, row };
        self.cursors.insert(portable.cursor.name.clone(), cursor);
        Ok(())
    }

    /// Opens a cursor of another process, where that was.
    pub(super) fn open_portable_cursor(&mut self, portable: &PortableCursor) -> Result<()> {
        let cursor = self.opened(portable, 0)?;
        self.cursors.insert(portable.name.clone(), cursor);
        Ok(())
    }

    /// A cursor of another process, from a transaction that is over. Its rows begin with so many ids.
    fn opened(&mut self, portable: &PortableCursor, ids: usize) -> Result<Cursor> {
        let (columns, batches) = portable.read(ids)?;
        let held = self.hold(SETTLED_BYTES + batches.bytes_held() as u64)?;
        let place = Place { cursor: portable.name.clone(), tables: Vec::new(), locks: false, is_held: true, row: None };
        let cursor = Cursor { columns, batches, hold: true, number: self.next_cursor, place, _held: held };
        self.next_cursor += 1;
        Ok(cursor)
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

pub(super) fn damaged(what: impl std::fmt::Display) -> Error {
    Error::corrupted(format!("a result that was passed on is damaged: {what}"))
}

/// The ids in a row's first columns.
fn ids_of(batch: &RecordBatch, columns: usize, row: usize) -> Result<Vec<RowId>> {
    let id = |column: usize| {
        let ids = batch.column(column).as_primitive_opt::<Int64Type>();
        ids.map(|ids| RowId(ids.value(row) as u64)).ok_or_else(|| Error::internal("a cursor's rows have no ids"))
    };
    (0..columns).map(id).collect()
}

fn no_cursor(name: &str) -> Error {
    Error::new(SqlState::INVALID_CURSOR_NAME, format!("cursor \"{name}\" does not exist"))
}
