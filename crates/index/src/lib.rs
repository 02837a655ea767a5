//! Indexes: encoded keys to row ids.
//!
//! An [`Index`] is a B+-tree whose nodes live in a tablespace. It keeps pairs of a key, any byte string, and a row id, in
//! order. Single keys that are looked up again are found by their hashes (`directory`). [`key`] makes byte strings of SQL values that compare as the values do. Readers take no lock and write no shared
//! memory (`lock`), whole leaves at a time ([`Cursor`]).
//!
//! What operations touch is counted ([`Touched`]): by their caller, or at the index itself until it is asked for.
//!
//! Whoever uses an index holds a view of its transactions: nodes that leave the tree are kept while somebody may read them.
//!
//! Leaves to others: which version of a row a reader sees, and whether it still has the key. An entry says only
//! that some version of the row may have it.

mod arena;
mod bulk;
mod check;
mod content;
mod cursor;
mod directory;
mod estimate;
mod finger;
pub mod key;
mod lock;
#[cfg(all(test, loom))]
mod model;
mod node;
mod pace;
mod shape;
#[cfg(all(test, not(loom)))]
mod stress;
mod sync;
#[cfg(test)]
mod testing;
#[cfg(all(test, not(loom)))]
mod tests;
mod together;
mod tree;
mod unique;
mod uses;

pub use arena::IndexMemory;
pub use bulk::IndexBuilder;
pub use check::IndexReport;
pub use cursor::{Cursor, Direction, KeyRange, Rows};
pub use finger::Fingers;
pub use pace::{Counted, Touched};
pub use tree::{Index, KEY_BYTES_MAX};
pub use unique::{UniqueInsert, Verdict};
