//! Pairs within one process, as fast as copying is or as slow as a link that is to be imitated.
//!
//! Each direction is a ring of bytes that one thread fills and another empties. A [`Link`] paces: bytes leave when
//! those before them, of all pairs over the link in that direction, have left at its bandwidth, and come a latency
//! later.

use super::{Closer, Halves, Incoming, Outgoing, PATIENCE, STALL, Transport};
use crate::clock::{Clock, SystemClock};
use crate::fault::Fault;
use crate::frame::HEAD_BYTES;
use crate::sync::{Condvar, Mutex, lock, wait_for};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tidepool_base::Result;

/// Bytes that are on their way in one direction at most.
const RING_BYTES: usize = 256 << 10;

/// A sender that waits is woken when there is so much room: for less it would soon wait again. If the
/// receiver stops before, the sender finds the room when its patience ends.
const WAKE_BYTES: usize = RING_BYTES / 2;

/// What a link is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    pub latency: Duration,
    pub bytes_per_second: u64,
}

/// A link that pairs share, or none where nothing is to be paced.
#[derive(Debug)]
pub struct Link {
    pace: Option<Pace>,
    clock: Arc<dyn Clock>,
    /// When the last byte so far has left, in each direction.
    free: [Mutex<Duration>; 2],
}

impl Link {
    pub fn unpaced() -> Arc<Link> {
        Arc::new(Link { pace: None, clock: Arc::new(SystemClock::new()), free: Default::default() })
    }

    pub fn paced(pace: Pace, clock: Arc<dyn Clock>) -> Arc<Link> {
        Arc::new(Link { pace: Some(pace), clock, free: Default::default() })
    }

    /// Two ends that are connected.
    pub fn pair(self: &Arc<Link>) -> (LocalEnd, LocalEnd) {
        let rings = [Arc::new(Ring::new(self.clone(), 0)), Arc::new(Ring::new(self.clone(), 1))];
        let [there, back] = rings;
        let end = |out: &Arc<Ring>, back: &Arc<Ring>| LocalEnd(Arc::new(End { out: out.clone(), back: back.clone() }));
        (end(&there, &back), end(&back, &there))
    }

    /// When bytes that are sent now will have come.
    fn arrival(&self, direction: usize, bytes: usize) -> Option<Duration> {
        let pace = self.pace?;
        let taken = bytes as u128 * 1_000_000_000 / u128::from(pace.bytes_per_second.max(1));
        let mut free = lock(&self.free[direction]);
        *free = self.clock.now().max(*free) + Duration::from_nanos(taken as u64);
        Some(*free + pace.latency)
    }
}

/// One end of a pair.
#[derive(Debug)]
pub struct LocalEnd(Arc<End>);

/// What an end's halves share. With the last of them the end is closed.
#[derive(Debug)]
struct End {
    out: Arc<Ring>,
    back: Arc<Ring>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.close();
    }
}

impl Closer for End {
    fn close(&self) {
        self.out.close();
        self.back.close();
    }
}

impl Transport for LocalEnd {
    fn split(self: Box<Self>) -> Result<Halves> {
        Ok(Halves {
            outgoing: Box::new(Sender(self.0.clone())),
            incoming: Box::new(Receiver(self.0.clone())),
            clock: self.0.out.link.clock.clone(),
            closer: self.0,
            is_local: true,
        })
    }
}

impl LocalEnd {
    /// Sends bytes as they are, for measurements beside frames.
    pub fn write_all(&self, mut bytes: &[u8]) -> Result<(), Fault> {
        while !bytes.is_empty() {
            let count = self.0.out.put(&[bytes], 0, STALL)?;
            if count == 0 {
                return Err(Fault::Closed("the peer does not receive"));
            }
            bytes = &bytes[count..];
        }
        Ok(())
    }

    /// Receives bytes as they are.
    pub fn read_exact(&self, bytes: &mut [u8]) -> Result<(), Fault> {
        self.0.back.fill(bytes)
    }
}

#[derive(Debug)]
struct Ring {
    link: Arc<Link>,
    direction: usize,
    state: Mutex<State>,
    /// Signalled if a thread waits for the change.
    filled: Condvar,
    emptied: Condvar,
}

#[derive(Debug)]
struct State {
    bytes: Box<[u8]>,
    /// Counts of bytes that ever came out and went in.
    taken: u64,
    put: u64,
    /// Up to which count bytes come when, if the link is paced.
    arrivals: VecDeque<(u64, Duration)>,
    /// A thread is to be woken. To wake none costs a system call, too.
    receiver_waits: bool,
    sender_waits: bool,
    closed: bool,
}

impl Ring {
    fn new(link: Arc<Link>, direction: usize) -> Ring {
        let state = State {
            bytes: vec![0; RING_BYTES].into_boxed_slice(),
            taken: 0,
            put: 0,
            arrivals: VecDeque::new(),
            receiver_waits: false,
            sender_waits: false,
            closed: false,
        };
        Ring { link, direction, state: Mutex::new(state), filled: Condvar::new(), emptied: Condvar::new() }
    }

    /// Puts in what there is room for of these pieces, without their first `skipped` bytes, once there is any. Zero:
    /// there was none for so long.
    fn put(&self, pieces: &[&[u8]], mut skipped: usize, patience: Duration) -> Result<usize, Fault> {
        let mut state = lock(&self.state);
        loop {
            if state.closed {
                return Err(Fault::Closed("the peer closed it"));
            }
            let room = RING_BYTES - (state.put - state.taken) as usize;
            if room > 0 {
                break;
            }
            state.sender_waits = true;
            let timed_out;
            (state, timed_out) = wait_for(&self.emptied, state, patience);
            state.sender_waits = false;
            if timed_out && (state.put - state.taken) as usize == RING_BYTES && !state.closed {
                return Ok(0);
            }
        }
        let before = state.put;
        for piece in pieces {
            let left = piece.get(skipped..).unwrap_or_default();
            skipped = skipped.saturating_sub(piece.len());
            let room = RING_BYTES - (state.put - state.taken) as usize;
            let count = room.min(left.len());
            let at = (state.put % RING_BYTES as u64) as usize;
            let first = count.min(RING_BYTES - at);
            state.bytes[at..at + first].copy_from_slice(&left[..first]);
            state.bytes[..count - first].copy_from_slice(&left[first..count]);
            state.put += count as u64;
            if count < left.len() {
                break;
            }
        }
        let (put, count) = (state.put, (state.put - before) as usize);
        if let Some(arrival) = self.link.arrival(self.direction, count) {
            state.arrivals.push_back((put, arrival));
        }
        let receiver_waits = state.receiver_waits;
        drop(state);
        if receiver_waits {
            self.filled.notify_one();
        }
        Ok(count)
    }

    /// Takes what has come, once anything has. Zero: nothing did for so long.
    fn take(&self, bytes: &mut [u8], timeout: Duration) -> Result<usize, Fault> {
        let clock = &*self.link.clock;
        let until = clock.now().saturating_add(timeout);
        let mut state = lock(&self.state);
        loop {
            let now = clock.now();
            let mut come = state.put;
            if self.link.pace.is_some() {
                while state.arrivals.front().is_some_and(|(count, _)| *count <= state.taken) {
                    state.arrivals.pop_front();
                }
                let late = state.arrivals.iter().take_while(|(_, arrival)| *arrival <= now).last();
                come = late.map_or(state.taken, |(count, _)| *count);
            }
            let count = bytes.len().min((come - state.taken) as usize);
            if count > 0 {
                let at = (state.taken % RING_BYTES as u64) as usize;
                let first = count.min(RING_BYTES - at);
                bytes[..first].copy_from_slice(&state.bytes[at..at + first]);
                bytes[first..count].copy_from_slice(&state.bytes[..count - first]);
                state.taken += count as u64;
                let left = (state.put - state.taken) as usize;
                let sender_waits = state.sender_waits && left <= RING_BYTES - WAKE_BYTES;
                drop(state);
                if sender_waits {
                    self.emptied.notify_one();
                }
                return Ok(count);
            }
            if now >= until {
                return Ok(0);
            }
            if let Some((_, arrival)) = state.arrivals.front().copied() {
                drop(state);
                clock.sleep_until(arrival.min(until));
                state = lock(&self.state);
            } else if state.closed {
                return Err(Fault::Closed("the peer closed it"));
            } else {
                state.receiver_waits = true;
                let timed_out;
                (state, timed_out) = wait_for(&self.filled, state, until - now);
                state.receiver_waits = false;
                if timed_out && state.put == state.taken && !state.closed {
                    // A clock that stands still otherwise is moved by those who waited.
                    clock.sleep_until(until);
                }
            }
        }
    }

    fn fill(&self, mut bytes: &mut [u8]) -> Result<(), Fault> {
        while !bytes.is_empty() {
            let count = self.take(bytes, STALL)?;
            if count == 0 {
                return Err(Fault::Closed("the rest of a frame does not come"));
            }
            bytes = &mut bytes[count..];
        }
        Ok(())
    }

    fn close(&self) {
        lock(&self.state).closed = true;
        self.filled.notify_all();
        self.emptied.notify_all();
    }
}

#[derive(Debug)]
struct Sender(Arc<End>);

impl Outgoing for Sender {
    fn send(&mut self, frame: &[&[u8]], sent: &mut usize) -> Result<bool, Fault> {
        let total: usize = frame.iter().map(|piece| piece.len()).sum();
        while *sent < total {
            let count = self.0.out.put(frame, *sent, PATIENCE)?;
            if count == 0 {
                return Ok(false);
            }
            *sent += count;
        }
        Ok(true)
    }
}

#[derive(Debug)]
struct Receiver(Arc<End>);

impl Incoming for Receiver {
    fn begin(&mut self, head: &mut [u8; HEAD_BYTES], timeout: Duration) -> Result<bool, Fault> {
        let count = self.0.back.take(head, timeout)?;
        if count == 0 {
            return Ok(false);
        }
        self.0.back.fill(&mut head[count..])?;
        Ok(true)
    }

    fn receive(&mut self, bytes: &mut [u8]) -> Result<(), Fault> {
        self.0.back.fill(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::VirtualClock;

    #[test]
    fn a_paced_pair_takes_what_its_link_would() {
        let clock = Arc::new(VirtualClock::default());
        let pace = Pace { latency: Duration::from_micros(3), bytes_per_second: 1_000_000_000 };
        let (near, far) = Link::paced(pace, clock.clone()).pair();
        let mut bytes = [0; 1000];
        near.write_all(&[1; 1000]).unwrap();
        far.read_exact(&mut bytes).unwrap();
        assert_eq!((bytes, clock.now()), ([1; 1000], Duration::from_micros(4)));
        // Two in a row leave one after the other and share the latency.
        near.write_all(&[2; 1000]).unwrap();
        near.write_all(&[3; 1000]).unwrap();
        far.read_exact(&mut bytes).unwrap();
        assert_eq!(clock.now(), Duration::from_micros(8));
        far.read_exact(&mut bytes).unwrap();
        assert_eq!((bytes, clock.now()), ([3; 1000], Duration::from_micros(9)));
        // The way back is free meanwhile.
        far.write_all(&[4; 1000]).unwrap();
        near.read_exact(&mut bytes).unwrap();
        assert_eq!(clock.now(), Duration::from_micros(13));
    }

    #[test]
    fn pairs_of_one_link_share_its_bandwidth() {
        let clock = Arc::new(VirtualClock::default());
        let link = Link::paced(Pace { latency: Duration::ZERO, bytes_per_second: 1_000_000 }, clock.clone());
        let (one, other) = (link.pair(), link.pair());
        one.0.write_all(&[1; 500]).unwrap();
        other.0.write_all(&[1; 500]).unwrap();
        let mut bytes = [0; 500];
        other.1.read_exact(&mut bytes).unwrap();
        assert_eq!(clock.now(), Duration::from_millis(1));
    }

    #[test]
    fn bytes_come_through_a_ring_that_is_smaller_and_its_end_is_told() {
        let (near, far) = Link::unpaced().pair();
        let sent: Vec<u8> = (0..RING_BYTES * 3 + 17).map(|at| ((at * 31) >> 3) as u8).collect();
        let mut got = vec![0; sent.len()];
        std::thread::scope(|scope| {
            scope.spawn(|| near.write_all(&sent).unwrap());
            far.read_exact(&mut got).unwrap();
        });
        assert!(sent == got);
        drop(near);
        assert_eq!(far.read_exact(&mut [0]), Err(Fault::Closed("the peer closed it")));
        assert_eq!(far.write_all(&[0]), Err(Fault::Closed("the peer closed it")));
    }
}
