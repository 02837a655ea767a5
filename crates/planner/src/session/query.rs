//! Queries: planned and started.

use super::parts;
use super::{Outcome, ResultColumn, Running, Session};
use crate::charge::HeapCounts;
use crate::engine::EngineExec;
use crate::execute::{Again, Batches, Execution, Reevaluation, joined, panicked, task_context};
use crate::facts::SessionFacts;
use crate::generic::Request;
use crate::query;
use crate::settings::PlanSharing;
use crate::statement::{Command, Statement};
use arrow::array::ArrayRef;
use arrow::datatypes::SchemaRef;
use datafusion::sql::sqlparser::ast;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll, Waker};
use tidepool_base::{Error, Result};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

impl Session {
    /// Plans and starts a query. `query` is called where it is planned: copying a deep one takes a deep stack. With `request`, of a statement as it
    /// was written, its plan may be that of others.
    pub(super) async fn start(
        &self,
        running: Running,
        query: impl FnOnce() -> Result<Box<ast::Query>> + Send + 'static,
        parameters: &[ArrayRef],
        mut request: Option<Request>,
    ) -> Result<(Vec<ResultColumn>, SchemaRef, Batches)> {
        let (facts, interrupt) = (running.facts.clone(), running.interrupt.clone());
        let is_known = request.as_mut().is_some_and(|request| self.finds(request, &facts));
        let (parameters, failed) = (parameters.to_vec(), self.block_failed());
        let (sender, started) = oneshot::channel();
        let workers = self.planner.workers();
        let started_from = workers.clone();
        let task = async move {
            let planner = facts.planner.clone();
            let planning = async { query::plan(facts, query()?, parameters, request).await };
            let planned = planner.places.plan(&running.interrupt, &running.query.info.text, planning).await?;
            let (columns, schema) = (planned.columns.clone(), planned.schema.clone());
            let mut execution = execution(&running, planned, None, failed)?;
            execution.query = Some(running.query);
            // Whoever has the last batch goes on as if nothing of the statement were there: neither what its facts keep from being dropped, nor
            // what would end it.
            drop((running.facts, running.interrupt));
            // The statement was ended before it began.
            if !sender.is_closed() {
                let _ = sender.send((columns, schema, execution.start_here(&workers)));
            }
            Ok(())
        };
        // Not on a worker, which nothing interrupts: see `planning`. A statement that is planned already is lowered here, and runs here if it is
        // small: another thread would take longer to wake than to run it.
        let workers = started_from;
        let task = match is_known {
            true => match begun_here(&workers, task)? {
                Begun::Waits(task) => plan_aside(&workers, task),
                Begun::Done(()) => {
                    return started.await.map_err(|_| Error::internal("a query ended before it began"));
                }
            },
            false => plan_aside(&workers, task),
        };
        tokio::select! {
            biased;
            error = interrupt.wait() => Err(error),
            started = started => match started {
                Ok(started) => Ok(started),
                Err(_) => {
                    joined(task.await)?;
                    Err(Error::internal("a query ended before it began"))
                }
            },
        }
    }

    /// Has a statement of this text planned. It ends when the statement is to end, and does not wait until that is noticed.
    pub(super) async fn plan_apart<T: Send + 'static>(
        &self,
        text: &str,
        planning: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        // What is only described runs as little as a statement does.
        let interrupt = self.shared.interrupt().upgrade().unwrap_or_else(|| self.interrupt());
        let (planner, text) = (self.planner.clone(), text.to_owned());
        let of_planning = interrupt.clone();
        let planning = plan_aside(&self.planner.workers(), async move {
            let planned = planner.places.plan(&of_planning, &text, planning).await;
            drop(planner);
            planned
        });
        tokio::select! {
            biased;
            error = interrupt.wait() => Err(error),
            planned = planning => joined(planned),
        }
    }

    /// As `plan_apart`, of one that is as good as planned: it is done on this thread, unless it has to wait.
    pub(super) async fn plan_here<T: Send + 'static>(
        &self,
        text: &str,
        planning: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let interrupt = self.shared.interrupt().upgrade().unwrap_or_else(|| self.interrupt());
        let (planner, text, of_planning) = (self.planner.clone(), text.to_owned(), interrupt.clone());
        let planning = async move { planner.places.plan(&of_planning, &text, planning).await };
        let workers = self.planner.workers();
        let planning = match begun_here(&workers, planning)? {
            Begun::Done(planned) => return Ok(planned),
            Begun::Waits(planning) => plan_aside(&workers, planning),
        };
        tokio::select! {
            biased;
            error = interrupt.wait() => Err(error),
            planned = planning => joined(planned),
        }
    }

    /// A request for the plan of a statement as it was written, which may be that of others.
    pub(super) fn request_of(&self, statement: &Statement, parameters: &[ArrayRef]) -> Option<Request> {
        // What copies, lowers and drops a deep one needs a deep stack, however little is left of it in its plan.
        let shares = self.settings.plan_sharing() != PlanSharing::Never && !statement.is_deep();
        shares.then(|| Request::of(statement.text(), parameters)).flatten()
    }

    /// Whether there is a plan for it already, so that what is left to do can be done on this thread.
    pub(super) fn finds(&self, request: &mut Request, facts: &Arc<SessionFacts>) -> bool {
        // Where analytics have processors of their own, they keep to them.
        let may_stay = self.planner.database().config().workload.analytics.cores.is_empty();
        may_stay && request.find(facts)
    }

    pub(super) fn run(&self, running: Running, planned: query::Planned) -> Result<Batches> {
        Ok(self.prepare_run(running, planned, None)?.start(&self.planner.workers()))
    }

    /// With `counts`, what operators do in the query heap is counted there, paced or not.
    pub(super) fn prepare_run(
        &self,
        running: Running,
        planned: query::Planned,
        counts: Option<&Arc<HeapCounts>>,
    ) -> Result<Execution> {
        let mut execution = execution(&running, planned, counts, self.block_failed())?;
        execution.query = Some(running.query);
        Ok(execution)
    }

    /// As `prepare_writing`, of a part of the statement that runs.
    pub(super) fn prepare_part(&self, running: &Running, planned: query::Planned) -> Result<(Execution, Reevaluation)> {
        let again = Again::of(&planned);
        let execution = execution(running, planned, None, self.block_failed())?;
        let reevaluation = Reevaluation::new(again, &execution, self.planner.workers());
        Ok((execution, reevaluation))
    }

    /// As `prepare_run`, with what it takes to run the plan again for some rows.
    pub(super) fn prepare_writing(
        &self,
        running: Running,
        planned: query::Planned,
    ) -> Result<(Execution, Reevaluation)> {
        let again = Again::of(&planned);
        let execution = self.prepare_run(running, planned, None)?;
        let reevaluation = Reevaluation::new(again, &execution, self.planner.workers());
        Ok((execution, reevaluation))
    }

    pub(super) async fn select(
        &mut self,
        text: &str,
        statement: &Statement,
        parameters: &[ArrayRef],
    ) -> Result<Outcome> {
        let parts::Begun { running, statement, .. } = self.begin_statement(text, statement, parameters, true).await?;
        let request = self.request_of(&statement, parameters);
        let (columns, _, batches) = self.start(running, move || query_of(&statement), parameters, request).await?;
        Ok(Outcome::Rows { columns, batches: Box::pin(batches), tag: "SELECT" })
    }
}

/// What became of a task as far as it had not to wait.
enum Begun<F, T> {
    Done(T),
    Waits(Pin<Box<F>>),
}

/// Does what can be done without waiting, and gives back the rest.
fn begun_here<T, F: Future<Output = Result<T>> + Send + 'static>(workers: &Handle, task: F) -> Result<Begun<F, T>> {
    let mut task = Box::pin(task);
    let _runtime = workers.enter();
    let polled = catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(&mut Context::from_waker(Waker::noop()))));
    match polled {
        Ok(Poll::Ready(done)) => done.map(Begun::Done),
        Ok(Poll::Pending) => Ok(Begun::Waits(task)),
        Err(panic) => Err(panicked(panic.as_ref())),
    }
}

/// Plans on a thread of its own.
fn plan_aside<T: Send + 'static>(
    workers: &Handle,
    planning: impl Future<Output = Result<T>> + Send + 'static,
) -> JoinHandle<Result<T>> {
    let handle = workers.clone();
    workers.spawn_blocking(move || handle.block_on(planning))
}

fn execution(
    running: &Running,
    planned: query::Planned,
    counts: Option<&Arc<HeapCounts>>,
    failed: Option<Arc<AtomicBool>>,
) -> Result<Execution> {
    let heaps = running.facts.heaps.clone();
    let heap = heaps.open(running.facts.planner.database(), &running.facts.settings)?;
    let runtime = crate::heap::runtime(planned.state.runtime_env(), &heap);
    let config = planned.state.config().clone();
    let config = config.with_extension(running.query.info.clone()).with_extension(running.interrupt.clone());
    let is_small = planned.plan.downcast_ref::<EngineExec>().is_some_and(EngineExec::is_small);
    let plan = crate::guard::wrap(planned.plan, &running.interrupt)?;
    Ok(Execution {
        plan: crate::charge::wrap(plan, &heap, &running.query.info, counts)?,
        context: Arc::new(task_context(config, runtime)),
        schema: planned.schema,
        heap,
        heaps,
        query: None,
        interrupt: running.interrupt.clone(),
        failed,
        is_small,
    })
}

/// The query in a statement.
pub(super) fn query_of(statement: &Statement) -> Result<Box<ast::Query>> {
    let query = match statement.command() {
        Command::Query(query) => Some(query.clone()),
        Command::Insert(insert, _) => insert.source.clone(),
        Command::CreateTable { table, .. } => table.query.clone(),
        Command::Unsupported(error) => return Err(error.clone()),
        _ => None,
    };
    let query = query.ok_or_else(|| Error::unsupported("this needs a query that returns rows"))?;
    if matches!(query.body.as_ref(), ast::SetExpr::Select(select) if select.into.is_some()) {
        return Err(Error::unsupported("SELECT INTO is not supported").with_hint("Use CREATE TABLE AS."));
    }
    Ok(query)
}
