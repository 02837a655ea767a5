//! Fuzz targets: everything that reads bytes from outside, fed with bytes that nobody would write on purpose.
//!
//! A [`Target`] is a function of bytes that panics if the code under test does something that it must never do, and seeds
//! to begin from: valid inputs. Two drivers run the same targets:
//!
//! * `tests/mutations.rs`, part of `cargo test`: seeded mutations of the seeds, some seconds a target. It runs on stable
//!   Rust and needs no tools.
//! * `fuzz/` at the root of the repository, with `cargo fuzz`: guided by coverage, under AddressSanitizer, for hours.
//!
//! Checksums would keep mutated bytes away from the code that reads what they protect, so the targets for segments, the log
//! and frames put right checksums in again; those of segments and the log are computed here from the formats' descriptions.

#![forbid(unsafe_code)]

mod copy;
mod keys;
mod log;
pub mod mutate;
mod protocol;
mod segments;
mod sessions;
mod sql;
mod wire;
mod world;

/// Something that reads bytes from outside.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    pub name: &'static str,
    /// Valid inputs, from which others are made.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Panics if the code under test does what it must not do for any input.
    pub run: fn(&[u8]),
    /// Mutations that a test run tries, so that it takes some seconds.
    pub mutations: u64,
}

pub const TARGETS: &[Target] = &[
    Target { name: "protocol", seeds: protocol::seeds, run: protocol::run, mutations: 300 },
    Target { name: "sql", seeds: sql::seeds, run: sql::run, mutations: 1_000 },
    Target { name: "copy", seeds: copy::seeds, run: copy::run, mutations: 60_000 },
    Target { name: "segments", seeds: segments::seeds, run: segments::run, mutations: 20_000 },
    Target { name: "keys", seeds: keys::seeds, run: keys::run, mutations: 200_000 },
    Target { name: "log", seeds: log::seeds, run: log::run, mutations: 1_500 },
    Target { name: "sessions", seeds: sessions::seeds, run: sessions::run, mutations: 200_000 },
    Target { name: "wire", seeds: wire::seeds, run: wire::run, mutations: 200_000 },
];

/// The target of that name. Panics if there is none: the names are those of [`TARGETS`].
pub fn target(name: &str) -> Target {
    *TARGETS.iter().find(|target| target.name == name).unwrap_or_else(|| panic!("no fuzz target \"{name}\""))
}
