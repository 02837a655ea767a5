//! `JOIN … USING` and `NATURAL JOIN`, written out as joins `ON` a condition.
//!
//! DataFusion takes a merged column for that of the left side, which is NULL in rows that only the right side of an outer
//! join has, and leaves it where it is among the left side's columns. In PostgreSQL it is that of the side that is always
//! there, or of a full join `COALESCE` of both, and comes before the others.

use crate::names::{expression_name, own_name};
use crate::statement::{fold, parse_expression, parse_query};
use crate::view::merged;
use crate::walk::{walk, walk_mut};
use datafusion::sql::sqlparser::ast::{
    Cte, Expr, GroupByExpr, Ident, JoinConstraint, JoinOperator, ObjectName, OrderByKind, Query, Select, SelectItem,
    SelectItemQualifiedWildcardKind, SetExpr, TableAlias, TableFactor, TableWithJoins, VisitMut, Visitor, VisitorMut,
    WildcardAdditionalOptions,
};
use std::collections::HashSet;
use std::ops::ControlFlow;
use tidepool_base::{Error, Result, SqlState};

/// Plans a query, and says how its outputs are called.
pub type Outputs<'a> = dyn FnMut(Box<Query>) -> Result<Vec<String>> + 'a;

/// Writes all of a query's out, whatever depth they are at. 42703 and 42702 for a column that is not once on each side.
///
/// A join is left as it is when something that it joins cannot be planned by itself; of a right or full one that is an error.
pub fn write_out(query: &mut Query, outputs: &mut Outputs<'_>) -> Result<()> {
    if walk(query, &mut Merging).is_break() {
        WriteOut { outputs, ctes: Vec::new(), recursive: false }.query(query)?;
    }
    Ok(())
}

/// Whether there is anything to do.
struct Merging;

impl Visitor for Merging {
    type Break = ();

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        if select.from.iter().any(merges) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

fn merges(table: &TableWithJoins) -> bool {
    let within = |factor: &TableFactor| match factor {
        TableFactor::NestedJoin { table_with_joins, .. } => merges(table_with_joins),
        _ => false,
    };
    let mut joins = table.joins.iter();
    within(&table.relation) || joins.any(|join| within(&join.relation) || merged(&join.join_operator).is_some())
}

fn constraint_mut(operator: &mut JoinOperator) -> Option<&mut JoinConstraint> {
    match operator {
        JoinOperator::Join(constraint)
        | JoinOperator::Inner(constraint)
        | JoinOperator::Left(constraint)
        | JoinOperator::LeftOuter(constraint)
        | JoinOperator::Right(constraint)
        | JoinOperator::RightOuter(constraint)
        | JoinOperator::FullOuter(constraint)
        | JoinOperator::CrossJoin(constraint) => Some(constraint),
        _ => None,
    }
}

/// Whose value a merged column has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keeps {
    Left,
    Right,
    Both,
}

impl Keeps {
    fn of(operator: &JoinOperator) -> Keeps {
        match operator {
            JoinOperator::Right(_) | JoinOperator::RightOuter(_) => Keeps::Right,
            JoinOperator::FullOuter(_) => Keeps::Both,
            _ => Keeps::Left,
        }
    }
}

/// What `*` stands for: a column of what is joined.
#[derive(Clone)]
struct Column {
    name: String,
    expr: Expr,
    is_merged: bool,
}

impl Column {
    fn item(&self) -> SelectItem {
        match &self.expr {
            Expr::CompoundIdentifier(_) => SelectItem::UnnamedExpr(self.expr.clone()),
            expr => SelectItem::ExprWithAlias { expr: expr.clone(), alias: quoted(&self.name) },
        }
    }
}

fn quoted(name: &str) -> Ident {
    Ident::with_quote('"', name)
}

/// Why a `FROM` is not written out.
enum Failure {
    /// A merged column is not once on each side.
    Column(Error),
    /// Something that is joined could not be planned by itself.
    Unplanned(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Unplanned(error)
    }
}

struct WriteOut<'o, 'a> {
    outputs: &'o mut Outputs<'a>,
    /// Those of the queries around, as far as they come before.
    ctes: Vec<Cte>,
    recursive: bool,
}

impl WriteOut<'_, '_> {
    fn query(&mut self, query: &mut Query) -> Result<()> {
        let (depth, recursive) = (self.ctes.len(), self.recursive);
        if let Some(with) = &mut query.with {
            self.recursive |= with.recursive;
            for cte in &mut with.cte_tables {
                self.query(&mut cte.query)?;
                // Of two of one name the inner one is meant.
                let name = fold(&cte.alias.name);
                self.ctes.retain(|other| fold(&other.alias.name) != name);
                self.ctes.push(cte.clone());
            }
        }
        let written = self.body(&mut query.body);
        self.ctes.truncate(depth);
        self.recursive = recursive;
        let Some(columns) = written? else { return Ok(()) };
        let (SetExpr::Select(select), Some(order)) = (query.body.as_ref(), &mut query.order_by) else { return Ok(()) };
        if let OrderByKind::Expressions(order) = &mut order.kind {
            let named: HashSet<String> = select.projection.iter().filter_map(output_name).collect();
            for by in order {
                // The name of an output is that output.
                if !matches!(&by.expr, Expr::Identifier(name) if named.contains(&fold(name))) {
                    self.replace(&columns, &mut by.expr);
                }
            }
        }
        Ok(())
    }

    /// The columns of a `FROM` that was written out.
    fn body(&mut self, body: &mut SetExpr) -> Result<Option<Vec<Column>>> {
        match body {
            SetExpr::Select(select) => return self.select(select),
            SetExpr::Query(query) => self.query(query)?,
            SetExpr::SetOperation { left, right, .. } => {
                self.body(left)?;
                self.body(right)?;
            }
            other => self.within(other)?,
        }
        Ok(None)
    }

    /// Queries within.
    fn within(&mut self, of: &mut impl VisitMut) -> Result<()> {
        struct Within<'w, 'o, 'a> {
            write: &'w mut WriteOut<'o, 'a>,
            depth: usize,
        }
        impl VisitorMut for Within<'_, '_, '_> {
            type Break = Error;

            fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<Error> {
                self.depth += 1;
                match self.depth {
                    1 => self.write.query(query).map_or_else(ControlFlow::Break, ControlFlow::Continue),
                    _ => ControlFlow::Continue(()),
                }
            }

            fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<Error> {
                self.depth -= 1;
                ControlFlow::Continue(())
            }
        }
        match walk_mut(of, &mut Within { write: self, depth: 0 }) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(error) => Err(error),
        }
    }

    fn select(&mut self, select: &mut Select) -> Result<Option<Vec<Column>>> {
        self.within(select)?;
        if !select.from.iter().any(merges) {
            return Ok(None);
        }
        let mut from = select.from.clone();
        let mut columns = Vec::new();
        for table in &mut from {
            if is_lateral(&table.relation) {
                self.replace(&columns, &mut table.relation);
            }
            match self.table(table) {
                Ok(of_table) => columns.extend(of_table),
                Err(Failure::Column(error)) => return Err(error),
                Err(Failure::Unplanned(error)) if select.from.iter().any(is_outer) => return Err(error),
                Err(Failure::Unplanned(_)) => return Ok(None),
            }
        }
        select.from = from;
        for item in std::mem::take(&mut select.projection) {
            match item {
                SelectItem::Wildcard(options) => {
                    let hidden = hidden_by(&options);
                    let shown = columns.iter().filter(|column| !hidden.contains(&column.name));
                    select.projection.extend(shown.map(Column::item));
                }
                SelectItem::UnnamedExpr(mut expr) => {
                    let name = expression_name(&expr);
                    let is_replaced = self.replace(&columns, &mut expr);
                    let is_named = expression_name(&expr) == name || name == "?column?";
                    select.projection.push(match is_replaced && !is_named {
                        true => SelectItem::ExprWithAlias { expr, alias: quoted(&name) },
                        false => SelectItem::UnnamedExpr(expr),
                    });
                }
                mut item => {
                    self.replace(&columns, &mut item);
                    select.projection.push(item);
                }
            }
        }
        self.replace(&columns, &mut select.distinct);
        self.replace(&columns, &mut select.selection);
        match &mut select.group_by {
            GroupByExpr::All(_) => {}
            by @ GroupByExpr::Expressions(..) => drop(self.replace(&columns, by)),
        }
        self.replace(&columns, &mut select.having);
        self.replace(&columns, &mut select.named_window);
        self.replace(&columns, &mut select.qualify);
        Ok(Some(columns))
    }

    fn table(&mut self, table: &mut TableWithJoins) -> Result<Vec<Column>, Failure> {
        let mut left = self.factor(&mut table.relation)?;
        for join in &mut table.joins {
            if is_lateral(&join.relation) {
                self.replace(&left, &mut join.relation);
            }
            let right = self.factor(&mut join.relation)?;
            let keeps = Keeps::of(&join.join_operator);
            let Some(constraint) = constraint_mut(&mut join.join_operator) else {
                return Err(Error::unsupported("USING and NATURAL beside this kind of join are not supported").into());
            };
            let names: Vec<String> = match constraint {
                JoinConstraint::Using(names) => names.iter().filter_map(last_part).map(fold).collect(),
                JoinConstraint::Natural => {
                    let both = |column: &&Column| right.iter().any(|other| other.name == column.name);
                    left.iter().filter(both).map(|column| column.name.clone()).collect()
                }
                JoinConstraint::On(_) | JoinConstraint::None => {
                    left.extend(right);
                    if let JoinConstraint::On(condition) = constraint {
                        self.replace(&left, condition);
                    }
                    continue;
                }
            };
            let (mut columns, mut condition) = (Vec::new(), Vec::new());
            for name in &names {
                let (of_left, of_right) = (only(&left, name, "left")?, only(&right, name, "right")?);
                condition.push(format!("{of_left} = {of_right}"));
                let expr = match keeps {
                    Keeps::Left => of_left.clone(),
                    Keeps::Right => of_right.clone(),
                    Keeps::Both => parse_expression(&format!("COALESCE({of_left}, {of_right})"))?,
                };
                columns.push(Column { name: name.clone(), expr, is_merged: true });
            }
            // NATURAL without a column in common joins every row with every other.
            let condition = if condition.is_empty() { "true".to_owned() } else { condition.join(" AND ") };
            *constraint = JoinConstraint::On(parse_expression(&condition)?);
            let rest = left.into_iter().chain(right).filter(|column| !names.contains(&column.name));
            columns.extend(rest);
            left = columns;
        }
        Ok(left)
    }

    fn factor(&mut self, factor: &mut TableFactor) -> Result<Vec<Column>, Failure> {
        match factor {
            TableFactor::NestedJoin { table_with_joins, alias: None } => return self.table(table_with_joins),
            TableFactor::NestedJoin { table_with_joins, alias } if merges(table_with_joins) => {
                let mut subquery = Box::new(parse_query("SELECT * FROM t")?);
                if let SetExpr::Select(select) = subquery.body.as_mut() {
                    select.from = vec![std::mem::replace(table_with_joins.as_mut(), select.from.remove(0))];
                }
                self.query(&mut subquery)?;
                let alias = alias.take();
                *factor = TableFactor::Derived { lateral: false, subquery, alias, sample: None };
            }
            _ => {}
        }
        let Some(alias) = called(factor) else {
            return Err(Error::unsupported("USING and NATURAL need names for what they join").into());
        };
        let all = self.all_of(factor)?;
        let names = match (self.outputs)(all) {
            Ok(names) => names,
            // It may name columns of what is around it.
            Err(error) => self.names_by_text(factor).ok_or(error)?,
        };
        let column = |name: String| Column {
            expr: Expr::CompoundIdentifier(vec![alias.clone(), quoted(&name)]),
            name: own_name(&name).to_owned(),
            is_merged: false,
        };
        Ok(names.into_iter().map(column).collect())
    }

    /// How the columns of a subquery are called, without planning it.
    fn names_by_text(&mut self, factor: &TableFactor) -> Option<Vec<String>> {
        let TableFactor::Derived { subquery, alias, .. } = factor else { return None };
        let own = self.outputs_by_text(&subquery.body)?;
        let renamed = alias.iter().flat_map(|alias| &alias.columns).map(|column| fold(&column.name));
        let renamed: Vec<String> = renamed.collect();
        let others = own.into_iter().skip(renamed.len());
        Some(renamed.iter().cloned().chain(others).collect())
    }

    fn outputs_by_text(&mut self, body: &SetExpr) -> Option<Vec<String>> {
        let select = match body {
            SetExpr::Select(select) => select,
            SetExpr::SetOperation { left, .. } => return self.outputs_by_text(left),
            SetExpr::Query(query) => return self.outputs_by_text(&query.body),
            SetExpr::Values(values) => {
                return Some((1..=values.rows.first()?.len()).map(|place| format!("column{place}")).collect());
            }
            _ => return None,
        };
        let mut columns = Vec::new();
        if select.projection.iter().any(|item| output_name(item).is_none()) {
            for table in &select.from {
                columns.extend(self.table(&mut table.clone()).ok()?);
            }
        }
        let mut names = Vec::new();
        for item in &select.projection {
            match item {
                SelectItem::Wildcard(options) => {
                    let hidden = hidden_by(options);
                    let all = columns.iter().map(|column| column.name.clone());
                    names.extend(all.filter(|name| !hidden.contains(name)));
                }
                SelectItem::QualifiedWildcard(SelectItemQualifiedWildcardKind::ObjectName(of), _) => {
                    let of = fold(last_part(of)?);
                    let is_of = |column: &&Column| matches!(&column.expr, Expr::CompoundIdentifier(parts) if parts.first().map(fold).as_ref() == Some(&of));
                    names.extend(columns.iter().filter(is_of).map(|column| column.name.clone()));
                }
                item => names.push(output_name(item)?),
            }
        }
        Some(names)
    }

    /// `SELECT *` from one, where the queries around are known if it may mean them.
    fn all_of(&self, factor: &TableFactor) -> Result<Box<Query>> {
        let may_mean = match factor {
            TableFactor::Table { name, args: None, .. } => {
                let name = if name.0.len() == 1 { last_part(name).map(fold) } else { None };
                self.ctes.iter().any(|cte| Some(fold(&cte.alias.name)) == name)
            }
            _ => !self.ctes.is_empty(),
        };
        let mut query = Box::new(parse_query(match may_mean {
            true => "WITH c AS (SELECT 1) SELECT * FROM t",
            false => "SELECT * FROM t",
        })?);
        if let Some(with) = &mut query.with {
            (with.recursive, with.cte_tables) = (self.recursive, self.ctes.clone());
        }
        if let SetExpr::Select(select) = query.body.as_mut()
            && let [table] = select.from.as_mut_slice()
        {
            table.relation = factor.clone();
        }
        Ok(query)
    }

    /// Puts what merged columns are in the place of their names. True if there were any.
    fn replace(&mut self, columns: &[Column], of: &mut impl VisitMut) -> bool {
        let is_only = |column: &&Column| columns.iter().filter(|other| other.name == column.name).count() == 1;
        let merged: Vec<&Column> = columns.iter().filter(|column| column.is_merged).filter(is_only).collect();
        let mut replace = Replace { write: self, merged, scopes: Vec::new(), beside: Vec::new(), replaced: false };
        let _ = walk_mut(of, &mut replace);
        replace.replaced
    }

    /// The names of the columns that queries of a body read from. `None`: they are not known.
    fn names_in(&mut self, body: &SetExpr) -> Option<HashSet<String>> {
        match body {
            SetExpr::Select(select) => {
                let mut names = HashSet::new();
                for table in &select.from {
                    let columns = self.table(&mut table.clone()).ok()?;
                    names.extend(columns.into_iter().map(|column| column.name));
                }
                Some(names)
            }
            SetExpr::SetOperation { left, right, .. } => {
                let mut names = self.names_in(left)?;
                names.extend(self.names_in(right)?);
                Some(names)
            }
            SetExpr::Query(query) => self.names_in(&query.body),
            _ => Some(HashSet::new()),
        }
    }
}

struct Replace<'r, 'c, 'o, 'a> {
    write: &'r mut WriteOut<'o, 'a>,
    merged: Vec<&'c Column>,
    /// Of queries within, the columns that they read themselves: those are meant.
    scopes: Vec<Option<HashSet<String>>>,
    /// Scopes that the relation under way does not see, being one of theirs.
    beside: Vec<Option<HashSet<String>>>,
    replaced: bool,
}

impl VisitorMut for Replace<'_, '_, '_, '_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        let merged = &self.merged;
        let names = |name: &Ident| merged.iter().any(|column| column.name == fold(name));
        let mentions = walk(query, &mut Mentions(names)).is_break();
        let scope = if mentions { self.write.names_in(&query.body) } else { None };
        self.scopes.push(scope);
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.scopes.pop();
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        if matches!(factor, TableFactor::Derived { lateral: false, .. }) {
            self.beside.extend(self.scopes.pop());
        }
        ControlFlow::Continue(())
    }

    fn post_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        if matches!(factor, TableFactor::Derived { lateral: false, .. }) {
            self.scopes.extend(self.beside.pop());
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        let Expr::Identifier(name) = &*expr else { return ControlFlow::Continue(()) };
        let name = fold(name);
        let is_free = self.scopes.iter().all(|scope| scope.as_ref().is_some_and(|names| !names.contains(&name)));
        if let Some(column) = self.merged.iter().find(|column| column.name == name)
            && is_free
        {
            *expr = column.expr.clone();
            self.replaced = true;
        }
        ControlFlow::Continue(())
    }
}

/// Stops at a name for which the function says so.
struct Mentions<F>(F);

impl<F: Fn(&Ident) -> bool> Visitor for Mentions<F> {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        match expr {
            Expr::Identifier(name) if self.0(name) => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        }
    }
}

fn is_outer(table: &TableWithJoins) -> bool {
    let within = |factor: &TableFactor| match factor {
        TableFactor::NestedJoin { table_with_joins, .. } => is_outer(table_with_joins),
        _ => false,
    };
    let keeps_right = |operator: &JoinOperator| Keeps::of(operator) != Keeps::Left;
    within(&table.relation) || table.joins.iter().any(|join| within(&join.relation) || keeps_right(&join.join_operator))
}

/// The one column of a side that has a name.
fn only<'a>(side: &'a [Column], name: &str, which: &str) -> Result<&'a Expr, Failure> {
    let mut found = side.iter().filter(|column| column.name == name);
    match (found.next(), found.next()) {
        (Some(column), None) => Ok(&column.expr),
        (None, _) => Err(Failure::Column(Error::new(
            SqlState::UNDEFINED_COLUMN,
            format!("column \"{name}\" specified in USING clause does not exist in {which} table"),
        ))),
        (Some(_), Some(_)) => Err(Failure::Column(Error::new(
            SqlState::AMBIGUOUS_COLUMN,
            format!("common column name \"{name}\" appears more than once in {which} table"),
        ))),
    }
}

fn is_lateral(factor: &TableFactor) -> bool {
    matches!(factor, TableFactor::Derived { lateral: true, .. })
}

fn last_part(name: &ObjectName) -> Option<&Ident> {
    name.0.last().and_then(|part| part.as_ident())
}

/// What a query calls something that it reads.
fn called(factor: &TableFactor) -> Option<Ident> {
    let of = |alias: &Option<TableAlias>| alias.as_ref().map(|alias| alias.name.clone());
    match factor {
        TableFactor::Table { name, alias, .. } => of(alias).or_else(|| last_part(name).cloned()),
        TableFactor::Derived { alias, .. }
        | TableFactor::Function { alias, .. }
        | TableFactor::UNNEST { alias, .. }
        | TableFactor::TableFunction { alias, .. }
        | TableFactor::NestedJoin { alias, .. } => of(alias),
        _ => None,
    }
}

/// What an item of a list is called, unless it stands for several.
pub fn output_name(item: &SelectItem) -> Option<String> {
    match item {
        SelectItem::UnnamedExpr(expr) => Some(expression_name(expr)),
        SelectItem::ExprWithAlias { alias, .. } => Some(fold(alias)),
        _ => None,
    }
}

/// Columns that a wildcard is not to stand for.
fn hidden_by(options: &WildcardAdditionalOptions) -> Vec<String> {
    use datafusion::sql::sqlparser::ast::ExcludeSelectItem;
    match &options.opt_exclude {
        Some(ExcludeSelectItem::Single(name)) => last_part(name).map(fold).into_iter().collect(),
        Some(ExcludeSelectItem::Multiple(names)) => names.iter().filter_map(last_part).map(fold).collect(),
        None => Vec::new(),
    }
}
