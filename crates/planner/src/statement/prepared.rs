//! `PREPARE` and `EXECUTE`, cursors.

use super::Command;
use super::cursor::Cursor;
use super::parts::{arguments, inner};
use datafusion::sql::sqlparser::tokenizer::Token;
use tidepool_base::{Error, Result, SqlState};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchCount {
    Rows(u64),
    All,
}

pub fn prepare(cursor: &mut Cursor<'_>) -> Result<Command> {
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

pub fn execute(cursor: &mut Cursor<'_>) -> Result<Command> {
    cursor.advance();
    let name = cursor.ident()?;
    let arguments = if cursor.token(&Token::LParen) { arguments(cursor)? } else { Vec::new() };
    Ok(Command::Execute { name, arguments })
}

pub fn declare(cursor: &mut Cursor<'_>) -> Result<Command> {
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

pub fn fetch(cursor: &mut Cursor<'_>) -> Result<Command> {
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
