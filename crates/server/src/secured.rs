//! A client's connection with TLS, which can go over to another process.
//!
//! rustls makes the handshake, and opens and seals records afterwards. It cannot be carried, and it does not give its bytes back. So
//! it is given whole records only, one at a time, and what the socket has given beyond them is kept here. Before a connection goes over,
//! the secrets are taken out of rustls, and [`Records`] goes on with them: at the process that the connection goes to, and at this one too
//! if the connection stays after all.
//!
//! rustls tells no traffic secret but keys, by which nobody can follow an update of the keys. The first secrets are kept from the handshake
//! ([`FirstSecrets`]); the one in use is found among their updates.
//!
//! Not able to go over: a connection with TLS 1.2, and one whose client waits for an update of the server's keys. That update is in rustls
//! until the server writes something.

use crate::records::{HEADER_BYTES, Opened, Records, UPDATES_MAX, take_record};
use crate::tls::{FirstSecrets, Tls};
use crate::wire::Io;
use bytes::{Buf, Bytes, BytesMut};
use std::io::{self, Read, Write};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tidepool_base::Result;
use tidepool_planner::PortableTls;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio_rustls::rustls::{ProtocolVersion, ServerConnection};

/// A record behind its header at most, of TLS 1.2, which has the longer ones.
const SEALED_MAX: usize = (1 << 14) + 2048;

/// Read from the socket at once.
const READ_BYTES: usize = 8 * 1024;

/// Data that is sealed at once.
const SEAL_BYTES: usize = 64 * 1024;

/// Buffers that grew are given back above this size.
const KEEP_BYTES: usize = 96 * 1024;

pub(crate) struct Secured {
    io: Box<dyn Io>,
    /// Read from the socket, and not opened.
    input: BytesMut,
    /// Sealed. Sent up to `sent`.
    output: Vec<u8>,
    sent: usize,
    layer: Layer,
    /// The client sends no more.
    is_over: bool,
    /// The server sends no more.
    is_shut: bool,
    /// Nothing can be read or sealed any more.
    is_broken: bool,
}

/// What opens and seals records.
enum Layer {
    Rustls(Box<Rustls>),
    Own(Box<Own>),
    /// Its state is lost.
    None,
}

struct Rustls {
    session: ServerConnection,
    first: Arc<FirstSecrets>,
    /// Records without data, which may have updated keys, since the handshake.
    silent: u32,
    /// There was one since the server wrote last.
    may_owe_update: bool,
}

struct Own {
    records: Records,
    /// Opened, and not given to the reader yet.
    data: Bytes,
}

impl Rustls {
    fn open(&mut self, record: &[u8]) -> io::Result<()> {
        let is_handshake = self.session.is_handshaking();
        let mut rest = record;
        let mut has_data = false;
        while !rest.is_empty() && self.session.read_tls(&mut rest)? > 0 {
            let state = self.session.process_new_packets();
            has_data |=
                state.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?.plaintext_bytes_to_read() > 0;
        }
        if !is_handshake && !has_data {
            self.silent = self.silent.saturating_add(1);
            self.may_owe_update = true;
        }
        Ok(())
    }

    /// `None`: there is no data now. 0: there will be none.
    fn read(&mut self, to: &mut [u8]) -> io::Result<Option<usize>> {
        match self.session.reader().read(to) {
            Ok(read) => Ok(Some(read)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Moves what is to be sent.
    fn collect(&mut self, output: &mut Vec<u8>) -> io::Result<()> {
        while self.session.wants_write() {
            self.session.write_tls(output)?;
        }
        Ok(())
    }

    fn is_portable(&self) -> bool {
        self.session.protocol_version() == Some(ProtocolVersion::TLSv1_3) && !self.session.is_handshaking()
    }

    /// Its state, for good. `None`: there is none that goes on, which is a defect.
    fn into_own(mut self) -> Option<Own> {
        let mut data = Vec::new();
        let mut part = [0; 4096];
        while let Ok(Some(read @ 1..)) = self.read(&mut part) {
            data.extend_from_slice(&part[..read]);
        }
        let suite = u16::from(self.session.negotiated_cipher_suite()?.suite());
        let extracted = self.session.dangerous_extract_secrets().ok()?;
        let [reading, writing] = self.first.take();
        let records = Records::of_extracted(suite, [&reading, &writing], [extracted.rx, extracted.tx])?;
        Some(Own { records, data: data.into() })
    }
}

impl Secured {
    fn new(io: Box<dyn Io>, input: BytesMut, layer: Layer) -> Secured {
        let (output, sent) = (Vec::new(), 0);
        Secured { io, input, output, sent, layer, is_over: false, is_shut: false, is_broken: false }
    }

    /// Makes the handshake with a client that asked for it.
    pub(crate) async fn accept(tls: &Tls, io: Box<dyn Io>) -> io::Result<Secured> {
        let (session, first) = tls.session().map_err(io::Error::other)?;
        let rustls = Rustls { session, first, silent: 0, may_owe_update: false };
        let mut secured = Secured::new(io, BytesMut::new(), Layer::Rustls(Box::new(rustls)));
        loop {
            secured.collect()?;
            secured.flush().await?;
            match &secured.layer {
                Layer::Rustls(rustls) if rustls.session.is_handshaking() => {}
                _ => return Ok(secured),
            }
            std::future::poll_fn(|context| secured.poll_record(context)).await?;
        }
    }

    /// Goes on with a connection of another process.
    pub(crate) fn of_portable(io: Box<dyn Io>, portable: &PortableTls) -> Result<Secured> {
        let records = Records::of_portable(portable.suite, &portable.reading, &portable.writing)?;
        let own = Own { records, data: Bytes::new() };
        Ok(Secured::new(io, BytesMut::from(&portable.records[..]), Layer::Own(Box::new(own))))
    }

    /// Whether it can be expected to go over at all.
    pub(crate) fn may_go_over(&self) -> bool {
        match &self.layer {
            Layer::Rustls(rustls) => rustls.is_portable(),
            Layer::Own(_) => true,
            Layer::None => false,
        }
    }

    /// What another process goes on with, and data that was opened and not read. `None` while it cannot go over. The connection goes on
    /// here afterwards, too.
    pub(crate) fn write_down(&mut self) -> Option<(PortableTls, Bytes)> {
        if !self.output.is_empty() || self.is_over || self.is_shut || self.is_broken {
            return None;
        }
        if let Layer::Rustls(rustls) = &self.layer {
            if !rustls.is_portable()
                || rustls.may_owe_update
                || rustls.silent >= UPDATES_MAX
                || rustls.session.wants_write()
            {
                return None;
            }
            if let Layer::Rustls(rustls) = std::mem::replace(&mut self.layer, Layer::None) {
                self.layer = match rustls.into_own() {
                    Some(own) => Layer::Own(Box::new(own)),
                    None => {
                        tracing::error!("the state of a connection with TLS cannot be carried: the connection ends");
                        self.is_broken = true;
                        return None;
                    }
                };
            }
        }
        let Layer::Own(own) = &self.layer else { return None };
        let (reading, writing) = own.records.to_portable();
        let portable = PortableTls { suite: own.records.suite(), reading, writing, records: self.input.to_vec() };
        Some((portable, own.data.clone()))
    }

    /// Has `output` hold all that there is to send.
    fn collect(&mut self) -> io::Result<()> {
        match &mut self.layer {
            Layer::Rustls(rustls) => rustls.collect(&mut self.output),
            Layer::Own(_) | Layer::None => Ok(()),
        }
    }

    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.output.len() {
            match ready!(Pin::new(&mut self.io).poll_write(context, &self.output[self.sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                sent => self.sent += sent,
            }
        }
        self.sent = 0;
        self.output.clear();
        if self.output.capacity() > KEEP_BYTES {
            self.output = Vec::new();
        }
        Poll::Ready(Ok(()))
    }

    /// Opens the next record. Loses nothing when it is not ready.
    fn poll_record(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A client that sends what is to be answered, and reads no answers, is not heard further.
        if self.output.len() - self.sent > SEAL_BYTES {
            ready!(self.poll_send(context))?;
        }
        let record = loop {
            if let Some(record) = take_record(&mut self.input, SEALED_MAX) {
                break record;
            }
            let missing = self.input.first_chunk::<HEADER_BYTES>().map_or(0, |header| {
                HEADER_BYTES + usize::from(u16::from_be_bytes([header[3], header[4]])) - self.input.len()
            });
            self.input.reserve(missing.max(READ_BYTES));
            if ready!(pin!(self.io.read_buf(&mut self.input)).poll(context))? == 0 {
                return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
            }
        };
        if self.input.is_empty() {
            // An idle connection holds no buffer.
            self.input = BytesMut::new();
        }
        let opened = match &mut self.layer {
            Layer::Rustls(rustls) => rustls.open(&record),
            Layer::Own(own) => match own.records.open(record, &mut self.output) {
                Ok(Opened::Data(data)) => {
                    own.data = data.freeze();
                    Ok(())
                }
                Ok(Opened::Silent) => Ok(()),
                Ok(Opened::End) => {
                    self.is_over = true;
                    Ok(())
                }
                Err(fault) => Err(io::Error::new(io::ErrorKind::InvalidData, fault.why)),
            },
            Layer::None => Err(io::ErrorKind::ConnectionAborted.into()),
        };
        if let Err(error) = &opened {
            tracing::info!("a connection with TLS ends: {error}");
            self.is_broken = true;
        }
        self.collect()?;
        if !self.output.is_empty() {
            // As far as it goes now. An error shows where something is read or written next.
            let _ = self.poll_send(context);
        }
        Poll::Ready(opened)
    }
}

impl AsyncRead for Secured {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if to.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            match &mut this.layer {
                Layer::Rustls(rustls) => {
                    if let Some(read) = rustls.read(to.initialize_unfilled())? {
                        to.advance(read);
                        this.is_over |= read == 0;
                        return Poll::Ready(Ok(()));
                    }
                }
                Layer::Own(own) if !own.data.is_empty() => {
                    let read = own.data.len().min(to.remaining());
                    to.put_slice(&own.data[..read]);
                    own.data.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Layer::Own(_) | Layer::None => {}
            }
            if this.is_broken {
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            if this.is_over {
                return Poll::Ready(Ok(()));
            }
            ready!(this.poll_record(context))?;
        }
    }
}

impl AsyncWrite for Secured {
    /// Takes no data before what was sealed is sent. What it has taken is sealed, and sent later if not now.
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.is_shut || this.is_broken {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        ready!(this.poll_send(context))?;
        let data = &data[..data.len().min(SEAL_BYTES)];
        let taken = match &mut this.layer {
            Layer::Rustls(rustls) => {
                let taken = rustls.session.writer().write(data)?;
                rustls.may_owe_update &= taken == 0;
                taken
            }
            Layer::Own(own) => {
                own.records.seal_data(data, &mut this.output);
                data.len()
            }
            Layer::None => return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        };
        this.collect()?;
        if let Poll::Ready(Err(error)) = this.poll_send(context) {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_send(context))?;
        Pin::new(&mut this.io).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !std::mem::replace(&mut this.is_shut, true) && !this.is_broken {
            match &mut this.layer {
                Layer::Rustls(rustls) => rustls.session.send_close_notify(),
                Layer::Own(own) => own.records.seal_end(&mut this.output),
                Layer::None => {}
            }
            this.collect()?;
        }
        ready!(this.poll_send(context))?;
        Pin::new(&mut this.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_base::SqlState;
    use tidepool_planner::PortableSession;
    use tokio::io::{DuplexStream, duplex};
    use tokio_rustls::rustls::crypto::ring;
    use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use tokio_rustls::rustls::{AlertDescription, CipherSuite, ClientConfig, ClientConnection, Error, RootCertStore};

    const SUITES: [CipherSuite; 3] = [
        CipherSuite::TLS13_AES_128_GCM_SHA256,
        CipherSuite::TLS13_AES_256_GCM_SHA384,
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
    ];

    /// rustls as the other side.
    struct Client {
        session: ClientConnection,
        io: DuplexStream,
    }

    impl Client {
        fn sealed(&mut self, data: &[u8]) -> Vec<u8> {
            let mut sealed = Vec::new();
            for part in data.chunks(16 * 1024) {
                self.session.writer().write_all(part).unwrap();
                while self.session.wants_write() {
                    self.session.write_tls(&mut sealed).unwrap();
                }
            }
            sealed
        }

        /// What it has to send apart from data.
        fn pending(&mut self) -> Vec<u8> {
            let mut sealed = Vec::new();
            while self.session.wants_write() {
                self.session.write_tls(&mut sealed).unwrap();
            }
            sealed
        }

        async fn send(&mut self, data: &[u8]) {
            let sealed = self.sealed(data);
            self.io.write_all(&sealed).await.unwrap();
        }

        async fn hear(&mut self) -> std::result::Result<usize, Error> {
            let mut heard = vec![0; 4096];
            let read = self.io.read(&mut heard).await.unwrap();
            assert!(read > 0, "the server is gone");
            let mut rest = &heard[..read];
            let mut bytes = 0;
            while !rest.is_empty() {
                self.session.read_tls(&mut rest).unwrap();
                bytes = self.session.process_new_packets()?.plaintext_bytes_to_read();
            }
            Ok(bytes)
        }

        async fn read(&mut self, length: usize) -> Vec<u8> {
            let mut all = Vec::new();
            while all.len() < length {
                self.hear().await.unwrap();
                let mut part = [0; 20_000];
                while let Ok(read @ 1..) = self.session.reader().read(&mut part) {
                    all.extend_from_slice(&part[..read]);
                }
            }
            all
        }

        /// What the server says at its end.
        async fn alert(&mut self) -> AlertDescription {
            loop {
                match self.hear().await {
                    Ok(_) => {}
                    Err(Error::AlertReceived(alert)) => return alert,
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }

    async fn pair(suite: CipherSuite) -> (Client, Secured) {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let certificate: CertificateDer<'static> = made.cert.der().clone();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let tls = Tls::new(vec![certificate.clone()], key, None).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate).unwrap();
        let mut provider = ring::default_provider();
        provider.cipher_suites.retain(|known| known.suite() == suite);
        let config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let session = ClientConnection::new(Arc::new(config), ServerName::try_from("localhost").unwrap()).unwrap();
        let (io, server) = duplex(1 << 20);
        let mut client = Client { session, io };
        let connecting = async {
            while client.session.is_handshaking() || client.session.wants_write() {
                let pending = client.pending();
                client.io.write_all(&pending).await.unwrap();
                if client.session.is_handshaking() {
                    client.hear().await.unwrap();
                }
            }
        };
        let ((), secured) = tokio::join!(connecting, Secured::accept(&tls, Box::new(server)));
        (client, secured.unwrap())
    }

    /// As another process goes on with it, and what that has read already.
    fn carried(mut secured: Secured) -> (Secured, Vec<u8>) {
        let (tls, data) = secured.write_down().expect("it can go over");
        let bytes = PortableSession { tls: Some(tls), input: data.to_vec(), ..PortableSession::default() }.to_bytes();
        let portable = PortableSession::from_bytes(&bytes).unwrap();
        (Secured::of_portable(secured.io, &portable.tls.unwrap()).unwrap(), portable.input)
    }

    async fn exchange(client: &mut Client, secured: &mut Secured) {
        client.send(b"a question").await;
        let mut question = [0; 10];
        secured.read_exact(&mut question).await.unwrap();
        assert_eq!(&question, b"a question");
        secured.write_all(b"an answer").await.unwrap();
        secured.flush().await.unwrap();
        assert_eq!(client.read(9).await, b"an answer");
    }

    /// Whatever there is now.
    fn read_now(secured: &mut Secured) -> Vec<u8> {
        let mut read = Vec::new();
        let mut context = Context::from_waker(std::task::Waker::noop());
        while let Poll::Ready(Ok(1..)) = pin!(secured.read_buf(&mut read)).poll(&mut context) {}
        read
    }

    #[tokio::test]
    async fn both_sides_go_on_where_the_state_went_over_and_where_it_stayed() {
        for suite in SUITES {
            let (mut client, mut secured) = pair(suite).await;
            assert!(secured.may_go_over());
            // Nothing was exchanged yet; then something was.
            for _ in 0..2 {
                secured = carried(secured).0;
                exchange(&mut client, &mut secured).await;
                exchange(&mut client, &mut secured).await;
            }
            let (mut client, mut secured) = pair(suite).await;
            exchange(&mut client, &mut secured).await;
            for _ in 0..2 {
                assert!(secured.write_down().is_some() && secured.may_go_over());
                exchange(&mut client, &mut secured).await;
            }
            // Many records, in both directions.
            secured = carried(secured).0;
            let long: Vec<u8> = (0..300_000_u32).map(|number| (number % 251) as u8).collect();
            client.send(&long).await;
            let mut read = vec![0; long.len()];
            secured.read_exact(&mut read).await.unwrap();
            assert!(read == long);
            secured.write_all(&long).await.unwrap();
            secured.flush().await.unwrap();
            assert!(client.read(long.len()).await == long);
            // Both say goodbye.
            client.session.send_close_notify();
            let goodbye = client.pending();
            client.io.write_all(&goodbye).await.unwrap();
            assert_eq!(secured.read(&mut [0; 10]).await.unwrap(), 0);
            assert!(secured.write_down().is_none());
            secured.shutdown().await.unwrap();
            let mut rest = Vec::new();
            client.io.read_to_end(&mut rest).await.unwrap();
            client.session.read_tls(&mut &rest[..]).unwrap();
            assert!(client.session.process_new_packets().unwrap().peer_has_closed());
            assert!(secured.write(b"x").await.is_err());
        }
    }

    #[tokio::test]
    async fn records_that_have_come_in_part_go_over() {
        for suite in SUITES {
            let (mut client, mut secured) = pair(suite).await;
            let mut cut = 0;
            loop {
                let sealed = client.sealed(b"some words");
                let Some((first, second)) = sealed.split_at_checked(cut) else { break };
                client.io.write_all(first).await.unwrap();
                let mut read = read_now(&mut secured);
                let (next, unread) = carried(secured);
                secured = next;
                read.extend(unread);
                client.io.write_all(second).await.unwrap();
                read.extend(read_now(&mut secured));
                assert_eq!(read, b"some words", "{suite:?}, cut at {cut}");
                cut += 1;
            }
            assert!(cut > 30);
        }
    }

    #[tokio::test]
    async fn what_was_opened_and_not_read_goes_over() {
        for suite in SUITES {
            for own in [false, true] {
                let (mut client, mut secured) = pair(suite).await;
                if own {
                    secured = carried(secured).0;
                }
                let sealed = [client.sealed(b"first"), client.sealed(b"second"), client.sealed(b"third")].concat();
                client.io.write_all(&sealed[..sealed.len() - 1]).await.unwrap();
                let mut read = [0; 2];
                secured.read_exact(&mut read).await.unwrap();
                // Here, too.
                assert_eq!(&secured.write_down().unwrap().1[..], b"rst");
                let (mut next, unread) = carried(secured);
                assert_eq!(unread, b"rst");
                client.io.write_all(&sealed[sealed.len() - 1..]).await.unwrap();
                let mut rest = [0; 11];
                next.read_exact(&mut rest).await.unwrap();
                assert_eq!(&rest, b"secondthird");
                exchange(&mut client, &mut next).await;
            }
        }
    }

    #[tokio::test]
    async fn keys_are_updated_by_either_side() {
        for suite in SUITES {
            // Before rustls gives its state away.
            let (mut client, mut secured) = pair(suite).await;
            client.session.refresh_traffic_keys().unwrap();
            let update = client.pending();
            client.io.write_all(&update).await.unwrap();
            assert!(read_now(&mut secured).is_empty());
            assert!(secured.write_down().is_none(), "the client waits for an update");
            exchange(&mut client, &mut secured).await;
            exchange(&mut client, &mut secured).await;
            secured = carried(secured).0;
            exchange(&mut client, &mut secured).await;
            // And afterwards.
            for _ in 0..3 {
                client.session.refresh_traffic_keys().unwrap();
                exchange(&mut client, &mut secured).await;
                exchange(&mut client, &mut secured).await;
                secured = carried(secured).0;
                exchange(&mut client, &mut secured).await;
            }
            // A key seals so many records.
            let Layer::Own(own) = &mut secured.layer else { panic!("its state was carried") };
            own.records.set_records_max(5);
            for _ in 0..23 {
                exchange(&mut client, &mut secured).await;
            }
            secured = carried(secured).0;
            exchange(&mut client, &mut secured).await;
        }
    }

    #[tokio::test]
    async fn wrong_records_end_a_connection_with_an_alert() {
        let flipped = |client: &mut Client| {
            let mut sealed = client.sealed(b"some words");
            let last = sealed.len() - 1;
            sealed[last] ^= 1;
            sealed
        };
        let twice = |client: &mut Client| {
            let sealed = client.sealed(b"some words");
            [&sealed[..], &sealed].concat()
        };
        let updates = |client: &mut Client| {
            (0..40).for_each(|_| client.session.refresh_traffic_keys().unwrap());
            client.pending()
        };
        type Wrong<'a> = (&'a dyn Fn(&mut Client) -> Vec<u8>, AlertDescription);
        let all: [Wrong<'_>; 8] = [
            (&flipped, AlertDescription::BadRecordMac),
            (&twice, AlertDescription::BadRecordMac),
            (&|_| vec![23, 3, 3, 0, 0], AlertDescription::BadRecordMac),
            (&|_| [vec![23, 3, 3, 0x41, 0x01], vec![0; 0x4101]].concat(), AlertDescription::RecordOverflow),
            (&|_| vec![20, 3, 3, 0, 1, 1], AlertDescription::UnexpectedMessage),
            (&|_| vec![21, 3, 3, 0, 2, 2, 40], AlertDescription::UnexpectedMessage),
            (&|_| b"GET / HTTP/1.1\r\n".to_vec(), AlertDescription::UnexpectedMessage),
            (&updates, AlertDescription::UnexpectedMessage),
        ];
        for suite in SUITES {
            for (number, (wrong, alert)) in all.iter().enumerate() {
                let (mut client, secured) = pair(suite).await;
                let mut secured = carried(secured).0;
                let wrong = wrong(&mut client);
                client.io.write_all(&wrong).await.unwrap();
                let mut read = Vec::new();
                let error = secured.read_to_end(&mut read).await.unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{number}");
                secured.flush().await.unwrap();
                assert_eq!(client.alert().await, *alert, "{number}");
                assert!(secured.read(&mut [0; 1]).await.is_err() && secured.write(b"x").await.is_err());
                assert!(secured.write_down().is_none());
            }
        }
    }

    #[tokio::test]
    async fn an_alert_of_the_client_ends_a_connection() {
        let (mut client, secured) = pair(SUITES[0]).await;
        let mut secured = carried(secured).0;
        // It is given what nobody sealed.
        client.session.read_tls(&mut &[&[23, 3, 3, 0, 30][..], &[0; 30]].concat()[..]).unwrap();
        client.session.process_new_packets().unwrap_err();
        let alert = client.pending();
        client.io.write_all(&alert).await.unwrap();
        let error = secured.read(&mut [0; 1]).await.unwrap_err();
        assert_eq!(error.to_string(), "the client sent alert 20");
        // A client that is gone without a word.
        let (client, secured) = pair(SUITES[0]).await;
        let mut secured = carried(secured).0;
        drop(client);
        assert_eq!(secured.read(&mut [0; 1]).await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[tokio::test]
    async fn what_was_taken_is_sent_though_nobody_waits_for_it() {
        for own in [false, true] {
            let (mut client, mut secured) = pair(SUITES[0]).await;
            if own {
                secured = carried(secured).0;
            }
            // Its tickets are there. From now on little is on its way at once.
            client.hear().await.unwrap();
            let (io, narrow) = duplex(16);
            client.io = io;
            secured.io = Box::new(narrow);
            let mut sent = Vec::new();
            for number in 0..50_u8 {
                let data = vec![number; 100];
                let mut context = Context::from_waker(std::task::Waker::noop());
                // Of two tries, one finds that the record before is not sent.
                if let Poll::Ready(taken) = Pin::new(&mut secured).poll_write(&mut context, &data) {
                    sent.extend_from_slice(&data[..taken.unwrap()]);
                }
                assert!(secured.write_down().is_none(), "a record is sent in part");
                if number % 3 == 0 {
                    let mut heard = [0; 40];
                    let read = client.io.read(&mut heard).await.unwrap();
                    client.session.read_tls(&mut &heard[..read]).unwrap();
                    client.session.process_new_packets().unwrap();
                }
            }
            let length = sent.len();
            let mut early = vec![0; length];
            let read = client.session.reader().read(&mut early).unwrap_or(0);
            early.truncate(read);
            let (flushed, rest) = tokio::join!(secured.flush(), client.read(length - read));
            flushed.unwrap();
            assert_eq!([early, rest].concat(), sent, "{own}");
            assert!(secured.write_down().is_some());
        }
    }

    #[tokio::test]
    async fn a_connection_with_tls_1_2_stays() {
        let (mut client, mut secured) = pair(CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256).await;
        exchange(&mut client, &mut secured).await;
        assert!(!secured.may_go_over() && secured.write_down().is_none());
        exchange(&mut client, &mut secured).await;
    }

    #[tokio::test]
    async fn damaged_state_is_an_error() {
        let (_client, mut secured) = pair(SUITES[1]).await;
        let (right, _) = secured.write_down().unwrap();
        let code = |change: &dyn Fn(&mut PortableTls)| {
            let (io, _) = duplex(1);
            let mut wrong = right.clone();
            change(&mut wrong);
            Secured::of_portable(Box::new(io), &wrong).err().map(|error| error.code())
        };
        assert_eq!(code(&|_| {}), None);
        assert_eq!(code(&|wrong| wrong.suite = 0x1305), Some(SqlState::FEATURE_NOT_SUPPORTED));
        // Another suite's secret is longer or shorter.
        assert_eq!(code(&|wrong| wrong.suite = 0x1301), Some(SqlState::DATA_CORRUPTED));
        assert_eq!(code(&|wrong| wrong.reading.secret.push(0)), Some(SqlState::DATA_CORRUPTED));
        assert_eq!(code(&|wrong| wrong.writing.secret.clear()), Some(SqlState::DATA_CORRUPTED));
        assert_eq!(code(&|wrong| wrong.writing.sequence = u64::MAX), Some(SqlState::DATA_CORRUPTED));
    }
}
