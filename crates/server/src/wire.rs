//! A connection's two directions, buffered.

use bytes::BytesMut;
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};

/// Plain or encrypted TCP, a socket in the file system, or a pipe within the process.
pub(crate) trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// While a statement runs, no more than this is read ahead of it.
const READ_AHEAD_BYTES: usize = 64 * 1024;

/// Buffers that grew for one large message are given back above this size.
const KEEP_BYTES: usize = 256 * 1024;

pub(crate) struct Wire {
    reader: ReadHalf<Box<dyn Io>>,
    writer: WriteHalf<Box<dyn Io>>,
    pub(crate) input: BytesMut,
    pub(crate) output: Vec<u8>,
}

impl Wire {
    pub(crate) fn new(io: Box<dyn Io>) -> Wire {
        let (reader, writer) = tokio::io::split(io);
        Wire { reader, writer, input: BytesMut::new(), output: Vec::new() }
    }

    /// The stream again, once nothing of it is buffered.
    pub(crate) fn into_io(self) -> Box<dyn Io> {
        self.reader.unsplit(self.writer)
    }

    /// Reads what is there, at least one byte. An end of input is an error: no client ends in the middle of anything.
    /// Loses nothing when dropped.
    pub(crate) async fn fill(&mut self) -> io::Result<()> {
        if self.input.is_empty() && self.input.capacity() > KEEP_BYTES {
            self.input = BytesMut::new();
        }
        self.input.reserve(8 * 1024);
        match self.reader.read_buf(&mut self.input).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
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

    pub(crate) async fn flush(&mut self) -> io::Result<()> {
        if !self.output.is_empty() {
            self.writer.write_all(&self.output).await?;
            self.output.clear();
            if self.output.capacity() > KEEP_BYTES {
                self.output = Vec::new();
            }
        }
        self.writer.flush().await
    }

    /// Says goodbye: what is left to send, then the end.
    pub(crate) async fn close(&mut self) {
        let goodbye = async {
            self.flush().await?;
            self.writer.shutdown().await
        };
        // A client that does not read is not waited for.
        let _ = tokio::time::timeout(std::time::Duration::from_secs(5), goodbye).await;
    }
}
