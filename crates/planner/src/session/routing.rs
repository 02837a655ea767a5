//! Which statements may run at a host that only reads, for a session that asks for that (`tidepool.route_reads`).
//!
//! What is not known to read only runs at the primary. So a statement is refused at a reader for what it is (25006) only where its client
//! has asked for a transaction that may only read.

use super::Session;
use crate::statement::{Command, CopyEndpoint, Statement, TransactionMode};

/// Longer texts are not looked at: parsing one takes its time, and it is parsed again where it runs.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// Parts of the names of functions that are about the host that they run at.
const OF_HOST: [&str; 9] = [
    "pg_advisory",
    "pg_try_advisory",
    "pg_cancel_backend",
    "pg_current_wal",
    "pg_promote",
    "pg_switch_wal",
    "pg_terminate_backend",
    "pg_wal_replay",
    "set_config",
];

/// With which words texts begin that begin a transaction, or work on the session alone. No other text can run at a reader while transactions
/// may write by default.
const FIRST_WORDS: [&str; 13] = [
    "abort",
    "begin",
    "close",
    "commit",
    "deallocate",
    "discard",
    "end",
    "reset",
    "rollback",
    "set",
    "show",
    "start",
    "unlisten",
];

/// Where something may run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Routed {
    /// Wherever the session is: it works on the session alone.
    #[default]
    Anywhere,
    /// At a reader: it is a transaction that only reads, or begins one.
    Reader,
    /// At the primary, as far as is known.
    Primary,
}

/// What a client sends at once, statement by statement.
#[derive(Debug, Default)]
pub struct RoutedText {
    routed: Routed,
    in_block: bool,
    has_set: bool,
}

impl RoutedText {
    /// Within a transaction that may only read.
    pub fn in_block() -> RoutedText {
        RoutedText { in_block: true, ..RoutedText::default() }
    }

    pub fn routed(&self) -> Routed {
        self.routed
    }

    pub fn add_text(&mut self, session: &Session, sql: &str) {
        if self.routed == Routed::Primary {
            return;
        }
        let may_read = self.in_block || session.settings.reads_by_default() || may_begin(sql);
        let statements = match may_read && sql.len() <= TEXT_BYTES_MAX {
            true => session.parse(sql).ok(),
            false => None,
        };
        match statements {
            Some(statements) => statements.iter().for_each(|statement| self.add(session, statement)),
            None => self.routed = Routed::Primary,
        }
    }

    pub fn add(&mut self, session: &Session, statement: &Statement) {
        let command = statement.command();
        let is_of_host = || is_of_host(statement.text());
        let routed = match self.in_block {
            true => match command {
                Command::SetTransaction { modes } if !is_for_readers(modes) => Routed::Primary,
                Command::Set { name, .. } if is_of_transaction(name) => Routed::Primary,
                _ if is_of_host() => Routed::Primary,
                _ => Routed::Reader,
            },
            false => between(session, command, is_of_host),
        };
        self.routed = match (self.routed, routed) {
            (Routed::Primary, _) | (_, Routed::Primary) => Routed::Primary,
            // What was set may be what decides.
            (_, Routed::Reader) if self.has_set && !self.in_block => Routed::Primary,
            (Routed::Reader, _) | (_, Routed::Reader) => Routed::Reader,
            _ => Routed::Anywhere,
        };
        match command {
            Command::Begin { .. } => self.in_block = true,
            Command::Commit { chain } | Command::Rollback { chain } => self.in_block &= chain,
            Command::Set { .. }
            | Command::SetSessionTransaction { .. }
            | Command::Reset { .. }
            | Command::DiscardAll => self.has_set = true,
            _ => {}
        }
    }
}

/// Of a statement outside of a transaction block.
fn between(session: &Session, command: &Command, is_of_host: impl Fn() -> bool) -> Routed {
    let settings = &session.settings;
    let reads = || settings.reads_by_default() && is_for_level(settings.default_isolation()) && !is_of_host();
    match command {
        Command::Begin { modes } => {
            let only = modes.iter().rev().find_map(|mode| match mode {
                TransactionMode::ReadOnly(only) => Some(*only),
                _ => None,
            });
            let level = modes.iter().rev().find_map(|mode| match mode {
                TransactionMode::Isolation(level) => Some(*level),
                _ => None,
            });
            let is_read_only = only.unwrap_or(settings.reads_by_default());
            match is_read_only && is_for_level(level.unwrap_or(settings.default_isolation())) {
                true => Routed::Reader,
                false => Routed::Primary,
            }
        }
        Command::Set { name, .. } if is_of_transaction(name) => Routed::Primary,
        Command::Empty
        | Command::Set { .. }
        | Command::SetSessionTransaction { .. }
        | Command::Reset { .. }
        | Command::Show { .. }
        | Command::Commit { .. }
        | Command::Rollback { .. }
        | Command::DiscardAll
        | Command::DiscardSequences
        | Command::DiscardTemporary
        | Command::Deallocate { .. }
        | Command::Fetch { .. }
        | Command::Close { .. } => Routed::Anywhere,
        Command::Query(_) | Command::Execute { .. } | Command::Declare { .. } | Command::Explain { .. } if reads() => {
            Routed::Reader
        }
        Command::Copy(copy) if !copy.from && matches!(copy.endpoint, CopyEndpoint::Client) && reads() => Routed::Reader,
        _ => Routed::Primary,
    }
}

fn is_of_transaction(setting: &str) -> bool {
    setting.get(..12).is_some_and(|start| start.eq_ignore_ascii_case("transaction_"))
}

/// No host that follows has it.
fn is_for_level(level: &str) -> bool {
    !level.eq_ignore_ascii_case("serializable")
}

fn is_for_readers(modes: &[TransactionMode]) -> bool {
    modes.iter().all(|mode| match mode {
        TransactionMode::Isolation(level) => is_for_level(level),
        TransactionMode::ReadOnly(only) => *only,
        TransactionMode::Deferrable(_) => true,
    })
}

fn is_of_host(text: &str) -> bool {
    // Most texts do not have these letters at all.
    let has = |word: &str| text.as_bytes().windows(word.len()).any(|part| part.eq_ignore_ascii_case(word.as_bytes()));
    (has("pg_") || has("set_config")) && OF_HOST.iter().any(|name| has(name))
}

/// Whether a text may begin a transaction by a statement of its own. One that begins with a comment may.
fn may_begin(sql: &str) -> bool {
    let sql = sql.trim_start();
    let end = sql.find(|letter: char| !letter.is_ascii_alphabetic()).unwrap_or(sql.len());
    match &sql[..end] {
        "" => true,
        word => FIRST_WORDS.iter().any(|first| first.eq_ignore_ascii_case(word)),
    }
}

impl Session {
    /// Whether transactions that only read are to run at a reader.
    #[inline]
    pub fn routes_reads(&self) -> bool {
        self.settings.routes_reads()
    }

    /// It has what is this host's alone, or what another one has no use for: temporary tables, advisory locks, and cursors that outlive their
    /// transactions.
    pub fn is_tied(&self) -> bool {
        self.temporary.is_used()
            || !self.cursors.is_empty()
            || !self.planner.advisory.held_by(self.shared.id, false).is_empty()
    }

    /// The session is another host's, and here as long as it reads.
    pub fn set_guest(&self) {
        self.planner.advisory.set_guest(self.shared.id);
    }

    /// Whether a text may be about the host that it runs at, or about what its transaction may do.
    pub fn may_be_of_primary(&self, sql: &str) -> bool {
        sql.len() <= TEXT_BYTES_MAX && (is_of_host(sql) || may_begin(sql))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner::Planner;
    use Routed::{Anywhere, Primary, Reader};
    use tidepool_database::Database;
    use tidepool_database::config::ConfigBuilder;

    fn of(session: &Session, sql: &str) -> Routed {
        let mut text = RoutedText::default();
        text.add_text(session, sql);
        text.routed()
    }

    #[test]
    fn what_is_not_known_to_read_only_runs_at_the_primary() {
        let config = ConfigBuilder::new().near("64MB").unwrap().far("64MB").unwrap().build().unwrap();
        let planner = Planner::new(Database::open(config).unwrap()).unwrap();
        let mut session = planner.session("tidepool");
        for (sql, expected) in [
            ("BEGIN READ ONLY", Reader),
            ("/* x */ start transaction isolation level repeatable read, read only", Reader),
            ("BEGIN READ ONLY; SELECT 1; COMMIT", Reader),
            ("BEGIN READ ONLY; SELECT 1; COMMIT; INSERT INTO t VALUES (1)", Primary),
            ("BEGIN READ ONLY; SET TRANSACTION READ WRITE", Primary),
            ("BEGIN READ ONLY; SELECT pg_advisory_lock(1)", Primary),
            ("BEGIN READ ONLY, ISOLATION LEVEL SERIALIZABLE", Primary),
            ("BEGIN", Primary),
            ("SELECT 1", Primary),
            ("SET application_name = 'x'", Anywhere),
            ("SET default_transaction_read_only = on; SELECT 1", Primary),
            ("SHOW server_version", Anywhere),
            ("DISCARD ALL", Anywhere),
            ("", Anywhere),
            ("BEGIN READ ONL", Primary),
        ] {
            assert_eq!(of(&session, sql), expected, "{sql}");
        }
        session.set("default_transaction_read_only", "on").unwrap();
        for (sql, expected) in [
            ("SELECT 1", Reader),
            ("COPY t TO STDOUT", Reader),
            ("COPY t TO 'file'", Primary),
            ("BEGIN", Reader),
            ("BEGIN READ WRITE", Primary),
            ("VACUUM", Primary),
            ("INSERT INTO t VALUES (1)", Primary),
            ("SELECT 1 FOR UPDATE", Primary),
            ("SELECT pg_current_wal_lsn()", Primary),
            ("SET default_transaction_read_only = off; BEGIN; INSERT INTO t VALUES (1)", Primary),
        ] {
            assert_eq!(of(&session, sql), expected, "{sql}");
        }
        session.set("default_transaction_isolation", "serializable").unwrap();
        assert_eq!([of(&session, "SELECT 1"), of(&session, "BEGIN")], [Primary, Primary]);
    }
}
