//! Tables rewritten: columns added, dropped and computed anew.
//!
//! Rows never change, so a rewrite makes others. What a column keeps of a row group is shared, not copied: dropping a
//! column reads nothing, but for rows that main alone does not show.

use crate::Transaction;
use crate::catalog::relation::RelationName;
use crate::write::writer::SHORT_ROW_GROUP_ROWS;
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{Field, Schema, SchemaRef};
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState};
use tidepool_heap::QueryHeap;
use tidepool_table::{BATCH_ROWS, Placement, RowGroup, ScanRequest, Segment, Table, TableDef, TableScan, TableVersion};

/// Where a column of a rewritten table comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnSource {
    /// The values of the column that was at this position.
    Kept(usize),
    /// Values made of each row, at this place among those that are.
    Computed(usize),
}

/// Rows to values: a batch of the columns asked for, in order, to arrays of as many rows.
pub type Compute<'a> = &'a dyn Fn(&RecordBatch) -> Result<Vec<ArrayRef>>;

impl Transaction {
    /// Puts a table under another definition, its columns made as `sources` say; `compute` is given the columns at
    /// positions `reads` of the table as it was. 23502 when a column has NULLs that may have none.
    pub fn rewrite_table(
        &mut self,
        name: &RelationName,
        def: TableDef,
        sources: &[ColumnSource],
        reads: &[usize],
        compute: Compute<'_>,
    ) -> Result<()> {
        QueryHeap::outside(|| self.rewrite_table_outside(name, def, sources, reads, compute))
    }

    fn rewrite_table_outside(
        &mut self,
        name: &RelationName,
        def: TableDef,
        sources: &[ColumnSource],
        reads: &[usize],
        compute: Compute<'_>,
    ) -> Result<()> {
        let table = self.locked_table(name)?;
        self.check_nothing_pends(&table.def, "ALTER TABLE")?;
        let def = Arc::new(def);
        let mut placement = Placement { columns: Default::default(), ..table.placement.clone() };
        for (position, source) in sources.iter().enumerate() {
            if let ColumnSource::Kept(before) = source
                && let Some(space) = table.placement.columns.get(before)
            {
                placement.columns.insert(position, space.clone());
            }
        }
        let computes = sources.iter().any(|source| matches!(source, ColumnSource::Computed(_)));
        let read_schema = schema_of(&table.def, reads);
        let schema = def.arrow_schema();
        let version = self.newest(&table);
        let bytes_total: u64 = version.row_groups.iter().map(|group| group.encoded_bytes()).sum();
        let progress = self.start_progress("ALTER TABLE", &table.def, if computes { bytes_total } else { 0 });
        let rows = self.database.new_rows(&def, &placement)?;
        let database = self.database.clone();
        let patience = self.patience();
        let (worker, writes) = self.writing();
        let view = worker.snapshot_now();
        let mut image = Vec::new();
        for number in version.parts() {
            patience.check()?;
            let part = version.part(number);
            if let Some(group) = part.whole_group() {
                let computed = match computes {
                    true => compute(&read_group(group, reads, &read_schema)?)?,
                    false => Vec::new(),
                };
                let mut segments = Vec::with_capacity(sources.len());
                for (position, source) in sources.iter().enumerate() {
                    segments.push(match source {
                        ColumnSource::Kept(before) => group.segments()[*before].clone(),
                        ColumnSource::Computed(index) => {
                            let field = schema.field(position);
                            check_nulls(&def, field, &computed[*index])?;
                            let space = database.tablespaces().get(placement.column(position))?;
                            Arc::new(Segment::encode(&computed[*index], field, &space)?)
                        }
                    });
                }
                progress.add(group.encoded_bytes(), group.rows() as u64);
                let group = RowGroup::from_segments(database.next_row_group_of(&def), segments)?;
                rows.load(worker, &view, writes, Arc::new(group))?;
                continue;
            }
            // Rows that are gone have no values to compute with.
            let all: Vec<usize> = (0..table.def.columns.len()).collect();
            let mut batches = Vec::new();
            each_batch(part, &all, &mut |batch| {
                let computed = if computes { compute(&pick(batch, reads, &read_schema)?)? } else { Vec::new() };
                let mut columns = Vec::with_capacity(sources.len());
                for (position, source) in sources.iter().enumerate() {
                    columns.push(match source {
                        ColumnSource::Kept(before) => batch.column(*before).clone(),
                        ColumnSource::Computed(index) => {
                            check_nulls(&def, schema.field(position), &computed[*index])?;
                            computed[*index].clone()
                        }
                    });
                }
                let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
                batches.push(RecordBatch::try_new_with_options(schema.clone(), columns, &options).map_err(broken)?);
                Ok(())
            })?;
            if batches.iter().map(RecordBatch::num_rows).sum::<usize>() >= SHORT_ROW_GROUP_ROWS {
                let batch = arrow_select::concat::concat_batches(&schema, &batches).map_err(broken)?;
                let id = database.next_row_group_of(&def);
                let group = RowGroup::encode(id, &batch, &placement, database.tablespaces())?;
                rows.load(worker, &view, writes, Arc::new(group))?;
                continue;
            }
            for batch in &batches {
                let images = rows.layout().rows(batch)?;
                for row in 0..batch.num_rows() {
                    images.image(row, &mut image)?;
                    rows.insert(worker, &view, writes, &image)?;
                }
            }
        }
        drop(view);
        let table = self.indexed(Table::new(def, placement, rows))?;
        let table = self.change(table);
        self.written.insert(table.def.id, table);
        Ok(())
    }

    /// Shows all rows of a table to `check`, a batch of the columns at positions `reads` at a time, until it fails.
    pub fn check_rows(
        &mut self,
        name: &RelationName,
        reads: &[usize],
        check: &dyn Fn(&RecordBatch) -> Result<()>,
    ) -> Result<()> {
        let table = self.locked_table(name)?;
        let patience = self.patience();
        each_batch(self.newest(&table), reads, &mut |batch| {
            patience.check()?;
            check(batch)
        })
    }

    /// 23502 when a column has NULLs.
    pub fn check_not_null(&mut self, name: &RelationName, column: usize) -> Result<()> {
        let def = self.table(name)?.def.clone();
        let field = def.columns.get(column).ok_or_else(|| Error::internal("a table has no such column"))?.field();
        let field = field.with_nullable(false);
        self.check_rows(name, &[column], &|batch| check_nulls(&def, &field, batch.column(0)))
    }
}

/// Nullable throughout: what may be NULL is for the new definition to say.
fn schema_of(def: &TableDef, reads: &[usize]) -> SchemaRef {
    let fields = reads.iter().map(|&column| def.columns[column].field().with_nullable(true));
    Arc::new(Schema::new(fields.collect::<Vec<Field>>()))
}

/// The rows that a version has, of some of its columns.
fn each_batch(
    version: TableVersion,
    columns: &[usize],
    take: &mut dyn FnMut(&RecordBatch) -> Result<()>,
) -> Result<()> {
    let schema = schema_of(&version.def, columns);
    let request = ScanRequest {
        projection: columns.to_vec(),
        filters: Vec::new(),
        dynamic: None,
        limit: None,
        batch_rows: BATCH_ROWS,
        forms: Vec::new(),
    };
    let mut reader = TableScan::new(Arc::new(version), request).reader();
    while let Some(batch) = reader.next_batch()? {
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let columns = batch.columns().to_vec();
        take(&RecordBatch::try_new_with_options(schema.clone(), columns, &options).map_err(broken)?)?;
    }
    Ok(())
}

fn read_group(group: &RowGroup, reads: &[usize], schema: &SchemaRef) -> Result<RecordBatch> {
    let columns = reads.iter().map(|&column| group.segments()[column].decode(0..group.rows()));
    let options = RecordBatchOptions::new().with_row_count(Some(group.rows()));
    RecordBatch::try_new_with_options(schema.clone(), columns.collect::<Result<_>>()?, &options).map_err(broken)
}

fn pick(rows: &RecordBatch, reads: &[usize], schema: &SchemaRef) -> Result<RecordBatch> {
    let columns = reads.iter().map(|&column| rows.column(column).clone()).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
    RecordBatch::try_new_with_options(schema.clone(), columns, &options).map_err(broken)
}

fn check_nulls(def: &TableDef, field: &Field, values: &ArrayRef) -> Result<()> {
    if field.is_nullable() || values.logical_null_count() == 0 {
        return Ok(());
    }
    Err(Error::new(
        SqlState::NOT_NULL_VIOLATION,
        format!("column \"{}\" of relation \"{}\" contains null values", field.name(), def.name),
    ))
}

fn broken(error: arrow_schema::ArrowError) -> Error {
    Error::internal(format!("a table's rows do not fit its schema: {error}"))
}
