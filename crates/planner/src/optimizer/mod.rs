//! Optimiser rules of our own.

use datafusion::execution::session_state::SessionStateBuilder;

/// Adds rules (and replaces some of DataFusion's) before the planner's one session state is built.
pub fn install(builder: SessionStateBuilder) -> SessionStateBuilder {
    builder
}
