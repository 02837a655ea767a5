//! Tablespaces: `CREATE` and `ALTER TABLESPACE`.

use super::Command;
use super::cursor::Cursor;
use super::parts::set_value;
use datafusion::sql::sqlparser::tokenizer::Token;
use tidepool_base::{Error, Result};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AlterTablespaceAction {
    Set { options: Vec<(String, String)> },
    AddLocation { location: String, options: Vec<(String, String)> },
    DropLocation { location: String },
}

/// Past `CREATE TABLESPACE`.
pub fn create_tablespace(cursor: &mut Cursor<'_>) -> Result<Command> {
    let name = cursor.ident()?;
    let owner = if cursor.keyword("owner") { Some(super::roles::role_name(cursor)?) } else { None };
    cursor.expect_keyword("location")?;
    let location = cursor.string()?;
    let options = if cursor.keyword("with") { parameters(cursor)? } else { Vec::new() };
    Ok(Command::CreateTablespace { name, location, options, owner })
}

/// `(name = value, …)`
pub fn parameters(cursor: &mut Cursor<'_>) -> Result<Vec<(String, String)>> {
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
pub fn alter_tablespace(cursor: &mut Cursor<'_>) -> Result<Command> {
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
