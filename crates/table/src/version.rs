use crate::sketch::Sketch;
use crate::{ColumnStatistics, Datum, DeltaChunk, EncodingKind, ROW_GROUP_ROWS, RowGroup, TableDef, TableStatistics};
use arrow_array::RecordBatch;
use arrow_select::concat::concat_batches;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use tidepool_base::{Error, Result, RowGroupId};
use tidepool_tablespace::Tablespaces;

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

/// One immutable state of a table. Cheap to share; making the next one copies two vectors of pointers.
///
/// The fields are for reading: a next state is made by the `with_…` methods, which forget what was worked out of the rows.
#[derive(Clone, Debug)]
pub struct TableVersion {
    pub def: Arc<TableDef>,
    pub placement: Placement,
    pub row_groups: Vec<Arc<RowGroup>>,
    pub delta: Vec<Arc<DeltaChunk>>,
    statistics: Arc<OnceLock<Arc<TableStatistics>>>,
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
    pub fn new(def: Arc<TableDef>, placement: Placement) -> TableVersion {
        TableVersion { def, placement, row_groups: Vec::new(), delta: Vec::new(), statistics: Arc::default() }
    }

    /// The same table with other main rows.
    pub fn with_row_groups(&self, row_groups: Vec<Arc<RowGroup>>) -> TableVersion {
        TableVersion { row_groups, statistics: Arc::default(), ..self.clone() }
    }

    /// The same table with other unmerged rows.
    pub fn with_delta(&self, delta: Vec<Arc<DeltaChunk>>) -> TableVersion {
        TableVersion { delta, statistics: Arc::default(), ..self.clone() }
    }

    /// The same table whose rows go elsewhere from now on. Moves nothing.
    pub fn with_placement(&self, placement: Placement) -> TableVersion {
        TableVersion { placement, ..self.clone() }
    }

    /// The same rows under another definition, with as many columns of the same types.
    pub fn with_def(&self, def: Arc<TableDef>) -> TableVersion {
        TableVersion { def, ..self.clone() }
    }

    pub fn rows(&self) -> u64 {
        let main: u64 = self.row_groups.iter().map(|group| group.rows() as u64).sum();
        main + self.delta_rows()
    }

    pub fn delta_rows(&self) -> u64 {
        self.delta.iter().map(|chunk| chunk.batch().num_rows() as u64).sum()
    }

    /// Over main and delta; computed once a version and kept.
    pub fn statistics(&self) -> Arc<TableStatistics> {
        Arc::clone(self.statistics.get_or_init(|| {
            let columns = (0..self.def.columns.len()).map(|column| self.column_statistics(column)).collect();
            Arc::new(TableStatistics { rows: self.rows(), columns })
        }))
    }

    fn column_statistics(&self, column: usize) -> ColumnStatistics {
        let main = self.row_groups.iter().map(|group| {
            let segment = &group.segments()[column];
            (group.rows(), segment.statistics(), segment.sketch())
        });
        let delta = self.delta.iter().map(|chunk| {
            let (statistics, sketch) = &chunk.statistics()[column];
            (chunk.batch().num_rows(), statistics, sketch)
        });
        merge_statistics(main.chain(delta).filter(|(rows, _, _)| *rows > 0))
    }

    /// What each column's main takes, in the order of the columns.
    pub fn column_usage(&self) -> Vec<ColumnUsage> {
        (0..self.def.columns.len())
            .map(|column| {
                let mut usage = ColumnUsage::default();
                for segment in self.row_groups.iter().map(|group| &group.segments()[column]) {
                    let bytes = segment.bytes().len() as u64;
                    usage.raw_bytes += segment.raw_bytes();
                    usage.encoded_bytes += bytes;
                    *usage.tablespaces.entry(segment.tablespace().name().to_string()).or_default() += bytes;
                    match usage.encodings.iter_mut().find(|(kind, _)| *kind == segment.encoding()) {
                        Some((_, count)) => *count += 1,
                        None => usage.encodings.push((segment.encoding(), 1)),
                    }
                }
                usage.encodings.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
                usage
            })
            .collect()
    }

    /// The same rows, all of them in main. A last row group that is less than half full is filled up. `ids` hands out an
    /// id for each new row group. Holds one row group's rows unencoded at a time.
    pub fn merge_delta(&self, ids: &mut dyn FnMut() -> RowGroupId, spaces: &Tablespaces) -> Result<TableVersion> {
        if self.delta.is_empty() {
            return Ok(self.clone());
        }
        let schema = self.def.arrow_schema();
        let mut row_groups = self.row_groups.clone();
        let mut pending: Vec<RecordBatch> = Vec::new();
        if let Some(last) = row_groups.pop_if(|group| group.rows() < ROW_GROUP_ROWS / 2) {
            let columns = last.segments().iter().map(|s| s.decode(0..s.rows())).collect::<Result<Vec<_>>>()?;
            pending.push(RecordBatch::try_new(Arc::clone(&schema), columns).map_err(broken)?);
        }
        let mut encode = |pending: &mut Vec<RecordBatch>| -> Result<()> {
            let rows = concat_batches(&schema, pending.iter()).map_err(broken)?;
            pending.clear();
            row_groups.push(Arc::new(RowGroup::encode(ids(), &rows, &self.placement, spaces)?));
            Ok(())
        };
        let mut rows: usize = pending.iter().map(RecordBatch::num_rows).sum();
        for chunk in &self.delta {
            let batch = chunk.batch().clone().with_schema(Arc::clone(&schema)).map_err(broken)?;
            let mut start = 0;
            while start < batch.num_rows() {
                let len = (batch.num_rows() - start).min(ROW_GROUP_ROWS - rows);
                pending.push(batch.slice(start, len));
                start += len;
                rows += len;
                if rows == ROW_GROUP_ROWS {
                    encode(&mut pending)?;
                    rows = 0;
                }
            }
        }
        if rows > 0 {
            encode(&mut pending)?;
        }
        Ok(self.with_row_groups(row_groups).with_delta(Vec::new()))
    }
}

fn broken(error: arrow_schema::ArrowError) -> Error {
    Error::internal(format!("a table's rows do not fit its schema: {error}"))
}

fn merge_statistics<'a>(parts: impl Iterator<Item = (usize, &'a ColumnStatistics, &'a Sketch)>) -> ColumnStatistics {
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
    merged
}
