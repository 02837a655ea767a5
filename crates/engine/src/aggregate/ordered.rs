//! Groups of rows that come in the order of a key, as they do from a table that was filled in that order.
//!
//! Each run of the key is a group that is made without being looked for. When all have ended it shows whether that was right: the
//! workers' stretches of keys must not overlap, but that one may end with the group that another begins with. If they do,
//! the rows are partitioned by hash like any other.

use super::runs;
use super::states::Place;
use crate::mask::Mask;
use crate::rows::{RowPtr, Rows};
use crate::vector::{Values, Vector};
use tidepool_base::Result;

/// Rows that are looked at before all are.
const SAMPLE: usize = 64;

/// Groups that a chunk made.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    first: (i64, RowPtr),
    last: (i64, RowPtr),
}

/// Groups of one worker, their keys ascending.
#[derive(Debug)]
pub(super) struct OrderedRows {
    /// Which key it is.
    lead: Option<usize>,
    pub rows: Rows,
    stretches: Vec<Stretch>,
}

/// Whether values ascend, if they are there, or repeat.
fn ascending(vector: &Vector) -> Option<&[i64]> {
    let (Values::Int(values), None) = (&vector.values, &vector.valid) else { return None };
    let descends = |values: &[i64]| {
        values.iter().zip(values.get(1..).unwrap_or(&[])).fold(false, |descends, (a, b)| descends | (a > b))
    };
    (!descends(&values[..values.len().min(SAMPLE)]) && !descends(values)).then_some(values)
}

impl OrderedRows {
    pub fn new(rows: Rows) -> OrderedRows {
        OrderedRows { lead: None, rows, stretches: Vec::new() }
    }

    /// The groups of a chunk's rows, more than none; `None` if they are not in order, and then nothing has changed. `stored`:
    /// `keys` keys first.
    pub fn place<'a>(
        &mut self,
        stored: &[&Vector],
        keys: usize,
        rows: usize,
        groups: &'a mut Vec<RowPtr>,
    ) -> Result<Option<Place<'a>>> {
        let lead = self.lead.or_else(|| {
            // Of several, the one that changes most: the others are to follow it.
            let changes = |values: &[i64]| values.iter().zip(&values[1..]).filter(|(a, b)| a != b).count();
            let ascending = |key: usize| ascending(stored[key]).map(|values| (changes(values), key));
            (0..keys).filter_map(ascending).max().map(|(_, key)| key)
        });
        let Some(lead) = lead else { return Ok(None) };
        let Some(values) = ascending(stored[lead]) else { return Ok(None) };
        let last = self.stretches.last().map(|stretch| stretch.last);
        if last.is_some_and(|(key, _)| values[0] < key) {
            return Ok(None);
        }
        let changes = Mask::of_pairs(&values[..rows - 1], &values[1..], |a, b| a != b);
        let mut starts = Vec::with_capacity(changes.count() + 1);
        starts.push(0);
        changes.positions_into(&mut starts);
        starts[1..].iter_mut().for_each(|start| *start += 1);
        let others = || (0..keys).filter(|key| *key != lead).map(|key| stored[key]);
        let is_one_group = |row: usize| changes.get(row - 1) || others().all(|key| runs::is_same(key, row));
        if keys > 1 && !(1..rows).all(is_one_group) {
            return Ok(None);
        }
        groups.clear();
        let mut new = &starts[..];
        if let Some((key, row)) = last
            && key == values[0]
        {
            let mut keep = [1];
            for (column, vector) in stored[..keys].iter().enumerate() {
                // SAFETY: the row is of `rows`, which nobody else has.
                unsafe { self.rows.layout().compare(column, vector, &[0], &[row], true, &mut keep)? };
            }
            if keep == [0] {
                return Ok(None);
            }
            groups.push(row);
            new = &starts[1..];
        }
        self.lead = Some(lead);
        let continued = groups.len();
        self.rows.append(stored, Some(new), rows, groups)?;
        if let (Some(first), Some(last)) = (new.first(), groups.last()) {
            let first = (values[*first as usize], groups[continued]);
            self.stretches.push(Stretch { first, last: (values[rows - 1], *last) });
        }
        if starts.len() == rows {
            return Ok(Some(Place { rows: None, ends: None, groups }));
        }
        let mut ends = starts;
        ends.remove(0);
        ends.push(rows as u32);
        Ok(Some(Place { rows: None, ends: Some(ends.into()), groups }))
    }
}

/// Rows of which the second is to be merged into the first, so that no two of all workers' rows have the same key. `None` if
/// that does not do.
pub(super) fn seams(workers: &[OrderedRows], keys: usize) -> Option<Vec<(RowPtr, RowPtr)>> {
    let mut leads = workers.iter().filter_map(|worker| worker.lead);
    let lead = leads.next();
    if leads.any(|other| Some(other) != lead) {
        return None;
    }
    let mut stretches: Vec<Stretch> = workers.iter().flat_map(|worker| worker.stretches.iter().copied()).collect();
    stretches.sort_by_key(|stretch| (stretch.first.0, stretch.last.0));
    let mut seams = Vec::new();
    let mut before: Option<(i64, RowPtr)> = None;
    for Stretch { first, last } in stretches {
        match before {
            Some((key, _)) if first.0 < key => return None,
            Some((key, row)) if first.0 == key => {
                let layout = workers[0].rows.layout();
                // SAFETY: rows of that layout, which are here with what their texts lie in.
                if !(0..keys).all(|column| unsafe { layout.same(column, row, first.1) }) {
                    return None;
                }
                seams.push((row, first.1));
                // A stretch of one group is the one before.
                before = Some(if last.0 == key { (key, row) } else { last });
            }
            _ => before = Some(last),
        }
    }
    Some(seams)
}
