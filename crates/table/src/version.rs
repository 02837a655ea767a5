use crate::delta_columns::DeltaLook;
use crate::dictionary::MainDictionary;
use crate::index::{Entries, TableIndex};
use crate::rows::{Apart, MainPart, RangeView, ReadLog, RowStore, ScanRead, VERSION_HEADER_BYTES};
use crate::sample::Sample;
use crate::segment::statistics_of;
use crate::sketch::Sketch;
use crate::{
    ColumnFilter, ColumnStatistics, Datum, EncodingKind, IndexAccess, IndexDef, RowGroup, TableDef, TableStatistics,
};
use arrow_array::ArrayRef;
use arrow_schema::SchemaRef;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering as AtomicOrdering};
use tidepool_base::{CommitTs, RowGroupId, RowId, TableId};
use tidepool_txn::HeldSnapshot;

/// Which tablespace, by name, each part of a table uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub main: String,
    pub delta: String,
    /// Columns whose main is elsewhere than `main`, by position.
    pub columns: std::collections::BTreeMap<usize, String>,
}

impl Placement {
    pub fn column(&self, index: usize) -> &str {
        self.columns.get(&index).map_or(&self.main, String::as_str)
    }
}

/// A table: its rows, what its columns are, and where their parts go. Definition and placement never change; a changed
/// table is another one, with the same rows or with others.
#[derive(Debug)]
pub struct Table {
    pub def: Arc<TableDef>,
    pub placement: Placement,
    pub rows: Arc<RowStore>,
    /// Those of its definition, once they are made.
    indexes: Vec<Arc<TableIndex>>,
    entries: Arc<Entries>,
    /// Another one once others refer to the table, or do so no more, which its definition does not say.
    referred: Arc<()>,
    schema: SchemaRef,
    /// Transactions that wrote rows. Of the rows, whatever the definition.
    written: Arc<WriteCounts>,
    /// Another one has taken its place.
    is_superseded: AtomicBool,
    /// What was worked out last, and of which state of the rows.
    statistics: Mutex<Option<(Shape, Arc<TableStatistics>)>>,
    /// Of a partitioned table: what was worked out last of partitions, and of which.
    of_partitions: Mutex<Option<OfPartitions>>,
    look: Mutex<Option<DeltaLook>>,
    sample: Mutex<Option<Arc<Sample>>>,
    /// By column.
    dictionaries: Mutex<Vec<Option<MainDictionary>>>,
}

type OfPartitions = (Vec<Arc<TableStatistics>>, Arc<TableStatistics>);

/// How many transactions have begun to commit rows, and how many are over.
/// In parts, so that threads which commit all the time do not share them.
#[derive(Debug)]
struct WriteCounts(Box<[WriteCount]>);

#[derive(Debug, Default)]
#[repr(align(128))]
struct WriteCount {
    begun: AtomicU64,
    ended: AtomicU64,
}

const WRITE_COUNTS: usize = 16;

impl WriteCounts {
    fn new() -> WriteCounts {
        WriteCounts((0..WRITE_COUNTS).map(|_| WriteCount::default()).collect())
    }
}

impl Table {
    /// A table whose indexes are still to be made.
    pub fn new(def: Arc<TableDef>, placement: Placement, rows: Arc<RowStore>) -> Table {
        Table {
            schema: def.arrow_schema(),
            def,
            placement,
            rows,
            indexes: Vec::new(),
            entries: Arc::default(),
            referred: Arc::default(),
            written: Arc::new(WriteCounts::new()),
            is_superseded: AtomicBool::new(false),
            statistics: Mutex::default(),
            of_partitions: Mutex::default(),
            look: Mutex::default(),
            sample: Mutex::default(),
            dictionaries: Mutex::default(),
        }
    }

    /// The same rows under another definition, with as many columns of the same types, and those of the indexes that it
    /// has, too.
    pub fn with_def(&self, def: Arc<TableDef>) -> Table {
        let stays = |index: &&Arc<TableIndex>| def.indexes.iter().any(|known| known.id == index.id());
        Table {
            indexes: self.indexes.iter().filter(stays).cloned().collect(),
            entries: Arc::clone(&self.entries),
            referred: Arc::clone(&self.referred),
            written: Arc::clone(&self.written),
            ..Table::new(Arc::clone(&def), self.placement.clone(), Arc::clone(&self.rows))
        }
    }

    /// The same, for writers who know what refers to it by now. It serves nobody who does not.
    pub fn referred_anew(&self) -> Table {
        Table { referred: Arc::default(), ..self.with_def(Arc::clone(&self.def)) }
    }

    /// With indexes of its definition that were made of its rows.
    pub fn with_indexes(mut self, made: impl IntoIterator<Item = TableIndex>) -> Table {
        for index in made {
            let index = Arc::new(index);
            self.entries.add(&self.rows, &index);
            self.indexes.retain(|known| known.id() != index.id());
            self.indexes.push(index);
        }
        self
    }

    /// Without some indexes, which are to be made anew.
    pub fn without_indexes(mut self, without: impl Fn(TableId) -> bool) -> Table {
        self.indexes.retain(|index| !without(index.id()));
        self
    }

    /// Who writes rows as if this were the table does for the other what is to be done: it has the same rows, and no
    /// indexes that this has not, and the same refer to it.
    pub fn serves_writers_of(&self, other: &Table) -> bool {
        let has = |index: &Arc<TableIndex>| self.indexes.iter().any(|own| own.is_kept_by(index));
        let without_indexes = |def: &TableDef| TableDef { indexes: Vec::new(), ..def.clone() };
        Arc::ptr_eq(&self.rows, &other.rows)
            && Arc::ptr_eq(&self.referred, &other.referred)
            && other.indexes.iter().all(has)
            && without_indexes(&self.def) == without_indexes(&other.def)
    }

    pub(crate) fn look(&self) -> &Mutex<Option<DeltaLook>> {
        &self.look
    }

    pub(crate) fn sample(&self) -> &Mutex<Option<Arc<Sample>>> {
        &self.sample
    }

    pub(crate) fn dictionaries(&self) -> &Mutex<Vec<Option<MainDictionary>>> {
        &self.dictionaries
    }

    pub fn indexes(&self) -> &[Arc<TableIndex>] {
        &self.indexes
    }

    pub fn index(&self, id: TableId) -> Option<&Arc<TableIndex>> {
        self.indexes.iter().find(|index| index.id() == id)
    }

    /// Whether some part of it goes to a tablespace.
    pub fn uses(&self, tablespace: &str) -> bool {
        let placement = &self.placement;
        let own = self.def.indexes.iter().filter_map(|index| index.tablespace.as_ref());
        placement.main == tablespace
            || placement.delta == tablespace
            || placement.columns.values().chain(own).any(|space| space == tablespace)
    }

    /// The tablespace of an index, by name.
    pub fn index_tablespace<'t>(&'t self, def: &'t IndexDef) -> &'t str {
        def.tablespace.as_deref().unwrap_or(&self.placement.delta)
    }

    /// To be called before a transaction that wrote rows draws its timestamp; and `end_write` once it is over.
    pub fn begin_write(&self) {
        self.begin_write_of(0);
    }

    /// What is told by it is also told by every later view.
    pub fn end_write(&self) {
        self.end_write_of(0);
    }

    /// As `begin_write`. Threads of different `shard`s below 16 share nothing.
    #[inline]
    pub fn begin_write_of(&self, shard: usize) {
        // Release: who counts it finds what was written.
        self.written.0[shard % WRITE_COUNTS].begun.fetch_add(1, AtomicOrdering::Release);
    }

    #[inline]
    pub fn end_write_of(&self, shard: usize) {
        self.written.0[shard % WRITE_COUNTS].ended.fetch_add(1, AtomicOrdering::Release);
    }

    /// Another one has taken its place, or it is no more.
    pub fn supersede(&self) {
        self.is_superseded.store(true, AtomicOrdering::Release);
    }

    #[inline]
    pub fn is_superseded(&self) -> bool {
        self.is_superseded.load(AtomicOrdering::Acquire)
    }

    /// Transactions that had begun to commit rows. Asked after a view was drawn, it counts all that the view sees.
    pub fn writes_begun(&self) -> u64 {
        self.written.0.iter().map(|count| count.begun.load(AtomicOrdering::Acquire)).sum()
    }

    /// Transactions that wrote rows and are over. Asked before a view is drawn, it counts none that the view does not see.
    pub fn writes(&self) -> u64 {
        self.written.0.iter().map(|count| count.ended.load(AtomicOrdering::Acquire)).sum()
    }
}

/// What statistics depend on, as far as it can be told without looking at rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Shape {
    groups: Vec<(RowGroupId, usize)>,
    writes: u64,
    headed: usize,
}

/// Rows of delta from which on some more or fewer are not looked at anew.
const DELTA_ROWS_MANY: usize = 1024;

impl Shape {
    /// Whether what was estimated of it is as good an estimate of the other.
    fn is_about(&self, other: &Shape) -> bool {
        self.groups == other.groups
            && self.headed >= DELTA_ROWS_MANY
            && self.headed.abs_diff(other.headed) <= self.headed / 16
    }
}

/// A table as one view sees it.
#[derive(Clone, Debug)]
pub struct TableVersion {
    pub def: Arc<TableDef>,
    pub placement: Placement,
    /// Main, in the order of rows' ids.
    pub row_groups: Vec<Arc<RowGroup>>,
    /// Of each row group.
    pub(crate) ranges: Vec<u64>,
    /// As they were found first, each with its row group: by them every look at a range goes.
    mains: Vec<Arc<MainPart>>,
    /// Ranges, and of each the rows that may have versions.
    pub(crate) headed: Vec<(u64, usize)>,
    table: Arc<Table>,
    view: Arc<HeldSnapshot>,
    /// Of a serializable transaction.
    reads: Option<Arc<ReadLog>>,
    /// Transactions that had begun to commit rows before the ranges were looked at.
    pub(crate) writes_begun: u64,
    /// The view's own transaction has written something.
    pub(crate) has_own_writes: bool,
}

/// What one column's main takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ColumnUsage {
    /// Bytes of the same values as plain Arrow.
    pub raw_bytes: u64,
    /// Bytes of whole segments, statistics and headers included.
    pub encoded_bytes: u64,
    /// The encoded bytes by tablespace name.
    pub tablespaces: BTreeMap<String, u64>,
    /// Segments by encoding, the most frequent first.
    pub encodings: Vec<(EncodingKind, usize)>,
}

impl TableVersion {
    pub fn of(table: &Arc<Table>, view: &Arc<HeldSnapshot>) -> TableVersion {
        let mut version = TableVersion {
            def: Arc::clone(&table.def),
            placement: table.placement.clone(),
            row_groups: Vec::new(),
            ranges: Vec::new(),
            mains: Vec::new(),
            headed: Vec::new(),
            table: Arc::clone(table),
            view: Arc::clone(view),
            reads: None,
            writes_begun: table.writes_begun(),
            has_own_writes: false,
        };
        for number in 0..table.rows.ranges() {
            let main = table.rows.main(view, number);
            let Some(range) = table.rows.range_by(view, number, main.as_deref()) else { break };
            if let Some(main) = &main {
                version.row_groups.push(Arc::clone(&main.group));
                version.ranges.push(number);
                version.mains.push(Arc::clone(main));
            }
            let headed = range.headed_rows();
            if headed > 0 {
                version.headed.push((number, headed));
            }
        }
        version
    }

    /// Its definition's [`TableDef::arrow_schema`].
    pub fn arrow_schema(&self) -> &SchemaRef {
        &self.table.schema
    }

    /// With what a transaction read put down, so that it can be asked about at its commit.
    pub fn with_reads(self, reads: Option<Arc<ReadLog>>) -> TableVersion {
        TableVersion { reads, ..self }
    }

    /// For a view whose transaction has written rows, of this table or of others.
    pub fn with_own_writes(self, has_own_writes: bool) -> TableVersion {
        TableVersion { has_own_writes, ..self }
    }

    /// To be told of each scan by whoever plans it: by these filters, all of which must hold, and through that index. Where nobody asks
    /// at the commit, nothing is kept.
    pub fn read_by(&self, filters: &[ColumnFilter], access: Option<&IndexAccess>) {
        if let Some(reads) = &self.reads {
            reads.push(&self.table.rows, ScanRead::new(filters, access));
        }
    }

    /// The numbers of ranges that have rows, in order.
    pub fn parts(&self) -> Vec<u64> {
        let mut parts: Vec<u64> =
            self.ranges.iter().copied().chain(self.headed.iter().map(|(number, _)| *number)).collect();
        parts.sort_unstable();
        parts.dedup();
        parts
    }

    /// One range alone.
    pub fn part(&self, number: u64) -> TableVersion {
        let mut part = self.clone();
        let keep: Vec<bool> = self.ranges.iter().map(|range| *range == number).collect();
        let mut kept = keep.iter();
        part.row_groups.retain(|_| *kept.next().expect("one for each row group"));
        let mut kept = keep.iter();
        part.mains.retain(|_| *kept.next().expect("one for each row group"));
        part.ranges.retain(|range| *range == number);
        part.headed.retain(|(range, _)| *range == number);
        part
    }

    /// What main alone shows of the range whose row group is at a place.
    pub(crate) fn main_alone(&self, place: usize) -> TableVersion {
        TableVersion {
            def: Arc::clone(&self.def),
            placement: self.placement.clone(),
            row_groups: vec![Arc::clone(&self.row_groups[place])],
            ranges: vec![self.ranges[place]],
            mains: vec![Arc::clone(&self.mains[place])],
            headed: Vec::new(),
            table: Arc::clone(&self.table),
            view: Arc::clone(&self.view),
            reads: None,
            writes_begun: self.writes_begun,
            has_own_writes: self.has_own_writes,
        }
    }

    /// The row group, if it is all that there is and all its rows are there.
    pub fn whole_group(&self) -> Option<&Arc<RowGroup>> {
        let [group] = self.row_groups.as_slice() else { return None };
        (self.headed.is_empty() && self.main_rows() == group.rows() as u64).then_some(group)
    }

    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    pub fn rows(&self) -> &Arc<RowStore> {
        &self.table.rows
    }

    /// What the view sees of a range. `None` when there is no range of that number.
    pub fn range(&self, number: u64) -> Option<RangeView<'_>> {
        let main = self.ranges.binary_search(&number).ok().map(|place| &*self.mains[place]);
        self.table.rows.range_by(&self.view, number, main)
    }

    /// Every row of a range that its row group does not show as the view sees it, by position.
    pub fn apart(&self, number: u64) -> Vec<(RowId, Apart<'_>)> {
        self.range(number).map_or_else(Vec::new, |range| range.apart(number))
    }

    /// The range of each row group.
    pub fn ranges(&self) -> &[u64] {
        &self.ranges
    }

    /// Of each row group, the horizon of the merge that made it the range's main; zero: none did.
    pub fn made_at(&self) -> impl Iterator<Item = CommitTs> {
        self.mains.iter().map(|main| CommitTs(main.made_at()))
    }

    /// Ranges of main with rows that are gone.
    pub fn ranges_with_dead(&self) -> impl Iterator<Item = u64> {
        let mains = self.mains.iter().zip(&self.ranges);
        mains.filter(|(main, _)| main.dead_rows() > 0).map(|(_, range)| *range)
    }

    /// Ranges with rows that may have versions, and how many.
    pub fn headed(&self) -> &[(u64, usize)] {
        &self.headed
    }

    pub fn view(&self) -> &Arc<HeldSnapshot> {
        &self.view
    }

    /// Rows, at most: those of main, and those that may have versions.
    pub fn rows_max(&self) -> u64 {
        self.main_rows() + self.delta_rows()
    }

    /// Rows of main that are not deleted, but for what delta says.
    pub fn main_rows(&self) -> u64 {
        self.mains.iter().map(|main| main.live_rows() as u64).sum()
    }

    /// Rows that may have versions: not merged yet, changed or deleted since, or about to be.
    pub fn delta_rows(&self) -> u64 {
        self.headed.iter().map(|(_, rows)| *rows as u64).sum()
    }

    /// Estimated: what the versions of delta take.
    pub fn delta_bytes(&self) -> u64 {
        self.statistics().delta_bytes
    }

    /// Main has all that the view sees, and all that it has is seen.
    pub fn is_settled(&self) -> bool {
        self.headed.is_empty()
    }

    /// Row groups of main, and the rows of each that are not deleted.
    pub(crate) fn groups_live(&self) -> impl Iterator<Item = (RowGroupId, usize)> {
        self.mains.iter().map(|main| (main.group.id(), main.live_rows()))
    }

    /// Over main, and over some of delta. Worked out once for each state of the rows; exact if `is_settled` and main
    /// has no deleted rows.
    pub fn statistics(&self) -> Arc<TableStatistics> {
        let shape = Shape {
            groups: self.groups_live().collect(),
            writes: self.table.writes(),
            headed: self.delta_rows() as usize,
        };
        if let Some((known, statistics)) = &*self.table.statistics.lock()
            && (*known == shape || known.is_about(&shape))
        {
            return Arc::clone(statistics);
        }
        let delta = self.delta_statistics();
        let columns = (0..self.def.columns.len()).map(|column| self.column_statistics(column, &delta));
        let (columns, sketches) = columns.unzip();
        let rows = (self.main_rows() + delta.rows).saturating_sub(delta.hidden);
        let mut segments = self.row_groups.iter().flat_map(|group| group.segments());
        let exact = self.is_settled()
            && self.mains.iter().all(|main| main.dead_rows() == 0)
            && segments.all(|segment| segment.is_open());
        let statistics = Arc::new(TableStatistics { rows, exact, delta_bytes: delta.bytes, columns, sketches });
        *self.table.statistics.lock() = Some((shape, Arc::clone(&statistics)));
        statistics
    }

    /// Over some partitions of this table, which has no rows of its own. Worked out once for each state of theirs.
    pub fn statistics_of(&self, partitions: &[Arc<TableVersion>]) -> Arc<TableStatistics> {
        let parts: Vec<Arc<TableStatistics>> = partitions.iter().map(|partition| partition.statistics()).collect();
        if let [part] = parts.as_slice() {
            return Arc::clone(part);
        }
        let same = |known: &[Arc<TableStatistics>]| {
            known.len() == parts.len() && known.iter().zip(&parts).all(|(a, b)| Arc::ptr_eq(a, b))
        };
        if let Some((known, statistics)) = &*self.table.of_partitions.lock()
            && same(known)
        {
            return Arc::clone(statistics);
        }
        let column = |column: usize| {
            let of = |part: &'_ Arc<TableStatistics>| part.rows > 0 && part.columns.len() > column;
            let parts = parts.iter().filter(|part| of(part));
            merge_statistics(parts.map(|part| (part.rows as usize, &part.columns[column], &part.sketches[column])))
        };
        let (columns, sketches) = (0..self.def.columns.len()).map(column).unzip();
        let statistics = Arc::new(TableStatistics {
            rows: parts.iter().map(|part| part.rows).sum(),
            exact: parts.iter().all(|part| part.exact),
            delta_bytes: parts.iter().map(|part| part.delta_bytes).sum(),
            columns,
            sketches,
        });
        *self.table.of_partitions.lock() = Some((parts, Arc::clone(&statistics)));
        statistics
    }

    /// Of what a look at some rows of delta tells about all. Each range is looked at for itself: one that was merged a moment ago still has
    /// marks at all its rows, though main shows them, and the next one has not been merged yet.
    fn delta_statistics(&self) -> DeltaStatistics {
        // Windows in an order that spreads any number of them over the range.
        const STRIDE: usize = 1_237;
        let per_range = (DELTA_ROWS_SAMPLED / self.headed.len().max(1)).max(64);
        let mut images = Vec::new();
        let (mut rows, mut hidden, mut versions) = (0.0, 0.0, Vec::new());
        for (number, headed) in &self.headed {
            let Some(range) = self.range(*number) else { break };
            let (mut looked_at, mut hidden_here, before) = (0, 0, images.len());
            for turn in 0..RangeView::WINDOWS {
                let window = turn * STRIDE % RangeView::WINDOWS;
                let marked = range.headed(window);
                if marked == 0 {
                    continue;
                }
                looked_at += marked.count_ones() as usize;
                let shown = range.window(window, &mut versions);
                hidden_here += (range.main(window) & !shown).count_ones() as usize;
                images.extend(versions.drain(..).map(|(_, image)| image));
                if looked_at >= per_range {
                    break;
                }
            }
            let weight = if looked_at == 0 { 0.0 } else { *headed as f64 / looked_at as f64 };
            rows += weight * (images.len() - before) as f64;
            hidden += weight * hidden_here as f64;
        }
        let rows = f64::round(rows) as u64;
        let all: Vec<usize> = (0..self.def.columns.len()).collect();
        let image_bytes: usize = images.iter().map(|image| image.len() + VERSION_HEADER_BYTES).sum();
        // Of long rows few are decoded, and of very long ones none: it takes memory that nobody counts.
        let step = image_bytes.div_ceil(DELTA_BYTES_SAMPLED).max(1);
        let few = images.iter().copied().step_by(step).filter(|image| image.len() <= DELTA_BYTES_SAMPLED / 8);
        let decoded: Vec<&[u8]> = few.collect();
        let columns = self.rows().layout().decode(&decoded, &all).unwrap_or_default();
        let scale = if decoded.is_empty() { 0.0 } else { rows as f64 / decoded.len() as f64 };
        let of = |column: &ArrayRef| {
            let (mut statistics, sketch) = statistics_of(column).unwrap_or_default();
            statistics.null_count = (statistics.null_count as f64 * scale).round() as u64;
            (statistics, sketch)
        };
        let bytes = image_bytes as f64 * if images.is_empty() { 0.0 } else { rows as f64 / images.len() as f64 };
        let columns = columns.iter().map(of).collect();
        DeltaStatistics { rows, hidden: hidden.round() as u64, bytes: bytes.round() as u64, columns }
    }

    fn column_statistics(&self, column: usize, delta: &DeltaStatistics) -> (ColumnStatistics, Sketch) {
        let unknown = <(ColumnStatistics, Sketch)>::default();
        let main = self.row_groups.iter().map(|group| match group.segments()[column].opened() {
            Ok(opened) => (group.rows(), opened.statistics(), opened.sketch()),
            // Whoever reads it is told.
            Err(_) => (group.rows(), &unknown.0, &unknown.1),
        });
        let delta = delta.columns.get(column).map(|(statistics, sketch)| (delta.rows as usize, statistics, sketch));
        merge_statistics(main.chain(delta).filter(|(rows, _, _)| *rows > 0))
    }

    /// What each column's main takes, in the order of the columns. What turns out to be damaged is left out of all but its bytes.
    pub fn column_usage(&self) -> Vec<ColumnUsage> {
        (0..self.def.columns.len())
            .map(|column| {
                let mut usage = ColumnUsage::default();
                for segment in self.row_groups.iter().map(|group| &group.segments()[column]) {
                    let bytes = segment.encoded_bytes();
                    usage.raw_bytes += segment.raw_bytes().unwrap_or_default();
                    usage.encoded_bytes += bytes;
                    *usage.tablespaces.entry(segment.tablespace().name().to_string()).or_default() += bytes;
                    let Ok(encoding) = segment.encoding() else { continue };
                    match usage.encodings.iter_mut().find(|(kind, _)| *kind == encoding) {
                        Some((_, count)) => *count += 1,
                        None => usage.encodings.push((encoding, 1)),
                    }
                }
                usage.encodings.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
                usage
            })
            .collect()
    }
}

/// Rows of delta that statistics look at.
const DELTA_ROWS_SAMPLED: usize = 16 * 1024;

/// Bytes of rows of delta that statistics decode, about.
const DELTA_BYTES_SAMPLED: usize = 8 << 20;

struct DeltaStatistics {
    rows: u64,
    /// Rows of main that versions stand for.
    hidden: u64,
    bytes: u64,
    columns: Vec<(ColumnStatistics, Sketch)>,
}

fn merge_statistics<'a>(
    parts: impl Iterator<Item = (usize, &'a ColumnStatistics, &'a Sketch)>,
) -> (ColumnStatistics, Sketch) {
    let mut merged = ColumnStatistics { unique: true, ..ColumnStatistics::default() };
    let (mut rows_total, mut value_bytes, mut bounds_known) = (0u64, 0.0, (true, true));
    let mut sketch = Sketch::default();
    let mut ranges: Vec<(&Datum, &Datum)> = Vec::new();
    let better = |ours: &Option<Datum>, theirs: &Datum, wanted: Ordering| {
        ours.as_ref().is_none_or(|ours| theirs.compare(ours) == Some(wanted))
    };
    for (rows, part, part_sketch) in parts {
        rows_total += rows as u64;
        value_bytes += part.value_bytes_avg * rows as f64;
        merged.null_count += part.null_count;
        sketch.merge(part_sketch);
        if part.null_count == rows as u64 {
            continue;
        }
        merged.unique &= part.unique;
        match &part.min {
            Some(min) if better(&merged.min, min, Ordering::Less) => merged.min = Some(min.clone()),
            Some(_) => {}
            None => bounds_known.0 = false,
        }
        match &part.max {
            Some(max) if better(&merged.max, max, Ordering::Greater) => merged.max = Some(max.clone()),
            Some(_) => {}
            None => bounds_known.1 = false,
        }
        match (&part.min, &part.max) {
            (Some(min), Some(max)) => ranges.push((min, max)),
            _ => merged.unique = false,
        }
    }
    if !bounds_known.0 {
        merged.min = None;
    }
    if !bounds_known.1 {
        merged.max = None;
    }
    // Unique in each part and no two parts overlap: unique.
    ranges.sort_by(|a, b| a.0.compare(b.0).unwrap_or(Ordering::Equal));
    merged.unique &= ranges.windows(2).all(|pair| pair[0].1.compare(pair[1].0) == Some(Ordering::Less));
    merged.value_bytes_avg = if rows_total == 0 { 0.0 } else { value_bytes / rows_total as f64 };
    let values = rows_total - merged.null_count;
    merged.distinct_count = Some(if merged.unique { values } else { sketch.estimate().min(values) });
    (merged, sketch)
}
