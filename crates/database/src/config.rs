//! Configuration: `tidepool.toml`, environment (`TIDEPOOL_…`) and flags, later ones winning.
//!
//! ```toml
//! data = "tidepool-data"
//!
//! [memory]
//! limit = "16GB"               # what the process may use in all
//! clients = "1GB"              # of that, what clients may make it hold beside rows
//! last_level_cache = "32MB"
//! local_profile = "local-dram"
//! # process = "near"           # a tablespace at pool: that holds the process's own memory, too
//!
//! [memory.near]
//! size = "8GB"
//! populate = "2GB"             # taken at the start and kept, rather than as it is used
//!
//! [memory.far]
//! location = "numa:1"
//! size = "64GB"
//! profile = "fpga-prototype"   # pace accesses as this device; leave out for the real thing
//! huge_pages = true
//!
//! [[tablespace]]
//! name = "pmem"
//! location = "dax:/dev/dax0.0"
//!
//! [[tablespace]]
//! name = "remote"
//! location = "paged:256MB:anon:"   # pages held remotely, with a local cache of 256 MB
//! size = "4GB"
//! profile = "rdma-56g-paging"      # the network that they come over
//!
//! [[tablespace]]
//! name = "uniform"
//! location = "numa:0*3, numa:1*1"  # striped: three stripes near to one far
//! size = "8GB"
//! profile = "none+cxl-asic"        # one for each location, or one for all
//!
//! [[profile]]
//! name = "my-expander"
//! read_latency_ns = 400
//! write_latency_ns = 300
//! read_gb_per_s = 20
//! write_gb_per_s = 12
//! mixed_gb_per_s = { "2:1" = 25, "1:1" = 24 }
//! granularity_bytes = 64
//! source = "measured on host a"
//!
//! [server]
//! listen = "127.0.0.1:5477"
//! socket_directory = "/run/tidepool"
//! metrics = "127.0.0.1:9477"
//! tls_certificate = "server.crt"
//! tls_key = "server.key"
//! tls_required = false
//! connections_max = 250
//! superuser_reserved_connections = 5
//!
//! [log]
//! folder = "/disk2/tidepool-log"   # of its own; without it `log` in the data folder
//! # tablespace = "pmem"            # instead of a folder: in this tablespace, of `size`
//! size = "1GB"                     # a checkpoint is made before it takes more
//! segment_size = "16MB"
//! checkpoint_timeout = "5min"      # and at least so often, if there is something to write
//! archive = "/backup/archive"      # keep the log there, to recover to a moment; without it the log is not kept
//! archive_timeout = "1min"         # and at most so late
//!
//! [workload.transactions]
//! running_max = 64                 # transactions at once
//! queued_max = 1000                # more that wait; others are refused
//! queue_timeout = "10s"
//!
//! [workload.analytics]
//! running_max = 4                  # queries at once
//! cores = "1, 3-5"                 # processors that work for them
//!
//! [pool]
//! location = "file:/mnt/pool"      # what tablespaces at "pool:" lease from
//! # machine = 2                    # of a pool that is dealt out, which of its hosts this machine is
//! # slice = 1                      # the slice to work in, if not the machine's own
//! name = "h1"                      # the process's name there
//! database = "orders"              # which of the pool's databases this is
//! guard = false                    # true: a store to what was published ends the process
//! # role = "auto"                  # the database lives in the pool, `data` is a second tier; or primary, standby, reader, copy
//! # copy_from = "/mnt/other/h1"    # the second tier of another pool's primary, which a copy follows
//! tier1_interval = "5s"            # how often its manifest is written there, at most
//! host_timeout = "1s"              # a primary that is silent for so long is taken over from
//! on_fenced = "exit"               # or rejoin: what a primary does that was taken over from
//! switchover_drain = "5s"          # how long a planned change of primary waits for open transactions
//! # fence_command = "…"            # makes sure that a silent primary on another machine is dead, once it was taken over from
//! # reader_hold_max = "1GB"        # a reader that holds more of the pool than that is sent away; by default a quarter of the pool
//! route_reads = false              # sessions begin with tidepool.route_reads on
//! synchronous_standby_names = ""   # standbys that commits at remote_apply wait for, as PostgreSQL reads it
//!
//! [settings]
//! temp_tablespaces = "near, far"
//! default_tablespace = "near"
//! statement_memory = "2GB"
//! threads = 8
//! ```

pub use crate::process_memory::memory_total_bytes;

use crate::process_memory::{client_bytes_default, tablespace_defaults};
use crate::roles::StandbyNames;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_device::{Location, Profile, Stripe};
use tidepool_pool::dealt::{Machine, Slice};
use tidepool_pool::pool::Pool;
use tidepool_tablespace::TablespaceConfig;

pub const LISTEN_DEFAULT: &str = "127.0.0.1:5477";
/// Of the current folder.
pub const FILE_DEFAULT: &str = "tidepool.toml";
pub const DATA_DIR_DEFAULT: &str = "tidepool-data";
/// Idle sessions cost little; the bound is there so that a runaway client cannot take all of memory.
pub const CONNECTIONS_MAX_DEFAULT: usize = 500;

/// As many processors as the kernel's sets have by default.
const CORES_MAX: usize = 1024;

/// Below these nothing works: of `memory.limit`, and of `memory.clients`.
const MEMORY_LIMIT_MIN: u64 = 64 << 20;
const CLIENT_MEMORY_MIN: u64 = 8 << 20;

/// Of a workload class.
const CLASS_COUNT_MAX: usize = 1_000_000;

/// Of `connections_max`, as PostgreSQL.
pub const SUPERUSER_RESERVED_DEFAULT: usize = 3;

#[derive(Clone, Debug)]
pub struct Config {
    /// `None`: nothing is kept (demo, tests, benchmarks).
    pub data_dir: Option<PathBuf>,
    /// Of the data folder's log.
    pub log: LogSettings,
    /// What the process may use in all.
    pub memory_limit_bytes: u64,
    /// What clients may make it hold beside rows and statements' heaps.
    pub client_memory_bytes: u64,
    pub near: TablespaceConfig,
    pub far: TablespaceConfig,
    /// Tablespaces of the file beyond `near` and `far`.
    pub tablespaces: Vec<TablespaceConfig>,
    /// Profiles of the file, which `CREATE TABLESPACE` can name too.
    pub profiles: Vec<Profile>,
    /// What the cost model takes the last-level cache to be; `None`: what the machine says.
    pub last_level_cache_bytes: Option<u64>,
    /// What the cost model takes local memory to cost; `None`: as the preset `local-dram`.
    pub local_profile: Option<Profile>,
    /// The tablespace, over a pool, that holds the process's own memory, too.
    pub process_tablespace: Option<String>,
    /// Default of `temp_tablespaces`.
    pub temp_tablespaces: Vec<String>,
    pub default_tablespace: String,
    /// Per statement; `None`: as much as the tablespaces hold.
    pub statement_memory_bytes: Option<u64>,
    pub threads: usize,
    pub server: ServerConfig,
    pub workload: WorkloadConfig,
    /// The pool that tablespaces at `pool:` lease from.
    pub pool: Option<PoolSettings>,
}

/// The pool's database of a server that does not say which.
pub const POOL_DATABASE_DEFAULT: &str = "tidepool";

/// Which pool, and what the process is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolSettings {
    /// The pool's first device.
    pub location: Location,
    /// Of a pool that is dealt out to machines which do not see each other's stores: which of them this is, and whose slice it
    /// works in, from 1 on.
    pub machine: Option<(u8, u8)>,
    /// The host's name; `None`: `tidepool-` and the process's number.
    pub name: Option<String>,
    pub database: String,
    /// What is published is mapped to be read alone.
    pub guards: bool,
    /// Main is published even if the database ends with its process: for tests.
    pub publishes: bool,
    /// The database lives in the pool, and this is what the process begins as. `None`: the pool has memory of tablespaces and
    /// nothing else.
    pub role: Option<PoolRole>,
    /// The second tier of the primary of another pool, whose database this one is a copy of.
    pub copy_from: Option<PathBuf>,
    /// A primary of which nothing was heard for so long is taken over from.
    pub host_timeout: Duration,
    /// How often a manifest is written to the pool, at most.
    pub tier1_interval: Duration,
    pub on_fenced: OnFenced,
    /// How long a switch-over waits for transactions that are open, whose clients cannot go over.
    pub switchover_drain: Duration,
    /// Makes sure that a host which was taken over from is dead, where this kernel cannot.
    pub fence_command: Option<String>,
    /// A reader for which more than that is kept of the pool is sent away. `None`: a quarter of the pool.
    pub reader_hold_max: Option<u64>,
    /// Sessions begin with `tidepool.route_reads` on: their read-only transactions run at readers.
    pub route_reads: bool,
    /// Standbys that commits wait for which want to be shown there.
    pub synchronous_standby_names: Option<Arc<StandbyNames>>,
}

impl PoolSettings {
    /// Opens the pool, or the slice of it that is meant.
    pub(crate) fn open(&self) -> Result<Pool> {
        match self.machine {
            None if self.role == Some(PoolRole::Reader) => Pool::open_as_reader(&self.location),
            None => Pool::open(&self.location),
            // From 1 on, as it was configured.
            Some((machine, slice)) => {
                Pool::open_slice(&self.location, Machine(machine.saturating_sub(1)), Slice(slice.saturating_sub(1)))
            }
        }
    }

    /// As it was written.
    pub fn synchronous_standby_names(&self) -> String {
        self.synchronous_standby_names.as_ref().map_or_else(String::new, |names| names.to_string())
    }

    /// What a configuration that names a pool's first device, and nothing else, says.
    pub fn new(location: Location) -> PoolSettings {
        PoolSettings {
            location,
            machine: None,
            name: None,
            database: POOL_DATABASE_DEFAULT.to_owned(),
            guards: false,
            publishes: false,
            role: None,
            copy_from: None,
            host_timeout: HOST_TIMEOUT_DEFAULT,
            tier1_interval: TIER1_INTERVAL_DEFAULT,
            on_fenced: OnFenced::Exit,
            switchover_drain: SWITCHOVER_DRAIN_DEFAULT,
            fence_command: None,
            reader_hold_max: None,
            route_reads: false,
            synchronous_standby_names: None,
        }
    }
}

/// What a process begins as, of a database that lives in a pool. Exhaustive and mutually exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolRole {
    /// It writes. Refused (55006) while another host is primary and alive.
    Primary,
    /// It follows, and takes over when the primary dies.
    Standby,
    /// Primary where there is none, standby otherwise.
    Auto,
    /// It follows, is read alone, and never takes over.
    Reader,
    /// It follows the log of a database in another pool, as the second tier there has it, and is primary once it is promoted.
    Copy,
}

impl PoolRole {
    pub fn name(self) -> &'static str {
        match self {
            PoolRole::Primary => "primary",
            PoolRole::Standby => "standby",
            PoolRole::Auto => "auto",
            PoolRole::Reader => "reader",
            PoolRole::Copy => "copy",
        }
    }
}

impl std::str::FromStr for PoolRole {
    type Err = Error;

    fn from_str(text: &str) -> Result<PoolRole> {
        [PoolRole::Primary, PoolRole::Standby, PoolRole::Auto, PoolRole::Reader, PoolRole::Copy]
            .into_iter()
            .find(|role| role.name() == text.trim())
            .ok_or_else(|| {
                invalid(format!("\"{text}\" is no role")).with_hint("Write primary, standby, auto, reader or copy.")
            })
    }
}

/// What a primary does once another host has taken over. It answers nothing any more in either case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFenced {
    #[default]
    Exit,
    /// It begins anew, as a standby.
    Rejoin,
}

impl std::str::FromStr for OnFenced {
    type Err = Error;

    fn from_str(text: &str) -> Result<OnFenced> {
        match text.trim() {
            "exit" => Ok(OnFenced::Exit),
            "rejoin" => Ok(OnFenced::Rejoin),
            _ => Err(invalid(format!("\"{text}\" is neither exit nor rejoin"))),
        }
    }
}

/// How often a manifest is written by default, at most.
pub const TIER1_INTERVAL_DEFAULT: Duration = Duration::from_secs(5);

/// How long a primary may be silent by default.
pub const HOST_TIMEOUT_DEFAULT: Duration = Duration::from_secs(1);

/// How long a switch-over waits for open transactions by default.
pub const SWITCHOVER_DRAIN_DEFAULT: Duration = Duration::from_secs(5);

/// A host beats every 5 ms, and a machine under load delays that by some more.
const HOST_TIMEOUT_MIN: Duration = Duration::from_millis(50);

/// What statements of each class may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkloadConfig {
    pub transactions: ClassConfig,
    pub analytics: ClassConfig,
}

/// What a workload class may have. Its defaults depend on the class: `None` stands for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassConfig {
    /// Statements, or transactions, that run at once.
    pub running_max: Option<usize>,
    /// Others that wait their turn. One more is refused.
    pub queued_max: Option<usize>,
    /// Who has waited so long is refused; zero is never.
    pub queue_timeout: Option<Duration>,
    /// Processors that the class's threads run on, by number; empty: all.
    pub cores: Vec<usize>,
}

impl ClassConfig {
    fn merge(&mut self, over: ClassConfig) {
        self.running_max = over.running_max.or(self.running_max);
        self.queued_max = over.queued_max.or(self.queued_max);
        self.queue_timeout = over.queue_timeout.or(self.queue_timeout);
        if !over.cores.is_empty() {
            self.cores = over.cores;
        }
    }

    /// `running_max=N,queued_max=N,queue_timeout=TIME,cores=LIST`, parts in any order; the list's parts are joined by `+`. 22023 on nonsense.
    fn parse(text: &str) -> Result<ClassConfig> {
        let mut class = ClassConfig::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let number =
                |text: &str| text.trim().parse::<usize>().map_err(|_| invalid(format!("\"{text}\" is not a number")));
            match part.split_once('=').map(|(key, value)| (key.trim(), value)) {
                Some(("running_max", value)) => class.running_max = Some(number(value)?),
                Some(("queued_max", value)) => class.queued_max = Some(number(value)?),
                Some(("queue_timeout", value)) => class.queue_timeout = Some(duration(value)?),
                Some(("cores", value)) => class.cores = cores(&value.replace('+', ","))?,
                _ => {
                    return Err(invalid(format!("unknown part \"{part}\""))
                        .with_hint("Write running_max=N,queued_max=N,queue_timeout=TIME,cores=LIST."));
                }
            }
        }
        Ok(class)
    }

    fn check(&self, name: &str) -> Result<()> {
        if self.running_max == Some(0) {
            return Err(config_error(format!("workload.{name}.running_max must be at least 1")));
        }
        if self.running_max.into_iter().chain(self.queued_max).any(|count| count > CLASS_COUNT_MAX) {
            return Err(config_error(format!("workload.{name}: no count may be above {CLASS_COUNT_MAX}")));
        }
        Ok(())
    }
}

/// Where the log is, and how much of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// `None`: `log` in the data folder.
    pub folder: Option<PathBuf>,
    /// In a region of this tablespace, and in no folder. That of `bytes_max` is taken at once, and the log takes no more.
    pub tablespace: Option<String>,
    /// From half of this on a checkpoint is made. A log that needs more takes more.
    pub bytes_max: u64,
    pub segment_bytes: usize,
    /// The longest time between checkpoints, if there is anything to write.
    pub checkpoint_timeout: Duration,
    /// A folder that the log is archived in.
    pub archive: Option<PathBuf>,
    /// What is durable is archived within this time.
    pub archive_timeout: Duration,
}

impl Default for LogSettings {
    fn default() -> LogSettings {
        LogSettings {
            folder: None,
            tablespace: None,
            bytes_max: 1 << 30,
            segment_bytes: 16 << 20,
            checkpoint_timeout: Duration::from_secs(300),
            archive: None,
            archive_timeout: Duration::from_secs(60),
        }
    }
}

/// What `serve` needs beyond the database.
#[derive(Clone, Debug, Default)]
pub struct ServerConfig {
    pub listen: String,
    /// Of a socket for clients on this machine.
    pub socket_directory: Option<PathBuf>,
    pub metrics_listen: Option<String>,
    pub tls_certificate: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    /// Clients that come over TCP without TLS are refused.
    pub tls_required: bool,
    pub connections_max: usize,
    /// Of these, the last ones, which only superusers get.
    pub superuser_reserved_connections: usize,
}

impl Config {
    /// Both tablespaces `anon:`, nothing kept: for tests and embedded use.
    pub fn in_memory(near_bytes: u64, far_bytes: u64) -> Config {
        let space = |name: &str, bytes| TablespaceConfig {
            name: name.to_owned(),
            location: Location::Anon,
            size_bytes: Some(bytes),
            profile: None,
            profiles: Vec::new(),
            huge_pages: false,
            populate_bytes: 0,
        };
        let limit = memory_total_bytes();
        Config {
            data_dir: None,
            log: LogSettings::default(),
            memory_limit_bytes: limit,
            client_memory_bytes: client_bytes_default(limit, near_bytes.saturating_add(far_bytes)),
            near: space("near", near_bytes),
            far: space("far", far_bytes),
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
            pool: None,
        }
    }

    /// Threads that work for statements that are planned: no more than there are processors for them.
    pub fn planned_threads(&self) -> usize {
        let cores = &self.workload.analytics.cores;
        if cores.is_empty() { self.threads } else { self.threads.min(cores.len()) }
    }

    /// Reads a file's text over the defaults; F0000 with line and key on nonsense. Unknown keys are errors.
    pub fn from_toml(text: &str) -> Result<Config> {
        ConfigBuilder::new().toml(text, "tidepool.toml")?.build()
    }

    /// What `text` names for the parts of a tablespace at `location`: one profile for all of them, or one for each, joined
    /// by `+`; `none` is none. 42704 when there is no such profile, 22023 when they are not as many as the locations.
    pub fn profiles(&self, text: &str, location: &Location) -> Result<(Option<Profile>, Vec<Option<Profile>>)> {
        profiles_of(text, location, &self.profiles)
    }

    /// A profile of the file, or a preset. 42704 when there is none.
    pub fn profile(&self, name: &str) -> Result<Profile> {
        find_profile(&self.profiles, name)
    }
}

/// The declared profile of that name, or the preset. 42704 when there is none.
fn find_profile(declared: &[Profile], name: &str) -> Result<Profile> {
    match declared.iter().find(|profile| profile.name == name) {
        Some(profile) => Ok(profile.clone()),
        None => Profile::preset(name),
    }
}

fn profiles_of(text: &str, location: &Location, own: &[Profile]) -> Result<(Option<Profile>, Vec<Option<Profile>>)> {
    let find = |name: &str| match name.trim() {
        "none" => Ok(None),
        name => find_profile(own, name).map(Some),
    };
    if !text.contains('+') || own.iter().any(|profile| profile.name == text) {
        return Ok((find(text)?, Vec::new()));
    }
    let profiles = text.split('+').map(find).collect::<Result<Vec<_>>>()?;
    let parts = location.stripes().len();
    if profiles.len() != parts {
        return Err(invalid(format!("profile names {} for {parts} locations: \"{text}\"", profiles.len())));
    }
    Ok((None, profiles))
}

fn threads_default() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// A tablespace as written in file, environment or flags; what is left out comes from below.
#[derive(Clone, Debug, Default, PartialEq)]
struct SpaceSpec {
    location: Option<Location>,
    size_bytes: Option<u64>,
    profile: Option<String>,
    huge_pages: Option<bool>,
    populate_bytes: Option<u64>,
}

impl SpaceSpec {
    /// `LOCATION,size=SIZE,profile=NAME,huge_pages=on,populate=SIZE`, parts in any order; a size alone will do. Several locations, each
    /// with its weight, are a list: `numa:0*3,numa:1*1,size=8GB,profile=none+NAME`.
    fn parse(text: &str) -> Result<SpaceSpec> {
        let mut spec = SpaceSpec::default();
        let mut locations: Vec<&str> = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            match part.split_once('=') {
                Some(("size", size)) => spec.size_bytes = Some(size.parse::<ByteSize>()?.0),
                Some(("populate", size)) => spec.populate_bytes = Some(size.parse::<ByteSize>()?.0),
                Some(("profile", name)) => spec.profile = Some(name.trim().to_owned()),
                Some(("huge_pages", value)) => {
                    spec.huge_pages = Some(match value.trim() {
                        "on" | "true" | "yes" | "1" => true,
                        "off" | "false" | "no" | "0" => false,
                        other => return Err(invalid(format!("huge_pages must be on or off, not \"{other}\""))),
                    });
                }
                Some((key, _)) if !key.contains(':') => {
                    return Err(invalid(format!("unknown part \"{key}\""))
                        .with_hint("Write LOCATION,size=SIZE,profile=NAME,huge_pages=on,populate=SIZE."));
                }
                _ if part.starts_with(|c: char| c.is_ascii_digit()) => {
                    spec.size_bytes = Some(part.parse::<ByteSize>()?.0);
                }
                _ => locations.push(part),
            }
        }
        if !locations.is_empty() {
            spec.location = Some(locations.join(", ").parse()?);
        }
        Ok(spec)
    }

    fn merge(&mut self, over: SpaceSpec) {
        // A size belongs to a device: another location does not inherit it.
        if over.location.is_some() && over.location != self.location {
            self.size_bytes = None;
            self.populate_bytes = None;
        }
        self.location = over.location.or(self.location.take());
        self.size_bytes = over.size_bytes.or(self.size_bytes);
        self.profile = over.profile.or(self.profile.take());
        self.huge_pages = over.huge_pages.or(self.huge_pages);
        self.populate_bytes = over.populate_bytes.or(self.populate_bytes);
    }

    fn build(&self, name: &str, size_default: Option<u64>, profiles: &[Profile]) -> Result<TablespaceConfig> {
        let location = self.location.clone().unwrap_or(Location::Anon);
        let (profile, profiles) = match self.profile.as_deref() {
            None => (None, Vec::new()),
            Some(wanted) => profiles_of(wanted, &location, profiles)?,
        };
        let sized = location.is_anonymous();
        if self.size_bytes == Some(0) {
            return Err(invalid(format!("tablespace \"{name}\" cannot have size 0")));
        }
        let config = TablespaceConfig {
            name: name.to_owned(),
            size_bytes: self.size_bytes.or(if sized { size_default } else { None }),
            location,
            profile,
            profiles,
            huge_pages: self.huge_pages.unwrap_or(true),
            populate_bytes: self.populate_bytes.unwrap_or(0),
        };
        config.check_populate()?;
        Ok(config)
    }
}

fn invalid(message: String) -> Error {
    Error::new(SqlState::INVALID_PARAMETER_VALUE, message)
}

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

/// A profile as [`ConfigBuilder::toml`] takes it: a `[[profile]]` of its own.
pub fn profile_toml(profile: &Profile) -> String {
    let text = |text: &str| toml::Value::String(text.to_owned());
    let mut lines = format!("[[profile]]\nname = {}\n", text(&profile.name));
    let number =
        |lines: &mut String, key: &str, value: f64| lines.push_str(&format!("{key} = {}\n", toml::Value::Float(value)));
    number(&mut lines, "read_latency_ns", profile.read_latency_ns);
    number(&mut lines, "write_latency_ns", profile.write_latency_ns);
    number(&mut lines, "read_gb_per_s", profile.read_gb_per_s);
    number(&mut lines, "write_gb_per_s", profile.write_gb_per_s);
    if !profile.mixed_gb_per_s.is_empty() {
        let mixes = profile.mixed_gb_per_s.iter();
        let mixes: Vec<String> = mixes.map(|mix| format!("\"{mix}\" = {}", toml::Value::Float(mix.gb_per_s))).collect();
        lines.push_str(&format!("mixed_gb_per_s = {{ {} }}\n", mixes.join(", ")));
    }
    lines.push_str(&format!("granularity_bytes = {}\n", profile.granularity_bytes));
    if let Some(link) = &profile.link {
        lines.push_str(&format!("link = {}\n", text(link)));
    }
    lines.push_str(&format!("source = {}\n", text(&profile.source)));
    lines
}

/// A number and `ms`, `s`, `min` or `h`, as PostgreSQL writes them.
fn duration(text: &str) -> Result<Duration> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit = match text[digits..].trim() {
        "ms" => 1,
        "s" => 1_000,
        "min" => 60_000,
        "h" => 3_600_000,
        _ => return Err(invalid(format!("\"{text}\" is not a time")).with_hint("Write 30s, 5min or 1h.")),
    };
    let number = text[..digits].parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    number.map(Duration::from_millis).ok_or_else(|| invalid(format!("\"{text}\" is not a time")))
}

/// Numbers of processors, as `0, 2-5`. 22023 on nonsense.
pub fn cores(text: &str) -> Result<Vec<usize>> {
    let wrong = || invalid(format!("\"{text}\" is no list of processors")).with_hint("Write 0, 2-5.");
    let mut cores = Vec::new();
    for part in text.split(',').map(str::trim) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<usize>().ok().filter(|core| *core < CORES_MAX).ok_or_else(wrong);
        let (first, last) = (number(first)?, number(last)?);
        if last < first {
            return Err(wrong());
        }
        cores.extend(first..=last);
    }
    cores.sort_unstable();
    cores.dedup();
    Ok(cores)
}

fn config_error(message: impl Into<String>) -> Error {
    Error::new(SqlState::CONFIG_FILE_ERROR, message)
}

/// The same problem as one of the configuration, with where it was found in front.
fn named(error: Error, place: &str) -> Error {
    let mut named = config_error(format!("{place}: {}", error.message()));
    if let Some(detail) = error.detail() {
        named = named.with_detail(detail);
    }
    if let Some(hint) = error.hint() {
        named = named.with_hint(hint);
    }
    named
}

/// The key of the line that `position` is in, with its table's name in front.
fn key_at(text: &str, position: usize) -> Option<String> {
    let line_end = text[position..].find('\n').map_or(text.len(), |at| position + at);
    let mut table = "";
    let mut key = None;
    for line in text[..line_end].lines() {
        let line = line.trim();
        key = None;
        if line.starts_with('[') {
            table = line.split(']').next().unwrap_or("").trim_start_matches('[').trim();
            key = Some("");
        } else if let Some((name, _)) = line.split_once('=') {
            key = Some(name.trim());
        }
    }
    let key = key?;
    Some(match (table.is_empty(), key.is_empty()) {
        (true, _) => key.to_owned(),
        (false, true) => table.to_owned(),
        (false, false) => format!("{table}.{key}"),
    })
}

fn on_or_off(value: &str) -> Result<bool> {
    match value.trim() {
        "on" | "true" => Ok(true),
        "off" | "false" => Ok(false),
        _ => Err(invalid(format!("\"{value}\" is neither on nor off"))),
    }
}

/// A comma-separated list of names, quotes around them taken off.
fn split_names(text: &str) -> Vec<String> {
    text.split(',').map(|name| name.trim().trim_matches('"').to_owned()).filter(|name| !name.is_empty()).collect()
}

// ---------------------------------------------------------------------------------------------- the file, as written

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileConfig {
    data: Option<PathBuf>,
    #[serde(default)]
    memory: FileMemory,
    #[serde(default)]
    tablespace: Vec<FileTablespace>,
    #[serde(default)]
    profile: Vec<Profile>,
    #[serde(default)]
    log: FileLog,
    #[serde(default)]
    server: FileServer,
    #[serde(default)]
    workload: FileWorkload,
    #[serde(default)]
    pool: FilePool,
    #[serde(default)]
    settings: FileSettings,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileLog {
    folder: Option<PathBuf>,
    tablespace: Option<String>,
    size: Option<Size>,
    segment_size: Option<Size>,
    checkpoint_timeout: Option<String>,
    archive: Option<PathBuf>,
    archive_timeout: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FilePool {
    location: Option<Place>,
    machine: Option<u8>,
    slice: Option<u8>,
    name: Option<String>,
    database: Option<String>,
    guard: Option<bool>,
    role: Option<String>,
    copy_from: Option<PathBuf>,
    host_timeout: Option<String>,
    tier1_interval: Option<String>,
    on_fenced: Option<String>,
    switchover_drain: Option<String>,
    fence_command: Option<String>,
    reader_hold_max: Option<Size>,
    route_reads: Option<bool>,
    synchronous_standby_names: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileMemory {
    limit: Option<Size>,
    clients: Option<Size>,
    last_level_cache: Option<Size>,
    local_profile: Option<String>,
    process: Option<String>,
    near: Option<FileSpace>,
    far: Option<FileSpace>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSpace {
    location: Option<Place>,
    size: Option<Size>,
    profile: Option<String>,
    huge_pages: Option<bool>,
    populate: Option<Size>,
}

impl From<FileSpace> for SpaceSpec {
    fn from(space: FileSpace) -> SpaceSpec {
        SpaceSpec {
            location: space.location.map(|place| place.0),
            size_bytes: space.size.map(|size| size.0),
            profile: space.profile,
            huge_pages: space.huge_pages,
            populate_bytes: space.populate.map(|size| size.0),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileTablespace {
    name: String,
    location: Place,
    size: Option<Size>,
    profile: Option<String>,
    huge_pages: Option<bool>,
    populate: Option<Size>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileServer {
    listen: Option<String>,
    socket_directory: Option<PathBuf>,
    metrics: Option<String>,
    tls_certificate: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    tls_required: Option<bool>,
    connections_max: Option<usize>,
    superuser_reserved_connections: Option<usize>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileWorkload {
    #[serde(default)]
    transactions: FileClass,
    #[serde(default)]
    analytics: FileClass,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileClass {
    running_max: Option<usize>,
    queued_max: Option<usize>,
    queue_timeout: Option<String>,
    cores: Option<String>,
}

impl FileClass {
    fn read(self) -> tidepool_base::Result<ClassConfig> {
        Ok(ClassConfig {
            running_max: self.running_max,
            queued_max: self.queued_max,
            queue_timeout: self.queue_timeout.as_deref().map(duration).transpose()?,
            cores: self.cores.as_deref().map_or(Ok(Vec::new()), cores)?,
        })
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileSettings {
    temp_tablespaces: Option<Names>,
    default_tablespace: Option<String>,
    statement_memory: Option<Size>,
    threads: Option<usize>,
}

/// Bytes as a number, or as text with a unit.
struct Size(u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Bytes(u64),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Bytes(bytes) => Ok(Size(bytes)),
            Written::Text(text) => text.parse().map(|size: ByteSize| Size(size.0)).map_err(D::Error::custom),
        }
    }
}

/// One text, or a list of locations, each a text or a table with `location` and `weight`.
struct Place(Location);

impl<'de> Deserialize<'de> for Place {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Place, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Text(String),
            List(Vec<Element>),
        }
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Element {
            Text(String),
            Table { location: String, weight: Option<u32> },
        }
        let list = match Written::deserialize(deserializer)? {
            Written::Text(text) => return text.parse().map(Place).map_err(D::Error::custom),
            Written::List(list) => list,
        };
        let stripe = |element: Element| match element {
            Element::Text(text) => text.parse::<Stripe>(),
            Element::Table { location, weight } => {
                Ok(Stripe { location: location.parse()?, weight: weight.unwrap_or(1) })
            }
        };
        let stripes = list.into_iter().map(stripe).collect::<tidepool_base::Result<Vec<_>>>();
        stripes.and_then(Location::of_stripes).map(Place).map_err(D::Error::custom)
    }
}

struct Names(Vec<String>);

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Names, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            List(Vec<String>),
            Text(String),
        }
        Ok(Names(match Written::deserialize(deserializer)? {
            Written::List(names) => names,
            Written::Text(text) => split_names(&text),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_file_is_read() {
        let documented: String = include_str!("config.rs")
            .lines()
            .skip_while(|line| *line != "//! ```toml")
            .skip(1)
            .take_while(|line| *line != "//! ```")
            .map(|line| format!("{}\n", line.trim_start_matches("//!")))
            .collect();
        let config = Config::from_toml(&documented).unwrap();
        assert_eq!(config.data_dir.as_deref(), Some(Path::new("tidepool-data")));
        assert_eq!((config.memory_limit_bytes, config.client_memory_bytes), (16 << 30, 1 << 30));
        assert_eq!(config.near.size_bytes, Some(8 << 30));
        assert_eq!(config.near.location, Location::Anon);
        assert_eq!(config.far.location, Location::Numa(1));
        assert_eq!(config.far.profile.as_ref().map(|profile| profile.name.as_str()), Some("fpga-prototype"));
        let paged = &config.tablespaces[1];
        assert_eq!((paged.location.to_string().as_str(), paged.size_bytes), ("paged:256MB:anon:", Some(4 << 30)));
        assert_eq!(config.tablespaces[0].name, "pmem");
        assert_eq!(config.tablespaces[0].size_bytes, None);
        assert_eq!(config.last_level_cache_bytes, Some(32 << 20));
        assert_eq!(config.local_profile, Some(Profile::preset("local-dram").unwrap()));
        let error = Config::from_toml("[memory]\nlocal_profile = \"nowhere\"").unwrap_err();
        assert_eq!(error.code(), SqlState::CONFIG_FILE_ERROR);
        assert!(error.message().contains("memory.local_profile"), "{error:?}");
        let uniform = config.tablespaces.iter().find(|space| space.name == "uniform").unwrap();
        assert_eq!(uniform.location.to_string(), "numa:0*3, numa:1*1");
        assert_eq!(uniform.profile_names().as_deref(), Some("none+cxl-asic"));
        let profile = config.profile("my-expander").unwrap();
        assert_eq!((profile.read_gb_per_s, profile.write_gb_per_s), (20.0, 12.0));
        let mixes: Vec<_> = profile.mixed_gb_per_s.iter().map(|mix| (mix.to_string(), mix.gb_per_s)).collect();
        assert_eq!(mixes, [("2:1".to_owned(), 25.0), ("1:1".to_owned(), 24.0)]);
        let pool = PoolSettings {
            name: Some("h1".to_owned()),
            database: "orders".to_owned(),
            ..PoolSettings::new(Location::File("/mnt/pool".into()))
        };
        assert_eq!(config.pool, Some(pool));
        assert_eq!(config.temp_tablespaces, ["near", "far"]);
        assert_eq!(config.statement_memory_bytes, Some(2 << 30));
        let server = &config.server;
        assert_eq!((config.threads, server.connections_max, server.superuser_reserved_connections), (8, 250, 5));
        let transactions = ClassConfig {
            running_max: Some(64),
            queued_max: Some(1000),
            queue_timeout: Some(Duration::from_secs(10)),
            cores: Vec::new(),
        };
        let analytics = ClassConfig { running_max: Some(4), cores: vec![1, 3, 4, 5], ..ClassConfig::default() };
        assert_eq!(config.workload, WorkloadConfig { transactions, analytics });
    }

    #[test]
    fn profiles_are_written_as_they_are_read() {
        for preset in Profile::presets() {
            let odd = Profile { name: format!("a \"{}\"\n\\", preset.name), link: Some("pool".to_owned()), ..preset };
            let config = Config::from_toml(&format!("data = \"d\"\n\n{}", profile_toml(&odd))).unwrap();
            assert_eq!(config.profiles, [odd]);
        }
    }

    #[test]
    fn the_empty_file_gives_the_defaults() {
        let config = Config::from_toml("").unwrap();
        assert_eq!(config.server.listen, "127.0.0.1:5477");
        assert!(config.near.size_bytes > config.far.size_bytes);
        assert!(config.data_dir.is_none() && config.near.profile.is_none());
    }

    #[test]
    fn nonsense_is_refused_with_line_and_key() {
        for (text, place) in [
            ("[memory]\nlimit = \"1MB\"\n", "memory.limit must be at least 64 MB"),
            ("[memory]\nclients = \"1MB\"\n", "memory.clients must be at least 8 MB"),
            ("[memory.near]\nsize = \"12XB\"\n", "line 2, key \"memory.near.size\""),
            ("[memory.far]\nlocation = \"moon:1\"\n", "line 2, key \"memory.far.location\""),
            ("[server]\nlisten = 5\n", "line 2, key \"server.listen\""),
            ("[server]\n\ncolour = \"red\"\n", "line 3, key \"server.colour\""),
            ("[settings]\nthreads = -1\n", "line 2, key \"settings.threads\""),
            ("[settings]\nthreads = 0\n", "threads must be"),
            ("[workload.analytics]\nrunning_max = 0\n", "workload.analytics.running_max must be at least 1"),
            ("[workload.analytics]\nqueued_max = 2000000\n", "no count may be above"),
            ("[workload.analytics]\ncores = \"3-1\"\n", "no list of processors"),
            ("[workload.transactions]\nqueue_timeout = \"soon\"\n", "is not a time"),
            ("[workload.dashboards]\n", "key \"workload"),
            ("[pool]\nname = \"h1\"\n", "need pool.location"),
            ("[pool]\nlocation = \"anon:\"\n", "must be file:PATH or dax:PATH"),
            ("[pool]\nrole = \"auto\"\n", "needs pool.location"),
            ("[pool]\nlocation = \"file:/p\"\nrole = \"boss\"\n", "is no role"),
            ("[pool]\nlocation = \"file:/p\"\nslice = 1\n", "needs pool.machine"),
            ("[pool]\nlocation = \"file:/p\"\nmachine = 0\n", "count from 1"),
            ("[pool]\nlocation = \"file:/p\"\nhost_timeout = \"1ms\"\n", "at least 50ms"),
            ("[pool]\nlocation = \"file:/p\"\non_fenced = \"sulk\"\n", "neither exit nor rejoin"),
            (
                "data = \"d\"\n[log]\ntablespace = \"near\"\n[pool]\nlocation = \"file:/p\"\nrole = \"auto\"\n",
                "log.tablespace beside pool.role",
            ),
            ("[memory.far]\nlocation = \"pool:\"\n", "pool.location names none"),
            ("nonsense", "line 1"),
            ("[memory.near]\nprofile = \"no such\"\n", "tablespace \"near\""),
            ("[server]\ntls_key = \"x\"\n", "tls_certificate and tls_key"),
            ("[[tablespace]]\nname = \"near\"\nlocation = \"anon:\"\n", "declared twice"),
        ] {
            let error = Config::from_toml(text).unwrap_err();
            assert_eq!(error.code(), SqlState::CONFIG_FILE_ERROR, "{text}");
            assert!(error.message().contains(place), "{text:?}: {error}");
        }
    }

    #[test]
    fn several_locations_are_written_in_three_ways() {
        let space =
            |text: &str| Config::from_toml(&format!("[memory.far]\nsize = \"1GB\"\n{text}\n")).map(|config| config.far);
        let expected = space("location = \"anon:*2, numa:1\"").unwrap();
        assert_eq!(expected.location.to_string(), "anon:*2, numa:1*1");
        assert_eq!(space("location = [\"anon:*2\", \"numa:1\"]").unwrap(), expected);
        let tables = "location = [{ location = \"anon:\", weight = 2 }, { location = \"numa:1\" }]";
        assert_eq!(space(tables).unwrap(), expected);
        // In a list a path may look like a weight or another location.
        let odd = space("location = [{ location = \"file:/a*2\" }, \"\\\"file:/b, anon:\\\"\"]").unwrap();
        assert_eq!(odd.location.to_string(), "\"file:/a*2\"*1, \"file:/b, anon:\"*1");
        let flags = ConfigBuilder::new().far("anon:*2,numa:1,size=1GB,profile=none+cxl-asic").unwrap().build().unwrap();
        assert_eq!((flags.far.location, flags.far.profiles.len()), (expected.location, 2));
        for (text, code) in [
            ("location = \"anon:*0, anon:\"", "weight"),
            ("location = \"anon:, anon:\"\nprofile = \"none+none+cxl-asic\"", "profile names 3 for 2 locations"),
            ("location = [{ location = \"anon:\", weight = 101 }, \"anon:\"]", "weight"),
        ] {
            let error = space(text).unwrap_err();
            assert_eq!(error.code(), SqlState::CONFIG_FILE_ERROR);
            assert!(error.message().contains(code), "{error}");
        }
    }

    #[test]
    fn tablespaces_leave_room_in_the_limit() {
        let sizes = |text: &str| {
            let config = Config::from_toml(&format!("[memory]\nlimit = \"800MB\"\n{text}")).unwrap();
            let size = |space: &TablespaceConfig| space.size_bytes.unwrap_or(0) >> 20;
            (size(&config.near), size(&config.far), config.client_memory_bytes >> 20)
        };
        let (near, far, clients) = sizes("");
        assert!(near > far && near + far <= 800 - 256 && clients >= 128, "{near}, {far}, {clients}");
        // What is given for one leaves less to the other.
        assert_eq!(sizes("[memory.near]\nsize = \"500MB\"\n").0, 500);
        assert!(sizes("[memory.near]\nsize = \"500MB\"\n").1 <= 44);
        assert!(sizes("[memory.far]\nsize = \"500MB\"\n").0 <= 44);
        assert!(sizes("[[tablespace]]\nname = \"more\"\nlocation = \"anon:\"\nsize = \"500MB\"\n").0 <= 44);
        let environment = [("TIDEPOOL_MEMORY_LIMIT", "1GB"), ("TIDEPOOL_CLIENT_MEMORY", "50MB")];
        let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let config = ConfigBuilder::new().environment(environment).unwrap().build().unwrap();
        assert_eq!((config.memory_limit_bytes, config.client_memory_bytes), (1 << 30, 50 << 20));
    }

    #[test]
    fn environment_goes_over_the_file_and_flags_over_both() {
        let file = ConfigBuilder::new()
            .toml("data = \"a\"\n[memory.far]\nlocation = \"numa:1\"\nsize = \"1GB\"\n", "f")
            .unwrap();
        let variables = [("TIDEPOOL_DATA", "b"), ("TIDEPOOL_NEAR", "3GB"), ("TIDEPOOL_LOG", "debug"), ("HOME", "/")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let builder = file.environment(variables).unwrap();
        let config = builder.clone().far("size=2GB").unwrap().build().unwrap();
        assert_eq!(config.data_dir.as_deref(), Some(Path::new("b")));
        assert_eq!(config.near.size_bytes, Some(3 << 30));
        assert_eq!((config.far.location, config.far.size_bytes), (Location::Numa(1), Some(2 << 30)));
        // Another device does not inherit the size.
        let config = builder.clone().far("file:/dev/shm/x").unwrap().build().unwrap();
        assert_eq!(config.far.size_bytes, None);
        let config = builder.clone().far("anon:,size=5GB,profile=fpga-prototype").unwrap().build().unwrap();
        assert_eq!((config.far.size_bytes, config.far.profile.is_some()), (Some(5 << 30), true));
        let config = builder.clone().far("paged:25%:numa:0,size=5GB,profile=infiniswap").unwrap().build().unwrap();
        assert_eq!(
            (config.far.location.to_string().as_str(), config.far.size_bytes),
            ("paged:25%:numa:0", Some(5 << 30))
        );
        assert!(builder.clone().far("paged:64MB,size=5GB").is_err());
        assert!(builder.clone().far("anon:,speed=3").is_err());
        let class = [("TIDEPOOL_ANALYTICS".to_owned(), "running_max=2, cores=1+4-5,queue_timeout=0s".to_owned())];
        let config = builder.clone().environment(class).unwrap().build().unwrap();
        let analytics = ClassConfig {
            running_max: Some(2),
            queued_max: None,
            queue_timeout: Some(Duration::ZERO),
            cores: vec![1, 4, 5],
        };
        assert_eq!(config.workload, WorkloadConfig { analytics, ..WorkloadConfig::default() });
        let wrong = [("TIDEPOOL_ANALYTICS".to_owned(), "fast=yes".to_owned())];
        assert!(builder.clone().environment(wrong).unwrap_err().message().contains("unknown part"));
        let wrong = [("TIDEPOOL_THREADS".to_owned(), "many".to_owned())];
        let error = builder.environment(wrong).unwrap_err();
        assert_eq!(error.message(), "environment variable TIDEPOOL_THREADS: \"many\" is not a number");
    }
}
