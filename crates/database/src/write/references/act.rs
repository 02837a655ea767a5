//! What becomes of rows that refer to a key that is no more: `CASCADE`, `SET NULL` and `SET DEFAULT`.

use super::link::{Link, read_columns};
use super::pending::{Lost, Place, RowRules, Views, Watch, concurrent_update};
use crate::text::numeric;
use crate::write::partition::{Membership, Share, pick};
use crate::write::rows::RowWrite;
use crate::{TableWriter, Transaction};
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, UInt32Array, new_null_array};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::DataType;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tidepool_base::{Error, Result, RowId, SqlState, TableId};
use tidepool_table::rows::Outcome;
use tidepool_table::{BATCH_ROWS, ReferentialAction, Table, TableDef, TableVersion};

/// Rows of one of the child's leaves to which something is to be done, each with the number of the key that was lost.
#[derive(Clone, Copy)]
struct Acting<'a> {
    link: &'a Link,
    leaf: usize,
    lost: &'a [Lost],
    left: &'a [(RowId, usize)],
    rules: &'a dyn RowRules,
}

/// What rows become, and in which leaf.
struct Become {
    target: usize,
    ids: Vec<RowId>,
    rows: RecordBatch,
}

impl Transaction {
    /// Does to the child's rows what the foreign key wants done where these keys are no more.
    pub(super) fn act(
        &mut self,
        link: &Link,
        lost: &[Lost],
        deleted: bool,
        action: ReferentialAction,
        rules: &dyn RowRules,
    ) -> Result<()> {
        let mut views = self.views()?;
        let keys: HashMap<Vec<u8>, usize> =
            lost.iter().enumerate().map(|(number, lost)| (lost.key.clone(), number)).collect();
        let mut found: BTreeMap<usize, Vec<(RowId, usize)>> = BTreeMap::new();
        let patience = self.patience();
        link.children(&views.now, &keys, &*patience, &mut |leaf, part| {
            found.entry(leaf).or_default().extend_from_slice(part);
            Ok(())
        })?;
        for (leaf, mut found) in found {
            found.sort_unstable();
            self.written.insert(link.leaves[leaf].def.id, link.leaves[leaf].clone());
            for part in found.chunks(BATCH_ROWS) {
                let mut left = part.to_vec();
                while !left.is_empty() {
                    patience.check()?;
                    let acting = Acting { link, leaf, lost, left: &left, rules };
                    let newer = self.act_once(&acting, &views, action, deleted)?;
                    if newer.is_empty() {
                        break;
                    }
                    if self.has_one_snapshot() {
                        return Err(concurrent_update());
                    }
                    // Somebody else changed them meanwhile.
                    views = self.views()?;
                    left.retain(|(row, _)| newer.contains(row));
                    let mut refers = Vec::with_capacity(left.len());
                    for (row, number) in left {
                        if link.refers(leaf, &views.now, row, &lost[number].key)? {
                            refers.push((row, number));
                        }
                    }
                    left = refers;
                }
            }
        }
        Ok(())
    }

    /// Returns the rows that are newer than the view, to which nothing was done.
    fn act_once(
        &mut self,
        acting: &Acting<'_>,
        views: &Views,
        action: ReferentialAction,
        deleted: bool,
    ) -> Result<Vec<RowId>> {
        let Acting { link, leaf, lost, left, .. } = *acting;
        if self.has_one_snapshot() {
            for (row, number) in left {
                if !link.refers(leaf, &views.own, *row, &lost[*number].key)? {
                    return Err(concurrent_update());
                }
            }
        }
        if deleted && action == ReferentialAction::Cascade {
            let ids: Vec<RowId> = left.iter().map(|(row, _)| *row).collect();
            let mut write = RowWrite::new(self.watch(&link.leaves[leaf]));
            return self.write_children(&link.leaves[leaf], &views.own, &ids, None, &mut write).map(|(_, newer)| newer);
        }
        let mut newer = Vec::new();
        for Become { target, ids, rows } in self.changed_children(acting, views, action)? {
            let table = &link.leaves[leaf];
            if target == leaf {
                let mut write = RowWrite::new(self.watch(table));
                newer.extend(self.write_children(table, &views.own, &ids, Some(&rows), &mut write)?.1);
                continue;
            }
            self.check_may_move(table.def.id, link.child.def.id)?;
            let mut write = RowWrite::new(Watch::of_moving(&self.state(), table));
            let (written, left_behind) = self.write_children(table, &views.own, &ids, None, &mut write)?;
            newer.extend(left_behind);
            let (places, moved): (Vec<u32>, Vec<RowId>) =
                written.iter().map(|place| (*place, ids[*place as usize])).unzip();
            let to = &link.leaves[target];
            self.written.insert(to.def.id, to.clone());
            let now = self.insert_rows(to, &views.own, &pick(&rows, &places)?)?;
            if write.is_referenced() {
                self.moved(table, moved, to, &now);
            }
        }
        Ok(newer)
    }

    /// Writes rows of a leaf, or takes them away. Returns the places of those that were written, and those that are newer
    /// than the view.
    fn write_children(
        &mut self,
        leaf: &Arc<Table>,
        view: &tidepool_txn::View,
        ids: &[RowId],
        rows: Option<&RecordBatch>,
        write: &mut RowWrite,
    ) -> Result<(Vec<u32>, Vec<RowId>)> {
        let images = rows.map(|rows| leaf.rows.layout().rows(rows)).transpose()?;
        let mut image = Vec::new();
        let (mut written, mut newer) = (Vec::new(), Vec::new());
        for (place, row) in ids.iter().enumerate() {
            if let Some(images) = &images {
                images.image(place, &mut image)?;
            }
            match self.write_row(leaf, view, *row, images.is_some().then_some(&image), write)? {
                Outcome::Written => written.push(place as u32),
                Outcome::Newer { .. } => newer.push(*row),
                Outcome::Conflict(_) | Outcome::SelfModified | Outcome::Deleted => {}
            }
        }
        Ok((written, newer))
    }

    /// Whole new rows, checked, with what the foreign key puts into its columns, by the leaf that they belong to.
    fn changed_children(
        &mut self,
        acting: &Acting<'_>,
        views: &Views,
        action: ReferentialAction,
    ) -> Result<Vec<Become>> {
        let Acting { link, leaf, lost, left, rules } = *acting;
        let table = &link.leaves[leaf];
        let all: Vec<usize> = (0..table.def.columns.len()).collect();
        let mut wanted: Vec<RowId> = left.iter().map(|(row, _)| *row).collect();
        // Of each row its key's number; for a cascade, where the new key is.
        let mut number_of: HashMap<RowId, usize> = left.iter().copied().collect();
        let mut new_keys: Vec<ArrayRef> = Vec::new();
        if action == ReferentialAction::Cascade {
            let (columns, place_of) = self.new_keys(link, lost, views)?;
            new_keys = columns;
            // A parent that is gone by now takes its children along some other way.
            wanted.retain(|row| place_of[number_of[row]].is_some());
            for number in number_of.values_mut() {
                *number = place_of[*number].unwrap_or(0);
            }
        }
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let (ids, mut columns) = read_columns(&table.rows, &views.own, &wanted, &all)?;
        for (place, position) in link.positions.iter().enumerate() {
            let kind = columns[*position].data_type().clone();
            columns[*position] = match action {
                ReferentialAction::SetNull => new_null_array(&kind, ids.len()),
                ReferentialAction::SetDefault => rules.defaults(&link.child.def, *position, ids.len())?,
                _ => {
                    let places: UInt32Array = ids.iter().map(|row| number_of[row] as u32).collect();
                    let taken = arrow_select::take::take(&new_keys[place], &places, None).map_err(broken)?;
                    cast(&taken, &link.child.def, *position)?
                }
            };
        }
        let options = RecordBatchOptions::new().with_row_count(Some(ids.len()));
        let schema = table.rows.layout().schema();
        // What may not be NULL is checked below.
        let nullable = schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
        let nullable = arrow_schema::Schema::new(nullable.collect::<Vec<_>>());
        let rows = RecordBatch::try_new_with_options(nullable.into(), columns, &options).map_err(broken)?;
        self.checked_children(link, views, ids, rows, rules)
    }

    /// Where each key that was lost went: columns of keys, and for each of `lost` the place in them, if its row is there
    /// still.
    fn new_keys(&self, link: &Link, lost: &[Lost], views: &Views) -> Result<(Vec<ArrayRef>, Vec<Option<usize>>)> {
        let state = self.state();
        let positions = link.parent.def.positions(&link.key.referenced_columns);
        let now: Vec<Place> = lost.iter().map(|lost| self.references.now_at(lost.place)).collect();
        let mut by_table: BTreeMap<TableId, Vec<RowId>> = BTreeMap::new();
        for (table, row) in &now {
            by_table.entry(*table).or_default().push(*row);
        }
        let mut place_of: HashMap<Place, usize> = HashMap::new();
        let mut parts: Vec<Vec<ArrayRef>> = positions.iter().map(|_| Vec::new()).collect();
        for (table, rows) in by_table {
            let Some(parent) = state.table_of_id(table) else { continue };
            let (found, columns) = read_columns(&parent.rows, &views.now, &rows, &positions)?;
            let before = place_of.len();
            place_of.extend(found.iter().enumerate().map(|(place, row)| ((table, *row), before + place)));
            for (part, column) in parts.iter_mut().zip(columns) {
                part.push(column);
            }
        }
        let one = |part: &Vec<ArrayRef>| {
            let several: Vec<&dyn Array> = part.iter().map(AsRef::as_ref).collect();
            arrow_select::concat::concat(&several).map_err(broken)
        };
        let columns = if place_of.is_empty() { Vec::new() } else { parts.iter().map(one).collect::<Result<_>>()? };
        Ok((columns, now.iter().map(|place| place_of.get(place).copied()).collect()))
    }

    fn checked_children(
        &self,
        link: &Link,
        views: &Views,
        ids: Vec<RowId>,
        rows: RecordBatch,
        rules: &dyn RowRules,
    ) -> Result<Vec<Become>> {
        let state = self.state();
        let writer =
            |table: &Arc<Table>| TableWriter::new(self.database.clone(), Arc::new(TableVersion::of(table, &views.own)));
        let with_checks = |writer: TableWriter, def: &Arc<TableDef>| {
            Ok(if def.checks.is_empty() { writer } else { writer.with_checks(rules.checks(def)?) })
        };
        let child = &link.child;
        let whole = writer(child).with_partitions(Membership::of(&state, &child.def)?, None);
        let Some(tree) = state.partition_tree(&child.def)? else {
            let rows = with_checks(whole, &child.def)?.checked(&rows)?;
            return Ok(vec![Become { target: 0, ids, rows }]);
        };
        let rows = whole.member(&rows)?;
        let mut done = Vec::new();
        for Share { ordinal, places, rows } in tree.shares(&rows)? {
            let leaf = &link.leaves[ordinal];
            let rows = with_checks(writer(leaf), &leaf.def)?.checked(&rows)?;
            let ids = places.iter().map(|place| ids[*place as usize]).collect();
            done.push(Become { target: ordinal, ids, rows });
        }
        Ok(done)
    }
}

/// Values of a referenced column as the one that refers to it takes them. 22003 where it cannot.
fn cast(values: &ArrayRef, def: &TableDef, position: usize) -> Result<ArrayRef> {
    let column = &def.columns[position];
    let target = tidepool_table::arrow_type(column.sql_type);
    if *values.data_type() == target {
        return Ok(values.clone());
    }
    let numbers = if target == numeric::NUMERIC {
        numeric::from_array(values)
    } else if *values.data_type() == numeric::NUMERIC {
        numeric::into_array(values, &target)
    } else {
        None
    };
    if let Some(numbers) = numbers {
        return numbers;
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    // Arrow cuts a fraction off, where PostgreSQL rounds.
    let whole = match values.data_type() {
        DataType::Decimal128(precision, scale) if *scale > 0 && target.is_integer() => {
            Some(cast_with_options(values, &DataType::Decimal128(*precision, 0), &options).map_err(broken)?)
        }
        _ => None,
    };
    cast_with_options(whole.as_ref().unwrap_or(values), &target, &options).map_err(|_| {
        Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, format!("{} out of range", column.sql_type))
            .with_detail(format!("Column \"{}\" of table \"{}\" cannot hold the new key.", column.name, def.name))
    })
}

fn broken(error: arrow_schema::ArrowError) -> Error {
    Error::internal(format!("rows do not fit their table: {error}"))
}
