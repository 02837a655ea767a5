//! Parquet files: read a row group at a time into a table's types, and written.

use super::{CopyOptions, ParquetCompression, read_batch, targets};
use crate::text::numeric::{self, NUMERIC};
use crate::text::{TextReader, TextSettings, TextWriter, cross_clocks, crosses_clocks};
use arrow_array::cast::AsArray;
use arrow_array::types::{IntervalDayTimeType, IntervalYearMonthType};
use arrow_array::{Array, ArrayRef, IntervalMonthDayNanoArray, RecordBatch, RecordBatchOptions, StringViewArray};
use arrow_buffer::{IntervalDayTime, IntervalMonthDayNano};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType, Field, IntervalUnit, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::metadata::ParquetMetaData;
use parquet::file::properties::WriterProperties;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState, SqlType};
use tidepool_table::{BATCH_ROWS, TableDef, arrow_type};

fn open(path: &Path) -> Result<ParquetRecordBatchReaderBuilder<File>> {
    let shown = path.display();
    let file =
        File::open(path).map_err(|error| Error::io(format_args!("open file \"{shown}\" for reading"), &error))?;
    let metadata = file.metadata().map_err(|error| Error::io(format_args!("read file \"{shown}\""), &error))?;
    if metadata.is_dir() {
        return Err(Error::new(SqlState::WRONG_OBJECT_TYPE, format!("\"{shown}\" is a directory")));
    }
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    guarded(path, || ParquetRecordBatchReaderBuilder::try_new_with_options(file, options))?.map_err(|error| {
        Error::new(SqlState::BAD_COPY_FILE_FORMAT, format!("\"{shown}\" is not a whole Parquet file"))
            .with_detail(sentence(&error.to_string()))
    })
}

/// Runs a part of the Parquet reader. It panics at some damage that it could have reported.
fn guarded<T>(path: &Path, part: impl FnOnce() -> T) -> Result<T> {
    // Whatever a panic leaves half done is dropped with the file's reader.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(part)).map_err(|_| {
        Error::new(SqlState::BAD_COPY_FILE_FORMAT, format!("Parquet file \"{}\" is damaged", path.display()))
    })
}

/// Detail lines are sentences.
fn sentence(text: &str) -> String {
    if text.ends_with('.') { text.to_owned() } else { format!("{text}.") }
}

fn read_error(path: &Path, error: &dyn std::fmt::Display) -> Error {
    let text = error.to_string();
    if text.contains("Disabled feature") {
        return Error::unsupported(format!("\"{}\" uses a Parquet compression that is not supported", path.display()))
            .with_detail(sentence(&text))
            .with_hint("Supported are none, snappy, gzip and zstd.");
    }
    Error::new(SqlState::BAD_COPY_FILE_FORMAT, format!("could not read Parquet file \"{}\"", path.display()))
        .with_detail(sentence(&text))
}

/// A Parquet file's rows as the session of `settings` takes them, columns matched by name (case-insensitively) or, if none matches, by position, and cast to the
/// table's types.
///
/// 42703 when a column is missing, 22003 or 22P02 when a value does not fit, 22P04 for files that are none.
pub fn read_parquet(
    path: &Path,
    def: &TableDef,
    columns: &[usize],
    settings: &TextSettings,
) -> Result<Box<dyn Iterator<Item = Result<RecordBatch>> + Send>> {
    let builder = open(path)?;
    let file_schema = builder.schema().clone();
    let wanted = targets(def, columns)?;
    let by_name = |name: &str| {
        let fields = file_schema.fields();
        fields
            .iter()
            .position(|field| field.name() == name)
            .or_else(|| fields.iter().position(|field| field.name().eq_ignore_ascii_case(name)))
    };
    let mut sources: Vec<Option<usize>> = wanted.iter().map(|(column, _)| by_name(&column.name)).collect();
    if sources.iter().all(Option::is_none) && file_schema.fields().len() == wanted.len() {
        sources = (0..wanted.len()).map(Some).collect();
    }
    let mut indexes = Vec::with_capacity(wanted.len());
    for ((column, _), source) in wanted.iter().zip(sources) {
        indexes.push(source.ok_or_else(|| {
            let names: Vec<&str> = file_schema.fields().iter().map(|field| field.name().as_str()).collect();
            Error::new(
                SqlState::UNDEFINED_COLUMN,
                format!("column \"{}\" is missing from Parquet file \"{}\"", column.name, path.display()),
            )
            .with_detail(format!("The file has columns {}.", names.join(", ")))
        })?);
    }
    let mask = ProjectionMask::roots(builder.parquet_schema(), indexes.iter().copied());
    let metadata = builder.metadata().clone();
    let reader = guarded(path, || builder.with_projection(mask).with_batch_size(BATCH_ROWS).build())?
        .map_err(|error| read_error(path, &error))?;
    // The reader hands out the chosen columns in the file's order.
    let mut order: Vec<usize> = indexes.clone();
    order.sort_unstable();
    order.dedup();
    let targets = wanted
        .into_iter()
        .zip(indexes)
        .map(|((column, field), index)| Target {
            position: order.binary_search(&index).unwrap_or(0),
            sql_type: column.sql_type,
            field,
        })
        .collect::<Vec<_>>();
    let schema = Arc::new(Schema::new(targets.iter().map(|target| target.field.clone()).collect::<Vec<_>>()));
    let months = Months::open(path, metadata, &file_schema, &order)?;
    Ok(Box::new(ParquetRows {
        reader,
        months,
        targets,
        schema,
        path: path.to_owned(),
        table: def.name.clone(),
        settings: settings.clone(),
        rows: 0,
        failed: false,
    }))
}

struct Target {
    position: usize,
    sql_type: SqlType,
    field: Field,
}

/// The months of a file's intervals. Parquet's are of months, days and milliseconds, of which the reader hands out either the months or
/// the others: so they are read twice.
struct Months {
    reader: ParquetRecordBatchReader,
    /// The intervals among the columns that the other reader hands out.
    positions: Vec<usize>,
}

impl Months {
    /// `None` where no column of `order` has intervals.
    fn open(
        path: &Path,
        metadata: Arc<ParquetMetaData>,
        schema: &SchemaRef,
        order: &[usize],
    ) -> Result<Option<Months>> {
        let is_interval = |index: usize| matches!(schema.field(index).data_type(), DataType::Interval(_));
        let positions: Vec<usize> = (0..order.len()).filter(|position| is_interval(order[*position])).collect();
        if positions.is_empty() {
            return Ok(None);
        }
        let of_months = |(index, field): (usize, &Arc<Field>)| match is_interval(index) {
            true => Arc::new(field.as_ref().clone().with_data_type(DataType::Interval(IntervalUnit::YearMonth))),
            false => field.clone(),
        };
        let fields: Vec<_> = schema.fields().iter().enumerate().map(of_months).collect();
        let options = ArrowReaderOptions::new()
            .with_skip_arrow_metadata(true)
            .with_schema(Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone())));
        let file = File::open(path)
            .map_err(|error| Error::io(format_args!("open file \"{}\" for reading", path.display()), &error))?;
        let reader = guarded(path, || {
            let metadata = ArrowReaderMetadata::try_new(metadata, options)?;
            let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata);
            let roots = positions.iter().map(|position| order[*position]);
            let mask = ProjectionMask::roots(builder.parquet_schema(), roots);
            builder.with_projection(mask).with_batch_size(BATCH_ROWS).build()
        })?;
        let reader = reader.map_err(|error| read_error(path, &error))?;
        Ok(Some(Months { reader, positions }))
    }

    /// The next batch of the other reader with its intervals whole.
    fn add_to(&mut self, batch: &RecordBatch, path: &Path) -> Result<RecordBatch> {
        let reader = &mut self.reader;
        let months = guarded(path, || reader.next())?;
        let months = months.transpose().map_err(|error| read_error(path, &error))?;
        let damaged = || read_error(path, &"Its intervals are not as long as its other columns");
        let months = months.filter(|months| months.num_rows() == batch.num_rows()).ok_or_else(damaged)?;
        let (mut fields, mut columns) = (batch.schema().fields().to_vec(), batch.columns().to_vec());
        for (position, months) in self.positions.iter().zip(months.columns()) {
            let months = months.as_primitive_opt::<IntervalYearMonthType>().ok_or_else(damaged)?;
            let rest = columns[*position].as_primitive_opt::<IntervalDayTimeType>().ok_or_else(damaged)?;
            let whole = rest.iter().zip(months.values()).map(|(rest, months)| {
                let nanoseconds = |rest: IntervalDayTime| i64::from(rest.milliseconds as u32) * 1_000_000;
                rest.map(|rest| IntervalMonthDayNano::new(*months, rest.days, nanoseconds(rest)))
            });
            let whole: IntervalMonthDayNanoArray = whole.collect();
            let data_type = whole.data_type().clone();
            fields[*position] = Arc::new(fields[*position].as_ref().clone().with_data_type(data_type));
            columns[*position] = Arc::new(whole);
        }
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(|error| read_error(path, &error))
    }
}

struct ParquetRows {
    reader: ParquetRecordBatchReader,
    months: Option<Months>,
    targets: Vec<Target>,
    schema: SchemaRef,
    path: PathBuf,
    table: String,
    settings: TextSettings,
    rows: u64,
    failed: bool,
}

impl ParquetRows {
    fn convert(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let mut columns = Vec::with_capacity(self.targets.len());
        for target in &self.targets {
            let array = batch.column(target.position);
            columns.push(convert(array, target.sql_type, &self.settings).map_err(|error| {
                error.with_context(format!(
                    "COPY {}, file \"{}\", rows {} to {}, column {}",
                    self.table,
                    self.path.display(),
                    self.rows + 1,
                    self.rows + batch.num_rows() as u64,
                    target.field.name()
                ))
            })?);
        }
        read_batch(&self.schema, columns, batch.num_rows())
    }
}

impl Iterator for ParquetRows {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Result<RecordBatch>> {
        if self.failed {
            return None;
        }
        let reader = &mut self.reader;
        let converted = match guarded(&self.path, || reader.next()).transpose()? {
            Ok(Ok(batch)) => {
                let whole = match &mut self.months {
                    Some(months) => months.add_to(&batch, &self.path),
                    None => Ok(batch),
                };
                whole.and_then(|batch| self.convert(&batch).inspect(|_| self.rows += batch.num_rows() as u64))
            }
            Ok(Err(error)) => Err(read_error(&self.path, &error)),
            Err(error) => Err(error),
        };
        self.failed = converted.is_err();
        Some(converted)
    }
}

/// An array of any type as the storage type of `sql_type`, values checked.
fn convert(array: &ArrayRef, sql_type: SqlType, settings: &TextSettings) -> Result<ArrayRef> {
    let target = arrow_type(sql_type);
    let source = match array.data_type() {
        // Annotated uuids come as sixteen bytes.
        DataType::FixedSizeBinary(16) if sql_type == SqlType::Uuid => {
            let bytes = array.as_fixed_size_binary();
            let mut reader = crate::text::BinaryReader::new(sql_type);
            for row in 0..bytes.len() {
                if bytes.is_null(row) { reader.append_null() } else { reader.append(bytes.value(row))? }
            }
            return Ok(reader.finish());
        }
        DataType::Dictionary(_, values) => cast(array, values, sql_type)?,
        _ => array.clone(),
    };
    let textual = |data_type: &DataType| matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    if textual(source.data_type()) {
        check_texts(&source)?;
    }
    let plain_text = matches!(sql_type, SqlType::Text | SqlType::Varchar { length_max: None });
    match (textual(source.data_type()), textual(&target)) {
        (true, true) if plain_text => cast(&source, &target, sql_type),
        // Texts are read as COPY reads them; lengths, uuids and JSON are checked on the way.
        (true, _) => {
            let texts = cast(&source, &DataType::Utf8View, sql_type)?;
            let texts: &StringViewArray = texts.as_string_view();
            let mut reader = TextReader::new(sql_type, settings);
            for text in texts {
                match text {
                    Some(text) => reader.append(text)?,
                    None => reader.append_null(),
                }
            }
            Ok(reader.finish())
        }
        (false, true) => {
            if matches!(source.data_type(), DataType::Binary | DataType::LargeBinary | DataType::BinaryView) {
                // Writers that do not annotate their strings.
                let texts = cast(&source, &DataType::Utf8View, sql_type)?;
                return convert(&texts, sql_type, settings);
            }
            let writer = TextWriter::new(&source, sql_type, settings)?;
            let mut reader = TextReader::new(sql_type, settings);
            let mut text = Vec::new();
            for row in 0..source.len() {
                text.clear();
                if writer.write(row, &mut text) {
                    reader.append(crate::text::utf8(&text)?)?
                } else {
                    reader.append_null()
                }
            }
            Ok(reader.finish())
        }
        (false, false) => {
            if let (DataType::Float32 | DataType::Float64, DataType::Int16 | DataType::Int32 | DataType::Int64) =
                (source.data_type(), &target)
            {
                return Err(Error::new(
                    SqlState::DATATYPE_MISMATCH,
                    format!("values of type {} cannot be copied into a column of type {sql_type}", source.data_type()),
                ));
            }
            // As an assignment does: by the session's clock.
            if crosses_clocks(source.data_type(), &target) {
                return cross_clocks(&source, &target, settings.zone()?);
            }
            cast(&source, &target, sql_type)
        }
    }
}

/// 22021 for texts that no other way would take: with a zero byte.
fn check_texts(array: &ArrayRef) -> Result<()> {
    let zero_in = |text: Option<&str>| text.is_some_and(|text| memchr::memchr(0, text.as_bytes()).is_some());
    let has_zero = match array.data_type() {
        DataType::Utf8 => array.as_string::<i32>().iter().any(zero_in),
        DataType::LargeUtf8 => array.as_string::<i64>().iter().any(zero_in),
        _ => array.as_string_view().iter().any(zero_in),
    };
    if has_zero { crate::text::utf8(&[0]).map(drop) } else { Ok(()) }
}

fn cast(array: &ArrayRef, target: &DataType, sql_type: SqlType) -> Result<ArrayRef> {
    if array.data_type() == target {
        return Ok(array.clone());
    }
    let is_numeric = |data_type: &DataType| *data_type == NUMERIC;
    if is_numeric(target) || is_numeric(array.data_type()) {
        let cast = if is_numeric(target) { numeric::from_array(array) } else { numeric::into_array(array, target) };
        if let Some(cast) = cast {
            return cast;
        }
    }
    if !arrow_cast::can_cast_types(array.data_type(), target) {
        return Err(Error::new(
            SqlState::DATATYPE_MISMATCH,
            format!("values of type {} cannot be copied into a column of type {sql_type}", array.data_type()),
        ));
    }
    cast_with_options(array, target, &CastOptions { safe: false, ..CastOptions::default() }).map_err(|error| {
        Error::new(SqlState::NUMERIC_VALUE_OUT_OF_RANGE, format!("value is out of range for type {sql_type}"))
            .with_detail(sentence(&error.to_string()))
    })
}

/// The table definition that a Parquet file suggests (for `CREATE TABLE` helpers in CLI and bench).
pub fn parquet_schema(path: &Path) -> Result<SchemaRef> {
    Ok(open(path)?.schema().clone())
}

/// A Parquet file being written. Dropped unfinished, the file is removed.
pub struct ParquetWriter {
    writer: Option<ArrowWriter<File>>,
    path: PathBuf,
    schema: SchemaRef,
    types: Vec<SqlType>,
    rows: u64,
}

impl ParquetWriter {
    pub fn create(path: &Path, names: &[String], types: &[SqlType], schema: SchemaRef) -> Result<ParquetWriter> {
        ParquetWriter::create_with(path, names, types, schema, &CopyOptions::new(super::CopyFormat::Parquet))
    }

    /// With the compression that `options` names.
    pub fn create_with(
        path: &Path,
        names: &[String],
        types: &[SqlType],
        schema: SchemaRef,
        options: &CopyOptions,
    ) -> Result<ParquetWriter> {
        let fields = schema
            .fields()
            .iter()
            .zip(names)
            .map(|(field, name)| Field::new(name, written_type(field.data_type()), true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let compression = match options.compression {
            ParquetCompression::None => Compression::UNCOMPRESSED,
            ParquetCompression::Snappy => Compression::SNAPPY,
            ParquetCompression::Zstd => Compression::ZSTD(ZstdLevel::default()),
        };
        let properties = WriterProperties::builder()
            .set_compression(compression)
            .set_created_by(concat!("tidepool ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let file = File::create(path)
            .map_err(|error| Error::io(format_args!("open file \"{}\" for writing", path.display()), &error))?;
        let writer = ArrowWriter::try_new(file, schema.clone(), Some(properties)).map_err(|error| {
            let _ = std::fs::remove_file(path);
            write_error(path, error)
        })?;
        Ok(ParquetWriter { writer: Some(writer), path: path.to_owned(), schema, types: types.to_vec(), rows: 0 })
    }

    pub fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let internal = |error: arrow_schema::ArrowError| Error::internal(error.to_string());
        if batch.num_columns() != self.schema.fields().len() || self.types.len() < batch.num_columns() {
            return Err(Error::internal("a batch's columns are not those of its COPY"));
        }
        let mut columns = Vec::with_capacity(batch.num_columns());
        for ((array, field), sql_type) in batch.columns().iter().zip(self.schema.fields()).zip(&self.types) {
            let (from, to) = (array.data_type(), field.data_type());
            columns.push(if from == to {
                array.clone()
            } else if written_as_text(from) {
                let writer = TextWriter::new(array, *sql_type, &TextSettings::default())?;
                let mut texts = TextReader::new(SqlType::Text, &TextSettings::default());
                let mut text = Vec::new();
                for row in 0..array.len() {
                    text.clear();
                    if writer.write(row, &mut text) {
                        texts.append(crate::text::utf8(&text)?)?
                    } else {
                        texts.append_null()
                    }
                }
                texts.finish()
            } else {
                arrow_cast::cast(array, to).map_err(internal)?
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let batch = RecordBatch::try_new_with_options(self.schema.clone(), columns, &options).map_err(internal)?;
        if let Some(writer) = &mut self.writer {
            writer.write(&batch).map_err(|error| write_error(&self.path, error))?;
        }
        self.rows += batch.num_rows() as u64;
        Ok(())
    }

    /// Completes the file. Returns the rows written.
    pub fn finish(mut self) -> Result<u64> {
        if let Some(writer) = self.writer.take() {
            let closed = writer.close().map_err(|error| write_error(&self.path, error));
            if closed.is_err() {
                let _ = std::fs::remove_file(&self.path);
            }
            closed?;
        }
        Ok(self.rows)
    }
}

impl Drop for ParquetWriter {
    fn drop(&mut self) {
        if self.writer.take().is_some() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Types that Parquet has no place for, as text.
fn written_as_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Interval(IntervalUnit::MonthDayNano) | DataType::Duration(_) | DataType::Null)
        || *data_type == NUMERIC
}

fn written_type(data_type: &DataType) -> DataType {
    match data_type {
        _ if written_as_text(data_type) => DataType::Utf8View,
        DataType::Dictionary(_, values) => values.as_ref().clone(),
        other => other.clone(),
    }
}

fn write_error(path: &Path, error: ParquetError) -> Error {
    let action = format!("write file \"{}\"", path.display());
    match error {
        ParquetError::External(source) => match source.downcast::<std::io::Error>() {
            Ok(error) => Error::io(action, &error),
            Err(error) => Error::new(SqlState::IO_ERROR, format!("could not {action}: {error}")),
        },
        error => Error::new(SqlState::IO_ERROR, format!("could not {action}: {error}")),
    }
}
