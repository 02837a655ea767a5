//! `COMMENT ON`.

use super::cursor::Cursor;
use super::parts::qualified_name;
use super::{Command, QualifiedName};
use datafusion::sql::sqlparser::tokenizer::Token;
use tidepool_base::{Error, Result};

/// What a comment is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommentOn {
    Table(QualifiedName),
    View(QualifiedName),
    Sequence(QualifiedName),
    Index(QualifiedName),
    Column(QualifiedName, String),
    Constraint(String, QualifiedName),
    Schema(String),
    Database(String),
    Tablespace(String),
}

/// Reads what comes after `COMMENT`.
pub fn comment(cursor: &mut Cursor<'_>) -> Result<Command> {
    cursor.advance();
    cursor.expect_keyword("on")?;
    let kinds = ["table", "view", "sequence", "index", "column", "constraint", "schema", "database", "tablespace"];
    let about = match cursor.one_of(&kinds) {
        Some("table") => CommentOn::Table(qualified_name(cursor)?),
        Some("view") => CommentOn::View(qualified_name(cursor)?),
        Some("sequence") => CommentOn::Sequence(qualified_name(cursor)?),
        Some("index") => CommentOn::Index(qualified_name(cursor)?),
        Some("column") => {
            let mut parts = vec![cursor.ident()?];
            while cursor.token(&Token::Period) {
                parts.push(cursor.ident()?);
            }
            let (column, name) = (parts.pop().unwrap_or_default(), parts.pop());
            let Some(name) = name else { return Err(cursor.error()) };
            CommentOn::Column(QualifiedName { schema: parts.pop(), name }, column)
        }
        Some("constraint") => {
            let name = cursor.ident()?;
            cursor.expect_keyword("on")?;
            CommentOn::Constraint(name, qualified_name(cursor)?)
        }
        Some("schema") => CommentOn::Schema(cursor.ident()?),
        Some("database") => CommentOn::Database(cursor.ident()?),
        Some("tablespace") => CommentOn::Tablespace(cursor.ident()?),
        _ if cursor.keyword("extension") => return super::extensions::comment(cursor),
        _ => {
            let kind = cursor.ident()?.to_uppercase();
            cursor.skip_rest();
            return Ok(Command::Unsupported(Error::unsupported(format!("COMMENT ON {kind} is not supported"))));
        }
    };
    cursor.expect_keyword("is")?;
    let text = match cursor.keyword("null") {
        true => None,
        // An empty one is none.
        false => Some(cursor.string()?).filter(|text| !text.is_empty()),
    };
    Ok(Command::Comment { about, text })
}
