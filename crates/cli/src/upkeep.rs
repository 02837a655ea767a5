//! `tidepool check`, `backup`, `restore`, `archive-cleanup`, `reset-log` and `reset-sequences`.

use crate::config::DatabaseArgs;
use crate::rows::{literal, query};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_database::{Checked, Copied, Lsn, RecoveryTarget};
use tidepool_device::Location;
use tokio::runtime::Runtime;

#[derive(Clone, Debug, clap::Args)]
pub struct CheckArgs {
    /// A server: postgresql://USER@HOST:PORT/DATABASE [default: none, a data folder of this machine]
    #[arg(conflicts_with_all = ["data", "config", "near", "far", "threads"])]
    url: Option<String>,
    #[command(flatten)]
    database: DatabaseArgs,
}

#[derive(Clone, Debug, clap::Args)]
pub struct BackupArgs {
    /// Where the copy goes: a folder that is not there, or empty. A server's: on its machine
    folder: PathBuf,
    /// A server: postgresql://USER@HOST:PORT/DATABASE [default: none, a data folder of this machine]
    #[arg(conflicts_with_all = ["data", "config", "near", "far", "threads"])]
    url: Option<String>,
    #[command(flatten)]
    database: DatabaseArgs,
}

#[derive(Clone, Debug, clap::Args)]
pub struct RestoreArgs {
    /// The backup
    folder: PathBuf,
    #[command(flatten)]
    database: DatabaseArgs,
    /// Where a tablespace is to be instead of where it was, as in pool=file:/mnt/pmem/pool. May come several times
    #[arg(long = "tablespace", value_name = "NAME=LOCATION", value_parser = moved)]
    tablespaces: Vec<(String, Location)>,
    /// Go on from the backup with the log that was archived there (log.archive), to the end or to a target
    #[arg(long, value_name = "FOLDER")]
    archive: Option<PathBuf>,
    /// Restore what was committed by then, as in '2026-11-27 12:00:00+00'; UTC where it names no zone
    #[arg(long, value_name = "TIME", requires = "archive", conflicts_with = "target_lsn")]
    target_time: Option<String>,
    /// Restore what the log had up to there, as pg_current_wal_lsn() says it
    #[arg(long, value_name = "LSN", requires = "archive")]
    target_lsn: Option<Lsn>,
    /// Stop just before the target, not just after it
    #[arg(long, requires = "archive")]
    target_exclusive: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub struct ArchiveCleanupArgs {
    /// The archive (log.archive)
    archive: PathBuf,
    /// The oldest backup that is to be recovered from
    #[arg(long, value_name = "FOLDER")]
    oldest_backup: PathBuf,
}

#[derive(Clone, Debug, clap::Args)]
pub struct ResetLogArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Also if the log can be read
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Debug, clap::Args)]
pub struct ResetSequencesArgs {
    #[command(flatten)]
    database: DatabaseArgs,
}

fn moved(text: &str) -> std::result::Result<(String, Location), String> {
    let (name, location) = text.split_once('=').ok_or("it is NAME=LOCATION")?;
    Ok((name.to_owned(), location.parse().map_err(|error: Error| error.message().to_owned())?))
}

pub fn check(runtime: &Runtime, args: &CheckArgs) -> Result<ExitCode> {
    let checked = match &args.url {
        Some(url) => check_server(runtime, url, &args.database)?,
        None => tidepool_database::check_folder(&args.database.builder()?.build()?)?,
    };
    let mut faults = 0;
    for checked in &checked {
        let verdict = if checked.faults.is_empty() { "sound" } else { "NOT SOUND" };
        println!("{}: {}: {verdict}", checked.object, checked.looked_at);
        for fault in &checked.faults {
            println!("    {fault}");
        }
        faults += checked.faults.len();
    }
    Ok(if faults == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn check_server(runtime: &Runtime, url: &str, database: &DatabaseArgs) -> Result<Vec<Checked>> {
    let (mut client, _) = crate::sql::connect(runtime, Some(url), database)?;
    let rows = runtime.block_on(query(&mut client, "CALL tidepool.check()"));
    runtime.block_on(client.close());
    let rows = rows?;
    let mut all: Vec<Checked> = Vec::new();
    for row in 0..rows.rows.len() {
        let text = |name| rows.text(row, name).unwrap_or_default().to_owned();
        let fault = rows.text(row, "fault").map(str::to_owned);
        match all.last_mut().filter(|last| last.object == text("object")) {
            Some(last) => last.faults.extend(fault),
            None => all.push(Checked {
                object: text("object"),
                looked_at: text("looked_at"),
                faults: fault.into_iter().collect(),
            }),
        }
    }
    Ok(all)
}

pub fn backup(runtime: &Runtime, args: &BackupArgs) -> Result<ExitCode> {
    let folder = std::path::absolute(&args.folder)
        .map_err(|error| Error::io(format_args!("find folder \"{}\"", args.folder.display()), &error))?;
    let shown = folder.to_str().ok_or_else(|| {
        Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("folder \"{}\" is not UTF-8", folder.display()))
    })?;
    let (mut client, database) = crate::sql::connect(runtime, args.url.as_deref(), &args.database)?;
    let copied = runtime.block_on(query(&mut client, &format!("CALL tidepool.backup({})", literal(shown))));
    runtime.block_on(client.close());
    if let Some(database) = database {
        let closed = runtime.block_on(crate::serve::close(database));
        copied.as_ref().map_err(Clone::clone).and(closed.as_ref().map_err(Clone::clone))?;
    }
    let copied = copied?;
    let number = |name| copied.number(0, name) as u64;
    println!("{shown}: {} tables in {} files, {}", number("tables"), number("files"), ByteSize(number("bytes")));
    Ok(ExitCode::SUCCESS)
}

pub fn restore(args: &RestoreArgs) -> Result<ExitCode> {
    let config = args.database.builder()?.build()?;
    let folder = config.data_dir.as_deref().map(|folder| folder.display().to_string()).unwrap_or_default();
    let shown = |copied: &Copied| {
        println!("{folder}: {} tables in {} files, {}", copied.tables, copied.files, ByteSize(copied.bytes));
    };
    let Some(archive) = &args.archive else {
        shown(&tidepool_database::restore(&args.folder, &config, &args.tablespaces, &|| Ok(()))?);
        return Ok(ExitCode::SUCCESS);
    };
    let inclusive = !args.target_exclusive;
    let target = match (&args.target_time, args.target_lsn) {
        (Some(time), _) => {
            let us = tidepool_database::text::parse_moment(time)?;
            RecoveryTarget::Time { us: us.max(0).cast_unsigned(), inclusive }
        }
        (None, Some(lsn)) => RecoveryTarget::Lsn { lsn, inclusive },
        (None, None) => RecoveryTarget::End,
    };
    let recovered =
        tidepool_database::recover_to(&args.folder, archive, &config, &args.tablespaces, target, &|| Ok(()))?;
    shown(&recovered.copied);
    let at = recovered.last_at.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
    let until = at.map_or_else(
        || "nothing beyond the backup".to_owned(),
        |at| format!("the last of them at {}", tidepool_database::text::moment_text(at.as_micros() as i64)),
    );
    let term = if recovered.term > 0 { format!(" of term {}", recovered.term) } else { String::new() };
    println!("{} transactions of the log, {until}, LSN {}{term}", recovered.transactions, recovered.lsn);
    Ok(ExitCode::SUCCESS)
}

pub fn archive_cleanup(args: &ArchiveCleanupArgs) -> Result<ExitCode> {
    let (segments, rows) = tidepool_database::remove_archive_before(&args.oldest_backup, &args.archive)?;
    println!("removed {segments} segments of the log and {rows} files of rows");
    Ok(ExitCode::SUCCESS)
}

pub fn reset_log(args: &ResetLogArgs) -> Result<ExitCode> {
    let aside = tidepool_database::reset_log(&args.database.builder()?.build()?, args.force)?;
    println!("the log is given up: the next start goes on from the last checkpoint");
    if let Some(folder) = aside {
        println!("its files are in {}", folder.display());
    }
    Ok(ExitCode::SUCCESS)
}

pub fn reset_sequences(args: &ResetSequencesArgs) -> Result<ExitCode> {
    tidepool_database::reset_sequences(&args.database.builder()?.build()?)?;
    println!("sequences go on where the last checkpoint had them: what they gave since may be given again (setval)");
    Ok(ExitCode::SUCCESS)
}
