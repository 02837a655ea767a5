//! Partitions as `CREATE TABLE` and `ALTER TABLE` write them, read from their tokens.
//!
//! sqlparser reads `PARTITION BY` and the columns of `PARTITION OF`, which have no types, otherwise than PostgreSQL: the
//! clauses are cut out of what it is given.

use super::cursor::{Cursor, Source};
use super::parts::{QualifiedName, qualified_name};
use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::tokenizer::{Span, Token, TokenWithSpan};
use std::borrow::Cow;
use tidepool_base::{Error, Result};

/// Stands for the type of a column that a partition has from its table.
pub const INHERITED_TYPE: &str = "inherited";

/// What a `CREATE TABLE` says of partitions.
#[derive(Clone, Debug, Default)]
pub struct PartitionClauses {
    /// `PARTITION OF`.
    pub of: Option<(QualifiedName, BoundClause)>,
    /// `PARTITION BY`.
    pub by: Option<PartitionBy>,
}

#[derive(Clone, Debug)]
pub struct PartitionBy {
    pub strategy: String,
    pub columns: Vec<String>,
}

/// Which rows a partition is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BoundClause {
    Range { from: Vec<BoundValue>, to: Vec<BoundValue> },
    List(Vec<ast::Expr>),
    Hash { modulus: String, remainder: String },
    Default,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BoundValue {
    MinValue,
    Value(Box<ast::Expr>),
    MaxValue,
}

/// Takes the clauses out of a `CREATE TABLE`.
pub fn take<'a>(
    source: &Source<'_>,
    tokens: Cow<'a, [TokenWithSpan]>,
) -> Result<(Cow<'a, [TokenWithSpan]>, PartitionClauses)> {
    let mut clauses = PartitionClauses::default();
    let start = Cursor::new(source, &tokens);
    if !start.is_keyword("create") || !tokens.iter().any(|token| is_word(token, "partition")) {
        return Ok((tokens, clauses));
    }
    let mut rest: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    let mut depth = 0_i64;
    let mut at = 0;
    while at < tokens.len() {
        let mut cursor = Cursor::new(source, &tokens[at..]);
        match &tokens[at].token {
            Token::LParen => depth += 1,
            Token::RParen => depth -= 1,
            // A query follows, which may have windows with partitions of their own.
            Token::Word(_) if depth == 0 && cursor.is_keyword("as") => break,
            _ => {}
        }
        let taken = match depth {
            0 if cursor.keywords(&["partition", "of"]) => {
                let name = qualified_name(&mut cursor)?;
                let columns = columns_end(cursor.rest());
                rest.extend(untyped_columns(&cursor.rest()[..columns]));
                let mut after = Cursor::new(source, &cursor.rest()[columns..]);
                clauses.of = Some((name, bound(&mut after)?));
                tokens.len() - at - after.rest().len()
            }
            0 if cursor.keywords(&["partition", "by"]) => {
                clauses.by = Some(partition_by(&mut cursor)?);
                tokens.len() - at - cursor.rest().len()
            }
            _ => 0,
        };
        if taken == 0 {
            rest.push(tokens[at].clone());
        }
        at += taken.max(1);
    }
    rest.extend_from_slice(&tokens[at.min(tokens.len())..]);
    Ok((Cow::Owned(rest), clauses))
}

fn is_word(token: &TokenWithSpan, text: &str) -> bool {
    matches!(&token.token, Token::Word(word) if word.quote_style.is_none() && word.value.eq_ignore_ascii_case(text))
}

/// Where a list in parentheses ends that tokens begin with: 0 if they begin with something else.
fn columns_end(tokens: &[TokenWithSpan]) -> usize {
    let mut depth = 0_i64;
    for (index, token) in tokens.iter().enumerate() {
        match token.token {
            Token::LParen => depth += 1,
            Token::RParen => depth -= 1,
            _ => {}
        }
        if depth <= 0 {
            return if index == 0 { 0 } else { index + 1 };
        }
    }
    tokens.len()
}

/// The columns and constraints of a partition, each column with a type.
fn untyped_columns(tokens: &[TokenWithSpan]) -> Vec<TokenWithSpan> {
    let constraints = ["constraint", "check", "primary", "unique", "foreign", "exclude", "like"];
    let mut typed: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len() + 8);
    let (mut depth, mut is_first) = (0_i64, false);
    let mut skip = 0;
    for (index, token) in tokens.iter().enumerate() {
        if skip > 0 {
            skip -= 1;
            continue;
        }
        match token.token {
            Token::LParen => depth += 1,
            Token::RParen => depth -= 1,
            _ => {}
        }
        typed.push(token.clone());
        let is_column = is_first && !constraints.iter().any(|word| is_word(token, word));
        is_first = depth == 1 && matches!(token.token, Token::LParen | Token::Comma);
        if is_column {
            typed.push(TokenWithSpan::new(Token::make_word(INHERITED_TYPE, Some('"')), Span::empty()));
            if tokens.get(index + 1).is_some_and(|token| is_word(token, "with"))
                && tokens.get(index + 2).is_some_and(|token| is_word(token, "options"))
            {
                skip = 2;
            }
        }
    }
    typed
}

/// Past `PARTITION BY`.
fn partition_by(cursor: &mut Cursor<'_>) -> Result<PartitionBy> {
    let strategy = cursor.ident()?;
    cursor.expect_token(&Token::LParen)?;
    let mut columns = Vec::new();
    loop {
        let is_expression = !matches!(cursor.peek(), Some(Token::Word(_)))
            || !matches!(cursor.second(), Some(Token::Comma | Token::RParen));
        if is_expression {
            return Err(Error::unsupported("a partition key of expressions is not supported")
                .with_hint("Its columns can be named, without collations and operator classes."));
        }
        columns.push(cursor.ident()?);
        if !cursor.token(&Token::Comma) {
            break;
        }
    }
    cursor.expect_token(&Token::RParen)?;
    Ok(PartitionBy { strategy, columns })
}

/// `FOR VALUES …` or `DEFAULT`.
pub fn bound(cursor: &mut Cursor<'_>) -> Result<BoundClause> {
    if cursor.keyword("default") {
        return Ok(BoundClause::Default);
    }
    cursor.expect_keyword("for")?;
    cursor.expect_keyword("values")?;
    if cursor.keyword("in") {
        cursor.expect_token(&Token::LParen)?;
        let mut values = vec![cursor.expression()?];
        while cursor.token(&Token::Comma) {
            values.push(cursor.expression()?);
        }
        cursor.expect_token(&Token::RParen)?;
        return Ok(BoundClause::List(values));
    }
    if cursor.keyword("from") {
        let from = range_values(cursor)?;
        cursor.expect_keyword("to")?;
        return Ok(BoundClause::Range { from, to: range_values(cursor)? });
    }
    cursor.expect_keyword("with")?;
    cursor.expect_token(&Token::LParen)?;
    let (mut modulus, mut remainder) = (None, None);
    loop {
        let slot = match cursor.one_of(&["modulus", "remainder"]) {
            Some("modulus") => &mut modulus,
            Some(_) => &mut remainder,
            None => return Err(cursor.error()),
        };
        let number = cursor.number_if().ok_or_else(|| cursor.error())?;
        if slot.replace(number).is_some() {
            return Err(cursor.error());
        }
        if !cursor.token(&Token::Comma) {
            break;
        }
    }
    cursor.expect_token(&Token::RParen)?;
    match (modulus, remainder) {
        (Some(modulus), Some(remainder)) => Ok(BoundClause::Hash { modulus, remainder }),
        _ => Err(cursor.error()),
    }
}

fn range_values(cursor: &mut Cursor<'_>) -> Result<Vec<BoundValue>> {
    cursor.expect_token(&Token::LParen)?;
    let mut values = Vec::new();
    loop {
        values.push(match cursor.one_of(&["minvalue", "maxvalue"]) {
            Some("minvalue") => BoundValue::MinValue,
            Some(_) => BoundValue::MaxValue,
            None => BoundValue::Value(Box::new(cursor.expression()?)),
        });
        if !cursor.token(&Token::Comma) {
            break;
        }
    }
    cursor.expect_token(&Token::RParen)?;
    Ok(values)
}
