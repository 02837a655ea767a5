//! Tables as sources.

use crate::dictionary::Dictionary;
use crate::pipeline::{Next, Reader, Source};
use crate::text::{Owners, Text};
use crate::touch::Account;
use crate::types::{Class, ColumnType, fits_i64};
use crate::vector::{CHUNK_ROWS, Chunk, Vector};
use arrow_buffer::Buffer;
use parking_lot::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use tidepool_base::Result;
use tidepool_table::{
    ColumnDictionary, ColumnFilter, Datum, DeltaColumn, Form, IndexAccess, KeyTest, ROW_GROUP_ROWS, ScanReader,
    ScanRequest, TableScan, TableVersion,
};

/// What a column of some versions of tables has, and what scans hand it out as. Versions are of one definition's columns.
#[derive(Clone, Debug)]
pub struct ScanColumn {
    /// In the tables.
    pub column: usize,
    pub of: ColumnType,
    forms: Vec<Form>,
}

impl ScanColumn {
    /// What is known for certain of some columns' values in these versions, each as its snapshot sees it. `looks`: delta is read for it,
    /// which does not pay for a few rows.
    pub fn of(
        versions: &[Arc<TableVersion>],
        columns: Vec<(usize, ColumnType)>,
        looks: bool,
    ) -> Result<Vec<ScanColumn>> {
        // Codes are of one version's dictionary.
        let coded = |column: &usize, of: &ColumnType| match versions {
            [version] => of.class() == Class::Text && version.main_has_dictionaries(*column),
            _ => false,
        };
        let is_settled = versions.iter().all(|version| version.is_settled());
        // Rows' ids come after the columns, and have no segments.
        let is_id = |column: usize| versions.iter().any(|version| column >= version.def.columns.len());
        let looked_at = |(column, of): &(usize, ColumnType)| {
            !is_id(*column) && (is_settled || of.class() != Class::Text || coded(column, of))
        };
        let wanted: Vec<usize> = columns.iter().filter(|column| looked_at(column)).map(|(column, _)| *column).collect();
        let of_delta = |version: &Arc<TableVersion>| match looks || is_settled {
            true => version.delta_columns(&wanted),
            false => Ok(None),
        };
        let deltas = versions.iter().map(of_delta).collect::<Result<Vec<_>>>()?;
        let deltas: Option<Vec<Vec<Arc<DeltaColumn>>>> = deltas.into_iter().collect();
        let of = |(column, of): (usize, ColumnType)| {
            if is_id(column) {
                return Ok(ScanColumn { column, of, forms: Vec::new() });
            }
            let place = wanted.iter().position(|wanted| *wanted == column);
            let deltas = deltas.as_ref().zip(place);
            let deltas: Option<Vec<&DeltaColumn>> =
                deltas.map(|(deltas, place)| deltas.iter().map(|columns| &*columns[place]).collect());
            ScanColumn::known(versions, deltas.as_deref(), column, of)
        };
        columns.into_iter().map(of).collect()
    }

    /// `deltas`: of each version, if they were looked at.
    fn known(
        versions: &[Arc<TableVersion>],
        deltas: Option<&[&DeltaColumn]>,
        column: usize,
        mut of: ColumnType,
    ) -> Result<ScanColumn> {
        if let Some(deltas) = deltas {
            let groups = || versions.iter().flat_map(|version| &version.row_groups);
            let main = groups().map(|group| Ok((group.rows() as u64, group.segments()[column].statistics()?)));
            let main = main.collect::<Result<Vec<_>>>()?;
            let has_nulls = main.iter().any(|(_, statistics)| statistics.null_count > 0)
                || deltas.iter().any(|delta| delta.nulls > 0);
            of.nullable &= has_nulls;
            if of.bounds.is_some() {
                let value = |datum: &Option<Datum>| match datum {
                    Some(Datum::Int(value)) => Some(i128::from(*value)),
                    Some(Datum::Decimal(value)) => Some(*value),
                    _ => None,
                };
                let main = main.iter().map(|(rows, statistics)| {
                    // All is NULL: a decoder may hand out anything there, which is 0.
                    if statistics.null_count == *rows {
                        return Some((0, 0));
                    }
                    value(&statistics.min).zip(value(&statistics.max))
                });
                let delta = deltas.iter().filter(|delta| delta.rows > 0);
                let delta = delta.map(|delta| if delta.rows == delta.nulls { Some((0, 0)) } else { delta.bounds });
                let all = main.chain(delta).reduce(|a, b| {
                    let ((a, b), (c, d)) = a.zip(b)?;
                    Some((a.min(c), b.max(d)))
                });
                match all {
                    Some(Some(bounds)) => of = of.within(bounds),
                    Some(None) => {}
                    None => of = of.within((0, 0)),
                }
            }
        }
        let mut forms = Vec::new();
        if of.class() == Class::Int {
            forms = vec![Form::Ints; versions.len()];
        } else if let ([version], Some([delta]), Class::Text) = (versions, deltas, of.class())
            && let Some(dictionary) = version.dictionary(column, delta)?
        {
            of = of.in_dictionary(dictionary.derived(|| engine_dictionary(&dictionary))?);
            of.bounds = Some((0, (dictionary.values().len() as i128 - 1).max(0)));
            forms = vec![Form::Codes(dictionary)];
        }
        debug_assert!(of.class() != Class::Int || of.bounds.is_some_and(fits_i64));
        Ok(ScanColumn { column, of, forms })
    }

    fn form(&self, part: usize) -> Form {
        self.forms.get(part).cloned().unwrap_or_default()
    }
}

/// The engine's form of a column's dictionary.
fn engine_dictionary(dictionary: &ColumnDictionary) -> Dictionary {
    let mut bytes = Vec::with_capacity(dictionary.values().iter().map(|value| value.len()).sum());
    dictionary.values().iter().for_each(|value| bytes.extend_from_slice(value));
    let buffer = Buffer::from_vec(bytes);
    let mut start = 0;
    let texts = dictionary.values().iter().map(|value| {
        start += value.len();
        // SAFETY: the buffer becomes the values' owner just below.
        unsafe { Text::new(&buffer[start - value.len()..start]) }
    });
    let texts = texts.collect();
    Dictionary::new(texts, Owners::of(vec![buffer.clone()]))
}

/// A table, or a partition of one, and how its rows are reached.
#[derive(Clone)]
pub struct ScanPart {
    pub version: Arc<TableVersion>,
    /// Through an index, instead of all of the table.
    pub access: Option<Arc<IndexAccess>>,
}

/// Keys that are known once an earlier pipeline has run.
pub type KeysLater = Arc<dyn Fn() -> Option<Arc<dyn KeyTest>> + Send + Sync>;

/// Told of each storage scan that is opened.
pub type Opened = Arc<dyn Fn(&Arc<TableScan>) + Send + Sync>;

/// Reads the columns of a table, of the rows that pass some filters.
pub struct ScanSource {
    pub parts: Vec<ScanPart>,
    pub columns: Vec<ScanColumn>,
    /// Over the tables' columns.
    pub filters: Vec<ColumnFilter>,
    /// By column of the tables.
    pub runtime: Mutex<Vec<(usize, KeysLater)>>,
    pub limit: Option<usize>,
    /// What people see of it.
    pub shown: Arc<dyn fmt::Display + Send + Sync>,
    opened: Option<Opened>,
    account: Option<Arc<dyn Account>>,
    chunk_rows: usize,
    scans: OnceLock<Vec<Arc<TableScan>>>,
    /// Storage scans of it and of those that were made of it.
    history: Arc<Mutex<Vec<Arc<TableScan>>>>,
}

impl ScanSource {
    pub fn new(
        parts: Vec<ScanPart>,
        columns: Vec<ScanColumn>,
        filters: Vec<ColumnFilter>,
        limit: Option<usize>,
        shown: Arc<dyn fmt::Display + Send + Sync>,
    ) -> ScanSource {
        let (runtime, scans, history) = (Mutex::default(), OnceLock::new(), Arc::default());
        ScanSource {
            parts,
            columns,
            filters,
            runtime,
            limit,
            shown,
            opened: None,
            account: None,
            chunk_rows: CHUNK_ROWS,
            scans,
            history,
        }
    }

    /// Nothing is looked at of rows: there is nothing that larger chunks would push out of the caches.
    pub fn reads_nothing(&self) -> bool {
        self.columns.is_empty() && self.filters.is_empty()
    }

    /// The same, in chunks as large as row groups, for a sink that only counts rows.
    pub fn in_row_groups(self) -> ScanSource {
        ScanSource { chunk_rows: ROW_GROUP_ROWS, ..self }
    }

    /// The same, to be read once more. `opened` is told of its storage scans, `account` of what they read.
    pub fn afresh(&self, opened: Option<Opened>, account: Option<Arc<dyn Account>>) -> ScanSource {
        let all: Vec<usize> = (0..self.columns.len()).collect();
        ScanSource { opened, account, ..self.narrowed(&all) }
    }

    /// Of some of its columns, in that order.
    pub fn narrowed(&self, columns: &[usize]) -> ScanSource {
        ScanSource {
            parts: self.parts.clone(),
            columns: columns.iter().map(|column| self.columns[*column].clone()).collect(),
            filters: self.filters.clone(),
            runtime: Mutex::default(),
            limit: self.limit,
            shown: Arc::clone(&self.shown),
            opened: None,
            account: None,
            chunk_rows: CHUNK_ROWS,
            scans: OnceLock::new(),
            history: Arc::clone(&self.history),
        }
    }

    fn open(&self) -> Vec<Arc<TableScan>> {
        let mut filters = self.filters.clone();
        let runtime = self.runtime.lock();
        for (column, keys) in runtime.iter() {
            filters.extend(keys().map(|keys| ColumnFilter::Keys { column: *column, keys }));
        }
        let limit = self.limit.map(|limit| Arc::new(AtomicUsize::new(limit)));
        let rows_total = self.parts.iter().map(|part| part.version.rows_max()).sum();
        let reads: Vec<usize> = self.columns.iter().map(|column| column.column).collect();
        let scan = |(index, part): (usize, &ScanPart)| {
            let by_keys = match (&part.access, runtime.is_empty()) {
                (None, false) => IndexAccess::choose_by_keys(&part.version, &filters, &reads).map(Arc::new),
                _ => None,
            };
            let request = ScanRequest {
                projection: reads.clone(),
                filters: filters.clone(),
                dynamic: None,
                limit: limit.clone(),
                batch_rows: self.chunk_rows,
                forms: self.columns.iter().map(|column| column.form(index)).collect(),
            };
            let scan = match part.access.as_ref().or(by_keys.as_ref()) {
                Some(access) => TableScan::through(Arc::clone(&part.version), request, access),
                None => TableScan::among(Arc::clone(&part.version), request, rows_total),
            };
            if let Some(opened) = &self.opened {
                opened(&scan);
            }
            scan
        };
        let scans: Vec<_> = self.parts.iter().enumerate().map(scan).collect();
        self.history.lock().extend(scans.iter().cloned());
        scans
    }

    /// The storage scans of each time that it ran.
    pub fn history(&self) -> Vec<Arc<TableScan>> {
        self.history.lock().clone()
    }
}

impl Source for ScanSource {
    fn reader(&self) -> Result<Box<dyn Reader>> {
        let scans = self.scans.get_or_init(|| self.open());
        let types = self.columns.iter().map(|column| column.of.clone()).collect();
        let account = self.account.clone();
        let window_bytes = account.as_ref().map_or(0, |account| account.window_bytes());
        Ok(Box::new(TableReader {
            scans: scans.clone(),
            types,
            part: 0,
            reader: None,
            account,
            untold: 0,
            window_bytes,
        }))
    }

    fn parallelism(&self) -> Result<usize> {
        let pieces = |part: &ScanPart| match part.access {
            Some(_) => 1,
            None => part.version.row_groups.len() + part.version.headed().len(),
        };
        // Small tables are cut finer, which does not pay for a few rows.
        let rows: u64 = self.parts.iter().map(|part| part.version.rows_max()).sum();
        let pieces: usize = self.parts.iter().map(pieces).sum();
        Ok(pieces.max(rows as usize / (8 * CHUNK_ROWS)).max(1))
    }
}

struct TableReader {
    scans: Vec<Arc<TableScan>>,
    types: Vec<ColumnType>,
    part: usize,
    reader: Option<ScanReader>,
    account: Option<Arc<dyn Account>>,
    /// Bytes that were read and the account does not know of, and how many that may be.
    untold: u64,
    window_bytes: u64,
}

impl TableReader {
    fn tell(&mut self) {
        if let Some(account) = &self.account {
            account.stream(std::mem::take(&mut self.untold));
        }
    }
}

impl Drop for TableReader {
    fn drop(&mut self) {
        self.tell();
    }
}

impl Reader for TableReader {
    fn next(&mut self) -> Result<Next> {
        loop {
            let Some(scan) = self.scans.get(self.part) else { return Ok(Next::End) };
            let reader = self.reader.get_or_insert_with(|| scan.reader());
            let batch = reader.next_batch()?;
            if self.account.is_some() {
                self.untold += reader.take_bytes_read();
                if self.untold >= self.window_bytes {
                    self.tell();
                }
            }
            let Some(batch) = batch else {
                self.part += 1;
                self.reader = None;
                continue;
            };
            let columns = batch.columns().iter().zip(&self.types);
            let columns = columns.map(|(array, of)| Vector::from_arrow(array, of)).collect::<Result<Vec<_>>>()?;
            return Ok(Next::Chunk(Chunk::new(batch.num_rows(), columns)));
        }
    }
}

/// Rows that are known when the plan is made.
pub struct ChunkSource {
    pub chunks: Vec<Chunk>,
    next: Arc<AtomicUsize>,
}

impl ChunkSource {
    pub fn new(chunks: Vec<Chunk>) -> ChunkSource {
        ChunkSource { chunks, next: Arc::default() }
    }
}

impl Source for ChunkSource {
    fn reader(&self) -> Result<Box<dyn Reader>> {
        Ok(Box::new(ChunkReader { chunks: self.chunks.clone(), next: Arc::clone(&self.next) }))
    }

    fn parallelism(&self) -> Result<usize> {
        Ok(self.chunks.len().max(1))
    }
}

struct ChunkReader {
    chunks: Vec<Chunk>,
    next: Arc<AtomicUsize>,
}

impl Reader for ChunkReader {
    fn next(&mut self) -> Result<Next> {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        Ok(self.chunks.get(next).cloned().map_or(Next::End, Next::Chunk))
    }
}
