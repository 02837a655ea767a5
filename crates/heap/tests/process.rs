//! The process's own memory in a tablespace over a pool: blocks of all sizes on many threads, in statements' heaps and out of
//! them, freed elsewhere than they were made, in a pool that is full at times. One test, as it is of the whole process.

mod common;

use common::{MIB, Random, space};
use std::alloc::{Layout, alloc_zeroed, dealloc, realloc};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use tidepool_base::TablespaceId;
use tidepool_device::Location;
use tidepool_heap::{QueryHeap, Release, is_in_heap, place_process_memory, process_memory, release};
use tidepool_pool::check::check;
use tidepool_pool::member::{JoinOptions, Member};
use tidepool_pool::pool::{CreateOptions, Pool};
use tidepool_pool::words::Role;
use tidepool_tablespace::{LeaseOptions, Purpose, Tablespace, TablespaceConfig};

const POOL_BYTES: u64 = 64 * MIB;

fn pool(path: &Path) -> Arc<Pool> {
    let options = CreateOptions {
        devices: vec![(Location::File(path.to_owned()), Some(POOL_BYTES))],
        extent_bytes: None,
        bytes_max: None,
        label: String::new(),
        populates: false,
        overcommits: false,
    };
    let pool = Arc::new(Pool::create(&options).unwrap());
    let tool = Member::join(Arc::clone(&pool), &JoinOptions::tool("test")).unwrap();
    tool.create_database("a", 0).unwrap();
    pool
}

fn leased(pool: &Arc<Pool>) -> Arc<Tablespace> {
    let join = JoinOptions { role: Role::Primary, database: Some("a".to_owned()), ..JoinOptions::tool("host") };
    let member = Arc::new(Member::join(Arc::clone(pool), &join).unwrap());
    let config = TablespaceConfig {
        name: "own".into(),
        location: Location::Pool,
        size_bytes: None,
        profile: None,
        profiles: Vec::new(),
        huge_pages: false,
        populate_bytes: 0,
    };
    Tablespace::open_leased(TablespaceId(1), config, &member, LeaseOptions::default()).unwrap()
}

/// Bytes that the tablespace holds.
fn held(space: &Tablespace) -> u64 {
    space.ledger().iter().filter(|row| row.purpose == Purpose::Heap).map(|row| row.bytes).sum()
}

/// A block that knows what is at its ends.
struct Block {
    start: *mut u8,
    layout: Layout,
    mark: u8,
}

// SAFETY: a block is of nobody but its owner.
unsafe impl Send for Block {}

impl Block {
    fn new(random: &mut Random) -> Block {
        let size = 1 + match random.below(100) {
            0..60 => random.below(300),
            60..90 => random.below(20_000),
            90..99 => random.below(300_000),
            _ => random.below(9_000_000),
        };
        let align = if random.below(20) == 0 { 4096 << random.below(6) } else { 1 << random.below(6) };
        let layout = Layout::from_size_align(size, align).unwrap();
        let mark = random.below(256) as u8;
        // SAFETY: the size is not zero, and both ends are in the block.
        unsafe {
            let start = alloc_zeroed(layout);
            assert!(!start.is_null() && start.addr().is_multiple_of(align));
            assert!((0..size).step_by(4096).all(|at| *start.add(at) == 0), "it was asked for zeroes");
            let block = Block { start, layout, mark };
            block.write();
            block
        }
    }

    /// # Safety
    /// The block is there.
    unsafe fn write(&self) {
        // SAFETY: both ends are in the block.
        unsafe {
            self.start.write(self.mark);
            self.start.add(self.layout.size() - 1).write(self.mark);
        }
    }

    fn check(&self) {
        // SAFETY: as above.
        let ends = unsafe { (self.start.read(), self.start.add(self.layout.size() - 1).read()) };
        assert_eq!(ends, (self.mark, self.mark), "a block has two owners");
    }

    fn resize(&mut self, size: usize) {
        self.check();
        // SAFETY: the block is of this layout, and the size is not zero.
        unsafe {
            self.start = realloc(self.start, self.layout, size);
            self.layout = Layout::from_size_align(size, self.layout.align()).unwrap();
            assert_eq!(self.start.read(), self.mark);
            self.write();
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.check();
        // SAFETY: the block is of this layout, and goes.
        unsafe { dealloc(self.start, self.layout) };
    }
}

fn work(seed: u64, statements: &Arc<Tablespace>, out: &std::sync::mpsc::Sender<Block>) {
    let mut random = Random(seed);
    let mut blocks: Vec<Block> = Vec::new();
    for round in 0..6_000 {
        let mut step = |blocks: &mut Vec<Block>| match random.below(8) {
            0..=3 => blocks.push(Block::new(&mut random)),
            4 if !blocks.is_empty() => {
                let at = random.below(blocks.len());
                let size = 1 + random.below(60_000);
                blocks[at].resize(size);
            }
            5 if !blocks.is_empty() => {
                let at = random.below(blocks.len());
                let _ = out.send(blocks.swap_remove(at));
            }
            _ if !blocks.is_empty() => {
                let at = random.below(blocks.len());
                blocks.swap_remove(at);
            }
            _ => {}
        };
        if round % 50 == 49 {
            let heap = QueryHeap::open(vec![Arc::clone(statements)], None).unwrap();
            let _within = heap.enter();
            (0..20).for_each(|_| step(&mut blocks));
        } else {
            step(&mut blocks);
        }
        if blocks.len() > 60 {
            blocks.truncate(20);
        }
    }
}

#[test]
fn the_process_lives_in_a_pool() {
    let folder = tempfile::tempdir().unwrap();
    let pool = pool(&folder.path().join("pool"));
    let own = leased(&pool);
    // Not one that others cannot be told apart in.
    assert!(place_process_memory(&space("near", MIB)).is_err());
    place_process_memory(&own).unwrap();
    place_process_memory(&own).unwrap();
    let before = held(&own);
    let block = vec![7u8; 9 << 20];
    assert!(held(&own) >= before + (9 << 20), "a large block is in the pool");
    assert!(!is_in_heap(block.as_ptr()) && own.contains(block.as_ptr()));
    drop(block);
    release(Release::All);
    assert!(held(&own) < before + MIB, "{} after {before}", held(&own));

    let statements = space("statements", 64 * MIB);
    let (out, others) = channel();
    std::thread::scope(|scope| {
        for thread in 1..=4 {
            let (statements, out) = (&statements, out.clone());
            scope.spawn(move || work(thread * 77, statements, &out));
        }
        drop(out);
        // Freed here, and made there.
        scope.spawn(move || others.into_iter().for_each(drop));
    });
    release(Release::All);

    // More than the pool has: the rest comes from the system, and what is there is whole.
    let many: Vec<Vec<u8>> = (0..150u8).map(|number| vec![number; 1 << 20]).collect();
    assert!(many.iter().any(|block| own.contains(block.as_ptr())));
    assert!(many.iter().any(|block| !own.contains(block.as_ptr())));
    assert!((0..).zip(&many).all(|(number, block)| block.iter().all(|byte| *byte == number)));
    drop(many);
    release(Release::All);
    own.trim(0).unwrap();
    assert!(held(&own) < POOL_BYTES / 2, "{}", held(&own));
    assert!(process_memory().allocated_bytes < 64 * MIB);
    let report = check(&pool, false).unwrap();
    assert!(report.is_clean(), "{report:?}");
}
