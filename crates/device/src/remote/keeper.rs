//! The thread that keeps a node's connections: it connects anew, ends exchanges that hang, and sends what the node lacks.

use super::{EXCHANGE_PAGES, FAULT_PATIENCE, NodeStore};
use crate::PAGE_BYTES;
use crate::paged::space::Space;
use crate::paged::storage::SystemBox;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result, SqlState};
use tidepool_wire::Extent;

/// How often it looks.
const TICK: Duration = Duration::from_millis(20);

/// Between tries to connect: at first, and at last.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// How often a node that nobody asks anything is asked whether it is there.
const PING: Duration = Duration::from_secs(5);

/// Pages that are looked at in one go.
const SCANNED_PAGES: u32 = 4096;

#[derive(Debug)]
pub(crate) struct Keeper {
    ending: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl std::panic::RefUnwindSafe for Keeper {}

impl Keeper {
    /// Starts the threads for a space over a node.
    pub fn start(space: &SystemBox<Space>) -> Result<Keeper> {
        let mut keeper = Keeper { ending: Arc::default(), threads: Vec::new() };
        let address = space.as_ptr().expose_provenance();
        for (name, work) in [("node keeper", keep as fn(&Space, &AtomicBool)), ("node watch", watch)] {
            let ending = keeper.ending.clone();
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
                // SAFETY: the threads end before the space is dropped.
                let space: &Space = unsafe { &*ptr::with_exposed_provenance(address) };
                work(space, &ending);
            });
            keeper.threads.push(thread.map_err(|error| Error::io("start threads for a memory node", &error))?);
        }
        Ok(keeper)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            // It panics in none of its steps.
            let _ = thread.join();
        }
    }
}

/// Ends exchanges that take longer than a fault may wait: one that has begun to come is not ended by its own deadline.
fn watch(space: &Space, ending: &AtomicBool) {
    let Some(store) = space.node() else { return };
    while !ending.load(Ordering::SeqCst) {
        std::thread::sleep(TICK);
        store.end_stalled(2 * FAULT_PATIENCE);
    }
}

fn keep(space: &Space, ending: &AtomicBool) {
    let Some(store) = space.node() else { return };
    let (mut retry, mut next, mut pinged) = (RETRY.0, Instant::now(), Instant::now());
    let (mut was_up, mut page) = (true, 0);
    while !ending.load(Ordering::SeqCst) {
        if !store.is_up.load(Ordering::SeqCst) {
            if was_up {
                was_up = false;
                (retry, next) = (RETRY.0, Instant::now());
                tracing::warn!(node = %store.settings, "the memory node is away: its pages come from the data folder");
            }
            if Instant::now() >= next {
                match store.connect(store.len.load(Ordering::SeqCst)) {
                    Ok(()) => {
                        tracing::info!(node = %store.settings, "the memory node is there again, and is filled");
                        store.lacks.store(true, Ordering::SeqCst);
                        (was_up, page, pinged) = (true, 0, Instant::now());
                        continue;
                    }
                    Err(error) if error.code() == SqlState::ADMIN_SHUTDOWN => {
                        // It is not asked again: this process lives on its copies until it is stopped.
                        tracing::error!(node = %store.settings, %error, "another process has this database's memory");
                        break;
                    }
                    Err(error) => tracing::debug!(node = %store.settings, %error, "the memory node cannot be reached"),
                }
                next = Instant::now() + retry;
                retry = (retry * 2).min(RETRY.1);
            }
            std::thread::sleep(TICK);
            continue;
        }
        if store.lacks.load(Ordering::SeqCst) {
            if page == 0 {
                // What comes to be lacking from here on is another round's.
                store.lacks.store(false, Ordering::SeqCst);
            }
            page = refill(space, store, page);
            if page != 0 {
                // There is more in this round.
                store.lacks.store(true, Ordering::SeqCst);
            }
            continue;
        }
        if pinged.elapsed() > PING {
            pinged = Instant::now();
            store.ping();
        }
        std::thread::sleep(TICK);
    }
}

/// Sends pages from `from` on which the node has not. Returns where to go on; zero: that was all.
fn refill(space: &Space, store: &NodeStore, from: u32) -> u32 {
    let end = (store.len.load(Ordering::SeqCst) / PAGE_BYTES) as u32;
    let until = from.saturating_add(SCANNED_PAGES).min(end);
    let generation = store.generation.load(Ordering::SeqCst);
    let lacks = |page: u32| store.sent_in[page as usize].load(Ordering::Relaxed) != generation;
    let mut buffer = [[0; PAGE_BYTES]; EXCHANGE_PAGES];
    let mut page = from;
    while page < until && store.is_up.load(Ordering::SeqCst) {
        page = space.table.visit_remote(page..until, lacks, space, |pages: &[u32]| {
            let mut pieces: [&[u8]; EXCHANGE_PAGES] = [&[]; EXCHANGE_PAGES];
            for ((page, bytes), piece) in pages.iter().zip(&mut buffer).zip(&mut pieces) {
                if !store.copies.read(u64::from(*page) * PAGE_BYTES as u64, bytes) {
                    store.lost();
                }
                *piece = bytes;
            }
            if store.send_pieces(pages, &pieces[..pages.len()], false) {
                store.counters.refilled.fetch_add(pages.len() as u64, Ordering::Relaxed);
            }
        });
    }
    if until == end || !store.is_up.load(Ordering::SeqCst) { 0 } else { until }
}

impl NodeStore {
    /// Asks a node whether it is there.
    fn ping(&self) {
        let control = self.control();
        if let Some(connection) = control.connection.clone()
            && connection.ping().is_err()
            && self.is_up.swap(false, Ordering::SeqCst)
        {
            self.counters.losses.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn end_stalled(&self, patience: Duration) {
        for number in 0..self.lanes.len() {
            if self.lanes.claimed_for_ns(number).is_some_and(|ns| ns > patience.as_nanos() as u64) {
                self.lanes.close(number);
            }
        }
    }
}

const _: () = assert!(EXCHANGE_PAGES * size_of::<Extent>() < 4096, "what an exchange needs lies on the stack");
