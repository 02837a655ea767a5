//! How a configuration comes about: defaults, a file, the environment, and flags.

use super::file::{FileConfig, FileLog, FilePool, FileServer, FileSettings, FileWorkload};
use super::space::SpaceSpec;
use super::{
    CLIENT_MEMORY_MIN, CONNECTIONS_MAX_DEFAULT, ClassConfig, Config, FILE_DEFAULT, HOST_TIMEOUT_DEFAULT,
    HOST_TIMEOUT_MIN, LISTEN_DEFAULT, LogSettings, MEMORY_LIMIT_MIN, OnFenced, PoolRole, PoolSettings,
    SUPERUSER_RESERVED_DEFAULT, SWITCHOVER_DRAIN_DEFAULT, ServerConfig, TIER1_INTERVAL_DEFAULT, WorkloadConfig,
    config_error, duration, find_profile, invalid, key_at, named, on_or_off, split_names, threads_default,
};
use crate::process_memory::{client_bytes_default, memory_total_bytes, tablespace_defaults};
use crate::roles::StandbyNames;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidepool_base::{ByteSize, Error, Result};
use tidepool_device::{Location, Profile};
use tidepool_tablespace::TablespaceConfig;

/// Puts a configuration together: defaults, then a file, then the environment, then flags.
#[derive(Clone, Debug)]
pub struct ConfigBuilder {
    data_dir: Option<PathBuf>,
    log: LogSettings,
    memory_limit_bytes: Option<u64>,
    client_memory_bytes: Option<u64>,
    near: SpaceSpec,
    far: SpaceSpec,
    tablespaces: Vec<(String, SpaceSpec)>,
    profiles: Vec<Profile>,
    last_level_cache_bytes: Option<u64>,
    /// A name.
    local_profile: Option<String>,
    process_tablespace: Option<String>,
    temp_tablespaces: Vec<String>,
    default_tablespace: String,
    statement_memory_bytes: Option<u64>,
    threads: usize,
    server: ServerConfig,
    workload: WorkloadConfig,
    pool: PoolSpec,
}

/// What is said of the pool, part by part.
#[derive(Clone, Debug, Default)]
struct PoolSpec {
    location: Option<Location>,
    machine: Option<u8>,
    slice: Option<u8>,
    name: Option<String>,
    database: Option<String>,
    guard: Option<bool>,
    role: Option<PoolRole>,
    copy_from: Option<PathBuf>,
    host_timeout: Option<Duration>,
    tier1_interval: Option<Duration>,
    on_fenced: Option<OnFenced>,
    switchover_drain: Option<Duration>,
    fence_command: Option<String>,
    reader_hold_max: Option<u64>,
    route_reads: Option<bool>,
    synchronous_standby_names: Option<String>,
}

impl PoolSpec {
    fn build(self) -> Result<Option<PoolSettings>> {
        let Some(location) = self.location else {
            if self.role.is_some() {
                return Err(config_error("pool.role needs pool.location"));
            }
            if self.copy_from.is_some() {
                return Err(config_error("pool.copy_from needs pool.location"));
            }
            return match self.name.or(self.database) {
                Some(_) => Err(config_error("pool.name and pool.database need pool.location")),
                None => Ok(None),
            };
        };
        let host_timeout = self.host_timeout.unwrap_or(HOST_TIMEOUT_DEFAULT);
        if host_timeout < HOST_TIMEOUT_MIN {
            return Err(config_error("pool.host_timeout must be at least 50ms"));
        }
        if !matches!(location, Location::File(_) | Location::Dax(_)) {
            return Err(config_error(format!("pool.location must be file:PATH or dax:PATH, not \"{location}\"")));
        }
        let machine = match (self.machine, self.slice) {
            (Some(0), _) | (_, Some(0)) => {
                return Err(config_error("pool.machine and pool.slice count from 1"));
            }
            (None, Some(_)) => return Err(config_error("pool.slice needs pool.machine")),
            (Some(machine), slice) => Some((machine, slice.unwrap_or(machine))),
            (None, None) => None,
        };
        if let Some(role @ (PoolRole::Standby | PoolRole::Reader)) = self.role.filter(|_| machine.is_some()) {
            return Err(Error::unsupported(format!("a {} in a pool that is dealt out", role.name()))
                .with_detail("Its hosts do not see each other's stores, so that none can follow another's log there.")
                .with_hint("Give the slice up on one machine and take it on the other: tidepool pool release."));
        }
        match (self.role, &self.copy_from) {
            (Some(PoolRole::Copy), None) => {
                return Err(config_error("pool.role = \"copy\" needs pool.copy_from")
                    .with_hint("Name the data folder of the primary that is to be copied: --copy-from DIR."));
            }
            // A copy that was promoted may have any other role.
            (None, Some(_)) => return Err(config_error("pool.copy_from needs pool.role")),
            _ => {}
        }
        let defaults = PoolSettings::new(location);
        Ok(Some(PoolSettings {
            machine,
            name: self.name,
            database: self.database.unwrap_or(defaults.database),
            guards: self.guard.unwrap_or(false),
            role: self.role,
            copy_from: self.copy_from,
            host_timeout,
            tier1_interval: self.tier1_interval.unwrap_or(TIER1_INTERVAL_DEFAULT),
            on_fenced: self.on_fenced.unwrap_or_default(),
            switchover_drain: self.switchover_drain.unwrap_or(SWITCHOVER_DRAIN_DEFAULT),
            fence_command: self.fence_command,
            reader_hold_max: self.reader_hold_max,
            route_reads: self.route_reads.unwrap_or(false),
            synchronous_standby_names: StandbyNames::parse(&self.synchronous_standby_names.unwrap_or_default())?,
            ..defaults
        }))
    }
}

impl Default for ConfigBuilder {
    fn default() -> ConfigBuilder {
        ConfigBuilder::new()
    }
}

impl ConfigBuilder {
    /// The defaults, which keep nothing: `serve` and `sql` set a data folder.
    pub fn new() -> ConfigBuilder {
        ConfigBuilder {
            data_dir: None,
            log: LogSettings::default(),
            memory_limit_bytes: None,
            client_memory_bytes: None,
            near: SpaceSpec::default(),
            far: SpaceSpec::default(),
            tablespaces: Vec::new(),
            profiles: Vec::new(),
            last_level_cache_bytes: None,
            local_profile: None,
            process_tablespace: None,
            temp_tablespaces: vec!["near".to_owned(), "far".to_owned()],
            default_tablespace: "near".to_owned(),
            statement_memory_bytes: None,
            threads: threads_default(),
            server: ServerConfig {
                listen: LISTEN_DEFAULT.to_owned(),
                connections_max: CONNECTIONS_MAX_DEFAULT,
                superuser_reserved_connections: SUPERUSER_RESERVED_DEFAULT,
                ..ServerConfig::default()
            },
            workload: WorkloadConfig::default(),
            pool: PoolSpec::default(),
        }
    }

    /// What the process finds around it: the file (the one given, or that `TIDEPOOL_CONFIG` names, or [`FILE_DEFAULT`] if there
    /// is one), then the environment.
    pub fn surroundings(file: Option<&Path>) -> Result<ConfigBuilder> {
        let named = file.map(Path::to_owned).or_else(|| std::env::var_os("TIDEPOOL_CONFIG").map(PathBuf::from));
        let default = || Path::new(FILE_DEFAULT).exists().then(|| PathBuf::from(FILE_DEFAULT));
        let mut builder = ConfigBuilder::new();
        if let Some(path) = named.or_else(default) {
            builder = builder.file(&path)?;
        }
        // Not UTF-8, not ours: every variable of the database's is.
        let variables =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        builder.environment(variables)
    }

    /// Of all this only the memory that is there and what it costs: the limit, `near`, `far`, the pool that they may be in, profiles, the
    /// cache. The database has no role in the pool: nothing of it stays there.
    pub fn memory_only(self) -> ConfigBuilder {
        let ConfigBuilder {
            memory_limit_bytes, near, far, profiles, last_level_cache_bytes, local_profile, pool, ..
        } = self;
        let PoolSpec { location, machine, slice, name, database, guard, .. } = pool;
        let pool = PoolSpec { location, machine, slice, name, database, guard, ..PoolSpec::default() };
        let rest = ConfigBuilder::new();
        ConfigBuilder { memory_limit_bytes, near, far, profiles, last_level_cache_bytes, local_profile, pool, ..rest }
    }

    pub fn file(self, path: &Path) -> Result<ConfigBuilder> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| config_error(format!("could not read \"{}\": {error}", path.display())))?;
        self.toml(&text, &path.display().to_string())
    }

    /// `file_name` is for messages only.
    pub fn toml(mut self, text: &str, file_name: &str) -> Result<ConfigBuilder> {
        let file: FileConfig = toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| {
                let end = span.start.min(text.len());
                (text.as_bytes()[..end].iter().filter(|byte| **byte == b'\n').count() + 1, key_at(text, end))
            });
            let message = error.message().trim().replace('\n', "; ");
            config_error(match line {
                Some((line, Some(key))) => format!("{file_name}, line {line}, key \"{key}\": {message}"),
                Some((line, None)) => format!("{file_name}, line {line}: {message}"),
                None => format!("{file_name}: {message}"),
            })
        })?;
        let context = |key: &str| {
            let key = key.to_owned();
            move |error: Error| named(error, &format!("{file_name}, key \"{key}\""))
        };
        if let Some(data) = file.data {
            self.data_dir = Some(data);
        }
        self.memory_limit_bytes = file.memory.limit.map(|size| size.0).or(self.memory_limit_bytes);
        self.client_memory_bytes = file.memory.clients.map(|size| size.0).or(self.client_memory_bytes);
        self.last_level_cache_bytes = file.memory.last_level_cache.map(|size| size.0).or(self.last_level_cache_bytes);
        self.local_profile = file.memory.local_profile.or(self.local_profile);
        self.process_tablespace = file.memory.process.or(self.process_tablespace);
        if let Some(near) = file.memory.near {
            self.near.merge(near.into());
        }
        if let Some(far) = file.memory.far {
            self.far.merge(far.into());
        }
        for profile in file.profile {
            profile.validate().map_err(context(&format!("profile.{}", profile.name)))?;
            if self.profiles.iter().any(|other| other.name == profile.name) {
                return Err(config_error(format!("{file_name}: profile \"{}\" is declared twice", profile.name)));
            }
            self.profiles.push(profile);
        }
        for space in file.tablespace {
            if self.tablespaces.iter().any(|(name, _)| *name == space.name)
                || matches!(space.name.as_str(), "near" | "far")
            {
                return Err(config_error(format!("{file_name}: tablespace \"{}\" is declared twice", space.name)));
            }
            let spec = SpaceSpec {
                location: Some(space.location.0),
                size_bytes: space.size.map(|size| size.0),
                profile: space.profile,
                huge_pages: space.huge_pages,
                populate_bytes: space.populate.map(|size| size.0),
            };
            self.tablespaces.push((space.name, spec));
        }
        let FileLog { folder, tablespace, size, segment_size, checkpoint_timeout, archive, archive_timeout } = file.log;
        if folder.is_some() && tablespace.is_some() {
            return Err(config_error(format!("{file_name}: log.folder and log.tablespace exclude each other")));
        }
        self.log.tablespace = if folder.is_some() { None } else { tablespace.or(self.log.tablespace) };
        self.log.folder = if self.log.tablespace.is_some() { None } else { folder.or(self.log.folder) };
        self.log.bytes_max = size.map_or(self.log.bytes_max, |size| size.0);
        if let Some(size) = segment_size {
            self.log.segment_bytes = usize::try_from(size.0).unwrap_or(usize::MAX);
        }
        if let Some(text) = checkpoint_timeout {
            self.log.checkpoint_timeout = duration(&text).map_err(context("log.checkpoint_timeout"))?;
        }
        self.log.archive = archive.or(self.log.archive);
        if let Some(text) = archive_timeout {
            self.log.archive_timeout = duration(&text).map_err(context("log.archive_timeout"))?;
        }
        let FilePool {
            location,
            machine,
            slice,
            name,
            database,
            guard,
            role,
            copy_from,
            host_timeout,
            tier1_interval,
            on_fenced,
            switchover_drain,
            fence_command,
            reader_hold_max,
            route_reads,
            synchronous_standby_names,
        } = file.pool;
        self.pool.route_reads = route_reads.or(self.pool.route_reads);
        self.pool.reader_hold_max = reader_hold_max.map(|size| size.0).or(self.pool.reader_hold_max);
        self.pool.fence_command = fence_command.or(self.pool.fence_command);
        let names = &mut self.pool.synchronous_standby_names;
        *names = synchronous_standby_names.or(names.take());
        if let Some(text) = tier1_interval {
            self.pool.tier1_interval = Some(duration(&text).map_err(context("pool.tier1_interval"))?);
        }
        self.pool.location = location.map(|place| place.0).or(self.pool.location);
        self.pool.machine = machine.or(self.pool.machine);
        self.pool.slice = slice.or(self.pool.slice);
        self.pool.name = name.or(self.pool.name);
        self.pool.database = database.or(self.pool.database);
        self.pool.guard = guard.or(self.pool.guard);
        self.pool.copy_from = copy_from.or(self.pool.copy_from);
        if let Some(text) = role {
            self.pool.role = Some(text.parse().map_err(context("pool.role"))?);
        }
        if let Some(text) = host_timeout {
            self.pool.host_timeout = Some(duration(&text).map_err(context("pool.host_timeout"))?);
        }
        if let Some(text) = switchover_drain {
            self.pool.switchover_drain = Some(duration(&text).map_err(context("pool.switchover_drain"))?);
        }
        if let Some(text) = on_fenced {
            self.pool.on_fenced = Some(text.parse().map_err(context("pool.on_fenced"))?);
        }
        let FileServer {
            listen,
            socket_directory,
            metrics,
            tls_certificate,
            tls_key,
            tls_required,
            connections_max,
            superuser_reserved_connections: reserved,
        } = file.server;
        if let Some(listen) = listen {
            self.server.listen = listen;
        }
        self.server.socket_directory = socket_directory.or(self.server.socket_directory);
        self.server.metrics_listen = metrics.or(self.server.metrics_listen);
        self.server.tls_certificate = tls_certificate.or(self.server.tls_certificate);
        self.server.tls_key = tls_key.or(self.server.tls_key);
        self.server.tls_required = tls_required.unwrap_or(self.server.tls_required);
        self.server.connections_max = connections_max.unwrap_or(self.server.connections_max);
        self.server.superuser_reserved_connections = reserved.unwrap_or(self.server.superuser_reserved_connections);
        let FileWorkload { transactions, analytics } = file.workload;
        self.workload.transactions.merge(transactions.read().map_err(context("workload.transactions"))?);
        self.workload.analytics.merge(analytics.read().map_err(context("workload.analytics"))?);
        let FileSettings { temp_tablespaces, default_tablespace, statement_memory, threads } = file.settings;
        if let Some(names) = temp_tablespaces {
            self.temp_tablespaces = names.0;
        }
        self.default_tablespace = default_tablespace.unwrap_or(self.default_tablespace);
        self.statement_memory_bytes = statement_memory.map(|size| size.0).or(self.statement_memory_bytes);
        self.threads = threads.unwrap_or(self.threads);
        Ok(self)
    }

    /// The `TIDEPOOL_…` variables among `variables`: `DATA`, `MEMORY_LIMIT`, `CLIENT_MEMORY`, `NEAR`, `FAR`, `LOG_FOLDER`, `LOG_TABLESPACE`, `LOG_SIZE`, `LISTEN`,
    /// `SOCKET_DIRECTORY`, `METRICS`, `TLS_CERTIFICATE`, `TLS_KEY`, `TLS_REQUIRED`, `CONNECTIONS_MAX`, `TEMP_TABLESPACES`, `DEFAULT_TABLESPACE`, `STATEMENT_MEMORY`, `THREADS`,
    /// `LAST_LEVEL_CACHE`, `LOCAL_PROFILE`, `PROCESS_TABLESPACE`, `TRANSACTIONS`, `ANALYTICS`, `POOL`, `POOL_NAME`, `POOL_MACHINE`, `POOL_SLICE`, `POOL_DATABASE`, `POOL_ROLE`,
    /// `POOL_COPY_FROM`, `POOL_HOST_TIMEOUT`, `POOL_ON_FENCED`. Others are none of the database's.
    pub fn environment(mut self, variables: impl IntoIterator<Item = (String, String)>) -> Result<ConfigBuilder> {
        for (name, value) in variables {
            let Some(key) = name.strip_prefix("TIDEPOOL_") else { continue };
            let wrong = |error: Error| named(error, &format!("environment variable {name}"));
            let number = |text: &str| {
                text.trim().parse::<usize>().map_err(|_| invalid(format!("\"{text}\" is not a number"))).map_err(wrong)
            };
            match key {
                "DATA" => self.data_dir = Some(value.into()),
                "MEMORY_LIMIT" => self.memory_limit_bytes = Some(value.parse::<ByteSize>().map_err(wrong)?.0),
                "CLIENT_MEMORY" => self.client_memory_bytes = Some(value.parse::<ByteSize>().map_err(wrong)?.0),
                "NEAR" => self = self.near(&value).map_err(wrong)?,
                "FAR" => self = self.far(&value).map_err(wrong)?,
                "LOG_FOLDER" => (self.log.folder, self.log.tablespace) = (Some(value.into()), None),
                "LOG_TABLESPACE" => (self.log.folder, self.log.tablespace) = (None, Some(value)),
                "LOG_ARCHIVE" => self.log.archive = Some(value.into()),
                "LOG_SIZE" => self.log.bytes_max = value.parse::<ByteSize>().map_err(wrong)?.0,
                "LISTEN" => self.server.listen = value,
                "SOCKET_DIRECTORY" => self.server.socket_directory = Some(value.into()),
                "METRICS" => self.server.metrics_listen = Some(value),
                "TLS_CERTIFICATE" => self.server.tls_certificate = Some(value.into()),
                "TLS_KEY" => self.server.tls_key = Some(value.into()),
                "TLS_REQUIRED" => self.server.tls_required = on_or_off(&value).map_err(wrong)?,
                "CONNECTIONS_MAX" => self.server.connections_max = number(&value)?,
                "TEMP_TABLESPACES" => self.temp_tablespaces = split_names(&value),
                "DEFAULT_TABLESPACE" => self.default_tablespace = value,
                "LAST_LEVEL_CACHE" => {
                    self.last_level_cache_bytes = Some(value.parse::<ByteSize>().map_err(wrong)?.0);
                }
                "LOCAL_PROFILE" => self.local_profile = Some(value),
                "PROCESS_TABLESPACE" => self.process_tablespace = Some(value),
                "STATEMENT_MEMORY" => {
                    self.statement_memory_bytes = Some(value.parse::<ByteSize>().map_err(wrong)?.0);
                }
                "THREADS" => self.threads = number(&value)?,
                "POOL" => self.pool.location = Some(value.parse().map_err(wrong)?),
                "POOL_NAME" => self.pool.name = Some(value),
                "POOL_MACHINE" => self.pool.machine = Some(u8::try_from(number(&value)?).unwrap_or(u8::MAX)),
                "POOL_SLICE" => self.pool.slice = Some(u8::try_from(number(&value)?).unwrap_or(u8::MAX)),
                "POOL_DATABASE" => self.pool.database = Some(value),
                "POOL_ROLE" => self.pool.role = Some(value.parse().map_err(wrong)?),
                "POOL_COPY_FROM" => self.pool.copy_from = Some(value.into()),
                "POOL_TIER1_INTERVAL" => self.pool.tier1_interval = Some(duration(&value).map_err(wrong)?),
                "POOL_HOST_TIMEOUT" => self.pool.host_timeout = Some(duration(&value).map_err(wrong)?),
                "POOL_SWITCHOVER_DRAIN" => self.pool.switchover_drain = Some(duration(&value).map_err(wrong)?),
                "POOL_FENCE_COMMAND" => self.pool.fence_command = Some(value),
                "POOL_READER_HOLD_MAX" => {
                    self.pool.reader_hold_max = Some(value.parse::<ByteSize>().map_err(wrong)?.0);
                }
                "POOL_ROUTE_READS" => self.pool.route_reads = Some(on_or_off(&value).map_err(wrong)?),
                "SYNCHRONOUS_STANDBY_NAMES" => self.pool.synchronous_standby_names = Some(value),
                "POOL_ON_FENCED" => self.pool.on_fenced = Some(value.parse().map_err(wrong)?),
                "TRANSACTIONS" => self.workload.transactions.merge(ClassConfig::parse(&value).map_err(wrong)?),
                "ANALYTICS" => self.workload.analytics.merge(ClassConfig::parse(&value).map_err(wrong)?),
                _ => {}
            }
        }
        Ok(self)
    }

    /// `None` keeps nothing.
    pub fn data_dir(mut self, path: Option<PathBuf>) -> ConfigBuilder {
        self.data_dir = path;
        self
    }

    /// The data folder if none was named so far.
    pub fn data_dir_default(mut self, path: impl Into<PathBuf>) -> ConfigBuilder {
        // What lives in a pool needs none.
        if self.pool.role.is_none() {
            self.data_dir.get_or_insert_with(|| path.into());
        }
        self
    }

    /// What the process may use in all; `None`: what machine and control groups let it.
    pub fn memory_limit_bytes(mut self, bytes: Option<u64>) -> ConfigBuilder {
        self.memory_limit_bytes = bytes;
        self
    }

    /// The process's own memory is in this tablespace, which is over a pool, too.
    pub fn process_tablespace(mut self, name: Option<String>) -> ConfigBuilder {
        self.process_tablespace = name;
        self
    }

    /// Nothing is kept, whatever file and environment say.
    pub fn ephemeral(mut self) -> ConfigBuilder {
        self.data_dir = None;
        self
    }

    /// What clients may make the process hold beside rows; `None`: half of what tablespaces leave.
    pub fn client_memory_bytes(mut self, bytes: Option<u64>) -> ConfigBuilder {
        self.client_memory_bytes = bytes;
        self
    }

    /// The pool that tablespaces at `pool:` lease from, the host's name there, and which of its databases this is. What is not
    /// given stays as it was said before.
    pub fn pool(mut self, location: Option<Location>, name: Option<String>, database: Option<String>) -> ConfigBuilder {
        self.pool.location = location.or(self.pool.location);
        self.pool.name = name.or(self.pool.name);
        self.pool.database = database.or(self.pool.database);
        self
    }

    /// Which of the machines this is that the pool is dealt out to, and whose slice it works in: by default its own.
    pub fn pool_machine(mut self, machine: Option<u8>, slice: Option<u8>) -> ConfigBuilder {
        self.pool.machine = machine.or(self.pool.machine);
        self.pool.slice = slice.or(self.pool.slice);
        self
    }

    /// The database lives in the pool, and the process begins as this.
    pub fn pool_role(mut self, role: PoolRole) -> ConfigBuilder {
        self.pool.role = Some(role);
        self
    }

    /// The second tier of another pool's primary, which a copy follows.
    pub fn copy_from(mut self, folder: PathBuf) -> ConfigBuilder {
        self.pool.copy_from = Some(folder);
        self
    }

    /// A primary of which nothing was heard for so long is taken over from.
    pub fn host_timeout(mut self, timeout: Duration) -> ConfigBuilder {
        self.pool.host_timeout = Some(timeout);
        self
    }

    /// `SIZE`, or what [`ConfigBuilder::far`] takes.
    pub fn near(mut self, text: &str) -> Result<ConfigBuilder> {
        self.near.merge(SpaceSpec::parse(text)?);
        Ok(self)
    }

    /// `LOCATION,size=SIZE,profile=NAME`. 22023 on nonsense.
    pub fn far(mut self, text: &str) -> Result<ConfigBuilder> {
        self.far.merge(SpaceSpec::parse(text)?);
        Ok(self)
    }

    /// Profiles beside the file's and the presets.
    pub fn profiles(mut self, profiles: Vec<Profile>) -> ConfigBuilder {
        self.profiles.extend(profiles);
        self
    }

    pub fn listen(mut self, address: impl Into<String>) -> ConfigBuilder {
        self.server.listen = address.into();
        self
    }

    pub fn socket_directory(mut self, folder: Option<PathBuf>) -> ConfigBuilder {
        self.server.socket_directory = folder;
        self
    }

    pub fn metrics_listen(mut self, address: Option<String>) -> ConfigBuilder {
        self.server.metrics_listen = address;
        self
    }

    /// Refuses clients that come over TCP without TLS.
    pub fn tls_required(mut self) -> ConfigBuilder {
        self.server.tls_required = true;
        self
    }

    pub fn tls(mut self, certificate: PathBuf, key: PathBuf) -> ConfigBuilder {
        self.server.tls_certificate = Some(certificate);
        self.server.tls_key = Some(key);
        self
    }

    pub fn connections_max(mut self, count: usize) -> ConfigBuilder {
        self.server.connections_max = count;
        self
    }

    pub fn threads(mut self, threads: usize) -> ConfigBuilder {
        self.threads = threads;
        self
    }

    pub fn temp_tablespaces(mut self, names: &str) -> ConfigBuilder {
        self.temp_tablespaces = split_names(names);
        self
    }

    pub fn default_tablespace(mut self, name: impl Into<String>) -> ConfigBuilder {
        self.default_tablespace = name.into();
        self
    }

    pub fn statement_memory_bytes(mut self, bytes: Option<u64>) -> ConfigBuilder {
        self.statement_memory_bytes = bytes;
        self
    }

    /// Checks what only the whole can tell. F0000 on contradictions.
    pub fn build(self) -> Result<Config> {
        let limit = self.memory_limit_bytes.unwrap_or_else(memory_total_bytes);
        if limit < MEMORY_LIMIT_MIN {
            return Err(config_error(format!("memory.limit must be at least {}", ByteSize(MEMORY_LIMIT_MIN))));
        }
        let space = |spec: &SpaceSpec, name: &str, size: Option<u64>| {
            spec.build(name, size, &self.profiles).map_err(|error| named(error, &format!("tablespace \"{name}\"")))
        };
        let tablespaces =
            self.tablespaces.iter().map(|(name, spec)| space(spec, name, None)).collect::<Result<Vec<_>>>()?;
        // Of this machine's memory.
        let taken = |location: &Location, size: Option<u64>| size.filter(|_| location.is_anonymous());
        let given = |spec: &SpaceSpec| taken(spec.location.as_ref().unwrap_or(&Location::Anon), spec.size_bytes);
        let sum = |spaces: &[TablespaceConfig]| {
            spaces.iter().filter_map(|space| taken(&space.location, space.size_bytes)).fold(0, u64::saturating_add)
        };
        let others = sum(&tablespaces).saturating_add(given(&self.far).unwrap_or(0));
        let near_size = match &self.near.location {
            Some(location) if !location.is_anonymous() => Some(0),
            _ => given(&self.near),
        };
        let (near_default, _) = tablespace_defaults(limit, near_size, others);
        let (_, far_default) = tablespace_defaults(limit, near_size, sum(&tablespaces));
        let near = space(&self.near, "near", Some(near_default))?;
        let far = space(&self.far, "far", Some(far_default))?;
        let in_memory = sum(&tablespaces).saturating_add(sum(std::slice::from_ref(&near)));
        let in_memory = in_memory.saturating_add(sum(std::slice::from_ref(&far)));
        let client_memory_bytes = self.client_memory_bytes.unwrap_or_else(|| client_bytes_default(limit, in_memory));
        if client_memory_bytes < CLIENT_MEMORY_MIN {
            return Err(config_error(format!("memory.clients must be at least {}", ByteSize(CLIENT_MEMORY_MIN))));
        }
        if self.threads == 0 || self.threads > 1024 {
            return Err(config_error(format!("threads must be between 1 and 1024, not {}", self.threads)));
        }
        self.workload.transactions.check("transactions")?;
        self.workload.analytics.check("analytics")?;
        if self.server.connections_max == 0 {
            return Err(config_error("connections_max must be at least 1"));
        }
        if self.server.tls_certificate.is_some() != self.server.tls_key.is_some() {
            return Err(config_error("tls_certificate and tls_key must be given together"));
        }
        if self.server.tls_required && self.server.tls_key.is_none() {
            return Err(config_error("tls_required needs tls_certificate and tls_key"));
        }
        let segment = self.log.segment_bytes;
        if !segment.is_multiple_of(4096) || !(64 << 10..=1 << 30).contains(&segment) {
            return Err(config_error("log.segment_size must be between 64kB and 1GB, in steps of 4kB"));
        }
        if self.log.bytes_max < 4 * segment as u64 {
            return Err(config_error("log.size must be at least four times log.segment_size"));
        }
        if self.log.checkpoint_timeout < Duration::from_secs(1) {
            return Err(config_error("log.checkpoint_timeout must be at least 1s"));
        }
        if self.log.archive_timeout < Duration::from_millis(100) {
            return Err(config_error("log.archive_timeout must be at least 100ms"));
        }
        if self.log.archive.is_some() && self.data_dir.is_none() {
            return Err(config_error("log.archive needs a data folder"));
        }
        if self.temp_tablespaces.is_empty() {
            return Err(config_error("temp_tablespaces must name at least one tablespace"));
        }
        let local_profile = match &self.local_profile {
            None => None,
            Some(name) => {
                Some(find_profile(&self.profiles, name).map_err(|error| named(error, "memory.local_profile"))?)
            }
        };
        let pool = self.pool.build()?;
        let spaces = tablespaces.iter().chain([&near, &far]);
        if let Some(space) = spaces.into_iter().find(|space| pool.is_none() && space.location == Location::Pool) {
            return Err(config_error(format!(
                "tablespace \"{}\" is in a pool, and pool.location names none",
                space.name
            )));
        }
        if let Some(name) = &self.process_tablespace {
            let space = tablespaces.iter().chain([&near, &far]).find(|space| space.name == *name);
            if space.is_none_or(|space| space.location != Location::Pool) {
                return Err(config_error(format!("memory.process names \"{name}\", which is no tablespace at pool:")));
            }
        }
        if pool.as_ref().is_some_and(|pool| pool.role == Some(PoolRole::Reader)) && self.data_dir.is_some() {
            return Err(config_error("a data folder beside pool.role = \"reader\"")
                .with_detail("A reader keeps nothing: a second tier is the primary's."));
        }
        if pool.as_ref().is_some_and(|pool| pool.role.is_some())
            && self.data_dir.is_some()
            && self.log.tablespace.is_some()
        {
            return Err(config_error("log.tablespace beside pool.role".to_owned())
                .with_detail("A database with a role has its log in the pool. Its data folder has a copy of it."));
        }
        Ok(Config {
            data_dir: self.data_dir,
            log: self.log,
            memory_limit_bytes: limit,
            client_memory_bytes,
            near,
            far,
            tablespaces,
            profiles: self.profiles,
            last_level_cache_bytes: self.last_level_cache_bytes,
            local_profile,
            process_tablespace: self.process_tablespace,
            temp_tablespaces: self.temp_tablespaces,
            default_tablespace: self.default_tablespace,
            statement_memory_bytes: self.statement_memory_bytes,
            threads: self.threads,
            server: self.server,
            workload: self.workload,
            pool,
        })
    }
}
