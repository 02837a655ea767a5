//! Ids of transactions, for clients that ask for one, and what became of those transactions.
//!
//! An id is drawn when a client asks for it, so a transaction whose client does not ask costs nothing. Its high half is an *epoch*: the
//! primary's term in a pool, and the number of the start in a data folder. No two processes that write draw ids of one epoch, so an id
//! means the same transaction on every host, and after every restart. Its low half counts.
//!
//! The log record of a transaction with an id has that id. So whoever has read the log to the end of an epoch knows of each id whether
//! it was committed; all others of that epoch were not. Checkpoints and manifests save what the log may drop.
//!
//! The record also has the lowest id that was drawn and whose transaction had not ended when the record was made. Those below it have ended before, so a
//! follower tells a transaction that was rolled back from one that goes on.

use crate::Database;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tidepool_base::{CommitTs, Error, Result, SqlState};
use tidepool_txn::{Tag, Transactions};

/// The latest ids that are remembered, of all epochs together.
const IDS_MAX: usize = 1 << 16;

/// The latest epochs in which ids were drawn that are remembered.
const EPOCHS_MAX: usize = 1 << 10;

/// The first of an epoch, as PostgreSQL's first ordinary transaction.
const FIRST: u32 = 3;

/// Between two looks whether commits that were decided are in their places.
const FLOOR_LOOKS: Duration = Duration::from_micros(50);

/// An id, as clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Id {
    epoch: u32,
    number: u32,
}

impl Id {
    fn of(bits: u64) -> Id {
        Id { epoch: (bits >> 32) as u32, number: bits as u32 }
    }

    fn bits(self) -> u64 {
        u64::from(self.epoch) << 32 | u64::from(self.number)
    }
}

/// What became of a transaction. Exhaustive and mutually exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionFate {
    InProgress,
    Committed,
    Aborted,
}

impl TransactionFate {
    /// PostgreSQL's name.
    pub fn name(self) -> &'static str {
        match self {
            TransactionFate::InProgress => "in progress",
            TransactionFate::Committed => "committed",
            TransactionFate::Aborted => "aborted",
        }
    }
}

/// What is known of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// It may have been, or not.
    TooOld,
    /// Nobody has drawn it yet.
    Future,
    InProgress,
    Aborted,
    Committed(CommitTs),
}

/// What a record says of its transaction's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoggedId {
    pub id: u64,
    /// Transactions with lower ids of the same epoch had ended.
    pub oldest: u64,
}

/// Ids of one epoch.
#[derive(Debug)]
struct Epoch {
    epoch: u32,
    /// The id of the first commit below.
    first: u32,
    /// By id, when its transaction was committed. 0: it was not.
    commits: VecDeque<u64>,
    /// Transactions of lower ids have ended.
    oldest: u32,
}

impl Epoch {
    fn new(epoch: u32) -> Epoch {
        Epoch { epoch, first: FIRST, commits: VecDeque::new(), oldest: FIRST }
    }

    /// The next id to be drawn, as far as is known.
    fn next(&self) -> u32 {
        self.first + self.commits.len() as u32
    }
}

#[derive(Debug, Default)]
struct Ids {
    /// The epoch that this process draws ids of. 0: it draws none.
    own: u32,
    /// The epoch that another process draws ids of, as far as its log was read.
    followed: u32,
    active: BTreeSet<u32>,
    /// In their order. Those in which no id is known are not here.
    epochs: VecDeque<Epoch>,
    /// Of lower ids nothing is known.
    known_from: u64,
}

/// What a manifest has of ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedTransactionIds {
    known_from: u64,
    epochs: Vec<SavedEpoch>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SavedEpoch {
    epoch: u32,
    first: u32,
    count: u32,
    /// Hexadecimal digits of four ids each, whose lowest bit is the first: whether it was committed.
    commits: String,
}

impl SavedTransactionIds {
    pub fn is_empty(&self) -> bool {
        *self == SavedTransactionIds::default()
    }
}

impl Ids {
    fn epoch_mut(&mut self, epoch: u32) -> &mut Epoch {
        let place = self.epochs.partition_point(|known| known.epoch < epoch);
        if self.epochs.get(place).is_none_or(|known| known.epoch != epoch) {
            self.epochs.insert(place, Epoch::new(epoch));
        }
        &mut self.epochs[place]
    }

    /// Forgets the oldest beyond what is kept.
    fn trim(&mut self) {
        let mut count: usize = self.epochs.iter().map(|epoch| epoch.commits.len()).sum();
        while count > IDS_MAX || self.epochs.len() > EPOCHS_MAX {
            let Some(oldest) = self.epochs.front_mut() else { return };
            let goes = oldest.commits.len().min(count.saturating_sub(IDS_MAX).max(1));
            oldest.commits.drain(..goes);
            oldest.first += goes as u32;
            count -= goes;
            let known_from = Id { epoch: oldest.epoch, number: oldest.first }.bits();
            if oldest.commits.is_empty() && self.epochs.len() > 1 {
                self.epochs.pop_front();
            }
            self.known_from = self.known_from.max(known_from);
        }
    }

    fn draw(&mut self) -> Result<u64> {
        let own = self.own;
        if own == 0 {
            return Err(Error::internal("ids of transactions are drawn by another process"));
        }
        let epoch = self.epoch_mut(own);
        let number = epoch.next();
        if number == u32::MAX {
            return Err(Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "there are no more transaction IDs")
                .with_hint("Restart the server."));
        }
        epoch.commits.push_back(0);
        self.active.insert(number);
        self.trim();
        Ok(Id { epoch: own, number }.bits())
    }

    /// The lowest id of a transaction that has not ended, or the next one.
    fn oldest(&mut self) -> u64 {
        let own = self.own;
        let next = self.epochs.back().filter(|epoch| epoch.epoch == own).map_or(FIRST, Epoch::next);
        Id { epoch: own, number: self.active.first().copied().unwrap_or(next) }.bits()
    }

    fn set_committed(&mut self, id: Id, ts: CommitTs) {
        let epoch = self.epoch_mut(id.epoch);
        let Some(place) = id.number.checked_sub(epoch.first) else { return };
        // Of numbers that were passed over in the log, at most so many are kept.
        if place as usize >= epoch.commits.len() + IDS_MAX {
            epoch.commits.clear();
            epoch.first = id.number - (IDS_MAX as u32 - 1);
            let known_from = Id { epoch: id.epoch, number: epoch.first }.bits();
            self.known_from = self.known_from.max(known_from);
            return self.set_committed(id, ts);
        }
        let place = place as usize;
        if place >= epoch.commits.len() {
            epoch.commits.resize(place + 1, 0);
        }
        epoch.commits[place] = ts.0;
        self.trim();
    }

    fn find(&self, id: Id) -> Known {
        let newest = self.own.max(self.followed);
        if id.epoch > newest {
            return Known::Future;
        }
        if id.bits() < self.known_from || id.epoch == 0 {
            return Known::TooOld;
        }
        let place = self.epochs.partition_point(|known| known.epoch < id.epoch);
        let epoch = self.epochs.get(place).filter(|known| known.epoch == id.epoch);
        if id.epoch == self.own && id.number >= epoch.map_or(FIRST, Epoch::next) {
            return Known::Future;
        }
        if id.epoch == self.own && self.active.contains(&id.number) {
            return Known::InProgress;
        }
        let at = epoch.and_then(|epoch| epoch.commits.get(id.number.checked_sub(epoch.first)? as usize));
        match at {
            Some(ts) if *ts > 0 => Known::Committed(CommitTs(*ts)),
            // The process that draws ids of the epoch may commit it yet.
            _ if id.epoch == newest
                && id.epoch != self.own
                && id.number >= epoch.map_or(FIRST, |epoch| epoch.oldest) =>
            {
                Known::InProgress
            }
            _ => Known::Aborted,
        }
    }
}

/// Of one database.
#[derive(Debug, Default)]
pub(crate) struct TransactionIds(Mutex<Ids>);

impl TransactionIds {
    /// As a manifest has them. All that it has of commits is there.
    pub fn restore(saved: &SavedTransactionIds) -> TransactionIds {
        let mut ids = Ids { known_from: saved.known_from, ..Ids::default() };
        for SavedEpoch { epoch, first, count, commits } in &saved.epochs {
            let (first, count) = (*first.max(&FIRST), (*count as usize).min(IDS_MAX));
            let digits = commits.bytes().map(|digit| (digit as char).to_digit(16).unwrap_or(0));
            let bits = digits.flat_map(|digit| (0..4).map(move |bit| u64::from(digit >> bit & 1)));
            let commits = bits.chain(std::iter::repeat(0)).take(count).collect();
            let known = ids.epoch_mut(*epoch);
            (known.first, known.commits) = (first, commits);
        }
        TransactionIds(Mutex::new(ids))
    }

    /// What is committed up to a view that was drawn, for a manifest of that view.
    pub fn saved(&self, view: CommitTs, transactions: &Transactions) -> SavedTransactionIds {
        if self.0.lock().epochs.is_empty() {
            return SavedTransactionIds::default();
        }
        // The view shows commits that have been decided, and whose ids may be noted a moment later.
        while transactions.floor() <= view {
            std::thread::sleep(FLOOR_LOOKS);
        }
        let ids = self.0.lock();
        let epochs = ids.epochs.iter().map(|epoch| {
            let bits: Vec<bool> = epoch.commits.iter().map(|ts| *ts > 0 && *ts <= view.0).collect();
            let mut commits = String::with_capacity(bits.len() / 4 + 1);
            for four in bits.chunks(4) {
                let digit = four.iter().rev().fold(0, |digit, bit| digit << 1 | u8::from(*bit));
                let _ = write!(commits, "{digit:x}");
            }
            SavedEpoch { epoch: epoch.epoch, first: epoch.first, count: bits.len() as u32, commits }
        });
        SavedTransactionIds { known_from: ids.known_from, epochs: epochs.collect() }
    }

    /// From now on this process draws ids, of an epoch that no other process drew any of. All transactions of epochs before have ended.
    pub fn begin(&self, epoch: u32) {
        let mut ids = self.0.lock();
        (ids.own, ids.followed) = (epoch, 0);
        ids.active.clear();
    }

    /// As `begin`, of a process that has followed a log outside a pool.
    pub fn succeed(&self) {
        let followed = self.0.lock().followed;
        self.begin(followed + 1);
    }

    /// Another process's log was read so far that no record of an earlier epoch comes.
    pub fn follow(&self, epoch: u32) {
        let mut ids = self.0.lock();
        ids.followed = ids.followed.max(epoch);
    }

    /// What a record has.
    pub fn note(&self, logged: LoggedId, ts: CommitTs) {
        let (id, oldest) = (Id::of(logged.id), Id::of(logged.oldest));
        let mut ids = self.0.lock();
        ids.followed = ids.followed.max(id.epoch);
        ids.set_committed(id, ts);
        if oldest.epoch == id.epoch {
            let epoch = ids.epoch_mut(id.epoch);
            epoch.oldest = epoch.oldest.max(oldest.number);
        }
    }

    /// As its record is to have it.
    pub fn logged(&self, id: u64) -> LoggedId {
        LoggedId { id, oldest: self.0.lock().oldest() }
    }

    /// Its transaction's commit is decided, and its record comes next.
    pub fn commit(&self, id: u64, ts: CommitTs) {
        let mut ids = self.0.lock();
        ids.active.remove(&Id::of(id).number);
        ids.set_committed(Id::of(id), ts);
    }

    fn abort(&self, id: u64) {
        self.0.lock().active.remove(&Id::of(id).number);
    }
}

/// Who is told of a session's commits before each of them is decided. A process that goes on with the session finds by the transaction's id whether it was.
pub trait CommitWitness: std::fmt::Debug + Send + Sync {
    /// Whether there is anybody who would go on with the session.
    fn is_wanted(&self) -> bool;

    /// What the client is told if the next commit succeeds: the statement's tag. `sequences`: rises whenever what the session knows of sequences
    /// may have changed.
    fn will_say(&self, tag: &str, sequences: u64);

    /// A transaction is about to be committed, which has this id where the witness is wanted.
    fn committing(&self, id: Option<u64>);
}

/// What a session and its transactions tell one another: the id of the one that it is in, once a client has asked for it, and the last one's commit,
/// where that is to be waited for at standbys.
#[derive(Debug, Default)]
pub struct CurrentTransaction {
    id: Mutex<Option<u64>>,
    /// 0: there is none.
    committed: AtomicU64,
    /// The word of the latest transaction's tag. 0: there was none.
    tag: AtomicU64,
    witness: OnceLock<Arc<dyn CommitWitness>>,
}

impl CurrentTransaction {
    /// Has commits from now on told. Once only.
    pub fn set_witness(&self, witness: Arc<dyn CommitWitness>) {
        let _ = self.witness.set(witness);
    }

    /// Who is told of commits, if anybody is.
    #[inline]
    pub fn witness(&self) -> Option<&dyn CommitWitness> {
        self.witness.get().map(|witness| &**witness)
    }

    /// A transaction that has something to commit does so next.
    pub(crate) fn committing(&self, database: &Database) -> Result<()> {
        let Some(witness) = self.witness() else { return Ok(()) };
        if !database.is_following() {
            let id = witness.is_wanted().then(|| self.assign_id(database)).transpose()?;
            witness.committing(id);
        }
        Ok(())
    }

    /// The transaction of `tag` is the session's from now on, until it is over.
    #[inline]
    pub(crate) fn begin(&self, tag: Tag) {
        self.tag.store(tag.word(), Ordering::Relaxed);
    }

    /// The tag of the transaction that the session is in, by which locks and waits name it.
    pub fn tag(&self, database: &Database) -> Option<Tag> {
        Tag::of_word(self.tag.load(Ordering::Relaxed)).filter(|tag| database.transactions().is_under_way(*tag))
    }

    pub fn assigned_id(&self) -> Option<u64> {
        *self.id.lock()
    }

    /// Draws one, if there is none yet. 25006 on a standby.
    pub fn assign_id(&self, database: &Database) -> Result<u64> {
        let mut own = self.id.lock();
        if let Some(id) = *own {
            return Ok(id);
        }
        if database.is_following() {
            return Err(Error::new(
                SqlState::READ_ONLY_SQL_TRANSACTION,
                "cannot execute pg_current_xact_id() during recovery",
            ));
        }
        let id = database.transaction_ids.0.lock().draw()?;
        *own = Some(id);
        Ok(id)
    }

    /// The transaction was committed: the next one has no id yet. `shown`: standbys are to show it before its client is told.
    pub(crate) fn commit(&self, shown: Option<CommitTs>) {
        *self.id.lock() = None;
        if let Some(ts) = shown {
            self.committed.store(ts.0, Ordering::Relaxed);
        }
    }

    /// The commit that standbys are to show, once.
    #[inline]
    pub fn take_commit(&self) -> Option<CommitTs> {
        if self.committed.load(Ordering::Relaxed) == 0 {
            return None;
        }
        Some(CommitTs(self.committed.swap(0, Ordering::Relaxed)))
    }

    /// The transaction is over without a commit.
    pub(crate) fn abort(&self, database: &Database) {
        let id = self.id.lock().take();
        if let Some(id) = id {
            database.transaction_ids.abort(id);
        }
    }

    /// Ends a statement that was a transaction of its own and wrote nothing.
    pub fn end_reading(self: &Arc<Self>, database: &Arc<Database>, succeeded: bool) {
        if self.assigned_id().is_none() {
            return;
        }
        let transaction = if succeeded { database.begin() } else { Err(Error::internal("the statement failed")) };
        let committed = transaction.and_then(|mut transaction| {
            transaction.set_current(Arc::clone(self));
            transaction.set_synchronous(false);
            transaction.try_commit()
        });
        if committed.is_err() {
            self.abort(database);
        }
    }
}

impl Database {
    /// What became of the transaction with an id. `None`: it is too old for that. 22023 for an id that was not drawn yet.
    ///
    /// A commit is told of once no take-over and no restart can take it back: it is waited for, a round of group commit at most.
    pub fn transaction_fate(&self, id: u64) -> Result<Option<TransactionFate>> {
        // PostgreSQL's own two, of before any transaction.
        if matches!(id, 1 | 2) {
            return Ok(Some(TransactionFate::Committed));
        }
        let known = self.transaction_ids.0.lock().find(Id::of(id));
        Ok(match known {
            Known::TooOld => None,
            Known::Future if self.may_be_drawn(id) => Some(TransactionFate::InProgress),
            Known::Future => {
                return Err(Error::new(
                    SqlState::INVALID_PARAMETER_VALUE,
                    format!("transaction ID {id} is in the future"),
                ));
            }
            Known::InProgress => Some(TransactionFate::InProgress),
            Known::Aborted => Some(TransactionFate::Aborted),
            Known::Committed(ts) => {
                if self.is_following() {
                    // What is in the log, and not shown yet.
                    let is_seen = ts <= self.transactions().clock().now();
                    return Ok(Some(if is_seen { TransactionFate::Committed } else { TransactionFate::InProgress }));
                }
                if let Some(log) = self.log.get() {
                    log.wait_durable(ts, || Ok(()))?;
                }
                Some(TransactionFate::Committed)
            }
        })
    }

    /// A primary may have drawn it whose log this host, which follows, has not read yet.
    fn may_be_drawn(&self, id: u64) -> bool {
        let Some(roles) = self.roles.as_ref().filter(|_| self.is_following()) else { return false };
        let reign = roles.host().member().reign();
        reign.is_ok_and(|reign| Id::of(id).epoch <= reign.term.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u64 = 7 << 32;

    fn find(ids: &TransactionIds, id: u64) -> Known {
        ids.0.lock().find(Id::of(id))
    }

    fn draw(ids: &TransactionIds) -> u64 {
        ids.0.lock().draw().unwrap()
    }

    #[test]
    fn ids_say_what_became_of_their_transactions() {
        let ids = TransactionIds::default();
        ids.begin(7);
        let drawn = [draw(&ids), draw(&ids), draw(&ids)];
        assert_eq!(drawn, [OWN + 3, OWN + 4, OWN + 5]);
        ids.commit(drawn[0], CommitTs(10));
        ids.abort(drawn[2]);
        let known = [Known::Committed(CommitTs(10)), Known::InProgress, Known::Aborted, Known::Future];
        assert_eq!([3, 4, 5, 6].map(|number| find(&ids, OWN + number)), known);
        // Nobody drew one of an earlier epoch that is not known, and nobody of a later one at all.
        assert_eq!(find(&ids, (6 << 32) + 3), Known::Aborted);
        assert_eq!(find(&ids, (8 << 32) + 3), Known::Future);
        assert_eq!(find(&ids, 12), Known::TooOld);
        // The next epoch.
        ids.begin(8);
        assert_eq!([3, 4, 6].map(|number| find(&ids, OWN + number)), [known[0], Known::Aborted, Known::Aborted]);
    }

    #[test]
    fn a_follower_knows_what_the_log_says() {
        let (primary, follower) = (TransactionIds::default(), TransactionIds::default());
        primary.begin(7);
        let drawn: Vec<u64> = (0..4).map(|_| draw(&primary)).collect();
        primary.abort(drawn[0]);
        let logged = primary.logged(drawn[2]);
        assert_eq!(logged, LoggedId { id: drawn[2], oldest: drawn[1] });
        primary.commit(drawn[2], CommitTs(20));
        follower.note(logged, CommitTs(20));
        let all = |ids: &TransactionIds| drawn.iter().map(|id| find(ids, *id)).collect::<Vec<_>>();
        let committed = Known::Committed(CommitTs(20));
        assert_eq!(all(&follower), [Known::Aborted, Known::InProgress, committed, Known::InProgress]);
        // It takes over: what the log lacks was not committed.
        follower.begin(8);
        assert_eq!(all(&follower), [Known::Aborted, Known::Aborted, committed, Known::Aborted]);
        // Or another one does.
        let other = TransactionIds::default();
        other.note(logged, CommitTs(20));
        other.follow(8);
        assert_eq!(all(&other), all(&follower));
    }

    #[test]
    fn a_manifest_has_what_its_view_shows() {
        let ids = TransactionIds::default();
        ids.begin(2);
        let drawn: Vec<u64> = (0..9).map(|_| draw(&ids)).collect();
        for (index, id) in drawn.iter().enumerate().step_by(2) {
            ids.commit(*id, CommitTs(index as u64 + 1));
        }
        let transactions = Transactions::starting_after(CommitTs(100));
        let saved = ids.saved(CommitTs(5), &transactions);
        let json = serde_json::to_string(&saved).unwrap();
        let restored = TransactionIds::restore(&serde_json::from_str(&json).unwrap());
        restored.begin(3);
        let committed: Vec<bool> =
            drawn.iter().map(|id| find(&restored, *id) == Known::Committed(CommitTs(1))).collect();
        assert_eq!(committed, [true, false, true, false, true, false, false, false, false]);
        assert!(TransactionIds::default().saved(CommitTs(5), &transactions).is_empty());
    }

    #[test]
    fn the_oldest_are_forgotten() {
        let ids = TransactionIds::default();
        ids.begin(1);
        let early = draw(&ids);
        ids.commit(early, CommitTs(1));
        ids.begin(2);
        let many: Vec<u64> = (0..IDS_MAX + 10).map(|_| draw(&ids)).collect();
        many.iter().for_each(|id| ids.commit(*id, CommitTs(2)));
        assert_eq!([early, many[9]].map(|id| find(&ids, id)), [Known::TooOld; 2]);
        assert_eq!(find(&ids, many[10]), Known::Committed(CommitTs(2)));
        // One that a log names far beyond.
        let far = (3 << 32) + 4_000_000_000;
        ids.note(LoggedId { id: far, oldest: far }, CommitTs(3));
        assert_eq!(find(&ids, far), Known::Committed(CommitTs(3)));
        assert_eq!(find(&ids, many[10]), Known::TooOld);
        // And many epochs of a few each.
        for epoch in 4..4 + 2 * EPOCHS_MAX as u32 {
            ids.begin(epoch);
            let id = draw(&ids);
            ids.commit(id, CommitTs(4));
        }
        assert_eq!(find(&ids, (4 << 32) + 3), Known::TooOld);
        assert!(ids.0.lock().epochs.len() <= EPOCHS_MAX);
    }
}
