//! `SELECT … FOR UPDATE` and its kin: the rows that a query finds, locked before they are given back.
//!
//! Where a row was changed since the statement's view was drawn, it is locked as it is now, and the query is asked again
//! for this row alone, as PostgreSQL asks it. `LIMIT` counts the rows that are then locked. A query with subqueries that
//! give one value, or of partitioned tables, runs again, as of now, with the row locked.

use super::change::newer_of;
use super::change::returned_stream;
use super::explain::{Explained, Ran};
use super::parts::Begun;
use super::{Outcome, ResultColumn, Session};
use crate::execute::{Execution, Reevaluation, joined};
use crate::explain::Node;
use crate::facts::SessionFacts;
use crate::interrupt::Interrupt;
use crate::locking::{self, Reading, Target};
use crate::names::OutputNames;
use crate::query;
use crate::statement::{Command, Statement};
use arrow::array::{ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::Int64Type;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;
use tidepool_base::{Error, Result, RowId, TableId};
use tidepool_database::{LockWait, Locked, RelationName, Transaction, split_id};

impl Session {
    pub(super) async fn select_locking(
        &mut self,
        text: &str,
        statement: &Statement,
        parameters: &[ArrayRef],
        mut explained: Option<&mut Option<Explained>>,
        mut ids: Option<&mut Vec<TableId>>,
    ) -> Result<Outcome> {
        let Command::Locking { clauses, .. } = statement.command() else {
            return Err(Error::internal("not a query that locks rows"));
        };
        self.check_writable(&format!("SELECT {}", clauses.first().map_or("FOR UPDATE", |clause| clause.name())))?;
        // What it reads and what it locks is of one transaction.
        let own_block = self.begin_own_block();
        let locked = loop {
            match self.try_locking(text, statement, parameters, explained.as_deref_mut(), ids.as_deref_mut()).await {
                Ok(None) => {}
                Ok(Some(outcome)) => break Ok(outcome),
                Err(error) => break Err(error),
            }
        };
        self.end_own_block(own_block, locked).await
    }

    pub(super) async fn plan_locking(
        &self,
        facts: &Arc<SessionFacts>,
        reading: Reading,
        parameters: &[ArrayRef],
    ) -> Result<(locking::Planned, query::Planned)> {
        let facts = facts.clone();
        let parameters = parameters.to_vec();
        let text = reading.query.to_string();
        let planning = self.plan_apart(&text, async move {
            let state = facts.planner.state(&facts);
            let locking = locking::plan(&state, &facts, &reading, &parameters, true)?;
            let plan = query::physical_plan(&state, &locking.plan).await?;
            Ok((locking, query::planned(state, plan, &OutputNames::none())))
        });
        planning.await
    }

    /// `None`: to be tried again, as of now.
    async fn try_locking(
        &mut self,
        text: &str,
        statement: &Statement,
        parameters: &[ArrayRef],
        explained: Option<&mut Option<Explained>>,
        ids: Option<&mut Vec<TableId>>,
    ) -> Result<Option<Outcome>> {
        let Begun { running, reading, plans: parts, .. } =
            self.begin_statement(text, statement, parameters, true).await?;
        let reading = reading.ok_or_else(|| Error::internal("not a query that locks rows"))?;
        let start = Instant::now();
        let (locking, planned) = self.plan_locking(&running.facts, reading, parameters).await?;
        let planning = start.elapsed();
        let columns: Vec<ResultColumn> = locking.columns(&planned.schema);
        let interrupt = running.interrupt.clone();
        let facts = running.facts.clone();
        let info = running.query.info.clone();
        let start = Instant::now();
        let (prepared, reevaluation) = self.prepare_writing(running, planned)?;
        let (plan, heap) = (prepared.plan.clone(), prepared.heap.clone());
        let keeps_ids = ids.is_some();
        if let Some(ids) = ids {
            *ids = locking.targets.iter().map(|target| target.version.def.id).collect();
        }
        let work = self.lock_rows(locking, prepared, reevaluation, keeps_ids);
        let locked = self.begin_write(facts, interrupt, work);
        let Some(kept) = joined(locked.await)? else { return Ok(None) };
        if let Some(explained) = explained {
            let rows = kept.iter().map(|batch| batch.num_rows() as u64).sum();
            let ran = Some(Ran { elapsed: start.elapsed(), rows, info });
            *explained = Some(Explained { node: Some(Node::new("LockRows")), plan, parts, planning, ran });
        }
        Ok(Some(Outcome::Rows { columns, batches: Box::pin(returned_stream(kept, heap)), tag: "SELECT" }))
    }

    /// Runs a plan, and locks its rows: what a transaction does that gives them back, perhaps with their ids before them.
    /// `None`: nothing was done, and the statement is to be run again, as of now.
    pub(super) fn lock_rows(
        &self,
        locking: locking::Planned,
        prepared: Execution,
        reevaluation: Reevaluation,
        keeps_ids: bool,
    ) -> impl FnOnce(&mut Transaction, &Interrupt) -> Result<Option<Vec<RecordBatch>>> + Send + use<> {
        let is_partitioned = locking.targets.iter().any(|target| target.tree.is_some());
        let workers = self.planner.workers();
        move |transaction, interrupt| {
            let can_look_again = !locking.is_limited && !is_partitioned && reevaluation.is_possible(false)?;
            for target in &locking.targets {
                transaction.lock_rows_of(&*target.version.def, &interrupt.lock_wait())?;
            }
            // Not before: it may have to be planned anew once the locks are there.
            let mut batches = prepared.start(&workers);
            let before = transaction.savepoint();
            let mut locker = Locker {
                targets: &locking.targets,
                names: names_of(transaction, &locking.targets)?,
                reevaluation: can_look_again.then_some(&reevaluation),
                looked_at: HashSet::new(),
                skip: locking.skip,
                left: locking.fetch.unwrap_or(usize::MAX),
                first: if keeps_ids { 0 } else { locking.targets.len() },
            };
            let mut kept = Vec::new();
            while locker.left > 0
                && let Some(batch) = batches.blocking_next()
            {
                if !locker.lock(transaction, &batch?, &mut kept)? {
                    let newer = (locking.targets.iter())
                        .map(|target| newer_of(transaction, &target.version.def, target.tree.as_deref()))
                        .collect::<Result<Vec<_>>>()?;
                    transaction.roll_back_to(&before);
                    // Nobody changes them once more, then.
                    for (target, newer) in locking.targets.iter().zip(newer) {
                        for (name, rows) in newer.iter().filter(|_| target.wait == LockWait::Wait) {
                            transaction.lock_newest(name, rows, target.lock)?;
                        }
                    }
                    return Ok(None);
                }
            }
            Ok(Some(kept))
        }
    }
}

/// Of each target its name, or those of its partitions.
fn names_of(transaction: &Transaction, targets: &[Target]) -> Result<Vec<Vec<RelationName>>> {
    let of = |target: &Target| match &target.tree {
        None => Ok(vec![RelationName::from(&*target.version.def)]),
        Some(tree) => (0..tree.leaves().len()).map(|ordinal| transaction.leaf_name(tree, ordinal)).collect(),
    };
    targets.iter().map(of).collect()
}

/// A query's rows on their way to being locked.
struct Locker<'a> {
    targets: &'a [Target],
    /// Of each target, or of its partitions.
    names: Vec<Vec<RelationName>>,
    /// `None`: rows that are newer than the statement's view make it run again.
    reevaluation: Option<&'a Reevaluation>,
    /// Ids of the targets' rows that the query was asked for again, together.
    looked_at: HashSet<Vec<RowId>>,
    /// Rows to be passed over, and then to be given back.
    skip: usize,
    left: usize,
    /// The first column that is given back.
    first: usize,
}

impl Locker<'_> {
    /// Locks the rows of a batch, and adds to `kept` what is given back of them: not those that are skipped. False: the
    /// query is to be run again.
    fn lock(
        &mut self,
        transaction: &mut Transaction,
        batch: &RecordBatch,
        kept: &mut Vec<RecordBatch>,
    ) -> Result<bool> {
        let ids = (0..self.targets.len())
            .map(|place| {
                let ids = batch.column(place).as_primitive_opt::<Int64Type>();
                ids.ok_or_else(|| Error::internal("rows to be locked have no ids"))
            })
            .collect::<Result<Vec<_>>>()?;
        let mut mask = vec![false; batch.num_rows()];
        // Of the rows in the mask those that `kept` has.
        let mut taken = 0;
        for row in 0..batch.num_rows() {
            let (mut is_kept, mut is_newer) = (self.left > 0, false);
            for ((target, names), ids) in self.targets.iter().zip(&self.names).zip(&ids) {
                if !is_kept {
                    break;
                }
                let id = RowId(ids.value(row) as u64);
                let (ordinal, id) = if target.tree.is_some() { split_id(id) } else { (0, id) };
                match transaction.lock_row(&names[ordinal], id, target.lock, target.wait)? {
                    Locked::Yes => {}
                    Locked::Newer => is_newer = true,
                    Locked::Skipped => is_kept = false,
                    Locked::Again => return Ok(false),
                }
            }
            if is_kept && is_newer {
                let Some(reevaluation) = self.reevaluation else { return Ok(false) };
                self.keep(batch, &mask, &mut taken, row, kept)?;
                let ids: Vec<RowId> = ids.iter().map(|ids| RowId(ids.value(row) as u64)).collect();
                if self.looked_at.insert(ids.clone()) {
                    let now = (self.names.iter())
                        .zip(ids)
                        .map(|(names, id)| Ok((transaction.look_again(&names[0])?, vec![id])))
                        .collect::<Result<Vec<_>>>()?;
                    for batch in reevaluation.rows(&now)? {
                        let mask: Vec<bool> = (0..batch.num_rows()).map(|_| self.counts()).collect();
                        self.keep(&batch, &mask, &mut 0, mask.len(), kept)?;
                    }
                }
                continue;
            }
            mask[row] = is_kept && self.counts();
        }
        self.keep(batch, &mask, &mut taken, batch.num_rows(), kept)?;
        Ok(true)
    }

    /// Whether one row more is given back.
    fn counts(&mut self) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        let counts = self.left > 0;
        self.left -= usize::from(counts);
        counts
    }

    /// Adds the outputs of the rows from `taken` up to `end` that the mask has.
    fn keep(
        &self,
        batch: &RecordBatch,
        mask: &[bool],
        taken: &mut usize,
        end: usize,
        kept: &mut Vec<RecordBatch>,
    ) -> Result<()> {
        let part = batch.slice(*taken, end - *taken);
        let mask = BooleanArray::from(mask[*taken..end].to_vec());
        *taken = end;
        if mask.true_count() == 0 {
            return Ok(());
        }
        let outputs: Vec<usize> = (self.first..batch.num_columns()).collect();
        let part = part.project(&outputs).map_err(crate::errors::from_arrow)?;
        kept.push(filter_record_batch(&part, &mask).map_err(crate::errors::from_arrow)?);
        Ok(())
    }
}
