//! Hosts: slots that processes take for one life each, and how the others come to know that a life is over.
//!
//! `Free(n) → Joining(n+1) → Attached → … → Leaving → Dead → Free(n+1)`. Any host may suspect another, at any time and for no
//! reason: nothing is given away for that. What an incarnation owned becomes free only when it is `Dead`, which
//! takes a [`Death`]; and its slot becomes free only after every word that names it was changed.

use crate::death::Death;
use crate::layout::HostNumber;
use crate::memory::{Books, Memory, Outcome};
use crate::words::{
    Contents, Database, Entry, EntryState, Generation, Host, HostState, Ident, Incarnation, Number, Owner, Role, Slot,
};
use tidepool_base::crash_point;

/// What was done to the extents of a host that is dead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    pub freed: u32,
    pub orphaned: u32,
    /// Handed to a host that may still take them.
    pub left: u32,
}

impl<M: Memory> Books<M> {
    /// Takes a slot that is free. `None` where it is not, or where another host was first.
    pub fn join(&self, slot: Slot, role: Role, database: Database) -> Outcome<Option<Host>, M> {
        let field = self.layout.ident(slot);
        let ident = self.load(field)?;
        if ident.state != HostState::Free || ident.incarnation >= Incarnation::MAX {
            return Ok(None);
        }
        let incarnation = Incarnation(ident.incarnation.0 + 1);
        let joining = Ident { incarnation, state: HostState::Joining, role, database };
        Ok(self.swap(field, ident, joining)?.then_some(Host { slot, incarnation }))
    }

    /// Holds the root in force of the host's database, and what it names with it.
    ///
    /// A root that is published meanwhile may have its predecessor's extents freed without waiting for this host: so the
    /// root is looked at again, *after* a fence. The primary, which frees, looks at holds after it published.
    ///
    /// The host needs all of the log until it [says](Books::need_log_from) what of it: what stands there is of the slot's
    /// life before.
    pub fn hold_root(&self, host: Host, database: Database) -> Outcome<Generation, M> {
        self.store(self.layout.host_number(host.slot, HostNumber::LogNeeded), Number(0))?;
        loop {
            let root = self.load(self.layout.root(database))?;
            self.store(self.layout.host_number(host.slot, HostNumber::GenHeld), Number(root.generation.0.into()))?;
            self.fence()?;
            if self.load(self.layout.root(database))? == root {
                return Ok(root.generation);
            }
        }
    }

    /// Raises what the host holds: every record up to that root's position is applied, and the last statement over
    /// anything older has ended. A stale value only keeps extents longer.
    pub fn raise_hold(&self, host: Host, generation: Generation) -> Outcome<(), M> {
        self.store(self.layout.host_number(host.slot, HostNumber::GenHeld), Number(generation.0.into()))
    }

    /// The host reads segments of the log from `number` on. It never needs an earlier one again in this life.
    pub fn need_log_from(&self, host: Host, number: u64) -> Outcome<(), M> {
        self.store(self.layout.host_number(host.slot, HostNumber::LogNeeded), Number(number))
    }

    /// Goes on to another state of its own. False when the host has been suspected, fenced or forgotten: it must stop.
    pub fn advance(&self, host: Host, state: HostState) -> Outcome<bool, M> {
        let field = self.layout.ident(host.slot);
        loop {
            let ident = self.load(field)?;
            if ident.incarnation != host.incarnation || !ident.state.is_live() {
                return Ok(false);
            }
            if self.swap(field, ident, Ident { state, ..ident })? {
                return Ok(true);
            }
        }
    }

    /// No other host took this one's life for over. It looks after each snapshot that it draws.
    pub fn is_current(&self, host: Host) -> Outcome<bool, M> {
        let ident = self.load(self.layout.ident(host.slot))?;
        Ok(ident.incarnation == host.incarnation && ident.state.is_live())
    }

    /// Says that a host may be dead. True if it was live until now.
    pub fn suspect(&self, host: Host) -> Outcome<bool, M> {
        self.mark(host, HostState::Suspect, HostState::is_live)
    }

    /// Says that a host will be dead. True if it was suspect, or live, until now.
    pub fn mark_fenced(&self, host: Host) -> Outcome<bool, M> {
        self.mark(host, HostState::Fenced, |state| state.is_live() || state == HostState::Suspect)
    }

    /// Says that a host is dead. True if no host had said it before.
    pub fn confirm(&self, host: Host, _: &Death) -> Outcome<bool, M> {
        self.mark(host, HostState::Dead, |state| !matches!(state, HostState::Free | HostState::Dead))
    }

    fn mark(&self, host: Host, state: HostState, from: impl Fn(HostState) -> bool) -> Outcome<bool, M> {
        let field = self.layout.ident(host.slot);
        loop {
            let ident = self.load(field)?;
            if ident.incarnation != host.incarnation || !from(ident.state) {
                return Ok(false);
            }
            if self.swap(field, ident, Ident { state, ..ident })? {
                return Ok(true);
            }
        }
    }

    /// The incarnation can store nothing any more.
    pub fn is_gone(&self, host: Host) -> Outcome<bool, M> {
        let ident = self.load(self.layout.ident(host.slot))?;
        Ok(ident.incarnation != host.incarnation || matches!(ident.state, HostState::Dead | HostState::Free))
    }

    /// Frees what a dead host owned, but for what others may read. Several may do so at once, and one that is cut short is
    /// done again. `None` when the host is not dead.
    pub fn sweep(&self, host: Host) -> Outcome<Option<Swept>, M> {
        let ident = self.load(self.layout.ident(host.slot))?;
        if ident.incarnation != host.incarnation || ident.state != HostState::Dead {
            return Ok(None);
        }
        let mut swept = Swept::default();
        for extent in self.layout.all_extents() {
            let field = self.layout.owner(extent);
            loop {
                let owner = self.load(field)?;
                let Some(next) = self.without(host, ident.database, owner)? else {
                    if matches!(owner, Owner::Handed { from, to, .. } if from == host || to == host.slot) {
                        swept.left += 1;
                    }
                    break;
                };
                if self.swap(field, owner, next)? {
                    match next {
                        Owner::Orphan { .. } => swept.orphaned += 1,
                        _ => swept.freed += 1,
                    }
                    crash_point("pool.sweep.one");
                    break;
                }
            }
        }
        for database in self.layout.all_databases() {
            let field = self.layout.entry(database);
            let entry = self.load(field)?;
            if entry.by == host.slot && matches!(entry.state, EntryState::Creating | EntryState::Dropping) {
                // Half made or half gone: its extents name the database, and its next life begins with an empty page.
                self.swap(field, entry, Entry { state: EntryState::Free, ..entry })?;
            }
        }
        Ok(Some(swept))
    }

    /// What becomes of an extent when `host` is dead. `None`: nothing.
    fn without(&self, host: Host, database: Database, owner: Owner) -> Outcome<Option<Owner>, M> {
        Ok(match owner {
            Owner::Claimed { by } | Owner::Returning { by } if by == host => {
                Some(Owner::Free { holds: Contents::Unknown })
            }
            Owner::Private { by, .. } if by == host => Some(Owner::Free { holds: self.contents_of(database) }),
            // Of an earlier life of the slot, which another host gave it too late and was killed before it took it back.
            Owner::Private { by, .. } if by.slot == host.slot && by.incarnation < host.incarnation => {
                Some(Owner::Free { holds: Contents::Unknown })
            }
            // A lone successor has nothing else to start from, and a follower may be reading.
            Owner::Log { by } | Owner::Filling { by, .. } if by == host => {
                Some(match (owner.kind(), usize::from(database.0) < usize::from(self.layout.databases)) {
                    (Some(kind), true) => Owner::Orphan { by, database, kind },
                    _ => Owner::Free { holds: Contents::Unknown },
                })
            }
            Owner::Handed { from, to, .. } if from == host => {
                let receiver = self.load(self.layout.ident(to))?;
                matches!(receiver.state, HostState::Free | HostState::Dead)
                    .then_some(Owner::Free { holds: Contents::Unknown })
            }
            Owner::Handed { from, to, .. } if to == host.slot => {
                self.is_gone(from)?.then_some(Owner::Free { holds: Contents::Unknown })
            }
            _ => None,
        })
    }

    pub(crate) fn contents_of(&self, database: Database) -> Contents {
        if database.0 < self.layout.databases { Contents::Of(database) } else { Contents::Unknown }
    }

    /// Gives the slot of a dead host away. The caller has swept it, to the end.
    pub fn free_slot(&self, host: Host) -> Outcome<bool, M> {
        let field = self.layout.ident(host.slot);
        let ident = self.load(field)?;
        if ident.incarnation != host.incarnation || ident.state != HostState::Dead {
            return Ok(false);
        }
        crash_point("pool.sweep.done");
        self.swap(field, ident, Ident { incarnation: host.incarnation, ..Ident::NEW })
    }
}
