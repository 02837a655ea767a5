//! Where in a statement's text the name stands that an error is about, for the position that clients draw as `LINE 1: … ^`.
//!
//! Names are resolved in plans, which do not say where in the text a name was. What PostgreSQL reports is nearly always the first use of
//! the name in its role (a relation, a column, a function, a type), so this looks for that; where it finds none there is no position.

use super::cursor::Source;
use super::{Command, tokens_of};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};
use tidepool_base::{Error, SqlState};

/// One-based character offset into `text` of the name that `error` is about.
pub fn of_name(text: &str, command: &Command, error: &Error) -> Option<u32> {
    let sought = Sought::of(error)?;
    // As in PostgreSQL: of what a utility command names, only types have a position.
    if !matches!(sought, Sought::Type(_)) && !is_planned(command) {
        return None;
    }
    let source = Source(text);
    // A text this command was read from can be read again.
    let tokens = tokens_of(&source).ok()?;
    let tokens: Vec<TokenWithSpan> =
        tokens.into_iter().filter(|token| !matches!(token.token, Token::Whitespace(_) | Token::EOF)).collect();
    let at = sought.find(&Words(&tokens))?;
    Some(source.position(tokens[at].span.start))
}

fn is_planned(command: &Command) -> bool {
    matches!(
        command,
        Command::Query(_)
            | Command::Locking { .. }
            | Command::Insert(..)
            | Command::Update { .. }
            | Command::Delete { .. }
            | Command::MergeInto { .. }
            | Command::CreateTable { .. }
            | Command::CreateView { .. }
            | Command::Explain { .. }
            | Command::Declare { .. }
            | Command::Prepare { .. }
    )
}

/// What an error is about. Names are as the error's message has them: a relation's and a column's may be qualified.
#[derive(Debug, PartialEq, Eq)]
enum Sought<'e> {
    Column(&'e str),
    Relation(&'e str),
    /// A relation's name or alias that columns are qualified by.
    Qualifier(&'e str),
    Function(&'e str),
    Operator(&'e str),
    Type(&'e str),
    Window(&'e str),
}

impl<'e> Sought<'e> {
    fn of(error: &'e Error) -> Option<Sought<'e>> {
        let message = error.message();
        let quoted = |before: &str| message.strip_prefix(before)?.strip_prefix('"')?.split('"').next();
        match error.code() {
            SqlState::UNDEFINED_COLUMN => quoted("column ")
                .or_else(|| message.strip_prefix("column ")?.strip_suffix(" does not exist"))
                .map(Sought::Column),
            SqlState::AMBIGUOUS_COLUMN => quoted("column reference ").map(Sought::Column),
            SqlState::GROUPING_ERROR => {
                quoted("column ").or_else(|| quoted("subquery uses ungrouped column ")).map(Sought::Column)
            }
            SqlState::UNDEFINED_TABLE => quoted("relation ").map(Sought::Relation).or_else(|| {
                let before =
                    ["missing FROM-clause entry for table ", "invalid reference to FROM-clause entry for table "];
                before.into_iter().find_map(quoted).map(Sought::Qualifier)
            }),
            SqlState::UNDEFINED_FUNCTION => match message.strip_prefix("operator does not exist: ") {
                Some(call) => call.split(' ').find(|word| is_operator(word)).map(Sought::Operator),
                None => {
                    let call = message.strip_prefix("function ")?.strip_suffix(" does not exist")?;
                    call.split('(').next().map(Sought::Function)
                }
            },
            SqlState::UNDEFINED_OBJECT => {
                quoted("type ").map(Sought::Type).or_else(|| quoted("window ").map(Sought::Window))
            }
            _ => None,
        }
    }

    /// Which of the tokens it begins at.
    fn find(&self, words: &Words<'_>) -> Option<usize> {
        match *self {
            Sought::Column(name) => {
                let is_column = |at: &usize| !words.is_at(*at + 1, &Token::LParen);
                let is_free = |at: &usize| !words.names_relation(*at) && !words.follows(*at, Keyword::AS);
                let found = words.paths(name).filter(is_column);
                let found = found.clone().find(is_free).or_else(|| found.clone().next());
                // A message may leave out what the text qualifies the column by, and the other way round.
                let bare = name.rsplit('.').next().unwrap_or(name);
                found
                    .or_else(|| words.paths(bare).filter(is_column).find(is_free))
                    .or_else(|| words.ends(bare).find(|at| !words.is_at(*at + 1, &Token::LParen)))
                    .map(|at| words.beginning(at))
            }
            Sought::Relation(name) => {
                let among_others = |at: &usize| {
                    at.checked_sub(1)
                        .is_some_and(|before| words.is_at(before, &Token::Comma) || words.is_at(before, &Token::LParen))
                };
                let found = words.paths(name);
                found.clone().find(|at| words.names_relation(*at)).or_else(|| found.clone().find(among_others))
            }
            Sought::Qualifier(name) => {
                words.any(name).find(|at| words.is_at(at + 1, &Token::Period)).map(|at| words.beginning(at))
            }
            Sought::Function(name) => {
                // A message may leave out what the text qualifies the function by.
                let last = name.rsplit('.').next().unwrap_or(name);
                words.ends(last).find(|at| words.is_at(at + 1, &Token::LParen)).map(|at| words.beginning(at))
            }
            Sought::Operator(name) => {
                let mut found = (0..words.0.len()).filter(|at| words.0[*at].token.to_string() == name);
                // Which of several it is, only their operands' types tell.
                found.next().filter(|_| found.next().is_none())
            }
            Sought::Type(name) => {
                let is_cast = |at: &usize| {
                    words.follows(*at, Keyword::AS)
                        || at.checked_sub(1).is_some_and(|before| words.is_at(before, &Token::DoubleColon))
                };
                let found = words.paths(name);
                found.clone().find(is_cast).or_else(|| found.clone().find(|at| words.follows_word(*at)))
            }
            Sought::Window(name) => words.paths(name).find(|at| {
                words.follows(*at, Keyword::OVER)
                    || at.checked_sub(1).is_some_and(|before| words.is_at(before, &Token::LParen))
            }),
        }
    }
}

fn is_operator(word: &str) -> bool {
    word.chars().all(|c| "+-*/<>=~!@#%^&|`?".contains(c)) && !word.is_empty()
}

/// A statement's tokens without blanks and comments.
struct Words<'t>(&'t [TokenWithSpan]);

impl<'t> Words<'t> {
    fn is_at(&self, at: usize, token: &Token) -> bool {
        self.0.get(at).is_some_and(|found| found.token == *token)
    }

    /// Whether the token at `at` is this name as SQL reads it: folded unless it is quoted.
    fn is_name(&self, at: usize, name: &str) -> bool {
        match self.0.get(at).map(|found| &found.token) {
            Some(Token::Word(word)) if word.quote_style.is_none() => {
                word.value.chars().flat_map(char::to_lowercase).eq(name.chars())
            }
            Some(Token::Word(word)) => word.value == name,
            _ => false,
        }
    }

    fn any(&self, name: &'t str) -> impl Iterator<Item = usize> + Clone {
        (0..self.0.len()).filter(move |at| self.is_name(*at, name))
    }

    /// Where a whole name begins whose parts are those of `name`, which dots part.
    fn paths(&self, name: &'t str) -> impl Iterator<Item = usize> + Clone {
        let parts: Vec<&str> = name.split('.').collect();
        (0..self.0.len()).filter(move |&at| {
            let is_whole = at == 0 || !self.is_at(at - 1, &Token::Period);
            let after = at + 2 * parts.len() - 1;
            is_whole
                && !self.is_at(after, &Token::Period)
                && parts.iter().enumerate().all(|(index, part)| {
                    self.is_name(at + 2 * index, part) && (index == 0 || self.is_at(at + 2 * index - 1, &Token::Period))
                })
        })
    }

    /// Where a name's last part stands that is `name`.
    fn ends(&self, name: &'t str) -> impl Iterator<Item = usize> + Clone {
        self.any(name).filter(|at| !self.is_at(at + 1, &Token::Period))
    }

    /// Where the whole name begins that the token at `at` is a part of.
    fn beginning(&self, at: usize) -> usize {
        let mut at = at;
        while at >= 2 && self.is_at(at - 1, &Token::Period) && matches!(self.0[at - 2].token, Token::Word(_)) {
            at -= 2;
        }
        at
    }

    fn keyword_before(&self, at: usize) -> Option<Keyword> {
        match &self.0[at.checked_sub(1)?].token {
            Token::Word(word) if word.quote_style.is_none() => Some(word.keyword),
            _ => None,
        }
    }

    fn follows(&self, at: usize, keyword: Keyword) -> bool {
        self.keyword_before(at) == Some(keyword)
    }

    fn follows_word(&self, at: usize) -> bool {
        at.checked_sub(1).is_some_and(|before| matches!(self.0[before].token, Token::Word(_)))
    }

    fn names_relation(&self, at: usize) -> bool {
        use Keyword::{FROM, INTO, JOIN, LATERAL, ONLY, TABLE, UPDATE, USING};
        let names = [FROM, INTO, JOIN, LATERAL, ONLY, TABLE, UPDATE, USING];
        self.keyword_before(at).is_some_and(|keyword| names.contains(&keyword))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statement::parse;

    /// The name that is found, as the text has it from there on.
    fn found(sql: &'static str, code: SqlState, message: &str) -> Option<&'static str> {
        let statement = parse(sql).unwrap().remove(0);
        let position = of_name(sql, statement.command(), &Error::new(code, message))?;
        let start = sql.char_indices().nth(position as usize - 1).unwrap().0;
        Some(&sql[start..])
    }

    #[test]
    fn columns_are_found_where_they_are_used() {
        let missing = |sql, message| found(sql, SqlState::UNDEFINED_COLUMN, message);
        assert_eq!(missing("SELECT a AS x, é, X FROM x", "column \"x\" does not exist"), Some("X FROM x"));
        assert_eq!(missing("SELECT x() FROM t WHERE t.\"x\" = 1", "column t.x does not exist"), Some("t.\"x\" = 1"));
        assert_eq!(missing("SELECT s.t.x FROM s.t", "column t.x does not exist"), Some("s.t.x FROM s.t"));
        assert_eq!(
            missing("INSERT INTO x (a, x) VALUES (1, 2)", "column \"x\" of relation \"x\" does not exist"),
            Some("x) VALUES (1, 2)")
        );
        assert_eq!(missing("SELECT 'x' -- x\n FROM t", "column \"x\" does not exist"), None);
        assert_eq!(missing("ALTER TABLE t DROP COLUMN x", "column \"x\" of relation \"t\" does not exist"), None);
        let ambiguous = "column reference \"a\" is ambiguous";
        assert_eq!(found("SELECT t.a, a FROM t, u", SqlState::AMBIGUOUS_COLUMN, ambiguous), Some("a FROM t, u"));
        let ungrouped = "column \"t.b\" must appear in the GROUP BY clause or be used in an aggregate function";
        assert_eq!(
            found("SELECT a, b FROM t GROUP BY a", SqlState::GROUPING_ERROR, ungrouped),
            Some("b FROM t GROUP BY a")
        );
    }

    #[test]
    fn relations_are_found_where_they_are_named() {
        let missing = |sql, message| found(sql, SqlState::UNDEFINED_TABLE, message);
        assert_eq!(missing("SELECT t FROM a, t", "relation \"t\" does not exist"), Some("t"));
        assert_eq!(missing("SELECT t.a FROM s.t", "relation \"s.t\" does not exist"), Some("s.t"));
        assert_eq!(missing("DELETE FROM t", "relation \"t\" does not exist"), Some("t"));
        assert_eq!(missing("DROP TABLE t", "relation \"t\" does not exist"), None);
        let entry = "missing FROM-clause entry for table \"u\"";
        assert_eq!(missing("SELECT u, u.a FROM t", entry), Some("u.a FROM t"));
    }

    #[test]
    fn functions_operators_types_and_windows_are_found() {
        let function = |sql, message| found(sql, SqlState::UNDEFINED_FUNCTION, message);
        assert_eq!(
            function("SELECT lowr, LOWR(a) FROM t", "function lowr(text) does not exist"),
            Some("LOWR(a) FROM t")
        );
        assert_eq!(function("SELECT pg_catalog.lowr(1)", "function lowr does not exist"), Some("pg_catalog.lowr(1)"));
        assert_eq!(function("SELECT s.lowr(1)", "function s.lowr does not exist"), Some("s.lowr(1)"));
        let operator = "operator does not exist: text = integer";
        assert_eq!(function("SELECT a = 1 FROM t", operator), Some("= 1 FROM t"));
        assert_eq!(function("SELECT a = 1 FROM t WHERE b = 2", operator), None, "which of the two it is, is not known");
        let object = |sql, message| found(sql, SqlState::UNDEFINED_OBJECT, message);
        assert_eq!(object("SELECT a::intt FROM t", "type \"intt\" does not exist"), Some("intt FROM t"));
        assert_eq!(object("CREATE TABLE t (a intt)", "type \"intt\" does not exist"), Some("intt)"));
        assert_eq!(object("SELECT sum(a) OVER w FROM t", "window \"w\" does not exist"), Some("w FROM t"));
    }
}
