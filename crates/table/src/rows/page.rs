//! Pages of heads, in near memory.

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

/// A page of null heads. 53200 when near is full.
#[cfg(not(loom))]
pub(super) fn new_page(near: &Arc<Tablespace>) -> Result<NonNull<HeadPage>> {
    use tidepool_base::{Error, SqlState};
    use tidepool_tablespace::Purpose;

    let run = near.allocate_run(PAGE_BYTES, PAGE_BYTES, Purpose::Delta);
    let Some(run) = run else {
        return Err(match near.allocate(PAGE_BYTES, Purpose::Delta) {
            Err(full) => full,
            // Somebody freed some in between. The statement fails all the same, as it did run out of it.
            Ok(_) => Error::new(SqlState::OUT_OF_MEMORY, "tablespace \"near\" is full"),
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
/// From `new_page`, out of reach, and freed once.
#[cfg(not(loom))]
pub(super) unsafe fn free_page(near: &Tablespace, page: NonNull<HeadPage>) {
    // SAFETY: the caller's; it was taken as one page of `near`.
    unsafe { near.free_pages(page.cast(), PAGE_BYTES, tidepool_tablespace::Purpose::Delta) };
}

/// loom's atomics are made one by one.
#[cfg(loom)]
pub(super) fn new_page(_: &Arc<Tablespace>) -> Result<NonNull<HeadPage>> {
    Ok(NonNull::from(Box::leak(Box::new(HeadPage(std::array::from_fn(|_| Head::default()))))))
}

/// # Safety
/// As the other one.
#[cfg(loom)]
pub(super) unsafe fn free_page(_: &Tablespace, page: NonNull<HeadPage>) {
    // SAFETY: the caller's.
    drop(unsafe { Box::from_raw(page.as_ptr()) });
}
