//! A transaction that another process goes on with, after a planned change of primary: what it did, to be done again there.
//!
//! Rows that it wrote and locked are in no log, and in memory that is this process's alone. So they are written down, in order, with the locks
//! of tables and with the savepoints between them. What others have written is at the other process by its log, under the same ids. Rows
//! that the transaction made get new ids there, by which the later steps are translated.
//!
//! * What it did is in nobody's way there, as it was in nobody's way here and its locks kept it so: until the other process serves clients of
//!   its own. So each row of others that the transaction wrote or locked is compared with what it was, by a checksum, and whatever has
//!   changed, or is held by somebody, is an error: the transaction is lost then, and never half done.
//! * Keys are looked at again, as for any row. Foreign keys are not: rows that others refer to are locked by steps of their own.
//! * Not able to go over: transactions that have a snapshot of their own, have changed what exists, have loaded row groups, or have foreign
//!   keys to check at their end.

use crate::Transaction;
use crate::catalog::relation::RelationName;
use crate::patience::Patience;
use crate::write::index::ChangedKeys;
use crate::write::locks::LockMode;
use crate::write::transaction::Savepoint;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use tidepool_base::{Error, Result, RowId, SqlState, StoreId, TableId};
use tidepool_heap::QueryHeap;
use tidepool_table::Table;
use tidepool_table::rows::{Done, Keys, Outcome, RowLock};
use tidepool_txn::{Isolation, View};

/// Rows that a transaction may have written and locked to go over.
const ROWS_MAX: usize = 20_000;

/// Bytes of what it wrote.
const BYTES_MAX: usize = 2 << 20;

/// What a transaction did. Exhaustive and mutually exclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransactionStep {
    LockTable {
        relation: RelationName,
        mode: LockMode,
    },
    Savepoint,
    Row {
        store: StoreId,
        /// As the process has it that wrote.
        row: RowId,
        /// The row as others see it, where this is the first that is done to it, and it is there for others.
        before: Option<u32>,
        change: RowStep,
    },
}

/// A transaction of another process that was done again.
pub struct DoneAgain {
    /// In the order in which they were made.
    pub savepoints: Vec<Savepoint>,
    /// Rows that it made, as the other process had them, and as they are here.
    pub rows: HashMap<(TableId, RowId), RowId>,
}

/// What was done to a row. Exhaustive and mutually exclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowStep {
    /// It is new.
    Inserted(Vec<u8>),
    Updated(Vec<u8>),
    Deleted,
    Locked(RowLock),
}

/// Nobody is waited for.
struct Impatient;

impl Patience for Impatient {
    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn begin_wait(&self) -> Box<dyn Fn() -> Result<()> + '_> {
        Box::new(|| Err(Error::new(SqlState::LOCK_NOT_AVAILABLE, "another transaction is in the way")))
    }
}

impl Transaction {
    /// Whether another process can go on with it, between two statements of it.
    pub fn is_portable(&self) -> bool {
        let has_id = self.current_id().is_some();
        self.isolation() == Isolation::ReadCommitted
            && self.changes.is_empty()
            && self.references.is_idle()
            && !self.loaded
            && !has_id
            && !self.has_left_indexes()
            && !self.changes_temporary_tables()
            && self.writes.len() <= ROWS_MAX
    }

    /// What it did, in order, with `savepoints`, in the order in which they were made. `None`: it cannot go over.
    pub fn to_steps(&self, savepoints: &[&Savepoint]) -> Result<Option<Vec<TransactionStep>>> {
        QueryHeap::outside(|| self.steps(savepoints))
    }

    fn steps(&self, savepoints: &[&Savepoint]) -> Result<Option<Vec<TransactionStep>>> {
        if !self.is_portable() {
            return Ok(None);
        }
        let mut steps = Vec::new();
        let Some(done) = self.writes.done(self.worker().tag()) else { return Ok(None) };
        // It sees what others do of the rows.
        let others = self.database.begin()?;
        let others = others.worker().hold_now();
        let (mut touched, mut bytes) = (HashSet::new(), 0);
        let mut locked: &BTreeMap<RelationName, LockMode> = &BTreeMap::new();
        let mut savepoints = savepoints.iter().peekable();
        let mut done = done.into_iter().enumerate().peekable();
        loop {
            // Locks of tables are taken before what is done to their rows: those of the time up to the next savepoint.
            let next = savepoints.peek();
            let then = next.map_or(&self.locked, |savepoint| savepoint.locked());
            for (relation, mode) in then.iter().filter(|(relation, mode)| locked.get(relation) != Some(mode)) {
                steps.push(TransactionStep::LockTable { relation: relation.clone(), mode: *mode });
            }
            locked = then;
            let end = next.map_or(usize::MAX, |savepoint| savepoint.writes());
            while let Some((_, (store, row, done))) = done.next_if(|(place, _)| *place < end) {
                let is_first = touched.insert((store.id(), row));
                let before = if is_first { store.checksum_of(&others, row)? } else { None };
                let change = match done {
                    Done::Put(image) => {
                        bytes += image.len();
                        let is_new = is_first && before.is_none();
                        let image = image.to_vec();
                        if is_new { RowStep::Inserted(image) } else { RowStep::Updated(image) }
                    }
                    Done::Deleted => RowStep::Deleted,
                    Done::Locked(lock) => RowStep::Locked(lock),
                };
                if bytes > BYTES_MAX {
                    return Ok(None);
                }
                steps.push(TransactionStep::Row { store: store.id(), row, before, change });
            }
            if savepoints.next().is_none() {
                return Ok(Some(steps));
            }
            steps.push(TransactionStep::Savepoint);
        }
    }

    /// Does again what a transaction of another process did, in one that has done nothing. An error where something
    /// is in the way, or is not as it was: then it is to be rolled back.
    pub fn do_again(&mut self, steps: &[TransactionStep]) -> Result<DoneAgain> {
        let patience = self.patience();
        self.set_patience(Arc::new(Impatient));
        let done = QueryHeap::outside(|| self.do_steps(steps));
        self.end_statement();
        self.set_patience(patience);
        done
    }

    fn do_steps(&mut self, steps: &[TransactionStep]) -> Result<DoneAgain> {
        let mut savepoints = Vec::new();
        let mut tables: HashMap<StoreId, Arc<Table>> = HashMap::new();
        let mut rows = HashMap::new();
        // Since the view was drawn, which does not see what is written under it.
        let mut touched: HashSet<(StoreId, RowId)> = HashSet::new();
        let mut statement = self.begin_statement()?;
        let mut keys = ChangedKeys::default();
        for step in steps {
            let (store, row, before, change) = match step {
                TransactionStep::LockTable { relation, mode } => {
                    self.lock_as(relation, *mode)?;
                    continue;
                }
                TransactionStep::Savepoint => {
                    savepoints.push(self.savepoint());
                    continue;
                }
                TransactionStep::Row { store, row, before, change } => (*store, *row, *before, change),
            };
            let table = match tables.get(&store) {
                Some(table) => table.clone(),
                None => {
                    let state = self.state();
                    let table = state.tables.values().find(|table| table.rows.id() == store).ok_or_else(changed)?;
                    tables.insert(store, table.clone());
                    table.clone()
                }
            };
            if !touched.insert((store, row)) {
                statement = self.begin_statement()?;
                touched.clear();
                touched.insert((store, row));
            }
            let view = statement.view();
            let own = rows.get(&(table.def.id, row)).copied();
            let target = own.unwrap_or(row);
            if before.is_some() && table.rows.checksum_of(view, target)? != before {
                return Err(changed());
            }
            if !matches!(change, RowStep::Locked(_)) {
                self.written.insert(table.def.id, table.clone());
            }
            let outcome = match change {
                RowStep::Inserted(image) => {
                    table.rows.layout().check(image)?;
                    let (worker, writes) = self.writing();
                    let new = table.rows.insert(worker, view, writes, image)?;
                    self.enter_row(&table, view, new, image)?;
                    rows.insert((table.def.id, row), new);
                    Outcome::Written
                }
                RowStep::Updated(image) => {
                    table.rows.layout().check(image)?;
                    self.update_again(&table, view, target, image, &mut keys)?
                }
                RowStep::Deleted => {
                    let (worker, writes) = self.writing();
                    table.rows.delete(worker, view, writes, target)?
                }
                RowStep::Locked(lock) => {
                    let (worker, writes) = self.writing();
                    table.rows.lock_row(worker, view, writes, target, *lock)?
                }
            };
            if outcome != Outcome::Written {
                return Err(changed());
            }
        }
        Ok(DoneAgain { savepoints, rows })
    }

    fn update_again(
        &mut self,
        table: &Arc<Table>,
        view: &View,
        row: RowId,
        image: &[u8],
        keys: &mut ChangedKeys,
    ) -> Result<Outcome> {
        let looked = keys.look(table, view, row, image)?;
        let left = if looked { keys.left(table) } else { Keys::Change };
        let (worker, writes) = self.writing();
        let outcome = table.rows.update(worker, view, writes, row, image, left)?;
        if outcome == Outcome::Written {
            self.enter_changed(table, view, row, keys)?;
        }
        Ok(outcome)
    }
}

/// 40001.
fn changed() -> Error {
    Error::new(
        SqlState::SERIALIZATION_FAILURE,
        "a row is not as it was when its transaction went over, or is another's",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Database;
    use crate::tests::{batch, database_with_table, insert, memory, rows_of};

    fn update(transaction: &mut Transaction, row: RowId, number: usize) {
        let version = transaction.version().table("t").unwrap();
        let rows = batch(&version, number..number + 1);
        let _ = transaction.update("t", &[row], &rows).unwrap();
        transaction.end_statement();
    }

    fn delete(transaction: &mut Transaction, row: RowId) {
        let _ = transaction.delete("t", &[row]).unwrap();
        transaction.end_statement();
    }

    fn seen(transaction: &Transaction) -> Vec<String> {
        rows_of(transaction.version().table("t").unwrap())
    }

    fn rows_in(steps: &[TransactionStep]) -> Vec<RowId> {
        let of = |step: &TransactionStep| match step {
            TransactionStep::Row { row, .. } => Some(*row),
            _ => None,
        };
        steps.iter().filter_map(of).collect()
    }

    /// With five rows, and their ids.
    fn database() -> (Arc<Database>, Vec<RowId>) {
        let database = database_with_table(memory());
        let mut transaction = database.begin().unwrap();
        insert(&mut transaction, "t", 0..5).unwrap();
        let rows = rows_in(&transaction.to_steps(&[]).unwrap().unwrap());
        transaction.commit().unwrap();
        (database, rows)
    }

    #[test]
    fn what_was_done_is_done_again() {
        let (database, rows) = database();
        let mut first = database.begin().unwrap();
        insert(&mut first, "t", 5..7).unwrap();
        first.end_statement();
        update(&mut first, rows[1], 20);
        let own = rows_in(&first.to_steps(&[]).unwrap().unwrap());
        let savepoint = first.savepoint();
        let before = seen(&first);
        update(&mut first, own[0], 21);
        delete(&mut first, own[1]);
        update(&mut first, rows[1], 22);
        delete(&mut first, rows[0]);
        let after = seen(&first);
        let steps = first.to_steps(&[&savepoint]).unwrap().unwrap();
        first.rollback();
        for undone in [false, true] {
            let mut second = database.begin().unwrap();
            // So that its rows are others.
            insert(&mut second, "t", 30..31).unwrap();
            second.rollback();
            let mut second = database.begin().unwrap();
            let savepoints = second.do_again(&steps).unwrap().savepoints;
            assert_eq!(savepoints.len(), 1);
            assert_eq!(seen(&second), after);
            // Once more, from there.
            assert_eq!(second.to_steps(&[&savepoints[0]]).unwrap().unwrap().len(), steps.len());
            if undone {
                second.roll_back_to(&savepoints[0]);
                assert_eq!(seen(&second), before);
                second.commit().unwrap();
                assert_eq!(seen(&database.begin().unwrap()), before);
            }
        }
    }

    #[test]
    fn rows_that_are_not_as_they_were_lose_a_transaction_whole() {
        type Act = fn(&mut Transaction, RowId);
        let locks: [Act; 2] = [
            |transaction, row| transaction.lock_newest("t", &[row], RowLock::Update).unwrap(),
            |transaction, row| transaction.lock_newest("t", &[row], RowLock::KeyShare).unwrap(),
        ];
        let own: [Act; 4] = [|transaction, row| update(transaction, row, 20), delete, locks[0], locks[1]];
        let others: [Act; 2] = [|transaction, row| update(transaction, row, 40), delete];
        for (place, own) in own.into_iter().enumerate() {
            for (number, other) in others.into_iter().enumerate() {
                for commits in [false, true] {
                    let (database, rows) = database();
                    let mut first = database.begin().unwrap();
                    insert(&mut first, "t", 5..6).unwrap();
                    first.end_statement();
                    own(&mut first, rows[1]);
                    let steps = first.to_steps(&[]).unwrap().unwrap();
                    first.rollback();
                    let mut between = database.begin().unwrap();
                    other(&mut between, rows[1]);
                    let held = if commits { between.commit().map(|_| None) } else { Ok(Some(between)) }.unwrap();
                    let before = seen(&database.begin().unwrap());
                    let mut second = database.begin().unwrap();
                    if (place, number, commits) == (3, 0, false) {
                        // Who locks the key bears whoever changes the rest.
                        assert!(second.do_again(&steps).is_ok());
                        continue;
                    }
                    let error = second.do_again(&steps).map(drop).unwrap_err();
                    assert_eq!(error.code(), SqlState::SERIALIZATION_FAILURE, "{error}");
                    second.rollback();
                    assert_eq!(seen(&database.begin().unwrap()), before);
                    drop(held);
                }
            }
        }
    }

    #[test]
    fn what_is_more_than_rows_cannot_go_over() {
        let (database, _) = database();
        let mut snapshot = database.begin_at(Isolation::RepeatableRead).unwrap();
        snapshot.begin_statement().unwrap();
        assert!(!snapshot.is_portable());
        let mut made = database.begin().unwrap();
        made.create_table("made", crate::tests::columns(), vec![], crate::tests::near()).unwrap();
        assert!(!made.is_portable());
        let mut many = database.begin().unwrap();
        insert(&mut many, "t", 0..ROWS_MAX + 1).unwrap();
        assert!(!many.is_portable());
        many.rollback();
        let mut long = database.begin().unwrap();
        assert_eq!(long.to_steps(&[]).unwrap(), Some(Vec::new()));
        insert(&mut long, "t", 0..1).unwrap();
        assert_eq!(long.to_steps(&[]).unwrap().unwrap().len(), 2);
        // Steps of no table that is there.
        let row = TransactionStep::Row { store: StoreId(99), row: RowId(0), before: None, change: RowStep::Deleted };
        let error = database.begin().unwrap().do_again(&[row]).map(drop).unwrap_err();
        assert_eq!(error.code(), SqlState::SERIALIZATION_FAILURE);
        // An image that is none.
        let steps = long.to_steps(&[]).unwrap().unwrap();
        let wrong = steps.into_iter().map(|step| match step {
            TransactionStep::Row { store, row, before, .. } => {
                TransactionStep::Row { store, row, before, change: RowStep::Inserted(vec![1]) }
            }
            step => step,
        });
        long.rollback();
        let error = database.begin().unwrap().do_again(&wrong.collect::<Vec<_>>()).map(drop).unwrap_err();
        assert_eq!(error.code(), SqlState::DATA_CORRUPTED);
    }
}
