//! Threads that encode row groups while their producer goes on parsing.
//!
//! One pool a database, so that many loads at once do not multiply threads. The queue is unbounded; its users bound
//! themselves (a writer has at most a few row groups under way).

use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use tidepool_base::{Error, Result};

type Job = Box<dyn FnOnce() + Send>;

pub(crate) struct EncodePool {
    threads: usize,
    /// Made with the first job; its end ends the threads.
    sender: Mutex<Option<Sender<Job>>>,
}

impl EncodePool {
    pub fn new(threads: usize) -> EncodePool {
        EncodePool { threads: threads.max(1), sender: Mutex::new(None) }
    }

    pub fn threads(&self) -> usize {
        self.threads
    }

    pub fn submit(&self, job: Job) -> Result<()> {
        let mut sender = self.sender.lock();
        if sender.is_none() {
            *sender = Some(self.spawn()?);
        }
        match sender.as_ref().map(|sender| sender.send(job)) {
            Some(Ok(())) => Ok(()),
            _ => Err(Error::internal("the encoding threads are gone")),
        }
    }

    fn spawn(&self) -> Result<Sender<Job>> {
        let (sender, receiver) = channel::<Job>();
        let receiver = Arc::new(Mutex::new(receiver));
        for number in 0..self.threads {
            let receiver = receiver.clone();
            std::thread::Builder::new()
                .name(format!("encode-{number}"))
                .spawn(move || run(&receiver))
                .map_err(|error| Error::io("start an encoding thread", &error))?;
        }
        Ok(sender)
    }
}

fn run(receiver: &Mutex<Receiver<Job>>) {
    loop {
        // Only one thread waits on the channel, the others on the lock: as good as a shared queue.
        let job = receiver.lock().recv();
        match job {
            // A job reports its own end, panic included; the thread outlives it.
            Ok(job) => drop(catch_unwind(AssertUnwindSafe(job))),
            Err(_) => return,
        }
    }
}
