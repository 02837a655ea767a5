//! `GROUP BY` a table's primary key, which lets a query name the table's other columns without grouping by them.
//!
//! Of a folder from before keys were enforced, a key may stand for several rows. There is still one group a key, and of the
//! other columns it shows one of its rows' values.

use crate::facts::SessionFacts;
use crate::resolve::{self, Relation};
use crate::statement::fold;
use crate::walk::walk_mut;
use datafusion::execution::SessionState;
use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments, GroupByExpr, Ident,
    ObjectName, OrderByKind, Query, Select, SelectItem, SelectItemQualifiedWildcardKind, SetExpr, TableFactor,
    VisitorMut, WildcardAdditionalOptions,
};
use std::ops::ControlFlow;
use std::sync::Arc;
use tidepool_table::TableVersion;

/// Makes columns that a grouping key determines into aggregates. True when there were any.
pub fn complete(query: &mut Query, facts: &SessionFacts, state: &SessionState) -> bool {
    let mut complete = Complete { facts, state, changed: false };
    let _ = walk_mut(query, &mut complete);
    complete.changed
}

struct Complete<'a> {
    facts: &'a SessionFacts,
    state: &'a SessionState,
    changed: bool,
}

impl VisitorMut for Complete<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        let SetExpr::Select(select) = query.body.as_mut() else { return ControlFlow::Continue(()) };
        let Some(columns) = Determined::of(select, self.facts) else { return ControlFlow::Continue(()) };
        select.projection =
            std::mem::take(&mut select.projection).into_iter().flat_map(|item| columns.written_out(item)).collect();
        let mut replace = Replace { columns, state: self.state, inside: 0, changed: false };
        for item in &mut select.projection {
            match item {
                SelectItem::ExprWithAlias { expr, .. } => {
                    let _ = walk_mut(expr, &mut replace);
                }
                SelectItem::UnnamedExpr(expr) => {
                    let name = match &*expr {
                        Expr::Identifier(name) => Some(name.clone()),
                        Expr::CompoundIdentifier(parts) => parts.last().cloned(),
                        _ => None,
                    };
                    let before = std::mem::replace(&mut replace.changed, false);
                    let _ = walk_mut(expr, &mut replace);
                    if let (true, Some(alias)) = (replace.changed, name) {
                        *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias };
                    }
                    replace.changed |= before;
                }
                _ => {}
            }
        }
        if let Some(having) = &mut select.having {
            let _ = walk_mut(having, &mut replace);
        }
        if let Some(order) = &mut query.order_by
            && let OrderByKind::Expressions(order) = &mut order.kind
        {
            for by in order {
                let _ = walk_mut(&mut by.expr, &mut replace);
            }
        }
        self.changed |= replace.changed;
        ControlFlow::Continue(())
    }
}

/// The tables of one `FROM`, and which of their columns the grouping determines.
struct Determined {
    /// Alias, definition if it is a stored table, and whether the grouping has its whole key.
    tables: Vec<(String, Option<Arc<TableVersion>>, bool)>,
    grouped: Vec<(Option<String>, String)>,
}

impl Determined {
    /// `None` when the grouping has no table's key.
    fn of(select: &Select, facts: &SessionFacts) -> Option<Determined> {
        let GroupByExpr::Expressions(by, modifiers) = &select.group_by else { return None };
        if !modifiers.is_empty() {
            return None;
        }
        let grouped = by.iter().filter_map(reference).collect();
        let factors = select
            .from
            .iter()
            .flat_map(|table| std::iter::once(&table.relation).chain(table.joins.iter().map(|join| &join.relation)));
        let tables = factors.map(|factor| {
            let TableFactor::Table { name, alias, args: None, .. } = factor else {
                return (String::new(), None, false);
            };
            let Ok(qualified) = crate::insert::object_name(name) else { return (String::new(), None, false) };
            let version = match resolve::relation(facts, qualified.schema.as_deref(), &qualified.name) {
                Some(Relation::Table(version)) => Some(version),
                _ => None,
            };
            let alias = alias.as_ref().map_or(qualified.name, |alias| fold(&alias.name));
            (alias, version, false)
        });
        let mut determined = Determined { tables: tables.collect(), grouped };
        let keyed: Vec<bool> = (0..determined.tables.len()).map(|index| determined.has_key(index)).collect();
        for (table, keyed) in determined.tables.iter_mut().zip(&keyed) {
            table.2 = *keyed;
        }
        keyed.contains(&true).then_some(determined)
    }

    fn has_key(&self, index: usize) -> bool {
        let Some(version) = &self.tables[index].1 else { return false };
        let key = &version.def.primary_key;
        !key.is_empty()
            && key.iter().all(|&position| {
                let name = &version.def.columns[position].name;
                self.grouped
                    .iter()
                    .any(|(alias, column)| column == name && self.table_of(alias.as_deref(), column) == Some(index))
            })
    }

    /// The table that a column reference means, where that is certain.
    fn table_of(&self, alias: Option<&str>, column: &str) -> Option<usize> {
        let mut found = None;
        for (index, (name, version, _)) in self.tables.iter().enumerate() {
            let possible = match (alias, version) {
                (Some(alias), _) => alias == name,
                (None, Some(version)) => version.def.column_index(column).is_some(),
                (None, None) => true,
            };
            if possible && found.replace(index).is_some() {
                return None;
            }
        }
        found
    }

    /// The columns that `*` and `table.*` stand for, where a key that is grouped by determines some of them.
    fn written_out(&self, item: SelectItem) -> Vec<SelectItem> {
        let columns = |(alias, version, _): &(String, Option<Arc<TableVersion>>, bool)| {
            let alias = Ident::with_quote('"', alias);
            let names = version.iter().flat_map(|version| version.def.columns.iter().map(|column| column.name.clone()));
            let parts = names.map(|name| vec![alias.clone(), Ident::with_quote('"', name)]);
            parts.map(|parts| SelectItem::UnnamedExpr(Expr::CompoundIdentifier(parts))).collect::<Vec<_>>()
        };
        match &item {
            SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), options)
                if *options == WildcardAdditionalOptions::default() =>
            {
                let alias = name.0.last().and_then(|part| part.as_ident()).map(fold);
                let named = self.tables.iter().filter(|(own, ..)| Some(own) == alias.as_ref());
                match named.collect::<Vec<_>>()[..] {
                    [table @ (_, Some(_), true)] => columns(table),
                    _ => vec![item],
                }
            }
            SelectItem::Wildcard(options) if *options == WildcardAdditionalOptions::default() => match &self.tables[..]
            {
                [table @ (_, Some(_), true)] => columns(table),
                _ => vec![item],
            },
            _ => vec![item],
        }
    }

    fn determines(&self, alias: Option<&str>, column: &str) -> bool {
        let Some(index) = self.table_of(alias, column) else { return false };
        let (_, version, keyed) = &self.tables[index];
        let known = version.as_ref().is_some_and(|version| version.def.column_index(column).is_some());
        let grouped = self
            .grouped
            .iter()
            .any(|(alias, name)| name == column && self.table_of(alias.as_deref(), name) == Some(index));
        *keyed && known && !grouped
    }
}

fn reference(expr: &Expr) -> Option<(Option<String>, String)> {
    match expr {
        Expr::Identifier(name) => Some((None, fold(name))),
        Expr::CompoundIdentifier(parts) => match parts.as_slice() {
            [.., alias, name] => Some((Some(fold(alias)), fold(name))),
            _ => None,
        },
        Expr::Nested(inner) => reference(inner),
        _ => None,
    }
}

struct Replace<'a> {
    columns: Determined,
    state: &'a SessionState,
    /// Aggregates and subqueries around what is visited, which are left alone.
    inside: usize,
    changed: bool,
}

impl Replace<'_> {
    fn is_aggregate(&self, expr: &Expr) -> bool {
        let Expr::Function(function) = expr else { return false };
        function.over.is_none()
            && function
                .name
                .0
                .last()
                .and_then(|part| part.as_ident())
                .is_some_and(|name| self.state.aggregate_functions().contains_key(&fold(name)))
    }
}

impl VisitorMut for Replace<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, _query: &mut Query) -> ControlFlow<()> {
        self.inside += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _query: &mut Query) -> ControlFlow<()> {
        self.inside -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        self.inside += usize::from(self.is_aggregate(expr));
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        self.inside -= usize::from(self.is_aggregate(expr));
        if self.inside == 0
            && !matches!(expr, Expr::Nested(_))
            && let Some((alias, column)) = reference(expr)
            && self.columns.determines(alias.as_deref(), &column)
        {
            let argument = FunctionArg::Unnamed(FunctionArgExpr::Expr(expr.clone()));
            *expr = Expr::Function(Function {
                name: ObjectName::from(vec![Ident::new("first_value")]),
                uses_odbc_syntax: false,
                parameters: FunctionArguments::None,
                args: FunctionArguments::List(FunctionArgumentList {
                    duplicate_treatment: None,
                    args: vec![argument],
                    clauses: vec![],
                }),
                filter: None,
                null_treatment: None,
                over: None,
                within_group: vec![],
            });
            self.changed = true;
        }
        ControlFlow::Continue(())
    }
}
