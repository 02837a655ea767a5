use super::*;

#[cfg(loom)]
use loom::{sync::Arc, thread};
#[cfg(not(loom))]
use std::{sync::Arc, thread};

const MAPPED: u64 = 1 << 32;
const CAN_WRITE: u64 = 1 << 33;
const CONTENT: u64 = MAPPED - 1;
/// A frame has something.
const FRAME: u64 = 1 << 34;

/// Each page holds one number. A word of the window is a translation and what lies behind it: an access looks at the one
/// and touches the other in one step, as a processor does, and each change of a translation is one step too.
struct Machine {
    table: Table,
    window: Vec<AtomicU64>,
    /// Of a node: frames, which have something only while a page is inactive.
    copies: Vec<AtomicU64>,
    /// What a node has. `None`: copies stay, and stand for it.
    node: Option<Vec<AtomicU64>>,
}

impl Machine {
    fn new(pages: u32, capacity: u32) -> Arc<Machine> {
        let zeroes = || (0..pages).map(|_| AtomicU64::new(0)).collect();
        let table = Table::new(pages, capacity, Replacement::SegmentedFifo).unwrap();
        Arc::new(Machine { table, window: zeroes(), copies: zeroes(), node: None })
    }

    /// Over a node, with a cache that hints go to. Pages of owner 1 are protected.
    fn at_node(pages: u32, capacity: u32) -> Arc<Machine> {
        let zeroes = || (0..pages).map(|_| AtomicU64::new(0)).collect();
        let table = Table::new(pages, capacity, Replacement::Midpoint { protected: 2, share: 50 }).unwrap();
        Arc::new(Machine { table, window: zeroes(), copies: zeroes(), node: Some(zeroes()) })
    }

    /// As it is now, never as it was: the kernel has processors forget translations that it changed.
    fn word(&self, page: u32) -> u64 {
        self.window[page as usize].fetch_or(0, Ordering::Relaxed)
    }

    fn fault(&self, page: u32, touch: Touch) -> Outcome {
        self.table.fault(page, touch, self, |_, _| ())
    }

    /// As an instruction that adds one to a page: retried until it gets through.
    fn add(&self, page: u32) {
        loop {
            let word = self.word(page);
            if word & CAN_WRITE == 0 {
                self.fault(page, Touch::Write);
                continue;
            }
            let slot = &self.window[page as usize];
            if slot.compare_exchange(word, word + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return;
            }
        }
    }

    fn read(&self, page: u32) -> u64 {
        loop {
            let word = self.word(page);
            if word & MAPPED != 0 {
                return word & CONTENT;
            }
            self.fault(page, Touch::Read);
        }
    }

    fn change(&self, page: u32, change: impl Fn(u64) -> u64) -> u64 {
        let slot = &self.window[page as usize];
        loop {
            let before = slot.load(Ordering::Relaxed);
            if slot.compare_exchange(before, change(before), Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return before;
            }
        }
    }

    /// When nobody is at work: lists, counts and memory agree.
    fn check(&self) {
        let table = &self.table;
        let (mut active, mut old, mut inactive, mut remote, mut stored) = (0, 0, 0, 0, 0);
        for (page, slot) in table.states.iter().enumerate() {
            let state = slot.load(Ordering::Relaxed);
            let word = self.word(page as u32);
            assert_eq!(state & LOCKED, 0);
            assert_eq!(place(state) == ACTIVE, word & MAPPED != 0);
            assert_eq!(state & WRITABLE != 0, word & CAN_WRITE != 0);
            match place(state) {
                ACTIVE if state & OLD != 0 => old += 1,
                ACTIVE => active += 1,
                INACTIVE => inactive += 1,
                REMOTE => remote += 1,
                _ => {}
            }
            stored += u64::from(state & STORED != 0);
            if self.node.is_some() && place(state) != INACTIVE {
                assert_eq!(self.copies[page].load(Ordering::Relaxed), 0, "a frame that nobody has");
            }
        }
        for (list, len) in [(&table.active, active), (&table.old, old), (&table.inactive, inactive)] {
            let (mut link, mut last, mut found) = (list.head.load(Ordering::Relaxed), 0, 0);
            while link != 0 {
                assert_eq!(table.prev[link as usize].load(Ordering::Relaxed), last);
                found += 1;
                last = link;
                link = table.next[link as usize].load(Ordering::Relaxed);
            }
            assert_eq!((found, list.tail.load(Ordering::Relaxed)), (len, last));
            assert_eq!(list.len.load(Ordering::Relaxed), len);
        }
        assert_eq!(table.resident(), active + old + inactive);
        assert!(table.resident() <= table.capacity());
        assert_eq!(table.stored(), stored);
        let sum = |counts: &[AtomicU64]| counts.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u64>();
        assert_eq!((sum(&table.local), sum(&table.remote)), (u64::from(active + old + inactive), remote));
    }
}

impl Memory for Machine {
    fn map(&self, page: u32, stored: bool, writable: bool) {
        let content = match (&self.node, stored) {
            (_, false) => 0,
            (None, true) => self.copies[page as usize].load(Ordering::Relaxed),
            // From the frame, which is free then; or from the node.
            (Some(node), true) => match self.copies[page as usize].swap(0, Ordering::Relaxed) {
                0 => node[page as usize].load(Ordering::Relaxed),
                frame => frame & CONTENT,
            },
        };
        let word = content | MAPPED | if writable { CAN_WRITE } else { 0 };
        assert_eq!(self.change(page, |_| word) & MAPPED, 0, "mapped twice");
    }

    fn unprotect(&self, page: u32) {
        let before = self.change(page, |word| word | CAN_WRITE);
        assert!(before & MAPPED != 0);
    }

    fn protect(&self, run: Range<u32>) {
        for page in run {
            self.change(page, |word| word & !CAN_WRITE);
        }
    }

    fn copy_out(&self, page: u32) {
        let word = self.word(page);
        assert!(word & MAPPED != 0 && word & CAN_WRITE == 0, "copied while it can be written");
        let frame = if self.node.is_some() { FRAME } else { 0 };
        self.copies[page as usize].store(word & CONTENT | frame, Ordering::Relaxed);
    }

    fn keeps_copies(&self) -> bool {
        self.node.is_none()
    }

    fn sends_at_once(&self) -> usize {
        if self.node.is_some() { 3 } else { 1 }
    }

    fn send(&self, pages: &[u32]) {
        let Some(node) = &self.node else { return };
        for page in pages {
            let frame = self.copies[*page as usize].load(Ordering::Relaxed);
            assert!(frame & FRAME != 0, "sent without a frame");
            node[*page as usize].store(frame & CONTENT, Ordering::Relaxed);
        }
    }

    fn left(&self, page: u32) {
        if self.node.is_some() {
            self.copies[page as usize].store(0, Ordering::Relaxed);
        }
    }

    fn unmap(&self, runs: &[Range<u32>]) {
        for page in runs.iter().flat_map(Clone::clone) {
            let before = self.change(page, |_| 0);
            assert!(before & MAPPED != 0, "unmapped twice");
            assert_eq!(before & CAN_WRITE, 0, "unmapped while it can be written");
        }
    }

    fn discard(&self, run: Range<u32>) {
        for page in run {
            self.change(page, |_| 0);
            self.copies[page as usize].store(0, Ordering::Relaxed);
        }
    }

    #[cfg(loom)]
    fn pause(&self, _tries: u32) {
        thread::yield_now();
    }

    #[cfg(not(loom))]
    fn pause(&self, tries: u32) {
        if tries < 10 { std::hint::spin_loop() } else { thread::yield_now() }
    }
}

/// Every interleaving of few steps, as far as two changes of thread reach that nobody has to wait for.
#[cfg(loom)]
mod interleavings {
    use super::*;

    fn explore(scenario: impl Fn() + Sync + Send + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(scenario);
    }

    fn other(machine: &Arc<Machine>, work: impl FnOnce(&Machine) + 'static) -> thread::JoinHandle<()> {
        let machine = machine.clone();
        thread::spawn(move || work(&machine))
    }

    /// Two threads fault on one page that neither has.
    #[test]
    fn one_page_is_mapped_once() {
        explore(|| {
            let machine = Machine::new(1, 1);
            let thread = other(&machine, |machine| machine.add(0));
            machine.add(0);
            thread.join().unwrap();
            machine.check();
            assert_eq!(machine.read(0), 2);
        });
    }

    /// A page is read, then written, while another thread's page drives it out.
    #[test]
    fn a_write_survives_eviction() {
        explore(|| {
            let machine = Machine::new(2, 1);
            machine.add(0);
            let thread = other(&machine, |machine| {
                machine.read(1);
            });
            machine.read(0);
            machine.add(0);
            thread.join().unwrap();
            machine.check();
            assert_eq!(machine.read(0), 2);
        });
    }

    /// Two threads, two pages, room for one.
    #[test]
    fn pages_that_drive_each_other_out_keep_their_writes() {
        explore(|| {
            let machine = Machine::new(2, 1);
            let thread = other(&machine, |machine| {
                machine.add(0);
                machine.add(1);
            });
            machine.add(1);
            thread.join().unwrap();
            machine.check();
            assert_eq!((machine.read(0), machine.read(1)), (1, 2));
        });
    }

    /// Over a node: a page is written, sent and brought back while another thread has others brought.
    #[test]
    fn what_is_brought_is_what_was_sent() {
        explore(|| {
            let machine = Machine::at_node(2, 1);
            machine.add(0);
            let thread = other(&machine, |machine| {
                machine.add(1);
                machine.table.bring(&[0, 1], machine);
            });
            machine.add(0);
            machine.table.bring(&[1], &*machine);
            thread.join().unwrap();
            machine.check();
            assert_eq!((machine.read(0), machine.read(1)), (2, 1));
        });
    }

    /// A page that only the node has is visited while it is wanted and written.
    #[test]
    fn a_visit_and_a_fault_take_turns() {
        explore(|| {
            let machine = Machine::at_node(2, 1);
            machine.add(0);
            machine.add(1);
            let thread = other(&machine, |machine| {
                machine.table.visit_remote(
                    0..2,
                    |_| true,
                    machine,
                    |pages| {
                        for page in pages {
                            assert_eq!(machine.word(*page), 0, "it is mapped");
                        }
                    },
                );
            });
            machine.add(0);
            thread.join().unwrap();
            machine.check();
            assert_eq!((machine.read(0), machine.read(1)), (2, 1));
        });
    }

    /// An owner gives a page back while another thread evicts.
    #[test]
    fn release_and_eviction_take_turns() {
        explore(|| {
            let machine = Machine::new(2, 1);
            machine.add(0);
            let thread = other(&machine, |machine| machine.add(1));
            machine.table.release(0..1, &*machine);
            assert_eq!(machine.read(0), 0);
            thread.join().unwrap();
            machine.check();
            assert_eq!(machine.read(1), 1);
        });
    }

    /// The cache is made smaller while a page comes that had room.
    #[test]
    fn a_cache_shrinks_while_pages_come() {
        explore(|| {
            let machine = Machine::new(2, 2);
            machine.add(0);
            let thread = other(&machine, |machine| machine.add(1));
            machine.table.set_capacity(1, &*machine);
            thread.join().unwrap();
            machine.check();
            assert_eq!((machine.read(0), machine.read(1)), (1, 1));
        });
    }
}

#[cfg(not(loom))]
mod sequences {
    use super::*;

    /// xorshift: a seed gives one sequence everywhere.
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % bound
        }
    }

    #[test]
    fn pages_leave_in_order_and_get_a_second_chance() {
        let machine = Machine::new(64, 16);
        let resolution = |page, touch| machine.fault(page, touch).resolution;
        for page in 0..16 {
            assert_eq!(resolution(page, Touch::Write), Resolution::Zeroed);
        }
        assert_eq!(machine.table.active(), 16, "nothing is unmapped while there is room");
        // One leaves, the oldest; the list behind it grows to a quarter, one at a time.
        let outcome = machine.fault(16, Touch::Read);
        assert_eq!((outcome.evicted, outcome.written_back), (1, 1));
        for page in 17..24 {
            machine.fault(page, Touch::Read);
        }
        machine.check();
        assert_eq!(machine.word(8), 0, "inactive");
        assert_eq!(resolution(8, Touch::Read), Resolution::Soft);
        assert_eq!(resolution(8, Touch::Write), Resolution::Unprotected);
        assert_eq!(resolution(8, Touch::Write), Resolution::Already);
        assert_eq!(resolution(0, Touch::Read), Resolution::Fetched);
        // Touched again, 8 outlives 23, which came long after it.
        for page in 24..38 {
            machine.fault(page, Touch::Read);
        }
        assert_eq!(resolution(8, Touch::Read), Resolution::Soft);
        assert_eq!(resolution(23, Touch::Read), Resolution::Zeroed, "gone, and it never held anything");
        machine.check();
    }

    #[test]
    fn clean_pages_are_not_written_back() {
        let machine = Machine::new(8, 1);
        machine.add(0);
        assert_eq!(machine.fault(1, Touch::Read).written_back, 1);
        assert_eq!(machine.fault(0, Touch::Read).written_back, 0, "a page of zeroes that nobody wrote");
        assert_eq!(machine.table.places(0), Places { local: 1, remote: 0 });
        assert_eq!(machine.fault(2, Touch::Read).written_back, 0, "fetched and only read");
        assert_eq!(machine.table.places(0), Places { local: 1, remote: 1 });
        assert_eq!(machine.fault(0, Touch::Unknown).resolution, Resolution::Fetched);
        // When the processor does not say, the write to the page as it was fetched tells.
        assert_eq!(machine.fault(0, Touch::Unknown).resolution, Resolution::Unprotected);
        assert_eq!(machine.fault(1, Touch::Read).written_back, 1);
        machine.check();
    }

    #[test]
    fn owners_are_counted_wherever_pages_are() {
        let machine = Machine::new(16, 4);
        machine.table.set_owner(0..8, 3, &*machine);
        (0..8).for_each(|page| machine.add(page));
        assert_eq!(machine.table.places(3), Places { local: 4, remote: 4 });
        machine.table.set_owner(6..16, 5, &*machine);
        assert_eq!(machine.table.places(3), Places { local: 2, remote: 4 });
        assert_eq!(machine.table.places(5), Places { local: 2, remote: 0 });
        machine.table.release(0..7, &*machine);
        machine.check();
        assert_eq!(machine.table.places(3), Places::default());
        assert_eq!(machine.table.places(5), Places { local: 1, remote: 0 });
        assert_eq!((machine.read(0), machine.read(7)), (0, 1));
    }

    #[test]
    fn a_smaller_cache_holds_less_at_once() {
        let machine = Machine::new(64, 48);
        (0..64).for_each(|page| machine.add(page));
        let outcome = machine.table.set_capacity(8, &*machine);
        assert_eq!((outcome.evicted, outcome.written_back), (40, 40));
        machine.check();
        assert_eq!(machine.table.resident(), 8);
        machine.table.set_capacity(64, &*machine);
        assert!((0..64).all(|page| machine.read(page) == 1));
        assert_eq!(machine.table.resident(), 64);
        machine.check();
    }

    #[test]
    fn scans_drive_out_what_scans_brought() {
        // 3,000 pages of a scan through a cache of 256, of which 24 are touched all the time. Fetched of these 24.
        let fetched = |machine: &Machine| {
            (0..3_024).for_each(|page| machine.add(page));
            let mut fetched = 0;
            for page in (24..3_024).step_by(10) {
                let pages: Vec<u32> = (page..page + 10).collect();
                machine.table.bring(&pages, machine);
                pages.iter().for_each(|page| assert_eq!(machine.read(*page), 1));
                for used in 0..24 {
                    let resolution = machine.fault(used, Touch::Read).resolution;
                    fetched += u32::from(resolution == Resolution::Fetched);
                }
            }
            machine.check();
            fetched
        };
        // Each came once, by its first touch.
        assert_eq!(fetched(&Machine::at_node(3_024, 256)), 24);
    }

    #[test]
    fn protected_pages_stay_up_to_their_share() {
        let machine = Machine::at_node(256, 32);
        machine.table.set_owner(0..16, 1, &*machine);
        (0..16).for_each(|page| machine.add(page));
        (16..256).for_each(|page| machine.add(page));
        assert_eq!(machine.table.places(1), Places { local: 16, remote: 0 });
        machine.check();
        // More than their share: they go as others do, and all others still find room.
        machine.table.set_owner(0..256, 1, &*machine);
        (0..256).for_each(|page| assert_eq!(machine.read(page), 1));
        machine.check();
        assert_eq!(machine.table.resident(), 32);
    }

    #[test]
    fn only_what_is_remote_is_brought_and_not_beyond_the_cache() {
        let machine = Machine::at_node(64, 8);
        (0..32).for_each(|page| machine.add(page));
        let (brought, outcome) = machine.table.bring(&[0, 1, 31, 40], &*machine);
        assert_eq!((brought, outcome.evicted), (2, 2), "31 is here, and 40 never was anywhere");
        let many: Vec<u32> = (2..18).collect();
        let (brought, _) = machine.table.bring(&many, &*machine);
        assert!(brought > 0 && brought <= 8);
        machine.check();
        (0..32).for_each(|page| assert_eq!(machine.read(page), 1));
        machine.check();
    }

    #[test]
    fn no_write_is_lost_whatever_comes_between() {
        no_write_is_lost(Machine::new);
    }

    #[test]
    fn no_write_is_lost_over_a_node() {
        no_write_is_lost(Machine::at_node);
    }

    /// Threads at random over pages that they share and pages of their own, which they also give back.
    fn no_write_is_lost(make: impl Fn(u32, u32) -> Arc<Machine>) {
        const THREADS: u32 = 4;
        const SHARED: u32 = 24;
        const OWN: u32 = 6;
        for seed in 1..=20 {
            let machine = make(SHARED + THREADS * OWN, 8);
            let threads: Vec<_> = (0..THREADS)
                .map(|number| {
                    let machine = machine.clone();
                    thread::spawn(move || {
                        let mut random = Random(u64::wrapping_mul(seed, 0x9e37_79b9_7f4a_7c15) + u64::from(number) + 1);
                        let mut shared = vec![0u64; SHARED as usize];
                        let mut own = vec![0u64; OWN as usize];
                        let first = SHARED + number * OWN;
                        for _ in 0..4_000 {
                            let page = random.below(SHARED.into()) as u32;
                            let mine = random.below(OWN.into()) as u32;
                            match random.below(9) {
                                8 => {
                                    let pages: Vec<u32> = (page..SHARED.min(page + 6)).collect();
                                    if machine.node.is_some() {
                                        machine.table.bring(&pages, &*machine);
                                    } else {
                                        machine.read(page);
                                    }
                                }
                                0..=2 => {
                                    machine.add(page);
                                    shared[page as usize] += 1;
                                }
                                3 => assert!(machine.read(page) >= shared[page as usize]),
                                4..=5 => {
                                    machine.add(first + mine);
                                    own[mine as usize] += 1;
                                }
                                6 => assert_eq!(machine.read(first + mine), own[mine as usize]),
                                _ => {
                                    machine.table.release(first + mine..first + OWN, &*machine);
                                    machine.table.set_owner(first + mine..first + OWN, mine as usize, &*machine);
                                    own[mine as usize..].fill(0);
                                }
                            }
                        }
                        shared
                    })
                })
                .collect();
            let mut expected = vec![0; SHARED as usize];
            for thread in threads {
                for (sum, count) in expected.iter_mut().zip(thread.join().unwrap()) {
                    *sum += count;
                }
            }
            machine.check();
            for page in 0..SHARED {
                assert_eq!(machine.read(page), expected[page as usize], "page {page}, seed {seed}");
            }
        }
    }
}
