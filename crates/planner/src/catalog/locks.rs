//! Locks that are held and waited for (`pg_locks`), and who waits for whom.
//!
//! A transaction is known by its tag. PostgreSQL's ids of transactions have 32 bits: the low ones of the tag's number are shown, and no
//! two transactions that are under way share them, as each has a slot of its own. A row has no lock that could be listed: who finds
//! that another transaction has changed it waits for that transaction, as in PostgreSQL.

use super::objects::*;
use super::relations::Rows;
use crate::advisory::{Key, Mode};
use crate::facts::SessionFacts;
use crate::session::SessionRow;
use chrono::{TimeDelta, Utc};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use tidepool_database::Tag;

/// The id under which views show a transaction.
pub fn xid(tag: Tag) -> u32 {
    tag.number() as u32
}

/// The sessions of transactions that are under way.
fn sessions_of(facts: &SessionFacts) -> HashMap<Tag, u32> {
    let sessions = facts.planner.sessions();
    sessions.into_iter().filter_map(|session| Some((session.tag?, session.session_id))).collect()
}

/// Which sessions wait for a lock, of which kind, and which sessions have it.
pub struct LockWaits {
    /// PostgreSQL's name of what a session waits for.
    kinds: HashMap<u32, &'static str>,
    holders: BTreeMap<u32, BTreeSet<u32>>,
    /// Transactions that have locks.
    writers: HashSet<Tag>,
}

impl LockWaits {
    pub fn of(facts: &SessionFacts) -> LockWaits {
        let (database, advisory) = (facts.planner.database(), &facts.planner.advisory);
        let sessions = sessions_of(facts);
        let mut waits = LockWaits { kinds: HashMap::new(), holders: BTreeMap::new(), writers: HashSet::new() };
        for lock in database.locks() {
            if lock.granted {
                waits.writers.insert(lock.tag);
            } else if let Some(session) = sessions.get(&lock.tag) {
                waits.kinds.insert(*session, "relation");
            }
        }
        for (waiter, holder) in database.lock_waits() {
            waits.writers.insert(holder);
            let Some(waiter) = sessions.get(&waiter) else { continue };
            waits.kinds.entry(*waiter).or_insert("transactionid");
            // 0 is no session, as of PostgreSQL's prepared transactions: a thread of the process has it.
            waits.holders.entry(*waiter).or_default().insert(sessions.get(&holder).copied().unwrap_or(0));
        }
        for (waiter, holder) in advisory.waits() {
            waits.kinds.insert(waiter, "advisory");
            waits.holders.entry(waiter).or_default().insert(holder);
        }
        waits
    }

    /// The type and name of the event that a session waits for, if that is a lock.
    pub fn event(&self, session: &SessionRow) -> Option<(&'static str, &'static str)> {
        let kind = self.kinds.get(&session.session_id).copied();
        // The wait may be over, or not have begun, for whoever has it.
        let kind = kind.or_else(|| session.waits_for_lock.then_some("transactionid"));
        kind.map(|kind| ("Lock", kind))
    }

    /// Whether the transaction has an id in PostgreSQL: it has changed something, or is about to.
    pub fn has_written(&self, tag: Tag) -> bool {
        self.writers.contains(&tag)
    }

    /// Those that a session waits for.
    pub fn holders(&self, session: u32) -> impl Iterator<Item = u32> {
        self.holders.get(&session).into_iter().flatten().copied()
    }
}

/// PostgreSQL's name of a transaction before it has an id: its session and a number.
fn virtual_transaction(session: Option<u32>, tag: Option<Tag>) -> String {
    format!("{}/{}", session.unwrap_or(0), tag.map_or(0, xid))
}

/// The rows of `pg_locks`. What is locked as a name alone (one that no relation has yet, or roles and privileges together) is an object
/// without a number.
pub fn fill(facts: &SessionFacts, rows: &mut Rows) {
    let database = facts.planner.database();
    let sessions = sessions_of(facts);
    // Transactions that have changed something, or are about to: those that have an id in PostgreSQL.
    let mut writers = BTreeMap::new();
    let mut waits_for_relation = BTreeSet::new();
    for lock in database.locks() {
        let version = &facts.version;
        let table = version.tables.get(&lock.relation).map(|table| table.def.id);
        let view = || version.catalog.views.get(&lock.relation).map(|view| view.id);
        let sequence = || version.catalog.sequences.get(&lock.relation).map(|sequence| sequence.def.id);
        let relation = table.or_else(view).or_else(sequence);
        let session = sessions.get(&lock.tag).copied();
        let since = lock.waited.and_then(|waited| Some(Utc::now() - TimeDelta::from_std(waited).ok()?));
        if lock.granted {
            writers.insert(lock.tag.number(), lock.tag);
        } else {
            waits_for_relation.insert(lock.tag.number());
        }
        rows.push([
            ("locktype", if relation.is_some() { "relation" } else { "object" }.into()),
            ("database", DATABASE.into()),
            ("relation", relation.map(|id| id.0).into()),
            ("virtualtransaction", virtual_transaction(session, Some(lock.tag)).into()),
            ("pid", session.into()),
            ("mode", lock.mode.name().into()),
            ("granted", lock.granted.into()),
            ("fastpath", false.into()),
            ("waitstart", since.into()),
        ]);
    }
    for (waiter, holder) in database.lock_waits() {
        writers.insert(holder.number(), holder);
        if waits_for_relation.contains(&waiter.number()) {
            continue;
        }
        let session = sessions.get(&waiter).copied();
        rows.push([
            ("locktype", "transactionid".into()),
            ("transactionid", xid(holder).into()),
            ("virtualtransaction", virtual_transaction(session, Some(waiter)).into()),
            ("pid", session.into()),
            ("mode", "ShareLock".into()),
            ("granted", false.into()),
            ("fastpath", false.into()),
        ]);
    }
    for tag in writers.into_values() {
        let session = sessions.get(&tag).copied();
        rows.push([
            ("locktype", "transactionid".into()),
            ("transactionid", xid(tag).into()),
            ("virtualtransaction", virtual_transaction(session, Some(tag)).into()),
            ("pid", session.into()),
            ("mode", "ExclusiveLock".into()),
            ("granted", true.into()),
            ("fastpath", false.into()),
        ]);
    }
    let tags: HashMap<u32, Tag> = sessions.into_iter().map(|(tag, session)| (session, tag)).collect();
    for (&session, &tag) in &tags {
        let name = virtual_transaction(Some(session), Some(tag));
        rows.push([
            ("locktype", "virtualxid".into()),
            ("virtualxid", name.clone().into()),
            ("virtualtransaction", name.into()),
            ("pid", session.into()),
            ("mode", "ExclusiveLock".into()),
            ("granted", true.into()),
            ("fastpath", true.into()),
        ]);
    }
    for lock in facts.planner.advisory.list() {
        // PostgreSQL's halves: of one key its high and low bits, or both keys, told apart by the last number.
        let (class, object, form) = match lock.key {
            Key::One(key) => ((key >> 32) as u32, key as u32, 1),
            Key::Two(class, object) => (class as u32, object as u32, 2),
        };
        let mode = match lock.mode {
            Mode::Shared => "ShareLock",
            Mode::Exclusive => "ExclusiveLock",
        };
        rows.push([
            ("locktype", "advisory".into()),
            ("database", DATABASE.into()),
            ("classid", class.into()),
            ("objid", object.into()),
            ("objsubid", form.into()),
            ("virtualtransaction", virtual_transaction(Some(lock.session), tags.get(&lock.session).copied()).into()),
            ("pid", lock.session.into()),
            ("mode", mode.into()),
            ("granted", lock.granted.into()),
            ("fastpath", false.into()),
        ]);
    }
}
