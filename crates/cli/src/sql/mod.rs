//! `tidepool sql`: a shell, or statements from the command line, a file or a pipe.
//!
//! Without a server the shell runs one of its own, within its process and reachable by nobody else, on a data folder:
//! both ways are the same client and the same protocol.

pub(crate) mod client;
mod complete;
mod copy;
mod lex;
mod meta;
mod shell;
mod table;
mod url;

use crate::config::DatabaseArgs;
use client::{Client, Target};
use shell::{Flow, Shell};
use std::io::{IsTerminal, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use table::{Expanded, Style};
use tidepool_base::{Error, Result, SqlState};
use tidepool_database::Database;
use tidepool_planner::Planner;
use tidepool_server::{Service, ServiceOptions};
use tokio::runtime::Runtime;
use url::Url;

#[derive(Clone, Debug, clap::Args)]
pub struct SqlArgs {
    /// A server: postgresql://USER@HOST:PORT/DATABASE [default: none, a data folder of this machine]
    #[arg(conflicts_with_all = ["data", "pool", "pool_name", "pool_database", "config", "near", "far", "threads"])]
    url: Option<String>,
    #[command(flatten)]
    database: DatabaseArgs,
    /// Run this and exit; may be given several times
    #[arg(short, long, value_name = "SQL")]
    command: Vec<String>,
    /// Run this file and exit (- for standard input)
    #[arg(short, long, value_name = "FILE")]
    file: Vec<PathBuf>,
    /// How results look
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// Columns side by side; on a terminal, below each other where they do not fit
    Table,
    /// Columns below each other
    Expanded,
    /// Comma-separated values with a header line
    Csv,
}

impl SqlArgs {
    fn style(&self) -> Style {
        let screen = std::io::stdout().is_terminal();
        Style {
            expanded: match self.format {
                Format::Expanded => Expanded::On,
                Format::Table if screen => Expanded::Auto,
                Format::Table | Format::Csv => Expanded::Off,
            },
            // A reader has to tell it from an empty text; a program gets what psql would give it.
            null: if screen && self.format != Format::Csv { "NULL".to_owned() } else { String::new() },
            csv: self.format == Format::Csv,
        }
    }
}

/// A statement failed, and was told so.
const EXIT_STATEMENT_FAILED: u8 = 1;
/// Ended by Ctrl-C, as shells number it.
const EXIT_INTERRUPTED: u8 = 130;

/// A client of the server at `url`, or of one in this process on a data folder, which is to be closed at the end.
pub(crate) fn connect(
    runtime: &Runtime,
    url: Option<&str>,
    database: &DatabaseArgs,
) -> Result<(Client, Option<Arc<Database>>)> {
    let (target, database) = match url {
        Some(url) => (Target::Server(Url::parse(url)?), None),
        None => {
            let database = Database::open(database.builder()?.build()?)?;
            let planner = Planner::new(database.clone())?;
            (Target::Process(Arc::new(Service::new(planner, ServiceOptions::default()))), Some(database))
        }
    };
    Ok((runtime.block_on(Client::connect(target, &mut ask_password))?, database))
}

/// A client of the server at `url`.
pub(crate) fn connect_server(runtime: &Runtime, url: &str) -> Result<Client> {
    runtime.block_on(client_of(url))
}

/// As [`connect_server`], on a thread of the runtime.
pub(crate) async fn client_of(url: &str) -> Result<Client> {
    Client::connect(Target::Server(Url::parse(url)?), &mut ask_password).await
}

pub fn run(runtime: &Runtime, args: SqlArgs) -> Result<ExitCode> {
    let (client, database) = connect(runtime, args.url.as_deref(), &args.database)?;
    let mut shell = Shell::new(runtime, client, args.style());
    let code = work(&mut shell, &args)?;
    shell.close();
    if let Some(database) = database {
        runtime.block_on(crate::serve::close(database))?;
    }
    Ok(code)
}

fn work(shell: &mut Shell<'_>, args: &SqlArgs) -> Result<ExitCode> {
    if args.command.is_empty() && args.file.is_empty() {
        if std::io::stdin().is_terminal() && std::io::stdout().is_terminal() {
            shell.interact()?;
            return Ok(ExitCode::SUCCESS);
        }
        return Ok(exit_code(shell.run_script(&read_script(None)?, None)?));
    }
    for command in &args.command {
        // As with psql: one text is one simple query, so its statements share a transaction.
        let flow = if command.trim_start().starts_with('\\') {
            shell.run_script(command, None)?
        } else {
            shell.run_sql(command)?
        };
        if flow != Flow::Continue {
            return Ok(exit_code(flow));
        }
    }
    for file in &args.file {
        let path = Some(file.as_path()).filter(|path| path.as_os_str() != "-");
        let flow = shell.run_script(&read_script(path)?, path)?;
        if flow != Flow::Continue {
            return Ok(exit_code(flow));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn exit_code(flow: Flow) -> ExitCode {
    match flow {
        Flow::Continue | Flow::Quit => ExitCode::SUCCESS,
        Flow::Failed => ExitCode::from(EXIT_STATEMENT_FAILED),
        Flow::Interrupted => ExitCode::from(EXIT_INTERRUPTED),
    }
}

/// The text of a file, or of standard input.
fn read_script(path: Option<&std::path::Path>) -> Result<String> {
    let (bytes, name) = match path {
        Some(path) => (std::fs::read(path), format!("file \"{}\"", path.display())),
        None => {
            let mut bytes = Vec::new();
            (std::io::stdin().read_to_end(&mut bytes).map(|_| bytes), "standard input".to_owned())
        }
    };
    let bytes = bytes.map_err(|error| Error::io(format_args!("read {name}"), &error))?;
    String::from_utf8(bytes)
        .map_err(|_| Error::new(SqlState::CHARACTER_NOT_IN_REPERTOIRE, format!("{name} is not UTF-8")))
}

/// From the environment, or from whoever sits at the terminal.
fn ask_password() -> Result<String> {
    if let Ok(password) = std::env::var("PGPASSWORD") {
        return Ok(password);
    }
    if !std::io::stdin().is_terminal() {
        return Err(Error::new(SqlState::INVALID_PASSWORD, "the server asks for a password")
            .with_hint("Put it in the URL or in the environment variable PGPASSWORD."));
    }
    eprint!("Password: ");
    let _ = std::io::stderr().flush();
    let shown = Echo::off();
    let mut line = String::new();
    let read = std::io::stdin().read_line(&mut line);
    drop(shown);
    eprintln!();
    read.map_err(|error| Error::io("read the password", &error))?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}

/// The terminal does not show what is typed until this drops.
struct Echo(Option<libc::termios>);

impl Echo {
    fn off() -> Echo {
        // SAFETY: termios is plain data for which all zeroes is a value, and the calls use it only while they run.
        unsafe {
            let mut settings: libc::termios = std::mem::zeroed();
            if libc::tcgetattr(libc::STDIN_FILENO, &mut settings) != 0 {
                return Echo(None);
            }
            let before = settings;
            settings.c_lflag &= !libc::ECHO;
            libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, &settings);
            Echo(Some(before))
        }
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // SAFETY: `before` is what tcgetattr gave.
            unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, before) };
        }
    }
}
