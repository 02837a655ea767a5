//! Frames: what goes over a connection, one after the other.
//!
//! All integers are little-endian. A frame is a head of 32 bytes, then its body.
//!
//! | offset | bytes | meaning |
//! | --- | --- | --- |
//! | 0 | 4 | bytes of the body |
//! | 4 | 2 | [`Kind`] |
//! | 6 | 2 | [`Flags`] |
//! | 8 | 8 | [`RequestId`] that the frame belongs to; 0 is the connection itself |
//! | 16 | 8 | [`Epoch`] of the sender |
//! | 24 | 8 | checksum: XXH3-64 of bytes 0 to 23, then of the body |
//! | 32 | | body |
//!
//! With [`Flags::BARE`], which only `DATA` may have and only where both sides agreed on it, the checksum covers of the
//! body only its first 8 bytes: between processes of one machine the kernel copies memory to memory, and two more
//! passes over the bytes would cost as much as the copies.
//!
//! A damaged length makes the receiver look for the next frame at a wrong place. It finds the damage by the checksum;
//! if the length names bytes that never come, by its deadline.

use crate::fault::Fault;
use xxhash_rust::xxh3::Xxh3Default;

/// Version of the protocol that this crate speaks.
pub const VERSION: u16 = 1;

pub const HEAD_BYTES: usize = 32;

/// Bytes of the head that the checksum covers: all before it.
const COVERED_BYTES: usize = 24;

/// Bytes of a `DATA` body before the data: their offset.
pub(crate) const DATA_PREFIX_BYTES: usize = 8;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $number:literal),* $(,)?) => {
        /// What a frame is about.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Kind { $($(#[$doc])* $name = $number),* }

        impl Kind {
            pub const ALL: &[Kind] = &[$(Kind::$name),*];

            pub fn from_number(number: u16) -> Result<Kind, Fault> {
                match number { $($number => Ok(Kind::$name),)* _ => Err(Fault::UnknownKind(number)) }
            }
        }
    };
}

kinds! {
    /// Opens a connection: offer, challenge, proof, welcome.
    Hello = 1,
    /// Allocates memory at the node.
    Register = 2,
    /// Frees it.
    Deregister = 3,
    /// Asks for bytes at places.
    Read = 4,
    /// Brings them.
    Data = 5,
    /// Writes bytes at places.
    Flush = 6,
    /// Names what is in force.
    Publish = 7,
    /// Adds to a log.
    Append = 8,
    /// Says how far a log is durable.
    Durable = 9,
    /// Asks the node to run a part of a plan.
    Fragment = 10,
    /// Brings rows of it.
    Batch = 11,
    /// Allows more bytes of rows.
    Credit = 12,
    /// Ends a request, with counters.
    Done = 13,
    /// Asks the node to give a request up.
    Cancel = 14,
    /// Ends a request, or the connection, with an error.
    Error = 15,
    /// Asks whether the node is there.
    Ping = 16,
}

impl Kind {
    pub fn number(self) -> u16 {
        self as u16
    }
}

/// Bits of a frame's head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(u16);

impl Flags {
    pub const NONE: Flags = Flags(0);
    /// The frame goes from the node to the compute process.
    pub const ANSWER: Flags = Flags(1);
    /// No other frame of this request follows in this direction.
    pub const LAST: Flags = Flags(2);
    /// The checksum leaves out the data.
    pub const BARE: Flags = Flags(4);

    const KNOWN: u16 = 7;

    pub fn from_bits(bits: u16) -> Result<Flags, Fault> {
        if bits & !Flags::KNOWN == 0 { Ok(Flags(bits)) } else { Err(Fault::UnknownFlags(bits)) }
    }

    pub fn bits(self) -> u16 {
        self.0
    }

    pub fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    pub fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// Names a request for the life of its connection. They grow from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

impl RequestId {
    /// No request: the frame is about the connection.
    pub const CONNECTION: RequestId = RequestId(0);
}

/// Number of a compute process among those that had a tablespace one after the other. The greatest owns it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// A frame's first 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub len: u32,
    pub kind: Kind,
    pub flags: Flags,
    pub request: RequestId,
    pub epoch: Epoch,
    pub checksum: u64,
}

impl Head {
    /// The head of a frame whose body is `pieces`, one after the other.
    pub fn of(kind: Kind, flags: Flags, request: RequestId, epoch: Epoch, pieces: &[&[u8]]) -> Result<Head, Fault> {
        let len: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        let beyond = Fault::Beyond { what: "bytes of a frame", asked: len, limit: u64::from(u32::MAX) };
        let len = u32::try_from(len).map_err(|_| beyond)?;
        let mut head = Head { len, kind, flags, request, epoch, checksum: 0 };
        let mut checksum = head.checksum();
        for piece in pieces {
            checksum.update(piece);
        }
        head.checksum = checksum.finish();
        Ok(head)
    }

    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[0..4].copy_from_slice(&self.len.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.kind.number().to_le_bytes());
        bytes[6..8].copy_from_slice(&self.flags.bits().to_le_bytes());
        bytes[8..16].copy_from_slice(&self.request.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.epoch.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.checksum.to_le_bytes());
        bytes
    }

    /// Refuses a body of more than `len_max` bytes before anything of it is read.
    pub fn decode(bytes: &[u8; HEAD_BYTES], len_max: u32) -> Result<Head, Fault> {
        let [l0, l1, l2, l3, k0, k1, f0, f1, rest @ ..] = *bytes;
        let (words, _) = rest.as_chunks::<8>();
        let len = u32::from_le_bytes([l0, l1, l2, l3]);
        let kind = Kind::from_number(u16::from_le_bytes([k0, k1]))?;
        let flags = Flags::from_bits(u16::from_le_bytes([f0, f1]))?;
        if flags.contains(Flags::BARE) && kind != Kind::Data {
            return Err(Fault::Malformed("only data may be left out of the checksum"));
        }
        if len > len_max {
            return Err(Fault::Beyond { what: "bytes of a frame", asked: len.into(), limit: len_max.into() });
        }
        Ok(Head {
            len,
            kind,
            flags,
            request: RequestId(u64::from_le_bytes(words[0])),
            epoch: Epoch(u64::from_le_bytes(words[1])),
            checksum: u64::from_le_bytes(words[2]),
        })
    }

    /// A checksum that the head's own bytes are in, and the body's are to be added to.
    pub(crate) fn checksum(&self) -> Checksum {
        let mut hash = Xxh3Default::new();
        hash.update(&self.encode()[..COVERED_BYTES]);
        let left = if self.flags.contains(Flags::BARE) { DATA_PREFIX_BYTES } else { usize::MAX };
        Checksum { hash, left }
    }

    /// Compares with what the head says.
    pub(crate) fn check(&self, checksum: &Checksum) -> Result<(), Fault> {
        if checksum.finish() == self.checksum { Ok(()) } else { Err(Fault::Malformed("its checksum is wrong")) }
    }

    /// Checks a body that is in one piece.
    pub fn check_body(&self, body: &[u8]) -> Result<(), Fault> {
        if body.len() != self.len as usize {
            return Err(Fault::Malformed("its length is wrong"));
        }
        let mut checksum = self.checksum();
        checksum.update(body);
        self.check(&checksum)
    }
}

/// A frame's checksum while its bytes come.
pub(crate) struct Checksum {
    hash: Xxh3Default,
    /// Bytes of the body that it still covers.
    left: usize,
}

impl Checksum {
    pub fn update(&mut self, bytes: &[u8]) {
        let count = bytes.len().min(self.left);
        if count > 0 {
            self.left -= count;
            self.hash.update(&bytes[..count]);
        }
    }

    fn finish(&self) -> u64 {
        self.hash.digest()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_where_the_table_says() {
        let head = Head {
            len: 0x0403_0201,
            kind: Kind::Flush,
            flags: Flags::ANSWER.with(Flags::LAST),
            request: RequestId(0x1817_1615_1413_1211),
            epoch: Epoch(0x2827_2625_2423_2221),
            checksum: 0x3837_3635_3433_3231,
        };
        let bytes = head.encode();
        assert_eq!(bytes[..8], [1, 2, 3, 4, 6, 0, 3, 0]);
        assert_eq!((bytes[8], bytes[15], bytes[16], bytes[31]), (0x11, 0x18, 0x21, 0x38));
        assert_eq!(Head::decode(&bytes, u32::MAX), Ok(head));
        assert!(matches!(Head::decode(&bytes, 0x0403_0200), Err(Fault::Beyond { .. })));
    }

    #[test]
    fn the_checksum_is_that_of_the_head_and_the_body_in_a_row() {
        let head = Head::of(Kind::Ping, Flags::NONE, RequestId(7), Epoch(3), &[b"one", b"two"]).unwrap();
        let whole = [&head.encode()[..COVERED_BYTES], b"onetwo"].concat();
        assert_eq!(head.checksum, xxhash_rust::xxh3::xxh3_64(&whole));
        assert_eq!(head.check_body(b"onetwo"), Ok(()));
        assert_eq!(head.check_body(b"onetwe").unwrap_err().code().code(), "08P01");
    }

    #[test]
    fn unknown_kinds_and_flags_are_named() {
        for kind in Kind::ALL {
            assert_eq!(Kind::from_number(kind.number()), Ok(*kind));
        }
        assert_eq!(Kind::from_number(0), Err(Fault::UnknownKind(0)));
        assert_eq!(Kind::from_number(17).unwrap_err().to_string(), "unknown kind 17 of frame");
        assert_eq!(Flags::from_bits(8).unwrap_err().to_string(), "unknown flags 0x0008 of a frame");
    }
}
