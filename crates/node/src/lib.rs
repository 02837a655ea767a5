//! A memory node: a process that lends its memory to databases on other machines.
//!
//! A database registers places in a node's memory, reads and writes them in vectors, and gives them back. What it has
//! there is its *room*, which outlives the database's process: the next one comes with a newer epoch, which fences the
//! one before, and finds the room as it was left. Writes that belong together are staged, and come in force together
//! with a root by one `PUBLISH`; a reader sees all of them or none.
//!
//! A node keeps nothing when it ends. It says so by its *content* number, another one in each process, in the answer to
//! each connection.
//!
//! Leaves to others: framing, authentication, fencing (`tidepool-wire`); mapping memory (`tidepool-device`); what the
//! bytes mean.

mod arena;
mod process;
mod room;
mod service;

pub use arena::{Arena, UNIT_BYTES};
pub use process::{Process, Stopper};
pub use room::{Published, ROOT_BYTES, STAGED_BYTES_MAX};
pub use service::{Node, ROOMS_MAX, RUNS_MAX, Status};
