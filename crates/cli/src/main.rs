//! `tidepool`: the server, the shell, the benchmarks and the demo in one program.

mod advise;
mod config;
mod device;
mod log;
mod memory_node;
mod pool;
mod readers;
mod roles;
mod rows;
mod serve;
mod sql;
mod upgrade;
mod upkeep;

use clap::{Parser, Subcommand};
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use tidepool_base::{Error, Result};
use tidepool_device::paged;
use tidepool_heap::TidepoolAllocator;
use tracing_subscriber::EnvFilter;

/// Statements' allocations go to the tablespaces they name; everything else goes to jemalloc as usual.
#[global_allocator]
static ALLOCATOR: TidepoolAllocator = TidepoolAllocator;

/// Deeply nested SQL is planned by recursion. The stack is reserved, and only what is used is memory.
const STACK_BYTES: usize = 16 << 20;

/// With the commit that it was built of and that commit's date, where it was built of a checkout.
pub(crate) const VERSION: &str = env!("TIDEPOOL_VERSION");

/// An in-memory SQL database whose memory is near and far.
#[derive(Parser)]
#[command(name = "tidepool", version = VERSION, disable_help_subcommand = true)]
struct Cli {
    /// What to log: error, warn, info, debug, trace, or by module as in info,tidepool_server=debug
    #[arg(long, global = true, env = "TIDEPOOL_LOG", value_name = "LEVEL")]
    log_level: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve a data folder to PostgreSQL clients
    Serve(serve::ServeArgs),
    /// Run SQL: on a server, or on a data folder without one
    Sql(sql::SqlArgs),
    /// Verify a server's database, or a data folder that nobody uses: every checksum, version and index
    Check(upkeep::CheckArgs),
    /// Copy a database while it is at work
    Backup(upkeep::BackupArgs),
    /// Make a data folder of a backup, and of the log since then up to a moment
    Restore(upkeep::RestoreArgs),
    /// Remove what recoveries from a backup, and from later ones, do not need of an archive
    ArchiveCleanup(upkeep::ArchiveCleanupArgs),
    /// Give up a log that is lost or damaged, and what was committed since the last checkpoint
    ResetLog(upkeep::ResetLogArgs),
    /// Go on without a file of sequences that is lost or damaged: values since the last checkpoint may be given again
    ResetSequences(upkeep::ResetSequencesArgs),
    /// Say which columns to keep near, given what the queries so far have read
    Advise(advise::AdviseArgs),
    /// The far-memory study's four placements over TPC-H, with a report
    Demo(tidepool_bench::cli::DemoArgs),
    /// Show what memory there is, or measure what it costs
    Device(device::DeviceArgs),
    /// Make, show, check and destroy memory that several processes attach to
    Pool(pool::PoolArgs),
    /// Lend this machine's memory to databases on other machines
    MemoryNode(memory_node::MemoryNodeArgs),
    /// Have a standby take over
    Promote(roles::PromoteArgs),
    /// Have a primary hand over to a standby
    Switchover(roles::SwitchoverArgs),
    /// Serve in the place of a server that runs, which ends then; its clients stay connected
    Upgrade(Box<upgrade::UpgradeArgs>),
    /// Generate, load, run and check a benchmark
    Bench(Box<tidepool_bench::cli::BenchArgs>),
    #[command(hide = true)]
    Observe(tidepool_bench::cli::ObserveArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    // A closed pipe on standard output ends the program as it ends any other; Rust turns the signal off and would panic. A server goes on,
    // as the pipe may be a client's connection.
    if !matches!(cli.command, Command::Serve(_) | Command::Upgrade(_) | Command::MemoryNode(_)) {
        // SAFETY: no thread but this one exists yet, and the default action is a valid disposition.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    }
    match run(cli) {
        Ok(code) => code,
        Err(error) => {
            print_error(&error);
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    let serves = matches!(cli.command, Command::Serve(_) | Command::Upgrade(_) | Command::MemoryNode(_));
    let level_default = if serves { "info" } else { "warn" };
    start_log(cli.log_level.as_deref().unwrap_or(level_default))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        // A statement's work may hold a worker for a while; more workers than cores keep cancel requests and new
        // clients moving meanwhile.
        .worker_threads(std::thread::available_parallelism().map_or(1, usize::from) + 2)
        .thread_stack_size(STACK_BYTES)
        .thread_name("tidepool")
        .enable_all()
        .build()
        .map_err(|error| Error::io("start threads", &error))?;
    match cli.command {
        Command::Serve(args) => runtime.block_on(serve::serve(args, None)),
        Command::Sql(args) => sql::run(&runtime, args),
        Command::Check(args) => upkeep::check(&runtime, &args),
        Command::Backup(args) => upkeep::backup(&runtime, &args),
        Command::Restore(args) => upkeep::restore(&args),
        Command::ArchiveCleanup(args) => upkeep::archive_cleanup(&args),
        Command::ResetLog(args) => upkeep::reset_log(&args),
        Command::ResetSequences(args) => upkeep::reset_sequences(&args),
        Command::Advise(args) => advise::run(&runtime, args),
        Command::Demo(args) => runtime.block_on(tidepool_bench::cli::run_demo(args)),
        Command::Observe(args) => runtime.block_on(tidepool_bench::cli::run_observe(args)),
        Command::Device(args) => device::run(args),
        Command::Pool(args) => pool::run(args),
        Command::MemoryNode(args) => memory_node::run(&runtime, &args),
        Command::Promote(args) => roles::promote(&runtime, &args),
        Command::Switchover(args) => roles::switch_over(&runtime, &args),
        Command::Upgrade(args) => runtime.block_on(upgrade::upgrade(*args)),
        Command::Bench(args) => runtime.block_on(tidepool_bench::cli::run_bench(*args)),
    }
}

fn start_log(level: &str) -> Result<()> {
    let filter = EnvFilter::try_new(level).map_err(|error| {
        Error::new(tidepool_base::SqlState::INVALID_PARAMETER_VALUE, format!("invalid log level: \"{level}\""))
            .with_detail(format!("{error}."))
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        // A line is put together where its thread allocates: in a statement's heap, which may be paged.
        .with_writer(|| paged::Writer(std::io::stderr()))
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .fmt_fields(log::fields())
        .init();
    // Panics are caught where a connection or a statement ends; this is all that is seen of them.
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    Ok(())
}

/// An error on standard error, with its parts on lines of their own.
fn print_error(error: &Error) {
    let mut text = format!("error: {}\n", error.message());
    for (name, part) in [("detail", error.detail()), ("hint", error.hint()), ("context", error.context())] {
        if let Some(part) = part {
            text.push_str(&format!("  {name}: {part}\n"));
        }
    }
    // Nobody is left to tell when standard error is closed.
    let _ = std::io::stderr().write_all(text.as_bytes());
}
