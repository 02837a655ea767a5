//! Indexes over rows that were there before them, which others change meanwhile, and by whose keys rows are looked for already: those of
//! a process that has attached to its tables.
//!
//! Such an index has, from the moment that others see it, the entries of all rows that are in versions, and writers put theirs in. What
//! it lacks are entries of rows that main showed at that moment. A view of then is held, and the index is filled part by part, a part
//! being the main of one range. Before a key is looked for, or a range of keys, what parts that are not filled have of it is put in
//! ([`TableIndex::fetch_key`], [`TableIndex::fetch_range`]). So nobody waits for the whole.
//!
//! **The invariant.** Of each version that a view from that moment on sees, the entry is in the tree, or its key is the one that the row had
//! in main at that moment, in a part that is not filled. A version that is written later has its entry from its writer, unless it
//! has the key of the version that it replaces. And no entry outlives its row: what the held view sees is not gone before the view is
//! let go of, and it is kept as long as anybody puts entries in that are of it.
//!
//! Several threads may fill one part, or put the same entry in: the second finds it there. None waits for another.

use super::access::key_value;
use super::build::Run;
use super::{IndexKey, TableIndex};
use crate::encoding::uuid;
use crate::filter::{ColumnFilter, CompareOp, Predicate};
use crate::logical::Logical;
use crate::rows::{RangeView, RowRef};
use crate::{BATCH_ROWS, Datum, IndexDef, RowGroup, ScanReader, ScanRequest, TableScan, TableVersion};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use tidepool_base::{Error, Result, RowId, SqlType};
use tidepool_heap::QueryHeap;
use tidepool_index::key::KeyValue;
use tidepool_index::{Fingers, KeyRange};
use tidepool_tablespace::Tablespace;
use tidepool_txn::{Transactions, View};

/// Look-ups that read a part for one key each cost together what filling it costs: after so many it is filled.
const LOOKUPS_MAX: u32 = 256;

/// Keys of versions that are held at a time.
const VERSIONS_AT_ONCE: usize = 1 << 18;

/// What an index lacks yet.
#[derive(Debug)]
pub(super) struct Backfill {
    /// Of the moment from which on the index is there.
    version: Arc<TableVersion>,
    /// One for each row group of the version.
    parts: Vec<Part>,
}

#[derive(Debug, Default)]
struct Part {
    is_filled: AtomicBool,
    /// A thread fills it.
    is_claimed: AtomicBool,
    /// Keys that it was read for.
    lookups: AtomicU32,
}

impl Part {
    fn is_filled(&self) -> bool {
        self.is_filled.load(Ordering::Acquire)
    }
}

impl TableIndex {
    /// An index of the version's rows, before anybody writes on or looks rows up by it. What is missing is put in by
    /// [`TableIndex::backfill`]. 42704 and 53200 as [`TableIndex::create`].
    pub fn over(
        version: &Arc<TableVersion>,
        def: &IndexDef,
        space: Arc<Tablespace>,
        transactions: &Arc<Transactions>,
    ) -> Result<TableIndex> {
        let mut index = TableIndex::create(&version.def, def, space, transactions, None)?;
        index.enter_versions(version)?;
        if version.row_groups.is_empty() {
            index.completed(version.view().ts());
            return Ok(index);
        }
        let parts = version.row_groups.iter().map(|_| Part::default()).collect();
        *index.backfill.get_mut() = Some(Arc::new(Backfill { version: Arc::clone(version), parts }));
        Ok(index)
    }

    /// Entries of the rows that are in versions.
    fn enter_versions(&self, version: &TableVersion) -> Result<()> {
        let mut run = Run::default();
        let mut key = IndexKey::default();
        let rows = version.rows();
        for (number, _) in version.headed() {
            let Some(range) = version.range(*number) else { continue };
            let mut versions = Vec::new();
            range.windows(0..RangeView::WINDOWS, &mut versions);
            for (position, image) in versions {
                self.key_of(rows, RowRef::Version(image), &mut key)?;
                run.push(&key, RowId::new(*number, position as usize));
            }
            if run.len() >= VERSIONS_AT_ONCE {
                self.put_in(version.view(), &mut run)?;
            }
        }
        self.put_in(version.view(), &mut run)
    }

    /// Puts entries in, and takes them out of the run.
    fn put_in(&self, view: &View, run: &mut Run) -> Result<()> {
        run.sort();
        let mut fingers = Fingers::default();
        run.each(|key, row| self.tree.insert_near(view, key, row, &mut fingers).map(drop))?;
        run.clear();
        Ok(())
    }

    /// `None`: nothing is missing, or whoever makes the index alone knows what.
    fn missing(&self) -> Option<Arc<Backfill>> {
        if self.complete_from.load(Ordering::Acquire) == u64::MAX { self.backfill.read().clone() } else { None }
    }

    /// Whether rows that the view sees are found by keys that were fetched.
    #[inline]
    pub fn is_ready_for(&self, view: &View) -> bool {
        self.is_complete_for(view) || self.is_filled_for(view)
    }

    #[cold]
    fn is_filled_for(&self, view: &View) -> bool {
        match self.missing() {
            Some(backfill) => view.ts() >= backfill.version.view().ts() && !self.is_left.load(Ordering::Acquire),
            // It may have become complete since it was asked.
            None => self.is_complete_for(view),
        }
    }

    /// Sees to it that all rows that have a key have their entries.
    #[inline]
    pub fn fetch_key(&self, key: &[u8]) -> Result<()> {
        if self.complete_from.load(Ordering::Acquire) == u64::MAX { self.fetch_missing_key(key) } else { Ok(()) }
    }

    #[cold]
    fn fetch_missing_key(&self, key: &[u8]) -> Result<()> {
        // What it makes of the tree outlives the statement.
        QueryHeap::outside(|| self.missing().map_or(Ok(()), |backfill| backfill.fetch_key(self, key)))
    }

    /// As `fetch_key`, of all keys in a range.
    #[inline]
    pub fn fetch_range(&self, range: KeyRange<'_>) -> Result<()> {
        if self.complete_from.load(Ordering::Acquire) == u64::MAX { self.fetch_missing_range(range) } else { Ok(()) }
    }

    #[cold]
    fn fetch_missing_range(&self, range: KeyRange<'_>) -> Result<()> {
        QueryHeap::outside(|| self.missing().map_or(Ok(()), |backfill| backfill.fetch_range(self, range)))
    }

    /// Puts all entries in that are missing. `check` ends it with an error, after which it may be called again.
    pub fn backfill(&self, threads: usize, check: &(dyn Fn() -> Result<()> + Sync)) -> Result<()> {
        if let Some(backfill) = self.missing() {
            backfill.fill_unclaimed(self, threads, check)?;
        }
        // Those whose thread met an error, or is another's who looked for a key.
        while self.backfill_next(check)? {}
        Ok(())
    }

    /// Puts some of the entries in that are missing. False: none is.
    pub fn backfill_next(&self, check: &(dyn Fn() -> Result<()> + Sync)) -> Result<bool> {
        let Some(backfill) = self.missing() else { return Ok(false) };
        let next = backfill.unfilled().next().map(|(place, ..)| place);
        if let Some(place) = next {
            return QueryHeap::outside(|| backfill.fill(self, place, check)).map(|()| true);
        }
        self.completed(backfill.version.view().ts());
        *self.backfill.write() = None;
        Ok(false)
    }
}

impl Backfill {
    fn fill_unclaimed(
        &self,
        index: &TableIndex,
        threads: usize,
        check: &(dyn Fn() -> Result<()> + Sync),
    ) -> Result<()> {
        let fill = || -> Result<()> {
            for (place, part, _) in self.unfilled() {
                if !part.is_claimed.swap(true, Ordering::Relaxed) {
                    self.fill(index, place, check)?;
                }
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            for _ in 1..threads.min(self.parts.len()) {
                // What it leaves undone is done by who called, who meets its error again.
                scope.spawn(|| drop(fill()));
            }
            fill()
        })
    }

    /// Puts all entries of a part in.
    fn fill(&self, index: &TableIndex, place: usize, check: &(dyn Fn() -> Result<()> + Sync)) -> Result<()> {
        let part = &self.parts[place];
        let mut run = Run::default();
        let filled = index
            .read_keys(&mut self.reader(index, place, Vec::new()), usize::MAX, &mut run, check)
            .and_then(|_| index.put_in(self.version.view(), &mut run));
        match filled {
            Ok(()) => part.is_filled.store(true, Ordering::Release),
            Err(_) => part.is_claimed.store(false, Ordering::Relaxed),
        }
        filled
    }

    /// The key's columns, and the ids, of those rows of a part that the filters leave.
    fn reader(&self, index: &TableIndex, place: usize, filters: Vec<ColumnFilter>) -> ScanReader {
        let ids = self.version.def.columns.len();
        let request = ScanRequest {
            projection: index.positions().iter().copied().chain([ids]).collect(),
            filters,
            dynamic: None,
            limit: None,
            batch_rows: BATCH_ROWS,
            forms: Vec::new(),
        };
        TableScan::new(Arc::new(self.version.main_alone(place)), request).reader()
    }

    fn unfilled(&self) -> impl Iterator<Item = (usize, &Part, &RowGroup)> {
        let parts = self.parts.iter().zip(&self.version.row_groups).enumerate();
        parts.filter(|(_, (part, _))| !part.is_filled()).map(|(place, (part, group))| (place, part, &**group))
    }

    fn fetch_key(&self, index: &TableIndex, key: &[u8]) -> Result<()> {
        let filters = filters_of(index, key)?;
        let schema = self.version.arrow_schema();
        let predicate =
            |filter: &ColumnFilter| Predicate::new(filter, Logical::of(schema.field(filter.column()).data_type())?);
        let predicates = filters.iter().map(predicate).collect::<Result<Vec<_>>>()?;
        if predicates.is_empty() {
            return self.fetch_range(index, (Bound::Included(key), Bound::Included(key)));
        }
        for (place, part, group) in self.unfilled() {
            let excludes = |one: &Predicate| {
                group.segments()[one.column].statistics().map(|known| one.excludes(known, group.rows()))
            };
            if any(&predicates, excludes)? {
                continue;
            }
            let is_asked_often = part.lookups.fetch_add(1, Ordering::Relaxed) >= LOOKUPS_MAX;
            if is_asked_often && !part.is_claimed.swap(true, Ordering::Relaxed) {
                self.fill(index, place, &|| Ok(()))?;
                continue;
            }
            let mut run = Run::default();
            index.read_keys(&mut self.reader(index, place, filters.clone()), usize::MAX, &mut run, &|| Ok(()))?;
            run.each(|found, row| match found == key {
                true => index.tree.insert(self.version.view(), key, row).map(drop),
                // Columns that no filter is on differ.
                false => Ok(()),
            })?;
        }
        Ok(())
    }

    fn fetch_range(&self, index: &TableIndex, range: KeyRange<'_>) -> Result<()> {
        for (place, _, group) in self.unfilled() {
            if may_have(index, group, range)? {
                self.fill(index, place, &|| Ok(()))?;
            }
        }
        Ok(())
    }
}

fn any<T>(all: &[T], is: impl Fn(&T) -> Result<bool>) -> Result<bool> {
    for one in all {
        if is(one)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Conditions that rows with a key meet, and perhaps others; none where none can be told.
fn filters_of(index: &TableIndex, key: &[u8]) -> Result<Vec<ColumnFilter>> {
    let values = index.codec().decode(key)?;
    let filter = |(place, (value, column)): (usize, (KeyValue<'static>, &usize))| {
        if value == KeyValue::Null {
            return Some(ColumnFilter::IsNull { column: *column });
        }
        let value = datum_of(value, index.sql_type(place))?;
        Some(ColumnFilter::Compare { column: *column, op: CompareOp::Eq, value })
    };
    if values.len() != index.positions().len() {
        return Err(Error::internal("a key lacks columns of its index"));
    }
    Ok(values.into_iter().zip(index.positions()).enumerate().filter_map(filter).collect())
}

/// `None` where values of which the key is the same differ otherwise.
fn datum_of(value: KeyValue<'_>, sql_type: SqlType) -> Option<Datum> {
    Some(match (sql_type, value) {
        (_, KeyValue::Boolean(value)) => Datum::Boolean(value),
        (_, KeyValue::SmallInt(value)) => Datum::Int(value.into()),
        (_, KeyValue::Integer(value) | KeyValue::Date(value)) => Datum::Int(value.into()),
        (_, KeyValue::BigInt(value) | KeyValue::Timestamp(value)) => Datum::Int(value),
        (_, KeyValue::Numeric(value)) => Datum::Decimal(value),
        // These compare as keys do: a zero without its sign, one NaN.
        (_, KeyValue::Real(value)) => Datum::Float(value.into()),
        (_, KeyValue::DoublePrecision(value)) => Datum::Float(value),
        (_, KeyValue::Uuid(bytes)) => {
            let mut text = Vec::new();
            uuid::format(u128::from_le_bytes(bytes), &mut text);
            Datum::Text(String::from_utf8(text).ok()?)
        }
        (_, KeyValue::Bytea(bytes)) => Datum::Bytes(bytes.into_owned()),
        // `char(n)` has blanks that its keys have not.
        (SqlType::Text | SqlType::Varchar { .. }, KeyValue::Text(text)) => Datum::Text(text.into_owned()),
        _ => return None,
    })
}

/// Whether a row group may have keys in a range, by what is known of the key's first column.
fn may_have(index: &TableIndex, group: &RowGroup, range: KeyRange<'_>) -> Result<bool> {
    let statistics = group.segments()[index.positions()[0]].statistics()?;
    let key = |bound: &Option<Datum>| {
        let value = key_value(bound.as_ref()?, index.sql_type(0))?;
        index.codec().encode([value]).ok()
    };
    let (Some(least), Some(greatest)) = (key(&statistics.min), key(&statistics.max)) else { return Ok(true) };
    if statistics.null_count > 0 {
        return Ok(true);
    }
    let is_descending = index.codec().columns()[0].is_descending();
    let (first, last) = if is_descending { (greatest, least) } else { (least, greatest) };
    let is_above = match range.1 {
        Bound::Included(upper) | Bound::Excluded(upper) => &first[..] > upper,
        Bound::Unbounded => false,
    };
    let is_below = match range.0 {
        // Keys go on behind their first column.
        Bound::Included(lower) | Bound::Excluded(lower) => &last[..] < lower && !lower.starts_with(&last),
        Bound::Unbounded => false,
    };
    Ok(!is_above && !is_below)
}
