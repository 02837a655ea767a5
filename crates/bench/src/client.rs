//! A client that speaks as much of PostgreSQL's protocol as a load needs, and costs little: a thousand of them share the
//! machine with the server that they measure.

use std::path::Path;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

/// What came of a statement.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// The SQLSTATE, if it failed.
    pub error: Option<String>,
    /// Texts of the rows' columns, one after the other; `None` for NULL.
    pub values: Vec<Option<String>>,
    /// The session is in a transaction block, failed or not.
    pub in_transaction: bool,
    /// What the server said of itself, such as `in_hot_standby`.
    pub settings: Vec<(String, String)>,
}

/// Who connects, and to what.
#[derive(Clone, Debug)]
pub(crate) struct Login {
    pub user: String,
    pub database: String,
}

impl Default for Login {
    fn default() -> Login {
        Login { user: "tidepool".to_owned(), database: "tidepool".to_owned() }
    }
}

trait Io: AsyncRead + AsyncWrite + Unpin + Send + Sync {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send + Sync> Io for T {}

/// The name that a server's certificate is for, where clients ask for TLS.
pub(crate) const TLS_NAME: &str = "localhost";

/// Trusts one certificate, which is a server's own.
pub(crate) fn tls(certificate: &Path) -> Result<TlsConnector> {
    let wrong = |error: String| {
        let message = format!("the certificate in \"{}\" cannot be used: {error}", certificate.display());
        Error::new(SqlState::INVALID_PARAMETER_VALUE, message)
    };
    let der = CertificateDer::from_pem_file(certificate).map_err(|error| wrong(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    roots.add(der).map_err(|error| wrong(error.to_string()))?;
    let provider = Arc::new(crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|error| wrong(error.to_string()))?.with_root_certificates(roots).with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

pub(crate) struct Client {
    stream: Box<dyn Io>,
    /// What was read and not yet looked at, from `start` on.
    input: Vec<u8>,
    start: usize,
    output: Vec<u8>,
}

fn lost(error: &std::io::Error) -> Error {
    Error::new(SqlState::CONNECTION_FAILURE, format!("the server is gone: {error}"))
}

fn broken() -> Error {
    Error::new(SqlState::PROTOCOL_VIOLATION, "the server said what was not expected")
}

impl Client {
    /// As `tidepool`, to the database of that name, from this machine.
    pub async fn connect(address: &str) -> Result<Client> {
        Ok(Client::log_in(address, &Login::default()).await?.0)
    }

    /// Without a password. Also what the server says of itself then.
    pub async fn log_in(address: &str, login: &Login) -> Result<(Client, Answer)> {
        Client::log_in_over(address, login, None).await
    }

    /// As `log_in`, with TLS if there is a connector.
    pub async fn log_in_over(address: &str, login: &Login, tls: Option<&TlsConnector>) -> Result<(Client, Answer)> {
        let mut socket = TcpStream::connect(address).await.map_err(|error| lost(&error))?;
        socket.set_nodelay(true).map_err(|error| lost(&error))?;
        let stream: Box<dyn Io> = match tls {
            None => Box::new(socket),
            Some(tls) => {
                let request = [8_u32.to_be_bytes(), 80_877_103_u32.to_be_bytes()].concat();
                socket.write_all(&request).await.map_err(|error| lost(&error))?;
                if socket.read_u8().await.map_err(|error| lost(&error))? != b'S' {
                    return Err(Error::new(SqlState::PROTOCOL_VIOLATION, "the server does not support TLS"));
                }
                let name = ServerName::try_from(TLS_NAME).map_err(|error| Error::internal(error.to_string()))?;
                Box::new(tls.connect(name, socket).await.map_err(|error| lost(&error))?)
            }
        };
        let mut client = Client { stream, input: Vec::new(), start: 0, output: Vec::new() };
        let mut body = 196_608_u32.to_be_bytes().to_vec();
        for text in ["user", &login.user, "database", &login.database, ""] {
            body.extend(text.as_bytes());
            body.push(0);
        }
        client.output.extend((body.len() as u32 + 4).to_be_bytes());
        client.output.extend(body);
        let answer = client.answer().await?.succeeded()?;
        Ok((client, answer))
    }

    fn message(&mut self, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
        self.output.push(kind);
        let at = self.output.len();
        self.output.extend([0; 4]);
        body(&mut self.output);
        let length = (self.output.len() - at) as u32;
        self.output[at..at + 4].copy_from_slice(&length.to_be_bytes());
    }

    /// One text by the simple protocol.
    pub async fn query(&mut self, sql: &str) -> Result<Answer> {
        self.message(b'Q', |body| {
            body.extend(sql.as_bytes());
            body.push(0);
        });
        self.answer().await
    }

    pub async fn prepare(&mut self, name: &str, sql: &str) -> Result<()> {
        self.message(b'P', |body| {
            body.extend(name.as_bytes());
            body.push(0);
            body.extend(sql.as_bytes());
            body.extend([0, 0, 0]);
        });
        self.message(b'S', |_| {});
        self.answer().await?.succeeded()?;
        Ok(())
    }

    /// Runs what was prepared, over these values as text.
    pub async fn execute(&mut self, name: &str, values: &[i64]) -> Result<Answer> {
        self.message(b'B', |body| {
            body.push(0);
            body.extend(name.as_bytes());
            body.extend([0, 0, 0]);
            body.extend((values.len() as u16).to_be_bytes());
            for value in values {
                let text = value.to_string();
                body.extend((text.len() as u32).to_be_bytes());
                body.extend(text.as_bytes());
            }
            body.extend([0, 0]);
        });
        self.message(b'E', |body| body.extend([0; 5]));
        self.message(b'S', |_| {});
        self.answer().await
    }

    /// Sends what is to be sent and reads up to where the server is ready again.
    async fn answer(&mut self) -> Result<Answer> {
        self.stream.write_all(&self.output).await.map_err(|error| lost(&error))?;
        self.stream.flush().await.map_err(|error| lost(&error))?;
        self.output.clear();
        let mut answer = Answer { error: None, values: Vec::new(), in_transaction: false, settings: Vec::new() };
        loop {
            let (kind, body) = self.next().await?;
            let body = &self.input[body];
            match kind {
                b'E' => {
                    let code = field(body, b'C').ok_or_else(broken)?;
                    let is_fatal = field(body, b'V').is_some_and(|severity| severity != "ERROR");
                    answer.error = Some(code);
                    if is_fatal {
                        return Ok(answer);
                    }
                }
                b'S' => answer.settings.extend(setting(body)),
                b'D' => read_row(body, &mut answer.values).ok_or_else(broken)?,
                b'Z' => {
                    answer.in_transaction = body.first().is_some_and(|status| *status != b'I');
                    return Ok(answer);
                }
                _ => {}
            }
        }
    }

    /// The next message: its kind, and where its body is in the input.
    async fn next(&mut self) -> Result<(u8, std::ops::Range<usize>)> {
        loop {
            let rest = &self.input[self.start..];
            if let Some(&[a, b, c, d]) = rest.get(1..5) {
                let length = u32::from_be_bytes([a, b, c, d]) as usize;
                if length < 4 {
                    return Err(broken());
                }
                if rest.len() > length {
                    let body = self.start + 5..self.start + 1 + length;
                    let kind = rest[0];
                    self.start = body.end;
                    return Ok((kind, body));
                }
            }
            self.input.drain(..self.start);
            self.start = 0;
            let read = self.stream.read_buf(&mut self.input).await.map_err(|error| lost(&error))?;
            if read == 0 {
                return Err(lost(&std::io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }
}

impl Answer {
    /// The error of a statement that failed.
    pub fn succeeded(self) -> Result<Answer> {
        match &self.error {
            None => Ok(self),
            Some(code) => {
                let state = SqlState::from_code(code).unwrap_or(SqlState::INTERNAL_ERROR);
                Err(Error::new(state, format!("the server refused a statement with {code}")))
            }
        }
    }

    /// Whether the server said that a setting has this value.
    pub fn says(&self, setting: &str, value: &str) -> bool {
        self.settings.iter().any(|(name, said)| name == setting && said == value)
    }

    /// The number in a column of the first row.
    pub fn number(&self, column: usize) -> Result<i64> {
        let value = self.values.get(column).and_then(Option::as_deref);
        value.and_then(|text| text.split('.').next()?.parse().ok()).ok_or_else(broken)
    }
}

/// A field of an error.
fn field(body: &[u8], kind: u8) -> Option<String> {
    let fields = body.split(|byte| *byte == 0);
    let found = fields.into_iter().find(|field| field.first() == Some(&kind))?;
    Some(String::from_utf8_lossy(&found[1..]).into_owned())
}

/// The name and the value of a setting that is reported.
fn setting(body: &[u8]) -> Option<(String, String)> {
    let mut texts = body.split(|byte| *byte == 0).map(|text| String::from_utf8_lossy(text).into_owned());
    Some((texts.next()?, texts.next()?))
}

fn read_row(mut body: &[u8], values: &mut Vec<Option<String>>) -> Option<()> {
    let columns = u16::from_be_bytes(*body.split_first_chunk::<2>()?.0);
    body = &body[2..];
    for _ in 0..columns {
        let (length, rest) = body.split_first_chunk::<4>()?;
        body = rest;
        match u32::from_be_bytes(*length) {
            u32::MAX => values.push(None),
            length => {
                let text = body.get(..length as usize)?;
                values.push(Some(String::from_utf8_lossy(text).into_owned()));
                body = &body[length as usize..];
            }
        }
    }
    Some(())
}
