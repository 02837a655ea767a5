//! Pages of heads, in near memory where there is room.

use super::version::Head;
use std::ptr::NonNull;
use std::sync::Arc;
use tidepool_base::Result;
use tidepool_device::PAGE_BYTES;
use tidepool_tablespace::Tablespace;

/// Heads of one page. Row ids are handed out by as many, and their marks take one cache line: two threads that insert
/// share none.
pub(crate) const PAGE_HEADS: usize = if cfg!(loom) { 64 } else { PAGE_BYTES / size_of::<Head>() };
const _: () = assert!(cfg!(loom) || PAGE_HEADS == 512);

#[derive(Debug)]
#[repr(transparent)]
pub(super) struct HeadPage(pub [Head; PAGE_HEADS]);

/// Where a store's pages of heads lie: near, and where near is full, with its versions.
#[derive(Debug)]
pub(super) struct HeadMemory {
    #[cfg_attr(loom, allow(dead_code))]
    spaces: [Arc<Tablespace>; 2],
}

impl HeadMemory {
    pub fn new(near: &Arc<Tablespace>, versions: &Arc<Tablespace>) -> HeadMemory {
        HeadMemory { spaces: [near, versions].map(Arc::clone) }
    }

    /// A page of null heads. 53200 when both tablespaces are full.
    #[cfg(not(loom))]
    pub fn take(&self) -> Result<NonNull<HeadPage>> {
        use tidepool_base::{Error, SqlState};
        use tidepool_tablespace::Purpose;

        let run = |space: &Arc<Tablespace>| space.allocate_run(PAGE_BYTES, PAGE_BYTES, Purpose::Delta);
        let Some(run) = self.spaces.iter().find_map(run) else {
            let [_, versions] = &self.spaces;
            return Err(match versions.allocate(PAGE_BYTES, Purpose::Delta) {
                Err(full) => full,
                // Somebody freed some in between. The statement fails all the same, as it did run out of it.
                Ok(_) => Error::new(SqlState::OUT_OF_MEMORY, format!("tablespace \"{}\" is full", versions.name())),
            });
        };
        let page = run.address.cast::<HeadPage>();
        if !run.zeroed {
            // SAFETY: the page was just taken. Zeroes are null heads.
            unsafe { page.as_ptr().write_bytes(0, 1) };
        }
        Ok(page)
    }

    /// # Safety
    /// From this one's `take`, out of reach, and given back once.
    #[cfg(not(loom))]
    pub unsafe fn give_back(&self, page: NonNull<HeadPage>) {
        let [near, versions] = &self.spaces;
        let space = if near.address_range().contains(&page.addr().get()) { near } else { versions };
        // SAFETY: the caller's; it was taken as one page of the tablespace whose addresses have it.
        unsafe { space.free_pages(page.cast(), PAGE_BYTES, tidepool_tablespace::Purpose::Delta) };
    }

    /// loom's atomics are made one by one.
    #[cfg(loom)]
    pub fn take(&self) -> Result<NonNull<HeadPage>> {
        Ok(NonNull::from(Box::leak(Box::new(HeadPage(std::array::from_fn(|_| Head::default()))))))
    }

    /// # Safety
    /// As the other one.
    #[cfg(loom)]
    pub unsafe fn give_back(&self, page: NonNull<HeadPage>) {
        // SAFETY: the caller's.
        drop(unsafe { Box::from_raw(page.as_ptr()) });
    }
}
