//! Clients' connections of a primary before, on their way to this host's threads: those that it passed on, and those that it left when it
//! died ([`crate::kept`]).

use crate::incoming::{positions, shut_down, unread};
use crate::kept::{GoingOn, Left, Reason};
use crate::passing::IDLE_IN_A_MILLISECOND;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tidepool_database::{Database, TransactionFate};
use tidepool_planner::{PortableBlockState, PortableSession};
use tidepool_pool::liveness::runs_no_more;
use tidepool_pool::words::Host;
use tokio::sync::watch;
use zeroize::Zeroizing;

/// How long a primary that was taken over from may take to end, before its clients are told that it has.
const END_WAIT: Duration = Duration::from_secs(2);
const END_LOOKS: Duration = Duration::from_micros(200);

/// Some idle sessions go on in each turn, and after so many turns it is looked which others have been asked for something.
const TURN: Duration = Duration::from_millis(1);
const TURNS_OF_LOOK: u32 = 4;

/// A client's socket of the primary, and the pages of its connection.
pub(crate) struct InheritedClient {
    pub(crate) socket: OwnedFd,
    pub(crate) pages: Option<OwnedFd>,
}

/// A client's connection of a primary before.
pub(crate) struct InheritedSession {
    pub(crate) socket: OwnedFd,
    pub(crate) portable: PortableSession,
    pub(crate) beginning: Beginning,
    gate: Gate,
    coming: Coming,
}

/// Counts a connection that has not begun yet, until dropped.
#[derive(Default)]
pub(crate) struct Coming(Option<Arc<AtomicUsize>>);

impl Coming {
    pub(crate) fn count(coming: &Arc<AtomicUsize>) -> Coming {
        coming.fetch_add(1, Ordering::Relaxed);
        Coming(Some(coming.clone()))
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        self.0.iter().for_each(|coming| _ = coming.fetch_sub(1, Ordering::Release));
    }
}

/// How a connection goes on.
#[derive(Default)]
pub(crate) struct Beginning {
    /// What its client is told first.
    pub(crate) output: Vec<u8>,
    /// What the client asks first is answered by an error.
    pub(crate) fails: bool,
}

impl InheritedSession {
    pub(crate) fn new(socket: OwnedFd, portable: PortableSession, beginning: Beginning) -> InheritedSession {
        InheritedSession { socket, portable, beginning, gate: Gate::default(), coming: Coming::default() }
    }

    /// From now on it is counted among those that have not begun.
    pub(crate) fn set_coming(&mut self, coming: &Arc<AtomicUsize>) {
        self.coming = Coming::count(coming);
    }

    pub(crate) fn coming(&mut self) -> Coming {
        std::mem::take(&mut self.coming)
    }

    pub(crate) fn gate(&mut self) -> Gate {
        std::mem::take(&mut self.gate)
    }

    /// Of its session's, or of a transaction that it is in.
    fn has_locks(&self) -> bool {
        !self.portable.locks.is_empty() || self.portable.transaction.is_some()
    }

    /// Its client has asked for something, or is to be told something.
    fn is_waited_for(&self) -> bool {
        !self.portable.input.is_empty()
            || !self.beginning.output.is_empty()
            || unread(&self.socket).is_some_and(|bytes| bytes > 0)
    }
}

/// Where sessions that go on together wait for those of them that have locks: one that waited for such a lock must not have it
/// first.
#[derive(Default)]
pub(crate) struct Gate {
    /// How many have locks that they do not hold here yet.
    missing: Option<Arc<watch::Sender<usize>>>,
    is_missing: bool,
}

impl Gate {
    /// This session holds its locks by now. Waits until all others do.
    pub(crate) async fn pass(&mut self) {
        self.arrive();
        if let Some(missing) = &self.missing {
            // The sender is here.
            let _ = missing.subscribe().wait_for(|missing| *missing == 0).await;
        }
    }

    fn arrive(&mut self) {
        if std::mem::take(&mut self.is_missing)
            && let Some(missing) = &self.missing
        {
            missing.send_modify(|missing| *missing -= 1);
        }
    }
}

impl Drop for Gate {
    /// One that cannot go on is not waited for.
    fn drop(&mut self) {
        self.arrive();
    }
}

/// Hands on sessions that go on together. Those that others wait for, and those whose clients wait, begin at once, and the others a few at a
/// time, so that clients that are at work have the processors; but each soon after its client asks for something. Takes as long as that takes.
pub(crate) fn gather(sessions: Vec<InheritedSession>, hand_on: &impl Fn(InheritedSession)) {
    let missing = Arc::new(watch::Sender::new(sessions.iter().filter(|session| session.has_locks()).count()));
    let gated = |mut session: InheritedSession| {
        session.gate = Gate { missing: Some(missing.clone()), is_missing: session.has_locks() };
        session
    };
    let (at_once, mut idle): (Vec<_>, Vec<_>) =
        sessions.into_iter().map(gated).partition(|session| session.has_locks() || session.is_waited_for());
    at_once.into_iter().for_each(hand_on);
    let mut turns = 0;
    while !idle.is_empty() {
        std::thread::sleep(TURN);
        turns += 1;
        if turns % TURNS_OF_LOOK == 0 {
            let (asked, others): (Vec<_>, Vec<_>) = idle.into_iter().partition(InheritedSession::is_waited_for);
            asked.into_iter().for_each(hand_on);
            idle = others;
        }
        idle.drain(..idle.len().min(IDLE_IN_A_MILLISECOND as usize)).for_each(hand_on);
    }
}

/// Connections of a primary that has died, as they go on here. Those that do not are ended.
pub(crate) fn succeed(database: &Database, clients: Vec<InheritedClient>) -> Vec<InheritedSession> {
    let (start, count) = (Instant::now(), clients.len());
    while let Some(host) = database.living_predecessor().filter(|host| may_run(database, *host)) {
        if start.elapsed() > END_WAIT {
            tracing::warn!("{host} is not known to have ended: its {count} clients are told to connect again");
            clients.iter().for_each(|client| shut_down(&client.socket));
            return Vec::new();
        }
        std::thread::sleep(END_LOOKS);
    }
    let ended = start.elapsed();
    let mut sessions = Vec::with_capacity(count);
    for InheritedClient { socket, pages } in clients {
        match going_on(database, &socket, pages) {
            Ok((portable, beginning)) => sessions.push(InheritedSession::new(socket, portable, beginning)),
            Err(Reason::Elsewhere) => {}
            Err(Reason::Because(why)) => {
                tracing::info!("a client's connection cannot go on here: {why}");
                shut_down(&socket);
            }
        }
    }
    tracing::info!(
        clients = count,
        go_on = sessions.len(),
        ended_us = ended.as_micros() as u64,
        us = start.elapsed().as_micros() as u64,
        "clients of the primary before go on here"
    );
    sessions
}

/// Whether a host may still read and write what it has.
fn may_run(database: &Database, host: Host) -> bool {
    let views = database.pool().and_then(|own| own.pool().hosts().ok());
    let view = views.and_then(|views| views.into_iter().find(|view| view.host == host));
    // One that is not there any more is dead, and soon known to be.
    !view.and_then(|view| view.text).is_some_and(|text| runs_no_more(&text))
}

fn going_on(
    database: &Database,
    socket: &OwnedFd,
    pages: Option<OwnedFd>,
) -> Result<(PortableSession, Beginning), Reason> {
    let left = Left::take(pages.ok_or(Reason::Because("it has no pages"))?, positions(socket))?;
    let is_committed = match left.transaction().map(|id| database.transaction_fate(id)) {
        None | Some(Ok(Some(TransactionFate::Aborted))) => false,
        Some(Ok(Some(TransactionFate::Committed))) => true,
        Some(_) => return Err("what became of its transaction is not known".into()),
    };
    let GoingOn { session, block, input, output, fails } = left.go_on(is_committed)?;
    let session = Zeroizing::new(session);
    let mut portable =
        PortableSession::from_bytes(&session).map_err(|_| Reason::Because("its session cannot be read"))?;
    portable.input = input;
    portable.block = block.to_portable();
    // What is lost says so itself, as the statement has it: COMMIT ends it.
    let is_lost = portable.block.as_ref().is_some_and(|block| block.state == PortableBlockState::Lost);
    Ok((portable, Beginning { output, fails: fails && !is_lost }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use tidepool_planner::{PortableKey, PortableLock};

    #[tokio::test]
    async fn sessions_wait_for_those_that_have_locks() {
        let session = |locks: Vec<PortableLock>| {
            let portable = PortableSession { locks, ..PortableSession::default() };
            let socket = std::os::unix::net::UnixStream::pair().unwrap().0.into();
            InheritedSession::new(socket, portable, Beginning::default())
        };
        let lock = PortableLock { key: PortableKey::One(1), is_exclusive: true, count: 1 };
        let gates = Mutex::default();
        gather(vec![session(vec![lock]), session(vec![]), session(vec![lock])], &|mut session| {
            Vec::push(&mut gates.lock(), session.gate());
        });
        let mut gates = gates.into_inner();
        // Those that have locks come first.
        let (mut waiting, second_holder, mut holder) =
            (gates.pop().unwrap(), gates.pop().unwrap(), gates.pop().unwrap());
        {
            let mut passing = std::pin::pin!(waiting.pass());
            let mut holding = std::pin::pin!(holder.pass());
            assert!(futures::poll!(&mut passing).is_pending() && futures::poll!(&mut holding).is_pending());
            // One that fails.
            drop(second_holder);
            assert!(futures::poll!(&mut passing).is_ready() && futures::poll!(&mut holding).is_ready());
        }
    }

    #[test]
    fn those_whose_clients_wait_come_first() {
        let mut clients = Vec::new();
        let mut session = |id: u32, input: &[u8], output: &[u8]| {
            let (own, client) = std::os::unix::net::UnixStream::pair().unwrap();
            clients.push(client);
            let portable = PortableSession { id, input: input.to_vec(), ..PortableSession::default() };
            InheritedSession::new(own.into(), portable, Beginning { output: output.to_vec(), fails: false })
        };
        let sessions = vec![
            session(1, b"", b""),
            session(2, b"Q", b""),
            session(3, b"", b""),
            session(4, b"", b"Z"),
            session(5, b"", b""),
        ];
        std::io::Write::write_all(&mut clients[2], b"Q").unwrap();
        let order = Mutex::default();
        gather(sessions, &|session| Vec::push(&mut order.lock(), session.portable.id));
        assert_eq!(order.into_inner(), [2, 3, 4, 1, 5]);
    }
}
