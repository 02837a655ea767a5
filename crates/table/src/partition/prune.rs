//! Which partitions may have rows that meet conditions.

use super::PartitionMap;
use super::map::{Parts, Range, after, hashed};
use crate::filter::ColumnFilter;
use crate::index::{equal_to, within};
use std::ops::Bound;
use tidepool_index::key::KeyValue;

/// Keys that `IN` lists may make; with more, all partitions are looked at.
const KEYS_MAX: usize = 4_096;

/// What conditions say of a table's key.
struct Wanted {
    /// The values that the first columns of the key may have.
    prefixes: Vec<Vec<u8>>,
    /// How many columns that are.
    columns: usize,
    /// Bounds of the column after them.
    lower: Bound<KeyValue<'static>>,
    upper: Bound<KeyValue<'static>>,
}

impl PartitionMap {
    /// Of each partition whether it may have rows for which all the conditions hold.
    pub fn prune(&self, filters: &[ColumnFilter]) -> Vec<bool> {
        let all = vec![true; self.len()];
        if filters.is_empty() || !filters.iter().any(|filter| self.positions().contains(&filter.column())) {
            return all;
        }
        let Some(wanted) = self.wanted(filters) else { return all };
        match &self.parts {
            Parts::Range(ranges) => self.prune_ranges(ranges, &wanted, filters),
            Parts::List(_) => self.prune_list(&wanted, filters),
            Parts::Hash(parts) => {
                if wanted.columns < self.positions().len() {
                    return all;
                }
                let mut kept = vec![false; self.len()];
                wanted.prefixes.iter().filter_map(|key| hashed(parts, key)).for_each(|place| kept[place] = true);
                kept
            }
        }
    }

    fn wanted(&self, filters: &[ColumnFilter]) -> Option<Wanted> {
        let mut prefixes = vec![Vec::new()];
        let mut columns = 0;
        for (place, position) in self.positions().iter().enumerate() {
            let Some(values) = equal_to(filters, *position, self.types()[place]) else { break };
            if prefixes.len() * values.len() > KEYS_MAX {
                break;
            }
            let mut longer = Vec::with_capacity(prefixes.len() * values.len());
            for prefix in &prefixes {
                for value in &values {
                    let mut key = Vec::clone(prefix);
                    self.codec.push(place, value, &mut key).ok()?;
                    longer.push(key);
                }
            }
            prefixes = longer;
            columns += 1;
        }
        let (mut lower, mut upper) = (Bound::Unbounded, Bound::Unbounded);
        if let Some(position) = self.positions().get(columns) {
            (lower, upper) = within(filters, *position, self.types()[columns]);
        }
        Some(Wanted { prefixes, columns, lower, upper })
    }

    /// Keys from the first on, up to the second, exclusive.
    fn keys_within(&self, wanted: &Wanted, prefix: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
        let with = |value: &KeyValue<'static>, above: bool| {
            let mut key = prefix.to_vec();
            self.codec.push(wanted.columns, value, &mut key).ok()?;
            Some(if above { after(key) } else { key })
        };
        let lower = match &wanted.lower {
            Bound::Unbounded => prefix.to_vec(),
            Bound::Included(value) => with(value, false)?,
            Bound::Excluded(value) => with(value, true)?,
        };
        let upper = match &wanted.upper {
            Bound::Unbounded => after(prefix.to_vec()),
            Bound::Included(value) => with(value, true)?,
            Bound::Excluded(value) => with(value, false)?,
        };
        Some((lower, upper))
    }

    fn prune_ranges(&self, ranges: &[Range], wanted: &Wanted, filters: &[ColumnFilter]) -> Vec<bool> {
        let mut kept = vec![false; self.len()];
        // A key with NULL in it is in no range.
        let never_null =
            |(place, position): (usize, &usize)| !self.nullable[place] || excludes_null(filters, *position);
        let mut needs_default = !self.positions().iter().enumerate().all(never_null);
        for prefix in &wanted.prefixes {
            let Some((lower, upper)) = self.keys_within(wanted, prefix) else { return vec![true; self.len()] };
            let mut covered = lower;
            for range in ranges {
                if covered >= upper {
                    break;
                }
                if range.upper <= covered {
                    continue;
                }
                if range.lower >= upper {
                    break;
                }
                kept[range.place] = true;
                needs_default |= range.lower > covered;
                covered = range.upper.clone();
            }
            needs_default |= covered < upper;
        }
        if let Some(default) = self.default {
            kept[default] = needs_default;
        }
        kept
    }

    fn prune_list(&self, wanted: &Wanted, filters: &[ColumnFilter]) -> Vec<bool> {
        let Parts::List(places) = &self.parts else { return vec![true; self.len()] };
        let mut kept = vec![false; self.len()];
        if wanted.columns == 1 {
            for key in &wanted.prefixes {
                if let Some(place) = places.get(key).copied().or(self.default) {
                    kept[place] = true;
                }
            }
            return kept;
        }
        let Some((lower, upper)) = self.keys_within(wanted, &[]) else { return vec![true; self.len()] };
        let no_null = excludes_null(filters, self.positions()[0]);
        let mut null = Vec::new();
        let _ = self.codec.push(0, &KeyValue::Null, &mut null);
        for (key, place) in places {
            let is_wanted = if *key == null { !no_null } else { lower <= *key && *key < upper };
            kept[*place] |= is_wanted;
        }
        if let Some(default) = self.default {
            kept[default] = true;
        }
        kept
    }
}

/// Whether no row passes in which the column is NULL.
fn excludes_null(filters: &[ColumnFilter], position: usize) -> bool {
    filters.iter().any(|filter| match filter {
        // Nothing compares with NULL.
        ColumnFilter::Compare { column, .. }
        | ColumnFilter::In { column, .. }
        | ColumnFilter::Keys { column, .. }
        | ColumnFilter::IsNotNull { column } => *column == position,
        ColumnFilter::IsNull { .. } | ColumnFilter::Function { .. } => false,
    })
}
