//! Programs at work: rows found, given back, written and locked, one by one.

use super::access::Ranges;
use super::aggregate::Groups;
use super::compile::{Query, SortKey, Source};
use super::datum::Datum;
use super::expr::{Comparison, Context, Expr, Frame, Row};
use super::{Program, RowSink, Target, Work};
use crate::facts::SessionFacts;
use crate::references::Rules;
use arrow::array::{ArrayRef, RecordBatch};
use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::sync::Arc;
use tidepool_base::{Error, Result, RowId, SqlType, round_microseconds};
use tidepool_database::text::single;
use tidepool_database::{
    ChangeWatch, DatabaseVersion, DirectRead, Isolation, LockWait, Locked, RelationName, RowChecks, RowRules,
    Transaction,
};
use tidepool_index::key::KeyBounds;
use tidepool_index::{Counted, Cursor, Direction};
use tidepool_table::rows::{Outcome, RowLock, RowRef};
use tidepool_table::{ColumnFilter, CompareOp, IndexKey, IndexUse, Table, TableDef, TableIndex};
use tidepool_txn::{HeldSnapshot, View};

/// Entries of indexes that a statement goes through, at most: it has a thread that serves others too. Beyond, the general
/// path begins anew.
const ENTRIES_MAX: usize = 4_096;

/// Rows between two looks at whether the statement is to end.
const LOOK_EVERY: usize = 256;

/// What a program needs of its statement.
pub trait Statement: Context {
    fn context(&self) -> &dyn Context;
    fn facts(&self, version: &Arc<DatabaseVersion>) -> Arc<SessionFacts>;
    /// 57014 when it is to end.
    fn check(&self) -> Result<()>;
}

/// What came of running a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ran {
    /// Rows given back or written.
    Done(u64),
    /// It is not for this: nothing was written, and the general path is to begin.
    General,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    On,
    Stop,
    TooMany,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    used: IndexUse,
    main_rows: u64,
    delta_rows: u64,
    delta_bytes: u64,
}

/// What a serializable transaction looked for: in which source, by which keys, whether each of these is one, and with which conditions.
type Looked = (usize, Vec<KeyBounds>, bool, Vec<ColumnFilter>);

/// What a statement sees.
struct Seen {
    version: Arc<DatabaseVersion>,
    tables: Vec<Arc<Table>>,
    indexes: Vec<Arc<TableIndex>>,
}

impl Seen {
    /// `None` where things are not as they were when the program was made.
    fn of(program: &Program, sources: &[Source], version: Arc<DatabaseVersion>) -> Option<Seen> {
        if !version.is_of(&program.state) {
            return None;
        }
        let mut seen = Seen { version, tables: Vec::with_capacity(sources.len()), indexes: Vec::new() };
        for source in sources {
            let table = source.table.upgrade()?;
            let index = table.index(source.access.index)?.clone();
            let view = seen.version.view();
            // A range of an index that is still filled may be most of it.
            let is_usable = index.is_complete_for(view) || source.access.is_point && index.is_ready_for(view);
            is_usable.then_some(())?;
            seen.tables.push(table);
            seen.indexes.push(index);
        }
        Some(seen)
    }
}

struct Scan<'v> {
    sources: &'v [Source],
    seen: &'v Seen,
    parameters: &'v [Datum<'static>],
    statement: &'v dyn Statement,
    visited: Cell<usize>,
    counts: RefCell<Vec<Counts>>,
    /// Of a serializable transaction: what it looked for.
    looked: Option<RefCell<Vec<Looked>>>,
}

type Visit<'a, 'v> = &'a mut dyn FnMut(&[Row<'v>], &[RowId]) -> Result<Flow>;

impl<'v> Scan<'v> {
    fn new(
        sources: &'v [Source],
        seen: &'v Seen,
        parameters: &'v [Datum<'static>],
        statement: &'v dyn Statement,
        isolation: Isolation,
    ) -> Scan<'v> {
        Scan {
            sources,
            seen,
            parameters,
            statement,
            visited: Cell::new(0),
            counts: RefCell::new(vec![Counts::default(); sources.len()]),
            looked: (isolation == Isolation::Serializable).then(RefCell::default),
        }
    }

    fn view(&self) -> &'v View {
        self.seen.version.view()
    }

    fn frame<'f>(&'f self, rows: &'f [Row<'f>]) -> Frame<'f> {
        Frame { parameters: self.parameters, rows, slots: &[], context: self.statement.context() }
    }

    /// Lets `visit` see every combination of rows that meets all conditions.
    fn each(&self, visit: Visit<'_, 'v>) -> Result<Flow> {
        let count = self.sources.len();
        let (mut rows, mut ids) = (vec![Row::None; count], vec![RowId(0); count]);
        self.within(0, &mut rows, &mut ids, visit)
    }

    fn within(
        &self,
        place: usize,
        rows: &mut Vec<Row<'v>>,
        ids: &mut Vec<RowId>,
        visit: Visit<'_, 'v>,
    ) -> Result<Flow> {
        let Some(source) = self.sources.get(place) else { return visit(rows, ids) };
        let (table, index) = (&self.seen.tables[place], &self.seen.indexes[place]);
        let ranges = source.access.ranges(index.codec(), &self.frame(rows))?;
        match ranges {
            Ranges::TooMany => Ok(Flow::TooMany),
            Ranges::Point(key) => {
                let mut counted = Counted::default();
                index.fetch_key(&key)?;
                let found = index.tree().get_counting(self.view(), &key, &mut counted);
                self.count(place, 1, found.len(), counted);
                if let Some(looked) = &self.looked {
                    let bound = std::ops::Bound::Included(key);
                    let range = KeyBounds { lower: bound.clone(), upper: bound };
                    looked.borrow_mut().push((place, vec![range], true, self.filters(place, rows)?));
                }
                for row in found.iter() {
                    match self.row(place, table, *row, None, rows, ids, visit)? {
                        Flow::On => {}
                        end => return Ok(end),
                    }
                }
                Ok(Flow::On)
            }
            Ranges::Points(keys) => {
                let mut made = IndexKey::default();
                let mut counted = Counted::default();
                let (mut entries, mut flow) = (0, Flow::On);
                'keys: for key in &keys {
                    index.fetch_key(key)?;
                    let found = index.tree().get_counting(self.view(), key, &mut counted);
                    entries += found.len();
                    for row in found.iter() {
                        // Versions of one row may have several of the keys: the one that is seen counts.
                        flow = self.row(place, table, *row, Some((index, key, &mut made)), rows, ids, visit)?;
                        if flow != Flow::On {
                            break 'keys;
                        }
                    }
                }
                self.count(place, keys.len() as u64, entries, counted);
                if let Some(looked) = &self.looked {
                    let range = |key: Vec<u8>| {
                        let bound = std::ops::Bound::Included(key);
                        KeyBounds { lower: bound.clone(), upper: bound }
                    };
                    let ranges = keys.into_iter().map(range).collect();
                    looked.borrow_mut().push((place, ranges, true, self.filters(place, rows)?));
                }
                Ok(flow)
            }
            Ranges::Several(ranges) => {
                let direction = if source.access.backward { Direction::Backward } else { Direction::Forward };
                let mut key = IndexKey::default();
                let mut flow = Flow::On;
                for range in &ranges {
                    let mut cursor = Cursor::counting(range.range(), direction);
                    let mut entries = 0;
                    while flow == Flow::On
                        && let Some((entry, row)) = cursor.next(index.tree(), self.view())
                    {
                        entries += 1;
                        flow = self.row(place, table, row, Some((index, entry, &mut key)), rows, ids, visit)?;
                    }
                    self.count(place, 1, entries, cursor.counted());
                    if flow != Flow::On {
                        break;
                    }
                }
                if let Some(looked) = &self.looked {
                    looked.borrow_mut().push((place, ranges, false, self.filters(place, rows)?));
                }
                Ok(flow)
            }
        }
    }

    fn count(&self, place: usize, lookups: u64, entries: usize, counted: Counted) {
        self.counts.borrow_mut()[place].used += IndexUse { lookups, entries: entries as u64, touched: counted.touched };
    }

    /// Conditions on single columns that rows of a source have to meet, as far as they are known.
    fn filters(&self, place: usize, rows: &[Row<'v>]) -> Result<Vec<ColumnFilter>> {
        let frame = self.frame(rows);
        let mut filters = Vec::new();
        for condition in &self.sources[place].conditions {
            match condition {
                Expr::Compare { op, of } => {
                    let [left, right] = of.as_ref();
                    for (side, other, op) in [(left, right, *op), (right, left, op.swapped())] {
                        if let Expr::Column { table, column } = side
                            && *table == place
                            && other.tables() <= place
                        {
                            let value = other.evaluate(&frame)?;
                            let op = compare_op(op);
                            if value.is_null() {
                                filters.push(ColumnFilter::In { column: *column, values: Vec::new() });
                            } else if let Some(value) = stored_datum(&value, self.sources[place].types[*column]) {
                                filters.push(ColumnFilter::Compare { column: *column, op, value });
                            }
                        }
                    }
                }
                Expr::IsNull { of, negated } => {
                    if let Expr::Column { table, column } = of.as_ref()
                        && *table == place
                    {
                        filters.push(match negated {
                            true => ColumnFilter::IsNotNull { column: *column },
                            false => ColumnFilter::IsNull { column: *column },
                        });
                    }
                }
                _ => {}
            }
        }
        Ok(filters)
    }

    /// One candidate. Several versions of a row may have entries in a range: the one that is seen counts.
    #[expect(clippy::too_many_arguments, reason = "the state of a walk")]
    fn row(
        &self,
        place: usize,
        table: &'v Arc<Table>,
        id: RowId,
        entry: Option<(&TableIndex, &[u8], &mut IndexKey)>,
        rows: &mut Vec<Row<'v>>,
        ids: &mut Vec<RowId>,
        visit: Visit<'_, 'v>,
    ) -> Result<Flow> {
        let visited = self.visited.get() + 1;
        self.visited.set(visited);
        if visited > ENTRIES_MAX {
            return Ok(Flow::TooMany);
        }
        if visited.is_multiple_of(LOOK_EVERY) {
            self.statement.check()?;
        }
        let Some(row) = table.rows.read(self.view(), id) else { return Ok(Flow::On) };
        if let Some((index, entry, key)) = entry {
            index.key_of(&table.rows, row, key)?;
            if key.bytes() != entry {
                return Ok(Flow::On);
            }
        }
        {
            let mut counts = self.counts.borrow_mut();
            match row {
                RowRef::Version(image) => {
                    counts[place].delta_rows += 1;
                    counts[place].delta_bytes += image.len() as u64;
                }
                RowRef::Main { .. } => counts[place].main_rows += 1,
            }
        }
        rows[place] = stored(table, &self.sources[place].types, row);
        ids[place] = id;
        for condition in &self.sources[place].conditions {
            if !condition.holds(&self.frame(rows))? {
                return Ok(Flow::On);
            }
        }
        self.within(place + 1, rows, ids, visit)
    }

    /// Tells what was read, when all is over.
    fn told(self, transaction: &mut Transaction) -> Told {
        if let Some(looked) = self.looked {
            for (place, ranges, is_point, filters) in looked.into_inner() {
                let (table, index) = (&self.seen.tables[place], &self.seen.indexes[place]);
                transaction.read_through(table, index, ranges, is_point, &filters);
            }
        }
        Told { counts: self.counts.into_inner() }
    }
}

fn compare_op(op: Comparison) -> CompareOp {
    match op {
        Comparison::Equal => CompareOp::Eq,
        Comparison::NotEqual => CompareOp::Ne,
        Comparison::Less => CompareOp::Lt,
        Comparison::LessOrEqual => CompareOp::Le,
        Comparison::Greater => CompareOp::Gt,
        Comparison::GreaterOrEqual => CompareOp::Ge,
    }
}

/// A value as a condition of the storage on a column of this type has it; `None` where no column of the type has the value.
fn stored_datum(value: &Datum<'_>, sql_type: SqlType) -> Option<tidepool_table::Datum> {
    value.to_key(sql_type)?;
    Some(match value {
        Datum::Boolean(value) => tidepool_table::Datum::Boolean(*value),
        Datum::Int(value) => tidepool_table::Datum::Int(*value),
        Datum::Numeric(value) => tidepool_table::Datum::Decimal(*value),
        Datum::Text(text) => tidepool_table::Datum::Text(text.clone().into_owned()),
        Datum::Bytes(bytes) => tidepool_table::Datum::Bytes(bytes.clone().into_owned()),
        _ => return None,
    })
}

fn stored<'v>(table: &'v Table, types: &'v [SqlType], row: RowRef<'v>) -> Row<'v> {
    Row::Stored { layout: table.rows.layout(), types, row }
}

/// What was read of each source.
pub struct Told {
    counts: Vec<Counts>,
}

impl Told {
    fn add(&mut self, other: &Told) {
        for (counts, more) in self.counts.iter_mut().zip(&other.counts) {
            counts.used += more.used;
            counts.main_rows += more.main_rows;
            counts.delta_rows += more.delta_rows;
            counts.delta_bytes += more.delta_bytes;
        }
    }

    pub fn record(&self, program: &Program, log: &tidepool_database::AccessLog, elapsed: std::time::Duration) {
        let reads: Vec<DirectRead<'_>> = (program.sources().iter().zip(&self.counts))
            .map(|(source, counts)| DirectRead {
                table: source.id,
                columns: &source.reads,
                main_rows: counts.main_rows,
                delta_rows: counts.delta_rows,
                delta_bytes: counts.delta_bytes,
                index: source.access.index,
                used: counts.used,
            })
            .collect();
        log.add_direct(&reads, elapsed);
    }
}

/// How many rows are passed over, and how many are given back at most. `None`: the general path says what is wrong.
fn limits(query: &Query, parameters: &[Datum<'static>], statement: &dyn Statement) -> Result<Option<(u64, u64)>> {
    let frame = Frame { parameters, rows: &[], slots: &[], context: statement.context() };
    let count = |expr: &Option<Expr>, all: u64| -> Result<Option<u64>> {
        Ok(match expr.as_ref().map(|expr| expr.evaluate(&frame)).transpose()? {
            None | Some(Datum::Null) => Some(all),
            Some(Datum::Int(count)) => u64::try_from(count).ok(),
            Some(_) => None,
        })
    };
    let (Some(skip), Some(fetch)) = (count(&query.skip, 0)?, count(&query.fetch, u64::MAX)?) else { return Ok(None) };
    Ok(Some((skip, fetch)))
}

fn outputs<'f>(query: &'f Query, frame: &Frame<'f>) -> Result<Vec<Datum<'f>>> {
    let value = |output: &'f Option<Expr>| match output {
        Some(expr) => expr.evaluate(frame),
        None => Err(Error::internal("an output that there is no form for")),
    };
    query.outputs.iter().map(value).collect()
}

/// Rows put in order.
struct Sorted<'q> {
    keys: &'q [SortKey],
    rows: Vec<(Vec<Datum<'static>>, Vec<Datum<'static>>, RowId)>,
}

impl Sorted<'_> {
    fn in_order(mut self) -> Vec<(Vec<Datum<'static>>, RowId)> {
        let keys = self.keys;
        self.rows.sort_by(|(left, ..), (right, ..)| {
            let each = keys.iter().zip(left.iter().zip(right)).map(|(key, (left, right))| {
                match (left.is_null(), right.is_null()) {
                    (true, true) => Ordering::Equal,
                    (true, false) if key.nulls_first => Ordering::Less,
                    (true, false) => Ordering::Greater,
                    (false, true) if key.nulls_first => Ordering::Greater,
                    (false, true) => Ordering::Less,
                    (false, false) if key.descending => right.order(left),
                    (false, false) => left.order(right),
                }
            });
            each.fold(Ordering::Equal, Ordering::then)
        });
        self.rows.into_iter().map(|(_, outputs, row)| (outputs, row)).collect()
    }
}

/// A program on its way.
pub struct Run<'r> {
    pub program: &'r Program,
    pub parameters: &'r [Datum<'static>],
    pub statement: &'r dyn Statement,
    pub sink: &'r mut dyn RowSink,
}

impl Run<'_> {
    /// Within a transaction, whose running statement it is, over what that sees. On an error, and where it is for the general path, what it wrote is still to be
    /// undone.
    pub fn run(&mut self, transaction: &mut Transaction, version: Arc<DatabaseVersion>) -> Result<(Ran, Option<Told>)> {
        let program = self.program;
        let Some(seen) = Seen::of(program, program.sources(), version) else { return Ok((Ran::General, None)) };
        let ran = match &program.work {
            Work::Select(query) => self.select(query, &seen, transaction),
            Work::Lock { query, lock, wait } => self.lock(query, *lock, *wait, &seen, transaction),
            Work::Insert { target, rows } => self.insert(target, rows, &seen, transaction),
            Work::Update { query, target } => self.change(query, target, true, &seen, transaction),
            Work::Delete { query, target } => self.change(query, target, false, &seen, transaction),
        }?;
        if program.writes() && matches!(ran.0, Ran::Done(_)) {
            transaction.check_references(&LazyRules { statement: self.statement, version: &seen.version })?;
        }
        Ok(ran)
    }

    fn select(&mut self, query: &Query, seen: &Seen, transaction: &mut Transaction) -> Result<(Ran, Option<Told>)> {
        let Some((mut skip, fetch)) = limits(query, self.parameters, self.statement)? else {
            return Ok((Ran::General, None));
        };
        let scan = Scan::new(&query.sources, seen, self.parameters, self.statement, transaction.isolation());
        let sink = &mut *self.sink;
        let mut count = 0;
        let mut groups = query.aggregate.as_ref().map(|all| match query.groups.is_empty() {
            true => Groups::of_all(all),
            false => Groups::default(),
        });
        let mut sorted = (!query.sort.is_empty()).then(|| Sorted { keys: &query.sort, rows: Vec::new() });
        let flow = if fetch == 0 {
            Flow::Stop
        } else {
            scan.each(&mut |rows, _| {
                let frame = scan.frame(rows);
                if let (Some(groups), Some(aggregates)) = (&mut groups, &query.aggregate) {
                    groups.add(&query.groups, aggregates, &frame)?;
                    return Ok(Flow::On);
                }
                if let Some(sorted) = &mut sorted {
                    let keys = query.sort.iter().map(|key| Ok(key.expr.evaluate(&frame)?.into_owned()));
                    let keys = keys.collect::<Result<Vec<_>>>()?;
                    let outputs = outputs(query, &frame)?.into_iter().map(Datum::into_owned).collect();
                    sorted.rows.push((keys, outputs, RowId(0)));
                    return Ok(Flow::On);
                }
                if skip > 0 {
                    skip -= 1;
                    return Ok(Flow::On);
                }
                if sink.is_full() {
                    return Ok(Flow::TooMany);
                }
                sink.row(&outputs(query, &frame)?)?;
                count += 1;
                Ok(if count == fetch { Flow::Stop } else { Flow::On })
            })?
        };
        let told = scan.told(transaction);
        if flow == Flow::TooMany {
            self.program.found_too_many();
            return Ok((Ran::General, None));
        }
        if let (Some(groups), Some(aggregates)) = (groups, &query.aggregate) {
            let Some(groups) = groups.end(aggregates)? else { return Ok((Ran::General, None)) };
            for slots in &groups {
                let frame = Frame { parameters: self.parameters, rows: &[], slots, context: self.statement.context() };
                if let Some(sorted) = &mut sorted {
                    let keys = query.sort.iter().map(|key| Ok(key.expr.evaluate(&frame)?.into_owned()));
                    let keys = keys.collect::<Result<Vec<_>>>()?;
                    let outputs = outputs(query, &frame)?.into_iter().map(Datum::into_owned).collect();
                    sorted.rows.push((keys, outputs, RowId(0)));
                } else if skip > 0 {
                    skip -= 1;
                } else if count < fetch {
                    sink.row(&outputs(query, &frame)?)?;
                    count += 1;
                }
            }
        }
        if let Some(sorted) = sorted {
            for (outputs, _) in sorted.in_order() {
                if skip > 0 {
                    skip -= 1;
                    continue;
                }
                if count == fetch {
                    break;
                }
                sink.row(&outputs)?;
                count += 1;
            }
        }
        Ok((Ran::Done(count), Some(told)))
    }

    /// The rows that a statement is to write or lock, in order; of those that come in order from the `passed`th on so many that there
    /// are `wanted`. `None`: too many.
    fn found(
        &self,
        query: &Query,
        seen: &Seen,
        transaction: &mut Transaction,
        passed: u64,
        wanted: u64,
    ) -> Result<Option<(Vec<RowId>, Told)>> {
        let scan = Scan::new(&query.sources, seen, self.parameters, self.statement, transaction.isolation());
        let mut found = Vec::new();
        let mut pass = passed;
        let mut sorted = (!query.sort.is_empty()).then(|| Sorted { keys: &query.sort, rows: Vec::new() });
        let flow = scan.each(&mut |rows, ids| {
            match &mut sorted {
                None if pass > 0 => pass -= 1,
                None => {
                    found.push(ids[0]);
                    if found.len() as u64 == wanted {
                        return Ok(Flow::Stop);
                    }
                }
                Some(sorted) => {
                    let frame = scan.frame(rows);
                    let keys = query.sort.iter().map(|key| Ok(key.expr.evaluate(&frame)?.into_owned()));
                    sorted.rows.push((keys.collect::<Result<Vec<_>>>()?, Vec::new(), ids[0]));
                }
            }
            Ok(Flow::On)
        })?;
        let told = scan.told(transaction);
        if flow == Flow::TooMany {
            self.program.found_too_many();
            return Ok(None);
        }
        if let Some(sorted) = sorted {
            found.extend(sorted.in_order().into_iter().map(|(_, row)| row).skip(passed as usize));
        }
        Ok(Some((found, told)))
    }

    /// The table that a statement writes to, or locks rows of, its lock shared. `None` where it is not the one that was seen.
    fn table(
        &self,
        name: &RelationName,
        seen: &Arc<Table>,
        transaction: &mut Transaction,
    ) -> Result<Option<Arc<Table>>> {
        let table = transaction.table_to_write(name)?;
        Ok(table.filter(|table| Arc::ptr_eq(table, seen)))
    }

    fn lock(
        &mut self,
        query: &Query,
        lock: RowLock,
        wait: LockWait,
        seen: &Seen,
        transaction: &mut Transaction,
    ) -> Result<(Ran, Option<Told>)> {
        let Some((mut skip, fetch)) = limits(query, self.parameters, self.statement)? else {
            return Ok((Ran::General, None));
        };
        let source = &query.sources[0];
        if self.table(&source.name, &seen.tables[0], transaction)?.is_none() {
            return Ok((Ran::General, None));
        }
        let table = &seen.tables[0];
        let (mut count, mut passed) = (0, 0);
        let mut told: Option<Told> = None;
        while count < fetch {
            // Of rows that are found some may not count, being another's or no more what they were: then it looks on from there, at twice
            // as many.
            let wanted = if fetch == u64::MAX { fetch } else { (skip + fetch - count).max(passed) };
            let found = self.found(query, seen, transaction, passed, wanted)?;
            let Some((found, of_these)) = found else { return Ok((Ran::General, None)) };
            let are_all = (found.len() as u64) < wanted || !query.sort.is_empty();
            passed += found.len() as u64;
            match &mut told {
                Some(told) => told.add(&of_these),
                None => told = Some(of_these),
            }
            for row in found {
                if count == fetch {
                    break;
                }
                let now;
                let view: &View = match transaction.lock_row(&source.name, row, lock, wait)? {
                    Locked::Yes => seen.version.view(),
                    Locked::Skipped => continue,
                    Locked::Again => return Ok((Ran::General, None)),
                    Locked::Newer => {
                        now = transaction.look_now();
                        &now
                    }
                };
                let Some(image) = table.rows.read(view, row) else { continue };
                let rows = [stored(table, &source.types, image)];
                let frame = self.frame(&rows);
                // Of one that changed, they may hold no more.
                if !all_hold(&source.conditions, &frame)? {
                    continue;
                }
                if skip > 0 {
                    skip -= 1;
                    continue;
                }
                let values = outputs(query, &frame)?;
                self.sink.row(&values)?;
                count += 1;
            }
            if are_all {
                break;
            }
        }
        Ok((Ran::Done(count), told))
    }

    fn frame<'f>(&self, rows: &'f [Row<'f>]) -> Frame<'f>
    where
        Self: 'f,
    {
        // What is lent lives as long as the program runs.
        Frame { parameters: self.parameters, rows, slots: &[], context: self.statement.context() }
    }

    fn insert(
        &mut self,
        target: &Target,
        rows: &[Vec<Expr>],
        seen: &Seen,
        transaction: &mut Transaction,
    ) -> Result<(Ran, Option<Told>)> {
        let Some(known) = target.table.upgrade() else { return Ok((Ran::General, None)) };
        let Some(table) = self.table(&target.name, &known, transaction)? else { return Ok((Ran::General, None)) };
        let frame = Frame { parameters: self.parameters, rows: &[], slots: &[], context: self.statement.context() };
        // All values before any row: what is wrong with one of them is told first.
        let mut all: Vec<Vec<Datum<'_>>> = Vec::with_capacity(rows.len());
        for row in rows {
            all.push(row.iter().map(|expr| expr.evaluate(&frame)).collect::<Result<_>>()?);
        }
        self.fit(target, &mut all, seen, transaction)?;
        let mut image = Vec::new();
        for values in &all {
            table.rows.layout().image_of(values.iter().map(Datum::to_value), &mut image)?;
            transaction.insert_image(&table, seen.version.view(), &image)?;
            give_back(target, values, self.parameters, self.statement, self.sink)?;
        }
        Ok((Ran::Done(rows.len() as u64), Some(Told { counts: Vec::new() })))
    }

    fn change(
        &mut self,
        query: &Query,
        target: &Target,
        updates: bool,
        seen: &Seen,
        transaction: &mut Transaction,
    ) -> Result<(Ran, Option<Told>)> {
        let source = &query.sources[0];
        let Some(table) = self.table(&source.name, &seen.tables[0], transaction)? else {
            return Ok((Ran::General, None));
        };
        let found = self.found(query, seen, transaction, 0, u64::MAX)?;
        let Some((found, told)) = found else { return Ok((Ran::General, None)) };
        if found.is_empty() {
            return Ok((Ran::Done(0), Some(told)));
        }
        if updates && found.len() > 1 {
            self.try_values(query, target, seen, &table, &found, transaction)?;
        }
        let mut watch = transaction.watch_changes(&table);
        let mut count = 0;
        for row in found {
            count += u64::from(self.change_row(query, target, updates, seen, &table, row, &mut watch, transaction)?);
        }
        Ok((Ran::Done(count), Some(told)))
    }

    /// Finds out whether there is something wrong with what any of several rows is to become, before the first is written.
    fn try_values(
        &self,
        query: &Query,
        target: &Target,
        seen: &Seen,
        table: &Arc<Table>,
        found: &[RowId],
        transaction: &mut Transaction,
    ) -> Result<()> {
        let types = &query.sources[0].types;
        let mut all: Vec<Vec<Datum<'static>>> = Vec::with_capacity(found.len());
        for row in found {
            let Some(row) = table.rows.read(seen.version.view(), *row) else { continue };
            let rows = [stored(table, types, row)];
            all.push(outputs(query, &self.frame(&rows))?.into_iter().map(Datum::into_owned).collect());
        }
        self.fit(target, &mut all, seen, transaction)
    }

    /// Whether it was written.
    #[expect(clippy::too_many_arguments, reason = "the state of a statement")]
    fn change_row(
        &mut self,
        query: &Query,
        target: &Target,
        updates: bool,
        seen: &Seen,
        table: &Arc<Table>,
        row: RowId,
        watch: &mut ChangeWatch,
        transaction: &mut Transaction,
    ) -> Result<bool> {
        let source = &query.sources[0];
        let mut now: Option<HeldSnapshot> = None;
        let mut image = Vec::new();
        loop {
            let view: &View = match &now {
                None => seen.version.view(),
                Some(now) => now,
            };
            let Some(before) = table.rows.read(view, row) else { return Ok(false) };
            let rows = [stored(table, &source.types, before)];
            let frame =
                Frame { parameters: self.parameters, rows: &rows, slots: &[], context: self.statement.context() };
            // Of the statement's own view they have been tested.
            if now.is_some() && !all_hold(&source.conditions, &frame)? {
                return Ok(false);
            }
            let outcome = if updates {
                let mut all = [outputs(query, &frame)?];
                self.fit(target, &mut all, seen, transaction)?;
                let [values] = &all;
                table.rows.layout().image_of(values.iter().map(Datum::to_value), &mut image)?;
                let outcome = transaction.change_image(table, view, row, Some(&image), watch)?;
                if outcome == Outcome::Written {
                    give_back(target, values, self.parameters, self.statement, self.sink)?;
                }
                outcome
            } else {
                let values = match target.returning {
                    Some(_) => (0..target.def.columns.len()).map(|column| rows[0].column(column)).collect(),
                    None => Ok(Vec::new()),
                };
                let values: Vec<Datum<'_>> = values?;
                let outcome = transaction.change_image(table, view, row, None, watch)?;
                if outcome == Outcome::Written {
                    give_back(target, &values, self.parameters, self.statement, self.sink)?;
                }
                outcome
            };
            match outcome {
                Outcome::Written => return Ok(true),
                Outcome::Deleted | Outcome::SelfModified => return Ok(false),
                Outcome::Newer { deleted, .. } => {
                    transaction.refuse_newer()?;
                    if deleted {
                        return Ok(false);
                    }
                    self.statement.check()?;
                    now = Some(transaction.look_now());
                }
                Outcome::Conflict(_) => return Err(Error::internal("a row's writer was not waited for")),
            }
        }
    }

    /// Makes rows' values those of the target's columns, and checks its constraints, one kind after the other, as they are
    /// checked of rows that come together. 22001, 22P02, 23502, 23514.
    fn fit(
        &self,
        target: &Target,
        all: &mut [Vec<Datum<'_>>],
        seen: &Seen,
        transaction: &mut Transaction,
    ) -> Result<()> {
        for (column, sql_type) in &target.fitted {
            for values in all.iter_mut() {
                let value = &mut values[*column];
                if let Datum::Text(text) = value {
                    let fitted = single::fitted(text, *sql_type)?;
                    if *fitted != **text {
                        *value = Datum::Text(fitted.into_owned().into());
                    }
                } else if let (Datum::Int(us), Some(digits)) = (&mut *value, sql_type.rounds_to()) {
                    *us = round_microseconds(*us, digits);
                }
            }
        }
        for values in all.iter() {
            if target.required.iter().any(|column| values[*column].is_null()) {
                return Err(self.refused(target, values, seen, transaction));
            }
        }
        if target.checks.is_empty() {
            return Ok(());
        }
        for values in all.iter() {
            let values = values.as_slice();
            let context = self.statement.context();
            let frame = Frame { parameters: self.parameters, rows: &[], slots: values, context };
            let mut holds = true;
            for check in &target.checks {
                holds &= check.evaluate(&frame)? != Datum::Boolean(false);
            }
            if !holds {
                return Err(self.refused(target, values, seen, transaction));
            }
        }
        Ok(())
    }

    /// In the words that all rows are refused in.
    #[cold]
    fn refused(&self, target: &Target, values: &[Datum<'_>], seen: &Seen, transaction: &mut Transaction) -> Error {
        let mut refused = || -> Result<()> {
            let facts = self.statement.facts(&seen.version);
            let columns = (values.iter().zip(&target.def.columns))
                .map(|(value, column)| Datum::array([value], &tidepool_table::arrow_type(column.sql_type)))
                .collect::<Result<Vec<ArrayRef>>>()?;
            let fields: Vec<_> = (target.def.arrow_schema().fields().iter())
                .map(|field| field.as_ref().clone().with_nullable(true))
                .collect();
            let schema = Arc::new(arrow::datatypes::Schema::new(fields));
            let batch = RecordBatch::try_new(schema, columns).map_err(crate::errors::from_arrow)?;
            let writer = crate::session::checked_writer(transaction, &facts, &target.name)?;
            writer.checked(&batch).map(drop)
        };
        match refused() {
            Err(error) => error,
            Ok(()) => Error::internal("a row is refused and may be written"),
        }
    }
}

fn all_hold(conditions: &[Expr], frame: &Frame<'_>) -> Result<bool> {
    for condition in conditions {
        if !condition.holds(frame)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What `RETURNING` asks for of a row.
fn give_back(
    target: &Target,
    values: &[Datum<'_>],
    parameters: &[Datum<'static>],
    statement: &dyn Statement,
    sink: &mut dyn RowSink,
) -> Result<()> {
    let Some(returning) = &target.returning else { return Ok(()) };
    let frame = Frame { parameters, rows: &[], slots: values, context: statement.context() };
    let values = returning.iter().map(|expr| expr.evaluate(&frame)).collect::<Result<Vec<_>>>()?;
    sink.row(&values)
}

/// What SQL tells of rows that change because others do, once anything is asked.
struct LazyRules<'r> {
    statement: &'r dyn Statement,
    version: &'r Arc<DatabaseVersion>,
}

impl LazyRules<'_> {
    fn rules(&self) -> Rules {
        Rules { facts: self.statement.facts(self.version) }
    }
}

impl RowRules for LazyRules<'_> {
    fn checks(&self, table: &Arc<TableDef>) -> Result<Arc<dyn RowChecks>> {
        self.rules().checks(table)
    }

    fn defaults(&self, table: &Arc<TableDef>, column: usize, rows: usize) -> Result<ArrayRef> {
        self.rules().defaults(table, column, rows)
    }
}
