//! Transactions: `BEGIN`, `COMMIT`, `SAVEPOINT` and the like.

use super::Command;
use super::cursor::Cursor;
use datafusion::sql::sqlparser::tokenizer::Token;
use tidepool_base::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionMode {
    /// As PostgreSQL names the level.
    Isolation(&'static str),
    ReadOnly(bool),
    Deferrable(bool),
}

pub fn transaction(cursor: &mut Cursor<'_>) -> Result<Command> {
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

pub fn transaction_modes(cursor: &mut Cursor<'_>) -> Result<Vec<TransactionMode>> {
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
