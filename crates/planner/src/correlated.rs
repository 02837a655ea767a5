//! `t.id` within a subquery that reads a column `t`, where `t` is a relation of a query around it.
//!
//! In PostgreSQL a name before a point is that of a relation, whichever query around has it. DataFusion looks for a field
//! of the nearest column of that name first, and finds no relation then (`operators`). So, where a query is refused for
//! that, its relations get names that no column has.

use crate::statement::fold;
use crate::walk::walk_mut;
use datafusion::sql::sqlparser::ast::{
    Expr, Ident, ObjectName, Query, SelectItem, SelectItemQualifiedWildcardKind, SetExpr, TableAlias, TableFactor,
    TableWithJoins, VisitorMut,
};
use std::collections::BTreeSet;
use std::ops::ControlFlow;

/// Renames relations that queries within their own refer to. True when there were any.
pub fn rename(query: &mut Query) -> bool {
    let mut find = Walk { renamed: BTreeSet::new(), scopes: Vec::new(), queries: 0, applies: false };
    let _ = walk_mut(query, &mut find);
    let mut apply = Walk { scopes: Vec::new(), queries: 0, applies: true, ..find };
    let _ = walk_mut(query, &mut apply);
    !apply.renamed.is_empty()
}

/// What a renamed relation is called.
fn other(name: &str) -> Ident {
    Ident::with_quote('"', format!("\u{1}of {name}"))
}

/// Goes through all queries twice: to find out which relations queries within their own refer to, and to rename them.
struct Walk {
    /// Queries, numbered as they are met, and relations of theirs.
    renamed: BTreeSet<(usize, String)>,
    /// The queries around, each with the names of its relations.
    scopes: Vec<(usize, BTreeSet<String>)>,
    queries: usize,
    applies: bool,
}

impl VisitorMut for Walk {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        let number = self.queries;
        self.queries += 1;
        let mut names = BTreeSet::new();
        let mut named = |alias: &mut Option<TableAlias>, name: Option<&ObjectName>| {
            let own = match (&*alias, name) {
                (Some(alias), _) => fold(&alias.name),
                (None, Some(name)) => match name.0.last().and_then(|part| part.as_ident()) {
                    Some(name) => fold(name),
                    None => return,
                },
                (None, None) => return,
            };
            if self.applies && self.renamed.contains(&(number, own.clone())) {
                match alias {
                    Some(alias) => alias.name = other(&own),
                    None => {
                        let name = other(&own);
                        *alias = Some(TableAlias { explicit: true, name, columns: Vec::new(), at: None });
                    }
                }
            }
            names.insert(own);
        };
        relations_of_body(&mut query.body, &mut named);
        if self.applies {
            wildcards(&mut query.body, &|name| self.renamed.contains(&(number, name.to_owned())));
        }
        self.scopes.push((number, names));
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _query: &mut Query) -> ControlFlow<()> {
        self.scopes.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        let Expr::CompoundIdentifier(parts) = expr else { return ControlFlow::Continue(()) };
        let [relation, _] = parts.as_mut_slice() else { return ControlFlow::Continue(()) };
        let name = fold(relation);
        let found = self.scopes.iter().rposition(|(_, names)| names.contains(&name));
        let Some(place) = found else { return ControlFlow::Continue(()) };
        let key = (self.scopes[place].0, name);
        if !self.applies {
            if place + 1 < self.scopes.len() {
                self.renamed.insert(key);
            }
        } else if self.renamed.contains(&key) {
            *relation = other(&key.1);
        }
        ControlFlow::Continue(())
    }
}

type Named<'a> = dyn FnMut(&mut Option<TableAlias>, Option<&ObjectName>) + 'a;

fn relations_of_body(body: &mut SetExpr, named: &mut Named<'_>) {
    match body {
        SetExpr::Select(select) => select.from.iter_mut().for_each(|table| relations(table, named)),
        SetExpr::SetOperation { left, right, .. } => {
            relations_of_body(left, named);
            relations_of_body(right, named);
        }
        _ => {}
    }
}

fn relations(table: &mut TableWithJoins, named: &mut Named<'_>) {
    let joined = table.joins.iter_mut().map(|join| &mut join.relation);
    for factor in std::iter::once(&mut table.relation).chain(joined) {
        match factor {
            TableFactor::Table { name, alias, .. } => named(alias, Some(&*name)),
            TableFactor::Derived { alias, .. }
            | TableFactor::Function { alias, .. }
            | TableFactor::UNNEST { alias, .. }
            | TableFactor::NestedJoin { alias: alias @ Some(_), .. } => named(alias, None),
            TableFactor::NestedJoin { table_with_joins, alias: None } => relations(table_with_joins, named),
            _ => {}
        }
    }
}

fn wildcards(body: &mut SetExpr, is_renamed: &dyn Fn(&str) -> bool) {
    match body {
        SetExpr::Select(select) => {
            for item in &mut select.projection {
                if let SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(name), _) = item
                    && let [part] = name.0.as_slice()
                    && let Some(relation) = part.as_ident().map(fold).filter(|name| is_renamed(name))
                {
                    *name = ObjectName::from(vec![other(&relation)]);
                }
            }
        }
        SetExpr::SetOperation { left, right, .. } => {
            wildcards(left, is_renamed);
            wildcards(right, is_renamed);
        }
        _ => {}
    }
}
