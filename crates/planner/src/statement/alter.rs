//! The actions of `ALTER TABLE`, read from their tokens.

use super::AlterAction;
use super::cursor::Cursor;
use super::objects::{cascades, naming, sequence_options};
use super::parts::qualified_name;
use crate::references::{ForeignKeyClause, deferrability, match_partial};
use crate::sequences::SequenceOptions;
use datafusion::sql::sqlparser::tokenizer::Token;
use tidepool_base::{Error, Result};
use tidepool_table::{Identity, ReferentialAction};

/// One action; the inner error is for one that is known and not to be had.
pub fn action(cursor: &mut Cursor<'_>) -> Result<Result<AlterAction>> {
    if cursor.keywords(&["rename", "constraint"]) {
        let name = cursor.ident()?;
        cursor.expect_keyword("to")?;
        return Ok(Ok(AlterAction::RenameConstraint { name, new_name: cursor.ident()? }));
    }
    if cursor.keywords(&["set", "tablespace"]) {
        return Ok(Ok(AlterAction::SetTablespace { column: None, tablespace: cursor.ident()? }));
    }
    if matches!(cursor.second(), Some(Token::LParen)) && (cursor.is_keyword("set") || cursor.is_keyword("reset")) {
        return Ok(Ok(AlterAction::SetParameters { parameters: parameters(cursor)? }));
    }
    if let Some(action) = naming(cursor)? {
        return Ok(Ok(action));
    }
    if cursor.keywords(&["attach", "partition"]) {
        let name = qualified_name(cursor)?;
        return Ok(Ok(AlterAction::AttachPartition { name, bound: super::partitions::bound(cursor)? }));
    }
    if cursor.keywords(&["detach", "partition"]) {
        let name = qualified_name(cursor)?;
        if cursor.is_keyword("concurrently") || cursor.is_keyword("finalize") {
            return Ok(Err(Error::unsupported("DETACH PARTITION waits for writers; it cannot be done concurrently")));
        }
        return Ok(Ok(AlterAction::DetachPartition { name }));
    }
    if cursor.keyword("add") {
        return add(cursor);
    }
    if cursor.keywords(&["validate", "constraint"]) {
        return Ok(Ok(AlterAction::ValidateConstraint { name: cursor.ident()? }));
    }
    if cursor.keyword("drop") {
        if cursor.keyword("constraint") {
            let if_exists = cursor.keywords(&["if", "exists"]);
            let name = cursor.ident()?;
            return Ok(Ok(AlterAction::DropConstraint { name, if_exists, cascade: cascades(cursor) }));
        }
        cursor.keyword("column");
        let if_exists = cursor.keywords(&["if", "exists"]);
        let column = cursor.ident()?;
        return Ok(Ok(AlterAction::DropColumn { column, if_exists, cascade: cascades(cursor) }));
    }
    if cursor.are_keywords(&["alter", "constraint"])
        && matches!(cursor.rest().get(2).map(|token| &token.token), Some(Token::Word(_)))
    {
        cursor.keywords(&["alter", "constraint"]);
        return alter_constraint(cursor);
    }
    if cursor.keyword("alter") {
        cursor.keyword("column");
        let column = cursor.ident()?;
        return of_column(cursor, column);
    }
    Ok(Err(Error::unsupported("this form of ALTER TABLE is not supported").with_hint(
        "Supported: ADD and DROP COLUMN, ALTER COLUMN, ADD and DROP CONSTRAINT, RENAME, ATTACH and DETACH PARTITION, SET SCHEMA, SET TABLESPACE, SET (…) and RESET (…).",
    )))
}

/// `SET (name = value, …)` or `RESET (name, …)`.
fn parameters(cursor: &mut Cursor<'_>) -> Result<Vec<(String, Option<String>)>> {
    let resets = cursor.is_keyword("reset");
    cursor.advance();
    cursor.expect_token(&Token::LParen)?;
    let mut parameters = Vec::new();
    loop {
        let name = cursor.ident()?;
        let value = if resets {
            None
        } else if cursor.token(&Token::Eq) {
            Some(match cursor.number_if() {
                Some(number) => number,
                None => cursor.string_if().map_or_else(|| cursor.ident(), Ok)?,
            })
        } else {
            Some("true".to_owned())
        };
        parameters.push((name, value));
        if !cursor.token(&Token::Comma) {
            break;
        }
    }
    cursor.expect_token(&Token::RParen)?;
    Ok(parameters)
}

/// Past `ADD`.
fn add(cursor: &mut Cursor<'_>) -> Result<Result<AlterAction>> {
    let named = cursor.keyword("constraint");
    let name = if named { Some(cursor.ident()?) } else { None };
    if cursor.is_keyword("check") && (named || matches!(cursor.second(), Some(Token::LParen))) {
        cursor.advance();
        cursor.expect_token(&Token::LParen)?;
        let condition = Box::new(cursor.expression()?);
        cursor.expect_token(&Token::RParen)?;
        if cursor.keywords(&["not", "valid"]) {
            return Ok(Err(Error::unsupported("NOT VALID constraints are not supported")
                .with_hint("Existing rows are always checked.")));
        }
        return Ok(Ok(AlterAction::AddCheck { name, condition }));
    }
    if cursor.are_keywords(&["primary", "key"])
        || cursor.is_keyword("unique") && (named || matches!(cursor.second(), Some(Token::LParen | Token::Word(_))))
    {
        return super::indexes::key(cursor, name);
    }
    if cursor.keywords(&["foreign", "key"]) {
        return Ok(foreign_key(cursor, name)?.map(|key| AlterAction::AddForeignKey(Box::new(key))));
    }
    if cursor.is_keyword("exclude") && (named || matches!(cursor.second(), Some(Token::LParen | Token::Word(_)))) {
        return Ok(Err(Error::unsupported("EXCLUDE constraints are not supported")));
    }
    if named {
        return Err(cursor.error());
    }
    cursor.keyword("column");
    let if_not_exists = cursor.keywords(&["if", "not", "exists"]);
    let column = Box::new(cursor.column_def()?);
    Ok(Ok(AlterAction::AddColumn { column, if_not_exists }))
}

/// Past `FOREIGN KEY`. The inner error is for one that is not to be had.
fn foreign_key(cursor: &mut Cursor<'_>, name: Option<String>) -> Result<Result<ForeignKeyClause>> {
    let own = columns(cursor)?;
    cursor.expect_keyword("references")?;
    let referenced = qualified_name(cursor)?;
    let referenced_columns = if matches!(cursor.peek(), Some(Token::LParen)) { columns(cursor)? } else { Vec::new() };
    let (mut match_full, mut on_delete, mut on_update) =
        (false, ReferentialAction::NoAction, ReferentialAction::NoAction);
    let (mut deferrable, mut initially_deferred, mut not_valid) = (None, false, false);
    loop {
        if cursor.keyword("match") {
            match cursor.one_of(&["full", "partial", "simple"]) {
                Some("partial") => return Ok(Err(match_partial())),
                Some(kind) => match_full = kind == "full",
                None => return Err(cursor.error()),
            }
        } else if cursor.keywords(&["on", "delete"]) {
            on_delete = referential_action(cursor)?;
            if matches!(cursor.peek(), Some(Token::LParen)) {
                return Ok(Err(Error::unsupported("a list of columns after ON DELETE SET is not supported")
                    .with_hint("All of the foreign key's columns are set.")));
            }
        } else if cursor.keywords(&["on", "update"]) {
            on_update = referential_action(cursor)?;
        } else if cursor.keywords(&["not", "deferrable"]) {
            deferrable = Some(false);
        } else if cursor.keyword("deferrable") {
            deferrable = Some(true);
        } else if cursor.keywords(&["initially", "deferred"]) {
            initially_deferred = true;
        } else if cursor.keywords(&["initially", "immediate"]) {
            initially_deferred = false;
        } else if cursor.keywords(&["not", "valid"]) {
            not_valid = true;
        } else {
            break;
        }
    }
    let (deferrable, initially_deferred) = deferrability(deferrable, initially_deferred)?;
    Ok(Ok(ForeignKeyClause {
        name,
        columns: own,
        referenced,
        referenced_columns,
        match_full,
        on_delete,
        on_update,
        not_valid,
        deferrable,
        initially_deferred,
    }))
}

/// In parentheses.
fn columns(cursor: &mut Cursor<'_>) -> Result<Vec<String>> {
    cursor.expect_token(&Token::LParen)?;
    let mut columns = vec![cursor.ident()?];
    while cursor.token(&Token::Comma) {
        columns.push(cursor.ident()?);
    }
    cursor.expect_token(&Token::RParen)?;
    Ok(columns)
}

fn referential_action(cursor: &mut Cursor<'_>) -> Result<ReferentialAction> {
    let actions = [
        (&["no", "action"][..], ReferentialAction::NoAction),
        (&["restrict"], ReferentialAction::Restrict),
        (&["cascade"], ReferentialAction::Cascade),
        (&["set", "null"], ReferentialAction::SetNull),
        (&["set", "default"], ReferentialAction::SetDefault),
    ];
    let found = actions.into_iter().find(|(words, _)| cursor.keywords(words));
    found.map(|(_, action)| action).ok_or_else(|| cursor.error())
}

/// Past `ALTER COLUMN column`.
fn of_column(cursor: &mut Cursor<'_>, column: String) -> Result<Result<AlterAction>> {
    if cursor.keywords(&["set", "tablespace"]) {
        return Ok(Ok(AlterAction::SetTablespace { column: Some(column), tablespace: cursor.ident()? }));
    }
    if cursor.keywords(&["set", "not", "null"]) {
        return Ok(Ok(AlterAction::SetNotNull { column, not_null: true }));
    }
    if cursor.keywords(&["drop", "not", "null"]) {
        return Ok(Ok(AlterAction::SetNotNull { column, not_null: false }));
    }
    if cursor.keywords(&["drop", "default"]) {
        return Ok(Ok(AlterAction::SetDefault { column, default: None }));
    }
    if cursor.keywords(&["add", "generated"]) {
        let identity = identity(cursor)?;
        cursor.expect_keyword("as")?;
        cursor.expect_keyword("identity")?;
        let mut options = SequenceOptions::default();
        if cursor.token(&Token::LParen) {
            // As dumps have it: the sequence's name comes first.
            let name = match cursor.keywords(&["sequence", "name"]) {
                true => Some(qualified_name(cursor)?),
                false => None,
            };
            options = SequenceOptions { name, ..sequence_options(cursor, false)? };
            cursor.expect_token(&Token::RParen)?;
        }
        return Ok(Ok(AlterAction::AddIdentity { column, identity, options: Box::new(options) }));
    }
    if cursor.keywords(&["drop", "identity"]) {
        return Ok(Ok(AlterAction::DropIdentity { column, if_exists: cursor.keywords(&["if", "exists"]) }));
    }
    if sets_identity(cursor) {
        let mut set = None;
        let mut options = SequenceOptions::default();
        while sets_identity(cursor) {
            if cursor.keywords(&["set", "generated"]) {
                set = Some(identity(cursor)?);
            } else {
                cursor.keyword("set");
                options = options.and(sequence_options(cursor, true)?);
            }
        }
        return Ok(Ok(AlterAction::SetIdentity { column, identity: set, options: Box::new(options) }));
    }
    if cursor.keywords(&["set", "default"]) {
        return Ok(Ok(AlterAction::SetDefault { column, default: Some(Box::new(cursor.expression()?)) }));
    }
    if cursor.keyword("type") || cursor.keywords(&["set", "data", "type"]) {
        let data_type = cursor.data_type()?;
        let using = if cursor.keyword("using") { Some(Box::new(cursor.expression()?)) } else { None };
        return Ok(Ok(AlterAction::SetType { column, data_type, using }));
    }
    Ok(Err(Error::unsupported("this form of ALTER COLUMN is not supported").with_hint(
        "Supported: TYPE, SET and DROP DEFAULT, SET and DROP NOT NULL, SET TABLESPACE, and what changes an identity.",
    )))
}

/// Whether what comes next changes an identity column's sequence, or when it gives values.
fn sets_identity(cursor: &Cursor<'_>) -> bool {
    let options = ["generated", "increment", "minvalue", "maxvalue", "no", "start", "restart", "cache", "cycle"];
    cursor.is_keyword("restart") || options.iter().any(|option| cursor.are_keywords(&["set", option]))
}

/// Past `GENERATED`.
fn identity(cursor: &mut Cursor<'_>) -> Result<Identity> {
    if cursor.keyword("always") {
        return Ok(Identity::Always);
    }
    cursor.expect_keyword("by")?;
    cursor.expect_keyword("default")?;
    Ok(Identity::ByDefault)
}

/// Past `ALTER CONSTRAINT`.
fn alter_constraint(cursor: &mut Cursor<'_>) -> Result<Result<AlterAction>> {
    let name = cursor.ident()?;
    let (mut deferrable, mut deferred) = (None, false);
    loop {
        if cursor.keywords(&["not", "deferrable"]) {
            deferrable = Some(false);
        } else if cursor.keyword("deferrable") {
            deferrable = Some(true);
        } else if cursor.keywords(&["initially", "deferred"]) {
            deferred = true;
        } else if cursor.keywords(&["initially", "immediate"]) {
            deferred = false;
        } else {
            break;
        }
    }
    let (deferrable, initially_deferred) = deferrability(deferrable, deferred)?;
    Ok(Ok(AlterAction::AlterConstraint { name, deferrable, initially_deferred }))
}
