//! A statement's account of its heap: what the cache is taken to hold of it, and who is charged with what it lacks.

use super::arrays;
use crate::queries::QueryInfo;
use arrow::array::RecordBatch;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tidepool_device::{Access, CostModel, Excess, Miss, PacingCounters, PacingTotals, Pattern, PoolId, Residency};
use tidepool_engine::touch::{self, Touch};
use tidepool_heap::{BlockEvent, QueryHeap};
use tidepool_tablespace::{Purpose, Tablespace};

/// Independent accesses that a core keeps in flight while it works through a batch of precomputed hashes: out-of-order
/// execution reaches over a few rows of such a loop, and each row's own accesses depend on each other.
const IN_FLIGHT: f64 = 4.0;

/// Parts of the cache in which the order of touches is followed.
const WINDOWS_PER_CACHE: u64 = 64;

/// What one operator did in the query heap, and what that costs by each of several models, in their order.
#[derive(Clone, Debug)]
pub struct OperatorCount {
    pub name: String,
    /// In sequence, of what the cache did not hold.
    pub bytes: u64,
    /// At random, whether the cache held them or not.
    pub lines: u64,
    /// On the device, nothing overlapping but what the model says, ns.
    pub device_ns: Vec<f64>,
    pub excess: Vec<Excess>,
}

/// Counts of a statement's operators.
pub struct HeapCounts {
    models: Vec<CostModel>,
    operators: Mutex<Vec<OperatorCount>>,
}

impl HeapCounts {
    pub fn new(models: Vec<CostModel>) -> HeapCounts {
        HeapCounts { models, operators: Mutex::new(Vec::new()) }
    }

    /// Those that did anything.
    pub fn operators(&self) -> Vec<OperatorCount> {
        self.operators.lock().iter().filter(|operator| operator.bytes + operator.lines > 0).cloned().collect()
    }

    fn register(&self, name: String) -> usize {
        let mut operators = self.operators.lock();
        operators.push(OperatorCount {
            name,
            bytes: 0,
            lines: 0,
            device_ns: vec![0.0; self.models.len()],
            excess: vec![Excess::default(); self.models.len()],
        });
        operators.len() - 1
    }

    fn add(&self, operator: usize, touched: &Touched) {
        let mut operators = self.operators.lock();
        let Some(count) = operators.get_mut(operator) else { return };
        let passes = || touched.spaces.iter().chain([&touched.pools]);
        count.bytes += passes().map(|passes| passes.bytes_read + passes.bytes_written).sum::<u64>();
        count.lines += touched.random.iter().map(|random| random.lines).sum::<u64>();
        for (index, model) in self.models.iter().enumerate() {
            let passes = passes().flat_map(Passes::accesses);
            let random = touched.random.iter().map(|random| random.access(1.0, model.last_level_cache_bytes()));
            let accesses: Vec<Access> = passes.chain(random).collect();
            count.device_ns[index] += model.device_ns_of(&accesses, 1);
            count.excess[index] += model.excess_of(&accesses);
        }
    }
}

/// What one operator was charged with, by tablespace.
#[derive(Debug)]
pub struct OperatorAccount {
    /// Its place among the counts, where there are any.
    count: usize,
    /// By place among the heap's tablespaces, with their names.
    spent: Vec<(String, PacingTotals)>,
}

impl OperatorAccount {
    /// By tablespace.
    pub fn spent(&self) -> Vec<(String, PacingCounters)> {
        self.spent.iter().map(|(tablespace, totals)| (tablespace.clone(), totals.get())).collect()
    }

    fn add(&self, place: usize, spent: &PacingCounters) {
        if let Some((_, totals)) = self.spent.get(place) {
            totals.add(spent);
        }
    }
}

/// Ranges of one tablespace read and written from end to end, as far as the cache did not hold them.
#[derive(Clone, Copy, Debug, Default)]
struct Passes {
    bytes_read: u64,
    runs_read: u64,
    bytes_written: u64,
    runs_written: u64,
}

impl Passes {
    /// A share of the bytes, in as many runs.
    fn share(&self, share: f64) -> Passes {
        let of = |bytes: u64| (bytes as f64 * share).round() as u64;
        Passes { bytes_read: of(self.bytes_read), bytes_written: of(self.bytes_written), ..*self }
    }

    fn add(&mut self, bytes: u64, write: bool) {
        let (total, runs) = match write {
            true => (&mut self.bytes_written, &mut self.runs_written),
            false => (&mut self.bytes_read, &mut self.runs_read),
        };
        *total += bytes;
        *runs += 1;
    }

    fn accesses(&self) -> impl Iterator<Item = Access> + use<> {
        let access = |bytes, runs, write| Access { pattern: Pattern::Sequential { bytes, runs }, write };
        let read = access(self.bytes_read, self.runs_read, false);
        let written = access(self.bytes_written, self.runs_written, true);
        [(self.bytes_read, read), (self.bytes_written, written)]
            .into_iter()
            .filter_map(|(bytes, access)| (bytes > 0).then_some(access))
    }
}

/// Lines touched at random, of which some are expected to miss.
#[derive(Clone, Copy, Debug)]
struct RandomLines {
    lines: u64,
    missed: f64,
    write: bool,
    in_flight: f64,
}

impl RandomLines {
    /// `share` of them, over a working set of which a cache of `cache_bytes` misses as much.
    fn access(&self, share: f64, cache_bytes: u64) -> Access {
        let lines = (self.lines as f64 * share).round() as u64;
        let hits = 1.0 - self.missed / self.lines.max(1) as f64;
        // From float to integer, too large becomes the largest.
        let working_set_bytes = (cache_bytes as f64 / hits.max(0.0)) as u64;
        let access = if self.write { Access::write_random } else { Access::read_random };
        access(lines, working_set_bytes, self.in_flight)
    }
}

/// What is to be charged at once.
#[derive(Debug, Default)]
struct Touched {
    /// By place among the heap's tablespaces.
    spaces: Vec<Passes>,
    /// Over memory of which it is not known where it lies.
    pools: Passes,
    random: Vec<RandomLines>,
}

/// A statement's.
pub struct HeapAccount {
    heap: Arc<QueryHeap>,
    info: Arc<QueryInfo>,
    cache: Mutex<Residency>,
    counts: Option<Arc<HeapCounts>>,
    scratches: AtomicUsize,
    small_bytes: u64,
}

impl HeapAccount {
    pub fn new(
        heap: Arc<QueryHeap>,
        info: Arc<QueryInfo>,
        counts: Option<Arc<HeapCounts>>,
        cache_bytes: u64,
    ) -> HeapAccount {
        heap.watch();
        HeapAccount {
            heap,
            info,
            cache: Mutex::new(Residency::new(cache_bytes)),
            counts,
            // The first is that of hashes, which all operators of a thread share.
            scratches: AtomicUsize::new(HASHES + 1),
            small_bytes: cache_bytes / WINDOWS_PER_CACHE,
        }
    }

    /// Bytes that may be touched before they have to be charged: a small part of the cache.
    pub fn window_bytes(&self) -> u64 {
        self.small_bytes.clamp(4 << 10, 1 << 20)
    }

    /// What takes no more than this, and is in use, is taken to stay in the cache.
    pub fn small_bytes(&self) -> u64 {
        self.small_bytes
    }

    pub fn operator(&self, name: impl FnOnce() -> String) -> Arc<OperatorAccount> {
        let count = self.counts.as_ref().map_or(0, |counts| counts.register(name()));
        let of = |space: &Arc<Tablespace>| (space.name().to_owned(), PacingTotals::default());
        Arc::new(OperatorAccount { count, spent: self.heap.tablespaces().iter().map(of).collect() })
    }

    /// The number of a scratch that nobody has.
    pub fn make_scratch(&self) -> usize {
        self.scratches.fetch_add(1, Ordering::Relaxed)
    }

    pub fn pool(&self) -> PoolId {
        QueryHeap::outside(|| self.cache.lock().make_pool())
    }

    pub fn drop_pool(&self, pool: PoolId) {
        QueryHeap::outside(|| self.cache.lock().drop_pool(pool));
    }

    /// Charges an operator with the blocks that this thread allocated and freed since it was last asked, and with the batch
    /// that it made.
    pub fn settle(
        &self,
        operator: &OperatorAccount,
        batch: Option<&RecordBatch>,
        blocks: impl FnOnce(&mut Charge<'_>) -> Blocks,
    ) {
        if batch.is_none() && !self.heap.has_blocks() {
            return;
        }
        self.charge(operator, |charge| {
            let mut made = Vec::new();
            for column in batch.into_iter().flat_map(RecordBatch::columns) {
                arrays::ranges(column, &mut |range| made.push(range));
            }
            let blocks = blocks(charge);
            charge.blocks(blocks, &made);
        });
    }

    /// So many bytes of main and delta come by. They are charged by scans, and take their room in the cache.
    pub fn stream(&self, bytes: u64) {
        if bytes > 0 {
            let start = Instant::now();
            QueryHeap::outside(|| self.cache.lock().stream(bytes));
            self.credit(start);
        }
    }

    /// What it took since `start` to keep the account is taken off what this thread owes.
    fn credit(&self, start: Instant) {
        let ns = start.elapsed().as_nanos() as u64;
        self.info.add_heap_account_ns(ns);
        if let Some(paced) = self.heap.tablespaces().iter().find(|space| space.pacer().is_some()) {
            paced.credit(ns);
        }
    }

    /// Charges an operator with what `touch` touches.
    pub fn charge(&self, operator: &OperatorAccount, touch: impl FnOnce(&mut Charge<'_>)) {
        let start = Instant::now();
        let spent = QueryHeap::outside(|| {
            let touched = {
                let spaces = vec![Passes::default(); self.heap.tablespaces().len()];
                let touched = Touched { spaces, ..Touched::default() };
                let mut charge = Charge { account: self, cache: &mut self.cache.lock(), touched };
                touch(&mut charge);
                charge.missed();
                charge.touched
            };
            if let Some(counts) = &self.counts {
                counts.add(operator.count, &touched);
            }
            self.spend(operator, &touched, start)
        });
        if spent > 0 {
            self.info.add_heap_stall_ns(spent);
        }
    }

    /// Spends it here, on the thread that caused it. Lines at random are shared out by the bytes that lie in each
    /// tablespace. Returns ns.
    fn spend(&self, operator: &OperatorAccount, touched: &Touched, start: Instant) -> u64 {
        let spaces = self.heap.tablespaces();
        // Of one tablespace it is all, and nobody has to be asked.
        let bytes: Vec<u64> = match spaces {
            [_] => Vec::new(),
            _ => self.heap.usage().iter().map(|usage| usage.bytes).collect(),
        };
        self.credit(start);
        let total: u64 = bytes.iter().sum();
        let mut stall_ns = 0;
        for (index, (space, passes)) in spaces.iter().zip(&touched.spaces).enumerate() {
            let Some(pacer) = space.pacer() else { continue };
            let share = match total {
                // Nothing allocated yet, or nowhere else: it goes to the first tablespace.
                0 => f64::from(u8::from(index == 0)),
                total => bytes[index] as f64 / total as f64,
            };
            let random = touched.random.iter().map(|random| random.access(share, pacer.last_level_cache_bytes()));
            let pools = touched.pools.share(share);
            let accesses: Vec<Access> = passes.accesses().chain(pools.accesses()).chain(random).collect();
            if !accesses.is_empty() {
                let spent = space.spend(Purpose::Heap, &accesses);
                operator.add(index, &spent);
                stall_ns += spent.stall_ns;
            }
        }
        stall_ns
    }
}

/// What blocks are to the operator that allocated or freed them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Blocks {
    /// Values on their way.
    Values,
    /// Values of which a share was kept, and the rest not looked at.
    Sifted(f64),
    /// Those that it allocated and has not freed are its tables.
    Tables,
}

impl Blocks {
    /// Of a block that is freed, how much was read if nothing is known of that.
    fn share_read(self) -> f64 {
        match self {
            Blocks::Values | Blocks::Tables => 1.0,
            Blocks::Sifted(share) => share,
        }
    }
}

/// Of each event, whether it allocates a block that a later one frees: a value on its way.
fn on_their_way(events: &[BlockEvent]) -> Vec<bool> {
    let mut freed = BTreeMap::new();
    let mut on_their_way = vec![false; events.len()];
    for (event, on_its_way) in events.iter().zip(&mut on_their_way).rev() {
        match event {
            BlockEvent::Freed(range) | BlockEvent::Moved(range) => {
                freed.insert(range.start, range.end);
            }
            BlockEvent::Allocated(range) => {
                let over = freed.range(..=range.start).next_back().map(|(&start, &end)| (start, end));
                *on_its_way = over.is_some_and(|(_, end)| end > range.start);
                freed.remove(&range.start);
            }
            BlockEvent::Unlogged { .. } => {}
        }
    }
    on_their_way
}

/// The scratch of DataFusion's hashes. It is not in the heap; all others are.
pub const HASHES: usize = 0;

/// Where memory is taken to lie whose address is not known: beyond all addresses of a process. What is not in the heap takes
/// its room in the cache and is charged to nobody.
const SCRATCH_START: usize = 1 << 57;
const HEAP_SCRATCH_START: usize = SCRATCH_START + SCRATCH_BYTES;

/// Room for a scratch.
const SCRATCH_BYTES: usize = 1 << 24;

/// What is touched, while the account is held.
pub struct Charge<'a> {
    account: &'a HeapAccount,
    cache: &'a mut Residency,
    touched: Touched,
}

impl Charge<'_> {
    /// Adds what ranges missed to the tablespaces that they lie in.
    fn missed(&mut self) {
        let misses = self.cache.take_misses();
        self.count(&misses);
    }

    fn count(&mut self, misses: &[Miss]) {
        let spaces = self.account.heap.tablespaces();
        for miss in misses {
            let place = match miss.address {
                HEAP_SCRATCH_START.. => Some(0),
                address => spaces.iter().position(|space| space.address_range().contains(&address)),
            };
            let Some(passes) = place.and_then(|place| self.touched.spaces.get_mut(place)) else { continue };
            passes.add(miss.bytes, miss.write);
        }
    }

    /// `made`: where the batch lies that was made meanwhile.
    fn blocks(&mut self, blocks: Blocks, made: &[Range<usize>]) {
        let mut events = Vec::new();
        self.account.heap.take_blocks(|event| events.push(event));
        let on_their_way = on_their_way(&events);
        let mut left = Vec::new();
        for (event, on_its_way) in events.into_iter().zip(on_their_way) {
            match event {
                BlockEvent::Allocated(range) => {
                    self.cache.allocate(range.clone());
                    if on_its_way {
                        self.cache.fill(range);
                        continue;
                    }
                    let within = |made: &&Range<usize>| made.start < range.end && range.start < made.end;
                    for made in made.iter().filter(within) {
                        self.cache.fill(made.start.max(range.start)..made.end.min(range.end));
                    }
                    if blocks == Blocks::Tables {
                        left.push(range.start);
                    }
                }
                BlockEvent::Freed(range) => self.cache.free(range, blocks.share_read()),
                BlockEvent::Moved(range) => self.cache.move_away(range),
                // So many at once that the cache kept none of them.
                BlockEvent::Unlogged { bytes_allocated } => {
                    if let Some(passes) = self.touched.spaces.first_mut() {
                        passes.add(bytes_allocated as u64, true);
                    }
                }
            }
        }
        left.into_iter().for_each(|start| self.cache.hold(start));
        made.iter().for_each(|range| self.cache.fill(range.clone()));
    }

    /// A range is read from end to end.
    pub fn read(&mut self, range: Range<usize>) {
        self.cache.read(range);
    }

    /// So many bytes come by that nobody touches again: encoded values, on their way to be decoded.
    pub fn stream(&mut self, bytes: u64) {
        self.cache.stream(bytes);
    }

    /// A buffer that is the same for each batch is written.
    pub fn fill_scratch(&mut self, number: usize, bytes: usize) {
        let start = SCRATCH_START + number * SCRATCH_BYTES;
        self.cache.write(start..start + bytes.min(SCRATCH_BYTES));
    }

    /// It is read.
    pub fn scratch(&mut self, number: usize, bytes: usize) {
        let start = SCRATCH_START + number * SCRATCH_BYTES;
        self.cache.read(start..start + bytes.min(SCRATCH_BYTES));
    }

    /// Batches passed one after the other, each made, read and freed in the same memory.
    pub fn pass_scratch(&mut self, number: usize, bytes: usize, batches: usize) {
        self.fill_scratch(number, bytes);
        self.scratch(number, bytes);
        // Whatever keeps one from finding its memory in the cache keeps the others from it.
        let missed = self.cache.take_misses();
        for _ in 0..batches {
            self.count(&missed);
        }
    }

    pub fn resize_pool(&mut self, pool: PoolId, bytes: u64) {
        self.cache.resize_pool(pool, bytes);
    }

    /// A pool of an operator of the engine's is touched.
    pub fn touch(&mut self, pool: PoolId, touch: Touch) {
        match touch {
            Touch::Append { bytes } => {
                self.cache.grow_pool(pool, bytes);
                self.touched.pools.add(bytes, true);
            }
            Touch::Pass { bytes, write } => {
                let missed = self.cache.pass_pool(pool, bytes).round() as u64;
                if missed > 0 {
                    self.touched.pools.add(missed, write);
                }
            }
            Touch::Lines { lines, write } => {
                let missed = self.cache.touch_pool(pool, lines);
                self.touched.random.push(RandomLines { lines, missed, write, in_flight: touch::IN_FLIGHT });
            }
        }
    }

    pub fn random(&mut self, pool: PoolId, lines: u64, write: bool) {
        let missed = self.cache.touch_pool(pool, lines);
        self.touched.random.push(RandomLines { lines, missed, write, in_flight: IN_FLIGHT });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_come_and_go_are_told_from_those_that_stay() {
        use BlockEvent::{Allocated, Freed, Moved};
        let events = [
            Freed(0..10),
            Allocated(0..10),
            Allocated(20..30),
            // Grown in place.
            Allocated(30..40),
            Freed(20..40),
            Allocated(20..30),
            Allocated(50..60),
            Moved(50..60),
        ];
        assert_eq!(on_their_way(&events), [false, false, true, true, false, false, true, false]);
    }
}
