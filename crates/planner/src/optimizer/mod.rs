//! Optimiser rules of our own: the order of joins ([`join_order`]) from estimates over real statistics ([`estimate`]),
//! aggregation below joins ([`eager`]), outer joins as inner ones ([`outer`]), how each join is spread over threads ([`join_mode`]),
//! subqueries in `VALUES` ([`row_queries`]), NULL where it is forgotten ([`nulls`], [`lists`]), `EXCEPT ALL` ([`multisets`]), the order of subqueries ([`subquery_order`]), the keys of windows ([`window_keys`]), the terms of recursive queries ([`recursion`]), subqueries deep within others ([`nesting`]), the names of unions ([`union_names`]), and bounds to DataFusion's own ([`filter_pushdown`], [`cross_joins`]).

mod cross_joins;
mod disjunctions;
mod eager;
pub mod estimate;
mod filter_pushdown;
mod join_graph;
mod join_mode;
mod join_order;
mod lists;
mod multisets;
mod nesting;
pub mod nulls;
mod outer;
mod passes;
mod recursion;
mod row_queries;
mod subquery_order;
mod union_names;
mod window_keys;

pub use estimate::estimated_rows;
pub use multisets::Multisets;
pub use passes::{analyze, has_query, optimize};
pub use row_queries::RowQueries;
pub use subquery_order::{SubqueryOrder, rows_in_order};

use crate::planning::Checked;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::optimizer::{Optimizer, OptimizerRule};
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use std::sync::Arc;

/// Adds rules (and replaces some of DataFusion's) before the planner's one session state is built.
pub fn install(mut builder: SessionStateBuilder) -> SessionStateBuilder {
    let options = builder.config().get_or_insert_default().options_mut();
    options.optimizer.enable_dynamic_filter_pushdown = true;
    options.optimizer.enable_join_dynamic_filter_pushdown = true;
    options.optimizer.enable_topk_dynamic_filter_pushdown = true;
    options.optimizer.enable_aggregate_dynamic_filter_pushdown = true;
    // Which side of a join is built is settled with the join order, on better estimates than the physical plan has.
    options.optimizer.join_reordering = false;

    let mut rules = Optimizer::new().rules;
    for rule in rules.iter_mut().filter(|rule| rule.name() == "eliminate_cross_join") {
        *rule = Arc::new(cross_joins::CrossJoins(rule.clone()));
    }
    let before_filters = rules.iter().position(|rule| rule.name() == "eliminate_outer_join").unwrap_or(rules.len());
    rules.insert(before_filters, Arc::new(outer::OuterJoins));
    let after_filters =
        rules.iter().position(|rule| rule.name() == "push_down_filter").map_or(rules.len(), |index| index + 1);
    rules.insert(after_filters, Arc::new(join_order::JoinOrder));
    rules.insert(after_filters + 1, Arc::new(eager::EagerAggregation));
    let before_empty = rules.iter().position(|rule| rule.name() == "propagate_empty_relation").unwrap_or(rules.len());
    rules.insert(before_empty, Arc::new(union_names::UnionNames));
    let before_pruning = rules.iter().position(|rule| rule.name() == "optimize_projections").unwrap_or(rules.len());
    rules.insert(before_pruning, Arc::new(window_keys::WindowKeys));
    for index in
        (0..rules.len()).rev().filter(|index| rules[*index].name() == "simplify_expressions").collect::<Vec<_>>()
    {
        rules.insert(index, Arc::new(nulls::Nulls));
    }

    let physical_rules = PhysicalOptimizer::new().rules.into_iter().map(|rule| -> filter_pushdown::Rule {
        match rule.name() {
            "join_selection" => Arc::new(join_mode::JoinMode),
            _ => filter_pushdown::FilterPushdown::bound(rule),
        }
    });
    let rules = rules.into_iter().map(|rule| -> Arc<dyn OptimizerRule + Send + Sync> { Arc::new(Checked(rule)) });
    let physical_rules = physical_rules.map(|rule| -> filter_pushdown::Rule { Arc::new(Checked(rule)) });
    builder.with_optimizer_rules(rules.collect()).with_physical_optimizer_rules(physical_rules.collect())
}
