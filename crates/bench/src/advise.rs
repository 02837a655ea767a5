//! `tidepool bench advise`: TPC-H with most of the table data far, placed by the advisor and, for comparison, by simpler rules.
//!
//! The queries run once with everything near, which records the workload. Indexes go far where tables do. Each placement is then made by `ALTER TABLE`
//! statements, and its predicted stalls are held against what pacing accounted and what the clock said.

use crate::cli::{BenchArgs, configuration, threads};
use crate::compare::{Expected, ResultSet};
use crate::engine::{Connection, Engine};
use crate::load;
use crate::progress::{Bar, say};
use crate::result::{Answer, median};
use crate::run::judge;
use crate::workload::{QuerySpec, Workload};
use serde::Serialize;
use std::process::ExitCode;
use std::sync::Arc;
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_database::advice::{Advisor, Placements};
use tidepool_database::{Database, Workload as Recorded};
use tidepool_planner::{Planner, statement_of};

/// One placement as predicted and as measured. Times in ms.
#[derive(Clone, Debug, Serialize)]
pub struct PlacementReport {
    pub name: &'static str,
    pub far_share: f64,
    pub near_bytes: u64,
    pub columns_near: usize,
    /// Of all threads, for one run of every query.
    pub stall_predicted_ms: f64,
    /// As pacing accounted it: median of the rounds.
    pub stall_accounted_ms: f64,
    /// The near placement's time and the stalls, spread over the threads.
    pub total_predicted_ms: f64,
    /// Sum of the queries' medians.
    pub total_ms: f64,
    /// Sum of the queries' best times, which other work on the machine disturbs least.
    pub best_ms: f64,
    /// The near placement's time over this one's.
    pub performance_predicted: f64,
    pub performance: f64,
    pub queries: Vec<QueryReport>,
}

#[derive(Clone, Debug, Serialize)]
pub struct QueryReport {
    pub name: String,
    pub stall_predicted_ms: f64,
    /// Every round, in order.
    pub stalls_ms: Vec<f64>,
    pub runs_ms: Vec<f64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct AdviseResult {
    pub schema: &'static str,
    pub scale_factor: f64,
    pub profile: String,
    pub threads: usize,
    pub rounds: usize,
    pub last_level_cache_bytes: u64,
    pub far_share_wanted: f64,
    pub table_bytes: u64,
    pub statements: Vec<String>,
    pub placements: Vec<PlacementReport>,
    pub failures: Vec<String>,
}

struct Arm {
    name: &'static str,
    placements: Placements,
    /// By query, then by round.
    stalls_ms: Vec<Vec<f64>>,
    runs_ms: Vec<Vec<f64>>,
}

impl Arm {
    /// Of all queries, by round.
    fn round_stalls_ms(&self) -> Vec<f64> {
        let rounds = self.stalls_ms.first().map_or(0, Vec::len);
        (0..rounds).map(|round| self.stalls_ms.iter().map(|query| query[round]).sum()).collect()
    }
}

pub async fn run(args: &BenchArgs) -> Result<ExitCode> {
    if !(0.0..=1.0).contains(&args.far_share) {
        return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "--far-share must be between 0 and 1"));
    }
    let workload = Workload::by_name("tpch", args.sf)?;
    let queries = workload.select_queries(args.queries.as_deref().unwrap_or("1-22"))?;
    let threads = threads(args.threads)?;
    let mut config = configuration(args.near, args.far.as_deref())?;
    config.threads = threads;
    config.far.profile = Some(config.profile(args.profile())?);
    config.far.profiles.clear();
    let database = Database::open(config)?;
    let engine = Engine::Tidepool {
        database: database.clone(),
        planner: Planner::new(database.clone())?,
        datafusion_only: false,
    };
    load::load(&engine, &workload, threads).await?;

    let mut bench = Bench { database, engine, workload, queries, references: Vec::new(), failures: Vec::new() };
    bench.references = vec![None; bench.queries.len()];
    let mut connection = bench.engine.connect().await?;
    connection.query("SET temp_tablespaces = 'near'").await?;
    let result = bench.measure(&mut connection, args, threads).await?;
    print(&result);
    if let Some(path) = &args.json {
        crate::write_json(path, &result)?;
    }
    for failure in &result.failures {
        say(format!("FAILED  {failure}"));
    }
    Ok(if result.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Bench {
    database: Arc<Database>,
    engine: Engine,
    workload: Workload,
    queries: Vec<QuerySpec>,
    references: Vec<Option<Expected>>,
    failures: Vec<String>,
}

impl Bench {
    async fn measure(&mut self, connection: &mut Connection, args: &BenchArgs, threads: usize) -> Result<AdviseResult> {
        // Once to warm up and to check the answers, once to record.
        self.round(connection, None).await?;
        let by_query = self.round(connection, None).await?;
        let mut recorded = Recorded::default();
        by_query.iter().for_each(|query| recorded += query);

        let advisor = self.advisor(&recorded)?;
        let table_bytes = advisor.bytes();
        let near_limit = (table_bytes as f64 * (1.0 - args.far_share)) as u64;
        let advice = advisor.advise(near_limit, "far")?;
        let placements = [
            ("all near", advisor.everywhere("near")),
            ("all far", advisor.everywhere("far")),
            ("advised", advice.placements.clone()),
            (
                "by frequency",
                advisor.place_by(near_limit, "far", |facts| facts.rows_read as f64 / facts.bytes.max(1) as f64),
            ),
            ("largest far", advisor.place_by(near_limit, "far", |facts| -(facts.bytes as f64))),
        ];
        let mut arms: Vec<Arm> = (placements.into_iter())
            .map(|(name, placements)| Arm {
                name,
                placements,
                stalls_ms: vec![Vec::new(); self.queries.len()],
                runs_ms: vec![Vec::new(); self.queries.len()],
            })
            .collect();
        let bar = Bar::new("timed rounds", (args.repeat * arms.len()) as u64, "rounds");
        let count = arms.len();
        for round in 0..args.repeat {
            // Each round starts with another placement, so that slow drift falls on all alike.
            for step in 0..count {
                let arm = &mut arms[(round + step) % count];
                bar.message(format!("{}: round {} of {}", arm.name, round + 1, args.repeat));
                for step in self.advisor(&recorded)?.moves(&arm.placements) {
                    connection.query(&statement_of(&step)).await?;
                }
                self.round(connection, Some(arm)).await?;
                bar.add(1);
            }
        }
        drop(bar);
        let reports = self.reports(&recorded, &by_query, &arms, threads)?;
        Ok(AdviseResult {
            schema: "tidepool-bench-advise/1",
            scale_factor: self.workload.scale_factor,
            profile: args.profile().to_owned(),
            threads,
            rounds: args.repeat,
            last_level_cache_bytes: self.last_level_cache_bytes()?,
            far_share_wanted: args.far_share,
            table_bytes,
            statements: advice.moves.iter().map(statement_of).collect(),
            placements: reports,
            failures: std::mem::take(&mut self.failures),
        })
    }

    fn advisor(&self, recorded: &Recorded) -> Result<Advisor> {
        Advisor::new(&self.database, recorded, "far", None)
    }

    fn last_level_cache_bytes(&self) -> Result<u64> {
        let far = self.database.tablespaces().get("far")?;
        Ok(far.pacer().map_or(0, |pacer| pacer.last_level_cache_bytes()))
    }

    /// Every query once; checked the first time. Returns what each of them read.
    async fn round(&mut self, connection: &mut Connection, mut arm: Option<&mut Arm>) -> Result<Vec<Recorded>> {
        let mut recorded = Vec::with_capacity(self.queries.len());
        for index in 0..self.queries.len() {
            let query = self.queries[index].clone();
            self.database.reset_workload();
            let start = std::time::Instant::now();
            let batches = connection.query(query.sql).await?;
            let elapsed_ms = start.elapsed().as_secs_f64() * 1e3;
            let facts = self.engine.latest_statement();
            recorded.push(self.database.workload());
            let stall_ms = facts.heap_stall_ms + facts.scans.iter().map(|scan| scan.stall_ms).sum::<f64>();
            let first = arm.as_ref().is_none_or(|arm| arm.runs_ms[index].is_empty());
            if first {
                let rows = ResultSet::from_batches(&batches)?;
                if let Answer::Wrong(detail) = judge(&self.workload, &query, &rows, &mut self.references[index], true) {
                    let place = arm.as_ref().map_or("all near", |arm| arm.name);
                    self.failures.push(format!("{place} {}: wrong answer: {detail}", query.name));
                }
            }
            if let Some(arm) = &mut arm {
                arm.runs_ms[index].push(elapsed_ms);
                arm.stalls_ms[index].push(stall_ms);
            }
        }
        Ok(recorded)
    }

    fn reports(
        &self,
        recorded: &Recorded,
        by_query: &[Recorded],
        arms: &[Arm],
        threads: usize,
    ) -> Result<Vec<PlacementReport>> {
        let advisor = self.advisor(recorded)?;
        let alone = by_query.iter().map(|query| self.advisor(query)).collect::<Result<Vec<_>>>()?;
        let best =
            |arm: &Arm| arm.runs_ms.iter().filter_map(|runs| runs.iter().copied().min_by(f64::total_cmp)).sum::<f64>();
        let total = |arm: &Arm| arm.runs_ms.iter().filter_map(|runs| median(runs)).sum::<f64>();
        let near_ms = arms.first().map_or(0.0, total);
        let table_bytes = advisor.bytes().max(1);
        arms.iter()
            .map(|arm| {
                let near_bytes = advisor.bytes_in(&arm.placements, "near");
                let queries = (self.queries.iter().zip(&alone).enumerate())
                    .map(|(index, (query, advisor))| {
                        Ok(QueryReport {
                            name: query.name.clone(),
                            stall_predicted_ms: advisor.stall_ns(&arm.placements)? / 1e6,
                            stalls_ms: arm.stalls_ms[index].clone(),
                            runs_ms: arm.runs_ms[index].clone(),
                        })
                    })
                    .collect::<Result<Vec<_>>>()?;
                let stall_predicted_ms = queries.iter().map(|query| query.stall_predicted_ms).sum::<f64>();
                let total_predicted_ms = near_ms + stall_predicted_ms / threads as f64;
                let total_ms = total(arm);
                Ok(PlacementReport {
                    name: arm.name,
                    far_share: 1.0 - near_bytes as f64 / table_bytes as f64,
                    near_bytes,
                    columns_near: (arm.placements.values().flat_map(|placement| &placement.columns))
                        .filter(|tablespace| *tablespace == "near")
                        .count(),
                    stall_predicted_ms,
                    stall_accounted_ms: median(&arm.round_stalls_ms()).unwrap_or(0.0),
                    total_predicted_ms,
                    total_ms,
                    best_ms: best(arm),
                    performance_predicted: near_ms / total_predicted_ms,
                    performance: near_ms / total_ms,
                    queries,
                })
            })
            .collect()
    }
}

fn print(result: &AdviseResult) {
    println!(
        "TPC-H SF {}, {} of tables, far as {}, {} threads, {} rounds",
        result.scale_factor,
        ByteSize(result.table_bytes),
        result.profile,
        result.threads,
        result.rounds
    );
    println!(
        "{:<14} {:>8} {:>10} {:>8} {:>14} {:>14} {:>14} {:>12} {:>12} {:>12} {:>12}",
        "placement",
        "far",
        "near",
        "columns",
        "stall ms pred.",
        "stall ms acc.",
        "total ms pred.",
        "total ms",
        "best ms",
        "perf. pred.",
        "performance"
    );
    for placement in &result.placements {
        println!(
            "{:<14} {:>6.1} % {:>10} {:>8} {:>14.2} {:>14.2} {:>14.1} {:>12.1} {:>12.1} {:>10.1} % {:>10.1} %",
            placement.name,
            placement.far_share * 100.0,
            ByteSize(placement.near_bytes).to_string(),
            placement.columns_near,
            placement.stall_predicted_ms,
            placement.stall_accounted_ms,
            placement.total_predicted_ms,
            placement.total_ms,
            placement.best_ms,
            placement.performance_predicted * 100.0,
            placement.performance * 100.0
        );
    }
}
