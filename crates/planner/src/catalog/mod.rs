//! What clients ask about the database itself: `pg_catalog`, `information_schema`, PostgreSQL's functions and `tidepool.*`.
//!
//! Functions and tables find who asks, and over which snapshot, with `SessionFacts::of(config_options)`.

use crate::facts::SessionFacts;
use datafusion::arrow::datatypes::DataType;
use datafusion::catalog::TableProvider;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::sql::sqlparser::ast;
use std::sync::Arc;

/// Adds functions (scalar, aggregate, table functions), operators' expression planners and function rewrites before the
/// planner's one session state is built. A function may be called with or without `pg_catalog.` before its name: the
/// planner strips it before the look-up.
pub fn install(builder: SessionStateBuilder) -> SessionStateBuilder {
    builder
}

/// The system table or view, if there is one: `schema` is `pg_catalog`, `information_schema` or `tidepool`.
pub fn table(_schema: &str, _name: &str, _facts: &Arc<SessionFacts>) -> Option<Arc<dyn TableProvider>> {
    None
}

/// Rewrites what PostgreSQL's clients write and DataFusion's planner does not know (`OPERATOR(pg_catalog.~)`,
/// `COLLATE`, `= ANY (…)`, `'t'::regclass`). Called once after parsing.
pub fn rewrite(_statement: &mut ast::Statement) {}

/// The Arrow type that stands for a type name only the system catalogue uses (`regclass`, `oid`, `name`, …).
pub fn system_type(_name: &str) -> Option<DataType> {
    None
}
