//! `CREATE`, `ALTER`, `DROP INDEX` and `REINDEX`, and the keys of `ALTER TABLE`, read from their tokens.

use super::cursor::Cursor;
use super::objects::cascades;
use super::parts::{names, qualified_name};
use super::{AlterAction, Command, QualifiedName};
use crate::keys::{KeyClause, KeyColumnClause};
use datafusion::sql::sqlparser::tokenizer::Token;
use tidepool_base::{Error, Result};

/// An index to be made, as it is written.
#[derive(Clone, Debug)]
pub struct IndexClause {
    pub table: QualifiedName,
    pub if_not_exists: bool,
    /// Others' changes of rows go on.
    pub concurrently: bool,
    pub key: KeyClause,
}

/// What `ALTER INDEX` is to do.
#[derive(Clone, Debug)]
pub enum IndexAction {
    Rename(String),
    SetTablespace(String),
}

/// What `REINDEX` names.
#[derive(Clone, Debug)]
pub enum Reindexed {
    Index(QualifiedName),
    Table(QualifiedName),
}

/// At `CREATE`. `None`, with nothing read, when it makes something else.
pub fn create(cursor: &mut Cursor<'_>) -> Result<Option<Command>> {
    let unique = cursor.are_keywords(&["create", "unique", "index"]);
    if !cursor.keywords(&["create", "index"]) && !cursor.keywords(&["create", "unique", "index"]) {
        return Ok(None);
    }
    let concurrently = cursor.keyword("concurrently");
    let if_not_exists = cursor.keywords(&["if", "not", "exists"]);
    let name = if cursor.is_keyword("on") { None } else { Some(cursor.ident()?) };
    if name.is_none() && if_not_exists {
        return Err(cursor.error());
    }
    cursor.expect_keyword("on")?;
    cursor.keyword("only");
    let table = qualified_name(cursor)?;
    if cursor.keyword("using") {
        let method = cursor.ident()?;
        if method != "btree" {
            return Ok(Some(unsupported(
                cursor,
                format!("access method \"{method}\" is not supported"),
                "Indexes are B-trees.",
            )));
        }
    }
    let columns = match columns(cursor)? {
        Ok(columns) => columns,
        Err(refused) => return Ok(Some(refused)),
    };
    if cursor.is_keyword("include") {
        return Ok(Some(unsupported(cursor, "INCLUDE is not supported", "Make the columns part of the key.")));
    }
    let nulls_not_distinct = nulls_not_distinct(cursor)?;
    if cursor.is_keyword("with") {
        return Ok(Some(unsupported(
            cursor,
            "storage parameters of indexes are not supported",
            "TABLESPACE says where one lives.",
        )));
    }
    let tablespace = if cursor.keyword("tablespace") { Some(cursor.ident()?) } else { None };
    if cursor.is_keyword("where") {
        return Ok(Some(unsupported(
            cursor,
            "partial indexes are not supported",
            "An index has all rows of its table.",
        )));
    }
    let key = KeyClause { name, constraint: None, unique, columns, nulls_not_distinct, tablespace };
    Ok(Some(Command::CreateIndex(Box::new(IndexClause { table, if_not_exists, concurrently, key }))))
}

fn unsupported(cursor: &mut Cursor<'_>, message: impl Into<String>, hint: &str) -> Command {
    cursor.skip_rest();
    Command::Unsupported(Error::unsupported(message).with_hint(hint))
}

/// `NULLS [NOT] DISTINCT`.
fn nulls_not_distinct(cursor: &mut Cursor<'_>) -> Result<bool> {
    if cursor.keywords(&["nulls", "not", "distinct"]) {
        return Ok(true);
    }
    cursor.keywords(&["nulls", "distinct"]);
    Ok(false)
}

/// In parentheses; or the command that says what of them is not to be had.
fn columns(cursor: &mut Cursor<'_>) -> Result<std::result::Result<Vec<KeyColumnClause>, Command>> {
    cursor.expect_token(&Token::LParen)?;
    let mut columns = Vec::new();
    loop {
        let is_column = matches!(cursor.peek(), Some(Token::Word(_)));
        if !is_column || matches!(cursor.second(), Some(Token::LParen)) {
            return Ok(Err(unsupported(cursor, "indexes on expressions are not supported", "Index plain columns.")));
        }
        let name = cursor.ident()?;
        if cursor.keyword("collate") {
            let mut collation = cursor.ident()?;
            while cursor.token(&Token::Period) {
                collation = cursor.ident()?;
            }
            if !matches!(collation.as_str(), "C" | "c" | "POSIX" | "posix" | "default") {
                let message = format!("collation \"{collation}\" is not supported");
                return Ok(Err(unsupported(
                    cursor,
                    message,
                    "Text is ordered by its bytes, which is collation \"C\".",
                )));
            }
        }
        if let Some(Token::Word(word)) = cursor.peek()
            && word.value.to_ascii_lowercase().ends_with("_ops")
        {
            // The type's own, or one that orders as bytes do, as ours always does.
            cursor.advance();
        }
        let descending = cursor.one_of(&["asc", "desc"]) == Some("desc");
        let nulls_first = if cursor.keywords(&["nulls", "first"]) {
            true
        } else if cursor.keywords(&["nulls", "last"]) {
            false
        } else {
            descending
        };
        columns.push(KeyColumnClause { name, descending, nulls_first });
        if !cursor.token(&Token::Comma) {
            break;
        }
    }
    cursor.expect_token(&Token::RParen)?;
    Ok(Ok(columns))
}

/// Past `DROP`. `None`, with nothing read, when it drops something else.
pub fn drop(cursor: &mut Cursor<'_>) -> Result<Option<Command>> {
    if !cursor.keyword("index") {
        return Ok(None);
    }
    let concurrently = cursor.keyword("concurrently");
    let if_exists = cursor.keywords(&["if", "exists"]);
    let names = names(cursor)?;
    Ok(Some(Command::DropIndexes { names, if_exists, concurrently, cascade: cascades(cursor) }))
}

/// Past `ALTER`. `None`, with nothing read, when it alters something else.
pub fn alter(cursor: &mut Cursor<'_>) -> Result<Option<Command>> {
    if !cursor.keyword("index") {
        return Ok(None);
    }
    let if_exists = cursor.keywords(&["if", "exists"]);
    let name = qualified_name(cursor)?;
    let action = if cursor.keywords(&["rename", "to"]) {
        IndexAction::Rename(cursor.ident()?)
    } else if cursor.keywords(&["set", "tablespace"]) {
        IndexAction::SetTablespace(cursor.ident()?)
    } else {
        let hint = "Supported: RENAME TO and SET TABLESPACE.";
        return Ok(Some(unsupported(cursor, "this form of ALTER INDEX is not supported", hint)));
    };
    Ok(Some(Command::AlterIndex { name, if_exists, action }))
}

/// At `REINDEX`. `None`, with nothing read, when it is something else.
pub fn reindex(cursor: &mut Cursor<'_>) -> Result<Option<Command>> {
    if !cursor.keyword("reindex") {
        return Ok(None);
    }
    let mut concurrently = false;
    if cursor.token(&Token::LParen) {
        loop {
            let option = cursor.ident()?;
            match (option.as_str(), cursor.one_of(&["true", "on", "false", "off"])) {
                ("concurrently", said) => concurrently = !matches!(said, Some("false" | "off")),
                ("verbose", _) => {}
                _ => {
                    return Ok(Some(unsupported(
                        cursor,
                        "this option of REINDEX is not supported",
                        "TABLESPACE is ALTER INDEX … SET TABLESPACE.",
                    )));
                }
            }
            if !cursor.token(&Token::Comma) {
                break;
            }
        }
        cursor.expect_token(&Token::RParen)?;
    }
    let what = cursor.one_of(&["index", "table"]);
    let Some(what) = what else {
        return Ok(Some(unsupported(cursor, "this form of REINDEX is not supported", "Supported: INDEX and TABLE.")));
    };
    concurrently |= cursor.keyword("concurrently");
    let name = qualified_name(cursor)?;
    let what = if what == "index" { Reindexed::Index(name) } else { Reindexed::Table(name) };
    Ok(Some(Command::Reindex { what, concurrently }))
}

/// Past `ADD [CONSTRAINT name]`, at `PRIMARY KEY` or `UNIQUE`. The inner error is for one that is not to be had.
pub fn key(cursor: &mut Cursor<'_>, name: Option<String>) -> Result<std::result::Result<AlterAction, Error>> {
    let primary = cursor.keywords(&["primary", "key"]);
    if !primary {
        cursor.expect_keyword("unique")?;
    }
    if !cursor.are_keywords(&["using", "index", "tablespace"]) && cursor.keywords(&["using", "index"]) {
        let index = cursor.ident()?;
        if let Err(error) = not_deferrable(cursor) {
            return Ok(Err(error));
        }
        return Ok(Ok(AlterAction::UseIndex { name, index, primary }));
    }
    let nulls_not_distinct = !primary && nulls_not_distinct(cursor)?;
    cursor.expect_token(&Token::LParen)?;
    let mut columns = Vec::new();
    loop {
        columns.push(KeyColumnClause::ascending(cursor.ident()?));
        if !cursor.token(&Token::Comma) {
            break;
        }
    }
    cursor.expect_token(&Token::RParen)?;
    let tablespace = if cursor.keywords(&["using", "index", "tablespace"]) { Some(cursor.ident()?) } else { None };
    if let Err(error) = not_deferrable(cursor) {
        return Ok(Err(error));
    }
    let key = KeyClause { name, constraint: Some(primary), unique: true, columns, nulls_not_distinct, tablespace };
    Ok(Ok(AlterAction::AddKey(Box::new(key))))
}

/// `NOT DEFERRABLE` and `INITIALLY IMMEDIATE`, which all constraints are. 0A000 for others.
pub fn not_deferrable(cursor: &mut Cursor<'_>) -> Result<()> {
    loop {
        if cursor.keywords(&["not", "deferrable"]) || cursor.keywords(&["initially", "immediate"]) {
            continue;
        }
        if cursor.keyword("deferrable") || cursor.keywords(&["initially", "deferred"]) {
            cursor.skip_rest();
            return Err(crate::keys::deferrable());
        }
        return Ok(());
    }
}
