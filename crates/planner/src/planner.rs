//! What all sessions of a process share.

use crate::advisory::AdvisoryLocks;
use crate::direct::cache::{Programs, Shared};
use crate::facts::{FactsExtension, SessionFacts};
use crate::plan_cache::{PlanCache, PlanCounts};
use crate::planning::{Checked, Places};
use crate::queries::{QueryInfo, QueryRegistry};
use crate::room::Room;
use crate::session::PreparedStatement;
use crate::session::{Session, SessionRow, SessionShared};
use crate::types::PostgresTypes;
use crate::workload::{ClassRow, Workload};
use datafusion::common::config::Dialect;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::optimizer::{Analyzer, AnalyzerRule};
use datafusion::prelude::SessionConfig;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tidepool_base::{Error, Result, SqlState};
use tidepool_database::config::WorkloadConfig;
use tidepool_database::{Database, HostRole};
use tidepool_engine::schedule::{Tickets, Workers};
use tidepool_heap::QueryHeap;
use tidepool_pool::words::SLOTS;
use tokio::runtime::{Handle, Runtime};

/// Stack of the threads that plan and execute. Address space only until it is used; what `statement::NESTING_MAX` needs.
pub(crate) const WORKER_STACK_BYTES: usize = 256 << 20;

/// Stack of the engine's threads: expressions are as deep as statements.
const ENGINE_STACK_BYTES: usize = WORKER_STACK_BYTES;

/// Copies of the planning state that are kept.
const STATES_MAX: usize = 64;

/// One a process.
pub struct Planner {
    database: Arc<Database>,
    /// Plans and executes what is not small and planned already, apart from the threads that serve the protocol: an operator (or
    /// a paced access) may hold a thread for long. `None` only while dropping.
    workers: Option<Runtime>,
    /// Run what the engine has of statements.
    engine: Workers,
    state: SessionState,
    /// Copies of it that no statement has now: a copy takes the lists of all functions along.
    states: Mutex<Vec<SessionState>>,
    pub(crate) plans: PlanCache,
    pub(crate) programs: Programs,
    pub(crate) prepared: Shared<Arc<PreparedStatement>>,
    /// Statements that were prepared before a client came with them.
    pub(crate) prepared_ahead: AtomicU64,
    pub(crate) queries: Arc<QueryRegistry>,
    pub(crate) advisory: Arc<AdvisoryLocks>,
    pub(crate) workload: Workload,
    /// Of statements that are long to plan.
    pub(crate) places: Places,
    pub(crate) room: Room,
    sessions: Mutex<BTreeMap<u32, Weak<SessionShared>>>,
    next_session: AtomicU32,
}

impl Planner {
    pub fn new(database: Arc<Database>) -> Result<Arc<Planner>> {
        crate::heap::install_tracer();
        let workload = Workload::new(database.config());
        let cores = database.config().workload.analytics.cores.clone();
        check_cores(&database.config().workload)?;
        let confine = move || {
            if let Err(error) = tidepool_device::confine(&cores) {
                tracing::warn!(%error, "a thread runs on processors that are not its class's");
            }
        };
        let workers = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(database.config().planned_threads().max(1))
            .on_thread_start(confine.clone())
            .thread_name("tidepool-worker")
            .thread_stack_size(WORKER_STACK_BYTES)
            .event_interval(crate::heap::WORKER_EVENT_INTERVAL)
            .enable_time()
            .build()
            .map_err(|error| Error::io("start worker threads", &error))?;
        let engine = Workers::start(database.config().planned_threads(), ENGINE_STACK_BYTES, move || {
            confine();
            crate::heap::prepare_engine_thread();
        })?;
        let first_session = first_session(&database);
        Ok(Arc::new(Planner {
            plans: PlanCache::default(),
            programs: Programs::default(),
            prepared: Shared::default(),
            prepared_ahead: AtomicU64::new(0),
            queries: Arc::new(QueryRegistry::new(database.access_log().clone())),
            places: Places::new(database.config().planned_threads()),
            database,
            workers: Some(workers),
            engine,
            state: state()?,
            states: Mutex::default(),
            advisory: Arc::default(),
            workload,
            room: Room::default(),
            sessions: Mutex::default(),
            next_session: AtomicU32::new(first_session),
        }))
    }

    /// How many plans were made and used again.
    pub fn plan_counts(&self) -> PlanCounts {
        self.plans.counts()
    }

    pub fn database(&self) -> &Arc<Database> {
        &self.database
    }

    pub fn session(self: &Arc<Self>, user: &str) -> Session {
        self.begin_session(None, |id| Session::new(self.clone(), id, user))
    }

    /// Begins a session by the number that it had, if that is free, or by the next one.
    pub(crate) fn begin_session(&self, number: Option<u32>, begin: impl FnOnce(u32) -> Session) -> Session {
        let id = {
            let mut sessions = self.sessions.lock();
            let is_free = |id: &u32| *id != 0 && !sessions.contains_key(id);
            // Numbers stand for process ids, which are positive.
            let next = || self.next_session.fetch_add(1, Ordering::Relaxed) & i32::MAX as u32;
            let id = number.filter(is_free).unwrap_or_else(|| {
                loop {
                    let id = next();
                    if is_free(&id) {
                        break id;
                    }
                }
            });
            sessions.insert(id, Weak::new());
            id
        };
        let session = begin(id);
        self.sessions.lock().insert(id, Arc::downgrade(session.shared()));
        session
    }

    pub(crate) fn forget(&self, session_id: u32) {
        self.sessions.lock().remove(&session_id);
        self.advisory.end_session(session_id);
    }

    /// Sessions that exist, for `pg_stat_activity` and metrics.
    pub fn session_count(&self) -> usize {
        self.sessions.lock().len()
    }

    /// Statements that run now.
    pub fn statements_running(&self) -> usize {
        self.queries.running_count()
    }

    /// Sessions of those who connected as `user`.
    pub fn session_count_of(&self, user: &str) -> usize {
        self.sessions().iter().filter(|session| session.user == user).count()
    }

    /// Workload classes: who runs and who waits.
    pub fn workload_classes(&self) -> [ClassRow; 2] {
        self.workload.rows()
    }

    /// Statements that run now, then the latest finished ones.
    pub fn queries(&self) -> Vec<Arc<QueryInfo>> {
        self.queries.list()
    }

    /// Cancels what a session runs. False when there is no such session.
    pub(crate) fn cancel(&self, session_id: u32) -> bool {
        self.shared(session_id).map(|session| session.cancel()).is_some()
    }

    /// Has a session's connection closed. False when there is no such session.
    pub(crate) fn terminate(&self, session_id: u32) -> bool {
        self.shared(session_id).map(|session| session.terminate()).is_some()
    }

    /// What a session shows to others, while it exists.
    pub(crate) fn shared(&self, session_id: u32) -> Option<Arc<SessionShared>> {
        self.sessions.lock().get(&session_id).and_then(Weak::upgrade)
    }

    /// Sessions that exist.
    pub(crate) fn sessions(&self) -> Vec<SessionRow> {
        self.sessions.lock().values().filter_map(Weak::upgrade).map(|session| session.row(&self.database)).collect()
    }

    pub(crate) fn workers(&self) -> Handle {
        match &self.workers {
            Some(workers) => workers.handle().clone(),
            None => unreachable!("the workers live as long as the planner"),
        }
    }

    /// What has the engine's threads work for a statement.
    pub(crate) fn engine_tickets(&self) -> Tickets {
        self.engine.tickets()
    }

    /// The state that one statement is planned with.
    pub(crate) fn state(&self, facts: &Arc<SessionFacts>) -> State {
        // Kept beyond the statement, whose heap a function that plans runs in.
        let mut state = QueryHeap::outside(|| self.states.lock().pop().unwrap_or_else(|| self.state.clone()));
        let options = state.config_mut().options_mut();
        options.extensions.insert(FactsExtension(Some(facts.clone())));
        options.execution.target_partitions = facts.settings.threads();
        let options = state.config_options().clone();
        let properties = state.execution_props_mut();
        properties.query_execution_start_time = Some(facts.transaction_start);
        // Functions are given these when they run, and find the facts in them.
        properties.config_options = Some(options);
        State { state: Some(state), planner: facts.planner.clone() }
    }
}

/// Hosts of one pool number their sessions from different places on, as a session that goes over keeps its number.
fn first_session(database: &Database) -> u32 {
    const SESSIONS_BITS: u32 = 20;
    match database.pool() {
        Some(host) if database.role() != HostRole::Alone => {
            let host = host.member().host();
            let place = u64::from(host.incarnation.0) * SLOTS as u64 + u64::from(host.slot.0);
            // A prime, just below what is left of the numbers.
            (((place % 2039) as u32) << SESSIONS_BITS) + 1
        }
        _ => 1,
    }
}

/// What a statement is planned with; it has the statement's facts.
pub(crate) struct State {
    /// `None` only while dropping.
    state: Option<SessionState>,
    planner: Arc<Planner>,
}

impl Deref for State {
    type Target = SessionState;

    fn deref(&self) -> &SessionState {
        match &self.state {
            Some(state) => state,
            None => unreachable!("a state is there until it is dropped"),
        }
    }
}

impl DerefMut for State {
    fn deref_mut(&mut self) -> &mut SessionState {
        match &mut self.state {
            Some(state) => state,
            None => unreachable!("a state is there until it is dropped"),
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        let Some(mut state) = self.state.take() else { return };
        // The facts hold a snapshot.
        QueryHeap::outside(|| {
            *state.config_mut() = self.planner.state.config().clone();
            *state.execution_props_mut() = self.planner.state.execution_props().clone();
            let mut states = self.planner.states.lock();
            if states.len() < STATES_MAX {
                states.push(state);
            }
        });
    }
}

impl Drop for Planner {
    fn drop(&mut self) {
        // The last planner may be dropped on a thread of another runtime, where waiting is not allowed.
        if let Some(workers) = self.workers.take() {
            workers.shutdown_background();
        }
    }
}

/// F0000 where a class is to run on processors that this process has not.
fn check_cores(config: &WorkloadConfig) -> Result<()> {
    let there = tidepool_device::processors()?;
    for (class, config) in [("transactions", &config.transactions), ("analytics", &config.analytics)] {
        if let Some(core) = config.cores.iter().find(|core| !there.contains(core)) {
            let message = format!("workload.{class}.cores names processor {core}, which there is not");
            let listed: Vec<String> = there.iter().map(usize::to_string).collect();
            return Err(Error::new(SqlState::CONFIG_FILE_ERROR, message)
                .with_detail(format!("This process may run on {}.", listed.join(", "))));
        }
    }
    Ok(())
}

type AnalyzedBy = Arc<dyn AnalyzerRule + Send + Sync>;

fn state() -> Result<SessionState> {
    let mut config = SessionConfig::new()
        .with_default_catalog_and_schema(crate::facts::DATABASE, "public")
        .with_create_default_catalog_and_schema(false)
        .with_information_schema(false);
    let options = config.options_mut();
    options.sql_parser.dialect = Dialect::PostgreSQL;
    options.sql_parser.parse_float_as_decimal = true;
    // `optimizer::SubqueryOrder` says which order is nobody's.
    options.sql_parser.enable_subquery_sort_elimination = false;
    options.execution.time_zone = Some("UTC".to_owned());
    // Unions keep less of what schemas say besides their fields than their plans do.
    options.execution.skip_physical_aggregate_schema_check = true;
    options.extensions.insert(FactsExtension(None));

    // Spilling would be a second overflow path beside the tablespaces' own, outside every budget.
    let disk = DiskManagerBuilder::default().with_mode(DiskManagerMode::Disabled);
    let runtime: RuntimeEnv =
        RuntimeEnvBuilder::new().with_disk_manager_builder(disk).build().map_err(crate::errors::from_datafusion)?;

    let mut rules = Analyzer::new().rules;
    // `grouping` is looked up among the keys as they were written, so before literals in them change.
    let grouping = rules.iter().position(|rule| rule.name() == "resolve_grouping_function").map_or(0, |at| at + 1);
    rules.insert(grouping, Arc::new(crate::casts::Literals));
    rules.insert(grouping + 1, Arc::new(crate::intervals::IntervalWindows));
    rules.push(Arc::new(crate::casts::Casts));
    rules.push(Arc::new(crate::intervals::IntervalKeys));
    rules.push(Arc::new(crate::catalog::Comparisons));

    let builder = SessionStateBuilder::new()
        .with_config(config)
        .with_runtime_env(Arc::new(runtime))
        .with_default_features()
        .with_analyzer_rules(rules.into_iter().map(|rule| -> AnalyzedBy { Arc::new(Checked(rule)) }).collect())
        .with_type_planner(Arc::new(PostgresTypes));
    let builder = crate::catalog::install(builder);
    Ok(crate::optimizer::install(builder).build())
}
