//! `WHERE CURRENT OF cursor`, which sqlparser does not know: spelled as a condition that is a name.

use super::cursor::{Cursor, Source};
use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};
use std::borrow::Cow;
use tidepool_base::Result;

const MARK: &str = "\u{1}current of ";

/// Spells it so that sqlparser reads it.
pub fn spell<'a>(source: &Source<'_>, tokens: Cow<'a, [TokenWithSpan]>) -> Result<Cow<'a, [TokenWithSpan]>> {
    let cursor = Cursor::new(source, &tokens);
    if !["update", "delete", "with"].iter().any(|word| cursor.is_keyword(word)) {
        return Ok(tokens);
    }
    let words = ["where", "current", "of"];
    let Some(at) = (0..tokens.len()).find(|at| Cursor::new(source, &tokens[*at..]).are_keywords(&words)) else {
        return Ok(tokens);
    };
    let mut cursor = Cursor::new(source, &tokens[at + words.len()..]);
    let name = Token::make_word(&format!("{MARK}{}", cursor.ident()?), Some('"'));
    let name = TokenWithSpan::new(name, tokens[at].span);
    Ok(Cow::Owned([&tokens[..=at], &[name], cursor.rest()].concat()))
}

/// The cursor that a condition names.
pub fn cursor_of(condition: Option<&ast::Expr>) -> Option<&str> {
    match condition {
        Some(ast::Expr::Identifier(name)) => name.value.strip_prefix(MARK),
        _ => None,
    }
}
