//! Operators that need nothing but their expressions.

use crate::evaluate::{Prepared, simplify};
use crate::expr::Expr;
use crate::pipeline::{Operator, Out, Step};
use crate::vector::{CHUNK_ROWS, Chunk};
use std::sync::Arc;
use tidepool_base::Result;

/// Lets rows through for which a condition is true.
pub struct Filter {
    pub condition: Expr,
    prepared: Arc<Prepared>,
}

impl Filter {
    pub fn new(condition: Expr) -> Result<Filter> {
        let condition = simplify(condition);
        let prepared = Arc::new(Prepared::simplified(&condition)?);
        Ok(Filter { condition, prepared })
    }
}

impl Operator for Filter {
    fn worker(&self) -> Result<Box<dyn Step>> {
        let prepared = Arc::clone(&self.prepared);
        Ok(Box::new(FilterStep { prepared, held: Vec::new(), held_rows: 0, waits: 0 }))
    }
}

/// Rows are handed on that many at a time, at least, if they come soon enough.
const ENOUGH: usize = CHUNK_ROWS / 2;

/// Few rows wait for so many more chunks: not for long, for whoever wants but some rows is to get them early.
const WAITS_MAX: usize = 16;

struct FilterStep {
    prepared: Arc<Prepared>,
    /// Too few to go on by themselves: what comes after costs something a chunk.
    held: Vec<Chunk>,
    held_rows: usize,
    /// Chunks since the first that is held.
    waits: usize,
}

impl FilterStep {
    fn flush(&mut self, out: Out<'_>) -> Result<()> {
        (self.held_rows, self.waits) = (0, 0);
        match self.held.len() {
            0 => Ok(()),
            1 => self.held.pop().map_or(Ok(()), out),
            _ => out(Chunk::concat(&std::mem::take(&mut self.held))?),
        }
    }
}

impl Step for FilterStep {
    fn push(&mut self, chunk: Chunk, out: Out<'_>) -> Result<()> {
        let passing = self.prepared.select(&chunk)?;
        let count = passing.count();
        self.waits += usize::from(!self.held.is_empty());
        if count > 0 {
            if count >= ENOUGH {
                self.flush(out)?;
                return out(chunk.keep(&passing)?);
            }
            self.held.push(chunk.keep(&passing)?);
            self.held_rows += count;
        }
        if self.held_rows >= ENOUGH || self.waits >= WAITS_MAX { self.flush(out) } else { Ok(()) }
    }

    fn end(&mut self, out: Out<'_>) -> Result<()> {
        self.flush(out)
    }
}

/// Makes columns of columns. What is a column already is not copied.
pub struct Project {
    pub outputs: Vec<Expr>,
    prepared: Arc<[Prepared]>,
}

impl Project {
    pub fn new(outputs: Vec<Expr>) -> Result<Project> {
        let outputs: Vec<Expr> = outputs.into_iter().map(simplify).collect();
        let prepared = outputs.iter().map(Prepared::simplified).collect::<Result<_>>()?;
        Ok(Project { outputs, prepared })
    }
}

impl Operator for Project {
    fn worker(&self) -> Result<Box<dyn Step>> {
        Ok(Box::new(ProjectStep(Arc::clone(&self.prepared))))
    }
}

struct ProjectStep(Arc<[Prepared]>);

impl Step for ProjectStep {
    fn push(&mut self, chunk: Chunk, out: Out<'_>) -> Result<()> {
        let columns = self.0.iter().map(|output| output.evaluate(&chunk)).collect::<Result<_>>()?;
        out(Chunk::new(chunk.rows, columns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::Scalar;
    use crate::types::ColumnType;
    use crate::vector::Vector;
    use arrow_schema::DataType;
    use tidepool_table::CompareOp;

    /// What comes out of chunks of those values, and how many rows at a time.
    fn filtered(chunks: &[Vec<i64>], limit: i64) -> (Vec<i64>, Vec<usize>) {
        let column = Expr::column(0, ColumnType::new(DataType::Int64, false));
        let literal = Expr::literal(Scalar::Int(limit), DataType::Int64);
        let filter = Filter::new(Expr::compare(CompareOp::Lt, column.clone(), literal).unwrap()).unwrap();
        let project = Project::new(vec![column.negate().unwrap()]).unwrap();
        let (mut filter, mut project) = (filter.worker().unwrap(), project.worker().unwrap());
        let (mut values, mut sizes) = (Vec::new(), Vec::new());
        let mut take = |chunk: Chunk| {
            sizes.push(chunk.rows);
            values.extend(chunk.columns[0].as_ints()?.iter().map(|value| -value));
            Ok(())
        };
        for chunk in chunks {
            let chunk = Chunk::new(chunk.len(), vec![Vector::ints(chunk.clone())]);
            filter.push(chunk, &mut |chunk| project.push(chunk, &mut take)).unwrap();
        }
        filter.end(&mut |chunk| project.push(chunk, &mut take)).unwrap();
        (values, sizes)
    }

    #[test]
    fn few_rows_wait_for_others() {
        let chunks: Vec<Vec<i64>> =
            (0..100).map(|chunk| (0..2000).map(|row| (row * 31 + chunk) % 2000).collect()).collect();
        for limit in [0, 1, 20, 500, 1100, 1999, 2000] {
            let (values, sizes) = filtered(&chunks, limit);
            let expected: Vec<i64> = chunks.iter().flatten().copied().filter(|value| *value < limit).collect();
            assert_eq!(values, expected);
            let limit = limit as usize;
            assert!(sizes.iter().all(|rows| *rows <= 2 * CHUNK_ROWS));
            assert!(sizes.len() <= 1 + (100 * limit).div_ceil(ENOUGH).max(100usize.div_ceil(WAITS_MAX)).min(100));
        }
    }
}
