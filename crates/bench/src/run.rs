//! Running queries in placements: a warm-up round in which every answer is checked, then timed rounds. Each round visits
//! every placement, so that slow drift of the machine falls on all of them alike.

use crate::compare::{Expected, ResultSet};
use crate::engine::{Connection, Engine};
use crate::placement::Placement;
use crate::progress::{Bar, say};
use crate::result::{Answer, PlacementResult, QueryResult, Throughput, geometric_mean, median};
use crate::workload::{QuerySpec, Workload};
use arrow::record_batch::RecordBatch;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result};

/// Timed rounds after the warm-up.
#[derive(Clone, Copy, Debug)]
pub enum Repeat {
    Rounds(usize),
    /// As many as fit into `limit`, but `rounds_min` at least and `rounds_max` at most.
    Within {
        limit: Duration,
        rounds_min: usize,
        rounds_max: usize,
    },
}

/// A placement on one far tablespace.
#[derive(Clone, Debug)]
pub struct Arm {
    pub placement: Placement,
    /// The tablespace that stands for far.
    pub far: String,
    /// Its profile, if it is paced.
    pub profile: Option<String>,
}

pub struct Plan<'a> {
    pub engine: &'a Engine,
    pub workload: &'a Workload,
    pub queries: Vec<QuerySpec>,
    pub arms: Vec<Arm>,
    pub repeat: Repeat,
    pub streams: usize,
    /// Where each query's result goes as CSV, from the first placement.
    pub results_dir: Option<&'a Path>,
}

/// One placement's measurements under way.
struct Measured {
    queries: Vec<QueryResult>,
    throughput: Option<Throughput>,
}

pub async fn run(plan: &Plan<'_>) -> Result<Vec<PlacementResult>> {
    let mut connection = plan.engine.connect().await?;
    let mut measured: Vec<Measured> = Vec::new();
    let mut references: Vec<Option<Expected>> = vec![None; plan.queries.len()];

    let start = Instant::now();
    for arm in &plan.arms {
        let bar = Bar::new(format!("{}: check answers", arm.label()), plan.queries.len() as u64, "queries");
        arm.place(plan, &mut connection).await?;
        let mut queries = Vec::new();
        for (index, query) in plan.queries.iter().enumerate() {
            bar.message(format!("{}: check {}", arm.label(), query.name));
            queries.push(check(plan, &mut connection, query, &mut references[index], measured.is_empty()).await);
            bar.add(1);
        }
        measured.push(Measured { queries, throughput: None });
    }
    let round_estimate = start.elapsed();

    let rounds = match plan.repeat {
        Repeat::Rounds(rounds) => rounds,
        Repeat::Within { limit, rounds_min, rounds_max } => {
            let fitting = (limit.as_secs_f64() / round_estimate.as_secs_f64().max(1e-3)) as usize;
            fitting.clamp(rounds_min, rounds_max.max(rounds_min))
        }
    };
    time(plan, &mut connection, rounds, &mut measured).await?;

    if plan.streams > 1 {
        for (arm, measured) in plan.arms.iter().zip(&mut measured) {
            arm.place(plan, &mut connection).await?;
            measured.throughput = Some(streams(plan, arm).await?);
        }
    }
    Ok(finish(plan, measured))
}

/// Timed runs of each query between two moves of tables.
const RUNS_AT_A_PLACE: usize = 3;

/// Runs each query `rounds` times with each placement. Placements that differ in the heap alone take turns query by query, so that a slow
/// moment of the machine is not one's alone; others as tables are moved.
async fn time(plan: &Plan<'_>, connection: &mut Connection, rounds: usize, measured: &mut [Measured]) -> Result<()> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for (index, arm) in plan.arms.iter().enumerate() {
        match groups.iter_mut().find(|group| plan.arms[group[0]].has_tables_where(arm)) {
            Some(group) => group.push(index),
            None => groups.push(vec![index]),
        }
    }
    let warms_up = groups.len() > 1;
    let moves = if warms_up { rounds.div_ceil(RUNS_AT_A_PLACE) } else { usize::from(rounds > 0) };
    let runs = rounds + if warms_up { moves } else { 0 };
    let bar = Bar::new(
        format!("timed runs, {rounds} of each query"),
        (runs * plan.arms.len() * plan.queries.len()) as u64,
        "runs",
    );
    for at in 0..moves {
        let timed = if warms_up { RUNS_AT_A_PLACE.min(rounds - at * RUNS_AT_A_PLACE) } else { rounds };
        for step in 0..groups.len() {
            let group = &groups[(at + step) % groups.len()];
            if warms_up {
                plan.arms[group[0]].place(plan, connection).await?;
            }
            // Plans are made anew for tables that moved, and memory is touched for the first time.
            for run in 0..timed + usize::from(warms_up) {
                let is_timed = !warms_up || run > 0;
                for (place, query) in plan.queries.iter().enumerate() {
                    for turn in 0..group.len() {
                        let index = group[(turn + run) % group.len()];
                        let arm = &plan.arms[index];
                        bar.message(format!("{}: {}", arm.label(), query.name));
                        if group.len() > 1 {
                            arm.place_heap(plan, connection).await?;
                        }
                        let result = &mut measured[index].queries[place];
                        if !matches!(result.answer, Answer::Error(_)) {
                            let start = Instant::now();
                            match connection.query(query.sql).await {
                                Ok(_) if is_timed => result.runs_ms.push(start.elapsed().as_secs_f64() * 1e3),
                                Ok(_) => {}
                                Err(error) => result.answer = Answer::Error(format!("{error:?}")),
                            }
                        }
                        bar.add(1);
                    }
                }
            }
        }
    }
    Ok(())
}

impl Arm {
    pub fn label(&self) -> String {
        match &self.profile {
            Some(profile) if self.placement.main_far || self.placement.heap_far => {
                format!("{} ({profile})", self.placement.title)
            }
            _ => self.placement.title.to_owned(),
        }
    }

    async fn place(&self, plan: &Plan<'_>, connection: &mut Connection) -> Result<()> {
        if matches!(plan.engine, Engine::Plain(_)) {
            return Ok(());
        }
        self.placement.place_tables(connection, plan.workload, &self.far).await?;
        self.place_heap(plan, connection).await
    }

    async fn place_heap(&self, plan: &Plan<'_>, connection: &mut Connection) -> Result<()> {
        match plan.engine {
            Engine::Plain(_) => Ok(()),
            Engine::Tidepool { .. } => self.placement.place_heap(connection, &self.far).await,
        }
    }

    fn has_tables_where(&self, other: &Arm) -> bool {
        let far = |arm: &Arm| arm.placement.main_far.then(|| arm.far.clone());
        far(self) == far(other)
    }
}

/// Runs a query once and says what its answer is worth.
async fn check(
    plan: &Plan<'_>,
    connection: &mut Connection,
    query: &QuerySpec,
    reference: &mut Option<Expected>,
    first_placement: bool,
) -> QueryResult {
    let outcome = connection.query(query.sql).await;
    let facts = plan.engine.latest_statement();
    let mut result = QueryResult {
        name: query.name.clone(),
        runs_ms: Vec::new(),
        median_ms: None,
        rows: 0,
        answer: Answer::Unchecked,
        facts,
    };
    let rows = match outcome.and_then(|batches: Vec<RecordBatch>| ResultSet::from_batches(&batches)) {
        Ok(rows) => rows,
        Err(error) => {
            say(format!("  {}: {error:?}", query.name));
            result.answer = Answer::Error(format!("{error:?}"));
            return result;
        }
    };
    result.rows = rows.rows.len();
    result.answer = judge(plan.workload, query, &rows, reference, plan.arms.len() > 1);
    if let Answer::Wrong(detail) = &result.answer {
        say(format!("  {}: wrong answer: {detail}", query.name));
    }
    if let (true, Some(dir)) = (first_placement, plan.results_dir)
        && let Err(error) = write_csv(&dir.join(format!("{}.csv", query.name)), &rows)
    {
        say(format!("  {error:?}"));
    }
    result
}

pub(crate) fn judge(
    workload: &Workload,
    query: &QuerySpec,
    rows: &ResultSet,
    reference: &mut Option<Expected>,
    others_follow: bool,
) -> Answer {
    let number: usize = query.name.trim_start_matches('q').parse().unwrap_or(0);
    let tpch = workload.name == "tpch";
    let keys = if tpch { crate::tpch::answers::order_keys(number) } else { &[] };
    if let Some(verdict) =
        (tpch && workload.scale_factor == 1.0).then(|| crate::tpch::answers::check(number, rows)).flatten()
    {
        return verdict.map_or_else(Answer::Wrong, |()| Answer::Published);
    }
    match reference {
        Some(reference) => match rows.matches(reference, keys) {
            Ok(()) => Answer::Agrees,
            Err(detail) => Answer::Wrong(format!("{detail} (in the first placement)")),
        },
        None => {
            *reference = Some(rows.to_expected());
            if others_follow { Answer::Reference } else { Answer::Unchecked }
        }
    }
}

/// `plan.streams` clients at once, each running every query once in an order of its own.
pub(crate) async fn streams(plan: &Plan<'_>, arm: &Arm) -> Result<Throughput> {
    let total = (plan.streams * plan.queries.len()) as u64;
    let bar = Arc::new(Bar::new(format!("{}: {} streams", arm.label(), plan.streams), total, "queries"));
    let mut clients = Vec::new();
    for stream in 0..plan.streams {
        let mut connection = plan.engine.connect().await?;
        if !matches!(plan.engine, Engine::Plain(_)) {
            arm.placement.place_heap(&mut connection, &arm.far).await?;
        }
        clients.push((connection, stream_order(plan, stream + 1)));
    }
    let start = Instant::now();
    let tasks: Vec<_> = clients
        .into_iter()
        .map(|(mut connection, queries)| {
            let bar = bar.clone();
            tokio::spawn(async move {
                let mut errors = Vec::new();
                for query in queries {
                    if let Err(error) = connection.query(query.sql).await {
                        errors.push(format!("{}: {error:?}", query.name));
                    }
                    bar.add(1);
                }
                errors
            })
        })
        .collect();
    let mut errors = Vec::new();
    for task in tasks {
        errors.extend(task.await.map_err(|error| Error::internal(format!("a stream ended early: {error}")))?);
    }
    let seconds = start.elapsed().as_secs_f64();
    Ok(Throughput {
        streams: plan.streams,
        seconds,
        queries_per_hour: total as f64 / seconds * 3600.0,
        loss: None,
        paper_loss: arm.placement.paper_eight_streams,
        errors,
    })
}

fn stream_order(plan: &Plan<'_>, stream: usize) -> Vec<QuerySpec> {
    if plan.workload.name == "tpch" {
        let number = |query: &QuerySpec| query.name.trim_start_matches('q').parse::<u8>().unwrap_or(0);
        return crate::tpch::streams::order(stream)
            .iter()
            .flat_map(|wanted| plan.queries.iter().filter(move |query| number(query) == *wanted))
            .cloned()
            .collect();
    }
    // Far apart in the list, so that streams do not run the same query at the same time.
    let mut queries = plan.queries.clone();
    let shift = stream * queries.len() / plan.streams.max(1);
    let length = queries.len().max(1);
    queries.rotate_left(shift % length);
    queries
}

fn finish(plan: &Plan<'_>, measured: Vec<Measured>) -> Vec<PlacementResult> {
    let mut results: Vec<PlacementResult> = plan
        .arms
        .iter()
        .zip(measured)
        .map(|(arm, mut measured)| {
            for query in &mut measured.queries {
                query.median_ms = median(&query.runs_ms);
            }
            let medians = || measured.queries.iter().filter_map(|query| query.median_ms);
            let far = arm.placement.main_far || arm.placement.heap_far;
            PlacementResult {
                name: arm.placement.name,
                title: arm.placement.title,
                profile: arm.profile.clone().filter(|_| far),
                tablespace_far: arm.far.clone(),
                // An empty sum is -0.
                total_ms: medians().sum::<f64>() + 0.0,
                geometric_mean_ms: geometric_mean(medians()),
                slowdown: None,
                slowdown_noise: None,
                paper_slowdown: arm.placement.paper_single_stream,
                throughput: measured.throughput,
                queries: measured.queries,
            }
        })
        .collect();
    let Some((first, others)) = results.split_first_mut() else { return results };
    for result in others {
        // Only over queries that both ran.
        let (mut base, mut this) = (0.0, 0.0);
        for (a, b) in first.queries.iter().zip(&result.queries) {
            if let (Some(a), Some(b)) = (a.median_ms, b.median_ms) {
                base += a;
                this += b;
            }
        }
        result.slowdown = (base > 0.0).then(|| this / base - 1.0);
        result.slowdown_noise = noise(&first.queries, &result.queries);
        if let (Some(base), Some(this)) = (&first.throughput, &mut result.throughput) {
            this.loss = Some(1.0 - this.queries_per_hour / base.queries_per_hour);
        }
    }
    results
}

/// How far the slowdowns of single rounds lie apart: half of what is between the least and the greatest. Round by round, as
/// placements take turns within a round. `None` for fewer than two rounds.
fn noise(base: &[QueryResult], this: &[QueryResult]) -> Option<f64> {
    let both = || base.iter().zip(this).filter(|(a, b)| !a.runs_ms.is_empty() && !b.runs_ms.is_empty());
    let rounds = both().map(|(a, b)| a.runs_ms.len().min(b.runs_ms.len())).min().filter(|rounds| *rounds > 1)?;
    let slowdown = |round: usize| {
        let sums = both().map(|(a, b)| (a.runs_ms[round], b.runs_ms[round]));
        let (base, this) = sums.fold((0.0, 0.0), |(base, this), (a, b)| (base + a, this + b));
        this / base - 1.0
    };
    let slowdowns: Vec<f64> = (0..rounds).map(slowdown).collect();
    let (least, greatest) = slowdowns.iter().fold((f64::MAX, f64::MIN), |(a, b), it| (a.min(*it), b.max(*it)));
    Some((greatest - least) / 2.0)
}

/// Fields quoted where they must be; NULL is `\N`.
fn write_csv(path: &Path, rows: &ResultSet) -> Result<()> {
    let mut text = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = Option<&str>>| {
        for (index, cell) in cells.enumerate() {
            if index > 0 {
                text.push(',');
            }
            match cell {
                None => text.push_str("\\N"),
                Some(cell) if cell.contains([',', '"', '\n', '\r']) || cell.is_empty() || cell == "\\N" => {
                    text.push('"');
                    text.push_str(&cell.replace('"', "\"\""));
                    text.push('"');
                }
                Some(cell) => text.push_str(cell),
            }
        }
        text.push('\n');
    };
    line(&mut rows.names.iter().map(|name| Some(name.as_str())));
    for row in &rows.rows {
        line(&mut row.iter().map(Option::as_deref));
    }
    std::fs::write(path, text).map_err(|error| Error::io(format!("write \"{}\"", path.display()), &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::StatementFacts;

    fn query(runs_ms: &[f64]) -> QueryResult {
        QueryResult {
            name: "q1".to_owned(),
            runs_ms: runs_ms.to_vec(),
            median_ms: median(runs_ms),
            rows: 1,
            answer: Answer::Agrees,
            facts: StatementFacts::default(),
        }
    }

    #[test]
    fn noise_is_what_rounds_differ_by() {
        let base = [query(&[10.0, 10.0, 20.0]), query(&[10.0, 10.0, 20.0])];
        // Both became slower in the last round alike.
        let steady = [query(&[11.0, 11.0, 22.0]), query(&[11.0, 11.0, 22.0])];
        assert!(noise(&base, &steady).unwrap() < 1e-9);
        let noisy = [query(&[8.0, 11.0, 30.0]), query(&[8.0, 11.0, 30.0])];
        assert!((noise(&base, &noisy).unwrap() - 0.35).abs() < 1e-9);
        assert_eq!(noise(&base, &[query(&[1.0]), query(&[1.0])]), None);
        assert_eq!(noise(&base, &[query(&[]), query(&[])]), None);
    }
}
