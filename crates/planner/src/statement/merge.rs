//! What sqlparser does not know of `MERGE`, put into words that it knows: names that nobody can write stand for
//! `DO NOTHING`, `DEFAULT VALUES` and `OVERRIDING … VALUE`.

use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};
use std::borrow::Cow;

/// What an action's only column is called.
pub const NOTHING: &str = "\u{1}nothing";
pub const DEFAULT_VALUES: &str = "\u{1}default";

/// What the condition after an action's values is called.
pub const SYSTEM_VALUE: &str = "\u{1}system";
pub const USER_VALUE: &str = "\u{1}user";

/// Whether an expression is such a name.
pub fn is_mark(expr: &ast::Expr, mark: &str) -> bool {
    matches!(expr, ast::Expr::Identifier(name) if name.value == mark)
}

fn is_word(token: Option<&TokenWithSpan>, text: &str) -> bool {
    matches!(token.map(|token| &token.token),
        Some(Token::Word(word)) if word.quote_style.is_none() && word.value.eq_ignore_ascii_case(text))
}

/// The tokens of a statement, those of a `MERGE` put into words that sqlparser knows.
pub fn spelled(tokens: Cow<'_, [TokenWithSpan]>) -> Cow<'_, [TokenWithSpan]> {
    let is_merge = is_word(tokens.first(), "merge")
        || is_word(tokens.first(), "with") && tokens.iter().any(|token| is_word(Some(token), "merge"));
    if !is_merge {
        return tokens;
    }
    let mut out: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    let mut matched = true;
    let mut overriding = None;
    let mut at = 0;
    while at < tokens.len() {
        let token = &tokens[at];
        let word = |offset: usize, text: &str| is_word(tokens.get(at + offset), text);
        let mut add = |new: &[Token]| out.extend(new.iter().map(|new| TokenWithSpan::new(new.clone(), token.span)));
        let key = Token::make_keyword;
        let name = |name: &str| Token::make_word(name, Some('"'));
        if word(0, "when") {
            matched = !word(1, "not") || word(3, "by") && word(4, "source");
            overriding = None;
        }
        if word(0, "do") && word(1, "nothing") {
            match matched {
                true => add(&[key("UPDATE"), key("SET"), name(NOTHING), Token::Eq, key("NULL")]),
                false => add(&one_value(NOTHING)),
            }
            at += 2;
        } else if word(0, "insert") && word(1, "default") && word(2, "values") {
            add(&one_value(DEFAULT_VALUES));
            at += 3;
        } else if word(0, "overriding") && word(2, "value") && (word(1, "system") || word(1, "user")) {
            overriding = Some(if word(1, "system") { SYSTEM_VALUE } else { USER_VALUE });
            at += 3;
        } else if let Some(mark) = overriding.filter(|_| word(0, "values"))
            && let Some(end) = closing(&tokens, at + 1)
        {
            out.extend_from_slice(&tokens[at..=end]);
            let marked = [key("WHERE"), name(mark)];
            out.extend(marked.into_iter().map(|new| TokenWithSpan::new(new, token.span)));
            overriding = None;
            at = end + 1;
        } else {
            out.push(token.clone());
            at += 1;
        }
    }
    Cow::Owned(out)
}

/// `INSERT (mark) VALUES (NULL)`
fn one_value(mark: &str) -> [Token; 8] {
    let key = Token::make_keyword;
    let column = Token::make_word(mark, Some('"'));
    let (open, close) = (Token::LParen, Token::RParen);
    [key("INSERT"), open.clone(), column, close.clone(), key("VALUES"), open, key("NULL"), close]
}

/// Where the bracket closes that opens at `open`.
fn closing(tokens: &[TokenWithSpan], open: usize) -> Option<usize> {
    let mut depth = 0_i64;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.token {
            Token::LParen => depth += 1,
            Token::RParen => depth -= 1,
            _ => {}
        }
        if depth <= 0 {
            return (token.token == Token::RParen).then_some(at);
        }
    }
    None
}
