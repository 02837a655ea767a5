//! One device mapped into the address space.

use crate::Location;
use std::ops::Range;
use std::ptr::NonNull;
use tidepool_base::Result;

#[derive(Clone, Copy, Debug)]
pub struct MapOptions {
    /// Ask for huge pages where the device has them.
    pub huge_pages: bool,
}

/// A mapped device. Unmapped on drop.
#[derive(Debug)]
pub struct Mapping {}

impl Mapping {
    /// Maps `size` bytes (rounded up to the device's unit) of `location`. For a DAX device or an existing file of fixed
    /// size, `None` takes all of it.
    pub fn open(_location: &Location, _size: Option<u64>, _options: MapOptions) -> Result<Mapping> {
        unimplemented!()
    }

    /// Heap-backed stand-in, for Miri and for tests.
    pub fn heap(_size: usize) -> Mapping {
        unimplemented!()
    }

    pub fn base(&self) -> NonNull<u8> {
        unimplemented!()
    }

    pub fn len(&self) -> usize {
        unimplemented!()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn page_size(&self) -> usize {
        unimplemented!()
    }

    /// Gives the pages of `range` (byte offsets) back to the system; they read as zeroes afterwards. Where the device
    /// cannot (device DAX), does nothing and returns false.
    pub fn release(&self, _range: Range<usize>) -> Result<bool> {
        unimplemented!()
    }

    /// Makes writes to `range` durable on devices that persist (`clwb` and `sfence`, or `msync`).
    pub fn persist(&self, _range: Range<usize>) -> Result<()> {
        unimplemented!()
    }
}
