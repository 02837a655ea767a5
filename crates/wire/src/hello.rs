//! The handshake: who the peers are, that both know the token, and what holds on the connection.
//!
//! All four frames are `HELLO`s of request 0. A body begins with its stage in 4 bytes.
//!
//! * 1, the compute process's offer: `TIDEWIRE`, oldest and newest version u16 each, zero u32, tablespace 16, client
//!   16, lane u32, bits u32 (1: bare data), incarnation u64, nonce 32, limits 40.
//! * 2, the node's challenge: version u16, zero u16, nonce 32.
//! * 3, the compute process's proof: 32.
//! * 4, the node's welcome: proof 32, bits u32, cores u32, content u64, row nanoseconds u32, latency nanoseconds u32,
//!   bytes a second u64, limits 40.
//!
//! Limits are bytes of a frame u32, of a batch u32, requests u32, zero u32, bytes of a read u64, of requests u64, of
//! rows u64.
//!
//! A proof is HMAC-SHA256 with the token as the key of a text that names the side, the epoch, the offer and the
//! challenge, each after its length. Both nonces are in it, so that no proof is good in another handshake. The node
//! proves itself only to those that have proved themselves. Nothing is encrypted, and frames are checked against
//! accidents, not against an attacker on the network: between machines use a network of your own.

use crate::codec::{Reader, Writer};
use crate::fault::Fault;
use crate::frame::{Epoch, Flags, HEAD_BYTES, Head, Kind, RequestId, VERSION};
use crate::limits::{FRAME_BYTES_MIN, Limits};
use crate::message::{Answer, Refusal};
use crate::token::{NONCE_BYTES, PROOF_BYTES, Side, Token, random};
use crate::transport::{Halves, Incoming, send_whole};
use std::fmt;
use std::time::Duration;
use tidepool_base::{Error, Result, SqlState};

/// How long a peer that is refused may take to say what it began with.
const LAST_WORD: Duration = Duration::from_millis(100);

const MAGIC: [u8; 8] = *b"TIDEWIRE";

const OFFER: u32 = 1;
const CHALLENGE: u32 = 2;
const PROOF: u32 = 3;
const WELCOME: u32 = 4;

const BARE_DATA: u32 = 1;

/// 16 random bytes that tell one tablespace, or one compute process, from all others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity(pub [u8; 16]);

impl Identity {
    pub fn random() -> Result<Identity> {
        random().map(Identity)
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// What a compute process says of itself when it connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// What it wants to work on.
    pub tablespace: Identity,
    pub epoch: Epoch,
    /// The process: another one, even of the same database, has another identity.
    pub client: Identity,
    /// Which of the process's connections it is.
    pub lane: u32,
    /// Counts the connections of this lane. The next one ends the one before: nothing that it still had on its way
    /// happens after the next one is welcome.
    pub incarnation: u64,
    pub limits: Limits,
    /// Data may come without a checksum where both ends are on one machine.
    pub bare_data: bool,
}

/// What a node says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// Another number than the last time says that nothing is left of what was there.
    pub content: u64,
    pub cores: u32,
    /// What a row of a fragment takes, about.
    pub row_nanoseconds: u32,
    /// What the link is like.
    pub latency_nanoseconds: u32,
    pub bytes_per_second: u64,
}

/// What holds on a connection that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    pub facts: NodeFacts,
    pub limits: Limits,
    pub bare_data: bool,
}

/// A body of a handshake's frame, for tests and fuzzing as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hello {
    Offer { offer: Offer, versions: (u16, u16), nonce: [u8; NONCE_BYTES] },
    Challenge { version: u16, nonce: [u8; NONCE_BYTES] },
    Proof([u8; PROOF_BYTES]),
    Welcome { proof: [u8; PROOF_BYTES], agreement: Agreement },
}

impl Hello {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut to = Writer(&mut bytes);
        match self {
            Hello::Offer { offer, versions, nonce } => {
                to.u32(OFFER);
                to.bytes(&MAGIC);
                to.u16(versions.0);
                to.u16(versions.1);
                to.u32(0);
                to.bytes(&offer.tablespace.0);
                to.bytes(&offer.client.0);
                to.u32(offer.lane);
                to.u32(if offer.bare_data { BARE_DATA } else { 0 });
                to.u64(offer.incarnation);
                to.bytes(nonce);
                offer.limits.encode(&mut to);
            }
            Hello::Challenge { version, nonce } => {
                to.u32(CHALLENGE);
                to.u16(*version);
                to.u16(0);
                to.bytes(nonce);
            }
            Hello::Proof(proof) => {
                to.u32(PROOF);
                to.bytes(proof);
            }
            Hello::Welcome { proof, agreement } => {
                to.u32(WELCOME);
                to.bytes(proof);
                to.u32(if agreement.bare_data { BARE_DATA } else { 0 });
                let facts = agreement.facts;
                to.u32(facts.cores);
                to.u64(facts.content);
                to.u32(facts.row_nanoseconds);
                to.u32(facts.latency_nanoseconds);
                to.u64(facts.bytes_per_second);
                agreement.limits.encode(&mut to);
            }
        }
        bytes
    }

    /// Reads a body; `epoch` is that of its frame.
    pub fn decode(body: &[u8], epoch: Epoch) -> Result<Hello, Fault> {
        let mut from = Reader(body);
        let bare = |bits: u32| match bits {
            0 => Ok(false),
            BARE_DATA => Ok(true),
            _ => Err(Fault::Malformed("unknown bits of its greeting")),
        };
        let hello = match from.u32()? {
            OFFER => {
                if from.array()? != MAGIC {
                    return Err(Fault::Malformed("it is of another protocol"));
                }
                let versions = (from.u16()?, from.u16()?);
                // Of another version nothing behind this is known.
                if !(versions.0..=versions.1).contains(&VERSION) {
                    return Err(Fault::UnknownVersions { oldest: versions.0, newest: versions.1 });
                }
                from.zero(4)?;
                let (tablespace, client) = (Identity(from.array()?), Identity(from.array()?));
                let (lane, bare_data) = (from.u32()?, bare(from.u32()?)?);
                let (incarnation, nonce) = (from.u64()?, from.array()?);
                let limits = Limits::decode(&mut from)?;
                let offer = Offer { tablespace, epoch, client, lane, incarnation, limits, bare_data };
                Hello::Offer { offer, versions, nonce }
            }
            CHALLENGE => {
                let version = from.u16()?;
                if version != VERSION {
                    return Err(Fault::UnknownVersions { oldest: version, newest: version });
                }
                from.zero(2)?;
                Hello::Challenge { version, nonce: from.array()? }
            }
            PROOF => Hello::Proof(from.array()?),
            WELCOME => {
                let (proof, bare_data) = (from.array()?, bare(from.u32()?)?);
                let (cores, content) = (from.u32()?, from.u64()?);
                let (row_nanoseconds, latency_nanoseconds) = (from.u32()?, from.u32()?);
                let bytes_per_second = from.u64()?;
                let facts = NodeFacts { content, cores, row_nanoseconds, latency_nanoseconds, bytes_per_second };
                let limits = Limits::decode(&mut from)?;
                Hello::Welcome { proof, agreement: Agreement { facts, limits, bare_data } }
            }
            _ => return Err(Fault::Malformed("its greeting is of no known stage")),
        };
        from.end()?;
        Ok(hello)
    }
}

/// Sends a frame of request 0.
pub(crate) fn send_alone(halves: &mut Halves, kind: Kind, flags: Flags, epoch: Epoch, body: &[u8]) -> Result<()> {
    let head = Head::of(kind, flags, RequestId::CONNECTION, epoch, &[body]).map_err(Fault::error)?.encode();
    send_whole(&mut *halves.outgoing, &*halves.clock, &[&head, body]).map_err(Fault::error)
}

/// Refuses a peer that has not been let in.
pub(crate) fn send_refusal(halves: &mut Halves, epoch: Epoch, error: &Error) -> Result<()> {
    let mut body = Vec::new();
    Answer::Error(Refusal::of(error)).encode(&mut body).map_err(Fault::error)?;
    send_alone(halves, Kind::Error, Flags::ANSWER.with(Flags::LAST), epoch, &body)
}

/// The handshake's next frame, within so long.
fn receive(incoming: &mut dyn Incoming, answers: bool, timeout: Duration) -> Result<(Head, Vec<u8>)> {
    let mut head = [0; HEAD_BYTES];
    if !incoming.begin(&mut head, timeout).map_err(Fault::error)? {
        return Err(Fault::Closed("the peer does not answer").error());
    }
    let head = Head::decode(&head, FRAME_BYTES_MIN).map_err(Fault::error)?;
    let mut body = vec![0; head.len as usize];
    incoming.receive(&mut body).map_err(Fault::error)?;
    head.check_body(&body).map_err(Fault::error)?;
    if head.request != RequestId::CONNECTION || head.flags.contains(Flags::ANSWER) != answers {
        return Err(Fault::Malformed("it is no greeting").error());
    }
    match head.kind {
        Kind::Hello => Ok((head, body)),
        Kind::Error if answers => match Answer::decode(head.kind, head.flags, &body).map_err(Fault::error)? {
            Answer::Error(refusal) => Err(refusal.to_error()),
            _ => Err(Fault::Malformed("it is no greeting").error()),
        },
        _ => Err(Fault::Malformed("it is no greeting").error()),
    }
}

/// Sends a greeting and receives what the node says to it. It may have refused the connection before, and closed it.
fn exchange(halves: &mut Halves, epoch: Epoch, hello: &[u8], timeout: Duration) -> Result<(Head, Vec<u8>)> {
    let sent = send_alone(halves, Kind::Hello, Flags::NONE, epoch, hello);
    let received = receive(&mut *halves.incoming, true, timeout);
    match (sent, received) {
        (Err(sent), Err(received)) if received.code() == SqlState::CONNECTION_FAILURE => Err(sent),
        (Err(sent), Ok(_)) => Err(sent),
        (_, received) => received,
    }
}

/// The compute process's part.
pub(crate) fn offer(halves: &mut Halves, offer: &Offer, token: &Token, timeout: Duration) -> Result<Agreement> {
    offer.limits.check().map_err(Fault::error)?;
    let hello = Hello::Offer { offer: *offer, versions: (VERSION, VERSION), nonce: random()? }.encode();
    let (head, challenge) = exchange(halves, offer.epoch, &hello, timeout)?;
    let Hello::Challenge { .. } = Hello::decode(&challenge, head.epoch).map_err(Fault::error)? else {
        return Err(Fault::Malformed("it is no challenge").error());
    };
    let epoch = offer.epoch.0.to_le_bytes();
    let transcript: [&[u8]; 3] = [&epoch, &hello, &challenge];
    let proof = Hello::Proof(token.prove(Side::Compute, &transcript)).encode();
    let (head, welcome) = exchange(halves, offer.epoch, &proof, timeout)?;
    let Hello::Welcome { proof, agreement } = Hello::decode(&welcome, head.epoch).map_err(Fault::error)? else {
        return Err(Fault::Malformed("it is no welcome").error());
    };
    token.verify(Side::Node, &transcript, &proof).map_err(Fault::error)?;
    let limits = agreement.limits;
    if head.epoch != offer.epoch
        || limits != limits.lesser(offer.limits)
        || agreement.bare_data && !(offer.bare_data && halves.is_local)
    {
        return Err(Fault::Malformed("it agrees to what was not offered").error());
    }
    Ok(agreement)
}

/// Refuses a peer before anything is known of it: what it says meanwhile is taken, so that the system does not throw
/// the refusal away with it.
pub(crate) fn refuse(halves: &mut Halves, error: &Error) {
    // The peer may be gone.
    let _ = send_refusal(halves, Epoch(0), error);
    let _ = receive(&mut *halves.incoming, false, LAST_WORD);
}

/// A peer that has proved that it knows the token, and waits to be welcome.
pub(crate) struct Guest {
    pub offer: Offer,
    proof: [u8; PROOF_BYTES],
}

/// The node's part, up to the proof.
pub(crate) fn challenge(halves: &mut Halves, token: &Token, timeout: Duration) -> Result<Guest> {
    let (head, hello) = receive(&mut *halves.incoming, false, timeout)?;
    let Hello::Offer { offer, .. } = Hello::decode(&hello, head.epoch).map_err(Fault::error)? else {
        return Err(Fault::Malformed("it is no offer").error());
    };
    let challenge = Hello::Challenge { version: VERSION, nonce: random()? }.encode();
    send_alone(halves, Kind::Hello, Flags::ANSWER, offer.epoch, &challenge)?;
    let (head, proof) = receive(&mut *halves.incoming, false, timeout)?;
    let Hello::Proof(proof) = Hello::decode(&proof, head.epoch).map_err(Fault::error)? else {
        return Err(Fault::Malformed("it is no proof").error());
    };
    let epoch = offer.epoch.0.to_le_bytes();
    let transcript: [&[u8]; 3] = [&epoch, &hello, &challenge];
    token.verify(Side::Compute, &transcript, &proof).map_err(Fault::error)?;
    Ok(Guest { offer, proof: token.prove(Side::Node, &transcript) })
}

/// The node's last word.
pub(crate) fn welcome(halves: &mut Halves, guest: &Guest, agreement: &Agreement) -> Result<()> {
    let welcome = Hello::Welcome { proof: guest.proof, agreement: *agreement }.encode();
    send_alone(halves, Kind::Hello, Flags::ANSWER.with(Flags::LAST), guest.offer.epoch, &welcome)
}
