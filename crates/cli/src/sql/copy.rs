//! `\copy`: COPY between the server and a file on this side.

use super::client::{Client, Event};
use super::shell::{Flow, show_report, tell};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use tidepool_base::{Error, Result, SqlState};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

/// Large enough that a message costs nothing beside its rows.
const CHUNK_BYTES: usize = 256 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Direction {
    From,
    To,
}

/// `\copy what FROM|TO where options`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyCommand {
    /// A table with or without columns, or a query in parentheses.
    subject: String,
    direction: Direction,
    /// `None`: this program's standard input or output.
    path: Option<PathBuf>,
    options: String,
}

impl CopyCommand {
    /// What follows `\copy`.
    pub fn parse(text: &str) -> Result<CopyCommand> {
        let usage = || {
            Error::new(SqlState::SYNTAX_ERROR, "\\copy needs a table or query, FROM or TO, and a file")
                .with_hint("As in: \\copy trips FROM 'trips.csv' WITH (FORMAT csv, HEADER).")
        };
        let (at, end, direction) = find_direction(text).ok_or_else(usage)?;
        let subject = text[..at].trim();
        let rest = text[end..].trim();
        let (file, options, quoted) = match rest.strip_prefix('\'') {
            Some(quoted) => {
                let close = quote_end(quoted).ok_or_else(usage)?;
                (quoted[..close].replace("''", "'"), &quoted[close + 1..], true)
            }
            None => {
                let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
                (rest[..end].trim_end_matches(';').to_owned(), &rest[end..], false)
            }
        };
        if subject.is_empty() || file.is_empty() {
            return Err(usage());
        }
        let standard =
            !quoted && ["stdin", "stdout", "pstdin", "pstdout"].iter().any(|name| file.eq_ignore_ascii_case(name));
        let path = match file.strip_prefix("~/") {
            _ if standard => None,
            Some(inner) => Some(match std::env::var_os("HOME") {
                Some(home) => PathBuf::from(home).join(inner),
                None => PathBuf::from(&file),
            }),
            None => Some(PathBuf::from(&file)),
        };
        Ok(CopyCommand {
            subject: subject.to_owned(),
            direction,
            path,
            options: options.trim().trim_end_matches(';').to_owned(),
        })
    }

    fn sql(&self) -> String {
        let direction = match self.direction {
            Direction::From => "FROM STDIN",
            Direction::To => "TO STDOUT",
        };
        format!("COPY {} {direction} {}", self.subject, self.options).trim_end().to_owned()
    }
}

/// Where the quote that `text` is inside of ends.
fn quote_end(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match (bytes[at], bytes.get(at + 1)) {
            (b'\'', Some(b'\'')) => at += 2,
            (b'\'', _) => return Some(at),
            _ => at += 1,
        }
    }
    None
}

/// The first FROM or TO outside parentheses and quotes.
fn find_direction(text: &str) -> Option<(usize, usize, Direction)> {
    let (mut depth, mut quote, mut start) = (0u32, None, None);
    for (at, character) in text.char_indices().chain([(text.len(), ' ')]) {
        match quote {
            Some(open) => {
                if open == character {
                    quote = None;
                }
                continue;
            }
            None if character.is_alphanumeric() || matches!(character, '_' | '.') => {
                start.get_or_insert(at);
                continue;
            }
            None => (),
        }
        if let Some(start) = start.take()
            && depth == 0
        {
            match &text[start..at] {
                word if word.eq_ignore_ascii_case("from") => return Some((start, at, Direction::From)),
                word if word.eq_ignore_ascii_case("to") => return Some((start, at, Direction::To)),
                _ => (),
            }
        }
        match character {
            '\'' | '"' => quote = Some(character),
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => (),
        }
    }
    None
}

pub async fn run(client: &mut Client, command: &CopyCommand) -> Result<Flow> {
    match command.direction {
        Direction::From => copy_from(client, command).await,
        Direction::To => copy_to(client, command).await,
    }
}

fn bar(len: Option<u64>) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::with_draw_target(len, ProgressDrawTarget::hidden());
    }
    let bar = ProgressBar::with_draw_target(len, ProgressDrawTarget::stderr_with_hz(10));
    let template = match len {
        Some(_) => "{bar:40} {bytes} of {total_bytes} ({binary_bytes_per_sec}, {eta} left)",
        None => "{spinner} {bytes} ({binary_bytes_per_sec})",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

async fn copy_from(client: &mut Client, command: &CopyCommand) -> Result<Flow> {
    let path = command.path.clone().unwrap_or_else(|| PathBuf::from("/dev/stdin"));
    let mut source = match tokio::fs::File::open(&path).await {
        Ok(file) => file,
        Err(error) => {
            tell(&Error::io(format_args!("open file \"{}\"", path.display()), &error));
            return Ok(Flow::Failed);
        }
    };
    let len = source.metadata().await.ok().filter(|data| data.is_file()).map(|data| data.len());
    let sql = command.sql();
    client.query(&sql).await?;
    let bar = bar(len);
    let mut flow = Flow::Continue;
    loop {
        match client.event().await? {
            Event::CopyIn => {
                send(client, &mut source, &bar, &sql, &mut flow).await?;
            }
            Event::Ready => break,
            event => show(event, &bar, &sql, &mut flow),
        }
    }
    bar.finish_and_clear();
    Ok(flow)
}

/// Sends the file, until its end, an error of the server's, or Ctrl-C.
async fn send(
    client: &mut Client,
    source: &mut (dyn AsyncRead + Unpin),
    bar: &ProgressBar,
    sql: &str,
    flow: &mut Flow,
) -> Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    let interrupt = tokio::signal::ctrl_c();
    let mut interrupt = std::pin::pin!(interrupt);
    loop {
        let read = tokio::select! {
            read = source.read(&mut chunk) => read,
            _ = &mut interrupt => {
                *flow = Flow::Interrupted;
                return client.copy_fail("interrupted by the user").await;
            }
        };
        match read {
            Ok(0) => return client.copy_done().await,
            Ok(len) => {
                client.copy_data(&chunk[..len]).await?;
                bar.inc(len as u64);
            }
            Err(error) => return client.copy_fail(&format!("could not read the file: {error}")).await,
        }
        // The server may have found a bad row by now: the rest of the file is of no use to it.
        while let Some(event) = client.event_now().await {
            let event = event?;
            let failed = matches!(event, Event::Failed(_));
            show(event, bar, sql, flow);
            if failed {
                return Ok(());
            }
        }
    }
}

fn show(event: Event, bar: &ProgressBar, sql: &str, flow: &mut Flow) {
    bar.suspend(|| match event {
        Event::Failed(report) => {
            show_report(&report, sql, "error");
            if *flow == Flow::Continue {
                *flow = Flow::Failed;
            }
        }
        Event::Notice(report) => show_report(&report, sql, &report.severity.to_lowercase()),
        Event::Complete(tag) => println!("{tag}"),
        _ => (),
    });
}

async fn copy_to(client: &mut Client, command: &CopyCommand) -> Result<Flow> {
    let mut file = match &command.path {
        None => None,
        Some(path) => match tokio::fs::File::create(path).await {
            Ok(file) => Some(tokio::io::BufWriter::with_capacity(CHUNK_BYTES, file)),
            Err(error) => {
                tell(&Error::io(format_args!("create file \"{}\"", path.display()), &error));
                return Ok(Flow::Failed);
            }
        },
    };
    let sql = command.sql();
    client.query(&sql).await?;
    let canceller = client.canceller();
    // Rows on the terminal are progress enough.
    let bar = if file.is_some() { bar(None) } else { ProgressBar::hidden() };
    let mut flow = Flow::Continue;
    let mut written: std::io::Result<()> = Ok(());
    loop {
        let event = tokio::select! {
            event = client.event() => event?,
            _ = tokio::signal::ctrl_c() => {
                flow = Flow::Interrupted;
                canceller.cancel().await?;
                continue;
            }
        };
        match event {
            Event::CopyData(data) => {
                bar.inc(data.len() as u64);
                if written.is_ok() {
                    written = match &mut file {
                        Some(file) => file.write_all(&data).await,
                        None => std::io::stdout().write_all(&data),
                    };
                    if written.is_err() {
                        canceller.cancel().await?;
                    }
                }
            }
            Event::Ready => break,
            // On standard output the tag would be taken for a row.
            Event::Complete(_) if file.is_none() => (),
            event => show(event, &bar, &sql, &mut flow),
        }
    }
    bar.finish_and_clear();
    if let Some(file) = &mut file
        && written.is_ok()
    {
        written = file.flush().await;
    }
    if let Err(error) = written {
        tell(&Error::io("write the file", &error));
        return Ok(Flow::Failed);
    }
    Ok(flow)
}
