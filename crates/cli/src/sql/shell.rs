//! Running statements and showing what comes of them; the interactive loop.

use super::client::{Client, Event, Report};
use super::complete::{Names, Proposer};
use super::copy;
use super::lex;
use super::meta;
use super::table::{Style, TablePrinter};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;
use tidepool_base::{Error, Result, SqlState};
use tokio::runtime::Runtime;

/// What a statement or a script means for what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Continue,
    Quit,
    Failed,
    Interrupted,
}

pub struct Shell<'a> {
    runtime: &'a Runtime,
    pub(super) client: Client,
    pub(super) style: Style,
    pub(super) timing: bool,
    /// Names may have come or gone since they were last asked for.
    names_are_old: bool,
    /// Folders of the files being run, for `\ir`-like nesting, and a bound on it.
    depth: u32,
}

/// A file that includes itself would never end.
const INCLUDE_DEPTH_MAX: u32 = 16;

impl<'a> Shell<'a> {
    pub fn new(runtime: &'a Runtime, client: Client, style: Style) -> Shell<'a> {
        Shell { runtime, client, style, timing: false, names_are_old: true, depth: 0 }
    }

    pub fn close(self) {
        self.runtime.block_on(self.client.close());
    }

    /// Runs one simple query and prints its results. `Err` is the connection's end.
    pub fn run_sql(&mut self, sql: &str) -> Result<Flow> {
        let start = Instant::now();
        self.names_are_old |= ["create", "alter", "drop"].iter().any(|word| begins_with(sql, word));
        let flow = self.runtime.block_on(run_query(&mut self.client, sql, &self.style))?;
        if self.timing {
            println!("Time: {}", duration(start.elapsed().as_secs_f64()));
        }
        Ok(flow)
    }

    pub(super) fn run_copy(&mut self, command: &copy::CopyCommand) -> Result<Flow> {
        let start = Instant::now();
        let flow = self.runtime.block_on(copy::run(&mut self.client, command))?;
        if self.timing {
            println!("Time: {}", duration(start.elapsed().as_secs_f64()));
        }
        Ok(flow)
    }

    /// Runs statements and backslash commands, and stops at the first that fails.
    pub fn run_script(&mut self, text: &str, path: Option<&Path>) -> Result<Flow> {
        if self.depth == INCLUDE_DEPTH_MAX {
            tell(&Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "files include each other too deeply"));
            return Ok(Flow::Failed);
        }
        self.depth += 1;
        let flow = self.run_parts(text, path);
        self.depth -= 1;
        flow
    }

    fn run_parts(&mut self, text: &str, path: Option<&Path>) -> Result<Flow> {
        let mut rest = text.strip_prefix('\u{feff}').unwrap_or(text);
        while !lex::is_blank(rest) {
            let trimmed = skip_blank(rest);
            let at = text.len() - trimmed.len();
            let flow = if trimmed.starts_with('\\') {
                let (line, after) = trimmed.split_once('\n').unwrap_or((trimmed, ""));
                rest = after;
                meta::run(self, line.trim())?
            } else {
                let end = lex::statement_end(trimmed).unwrap_or(trimmed.len());
                let statement = &trimmed[..end];
                rest = &trimmed[end..];
                self.run_sql(statement.trim())?
            };
            if flow != Flow::Continue {
                if flow == Flow::Failed
                    && let Some(path) = path
                {
                    let line = text[..at].matches('\n').count() + 1;
                    eprintln!("  in: {}, line {line}", path.display());
                }
                return Ok(flow);
            }
        }
        Ok(Flow::Continue)
    }

    /// Reads lines until the end of input or `\q`.
    pub fn interact(&mut self) -> Result<()> {
        let failed =
            |error: ReadlineError| Error::new(SqlState::IO_ERROR, format!("could not use the terminal: {error}"));
        let config = rustyline::Config::builder()
            .max_history_size(10_000)
            .and_then(|builder| builder.history_ignore_dups(true))
            .map_err(failed)?
            .build();
        let mut editor = rustyline::Editor::<Proposer, FileHistory>::with_config(config).map_err(failed)?;
        editor.set_helper(Some(Proposer::default()));
        let history = history_file();
        if let Some(path) = &history {
            // The first time there is none.
            let _ = editor.load_history(path);
        }
        println!(
            "tidepool {} ({}). \\? for help, \\q to quit.\n",
            crate::VERSION,
            if self.client.encrypted { "encrypted" } else { "local or unencrypted connection" }
        );
        let mut pending = String::new();
        loop {
            if let Some(proposer) = editor.helper_mut() {
                // Not within a block: its first query fixes a snapshot, and that is to be the user's.
                if self.names_are_old && !self.client.in_transaction {
                    proposer.names = self.runtime.block_on(Names::load(&mut self.client))?;
                    self.names_are_old = false;
                }
                pending.clone_into(&mut proposer.pending);
            }
            match editor.readline(&self.prompt(&pending)) {
                Ok(line) => {
                    let command = if lex::is_blank(&pending) { meta::command_of(line.trim()) } else { None };
                    let flow = if let Some(command) = command {
                        pending.clear();
                        let _ = editor.add_history_entry(line.trim());
                        meta::run(self, command)
                    } else {
                        pending.push_str(&line);
                        pending.push('\n');
                        if lex::statement_end(&pending).is_some() {
                            let _ = editor.add_history_entry(pending.trim());
                        }
                        self.run_pending(&mut pending)
                    };
                    match flow {
                        Ok(Flow::Quit) => break,
                        Ok(_) => (),
                        Err(error) if is_connection_lost(&error) => return Err(error),
                        Err(error) => tell(&error),
                    }
                }
                Err(ReadlineError::Interrupted) => pending.clear(),
                Err(ReadlineError::Eof) => break,
                Err(error) => return Err(failed(error)),
            }
        }
        if let Some(path) = &history {
            let _ = editor.save_history(path);
        }
        Ok(())
    }

    /// Runs the statements of `pending` that are complete.
    fn run_pending(&mut self, pending: &mut String) -> Result<Flow> {
        while let Some(end) = lex::statement_end(pending) {
            let statement: String = pending.drain(..end).collect();
            self.run_sql(statement.trim())?;
        }
        if lex::is_blank(pending) {
            pending.clear();
        }
        Ok(Flow::Continue)
    }

    fn prompt(&self, pending: &str) -> String {
        let block = match (self.client.in_transaction, self.client.transaction_failed) {
            (_, true) => "!",
            (true, false) => "*",
            (false, false) => "",
        };
        let more = if lex::is_blank(pending) { "=" } else { "-" };
        format!("tidepool{more}{block}> ")
    }
}

/// Whether a statement's first word is this one.
fn begins_with(sql: &str, word: &str) -> bool {
    sql.trim_start().get(..word.len()).is_some_and(|first| first.eq_ignore_ascii_case(word))
}

fn is_connection_lost(error: &Error) -> bool {
    matches!(error.code(), SqlState::CONNECTION_FAILURE | SqlState::PROTOCOL_VIOLATION)
}

/// What comes after blanks and whole comments in front.
fn skip_blank(text: &str) -> &str {
    let mut rest = text.trim_start();
    while rest.starts_with("--") {
        rest = rest.split_once('\n').map_or("", |(_, rest)| rest).trim_start();
    }
    rest
}

/// Runs one simple query. A first Ctrl-C cancels it.
pub(super) async fn run_query(client: &mut Client, sql: &str, style: &Style) -> Result<Flow> {
    client.query(sql).await?;
    let canceller = client.canceller();
    let mut printer: Option<TablePrinter<BufWriter<std::io::Stdout>>> = None;
    let (mut flow, mut interrupted) = (Flow::Continue, false);
    loop {
        let event = tokio::select! {
            event = client.event() => event?,
            _ = tokio::signal::ctrl_c() => {
                interrupted = true;
                canceller.cancel().await?;
                continue;
            }
        };
        let printed = match event {
            Event::Columns(columns) => {
                printer = Some(TablePrinter::new(BufWriter::new(std::io::stdout()), columns, style));
                Ok(())
            }
            Event::Row(values) => match &mut printer {
                Some(printer) => printer.row(&values),
                None => Ok(()),
            },
            Event::Complete(tag) => match printer.take() {
                Some(printer) => printer.finish(),
                None => writeln!(std::io::stdout(), "{tag}"),
            },
            Event::Failed(report) => {
                // What came before the error is shown; its count would be wrong.
                drop(printer.take());
                show_report(&report, sql, "error");
                flow = if interrupted { Flow::Interrupted } else { Flow::Failed };
                Ok(())
            }
            Event::Notice(report) => {
                show_report(&report, sql, &report.severity.to_lowercase());
                Ok(())
            }
            Event::CopyIn => {
                client.copy_fail("this shell sends files with \\copy").await?;
                Ok(())
            }
            Event::CopyData(data) => std::io::stdout().write_all(&data),
            Event::CopyOut | Event::Empty => Ok(()),
            Event::Ready => break,
        };
        // Nobody reads: the rest of the answer is of no use.
        printed.map_err(|error| Error::io("write to standard output", &error))?;
    }
    let _ = std::io::stdout().flush();
    Ok(flow)
}

/// An error or a notice with the line it points at.
pub(super) fn show_report(report: &Report, sql: &str, label: &str) {
    let mut text = format!("{label}: {}\n", report.message);
    if let Some((number, line, column)) = report.position.and_then(|position| locate(sql, position)) {
        let prefix = format!("  line {number}: ");
        text.push_str(&format!("{prefix}{line}\n{:width$}^\n", "", width = prefix.len() + column));
    }
    for (name, part) in [("detail", &report.detail), ("hint", &report.hint), ("context", &report.context)] {
        if let Some(part) = part {
            text.push_str(&format!("  {name}: {part}\n"));
        }
    }
    let _ = std::io::stdout().flush();
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// The line of `sql` that the one-based character `position` is in: its number, a part of it that fits a screen, and how
/// many columns of that come before the position.
fn locate(sql: &str, position: usize) -> Option<(usize, String, usize)> {
    const BEFORE_MAX: usize = 50;
    const WIDTH_MAX: usize = 70;
    let before: String = sql.chars().take(position.checked_sub(1)?).collect();
    let number = before.matches('\n').count() + 1;
    let line = sql.lines().nth(number - 1)?.replace('\t', " ");
    let column = before.chars().rev().take_while(|c| *c != '\n').count();
    if line.chars().count() <= WIDTH_MAX {
        let shown = unicode_width::UnicodeWidthStr::width(line.chars().take(column).collect::<String>().as_str());
        return Some((number, line, shown));
    }
    let first = column.saturating_sub(BEFORE_MAX);
    let part: String = line.chars().skip(first).take(WIDTH_MAX).collect();
    let ahead: String = part.chars().take(column - first).collect();
    let (mark, mark_width) = if first > 0 { ("…", 1) } else { ("", 0) };
    Some((number, format!("{mark}{part}"), unicode_width::UnicodeWidthStr::width(ahead.as_str()) + mark_width))
}

/// An error of the shell's own.
pub(super) fn tell(error: &Error) {
    let _ = std::io::stdout().flush();
    crate::print_error(error);
}

fn duration(seconds: f64) -> String {
    if seconds < 1.0 {
        format!("{:.3} ms", seconds * 1e3)
    } else if seconds < 60.0 {
        format!("{:.3} ms ({seconds:.3} s)", seconds * 1e3)
    } else {
        format!("{:.3} ms ({}:{:02})", seconds * 1e3, seconds as u64 / 60, seconds as u64 % 60)
    }
}

/// `$XDG_STATE_HOME/tidepool/history`, made if need be. `None` where there is no home.
fn history_file() -> Option<PathBuf> {
    let state = match std::env::var_os("XDG_STATE_HOME").filter(|path| !path.is_empty()) {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(std::env::var_os("HOME")?).join(".local/state"),
    };
    let folder = state.join("tidepool");
    std::fs::create_dir_all(&folder).ok()?;
    Some(folder.join("history"))
}
