//! Parts that several statements have: names, and statements within statements.

use super::Statement;
use super::cursor::Cursor;
use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::tokenizer::Token;
use std::fmt;
use tidepool_base::{Error, Result, SqlState};

/// A name with its schema, if one was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QualifiedName {
    pub schema: Option<String>,
    pub name: String,
}

impl fmt::Display for QualifiedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.schema {
            Some(schema) => write!(f, "{schema}.{}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

pub fn qualified_name(cursor: &mut Cursor<'_>) -> Result<QualifiedName> {
    let mut parts = vec![cursor.ident()?];
    while cursor.token(&Token::Period) {
        parts.push(cursor.ident()?);
    }
    if parts.len() > 3 {
        return Err(Error::new(SqlState::SYNTAX_ERROR, format!("improper qualified name: {}", parts.join("."))));
    }
    let name = parts.pop().unwrap_or_default();
    let schema = parts.pop();
    if let Some(database) = parts.pop()
        && database != crate::facts::DATABASE
    {
        return Err(crate::errors::cross_database(database));
    }
    Ok(QualifiedName { schema, name })
}

pub fn names(cursor: &mut Cursor<'_>) -> Result<Vec<QualifiedName>> {
    let mut names = vec![qualified_name(cursor)?];
    while cursor.token(&Token::Comma) {
        names.push(qualified_name(cursor)?);
    }
    Ok(names)
}

pub fn name_or_all(cursor: &mut Cursor<'_>) -> Result<Option<String>> {
    if cursor.keyword("all") { Ok(None) } else { cursor.ident().map(Some) }
}

/// A name, with or without quotes of either kind.
pub fn name_or_text(cursor: &mut Cursor<'_>) -> Result<String> {
    match cursor.peek() {
        Some(Token::SingleQuotedString(_)) => cursor.string(),
        _ => cursor.ident(),
    }
}

/// The statement that the rest of the tokens make.
pub fn inner(cursor: &mut Cursor<'_>) -> Result<Statement> {
    let tokens = cursor.rest();
    let (Some(first), Some(last)) = (tokens.first(), tokens.last()) else { return Err(cursor.error()) };
    let mut walk = cursor.source.walk();
    let (start, offset) = walk.seek(first.span.start);
    let (end, _) = walk.seek(last.span.end);
    let (command, bytes) = tidepool_heap::retained(|| super::command(cursor.source, tokens));
    let command = command?;
    let text = &cursor.source.0[start..end.max(start)];
    cursor.skip_rest();
    // Depth was bounded for the whole, which also drops deep ones elsewhere; as a part it is dropped with the whole.
    let locks = super::locking::is_in(cursor.source, tokens);
    Ok(Statement::new(text, offset, command, false, locks, bytes))
}

pub fn set_value(cursor: &mut Cursor<'_>) -> Result<String> {
    if let Some(value) = cursor.string_if().or_else(|| cursor.number_if()) {
        return Ok(value);
    }
    // `read committed` unquoted is no PostgreSQL, but one word is.
    cursor.ident()
}

/// Expressions to the closing bracket.
pub fn arguments(cursor: &mut Cursor<'_>) -> Result<Vec<ast::Expr>> {
    let mut arguments = Vec::new();
    if !cursor.token(&Token::RParen) {
        loop {
            arguments.push(cursor.expression()?);
            if !cursor.token(&Token::Comma) {
                break;
            }
        }
        cursor.expect_token(&Token::RParen)?;
    }
    Ok(arguments)
}
