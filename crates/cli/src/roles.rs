//! `tidepool promote` and `tidepool switchover`.

use crate::rows::{literal, query};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tokio::runtime::Runtime;

#[derive(Clone, Debug, clap::Args)]
pub struct PromoteArgs {
    /// The standby: postgresql://USER@HOST:PORT/DATABASE
    url: String,
    /// How long it has for that, in seconds
    #[arg(long, value_name = "S", default_value_t = 60)]
    wait_s: u32,
}

#[derive(Clone, Debug, clap::Args)]
pub struct SwitchoverArgs {
    /// The primary: postgresql://USER@HOST:PORT/DATABASE
    url: String,
    /// The name of the standby that is to be primary
    #[arg(long, value_name = "HOST")]
    to: String,
    /// Bytes of log that the standby may be behind
    #[arg(long, value_name = "SIZE", default_value = "16MB")]
    max_lag: ByteSize,
    /// End the primary once it has handed over, whatever `on_fenced` says
    #[arg(long)]
    end: bool,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

pub fn promote(runtime: &Runtime, args: &PromoteArgs) -> Result<ExitCode> {
    let mut client = crate::sql::connect_server(runtime, &args.url)?;
    let sql = format!("SELECT pg_promote(true, {})::text AS promoted", args.wait_s);
    let promoted = runtime.block_on(query(&mut client, &sql));
    runtime.block_on(client.close());
    match promoted?.text(0, "promoted") {
        Some("true") => {
            println!("the server is primary");
            Ok(ExitCode::SUCCESS)
        }
        _ => Err(Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("server did not promote within {} seconds", args.wait_s),
        )),
    }
}

pub fn switch_over(runtime: &Runtime, args: &SwitchoverArgs) -> Result<ExitCode> {
    let mut client = crate::sql::connect_server(runtime, &args.url)?;
    let sql = format!(
        "CALL tidepool.switchover({}, '{}B', {}, {})",
        literal(&args.to),
        args.max_lag.0,
        args.dry_run,
        args.end
    );
    let switched = match runtime.block_on(query(&mut client, &sql)) {
        Ok(switched) => switched,
        // The standby ends the connections of the primary's clients, this one among them, and is found where that was.
        Err(error) if !args.dry_run && error.code() == SqlState::CONNECTION_FAILURE => {
            wait_for(runtime, args)?;
            println!("{} is primary", args.to);
            return Ok(ExitCode::SUCCESS);
        }
        Err(error) => return Err(error),
    };
    runtime.block_on(client.close());
    let lag = ByteSize(switched.number(0, "lag_bytes") as u64);
    match args.dry_run {
        true => println!("{} can take over: it is {lag} of log behind", args.to),
        false => println!("{} is primary", args.to),
    }
    Ok(ExitCode::SUCCESS)
}

/// How long the new primary is looked for.
const FOUND_WITHIN: Duration = Duration::from_secs(10);

/// Until the standby is found to be primary where its primary was.
fn wait_for(runtime: &Runtime, args: &SwitchoverArgs) -> Result<()> {
    let sql = "SELECT name, pg_is_in_recovery()::text AS follows FROM tidepool.hosts WHERE is_this_server";
    let end = Instant::now() + FOUND_WITHIN;
    let look = || -> Result<bool> {
        let mut client = crate::sql::connect_server(runtime, &args.url)?;
        let answer = runtime.block_on(query(&mut client, sql));
        runtime.block_on(client.close());
        let answer = answer?;
        Ok(answer.text(0, "name") == Some(args.to.as_str()) && answer.text(0, "follows") == Some("false"))
    };
    while Instant::now() < end {
        if matches!(look(), Ok(true)) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(Error::new(SqlState::CONNECTION_FAILURE, format!("the primary at {} has ended the connection", args.url))
        .with_hint(format!("Ask {} whether it is primary: SELECT pg_is_in_recovery().", args.to)))
}
