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

mod builder;
mod file;
mod space;

pub use crate::process_memory::memory_total_bytes;
pub use builder::ConfigBuilder;

use space::profiles_of;

use crate::process_memory::client_bytes_default;
use crate::roles::StandbyNames;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tidepool_base::{Error, Result, SqlState};
use tidepool_device::{Location, Profile};
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

fn threads_default() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn invalid(message: String) -> Error {
    Error::new(SqlState::INVALID_PARAMETER_VALUE, message)
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

#[cfg(test)]
mod tests;
