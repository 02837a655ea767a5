//! The partitions of one table, ready for rows.

use super::{PartitionBound, PartitionStrategy, Partitioning, RangeBound};
use crate::{TableDef, key_value};
use arrow_array::ArrayRef;
use std::collections::HashMap;
use tidepool_base::{Error, Result, SqlType};
use tidepool_index::key::{KeyCodec, KeyColumn, KeyValue};
use xxhash_rust::xxh3::xxh3_64;

/// The least that is above all keys that begin with this one: of no column, above all keys.
pub(super) fn after(mut key: Vec<u8>) -> Vec<u8> {
    while let Some(last) = key.pop() {
        if last < u8::MAX {
            key.push(last + 1);
            return key;
        }
    }
    // No column's key begins with it.
    vec![u8::MAX]
}

/// Text to a value of a type: an array of length one.
pub type ReadText<'a> = &'a dyn Fn(SqlType, &str) -> Result<ArrayRef>;

/// Which partition has which rows. Partitions are called by their place in [`Partitioning::partitions`].
#[derive(Debug)]
pub struct PartitionMap {
    strategy: PartitionStrategy,
    /// Of the key's columns, in the table.
    positions: Vec<usize>,
    types: Vec<SqlType>,
    pub(super) nullable: Vec<bool>,
    pub(super) codec: KeyCodec,
    pub(super) parts: Parts,
    pub(super) default: Option<usize>,
    count: usize,
}

#[derive(Debug)]
pub(super) enum Parts {
    /// In the order of their keys; no two have one in common.
    Range(Vec<Range>),
    List(HashMap<Vec<u8>, usize>),
    Hash(Vec<Hashed>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub lower: Vec<u8>,
    /// Exclusive.
    pub upper: Vec<u8>,
    pub place: usize,
}

impl Range {
    fn has(&self, key: &[u8]) -> bool {
        *self.lower <= *key && *key < *self.upper
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hashed {
    pub modulus: u32,
    pub remainder: u32,
    pub place: usize,
}

/// Why a partition cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// A range with no key in it.
    Empty,
    /// It has keys that the partition at this place has.
    Overlaps(usize),
    /// There is a default partition already.
    SecondDefault(usize),
    /// Its modulus is no factor of that of the partition at this place.
    NoFactor(usize),
    /// That of the partition at this place is no factor of its modulus.
    NotDivisible(usize),
}

impl PartitionMap {
    /// Of a partitioned table. XX000 when its definition contradicts itself, 42704 for a key that has no order.
    pub fn new(def: &TableDef, partitioning: &Partitioning, read: ReadText<'_>) -> Result<PartitionMap> {
        let positions = def.positions(&partitioning.columns);
        if positions.is_empty() || positions.len() != partitioning.columns.len() {
            return Err(Error::internal("a partitioned table lacks a column of its key"));
        }
        let types: Vec<SqlType> = positions.iter().map(|position| def.columns[*position].sql_type).collect();
        let columns = types.iter().map(|sql_type| KeyColumn::new(*sql_type)).collect::<Result<_>>()?;
        let parts = match partitioning.strategy {
            PartitionStrategy::Range => Parts::Range(Vec::new()),
            PartitionStrategy::List => Parts::List(HashMap::new()),
            PartitionStrategy::Hash => Parts::Hash(Vec::new()),
        };
        let mut map = PartitionMap {
            strategy: partitioning.strategy,
            nullable: positions.iter().map(|position| def.columns[*position].nullable).collect(),
            positions,
            types,
            codec: KeyCodec::new(columns),
            parts,
            default: None,
            count: 0,
        };
        for partition in &partitioning.partitions {
            map.add(&partition.bound, read)?;
        }
        if let Parts::Range(ranges) = &mut map.parts {
            ranges.sort_by(|a, b| a.lower.cmp(&b.lower));
        }
        Ok(map)
    }

    fn add(&mut self, bound: &PartitionBound, read: ReadText<'_>) -> Result<()> {
        let place = self.count;
        self.count += 1;
        let keys = match bound {
            PartitionBound::List { values } => self.list_keys(values, read)?,
            _ => Vec::new(),
        };
        let range = match bound {
            PartitionBound::Range { from, to } => Some(self.range(from, to, place, read)?),
            _ => None,
        };
        match (&mut self.parts, bound) {
            (Parts::Range(ranges), PartitionBound::Range { .. }) => ranges.extend(range),
            (Parts::List(places), PartitionBound::List { .. }) => {
                places.extend(keys.into_iter().map(|key| (key, place)));
            }
            (Parts::Hash(parts), PartitionBound::Hash { modulus, remainder }) => {
                parts.push(Hashed { modulus: *modulus, remainder: *remainder, place });
            }
            (Parts::Range(_) | Parts::List(_), PartitionBound::Default) => self.default = Some(place),
            _ => return Err(Error::internal("a partition's bound is of another strategy than its table's")),
        }
        Ok(())
    }

    fn range(&self, from: &[RangeBound], to: &[RangeBound], place: usize, read: ReadText<'_>) -> Result<Range> {
        Ok(Range { lower: self.range_key(from, read)?, upper: self.range_key(to, read)?, place })
    }

    fn range_key(&self, values: &[RangeBound], read: ReadText<'_>) -> Result<Vec<u8>> {
        if values.len() != self.types.len() {
            return Err(Error::internal("a partition's bound has not as many values as the key has columns"));
        }
        let mut key = Vec::new();
        for (place, value) in values.iter().enumerate() {
            match value {
                RangeBound::MinValue => break,
                RangeBound::MaxValue => return Ok(after(key)),
                RangeBound::Value(text) => self.push_text(place, text, read, &mut key)?,
            }
        }
        Ok(key)
    }

    fn push_text(&self, place: usize, text: &str, read: ReadText<'_>, key: &mut Vec<u8>) -> Result<()> {
        let value = read(self.types[place], text)?;
        self.codec.push(place, &key_value(self.types[place], &value, 0)?, key)
    }

    fn list_keys(&self, values: &[Option<String>], read: ReadText<'_>) -> Result<Vec<Vec<u8>>> {
        let key = |value: &Option<String>| {
            let mut key = Vec::new();
            match value {
                Some(text) => self.push_text(0, text, read, &mut key)?,
                None => self.codec.push(0, &KeyValue::Null, &mut key)?,
            }
            Ok(key)
        };
        values.iter().map(key).collect()
    }

    pub fn strategy(&self) -> PartitionStrategy {
        self.strategy
    }

    /// Positions of the key's columns in the table.
    pub fn positions(&self) -> &[usize] {
        &self.positions
    }

    pub(super) fn types(&self) -> &[SqlType] {
        &self.types
    }

    /// Partitions.
    pub fn len(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn default_place(&self) -> Option<usize> {
        self.default
    }

    /// Places in the order of what the partitions have, the default partition last.
    pub fn in_order(&self) -> Vec<usize> {
        let mut places: Vec<usize> = match &self.parts {
            Parts::Range(ranges) => ranges.iter().map(|range| range.place).collect(),
            Parts::List(_) => (0..self.count).filter(|place| self.default != Some(*place)).collect(),
            Parts::Hash(parts) => {
                let mut parts = parts.clone();
                parts.sort_by_key(|part| (part.modulus, part.remainder));
                parts.iter().map(|part| part.place).collect()
            }
        };
        places.extend(self.default);
        places
    }

    /// What stands in the way of another partition.
    pub fn misfit(&self, bound: &PartitionBound, read: ReadText<'_>) -> Result<Option<Misfit>> {
        Ok(match (&self.parts, bound) {
            (Parts::Range(ranges), PartitionBound::Range { from, to }) => {
                let new = self.range(from, to, self.count, read)?;
                if new.lower >= new.upper {
                    return Ok(Some(Misfit::Empty));
                }
                let other = ranges.iter().find(|range| range.lower < new.upper && new.lower < range.upper);
                other.map(|range| Misfit::Overlaps(range.place))
            }
            (Parts::List(places), PartitionBound::List { values }) => {
                let keys = self.list_keys(values, read)?;
                keys.iter().find_map(|key| places.get(key)).map(|place| Misfit::Overlaps(*place))
            }
            (Parts::Hash(parts), PartitionBound::Hash { modulus, remainder }) => {
                let (modulus, remainder) = (*modulus, *remainder);
                let mut by_modulus: Vec<&Hashed> = parts.iter().collect();
                by_modulus.sort_by_key(|part| (part.modulus, part.remainder));
                let below = by_modulus.iter().rev().find(|part| part.modulus <= modulus);
                if let Some(part) = below.filter(|part| !modulus.is_multiple_of(part.modulus)) {
                    return Ok(Some(Misfit::NotDivisible(part.place)));
                }
                let above = by_modulus.iter().find(|part| part.modulus >= modulus);
                if let Some(part) = above.filter(|part| !part.modulus.is_multiple_of(modulus)) {
                    return Ok(Some(Misfit::NoFactor(part.place)));
                }
                // Of two moduli one divides the other: keys of the greater are keys of the lesser, or none is.
                let meets = |part: &&&Hashed| {
                    let common = part.modulus.min(modulus);
                    part.remainder % common == remainder % common
                };
                by_modulus.iter().find(meets).map(|part| Misfit::Overlaps(part.place))
            }
            (Parts::Range(_) | Parts::List(_), PartitionBound::Default) => self.default.map(Misfit::SecondDefault),
            _ => return Err(Error::internal("a partition's bound is of another strategy than its table's")),
        })
    }

    /// The partition of a row with these values of the key's columns.
    pub fn place_of(&self, values: &[KeyValue<'_>]) -> Result<Option<usize>> {
        let mut key = Vec::new();
        for (place, value) in values.iter().enumerate() {
            self.codec.push(place, value, &mut key)?;
        }
        let found = match &self.parts {
            Parts::Range(_) if values.contains(&KeyValue::Null) => None,
            Parts::Range(ranges) => find(ranges, &key).map(|at| ranges[at].place),
            Parts::List(places) => places.get(&key).copied(),
            Parts::Hash(parts) => hashed(parts, &key),
        };
        Ok(found.or(self.default))
    }

    /// The partition of each row; `columns` are those of the key.
    pub fn route(&self, columns: &[ArrayRef], rows: usize) -> Result<Vec<Option<usize>>> {
        let mut places = Vec::with_capacity(rows);
        let mut key = Vec::new();
        // Rows that come one after the other mostly belong together.
        let mut last: Option<usize> = None;
        for row in 0..rows {
            key.clear();
            let mut has_null = false;
            for (place, column) in columns.iter().enumerate() {
                let value = key_value(self.types[place], column, row)?;
                has_null |= value == KeyValue::Null;
                self.codec.push(place, &value, &mut key)?;
            }
            let found = match &self.parts {
                Parts::Range(_) if has_null => None,
                Parts::Range(ranges) => match last.filter(|last| ranges[*last].has(&key)) {
                    Some(last) => Some(ranges[last].place),
                    None => {
                        let found = find(ranges, &key);
                        last = found.or(last);
                        found.map(|at| ranges[at].place)
                    }
                },
                Parts::List(places) => places.get(&key).copied(),
                Parts::Hash(parts) => hashed(parts, &key),
            };
            places.push(found.or(self.default));
        }
        Ok(places)
    }
}

fn find(ranges: &[Range], key: &[u8]) -> Option<usize> {
    let at = ranges.partition_point(|range| *range.lower <= *key).checked_sub(1)?;
    ranges[at].has(key).then_some(at)
}

pub(super) fn hashed(parts: &[Hashed], key: &[u8]) -> Option<usize> {
    let hash = xxh3_64(key);
    let has = |part: &&Hashed| hash % u64::from(part.modulus) == u64::from(part.remainder);
    parts.iter().find(has).map(|part| part.place)
}
