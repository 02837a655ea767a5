#![allow(dead_code)]
#[path = "../../planner/src/optimizer/mod.rs"]
mod optimizer;
#[path = "../../planner/src/scan/mod.rs"]
mod scan;
pub struct QueryInfo;
impl QueryInfo {
    pub fn add_scan(&self, _: Arc<tidepool_table::TableScan>) {}
}
use datafusion::arrow::array::*;
use datafusion::arrow::datatypes::*;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::stats::Precision;
use datafusion::common::*;
use datafusion::datasource::MemTable;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::{ExecutionPlan, displayable};
use datafusion::prelude::*;
use std::sync::Arc;
use std::time::Instant;
use workload::Workload;
#[path = "../../bench/src/workload.rs"]
mod workload;
#[path = "../../bench/src/tpcds/mod.rs"]
mod tpcds;
#[path = "../../bench/src/compare.rs"]
mod compare;
#[path = "../../bench/src/tpch/mod.rs"]
mod tpch;

#[derive(Debug)]
struct StatTable { inner: MemTable, statistics: Statistics, constraints: Constraints }
#[async_trait::async_trait]
impl TableProvider for StatTable {
    fn schema(&self) -> SchemaRef { self.inner.schema() }
    fn constraints(&self) -> Option<&Constraints> { Some(&self.constraints) }
    fn table_type(&self) -> TableType { TableType::Base }
    async fn scan(&self, s: &dyn Session, p: Option<&Vec<usize>>, f: &[Expr], l: Option<usize>) -> Result<Arc<dyn ExecutionPlan>> { self.inner.scan(s, p, f, l).await }
    fn statistics(&self) -> Option<Statistics> { Some(self.statistics.clone()) }
}

fn stats(batches: &[RecordBatch], schema: &SchemaRef) -> Statistics {
    let rows: usize = batches.iter().map(|b| b.num_rows()).sum();
    let columns = (0..schema.fields().len()).map(|c| {
        let bits = 1usize << 25;
        let mut map = vec![0u64; bits / 64];
        let mut nulls = 0;
        let (mut min, mut max): (Option<ScalarValue>, Option<ScalarValue>) = (None, None);
        let random = datafusion::common::hash_utils::RandomState::with_seed(7);
        for b in batches {
            let a = b.column(c);
            nulls += a.null_count();
            let mut h = vec![0u64; a.len()];
            datafusion::common::hash_utils::create_hashes([a.clone()], &random, &mut h).unwrap();
            for (i, h) in h.iter().enumerate() { if a.is_valid(i) { let k = (*h as usize) & (bits - 1); map[k / 64] |= 1 << (k % 64); } }
            macro_rules! mm { ($t:ty) => {{
                let p = a.as_primitive::<$t>();
                let mk = |v| ScalarValue::new_primitive::<$t>(Some(v), a.data_type()).unwrap();
                if let Some(v) = datafusion::arrow::compute::min(p) { let v = mk(v); if min.as_ref().is_none_or(|m| v < *m) { min = Some(v) } }
                if let Some(v) = datafusion::arrow::compute::max(p) { let v = mk(v); if max.as_ref().is_none_or(|m| v > *m) { max = Some(v) } }
            }} }
            match a.data_type() { DataType::Int32 => mm!(Int32Type), DataType::Int64 => mm!(Int64Type), DataType::Date32 => mm!(Date32Type), DataType::Decimal128(..) => mm!(Decimal128Type), _ => {} }
        }
        let ones: u32 = map.iter().map(|w| w.count_ones()).sum();
        let m = bits as f64;
        let ndv = (-m * (1.0 - f64::from(ones) / m).ln()).round() as usize;
        let p = |v: Option<ScalarValue>| v.map_or(Precision::Absent, Precision::Exact);
        ColumnStatistics { null_count: Precision::Exact(nulls), min_value: p(min), max_value: p(max), sum_value: Precision::Absent, distinct_count: Precision::Inexact(ndv), byte_size: Precision::Absent }
    }).collect();
    Statistics { num_rows: Precision::Exact(rows), total_byte_size: Precision::Absent, column_statistics: columns }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let name = &args[1];
    let sf: f64 = args[2].parse().unwrap();
    let list = args.get(3).cloned().unwrap_or_else(|| if name == "tpch" { "1-22".into() } else { "1-99".into() });
    let has = |f: &str| args.iter().any(|a| a == f);
    let workload = Workload::by_name(name, sf).map_err(|e| DataFusionError::External(Box::new(e)))?;
    let config = SessionConfig::new().with_target_partitions(2).with_information_schema(false);
    let plain = SessionContext::new_with_state(SessionStateBuilder::new().with_config(config.clone()).with_default_features().build());
    let ours = SessionContext::new_with_state(optimizer::install(SessionStateBuilder::new().with_config(config).with_default_features()).build());
    let start = Instant::now();
    let database = tidepool_database::Database::open(tidepool_database::Config::in_memory(4 << 30, 4 << 30)).unwrap();
    for table in &workload.tables {
        let parts = 2;
        let handles: Vec<_> = (0..parts).map(|p| { let (n, s) = (table.name.clone(), workload.source); std::thread::spawn(move || {
            if p > 0 && matches!(n.as_str(), "nation" | "region") { return vec![] }
            s(&n, sf, p, parts).unwrap().map(|b| b.unwrap()).collect::<Vec<_>>() }) }).collect();
        let divisible = table.divisible;
        let mut partitions: Vec<Vec<RecordBatch>> = if divisible { handles.into_iter().map(|h| h.join().unwrap()).collect() } else {
            drop(handles);
            vec![(workload.source)(&table.name, sf, 0, 1).unwrap().map(|b| b.unwrap()).collect()] };
        partitions.retain(|p| !p.is_empty());
        if partitions.is_empty() { partitions.push(vec![]); }
        let Some(first) = partitions.iter().flatten().next() else { eprintln!("{} is empty", table.name); continue };
        let schema = first.schema();
        let all: Vec<RecordBatch> = partitions.iter().flatten().cloned().collect();
        let statistics = if has("--mem") { stats(&all, &schema) } else { Statistics::new_unknown(&schema) };
        let key: Vec<usize> = table.ddl.rsplit_once("PRIMARY KEY (").map(|(_, k)| k.split(')').next().unwrap().split(',').map(|c| schema.index_of(c.trim()).unwrap()).collect()).unwrap_or_default();
        let constraints = Constraints::new_unverified(if key.is_empty() { vec![] } else { vec![Constraint::PrimaryKey(key)] });
        plain.register_table(&table.name, Arc::new(MemTable::try_new(schema.clone(), partitions.clone())?))?;
        if !has("--mem") {
            use tidepool_base::SqlType;
            let columns = schema.fields().iter().map(|f| tidepool_table::ColumnDef { name: f.name().clone(), nullable: f.is_nullable(), default: None, sql_type: match f.data_type() {
                DataType::Int64 => SqlType::BigInt, DataType::Int32 => SqlType::Integer, DataType::Date32 => SqlType::Date, DataType::Decimal128(p, s) => SqlType::Numeric { precision: *p, scale: *s }, DataType::Utf8View => SqlType::Text, o => panic!("{o}") } }).collect();
            let key = match constraints.iter().next() { Some(Constraint::PrimaryKey(k)) => k.clone(), _ => vec![] };
            let mut tx = database.begin();
            tx.create_table(&table.name, columns, key, tidepool_table::Placement { main: "near".into(), delta: "near".into(), columns: Default::default() }).unwrap();
            let mut writer = tx.writer(&table.name).unwrap();
            for b in &all { writer.write(b).unwrap(); }
            tx.absorb(writer).unwrap();
            tx.commit().unwrap();
            let _ = database.merge(&table.name);
            let version = database.version().table(&table.name).unwrap().clone();
            eprintln!("{} {} rows {} groups {} chunks", table.name, version.rows(), version.row_groups.len(), version.delta.len());
            ours.register_table(&table.name, scan::TableProvider::new(version))?;
        } else { ours.register_table(&table.name, Arc::new(StatTable { inner: MemTable::try_new(schema, partitions)?, statistics, constraints }))?; }
    }
    eprintln!("loaded in {:.1?}", start.elapsed());
    let limit = std::time::Duration::from_secs(args.iter().find_map(|a| a.strip_prefix("--limit=").map(|v| v.parse().unwrap())).unwrap_or(60));
    let runs = args.iter().find_map(|a| a.strip_prefix("--runs=").map(|v| v.parse().unwrap())).unwrap_or(3);
    let (mut logs, mut count) = ([0.0f64; 2], 0);
    for query in workload.select_queries(&list).map_err(|e| DataFusionError::External(Box::new(e)))? {
        let mut times = [f64::NAN; 2];
        let mut plan_ms = [0.0; 2];
        let mut results: [String; 2] = Default::default();
        for (which, ctx) in [(0, &plain), (1, &ours)] {
            if (which == 0 && has("--ours")) || (which == 1 && has("--plain")) { continue }
            'runs: for _ in 0..runs {
                let start = Instant::now();
                let mut planning = 0.0;
                let mut text = String::new();
                for sql in query.sql.split(';').filter(|s| !s.trim().is_empty()) {
                    let p0 = Instant::now();
                    let plan = match async { let df = ctx.sql(sql).await?; if has("--logical") { println!("{}", ctx.state().optimize(df.logical_plan())?.display_indent()); } df.create_physical_plan().await }.await { Ok(p) => p, Err(e) => { text = format!("ERROR {e}"); println!("{} {which} {text}", query.name); break 'runs } };
                    planning += p0.elapsed().as_secs_f64() * 1e3;
                    if has("--explain") { println!("{}", displayable(plan.as_ref()).indent(false)); }
                    let shown = displayable(plan.as_ref()).indent(false).to_string();
                    if which == 1 && (shown.contains("CrossJoin") || shown.contains("NestedLoop")) { println!("{} has a cross join or nested loop", query.name); }
                    let result = tokio::time::timeout(limit, datafusion::physical_plan::collect(plan.clone(), ctx.task_ctx())).await;
                    match result { Err(_) => { text = "TIMEOUT".into(); println!("{} {which} TIMEOUT", query.name); break 'runs } Ok(Err(e)) => { text = format!("ERROR {e}"); println!("{} {which} {text}", query.name); break 'runs } Ok(Ok(b)) => {
                        let mut lines: Vec<String> = datafusion::arrow::util::pretty::pretty_format_batches(&b)?.to_string().lines().map(|l| l.to_owned()).collect(); lines.sort(); text += &lines.join("\n"); } }
                    if has("--analyze") { println!("{}", datafusion::physical_plan::display::DisplayableExecutionPlan::with_metrics(plan.as_ref()).indent(false)); }
                }
                let t = start.elapsed().as_secs_f64() * 1e3;
                if !(times[which] <= t) { times[which] = t; plan_ms[which] = planning; }
                results[which] = text;
            }
        }
        let same = results[0] == results[1];
        if times.iter().all(|t| t.is_finite()) { for i in 0..2 { logs[i] += times[i].ln(); } count += 1; }
        println!("{:>4} plain {:8.1} (plan {:5.1})  ours {:8.1} (plan {:5.1})  ratio {:5.2} {}", query.name, times[0], plan_ms[0], times[1], plan_ms[1], times[1] / times[0], if same || has("--ours") || has("--plain") { "" } else { "DIFFERENT" });
        if !same && has("--diff") { println!("{}\n---\n{}", results[0], results[1]); }
    }
    println!("geometric mean: plain {:.1} ours {:.1} over {count}", (logs[0] / count as f64).exp(), (logs[1] / count as f64).exp());
    Ok(())
}
