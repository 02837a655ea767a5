//! Extents: which host owns which, and how they change hands.
//!
//! A byte that a host may still store to is never given to another host until the first is known to be dead. So every word
//! names the incarnation that may store to its extent, and is changed by a swap from the exact word that was read.
//!
//! A `Free` word counts nothing: a host that takes a free extent decides by that word alone, so it does no harm that the same word
//! comes back. Every other word names an incarnation or the generation in which it was written, and never does.

use crate::layout::HostNumber;
use crate::memory::{Books, Memory, Outcome};
use crate::words::{Contents, Database, Extent, Generation, Host, HostState, Kind, Number, Owner, Role, Slot};
use tidepool_base::crash_point;

/// What an extent becomes that a host leases for `kind`.
fn owned(host: Host, kind: Kind) -> Owner {
    match kind {
        Kind::Log => Owner::Log { by: host },
        kind if kind.is_shared() => Owner::Filling { by: host, kind },
        kind => Owner::Private { by: host, kind },
    }
}

impl<M: Memory> Books<M> {
    /// Takes a free extent for `kind`. What another database left there is zeroed first. False where it is not free, or
    /// another host was first.
    pub fn lease(&self, host: Host, database: Database, extent: Extent, kind: Kind) -> Outcome<bool, M> {
        let field = self.layout.owner(extent);
        let owner = self.load(field)?;
        let Owner::Free { holds } = owner else { return Ok(false) };
        if !self.swap(field, owner, Owner::Claimed { by: host })? {
            return Ok(false);
        }
        crash_point("pool.lease.claimed");
        self.make_ready(host, database, extent, owned(host, kind), holds)
    }

    /// An extent that the host has claimed becomes somebody's.
    fn make_ready(
        &self,
        host: Host,
        database: Database,
        extent: Extent,
        owned: Owner,
        holds: Contents,
    ) -> Outcome<bool, M> {
        if !holds.may_be_shown_to(database) {
            self.memory.zero(extent)?;
            crash_point("pool.lease.zeroed");
        }
        self.swap(self.layout.owner(extent), Owner::Claimed { by: host }, owned)
    }

    /// Says that the host stores to a private extent no more. Until it is [freed](Books::free) it may punch or zero it.
    pub fn give_back(&self, host: Host, extent: Extent) -> Outcome<bool, M> {
        let field = self.layout.owner(extent);
        let owner = self.load(field)?;
        match owner {
            Owner::Private { by, .. } | Owner::Filling { by, .. } if by == host => {
                self.swap(field, owner, Owner::Returning { by: host })
            }
            _ => Ok(false),
        }
    }

    /// The last step of giving back: no host owns the extent.
    pub fn free(&self, host: Host, extent: Extent, holds: Contents) -> Outcome<bool, M> {
        crash_point("pool.back.returning");
        self.swap(self.layout.owner(extent), Owner::Returning { by: host }, Owner::Free { holds })
    }

    /// No host writes to a filled extent again. `generation` is the root's in force, `sum` the checksum of its bytes.
    pub fn publish(
        &self,
        host: Host,
        database: Database,
        extent: Extent,
        generation: Generation,
        sum: Number,
    ) -> Outcome<bool, M> {
        let field = self.layout.owner(extent);
        let owner = self.load(field)?;
        match owner {
            Owner::Filling { by, kind } if by == host => {
                self.store(self.layout.sum(extent), sum)?;
                crash_point("pool.publish.summed");
                self.swap(field, owner, Owner::Shared { database, kind, generation })
            }
            _ => Ok(false),
        }
    }

    /// Offers a private extent to another host. The giver stores there no more; it has unmapped it.
    pub fn hand(&self, host: Host, extent: Extent, to: Slot) -> Outcome<bool, M> {
        let field = self.layout.owner(extent);
        let owner = self.load(field)?;
        match owner {
            Owner::Private { by, kind } if by == host => {
                self.swap(field, owner, Owner::Handed { from: host, to, kind })
            }
            _ => Ok(false),
        }
    }

    /// Takes back what was offered and not taken.
    pub fn take_back(&self, host: Host, extent: Extent) -> Outcome<bool, M> {
        let field = self.layout.owner(extent);
        let owner = self.load(field)?;
        match owner {
            Owner::Handed { from, kind, .. } if from == host => {
                self.swap(field, owner, Owner::Private { by: host, kind })
            }
            _ => Ok(false),
        }
    }

    /// Takes what was offered: with its contents from a host of the same database, zeroed from any other, and where it is not
    /// known any more whose they were. What it holds now, or `None` where nothing was taken.
    pub fn take(&self, host: Host, database: Database, extent: Extent) -> Outcome<Option<Contents>, M> {
        let field = self.layout.owner(extent);
        let owner = self.load(field)?;
        let Owner::Handed { from, to, kind } = owner else { return Ok(None) };
        if to != host.slot {
            return Ok(None);
        }
        let giver = self.load(self.layout.ident(from.slot))?;
        let is_kept = giver.incarnation == from.incarnation
            && giver.state != HostState::Free
            && giver.database == database
            && database.0 < self.layout.databases;
        if is_kept {
            let is_taken = self.swap(field, owner, Owner::Private { by: host, kind })?;
            return Ok(is_taken.then_some(Contents::Of(database)));
        }
        let is_taken = self.swap(field, owner, Owner::Claimed { by: host })?
            && self.make_ready(host, database, extent, owned(host, kind), Contents::Unknown)?;
        Ok(is_taken.then_some(Contents::Zeroes))
    }

    /// Gives a free extent to a host that changes no words but its own page's. False where it is not free, or where the other host
    /// is dead.
    pub fn grant(&self, host: Host, to: Host, database: Database, extent: Extent) -> Outcome<bool, M> {
        let field = self.layout.owner(extent);
        let owner = self.load(field)?;
        let Owner::Free { holds } = owner else { return Ok(false) };
        if !self.swap(field, owner, Owner::Claimed { by: host })? {
            return Ok(false);
        }
        let granted = Owner::Private { by: to, kind: Kind::Heap };
        let is_granted = self.make_ready(host, database, extent, granted, holds)?;
        crash_point("pool.granted");
        // After the swap: a host that sweeps what `to` owned has met the extent, or has confirmed the death before this look.
        if is_granted && self.is_gone(to)? {
            self.swap(field, granted, Owner::Free { holds: Contents::Unknown })?;
            return Ok(false);
        }
        Ok(is_granted)
    }

    /// Takes a private extent in that another host has said it stores to no more. A host that decides on this, sleeps, and comes when
    /// the extent was granted once more would take what is in use: so no host does this but the primary, while none is there that
    /// was primary before.
    pub fn take_in(&self, host: Host, from: Host, database: Database, extent: Extent) -> Outcome<bool, M> {
        let field = self.layout.owner(extent);
        let owner = self.load(field)?;
        match owner {
            Owner::Private { by, .. } if by == from => Ok(self.swap(field, owner, Owner::Returning { by: host })?
                && self.free(host, extent, self.contents_of(database))?),
            _ => Ok(false),
        }
    }

    /// A successor makes what other primaries of its database were writing readable for good and writable for no host,
    /// before it runs. How many became orphans.
    pub fn orphan_others(&self, host: Host, database: Database) -> Outcome<u32, M> {
        Ok(self.orphan_others_while(host, database, || Ok(true))?.unwrap_or(0))
    }

    /// As `orphan_others`, as long as `goes_on`, which is asked before each extent: a successor that sleeps here until
    /// another host reigns finds that one's extents. `None`: it went on no more.
    pub fn orphan_others_while(
        &self,
        host: Host,
        database: Database,
        goes_on: impl Fn() -> Outcome<bool, M>,
    ) -> Outcome<Option<u32>, M> {
        let mut orphaned = 0;
        for extent in self.layout.all_extents() {
            let field = self.layout.owner(extent);
            loop {
                let owner = self.load(field)?;
                let (Owner::Log { by } | Owner::Filling { by, .. }) = owner else { break };
                let ident = self.load(self.layout.ident(by.slot))?;
                // Of an incarnation that is over, its sweep has taken care.
                let is_others = by != host && ident.incarnation == by.incarnation && ident.database == database;
                let Some(kind) = owner.kind().filter(|_| is_others) else { break };
                if !goes_on()? {
                    return Ok(None);
                }
                if self.swap(field, owner, Owner::Orphan { by, database, kind })? {
                    orphaned += 1;
                    break;
                }
            }
        }
        Ok(Some(orphaned))
    }

    /// Root `since` of `database` was published, and no host of it may touch what only older ones name. Once true, it stays
    /// true: roots and holds only grow, and a host that joins holds the root in force. So a primary that finds this out and
    /// acts on it much later does no harm.
    pub fn nobody_holds_before(&self, database: Database, since: Generation) -> Outcome<bool, M> {
        if self.load(self.layout.root(database))?.generation < since {
            return Ok(false);
        }
        for slot in self.layout.all_slots() {
            let ident = self.load(self.layout.ident(slot))?;
            if ident.state == HostState::Free || ident.database != database {
                continue;
            }
            if self.load(self.layout.host_number(slot, HostNumber::GenHeld))?.0 < u64::from(since.0) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Begins to return an extent that no root from `since` on names, nor a record of the log behind that root's position.
    /// The caller is the database's primary, or was. `found`: the extent's word when that was found out. A host that sleeps
    /// after it found that out may come when the extent went back and was filled anew: by its word that is another's.
    pub fn return_shared(
        &self,
        host: Host,
        database: Database,
        extent: Extent,
        found: Owner,
        since: Generation,
    ) -> Outcome<bool, M> {
        let is_over = match found {
            Owner::Shared { database: of, .. } => of == database,
            // Its writer may still store there as long as it is not dead.
            Owner::Orphan { by, database: of, .. } => of == database && self.is_gone(by)?,
            _ => false,
        };
        if !is_over || !self.nobody_holds_before(database, since)? {
            return Ok(false);
        }
        self.swap(self.layout.owner(extent), found, Owner::Returning { by: host })
    }

    /// Root `since` of `database` was published, and no other host of it reads segment `number` of the log or an earlier one.
    /// True for good, as [`nobody_holds_before`](Books::nobody_holds_before) is: what a host needs only grows, and a host
    /// that joins needs everything until it holds the root in force. `host` reads its own log no more.
    ///
    /// A reader that is suspect keeps nothing of the log: after each look at it, it looks whether it is suspect, before it uses what
    /// it found.
    pub fn nobody_needs_segment(
        &self,
        host: Host,
        database: Database,
        number: u64,
        since: Generation,
    ) -> Outcome<bool, M> {
        if self.load(self.layout.root(database))?.generation < since {
            return Ok(false);
        }
        for slot in self.layout.all_slots().filter(|slot| *slot != host.slot) {
            let ident = self.load(self.layout.ident(slot))?;
            if ident.state == HostState::Free || ident.database != database {
                continue;
            }
            if ident.role == Role::Reader && matches!(ident.state, HostState::Suspect | HostState::Fenced) {
                continue;
            }
            if self.load(self.layout.host_number(slot, HostNumber::LogNeeded))?.0 <= number {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Begins to return the extent of a segment of the log: of the host's own, or what a dead primary left. No other host
    /// [needs](Books::nobody_needs_segment) the segment. `found`: the extent's word when that was found out, as for
    /// [`return_shared`](Books::return_shared).
    pub fn return_log(&self, host: Host, database: Database, extent: Extent, found: Owner) -> Outcome<bool, M> {
        let is_over = match found {
            Owner::Log { by } => by == host,
            // Its writer may still store there as long as it is not dead. The host's own became one where a successor that
            // had slept did not know yet that it was none any more.
            Owner::Orphan { by, database: of, kind: Kind::Log } => {
                of == database && (by == host || self.is_gone(by)?)
            }
            _ => false,
        };
        if !is_over {
            return Ok(false);
        }
        self.swap(self.layout.owner(extent), found, Owner::Returning { by: host })
    }
}
