//! What hosts need of the pool's room, and tell each other.
//!
//! A host that is short of extents says in its own page how many it would have free. All hosts look at that as they look at the
//! pool: while fewer are free, they give back what they do not use, and empty extents in which little is. Nothing is promised to
//! the host that asked: what becomes free is whoever's takes it first.

use crate::layout::HostNumber;
use crate::member::Member;
use crate::words::{HostState, Number, Slot};
use std::time::{Duration, Instant};
use tidepool_base::Result;

/// A host that found the pool full asks for so long: a statement that was refused is often tried again.
const REFUSED_FOR: Duration = Duration::from_secs(30);

/// With less than one part in so many of the pool free, hosts give back what they do not use.
const SCARCE_PART: u64 = 8;

/// With less than one part in so many free, they also empty extents in which little is.
const SHORT_PART: u64 = 16;

#[derive(Debug, Default)]
pub(crate) struct Needs {
    asked: Vec<u64>,
    /// What was refused last, and when.
    refused: Option<(u64, Instant)>,
}

/// Extents that a host asks all others to have free, until this is dropped.
#[derive(Debug)]
pub struct Need<'a> {
    member: &'a Member,
    extents: u64,
}

/// How much room the pool has beside what its hosts need, in extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolRoom {
    pub all: u64,
    pub free: u64,
    /// The most that a host asks for.
    pub needed: u64,
}

impl PoolRoom {
    /// Hosts give back what they do not use.
    pub fn is_scarce(&self) -> bool {
        self.free < self.needed.max(self.all / SCARCE_PART)
    }

    /// Extents that are to become free beside those that are. 0: there is no want of them.
    pub fn lack(&self) -> u64 {
        self.needed.max(self.all / SHORT_PART).saturating_sub(self.free)
    }
}

impl Member {
    /// Asks all hosts to have so many extents free.
    pub fn need(&self, extents: u64) -> Result<Need<'_>> {
        self.needs.lock().asked.push(extents);
        let need = Need { member: self, extents };
        self.say_needs()?;
        Ok(need)
    }

    /// So many extents were not to be had.
    pub(crate) fn note_refused(&self, extents: u64) {
        self.needs.lock().refused = Some((extents, Instant::now()));
    }

    /// Says in this host's page what it needs now.
    pub fn say_needs(&self) -> Result<()> {
        let mut needs = self.needs.lock();
        needs.refused = needs.refused.filter(|(_, when)| when.elapsed() < REFUSED_FOR);
        let refused = needs.refused.map_or(0, |(extents, _)| extents);
        let needed = Number(needs.asked.iter().copied().max().unwrap_or(0).max(refused).min(Number::MAX.0));
        let (pool, books) = (self.pool(), self.pool().books());
        let field = books.layout.host_number(self.host().slot, HostNumber::Needed);
        // The lock is held: two threads that say it agree on the last.
        if pool.told(books.load(field))? == needed {
            return Ok(());
        }
        pool.told(books.store(field, needed))
    }

    /// What the pool has, and what its hosts need.
    pub fn pool_room(&self) -> Result<PoolRoom> {
        let (pool, books) = (self.pool(), self.pool().books());
        let (all, free) = pool.room()?;
        let mut needed = 0;
        for slot in books.layout.all_slots() {
            needed = needed.max(self.needed_at(slot)?.filter(|extents| *extents <= all).unwrap_or(0));
        }
        Ok(PoolRoom { all, free, needed })
    }

    /// What the host of a slot needs, if there is one.
    fn needed_at(&self, slot: Slot) -> Result<Option<u64>> {
        let (pool, books) = (self.pool(), self.pool().books());
        let needed = pool.told(books.load(books.layout.host_number(slot, HostNumber::Needed)))?;
        // After the number: it was this host's, or is zero.
        let ident = pool.told(books.load(books.layout.ident(slot)))?;
        let is_there = ident.state.is_live() && ident.state != HostState::Joining;
        Ok((is_there && needed.0 > 0).then_some(needed.0))
    }
}

impl Drop for Need<'_> {
    fn drop(&mut self) {
        {
            let mut needs = self.member.needs.lock();
            if let Some(at) = needs.asked.iter().position(|extents| *extents == self.extents) {
                needs.asked.swap_remove(at);
            }
        }
        // Or with the next look.
        let _ = self.member.say_needs();
    }
}
