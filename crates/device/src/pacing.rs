//! Pacing: charging the cost of an emulated device to the operation that touched it.
//!
//! What a charge owes is what the device would have cost *beyond* local memory:
//!
//! * Bandwidth is the link's. One clock is shared by all threads, of all processes where the link has a name
//!   ([`crate::links`]): a transfer starts when the link is free,
//!   but no earlier than the thread's previous charge (at most [`OVERLAP_NS_MAX`] ago), because the time a thread spent
//!   computing since then is time in which a real device's prefetched transfer would have run. A thread that consumes
//!   less than the device delivers is therefore never held up by bandwidth, and idle time of the link is not saved up.
//!   Nor is a thread that asks for no more than its share: lines of different threads alternate on a link, so among *n*
//!   processors each has an *n*-th of it at any time, however much the others have charged before (processor sharing).
//! * Latency is the thread's own: the device's less local memory's.
//!
//! A thread pays by spinning, as a core that waits for a load is lost to others too. Debts below [`DEBT_NS_MIN`] are
//! carried, as a single short wait cannot be timed well; an overshoot is credited against what comes next.
//! In a fiber ([`tidepool_fiber`]) the thread does not spin: where an operation comes to memory that it asked for a moment ago
//! ([`Pacer::arrive`]), the fiber pauses for its part of what is owed, and the thread goes on with others.
//! Each thread has its own virtual time, real time plus unpaid debt, and all rules above hold in virtual time. So the
//! *accounted* stall depends on no scheduler's mood once the clock readings are given, which is what the tests rely on.

use crate::cost::Traffic;
use crate::links::{LinkClock, monotonic_ns};
use crate::{Access, CostModel, Pattern, Profile};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Shortest wait worth spinning for. Reading the clock costs 30 to 50 ns, so this is off by well under one percent.
const DEBT_NS_MIN: i64 = 20_000;

/// As `DEBT_NS_MIN`, of a fiber: shorter than what most far memory takes, longer than it takes to go on with another.
const PAUSE_NS_MIN: i64 = 60;

/// Owed by fibers that come to no memory: spun for, as outside.
const FIBERS_DEBT_NS_MAX: i64 = 200_000;

/// Longest overshoot (the scheduler took the processor away) that is credited.
const CREDIT_NS_MAX: i64 = 1_000_000;

/// How far back a transfer may have started. Longer than any batch takes, shorter than a pause between statements.
const OVERLAP_NS_MAX: u64 = 100_000_000;

/// What accesses came to: of one charge, or all since start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacingCounters {
    /// What the code asked for, before caches and the device's granularity.
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub lines: u64,
    /// What the model takes to have crossed the device's link: what the caches did not hold, in whole units.
    pub link_bytes_read: u64,
    pub link_bytes_written: u64,
    /// Accounted, ns, of all threads together.
    pub stall_ns: u64,
}

impl std::ops::AddAssign for PacingCounters {
    fn add_assign(&mut self, other: PacingCounters) {
        self.bytes_read += other.bytes_read;
        self.bytes_written += other.bytes_written;
        self.lines += other.lines;
        self.link_bytes_read += other.link_bytes_read;
        self.link_bytes_written += other.link_bytes_written;
        self.stall_ns += other.stall_ns;
    }
}

/// [`PacingCounters`] that threads add to.
#[derive(Debug, Default)]
pub struct PacingTotals {
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    lines: AtomicU64,
    link_bytes_read: AtomicU64,
    link_bytes_written: AtomicU64,
    stall_ns: AtomicU64,
}

impl PacingTotals {
    pub fn add(&self, spent: &PacingCounters) {
        for (total, more) in [
            (&self.bytes_read, spent.bytes_read),
            (&self.bytes_written, spent.bytes_written),
            (&self.lines, spent.lines),
            (&self.link_bytes_read, spent.link_bytes_read),
            (&self.link_bytes_written, spent.link_bytes_written),
            (&self.stall_ns, spent.stall_ns),
        ] {
            if more > 0 {
                total.fetch_add(more, Ordering::Relaxed);
            }
        }
    }

    pub fn get(&self) -> PacingCounters {
        PacingCounters {
            bytes_read: self.bytes_read.load(Ordering::Relaxed),
            bytes_written: self.bytes_written.load(Ordering::Relaxed),
            lines: self.lines.load(Ordering::Relaxed),
            link_bytes_read: self.link_bytes_read.load(Ordering::Relaxed),
            link_bytes_written: self.link_bytes_written.load(Ordering::Relaxed),
            stall_ns: self.stall_ns.load(Ordering::Relaxed),
        }
    }
}

/// One device's pacer: bandwidth is shared by all threads, latency is each thread's own. Of memory that is striped over
/// several devices, each has a link of its own.
#[derive(Debug)]
pub struct Pacer {
    model: CostModel,
    /// Threads that can be at work at a time, between which the link is shared.
    processors: u64,
    /// Finds this pacer's state in a thread. Never zero.
    id: usize,
    /// Of the model's devices, in their order. `None`: local memory, which takes its own time.
    links: Vec<Option<Arc<LinkClock>>>,
    totals: Arc<PacingTotals>,
}

/// One thread's account with one pacer.
#[derive(Clone, Copy, Debug, Default)]
struct ThreadAccount {
    pacer_id: usize,
    /// Virtual time of the last charge, ns of `now_ns`.
    last_ns: u64,
    /// Owed (positive) or credited (negative).
    debt_ns: i64,
    /// Of fibers: what each comes to owe where it arrives, and what one is about to pause for.
    share_ns: i64,
    due_ns: i64,
}

/// Accounts are found by `id % THREAD_ACCOUNTS`. Two pacers that share a place take it from each other, which costs them
/// debts below `DEBT_NS_MIN` and nothing else.
const THREAD_ACCOUNTS: usize = 16;

thread_local! {
    // Constant and without a destructor, so that touching it never allocates: a thread may be inside a query heap.
    static ACCOUNTS: [Cell<ThreadAccount>; THREAD_ACCOUNTS] = const {
        [const { Cell::new(ThreadAccount { pacer_id: 0, last_ns: 0, debt_ns: 0, share_ns: 0, due_ns: 0 }) }; THREAD_ACCOUNTS]
    };
}

/// Small accesses of one kind that a thread has made and not accounted yet.
#[derive(Clone, Copy, Debug)]
struct Gathered {
    /// As all of them are, but for how much.
    access: Option<Access>,
    /// Lines, or bytes in sequence.
    amount: u64,
    /// Lines by how many were under way, or runs.
    waits: f64,
}

/// A thread's small accesses with one pacer and of one slot.
#[derive(Debug)]
struct GatheredSlot {
    pacer_id: Cell<usize>,
    operations: Cell<u32>,
    kinds: [Cell<Gathered>; GATHERED_KINDS],
}

/// Kinds of accesses of an operation, at most.
const GATHERED_KINDS: usize = 5;
/// Operations that are accounted together.
const GATHERED_MAX: u32 = 32;
/// Slots of a pacer, by what for it gathers.
pub const GATHER_SLOTS: usize = 3;
/// As `THREAD_ACCOUNTS`: two pacers that share a place take it from each other, which costs them fewer than `GATHERED_MAX` operations.
const GATHERED_PLACES: usize = 5 * GATHER_SLOTS;

thread_local! {
    // Constant and without a destructor, as the accounts.
    static GATHERED: [GatheredSlot; GATHERED_PLACES] = const {
        [const {
            GatheredSlot {
                pacer_id: Cell::new(0),
                operations: Cell::new(0),
                kinds: [const { Cell::new(Gathered { access: None, amount: 0, waits: 0.0 }) }; GATHERED_KINDS],
            }
        }; GATHERED_PLACES]
    };
}

impl Gathered {
    #[inline]
    fn add(&mut self, access: &Access) {
        match access.pattern {
            Pattern::Sequential { bytes, runs } => {
                self.amount += bytes;
                self.waits += runs as f64;
            }
            Pattern::Random { lines, in_flight, .. } => {
                self.amount += lines;
                self.waits += lines as f64 / in_flight.max(1.0);
            }
        }
        // The working set as it was last.
        self.access = Some(*access);
    }

    /// All of them as one.
    fn sum(self) -> Option<Access> {
        let access = self.access?;
        let pattern = match access.pattern {
            Pattern::Sequential { .. } => Pattern::Sequential { bytes: self.amount, runs: self.waits as u64 },
            Pattern::Random { working_set_bytes, .. } => {
                let in_flight = if self.waits > 0.0 { self.amount as f64 / self.waits } else { f64::MAX };
                Pattern::Random { lines: self.amount, working_set_bytes, in_flight }
            }
        };
        Some(Access { pattern, write: access.write })
    }
}

/// Starts at `OVERLAP_NS_MAX`, so that looking back stays above zero even right after the machine has started.
fn now_ns() -> u64 {
    monotonic_ns() + OVERLAP_NS_MAX
}

impl Pacer {
    pub fn new(model: CostModel) -> Pacer {
        Pacer::shared_by(model, std::thread::available_parallelism().map_or(1, |count| count.get()))
    }

    fn shared_by(model: CostModel, processors: usize) -> Pacer {
        static NEXT_ID: AtomicUsize = AtomicUsize::new(1);
        let link = |profile: &Profile| profile.link.as_deref().map_or_else(LinkClock::own, LinkClock::named);
        let links = model.shares().iter().map(|share| share.profile.as_ref().map(link)).collect();
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Pacer { model, processors: processors as u64, id, links, totals: Arc::default() }
    }

    /// A pacer for the same memory when it is made of other devices: it goes on with this one's counters.
    pub fn followed_by(&self, model: CostModel) -> Pacer {
        Pacer { totals: self.totals.clone(), ..Pacer::new(model) }
    }

    pub fn model(&self) -> &CostModel {
        &self.model
    }

    /// Size of this machine's last-level cache, bytes, as the model uses it.
    pub fn last_level_cache_bytes(&self) -> u64 {
        self.model.last_level_cache_bytes()
    }

    /// Accounts `access`, which this thread has just made, and spends what it would have cost beyond local memory on
    /// this thread. Returns the nanoseconds accounted to this access; up to 20 µs of them may be spent with a later call.
    pub fn charge(&self, access: Access) -> u64 {
        self.charge_all(&[access])
    }

    /// As `charge`, of accesses that were made side by side: all of their transfers may have run while the thread was
    /// computing since its last charge, and beneath each other's random waits. Charged one by one, only the first may.
    pub fn charge_all(&self, accesses: &[Access]) -> u64 {
        self.spend(accesses).stall_ns
    }

    /// As `charge_all`; returns what was accounted.
    pub fn spend(&self, accesses: &[Access]) -> PacingCounters {
        let now = now_ns();
        let mut account = self.of_thread();
        let spent = self.account(&mut account, now, accesses);
        let is_fiber = tidepool_fiber::is_fiber();
        if is_fiber {
            account.share_ns = account.debt_ns.max(0) / i64::from(GATHERED_MAX);
        }
        if account.debt_ns >= if is_fiber { FIBERS_DEBT_NS_MAX } else { DEBT_NS_MIN } {
            let until = now + account.debt_ns as u64;
            let end = loop {
                let end = now_ns();
                if end >= until {
                    break end;
                }
                std::hint::spin_loop();
            };
            account.debt_ns = -((end - until) as i64).min(CREDIT_NS_MAX);
        }
        self.set_of_thread(account);
        spent
    }

    #[inline]
    fn of_thread(&self) -> ThreadAccount {
        let account = ACCOUNTS.with(|accounts| accounts[self.id % THREAD_ACCOUNTS].get());
        if account.pacer_id == self.id { account } else { ThreadAccount { pacer_id: self.id, ..Default::default() } }
    }

    #[inline]
    fn set_of_thread(&self, account: ThreadAccount) {
        ACCOUNTS.with(|accounts| accounts[self.id % THREAD_ACCOUNTS].set(account));
    }

    /// Where an operation comes to memory that it asked for just now. A fiber that may pause does so for its part of what is owed;
    /// small operations are accounted together, so that is as much as those before took each, on average.
    pub fn arrive(&self) {
        if !tidepool_fiber::may_pause() {
            return;
        }
        let mut account = self.of_thread();
        let share_ns = account.share_ns.min(account.debt_ns);
        if share_ns <= 0 {
            return;
        }
        account.debt_ns -= share_ns;
        account.due_ns += share_ns;
        let due_ns = if account.due_ns >= PAUSE_NS_MIN { std::mem::take(&mut account.due_ns) } else { 0 };
        self.set_of_thread(account);
        if due_ns > 0 {
            tidepool_fiber::pause_for(due_ns as u64);
        }
    }

    /// As `spend`, of one small operation among many: a look-up of a row or of a key. So many of them are accounted together, as
    /// accounting for each would take longer than what it accounts for; `None` until then. Accesses of the same place in
    /// `accesses` are of the same kind from operation to operation of a `slot` (below [`GATHER_SLOTS`]); at most five.
    #[inline]
    pub fn gather(&self, slot: usize, accesses: &[Access]) -> Option<PacingCounters> {
        GATHERED.with(|places| {
            let gathered = self.gathered(places, slot);
            // Of most operations most kinds are none.
            let some = |(access, _): &(&Access, _)| access.bytes_asked() > 0;
            for (access, kind) in accesses.iter().zip(&gathered.kinds).filter(some) {
                let mut sum = kind.get();
                sum.add(access);
                kind.set(sum);
            }
            gathered.operations.set(gathered.operations.get() + 1);
            (gathered.operations.get() >= GATHERED_MAX).then(|| self.settle_slot(gathered))
        })
    }

    /// Accounts what this thread has gathered in a slot.
    pub fn settle(&self, slot: usize) -> PacingCounters {
        GATHERED.with(|places| self.settle_slot(self.gathered(places, slot)))
    }

    #[inline]
    fn gathered<'p>(&self, places: &'p [GatheredSlot; GATHERED_PLACES], slot: usize) -> &'p GatheredSlot {
        let gathered = &places[self.id % (GATHERED_PLACES / GATHER_SLOTS) * GATHER_SLOTS + slot];
        if gathered.pacer_id.replace(self.id) != self.id {
            gathered.clear();
        }
        gathered
    }

    #[inline(never)]
    fn settle_slot(&self, gathered: &GatheredSlot) -> PacingCounters {
        let mut accesses = [Access::read_sequential(0); GATHERED_KINDS];
        let mut count = 0;
        for access in gathered.kinds.iter().filter_map(|kind| kind.get().sum()) {
            accesses[count] = access;
            count += 1;
        }
        gathered.clear();
        if count == 0 { PacingCounters::default() } else { self.spend(&accesses[..count]) }
    }

    /// Takes time that this thread spent on keeping accounts off what it owes here, as the device would not have taken
    /// it. At most a millisecond is credited in advance.
    pub fn credit(&self, ns: u64) {
        let mut account = self.of_thread();
        account.debt_ns = account.debt_ns.saturating_sub_unsigned(ns).max(-CREDIT_NS_MAX);
        self.set_of_thread(account);
    }

    /// The rules, given the time.
    fn account(&self, account: &mut ThreadAccount, now_ns: u64, accesses: &[Access]) -> PacingCounters {
        let virtual_now = now_ns.saturating_add_signed(account.debt_ns);
        let mut local_ns = 0.0;
        let mut spent = PacingCounters::default();
        // Excess over local memory: in sequence each run waits for its first line, and then for the link; at random the
        // link works beneath the waits.
        let (mut sequential_wait_ns, mut random_wait_ns) = (0.0, 0.0);
        for access in accesses {
            let local = self.model.local_cost(access);
            local_ns +=
                local.latency_ns + self.model.local().transfer_ns(local.traffic.read_bytes, local.traffic.write_bytes);
            let wait_ns = self.model.wait_ns(access);
            match access.pattern {
                Pattern::Sequential { .. } => sequential_wait_ns += wait_ns,
                Pattern::Random { .. } => random_wait_ns += wait_ns,
            }
            *(if access.write { &mut spent.bytes_written } else { &mut spent.bytes_read }) += access.bytes_asked();
            spent.lines += access.lines_asked();
        }

        let earliest = if account.last_ns == 0 {
            // A thread's first charge has no past but the accesses themselves, which took at least their local time.
            virtual_now.saturating_sub(local_ns as u64)
        } else {
            account.last_ns.max(virtual_now.saturating_sub(OVERLAP_NS_MAX))
        };
        // Accesses side by side share the link as the mix they are. Of several links the last to be done counts.
        let (mut bandwidth_stall, mut traffic) = (0, Traffic::default());
        for (share, link) in self.model.shares().iter().zip(&self.links) {
            let Some(link) = link else { continue };
            let (transfer_ns, moved) = self.model.link_ns(share, accesses);
            let transfer_ns = transfer_ns as u64;
            traffic += moved;
            if transfer_ns == 0 {
                // What the caches hold waits for no link.
                continue;
            }
            let begins = link.take(earliest, transfer_ns);
            // Another thread's virtual time may be ahead of this one's by what it owes and this one is credited, and its
            // transfer may be a long one. Neither holds this thread up for longer than the rest of the link being busy all
            // the time would. No more is given away by this than there is: n threads have an n-th each.
            let in_turn = begins + transfer_ns;
            let shared = earliest.saturating_add(self.processors.saturating_mul(transfer_ns));
            bandwidth_stall = bandwidth_stall.max(in_turn.min(shared).saturating_sub(virtual_now));
        }
        spent.link_bytes_read = traffic.read_bytes.round() as u64;
        spent.link_bytes_written = traffic.write_bytes.round() as u64;
        let stall_ns = sequential_wait_ns as u64 + bandwidth_stall.max(random_wait_ns as u64);

        account.debt_ns += stall_ns as i64;
        account.last_ns = virtual_now + stall_ns;
        spent.stall_ns = stall_ns;
        self.totals.add(&spent);
        spent
    }

    pub fn counters(&self) -> PacingCounters {
        self.totals.get()
    }
}

impl GatheredSlot {
    fn clear(&self) {
        self.operations.set(0);
        self.kinds.iter().for_each(|kind| kind.set(Gathered { access: None, amount: 0, waits: 0.0 }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile;
    use std::time::Instant;

    const MIB: u64 = 1 << 20;
    const START: u64 = 1_000_000_000;

    fn pacer(name: &str) -> Pacer {
        let profile = Profile::preset(name).unwrap();
        Pacer::shared_by(CostModel::new(profile, Profile::preset("local-dram").unwrap(), 32 * MIB), 2)
    }

    /// A thread that takes `compute_ns` a batch, charged `batches` times. Returns its virtual run time.
    fn stream(pacer: &Pacer, batches: u64, batch_bytes: u64, compute_ns: u64) -> u64 {
        let mut account = ThreadAccount::default();
        let mut real = START;
        for _ in 0..batches {
            real += compute_ns;
            pacer.account(&mut account, real, &[Access::read_sequential(batch_bytes)]);
        }
        real + account.debt_ns as u64 - START
    }

    #[test]
    fn a_fast_stream_runs_at_the_devices_bandwidth() {
        // 1 MiB takes 98 us of the link; reading it locally takes 50 us.
        let pacer = pacer("fpga-prototype");
        let elapsed = stream(&pacer, 1000, MIB, 50_000);
        let gb_per_s = (1000 * MIB) as f64 / elapsed as f64;
        assert!((10.2..10.7).contains(&gb_per_s), "{gb_per_s}");
        assert_eq!(pacer.counters().bytes_read, 1000 * MIB);
        assert_eq!(pacer.counters().lines, 1000 * MIB / 64);
    }

    #[test]
    fn a_slow_stream_waits_for_the_first_line_only() {
        let pacer = pacer("fpga-prototype");
        let elapsed = stream(&pacer, 1000, MIB, 200_000);
        // 300 ns of excess latency a batch, and nothing for bandwidth (but for the first batch, which had no past).
        assert!((200_300_000..200_500_000).contains(&elapsed), "{elapsed}");
    }

    #[test]
    fn what_is_gathered_is_accounted_as_each_alone() {
        let (together, alone) = (pacer("fpga-prototype"), pacer("fpga-prototype"));
        for round in 0..1000u64 {
            let accesses = [
                Access::read_random(1 + round % 7, 900 * MIB, (1 + round % 3) as f64),
                Access::write_random(round % 2, 900 * MIB, f64::MAX),
                Access::write_sequential(100),
            ];
            together.gather(1, &accesses);
            alone.spend(&accesses);
        }
        together.settle(1);
        assert_eq!(together.settle(1), PacingCounters::default());
        let (together, alone) = (together.counters(), alone.counters());
        let asked = |counters: PacingCounters| (counters.bytes_read, counters.bytes_written, counters.lines);
        // Lines that are written in sequence are counted in whole ones of what is accounted together.
        assert_eq!((asked(together).0, asked(together).1), (asked(alone).0, asked(alone).1));
        assert!(together.lines <= alone.lines && together.lines > alone.lines - 1000);
        let near = |a: u64, b: u64| a.abs_diff(b) <= b / 20;
        assert!(near(together.stall_ns, alone.stall_ns), "{together:?} {alone:?}");
        assert!(near(together.link_bytes_read, alone.link_bytes_read), "{together:?} {alone:?}");
    }

    #[test]
    fn threads_share_the_link() {
        // Two threads, each slow enough to fit alone, too fast together.
        let pacer = pacer("fpga-prototype");
        let mut accounts = [ThreadAccount::default(); 2];
        let mut real = START;
        for _ in 0..1000 {
            real += 120_000;
            for account in &mut accounts {
                pacer.account(account, real, &[Access::read_sequential(MIB)]);
            }
        }
        let elapsed = real + accounts[0].debt_ns.max(accounts[1].debt_ns) as u64 - START;
        let gb_per_s = (2000 * MIB) as f64 / elapsed as f64;
        assert!((10.2..10.7).contains(&gb_per_s), "{gb_per_s}");
    }

    #[test]
    fn tablespaces_on_one_link_share_it() {
        let on = |link: Option<&str>| {
            let profile = Profile { link: link.map(str::to_owned), ..Profile::preset("fpga-prototype").unwrap() };
            Pacer::shared_by(CostModel::new(profile, Profile::preset("local-dram").unwrap(), 32 * MIB), 2)
        };
        let elapsed = |first: Pacer, second: Pacer| {
            let mut accounts = [ThreadAccount::default(); 2];
            let mut real = START;
            for _ in 0..1000 {
                real += 100_000;
                first.account(&mut accounts[0], real, &[Access::read_sequential(MIB)]);
                second.account(&mut accounts[1], real, &[Access::read_sequential(MIB)]);
            }
            real + accounts[0].debt_ns.max(accounts[1].debt_ns) as u64 - START
        };
        // A MiB takes 98 us of the link.
        assert!(elapsed(on(None), on(None)) < 102_000_000);
        // Other runs of this test, at once or before, have links of their own.
        let [one, other, same] = ["one", "other", "same"].map(|name| format!("{name} of test {}", std::process::id()));
        assert!(elapsed(on(Some(&one)), on(Some(&other))) < 102_000_000);
        assert!(elapsed(on(Some(&same)), on(Some(&same))) > 195_000_000);
    }

    /// Threads whose virtual times are apart by what one owes and another is credited, each using a hundredth of the link.
    #[test]
    fn what_threads_owe_holds_nobody_else_up() {
        let pacer = pacer("fpga-prototype");
        // 10,700 bytes take 1 us of the link.
        let tiny = [Access { pattern: Pattern::Sequential { bytes: 10_688, runs: 0 }, write: false }];
        let mut owing = ThreadAccount { last_ns: START, debt_ns: DEBT_NS_MIN - 1, ..ThreadAccount::default() };
        let mut credited = ThreadAccount { last_ns: START, debt_ns: -CREDIT_NS_MAX, ..ThreadAccount::default() };
        let mut even = ThreadAccount { last_ns: START, ..ThreadAccount::default() };
        for round in 1..=100 {
            let real = START + 2 * CREDIT_NS_MAX as u64 + round * 100_000;
            for account in [&mut owing, &mut credited, &mut even] {
                let debt_ns = account.debt_ns;
                assert_eq!(pacer.account(account, real, &tiny).stall_ns, 0, "round {round}, debt {debt_ns}");
            }
        }
    }

    #[test]
    fn a_long_transfer_of_one_thread_leaves_another_its_share_of_the_link() {
        let pacer = pacer("fpga-prototype");
        let mut long = ThreadAccount::default();
        let mut short = ThreadAccount { last_ns: START, ..ThreadAccount::default() };
        let line = [Access { pattern: Pattern::Sequential { bytes: 64, runs: 0 }, write: false }];
        let mut real = START;
        let mut moved = 0;
        let mut stalled = 0;
        while real < START + 1_000_000_000 {
            // 10 MiB take 980 us, all of which this thread waits; the other one takes a line every microsecond.
            pacer.account(&mut long, real, &[Access::read_sequential(10 * MIB)]);
            moved += 10 * MIB;
            let until = real + long.debt_ns as u64;
            long.debt_ns = 0;
            while real < until {
                real += 1_000;
                stalled += pacer.account(&mut short, real, &line).stall_ns;
                moved += 64;
            }
        }
        assert_eq!(stalled, 0);
        let gb_per_s = moved as f64 / (real - START) as f64;
        assert!((10.5..10.72).contains(&gb_per_s), "{gb_per_s}");
    }

    #[test]
    fn striped_devices_add_up_and_near_memory_takes_its_share() {
        let striped = |parts: &[(f64, Option<&str>)]| {
            let shares = parts.iter().map(|(part, name)| crate::Share {
                part: *part,
                profile: name.map(|name| Profile::preset(name).unwrap()),
            });
            let local = Profile::preset("local-dram").unwrap();
            Pacer::shared_by(CostModel::striped(shares.collect(), local, 32 * MIB), 2)
        };
        let gb_per_s = |pacer: &Pacer| (1000 * MIB) as f64 / stream(pacer, 1000, MIB, 10_000) as f64;
        let two = striped(&[(0.5, Some("fpga-prototype")), (0.5, Some("fpga-prototype"))]);
        assert!((20.5..21.5).contains(&gb_per_s(&two)), "{}", gb_per_s(&two));
        assert_eq!((two.counters().bytes_read, two.counters().link_bytes_read), (1000 * MIB, 1000 * MIB));
        // Half of the bytes are near, and take their own time.
        let uniform = striped(&[(0.5, None), (0.5, Some("fpga-prototype"))]);
        assert!((20.5..21.5).contains(&gb_per_s(&uniform)), "{}", gb_per_s(&uniform));
        assert_eq!(uniform.counters().link_bytes_read, 500 * MIB);
        let mut account = ThreadAccount::default();
        let stall = uniform.account(&mut account, START, &[Access::read_random(1000, 64 * MIB, 1.0)]).stall_ns;
        assert_eq!(stall, 500 * 150);
        let follower = uniform.followed_by(two.model().clone());
        assert_eq!(follower.counters(), uniform.counters());
    }

    #[test]
    fn random_access_owes_the_difference_in_latency() {
        let pacer = pacer("fpga-prototype");
        let mut account = ThreadAccount::default();
        let stall = pacer.account(&mut account, START, &[Access::read_random(1000, 64 * MIB, 1.0)]).stall_ns;
        assert_eq!(stall, 500 * 300);
        assert_eq!(pacer.counters().stall_ns, 150_000);
        // With many in flight the link's 500 * 64 / 10.7 ns are what counts, less what local memory took.
        account.debt_ns = 0;
        let stall =
            pacer.account(&mut account, START + 150_000 + 299, &[Access::read_random(1000, 64 * MIB, 1e6)]).stall_ns;
        assert!((2000..3000).contains(&stall), "{stall}");
        assert_eq!(pacer.account(&mut account, START, &[Access::read_random(1000, MIB, 1.0)]).stall_ns, 0);
    }

    #[test]
    fn accesses_side_by_side_overlap() {
        let pacer = pacer("fpga-prototype");
        let mut account = ThreadAccount { last_ns: START, ..ThreadAccount::default() };
        let accesses =
            [Access::read_sequential(MIB), Access::read_random(1000, 64 * MIB, 1.0), Access::write_sequential(MIB)];
        // 2 * 98.0 us and 3.0 us of the link, of which 150 us ran beneath the computing; the random waits are longer than
        // the 49 us that are left.
        let stall = pacer.account(&mut account, START + 150_000, &accesses).stall_ns;
        assert_eq!(stall, 2 * 300 + 150_000);
        // Had the waits been short, the link would count.
        let mut account = ThreadAccount { last_ns: START + 1_000_000, ..ThreadAccount::default() };
        let stall = pacer.account(&mut account, START + 1_150_000, &accesses[..1]).stall_ns;
        assert_eq!(stall, 300);
    }

    #[test]
    fn reads_and_writes_side_by_side_run_at_the_bandwidth_of_their_mix() {
        // 4 MiB at 27.2 GB/s take 154 us of the link, which two latencies of 150 ns hardly lengthen.
        let pacer = pacer("cxl-asic");
        let (mut account, mut real) = (ThreadAccount::default(), START);
        for _ in 0..1000 {
            real += 50_000;
            pacer.account(&mut account, real, &[Access::read_sequential(2 * MIB), Access::write_sequential(2 * MIB)]);
        }
        let gb_per_s = (4000 * MIB) as f64 / (real + account.debt_ns as u64 - START) as f64;
        assert!((27.0..27.2).contains(&gb_per_s), "{gb_per_s}");
    }

    #[test]
    fn idle_time_is_not_saved_up() {
        let pacer = pacer("fpga-prototype");
        let mut account = ThreadAccount::default();
        pacer.account(&mut account, START, &[Access::read_sequential(MIB)]);
        let later = START + 60_000_000_000;
        account.debt_ns = 0;
        // A minute of idling pays for one batch that may have been prefetched, and not for the one right after it.
        let first = pacer.account(&mut account, later, &[Access::read_sequential(MIB)]).stall_ns;
        let second = pacer.account(&mut account, later, &[Access::read_sequential(MIB)]).stall_ns;
        assert_eq!(first, 300);
        assert!(second <= 98_000 + 300 && second > 80_000, "{second}");
    }

    #[test]
    fn what_accounting_takes_is_taken_off_what_is_owed() {
        let pacer = pacer("rdma-56g");
        let debt_ns = || ACCOUNTS.with(|accounts| accounts[pacer.id % THREAD_ACCOUNTS].get()).debt_ns;
        // A millisecond at most, however long it took.
        pacer.credit(50_000_000);
        assert_eq!(debt_ns(), -CREDIT_NS_MAX);
        // 0.7 ms of the link: accounted, and nothing of it waited for.
        let stall = pacer.charge(Access::read_sequential(5_000_000));
        assert!((500_000..CREDIT_NS_MAX as u64).contains(&stall), "{stall}");
        assert_eq!(debt_ns(), stall as i64 - CREDIT_NS_MAX);
    }

    #[test]
    fn large_debts_are_spent_and_small_ones_carried() {
        let pacer = pacer("rdma-56g");
        // 0.7 ms of the link and more: spent at once.
        let before = Instant::now();
        let stall = pacer.charge(Access::read_sequential(5_000_000));
        assert!(stall > 500_000);
        assert!(before.elapsed().as_nanos() as u64 >= stall);
        assert_eq!(pacer.counters().stall_ns, stall);
    }
}
