//! Main that hosts have put in a pool, as others find and read it there.
//!
//! A run of pages of main lies in extents that need not be neighbours in the pool: its *place* names them. A reader maps them
//! at stripes of its own window, in that order and to be read alone, and takes the run's pages in main's book, as its owner
//! did. Runs in the same extents share stripes. A stripe is unmapped when the last of its runs is given back; the extent is not the
//! reader's to give back.
//!
//! A place may be *claimed* before it is mapped. Its extents count as used from then on, and so do its bytes.

use super::{Class, FULL, Growth, Lease, Leased, Lessor, SHARED, lock};
use crate::{Purpose, Region, Tablespace};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tidepool_base::{Error, Result};
use tidepool_device::{PAGE_BYTES, Protection};
use tidepool_pool::words::Extent;

/// Where a run of main lies in a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolPlace {
    /// The run begins in the first and ends in the last.
    pub extents: Vec<Extent>,
    /// Bytes of the first extent before it.
    pub offset: u64,
    pub len: u64,
}

/// What is not the tablespace's own.
#[derive(Debug, Default)]
pub(super) struct Attached {
    /// By an extent that runs begin in, the stripe at which it was mapped last. That may have another extent by now.
    mapped: Mutex<HashMap<Extent, usize>>,
    /// By extent, how many places in it are claimed.
    claims: Mutex<HashMap<Extent, u32>>,
    /// Of claimed places that are not mapped, in whole pages.
    claimed_bytes: AtomicU64,
}

/// A run of main that another host put into the pool, which is mapped when it is wanted first. Its extents count as used as long as it
/// is there.
#[derive(Debug)]
pub struct Claimed {
    space: Arc<Tablespace>,
    place: PoolPlace,
    was_mapped: AtomicBool,
}

impl Attached {
    pub fn claimed_bytes(&self) -> u64 {
        self.claimed_bytes.load(Ordering::Relaxed)
    }

    fn mapped(&self) -> MutexGuard<'_, HashMap<Extent, usize>> {
        self.mapped.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn claims(&self) -> MutexGuard<'_, HashMap<Extent, u32>> {
        self.claims.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Region {
    /// Where other hosts find its bytes: of main that outlives its process, in a pool.
    pub fn pool_place(&self) -> Option<PoolPlace> {
        let space = self.tablespace();
        let leased = space.leased.as_deref().filter(|leased| leased.is_written_once(Class::Main))?;
        let len = self.len_bytes();
        if self.purpose() != Purpose::Main || len == 0 {
            return None;
        }
        let offset = self.offset() as usize;
        let run = offset / PAGE_BYTES..(offset + len).div_ceil(PAGE_BYTES);
        let stripes = leased.stripes_of(&run);
        let mut extents = Vec::with_capacity(stripes.len());
        let growing = leased.grow()?;
        for stripe in stripes {
            // Of the capacity that there is.
            extents.push(Lease::of(growing.growth.leases[stripe])?.extent);
        }
        Some(PoolPlace { extents, offset: (offset % leased.stripe_bytes) as u64, len: len as u64 })
    }
}

impl Tablespace {
    /// What other hosts have put there, with the end of the place in bytes from its first extent on. XX001 where there is no such
    /// place.
    fn published(&self, place: &PoolPlace) -> Result<(&Leased, u64)> {
        let wrong = || Error::corrupted("a place in the pool does not make sense").with_detail(format!("{place:?}"));
        let leased = self.leased.as_deref().filter(|leased| leased.is_written_once(Class::Main));
        let leased = leased.ok_or_else(|| Error::internal("a tablespace without a pool has nothing of other hosts"))?;
        let stripe_bytes = leased.stripe_bytes as u64;
        let end = place.offset.checked_add(place.len).ok_or_else(wrong)?;
        let is_right = place.len > 0
            && place.offset < stripe_bytes
            && place.offset.is_multiple_of(PAGE_BYTES as u64)
            && end.div_ceil(stripe_bytes) == place.extents.len() as u64;
        if !is_right || !place.extents.iter().all(|extent| leased.lessor.has(*extent)) {
            return Err(wrong());
        }
        Ok((leased, end))
    }

    /// As [`Tablespace::attach_published`], of a run that is mapped when it is wanted.
    pub fn claim_published(self: &Arc<Self>, place: PoolPlace) -> Result<Claimed> {
        let (leased, _) = self.published(&place)?;
        let mut claims = leased.attached.claims();
        for extent in &place.extents {
            *claims.entry(*extent).or_default() += 1;
        }
        drop(claims);
        let claimed = Claimed { space: Arc::clone(self), place, was_mapped: AtomicBool::new(false) };
        leased.attached.claimed_bytes.fetch_add(claimed.bytes(), Ordering::Relaxed);
        self.add_attached(claimed.bytes());
        self.note_leases(leased);
        Ok(claimed)
    }

    /// A run of main that a host of this one's database put there, to be read. The caller knows that it stays there: a manifest or
    /// a record names it, and this host holds that. XX001 where there is no such place, 53200 without addresses for it.
    pub fn attach_published(self: &Arc<Self>, place: &PoolPlace) -> Result<Region> {
        let (leased, end) = self.published(place)?;
        let len = place.len;
        let known = leased.attached.mapped().get(&place.extents[0]).copied();
        let first;
        {
            let mut growing = leased.grow().ok_or_else(|| Error::internal("a place is attached within a lease"))?;
            let growth = &mut *growing.growth;
            let is_there = |first: &usize| is_mapped(growth, *first, &place.extents);
            let pages = place.offset as usize / PAGE_BYTES..end.div_ceil(PAGE_BYTES as u64) as usize;
            // Whoever comes upon a place twice has it twice: what was published never changes.
            let is_nobodys = |first: &usize| {
                let start = first * leased.stripe_pages();
                lock(&leased.books[Class::Main as usize - 1]).used_in(start + pages.start..start + pages.end) == 0
            };
            first = match known.filter(is_there).filter(is_nobodys) {
                Some(first) => first,
                None => {
                    let count = place.extents.len();
                    // Behind all others there mostly is room, which need not be looked for.
                    let behind = Some(growth.end).filter(|end| end + count <= leased.stripes);
                    let first = behind.or_else(|| self.hole(leased, growth, count, 0));
                    let first = first.ok_or_else(|| self.full(len as usize))?;
                    for (stripe, extent) in (first..).zip(&place.extents) {
                        if !self.attach_at(leased, growth, stripe, *extent) {
                            (first..stripe).for_each(|stripe| self.let_go(leased, growth, stripe));
                            return Err(Error::internal(format!("extent {} of the pool cannot be mapped", extent.0)));
                        }
                    }
                    first
                }
            };
            let start = first * leased.stripe_pages() + place.offset as usize / PAGE_BYTES;
            let run = start..start + (len as usize).div_ceil(PAGE_BYTES);
            let mut extents = lock(&leased.books[Class::Main as usize - 1]);
            extents.open(run.clone());
            extents.set_touched(run.clone(), true);
            let is_taken = extents.take_at(run.clone());
            debug_assert!(is_taken, "its pages were just opened");
            extents.close_open(run.clone());
            self.add_attached((run.len() * PAGE_BYTES) as u64);
        }
        leased.attached.mapped().insert(place.extents[0], first);
        self.note_leases(leased);
        let offset = first * leased.stripe_bytes + place.offset as usize;
        // SAFETY: within the window.
        let address = unsafe { self.window.base().add(offset) };
        // SAFETY: the run's pages were just taken in main's book, and are this region's alone.
        Ok(unsafe { Region::attached(Arc::clone(self), address, len as usize) })
    }

    /// Whether other hosts read what is main here.
    pub fn is_followed(&self) -> bool {
        self.leased.as_deref().is_some_and(|leased| leased.keeps && leased.is_written_once(Class::Main))
    }

    /// The extents of main in which something is used here: those that are mapped, and those with places that are claimed. One may come
    /// more than once.
    pub fn used_extents(&self) -> Vec<Extent> {
        self.extents_of_main(|_| true)
    }

    /// Of these, what another process put there. All that is claimed is.
    pub fn attached_extents(&self) -> Vec<Extent> {
        self.extents_of_main(|lease| lease.is_others)
    }

    fn extents_of_main(&self, counts: impl Fn(&Lease) -> bool) -> Vec<Extent> {
        let Some(leased) = self.leased.as_deref() else { return Vec::new() };
        // First: what is mapped now and claimed no more is found to be mapped.
        let claimed: Vec<Extent> = leased.attached.claims().keys().copied().collect();
        let mut used = Vec::new();
        loop {
            // Not under the lock.
            used.clear();
            used.reserve(leased.held.load(Ordering::Relaxed) + 64 + claimed.len());
            used.extend_from_slice(&claimed);
            let Some(growing) = leased.grow() else { return used };
            let leases = growing.growth.leases[..growing.growth.end].iter().filter_map(|bits| Lease::of(*bits));
            let of_main = leases.filter(|lease| lease.class == Class::Main && counts(lease));
            let mut of_main = of_main.map(|lease| lease.extent);
            used.extend(of_main.by_ref().take(used.capacity() - claimed.len()));
            if of_main.next().is_none() {
                return used;
            }
        }
    }

    /// Maps another host's extent at a stripe, to be read alone.
    fn attach_at(&self, leased: &Leased, growth: &mut Growth, stripe: usize, extent: Extent) -> bool {
        // SAFETY: nothing is at the stripe.
        if !unsafe { leased.lessor.map(&self.window, growth, stripe, extent, false) } {
            return false;
        }
        if matches!(leased.lessor, Lessor::Member(_)) {
            // SAFETY: nobody of this process writes there, as no page of it is to be had.
            if let Err(error) = unsafe { self.window.protect(stripe, Protection::Read) } {
                tracing::warn!(%error, "another host's extent can be written here");
            }
        }
        growth.leases[stripe] = Lease { extent, class: Class::Main, is_closing: false, is_others: true }.bits();
        growth.end = growth.end.max(stripe + 1);
        leased.main[stripe].store(FULL | SHARED, Ordering::Relaxed);
        leased.held.fetch_add(1, Ordering::Relaxed);
        true
    }
}

impl Claimed {
    pub fn tablespace(&self) -> &Arc<Tablespace> {
        &self.space
    }

    pub fn place(&self) -> &PoolPlace {
        &self.place
    }

    /// The run, to be read. 53200 without addresses for it.
    pub fn attach(&self) -> Result<Region> {
        let region = self.space.attach_published(&self.place)?;
        self.count_no_more();
        Ok(region)
    }

    fn bytes(&self) -> u64 {
        self.place.len.next_multiple_of(PAGE_BYTES as u64)
    }

    /// Its bytes are counted by others from now on, or by nobody.
    fn count_no_more(&self) {
        if let Some(leased) = self.space.leased.as_deref()
            && !self.was_mapped.swap(true, Ordering::Relaxed)
        {
            leased.attached.claimed_bytes.fetch_sub(self.bytes(), Ordering::Relaxed);
            self.space.subtract(Purpose::Main, self.bytes());
            self.space.note_leases(leased);
        }
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        self.count_no_more();
        let Some(leased) = self.space.leased.as_deref() else { return };
        let mut claims = leased.attached.claims();
        for extent in &self.place.extents {
            if let Some(count) = claims.get_mut(extent) {
                *count -= 1;
                if *count == 0 {
                    claims.remove(extent);
                }
            }
        }
    }
}

/// Others' extents are mapped at the stripes from `first` on.
fn is_mapped(growth: &Growth, first: usize, extents: &[Extent]) -> bool {
    let stripes: Range<usize> = first..first + extents.len();
    stripes.end <= growth.end
        && stripes.zip(extents).all(|(stripe, extent)| {
            Lease::of(growth.leases[stripe]).is_some_and(|lease| lease.is_others && lease.extent == *extent)
        })
}
