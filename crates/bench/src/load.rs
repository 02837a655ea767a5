//! Making the tables and filling them: rows go from the generator straight into table writers (or Arrow batches, for
//! plain DataFusion), several parts at once, and nothing is held but what the tables hold and a bounded buffer.

use crate::engine::Engine;
use crate::progress::Bar;
use crate::result::{LoadFacts, MemoryFacts, TableFacts};
use crate::workload::Workload;
use arrow::compute::cast;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Instant;
use tidepool_base::{Error, Result};
use tidepool_database::{Database, TableWriter};
use tidepool_planner::baseline::Baseline;

/// One part of one table, for one thread.
struct Job<S> {
    table: usize,
    part: usize,
    parts: usize,
    sink: S,
}

/// Makes `workload`'s tables in `engine` and fills them on `threads` threads.
pub async fn load(engine: &Engine, workload: &Workload, threads: usize) -> Result<LoadFacts> {
    let rows = workload.tables.iter().map(|table| table.rows).sum();
    let bar = Bar::new(format!("load {} SF {}", workload.title, workload.scale_factor), rows, "rows");
    let start = Instant::now();
    let tables = match engine {
        Engine::Tidepool { database, .. } => {
            let mut connection = engine.connect().await?;
            for table in &workload.tables {
                connection.query(&table.ddl).await?;
            }
            tokio::task::block_in_place(|| fill_database(database, workload, threads, &bar))?;
            database_tables(database, workload)
        }
        Engine::Plain(baseline) => tokio::task::block_in_place(|| fill_baseline(baseline, workload, threads, &bar))?,
    };
    drop(bar);
    Ok(LoadFacts {
        seconds: start.elapsed().as_secs_f64(),
        rows: tables.iter().map(|table| table.rows).sum(),
        raw_bytes: tables.iter().map(|table| table.raw_bytes).sum(),
        encoded_bytes: tables.iter().map(|table| table.encoded_bytes).sum(),
        tables,
        memory: engine.database().map(|database| memory(database)).unwrap_or_default(),
        process_resident_bytes: crate::machine::resident_bytes(),
    })
}

fn fill_database(database: &Arc<Database>, workload: &Workload, threads: usize, bar: &Bar) -> Result<()> {
    let mut transaction = database.begin()?;
    let mut jobs = Vec::new();
    for (index, table) in workload.tables.iter().enumerate() {
        transaction.lock_table(&table.name, &|| Ok(()))?;
        let parts = if table.divisible { threads } else { 1 };
        for part in 0..parts {
            jobs.push(Job { table: index, part, parts, sink: transaction.writer(&table.name)? });
        }
    }
    let write = |writer: &mut TableWriter, batch: RecordBatch| {
        let schema = writer.table().def.arrow_schema();
        let rows = batch.num_rows() as u64;
        writer.write(&conform(batch, &schema)?)?;
        bar.add(rows);
        Ok(())
    };
    let done = run_jobs(workload, jobs, threads, write, TableWriter::seal)?;
    // In the order of the parts, so that keys stay in the order in which they were generated.
    for job in done {
        transaction.absorb(job.sink)?;
    }
    transaction.commit()?;
    // Small tables are still rows: put them into main too, so that placing main places everything.
    for table in &workload.tables {
        database.merge(&table.name)?;
    }
    Ok(())
}

fn fill_baseline(baseline: &Baseline, workload: &Workload, threads: usize, bar: &Bar) -> Result<Vec<TableFacts>> {
    let mut jobs = Vec::new();
    for (index, table) in workload.tables.iter().enumerate() {
        let parts = if table.divisible { threads } else { 1 };
        for part in 0..parts {
            jobs.push(Job { table: index, part, parts, sink: Vec::<RecordBatch>::new() });
        }
    }
    let write = |batches: &mut Vec<RecordBatch>, batch: RecordBatch| {
        bar.add(batch.num_rows() as u64);
        batches.push(batch);
        Ok(())
    };
    let done = run_jobs(workload, jobs, threads, write, |_| Ok(()))?;
    let mut partitions: Vec<Vec<Vec<RecordBatch>>> = workload.tables.iter().map(|_| Vec::new()).collect();
    for job in done {
        partitions[job.table].push(job.sink);
    }
    let mut facts = Vec::new();
    for (table, partitions) in workload.tables.iter().zip(partitions) {
        let batches = || partitions.iter().flatten();
        let schema = batches()
            .next()
            .map(RecordBatch::schema)
            .ok_or_else(|| Error::internal(format!("no rows were generated for \"{}\"", table.name)))?;
        let bytes = batches().map(|batch| batch.get_array_memory_size() as u64).sum();
        facts.push(TableFacts {
            name: table.name.clone(),
            rows: batches().map(|batch| batch.num_rows() as u64).sum(),
            raw_bytes: bytes,
            encoded_bytes: bytes,
        });
        baseline.register(&table.name, schema, partitions)?;
    }
    Ok(facts)
}

/// Runs the jobs on `threads` threads, in order, and hands their sinks back in that order. `end`: a sink has all its
/// rows.
fn run_jobs<S: Send>(
    workload: &Workload,
    jobs: Vec<Job<S>>,
    threads: usize,
    write: impl Fn(&mut S, RecordBatch) -> Result<()> + Sync,
    end: impl Fn(&mut S) -> Result<()> + Sync,
) -> Result<Vec<Job<S>>> {
    let _shared = (workload.prepare)();
    let count = jobs.len();
    let queue = Mutex::new(jobs.into_iter().enumerate());
    let done: Mutex<Vec<Option<Job<S>>>> = Mutex::new((0..count).map(|_| None).collect());
    let failure: Mutex<Option<Error>> = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().next();
                    let Some((index, mut job)) = next else { break };
                    let table = &workload.tables[job.table];
                    let result =
                        (workload.source)(&table.name, workload.scale_factor, job.part, job.parts).and_then(|source| {
                            for batch in source {
                                if failure.lock().is_some() {
                                    break;
                                }
                                write(&mut job.sink, batch?)?;
                            }
                            end(&mut job.sink)
                        });
                    match result {
                        Ok(()) => done.lock()[index] = Some(job),
                        Err(error) => {
                            failure.lock().get_or_insert(error.with_context(format!("loading {}", table.name)));
                            break;
                        }
                    }
                }
            });
        }
    });
    if let Some(error) = failure.into_inner() {
        return Err(error);
    }
    Ok(done.into_inner().into_iter().flatten().collect())
}

/// The batch with the table's own column types; the generators' differ at most in width.
fn conform(batch: RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let columns =
        batch
            .columns()
            .iter()
            .zip(schema.fields())
            .map(|(column, field)| {
                if column.data_type() == field.data_type() {
                    Ok(column.clone())
                } else {
                    cast(column, field.data_type())
                }
            })
            .collect::<Result<Vec<_>, _>>();
    columns
        .and_then(|columns| RecordBatch::try_new(schema.clone(), columns))
        .map_err(|error| Error::internal(format!("generated rows do not fit their table: {error}")))
}

/// Rows and bytes of each table, from the database itself.
pub fn database_tables(database: &Database, workload: &Workload) -> Vec<TableFacts> {
    let version = database.version();
    workload
        .tables
        .iter()
        .filter_map(|table| version.table(&table.name))
        .map(|table| {
            let segments = || table.row_groups.iter().flat_map(|group| group.segments());
            TableFacts {
                name: table.def.name.clone(),
                rows: table.statistics().rows,
                raw_bytes: segments().filter_map(|segment| segment.raw_bytes().ok()).sum(),
                encoded_bytes: segments().map(|segment| segment.encoded_bytes()).sum(),
            }
        })
        .collect()
}

/// The ledger's rows that hold anything.
pub fn memory(database: &Database) -> Vec<MemoryFacts> {
    database
        .tablespaces()
        .ledger()
        .into_iter()
        .filter(|row| row.bytes > 0)
        .map(|row| MemoryFacts { tablespace: row.tablespace, purpose: row.purpose.name(), bytes: row.bytes })
        .collect()
}
