//! What the last-level cache is taken to hold of memory that code works in, and so which of its accesses miss.
//!
//! A model of one cache, least recently used out first, over three kinds of memory:
//!
//! * *Ranges* whose addresses are known, read or written from end to end: arrays. They are followed by the granule, with a bit
//!   for each 64th of it, so that a buffer that the allocator hands out again is found in the cache if it is still there.
//! * *Pools* of which only the size is known, touched at random: hash tables. Of *n* lines, *k* touches at random leave
//!   `n * exp(-k / n)` untouched. Those touched since the oldest granule in the cache was are taken to be in it, and fill it as
//!   granules do. (The window of an LRU cache as its *characteristic time*: Che, Tung, Wang, Hierarchical Web Caching Systems,
//!   2002.)
//!
//! * *Streams*, which come by once: of them nothing is known but how many bytes came when.
//!
//! A line that is read and is not there is fetched. A line that is written has to go back one day: once for each stay in the
//! cache in which it was written, also when the stay is not over. That writes fetch first is left out, as in
//! [`crate::CostModel`]'s runs.
//!
//! *Blocks* are ranges from their allocation until they are freed. How much of one is written, and whether it is read, is open
//! until something tells:
//!
//! * What is *filled* was written up to there. If nothing is seen to read it, it is read when it is freed: it was kept for that.
//! * What is *held* is a table: written in full. Whoever reads it says so by touching a pool.
//! * What is moved to a larger block is read for that.
//!
//! Of other blocks nothing is taken to be used: they are room that was set aside.
//!
//! Nothing is modelled of other statements, of associativity, or of code and stacks.

use hashbrown::HashMap;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

const LINE_BYTES: f64 = 64.0;

/// Units of a granule, a bit each.
const UNITS: u64 = 64;

/// Granules at most in a cache, where they may be as small as pages. A buffer of a batch is a few times larger.
const GRANULES_MAX: u64 = 2048;

const GRANULE_BYTES_MIN: u64 = 4096;

/// Events that a pool remembers apart.
const EVENTS_MAX: usize = 128;

/// What is left untouched of a pool that was touched all over, as a logarithm.
const ALL_TOUCHED: f64 = -50.0;

/// Parts of the cache that touches of a pool are followed by.
const TOUCHES_PER_CACHE: f64 = 16.0;

const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Granule {
    number: u64,
    present: u64,
    dirty: u64,
    touched: u64,
    /// Places of those touched next after and next before.
    newer: u32,
    older: u32,
}

/// Memory of known size, touched at random. Ends with [`Residency::drop_pool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolId(usize);

#[derive(Clone, Debug)]
struct Pool {
    lines: f64,
    /// Touches, oldest first: when, and the logarithm of the share of lines that each left untouched.
    events: VecDeque<(u64, f64)>,
    /// The sum of these logarithms, and what it is one of: kept, as they are asked for all the time.
    untouched_ln: f64,
    untouched: f64,
    resident_bytes: f64,
}

impl Default for Pool {
    fn default() -> Pool {
        Pool { lines: 0.0, events: VecDeque::new(), untouched_ln: 0.0, untouched: 1.0, resident_bytes: 0.0 }
    }
}

impl Pool {
    fn push(&mut self, clock: u64, ln: f64) {
        self.untouched_ln += ln;
        if self.events.len() == EVENTS_MAX
            && let Some((_, oldest)) = self.events.pop_front()
            && let Some((_, next)) = self.events.front_mut()
        {
            *next += oldest;
        }
        self.events.push_back((clock, ln));
    }

    /// Returns how many bytes more are resident.
    fn update(&mut self) -> f64 {
        let before = self.resident_bytes;
        self.untouched = self.untouched_ln.exp();
        self.resident_bytes = self.lines * LINE_BYTES * (1.0 - self.untouched);
        self.resident_bytes - before
    }

    /// Forgets as much of the oldest touches as leaves `bytes` less resident. Returns how many more are.
    fn forget(&mut self, bytes: f64) -> f64 {
        let untouched = 1.0 - (self.resident_bytes - bytes) / (self.lines * LINE_BYTES);
        let wanted_ln = untouched.min(1.0).ln() - self.untouched_ln;
        if let Some((_, ln)) = self.events.front_mut() {
            *ln += wanted_ln;
            self.untouched_ln += wanted_ln;
            if *ln >= 0.0 || ln.is_nan() {
                self.events.pop_front();
                // Anew, so that what was rounded away does not add up.
                self.untouched_ln = self.events.iter().map(|(_, ln)| ln).sum();
            }
        }
        self.update()
    }
}

/// Bytes that have to be fetched (reading), or to go back (writing), because of one touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    /// Where the touched range starts.
    pub address: usize,
    pub bytes: u64,
    pub write: bool,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    end: usize,
    /// What is known to have been written lies before.
    filled_end: usize,
    /// Seen to be read, or not to be asked for.
    is_read: bool,
}

/// The cache, as one statement finds it: empty when it starts.
#[derive(Debug)]
pub struct Residency {
    cache_bytes: u64,
    granule_bytes: u64,
    clock: u64,
    places: HashMap<u64, u32>,
    granules: Vec<Granule>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    units_present: u64,
    pools: Vec<Option<Pool>>,
    /// Resident, of all pools.
    pool_bytes: f64,
    /// Resident of streams, oldest first: when it came, and bytes.
    streams: VecDeque<(u64, f64)>,
    stream_bytes: f64,
    blocks: BTreeMap<usize, Block>,
    misses: Vec<Miss>,
}

impl Residency {
    pub fn new(cache_bytes: u64) -> Residency {
        let granule_bytes = (cache_bytes / GRANULES_MAX).next_power_of_two().max(GRANULE_BYTES_MIN);
        Residency {
            cache_bytes,
            granule_bytes,
            clock: 0,
            places: HashMap::new(),
            granules: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            units_present: 0,
            pools: Vec::new(),
            pool_bytes: 0.0,
            streams: VecDeque::new(),
            stream_bytes: 0.0,
            blocks: BTreeMap::new(),
            misses: Vec::new(),
        }
    }

    /// What touches of ranges missed since the last call.
    pub fn take_misses(&mut self) -> Vec<Miss> {
        std::mem::take(&mut self.misses)
    }

    fn unit_bytes(&self) -> u64 {
        self.granule_bytes / UNITS
    }

    /// So many bytes come by that nobody touches again.
    pub fn stream(&mut self, bytes: u64) {
        let step = (self.cache_bytes as f64 / TOUCHES_PER_CACHE).max(LINE_BYTES);
        let mut left = bytes as f64;
        while left > 0.0 {
            let came = left.min(step);
            left -= came;
            self.clock += 1;
            match self.streams.back_mut() {
                // Nothing came between.
                Some((when, bytes)) if *when + 1 == self.clock && *bytes + came <= step => {
                    (*when, *bytes) = (self.clock, *bytes + came);
                }
                _ => self.streams.push_back((self.clock, came)),
            }
            self.stream_bytes += came;
            self.evict();
        }
    }

    /// Reads a range from end to end.
    pub fn read(&mut self, range: Range<usize>) {
        for block in self.blocks_over(&range) {
            block.is_read = true;
        }
        self.pass(&range, false, 1.0);
    }

    /// Writes a range of no block from end to end.
    pub fn write(&mut self, range: Range<usize>) {
        self.pass(&range, true, 1.0);
    }

    /// A range of blocks has been written, if that is not known yet.
    pub fn fill(&mut self, range: Range<usize>) {
        let mut written = Vec::new();
        for block in self.blocks_over(&range) {
            let end = block.end.min(range.end);
            if end > block.filled_end {
                written.push(block.filled_end..end);
                block.filled_end = end;
            }
        }
        written.into_iter().for_each(|range| self.pass(&range, true, 1.0));
    }

    fn blocks_over(&mut self, range: &Range<usize>) -> impl Iterator<Item = &mut Block> {
        let first = self.blocks.range(..=range.start).next_back().map_or(range.start, |(&start, _)| start);
        let (start, end) = (range.start, range.end.max(first));
        self.blocks.range_mut(first..end).map(|(_, block)| block).filter(move |block| block.end > start)
    }

    pub fn allocate(&mut self, range: Range<usize>) {
        if !range.is_empty() {
            let block = Block { end: range.end, filled_end: range.start, is_read: false };
            self.blocks.insert(range.start, block);
        }
    }

    /// The block at this place, if it is still there and was not filled, is a table.
    pub fn hold(&mut self, start: usize) {
        let Some(block) = self.blocks.get_mut(&start) else { return };
        if block.filled_end == start {
            (block.is_read, block.filled_end) = (true, block.end);
            let range = start..block.end;
            self.pass(&range, true, 1.0);
        }
    }

    /// A block is freed. If nothing was seen to read what was filled of it, that share of it was read now.
    pub fn free(&mut self, range: Range<usize>, share: f64) {
        while let Some((&start, &block)) = self.blocks.range(range.clone()).next() {
            self.blocks.remove(&start);
            if !block.is_read {
                self.pass(&(start..block.filled_end), false, share);
            }
        }
    }

    /// What a block held was moved to a larger one, and the block is freed.
    pub fn move_away(&mut self, range: Range<usize>) {
        while let Some((&start, _)) = self.blocks.range(range.clone()).next() {
            self.blocks.remove(&start);
        }
        self.pass(&range, false, 1.0);
    }

    /// Touches a share of a range, spread over all of it.
    fn pass(&mut self, range: &Range<usize>, write: bool, share: f64) {
        let unit_bytes = self.unit_bytes();
        let (start, end) = (range.start as u64 / unit_bytes, (range.end as u64).div_ceil(unit_bytes));
        let mut missed_units = 0;
        let mut unit = start;
        while unit < end {
            let number = unit / UNITS;
            let until = end.min((number + 1) * UNITS);
            let mut mask = (u64::MAX >> (UNITS - (until - unit))) << (unit % UNITS);
            if share < 1.0 {
                mask &= spread(number, share);
            }
            missed_units += u64::from(self.touch_granule(number, mask, write));
            self.evict();
            unit = until;
        }
        if missed_units > 0 {
            self.misses.push(Miss { address: range.start, bytes: missed_units * unit_bytes, write });
        }
    }

    /// Bits that were not present (reading) or not dirty (writing).
    fn touch_granule(&mut self, number: u64, mask: u64, write: bool) -> u32 {
        self.clock += 1;
        let place = match self.places.get(&number) {
            Some(&place) => {
                self.unlink(place);
                place
            }
            None => {
                let granule = Granule { number, present: 0, dirty: 0, touched: 0, newer: NONE, older: NONE };
                let place = match self.free.pop() {
                    Some(place) => {
                        self.granules[place as usize] = granule;
                        place
                    }
                    None => {
                        self.granules.push(granule);
                        self.granules.len() as u32 - 1
                    }
                };
                self.places.insert(number, place);
                place
            }
        };
        let granule = &mut self.granules[place as usize];
        granule.touched = self.clock;
        let fetched = (mask & !granule.present).count_ones();
        let dirtied = (mask & !granule.dirty).count_ones();
        granule.present |= mask;
        if write {
            granule.dirty |= mask;
        }
        self.units_present += u64::from(fetched);
        self.link_newest(place);
        if write { dirtied } else { fetched }
    }

    fn unlink(&mut self, place: u32) {
        let Granule { newer, older, .. } = self.granules[place as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.granules[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.granules[older as usize].newer = newer,
        }
    }

    fn link_newest(&mut self, place: u32) {
        let before = self.newest;
        let granule = &mut self.granules[place as usize];
        (granule.newer, granule.older) = (NONE, before);
        match before {
            NONE => self.oldest = place,
            before => self.granules[before as usize].newer = place,
        }
        self.newest = place;
    }

    /// What was touched longest ago goes, until the rest fits.
    fn evict(&mut self) {
        loop {
            let over = self.resident_bytes() - self.cache_bytes as f64;
            // Less than a line: a rounding error.
            if over < LINE_BYTES {
                break;
            }
            let granule = (self.oldest != NONE).then(|| self.granules[self.oldest as usize].touched);
            let pools = self.pools.iter_mut().flatten();
            let pool = pools.filter(|pool| !pool.events.is_empty()).min_by_key(|pool| pool.events[0].0);
            if let Some((came, bytes)) = self.streams.front_mut()
                && granule.is_none_or(|touched| *came < touched)
                && pool.as_ref().is_none_or(|pool| *came < pool.events[0].0)
            {
                let gone = over.min(*bytes);
                *bytes -= gone;
                self.stream_bytes -= gone;
                if *bytes <= 0.0 {
                    self.streams.pop_front();
                }
                continue;
            }
            match (granule, pool) {
                (Some(touched), Some(pool)) if pool.events[0].0 < touched => self.pool_bytes += pool.forget(over),
                (Some(_), _) => {
                    let place = self.oldest;
                    self.unlink(place);
                    let granule = self.granules[place as usize];
                    self.units_present -= u64::from(granule.present.count_ones());
                    self.places.remove(&granule.number);
                    self.free.push(place);
                }
                (None, Some(pool)) => self.pool_bytes += pool.forget(over),
                (None, None) => break,
            }
        }
    }

    fn resident_bytes(&self) -> f64 {
        (self.units_present * self.unit_bytes()) as f64 + self.pool_bytes + self.stream_bytes
    }

    /// A pool without lines.
    pub fn make_pool(&mut self) -> PoolId {
        let free = self.pools.iter().position(Option::is_none);
        let place = free.unwrap_or_else(|| {
            self.pools.push(None);
            self.pools.len() - 1
        });
        self.pools[place] = Some(Pool::default());
        PoolId(place)
    }

    /// Its memory is let go.
    pub fn drop_pool(&mut self, pool: PoolId) {
        if let Some(pool) = self.pools.get_mut(pool.0) {
            *pool = None;
        }
        // Anew, so that what was rounded away does not add up.
        self.pool_bytes = self.pools.iter().flatten().map(|pool| pool.resident_bytes).sum();
    }

    /// So many bytes are added to a pool, and filled.
    pub fn grow_pool(&mut self, pool: PoolId, bytes: u64) {
        let lines = self.pools.get(pool.0).and_then(Option::as_ref).map_or(0.0, |pool| pool.lines);
        self.resize_pool(pool, (lines * LINE_BYTES).round() as u64 + bytes);
    }

    /// A pool that grows has been filled where it grew.
    pub fn resize_pool(&mut self, pool: PoolId, bytes: u64) {
        self.clock += 1;
        let clock = self.clock;
        let Some(pool) = self.pools.get_mut(pool.0).and_then(Option::as_mut) else { return };
        let lines = bytes as f64 / LINE_BYTES;
        if lines > pool.lines {
            pool.push(clock, (pool.lines / lines).ln().max(ALL_TOUCHED));
        }
        pool.lines = lines;
        self.pool_bytes += pool.update();
        self.evict();
    }

    /// Touches so many of a pool's bytes once each, from end to end. Returns how many of them are expected to miss.
    pub fn pass_pool(&mut self, pool: PoolId, bytes: u64) -> f64 {
        let step = (self.cache_bytes as f64 / TOUCHES_PER_CACHE).max(LINE_BYTES);
        let mut left = bytes as f64;
        let mut missed = 0.0;
        while left > 0.0 {
            self.clock += 1;
            let clock = self.clock;
            let Some(pool) = self.pools.get_mut(pool.0).and_then(Option::as_mut) else { return missed };
            if pool.lines <= 0.0 {
                return missed;
            }
            let touched = left.min(step).min(pool.lines * LINE_BYTES);
            left -= touched;
            missed += touched * pool.untouched;
            let share_left = 1.0 - touched / (pool.lines * LINE_BYTES);
            pool.push(clock, share_left.ln().max(ALL_TOUCHED));
            self.pool_bytes += pool.update();
            self.evict();
        }
        missed
    }

    /// Touches lines of a pool at random. Returns how many of them are expected to miss.
    pub fn touch_pool(&mut self, pool: PoolId, lines: u64) -> f64 {
        let step = (self.cache_bytes as f64 / LINE_BYTES / TOUCHES_PER_CACHE).max(1.0);
        let mut left = lines as f64;
        let mut missed = 0.0;
        while left > 0.0 {
            let touches = left.min(step);
            left -= touches;
            self.clock += 1;
            let clock = self.clock;
            let Some(pool) = self.pools.get_mut(pool.0).and_then(Option::as_mut) else { return missed };
            if pool.lines <= 0.0 {
                return missed;
            }
            let untouched_ln = -touches / pool.lines;
            // Of the lines that these touches come to, each for the first time, those that are not there.
            missed += pool.lines * -untouched_ln.exp_m1() * pool.untouched;
            pool.push(clock, untouched_ln);
            self.pool_bytes += pool.update();
            self.evict();
        }
        missed
    }
}

/// That share of a granule's bits, others in each granule.
fn spread(number: u64, share: f64) -> u64 {
    let mut bits = 0;
    for bit in 0..UNITS {
        // Multiples of the golden ratio lie evenly between 0 and 1.
        let place = (number.wrapping_mul(UNITS) + bit).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11;
        bits |= u64::from((place as f64) < share * (1u64 << 53) as f64) << bit;
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Residency {
        /// Bytes missed since the last call.
        fn missed(&mut self) -> u64 {
            self.take_misses().iter().map(|miss| miss.bytes).sum()
        }

        fn reading(&mut self, range: Range<usize>) -> u64 {
            self.read(range);
            self.missed()
        }

        /// A value on its way.
        fn using(&mut self, range: Range<usize>) -> u64 {
            self.allocate(range.clone());
            self.fill(range.clone());
            self.free(range, 1.0);
            self.missed()
        }
    }

    const KIB: usize = 1 << 10;
    const MIB: usize = 1 << 20;

    #[track_caller]
    fn assert_near(value: f64, expected: f64, tolerance: f64) {
        assert!((value - expected).abs() <= tolerance * expected.abs() + 1e-9, "{value} is not {expected}");
    }

    #[test]
    fn what_fits_is_fetched_once() {
        let mut cache = Residency::new(MIB as u64);
        assert_eq!(cache.reading(0..MIB), MIB as u64);
        assert_eq!(cache.reading(0..MIB), 0);
    }

    #[test]
    fn what_does_not_fit_comes_and_goes_each_time() {
        let mut cache = Residency::new(MIB as u64);
        for _ in 0..3 {
            assert_eq!(cache.reading(0..3 * MIB / 2), 3 * MIB as u64 / 2);
        }
        // What was read last is there.
        assert_eq!(cache.reading(MIB..3 * MIB / 2), 0);
    }

    #[test]
    fn parts_of_granules_count_for_what_they_are() {
        let mut cache = Residency::new(MIB as u64);
        assert_eq!(cache.reading(4000..4200), 256, "four lines, from 3968 to 4224");
        assert_eq!(cache.reading(4032..4096), 0);
        assert_eq!(cache.reading(0..0), 0);
        // Larger caches have larger units.
        let mut cache = Residency::new(32 * MIB as u64);
        assert_eq!(cache.reading(0..1), 256);
    }

    #[test]
    fn a_buffer_used_again_and_again_stays_and_goes_back_once() {
        let mut cache = Residency::new(MIB as u64);
        let block = 64 * KIB..192 * KIB;
        assert_eq!(cache.using(block.clone()), 128 << 10);
        for _ in 0..10 {
            assert_eq!(cache.using(block.clone()), 0);
        }
        // Pushed out, it is written anew.
        cache.read(MIB..3 * MIB);
        cache.missed();
        assert_eq!(cache.using(block.clone()), 128 << 10);
    }

    #[test]
    fn values_that_are_kept_are_read_when_they_go() {
        let mut cache = Residency::new(MIB as u64);
        let block = 0..64 * KIB;
        cache.allocate(block.clone());
        assert_eq!(cache.missed(), 0, "open how much");
        cache.fill(0..KIB);
        assert_eq!(cache.take_misses(), [Miss { address: 0, bytes: 1 << 10, write: true }]);
        cache.fill(KIB..2 * KIB);
        cache.fill(0..2 * KIB);
        assert_eq!(cache.take_misses(), [Miss { address: KIB, bytes: 1 << 10, write: true }]);
        cache.read(MIB..3 * MIB);
        cache.missed();
        cache.free(block.clone(), 1.0);
        assert_eq!(cache.take_misses(), [Miss { address: 0, bytes: 2 << 10, write: false }]);
        cache.free(block.clone(), 1.0);
        assert_eq!(cache.missed(), 0, "gone");
        // Seen to be read, they are not read again.
        cache.allocate(block.clone());
        cache.fill(block.clone());
        assert_eq!((cache.missed(), cache.reading(block.clone())), (64 << 10, 0));
        cache.read(MIB..3 * MIB);
        cache.missed();
        cache.free(block, 1.0);
        assert_eq!(cache.missed(), 0);
    }

    #[test]
    fn of_values_that_are_sifted_a_share_is_read() {
        let mut cache = Residency::new(MIB as u64);
        cache.allocate(0..3 * MIB);
        cache.fill(0..3 * MIB);
        cache.free(0..3 * MIB, 0.25);
        let misses = cache.take_misses();
        assert_eq!((misses.len(), misses[0].bytes), (2, 3 << 20));
        // Of the first two MiB a quarter. That pushes out half of the third, of which a quarter follows.
        assert_near(misses[1].bytes as f64, 0.64 * MIB as f64, 0.05);
    }

    #[test]
    fn tables_are_written_and_room_set_aside_is_not() {
        let mut cache = Residency::new(MIB as u64);
        cache.allocate(0..64 * KIB);
        cache.allocate(MIB..MIB + 64 * KIB);
        cache.hold(0);
        assert_eq!(cache.take_misses(), [Miss { address: 0, bytes: 64 << 10, write: true }]);
        cache.read(2 * MIB..4 * MIB);
        cache.missed();
        cache.free(0..64 * KIB, 1.0);
        cache.free(MIB..MIB + 64 * KIB, 1.0);
        assert_eq!(cache.missed(), 0);
        // What was held and grows is read to be moved, with what it grew by in place.
        cache.allocate(0..64 * KIB);
        cache.hold(0);
        cache.allocate(64 * KIB..128 * KIB);
        cache.read(2 * MIB..4 * MIB);
        cache.missed();
        cache.move_away(0..128 * KIB);
        assert_eq!(cache.take_misses(), [Miss { address: 0, bytes: 128 << 10, write: false }]);
        cache.free(0..128 * KIB, 1.0);
        assert_eq!(cache.missed(), 0);
    }

    #[test]
    fn a_pool_alone_misses_what_the_cache_lacks() {
        for (pool_bytes, share) in [(MIB / 2, 0.0), (2 * MIB, 0.5), (4 * MIB, 0.75), (64 * MIB, 63.0 / 64.0)] {
            let mut cache = Residency::new(MIB as u64);
            let pool = cache.make_pool();
            cache.resize_pool(pool, pool_bytes as u64);
            for _ in 0..40 {
                cache.touch_pool(pool, 8192);
            }
            let missed: f64 = (0..20).map(|_| cache.touch_pool(pool, 8192)).sum();
            assert_near(missed, share * 20.0 * 8192.0, 0.05);
        }
    }

    #[test]
    fn a_stream_pushes_out_what_is_older_and_nothing_else() {
        let mut cache = Residency::new(MIB as u64);
        let (old, new) = (0..MIB / 4, MIB..5 * MIB / 4);
        cache.reading(old.clone());
        cache.stream(256 << 10);
        cache.reading(new.clone());
        cache.stream(256 << 10);
        assert_eq!([cache.reading(new.clone()), cache.reading(old.clone())], [0, 0], "all of it fits");
        assert!(cache.take_misses().is_empty(), "a stream is charged by whoever reads it");
        // What came before the two was the stream's alone.
        cache.stream(512 << 10);
        assert_eq!([cache.reading(new.clone()), cache.reading(old.clone())], [0, 0]);
        cache.stream(MIB as u64);
        assert_eq!([cache.reading(new), cache.reading(old)], [256 << 10, 256 << 10]);
        let pool = cache.make_pool();
        cache.resize_pool(pool, 256 << 10);
        cache.stream(2 * MIB as u64);
        assert_near(cache.touch_pool(pool, 4096), 4096.0 * (1.0 - (-1f64).exp()), 0.01);
        assert!(cache.resident_bytes() <= MIB as f64 + LINE_BYTES);
    }

    #[test]
    fn a_small_pool_stays_beside_a_stream_and_a_large_one_does_not() {
        let mut cache = Residency::new(MIB as u64);
        let (small, large) = (cache.make_pool(), cache.make_pool());
        cache.resize_pool(small, 64 << 10);
        cache.resize_pool(large, 64 << 20);
        let (mut small_missed, mut large_missed, mut streamed) = (0.0, 0.0, 0);
        for batch in 0..50 {
            let start = (batch + 1) * 16 * MIB;
            streamed += cache.reading(start..start + 256 * KIB);
            small_missed += cache.touch_pool(small, 8192);
            large_missed += cache.touch_pool(large, 2048);
        }
        assert_eq!(streamed, (50 * 256) << 10);
        // The large one had filled the cache.
        assert_near(small_missed, 1024.0, 0.05);
        assert_near(large_missed, 50.0 * 2048.0, 0.02);
    }

    #[test]
    fn a_pass_over_a_pool_misses_what_the_cache_lacks() {
        for (pool_bytes, share) in [(MIB / 2, 0.0), (2 * MIB, 0.5), (16 * MIB, 15.0 / 16.0)] {
            let mut cache = Residency::new(MIB as u64);
            let pool = cache.make_pool();
            cache.resize_pool(pool, pool_bytes as u64);
            let first = cache.pass_pool(pool, pool_bytes as u64 / 4);
            assert_near(first, share * pool_bytes as f64 / 4.0, 0.1);
        }
        let mut cache = Residency::new(MIB as u64);
        let pool = cache.make_pool();
        assert_eq!(cache.pass_pool(pool, 100), 0.0, "it has no lines");
    }

    #[test]
    fn a_pool_that_is_gone_leaves_its_room() {
        let mut cache = Residency::new(MIB as u64);
        let pool = cache.make_pool();
        cache.resize_pool(pool, MIB as u64);
        cache.read(0..MIB / 2);
        cache.drop_pool(pool);
        assert_eq!(cache.touch_pool(pool, 100), 0.0);
        cache.read(0..MIB);
        cache.missed();
        assert_eq!(cache.reading(0..MIB), 0);
        assert_eq!(cache.make_pool(), pool);
    }
}
