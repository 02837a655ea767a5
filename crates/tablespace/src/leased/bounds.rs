//! How much a tablespace over leases may have: bounds that change, and what is emptied for that.

use super::{Class, FULL, Growth, Lease, Leased, PENDING, lock};
use crate::shape::{Reshape, Shape, Step};
use crate::{Tablespace, TablespaceConfig};
use std::ops::Range;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_device::PAGE_BYTES;

/// Extents of main with more than this many quarters in use are not emptied for others: too much is moved for what is gained.
const CONDENSED_QUARTERS_MAX: usize = 3;

/// A change of a leased tablespace: some of its extents are emptied.
#[derive(Debug)]
pub(crate) struct Leasing {
    /// None: it may have as many as before.
    bound: Option<Bound>,
}

/// Of the extents that a tablespace may have.
#[derive(Debug)]
struct Bound {
    to: usize,
    /// The bound before, and whether that was the pool's.
    before: (usize, bool),
}

impl Tablespace {
    /// As [`Tablespace::resize`]: changes the bound. Where less than it has is to be left, the extents in which least is are
    /// emptied.
    pub(crate) fn resize_leased<'a>(&'a self, shape: MutexGuard<'a, Shape>, size_bytes: u64) -> Result<Reshape<'a>> {
        let Some(leased) = self.leased.as_deref() else { return Err(Error::internal("a tablespace has no leases")) };
        let to = usize::try_from(size_bytes.div_ceil(leased.stripe_bytes as u64)).unwrap_or(usize::MAX);
        let bytes = (to as u64).saturating_mul(leased.stripe_bytes as u64);
        let config = TablespaceConfig { size_bytes: Some(bytes), ..(*self.config()).clone() };
        if to < leased.held.load(Ordering::Relaxed) {
            self.trim_leased(leased, 0);
        }
        let mut by_use = Vec::new();
        if to < leased.held.load(Ordering::Relaxed) {
            self.check_fits(bytes, 0)?;
            by_use.reserve_exact(leased.stripes.min(1 << 20));
        }
        // From here on nothing is leased beyond the new bound, but for what is to go.
        let mut growing = leased.grow().ok_or_else(|| self.holds_more_than(bytes))?;
        let before = (leased.limit.load(Ordering::Relaxed), leased.is_bounded_by_pool.load(Ordering::Relaxed));
        if to < leased.held.load(Ordering::Relaxed) {
            let closing = self.to_be_closed(leased, &growing.growth, to, &mut by_use);
            let closing = closing.ok_or_else(|| self.holds_more_than(bytes))?;
            self.set_shrinking(true);
            for stripe in &by_use[..closing] {
                self.close_stripe(leased, &mut growing.growth, stripe.1);
            }
        }
        if to < before.0 {
            leased.is_bounded_by_pool.store(false, Ordering::Relaxed);
            leased.limit.store(to, Ordering::Relaxed);
        }
        drop(growing);
        let leasing = Leasing { bound: Some(Bound { to, before }) };
        Ok(Reshape { space: self, shape, config, step: Step::Lease(leasing) })
    }

    /// Closes extents of main in which little is, so that `wanted` more are free once what is in them lies elsewhere, or as many as can
    /// be had that way. `None`: nothing can. The change is over when it is dropped: extents that are empty by then go back, and the
    /// others stay. 55006 while the tablespace is being altered.
    pub fn condense(&self, wanted: usize) -> Result<Option<Reshape<'_>>> {
        let Some(leased) = self.leased.as_deref().filter(|_| wanted > 0) else { return Ok(None) };
        let shape = self.changeable_shape()?;
        let mut by_use = Vec::new();
        // Nothing is allocated under the lock.
        by_use.reserve_exact(leased.held.load(Ordering::Relaxed).saturating_add(1));
        let Some(mut growing) = leased.grow() else { return Ok(None) };
        let closing = self.to_be_condensed(leased, &growing.growth, wanted, &mut by_use);
        if closing == 0 {
            return Ok(None);
        }
        self.set_shrinking(true);
        for (_, stripe) in &by_use[..closing] {
            self.close_stripe(leased, &mut growing.growth, *stripe);
        }
        drop(growing);
        let leasing = Leasing { bound: None };
        Ok(Some(Reshape { space: self, shape, config: (*self.config()).clone(), step: Step::Lease(leasing) }))
    }

    /// How many of the stripes of main in which least is, listed first in `by_use` with the pages used in them, are to be emptied. As many
    /// are listed as there is room for.
    fn to_be_condensed(
        &self,
        leased: &Leased,
        growth: &Growth,
        wanted: usize,
        by_use: &mut Vec<(usize, usize)>,
    ) -> usize {
        let book = lock(leased.book(Class::Main).unwrap_or(self.heap_book()));
        // What is moved goes there first, where a page can be taken again.
        let mut free = 0;
        for stripe in 0..growth.end {
            let lease = Lease::of(growth.leases[stripe]);
            if lease.is_none_or(|lease| lease.class != Class::Main || lease.is_others || lease.is_closing) {
                continue;
            }
            let used = book.used_in(leased.pages_of(stripe));
            if !leased.is_written_once(Class::Main) {
                free += leased.stripe_pages() - used;
            }
            // Somebody writes to it.
            let is_pending = leased.main[stripe].load(Ordering::Relaxed) & PENDING != 0;
            let is_sparse = used * 4 <= leased.stripe_pages() * CONDENSED_QUARTERS_MAX;
            if is_sparse && !is_pending && by_use.len() < by_use.capacity() {
                by_use.push((used, stripe));
            }
        }
        drop(book);
        by_use.sort_unstable();
        let (mut moved, mut best) = (0, (0, 0));
        for (closed, (used, _)) in by_use.iter().enumerate() {
            moved += used;
            free = free.saturating_sub(leased.stripe_pages() - used);
            let fresh = moved.saturating_sub(free).div_ceil(leased.stripe_pages());
            let gained = (closed + 1).saturating_sub(fresh);
            if gained > best.1 {
                best = (closed + 1, gained);
            }
            if gained >= wanted {
                break;
            }
        }
        best.0
    }

    fn holds_more_than(&self, bytes: u64) -> Error {
        Error::new(
            SqlState::OUT_OF_MEMORY,
            format!("tablespace \"{}\" holds more than {}", self.name(), ByteSize(bytes)),
        )
        .with_detail("What it holds, in whole extents of the pool, does not fit there.")
        .with_hint("Move tables elsewhere with ALTER TABLE … SET TABLESPACE first.")
    }

    /// How many of the stripes in which least is, listed first in `by_use`, are to be emptied so that `to` are left with
    /// what was in them. `None`: there is no such number. `by_use` has room for all stripes.
    fn to_be_closed(
        &self,
        leased: &Leased,
        growth: &Growth,
        to: usize,
        by_use: &mut Vec<(usize, usize, usize)>,
    ) -> Option<usize> {
        let mut free_by_class = [0; Class::ALL.len()];
        for stripe in 0..growth.end {
            // What is others' cannot be moved, and takes no room of the pool.
            let Some(lease) = Lease::of(growth.leases[stripe]).filter(|lease| !lease.is_others) else { continue };
            let book = lock(leased.book(lease.class).unwrap_or(self.heap_book()));
            free_by_class[lease.class as usize] += book.free_in(leased.pages_of(stripe));
            if by_use.len() < by_use.capacity() {
                by_use.push((book.used_in(leased.pages_of(stripe)), stripe, lease.class as usize));
            }
        }
        by_use.sort_unstable();
        let held = by_use.len();
        let mut moved_by_class = [0; Class::ALL.len()];
        let mut closed = 0;
        loop {
            let fresh: usize = moved_by_class
                .iter()
                .zip(&free_by_class)
                .map(|(moved, free): (&usize, &usize)| moved.saturating_sub(*free).div_ceil(leased.stripe_pages()))
                .sum();
            if held - closed + fresh <= to {
                return Some(closed);
            }
            let (used, stripe, class) = *by_use.get(closed)?;
            let book = lock(leased.book(Class::ALL[class]).unwrap_or(self.heap_book()));
            free_by_class[class] -= book.free_in(leased.pages_of(stripe));
            moved_by_class[class] += used;
            closed += 1;
        }
    }

    fn close_stripe(&self, leased: &Leased, growth: &mut Growth, stripe: usize) {
        let Some(lease) = Lease::of(growth.leases[stripe]) else { return };
        lock(leased.book(lease.class).unwrap_or(self.heap_book())).close_open(leased.pages_of(stripe));
        if leased.is_written_once(lease.class) {
            leased.main[stripe].fetch_or(FULL, Ordering::Relaxed);
            growth.end_filling(stripe);
        }
        growth.leases[stripe] = Lease { is_closing: true, ..lease }.bits();
        leased.closing.fetch_add(1, Ordering::Relaxed);
        self.let_go_if_idle(leased, growth, stripe);
    }

    /// Bytes that somebody owns in stripes that are to go.
    pub(crate) fn left_in_leases(&self) -> u64 {
        let Some(leased) = self.leased.as_deref() else { return 0 };
        let Some(growing) = leased.grow() else { return 0 };
        let left = |stripe: usize| {
            let lease = Lease::of(growing.growth.leases[stripe]).filter(|lease| lease.is_closing)?;
            Some(lock(leased.book(lease.class).unwrap_or(self.heap_book())).used_in(leased.pages_of(stripe)))
        };
        ((0..growing.growth.end).filter_map(left).sum::<usize>() * PAGE_BYTES) as u64
    }

    pub(crate) fn finish_leasing(&self, leasing: &Leasing) {
        let Some(leased) = self.leased.as_deref() else { return };
        if let Some(mut growing) = leased.grow() {
            for stripe in 0..growing.growth.end {
                if Lease::of(growing.growth.leases[stripe]).is_some_and(|lease| lease.is_closing) {
                    self.let_go_if_idle(leased, &mut growing.growth, stripe);
                }
            }
        }
        self.set_shrinking(false);
        {
            // As `look_at_pool` does.
            let _growing = leased.grow();
            if let Some(bound) = &leasing.bound {
                leased.is_bounded_by_pool.store(false, Ordering::Relaxed);
                leased.limit.store(bound.to, Ordering::Relaxed);
            }
        }
        self.note_bound(leased);
        self.note_leases(leased);
    }

    pub(crate) fn undo_leasing(&self, leasing: &Leasing) {
        let Some(leased) = self.leased.as_deref() else { return };
        self.set_shrinking(false);
        let Some(mut growing) = leased.grow() else { return };
        if let Some(Bound { before, .. }) = &leasing.bound {
            leased.limit.store(before.0, Ordering::Relaxed);
            leased.is_bounded_by_pool.store(before.1, Ordering::Relaxed);
        }
        for stripe in 0..growing.growth.end {
            let Some(lease) = Lease::of(growing.growth.leases[stripe]).filter(|lease| lease.is_closing) else {
                continue;
            };
            if leasing.bound.is_none() && self.let_go_if_idle(leased, &mut growing.growth, stripe) {
                continue;
            }
            growing.growth.leases[stripe] = Lease { is_closing: false, ..lease }.bits();
            leased.closing.fetch_sub(1, Ordering::Relaxed);
            if leased.is_written_once(lease.class) {
                // What is left of it is not taken any more, as if it were full.
                self.publish_filled(leased, &mut growing.growth, stripe);
            } else {
                lock(leased.book(lease.class).unwrap_or(self.heap_book())).open(leased.pages_of(stripe));
            }
        }
        drop(growing);
        self.note_leases(leased);
    }

    /// Whether some of these pages are to be moved, so that the tablespace can shrink.
    pub(crate) fn is_lease_closing(&self, leased: &Leased, run: &Range<usize>) -> bool {
        let Some(growing) = leased.grow() else { return false };
        let closing = |stripe: usize| Lease::of(growing.growth.leases[stripe]).is_some_and(|lease| lease.is_closing);
        leased.stripes_of(run).any(closing)
    }
}
