//! Views: their queries frozen when they are made, planned when they are read, and shown.
//!
//! A frozen query names relations by id, in a schema that nobody can make, and gives each the name that it was called by as
//! alias. When it is planned, a relation has the columns that it had when the view was made, under the names that they had.
//! So later changes of the search path, of names, and of columns that it does not use change nothing for a view.

use crate::catalog::quote_identifier;
use crate::facts::SessionFacts;
use crate::names::OutputNames;
use crate::query::{self, Within};
use crate::resolve::{self, BY_ID, Relation};
use crate::statement::{Command, QualifiedName, Statement, fold, parse_query};
use crate::types;
use crate::walk::walk_mut;
use datafusion::catalog::TableProvider;
use datafusion::catalog::view::ViewTable;
use datafusion::datasource::provider_as_source;
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Expr as PlanExpr, LogicalPlan, LogicalPlanBuilder, ident};
use datafusion::sql::sqlparser::ast::{
    Expr, Ident, JoinConstraint, JoinOperator, ObjectName, Query, Select, SelectItem, SelectItemQualifiedWildcardKind,
    SetExpr, TableAlias, TableAliasColumnDef, TableFactor, VisitorMut, With,
};
use std::collections::HashSet;
use std::fmt::Write;
use std::ops::ControlFlow;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState, TableId};
use tidepool_database::{RelationName, ViewColumn, ViewDef, ViewRelation, ViewSource};

/// Views over views. Planning one takes some stack.
const DEPTH_MAX: usize = 100;

/// An identifier in quotes where it needs them.
fn identifier(name: &str) -> Ident {
    if quote_identifier(name) == name { Ident::new(name) } else { Ident::with_quote('"', name) }
}

fn alias(name: &str) -> TableAlias {
    TableAlias { explicit: true, name: identifier(name), columns: vec![], at: None }
}

/// A relation's columns by number, as they are called now.
fn columns_of(relation: &Relation) -> Vec<(u16, String)> {
    match relation {
        Relation::Table(table) => table.def.columns.iter().map(|column| (column.number, column.name.clone())).collect(),
        Relation::View(view) => (1..).zip(view.columns.iter().map(|column| column.name.clone())).collect(),
        Relation::Sequence(_) => {
            vec![(1, "last_value".to_owned()), (2, "log_cnt".to_owned()), (3, "is_called".to_owned())]
        }
        Relation::System(relation) => (1..).zip(relation.columns.iter().map(|column| column.name.to_owned())).collect(),
    }
}

// -------------------------------------------------------------------------------------------------------------- freezing

/// A query with its names resolved.
struct Frozen {
    text: String,
    relations: Vec<ViewRelation>,
}

/// A relation of the query: its id unless it is the system's, what the query calls it, and its columns.
struct Source {
    id: Option<TableId>,
    name: ObjectName,
    alias: String,
    columns: Vec<(u16, String)>,
}

struct Freezer<'a> {
    facts: &'a SessionFacts,
    /// Names of the common table expressions in reach, by query.
    scopes: Vec<Vec<String>>,
    /// Those of the queries under way, which have been visited.
    withs: Vec<Option<With>>,
    sources: Vec<Source>,
    /// A wildcard is left: it may mean any column.
    wildcard: bool,
}

fn freeze(facts: &SessionFacts, text: &str) -> Result<Frozen> {
    let mut query = parse_query(text)?;
    crate::sequences::freeze(facts, &mut query)?;
    crate::moments::settle(facts, &mut query, &[]);
    let mut freezer = Freezer { facts, scopes: vec![], withs: vec![], sources: vec![], wildcard: false };
    if let ControlFlow::Break(error) = walk_mut(&mut query, &mut freezer) {
        return Err(error);
    }
    let mut used = Used::default();
    let _ = walk_mut(&mut query, &mut used);
    let mut relations: Vec<ViewRelation> = Vec::new();
    for source in &freezer.sources {
        let Some(id) = source.id else { continue };
        let is_used = |name: &String| {
            let of = |alias: Option<&String>| used.names.contains(&(alias.cloned(), name.clone()));
            freezer.wildcard || used.everything || of(None) || of(Some(&source.alias))
        };
        let columns = source.columns.iter().map(|(number, name)| (*number, name.clone(), is_used(name)));
        match relations.iter_mut().find(|relation| relation.id == id) {
            Some(known) => {
                known.columns.iter_mut().zip(columns).for_each(|(known, (.., used))| known.used |= used);
            }
            None => relations.push(ViewRelation {
                id,
                columns: columns.map(|(number, name, used)| ViewSource { number, name, used }).collect(),
            }),
        }
    }
    let text = query.to_string();
    // Relations that are named in expressions only must go on being there, too.
    for id in crate::sequences::named_in(&text) {
        let known = relations.iter().any(|relation| relation.id == id);
        if !known && resolve::by_id(facts, id).is_some() {
            relations.push(ViewRelation { id, columns: Vec::new() });
        }
    }
    Ok(Frozen { text, relations })
}

impl VisitorMut for Freezer<'_> {
    type Break = Error;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        self.scopes.push(Vec::new());
        let mut with = query.with.take();
        for table in with.iter_mut().flat_map(|with| {
            let recursive = with.recursive;
            with.cte_tables.iter_mut().map(move |table| (recursive, table))
        }) {
            let (recursive, table) = table;
            let name = fold(&table.alias.name);
            // Without RECURSIVE, what is within it means the table of that name outside.
            if recursive && let Some(scope) = self.scopes.last_mut() {
                scope.push(name.clone());
            }
            walk_mut(&mut table.query, self)?;
            if !recursive && let Some(scope) = self.scopes.last_mut() {
                scope.push(name);
            }
        }
        self.withs.push(with);
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
        query.with = self.withs.pop().flatten();
        self.scopes.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<Error> {
        if let TableFactor::Table { name, alias, args: None, .. } = factor
            && let Err(error) = self.relation(name, alias)
        {
            return ControlFlow::Break(error);
        }
        ControlFlow::Continue(())
    }

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<Error> {
        self.expand(select);
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<Error> {
        match expr {
            // Its relation has an alias now.
            Expr::CompoundIdentifier(parts) if parts.len() > 2 => drop(parts.drain(..parts.len() - 2)),
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

impl Freezer<'_> {
    fn relation(&mut self, name: &mut ObjectName, known_as: &mut Option<TableAlias>) -> Result<()> {
        let qualified = crate::insert::object_name(name)?;
        if qualified.schema.is_none() && self.scopes.iter().any(|scope| scope.contains(&qualified.name)) {
            return Ok(());
        }
        let found = resolve::relation(self.facts, qualified.schema.as_deref(), &qualified.name);
        let relation = found.ok_or_else(|| resolve::missing(&qualified))?;
        let (id, parts) = match &relation {
            Relation::System(relation) => (None, [relation.schema.to_owned(), relation.name.to_owned()]),
            other => (Some(TableId(other.oid())), [BY_ID.to_owned(), other.oid().to_string()]),
        };
        *name = ObjectName::from(parts.iter().map(|part| identifier(part)).collect::<Vec<_>>());
        let known_as = known_as.get_or_insert_with(|| alias(&qualified.name));
        let mut columns = columns_of(&relation);
        for ((_, column), renamed) in columns.iter_mut().zip(&known_as.columns) {
            *column = fold(&renamed.name);
        }
        self.sources.push(Source { id, name: name.clone(), alias: fold(&known_as.name), columns });
        Ok(())
    }

    /// Writes wildcards out, where all that they stand for is known here.
    fn expand(&mut self, select: &mut Select) {
        let is_wildcard =
            |item: &SelectItem| matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..));
        if !select.projection.iter().any(is_wildcard) {
            return;
        }
        let factors = select
            .from
            .iter()
            .flat_map(|table| std::iter::once(&table.relation).chain(table.joins.iter().map(|join| &join.relation)));
        let sources: Vec<(String, Option<Vec<String>>)> = factors
            .map(|factor| match factor {
                TableFactor::Table { name, alias: Some(alias), args: None, .. } => {
                    let alias = fold(&alias.name);
                    let source = self.sources.iter().rev().find(|source| source.name == *name && source.alias == alias);
                    let names = |source: &Source| source.columns.iter().map(|(_, name)| name.clone()).collect();
                    (alias, source.map(names))
                }
                TableFactor::Derived { alias: Some(alias), .. } => (fold(&alias.name), None),
                _ => (String::new(), None),
            })
            .collect();
        // Columns that a join merges come once, and first.
        let merges =
            select.from.iter().flat_map(|table| &table.joins).any(|join| merged(&join.join_operator).is_some());
        let mut items = Vec::with_capacity(select.projection.len());
        for item in std::mem::take(&mut select.projection) {
            let wanted: Vec<&(String, Option<Vec<String>>)> = match &item {
                SelectItem::Wildcard(options) if options.to_string().is_empty() && !merges => sources.iter().collect(),
                SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), options)
                    if options.to_string().is_empty() =>
                {
                    let alias = name.0.last().and_then(|part| part.as_ident()).map(fold).unwrap_or_default();
                    sources.iter().filter(|source| source.0 == alias).collect()
                }
                _ => Vec::new(),
            };
            if wanted.is_empty() || wanted.iter().any(|source| source.1.is_none()) {
                self.wildcard |= is_wildcard(&item);
                items.push(item);
                continue;
            }
            for (alias, columns) in wanted {
                items.extend(columns.iter().flatten().map(|column| {
                    SelectItem::UnnamedExpr(Expr::CompoundIdentifier(vec![identifier(alias), identifier(column)]))
                }));
            }
        }
        select.projection = items;
    }
}

/// The columns that a join takes together; `None` for one that does not.
pub fn merged(operator: &JoinOperator) -> Option<Vec<String>> {
    let (JoinOperator::Join(constraint)
    | JoinOperator::Inner(constraint)
    | JoinOperator::Left(constraint)
    | JoinOperator::LeftOuter(constraint)
    | JoinOperator::Right(constraint)
    | JoinOperator::RightOuter(constraint)
    | JoinOperator::FullOuter(constraint)) = operator
    else {
        return None;
    };
    match constraint {
        JoinConstraint::Using(columns) => {
            let name = |column: &ObjectName| column.0.last().and_then(|part| part.as_ident()).map(fold);
            Some(columns.iter().filter_map(name).collect())
        }
        JoinConstraint::Natural => Some(Vec::new()),
        _ => None,
    }
}

/// The columns that a query names, with the alias where one is written.
#[derive(Default)]
struct Used {
    names: HashSet<(Option<String>, String)>,
    everything: bool,
}

impl VisitorMut for Used {
    type Break = ();

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        for join in select.from.iter().flat_map(|table| &table.joins) {
            match merged(&join.join_operator) {
                Some(columns) if columns.is_empty() => self.everything = true,
                Some(columns) => self.names.extend(columns.into_iter().map(|column| (None, column))),
                None => {}
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        match expr {
            Expr::Identifier(name) => drop(self.names.insert((None, fold(name)))),
            Expr::CompoundIdentifier(parts) => {
                if let [.., alias, name] = parts.as_slice() {
                    self.names.insert((Some(fold(alias)), fold(name)));
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

// --------------------------------------------------------------------------------------------------------------- making

/// The definition of a view to be made, or, with `replace`, perhaps put in another's place.
pub fn define(
    facts: &Arc<SessionFacts>,
    name: RelationName,
    names: &[String],
    statement: &Statement,
    replace: bool,
) -> Result<ViewDef> {
    let Command::Query(written) = statement.command() else {
        return Err(Error::new(SqlState::SYNTAX_ERROR, "a view is made of a query"));
    };
    if matches!(written.body.as_ref(), SetExpr::Select(select) if select.into.is_some()) {
        return Err(Error::new(SqlState::SYNTAX_ERROR, "views must not contain SELECT INTO"));
    }
    let frozen = freeze(facts, statement.text())?;
    let before = if replace { facts.version.catalog.views.get(&name) } else { None };
    let mut view = ViewDef {
        id: before.map_or(TableId(0), |before| before.id),
        schema: name.schema,
        name: name.name,
        columns: Vec::new(),
        query: frozen.text,
        relations: frozen.relations,
    };
    if let Some(before) = before
        && reads(facts, &view, before.id)
    {
        return Err(Error::new(
            SqlState::INVALID_OBJECT_DEFINITION,
            format!("infinite recursion detected in rules for relation \"{}\"", view.name),
        ));
    }
    let state = facts.planner.state(facts);
    let plan = query_plan(&state, facts, &view, 0)?;
    if let Some(name) = plan.get_parameter_names().map_err(crate::errors::from_datafusion)?.into_iter().min() {
        return Err(Error::new(SqlState::UNDEFINED_PARAMETER, format!("there is no parameter {name}")));
    }
    let analyzed = crate::optimizer::analyze(&state, plan).map_err(crate::errors::from_datafusion)?;
    let schema = types::canonical_schema(analyzed.schema().as_arrow());
    if names.len() > schema.fields().len() {
        return Err(Error::new(SqlState::SYNTAX_ERROR, "CREATE VIEW specifies more column names than columns"));
    }
    let output = OutputNames::of(written);
    for (position, column) in query::columns(&schema, &output).into_iter().enumerate() {
        view.columns.push(ViewColumn {
            name: names.get(position).cloned().unwrap_or(column.name),
            sql_type: column.sql_type,
            type_oid: column.type_oid,
            type_modifier: column.type_modifier,
        });
    }
    for (position, column) in view.columns.iter().enumerate() {
        if view.columns[..position].iter().any(|other| other.name == column.name) {
            return Err(Error::new(
                SqlState::DUPLICATE_COLUMN,
                format!("column \"{}\" specified more than once", column.name),
            ));
        }
    }
    if let Some(before) = before {
        check_replacement(before, &view)?;
    }
    Ok(view)
}

/// Whether a view reads the relation `id`, itself or through other views.
fn reads(facts: &SessionFacts, view: &ViewDef, id: TableId) -> bool {
    let mut pending: Vec<TableId> = view.relations.iter().map(|relation| relation.id).collect();
    let mut seen = HashSet::new();
    while let Some(next) = pending.pop() {
        if next == id {
            return true;
        }
        if seen.insert(next)
            && let Some(view) = facts.version.catalog.view_by_id(next)
        {
            pending.extend(view.relations.iter().map(|relation| relation.id));
        }
    }
    false
}

/// Who reads a view relies on its columns: a replacement may only add some behind them.
fn check_replacement(before: &ViewDef, after: &ViewDef) -> Result<()> {
    let refuse = |message: String| Error::new(SqlState::INVALID_TABLE_DEFINITION, message);
    if after.columns.len() < before.columns.len() {
        return Err(refuse("cannot drop columns from view".to_owned()));
    }
    for (old, new) in before.columns.iter().zip(&after.columns) {
        if old.name != new.name {
            return Err(refuse(format!("cannot change name of view column \"{}\" to \"{}\"", old.name, new.name))
                .with_hint("Use ALTER VIEW ... RENAME COLUMN ... to change name of view column instead."));
        }
        if (old.type_oid, old.type_modifier) != (new.type_oid, new.type_modifier) {
            let shown = |column: &ViewColumn| crate::catalog::format_type(column.type_oid, Some(column.type_modifier));
            return Err(refuse(format!(
                "cannot change data type of view column \"{}\" from {} to {}",
                old.name,
                shown(old),
                shown(new)
            )));
        }
    }
    Ok(())
}

// ------------------------------------------------------------------------------------------------------------- planning

/// A view's query. `depth`: views around it.
pub fn query_of(view: &ViewDef, depth: usize) -> Result<Box<Query>> {
    if depth > DEPTH_MAX {
        return Err(Error::new(SqlState::STATEMENT_TOO_COMPLEX, "stack depth limit exceeded")
            .with_detail(format!("Views are nested more than {DEPTH_MAX} deep.")));
    }
    match crate::statement::parse(&view.query)?.first().map(Statement::command) {
        Some(Command::Query(query)) => Ok(query.clone()),
        _ => Err(Error::internal(format!("view \"{}\" has no query", view.name))),
    }
}

fn query_plan(state: &SessionState, facts: &Arc<SessionFacts>, view: &ViewDef, depth: usize) -> Result<LogicalPlan> {
    let query = query_of(view, depth)?;
    query::logical_plan_within(state, facts, query, Vec::new(), None, Some(Within { view, depth }))
}

/// The view as a table that queries read: its plan takes its place in theirs.
pub fn provider(
    state: &SessionState,
    facts: &Arc<SessionFacts>,
    view: &ViewDef,
    depth: usize,
) -> Result<Arc<dyn TableProvider>> {
    let plan = crate::planning::within_view(|| query_plan(state, facts, view, depth))?;
    as_table(view, plan, std::iter::empty())
}

/// The plan of a view's query, with these columns behind the view's own, as a table.
pub fn as_table(
    view: &ViewDef,
    plan: LogicalPlan,
    hidden: impl Iterator<Item = String>,
) -> Result<Arc<dyn TableProvider>> {
    let outputs: Vec<PlanExpr> = (view.columns.iter().enumerate())
        .map(|(position, column)| PlanExpr::Column(plan.schema().qualified_field(position).into()).alias(&column.name))
        .chain(hidden.map(ident))
        .collect();
    let plan = LogicalPlanBuilder::from(plan)
        .project(outputs)
        .and_then(|plan| plan.alias(crate::origins::view_mark(view.id)))
        .and_then(LogicalPlanBuilder::build)
        .map_err(crate::errors::from_datafusion)?;
    Ok(Arc::new(ViewTable::new(plan, None)))
}

/// Names of a relation's columns, perhaps as they were when a view that reads it was made.
pub fn columns_then(view: Option<&ViewDef>, relation: &Relation) -> Vec<String> {
    let then = view.and_then(|view| view.relations.iter().find(|then| then.id.0 == relation.oid()));
    match then {
        None => columns_of(relation).into_iter().map(|(_, name)| name).collect(),
        Some(then) => {
            let now = columns_of(relation);
            let is_there = |column: &&ViewSource| now.iter().any(|now| now.0 == column.number);
            then.columns.iter().filter(is_there).map(|column| column.name.clone()).collect()
        }
    }
}

/// A relation as it was when a view that reads it was made, with a column of the provider's more.
pub fn as_it_was(
    view: &ViewDef,
    relation: &Relation,
    provider: Arc<dyn TableProvider>,
    hidden: Option<&str>,
) -> Result<Arc<dyn TableProvider>> {
    let Some(then) = view.relations.iter().find(|then| then.id.0 == relation.oid()) else { return Ok(provider) };
    let now = columns_of(relation);
    if now.len() == then.columns.len()
        && now.iter().zip(&then.columns).all(|(now, then)| now.0 == then.number && now.1 == then.name)
    {
        return Ok(provider);
    }
    let outputs: Vec<PlanExpr> = (then.columns.iter())
        .filter_map(|column| {
            let (_, name) = now.iter().find(|now| now.0 == column.number)?;
            Some(ident(name).alias(&column.name))
        })
        .chain(hidden.map(ident))
        .collect();
    let plan = LogicalPlanBuilder::scan("relation", provider_as_source(provider), None)
        .and_then(|plan| plan.project(outputs))
        .and_then(LogicalPlanBuilder::build)
        .map_err(crate::errors::from_datafusion)?;
    Ok(Arc::new(ViewTable::new(plan, None)))
}

// -------------------------------------------------------------------------------------------------------------- showing

/// A view's query as SQL that means the same now.
pub fn definition(facts: &SessionFacts, view: &ViewDef) -> String {
    let Ok(mut query) = parse_query(&view.query) else { return view.query.clone() };
    let _ = walk_mut(&mut query, &mut Thaw { facts, view });
    name_outputs(&mut query, view);
    format!("{};", crate::sequences::shown(facts, &layout(&query)))
}

/// Gives the outputs the names of the view's columns.
fn name_outputs(query: &mut Query, view: &ViewDef) {
    let SetExpr::Select(select) = query.body.as_mut() else { return };
    if select.projection.len() != view.columns.len() {
        return;
    }
    for (item, column) in select.projection.iter_mut().zip(&view.columns) {
        let expr = match item {
            SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => expr,
            _ => return,
        };
        let plain = match expr {
            Expr::Identifier(name) => fold(name) == column.name,
            Expr::CompoundIdentifier(parts) => parts.last().is_some_and(|name| fold(name) == column.name),
            _ => false,
        };
        let expr = expr.clone();
        *item = match plain {
            true => SelectItem::UnnamedExpr(expr),
            false => SelectItem::ExprWithAlias { expr, alias: identifier(&column.name) },
        };
    }
}

struct Thaw<'a> {
    facts: &'a SessionFacts,
    view: &'a ViewDef,
}

impl VisitorMut for Thaw<'_> {
    type Break = ();

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        let TableFactor::Table { name, alias, args: None, .. } = factor else { return ControlFlow::Continue(()) };
        let Ok(QualifiedName { schema: Some(schema), name: id }) = crate::insert::object_name(name) else {
            return ControlFlow::Continue(());
        };
        let Some(relation) = resolve::in_schema(self.facts, &schema, &id) else { return ControlFlow::Continue(()) };
        let (schema, current) = match &relation {
            Relation::Table(table) => (table.def.schema, table.def.name.clone()),
            Relation::View(view) => (view.schema, view.name.clone()),
            Relation::Sequence(sequence) => (sequence.def.schema, sequence.def.name.clone()),
            Relation::System(_) => {
                if alias.as_ref().is_some_and(|alias| fold(&alias.name) == id && alias.columns.is_empty()) {
                    *alias = None;
                }
                return ControlFlow::Continue(());
            }
        };
        let visible =
            crate::catalog::is_visible(self.facts, relation.oid(), self.facts.version.schema_name(schema), &current);
        let mut parts = vec![identifier(&current)];
        if !visible {
            parts.insert(0, identifier(self.facts.version.schema_name(schema)));
        }
        *name = ObjectName::from(parts);
        let then = self.view.relations.iter().find(|then| then.id.0 == relation.oid());
        let now = columns_of(&relation);
        let called = |number: u16| then.and_then(|then| then.columns.iter().find(|column| column.number == number));
        let renamed = now.iter().any(|now| called(now.0).is_some_and(|then| then.name != now.1));
        if let Some(known_as) = alias {
            if renamed && known_as.columns.is_empty() {
                let names = now.iter().map(|now| called(now.0).map_or(&now.1, |then| &then.name));
                known_as.columns =
                    names.map(|name| TableAliasColumnDef { name: identifier(name), data_type: None }).collect();
            }
            known_as.explicit = false;
            if known_as.columns.is_empty() && fold(&known_as.name) == current {
                *alias = None;
            }
        }
        ControlFlow::Continue(())
    }
}

/// The query over several lines, as PostgreSQL lays out simple ones.
fn layout(query: &Query) -> String {
    let SetExpr::Select(select) = query.body.as_ref() else { return format!(" {query}") };
    let Select { projection, from, selection, .. } = select.as_ref();
    let mut rest = Select::clone(select);
    rest.projection.clear();
    rest.from.clear();
    rest.selection = None;
    // What is left is shown as it comes: `GROUP BY … ORDER BY …`.
    let mut bare = query.clone();
    *bare.body = SetExpr::Select(Box::new(rest));
    let bare = bare.to_string();
    let (Some(tail), None, None) = (bare.strip_prefix("SELECT").map(str::trim), &select.distinct, &query.with) else {
        return format!(" {query}");
    };
    let join = |items: Vec<String>, separator: &str| items.join(separator);
    let mut text = format!(" SELECT {}", join(projection.iter().map(ToString::to_string).collect(), ",\n    "));
    if !from.is_empty() {
        let _ = write!(text, "\n   FROM {}", join(from.iter().map(ToString::to_string).collect(), ",\n    "));
    }
    if let Some(condition) = selection {
        let _ = write!(text, "\n  WHERE {condition}");
    }
    if !tail.is_empty() {
        let _ = write!(text, "\n  {tail}");
    }
    text
}
