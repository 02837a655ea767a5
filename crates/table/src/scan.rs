//! Scans: projection, filters and limit pushed down, row groups skipped by statistics, filters evaluated on encoded
//! data where the encoding allows, main and delta alike. Readers share a queue of morsels (a row group each, or a part
//! of one in a small table).
//!
//! What main shows and what versions show of a range are morsels of their own. Rows of main that have versions, or are
//! dead, are left out 64 at a time; the versions that the view sees are put into arrays, which are filtered like any.
//!
//! A reader works through a morsel in windows of `batch_rows`. In each it tests the filters, cheapest first, every one
//! only where rows are left; it collects the rows that pass over as many windows as it takes to fill a batch, and only
//! then decodes the projected columns, of these rows alone.

use crate::bits;
use crate::dictionary::ColumnDictionary;
use crate::encoding::ints_of;
use crate::encoding::{IntTest, Payload, Rows, packing::BLOCK};
use crate::filter::{ColumnFilter, FilterSource, Predicate, SegmentTest};
use crate::index::{Found, IndexUse};
use crate::logical::Logical;
use crate::rows::RangeView;
use crate::segment::Opened;
use crate::tally::{Charged, Paced, Tally, add_paced};
use crate::{BATCH_ROWS, ROW_GROUP_ROWS, ROW_ID, RowGroup, TableVersion};
use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions, UInt32Array, UInt64Array};
use arrow_schema::{ArrowError, DataType, Field, SchemaRef};
use arrow_select::concat::concat_batches;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tidepool_base::{Error, Result, RowId, TableId};
use tidepool_device::{Access, PacingCounters, Pattern};
use tidepool_tablespace::{Purpose, Tablespace};

pub struct ScanRequest {
    /// Columns to produce, in order. May be empty (only row counts). One more than there are columns stands for the
    /// rows' ids (`ROW_ID`, UInt64).
    pub projection: Vec<usize>,
    /// All must hold. Exact: no row that fails one is produced.
    pub filters: Vec<ColumnFilter>,
    pub dynamic: Option<Arc<dyn FilterSource>>,
    /// Rows that may still be produced, by all readers together. Several scans may share it.
    pub limit: Option<Arc<AtomicUsize>>,
    pub batch_rows: usize,
    /// Of each column of the projection, what it is handed out as; those that are left out, as Arrow has their type.
    pub forms: Vec<Form>,
}

/// What a scan hands a column's values out as.
#[derive(Clone, Debug, Default)]
pub enum Form {
    /// An array of the column's type.
    #[default]
    Arrow,
    /// `Int64`: of integers, dates and timestamps, and of decimals, unscaled, which are known to fit.
    Ints,
    /// `Int64`: of text, its code in a dictionary of this version's.
    Codes(Arc<ColumnDictionary>),
}

/// What a scan did so far, over all its readers. By tablespace where a tablespace matters.
#[derive(Clone, Debug, Default)]
pub struct ScanMetrics {
    pub row_groups: u64,
    pub row_groups_skipped: u64,
    pub rows_scanned: u64,
    pub rows_produced: u64,
    pub tablespaces: Vec<TablespaceRead>,
    /// Every column of the table, by position.
    pub columns: Vec<ColumnAccess>,
    /// The index that it found its rows through.
    pub index: Option<(TableId, IndexUse)>,
    /// Time that the readers' threads took, stalls of the scan left out: their own work and that of operators that took
    /// the batches from them. What is transferred meanwhile, nobody waits for.
    pub threads_ns: u64,
    pub readers: u64,
}

/// What was read in one tablespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TablespaceRead {
    pub tablespace: String,
    /// As they lie there: encoded values, indexes' nodes and versions of rows.
    pub bytes: u64,
    /// Of the values that were made of them: those of main that left the scan, and those of versions that it looked at.
    pub decoded_bytes: u64,
    /// Rows of delta that it looked at: they lie where delta does, whatever the placement of their columns.
    pub delta_rows: u64,
    /// For which pacing stalled its threads.
    pub stall_ns: u64,
}

impl TablespaceRead {
    /// Adds it to those of other scans, by the tablespaces' names.
    pub fn add_to(self, reads: &mut Vec<TablespaceRead>) {
        match reads.iter_mut().find(|read| read.tablespace == self.tablespace) {
            Some(read) => {
                read.bytes += self.bytes;
                read.decoded_bytes += self.decoded_bytes;
                read.delta_rows += self.delta_rows;
                read.stall_ns += self.stall_ns;
            }
            None => reads.push(self),
        }
    }
}

/// What scans read of one column: the accesses that pacing charges for where the memory is paced, counted everywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColumnAccess {
    /// Encoded bytes of main read in address order, dictionaries and validity included.
    pub bytes_sequential: u64,
    /// Runs that these lie in: each waits for its first line.
    pub runs: u64,
    /// Cache lines of main read one by one, for single rows.
    pub lines_random: u64,
    /// Rows whose values were tested or decoded, of main and delta. A row counts each time.
    pub rows: u64,
    /// Bytes of delta, read in address order, and their runs.
    pub delta_bytes: u64,
    pub delta_runs: u64,
}

impl ColumnAccess {
    /// Fetches of single rows do not wait for one another.
    const IN_FLIGHT: f64 = 8.0;

    pub fn is_empty(&self) -> bool {
        *self == ColumnAccess::default()
    }

    /// What was read of main, for a cost model.
    pub fn main(&self) -> [Access; 2] {
        let sequential = Pattern::Sequential { bytes: self.bytes_sequential, runs: self.runs };
        [Access { pattern: sequential, write: false }, ColumnAccess::random(self.lines_random)]
    }

    /// What was read of main and of delta.
    pub fn all(&self) -> [Access; 3] {
        let [sequential, random] = self.main();
        let delta = Pattern::Sequential { bytes: self.delta_bytes, runs: self.delta_runs };
        [sequential, random, Access { pattern: delta, write: false }]
    }

    /// A scan comes by once: no line of it is in the cache, however small the segment.
    pub(crate) fn random(lines: u64) -> Access {
        Access::read_random(lines, u64::MAX, ColumnAccess::IN_FLIGHT)
    }
}

impl std::ops::AddAssign for ColumnAccess {
    fn add_assign(&mut self, other: ColumnAccess) {
        self.bytes_sequential += other.bytes_sequential;
        self.runs += other.runs;
        self.lines_random += other.lines_random;
        self.rows += other.rows;
        self.delta_bytes += other.delta_bytes;
        self.delta_runs += other.delta_runs;
    }
}

/// Longest time between two batches that counts as work: a client that fetches slowly is no thread at work.
const WORK_NS_MAX: u64 = 100_000_000;

/// A morsel in a large table; small tables are cut so that several readers find work.
const MORSELS_WANTED: usize = 64;
const MORSEL_ROWS_MIN: usize = 8 * BLOCK;

/// Smaller batches of delta are put together.
const SMALL_ROWS: usize = 256;

/// Positions of a range.
struct Morsel {
    source: Source,
    rows: Range<usize>,
    /// Of them, these alone, which main, or versions, are known to show.
    picked: Option<Arc<[u32]>>,
}

#[derive(Clone)]
enum Source {
    /// What main shows of a range: its row group, with its position in the version.
    Main { range: u64, group: Arc<RowGroup>, index: usize },
    /// What versions show.
    Delta { range: u64 },
}

/// Rows of a morsel that are in versions, as arrays.
struct DeltaRows {
    /// By the table's columns; those that nobody asks for are left out.
    columns: Vec<Option<ArrayRef>>,
    ids: Vec<u64>,
}

/// The filters as one row group takes them.
struct GroupPlan {
    /// No row passes.
    skip: bool,
    /// Cheapest first.
    tests: Vec<GroupTest>,
}

struct GroupTest {
    column: usize,
    test: SegmentTest,
    null_passes: bool,
}

pub struct TableScan {
    version: Arc<TableVersion>,
    projection: Vec<usize>,
    /// Of each column of the projection.
    forms: Vec<Form>,
    schema: SchemaRef,
    /// An error is told by the first reader that asks for a batch.
    predicates: Result<Vec<Predicate>>,
    dynamic: Option<Arc<dyn FilterSource>>,
    batch_rows: usize,
    morsels: Vec<Morsel>,
    morsel_next: AtomicUsize,
    /// Rows that may still be produced; `None`: any number.
    rows_left: Option<Arc<AtomicUsize>>,
    /// Made by whichever reader comes to the row group first.
    plans: Vec<OnceLock<Result<Arc<GroupPlan>>>>,
    metrics: Mutex<ScanMetrics>,
    paced: Mutex<Vec<Paced>>,
}

/// A batch of more is held whole by whoever waits for a client to read it.
const BATCH_BYTES: u64 = 1 << 20;

/// Rows that every batch may have, however wide they are.
const WIDE_BATCH_ROWS: usize = 64;

/// Row groups that say how wide rows are.
const GROUPS_LOOKED_AT: usize = 8;

/// So many rows that a batch of these columns has about `BATCH_BYTES`, as far as row groups tell.
fn batch_rows_max(version: &TableVersion, projection: &[usize]) -> usize {
    let (mut bytes, mut rows) = (0, 0);
    for group in version.row_groups.iter().take(GROUPS_LOOKED_AT) {
        rows += group.rows() as u64;
        bytes += projection
            .iter()
            .filter_map(|column| group.segments().get(*column))
            // What cannot be read is told when it is.
            .filter_map(|one| one.raw_bytes().ok())
            .sum::<u64>();
    }
    match bytes {
        0 => usize::MAX,
        _ => usize::try_from(BATCH_BYTES * rows / bytes).unwrap_or(usize::MAX).max(WIDE_BATCH_ROWS),
    }
}

impl TableScan {
    pub fn new(version: Arc<TableVersion>, request: ScanRequest) -> Arc<TableScan> {
        let rows_total = version.rows_max();
        TableScan::among(version, request, rows_total)
    }

    /// One of several scans whose readers are the same, and which have `rows_total` rows together.
    pub fn among(version: Arc<TableVersion>, request: ScanRequest, rows_total: u64) -> Arc<TableScan> {
        let rows_total = rows_total as usize;
        let morsel_rows = (rows_total / MORSELS_WANTED).next_multiple_of(MORSEL_ROWS_MIN);
        let morsel_rows = morsel_rows.clamp(MORSEL_ROWS_MIN, ROW_GROUP_ROWS);
        let mut morsels = Vec::new();
        let mut cut = |source: Source, rows: usize| {
            for start in (0..rows).step_by(morsel_rows) {
                let rows = start..rows.min(start + morsel_rows);
                morsels.push(Morsel { source: source.clone(), rows, picked: None });
            }
        };
        for (index, (group, range)) in version.row_groups.iter().zip(&version.ranges).enumerate() {
            cut(Source::Main { range: *range, group: Arc::clone(group), index }, group.rows());
        }
        for (range, _) in &version.headed {
            let used = version.rows().used_rows(*range);
            cut(Source::Delta { range: *range }, used);
        }
        TableScan::over(version, request, morsels)
    }

    /// A scan of some rows alone: ids in ascending order, each once, of rows that need not be there.
    pub fn picked(version: Arc<TableVersion>, request: ScanRequest, rows: &[RowId]) -> Arc<TableScan> {
        let mut morsels = Vec::new();
        for of_range in rows.chunk_by(|a, b| a.range() == b.range()) {
            let number = of_range[0].range();
            let Some(range) = version.range(number) else { continue };
            let positions: Vec<u32> = of_range.iter().map(|row| row.position() as u32).collect();
            let (main, delta) = range.sorted_out(&positions);
            if let (Some(last), Ok(index)) = (main.last(), version.ranges.binary_search(&number)) {
                let source = Source::Main { range: number, group: Arc::clone(&version.row_groups[index]), index };
                morsels.push(Morsel { source, rows: 0..*last as usize + 1, picked: Some(main.into()) });
            }
            for part in delta.chunks(BATCH_ROWS) {
                let source = Source::Delta { range: number };
                morsels.push(Morsel { source, rows: 0..RowId::RANGE_ROWS, picked: Some(part.into()) });
            }
        }
        TableScan::over(version, request, morsels)
    }

    fn over(version: Arc<TableVersion>, request: ScanRequest, morsels: Vec<Morsel>) -> Arc<TableScan> {
        let table_schema = Arc::clone(version.arrow_schema());
        let columns = table_schema.fields().len();
        let in_table = |column: usize| {
            if column <= columns {
                Ok(())
            } else {
                Err(Error::internal(format!("column {column} of a table of {columns} was asked for")))
            }
        };
        let predicates = (request.projection.iter().try_for_each(|column| in_table(*column))).and_then(|()| {
            (request.filters.iter())
                .map(|filter| {
                    in_table(filter.column())?;
                    Predicate::new(filter, Logical::of(table_schema.field(filter.column()).data_type())?)
                })
                .collect()
        });
        let projection: Vec<usize> = request.projection.into_iter().filter(|column| *column <= columns).collect();
        let mut forms = request.forms;
        forms.resize(projection.len(), Form::Arrow);
        let row_id = Arc::new(Field::new(ROW_ID, DataType::UInt64, false));
        let field = |(column, form): (&usize, &Form)| {
            let field = table_schema.fields().get(*column).unwrap_or(&row_id);
            match form {
                Form::Arrow => Arc::clone(field),
                Form::Ints | Form::Codes(_) => Arc::new(Field::new(field.name(), DataType::Int64, field.is_nullable())),
            }
        };
        let fields: Vec<_> = projection.iter().zip(&forms).map(field).collect();
        let batch_rows_max = batch_rows_max(&version, &projection);

        Arc::new(TableScan {
            projection,
            forms,
            schema: Arc::new(arrow_schema::Schema::new(fields)),
            predicates,
            dynamic: request.dynamic,
            batch_rows: request.batch_rows.clamp(1, ROW_GROUP_ROWS).min(batch_rows_max),
            morsels,
            morsel_next: AtomicUsize::new(0),
            rows_left: request.limit,
            plans: version.row_groups.iter().map(|_| OnceLock::new()).collect(),
            metrics: Mutex::new(ScanMetrics {
                row_groups: version.row_groups.len() as u64,
                columns: vec![ColumnAccess::default(); columns],
                ..ScanMetrics::default()
            }),
            paced: Mutex::default(),
            version,
        })
    }

    pub fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    pub fn version(&self) -> &Arc<TableVersion> {
        &self.version
    }

    /// One of any number of readers, for one thread each; together they see every row once.
    pub fn reader(self: &Arc<Self>) -> ScanReader {
        self.metrics.lock().readers += 1;
        ScanReader {
            scan: Arc::clone(self),
            work: None,
            held: None,
            is_delta: false,
            dynamic: Dynamic { generation: None, predicates: Vec::new() },
            tally: Tally::default(),
            bytes_read: 0,
            batch_end: None,
        }
    }

    pub fn metrics(&self) -> ScanMetrics {
        self.metrics.lock().clone()
    }

    /// What pacing accounted to it so far, by tablespace and purpose.
    pub fn paced(&self) -> Vec<(String, Purpose, PacingCounters)> {
        let paced = self.paced.lock();
        paced.iter().map(|paced| (paced.tablespace.clone(), paced.purpose, paced.totals.get())).collect()
    }

    /// Accounts to it what finding its rows came to.
    pub(crate) fn add_lookup(&self, index: TableId, space: &Tablespace, found: &Found) {
        let bytes = found.used.touched.bytes_read();
        if space.pacer().is_some() {
            add_paced(&mut self.paced.lock(), space.name(), Purpose::Index, &found.paced);
        }
        let mut metrics = self.metrics.lock();
        metrics.index = Some((index, found.used));
        let (tablespace, stall_ns) = (space.name().to_owned(), found.paced.stall_ns);
        let read = TablespaceRead { tablespace, bytes, stall_ns, ..TablespaceRead::default() };
        read.add_to(&mut metrics.tablespaces);
    }

    fn rows_left(&self) -> usize {
        self.rows_left.as_ref().map_or(usize::MAX, |left| left.load(Ordering::Relaxed))
    }

    /// Takes up to `wanted` rows of what the limit leaves.
    fn claim(&self, wanted: usize) -> usize {
        let Some(rows_left) = &self.rows_left else { return wanted };
        let less = |left: usize| Some(left.saturating_sub(wanted));
        let left = rows_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        wanted.min(left.unwrap_or_else(|left| left))
    }
}

fn plan_group(predicates: &[Predicate], group: &RowGroup) -> Result<GroupPlan> {
    let mut plan = GroupPlan { skip: false, tests: Vec::new() };
    // All exclusions before any work on dictionaries.
    for predicate in predicates {
        if predicate.excludes(group.segments()[predicate.column].statistics()?, group.rows()) {
            plan.skip = true;
            return Ok(plan);
        }
    }
    for predicate in predicates {
        let segment = group.segments()[predicate.column].sound()?;
        let has_nulls = segment.statistics().null_count > 0;
        let test = SegmentTest::new(
            predicate,
            segment.statistics(),
            segment.payload(),
            segment.blob(),
            segment.rows(),
            segment.logical(),
        )?;
        match test {
            SegmentTest::None if !(has_nulls && predicate.null_passes) => {
                plan.skip = true;
                return Ok(plan);
            }
            SegmentTest::All if !has_nulls || predicate.null_passes => {}
            test => plan.tests.push(GroupTest { column: predicate.column, test, null_passes: predicate.null_passes }),
        }
    }
    if !merge_ranges(&mut plan.tests) {
        plan.skip = true;
        return Ok(plan);
    }
    plan.tests.sort_by_key(|test| {
        // All of them were sound above.
        let segment = group.segments()[test.column].sound().ok();
        segment.map(|segment| {
            (test.test.cost(segment.payload()), test.test.passing_permille(segment.statistics(), segment.payload()))
        })
    });
    Ok(plan)
}

/// Makes one range of several on one column: `between` is two conditions. False when nothing is in all of them.
fn merge_ranges(tests: &mut Vec<GroupTest>) -> bool {
    let mut merged: Vec<GroupTest> = Vec::with_capacity(tests.len());
    for test in tests.drain(..) {
        let earlier = merged.iter_mut().find_map(|earlier| match (&mut earlier.test, &test.test) {
            (
                SegmentTest::Packed(IntTest::Within { lower, upper }),
                SegmentTest::Packed(IntTest::Within { lower: other_lower, upper: other_upper }),
            ) if earlier.column == test.column && !earlier.null_passes && !test.null_passes => {
                *lower = (*lower).max(*other_lower);
                *upper = (*upper).min(*other_upper);
                Some(*lower <= *upper)
            }
            _ => None,
        });
        match earlier {
            Some(true) => {}
            Some(false) => return false,
            None => merged.push(test),
        }
    }
    *tests = merged;
    true
}

/// Dynamic filters as last asked for.
struct Dynamic {
    generation: Option<u64>,
    predicates: Vec<Predicate>,
}

/// What a reader is at.
struct Work {
    source: Source,
    /// Of delta, once they are gathered, places among those.
    rows: Range<usize>,
    picked: Option<Arc<[u32]>>,
    delta: Option<DeltaRows>,
    plan: Option<Arc<GroupPlan>>,
    dynamic_plan: Option<(u64, GroupPlan)>,
    /// Rows that passed and are not handed out yet, ascending.
    selected: Vec<u32>,
    /// By column.
    charged: Vec<Charged>,
}

pub struct ScanReader {
    scan: Arc<TableScan>,
    work: Option<Work>,
    /// Produced after batches that had to leave first.
    held: Option<RecordBatch>,
    /// Whether the latest batch came from delta.
    is_delta: bool,
    dynamic: Dynamic,
    tally: Tally,
    bytes_read: u64,
    /// When the latest batch was handed out.
    batch_end: Option<Instant>,
}

impl ScanReader {
    /// The next batch, or `None` at the end. Never an empty batch.
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        let start = self.batch_end.unwrap_or_else(Instant::now);
        let batch = self.gathered();
        // Within the time that is measured, which stalls are taken off.
        self.tally.pay();
        let end = Instant::now();
        self.batch_end = Some(end);
        self.tally.threads_ns = (end.duration_since(start).as_nanos() as u64).min(WORK_NS_MAX);
        self.bytes_read += self.tally.flush(&self.scan.metrics, &self.scan.paced);
        batch
    }

    /// Bytes of main and delta that were read since it was last asked.
    pub fn take_bytes_read(&mut self) -> u64 {
        std::mem::take(&mut self.bytes_read)
    }

    /// Single-row inserts leave many small chunks: their rows leave together.
    fn gathered(&mut self) -> Result<Option<RecordBatch>> {
        let (mut small, mut rows) = (Vec::new(), 0);
        while rows < self.scan.batch_rows / 2 || small.is_empty() {
            let next = match self.held.take() {
                Some(batch) => Some(batch),
                None => self.advance()?,
            };
            let Some(batch) = next else { break };
            if !self.is_delta || batch.num_rows() >= SMALL_ROWS || rows + batch.num_rows() > self.scan.batch_rows {
                if small.is_empty() {
                    return Ok(Some(batch));
                }
                self.held = Some(batch);
                break;
            }
            rows += batch.num_rows();
            small.push(batch);
        }
        match small.len() {
            0 | 1 => Ok(small.pop()),
            _ if self.scan.projection.is_empty() => {
                let options = RecordBatchOptions::new().with_row_count(Some(rows));
                RecordBatch::try_new_with_options(self.scan.schema(), Vec::new(), &options).map(Some).map_err(unfit)
            }
            _ => concat_batches(&self.scan.schema, &small).map(Some).map_err(unfit),
        }
    }

    fn advance(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if self.scan.rows_left() == 0 {
                self.work = None;
                return Ok(None);
            }
            let Some(mut work) = self.work.take() else {
                if !self.next_morsel()? {
                    return Ok(None);
                }
                continue;
            };
            self.is_delta = matches!(work.source, Source::Delta { .. });
            let batch = self.step(&mut work)?;
            if !work.rows.is_empty() || !work.selected.is_empty() {
                self.work = Some(work);
            }
            if let Some(batch) = batch {
                let rows = self.scan.claim(batch.num_rows());
                if rows > 0 {
                    self.tally.rows_produced += rows as u64;
                    return Ok(Some(if rows < batch.num_rows() { batch.slice(0, rows) } else { batch }));
                }
            }
        }
    }

    /// Takes the next morsel that may have rows. False at the end.
    fn next_morsel(&mut self) -> Result<bool> {
        let scan = Arc::clone(&self.scan);
        let predicates = scan.predicates.as_ref().map_err(Clone::clone)?;
        loop {
            let Some(morsel) = scan.morsels.get(scan.morsel_next.fetch_add(1, Ordering::Relaxed)) else {
                return Ok(false);
            };
            let plan = match &morsel.source {
                Source::Main { group, index, .. } => {
                    let plan = scan.plans[*index].get_or_init(|| plan_group(predicates, group).map(Arc::new));
                    let plan = plan.as_ref().map_err(Clone::clone)?;
                    if plan.skip {
                        // Counted once, though every morsel of the row group is passed over.
                        self.tally.row_groups_skipped += u64::from(morsel.rows.start == 0);
                        continue;
                    }
                    Some(Arc::clone(plan))
                }
                Source::Delta { .. } => None,
            };
            self.work = Some(Work {
                source: morsel.source.clone(),
                rows: morsel.rows.clone(),
                picked: morsel.picked.clone(),
                delta: None,
                plan,
                dynamic_plan: None,
                selected: Vec::new(),
                charged: vec![Charged::default(); scan.version.def.columns.len()],
            });
            return Ok(true);
        }
    }

    /// Asks for dynamic filters if there are newer ones.
    fn refresh_dynamic(&mut self) -> Result<()> {
        let Some(source) = &self.scan.dynamic else { return Ok(()) };
        let generation = source.generation();
        if self.dynamic.generation == Some(generation) {
            return Ok(());
        }
        let columns = &self.scan.version.def.columns;
        self.dynamic.predicates = (source.filters().iter())
            .filter(|filter| filter.column() < columns.len())
            .map(|filter| Predicate::new(filter, Logical::of(&crate::arrow_type(columns[filter.column()].sql_type))?))
            .collect::<Result<Vec<_>>>()?;
        self.dynamic.generation = Some(generation);
        Ok(())
    }

    /// Goes on with a morsel until a batch is full or the morsel ends.
    fn step(&mut self, work: &mut Work) -> Result<Option<RecordBatch>> {
        // No more is decoded than the limit leaves.
        let batch_rows = self.scan.batch_rows.min(self.scan.rows_left().max(1));
        let window_rows = self.scan.batch_rows.next_multiple_of(BLOCK);
        if let (Source::Delta { range }, None) = (&work.source, &work.delta) {
            self.refresh_dynamic()?;
            let delta = self.gather_delta(*range, work.rows.clone(), work.picked.take().as_deref())?;
            work.rows = 0..delta.ids.len();
            work.delta = Some(delta);
        }
        while work.selected.len() < batch_rows && !work.rows.is_empty() {
            self.refresh_dynamic()?;
            let source = work.source.clone();
            let (static_tests, delta_predicates): (usize, usize) = match &source {
                Source::Main { group, .. } => {
                    if let Some(generation) = self.dynamic.generation
                        && work.dynamic_plan.as_ref().is_none_or(|(known, _)| *known != generation)
                    {
                        let plan = plan_group(&self.dynamic.predicates, group)?;
                        if plan.skip {
                            self.tally.row_groups_skipped += u64::from(work.rows.start == 0);
                            work.rows = 0..0;
                            work.selected.clear();
                            return Ok(None);
                        }
                        work.dynamic_plan = Some((generation, plan));
                    }
                    let dynamic = work.dynamic_plan.as_ref().map_or(0, |(_, plan)| plan.tests.len());
                    (work.plan.as_ref().map_or(0, |plan| plan.tests.len()) + dynamic, 0)
                }
                Source::Delta { .. } => {
                    let predicates = self.scan.predicates.as_ref().map_or(0, Vec::len);
                    (0, predicates + self.dynamic.predicates.len())
                }
            };
            let hides = match &source {
                Source::Main { range, .. } => work.picked.is_none() && !self.range(*range)?.is_whole(),
                Source::Delta { .. } => false,
            };
            if !hides && work.picked.is_none() && static_tests + delta_predicates == 0 && work.selected.is_empty() {
                let end = work.rows.end.min(work.rows.start + batch_rows);
                let rows = std::mem::replace(&mut work.rows.start, end)..end;
                self.tally.rows_scanned += rows.len() as u64;
                return self.produce(work, Rows::Range(rows)).map(Some);
            }
            if let Some(picked) = &work.picked {
                let next = picked.partition_point(|position| (*position as usize) < work.rows.start);
                let Some(position) = picked.get(next) else {
                    work.rows = 0..0;
                    continue;
                };
                work.rows.start = *position as usize / BLOCK * BLOCK;
            }
            let window_rows = if work.picked.is_some() { BLOCK } else { window_rows };
            // Windows start at a block: morsels do, and an unfiltered stretch that ended elsewhere catches up here.
            let end = work.rows.end.min((work.rows.start / BLOCK * BLOCK) + window_rows);
            let window = std::mem::replace(&mut work.rows.start, end)..end;
            self.tally.rows_scanned += window.len() as u64;
            let aligned = window.start / BLOCK * BLOCK..window.end;
            let mut words = bits::ones(aligned.len());
            bits::clear(&mut words, 0, window.start - aligned.start);
            if let Some(picked) = &work.picked {
                words.fill(0);
                let from = picked.partition_point(|position| (*position as usize) < window.start);
                for position in picked[from..].iter().take_while(|position| (**position as usize) < window.end) {
                    let bit = *position as usize - aligned.start;
                    words[bit / 64] |= 1 << (bit % 64);
                }
            }
            match &source {
                Source::Main { range, group, .. } => {
                    if hides {
                        self.range(*range)?.and_shown(aligned.start / 64, &mut words);
                    }
                    self.test_main(group, work, aligned.clone(), &mut words)?;
                }
                Source::Delta { .. } => {
                    if let Some(delta) = &work.delta {
                        self.test_delta(delta, aligned.clone(), &mut words)?;
                    }
                }
            }
            let passed = bits::count(&words);
            if passed == window.len() && work.selected.is_empty() && passed <= batch_rows {
                return self.produce(work, Rows::Range(window)).map(Some);
            }
            work.selected.reserve(passed);
            bits::positions(&words, aligned.start as u32, &mut work.selected);
        }
        if work.selected.is_empty() {
            return Ok(None);
        }
        let rest = work.selected.split_off(work.selected.len().min(batch_rows));
        let rows = std::mem::replace(&mut work.selected, rest);
        self.produce(work, Rows::List(&rows)).map(Some)
    }

    fn test_main(&mut self, group: &RowGroup, work: &mut Work, rows: Range<usize>, words: &mut [u64]) -> Result<()> {
        let dynamic = work.dynamic_plan.as_ref().map(|(_, plan)| plan);
        let mut tests = work.plan.as_deref().into_iter().chain(dynamic).flat_map(|plan| &plan.tests).peekable();
        let (mut is_first, last_block, window_blocks) = (true, (work.rows.end - 1) / BLOCK, rows.len().div_ceil(BLOCK));
        while let Some(test) = tests.next() {
            // Only blocks with a row left are read.
            let first = rows.start / BLOCK;
            let blocks = words.chunks(BLOCK / 64).zip(0..).filter(|(block, _)| block.iter().any(|word| *word != 0));
            let block_rows = |index: usize| BLOCK.min(rows.len() - index * BLOCK);
            let mut blocks = blocks.map(|(_, index)| (first + index, block_rows(index))).peekable();
            if blocks.peek().is_none() {
                return Ok(());
            }
            let segment = group.segments()[test.column].sound()?;
            segment.about_to_read(rows.clone());
            self.tally.blocks(test.column, segment, blocks, &mut work.charged[test.column]);
            // What the next test will read of a block is asked for as soon as the block is known to have rows for it, and what the first one will
            // read in the next window: processors do not guess the way from column to column. Nothing is asked for that is not read.
            let next = tests.peek().filter(|next| next.column != test.column);
            let next = next.map(|next| group.segments()[next.column].sound()).transpose()?;
            let goes_on = std::mem::take(&mut is_first) && work.picked.is_none();
            let mut ahead = |block: usize, left: &[u64]| {
                if goes_on && block + window_blocks <= last_block {
                    segment.payload().prefetch(segment.blob(), block + window_blocks);
                }
                if let Some(next) = next
                    && left.iter().any(|word| *word != 0)
                {
                    next.payload().prefetch(next.blob(), block);
                }
            };
            test.test.and_rows(
                segment.payload(),
                segment.validity(),
                segment.blob(),
                segment.logical(),
                rows.clone(),
                test.null_passes,
                words,
                &mut ahead,
            )?;
        }
        Ok(())
    }

    fn range(&self, number: u64) -> Result<RangeView<'_>> {
        self.scan.version.range(number).ok_or_else(|| Error::internal("a scan's range is gone"))
    }

    /// Rows at some positions of a range that are in versions, with the columns that are produced or tested.
    fn gather_delta(&mut self, number: u64, positions: Range<usize>, picked: Option<&[u32]>) -> Result<DeltaRows> {
        let scan = Arc::clone(&self.scan);
        let range = scan.version.range(number).ok_or_else(|| Error::internal("a scan's range is gone"))?;
        let mut versions = Vec::new();
        match picked {
            Some(picked) => range.images(picked, &mut versions),
            None => range.windows(positions.start / 64..positions.end.div_ceil(64), &mut versions),
        }
        let images: Vec<&[u8]> = versions.iter().map(|(_, image)| *image).collect();
        let count = scan.version.def.columns.len();
        let mut columns = vec![None; count];
        let predicates = scan.predicates.as_ref().map_err(Clone::clone)?;
        let tested = predicates.iter().chain(&self.dynamic.predicates).map(|predicate| predicate.column);
        let mut wanted: Vec<usize> = tested.chain(scan.projection.iter().copied()).filter(|c| *c < count).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let tablespace = scan.version.rows().memory().tablespace();
        self.tally.versions(tablespace, &images, &wanted);
        self.tally.read(tablespace).delta_rows += images.len() as u64;
        if !images.is_empty() {
            let value_bytes = |column: &usize| -> Result<f64> {
                Ok(Logical::of(&crate::arrow_type(scan.version.def.columns[*column].sql_type))?.value_bytes())
            };
            let row_bytes = wanted.iter().map(value_bytes).sum::<Result<f64>>()?;
            self.tally.read(tablespace).decoded_bytes += (row_bytes * images.len() as f64) as u64;
        }
        let decoded = scan.version.rows().layout().decode(&images, &wanted)?;
        for (column, array) in wanted.into_iter().zip(decoded) {
            columns[column] = Some(array);
        }
        let ids = versions.iter().map(|(position, _)| RowId::new(number, *position as usize).0).collect();
        Ok(DeltaRows { columns, ids })
    }

    fn test_delta(&mut self, delta: &DeltaRows, rows: Range<usize>, words: &mut [u64]) -> Result<()> {
        let scan = Arc::clone(&self.scan);
        let predicates = scan.predicates.as_ref().map_err(Clone::clone)?;
        for predicate in predicates.iter().chain(&self.dynamic.predicates) {
            let selected = bits::count(words);
            if selected == 0 {
                return Ok(());
            }
            // Learnt since they were gathered, and of another column: whoever learnt it tests it as well.
            let Some(array) = &delta.columns[predicate.column] else { continue };
            self.tally.column(predicate.column).rows += rows.len() as u64;
            if selected == rows.len() {
                predicate.and_array(&array.slice(rows.start, rows.len()), words)?;
                continue;
            }
            // A function must not see rows that other filters have put aside: it may fail on them.
            let mut list = Vec::with_capacity(selected);
            bits::positions(words, rows.start as u32, &mut list);
            let array = take(array, &list)?;
            let mut passed = bits::ones(list.len());
            predicate.and_array(&array, &mut passed)?;
            words.fill(0);
            for (i, row) in list.iter().enumerate() {
                let bit = *row as usize - rows.start;
                words[bit / 64] |= (passed[i / 64] >> (i % 64) & 1) << (bit % 64);
            }
        }
        Ok(())
    }

    /// Decodes the projected columns of some rows.
    fn produce(&mut self, work: &mut Work, rows: Rows<'_>) -> Result<RecordBatch> {
        let scan = Arc::clone(&self.scan);
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(scan.projection.len());
        let ids_column = scan.version.def.columns.len();
        for (column, form) in scan.projection.iter().zip(&scan.forms) {
            let array = match (&work.source, &work.delta) {
                (Source::Main { range, .. }, _) if *column == ids_column => ids_of(*range, &rows),
                (Source::Main { group, index, .. }, _) => {
                    let segment = group.segments()[*column].sound()?;
                    if let Some(rows) = rows.dense() {
                        segment.about_to_read(rows);
                    }
                    self.tally.rows(*column, segment, &rows, &mut work.charged[*column]);
                    self.tally.read(segment.tablespace()).decoded_bytes += decoded_bytes(segment, form, rows.len());
                    match form {
                        Form::Arrow => segment.gather(&rows)?,
                        Form::Ints => segment.gather_ints(&rows)?,
                        Form::Codes(dictionary) => segment.gather_codes(&rows, dictionary.map(*index)?)?,
                    }
                }
                (Source::Delta { .. }, Some(delta)) if *column == ids_column => {
                    let ids: UInt64Array = match &rows {
                        Rows::Range(range) => delta.ids[range.clone()].to_vec().into(),
                        Rows::List(rows) => rows.iter().map(|row| delta.ids[*row as usize]).collect::<Vec<_>>().into(),
                    };
                    Arc::new(ids)
                }
                (Source::Delta { .. }, delta) => {
                    let array = delta.as_ref().and_then(|delta| delta.columns[*column].as_ref());
                    let array = array.ok_or_else(|| Error::internal("rows of delta were not gathered"))?;
                    self.tally.column(*column).rows += rows.len() as u64;
                    let array = match &rows {
                        Rows::Range(range) => array.slice(range.start, range.len()),
                        Rows::List(rows) => take(array, rows)?,
                    };
                    match form {
                        Form::Arrow => array,
                        Form::Ints => ints_of(&array)?,
                        Form::Codes(dictionary) => dictionary.codes_of(&array)?,
                    }
                }
            };
            columns.push(array);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        RecordBatch::try_new_with_options(scan.schema(), columns, &options).map_err(unfit)
    }
}

fn unfit(error: ArrowError) -> Error {
    Error::internal(format!("a scan's columns do not fit its schema: {error}"))
}

/// Bytes that are written to decode some rows: text in place costs its views alone.
fn decoded_bytes(segment: &Opened, form: &Form, rows: usize) -> u64 {
    let each = match segment.payload() {
        _ if !matches!(form, Form::Arrow) => size_of::<i64>() as f64,
        Payload::Fsst(_) | Payload::Uuids(_) => segment.statistics().value_bytes_avg,
        _ => segment.logical().value_bytes(),
    };
    (each * rows as f64) as u64
}

fn ids_of(range: u64, rows: &Rows<'_>) -> ArrayRef {
    let id = |position: usize| RowId::new(range, position).0;
    let ids: Vec<u64> = match rows {
        Rows::Range(range) => range.clone().map(id).collect(),
        Rows::List(rows) => rows.iter().map(|row| id(*row as usize)).collect(),
    };
    Arc::new(UInt64Array::from(ids))
}

fn take(array: &ArrayRef, rows: &[u32]) -> Result<ArrayRef> {
    arrow_select::take::take(array.as_ref(), &UInt32Array::from(rows.to_vec()), None)
        .map_err(|error| Error::internal(format!("rows of delta could not be taken: {error}")))
}
