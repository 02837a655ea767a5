//! Retirement: memory that was taken out of reach, kept until nobody can be looking at it.
//!
//! What is retired at *t* could be found by snapshots up to *t* only, so it goes when the horizon is past *t*. Each worker
//! keeps what it retires in a queue of its own, which shares nothing, and frees from its front now and then. A worker that
//! rests or ends hands its queue over, for whoever collects next.

use crate::Worker;
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};
use tidepool_base::CommitTs;

/// Something retired: two words that mean something to its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retired {
    pub ts: CommitTs,
    pub words: [u64; 2],
}

/// Owns memory that is retired.
pub trait Reclaim: Send + Sync {
    /// Frees `items`, which nobody can reach any more. May retire more. Called by any worker, inside a transaction or not.
    fn reclaim(&self, items: &[Retired], worker: &Worker);
}

enum Item {
    /// Of the queue's owner of that number.
    Words(u32, [u64; 2]),
    Call(Box<dyn FnOnce() + Send>),
}

struct Owner {
    owner: Arc<dyn Reclaim>,
    /// Items in the queue.
    pending: usize,
}

/// One worker's. Nearly in the order of timestamps: an item behind a later one waits for that.
#[derive(Default)]
pub(crate) struct Queue {
    items: VecDeque<(u64, Item)>,
    owners: Vec<Owner>,
    /// Kept for the next batch.
    batch: Vec<Retired>,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({} items of {} owners)", self.items.len(), self.owners.len())
    }
}

impl Queue {
    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn push(&mut self, ts: CommitTs, owner: &Arc<dyn Reclaim>, words: [u64; 2]) {
        // Owners are few: what one worker writes to. The addresses alone tell them apart.
        let same = |known: &Owner| std::ptr::addr_eq(Arc::as_ptr(&known.owner), Arc::as_ptr(owner));
        let number = self.owners.iter().position(same).unwrap_or_else(|| {
            self.owners.push(Owner { owner: Arc::clone(owner), pending: 0 });
            self.owners.len() - 1
        });
        self.owners[number].pending += 1;
        self.items.push_back((ts.0, Item::Words(number as u32, words)));
    }

    pub fn push_call(&mut self, ts: CommitTs, call: Box<dyn FnOnce() + Send>) {
        self.items.push_back((ts.0, Item::Call(call)));
    }

    /// Takes the first items of one kind that are below `horizon` off the queue.
    pub fn pop(&mut self, horizon: CommitTs) -> Option<Due> {
        let due = |item: &(u64, Item)| item.0 < horizon.0;
        let (ts, item) = self.items.pop_front_if(|item| due(item))?;
        let number = match item {
            Item::Call(call) => return Some(Due::Call(call)),
            Item::Words(number, words) => {
                self.batch.push(Retired { ts: CommitTs(ts), words });
                number
            }
        };
        while let Some((ts, Item::Words(of, words))) = self.items.front()
            && *of == number
            && *ts < horizon.0
        {
            self.batch.push(Retired { ts: CommitTs(*ts), words: *words });
            self.items.pop_front();
        }
        let batch = std::mem::take(&mut self.batch);
        let owner = &mut self.owners[number as usize];
        owner.pending -= batch.len();
        Some(Due::Batch(Arc::clone(&owner.owner), batch))
    }

    pub fn keep_batch(&mut self, mut batch: Vec<Retired>) {
        batch.clear();
        self.batch = batch;
    }

    /// Lets go of owners that have nothing in an empty queue.
    pub fn forget_owners(&mut self) {
        if self.items.is_empty() {
            self.owners.clear();
        } else if let Some(last) = self.owners.iter().rposition(|owner| owner.pending > 0) {
            self.owners.truncate(last + 1);
        }
    }

    fn into_handed(self) -> impl Iterator<Item = (u64, Handed)> {
        let owners = self.owners;
        self.items.into_iter().map(move |(ts, item)| {
            let handed = match item {
                Item::Words(number, words) => Handed::Words(Arc::clone(&owners[number as usize].owner), words),
                Item::Call(call) => Handed::Call(call),
            };
            (ts, handed)
        })
    }
}

/// What is to be freed now.
pub(crate) enum Due {
    Batch(Arc<dyn Reclaim>, Vec<Retired>),
    Call(Box<dyn FnOnce() + Send>),
}

enum Handed {
    Words(Arc<dyn Reclaim>, [u64; 2]),
    Call(Box<dyn FnOnce() + Send>),
}

/// What workers handed over.
#[derive(Default)]
pub(crate) struct SharedQueue(Mutex<Vec<(u64, Handed)>>);

impl fmt::Debug for SharedQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedQueue({} items)", self.lock().len())
    }
}

impl SharedQueue {
    pub fn new() -> SharedQueue {
        SharedQueue::default()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<(u64, Handed)>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub fn take_over(&self, queue: Queue) {
        if queue.len() > 0 {
            self.lock().extend(queue.into_handed());
        }
    }

    /// Moves what is below `horizon` into a worker's queue.
    pub fn hand_out(&self, horizon: CommitTs, queue: &mut Queue) {
        let mut items = self.lock();
        let due: Vec<(u64, Handed)> = items.extract_if(.., |(ts, _)| *ts < horizon.0).collect();
        drop(items);
        for (ts, item) in due {
            match item {
                Handed::Words(owner, words) => queue.push(CommitTs(ts), &owner, words),
                Handed::Call(call) => queue.push_call(CommitTs(ts), call),
            }
        }
    }

    pub fn len(&self) -> usize {
        self.lock().len()
    }
}
