//! A client's text into statements.
//!
//! The text is tokenised once and cut at semicolons. Queries, `INSERT` and `CREATE TABLE` go through sqlparser's
//! PostgreSQL dialect; statements that sqlparser lacks or reads differently from PostgreSQL (settings, transactions,
//! tablespaces, `COPY`, cursors, …) are read from the tokens here, by `utility`.
//!
//! Nesting is bounded before anything recursive sees the tokens, because what is built from them (syntax trees, plans)
//! is later walked, cloned and dropped by code that recurses once a level.

mod alter;
mod comment;
mod copy;
pub mod current;
mod cursor;
mod dialect;
mod error_position;
mod extensions;
mod indexes;
mod literals;
mod lock_table;
pub mod locking;
pub mod merge;
mod objects;
mod partitions;
mod parts;
mod prepared;
mod procedures;
mod roles;
mod set;
mod tablespaces;
mod transaction;
mod utility;

use crate::sequences::SequenceOptions;
use crate::walk::walk;
use cursor::{Cursor, Source};
use datafusion::sql::sqlparser::ast;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Location, Token, TokenWithSpan, Tokenizer, TokenizerError};
use dialect::Postgres;
use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState, panic_point};
use tidepool_database::LockMode;

pub use comment::CommentOn;
pub use copy::{CopyEndpoint, CopySource, CopyStatement};
pub use indexes::{IndexAction, IndexClause, Reindexed};
pub use lock_table::LockedRelation;
pub use locking::LockClause;
pub use partitions::{BoundClause, BoundValue, PartitionBy, PartitionClauses};
pub use parts::QualifiedName;
pub use prepared::FetchCount;
pub use procedures::{AdviseArguments, SwitchoverArguments};
pub use roles::{GrantClause, GrantTargets, MemberChange, OwnedKind, RoleCommand, RoleName, RoleOptions};
pub use set::SetValue;
pub use tablespaces::AlterTablespaceAction;
pub use transaction::TransactionMode;
pub use utility::{AlterAction, ExplainFormat, ExplainOptions, Overriding};

/// Nested brackets, or operators chained without brackets, of one statement. Beyond: 54001. A level of the recursive
/// walks takes tens of KiB in the worst of them, and planning runs on stacks of `WORKER_STACK_BYTES`. Planning time
/// also grows faster than the depth.
pub const NESTING_MAX: usize = 1_000;

/// Statements nested deeper than this are parsed and dropped on a thread with a stack of its own.
const NESTING_SHALLOW: usize = 100;

const DEEP_STACK_BYTES: usize = 256 << 20;

/// One statement of a client's text, parsed.
#[derive(Clone)]
pub struct Statement(Arc<Inner>);

struct Inner {
    text: String,
    /// Characters before `text` in the text that the client sent.
    offset: u32,
    command: Option<Command>,
    deep: bool,
    /// A query of it locks rows.
    locks: bool,
    /// What it takes, about.
    bytes: u64,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.deep
            && let Some(command) = self.command.take()
        {
            // Dropping recurses once a level. If no thread can be had, the process is beyond help anyway.
            let _ = std::thread::Builder::new().stack_size(DEEP_STACK_BYTES).spawn(move || drop(command));
        }
    }
}

/// What becomes of a statement whose process ends within it, if no transaction was committed with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfinished {
    /// Another process can run it as if it had not begun.
    BeginsAnew,
    /// It is as if it had failed. It does not begin anew, as it may be what the process died of.
    Fails,
    /// It may have left behind what is no transaction's.
    IsUnknown,
}

impl Statement {
    /// Its part of the text.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// What it takes of memory, about.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// No statement at all (only blanks and comments).
    pub fn is_empty(&self) -> bool {
        matches!(self.command(), Command::Empty)
    }

    /// What becomes of it where its process ends within it.
    pub fn unfinished(&self) -> Unfinished {
        match self.command() {
            Command::Empty
            | Command::Begin { .. }
            | Command::Commit { .. }
            | Command::Rollback { .. }
            | Command::Savepoint { .. }
            | Command::Release { .. }
            | Command::RollbackTo { .. }
            | Command::Set { .. }
            | Command::SetTransaction { .. }
            | Command::SetConstraints { .. }
            | Command::LockTables { .. }
            | Command::SetSessionTransaction { .. }
            | Command::Reset { .. }
            | Command::Show { .. }
            | Command::Prepare { .. }
            | Command::Deallocate { .. }
            | Command::Close { .. }
            | Command::DiscardAll
            | Command::DiscardSequences
            | Command::DiscardTemporary
            | Command::DoNothing { .. }
            | Command::Unsupported(_) => Unfinished::BeginsAnew,
            Command::Query(_)
            | Command::Locking { .. }
            | Command::Insert(..)
            | Command::Update { .. }
            | Command::Delete { .. }
            | Command::MergeInto { .. }
            | Command::Execute { .. }
            | Command::Declare { .. }
            | Command::Fetch { .. }
            | Command::Explain { .. } => Unfinished::Fails,
            _ => Unfinished::IsUnknown,
        }
    }

    /// Whether it begins or ends a transaction block, and leaves the session else as it was.
    pub fn is_block_control(&self) -> bool {
        matches!(self.command(), Command::Begin { .. } | Command::Commit { .. } | Command::Rollback { .. })
    }

    /// Whether a transaction may be committed with it, and its answer is then no more than its tag. `in_block`: the session is in a transaction block.
    pub fn commits_with_tag(&self, in_block: bool) -> bool {
        match self.command() {
            Command::Commit { .. } => in_block,
            Command::Insert(..)
            | Command::Update { .. }
            | Command::Delete { .. }
            | Command::MergeInto { .. }
            | Command::Execute { .. } => !in_block,
            _ => false,
        }
    }

    pub(crate) fn command(&self) -> &Command {
        self.0.command.as_ref().unwrap_or(&Command::Empty)
    }

    /// Moves a position within this statement to one within the client's whole text. An error about a name that has no position gets
    /// that of the name.
    pub(crate) fn place(&self, error: Error) -> Error {
        match error.position().or_else(|| error_position::of_name(&self.0.text, self.command(), &error)) {
            Some(position) => {
                let position = position + self.0.offset;
                error.with_position(position)
            }
            None => error,
        }
    }

    /// Nested so deeply that who walks it needs a stack of his own.
    pub(crate) fn is_deep(&self) -> bool {
        self.0.deep
    }

    /// Whether a query of it locks rows.
    pub(crate) fn locks_rows(&self) -> bool {
        self.0.locks
    }

    /// The same text, read otherwise.
    pub(crate) fn rewritten(&self, command: Command) -> Statement {
        Statement(Arc::new(Inner {
            text: self.0.text.clone(),
            offset: self.0.offset,
            command: Some(command),
            deep: self.0.deep,
            locks: false,
            bytes: self.0.bytes,
        }))
    }

    fn new(text: &str, offset: u32, command: Command, deep: bool, locks: bool, bytes: u64) -> Statement {
        let bytes = bytes + (text.len() + size_of::<Inner>()) as u64;
        Statement(Arc::new(Inner { text: text.to_owned(), offset, command: Some(command), deep, locks, bytes }))
    }
}

/// What a statement asks for.
#[derive(Clone)]
pub enum Command {
    Empty,
    Query(Box<ast::Query>),
    /// A query that locks the rows that it finds.
    Locking {
        query: Box<ast::Query>,
        clauses: Vec<LockClause>,
    },
    Insert(Box<ast::Insert>, Overriding),
    Update {
        update: Box<ast::Update>,
        with: Option<Box<ast::With>>,
    },
    Delete {
        delete: Box<ast::Delete>,
        with: Option<Box<ast::With>>,
    },
    MergeInto {
        merge: Box<ast::Merge>,
        with: Option<Box<ast::With>>,
    },
    /// Of a procedure that the program registered.
    Call {
        name: String,
        arguments: Vec<ast::Expr>,
    },
    /// `CREATE TABLE`, with or without `AS`.
    CreateTable {
        table: Box<ast::CreateTable>,
        tablespace: Option<String>,
        partitions: Box<PartitionClauses>,
        with_data: bool,
    },
    DropTables {
        names: Vec<QualifiedName>,
        if_exists: bool,
        cascade: bool,
    },
    CreateSequence {
        name: QualifiedName,
        if_not_exists: bool,
        options: Box<SequenceOptions>,
    },
    AlterSequence {
        name: QualifiedName,
        if_exists: bool,
        options: Box<SequenceOptions>,
    },
    /// `RENAME TO` and `SET SCHEMA` of a sequence.
    NameSequence {
        name: QualifiedName,
        if_exists: bool,
        action: AlterAction,
    },
    DropSequences {
        names: Vec<QualifiedName>,
        if_exists: bool,
        cascade: bool,
    },
    CreateIndex(Box<IndexClause>),
    AlterIndex {
        name: QualifiedName,
        if_exists: bool,
        action: IndexAction,
    },
    DropIndexes {
        names: Vec<QualifiedName>,
        if_exists: bool,
        concurrently: bool,
        cascade: bool,
    },
    Reindex {
        what: Reindexed,
        concurrently: bool,
    },
    CreateView {
        name: QualifiedName,
        or_replace: bool,
        columns: Vec<String>,
        query: Statement,
    },
    AlterView {
        name: QualifiedName,
        if_exists: bool,
        action: AlterAction,
    },
    DropViews {
        names: Vec<QualifiedName>,
        if_exists: bool,
        cascade: bool,
    },
    CreateSchema {
        name: String,
        if_not_exists: bool,
        owner: Option<RoleName>,
    },
    AlterSchema {
        name: String,
        new_name: String,
    },
    DropSchemas {
        names: Vec<String>,
        if_exists: bool,
        cascade: bool,
    },
    Truncate {
        names: Vec<QualifiedName>,
        restart_identity: bool,
        cascade: bool,
    },
    LockTables {
        relations: Vec<LockedRelation>,
        mode: LockMode,
        nowait: bool,
    },
    AlterTable {
        name: QualifiedName,
        if_exists: bool,
        actions: Vec<AlterAction>,
    },
    /// `None`: the comment goes.
    Comment {
        about: CommentOn,
        text: Option<String>,
    },
    CreateTablespace {
        name: String,
        location: String,
        options: Vec<(String, String)>,
        owner: Option<RoleName>,
    },
    AlterTablespace {
        name: String,
        action: AlterTablespaceAction,
    },
    DropTablespace {
        name: String,
        if_exists: bool,
    },
    Copy(Box<CopyStatement>),
    Begin {
        modes: Vec<TransactionMode>,
    },
    Commit {
        chain: bool,
    },
    Rollback {
        chain: bool,
    },
    Savepoint {
        name: String,
    },
    Release {
        name: String,
    },
    RollbackTo {
        name: String,
    },
    Set {
        name: String,
        value: SetValue,
        local: bool,
    },
    SetTransaction {
        modes: Vec<TransactionMode>,
    },
    /// `None`: all.
    SetConstraints {
        names: Option<Vec<QualifiedName>>,
        deferred: bool,
    },
    SetSessionTransaction {
        modes: Vec<TransactionMode>,
    },
    /// `None`: all.
    Reset {
        name: Option<String>,
    },
    Show {
        name: Option<String>,
    },
    DiscardAll,
    /// `DISCARD TEMP`.
    DiscardTemporary,
    DiscardSequences,
    /// `DISCARD PLANS`, an extension that is built in: there is never anything to do, and sometimes something to be said.
    DoNothing {
        tag: &'static str,
        notice: Option<Error>,
    },
    Prepare {
        name: String,
        types: Vec<ast::DataType>,
        statement: Statement,
    },
    Execute {
        name: String,
        arguments: Vec<ast::Expr>,
    },
    /// `None`: all.
    Deallocate {
        name: Option<String>,
    },
    Declare {
        name: String,
        hold: bool,
        query: Statement,
    },
    Fetch {
        name: String,
        count: FetchCount,
        discard: bool,
    },
    /// `None`: all.
    Close {
        name: Option<String>,
    },
    Explain {
        options: ExplainOptions,
        statement: Statement,
    },
    Checkpoint,
    Analyze {
        names: Vec<QualifiedName>,
    },
    Vacuum {
        full: bool,
        names: Vec<QualifiedName>,
    },
    Merge {
        table: QualifiedName,
    },
    ResetAccess,
    Advise(AdviseArguments),
    Check,
    Switchover(SwitchoverArguments),
    /// `CALL tidepool.pool_yield`: what is to be free of the pool.
    PoolYield {
        size: String,
    },
    Backup {
        folder: String,
    },
    Role(Box<RoleCommand>),
    /// Recognised, but not to be had: raised when it is executed, so that statements before it run.
    Unsupported(Error),
}

impl Command {
    /// Lets a visitor see the queries of a statement that may lock rows.
    pub(crate) fn visit_queries(&mut self, visitor: &mut impl VisitQueries) {
        match self {
            Command::Query(query) | Command::Locking { query, .. } => visitor.visit(None, query.as_mut()),
            Command::Insert(insert, _) => visitor.visit(None, insert.as_mut()),
            Command::Update { update, with } => visitor.visit(with.as_deref_mut(), update.as_mut()),
            Command::Delete { delete, with } => visitor.visit(with.as_deref_mut(), delete.as_mut()),
            Command::MergeInto { merge, with } => visitor.visit(with.as_deref_mut(), merge.as_mut()),
            Command::CreateTable { table, .. } => {
                if let Some(query) = &mut table.query {
                    visitor.visit(None, query.as_mut());
                }
            }
            _ => {}
        }
    }
}

/// What looks at a statement's queries, and at those that its `WITH` names, which is kept apart from it.
pub(crate) trait VisitQueries {
    fn visit<T: ast::Visit + ast::VisitMut>(&mut self, with: Option<&mut ast::With>, node: &mut T);
}

/// What `SELECT … INTO` makes.
fn take_into(query: &mut ast::Query) -> Option<ast::SelectInto> {
    match query.body.as_mut() {
        ast::SetExpr::Select(select) => select.into.take(),
        _ => None,
    }
}

/// The `CREATE TABLE AS` that a `SELECT … INTO` is short for.
fn made_by(into: ast::SelectInto, query: Box<ast::Query>) -> ast::CreateTable {
    let table = ast::helpers::stmt_create_table::CreateTableBuilder::new(into.name);
    table.temporary(into.temporary).query(Some(query)).build()
}

/// Whether the query in these brackets locks rows.
fn has_own_locks(query: &ast::Query) -> bool {
    match query.body.as_ref() {
        ast::SetExpr::Query(inner) => !inner.locks.is_empty() || has_own_locks(inner),
        _ => false,
    }
}

/// Splits and parses a client's text.
pub fn parse(sql: &str) -> Result<Vec<Statement>> {
    panic_point("planner.parser");
    if sql.contains('\0') {
        return Err(Error::new(
            SqlState::CHARACTER_NOT_IN_REPERTOIRE,
            "invalid byte sequence for encoding \"UTF8\": 0x00",
        ));
    }
    let source = Source(sql);
    let tokens = tokens_of(&source)?;

    let mut statements = Vec::new();
    let mut walk = source.walk();
    for piece in tokens.split(|token| token.token == Token::SemiColon) {
        let (Some(first), Some(last)) = (piece.first(), piece.last()) else { continue };
        let (start, start_chars) = walk.seek(first.span.start);
        let (end, _) = walk.seek(last.span.end);
        let text = &sql[start..end.max(start)];
        let nesting = nesting(piece);
        if nesting > NESTING_MAX {
            return Err(Error::new(SqlState::STATEMENT_TOO_COMPLEX, "stack depth limit exceeded")
                .with_detail(format!("The statement nests {nesting} levels deep; the limit is {NESTING_MAX}.")));
        }
        let deep = nesting > NESTING_SHALLOW;
        let (command, bytes) = if deep {
            std::thread::scope(|scope| {
                let thread = std::thread::Builder::new()
                    .stack_size(DEEP_STACK_BYTES)
                    .spawn_scoped(scope, || tidepool_heap::retained(|| command(&source, piece)))
                    .map_err(|error| Error::io("start a thread", &error))?;
                Ok(thread.join().unwrap_or_else(|_| (Err(Error::internal("the parser failed")), 0)))
            })?
        } else {
            tidepool_heap::retained(|| command(&source, piece))
        };
        let command = command?;
        let locks = locking::is_in(&source, piece);
        statements.push(Statement::new(text, start_chars, command, deep, locks, bytes));
    }
    if statements.is_empty() {
        statements.push(Statement::new("", 0, Command::Empty, false, false, 0));
    }
    Ok(statements)
}

fn tokens_of(source: &Source<'_>) -> Result<Vec<TokenWithSpan>> {
    let tokens = Tokenizer::new(&Postgres::for_words(0), source.0)
        .tokenize_with_location()
        .map_err(|error| tokenizer_error(source, error))?;
    literals::joined(source, tokens)
}

/// An upper bound of the depth of the syntax tree: brackets open at once, plus, at each bracket level, operators since
/// the last comma (a chain such as `a + b + c` leans to one side, one level an operator).
fn nesting(tokens: &[TokenWithSpan]) -> usize {
    let mut levels: Vec<usize> = vec![0];
    let mut open: usize = 0;
    let mut deepest: usize = 0;
    for token in tokens {
        match &token.token {
            Token::LParen | Token::LBracket => {
                levels.push(0);
                open += 1;
            }
            Token::RParen | Token::RBracket if levels.len() > 1 => {
                open -= levels.pop().unwrap_or(0) + 1;
            }
            Token::Comma => {
                if let Some(level) = levels.last_mut() {
                    open -= *level;
                    *level = 0;
                }
            }
            Token::Word(word) => {
                if matches!(
                    word.keyword,
                    Keyword::AND
                        | Keyword::OR
                        | Keyword::NOT
                        | Keyword::CASE
                        | Keyword::UNION
                        | Keyword::EXCEPT
                        | Keyword::INTERSECT
                        | Keyword::JOIN
                        | Keyword::IS
                        | Keyword::EXPLAIN
                        | Keyword::PREPARE
                ) && let Some(level) = levels.last_mut()
                {
                    *level += 1;
                    open += 1;
                }
            }
            Token::Plus
            | Token::Minus
            | Token::Mul
            | Token::Div
            | Token::Mod
            | Token::Caret
            | Token::StringConcat
            | Token::DoubleColon
            | Token::Tilde
            | Token::ExclamationMark
            | Token::DoubleExclamationMark
            | Token::AtSign
            | Token::PGSquareRoot
            | Token::PGCubeRoot
            | Token::Arrow
            | Token::LongArrow
            | Token::HashArrow
            | Token::HashLongArrow
            | Token::Ampersand
            | Token::Pipe
            | Token::Sharp
            | Token::ShiftLeft
            | Token::ShiftRight
            | Token::CustomBinaryOperator(_) => {
                if let Some(level) = levels.last_mut() {
                    *level += 1;
                    open += 1;
                }
            }
            // Comparisons do not chain.
            _ => {}
        }
        deepest = deepest.max(open);
    }
    deepest
}

/// Reads one statement.
fn command(source: &Source<'_>, tokens: &[TokenWithSpan]) -> Result<Command> {
    let tokens = &*objects::order_identity(source, tokens)?;
    let mut cursor = Cursor::new(source, tokens);
    if let Some(command) = utility::command(&mut cursor)? {
        cursor.expect_end()?;
        return Ok(command);
    }
    sql_command(source, tokens)
}

/// Reads a statement that sqlparser knows.
fn sql_command(source: &Source<'_>, tokens: &[TokenWithSpan]) -> Result<Command> {
    let (tokens, overriding) = utility::take_overriding(tokens);
    let (tokens, tablespace, with_data) = utility::take_tablespace(source, &tokens)?;
    let (tokens, partitions) = partitions::take(source, tokens)?;
    let tokens = current::spell(source, tokens)?;
    let tokens = locking::spell(source, tokens)?;
    let tokens = merge::spelled(tokens);
    // `TABLE t` is short for `SELECT * FROM t`.
    let tokens = match tokens.first() {
        Some(first) if matches!(&first.token, Token::Word(word) if word.keyword == Keyword::TABLE) => {
            let spelled = [Token::make_keyword("SELECT"), Token::Mul, Token::make_keyword("FROM")];
            let spelled = spelled.into_iter().map(|token| TokenWithSpan::new(token, first.span));
            Cow::Owned(spelled.chain(tokens[1..].iter().cloned()).collect())
        }
        _ => tokens,
    };
    let dialect = Postgres::for_words(tokens.len());
    let mut parser =
        Parser::new(&dialect).with_recursion_limit(NESTING_MAX * 4).with_tokens_with_locations(tokens.to_vec());
    let mut statement = parser.parse_statement().map_err(|error| parser_error(source, &tokens, error))?;
    let rest = parser.peek_token();
    if rest.token != Token::EOF {
        return Err(source.syntax_error(&rest));
    }
    check_grouping(&statement)?;
    crate::catalog::rewrite(&mut statement)?;
    Ok(match statement {
        ast::Statement::Query(mut query) => match *query.body {
            _ if !query.locks.is_empty() || matches!(*query.body, ast::SetExpr::Query(_)) && has_own_locks(&query) => {
                let clauses = locking::take(&mut query);
                Command::Locking { query, clauses }
            }
            ast::SetExpr::Update(ast::Statement::Update(update)) => {
                Command::Update { update: Box::new(update), with: query.with.take().map(Box::new) }
            }
            ast::SetExpr::Delete(ast::Statement::Delete(delete)) => {
                Command::Delete { delete: Box::new(delete), with: query.with.take().map(Box::new) }
            }
            ast::SetExpr::Merge(ast::Statement::Merge(merge)) => {
                Command::MergeInto { merge: Box::new(merge), with: query.with.take().map(Box::new) }
            }
            ast::SetExpr::Insert(ast::Statement::Insert(mut insert)) => {
                if let (Some(with), Some(source)) = (query.with.take(), &mut insert.source) {
                    around(with, source);
                }
                Command::Insert(Box::new(insert), overriding)
            }
            _ => match take_into(&mut query) {
                Some(into) => Command::CreateTable {
                    table: Box::new(made_by(into, query)),
                    tablespace: None,
                    partitions: Box::default(),
                    with_data: true,
                },
                None => Command::Query(query),
            },
        },
        ast::Statement::Insert(insert) => Command::Insert(Box::new(insert), overriding),
        ast::Statement::CreateTable(table) => Command::CreateTable {
            table: Box::new(table),
            tablespace,
            partitions: Box::new(partitions),
            with_data: with_data.unwrap_or(true),
        },
        ast::Statement::Update(update) => Command::Update { update: Box::new(update), with: None },
        ast::Statement::Delete(delete) => Command::Delete { delete: Box::new(delete), with: None },
        ast::Statement::Merge(merge) => Command::MergeInto { merge: Box::new(merge), with: None },
        other => {
            let text = other.to_string();
            let words: Vec<&str> = text.split_whitespace().take(2).collect();
            Command::Unsupported(Error::unsupported(format!("{} is not supported", words.join(" ").to_uppercase())))
        }
    })
}

/// Elements of `CUBE`, and sets that a `GROUP BY` comes to.
const CUBE_MAX: usize = 12;
const GROUPING_SETS_MAX: usize = 4096;

/// 54011 and 54001 for a `GROUP BY` that comes to too many sets: each further element doubles them.
fn check_grouping(statement: &ast::Statement) -> Result<()> {
    struct Grouping;

    impl ast::Visitor for Grouping {
        type Break = Error;

        fn pre_visit_select(&mut self, select: &ast::Select) -> ControlFlow<Error> {
            let ast::GroupByExpr::Expressions(keys, _) = &select.group_by else { return ControlFlow::Continue(()) };
            let mut sets: usize = 1;
            for key in keys {
                let own = match key {
                    ast::Expr::Cube(elements) if elements.len() > CUBE_MAX => {
                        let message = format!("CUBE is limited to {CUBE_MAX} elements");
                        return ControlFlow::Break(Error::new(SqlState::TOO_MANY_COLUMNS, message));
                    }
                    ast::Expr::Cube(elements) => 1 << elements.len(),
                    ast::Expr::Rollup(elements) => elements.len() + 1,
                    ast::Expr::GroupingSets(sets) => sets.len().max(1),
                    _ => 1,
                };
                sets = sets.saturating_mul(own);
            }
            if sets > GROUPING_SETS_MAX {
                let message = format!("too many grouping sets present (maximum {GROUPING_SETS_MAX})");
                return ControlFlow::Break(Error::new(SqlState::STATEMENT_TOO_COMPLEX, message));
            }
            ControlFlow::Continue(())
        }
    }

    match walk(statement, &mut Grouping) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

/// Has a query see the queries of a `WITH` around it, beside those of its own, which hide them.
fn around(mut with: ast::With, query: &mut ast::Query) {
    if let Some(own) = query.with.take() {
        let names: Vec<String> = own.cte_tables.iter().map(|cte| fold(&cte.alias.name)).collect();
        with.cte_tables.retain(|cte| !names.contains(&fold(&cte.alias.name)));
        with.recursive |= own.recursive;
        with.cte_tables.extend(own.cte_tables);
    }
    query.with = Some(with);
}

fn tokenizer_error(source: &Source<'_>, error: TokenizerError) -> Error {
    if error.message.contains("encoded string literal") {
        let position = source.position(error.location);
        return literals::escape_error(source.from(error.location)).with_position(position);
    }
    let message = match error.message.as_str() {
        message if message.contains("Unterminated string literal") => "unterminated quoted string".to_owned(),
        message if message.contains("comment") => "unterminated /* comment".to_owned(),
        message if message.contains("dollar-quoted") => "unterminated dollar-quoted string".to_owned(),
        message if message.contains("close delimiter '\"'") => "unterminated quoted identifier".to_owned(),
        message => message.trim().to_lowercase(),
    };
    Error::new(SqlState::SYNTAX_ERROR, message).with_position(source.position(error.location))
}

/// sqlparser says `Expected: an expression, found: FROM at Line: 1, Column: 8`; PostgreSQL says which token it stumbled
/// on.
fn parser_error(source: &Source<'_>, tokens: &[TokenWithSpan], error: ParserError) -> Error {
    let message = match error {
        ParserError::RecursionLimitExceeded => {
            return Error::new(SqlState::STATEMENT_TOO_COMPLEX, "stack depth limit exceeded");
        }
        ParserError::TokenizerError(message) | ParserError::ParserError(message) => message,
    };
    let (what, location) = match message.rsplit_once(" at Line: ") {
        Some((what, at)) => {
            let location = at.split_once(", Column: ").and_then(|(line, column)| {
                Some(Location { line: line.trim().parse().ok()?, column: column.trim().parse().ok()? })
            });
            (what, location)
        }
        None => (message.as_str(), None),
    };
    let expected = what.split_once(", found: ").map(|(expected, _)| expected.trim_start_matches("Expected: "));
    let found = location.and_then(|location| tokens.iter().find(|token| token.span.start == location));
    let error = match found {
        Some(token) => source.syntax_error(token),
        None if what.ends_with("found: EOF") || location.is_none() && expected.is_some() => {
            source.syntax_error_at_end()
        }
        None => {
            let error = Error::new(SqlState::SYNTAX_ERROR, format!("syntax error: {what}"));
            return match location {
                Some(location) => error.with_position(source.position(location)),
                None => error,
            };
        }
    };
    match expected {
        Some(expected) if !expected.is_empty() => error.with_detail(format!("Expected {expected}.")),
        _ => error,
    }
}

/// Parses one query of its own, such as a view's, as it is written.
pub fn parse_query(text: &str) -> Result<ast::Query> {
    let dialect = Postgres::for_words(text.len());
    let source = Source(text);
    let tokens = tokens_of(&source)?;
    let mut parser =
        Parser::new(&dialect).with_recursion_limit(NESTING_MAX * 4).with_tokens_with_locations(tokens.clone());
    let query = match parser.peek_keyword(Keyword::TABLE) {
        true => match sql_command(&source, &tokens)? {
            Command::Query(query) => query,
            _ => return Err(source.syntax_error_at_end()),
        },
        false => parser.parse_query().map_err(|error| parser_error(&source, &[], error))?,
    };
    Ok(*query)
}

/// Parses one expression of its own, such as a stored default.
pub fn parse_expression(text: &str) -> Result<ast::Expr> {
    let dialect = Postgres::for_words(text.len());
    let source = Source(text);
    let mut parser = Parser::new(&dialect).with_tokens_with_locations(tokens_of(&source)?);
    let mut expr = parser.parse_expr().map_err(|error| parser_error(&source, &[], error))?;
    crate::catalog::rewrite_expression(&mut expr);
    Ok(expr)
}

/// An unquoted identifier is folded to lower case, as in PostgreSQL.
pub fn fold(ident: &ast::Ident) -> String {
    match ident.quote_style {
        Some(_) => ident.value.clone(),
        None => ident.value.to_lowercase(),
    }
}
