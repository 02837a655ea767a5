//! The protocol by hand, for what no driver would send.

use std::net::SocketAddr;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

pub struct Raw<S = TcpStream> {
    pub stream: S,
}

/// A message's type and body.
pub type Message = (u8, Vec<u8>);

pub fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![kind];
    bytes.extend_from_slice(&(body.len() as u32 + 4).to_be_bytes());
    bytes.extend_from_slice(body);
    bytes
}

pub fn query(sql: &str) -> Vec<u8> {
    message(b'Q', &[sql.as_bytes(), b"\0"].concat())
}

pub fn parse(name: &str, sql: &str) -> Vec<u8> {
    message(b'P', &[name.as_bytes(), b"\0", sql.as_bytes(), b"\0\0\0"].concat())
}

/// Without parameters, all results as text.
pub fn bind(portal: &str, statement: &str) -> Vec<u8> {
    message(b'B', &[portal.as_bytes(), b"\0", statement.as_bytes(), b"\0\0\0\0\0\0\0"].concat())
}

pub fn execute(portal: &str, rows_max: u32) -> Vec<u8> {
    message(b'E', &[portal.as_bytes(), b"\0", &rows_max.to_be_bytes()].concat())
}

pub fn sync() -> Vec<u8> {
    message(b'S', &[])
}

pub fn startup(version: (u16, u16), parameters: &[(&str, &str)]) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend_from_slice(&version.0.to_be_bytes());
    body.extend_from_slice(&version.1.to_be_bytes());
    for (name, value) in parameters {
        body.extend_from_slice(&[name.as_bytes(), b"\0", value.as_bytes(), b"\0"].concat());
    }
    body.push(0);
    [&(body.len() as u32 + 4).to_be_bytes(), body.as_slice()].concat()
}

/// One field of an error or notice.
pub fn field(body: &[u8], kind: u8) -> Option<String> {
    body.split(|byte| *byte == 0)
        .find(|field| field.first() == Some(&kind))
        .map(|field| String::from_utf8_lossy(&field[1..]).into_owned())
}

/// The types of messages, in order, as a word.
pub fn kinds(messages: &[Message]) -> String {
    messages.iter().map(|(kind, _)| *kind as char).collect()
}

impl Raw {
    pub async fn open(address: SocketAddr) -> Raw {
        Raw { stream: TcpStream::connect(address).await.unwrap() }
    }

    /// Started as the one user of the one database.
    pub async fn start(address: SocketAddr) -> (Raw, Vec<Message>) {
        let mut raw = Raw::open(address).await;
        raw.send(&startup((3, 0), &[("user", "tidepool"), ("database", "tidepool")])).await;
        let messages = raw.until(b'Z').await;
        (raw, messages)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Raw<S> {
    pub async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    /// The next message, or `None` at the end of the stream.
    pub async fn read(&mut self) -> Option<Message> {
        let read = async {
            let kind = self.stream.read_u8().await.ok()?;
            let len = self.stream.read_u32().await.ok()?;
            let mut body = vec![0; len as usize - 4];
            self.stream.read_exact(&mut body).await.ok()?;
            Some((kind, body))
        };
        tokio::time::timeout(crate::server::PATIENCE, read).await.expect("the server answers in time")
    }

    /// Messages up to and with the first of type `kind`.
    pub async fn until(&mut self, kind: u8) -> Vec<Message> {
        let mut messages = Vec::new();
        loop {
            let message = self.read().await.unwrap_or_else(|| panic!("ended after {}", kinds(&messages)));
            messages.push(message);
            if messages.last().unwrap().0 == kind {
                return messages;
            }
        }
    }

    /// Sends and reads up to ReadyForQuery.
    pub async fn ask(&mut self, bytes: &[u8]) -> Vec<Message> {
        self.send(bytes).await;
        self.until(b'Z').await
    }

    /// What comes before the stream ends.
    pub async fn rest(&mut self) -> Vec<Message> {
        let mut messages = Vec::new();
        while let Some(message) = self.read().await {
            messages.push(message);
        }
        messages
    }
}
