//! Which connections may still have effects.
//!
//! Each tablespace has an epoch, the greatest that a compute process came with. Each connection has a *gate*, and each
//! request is inside it from when it is taken up until it is answered. Before a connection of a newer epoch is welcome,
//! all gates of older ones are closed and empty; the same holds for the connection before in the same lane of a
//! process. So once a process has been told that an epoch, or a connection, is its own, nothing that came by an older
//! one happens any more, wherever it still was on its way.

use crate::fault::Fault;
use crate::frame::Epoch;
use crate::hello::{Identity, Offer};
use crate::sync::{Condvar, Mutex, lock, wait_for};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result, SqlState};

#[derive(Debug, Default)]
pub(crate) struct Fences(Mutex<HashMap<Identity, Tablespace>>);

#[derive(Debug, Default)]
struct Tablespace {
    epoch: Epoch,
    gates: Vec<Arc<Gate>>,
}

/// A connection, as those see it that fence it off.
pub(crate) struct Gate {
    offer: Offer,
    state: Mutex<GateState>,
    emptied: Condvar,
    /// Tells the peer, and ends the connection.
    end: Box<dyn Fn(Fault) + Send + Sync>,
}

#[derive(Debug, Default)]
struct GateState {
    closed: Option<Fault>,
    inside: usize,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("offer", &self.offer).field("state", &lock(&self.state)).finish_non_exhaustive()
    }
}

/// A request that is inside a gate.
#[derive(Debug)]
pub(crate) struct Inside(Arc<Gate>);

impl Drop for Inside {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.inside -= 1;
        if state.inside == 0 {
            self.0.emptied.notify_all();
        }
    }
}

impl Gate {
    pub fn new(offer: Offer, end: Box<dyn Fn(Fault) + Send + Sync>) -> Arc<Gate> {
        Arc::new(Gate { offer, state: Mutex::default(), emptied: Condvar::new(), end })
    }

    /// Fails if nothing may be done for the connection any more.
    pub fn enter(self: &Arc<Gate>) -> Result<Inside, Fault> {
        let mut state = lock(&self.state);
        if let Some(fault) = state.closed {
            return Err(fault);
        }
        state.inside += 1;
        Ok(Inside(self.clone()))
    }

    pub fn closed(&self) -> Option<Fault> {
        lock(&self.state).closed
    }

    pub fn close(&self, fault: Fault) {
        {
            let mut state = lock(&self.state);
            if state.closed.is_some() {
                return;
            }
            state.closed = Some(fault);
        }
        (self.end)(fault);
    }

    pub fn wait_empty(&self, until: Instant) -> bool {
        let mut state = lock(&self.state);
        while state.inside > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            (state, _) = wait_for(&self.emptied, state, left);
        }
        true
    }

    /// Why `other` ends this one, if it does.
    fn ended_by(&self, other: &Offer) -> Option<Fault> {
        let (mine, other_epoch) = (self.offer, other.epoch);
        if mine.epoch < other_epoch {
            Some(Fault::Fenced { epoch: mine.epoch.0, current: other_epoch.0 })
        } else if (mine.client, mine.lane) == (other.client, other.lane) && mine.incarnation < other.incarnation {
            Some(Fault::Closed("another connection took its place"))
        } else {
            None
        }
    }
}

impl Fences {
    /// Lets a connection in once all that it ends are over. `known` is the epoch that outlived this process, if one
    /// did.
    pub fn admit(&self, gate: &Arc<Gate>, known: Epoch, patience: Duration) -> Result<()> {
        let offer = gate.offer;
        let ended: Vec<(Arc<Gate>, Fault)> = {
            let mut tablespaces = lock(&self.0);
            let tablespace = tablespaces.entry(offer.tablespace).or_default();
            let current = tablespace.epoch.max(known);
            if offer.epoch < current {
                return Err(Fault::Fenced { epoch: offer.epoch.0, current: current.0 }.error());
            }
            let same_lane = tablespace.gates.iter().map(|other| other.offer).any(|other| {
                (other.client, other.lane, other.epoch) == (offer.client, offer.lane, offer.epoch)
                    && other.incarnation >= offer.incarnation
            });
            if same_lane {
                return Err(Fault::Closed("another connection took its place").error());
            }
            // From here on no older one is let in, whatever becomes of this one.
            tablespace.epoch = offer.epoch;
            tablespace.gates.push(gate.clone());
            let ended = tablespace.gates.iter().filter_map(|other| Some((other.clone(), other.ended_by(&offer)?)));
            ended.collect()
        };
        for (other, fault) in &ended {
            other.close(*fault);
        }
        let until = Instant::now() + patience;
        // Those that a sister of this connection has ended count too: they may still be at work.
        if !ended.iter().all(|(other, _)| other.wait_empty(until)) {
            self.leave(gate);
            let message = "the node still works for an older connection";
            return Err(Error::new(SqlState::CANNOT_CONNECT_NOW, message).with_hint("Connect again later."));
        }
        if let Some(fault) = gate.closed() {
            self.leave(gate);
            return Err(fault.error());
        }
        Ok(())
    }

    /// Forgets a connection once nothing is done for it any more: until then those that end it must wait for it.
    pub fn leave(&self, gate: &Arc<Gate>) {
        let mut tablespaces = lock(&self.0);
        if let Some(tablespace) = tablespaces.get_mut(&gate.offer.tablespace) {
            tablespace.gates.retain(|other| !Arc::ptr_eq(other, gate));
        }
    }

    pub fn epoch(&self, tablespace: Identity) -> Option<Epoch> {
        lock(&self.0).get(&tablespace).map(|tablespace| tablespace.epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn gate(epoch: u64, client: u8, lane: u32, incarnation: u64, ends: &Arc<AtomicUsize>) -> Arc<Gate> {
        let ends = ends.clone();
        let offer = Offer {
            tablespace: Identity([1; 16]),
            epoch: Epoch(epoch),
            client: Identity([client; 16]),
            lane,
            incarnation,
            limits: Limits::default(),
            bare_data: false,
        };
        let end = move |_| {
            ends.fetch_add(1, Ordering::SeqCst);
        };
        Gate::new(offer, Box::new(end))
    }

    #[test]
    fn a_newer_epoch_waits_for_what_older_ones_do_and_ends_them() {
        let (fences, ends) = (Fences::default(), Arc::default());
        let old = gate(1, 1, 0, 1, &ends);
        fences.admit(&old, Epoch(0), Duration::ZERO).unwrap();
        let inside = old.enter().unwrap();
        let new = gate(2, 2, 0, 1, &ends);
        let refused = fences.admit(&new, Epoch(0), Duration::ZERO).unwrap_err();
        assert_eq!(refused.code(), SqlState::CANNOT_CONNECT_NOW);
        assert_eq!(old.enter().unwrap_err().code(), SqlState::ADMIN_SHUTDOWN);
        // Nor is a sister let in while it is there, nor an older one at any time.
        assert!(fences.admit(&gate(2, 2, 1, 1, &ends), Epoch(0), Duration::ZERO).is_err());
        let older = fences.admit(&gate(1, 3, 0, 1, &ends), Epoch(0), Duration::ZERO).unwrap_err();
        assert_eq!(older.code(), SqlState::ADMIN_SHUTDOWN);
        let waits = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| fences.admit(&new, Epoch(0), Duration::from_secs(60)));
            drop(inside);
            waiting.join().unwrap()
        });
        assert_eq!((waits, ends.load(Ordering::SeqCst)), (Ok(()), 1));
        assert_eq!(fences.epoch(Identity([1; 16])), Some(Epoch(2)));
        // What outlived the process counts.
        let late = fences.admit(&gate(2, 4, 0, 1, &ends), Epoch(3), Duration::ZERO).unwrap_err();
        assert_eq!(late.code(), SqlState::ADMIN_SHUTDOWN);
    }

    #[test]
    fn the_next_connection_of_a_lane_ends_the_one_before() {
        let (fences, ends) = (Fences::default(), Arc::default());
        let (first, second, other) = (gate(1, 1, 0, 1, &ends), gate(1, 1, 0, 2, &ends), gate(1, 1, 1, 1, &ends));
        for gate in [&first, &other, &second] {
            fences.admit(gate, Epoch(0), Duration::ZERO).unwrap();
        }
        assert_eq!(first.enter().unwrap_err().code(), SqlState::CONNECTION_FAILURE);
        assert!(other.enter().is_ok() && second.enter().is_ok());
        // The first, come late, is not let in any more.
        assert!(fences.admit(&gate(1, 1, 0, 1, &ends), Epoch(0), Duration::ZERO).is_err());
    }
}
