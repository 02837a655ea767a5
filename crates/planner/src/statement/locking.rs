//! `FOR UPDATE` and its kin after a query, which sqlparser knows in part.

use super::QualifiedName;
use super::cursor::{Cursor, Source};
use crate::walk::{walk, walk_mut};
use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::tokenizer::{Token, TokenWithSpan};
use std::borrow::Cow;
use std::ops::ControlFlow;
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

    fn spelled(&self) -> Vec<Token> {
        let lock = LOCKS.iter().position(|(_, lock)| *lock == self.lock).unwrap_or_default();
        let word = |text: &str| Token::make_word(text, Some('"'));
        let mut tokens = ["FOR", "UPDATE", "OF"].map(Token::make_keyword).to_vec();
        tokens.push(word(&format!("{MARK}{lock}")));
        tokens.extend(self.of.iter().flat_map(|name| [Token::Period, word(name)]));
        match self.wait {
            LockWait::Wait => {}
            LockWait::Refuse => tokens.push(Token::make_keyword("NOWAIT")),
            LockWait::Skip => tokens.extend(["SKIP", "LOCKED"].map(Token::make_keyword)),
        }
        tokens
    }

    /// Of what `spelled` makes, as sqlparser has it.
    fn read(clause: &ast::LockClause) -> LockClause {
        let mut names: Vec<String> =
            clause.of.iter().flat_map(|of| &of.0).filter_map(|part| part.as_ident().map(super::fold)).collect();
        let marked = names.first().and_then(|name| name.strip_prefix(MARK)?.parse::<usize>().ok());
        let lock = match (marked.and_then(|place| LOCKS.get(place)), clause.lock_type) {
            (Some((_, lock)), _) => *lock,
            (None, ast::LockType::Share) => RowLock::Share,
            (None, ast::LockType::Update) => RowLock::Update,
        };
        if marked.is_some() {
            names.remove(0);
        }
        let wait = match clause.nonblock {
            None => LockWait::Wait,
            Some(ast::NonBlock::Nowait) => LockWait::Refuse,
            Some(ast::NonBlock::SkipLocked) => LockWait::Skip,
        };
        LockClause { lock, of: names, wait }
    }
}

/// Begins the first name in a clause's `OF` that stands for the clause: what of it sqlparser has no words for.
const MARK: char = '\u{1}';

const LOCKS: [(&[&str], RowLock); 4] = [
    (&["for", "update"], RowLock::Update),
    (&["for", "no", "key", "update"], RowLock::NoKeyUpdate),
    (&["for", "share"], RowLock::Share),
    (&["for", "key", "share"], RowLock::KeyShare),
];

/// Words behind a query's outputs.
const AFTER_OUTPUTS: [&str; 8] = ["from", "where", "group", "having", "order", "limit", "offset", "fetch"];

/// Spells locking clauses so that sqlparser reads them: each as `FOR UPDATE OF "mark".names`, behind the `LIMIT` that may
/// come after them.
pub fn spell<'a>(source: &Source<'_>, tokens: Cow<'a, [TokenWithSpan]>) -> Result<Cow<'a, [TokenWithSpan]>> {
    if !is_in(source, &tokens) {
        return Ok(tokens);
    }
    let mut spelled: Vec<TokenWithSpan> = Vec::with_capacity(tokens.len());
    // Of each bracket that is open, clauses on their way behind a LIMIT.
    let mut pending: Vec<Vec<TokenWithSpan>> = vec![Vec::new()];
    // Whether what it has read of a query may go on with a name: sqlparser would take FOR for one.
    let mut named = vec![false];
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        if clause_begins(source, &tokens[at..]) {
            let mut cursor = Cursor::new(source, &tokens[at..]);
            let clause = clause(&mut cursor)?;
            let span = token.span;
            at = tokens.len() - cursor.rest().len();
            let limited = ["limit", "offset", "fetch"].iter().any(|word| cursor.is_keyword(word));
            if std::mem::take(named.last_mut().unwrap_or(&mut false)) {
                let nothing = ["WHERE", "TRUE"].map(Token::make_keyword);
                spelled.extend(nothing.map(|token| TokenWithSpan::new(token, span)));
            }
            let words = clause.spelled().into_iter().map(|token| TokenWithSpan::new(token, span));
            let Some(waiting) = pending.last_mut() else { return Err(cursor.error()) };
            waiting.extend(words);
            if !limited && !clause_begins(source, cursor.rest()) {
                spelled.append(waiting);
            }
            continue;
        }
        match token.token {
            Token::LParen => {
                pending.push(Vec::new());
                named.push(false);
            }
            Token::RParen => {
                if named.len() > 1 {
                    named.pop();
                }
                spelled.append(&mut pending.pop().unwrap_or_default());
                if pending.is_empty() {
                    pending.push(Vec::new());
                }
            }
            _ if ends_limit(source, &tokens[at..]) => {
                spelled.extend(pending.last_mut().into_iter().flat_map(std::mem::take))
            }
            Token::Word(_) => {
                let cursor = Cursor::new(source, &tokens[at..]);
                let named = named.last_mut().into_iter();
                if cursor.is_keyword("select") {
                    named.for_each(|named| *named = true);
                } else if AFTER_OUTPUTS.iter().any(|word| cursor.is_keyword(word)) {
                    named.for_each(|named| *named = false);
                }
            }
            _ => {}
        }
        spelled.push(token.clone());
        at += 1;
    }
    pending.into_iter().for_each(|mut clauses| spelled.append(&mut clauses));
    Ok(Cow::Owned(spelled))
}

/// Whether there is a locking clause among these tokens.
pub fn is_in(source: &Source<'_>, tokens: &[TokenWithSpan]) -> bool {
    (0..tokens.len()).any(|at| clause_begins(source, &tokens[at..]))
}

/// What may come behind a statement's query.
fn ends_limit(source: &Source<'_>, tokens: &[TokenWithSpan]) -> bool {
    let cursor = Cursor::new(source, tokens);
    [&["on", "conflict"][..], &["returning"], &["with", "no"], &["with", "data"]]
        .iter()
        .any(|words| cursor.are_keywords(words))
}

/// The clauses of a query itself, which has none any more.
pub fn take(query: &mut ast::Query) -> Vec<LockClause> {
    unbracket(query);
    std::mem::take(&mut query.locks).iter().map(LockClause::read).collect()
}

/// Takes a query out of brackets: what stands behind them is its own.
pub fn unbracket(query: &mut ast::Query) {
    loop {
        let (is_ordered, limited) = (query.order_by.is_some(), is_limited(query));
        let ast::SetExpr::Query(inner) = query.body.as_mut() else { return };
        let inner_limited = is_limited(inner);
        let is_plain = query.with.is_none()
            && (!is_ordered || inner.order_by.is_none() && !inner_limited)
            && !(limited && inner_limited);
        if !is_plain {
            return;
        }
        let inner = std::mem::replace(inner.as_mut(), empty());
        let outer = std::mem::replace(query, inner);
        query.order_by = query.order_by.take().or(outer.order_by);
        query.limit_clause = query.limit_clause.take().or(outer.limit_clause);
        query.fetch = query.fetch.take().or(outer.fetch);
        query.locks.extend(outer.locks);
    }
}

pub fn is_limited(query: &ast::Query) -> bool {
    query.limit_clause.is_some() || query.fetch.is_some()
}

fn empty() -> ast::Query {
    ast::Query {
        with: None,
        body: Box::new(ast::SetExpr::Values(ast::Values {
            explicit_row: false,
            value_keyword: false,
            rows: Vec::new(),
        })),
        order_by: None,
        limit_clause: None,
        fetch: None,
        locks: Vec::new(),
        for_clause: None,
        settings: None,
        format_clause: None,
        pipe_operators: Vec::new(),
    }
}

/// Whether a query in this node locks rows.
pub fn has_locks(node: &impl ast::Visit) -> bool {
    struct Locks;
    impl ast::Visitor for Locks {
        type Break = ();
        fn pre_visit_query(&mut self, query: &ast::Query) -> ControlFlow<()> {
            if query.locks.is_empty() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        }
    }
    walk(node, &mut Locks).is_break()
}

/// Takes all clauses out of the queries in this node.
pub fn strip(node: &mut impl ast::VisitMut) {
    struct Strip;
    impl ast::VisitorMut for Strip {
        type Break = ();
        fn pre_visit_query(&mut self, query: &mut ast::Query) -> ControlFlow<()> {
            query.locks.clear();
            ControlFlow::Continue(())
        }
    }
    let _ = walk_mut(node, &mut Strip);
}

fn clause_begins(source: &Source<'_>, tokens: &[TokenWithSpan]) -> bool {
    let cursor = Cursor::new(source, tokens);
    cursor.is_keyword("for") && LOCKS.iter().any(|(words, _)| cursor.are_keywords(words))
}

fn clause(cursor: &mut Cursor<'_>) -> Result<LockClause> {
    let found = LOCKS.into_iter().find(|(words, _)| cursor.keywords(words));
    let lock = found.map(|(_, lock)| lock).ok_or_else(|| cursor.error())?;
    let mut of = Vec::new();
    if cursor.keyword("of") {
        loop {
            let QualifiedName { schema, name } = super::parts::qualified_name(cursor)?;
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
