//! The token: a secret that a node and its compute processes share. It never goes over a connection.

use crate::fault::Fault;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::fmt;
use std::io::Read;
use tidepool_base::{Error, Result, SqlState};
use zeroize::Zeroizing;

/// A shorter one could be found by trying, with one recorded handshake and no further talk to the node.
pub const TOKEN_BYTES_MIN: usize = 16;

pub(crate) const NONCE_BYTES: usize = 32;
pub(crate) const PROOF_BYTES: usize = 32;

/// Whose proof it is: neither side can send the other's own back to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Compute,
    Node,
}

#[derive(Clone)]
pub struct Token(Zeroizing<Vec<u8>>);

impl Token {
    /// Bytes that both sides know, at least [`TOKEN_BYTES_MIN`] of them.
    pub fn new(bytes: &[u8]) -> Result<Token> {
        if bytes.len() < TOKEN_BYTES_MIN {
            let message = format!("a token of {} bytes is too short", bytes.len());
            let hint = format!("Use at least {TOKEN_BYTES_MIN} random bytes.");
            return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, message).with_hint(hint));
        }
        Ok(Token(Zeroizing::new(bytes.to_vec())))
    }

    fn mac(&self, side: Side, transcript: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(match side {
            Side::Compute => b"tidepool wire compute",
            Side::Node => b"tidepool wire node   ",
        });
        for part in transcript {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }

    /// Proves to the other side that this one knows the token, in this handshake and no other.
    pub(crate) fn prove(&self, side: Side, transcript: &[&[u8]]) -> [u8; PROOF_BYTES] {
        self.mac(side, transcript).finalize().into_bytes().into()
    }

    /// Takes the same time whatever the proof is.
    pub(crate) fn verify(&self, side: Side, transcript: &[&[u8]], proof: &[u8; PROOF_BYTES]) -> Result<(), Fault> {
        self.mac(side, transcript).verify_slice(proof).map_err(|_| Fault::Unauthenticated)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// Bytes of the system's random numbers.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|error| Error::io("get random bytes", &error))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_good_for_its_side_token_and_transcript_only() {
        let token = Token::new(&[7; 16]).unwrap();
        let proof = token.prove(Side::Compute, &[b"offer", b"challenge"]);
        assert_eq!(token.verify(Side::Compute, &[b"offer", b"challenge"], &proof), Ok(()));
        assert_eq!(token.verify(Side::Node, &[b"offer", b"challenge"], &proof), Err(Fault::Unauthenticated));
        assert!(token.verify(Side::Compute, &[b"offerc", b"hallenge"], &proof).is_err());
        let other = Token::new(&[8; 16]).unwrap();
        assert!(other.verify(Side::Compute, &[b"offer", b"challenge"], &proof).is_err());
        assert_eq!(Token::new(&[7; 15]).unwrap_err().code(), SqlState::INVALID_PARAMETER_VALUE);
        assert_eq!(format!("{token:?}"), "Token");
    }
}
