//! Direct reads and writes take no memory: a handler of page faults may call them.

mod common;

use common::{extent, offer, server, token};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use tidepool_wire::{DirectConnection, Fault, ServerConfig};

/// The system's, which counts what the thread allocates.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // Not while the thread ends.
    let _ = ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1));
}

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's promise is passed on, and the block came from the system.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn direct_reads_and_writes_take_no_memory() {
    const LONG: Duration = Duration::from_secs(120);
    let (near, far) = UnixStream::pair().unwrap();
    let (_, node) = server(1 << 20, ServerConfig::default());
    let serving = std::thread::spawn(move || drop(node.serve(Box::new(far))));
    let mut reader = DirectConnection::open(Box::new(near), &offer(1, 1, 0, 1), &token(), LONG).unwrap();
    let mut bytes = vec![1; 200_000];
    let before = ALLOCATIONS.get();
    assert!(before > 0, "nothing is counted");
    for _ in 0..20 {
        reader.read_into(&[extent(5, 4096)], &mut bytes[..4096], LONG).unwrap();
        reader.read_into(&[extent(5, 100_000), extent(7, 100_000)], &mut bytes, LONG).unwrap();
    }
    let pages = [[7_u8; 4096], [8; 4096]];
    for _ in 0..20 {
        let extents = [extent(8192, 4096), extent(0, 4096)];
        reader.flush(0, &extents, &[&pages[0], &pages[1]], LONG).unwrap();
        reader.read_into(&[extent(0, 1), extent(8192, 1)], &mut bytes[..2], LONG).unwrap();
        assert_eq!(bytes[..2], [8, 7]);
    }
    // Nor does a read that is refused, nor one that comes to nothing.
    let refused = reader.read_into(&[extent(1 << 40, 8)], &mut bytes[..8], LONG);
    assert!(matches!(refused, Err(Fault::Refused(_))));
    let refused = reader.flush(0, &[extent(1 << 40, 4096)], &[&pages[0]], LONG);
    assert!(matches!(refused, Err(Fault::Refused(_))));
    assert_eq!(reader.flush(0, &[extent(0, 4)], &[&pages[0]], LONG).unwrap_err().code().code(), "08P01");
    assert_eq!(ALLOCATIONS.get() - before, 0);
    drop(reader);
    serving.join().unwrap();
}
