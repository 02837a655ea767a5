//! A network that does by a seed what networks do: it is late, loses frames, doubles them, lets frames of one request
//! overtake another's, damages them, and cuts connections in the middle of one.
//!
//! Its time is virtual. It stands still while either end is at work; when both ends of a connection wait, it goes on at
//! once to when the next frame comes, or, a moment later, to when the first of them has waited long enough. So minutes
//! of deadlines pass in no time, and little depends on how busy the machine is, as long as one thread at each end uses
//! the connection.

use super::{Closer, Halves, Incoming, Outgoing, Transport};
use crate::clock::{Clock, VirtualClock};
use crate::fault::Fault;
use crate::frame::HEAD_BYTES;
use crate::sync::{Condvar, Mutex, lock, wait_for};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tidepool_base::Result;

/// How long nothing happens before a deadline passes.
const MOMENT: Duration = Duration::from_millis(2);

/// How often in 10,000 frames something happens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    pub lost: u32,
    pub doubled: u32,
    pub damaged: u32,
    pub cut: u32,
    /// Much later than others.
    pub late: u32,
}

/// What has happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Happened {
    pub sent: u64,
    pub lost: u64,
    pub doubled: u64,
    pub damaged: u64,
    pub cut: u64,
    pub late: u64,
    /// Frames that came before one that was sent earlier.
    pub overtaken: u64,
}

/// Connections that share a seed and a clock.
#[derive(Debug)]
pub struct Network {
    clock: Arc<VirtualClock>,
    chance: Mutex<Chance>,
}

#[derive(Debug)]
struct Chance {
    random: u64,
    rates: Rates,
    happened: Happened,
}

impl Chance {
    fn below(&mut self, end: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) % end
    }

    fn is(&mut self, rate: u32) -> bool {
        self.below(10_000) < u64::from(rate)
    }
}

impl Network {
    pub fn new(seed: u64, rates: Rates) -> Arc<Network> {
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let chance = Chance { random, rates, happened: Happened::default() };
        Arc::new(Network { clock: Arc::default(), chance: Mutex::new(chance) })
    }

    pub fn clock(&self) -> Arc<VirtualClock> {
        self.clock.clone()
    }

    pub fn set_rates(&self, rates: Rates) {
        lock(&self.chance).rates = rates;
    }

    pub fn happened(&self) -> Happened {
        lock(&self.chance).happened
    }

    /// Two ends that are connected.
    pub fn pair(self: &Arc<Network>) -> (SimulatedEnd, SimulatedEnd) {
        let line = Arc::new(Line { network: self.clone(), state: Mutex::default(), changed: Condvar::new() });
        let end = |side| SimulatedEnd(Arc::new(End { line: line.clone(), side }));
        (end(0), end(1))
    }
}

/// One end of a simulated connection.
#[derive(Debug)]
pub struct SimulatedEnd(Arc<End>);

#[derive(Debug)]
struct End {
    line: Arc<Line>,
    side: usize,
}

impl Drop for End {
    fn drop(&mut self) {
        self.close();
    }
}

impl Closer for End {
    fn close(&self) {
        lock(&self.line.state).closed[self.side] = true;
        self.line.changed.notify_all();
    }
}

#[derive(Debug)]
struct Line {
    network: Arc<Network>,
    state: Mutex<LineState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LineState {
    /// What is on its way to each side.
    frames: [Vec<Flying>; 2],
    /// What each side has begun to receive.
    current: [Vec<u8>; 2],
    /// Until when each side waits, if it does.
    waits: [Option<Duration>; 2],
    /// When the last frame of a request comes, towards each side: those of one request keep their order.
    last: [HashMap<u64, Duration>; 2],
    sent: u64,
    /// Which sides have ended it: what they sent before still comes.
    closed: [bool; 2],
    /// Nothing comes any more.
    is_cut: bool,
}

#[derive(Debug)]
struct Flying {
    arrival: Duration,
    number: u64,
    bytes: Vec<u8>,
    /// The connection ends behind these bytes.
    cuts: bool,
}

impl Transport for SimulatedEnd {
    fn split(self: Box<Self>) -> Result<Halves> {
        Ok(Halves {
            outgoing: Box::new(Sender(self.0.clone())),
            incoming: Box::new(Receiver(self.0.clone())),
            clock: self.0.line.network.clock.clone(),
            closer: self.0,
            // Damages are found by checksums, which cover all bytes then.
            is_local: false,
        })
    }
}

#[derive(Debug)]
struct Sender(Arc<End>);

impl Outgoing for Sender {
    fn send(&mut self, frame: &[&[u8]], sent: &mut usize) -> Result<bool, Fault> {
        let End { line, side } = &*self.0;
        let bytes = frame.concat();
        *sent = bytes.len();
        let now = line.network.clock.now();
        let mut state = lock(&line.state);
        let mut chance = lock(&line.network.chance);
        if state.is_cut || state.closed != [false; 2] {
            return Err(Fault::Closed("the peer closed it"));
        }
        chance.happened.sent += 1;
        let rates = chance.rates;
        if chance.is(rates.lost) {
            chance.happened.lost += 1;
            return Ok(true);
        }
        let copies = if chance.is(rates.doubled) {
            chance.happened.doubled += 1;
            2
        } else {
            1
        };
        let request = bytes.get(8..16).and_then(|word| word.try_into().ok()).map_or(0, u64::from_le_bytes);
        for _ in 0..copies {
            let mut bytes = bytes.clone();
            let mut delay = Duration::from_micros(5 + chance.below(50));
            if chance.is(rates.late) {
                chance.happened.late += 1;
                delay += Duration::from_micros(chance.below(200_000));
            }
            if chance.is(rates.damaged) {
                chance.happened.damaged += 1;
                let bit = chance.below(bytes.len() as u64 * 8) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            let cuts = chance.is(rates.cut);
            if cuts {
                chance.happened.cut += 1;
                let left = chance.below(bytes.len() as u64 + 1) as usize;
                bytes.truncate(left);
            }
            let last = state.last[1 - side].entry(request).or_default();
            let arrival = (now + delay).max(*last);
            *last = arrival;
            let number = state.sent;
            state.sent += 1;
            state.frames[1 - side].push(Flying { arrival, number, bytes, cuts });
        }
        drop((state, chance));
        line.changed.notify_all();
        Ok(true)
    }
}

#[derive(Debug)]
struct Receiver(Arc<End>);

impl Line {
    /// The next frame that has come to this side, once one has. False: none did for so long.
    fn next(&self, side: usize, until: Duration) -> Result<bool, Fault> {
        let clock = &*self.network.clock;
        let mut state = lock(&self.state);
        loop {
            let other = 1 - side;
            if state.is_cut || state.closed[side] || state.closed[other] && state.frames[side].is_empty() {
                return Err(Fault::Closed("the peer closed it"));
            }
            let now = clock.now();
            let first = state.frames[side].iter().enumerate().min_by_key(|(_, frame)| (frame.arrival, frame.number));
            if let Some((at, arrival)) = first.map(|(at, frame)| (at, frame.arrival))
                && arrival <= now
            {
                state.waits[side] = None;
                let frame = state.frames[side].swap_remove(at);
                if state.frames[side].iter().any(|other| other.number < frame.number) {
                    lock(&self.network.chance).happened.overtaken += 1;
                }
                state.is_cut |= frame.cuts;
                state.current[side] = frame.bytes;
                if frame.cuts {
                    self.changed.notify_all();
                }
                return Ok(true);
            }
            if now >= until {
                state.waits[side] = None;
                return Ok(false);
            }
            state.waits[side] = Some(until);
            let other_waits = if state.closed[other] { Some(until) } else { state.waits[other] };
            if let Some(other_until) = other_waits {
                // The others have no end left to come to.
                let others = if state.closed[other] { &[] } else { &state.frames[other][..] };
                let arrival = state.frames[side].iter().chain(others).map(|frame| frame.arrival).min();
                let next = arrival.unwrap_or(until).min(until).min(other_until);
                // A service's thread may be about to answer: a deadline passes only when nothing has happened for a
                // moment.
                let is_deadline = arrival.is_none_or(|arrival| arrival > next);
                let sent = state.sent;
                if next > now && is_deadline {
                    (state, _) = wait_for(&self.changed, state, MOMENT);
                }
                let is_still =
                    state.sent == sent && !state.is_cut && (state.closed[other] || state.waits[other].is_some());
                if next > now && is_still && clock.now() == now {
                    clock.sleep_until(next);
                    self.changed.notify_all();
                }
                if next > now {
                    continue;
                }
            }
            // The other end is at work, has not begun, or has something to do by now: it tells when it waits, too.
            self.changed.notify_all();
            (state, _) = wait_for(&self.changed, state, Duration::from_millis(50));
        }
    }
}

impl Incoming for Receiver {
    fn begin(&mut self, head: &mut [u8; HEAD_BYTES], timeout: Duration) -> Result<bool, Fault> {
        let End { line, side } = &*self.0;
        // What is left of a frame whose length was damaged would be taken for the next one's beginning.
        if lock(&line.state).current[*side].is_empty() {
            let until = line.network.clock.now().saturating_add(timeout);
            if !line.next(*side, until)? {
                return Ok(false);
            }
        }
        self.receive(head)?;
        Ok(true)
    }

    fn receive(&mut self, bytes: &mut [u8]) -> Result<(), Fault> {
        let End { line, side } = &*self.0;
        let mut done = 0;
        while done < bytes.len() {
            {
                let mut state = lock(&line.state);
                let current = &mut state.current[*side];
                let count = current.len().min(bytes.len() - done);
                bytes[done..done + count].copy_from_slice(&current[..count]);
                current.drain(..count);
                done += count;
            }
            if done < bytes.len() {
                // A frame that was cut or whose length is damaged: the bytes of the next one, as a stream would have
                // them.
                let until = line.network.clock.now() + super::STALL;
                if !line.next(*side, until)? {
                    return Err(Fault::Closed("the rest of a frame does not come"));
                }
            }
        }
        Ok(())
    }
}
