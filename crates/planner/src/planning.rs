//! Planning: ended from outside as execution is, and out of the way of other sessions.
//!
//! DataFusion plans without a pause, and what it takes for a long text no deadline of ours bounds. So what it calls of ours (names, the rules of
//! its optimiser) asks whether the statement is still wanted ([`check`]); and plans are made on threads beside the planner's workers, which go
//! on with what others ask; those of long texts in one of a few places, for which such statements wait in their order.

use crate::interrupt::Interrupt;
use datafusion::common::Result as PlanResult;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::optimizer::ApplyOrder;
use datafusion::optimizer::{AnalyzerRule, OptimizerConfig, OptimizerRule};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState};
use tokio::sync::Semaphore;

/// Texts up to this long need no place: they are planned in no time, but for some that say much in few words.
const SHORT_TEXT_BYTES: usize = 512;

/// Places for each of the planner's workers.
const PLACES_PER_WORKER: usize = 4;

/// Views that a statement reads, views over views counted as often as they are read.
const VIEWS_MAX: usize = 1000;

thread_local! {
    /// Of the statement that this thread plans.
    static INTERRUPT: RefCell<Option<Arc<Interrupt>>> = const { RefCell::new(None) };
    /// Views that it has read by now.
    static VIEWS: Cell<usize> = const { Cell::new(0) };
}

/// Where statements are planned that may take long.
pub(crate) struct Places(Semaphore);

impl Places {
    pub(crate) fn new(workers: usize) -> Places {
        Places(Semaphore::new(workers.max(1) * PLACES_PER_WORKER))
    }

    /// Plans a statement of this text, on a thread that nobody else needs meanwhile.
    pub(crate) async fn plan<T>(
        &self,
        interrupt: &Arc<Interrupt>,
        text: &str,
        planning: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let is_long = text.len() > SHORT_TEXT_BYTES;
        let _place = if is_long {
            tokio::select! {
                biased;
                error = interrupt.wait() => return Err(error),
                place = self.0.acquire() => Some(place),
            }
        } else {
            None
        };
        let mut planning = pin!(planning);
        let mut views = 0;
        poll_fn(|context| {
            let before = (INTERRUPT.replace(Some(interrupt.clone())), VIEWS.replace(views));
            let _within = Within(before);
            let polled = planning.as_mut().poll(context);
            views = VIEWS.get();
            polled
        })
        .await
    }
}

/// What the thread planned before.
struct Within((Option<Arc<Interrupt>>, usize));

impl Drop for Within {
    fn drop(&mut self) {
        INTERRUPT.set(self.0.0.take());
        VIEWS.set(self.0.1);
    }
}

/// The error that ends the statement that this thread plans, if it is to end.
pub(crate) fn check() -> Result<()> {
    INTERRUPT.with_borrow(|interrupt| interrupt.as_ref().map_or(Ok(()), |interrupt| interrupt.check()))
}

/// Whether this thread plans a statement now.
pub(crate) fn is_planning() -> bool {
    INTERRUPT.with_borrow(Option::is_some)
}

/// Plans the query of a view. 54001 for a statement that comes to too many of them: views over views double what they read.
pub(crate) fn within_view<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    check()?;
    let views = VIEWS.get() + 1;
    VIEWS.set(views);
    if views > VIEWS_MAX {
        return Err(Error::new(SqlState::STATEMENT_TOO_COMPLEX, "stack depth limit exceeded")
            .with_detail(format!("The statement reads views more than {VIEWS_MAX} times, by way of other views.")));
    }
    work()
}

/// A rule that begins with the question whether its plan is still wanted.
#[derive(Debug)]
pub(crate) struct Checked<R: ?Sized>(pub Arc<R>);

impl OptimizerRule for Checked<dyn OptimizerRule + Send + Sync> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> PlanResult<Transformed<LogicalPlan>> {
        check().map_err(crate::errors::carry)?;
        // What a filter comes to that is pushed through columns which are made of others, twice at each step.
        if self.name() == "push_down_filter"
            && let LogicalPlan::Filter(filter) = &plan
        {
            crate::growth::check_filter(filter)?;
        }
        self.0.rewrite(plan, config)
    }
}

impl AnalyzerRule for Checked<dyn AnalyzerRule + Send + Sync> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn analyze(&self, plan: LogicalPlan, config: &ConfigOptions) -> PlanResult<LogicalPlan> {
        check().map_err(crate::errors::carry)?;
        self.0.analyze(plan, config)
    }
}

impl PhysicalOptimizerRule for Checked<dyn PhysicalOptimizerRule + Send + Sync> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, config: &ConfigOptions) -> PlanResult<Arc<dyn ExecutionPlan>> {
        check().map_err(crate::errors::carry)?;
        self.0.optimize(plan, config)
    }

    fn schema_check(&self) -> bool {
        self.0.schema_check()
    }
}
