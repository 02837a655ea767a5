use crate::{Config, DatabaseVersion, Transaction};
use std::sync::Arc;
use tidepool_base::{Result, TableId};
use tidepool_tablespace::{TablespaceConfig, Tablespaces};

#[derive(Debug)]
pub struct Database {}

impl Database {
    /// Opens (or makes) the data folder and reads what is in it. One process at a time: 55006 otherwise.
    pub fn open(_config: Config) -> Result<Arc<Database>> {
        unimplemented!()
    }
    pub fn config(&self) -> &Config {
        unimplemented!()
    }
    pub fn tablespaces(&self) -> &Tablespaces {
        unimplemented!()
    }
    /// The latest committed state.
    pub fn version(&self) -> Arc<DatabaseVersion> {
        unimplemented!()
    }
    pub fn begin(self: &Arc<Self>) -> Transaction {
        unimplemented!()
    }
    /// Not transactional, as in PostgreSQL. Remembered in the data folder.
    pub fn create_tablespace(&self, _config: TablespaceConfig) -> Result<()> {
        unimplemented!()
    }
    /// 55006 while any table uses it or anything lives in it.
    pub fn drop_tablespace(&self, _name: &str) -> Result<()> {
        unimplemented!()
    }
    /// Moves all delta rows of a table into main. Returns the rows moved.
    pub fn merge(self: &Arc<Self>, _table: &str) -> Result<u64> {
        unimplemented!()
    }
    /// Writes everything committed to the data folder. A no-op without one.
    pub fn checkpoint(&self) -> Result<()> {
        unimplemented!()
    }
    pub fn next_table_id(&self) -> TableId {
        unimplemented!()
    }
    /// SCRAM verifiers by role (PostgreSQL's `SCRAM-SHA-256$…` text), kept in the data folder.
    pub fn password_verifier(&self, _role: &str) -> Option<String> {
        unimplemented!()
    }
    /// Makes it from a password with `scram::verifier_text`; `None` takes the password away.
    pub fn set_password_verifier(&self, _role: &str, _verifier: Option<String>) -> Result<()> {
        unimplemented!()
    }
}
