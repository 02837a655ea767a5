//! Tablespaces that change while they are in use.
//!
//! A tablespace closes the memory that is to go ([`tidepool_tablespace::Reshape`]); this module empties it: rows of
//! tables are copied to where there is room in the same tablespace, a table at a time, and the next version names the
//! copies. Readers go on with the version they have. What is left then belongs to statements under way (their heaps,
//! versions that they read, rows not committed yet), and is waited for.

use crate::log_home::{LogPlace, missing};
use crate::storage::{Finds, Manifest, SavedTablespace, Storage};
use crate::{Config, Database, TableSize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidepool_base::{ByteSize, Error, Result, SqlState, TablespaceId};
use tidepool_device::{CacheSize, Location, Stripe};
use tidepool_table::TableVersion;
use tidepool_tablespace::{Reshape, Tablespace, TablespaceConfig, Tablespaces};

/// Between two looks at whether memory was given back.
const WAIT_SLICE: Duration = Duration::from_millis(10);

/// What was dropped just before is gone by then, unless statements under way still read it.
const FREED_WITHIN: Duration = Duration::from_secs(2);

/// What `ALTER TABLESPACE` asks for.
#[derive(Clone, Debug)]
pub enum TablespaceChange {
    Size {
        bytes: u64,
    },
    /// Of paged memory, perhaps along with its size.
    Cache {
        cache: CacheSize,
        size_bytes: Option<u64>,
    },
    /// `profile`: the name of one, or `none`. Left out: the one that all others have, if they have the same.
    AddLocation {
        stripe: Stripe,
        profile: Option<String>,
    },
    DropLocation {
        location: Location,
    },
}

/// How a command waits for others: asked again and again while it does, and between copies.
pub trait Patience: Send + Sync {
    /// An error when the command is to end.
    fn check(&self) -> Result<()>;

    /// What the command comes to is about to be decided, once and for all: an error as `check`'s. Without one it is not to end any more.
    fn settle(&self) -> Result<()> {
        self.check()
    }

    /// A wait for what others hold begins. What is returned is called during it, and ends it with an error when it
    /// takes too long (`lock_timeout`), or as `check` does.
    fn begin_wait(&self) -> Box<dyn Fn() -> Result<()> + '_>;
}

/// For tests and for programs that have no sessions: waits for ever.
impl Patience for () {
    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn begin_wait(&self) -> Box<dyn Fn() -> Result<()> + '_> {
        Box::new(|| Ok(()))
    }
}

impl Database {
    /// Changes a tablespace while it is in use; not transactional. All of the change is made, and recorded in the data
    /// folder, or nothing. Codes are those of [`Tablespace::resize`] and its like; 53200 as well when tables' rows find
    /// no room in what would remain, 55P03 when statements under way keep the memory that is to go for longer than
    /// `patience` has.
    pub fn alter_tablespace(
        self: &Arc<Self>,
        name: &str,
        change: &TablespaceChange,
        patience: &dyn Patience,
    ) -> Result<()> {
        let space = self.tablespaces().get(name)?;
        self.check_has_no_log(&space)?;
        if space.stands_in() {
            return Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("tablespace \"{name}\" cannot be altered, as memory takes the place of its device"),
            )
            .with_hint(format!("Put {} right, and start the server again.", space.config().location)));
        }
        let prepare = || match change {
            TablespaceChange::Size { bytes } => space.resize(*bytes),
            TablespaceChange::Cache { cache, size_bytes } => space.resize_cache(*cache, *size_bytes),
            TablespaceChange::AddLocation { stripe, profile } => {
                let profile = match profile.as_deref() {
                    None => space.config().profile.clone(),
                    Some("none") => None,
                    Some(name) => Some(self.config().profile(name)?),
                };
                space.add_location(stripe.clone(), profile)
            }
            TablespaceChange::DropLocation { location } => space.drop_location(location),
        };
        let reshape = self.when_freed(space.id(), patience, prepare)?;
        self.vacate(&space, &reshape, patience)?;
        self.record_tablespace(reshape.config().clone(), || reshape.finish())
    }

    /// Tries again for a moment what has no room: what was dropped just before may still be on its way out.
    fn when_freed<T>(
        &self,
        space: TablespaceId,
        patience: &dyn Patience,
        prepare: impl Fn() -> Result<T>,
    ) -> Result<T> {
        let deadline = Instant::now() + FREED_WITHIN;
        loop {
            let prepared = prepare();
            let is_full = prepared.as_ref().is_err_and(|error| error.code() == SqlState::OUT_OF_MEMORY);
            if !is_full || Instant::now() >= deadline {
                return prepared;
            }
            patience.check()?;
            self.free_retired_in(space);
            std::thread::sleep(WAIT_SLICE);
        }
    }

    /// Frees what nobody can see any more.
    pub(crate) fn free_retired_in(&self, space: TablespaceId) {
        self.collect();
        if let Some(memory) = self.memories.lock().get(&space) {
            memory.trim();
        }
        self.reclaim_indexes();
    }

    /// Empties what is closed.
    fn vacate(self: &Arc<Self>, space: &Arc<Tablespace>, reshape: &Reshape<'_>, patience: &dyn Patience) -> Result<()> {
        let mut left = reshape.left_bytes();
        let mut wait = patience.begin_wait();
        let mut looked_at = None;
        while left > 0 {
            // A version is looked through once: nothing comes into what is closed.
            let version = self.version().commit_ts;
            if looked_at != Some(version) {
                self.move_tables(space, patience)?;
                looked_at = Some(version);
            }
            // Statements' free blocks, which they keep for a while.
            tidepool_heap::release_heaps();
            if let Some(storage) = &self.storage {
                storage.let_go_of_all_in(space);
                space.keep([]);
            }
            self.reclaim_indexes();
            let now = reshape.left_bytes();
            if now < left {
                left = now;
                wait = patience.begin_wait();
                continue;
            }
            wait().map_err(|error| self.waited_in_vain(space, error, now))?;
            std::thread::sleep(WAIT_SLICE);
        }
        Ok(())
    }

    fn move_tables(self: &Arc<Self>, space: &Arc<Tablespace>, patience: &dyn Patience) -> Result<()> {
        // What is in use of memory that is to go stays in use there: versions go to other slabs from now on.
        self.memories.lock().remove(&space.id());
        let version = self.version();
        for (name, table) in &version.tables {
            patience.check()?;
            let seen = TableVersion::of(table, version.view());
            let versions_move = table.rows.memory().tablespace().id() == space.id();
            if !seen.row_groups.iter().any(|group| group.must_move(space))
                && !versions_move
                && !table.rows.heads_must_move(space)
            {
                continue;
            }
            let mut transaction = self.begin()?;
            let wait = patience.begin_wait();
            match transaction.lock_table(name, &wait) {
                Ok(()) => {}
                // Dropped or renamed meanwhile: the next round sees what there is.
                Err(error) if error.code() == SqlState::UNDEFINED_TABLE => continue,
                Err(error) => return Err(error),
            }
            let progress = self.progress().start(
                "ALTER TABLESPACE",
                &version.shown_name(&table.def),
                TableSize::of(&seen).main_bytes(),
            );
            transaction.vacate(name, space, &progress, &|| patience.check())?;
            transaction.commit()?;
        }
        self.move_indexes(space, patience)
    }

    fn waited_in_vain(&self, space: &Tablespace, error: Error, left: u64) -> Error {
        if error.code() != SqlState::LOCK_NOT_AVAILABLE {
            return error;
        }
        error
            .with_detail(format!(
                "{} of what is to go from tablespace \"{}\" are still used by statements or transactions under way.",
                ByteSize(left),
                space.name()
            ))
            .with_hint("tidepool.queries lists statements, pg_locks who holds tables.")
    }

    /// Records what a tablespace will be, then makes it that. Nothing is changed when it cannot be recorded.
    fn record_tablespace(&self, config: TablespaceConfig, finish: impl FnOnce() -> Result<()>) -> Result<()> {
        let name = config.name.clone();
        let before = self.altered.lock().insert(name.clone(), config);
        let recorded = self.save_settings().and_then(|()| finish());
        // What was recorded of the places of row groups there is out of date.
        self.dirty.store(true, std::sync::atomic::Ordering::Release);
        if recorded.is_err() {
            let mut altered = self.altered.lock();
            match before {
                Some(before) => altered.insert(name, before),
                None => altered.remove(&name),
            };
        }
        recorded
    }
}

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

    /// Opens all. `storage`: the data folder, if it had a manifest, and where that says the log is. Where it has all that a device had, memory
    /// takes the place of one that cannot be opened. XX001 when a tablespace does not hold the log that it should.
    pub fn open(&self, finds: &Finds, storage: Option<(&Storage, Option<&LogPlace>)>) -> Result<Tablespaces> {
        let open = |id, config: TablespaceConfig| {
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

/// A tablespace of the configuration that was altered.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SavedAlteration {
    /// What the configuration said when it was.
    pub configured: SavedTablespace,
    pub now: SavedTablespace,
}
