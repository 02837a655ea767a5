//! Expressions that mean the same and cost less: constants worked out, AND and OR made flat and put in order of cost, tests of
//! a dictionary's values made tests of its codes.

use super::compare::{mirrored, opposite};
use super::{Input, Prepared, Value};
use crate::dictionary::Dictionary;
use crate::expr::{Expr, Node, Scalar};
use crate::types::{Class, ColumnType};
use crate::vector::{CHUNK_ROWS, Chunk, Vector};
use std::collections::BTreeSet;
use std::sync::Arc;
use tidepool_base::Result;
use tidepool_table::CompareOp;

/// The largest dictionary whose values are all tested beforehand.
const DICTIONARY_MAX: usize = 1 << 18;

/// Its type and class stay. What fails is left to fail when it is evaluated.
pub fn simplify(mut expr: Expr) -> Expr {
    if let Some(test) = code_test(&expr) {
        return test;
    }
    for child in expr.children_mut() {
        let taken = std::mem::replace(child, nothing());
        *child = simplify(taken);
    }
    let expr = rewritten(expr);
    folded(&expr).unwrap_or(expr)
}

fn nothing() -> Expr {
    Expr::and(Vec::new())
}

fn literal(value: bool, of: ColumnType) -> Expr {
    Expr { node: Node::Literal(Scalar::Bool(value)), of }
}

fn rewritten(expr: Expr) -> Expr {
    let Expr { node, of } = expr;
    let node = match node {
        Node::And(parts) => return joined(parts, true, of),
        Node::Or(parts) => return joined(parts, false, of),
        Node::Not(value) => match value.node {
            Node::Not(value) => return *value,
            Node::Literal(Scalar::Bool(value)) => Node::Literal(Scalar::Bool(!value)),
            Node::Compare { op, left, right } => Node::Compare { op: opposite(op), left, right },
            Node::IsDistinct { negated, left, right } => Node::IsDistinct { negated: !negated, left, right },
            Node::IsNull { value, negated } => Node::IsNull { value, negated: !negated },
            Node::IsBool { value, is, negated } => Node::IsBool { value, is, negated: !negated },
            Node::In { value, values, has_null, negated } => Node::In { value, values, has_null, negated: !negated },
            Node::Like { value, pattern, negated } => Node::Like { value, pattern, negated: !negated },
            _ => Node::Not(value),
        },
        Node::Compare { op, left, right } if left.as_literal().is_some() => {
            Node::Compare { op: mirrored(op), left: right, right: left }
        }
        node => node,
    };
    Expr { node, of }
}

/// AND (`is_and`) or OR of parts that may be such themselves.
fn joined(parts: Vec<Expr>, is_and: bool, of: ColumnType) -> Expr {
    let mut flat = Vec::with_capacity(parts.len());
    for part in parts {
        match part.node {
            Node::And(inner) if is_and => flat.extend(inner),
            Node::Or(inner) if !is_and => flat.extend(inner),
            Node::Literal(Scalar::Bool(value)) if value == is_and => {}
            Node::Literal(Scalar::Bool(value)) => return literal(value, of),
            _ => flat.push(part),
        }
    }
    if flat.len() <= 1 {
        return flat.pop().unwrap_or_else(|| literal(is_and, of));
    }
    let parts = in_order(flat);
    Expr { node: if is_and { Node::And(parts) } else { Node::Or(parts) }, of }
}

/// What cannot fail first, by its cost; the rest as it was: conditions may be there to keep later ones from failing.
fn in_order(parts: Vec<Expr>) -> Vec<Expr> {
    let mut ranked: Vec<(usize, Expr)> = parts
        .into_iter()
        .map(|part| {
            let rank = match Prepared::build(&part, false) {
                Ok(prepared) if !prepared.can_fail => prepared.cost,
                _ => usize::MAX,
            };
            (rank, part)
        })
        .collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, part)| part).collect()
}

/// The value of an expression of constants.
fn folded(expr: &Expr) -> Option<Expr> {
    let children = expr.children();
    if children.is_empty() || children.iter().any(|child| child.as_literal().is_none()) {
        return None;
    }
    let chunk = Chunk::new(1, Vec::new());
    let prepared = Prepared::build(expr, false).ok()?;
    let scalar = match prepared.value(&Input::of(&chunk), None).ok()? {
        Value::Constant(scalar) => scalar,
        Value::Vector(vector) => vector.scalar(0),
    };
    let mut of = ColumnType { nullable: scalar.is_null(), ..expr.of.clone() };
    let scalar = match (scalar, of.class()) {
        (Scalar::Int(value), Class::Wide) => Scalar::Wide(value.into()),
        (Scalar::Wide(value), Class::Int) => Scalar::Int(i64::try_from(value).ok()?),
        (scalar, _) => scalar,
    };
    if let Some(value) = scalar.as_i128() {
        let exact = ColumnType { bounds: Some((value, value)), ..of.clone() };
        // Bounds decide on the class, which is to stay.
        if exact.class() == of.class() {
            of = exact;
        }
    }
    Some(Expr { node: Node::Literal(scalar), of })
}

fn column_of(expr: &Expr) -> Option<&Expr> {
    if let Node::Column(_) = expr.node {
        return Some(expr);
    }
    expr.children().into_iter().find_map(column_of)
}

/// A condition on one column of codes alone, as a test of the codes.
fn code_test(expr: &Expr) -> Option<Expr> {
    if expr.class() != Class::Bool || matches!(expr.node, Node::CodeTest { .. } | Node::Column(_)) {
        return None;
    }
    if let Node::Compare { left, right, .. } = &expr.node
        && left.class() == Class::Int
        && right.class() == Class::Int
    {
        return None;
    }
    if let Some(searched) = by_search(expr) {
        return Some(searched);
    }
    let mut columns = BTreeSet::new();
    expr.columns_into(&mut columns);
    if columns.len() != 1 {
        return None;
    }
    let column = column_of(expr)?.clone();
    let dictionary = column.of.dictionary.clone().filter(|dictionary| dictionary.len() <= DICTIONARY_MAX)?;
    let passes = passing(expr, &column.of, dictionary.len()).ok().flatten()?;
    let count = passes.iter().filter(|passes| **passes).count();
    let is_nullable = column.of.nullable;
    if !is_nullable && (count == 0 || count == passes.len()) {
        return Some(literal(count > 0, expr.of.clone()));
    }
    if count == 1 {
        let only = passes.iter().position(|passes| *passes)?;
        return compare_code(CompareOp::Eq, &column, &dictionary, only as i64);
    }
    if count + 1 == passes.len() {
        let missing = passes.iter().position(|passes| !*passes)?;
        return compare_code(CompareOp::Ne, &column, &dictionary, missing as i64);
    }
    let of = expr.of.clone();
    Some(Expr { node: Node::CodeTest { value: Box::new(column), passes: passes.into() }, of })
}

fn compare_code(op: CompareOp, column: &Expr, dictionary: &Arc<Dictionary>, code: i64) -> Option<Expr> {
    let of = ColumnType::new(column.of.data_type.clone(), false).in_dictionary(Arc::clone(dictionary));
    Expr::compare(op, column.clone(), Expr { node: Node::Literal(Scalar::Int(code)), of }).ok()
}

/// What a coded column's values are compared with is looked for in the dictionary: codes order as values do.
fn by_search(expr: &Expr) -> Option<Expr> {
    fn coded(expr: &Expr) -> Option<(&Expr, &Arc<Dictionary>)> {
        let Node::Decode(value) = &expr.node else { return None };
        matches!(value.node, Node::Column(_)).then_some(())?;
        Some((value, value.of.dictionary.as_ref()?))
    }
    match &expr.node {
        Node::Compare { op, left, right } => {
            let (op, value, constant) = match (left.as_literal(), right.as_literal()) {
                (None, Some(constant)) => (*op, left, constant),
                (Some(constant), None) => (mirrored(*op), right, constant),
                _ => return None,
            };
            let (column, dictionary) = coded(value)?;
            let Scalar::Text(constant) = constant else { return None };
            let (op, code) = match (op, dictionary.find(constant)) {
                (op, Ok(code)) => (op, code),
                // No code is below 0.
                (CompareOp::Eq, Err(_)) => (CompareOp::Lt, 0),
                (CompareOp::Ne, Err(_)) => (CompareOp::Ge, 0),
                (CompareOp::Lt | CompareOp::Le, Err(above)) => (CompareOp::Lt, above),
                (CompareOp::Gt | CompareOp::Ge, Err(above)) => (CompareOp::Ge, above),
            };
            compare_code(op, column, dictionary, code)
        }
        Node::In { value, values, has_null: false, negated } if !values.is_empty() => {
            let (column, dictionary) = coded(value)?;
            let mut passes = vec![*negated; dictionary.len()];
            for value in values {
                let Scalar::Text(value) = value else { return None };
                if let Ok(code) = dictionary.find(value) {
                    passes[code as usize] = !negated;
                }
            }
            let node = Node::CodeTest { value: Box::new(column.clone()), passes: passes.into() };
            Some(Expr { node, of: expr.of.clone() })
        }
        _ => None,
    }
}

/// What the condition says of each code; `None` if it is not NULL exactly for NULL.
fn passing(expr: &Expr, of: &ColumnType, codes: usize) -> Result<Option<Vec<bool>>> {
    let prepared = Prepared::build(&expr.clone().moved(&|_| 0), false)?;
    let of_null = prepared.evaluate(&Chunk::new(1, vec![Vector::nulls(of, 1)]))?;
    if of_null.is_valid(0) {
        return Ok(None);
    }
    let mut passes = Vec::with_capacity(codes);
    for start in (0..codes).step_by(CHUNK_ROWS) {
        let end = codes.min(start + CHUNK_ROWS);
        let values = (start as i64..end as i64).collect();
        let result = prepared.evaluate(&Chunk::new(end - start, vec![Vector::ints(values)]))?;
        if result.valid.is_some() {
            return Ok(None);
        }
        let result = result.as_bools()?;
        passes.extend((0..end - start).map(|row| result.get(row)));
    }
    Ok(Some(passes))
}
