//! Rows found by an index's keys.

use super::datum::Datum;
use super::expr::{Expr, Frame};
use std::ops::Bound;
use tidepool_base::{Result, SqlType, TableId};
use tidepool_index::key::{KeyBounds, KeyCodec, KeyValue};

/// Values that a column of a key is to have.
#[derive(Clone)]
pub enum Equal {
    One(Expr),
    /// Any of these.
    Any(Vec<Expr>),
}

impl Equal {
    pub fn count(&self) -> usize {
        match self {
            Equal::One(_) => 1,
            Equal::Any(list) => list.len(),
        }
    }

    fn values(&self) -> &[Expr] {
        match self {
            Equal::One(one) => std::slice::from_ref(one),
            Equal::Any(list) => list,
        }
    }
}

/// Between what a column of a key lies, each with whether it is within.
#[derive(Clone, Default)]
pub struct Bounds {
    pub lower: Option<(Expr, bool)>,
    pub upper: Option<(Expr, bool)>,
}

impl Bounds {
    pub fn is_none(&self) -> bool {
        self.lower.is_none() && self.upper.is_none()
    }
}

/// The way to a table's rows through one of its indexes.
#[derive(Clone)]
pub struct Access {
    pub index: TableId,
    /// Of the index's first columns.
    pub equal: Vec<Equal>,
    /// Instead of `equal`, unless empty: values of the index's first columns together, any of which will do; of as many columns each.
    pub any: Vec<Vec<Expr>>,
    /// Of the one behind them.
    pub bounds: Bounds,
    /// Of the index's columns.
    pub types: Vec<SqlType>,
    /// All of the index's columns have one value.
    pub is_point: bool,
    pub backward: bool,
}

/// Ranges that lists of values may make.
const RANGES_MAX: usize = 1_000;

/// Keys to be looked up.
pub enum Ranges {
    /// One key.
    Point(Vec<u8>),
    /// Whole keys, in order.
    Points(Vec<Vec<u8>>),
    Several(Vec<KeyBounds>),
    TooMany,
}

/// What a bound comes to.
enum End<'v> {
    None,
    At(KeyValue<'v>, bool),
    /// No value is within.
    Nothing,
}

fn end<'b>(bound: &'b Option<(Datum<'_>, bool)>, sql_type: SqlType, is_lower: bool) -> End<'b> {
    let Some((value, included)) = bound else { return End::None };
    if value.is_null() {
        return End::Nothing;
    }
    match value.to_key(sql_type) {
        Some(key) => End::At(key, *included),
        // Beyond what the column's type has: a whole number.
        None => match value {
            Datum::Int(value) if (*value < 0) == is_lower => End::None,
            Datum::Int(_) => End::Nothing,
            _ => End::None,
        },
    }
}

/// `None`: no value is within.
fn bound_of<'e>(end: &End<'e>) -> Option<Bound<KeyValue<'e>>> {
    match end {
        End::None => Some(Bound::Unbounded),
        End::At(key, true) => Some(Bound::Included(key.clone())),
        End::At(key, false) => Some(Bound::Excluded(key.clone())),
        End::Nothing => None,
    }
}

/// Ranges over prefixes of one length, each once: the same value may be in a list twice.
fn in_order(ranges: &mut Vec<KeyBounds>) {
    fn first(range: &KeyBounds) -> &[u8] {
        match &range.lower {
            Bound::Included(key) | Bound::Excluded(key) => key,
            Bound::Unbounded => &[],
        }
    }
    if ranges.len() > 1 {
        ranges.sort_by(|left, right| first(left).cmp(first(right)));
        ranges.dedup();
    }
}

fn points(codec: &KeyCodec, keys: &[Vec<KeyValue<'_>>]) -> Result<Ranges> {
    let encoded = |values: &Vec<KeyValue<'_>>| -> Result<Vec<u8>> {
        let mut key = Vec::with_capacity(16 * values.len());
        for (place, value) in values.iter().enumerate() {
            codec.push(place, value, &mut key)?;
        }
        Ok(key)
    };
    let mut keys = keys.iter().map(encoded).collect::<Result<Vec<_>>>()?;
    keys.sort_unstable();
    keys.dedup();
    Ok(Ranges::Points(keys))
}

/// A prefix with each of the values behind it.
fn longer<'v>(prefix: &[KeyValue<'v>], values: &[KeyValue<'v>]) -> Vec<Vec<KeyValue<'v>>> {
    values.iter().map(|value| prefix.iter().cloned().chain([value.clone()]).collect()).collect()
}

impl Access {
    /// The keys that rows are to have. NULL equals nothing.
    pub fn ranges(&self, codec: &KeyCodec, frame: &Frame<'_>) -> Result<Ranges> {
        if !self.any.is_empty() {
            return self.any_of(codec, frame);
        }
        if self.is_point
            && let Some(key) = self.single(codec, frame)?
        {
            return Ok(key.map_or(Ranges::Several(Vec::new()), Ranges::Point));
        }
        let mut prefixes: Vec<Vec<KeyValue<'_>>> = vec![Vec::new()];
        let lists = (self.equal.iter())
            .map(|equal| equal.values().iter().map(|value| value.evaluate(frame)).collect::<Result<Vec<_>>>())
            .collect::<Result<Vec<_>>>()?;
        for (list, sql_type) in lists.iter().zip(&self.types) {
            let values: Vec<KeyValue<'_>> =
                list.iter().filter(|value| !value.is_null()).filter_map(|value| value.to_key(*sql_type)).collect();
            if prefixes.len() * values.len() > RANGES_MAX {
                return Ok(Ranges::TooMany);
            }
            prefixes = prefixes.iter().flat_map(|prefix| longer(prefix, &values)).collect();
        }
        if self.is_point {
            return points(codec, &prefixes);
        }
        let evaluated = |bound: &'_ Option<(Expr, bool)>| -> Result<Option<(Datum<'static>, bool)>> {
            match bound {
                None => Ok(None),
                Some((expr, included)) => Ok(Some((expr.evaluate(frame)?.into_owned(), *included))),
            }
        };
        let (lower, upper) = (evaluated(&self.bounds.lower)?, evaluated(&self.bounds.upper)?);
        let sql_type = self.types.get(self.equal.len()).copied().unwrap_or(SqlType::BigInt);
        let (lower, upper) = (end(&lower, sql_type, true), end(&upper, sql_type, false));
        let (Some(lower), Some(upper)) = (bound_of(&lower), bound_of(&upper)) else {
            return Ok(Ranges::Several(Vec::new()));
        };
        let mut ranges = (prefixes.iter())
            .map(|prefix| codec.bounds(prefix, lower.as_ref(), upper.as_ref()))
            .collect::<Result<Vec<_>>>()?;
        in_order(&mut ranges);
        Ok(Ranges::Several(ranges))
    }

    fn any_of(&self, codec: &KeyCodec, frame: &Frame<'_>) -> Result<Ranges> {
        let rows = (self.any.iter())
            .map(|row| row.iter().map(|value| value.evaluate(frame)).collect::<Result<Vec<_>>>())
            .collect::<Result<Vec<_>>>()?;
        // Who has a value that no column has, or NULL, equals no row.
        let prefixes: Vec<Vec<KeyValue<'_>>> = (rows.iter())
            .filter_map(|row| {
                let values = row.iter().zip(&self.types).map(|(value, sql_type)| value.to_key(*sql_type));
                let values: Vec<KeyValue<'_>> = values.collect::<Option<_>>()?;
                (!values.contains(&KeyValue::Null)).then_some(values)
            })
            .collect();
        if self.is_point {
            return points(codec, &prefixes);
        }
        let mut ranges = (prefixes.iter())
            .map(|prefix| codec.bounds(prefix, Bound::Unbounded, Bound::Unbounded))
            .collect::<Result<Vec<_>>>()?;
        in_order(&mut ranges);
        Ok(Ranges::Several(ranges))
    }

    /// The one key, `Some(None)` where no row can have it; `None`: there are several.
    fn single(&self, codec: &KeyCodec, frame: &Frame<'_>) -> Result<Option<Option<Vec<u8>>>> {
        let mut key = Vec::with_capacity(16 * self.equal.len());
        for (place, (equal, sql_type)) in self.equal.iter().zip(&self.types).enumerate() {
            let Equal::One(expr) = equal else { return Ok(None) };
            let value = expr.evaluate(frame)?;
            let Some(value) = value.to_key(*sql_type).filter(|value| *value != KeyValue::Null) else {
                return Ok(Some(None));
            };
            codec.push(place, &value, &mut key)?;
        }
        Ok(Some(Some(key)))
    }
}
