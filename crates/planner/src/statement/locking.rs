//! `FOR UPDATE` and its kin after a query, which sqlparser knows in part.

use super::QualifiedName;
use super::cursor::{Cursor, Source};
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};
use std::borrow::Cow;
use tidepool_base::{Error, Result, SqlState};
use tidepool_database::LockWait;
use tidepool_table::rows::RowLock;

/// One locking clause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockClause {
    pub lock: RowLock,
    /// Names in `FROM`; none: all tables there.
    pub of: Vec<String>,
    pub wait: LockWait,
}

impl LockClause {
    /// As it is written.
    pub fn name(&self) -> &'static str {
        match self.lock {
            RowLock::KeyShare => "FOR KEY SHARE",
            RowLock::Share => "FOR SHARE",
            RowLock::NoKeyUpdate => "FOR NO KEY UPDATE",
            RowLock::Update => "FOR UPDATE",
        }
    }
}

/// Takes the locking clauses of a statement's own query out of its tokens. Those of queries within it stay.
pub fn take<'a>(
    source: &Source<'_>,
    tokens: Cow<'a, [TokenWithSpan]>,
) -> Result<(Cow<'a, [TokenWithSpan]>, Vec<LockClause>)> {
    let begins = ["select", "with", "table", "values"];
    let first = Cursor::new(source, &tokens);
    let is_query = begins.iter().any(|word| first.is_keyword(word)) || matches!(first.peek(), Some(Token::LParen));
    let mut depth = 0_i64;
    let mut start = None;
    for (at, token) in tokens.iter().enumerate().filter(|_| is_query) {
        match token.token {
            Token::LParen => depth += 1,
            Token::RParen => depth -= 1,
            _ => {}
        }
        if depth == 0 && clause_begins(source, &tokens[at..]) {
            start = Some(at);
            break;
        }
    }
    let Some(start) = start else { return Ok((tokens, Vec::new())) };
    let mut cursor = Cursor::new(source, &tokens[start..]);
    let mut clauses = Vec::new();
    while clause_begins(source, cursor.rest()) {
        clauses.push(clause(&mut cursor)?);
    }
    // LIMIT may come after them.
    let rest = cursor.rest().to_vec();
    Ok((Cow::Owned([&tokens[..start], &rest[..]].concat()), clauses))
}

fn clause_begins(source: &Source<'_>, tokens: &[TokenWithSpan]) -> bool {
    let cursor = Cursor::new(source, tokens);
    [&["for", "update"][..], &["for", "share"], &["for", "no", "key"], &["for", "key", "share"]]
        .iter()
        .any(|words| cursor.are_keywords(words))
}

fn clause(cursor: &mut Cursor<'_>) -> Result<LockClause> {
    let locks = [
        (&["for", "update"][..], RowLock::Update),
        (&["for", "no", "key", "update"], RowLock::NoKeyUpdate),
        (&["for", "share"], RowLock::Share),
        (&["for", "key", "share"], RowLock::KeyShare),
    ];
    let found = locks.into_iter().find(|(words, _)| cursor.keywords(words));
    let lock = found.map(|(_, lock)| lock).ok_or_else(|| cursor.error())?;
    let mut of = Vec::new();
    if cursor.keyword("of") {
        loop {
            let QualifiedName { schema, name } = super::utility::qualified_name(cursor)?;
            if schema.is_some() {
                return Err(Error::new(
                    SqlState::SYNTAX_ERROR,
                    format!(
                        "{} must specify unqualified relation names",
                        LockClause { lock, of, wait: LockWait::Wait }.name()
                    ),
                ));
            }
            of.push(name);
            if !cursor.token(&Token::Comma) {
                break;
            }
        }
    }
    let wait = if cursor.keyword("nowait") {
        LockWait::Refuse
    } else if cursor.keywords(&["skip", "locked"]) {
        LockWait::Skip
    } else {
        LockWait::Wait
    };
    Ok(LockClause { lock, of, wait })
}
