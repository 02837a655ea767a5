//! Text as the engine carries it: sixteen bytes a value, most comparisons decided by the first eight.
//!
//! A value of up to twelve bytes lies within; of a longer one, its first four bytes and its address. The layout is that
//! of Umbra (Neumann and Freitag, CIDR 2020). Who holds a long value holds also what its bytes lie in ([`Owners`]).

use arrow_buffer::Buffer;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

/// A longer value lies elsewhere.
pub const INLINE_MAX: usize = 12;

/// A value of text or bytes. Its bytes may be read while what it was made of is there: see [`Text::bytes`].
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub struct Text {
    len: u32,
    prefix: [u8; 4],
    /// The rest of a short value, padded with zeros; the address of all of a long one.
    rest: u64,
}

const _: () = assert!(size_of::<Text>() == 16);

// SAFETY: the address is of bytes that nobody changes (`Text::new`'s caller vouches for it), so any thread may read them.
unsafe impl Send for Text {}
// SAFETY: as above.
unsafe impl Sync for Text {}

impl Text {
    pub const EMPTY: Text = Text { len: 0, prefix: [0; 4], rest: 0 };

    /// # Safety
    ///
    /// Whoever calls [`Text::bytes`] of it, or compares it, does so while `bytes` are there and unchanged. Values of at
    /// most [`INLINE_MAX`] bytes are copied, and may outlive them.
    #[inline]
    pub unsafe fn new(bytes: &[u8]) -> Text {
        let len = bytes.len() as u32;
        debug_assert!(bytes.len() <= u32::MAX as usize);
        if bytes.len() <= INLINE_MAX {
            return Text::short(bytes);
        }
        let prefix = [bytes[0], bytes[1], bytes[2], bytes[3]];
        Text { len, prefix, rest: bytes.as_ptr().expose_provenance() as u64 }
    }

    /// Of at most [`INLINE_MAX`] bytes. Panics on more.
    #[inline]
    pub fn short(bytes: &[u8]) -> Text {
        let len = bytes.len();
        assert!(len <= INLINE_MAX, "a short value is long");
        let last_four = || bytes.last_chunk::<4>().map_or(0, |last| u64::from(u32::from_le_bytes(*last)));
        // Loads that overlap, for a copy of unknown length is a call.
        let (low, high) = if let Some(eight) = bytes.first_chunk::<8>() {
            (u64::from_le_bytes(*eight), last_four() >> ((12 - len) * 8))
        } else if let Some(four) = bytes.first_chunk::<4>() {
            (u64::from(u32::from_le_bytes(*four)) | last_four() >> ((8 - len) * 8) << 32, 0)
        } else if let (Some(first), Some(last)) = (bytes.first(), bytes.last()) {
            let middle = len / 2;
            let middle = u64::from(bytes[middle]) << (middle * 8);
            (u64::from(*first) | middle | u64::from(*last) << ((len - 1) * 8), 0)
        } else {
            (0, 0)
        };
        Text { len: len as u32, prefix: (low as u32).to_le_bytes(), rest: low >> 32 | high << 32 }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether all of it lies within.
    #[inline]
    pub fn is_short(&self) -> bool {
        self.len as usize <= INLINE_MAX
    }

    /// # Safety
    ///
    /// What the value was made of is there, unchanged, as long as the result is used.
    #[inline]
    pub unsafe fn bytes(&self) -> &[u8] {
        if self.is_short() {
            // SAFETY: `prefix` and `rest` follow each other without a gap (`repr(C)`), twelve bytes in all.
            unsafe { std::slice::from_raw_parts((&raw const self.prefix).cast::<u8>(), self.len as usize) }
        } else {
            let address = std::ptr::with_exposed_provenance::<u8>(self.rest as usize);
            // SAFETY: made in `new` of a slice of that length, which the caller vouches for.
            unsafe { std::slice::from_raw_parts(address, self.len as usize) }
        }
    }

    /// Length and first four bytes.
    #[inline]
    pub fn head(&self) -> u64 {
        u64::from(self.len) | u64::from(u32::from_le_bytes(self.prefix)) << 32
    }

    /// What follows the head of a short value; of a long one, nothing that means anything.
    #[inline]
    pub fn rest(&self) -> u64 {
        self.rest
    }

    /// # Safety
    ///
    /// As for [`Text::bytes`], of both.
    #[inline]
    pub unsafe fn equals(&self, other: &Text) -> bool {
        if self.head() != other.head() {
            return false;
        }
        if self.is_short() || self.rest == other.rest {
            return self.rest == other.rest;
        }
        // SAFETY: the caller's word.
        unsafe { self.bytes() == other.bytes() }
    }

    /// By bytes, which is how text is ordered.
    ///
    /// # Safety
    ///
    /// As for [`Text::bytes`], of both.
    #[inline]
    pub unsafe fn compare(&self, other: &Text) -> Ordering {
        let (a, b) = (u32::from_be_bytes(self.prefix), u32::from_be_bytes(other.prefix));
        if a != b {
            // Short values are padded with zeros, so one that ends within the prefix is below all that go on.
            return a.cmp(&b);
        }
        // SAFETY: the caller's word.
        unsafe { self.bytes().cmp(other.bytes()) }
    }
}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_short() {
            // SAFETY: all of it lies within.
            write!(f, "{:?}", String::from_utf8_lossy(unsafe { self.bytes() }))
        } else {
            write!(f, "{:?}… ({} bytes)", String::from_utf8_lossy(&self.prefix), self.len)
        }
    }
}

/// What the bytes of some long values lie in. Cheap to clone and to join.
#[derive(Clone, Debug, Default)]
pub struct Owners(Vec<Arc<[Buffer]>>);

impl Owners {
    pub fn of(buffers: Vec<Buffer>) -> Owners {
        if buffers.is_empty() { Owners::default() } else { Owners(vec![buffers.into()]) }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        self.0.iter().flat_map(|owner| owner.iter())
    }

    /// What any of some hold, each once, and as one.
    pub fn union<'a>(all: impl Iterator<Item = &'a Owners>) -> Owners {
        let mut known = std::collections::HashSet::new();
        let owners = all.flat_map(|owners| &owners.0).filter(|owner| known.insert(Arc::as_ptr(owner).cast::<Buffer>()));
        Owners::of(owners.flat_map(|owner| owner.iter().cloned()).collect())
    }

    pub fn join(&mut self, other: &Owners) {
        for owner in &other.0 {
            if !self.0.iter().any(|known| Arc::ptr_eq(known, owner)) {
                self.0.push(Arc::clone(owner));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_values_come_back() {
        for len in 0..=INLINE_MAX {
            let bytes: Vec<u8> = (1..=len as u8).collect();
            let text = Text::short(&bytes);
            // SAFETY: all of it lies within.
            assert_eq!(unsafe { text.bytes() }, bytes);
            let mut padded = [0; 8];
            bytes.iter().skip(4).zip(&mut padded).for_each(|(byte, padded)| *padded = *byte);
            assert_eq!(text.rest(), u64::from_le_bytes(padded));
        }
    }

    #[test]
    fn order_and_equality_are_those_of_bytes() {
        let values: Vec<Vec<u8>> = [
            &b""[..],
            b"\0",
            b"a",
            b"a\0",
            b"ab",
            b"abcd",
            b"abcd\0",
            b"abcde",
            b"abcdefghijkl",
            b"abcdefghijklm",
            b"abcdefghijkln",
            b"abcdefghijklmn",
            b"b",
            b"\xff\xff",
        ]
        .map(<[u8]>::to_vec)
        .to_vec();
        for a in &values {
            for b in &values {
                // SAFETY: `values` outlives both.
                unsafe {
                    let (x, y) = (Text::new(a), Text::new(b));
                    assert_eq!(x.compare(&y), a.cmp(b), "{a:?} {b:?}");
                    assert_eq!(x.equals(&y), a == b);
                    assert_eq!(x.bytes(), &a[..]);
                    let copy = b.clone();
                    assert_eq!(x.equals(&Text::new(&copy)), a == b);
                }
            }
        }
    }
}
