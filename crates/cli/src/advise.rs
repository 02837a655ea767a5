//! `tidepool advise`: the placement advisor from the command line, on a server or on a data folder.

use crate::config::DatabaseArgs;
use crate::rows::{Rows, literal, query};
use crate::sql::client::Client;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidepool_base::{ByteSize, Error, Result};
use tokio::runtime::Runtime;

#[derive(Clone, Debug, clap::Args)]
pub struct AdviseArgs {
    /// A server: postgresql://USER@HOST:PORT/DATABASE [default: none, a data folder of this machine]
    #[arg(conflicts_with_all = ["data", "config", "near", "far", "threads"])]
    url: Option<String>,
    #[command(flatten)]
    database: DatabaseArgs,
    /// What tables and indexes may take of near memory, as in 500MB
    #[arg(long, value_name = "SIZE")]
    near_limit: ByteSize,
    /// The tablespace for the rest
    #[arg(long, value_name = "TABLESPACE", default_value = "far")]
    far_tablespace: String,
    /// What that tablespace costs, if it has no profile of its own
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Run the statements too
    #[arg(long)]
    apply: bool,
    /// Write the advice as JSON (- for standard output, instead of the statements)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub fn run(runtime: &Runtime, args: AdviseArgs) -> Result<ExitCode> {
    let (mut client, database) = crate::sql::connect(runtime, args.url.as_deref(), &args.database)?;
    let advised = runtime.block_on(advise(&mut client, &args));
    runtime.block_on(client.close());
    if let Some(database) = database {
        let closed = runtime.block_on(crate::serve::close(database));
        return advised.and(closed).map(|()| ExitCode::SUCCESS);
    }
    advised.map(|()| ExitCode::SUCCESS)
}

async fn advise(client: &mut Client, args: &AdviseArgs) -> Result<()> {
    let workload = query(client, "SELECT since, statements, elapsed_ms, stall_ms FROM tidepool.workload").await?;
    let mut call = format!("CALL tidepool.advise('{}', {}", args.near_limit.0, literal(&args.far_tablespace));
    if let Some(profile) = &args.profile {
        call += &format!(", {}", literal(profile));
    }
    let advice = query(client, &(call + ")")).await?;
    let mut statements: Vec<&str> = Vec::new();
    for row in 0..advice.rows.len() {
        if let Some(statement) = advice.text(row, "statement")
            && !statements.contains(&statement)
        {
            statements.push(statement);
        }
    }
    let json = args.json.as_deref().map(|path| (path, document(args, &workload, &advice, &statements)));
    let json_alone = args.json.as_deref() == Some(Path::new("-"));
    if !json_alone {
        print(args, &workload, &advice, &statements);
    }
    if let Some((path, document)) = json {
        let text = format!("{document:#}\n");
        if json_alone {
            print!("{text}");
        } else {
            std::fs::write(path, text)
                .map_err(|error| Error::io(format_args!("write file \"{}\"", path.display()), &error))?;
        }
    }
    if args.apply {
        for statement in &statements {
            query(client, statement).await.map_err(|error| {
                let context = format!("{statement}; the statements before it took effect");
                error.with_context(context)
            })?;
        }
        if !json_alone {
            println!("-- Applied.");
        }
    }
    Ok(())
}

/// A script: what is not a statement is a comment.
fn print(args: &AdviseArgs, workload: &Rows, advice: &Rows, statements: &[&str]) {
    println!(
        "-- Recorded since {}: {} statements, {:.1} ms",
        workload.text(0, "since").unwrap_or_default(),
        workload.text(0, "statements").unwrap_or_default(),
        workload.number(0, "elapsed_ms")
    );
    println!(
        "-- Tables and indexes in near: {} now, {} as advised, {} at most",
        ByteSize(advice.number(0, "near_bytes_now") as u64),
        ByteSize(advice.number(0, "near_bytes_advised") as u64),
        args.near_limit
    );
    println!(
        "-- Waits for far tables and indexes in one such workload, all threads added up: {:.3} ms now, {:.3} ms as advised",
        advice.number(0, "total_stall_now_ms"),
        advice.number(0, "total_stall_advised_ms")
    );
    if statements.is_empty() {
        println!("-- Nothing needs to move.");
    }
    for statement in statements {
        println!("{statement};");
    }
}

fn document(args: &AdviseArgs, workload: &Rows, advice: &Rows, statements: &[&str]) -> Value {
    // Each row is of one or the other.
    let parts = |kind: &str, name: &str| -> Vec<Value> {
        let of = |row: &usize| advice.text(*row, name).is_some();
        let part = |row: usize| {
            json!({
                "table": advice.text(row, "table_name"),
                kind: advice.text(row, name),
                "bytes": advice.number(row, "bytes_encoded") as u64,
                "tablespace": advice.text(row, "tablespace"),
                "advised": advice.text(row, "advised"),
                "near_ms": advice.number(row, "near_ms"),
                "far_ms": advice.number(row, "far_ms"),
                "stall_far_ms": advice.number(row, "stall_far_ms"),
                "stall_now_ms": advice.number(row, "stall_now_ms"),
                "statement": advice.text(row, "statement"),
            })
        };
        (0..advice.rows.len()).filter(of).map(part).collect()
    };
    json!({
        "schema": "tidepool-advice/1",
        "near_limit_bytes": args.near_limit.0,
        "far": args.far_tablespace,
        "workload": {
            "since": workload.text(0, "since"),
            "statements": workload.number(0, "statements") as u64,
            "elapsed_ms": workload.number(0, "elapsed_ms"),
            "stall_ms": workload.number(0, "stall_ms"),
        },
        "near_bytes_now": advice.number(0, "near_bytes_now") as u64,
        "near_bytes_advised": advice.number(0, "near_bytes_advised") as u64,
        "stall_now_ms": advice.number(0, "total_stall_now_ms"),
        "stall_advised_ms": advice.number(0, "total_stall_advised_ms"),
        "stall_bound_ms": advice.number(0, "total_stall_bound_ms"),
        "statements": statements,
        "columns": parts("column", "column_name"),
        "indexes": parts("index", "index_name"),
    })
}
