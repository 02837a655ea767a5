//! Procedures: functions of the program that SQL calls by their names.

use super::access::{Access, Keeper, Work};
use crate::catalog::relation::RelationName;
use crate::{Database, Isolation, LockMode, Transaction};
use parking_lot::RwLock;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState, SqlType};
use tidepool_heap::QueryHeap;
use tidepool_index::key::KeyValue;

/// What a procedure does. Its arguments are of the types that it was registered with, or NULL.
type Body = dyn Fn(Access<'_>, &[KeyValue<'_>]) -> Result<()> + Send + Sync;

/// An argument of a procedure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcedureArgument {
    pub name: String,
    pub sql_type: SqlType,
}

/// A function that reads and writes rows, known to SQL by a name.
pub struct Procedure {
    pub name: String,
    pub arguments: Vec<ProcedureArgument>,
    body: Box<Body>,
}

impl std::fmt::Debug for Procedure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Procedure").field("name", &self.name).field("arguments", &self.arguments).finish()
    }
}

/// A database's, for as long as the process lives.
#[derive(Debug, Default)]
pub struct Procedures(RwLock<BTreeMap<String, Arc<Procedure>>>);

impl Procedures {
    /// Makes a procedure known to SQL under a name, in lower case as names are that are not quoted. 42723 where another is known by
    /// it.
    pub fn register(
        &self,
        name: &str,
        arguments: &[(&str, SqlType)],
        body: impl Fn(Access<'_>, &[KeyValue<'_>]) -> Result<()> + Send + Sync + 'static,
    ) -> Result<()> {
        let arguments = arguments
            .iter()
            .map(|(name, sql_type)| ProcedureArgument { name: (*name).to_owned(), sql_type: *sql_type });
        let procedure = Procedure { name: name.to_owned(), arguments: arguments.collect(), body: Box::new(body) };
        let mut all = self.0.write();
        if all.contains_key(name) {
            let message = format!("procedure \"{name}\" already exists");
            return Err(Error::new(SqlState::DUPLICATE_FUNCTION, message));
        }
        all.insert(name.to_owned(), Arc::new(procedure));
        Ok(())
    }

    /// Forgets one. False where there is none.
    pub fn remove(&self, name: &str) -> bool {
        self.0.write().remove(name).is_some()
    }

    pub fn get(&self, name: &str) -> Option<Arc<Procedure>> {
        self.0.read().get(name).cloned()
    }
}

/// Keeps tables as a transaction of SQL does.
struct ByLocks<'t> {
    transaction: RefCell<&'t mut TableLocks<'t>>,
}

/// What of a transaction locking a table takes.
type TableLocks<'t> = dyn FnMut(&RelationName) -> Result<()> + 't;

impl Keeper for ByLocks<'_> {
    fn keep(&self, table: &RelationName) -> Result<()> {
        (self.transaction.borrow_mut())(table)
    }

    fn interrupted(&self) -> Result<()> {
        Ok(())
    }
}

impl Transaction {
    /// Calls a procedure as a statement of its own: it sees what the statement would, and what it writes is the transaction's. 0A000
    /// where it comes to a table that the transaction has altered, or made.
    pub fn call(&mut self, procedure: &Procedure, arguments: &[KeyValue<'_>]) -> Result<()> {
        QueryHeap::outside(|| {
            let statement = self.begin_statement()?;
            let view = statement.view().for_procedure();
            let changed = (!self.changes.is_empty()).then(|| self.state());
            let patience = self.patience();
            let remembers_reads = self.isolation() == Isolation::Serializable;
            let work = RefCell::new(Work { writes: std::mem::take(&mut self.writes), ..Work::default() });
            let before = work.borrow().writes.savepoint();
            let mut newly_locked = BTreeMap::new();
            let called = {
                let (database, worker) = (&self.database, self.worker());
                let locked = &self.locked;
                let locker = self.locker();
                let mut lock = |name: &RelationName| {
                    let held = newly_locked.get(name).or_else(|| locked.get(name)).copied();
                    let mode = LockMode::RowExclusive;
                    if held.is_some_and(|held| held.covers(mode)) {
                        return Ok(());
                    }
                    database.locks.lock(locker, name, mode, &*patience.begin_wait())?;
                    newly_locked.insert(name.clone(), held.map_or(mode, |held| held.join(mode)));
                    Ok(())
                };
                let keeper = ByLocks { transaction: RefCell::new(&mut lock) };
                let access = Access {
                    database,
                    worker,
                    view: &view,
                    work: &work,
                    keeper: &keeper,
                    remembers_reads,
                    changed: changed.as_deref(),
                };
                (procedure.body)(access, arguments)
            };
            let mut work = work.into_inner();
            if called.is_err() {
                work.writes.undo_to(before, self.worker());
            }
            self.writes = work.writes;
            self.locked.append(&mut newly_locked);
            self.written.extend(work.written.into_iter().map(|table| (table.def.id, table)));
            called
        })
    }
}

impl Database {
    /// Procedures that SQL can call.
    pub fn procedures(&self) -> &Procedures {
        let procedures = self.procedures.get_or_init(|| Box::new(Procedures::default()));
        procedures.downcast_ref().expect("this module alone keeps anything there")
    }
}
