//! What clients ask about the database itself: `pg_catalog`, `information_schema`, PostgreSQL's functions and `tidepool.*`.
//!
//! Nothing here is stored: a relation's rows are made from the statement's snapshot when it is scanned. `relations` knows
//! every system relation's columns, `pg_catalog`, `information_schema` and `tidepool` make rows, `functions` answers calls,
//! `rewrite` turns what clients write into what DataFusion plans, and `unnesting` makes joins of the correlated subqueries
//! that it cannot, or would get wrong (`pull_up`, `lateral`), and `apply` runs the others.
//!
//! Functions and tables find who asks, and over which snapshot, with `SessionFacts::of(config_options)`.

mod among;
mod apply;
pub mod comments;
mod comparisons;
mod functions;
mod information_schema;
mod items;
mod keys;
mod lateral;
mod locks;
mod objects;
mod partitions;
mod patterns;
mod pg_catalog;
mod pool;
mod pull_up;
pub(crate) mod relations;
mod replication;
mod rewrite;
mod roles;
mod row_subquery;
mod sequences;
mod syntax;
mod tidepool;
mod truth;
mod types;
mod unnesting;
mod value;
pub(crate) mod visible;

pub use among::Comparisons;
pub use apply::applied;
pub use functions::{
    SessionSequences, add_interval, bounded, check_batch, extract, find_relation, name_of_call, next_value_of,
};
pub use objects::{is_visible, quote_identifier, relation_text, schema_oid};
pub use pull_up::outer_columns;
pub use relations::Relation as SystemRelation;
pub use rewrite::{array_items, derived, rewrite, rewrite_expression, select, table_alias};
pub use syntax::{is_aggregate, parts};
pub use types::format_type;

use crate::facts::SessionFacts;
use async_trait::async_trait;
use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::Result;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::logical_expr::{Expr, ScalarUDF, TableType};
use datafusion::optimizer::AnalyzerRule;
use datafusion::physical_plan::ExecutionPlan;
use relations::{Relation, Rows};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};
use tidepool_heap::QueryHeap;

/// Adds functions (scalar, aggregate, table functions), operators' expression planners and function rewrites before the
/// planner's one session state is built. A function may be called with or without `pg_catalog.` before its name: the
/// planner strips it before the look-up.
pub fn install(mut builder: SessionStateBuilder) -> SessionStateBuilder {
    functions::remember_start();
    let functions = functions::all()
        .into_iter()
        .chain([crate::casts::key()])
        .chain(crate::numerics::functions())
        .chain(crate::coerced::functions());
    builder.scalar_functions().get_or_insert_with(Vec::new).extend(functions);
    let all = builder.scalar_functions().get_or_insert_with(Vec::new);
    // Of several of one name the last counts.
    let named: HashMap<&str, &Arc<ScalarUDF>> = all.iter().map(|function| (function.name(), function)).collect();
    let wrapped: Vec<Arc<ScalarUDF>> = named.into_values().filter_map(functions::wrapped).collect();
    all.extend(wrapped);
    let aggregates = crate::numerics::aggregates().chain(crate::sliding::aggregates());
    builder.aggregate_functions().get_or_insert_with(Vec::new).extend(aggregates);
    builder.expr_planners().get_or_insert_with(Vec::new).insert(0, Arc::new(crate::operators::Operators));
    builder = builder.with_relation_planners(vec![Arc::new(crate::row_types::ValuesLists)]);
    let rules = &mut builder.analyzer().get_or_insert_with(Default::default).rules;
    let first: [Arc<dyn AnalyzerRule + Send + Sync>; 4] = [
        Arc::new(crate::optimizer::Multisets),
        Arc::new(crate::optimizer::RowQueries),
        Arc::new(crate::optimizer::SubqueryOrder),
        Arc::new(apply::ApplySubqueries),
    ];
    rules.splice(0..0, first);
    builder
}

/// A function of this module by name, for operators that stand for one.
pub fn function(name: &str) -> Option<Arc<ScalarUDF>> {
    static FUNCTIONS: LazyLock<HashMap<String, Arc<ScalarUDF>>> = LazyLock::new(|| {
        let named = |function: Arc<ScalarUDF>| (function.name().to_owned(), function);
        QueryHeap::outside(|| functions::all().into_iter().map(named).collect())
    });
    FUNCTIONS.get(name).cloned()
}

/// The texts of a column of `regproc`.
pub fn function_names(oids: &dyn Array) -> tidepool_base::Result<ArrayRef> {
    functions::procedures::regprocs(oids).map_err(crate::errors::from_datafusion)
}

/// The system table or view, if there is one: `schema` is `pg_catalog`, `information_schema` or `tidepool`.
pub fn system_relation(schema: &str, name: &str) -> Option<&'static SystemRelation> {
    relations::find(schema, name)
}

pub fn table(relation: &'static SystemRelation, facts: &Arc<SessionFacts>) -> Arc<dyn TableProvider> {
    Arc::new(SystemTable { relation, facts: facts.clone() })
}

/// The Arrow type that stands for a type name only the system catalogue uses (`regclass`, `oid`, `name`, …).
pub fn system_type(name: &str) -> Option<DataType> {
    match name {
        "oid" | "xid" | "cid" | "regproc" | "regprocedure" | "regoper" | "regoperator" | "regclass" | "regtype"
        | "regrole" | "regnamespace" | "regconfig" | "regdictionary" | "regcollation" | "name" | "char"
        | "int2vector" | "oidvector" | "pg_node_tree" | "aclitem" | "cstring" | "unknown" | "inet" | "pg_lsn" => {
            Some(relations::arrow_type(name))
        }
        _ => None,
    }
}

/// The Arrow type that stands for a PostgreSQL type; `None` for an oid of no type.
pub fn type_of_oid(oid: u32) -> Option<DataType> {
    types::by_oid(oid).map(|entry| relations::arrow_type(entry.name))
}

/// A system relation over one statement's snapshot. Its rows are made when it is scanned.
#[derive(Debug)]
struct SystemTable {
    relation: &'static Relation,
    facts: Arc<SessionFacts>,
}

#[async_trait]
impl TableProvider for SystemTable {
    fn schema(&self) -> SchemaRef {
        self.relation.arrow_schema().clone()
    }

    fn table_type(&self) -> TableType {
        if self.relation.kind == "v" { TableType::View } else { TableType::Base }
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        // A plan may be run again by a later statement, whose facts then differ from those it was made with.
        let facts = SessionFacts::of(state.config_options()).unwrap_or(&self.facts);
        let mut rows = Rows::new(self.relation);
        match self.relation.schema {
            "pg_catalog" => pg_catalog::fill(self.relation.name, facts, &mut rows)?,
            "information_schema" => information_schema::fill(self.relation.name, facts, &mut rows),
            _ => tidepool::fill(self.relation.name, facts, &mut rows),
        }
        let batch = rows.finish()?;
        let plan = MemorySourceConfig::try_new_exec(&[vec![batch]], self.schema(), projection.cloned())?;
        Ok(plan)
    }
}
