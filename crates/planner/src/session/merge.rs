//! `MERGE`: what its clauses do to the rows of a batch, an action at a time.

use super::change::{Rows, Written, look_again, newer_of, part};
use super::tables::checked_writer;
use crate::insert::Conform;
use crate::merge::{self, Act};
use arrow::array::{AsArray, BooleanArray, RecordBatch, UInt32Array};
use arrow::compute::{filter_record_batch, take_record_batch};
use arrow::datatypes::Int64Type;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use tidepool_base::{Error, Result, RowId, SqlState};
use tidepool_database::{Changed, ChangedRows, PartitionTree, RelationName, TableWriter, Transaction};
use tidepool_table::TableVersion;

impl Rows<'_> {
    pub(super) fn merge(self, transaction: &mut Transaction, table: &RelationName, acts: &[Act]) -> Result<Written> {
        let conform = self.conform(transaction, table, merge::FIRST)?;
        let mut merge = Merging {
            table,
            tree: self.tree.clone(),
            acts,
            values: merge::FIRST..self.width,
            conform,
            inserted: checked_writer(transaction, self.facts, table)?,
            checks: checked_writer(transaction, self.facts, table)?,
            returns: self.returns,
            written: Written::default(),
        };
        let mut is_done = true;
        while is_done && let Some(batch) = self.batches.blocking_next() {
            is_done = merge.batch(transaction, &batch?, None)?;
        }
        let def = merge.checks.table().def.clone();
        let has_newer = !newer_of(transaction, &def, self.tree.as_deref())?.is_empty();
        if is_done && has_newer && acts.contains(&Act::Insert) {
            // What a source row comes to may depend on a row that it does not match any more.
            is_done = false;
        }
        if is_done && let Some((now, again)) = look_again(transaction, &def, self.tree.as_deref(), self.reevaluation)? {
            for batch in again.iter().flatten() {
                is_done &= merge.batch(transaction, batch, Some(&now))?;
            }
            is_done &= again.is_some();
        }
        let mut written = merge.written;
        if is_done {
            written.rows += transaction.absorb(merge.inserted)?;
        }
        Ok(Written { again: !is_done, ..written })
    }
}

/// A `MERGE` under way.
struct Merging<'a> {
    table: &'a RelationName,
    tree: Option<Arc<PartitionTree>>,
    acts: &'a [Act],
    values: Range<usize>,
    conform: Conform,
    inserted: TableWriter,
    checks: TableWriter,
    returns: bool,
    written: Written,
}

impl Merging<'_> {
    /// False: to be run again.
    fn batch(
        &mut self,
        transaction: &mut Transaction,
        batch: &RecordBatch,
        now: Option<&TableVersion>,
    ) -> Result<bool> {
        let [ids, numbers] = [0, 1].map(|column| batch.column(column).as_primitive_opt::<Int64Type>());
        let (Some(ids), Some(numbers)) = (ids, numbers) else {
            return Err(Error::internal("a merge's rows have no ids"));
        };
        let mut unwritten = BTreeSet::new();
        for act in [Act::Delete, Act::Update, Act::Insert] {
            let is_done = |number: &i64| self.acts.get(*number as usize) == Some(&act);
            let places: UInt32Array =
                (0..).zip(numbers.values()).filter(|(_, number)| is_done(number)).map(|(place, _)| place).collect();
            if places.is_empty() {
                continue;
            }
            let rows = take_record_batch(&part(batch, self.values.clone())?, &places);
            let rows = rows.map_err(crate::errors::from_arrow)?;
            if act == Act::Insert {
                self.inserted.write(&self.conform.apply(&rows)?)?;
                continue;
            }
            let ids: Vec<RowId> =
                places.values().iter().map(|&place| RowId(ids.value(place as usize) as u64)).collect();
            let rows = if act == Act::Update { Some(self.conform.apply(&rows)?) } else { None };
            let done = match (now, &rows) {
                (Some(now), Some(rows)) => transaction.change_newer(now, &ids, Some(&self.checks.checked(rows)?))?,
                (Some(now), None) => transaction.change_newer(now, &ids, None)?,
                (None, rows) => {
                    let change = match rows {
                        Some(rows) => ChangedRows::Become { rows, writer: &mut self.checks },
                        None => ChangedRows::Go,
                    };
                    transaction.change_rows_of(self.table, self.tree.as_deref(), &ids, change)?
                }
            };
            let Changed::Rows(done) = done else { return Ok(false) };
            if done.false_count() > 0 {
                let table = self.checks.table().def.id;
                if let Some(tree) = &self.tree
                    && tree.leaves().iter().any(|leaf| transaction.has_newer(*leaf))
                {
                    return Ok(false);
                }
                let newer = transaction.newer(table);
                for (place, (row, _)) in ids.iter().zip(done.values()).enumerate().filter(|(_, (_, done))| !done) {
                    let is_gone = transaction.is_gone(table, *row);
                    if now.is_some() || newer.binary_search(row).is_err() && !is_gone {
                        let message = "MERGE command cannot affect row a second time";
                        return Err(Error::new(SqlState::CARDINALITY_VIOLATION, message)
                            .with_hint("Ensure that not more than one source row matches any one target row."));
                    }
                    if is_gone && self.acts.contains(&Act::Insert) {
                        // Its source row matches no more.
                        return Ok(false);
                    }
                    unwritten.insert(places.value(place));
                }
            }
            let rows = done.true_count() as u64;
            let of = if act == Act::Delete { &mut self.written.deleted } else { &mut self.written.updated };
            *of += rows;
            self.written.rows += rows;
        }
        if self.returns {
            let kept: BooleanArray =
                (0..batch.num_rows() as u32).map(|place| Some(!unwritten.contains(&place))).collect();
            let returned = part(batch, self.values.end..batch.num_columns())?;
            self.written.returned.push(filter_record_batch(&returned, &kept).map_err(crate::errors::from_arrow)?);
        }
        Ok(true)
    }
}
