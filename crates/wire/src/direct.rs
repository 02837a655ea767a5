//! Reading and writing without memory, locks or other threads: for a handler of page faults, which may use none of them.
//!
//! A [`DirectConnection`] is a connection that one thread has to itself, made beforehand, with one request at a time. A
//! handler may call [`read_into`](DirectConnection::read_into) and [`flush`](DirectConnection::flush) on a socket: they
//! do nothing but system calls, copying and arithmetic.

use crate::clock::Clock;
use crate::fault::Fault;
use crate::frame::{DATA_PREFIX_BYTES, Epoch, Flags, HEAD_BYTES, Head, Kind, RequestId};
use crate::hello::{self, Agreement, Offer};
use crate::message::{DONE_CANCELLED, Extent};
use crate::token::Token;
use crate::transport::{Closer, Halves, Incoming, Outgoing, Transport, send_whole};
use std::sync::Arc;
use std::time::Duration;
use tidepool_base::{Result, SqlState};

/// Extents that one request may have: their list lies on the stack.
pub const DIRECT_EXTENTS_MAX: usize = 32;

const LIST_BYTES_MAX: usize = 4 + DIRECT_EXTENTS_MAX * 12;

/// As in [`client`](crate::client): bytes are checked while they are in the cache.
const PIECE_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub struct DirectConnection {
    outgoing: Box<dyn Outgoing>,
    incoming: Box<dyn Incoming>,
    closer: Arc<dyn Closer>,
    clock: Arc<dyn Clock>,
    epoch: Epoch,
    agreement: Agreement,
    next: u64,
    /// Why nothing goes any more.
    broken: Option<Fault>,
}

/// A list of extents as a request has it.
fn encode_list<'a>(extents: &[Extent], list: &'a mut [u8; LIST_BYTES_MAX]) -> &'a [u8] {
    list[..4].copy_from_slice(&(extents.len() as u32).to_le_bytes());
    for (extent, bytes) in extents.iter().zip(list[4..].as_chunks_mut::<12>().0) {
        bytes[..8].copy_from_slice(&extent.place.0.to_le_bytes());
        bytes[8..].copy_from_slice(&extent.bytes.to_le_bytes());
    }
    &list[..4 + extents.len() * 12]
}

impl Drop for DirectConnection {
    fn drop(&mut self) {
        self.closer.close();
    }
}

impl DirectConnection {
    /// Opens the connection, as [`Connection::open`](crate::Connection::open) does.
    pub fn open(
        transport: Box<dyn Transport>,
        offer: &Offer,
        token: &Token,
        handshake: Duration,
    ) -> Result<DirectConnection> {
        let mut halves = transport.split()?;
        let agreement = hello::offer(&mut halves, offer, token, handshake)?;
        let Halves { outgoing, incoming, closer, clock, .. } = halves;
        let epoch = offer.epoch;
        Ok(DirectConnection { outgoing, incoming, closer, clock, epoch, agreement, next: 1, broken: None })
    }

    pub fn agreement(&self) -> &Agreement {
        &self.agreement
    }

    /// Ends the connection from another thread, whatever this one waits for.
    pub fn closer(&self) -> Arc<dyn Closer> {
        self.closer.clone()
    }

    /// Reads extents, one after the other, into `into`, which has as many bytes as they together. What the bytes are
    /// after a failure is not said. After any but one that the node answered, the connection is over.
    pub fn read_into(&mut self, extents: &[Extent], into: &mut [u8], timeout: Duration) -> Result<(), Fault> {
        let asked = self.check_extents(extents, into.len())?;
        if asked > self.agreement.limits.read_bytes {
            return Err(Fault::Beyond { what: "bytes to read", asked, limit: self.agreement.limits.read_bytes });
        }
        let read = self.exchange(extents, into, timeout);
        self.note(read)
    }

    /// Writes the bytes of each extent, which `pieces` are in a row, as
    /// [`Connection::flush`](crate::Connection::flush) does. After a failure that the node did not answer, the
    /// connection is over, and whether the bytes were written is unknown.
    pub fn flush(&mut self, stage: u32, extents: &[Extent], pieces: &[&[u8]], timeout: Duration) -> Result<(), Fault> {
        let bytes = pieces.iter().map(|piece| piece.len()).sum();
        let asked = self.check_extents(extents, bytes)?;
        let limit = u64::from(self.agreement.limits.frame_bytes);
        if asked + (LIST_BYTES_MAX + 4) as u64 > limit {
            return Err(Fault::Beyond { what: "bytes of a frame", asked, limit });
        }
        if pieces.len() > DIRECT_EXTENTS_MAX {
            return Err(Fault::Malformed("it has more pieces than extents"));
        }
        let written = self.exchange_flush(stage, extents, pieces, timeout);
        self.note(written)
    }

    /// Bytes of all extents, if a request can have them.
    fn check_extents(&self, extents: &[Extent], bytes: usize) -> Result<u64, Fault> {
        if let Some(fault) = self.broken {
            return Err(fault);
        }
        let asked: u64 = extents.iter().map(|extent| u64::from(extent.bytes)).sum();
        if asked != bytes as u64 {
            return Err(Fault::Malformed("its extents and its bytes differ"));
        }
        let (count, limit) = (extents.len() as u64, DIRECT_EXTENTS_MAX as u64);
        if count > limit {
            return Err(Fault::Beyond { what: "entries of a list", asked: count, limit });
        }
        Ok(asked)
    }

    /// Remembers what ended the connection.
    fn note(&mut self, outcome: Result<(), Fault>) -> Result<(), Fault> {
        if let Err(fault) = outcome
            && !matches!(fault, Fault::Refused(_) | Fault::Cancelled)
        {
            self.broken = Some(fault);
            self.closer.close();
        }
        outcome
    }

    fn exchange_flush(
        &mut self,
        stage: u32,
        extents: &[Extent],
        pieces: &[&[u8]],
        timeout: Duration,
    ) -> Result<(), Fault> {
        let until = self.clock.now().saturating_add(timeout);
        let number = self.number();
        let mut list = [0; LIST_BYTES_MAX];
        let list = encode_list(extents, &mut list);
        let stage = stage.to_le_bytes();
        // The head, the stage, the list and the pieces.
        let mut frame: [&[u8]; DIRECT_EXTENTS_MAX + 3] = [&[]; DIRECT_EXTENTS_MAX + 3];
        (frame[1], frame[2]) = (&stage, list);
        frame[3..3 + pieces.len()].copy_from_slice(pieces);
        let frame = &mut frame[..3 + pieces.len()];
        let head = Head::of(Kind::Flush, Flags::NONE, number, self.epoch, &frame[1..])?.encode();
        frame[0] = &head;
        send_whole(&mut *self.outgoing, &*self.clock, frame)?;
        loop {
            let head = self.next_head(until)?;
            let mut checksum = head.checksum();
            let mut first = [0; 5];
            self.pass_over(head.len as usize, &mut checksum, &mut first)?;
            self.check(&head, &checksum)?;
            if head.request == number && head.kind == Kind::Done {
                let [b0, b1, b2, b3, _] = first;
                return match u32::from_le_bytes([b0, b1, b2, b3]) & DONE_CANCELLED {
                    0 => Ok(()),
                    _ => Err(Fault::Cancelled),
                };
            }
            if head.request == number || head.request == RequestId::CONNECTION {
                return Err(self.refused(&head, first));
            }
            if head.request > number {
                return Err(Fault::Malformed("it answers a request that was not sent"));
            }
        }
    }

    fn number(&mut self) -> RequestId {
        let number = RequestId(self.next);
        self.next += 1;
        number
    }

    /// The head of the next answer.
    fn next_head(&mut self, until: Duration) -> Result<Head, Fault> {
        let mut head = [0; HEAD_BYTES];
        if !self.incoming.begin(&mut head, until.saturating_sub(self.clock.now()))? {
            return Err(Fault::Closed("the peer does not answer"));
        }
        let head = Head::decode(&head, self.agreement.limits.frame_bytes)?;
        if !head.flags.contains(Flags::ANSWER) {
            return Err(Fault::Malformed("a request came as an answer"));
        }
        Ok(head)
    }

    fn exchange(&mut self, extents: &[Extent], into: &mut [u8], timeout: Duration) -> Result<(), Fault> {
        let until = self.clock.now().saturating_add(timeout);
        let number = self.number();
        let mut list = [0; LIST_BYTES_MAX];
        let body = encode_list(extents, &mut list);
        let head = Head::of(Kind::Read, Flags::NONE, number, self.epoch, &[body])?.encode();
        send_whole(&mut *self.outgoing, &*self.clock, &[&head, body])?;
        let mut filled = 0_usize;
        loop {
            let head = self.next_head(until)?;
            let len = head.len as usize;
            let mut checksum = head.checksum();
            if head.kind == Kind::Data && head.request == number {
                if head.flags.contains(Flags::BARE) && !self.agreement.bare_data {
                    return Err(Fault::Malformed("its data is not checked"));
                }
                let mut prefix = [0; DATA_PREFIX_BYTES];
                let len = len.checked_sub(DATA_PREFIX_BYTES).ok_or(Fault::Malformed("its body is too short"))?;
                self.incoming.receive(&mut prefix)?;
                checksum.update(&prefix);
                let offset = u64::from_le_bytes(prefix);
                if offset > filled as u64 {
                    return Err(Fault::Closed("a frame was lost"));
                }
                if offset == filled as u64 {
                    let bytes = into.get_mut(filled..filled.saturating_add(len));
                    let bytes = bytes.ok_or(Fault::Malformed("it has more data than was asked for"))?;
                    for piece in bytes.chunks_mut(PIECE_BYTES) {
                        self.incoming.receive(piece)?;
                        checksum.update(piece);
                    }
                    self.check(&head, &checksum)?;
                    filled += len;
                    if head.flags.contains(Flags::LAST) != (filled == into.len()) {
                        return Err(Fault::Malformed("its data ends where it should not"));
                    }
                    if filled == into.len() {
                        return Ok(());
                    }
                    continue;
                }
                self.pass_over(len, &mut checksum, &mut [])?;
                self.check(&head, &checksum)?;
                continue;
            }
            let mut first = [0; 5];
            self.pass_over(len, &mut checksum, &mut first)?;
            self.check(&head, &checksum)?;
            if head.request == number || head.request == RequestId::CONNECTION {
                return Err(self.refused(&head, first));
            }
            if head.request > number {
                return Err(Fault::Malformed("it answers a request that was not sent"));
            }
        }
    }

    /// Why there is no data.
    fn refused(&self, head: &Head, first: [u8; 5]) -> Fault {
        match head.kind {
            Kind::Error => {
                let code = str::from_utf8(&first).ok().and_then(SqlState::from_code);
                match code.unwrap_or(SqlState::INTERNAL_ERROR) {
                    // By whom is in the text, which is not kept.
                    SqlState::ADMIN_SHUTDOWN => Fault::Fenced { epoch: self.epoch.0, current: self.epoch.0 + 1 },
                    code if head.request == RequestId::CONNECTION && code == SqlState::CONNECTION_FAILURE => {
                        Fault::Closed("the peer closed it")
                    }
                    code => Fault::Refused(code),
                }
            }
            Kind::Done => Fault::Cancelled,
            _ => Fault::Malformed("it answers another request"),
        }
    }

    fn check(&self, head: &Head, checksum: &crate::frame::Checksum) -> Result<(), Fault> {
        head.check(checksum)?;
        if head.epoch == self.epoch { Ok(()) } else { Err(Fault::Malformed("its answer is of another epoch")) }
    }

    /// Receives bytes and keeps the first ones only.
    fn pass_over(&mut self, len: usize, checksum: &mut crate::frame::Checksum, first: &mut [u8]) -> Result<(), Fault> {
        let (mut scratch, mut done) = ([0; 512], 0);
        while done < len {
            let count = (len - done).min(scratch.len());
            self.incoming.receive(&mut scratch[..count])?;
            checksum.update(&scratch[..count]);
            if done == 0 {
                let kept = first.len().min(count);
                first[..kept].copy_from_slice(&scratch[..kept]);
            }
            done += count;
        }
        Ok(())
    }
}
