//! One instance of the far-memory study: a database with TPC-H's tables, and how much it does in a placement.
//!
//! The study's Y-config has two of them, each a process of its own as there: nothing is shared but the device. The parent
//! starts `tidepool bench placement --instance` twice and tells each by lines of JSON on standard input what to do; the
//! instance answers each with a line of JSON on standard output.

use crate::cli::{self, BenchArgs};
use crate::engine::{Engine, EngineKind};
use crate::load;
use crate::placement::{PLACEMENTS, Placement};
use crate::result::median;
use crate::run::{self, Arm, Plan, Repeat};
use crate::workload::{QuerySpec, Workload};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;
use tidepool_base::{Error, Result};
use tidepool_database::{Config, Database};
use tidepool_device::{PacingCounters, Profile};
use tidepool_planner::Planner;

/// What some streams did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Point {
    pub streams: usize,
    pub queries_per_hour: f64,
    /// What the model takes to have crossed the device's link, bytes per second.
    pub link_read: f64,
    pub link_written: f64,
    /// Over all threads, ms per query.
    pub stall_ms: f64,
}

impl Point {
    /// The median of the rounds.
    pub(crate) fn middle(streams: usize, rounds: &[Point]) -> Point {
        let of = |figure: fn(&Point) -> f64| median(&rounds.iter().map(figure).collect::<Vec<_>>()).unwrap_or(0.0);
        Point {
            streams,
            queries_per_hour: of(|point| point.queries_per_hour),
            link_read: of(|point| point.link_read),
            link_written: of(|point| point.link_written),
            stall_ms: of(|point| point.stall_ms),
        }
    }
}

/// What a study's instances have in common.
pub(crate) struct InstancePlan<'a> {
    pub args: &'a BenchArgs,
    pub workload: &'a Workload,
    pub queries: &'a [QuerySpec],
}

impl InstancePlan<'_> {
    /// Of an instance on so many threads, with far memory as the arguments have it, paced as the profile says.
    pub fn config(&self, profile: Profile, threads: usize) -> Result<Config> {
        let mut config = cli::configuration(self.args.near, self.args.far.as_deref())?;
        config.far.profile = Some(profile);
        config.far.profiles.clear();
        config.threads = threads;
        Ok(config)
    }
}

/// A database with its tables loaded.
pub(crate) struct Instance<'a> {
    plan: InstancePlan<'a>,
    database: Arc<Database>,
    engine: Engine,
}

impl<'a> Instance<'a> {
    pub async fn open(plan: InstancePlan<'a>, config: Config) -> Result<Instance<'a>> {
        let threads = config.threads;
        let database = Database::open(config)?;
        let planner = Planner::new(database.clone())?;
        let datafusion_only = plan.args.engine == EngineKind::Datafusion;
        let engine = Engine::Tidepool { database: database.clone(), planner, datafusion_only };
        load::load(&engine, plan.workload, threads).await?;
        Ok(Instance { plan, database, engine })
    }

    /// Moves every table.
    pub async fn place(&self, placement: Placement) -> Result<()> {
        let mut connection = self.engine.connect().await?;
        placement.place_tables(&mut connection, self.plan.workload, "far").await
    }

    /// Every stream runs every query once.
    pub async fn streams(&self, placement: Placement, streams: usize) -> Result<Point> {
        let arm = Arm { placement, far: "far".to_owned(), profile: None };
        let plan = Plan {
            engine: &self.engine,
            workload: self.plan.workload,
            queries: self.plan.queries.to_vec(),
            arms: Vec::new(),
            repeat: Repeat::Rounds(0),
            streams,
            results_dir: None,
        };
        let before = counters(&self.database)?;
        let start = Instant::now();
        let throughput = run::streams(&plan, &arm).await?;
        let seconds = start.elapsed().as_secs_f64();
        if let Some(error) = throughput.errors.first() {
            return Err(Error::internal(format!("a query of the study failed: {error}")));
        }
        let after = counters(&self.database)?;
        Ok(Point {
            streams,
            queries_per_hour: throughput.queries_per_hour,
            link_read: (after.link_bytes_read - before.link_bytes_read) as f64 / seconds,
            link_written: (after.link_bytes_written - before.link_bytes_written) as f64 / seconds,
            stall_ms: (after.stall_ns - before.stall_ns) as f64 / 1e6 / (streams * self.plan.queries.len()) as f64,
        })
    }
}

pub(crate) fn counters(database: &Database) -> Result<PacingCounters> {
    let far = database.tablespaces().get("far")?;
    Ok(far.pacer().map(|pacer| pacer.counters()).unwrap_or_default())
}

/// What an instance is told. Each is answered by an [`Answer`].
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Make the tables, with that profile for far memory.
    Open { profile: Profile, threads: usize },
    /// Move the tables as a placement of that name has them.
    Place(String),
    /// Run so many streams once.
    Streams { placement: String, streams: usize },
    /// As `Streams`, and answer; then go on with the same until the next request comes, which is [`Request::Rest`].
    GoOn { placement: String, streams: usize },
    /// End what goes on. Answered when nothing runs any more.
    Rest,
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Done,
    Point(Point),
    Failed(String),
}

fn opened<'i, 'a>(instance: &'i Option<Instance<'a>>) -> Result<&'i Instance<'a>> {
    instance.as_ref().ok_or_else(|| Error::internal("the instance is not open"))
}

fn placement_named(name: &str) -> Result<Placement> {
    let unknown = || Error::internal(format!("there is no placement \"{name}\""));
    PLACEMENTS.into_iter().find(|placement| placement.name == name).ok_or_else(unknown)
}

/// Serves a parent until it closes standard input.
pub(crate) async fn run_instance(args: BenchArgs) -> Result<ExitCode> {
    let workload = Workload::by_name("tpch", args.sf)?;
    let queries = workload.select_queries(args.queries.as_deref().unwrap_or("1-22"))?;
    let requests = requests();
    let mut instance: Option<Instance<'_>> = None;
    let mut next = tokio::task::block_in_place(|| requests.recv().ok());
    while let Some(request) = next.take() {
        let mut goes_on = None;
        let answer = match request {
            Request::Open { profile, threads } => {
                let plan = InstancePlan { args: &args, workload: &workload, queries: &queries };
                match plan.config(profile, threads) {
                    Err(error) => Err(error),
                    Ok(config) => Instance::open(plan, config).await.map(|opened| {
                        instance = Some(opened);
                        Answer::Done
                    }),
                }
            }
            Request::Rest => Ok(Answer::Done),
            Request::Place(name) => match opened(&instance) {
                Err(error) => Err(error),
                Ok(instance) => instance.place(placement_named(&name)?).await.map(|()| Answer::Done),
            },
            Request::Streams { placement, streams } => match opened(&instance) {
                Err(error) => Err(error),
                Ok(instance) => instance.streams(placement_named(&placement)?, streams).await.map(Answer::Point),
            },
            Request::GoOn { placement, streams } => match opened(&instance) {
                Err(error) => Err(error),
                Ok(instance) => {
                    let placement = placement_named(&placement)?;
                    goes_on = Some((placement, streams));
                    instance.streams(placement, streams).await.map(Answer::Point)
                }
            },
        };
        let answer = answer.unwrap_or_else(|error| Answer::Failed(error.to_string()));
        say(&answer)?;
        next = match (goes_on, &instance, answer) {
            (Some((placement, streams)), Some(instance), Answer::Point(_)) => loop {
                match requests.try_recv() {
                    Ok(request) => break Some(request),
                    Err(TryRecvError::Disconnected) => break None,
                    Err(TryRecvError::Empty) => {
                        instance.streams(placement, streams).await?;
                    }
                }
            },
            _ => tokio::task::block_in_place(|| requests.recv().ok()),
        };
    }
    Ok(ExitCode::SUCCESS)
}

/// Lines of standard input, as a thread of its own reads them.
fn requests() -> Receiver<Request> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(|line| line.ok()) {
            let Ok(request) = serde_json::from_str(&line) else { return };
            if sender.send(request).is_err() {
                return;
            }
        }
    });
    receiver
}

fn say(answer: &Answer) -> Result<()> {
    let mut line = serde_json::to_string(answer).map_err(|error| Error::internal(error.to_string()))?;
    line.push('\n');
    let mut output = std::io::stdout().lock();
    let written = output.write_all(line.as_bytes()).and_then(|()| output.flush());
    written.map_err(|error| Error::io("answer the study", &error))
}

/// An instance in a process of its own, which ends with this value.
pub(crate) struct InstanceProcess {
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl InstanceProcess {
    /// Starts one and has it load its tables.
    pub fn start(args: &BenchArgs, profile: Profile, threads: usize) -> Result<InstanceProcess> {
        let program = std::env::current_exe().map_err(|error| Error::io("find this program", &error))?;
        let mut command = Command::new(program);
        command.args(["bench", "placement", "--instance", "--sf", &args.sf.to_string()]);
        for (name, value) in [
            ("--queries", args.queries.clone()),
            ("--near", args.near.map(|near| near.0.to_string())),
            ("--far", args.far.clone()),
        ] {
            if let Some(value) = value {
                command.args([name, &value]);
            }
        }
        if args.engine == EngineKind::Datafusion {
            command.args(["--engine", "datafusion"]);
        }
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Error::io("start an instance", &error))?;
        let (Some(requests), Some(answers)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(Error::internal("an instance has no pipes"));
        };
        let mut instance = InstanceProcess { process, requests, answers: BufReader::new(answers) };
        instance.request(&Request::Open { profile, threads })?;
        Ok(instance)
    }

    pub fn place(&mut self, placement: Placement) -> Result<()> {
        self.request(&Request::Place(placement.name.to_owned())).map(|_| ())
    }

    pub fn streams(&mut self, placement: Placement, streams: usize) -> Result<Point> {
        self.send(&Request::Streams { placement: placement.name.to_owned(), streams })?;
        self.point()
    }

    /// Begins with streams that go on until `rest`; `point` waits for what the first round of them did.
    pub fn go_on(&mut self, placement: Placement, streams: usize) -> Result<()> {
        self.send(&Request::GoOn { placement: placement.name.to_owned(), streams })
    }

    pub fn point(&mut self) -> Result<Point> {
        match self.answer()? {
            Answer::Point(point) => Ok(point),
            answer => Err(Error::internal(format!("an instance answered {answer:?}"))),
        }
    }

    pub fn rest(&mut self) -> Result<()> {
        self.request(&Request::Rest).map(|_| ())
    }

    fn request(&mut self, request: &Request) -> Result<Answer> {
        self.send(request)?;
        self.answer()
    }

    fn send(&mut self, request: &Request) -> Result<()> {
        let mut line = serde_json::to_string(request).map_err(|error| Error::internal(error.to_string()))?;
        line.push('\n');
        let written = self.requests.write_all(line.as_bytes()).and_then(|()| self.requests.flush());
        written.map_err(|error| Error::io("tell an instance what to do", &error))
    }

    fn answer(&mut self) -> Result<Answer> {
        let mut line = String::new();
        self.answers.read_line(&mut line).map_err(|error| Error::io("hear from an instance", &error))?;
        match serde_json::from_str(&line) {
            Ok(Answer::Failed(why)) => Err(Error::internal(format!("an instance failed: {why}"))),
            Ok(answer) => Ok(answer),
            Err(_) => Err(Error::internal("an instance of the study has ended")),
        }
    }
}

impl Drop for InstanceProcess {
    fn drop(&mut self) {
        // It keeps nothing that would have to be put down.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
