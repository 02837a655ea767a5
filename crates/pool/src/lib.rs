//! The pool: memory that several processes attach to, which of them owns which part of it, and which are alive.
//!
//! A pool is one or more devices that are divided into extents. A *host* takes a slot for one life, its *incarnation*. An
//! extent has one owner and one kind, in one word. A database of the pool has one primary, in its `TERM` word, and one
//! manifest in force, in its `ROOT` word.
//!
//! > A byte that a host may still store to is never given to another host until the first is known to be dead. A fail-over
//! > needs none of those bytes.
//!
//! So suspicion is enough to take over, and only confirmation frees; no deadline, clock or timeout is part of any proof.
//! Stores into a mapping cannot be revoked: *where* a late writer can store is of no use to other hosts.
//!
//! The transitions of the words ([`hosts`], [`extents`], [`databases`]) are written over the trait [`memory::Memory`]. The model
//! (`model`) runs them under every interleaving, with hosts that die or sleep between any two accesses, and with each fence
//! and each swap removed.
//!
//! Knows no tables: what a manifest names, what a record means and when a checkpoint is made is others' business.

#![deny(unsafe_code)]

#[cfg(not(loom))]
pub mod check;
#[cfg(not(loom))]
pub mod control;
pub mod databases;
#[cfg(not(loom))]
pub mod dealt;
#[cfg(all(test, not(loom)))]
mod dealt_simulated;
pub mod death;
#[cfg(not(loom))]
mod descriptors;
pub mod events;
pub mod extents;
pub mod hosts;
pub mod layout;
#[cfg(not(loom))]
pub mod liveness;
#[cfg(not(loom))]
pub mod mapped;
#[cfg(not(loom))]
pub mod member;
pub mod memory;
#[cfg(not(loom))]
pub mod needs;
#[cfg(not(loom))]
pub mod pages;
#[cfg(not(loom))]
pub mod pool;
#[cfg(not(loom))]
pub mod reader;
#[cfg(not(loom))]
mod reign;
#[cfg(not(loom))]
pub mod show;
#[cfg(not(loom))]
pub mod slices;
#[cfg(not(loom))]
pub mod superblock;
pub mod words;

#[cfg(all(test, loom))]
mod interleavings;
#[cfg(all(test, not(loom)))]
mod model;
#[cfg(all(test, not(loom)))]
mod simulated;
mod sync;
#[cfg(not(loom))]
mod system;

/// Where a test may end the process ([`tidepool_base::crash_point`]).
pub const CRASH_POINTS: &[&str] = &[
    "pool.beat.begins",
    "pool.joined",
    "pool.lease.claimed",
    "pool.lease.zeroed",
    "pool.back.returning",
    "pool.handed",
    "pool.granted",
    "pool.publish.summed",
    "pool.sweep.one",
    "pool.sweep.done",
    "pool.database.creating",
    "pool.device.adding",
    "pool.reign.taken",
    "pool.reign.sealed",
    "pool.reign.orphaned",
];

/// The same where a machine takes a slice of a pool that is dealt out, or gives it up.
pub const SLICE_CRASH_POINTS: &[&str] = &[
    "pool.slice.claimed",
    "pool.slice.taken",
    "pool.slice.buried",
    "pool.slice.kept",
    "pool.slice.flushed",
    "pool.slice.given",
];
