//! A database as one of the hosts of a pod.
//!
//! Each host has tables of the same names, and the rows of some ranges of keys: its partition, in its own memory, as a
//! database that is alone has it. A transaction of any host finds and changes rows of any host by key ([`crate::by_key`]).
//! A row of another host is asked for once: its home moves it into the pod (`tidepool_table::rows`), and from then on
//! every host reads and writes it there, without a message.
//!
//! | module | what it is |
//! | --- | --- |
//! | `message` | what hosts tell each other, as bytes |
//! | `host` | asking and answering |
//!
//! No thread only serves others: a session looks for messages before each of its transactions, and whoever waits for another
//! host does so meanwhile. Answering waits for nobody, so hosts that ask each other do not wait in a circle.
//!
//! Not yet: a log (a database with a data folder joins no pod), hosts that are processes of their own, SQL over rows of
//! others, insertions and deletions elsewhere, and serving the rows of a host that has died beyond those in the pod.

mod host;
mod message;

pub(crate) use host::{Placed, ReadElsewhere};
pub use host::{PodHost, PodStats};

use crate::{Config, Database};
use std::sync::Arc;
use tidepool_base::{CommitTs, Error, Result};
use tidepool_device::LINE_BYTES;
use tidepool_pod::layout::{HostId, Layout};
use tidepool_pod::mapped::Mapped;
use tidepool_table::rows::PodMember;
use tidepool_txn::{Clock, PodSlots, SlotMemory, Transactions};

/// How large a pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodSettings {
    pub hosts: u8,
    /// Sessions of each host, and a few that it has for itself.
    pub workers: u16,
    /// Rows that can be in the pod at a time.
    pub tuples: u32,
    /// The longest version of a row, with what the pod keeps beside it.
    pub block_bytes: u32,
    /// Versions of each host that can be in the pod at a time.
    pub blocks: u32,
    /// Of each ring of messages.
    pub ring_bytes: u32,
    /// Bytes of hardware-coherent memory that may be used.
    pub coherent_bytes_max: u64,
}

impl Default for PodSettings {
    fn default() -> PodSettings {
        PodSettings {
            hosts: 2,
            workers: 64,
            tuples: 1 << 20,
            block_bytes: 1024,
            blocks: 1 << 19,
            ring_bytes: 64 << 10,
            coherent_bytes_max: 200 << 20,
        }
    }
}

/// A pod in one process, whose hosts are databases of it.
#[derive(Debug)]
pub struct Pod {
    memory: Arc<Mapped>,
    slots: Arc<PodSlots>,
    layout: Layout,
    clock: Clock,
    /// Hosts that are there, a bit each.
    taken: parking_lot::Mutex<u16>,
}

impl Pod {
    /// 22023 for settings that make no pod, 53100 where they need more coherent memory than they may.
    pub fn in_process(settings: &PodSettings) -> Result<Arc<Pod>> {
        let lines = |bytes: u32| bytes.div_ceil(LINE_BYTES as u32);
        let layout = Layout {
            hosts: settings.hosts,
            workers: settings.workers,
            tuples: settings.tuples,
            ring_lines: lines(settings.ring_bytes),
            block_lines: lines(settings.block_bytes),
            blocks: settings.blocks,
        }
        .check(settings.coherent_bytes_max)?;
        let memory = Arc::new(Mapped::of_process(layout)?);
        let slots = Arc::new(PodSlots::new(memory.clone(), layout));
        let clock = Clock::starting_after(CommitTs(0));
        Ok(Arc::new(Pod { memory, slots, layout, clock, taken: parking_lot::Mutex::default() }))
    }

    /// Opens a database as a host of the pod. 0A000 where it has a data folder or lives in a pool, 22023 where there is no such
    /// host, 55006 where it is there already.
    pub fn open_host(self: &Arc<Self>, config: Config, host: u8) -> Result<Arc<PodHost>> {
        if config.data_dir.is_some() || config.pool.is_some() {
            return Err(Error::unsupported("a database with a data folder or in a pool as a host of a pod"));
        }
        let invalid = |code, text: String| Err(Error::new(code, text));
        if host >= self.layout.hosts {
            let text = format!("the pod has hosts 0 to {}, and no host {host}", self.layout.hosts - 1);
            return invalid(tidepool_base::SqlState::INVALID_PARAMETER_VALUE, text);
        }
        {
            let mut taken = self.taken.lock();
            if *taken >> host & 1 != 0 {
                return invalid(
                    tidepool_base::SqlState::OBJECT_IN_USE,
                    format!("host {host} of the pod is there already"),
                );
            }
            *taken |= 1 << host;
        }
        let slots: Arc<dyn SlotMemory> = self.slots.clone();
        let transactions = Transactions::of_host(self.clock.beside(), slots, usize::from(host));
        let database = Database::open_with_transactions(config, transactions.clone())?;
        let member = PodMember::new(self.memory.clone(), self.layout, HostId(host), transactions);
        PodHost::new(&database, member)
    }
}
