//! `COPY`.

use super::Command;
use super::Statement;
use super::cursor::Cursor;
use super::parts::{QualifiedName, inner, qualified_name};
use datafusion::sql::sqlparser::tokenizer::Token;
use tidepool_base::{Error, Result};

#[derive(Clone)]
pub struct CopyStatement {
    pub source: CopySource,
    pub from: bool,
    pub endpoint: CopyEndpoint,
    /// (option, value) as written; lists are written `a,b`.
    pub options: Vec<(String, Option<String>)>,
}

#[derive(Clone)]
pub enum CopySource {
    Table { name: QualifiedName, columns: Vec<String> },
    Query(Statement),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyEndpoint {
    File(String),
    /// `STDIN` or `STDOUT`.
    Client,
}

pub fn copy(cursor: &mut Cursor<'_>) -> Result<Command> {
    cursor.advance();
    // `COPY BINARY t …`, from before 7.3. A table of that name is followed by its direction or columns.
    let binary = cursor.is_keyword("binary") && matches!(cursor.rest().get(1), Some(next) if is_name(&next.token));
    if binary {
        cursor.advance();
    }
    let source = if cursor.peek() == Some(&Token::LParen) {
        let tokens = cursor.rest();
        let mut depth = 0_usize;
        let close = tokens.iter().position(|token| {
            match token.token {
                Token::LParen => depth += 1,
                Token::RParen => depth -= 1,
                _ => {}
            }
            depth == 0
        });
        let Some(close) = close else { return Err(cursor.source.syntax_error_at_end()) };
        let mut query = Cursor::new(cursor.source, &tokens[1..close]);
        let query = inner(&mut query)?;
        for _ in 0..=close {
            cursor.advance();
        }
        CopySource::Query(query)
    } else {
        let name = qualified_name(cursor)?;
        let mut columns = Vec::new();
        if cursor.token(&Token::LParen) {
            loop {
                columns.push(cursor.ident()?);
                if !cursor.token(&Token::Comma) {
                    break;
                }
            }
            cursor.expect_token(&Token::RParen)?;
        }
        CopySource::Table { name, columns }
    };
    let from = match cursor.one_of(&["from", "to"]) {
        Some(word) => word == "from",
        None => return Err(cursor.error()),
    };
    if from && matches!(source, CopySource::Query(_)) {
        return Err(cursor.error());
    }
    let endpoint = if let Some(path) = cursor.string_if() {
        CopyEndpoint::File(path)
    } else if cursor.keyword("stdin") || cursor.keyword("stdout") {
        CopyEndpoint::Client
    } else if cursor.is_keyword("program") {
        cursor.skip_rest();
        return Ok(Command::Unsupported(Error::unsupported("COPY with a program is not supported")));
    } else {
        return Err(cursor.error());
    };
    cursor.keyword("with");
    let mut options = if cursor.token(&Token::LParen) { copy_options(cursor)? } else { copy_options_legacy(cursor)? };
    if binary {
        options.push(("format".to_owned(), Some("binary".to_owned())));
    }
    if cursor.is_keyword("where") {
        cursor.skip_rest();
        return Ok(Command::Unsupported(
            Error::unsupported("COPY with WHERE is not supported")
                .with_hint("Load into another table and INSERT ... SELECT from it."),
        ));
    }
    Ok(Command::Copy(Box::new(CopyStatement { source, from, endpoint, options })))
}

fn is_name(token: &Token) -> bool {
    match token {
        Token::Word(word) if word.quote_style.is_none() => {
            !["from", "to"].iter().any(|direction| word.value.eq_ignore_ascii_case(direction))
        }
        Token::Word(_) => true,
        _ => false,
    }
}

fn copy_options(cursor: &mut Cursor<'_>) -> Result<Vec<(String, Option<String>)>> {
    let mut options = Vec::new();
    loop {
        let name = cursor.ident()?;
        let value = if let Some(value) = cursor.string_if().or_else(|| cursor.number_if()) {
            Some(value)
        } else if cursor.token(&Token::Mul) {
            Some("*".to_owned())
        } else if cursor.token(&Token::LParen) {
            let mut columns = vec![cursor.ident()?];
            while cursor.token(&Token::Comma) {
                columns.push(cursor.ident()?);
            }
            cursor.expect_token(&Token::RParen)?;
            Some(columns.join(","))
        } else if matches!(cursor.peek(), Some(Token::Word(_))) {
            Some(cursor.ident()?)
        } else {
            None
        };
        options.push((name, value));
        if !cursor.token(&Token::Comma) {
            break;
        }
    }
    cursor.expect_token(&Token::RParen)?;
    Ok(options)
}

/// PostgreSQL's syntax before 9.0, which `\copy` users still write.
fn copy_options_legacy(cursor: &mut Cursor<'_>) -> Result<Vec<(String, Option<String>)>> {
    let mut options = Vec::new();
    let mut push = |name: &str, value: Option<String>| options.push((name.to_owned(), value));
    while !cursor.at_end() && !cursor.is_keyword("where") {
        match cursor.one_of(&[
            "binary",
            "csv",
            "header",
            "delimiter",
            "delimiters",
            "null",
            "quote",
            "escape",
            "encoding",
            "force",
        ]) {
            Some(format @ ("binary" | "csv")) => push("format", Some(format.to_owned())),
            Some("header") => push("header", None),
            Some("force") => {
                let list = if cursor.keywords(&["not", "null"]) {
                    "force_not_null"
                } else if cursor.keyword("null") {
                    "force_null"
                } else {
                    cursor.expect_keyword("quote")?;
                    "force_quote"
                };
                let mut columns = Vec::new();
                if cursor.token(&Token::Mul) {
                    columns.push("*".to_owned());
                } else {
                    columns.push(cursor.ident()?);
                    while cursor.token(&Token::Comma) {
                        columns.push(cursor.ident()?);
                    }
                }
                push(list, Some(columns.join(",")));
            }
            Some(name) => {
                cursor.keyword("as");
                let value = cursor.string()?;
                push(if name == "delimiters" { "delimiter" } else { name }, Some(value));
            }
            None => return Err(cursor.error()),
        }
    }
    Ok(options)
}
