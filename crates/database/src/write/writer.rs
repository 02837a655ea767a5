//! Rows on their way into a table.

use crate::Database;
use crate::text::numeric::{CastError, cast_array};
use crate::text::{ROW_VALUE_CHARACTERS_MAX, TextReader, TextSettings, TextWriter, shortened};
use crate::write::loading::Loading;
use crate::write::partition::{Membership, Routing};
use arrow_array::cast::AsArray;
use arrow_array::types::TimestampMicrosecondType;
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, StringViewArray, TimestampMicrosecondArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidepool_base::{Error, Part, Result, SqlState, SqlType, Subject, caught, panic_point, round_microseconds};
use tidepool_heap::QueryHeap;
use tidepool_table::{Placement, ROW_GROUP_ROWS, RowGroup, Segment, TableDef, TableVersion};

/// Rows that are worth a row group of their own at the end of a load. Fewer go to delta and are merged later.
pub(crate) const SHORT_ROW_GROUP_ROWS: usize = 16 * 1024;

/// Unencoded bytes after which a row group is closed early: keeps loads of very wide rows within bounds.
const ROW_GROUP_RAW_BYTES_MAX: usize = 256 << 20;

/// As many are worth a row group where loads hold much ([`Loading`]).
const CROWDED_BYTES: usize = 4 << 20;

/// How long row groups are waited for before it is asked whether anybody still wants them.
const WAIT_STEP: Duration = Duration::from_millis(5);

/// A table's `CHECK` constraints, which only SQL can evaluate.
pub trait RowChecks: Send + Sync {
    /// The first row that breaks a constraint, and the constraint's name. The batch has all of the table's columns.
    fn violation(&self, batch: &RecordBatch) -> Result<Option<(usize, String)>>;
}

/// The checks of a table's constraints, by its definition.
pub type ChecksOf = Arc<dyn Fn(&TableDef) -> Result<Arc<dyn RowChecks>> + Send + Sync>;

/// A stream of rows into one table; into a partitioned one, through a writer of each partition that rows come for. Holds at most one row group's worth unencoded, and all writers of a database
/// together one more an encoding thread, and one. Independent of the transaction while it runs, so that it can live on
/// another thread; `Transaction::absorb` takes its rows in. Dropped instead, it leaves nothing: its drop waits for what
/// is being encoded, so that the tablespace has its memory back when the statement ends.
pub struct TableWriter {
    database: Arc<Database>,
    table: Arc<TableVersion>,
    schema: SchemaRef,
    buffer: Vec<RecordBatch>,
    buffered_rows: usize,
    buffered_bytes: usize,
    loading: Option<Loading>,
    rows: u64,
    jobs: Arc<Jobs>,
    next_sequence: usize,
    checks: Option<Arc<dyn RowChecks>>,
    /// Which rows may be here, of a partition that rows are put into by its own name.
    membership: Membership,
    /// Of a partitioned table.
    routing: Option<Box<Routing>>,
}

impl std::fmt::Debug for TableWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableWriter").field("table", &self.table.def.name).field("rows", &self.rows).finish()
    }
}

/// Row groups being encoded, shared with the encoding threads.
#[derive(Default)]
struct Jobs {
    state: Mutex<JobsState>,
    ended: Condvar,
}

#[derive(Default)]
struct JobsState {
    running: usize,
    done: BTreeMap<usize, Arc<RowGroup>>,
    error: Option<Error>,
    /// Nobody wants the rows any more.
    abandoned: bool,
}

impl Jobs {
    fn wait(&self, interrupted: &dyn Fn() -> Result<()>) -> Result<MutexGuard<'_, JobsState>> {
        let mut state = self.state.lock();
        while state.running > 0 {
            interrupted()?;
            self.ended.wait_for(&mut state, WAIT_STEP);
        }
        Ok(state)
    }
}

impl Drop for TableWriter {
    fn drop(&mut self) {
        self.jobs.state.lock().abandoned = true;
        // Whoever encodes notices after a column.
        let Ok(mut state) = self.jobs.wait(&|| Ok(())) else { return };
        let left = std::mem::take(&mut state.done);
        drop(state);
        drop(left);
    }
}

impl TableWriter {
    pub(crate) fn new(database: Arc<Database>, table: Arc<TableVersion>) -> TableWriter {
        let schema = table.def.arrow_schema();
        TableWriter {
            database,
            table,
            schema,
            buffer: Vec::new(),
            buffered_rows: 0,
            buffered_bytes: 0,
            loading: None,
            rows: 0,
            jobs: Arc::new(Jobs::default()),
            next_sequence: 0,
            checks: None,
            membership: Membership::default(),
            routing: None,
        }
    }

    pub(crate) fn with_partitions(mut self, membership: Membership, routing: Option<Routing>) -> TableWriter {
        self.membership = membership;
        self.routing = routing.map(Box::new);
        self
    }

    /// What the table's constraints are checked by. Without it a table that has some takes no rows.
    pub fn with_checks(mut self, checks: Arc<dyn RowChecks>) -> TableWriter {
        self.checks = Some(checks);
        self
    }

    /// As `with_checks`, of the table or, if it is partitioned, of each partition that rows come for.
    pub fn with_checks_of(mut self, checks: ChecksOf) -> Result<TableWriter> {
        match &mut self.routing {
            Some(routing) => routing.set_checks(checks),
            None if self.table.def.checks.is_empty() => {}
            None => self.checks = Some(checks(&self.table.def)?),
        }
        Ok(self)
    }

    pub(crate) fn is_routed(&self) -> bool {
        self.routing.is_some()
    }

    pub(crate) fn routing_mut(&mut self) -> Result<&mut Routing> {
        self.routing.as_deref_mut().ok_or_else(|| Error::internal("a table is not partitioned"))
    }

    pub(crate) fn into_routing(mut self) -> Option<Routing> {
        self.routing.take().map(|routing| *routing)
    }

    pub(crate) fn buffered_rows(&self) -> usize {
        self.buffered_rows
    }

    pub(crate) fn buffered_bytes(&self) -> usize {
        self.buffered_bytes
    }

    pub fn table(&self) -> &Arc<TableVersion> {
        &self.table
    }

    /// All of the table's columns, in order, in `TableDef::arrow_schema`'s types. 23502 on a NULL where none may be;
    /// 22001 on text too long; 23514 on a row that a constraint refuses; 53200 when the tablespace is full.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        // What is kept here outlives the statement's heap.
        QueryHeap::outside(|| self.write_outside(batch))
    }

    fn write_outside(&mut self, batch: &RecordBatch) -> Result<()> {
        if self.is_routed() {
            let batch = self.member(batch)?;
            self.rows += batch.num_rows() as u64;
            return self.routing_mut()?.write(&batch);
        }
        let batch = self.checked(batch)?;
        self.rows += batch.num_rows() as u64;
        let mut start = 0;
        while start < batch.num_rows() {
            let length = (batch.num_rows() - start).min(ROW_GROUP_ROWS - self.buffered_rows);
            let piece = batch.slice(start, length);
            start += length;
            self.buffered_rows += length;
            let bytes = raw_bytes(&piece);
            self.buffered_bytes += bytes;
            self.buffer.push(piece);
            let loading = self.loading.get_or_insert_with(|| Loading::of(&self.database));
            let is_much = loading.add(bytes) && self.buffered_bytes >= CROWDED_BYTES;
            if self.buffered_rows == ROW_GROUP_ROWS || self.buffered_bytes >= ROW_GROUP_RAW_BYTES_MAX || is_much {
                self.encode_buffer()?;
            }
        }
        Ok(())
    }

    /// Rows written so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Encodes what is left of the rows now, if they are worth a row group: for a writer that gets no more of them and
    /// is absorbed later.
    pub fn seal(&mut self) -> Result<()> {
        if let Some(routing) = &mut self.routing {
            return routing.writers_mut().try_for_each(TableWriter::seal);
        }
        QueryHeap::outside(|| if self.buffered_rows >= SHORT_ROW_GROUP_ROWS { self.encode_buffer() } else { Ok(()) })
    }

    /// The row groups encoded and the rows left over, in order. `interrupted` is asked while they are waited for.
    pub(crate) fn finish(
        mut self,
        interrupted: &dyn Fn() -> Result<()>,
    ) -> Result<(Vec<Arc<RowGroup>>, Vec<RecordBatch>)> {
        self.seal()?;
        let mut state = self.jobs.wait(interrupted)?;
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        let groups = std::mem::take(&mut state.done).into_values().collect();
        drop(state);
        Ok((groups, std::mem::take(&mut self.buffer)))
    }

    fn encode_buffer(&mut self) -> Result<()> {
        let batches = std::mem::take(&mut self.buffer);
        let loading = self.loading.take();
        self.buffered_rows = 0;
        self.buffered_bytes = 0;
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        {
            let mut state = self.jobs.state.lock();
            if let Some(error) = &state.error {
                return Err(error.clone());
            }
            state.running += 1;
        }
        let (database, jobs) = (self.database.clone(), self.jobs.clone());
        let (schema, placement) = (self.schema.clone(), self.table.placement.clone());
        let table = self.table.def.clone();
        let submitted = self.database.encode_pool().submit(move || {
            let wanted = || !jobs.state.lock().abandoned;
            let encoded = caught(|| {
                panic_point("database.encode");
                encode_one(&database, &table, &schema, batches, &placement, &wanted)
            });
            // Before the end is told: whoever waits for it may want to close the database.
            drop((database, loading));
            let mut state = jobs.state.lock();
            match encoded {
                Ok(Some(group)) => drop(state.done.insert(sequence, group)),
                Err(error) => drop(state.error.get_or_insert(error)),
                Ok(None) => {}
            }
            state.running -= 1;
            drop(state);
            jobs.ended.notify_all();
        });
        if submitted.is_err() {
            self.jobs.state.lock().running -= 1;
        }
        submitted
    }

    /// The batch in the table's types.
    pub(crate) fn fitted(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        fitted(&self.table.def, &self.schema, batch)
    }

    /// As `fitted`, of a partitioned table that may be a partition itself. 23514 for a row that may not be in it.
    pub(crate) fn member(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let fitted = self.fitted(batch)?;
        match self.membership.stranger(fitted.columns(), fitted.num_rows())? {
            Some(row) => Err(self.misplaced(fitted.columns(), row)?),
            None => Ok(fitted),
        }
    }

    /// The batch in the table's types, its constraints checked. Not of a partitioned table, whose partitions have them.
    pub fn checked(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        if self.is_routed() {
            return Err(Error::internal("rows of a partitioned table are checked by its partitions"));
        }
        let checked = self.constrained(batch)?;
        match self.membership.stranger(checked.columns(), checked.num_rows())? {
            Some(row) => Err(self.misplaced(checked.columns(), row)?),
            None => Ok(checked),
        }
    }

    /// 23514 for a row that another partition is for, or none.
    fn misplaced(&self, columns: &[ArrayRef], row: usize) -> Result<Error> {
        let message = format!("new row for relation \"{}\" violates partition constraint", self.table.def.name);
        Ok(Error::new(SqlState::CHECK_VIOLATION, message)
            .with_detail(format!("Failing row contains ({}).", self.row_text(columns, row)?))
            .with_subject(self.subject(Part::Whole)))
    }

    fn constrained(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let fitted = self.fitted(batch)?;
        let columns = fitted.columns();
        // Lengths first: their errors are the values', this one is the row's.
        let nulls =
            self.table.def.columns.iter().zip(columns).filter(|(def, _)| !def.nullable).filter_map(|(def, column)| {
                let nulls = column.logical_nulls()?;
                (0..nulls.len()).find(|row| nulls.is_null(*row)).map(|row| (row, def))
            });
        // Of the first such row the first column.
        if let Some((row, def)) = nulls.min_by_key(|(row, _)| *row) {
            return Err(Error::new(
                SqlState::NOT_NULL_VIOLATION,
                format!(
                    "null value in column \"{}\" of relation \"{}\" violates not-null constraint",
                    def.name, self.table.def.name
                ),
            )
            .with_detail(format!("Failing row contains ({}).", self.row_text(columns, row)?))
            .with_subject(self.subject(Part::Column(def.name.clone()))));
        }
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let checked = RecordBatch::try_new_with_options(self.schema.clone(), columns.to_vec(), &options)
            .map_err(|error| Error::internal(error.to_string()))?;
        if self.table.def.checks.is_empty() {
            return Ok(checked);
        }
        let checks = self.checks.as_ref().ok_or_else(|| Error::internal("a table's constraints are not checked"))?;
        if let Some((row, constraint)) = checks.violation(&checked)? {
            return Err(Error::new(
                SqlState::CHECK_VIOLATION,
                format!("new row for relation \"{}\" violates check constraint \"{constraint}\"", self.table.def.name),
            )
            .with_detail(format!("Failing row contains ({}).", self.row_text(checked.columns(), row)?))
            .with_subject(self.subject(Part::Constraint(constraint))));
        }
        Ok(checked)
    }

    fn subject(&self, part: Part) -> Subject {
        let def = &self.table.def;
        let schema = match def.is_temporary() {
            true => "pg_temp".to_owned(),
            false => self.database.state().schema_name(def.schema).to_owned(),
        };
        Subject { schema, table: def.name.clone(), part }
    }

    fn row_text(&self, columns: &[ArrayRef], row: usize) -> Result<String> {
        let settings = TextSettings::default();
        let mut texts = Vec::with_capacity(columns.len());
        for (column, def) in columns.iter().zip(&self.table.def.columns) {
            let mut text = Vec::new();
            let writer = TextWriter::new(column, def.sql_type, &settings)?;
            texts.push(if writer.write(row, &mut text) {
                shortened(&String::from_utf8_lossy(&text), ROW_VALUE_CHARACTERS_MAX)
            } else {
                "null".to_owned()
            });
        }
        Ok(texts.join(", "))
    }
}

/// A batch in a table's types, whatever may be NULL.
fn fitted(def: &TableDef, schema: &SchemaRef, batch: &RecordBatch) -> Result<RecordBatch> {
    let fields = schema.fields();
    if batch.num_columns() != fields.len() {
        return Err(Error::internal(format!(
            "a batch of {} columns for table \"{}\" of {}",
            batch.num_columns(),
            def.name,
            fields.len()
        )));
    }
    let mut columns: Vec<ArrayRef> = Vec::with_capacity(fields.len());
    for (array, field) in batch.columns().iter().zip(fields) {
        columns.push(if array.data_type() == field.data_type() {
            array.clone()
        } else {
            cast_array(array, field.data_type()).map_err(|error| match error {
                CastError::Value(error) => error,
                CastError::Arrow(error) => Error::internal(error.to_string()),
            })?
        });
    }
    for (column, def) in columns.iter_mut().zip(&def.columns) {
        if let Some(fitted) = fit_texts(column, def.sql_type)? {
            *column = fitted;
        }
        if let Some(rounded) = rounded(column, def.sql_type) {
            *column = rounded;
        }
    }
    let fields: Vec<Field> = fields.iter().map(|field| field.as_ref().clone().with_nullable(true)).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)
        .map_err(|error| Error::internal(error.to_string()))
}

/// Texts cut to their declared length where only blanks are lost; `None` when they fit as they are. 22001 otherwise.
fn fit_texts(column: &ArrayRef, sql_type: SqlType) -> Result<Option<ArrayRef>> {
    let texts: &StringViewArray = match (sql_type, column.data_type()) {
        (SqlType::Varchar { length_max: Some(_) } | SqlType::Char { .. }, DataType::Utf8View) => {
            column.as_string_view()
        }
        _ => return Ok(None),
    };
    // A text of no more bytes than characters allowed always fits; a view holds its length in its low 32 bits.
    let (length, blanks) = match sql_type {
        SqlType::Varchar { length_max: Some(length) } => (length, false),
        SqlType::Char { length } => (length, true),
        _ => return Ok(None),
    };
    let short = texts.views().iter().all(|view| *view as u32 <= length);
    if short && !(blanks && texts.iter().flatten().any(|text| text.ends_with(' '))) {
        return Ok(None);
    }
    let mut reader = TextReader::new(sql_type, &TextSettings::default());
    for text in texts {
        match text {
            Some(text) => reader.append(text)?,
            None => reader.append_null(),
        }
    }
    Ok(Some(reader.finish()))
}

/// Timestamps with as many digits of a second's fraction as the type keeps; `None` when they have no more.
pub fn rounded(column: &ArrayRef, sql_type: SqlType) -> Option<ArrayRef> {
    let digits = sql_type.rounds_to()?;
    let times = column.as_primitive_opt::<TimestampMicrosecondType>()?;
    if times.iter().flatten().all(|us| round_microseconds(us, digits) == us) {
        return None;
    }
    let rounded: TimestampMicrosecondArray = times.unary(|us| round_microseconds(us, digits));
    Some(Arc::new(rounded.with_data_type(column.data_type().clone())))
}

/// Bytes of the values themselves, shared buffers counted by what is used of them.
fn raw_bytes(batch: &RecordBatch) -> usize {
    let rows = batch.num_rows();
    let column = |array: &ArrayRef| match array.data_type() {
        DataType::Utf8View => rows * 16 + array.as_string_view().total_buffer_bytes_used(),
        DataType::BinaryView => rows * 16 + array.as_binary_view().total_buffer_bytes_used(),
        DataType::FixedSizeBinary(width) => rows * *width as usize,
        other => rows * other.primitive_width().unwrap_or(1),
    };
    batch.columns().iter().map(column).sum()
}

/// Column by column, each dropped before the next is joined: beside the rows themselves, one column is held twice. `None` once it is
/// not `wanted` any more.
fn encode_one(
    database: &Database,
    table: &TableDef,
    schema: &SchemaRef,
    batches: Vec<RecordBatch>,
    placement: &Placement,
    wanted: &dyn Fn() -> bool,
) -> Result<Option<Arc<RowGroup>>> {
    let mut columns: Vec<Vec<ArrayRef>> = schema.fields().iter().map(|_| Vec::with_capacity(batches.len())).collect();
    for batch in batches {
        let (_, arrays, _) = batch.into_parts();
        for (array, column) in arrays.into_iter().zip(&mut columns) {
            column.push(array);
        }
    }
    let mut segments = Vec::with_capacity(columns.len());
    for (index, pieces) in columns.into_iter().enumerate() {
        if !wanted() {
            return Ok(None);
        }
        let array = match pieces.as_slice() {
            [array] => array.clone(),
            _ => {
                let pieces: Vec<&dyn Array> = pieces.iter().map(AsRef::as_ref).collect();
                arrow_select::concat::concat(&pieces).map_err(|error| Error::internal(error.to_string()))?
            }
        };
        drop(pieces);
        let tablespace = database.tablespaces().get(placement.column(index))?;
        segments.push(Arc::new(Segment::encode(&array, schema.field(index), &tablespace)?));
    }
    RowGroup::from_segments(database.next_row_group_of(table), segments).map(|group| Some(Arc::new(group)))
}
