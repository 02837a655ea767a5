//! A statement's tokens read one after another, with PostgreSQL's words for what went wrong.

use super::dialect::Postgres;
use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::{Location, Token, TokenWithSpan};
use tidepool_base::{Error, Result, SqlState};

/// The client's whole text.
pub struct Source<'a>(pub &'a str);

impl<'a> Source<'a> {
    /// One-based character offset of a location.
    pub fn position(&self, location: Location) -> u32 {
        self.walk().seek(location).1 + 1
    }

    /// The text of a token as it was written.
    pub fn text(&self, token: &TokenWithSpan) -> &'a str {
        let mut walk = self.walk();
        let (start, _) = walk.seek(token.span.start);
        let (end, _) = walk.seek(token.span.end);
        &self.0[start..end.max(start)]
    }

    /// The text from a location on.
    pub fn from(&self, location: Location) -> &'a str {
        &self.0[self.walk().seek(location).0..]
    }

    pub fn syntax_error(&self, token: &TokenWithSpan) -> Error {
        if token.token == Token::EOF {
            return self.syntax_error_at_end();
        }
        Error::new(SqlState::SYNTAX_ERROR, format!("syntax error at or near \"{}\"", self.text(token)))
            .with_position(self.position(token.span.start))
    }

    pub fn syntax_error_at_end(&self) -> Error {
        let chars = u32::try_from(self.0.chars().count()).unwrap_or(u32::MAX - 1);
        Error::new(SqlState::SYNTAX_ERROR, "syntax error at end of input").with_position(chars + 1)
    }

    pub fn walk(&self) -> Walk<'a> {
        Walk { text: self.0, byte: 0, chars: 0, line: 1, column: 1 }
    }
}

/// Turns ascending locations (line and column, both in characters) into offsets, reading the text once.
pub struct Walk<'a> {
    text: &'a str,
    byte: usize,
    chars: u32,
    line: u64,
    column: u64,
}

impl Walk<'_> {
    /// (byte offset, characters before).
    pub fn seek(&mut self, location: Location) -> (usize, u32) {
        for c in self.text[self.byte..].chars() {
            if (self.line, self.column) >= (location.line, location.column) {
                break;
            }
            self.byte += c.len_utf8();
            self.chars = self.chars.saturating_add(1);
            if c == '\n' {
                self.line += 1;
                self.column = 1;
            } else {
                self.column += 1;
            }
        }
        (self.byte, self.chars)
    }
}

pub struct Cursor<'a> {
    pub source: &'a Source<'a>,
    tokens: &'a [TokenWithSpan],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(source: &'a Source<'a>, tokens: &'a [TokenWithSpan]) -> Cursor<'a> {
        Cursor { source, tokens, at: 0 }
    }

    pub fn peek(&self) -> Option<&'a Token> {
        self.tokens.get(self.at).map(|token| &token.token)
    }

    /// The token after the next.
    pub fn second(&self) -> Option<&'a Token> {
        self.tokens.get(self.at + 1).map(|token| &token.token)
    }

    /// The tokens not yet read.
    pub fn rest(&self) -> &'a [TokenWithSpan] {
        &self.tokens[self.at..]
    }

    pub fn skip_rest(&mut self) {
        self.at = self.tokens.len();
    }

    pub fn advance(&mut self) {
        self.at += 1;
    }

    /// The syntax error at the next token.
    pub fn error(&self) -> Error {
        match self.tokens.get(self.at) {
            Some(token) => self.source.syntax_error(token),
            None => self.source.syntax_error_at_end(),
        }
    }

    fn is_word(&self, offset: usize, word: &str) -> bool {
        matches!(self.tokens.get(self.at + offset).map(|token| &token.token),
            Some(Token::Word(found)) if found.quote_style.is_none() && found.value.eq_ignore_ascii_case(word))
    }

    pub fn is_keyword(&self, word: &str) -> bool {
        self.is_word(0, word)
    }

    /// Whether the next tokens are these words.
    pub fn are_keywords(&self, words: &[&str]) -> bool {
        words.iter().enumerate().all(|(offset, word)| self.is_word(offset, word))
    }

    /// Reads the word if it is next.
    pub fn keyword(&mut self, word: &str) -> bool {
        let found = self.is_word(0, word);
        self.at += usize::from(found);
        found
    }

    /// Reads all the words if they are next.
    pub fn keywords(&mut self, words: &[&str]) -> bool {
        let found = self.are_keywords(words);
        if found {
            self.at += words.len();
        }
        found
    }

    /// Reads whichever of the words is next.
    pub fn one_of(&mut self, words: &[&'static str]) -> Option<&'static str> {
        words.iter().copied().find(|word| self.keyword(word))
    }

    pub fn expect_keyword(&mut self, word: &str) -> Result<()> {
        if self.keyword(word) { Ok(()) } else { Err(self.error()) }
    }

    pub fn token(&mut self, token: &Token) -> bool {
        let found = self.peek() == Some(token);
        self.at += usize::from(found);
        found
    }

    pub fn expect_token(&mut self, token: &Token) -> Result<()> {
        if self.token(token) { Ok(()) } else { Err(self.error()) }
    }

    pub fn at_end(&self) -> bool {
        self.at >= self.tokens.len()
    }

    pub fn expect_end(&self) -> Result<()> {
        if self.at_end() { Ok(()) } else { Err(self.error()) }
    }

    /// An identifier, folded to lower case unless quoted.
    pub fn ident(&mut self) -> Result<String> {
        match self.peek() {
            Some(Token::Word(word)) => {
                self.at += 1;
                Ok(match word.quote_style {
                    Some(_) => word.value.clone(),
                    None => word.value.to_lowercase(),
                })
            }
            _ => Err(self.error()),
        }
    }

    pub fn string_if(&mut self) -> Option<String> {
        let text = match self.peek()? {
            Token::SingleQuotedString(text)
            | Token::EscapedStringLiteral(text)
            | Token::UnicodeStringLiteral(text)
            | Token::NationalStringLiteral(text) => text.clone(),
            Token::DollarQuotedString(text) => text.value.clone(),
            _ => return None,
        };
        self.at += 1;
        Some(text)
    }

    pub fn string(&mut self) -> Result<String> {
        self.string_if().ok_or_else(|| self.error())
    }

    /// A number with its sign, as written.
    pub fn number_if(&mut self) -> Option<String> {
        let (sign, offset) = match self.peek()? {
            Token::Minus => ("-", 1),
            Token::Plus => ("", 1),
            _ => ("", 0),
        };
        match self.tokens.get(self.at + offset).map(|token| &token.token) {
            Some(Token::Number(number, _)) => {
                self.at += offset + 1;
                Some(format!("{sign}{number}"))
            }
            _ => None,
        }
    }

    /// One expression, read by sqlparser; stops where it ends.
    pub fn expression(&mut self) -> Result<ast::Expr> {
        self.with_parser(|parser| parser.parse_expr())
    }

    pub fn data_type(&mut self) -> Result<ast::DataType> {
        self.with_parser(|parser| parser.parse_data_type())
    }

    pub fn column_def(&mut self) -> Result<ast::ColumnDef> {
        self.with_parser(|parser| parser.parse_column_def())
    }

    fn with_parser<T>(
        &mut self,
        read: impl FnOnce(&mut Parser<'_>) -> Result<T, datafusion::sql::sqlparser::parser::ParserError>,
    ) -> Result<T> {
        let rest = self.rest();
        let dialect = Postgres::for_words(rest.len());
        let mut parser = Parser::new(&dialect).with_tokens_with_locations(rest.to_vec());
        let value = read(&mut parser).map_err(|error| super::parser_error(self.source, rest, error))?;
        let next = parser.peek_token();
        self.at = match next.token {
            Token::EOF => self.tokens.len(),
            _ => self.at + rest.iter().position(|token| token.span.start == next.span.start).unwrap_or(rest.len()),
        };
        Ok(value)
    }
}
