//! Records of TLS 1.3 (RFC 8446, section 5), opened and sealed by what a handshake has left behind.
//!
//! rustls makes the handshake and serves the connection. Its state cannot go to another process, or come from one. So a connection that a
//! switch-over has stopped goes on with the records of this module, at whichever of the two processes serves it. The state is small: the
//! cipher suite, and for each direction the traffic secret and the number of the next record.
//!
//! Nothing here reads or writes a socket ([`crate::secured`]).

use bytes::BytesMut;
use ring::{aead, hkdf};
use tidepool_base::{Error, Result};
use tidepool_planner::PortableTraffic;
use tokio_rustls::rustls::{CipherSuite, ConnectionTrafficSecrets};
use zeroize::Zeroizing;

/// The type of a record, its version, and the length of what follows.
pub(crate) const HEADER_BYTES: usize = 5;

/// Bytes of content in one record at most, and of the record behind its header: the content, its type, padding, and the tag.
const CONTENT_MAX: usize = 1 << 14;
const SEALED_MAX: usize = CONTENT_MAX + 256;

const TAG_BYTES: usize = 16;
const IV_BYTES: usize = 12;

/// A direction ends here. No connection sends so many records.
const SEQUENCE_MAX: u64 = u64::MAX - (1 << 16);

/// Updates of a traffic secret that are looked through for the one that rustls uses.
pub(crate) const UPDATES_MAX: u32 = 4096;

/// Records in a row that say nothing. A client that sends more only keeps the server busy.
const SILENT_MAX: u32 = 24;

/// Types of content.
const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;

const WARNING: u8 = 1;
const FATAL: u8 = 2;

/// The message that moves its sender's direction to the next traffic secret, and whether it asks for the same in return.
const KEY_UPDATE: [u8; 4] = [24, 0, 0, 1];
const UPDATE_NOT_REQUESTED: u8 = 0;
const UPDATE_REQUESTED: u8 = 1;

/// Descriptions of alerts.
const CLOSE_NOTIFY: u8 = 0;
const UNEXPECTED_MESSAGE: u8 = 10;
const BAD_RECORD_MAC: u8 = 20;
const RECORD_OVERFLOW: u8 = 22;
const ILLEGAL_PARAMETER: u8 = 47;
const DECODE_ERROR: u8 = 50;
const INTERNAL_ERROR: u8 = 80;
const USER_CANCELED: u8 = 90;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Suite {
    Aes128Gcm,
    Aes256Gcm,
    ChaCha20Poly1305,
}

impl Suite {
    /// `None`: none of TLS 1.3 that the server offers.
    fn of_code(code: u16) -> Option<Suite> {
        match CipherSuite::from(code) {
            CipherSuite::TLS13_AES_128_GCM_SHA256 => Some(Suite::Aes128Gcm),
            CipherSuite::TLS13_AES_256_GCM_SHA384 => Some(Suite::Aes256Gcm),
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => Some(Suite::ChaCha20Poly1305),
            _ => None,
        }
    }

    fn code(self) -> u16 {
        u16::from(match self {
            Suite::Aes128Gcm => CipherSuite::TLS13_AES_128_GCM_SHA256,
            Suite::Aes256Gcm => CipherSuite::TLS13_AES_256_GCM_SHA384,
            Suite::ChaCha20Poly1305 => CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
        })
    }

    fn cipher(self) -> &'static aead::Algorithm {
        match self {
            Suite::Aes128Gcm => &aead::AES_128_GCM,
            Suite::Aes256Gcm => &aead::AES_256_GCM,
            Suite::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
        }
    }

    fn hash(self) -> hkdf::Algorithm {
        match self {
            Suite::Aes128Gcm | Suite::ChaCha20Poly1305 => hkdf::HKDF_SHA256,
            Suite::Aes256Gcm => hkdf::HKDF_SHA384,
        }
    }

    fn secret_bytes(self) -> usize {
        self.hash().hmac_algorithm().digest_algorithm().output_len()
    }

    /// Records that one key may seal. More of them would tell an observer something about the content.
    fn records_max(self) -> u64 {
        match self {
            Suite::Aes128Gcm | Suite::Aes256Gcm => 1 << 24,
            Suite::ChaCha20Poly1305 => SEQUENCE_MAX,
        }
    }

    fn expand(self, secret: &[u8], label: &[u8], length: usize) -> Zeroizing<Vec<u8>> {
        struct Length(usize);
        impl hkdf::KeyType for Length {
            fn len(&self) -> usize {
                self.0
            }
        }
        let secret = hkdf::Prk::new_less_safe(self.hash(), secret);
        let label = [b"tls13 ", label].concat();
        let info = [&(length as u16).to_be_bytes()[..], &[label.len() as u8], &label, &[0]];
        let mut expanded = Zeroizing::new(vec![0; length]);
        let filled = secret.expand(&info, Length(length)).and_then(|made| made.fill(&mut expanded));
        filled.expect("so few bytes can be made of a secret");
        expanded
    }

    fn next_secret(self, secret: &[u8]) -> Zeroizing<Vec<u8>> {
        self.expand(secret, b"traffic upd", self.secret_bytes())
    }

    fn key(self, secret: &[u8]) -> Zeroizing<Vec<u8>> {
        self.expand(secret, b"key", self.cipher().key_len())
    }

    fn iv(self, secret: &[u8]) -> Zeroizing<Vec<u8>> {
        self.expand(secret, b"iv", IV_BYTES)
    }
}

/// One direction of a connection.
struct Traffic {
    secret: Zeroizing<Vec<u8>>,
    key: aead::LessSafeKey,
    iv: [u8; IV_BYTES],
    /// The number of the next record.
    sequence: u64,
}

impl Traffic {
    /// The secret has as many bytes as the suite's have.
    fn new(suite: Suite, secret: Zeroizing<Vec<u8>>, sequence: u64) -> Traffic {
        let key = aead::UnboundKey::new(suite.cipher(), &suite.key(&secret)).expect("a key of the cipher's length");
        let mut iv = [0; IV_BYTES];
        iv.copy_from_slice(&suite.iv(&secret));
        Traffic { secret, key: aead::LessSafeKey::new(key), iv, sequence }
    }

    fn of_portable(suite: Suite, portable: &PortableTraffic) -> Result<Traffic> {
        if portable.secret.len() != suite.secret_bytes() || portable.sequence >= SEQUENCE_MAX {
            return Err(Error::corrupted("the encryption of a session that was passed on is damaged"));
        }
        Ok(Traffic::new(suite, portable.secret.clone(), portable.sequence))
    }

    fn to_portable(&self) -> PortableTraffic {
        PortableTraffic { secret: self.secret.clone(), sequence: self.sequence }
    }

    /// With the secret that rustls uses, which is the first one or one of its updates.
    fn of_extracted(
        suite: Suite,
        first: &[u8],
        (sequence, extracted): (u64, ConnectionTrafficSecrets),
    ) -> Option<Traffic> {
        let (key, iv) = match (suite, &extracted) {
            (Suite::Aes128Gcm, ConnectionTrafficSecrets::Aes128Gcm { key, iv })
            | (Suite::Aes256Gcm, ConnectionTrafficSecrets::Aes256Gcm { key, iv })
            | (Suite::ChaCha20Poly1305, ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv }) => (key, iv),
            _ => return None,
        };
        if first.len() != suite.secret_bytes() || sequence >= SEQUENCE_MAX {
            return None;
        }
        let mut secret = Zeroizing::new(first.to_vec());
        for _ in 0..=UPDATES_MAX {
            if suite.key(&secret).as_slice() == key.as_ref() && suite.iv(&secret).as_slice() == iv.as_ref() {
                return Some(Traffic::new(suite, secret, sequence));
            }
            secret = suite.next_secret(&secret);
        }
        None
    }

    fn update(&mut self, suite: Suite) {
        *self = Traffic::new(suite, suite.next_secret(&self.secret), 0);
    }

    /// Of the next record.
    fn take_nonce(&mut self) -> aead::Nonce {
        let mut nonce = self.iv;
        nonce[IV_BYTES - 8..].iter_mut().zip(self.sequence.to_be_bytes()).for_each(|(byte, of)| *byte ^= of);
        self.sequence += 1;
        aead::Nonce::assume_unique_for_key(nonce)
    }
}

/// What a record was.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    Data(BytesMut),
    /// For the connection itself.
    Silent,
    /// The client sends no more.
    End,
}

/// Why a connection ends.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// What the client is told.
    alert: Option<u8>,
    pub(crate) why: String,
}

fn fault<T>(alert: u8, why: &str) -> std::result::Result<T, Fault> {
    Err(Fault { alert: Some(alert), why: why.to_owned() })
}

/// Both directions of a connection after its handshake.
pub(crate) struct Records {
    suite: Suite,
    reading: Traffic,
    writing: Traffic,
    /// After so many records the key that seals them is updated.
    records_max: u64,
    /// Records in a row that said nothing.
    silent: u32,
}

/// The next record of what has come, if it is there whole. What cannot become a record is given as it is.
pub(crate) fn take_record(input: &mut BytesMut, sealed_max: usize) -> Option<BytesMut> {
    let header = input.first_chunk::<HEADER_BYTES>()?;
    let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
    if !(CHANGE_CIPHER_SPEC..=DATA).contains(&header[0]) || header[1] != 3 || length > sealed_max {
        return Some(input.split());
    }
    (input.len() >= HEADER_BYTES + length).then(|| input.split_to(HEADER_BYTES + length))
}

impl Records {
    /// `first`: the first secrets of what the client sends, and of what the server sends. `None` where `extracted` does not come from them.
    pub(crate) fn of_extracted(
        suite: u16,
        first: [&[u8]; 2],
        [reading, writing]: [(u64, ConnectionTrafficSecrets); 2],
    ) -> Option<Records> {
        let suite = Suite::of_code(suite)?;
        let reading = Traffic::of_extracted(suite, first[0], reading)?;
        let writing = Traffic::of_extracted(suite, first[1], writing)?;
        Some(Records::new(suite, reading, writing))
    }

    /// XX001 for what no process wrote, 0A000 for a cipher suite of a later release.
    pub(crate) fn of_portable(suite: u16, reading: &PortableTraffic, writing: &PortableTraffic) -> Result<Records> {
        let Some(suite) = Suite::of_code(suite) else {
            let message = format!("a session is encrypted by a cipher suite unknown to this release: {suite:#06x}");
            return Err(Error::unsupported(message));
        };
        let (reading, writing) = (Traffic::of_portable(suite, reading)?, Traffic::of_portable(suite, writing)?);
        Ok(Records::new(suite, reading, writing))
    }

    fn new(suite: Suite, reading: Traffic, writing: Traffic) -> Records {
        Records { suite, reading, writing, records_max: suite.records_max(), silent: 0 }
    }

    #[cfg(test)]
    pub(crate) fn set_records_max(&mut self, records_max: u64) {
        self.records_max = records_max;
    }

    pub(crate) fn suite(&self) -> u16 {
        self.suite.code()
    }

    /// What the client sends, and what the server sends.
    pub(crate) fn to_portable(&self) -> (PortableTraffic, PortableTraffic) {
        (self.reading.to_portable(), self.writing.to_portable())
    }

    /// Opens a record as `take_record` gives it. What the client is to hear of it is appended to `output`. After an error the connection
    /// cannot go on.
    pub(crate) fn open(&mut self, record: BytesMut, output: &mut Vec<u8>) -> std::result::Result<Opened, Fault> {
        let opened = self.open_record(record, output);
        match &opened {
            Ok(Opened::Data(data)) if !data.is_empty() => self.silent = 0,
            Ok(_) => {
                self.silent += 1;
                if self.silent > SILENT_MAX {
                    self.seal(ALERT, &[FATAL, UNEXPECTED_MESSAGE], output);
                    return fault(UNEXPECTED_MESSAGE, "the client sends records that say nothing");
                }
            }
            Err(Fault { alert: Some(alert), .. }) => self.seal(ALERT, &[FATAL, *alert], output),
            Err(Fault { alert: None, .. }) => {}
        }
        opened
    }

    fn open_record(&mut self, mut record: BytesMut, output: &mut Vec<u8>) -> std::result::Result<Opened, Fault> {
        let Some(header) = record.first_chunk::<HEADER_BYTES>().copied() else {
            return fault(DECODE_ERROR, "a record has no header");
        };
        let mut sealed = record.split_off(HEADER_BYTES);
        if header[0] != DATA {
            return fault(UNEXPECTED_MESSAGE, "a record is not encrypted");
        }
        if usize::from(u16::from_be_bytes([header[3], header[4]])) > SEALED_MAX {
            return fault(RECORD_OVERFLOW, "a record is too long");
        }
        if self.reading.sequence >= SEQUENCE_MAX {
            return fault(INTERNAL_ERROR, "the client has sent as many records as can be numbered");
        }
        let nonce = self.reading.take_nonce();
        let Ok(opened) = self.reading.key.open_in_place(nonce, aead::Aad::from(header), &mut sealed) else {
            return fault(BAD_RECORD_MAC, "a record was changed on its way, or sealed by another key");
        };
        // Behind the content are its type, which is not 0, and padding.
        let Some(end) = opened.iter().rposition(|byte| *byte != 0) else {
            return fault(UNEXPECTED_MESSAGE, "a record has no type");
        };
        let kind = opened[end];
        if end > CONTENT_MAX {
            return fault(RECORD_OVERFLOW, "a record has too much content");
        }
        sealed.truncate(end);
        match (kind, &sealed[..]) {
            (DATA, _) => Ok(Opened::Data(sealed)),
            (ALERT, [_, CLOSE_NOTIFY]) => Ok(Opened::End),
            (ALERT, [WARNING, USER_CANCELED]) => Ok(Opened::Silent),
            (ALERT, [_, alert]) => Err(Fault { alert: None, why: format!("the client sent alert {alert}") }),
            (ALERT, _) => fault(DECODE_ERROR, "an alert has the wrong length"),
            (HANDSHAKE, message) => match message.strip_prefix(&KEY_UPDATE) {
                Some(&[request @ (UPDATE_NOT_REQUESTED | UPDATE_REQUESTED)]) => {
                    self.reading.update(self.suite);
                    if request == UPDATE_REQUESTED {
                        self.update_writing(output);
                    }
                    Ok(Opened::Silent)
                }
                Some([_]) => fault(ILLEGAL_PARAMETER, "an update of keys asks for something unknown"),
                _ => {
                    fault(UNEXPECTED_MESSAGE, "the client sent a message of the handshake other than an update of keys")
                }
            },
            _ => fault(UNEXPECTED_MESSAGE, "a record has an unknown type"),
        }
    }

    /// Says that what follows is sealed by the next key.
    fn update_writing(&mut self, output: &mut Vec<u8>) {
        let message = [&KEY_UPDATE[..], &[UPDATE_NOT_REQUESTED]].concat();
        self.seal(HANDSHAKE, &message, output);
        self.writing.update(self.suite);
    }

    /// Appends data to `output`, in records.
    pub(crate) fn seal_data(&mut self, data: &[u8], output: &mut Vec<u8>) {
        for part in data.chunks(CONTENT_MAX) {
            // The update is the last record of its key.
            if self.writing.sequence + 1 >= self.records_max {
                self.update_writing(output);
            }
            self.seal(DATA, part, output);
        }
    }

    /// Says that nothing follows.
    pub(crate) fn seal_end(&mut self, output: &mut Vec<u8>) {
        self.seal(ALERT, &[WARNING, CLOSE_NOTIFY], output);
    }

    fn seal(&mut self, kind: u8, content: &[u8], output: &mut Vec<u8>) {
        let length = content.len() + 1 + TAG_BYTES;
        output.reserve(HEADER_BYTES + length);
        let [high, low] = (length as u16).to_be_bytes();
        let header = [DATA, 3, 3, high, low];
        output.extend(header);
        let start = output.len();
        output.extend_from_slice(content);
        output.push(kind);
        let nonce = self.writing.take_nonce();
        let tag = self.writing.key.seal_in_place_separate_tag(nonce, aead::Aad::from(header), &mut output[start..]);
        output.extend_from_slice(tag.expect("a record is shorter than a cipher's longest text").as_ref());
    }
}
