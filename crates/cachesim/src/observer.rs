//! Counting by address range, between two marks of the program that is watched.

use crate::cache::{Cache, LINE_BYTES};
use crate::trace::Access;
use std::collections::BTreeMap;

const FIRST_LEVEL_BYTES: u64 = 32 << 10;
const FIRST_LEVEL_WAYS: usize = 8;
const LAST_LEVEL_WAYS: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    pub name: String,
    pub start: u64,
    pub end: u64,
}

/// What the program says of itself before it starts, as lines of text:
///
/// ```text
/// begin ADDRESS         a store there starts an interval
/// end ADDRESS           a store there ends it
/// range NAME START END  addresses to count, the end not among them
/// ```
///
/// Numbers are hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    pub begin: u64,
    pub end: u64,
    pub ranges: Vec<Range>,
}

impl Setup {
    pub fn parse(text: &str) -> Result<Setup, String> {
        let number = |text: &str| u64::from_str_radix(text, 16).map_err(|_| format!("not a number: {text}"));
        let (mut begin, mut end, mut ranges) = (None, None, Vec::new());
        for line in text.lines() {
            match line.split_ascii_whitespace().collect::<Vec<_>>().as_slice() {
                [] => {}
                ["begin", address] => begin = Some(number(address)?),
                ["end", address] => end = Some(number(address)?),
                ["range", name, start, end] => {
                    ranges.push(Range { name: name.to_string(), start: number(start)?, end: number(end)? });
                }
                _ => return Err(format!("not understood: {line}")),
            }
        }
        match (begin, end) {
            (Some(begin), Some(end)) => Ok(Setup { begin, end, ranges }),
            _ => Err("begin and end are needed".to_owned()),
        }
    }
}

/// Of one range in one interval. Lines are of 64 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub loads: u64,
    pub stores: u64,
    /// Lines fetched for a load, and for a store.
    pub load_misses: u64,
    pub store_misses: u64,
    /// Dirty lines that the cache gave back, those included that it still held at the end.
    pub written_back: u64,
    /// Those of them that it still held.
    pub left_dirty: u64,
}

/// What happened between two marks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    /// By name of range; `other` is all the rest.
    pub ranges: BTreeMap<String, Counts>,
}

#[derive(Debug)]
pub struct Observer {
    setup: Setup,
    first: Cache,
    last: Cache,
    counts: Vec<Counts>,
    open: bool,
    intervals: Vec<Interval>,
}

impl Observer {
    pub fn new(setup: Setup, last_level_cache_bytes: u64) -> Observer {
        let counts = vec![Counts::default(); setup.ranges.len() + 1];
        Observer {
            setup,
            first: Cache::new(FIRST_LEVEL_BYTES, FIRST_LEVEL_WAYS),
            last: Cache::new(last_level_cache_bytes, LAST_LEVEL_WAYS),
            counts,
            open: false,
            intervals: Vec::new(),
        }
    }

    pub fn access(&mut self, access: Access) {
        if access.store && access.address == self.setup.begin {
            // Cold, as an account of what a statement fetches has to be.
            self.first.flush();
            self.last.flush();
            self.counts.fill(Counts::default());
            self.open = true;
            return;
        }
        if access.store && access.address == self.setup.end {
            if std::mem::take(&mut self.open) {
                self.close();
            }
            return;
        }
        if !self.open {
            return;
        }
        let first = access.address / LINE_BYTES;
        let last = access.address.saturating_add(access.size - 1) / LINE_BYTES;
        for line in first..=last {
            let counts = &mut self.counts[place(&self.setup.ranges, line)];
            counts.loads += u64::from(access.load);
            counts.stores += u64::from(access.store);
            self.line(line, access.load, access.store);
        }
    }

    fn line(&mut self, line: u64, load: bool, store: bool) {
        if self.first.touch(line, store) {
            return;
        }
        if !self.last.touch(line, false) {
            let counts = &mut self.counts[place(&self.setup.ranges, line)];
            if load {
                counts.load_misses += 1;
            } else {
                counts.store_misses += 1;
            }
            if let Some(evicted) = self.last.insert(line, false) {
                // The first level holds nothing that the last does not, and knows what was written since.
                let dirty = self.first.remove(evicted.line) || evicted.dirty;
                self.counts[place(&self.setup.ranges, evicted.line)].written_back += u64::from(dirty);
            }
        }
        if let Some(evicted) = self.first.insert(line, store)
            && evicted.dirty
        {
            self.last.touch(evicted.line, true);
        }
    }

    fn close(&mut self) {
        for line in self.first.flush() {
            self.last.touch(line, true);
        }
        for line in self.last.flush() {
            let counts = &mut self.counts[place(&self.setup.ranges, line)];
            counts.written_back += 1;
            counts.left_dirty += 1;
        }
        let names = self.setup.ranges.iter().map(|range| range.name.clone()).chain(["other".to_owned()]);
        self.intervals.push(Interval { ranges: names.zip(self.counts.iter().copied()).collect() });
    }

    /// Those that have ended.
    pub fn intervals(&self) -> &[Interval] {
        &self.intervals
    }
}

/// The range that a line is of; after the last, the rest.
fn place(ranges: &[Range], line: u64) -> usize {
    let address = line * LINE_BYTES;
    ranges.iter().position(|range| (range.start..range.end).contains(&address)).unwrap_or(ranges.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKS: &str = "begin 10\nend 50\nrange main 100000 200000\nrange heap 200000 900000\n";

    fn load(address: u64) -> Access {
        Access { address, size: 8, load: true, store: false }
    }

    fn store(address: u64) -> Access {
        Access { address, size: 8, load: false, store: true }
    }

    fn observe(last_level_cache_bytes: u64, accesses: impl IntoIterator<Item = Access>) -> Vec<Interval> {
        let mut observer = Observer::new(Setup::parse(MARKS).unwrap(), last_level_cache_bytes);
        accesses.into_iter().for_each(|access| observer.access(access));
        observer.intervals().to_vec()
    }

    #[test]
    fn a_scan_fetches_each_line_once() {
        let scan = (0..1000).map(|word| load(0x100000 + word * 8));
        let before = (0..500).map(|word| load(0x100000 + word * 8));
        let intervals = observe(1 << 20, before.chain([store(0x10)]).chain(scan).chain([store(0x50)]));
        let main = Counts { loads: 1000, load_misses: 125, ..Counts::default() };
        assert_eq!(intervals.len(), 1);
        assert_eq!(intervals[0].ranges["main"], main);
        assert_eq!(intervals[0].ranges["heap"], Counts::default());
    }

    #[test]
    fn what_fits_stays_and_what_does_not_comes_again() {
        let twice = |lines: u64| {
            let pass = move || (0..lines).map(|line| load(0x200000 + line * 64));
            observe(1 << 20, [store(0x10)].into_iter().chain(pass()).chain(pass()).chain([store(0x50)]))
        };
        assert_eq!(twice(1 << 14)[0].ranges["heap"].load_misses, 1 << 14);
        // One and a half times the cache, in a circle: the line that is wanted next is always the one that just went.
        assert_eq!(twice(3 << 13)[0].ranges["heap"].load_misses, 3 << 14);
    }

    #[test]
    fn written_lines_come_back_once_each() {
        let writes = (0..4096u64).map(|word| store(0x200000 + word * 8));
        let intervals = observe(1 << 14, [store(0x10)].into_iter().chain(writes).chain([store(0x50)]));
        let heap = intervals[0].ranges["heap"];
        assert_eq!((heap.store_misses, heap.written_back, heap.load_misses), (512, 512, 0));
        // The cache has room for 256 lines.
        assert_eq!(heap.left_dirty, 256);
    }

    #[test]
    fn accesses_over_two_lines_count_for_both() {
        let intervals = observe(1 << 20, [store(0x10), load(0x10003c), store(0x50), load(0x100000), store(0x50)]);
        assert_eq!(intervals.len(), 1);
        assert_eq!(intervals[0].ranges["main"].load_misses, 2);
    }

    #[test]
    fn setups_are_checked() {
        assert!(Setup::parse("begin 1").is_err());
        assert!(Setup::parse("begin 1\nend x").is_err());
        assert!(Setup::parse("begin 1\nend 2\nrange a 1").is_err());
    }
}
