//! Fields of bodies: written to a buffer, and read from bytes that may be anything.

use crate::fault::Fault;
use crate::limits::ENTRIES_MAX;
use std::fmt;
use std::marker::PhantomData;

pub(crate) struct Writer<'a>(pub &'a mut Vec<u8>);

impl Writer<'_> {
    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    pub fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

/// What is left of a body. Nothing here takes memory.
pub(crate) struct Reader<'a>(pub &'a [u8]);

const SHORT: Fault = Fault::Malformed("its body is too short");

impl<'a> Reader<'a> {
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*first)
    }

    pub fn u8(&mut self) -> Result<u8, Fault> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub fn u16(&mut self) -> Result<u16, Fault> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, Fault> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Fault> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Fault> {
        let (first, rest) = self.0.split_at_checked(count).ok_or(SHORT)?;
        self.0 = rest;
        Ok(first)
    }

    /// Bytes that a later version may give a meaning to.
    pub fn zero(&mut self, count: usize) -> Result<(), Fault> {
        let zero = self.bytes(count)?.iter().all(|byte| *byte == 0);
        if zero { Ok(()) } else { Err(Fault::Malformed("reserved bytes of its body are not zero")) }
    }

    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    pub fn end(self) -> Result<(), Fault> {
        if self.0.is_empty() { Ok(()) } else { Err(Fault::Malformed("its body is too long")) }
    }

    /// A count, then so many entries.
    pub fn list<T: Entry>(&mut self) -> Result<List<'a, T>, Fault> {
        let count = self.u32()?;
        if count > ENTRIES_MAX {
            return Err(Fault::Beyond { what: "entries of a list", asked: count.into(), limit: ENTRIES_MAX.into() });
        }
        let bytes = self.bytes(count as usize * T::BYTES)?;
        for entry in bytes.chunks_exact(T::BYTES) {
            T::take(entry)?;
        }
        Ok(List(Entries::Encoded(bytes, PhantomData)))
    }
}

/// Something of fixed size that lists are made of.
pub trait Entry: Copy + PartialEq + fmt::Debug {
    #[doc(hidden)]
    const BYTES: usize;

    #[doc(hidden)]
    fn put(&self, to: &mut Vec<u8>);

    #[doc(hidden)]
    fn take(bytes: &[u8]) -> Result<Self, Fault>;
}

/// Entries of one request: the sender's own, or bytes that came and were checked.
#[derive(Clone, Copy)]
pub struct List<'a, T>(Entries<'a, T>);

#[derive(Clone, Copy)]
enum Entries<'a, T> {
    Own(&'a [T]),
    Encoded(&'a [u8], PhantomData<T>),
}

impl<'a, T: Entry> List<'a, T> {
    pub fn new(entries: &'a [T]) -> List<'a, T> {
        List(Entries::Own(entries))
    }

    pub fn len(&self) -> usize {
        match self.0 {
            Entries::Own(entries) => entries.len(),
            Entries::Encoded(bytes, _) => bytes.len() / T::BYTES,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T> {
        let (own, encoded) = match self.0 {
            Entries::Own(entries) => (entries, &[][..]),
            Entries::Encoded(bytes, _) => (&[][..], bytes),
        };
        // Each was checked when the list was read.
        own.iter().copied().chain(encoded.chunks_exact(T::BYTES).filter_map(|entry| T::take(entry).ok()))
    }

    pub(crate) fn encode(&self, to: &mut Writer<'_>) -> Result<(), Fault> {
        let len = self.len();
        let count = u32::try_from(len).ok().filter(|count| *count <= ENTRIES_MAX).ok_or(Fault::Beyond {
            what: "entries of a list",
            asked: len as u64,
            limit: ENTRIES_MAX.into(),
        })?;
        to.u32(count);
        match self.0 {
            Entries::Own(entries) => entries.iter().for_each(|entry| entry.put(to.0)),
            Entries::Encoded(bytes, _) => to.bytes(bytes),
        }
        Ok(())
    }
}

impl<T: Entry> fmt::Debug for List<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T: Entry> PartialEq for List<'_, T> {
    fn eq(&self, other: &List<'_, T>) -> bool {
        self.len() == other.len() && self.iter().zip(other.iter()).all(|(left, right)| left == right)
    }
}

/// Bytes that a frame carries, wherever they lie: they are sent from there, without being put together first.
#[derive(Clone, Copy)]
pub enum Payload<'a> {
    Whole(&'a [u8]),
    Pieces(&'a [&'a [u8]]),
}

impl<'a> Payload<'a> {
    pub fn len(&self) -> usize {
        self.pieces().map(<[u8]>::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn pieces(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (whole, pieces) = match *self {
            Payload::Whole(bytes) => (Some(bytes), &[][..]),
            Payload::Pieces(pieces) => (None, pieces),
        };
        whole.into_iter().chain(pieces.iter().copied())
    }

    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        self.pieces().for_each(|piece| bytes.extend_from_slice(piece));
        bytes
    }
}

impl fmt::Debug for Payload<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}

impl PartialEq for Payload<'_> {
    fn eq(&self, other: &Payload<'_>) -> bool {
        self.len() == other.len()
            && self.pieces().flatten().zip(other.pieces().flatten()).all(|(left, right)| left == right)
    }
}
