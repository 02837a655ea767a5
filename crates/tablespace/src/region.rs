use crate::{Purpose, Tablespace};
use std::ptr::NonNull;
use std::sync::Arc;

/// An owned run of bytes in a tablespace. Send and Sync; freed on drop; keeps its tablespace open.
#[derive(Debug)]
pub struct Region {
    space: Arc<Tablespace>,
    address: NonNull<u8>,
    len: usize,
    purpose: Purpose,
    /// Of main: nothing is written there any more.
    is_published: bool,
}

// SAFETY: owns its bytes, as a boxed slice does.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// # Safety
    /// The pages that `[address, address + len)` touches came from `space.allocate_pages` under `purpose` and become this
    /// region's. With `len` zero there are none.
    pub(crate) unsafe fn new(space: Arc<Tablespace>, address: NonNull<u8>, len: usize, purpose: Purpose) -> Region {
        Region { space, address, len, purpose, is_published: false }
    }

    /// As `new`, of main that another host wrote and this one reads.
    ///
    /// # Safety
    /// As of `new`; the pages are mapped to be read.
    pub(crate) unsafe fn attached(space: Arc<Tablespace>, address: NonNull<u8>, len: usize) -> Region {
        Region { space, address, len, purpose: Purpose::Main, is_published: true }
    }

    /// Says that its bytes, of main, are never written again: then other hosts may come to read them.
    pub fn publish(&mut self) {
        if !std::mem::replace(&mut self.is_published, true) {
            self.note_written();
        }
    }

    fn note_written(&self) {
        if self.purpose == Purpose::Main && self.len > 0 && self.space.is_leased() {
            self.space.note_written(&self.space.pages_of(self.address, crate::space::page_bytes(self.len)));
        }
    }

    pub fn tablespace(&self) -> &Arc<Tablespace> {
        &self.space
    }

    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// As `len()`, for those whose bytes are written by others meanwhile and may not be borrowed.
    pub fn len_bytes(&self) -> usize {
        self.len
    }

    /// Whether it is to be given up, so that its tablespace can shrink. As `Tablespace::is_closing`, without borrowing bytes.
    pub fn is_closing(&self) -> bool {
        self.space.is_run_closing(self.address.as_ptr().addr(), self.len)
    }

    /// Copies `bytes` to `offset` in the region, and makes them durable on devices that persist. On those it writes past the
    /// cache. 58030 when the system could not write a mapped file back; then nobody knows what its storage holds.
    ///
    /// # Panics
    /// When they do not fit there.
    pub fn store(&mut self, offset: usize, bytes: &[u8]) -> tidepool_base::Result<()> {
        assert!(offset <= self.len && bytes.len() <= self.len - offset, "{} bytes at {offset}", bytes.len());
        let start = self.address.addr().get() - self.space.window.base().addr().get();
        // SAFETY: these bytes are the region's, which is borrowed exclusively.
        unsafe { self.space.window.store(start + offset, bytes) }
    }
}

impl std::ops::Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: owned, mapped for as long as `space` lives, and never uninitialised: pages of a device hold something.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.len) }
    }
}

impl std::ops::DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.len) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.len > 0 {
            if !self.is_published {
                self.note_written();
            }
            // SAFETY: `new` was given these pages, and nothing borrows from a region that is dropped.
            unsafe {
                self.space.free_pages(self.address, crate::space::page_bytes(self.len), self.purpose);
            }
        }
    }
}
