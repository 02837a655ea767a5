//! Values that are known once an earlier pipeline has run: what a subquery gives, used as a constant.

use crate::expr::Scalar;
use crate::pipeline::{Sink, SinkState, Task, states_of};
use crate::vector::{Chunk, Vector};
use std::any::Any;
use std::sync::{Arc, OnceLock};
use tidepool_base::{Error, Result, SqlState};

/// Of one execution.
pub type LaterValue = Arc<OnceLock<Scalar>>;

/// Takes the only row of one column. No row is NULL; more than one is 21000.
pub struct LaterSink(pub LaterValue);

#[derive(Default)]
struct LaterState(Option<Scalar>);

fn too_many() -> Error {
    Error::new(SqlState::CARDINALITY_VIOLATION, "more than one row returned by a subquery used as an expression")
}

impl SinkState for LaterState {
    fn push(&mut self, chunk: Chunk) -> Result<()> {
        if chunk.rows == 0 {
            return Ok(());
        }
        let column: &Vector = chunk.columns.first().ok_or_else(|| Error::internal("a subquery without a column"))?;
        if chunk.rows > 1 || self.0.replace(column.scalar(0)).is_some() {
            return Err(too_many());
        }
        Ok(())
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

impl Sink for LaterSink {
    fn worker(&self) -> Result<Box<dyn SinkState>> {
        Ok(Box::new(LaterState::default()))
    }

    fn finish(&self, round: usize, states: &mut Vec<Box<dyn SinkState>>) -> Result<Vec<Task>> {
        if round == 0 {
            let mut values = states_of::<LaterState>(states).into_iter().filter_map(|state| state.0);
            let value = values.next().unwrap_or(Scalar::Null);
            if values.next().is_some() {
                return Err(too_many());
            }
            self.0.set(value).map_err(|_| Error::internal("a subquery's value was known before"))?;
        }
        Ok(Vec::new())
    }
}
