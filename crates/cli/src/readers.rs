//! `tidepool pool readers`: as many readers of a database on this machine as are asked for.

use clap::Args;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;
use tidepool_base::{Error, Result, SqlState};
use tidepool_device::Location;
use tidepool_pool::liveness::{is_here, stop};
use tidepool_pool::pool::{HostText, Pool};

#[derive(Args, Clone, Debug)]
pub struct ReadersArgs {
    /// The pool's first device: file:PATH or dax:PATH
    #[arg(value_name = "LOCATION")]
    location: Location,
    /// How many readers this machine is to have
    #[arg(value_parser = clap::value_parser!(u8).range(0..=60))]
    count: u8,
    /// Which of the pool's databases they read
    #[arg(long, value_name = "NAME", default_value = "tidepool")]
    database: String,
    /// The folder of their logs
    #[arg(long, value_name = "DIR", default_value = ".")]
    logs: PathBuf,
    /// How long one that is stopped has to end its clients' statements
    #[arg(long, value_name = "S", default_value_t = 30)]
    shutdown_grace_s: u64,
    /// Further arguments of each, as of `tidepool serve`
    #[arg(last = true, value_name = "ARGUMENTS")]
    serve: Vec<OsString>,
}

/// What readers are called that this command starts: the prefix, and a number from 1 on.
const NAME: &str = "reader-";

/// What a server prints when clients can connect.
const READY: &str = "tidepool is ready: ";

/// Between two looks at a log.
const LOOK: Duration = Duration::from_millis(2);

/// Starts readers or stops them until there are as many as are wanted. Those that were started in another way do not count.
pub fn run(args: &ReadersArgs) -> Result<ExitCode> {
    let pool = Pool::open_to_read(&args.location)?;
    let mut running = running(&pool, &args.database)?;
    while running.len() > usize::from(args.count) {
        let Some((number, text)) = running.pop() else { break };
        // What its clients have to end, and what a busy machine takes to end a process.
        let wait = Duration::from_secs(args.shutdown_grace_s + 30);
        if !stop(&text, wait)? {
            return Err(Error::new(SqlState::OBJECT_IN_USE, format!("{NAME}{number} did not stop"))
                .with_hint(format!("Its process is {}.", text.pid)));
        }
        println!("{NAME}{number} is stopped");
    }
    for (number, text) in &running {
        println!("{NAME}{number} at {}", text.address);
    }
    let taken = names(&pool)?;
    let free = (1_u32..).filter(|number| !taken.contains(&format!("{NAME}{number}")));
    let missing = usize::from(args.count).saturating_sub(running.len());
    // All at once: they wait for nothing but the pool.
    let started = free.take(missing).map(|number| Started::new(args, format!("{NAME}{number}")));
    let started = started.collect::<Vec<Result<Started>>>();
    for reader in started {
        let reader = reader?;
        println!("{} at {}", reader.name.clone(), reader.url()?);
    }
    Ok(ExitCode::SUCCESS)
}

/// Readers of a database that this command started on this machine, by their numbers.
fn running(pool: &Pool, database: &str) -> Result<Vec<(u32, HostText)>> {
    let database = pool.database(database)?;
    let mut readers = Vec::new();
    for view in pool.hosts()? {
        if view.ident.database != database || pool.role_of(&view)? != "reader" {
            continue;
        }
        let Some(text) = view.text.filter(is_here) else { continue };
        if let Some(number) = text.name.strip_prefix(NAME).and_then(|number| number.parse().ok()) {
            readers.push((number, text));
        }
    }
    readers.sort_by_key(|(number, _)| *number);
    Ok(readers)
}

fn names(pool: &Pool) -> Result<Vec<String>> {
    Ok(pool.hosts()?.into_iter().filter_map(|view| Some(view.text?.name)).collect())
}

/// A reader whose process runs.
struct Started {
    name: String,
    process: Child,
    log: PathBuf,
    /// How long the log was before.
    log_bytes: u64,
}

impl Started {
    fn new(args: &ReadersArgs, name: String) -> Result<Started> {
        let log = args.logs.join(format!("{name}.log"));
        let failed = |error| Error::io(format_args!("open file \"{}\"", log.display()), &error);
        let file = OpenOptions::new().create(true).append(true).open(&log).map_err(failed)?;
        let log_bytes = file.metadata().map_err(failed)?.len();
        let copy: File = file.try_clone().map_err(failed)?;
        let program = std::env::current_exe().map_err(|error| Error::io("find this program", &error))?;
        let mut command = Command::new(program);
        command.args(["serve", "--role", "reader", "--name", &name, "--database", &args.database]);
        command.args(["--pool", &args.location.to_string(), "--shutdown-grace-s", &args.shutdown_grace_s.to_string()]);
        if !args.serve.iter().any(|argument| argument.as_encoded_bytes().starts_with(b"--listen")) {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        // A group of its own: what ends this command with Ctrl-C is not for it.
        command.args(&args.serve).stdin(Stdio::null()).stdout(file).stderr(copy).process_group(0);
        let process = command.spawn().map_err(|error| Error::io("start a reader", &error))?;
        Ok(Started { name, process, log, log_bytes })
    }

    /// Waits until clients can connect. An error if the process ends before.
    fn url(mut self) -> Result<String> {
        loop {
            let has_ended = self.process.try_wait().map_err(|error| Error::io("wait for a reader", &error))?.is_some();
            let text = std::fs::read(&self.log)
                .map_err(|error| Error::io(format_args!("read file \"{}\"", self.log.display()), &error))?;
            let text = String::from_utf8_lossy(text.get(self.log_bytes as usize..).unwrap_or_default()).into_owned();
            let ready = text.split_inclusive('\n').find_map(|line| line.strip_prefix(READY)?.strip_suffix('\n'));
            if let Some(url) = ready {
                return Ok(url.to_owned());
            }
            if has_ended {
                let last = text.lines().find(|line| line.starts_with("error: ")).unwrap_or("it said nothing");
                let last = last.trim_start_matches("error: ");
                return Err(Error::new(SqlState::CANNOT_CONNECT_NOW, format!("{} did not start: {last}", self.name))
                    .with_detail(format!("Its log is \"{}\".", self.log.display())));
            }
            std::thread::sleep(LOOK);
        }
    }
}
