//! Serializable transactions: what was read is asked about again at commit, as of the commit's timestamp.
//!
//! A transaction whose reads all give the same at its timestamp *c* as they did at its snapshot has, to everybody else,
//! done everything at *c*. A version of another's with a timestamp after the snapshot and not after *c* would have been read
//! differently (the backward validation of Kung and Robinson, On Optimistic Methods for Concurrency Control, TODS 1981,
//! section 4; as of a timestamp, as in Larson et al., High-Performance Concurrency Control Mechanisms for Main-Memory
//! Databases, VLDB 2011, section 3.2).
//!
//! Of the other's versions without a timestamp: who is running will draw a later one. Who is committing is made to. Then the
//! two may do so to each other in turn; after some rounds the one with the higher slot gives up.

use crate::slots::Status;
use crate::sync::{AtomicU64, Ordering};
use crate::tag::TAG_BIT;
use crate::{Tag, Transactions, View};
use tidepool_base::{CommitTs, Error, Result, SqlState};

/// Rounds of raising each other that two transactions are given.
const ROUNDS: u32 = 3;

/// What a version is to a transaction that read what it shows, or did not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// In the snapshot: it was read, and nothing older matters.
    Seen,
    /// The transaction wrote it. What it replaced was the newest, so nothing older matters either.
    Own,
    /// After the commit: what is older counts.
    Later,
    /// Between snapshot and commit, of another's: the transaction cannot be serialized.
    Conflict,
}

/// Reads that are to hold still.
pub trait Reads: Send {
    /// Whether everything that was read, rows that were not there included, is the same at `check.commit_ts()`. Asks
    /// `check` about each version that there is now, from the newest on to the first that is `Seen`.
    fn still_hold(&self, check: &Validation<'_>) -> Result<bool>;
}

/// A transaction about to commit, as its reads see it.
#[derive(Debug)]
pub struct Validation<'t> {
    pub(crate) transactions: &'t Transactions,
    pub(crate) own: Tag,
    pub(crate) snapshot: u64,
    pub(crate) commit: u64,
    pub(crate) round: u32,
    /// The snapshot, which is open.
    pub(crate) view: &'t View,
}

impl<'t> Validation<'t> {
    /// The same that another host's transaction asks, of what this host has. `view`: one of this host, drawn since that asked.
    pub fn for_another(
        transactions: &'t Transactions,
        own: Tag,
        snapshot: CommitTs,
        commit: CommitTs,
        round: u32,
        view: &'t View,
    ) -> Validation<'t> {
        Validation { transactions, own, snapshot: snapshot.0, commit: commit.0, round, view }
    }

    /// How often the transaction has drawn a timestamp.
    pub fn round(&self) -> u32 {
        self.round
    }

    pub fn own(&self) -> Tag {
        self.own
    }

    pub fn snapshot_ts(&self) -> CommitTs {
        CommitTs(self.snapshot)
    }

    /// What the transaction read under.
    pub fn view(&self) -> &View {
        self.view
    }

    /// The timestamp that the transaction would have.
    pub fn commit_ts(&self) -> CommitTs {
        CommitTs(self.commit)
    }

    pub fn standing(&self, begin: &AtomicU64) -> Standing {
        loop {
            if let Some(standing) = self.standing_of(begin.load(Ordering::Acquire)) {
                return standing;
            }
        }
    }

    /// As `standing`, of a word that was copied from a version's `begin`. `None`: the transaction that it names is over,
    /// and the version has its timestamp by now.
    #[inline]
    pub fn standing_of(&self, word: u64) -> Option<Standing> {
        if word == self.own.word() {
            return Some(Standing::Own);
        }
        if word & TAG_BIT == 0 {
            return Some(self.standing_at(word));
        }
        let tag = Tag(word);
        let slot = self.transactions.slot(tag.slot());
        loop {
            match slot.status(tag) {
                Status::Running | Status::Aborted => return Some(Standing::Later),
                Status::Committing(m) if m >= self.commit => return Some(Standing::Later),
                Status::Committing(m) => {
                    if self.round >= ROUNDS && tag.slot() < self.own.slot() {
                        return Some(Standing::Conflict);
                    }
                    if slot.raise(m, self.commit) {
                        return Some(Standing::Later);
                    }
                }
                Status::Committed(c) => return Some(self.standing_at(c)),
                Status::Gone => return None,
            }
        }
    }

    fn standing_at(&self, ts: u64) -> Standing {
        if ts <= self.snapshot {
            Standing::Seen
        } else if ts <= self.commit {
            Standing::Conflict
        } else {
            Standing::Later
        }
    }

    /// 40001 unless what was read holds still.
    pub fn require(&self, holds: bool) -> Result<()> {
        if holds {
            return Ok(());
        }
        Err(Error::new(
            SqlState::SERIALIZATION_FAILURE,
            "could not serialize access due to read/write dependencies among transactions",
        )
        .with_hint("The transaction might succeed if retried."))
    }

    /// 40001 unless all of `reads` hold still.
    pub fn check<'r>(&self, reads: impl IntoIterator<Item = &'r dyn Reads>) -> Result<()> {
        for read in reads {
            self.require(read.still_hold(self)?)?;
        }
        Ok(())
    }
}
