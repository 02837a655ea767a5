//! `CREATE`, `ALTER` and `DROP` of what is not a table, read from their tokens.

use super::cursor::Cursor;
use super::utility::{inner, names, qualified_name};
use super::{AlterAction, Command};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};
use tidepool_base::{Error, Result, SqlState};

/// `CASCADE`, or `RESTRICT`, which is the default.
pub fn cascades(cursor: &mut Cursor<'_>) -> bool {
    cursor.one_of(&["cascade", "restrict"]) == Some("cascade")
}

/// At `CREATE`. `None`, with nothing read, when it makes something else.
pub fn create(cursor: &mut Cursor<'_>) -> Result<Option<Command>> {
    if cursor.keywords(&["create", "schema"]) {
        return create_schema(cursor).map(Some);
    }
    let or_replace = cursor.are_keywords(&["create", "or", "replace", "view"]);
    if cursor.keywords(&["create", "view"]) || cursor.keywords(&["create", "or", "replace", "view"]) {
        return create_view(cursor, or_replace).map(Some);
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
    if cursor.keyword("view") {
        let if_exists = cursor.keywords(&["if", "exists"]);
        let names = names(cursor)?;
        return Ok(Some(Command::DropViews { names, if_exists, cascade: cascades(cursor) }));
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
    if cursor.keyword("view") {
        let if_exists = cursor.keywords(&["if", "exists"]);
        let name = qualified_name(cursor)?;
        let Some(action) = naming(cursor)? else {
            cursor.skip_rest();
            return Ok(Some(Command::Unsupported(
                Error::unsupported("this form of ALTER VIEW is not supported")
                    .with_hint("Supported: RENAME TO, RENAME COLUMN and SET SCHEMA."),
            )));
        };
        return Ok(Some(Command::AlterView { name, if_exists, action }));
    }
    Ok(None)
}

/// `RENAME TO`, `RENAME COLUMN` and `SET SCHEMA`, which all relations share.
pub fn naming(cursor: &mut Cursor<'_>) -> Result<Option<AlterAction>> {
    if cursor.keywords(&["rename", "to"]) {
        return Ok(Some(AlterAction::Rename { name: cursor.ident()? }));
    }
    if cursor.keywords(&["set", "schema"]) {
        return Ok(Some(AlterAction::SetSchema { schema: cursor.ident()? }));
    }
    if cursor.is_keyword("rename") && !cursor.are_keywords(&["rename", "constraint"]) {
        cursor.advance();
        cursor.keyword("column");
        let column = cursor.ident()?;
        cursor.expect_keyword("to")?;
        return Ok(Some(AlterAction::RenameColumn { column, name: cursor.ident()? }));
    }
    Ok(None)
}

/// Past `CREATE VIEW`.
fn create_view(cursor: &mut Cursor<'_>, or_replace: bool) -> Result<Command> {
    let name = qualified_name(cursor)?;
    let mut columns = Vec::new();
    if cursor.token(&Token::LParen) {
        columns.push(cursor.ident()?);
        while cursor.token(&Token::Comma) {
            columns.push(cursor.ident()?);
        }
        cursor.expect_token(&Token::RParen)?;
    }
    if cursor.is_keyword("with") {
        cursor.skip_rest();
        return Ok(Command::Unsupported(Error::unsupported("options of views are not supported")));
    }
    cursor.expect_keyword("as")?;
    let is_word = |token: Option<&TokenWithSpan>, text: &str| {
        matches!(token.map(|token| &token.token), Some(Token::Word(word))
            if word.quote_style.is_none() && word.value.eq_ignore_ascii_case(text))
    };
    if let [.., check, option] = cursor.rest()
        && is_word(Some(check), "check")
        && is_word(Some(option), "option")
    {
        cursor.skip_rest();
        return Ok(Command::Unsupported(
            Error::unsupported("WITH CHECK OPTION is not supported").with_hint("Views cannot be written to."),
        ));
    }
    let query = inner(cursor)?;
    Ok(match query.command() {
        Command::Query(_) => Command::CreateView { name, or_replace, columns, query },
        Command::Unsupported(error) => Command::Unsupported(error.clone()),
        _ => return Err(Error::new(SqlState::SYNTAX_ERROR, "a view is made of a query")),
    })
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
