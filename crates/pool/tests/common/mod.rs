//! What the tests have in common that start processes over a pool and kill them.

use std::path::Path;
use tidepool_base::Result;
use tidepool_device::Location;
use tidepool_pool::member::Member;
use tidepool_pool::words::Extent;

pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        // splitmix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

pub fn location(path: &Path) -> Location {
    Location::File(path.to_owned())
}

/// The first and the last word of an extent, as one.
#[derive(Clone, Copy)]
pub struct Ends(*mut u64, *mut u64);

impl Ends {
    pub fn of(member: &Member, extent: Extent) -> Result<Ends> {
        let (base, len) = member.extent(extent)?;
        let first: *mut u64 = base.as_ptr().cast();
        Ok(Ends(first, first.wrapping_add(len / 8 - 1)))
    }

    pub fn write(self, mark: u64) {
        // SAFETY: both are in an extent that the process owns, mapped as long as its pool is open. Volatile, as the test is
        // about others that may store there wrongly.
        unsafe {
            self.0.write_volatile(mark);
            self.1.write_volatile(mark);
        }
    }

    pub fn read(self) -> (u64, u64) {
        // SAFETY: as above.
        unsafe { (self.0.read_volatile(), self.1.read_volatile()) }
    }
}
