//! The threads that serve connections: each has its own, by itself.
//!
//! A message that comes is answered by the thread that its socket woke, and no other thread hears of it: nothing is handed
//! over, and nobody is woken to look for work. What takes long is done elsewhere (the planner's workers and the engine's), so
//! a thread has a connection's turn for microseconds; for some milliseconds at most where a small query is planned already.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidepool_base::{Error, Result};
use tidepool_database::Database;
use tidepool_planner::share_commits;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Deeply nested SQL is parsed by recursion. The stack is reserved, and only what is used is memory.
const STACK_BYTES: usize = 16 << 20;

/// A thread that has so many connections more than another one, and no more, is still given those that come in on its processor.
const UNEVEN_MAX: usize = 2;

struct Thread {
    handle: Handle,
    connections: Arc<AtomicUsize>,
    /// Dropped, it ends the thread.
    _stop: oneshot::Sender<()>,
}

/// Dropped, they end, with what is left on them.
pub(crate) struct Threads(Vec<Thread>);

/// A connection's place on a thread.
pub(crate) struct Place {
    pub(crate) handle: Handle,
    connections: Arc<AtomicUsize>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Threads {
    /// On these processors; none is all.
    pub(crate) fn start(count: usize, cores: &[usize], database: &Arc<Database>) -> Result<Threads> {
        let start = |number| Thread::start(number, cores.to_vec(), database.clone());
        (0..count).map(|number| start(number).map_err(|error| Error::io("start a thread", &error))).collect()
    }

    /// A place on the thread that has the fewest, or hardly more: then on that of `processor`, which the connection's packets come in on.
    /// Who asks from one thread of a client's is so answered by one thread, and the two wake each other and nobody else.
    pub(crate) fn place(&self, processor: Option<usize>) -> Option<Place> {
        let connections = |thread: &Thread| thread.connections.load(Ordering::Relaxed);
        let fewest = self.0.iter().min_by_key(|thread| connections(thread))?;
        let near = processor.map(|processor| &self.0[processor % self.0.len()]);
        let thread = near.filter(|thread| connections(thread) <= connections(fewest) + UNEVEN_MAX).unwrap_or(fewest);
        thread.connections.fetch_add(1, Ordering::Relaxed);
        Some(Place { handle: thread.handle.clone(), connections: thread.connections.clone() })
    }
}

impl FromIterator<Thread> for Threads {
    fn from_iter<I: IntoIterator<Item = Thread>>(threads: I) -> Threads {
        Threads(threads.into_iter().collect())
    }
}

impl Thread {
    fn start(number: usize, cores: Vec<usize>, database: Arc<Database>) -> std::io::Result<Thread> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::Builder::new().name(format!("tidepool-{number}")).stack_size(STACK_BYTES).spawn(move || {
            if let Err(error) = tidepool_device::confine(&cores) {
                tracing::warn!(%error, "a thread runs on processors that are not its class's");
            }
            runtime.block_on(async {
                share_commits(&database);
                drop(database);
                // An error is the other end's drop.
                let _ = stopped.await;
            });
            runtime.shutdown_background();
        })?;
        Ok(Thread { handle, connections: Arc::default(), _stop: stop })
    }
}
