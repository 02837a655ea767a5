use std::collections::BTreeMap;
use std::sync::Arc;
use tidepool_base::CommitTs;
use tidepool_table::TableVersion;

/// One immutable state of the database.
#[derive(Clone, Debug)]
pub struct DatabaseVersion {
    pub commit_ts: CommitTs,
    /// By name, schema `public`.
    pub tables: BTreeMap<String, Arc<TableVersion>>,
}

impl DatabaseVersion {
    pub fn table(&self, name: &str) -> Option<&Arc<TableVersion>> {
        self.tables.get(name)
    }
}
