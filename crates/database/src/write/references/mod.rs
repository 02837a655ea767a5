//! Foreign keys: rows of one table, the child's, refer to rows of another one, the parent's, by a key.
//!
//! A statement writes its rows first; what of them matters to foreign keys is remembered as [`Event`]s. When it is over,
//! [`Transaction::check_references`] deals with all of them together, a set of keys at a time:
//!
//! 1. Keys that are no more, of each foreign key in the order that they were made: what it wants done to rows that refer
//!    to them is done (`act`), or nobody may refer to them.
//! 2. Rows that were written: the row that each refers to is found through the parent's index, and locked `FOR KEY SHARE`
//!    to the transaction's end.
//!
//! What was done to other rows makes further events, which are dealt with in the same way.
//!
//! # Partitioned tables
//!
//! A foreign key of a partitioned table is also one of each of its partitions, which knows whose part it is: rows that are
//! written are checked by their leaf's. Keys that are no more are dealt with by the foreign key that is no part, for all
//! leaves of its table. A reference to a partitioned table finds its row in the one leaf that the key belongs to: the
//! unique index has all columns of the partition key. So a row that moves to another leaf has another key, and what is
//! done about it is what is done about a change.
//!
//! # Why no row is left without the one that it refers to
//!
//! Let one transaction write a row that refers to a key, and another take the key away. The former locks the parent's row
//! and looks at what is committed by then; the latter puts a version into that row's head first, and then looks for rows
//! that refer to it, in a view drawn after that. If the lock comes first, the latter waits for the former's end before it
//! looks. If the version does, the former waits, and finds the key gone, or there if the latter came to nothing.
//!
//! Both look at what is committed now, whatever their statements' views show. A transaction of one snapshot does not refer
//! to rows that its snapshot does not show, and gives up (40001) where it would have to change rows that are newer.
//!
//! # Locks of tables
//!
//! Whoever checks a foreign key shares the locks of both tables; whoever makes or drops one has both alone, and puts
//! another `Table` of the same definition in the parent's place, so that a transaction with a snapshot from before cannot
//! write to it. Of a partitioned table that goes for all its partitions, but that of a table referred to only those leaves
//! are locked that are looked into.

mod act;
mod check;
mod convert;
mod define;
mod inherit;
mod link;
mod parents;
mod pending;
mod state;
mod tables;
#[cfg(test)]
mod tests;

pub(crate) use check::verify;
pub use define::NewForeignKey;
pub use pending::RowRules;
pub(crate) use pending::{References, ReferencesSavepoint, Watch};
pub use state::Referring;
