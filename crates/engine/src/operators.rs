//! Operators that need nothing but their expressions.

use crate::evaluate::{Prepared, simplify};
use crate::expr::Expr;
use crate::pipeline::{Operator, Out, Step};
use crate::vector::Chunk;
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
        Ok(Box::new(FilterStep(Arc::clone(&self.prepared))))
    }
}

struct FilterStep(Arc<Prepared>);

impl Step for FilterStep {
    fn push(&mut self, chunk: Chunk, out: Out<'_>) -> Result<()> {
        let passing = self.0.select(&chunk)?;
        if passing.is_none() { Ok(()) } else { out(chunk.keep(&passing)?) }
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
