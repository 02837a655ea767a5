//! A host that reads: it has everything of the pool mapped to be read, but for its own page.
//!
//! Whatever it says, it says there: that it lives, what it holds, how far it has come. Words outside are changed by other hosts. So it
//! cannot bury itself where it owns something, and records no events.
//!
//! # Room
//!
//! Extents of its own it asks for, in its page, and the primary grants them. An extent that it lets go of stays its own, to be used
//! again, until it is to go back; then it says so in its page, and the primary takes it in.
//!
//! One host at a time does that, and none that sleeps: a primary that saw that an extent goes back, and acts on it when it was
//! granted once more, would take what is in use. So a primary does nothing for readers as long as a host of the database is there
//! that was primary before ([`nobody_else_reigned`]). And a primary grants nothing to a host that gives something back.

use crate::death::Death;
use crate::layout::HostNumber;
use crate::member::Refusal;
use crate::pool::Pool;
use crate::words::{Database, Extent, Host, HostState, Number, Owner, Role};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result, SqlState};

/// Extents that are asked for at a time.
const ASKED: u64 = 8;

/// How long a host waits for what it asked for. It may have the lock of a tablespace meanwhile.
const GRANT_WAIT: Duration = Duration::from_millis(500);

/// As long as there is free room the primary is slow: a pool is not full because its machine is busy.
const GRANT_WAIT_MAX: Duration = Duration::from_secs(5);

/// After so long without an answer it asks again: there may be another primary.
const ASK_AGAIN: Duration = Duration::from_millis(50);

const LOOK_INTERVAL: Duration = Duration::from_micros(200);

/// What a host asks for, or gives back, in one number of its page.
///
/// | bits | |
/// | --- | --- |
/// | 12 | of the host's incarnation |
/// | 25 | the extent that it gives back, and one; 0: none |
/// | 11 | counts what it asks for, so that each is granted once |
/// | 12 | extents that it asks for |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    pub returned: Option<Extent>,
    pub number: u64,
    pub count: u64,
}

impl Asked {
    fn to_number(self, host: Host) -> Number {
        let returned = self.returned.map_or(0, |extent| u64::from(extent.0) + 1);
        let life = u64::from(host.incarnation.0) & 0xfff;
        Number(life << 48 | returned << 23 | (self.number & 0x7ff) << 12 | self.count.min(0xfff))
    }

    /// What a host's number says. `None`: nothing, or it is of an earlier life.
    pub fn of(number: Number, host: Host) -> Option<Asked> {
        let bits = number.0;
        let returned = bits >> 23 & 0x1ff_ffff;
        let asked = Asked {
            returned: returned.checked_sub(1).map(|extent| Extent(extent as u32)),
            number: bits >> 12 & 0x7ff,
            count: bits & 0xfff,
        };
        let is_its = bits >> 48 == u64::from(host.incarnation.0) & 0xfff;
        (is_its && (asked.count > 0 || asked.returned.is_some())).then_some(asked)
    }
}

/// Extents that a host was granted. Nothing here allocates but making it: extents are leased within the allocator.
#[derive(Debug)]
pub(crate) struct Room {
    /// By extent, a bit: it is in use.
    used: Box<[AtomicU64]>,
    /// What the host's page says, which is changed under this lock alone: what was said before does not come back.
    asked: Mutex<Asked>,
    hint: AtomicU32,
}

fn bits(extents: u32) -> Box<[AtomicU64]> {
    (0..extents.div_ceil(64)).map(|_| AtomicU64::new(0)).collect()
}

/// Whether it was not before.
fn set(bits: &[AtomicU64], extent: Extent) -> bool {
    let bit = 1 << (extent.0 % 64);
    bits[extent.0 as usize / 64].fetch_or(bit, Ordering::AcqRel) & bit == 0
}

fn clear(bits: &[AtomicU64], extent: Extent) {
    bits[extent.0 as usize / 64].fetch_and(!(1 << (extent.0 % 64)), Ordering::AcqRel);
}

impl Room {
    pub fn new(pool: &Pool) -> Room {
        let asked = Mutex::new(Asked { returned: None, number: 0, count: 0 });
        Room { used: bits(pool.layout().extents), asked, hint: AtomicU32::new(0) }
    }

    /// Changes what the host's page says it asks for and gives back. What was taken in it gives back no more; until then nothing else.
    fn say(&self, pool: &Pool, host: Host, change: impl FnOnce(&mut Asked)) -> Result<(), Refusal> {
        let mut asked: MutexGuard<'_, Asked> = self.asked.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(extent) = asked.returned
            && !Room::is_own(pool, host, extent)?
        {
            asked.returned = None;
            clear(&self.used, extent);
        }
        change(&mut asked);
        let books = pool.books();
        let field = books.layout.host_number(host.slot, HostNumber::Room);
        books.store(field, asked.to_number(host)).map_err(|_| Refusal::Damaged)
    }

    fn is_own(pool: &Pool, host: Host, extent: Extent) -> Result<bool, Refusal> {
        let owner = pool.books().load(pool.layout().owner(extent)).map_err(|_| Refusal::Damaged)?;
        Ok(matches!(owner, Owner::Private { by, .. } if by == host))
    }

    /// An extent that was granted and is not in use.
    fn spare(&self, pool: &Pool, host: Host, is_usable: &dyn Fn(Extent) -> bool) -> Result<Option<Extent>, Refusal> {
        let extents = pool.layout().extents;
        let start = self.hint.load(Ordering::Relaxed).min(extents);
        for extent in (start..extents).chain(0..start).map(Extent) {
            if Room::is_own(pool, host, extent)? && is_usable(extent) && set(&self.used, extent) {
                // It may have gone back since.
                if !Room::is_own(pool, host, extent)? {
                    clear(&self.used, extent);
                    continue;
                }
                self.hint.store(extent.0 + 1, Ordering::Relaxed);
                return Ok(Some(extent));
            }
        }
        Ok(None)
    }

    /// An extent of the host's own, which it asks for if it has none left.
    pub fn lease(&self, pool: &Pool, host: Host, is_usable: &dyn Fn(Extent) -> bool) -> Result<Extent, Refusal> {
        let begun = Instant::now();
        let mut asked: Option<Instant> = None;
        loop {
            if !pool.books().is_current(host).map_err(|_| Refusal::Damaged)? {
                return Err(Refusal::Fenced);
            }
            if let Some(extent) = self.spare(pool, host, is_usable)? {
                if asked.is_some() {
                    self.say(pool, host, |asked| asked.count = 0)?;
                }
                return Ok(extent);
            }
            let waited = begun.elapsed();
            if waited > GRANT_WAIT && (waited > GRANT_WAIT_MAX || !is_any_free(pool, is_usable)?) {
                self.say(pool, host, |asked| asked.count = 0)?;
                return Err(Refusal::Full);
            }
            // Others of this process may have said that they need none in between.
            if asked.is_none_or(|asked| asked.elapsed() > ASK_AGAIN) {
                asked = Some(Instant::now());
                self.say(pool, host, |asked| (asked.number, asked.count) = (asked.number + 1, ASKED))?;
            } else {
                self.say(pool, host, |_| ())?;
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Nothing of this process uses an extent any more, which stays the host's.
    pub fn give_back(&self, extent: Extent) {
        clear(&self.used, extent);
    }

    /// Has the primary take in extents that are not in use, but for so many. How many went. One thread at a time.
    pub fn return_spare(&self, pool: &Pool, host: Host, keep: usize) -> Result<usize, Refusal> {
        let (mut kept, mut returned) = (0, 0);
        for extent in pool.layout().all_extents() {
            // Taken first, so that nobody of this process uses it.
            if !Room::is_own(pool, host, extent)? || !set(&self.used, extent) {
                continue;
            }
            if kept < keep {
                kept += 1;
                clear(&self.used, extent);
                continue;
            }
            let mut is_said = false;
            self.say(pool, host, |asked| {
                is_said = asked.returned.is_none();
                asked.returned.get_or_insert(extent);
            })?;
            if !is_said {
                // One waits to be taken in: there is no primary that does this now.
                clear(&self.used, extent);
                break;
            }
            let begun = Instant::now();
            while Room::is_own(pool, host, extent)? && begun.elapsed() < GRANT_WAIT {
                std::thread::sleep(LOOK_INTERVAL);
            }
            if Room::is_own(pool, host, extent)? {
                break;
            }
            self.say(pool, host, |_| ())?;
            returned += 1;
        }
        Ok(returned)
    }
}

fn is_any_free(pool: &Pool, is_usable: &dyn Fn(Extent) -> bool) -> Result<bool, Refusal> {
    for extent in pool.layout().all_extents().filter(|extent| is_usable(*extent)) {
        let owner = pool.books().load(pool.layout().owner(extent)).map_err(|_| Refusal::Damaged)?;
        if matches!(owner, Owner::Free { .. }) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// No host of the database is there that was primary before, or may have been: a primary that knows this serves readers.
pub fn nobody_else_reigned(pool: &Pool, host: Host, database: Database) -> Result<bool> {
    let books = pool.books();
    for slot in books.layout.all_slots().filter(|slot| *slot != host.slot) {
        let ident = pool.told(books.load(books.layout.ident(slot)))?;
        let may_have = ident.database == database
            && ident.role != Role::Reader
            && !matches!(
                ident.state,
                HostState::Free | HostState::Dead | HostState::Joining | HostState::Attached | HostState::Following
            );
        if may_have {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What a host asks a primary for; `None`: nothing.
pub fn asked_of(pool: &Pool, host: Host) -> Result<Option<Asked>> {
    let books = pool.books();
    let number = pool.told(books.load(books.layout.host_number(host.slot, HostNumber::Room)))?;
    // After the number: it was this host's.
    let ident = pool.told(books.load(books.layout.ident(host.slot)))?;
    let is_there = ident.incarnation == host.incarnation && ident.state.is_live() && ident.state != HostState::Joining;
    Ok(Asked::of(number, host).filter(|_| is_there))
}

/// Ends the life of a host that reads. Its slot is free at once if it owns no extent; otherwise another host frees both.
pub(crate) fn leave(pool: &Pool, host: Host, death: &Death) -> Result<bool> {
    let books = pool.books();
    pool.told(books.confirm(host, death))?;
    for extent in books.layout.all_extents() {
        if pool.told(books.load(books.layout.owner(extent)))?.writer() == Some(host) {
            return Ok(false);
        }
    }
    pool.told(books.free_slot(host))
}

/// The caller opens the pool anew: which page it may write is settled once.
pub(crate) fn lost_slot(pool: &Pool) -> Error {
    Error::new(
        SqlState::SERIALIZATION_FAILURE,
        format!("another host of pool \"{}\" took the slot that this one chose", pool.location()),
    )
    .with_hint("Try again.")
}
