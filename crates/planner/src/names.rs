//! Names of result columns as PostgreSQL gives them, and the rewrites that let DataFusion plan queries whose output
//! columns share a name.
//!
//! DataFusion names `count(*)` after its text and refuses two outputs of one name; PostgreSQL calls it `count` and allows
//! any number of them. Names are therefore taken from the syntax tree and put over the plan's; where two outputs would
//! clash, all but the first are given names of their own inside the plan. In subqueries, whose columns can be referred
//! to, unnamed expressions get PostgreSQL's name as an alias where that is unambiguous.

use crate::statement::fold;
use crate::walk::{walk, walk_mut};
use datafusion::sql::sqlparser::ast::{
    self, Expr, Fetch, GroupByExpr, Ident, LimitClause, Offset, OrderByKind, Query, SelectItem, SetExpr, TableFactor,
    Value, Visitor, VisitorMut,
};
use std::collections::HashSet;
use std::ops::ControlFlow;
use tidepool_base::{Error, Result, SqlState};

/// The names of a query's outputs, as far as its text tells.
#[derive(Clone)]
pub struct OutputNames {
    /// From the first output on, up to the first wildcard.
    head: Vec<String>,
    /// Up to the last output, from the last wildcard on. Empty without a wildcard.
    tail: Vec<String>,
    wildcard: bool,
}

impl OutputNames {
    /// The plan's own.
    pub fn none() -> OutputNames {
        OutputNames { head: Vec::new(), tail: Vec::new(), wildcard: false }
    }

    /// Reads them off a query that `prepare` has not yet seen.
    pub fn of(query: &Query) -> OutputNames {
        let mut names = OutputNames::none();
        let Some(select) = first_select(&query.body) else { return names };
        for item in &select.projection {
            let name = match item {
                SelectItem::ExprWithAlias { alias, .. } => fold(alias),
                SelectItem::UnnamedExpr(expr) => expression_name(expr),
                _ => {
                    names.wildcard = true;
                    names.tail.clear();
                    continue;
                }
            };
            if names.wildcard { names.tail.push(name) } else { names.head.push(name) }
        }
        names
    }

    /// The name of the one output, if there is no other.
    pub fn only(&self) -> Option<String> {
        match self.head.as_slice() {
            [name] if !self.wildcard => Some(name.clone()),
            _ => None,
        }
    }

    /// Puts the names over those of a plan's outputs.
    pub fn apply(&self, planned: impl Iterator<Item = String>) -> Vec<String> {
        let mut names: Vec<String> = planned.collect();
        own_names(&mut names);
        let count = names.len();
        for (name, known) in names.iter_mut().zip(&self.head) {
            name.clone_from(known);
        }
        if self.wildcard {
            for (name, known) in names.iter_mut().skip(count.saturating_sub(self.tail.len())).zip(&self.tail) {
                name.clone_from(known);
            }
        }
        names
    }
}

/// Between the name that several outputs of a query share and what tells them apart.
const SHARED: char = '\u{1}';

/// A name for one of several outputs that share theirs.
fn shared(name: &str, place: usize) -> Ident {
    Ident::with_quote('"', format!("{name}{SHARED}{place}"))
}

/// The name of an output without what tells it apart from others of that name.
pub fn own_name(name: &str) -> &str {
    match name.rfind(SHARED) {
        Some(at) if at > 0 => &name[..at],
        _ => name,
    }
}

/// Gives outputs of a plan the names that PostgreSQL has for them: without what tells those apart that share one.
fn own_names(names: &mut [String]) {
    for place in 0..names.len() {
        let own = own_name(&names[place]).len();
        if own < names[place].len() {
            names[place].truncate(own);
        } else if let Some((name, number)) = names[place].rsplit_once(':')
            && !number.is_empty()
            && number.bytes().all(|byte| byte.is_ascii_digit())
            && names.iter().any(|other| other == name)
        {
            // Of columns of several relations DataFusion tells those of one name apart so.
            names[place].truncate(name.len());
        }
    }
}

fn first_select(body: &SetExpr) -> Option<&ast::Select> {
    match body {
        SetExpr::Select(select) => Some(select),
        SetExpr::Query(query) => first_select(&query.body),
        SetExpr::SetOperation { left, .. } => first_select(left),
        _ => None,
    }
}

/// PostgreSQL's `FigureColname`.
pub fn expression_name(expr: &Expr) -> String {
    figure(expr).map_or_else(|| "?column?".to_owned(), |(name, _)| name)
}

/// A name and its strength: 2 for a column or function, 1 for a type or construct, which yields to a stronger one.
fn figure(expr: &Expr) -> Option<(String, u8)> {
    let strong = |name: &str| Some((name.to_owned(), 2));
    match expr {
        Expr::Identifier(ident) => Some((fold(ident), 2)),
        Expr::CompoundIdentifier(parts) => parts.last().map(|ident| (fold(ident), 2)),
        Expr::CompoundFieldAccess { root, access_chain } => {
            match access_chain.iter().rev().find_map(|access| match access {
                ast::AccessExpr::Dot(Expr::Identifier(ident)) => Some(fold(ident)),
                _ => None,
            }) {
                Some(name) => Some((name, 2)),
                None => figure(root),
            }
        }
        Expr::Function(function) => {
            function.name.0.last().and_then(|part| part.as_ident()).map(|ident| (fold(ident), 2))
        }
        Expr::Nested(inner) | Expr::Collate { expr: inner, .. } => figure(inner),
        Expr::Cast { expr, data_type, .. } => match figure(expr) {
            Some((name, 2)) => Some((name, 2)),
            _ => type_word(data_type).map(|name| (name, 1)),
        },
        Expr::TypedString(typed) => type_word(&typed.data_type).map(|name| (name, 1)),
        Expr::Interval(_) => Some(("interval".to_owned(), 1)),
        Expr::Case { else_result, .. } => match else_result.as_deref().and_then(figure) {
            Some((name, 2)) => Some((name, 2)),
            _ => Some(("case".to_owned(), 1)),
        },
        Expr::Subquery(query) => match first_select(&query.body)?.projection.first()? {
            SelectItem::UnnamedExpr(expr) => figure(expr),
            SelectItem::ExprWithAlias { alias, .. } => Some((fold(alias), 2)),
            _ => None,
        },
        Expr::Exists { .. } => strong("exists"),
        Expr::Array(_) => strong("array"),
        Expr::Extract { .. } => strong("extract"),
        Expr::Ceil { .. } => strong("ceil"),
        Expr::Floor { .. } => strong("floor"),
        Expr::Position { .. } => strong("position"),
        Expr::Substring { .. } => strong("substring"),
        Expr::Trim { trim_where: Some(ast::TrimWhereField::Leading), .. } => strong("ltrim"),
        Expr::Trim { trim_where: Some(ast::TrimWhereField::Trailing), .. } => strong("rtrim"),
        Expr::Trim { .. } => strong("btrim"),
        Expr::Overlay { .. } => strong("overlay"),
        Expr::AtTimeZone { .. } => strong("timezone"),
        Expr::Tuple(_) => strong("row"),
        Expr::Value(value) => match value.value {
            Value::Boolean(_) => Some(("bool".to_owned(), 1)),
            _ => None,
        },
        _ => None,
    }
}

/// A type's internal name, which is what an unnamed cast's column is called.
fn type_word(data_type: &ast::DataType) -> Option<String> {
    use tidepool_base::SqlType;
    if let ast::DataType::Array(ast::ArrayElemTypeDef::SquareBracket(item, _)) = data_type {
        return type_word(item);
    }
    if let ast::DataType::Custom(name, _) = data_type {
        return name.0.last().and_then(|part| part.as_ident()).map(fold);
    }
    Some(
        match crate::types::sql_type(data_type).ok()? {
            SqlType::Boolean => "bool",
            SqlType::SmallInt => "int2",
            SqlType::Integer => "int4",
            SqlType::BigInt => "int8",
            SqlType::Real => "float4",
            SqlType::DoublePrecision => "float8",
            SqlType::Numeric { .. } | SqlType::UnconstrainedNumeric => "numeric",
            SqlType::Text => "text",
            SqlType::Varchar { .. } => "varchar",
            SqlType::Char { .. } => "bpchar",
            SqlType::Date => "date",
            SqlType::Timestamp { .. } => "timestamp",
            SqlType::TimestampTz { .. } => "timestamptz",
            SqlType::Interval => "interval",
            SqlType::Bytea => "bytea",
            SqlType::Uuid => "uuid",
            SqlType::Json => "json",
            SqlType::Jsonb => "jsonb",
        }
        .to_owned(),
    )
}

/// Rewrites a query for DataFusion's planner. With `all`, every unnamed expression gets a name of its own: for queries in
/// which DataFusion would give two the same (it leaves casts out of names). Returns the names that several outputs of a query share,
/// none of which can be referred to.
pub fn prepare(query: &mut Query, all: bool) -> HashSet<String> {
    let mut prepare = Prepare { depth: 0, all, shared: HashSet::new() };
    let _ = walk_mut(query, &mut prepare);
    prepare.shared
}

/// 42702 for an order by a name that several outputs have, unless they are the same, of a query and all within it.
pub fn check_order(query: &Query) -> Result<()> {
    struct Orders;
    impl Visitor for Orders {
        type Break = Error;

        fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<Error> {
            check_own_order(query).map_or_else(ControlFlow::Break, ControlFlow::Continue)
        }
    }
    match walk(query, &mut Orders) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

/// A name by which a query is grouped that several of its outputs have, and a query that can be planned only if a column has it, too.
pub fn ambiguous_key(query: &Query) -> Option<(Box<Query>, String)> {
    let SetExpr::Select(select) = query.body.as_ref() else { return None };
    let GroupByExpr::Expressions(keys, _) = &select.group_by else { return None };
    let named = |name: &str| -> Vec<&Expr> {
        let of = |item: &'_ SelectItem| matches!(item, SelectItem::ExprWithAlias { alias, .. } if fold(alias) == name);
        let items = select.projection.iter().filter(|item| of(item));
        items
            .filter_map(|item| match item {
                SelectItem::ExprWithAlias { expr, .. } => Some(expr),
                _ => None,
            })
            .collect()
    };
    let name = keys.iter().find_map(|key| {
        let Expr::Identifier(name) = key else { return None };
        let name = fold(name);
        match named(&name).as_slice() {
            [first, others @ ..] => others.iter().any(|other| !is_same(first, other)).then_some(name),
            [] => None,
        }
    })?;
    let mut probe = Box::new(query.clone());
    let SetExpr::Select(select) = probe.body.as_mut() else { return None };
    select.projection = vec![SelectItem::UnnamedExpr(Expr::Identifier(Ident::with_quote('"', &name)))];
    select.group_by = GroupByExpr::Expressions(Vec::new(), Vec::new());
    (select.having, select.distinct, probe.order_by) = (None, None, None);
    Some((probe, name))
}

fn check_own_order(query: &Query) -> Result<()> {
    let Some(OrderByKind::Expressions(keys)) = query.order_by.as_ref().map(|order| &order.kind) else { return Ok(()) };
    let SetExpr::Select(select) = query.body.as_ref() else { return Ok(()) };
    for key in keys {
        let Expr::Identifier(name) = &key.expr else { continue };
        let name = fold(name);
        let mut meant = select.projection.iter().filter_map(|item| match item {
            SelectItem::UnnamedExpr(expr) => (expression_name(expr) == name).then_some(expr),
            SelectItem::ExprWithAlias { expr, alias } => (fold(alias) == name).then_some(expr),
            _ => None,
        });
        let Some(first) = meant.next() else { continue };
        if meant.any(|other| !is_same(first, other)) {
            let message = format!("ORDER BY \"{name}\" is ambiguous");
            return Err(Error::new(SqlState::AMBIGUOUS_COLUMN, message));
        }
    }
    Ok(())
}

/// Whether two outputs may be one: the same expression, or a column of one name with and without its relation's.
fn is_same(left: &Expr, right: &Expr) -> bool {
    fn column(expr: &Expr) -> Option<(Option<String>, String)> {
        match expr {
            Expr::Nested(inner) => column(inner),
            Expr::Identifier(name) => Some((None, fold(name))),
            Expr::CompoundIdentifier(parts) => match parts.as_slice() {
                [.., relation, name] => Some((Some(fold(relation)), fold(name))),
                _ => None,
            },
            _ => None,
        }
    }
    match (column(left), column(right)) {
        (Some((first, left)), Some((second, right))) => {
            left == right && (first == second || first.is_none() || second.is_none())
        }
        _ => left == right,
    }
}

/// Takes casts of a column out of a `GROUP BY` that has the column, too: they make no more groups of it, and DataFusion, whose names leave casts
/// out, would have two keys of one name.
fn drop_cast_keys(body: &mut SetExpr) {
    match body {
        SetExpr::SetOperation { left, right, .. } => {
            drop_cast_keys(left);
            drop_cast_keys(right);
        }
        SetExpr::Select(select) => {
            let GroupByExpr::Expressions(keys, modifiers) = &mut select.group_by else { return };
            if !modifiers.is_empty() || keys.len() < 2 {
                return;
            }
            let columns: Vec<Expr> =
                keys.iter().map(|key| meant_by(key, &select.projection, false)).filter(is_column).cloned().collect();
            keys.retain(|key| {
                cast_column(meant_by(key, &select.projection, true)).is_none_or(|of| !columns.contains(of))
            });
        }
        _ => {}
    }
}

/// Gives casts of one value that are keys of one `GROUP BY` names of their own: DataFusion, whose names leave casts out, would have keys of
/// one name.
fn tell_casts_apart(query: &mut Query) {
    let mut apart: Vec<(Expr, usize)> = Vec::new();
    find_casts_apart(&query.body, &mut apart);
    if !apart.is_empty() {
        let _ = walk_mut(query, &mut Renamed(apart));
    }
}

/// Casts, and how many other keys before them are of the same value.
fn find_casts_apart(body: &SetExpr, apart: &mut Vec<(Expr, usize)>) {
    match body {
        SetExpr::SetOperation { left, right, .. } => {
            find_casts_apart(left, apart);
            find_casts_apart(right, apart);
        }
        SetExpr::Select(select) => {
            let GroupByExpr::Expressions(keys, _) = &select.group_by else { return };
            let mut seen: Vec<&Expr> = Vec::new();
            for key in keys {
                let key = meant_by(key, &select.projection, true);
                if seen.contains(&key) {
                    continue;
                }
                let before = seen.iter().filter(|other| without_casts(other) == without_casts(key)).count();
                if before > 0 && matches!(key, Expr::Cast { .. }) && !apart.iter().any(|(known, _)| known == key) {
                    apart.push((key.clone(), before));
                }
                seen.push(key);
            }
        }
        _ => {}
    }
}

fn without_casts(mut expr: &Expr) -> &Expr {
    while let Expr::Cast { expr: inner, .. } | Expr::Nested(inner) = expr {
        expr = inner;
    }
    expr
}

/// Puts these casts through so many calls of [`crate::casts::KEY`].
struct Renamed(Vec<(Expr, usize)>);

impl VisitorMut for Renamed {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Some((_, times)) = self.0.iter().find(|(cast, _)| cast == expr) {
            for _ in 0..*times {
                *expr = called(crate::casts::KEY, expr.clone());
            }
        }
        ControlFlow::Continue(())
    }
}

pub fn called(function: &str, argument: Expr) -> Expr {
    let argument = ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(argument));
    Expr::Function(ast::Function {
        name: ast::ObjectName::from(vec![Ident::new(function)]),
        uses_odbc_syntax: false,
        parameters: ast::FunctionArguments::None,
        args: ast::FunctionArguments::List(ast::FunctionArgumentList {
            duplicate_treatment: None,
            args: vec![argument],
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

fn is_column(expr: &&Expr) -> bool {
    matches!(expr, Expr::Identifier(_) | Expr::CompoundIdentifier(_))
}

/// The column that is cast, perhaps several times.
fn cast_column(expr: &Expr) -> Option<&Expr> {
    let Expr::Cast { .. } = expr else { return None };
    Some(without_casts(expr)).filter(is_column)
}

/// What a grouping key says: an output's expression by its number, or `by_name`, too.
fn meant_by<'a>(key: &'a Expr, outputs: &'a [SelectItem], by_name: bool) -> &'a Expr {
    let of = |item: &'a SelectItem| match item {
        SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } => Some(expr),
        _ => None,
    };
    let meant = match key {
        Expr::Value(value) => match &value.value {
            Value::Number(number, _) => {
                let place = number.to_string().parse::<usize>().ok().and_then(|number| number.checked_sub(1));
                place.and_then(|place| outputs.get(place)).and_then(of)
            }
            _ => None,
        },
        Expr::Identifier(name) if by_name => outputs.iter().find_map(|item| match item {
            SelectItem::ExprWithAlias { expr, alias } if fold(alias) == fold(name) => Some(expr),
            _ => None,
        }),
        _ => None,
    };
    let mut meant = meant.unwrap_or(key);
    while let Expr::Nested(inner) = meant {
        meant = inner;
    }
    meant
}

struct Prepare {
    depth: usize,
    all: bool,
    shared: HashSet<String>,
}

/// The columns that a relation is given, each under a name of its own.
fn name_columns(alias: &mut ast::TableAlias, shared_names: &mut HashSet<String>) {
    let names: Vec<String> = alias.columns.iter().map(|column| fold(&column.name)).collect();
    for (place, column) in alias.columns.iter_mut().enumerate() {
        if names.iter().filter(|name| **name == names[place]).count() > 1 {
            column.name = shared(&names[place], place + 1);
            shared_names.insert(names[place].clone());
        }
    }
}

impl VisitorMut for Prepare {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        fetch_to_limit(query);
        let ordered = ordered_positions(query);
        let by_name = ordered_names(query);
        if let Some(with) = &mut query.with {
            with.cte_tables.iter_mut().for_each(|cte| name_columns(&mut cte.alias, &mut self.shared));
        }
        if self.depth > 0 {
            name_shared(&mut query.body, &by_name, &mut self.shared);
        }
        name_outputs(&mut query.body, self.depth > 0, self.all, &ordered, &by_name);
        drop_cast_keys(&mut query.body);
        tell_casts_apart(query);
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _query: &mut Query) -> ControlFlow<()> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        if let TableFactor::Table { alias: Some(alias), .. }
        | TableFactor::Derived { alias: Some(alias), .. }
        | TableFactor::UNNEST { alias: Some(alias), .. } = factor
        {
            name_columns(alias, &mut self.shared);
        }
        ControlFlow::Continue(())
    }
}

/// `FETCH FIRST n ROWS ONLY` is `LIMIT n`.
fn fetch_to_limit(query: &mut Query) {
    let Some(Fetch { with_ties: false, percent: false, quantity }) = &query.fetch else { return };
    let limit = Some(quantity.clone().unwrap_or_else(|| Expr::value(Value::Number("1".to_owned(), false))));
    match &mut query.limit_clause {
        None => query.limit_clause = Some(LimitClause::LimitOffset { limit, offset: None::<Offset>, limit_by: vec![] }),
        Some(LimitClause::LimitOffset { limit: slot @ None, .. }) => *slot = limit,
        Some(_) => return,
    }
    query.fetch = None;
}

/// The outputs that a query is ordered by, by their numbers from 1 on.
fn ordered_positions(query: &Query) -> HashSet<usize> {
    let Some(OrderByKind::Expressions(keys)) = query.order_by.as_ref().map(|order| &order.kind) else {
        return HashSet::new();
    };
    let position = |key: &ast::OrderByExpr| match &key.expr {
        Expr::Value(value) => match &value.value {
            Value::Number(number, false) => number.parse().ok(),
            _ => None,
        },
        _ => None,
    };
    keys.iter().filter_map(position).collect()
}

/// The names that a query is ordered by which stand alone: outputs are meant where there are any.
fn ordered_names(query: &Query) -> HashSet<String> {
    let Some(OrderByKind::Expressions(keys)) = query.order_by.as_ref().map(|order| &order.kind) else {
        return HashSet::new();
    };
    let name = |key: &ast::OrderByExpr| match &key.expr {
        Expr::Identifier(name) => Some(fold(name)),
        _ => None,
    };
    keys.iter().filter_map(name).collect()
}

/// Gives outputs of a subquery that share their name names of their own: DataFusion would refuse them, or take the first where the name is
/// referred to. Nobody can refer to them by that name.
fn name_shared(body: &mut SetExpr, by_name: &HashSet<String>, shared_names: &mut HashSet<String>) {
    match body {
        SetExpr::SetOperation { left, right, .. } => {
            name_shared(left, by_name, shared_names);
            name_shared(right, by_name, shared_names);
        }
        SetExpr::Select(select) => {
            let name = |item: &SelectItem| match item {
                SelectItem::UnnamedExpr(expr) => Some(expression_name(expr)),
                SelectItem::ExprWithAlias { alias, .. } => Some(fold(alias)),
                _ => None,
            };
            let names: Vec<Option<String>> = select.projection.iter().map(name).collect();
            for (place, item) in select.projection.iter_mut().enumerate() {
                let Some(name) = &names[place] else { continue };
                let is_unnamed = name == "?column?" && matches!(item, SelectItem::UnnamedExpr(_));
                let count = names.iter().filter(|other| other.as_ref() == Some(name)).count();
                let is_first = names.iter().position(|other| other.as_ref() == Some(name)) == Some(place);
                if count < 2 && !is_unnamed || is_first && by_name.contains(name) {
                    continue;
                }
                if !is_unnamed {
                    shared_names.insert(name.clone());
                }
                if let SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. } = item {
                    let expr = std::mem::replace(expr, Expr::value(Value::Null));
                    *item = SelectItem::ExprWithAlias { expr, alias: shared(name, place + 1) };
                }
            }
        }
        _ => {}
    }
}

/// `ordered`: what the query is ordered by gets a name even where nothing else needs one. Of expressions over groups DataFusion finds
/// only those again that have one.
fn name_outputs(body: &mut SetExpr, nested: bool, all: bool, ordered: &HashSet<usize>, by_name: &HashSet<String>) {
    match body {
        SetExpr::SetOperation { left, right, .. } => {
            name_outputs(left, nested, all, ordered, by_name);
            name_outputs(right, nested, all, ordered, by_name);
        }
        SetExpr::Select(select) => {
            let wildcard = select
                .projection
                .iter()
                .any(|item| matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..)));
            let mut taken: HashSet<String> = HashSet::new();
            let mut texts: HashSet<String> = HashSet::new();
            for item in &select.projection {
                match item {
                    SelectItem::ExprWithAlias { alias, .. } => {
                        taken.insert(fold(alias));
                    }
                    SelectItem::UnnamedExpr(Expr::Identifier(ident)) => {
                        taken.insert(fold(ident));
                    }
                    SelectItem::UnnamedExpr(Expr::CompoundIdentifier(parts)) => {
                        taken.extend(parts.last().map(fold));
                    }
                    _ => {}
                }
            }
            let mut aliases: HashSet<String> = HashSet::new();
            // Names of columns as they are outputs, which are not to be taken for those of aliases.
            let mut columns: HashSet<String> = HashSet::new();
            for (index, item) in select.projection.iter_mut().enumerate() {
                let (expr, alias) = match item {
                    SelectItem::UnnamedExpr(expr) => (&*expr, None),
                    SelectItem::ExprWithAlias { expr, alias } => (&*expr, Some(fold(alias))),
                    _ => continue,
                };
                let unique = Ident::with_quote('"', format!("?{}", index + 1));
                match alias {
                    // A second output of the same alias: DataFusion would refuse it.
                    Some(alias) => {
                        let is_column = columns.contains(&alias) || all && wildcard && !by_name.contains(&alias);
                        let again = !aliases.insert(alias.clone());
                        if !nested && (again || is_column) {
                            let expr = expr.clone();
                            *item = SelectItem::ExprWithAlias { expr, alias: unique };
                        } else if nested && all && wildcard && !alias.contains(SHARED) && !by_name.contains(&alias) {
                            let expr = expr.clone();
                            *item = SelectItem::ExprWithAlias { expr, alias: shared(&alias, index + 1) };
                        }
                    }
                    None => {
                        let column = matches!(expr, Expr::Identifier(_) | Expr::CompoundIdentifier(_));
                        let again = !texts.insert(expr.to_string().to_lowercase());
                        let name = expression_name(expr);
                        if column {
                            columns.insert(name.clone());
                        }
                        let is_alias = column && aliases.contains(&name);
                        let alias = if nested
                            && !column
                            && name != "?column?"
                            && !(all && wildcard)
                            && taken.insert(name.clone())
                        {
                            Some(Ident::with_quote('"', name))
                        } else if nested && all && wildcard && !column {
                            Some(shared(&name, index + 1))
                        } else if !nested && (again || is_alias || column && wildcard)
                            || (all || ordered.contains(&(index + 1))) && !column
                        {
                            Some(unique)
                        } else {
                            None
                        };
                        if let Some(alias) = alias {
                            let expr = expr.clone();
                            *item = SelectItem::ExprWithAlias { expr, alias };
                        }
                    }
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_that_share_a_name_are_shown_by_it() {
        let mut names = ["a\u{1}1", "a\u{1}2", "x", "x:1", "y:1", "?column?\u{1}3", "\u{1}z"].map(str::to_owned);
        own_names(&mut names);
        assert_eq!(names, ["a", "a", "x", "x", "y:1", "?column?", "\u{1}z"]);
    }

    #[test]
    fn nobody_refers_to_a_name_that_several_outputs_share() {
        let mut query = crate::statement::parse_query("SELECT * FROM (SELECT 1 AS a, 2 AS a, 3 AS b) t").unwrap();
        assert_eq!(prepare(&mut query, false), HashSet::from(["a".to_owned()]));
    }
}
