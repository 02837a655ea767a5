//! Workload classes: how many statements of each run at once, and how the others wait.
//!
//! A statement that belongs to a class takes a *place* before it draws its snapshot, and gives it back when it is over; a transaction
//! keeps the one that its first statement took. Places are given in the order in which they were asked for, but that a session which
//! waited has a [`Turn`]: what comes next of it goes before those who wait.
//!
//! Invariant: who waits for a place holds no lock and has written nothing. Whoever does takes a place at once, beyond the limit if need
//! be ([`Gate::enter`]). So nobody who has a place waits for somebody who waits for one, and no transaction is refused whose work
//! would be lost.

use crate::interrupt::Interrupt;
use crate::statement::{Command, Statement};
use crate::walk::walk;
use datafusion::sql::sqlparser::ast::{self, ObjectName, Visitor};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result, SqlState};
use tidepool_database::Config;
use tidepool_database::config::ClassConfig;
use tokio::sync::oneshot;

/// A place that is not used for so long, because its client is waited for, goes to the next.
pub const PLACE_IDLE_MAX: Duration = Duration::from_millis(100);

/// Transactions at once for each thread. Many wait for the log or for their clients, and share the log's writes.
const TRANSACTIONS_PER_THREAD: usize = 32;

/// Queries at once for each thread. They take turns, so that short ones come through; more of them only take more memory at once.
const ANALYTICS_PER_THREAD: usize = 8;

/// Of either class, at the least.
const RUNNING_MIN: usize = 16;

/// Who finds the queue full hears of it after so long. A client that is refused at once tries again at once, and many of them would keep the
/// server busy with nothing else: saying no costs as much as a message of a transaction.
const REFUSAL_DELAY: Duration = Duration::from_millis(250);

/// Transactions of a turn. Of a session that nothing was heard of for long, server, system and client have nothing in any cache, which costs a
/// transaction as small as one of a few rows a third more; in a turn that is paid once.
const TURN_LENGTH: u32 = 8;

/// A session whose last transaction was let in longer ago than this has lost its turn.
const TURN_PAUSE_MAX: Duration = Duration::from_millis(50);

const QUEUED_MAX: usize = 1_000;
const TRANSACTIONS_QUEUE_TIMEOUT: Duration = Duration::from_secs(10);
const ANALYTICS_QUEUE_TIMEOUT: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Statements that find their rows by an index's keys, and those that write.
    Transactions,
    /// Queries that are planned.
    Analytics,
}

impl Class {
    pub const ALL: [Class; 2] = [Class::Transactions, Class::Analytics];

    pub fn name(self) -> &'static str {
        match self {
            Class::Transactions => "transactions",
            Class::Analytics => "analytics",
        }
    }

    pub fn of_name(name: &str) -> Option<Class> {
        Class::ALL.into_iter().find(|class| class.name() == name)
    }

    /// The class of a statement that is planned. `None`: it is run at once, as it reads and writes no rows of tables, or ends a
    /// transaction.
    pub fn of(statement: &Statement) -> Option<Class> {
        let query = |query: &ast::Query| {
            let reads = statement.is_deep() || reads_tables(query);
            reads.then_some(Class::Analytics)
        };
        match statement.command() {
            Command::Query(of) => query(of),
            Command::CreateTable { table, .. } => table.query.as_deref().and_then(query),
            Command::Declare { query, .. } => Class::of(query),
            Command::Explain { options, statement } if options.analyze => Class::of(statement),
            Command::Copy(copy) if copy.from => Some(Class::Transactions),
            Command::Copy(_) => Some(Class::Analytics),
            Command::Locking { .. }
            | Command::Insert(..)
            | Command::Update { .. }
            | Command::Delete { .. }
            | Command::MergeInto { .. }
            | Command::Call { .. } => Some(Class::Transactions),
            _ => None,
        }
    }
}

/// Whether a query reads relations other than those of the system, which are small and what one looks at when there is too much to do.
fn reads_tables(query: &ast::Query) -> bool {
    struct Tables;
    impl Visitor for Tables {
        type Break = ();

        fn pre_visit_relation(&mut self, name: &ObjectName) -> ControlFlow<()> {
            match is_system(name) {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        }
    }
    walk(query, &mut Tables).is_break()
}

fn is_system(name: &ObjectName) -> bool {
    let parts: Vec<_> = name.0.iter().filter_map(|part| part.as_ident()).map(|part| &*part.value).collect();
    match parts.as_slice() {
        [name] => name.get(..3).is_some_and(|start| start.eq_ignore_ascii_case("pg_")),
        [.., schema, _] => {
            ["pg_catalog", "information_schema", "tidepool"].iter().any(|system| schema.eq_ignore_ascii_case(system))
        }
        [] => false,
    }
}

/// What a class has done so far, and what it may.
#[derive(Clone, Debug)]
pub struct ClassRow {
    pub class: Class,
    pub running: usize,
    pub running_max: usize,
    pub queued: usize,
    pub queued_max: usize,
    /// `None`: for ever.
    pub queue_timeout: Option<Duration>,
    pub admitted: u64,
    /// Of those admitted, how many waited, for how long together, and the longest.
    pub waited: u64,
    pub wait: Duration,
    pub wait_max: Duration,
    /// As too many waited already.
    pub refused_full: u64,
    /// As they had waited too long.
    pub refused_late: u64,
    /// Processors of its threads; empty: all.
    pub cores: Vec<usize>,
}

/// The places of one class.
pub struct Gate {
    class: Class,
    running_max: usize,
    queued_max: usize,
    queue_timeout: Option<Duration>,
    cores: Vec<usize>,
    queue: Mutex<Queue>,
    running: AtomicUsize,
    queued: AtomicUsize,
    admitted: AtomicU64,
    waited: AtomicU64,
    wait_ns: AtomicU64,
    wait_ns_max: AtomicU64,
    refused_full: AtomicU64,
    refused_late: AtomicU64,
}

/// Who waits for a gate's places. There are free ones only while nobody waits.
struct Queue {
    free: usize,
    in_turn: VecDeque<oneshot::Sender<Permit>>,
    others: VecDeque<oneshot::Sender<Permit>>,
}

impl Queue {
    /// Some that do not wait any more are still there.
    fn len(&self) -> usize {
        self.in_turn.len() + self.others.len()
    }
}

/// One of a gate's `running_max`. Goes to the next who waits when dropped.
struct Permit {
    /// `None` only while dropping.
    gate: Option<Arc<Gate>>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(gate) = self.gate.take() else { return };
        let mut permit = Permit { gate: Some(gate.clone()) };
        let mut queue = gate.queue.lock();
        loop {
            let next = queue.in_turn.pop_front();
            let Some(next) = next.or_else(|| queue.others.pop_front()) else {
                queue.free += 1;
                permit.gate = None;
                return;
            };
            match next.send(permit) {
                Ok(()) => return,
                // It waits no more.
                Err(back) => permit = back,
            }
        }
    }
}

/// The right to run. Given back when dropped.
pub struct Place {
    gate: Arc<Gate>,
    /// `None`: it is beyond `running_max`.
    _permit: Option<Permit>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.gate.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A session's: how many transactions more it may have before others, and when it had the last.
#[derive(Debug)]
pub struct Turn {
    left: u32,
    last: Instant,
}

impl Turn {
    pub fn none() -> Turn {
        Turn { left: 0, last: Instant::now() }
    }

    fn is_on(&self, now: Instant) -> bool {
        self.left > 0 && now.saturating_duration_since(self.last) <= TURN_PAUSE_MAX
    }

    fn let_in(&mut self, was_on: bool) {
        self.left = if was_on { self.left - 1 } else { TURN_LENGTH - 1 };
        self.last = Instant::now();
    }
}

/// Counted among those who wait, until dropped.
struct Queued<'g>(&'g Gate);

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        self.0.queued.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Gate {
    fn new(class: Class, config: &ClassConfig, per_thread: usize, threads: usize, timeout: Duration) -> Arc<Gate> {
        let running_max = config.running_max.unwrap_or((per_thread * threads).max(RUNNING_MIN));
        let queue_timeout = config.queue_timeout.unwrap_or(timeout);
        Arc::new(Gate {
            class,
            running_max,
            queued_max: config.queued_max.unwrap_or(QUEUED_MAX),
            queue_timeout: (!queue_timeout.is_zero()).then_some(queue_timeout),
            cores: config.cores.clone(),
            queue: Mutex::new(Queue { free: running_max, in_turn: VecDeque::new(), others: VecDeque::new() }),
            running: AtomicUsize::new(0),
            queued: AtomicUsize::new(0),
            admitted: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            wait_ns: AtomicU64::new(0),
            wait_ns_max: AtomicU64::new(0),
            refused_full: AtomicU64::new(0),
            refused_late: AtomicU64::new(0),
        })
    }

    fn place(self: &Arc<Gate>, permit: Option<Permit>) -> Place {
        self.admitted.fetch_add(1, Ordering::Relaxed);
        self.running.fetch_add(1, Ordering::Relaxed);
        Place { gate: self.clone(), _permit: permit }
    }

    fn permit(self: &Arc<Gate>) -> Permit {
        Permit { gate: Some(self.clone()) }
    }

    /// A place, if one is free and nobody waits.
    pub fn try_enter(self: &Arc<Gate>) -> Option<Place> {
        {
            let mut queue = self.queue.lock();
            queue.free = queue.free.checked_sub(1)?;
        }
        Some(self.place(Some(self.permit())))
    }

    /// A place at once, beyond the limit if all are taken.
    pub fn enter(self: &Arc<Gate>) -> Place {
        self.try_enter().unwrap_or_else(|| self.place(None))
    }

    /// Waits for a place; with a turn, before others while it is on. 53000 if too many wait already, or when it took too long; or what ends the statement.
    pub async fn wait(self: &Arc<Gate>, turn: Option<&mut Turn>, interrupt: &Interrupt) -> Result<Place> {
        let joined = |queued| (queued < self.queued_max).then_some(queued + 1);
        if self.queued.fetch_update(Ordering::Relaxed, Ordering::Relaxed, joined).is_err() {
            self.refused_full.fetch_add(1, Ordering::Relaxed);
            tokio::select! {
                biased;
                error = interrupt.wait() => return Err(error),
                () = tokio::time::sleep(REFUSAL_DELAY) => {}
            }
            return Err(self.refused(format!("{} wait already, which is the most that may.", self.queued_max)));
        }
        let _queued = Queued(self);
        let start = Instant::now();
        let is_on = turn.as_ref().is_some_and(|turn| turn.is_on(start));
        let mut given = self.join(is_on);
        let expired = async {
            match self.queue_timeout {
                Some(timeout) => tokio::time::sleep(timeout).await,
                None => std::future::pending().await,
            }
        };
        let permit = tokio::select! {
            biased;
            permit = &mut given => permit.map_err(|_| Error::internal("a workload class forgot who waits"))?,
            error = interrupt.wait() => return Err(error),
            () = expired => {
                self.refused_late.fetch_add(1, Ordering::Relaxed);
                return Err(self.refused(format!("It waited for {} ms.", start.elapsed().as_millis())));
            }
        };
        if let Some(turn) = turn {
            turn.let_in(is_on);
        }
        let waited = start.elapsed().as_nanos() as u64;
        self.waited.fetch_add(1, Ordering::Relaxed);
        self.wait_ns.fetch_add(waited, Ordering::Relaxed);
        self.wait_ns_max.fetch_max(waited, Ordering::Relaxed);
        Ok(self.place(Some(permit)))
    }

    /// Told a place when there is one: at once, if one was given back meanwhile.
    fn join(self: &Arc<Gate>, in_turn: bool) -> oneshot::Receiver<Permit> {
        let (sender, given) = oneshot::channel();
        let mut queue = self.queue.lock();
        if queue.free > 0 {
            queue.free -= 1;
            // The other end is here.
            let _ = sender.send(self.permit());
            return given;
        }
        if queue.len() > 2 * self.queued.load(Ordering::Relaxed) + 64 {
            queue.in_turn.retain(|waiting| !waiting.is_closed());
            queue.others.retain(|waiting| !waiting.is_closed());
        }
        if in_turn {
            queue.in_turn.push_back(sender)
        } else {
            queue.others.push_back(sender)
        }
        given
    }

    fn refused(&self, why: String) -> Error {
        let message = format!("workload class \"{}\" has no room for the statement", self.class.name());
        Error::new(SqlState::INSUFFICIENT_RESOURCES, message)
            .with_detail(format!("{} run at once. {why}", self.running_max))
            .with_hint("Nothing of it ran: try again later.")
    }

    fn row(&self) -> ClassRow {
        ClassRow {
            class: self.class,
            running: self.running.load(Ordering::Relaxed),
            running_max: self.running_max,
            queued: self.queued.load(Ordering::Relaxed),
            queued_max: self.queued_max,
            queue_timeout: self.queue_timeout,
            admitted: self.admitted.load(Ordering::Relaxed),
            waited: self.waited.load(Ordering::Relaxed),
            wait: Duration::from_nanos(self.wait_ns.load(Ordering::Relaxed)),
            wait_max: Duration::from_nanos(self.wait_ns_max.load(Ordering::Relaxed)),
            refused_full: self.refused_full.load(Ordering::Relaxed),
            refused_late: self.refused_late.load(Ordering::Relaxed),
            cores: self.cores.clone(),
        }
    }
}

/// The classes of a process.
pub struct Workload {
    transactions: Arc<Gate>,
    analytics: Arc<Gate>,
}

impl Workload {
    pub fn new(config: &Config) -> Workload {
        let (of, threads) = (&config.workload, config.threads);
        Workload {
            transactions: Gate::new(
                Class::Transactions,
                &of.transactions,
                TRANSACTIONS_PER_THREAD,
                threads,
                TRANSACTIONS_QUEUE_TIMEOUT,
            ),
            analytics: Gate::new(
                Class::Analytics,
                &of.analytics,
                ANALYTICS_PER_THREAD,
                config.planned_threads(),
                ANALYTICS_QUEUE_TIMEOUT,
            ),
        }
    }

    pub fn gate(&self, class: Class) -> &Arc<Gate> {
        match class {
            Class::Transactions => &self.transactions,
            Class::Analytics => &self.analytics,
        }
    }

    pub fn rows(&self) -> [ClassRow; 2] {
        Class::ALL.map(|class| self.gate(class).row())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    fn gate() -> Arc<Gate> {
        let config =
            ClassConfig { running_max: Some(1), queue_timeout: Some(Duration::ZERO), ..ClassConfig::default() };
        Gate::new(Class::Transactions, &config, 1, 1, Duration::ZERO)
    }

    fn look<T>(waiting: Pin<&mut impl Future<Output = Result<T>>>) -> Option<T> {
        match waiting.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(given) => Some(given.unwrap()),
            Poll::Pending => None,
        }
    }

    #[test]
    fn who_has_a_turn_goes_first_and_for_so_long() {
        let (gate, interrupt) = (gate(), Interrupt::new(Instant::now(), None, None));
        let (mut one, mut other) = (Turn::none(), Turn::none());
        let mut place = gate.try_enter().unwrap();
        {
            let mut waiting = pin!(gate.wait(Some(&mut one), &interrupt));
            assert!(look(waiting.as_mut()).is_none());
            drop(place);
            place = look(waiting).unwrap();
        }
        let mut behind = pin!(gate.wait(Some(&mut other), &interrupt));
        assert!(look(behind.as_mut()).is_none());
        for _ in 1..TURN_LENGTH {
            let mut waiting = pin!(gate.wait(Some(&mut one), &interrupt));
            assert!(look(waiting.as_mut()).is_none());
            drop(place);
            assert!(look(behind.as_mut()).is_none());
            place = look(waiting).unwrap();
        }
        let mut waiting = pin!(gate.wait(Some(&mut one), &interrupt));
        assert!(look(waiting.as_mut()).is_none());
        drop(place);
        assert!(look(waiting.as_mut()).is_none(), "its turn is over");
        drop(look(behind).unwrap());
        assert!(look(waiting).is_some());
    }

    #[test]
    fn a_place_that_nobody_takes_goes_on() {
        let (gate, interrupt) = (gate(), Interrupt::new(Instant::now(), None, None));
        let place = gate.try_enter().unwrap();
        let (mut one, mut other) = (Turn::none(), Turn::none());
        let mut second = pin!(gate.wait(Some(&mut other), &interrupt));
        {
            // Ends before it is given a place, and after.
            let mut first = Box::pin(gate.wait(Some(&mut one), &interrupt));
            assert!(look(first.as_mut()).is_none());
            assert!(look(second.as_mut()).is_none());
            drop(first);
            let mut first = Box::pin(gate.wait(None, &interrupt));
            assert!(look(first.as_mut()).is_none());
            drop(place);
            drop(look(second).unwrap());
            drop(first);
        }
        assert_eq!((gate.row().queued, gate.row().running), (0, 0));
        drop(gate.try_enter().unwrap());
        assert!(gate.try_enter().is_some());
    }

    #[test]
    fn a_turn_is_lost_in_a_pause() {
        let mut turn = Turn::none();
        assert!(!turn.is_on(Instant::now()));
        turn.let_in(false);
        assert!(turn.is_on(turn.last + TURN_PAUSE_MAX));
        assert!(!turn.is_on(turn.last + TURN_PAUSE_MAX + Duration::from_nanos(1)));
    }
}
