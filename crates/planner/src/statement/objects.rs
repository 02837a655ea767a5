//! `CREATE`, `ALTER` and `DROP` of what is not a table, read from their tokens.

use super::cursor::{Cursor, Source};
use super::parts::{inner, names, qualified_name};
use super::{AlterAction, Command, QualifiedName, RoleName};
use crate::sequences::SequenceOptions;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};
use std::borrow::Cow;
use tidepool_base::{Error, Result, SqlState};

/// `CASCADE`, or `RESTRICT`, which is the default.
pub fn cascades(cursor: &mut Cursor<'_>) -> bool {
    cursor.one_of(&["cascade", "restrict"]) == Some("cascade")
}

/// At `CREATE`. `None`, with nothing read, when it makes something else.
pub fn create(cursor: &mut Cursor<'_>) -> Result<Option<Command>> {
    if cursor.keywords(&["create", "schema"]) {
        return create_schema(cursor).map(Some);
    }
    let or_replace = cursor.are_keywords(&["create", "or", "replace", "view"]);
    if cursor.keywords(&["create", "view"]) || cursor.keywords(&["create", "or", "replace", "view"]) {
        return create_view(cursor, or_replace).map(Some);
    }
    if cursor.keywords(&["create", "sequence"]) {
        let if_not_exists = cursor.keywords(&["if", "not", "exists"]);
        let name = qualified_name(cursor)?;
        let options = Box::new(sequence_options(cursor, false)?);
        return Ok(Some(Command::CreateSequence { name, if_not_exists, options }));
    }
    Ok(None)
}

/// Past `DROP`. `None`, with nothing read, when it drops something else.
pub fn drop(cursor: &mut Cursor<'_>) -> Result<Option<Command>> {
    if cursor.keyword("schema") {
        let if_exists = cursor.keywords(&["if", "exists"]);
        let mut names = vec![cursor.ident()?];
        while cursor.token(&Token::Comma) {
            names.push(cursor.ident()?);
        }
        return Ok(Some(Command::DropSchemas { names, if_exists, cascade: cascades(cursor) }));
    }
    if cursor.keyword("view") {
        let if_exists = cursor.keywords(&["if", "exists"]);
        let names = names(cursor)?;
        return Ok(Some(Command::DropViews { names, if_exists, cascade: cascades(cursor) }));
    }
    if cursor.keyword("sequence") {
        let if_exists = cursor.keywords(&["if", "exists"]);
        let names = names(cursor)?;
        return Ok(Some(Command::DropSequences { names, if_exists, cascade: cascades(cursor) }));
    }
    Ok(None)
}

/// Past `ALTER`. `None`, with nothing read, when it alters something else.
pub fn alter(cursor: &mut Cursor<'_>) -> Result<Option<Command>> {
    if cursor.keyword("schema") {
        let name = cursor.ident()?;
        if !cursor.keywords(&["rename", "to"]) {
            cursor.skip_rest();
            return Ok(Some(Command::Unsupported(
                Error::unsupported("this form of ALTER SCHEMA is not supported").with_hint("Supported: RENAME TO."),
            )));
        }
        return Ok(Some(Command::AlterSchema { name, new_name: cursor.ident()? }));
    }
    if cursor.keyword("view") {
        let if_exists = cursor.keywords(&["if", "exists"]);
        let name = qualified_name(cursor)?;
        let Some(action) = naming(cursor)? else {
            cursor.skip_rest();
            return Ok(Some(Command::Unsupported(
                Error::unsupported("this form of ALTER VIEW is not supported")
                    .with_hint("Supported: RENAME TO, RENAME COLUMN and SET SCHEMA."),
            )));
        };
        return Ok(Some(Command::AlterView { name, if_exists, action }));
    }
    if cursor.keyword("sequence") {
        let if_exists = cursor.keywords(&["if", "exists"]);
        let name = qualified_name(cursor)?;
        return Ok(Some(match naming(cursor)? {
            Some(action) => Command::NameSequence { name, if_exists, action },
            None => {
                let options = Box::new(sequence_options(cursor, true)?);
                Command::AlterSequence { name, if_exists, options }
            }
        }));
    }
    Ok(None)
}

/// The options of `CREATE SEQUENCE` and `ALTER SEQUENCE`, in any order, each once.
pub fn sequence_options(cursor: &mut Cursor<'_>, alter: bool) -> Result<SequenceOptions> {
    fn once<T>(slot: &mut Option<T>, value: T) -> Result<()> {
        match slot.replace(value) {
            None => Ok(()),
            Some(_) => Err(Error::new(SqlState::SYNTAX_ERROR, "conflicting or redundant options")),
        }
    }
    fn number(cursor: &mut Cursor<'_>) -> Result<i64> {
        let error = cursor.error();
        let text = cursor.number_if().ok_or_else(|| cursor.error())?;
        text.parse().map_err(|_| error)
    }
    let mut options = SequenceOptions::default();
    while !matches!(cursor.peek(), None | Some(Token::RParen | Token::Comma)) && !cursor.is_keyword("set") {
        if cursor.keyword("as") {
            let data_type = crate::types::sql_type(&cursor.data_type()?)?;
            once(&mut options.data_type, data_type)?;
        } else if cursor.keyword("increment") {
            cursor.keyword("by");
            once(&mut options.increment, number(cursor)?)?;
        } else if cursor.keyword("minvalue") {
            once(&mut options.min, Some(number(cursor)?))?;
        } else if cursor.keyword("maxvalue") {
            once(&mut options.max, Some(number(cursor)?))?;
        } else if cursor.keywords(&["no", "minvalue"]) {
            once(&mut options.min, None)?;
        } else if cursor.keywords(&["no", "maxvalue"]) {
            once(&mut options.max, None)?;
        } else if cursor.keyword("start") {
            cursor.keyword("with");
            once(&mut options.start, number(cursor)?)?;
        } else if alter && cursor.keyword("restart") {
            let with = cursor.keyword("with");
            let value = match cursor.peek() {
                Some(Token::Number(..) | Token::Minus | Token::Plus) => Some(number(cursor)?),
                _ if with => return Err(cursor.error()),
                _ => None,
            };
            once(&mut options.restart, value)?;
        } else if cursor.keyword("cache") {
            once(&mut options.cache, number(cursor)?)?;
        } else if cursor.keyword("cycle") {
            once(&mut options.cycle, true)?;
        } else if cursor.keywords(&["no", "cycle"]) {
            once(&mut options.cycle, false)?;
        } else if cursor.keywords(&["owned", "by"]) {
            let owner = if cursor.keyword("none") {
                None
            } else {
                let mut parts = vec![cursor.ident()?];
                while cursor.token(&Token::Period) {
                    parts.push(cursor.ident()?);
                }
                let column = parts.pop().unwrap_or_default();
                let Some(name) = parts.pop() else {
                    return Err(Error::new(SqlState::SYNTAX_ERROR, "invalid OWNED BY option")
                        .with_hint("Specify OWNED BY table.column or OWNED BY NONE."));
                };
                Some((QualifiedName { schema: parts.pop(), name }, column))
            };
            once(&mut options.owned_by, owner)?;
        } else {
            return Err(cursor.error());
        }
    }
    Ok(options)
}

/// Puts the options of `AS IDENTITY (…)` into the one order in which sqlparser reads them. Those that begin with a sequence's name it does
/// not read.
pub fn order_identity<'a>(source: &Source<'_>, tokens: &'a [TokenWithSpan]) -> Result<Cow<'a, [TokenWithSpan]>> {
    let word = |at: usize, text: &str| {
        matches!(tokens.get(at).map(|token| &token.token), Some(Token::Word(word))
            if word.quote_style.is_none() && word.value.eq_ignore_ascii_case(text))
    };
    let opens = |at: usize| {
        word(at, "as")
            && word(at + 1, "identity")
            && matches!(tokens.get(at + 2).map(|token| &token.token), Some(Token::LParen))
            && !(word(at + 3, "sequence") && word(at + 4, "name"))
    };
    let Some(first) = (0..tokens.len()).find(|at| opens(*at)) else { return Ok(Cow::Borrowed(tokens)) };
    let mut ordered = tokens[..first].to_vec();
    let mut at = first;
    while at < tokens.len() {
        if !opens(at) {
            ordered.push(tokens[at].clone());
            at += 1;
            continue;
        }
        ordered.extend_from_slice(&tokens[at..at + 3]);
        let span = tokens[at + 2].span;
        let mut cursor = Cursor::new(source, &tokens[at + 3..]);
        let options = sequence_options(&mut cursor, false)?;
        at = tokens.len() - cursor.rest().len();
        let bound = |name: &str, bound: Option<Option<i64>>| match bound {
            None => String::new(),
            Some(None) => format!("NO {name} "),
            Some(Some(value)) => format!("{name} {value} "),
        };
        let number =
            |name: &str, value: Option<i64>| value.map_or_else(String::new, |value| format!("{name} {value} "));
        let text = [
            number("INCREMENT", options.increment),
            bound("MINVALUE", options.min),
            bound("MAXVALUE", options.max),
            number("START", options.start),
            number("CACHE", options.cache),
            options.cycle.map_or_else(String::new, |cycle| if cycle { "CYCLE" } else { "NO CYCLE" }.to_owned()),
        ]
        .concat();
        let written = super::tokens_of(&Source(&text))?;
        ordered.extend(written.into_iter().map(|token| TokenWithSpan::new(token.token, span)));
    }
    Ok(Cow::Owned(ordered))
}

/// `RENAME TO`, `RENAME COLUMN` and `SET SCHEMA`, which all relations share.
pub fn naming(cursor: &mut Cursor<'_>) -> Result<Option<AlterAction>> {
    if cursor.keywords(&["rename", "to"]) {
        return Ok(Some(AlterAction::Rename { name: cursor.ident()? }));
    }
    if cursor.keywords(&["set", "schema"]) {
        return Ok(Some(AlterAction::SetSchema { schema: cursor.ident()? }));
    }
    if cursor.is_keyword("rename") && !cursor.are_keywords(&["rename", "constraint"]) {
        cursor.advance();
        cursor.keyword("column");
        let column = cursor.ident()?;
        cursor.expect_keyword("to")?;
        return Ok(Some(AlterAction::RenameColumn { column, name: cursor.ident()? }));
    }
    Ok(None)
}

/// Past `CREATE VIEW`.
fn create_view(cursor: &mut Cursor<'_>, or_replace: bool) -> Result<Command> {
    let name = qualified_name(cursor)?;
    let mut columns = Vec::new();
    if cursor.token(&Token::LParen) {
        columns.push(cursor.ident()?);
        while cursor.token(&Token::Comma) {
            columns.push(cursor.ident()?);
        }
        cursor.expect_token(&Token::RParen)?;
    }
    if cursor.is_keyword("with") {
        cursor.skip_rest();
        return Ok(Command::Unsupported(Error::unsupported("options of views are not supported")));
    }
    cursor.expect_keyword("as")?;
    let is_word = |token: Option<&TokenWithSpan>, text: &str| {
        matches!(token.map(|token| &token.token), Some(Token::Word(word))
            if word.quote_style.is_none() && word.value.eq_ignore_ascii_case(text))
    };
    if let [.., check, option] = cursor.rest()
        && is_word(Some(check), "check")
        && is_word(Some(option), "option")
    {
        cursor.skip_rest();
        return Ok(Command::Unsupported(
            Error::unsupported("WITH CHECK OPTION is not supported").with_hint("Views cannot be written to."),
        ));
    }
    let query = inner(cursor)?;
    Ok(match query.command() {
        _ if query.locks_rows() => Command::Unsupported(
            Error::unsupported("views that lock rows are not supported")
                .with_hint("Lock the rows where the view is read."),
        ),
        Command::Query(_) => Command::CreateView { name, or_replace, columns, query },
        Command::Unsupported(error) => Command::Unsupported(error.clone()),
        _ => return Err(Error::new(SqlState::SYNTAX_ERROR, "a view is made of a query")),
    })
}

/// Past `CREATE SCHEMA`.
fn create_schema(cursor: &mut Cursor<'_>) -> Result<Command> {
    let if_not_exists = cursor.keywords(&["if", "not", "exists"]);
    let name = if cursor.is_keyword("authorization") { None } else { Some(cursor.ident()?) };
    let owner = if cursor.keyword("authorization") { Some(super::roles::role_name(cursor)?) } else { None };
    if !cursor.at_end() {
        cursor.skip_rest();
        return Ok(Command::Unsupported(
            Error::unsupported("CREATE SCHEMA with objects in it is not supported")
                .with_hint("Create the schema, then what is to be in it."),
        ));
    }
    match (name, owner) {
        (Some(name), owner) => Ok(Command::CreateSchema { name, if_not_exists, owner }),
        (None, Some(RoleName::Named(name))) => {
            Ok(Command::CreateSchema { name: name.clone(), if_not_exists, owner: Some(RoleName::Named(name)) })
        }
        _ => Err(cursor.error()),
    }
}
