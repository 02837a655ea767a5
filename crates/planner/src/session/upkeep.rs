//! Verification and backups.

use super::{Outcome, ResultColumn, Session};
use crate::execute::joined;
use crate::names::OutputNames;
use crate::statement::SwitchoverArguments;
use datafusion::arrow::array::{ArrayRef, BooleanArray, Int64Array, RecordBatch, StringViewArray};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use std::path::PathBuf;
use std::sync::Arc;
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_database::SwitchoverOptions;

fn check_schema() -> SchemaRef {
    let text = |name: &str| Field::new(name, DataType::Utf8View, true);
    Arc::new(Schema::new(vec![text("object"), text("looked_at"), text("fault")]))
}

fn backup_schema() -> SchemaRef {
    let number = |name: &str| Field::new(name, DataType::Int64, true);
    Arc::new(Schema::new(vec![number("tables"), number("files"), number("bytes")]))
}

fn switchover_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("host", DataType::Utf8View, true),
        Field::new("lag_bytes", DataType::Int64, true),
        Field::new("is_done", DataType::Boolean, true),
    ]))
}

fn pool_yield_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("wanted_bytes", DataType::Int64, true),
        Field::new("free_bytes", DataType::Int64, true),
        Field::new("is_done", DataType::Boolean, true),
    ]))
}

/// The columns of `CALL tidepool.pool_yield`.
pub(crate) fn pool_yield_columns() -> Vec<ResultColumn> {
    crate::query::columns(&pool_yield_schema(), &OutputNames::none())
}

/// The columns of `CALL tidepool.switchover`.
pub(crate) fn switchover_columns() -> Vec<ResultColumn> {
    crate::query::columns(&switchover_schema(), &OutputNames::none())
}

/// The columns of `CALL tidepool.check`.
pub(crate) fn check_columns() -> Vec<ResultColumn> {
    crate::query::columns(&check_schema(), &OutputNames::none())
}

/// The columns of `CALL tidepool.backup`.
pub(crate) fn backup_columns() -> Vec<ResultColumn> {
    crate::query::columns(&backup_schema(), &OutputNames::none())
}

fn rows(schema: SchemaRef, columns: Vec<ResultColumn>, arrays: Vec<ArrayRef>) -> Result<Outcome> {
    let batch = RecordBatch::try_new(schema, arrays)
        .map_err(|error| Error::internal(format!("a report cannot be shown: {error}")))?;
    Ok(Outcome::Rows { columns, batches: Box::pin(futures::stream::iter([Ok(batch)])), tag: "CALL" })
}

impl Session {
    /// A row for each fault, or one without a fault for what is sound.
    pub(super) async fn check_database(&self, text: &str) -> Result<Outcome> {
        let interrupt = self.running(text).interrupt;
        let database = self.planner.database().clone();
        let checked = self.planner.workers().spawn_blocking(move || database.check(&|| interrupt.check()));
        let mut all = Vec::new();
        for checked in joined(checked.await)? {
            let row = |fault| (checked.object.clone(), checked.looked_at.clone(), fault);
            match checked.faults.is_empty() {
                true => all.push(row(None)),
                false => all.extend(checked.faults.iter().map(|fault| row(Some(fault.clone())))),
            }
        }
        let arrays: Vec<ArrayRef> = vec![
            Arc::new(StringViewArray::from_iter(all.iter().map(|(object, ..)| Some(object)))),
            Arc::new(StringViewArray::from_iter(all.iter().map(|(_, looked_at, _)| Some(looked_at)))),
            Arc::new(StringViewArray::from_iter(all.iter().map(|(.., fault)| fault.as_ref()))),
        ];
        rows(check_schema(), check_columns(), arrays)
    }

    /// Has a standby take over from this server.
    pub(super) async fn switch_over(&self, arguments: &SwitchoverArguments) -> Result<Outcome> {
        self.refuse_in_any_block("CALL tidepool.switchover")?;
        let lag_max = arguments.lag_max.parse::<ByteSize>()?.0;
        let options =
            SwitchoverOptions { lag_max, is_trial: arguments.is_trial, ends: arguments.ends, caller: Some(self.id()) };
        let (database, host) = (self.planner.database().clone(), arguments.host.clone());
        let switching = self.planner.workers().spawn_blocking(move || database.switch_over(&host, &options));
        let switched = joined(switching.await)?;
        let arrays: Vec<ArrayRef> = vec![
            Arc::new(StringViewArray::from_iter_values([&switched.host])),
            Arc::new(Int64Array::from_iter_values([switched.lag_bytes as i64])),
            Arc::new(BooleanArray::from(vec![switched.is_done])),
        ];
        rows(switchover_schema(), switchover_columns(), arrays)
    }

    /// Has the hosts of the pool give way.
    pub(super) async fn pool_yield(&self, text: &str, size: &str) -> Result<Outcome> {
        // What the block's snapshot sees would stay.
        self.refuse_in_any_block("CALL tidepool.pool_yield")?;
        let bytes = size.parse::<ByteSize>()?.0;
        let interrupt = self.running(text).interrupt;
        let database = self.planner.database().clone();
        let yielding = self.planner.workers().spawn_blocking(move || database.pool_yield(bytes, &|| interrupt.check()));
        let room = joined(yielding.await)?;
        let number = |value: u64| -> ArrayRef { Arc::new(Int64Array::from_iter_values([value as i64])) };
        let arrays: Vec<ArrayRef> =
            vec![number(room.wanted_bytes), number(room.free_bytes), Arc::new(BooleanArray::from(vec![room.is_done]))];
        rows(pool_yield_schema(), pool_yield_columns(), arrays)
    }

    pub(super) async fn backup(&self, text: &str, folder: &str) -> Result<Outcome> {
        self.refuse_in_block("CALL tidepool.backup")?;
        let folder = PathBuf::from(folder);
        if !folder.is_absolute() {
            // Relative to what, the client cannot know.
            return Err(Error::new(SqlState::INVALID_NAME, "relative path not allowed for a backup"));
        }
        let interrupt = self.running(text).interrupt;
        let database = self.planner.database().clone();
        let copied = self.planner.workers().spawn_blocking(move || database.backup(&folder, &|| interrupt.check()));
        let copied = joined(copied.await)?;
        let number = |value: u64| -> ArrayRef { Arc::new(Int64Array::from_iter_values([value as i64])) };
        let arrays = vec![number(copied.tables), number(copied.files), number(copied.bytes)];
        rows(backup_schema(), backup_columns(), arrays)
    }
}
