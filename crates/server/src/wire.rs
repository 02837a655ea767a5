//! A connection's two directions, buffered, and what they hold charged to the connection.
//!
//! A message is in memory as far as it has come. Small ones are not counted: each connection has room for one. What goes beyond is charged as it comes; a message that
//! there is no room for is not kept, its bytes are passed over as they come, and it is answered by an error. The connection goes on.

use crate::incoming::Positions;
use crate::kept::{Keeper, KeptIo};
use crate::protocol::frontend::{Message, MessageHead};
use crate::secured::Secured;
use bytes::{Buf, BufMut, BytesMut};
use std::io;
use std::sync::Arc;
use tidepool_base::{Error, Result};
use tidepool_heap::{ClientAccount, Held, Reservation};
use tidepool_planner::PortableTls;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// TCP, a socket in the file system, or a pipe within the process, plain or encrypted.
pub(crate) trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// While a statement runs, no more than this is read ahead of it.
const READ_AHEAD_BYTES: usize = 64 * 1024;

/// Buffers that grew for one large message are given back above this size.
const KEEP_BYTES: usize = 64 * 1024;

/// Of each direction so much is not charged: it is the connection's from its beginning.
pub(crate) const UNCOUNTED_BYTES: usize = 64 * 1024;

/// Memory is asked for in such steps, and a message that is longer has its buffer at once: pages are there once they are written to.
const STEP_BYTES: usize = 1 << 20;

const READ_BYTES: usize = 8 * 1024;

/// What a client's bytes come from and go to.
enum Stream {
    Plain(Box<dyn Io>),
    Secured(Box<Secured>),
}

impl Stream {
    fn io(&mut self) -> &mut dyn Io {
        match self {
            Stream::Plain(io) => &mut **io,
            Stream::Secured(secured) => &mut **secured,
        }
    }
}

pub(crate) struct Wire {
    stream: Stream,
    pub(crate) input: BytesMut,
    pub(crate) output: Vec<u8>,
    charges: Option<Charges>,
    /// A message that there is no room for is passed over.
    refused: Option<Refused>,
}

/// Of a connection that is known.
struct Charges {
    input: Reservation,
    output: Reservation,
}

struct Refused {
    head: MessageHead,
    /// Bytes that are still to come.
    left: usize,
    error: Error,
}

impl Wire {
    pub(crate) fn new(io: Box<dyn Io>) -> Wire {
        Wire::over(Stream::Plain(io))
    }

    pub(crate) fn secured(secured: Secured) -> Wire {
        Wire::over(Stream::Secured(Box::new(secured)))
    }

    fn over(stream: Stream) -> Wire {
        Wire { stream, input: BytesMut::new(), output: Vec::new(), charges: None, refused: None }
    }

    /// From now on, what is held goes to this account.
    pub(crate) fn charge(&mut self, account: &Arc<ClientAccount>) {
        let (input, output) = (account.nothing(Held::Messages), account.nothing(Held::Results));
        self.charges = Some(Charges { input, output });
    }

    /// From now on its bytes are kept for another process. False: they cannot be, as they are encrypted.
    pub(crate) fn keep(&mut self, keeper: &Arc<Keeper>, positions: Option<Positions>) -> bool {
        let Stream::Plain(io) = &mut self.stream else { return false };
        let io = std::mem::replace(io, Box::new(tokio::io::empty()));
        self.stream = Stream::Plain(Box::new(KeptIo::new(io, keeper.clone(), positions)));
        true
    }

    /// Between two messages, or within one that is in `input` as far as it has come; and all is sent.
    pub(crate) fn is_settled(&self) -> bool {
        self.output.is_empty() && self.refused.is_none()
    }

    /// The stream again, once nothing of it is buffered.
    pub(crate) fn into_io(self) -> Box<dyn Io> {
        match self.stream {
            Stream::Plain(io) => io,
            Stream::Secured(secured) => secured,
        }
    }

    /// Whether another process can be expected to go on with it.
    pub(crate) fn may_go_over(&self) -> bool {
        match &self.stream {
            Stream::Plain(_) => true,
            Stream::Secured(secured) => secured.may_go_over(),
        }
    }

    /// What was read and not worked on, and what another process needs to go on with the stream, for one with TLS. `None` while it cannot go
    /// over.
    pub(crate) fn write_down(&mut self) -> Option<(Vec<u8>, Option<PortableTls>)> {
        let mut input = self.input.to_vec();
        let tls = match &mut self.stream {
            Stream::Plain(_) => None,
            Stream::Secured(secured) => {
                let (tls, data) = secured.write_down()?;
                input.extend_from_slice(&data);
                Some(tls)
            }
        };
        Some((input, tls))
    }

    /// The next message, or `None` while it is not there whole. After an error the stream's rhythm is lost and the connection has to end.
    pub(crate) fn message(&mut self) -> Result<Option<Message>> {
        if let Some(refused) = &mut self.refused {
            let passed = refused.left.min(self.input.len());
            self.input.advance(passed);
            refused.left -= passed;
            if refused.left > 0 {
                return Ok(None);
            }
            return Ok(self.refused.take().map(|refused| refused.head.malformed(refused.error)));
        }
        Message::decode(&mut self.input)
    }

    /// What is charged for the message that was given last, to be held as long as it is: `None` for a small one.
    #[inline]
    pub(crate) fn take_charge(&mut self) -> Option<Reservation> {
        let charges = self.charges.as_mut()?;
        (charges.input.bytes() > 0).then(|| charges.input.take())
    }

    /// Reads what is there, at least one byte. An end of input is an error: no client ends in the middle of anything.
    /// Loses nothing when dropped.
    pub(crate) async fn fill(&mut self) -> io::Result<()> {
        if self.input.is_empty() && self.input.capacity() > KEEP_BYTES {
            self.input = BytesMut::new();
        }
        let len = self.input.len();
        let read = match len < UNCOUNTED_BYTES {
            true => {
                self.input.reserve(READ_BYTES);
                self.stream.io().read_buf(&mut (&mut self.input).limit(UNCOUNTED_BYTES + READ_BYTES - len)).await?
            }
            false => self.fill_long(len).await?,
        };
        match read {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// More of a message that is long, if there is room for it.
    async fn fill_long(&mut self, len: usize) -> io::Result<usize> {
        let step = STEP_BYTES.min(len);
        let charged = match &mut self.charges {
            Some(charges) => charges.input.resize((len + step) as u64),
            None => Ok(()),
        };
        let head = Message::head(&self.input);
        let mut limit = step;
        match (charged, head) {
            (Err(error), Some(head)) => {
                // Nothing of it is kept.
                let left = head.bytes.saturating_sub(len);
                self.input = BytesMut::new();
                self.charges.iter_mut().for_each(|charges| drop(charges.input.take()));
                self.refused = Some(Refused { head, left, error });
                self.input.reserve(READ_BYTES);
                limit = READ_BYTES;
            }
            (_, Some(head)) if self.input.capacity() - len < READ_BYTES => {
                let missing = head.bytes.saturating_sub(len);
                self.input.reserve(if len < STEP_BYTES { missing.min(STEP_BYTES) } else { missing }.max(READ_BYTES));
            }
            _ => self.input.reserve(READ_BYTES),
        }
        self.stream.io().read_buf(&mut (&mut self.input).limit(limit)).await
    }

    /// Returns when the client is gone; until then keeps a bounded part of what it sends. Loses nothing when dropped.
    pub(crate) async fn gone(&mut self) {
        loop {
            if self.input.len() >= READ_AHEAD_BYTES {
                return std::future::pending().await;
            }
            if self.fill().await.is_err() {
                return;
            }
        }
    }

    /// Has room in `output` for so many bytes more. 53200 where there is none.
    #[inline]
    pub(crate) fn reserve_output(&mut self, bytes: usize) -> Result<()> {
        let wanted = self.output.len() + bytes;
        if wanted > UNCOUNTED_BYTES { self.reserve_long_output(wanted) } else { Ok(()) }
    }

    #[cold]
    fn reserve_long_output(&mut self, wanted: usize) -> Result<()> {
        if let Some(charges) = &mut self.charges
            && charges.output.bytes() < wanted as u64
        {
            charges.output.resize(wanted as u64)?;
        }
        self.output.reserve_exact(wanted - self.output.len());
        Ok(())
    }

    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        if !self.output.is_empty() {
            self.stream.io().write_all(&self.output).await?;
            self.output.clear();
            if self.output.capacity() > KEEP_BYTES {
                self.output = Vec::new();
            }
            if let Some(charges) = &mut self.charges
                && charges.output.bytes() > 0
            {
                drop(charges.output.take());
            }
        }
        self.stream.io().flush().await
    }

    /// Says goodbye: what is left to send, then the end.
    pub(crate) async fn close(&mut self) {
        let goodbye = async {
            self.flush().await?;
            self.stream.io().shutdown().await
        };
        // A client that does not read is not waited for.
        let _ = tokio::time::timeout(std::time::Duration::from_secs(5), goodbye).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_base::SqlState;
    use tidepool_heap::ClientMemory;
    use tokio::io::DuplexStream;

    const MIB: usize = 1 << 20;

    fn wire(memory: &Arc<ClientMemory>) -> (Wire, DuplexStream) {
        let (client, server) = tokio::io::duplex(64 * 1024);
        let mut wire = Wire::new(Box::new(server));
        wire.charge(&memory.account());
        (wire, client)
    }

    fn query(len: usize) -> Vec<u8> {
        let mut message = vec![b'Q'];
        message.extend_from_slice(&(len as u32 + 5).to_be_bytes());
        message.resize(len + 5, b'x');
        message.push(0);
        message
    }

    async fn next(wire: &mut Wire) -> Message {
        loop {
            match wire.message().unwrap() {
                Some(message) => return message,
                None => wire.fill().await.unwrap(),
            }
        }
    }

    fn held(memory: &ClientMemory) -> u64 {
        memory.rows().iter().map(|(_, bytes, _)| bytes).sum()
    }

    #[tokio::test]
    async fn a_long_message_is_charged_as_it_comes() {
        let memory = ClientMemory::new(64 * MIB as u64, 1, u64::MAX);
        let (mut wire, mut client) = wire(&memory);
        let long = query(5 * MIB);
        for part in 1..5 {
            client.write_all(&long[(part - 1) * MIB..part * MIB]).now_or_fill(&mut wire).await;
            let bytes = held(&memory);
            assert!((part * MIB - 128 * 1024..=part * MIB + STEP_BYTES).contains(&(bytes as usize)), "{bytes}");
        }
        client.write_all(&long[4 * MIB..]).now_or_fill(&mut wire).await;
        let message = next(&mut wire).await;
        let charge = wire.take_charge().unwrap();
        assert!(matches!(message, Message::Query(text) if text.len() == 5 * MIB));
        assert!(charge.bytes() >= 5 * MIB as u64);
        drop(charge);
        assert_eq!(held(&memory), 0);
        // A short one is not.
        client.write_all(&query(1000)).await.unwrap();
        assert!(matches!(next(&mut wire).await, Message::Query(_)) && wire.take_charge().is_none());
    }

    #[tokio::test]
    async fn a_message_without_room_is_passed_over() {
        let memory = ClientMemory::new(4 * MIB as u64, 1, u64::MAX);
        let (mut wire, mut client) = wire(&memory);
        let writing = tokio::spawn(async move {
            client.write_all(&query(10 * MIB)).await.unwrap();
            client.write_all(&query(10)).await.unwrap();
            client
        });
        let Message::Malformed { extended, error } = next(&mut wire).await else { panic!("no room") };
        assert_eq!((extended, error.code()), (false, SqlState::OUT_OF_MEMORY));
        assert_eq!(held(&memory), 0);
        assert!(matches!(next(&mut wire).await, Message::Query(text) if text.len() == 10));
        drop(writing.await.unwrap());
    }

    #[tokio::test]
    async fn output_is_charged_until_it_is_sent() {
        let memory = ClientMemory::new(4 * MIB as u64, 1, u64::MAX);
        let (mut wire, mut client) = wire(&memory);
        wire.reserve_output(1000).unwrap();
        assert_eq!(held(&memory), 0);
        wire.reserve_output(2 * MIB).unwrap();
        assert_eq!(held(&memory), 2 * MIB as u64);
        assert_eq!(wire.reserve_output(10 * MIB).unwrap_err().code(), SqlState::OUT_OF_MEMORY);
        wire.output.resize(2 * MIB, 1);
        let reading = tokio::spawn(async move {
            let mut all = vec![0; 2 * MIB];
            client.read_exact(&mut all).await.unwrap();
        });
        wire.flush().await.unwrap();
        reading.await.unwrap();
        assert_eq!(held(&memory), 0);
    }

    trait NowOrFill {
        async fn now_or_fill(self, wire: &mut Wire);
    }

    impl<F: Future<Output = io::Result<()>>> NowOrFill for F {
        /// Writes to the other end, and reads here until all of it is there.
        async fn now_or_fill(self, wire: &mut Wire) {
            let mut writing = std::pin::pin!(self);
            let mut is_written = false;
            loop {
                tokio::select! {
                    biased;
                    filled = wire.fill() => filled.unwrap(),
                    written = &mut writing, if !is_written => {
                        written.unwrap();
                        is_written = true;
                    }
                    () = std::future::ready(()), if is_written => return,
                }
            }
        }
    }
}
