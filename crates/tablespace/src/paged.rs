//! Paged tablespaces, whose far side is emulated or a memory node: one run of pages behind a cache, which grow and shrink at
//! their end as plain ones do. Their cache changes its size beside.

use crate::shape::{Reshape, Shape, Step, reserved_bytes};
use crate::space::page_bytes;
use crate::{Purpose, Tablespace, TablespaceConfig};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use tidepool_base::{ByteSize, Error, Result, SqlState, TablespaceId};
use tidepool_device::paged::{AtNode, Paged};
use tidepool_device::remote::{Absence, Tenant};
use tidepool_device::{CacheSize, HUGE_PAGE_BYTES, Location, Mapping, PAGE_BYTES, Window};

/// Purposes whose pages are few and touched by all statements, as owners of paged memory.
fn small_and_important() -> u32 {
    [Purpose::Delta, Purpose::Index, Purpose::Log, Purpose::Metadata].map(|purpose| 1 << purpose as u32).iter().sum()
}

/// A change of a paged tablespace, in bytes.
#[derive(Debug)]
pub(crate) struct Paging {
    pub from: usize,
    pub to: usize,
    /// What the cache will hold.
    pub cache: u64,
}

impl Tablespace {
    /// Says that `bytes`, which lie here, are about to be read from end to end. Of memory at a node, what is not in the local
    /// cache is brought in extents, instead of page by page as it is touched. Elsewhere this costs nothing.
    #[inline]
    pub fn about_to_read(&self, bytes: *const [u8]) {
        if let Some(paged) = self.paged().filter(|paged| paged.is_told()) {
            let start = bytes.addr().wrapping_sub(self.window.base().addr().get());
            if start < paged.len() {
                paged.bring(start..start.saturating_add(bytes.len()).min(paged.len()));
            }
        }
    }

    /// As `about_to_read`, of small things that lie at these addresses, wherever each is.
    #[inline]
    pub fn about_to_read_each(&self, addresses: impl Iterator<Item = usize>) {
        if let Some(paged) = self.paged().filter(|paged| paged.is_told()) {
            let base = self.window.base().addr().get();
            paged.bring_each(addresses.map(|address| address.wrapping_sub(base)));
        }
    }

    pub(crate) fn open_paged(id: TablespaceId, config: TablespaceConfig) -> Result<Arc<Tablespace>> {
        let Location::Paged { cache, remote } = &config.location else {
            return Err(Error::internal(format!("\"{}\" is not paged", config.location)));
        };
        let size = config.location.require_size(config.size_bytes)?;
        let cache = cache.bytes_of(size);
        Paged::check_sizes(size, cache)?;
        let most = reserved_bytes(size as usize, HUGE_PAGE_BYTES)? as u64;
        let paged = Paged::open(remote, size, most, cache, config.profile.as_ref())?;
        Tablespace::over_paged(id, config, paged)
    }

    pub(crate) fn open_node(
        id: TablespaceId,
        config: TablespaceConfig,
        tenant: &Tenant,
        absence: Absence,
    ) -> Result<Arc<Tablespace>> {
        let Location::Node { node, cache } = &config.location else {
            return Err(Error::internal(format!("\"{}\" is not at a memory node", config.location)));
        };
        if config.profile.is_some() || !config.profiles.is_empty() {
            return Err(Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("tablespace \"{}\" is at a memory node and has no profile", config.name),
            )
            .with_detail("Its network is a real one.")
            .with_hint("Leave the profile out, or write paged:CACHE:anon: for a network that is emulated."));
        }
        let size = config.location.require_size(config.size_bytes)?;
        let most = reserved_bytes(size as usize, HUGE_PAGE_BYTES)? as u64;
        let at = AtNode { node, tenant, absence, protected: small_and_important() };
        let paged = Paged::open_at_node(at, size, most, cache.bytes_of(size))?;
        Tablespace::over_paged(id, config, paged)
    }

    fn over_paged(id: TablespaceId, config: TablespaceConfig, paged: Paged) -> Result<Arc<Tablespace>> {
        let len = paged.len();
        let space = Tablespace::new(id, config, Window::fixed(Mapping::from(paged)), Shape::paged(len))?;
        space.open_pages(0..len / PAGE_BYTES);
        Ok(space)
    }

    /// Prepares a paged tablespace for a cache of another size, and itself for another size too. 55000 when it is not
    /// paged, 22023 for sizes that make no sense, otherwise as `resize`.
    pub fn resize_cache(&self, cache: CacheSize, size_bytes: Option<u64>) -> Result<Reshape<'_>> {
        let shape = self.changeable_shape()?;
        self.resize_paged(shape, size_bytes, Some(cache))
    }

    /// A cache that is not given stays as large as it is, or the share that it is.
    pub(crate) fn resize_paged<'a>(
        &'a self,
        shape: MutexGuard<'a, Shape>,
        size_bytes: Option<u64>,
        cache: Option<CacheSize>,
    ) -> Result<Reshape<'a>> {
        let before = self.config();
        let (Some(paged), Location::Paged { cache: cache_before, .. } | Location::Node { cache: cache_before, .. }) =
            (self.paged(), &before.location)
        else {
            return Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("tablespace \"{}\" at {} is not paged and has no cache", self.name(), before.location),
            ));
        };
        let from = shape.len;
        let size = size_bytes.unwrap_or(from as u64);
        let cache = cache.unwrap_or(*cache_before);
        Paged::check_sizes(size, cache.bytes_of(size)).map_err(|error| {
            if size < cache.bytes_of(size) {
                return error.with_hint("A smaller cache can be set along with the size: SET (size = …, cache = …).");
            }
            error
        })?;
        self.check_addresses(size)?;
        let to = page_bytes(size as usize);
        if to > from {
            paged.grow(to)?;
        } else if to < from {
            self.check_fits(to as u64, 0)?;
            self.is_shrinking.store(true, Ordering::Release);
            self.close_pages(to / PAGE_BYTES..from / PAGE_BYTES);
        }
        let config = TablespaceConfig {
            location: match &before.location {
                Location::Node { node, .. } => Location::Node { node: node.clone(), cache },
                Location::Paged { remote, .. } => Location::Paged { cache, remote: remote.clone() },
                other => other.clone(),
            },
            size_bytes: Some(to as u64),
            ..(*before).clone()
        };
        let step = Step::Paging(Paging { from, to, cache: cache.bytes_of(to as u64) });
        Ok(Reshape { space: self, shape, config, step })
    }

    pub(crate) fn finish_paging(&self, shape: &mut Shape, paging: &Paging) {
        let Some(paged) = self.paged() else { return };
        let Paging { from, to, cache } = *paging;
        shape.len = to;
        if to > from {
            self.open_pages(from / PAGE_BYTES..to / PAGE_BYTES);
        } else if to < from {
            let pages = to / PAGE_BYTES..from / PAGE_BYTES;
            self.give_up(pages.clone());
            // SAFETY: these pages are closed, and nobody owns one.
            self.note_shrunk(unsafe { paged.shrink(to) });
            self.cut(pages.start);
            self.is_shrinking.store(false, Ordering::Release);
        }
        paged.set_cache_bytes(cache);
        tracing::debug!(tablespace = self.name(), size = %ByteSize(to as u64), cache = %ByteSize(cache), "paged anew");
    }

    pub(crate) fn undo_paging(&self, paging: &Paging) {
        let Some(paged) = self.paged() else { return };
        let Paging { from, to, .. } = *paging;
        if to > from {
            // SAFETY: mapped by `resize_paged`, and never opened.
            self.note_shrunk(unsafe { paged.shrink(from) });
        } else if to < from {
            self.is_shrinking.store(false, Ordering::Release);
            self.open_pages(to / PAGE_BYTES..from / PAGE_BYTES);
        }
    }

    fn note_shrunk(&self, shrunk: Result<()>) {
        if let Err(error) = shrunk {
            // The memory itself was given back; what stays is a mapping that nobody uses.
            tracing::warn!(tablespace = self.name(), %error, "addresses were not given back");
        }
    }
}
