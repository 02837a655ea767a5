//! What rows must fulfil besides equal keys.

use super::Join;
use super::table::JoinTable;
use crate::evaluate::Prepared;
use crate::expr::Expr;
use crate::mask::Mask;
use crate::rows::RowPtr;
use crate::text::Owners;
use crate::vector::Chunk;
use std::collections::BTreeSet;
use tidepool_base::Result;

enum Input {
    /// A column of the probe side.
    Probe(usize),
    /// A stored column of the build side.
    Build(usize),
}

/// A condition over pairs of rows, which reads no columns but those it needs.
pub struct Residual {
    condition: Prepared,
    inputs: Vec<Input>,
}

impl Residual {
    /// `field_of` tells which stored column one of the build side is.
    pub fn new(expr: Expr, join: &Join, field_of: impl Fn(usize) -> usize) -> Result<Residual> {
        let mut columns = BTreeSet::new();
        expr.columns_into(&mut columns);
        let columns: Vec<usize> = columns.into_iter().collect();
        let of_probe = join.probe_types.len();
        let input = |column: &usize| match column.checked_sub(of_probe) {
            None => Input::Probe(*column),
            Some(column) => Input::Build(field_of(column)),
        };
        let inputs = columns.iter().map(input).collect();
        let expr = expr.moved(&|column| columns.binary_search(&column).unwrap_or(usize::MAX));
        Ok(Residual { condition: Prepared::new(&expr)?, inputs })
    }

    /// Which of some pairs pass.
    ///
    /// # Safety
    ///
    /// The stored rows are there and of the table's layout.
    pub unsafe fn passing(
        &self,
        table: &JoinTable,
        owners: &Owners,
        chunk: &Chunk,
        rows: &[u32],
        stored: &[RowPtr],
    ) -> Result<Mask> {
        let column = |input: &Input| match input {
            Input::Probe(column) => chunk.columns[*column].gather(rows),
            // SAFETY: the caller's word; nobody writes columns of a complete table.
            Input::Build(field) => Ok(unsafe { table.layout.gather(*field, stored, owners) }),
        };
        let columns = self.inputs.iter().map(column).collect::<Result<Vec<_>>>()?;
        self.condition.select(&Chunk::new(rows.len(), columns))
    }
}
