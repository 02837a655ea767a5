//! What operators touch of the query heap, for whoever prices it.
//!
//! An operator's tables are *pools*: memory of known size that only it touches. It tells how it does, a chunk at a time: what it
//! adds and writes from end to end, what it passes over, and how many lines it touches anywhere. Neighbours in a chunk that
//! come to the same line count once. Nothing is counted where nobody keeps an account.

use crate::observed::{Observed, Observer};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
pub use tidepool_device::PoolId;
use tidepool_heap::{BlockEvent, QueryHeap};

const LINE_BYTES: usize = 64;

/// Lines on their way at a time while a chunk's rows are looked up: each loop over them loads one line a row, of addresses that
/// are known, so a core has as many in flight as it has buffers for. `examples/in_flight.rs` measures it.
pub const IN_FLIGHT: f64 = 10.0;

/// How memory is touched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Touch {
    /// Bytes are added, and written from end to end.
    Append { bytes: u64 },
    /// So many bytes are read or written, from end to end.
    Pass { bytes: u64, write: bool },
    /// Lines anywhere, [`IN_FLIGHT`] at a time.
    Lines { lines: u64, write: bool },
}

impl Touch {
    fn bytes(&self) -> u64 {
        match self {
            Touch::Append { bytes } | Touch::Pass { bytes, .. } => *bytes,
            Touch::Lines { lines, .. } => lines * LINE_BYTES as u64,
        }
    }

    /// Both as one, where they are alike.
    fn join(&mut self, other: Touch) -> bool {
        match (self, other) {
            (Touch::Append { bytes }, Touch::Append { bytes: more }) => *bytes += more,
            (Touch::Pass { bytes, write }, Touch::Pass { bytes: more, write: also }) if *write == also => {
                *bytes += more
            }
            (Touch::Lines { lines, write }, Touch::Lines { lines: more, write: also }) if *write == also => {
                *lines += more
            }
            _ => return false,
        }
        true
    }
}

/// Keeps the account of a statement.
pub trait Account: Send + Sync + fmt::Debug {
    fn pool(&self) -> PoolId;

    /// Its memory is let go.
    fn drop_pool(&self, pool: PoolId);

    /// Prices what one worker touched for an operator, in that order.
    fn charge(&self, operator: usize, touches: &[(PoolId, Touch)]);

    /// So many bytes came by that no operator touches again: encoded values, on their way to be decoded.
    fn stream(&self, bytes: u64);

    /// Batches passed through a worker's operators, each of them in the same memory as the one before: so many bytes of it.
    /// `worker` tells workers apart.
    fn pass(&self, worker: usize, bytes: usize, batches: usize);

    /// Bytes that a worker may touch before it has to tell: so few that their order makes no difference.
    fn window_bytes(&self) -> u64;

    /// A pool of no more bytes stays in the cache while it is in use: which of its lines are touched makes no difference.
    fn small_bytes(&self) -> u64;
}

/// One operator's part of an account, if anybody keeps one, and who looks at it, if anybody does.
#[derive(Clone, Default)]
pub struct Meter {
    account: Option<(Arc<dyn Account>, usize)>,
    observer: Observer,
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Meter").field(&self.account.as_ref().map(|(_, operator)| operator)).finish()
    }
}

impl Meter {
    pub fn new(account: Arc<dyn Account>, operator: usize) -> Meter {
        Meter { account: Some((account, operator)), observer: Observer::default() }
    }

    pub fn observed(self, observed: Option<Arc<Observed>>) -> Meter {
        Meter { observer: Observer::new(observed), ..self }
    }

    pub fn observer(&self) -> &Observer {
        &self.observer
    }

    pub fn pool(&self) -> Pool {
        let id = self.account.as_ref().map(|(account, _)| account.pool());
        let small_bytes = self.account.as_ref().map_or(0, |(account, _)| account.small_bytes());
        Pool { id, bytes: AtomicU64::new(0), small_bytes, meter: self.clone() }
    }

    pub fn touches(&self) -> Touches {
        let window_bytes = self.account.as_ref().map_or(u64::MAX, |(account, _)| account.window_bytes());
        Touches { meter: self.clone(), list: Vec::new(), bytes: 0, window_bytes, rates: Vec::new() }
    }
}

/// Memory of an operator's. Its bytes are let go with it.
#[derive(Debug)]
pub struct Pool {
    meter: Meter,
    id: Option<PoolId>,
    bytes: AtomicU64,
    small_bytes: u64,
}

impl Pool {
    /// Whether a pool of so many bytes is too small for its lines to be counted, or nobody asks for them.
    pub fn is_small(&self, bytes: usize) -> bool {
        self.id.is_none() || bytes as u64 <= self.small_bytes
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let (Some((account, _)), Some(id)) = (&self.meter.account, self.id) {
            account.drop_pool(id);
        }
    }
}

/// What a worker touched and has not yet told. Tells the rest when it is dropped.
#[derive(Debug)]
pub struct Touches {
    meter: Meter,
    list: Vec<(PoolId, Touch)>,
    bytes: u64,
    window_bytes: u64,
    rates: Vec<Rate>,
}

/// How many lines a chunk's rows came to when it was last looked at, by what was looked up.
#[derive(Debug)]
struct Rate {
    pool: PoolId,
    bytes: usize,
    write: bool,
    /// Chunks since.
    age: usize,
    lines_per_row: f64,
}

/// Chunks of one look-up of which the first is looked at: to do so costs as much as some tenths of what is looked up. The others are taken
/// to be as it is.
const RATED: usize = 8;

impl Touches {
    fn add(&mut self, pool: &Pool, touch: Touch) {
        let Some(id) = pool.id else { return };
        if touch.bytes() == 0 {
            return;
        }
        self.bytes += touch.bytes();
        // Growth comes before what is done with what has grown.
        let last = self.list.iter_mut().rev().find(|(other, _)| *other == id);
        if !last.is_some_and(|(_, last)| last.join(touch)) {
            self.list.push((id, touch));
        }
        if self.bytes >= self.window_bytes {
            self.tell();
        }
    }

    pub fn append(&mut self, pool: &Pool, bytes: usize) {
        pool.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.add(pool, Touch::Append { bytes: bytes as u64 });
    }

    pub fn read(&mut self, pool: &Pool, bytes: usize) {
        self.add(pool, Touch::Pass { bytes: bytes as u64, write: false });
    }

    pub fn write(&mut self, pool: &Pool, bytes: usize) {
        self.add(pool, Touch::Pass { bytes: bytes as u64, write: true });
    }

    /// Lines of objects of `bytes` bytes each at these addresses: neighbours on one line count once.
    pub fn look_up(&mut self, pool: &Pool, addresses: impl Iterator<Item = u64>, bytes: usize, write: bool) {
        let Some(id) = pool.id else { return };
        let held = pool.bytes.load(Ordering::Relaxed);
        let rows = addresses.size_hint().1.unwrap_or(0);
        let lines = if pool.is_small(held as usize) {
            (rows as u64).min(held.div_ceil(LINE_BYTES as u64))
        } else if rows <= SAMPLE {
            sampled_lines(addresses, bytes)
        } else {
            self.rated_lines(id, addresses, bytes, write)
        };
        self.add(pool, Touch::Lines { lines, write });
    }

    /// As `sampled_lines`, of many.
    fn rated_lines(&mut self, pool: PoolId, addresses: impl Iterator<Item = u64>, bytes: usize, write: bool) -> u64 {
        let rows = addresses.size_hint().1.unwrap_or(0);
        let is_same = |rate: &&mut Rate| (rate.pool, rate.bytes, rate.write) == (pool, bytes, write);
        let known = self.rates.iter_mut().find(is_same);
        if let Some(rate) = &known
            && rate.age < RATED - 1
        {
            let lines = (rate.lines_per_row * rows as f64).round() as u64;
            known.into_iter().for_each(|rate| rate.age += 1);
            return lines;
        }
        let lines = sampled_lines(addresses, bytes);
        let rate = Rate { pool, bytes, write, age: 0, lines_per_row: lines as f64 / rows as f64 };
        match known {
            Some(known) => *known = rate,
            None => self.rates.push(rate),
        }
        lines
    }

    pub fn lines(&mut self, pool: &Pool, lines: u64, write: bool) {
        self.add(pool, Touch::Lines { lines, write });
    }

    pub fn tell(&mut self) {
        if let Some((account, operator)) = &self.meter.account
            && !self.list.is_empty()
        {
            account.charge(*operator, &self.list);
        }
        self.list.clear();
        self.bytes = 0;
    }
}

impl Drop for Touches {
    fn drop(&mut self) {
        self.tell();
    }
}

/// Batches that pass before their memory is looked at again.
const PASSING: usize = 16;

/// What a worker allocates for chunks on their way. Each one's columns are made and freed again, so the next one's lie where they lay.
#[derive(Debug)]
pub struct Way {
    account: Arc<dyn Account>,
    worker: usize,
    batches: usize,
}

impl Way {
    pub fn new(account: Arc<dyn Account>) -> Way {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        Way { account, worker: NEXT.fetch_add(1, Ordering::Relaxed), batches: 0 }
    }

    /// Another chunk has gone all the way.
    pub fn passed(&mut self, heap: &QueryHeap) {
        self.batches += 1;
        // Blocks are logged for one chunk alone.
        match self.batches % PASSING {
            1 => {
                heap.listen(true);
                // What came before may be anything.
                return heap.take_blocks(|_| ());
            }
            2 => heap.listen(false),
            _ => return heap.listen(false),
        }
        let (mut held, mut most) = (0isize, 0isize);
        heap.take_blocks(|event| match event {
            BlockEvent::Allocated(range) => {
                held += range.len() as isize;
                most = most.max(held);
            }
            BlockEvent::Freed(range) | BlockEvent::Moved(range) => held -= range.len() as isize,
            BlockEvent::Unlogged { bytes_allocated } => most += bytes_allocated as isize,
        });
        let batches = self.batches.min(PASSING);
        self.account.pass(self.worker, (most - held.max(0)).max(0) as usize, batches);
    }
}

/// Objects of a chunk that are looked at, to know of all.
const SAMPLE: usize = 64;

/// Lines that objects of `bytes` bytes lie on, each counted when it is not one of the object's before; of many objects, by what each of
/// the first adds to the one before it. Address 0 is no object.
#[inline]
pub fn sampled_lines(addresses: impl Iterator<Item = u64>, bytes: usize) -> u64 {
    let rows = addresses.size_hint().1.unwrap_or(0);
    let line_bytes = LINE_BYTES as u64;
    let (mut first_before, mut end_before, mut lines) = (0, 0, 0);
    let mut of_first = None;
    for address in addresses.take(if rows > SAMPLE { SAMPLE } else { rows }) {
        if address != 0 {
            let (first, end) = (address / line_bytes, (address + bytes.max(1) as u64).div_ceil(line_bytes));
            let known = end.min(end_before).saturating_sub(first.max(first_before));
            lines += end - first - known;
            (first_before, end_before) = (first, end);
        }
        of_first.get_or_insert(lines);
    }
    if rows <= SAMPLE {
        return lines;
    }
    let of_first = of_first.unwrap_or(0);
    of_first + (lines - of_first) * (rows as u64 - 1) / (SAMPLE as u64 - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;

    #[derive(Debug, Default)]
    struct Told {
        pools: Mutex<Vec<bool>>,
        touches: Mutex<Vec<(usize, PoolId, Touch)>>,
        cache: Mutex<Option<tidepool_device::Residency>>,
    }

    impl Account for Told {
        fn pool(&self) -> PoolId {
            self.pools.lock().push(true);
            let mut cache = self.cache.lock();
            cache.get_or_insert_with(|| tidepool_device::Residency::new(1 << 20)).make_pool()
        }

        fn drop_pool(&self, _: PoolId) {
            self.pools.lock().pop();
        }

        fn charge(&self, operator: usize, touches: &[(PoolId, Touch)]) {
            self.touches.lock().extend(touches.iter().map(|(pool, touch)| (operator, *pool, *touch)));
        }

        fn stream(&self, _: u64) {}

        fn pass(&self, _: usize, _: usize, _: usize) {}

        fn window_bytes(&self) -> u64 {
            10_000
        }

        fn small_bytes(&self) -> u64 {
            0
        }
    }

    #[test]
    fn neighbours_on_a_line_count_once() {
        assert_eq!(sampled_lines([64, 72, 120, 128, 64].into_iter(), 8), 3);
        assert_eq!(sampled_lines([64, 104, 144].into_iter(), 40), 2, "the second reaches into the third's line");
        assert_eq!(sampled_lines([0, 0].into_iter(), 8), 0);
        assert_eq!(sampled_lines([64].into_iter(), 200), 4);
    }

    #[test]
    fn many_lines_are_known_by_the_first() {
        let of = |rows: u64, step: u64| sampled_lines((0..rows).map(move |row| 6400 + row * step), 8);
        assert_eq!([of(2048, 64), of(2048, 0), of(64, 128)], [2048, 1, 64]);
        // Eight to a line; the sample is as good as its length.
        assert!((220..=265).contains(&of(2048, 8)), "{}", of(2048, 8));
    }

    #[test]
    fn of_like_chunks_some_are_looked_at() {
        let told = Arc::new(Told::default());
        let meter = Meter::new(told.clone(), 0);
        let pool = meter.pool();
        pool.bytes.store(1 << 30, Ordering::Relaxed);
        let mut touches = meter.touches();
        touches.window_bytes = u64::MAX;
        let looked_at = AtomicUsize::new(0);
        for _ in 0..2 * RATED {
            let addresses =
                (0..2048).map(|row| 6400 + row * 64).inspect(|_| _ = looked_at.fetch_add(1, Ordering::Relaxed));
            touches.look_up(&pool, addresses, 8, false);
        }
        drop(touches);
        assert_eq!(looked_at.into_inner(), 2 * SAMPLE);
        let lines = 2 * RATED as u64 * 2048;
        assert_eq!(*told.touches.lock(), [(0, pool.id.unwrap(), Touch::Lines { lines, write: false })]);
    }

    #[test]
    fn touches_are_told_by_windows_and_at_the_end() {
        let told = Arc::new(Told::default());
        let meter = Meter::new(told.clone(), 3);
        let (first, second) = (meter.pool(), meter.pool());
        let (one, two) = (first.id.unwrap(), second.id.unwrap());
        let mut touches = meter.touches();
        touches.append(&first, 100);
        touches.lines(&second, 2, true);
        touches.append(&first, 50);
        touches.lines(&second, 3, false);
        assert!(told.touches.lock().is_empty());
        touches.read(&first, 20_000);
        let expected = [
            (3, one, Touch::Append { bytes: 150 }),
            (3, two, Touch::Lines { lines: 2, write: true }),
            (3, two, Touch::Lines { lines: 3, write: false }),
            (3, one, Touch::Pass { bytes: 20_000, write: false }),
        ];
        assert_eq!(*told.touches.lock(), expected);
        touches.write(&first, 7);
        drop(touches);
        assert_eq!(told.touches.lock().last(), Some(&(3, one, Touch::Pass { bytes: 7, write: true })));
        drop((first, second));
        assert!(told.pools.lock().is_empty());
    }

    #[test]
    fn nothing_is_counted_for_nobody() {
        let meter = Meter::default();
        let pool = meter.pool();
        let mut touches = meter.touches();
        touches.append(&pool, 1 << 40);
        touches.look_up(&pool, std::iter::repeat_with(|| unreachable!("nobody looks")), 8, false);
        assert!(touches.list.is_empty());
    }
}
