//! What functions and system views may know about the statement that asks: who, in which session, under which settings
//! and over which snapshot.
//!
//! Travels as an extension of DataFusion's `ConfigOptions`, which reaches both places that ask:
//! `ScalarFunctionArgs::config_options` and `Session::config_options()` in `TableProvider::scan`.

use crate::Planner;
use crate::catalog::SessionSequences;
use crate::heap::SessionHeaps;
use crate::privileges::Acting;
use crate::settings::Settings;
use chrono::{DateTime, Utc};
use datafusion::catalog::TableProvider;
use datafusion::common::config::{ConfigEntry, ConfigExtension, ConfigOptions, ExtensionOptions};
use parking_lot::Mutex;
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidepool_database::{CurrentTransaction, DatabaseVersion, Footing, TemporaryTables};

/// The one database's name.
pub const DATABASE: &str = "tidepool";

pub struct SessionFacts {
    pub planner: Arc<Planner>,
    /// Whom the statement works for.
    pub user: String,
    pub session_user: String,
    /// The same as `user`, and what it may do.
    pub role: Acting,
    /// The database's name.
    pub database: &'static str,
    /// Stands for the backend's process id.
    pub session_id: u32,
    pub settings: Arc<Settings>,
    pub sequences: Arc<Mutex<SessionSequences>>,
    /// Of the session's transaction.
    pub current: Arc<CurrentTransaction>,
    /// What is the session's own, which is in the snapshot, too.
    pub temporary: Arc<TemporaryTables>,
    /// The snapshot this statement reads.
    pub version: Arc<DatabaseVersion>,
    pub transaction_start: DateTime<Utc>,
    pub statement_start: DateTime<Utc>,
    /// Of the session's statements.
    pub heaps: Arc<SessionHeaps>,
    /// What the statement looks up, for another look once it has its locks.
    pub footing: Arc<Footing>,
    /// Rows of those parts of the statement that ran before it, by name in schema `pg_oid`.
    pub parts: BTreeMap<String, Arc<dyn TableProvider>>,
}

impl std::fmt::Debug for SessionFacts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SessionFacts({}, {})", self.session_id, self.user)
    }
}

impl SessionFacts {
    /// The same, over another state of the database.
    pub fn over(&self, version: Arc<DatabaseVersion>) -> Arc<SessionFacts> {
        Arc::new(self.copy(version))
    }

    /// The same, with the rows of one part more.
    pub fn with_part(&self, name: String, rows: Arc<dyn TableProvider>) -> Arc<SessionFacts> {
        let mut facts = self.copy(self.version.clone());
        facts.parts.insert(name, rows);
        Arc::new(facts)
    }

    fn copy(&self, version: Arc<DatabaseVersion>) -> SessionFacts {
        SessionFacts {
            planner: self.planner.clone(),
            user: self.user.clone(),
            session_user: self.session_user.clone(),
            role: Acting::of(&version.catalog, self.role.id),
            database: self.database,
            session_id: self.session_id,
            settings: self.settings.clone(),
            sequences: self.sequences.clone(),
            current: self.current.clone(),
            temporary: self.temporary.clone(),
            version,
            transaction_start: self.transaction_start,
            statement_start: self.statement_start,
            heaps: self.heaps.clone(),
            footing: self.footing.clone(),
            parts: self.parts.clone(),
        }
    }

    /// The facts of the statement that `options` belong to.
    pub fn of(options: &ConfigOptions) -> Option<&Arc<SessionFacts>> {
        options.extensions.get::<FactsExtension>().and_then(|extension| extension.0.as_ref())
    }
}

#[derive(Clone, Debug, Default)]
pub struct FactsExtension(pub Option<Arc<SessionFacts>>);

impl ConfigExtension for FactsExtension {
    const PREFIX: &'static str = "tidepool";
}

impl ExtensionOptions for FactsExtension {
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
    fn cloned(&self) -> Box<dyn ExtensionOptions> {
        Box::new(self.clone())
    }
    fn set(&mut self, key: &str, _value: &str) -> datafusion::common::Result<()> {
        datafusion::common::config_err!("no option tidepool.{key}")
    }
    fn entries(&self) -> Vec<ConfigEntry> {
        Vec::new()
    }
}
