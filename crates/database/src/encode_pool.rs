//! Threads that encode row groups while their producer goes on parsing.
//!
//! One pool a database, so that many loads at once multiply neither threads nor memory: a job holds a row group's rows
//! before they are encoded, and there are never more jobs than threads and one. Whoever brings another waits.

use parking_lot::{Condvar, Mutex};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use tidepool_base::{Error, Result};

type Job = Box<dyn FnOnce() + Send>;

pub(crate) struct EncodePool {
    threads: usize,
    /// Made with the first job; its end ends the threads.
    sender: Mutex<Option<Sender<Job>>>,
    load: Arc<Load>,
}

/// Jobs that were brought and have not ended.
#[derive(Default)]
struct Load {
    jobs: Mutex<usize>,
    ended: Condvar,
}

/// One job's place; given back however the job ends.
struct Place(Arc<Load>);

impl Drop for Place {
    fn drop(&mut self) {
        *self.0.jobs.lock() -= 1;
        self.0.ended.notify_one();
    }
}

impl EncodePool {
    pub fn new(threads: usize) -> EncodePool {
        EncodePool { threads: threads.max(1), sender: Mutex::new(None), load: Arc::default() }
    }

    /// Waits until there is a place for the job. Not to be called by a job.
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) -> Result<()> {
        let place = self.place();
        let job = Box::new(move || {
            job();
            drop(place);
        });
        let mut sender = self.sender.lock();
        if sender.is_none() {
            *sender = Some(self.spawn()?);
        }
        match sender.as_ref().map(|sender| sender.send(job)) {
            Some(Ok(())) => Ok(()),
            _ => Err(Error::internal("the encoding threads are gone")),
        }
    }

    fn place(&self) -> Place {
        let mut jobs = self.load.jobs.lock();
        while *jobs > self.threads {
            self.load.ended.wait(&mut jobs);
        }
        *jobs += 1;
        Place(self.load.clone())
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    #[test]
    fn there_are_never_more_jobs_than_threads_and_one() {
        let pool = EncodePool::new(2);
        let (most, ran) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..10 {
                        let (load, most, ran) = (pool.load.clone(), most.clone(), ran.clone());
                        pool.submit(move || {
                            std::thread::sleep(Duration::from_millis(2));
                            most.fetch_max(*load.jobs.lock(), Ordering::Relaxed);
                            ran.fetch_add(1, Ordering::Relaxed);
                            assert!(round != 5, "expected by the test: a job that fails gives its place back too");
                        })
                        .unwrap();
                    }
                });
            }
        });
        let mut jobs = pool.load.jobs.lock();
        while *jobs > 0 {
            pool.load.ended.wait(&mut jobs);
        }
        assert_eq!((most.load(Ordering::Relaxed), ran.load(Ordering::Relaxed)), (3, 40));
    }
}
