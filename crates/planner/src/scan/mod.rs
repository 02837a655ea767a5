//! Tables as DataFusion sees them: the provider and its scan operator, with filters, limits and run-time filters pushed
//! into the storage's own scan.
//!
//! A condition on one column is the storage's to evaluate ([`filter`]), exactly, so no operator above looks at it
//! again. Conditions that joins and top-N sorts learn while they run reach the scan as a filter source ([`runtime`]).
//! The operator itself ([`exec`]) hands out batches to as many streams as there are threads; all share one queue of row
//! groups. Of a partitioned table it reads the partitions that conditions leave ([`source`]).

mod exec;
mod filter;
mod restrict;
mod runtime;
mod source;
mod tried;

pub use exec::{TidepoolScanExec, paced, scan_metrics, scans_of};
pub use filter::{datum_scalar, scalar_f64};
pub use restrict::{can_restrict, restricted};
pub use source::Part;

use crate::optimizer::estimate::{self, Estimate};
use crate::privileges::Readable;
use async_trait::async_trait;
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::{Session, TableProvider as DataFusionTable};
use datafusion::common::stats::Precision;
use datafusion::common::{ColumnStatistics, DFSchema, Result, Statistics};
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use source::Source;
use std::sync::Arc;
use tidepool_base::{RowId, TableId};
use tidepool_database::DatabaseVersion;
use tidepool_table::{Datum, ROW_ID, TableDef, TableStatistics, TableVersion};
pub use tried::Trials;

/// A table as a statement reads or changes it, whichever its rows are.
pub struct Lasting {
    pub id: TableId,
    readable: Readable,
    target: Option<usize>,
    /// What its conditions left of a sample.
    trials: Arc<Trials>,
}

impl Lasting {
    /// The table as a database has it. With `trials`, what its conditions left of a sample is taken for known.
    pub fn over(
        &self,
        database: &Arc<DatabaseVersion>,
        version: Arc<TableVersion>,
        trials: bool,
    ) -> tidepool_base::Result<Arc<dyn DataFusionTable>> {
        match self.target {
            Some(target) => TableProvider::to_lock(database, version, target, ROW_ID, self.readable.clone()),
            None => {
                let trials = if trials { self.trials.clone() } else { Arc::default() };
                TableProvider::known(database, version, self.readable.clone(), trials)
            }
        }
    }
}

/// One version of a table. Keys are not told to DataFusion: those of folders from before they were enforced may be there
/// twice, and it would drop grouping columns and duplicates on their word.
#[derive(Clone, Debug)]
pub struct TableProvider {
    source: Arc<Source>,
    /// The table's columns, and perhaps the rows' ids after them.
    schema: SchemaRef,
    /// Of a table that the statement changes or locks: which one of them.
    target: Option<usize>,
    /// This row alone, by its id.
    row: Option<RowId>,
    readable: Readable,
    trials: Arc<Trials>,
}

impl TableProvider {
    /// Of which no more may be read than this: 42501.
    pub fn readable(
        database: &Arc<DatabaseVersion>,
        version: Arc<TableVersion>,
        readable: Readable,
    ) -> tidepool_base::Result<Arc<dyn DataFusionTable>> {
        TableProvider::known(database, version, readable, Arc::default())
    }

    /// As `readable`, where conditions were tried before, on these rows or on much the same.
    pub fn known(
        database: &Arc<DatabaseVersion>,
        version: Arc<TableVersion>,
        readable: Readable,
        trials: Arc<Trials>,
    ) -> tidepool_base::Result<Arc<dyn DataFusionTable>> {
        let schema = version.arrow_schema().clone();
        let source = Arc::new(Source::of(database, version)?);
        Ok(Arc::new(TableProvider { schema, source, target: None, row: None, readable, trials }))
    }

    pub fn may_read(&self) -> &Readable {
        &self.readable
    }

    /// Columns that a scan reads are all readable; a scan that reads none is one of a table some of which is.
    fn check_readable(&self, projection: &[usize], filters: &[Expr]) -> Result<()> {
        let Readable::Columns(readable) = &self.readable else { return Ok(()) };
        // Ids are nobody's column.
        let may = |column: usize| readable.get(column).copied().unwrap_or(self.target.is_some());
        let named = filters.iter().flat_map(|filter| filter.column_refs());
        let filtered: Vec<usize> = named.filter_map(|column| self.schema.index_of(&column.name).ok()).collect();
        if projection.iter().chain(&filtered).all(|column| may(*column)) {
            return Ok(());
        }
        Err(crate::errors::carry(crate::privileges::denied_table(&self.source.version.def.name)))
    }

    /// With one column more, `ROW_ID`: what a change refers to rows by. In a partitioned table's are the partitions'
    /// ordinals, too. `target` is what [`restricted`] finds its scan by.
    pub fn with_row_ids(
        database: &Arc<DatabaseVersion>,
        version: Arc<TableVersion>,
        target: usize,
    ) -> tidepool_base::Result<Arc<dyn DataFusionTable>> {
        TableProvider::to_lock(database, version, target, ROW_ID, Readable::All)
    }

    /// As `with_row_ids`, of one row, if it is there.
    pub fn of_row(
        database: &Arc<DatabaseVersion>,
        version: Arc<TableVersion>,
        row: RowId,
    ) -> tidepool_base::Result<Arc<dyn DataFusionTable>> {
        let (source, schema) = TableProvider::identified(database, version, ROW_ID)?;
        Ok(Arc::new(TableProvider {
            schema,
            source,
            target: Some(0),
            row: Some(row),
            readable: Readable::All,
            trials: Arc::default(),
        }))
    }

    fn identified(
        database: &Arc<DatabaseVersion>,
        version: Arc<TableVersion>,
        id: &str,
    ) -> tidepool_base::Result<(Arc<Source>, SchemaRef)> {
        let mut fields = version.arrow_schema().fields().to_vec();
        fields.push(Arc::new(Field::new(id, DataType::UInt64, false)));
        Ok((Arc::new(Source::of(database, version)?), Arc::new(Schema::new(fields))))
    }

    /// As `with_row_ids`, with a name for that column, of which no more may be read than this.
    pub fn to_lock(
        database: &Arc<DatabaseVersion>,
        version: Arc<TableVersion>,
        target: usize,
        id: &str,
        readable: Readable,
    ) -> tidepool_base::Result<Arc<dyn DataFusionTable>> {
        let (source, schema) = TableProvider::identified(database, version, id)?;
        Ok(Arc::new(TableProvider {
            schema,
            source,
            target: Some(target),
            row: None,
            readable,
            trials: Arc::default(),
        }))
    }

    /// Whether the statement changes or locks rows of it.
    pub fn is_target(&self) -> bool {
        self.target.is_some() || self.row.is_some()
    }

    /// What a scan of some columns reads, for the engine; `None` for one that it has no form of. All of `filters` are the storage's to
    /// evaluate.
    pub fn read(
        &self,
        state: &dyn Session,
        projection: &[usize],
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Option<Arc<TidepoolScanExec>>> {
        // Ids of partitions' rows have the partition in them, which the storage does not know of.
        if self.is_target() && (self.row.is_some() || self.source.is_partitioned()) {
            return Ok(None);
        }
        self.check_readable(projection, filters)?;
        let mut predicates = Vec::new();
        if !filters.is_empty() {
            let schema = DFSchema::try_from(self.schema.clone())?;
            for filter in filters {
                predicates.push(state.create_physical_expr(filter.clone(), &schema)?);
            }
        }
        let (source, schema) = (self.source.clone(), self.schema.clone());
        let scan = TidepoolScanExec::try_new(source, schema, projection.to_vec(), predicates, limit, 1)?;
        Ok(Some(Arc::new(scan)))
    }

    /// What it is of whatever its version is: a table, or one whose rows the statement changes. `None` where it is of one row, or of rows that
    /// are locked.
    pub fn lasting(&self) -> Option<Lasting> {
        let is_lasting = match self.target {
            None => self.row.is_none(),
            Some(_) => self.row.is_none() && self.schema.fields().last().is_some_and(|field| field.name() == ROW_ID),
        };
        is_lasting.then(|| Lasting {
            id: self.source.version.def.id,
            readable: self.readable.clone(),
            target: self.target,
            trials: self.trials.clone(),
        })
    }

    pub fn def(&self) -> &TableDef {
        &self.source.version.def
    }

    /// The version, if all columns may be read, also where the statement changes or locks rows of it.
    pub fn wholly_readable(&self) -> Option<&Arc<TableVersion>> {
        let is_whole = matches!(self.readable, Readable::All) && self.row.is_none();
        is_whole.then_some(&self.source.version)
    }

    /// Those that have its rows: its partitions, or itself.
    pub fn tables(&self) -> Vec<Arc<TableVersion>> {
        self.source.tables(&[]).into_iter().map(|(_, version)| version).collect()
    }

    /// What the statistics say about all of its columns, before any filter.
    pub fn estimate(&self) -> Estimate {
        self.estimate_of(&self.source.statistics(None))
    }

    fn estimate_of(&self, statistics: &TableStatistics) -> Estimate {
        estimate::of_table(&self.source.version.def, statistics, &self.schema)
    }
}

#[async_trait]
impl DataFusionTable for TableProvider {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let projection = match projection {
            Some(projection) => projection.clone(),
            None => (0..self.schema.fields().len()).collect(),
        };
        self.check_readable(&projection, filters)?;
        let df_schema = DFSchema::try_from(self.schema.clone())?;
        let predicates = filters
            .iter()
            .map(|filter| state.create_physical_expr(filter.clone(), &df_schema))
            .collect::<Result<Vec<_>>>()?;
        let threads = state.config().target_partitions();
        let (source, schema) = (self.source.clone(), self.schema.clone());
        let scan = TidepoolScanExec::try_new(source, schema, projection, predicates, limit, threads)?;
        if let Some(row) = self.row {
            let statistics = Statistics { num_rows: Precision::Inexact(1), ..Statistics::new_unknown(&self.schema) };
            return Ok(Arc::new(scan.of_row(row).with_statistics(statistics).of_target(self.target)));
        }
        let statistics = match scan.points() {
            // What a whole table's statistics take to be worked out is more than a row.
            Some(rows) => Statistics { num_rows: Precision::Inexact(rows), ..Statistics::new_unknown(&self.schema) },
            None => {
                let statistics = self.source.statistics(Some(scan.parts()));
                let mut estimate = self.estimate_of(&statistics);
                estimate.filter_tried(filters.iter(), &df_schema, || self.tried(filters));
                table_statistics(&statistics, &self.schema, Some(&estimate), !filters.is_empty())
            }
        };
        Ok(Arc::new(scan.with_statistics(statistics).of_target(self.target)))
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        Ok(filters
            .iter()
            .map(|filter| match filter::storage_evaluates(filter) {
                true => TableProviderFilterPushDown::Exact,
                false => TableProviderFilterPushDown::Unsupported,
            })
            .collect())
    }

    fn statistics(&self) -> Option<Statistics> {
        if self.row.is_some() {
            return Some(Statistics { num_rows: Precision::Inexact(1), ..Statistics::new_unknown(&self.schema) });
        }
        Some(table_statistics(&self.source.statistics(None), &self.schema, None, false))
    }
}

/// DataFusion's form of a table's statistics, one entry for every column of the table. With `filtered`, rows and
/// distinct counts are those `estimate` expects to be left, and nothing is exact.
fn table_statistics(
    statistics: &TableStatistics,
    schema: &SchemaRef,
    estimate: Option<&Estimate>,
    filtered: bool,
) -> Statistics {
    let rows = match (estimate, filtered) {
        (Some(estimate), true) => Precision::Inexact(estimate.rows.ceil() as usize),
        _ if statistics.exact => Precision::Exact(statistics.rows as usize),
        _ => Precision::Inexact(statistics.rows as usize),
    };
    let row_count = rows.get_value().copied().unwrap_or(0) as f64;
    let mut columns: Vec<ColumnStatistics> = statistics
        .columns
        .iter()
        .zip(schema.fields())
        .enumerate()
        .map(|(index, (column, field))| {
            let data_type = field.data_type();
            // Bounds of text may be shortened, and NaN has no place among bounds: estimates only.
            let exact = !filtered
                && statistics.exact
                && !matches!(
                    data_type,
                    DataType::Utf8View | DataType::BinaryView | DataType::Float32 | DataType::Float64
                );
            let bound = |datum: &Option<Datum>| match datum.as_ref().and_then(|datum| datum_scalar(datum, data_type)) {
                Some(value) if exact => Precision::Exact(value),
                Some(value) => Precision::Inexact(value),
                None => Precision::Absent,
            };
            let distinct = match (estimate, filtered) {
                (Some(estimate), true) => Some(estimate.columns[index].distinct.ceil() as usize),
                _ => column.distinct_count.map(|count| count as usize),
            };
            let nulls = column.null_count as usize;
            ColumnStatistics {
                null_count: match filtered {
                    false if statistics.exact => Precision::Exact(nulls),
                    false => Precision::Inexact(nulls),
                    true if statistics.rows == 0 => Precision::Inexact(0),
                    true => Precision::Inexact((nulls as f64 * row_count / statistics.rows as f64).round() as usize),
                },
                min_value: bound(&column.min),
                max_value: bound(&column.max),
                sum_value: Precision::Absent,
                distinct_count: distinct.map_or(Precision::Absent, Precision::Inexact),
                byte_size: Precision::Inexact((row_count * column.value_bytes_avg.max(1.0)) as usize),
            }
        })
        .collect();
    columns.resize_with(schema.fields().len(), ColumnStatistics::new_unknown);
    let bytes = columns.iter().filter_map(|column| column.byte_size.get_value()).sum();
    Statistics { num_rows: rows, total_byte_size: Precision::Inexact(bytes), column_statistics: columns }
}
