//! `CALL` of the procedures that there are.

use super::Command;
use super::cursor::Cursor;
use super::parts::{QualifiedName, arguments, qualified_name, set_value};
use datafusion::sql::sqlparser::tokenizer::Token;
use tidepool_base::{Error, Result, SqlState};

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

pub fn call(cursor: &mut Cursor<'_>) -> Result<Command> {
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
