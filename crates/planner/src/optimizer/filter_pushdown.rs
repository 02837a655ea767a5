//! Filters pushed down physical plans, but not where that would take one column for another.
//!
//! DataFusion 55 looks a filter's columns up in an operator's input by name alone, and of two with the same name takes the first
//! (<https://github.com/apache/datafusion/pull/25259> mends it). A self-join's columns have the same names. So its rule is applied to the
//! largest parts of a plan in which no operator has such an input, and filters elsewhere stay where the logical rules have put them.

use datafusion::arrow::datatypes::Schema;
use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::execution_plan::{ChildrenPropertiesMode, ReplaceChildrenOptions};
use std::collections::HashSet;
use std::sync::Arc;

pub type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// One of DataFusion's rules that push filters down, within bounds.
#[derive(Debug)]
pub struct FilterPushdown(Rule);

impl FilterPushdown {
    /// The rule itself unless it is such a rule.
    pub fn bound(rule: Rule) -> Rule {
        if rule.name().starts_with("FilterPushdown") { Arc::new(FilterPushdown(rule)) } else { rule }
    }
}

impl PhysicalOptimizerRule for FilterPushdown {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if are_inputs_distinct(plan.as_ref()) {
            return self.0.optimize(plan, config);
        }
        let inputs = plan.children().into_iter().cloned().map(|input| self.optimize(input, config));
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        plan.replace_children(inputs, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn schema_check(&self) -> bool {
        self.0.schema_check()
    }
}

/// Whether every operator below has columns of different names.
fn are_inputs_distinct(plan: &dyn ExecutionPlan) -> bool {
    plan.children().into_iter().all(|input| is_distinct(&input.schema()) && are_inputs_distinct(input.as_ref()))
}

fn is_distinct(schema: &Schema) -> bool {
    let mut names = HashSet::with_capacity(schema.fields().len());
    schema.fields().iter().all(|field| names.insert(field.name()))
}
