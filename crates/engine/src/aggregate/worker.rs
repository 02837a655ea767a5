//! What a worker does with its chunks.

use super::direct::DirectTable;
use super::directory::partition_hash;
use super::functions::Take;
use super::local::LocalTable;
use super::ordered::OrderedRows;
use super::plan::{Lookup, Plan};
use super::runs;
use super::states::{Place, accumulate};
use super::texts::TextStore;
use crate::hash;
use crate::mask::Mask;
use crate::pipeline::SinkState;
use crate::rows::{RowPtr, Rows};
use crate::touch::Touches;
use crate::vector::{CHUNK_ROWS, Chunk, Vector};
use std::any::Any;
use std::sync::Arc;
use tidepool_base::Result;

/// A worker's groups.
pub(super) enum Groups {
    /// One, that of all rows.
    One(Rows, RowPtr),
    Direct(DirectTable),
    Hashed(Box<LocalTable>),
}

pub(super) struct Worker {
    plan: Arc<Plan>,
    pub groups: Groups,
    /// Instead of hashed ones, as long as all rows come in order.
    pub ordered: Option<OrderedRows>,
    /// Of each set, the keys and values that are in it.
    pub sets: Vec<LocalTable>,
    pub texts: TextStore,
    found: Vec<RowPtr>,
    touches: Touches,
}

/// Rows that are taken; `None`: all.
fn taken(take: &Take, chunk: &Chunk) -> Result<Option<Mask>> {
    let valid = take.argument.and_then(|column| chunk.columns[column].valid.as_ref());
    let Some(filter) = take.filter else { return Ok(valid.cloned()) };
    let filter = &chunk.columns[filter];
    let passed = Mask::both(Some(filter.as_bools()?), filter.valid.as_ref());
    Ok(Mask::both(passed.as_ref(), valid))
}

impl Worker {
    pub fn new(plan: &Arc<Plan>) -> Result<Worker> {
        let table = |layout, keys| LocalTable::new(layout, keys, plan.limits, &plan.meter);
        let observer = plan.meter.observer();
        let groups = match &plan.lookup {
            Lookup::One => {
                let (mut rows, mut made) = (plan.rows(), Vec::new());
                rows.reserve(1, &mut made)?;
                Groups::One(rows, made[0])
            }
            Lookup::Direct(numbering) => Groups::Direct(DirectTable::new(numbering, plan.rows(), observer)?),
            Lookup::Hashed => Groups::Hashed(Box::new(table(&plan.layout, plan.keys.len()))),
        };
        let sets = plan.sets.iter().map(|set| table(&set.layout, plan.keys.len() + 1)).collect();
        let ordered = plan.finds_order.then(|| OrderedRows::new(plan.rows()));
        Ok(Worker {
            plan: Arc::clone(plan),
            groups,
            ordered,
            sets,
            texts: TextStore::new(observer),
            found: Vec::new(),
            touches: plan.meter.touches(),
        })
    }

    fn aggregate(&mut self, chunk: &Chunk) -> Result<()> {
        let plan = Arc::clone(&self.plan);
        let stored: Vec<&Vector> = plan.stored.iter().map(|column| &chunk.columns[*column]).collect();
        let keys = &stored[..plan.keys.len()];
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        if let Some(ordered) = &mut self.ordered {
            let used_before = ordered.rows.used_bytes();
            if let Some(place) = ordered.place(&stored, keys.len(), chunk.rows, &mut found)? {
                self.touches.append(&plan.groups, ordered.rows.used_bytes() - used_before);
                self.update(chunk, &place)?;
                self.found = found;
                return Ok(());
            }
            found.clear();
            if let (Some(ordered), Groups::Hashed(table)) = (self.ordered.take(), &mut self.groups) {
                plan.note_disorder(ordered.rows.len());
                table.absorb(ordered.rows, &plan.groups)?;
            }
        }
        match &mut self.groups {
            Groups::One(_, group) => {
                found.push(*group);
                let ends = Some(vec![chunk.rows as u32].into());
                self.update(chunk, &Place { rows: None, ends, groups: &found })?;
            }
            Groups::Direct(table) => {
                let used_before = table.rows.used_bytes();
                let place = table.place(&stored, chunk.rows, &mut found)?;
                self.touches.append(&plan.groups, table.rows.used_bytes() - used_before);
                let addresses = place.groups.iter().map(|row| row.address());
                self.touches.look_up(&plan.groups, addresses, plan.layout.width(), true);
                self.update(chunk, &place)?;
            }
            Groups::Hashed(table) => {
                let ends = if plan.finds_runs { runs::ends(keys, chunk.rows) } else { None };
                if let Some(ends) = ends {
                    let starts: Vec<u32> = std::iter::once(0).chain(ends[..ends.len() - 1].iter().copied()).collect();
                    let first: Vec<Vector> =
                        stored.iter().map(|column| column.gather(&starts)).collect::<Result<_>>()?;
                    let first: Vec<&Vector> = first.iter().collect();
                    let hashes = hash::of_columns(&first[..keys.len()], starts.len())?;
                    table.locate(&first, &hashes, &mut found)?;
                    self.update(chunk, &Place { rows: None, ends: Some(ends.into()), groups: &found })?;
                } else {
                    let hashes = hash::of_columns(keys, chunk.rows)?;
                    table.locate(&stored, &hashes, &mut found)?;
                    self.update(chunk, &Place { rows: None, ends: None, groups: &found })?;
                }
                if let Groups::Hashed(table) = &mut self.groups {
                    table.settle(&plan.groups)?;
                }
            }
        }
        self.found = found;
        for (set, table) in plan.sets.iter().zip(&mut self.sets) {
            let columns: Vec<&Vector> = keys.iter().copied().chain([&chunk.columns[set.argument]]).collect();
            let mut narrowed = Vec::new();
            let (columns, rows) = match taken(&set.take, chunk)? {
                None => (columns, chunk.rows),
                Some(mask) => {
                    let rows = mask.positions();
                    narrowed = columns.iter().map(|column| column.gather(&rows)).collect::<Result<Vec<Vector>>>()?;
                    (narrowed.iter().collect(), rows.len())
                }
            };
            let mut hashes = hash::of_columns(&columns, rows)?;
            if !keys.is_empty() {
                // A value is in its group's partition.
                let of_keys = hash::of_columns(&columns[..keys.len()], rows)?;
                hashes.iter_mut().zip(of_keys).for_each(|(hash, group)| *hash = partition_hash(group, *hash));
            }
            let mut found = Vec::new();
            table.locate(&columns, &hashes, &mut found)?;
            table.settle(&plan.groups)?;
            drop(narrowed);
        }
        Ok(())
    }

    fn update(&mut self, chunk: &Chunk, place: &Place<'_>) -> Result<()> {
        let plan = &self.plan;
        for (index, take) in plan.takes.iter().enumerate() {
            let narrowed = taken(take, chunk)?.map(|mask| place.narrowed(&mask));
            let place = narrowed.as_ref().unwrap_or(place);
            for accumulator in plan.accumulators.iter().filter(|of| of.set.is_none() && of.take == index) {
                let vector = accumulator.argument.map(|column| &chunk.columns[column]);
                // SAFETY: the groups are this worker's, which nobody else has, of the plan's layout; its texts are `texts`'s.
                unsafe { accumulate(accumulator, vector, place, &mut self.texts, &plan.has_infinite)? };
            }
        }
        Ok(())
    }
}

impl SinkState for Worker {
    fn push(&mut self, chunk: Chunk) -> Result<()> {
        if chunk.rows == 0 {
            return Ok(());
        }
        // Rows without columns are only counted.
        let is_counted = chunk.columns.is_empty() && matches!(self.groups, Groups::One(..));
        if chunk.rows <= 2 * CHUNK_ROWS || is_counted {
            return self.aggregate(&chunk);
        }
        let mut start = 0;
        while start < chunk.rows {
            let rows = CHUNK_ROWS.min(chunk.rows - start);
            self.aggregate(&chunk.slice(start, rows))?;
            start += rows;
        }
        Ok(())
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}
