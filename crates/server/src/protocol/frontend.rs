//! What a client sends.

use bytes::{Buf, Bytes, BytesMut};
use tidepool_base::{ByteSize, Error, Result, SqlState};

/// As PostgreSQL: every message that opens a connection is short.
pub(crate) const STARTUP_BYTES_MAX: usize = 10_000;
/// As PostgreSQL, for messages before authentication.
pub(crate) const PASSWORD_BYTES_MAX: usize = 65_535;
/// As PostgreSQL, for messages that carry no data.
const SMALL_BYTES_MAX: usize = 10_000;
/// For messages with SQL text or data. PostgreSQL takes 1 GiB; a message is in memory whole, so this is a bound on what
/// one connection can make the server hold.
const LARGE_BYTES_MAX: usize = (256 * ByteSize::MIB) as usize;

fn violation(message: impl Into<String>) -> Error {
    Error::new(SqlState::PROTOCOL_VIOLATION, message)
}

/// What opens a connection.
#[derive(Debug, PartialEq)]
pub(crate) enum Opening {
    Ssl,
    GssEncryption,
    Cancel { process_id: i32, secret: Bytes },
    Startup { version: (u16, u16), parameters: Vec<(String, String)> },
}

impl Opening {
    /// `None`: more bytes are needed. An error here is no PostgreSQL client's doing.
    pub(crate) fn decode(input: &mut BytesMut) -> Result<Option<Opening>> {
        let Some(header) = input.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_be_bytes(*header) as usize;
        if !(8..=STARTUP_BYTES_MAX).contains(&length) {
            return Err(violation("invalid length of startup packet"));
        }
        if input.len() < length {
            return Ok(None);
        }
        let mut body = Body(input.split_to(length).freeze());
        body.u32()?;
        let code = body.u32()?;
        let opening = match code {
            80_877_103 => Opening::Ssl,
            80_877_104 => Opening::GssEncryption,
            80_877_102 => {
                let process_id = body.u32()? as i32;
                let secret = body.0;
                if !(4..=256).contains(&secret.len()) {
                    return Err(violation("invalid length of cancel request packet"));
                }
                return Ok(Some(Opening::Cancel { process_id, secret }));
            }
            version => {
                let mut parameters = Vec::new();
                let version = ((version >> 16) as u16, version as u16);
                // Only a version-3 packet has parameters of a known form.
                if version.0 == 3 {
                    loop {
                        let name = body.string()?;
                        if name.is_empty() {
                            break;
                        }
                        parameters.push((name, body.string()?));
                    }
                    if !body.0.is_empty() {
                        return Err(violation("invalid startup packet layout: expected terminator as last byte"));
                    }
                }
                return Ok(Some(Opening::Startup { version, parameters }));
            }
        };
        if body.0.is_empty() { Ok(Some(opening)) } else { Err(violation("invalid length of startup packet")) }
    }
}

/// Text in the message that it came in: it may be long, and is not copied.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Text(Bytes);

impl std::ops::Deref for Text {
    type Target = str;

    fn deref(&self) -> &str {
        // Looked at when it was made, which costs less than a copy.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// A message of which the beginning is there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MessageHead {
    kind: u8,
    /// Of the whole message.
    pub(crate) bytes: usize,
}

impl MessageHead {
    /// In place of the message, which was read but not kept.
    pub(crate) fn malformed(self, error: Error) -> Message {
        Message::Malformed { extended: matches!(self.kind, b'P' | b'B' | b'D' | b'E' | b'C' | b'H'), error }
    }
}

#[derive(Debug, PartialEq)]
pub(crate) enum Message {
    Query(Text),
    Parse {
        name: String,
        sql: Text,
        parameter_oids: Vec<u32>,
    },
    Bind(Bind),
    Describe {
        target: Target,
        name: String,
    },
    Execute {
        portal: String,
        rows_max: u32,
    },
    Close {
        target: Target,
        name: String,
    },
    Flush,
    Sync,
    Terminate,
    CopyData(Bytes),
    CopyDone,
    CopyFail(String),
    /// Password, SASLInitialResponse and SASLResponse share a type; the state of authentication tells them apart.
    Password(Bytes),
    FunctionCall,
    /// A message that was read whole but whose body is wrong: the connection can go on after this error.
    Malformed {
        extended: bool,
        error: Error,
    },
}

/// A message as far as it says where it may run, while it is still in the input.
#[derive(Debug, PartialEq)]
pub(crate) enum Sent<'i> {
    Query(&'i str),
    Parse {
        name: &'i str,
        sql: &'i str,
    },
    Bind {
        statement: &'i str,
    },
    Sync,
    Terminate,
    /// It runs nothing by itself.
    Neutral,
    /// What has no place between two statements, or is damaged.
    Other,
}

#[derive(Debug, PartialEq)]
pub(crate) struct Bind {
    pub(crate) portal: String,
    pub(crate) statement: String,
    pub(crate) parameter_formats: Vec<i16>,
    pub(crate) parameters: Vec<Option<Bytes>>,
    pub(crate) result_formats: Vec<i16>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Target {
    Statement,
    Portal,
}

/// The longest body (with its length) that a type of message may have; `None` for a type that does not exist.
fn bytes_max(kind: u8) -> Option<usize> {
    match kind {
        b'Q' | b'P' | b'B' | b'd' | b'F' => Some(LARGE_BYTES_MAX),
        b'D' | b'E' | b'C' | b'H' | b'S' | b'X' | b'c' | b'f' => Some(SMALL_BYTES_MAX),
        b'p' => Some(PASSWORD_BYTES_MAX),
        _ => None,
    }
}

impl Message {
    /// The first message of `input`, or `None` while it is not there whole. After an error the stream's rhythm is lost
    /// and the connection has to end.
    pub(crate) fn decode(input: &mut BytesMut) -> Result<Option<Message>> {
        let Some((kind, length)) = header(input)? else { return Ok(None) };
        if input.len() < length + 1 {
            return Ok(None);
        }
        let mut frame = input.split_to(length + 1).freeze();
        frame.advance(5);
        let head = MessageHead { kind, bytes: length + 1 };
        Ok(Some(Message::decode_body(kind, Body(frame)).unwrap_or_else(|error| head.malformed(error))))
    }

    /// The first message of `input`, if so much of it is there.
    pub(crate) fn head(input: &[u8]) -> Option<MessageHead> {
        let (kind, length) = header(input).ok()??;
        Some(MessageHead { kind, bytes: length + 1 })
    }

    /// The first message of `input`, which stays there, and what is behind it. `None` while it is not there whole.
    pub(crate) fn peek(input: &[u8]) -> Option<(Sent<'_>, &[u8])> {
        let (kind, length) = header(input).ok()??;
        let (message, rest) = input.split_at_checked(length + 1)?;
        let mut body = &message[5..];
        let mut text = || {
            let len = body.iter().position(|byte| *byte == 0)?;
            let text = std::str::from_utf8(&body[..len]).ok()?;
            body = &body[len + 1..];
            Some(text)
        };
        let sent = match kind {
            b'Q' => text().map(Sent::Query),
            b'P' => text().zip(text()).map(|(name, sql)| Sent::Parse { name, sql }),
            b'B' => text().zip(text()).map(|(_, statement)| Sent::Bind { statement }),
            b'S' => Some(Sent::Sync),
            b'X' => Some(Sent::Terminate),
            b'D' | b'E' | b'C' | b'H' => Some(Sent::Neutral),
            _ => None,
        };
        Some((sent.unwrap_or(Sent::Other), rest))
    }

    /// Whether the next whole message in `input` is a Sync.
    pub(crate) fn next_is_sync(input: &[u8]) -> bool {
        input.starts_with(&[b'S', 0, 0, 0, 4])
    }

    fn decode_body(kind: u8, mut body: Body) -> Result<Message> {
        let message = match kind {
            b'Q' => Message::Query(body.text()?),
            b'P' => {
                let (name, sql) = (body.string()?, body.text()?);
                let count = body.u16()?;
                let parameter_oids = (0..count).map(|_| body.u32()).collect::<Result<_>>()?;
                Message::Parse { name, sql, parameter_oids }
            }
            b'B' => {
                let (portal, statement) = (body.string()?, body.string()?);
                let parameter_formats = body.formats()?;
                let count = body.u16()?;
                let parameters = (0..count).map(|_| body.value()).collect::<Result<_>>()?;
                let result_formats = body.formats()?;
                Message::Bind(Bind { portal, statement, parameter_formats, parameters, result_formats })
            }
            b'D' => Message::Describe { target: body.target("DESCRIBE")?, name: body.string()? },
            b'C' => Message::Close { target: body.target("CLOSE")?, name: body.string()? },
            b'E' => Message::Execute { portal: body.string()?, rows_max: (body.u32()? as i32).max(0) as u32 },
            b'H' => Message::Flush,
            b'S' => Message::Sync,
            b'X' => return Ok(Message::Terminate),
            b'd' => return Ok(Message::CopyData(body.0)),
            b'c' => Message::CopyDone,
            b'f' => Message::CopyFail(body.string()?),
            b'p' => return Ok(Message::Password(body.0)),
            _ => return Ok(Message::FunctionCall),
        };
        if body.0.is_empty() { Ok(message) } else { Err(violation("invalid message format")) }
    }
}

/// The type and length of the next message, once both are there.
fn header(input: &[u8]) -> Result<Option<(u8, usize)>> {
    let Some(&kind) = input.first() else { return Ok(None) };
    let bytes_max = bytes_max(kind).ok_or_else(|| violation(format!("invalid frontend message type {kind}")))?;
    let Some(length) = input.get(1..5) else { return Ok(None) };
    let length = u32::from_be_bytes(length.try_into().expect("four bytes")) as usize;
    if length < 4 {
        return Err(violation("invalid message length"));
    }
    if length > bytes_max {
        return Err(if bytes_max == LARGE_BYTES_MAX && length < 1 << 30 {
            Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, format!("message of {} is too long", ByteSize(length as u64)))
                .with_detail(format!("A message can have {} at most.", ByteSize(bytes_max as u64)))
        } else {
            violation("invalid message length")
        });
    }
    Ok(Some((kind, length)))
}

/// The client's first answer in a SASL exchange: the mechanism it chose and its first message.
pub(crate) fn sasl_initial_response(body: Bytes) -> Result<(String, Bytes)> {
    let mut body = Body(body);
    let mechanism = body.string()?;
    let data = body.value()?.ok_or_else(|| violation("SASL initial response is missing"))?;
    if body.0.is_empty() { Ok((mechanism, data)) } else { Err(violation("malformed SASL initial response")) }
}

/// What is left of a message's body.
struct Body(Bytes);

impl Body {
    fn take(&mut self, len: usize) -> Result<Bytes> {
        if len > self.0.len() {
            return Err(violation("insufficient data left in message"));
        }
        Ok(self.0.split_to(len))
    }

    fn u16(&mut self) -> Result<u16> {
        Ok(self.take(2)?.get_u16())
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(self.take(4)?.get_u32())
    }

    fn string(&mut self) -> Result<String> {
        self.text().map(|text| (*text).to_owned())
    }

    fn text(&mut self) -> Result<Text> {
        let len = self.0.iter().position(|byte| *byte == 0).ok_or_else(|| violation("invalid string in message"))?;
        let text = self.take(len)?;
        self.0.advance(1);
        if let Err(error) = std::str::from_utf8(&text) {
            let at = error.valid_up_to();
            let bytes: Vec<String> = text[at..].iter().take(4).map(|byte| format!("0x{byte:02x}")).collect();
            return Err(Error::new(
                SqlState::CHARACTER_NOT_IN_REPERTOIRE,
                format!("invalid byte sequence for encoding \"UTF8\": {}", bytes.join(" ")),
            ));
        }
        Ok(Text(text))
    }

    fn formats(&mut self) -> Result<Vec<i16>> {
        let count = self.u16()?;
        (0..count)
            .map(|_| match self.u16()? as i16 {
                format @ (0 | 1) => Ok(format),
                format => {
                    Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("unsupported format code: {format}")))
                }
            })
            .collect()
    }

    fn value(&mut self) -> Result<Option<Bytes>> {
        match self.u32()? as i32 {
            -1 => Ok(None),
            len if len < 0 => Err(violation("invalid message format")),
            len => self.take(len as usize).map(Some),
        }
    }

    fn target(&mut self, message: &str) -> Result<Target> {
        match self.take(1)?[0] {
            b'S' => Ok(Target::Statement),
            b'P' => Ok(Target::Portal),
            other => Err(violation(format!("invalid {message} message subtype {other}"))),
        }
    }
}
