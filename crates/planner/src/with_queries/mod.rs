//! `WITH` queries that are computed once, however often they are read.
//!
//! DataFusion writes a `WITH` query out wherever it is read. That gives its rules the most to go by, and parts that come to be the same
//! are computed once all the same (`tidepool_engine`'s common rows). It is wrong where a query has volatile functions, which then give each
//! reader other values; and a text whose queries read each other twice is written out in a plan that doubles with each. Those become
//! tables of their own ([`rows`]) before DataFusion sees the statement: in place of their names stands that of a table in schema `pg_oid`.
//!
//! As in PostgreSQL, such a query is computed once a statement and no further than it is read. One that names columns of the query around
//! it is nobody's but that query's, and stays where it is: as often as it is read, up to a bound.

mod rows;

pub(crate) use rows::{SharedQuery, bind, parameter_fields};

use crate::query::Names;
use crate::resolve::{self, BY_ID, Relation};
use crate::statement::{fold, parse_query};
use crate::walk::{walk, walk_mut};
use datafusion::catalog::TableProvider;
use datafusion::logical_expr::{LogicalPlan, Volatility};
use datafusion::sql::sqlparser::ast::{
    Cte, CteAsMaterialized, Expr, Ident, ObjectName, Query, Select, TableAlias, TableFactor, Visitor, VisitorMut, With,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState};

/// Operators that all places together may have where a `WITH` query is written out, as far as its text tells.
const WRITTEN_OUT_MAX: usize = 128;

/// As many where it must be written out, as it cannot be a table: a text that doubles it with each line is refused.
const MUST_BE_WRITTEN_OUT_MAX: usize = 1_000;

/// Views over views that are asked for volatile functions.
const VIEWS_DEEP_MAX: usize = 16;

/// Makes the plan of a query by itself.
pub(crate) type Planned<'a> =
    dyn FnMut(&BTreeMap<String, Arc<dyn TableProvider>>, Box<Query>) -> Result<LogicalPlan> + 'a;

/// Replaces what names those of a query's `WITH` queries, at whatever depth, that are to be computed once. Gives their tables, by name in
/// schema `pg_oid`. 54001 where what cannot be a table would be written out too often.
pub(crate) fn share(
    names: &Names<'_>,
    query: &mut Query,
    planned: &mut Planned<'_>,
) -> Result<BTreeMap<String, Arc<dyn TableProvider>>> {
    let tables = BTreeMap::new();
    if walk(query, &mut HasWith).is_continue() {
        return Ok(tables);
    }
    let mut sharing = Sharing { names, planned, tables, scopes: Vec::new(), withs: Vec::new(), views: HashMap::new() };
    match walk_mut(query, &mut sharing) {
        ControlFlow::Continue(()) => Ok(sharing.tables),
        ControlFlow::Break(error) => Err(error),
    }
}

struct HasWith;

impl Visitor for HasWith {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        if query.with.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// What the name of a `WITH` query stands for.
#[derive(Clone)]
enum Meaning {
    /// A table of this name.
    Shared(String),
    /// What is written out, and how much that is.
    Written { cte: Box<Cte>, recursive: bool, weight: usize },
}

struct Sharing<'n, 'p, 'f> {
    names: &'n Names<'n>,
    planned: &'p mut Planned<'f>,
    tables: BTreeMap<String, Arc<dyn TableProvider>>,
    /// What names mean, by query around.
    scopes: Vec<BTreeMap<String, Meaning>>,
    /// What is left of the `WITH` of each of them, which has been visited.
    withs: Vec<Option<With>>,
    /// Whether views are volatile.
    views: HashMap<String, bool>,
}

impl VisitorMut for Sharing<'_, '_, '_> {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        self.scopes.push(BTreeMap::new());
        let mut with = query.with.take();
        if let Some(with) = &mut with {
            self.with(with, query)?;
        }
        self.withs.push(with.filter(|with| !with.cte_tables.is_empty()));
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        self.scopes.pop();
        query.with = self.withs.pop().flatten();
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
        if let TableFactor::Table { name, alias, args: None, .. } = factor
            && let Some(called) = own_name(name)
            && let Some(Meaning::Shared(table)) = self.meaning(&called)
        {
            let known = Ident::with_quote('"', called);
            *name = ObjectName::from(vec![Ident::new(BY_ID), Ident::with_quote('"', table.clone())]);
            alias.get_or_insert_with(|| TableAlias { explicit: true, name: known, columns: vec![], at: None });
        }
        ControlFlow::Continue(())
    }
}

/// 54001.
fn too_many(cte: &Cte, operators: usize) -> Error {
    Error::new(SqlState::STATEMENT_TOO_COMPLEX, "stack depth limit exceeded").with_detail(format!(
        "WITH query \"{}\" would have to be written out where it is read, with {operators} operators in all; the limit is {MUST_BE_WRITTEN_OUT_MAX}.",
        fold(&cte.alias.name)
    ))
}

/// A name without a schema, which a `WITH` query may have.
fn own_name(name: &ObjectName) -> Option<String> {
    match name.0.as_slice() {
        [name] => name.as_ident().map(fold),
        _ => None,
    }
}

impl Sharing<'_, '_, '_> {
    fn meaning(&self, name: &str) -> Option<&Meaning> {
        self.scopes.iter().rev().find_map(|scope| scope.get(name))
    }

    /// Settles the queries of a `WITH`, in their order, and leaves those in it that are written out.
    fn with(&mut self, with: &mut With, around: &Query) -> ControlFlow<Error> {
        let recursive = with.recursive;
        let mut waiting: Vec<Cte> = std::mem::take(&mut with.cte_tables);
        waiting.reverse();
        while let Some(mut cte) = waiting.pop() {
            let name = fold(&cte.alias.name);
            if recursive && let Some(scope) = self.scopes.last_mut() {
                // What names itself means itself.
                let itself = Meaning::Written { cte: Box::new(cte.clone()), recursive, weight: 1 };
                scope.insert(name.clone(), itself);
            }
            walk_mut(&mut cte.query, self)?;
            let mut counted = Counted { name: &name, times: 0 };
            for later in &waiting {
                let _ = walk(&later.query, &mut counted);
            }
            let _ = walk(around, &mut counted);
            let times = counted.times;
            let weight = self.weight(&cte.query);
            let is_itself = recursive && {
                let mut own = Counted { name: &name, times: 0 };
                let _ = walk(&cte.query, &mut own);
                own.times > 0
            };
            let is_twice = times > 1
                && (is_itself
                    || matches!(cte.materialized, Some(CteAsMaterialized::Materialized))
                    || weight.saturating_mul(times) > WRITTEN_OUT_MAX);
            let is_shared = times > 0 && (is_twice || self.is_volatile(cte.query.as_ref(), 0));
            let table = if is_shared { self.table(&cte, recursive) } else { None };
            let meaning = match table {
                Some(table) => Meaning::Shared(table),
                None => {
                    let operators = weight.saturating_mul(times);
                    if times > 1 && operators > MUST_BE_WRITTEN_OUT_MAX {
                        return ControlFlow::Break(too_many(&cte, operators));
                    }
                    with.cte_tables.push(cte.clone());
                    Meaning::Written { cte: Box::new(cte), recursive, weight }
                }
            };
            if let Some(scope) = self.scopes.last_mut() {
                scope.insert(name, meaning);
            }
        }
        ControlFlow::Continue(())
    }

    /// The table that a query's rows are, unless it cannot be planned by itself.
    fn table(&mut self, cte: &Cte, recursive: bool) -> Option<String> {
        let mut ctes = Vec::new();
        let mut recursive = recursive;
        self.needed(&cte.query, &mut BTreeSet::from([fold(&cte.alias.name)]), &mut ctes, &mut recursive);
        ctes.push(Cte { materialized: None, ..cte.clone() });
        let mut query = parse_query(&format!("SELECT * FROM {}", cte.alias.name)).ok()?;
        let with_token = ctes.first()?.closing_paren_token.clone();
        query.with = Some(With { with_token, recursive, cte_tables: ctes });
        let plan = (self.planned)(&self.tables, Box::new(query)).ok()?;
        let shared = SharedQuery::of(self.names.state, &cte.alias.name.value, plan)?;
        let name = format!("with {}", self.tables.len());
        self.tables.insert(name.clone(), Arc::new(shared));
        Some(name)
    }

    /// The queries that are written out where a query reads them, what they read themselves before them.
    fn needed(&self, query: &Query, seen: &mut BTreeSet<String>, found: &mut Vec<Cte>, any_recursive: &mut bool) {
        let mut read = Read::default();
        let _ = walk(query, &mut read);
        for name in read.names {
            if let Some(Meaning::Written { cte, recursive, .. }) = self.meaning(&name)
                && seen.insert(name)
            {
                self.needed(&cte.query, seen, found, any_recursive);
                *any_recursive |= recursive;
                found.push(cte.as_ref().clone());
            }
        }
    }

    /// Operators of a query where everything that is to be written out in it is.
    fn weight(&self, query: &Query) -> usize {
        struct Weight<'s, 'n, 'p, 'f>(&'s Sharing<'n, 'p, 'f>, usize);

        impl Visitor for Weight<'_, '_, '_, '_> {
            type Break = ();

            fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
                let own = match factor {
                    TableFactor::Table { name, args: None, .. } => own_name(name),
                    _ => None,
                };
                self.1 = self.1.saturating_add(match own.and_then(|name| self.0.meaning(&name)) {
                    Some(Meaning::Written { weight, .. }) => *weight,
                    _ => 1,
                });
                ControlFlow::Continue(())
            }

            fn pre_visit_select(&mut self, _select: &Select) -> ControlFlow<()> {
                self.1 = self.1.saturating_add(1);
                ControlFlow::Continue(())
            }
        }

        let mut weight = Weight(self, 0);
        let _ = walk(query, &mut weight);
        weight.1
    }

    /// Whether a query calls volatile functions: itself, by what it writes out or by views. What is shared has called them already.
    fn is_volatile(&mut self, query: &Query, depth: usize) -> bool {
        let mut read = Read::default();
        let _ = walk(query, &mut read);
        let volatile = |name: &String| {
            let function = self.names.function(name);
            function.is_some_and(|function| function.signature().volatility == Volatility::Volatile)
        };
        read.functions.iter().any(volatile)
            || read.tables.iter().any(|(schema, name)| self.is_volatile_view(schema.as_deref(), name, depth))
    }

    fn is_volatile_view(&mut self, schema: Option<&str>, name: &str, depth: usize) -> bool {
        if schema.is_none() && self.meaning(name).is_some() || depth > VIEWS_DEEP_MAX {
            return false;
        }
        let Some(Relation::View(view)) = resolve::relation(self.names.facts, schema, name) else { return false };
        let key = format!("{:?}", view.id);
        if let Some(known) = self.views.get(&key) {
            return *known;
        }
        // As long as it is asked about, and where it cannot be read: that is told when it is planned.
        self.views.insert(key.clone(), false);
        let is_volatile = parse_query(&view.query).is_ok_and(|query| self.is_volatile(&query, depth + 1));
        self.views.insert(key, is_volatile);
        is_volatile
    }
}

/// How often something reads a name, whatever hides it.
struct Counted<'a> {
    name: &'a str,
    times: usize,
}

impl Visitor for Counted<'_> {
    type Break = ();

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
        if let TableFactor::Table { name, args: None, .. } = factor
            && own_name(name).as_deref() == Some(self.name)
        {
            self.times += 1;
        }
        ControlFlow::Continue(())
    }
}

/// Names that a query reads and calls.
#[derive(Default)]
struct Read {
    names: BTreeSet<String>,
    tables: BTreeSet<(Option<String>, String)>,
    functions: BTreeSet<String>,
}

impl Read {
    fn calls(&mut self, name: &ObjectName) {
        self.functions.extend(name.0.last().and_then(|part| part.as_ident()).map(fold));
    }
}

impl Visitor for Read {
    type Break = ();

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
        match factor {
            TableFactor::Table { name, args: Some(_), .. } | TableFactor::Function { name, .. } => self.calls(name),
            TableFactor::Table { name, .. } => {
                self.names.extend(own_name(name));
                let mut parts = name.0.iter().rev().map(|part| part.as_ident().map(fold));
                if let Some(Some(table)) = parts.next() {
                    self.tables.insert((parts.next().flatten(), table));
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if let Expr::Function(function) = expr {
            self.calls(&function.name);
        }
        ControlFlow::Continue(())
    }
}
