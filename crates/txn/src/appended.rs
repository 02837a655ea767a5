//! How far records have been appended: what a statement looks at that may not show a commit before its record is durable.

use crate::Transactions;
use crate::sync::{AtomicU64, Ordering};
use tidepool_base::CommitTs;

/// The greatest timestamp of all records that were appended.
///
/// A commit is seen when it is decided, and its record is appended and becomes durable after that. So a snapshot may show what a
/// failure takes back. A snapshot whose commits are all durable is told from such a one by this word and by
/// [`Transactions::floor`].
#[derive(Debug, Default)]
pub struct Appended(AtomicU64);

impl Appended {
    /// The record of a commit was appended. The committer says so before its transaction is over.
    #[inline]
    pub fn note(&self, ts: CommitTs) {
        // Relaxed: the end of the transaction is a release, and who finds it ended has acquired that.
        self.0.fetch_max(ts.0, Ordering::Relaxed);
    }

    /// Whether a snapshot at `ts`, which was drawn before, may show a commit whose record is not durable yet.
    #[inline]
    pub fn may_be_shown(&self, transactions: &Transactions, ts: CommitTs, durable: impl FnOnce() -> CommitTs) -> bool {
        // First: all commits below it have been appended, so that the word says of them. What was decided and not appended yet is
        // above.
        let floor = transactions.floor();
        floor <= ts || CommitTs(self.0.load(Ordering::Relaxed)) > durable()
    }
}
