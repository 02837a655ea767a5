//! A cache simulator over a trace of memory accesses, as `valgrind --tool=lackey --trace-mem=yes` writes it: what a machine
//! with this cache would have fetched from, and written back to, chosen address ranges.
//!
//! It holds the engine's own account of far memory against an independent witness, so it shares no code with it and knows
//! nothing of tablespaces but their addresses.
//!
//! Modelled: one core; a first-level data cache of 32 KiB in 8 ways; a last-level cache of a chosen size in 16 ways that holds
//! all that the first level holds; lines of 64 bytes, least recently used replaced, written back when evicted, fetched before
//! they are written. Not modelled: instruction fetches, hardware prefetching (which moves misses in time and not in number),
//! stores past the caches, physical addresses.

#![forbid(unsafe_code)]

mod cache;
mod observer;
mod trace;

pub use cache::{Cache, LINE_BYTES};
pub use observer::{Counts, Interval, Observer, Range, Setup};
pub use trace::{Access, parse_line};
