//! Worker threads, and how runs share them.
//!
//! A run has as many *tickets* as it may have workers. A worker takes the ticket that has waited longest, works for its
//! run for a slice of time, and puts it back behind the others: so runs take turns however long they are. A run without
//! work for a ticket keeps it (it is *parked*) and hands it in again when there is some.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tidepool_base::{Error, Result, caught};

/// Work for a run before others have their turn, if there are any.
pub const SLICE: Duration = Duration::from_millis(2);

pub enum Worked {
    /// There is more: the ticket goes to the end of the queue.
    More,
    /// The ticket stays with the run, or is not wanted any more.
    Kept,
}

pub trait Job: Send + Sync {
    /// Works for about a slice, or as long as `is_alone` says that nobody else waits.
    fn work(self: Arc<Self>, is_alone: &dyn Fn() -> bool) -> Worked;
}

struct Queue {
    tickets: VecDeque<Arc<dyn Job>>,
    is_closing: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    /// Tickets in the queue.
    waiting: AtomicUsize,
}

/// Threads that work for runs. Dropping it ends them, once each is done with its slice.
pub struct Workers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// Hands tickets to workers; outlives them harmlessly.
#[derive(Clone)]
pub struct Tickets(Arc<Shared>);

impl Tickets {
    pub fn hand_in(&self, job: &Arc<dyn Job>, count: usize) {
        if count == 0 {
            return;
        }
        let mut queue = self.0.queue.lock();
        if queue.is_closing {
            return;
        }
        for _ in 0..count {
            queue.tickets.push_back(Arc::clone(job));
        }
        self.0.waiting.store(queue.tickets.len(), Ordering::Relaxed);
        drop(queue);
        if count == 1 {
            self.0.wake.notify_one();
        } else {
            self.0.wake.notify_all();
        }
    }
}

impl Workers {
    /// `begin` is run first on each thread.
    pub fn start(threads: usize, stack_bytes: usize, begin: impl Fn() + Clone + Send + 'static) -> Result<Workers> {
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue { tickets: VecDeque::new(), is_closing: false }),
            wake: Condvar::new(),
            waiting: AtomicUsize::new(0),
        });
        let mut workers = Workers { shared: Arc::clone(&shared), threads: Vec::new() };
        for number in 0..threads.max(1) {
            let (shared, begin) = (Arc::clone(&shared), begin.clone());
            let thread = std::thread::Builder::new()
                .name(format!("tidepool-engine-{number}"))
                .stack_size(stack_bytes)
                .spawn(move || {
                    begin();
                    serve(&shared);
                })
                .map_err(|error| Error::io("start worker threads", &error))?;
            workers.threads.push(thread);
        }
        Ok(workers)
    }

    pub fn tickets(&self) -> Tickets {
        Tickets(Arc::clone(&self.shared))
    }

    pub fn threads(&self) -> usize {
        self.threads.len()
    }
}

fn serve(shared: &Shared) {
    let is_alone = || shared.waiting.load(Ordering::Relaxed) == 0;
    let mut back: Option<Arc<dyn Job>> = None;
    loop {
        let job = {
            let mut queue = shared.queue.lock();
            queue.tickets.extend(back.take());
            loop {
                if queue.is_closing {
                    return;
                }
                if let Some(job) = queue.tickets.pop_front() {
                    shared.waiting.store(queue.tickets.len(), Ordering::Relaxed);
                    break job;
                }
                shared.wake.wait(&mut queue);
            }
        };
        // A job tells of its own panics; a thread that none of them ends is there for all others.
        if let Ok(Worked::More) = caught(|| Ok(Arc::clone(&job).work(&is_alone))) {
            back = Some(job);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        let tickets = {
            let mut queue = self.shared.queue.lock();
            queue.is_closing = true;
            std::mem::take(&mut queue.tickets)
        };
        drop(tickets);
        self.shared.wake.notify_all();
        let own = std::thread::current().id();
        for thread in self.threads.drain(..) {
            // The last owner may be one of the workers.
            if thread.thread().id() != own {
                // A worker that panicked outside of a run has nothing to tell.
                let _ = thread.join();
            }
        }
    }
}
