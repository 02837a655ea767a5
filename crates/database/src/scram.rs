//! SCRAM-SHA-256 (RFC 5802, RFC 7677) as PostgreSQL speaks it: stored verifiers and both ends of the exchange.
//!
//! A verifier is PostgreSQL's text `SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>`. It proves a password
//! without containing it: whoever steals the data folder cannot log in with what is in it.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use tidepool_base::{Error, Result, SqlState};

/// PostgreSQL's default, and the least that RFC 7677 allows.
const ITERATIONS: u32 = 4096;
/// More would let a server that we connect to, or a damaged verifier, keep us busy for minutes.
const ITERATIONS_MAX: u32 = 10_000_000;
const SALT_BYTES: usize = 16;
const NONCE_BYTES: usize = 18;

type Key = [u8; 32];

fn hmac(key: &[u8], parts: &[&[u8]]) -> Key {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

fn hash(bytes: &[u8]) -> Key {
    Sha256::digest(bytes).into()
}

fn xor(left: &Key, right: &Key) -> Key {
    std::array::from_fn(|i| left[i] ^ right[i])
}

/// Compares without telling by its duration where the first difference is.
fn same(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len() && left.iter().zip(right).fold(0u8, |acc, (a, b)| acc | (a ^ b)) == 0
}

/// RFC 5802's `Hi`: PBKDF2 with one block.
fn salted_password(password: &str, salt: &[u8], iterations: u32) -> Key {
    // PostgreSQL uses a password as it is where SASLprep refuses it.
    let normalized = stringprep::saslprep(password).unwrap_or(password.into());
    let mut block = hmac(normalized.as_bytes(), &[salt, &1u32.to_be_bytes()]);
    let mut result = block;
    for _ in 1..iterations {
        block = hmac(normalized.as_bytes(), &[&block]);
        result = xor(&result, &block);
    }
    result
}

fn random<const N: usize>() -> [u8; N] {
    rand::random()
}

fn violation(what: &str) -> Error {
    Error::new(SqlState::PROTOCOL_VIOLATION, "malformed SCRAM message").with_detail(what)
}

fn attribute(part: Option<&str>, name: char) -> Result<&str> {
    part.and_then(|part| part.strip_prefix(name)?.strip_prefix('='))
        .ok_or_else(|| violation(&format!("Attribute \"{name}\" expected.")))
}

fn decode_key(text: &str) -> Option<Key> {
    BASE64.decode(text).ok()?.try_into().ok()
}

/// What a server keeps of a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Verifier {
    iterations: u32,
    salt: Vec<u8>,
    stored_key: Key,
    server_key: Key,
}

impl Verifier {
    pub fn from_password(password: &str) -> Verifier {
        Verifier::derive(password, random::<SALT_BYTES>().to_vec(), ITERATIONS)
    }

    fn derive(password: &str, salt: Vec<u8>, iterations: u32) -> Verifier {
        let salted = salted_password(password, &salt, iterations);
        Verifier {
            stored_key: hash(&hmac(&salted, &[b"Client Key"])),
            server_key: hmac(&salted, &[b"Server Key"]),
            iterations,
            salt,
        }
    }

    /// `None` when the text is not a verifier.
    pub fn parse(text: &str) -> Option<Verifier> {
        let (parameters, keys) = text.strip_prefix("SCRAM-SHA-256$")?.split_once('$')?;
        let (iterations, salt) = parameters.split_once(':')?;
        let (stored_key, server_key) = keys.split_once(':')?;
        let iterations = iterations.parse().ok().filter(|n| (1..=ITERATIONS_MAX).contains(n))?;
        Some(Verifier {
            iterations,
            salt: BASE64.decode(salt).ok().filter(|salt| !salt.is_empty())?,
            stored_key: decode_key(stored_key)?,
            server_key: decode_key(server_key)?,
        })
    }

    /// A verifier that no password fits, so that an unknown user costs a client as much as a wrong password. A user's salt is
    /// always the same, as that of one who exists: it follows from `secret`, which no client knows.
    pub fn unusable(secret: &[u8], user: &str) -> Verifier {
        Verifier {
            iterations: ITERATIONS,
            salt: hmac(secret, &[b"salt of ", user.as_bytes()])[..SALT_BYTES].to_vec(),
            stored_key: random(),
            server_key: random(),
        }
    }

    pub fn matches(&self, password: &str) -> bool {
        let other = Verifier::derive(password, self.salt.clone(), self.iterations);
        same(&other.stored_key, &self.stored_key)
    }
}

impl std::fmt::Display for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "SCRAM-SHA-256${}:{}${}:{}",
            self.iterations,
            BASE64.encode(&self.salt),
            BASE64.encode(self.stored_key),
            BASE64.encode(self.server_key)
        )
    }
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Verifier(..)")
    }
}

/// The text to keep for a password given in SQL: a verifier given ready-made is kept as it is, as in PostgreSQL.
pub fn verifier_text(password: &str) -> String {
    match Verifier::parse(password) {
        Some(_) => password.to_owned(),
        None => Verifier::from_password(password).to_string(),
    }
}

/// The server's end after its first message.
#[derive(Debug)]
pub struct ServerExchange {
    verifier: Verifier,
    gs2_header: String,
    /// `tls-server-end-point` data, when the client binds to it.
    channel_binding: Option<Vec<u8>>,
    client_first_bare: String,
    server_first: String,
    nonce: String,
}

impl ServerExchange {
    /// Takes the client's first message and gives the server's. `end_point` is the hash of the server's certificate on
    /// an encrypted connection; `plus` whether the client chose SCRAM-SHA-256-PLUS.
    pub fn start(
        client_first: &[u8],
        verifier: Verifier,
        end_point: Option<&[u8]>,
        plus: bool,
    ) -> Result<(ServerExchange, String)> {
        let text = std::str::from_utf8(client_first).map_err(|_| violation("The message is not UTF-8."))?;
        let mut parts = text.splitn(3, ',');
        let (flag, identity, bare) = match (parts.next(), parts.next(), parts.next()) {
            (Some(flag), Some(identity), Some(bare)) => (flag, identity, bare),
            _ => return Err(violation("The client's first message is too short.")),
        };
        if !identity.is_empty() {
            return Err(Error::unsupported("client uses authorization identity, but it is not supported"));
        }
        let channel_binding = match (flag, plus) {
            ("n", false) => None,
            // The client could bind but believes that the server cannot: someone between them cut the offer out.
            ("y", false) if end_point.is_some() => {
                return Err(Error::new(SqlState::INVALID_AUTHORIZATION, "SCRAM channel binding negotiation error")
                    .with_detail(
                        "The client supports SCRAM channel binding but thinks the server does not. However, this server \
                         does support channel binding.",
                    ));
            }
            ("y", false) => None,
            ("p=tls-server-end-point", true) => match end_point {
                Some(end_point) => Some(end_point.to_vec()),
                None => return Err(violation("Channel binding needs an encrypted connection.")),
            },
            _ => return Err(violation("The channel binding flag does not fit the mechanism.")),
        };
        let mut attributes = bare.split(',');
        let user = attributes.next();
        if user.is_some_and(|user| user.starts_with("m=")) {
            return Err(Error::unsupported("client requires an unsupported SCRAM extension"));
        }
        attribute(user, 'n')?;
        let client_nonce = attribute(attributes.next(), 'r')?;
        if client_nonce.is_empty() || !client_nonce.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(violation("The client's nonce is not printable."));
        }
        let nonce = format!("{client_nonce}{}", BASE64.encode(random::<NONCE_BYTES>()));
        let server_first = format!("r={nonce},s={},i={}", BASE64.encode(&verifier.salt), verifier.iterations);
        let exchange = ServerExchange {
            gs2_header: format!("{flag},,"),
            channel_binding,
            client_first_bare: bare.to_owned(),
            server_first: server_first.clone(),
            nonce,
            verifier,
        };
        Ok((exchange, server_first))
    }

    /// Takes the client's proof: the server's final message, or `None` when the password is wrong.
    pub fn finish(&self, client_final: &[u8]) -> Result<Option<String>> {
        let text = std::str::from_utf8(client_final).map_err(|_| violation("The message is not UTF-8."))?;
        let (without_proof, proof) = text.rsplit_once(",p=").ok_or_else(|| violation("The proof is missing."))?;
        let mut attributes = without_proof.split(',');
        let mut binding = self.gs2_header.clone().into_bytes();
        binding.extend_from_slice(self.channel_binding.as_deref().unwrap_or_default());
        if BASE64.decode(attribute(attributes.next(), 'c')?).ok() != Some(binding) {
            return Err(Error::new(SqlState::INVALID_AUTHORIZATION, "SCRAM channel binding check failed"));
        }
        if attribute(attributes.next(), 'r')? != self.nonce {
            return Err(violation("Nonce does not match."));
        }
        let proof = decode_key(proof).ok_or_else(|| violation("The proof is not base64 of 32 bytes."))?;
        let message = [&self.client_first_bare, ",", &self.server_first, ",", without_proof].concat();
        let client_signature = hmac(&self.verifier.stored_key, &[message.as_bytes()]);
        let client_key = xor(&proof, &client_signature);
        if !same(&hash(&client_key), &self.verifier.stored_key) {
            return Ok(None);
        }
        Ok(Some(format!("v={}", BASE64.encode(hmac(&self.verifier.server_key, &[message.as_bytes()])))))
    }
}

/// The client's end, without channel binding.
#[derive(Debug)]
pub struct ClientExchange {
    bare: String,
    nonce: String,
}

/// The client's end once its proof was sent.
#[derive(Debug)]
pub struct ClientProof {
    signature: Key,
}

impl ClientExchange {
    /// The exchange and the client's first message. The user's name is left empty: PostgreSQL takes it from start-up.
    pub fn start() -> (ClientExchange, String) {
        let nonce = BASE64.encode(random::<NONCE_BYTES>());
        let bare = format!("n=,r={nonce}");
        let first = format!("n,,{bare}");
        (ClientExchange { bare, nonce }, first)
    }

    /// The client's final message.
    pub fn respond(&self, server_first: &[u8], password: &str) -> Result<(ClientProof, String)> {
        let server_first =
            std::str::from_utf8(server_first).map_err(|_| violation("The message is not UTF-8."))?.to_owned();
        let mut attributes = server_first.split(',');
        let nonce = attribute(attributes.next(), 'r')?;
        let salt =
            BASE64.decode(attribute(attributes.next(), 's')?).map_err(|_| violation("The salt is not base64."))?;
        let iterations = attribute(attributes.next(), 'i')?
            .parse::<u32>()
            .ok()
            .filter(|n| (1..=ITERATIONS_MAX).contains(n))
            .ok_or_else(|| violation("The iteration count is out of range."))?;
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err(violation("Nonce does not match."));
        }
        let without_proof = format!("c={},r={nonce}", BASE64.encode("n,,"));
        let message = [&self.bare, ",", &server_first, ",", &without_proof].concat();
        let salted = salted_password(password, &salt, iterations);
        let client_key = hmac(&salted, &[b"Client Key"]);
        let proof = xor(&client_key, &hmac(&hash(&client_key), &[message.as_bytes()]));
        let signature = hmac(&hmac(&salted, &[b"Server Key"]), &[message.as_bytes()]);
        Ok((ClientProof { signature }, format!("{without_proof},p={}", BASE64.encode(proof))))
    }
}

impl ClientProof {
    /// Whether the server knows the password too.
    pub fn verify(&self, server_final: &[u8]) -> bool {
        std::str::from_utf8(server_final)
            .ok()
            .and_then(|text| decode_key(text.strip_prefix("v=")?))
            .is_some_and(|signature| same(&signature, &self.signature))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(verifier: &Verifier, password: &str) -> Option<bool> {
        let (client, first) = ClientExchange::start();
        let (server, server_first) = ServerExchange::start(first.as_bytes(), verifier.clone(), None, false).unwrap();
        let (proof, client_final) = client.respond(server_first.as_bytes(), password).unwrap();
        server.finish(client_final.as_bytes()).unwrap().map(|last| proof.verify(last.as_bytes()))
    }

    #[test]
    fn a_verifier_survives_its_text_and_tells_right_from_wrong() {
        let verifier = Verifier::parse(&verifier_text("pencil")).unwrap();
        assert!(verifier.matches("pencil") && !verifier.matches("Pencil"));
        assert_eq!(verifier_text(&verifier.to_string()), verifier.to_string());
        assert_eq!(exchange(&verifier, "pencil"), Some(true));
        assert_eq!(exchange(&verifier, "pencil "), None);
        assert_eq!(exchange(&Verifier::unusable(b"secret", "nobody"), "pencil"), None);
        for text in ["", "md5abc", "SCRAM-SHA-256$0:AA==$:", "SCRAM-SHA-256$4096:AA==$AA==:AA=="] {
            assert!(Verifier::parse(text).is_none(), "{text}");
        }
    }

    /// RFC 7677, section 3: salt, iteration count and server signature of its example.
    #[test]
    fn keys_are_the_rfcs() {
        let salt = BASE64.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let verifier = Verifier::derive("pencil", salt, 4096);
        let message = "n=user,r=rOprNGfwEbeRWgbNEkqO,\
            r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,\
            c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
        let signature = hmac(&verifier.server_key, &[message.as_bytes()]);
        assert_eq!(BASE64.encode(signature), "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
        let proof = decode_key("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=").unwrap();
        let client_key = xor(&proof, &hmac(&verifier.stored_key, &[message.as_bytes()]));
        assert_eq!(hash(&client_key), verifier.stored_key);
    }

    #[test]
    fn channel_binding_binds() {
        let verifier = Verifier::from_password("x");
        let start = |message: &str, end_point, plus| {
            ServerExchange::start(message.as_bytes(), verifier.clone(), end_point, plus).map(|_| ())
        };
        assert!(start("p=tls-server-end-point,,n=,r=abc", Some(&b"hash"[..]), true).is_ok());
        assert!(start("p=tls-server-end-point,,n=,r=abc", None, true).is_err());
        assert!(start("p=tls-unique,,n=,r=abc", Some(&b"hash"[..]), true).is_err());
        assert!(start("y,,n=,r=abc", Some(&b"hash"[..]), false).is_err());
        assert!(start("y,,n=,r=abc", None, false).is_ok());
        let (server, first) =
            ServerExchange::start(b"p=tls-server-end-point,,n=,r=abc", verifier.clone(), Some(b"hash"), true).unwrap();
        let nonce = first.split(',').next().unwrap();
        let wrong = format!("c={},{nonce},p={}", BASE64.encode("p=tls-server-end-point,,HASH"), BASE64.encode([0; 32]));
        assert_eq!(server.finish(wrong.as_bytes()).unwrap_err().code(), SqlState::INVALID_AUTHORIZATION);
    }

    #[test]
    fn nonsense_is_an_error() {
        for text in [
            "",
            "n",
            "n,,",
            "n,,n=",
            "n,,n=,r=",
            "n,a=x,n=,r=abc",
            "n,,m=1,n=,r=abc",
            "\u{0},,n=,r=a",
            "n,,n=,r=\u{7f}",
        ] {
            let verifier = Verifier::unusable(b"secret", "nobody");
            assert!(ServerExchange::start(text.as_bytes(), verifier, None, false).is_err(), "{text:?}");
        }
        let (server, _) =
            ServerExchange::start(b"n,,n=,r=abc", Verifier::unusable(b"secret", "nobody"), None, false).unwrap();
        for text in ["", "c=biws", "c=biws,r=abc,p=", "c=biws,r=abc,p=!!"] {
            assert!(server.finish(text.as_bytes()).is_err(), "{text:?}");
        }
        let (client, _) = ClientExchange::start();
        for text in ["", "r=abc", "r=abc,s=AA==,i=99999999999", "r=abc,s=AA==,i=4096"] {
            assert!(client.respond(text.as_bytes(), "x").is_err(), "{text:?}");
        }
    }
}
