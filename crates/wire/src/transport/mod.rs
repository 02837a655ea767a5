//! What carries frames between two ends, in order or not.
//!
//! A [`Transport`] is one end of a connection on which nothing was sent yet. It comes apart into a half that sends, one
//! that receives and one that closes both from any thread. A frame goes out as pieces that are never put together, and
//! what comes in is copied once, to where it is wanted.
//!
//! Between the frames of one request, in one direction, a transport keeps the order. Frames of different requests may
//! overtake each other, and all may be lost, late or doubled: the connection finds that out.

pub mod local;
pub mod simulated;
pub mod stream;

use crate::clock::Clock;
use crate::fault::Fault;
use crate::frame::HEAD_BYTES;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tidepool_base::Result;

/// How long a sender waits for room before it says so: the caller may have to receive before the other end can.
pub(crate) const PATIENCE: Duration = Duration::from_millis(2);

/// How long one that has begun to send or receive a frame waits for the rest of it.
pub(crate) const STALL: Duration = Duration::from_secs(30);

/// One end of a connection.
pub trait Transport: Send + fmt::Debug {
    fn split(self: Box<Self>) -> Result<Halves>;
}

/// The same end, for those who send, receive and close.
#[derive(Debug)]
pub struct Halves {
    pub outgoing: Box<dyn Outgoing>,
    pub incoming: Box<dyn Incoming>,
    pub closer: Arc<dyn Closer>,
    /// The time that its deadlines are of.
    pub clock: Arc<dyn Clock>,
    /// Both ends are on one machine, so that bytes are not damaged on their way.
    pub is_local: bool,
}

/// Sends frames. Takes no memory, but for those that are made to measure or test.
pub trait Outgoing: Send + fmt::Debug {
    /// Goes on with a frame, of which `sent` bytes have gone already, and counts on. False: there is no room for the
    /// rest at the moment.
    fn send(&mut self, frame: &[&[u8]], sent: &mut usize) -> Result<bool, Fault>;
}

/// Receives frames. Takes no memory, with the same exceptions.
pub trait Incoming: Send + fmt::Debug {
    /// The head of the next frame. False: none has begun to come for so long.
    fn begin(&mut self, head: &mut [u8; HEAD_BYTES], timeout: Duration) -> Result<bool, Fault>;

    /// Fills `bytes` with what comes next of the frame.
    fn receive(&mut self, bytes: &mut [u8]) -> Result<(), Fault>;
}

/// Ends a connection: the threads that wait at either end are told so.
pub trait Closer: Send + Sync + fmt::Debug {
    fn close(&self);
}

/// Sends a whole frame, for a sender that need not receive meanwhile.
pub(crate) fn send_whole(outgoing: &mut dyn Outgoing, clock: &dyn Clock, frame: &[&[u8]]) -> Result<(), Fault> {
    let (mut sent, mut until) = (0, None);
    loop {
        let before = sent;
        if outgoing.send(frame, &mut sent)? {
            return Ok(());
        }
        let now = clock.now();
        if sent != before || until.is_none() {
            until = Some(now + STALL);
        }
        if until.is_some_and(|until| now >= until) {
            return Err(Fault::Closed("the peer does not receive"));
        }
    }
}
