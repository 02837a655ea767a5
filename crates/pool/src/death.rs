//! The proof that a host is dead.

/// Why a host is known to store nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Its lock was seen held by this incarnation, and is free.
    LockReleased,
    /// The kernel says that its process has ended.
    ProcessEnded,
    /// The fence command ended with success.
    FenceCommand,
    /// An operator said so.
    Operator,
    /// The machine that it was on has written its caches back and given the memory up, or is dead as a whole.
    Machine,
    /// The host itself, which has unmapped the pool.
    Itself,
}

/// The proof that a host is dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    pub evidence: Evidence,
}

impl Death {
    pub(crate) fn by(evidence: Evidence) -> Death {
        Death { evidence }
    }
}

/// What the lock of a host's slot says to one that watches it. Locks are each kernel's own, and a container may have a
/// device node or an overlay of its own: a lock that is free says nothing until the watcher has seen it held, by this
/// incarnation and through the same file.
pub fn verdict_of_lock(was_seen_held: bool, is_held: bool) -> Option<Death> {
    (was_seen_held && !is_held).then(|| Death::by(Evidence::LockReleased))
}
