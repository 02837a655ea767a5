//! The pod: several hosts that run transactions over shared memory, of which hardware keeps only a small area coherent.
//!
//! (Huang et al., *Pasha: An Efficient, Scalable Database Architecture for CXL Pods*, CIDR 2025.) This crate is the
//! lowest layer: memory, and what hosts tell each other through it.
//!
//! > A coherent word is changed by compare-and-swap alone. Everything else is written once, written back and fenced
//! > before a word refers to it, and fetched anew by a host that reads it.
//!
//! So no host waits for a lock that another holds, and a host that dies at any instruction leaves words that say how
//! far it came.
//!
//! | module | what it is | invariants |
//! | --- | --- | --- |
//! | [`access`] | the accesses that hardware offers, and what it promises | |
//! | [`memory`] | the two disciplines as types | what is not sealed cannot be published, what is published cannot be written |
//! | [`layout`] | where everything stands, within a budget of coherent bytes | no two things in one place |
//! | [`ring`] | messages from one host to another | all between head and tail are whole messages |
//! | [`tuples`] | rows that all hosts read and write, their locks, moving, recovery | a commit that was acknowledged outlives its host |
//! | [`mapped`] | pool extents, or this process's memory | |
//! | `model` | caches per host that evict, fetch early and write back late | finds each access of these modules that is left out |
//!
//! | memory | who may write it |
//! | --- | --- |
//! | tail of a ring | its sender |
//! | head of a ring | its receiver |
//! | lines of a ring | its sender, between tail and head |
//! | lines of a block | the block's host, while no word refers to it |
//! | stamp of a block | the host that published it, once, or the recoverer of that host |
//! | words of a slot | the slot's worker, or the recoverer of its host |
//! | word of a tuple | all hosts, as [`tuples`] lists |
//!
//! Hosts, their lives and deaths, and the ownership of extents are the pool's. A death is *confirmed* before a host
//! recovers for another: a suspect host that wakes would change words that survivors changed.

#![deny(unsafe_code)]

pub mod access;
pub mod layout;
pub mod mapped;
pub mod memory;
#[cfg(any(test, feature = "model"))]
pub mod model;
pub mod ring;
pub mod tuples;
pub mod words;

use access::Access;
use layout::Layout;
use memory::Outcome;
use tidepool_pool::words::Number;
use words::Plain;

/// In the place of a snapshot: there is none.
pub const NO_SNAPSHOT: Plain = Plain(u64::MAX);

/// Gives a new pod's words their first values, in areas of zeroes, before any host uses them.
pub fn create<A: Access>(access: &A, layout: Layout) -> Outcome<(), A> {
    for from in layout.all_hosts() {
        for to in layout.all_hosts().filter(|to| *to != from) {
            layout.ring_tail(from, to).initialize(access, Number(0))?;
            layout.ring_head(from, to).initialize(access, Number(0))?;
        }
        for worker in 0..layout.workers {
            layout.sequence(from, worker).initialize(access, Plain(1))?;
            layout.snapshot(from, worker).initialize(access, NO_SNAPSHOT)?;
            layout.held(from, worker).initialize(access, NO_SNAPSHOT)?;
        }
        layout.horizon(from).initialize(access, NO_SNAPSHOT)?;
    }
    Ok(())
}
