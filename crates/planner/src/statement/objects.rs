//! `CREATE`, `ALTER` and `DROP` of what is not a table, read from their tokens.

use super::Command;
use super::cursor::Cursor;
use datafusion::sql::sqlparser::tokenizer::Token;
use tidepool_base::{Error, Result};

/// `CASCADE`, or `RESTRICT`, which is the default.
pub fn cascades(cursor: &mut Cursor<'_>) -> bool {
    cursor.one_of(&["cascade", "restrict"]) == Some("cascade")
}

/// At `CREATE`. `None`, with nothing read, when it makes something else.
pub fn create(cursor: &mut Cursor<'_>) -> Result<Option<Command>> {
    if cursor.keywords(&["create", "schema"]) {
        return create_schema(cursor).map(Some);
    }
    Ok(None)
}

/// Past `DROP`. `None`, with nothing read, when it drops something else.
pub fn drop(cursor: &mut Cursor<'_>) -> Result<Option<Command>> {
    if cursor.keyword("schema") {
        let if_exists = cursor.keywords(&["if", "exists"]);
        let mut names = vec![cursor.ident()?];
        while cursor.token(&Token::Comma) {
            names.push(cursor.ident()?);
        }
        return Ok(Some(Command::DropSchemas { names, if_exists, cascade: cascades(cursor) }));
    }
    Ok(None)
}

/// Past `ALTER`. `None`, with nothing read, when it alters something else.
pub fn alter(cursor: &mut Cursor<'_>) -> Result<Option<Command>> {
    if cursor.keyword("schema") {
        let name = cursor.ident()?;
        if !cursor.keywords(&["rename", "to"]) {
            cursor.skip_rest();
            return Ok(Some(Command::Unsupported(
                Error::unsupported("this form of ALTER SCHEMA is not supported").with_hint("Supported: RENAME TO."),
            )));
        }
        return Ok(Some(Command::AlterSchema { name, new_name: cursor.ident()? }));
    }
    Ok(None)
}

/// Past `CREATE SCHEMA`.
fn create_schema(cursor: &mut Cursor<'_>) -> Result<Command> {
    let if_not_exists = cursor.keywords(&["if", "not", "exists"]);
    let name = if cursor.is_keyword("authorization") { None } else { Some(cursor.ident()?) };
    let owner = if cursor.keyword("authorization") { Some(cursor.ident()?) } else { None };
    if !cursor.at_end() {
        cursor.skip_rest();
        return Ok(Command::Unsupported(
            Error::unsupported("CREATE SCHEMA with objects in it is not supported")
                .with_hint("Create the schema, then what is to be in it."),
        ));
    }
    // Everything belongs to role `tidepool`, as `pg_namespace` says.
    match name.or(owner) {
        Some(name) => Ok(Command::CreateSchema { name, if_not_exists }),
        None => Err(cursor.error()),
    }
}
