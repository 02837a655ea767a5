//! How often the rules have their turn.

use chrono::{DateTime, Utc};
use datafusion::common::alias::AliasGenerator;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{JoinType, Result};
use datafusion::execution::{FunctionRegistry, SessionState};
use datafusion::logical_expr::{Expr, LogicalPlan};
use datafusion::optimizer::OptimizerConfig;
use std::sync::Arc;
use tidepool_base::panic_point;

/// As DataFusion's, but a plain query's rules run once instead of until nothing changes: on tables of a few million rows planning takes a good part
/// of the time, and a second turn finds something to do only where the first has made other operators of subqueries, unions or outer joins.
pub fn optimize(state: &SessionState, plan: &LogicalPlan) -> Result<LogicalPlan> {
    panic_point("planner.optimizer");
    crate::growth::check(plan)?;
    crate::catalog::bounded(optimized(state, plan)?)
}

fn optimized(state: &SessionState, plan: &LogicalPlan) -> Result<LogicalPlan> {
    if !is_plain(plan)? {
        let plan = super::disjunctions::factor(super::nesting::flatten(state, plan.clone())?)?;
        return super::recursion::settle(state.optimize(&plan)?);
    }
    let mut options = ConfigOptions::clone(state.config_options());
    options.optimizer.max_passes = 1;
    let once = Once { state, options: Arc::new(options) };
    let analyzed = state.analyzer().execute_and_check(plan.clone(), &once.options, |_, _| {})?;
    state.optimizer().optimize(analyzed, &once, |_, _| {})
}

/// A plan as it is after analysis: with its final types.
pub fn analyze(state: &SessionState, plan: LogicalPlan) -> Result<LogicalPlan> {
    crate::growth::check(&plan)?;
    let plan = super::nesting::flatten(state, plan)?;
    state.analyzer().execute_and_check(plan, state.config_options(), |_, _| {})
}

/// Filters, inner joins, groups and orders of tables.
fn is_plain(plan: &LogicalPlan) -> Result<bool> {
    let mut is_plain = true;
    plan.apply(|node| {
        is_plain &= match node {
            LogicalPlan::Join(join) => join.join_type == JoinType::Inner,
            LogicalPlan::Projection(_)
            | LogicalPlan::Filter(_)
            | LogicalPlan::Aggregate(_)
            | LogicalPlan::Sort(_)
            | LogicalPlan::Limit(_)
            | LogicalPlan::TableScan(_)
            | LogicalPlan::SubqueryAlias(_) => true,
            _ => false,
        };
        is_plain &= !node.expressions().iter().any(has_subquery);
        Ok(if is_plain { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    })?;
    Ok(is_plain)
}

fn is_query(expr: &Expr) -> bool {
    matches!(expr, Expr::ScalarSubquery(_) | Expr::Exists(_) | Expr::InSubquery(_) | Expr::SetComparison(_))
}

/// Whether it asks queries.
pub fn has_query(expr: &Expr) -> bool {
    expr.exists(|expr| Ok(is_query(expr))).unwrap_or(true)
}

/// Whether it asks queries, or is asked within one for each row.
pub(super) fn has_subquery(expr: &Expr) -> bool {
    expr.exists(|expr| Ok(is_query(expr) || matches!(expr, Expr::OuterReferenceColumn(..)))).unwrap_or(true)
}

/// A session whose optimiser takes one turn.
struct Once<'a> {
    state: &'a SessionState,
    options: Arc<ConfigOptions>,
}

impl OptimizerConfig for Once<'_> {
    fn query_execution_start_time(&self) -> Option<DateTime<Utc>> {
        self.state.query_execution_start_time()
    }

    fn alias_generator(&self) -> &Arc<AliasGenerator> {
        self.state.alias_generator()
    }

    fn options(&self) -> Arc<ConfigOptions> {
        self.options.clone()
    }

    fn function_registry(&self) -> Option<&dyn FunctionRegistry> {
        Some(self.state)
    }
}
