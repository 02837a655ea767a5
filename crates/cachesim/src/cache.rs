//! A set-associative cache of line numbers.

pub const LINE_BYTES: u64 = 64;

/// Of a line in the cache, beside its number.
const DIRTY: u64 = 1 << 63;

/// No line has this number: addresses have 64 bits and lines 58.
const EMPTY: u64 = u64::MAX;

/// Each set is kept in order of use, the latest first.
#[derive(Debug)]
pub struct Cache {
    ways: usize,
    sets: u64,
    lines: Vec<u64>,
}

/// A line that had to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evicted {
    pub line: u64,
    pub dirty: bool,
}

impl Cache {
    /// `bytes` is rounded down to whole sets, at least one.
    pub fn new(bytes: u64, ways: usize) -> Cache {
        let sets = (bytes / LINE_BYTES / ways as u64).max(1);
        Cache { ways, sets, lines: vec![EMPTY; sets as usize * ways] }
    }

    fn set(&mut self, line: u64) -> &mut [u64] {
        let start = (line % self.sets) as usize * self.ways;
        &mut self.lines[start..start + self.ways]
    }

    /// Makes the line the latest of its set. True when it was there; it becomes dirty with `write`.
    pub fn touch(&mut self, line: u64, write: bool) -> bool {
        let set = self.set(line);
        let Some(place) = set.iter().position(|held| *held != EMPTY && *held & !DIRTY == line) else { return false };
        set[..=place].rotate_right(1);
        if write {
            set[0] |= DIRTY;
        }
        true
    }

    /// Puts a line in that is not there.
    pub fn insert(&mut self, line: u64, write: bool) -> Option<Evicted> {
        let set = self.set(line);
        set.rotate_right(1);
        let last = std::mem::replace(&mut set[0], if write { line | DIRTY } else { line });
        (last != EMPTY).then_some(Evicted { line: last & !DIRTY, dirty: last & DIRTY != 0 })
    }

    /// True when the line was there and dirty.
    pub fn remove(&mut self, line: u64) -> bool {
        let set = self.set(line);
        let Some(place) = set.iter().position(|held| *held != EMPTY && *held & !DIRTY == line) else { return false };
        let dirty = set[place] & DIRTY != 0;
        set[place..].rotate_left(1);
        let end = set.len() - 1;
        set[end] = EMPTY;
        dirty
    }

    /// Empties the cache; the dirty lines.
    pub fn flush(&mut self) -> Vec<u64> {
        let dirty = self.lines.iter().filter(|held| **held != EMPTY && **held & DIRTY != 0).map(|held| held & !DIRTY);
        let dirty = dirty.collect();
        self.lines.fill(EMPTY);
        dirty
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_line_goes_first() {
        let mut cache = Cache::new(2 * LINE_BYTES, 2);
        assert!(!cache.touch(1, false));
        assert_eq!(cache.insert(1, false), None);
        assert_eq!(cache.insert(2, true), None);
        assert!(cache.touch(1, false));
        assert_eq!(cache.insert(3, false), Some(Evicted { line: 2, dirty: true }));
        assert!(cache.touch(1, true));
        assert_eq!(cache.insert(4, false), Some(Evicted { line: 3, dirty: false }));
        assert_eq!(cache.flush(), [1]);
        assert!(!cache.touch(1, false));
    }

    #[test]
    fn sets_are_apart() {
        let mut cache = Cache::new(4 * LINE_BYTES, 1);
        for line in 0..4 {
            assert_eq!(cache.insert(line, false), None);
        }
        assert_eq!(cache.insert(5, false), Some(Evicted { line: 1, dirty: false }));
        assert!(!cache.remove(0));
        assert_eq!(cache.insert(8, true), None);
        assert!(cache.remove(8));
    }
}
