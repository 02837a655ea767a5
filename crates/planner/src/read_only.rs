//! What is refused where nothing may be written: in a transaction that may only read, and on a standby, in PostgreSQL's words.
//!
//! A command that is refused for what it is, is refused before anything else is looked at, so that it does not matter whether
//! what it names exists. Statements that write rows (`INSERT` and its like, `SELECT … FOR UPDATE`, `nextval`) are refused when
//! they are run: `EXPLAIN` shows them, and what is wrong with them is said first.

use crate::settings::Settings;
use crate::statement::Command;
use tidepool_base::{Error, Result, SqlState};
use tidepool_database::LockMode;

/// When a command may not run, for what it is.
#[derive(Debug, PartialEq, Eq)]
enum Refused {
    /// Where the transaction may only read, which all do on a standby.
    ReadOnly(&'static str),
    /// On a standby: elsewhere it changes nothing that a transaction shows, or looks by itself.
    InRecovery(&'static str),
}

fn refused(command: &Command) -> Option<Refused> {
    let tag: &'static str = match command {
        Command::CreateTable { table, .. } => match table.query {
            Some(_) => "CREATE TABLE AS",
            None => "CREATE TABLE",
        },
        Command::DropTables { .. } => "DROP TABLE",
        Command::AlterTable { .. } => "ALTER TABLE",
        Command::Truncate { .. } => "TRUNCATE TABLE",
        Command::CreateSequence { .. } => "CREATE SEQUENCE",
        Command::AlterSequence { .. } | Command::NameSequence { .. } => "ALTER SEQUENCE",
        Command::DropSequences { .. } => "DROP SEQUENCE",
        Command::CreateIndex(_) => "CREATE INDEX",
        Command::AlterIndex { .. } => "ALTER INDEX",
        Command::DropIndexes { .. } => "DROP INDEX",
        Command::CreateView { .. } => "CREATE VIEW",
        Command::AlterView { .. } => "ALTER VIEW",
        Command::DropViews { .. } => "DROP VIEW",
        Command::CreateSchema { .. } => "CREATE SCHEMA",
        Command::AlterSchema { .. } => "ALTER SCHEMA",
        Command::DropSchemas { .. } => "DROP SCHEMA",
        Command::Comment { .. } => "COMMENT",
        Command::CreateTablespace { .. } => "CREATE TABLESPACE",
        Command::AlterTablespace { .. } => "ALTER TABLESPACE",
        Command::DropTablespace { .. } => "DROP TABLESPACE",
        Command::Merge { .. } => "CALL tidepool.merge",
        // Those that have nothing to do here are refused as they are there.
        Command::DoNothing { tag, .. } if ["CREATE EXTENSION", "DROP EXTENSION", "COMMENT"].contains(tag) => tag,
        Command::Role(role) => role.tag()?,
        Command::Reindex { .. } => return Some(Refused::InRecovery("REINDEX")),
        Command::Copy(copy) if copy.from => return Some(Refused::InRecovery("COPY")),
        // Locks that are in the way of no writer are in nobody's.
        Command::LockTables { mode, .. } if *mode > LockMode::RowExclusive => {
            return Some(Refused::InRecovery("LOCK TABLE"));
        }
        Command::Vacuum { .. } => return Some(Refused::InRecovery("VACUUM")),
        Command::Analyze { .. } => return Some(Refused::InRecovery("ANALYZE")),
        _ => return None,
    };
    Some(Refused::ReadOnly(tag))
}

/// 25006 for a command that may not run, for what it is.
pub fn check(command: &Command, is_read_only: bool, is_standby: bool) -> Result<()> {
    if !is_read_only && !is_standby {
        return Ok(());
    }
    match refused(command) {
        Some(Refused::ReadOnly(tag)) => Err(in_read_only(tag)),
        Some(Refused::InRecovery(tag)) if is_standby => Err(in_recovery(tag)),
        _ => Ok(()),
    }
}

/// 25006 for a statement of a transaction that may only read.
pub fn in_read_only(tag: &str) -> Error {
    let message = format!("cannot execute {tag} in a read-only transaction");
    Error::new(SqlState::READ_ONLY_SQL_TRANSACTION, message)
}

/// 25006 on a standby.
pub fn in_recovery(tag: &str) -> Error {
    Error::new(SqlState::READ_ONLY_SQL_TRANSACTION, format!("cannot execute {tag} during recovery"))
}

/// 0A000: a transaction of a standby writes nothing, whatever it asks for.
pub fn check_read_write(settings: &Settings) -> Result<()> {
    match settings.is_standby() {
        true => Err(Error::unsupported("cannot set transaction read-write mode during recovery")),
        false => Ok(()),
    }
}

/// 0A000 for the level of a transaction that a standby does not have: what other transactions read is not known there.
pub fn check_level(settings: &Settings, level: &str) -> Result<()> {
    if settings.is_standby() && level.eq_ignore_ascii_case("serializable") {
        return Err(serializable().with_hint("You can use REPEATABLE READ instead."));
    }
    Ok(())
}

/// As `check_level`, of a transaction that has the level by default, when it begins to read.
pub fn check_default_level(settings: &Settings, level: &str) -> Result<()> {
    if settings.is_standby() && level.eq_ignore_ascii_case("serializable") {
        return Err(serializable()
            .with_detail("\"default_transaction_isolation\" is set to \"serializable\".")
            .with_hint(
                "You can use \"SET default_transaction_isolation = 'repeatable read'\" to change the default.",
            ));
    }
    Ok(())
}

fn serializable() -> Error {
    Error::unsupported("cannot use serializable mode in a hot standby")
}

/// Whether a command reads as of its transaction. The others work on the session alone.
pub fn takes_snapshot(command: &Command) -> bool {
    !matches!(
        command,
        Command::Empty
            | Command::Unsupported(_)
            | Command::Begin { .. }
            | Command::Commit { .. }
            | Command::Rollback { .. }
            | Command::Savepoint { .. }
            | Command::Release { .. }
            | Command::RollbackTo { .. }
            | Command::Set { .. }
            | Command::SetTransaction { .. }
            | Command::SetConstraints { .. }
            | Command::LockTables { .. }
            | Command::SetSessionTransaction { .. }
            | Command::Reset { .. }
            | Command::Show { .. }
            | Command::DiscardAll
            | Command::DiscardSequences
            | Command::DiscardTemporary
            | Command::DoNothing { .. }
            | Command::Deallocate { .. }
            | Command::Fetch { .. }
            | Command::Close { .. }
            | Command::Checkpoint
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statement::parse;

    fn code_on_standby(text: &str) -> Option<String> {
        let statement = parse(text).unwrap().pop().unwrap();
        check(statement.command(), true, true).err().map(|error| error.message().to_owned())
    }

    #[test]
    fn commands_are_refused_for_what_they_are() {
        let cannot = |what: &str| Some(format!("cannot execute {what} in a read-only transaction"));
        for (text, tag) in [
            ("CREATE TABLE t (a int)", "CREATE TABLE"),
            ("CREATE TABLE t AS SELECT 1", "CREATE TABLE AS"),
            ("DROP TABLE IF EXISTS nowhere", "DROP TABLE"),
            ("ALTER TABLE nowhere ADD COLUMN c int", "ALTER TABLE"),
            ("ALTER TABLE t OWNER TO r", "ALTER TABLE"),
            ("TRUNCATE t", "TRUNCATE TABLE"),
            ("CREATE INDEX CONCURRENTLY ON t (a)", "CREATE INDEX"),
            ("CREATE OR REPLACE VIEW v AS SELECT 1", "CREATE VIEW"),
            ("DROP SCHEMA s CASCADE", "DROP SCHEMA"),
            ("COMMENT ON TABLE t IS 'x'", "COMMENT"),
            ("CREATE USER u", "CREATE ROLE"),
            ("GRANT r TO u", "GRANT ROLE"),
            ("REVOKE SELECT ON t FROM u", "REVOKE"),
            ("ALTER TABLESPACE near SET (size = '1GB')", "ALTER TABLESPACE"),
            ("CREATE EXTENSION plpgsql", "CREATE EXTENSION"),
        ] {
            assert_eq!(code_on_standby(text), cannot(tag), "{text}");
        }
        for (text, tag) in [
            ("REINDEX TABLE t", "REINDEX"),
            ("COPY t FROM STDIN", "COPY"),
            ("VACUUM FULL t", "VACUUM"),
            ("ANALYZE", "ANALYZE"),
            ("LOCK t", "LOCK TABLE"),
            ("LOCK TABLE t IN SHARE UPDATE EXCLUSIVE MODE", "LOCK TABLE"),
        ] {
            assert_eq!(code_on_standby(text), Some(format!("cannot execute {tag} during recovery")), "{text}");
        }
        for text in [
            "SELECT 1",
            "INSERT INTO t VALUES (1)",
            "CHECKPOINT",
            "COPY t TO STDOUT",
            "SET ROLE r",
            "UNLISTEN *",
            "LOCK t IN ROW EXCLUSIVE MODE",
        ] {
            assert_eq!(code_on_standby(text), None, "{text}");
        }
    }
}
