//! Rows changed through a partitioned table: each in the leaf that has it, or moved to another.
//!
//! A row whose key changes is deleted in one leaf and inserted into another. Whoever meets it there meanwhile finds a
//! deleted row that is newer than his view, and runs his statement again, which finds the row where it is now.

use super::route::{Share, pick};
use super::{PartitionTree, split_id};
use crate::catalog::relation::RelationName;
use crate::write::index::{OnConflict, Upserted};
use crate::write::rows::Changed;
use crate::{TableWriter, Transaction};
use arrow_array::RecordBatch;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidepool_base::{Error, Result, RowId, SqlState, TableId};
use tidepool_heap::QueryHeap;
use tidepool_table::TableDef;

/// What becomes of rows with these ids.
pub enum ChangedRows<'a> {
    /// They become these, of which `writer` knows the constraints.
    Become {
        rows: &'a RecordBatch,
        writer: &'a mut TableWriter,
    },
    Go,
}

impl Transaction {
    /// As `update` and `delete`, for a table that may be partitioned, whose rows are named as within it; rows are as
    /// plans give them. 23514 where no partition takes a row, or a constraint refuses it.
    pub fn change_rows_of(
        &mut self,
        table: &RelationName,
        tree: Option<&PartitionTree>,
        ids: &[RowId],
        change: ChangedRows<'_>,
    ) -> Result<Changed> {
        let Some(tree) = tree else {
            return match change {
                ChangedRows::Become { rows, writer } => {
                    let rows = writer.checked(rows)?;
                    self.update(table, ids, &rows)
                }
                ChangedRows::Go => self.delete(table, ids),
            };
        };
        QueryHeap::outside(|| match change {
            ChangedRows::Become { rows, writer } => self.update_in(tree, ids, rows, writer),
            ChangedRows::Go => self.delete_in(tree, ids),
        })
    }

    /// Where a leaf is, as this transaction has it.
    pub fn leaf_name(&self, tree: &PartitionTree, ordinal: usize) -> Result<RelationName> {
        let id = tree.leaves().get(ordinal).copied();
        let state = self.state();
        let name = id.and_then(|id| state.table_of_id(id)).map(|table| RelationName::from(&*table.def));
        name.ok_or_else(|| {
            Error::new(SqlState::SERIALIZATION_FAILURE, "a partition was dropped while the statement waited for it")
                .with_hint("Try again.")
        })
    }

    fn delete_in(&mut self, tree: &PartitionTree, ids: &[RowId]) -> Result<Changed> {
        let mut done = vec![false; ids.len()];
        for (ordinal, places) in by_leaf(ids, 0..ids.len()) {
            let leaf = self.leaf_name(tree, ordinal)?;
            let ids: Vec<RowId> = places.iter().map(|place| split_id(ids[*place]).1).collect();
            match self.delete(leaf, &ids)? {
                Changed::Again => return Ok(Changed::Again),
                Changed::Rows(deleted) => note(&mut done, &places, &deleted),
            }
        }
        Ok(Changed::Rows(done.into()))
    }

    fn update_in(
        &mut self,
        tree: &PartitionTree,
        ids: &[RowId],
        rows: &RecordBatch,
        writer: &mut TableWriter,
    ) -> Result<Changed> {
        let rows = writer.member(rows)?;
        let routing = writer.routing_mut()?;
        let mut done = vec![false; ids.len()];
        for Share { ordinal, places, rows } in routing.tree.shares(&rows)? {
            let checked = routing.writer(ordinal)?.checked(&rows)?;
            let def = routing.leaf(ordinal)?.def.clone();
            let target = self.locked_leaf(&def)?;
            let own: Vec<RowId> = places.iter().map(|place| ids[*place as usize]).collect();
            for (from, within) in by_leaf(&own, 0..own.len()) {
                let leaf_ids: Vec<RowId> = within.iter().map(|place| split_id(own[*place]).1).collect();
                let of_batch: Vec<usize> = within.iter().map(|place| places[*place] as usize).collect();
                let here: Vec<u32> = within.iter().map(|place| *place as u32).collect();
                let changed = match from == ordinal {
                    true if here.len() == checked.num_rows() => self.update(&target, &leaf_ids, &checked)?,
                    true => self.update(&target, &leaf_ids, &pick(&checked, &here)?)?,
                    false => {
                        let source = self.leaf_name(tree, from)?;
                        self.check_may_move(tree.leaves()[from], tree.table())?;
                        self.take_out(&source, &leaf_ids)?
                    }
                };
                let Changed::Rows(changed) = changed else { return Ok(Changed::Again) };
                note(&mut done, &of_batch, &changed);
                if from != ordinal {
                    let moved = || here.iter().enumerate().filter(|(index, _)| changed.value(*index));
                    let places: Vec<u32> = moved().map(|(_, place)| *place).collect();
                    let now = self.insert_checked(&target, &pick(&checked, &places)?)?;
                    let left = moved().map(|(index, _)| leaf_ids[index]);
                    self.note_moved(tree.leaves()[from], left, &target, &now)?;
                }
            }
        }
        Ok(Changed::Rows(done.into()))
    }

    /// As `upsert`, for a table that may be partitioned: `arbiters` are indexes of its own. Rows are as plans give them,
    /// and so are those that `action` makes. 0A000 where a row would have to move to another partition.
    pub fn upsert_of(
        &mut self,
        table: &RelationName,
        writer: &mut TableWriter,
        rows: &RecordBatch,
        arbiters: &[TableId],
        mut action: Option<OnConflict<'_>>,
    ) -> Result<Vec<Upserted>> {
        if !writer.is_routed() {
            let rows = writer.checked(rows)?;
            let mut checked = action.as_mut().map(|action| {
                |place: usize, existing: &RecordBatch| match action(place, existing)? {
                    Some(row) => writer.checked(&row).map(Some),
                    None => Ok(None),
                }
            });
            let checked = checked.as_mut().map(|checked| checked as OnConflict<'_>);
            return self.upsert(table, &rows, arbiters, checked);
        }
        let rows = writer.member(rows)?;
        let parent = writer.table().def.clone();
        let mut done: Vec<Option<Upserted>> = (0..rows.num_rows()).map(|_| None).collect();
        let shares = writer.routing_mut()?.tree.shares(&rows)?;
        for Share { ordinal, places, rows } in shares {
            let checked = writer.routing_mut()?.writer(ordinal)?.checked(&rows)?;
            let def = writer.routing_mut()?.leaf(ordinal)?.def.clone();
            let leaf = self.locked_leaf(&def)?;
            let arbiters = arbiters_of(&parent, &def, arbiters);
            let writer = &mut *writer;
            let mut stays = action.as_mut().map(|action| {
                |place: usize, existing: &RecordBatch| {
                    let Some(row) = action(places[place] as usize, existing)? else { return Ok(None) };
                    let row = writer.member(&row)?;
                    let routing = writer.routing_mut()?;
                    // Elsewhere or nowhere.
                    let same = routing.tree.route(&row).is_ok_and(|ordinals| *ordinals == [ordinal as u32]);
                    if !same {
                        return Err(Error::unsupported("invalid ON UPDATE specification").with_detail(
                            "The result tuple would appear in a different partition than the original tuple.",
                        ));
                    }
                    routing.writer(ordinal)?.checked(&row).map(Some)
                }
            });
            let stays = stays.as_mut().map(|stays| stays as OnConflict<'_>);
            for (place, upserted) in places.iter().zip(self.upsert(&leaf, &checked, &arbiters, stays)?) {
                done[*place as usize] = Some(upserted);
            }
        }
        done.into_iter().collect::<Option<_>>().ok_or_else(|| Error::internal("a row came to no partition"))
    }

    /// Locks a leaf for changing rows, which must be as the statement was planned with it.
    pub(crate) fn locked_leaf(&mut self, def: &Arc<TableDef>) -> Result<RelationName> {
        let name = RelationName::from(&**def);
        self.lock_rows(&name)?;
        if self.table(&name)?.def != *def {
            return Err(Error::new(
                SqlState::SERIALIZATION_FAILURE,
                format!("table \"{}\" was altered while the statement waited for it", def.name),
            )
            .with_hint("Try again."));
        }
        Ok(name)
    }
}

/// Places of ids by the leaf that they are of.
fn by_leaf(ids: &[RowId], places: std::ops::Range<usize>) -> BTreeMap<usize, Vec<usize>> {
    let mut found: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for place in places {
        found.entry(split_id(ids[place]).0).or_default().push(place);
    }
    found
}

fn note(done: &mut [bool], places: &[usize], changed: &arrow_array::BooleanArray) {
    debug_assert_eq!(places.len(), changed.len());
    for (index, place) in places.iter().enumerate() {
        done[*place] = changed.value(index);
    }
}

/// The parts, in a leaf, of indexes of a partitioned table that it is within.
fn arbiters_of(parent: &TableDef, leaf: &TableDef, arbiters: &[TableId]) -> Vec<TableId> {
    let shape = |def: &TableDef, index: &tidepool_table::IndexDef| def.index_positions(index);
    let wanted: Vec<_> = parent.indexes.iter().filter(|index| arbiters.contains(&index.id)).collect();
    let serves = |index: &&tidepool_table::IndexDef| {
        index.unique && wanted.iter().any(|of| shape(parent, of) == shape(leaf, index))
    };
    leaf.indexes.iter().filter(serves).map(|index| index.id).collect()
}
