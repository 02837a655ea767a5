//! Functions of Arrow arrays.

use super::{Input, Prepared};
use crate::expr::Function;
use crate::types::ColumnType;
use crate::vector::Vector;
use tidepool_base::{Error, Result};

/// All of the input's rows count: see [`Prepared::has_call`].
pub fn call(function: &dyn Function, arguments: &[Prepared], of: &ColumnType, input: &Input<'_>) -> Result<Vector> {
    let rows = input.rows;
    if rows == 0 {
        return Ok(Vector::nulls(of, 0));
    }
    let array =
        |argument: &Prepared| argument.value(input, None)?.into_vector(&argument.of, rows)?.to_arrow(&argument.of);
    let arrays = arguments.iter().map(array).collect::<Result<Vec<_>>>()?;
    let result = function.evaluate(&arrays, rows)?;
    if result.len() != rows {
        return Err(Error::internal(format!("{} gave {} rows for {rows}", function.name(), result.len())));
    }
    Vector::from_arrow(&result, of)
}
