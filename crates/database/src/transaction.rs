use crate::{DatabaseVersion, TableWriter};
use std::sync::Arc;
use tidepool_base::{CommitTs, Result};
use tidepool_table::{ColumnDef, Placement, TableVersion};

/// Dropped without `commit`, it leaves nothing behind.
#[derive(Debug)]
pub struct Transaction {}

impl Transaction {
    /// What the next statement reads: the latest committed state with this transaction's changes over it.
    pub fn version(&self) -> Arc<DatabaseVersion> {
        unimplemented!()
    }
    pub fn has_changes(&self) -> bool {
        unimplemented!()
    }
    /// Takes the table's write lock until the transaction ends; waits in slices and calls `interrupted` between them
    /// (cancel, lock_timeout: return its error). 40P01 on a cycle.
    pub fn lock_table(&mut self, _table: &str, _interrupted: &dyn Fn() -> Result<()>) -> Result<()> {
        unimplemented!()
    }
    /// 42P07 when it exists.
    pub fn create_table(
        &mut self,
        _name: &str,
        _columns: Vec<ColumnDef>,
        _primary_key: Vec<usize>,
        _placement: Placement,
    ) -> Result<Arc<TableVersion>> {
        unimplemented!()
    }
    /// 42P01 when there is none.
    pub fn drop_table(&mut self, _name: &str) -> Result<()> {
        unimplemented!()
    }
    pub fn truncate(&mut self, _name: &str) -> Result<()> {
        unimplemented!()
    }
    pub fn rename_table(&mut self, _name: &str, _new_name: &str) -> Result<()> {
        unimplemented!()
    }
    /// The whole table's main and delta, or one column's main.
    pub fn set_tablespace(&mut self, _table: &str, _column: Option<&str>, _tablespace: &str) -> Result<()> {
        unimplemented!()
    }
    /// Appends rows; they belong to this transaction once `TableWriter::finish` returns.
    pub fn writer(&mut self, _table: &str) -> Result<TableWriter> {
        unimplemented!()
    }
    pub fn absorb(&mut self, _writer: TableWriter) -> Result<u64> {
        unimplemented!()
    }
    pub fn commit(self) -> Result<CommitTs> {
        unimplemented!()
    }
    pub fn rollback(self) {}
}
