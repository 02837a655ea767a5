//! TLS: certificate and key from PEM files, the certificate's hash for channel binding, and the first secrets of each connection.

use parking_lot::Mutex;
use sha2::{Digest, Sha256, Sha384, Sha512};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, KeyLog, ServerConfig, ServerConnection};
use zeroize::Zeroizing;

#[derive(Clone)]
pub(crate) struct Tls {
    config: Arc<ServerConfig>,
    /// `tls-server-end-point` (RFC 5929). `None` for a certificate whose signature names no hash of its own.
    pub(crate) end_point: Option<Arc<[u8]>>,
}

impl Tls {
    pub(crate) fn load(certificate: &Path, key: &Path) -> Result<Tls> {
        let read = |path: &Path| {
            std::fs::read(path).map_err(|error| Error::io(format_args!("read file \"{}\"", path.display()), &error))
        };
        let wrong = |path: &Path, why: String| {
            Error::new(SqlState::CONFIG_FILE_ERROR, format!("could not use TLS file \"{}\"", path.display()))
                .with_detail(why)
        };
        let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&read(certificate)?)
            .collect::<Result<_, _>>()
            .map_err(|error| wrong(certificate, format!("{error}.")))?;
        let Some(end_point) = chain.first().map(|own| end_point(own)) else {
            return Err(wrong(certificate, "The file has no certificate in PEM form.".to_owned()));
        };
        check_access(key)?;
        let private = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| {
            wrong(
                key,
                match error {
                    pem::Error::NoItemsFound => "The file has no private key in PEM form.".to_owned(),
                    other => format!("{other}."),
                },
            )
        })?;
        Tls::new(chain, private, end_point).map_err(|error| wrong(key, format!("{error}.")))
    }

    pub(crate) fn new(
        chain: Vec<CertificateDer<'static>>,
        private: PrivateKeyDer<'static>,
        end_point: Option<Vec<u8>>,
    ) -> std::result::Result<Tls, rustls::Error> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, private)?;
        config.alpn_protocols = vec![b"postgresql".to_vec()];
        // A connection that goes over to another process takes its secrets with it.
        config.enable_secret_extraction = true;
        Ok(Tls { config: Arc::new(config), end_point: end_point.map(Arc::from) })
    }

    /// For one more client, before its handshake.
    pub(crate) fn session(&self) -> std::result::Result<(ServerConnection, Arc<FirstSecrets>), rustls::Error> {
        let first = Arc::new(FirstSecrets::default());
        let mut config = (*self.config).clone();
        config.key_log = first.clone();
        Ok((ServerConnection::new(Arc::new(config))?, first))
    }
}

/// The first traffic secrets of a connection with TLS 1.3, of which all later ones are made: of what the client sends, and of what the server
/// sends. rustls tells them only here.
#[derive(Default)]
pub(crate) struct FirstSecrets(Mutex<[Zeroizing<Vec<u8>>; 2]>);

impl FirstSecrets {
    pub(crate) fn take(&self) -> [Zeroizing<Vec<u8>>; 2] {
        std::mem::take(&mut self.0.lock())
    }

    fn place(label: &str) -> Option<usize> {
        ["CLIENT_TRAFFIC_SECRET_0", "SERVER_TRAFFIC_SECRET_0"].iter().position(|known| *known == label)
    }
}

impl KeyLog for FirstSecrets {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        if let Some(place) = FirstSecrets::place(label) {
            self.0.lock()[place] = Zeroizing::new(secret.to_vec());
        }
    }

    fn will_log(&self, label: &str) -> bool {
        FirstSecrets::place(label).is_some()
    }
}

impl std::fmt::Debug for FirstSecrets {
    /// Without the secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FirstSecrets")
    }
}

/// F0000 for a private key that others than the server's user may read, as PostgreSQL refuses it.
fn check_access(key: &Path) -> Result<()> {
    let metadata = std::fs::metadata(key)
        .map_err(|error| Error::io(format_args!("access private key file \"{}\"", key.display()), &error))?;
    let shown = key.display();
    if !metadata.is_file() {
        return Err(Error::new(
            SqlState::CONFIG_FILE_ERROR,
            format!("private key file \"{shown}\" is not a regular file"),
        ));
    }
    let own = std::fs::metadata("/proc/self").map_err(|error| Error::io("find out the server's user", &error))?.uid();
    if metadata.uid() != own && metadata.uid() != 0 {
        let message = format!("private key file \"{shown}\" must be owned by the database user or root");
        return Err(Error::new(SqlState::CONFIG_FILE_ERROR, message));
    }
    // Of root's keys a group may read, which the server's user is of.
    let others = if metadata.uid() == own { 0o077 } else { 0o037 };
    if metadata.mode() & others != 0 {
        return Err(Error::new(
            SqlState::CONFIG_FILE_ERROR,
            format!("private key file \"{shown}\" has group or world access"),
        )
        .with_detail(
            "File must have permissions u=rw (0600) or less if owned by the database user, or permissions u=rw,g=r (0640) \
             or less if owned by root.",
        ));
    }
    Ok(())
}

/// The hash of a certificate by the hash function of its signature; MD5 and SHA-1 count as SHA-256.
fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    // Certificate ::= SEQUENCE { tbsCertificate SEQUENCE, signatureAlgorithm SEQUENCE { algorithm OID, … }, … }
    let (0x30, certificate_body, _) = element(certificate)? else { return None };
    let (0x30, _, rest) = element(certificate_body)? else { return None };
    let (0x30, algorithm, _) = element(rest)? else { return None };
    let (0x06, oid, _) = element(algorithm)? else { return None };
    const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01]; // 1.2.840.113549.1.1
    const ECDSA_SHA1: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x01]; // 1.2.840.10045.4.1
    const ECDSA_SHA2: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03]; // 1.2.840.10045.4.3
    let bits = if oid == ECDSA_SHA1 {
        256
    } else {
        match (oid.strip_prefix(RSA), oid.strip_prefix(ECDSA_SHA2)) {
            (Some([4 | 5 | 11]), _) | (_, Some([2])) => 256,
            (Some([12]), _) | (_, Some([3])) => 384,
            (Some([13]), _) | (_, Some([4])) => 512,
            _ => return None,
        }
    };
    Some(match bits {
        384 => Sha384::digest(certificate).to_vec(),
        512 => Sha512::digest(certificate).to_vec(),
        _ => Sha256::digest(certificate).to_vec(),
    })
}

/// The first DER element: its tag, its content, and what follows it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f)).filter(|(bytes, _)| bytes.len() <= 4)?;
        (bytes.iter().fold(0, |len, byte| len << 8 | usize::from(*byte)), rest)
    };
    let (content, rest) = rest.split_at_checked(len)?;
    Some((tag, content, rest))
}
