//! Statements read from their tokens by hand.

use super::Command;
use super::copy::copy;
use super::cursor::{Cursor, Source};
use super::parts::{QualifiedName, inner, name_or_all, names, qualified_name, set_value};
use super::prepared::{declare, execute, fetch, prepare};
use super::procedures::call;
use super::set::{discard, set, setting_name_or_all};
use super::tablespaces::{alter_tablespace, create_tablespace};
use super::transaction::transaction;
use crate::explain::format::Notation;
use crate::sequences::SequenceOptions;
use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};
use std::borrow::Cow;
use tidepool_base::{Error, Result, SqlState};
use tidepool_table::Identity;

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
