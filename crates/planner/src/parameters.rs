//! What the text of a statement says of its parameters' types.
//!
//! Most types follow from what a parameter is compared with or put into, which planning finds out. `$1::int` and
//! `LIMIT $1` are settled by the syntax alone: as in PostgreSQL, the parameter itself then is of that type.

use crate::types::{PostgresTypes, describe};
use crate::walk::{walk, walk_mut};
use datafusion::logical_expr::planner::TypePlanner;
use datafusion::sql::sqlparser::ast::{self, Expr, LimitClause, Query, Value, Visit, Visitor, VisitorMut};
use std::ops::ControlFlow;

const BIGINT: u32 = 20;

/// The type oids given by the client, those it left open (0) settled where `statement` does. May be longer.
pub fn settled(statement: &impl Visit, given: &[u32]) -> Vec<u32> {
    let mut settle = Settle { oids: given.to_vec() };
    let _ = walk(statement, &mut settle);
    // What no use settles is left to planning, at the end by its absence.
    while settle.oids.len() > given.len() && settle.oids.last() == Some(&0) {
        settle.oids.pop();
    }
    settle.oids
}

/// `x = ANY($1)` tells planning nothing of `$1`, where PostgreSQL takes it to be an array of what `x` is. This is the query
/// with `x = $1` in its place, which planning can type, and the numbers of those parameters; `None` where there are none.
pub fn element_probe(query: &Query, settled: &[u32]) -> Option<(Box<Query>, Vec<usize>)> {
    let mut probe = Probe { settled, arrays: Vec::new() };
    let mut changed = Box::new(query.clone());
    let _ = walk_mut(&mut changed, &mut probe);
    (!probe.arrays.is_empty()).then_some((changed, probe.arrays))
}

struct Probe<'a> {
    settled: &'a [u32],
    arrays: Vec<usize>,
}

impl VisitorMut for Probe<'_> {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::AnyOp { left, compare_op, right, .. } | Expr::AllOp { left, compare_op, right } = expr
            && let Some(index) = parameter(right)
            && self.settled.get(index - 1).is_none_or(|oid| *oid == 0)
        {
            self.arrays.push(index);
            let compared = Expr::BinaryOp { left: left.clone(), op: compare_op.clone(), right: right.clone() };
            *expr = Expr::Nested(Box::new(compared));
        }
        ControlFlow::Continue(())
    }
}

struct Settle {
    oids: Vec<u32>,
}

impl Settle {
    /// The first use that says something counts.
    fn note(&mut self, expr: &Expr, oid: u32) {
        let Some(index) = parameter(expr) else { return };
        if self.oids.len() < index {
            self.oids.resize(index, 0);
        }
        let slot = &mut self.oids[index - 1];
        if *slot == 0 {
            *slot = oid;
        }
    }
}

impl Visitor for Settle {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if let Expr::Cast { expr, data_type, .. } = expr
            && let Some(oid) = type_oid(data_type)
        {
            self.note(expr, oid);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        match &query.limit_clause {
            Some(LimitClause::LimitOffset { limit, offset, .. }) => {
                for count in limit.iter().chain(offset.iter().map(|offset| &offset.value)) {
                    self.note(count, BIGINT);
                }
            }
            Some(LimitClause::OffsetCommaLimit { offset, limit }) => {
                self.note(offset, BIGINT);
                self.note(limit, BIGINT);
            }
            None => {}
        }
        ControlFlow::Continue(())
    }
}

/// The number, from 1 on, of the parameter that an expression is.
pub fn parameter(expr: &Expr) -> Option<usize> {
    match expr {
        Expr::Nested(inner) => parameter(inner),
        Expr::Value(value) => match &value.value {
            Value::Placeholder(name) => {
                let index = name.strip_prefix('$')?.parse::<u16>().ok()?;
                (index > 0).then_some(usize::from(index))
            }
            _ => None,
        },
        _ => None,
    }
}

/// A type's oid; `None` where it is not known, which planning reports.
pub fn type_oid(data_type: &ast::DataType) -> Option<u32> {
    if let ast::DataType::Array(ast::ArrayElemTypeDef::SquareBracket(element, _)) = data_type
        && let Some(array) = system_oid(element, true)
    {
        return Some(array);
    }
    if let Some(oid) = system_oid(data_type, false) {
        return Some(oid);
    }
    let field = PostgresTypes.plan_type_field(data_type).ok()??;
    Some(describe(&field).1)
}

/// The oid of a type that only the catalogue has, or of arrays of it.
fn system_oid(data_type: &ast::DataType, array: bool) -> Option<u32> {
    let ast::DataType::Custom(name, _) = data_type else { return None };
    let name = name.0.last()?.as_ident()?.value.to_lowercase();
    Some(match (name.as_str(), array) {
        ("oid", false) => 26,
        ("oid", true) => 1028,
        ("name", false) => 19,
        ("name", true) => 1003,
        _ => return None,
    })
}
