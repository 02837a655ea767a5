//! What a session has for itself: its temporary tables, over what exists for all.
//!
//! Temporary tables are in no state of the database, so nobody else comes upon them: not other sessions, not checkpoints, the
//! log or those who follow it, not merges. Each session keeps its own beside the states, and its statements look names up in a
//! state with these added ([`TemporaryTables::over`]). A transaction changes them as it changes everything
//! ([`Changes`]); when it commits, they go to the session ([`TemporaryTables::apply`]) and not to the next state.
//!
//! Rows of temporary tables are versions in the memory of their tablespace, as those of others are, stamped by the same
//! commits. No record of the log has them.

use crate::Database;
use crate::catalog::comment::Commented;
use crate::catalog::roles::AccessObject;
use crate::catalog::state::{Changes, DatabaseState};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tidepool_base::{RowGroupId, SchemaId, StoreId, TEMPORARY_IDS, TEMPORARY_OIDS, TableId};
use tidepool_heap::QueryHeap;
use tidepool_table::{OnCommit, Table};
use tidepool_txn::{HeldSnapshot, Worker};

/// Counters of ids that nothing names which outlives the process.
#[derive(Debug, Default)]
pub(crate) struct TemporaryIds {
    oid: AtomicU32,
    store: AtomicU64,
    row_group: AtomicU64,
}

impl TemporaryIds {
    /// After a billion the first comes again. What bears it by then is another session's, which nothing compares it with.
    pub fn draw_oid(&self) -> u32 {
        let drawn = self.oid.fetch_add(1, Ordering::Relaxed);
        TEMPORARY_OIDS.start + drawn % (TEMPORARY_OIDS.end - TEMPORARY_OIDS.start)
    }

    pub fn draw_store(&self) -> StoreId {
        StoreId(TEMPORARY_IDS + self.store.fetch_add(1, Ordering::Relaxed))
    }

    pub fn draw_row_group(&self) -> RowGroupId {
        RowGroupId(TEMPORARY_IDS + self.row_group.fetch_add(1, Ordering::Relaxed))
    }
}

/// A session's temporary tables.
#[derive(Debug, Default)]
pub struct TemporaryTables {
    /// Names its schema.
    session: u32,
    is_used: AtomicBool,
    own: Mutex<Own>,
    /// What the session looks at them through, where time stands still.
    views: Mutex<Vec<Weak<HeldSnapshot>>>,
}

#[derive(Debug, Default)]
struct Own {
    schema: Option<SchemaId>,
    /// What is committed, as a change of what exists. Nothing in it goes.
    objects: Changes,
    /// A state, and the same with these objects.
    over: Option<(Arc<DatabaseState>, Arc<DatabaseState>)>,
    is_listed: bool,
}

impl TemporaryTables {
    pub fn of_session(session: u32) -> Arc<TemporaryTables> {
        Arc::new(TemporaryTables { session, ..TemporaryTables::default() })
    }

    /// Whether the session has any, of which it has committed the making.
    #[inline]
    pub fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Acquire)
    }

    /// The schema of the session's own, also before there is anything in it.
    pub fn schema(&self, database: &Database) -> SchemaId {
        *self.own.lock().schema.get_or_insert_with(|| SchemaId(database.temporary_ids.draw_oid()))
    }

    pub fn schema_name(&self) -> String {
        format!("pg_temp_{}", self.session)
    }

    /// What exists for the session. The same for the same state, as long as its own tables stay.
    pub fn over(&self, state: Arc<DatabaseState>) -> Arc<DatabaseState> {
        if !self.is_used() {
            return state;
        }
        let mut own = self.own.lock();
        if let Some((of, over)) = &own.over
            && Arc::ptr_eq(of, &state)
        {
            return over.clone();
        }
        let over = Arc::new(state.with(state.commit_ts, &own.objects));
        own.over = Some((state, over.clone()));
        over
    }

    /// The session's schema and what becomes of its tables when the next transaction commits, if that is anything.
    pub(crate) fn settles(&self) -> bool {
        let stays = |table: &Arc<Table>| table.def.on_commit == OnCommit::PreserveRows;
        self.is_used() && !self.own.lock().objects.tables.values().flatten().all(stays)
    }

    /// A transaction of the session has committed with these changes of temporary tables.
    pub(crate) fn apply(self: &Arc<Self>, changes: Changes, database: &Database) {
        let mut own = self.own.lock();
        own.over = None;
        for (id, table) in changes.tables {
            let before = match table {
                Some(table) => own.objects.tables.insert(id, Some(table)),
                None => own.objects.tables.remove(&id),
            };
            before.flatten().into_iter().for_each(|before| before.supersede());
        }
        put(&mut own.objects.schemas, changes.schemas);
        put(&mut own.objects.sequences, changes.sequences);
        put(&mut own.objects.comments, changes.comments);
        put(&mut own.objects.access, changes.access);
        let is_used = !own.objects.tables.is_empty() || !own.objects.sequences.is_empty();
        if !is_used {
            own.objects = Changes::default();
        }
        self.is_used.store(is_used, Ordering::Release);
        if is_used && !std::mem::replace(&mut own.is_listed, true) {
            drop(own);
            let mut listed = database.temporary_tables.lock();
            listed.retain(|other| other.strong_count() > 0);
            listed.push(Arc::downgrade(self));
        }
    }

    /// The session looks at its tables through a view from now on.
    pub(crate) fn note_view(&self, view: &Arc<HeldSnapshot>) {
        let mut views = self.views.lock();
        views.retain(|view| view.strong_count() > 0);
        views.push(Arc::downgrade(view));
    }

    /// Frees what was replaced in them, when the next statement begins. `is_following`: another process says what time it is, which may be the
    /// same for long. What the session does not look at any more can go then, as nobody else does.
    pub(crate) fn free_retired(&self, worker: &Worker, is_following: bool) {
        let is_still = is_following && self.views.lock().iter().all(|view| view.strong_count() == 0);
        let tables: Vec<_> = self.own.lock().objects.tables.values().flatten().cloned().collect();
        tables.iter().for_each(|table| table.rows.free_retired(worker, is_still));
    }

    fn forget_state(&self) {
        self.own.lock().over = None;
    }
}

/// Puts what a transaction changed in the place of what was there.
fn put<K: Ord, V>(objects: &mut BTreeMap<K, Option<V>>, changes: BTreeMap<K, Option<V>>) {
    for (key, value) in changes {
        match value {
            Some(value) => drop(objects.insert(key, Some(value))),
            None => drop(objects.remove(&key)),
        }
    }
}

impl Changes {
    /// Takes what is of temporary tables out of it.
    pub(crate) fn take_temporary(&mut self) -> Changes {
        Changes {
            tables: self.tables.extract_if(.., |id, _| id.is_temporary()).collect(),
            schemas: self.schemas.extract_if(.., |id, _| id.is_temporary()).collect(),
            sequences: self.sequences.extract_if(.., |id, _| id.is_temporary()).collect(),
            comments: self.comments.extract_if(.., |about, _| about.is_temporary()).collect(),
            access: self.access.extract_if(.., |object, _| object.is_temporary()).collect(),
            ..Changes::default()
        }
    }

    /// Whether something changes that is not one session's alone.
    pub(crate) fn is_for_others(&self) -> bool {
        self.tables.keys().any(|id| !id.is_temporary())
            || self.schemas.keys().any(|id| !id.is_temporary())
            || self.sequences.keys().any(|id| !id.is_temporary())
            || self.comments.keys().any(|about| !about.is_temporary())
            || self.access.keys().any(|object| !object.is_temporary())
            || !self.views.is_empty()
            || !self.roles.is_empty()
    }
}

impl Commented {
    fn is_temporary(&self) -> bool {
        match self {
            Commented::Relation(id) | Commented::Column(id, _) => id.is_temporary(),
            Commented::Constraint(oid) => TEMPORARY_OIDS.contains(oid),
            Commented::Schema(id) => id.is_temporary(),
            Commented::Database | Commented::Tablespace(_) => false,
        }
    }
}

impl AccessObject {
    pub fn is_temporary(&self) -> bool {
        match self {
            AccessObject::Relation(id) => id.is_temporary(),
            AccessObject::Schema(id) => id.is_temporary(),
            AccessObject::Tablespace(_) | AccessObject::Database => false,
        }
    }
}

impl DatabaseState {
    /// The schema of the session's temporary tables, where this is what exists for a session that has some.
    pub fn temporary_schema(&self) -> Option<SchemaId> {
        let mut own = self.catalog.schemas.range(SchemaId(TEMPORARY_OIDS.start)..SchemaId(TEMPORARY_OIDS.end));
        own.next().map(|(id, _)| *id)
    }
}

impl Database {
    /// The id of something new in a schema.
    pub fn next_oid_in(&self, schema: SchemaId) -> TableId {
        match schema.is_temporary() {
            true => TableId(self.temporary_ids.draw_oid()),
            false => self.next_table_id(),
        }
    }

    /// A session has ended, and its temporary tables with it.
    pub fn end_temporary_tables(&self, tables: Arc<TemporaryTables>) {
        QueryHeap::outside(|| drop(tables));
        // What was replaced in them is freed once nobody has a snapshot of then.
        self.background.call();
    }

    /// Another state has taken the place of the one that sessions may have put their tables over.
    pub(crate) fn forget_states(&self) {
        let listed: Vec<_> = self.temporary_tables.lock().iter().filter_map(Weak::upgrade).collect();
        listed.iter().for_each(|tables| tables.forget_state());
    }

    /// Those of all sessions, as far as they are committed.
    pub(crate) fn temporary_tables(&self) -> Vec<Arc<Table>> {
        let listed: Vec<_> = self.temporary_tables.lock().iter().filter_map(Weak::upgrade).collect();
        let of_one = |tables: &Arc<TemporaryTables>| -> Vec<Arc<Table>> {
            tables.own.lock().objects.tables.values().flatten().cloned().collect()
        };
        listed.iter().flat_map(of_one).collect()
    }
}
