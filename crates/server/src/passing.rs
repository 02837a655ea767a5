//! Clients' connections that go over to the host that takes over from this one, at a planned change of primary.
//!
//! Each connection that may go over is known here. A switch-over first *asks*: each connection says when it comes between two statements,
//! and whether it is in a transaction then, so that transactions that were open have time to end. A statement that is still the same at the end of that
//! time ends with an error. Then it has them *stop*: a connection that comes between two statements writes its
//! session down as bytes and does nothing more until it is told what became of the switch-over. The bytes go to the other host, which has a
//! duplicate of the socket already (`handover`).
//!
//! Connections that are idle stop already while others are asked, a few at a time, and what they wrote is passed on then: so those
//! that are busy are kept from their work only for as long as they take themselves. A connection that stopped early goes on as soon as its client
//! asks for something, up to when all have to stop. So what it wrote early is a draft at the other host, until all have stopped and
//! this host says that it counts.
//!
//! What holds, whoever dies or sleeps at any step:
//!
//! * **A connection is served by one process at most.** From when its bytes are written to when it is told to stay, a connection neither reads
//!   nor writes its socket here. It is told to stay only where the other host does not go on with it: either it was told before the
//!   switch-over asked for it, or the pool says so. The word in the pool is the other host's request (`tidepool_database`): this host
//!   takes the number of the pass out of it, and then looks whether it still has the term; the other takes the term, and then looks
//!   whether the number is in force. So one of the two sees what the other did, and both give up what is not certain.
//! * **Nothing is lost or answered twice.** A connection stops only where all that it answered is sent, and nothing that it began is unfinished. What it
//!   read and did not work on is part of the bytes; what it did not read is in the socket.
//! * **A connection goes on at one of the two, or ends.** Whoever has the database in the end goes on with the connections that it has the bytes
//!   of, and shuts down the sockets of all others. A process that ends closes what it has.
//!
//! A transaction that is open then stays open here until the other host has the database. That one does again what was done in it, if it can be
//! done again ([`Session::transaction_goes_over`](tidepool_planner::Session::transaction_goes_over)); or else it is lost, and its client is
//! told so by that host (40001).
//!
//! Not able to go over: connections with TLS 1.2 (those with TLS 1.3 are: [`crate::secured`]); those within a COPY; those with more than
//! [`BYTES_MAX`] to be passed on. They end as at any other take-over.

use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};
use zeroize::Zeroize;

/// Bytes of one session at most.
pub(crate) const BYTES_MAX: usize = 4 << 20;

/// How long connections have to stop, at least, and as a part of the time that open transactions have; and once more, if statements are
/// ended then. Others wait that long for their answers.
const STOP_WITHIN: Duration = Duration::from_millis(500);
const STOP_WITHIN_PART: u32 = 10;

/// Connections that are idle stop, begin, or are let go of so many in a millisecond: those that are busy have the same processors.
pub(crate) const IDLE_IN_A_MILLISECOND: u32 = 16;

/// How long after another host has the database the connections of a process hear of it, if that process ends then.
const TELL_AFTER: Duration = Duration::from_millis(100);

/// How long after the first the idle connection with this number has its turn.
pub(crate) fn turn(number: u32) -> Duration {
    Duration::from_millis(u64::from(number / IDLE_IN_A_MILLISECOND))
}

/// What is wanted of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Nothing,
    /// To say when they are between two statements.
    Asking,
    /// To stop there; in a transaction, only if that has had its time.
    Stopping,
    /// To stop there in any case.
    Losing,
}

/// What became of a switch-over, to a connection that was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It goes on here.
    Stays,
    /// It is another process's.
    Gone,
    /// This process has no part in the database any more, and nobody was passed the connection.
    Lost,
}

/// All connections of a host that may go over.
pub(crate) struct Passing {
    stage: watch::Sender<Stage>,
    /// Whether there is any stage, for those who look often.
    is_on: AtomicBool,
    /// Idle connections that were given a turn to stop since connections were asked.
    turns: AtomicU32,
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    /// By the numbers of their sockets.
    connections: HashMap<u64, Known>,
    stopped: HashMap<u64, oneshot::Sender<Outcome>>,
    /// Those of them that go on again if their clients ask for something.
    early: HashSet<u64>,
    /// Those that stopped early, and have gone on since.
    withdrawn: HashSet<u64>,
    /// What those wrote that have stopped and are not passed on yet.
    written: Written,
    /// Another host has the database: what becomes of those that stop from now on.
    over: Option<Outcome>,
}

/// Sessions as bytes, by the numbers of their sockets.
pub(crate) type Written = Vec<(u64, Vec<u8>)>;

/// What connections wrote when all stopped.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Stopped {
    pub(crate) written: Written,
    /// What these wrote earlier counts no more.
    pub(crate) withdrawn: Vec<u64>,
}

struct Known {
    session: u32,
    /// Ends its statement, if one runs.
    end_statement: Box<dyn Fn() + Send>,
    place: Place,
    /// It was where it goes over with all that it has: a transaction that it is in has not had the time of those that were open yet.
    was_whole: bool,
}

/// Where a connection is, as it said last since it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// It has said nothing: it is within a statement.
    Unknown,
    /// Between two statements of a transaction.
    InTransaction,
    /// Where it goes over with all that it has.
    Between,
    /// Its statement was told to end.
    Ending,
    /// It cannot be expected to stop.
    Stays,
}

impl Inner {
    /// Ends the statements of connections, but of the caller's. Whether there were any. `of`: whether it has stopped, and what is known of it.
    fn end_statements(&mut self, caller: Option<u32>, of: impl Fn(bool, &Known) -> bool) -> bool {
        let mut any = false;
        for (number, known) in &mut self.connections {
            if Some(known.session) != caller && of(self.stopped.contains_key(number), known) {
                known.place = Place::Ending;
                (known.end_statement)();
                any = true;
            }
        }
        any
    }
}

/// A connection that may go over, until dropped.
pub(crate) struct Passenger {
    passing: Arc<Passing>,
    number: u64,
    pub(crate) stage: watch::Receiver<Stage>,
}

impl Drop for Passenger {
    fn drop(&mut self) {
        let mut inner = self.passing.inner.lock();
        inner.connections.remove(&self.number);
        inner.stopped.remove(&self.number);
        inner.early.remove(&self.number);
        self.passing.changed.notify_all();
    }
}

impl Passenger {
    /// Whether connections are to do something.
    #[inline]
    pub(crate) fn is_asked(&self) -> bool {
        self.passing.is_on.load(Ordering::Acquire)
    }

    /// What is wanted now. Changes from then on are told.
    pub(crate) fn stage(&mut self) -> Stage {
        *self.stage.borrow_and_update()
    }

    /// It is between two statements. `is_whole`: and would go over with all that it has.
    pub(crate) fn is_between(&self, is_whole: bool) {
        self.is_at(if is_whole { Place::Between } else { Place::InTransaction });
    }

    /// Whether a transaction that it is in has time to end.
    pub(crate) fn has_time(&self) -> bool {
        let inner = self.passing.inner.lock();
        *self.passing.stage.borrow() != Stage::Losing
            && inner.connections.get(&self.number).is_some_and(|known| known.was_whole)
    }

    /// It cannot go over as it is: nothing waits for it.
    pub(crate) fn cannot_stop(&self) {
        self.is_at(Place::Stays);
    }

    fn is_at(&self, place: Place) {
        let mut inner = self.passing.inner.lock();
        if let Some(known) = inner.connections.get_mut(&self.number) {
            known.was_whole |= place == Place::Between;
            if std::mem::replace(&mut known.place, place) != place {
                self.passing.changed.notify_all();
            }
        }
    }

    /// Stops with its session written down, until it is known what became of the switch-over.
    pub(crate) async fn stop(&self, bytes: Vec<u8>) -> Outcome {
        let outcome = {
            let mut inner = self.passing.inner.lock();
            // The stage may be over by now; under the lock it does not end.
            if !matches!(*self.passing.stage.borrow(), Stage::Stopping | Stage::Losing) {
                return Outcome::Stays;
            }
            if let Some(outcome) = inner.over {
                return outcome;
            }
            self.stopped(&mut inner, bytes)
        };
        outcome.await.unwrap_or(Outcome::Lost)
    }

    fn stopped(&self, inner: &mut Inner, bytes: Vec<u8>) -> oneshot::Receiver<Outcome> {
        let (tell, outcome) = oneshot::channel();
        inner.stopped.insert(self.number, tell);
        inner.withdrawn.remove(&self.number);
        inner.written.push((self.number, bytes));
        self.passing.changed.notify_all();
        outcome
    }

    /// How long after connections were asked an idle one stops early.
    pub(crate) fn turn(&self) -> Duration {
        turn(self.passing.turns.fetch_add(1, Ordering::Relaxed))
    }

    /// As `stop`, while connections are only asked, of one that is idle. It goes on again once `has_work`, unless all are to stop by then.
    pub(crate) async fn stop_early(&self, bytes: Vec<u8>, has_work: impl Future<Output = ()>) -> Outcome {
        let mut outcome = {
            let mut inner = self.passing.inner.lock();
            if *self.passing.stage.borrow() != Stage::Asking {
                return Outcome::Stays;
            }
            if let Some(known) = inner.connections.get_mut(&self.number) {
                (known.place, known.was_whole) = (Place::Between, true);
            }
            inner.early.insert(self.number);
            self.stopped(&mut inner, bytes)
        };
        tokio::select! {
            biased;
            outcome = &mut outcome => return outcome.unwrap_or(Outcome::Lost),
            () = has_work => {}
        }
        if self.withdraw() {
            return Outcome::Stays;
        }
        outcome.await.unwrap_or(Outcome::Lost)
    }

    /// Whether a connection that stopped early goes on.
    fn withdraw(&self) -> bool {
        let mut inner = self.passing.inner.lock();
        if !inner.early.remove(&self.number) {
            return false;
        }
        inner.stopped.remove(&self.number);
        // It may have been passed on, now or when it stopped before.
        inner.withdrawn.insert(self.number);
        if let Some(place) = inner.written.iter().position(|(number, _)| *number == self.number) {
            inner.written.swap_remove(place).1.zeroize();
        }
        true
    }
}

impl Passing {
    pub(crate) fn new() -> Arc<Passing> {
        Arc::new(Passing {
            stage: watch::Sender::new(Stage::Nothing),
            is_on: AtomicBool::new(false),
            turns: AtomicU32::new(0),
            inner: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    /// Knows one more connection from now on.
    pub(crate) fn enter(
        self: &Arc<Self>,
        number: u64,
        session: u32,
        end_statement: impl Fn() + Send + 'static,
    ) -> Passenger {
        let known = Known { session, end_statement: Box::new(end_statement), place: Place::Unknown, was_whole: true };
        self.inner.lock().connections.insert(number, known);
        Passenger { passing: self.clone(), number, stage: self.stage.subscribe() }
    }

    pub(crate) fn stages(&self) -> watch::Receiver<Stage> {
        self.stage.subscribe()
    }

    fn set_stage(&self, stage: Stage) {
        self.is_on.store(stage != Stage::Nothing, Ordering::Release);
        self.stage.send_replace(stage);
    }

    /// Asks all connections, but that of the caller's session, to stop soon. Transactions that are open have as long as `drain`. Returns what
    /// connections wrote that were idle and have stopped; some of these may go on again.
    pub(crate) fn ask(&self, drain: Duration, caller: Option<u32>) -> Written {
        let mut inner = self.inner.lock();
        for known in inner.connections.values_mut() {
            (known.place, known.was_whole) = (Place::Unknown, drain.is_zero());
        }
        inner.written.clear();
        inner.withdrawn.clear();
        self.turns.store(0, Ordering::Relaxed);
        self.set_stage(Stage::Asking);
        let is_drained = |_: &Inner, _: u64, known: &Known| known.was_whole || known.place == Place::Stays;
        self.wait(&mut inner, caller, drain, is_drained);
        std::mem::take(&mut inner.written)
    }

    /// Stops all connections that can be, but for that of the caller's session, once they were asked. Statements that have run since before end
    /// with an error first, and transactions that are open are lost.
    pub(crate) fn stop(&self, drain: Duration, caller: Option<u32>) -> Stopped {
        let stop_within = STOP_WITHIN.max(drain / STOP_WITHIN_PART);
        let mut inner = self.inner.lock();
        if !drain.is_zero() && inner.end_statements(caller, |_, known| known.place == Place::Unknown) {
            self.wait(&mut inner, caller, stop_within, |_, _, known| known.place != Place::Ending);
        }
        self.set_stage(Stage::Stopping);
        inner.early.clear();
        let is_stopped = |inner: &Inner, number: u64, known: &Known| {
            matches!(known.place, Place::Ending | Place::Stays) || inner.stopped.contains_key(&number)
        };
        self.wait(&mut inner, caller, stop_within, is_stopped);
        let is_late = |is_stopped: bool, known: &Known| !is_stopped && known.place != Place::Stays;
        if inner
            .connections
            .iter()
            .any(|(number, known)| Some(known.session) != caller && is_late(inner.stopped.contains_key(number), known))
        {
            self.set_stage(Stage::Losing);
            inner.end_statements(caller, is_late);
            let is_stopped = |inner: &Inner, number: u64, known: &Known| {
                known.place == Place::Stays || inner.stopped.contains_key(&number)
            };
            self.wait(&mut inner, caller, stop_within, is_stopped);
        }
        let withdrawn = inner.withdrawn.drain().collect();
        Stopped { written: std::mem::take(&mut inner.written), withdrawn }
    }

    /// Until all connections but the caller's are there, or for so long.
    fn wait(
        &self,
        inner: &mut MutexGuard<'_, Inner>,
        caller: Option<u32>,
        within: Duration,
        is_there: impl Fn(&Inner, u64, &Known) -> bool,
    ) {
        let end = Instant::now() + within;
        let is_late = |inner: &Inner| {
            let mut others = inner.connections.iter().filter(|(_, known)| Some(known.session) != caller);
            others.any(|(number, known)| !is_there(inner, *number, known))
        };
        while is_late(inner) && !self.changed.wait_until(inner, end).timed_out() {}
    }

    /// Tells connections that are stopped, and those that stop too late.
    pub(crate) fn tell(&self, outcome: Outcome) {
        self.settle(outcome);
        self.tell_some(outcome, usize::MAX);
    }

    /// As `tell`, of a process that has nothing else to do: later, and so that what connections had here is let go of bit by bit, as their clients
    /// are at work at a host that may have the same processors. Takes as long as that takes.
    pub(crate) fn tell_slowly(&self, outcome: Outcome) {
        self.settle(outcome);
        std::thread::sleep(TELL_AFTER);
        while self.tell_some(outcome, IDLE_IN_A_MILLISECOND as usize) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn settle(&self, outcome: Outcome) {
        let mut inner = self.inner.lock();
        match outcome {
            Outcome::Stays => self.set_stage(Stage::Nothing),
            // What stops later was not passed on.
            Outcome::Gone | Outcome::Lost => inner.over = Some(Outcome::Lost),
        }
        inner.early.clear();
        inner.written.drain(..).for_each(|(_, mut bytes)| bytes.zeroize());
    }

    /// Tells so many of those that are stopped. False: there are no more.
    fn tell_some(&self, outcome: Outcome, most: usize) -> bool {
        let mut inner = self.inner.lock();
        let numbers: Vec<u64> = inner.stopped.keys().copied().take(most).collect();
        for stopped in numbers.iter().filter_map(|number| inner.stopped.remove(number)) {
            // Its connection may be gone.
            let _ = stopped.send(outcome);
        }
        !inner.stopped.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    async fn stopped(passing: &Arc<Passing>, drain: Duration, caller: Option<u32>) -> Written {
        let passing = passing.clone();
        let stopping = move || {
            assert_eq!(passing.ask(drain, caller), []);
            passing.stop(drain, caller).written
        };
        tokio::task::spawn_blocking(stopping).await.unwrap()
    }

    /// Does as it is asked.
    async fn serve(mut passenger: Passenger) -> Outcome {
        loop {
            match passenger.stage() {
                Stage::Nothing => {}
                Stage::Asking => passenger.is_between(true),
                Stage::Stopping | Stage::Losing => return passenger.stop(vec![passenger.number as u8]).await,
            }
            passenger.stage.changed().await.unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn those_that_come_between_two_statements_stop_and_hear_what_became_of_it() {
        for outcome in [Outcome::Stays, Outcome::Gone] {
            let passing = Passing::new();
            // The third calls, the fourth is in a transaction.
            let _caller = passing.enter(30, 3, || ());
            let _busy = passing.enter(40, 4, || ());
            let serving = [passing.enter(10, 1, || ()), passing.enter(20, 2, || ())]
                .map(|passenger| tokio::spawn(serve(passenger)));
            let mut written = stopped(&passing, Duration::from_millis(50), Some(3)).await;
            written.sort();
            assert_eq!(written, [(10, vec![10]), (20, vec![20])]);
            // Too late.
            let late = tokio::spawn(serve(passing.enter(50, 5, || ())));
            while passing.inner.lock().stopped.len() < 3 {
                tokio::task::yield_now().await;
            }
            passing.tell(outcome);
            for serving in serving {
                assert_eq!(serving.await.unwrap(), outcome);
            }
            assert_eq!(late.await.unwrap(), outcome);
            assert_eq!(passing.inner.lock().connections.len(), 2);
            assert_eq!(*passing.stage.borrow() == Stage::Nothing, outcome == Outcome::Stays);
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_connection_that_ends_is_not_waited_for() {
        let passing = Passing::new();
        let busy = passing.enter(10, 1, || ());
        let stopping = passing.clone();
        let stopping = tokio::spawn(async move { stopped(&stopping, LONG, None).await });
        while !busy.is_asked() {
            tokio::task::yield_now().await;
        }
        drop(busy);
        assert_eq!(stopping.await.unwrap(), []);
        passing.tell(Outcome::Stays);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_statement_ends_where_its_connection_would_not_stop() {
        const SHORT: Duration = Duration::from_millis(20);
        for (drain, in_transaction) in [(SHORT, false), (Duration::ZERO, false), (SHORT, true)] {
            let passing = Passing::new();
            let (end, ended) = (Arc::new(tokio::sync::Notify::new()), Arc::new(AtomicBool::new(false)));
            let (told, ending) = (ended.clone(), end.clone());
            let mut running = passing.enter(10, 1, move || {
                told.store(true, Ordering::Release);
                ending.notify_one();
            });
            let (asking, stopping) = (passing.clone(), passing.clone());
            tokio::task::spawn_blocking(move || asking.ask(drain, None)).await.unwrap();
            if in_transaction {
                running.is_between(false);
            }
            let stopping = tokio::task::spawn_blocking(move || stopping.stop(drain, None));
            let serving = tokio::spawn(async move {
                if in_transaction {
                    drop(running.stage.wait_for(|stage| *stage == Stage::Stopping).await.unwrap());
                } else {
                    end.notified().await;
                }
                serve(running).await
            });
            assert_eq!(stopping.await.unwrap().written, [(10, vec![10])]);
            assert_eq!(ended.load(Ordering::Acquire), !in_transaction);
            passing.tell(Outcome::Gone);
            assert_eq!(serving.await.unwrap(), Outcome::Gone);
        }
    }

    /// Stops as soon as it is asked, and goes on when notified.
    async fn idle(mut passenger: Passenger, work: Arc<tokio::sync::Notify>) -> Outcome {
        loop {
            let bytes = vec![passenger.number as u8];
            let outcome = match passenger.stage() {
                Stage::Nothing => Outcome::Stays,
                Stage::Asking => passenger.stop_early(bytes, work.notified()).await,
                Stage::Stopping | Stage::Losing => passenger.stop(bytes).await,
            };
            if outcome != Outcome::Stays {
                return outcome;
            }
            passenger.stage.changed().await.unwrap();
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn those_that_are_idle_stop_early_and_go_on_if_they_are_asked_for_something() {
        for goes_on in [false, true] {
            let passing = Passing::new();
            let work = [(); 2].map(|()| Arc::new(tokio::sync::Notify::new()));
            let serving =
                [0, 1].map(|at| tokio::spawn(idle(passing.enter(10 + at as u64, at as u32, || ()), work[at].clone())));
            let (asking, stopping) = (passing.clone(), passing.clone());
            let mut early = tokio::task::spawn_blocking(move || asking.ask(LONG, None)).await.unwrap();
            early.sort();
            assert_eq!(early, [(10, vec![10]), (11, vec![11])]);
            if goes_on {
                work[0].notify_one();
                while passing.inner.lock().stopped.len() > 1 {
                    tokio::task::yield_now().await;
                }
            }
            let stopped = tokio::task::spawn_blocking(move || stopping.stop(LONG, None)).await.unwrap();
            // What it wrote then counts.
            let written = if goes_on { vec![(10, vec![10])] } else { vec![] };
            assert_eq!(stopped, Stopped { written, withdrawn: vec![] });
            // Too late to go on.
            work[1].notify_one();
            passing.tell(Outcome::Gone);
            for serving in serving {
                assert_eq!(serving.await.unwrap(), Outcome::Gone);
            }
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_was_passed_on_of_one_that_does_not_stop_again_is_withdrawn() {
        let passing = Passing::new();
        let work = Arc::new(tokio::sync::Notify::new());
        let passenger = passing.enter(10, 1, || ());
        let (asking, stopping, told) = (passing.clone(), passing.clone(), work.clone());
        let asking = tokio::task::spawn_blocking(move || asking.ask(LONG, None));
        while !passenger.is_asked() {
            tokio::task::yield_now().await;
        }
        let early = passenger.stop_early(vec![1], told.notified());
        let going_on = async {
            assert_eq!(asking.await.unwrap(), [(10, vec![1])]);
            work.notify_one();
        };
        assert_eq!(tokio::join!(early, going_on).0, Outcome::Stays);
        passenger.cannot_stop();
        let stopped = tokio::task::spawn_blocking(move || stopping.stop(LONG, None)).await.unwrap();
        assert_eq!(stopped, Stopped { written: vec![], withdrawn: vec![10] });
    }
}
