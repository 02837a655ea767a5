//! Settings of a session (`SET`, `SHOW`, `tidepool.toml`'s defaults).
//!
//! A setting is listed here only if changing it changes something, or if clients rely on its being there and there is
//! one true value: then only that value can be set. Those of PostgreSQL's that change no answer are in `accepted`.

mod accepted;
mod portable;

use crate::workload::Class;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_database::text::{TextSettings, Zone};
use tidepool_database::{CommitWait, Database, Lsn};

/// PostgreSQL's release whose behaviour and catalogue this follows.
pub const POSTGRES_VERSION: &str = "15.0";

/// The same as a number.
pub const POSTGRES_VERSION_NUMBER: u32 = 150_000;

/// Bytes of all of a session's settings of the client's own making, and of one value of any other.
pub const BYTES_MAX: usize = 1 << 20;

/// 53200 for settings of more than `BYTES_MAX`.
pub fn too_large() -> Error {
    Error::new(SqlState::OUT_OF_MEMORY, "out of memory")
        .with_detail(format!("A session's settings can have {} at most.", ByteSize(BYTES_MAX as u64)))
}

enum Kind {
    /// What it is, for good.
    ReadOnly,
    /// What it is until the server starts anew.
    OfServer,
    /// What the configuration said when it was read last.
    OfFile,
    /// Set by statements of its own, or to what it is.
    Fixed,
    Boolean,
    Integer {
        min: i64,
        max: i64,
    },
    /// Milliseconds; units ms, s, min, h, d.
    Time,
    /// Bytes; 0 is no limit.
    Size,
    /// Bytes, in so many of them where no unit is given.
    Memory {
        unit: u64,
    },
    Real,
    Text,
    /// A position in the log, or nothing.
    Position,
    /// One of these, compared without case.
    OneOf(&'static [&'static str]),
    /// PostgreSQL has more of these than the ones here; the rest are refused as not supported.
    Only(&'static [&'static str]),
    TimeZone,
    Tablespace,
    Tablespaces,
    Names,
    Isolation,
}

/// Which statements are run by plans that serve others with other values, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanSharing {
    Never,
    /// Those that come a second time.
    Repeated,
    Always,
}

/// Set for one statement after the other, so that it is no part of what plans and programs are kept for.
const READ_AFTER: &str = "tidepool.read_after";

/// Where a session's transactions run that only read.
const ROUTE_READS: &str = "tidepool.route_reads";

/// Each host's, and known to its database.
const NAMES: &str = "synchronous_standby_names";

struct Definition {
    name: &'static str,
    kind: Kind,
    default: &'static str,
    /// Told to clients when it changes.
    report: bool,
    description: &'static str,
}

const fn define(name: &'static str, kind: Kind, default: &'static str, description: &'static str) -> Definition {
    Definition { name, kind, default, report: false, description }
}

const fn report(name: &'static str, kind: Kind, default: &'static str, description: &'static str) -> Definition {
    Definition { name, kind, default, report: true, description }
}

/// In the order of `SHOW ALL`, which is the names' without case.
static DEFINITIONS: &[Definition] = &[
    report("application_name", Kind::Text, "", "The name the application gives itself, shown in pg_stat_activity."),
    define("bytea_output", Kind::Only(&["hex"]), "hex", "The text form of bytea."),
    report("client_encoding", Kind::Only(&["UTF8"]), "UTF8", "The client's character set."),
    define(
        "client_min_messages",
        Kind::OneOf(&["debug5", "debug4", "debug3", "debug2", "debug1", "log", "notice", "warning", "error"]),
        "notice",
        "The least severe messages that are sent to the client.",
    ),
    report("DateStyle", Kind::Only(&["ISO, MDY"]), "ISO, MDY", "The text form of dates and times."),
    define("default_table_access_method", Kind::Only(&["heap"]), "heap", "How tables are held."),
    define("default_tablespace", Kind::Tablespace, "", "Where new tables go."),
    define(
        "default_transaction_deferrable",
        Kind::Boolean,
        "off",
        "Whether new transactions are deferrable, which has no effect.",
    ),
    define(
        "default_transaction_isolation",
        Kind::Isolation,
        "read committed",
        "The isolation level of new transactions.",
    ),
    report("default_transaction_read_only", Kind::Boolean, "off", "Whether new transactions may only read."),
    define(
        "extra_float_digits",
        Kind::Integer { min: -15, max: 3 },
        "1",
        "Digits of floating-point text beyond the standard; above 0 the shortest exact form.",
    ),
    define(
        "idle_in_transaction_session_timeout",
        Kind::Time,
        "0",
        "The longest that a session may wait for its client within a transaction; 0 is for ever.",
    ),
    define(
        "idle_session_timeout",
        Kind::Time,
        "0",
        "The longest that a session may wait for its client outside of a transaction; 0 is for ever.",
    ),
    report("in_hot_standby", Kind::ReadOnly, "off", "Whether this is a standby."),
    report("integer_datetimes", Kind::ReadOnly, "on", "Whether timestamps are integers."),
    report("IntervalStyle", Kind::Only(&["postgres"]), "postgres", "The text form of intervals."),
    report("is_superuser", Kind::ReadOnly, "on", "Whether the user may do everything."),
    define("jit", Kind::Only(&["off"]), "off", "Whether expressions are compiled at run time: they are not."),
    define("lc_collate", Kind::ReadOnly, "C", "How text is ordered: by its bytes."),
    define("lc_ctype", Kind::ReadOnly, "C", "How characters are classified."),
    define("lock_timeout", Kind::Time, "0", "The longest wait for a lock; 0 is for ever."),
    define("max_connections", Kind::OfServer, "", "Connections at once."),
    define("max_identifier_length", Kind::ReadOnly, "63", "Bytes of a name."),
    define("max_index_keys", Kind::ReadOnly, "32", "Columns of an index."),
    define("max_prepared_transactions", Kind::ReadOnly, "0", "Transactions that can be prepared: none."),
    define(
        "plan_cache_mode",
        Kind::OneOf(&["auto", "force_generic_plan", "force_custom_plan"]),
        "auto",
        "Whether statements that differ in values share a plan: from the second one on, from the first, or never.",
    ),
    define("role", Kind::Fixed, "none", "The role that statements work for, if not the session's user."),
    report("scram_iterations", Kind::ReadOnly, "4096", "Rounds of the SCRAM hash."),
    report("search_path", Kind::Names, "\"$user\", public", "Schemas in which names without one are looked up."),
    report("server_encoding", Kind::ReadOnly, "UTF8", "The database's character set."),
    report(
        "server_version",
        Kind::ReadOnly,
        concat!("15.0 (Tidepool ", env!("CARGO_PKG_VERSION"), ")"),
        "The PostgreSQL release that this follows.",
    ),
    define("server_version_num", Kind::ReadOnly, "150000", "The PostgreSQL release as a number."),
    report("session_authorization", Kind::Fixed, "", "The session's user."),
    report(
        "standard_conforming_strings",
        Kind::Only(&["on"]),
        "on",
        "Whether backslashes in ordinary strings are just that.",
    ),
    define("statement_timeout", Kind::Time, "0", "The longest a statement may run; 0 is for ever."),
    define("superuser_reserved_connections", Kind::ReadOnly, "", "Connections, of all, that only superusers get."),
    define(
        "synchronous_commit",
        Kind::OneOf(&["on", "off", "local", "remote_write", "remote_apply"]),
        "on",
        "What a commit waits for: that the log has it on its device, or that standbys show it.",
    ),
    define(NAMES, Kind::OfFile, "", "The standbys that commits wait for at remote_apply."),
    define("temp_tablespaces", Kind::Tablespaces, "", "Where the query heap lives, in overflow order."),
    define(
        "tidepool.direct",
        Kind::Boolean,
        "on",
        "Whether statements that find their rows by an index's keys go to them without a plan.",
    ),
    define(
        "tidepool.engine",
        Kind::OneOf(&["tidepool", "datafusion"]),
        "tidepool",
        "Whose operators run queries: Tidepool's own, where it has them, or DataFusion's.",
    ),
    define(
        "tidepool.plan_cache",
        Kind::Boolean,
        "on",
        "Whether a query's plan is used again when the same query comes again.",
    ),
    define(
        READ_AFTER,
        Kind::Position,
        "",
        "A position in the log that statements wait for until this server shows it; empty is none.",
    ),
    define(
        ROUTE_READS,
        Kind::Boolean,
        "off",
        "Whether transactions that only read run at a reader of the pool, while there is one.",
    ),
    define(
        "tidepool.statement_memory",
        Kind::Size,
        "0",
        "Bytes of query heap a statement may use; 0 is as much as the tablespaces hold.",
    ),
    define("tidepool.threads", Kind::Integer { min: 1, max: 1024 }, "", "Threads that a statement runs on."),
    define(
        "tidepool.workload_class",
        Kind::OneOf(&["auto", "transactions", "analytics"]),
        "auto",
        "The class that statements wait their turn in; auto is by what each does.",
    ),
    report("TimeZone", Kind::TimeZone, "UTC", "The zone in which timestamps with time zone are shown and read."),
    define(
        "transaction_deferrable",
        Kind::Boolean,
        "off",
        "Whether this transaction is deferrable, which has no effect.",
    ),
    define("transaction_isolation", Kind::Isolation, "read committed", "The isolation level of this transaction."),
    define("transaction_read_only", Kind::Boolean, "off", "Whether this transaction may only read."),
];

/// One immutable state of a session's settings; `SET` makes the next one.
///
/// A transaction changes two of them, and most change nothing else: so the rest is shared.
#[derive(Clone, Debug)]
pub struct Settings {
    values: Arc<Values>,
    /// What `RESET` goes back to.
    defaults: Arc<Vec<String>>,
    /// Settings of the client's own making (`SET myapp.user = '…'`), and those that change no answer, where they were set.
    custom: Arc<BTreeMap<String, String>>,
    transaction_isolation: Arc<str>,
    transaction_read_only: bool,
    transaction_deferrable: bool,
    /// The server was a standby when the session last looked: its transactions may only read.
    is_standby: bool,
    /// As it is shown, too.
    read_after: Option<(Lsn, Arc<str>)>,
}

/// All but those of the transaction, which have their defaults here.
#[derive(Debug)]
struct Values {
    /// By position in `DEFINITIONS`, as `SHOW` prints them.
    list: Vec<String>,
    read: OnceLock<Read>,
}

impl Values {
    fn new(list: Vec<String>) -> Arc<Values> {
        Arc::new(Values { list, read: OnceLock::new() })
    }
}

impl Clone for Values {
    /// To be changed.
    fn clone(&self) -> Values {
        Values { list: self.list.clone(), read: OnceLock::new() }
    }
}

/// What every statement asks for, read once.
#[derive(Debug)]
struct Read {
    statement_timeout: Option<Duration>,
    lock_timeout: Option<Duration>,
    idle_session_timeout: Option<Duration>,
    idle_in_transaction_session_timeout: Option<Duration>,
    text: Arc<TextSettings>,
    commit_wait: CommitWait,
    is_direct: bool,
    routes_reads: bool,
    workload_class: Option<Class>,
    default_read_only: bool,
    default_deferrable: bool,
    default_isolation: Arc<str>,
}

/// Names and values of the settings, apart from the transaction's, that are others in `now` than in `before`.
pub(crate) fn differences(before: &Settings, now: &Settings) -> Vec<(String, String)> {
    let pairs = before.values.list.iter().zip(&now.values.list).zip(DEFINITIONS);
    let changed = pairs.filter(|((before, now), _)| before != now);
    changed.map(|((_, now), definition)| (definition.name.to_owned(), now.clone())).collect()
}

/// A row of `pg_settings` and `SHOW ALL`.
#[derive(Clone, Debug)]
pub struct SettingRow {
    pub name: &'static str,
    /// As `SHOW` prints it.
    pub value: String,
    pub description: &'static str,
}

impl Settings {
    /// The configuration's.
    pub fn new(database: &Database, user: &str) -> Settings {
        let config = database.config();
        let values: Vec<String> = DEFINITIONS
            .iter()
            .map(|definition| match definition.name {
                "temp_tablespaces" => join_names(&config.temp_tablespaces),
                "default_tablespace" => config.default_tablespace.clone(),
                "tidepool.threads" => config.planned_threads().max(1).to_string(),
                "tidepool.statement_memory" => show_size(config.statement_memory_bytes.unwrap_or(0)),
                ROUTE_READS => match config.pool.as_ref().is_some_and(|pool| pool.route_reads) {
                    true => "on".to_owned(),
                    false => "off".to_owned(),
                },
                "max_connections" => config.server.connections_max.to_string(),
                "superuser_reserved_connections" => config.server.superuser_reserved_connections.to_string(),
                "session_authorization" => user.to_owned(),
                "is_superuser" => {
                    let state = database.state();
                    let is_superuser = state.catalog.role(user).is_none_or(|role| role.superuser);
                    if is_superuser { "on".to_owned() } else { "off".to_owned() }
                }
                _ => definition.default.to_owned(),
            })
            .collect();
        Settings {
            defaults: Arc::new(values.clone()),
            values: Values::new(values),
            custom: Arc::default(),
            transaction_isolation: Arc::from("read committed"),
            transaction_read_only: database.is_following(),
            transaction_deferrable: false,
            is_standby: database.is_following(),
            read_after: None,
        }
    }

    /// Whether the server was a standby when the session last looked.
    pub fn is_standby(&self) -> bool {
        self.is_standby
    }

    /// Takes notice of the server's role. A transaction that runs stays as it began.
    pub fn set_standby(&mut self, is_standby: bool) {
        self.is_standby = is_standby;
    }

    fn read(&self) -> &Read {
        self.values.read.get_or_init(|| {
            let timeout = |name: &str| {
                let ms = parse_time_ms(self.value(name)).unwrap_or(0);
                (ms > 0).then(|| Duration::from_millis(ms))
            };
            Read {
                statement_timeout: timeout("statement_timeout"),
                lock_timeout: timeout("lock_timeout"),
                idle_session_timeout: timeout("idle_session_timeout"),
                idle_in_transaction_session_timeout: timeout("idle_in_transaction_session_timeout"),
                text: Arc::new(TextSettings {
                    time_zone: self.time_zone().to_owned(),
                    extra_float_digits: self.value("extra_float_digits").parse().unwrap_or(1),
                }),
                commit_wait: match self.value("synchronous_commit") {
                    "off" => CommitWait::None,
                    "remote_apply" => CommitWait::Applied,
                    // The log is in the pool, so what is durable has been received by all standbys.
                    _ => CommitWait::Durable,
                },
                is_direct: self.is_on("tidepool.direct"),
                routes_reads: self.is_on(ROUTE_READS),
                workload_class: Class::of_name(self.value("tidepool.workload_class")),
                default_read_only: self.is_on("default_transaction_read_only"),
                default_deferrable: self.is_on("default_transaction_deferrable"),
                default_isolation: Arc::from(self.value("default_transaction_isolation")),
            }
        })
    }

    /// To be changed.
    fn list_mut(&mut self) -> &mut Vec<String> {
        let values = Arc::make_mut(&mut self.values);
        values.read = OnceLock::new();
        &mut values.list
    }

    fn put(&mut self, index: usize, value: String) {
        match DEFINITIONS[index].name {
            "transaction_isolation" => self.transaction_isolation = Arc::from(value),
            "transaction_read_only" => self.transaction_read_only = value == "on",
            "transaction_deferrable" => self.transaction_deferrable = value == "on",
            READ_AFTER => self.read_after = value.parse().ok().map(|position| (position, Arc::from(value))),
            _ => self.list_mut()[index] = value,
        }
    }

    fn at(&self, index: usize) -> &str {
        match DEFINITIONS[index].name {
            "transaction_isolation" => &self.transaction_isolation,
            "transaction_read_only" if self.transaction_read_only => "on",
            "transaction_read_only" => "off",
            "in_hot_standby" if self.is_standby => "on",
            "transaction_deferrable" if self.transaction_deferrable => "on",
            "transaction_deferrable" => "off",
            READ_AFTER => self.read_after.as_ref().map_or("", |(_, text)| text),
            _ => &self.values.list[index],
        }
    }

    /// As `SHOW` prints it; `None` for a name that is no setting.
    pub fn get(&self, name: &str) -> Option<String> {
        match position(name) {
            Some(index) => Some(self.at(index).to_owned()),
            None => self.made_up(name),
        }
    }

    /// A setting that changes no answer, or of the client's own making.
    fn made_up(&self, name: &str) -> Option<String> {
        let set = self.custom.get(&name.to_lowercase()).cloned();
        set.or_else(|| accepted::find(name).map(|definition| definition.default.to_owned()))
    }

    /// As `get`, of what the database knows better than a session.
    pub fn shown(&self, name: &str, database: &Database) -> Option<String> {
        match name.eq_ignore_ascii_case(NAMES) {
            true => Some(database.synchronous_standby_names()),
            false => self.get(name),
        }
    }

    pub fn list(&self, database: &Database) -> Vec<SettingRow> {
        let row = |(index, definition): (usize, &Definition)| SettingRow {
            name: definition.name,
            value: match definition.name {
                NAMES => database.synchronous_standby_names(),
                _ => self.at(index).to_owned(),
            },
            description: definition.description,
        };
        let accepted = accepted::DEFINITIONS.iter().map(|definition| SettingRow {
            name: definition.name,
            value: self.made_up(definition.name).unwrap_or_default(),
            description: definition.description,
        });
        let mut rows: Vec<SettingRow> = DEFINITIONS.iter().enumerate().map(row).chain(accepted).collect();
        rows.sort_by_cached_key(|row| row.name.to_ascii_lowercase());
        rows
    }

    /// `SET name TO values`; returns the setting's own spelling of its name.
    pub fn set(&mut self, name: &str, values: &[String], database: &Database) -> Result<()> {
        let bytes: usize = values.iter().map(|value| value.len() + 2).sum();
        if bytes > BYTES_MAX {
            return Err(too_large());
        }
        let Some(index) = position(name) else {
            if let Some(definition) = accepted::find(name) {
                let value = check(definition, values, database)?;
                if value.len() + self.custom_bytes() > BYTES_MAX {
                    return Err(too_large());
                }
                Arc::make_mut(&mut self.custom).insert(definition.name.to_owned(), value);
                return Ok(());
            }
            if name.contains('.') && !name.to_lowercase().starts_with("tidepool.") {
                if self.custom_bytes() + name.len() + bytes > BYTES_MAX {
                    return Err(too_large());
                }
                Arc::make_mut(&mut self.custom).insert(name.to_lowercase(), values.join(", "));
                return Ok(());
            }
            return Err(unrecognized(name));
        };
        self.put(index, check(&DEFINITIONS[index], values, database)?);
        Ok(())
    }

    fn custom_bytes(&self) -> usize {
        self.custom.iter().map(|(name, value)| name.len() + value.len()).sum()
    }

    /// What the settings take that are not every session's.
    pub fn bytes(&self) -> u64 {
        let own: usize = self.values.list.iter().map(String::len).sum();
        (own + self.custom_bytes()) as u64
    }

    /// As `set`, and what `RESET` goes back to: start-up parameters.
    pub fn set_default(&mut self, name: &str, value: &str, database: &Database) -> Result<()> {
        self.set(name, &[value.to_owned()], database)?;
        if let Some(index) = position(name) {
            Arc::make_mut(&mut self.defaults)[index] = self.at(index).to_owned();
        }
        Ok(())
    }

    pub fn reset(&mut self, name: &str) -> Result<()> {
        match position(name) {
            Some(index) if matches!(DEFINITIONS[index].kind, Kind::ReadOnly | Kind::Fixed) => {
                Err(read_only(DEFINITIONS[index].name))
            }
            Some(index) if matches!(DEFINITIONS[index].kind, Kind::OfServer) => Err(of_server(DEFINITIONS[index].name)),
            Some(index) if matches!(DEFINITIONS[index].kind, Kind::OfFile) => Err(of_file(DEFINITIONS[index].name)),
            Some(index) => {
                self.put(index, self.defaults[index].clone());
                Ok(())
            }
            None if name.contains('.') || accepted::find(name).is_some() => {
                Arc::make_mut(&mut self.custom).remove(&name.to_lowercase());
                Ok(())
            }
            None => Err(unrecognized(name)),
        }
    }

    pub fn reset_all(&mut self) {
        // The transaction keeps its own.
        let is_of_session = |index: &usize| !DEFINITIONS[*index].name.starts_with("transaction_");
        for index in (0..DEFINITIONS.len()).filter(is_of_session) {
            self.put(index, self.defaults[index].clone());
        }
        self.custom = Arc::default();
    }

    /// Sets what only the session itself may: the transaction's settings.
    pub fn set_own(&mut self, name: &str, value: &str) {
        if let Some(index) = position(name) {
            self.put(index, value.to_owned());
        }
    }

    /// Begins a transaction, of the defaults. Returns whether it may only read.
    pub fn begin_transaction(&mut self) -> bool {
        let read = self.read();
        let (isolation, read_only) = (read.default_isolation.clone(), read.default_read_only || self.is_standby);
        let deferrable = read.default_deferrable;
        self.transaction_isolation = isolation;
        self.transaction_read_only = read_only;
        self.transaction_deferrable = deferrable;
        read_only
    }

    pub fn isolation(&self) -> &str {
        &self.transaction_isolation
    }

    pub fn is_deferrable(&self) -> bool {
        self.transaction_deferrable
    }

    /// The level of new transactions.
    pub fn default_isolation(&self) -> &str {
        &self.read().default_isolation
    }

    /// New transactions may only read.
    pub fn default_read_only(&self) -> bool {
        self.is_standby || self.read().default_read_only
    }

    pub fn statement_timeout(&self) -> Option<Duration> {
        self.read().statement_timeout
    }

    pub fn lock_timeout(&self) -> Option<Duration> {
        self.read().lock_timeout
    }

    pub fn idle_timeout(&self, in_transaction: bool) -> Option<Duration> {
        match in_transaction {
            true => self.read().idle_in_transaction_session_timeout,
            false => self.read().idle_session_timeout,
        }
    }

    pub fn commit_wait(&self) -> CommitWait {
        self.read().commit_wait
    }

    /// The position in the log that statements wait for.
    pub fn read_after(&self) -> Option<Lsn> {
        self.read_after.as_ref().map(|(position, _)| *position)
    }

    /// Whether statements may go to rows without a plan.
    pub fn is_direct(&self) -> bool {
        self.read().is_direct
    }

    /// Whether transactions that only read are to run at a reader.
    pub fn routes_reads(&self) -> bool {
        self.read().routes_reads
    }

    /// The session's own setting has new transactions only read, whatever the server's role.
    pub fn reads_by_default(&self) -> bool {
        self.read().default_read_only
    }

    /// The class that all statements are of; `None`: each is of its own.
    pub fn workload_class(&self) -> Option<Class> {
        self.read().workload_class
    }

    /// Whether a statement means the same under both: all but the transaction's settings are the same.
    pub fn mean_the_same(&self, other: &Settings) -> bool {
        Arc::ptr_eq(&self.values, &other.values) || self.values.list == other.values.list
    }

    /// Outside of transactions, what the next one will have is shown.
    pub fn follow_defaults(&mut self) {
        self.begin_transaction();
    }

    fn value(&self, name: &str) -> &str {
        position(name).map_or("", |index| self.at(index))
    }

    pub fn is_on(&self, name: &str) -> bool {
        self.value(name) == "on"
    }

    pub fn time_zone(&self) -> &str {
        self.value("timezone")
    }

    pub fn text_settings(&self) -> TextSettings {
        TextSettings::clone(&self.read().text)
    }

    pub fn shared_text_settings(&self) -> &Arc<TextSettings> {
        &self.read().text
    }

    pub fn threads(&self) -> usize {
        self.value("tidepool.threads").parse().unwrap_or(1)
    }

    /// Whether Tidepool's own operators run what they can.
    pub fn own_engine(&self) -> bool {
        self.value("tidepool.engine") == "tidepool"
    }

    /// Whether plans are used again.
    pub fn keeps_plans(&self) -> bool {
        self.value("tidepool.plan_cache") == "on"
    }

    /// Which statements may be run by plans that serve others with other values.
    pub fn plan_sharing(&self) -> PlanSharing {
        match self.value("plan_cache_mode") {
            _ if !self.keeps_plans() => PlanSharing::Never,
            "force_custom_plan" => PlanSharing::Never,
            "force_generic_plan" => PlanSharing::Always,
            _ => PlanSharing::Repeated,
        }
    }

    /// By position in `DEFINITIONS`, without the transaction's.
    pub fn values(&self) -> &[String] {
        &self.values.list
    }

    /// Whether statements do the same under both; what a client made up is asked for by its name.
    pub fn are_the_same(&self, other: &Settings) -> bool {
        self.mean_the_same(other)
            && self.transaction_isolation == other.transaction_isolation
            && self.transaction_read_only == other.transaction_read_only
            && self.transaction_deferrable == other.transaction_deferrable
            && self.is_standby == other.is_standby
    }

    pub fn statement_memory_bytes(&self) -> Option<u64> {
        let size: ByteSize = self.value("tidepool.statement_memory").parse().unwrap_or_default();
        (size.0 > 0).then_some(size.0)
    }

    pub fn temp_tablespaces(&self) -> Vec<String> {
        split_names(self.value("temp_tablespaces"))
    }

    pub fn default_tablespace(&self) -> &str {
        match self.value("default_tablespace") {
            "" => "near",
            name => name,
        }
    }

    /// Schemas in order, `$user` and quotes resolved.
    pub fn search_path(&self) -> Vec<String> {
        split_names(self.value("search_path"))
    }

    /// Whether messages of this severity (`NOTICE`, `WARNING`) go to the client.
    pub fn sends(&self, severity: &str) -> bool {
        match self.value("client_min_messages") {
            "error" => false,
            "warning" => severity != "NOTICE",
            _ => true,
        }
    }

    /// Settings reported to the client whose values differ from `before`.
    pub fn reported_changes(&self, before: &Settings) -> Vec<(String, String)> {
        // None of the transaction's is.
        if Arc::ptr_eq(&self.values, &before.values) && self.is_standby == before.is_standby {
            return Vec::new();
        }
        let changed = DEFINITIONS.iter().enumerate().filter(|(_, definition)| definition.report);
        changed
            .map(|(index, definition)| (definition.name, self.at(index), before.at(index)))
            .filter(|(_, now, before)| now != before)
            .map(|(name, now, _)| (name.to_owned(), now.to_owned()))
            .collect()
    }
}

fn position(name: &str) -> Option<usize> {
    let name = if name.eq_ignore_ascii_case("time zone") { "timezone" } else { name };
    DEFINITIONS.iter().position(|definition| definition.name.eq_ignore_ascii_case(name))
}

fn unrecognized(name: &str) -> Error {
    Error::new(SqlState::UNDEFINED_OBJECT, format!("unrecognized configuration parameter \"{name}\""))
}

fn read_only(name: &str) -> Error {
    Error::new(SqlState::CANT_CHANGE_RUNTIME_PARAM, format!("parameter \"{name}\" cannot be changed"))
}

fn of_file(name: &str) -> Error {
    let message = format!("parameter \"{name}\" cannot be changed now");
    Error::new(SqlState::CANT_CHANGE_RUNTIME_PARAM, message)
        .with_hint("Change it in the configuration file, and have that read: SELECT pg_reload_conf().")
}

fn of_server(name: &str) -> Error {
    let message = format!("parameter \"{name}\" cannot be changed without restarting the server");
    Error::new(SqlState::CANT_CHANGE_RUNTIME_PARAM, message)
}

/// The values in the form that `SHOW` prints.
fn check(definition: &Definition, values: &[String], database: &Database) -> Result<String> {
    let name = definition.name;
    let invalid = |value: &str| {
        Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("invalid value for parameter \"{name}\": \"{value}\""))
    };
    let joined = values.join(", ");
    let one = || match values {
        [value] => Ok(value.as_str()),
        _ => Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("SET {name} takes only one argument"))),
    };
    match definition.kind {
        // Clients set some of these to what they are.
        Kind::Fixed if joined.eq_ignore_ascii_case(definition.default) && !joined.is_empty() => Ok(joined),
        Kind::ReadOnly | Kind::Fixed => Err(read_only(name)),
        Kind::OfServer => Err(of_server(name)),
        Kind::OfFile => Err(of_file(name)),
        Kind::Boolean => match one()?.to_ascii_lowercase().as_str() {
            "on" | "true" | "yes" | "1" | "t" | "y" => Ok("on".to_owned()),
            "off" | "false" | "no" | "0" | "f" | "n" => Ok("off".to_owned()),
            _ => Err(Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("parameter \"{name}\" requires a Boolean value"),
            )),
        },
        Kind::Integer { min, max } => {
            let value: i64 = one()?.trim().parse().map_err(|_| invalid(&joined))?;
            if value < min || value > max {
                return Err(Error::new(
                    SqlState::INVALID_PARAMETER_VALUE,
                    format!("{value} is outside the valid range for parameter \"{name}\" ({min} .. {max})"),
                ));
            }
            Ok(value.to_string())
        }
        Kind::Time => Ok(show_time_ms(parse_time_ms(one()?).ok_or_else(|| {
            invalid(&joined).with_hint("Valid units for this parameter are \"ms\", \"s\", \"min\", \"h\", and \"d\".")
        })?)),
        Kind::Size => Ok(show_size(one()?.parse::<ByteSize>()?.0)),
        Kind::Memory { unit } => {
            let value = one()?.trim();
            let bytes = match value.parse::<u64>() {
                Ok(count) => count.checked_mul(unit).ok_or_else(|| invalid(value))?,
                Err(_) => {
                    value
                        .parse::<ByteSize>()
                        .map_err(|_| {
                            invalid(value).with_hint(
                                "Valid units for this parameter are \"B\", \"kB\", \"MB\", \"GB\", and \"TB\".",
                            )
                        })?
                        .0
                }
            };
            Ok(show_size(bytes))
        }
        Kind::Real => {
            let value: f64 = one()?.trim().parse().map_err(|_| invalid(&joined))?;
            if value.is_finite() { Ok(value.to_string()) } else { Err(invalid(&joined)) }
        }
        Kind::Text => Ok(one()?.to_owned()),
        Kind::OneOf(choices) => {
            let choice = choices.iter().find(|choice| choice.eq_ignore_ascii_case(&joined));
            choice
                .map(|&choice| choice.to_owned())
                .ok_or_else(|| invalid(&joined).with_hint(format!("Available values: {}.", choices.join(", "))))
        }
        Kind::Only(choices) => only(name, &joined, choices).ok_or_else(|| {
            Error::unsupported(format!("parameter \"{name}\" cannot be set to \"{joined}\""))
                .with_hint(format!("The only value supported is \"{}\".", choices.join("\", \"")))
        }),
        Kind::TimeZone => time_zone(one()?),
        Kind::Tablespace => {
            let value = one()?;
            if !value.is_empty() {
                database.tablespaces().get(value).map_err(|_| invalid(value).with_detail(missing(value)))?;
            }
            Ok(value.to_owned())
        }
        Kind::Tablespaces => {
            let names: Vec<String> = values.iter().flat_map(|value| split_names(value)).collect();
            if names.is_empty() {
                return Err(invalid(&joined).with_detail("The query heap must live somewhere."));
            }
            for name in &names {
                database.tablespaces().get(name)?;
            }
            Ok(join_names(&names))
        }
        Kind::Names => Ok(joined),
        Kind::Position => match one()?.trim() {
            "" => Ok(String::new()),
            text => Ok(text.parse::<Lsn>().map_err(|_| invalid(text))?.to_string()),
        },
        Kind::Isolation => isolation(&joined).map(str::to_owned),
    }
}

/// The level that a transaction asked for really runs at; 0A000 for those there are not yet.
pub fn isolation(level: &str) -> Result<&'static str> {
    match level.to_ascii_lowercase().as_str() {
        "read committed" => Ok("read committed"),
        "read uncommitted" => Ok("read uncommitted"),
        "repeatable read" => Ok("repeatable read"),
        "serializable" => Ok("serializable"),
        _ => Err(Error::new(
            SqlState::INVALID_PARAMETER_VALUE,
            format!("invalid value for parameter \"transaction_isolation\": \"{level}\""),
        )),
    }
}

fn missing(tablespace: &str) -> String {
    format!("Tablespace \"{tablespace}\" does not exist.")
}

fn only(name: &str, value: &str, choices: &'static [&'static str]) -> Option<String> {
    if let Some(choice) = choices.iter().find(|choice| choice.eq_ignore_ascii_case(value)) {
        return Some((*choice).to_owned());
    }
    let same = match name {
        "client_encoding" => {
            let plain: String = value.chars().filter(char::is_ascii_alphanumeric).collect();
            matches!(plain.to_ascii_lowercase().as_str(), "utf8" | "unicode")
        }
        // The order matters for reading dates such as 1/2/2020 only; ISO dates read the same under any.
        "DateStyle" => matches!(value.to_ascii_lowercase().replace(' ', "").as_str(), "iso" | "mdy" | "iso,mdy"),
        "standard_conforming_strings" => matches!(value.to_ascii_lowercase().as_str(), "true" | "yes" | "1"),
        _ => false,
    };
    same.then(|| choices[0].to_owned())
}

fn time_zone(value: &str) -> Result<String> {
    let trimmed = value.trim();
    if let Ok(hours) = trimmed.parse::<f64>()
        && hours.abs() < 16.0
    {
        return Ok(Zone::posix_name((hours * 60.0).round() as i32 * 60));
    }
    match Zone::canonical_name(trimmed) {
        Some(name) => Ok(name),
        None => Err(Zone::parse(value).map_or_else(|error| error, |_| Error::internal("a zone without a name"))),
    }
}

fn parse_time_ms(text: &str) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit.trim() {
        "" | "ms" => 1.0,
        "s" => 1e3,
        "min" => 60e3,
        "h" => 3_600e3,
        "d" => 86_400e3,
        _ => return None,
    };
    let ms = number.parse::<f64>().ok()? * scale;
    // PostgreSQL's limit: the milliseconds of an int.
    (ms.is_finite() && ms <= f64::from(i32::MAX)).then_some(ms.round() as u64)
}

fn show_time_ms(ms: u64) -> String {
    for (scale, unit) in [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")] {
        if ms > 0 && ms.is_multiple_of(scale) {
            return format!("{}{unit}", ms / scale);
        }
    }
    if ms == 0 { "0".to_owned() } else { format!("{ms}ms") }
}

/// Exact, unlike `ByteSize`'s form for people: it is read back.
fn show_size(bytes: u64) -> String {
    for (scale, unit) in [(ByteSize::TIB, "TB"), (ByteSize::GIB, "GB"), (ByteSize::MIB, "MB"), (ByteSize::KIB, "kB")] {
        if bytes > 0 && bytes.is_multiple_of(scale) {
            return format!("{}{unit}", bytes / scale);
        }
    }
    if bytes == 0 { "0".to_owned() } else { format!("{bytes}B") }
}

/// The names of a list, unquoted, and folded to lower case where they were not in quotes.
fn split_names(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut name = String::new();
    let (mut inside, mut quoted) = (false, false);
    let mut characters = text.chars().peekable();
    loop {
        match characters.next() {
            Some('"') if inside && characters.peek() == Some(&'"') => {
                characters.next();
                name.push('"');
            }
            Some('"') => {
                inside = !inside;
                quoted = true;
            }
            Some(character) if inside => name.push(character),
            Some(character) if character.is_whitespace() => {}
            Some(character) if character != ',' => name.extend(character.to_lowercase()),
            end => {
                let name = std::mem::take(&mut name);
                if quoted || !name.is_empty() {
                    names.push(name);
                }
                quoted = false;
                if end.is_none() {
                    return names;
                }
            }
        }
    }
}

fn join_names(names: &[String]) -> String {
    names.join(", ")
}
