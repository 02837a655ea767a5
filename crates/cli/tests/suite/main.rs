//! Everything that needs a whole server, in one binary: each further one would cost a minute of linking.

mod bench;
mod cli;
mod raw;
mod server;
mod slt;
mod wire;

#[global_allocator]
static ALLOCATOR: tidepool_heap::TidepoolAllocator = tidepool_heap::TidepoolAllocator;
