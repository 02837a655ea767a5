//! What becomes of rows that refer to a key that is no more: `CASCADE`, `SET NULL` and `SET DEFAULT`.

use super::link::{Link, read_columns};
use super::{Lost, RowRules, concurrent_update};
use crate::Transaction;
use crate::rows::RowWrite;
use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions, UInt32Array, new_null_array};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::DataType;
use std::collections::HashMap;
use tidepool_base::{Error, Result, RowId, SqlState};
use tidepool_table::rows::Outcome;
use tidepool_table::{BATCH_ROWS, ReferentialAction, TableDef};

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
        let mut found = Vec::new();
        let patience = self.patience();
        link.children(&views.now, &keys, &*patience, &mut |part| {
            found.extend_from_slice(part);
            Ok(())
        })?;
        if found.is_empty() {
            return Ok(());
        }
        found.sort_unstable();
        self.written.insert(link.child.def.id, link.child.clone());
        for part in found.chunks(BATCH_ROWS) {
            let mut left = part.to_vec();
            while !left.is_empty() {
                patience.check()?;
                if self.has_one_snapshot() {
                    for (row, number) in &left {
                        if !link.refers(&views.own, *row, &lost[*number].key)? {
                            return Err(concurrent_update());
                        }
                    }
                }
                let newer = match action {
                    ReferentialAction::Cascade if deleted => {
                        let ids: Vec<RowId> = left.iter().map(|(row, _)| *row).collect();
                        self.change_children(link, &views.own, &ids, None)?
                    }
                    _ => {
                        let (ids, rows) = self.changed_children(link, &views, lost, &left, action, rules)?;
                        self.change_children(link, &views.own, &ids, Some(&rows))?
                    }
                };
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
                    if link.refers(&views.now, row, &lost[number].key)? {
                        refers.push((row, number));
                    }
                }
                left = refers;
            }
        }
        Ok(())
    }

    /// Writes the child's rows, or takes them away. Returns those that are newer than the view.
    fn change_children(
        &mut self,
        link: &Link,
        view: &tidepool_txn::View,
        ids: &[RowId],
        rows: Option<&RecordBatch>,
    ) -> Result<Vec<RowId>> {
        let table = &link.child;
        let mut write = RowWrite::new(self.watch(table));
        let images = rows.map(|rows| table.rows.layout().rows(rows)).transpose()?;
        let mut image = Vec::new();
        let mut newer = Vec::new();
        for (place, row) in ids.iter().enumerate() {
            if let Some(images) = &images {
                images.image(place, &mut image)?;
            }
            let outcome = self.write_row(table, view, *row, images.is_some().then_some(&image), &mut write)?;
            if matches!(outcome, Outcome::Newer { .. }) {
                newer.push(*row);
            }
        }
        Ok(newer)
    }

    /// Whole new rows, checked, with what the foreign key puts into its columns.
    fn changed_children(
        &mut self,
        link: &Link,
        views: &super::Views,
        lost: &[Lost],
        left: &[(RowId, usize)],
        action: ReferentialAction,
        rules: &dyn RowRules,
    ) -> Result<(Vec<RowId>, RecordBatch)> {
        let def = link.child.def.clone();
        let all: Vec<usize> = (0..def.columns.len()).collect();
        let mut wanted: Vec<RowId> = left.iter().map(|(row, _)| *row).collect();
        // Of each row its key's number; for a cascade, where the new key is.
        let mut number_of: HashMap<RowId, usize> = left.iter().copied().collect();
        let mut new_keys: Vec<ArrayRef> = Vec::new();
        if action == ReferentialAction::Cascade {
            let parents: Vec<RowId> = lost.iter().map(|lost| lost.row).collect();
            let positions = link.parent.def.positions(&link.key.referenced_columns);
            let (found, columns) = read_columns(&link.parent.rows, &views.now, &parents, &positions)?;
            let place_of: HashMap<RowId, usize> = found.iter().enumerate().map(|(place, row)| (*row, place)).collect();
            new_keys = columns;
            // A parent that is gone by now takes its children along some other way.
            wanted.retain(|row| place_of.contains_key(&lost[number_of[row]].row));
            for number in number_of.values_mut() {
                *number = place_of.get(&lost[*number].row).copied().unwrap_or(0);
            }
        }
        let (ids, mut columns) = read_columns(&link.child.rows, &views.own, &wanted, &all)?;
        for (place, position) in link.positions.iter().enumerate() {
            let kind = columns[*position].data_type().clone();
            columns[*position] = match action {
                ReferentialAction::SetNull => new_null_array(&kind, ids.len()),
                ReferentialAction::SetDefault => rules.defaults(&def, *position, ids.len())?,
                _ => {
                    let places: UInt32Array = ids.iter().map(|row| number_of[row] as u32).collect();
                    let taken = arrow_select::take::take(&new_keys[place], &places, None).map_err(broken)?;
                    cast(&taken, &def, *position)?
                }
            };
        }
        let options = RecordBatchOptions::new().with_row_count(Some(ids.len()));
        let schema = link.child.rows.layout().schema();
        // What may not be NULL is checked below.
        let nullable = schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
        let nullable = arrow_schema::Schema::new(nullable.collect::<Vec<_>>());
        let rows = RecordBatch::try_new_with_options(nullable.into(), columns, &options).map_err(broken)?;
        let mut writer = self.writer(&*def)?;
        if !def.checks.is_empty() {
            writer = writer.with_checks(rules.checks(&def)?);
        }
        Ok((ids, writer.checked(&rows)?))
    }
}

/// Values of a referenced column as the one that refers to it takes them. 22003 where it cannot.
fn cast(values: &ArrayRef, def: &TableDef, position: usize) -> Result<ArrayRef> {
    let column = &def.columns[position];
    let target = tidepool_table::arrow_type(column.sql_type);
    if *values.data_type() == target {
        return Ok(values.clone());
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
