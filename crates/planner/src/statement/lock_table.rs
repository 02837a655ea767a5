//! `LOCK TABLE`.

use super::cursor::Cursor;
use super::parts::qualified_name;
use super::{Command, QualifiedName};
use datafusion::sql::sqlparser::tokenizer::Token;
use tidepool_base::Result;
use tidepool_database::LockMode;

/// What `LOCK TABLE` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockedRelation {
    pub name: QualifiedName,
    /// Without its partitions.
    pub only: bool,
}

pub fn lock(cursor: &mut Cursor<'_>) -> Result<Command> {
    cursor.advance();
    cursor.keyword("table");
    let mut relations = vec![relation(cursor)?];
    while cursor.token(&Token::Comma) {
        relations.push(relation(cursor)?);
    }
    let mut mode = LockMode::AccessExclusive;
    if cursor.keyword("in") {
        mode = lock_mode(cursor)?;
        cursor.expect_keyword("mode")?;
    }
    Ok(Command::LockTables { relations, mode, nowait: cursor.keyword("nowait") })
}

fn relation(cursor: &mut Cursor<'_>) -> Result<LockedRelation> {
    let only = cursor.keyword("only");
    let in_parentheses = only && cursor.token(&Token::LParen);
    let name = qualified_name(cursor)?;
    if in_parentheses {
        cursor.expect_token(&Token::RParen)?;
    } else if !only {
        cursor.token(&Token::Mul);
    }
    Ok(LockedRelation { name, only })
}

fn lock_mode(cursor: &mut Cursor<'_>) -> Result<LockMode> {
    let first = cursor.one_of(&["access", "row", "share", "exclusive"]);
    let (first, second) = match first {
        Some(first @ ("access" | "row")) => (first, cursor.one_of(&["share", "exclusive"])),
        Some("share") => match cursor.one_of(&["update", "row"]) {
            Some(second) => {
                cursor.expect_keyword("exclusive")?;
                ("share", Some(second))
            }
            None => return Ok(LockMode::Share),
        },
        Some(_) => return Ok(LockMode::Exclusive),
        None => return Err(cursor.error()),
    };
    Ok(match (first, second) {
        ("access", Some("share")) => LockMode::AccessShare,
        ("access", Some(_)) => LockMode::AccessExclusive,
        ("row", Some("share")) => LockMode::RowShare,
        ("row", Some(_)) => LockMode::RowExclusive,
        (_, Some("update")) => LockMode::ShareUpdateExclusive,
        (_, Some(_)) => LockMode::ShareRowExclusive,
        (_, None) => return Err(cursor.error()),
    })
}
