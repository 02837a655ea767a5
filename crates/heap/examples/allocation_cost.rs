//! What routing costs: nanoseconds for a pair of allocation and free, outside and inside a heap, and microseconds for a
//! heap's life. `cargo run --release -p tidepool-heap --example allocation_cost`

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;
use tidepool_base::TablespaceId;
use tidepool_device::Location;
use tidepool_heap::{QueryHeap, TidepoolAllocator};
use tidepool_tablespace::{Tablespace, TablespaceConfig};
use tikv_jemalloc_sys as sys;

/// Enough that some run is not interrupted on a busy machine.
const RUNS: usize = 40;

#[global_allocator]
static ALLOCATOR: TidepoolAllocator = TidepoolAllocator;

fn space(name: &str) -> Arc<Tablespace> {
    let config = TablespaceConfig {
        name: name.into(),
        location: Location::Anon,
        size_bytes: Some(4 << 30),
        profile: None,
        profiles: Vec::new(),
        huge_pages: true,
        populate_bytes: 0,
    };
    Tablespace::open(TablespaceId(0), config).expect("anonymous memory")
}

/// The least of many short runs: noise only adds.
fn ns_each(count: usize, mut run: impl FnMut()) -> f64 {
    (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_nanos() as f64 / count as f64
        })
        .fold(f64::INFINITY, f64::min)
}

fn plain(size: usize, count: usize) {
    for _ in 0..count {
        // SAFETY: allocated and freed with the same size.
        unsafe { sys::sdallocx(black_box(sys::malloc(black_box(size))), size, 0) };
    }
}

fn routed(size: usize, count: usize) {
    for _ in 0..count {
        drop(black_box(Vec::<u8>::with_capacity(black_box(size))));
    }
}

/// Many blocks at once, so that thread caches run over.
fn routed_many(size: usize, count: usize) {
    let blocks: Vec<Vec<u8>> = (0..count).map(|_| Vec::with_capacity(size)).collect();
    drop(black_box(blocks));
}

fn main() {
    let (near, far) = (space("near"), space("far"));
    let heap = QueryHeap::open(vec![near.clone(), far], None).expect("a heap");
    println!(
        "{:>9} {:>12} {:>12} {:>12} {:>14} {:>14}",
        "bytes", "jemalloc", "outside", "inside", "many outside", "many inside"
    );
    for (size, count) in [
        (16, 20_000),
        (100, 20_000),
        (1000, 20_000),
        (10_000, 10_000),
        (100_000, 1_000),
        (1 << 20, 200),
        (16 << 20, 20),
    ] {
        let many = (32 << 20) / size;
        let many = many.min(20_000);
        let bare = ns_each(count, || plain(size, count));
        let outside = ns_each(count, || routed(size, count));
        let outside_many = ns_each(many, || routed_many(size, many));
        let _guard = heap.enter();
        let inside = ns_each(count, || routed(size, count));
        let inside_many = ns_each(many, || routed_many(size, many));
        println!("{size:>9} {bare:>12.1} {outside:>12.1} {inside:>12.1} {outside_many:>14.1} {inside_many:>14.1}");
    }
    drop(heap);
    let rounds = 200;
    let empty = ns_each(rounds, || {
        for _ in 0..rounds {
            let heap = QueryHeap::open(vec![near.clone()], None).expect("a heap");
            let _guard = heap.enter();
        }
    });
    for blocks in [10, 100, 1000, 10_000] {
        let busy = ns_each(10, || {
            for _ in 0..10 {
                let heap = QueryHeap::open(vec![near.clone()], None).expect("a heap");
                let _guard = heap.enter();
                let held: Vec<Vec<u8>> = (0..blocks).map(|size| Vec::with_capacity(1 + size % 500)).collect();
                drop(black_box(held));
            }
        });
        println!("a heap's life with {blocks} blocks: {:.1} us", busy / 1e3);
    }
    println!("a heap's life without any: {:.1} us", empty / 1e3);
    let heap = QueryHeap::open(vec![near], None).expect("a heap");
    let enter = ns_each(10_000, || {
        for _ in 0..10_000 {
            drop(black_box(heap.enter()));
        }
    });
    println!("entering and leaving: {enter:.1} ns");
}
