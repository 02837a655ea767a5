//! Expressions of one column of codes alone, worked out once for each code.

use super::Prepared;
use super::prepare::cost;
use crate::expr::{Expr, Node};
use crate::types::{Class, ColumnType};
use crate::vector::{CHUNK_ROWS, Chunk, Vector};
use std::collections::BTreeSet;
use tidepool_base::Result;

/// The largest dictionary that this is done for.
const CODES_MAX: usize = 1 << 14;

/// What an expression says of each code and of NULL, and where the codes are; `None` if that would not pay, or fails for some
/// code: no row may have it.
pub fn results(expr: &Expr) -> Option<(usize, Vector)> {
    /// What is quicker than looking it up.
    const COST_MIN: usize = 12;
    if matches!(expr.class(), Class::Bool | Class::Other) {
        return None;
    }
    let mut columns = BTreeSet::new();
    expr.columns_into(&mut columns);
    let codes = match columns.into_iter().collect::<Vec<_>>()[..] {
        [codes] => codes,
        _ => return None,
    };
    let of = type_of(expr)?;
    let count = of.dictionary.as_ref().map(|dictionary| dictionary.len()).filter(|count| *count <= CODES_MAX)?;
    if cost(expr) < COST_MIN {
        return None;
    }
    let moved = Prepared::build(&expr.clone().moved(&|_| 0), false).ok()?;
    let work = || -> Result<Vector> {
        let mut parts = Vec::new();
        for start in (0..count).step_by(CHUNK_ROWS) {
            let end = count.min(start + CHUNK_ROWS);
            let codes = Vector::ints((start as i64..end as i64).collect());
            parts.push(moved.evaluate(&Chunk::new(end - start, vec![codes]))?);
        }
        parts.push(moved.evaluate(&Chunk::new(1, vec![Vector::nulls(&of, 1)]))?);
        Vector::concat(&parts.iter().collect::<Vec<_>>())
    };
    Some((codes, work().ok()?))
}

/// Of its only column.
fn type_of(expr: &Expr) -> Option<ColumnType> {
    if let Node::Column(_) = expr.node {
        return Some(expr.of.clone());
    }
    expr.children().into_iter().find_map(type_of)
}

pub fn lookup(codes: &Vector, results: &Vector) -> Result<Vector> {
    let null = results.len() as u32 - 1;
    let values = codes.as_ints()?;
    let rows: Vec<u32> = match &codes.valid {
        // The code of a NULL may be anything.
        Some(valid) => {
            let row = |(row, code): (usize, &i64)| if valid.get(row) { *code as u32 } else { null };
            values.iter().enumerate().map(row).collect()
        }
        None => values.iter().map(|code| *code as u32).collect(),
    };
    results.gather(&rows)
}
