use crate::{LedgerRow, Tablespace, TablespaceConfig};
use std::sync::Arc;
use tidepool_base::Result;

/// The tablespaces of a process by name. `near` and `far` always exist.
#[derive(Debug)]
pub struct Tablespaces {}

impl Tablespaces {
    pub fn open(_near: TablespaceConfig, _far: TablespaceConfig) -> Result<Tablespaces> {
        unimplemented!()
    }
    pub fn near(&self) -> Arc<Tablespace> {
        unimplemented!()
    }
    pub fn far(&self) -> Arc<Tablespace> {
        unimplemented!()
    }
    /// 42704 when there is none.
    pub fn get(&self, _name: &str) -> Result<Arc<Tablespace>> {
        unimplemented!()
    }
    pub fn list(&self) -> Vec<Arc<Tablespace>> {
        unimplemented!()
    }
    /// 42710 when the name is taken.
    pub fn create(&self, _config: TablespaceConfig) -> Result<Arc<Tablespace>> {
        unimplemented!()
    }
    /// 55006 while anything lives in it; 42939 for `near` and `far`.
    pub fn drop(&self, _name: &str) -> Result<()> {
        unimplemented!()
    }
    pub fn ledger(&self) -> Vec<LedgerRow> {
        unimplemented!()
    }
}
