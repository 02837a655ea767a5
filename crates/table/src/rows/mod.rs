//! The row store: rows by id, each with its versions, over main.
//!
//! Nouns: a [`RowStore`] is a table's rows. It is a list of ranges; a range has a head a row (its newest version, or
//! null: main has it) and a [`MainPart`]. A transaction's [`WriteSet`] is what it wrote, in any number of tables. A
//! [`RowLayout`] says how a row becomes an image, which is what a version holds. Versions lie in [`VersionMemory`].
//!
//! # What may be looked at
//!
//! Everything is looked at under a [`View`](tidepool_txn::View) with snapshot *s*, which keeps the horizon from passing
//! *s*.
//!
//! * A version that a head or another version pointed at when it was looked at stays until the view ends, if it is
//!   reached so: from the head on, and from a version to its older one only if the view does not see the former. For a
//!   version is retired when one that replaced it is committed, as of that commit's timestamp *c*; and who goes past
//!   the newer one has *s* < *c*. (From an aborted version, or a lock, one goes on to what was the newest then: had
//!   that been replaced and retired at a *c* <= *s*, the head would have shown the replacement already.)
//! * A version that is taken out of a head otherwise (it was aborted, merged, or only a lock) is retired as of a time
//!   after that; whoever found it in the head had drawn *s* before.
//! * A [`MainPart`] is retired as of a time after it was replaced.
//!
//! What is retired is freed when the horizon is past it.
//!
//! # What is left to the database
//!
//! * A session has a [`Worker`](tidepool_txn::Worker) and a [`WriteSet`]. Its statements take a snapshot, and turn an
//!   [`Outcome`] into waiting, looking again, or an error. Its part in a commit wraps the write set's, with a log
//!   between.
//! * Somebody calls `Worker::collect` now and then, and [`RowStore::finish_merge`] after a merge; a session that rests
//!   calls `Worker::rest`.
//! * What is allocated here lasts longer than a statement: a thread inside a query heap writes rows outside of it.

mod apply;
mod check;
mod claim;
mod layout;
mod locks;
mod memory;
mod merge;
mod page;
pub mod patch;
mod pod;
mod range;
mod reads;
mod reclaim;
mod restore;
mod store;
pub(crate) mod sync;
#[cfg(test)]
mod tests;
pub mod typed;
mod version;
mod window;
mod write;
mod write_set;

pub use apply::{Applied, Applier, RowChange};
pub use claim::Claim;
pub use layout::{BatchRows, IMAGE_BYTES_MAX, RowLayout, Value};
pub use locks::RowLock;
pub use memory::VersionMemory;
pub use merge::{ChangeGroup, Merged, NewMain, RangeUsage, TellMain};
pub use pod::{MovedIn, PodCounters, PodMember, PodRow, is_pod_row};
pub use range::MainPart;
pub use reads::{ReadLog, ScanRead};
pub use reclaim::Gone;
pub use restore::Patched;
pub use store::{RowRef, RowStore};
pub(crate) use version::HEADER_BYTES as VERSION_HEADER_BYTES;
pub use version::Keys;
pub use window::{Apart, RangeView};
pub use write::Outcome;
pub use write_set::{Change, Done, Replaced, Savepoint, WriteSet};
