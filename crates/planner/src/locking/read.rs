//! What of a query's `FROM` is locked: tables, also those that its views and subqueries read.
//!
//! The query is rewritten so that the rows' ids come up with its outputs, behind them: a table that is locked has a column
//! more, and each query around it an output more. Subqueries and views with a `LIMIT` lock the rows that they give
//! themselves: they become parts ([`super::parts`]).

use super::Target;
use super::parts::{Part, all_of_part, part_number};
use crate::facts::SessionFacts;
use crate::insert::object_name;
use crate::names::OutputNames;
use crate::privileges::{self, Acting, Readable};
use crate::resolve::{self, BY_ID, Relation};
use crate::statement::locking::{is_limited, unbracket};
use crate::statement::{LockClause, fold};
use crate::walk::walk;
use datafusion::sql::sqlparser::ast;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState};
use tidepool_database::{AccessObject, LockWait, ViewDef};
use tidepool_table::TableVersion;
use tidepool_table::rows::RowLock;

/// A view whose query is read.
#[derive(Clone)]
pub struct View {
    pub def: Arc<ViewDef>,
    /// Views around it.
    pub depth: usize,
}

/// What a name in schema `pg_oid` stands for in a query that was rewritten.
pub enum Source {
    /// A table with its rows' ids, perhaps as a view knows it.
    Table { version: Arc<TableVersion>, place: usize, readable: Readable, view: Option<View> },
    /// A view with the ids of rows of these targets.
    View { view: View, query: Box<ast::Query>, places: Vec<usize>, clause: &'static str },
}

/// A query that locks rows, rewritten.
pub struct Reading {
    pub query: Box<ast::Query>,
    /// Its first clause, for messages.
    pub clause: &'static str,
    pub targets: Vec<Target>,
    /// By name; each after those that it reads.
    pub sources: Vec<(String, Source)>,
    /// The view that it is the query of.
    pub within: Option<View>,
    pub names: OutputNames,
}

/// Common table expressions that a query may read.
#[derive(Clone, Default)]
pub struct Scope {
    pub tables: Vec<ast::Cte>,
    pub recursive: bool,
}

impl Scope {
    pub fn with(&self, with: Option<&ast::With>) -> Scope {
        let Some(with) = with else { return self.clone() };
        let own =
            |table: &&ast::Cte| with.cte_tables.iter().any(|own| fold(&own.alias.name) == fold(&table.alias.name));
        let around = self.tables.iter().filter(|table| !own(table)).cloned();
        Scope {
            tables: around.chain(with.cte_tables.iter().cloned()).collect(),
            recursive: self.recursive || with.recursive,
        }
    }

    fn has(&self, name: &str) -> bool {
        self.tables.iter().any(|table| fold(&table.alias.name) == name)
    }

    /// A query that can be run by itself, with all that it may read here.
    pub fn around(&self, mut query: ast::Query) -> Box<ast::Query> {
        let scope = self.with(query.with.as_ref());
        if !scope.tables.is_empty() {
            let with_token =
                query.with.map_or_else(ast::helpers::attached_token::AttachedToken::empty, |with| with.with_token);
            query.with = Some(ast::With { with_token, recursive: scope.recursive, cte_tables: scope.tables });
        }
        Box::new(query)
    }
}

/// A column of ids on its way up.
struct Hidden {
    place: usize,
    /// What it is qualified by.
    relation: Option<String>,
}

/// What is asked of the `FROM` of one query.
struct Level<'a> {
    clauses: &'a [LockClause],
    /// Of each clause the names that it was found to mean.
    named: Vec<BTreeSet<String>>,
    scope: Scope,
    view: Option<View>,
    acting: Acting,
}

impl Level<'_> {
    /// The strongest lock, and the most impatient wait, that clauses ask of a name.
    fn asked(&mut self, name: &str) -> Option<LockClause> {
        let mut asked: Option<LockClause> = None;
        for (clause, named) in self.clauses.iter().zip(&mut self.named) {
            if !clause.of.is_empty() && !clause.of.iter().any(|known| known == name) {
                continue;
            }
            named.insert(name.to_owned());
            let (lock, wait) = asked.map_or((clause.lock, clause.wait), |asked| (asked.lock, asked.wait));
            asked = Some(LockClause { lock: lock.max(clause.lock), of: Vec::new(), wait: wait.max(clause.wait) });
        }
        asked
    }

    /// What has no rows to lock is passed over, unless it is named.
    fn unlockable(&mut self, name: &str, what: &str) -> Result<()> {
        let is_named = self.clauses.iter().any(|clause| clause.of.iter().any(|known| known == name));
        match self.asked(name) {
            Some(clause) if is_named => {
                Err(Error::unsupported(format!("{} cannot be applied to {what}", clause.name())))
            }
            _ => Ok(()),
        }
    }
}

/// Reads the queries of one statement that lock rows.
pub struct Reader<'a> {
    pub facts: &'a Arc<SessionFacts>,
    /// Those that run before the statement, each after those that it reads.
    pub parts: Vec<Part>,
    targets: Vec<Target>,
    sources: Vec<(String, Source)>,
    /// Ids are only read.
    reads_only: bool,
}

pub fn id_name(place: usize) -> String {
    format!("\u{1}lock{place}")
}

impl<'a> Reader<'a> {
    pub fn new(facts: &'a Arc<SessionFacts>) -> Reader<'a> {
        Reader { facts, parts: Vec::new(), targets: Vec::new(), sources: Vec::new(), reads_only: false }
    }

    /// For a query whose rows' ids are wanted, and not locked.
    pub fn of_readers(facts: &'a Arc<SessionFacts>) -> Reader<'a> {
        Reader { reads_only: true, ..Reader::new(facts) }
    }

    /// `query` has no clauses of its own any more, and those of queries within it were taken care of.
    pub fn read(
        &mut self,
        mut query: Box<ast::Query>,
        clauses: &[LockClause],
        within: Option<View>,
    ) -> Result<Reading> {
        let names = OutputNames::of(&query);
        let clause = clauses.first().map_or("FOR UPDATE", LockClause::name);
        if let ast::SetExpr::Values(_) = query.body.as_ref() {
            return Err(Error::unsupported(format!("{clause} cannot be applied to VALUES")));
        }
        // A part may be read amid another.
        let around = (std::mem::take(&mut self.targets), std::mem::take(&mut self.sources));
        let read = self.level(&mut query, clauses, &Scope::default(), within.as_ref());
        let targets = std::mem::replace(&mut self.targets, around.0);
        let sources = std::mem::replace(&mut self.sources, around.1);
        read.map(|_| Reading { query, clause, targets, sources, within, names })
    }

    fn acting(&self, view: Option<&View>) -> Acting {
        let catalog = &self.facts.version.catalog;
        let owner = view.map(|view| catalog.owner_of(&AccessObject::Relation(view.def.id)));
        owner.map_or_else(|| self.facts.role.clone(), |owner| Acting::of(catalog, owner))
    }

    /// Rewrites a query; returns the places of the targets whose rows' ids are its last outputs.
    fn level(
        &mut self,
        query: &mut ast::Query,
        clauses: &[LockClause],
        scope: &Scope,
        view: Option<&View>,
    ) -> Result<Vec<usize>> {
        let first = clauses.first().map_or("FOR UPDATE", LockClause::name);
        let refused = |what: &str| Err(Error::unsupported(format!("{first} is not allowed with {what}")));
        let scope = scope.with(query.with.as_ref());
        check_outputs(query, first)?;
        let select = match query.body.as_mut() {
            ast::SetExpr::Select(select) => select,
            ast::SetExpr::Values(_) => return Ok(Vec::new()),
            _ => return refused("UNION/INTERSECT/EXCEPT"),
        };
        if select.distinct.is_some() {
            return refused("DISTINCT clause");
        }
        if !matches!(&select.group_by, ast::GroupByExpr::Expressions(keys, _) if keys.is_empty()) {
            return refused("GROUP BY clause");
        }
        if select.having.is_some() {
            return refused("HAVING clause");
        }
        let acting = self.acting(view);
        let mut level =
            Level { clauses, named: vec![BTreeSet::new(); clauses.len()], scope, view: view.cloned(), acting };
        let mut hidden = Vec::new();
        for table in &mut select.from {
            hidden.append(&mut self.joined(table, false, &mut level)?);
        }
        for (clause, named) in clauses.iter().zip(&level.named) {
            if let Some(missing) = clause.of.iter().find(|name| !named.contains(*name)) {
                return Err(Error::new(
                    SqlState::UNDEFINED_TABLE,
                    format!("relation \"{missing}\" in {} clause not found in FROM clause", clause.name()),
                ));
            }
        }
        hide(&mut select.projection, &hidden);
        for hidden in &hidden {
            let name = ast::Ident::with_quote('"', id_name(hidden.place));
            let expr = ast::Expr::Identifier(name.clone());
            select.projection.push(ast::SelectItem::ExprWithAlias { expr, alias: name });
        }
        Ok(hidden.into_iter().map(|hidden| hidden.place).collect())
    }

    fn joined(
        &mut self,
        table: &mut ast::TableWithJoins,
        nullable: bool,
        level: &mut Level<'_>,
    ) -> Result<Vec<Hidden>> {
        use ast::JoinOperator::{FullOuter, Left, LeftOuter, Right, RightOuter};
        let is_right = |join: &ast::Join| matches!(join.join_operator, Right(_) | RightOuter(_) | FullOuter(_));
        let first = nullable || table.joins.iter().any(is_right);
        let mut hidden = self.factor(&mut table.relation, first, level)?;
        for place in 0..table.joins.len() {
            let later = table.joins[place + 1..].iter().any(is_right);
            let join = &mut table.joins[place];
            let own = matches!(join.join_operator, Left(_) | LeftOuter(_) | FullOuter(_));
            hidden.append(&mut self.factor(&mut join.relation, nullable || later || own, level)?);
        }
        Ok(hidden)
    }

    fn factor(&mut self, factor: &mut ast::TableFactor, nullable: bool, level: &mut Level<'_>) -> Result<Vec<Hidden>> {
        match factor {
            ast::TableFactor::NestedJoin { table_with_joins, alias } => {
                let mut hidden = self.joined(table_with_joins, nullable, level)?;
                if let Some(alias) = alias {
                    let name = fold(&alias.name);
                    if level.clauses.iter().any(|clause| clause.of.contains(&name)) {
                        level.unlockable(&name, "a join")?;
                    }
                    hidden.iter_mut().for_each(|hidden| hidden.relation = Some(name.clone()));
                }
                Ok(hidden)
            }
            ast::TableFactor::Table { name, alias, args: None, .. } => self.relation(name, alias, nullable, level),
            ast::TableFactor::Derived { alias, subquery, .. } => {
                let shown = alias.as_ref().map(|alias| fold(&alias.name)).unwrap_or_default();
                if reads_functions(subquery) {
                    return level.unlockable(&shown, "a function").map(|()| Vec::new());
                }
                let Some(clause) = level.asked(&shown) else { return Ok(Vec::new()) };
                check_nullable(nullable, &clause)?;
                unbracket(subquery);
                if is_limited(subquery) {
                    let own = level.scope.around(subquery.as_ref().clone());
                    let number = self.part(own, &[clause], level.view.clone(), None)?;
                    **subquery = all_of_part(number)?;
                    return Ok(Vec::new());
                }
                let (scope, view) = (level.scope.clone(), level.view.clone());
                let places = self.level(subquery, &[clause], &scope, view.as_ref())?;
                if let Some(alias) = alias {
                    let names = places.iter().map(|place| id_name(*place)).collect();
                    add_names(alias, &[], names);
                }
                let relation = alias.as_ref().map(|alias| fold(&alias.name));
                Ok(places.into_iter().map(|place| Hidden { place, relation: relation.clone() }).collect())
            }
            // Functions and the like have no rows that others change.
            ast::TableFactor::Function { alias, .. }
            | ast::TableFactor::Table { alias, .. }
            | ast::TableFactor::UNNEST { alias, .. } => {
                let shown = alias.as_ref().map(|alias| fold(&alias.name)).unwrap_or_default();
                level.unlockable(&shown, "a function").map(|()| Vec::new())
            }
            _ => Err(Error::unsupported("rows of this form of FROM cannot be locked")),
        }
    }

    /// Makes a query a part, and returns its number.
    pub fn part(
        &mut self,
        query: Box<ast::Query>,
        clauses: &[LockClause],
        within: Option<View>,
        columns: Option<Vec<String>>,
    ) -> Result<usize> {
        // Reading it may make others.
        let reading = self.read(query, clauses, within)?;
        self.parts.push(Part { reading, columns });
        Ok(self.parts.len() - 1)
    }

    fn relation(
        &mut self,
        name: &mut ast::ObjectName,
        alias: &mut Option<ast::TableAlias>,
        nullable: bool,
        level: &mut Level<'_>,
    ) -> Result<Vec<Hidden>> {
        let named = object_name(name)?;
        if let Some(part) = part_number(&named) {
            // Its rows are locked already, perhaps less than they are to be.
            if let (Some(part), Some(clause)) = (self.parts.get_mut(part), level.asked("")) {
                part.strengthen(clause.lock, clause.wait);
            }
            return Ok(Vec::new());
        }
        let shown = alias.as_ref().map_or_else(|| named.name.clone(), |alias| fold(&alias.name));
        if named.schema.is_none() && level.scope.has(&named.name) {
            return level.unlockable(&shown, "a WITH query").map(|()| Vec::new());
        }
        let Some(clause) = level.asked(&shown) else { return Ok(Vec::new()) };
        let found = resolve::relation(self.facts, named.schema.as_deref(), &named.name);
        let relation = found.ok_or_else(|| resolve::missing(&named))?;
        match &relation {
            Relation::Sequence(sequence) => {
                return Err(Error::new(
                    SqlState::WRONG_OBJECT_TYPE,
                    format!("cannot lock rows in sequence \"{}\"", sequence.def.name),
                ));
            }
            Relation::System(relation) => return Err(crate::errors::system_relation(relation.name)),
            Relation::Table(_) | Relation::View(_) => {}
        }
        check_nullable(nullable, &clause)?;
        if !level.acting.is_superuser {
            privileges::check_schema(self.facts, &level.acting, named.schema.as_deref())?;
        }
        let readable = match self.reads_only {
            true => privileges::check_read(self.facts, &level.acting, &relation)?,
            false => privileges::check_lock(self.facts, &level.acting, &relation)?,
        };
        let (places, columns) = match &relation {
            Relation::Table(version) => {
                let tree = self.facts.version.partition_tree(&version.def)?;
                let place = self.targets.len();
                let (lock, wait) = (clause.lock, clause.wait);
                self.targets.push(Target { version: version.clone(), lock, wait, tree });
                let (version, view) = (version.clone(), level.view.clone());
                let columns = crate::view::columns_then(view.as_ref().map(|view| &*view.def), &relation);
                *name = self.source(Source::Table { version, place, readable, view });
                (vec![place], columns)
            }
            Relation::View(view) => {
                let depth = level.view.as_ref().map_or(0, |view| view.depth + 1);
                let view = View { def: view.clone(), depth };
                let places = self.view(name, &view, &clause)?;
                (places, view.def.columns.iter().map(|column| column.name.clone()).collect())
            }
            _ => return Ok(Vec::new()),
        };
        let alias = alias.get_or_insert_with(|| ast::TableAlias {
            explicit: true,
            name: ast::Ident::with_quote('"', &named.name),
            columns: Vec::new(),
            at: None,
        });
        add_names(alias, &columns, places.iter().map(|place| id_name(*place)).collect());
        Ok(places.into_iter().map(|place| Hidden { place, relation: Some(shown.clone()) }).collect())
    }

    /// Gives a source a name, and returns it.
    fn source(&mut self, source: Source) -> ast::ObjectName {
        let name = format!("\u{1}source{}", self.sources.len());
        self.sources.push((name.clone(), source));
        ast::ObjectName::from(vec![ast::Ident::with_quote('"', BY_ID), ast::Ident::with_quote('"', name)])
    }

    /// Locks rows of the tables that a view reads. `name` is what the query reads in its place.
    fn view(&mut self, name: &mut ast::ObjectName, view: &View, clause: &LockClause) -> Result<Vec<usize>> {
        let mut query = crate::view::query_of(&view.def, view.depth)?;
        if matches!(query.body.as_ref(), ast::SetExpr::SetOperation { .. }) {
            // As in PostgreSQL, which looks for tables in its FROM.
            return Ok(Vec::new());
        }
        let clauses = [clause.clone()];
        if is_limited(&query) {
            let columns = view.def.columns.iter().map(|column| column.name.clone()).collect();
            let number = self.part(query, &clauses, Some(view.clone()), Some(columns))?;
            *name = super::parts::name_of(number);
            return Ok(Vec::new());
        }
        let places = self.level(&mut query, &clauses, &Scope::default(), Some(view))?;
        if !places.is_empty() {
            let (view, places, clause) = (view.clone(), places.clone(), clause.name());
            *name = self.source(Source::View { view, query, places, clause });
        }
        Ok(places)
    }
}

fn check_nullable(nullable: bool, clause: &LockClause) -> Result<()> {
    match nullable {
        false => Ok(()),
        true => Err(Error::unsupported(format!(
            "{} cannot be applied to the nullable side of an outer join",
            clause.name()
        ))),
    }
}

/// Adds columns to those that an alias names, if it names any. `columns` are the relation's, as far as they are known:
/// an alias may name the first of them only.
fn add_names(alias: &mut ast::TableAlias, columns: &[String], names: Vec<String>) {
    if alias.columns.is_empty() || names.is_empty() {
        return;
    }
    let rest = columns.iter().skip(alias.columns.len()).cloned().collect::<Vec<_>>();
    let column = |name: String| ast::TableAliasColumnDef { name: ast::Ident::with_quote('"', name), data_type: None };
    alias.columns.extend(rest.into_iter().chain(names).map(column));
}

/// Wildcards do not stand for ids.
fn hide(items: &mut [ast::SelectItem], hidden: &[Hidden]) {
    for item in items {
        let (options, relation) = match item {
            ast::SelectItem::Wildcard(options) => (options, None),
            ast::SelectItem::QualifiedWildcard(ast::SelectItemQualifiedWildcardKind::ObjectName(name), options) => {
                (options, name.0.last().and_then(|part| part.as_ident()).map(fold))
            }
            _ => continue,
        };
        let of = hidden.iter().filter(|hidden| relation.is_none() || hidden.relation == relation);
        let names: Vec<ast::ObjectName> =
            of.map(|hidden| ast::ObjectName::from(vec![ast::Ident::with_quote('"', id_name(hidden.place))])).collect();
        if !names.is_empty() {
            options.opt_exclude = Some(ast::ExcludeSelectItem::Multiple(names));
        }
    }
}

/// What may stand in the place of a table and is a function: it has a `FROM` without tables.
fn reads_functions(query: &ast::Query) -> bool {
    struct Tables;
    impl ast::Visitor for Tables {
        type Break = ();
        fn pre_visit_table_factor(&mut self, factor: &ast::TableFactor) -> ControlFlow<()> {
            match factor {
                ast::TableFactor::Table { args: None, .. } => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        }
    }
    match query.body.as_ref() {
        ast::SetExpr::Select(select) if !select.from.is_empty() => walk(query, &mut Tables).is_continue(),
        _ => false,
    }
}

/// 0A000 for outputs that are not a row's own.
fn check_outputs(query: &ast::Query, clause: &str) -> Result<()> {
    struct Outputs {
        /// Queries within.
        depth: usize,
    }
    impl ast::Visitor for Outputs {
        type Break = &'static str;
        fn pre_visit_query(&mut self, _: &ast::Query) -> ControlFlow<Self::Break> {
            self.depth += 1;
            ControlFlow::Continue(())
        }
        fn post_visit_query(&mut self, _: &ast::Query) -> ControlFlow<Self::Break> {
            self.depth -= 1;
            ControlFlow::Continue(())
        }
        fn pre_visit_expr(&mut self, expr: &ast::Expr) -> ControlFlow<Self::Break> {
            match expr {
                ast::Expr::Function(function) if self.depth == 0 && function.over.is_some() => {
                    ControlFlow::Break("window functions")
                }
                ast::Expr::Function(function) if self.depth == 0 && returns_sets(function) => {
                    ControlFlow::Break("set-returning functions in the target list")
                }
                _ => ControlFlow::Continue(()),
            }
        }
    }
    let ast::SetExpr::Select(select) = query.body.as_ref() else { return Ok(()) };
    match walk(&select.projection, &mut Outputs { depth: 0 }) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(what) => Err(Error::unsupported(format!("{clause} is not allowed with {what}"))),
    }
}

fn returns_sets(function: &ast::Function) -> bool {
    let name = function.name.0.last().and_then(|part| part.as_ident()).map(fold).unwrap_or_default();
    matches!(name.as_str(), "unnest" | "generate_series" | "generate_subscripts")
}

/// The stronger of two ways to lock.
pub fn stronger(target: &mut Target, lock: RowLock, wait: LockWait) {
    target.lock = target.lock.max(lock);
    target.wait = target.wait.max(wait);
}
