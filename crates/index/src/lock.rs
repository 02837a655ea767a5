//! A node's lock and version in one word: optimistic lock coupling (Leis, Scheibner, Kemper, Neumann: "The ART of Practical
//! Synchronization", DaMoN 2016), within the rules of the language's memory model.
//!
//! A reader writes nothing. It takes the version, reads what it wants, and asks at the end whether the version is still
//! the same; if not, what it read is void. Meanwhile it may read anything, so all words of a node are atomics, read relaxed.
//!
//! Why that is right (Boehm: "Can Seqlocks Get Along with Programming Language Memory Models?", MSPC 2012):
//!
//! * A writer locks by an exchange and then passes a release fence; a reader passes an acquire fence before it asks again.
//!   A reader that saw any word of the writer's has synchronised with that fence, and sees the version locked or newer.
//! * A writer unlocks by a release store of a higher version; a reader takes the version by an acquire load. So a reader
//!   that begins with a version sees at least what was written before it, and, by the first rule, nothing of what came after.
//!
//! A version never repeats, also when the node's memory is used for another node: it counts up from what was there.
//!
//! ```text
//! 63              2  1        0
//! |   changes     | retired | locked |
//! ```

use crate::sync::{AtomicU64, Backoff, Ordering, fence, step};

const LOCKED: u64 = 1;
/// Of no tree: unlinked, or not yet linked.
const RETIRED: u64 = 2;
const CHANGE: u64 = 4;

/// What was read is void: somebody changed the node, or has it locked. To be begun anew from the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Restart;

/// A version at which a node was neither locked nor retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version(u64);

/// Begins to read. Waits for whoever has it locked.
#[inline]
pub(crate) fn read(word: &AtomicU64) -> Result<Version, Restart> {
    step();
    let version = word.load(Ordering::Acquire);
    if version & (LOCKED | RETIRED) == 0 { Ok(Version(version)) } else { read_when_unlocked(word) }
}

#[cold]
fn read_when_unlocked(word: &AtomicU64) -> Result<Version, Restart> {
    let mut backoff = Backoff::new();
    loop {
        let version = word.load(Ordering::Acquire);
        if version & RETIRED != 0 {
            return Err(Restart);
        }
        if version & LOCKED == 0 {
            return Ok(Version(version));
        }
        backoff.pause();
    }
}

/// As `read`, for those who hold other nodes: they may not wait.
#[inline]
pub(crate) fn try_read(word: &AtomicU64) -> Result<Version, Restart> {
    step();
    let version = word.load(Ordering::Acquire);
    if version & (LOCKED | RETIRED) == 0 { Ok(Version(version)) } else { Err(Restart) }
}

/// Whether all that was read since `version` was taken is of that version.
#[inline]
pub(crate) fn check(word: &AtomicU64, version: Version) -> Result<(), Restart> {
    step();
    // The loads before come before the load behind.
    fence(Ordering::Acquire);
    if word.load(Ordering::Relaxed) == version.0 { Ok(()) } else { Err(Restart) }
}

/// Locks what is still at `version`, so that what was read of it is true until it is unlocked. Never waits, so nobody who
/// holds one node waits for another.
#[inline]
pub(crate) fn lock(word: &AtomicU64, version: Version) -> Result<(), Restart> {
    step();
    if word.compare_exchange(version.0, version.0 | LOCKED, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return Err(Restart);
    }
    // The exchange comes before the stores behind, for whoever sees one of these.
    fence(Ordering::Release);
    Ok(())
}

/// Unlocks a node that was changed.
#[inline]
pub(crate) fn unlock_changed(word: &AtomicU64) {
    step();
    let version = word.load(Ordering::Relaxed);
    debug_assert!(version & LOCKED != 0);
    word.store((version & !LOCKED) + CHANGE, Ordering::Release);
}

/// Unlocks a node that was not changed: readers need not begin anew.
#[inline]
pub(crate) fn unlock_unchanged(word: &AtomicU64) {
    step();
    let version = word.load(Ordering::Relaxed);
    debug_assert!(version & LOCKED != 0);
    word.store(version & !LOCKED, Ordering::Release);
}

/// Unlocks a node that has just left the tree.
pub(crate) fn unlock_retired(word: &AtomicU64) {
    step();
    let version = word.load(Ordering::Relaxed);
    debug_assert!(version & (LOCKED | RETIRED) == LOCKED);
    word.store(((version & !LOCKED) + CHANGE) | RETIRED, Ordering::Release);
}

/// Memory that no reader knows yet becomes a retired node.
pub(crate) fn init(word: &AtomicU64) {
    word.store(RETIRED, Ordering::Relaxed);
}

/// Locks a retired node, to make another of it. Nobody else does.
pub(crate) fn reuse(word: &AtomicU64) {
    step();
    let version = word.load(Ordering::Relaxed);
    debug_assert!(version & (LOCKED | RETIRED) == RETIRED);
    word.store(((version & !RETIRED) + CHANGE) | LOCKED, Ordering::Relaxed);
    fence(Ordering::Release);
}
