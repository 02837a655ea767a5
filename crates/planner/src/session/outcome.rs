//! What a statement gives back: the columns it describes, its rows or tag, and notices.

use crate::copy::CopyIn;
use arrow::array::RecordBatch;
use futures::Stream;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use tidepool_base::{Error, Result, SqlType};
use tidepool_database::copy::EncodedRows;

pub type BatchStream = Pin<Box<dyn Stream<Item = Result<RecordBatch>> + Send>>;

#[derive(Clone, Debug, PartialEq)]
pub struct ResultColumn {
    pub name: String,
    pub sql_type: SqlType,
    /// PostgreSQL's oid and modifier, which may be of a type no column can have (`oid`, `name`, `int4[]`).
    pub type_oid: u32,
    pub type_modifier: i32,
    /// The table and attribute number it comes from, or zeroes.
    pub table_oid: u32,
    pub attribute: i16,
}

impl ResultColumn {
    pub(super) fn text(name: &str) -> ResultColumn {
        ResultColumn {
            name: name.to_owned(),
            sql_type: SqlType::Text,
            type_oid: SqlType::Text.oid(),
            type_modifier: -1,
            table_oid: 0,
            attribute: 0,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Description {
    /// Type oids of `$1`, `$2`, …
    pub parameters: Vec<u32>,
    /// `None` for a statement that returns no rows.
    pub columns: Option<Vec<ResultColumn>>,
}

pub enum Outcome {
    /// Dropping the stream ends the statement. The tag's row count is the server's to add (`SELECT 5`).
    Rows {
        columns: Vec<ResultColumn>,
        batches: BatchStream,
        tag: &'static str,
    },
    /// `INSERT 0 5`, `CREATE TABLE`, `BEGIN`.
    Command {
        tag: String,
    },
    CopyIn(CopyIn),
    CopyOut(CopyOut),
    Empty,
}

impl Outcome {
    pub(super) fn command(tag: impl Into<String>) -> Outcome {
        Outcome::Command { tag: tag.into() }
    }
}

/// `COPY … TO STDOUT` under way.
pub struct CopyOut {
    pub columns: usize,
    /// The data is in binary form, not text.
    pub binary: bool,
    pub data: Pin<Box<dyn Stream<Item = Result<EncodedRows>> + Send>>,
    /// Rows sent so far; final once `data` ended.
    pub rows: Arc<AtomicU64>,
}

/// A NOTICE or WARNING for the client.
#[derive(Clone, Debug)]
pub struct Notice {
    pub severity: &'static str,
    pub error: Error,
}
