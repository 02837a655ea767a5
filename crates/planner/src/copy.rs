//! `COPY`: files and the client's stream into a table and out of a query.
//!
//! Loading runs on one thread that may block: it reads and parses, fills in defaults, and hands batches to the table's
//! writer, which encodes on threads of its own and holds a bounded number of rows.

use crate::execute::Batches;
use crate::facts::SessionFacts;
use crate::interrupt::Interrupt;
use crate::session::{CopyOut, Notice, ResultColumn, Running, Session, checked_writer};
use crate::statement::{CopyEndpoint, QualifiedName};
use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Field, Schema, SchemaRef};
use bytes::Bytes;
use datafusion::common::DFSchema;
use datafusion::logical_expr::{LogicalPlan, LogicalPlanBuilder};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::sql::sqlparser::ast;
use futures::StreamExt;
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidepool_base::{Error, Result, SqlState, SqlType};
use tidepool_database::copy::{
    CopyFormat, CopyOptions, EncodedRows, ParquetWriter, RowReader, RowWriter, read_parquet,
};
use tidepool_database::text::TextSettings;
use tidepool_database::{RelationName, TableWriter, Transaction};
use tidepool_heap::Reservation;
use tidepool_table::TableVersion;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// Bytes read from a file at a time.
const READ_BYTES: usize = 1 << 20;

/// Pieces that the client may be ahead of the loader, and bytes of them.
const PIECES_AHEAD: usize = 8;
const BYTES_AHEAD: u32 = 1 << 20;

/// Bytes of rows that are encoded for the client at a time, about, and how many rows to begin with.
const ENCODED_BYTES: usize = 64 << 10;
const ENCODED_ROWS_FIRST: usize = 64;

/// The options of a `COPY`, a file's ending standing in for `FORMAT`.
pub fn options(pairs: &[(String, Option<String>)], endpoint: &CopyEndpoint) -> Result<CopyOptions> {
    let mut pairs = pairs.to_vec();
    let format = pairs.iter().any(|(name, _)| name.eq_ignore_ascii_case("format"));
    if let CopyEndpoint::File(path) = endpoint
        && !format
        && Path::new(path).extension().is_some_and(|ending| ending.eq_ignore_ascii_case("parquet"))
    {
        pairs.push(("format".to_owned(), Some("parquet".to_owned())));
    }
    let options = CopyOptions::from_pairs(&pairs)?;
    if options.format == CopyFormat::Parquet && *endpoint == CopyEndpoint::Client {
        return Err(Error::unsupported("Parquet is copied from and to files on the server only")
            .with_hint("Name the file in COPY itself, or use FORMAT csv."));
    }
    Ok(options)
}

/// A `COPY … FROM` about to run.
pub struct Load {
    facts: Arc<SessionFacts>,
    version: Arc<TableVersion>,
    columns: Vec<usize>,
    options: CopyOptions,
    settings: TextSettings,
    defaults: Defaults,
    /// Rows left out because of `ON_ERROR ignore`.
    skipped: Arc<AtomicU64>,
}

impl Load {
    pub fn new(
        facts: &Arc<SessionFacts>,
        name: &QualifiedName,
        columns: &[String],
        pairs: &[(String, Option<String>)],
        endpoint: &CopyEndpoint,
    ) -> Result<Load> {
        let version = crate::resolve::table(facts, name)?;
        let columns = crate::insert::positions(&version.def, columns)?;
        let options = options(pairs, endpoint)?;
        let defaults = Defaults::new(facts, &version, &columns)?;
        let settings = facts.settings.text_settings();
        Ok(Load { facts: facts.clone(), version, columns, options, settings, defaults, skipped: Arc::default() })
    }

    /// Final once the load is.
    pub fn skipped(&self) -> Arc<AtomicU64> {
        self.skipped.clone()
    }

    fn writer(&self, transaction: &mut Transaction, interrupt: &Interrupt) -> Result<TableWriter> {
        let def = &*self.version.def;
        match def.partitioning {
            // Its partitions are locked as rows come to them.
            Some(_) => transaction.lock_rows_of(def, &interrupt.lock_wait())?,
            None => transaction.lock_table(def, &interrupt.lock_wait())?,
        }
        checked_writer(transaction, &self.facts, &RelationName::from(&*self.version.def))
    }

    /// Loads a file on the server.
    pub fn read_file(self, transaction: &mut Transaction, interrupt: &Interrupt, path: &str) -> Result<u64> {
        let mut writer = self.writer(transaction, interrupt)?;
        let shown = format!("open file \"{path}\" for reading");
        let mut file = File::open(path).map_err(|error| Error::io(&shown, &error))?;
        let metadata = file.metadata().map_err(|error| Error::io(&shown, &error))?;
        if metadata.is_dir() {
            return Err(Error::new(SqlState::WRONG_OBJECT_TYPE, format!("\"{path}\" is a directory")));
        }
        let progress = transaction.start_progress("COPY FROM", &self.version.def, metadata.len());
        if self.options.format == CopyFormat::Parquet {
            let settings = self.facts.settings.shared_text_settings();
            let batches = read_parquet(Path::new(path), &self.version.def, &self.columns, settings)?;
            let mut rows = 0;
            for batch in batches {
                interrupt.check()?;
                let batch = batch?;
                rows += batch.num_rows() as u64;
                self.put(&mut writer, &batch)?;
                // How far a Parquet file has been read is known by rows only; bytes come in one go at the end.
                progress.add(0, batch.num_rows() as u64);
            }
            progress.add(metadata.len(), 0);
            tracing::debug!(rows, path, "copied from Parquet");
            return transaction.absorb(writer);
        }
        let mut reader = RowReader::new(&self.version.def, &self.columns, &self.options, &self.settings)?;
        let mut piece = vec![0_u8; READ_BYTES];
        let mut room = None;
        loop {
            interrupt.check()?;
            let read = file.read(&mut piece).map_err(|error| Error::io(format!("read file \"{path}\""), &error))?;
            if read == 0 {
                break;
            }
            let rows = self.feed(&mut reader, &mut writer, &piece[..read])?;
            self.facts.planner.room_for_row(&mut room, reader.pending_bytes())?;
            progress.add(read as u64, rows);
        }
        self.finish(reader, &mut writer)?;
        transaction.absorb(writer)
    }

    /// Loads what the client sends. The client is asked for it once the table is locked: until then the statement may be planned anew.
    pub(crate) async fn read_client(self, session: &Session, running: Running) -> Result<CopyIn> {
        let columns = self.columns.len();
        let binary = self.options.format == CopyFormat::Binary;
        let skipped = self.skipped();
        let (sender, mut receiver) = mpsc::channel(PIECES_AHEAD);
        let Running { facts, interrupt, mut query } = running;
        let canceled = interrupt.clone();
        query.info.running(None);
        let (locked, has_lock) = oneshot::channel();
        let mut loading = session.begin_write(facts, interrupt, move |transaction, interrupt| {
            let mut writer = self.writer(transaction, interrupt)?;
            self.facts.footing.fix();
            // Nobody listens any more: then there is no one to load from, either.
            let _ = locked.send(());
            let progress = transaction.start_progress("COPY FROM", &self.version.def, 0);
            let mut reader = RowReader::new(&self.version.def, &self.columns, &self.options, &self.settings)?;
            let mut room = None;
            loop {
                interrupt.check()?;
                match receiver.blocking_recv() {
                    Some(Piece::Data { bytes, .. }) => {
                        let rows = self.feed(&mut reader, &mut writer, &bytes)?;
                        self.facts.planner.room_for_row(&mut room, reader.pending_bytes())?;
                        query.info.rows.fetch_add(rows, Ordering::Relaxed);
                        progress.add(bytes.len() as u64, rows);
                    }
                    Some(Piece::End) => break,
                    None => return Err(crate::errors::canceled()),
                }
            }
            self.finish(reader, &mut writer)?;
            let rows = transaction.absorb(writer)?;
            query.succeeded();
            Ok(rows)
        });
        tokio::select! {
            biased;
            // What ended before it had the lock says why.
            Ok(()) = has_lock => {}
            ended = &mut loading => return Err(crate::execute::joined(ended).err().unwrap_or_else(crate::errors::canceled)),
        }
        let ahead = Arc::new(Semaphore::new(BYTES_AHEAD as usize));
        Ok(CopyIn { columns, binary, skipped, sender, ahead, loading: Some(loading), interrupt: canceled })
    }

    fn feed(&self, reader: &mut RowReader, writer: &mut TableWriter, bytes: &[u8]) -> Result<u64> {
        let mut rows = 0;
        for batch in reader.feed(bytes)? {
            rows += batch.num_rows() as u64;
            self.put_read(reader, writer, &batch)?;
        }
        Ok(rows)
    }

    fn finish(&self, mut reader: RowReader, writer: &mut TableWriter) -> Result<()> {
        if let Some(batch) = reader.finish()? {
            self.put_read(&reader, writer, &batch)?;
        }
        self.skipped.store(reader.ignored(), Ordering::Relaxed);
        Ok(())
    }

    /// Only the reader knows which line a row was.
    fn put_read(&self, reader: &RowReader, writer: &mut TableWriter, batch: &RecordBatch) -> Result<()> {
        self.put(writer, batch).map_err(|error| match reader.null_place() {
            Some(place) if error.code() == SqlState::NOT_NULL_VIOLATION => error.with_context(place),
            _ => error,
        })
    }

    fn put(&self, writer: &mut TableWriter, batch: &RecordBatch) -> Result<()> {
        writer.write(&self.defaults.complete(batch, &self.columns)?)
    }
}

/// The columns that a load does not list, made row by row from their defaults.
struct Defaults {
    schema: SchemaRef,
    /// By position in the table; `None` for those listed.
    expressions: Vec<Option<Arc<dyn PhysicalExpr>>>,
}

impl Defaults {
    fn new(facts: &Arc<SessionFacts>, version: &TableVersion, listed: &[usize]) -> Result<Defaults> {
        let def = &version.def;
        // Nullability is the writer's to check, with PostgreSQL's message.
        let fields: Vec<Field> =
            def.arrow_schema().fields().iter().map(|field| field.as_ref().clone().with_nullable(true)).collect();
        let schema = Arc::new(Schema::new(fields));
        let mut expressions: Vec<Option<Arc<dyn PhysicalExpr>>> = vec![None; def.columns.len()];
        let missing: Vec<usize> = (0..def.columns.len()).filter(|position| !listed.contains(position)).collect();
        if missing.is_empty() {
            return Ok(Defaults { schema, expressions });
        }
        let state = facts.planner.state(facts);
        let planned = missing
            .iter()
            .map(|&position| {
                let column = &def.columns[position];
                crate::insert::default(&state, facts, column.default.as_deref(), column.sql_type)
                    .map(|expr| expr.alias(&column.name))
            })
            .collect::<Result<Vec<_>>>()?;
        let plan = LogicalPlanBuilder::empty(true)
            .project(planned)
            .and_then(LogicalPlanBuilder::build)
            .map_err(crate::errors::from_datafusion)?;
        let plan = state
            .analyzer()
            .execute_and_check(plan, state.config_options(), |_, _| {})
            .map_err(crate::errors::from_datafusion)?;
        let LogicalPlan::Projection(projection) = plan else {
            return Err(Error::internal("defaults make no projection"));
        };
        for (position, expr) in missing.into_iter().zip(projection.expr) {
            let expr = state.create_physical_expr(expr, &DFSchema::empty()).map_err(crate::errors::from_datafusion)?;
            expressions[position] = Some(expr);
        }
        Ok(Defaults { schema, expressions })
    }

    fn complete(&self, batch: &RecordBatch, listed: &[usize]) -> Result<RecordBatch> {
        let rows = batch.num_rows();
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let nothing = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &options)
            .map_err(crate::errors::from_arrow)?;
        let mut columns: Vec<Option<ArrayRef>> = vec![None; self.expressions.len()];
        for (column, &position) in batch.columns().iter().zip(listed) {
            columns[position] = Some(column.clone());
        }
        let columns = columns
            .into_iter()
            .zip(&self.expressions)
            .map(|(column, expression)| match (column, expression) {
                (Some(column), _) => Ok(column),
                (None, Some(expression)) => expression
                    .evaluate(&nothing)
                    .and_then(|value| value.into_array(rows))
                    .map_err(crate::errors::from_datafusion),
                (None, None) => Err(Error::internal("a column has neither values nor a default")),
            })
            .collect::<Result<Vec<_>>>()?;
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options).map_err(crate::errors::from_arrow)
    }
}

enum Piece {
    Data {
        bytes: Bytes,
        /// Given back once the piece is loaded.
        _ahead: Option<OwnedSemaphorePermit>,
        _held: Option<Reservation>,
    },
    End,
}

/// `COPY … FROM STDIN` under way. Dropped unfinished, it leaves nothing behind.
pub struct CopyIn {
    pub columns: usize,
    /// The data is in binary form, not text.
    pub binary: bool,
    /// Rows left out because of `ON_ERROR ignore`; final once `finish` returned.
    pub skipped: Arc<AtomicU64>,
    sender: mpsc::Sender<Piece>,
    /// Bytes that may be ahead of the loader.
    ahead: Arc<Semaphore>,
    loading: Option<tokio::task::JoinHandle<Result<u64>>>,
    interrupt: Arc<Interrupt>,
}

impl CopyIn {
    /// `held`: what is charged for the bytes until they are loaded.
    pub async fn write(&mut self, bytes: Bytes, held: Option<Reservation>) -> Result<()> {
        let count = u32::try_from(bytes.len()).unwrap_or(u32::MAX).clamp(1, BYTES_AHEAD);
        let interrupt = self.interrupt.clone();
        // Without one, `send` says why.
        let ahead = tokio::select! {
            biased;
            permit = self.ahead.clone().acquire_many_owned(count) => permit.ok(),
            _ = interrupt.wait() => None,
            () = self.sender.closed() => None,
        };
        self.send(Piece::Data { bytes, _ahead: ahead, _held: held }).await
    }

    /// The client's CopyFail is an error to hand to `Session::fail`, after dropping this.
    pub async fn finish(mut self) -> Result<u64> {
        self.send(Piece::End).await?;
        match self.loading.take() {
            Some(loading) => crate::execute::joined(loading.await),
            None => Err(Error::internal("this COPY has ended")),
        }
    }

    async fn send(&mut self, piece: Piece) -> Result<()> {
        let interrupt = self.interrupt.clone();
        let sent = tokio::select! {
            biased;
            error = interrupt.wait() => {
                // The loader waits for a piece; without a sender it ends, and undoes what it did.
                self.sender = mpsc::channel(1).0;
                return Err(error);
            }
            sent = self.sender.send(piece) => sent.is_ok(),
        };
        if sent {
            return Ok(());
        }
        // The loader gave up: its reason is the error.
        match self.loading.take() {
            Some(loading) => match crate::execute::joined(loading.await) {
                Ok(_) => Err(Error::internal("COPY ended before its data")),
                Err(error) => Err(error),
            },
            None => Err(Error::internal("this COPY has ended")),
        }
    }
}

/// What a client is told of rows that were left out.
pub fn skipped_notice(rows: u64) -> Option<Notice> {
    let message = match rows {
        0 => return None,
        1 => "1 row was skipped due to data type incompatibility".to_owned(),
        rows => format!("{rows} rows were skipped due to data type incompatibility"),
    };
    Some(Notice { severity: "NOTICE", error: Error::new(SqlState::SUCCESSFUL_COMPLETION, message) })
}

/// The query that `COPY table TO` stands for.
pub fn select(name: &QualifiedName, columns: &[String], schema: &Schema) -> Result<Box<ast::Query>> {
    let quote = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    let columns: Vec<String> = match columns {
        [] => schema.fields().iter().map(|field| quote(field.name())).collect(),
        columns => columns.iter().map(|column| quote(column)).collect(),
    };
    let table = match &name.schema {
        Some(schema) => format!("{}.{}", quote(schema), quote(&name.name)),
        None => quote(&name.name),
    };
    let statements = crate::statement::parse(&format!("SELECT {} FROM {table}", columns.join(", ")))?;
    match statements.first().map(crate::statement::Statement::command) {
        Some(crate::statement::Command::Query(query)) => Ok(query.clone()),
        _ => Err(Error::internal("a table makes no query")),
    }
}

/// A `COPY … TO` about to run.
pub struct Unload {
    names: Vec<String>,
    types: Vec<SqlType>,
    schema: SchemaRef,
    options: CopyOptions,
    settings: TextSettings,
}

/// Rows on their way to a client: a few at a time, as it may not read them.
struct Encoding {
    writer: RowWriter,
    batches: Batches,
    /// With the rows of it that are encoded, and how many to encode next.
    batch: Option<(RecordBatch, usize, usize)>,
    encoded: EncodedRows,
    rows: Arc<AtomicU64>,
}

impl Encoding {
    /// Encodes some rows more, or what comes after the last: then false.
    async fn encode(&mut self) -> Result<bool> {
        let (batch, start, count) = match self.batch.take() {
            Some(batch) => batch,
            None => match self.batches.next().await {
                Some(batch) => (batch?, 0, ENCODED_ROWS_FIRST),
                None => {
                    self.writer.finish(&mut self.encoded);
                    return Ok(false);
                }
            },
        };
        let count = count.min(batch.num_rows() - start);
        let before = self.encoded.bytes.len();
        self.writer.write(&batch.slice(start, count), &mut self.encoded)?;
        self.rows.fetch_add(count as u64, Ordering::Relaxed);
        if start + count < batch.num_rows() {
            let row_bytes = (self.encoded.bytes.len() - before) / count.max(1);
            let next = (ENCODED_BYTES / row_bytes.max(1)).clamp(1, 2 * count.max(1));
            self.batch = Some((batch, start + count, next));
        }
        Ok(true)
    }
}

impl Unload {
    pub fn new(
        columns: &[ResultColumn],
        schema: &SchemaRef,
        options: &CopyOptions,
        settings: &TextSettings,
    ) -> Result<Unload> {
        Ok(Unload {
            names: columns.iter().map(|column| column.name.clone()).collect(),
            types: columns.iter().map(|column| column.sql_type).collect(),
            schema: schema.clone(),
            options: options.clone(),
            settings: settings.clone(),
        })
    }

    pub fn into_client(self, batches: Batches) -> Result<CopyOut> {
        let columns = self.names.len();
        let binary = self.options.format == CopyFormat::Binary;
        let mut writer = RowWriter::new(&self.names, &self.types, &self.options, &self.settings)?;
        let rows = Arc::new(AtomicU64::new(0));
        let counted = rows.clone();
        let mut head = EncodedRows::default();
        writer.start(&mut head);
        let state = Encoding { writer, batches, batch: None, encoded: head, rows: counted };
        let data = futures::stream::try_unfold(Some(state), |state| async move {
            let Some(mut state) = state else { return Ok(None) };
            let is_over = !state.encode().await?;
            let encoded = std::mem::take(&mut state.encoded);
            Ok(match is_over {
                true => (!encoded.bytes.is_empty()).then_some((encoded, None)),
                false => Some((encoded, Some(state))),
            })
        });
        Ok(CopyOut { columns, binary, data: Box::pin(data), rows })
    }

    /// Writes a file on the server. One that exists is replaced, as in PostgreSQL.
    pub fn into_file(self, mut batches: Batches, path: &str) -> Result<u64> {
        let mut rows = 0;
        if self.options.format == CopyFormat::Parquet {
            let mut writer =
                ParquetWriter::create_with(Path::new(path), &self.names, &self.types, self.schema, &self.options)?;
            while let Some(batch) = batches.blocking_next() {
                writer.write(&batch?)?;
            }
            return writer.finish();
        }
        let mut writer = RowWriter::new(&self.names, &self.types, &self.options, &self.settings)?;
        let failed = |error: std::io::Error| Error::io(format!("write to file \"{path}\""), &error);
        let file =
            File::create(path).map_err(|error| Error::io(format!("open file \"{path}\" for writing"), &error))?;
        let mut file = BufWriter::new(file);
        let mut encoded = EncodedRows::default();
        writer.start(&mut encoded);
        while let Some(batch) = batches.blocking_next() {
            let batch = batch?;
            writer.write(&batch, &mut encoded)?;
            rows += batch.num_rows() as u64;
            file.write_all(&encoded.bytes).map_err(failed)?;
            encoded.clear();
        }
        writer.finish(&mut encoded);
        file.write_all(&encoded.bytes).map_err(failed)?;
        file.flush().map_err(failed)?;
        Ok(rows)
    }
}
