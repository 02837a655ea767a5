//! Rows that conditions leave, found through an index instead of a scan.
//!
//! The conditions on an index's first columns become ranges of keys. What is found there are candidates: a scan of these
//! rows alone ([`TableScan::through`]) looks at the version that its view sees, and tests all conditions again.

use super::{IndexUse, TableIndex};
use crate::filter::{ColumnFilter, CompareOp};
use crate::{Datum, ScanRequest, TableScan, TableVersion};
use std::borrow::Cow;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use tidepool_base::{NUMERIC_BYTES, NUMERIC_KEY_BYTES, Numeric, RowId, SqlType};
use tidepool_device::{Access, PacingCounters};
use tidepool_index::key::{KeyBounds, KeyValue};
use tidepool_index::{Counted, Cursor, Direction, Rows};
use tidepool_tablespace::Tablespace;
use tidepool_txn::View;

/// Ranges that `IN` lists may make.
const RANGES_MAX: usize = 1_000;

/// What a row costs that is looked up by its id, where nothing is far, in nanoseconds: an index's entry, the row's head,
/// and its values one by one.
const ROW_NS: f64 = 400.0;

/// What it costs at least to look up a key, beside others.
const LOOKUP_NS: f64 = 100.0;

/// What a row of main, and one of delta, costs a scan.
const SCANNED_NS: f64 = 1.0;
const SCANNED_DELTA_NS: f64 = 25.0;

/// Rows that are looked up whatever a scan costs: it reads no less than a block of each column.
const FEW_ROWS: f64 = 8.0;

/// A way to a table's rows through one of its indexes.
#[derive(Clone, Debug)]
pub struct IndexAccess {
    index: Arc<TableIndex>,
    ranges: Vec<KeyBounds>,
    /// Columns of the key that conditions are on.
    columns: usize,
    rows: f64,
    is_point: bool,
    /// Each range is one key, which may be several rows'.
    is_whole: bool,
}

/// What came of looking rows up.
pub(crate) struct Found {
    /// Ids of the rows that may meet the conditions, each once, in order.
    pub rows: Vec<RowId>,
    pub used: IndexUse,
    pub paced: PacingCounters,
}

impl TableScan {
    /// A scan of the rows alone that an index finds. It counts what it reads of the index, too.
    pub fn through(version: Arc<TableVersion>, request: ScanRequest, access: &IndexAccess) -> Arc<TableScan> {
        // Asked before, as what is found is charged to it, unless it is moved just then.
        let space = access.index.tree().tablespace();
        let found = access.find(version.view());
        let scan = TableScan::picked(version, request, &found.rows);
        scan.add_lookup(access.index.id(), &space, &found);
        scan
    }
}

impl IndexAccess {
    /// The way that costs least, if it costs less than a scan that tests the filters, all of which must hold. `reads` are
    /// the columns that are produced.
    pub fn choose(version: &TableVersion, filters: &[ColumnFilter], reads: &[usize]) -> Option<IndexAccess> {
        let indexes = version.table().indexes().iter().filter(|index| index.is_complete_for(version.view()));
        let ways = indexes.filter_map(|index| IndexAccess::of(version, index, filters));
        let best = ways.min_by(|a, b| a.rows.total_cmp(&b.rows).then(b.columns.cmp(&a.columns)))?;
        (best.rows <= FEW_ROWS || best.cost_ns(version, reads) < scan_ns(version, filters)).then_some(best)
    }

    /// As `choose`, where one of the filters turned out to be a list of keys ([`KeyTest::listed`]): an index join, as the rows that
    /// have these keys are looked up together.
    pub fn choose_by_keys(version: &TableVersion, filters: &[ColumnFilter], reads: &[usize]) -> Option<IndexAccess> {
        let indexes = version.table().indexes();
        let is_indexed = |column: usize| indexes.iter().any(|index| index.positions().contains(&column));
        if !filters.iter().any(|filter| matches!(filter, ColumnFilter::Keys { .. }) && is_indexed(filter.column())) {
            return None;
        }
        // More keys cost more than a scan, however few rows they have.
        let keys_max = ((scan_ns(version, filters) / LOOKUP_NS) as usize).clamp(FEW_ROWS as usize, RANGES_MAX);
        let list = |filter: &ColumnFilter| match filter {
            ColumnFilter::Keys { column, keys } if is_indexed(*column) => {
                let sql_type = version.def.columns.get(*column)?.sql_type;
                let keys = keys.listed(keys_max)?;
                // No row has a key that is none of the type's.
                let keys = keys.into_iter().map(Datum::Int).filter(|key| key_value(key, sql_type).is_some());
                Some(ColumnFilter::In { column: *column, values: keys.collect() })
            }
            _ => None,
        };
        let lists: Vec<ColumnFilter> = filters.iter().filter_map(list).collect();
        if lists.is_empty() {
            return None;
        }
        IndexAccess::choose(version, &[filters, &lists].concat(), reads)
    }

    /// The way by ranges of keys that somebody has gone already; `is_point`: each is one key.
    pub fn of_ranges(index: Arc<TableIndex>, ranges: Vec<KeyBounds>, is_point: bool) -> IndexAccess {
        let (columns, rows) = (index.positions().len(), ranges.len() as f64);
        IndexAccess { index, ranges, columns, rows, is_point, is_whole: is_point }
    }

    /// The first index that the conditions can use, whatever it costs.
    #[cfg(test)]
    pub(crate) fn of_any(version: &TableVersion, filters: &[ColumnFilter]) -> Option<IndexAccess> {
        version.table().indexes().iter().find_map(|index| IndexAccess::of(version, index, filters))
    }

    fn of(version: &TableVersion, index: &Arc<TableIndex>, filters: &[ColumnFilter]) -> Option<IndexAccess> {
        let mut prefixes: Vec<Vec<KeyValue<'static>>> = vec![Vec::new()];
        let mut columns = 0;
        for (place, position) in index.positions().iter().enumerate() {
            let Some(values) = equal_to(filters, *position, index.sql_type(place)) else { break };
            if prefixes.len() * values.len() > RANGES_MAX {
                break;
            }
            let longer = |prefix: &Vec<KeyValue<'static>>| {
                let prefix = prefix.clone();
                values.iter().map(move |value| prefix.iter().cloned().chain([value.clone()]).collect())
            };
            prefixes = prefixes.iter().flat_map(longer).collect();
            columns += 1;
        }
        let is_whole = columns == index.positions().len();
        let (mut lower, mut upper) = (Bound::Unbounded, Bound::Unbounded);
        if !is_whole {
            (lower, upper) = within(filters, index.positions()[columns], index.sql_type(columns));
        }
        let is_bounded = (&lower, &upper) != (&Bound::Unbounded, &Bound::Unbounded);
        if columns == 0 && !is_bounded {
            return None;
        }
        let bounds =
            |prefix: &Vec<KeyValue<'static>>| index.codec().bounds(prefix, lower.as_ref(), upper.as_ref()).ok();
        let ranges = prefixes.iter().map(bounds).collect::<Option<Vec<_>>>()?;
        let has_null = prefixes.iter().flatten().any(|value| *value == KeyValue::Null);
        let is_one = is_whole && index.is_unique() && !has_null;
        let rows = match is_one {
            true => ranges.len() as f64,
            false => ranges.iter().map(|range| index.tree().estimate(version.view(), range.range())).sum(),
        };
        let columns = columns + usize::from(is_bounded);
        Some(IndexAccess { index: Arc::clone(index), ranges, columns, rows, is_point: is_one, is_whole })
    }

    /// To the rows with one key.
    pub fn of_key(index: &Arc<TableIndex>, key: &[u8]) -> IndexAccess {
        let bounds = KeyBounds { lower: Bound::Included(key.to_vec()), upper: Bound::Included(key.to_vec()) };
        IndexAccess {
            index: Arc::clone(index),
            ranges: vec![bounds],
            columns: 0,
            rows: 1.0,
            is_point: true,
            is_whole: true,
        }
    }

    /// To the rows with keys in a range.
    pub fn of_range(index: &Arc<TableIndex>, range: KeyBounds) -> IndexAccess {
        IndexAccess {
            index: Arc::clone(index),
            ranges: vec![range],
            columns: 0,
            rows: 1.0,
            is_point: false,
            is_whole: false,
        }
    }

    pub fn index(&self) -> &TableIndex {
        &self.index
    }

    /// Positions in the table of the columns whose conditions it uses.
    pub fn columns(&self) -> &[usize] {
        &self.index.positions()[..self.columns]
    }

    /// Estimated: the rows that it finds.
    pub fn rows_estimated(&self) -> f64 {
        self.rows
    }

    /// It finds a row for each of some keys, or none.
    pub fn is_point(&self) -> bool {
        self.is_point
    }

    fn cost_ns(&self, version: &TableVersion, reads: &[usize]) -> f64 {
        let space = self.index.tree().tablespace();
        let leaf = latency_ns(Some(&space));
        let delta_share = version.delta_rows() as f64 / version.rows_max().max(1) as f64;
        let delta = latency_ns(Some(version.rows().memory().tablespace()));
        let main = match version.row_groups.first() {
            Some(group) => reads
                .iter()
                .filter_map(|column| group.segments().get(*column))
                .map(|segment| {
                    // Its block is read from the first row on that is wanted.
                    ROW_NS / 4.0 + latency_ns(Some(segment.tablespace()))
                })
                .sum(),
            None => 0.0,
        };
        self.ranges.len() as f64 * leaf + self.rows * (ROW_NS + delta_share * delta + (1.0 - delta_share) * main)
    }

    /// Ranges of keys.
    pub(crate) fn ranges(&self) -> usize {
        self.ranges.len()
    }

    /// The ids of all rows of which a version that the view sees, or a later one that is committed by now, has a key in
    /// the ranges; and of others. `None`: the index does not say, as somebody drops it.
    pub(crate) fn candidates(&self, view: &View) -> Option<Vec<RowId>> {
        // Asked before it: it may become complete meanwhile.
        if !self.index.is_complete_for(view) {
            return None;
        }
        let found = self.find(view);
        // Asked after it: whoever left entries out before that is not committed yet.
        fence(Ordering::SeqCst);
        self.index.is_complete_for(view).then_some(found.rows)
    }

    fn find(&self, view: &View) -> Found {
        let tree = self.index.tree();
        let mut rows = Vec::new();
        let mut counted = Counted::default();
        if self.is_whole {
            let key = |at: usize| match &self.ranges[at].lower {
                Bound::Included(key) | Bound::Excluded(key) => &key[..],
                Bound::Unbounded => &[],
            };
            match self.ranges.len() {
                1 => rows.extend_from_slice(&tree.get_counting(view, key(0), &mut counted)),
                count => {
                    let found = |_: usize, of_key: &Rows| rows.extend_from_slice(of_key);
                    tree.get_together_counting(view, count, key, found, &mut counted);
                }
            }
        } else {
            for range in &self.ranges {
                let mut cursor = Cursor::counting(range.range(), Direction::Forward);
                while let Some(row) = cursor.next_row(tree, view) {
                    rows.push(row);
                }
                counted += cursor.counted();
            }
        }
        let lookups = self.ranges.len() as u64;
        let used = IndexUse { lookups, entries: rows.len() as u64, touched: counted.touched };
        rows.sort_unstable();
        // Several versions of a row may have entries.
        rows.dedup();
        Found { rows, used, paced: counted.paced }
    }
}

fn latency_ns(space: Option<&Arc<Tablespace>>) -> f64 {
    space.and_then(|space| space.pacer()).map_or(0.0, |pacer| pacer.model().read_latency_ns())
}

fn scan_ns(version: &TableVersion, filters: &[ColumnFilter]) -> f64 {
    let mut total = version.delta_rows() as f64 * SCANNED_DELTA_NS;
    let mut columns: Vec<usize> = filters.iter().map(ColumnFilter::column).collect();
    columns.sort_unstable();
    columns.dedup();
    for segment in version.row_groups.iter().flat_map(|group| columns.iter().map(|column| &group.segments()[*column])) {
        total += segment.rows() as f64 * SCANNED_NS;
        if let Some(pacer) = segment.tablespace().pacer() {
            total += pacer.model().device_ns(&Access::read_sequential(segment.encoded_bytes()));
        }
    }
    total
}

/// The values that the column may have, of those conditions that leave some single ones.
pub(crate) fn equal_to(filters: &[ColumnFilter], position: usize, sql_type: SqlType) -> Option<Vec<KeyValue<'static>>> {
    // Equal numbers without precision lie between two bounds, as each may have another scale.
    if sql_type == SqlType::UnconstrainedNumeric
        && let (Bound::Included(lower), Bound::Included(upper)) = within(filters, position, sql_type)
        && lower == upper
    {
        return Some(vec![lower]);
    }
    filters.iter().find_map(|filter| match filter {
        ColumnFilter::Compare { column, op: CompareOp::Eq, value } if *column == position => {
            Some(vec![key_value(value, sql_type)?])
        }
        ColumnFilter::In { column, values } if *column == position => {
            values.iter().map(|value| key_value(value, sql_type)).collect()
        }
        ColumnFilter::IsNull { column } if *column == position => Some(vec![KeyValue::Null]),
        _ => None,
    })
}

/// The bounds that conditions give a column; of several on one side the first, as all are tested again.
pub(crate) fn within(
    filters: &[ColumnFilter],
    position: usize,
    sql_type: SqlType,
) -> (Bound<KeyValue<'static>>, Bound<KeyValue<'static>>) {
    let (mut lower, mut upper) = (Bound::Unbounded, Bound::Unbounded);
    for filter in filters {
        let ColumnFilter::Compare { column, op, value } = filter else { continue };
        if *column != position {
            continue;
        }
        let Some(value) = key_value(value, sql_type) else { continue };
        match op {
            CompareOp::Gt if lower == Bound::Unbounded => lower = Bound::Excluded(value),
            CompareOp::Ge if lower == Bound::Unbounded => lower = Bound::Included(value),
            CompareOp::Lt if upper == Bound::Unbounded => upper = Bound::Excluded(value),
            CompareOp::Le if upper == Bound::Unbounded => upper = Bound::Included(value),
            _ => {}
        }
    }
    (lower, upper)
}

/// `None` for a value that the column's type does not have, which the scan's own test then deals with.
pub(super) fn key_value(value: &Datum, sql_type: SqlType) -> Option<KeyValue<'static>> {
    Some(match (sql_type, value) {
        (SqlType::Boolean, Datum::Boolean(value)) => KeyValue::Boolean(*value),
        (SqlType::SmallInt, Datum::Int(value)) => KeyValue::SmallInt(i16::try_from(*value).ok()?),
        (SqlType::Integer, Datum::Int(value)) => KeyValue::Integer(i32::try_from(*value).ok()?),
        (SqlType::BigInt, Datum::Int(value)) => KeyValue::BigInt(*value),
        (SqlType::Date, Datum::Int(value)) => KeyValue::Date(i32::try_from(*value).ok()?),
        (SqlType::Timestamp { .. } | SqlType::TimestampTz { .. }, Datum::Int(value)) => KeyValue::Timestamp(*value),
        (SqlType::Numeric { .. }, Datum::Decimal(value)) => KeyValue::Numeric(*value),
        // What follows the number's key tells a bound from the numbers that are equal to it.
        (SqlType::UnconstrainedNumeric, Datum::Bytes(bytes)) if bytes.len() == NUMERIC_BYTES => {
            KeyValue::Unconstrained(Numeric::from_key(&bytes[..NUMERIC_KEY_BYTES])?)
        }
        (SqlType::Real, Datum::Float(value)) => {
            let narrow = *value as f32;
            if f64::from(narrow) != *value && !value.is_nan() {
                return None;
            }
            KeyValue::Real(narrow)
        }
        (SqlType::DoublePrecision, Datum::Float(value)) => KeyValue::DoublePrecision(*value),
        (SqlType::Uuid, Datum::Text(text)) => KeyValue::uuid(text).ok()?,
        (SqlType::Text | SqlType::Varchar { .. } | SqlType::Char { .. }, Datum::Text(text)) => {
            KeyValue::Text(Cow::Owned(text.clone()))
        }
        (SqlType::Bytea, Datum::Bytes(bytes)) => KeyValue::Bytea(Cow::Owned(bytes.clone())),
        _ => return None,
    })
}
