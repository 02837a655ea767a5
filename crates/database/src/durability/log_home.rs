//! Where the log is: a folder, or a region of a tablespace (openGauss MOT on persistent memory, where the log lies in it).
//!
//! The manifest names the place, and a mark there names the database: file `LOG` of the folder, or the first page of the
//! region. So a start that finds no log there knows that it is missing, and does not go on without what was committed since
//! the last checkpoint (disks are not always mounted, and memory does not survive everything). A log that was closed has
//! nothing that the checkpoint lacks, and is not missed.
//!
//! When the configuration names another place than the manifest, a start reads the log where it was, makes a checkpoint whose
//! manifest names the new place, and only then begins to write there.

use crate::Config;
use crate::durability::storage::{
    LeftFolder, LogHome, LogPlace, LogRegion, Manifest, SavedContents, SavedLog, Storage,
};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_log::files::{Files, OpenHow};
use tidepool_log::{DatabaseIdentity, FileDevice, Log, LogConfig, LogDevice, MemoryDevice, NotesUse, Recovery};
use tidepool_tablespace::{Purpose, Tablespace};

/// Where something of the log is missing.
const WHAT_TO_DO: &str = "Bring it back; or give it up, and what was in it, with tidepool reset-log.";

/// The file that says whose log a folder has.
pub(crate) const MARK: &str = "LOG";

/// A log that was found, or made, to be recovered.
#[derive(Debug)]
pub(crate) struct OpenedLog {
    pub recovery: Recovery,
    device: LogMemory,
    pub home: LogHome,
    /// The log that was read, if this one takes its place.
    before: Option<LogMemory>,
}

#[derive(Debug)]
enum LogMemory {
    Files(Arc<FileDevice>),
    Memory(Arc<MemoryDevice>, Arc<Tablespace>),
}

/// Gives the tablespace of a name. 42704 when there is none.
type Spaces<'s> = &'s dyn Fn(&str) -> Result<Arc<Tablespace>>;

impl LogMemory {
    fn device(&self) -> Arc<dyn LogDevice> {
        match self {
            LogMemory::Files(device) => Arc::clone(device) as Arc<dyn LogDevice>,
            LogMemory::Memory(device, _) => Arc::clone(device) as Arc<dyn LogDevice>,
        }
    }
}

impl LogPlace {
    fn describe(&self, storage: &Storage) -> String {
        match self {
            LogPlace::Folder(folder) => format!("folder \"{}\"", folder_of(folder.as_deref(), storage).display()),
            LogPlace::Memory(region) => format!("tablespace \"{}\"", region.contents.tablespace),
            LogPlace::Pool(copy) => format!("pool \"{}\"", copy.pool.location),
        }
    }

    /// Whether the configuration asks for this one.
    fn is_as_configured(&self, config: &Config) -> bool {
        match (self, &config.log.tablespace) {
            (LogPlace::Folder(folder), None) => *folder == configured_folder(config),
            (LogPlace::Memory(region), Some(name)) => {
                region.contents.tablespace == *name
                    && region.segment_bytes == config.log.segment_bytes
                    && region.bytes == MemoryDevice::region_bytes(config.log.bytes_max, region.segment_bytes)
            }
            _ => false,
        }
    }
}

/// The same from wherever the server is started next.
pub(crate) fn configured_folder(config: &Config) -> Option<PathBuf> {
    configured_folder_of(config.log.folder.as_deref())
}

pub(crate) fn configured_folder_of(folder: Option<&Path>) -> Option<PathBuf> {
    let folder = folder?;
    Some(std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned()))
}

pub(crate) fn folder_of(folder: Option<&Path>, storage: &Storage) -> PathBuf {
    folder.map_or_else(|| storage.folder().join("log"), Path::to_owned)
}

fn mark(identity: impl Display) -> String {
    format!("TIDEPOOL LOG {identity}\n")
}

fn log_config(config: &Config, identity: DatabaseIdentity, notes: NotesUse) -> LogConfig {
    LogConfig { bytes_max: config.log.bytes_max, notes, ..LogConfig::new(identity) }
}

/// The log of a data folder, which may be a new one. XX001 when there was one, and it is missing.
pub(crate) fn open_log(
    config: &Config,
    storage: &Storage,
    manifest: &Manifest,
    spaces: Spaces<'_>,
) -> Result<OpenedLog> {
    match find_log(config, storage, manifest, spaces)? {
        Some(log) => Ok(log),
        None => create_log(config, storage, spaces),
    }
}

/// The log that the manifest names. `None`: there is none yet, or there is none and nothing was in it.
pub(crate) fn find_log(
    config: &Config,
    storage: &Storage,
    manifest: &Manifest,
    spaces: Spaces<'_>,
) -> Result<Option<OpenedLog>> {
    let Some(identity) = manifest.identity()? else { return Ok(None) };
    // Of an earlier release: where the configuration says, and without a mark.
    let is_marked = manifest.log.is_some();
    let place = || LogPlace::Folder(configured_folder(config));
    let unmarked = || SavedLog { place: place(), closed: false, noted: false, left: None };
    let saved = manifest.log.clone().unwrap_or_else(unmarked);
    if let LogPlace::Pool(copy) = &saved.place {
        return Err(Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("data folder \"{}\" belongs to a database that lives in a pool", storage.folder().display()),
        )
        .with_detail(format!("The pool is \"{}\"; the folder is its second tier.", copy.pool.location))
        .with_hint("Start the server with --pool and --role, or restore a backup of it."));
    }
    match find(config, storage, &saved.place, identity, is_marked, spaces) {
        Ok(device) => {
            let notes = match (saved.closed, saved.noted) {
                (true, _) => NotesUse::Ignored,
                (false, true) => NotesUse::Needed,
                (false, false) => NotesUse::IfThere,
            };
            let recovery = Log::open(device.device(), log_config(config, identity, notes)).map_err(advised)?;
            Ok(Some(OpenedLog { recovery, device, home: LogHome { identity, saved }, before: None }))
        }
        Err(error) if saved.closed => {
            tracing::info!("the log is not where it was, and had nothing in it: {error}");
            Ok(None)
        }
        Err(error) => Err(missing(&saved.place, storage, &error)),
    }
}

/// An error of a log that is not what it was, with what can be done.
pub(crate) fn advised(error: Error) -> Error {
    match error.code() {
        SqlState::DATA_CORRUPTED if error.hint().is_none() => error.with_hint(WHAT_TO_DO),
        _ => error,
    }
}

/// XX001: what was committed last is gone, or out of reach. `cause`: what was found instead.
pub(crate) fn missing(place: &LogPlace, storage: &Storage, cause: &Error) -> Error {
    let dot = if cause.message().ends_with('.') { "" } else { "." };
    let because = cause.detail().map(|detail| format!(" {detail}")).unwrap_or_default();
    Error::corrupted(format!("the log is missing: {} does not have it", place.describe(storage)))
        .with_detail(format!(
            "It has what was committed since the last checkpoint. What was found: {}{dot}{because}",
            cause.message()
        ))
        .with_hint(WHAT_TO_DO)
}

fn find(
    config: &Config,
    storage: &Storage,
    place: &LogPlace,
    identity: DatabaseIdentity,
    is_marked: bool,
    spaces: Spaces<'_>,
) -> Result<LogMemory> {
    match place {
        LogPlace::Folder(folder) => {
            let folder = folder_of(folder.as_deref(), storage);
            if is_marked {
                check_mark(&**storage.files(), &folder, identity)?;
            }
            let files = Arc::clone(storage.files());
            let device = FileDevice::open(files, &folder, config.log.segment_bytes, OpenHow::default())?;
            Ok(LogMemory::Files(Arc::new(device)))
        }
        LogPlace::Memory(region) => {
            let space = spaces(&region.contents.tablespace)?;
            let (offset, len) = region.place();
            let found = space
                .attach(offset, len, Purpose::Log)
                .ok_or_else(|| Error::corrupted(format!("nothing is at byte {offset} of it that was left there")))?;
            space.keep_always([(offset, len)]);
            Ok(LogMemory::Memory(Arc::new(MemoryDevice::open(found, identity)?), space))
        }
        LogPlace::Pool(_) => Err(Error::internal("the log of a pool is opened as a folder's")),
    }
}

fn check_mark(files: &dyn Files, folder: &Path, identity: DatabaseIdentity) -> Result<()> {
    let path = folder.join(MARK);
    match files.read(&path) {
        Ok(bytes) if bytes == mark(identity).as_bytes() => Ok(()),
        Ok(_) => Err(Error::corrupted(format!("file \"{}\" names another database", path.display()))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Error::corrupted(format!("there is no file \"{}\"", path.display())))
        }
        Err(error) => Err(Error::io(format_args!("read file \"{}\"", path.display()), &error)),
    }
}

/// A new log where the configuration says. It is nobody's until a manifest names it.
fn create_log(config: &Config, storage: &Storage, spaces: Spaces<'_>) -> Result<OpenedLog> {
    let identity = DatabaseIdentity::random()?;
    let (device, place) = match &config.log.tablespace {
        None => {
            let folder = configured_folder(config);
            let path = folder_of(folder.as_deref(), storage);
            let files = Arc::clone(storage.files());
            let device = FileDevice::open(files, &path, config.log.segment_bytes, OpenHow::default())?;
            if !device.segments()?.is_empty() {
                return Err(Error::corrupted(format!(
                    "folder \"{}\" has a log, of which the manifest does not know",
                    path.display()
                ))
                .with_hint("If nobody needs it, remove its files; or name another folder."));
            }
            storage.write_mark(&path, MARK, &mark(identity))?;
            (LogMemory::Files(Arc::new(device)), LogPlace::Folder(folder))
        }
        Some(name) => create_in_memory(config, name, identity, spaces)?,
    };
    let recovery = Log::open(device.device(), log_config(config, identity, NotesUse::IfThere))?;
    let home = LogHome { identity, saved: SavedLog { place, closed: false, noted: false, left: None } };
    Ok(OpenedLog { recovery, device, home, before: None })
}

fn create_in_memory(
    config: &Config,
    name: &str,
    identity: DatabaseIdentity,
    spaces: Spaces<'_>,
) -> Result<(LogMemory, LogPlace)> {
    let space = spaces(name)?;
    let refused = |detail: String| {
        Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, format!("tablespace \"{name}\" cannot have the log"))
            .with_detail(detail)
    };
    let contents = space.contents().ok_or_else(|| {
        refused(format!("What is in {} cannot be found again by another process.", space.config().location))
            .with_hint("A tablespace of one location, dax: or file:, can have it.")
    })?;
    let segment_bytes = config.log.segment_bytes;
    let bytes = MemoryDevice::region_bytes(config.log.bytes_max, segment_bytes);
    let region =
        usize::try_from(bytes).ok().and_then(|len| space.allocate(len, Purpose::Log).ok()).ok_or_else(|| {
            refused(format!(
                "The log takes {}; {} of {} are free.",
                ByteSize(bytes),
                ByteSize(space.available_bytes()),
                ByteSize(space.size_bytes())
            ))
            .with_hint("Set log.size, or make the tablespace larger.")
        })?;
    if contents.boot.is_some() {
        tracing::warn!(
            "the log is in tablespace \"{name}\", whose memory is lost when the machine fails: commits since the last \
             checkpoint survive the process, and no more"
        );
    }
    let place = LogPlace::Memory(LogRegion {
        contents: SavedContents::new(name, &contents),
        offset: region.offset(),
        bytes,
        segment_bytes,
    });
    // Another log, which is read by now, may be there until the manifest names this one.
    space.keep_this_too((region.offset(), region.len()));
    let device = MemoryDevice::create(region, segment_bytes, identity)?;
    Ok((LogMemory::Memory(Arc::new(device), space), place))
}

impl OpenedLog {
    /// Where the log is to be when this one has been read: here, or elsewhere.
    pub fn is_as_configured(&self, config: &Config) -> bool {
        self.home.saved.place.is_as_configured(config)
    }

    /// Another log, where the configuration says, for what comes after this one has been read. This one is to be removed
    /// when a manifest names the other.
    pub fn moved(self, config: &Config, storage: &Storage, spaces: Spaces<'_>) -> Result<OpenedLog> {
        let mut next = create_log(config, storage, spaces)?;
        let [from, to] = [&self.home, &next.home].map(|home| home.saved.place.describe(storage));
        tracing::info!("the log moves from {from} to {to}");
        if let LogPlace::Folder(folder) = &self.home.saved.place {
            let (folder, identity) = (folder.clone(), self.home.identity.to_string());
            next.home.saved.left = Some(LeftFolder { folder, identity });
        }
        next.before = Some(self.device);
        Ok(next)
    }

    /// The memory that it and the one before lie in.
    pub fn take_memory(&mut self) -> HeldLogs {
        let own = match (&self.device, &self.home.saved.place) {
            (LogMemory::Memory(_, space), LogPlace::Memory(region)) => Some((Arc::clone(space), region.place())),
            _ => None,
        };
        HeldLogs { own, before: self.before.take() }
    }

    /// Has the folder say whose log it has, where an earlier release did not.
    pub fn sign(&self, storage: &Storage) -> Result<()> {
        match &self.home.saved.place {
            LogPlace::Folder(folder) => {
                let path = folder_of(folder.as_deref(), storage);
                match check_mark(&**storage.files(), &path, self.home.identity) {
                    Ok(()) => Ok(()),
                    Err(_) => storage.write_mark(&path, MARK, &mark(self.home.identity)),
                }
            }
            LogPlace::Memory(_) | LogPlace::Pool(_) => Ok(()),
        }
    }
}

/// Until the manifest names a log, the one before stays as it is.
pub(crate) struct HeldLogs {
    own: Option<(Arc<Tablespace>, (u64, usize))>,
    before: Option<LogMemory>,
}

impl HeldLogs {
    /// The manifest names the log: its tablespace keeps it, and nobody keeps the one before.
    pub fn settle(self) {
        if let Some(LogMemory::Memory(_, space)) = &self.before {
            space.keep_always([]);
        }
        if let Some((space, place)) = self.own {
            space.keep_always([place]);
        }
    }
}

impl LeftFolder {
    /// Removes the files of a log that is nobody's any more, the mark last: where that names somebody else, or is not there,
    /// nothing of it is left. Best effort: what stays behind takes room, and is looked for again at the next start.
    pub fn remove(&self, storage: &Storage, segment_bytes: usize) -> bool {
        let folder = folder_of(self.folder.as_deref(), storage);
        let files = storage.files();
        let is_ours = files.read(&folder.join(MARK)).is_ok_and(|bytes| bytes == mark(&self.identity).as_bytes());
        let remove = || {
            let device = FileDevice::open(Arc::clone(files), &folder, segment_bytes, OpenHow::default())?;
            device.segments()?.into_iter().try_for_each(|number| device.remove(number))?;
            device.remove_notes()?;
            storage.remove_mark(&folder, MARK)
        };
        match if is_ours { remove() } else { Ok(()) } {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!("the log that was in folder \"{}\" could not be removed: {error}", folder.display());
                false
            }
        }
    }
}
