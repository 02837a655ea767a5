//! The process's other tablespaces over the same pool: where one finds the pool full, they give back what they do not use.

use super::{Leased, WITHIN_GROWTH};
use crate::Tablespace;
use std::sync::RwLock;
use std::sync::atomic::Ordering;

/// More of them are not asked.
const SIBLINGS_MAX: usize = 64;

/// Where they are. Null: none. A list that never allocates, as it is used within the allocator.
struct Siblings([*const Tablespace; SIBLINGS_MAX]);

// SAFETY: tablespaces are used by many threads at once; whoever follows an address has the list locked.
unsafe impl Send for Siblings {}
// SAFETY: as above.
unsafe impl Sync for Siblings {}

/// The lock is taken before any lock of growth, and under none of a tablespace.
static SIBLINGS: RwLock<Siblings> = RwLock::new(Siblings([std::ptr::null(); SIBLINGS_MAX]));

impl Tablespace {
    /// Has the process's other tablespaces over the pool give back what they do not use, for an allocation of so many pages here
    /// that found the pool full. Whether any did. Allocates nothing; no lock of this tablespace is held.
    pub(crate) fn ask_others(&self, leased: &Leased, count: usize) -> bool {
        // Within its own bound there is room for it; a thread that has a lock of growth asks nobody.
        let wanted = count.div_ceil(leased.stripe_pages()).saturating_add(1);
        let held = leased.held.load(Ordering::Relaxed);
        if WITHIN_GROWTH.get() || held.saturating_add(wanted - 1) > leased.limit.load(Ordering::Relaxed) {
            return false;
        }
        let siblings = SIBLINGS.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut given = 0;
        for sibling in siblings.0.iter().filter(|sibling| !sibling.is_null() && !std::ptr::eq(**sibling, self)) {
            if given >= wanted {
                break;
            }
            // SAFETY: a tablespace that is listed lives: it takes itself off the list first when it is dropped, and waits for that.
            let sibling = unsafe { &**sibling };
            let Some(of_sibling) = sibling.leased.as_deref().filter(|other| leased.lessor.is_same(&other.lessor))
            else {
                continue;
            };
            let Some(mut growing) = of_sibling.grow() else { continue };
            given += sibling.give_idle_back(of_sibling, &mut growing.growth, 0, wanted - given, 0..0);
        }
        given > 0
    }

    /// Other tablespaces over the pool can ask this one from now on, if there is room for it.
    pub(super) fn list_as_sibling(&self) {
        let mut siblings = SIBLINGS.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(free) = siblings.0.iter_mut().find(|sibling| sibling.is_null()) {
            *free = self;
        }
    }

    /// When it is dropped.
    pub(crate) fn leave_siblings(&self) {
        let mut siblings = SIBLINGS.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        let own = siblings.0.iter_mut().filter(|sibling| std::ptr::eq(**sibling, self));
        own.for_each(|sibling| *sibling = std::ptr::null());
    }
}
