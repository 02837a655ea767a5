//! `SELECT … FOR UPDATE` and its kin: the rows that a query finds, locked before they are given back.
//!
//! Where a row was changed since the statement's view was drawn, nothing of it counts: the query runs again, as of now,
//! as an `UPDATE` does.

use super::change::returned_stream;
use super::explain::{Explained, Ran};
use super::{Outcome, ResultColumn, Session};
use crate::execute::joined;
use crate::explain::Node;
use crate::facts::SessionFacts;
use crate::locking::{self, Target};
use crate::names::OutputNames;
use crate::query;
use crate::statement::{Command, Statement};
use arrow::array::{ArrayRef, AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::Int64Type;
use std::sync::Arc;
use std::time::Instant;
use tidepool_base::{Error, Result, RowId};
use tidepool_database::{Locked, RelationName, Transaction, split_id};

impl Session {
    pub(super) async fn select_locking(
        &mut self,
        text: &str,
        statement: &Statement,
        parameters: &[ArrayRef],
        mut explained: Option<&mut Option<Explained>>,
    ) -> Result<Outcome> {
        let Command::Locking { clauses, .. } = statement.command() else {
            return Err(Error::internal("not a query that locks rows"));
        };
        self.check_writable(&format!("SELECT {}", clauses.first().map_or("FOR UPDATE", |clause| clause.name())))?;
        // What it reads and what it locks is of one transaction.
        let own_block = self.begin_own_block();
        let locked = loop {
            match self.try_locking(text, statement, parameters, explained.as_deref_mut()).await {
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
        statement: &Statement,
        parameters: &[ArrayRef],
    ) -> Result<(locking::Planned, query::Planned)> {
        let facts = facts.clone();
        let parameters = parameters.to_vec();
        let statement = statement.clone();
        let planning = self.planner.workers().spawn(async move {
            let Command::Locking { query, clauses } = statement.command() else {
                return Err(Error::internal("not a query that locks rows"));
            };
            let state = facts.planner.state(&facts);
            let fields = query::parameter_fields(&parameters);
            let locking = locking::plan(&state, &facts, query.clone(), clauses, fields, &parameters)?;
            let plan = query::physical_plan(&state, &locking.plan).await?;
            Ok((locking, query::planned(state, plan, &OutputNames::none())))
        });
        joined(planning.await)
    }

    /// `None`: to be tried again, as of now.
    async fn try_locking(
        &mut self,
        text: &str,
        statement: &Statement,
        parameters: &[ArrayRef],
        explained: Option<&mut Option<Explained>>,
    ) -> Result<Option<Outcome>> {
        let running = self.running(text);
        let start = Instant::now();
        let (locking, planned) = self.plan_locking(&running.facts, statement, parameters).await?;
        let planning = start.elapsed();
        let columns: Vec<ResultColumn> = locking.columns(&planned.schema);
        let interrupt = running.interrupt.clone();
        let facts = running.facts.clone();
        let info = running.query.info.clone();
        let start = Instant::now();
        let prepared = self.prepare_run(running, planned, None)?;
        let plan = prepared.plan.clone();
        let mut batches = prepared.start(&self.planner.workers());
        let heap = batches.heap().clone();
        let locked = self.begin_write(facts, interrupt, move |transaction, interrupt| {
            for target in &locking.targets {
                let def = &target.version.def;
                transaction.lock_rows_of(&**def, &interrupt.lock_wait())?;
                let now = transaction.version().table(&**def);
                if now.is_none_or(|now| now.def != *def) {
                    return Err(super::change::altered(def));
                }
                super::change::check_partitions(transaction, def, target.tree.as_deref())?;
            }
            let before = transaction.savepoint();
            let (mut skip, mut left) = (locking.skip, locking.fetch.unwrap_or(usize::MAX));
            let mut kept = Vec::new();
            while left > 0
                && let Some(batch) = batches.blocking_next()
            {
                let batch = batch?;
                let Some(rows) = lock(transaction, &locking.targets, &batch, &mut skip, &mut left)? else {
                    transaction.roll_back_to(&before);
                    return Ok(None);
                };
                let outputs: Vec<usize> = (locking.targets.len()..batch.num_columns()).collect();
                let outputs = batch.project(&outputs).map_err(crate::errors::from_arrow)?;
                kept.push(filter_record_batch(&outputs, &rows).map_err(crate::errors::from_arrow)?);
            }
            Ok(Some(kept))
        });
        let Some(kept) = joined(locked.await)? else { return Ok(None) };
        if let Some(explained) = explained {
            let rows = kept.iter().map(|batch| batch.num_rows() as u64).sum();
            let ran = Some(Ran { elapsed: start.elapsed(), rows, info });
            *explained = Some(Explained { node: Some(Node::new("LockRows")), plan, planning, ran });
        }
        Ok(Some(Outcome::Rows { columns, batches: Box::pin(returned_stream(kept, heap)), tag: "SELECT" }))
    }
}

/// Locks the rows of a batch, and says which of them are given back: not those that are skipped. `None`: one of them is
/// newer than the statement's view.
fn lock(
    transaction: &mut Transaction,
    targets: &[Target],
    batch: &RecordBatch,
    skip: &mut usize,
    left: &mut usize,
) -> Result<Option<BooleanArray>> {
    let names = targets
        .iter()
        .map(|target| match &target.tree {
            None => Ok(vec![RelationName::from(&*target.version.def)]),
            Some(tree) => (0..tree.leaves().len()).map(|ordinal| transaction.leaf_name(tree, ordinal)).collect(),
        })
        .collect::<Result<Vec<Vec<RelationName>>>>()?;
    let ids = (0..targets.len())
        .map(|place| {
            let ids = batch.column(place).as_primitive_opt::<Int64Type>();
            ids.ok_or_else(|| Error::internal("rows to be locked have no ids"))
        })
        .collect::<Result<Vec<_>>>()?;
    let mut kept = Vec::with_capacity(batch.num_rows());
    for row in 0..batch.num_rows() {
        let mut is_kept = *left > 0;
        for ((target, names), ids) in targets.iter().zip(&names).zip(&ids) {
            if !is_kept {
                break;
            }
            let id = RowId(ids.value(row) as u64);
            let (ordinal, id) = if target.tree.is_some() { split_id(id) } else { (0, id) };
            match transaction.lock_row(&names[ordinal], id, target.lock, target.wait)? {
                Locked::Yes => {}
                Locked::Skipped => is_kept = false,
                Locked::Again => return Ok(None),
            }
        }
        if is_kept && *skip > 0 {
            *skip -= 1;
            is_kept = false;
        } else if is_kept {
            *left -= 1;
        }
        kept.push(is_kept);
    }
    Ok(Some(kept.into()))
}
