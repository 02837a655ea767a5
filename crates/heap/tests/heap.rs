//! Query heaps with the allocator installed.

mod common;

use common::{MIB, Random, space};
use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, realloc};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use tidepool_base::SqlState;
use tidepool_heap::{BlockEvent, QueryHeap, is_installed, process_memory};
use tidepool_tablespace::{Purpose, Tablespace};

#[test]
fn allocations_come_from_the_heap_and_go_back() {
    assert!(is_installed());
    let near = space("near", 64 * MIB);
    let before: Vec<u8> = vec![1; 5000];
    let heap = QueryHeap::open(vec![near.clone()], None).unwrap();
    assert_eq!(heap.available_bytes(), 64 * MIB);
    {
        let _guard = heap.enter();
        for size in [1, 16, 100, 5000, 20_000, 300_000, 3 << 20] {
            let block: Vec<u8> = vec![7; size];
            assert!(near.contains(block.as_ptr()), "{size}");
            assert!(block.iter().all(|byte| *byte == 7));
        }
        let text = String::from("inside");
        assert!(near.contains(text.as_ptr()));
        assert!(!near.contains(before.as_ptr()));
        drop(before);
    }
    assert!(!near.contains(vec![1u8; 5000].as_ptr()));
    let usage = heap.usage();
    assert!(usage[0].bytes_peak >= 3 * MIB && usage[0].bytes <= usage[0].bytes_peak);
    assert_eq!(usage[0].bytes, near.bytes(Purpose::Heap));
    assert_eq!(heap.available_bytes(), 64 * MIB - usage[0].bytes);
    heap.check().unwrap();
    drop(usage);
    drop(heap);
    assert_eq!(near.bytes(Purpose::Heap), 0);
    near.trim(0).unwrap();
    assert_eq!(near.usage().resident_bytes, 0);
}

#[test]
fn bulk_leaves_a_quarter_of_a_tablespace_to_what_is_touched_more_often() {
    let (near, far) = (space("near", 64 * MIB), space("far", 64 * MIB));
    let heap = QueryHeap::open(vec![near.clone(), far.clone()], None).unwrap();
    let _guard = heap.enter();
    let block = |bytes: u64| vec![1u8; bytes as usize];
    let bulk: Vec<Vec<u8>> = (0..56).map(|_| tidepool_heap::bulk(|| block(MIB))).collect();
    let held = |space: &Arc<Tablespace>| space.size_bytes() - space.available_bytes();
    assert!((46 * MIB..=50 * MIB).contains(&held(&near)), "{}", held(&near));
    assert!(held(&far) >= 6 * MIB);
    // What is not bulk is still near; and so is bulk, once there is no room elsewhere.
    let others: Vec<Vec<u8>> = (0..8).map(|_| block(MIB)).collect();
    assert!(others.iter().all(|block| near.contains(block.as_ptr())));
    let mut more: Vec<Vec<u8>> = Vec::new();
    while !more.last().is_some_and(|block| near.contains(block.as_ptr())) {
        more.push(tidepool_heap::bulk(|| block(MIB)));
    }
    assert!(more.len() > 8 && held(&far) > 48 * MIB, "{} blocks", more.len());
    heap.check().unwrap();
    drop((bulk, others, more));
}

#[test]
fn room_that_is_found_is_the_finders() {
    let near = space("near", 64 * MIB);
    let heap = QueryHeap::open(vec![near], Some(12 * MIB)).unwrap();
    let block = |bytes: u64| vec![0u8; bytes as usize];
    let asked = |bytes: u64| QueryHeap::with_room(bytes as usize, || block(bytes));
    let _guard = heap.enter();
    let found = QueryHeap::with_room(8 * MIB as usize, || {
        // Not allocated yet, and not to be had any more.
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let _guard = heap.enter();
                asked(6 * MIB).map(drop).map_err(|error| error.code())
            });
            assert_eq!(other.join().unwrap(), Err(SqlState::OUT_OF_MEMORY));
        });
        block(8 * MIB)
    });
    let found = found.unwrap();
    let small = asked(3 * MIB).unwrap();
    assert_eq!(asked(3 * MIB).unwrap_err().code(), SqlState::OUT_OF_MEMORY);
    assert!(heap.usage()[0].bytes_peak <= 12 * MIB);
    drop((found, small));
    // What was set apart and not allocated is to be had again.
    for _ in 0..3 {
        QueryHeap::with_room(10 * MIB as usize, || ()).unwrap();
    }
    drop(asked(9 * MIB).unwrap());
    assert_eq!(heap.overdraft_bytes(), 0);
    heap.check().unwrap();
}

/// Also where it asks first.
#[test]
fn a_small_statement_is_answered_beside_one_that_has_taken_all_there_is() {
    let near = space("near", 16 * MIB);
    let (large, small) =
        (QueryHeap::open(vec![near.clone()], None).unwrap(), QueryHeap::open(vec![near.clone()], None).unwrap());
    let block = |bytes: usize| vec![1u8; bytes];
    let taken: Vec<Vec<u8>> = {
        let _guard = large.enter();
        let mut taken = Vec::new();
        for bytes in [MIB as usize, 64 << 10, 16 << 10, 4 << 10] {
            let before = large.overdraft_bytes();
            while large.overdraft_bytes() == before {
                taken.push(block(bytes));
            }
        }
        taken
    };
    assert!(near.available_bytes() < 40_000, "{}", near.available_bytes());
    let _guard = small.enter();
    let asked = |bytes: usize| QueryHeap::with_room(bytes, || block(bytes)).map_err(|error| error.code());
    let few: Vec<Vec<u8>> = (0..4).map(|_| asked(40_000).unwrap()).collect();
    small.check().unwrap();
    assert_eq!(asked(MIB as usize), Err(SqlState::OUT_OF_MEMORY));
    let more: Vec<Vec<u8>> = std::iter::from_fn(|| asked(40_000).ok()).collect();
    assert!(small.overdraft_bytes() <= 256 << 10, "{}", small.overdraft_bytes());
    drop((few, more));
    let _guard = large.enter();
    drop(taken);
}

#[test]
fn a_heap_overflows_in_the_order_of_its_tablespaces() {
    let (near, far) = (space("near", 4 * MIB), space("far", 64 * MIB));
    let heap = QueryHeap::open(vec![near.clone(), far.clone(), near.clone()], None).unwrap();
    assert_eq!(heap.tablespaces().len(), 2);
    let blocks: Vec<Vec<u8>> = {
        let _guard = heap.enter();
        (0..200).map(|_| vec![1; 100_000]).collect()
    };
    let in_near = blocks.iter().filter(|block| near.contains(block.as_ptr())).count();
    let in_far = blocks.iter().filter(|block| far.contains(block.as_ptr())).count();
    assert_eq!(in_near + in_far, 200);
    assert!((30..=41).contains(&in_near), "{in_near}");
    assert!(blocks[..in_near].iter().all(|block| near.contains(block.as_ptr())), "near is filled first");
    heap.check().unwrap();
    drop(blocks);
    drop(heap);
    assert_eq!((near.bytes(Purpose::Heap), far.bytes(Purpose::Heap)), (0, 0));
}

#[test]
fn a_heap_without_room_says_so_and_nothing_aborts() {
    let near = space("near", 16 * MIB);
    for (budget, name) in [(Some(4 * MIB), "budget"), (None, "tablespace")] {
        let heap = QueryHeap::open(vec![near.clone()], budget).unwrap();
        let mut blocks: Vec<Vec<u8>> = Vec::new();
        {
            let _guard = heap.enter();
            blocks.reserve(1000);
            while heap.check().is_ok() {
                assert!(blocks.len() < 1000);
                blocks.push(vec![1; 50_000]);
            }
            // And it goes on: small and large, new and growing.
            blocks.push(vec![2; 8 << 20]);
            for byte in 0..=255 {
                blocks.push(vec![byte; 1000]);
            }
            let last = blocks.last_mut().unwrap();
            last.resize(1 << 20, 9);
            assert!(last[..1000].iter().all(|byte| *byte == 255) && last[1000..].iter().all(|byte| *byte == 9));
        }
        let error = heap.check().unwrap_err();
        assert_eq!((error.code(), error.message()), (SqlState::OUT_OF_MEMORY, "out of memory"), "{name}");
        assert!(error.detail().unwrap().contains("in near"), "{error:?}");
        assert_eq!(error.detail().unwrap().contains("budget"), budget.is_some());
        assert!(heap.overdraft_bytes() > 8 * MIB);
        assert!(heap.usage()[0].bytes_peak <= budget.unwrap_or(16 * MIB));
        if let Some(budget) = budget {
            assert!(heap.available_bytes() < budget / 4);
        }
        drop(blocks);
        drop(heap);
        assert_eq!(near.bytes(Purpose::Heap), 0, "{name}");
    }
    // The next statement starts anew.
    QueryHeap::open(vec![near], None).unwrap().check().unwrap();
}

#[test]
fn freed_memory_serves_other_sizes_before_a_heap_gives_up() {
    let near = space("near", 8 * MIB);
    let heap = QueryHeap::open(vec![near.clone()], None).unwrap();
    let _guard = heap.enter();
    for size in [3_000, 30_000, 500_000, 7_000, 120_000, 4_000_000, 900] {
        let blocks: Vec<Vec<u8>> = (0..5_500_000 / size).map(|_| vec![1; size]).collect();
        assert!(blocks.iter().all(|block| near.contains(block.as_ptr())), "{size}");
    }
    heap.check().unwrap();
}

#[test]
fn what_the_machine_cannot_hold_is_refused() {
    let near = space("near", 16 * MIB);
    let heap = QueryHeap::open(vec![near], None).unwrap();
    let _guard = heap.enter();
    assert!(Vec::<u8>::new().try_reserve_exact(1 << 46).is_err());
    assert_eq!(heap.check().unwrap_err().code(), SqlState::OUT_OF_MEMORY);
}

#[test]
fn blocks_cross_threads_and_tiers_and_none_is_misplaced() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 20_000;

    struct Block {
        bytes: Vec<u8>,
        /// Which heap it was made in, or none.
        home: Option<usize>,
        seed: u8,
    }

    let spaces: Vec<Arc<Tablespace>> = ["a", "b", "c"].into_iter().map(|name| space(name, 512 * MIB)).collect();
    let heaps: Vec<Arc<QueryHeap>> =
        spaces.iter().map(|space| QueryHeap::open(vec![space.clone()], None).unwrap()).collect();
    let place = |bytes: &[u8]| spaces.iter().position(|space| space.contains(bytes.as_ptr()));
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| mpsc::channel::<Block>()).unzip();
    std::thread::scope(|scope| {
        for (thread, receiver) in receivers.into_iter().enumerate() {
            let (senders, heaps, place) = (senders.clone(), &heaps, &place);
            scope.spawn(move || {
                let mut random = Random(0x9e37_79b9 + thread as u64);
                let mut size = move || {
                    let scale = [40, 2_000, 60_000][random.below(3)];
                    (1 + random.below(scale), random.below(1000))
                };
                for _ in 0..ROUNDS {
                    let (len, choice) = size();
                    let home = choice % 4;
                    let home = (home < 3).then_some(home);
                    let guard = home.map(|home| heaps[home].enter());
                    let seed = len as u8;
                    let block = Block { bytes: vec![seed; len], home, seed };
                    assert_eq!(place(&block.bytes), home);
                    drop(guard);
                    // The channel's own memory is the process's.
                    // A thread that is done has no use for it: then it is freed here.
                    drop(senders[choice % THREADS].send(block));
                    while let Ok(mut block) = receiver.try_recv() {
                        assert_eq!(place(&block.bytes), block.home);
                        assert!(block.bytes.iter().all(|byte| *byte == block.seed));
                        // Freed or grown here, inside some heap or none.
                        let (more, choice) = size();
                        let here = choice % 4;
                        let here = (here < 3).then_some(here);
                        let _guard = here.map(|here| heaps[here].enter());
                        if choice % 3 == 0 {
                            let len = block.bytes.len();
                            block.bytes.reserve_exact(len + more);
                            assert_eq!(place(&block.bytes), here);
                            assert!(block.bytes.iter().all(|byte| *byte == block.seed));
                        }
                        drop(block);
                    }
                }
                drop(senders);
                for block in receiver.try_iter() {
                    assert!(block.bytes.iter().all(|byte| *byte == block.seed));
                }
            });
        }
    });
    for (heap, space) in heaps.iter().zip(&spaces) {
        heap.check().unwrap();
        assert_eq!(heap.usage()[0].bytes, space.bytes(Purpose::Heap), "the ledger equals the heap's own count");
        assert!(heap.usage()[0].bytes_peak > MIB);
    }
    drop(senders);
    drop(heaps);
    for space in &spaces {
        assert_eq!(space.bytes(Purpose::Heap), 0);
    }
}

#[test]
fn heaps_that_share_a_tablespace_are_counted_apart() {
    let near = space("near", 256 * MIB);
    let heaps: Vec<_> = (0..8).map(|_| QueryHeap::open(vec![near.clone()], None).unwrap()).collect();
    let mut blocks = Vec::new();
    for (index, heap) in heaps.iter().enumerate() {
        let _guard = heap.enter();
        for _ in 0..=index {
            blocks.push(vec![1u8; 1 << 20]);
        }
    }
    let bytes: Vec<u64> = heaps.iter().map(|heap| heap.usage()[0].bytes).collect();
    assert!(bytes.iter().enumerate().all(|(index, bytes)| *bytes >= (index as u64 + 1) * MIB), "{bytes:?}");
    assert_eq!(bytes.iter().sum::<u64>(), near.bytes(Purpose::Heap));
    drop(blocks);
    drop(heaps);
    assert_eq!(near.bytes(Purpose::Heap), 0);
}

#[test]
fn blocks_that_outlive_their_heap_stay_valid_and_counted() {
    let near = space("near", 64 * MIB);
    let (escaped, large) = {
        let heap = QueryHeap::open(vec![near.clone()], None).unwrap();
        let _guard = heap.enter();
        let others: Vec<Vec<u8>> = (0..1000).map(|_| vec![3; 500]).collect();
        (others[500].clone(), vec![4u8; 2 << 20])
    };
    let lingering = near.bytes(Purpose::Heap);
    assert!((2 * MIB..3 * MIB).contains(&lingering), "{lingering}");
    // Later heaps come and go, perhaps over the same arena; what lingers is not theirs.
    for _ in 0..20 {
        let heap = QueryHeap::open(vec![near.clone()], Some(MIB)).unwrap();
        {
            let _guard = heap.enter();
            let block = vec![5u8; 100_000];
            assert!(near.contains(block.as_ptr()));
        }
        assert!(heap.usage()[0].bytes_peak < MIB);
        heap.check().unwrap();
    }
    assert_eq!(near.bytes(Purpose::Heap), lingering);
    assert!(near.contains(escaped.as_ptr()) && escaped.iter().all(|byte| *byte == 3));
    // The tablespace stays open for them.
    let weak = Arc::downgrade(&near);
    drop(near);
    assert!(large.iter().all(|byte| *byte == 4));
    drop(large);
    assert!(weak.upgrade().unwrap().bytes(Purpose::Heap) < MIB);
    drop(escaped);
    assert!(weak.upgrade().is_none(), "nothing is left that holds it");
}

#[test]
fn memory_grows_and_moves_between_process_and_heap() {
    let (near, far) = (space("near", 64 * MIB), space("far", 64 * MIB));
    let near_heap = QueryHeap::open(vec![near.clone()], None).unwrap();
    let far_heap = QueryHeap::open(vec![far.clone()], None).unwrap();
    for (align, small, large) in [(1, 10, 5000), (64, 200, 3 << 20), (4096, 5000, 9000), (1 << 16, 100, 1 << 17)] {
        let old = Layout::from_size_align(small, align).unwrap();
        let new = Layout::from_size_align(large, align).unwrap();
        // SAFETY: every block is written, moved and freed with the layout it has at that time.
        unsafe {
            let mut block = alloc(old);
            block.write_bytes(0x5a, small);
            let same = |block: *const u8| (0..small).all(|at| *block.add(at) == 0x5a);
            for heap in [Some(&near_heap), Some(&far_heap), None, Some(&far_heap)] {
                let guard = heap.map(|heap| heap.enter());
                block = realloc(block, old, large);
                assert_eq!(block.addr() % align, 0);
                assert!(same(block));
                match heap {
                    Some(heap) => assert!(heap.tablespaces()[0].contains(block)),
                    None => assert!(!near.contains(block) && !far.contains(block)),
                }
                // Growing within the same heap, too.
                block = realloc(block, new, large + align);
                block = realloc(block, Layout::from_size_align(large + align, align).unwrap(), small);
                assert!(same(block));
                drop(guard);
            }
            dealloc(block, old);
        }
    }
    drop((near_heap, far_heap));
    assert_eq!((near.bytes(Purpose::Heap), far.bytes(Purpose::Heap)), (0, 0));
}

#[test]
fn zeroed_memory_is_zero_when_it_is_used_again() {
    let near = space("near", 32 * MIB);
    for round in 0..6 {
        let heap = QueryHeap::open(vec![near.clone()], None).unwrap();
        let _guard = heap.enter();
        for size in [8, 300, 9_000, 200_000, 2 << 20, 5 << 20] {
            let layout = Layout::from_size_align(size, 8).unwrap();
            // SAFETY: the block is read and written within its layout.
            unsafe {
                let block = alloc_zeroed(layout);
                assert!((0..size).all(|at| *block.add(at) == 0), "round {round}, {size}");
                block.write_bytes(0xff, size);
                dealloc(block, layout);
            }
        }
    }
}

#[test]
fn heaps_nest_and_are_left() {
    let (near, far) = (space("near", 16 * MIB), space("far", 16 * MIB));
    let outer = QueryHeap::open(vec![near.clone()], None).unwrap();
    let inner = QueryHeap::open(vec![far.clone()], None).unwrap();
    let is = |heap: &Arc<QueryHeap>| QueryHeap::current().is_some_and(|current| Arc::ptr_eq(&current, heap));
    assert!(QueryHeap::current().is_none());
    {
        let _outer = outer.enter();
        let _again = outer.enter();
        assert!(is(&outer));
        {
            let _inner = inner.enter();
            assert!(is(&inner));
            assert!(far.contains(vec![1u8; 100].as_ptr()));
            QueryHeap::outside(|| {
                assert!(QueryHeap::current().is_none());
                let block = Box::new([1u8; 100]);
                assert!(!far.contains(block.as_ptr()) && !near.contains(block.as_ptr()));
                let _near = outer.enter();
                assert!(near.contains(vec![1u8; 100].as_ptr()));
            });
            assert!(is(&inner));
            assert!(far.contains(vec![1u8; 100].as_ptr()));
        }
        assert!(is(&outer));
        assert!(near.contains(vec![1u8; 100].as_ptr()));
        // A panic leaves heaps as it passes.
        let panicked = std::panic::catch_unwind(|| {
            let _inner = inner.enter();
            panic!("expected by the test");
        });
        assert!(panicked.is_err() && is(&outer));
    }
    assert!(QueryHeap::current().is_none());
}

#[test]
fn guards_out_of_order_are_found_and_harm_nobody() {
    let near = space("near", 16 * MIB);
    std::thread::spawn(move || {
        let first_heap = QueryHeap::open(vec![near.clone()], None).unwrap();
        let second_heap = QueryHeap::open(vec![near], None).unwrap();
        let first = first_heap.enter();
        let second = second_heap.enter();
        drop(first_heap);
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(first))).is_err());
        drop(second);
        // Back in the first heap, which stays open for this.
        QueryHeap::current().unwrap().check().unwrap();
    })
    .join()
    .unwrap();
}

#[test]
fn a_future_is_polled_and_dropped_inside_its_heap() {
    struct DroppedInside(Arc<Tablespace>, mpsc::Sender<bool>);

    impl Drop for DroppedInside {
        fn drop(&mut self) {
            self.1.send(self.0.contains(vec![1u8; 100].as_ptr())).unwrap();
        }
    }

    let near = space("near", 16 * MIB);
    let heap = QueryHeap::open(vec![near.clone()], None).unwrap();
    let (sender, receiver) = mpsc::channel();
    let space = near.clone();
    let future = heap.scope(async move {
        let _dropped = DroppedInside(space.clone(), sender);
        let mut polls = 0;
        poll_fn(move |_| {
            assert!(space.contains(vec![1u8; 100].as_ptr()));
            polls += 1;
            if polls == 3 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        std::future::pending::<()>().await;
    });
    fn is_send<T: Send>(_: &T) {}
    is_send(&future);
    {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..4 {
            assert!(future.as_mut().poll(&mut context).is_pending());
            assert!(QueryHeap::current().is_none());
            assert!(!near.contains(vec![1u8; 100].as_ptr()));
        }
        assert!(receiver.try_recv().is_err());
    }
    assert!(receiver.recv().unwrap());
    // What was sent was sent inside, so the channel holds memory of the heap.
    drop((receiver, heap));
    assert_eq!(near.bytes(Purpose::Heap), 0);
}

#[test]
fn many_short_heaps_leave_nothing() {
    let (near, far) = (space("near", 64 * MIB), space("far", 64 * MIB));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (near, far) = (&near, &far);
            scope.spawn(move || {
                for round in 0..300 {
                    let spaces = if (round + thread) % 2 == 0 { [near, far] } else { [far, near] };
                    let heap = QueryHeap::open(spaces.map(Arc::clone).to_vec(), None).unwrap();
                    let _guard = heap.enter();
                    let text: Vec<String> = (0..50).map(|number| number.to_string()).collect();
                    assert!(spaces[0].contains(text[49].as_ptr()));
                }
            });
        }
    });
    assert_eq!((near.bytes(Purpose::Heap), far.bytes(Purpose::Heap)), (0, 0));
}

#[test]
fn too_many_tablespaces_or_none_are_refused() {
    assert_eq!(QueryHeap::open(Vec::new(), None).unwrap_err().code(), SqlState::INVALID_PARAMETER_VALUE);
    let spaces: Vec<_> = (0..9).map(|_| space("t", MIB)).collect();
    assert_eq!(QueryHeap::open(spaces, None).unwrap_err().code(), SqlState::PROGRAM_LIMIT_EXCEEDED);
}

#[test]
fn the_processs_memory_leaves_heaps_out() {
    let near = space("near", 512 * MIB);
    let heap = QueryHeap::open(vec![near], None).unwrap();
    let ours = vec![1u8; 100 << 20];
    let before = process_memory();
    assert!(before.allocated_bytes >= 100 * MIB && before.resident_bytes >= before.allocated_bytes / 2);
    let theirs = {
        let _guard = heap.enter();
        vec![1u8; 400 << 20]
    };
    // Other tests run meanwhile, with far less than this.
    let after = process_memory();
    assert!(after.allocated_bytes < before.allocated_bytes + 300 * MIB, "{before:?} {after:?}");
    assert!(after.resident_bytes < before.resident_bytes + 300 * MIB, "{before:?} {after:?}");
    assert!(heap.usage()[0].bytes >= 400 * MIB);
    drop((ours, theirs));
}

#[test]
fn a_watched_heap_tells_of_large_blocks_and_others_do_not() {
    let near = space("near", 16 * MIB);
    let heap = QueryHeap::open(vec![near.clone()], None).unwrap();
    let other = QueryHeap::open(vec![near.clone()], None).unwrap();
    heap.watch();
    {
        let _guard = other.enter();
        drop(vec![1u8; 100_000]);
        assert!(!other.has_blocks() && !heap.has_blocks());
    }
    let guard = heap.enter();
    assert!(!heap.has_blocks());
    let mut block = vec![1u8; 100_000];
    let start = block.as_ptr().addr();
    let _small = Box::new([1u8; 100]);
    block.reserve_exact(1 << 20);
    let moved = block.as_ptr().addr();
    drop(block);
    let mut events = Vec::new();
    heap.take_blocks(|event| events.push(event));
    assert_eq!(events[0], BlockEvent::Allocated(start..start + 100_000));
    assert_eq!(events.last(), Some(&BlockEvent::Freed(moved..moved + 100_000 + (1 << 20))));
    assert!(!heap.has_blocks());
    heap.listen(false);
    let unheard = vec![1u8; 100_000];
    assert!(near.contains(unheard.as_ptr()) && !heap.has_blocks());
    heap.listen(true);
    drop(unheard);
    assert!(heap.has_blocks());
    heap.listen(false);
    drop(guard);
    let _guard = heap.enter();
    drop(vec![1u8; 100_000]);
    assert!(heap.has_blocks(), "whoever enters listens");
}
