//! `EXPLAIN`: a plan as lines of text.

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::display::DisplayableExecutionPlan;
use std::sync::Arc;

/// The lines of a plan; with what its operators measured once it has run.
pub fn lines(plan: &Arc<dyn ExecutionPlan>, analyze: bool, verbose: bool, tree: bool) -> Vec<String> {
    let display = if analyze {
        DisplayableExecutionPlan::with_metrics(plan.as_ref())
    } else {
        DisplayableExecutionPlan::new(plan.as_ref())
    };
    let text = if tree && !analyze {
        DisplayableExecutionPlan::new(plan.as_ref()).tree_render().to_string()
    } else {
        display.set_show_statistics(verbose).indent(verbose).to_string()
    };
    text.lines().map(str::to_owned).collect()
}
