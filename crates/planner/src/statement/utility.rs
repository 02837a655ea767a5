//! Statements read from their tokens by hand.

use super::cursor::{Cursor, Source};
use super::{Command, Statement};
use crate::explain::format::Notation;
use crate::sequences::SequenceOptions;
use arrow::array::AsArray;
use arrow::datatypes::IntervalMonthDayNanoType;
use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};
use std::borrow::Cow;
use std::fmt;
use tidepool_base::{Error, Result, SqlState, SqlType};
use tidepool_database::text::{TextReader, TextSettings, Zone};
use tidepool_table::Identity;

/// A name with its schema, if one was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QualifiedName {
    pub schema: Option<String>,
    pub name: String,
}

impl fmt::Display for QualifiedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.schema {
            Some(schema) => write!(f, "{schema}.{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AlterAction {
    AddIdentity {
        column: String,
        identity: Identity,
        options: Box<SequenceOptions>,
    },
    /// `SET GENERATED`, and what its sequence is to be.
    SetIdentity {
        column: String,
        identity: Option<Identity>,
        options: Box<SequenceOptions>,
    },
    DropIdentity {
        column: String,
        if_exists: bool,
    },
    /// `DEFERRABLE` and `INITIALLY DEFERRED`.
    AlterConstraint {
        name: String,
        deferrable: bool,
        initially_deferred: bool,
    },
    /// Of the table, or of one column.
    SetTablespace {
        column: Option<String>,
        tablespace: String,
    },
    /// Storage parameters, and what each is set to; `None` puts it back to its default.
    SetParameters {
        parameters: Vec<(String, Option<String>)>,
    },
    Rename {
        name: String,
    },
    RenameColumn {
        column: String,
        name: String,
    },
    SetSchema {
        schema: String,
    },
    AddColumn {
        column: Box<ast::ColumnDef>,
        if_not_exists: bool,
    },
    DropColumn {
        column: String,
        if_exists: bool,
        cascade: bool,
    },
    SetType {
        column: String,
        data_type: ast::DataType,
        using: Option<Box<ast::Expr>>,
    },
    /// `None`: `DROP DEFAULT`.
    SetDefault {
        column: String,
        default: Option<Box<ast::Expr>>,
    },
    SetNotNull {
        column: String,
        not_null: bool,
    },
    AttachPartition {
        name: QualifiedName,
        bound: super::partitions::BoundClause,
    },
    DetachPartition {
        name: QualifiedName,
    },
    /// `PRIMARY KEY` or `UNIQUE`.
    AddKey(Box<crate::keys::KeyClause>),
    /// `ADD [CONSTRAINT name] … USING INDEX`.
    UseIndex {
        name: Option<String>,
        index: String,
        primary: bool,
    },
    AddForeignKey(Box<crate::references::ForeignKeyClause>),
    ValidateConstraint {
        name: String,
    },
    AddCheck {
        name: Option<String>,
        condition: Box<ast::Expr>,
    },
    DropConstraint {
        name: String,
        if_exists: bool,
        cascade: bool,
    },
    RenameConstraint {
        name: String,
        new_name: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AlterTablespaceAction {
    Set { options: Vec<(String, String)> },
    AddLocation { location: String, options: Vec<(String, String)> },
    DropLocation { location: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetValue {
    Default,
    /// A list where PostgreSQL takes one; otherwise one element.
    Values(Vec<String>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionMode {
    /// As PostgreSQL names the level.
    Isolation(&'static str),
    ReadOnly(bool),
    Deferrable(bool),
}

/// What an `INSERT` says of identity columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overriding {
    #[default]
    Nothing,
    /// `OVERRIDING SYSTEM VALUE`: values count even where they are always generated.
    SystemValue,
    /// `OVERRIDING USER VALUE`: values are generated even where some are given.
    UserValue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchCount {
    Rows(u64),
    All,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExplainOptions {
    pub analyze: bool,
    pub verbose: bool,
    pub format: ExplainFormat,
    /// What was expected, what took how long, and the lines about the whole.
    pub hides_costs: bool,
    pub hides_timing: bool,
    pub hides_summary: bool,
    /// What the query would cost with tables and heap elsewhere.
    pub placement: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExplainFormat {
    #[default]
    Text,
    Tree,
    /// A document in one row.
    Document(Notation),
}

/// Of `CALL tidepool.advise`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdviseArguments {
    /// A size.
    pub near_limit: String,
    pub far: String,
    pub profile: Option<String>,
}

/// Of `CALL tidepool.switchover`.
#[derive(Clone, Debug)]
pub struct SwitchoverArguments {
    pub host: String,
    /// A size.
    pub lag_max: String,
    /// Nothing is to be done.
    pub is_trial: bool,
    /// The server that hands over is to end, and not to follow.
    pub ends: bool,
}

#[derive(Clone)]
pub struct CopyStatement {
    pub source: CopySource,
    pub from: bool,
    pub endpoint: CopyEndpoint,
    /// (option, value) as written; lists are written `a,b`.
    pub options: Vec<(String, Option<String>)>,
}

#[derive(Clone)]
pub enum CopySource {
    Table { name: QualifiedName, columns: Vec<String> },
    Query(Statement),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyEndpoint {
    File(String),
    /// `STDIN` or `STDOUT`.
    Client,
}

/// Reads a utility statement; `None`, with nothing read, if it is one for sqlparser.
pub fn command(cursor: &mut Cursor<'_>) -> Result<Option<Command>> {
    if let Some(command) = super::roles::command(cursor)? {
        return Ok(Some(Command::Role(Box::new(command))));
    }
    let Some(Token::Word(word)) = cursor.peek() else { return Ok(None) };
    let command = match word.value.to_ascii_lowercase().as_str() {
        "begin" | "start" | "commit" | "end" | "rollback" | "abort" | "savepoint" | "release" => transaction(cursor)?,
        "set" => set(cursor)?,
        "reset" => {
            cursor.advance();
            Command::Reset { name: setting_name_or_all(cursor)? }
        }
        "show" => {
            cursor.advance();
            Command::Show { name: setting_name_or_all(cursor)? }
        }
        "discard" => discard(cursor)?,
        "prepare" => prepare(cursor)?,
        "execute" => execute(cursor)?,
        "deallocate" => {
            cursor.advance();
            cursor.keyword("prepare");
            Command::Deallocate { name: name_or_all(cursor)? }
        }
        "declare" => declare(cursor)?,
        "fetch" | "move" => fetch(cursor)?,
        "close" => {
            cursor.advance();
            Command::Close { name: name_or_all(cursor)? }
        }
        "copy" => copy(cursor)?,
        "reindex" => match super::indexes::reindex(cursor)? {
            Some(command) => command,
            None => return Err(cursor.error()),
        },
        "truncate" => {
            cursor.advance();
            cursor.keyword("table");
            cursor.keyword("only");
            let names = names(cursor)?;
            let continues = cursor.keywords(&["continue", "identity"]);
            let restart_identity = !continues && cursor.keywords(&["restart", "identity"]);
            let cascade = super::objects::cascades(cursor);
            Command::Truncate { names, restart_identity, cascade }
        }
        "lock" => super::lock_table::lock(cursor)?,
        "drop" => return drop_statement(cursor),
        "create" => {
            if cursor.keywords(&["create", "tablespace"]) {
                create_tablespace(cursor)?
            } else if let Some(command) = super::objects::create(cursor)? {
                command
            } else if let Some(command) = super::indexes::create(cursor)? {
                command
            } else {
                return create_unsupported(cursor);
            }
        }
        "alter" => alter(cursor)?,
        "analyze" | "analyse" => {
            cursor.advance();
            if cursor.token(&Token::LParen) {
                while !cursor.token(&Token::RParen) {
                    if cursor.at_end() {
                        return Err(cursor.error());
                    }
                    cursor.advance();
                }
            } else {
                cursor.keyword("verbose");
            }
            Command::Analyze { names: tables_with_columns(cursor)? }
        }
        "vacuum" => {
            cursor.advance();
            let mut full = false;
            if cursor.token(&Token::LParen) {
                loop {
                    let option = cursor.ident()?;
                    let value = match cursor.number_if() {
                        Some(number) => number,
                        None if matches!(cursor.peek(), Some(Token::Comma | Token::RParen)) => "on".to_owned(),
                        None => cursor.string_if().map_or_else(|| cursor.ident(), Ok)?,
                    };
                    let known = ["full", "freeze", "verbose", "analyze", "disable_page_skipping", "skip_locked"];
                    let others = ["index_cleanup", "process_toast", "truncate", "parallel"];
                    if !known.iter().chain(&others).any(|known| *known == option) {
                        let message = format!("unrecognized VACUUM option \"{option}\"");
                        return Err(Error::new(SqlState::SYNTAX_ERROR, message));
                    }
                    full |= option == "full" && !matches!(value.as_str(), "off" | "false" | "0");
                    if !cursor.token(&Token::Comma) {
                        break;
                    }
                }
                cursor.expect_token(&Token::RParen)?;
            } else {
                full = cursor.keyword("full");
                cursor.keyword("freeze");
                cursor.keyword("verbose");
                cursor.keyword("analyze");
            }
            Command::Vacuum { full, names: tables_with_columns(cursor)? }
        }
        "checkpoint" => {
            cursor.advance();
            Command::Checkpoint
        }
        // Nothing can be listened to, and so nothing is left to end. Connection pools ask all the same.
        "unlisten" => {
            cursor.advance();
            if !cursor.token(&Token::Mul) {
                cursor.ident()?;
            }
            Command::DoNothing { tag: "UNLISTEN", notice: None }
        }
        "call" => call(cursor)?,
        "explain" => explain(cursor)?,
        "comment" => super::comment::comment(cursor)?,
        "cluster" | "listen" | "notify" | "do" | "load" | "refresh" | "security" | "import" => {
            let verb = word.value.to_uppercase();
            cursor.skip_rest();
            Command::Unsupported(Error::unsupported(format!("{verb} is not supported")))
        }
        _ => return Ok(None),
    };
    Ok(Some(command))
}

/// `table [(column, …)], …`, without the columns: what `ANALYZE` and `VACUUM` take.
fn tables_with_columns(cursor: &mut Cursor<'_>) -> Result<Vec<QualifiedName>> {
    let mut names = Vec::new();
    while !cursor.at_end() {
        names.push(qualified_name(cursor)?);
        if cursor.token(&Token::LParen) {
            cursor.ident()?;
            while cursor.token(&Token::Comma) {
                cursor.ident()?;
            }
            cursor.expect_token(&Token::RParen)?;
        }
        if !cursor.token(&Token::Comma) {
            break;
        }
    }
    Ok(names)
}

pub fn qualified_name(cursor: &mut Cursor<'_>) -> Result<QualifiedName> {
    let mut parts = vec![cursor.ident()?];
    while cursor.token(&Token::Period) {
        parts.push(cursor.ident()?);
    }
    if parts.len() > 3 {
        return Err(Error::new(SqlState::SYNTAX_ERROR, format!("improper qualified name: {}", parts.join("."))));
    }
    let name = parts.pop().unwrap_or_default();
    let schema = parts.pop();
    if let Some(database) = parts.pop()
        && database != crate::facts::DATABASE
    {
        return Err(crate::errors::cross_database(database));
    }
    Ok(QualifiedName { schema, name })
}

pub fn names(cursor: &mut Cursor<'_>) -> Result<Vec<QualifiedName>> {
    let mut names = vec![qualified_name(cursor)?];
    while cursor.token(&Token::Comma) {
        names.push(qualified_name(cursor)?);
    }
    Ok(names)
}

fn name_or_all(cursor: &mut Cursor<'_>) -> Result<Option<String>> {
    if cursor.keyword("all") { Ok(None) } else { cursor.ident().map(Some) }
}

fn setting_name(cursor: &mut Cursor<'_>) -> Result<String> {
    let mut name = cursor.ident()?;
    while cursor.token(&Token::Period) {
        name.push('.');
        name.push_str(&cursor.ident()?);
    }
    Ok(name)
}

fn setting_name_or_all(cursor: &mut Cursor<'_>) -> Result<Option<String>> {
    if cursor.keyword("all") {
        Ok(None)
    } else if cursor.keywords(&["time", "zone"]) {
        Ok(Some("timezone".to_owned()))
    } else if cursor.keywords(&["transaction", "isolation", "level"]) {
        Ok(Some("transaction_isolation".to_owned()))
    } else if cursor.keywords(&["session", "authorization"]) {
        Ok(Some("session_authorization".to_owned()))
    } else {
        setting_name(cursor).map(Some)
    }
}

fn transaction(cursor: &mut Cursor<'_>) -> Result<Command> {
    let Some(Token::Word(word)) = cursor.peek() else { return Err(cursor.error()) };
    let verb = word.value.to_ascii_lowercase();
    cursor.advance();
    match verb.as_str() {
        "start" => {
            cursor.expect_keyword("transaction")?;
            return Ok(Command::Begin { modes: transaction_modes(cursor)? });
        }
        "savepoint" => return Ok(Command::Savepoint { name: cursor.ident()? }),
        "release" => {
            cursor.keyword("savepoint");
            return Ok(Command::Release { name: cursor.ident()? });
        }
        _ => {}
    }
    if !cursor.keyword("work") {
        cursor.keyword("transaction");
    }
    if verb == "begin" {
        return Ok(Command::Begin { modes: transaction_modes(cursor)? });
    }
    if verb == "rollback" && cursor.keyword("to") {
        cursor.keyword("savepoint");
        return Ok(Command::RollbackTo { name: cursor.ident()? });
    }
    if cursor.is_keyword("prepared") {
        cursor.skip_rest();
        return Ok(Command::Unsupported(Error::unsupported("two-phase commits are not supported")));
    }
    let chain = cursor.keywords(&["and", "chain"]);
    if !chain {
        cursor.keywords(&["and", "no", "chain"]);
    }
    Ok(match verb.as_str() {
        "commit" | "end" => Command::Commit { chain },
        _ => Command::Rollback { chain },
    })
}

fn transaction_modes(cursor: &mut Cursor<'_>) -> Result<Vec<TransactionMode>> {
    let mut modes = Vec::new();
    while !cursor.at_end() {
        if cursor.keywords(&["isolation", "level"]) {
            modes.push(TransactionMode::Isolation(if cursor.keyword("serializable") {
                "serializable"
            } else if cursor.keywords(&["repeatable", "read"]) {
                "repeatable read"
            } else if cursor.keywords(&["read", "committed"]) {
                "read committed"
            } else if cursor.keywords(&["read", "uncommitted"]) {
                "read uncommitted"
            } else {
                return Err(cursor.error());
            }));
        } else if cursor.keywords(&["read", "only"]) {
            modes.push(TransactionMode::ReadOnly(true));
        } else if cursor.keywords(&["read", "write"]) {
            modes.push(TransactionMode::ReadOnly(false));
        } else if cursor.keywords(&["not", "deferrable"]) {
            modes.push(TransactionMode::Deferrable(false));
        } else if cursor.keyword("deferrable") {
            modes.push(TransactionMode::Deferrable(true));
        } else {
            return Err(cursor.error());
        }
        cursor.token(&Token::Comma);
    }
    Ok(modes)
}

pub fn set(cursor: &mut Cursor<'_>) -> Result<Command> {
    cursor.advance();
    if cursor.keywords(&["session", "characteristics", "as", "transaction"]) {
        return Ok(Command::SetSessionTransaction { modes: transaction_modes(cursor)? });
    }
    if cursor.keyword("transaction") {
        return Ok(Command::SetTransaction { modes: transaction_modes(cursor)? });
    }
    if cursor.is_keyword("constraints") {
        cursor.advance();
        let names = if cursor.keyword("all") { None } else { Some(names(cursor)?) };
        let Some(mode) = cursor.one_of(&["deferred", "immediate"]) else { return Err(cursor.error()) };
        return Ok(Command::SetConstraints { names, deferred: mode == "deferred" });
    }
    let local = cursor.keyword("local");
    if !local {
        cursor.keyword("session");
    }
    if cursor.keywords(&["time", "zone"]) {
        let name = "timezone".to_owned();
        if cursor.keyword("local") || cursor.keyword("default") {
            return Ok(Command::Set { name, value: SetValue::Default, local });
        }
        // `SET TIME ZONE INTERVAL '+02:00' HOUR TO MINUTE`.
        let interval = cursor.keyword("interval");
        let mut value = set_value(cursor)?;
        if interval {
            // A number alone is of the last field.
            let number = value.trim().parse::<i32>().ok();
            let unit = match (cursor.keywords(&["hour", "to", "minute"]), cursor.keyword("hour")) {
                (true, _) => "minutes",
                (_, true) => "hours",
                _ => "seconds",
            };
            value = zone_of_interval(&number.map_or(value, |number| format!("{number} {unit}")))?;
        }
        return Ok(Command::Set { name, value: SetValue::Values(vec![value]), local });
    }
    if cursor.keyword("names") {
        let value = if cursor.at_end() || cursor.keyword("default") {
            SetValue::Default
        } else {
            SetValue::Values(vec![set_value(cursor)?])
        };
        return Ok(Command::Set { name: "client_encoding".to_owned(), value, local });
    }
    let name = setting_name(cursor)?;
    if !cursor.keyword("to") {
        cursor.expect_token(&Token::Eq)?;
    }
    if cursor.keyword("default") {
        return Ok(Command::Set { name, value: SetValue::Default, local });
    }
    let mut values = vec![set_value(cursor)?];
    while cursor.token(&Token::Comma) {
        values.push(set_value(cursor)?);
    }
    Ok(Command::Set { name, value: SetValue::Values(values), local })
}

/// The zone that is so far east of UTC.
fn zone_of_interval(text: &str) -> Result<String> {
    let mut reader = TextReader::new(SqlType::Interval, &TextSettings::default());
    reader.append(text)?;
    let interval = reader.finish().as_primitive::<IntervalMonthDayNanoType>().value(0);
    if interval.months != 0 || interval.days != 0 {
        let message = format!("invalid value for parameter \"TimeZone\": \"{text}\"");
        let detail = match interval.months {
            0 => "Cannot specify days in time zone interval.",
            _ => "Cannot specify months in time zone interval.",
        };
        return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, message).with_detail(detail));
    }
    Ok(Zone::posix_name(i32::try_from(interval.nanoseconds / 1_000_000_000).unwrap_or(i32::MAX)))
}

fn set_value(cursor: &mut Cursor<'_>) -> Result<String> {
    if let Some(value) = cursor.string_if().or_else(|| cursor.number_if()) {
        return Ok(value);
    }
    // `read committed` unquoted is no PostgreSQL, but one word is.
    cursor.ident()
}

fn discard(cursor: &mut Cursor<'_>) -> Result<Command> {
    cursor.advance();
    Ok(match cursor.one_of(&["all", "plans", "sequences", "temp", "temporary"]) {
        Some("all") => Command::DiscardAll,
        Some("plans") => Command::DoNothing { tag: "DISCARD PLANS", notice: None },
        Some("sequences") => Command::DiscardSequences,
        Some(_) => Command::DiscardTemporary,
        None => return Err(cursor.error()),
    })
}

/// The statement that the rest of the tokens make.
pub fn inner(cursor: &mut Cursor<'_>) -> Result<Statement> {
    let tokens = cursor.rest();
    let (Some(first), Some(last)) = (tokens.first(), tokens.last()) else { return Err(cursor.error()) };
    let mut walk = cursor.source.walk();
    let (start, offset) = walk.seek(first.span.start);
    let (end, _) = walk.seek(last.span.end);
    let (command, bytes) = tidepool_heap::retained(|| super::command(cursor.source, tokens));
    let command = command?;
    let text = &cursor.source.0[start..end.max(start)];
    cursor.skip_rest();
    // Depth was bounded for the whole, which also drops deep ones elsewhere; as a part it is dropped with the whole.
    let locks = super::locking::is_in(cursor.source, tokens);
    Ok(Statement::new(text, offset, command, false, locks, bytes))
}

fn prepare(cursor: &mut Cursor<'_>) -> Result<Command> {
    cursor.advance();
    if cursor.is_keyword("transaction") {
        cursor.skip_rest();
        return Ok(Command::Unsupported(Error::unsupported("two-phase commits are not supported")));
    }
    let name = cursor.ident()?;
    let mut types = Vec::new();
    if cursor.token(&Token::LParen) {
        loop {
            types.push(cursor.data_type()?);
            if !cursor.token(&Token::Comma) {
                break;
            }
        }
        cursor.expect_token(&Token::RParen)?;
    }
    cursor.expect_keyword("as")?;
    let statement = inner(cursor)?;
    Ok(Command::Prepare { name, types, statement })
}

fn execute(cursor: &mut Cursor<'_>) -> Result<Command> {
    cursor.advance();
    let name = cursor.ident()?;
    let arguments = if cursor.token(&Token::LParen) { arguments(cursor)? } else { Vec::new() };
    Ok(Command::Execute { name, arguments })
}

/// Expressions to the closing bracket.
fn arguments(cursor: &mut Cursor<'_>) -> Result<Vec<ast::Expr>> {
    let mut arguments = Vec::new();
    if !cursor.token(&Token::RParen) {
        loop {
            arguments.push(cursor.expression()?);
            if !cursor.token(&Token::Comma) {
                break;
            }
        }
        cursor.expect_token(&Token::RParen)?;
    }
    Ok(arguments)
}

fn declare(cursor: &mut Cursor<'_>) -> Result<Command> {
    cursor.advance();
    let name = cursor.ident()?;
    loop {
        if cursor.keywords(&["no", "scroll"]) {
            continue;
        }
        match cursor.one_of(&["binary", "insensitive", "asensitive", "scroll", "cursor"]) {
            Some("cursor") => break,
            Some(word @ ("binary" | "scroll")) => {
                cursor.skip_rest();
                return Ok(Command::Unsupported(Error::unsupported(format!(
                    "{} cursors are not supported",
                    word.to_uppercase()
                ))));
            }
            Some(_) => {}
            None => return Err(cursor.error()),
        }
    }
    let hold = cursor.keywords(&["with", "hold"]);
    if !hold {
        cursor.keywords(&["without", "hold"]);
    }
    cursor.expect_keyword("for")?;
    let query = inner(cursor)?;
    Ok(Command::Declare { name, hold, query })
}

fn fetch(cursor: &mut Cursor<'_>) -> Result<Command> {
    let discard = cursor.is_keyword("move");
    cursor.advance();
    let backward = |cursor: &mut Cursor<'_>| {
        cursor.skip_rest();
        Ok(Command::Unsupported(
            Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, "cursor can only scan forward")
                .with_hint("Declare it anew to read from the start."),
        ))
    };
    let mut count = FetchCount::Rows(1);
    if cursor.keyword("next") {
    } else if cursor.keyword("all") {
        count = FetchCount::All;
    } else if cursor.keyword("forward") {
        if cursor.keyword("all") {
            count = FetchCount::All;
        } else if let Some(number) = cursor.number_if() {
            count = fetch_rows(&number)?;
        }
    } else if let Some(number) = cursor.number_if() {
        if number.starts_with('-') {
            return backward(cursor);
        }
        count = fetch_rows(&number)?;
    } else if cursor.one_of(&["prior", "first", "last", "absolute", "relative", "backward"]).is_some() {
        return backward(cursor);
    }
    if !cursor.keyword("from") {
        cursor.keyword("in");
    }
    let name = cursor.ident()?;
    Ok(Command::Fetch { name, count, discard })
}

fn fetch_rows(number: &str) -> Result<FetchCount> {
    number
        .parse()
        .map(FetchCount::Rows)
        .map_err(|_| Error::new(SqlState::INVALID_TEXT_REPRESENTATION, format!("invalid number of rows: \"{number}\"")))
}

fn copy(cursor: &mut Cursor<'_>) -> Result<Command> {
    cursor.advance();
    // `COPY BINARY t …`, from before 7.3. A table of that name is followed by its direction or columns.
    let binary = cursor.is_keyword("binary") && matches!(cursor.rest().get(1), Some(next) if is_name(&next.token));
    if binary {
        cursor.advance();
    }
    let source = if cursor.peek() == Some(&Token::LParen) {
        let tokens = cursor.rest();
        let mut depth = 0_usize;
        let close = tokens.iter().position(|token| {
            match token.token {
                Token::LParen => depth += 1,
                Token::RParen => depth -= 1,
                _ => {}
            }
            depth == 0
        });
        let Some(close) = close else { return Err(cursor.source.syntax_error_at_end()) };
        let mut query = Cursor::new(cursor.source, &tokens[1..close]);
        let query = inner(&mut query)?;
        for _ in 0..=close {
            cursor.advance();
        }
        CopySource::Query(query)
    } else {
        let name = qualified_name(cursor)?;
        let mut columns = Vec::new();
        if cursor.token(&Token::LParen) {
            loop {
                columns.push(cursor.ident()?);
                if !cursor.token(&Token::Comma) {
                    break;
                }
            }
            cursor.expect_token(&Token::RParen)?;
        }
        CopySource::Table { name, columns }
    };
    let from = match cursor.one_of(&["from", "to"]) {
        Some(word) => word == "from",
        None => return Err(cursor.error()),
    };
    if from && matches!(source, CopySource::Query(_)) {
        return Err(cursor.error());
    }
    let endpoint = if let Some(path) = cursor.string_if() {
        CopyEndpoint::File(path)
    } else if cursor.keyword("stdin") || cursor.keyword("stdout") {
        CopyEndpoint::Client
    } else if cursor.is_keyword("program") {
        cursor.skip_rest();
        return Ok(Command::Unsupported(Error::unsupported("COPY with a program is not supported")));
    } else {
        return Err(cursor.error());
    };
    cursor.keyword("with");
    let mut options = if cursor.token(&Token::LParen) { copy_options(cursor)? } else { copy_options_legacy(cursor)? };
    if binary {
        options.push(("format".to_owned(), Some("binary".to_owned())));
    }
    if cursor.is_keyword("where") {
        cursor.skip_rest();
        return Ok(Command::Unsupported(
            Error::unsupported("COPY with WHERE is not supported")
                .with_hint("Load into another table and INSERT ... SELECT from it."),
        ));
    }
    Ok(Command::Copy(Box::new(CopyStatement { source, from, endpoint, options })))
}

fn is_name(token: &Token) -> bool {
    match token {
        Token::Word(word) if word.quote_style.is_none() => {
            !["from", "to"].iter().any(|direction| word.value.eq_ignore_ascii_case(direction))
        }
        Token::Word(_) => true,
        _ => false,
    }
}

fn copy_options(cursor: &mut Cursor<'_>) -> Result<Vec<(String, Option<String>)>> {
    let mut options = Vec::new();
    loop {
        let name = cursor.ident()?;
        let value = if let Some(value) = cursor.string_if().or_else(|| cursor.number_if()) {
            Some(value)
        } else if cursor.token(&Token::Mul) {
            Some("*".to_owned())
        } else if cursor.token(&Token::LParen) {
            let mut columns = vec![cursor.ident()?];
            while cursor.token(&Token::Comma) {
                columns.push(cursor.ident()?);
            }
            cursor.expect_token(&Token::RParen)?;
            Some(columns.join(","))
        } else if matches!(cursor.peek(), Some(Token::Word(_))) {
            Some(cursor.ident()?)
        } else {
            None
        };
        options.push((name, value));
        if !cursor.token(&Token::Comma) {
            break;
        }
    }
    cursor.expect_token(&Token::RParen)?;
    Ok(options)
}

/// PostgreSQL's syntax before 9.0, which `\copy` users still write.
fn copy_options_legacy(cursor: &mut Cursor<'_>) -> Result<Vec<(String, Option<String>)>> {
    let mut options = Vec::new();
    let mut push = |name: &str, value: Option<String>| options.push((name.to_owned(), value));
    while !cursor.at_end() && !cursor.is_keyword("where") {
        match cursor.one_of(&[
            "binary",
            "csv",
            "header",
            "delimiter",
            "delimiters",
            "null",
            "quote",
            "escape",
            "encoding",
            "force",
        ]) {
            Some(format @ ("binary" | "csv")) => push("format", Some(format.to_owned())),
            Some("header") => push("header", None),
            Some("force") => {
                let list = if cursor.keywords(&["not", "null"]) {
                    "force_not_null"
                } else if cursor.keyword("null") {
                    "force_null"
                } else {
                    cursor.expect_keyword("quote")?;
                    "force_quote"
                };
                let mut columns = Vec::new();
                if cursor.token(&Token::Mul) {
                    columns.push("*".to_owned());
                } else {
                    columns.push(cursor.ident()?);
                    while cursor.token(&Token::Comma) {
                        columns.push(cursor.ident()?);
                    }
                }
                push(list, Some(columns.join(",")));
            }
            Some(name) => {
                cursor.keyword("as");
                let value = cursor.string()?;
                push(if name == "delimiters" { "delimiter" } else { name }, Some(value));
            }
            None => return Err(cursor.error()),
        }
    }
    Ok(options)
}

fn drop_statement(cursor: &mut Cursor<'_>) -> Result<Option<Command>> {
    cursor.advance();
    if cursor.keyword("table") {
        let if_exists = cursor.keywords(&["if", "exists"]);
        let names = names(cursor)?;
        let cascade = super::objects::cascades(cursor);
        return Ok(Some(Command::DropTables { names, if_exists, cascade }));
    }
    if let Some(command) = super::objects::drop(cursor)? {
        return Ok(Some(command));
    }
    if let Some(command) = super::indexes::drop(cursor)? {
        return Ok(Some(command));
    }
    if cursor.keyword("tablespace") {
        let if_exists = cursor.keywords(&["if", "exists"]);
        return Ok(Some(Command::DropTablespace { name: cursor.ident()?, if_exists }));
    }
    if cursor.keyword("extension") {
        return super::extensions::drop(cursor).map(Some);
    }
    let Some(Token::Word(word)) = cursor.peek() else { return Err(cursor.error()) };
    let what = word.value.to_uppercase();
    cursor.skip_rest();
    Ok(Some(Command::Unsupported(Error::unsupported(format!("DROP {what} is not supported")))))
}

/// A name, with or without quotes of either kind.
pub fn name_or_text(cursor: &mut Cursor<'_>) -> Result<String> {
    match cursor.peek() {
        Some(Token::SingleQuotedString(_)) => cursor.string(),
        _ => cursor.ident(),
    }
}

/// What else `CREATE` may make, none of which there is. `None`: a table, which is sqlparser's to read.
fn create_unsupported(cursor: &mut Cursor<'_>) -> Result<Option<Command>> {
    if cursor.keywords(&["create", "extension"]) {
        return super::extensions::create(cursor).map(Some);
    }
    if cursor.are_keywords(&["create", "database"]) {
        cursor.skip_rest();
        return Ok(Some(Command::Unsupported(
            Error::unsupported("CREATE DATABASE is not supported")
                .with_hint("A server has one database, which postgres and template1 are names of, too. Use schemas, or start another server."),
        )));
    }
    let mut ahead = Cursor::new(cursor.source, cursor.rest());
    ahead.advance();
    ahead.keywords(&["or", "replace"]);
    ahead.one_of(&["global", "local"]);
    if ahead.one_of(&["temp", "temporary"]).is_some() && !ahead.is_keyword("table") {
        let what = if ahead.is_keyword("sequence") { "sequences" } else { "views" };
        cursor.skip_rest();
        return Ok(Some(Command::Unsupported(
            Error::unsupported(format!("temporary {what} are not supported"))
                .with_hint("Tables can be temporary, with the sequences that their columns have."),
        )));
    }
    ahead.keyword("unlogged");
    if ahead.is_keyword("table") {
        return Ok(None);
    }
    let mut what = Vec::new();
    while let Some(word) = ahead.one_of(&[
        "unique",
        "materialized",
        "index",
        "view",
        "sequence",
        "function",
        "database",
        "role",
        "user",
        "extension",
        "type",
        "trigger",
    ]) {
        what.push(word.to_uppercase());
    }
    if what.is_empty() {
        cursor.advance();
        return Err(cursor.error());
    }
    cursor.skip_rest();
    Ok(Some(Command::Unsupported(Error::unsupported(format!("CREATE {} is not supported", what.join(" "))))))
}

/// Past `CREATE TABLESPACE`.
fn create_tablespace(cursor: &mut Cursor<'_>) -> Result<Command> {
    let name = cursor.ident()?;
    let owner = if cursor.keyword("owner") { Some(super::roles::role_name(cursor)?) } else { None };
    cursor.expect_keyword("location")?;
    let location = cursor.string()?;
    let options = if cursor.keyword("with") { parameters(cursor)? } else { Vec::new() };
    Ok(Command::CreateTablespace { name, location, options, owner })
}

/// `(name = value, …)`
fn parameters(cursor: &mut Cursor<'_>) -> Result<Vec<(String, String)>> {
    let mut options = Vec::new();
    cursor.expect_token(&Token::LParen)?;
    loop {
        let option = cursor.ident()?;
        cursor.expect_token(&Token::Eq)?;
        options.push((option, set_value(cursor)?));
        if !cursor.token(&Token::Comma) {
            break;
        }
    }
    cursor.expect_token(&Token::RParen)?;
    Ok(options)
}

/// Past `ALTER TABLESPACE`.
fn alter_tablespace(cursor: &mut Cursor<'_>) -> Result<Command> {
    let name = cursor.ident()?;
    let action = if cursor.keyword("set") {
        AlterTablespaceAction::Set { options: parameters(cursor)? }
    } else if cursor.keywords(&["add", "location"]) {
        let location = cursor.string()?;
        let options = if cursor.keyword("with") { parameters(cursor)? } else { Vec::new() };
        AlterTablespaceAction::AddLocation { location, options }
    } else if cursor.keywords(&["drop", "location"]) {
        AlterTablespaceAction::DropLocation { location: cursor.string()? }
    } else {
        cursor.skip_rest();
        return Ok(Command::Unsupported(
            Error::unsupported("this form of ALTER TABLESPACE is not supported")
                .with_hint("Supported: SET (size = '8GB'), ADD LOCATION 'numa:1*1' and DROP LOCATION 'numa:1'."),
        ));
    };
    Ok(Command::AlterTablespace { name, action })
}

fn alter(cursor: &mut Cursor<'_>) -> Result<Command> {
    cursor.advance();
    if cursor.keyword("table") {
        let if_exists = cursor.keywords(&["if", "exists"]);
        cursor.keyword("only");
        let name = qualified_name(cursor)?;
        let mut actions = Vec::new();
        loop {
            match super::alter::action(cursor)? {
                Ok(action) => actions.push(action),
                Err(unsupported) => {
                    cursor.skip_rest();
                    return Ok(Command::Unsupported(unsupported));
                }
            }
            if !cursor.token(&Token::Comma) {
                break;
            }
        }
        return Ok(Command::AlterTable { name, if_exists, actions });
    }
    if cursor.keyword("tablespace") {
        return alter_tablespace(cursor);
    }
    if let Some(command) = super::objects::alter(cursor)? {
        return Ok(command);
    }
    if let Some(command) = super::indexes::alter(cursor)? {
        return Ok(command);
    }
    let Some(Token::Word(word)) = cursor.peek() else { return Err(cursor.error()) };
    let what = word.value.to_uppercase();
    cursor.skip_rest();
    Ok(Command::Unsupported(Error::unsupported(format!("ALTER {what} is not supported"))))
}

fn call(cursor: &mut Cursor<'_>) -> Result<Command> {
    cursor.advance();
    let procedure = qualified_name(cursor)?;
    cursor.expect_token(&Token::LParen)?;
    match (procedure.schema.as_deref(), procedure.name.as_str()) {
        (Some("tidepool"), "merge") => {}
        (Some("tidepool"), "reset_access") => {
            cursor.expect_token(&Token::RParen)?;
            return Ok(Command::ResetAccess);
        }
        (Some("tidepool"), "check") => {
            cursor.expect_token(&Token::RParen)?;
            return Ok(Command::Check);
        }
        (Some("tidepool"), "backup") => {
            let folder = cursor.string()?;
            cursor.expect_token(&Token::RParen)?;
            return Ok(Command::Backup { folder });
        }
        (Some("tidepool"), "switchover") => {
            let host = cursor.string()?;
            let lag_max = if cursor.token(&Token::Comma) { cursor.string()? } else { "16MB".to_owned() };
            let flag = |cursor: &mut Cursor<'_>| -> Result<bool> {
                if !cursor.token(&Token::Comma) {
                    return Ok(false);
                }
                match set_value(cursor)?.as_str() {
                    "on" | "true" => Ok(true),
                    "off" | "false" => Ok(false),
                    _ => {
                        let message = "tidepool.switchover requires Boolean values for its last two arguments";
                        Err(Error::new(SqlState::SYNTAX_ERROR, message))
                    }
                }
            };
            let (is_trial, ends) = (flag(cursor)?, flag(cursor)?);
            cursor.expect_token(&Token::RParen)?;
            return Ok(Command::Switchover(SwitchoverArguments { host, lag_max, is_trial, ends }));
        }
        (Some("tidepool"), "pool_yield") => {
            let size = cursor.string()?;
            cursor.expect_token(&Token::RParen)?;
            return Ok(Command::PoolYield { size });
        }
        (Some("tidepool"), "advise") => {
            let near_limit = cursor.string()?;
            let argument = |cursor: &mut Cursor<'_>| {
                if cursor.token(&Token::Comma) { cursor.string().map(Some) } else { Ok(None) }
            };
            let far = argument(cursor)?.unwrap_or_else(|| "far".to_owned());
            let profile = argument(cursor)?;
            cursor.expect_token(&Token::RParen)?;
            return Ok(Command::Advise(AdviseArguments { near_limit, far, profile }));
        }
        (None | Some("public"), _) => {
            let arguments = arguments(cursor)?;
            return Ok(Command::Call { name: procedure.name, arguments });
        }
        _ => {
            return Err(Error::new(SqlState::UNDEFINED_FUNCTION, format!("procedure {procedure} does not exist"))
                .with_hint(
                    "There are tidepool.merge('table'), tidepool.check(), tidepool.backup('folder'), \
                     tidepool.reset_access(), tidepool.switchover('standby' [, 'lag' [, trial]]), \
                     tidepool.pool_yield('size') and tidepool.advise('near limit' [, 'far tablespace' [, 'profile']]).",
                ));
        }
    }
    let table = cursor.string()?;
    cursor.expect_token(&Token::RParen)?;
    let table = match table.split_once('.') {
        Some((schema, name)) => QualifiedName { schema: Some(schema.to_owned()), name: name.to_owned() },
        None => QualifiedName { schema: None, name: table },
    };
    Ok(Command::Merge { table })
}

fn explain(cursor: &mut Cursor<'_>) -> Result<Command> {
    cursor.advance();
    let mut options = ExplainOptions::default();
    if cursor.peek() == Some(&Token::LParen)
        && !matches!(cursor.rest().get(1).map(|token| &token.token),
        Some(Token::Word(word)) if word.value.eq_ignore_ascii_case("select") || word.value.eq_ignore_ascii_case("with"))
        && cursor.token(&Token::LParen)
    {
        loop {
            let name = cursor.ident()?;
            let on = |cursor: &mut Cursor<'_>| -> Result<bool> {
                if matches!(cursor.peek(), Some(Token::Comma | Token::RParen)) {
                    return Ok(true);
                }
                let value = set_value(cursor)?;
                match value.as_str() {
                    "on" | "true" | "1" => Ok(true),
                    "off" | "false" | "0" => Ok(false),
                    _ => Err(Error::new(SqlState::SYNTAX_ERROR, format!("{name} requires a Boolean value"))),
                }
            };
            match name.as_str() {
                "analyze" => options.analyze = on(cursor)?,
                "verbose" => options.verbose = on(cursor)?,
                "placement" => options.placement = on(cursor)?,
                "format" => {
                    options.format = match set_value(cursor)?.to_lowercase().as_str() {
                        "text" => ExplainFormat::Text,
                        "tree" => ExplainFormat::Tree,
                        "json" => ExplainFormat::Document(Notation::Json),
                        "yaml" => ExplainFormat::Document(Notation::Yaml),
                        "xml" => ExplainFormat::Document(Notation::Xml),
                        other => {
                            let message = format!("unrecognized value for EXPLAIN option \"format\": \"{other}\"");
                            return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, message));
                        }
                    }
                }
                // There is nothing of the kind to be shown.
                "buffers" | "wal" | "settings" => drop(on(cursor)?),
                "costs" => options.hides_costs = !on(cursor)?,
                "timing" => options.hides_timing = !on(cursor)?,
                "summary" => options.hides_summary = !on(cursor)?,
                other => {
                    return Err(Error::new(SqlState::SYNTAX_ERROR, format!("unrecognized EXPLAIN option \"{other}\"")));
                }
            }
            if !cursor.token(&Token::Comma) {
                break;
            }
        }
        cursor.expect_token(&Token::RParen)?;
    } else if cursor.keyword("placement") {
        options.placement = true;
    } else {
        options.analyze = cursor.keyword("analyze");
        options.verbose = cursor.keyword("verbose");
    }
    let statement = inner(cursor)?;
    Ok(Command::Explain { options, statement })
}

/// Takes `OVERRIDING … VALUE`, which sqlparser does not know, out of an `INSERT`.
pub fn take_overriding(tokens: &[TokenWithSpan]) -> (Cow<'_, [TokenWithSpan]>, Overriding) {
    let word = |token: &TokenWithSpan, text: &str| matches!(&token.token, Token::Word(word) if word.quote_style.is_none() && word.value.eq_ignore_ascii_case(text));
    if tokens.first().is_some_and(|first| word(first, "insert")) {
        let mut depth = 0_i64;
        for (at, token) in tokens.iter().enumerate() {
            match token.token {
                Token::LParen => depth += 1,
                Token::RParen => depth -= 1,
                _ => {}
            }
            // It stands before the rows.
            if depth == 0 && (word(token, "values") || word(token, "select")) {
                break;
            }
            if depth == 0
                && at > 2
                && word(token, "overriding")
                && let Some([kind, value]) = tokens.get(at + 1..at + 3)
                && word(value, "value")
                && (word(kind, "system") || word(kind, "user"))
            {
                let overriding = if word(kind, "system") { Overriding::SystemValue } else { Overriding::UserValue };
                return (Cow::Owned([&tokens[..at], &tokens[at + 3..]].concat()), overriding);
            }
        }
    }
    (Cow::Borrowed(tokens), Overriding::Nothing)
}

/// Takes `TABLESPACE name` and `WITH [NO] DATA`, which sqlparser does not know, out of a `CREATE TABLE`.
#[expect(clippy::type_complexity, reason = "its one caller takes the three apart at once")]
pub fn take_tablespace<'a>(
    source: &Source<'_>,
    tokens: &'a [TokenWithSpan],
) -> Result<(Cow<'a, [TokenWithSpan]>, Option<String>, Option<bool>)> {
    let cursor = Cursor::new(source, tokens);
    if !cursor.is_keyword("create") {
        return Ok((Cow::Borrowed(tokens), None, None));
    }
    let word = |index: usize, text: &str| {
        matches!(tokens.get(index).map(|token| &token.token),
            Some(Token::Word(word)) if word.quote_style.is_none() && word.value.eq_ignore_ascii_case(text))
    };
    let mut end = tokens.len();
    let mut with_data = None;
    if end > 3 && word(end - 1, "data") && word(end - 2, "no") && word(end - 3, "with") {
        with_data = Some(false);
        end -= 3;
    } else if end > 2 && word(end - 1, "data") && word(end - 2, "with") {
        with_data = Some(true);
        end -= 2;
    }
    let mut depth = 0_i64;
    for index in 2..end {
        match tokens[index].token {
            Token::LParen => depth += 1,
            Token::RParen => depth -= 1,
            _ => {}
        }
        if depth == 0 && word(index, "as") {
            break;
        }
        // The table's name may itself be `tablespace`; the clause comes after it.
        if depth == 0 && index > 2 && word(index, "tablespace") && index + 1 < end {
            let mut clause = Cursor::new(source, &tokens[index + 1..end]);
            let name = clause.ident()?;
            let mut rest = tokens[..index].to_vec();
            rest.extend_from_slice(&tokens[index + 2..end]);
            return Ok((Cow::Owned(rest), Some(name), with_data));
        }
    }
    Ok((Cow::Borrowed(&tokens[..end]), None, with_data))
}
