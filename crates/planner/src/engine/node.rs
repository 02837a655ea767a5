//! A plan of the engine's among DataFusion's logical operators, and its physical form.

use super::exec::EngineExec;
use async_trait::async_trait;
use datafusion::catalog::Session;
use datafusion::common::{DFSchemaRef, Result, plan_err};
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNode, UserDefinedLogicalNodeCore};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{ExtensionPlanner, PhysicalPlanner};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use tidepool_engine::plan::Plan;
use tidepool_engine::types::ColumnType;

/// Stands for a plan of the engine's. Made when all of DataFusion's rules have had their turn, so nobody compares or changes it.
#[derive(Clone)]
pub struct EngineNode {
    plan: Arc<Plan>,
    types: Vec<ColumnType>,
    schema: DFSchemaRef,
    inputs: Vec<LogicalPlan>,
    is_small: bool,
}

impl EngineNode {
    /// `types`: what the plan's columns leave as. `is_small`: a thread does it in the time that it takes to wake another.
    pub fn new(
        plan: Plan,
        types: Vec<ColumnType>,
        schema: DFSchemaRef,
        inputs: Vec<LogicalPlan>,
        is_small: bool,
    ) -> EngineNode {
        EngineNode { plan: Arc::new(plan), types, schema, inputs, is_small }
    }

    fn exec(&self, inputs: Vec<Arc<dyn ExecutionPlan>>) -> Arc<dyn ExecutionPlan> {
        let schema = self.schema.inner().clone();
        let is_small = self.is_small && inputs.is_empty();
        Arc::new(EngineExec::new(self.plan.clone(), self.types.clone(), schema, inputs, is_small))
    }
}

impl fmt::Debug for EngineNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine: {}", self.plan.label())
    }
}

impl PartialEq for EngineNode {
    fn eq(&self, other: &EngineNode) -> bool {
        Arc::ptr_eq(&self.plan, &other.plan) && self.inputs == other.inputs
    }
}

impl Eq for EngineNode {}

impl PartialOrd for EngineNode {
    fn partial_cmp(&self, other: &EngineNode) -> Option<Ordering> {
        (self == other).then_some(Ordering::Equal)
    }
}

impl Hash for EngineNode {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.plan).hash(state);
    }
}

impl UserDefinedLogicalNodeCore for EngineNode {
    fn name(&self) -> &str {
        "Engine"
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        self.inputs.iter().collect()
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    fn fmt_for_explain(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Engine: {}", self.plan.label())
    }

    fn with_exprs_and_inputs(&self, _exprs: Vec<Expr>, inputs: Vec<LogicalPlan>) -> Result<EngineNode> {
        if inputs.len() != self.inputs.len() {
            return plan_err!("the engine's plan takes {} inputs", self.inputs.len());
        }
        Ok(EngineNode { inputs, ..self.clone() })
    }
}

/// The physical form of a plan that is wholly the engine's.
pub fn whole(plan: &LogicalPlan) -> Option<Arc<dyn ExecutionPlan>> {
    let LogicalPlan::Extension(extension) = plan else { return None };
    let node = extension.node.as_any().downcast_ref::<EngineNode>()?;
    node.inputs.is_empty().then(|| node.exec(Vec::new()))
}

/// Makes the physical form of [`EngineNode`]s.
#[derive(Debug)]
pub struct EngineNodes;

#[async_trait]
impl ExtensionPlanner for EngineNodes {
    async fn plan_extension(
        &self,
        _planner: &dyn PhysicalPlanner,
        node: &dyn UserDefinedLogicalNode,
        _logical_inputs: &[&LogicalPlan],
        physical_inputs: &[Arc<dyn ExecutionPlan>],
        _session: &dyn Session,
        _context: &PhysicalPlanningContext,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Some(node) = node.as_any().downcast_ref::<EngineNode>() else { return Ok(None) };
        Ok(Some(node.exec(physical_inputs.to_vec())))
    }
}
