//! Rings: messages from one host to another, one ring for each ordered pair.
//!
//! The bytes of messages are in lines that the sender alone stores to; its *tail* and the receiver's *head* are
//! coherent words, each changed by one host. Both count lines since the pod was made and are never reset, so a host
//! that takes a ring over goes on where the words stand.
//!
//! # Invariants
//!
//! * `head <= tail <= head + ring_lines`, and both only grow.
//! * All between head and tail are whole messages: the tail moves once a message, after the message was sealed. A
//!   sender that dies before that has sent nothing. Its half-written lines are behind the tail, where no receiver
//!   looks.
//! * The sender stores only to lines that the head has passed: the receiver has loaded them before it moved the head.
//! * A message is in consecutive lines. Where one would not fit before the ring's end, a *filler* goes before it,
//!   which is a message of its own. No message is longer than half the ring, so that one always fits some day.
//!
//! A receiver that dies takes along what it has received. The head that it moved may be lost with it, as long as no
//! other host has loaded it; the next receiver then gets messages again. So senders number what they ask for, and ask
//! a host's next life again.

use crate::access::{Access, Lines, Note};
use crate::layout::{HostId, Layout};
use crate::memory::{Draft, FRAME_BYTES, Hw, Outcome, Trouble, fetch_framed, first_word, framed_lines};
use tidepool_device::LINE_BYTES;
use tidepool_pool::words::{Number, Word};

/// The first word of a message.
const MESSAGE: u64 = 1;
const FILLER: u64 = 2;

/// A ring of a pod.
#[derive(Clone, Copy, Debug)]
struct Ring {
    tail: Hw<Number>,
    head: Hw<Number>,
    lines: Lines,
}

impl Ring {
    fn new(layout: Layout, from: HostId, to: HostId) -> Ring {
        Ring { tail: layout.ring_tail(from, to), head: layout.ring_head(from, to), lines: layout.ring_bytes(from, to) }
    }

    fn count(&self) -> u64 {
        u64::from(self.lines.count)
    }

    /// Lines from a position to the ring's end.
    fn run(&self, position: u64) -> Lines {
        self.lines.from((position % self.count()) as u32)
    }

    /// What the two words say, if they can.
    fn positions(&self, tail: Number, head: Number) -> Option<(u64, u64)> {
        (head <= tail && tail.0 - head.0 <= self.count()).then_some((tail.0, head.0))
    }
}

/// The sending end, which one thread of the sending host has at a time.
#[derive(Debug)]
pub struct Sender {
    ring: Ring,
    tail: u64,
    /// At least so far the receiver has come.
    head: u64,
}

impl Sender {
    /// Goes on where the ring's words stand. A host that sent before is known to be dead.
    pub fn attach<A: Access>(access: &A, layout: Layout, from: HostId, to: HostId) -> Outcome<Sender, A> {
        let ring = Ring::new(layout, from, to);
        let head = ring.head.load(access)?;
        let tail = ring.tail.load(access)?;
        let (tail, head) = ring.positions(tail, head).ok_or(Trouble::Broken { line: ring.lines.first })?;
        Ok(Sender { ring, tail, head })
    }

    /// The longest message that the ring takes.
    pub fn message_bytes_max(&self) -> usize {
        self.ring.lines.count as usize / 2 * LINE_BYTES - FRAME_BYTES
    }

    /// Sends a message. False where the ring has no room for it now.
    ///
    /// # Panics
    /// Where it is longer than [`message_bytes_max`](Sender::message_bytes_max).
    pub fn send<A: Access>(&mut self, access: &A, message: &[u8]) -> Outcome<bool, A> {
        assert!(message.len() <= self.message_bytes_max(), "a message of {} bytes", message.len());
        let needed = framed_lines(message.len());
        let left = self.ring.run(self.tail).count;
        if left < needed {
            if !self.has_room(access, left)? {
                return Ok(false);
            }
            self.put(access, FILLER, left, &[])?;
        }
        if !self.has_room(access, needed)? {
            return Ok(false);
        }
        self.put(access, MESSAGE, needed, message)?;
        Ok(true)
    }

    fn room(&self) -> u64 {
        self.ring.count() - (self.tail - self.head)
    }

    fn has_room<A: Access>(&mut self, access: &A, lines: u32) -> Outcome<bool, A> {
        let is_free = |sender: &Sender| sender.room() >= u64::from(lines);
        if is_free(self) {
            return Ok(true);
        }
        let head = self.ring.head.load(access)?;
        let (_, head) = self
            .ring
            .positions(Number(self.tail), head)
            .filter(|(_, head)| *head >= self.head)
            .ok_or(Trouble::Broken { line: self.ring.lines.first })?;
        self.head = head;
        Ok(is_free(self))
    }

    /// The lines are free: the head has passed them.
    fn put<A: Access>(&mut self, access: &A, kind: u64, lines: u32, message: &[u8]) -> Outcome<(), A> {
        let room = Lines { count: lines, ..self.ring.run(self.tail) };
        Draft::of(room).seal(access, kind, &[message])?;
        let (tail, next) = (Number(self.tail), Number(self.tail + u64::from(lines)));
        access.note(Note::Publishes { at: self.ring.tail.at(), bits: next.bits(), bytes: message });
        self.ring.tail.move_on(access, tail, next)?;
        self.tail = next.0;
        Ok(())
    }
}

/// The receiving end, which one thread of the receiving host has at a time.
#[derive(Debug)]
pub struct Receiver {
    ring: Ring,
    head: u64,
    /// At least so far the sender has come.
    tail: u64,
    bytes: Vec<u8>,
}

impl Receiver {
    /// Goes on where the ring's words stand. A host that received before is known to be dead.
    pub fn attach<A: Access>(access: &A, layout: Layout, from: HostId, to: HostId) -> Outcome<Receiver, A> {
        let ring = Ring::new(layout, from, to);
        let head = ring.head.load(access)?;
        let tail = ring.tail.load(access)?;
        let (tail, head) = ring.positions(tail, head).ok_or(Trouble::Broken { line: ring.lines.first })?;
        Ok(Receiver { ring, head, tail, bytes: Vec::new() })
    }

    /// The next message, if one is there. Its lines are free for others when this returns.
    pub fn receive<A: Access>(&mut self, access: &A) -> Outcome<Option<&[u8]>, A> {
        loop {
            if self.head == self.tail {
                let tail = self.ring.tail.load(access)?;
                let is_sound = self.ring.positions(tail, Number(self.head)).is_some();
                if !is_sound {
                    return Err(Trouble::Broken { line: self.ring.lines.first });
                }
                self.tail = tail.0;
                if self.head == self.tail {
                    return Ok(None);
                }
            }
            let run = self.ring.run(self.head);
            let is_whole = fetch_framed(access, run, &mut self.bytes)?;
            let kind = first_word(&self.bytes);
            let lines = if kind == FILLER { run.count } else { framed_lines(self.bytes.len() - FRAME_BYTES) };
            let is_sound = is_whole && matches!(kind, MESSAGE | FILLER) && u64::from(lines) <= self.tail - self.head;
            if !is_sound {
                return Err(Trouble::Broken { line: run.first });
            }
            let (head, next) = (Number(self.head), Number(self.head + u64::from(lines)));
            // The message is in this host's own memory: the sender may use the lines again.
            access.note(Note::Accepts {
                at: self.ring.tail.at(),
                bits: next.bits(),
                bytes: &self.bytes[FRAME_BYTES..],
            });
            self.ring.head.move_on(access, head, next)?;
            self.head = next.0;
            if kind == MESSAGE {
                return Ok(Some(&self.bytes[FRAME_BYTES..]));
            }
        }
    }
}
