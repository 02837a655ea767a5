//! Optimised plans of queries that were planned before.
//!
//! Between two runs of the same query its plan differs by what the statistics say, and that only matters once there are far more rows, or
//! far fewer. What depends on the data itself (how operators work, what scans read, keys' ranges) is found out after this, anew for each
//! statement and its snapshot; and results are never kept.
//!
//! A plan is used again for the same syntax, or for the same but for the values in it ([`crate::generic`]), under the same settings, for the same role,
//! while nothing was created, changed, dropped or granted. Queries with views, functions that ask for time or session, and words such as `today` in
//! their literals are planned each time.

use crate::facts::SessionFacts;
use crate::generic::Template;
use crate::origins::Origins;
use crate::rewrites::RewritePlan;
use crate::scan::{Lasting, TableProvider};
use crate::settings::Settings;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Result as PlanResult, ScalarValue, internal_err};
use datafusion::datasource::{provider_as_source, source_as_provider};
use datafusion::logical_expr::{Expr, LogicalPlan, TableSource, Volatility};
use datafusion::sql::sqlparser::ast;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidepool_base::{RoleId, TableId};
use tidepool_database::StateMark;
use tidepool_heap::Held;

/// Plans that are kept, and what is known of templates.
const ENTRIES_MAX: usize = 2048;

/// What an entry takes beside its plan and its text.
const ENTRY_BYTES: u64 = 256;

/// Nodes and expressions of a plan that is kept.
const PARTS_MAX: usize = 4096;

/// What a plan takes of memory with its query, and each node and expression of it: about, and rather more.
const PLAN_BYTES: u64 = 4 << 10;
const PART_BYTES: u64 = 1 << 10;

/// Rows by which a table may change whatever its size.
const ROWS_FEW: u64 = 1024;

#[derive(Default)]
pub struct PlanCache {
    kept: Mutex<Kept>,
    made: AtomicU64,
    reused: AtomicU64,
}

/// Plans of operators since the start of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanCounts {
    /// Optimised, whether they were run or kept for others.
    pub made: u64,
    /// Statements that were served by one that was kept.
    pub reused: u64,
}

#[derive(Default)]
struct Kept {
    /// By the hash of what it is of, the role and the settings; and when each was used last.
    entries: HashMap<u64, (Entry, u64)>,
    clock: u64,
    /// Of all of them, about.
    bytes: u64,
}

#[derive(Clone)]
enum Entry {
    Plan(Arc<KeptPlan>),
    Template(Arc<KeptTemplate>),
}

struct KeptTemplate {
    key: String,
    role: RoleId,
    settings: Arc<Settings>,
    state: StateMark,
    known: TemplateState,
}

/// What is known of statements that differ in values only.
#[derive(Clone)]
pub(crate) enum TemplateState {
    /// Nothing; it is known from now on that there was one.
    Unseen,
    /// One was seen; and so many could not be served. `reads_much`: the last one that was planned by itself reads so much that planning is not what
    /// takes time.
    Seen {
        failures: u8,
        reads_much: bool,
    },
    /// Each is planned by itself.
    Refused,
    Serves(Arc<Template>),
}

/// What a plan is of.
#[derive(PartialEq, Hash)]
enum Subject {
    Query(Box<ast::Query>),
    /// A template, and the values of its pinned parameters.
    Template(String, Vec<ScalarValue>),
}

pub(crate) struct KeptPlan {
    subject: Subject,
    role: RoleId,
    settings: Arc<Settings>,
    state: StateMark,
    /// Its scans are of [`Unbound`] tables: nothing of a snapshot is held.
    plan: LogicalPlan,
    origins: Arc<Origins>,
    /// Those that it reads, when it was made.
    tables: TableRows,
    /// What each scan of a template's plan was expected to give back.
    pub rows: Vec<f64>,
    /// Nodes and expressions.
    pub parts: u64,
    /// What it takes of memory, about.
    bytes: u64,
}

/// Tables, and how many rows each has.
type TableRows = Vec<(TableId, u64)>;

/// A table, whichever its rows are.
struct Unbound {
    table: Lasting,
    schema: SchemaRef,
}

impl TableSource for Unbound {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}

impl Entry {
    fn bytes(&self) -> u64 {
        match self {
            Entry::Plan(plan) => plan.bytes,
            Entry::Template(template) => {
                let of_template = match &template.known {
                    TemplateState::Serves(template) => template.bytes(),
                    _ => 0,
                };
                ENTRY_BYTES + template.key.len() as u64 + of_template
            }
        }
    }
}

impl KeptTemplate {
    fn is_for(&self, facts: &SessionFacts, key: &str) -> bool {
        self.role == facts.role.id
            && facts.version.is_of(&self.state)
            && self.settings.are_the_same(&facts.settings)
            && self.key == key
    }
}

impl KeptPlan {
    fn new(
        facts: &SessionFacts,
        subject: Subject,
        optimized: &LogicalPlan,
        origins: Arc<Origins>,
        rows: Vec<f64>,
    ) -> Option<KeptPlan> {
        let (plan, tables) = unbound(optimized, facts).ok().flatten()?;
        let parts = parts_of(&plan);
        let bytes = PLAN_BYTES + PART_BYTES * parts;
        Some(KeptPlan {
            subject,
            role: facts.role.id,
            settings: facts.settings.clone(),
            state: facts.version.mark(),
            plan,
            origins,
            tables,
            rows,
            parts,
            bytes,
        })
    }

    /// The plan of a template for these values of its pinned parameters. `None` for one that reads more than tables.
    pub(crate) fn of_template(
        facts: &SessionFacts,
        key: &str,
        pinned: Vec<ScalarValue>,
        optimized: &LogicalPlan,
        origins: Arc<Origins>,
        rows: Vec<f64>,
    ) -> Option<KeptPlan> {
        KeptPlan::new(facts, Subject::Template(key.to_owned(), pinned), optimized, origins, rows)
    }

    fn is_for(&self, facts: &SessionFacts) -> bool {
        let same_size = |(id, rows): &(TableId, u64)| {
            let now = facts.version.table_by_id(*id).map(|table| table.rows_max());
            now.is_some_and(|now| now.abs_diff(*rows) <= ROWS_FEW.max(rows / 8))
        };
        self.role == facts.role.id
            && facts.version.is_of(&self.state)
            && self.settings.are_the_same(&facts.settings)
            && self.tables.iter().all(same_size)
    }

    /// The plan over the statement's snapshot, and where its outputs come from.
    pub(crate) fn bound(&self, facts: &SessionFacts) -> PlanResult<(LogicalPlan, Arc<Origins>)> {
        let mut bind = |node: LogicalPlan| {
            let LogicalPlan::TableScan(mut scan) = node else { return Ok(Transformed::no(node)) };
            let source: &dyn std::any::Any = scan.source.as_ref();
            let Some(unbound) = source.downcast_ref::<Unbound>() else {
                return internal_err!("a kept plan reads something of a statement before");
            };
            facts.footing.relation(unbound.table.id);
            let Some(version) = facts.version.table_by_id(unbound.table.id) else {
                return internal_err!("a kept plan's table is gone");
            };
            // What became of conditions is not worth keeping where they have other values each time.
            let trials = matches!(self.subject, Subject::Query(_));
            let provider = unbound.table.over(&facts.version, version, trials).map_err(crate::errors::carry)?;
            scan.source = provider_as_source(provider);
            Ok(Transformed::yes(LogicalPlan::TableScan(scan)))
        };
        Ok((self.plan.clone().rewrite_down_with_subqueries(&mut bind)?.data, self.origins.clone()))
    }
}

impl PlanCache {
    /// The optimised plan of a query without parameters, and where its outputs come from.
    pub fn find(&self, facts: &SessionFacts, query: &ast::Query) -> Option<(LogicalPlan, Arc<Origins>)> {
        let Entry::Plan(known) = self.entry(hash_of(facts, query))? else { return None };
        if !matches!(&known.subject, Subject::Query(of) if **of == *query) || !known.is_for(facts) {
            return None;
        }
        let bound = known.bound(facts).ok()?;
        self.note_reused();
        Some(bound)
    }

    pub(crate) fn note_made(&self) {
        self.made.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note_reused(&self) {
        self.reused.fetch_add(1, Ordering::Relaxed);
    }

    pub fn counts(&self) -> PlanCounts {
        PlanCounts { made: self.made.load(Ordering::Relaxed), reused: self.reused.load(Ordering::Relaxed) }
    }

    /// Keeps what became of a plan that `may_keep`.
    pub fn keep(&self, facts: &SessionFacts, query: ast::Query, optimized: &LogicalPlan, origins: Arc<Origins>) {
        let hash = hash_of(facts, &query);
        let plan = KeptPlan::new(facts, Subject::Query(Box::new(query)), optimized, origins, Vec::new());
        if let Some(plan) = plan {
            self.insert(facts, hash, Entry::Plan(Arc::new(plan)));
        }
    }

    /// Notes what the statement's own plan says of the others with its key, which no plan serves yet.
    pub(crate) fn note_own(&self, facts: &SessionFacts, key: &str, reads_much: bool) {
        if let Some(Entry::Template(kept)) = self.entry(hash_of(facts, key))
            && let TemplateState::Seen { failures, reads_much: before } = kept.known
            && before != reads_much
            && kept.is_for(facts, key)
        {
            self.keep_template(facts, key, TemplateState::Seen { failures, reads_much });
        }
    }

    /// What is known of the statements with this key.
    pub(crate) fn template(&self, facts: &SessionFacts, key: &str) -> TemplateState {
        let hash = hash_of(facts, key);
        if let Some(Entry::Template(known)) = self.entry(hash)
            && known.is_for(facts, key)
        {
            return known.known.clone();
        }
        self.keep_template(facts, key, TemplateState::Seen { failures: 0, reads_much: false });
        TemplateState::Unseen
    }

    /// The template of the statements with this key, if its plans serve them.
    pub(crate) fn serving(&self, facts: &SessionFacts, key: &str) -> Option<Arc<Template>> {
        let Entry::Template(kept) = self.entry(hash_of(facts, key))? else { return None };
        match &kept.known {
            TemplateState::Serves(template) if kept.is_for(facts, key) => Some(template.clone()),
            _ => None,
        }
    }

    pub(crate) fn keep_template(&self, facts: &SessionFacts, key: &str, known: TemplateState) {
        let template = KeptTemplate {
            key: key.to_owned(),
            role: facts.role.id,
            settings: facts.settings.clone(),
            state: facts.version.mark(),
            known,
        };
        self.insert(facts, hash_of(facts, key), Entry::Template(Arc::new(template)));
    }

    /// The plan of a template for these values of its pinned parameters.
    pub(crate) fn find_variant(
        &self,
        facts: &SessionFacts,
        key: &str,
        pinned: &[ScalarValue],
    ) -> Option<Arc<KeptPlan>> {
        let Entry::Plan(known) = self.entry(hash_of(facts, &(key, pinned)))? else { return None };
        let is_it = matches!(&known.subject, Subject::Template(of, values) if of == key && values == pinned);
        (is_it && known.is_for(facts)).then_some(known)
    }

    pub(crate) fn keep_variant(&self, facts: &SessionFacts, plan: Arc<KeptPlan>) {
        if let Subject::Template(key, pinned) = &plan.subject {
            let hash = hash_of(facts, &(key.as_str(), pinned.as_slice()));
            self.insert(facts, hash, Entry::Plan(plan.clone()));
        }
    }

    fn entry(&self, hash: u64) -> Option<Entry> {
        let mut kept = self.kept.lock();
        kept.clock += 1;
        let now = kept.clock;
        let (known, used) = kept.entries.get_mut(&hash)?;
        *used = now;
        Some(known.clone())
    }

    fn insert(&self, facts: &SessionFacts, hash: u64, entry: Entry) {
        let memory = facts.planner.database().client_memory();
        let bytes = entry.bytes();
        if bytes > memory.cache_bytes_max() {
            return;
        }
        let mut kept = self.kept.lock();
        let before = kept.bytes;
        kept.remove(hash);
        while kept.entries.len() >= ENTRIES_MAX || kept.bytes + bytes > memory.cache_bytes_max() {
            let oldest = kept.entries.iter().min_by_key(|(_, (_, used))| *used).map(|(hash, _)| *hash);
            match oldest {
                Some(oldest) => kept.remove(oldest),
                None => break,
            }
        }
        kept.clock += 1;
        kept.bytes += bytes;
        let now = kept.clock;
        kept.entries.insert(hash, (entry, now));
        memory.note(Held::Plans, kept.bytes.saturating_sub(before), before.saturating_sub(kept.bytes));
    }
}

impl Kept {
    fn remove(&mut self, hash: u64) {
        if let Some((removed, _)) = self.entries.remove(&hash) {
            self.bytes -= removed.bytes();
        }
    }
}

/// Nodes and expressions.
fn parts_of(plan: &LogicalPlan) -> u64 {
    let mut parts = 0;
    // It never fails: nothing in it does.
    let _ = plan.apply_with_subqueries(|node| {
        parts += 1;
        node.apply_expressions(|expr| {
            expr.apply(|_| {
                parts += 1;
                Ok(TreeNodeRecursion::Continue)
            })
        })
    });
    parts
}

fn hash_of<S: Hash + ?Sized>(facts: &SessionFacts, subject: &S) -> u64 {
    let mut hasher = DefaultHasher::new();
    subject.hash(&mut hasher);
    facts.role.id.hash(&mut hasher);
    facts.settings.values().hash(&mut hasher);
    // What a name means to a session that has tables of its own is for no other.
    facts.version.temporary_schema().hash(&mut hasher);
    hasher.finish()
}

/// The plan without anything of its snapshot. `None` for one that reads more than tables.
fn unbound(plan: &LogicalPlan, facts: &SessionFacts) -> PlanResult<Option<(LogicalPlan, TableRows)>> {
    let (mut tables, mut of_tables) = (Vec::new(), true);
    let mut unbind = |node: LogicalPlan| {
        // What was written has none; what asks a subquery for each row is one, and holds the subquery's own plan.
        node.apply_expressions(|expr| {
            of_tables &= !expr.is_volatile();
            Ok(TreeNodeRecursion::Continue)
        })?;
        let LogicalPlan::TableScan(mut scan) = node else { return Ok(Transformed::no(node)) };
        let provider = source_as_provider(&scan.source)?;
        let table = provider.downcast_ref::<TableProvider>();
        let Some((table, lasting)) = table.and_then(|table| Some((table, table.lasting()?))) else {
            of_tables = false;
            return Ok(Transformed::no(LogicalPlan::TableScan(scan)));
        };
        of_tables &= facts.version.table_by_id(lasting.id).is_some();
        // Of a partitioned table, its partitions': it has none of its own.
        tables.extend(table.tables().iter().map(|table| (table.def.id, table.rows_max())));
        scan.source = Arc::new(Unbound { table: lasting, schema: scan.source.schema() });
        Ok(Transformed::yes(LogicalPlan::TableScan(scan)))
    };
    let plan = plan.clone().rewrite_down_with_subqueries(&mut unbind)?.data;
    Ok(of_tables.then_some((plan, tables)))
}

/// Whether the plan of a query, as it was written, becomes the same each time.
pub fn may_keep(plan: &LogicalPlan) -> PlanResult<bool> {
    let (mut parts, mut may) = (0, true);
    plan.apply_with_subqueries(|node| {
        parts += 1;
        may &= match node {
            LogicalPlan::TableScan(scan) => {
                let provider = source_as_provider(&scan.source)?;
                provider.downcast_ref::<TableProvider>().is_some_and(|table| table.lasting().is_some())
            }
            LogicalPlan::Extension(_) | LogicalPlan::RecursiveQuery(_) => false,
            _ => true,
        };
        node.apply_expressions(|expr| {
            expr.apply(|expr| {
                parts += 1;
                may &= is_lasting(expr);
                Ok(if may { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
            })
        })?;
        may &= parts <= PARTS_MAX;
        Ok(if may { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    })?;
    Ok(may)
}

/// Whether an expression, without those below it, means the same in every statement.
fn is_lasting(expr: &Expr) -> bool {
    match expr {
        Expr::ScalarFunction(function) => function.func.signature().volatility == Volatility::Immutable,
        Expr::ScalarVariable(..) => false,
        Expr::Literal(value, _) => !value.try_as_str().flatten().is_some_and(crate::direct::template::is_moment),
        _ => true,
    }
}
