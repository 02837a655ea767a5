//! What happened to the pool, for people: a ring of the last events. No decision rests on it.

use crate::layout::EVENTS;
use crate::memory::{Books, Memory, Outcome};
use crate::words::{EventHead, EventKind, EventPart, Number, Slot};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub sequence: u64,
    pub kind: EventKind,
    pub slot: Slot,
    /// Milliseconds since 1970, by the clock of the host that wrote it.
    pub wall_ms: u64,
    /// The incarnation, term or extent that it is about.
    pub detail: u64,
}

impl<M: Memory> Books<M> {
    pub fn append_event(&self, kind: EventKind, slot: Slot, wall_ms: u64, detail: u64) -> Outcome<(), M> {
        let next = self.layout.event_next();
        let sequence = loop {
            let sequence = self.load(next)?;
            if self.swap(next, sequence, Number(sequence.0 + 1))? {
                break sequence.0;
            }
        };
        let (head, time, about) = self.layout.event(sequence);
        let sequence_low = sequence as u8;
        // The head last. Its sequence number and those of the parts tell an event that is half of another.
        self.store(time, EventPart { value: wall_ms, sequence_low })?;
        self.store(about, EventPart { value: detail, sequence_low })?;
        self.store(head, EventHead { sequence: sequence as u32, kind: Some(kind), slot })
    }

    /// The last events, oldest first, without those that are being written.
    pub fn events(&self) -> Outcome<Vec<Event>, M> {
        let end = self.load(self.layout.event_next())?.0;
        let mut events = Vec::new();
        for sequence in end.saturating_sub(EVENTS as u64)..end {
            let (head, time, about) = self.layout.event(sequence);
            let (head, time, about) = (self.load(head)?, self.load(time)?, self.load(about)?);
            let is_whole = head.sequence == sequence as u32
                && [time, about].iter().all(|part| part.sequence_low == sequence as u8);
            if let Some(kind) = head.kind.filter(|_| is_whole) {
                events.push(Event { sequence, kind, slot: head.slot, wall_ms: time.value, detail: about.value });
            }
        }
        Ok(events)
    }
}
