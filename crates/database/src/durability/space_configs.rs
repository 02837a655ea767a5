//! The tablespaces of a database: the configuration's as they were altered, and those that were created.

use crate::Config;
use crate::durability::log_home::missing;
use crate::durability::storage::{Finds, LogPlace, Manifest, SavedAlteration, SavedTablespace, Storage};
use crate::nodes::Nodes;
use crate::pool_host::PoolHost;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState, TablespaceId};
use tidepool_device::Location;
use tidepool_device::remote::Absence;
use tidepool_tablespace::{Tablespace, TablespaceConfig, Tablespaces};

/// The tablespaces of a database, as they are to be opened.
pub(crate) struct SpaceConfigs {
    pub near: TablespaceConfig,
    pub far: TablespaceConfig,
    pub others: Vec<TablespaceConfig>,
    /// Those that are not as the configuration says.
    pub altered: BTreeMap<String, TablespaceConfig>,
}

impl SpaceConfigs {
    pub fn of(config: &Config, manifest: &Manifest) -> Result<SpaceConfigs> {
        let mut altered = BTreeMap::new();
        let mut as_altered = |configured: &TablespaceConfig, name: &str| {
            let now = altered_config(configured, name, &manifest.altered)?;
            if now != (TablespaceConfig { name: name.to_owned(), ..configured.clone() }) {
                altered.insert(name.to_owned(), now.clone());
            }
            Ok::<_, Error>(now)
        };
        let (near, far) = (as_altered(&config.near, "near")?, as_altered(&config.far, "far")?);
        let mut others =
            config.tablespaces.iter().map(|space| as_altered(space, &space.name)).collect::<Result<Vec<_>>>()?;
        for saved in &manifest.tablespaces {
            // The configuration file's word counts over what was recorded.
            if !["near", "far"].contains(&saved.name.as_str()) && others.iter().all(|space| space.name != saved.name) {
                others.push(saved.config()?);
            }
        }
        Ok(SpaceConfigs { near, far, others, altered })
    }

    /// Opens one alone, for a look at it. 42704 when there is none.
    pub fn open_one(&self, name: &str, finds: &Finds) -> Result<Arc<Tablespace>> {
        let all = [&self.near, &self.far].into_iter().chain(&self.others);
        let config = all
            .into_iter()
            .find(|space| space.name == name)
            .ok_or_else(|| Error::new(SqlState::UNDEFINED_OBJECT, format!("tablespace \"{name}\" does not exist")))?;
        Tablespace::open_found(TablespaceId(0), config.clone(), finds.of(name))
    }

    /// Opens all. `pool`: what those at `pool:` lease from. `storage`: the data folder, if it had a manifest, and where that says
    /// the log is. `nodes`: who asks for those at memory nodes. Where it has all that a device had, memory takes the place of one that cannot be opened. XX001 when a tablespace does not hold the log that it should.
    pub fn open(
        &self,
        finds: &Finds,
        pool: Option<&PoolHost>,
        storage: Option<(&Storage, Option<&LogPlace>)>,
        nodes: &Nodes,
    ) -> Result<Tablespaces> {
        // A database that has rows starts without its nodes, as its files have all of them.
        let absence = if storage.is_some() { Absence::Awaited } else { Absence::Refused };
        let open = |id, config: TablespaceConfig| {
            if let Some(opened) = nodes.open(id, &config, absence) {
                return opened;
            }
            if let Some(pool) = pool.filter(|_| config.location == Location::Pool) {
                return pool.open(id, config);
            }
            let opened = Tablespace::open_found(id, config.clone(), finds.of(&config.name));
            let (Err(error), Some((storage, log))) = (&opened, storage) else { return opened };
            let is_needed = finds.of(&config.name).is_some_and(|left| left.is_needed);
            let is_of_device = is_of_device(error, &config.location);
            if let Some(place) = log
                && is_needed
                && (is_of_device || error.code() == SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE)
            {
                return Err(missing(place, storage, error));
            }
            if is_needed || !is_of_device {
                return opened;
            }
            let Ok(space) = Tablespace::open_in_place_of(id, config.clone()) else { return opened };
            tracing::warn!(
                "tablespace \"{}\" at {} cannot be opened, and memory takes its place: its rows are read from the data \
                 folder. Put it right and start the server again. {error}",
                config.name,
                config.location
            );
            Ok(space)
        };
        let spaces = Tablespaces::open_by(self.near.clone(), self.far.clone(), &open)?;
        for space in &self.others {
            spaces.create_by(space.clone(), &open)?;
        }
        Ok(spaces)
    }
}

/// Whether an error says that a device named by a path is not there, or is not what it was, rather than that the configuration
/// makes no sense or somebody else has the device.
fn is_of_device(error: &Error, location: &Location) -> bool {
    let has_path =
        location.stripes().iter().any(|stripe| matches!(stripe.location, Location::File(_) | Location::Dax(_)));
    let codes = [
        SqlState::DATA_CORRUPTED,
        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
        SqlState::FEATURE_NOT_SUPPORTED,
        SqlState::UNDEFINED_FILE,
        SqlState::INSUFFICIENT_PRIVILEGE,
        SqlState::IO_ERROR,
    ];
    has_path && codes.contains(&error.code())
}

/// What a tablespace of the configuration is to be: as it was altered, if the configuration says of it what it said
/// then.
pub(crate) fn altered_config(
    configured: &TablespaceConfig,
    name: &str,
    saved: &[SavedAlteration],
) -> Result<TablespaceConfig> {
    let configured = TablespaceConfig { name: name.to_owned(), ..configured.clone() };
    match saved.iter().find(|saved| saved.now.name == name) {
        Some(saved) if saved.configured == SavedTablespace::new(&configured) => saved.now.config(),
        Some(_) => {
            tracing::info!("tablespace \"{name}\" is configured anew, which undoes what ALTER TABLESPACE made of it");
            Ok(configured)
        }
        None => Ok(configured),
    }
}
