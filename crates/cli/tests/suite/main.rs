//! Everything that needs a whole server, in one binary: each further one would cost a minute of linking.

mod account;
mod advise;
mod agreement;
mod anomalies;
mod bench;
mod bounds;
mod budgets;
mod changes;
mod cli;
mod copies;
mod crash;
mod device;
mod differences;
mod direct;
mod documents;
mod elastic;
mod explain;
mod failover;
mod histories;
mod kept;
mod kills;
mod lock_table;
mod locking;
mod memory_node;
mod overtaken;
mod paged;
mod panics;
mod partitions;
mod pgbench;
mod pool;
mod pooled;
mod procedures;
mod raw;
mod readers;
mod recovery;
mod references;
mod robustness;
mod routing;
mod serializable;
mod server;
mod sessions;
mod shared_plans;
mod slt;
mod standby;
mod synchronous;
mod temporary;
mod tpcc_client;
mod transaction_ids;
mod transactions;
mod upgrade;
mod upkeep;
mod who_waits;
mod wire;
mod witness;
mod words;
mod workload;

#[global_allocator]
static ALLOCATOR: tidepool_heap::TidepoolAllocator = tidepool_heap::TidepoolAllocator;

/// The folder of this crate in the checkout whose tests run. What it was when they were compiled may be another checkout's: Cargo takes
/// tests for fresh where several checkouts share a target folder.
fn crate_folder() -> std::path::PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into()).into()
}
