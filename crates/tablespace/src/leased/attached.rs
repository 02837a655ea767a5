//! Main that hosts have put in a pool, as others find and read it there.
//!
//! A run of pages of main lies in extents that need not be neighbours in the pool: its *place* names them. A reader maps them
//! at stripes of its own window, in that order and to be read alone, and takes the run's pages in main's book, as its owner
//! did. Runs in the same extents share stripes. A stripe is unmapped when the last of its runs is given back; the extent is not the
//! reader's to give back.

use super::{Class, FULL, Growth, Lease, Leased, Lessor, SHARED, lock};
use crate::{Purpose, Region, Tablespace};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
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

/// By an extent that runs begin in, the stripe at which it was mapped last. That may have another extent by now.
#[derive(Debug, Default)]
pub(super) struct Attached(Mutex<HashMap<Extent, usize>>);

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
    /// A run of main that a host of this one's database put there, to be read. The caller knows that it stays there: a manifest or
    /// a record names it, and this host holds that. 22023 where there is no such place, 53200 without addresses for it.
    pub fn attach_published(self: &Arc<Self>, place: &PoolPlace) -> Result<Region> {
        let wrong = || Error::corrupted("a place in the pool does not make sense").with_detail(format!("{place:?}"));
        let leased = self.leased.as_deref().filter(|leased| leased.is_written_once(Class::Main));
        let leased = leased.ok_or_else(|| Error::internal("a tablespace without a pool has nothing of other hosts"))?;
        let (stripe_bytes, len) = (leased.stripe_bytes as u64, place.len);
        let end = place.offset.checked_add(len).ok_or_else(wrong)?;
        let is_right = len > 0
            && place.offset < stripe_bytes
            && place.offset.is_multiple_of(PAGE_BYTES as u64)
            && end.div_ceil(stripe_bytes) == place.extents.len() as u64;
        if !is_right || !place.extents.iter().all(|extent| leased.lessor.has(*extent)) {
            return Err(wrong());
        }
        let known = {
            let attached = leased.attached.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            attached.get(&place.extents[0]).copied()
        };
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
        leased.attached.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(place.extents[0], first);
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

    /// The extents of main that are mapped here: something in them is used.
    pub fn mapped_extents(&self) -> Vec<Extent> {
        self.extents_of_main(|_| true)
    }

    /// Of these, what another process put there.
    pub fn attached_extents(&self) -> Vec<Extent> {
        self.extents_of_main(|lease| lease.is_others)
    }

    fn extents_of_main(&self, counts: impl Fn(&Lease) -> bool) -> Vec<Extent> {
        let Some(leased) = self.leased.as_deref() else { return Vec::new() };
        let mut mapped = Vec::new();
        loop {
            // Not under the lock.
            mapped.clear();
            mapped.reserve(leased.held.load(Ordering::Relaxed) + 64);
            let Some(growing) = leased.grow() else { return mapped };
            let leases = growing.growth.leases[..growing.growth.end].iter().filter_map(|bits| Lease::of(*bits));
            let of_main = leases.filter(|lease| lease.class == Class::Main && counts(lease));
            let mut of_main = of_main.map(|lease| lease.extent);
            mapped.extend(of_main.by_ref().take(mapped.capacity()));
            if of_main.next().is_none() {
                return mapped;
            }
        }
    }

    /// Maps another host's extent at a stripe, to be read alone.
    fn attach_at(&self, leased: &Leased, growth: &mut Growth, stripe: usize, extent: Extent) -> bool {
        // SAFETY: nothing is at the stripe.
        if !unsafe { leased.lessor.map(&self.window, growth, stripe, extent) } {
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

/// Others' extents are mapped at the stripes from `first` on.
fn is_mapped(growth: &Growth, first: usize, extents: &[Extent]) -> bool {
    let stripes: Range<usize> = first..first + extents.len();
    stripes.end <= growth.end
        && stripes.zip(extents).all(|(stripe, extent)| {
            Lease::of(growth.leases[stripe]).is_some_and(|lease| lease.is_others && lease.extent == *extent)
        })
}
