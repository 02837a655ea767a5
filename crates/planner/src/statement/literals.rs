//! Text literals as PostgreSQL reads them: those on following lines are parts of the first, and none has a zero byte. And
//! names, of which only so much counts as names are long.

use super::cursor::Source;
use super::dialect::Postgres;
use crate::ddl::NAME_LEN_MAX;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan, Tokenizer, Whitespace, Word};
use std::iter::Peekable;
use std::str::Chars;
use tidepool_base::{Error, Result, SqlState};

/// What lies between two tokens.
#[derive(Clone, Copy, PartialEq)]
enum Gap {
    /// Nothing, or blanks of one line.
    Blank,
    /// Blanks and `--` comments over lines.
    Lines,
    /// A `/* comment */`, which joins nothing.
    Comment,
}

/// The tokens without what lies between them, literals joined. 42601 for two literals that are not on lines of their own, 22021 for a zero byte.
pub fn joined(source: &Source<'_>, tokens: Vec<TokenWithSpan>) -> Result<Vec<TokenWithSpan>> {
    let mut kept: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    let mut gap = Gap::Blank;
    for token in tokens {
        match &token.token {
            Token::EOF => continue,
            Token::Whitespace(space) => {
                gap = match (space, gap) {
                    (Whitespace::MultiLineComment(_), _) => Gap::Comment,
                    (Whitespace::Newline | Whitespace::SingleLineComment { .. }, Gap::Blank) => Gap::Lines,
                    (_, gap) => gap,
                };
                continue;
            }
            _ => {}
        }
        let between = std::mem::replace(&mut gap, Gap::Blank);
        if let Token::SingleQuotedString(text) = &token.token
            && let Some(last) = kept.last_mut()
            && let Token::SingleQuotedString(first)
            | Token::EscapedStringLiteral(first)
            | Token::UnicodeStringLiteral(first)
            | Token::NationalStringLiteral(first) = &last.token
        {
            if between != Gap::Lines {
                return Err(source.syntax_error(&token));
            }
            let whole = match &last.token {
                Token::EscapedStringLiteral(_) => {
                    Token::EscapedStringLiteral(format!("{first}{}", escaped(source, &token, text)?))
                }
                Token::UnicodeStringLiteral(_) => Token::UnicodeStringLiteral(format!("{first}{text}")),
                Token::NationalStringLiteral(_) => Token::NationalStringLiteral(format!("{first}{text}")),
                _ => Token::SingleQuotedString(format!("{first}{text}")),
            };
            last.token = whole;
            last.span.end = token.span.end;
            continue;
        }
        if let Token::EscapedStringLiteral(text) | Token::UnicodeStringLiteral(text) = &token.token
            && text.contains('\0')
        {
            return Err(Error::new(SqlState::SYNTAX_ERROR, "invalid Unicode escape value")
                .with_position(source.position(token.span.start)));
        }
        kept.push(match token.token {
            Token::Word(word) if word.value.len() > NAME_LEN_MAX => {
                let value = shortened(&word.value).to_owned();
                TokenWithSpan { token: Token::Word(Word { value, ..word }), span: token.span }
            }
            token_kind => TokenWithSpan { token: token_kind, span: token.span },
        });
    }
    Ok(kept)
}

/// A name as far as names are long, cut between two characters.
fn shortened(name: &str) -> &str {
    let mut end = NAME_LEN_MAX;
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

/// The text of a literal that goes on one with escapes.
fn escaped(source: &Source<'_>, token: &TokenWithSpan, text: &str) -> Result<String> {
    if !text.contains('\\') {
        return Ok(text.to_owned());
    }
    let literal = format!("E{}", source.text(token));
    let position = source.position(token.span.start);
    let tokens = Tokenizer::new(&Postgres::for_words(0), &literal)
        .tokenize()
        .map_err(|_| escape_error(&literal).with_position(position))?;
    match tokens.into_iter().next() {
        Some(Token::EscapedStringLiteral(text)) => Ok(text),
        _ => Err(source.syntax_error(token)),
    }
}

/// What is wrong with the literal with escapes at the start of `text`, which could not be read.
pub fn escape_error(text: &str) -> Error {
    let unterminated = || Error::new(SqlState::SYNTAX_ERROR, "unterminated quoted string");
    let Some((_, body)) = text.split_once('\'') else { return unterminated() };
    let mut characters = body.chars().peekable();
    let number = |first: Option<char>, radix: u32, digits: usize, rest: &mut Peekable<Chars<'_>>| {
        let mut value = first.and_then(|digit| digit.to_digit(radix));
        for _ in usize::from(first.is_some())..digits {
            let Some(digit) = rest.peek().and_then(|digit| digit.to_digit(radix)) else { break };
            value = Some(value.unwrap_or(0) * radix + digit);
            rest.next();
        }
        value
    };
    while let Some(character) = characters.next() {
        match character {
            '\'' if characters.peek() == Some(&'\'') => {
                characters.next();
            }
            '\'' => break,
            '\\' => match characters.next() {
                None => return unterminated(),
                Some('x') => match number(None, 16, 2, &mut characters) {
                    Some(0) => return zero_byte(),
                    Some(128..) => return beyond_ascii(),
                    _ => {}
                },
                Some(first @ '0'..='7') => match number(Some(first), 8, 3, &mut characters).map(|byte| byte & 0xff) {
                    Some(0) => return zero_byte(),
                    Some(128..) => return beyond_ascii(),
                    _ => {}
                },
                Some(escape @ ('u' | 'U')) => {
                    let value = number(None, 16, if escape == 'u' { 4 } else { 8 }, &mut characters);
                    if value.and_then(char::from_u32).is_none_or(|character| character == '\0') {
                        return Error::new(SqlState::SYNTAX_ERROR, "invalid Unicode escape value");
                    }
                }
                _ => {}
            },
            _ => {}
        }
    }
    unterminated()
}

fn zero_byte() -> Error {
    let message = "invalid byte sequence for encoding \"UTF8\": 0x00";
    Error::new(SqlState::CHARACTER_NOT_IN_REPERTOIRE, message)
}

fn beyond_ascii() -> Error {
    Error::unsupported("escapes for bytes beyond ASCII are not supported in string literals")
        .with_hint("Write the character itself, or \\u and its number.")
}
