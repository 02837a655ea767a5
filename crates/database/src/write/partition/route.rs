//! Rows for a partitioned table, divided among the leaves batch by batch.

use super::PartitionTree;
use crate::write::writer::{ChecksOf, SHORT_ROW_GROUP_ROWS, TableWriter};
use crate::{Database, DatabaseVersion};
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, UInt32Array};
use arrow_schema::{ArrowError, DataType};
use arrow_select::take::take_record_batch;
use std::sync::Arc;
use tidepool_base::{Error, Result};
use tidepool_table::TableVersion;

/// Unencoded bytes that a load into many partitions holds at most, beside row groups that are short.
const BUFFERED_BYTES_MAX: usize = 512 << 20;

/// Where a partitioned table's writer puts rows.
pub(crate) struct Routing {
    pub tree: Arc<PartitionTree>,
    database: Arc<Database>,
    version: Arc<DatabaseVersion>,
    checks: Option<ChecksOf>,
    /// Of the leaves that rows came for, by ordinal.
    writers: Vec<Option<Box<TableWriter>>>,
}

/// Rows of a batch that belong to one leaf.
pub(crate) struct Share {
    pub ordinal: usize,
    /// Their places in the batch.
    pub places: Vec<u32>,
    pub rows: RecordBatch,
}

impl Routing {
    pub fn new(database: Arc<Database>, version: Arc<DatabaseVersion>, tree: Arc<PartitionTree>) -> Routing {
        let writers = tree.leaves().iter().map(|_| None).collect();
        Routing { tree, database, version, checks: None, writers }
    }

    pub fn set_checks(&mut self, checks: ChecksOf) {
        self.checks = Some(checks);
    }

    pub fn leaf(&self, ordinal: usize) -> Result<Arc<TableVersion>> {
        let leaf = self.tree.leaves().get(ordinal).and_then(|id| self.version.table_by_id(*id));
        leaf.ok_or_else(|| Error::internal("a row is of a partition that is not there"))
    }

    /// What writes to a leaf, without looking whether rows belong there.
    pub fn writer(&mut self, ordinal: usize) -> Result<&mut TableWriter> {
        if self.writers[ordinal].is_none() {
            let leaf = self.leaf(ordinal)?;
            let mut writer = TableWriter::new(self.database.clone(), leaf.clone());
            if let Some(checks) = &self.checks
                && !leaf.def.checks.is_empty()
            {
                writer = writer.with_checks(checks(&leaf.def)?);
            }
            self.writers[ordinal] = Some(Box::new(writer));
        }
        self.writers[ordinal].as_deref_mut().ok_or_else(|| Error::internal("a partition has no writer"))
    }

    /// The leaves' writers, in order.
    pub fn into_writers(self) -> impl Iterator<Item = TableWriter> {
        self.writers.into_iter().flatten().map(|writer| *writer)
    }

    pub fn writers_mut(&mut self) -> impl Iterator<Item = &mut TableWriter> {
        self.writers.iter_mut().flatten().map(|writer| &mut **writer)
    }

    pub fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        for share in self.tree.shares(batch)? {
            self.writer(share.ordinal)?.write(&share.rows)?;
        }
        let buffered: usize = self.writers.iter().flatten().map(|writer| writer.buffered_bytes()).sum();
        if buffered > BUFFERED_BYTES_MAX {
            let long = self.writers_mut().filter(|writer| writer.buffered_rows() >= SHORT_ROW_GROUP_ROWS);
            if let Some(largest) = long.max_by_key(|writer| writer.buffered_bytes()) {
                largest.seal()?;
            }
        }
        Ok(())
    }
}

impl PartitionTree {
    /// Divides rows, in the table's types. 23514 for a row that belongs nowhere.
    pub(crate) fn shares(&self, batch: &RecordBatch) -> Result<Vec<Share>> {
        let ordinals = self.route(batch)?;
        let Some(first) = ordinals.first() else { return Ok(Vec::new()) };
        if ordinals.iter().all(|ordinal| ordinal == first) {
            let places = (0..batch.num_rows() as u32).collect();
            return Ok(vec![Share { ordinal: *first as usize, places, rows: batch.clone() }]);
        }
        let mut places: Vec<Vec<u32>> = vec![Vec::new(); self.leaves().len()];
        for (row, ordinal) in ordinals.iter().enumerate() {
            places[*ordinal as usize].push(row as u32);
        }
        let used = places.into_iter().enumerate().filter(|(_, places)| !places.is_empty());
        used.map(|(ordinal, places)| Ok(Share { ordinal, rows: pick(batch, &places)?, places })).collect()
    }
}

/// Some rows of a batch, without what is left of its texts.
pub(crate) fn pick(batch: &RecordBatch, places: &[u32]) -> Result<RecordBatch> {
    let broken = |error: ArrowError| Error::internal(format!("rows cannot be divided: {error}"));
    let picked = take_record_batch(batch, &UInt32Array::from(places.to_vec())).map_err(broken)?;
    let own = |column: &ArrayRef| -> ArrayRef {
        match column.data_type() {
            DataType::Utf8View => Arc::new(column.as_string_view().gc()),
            DataType::BinaryView => Arc::new(column.as_binary_view().gc()),
            _ => column.clone(),
        }
    };
    let columns = picked.columns().iter().map(own).collect();
    RecordBatch::try_new(picked.schema(), columns).map_err(broken)
}
