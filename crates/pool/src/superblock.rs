//! The first page of each device of a pool.
//!
//! Two copies, at byte 0 and at byte 2048, as a tablespace's device has them, so that either is told from the other: the copy
//! of epoch `e` is number `e % 2`. All integers are little-endian.
//!
//! | offset | bytes | meaning |
//! | --- | --- | --- |
//! | 0 | 8 | `TIDEPOOL` |
//! | 8 | 4 | format version, 2 (1 is a tablespace's device) |
//! | 12 | 4 | bytes of a page, 4096 |
//! | 16 | 8 | bytes of the device that are used |
//! | 24 | 16 | identity of the pool, random |
//! | 40 | 8 | epoch: grows by one with each change |
//! | 48 | 4 | which device of the pool this is, from 0 on |
//! | 52 | 4 | its first extent |
//! | 56 | 4 | its extents |
//! | 60 | 4 | extents for which the pool has owners |
//! | 64 | 8 | bytes of an extent |
//! | 72 | 8 | features that must be known to use the pool, as bits |
//! | 80 | 8 | features that must be known to write to it |
//! | 88 | 8 | features that need not be known |
//! | 96 | 8 | when it was made, microseconds since 1970 |
//! | 104 | 8 | 1: all hosts see each other's stores |
//! | 112 | 64 | label, padded with zeroes |
//! | 176 | 40 | boot id of the machine that made it, padded with zeroes |
//! | 216 | 4 | machines that the pool is dealt out to; 0: it is not |
//! | 220 | 4 | which slice of it this is the first page of, from 1 on; 0: of the device |
//! | 224 | 1816 | zero |
//! | 2040 | 8 | XXH3-64 of bytes 0 to 2039 |

use crate::dealt::MACHINES_MAX;
use crate::layout::{EXTENT_BYTES_MAX, EXTENT_BYTES_MIN, PAGE_BYTES};
use crate::system;
use crate::words::Extent;
use tidepool_base::{Error, Result, SqlState};
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 8] = *b"TIDEPOOL";
const FORMAT_VERSION: u32 = 2;
const COPY_BYTES: usize = 2048;
const CHECKSUM_OFFSET: usize = COPY_BYTES - 8;
const LABEL: std::ops::Range<usize> = 112..176;
const BOOT_ID: std::ops::Range<usize> = 176..216;
const END: usize = 224;

pub const LABEL_BYTES: usize = 64;

/// The pool is dealt out to machines that do not see each other's stores.
pub const DEALT: u64 = 1;

/// What this release knows.
const FEATURES_KNOWN: u64 = DEALT;

/// What a pool has once it is finalized: features that must be known, that must be known to write, and others.
pub(crate) const FEATURES_WRITTEN: (u64, u64, u64) = (0, 0, 0);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    pub identity: [u8; 16],
    pub epoch: u64,
    pub size_bytes: u64,
    pub device: u32,
    pub first: Extent,
    pub extents: u32,
    pub extents_max: u32,
    pub extent_bytes: u64,
    pub must_know: u64,
    pub must_know_to_write: u64,
    pub may_ignore: u64,
    pub made_us: u64,
    pub is_coherent: bool,
    /// Of a pool that is dealt out; otherwise 0.
    pub machines: u32,
    /// Whose first page this is, from 1 on. 0: a device's.
    pub slice: u32,
    pub label: String,
    pub boot_id: String,
}

/// What the first page of a device says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FirstPage {
    /// Zeroes.
    New,
    Pool(Box<Superblock>),
}

impl Superblock {
    /// Of a pool that is made now. The caller says of which device, and of how much of it.
    pub(crate) fn new(identity: [u8; 16], extent_bytes: u64, label: &str) -> Superblock {
        Superblock {
            identity,
            epoch: 2,
            size_bytes: 0,
            device: 0,
            first: Extent(0),
            extents: 0,
            extents_max: 0,
            extent_bytes,
            must_know: 0,
            must_know_to_write: 0,
            may_ignore: 0,
            made_us: system::wall_us(),
            is_coherent: true,
            machines: 0,
            slice: 0,
            label: label.to_owned(),
            boot_id: system::boot_id(),
        }
    }

    /// Reads the first page. `device` names it in errors.
    pub fn read(page: &[u8], device: &str) -> Result<FirstPage> {
        if page.iter().all(|byte| *byte == 0) {
            return Ok(FirstPage::New);
        }
        let copies = [&page[..COPY_BYTES], &page[COPY_BYTES..2 * COPY_BYTES]];
        if !copies.iter().any(|copy| copy.starts_with(&MAGIC)) {
            return Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("device \"{device}\" holds something that is not Tidepool's"),
            )
            .with_hint("Name another place, or zero its first 4 kB to give it to Tidepool with all it holds."));
        }
        let mut newest: Option<Superblock> = None;
        for copy in copies.into_iter().filter(|copy| copy.starts_with(&MAGIC)) {
            match u32::from_le_bytes(bytes(copy, 8)) {
                FORMAT_VERSION => {}
                1 => {
                    return Err(Error::new(
                        SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                        format!("device \"{device}\" belongs to a tablespace"),
                    )
                    .with_hint("Name another place, or zero its first 4 kB to give it up with all it holds."));
                }
                version => {
                    return Err(Error::unsupported(format!("device \"{device}\" has format version {version}"))
                        .with_detail(format!("This release of Tidepool reads version {FORMAT_VERSION} of a pool.")));
                }
            }
            if let Some(found) = Superblock::of_copy(copy)
                && newest.as_ref().is_none_or(|newest| newest.epoch < found.epoch)
            {
                newest = Some(found);
            }
        }
        let found = newest.ok_or_else(|| {
            Error::corrupted(format!("the superblock of device \"{device}\" is damaged"))
                .with_detail("Neither copy has the right checksum.")
        })?;
        found.check(device)?;
        Ok(FirstPage::Pool(Box::new(found)))
    }

    /// A page begins as one of Tidepool's.
    pub fn may_be_one(page: &[u8]) -> bool {
        page.starts_with(&MAGIC) || page[COPY_BYTES..].starts_with(&MAGIC)
    }

    fn of_copy(copy: &[u8]) -> Option<Superblock> {
        if xxh3_64(&copy[..CHECKSUM_OFFSET]) != u64::from_le_bytes(bytes(copy, CHECKSUM_OFFSET)) {
            return None;
        }
        let text = |range: std::ops::Range<usize>| {
            let text = &copy[range];
            let len = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
            String::from_utf8_lossy(&text[..len]).into_owned()
        };
        let four = |offset| u32::from_le_bytes(bytes(copy, offset));
        let eight = |offset| u64::from_le_bytes(bytes(copy, offset));
        Some(Superblock {
            identity: bytes(copy, 24),
            epoch: eight(40),
            size_bytes: eight(16),
            device: four(48),
            first: Extent(four(52)),
            extents: four(56),
            extents_max: four(60),
            extent_bytes: eight(64),
            must_know: eight(72),
            must_know_to_write: eight(80),
            may_ignore: eight(88),
            made_us: eight(96),
            is_coherent: eight(104) == 1,
            machines: four(216),
            slice: four(220),
            label: text(LABEL),
            boot_id: text(BOOT_ID),
        })
    }

    /// What is checksummed was written by some release; what it says must be what this one can use.
    fn check(&self, device: &str) -> Result<()> {
        let unknown = (self.must_know | self.must_know_to_write) & !FEATURES_KNOWN;
        if unknown != 0 {
            return Err(Error::unsupported(format!("device \"{device}\" uses features of a later release"))
                .with_detail(format!("Their bits are {unknown:#x}."))
                .with_hint("Use that release."));
        }
        let is_sound = self.extent_bytes.is_power_of_two()
            && (EXTENT_BYTES_MIN..=EXTENT_BYTES_MAX).contains(&self.extent_bytes)
            && self.first.0.checked_add(self.extents).is_some_and(|end| end <= self.extents_max)
            && self.extents_max <= Extent::MAX.0
            && self.size_bytes == u64::from(self.extents) * self.extent_bytes
            && self.machines <= u32::from(MACHINES_MAX)
            && self.slice <= self.machines
            && (self.machines == 0) == (self.must_know & DEALT == 0);
        if is_sound {
            Ok(())
        } else {
            Err(Error::corrupted(format!("the superblock of device \"{device}\" contradicts itself")))
        }
    }

    /// The first page with this copy, and what `page` has of the other.
    pub fn write(&self, page: &mut [u8; PAGE_BYTES]) {
        let first = (self.epoch % 2) as usize * COPY_BYTES;
        let copy = &mut page[first..first + COPY_BYTES];
        copy.fill(0);
        copy[..8].copy_from_slice(&MAGIC);
        let mut put = |offset: usize, value: &[u8]| copy[offset..offset + value.len()].copy_from_slice(value);
        put(8, &FORMAT_VERSION.to_le_bytes());
        put(12, &(PAGE_BYTES as u32).to_le_bytes());
        put(16, &self.size_bytes.to_le_bytes());
        put(24, &self.identity);
        put(40, &self.epoch.to_le_bytes());
        put(48, &self.device.to_le_bytes());
        put(52, &self.first.0.to_le_bytes());
        put(56, &self.extents.to_le_bytes());
        put(60, &self.extents_max.to_le_bytes());
        put(64, &self.extent_bytes.to_le_bytes());
        put(72, &self.must_know.to_le_bytes());
        put(80, &self.must_know_to_write.to_le_bytes());
        put(88, &self.may_ignore.to_le_bytes());
        put(96, &self.made_us.to_le_bytes());
        put(104, &u64::from(self.is_coherent).to_le_bytes());
        put(216, &self.machines.to_le_bytes());
        put(220, &self.slice.to_le_bytes());
        put(LABEL.start, &self.label.as_bytes()[..self.label.len().min(LABEL_BYTES)]);
        put(BOOT_ID.start, &self.boot_id.as_bytes()[..self.boot_id.len().min(BOOT_ID.len())]);
        let checksum = xxh3_64(&copy[..CHECKSUM_OFFSET]);
        copy[CHECKSUM_OFFSET..].copy_from_slice(&checksum.to_le_bytes());
    }

    /// What is wrong with the two copies of a first page: each is right or was never written.
    pub fn faults(page: &[u8]) -> Vec<&'static str> {
        [
            (&page[..COPY_BYTES], "the first copy of the superblock"),
            (&page[COPY_BYTES..2 * COPY_BYTES], "the second copy of the superblock"),
        ]
        .into_iter()
        .filter(|(copy, _)| {
            let is_right = copy.starts_with(&MAGIC)
                && copy[END..CHECKSUM_OFFSET].iter().all(|byte| *byte == 0)
                && Superblock::of_copy(copy).is_some();
            !is_right && copy.iter().any(|byte| *byte != 0)
        })
        .map(|(_, name)| name)
        .collect()
    }
}

fn bytes<const N: usize>(copy: &[u8], offset: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&copy[offset..offset + N]);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock(epoch: u64) -> Superblock {
        Superblock {
            identity: [7; 16],
            epoch,
            size_bytes: 8 << 21,
            device: 1,
            first: Extent(9),
            extents: 8,
            extents_max: 64,
            extent_bytes: 2 << 20,
            must_know: 0,
            must_know_to_write: 0,
            may_ignore: 5,
            made_us: 1_790_000_000_000_000,
            is_coherent: true,
            machines: 0,
            slice: 0,
            label: "orders".into(),
            boot_id: "1b4e28ba-2fa1-11d2-883f-0016d3cca427".into(),
        }
    }

    #[test]
    fn the_newest_valid_copy_counts() {
        let mut page = [0; PAGE_BYTES];
        assert_eq!(Superblock::read(&page, "d").unwrap(), FirstPage::New);
        for epoch in [1, 2, 3] {
            superblock(epoch).write(&mut page);
            assert_eq!(Superblock::read(&page, "d").unwrap(), FirstPage::Pool(Box::new(superblock(epoch))));
            assert!(Superblock::faults(&page).is_empty());
        }
        page[COPY_BYTES + 300] ^= 1;
        assert_eq!(Superblock::read(&page, "d").unwrap(), FirstPage::Pool(Box::new(superblock(2))));
        assert_eq!(Superblock::faults(&page), ["the second copy of the superblock"]);
        page[300] ^= 1;
        assert_eq!(Superblock::read(&page, "d").unwrap_err().code(), SqlState::DATA_CORRUPTED);
    }

    #[test]
    fn what_is_of_others_is_refused() {
        let code = |page: &[u8]| Superblock::read(page, "d").unwrap_err();
        let mut page = [0; PAGE_BYTES];
        page[9] = 1;
        assert_eq!(code(&page).code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
        let mut page = [0; PAGE_BYTES];
        superblock(1).write(&mut page);
        page[COPY_BYTES + 8] = 1;
        assert!(code(&page).message().contains("belongs to a tablespace"));
        page[COPY_BYTES + 8] = 3;
        assert_eq!(code(&page).code(), SqlState::FEATURE_NOT_SUPPORTED);
        let mut page = [0; PAGE_BYTES];
        Superblock { must_know_to_write: 4, ..superblock(1) }.write(&mut page);
        assert!(code(&page).message().contains("later release"));
        let mut page = [0; PAGE_BYTES];
        Superblock { extents: 60, ..superblock(1) }.write(&mut page);
        assert_eq!(code(&page).code(), SqlState::DATA_CORRUPTED);
    }
}
