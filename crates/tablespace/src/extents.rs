//! Which pages of a tablespace are taken, and which are backed by memory.
//!
//! Three bits a page: *open* (it may be taken when nobody owns it), *used* (somebody owns it) and *touched* (it may be
//! backed by memory). A page is *free* when it is open and not used. Above stands a binary tree over chunks of 512 pages;
//! each node knows the longest run of free pages below it and the runs at its two ends, so that the lowest run of a given
//! length is found in O(log n), and a change costs one chunk's bits and O(log n).
//!
//! A page that is closed while it is used stays its owner's, and is not free when it is given back. All pages start closed:
//! books for far more pages than there are cost nothing, as what was never open is never written.
//!
//! The lowest run that fits is taken, but for alignment: memory is then reused before new memory is touched (a first touch costs
//! microseconds), and the high end stays free for whoever needs much at once or gives it back.
//!
//! Nothing here allocates after `new`.

use crate::storage::{SystemArray, Zeroable};
use std::ops::Range;
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_device::stop;
use tidepool_device::{HUGE_PAGE_BYTES, PAGE_BYTES};

/// Pages of a chunk: one huge page.
pub(crate) const CHUNK_PAGES: usize = HUGE_PAGE_BYTES / PAGE_BYTES;
const CHUNK_WORDS: usize = CHUNK_PAGES / 64;

/// Runs of free pages. Page counts fit u32 (`new` refuses more), which halves the tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Runs {
    prefix: u32,
    suffix: u32,
    longest: u32,
}

// SAFETY: integers; all zero means no free page.
unsafe impl Zeroable for Runs {}

#[derive(Debug)]
pub(crate) struct Extents {
    /// That there are books for.
    pages: usize,
    /// One past the highest page that was opened and not cut off.
    end: usize,
    open: SystemArray<u64>,
    used: SystemArray<u64>,
    touched: SystemArray<u64>,
    /// Node 1 is the root, node `n` has children `2n` and `2n + 1`; chunk `c` is node `chunks + c`.
    tree: SystemArray<Runs>,
    /// A power of two. Chunks past the end have no free page.
    chunks: usize,
    open_pages: usize,
    used_pages: usize,
    free_pages: usize,
    touched_pages: usize,
}

impl Extents {
    /// Books for `pages`, all of them closed.
    pub fn new(pages: usize) -> Result<Extents> {
        if pages == 0 || u32::try_from(pages).is_err() {
            return Err(Error::new(
                SqlState::PROGRAM_LIMIT_EXCEEDED,
                format!("a tablespace of {} is not possible", ByteSize((pages * PAGE_BYTES) as u64)),
            )
            .with_detail("A tablespace holds from 4 kB to 16 TB."));
        }
        let chunks_real = pages.div_ceil(CHUNK_PAGES);
        let chunks = chunks_real.next_power_of_two();
        Ok(Extents {
            pages,
            end: 0,
            open: SystemArray::zeroed(chunks_real * CHUNK_WORDS)?,
            used: SystemArray::zeroed(chunks_real * CHUNK_WORDS)?,
            touched: SystemArray::zeroed(chunks_real * CHUNK_WORDS)?,
            tree: SystemArray::zeroed(2 * chunks)?,
            chunks,
            open_pages: 0,
            used_pages: 0,
            free_pages: 0,
            touched_pages: 0,
        })
    }

    /// Lets pages be taken. They were closed.
    pub fn open(&mut self, run: Range<usize>) {
        debug_assert!(run.end <= self.pages && count_bits(&self.open, run.clone()) == 0);
        self.open_pages += run.len();
        self.free_pages += run.len() - count_bits(&self.used, run.clone());
        self.end = self.end.max(run.end);
        set_bits(&mut self.open, run.clone(), true);
        self.update_tree(run);
    }

    /// Keeps pages from being taken. They were open.
    pub fn close(&mut self, run: Range<usize>) {
        debug_assert!(count_bits(&self.open, run.clone()) == run.len());
        self.open_pages -= run.len();
        self.free_pages -= run.len() - count_bits(&self.used, run.clone());
        set_bits(&mut self.open, run.clone(), false);
        self.update_tree(run);
    }

    /// Keeps those pages of a run from being taken that are open.
    pub fn close_open(&mut self, run: Range<usize>) {
        let open = count_bits(&self.open, run.clone());
        if open == 0 {
            return;
        }
        self.open_pages -= open;
        self.free_pages -= self.free_in(run.clone());
        set_bits(&mut self.open, run.clone(), false);
        self.update_tree(run);
    }

    /// Pages of a run that can be taken.
    pub fn free_in(&self, run: Range<usize>) -> usize {
        masks(run).map(|(word, mask)| (self.open[word] & !self.used[word] & mask).count_ones() as usize).sum()
    }

    /// Says that there is nothing from page `end` on: no page there is open, used or touched.
    pub fn cut(&mut self, end: usize) {
        debug_assert!(count_bits(&self.open, end..self.end.max(end)) == 0);
        debug_assert!(count_bits(&self.used, end..self.end.max(end)) == 0);
        self.end = self.end.min(end);
    }

    /// Of the pages that are closed.
    pub fn closed_in(&self, run: Range<usize>) -> usize {
        run.len() - count_bits(&self.open, run)
    }

    pub fn used_in(&self, run: Range<usize>) -> usize {
        count_bits(&self.used, run)
    }

    /// Pages that are not closed.
    pub fn open_pages(&self) -> usize {
        self.open_pages
    }

    pub fn free_pages(&self) -> usize {
        self.free_pages
    }

    pub fn used_pages(&self) -> usize {
        self.used_pages
    }

    pub fn touched_pages(&self) -> usize {
        self.touched_pages
    }

    pub fn longest_free_run(&self) -> usize {
        self.tree[1].longest as usize
    }

    /// Takes the lowest run of `count` pages whose first page is a multiple of `alignment` (a power of two), counting from
    /// `origin` pages below page 0. Its touched bits are left as they are.
    pub fn take(&mut self, count: usize, alignment: usize, origin: usize) -> Option<Range<usize>> {
        self.take_or_look(count, alignment, origin, true)
    }

    /// As `take`, where such a run is found soon: for an alignment that can be done without.
    pub fn take_easily(&mut self, count: usize, alignment: usize, origin: usize) -> Option<Range<usize>> {
        self.take_or_look(count, alignment, origin, false)
    }

    fn take_or_look(&mut self, count: usize, alignment: usize, origin: usize, looks: bool) -> Option<Range<usize>> {
        debug_assert!(count > 0 && alignment.is_power_of_two());
        let align_up = |page: usize| (page + origin).next_multiple_of(alignment) - origin;
        let mut start = self.lowest_run(count)?;
        if align_up(start) != start {
            start = match self.lowest_run(count.checked_add(alignment - 1)?) {
                Some(run) => align_up(run),
                None if !looks => self.whole_chunks(start, count, alignment, origin)?,
                // The tree knows lengths only. Rather than fail while there is room, look at every place.
                None => (0..)
                    .map(|step| align_up(0) + step * alignment)
                    .take_while(|page| page + count <= self.end)
                    .find(|page| self.is_free(*page..page + count))?,
            };
        }
        let run = start..start + count;
        self.mark(run.clone(), true);
        Some(run)
    }

    /// The first of `count` pages that are some of the next chunks, wholly.
    fn whole_chunks(&self, from: usize, count: usize, alignment: usize, origin: usize) -> Option<usize> {
        const LOOKED_AT: usize = 4096;
        if alignment != CHUNK_PAGES || origin != 0 || !count.is_multiple_of(CHUNK_PAGES) {
            return None;
        }
        let (wanted, first) = (count / CHUNK_PAGES, from.div_ceil(CHUNK_PAGES));
        let mut found = 0;
        for chunk in first..(self.end / CHUNK_PAGES).min(first + LOOKED_AT) {
            let is_free = self.tree[self.chunks + chunk].longest as usize == CHUNK_PAGES;
            found = if is_free { found + 1 } else { 0 };
            if found == wanted {
                return Some((chunk + 1 - wanted) * CHUNK_PAGES);
            }
        }
        None
    }

    /// Takes the first run of free pages from page `from` on, at most `count_max` of them.
    pub fn take_free_from(&mut self, from: usize, count_max: usize) -> Option<Range<usize>> {
        let free = |page: usize| self.open[page / 64] & !self.used[page / 64] & 1 << (page % 64) != 0;
        let mut start = from;
        while start < self.end && !free(start) {
            let rest = (self.open[start / 64] & !self.used[start / 64]) >> (start % 64);
            start = if rest == 0 { (start / 64 + 1) * 64 } else { start + rest.trailing_zeros() as usize };
        }
        if start >= self.end {
            return None;
        }
        let most = self.end.min(start.saturating_add(count_max));
        let mut end = start + 1;
        while end < most && free(end) {
            let word = self.open[end / 64] & !self.used[end / 64];
            end = if end.is_multiple_of(64) && word == u64::MAX { end + 64 } else { end + 1 };
        }
        let run = start..end.min(most);
        self.mark(run.clone(), true);
        Some(run)
    }

    /// Takes these pages if all of them are free.
    pub fn take_at(&mut self, run: Range<usize>) -> bool {
        let free = run.end <= self.end && self.is_free(run.clone());
        if free {
            self.mark(run, true);
        }
        free
    }

    /// Gives pages back that `take` gave, in whole or in part. Ends the process when a page of the run is not used: its
    /// owner's books and these disagree, and going on would hand memory out twice.
    pub fn give_back(&mut self, run: Range<usize>) {
        if !self.is_used(&run) {
            stop(format_args!(
                "pages {} to {} of a tablespace are given back, but are not all in use",
                run.start, run.end
            ));
        }
        self.mark(run, false);
    }

    /// Whether `run` is a run of pages all of which are in use.
    fn is_used(&self, run: &Range<usize>) -> bool {
        run.start < run.end && run.end <= self.pages && count_bits(&self.used, run.clone()) == run.len()
    }

    /// Pages of `run` that were touched before.
    pub fn touched_in(&self, run: Range<usize>) -> usize {
        count_bits(&self.touched, run)
    }

    pub fn set_touched(&mut self, run: Range<usize>, touched: bool) {
        let before = count_bits(&self.touched, run.clone());
        self.touched_pages -= before;
        if touched {
            self.touched_pages += run.len();
        }
        set_bits(&mut self.touched, run, touched);
    }

    /// The chunks that `run` lies in, as pages.
    pub fn chunks_around(&self, run: &Range<usize>) -> Range<usize> {
        run.start / CHUNK_PAGES * CHUNK_PAGES..run.end.next_multiple_of(CHUNK_PAGES).min(self.end)
    }

    /// Takes a run of free touched pages that ends at or below page `below`, from the top, to be given back to the system.
    /// `whole_chunks`: only chunks that are wholly free (as one run of at most `count_max` pages and at least one chunk).
    pub fn take_touched_below(&mut self, below: usize, whole_chunks: bool, count_max: usize) -> Option<Range<usize>> {
        let run = if whole_chunks {
            self.free_chunks_below(below, count_max)?
        } else {
            self.free_touched_run_below(below, count_max)?
        };
        self.mark(run.clone(), true);
        Some(run)
    }

    /// Takes the first of the chunks around `run` that are wholly free and were touched, as one run of at most `count_max`
    /// pages and at least one chunk, to be given back to the system.
    pub fn take_free_chunks(&mut self, run: &Range<usize>, count_max: usize) -> Option<Range<usize>> {
        let around = self.chunks_around(run);
        let (low, high) = (around.start / CHUNK_PAGES, around.end.div_ceil(CHUNK_PAGES));
        let first = (low..high).find(|chunk| self.is_idle_chunk(*chunk))?;
        let most = high.min(first + (count_max / CHUNK_PAGES).max(1));
        let last = (first..most).take_while(|chunk| self.is_idle_chunk(*chunk)).last()?;
        let run = first * CHUNK_PAGES..((last + 1) * CHUNK_PAGES).min(self.end);
        self.mark(run.clone(), true);
        Some(run)
    }

    /// Wholly free, and some of it may be backed by memory.
    fn is_idle_chunk(&self, chunk: usize) -> bool {
        let pages = chunk * CHUNK_PAGES..((chunk + 1) * CHUNK_PAGES).min(self.end);
        self.tree[self.chunks + chunk].longest as usize == pages.len() && self.touched_in(pages) > 0
    }

    /// Takes the first chunks at or above page `from` that are wholly free and no page of which was touched, as one run of
    /// at most `count_max` pages and at least one chunk.
    pub fn take_untouched_chunks(&mut self, from: usize, count_max: usize) -> Option<Range<usize>> {
        let is_new = |chunk: &usize| {
            let pages = chunk * CHUNK_PAGES..(chunk + 1) * CHUNK_PAGES;
            self.tree[self.chunks + chunk].longest as usize == CHUNK_PAGES && self.touched_in(pages) == 0
        };
        let end = self.end / CHUNK_PAGES;
        let first = (from.div_ceil(CHUNK_PAGES)..end).find(is_new)?;
        let most = end.min(first + (count_max / CHUNK_PAGES).max(1));
        let last = (first..most).take_while(is_new).last()?;
        let run = first * CHUNK_PAGES..(last + 1) * CHUNK_PAGES;
        self.mark(run.clone(), true);
        Some(run)
    }

    fn free_chunks_below(&self, below: usize, count_max: usize) -> Option<Range<usize>> {
        let pages_of = |chunk: usize| chunk * CHUNK_PAGES..((chunk + 1) * CHUNK_PAGES).min(self.end);
        let wanted = |chunk: usize| self.is_idle_chunk(chunk);
        let whole = if below >= self.end { self.end.div_ceil(CHUNK_PAGES) } else { below / CHUNK_PAGES };
        let last = (0..whole).rev().find(|chunk| wanted(*chunk))?;
        let mut first = last;
        while first > 0 && (last - first + 2) * CHUNK_PAGES <= count_max && wanted(first - 1) {
            first -= 1;
        }
        Some(pages_of(first).start..pages_of(last).end)
    }

    fn free_touched_run_below(&self, below: usize, count_max: usize) -> Option<Range<usize>> {
        let idle = |word: usize| self.touched[word] & self.open[word] & !self.used[word];
        let below = below.min(self.end);
        let mut word = below.div_ceil(64);
        while word > 0 {
            word -= 1;
            let mut bits = idle(word);
            if (word + 1) * 64 > below {
                bits &= (1u64 << (below - word * 64)) - 1;
            }
            if bits == 0 {
                continue;
            }
            let end = word * 64 + 64 - bits.leading_zeros() as usize;
            let is_idle = |page: usize| idle(page / 64) >> (page % 64) & 1 == 1;
            let mut start = end - 1;
            while start > 0 && end - start < count_max && is_idle(start - 1) {
                start -= 1;
            }
            return Some(start..end);
        }
        None
    }

    fn is_free(&self, run: Range<usize>) -> bool {
        count_bits(&self.open, run.clone()) == run.len() && count_bits(&self.used, run) == 0
    }

    /// The words of a chunk with a bit set for each page that is not free.
    fn taken_words(&self, chunk: usize) -> [u64; CHUNK_WORDS] {
        std::array::from_fn(|word| self.used[chunk * CHUNK_WORDS + word] | !self.open[chunk * CHUNK_WORDS + word])
    }

    /// First page of the lowest run of `count` free pages.
    fn lowest_run(&self, count: usize) -> Option<usize> {
        let wanted = u32::try_from(count).ok()?;
        if self.tree[1].longest < wanted {
            return None;
        }
        let (mut node, mut first, mut span) = (1, 0, self.chunks * CHUNK_PAGES);
        while node < self.chunks {
            span /= 2;
            let (left, right) = (self.tree[2 * node], self.tree[2 * node + 1]);
            if left.longest >= wanted {
                node *= 2;
            } else if left.suffix + right.prefix >= wanted {
                return Some(first + span - left.suffix as usize);
            } else {
                node = 2 * node + 1;
                first += span;
            }
        }
        let mut found = None;
        for_free_runs(&self.taken_words(first / CHUNK_PAGES), |run| {
            let fits = run.len() >= count;
            if fits {
                found = Some(first + run.start);
            }
            fits
        });
        found
    }

    fn mark(&mut self, run: Range<usize>, used: bool) {
        let open = count_bits(&self.open, run.clone());
        if used {
            self.used_pages += run.len();
            self.free_pages -= open;
        } else {
            self.used_pages -= run.len();
            self.free_pages += open;
        }
        set_bits(&mut self.used, run.clone(), used);
        self.update_tree(run);
    }

    fn update_tree(&mut self, run: Range<usize>) {
        let (mut low, mut high) = (run.start / CHUNK_PAGES, (run.end - 1) / CHUNK_PAGES);
        for chunk in low..=high {
            self.tree[self.chunks + chunk] = self.chunk_runs(chunk);
        }
        (low, high) = (low + self.chunks, high + self.chunks);
        let mut span = CHUNK_PAGES as u32;
        while low > 1 {
            (low, high) = (low / 2, high / 2);
            for node in low..=high {
                self.tree[node] = join(self.tree[2 * node], self.tree[2 * node + 1], span);
            }
            span = span.saturating_mul(2);
        }
    }

    fn chunk_runs(&self, chunk: usize) -> Runs {
        let mut runs = Runs::default();
        for_free_runs(&self.taken_words(chunk), |run| {
            let length = run.len() as u32;
            if run.start == 0 {
                runs.prefix = length;
            }
            if run.end == CHUNK_PAGES {
                runs.suffix = length;
            }
            runs.longest = runs.longest.max(length);
            false
        });
        runs
    }
}

fn join(left: Runs, right: Runs, span: u32) -> Runs {
    Runs {
        prefix: if left.prefix == span { span + right.prefix } else { left.prefix },
        suffix: if right.suffix == span { span + left.suffix } else { right.suffix },
        longest: left.longest.max(right.longest).max(left.suffix + right.prefix),
    }
}

/// Calls `visit` with each maximal run of zero bits, in order, until it returns true.
fn for_free_runs(words: &[u64], mut visit: impl FnMut(Range<usize>) -> bool) {
    let bits = words.len() * 64;
    let mut at = 0;
    while at < bits {
        let start = next_bit(words, at, false);
        if start == bits {
            return;
        }
        let end = next_bit(words, start, true);
        if visit(start..end) {
            return;
        }
        at = end;
    }
}

/// The first position from `at` on whose bit is `value`, or the end.
fn next_bit(words: &[u64], at: usize, value: bool) -> usize {
    let flip = if value { 0 } else { u64::MAX };
    let mut word = at / 64;
    let mut bits = (words[word] ^ flip) & (u64::MAX << (at % 64));
    while bits == 0 {
        word += 1;
        if word == words.len() {
            return words.len() * 64;
        }
        bits = words[word] ^ flip;
    }
    word * 64 + bits.trailing_zeros() as usize
}

/// The words of `run` with a mask of its bits in each.
fn masks(run: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    let (first, last) = (run.start / 64, run.end.div_ceil(64));
    (first..last).map(move |word| {
        let low = if word == first { u64::MAX << (run.start % 64) } else { u64::MAX };
        let high = if (word + 1) * 64 > run.end { (1u64 << (run.end % 64)) - 1 } else { u64::MAX };
        (word, low & high)
    })
}

fn set_bits(words: &mut [u64], run: Range<usize>, value: bool) {
    for (word, mask) in masks(run) {
        if value {
            words[word] |= mask;
        } else {
            words[word] &= !mask;
        }
    }
}

fn count_bits(words: &[u64], run: Range<usize>) -> usize {
    masks(run).map(|(word, mask)| (words[word] & mask).count_ones() as usize).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Random;

    /// The same decisions, page by page.
    struct Model {
        used: Vec<bool>,
    }

    impl Model {
        fn take(&mut self, count: usize, alignment: usize) -> Option<usize> {
            let fits = |start: usize| self.used[start..start + count].iter().all(|used| !used);
            let mut starts = (0..=self.used.len().checked_sub(count)?).filter(|start| fits(*start));
            let lowest = starts.clone().next()?;
            if lowest % alignment == 0 {
                return self.mark(lowest, count);
            }
            let slack = count + alignment - 1;
            let roomy = (0..=self.used.len().saturating_sub(slack))
                .find(|start| start + slack <= self.used.len() && !self.used[*start..start + slack].contains(&true));
            let start = match roomy {
                Some(start) => start.next_multiple_of(alignment),
                None => starts.find(|start| start % alignment == 0)?,
            };
            self.mark(start, count)
        }

        fn mark(&mut self, start: usize, count: usize) -> Option<usize> {
            self.used[start..start + count].fill(true);
            Some(start)
        }
    }

    fn opened(pages: usize) -> Extents {
        let mut extents = Extents::new(pages).unwrap();
        extents.open(0..pages);
        extents
    }

    #[test]
    fn an_alignment_that_can_be_done_without_is_not_looked_for() {
        let mut extents = Extents::new(1024).unwrap();
        extents.open(0..1024);
        assert!(extents.take_at(0..8) && extents.take_at(9..16) && extents.take_at(17..1024));
        extents.give_back(7..8);
        // Pages 7, 8 and 16: two in a row are there, at an odd place.
        assert_eq!(extents.take_easily(2, 8, 0), None);
        assert_eq!(extents.take_easily(1, 8, 0), None, "it is the second that is aligned");
        assert_eq!(extents.take(1, 8, 0), Some(8..9));
        assert_eq!(extents.take_easily(1, 1, 0), Some(7..8));
    }

    #[test]
    fn runs_are_found_as_a_page_by_page_search_finds_them() {
        // The model is quadratic, and Miri a thousand times slower than the machine.
        let (steps, sizes): (usize, &[usize]) = if cfg!(miri) {
            (25, &[40, CHUNK_PAGES + 40])
        } else {
            (4000, &[40, CHUNK_PAGES, 5 * CHUNK_PAGES + 77, 8 * CHUNK_PAGES])
        };
        for (seed, pages) in (1..).zip(sizes.iter().copied()) {
            let mut random = Random(0x9e37_79b9_7f4a_7c15u64.wrapping_mul(seed));
            let mut extents = opened(pages);
            let mut model = Model { used: vec![false; pages] };
            let mut taken: Vec<Range<usize>> = Vec::new();
            for _ in 0..steps {
                if random.below(5) < 3 {
                    let largest = [4, 70, 700][random.below(3)].min(pages);
                    let (count, alignment) = (1 + random.below(largest), 1 << [0, 0, 0, 3, 9][random.below(5)]);
                    let run = extents.take(count, alignment, 0);
                    assert_eq!(run.as_ref().map(|run| run.start), model.take(count, alignment), "{count} {alignment}");
                    taken.extend(run);
                } else if !taken.is_empty() {
                    let run = taken.swap_remove(random.below(taken.len()));
                    // Sometimes only a part.
                    let cut = run.start + random.below(run.len());
                    if cut > run.start {
                        taken.push(run.start..cut);
                    }
                    model.used[cut..run.end].fill(false);
                    extents.give_back(cut..run.end);
                }
                assert_eq!(extents.used_pages(), model.used.iter().filter(|used| **used).count());
            }
            for run in taken {
                extents.give_back(run);
            }
            assert_eq!((extents.used_pages(), extents.longest_free_run()), (0, pages));
        }
    }

    #[test]
    fn alignment_counts_from_the_origin() {
        let mut extents = opened(4 * CHUNK_PAGES);
        assert_eq!(extents.take(1, 1, 5), Some(0..1));
        assert_eq!(extents.take(8, 8, 5), Some(3..11));
        // Exactly one aligned place is left, and no run is long enough to align blindly.
        let mut extents = opened(2 * CHUNK_PAGES);
        extents.take(3, 1, 0).unwrap();
        assert_eq!(extents.take(CHUNK_PAGES, CHUNK_PAGES, 0), Some(CHUNK_PAGES..2 * CHUNK_PAGES));
        assert_eq!(extents.take(CHUNK_PAGES, CHUNK_PAGES, 0), None);
    }

    #[test]
    fn idle_memory_is_taken_from_the_top() {
        let mut extents = opened(6 * CHUNK_PAGES + 10);
        extents.set_touched(0..6 * CHUNK_PAGES + 10, true);
        let held = extents.take(CHUNK_PAGES + 3, 1, 0).unwrap();
        assert_eq!(held, 0..CHUNK_PAGES + 3);
        let end = extents.open_pages();
        assert_eq!(extents.take_touched_below(end, true, 2 * CHUNK_PAGES), Some(5 * CHUNK_PAGES..end));
        assert_eq!(extents.take_touched_below(5 * CHUNK_PAGES, true, 99999), Some(2 * CHUNK_PAGES..5 * CHUNK_PAGES));
        assert_eq!(extents.take_touched_below(2 * CHUNK_PAGES, true, 99999), None);
        assert_eq!(
            extents.take_touched_below(2 * CHUNK_PAGES, false, 100),
            Some(2 * CHUNK_PAGES - 100..2 * CHUNK_PAGES)
        );
        assert_eq!(
            extents.take_touched_below(2 * CHUNK_PAGES - 100, false, 99999),
            Some(CHUNK_PAGES + 3..2 * CHUNK_PAGES - 100)
        );
        assert_eq!(extents.take_touched_below(end, false, 99999), None);
    }

    #[test]
    fn what_cannot_be_given_back_is_noticed() {
        let mut extents = opened(64);
        let run = extents.take(8, 1, 0).unwrap();
        assert!(extents.is_used(&run) && extents.is_used(&(3..4)));
        assert!(!extents.is_used(&(0..9)) && !extents.is_used(&(63..65)) && !extents.is_used(&(3..3)));
        extents.give_back(3..4);
        assert!(!extents.is_used(&run));
    }

    #[test]
    fn closed_pages_are_not_taken() {
        let mut extents = Extents::new(100 * CHUNK_PAGES).unwrap();
        assert_eq!((extents.take(1, 1, 0), extents.open_pages(), extents.longest_free_run()), (None, 0, 0));
        extents.open(0..3 * CHUNK_PAGES + 10);
        assert_eq!(extents.longest_free_run(), 3 * CHUNK_PAGES + 10);
        let low = extents.take(10, 1, 0).unwrap();
        let high = extents.take(3 * CHUNK_PAGES, 1, 0).unwrap();
        assert_eq!((extents.take(1, 1, 0), extents.free_pages()), (None, 0));
        // The upper half goes; what lies there stays its owner's, and does not come back.
        extents.close(CHUNK_PAGES..3 * CHUNK_PAGES + 10);
        extents.set_touched(0..3 * CHUNK_PAGES + 10, true);
        assert_eq!((extents.open_pages(), extents.free_pages()), (CHUNK_PAGES, 0));
        assert_eq!(extents.closed_in(high.clone()), 2 * CHUNK_PAGES + 10);
        extents.give_back(high.clone());
        assert_eq!((extents.free_pages(), extents.longest_free_run()), (CHUNK_PAGES - 10, CHUNK_PAGES - 10));
        assert_eq!(extents.take(CHUNK_PAGES, 1, 0), None);
        // Nor is it given back to the system by a trim, as it is being unmapped.
        assert_eq!(extents.take_touched_below(usize::MAX, false, 99999), Some(10..CHUNK_PAGES));
        extents.give_back(10..CHUNK_PAGES);
        // It is opened again with a hole, and cut shorter.
        extents.set_touched(CHUNK_PAGES..3 * CHUNK_PAGES + 10, false);
        extents.open(2 * CHUNK_PAGES..3 * CHUNK_PAGES);
        extents.cut(3 * CHUNK_PAGES);
        assert_eq!(extents.take(CHUNK_PAGES, 1, 0), Some(2 * CHUNK_PAGES..3 * CHUNK_PAGES));
        assert_eq!(extents.chunks_around(&(3 * CHUNK_PAGES - 1..3 * CHUNK_PAGES)), 2 * CHUNK_PAGES..3 * CHUNK_PAGES);
        extents.give_back(low);
        extents.give_back(2 * CHUNK_PAGES..3 * CHUNK_PAGES);
        assert_eq!((extents.used_pages(), extents.free_pages()), (0, 2 * CHUNK_PAGES));
    }

    #[test]
    fn sizes_beyond_the_books_are_refused() {
        assert_eq!(Extents::new(0).unwrap_err().code(), SqlState::PROGRAM_LIMIT_EXCEEDED);
        assert_eq!(Extents::new(1 << 33).unwrap_err().code(), SqlState::PROGRAM_LIMIT_EXCEEDED);
    }
}
