//! Who this process is at memory nodes, and opening tablespaces there.

use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use tidepool_base::{Result, TablespaceId};
use tidepool_device::Location;
use tidepool_device::remote::{Absence, Tenant};
use tidepool_tablespace::{Tablespace, TablespaceConfig};

/// The database as memory nodes know it. It is known to none, and nothing is written, until a tablespace is at one.
#[derive(Debug)]
pub(crate) struct Nodes {
    /// The data folder, if there is one.
    folder: Option<PathBuf>,
    tenant: Mutex<Option<Tenant>>,
}

impl Nodes {
    pub fn new(folder: Option<PathBuf>) -> Nodes {
        Nodes { folder, tenant: Mutex::default() }
    }

    /// Opens a tablespace at a node. `None`: it is not at one.
    pub fn open(
        &self,
        id: TablespaceId,
        config: &TablespaceConfig,
        absence: Absence,
    ) -> Option<Result<Arc<Tablespace>>> {
        matches!(config.location, Location::Node { .. })
            .then(|| Tablespace::open_at_node(id, config.clone(), &self.tenant()?, absence))
    }

    fn tenant(&self) -> Result<Tenant> {
        let mut tenant = self.tenant.lock();
        if let Some(tenant) = &*tenant {
            return Ok(tenant.clone());
        }
        let new = match &self.folder {
            Some(folder) => Tenant::next_of(folder)?,
            None => Tenant::passing()?,
        };
        Ok(tenant.insert(new).clone())
    }
}
