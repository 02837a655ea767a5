//! The first page of a device whose content outlives the process.
//!
//! Two copies, at byte 0 and at byte 2048, written in turn (the copy of epoch `e` is number `e % 2`), so that a write that
//! is cut short leaves the one before. All integers are little-endian.
//!
//! | offset | bytes | meaning |
//! | --- | --- | --- |
//! | 0 | 8 | `TIDEPOOL` |
//! | 8 | 4 | format version, 1 |
//! | 12 | 4 | bytes of a page, 4096 |
//! | 16 | 8 | bytes of the device in use, this page included |
//! | 24 | 16 | identity, random |
//! | 40 | 8 | epoch: grows by one with each open and each change of size; the holder of the latest owns the device |
//! | 48 | 8 | content: the epoch since which pages that an owner relies on are not cleared, nor moved by a change of size; its own records say which those are. 0 in devices of earlier releases |
//! | 56 | 1984 | zero |
//! | 2040 | 8 | XXH3-64 of bytes 0 to 2039 |
//!
//! A copy is valid if and only if its magic, its version and its checksum are right. A page of zeroes is a new device.
//! With magic but another version the device belongs to another release, which is not this one's to overwrite.

use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_device::{HEADER_BYTES, PAGE_BYTES};
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 8] = *b"TIDEPOOL";
const FORMAT_VERSION: u32 = 1;
const COPY_BYTES: usize = 2048;
const CHECKSUM_OFFSET: usize = COPY_BYTES - 8;

const _: () = assert!(2 * COPY_BYTES == HEADER_BYTES);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub identity: [u8; 16],
    pub epoch: u64,
    pub size_bytes: u64,
    pub content: u64,
}

impl Superblock {
    /// What a device's first page says; `None` when it is new. `device` names it in errors.
    pub fn read(header: &[u8], device: &str) -> Result<Option<Superblock>> {
        if header.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let copies = [&header[..COPY_BYTES], &header[COPY_BYTES..2 * COPY_BYTES]];
        if !copies.iter().any(|copy| copy.starts_with(&MAGIC)) {
            return Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("device \"{device}\" holds something that is not Tidepool's"),
            )
            .with_hint("Name another place, or zero its first 4 kB to give it to Tidepool with all it holds."));
        }
        let mut newest: Option<Superblock> = None;
        for copy in copies.into_iter().filter(|copy| copy.starts_with(&MAGIC)) {
            let version = u32::from_le_bytes(field(copy, 8));
            if version != FORMAT_VERSION {
                return Err(Error::new(
                    SqlState::FEATURE_NOT_SUPPORTED,
                    format!("device \"{device}\" has format version {version}"),
                )
                .with_detail(format!("This release of Tidepool reads version {FORMAT_VERSION}.")));
            }
            if xxh3_64(&copy[..CHECKSUM_OFFSET]) != u64::from_le_bytes(field(copy, CHECKSUM_OFFSET)) {
                continue;
            }
            let found = Superblock {
                identity: field(copy, 24),
                epoch: u64::from_le_bytes(field(copy, 40)),
                size_bytes: u64::from_le_bytes(field(copy, 16)),
                content: u64::from_le_bytes(field(copy, 48)),
            };
            if newest.is_none_or(|newest| newest.epoch < found.epoch) {
                newest = Some(found);
            }
        }
        newest.map(Some).ok_or_else(|| {
            Error::corrupted(format!("the superblock of device \"{device}\" is damaged"))
                .with_detail("Neither copy has the right checksum.")
                .with_hint("Zero its first 4 kB to start anew with it.")
        })
    }

    /// The next owner's: of the device as it was found, or of a new one. `keeps`: what is there stays.
    pub fn next(found: Option<Superblock>, size_bytes: u64, keeps: bool) -> Result<Superblock> {
        let (identity, epoch) = match found {
            Some(found) => (found.identity, found.epoch + 1),
            None => (random_identity()?, 1),
        };
        let content = found.filter(|_| keeps).map_or(epoch, |found| found.content);
        Ok(Superblock { identity, epoch, size_bytes, content })
    }

    /// Writes the copy whose turn it is.
    pub fn write(&self, header: &mut [u8]) {
        let first = (self.epoch % 2) as usize * COPY_BYTES;
        let copy = &mut header[first..first + COPY_BYTES];
        copy.fill(0);
        copy[..8].copy_from_slice(&MAGIC);
        copy[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        copy[12..16].copy_from_slice(&(PAGE_BYTES as u32).to_le_bytes());
        copy[16..24].copy_from_slice(&self.size_bytes.to_le_bytes());
        copy[24..40].copy_from_slice(&self.identity);
        copy[40..48].copy_from_slice(&self.epoch.to_le_bytes());
        copy[48..56].copy_from_slice(&self.content.to_le_bytes());
        let checksum = xxh3_64(&copy[..CHECKSUM_OFFSET]);
        copy[CHECKSUM_OFFSET..].copy_from_slice(&checksum.to_le_bytes());
    }

    pub fn describe(&self) -> String {
        let identity: String = self.identity.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{identity}, epoch {}, {}", self.epoch, ByteSize(self.size_bytes))
    }
}

fn field<const N: usize>(copy: &[u8], offset: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&copy[offset..offset + N]);
    bytes
}

fn random_identity() -> Result<[u8; 16]> {
    let mut identity = [0u8; 16];
    // SAFETY: a buffer of the length that is given.
    let count = unsafe { libc::getrandom(identity.as_mut_ptr().cast(), identity.len(), 0) };
    if count == identity.len() as isize {
        Ok(identity)
    } else {
        Err(Error::io("get random bytes", &std::io::Error::last_os_error()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blank() -> Vec<u8> {
        vec![0; HEADER_BYTES]
    }

    #[test]
    fn the_newest_valid_copy_counts() {
        let mut header = blank();
        assert_eq!(Superblock::read(&header, "d").unwrap(), None);
        let first = Superblock { identity: [7; 16], epoch: 1, size_bytes: 1 << 30, content: 1 };
        first.write(&mut header);
        assert_eq!(Superblock::read(&header, "d").unwrap(), Some(first));
        let second = Superblock::next(Some(first), 2 << 30, true).unwrap();
        second.write(&mut header);
        assert_eq!(Superblock::read(&header, "d").unwrap(), Some(second));
        assert_eq!((second.identity, second.epoch, second.content), ([7; 16], 2, 1));
        assert_eq!(Superblock::next(Some(second), 2 << 30, false).unwrap().content, 3);
        // A torn write of the second leaves the first.
        header[30] ^= 1;
        assert_eq!(Superblock::read(&header, "d").unwrap(), Some(first));
        header[COPY_BYTES + 100] ^= 1;
        assert_eq!(Superblock::read(&header, "d").unwrap_err().code(), SqlState::DATA_CORRUPTED);
    }

    #[test]
    fn foreign_content_and_other_versions_are_refused() {
        let mut header = blank();
        header[100] = 1;
        let error = Superblock::read(&header, "d").unwrap_err();
        assert_eq!(error.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
        let mut header = blank();
        Superblock { identity: [7; 16], epoch: 2, size_bytes: 1, content: 1 }.write(&mut header);
        header[8] = 2;
        let error = Superblock::read(&header, "d").unwrap_err();
        assert_eq!(error.code(), SqlState::FEATURE_NOT_SUPPORTED);
        assert!(error.message().contains("version 2"));
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel")]
    fn new_devices_differ() {
        let first = Superblock::next(None, 1, false).unwrap();
        assert_ne!(first.identity, Superblock::next(None, 1, false).unwrap().identity);
        assert_eq!((first.epoch, first.content), (1, 1));
    }
}
