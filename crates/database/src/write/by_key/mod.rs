//! Rows by key, without SQL: for programs that have the database inside them, and for procedures.
//!
//! Nouns: a [`PreparedTable`] and a [`PreparedIndex`] are a table and a way to its rows, looked up by name once. A
//! [`DirectSession`] runs one [`DirectTransaction`] after another. In one, rows are found and written through an [`Access`]; so
//! they are in a [`Procedure`], which SQL calls by its name, within the caller's transaction.
//!
//! # Changes of tables
//!
//! Whoever writes rows by SQL shares the lock of their table (`locks`), under a mutex. A direct transaction takes none, as long as
//! nobody has, or wants, any table alone: it says before its first write that it is there (its [`Activity`]), and then looks
//! whether somebody does. Whoever wants a table alone says so, and then waits for the transactions that are there. With a full fence
//! between on both sides at least one sees the other: Dekker's algorithm, as in the biased locks of Dice and Kogan (BRAVO,
//! USENIX ATC 2019). A transaction that sees somebody takes locks as others do.
//!
//! A prepared table knows when another definition has taken its table's place, and is then looked up anew, once for all who use it.

mod access;
mod elsewhere;
mod prepared;
mod procedure;
mod scan;
mod session;
#[cfg(test)]
mod tests;

pub use access::{Access, Row, RowChange};
pub use prepared::{PreparedIndex, PreparedTable};
pub use procedure::{Procedure, ProcedureArgument, Procedures};
pub use scan::{KeyScan, ScanRange};
pub use session::{DirectSession, DirectTransaction};
