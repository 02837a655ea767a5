//! Transactions: timestamps, snapshots, the horizon, waiting for each other, and the commit protocol.
//!
//! Nouns: [`Transactions`] is one a database. A [`Worker`] is a slot in it that a session or a thread keeps; it runs one
//! transaction at a time and lends [`Snapshot`]s. Versions of data bear the [`Tag`] of who wrote them until they are
//! stamped with a commit timestamp. What is taken out of reach is *retired*, and freed when the *horizon* is past it.
//!
//! Nothing on the path of a read or a commit is written by more than one thread, but for a reader that raises the lower
//! bound of a transaction that is committing at that moment.
//!
//! Leaves to others: what a version is and where (`tidepool-table`, `tidepool-index`), and what goes to the log
//! (`tidepool-log`); they take part in a commit through [`Commit`]. Knows no row format.
//!
//! ```
//! use tidepool_base::CommitTs;
//! use tidepool_txn::{Isolation, Transactions};
//!
//! let transactions = Transactions::starting_after(CommitTs(0));
//! let mut worker = transactions.worker()?;
//! worker.begin(Isolation::ReadCommitted)?;
//! let snapshot = worker.snapshot();
//! assert!(snapshot.ts() > CommitTs(0));
//! # Ok::<(), tidepool_base::Error>(())
//! ```

// Only the models that loom checks have cells of their own.
#![cfg_attr(not(loom), forbid(unsafe_code))]

mod appended;
mod clock;
#[cfg(all(test, loom))]
mod model;
#[cfg(not(loom))]
mod pod;
mod retire;
mod slots;
mod sync;
mod tag;
#[cfg(all(test, not(loom)))]
mod tests;
mod transactions;
mod validation;
mod view;
mod wait;
mod worker;

pub use appended::Appended;
pub use clock::Clock;
#[cfg(not(loom))]
pub use pod::PodSlots;
pub use retire::{Reclaim, Retired};
pub use slots::{NO_SNAPSHOT, SLOTS_MAX, SlotMemory, SlotWords, Status};
pub use tag::{NEVER, Tag};
pub use transactions::Transactions;
pub use validation::{Reads, Standing, Validation};
pub use view::{HeldSnapshot, ProcedureView, Snapshot, View};
pub use worker::{Commit, Isolation, Worker};
