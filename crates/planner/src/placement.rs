//! `EXPLAIN PLACEMENT`, and what `CALL tidepool.advise` gives back.

use crate::catalog::quote_identifier;
use crate::charge::OperatorCount;
use crate::names::OutputNames;
use crate::session::ResultColumn;
use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringViewArray};
use arrow::datatypes::{DataType, Field, Schema};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidepool_base::{ByteSize, Result, TableId};
use tidepool_database::advice::{self, Advice, Move, Part};
use tidepool_database::{Database, Workload};
use tidepool_device::{CostModel, Excess};
use tidepool_table::{TableScan, TableVersion};

const NS_PER_MS: f64 = 1e6;

/// The move as a statement, without a semicolon.
pub fn statement_of(step: &Move) -> String {
    let named = |name: &str| match &step.schema {
        Some(schema) => format!("{}.{}", quote_identifier(schema), quote_identifier(name)),
        None => quote_identifier(name),
    };
    let tablespace = quote_identifier(&step.tablespace);
    match &step.part {
        None => format!("ALTER TABLE {} SET TABLESPACE {tablespace}", named(&step.table)),
        Some(Part::Column(column)) => {
            let column = quote_identifier(column);
            format!("ALTER TABLE {} ALTER COLUMN {column} SET TABLESPACE {tablespace}", named(&step.table))
        }
        Some(Part::Index(index)) => format!("ALTER INDEX {} SET TABLESPACE {tablespace}", named(index)),
    }
}

/// Names in lines for people.
fn shown(table: &str, part: &Part) -> String {
    match part {
        Part::Column(column) => format!("{table}.{column}"),
        Part::Index(index) => format!("{table}, index {index}"),
    }
}

fn advice_schema() -> Schema {
    let text = |name: &str| Field::new(name, DataType::Utf8View, true);
    let float = |name: &str| Field::new(name, DataType::Float64, true);
    Schema::new(vec![
        text("table_name"),
        text("column_name"),
        text("index_name"),
        Field::new("bytes_encoded", DataType::Int64, true),
        text("tablespace"),
        text("advised"),
        float("near_ms"),
        float("far_ms"),
        float("stall_far_ms"),
        float("stall_now_ms"),
        text("statement"),
        Field::new("near_bytes_now", DataType::Int64, true),
        Field::new("near_bytes_advised", DataType::Int64, true),
        float("total_stall_now_ms"),
        float("total_stall_advised_ms"),
        float("total_stall_bound_ms"),
    ])
}

/// The columns of `CALL tidepool.advise`.
pub(crate) fn advice_columns() -> Vec<ResultColumn> {
    crate::query::columns(&advice_schema(), &OutputNames::none())
}

/// A row a column or index; what is true of the whole advice is in every row.
pub(crate) fn advice_batch(advice: &Advice) -> Result<RecordBatch> {
    let parts = &advice.parts;
    let text = |of: &dyn Fn(&advice::PartAdvice) -> Option<String>| -> ArrayRef {
        Arc::new(StringViewArray::from_iter(parts.iter().map(of)))
    };
    let ms = |of: &dyn Fn(&advice::PartAdvice) -> f64| -> ArrayRef {
        Arc::new(Float64Array::from_iter_values(parts.iter().map(|part| of(part) / NS_PER_MS)))
    };
    let bytes = |of: &dyn Fn(&advice::PartAdvice) -> u64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(parts.iter().map(|part| of(part) as i64)))
    };
    let column = |part: &advice::PartAdvice| match &part.part {
        Part::Column(name) => Some(name.clone()),
        Part::Index(_) => None,
    };
    let index = |part: &advice::PartAdvice| match &part.part {
        Part::Column(_) => None,
        Part::Index(name) => Some(name.clone()),
    };
    let statement = |part: &advice::PartAdvice| {
        let mut steps = advice.moves.iter().filter(|step| step.table == part.table && step.schema == part.schema);
        // Its own, or the table's, which takes all columns along, and those indexes that follow it.
        let goes_along = matches!(part.part, Part::Column(_)) || part.tablespace != part.advised;
        let own = steps.clone().find(|step| step.part.as_ref() == Some(&part.part));
        let step = own.or_else(|| steps.find(|step| step.part.is_none() && goes_along));
        step.map(statement_of)
    };
    let arrays = vec![
        text(&|part| Some(part.table.clone())),
        text(&column),
        text(&index),
        bytes(&|part| part.bytes),
        text(&|part| Some(part.tablespace.clone())),
        text(&|part| Some(part.advised.clone())),
        ms(&|part| part.near_ns),
        ms(&|part| part.far_ns),
        ms(&|part| part.stall_far_ns),
        ms(&|part| part.stall_now_ns),
        text(&statement),
        bytes(&|_| advice.near_bytes_now),
        bytes(&|_| advice.near_bytes_advised),
        ms(&|_| advice.stall_now_ns),
        ms(&|_| advice.stall_advised_ns),
        ms(&|_| advice.stall_bound_ns),
    ];
    RecordBatch::try_new(Arc::new(advice_schema()), arrays).map_err(crate::errors::from_arrow)
}

/// Every tablespace with what it costs, `near` and `far` first.
pub(crate) fn models(database: &Database) -> Result<Vec<(String, CostModel)>> {
    let spaces = database.tablespaces().list();
    // What paged memory costs is its cache's to say, which no cost of a line tells.
    let spaces = spaces.iter().filter(|space| space.paged().is_none());
    spaces.map(|space| Ok((space.name().to_owned(), advice::model_of(space)?))).collect()
}

/// A query that ran to be counted.
pub(crate) struct Run<'a> {
    pub scans: &'a [Arc<TableScan>],
    pub operators: Vec<OperatorCount>,
    /// In the order in which the operators' costs are.
    pub models: &'a [(String, CostModel)],
    pub threads: usize,
    pub elapsed: Duration,
    /// Accounted by pacing, all threads added up.
    pub stall_ns: u64,
}

/// One line of what was touched.
struct Line {
    name: String,
    bytes: u64,
    lines: u64,
    /// By model.
    device_ns: Vec<f64>,
}

/// The lines of `EXPLAIN PLACEMENT`.
pub(crate) fn lines(run: &Run<'_>) -> Vec<String> {
    let (tables, main) = tables(run);
    let heap_lines: Vec<Line> = (run.operators.iter())
        .map(|operator| Line {
            name: operator.name.clone(),
            bytes: operator.bytes,
            lines: operator.lines,
            device_ns: operator.device_ns.clone(),
        })
        .collect();
    let mut heap = vec![Excess::default(); run.models.len()];
    for operator in &run.operators {
        for (total, excess) in heap.iter_mut().zip(&operator.excess) {
            *total += *excess;
        }
    }

    let header = |title: &str| {
        let mut cells = vec![title.to_owned(), "bytes".to_owned(), "lines".to_owned()];
        cells.extend(run.models.iter().map(|(name, _)| format!("{name} ms")));
        cells
    };
    let row = |line: &Line| {
        let mut cells = vec![format!("  {}", line.name), ByteSize(line.bytes).to_string(), line.lines.to_string()];
        cells.extend(line.device_ns.iter().map(|ns| format!("{:.3}", ns / NS_PER_MS)));
        cells
    };
    let mut grid = vec![header("Tables, by column and index")];
    grid.extend(tables.iter().map(row));
    grid.push(header("Query heap, by operator (estimate)"));
    grid.extend(heap_lines.iter().map(row));

    // What the run would have taken with nothing stalled: waits are spread over the threads, the link is shared.
    let threads = run.threads.max(1) as f64;
    let elapsed_ns = run.elapsed.as_nanos() as f64;
    let local_ns = (elapsed_ns - run.stall_ns as f64 / threads).max(0.0);
    let predicted = |parts: &[Excess], apart: bool| {
        let mut both = Excess::default();
        let mut beyond_ns = 0.0;
        for part in parts {
            both += *part;
            beyond_ns += (part.transfer_ns - local_ns).max(0.0);
        }
        let link_ns = if apart { beyond_ns } else { (both.transfer_ns - local_ns).max(0.0) };
        let stall_ns = both.wait_ns + link_ns;
        (stall_ns, local_ns + both.wait_ns / threads + link_ns)
    };
    let placement = |name: String, main: Excess, heap: Excess, apart: bool| {
        let (stall_ns, total_ns) = predicted(&[main, heap], apart);
        vec![format!("  {name}"), format!("{:.3}", stall_ns / NS_PER_MS), format!("{:.3}", total_ns / NS_PER_MS)]
    };
    let mut totals = vec![vec![
        "Placement, predicted".to_owned(),
        "waits ms".to_owned(),
        format!("total ms ({} threads)", run.threads),
    ]];
    if let Some(((near, _), (near_main, near_heap))) = run.models.first().zip(main.first().zip(heap.first())) {
        totals.push(placement(format!("all in {near}"), *near_main, *near_heap, false));
        for (((far, _), far_main), far_heap) in run.models.iter().zip(&main).zip(&heap).skip(1) {
            totals.push(placement(format!("tables in {far}"), *far_main, *near_heap, true));
            totals.push(placement(format!("heap in {far}"), *near_main, *far_heap, true));
            totals.push(placement(format!("both in {far}"), *far_main, *far_heap, false));
        }
    }
    let mut lines = aligned(&grid);
    lines.extend(aligned(&totals));
    lines.push(format!(
        "As placed now: {:.3} ms, of which pacing stalled threads {:.3} ms",
        elapsed_ns / NS_PER_MS,
        run.stall_ns as f64 / NS_PER_MS
    ));
    lines
}

/// What was read of each column and index, and what tables cost by model.
fn tables(run: &Run<'_>) -> (Vec<Line>, Vec<Excess>) {
    let workload = Workload::of_scans(run.scans);
    let versions: BTreeMap<TableId, &Arc<TableVersion>> =
        run.scans.iter().map(|scan| (scan.version().def.id, scan.version())).collect();
    let mut lines = Vec::new();
    let mut totals = vec![Excess::default(); run.models.len()];
    for (id, record) in &workload.tables {
        let Some(version) = versions.get(id) else { continue };
        for (position, column) in version.def.columns.iter().enumerate() {
            let access = record.column(position).access;
            if access.is_empty() {
                continue;
            }
            let accesses = access.all();
            for ((_, model), total) in run.models.iter().zip(&mut totals) {
                *total += model.excess_of(&accesses);
            }
            lines.push(Line {
                name: format!(
                    "{} (now in {})",
                    shown(&version.def.name, &Part::Column(column.name.clone())),
                    version.placement.column(position)
                ),
                bytes: access.bytes_sequential + access.delta_bytes,
                lines: access.lines_random,
                device_ns: run.models.iter().map(|(_, model)| model.device_ns_of(&accesses, 1)).collect(),
            });
        }
        for def in &version.def.indexes {
            let used = record.index(def.id).used;
            let Some(index) = version.table().index(def.id).filter(|_| !used.is_empty()) else { continue };
            let memory = index.tree().memory();
            for ((_, model), total) in run.models.iter().zip(&mut totals) {
                *total += advice::index_excess(model, &used, memory);
            }
            let accesses = used.touched.accesses(memory);
            lines.push(Line {
                name: format!(
                    "{} (now in {})",
                    shown(&version.def.name, &Part::Index(def.name.clone())),
                    version.table().index_tablespace(def)
                ),
                bytes: used.touched.copied_bytes,
                lines: used.touched.inner_lines + used.touched.leaf_lines(),
                device_ns: run.models.iter().map(|(_, model)| model.device_ns_of(&accesses, 1)).collect(),
            });
        }
    }
    (lines, totals)
}

/// Cells in columns: the first to the left, the others to the right.
fn aligned(grid: &[Vec<String>]) -> Vec<String> {
    let count = grid.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| grid.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..count).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("  {cell:>width$}"),
        });
        cells.collect::<String>().trim_end().to_owned()
    };
    grid.iter().map(line).collect()
}
