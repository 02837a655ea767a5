//! Tablespaces that change while they are in use.
//!
//! A tablespace closes the memory that is to go ([`tidepool_tablespace::Reshape`]); this module empties it: rows of
//! tables are copied to where there is room in the same tablespace, a table at a time, and the next version names the
//! copies. Readers go on with the version they have. What is left then belongs to statements under way (their heaps,
//! versions that they read, rows not committed yet), and is waited for.

use crate::durability::storage::{LogPlace, Storage};
use crate::{Database, Patience, TableSize};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidepool_base::{ByteSize, Error, Result, SqlState, TablespaceId};
use tidepool_device::{CacheSize, Location, Stripe};
use tidepool_table::TableVersion;
use tidepool_tablespace::{Reshape, Tablespace, TablespaceConfig};

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

impl Database {
    /// 55006 if the tablespace has the log: its place is recorded, and would be another.
    pub(crate) fn check_has_no_log(&self, space: &Tablespace) -> Result<()> {
        let home = self.storage.as_ref().and_then(Storage::log_home);
        match home.map(|home| home.saved.place) {
            Some(LogPlace::Memory(region)) if region.contents.tablespace == space.name() => Err(Error::new(
                SqlState::OBJECT_IN_USE,
                format!("tablespace \"{}\" cannot be altered, as the log is in it", space.name()),
            )
            .with_hint("Name another place for the log in the configuration, and start the server again.")),
            _ => Ok(()),
        }
    }

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
            let is_full = prepared.as_ref().is_err_and(Error::is_of_room);
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
