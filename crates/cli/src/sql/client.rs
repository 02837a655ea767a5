//! A small client of the protocol: start-up, simple queries, COPY, cancel. The same over a network, and over a pipe to a
//! server in this very process.

use super::url::{SslMode, Url};
use bytes::{Buf, Bytes, BytesMut};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tidepool_base::{Error, Result, SqlState};
use tidepool_database::scram::ClientExchange;
use tidepool_server::Service;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{self, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// A socket that is given one buffer at a time. Given several, a socket that the server has closed raises SIGPIPE, which ends this program
/// (`main`). Given one, it returns an error.
struct OneBuffer(TcpStream);

impl AsyncRead for OneBuffer {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, to)
    }
}

impl AsyncWrite for OneBuffer {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// What a client connects to.
#[derive(Clone)]
pub enum Target {
    Server(Url),
    Process(Arc<Service>),
}

/// A column of a result.
#[derive(Clone, Debug)]
pub struct Column {
    pub name: String,
    pub type_oid: u32,
}

/// An error or a notice as the server sent it.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub severity: String,
    pub code: String,
    pub message: String,
    pub detail: Option<String>,
    pub hint: Option<String>,
    pub context: Option<String>,
    /// One-based, in characters of the statement.
    pub position: Option<usize>,
}

/// What the server says while a query runs.
#[derive(Debug)]
pub enum Event {
    Columns(Vec<Column>),
    Row(Vec<Option<Bytes>>),
    /// With the command's tag.
    Complete(String),
    Empty,
    Failed(Report),
    Notice(Report),
    /// The server waits for `copy_data`, then `copy_done` or `copy_fail`.
    CopyIn,
    CopyOut,
    CopyData(Bytes),
    /// The end of the query.
    Ready,
}

pub struct Client {
    io: Box<dyn Io>,
    input: BytesMut,
    output: Vec<u8>,
    target: Target,
    process_id: i32,
    secret: Bytes,
    pub in_transaction: bool,
    pub transaction_failed: bool,
    pub server_version: String,
    pub encrypted: bool,
}

fn broken(error: &std::io::Error) -> Error {
    Error::new(SqlState::CONNECTION_FAILURE, "the connection to the server was lost").with_detail(format!("{error}."))
}

fn misunderstood() -> Error {
    Error::new(SqlState::PROTOCOL_VIOLATION, "the server's answer is not PostgreSQL's protocol")
}

/// Ends the statement that runs on a connection, from beside it.
#[derive(Clone)]
pub struct Canceller {
    target: Target,
    process_id: i32,
    secret: Bytes,
}

impl Canceller {
    pub async fn cancel(&self) -> Result<()> {
        let (mut io, _) = open(&self.target).await?;
        let mut packet = Vec::new();
        packet.extend_from_slice(&(12 + self.secret.len() as u32).to_be_bytes());
        packet.extend_from_slice(&80_877_102u32.to_be_bytes());
        packet.extend_from_slice(&self.process_id.to_be_bytes());
        packet.extend_from_slice(&self.secret);
        io.write_all(&packet).await.map_err(|error| broken(&error))?;
        // The server answers nothing and closes.
        let _ = io.read(&mut [0]).await;
        Ok(())
    }
}

/// A stream on which start-up can begin, and whether it is encrypted.
async fn open(target: &Target) -> Result<(Box<dyn Io>, bool)> {
    let url = match target {
        Target::Process(service) => return Ok((Box::new(service.connect()), false)),
        Target::Server(url) => url,
    };
    let failed = |error: std::io::Error| {
        Error::new(SqlState::CONNECTION_FAILURE, format!("could not connect to {}:{}: {error}", url.host, url.port))
            .with_hint("Is the server running? Start one with: tidepool serve.")
    };
    let mut stream = TcpStream::connect((url.host.as_str(), url.port)).await.map_err(failed)?;
    let _ = stream.set_nodelay(true);
    if url.ssl_mode == SslMode::Disable {
        return Ok((Box::new(stream), false));
    }
    let mut request = 8u32.to_be_bytes().to_vec();
    request.extend_from_slice(&80_877_103u32.to_be_bytes());
    stream.write_all(&request).await.map_err(failed)?;
    match (stream.read_u8().await.map_err(failed)?, url.ssl_mode) {
        (b'S', _) => {
            let name = ServerName::try_from(url.host.clone()).map_err(|_| {
                Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("invalid host: \"{}\"", url.host))
            })?;
            let connector = TlsConnector::from(Arc::new(tls_config(url)?));
            Ok((Box::new(connector.connect(name, OneBuffer(stream)).await.map_err(failed)?), true))
        }
        (b'N', SslMode::Prefer) => Ok((Box::new(stream), false)),
        (b'N', _) => Err(Error::new(SqlState::CONNECTION_FAILURE, "the server does not support TLS")
            .with_hint("Connect with sslmode=prefer or sslmode=disable.")),
        _ => Err(misunderstood()),
    }
}

fn tls_config(url: &Url) -> Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::internal(error.to_string()))?;
    let Some(path) = url.ssl_root_certificate.as_ref().filter(|_| url.ssl_mode == SslMode::VerifyFull) else {
        // libpq's meaning of `prefer` and `require`: against listening in, not against impostors.
        return Ok(builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate { provider }))
            .with_no_client_auth());
    };
    let pem =
        std::fs::read(path).map_err(|error| Error::io(format_args!("read file \"{}\"", path.display()), &error))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let added = certificate
            .map_err(|error| error.to_string())
            .and_then(|certificate| roots.add(certificate).map_err(|error| error.to_string()));
        added.map_err(|why| {
            Error::new(SqlState::INVALID_PARAMETER_VALUE, format!("could not use certificate \"{}\"", path.display()))
                .with_detail(format!("{why}."))
        })?;
    }
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

/// Takes any certificate whose private key the server has.
#[derive(Debug)]
struct AnyCertificate {
    provider: Arc<rustls::crypto::CryptoProvider>,
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl Client {
    /// `ask_password` is called when the server wants one that the URL does not have.
    pub async fn connect(target: Target, ask_password: &mut dyn FnMut() -> Result<String>) -> Result<Client> {
        let (io, encrypted) = open(&target).await?;
        let mut client = Client {
            io,
            input: BytesMut::new(),
            output: Vec::new(),
            target,
            process_id: 0,
            secret: Bytes::new(),
            in_transaction: false,
            transaction_failed: false,
            server_version: String::new(),
            encrypted,
        };
        client.start(ask_password).await?;
        Ok(client)
    }

    async fn start(&mut self, ask_password: &mut dyn FnMut() -> Result<String>) -> Result<()> {
        let mut parameters = vec![
            ("client_encoding".to_owned(), "UTF8".to_owned()),
            ("application_name".to_owned(), "tidepool sql".to_owned()),
        ];
        let password = match &self.target {
            Target::Server(url) => {
                parameters.push(("user".to_owned(), url.user.clone()));
                parameters.push(("database".to_owned(), url.database.clone()));
                parameters.extend(url.parameters.iter().cloned());
                url.password.clone()
            }
            Target::Process(_) => {
                parameters.push(("user".to_owned(), tidepool_server::ROLE_NAME.to_owned()));
                parameters.push(("database".to_owned(), tidepool_server::DATABASE_NAME.to_owned()));
                None
            }
        };
        let mut packet = vec![0; 4];
        packet.extend_from_slice(&(3u32 << 16).to_be_bytes());
        for text in parameters.iter().flat_map(|(name, value)| [name, value]) {
            packet.extend_from_slice(text.as_bytes());
            packet.push(0);
        }
        packet.push(0);
        let length = (packet.len() as u32).to_be_bytes();
        packet[..4].copy_from_slice(&length);
        self.output = packet;
        self.flush().await?;
        let mut password = password;
        let mut scram = None;
        let mut proof = None;
        loop {
            let (kind, mut body) = self.message().await?;
            match kind {
                b'E' => return Err(report(body).into_error()),
                b'S' => {
                    let (name, value) = (string(&mut body)?, string(&mut body)?);
                    if name == "server_version" {
                        self.server_version = value;
                    }
                }
                b'K' if body.len() >= 4 => {
                    self.process_id = body.get_i32();
                    self.secret = body;
                }
                b'Z' => return Ok(()),
                b'R' if body.len() >= 4 => match body.get_u32() {
                    0 => (),
                    10 => {
                        if password.is_none() {
                            password = Some(ask_password()?);
                        }
                        let (exchange, first) = ClientExchange::start();
                        let mut answer = b"SCRAM-SHA-256\0".to_vec();
                        answer.extend_from_slice(&(first.len() as u32).to_be_bytes());
                        answer.extend_from_slice(first.as_bytes());
                        scram = Some(exchange);
                        self.send(b'p', &answer);
                        self.flush().await?;
                    }
                    11 => {
                        let exchange = scram.take().ok_or_else(misunderstood)?;
                        let (expected, last) = exchange.respond(&body, password.as_deref().unwrap_or_default())?;
                        proof = Some(expected);
                        self.send(b'p', last.as_bytes());
                        self.flush().await?;
                    }
                    12 => {
                        if !proof.take().is_some_and(|proof| proof.verify(&body)) {
                            return Err(Error::new(
                                SqlState::INVALID_PASSWORD,
                                "the server does not know the password",
                            ));
                        }
                    }
                    other => {
                        return Err(Error::unsupported(format!("the server wants authentication method {other}"))
                            .with_detail("This client knows SCRAM-SHA-256."));
                    }
                },
                b'v' | b'N' => (),
                _ => return Err(misunderstood()),
            }
        }
    }

    pub fn canceller(&self) -> Canceller {
        Canceller { target: self.target.clone(), process_id: self.process_id, secret: self.secret.clone() }
    }

    /// Sends a query; `event` gives what comes of it.
    pub async fn query(&mut self, sql: &str) -> Result<()> {
        let mut body = sql.as_bytes().to_vec();
        body.push(0);
        self.send(b'Q', &body);
        self.flush().await
    }

    pub async fn copy_data(&mut self, data: &[u8]) -> Result<()> {
        self.send(b'd', data);
        self.flush().await
    }

    pub async fn copy_done(&mut self) -> Result<()> {
        self.send(b'c', &[]);
        self.flush().await
    }

    pub async fn copy_fail(&mut self, why: &str) -> Result<()> {
        let mut body = why.replace('\0', " ").into_bytes();
        body.push(0);
        self.send(b'f', &body);
        self.flush().await
    }

    /// An event that is there already or arrives within no time at all.
    pub async fn event_now(&mut self) -> Option<Result<Event>> {
        tokio::time::timeout(std::time::Duration::ZERO, self.event()).await.ok()
    }

    /// Loses nothing when dropped.
    pub async fn event(&mut self) -> Result<Event> {
        loop {
            let (kind, mut body) = self.message().await?;
            return Ok(match kind {
                b'T' => {
                    let count = number(&mut body)?;
                    let mut columns = Vec::with_capacity(usize::from(count));
                    for _ in 0..count {
                        let name = string(&mut body)?;
                        if body.len() < 18 {
                            return Err(misunderstood());
                        }
                        body.advance(6);
                        columns.push(Column { name, type_oid: body.get_u32() });
                        body.advance(8);
                    }
                    Event::Columns(columns)
                }
                b'D' => {
                    let count = number(&mut body)?;
                    let values = (0..count).map(|_| value(&mut body)).collect::<Result<_>>()?;
                    Event::Row(values)
                }
                b'C' => Event::Complete(string(&mut body)?),
                b'I' => Event::Empty,
                b'E' => Event::Failed(report(body)),
                b'N' => Event::Notice(report(body)),
                b'G' => Event::CopyIn,
                b'H' => Event::CopyOut,
                b'd' => Event::CopyData(body),
                b'Z' => {
                    let status = body.first().copied().ok_or_else(misunderstood)?;
                    self.in_transaction = status != b'I';
                    self.transaction_failed = status == b'E';
                    Event::Ready
                }
                b'S' | b'A' | b'c' => continue,
                _ => return Err(misunderstood()),
            });
        }
    }

    /// Says goodbye.
    pub async fn close(mut self) {
        self.send(b'X', &[]);
        let _ = self.flush().await;
        let _ = self.io.shutdown().await;
    }

    fn send(&mut self, kind: u8, body: &[u8]) {
        self.output.push(kind);
        self.output.extend_from_slice(&(body.len() as u32 + 4).to_be_bytes());
        self.output.extend_from_slice(body);
    }

    async fn flush(&mut self) -> Result<()> {
        let written = self.io.write_all(&self.output).await;
        self.output.clear();
        match written {
            Ok(()) => self.io.flush().await.map_err(|error| broken(&error)),
            Err(error) => Err(broken(&error)),
        }
    }

    async fn message(&mut self) -> Result<(u8, Bytes)> {
        loop {
            if let Some(header) = self.input.first_chunk::<5>() {
                let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
                if !(4..1 << 30).contains(&length) {
                    return Err(misunderstood());
                }
                if self.input.len() > length {
                    let mut message = self.input.split_to(length + 1).freeze();
                    let kind = message.get_u8();
                    message.advance(4);
                    return Ok((kind, message));
                }
            }
            self.input.reserve(64 * 1024);
            let read = self.io.read_buf(&mut self.input).await.map_err(|error| broken(&error))?;
            if read == 0 {
                return Err(broken(&std::io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }
}

fn number(body: &mut Bytes) -> Result<u16> {
    if body.len() < 2 { Err(misunderstood()) } else { Ok(body.get_u16()) }
}

fn string(body: &mut Bytes) -> Result<String> {
    let len = body.iter().position(|byte| *byte == 0).ok_or_else(misunderstood)?;
    let text = body.split_to(len);
    body.advance(1);
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn value(body: &mut Bytes) -> Result<Option<Bytes>> {
    if body.len() < 4 {
        return Err(misunderstood());
    }
    match usize::try_from(body.get_i32()) {
        Err(_) => Ok(None),
        Ok(len) if len <= body.len() => Ok(Some(body.split_to(len))),
        Ok(_) => Err(misunderstood()),
    }
}

fn report(mut body: Bytes) -> Report {
    let mut report = Report::default();
    while let Some(kind) = body.first().copied().filter(|kind| *kind != 0) {
        body.advance(1);
        let Ok(text) = string(&mut body) else { break };
        match kind {
            b'V' => report.severity = text,
            b'C' => report.code = text,
            b'M' => report.message = text,
            b'D' => report.detail = Some(text),
            b'H' => report.hint = Some(text),
            b'W' => report.context = Some(text),
            b'P' => report.position = text.parse().ok(),
            _ => (),
        }
    }
    report
}

impl Report {
    pub fn into_error(self) -> Error {
        let code = SqlState::from_code(&self.code).unwrap_or(SqlState::INTERNAL_ERROR);
        let mut error = Error::new(code, self.message);
        if let Some(detail) = self.detail {
            error = error.with_detail(detail);
        }
        if let Some(hint) = self.hint {
            error = error.with_hint(hint);
        }
        if let Some(context) = self.context {
            error = error.with_context(context);
        }
        error
    }
}
