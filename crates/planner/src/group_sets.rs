//! What groups are made by, as a list of sets of keys, where DataFusion would not see it: several lists that multiply, keys twice, sets within
//! sets, and none at all; and two outputs of one expression that are two keys.

use crate::statement::fold;
use crate::walk::walk_mut;
use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, GroupByExpr, Ident, Query, Select, SelectItem,
    Value, VisitorMut,
};
use std::ops::ControlFlow;
use tidepool_base::{Error, Result, SqlState};

/// As many as PostgreSQL lets a query have.
const SETS_MAX: usize = 4096;

type Sets = Vec<Vec<Expr>>;

/// Writes out the sets of a query and of all queries within it.
pub fn write_out(query: &mut Query) -> Result<()> {
    match walk_mut(query, &mut Selects) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

struct Selects;

impl VisitorMut for Selects {
    type Break = Error;

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<Error> {
        in_select(select).map_or_else(ControlFlow::Break, ControlFlow::Continue)
    }
}

fn in_select(select: &mut Select) -> Result<()> {
    let GroupByExpr::Expressions(by, modifiers) = &mut select.group_by else { return Ok(()) };
    if !modifiers.is_empty() || !by.iter().any(|key| own_sets(key).is_some()) {
        return Ok(());
    }
    tell_apart(&mut select.projection, by);
    if is_plain(by) {
        return Ok(());
    }
    let mut all: Sets = vec![Vec::new()];
    for element in by.iter() {
        let of_element = sets_of(element)?;
        let of_element: Sets = of_element
            .into_iter()
            .map(|set| set.into_iter().map(|key| meant_by(key, &select.projection)).collect())
            .collect();
        if all.len().saturating_mul(of_element.len()) > SETS_MAX {
            return Err(too_many());
        }
        let multiplied = all.iter().flat_map(|set| {
            of_element.iter().map(|more| {
                let mut set = set.clone();
                more.iter().for_each(|key| {
                    if !set.contains(key) {
                        set.push(key.clone());
                    }
                });
                set
            })
        });
        all = multiplied.collect();
    }
    let is_without_keys = all.iter().all(Vec::is_empty);
    match all.as_mut_slice() {
        // One group of all rows, also of none.
        [_] if is_without_keys => {
            by.clear();
            if select.having.is_none() {
                select.having = Some(crate::statement::parse_expression("count(*) >= 0")?);
            }
        }
        [keys] => *by = std::mem::take(keys),
        _ => *by = vec![Expr::GroupingSets(all)],
    }
    Ok(())
}

/// Whether it may be the number of an output.
fn is_number(key: &Expr) -> bool {
    matches!(key, Expr::Value(value) if matches!(value.value, Value::Number(..)))
}

/// The output that a number means: by its name if it has one, else its expression.
fn meant_by(key: Expr, outputs: &[SelectItem]) -> Expr {
    let Expr::Value(value) = &key else { return key };
    let Value::Number(number, _) = &value.value else { return key };
    let place = number.parse::<usize>().ok().and_then(|number| number.checked_sub(1));
    match place.and_then(|place| outputs.get(place)) {
        Some(SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }) => expr.clone(),
        _ => key,
    }
}

fn too_many() -> Error {
    let message = format!("too many grouping sets present (maximum {SETS_MAX})");
    Error::new(SqlState::STATEMENT_TOO_COMPLEX, message)
}

/// The lists of `ROLLUP`, `CUBE` and `GROUPING SETS`, which the parser takes for functions where they stand within others.
fn own_sets(element: &Expr) -> Option<Element> {
    match element {
        Expr::Rollup(lists) => Some(Element::Rollup(lists.clone())),
        Expr::Cube(lists) => Some(Element::Cube(lists.clone())),
        Expr::GroupingSets(lists) => Some(Element::Sets(lists.clone())),
        Expr::Tuple(keys) => Some(Element::Sets(vec![keys.clone()])),
        Expr::Function(Function { name, args: FunctionArguments::List(list), .. }) => {
            let lists = list.args.iter().map(|arg| match arg {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Tuple(keys))) => Some(keys.clone()),
                FunctionArg::Unnamed(FunctionArgExpr::Expr(key)) => Some(vec![key.clone()]),
                _ => None,
            });
            let lists = lists.collect::<Option<Vec<_>>>()?;
            match name.to_string().to_ascii_lowercase().as_str() {
                "rollup" => Some(Element::Rollup(lists)),
                "cube" => Some(Element::Cube(lists)),
                _ => None,
            }
        }
        _ => None,
    }
}

enum Element {
    Rollup(Sets),
    Cube(Sets),
    Sets(Sets),
}

/// One element that DataFusion reads as it is.
fn is_plain(by: &[Expr]) -> bool {
    let [element] = by else { return false };
    let has_twice = |lists: &Sets| {
        let keys: Vec<&Expr> = lists.iter().flatten().collect();
        keys.iter().enumerate().any(|(place, key)| keys[..place].contains(key))
    };
    match element {
        Expr::Rollup(lists) | Expr::Cube(lists) => {
            !has_twice(lists) && lists.iter().all(|list| matches!(list.as_slice(), [key] if !is_number(key)))
        }
        Expr::GroupingSets(lists) => lists.iter().all(|list| {
            let twice = list.iter().enumerate().any(|(place, key)| list[..place].contains(key));
            !twice && !list.iter().any(|key| own_sets(key).is_some() || is_number(key))
        }),
        _ => false,
    }
}

fn sets_of(element: &Expr) -> Result<Sets> {
    let Some(own) = own_sets(element) else { return Ok(vec![vec![element.clone()]]) };
    Ok(match own {
        Element::Rollup(lists) => (0..=lists.len()).rev().map(|length| lists[..length].concat()).collect(),
        Element::Cube(lists) => {
            if lists.len() > 12 {
                return Err(too_many());
            }
            let chosen = |bits: usize| {
                let is_chosen = |place: &usize| bits >> (lists.len() - 1 - place) & 1 == 1;
                (0..lists.len()).filter(is_chosen).flat_map(|place| lists[place].clone()).collect()
            };
            (0..1usize << lists.len()).rev().map(chosen).collect()
        }
        Element::Sets(lists) => {
            let mut sets = Sets::new();
            for list in lists {
                match list.as_slice() {
                    [only] if own_sets(only).is_some() => sets.extend(sets_of(only)?),
                    _ => sets.push(list),
                }
                if sets.len() > SETS_MAX {
                    return Err(too_many());
                }
            }
            sets
        }
    })
}

/// Outputs of one expression that are keys by different names are different keys: all but the first go through a function that gives its
/// argument back.
fn tell_apart(outputs: &mut [SelectItem], by: &[Expr]) {
    let mut keys: Vec<&Expr> = Vec::new();
    for element in by {
        match element {
            Expr::Rollup(lists) | Expr::Cube(lists) | Expr::GroupingSets(lists) => keys.extend(lists.iter().flatten()),
            element => keys.push(element),
        }
    }
    let is_key = |place: usize, alias: &Ident| {
        keys.iter().any(|key| match key {
            Expr::Identifier(name) => fold(name) == fold(alias),
            Expr::Value(value) => {
                matches!(&value.value, Value::Number(number, _) if number.parse() == Ok(place + 1))
            }
            _ => false,
        })
    };
    let mut seen: Vec<(Expr, usize)> = Vec::new();
    for (place, item) in outputs.iter_mut().enumerate() {
        let SelectItem::ExprWithAlias { expr, alias } = item else { continue };
        if !is_key(place, alias) || matches!(expr, Expr::Value(_)) {
            continue;
        }
        match seen.iter_mut().find(|(known, _)| known == expr) {
            Some((known, times)) => {
                *times += 1;
                *expr = (0..*times).fold(known.clone(), |inner, _| through_key(inner));
            }
            None => seen.push((expr.clone(), 0)),
        }
    }
}

fn through_key(argument: Expr) -> Expr {
    crate::names::called(crate::casts::KEY, argument)
}
