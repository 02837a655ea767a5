//! Where everything of a pod stands: words in the coherent area, lines in the other.
//!
//! All hosts compute the same places from the same numbers. The coherent area is small and has a budget: a layout
//! that needs more is refused, so that nothing has to be counted later.

use crate::access::{Line, Lines, WordAt};
use crate::memory::{FRAME_BYTES, Hw};
use crate::words::{HOSTS_MAX, Plain, Standing, Tag, TupleWord, WORKERS_MAX};
use std::ops::Range;
use tidepool_base::{Error, Result, SqlState};
use tidepool_device::LINE_BYTES;
use tidepool_pool::words::{Number, Word};

const WORD_BYTES: u64 = 8;
const WORDS_OF_LINE: u64 = LINE_BYTES as u64 / WORD_BYTES;

/// Head and tail of a ring: a line each.
const WORDS_OF_RING: u64 = 2 * WORDS_OF_LINE;

/// Of a slot: the line of its words, and three that are kept for its intent and its touch list.
const WORDS_OF_SLOT: u64 = 4 * WORDS_OF_LINE;

/// Of a tuple: the word that refers to its block, and how often it was put to use.
const WORDS_OF_TUPLE: u64 = 2;

/// Of a host: the line of its horizon.
const WORDS_OF_HOST: u64 = WORDS_OF_LINE;

/// A host of the pod: its place in the pool's table of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u8);

/// The sizes of a pod's areas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    pub hosts: u8,
    /// Transactions that a host can have under way.
    pub workers: u16,
    /// Of all hosts: each is the home of as many.
    pub tuples: u32,
    /// Of each ring.
    pub ring_lines: u32,
    /// Of each block.
    pub block_lines: u32,
    /// Of each host.
    pub blocks: u32,
}

impl Layout {
    /// Checks the numbers, and that they are within the budget of coherent bytes.
    pub fn check(self, coherent_bytes_max: u64) -> Result<Layout> {
        let is_wrong = self.hosts < 2
            || usize::from(self.hosts) > HOSTS_MAX
            || usize::from(self.workers) > WORKERS_MAX
            || self.ring_lines < 4
            || self.block_lines == 0
            || u64::from(self.blocks) * u64::from(self.block_lines) > u64::from(u32::MAX)
            || self.block_lines as usize * LINE_BYTES <= FRAME_BYTES;
        if is_wrong {
            return Err(Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!(
                    "a pod cannot have {} hosts with {} workers, rings of {} lines and blocks of {} lines",
                    self.hosts, self.workers, self.ring_lines, self.block_lines
                ),
            )
            .with_hint("A pod has 2 to 16 hosts of at most 2048 workers, and rings of at least 4 lines."));
        }
        let needed = self.coherent_bytes();
        if needed > coherent_bytes_max || needed / WORD_BYTES > u64::from(u32::MAX) {
            return Err(Error::new(
                SqlState::DISK_FULL,
                format!("the pod needs {needed} bytes of coherent memory and may use {coherent_bytes_max}"),
            )
            .with_hint("Choose fewer tuples or workers, or a larger coherent area."));
        }
        Ok(self)
    }

    fn rings(self) -> u64 {
        u64::from(self.hosts) * (u64::from(self.hosts) - 1)
    }

    fn slots_at(self) -> u64 {
        self.rings() * WORDS_OF_RING
    }

    fn hosts_at(self) -> u64 {
        self.slots_at() + u64::from(self.hosts) * u64::from(self.workers) * WORDS_OF_SLOT
    }

    fn tuples_at(self) -> u64 {
        self.hosts_at() + u64::from(self.hosts) * WORDS_OF_HOST
    }

    /// Bytes of the coherent area.
    pub fn coherent_bytes(self) -> u64 {
        let words = self.tuples_at() + u64::from(self.tuples) * WORDS_OF_TUPLE;
        (words * WORD_BYTES).next_multiple_of(LINE_BYTES as u64)
    }

    /// Lines of the other area.
    pub fn lines(self) -> u64 {
        self.blocks_at() + u64::from(self.hosts) * u64::from(self.blocks) * u64::from(self.block_lines)
    }

    fn blocks_at(self) -> u64 {
        self.rings() * u64::from(self.ring_lines)
    }

    pub fn all_hosts(self) -> impl Iterator<Item = HostId> {
        (0..self.hosts).map(HostId)
    }

    fn word<W: Word>(at: u64) -> Hw<W> {
        // Compared by `check`.
        Hw::new(WordAt(at as u32))
    }

    /// # Panics
    /// Where a host sends to itself, or there is no such host.
    fn ring(self, from: HostId, to: HostId) -> u64 {
        assert!(from != to && from.0 < self.hosts && to.0 < self.hosts, "no ring leads from {from:?} to {to:?}");
        u64::from(from.0) * (u64::from(self.hosts) - 1) + u64::from(to.0) - u64::from(to.0 > from.0)
    }

    /// How far the sender of a ring has come, in lines.
    pub fn ring_tail(self, from: HostId, to: HostId) -> Hw<Number> {
        Layout::word(self.ring(from, to) * WORDS_OF_RING)
    }

    /// How far its receiver has come.
    pub fn ring_head(self, from: HostId, to: HostId) -> Hw<Number> {
        Layout::word(self.ring(from, to) * WORDS_OF_RING + WORDS_OF_LINE)
    }

    pub fn ring_bytes(self, from: HostId, to: HostId) -> Lines {
        Lines::new(self.ring(from, to) * u64::from(self.ring_lines), self.ring_lines)
    }

    fn slot(self, host: HostId, worker: u16) -> u64 {
        assert!(host.0 < self.hosts && worker < self.workers, "{host:?} has no worker {worker}");
        let slot = u64::from(host.0) * u64::from(self.workers) + u64::from(worker);
        self.slots_at() + slot * WORDS_OF_SLOT
    }

    /// Which transaction of a slot is under way.
    pub fn sequence(self, host: HostId, worker: u16) -> Hw<Plain> {
        Layout::word(self.slot(host, worker))
    }

    /// What it does.
    pub fn standing(self, host: HostId, worker: u16) -> Hw<Standing> {
        Layout::word(self.slot(host, worker) + 1)
    }

    /// The least snapshot that the slot's worker reads under.
    pub fn snapshot(self, host: HostId, worker: u16) -> Hw<Plain> {
        Layout::word(self.slot(host, worker) + 2)
    }

    /// The least snapshot that is used apart from the slot's worker.
    pub fn held(self, host: HostId, worker: u16) -> Hw<Plain> {
        Layout::word(self.slot(host, worker) + 3)
    }

    /// No snapshot of the host below this is in use, nor will be.
    pub fn horizon(self, host: HostId) -> Hw<Plain> {
        assert!(host.0 < self.hosts, "the pod has no {host:?}");
        Layout::word(self.hosts_at() + u64::from(host.0) * WORDS_OF_HOST)
    }

    /// The words of the transaction that a tag names. `None` where there is no such slot.
    pub fn slot_of(self, tag: Tag) -> Option<(Hw<Plain>, Hw<Standing>)> {
        let (host, worker) = (tag.host(), tag.worker());
        (host.0 < self.hosts && worker < self.workers)
            .then(|| (self.sequence(host, worker), self.standing(host, worker)))
    }

    /// # Panics
    /// Where there is no such tuple.
    pub fn tuple(self, tuple: u32) -> Hw<TupleWord> {
        assert!(tuple < self.tuples, "the pod has {} tuples, and no tuple {tuple}", self.tuples);
        Layout::word(self.tuples_at() + u64::from(tuple) * WORDS_OF_TUPLE)
    }

    /// How often a tuple was put to use.
    pub fn generation(self, tuple: u32) -> Hw<Plain> {
        assert!(tuple < self.tuples, "the pod has {} tuples, and no tuple {tuple}", self.tuples);
        Layout::word(self.tuples_at() + u64::from(tuple) * WORDS_OF_TUPLE + 1)
    }

    fn tuples_each(self) -> u32 {
        self.tuples.div_ceil(u32::from(self.hosts))
    }

    /// The tuples that a host puts rows in.
    pub fn tuples_of(self, home: HostId) -> Range<u32> {
        let first = |host: u8| (u32::from(host) * self.tuples_each()).min(self.tuples);
        first(home.0)..first(home.0 + 1)
    }

    /// The host that puts rows in a tuple.
    pub fn home(self, tuple: u32) -> HostId {
        HostId((tuple / self.tuples_each()) as u8)
    }

    /// The host whose block stands there.
    pub fn owner(self, first: Line) -> Option<HostId> {
        let each = u64::from(self.blocks) * u64::from(self.block_lines);
        self.has_block(first).then(|| HostId(((first.0 - self.blocks_at()) / each) as u8))
    }

    /// The lines of a host's blocks.
    pub fn blocks(self, host: HostId) -> Lines {
        assert!(host.0 < self.hosts, "the pod has no {host:?}");
        let count = self.blocks * self.block_lines;
        Lines::new(self.blocks_at() + u64::from(host.0) * u64::from(count), count)
    }

    /// Whether a block can stand there.
    pub fn has_block(self, first: Line) -> bool {
        first.0 >= self.blocks_at()
            && first.0 < self.lines()
            && (first.0 - self.blocks_at()).is_multiple_of(u64::from(self.block_lines))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout { hosts: 4, workers: 3, tuples: 100, ring_lines: 8, block_lines: 2, blocks: 5 };

    #[test]
    fn no_two_things_stand_in_one_place() {
        let mut words = Vec::new();
        let mut lines = Vec::new();
        for from in LAYOUT.all_hosts() {
            for to in LAYOUT.all_hosts().filter(|to| *to != from) {
                words.extend([LAYOUT.ring_tail(from, to).at(), LAYOUT.ring_head(from, to).at()]);
                lines.extend(LAYOUT.ring_bytes(from, to).each());
            }
            for worker in 0..LAYOUT.workers {
                words.extend([LAYOUT.sequence(from, worker).at(), LAYOUT.standing(from, worker).at()]);
                words.extend([LAYOUT.snapshot(from, worker).at(), LAYOUT.held(from, worker).at()]);
            }
            words.push(LAYOUT.horizon(from).at());
            lines.extend(LAYOUT.blocks(from).each());
        }
        words.extend((0..LAYOUT.tuples).flat_map(|tuple| [LAYOUT.tuple(tuple).at(), LAYOUT.generation(tuple).at()]));
        let (word_count, line_count) = (words.len(), lines.len());
        words.sort();
        words.dedup();
        lines.sort();
        lines.dedup();
        assert_eq!((words.len(), lines.len()), (word_count, line_count));
        assert!(words.iter().all(|word| u64::from(word.0) * WORD_BYTES < LAYOUT.coherent_bytes()));
        assert_eq!(lines.last(), Some(&Line(LAYOUT.lines() - 1)), "and nothing is wasted");
    }

    #[test]
    fn tuples_and_blocks_have_one_host_each() {
        let layout = Layout { tuples: 101, ..LAYOUT };
        let mut next = 0;
        for host in layout.all_hosts() {
            let tuples = layout.tuples_of(host);
            assert_eq!(tuples.start, next);
            assert!(tuples.clone().all(|tuple| layout.home(tuple) == host));
            next = tuples.end;
            let blocks = layout.blocks(host);
            let firsts = blocks.each().step_by(layout.block_lines as usize);
            assert!(firsts.into_iter().all(|first| layout.owner(first) == Some(host)));
            assert_eq!(layout.owner(Line(blocks.first.0 + 1)), None, "in the middle of a block");
        }
        assert_eq!(next, layout.tuples);
    }

    #[test]
    fn what_is_beyond_the_budget_is_refused() {
        let needed = LAYOUT.coherent_bytes();
        assert_eq!(LAYOUT.check(needed).unwrap(), LAYOUT);
        let error = LAYOUT.check(needed - 1).unwrap_err();
        assert_eq!(error.code(), SqlState::DISK_FULL);
        assert!(error.to_string().contains(&needed.to_string()), "{error}");
        assert!(Layout { hosts: 17, ..LAYOUT }.check(u64::MAX).is_err());
        assert!(Layout { ring_lines: 3, ..LAYOUT }.check(u64::MAX).is_err());
        assert!(Layout { blocks: u32::MAX, ..LAYOUT }.check(u64::MAX).is_err(), "more lines than have numbers");
    }
}
