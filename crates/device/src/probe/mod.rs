//! Measuring memory: what loads, stores and streams cost on a device, as one thread and as all of them see it.
//!
//! * *Dependent loads*: one chain through all lines of a working set (`cycle`), in huge and in ordinary pages. The
//!   steps of the curve are the caches; where the two kinds of pages part, the translation of addresses is what costs.
//! * *Loads in flight*: several such chains at once over the largest working set.
//! * *Turns*, on paced devices: dependent loads by number of threads, alone and in turns with reads in sequence.
//! * *Fenced writes*: one line at a time past the caches, each waited for.
//! * *Streams* (`stream`): reads, ordinary and non-temporal writes and mixes of them in sequence, by number of threads.
//!
//! Everything is measured once a round and summed up over the rounds, so that what else the machine does hits all settings
//! alike. Pages are touched before anything is timed.

mod clock;
mod cycle;
mod pages;
mod stream;
mod summary;

pub use crate::affinity::processors;
pub use clock::Clock;
pub use cycle::IN_FLIGHT_MAX;
pub use stream::Stream;
pub use summary::Summary;

use crate::{Access, Cache, HUGE_PAGE_BYTES, Mix, Mixes, PAGE_BYTES, Pacer, Profile};
use cycle::{Cycle, LINE_BYTES, STRETCH_LINES};
use serde::Serialize;
use std::cell::{Cell, RefCell};
use std::sync::Barrier;
use std::time::{Duration, Instant};
use stream::{Kernels, gb_per_s};
use tidepool_base::{ByteSize, Error, Result, SqlState};

/// Smallest working set of the loads: within every first cache.
const WORKING_SET_BYTES_MIN: usize = 4096;

/// Time of one measurement of loads, and of one of a stream.
const LOADS_DURATION: Duration = Duration::from_millis(10);
const STREAM_DURATION: Duration = Duration::from_millis(50);

/// After wide vectors and after sleep a processor runs slower for some milliseconds: it is kept busy before loads are timed.
const WARM_UP_DURATION: Duration = Duration::from_millis(50);

/// Keeps the calling thread on one processor. Where that is refused the thread may move: figures scatter a little more.
fn pin(processor: usize) {
    let _ = crate::confine(&[processor]);
}

/// Mixes that are measured: reads to writes.
const MIXES: [(u32, u32); 3] = [(3, 1), (2, 1), (1, 1)];

/// Chains of the paced loads.
const PACED_IN_FLIGHT: [usize; 3] = [1, 4, 16];

/// What is read in sequence after every [`STRETCH_LINES`] dependent loads, where they take turns.
const TURN_SCAN_BYTES: usize = 4 << 20;

#[derive(Clone, Debug)]
pub struct Settings {
    /// Largest working set, bytes: several times the last-level cache, or it is the cache that is measured.
    pub working_set_bytes_max: usize,
    pub rounds: usize,
    /// Processors to measure on, by number, the first alone where one thread measures.
    pub processors: Vec<usize>,
}

impl Settings {
    /// Memory that [`measure`] wants: both kinds of pages at once.
    pub fn memory_bytes(&self) -> usize {
        2 * self.working_set_bytes_max.next_multiple_of(HUGE_PAGE_BYTES) + HUGE_PAGE_BYTES
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pages {
    pub huge: bool,
    /// Part of the memory that really lay in huge pages, 0 to 1.
    pub huge_share: f64,
    /// First touch of 4 KiB of it, ns.
    pub first_touch_ns: f64,
}

/// ns a line.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Loads {
    pub huge_pages: bool,
    pub working_set_bytes: usize,
    /// Chains followed at once; 1: each load depends on the one before.
    pub in_flight: usize,
    pub ns: Summary,
}

/// GB/s (1e9 bytes) of all threads together, both directions together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Bandwidth {
    pub stream: Stream,
    pub threads: usize,
    pub gb_per_s: Summary,
}

/// The same access on a paced device: what its profile says, what came out, and what this machine does without pacing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Paced {
    pub what: String,
    /// `ns` a line, `us` a turn, or `GB/s`.
    pub unit: &'static str,
    pub profile: f64,
    pub achieved: Summary,
    pub unpaced: f64,
    /// Of the median of what was achieved from the profile: 0.05 is five percent more.
    pub deviation: f64,
}

impl Paced {
    fn new(what: String, unit: &'static str, profile: f64, achieved: Summary, unpaced: f64) -> Paced {
        Paced { what, unit, profile, achieved, unpaced, deviation: achieved.median / profile - 1.0 }
    }

    /// This machine is itself slower than the profile, which pacing cannot help.
    pub fn out_of_reach(&self) -> bool {
        if self.unit == "GB/s" { self.unpaced < self.profile } else { self.unpaced > self.profile }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    pub clock: Clock,
    /// Instructions of the streams.
    pub vectors: &'static str,
    pub rounds: usize,
    pub pages: Vec<Pages>,
    pub dependent_loads: Vec<Loads>,
    pub loads_in_flight: Vec<Loads>,
    /// ns.
    pub fenced_write: Summary,
    pub bandwidth: Vec<Bandwidth>,
    pub paced: Vec<Paced>,
}

impl Measured {
    /// One dependent load beyond the caches, in huge pages where there are any: ns.
    pub fn latency(&self) -> Option<&Loads> {
        self.dependent_loads.iter().max_by_key(|loads| (loads.huge_pages, loads.working_set_bytes))
    }

    /// With all threads.
    pub fn bandwidth_of(&self, stream: Stream) -> Option<&Bandwidth> {
        self.bandwidth.iter().filter(|found| found.stream == stream).max_by_key(|found| found.threads)
    }

    /// What was measured, as a profile. 22023 when the figures contradict each other, as on a machine that is busy with
    /// something else.
    pub fn profile(&self, name: &str, source: &str) -> Result<Profile> {
        let missing = || Error::internal("the probe left something out");
        let bandwidth =
            |stream| self.bandwidth_of(stream).map(|found| rounded(found.gb_per_s.median, 100.0)).ok_or_else(missing);
        let mixes = MIXES
            .map(|(reads, writes)| Ok(Mix { reads, writes, gb_per_s: bandwidth(Stream::Mixed { reads, writes })? }));
        let profile = Profile {
            name: name.to_owned(),
            read_latency_ns: rounded(self.latency().ok_or_else(missing)?.ns.median, 10.0),
            write_latency_ns: rounded(self.fenced_write.median, 10.0),
            read_gb_per_s: bandwidth(Stream::Read)?,
            write_gb_per_s: bandwidth(Stream::StreamedWrite)?,
            mixed_gb_per_s: Mixes::new(mixes.into_iter().collect::<Result<_>>()?),
            granularity_bytes: LINE_BYTES as u32,
            link: None,
            source: source.to_owned(),
        };
        profile.validate().map_err(|error| {
            error.with_hint("Measure again when nothing else runs on this machine, or with more rounds.")
        })?;
        Ok(profile)
    }

    /// How much the last-level cache really holds for one thread, bytes: the size with which the cost model's curve, hits at
    /// one latency and misses at another, comes nearest to the dependent loads over more than the second-level cache. `None`
    /// where they do not tell a cache from memory.
    pub fn cache_reach_bytes(&self, caches: &[Cache]) -> Option<u64> {
        let second = caches.iter().filter(|cache| cache.level < 3).map(|cache| cache.size_bytes).max()?;
        let huge = self.latency()?.huge_pages;
        let curve: Vec<(f64, f64)> = self
            .dependent_loads
            .iter()
            .filter(|loads| loads.huge_pages == huge && loads.working_set_bytes as u64 >= 2 * second)
            .map(|loads| (loads.working_set_bytes as f64, loads.ns.median))
            .collect();
        let (least, most) = (curve.first()?.0, curve.last()?.0);
        // Sixteen sizes a doubling: finer than the curve is.
        let sizes = std::iter::successors(Some(least), |size| Some(size * 2f64.powf(1.0 / 16.0)));
        let best = sizes
            .take_while(|size| *size < most / 2.0)
            .filter_map(|size| Some((size, fit(&curve, size)?)))
            .min_by(|left, right| left.1.error.total_cmp(&right.1.error))?;
        (best.1.miss_ns > 1.5 * best.1.hit_ns && best.1.hit_ns > 0.0).then_some(best.0 as u64)
    }
}

struct Fit {
    hit_ns: f64,
    miss_ns: f64,
    /// Sum of the squares of relative errors.
    error: f64,
}

/// Least squares of relative errors of `hit + (miss - hit) * misses` over (working set, ns), for a cache of `cache_bytes`.
fn fit(curve: &[(f64, f64)], cache_bytes: f64) -> Option<Fit> {
    let misses = |working_set: f64| (1.0 - cache_bytes / working_set).max(0.0);
    let (mut n, mut x, mut y, mut xx, mut xy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for &(working_set, ns) in curve {
        let (share, weight) = (misses(working_set), 1.0 / (ns * ns));
        n += weight;
        x += weight * share;
        y += weight * ns;
        xx += weight * share * share;
        xy += weight * share * ns;
    }
    let determinant = n * xx - x * x;
    if determinant.abs() < 1e-12 * n * xx {
        return None;
    }
    let slope = (n * xy - x * y) / determinant;
    let hit_ns = (y - slope * x) / n;
    let error =
        curve.iter().map(|&(working_set, ns)| ((hit_ns + slope * misses(working_set)) / ns - 1.0).powi(2)).sum();
    Some(Fit { hit_ns, miss_ns: hit_ns + slope, error })
}

fn rounded(value: f64, scale: f64) -> f64 {
    (value * scale).round() / scale
}

/// 4 KiB, 6 KiB, 8 KiB, 12 KiB and so on to `max`, whole lines all of them.
fn working_sets(max: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = std::iter::successors(Some(WORKING_SET_BYTES_MIN), |size| size.checked_mul(2))
        .take_while(|size| *size < max)
        .flat_map(|size| [size, size / 2 * 3])
        .filter(|size| *size < max)
        .collect();
    sizes.push(max / LINE_BYTES * LINE_BYTES);
    sizes
}

/// Every number up to 8, then doubling, and all.
fn thread_counts(all: usize) -> Vec<usize> {
    let doubling =
        std::iter::successors(Some(16), |count: &usize| count.checked_mul(2)).take_while(|count| *count < all);
    let mut counts: Vec<usize> = (1..=all.min(8)).chain(doubling).collect();
    if counts.last() != Some(&all) {
        counts.push(all);
    }
    counts
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Setting {
    Loads {
        huge_pages: bool,
        working_set_bytes: usize,
        in_flight: usize,
        paced: bool,
    },
    FencedWrite,
    /// Dependent loads of several threads, which each read `scan_bytes` in sequence after every stretch. ns a line.
    Turns {
        threads: usize,
        scan_bytes: usize,
        paced: bool,
    },
    Stream {
        stream: Stream,
        threads: usize,
        paced: bool,
    },
}

/// Samples by setting, in the order in which the settings first came.
#[derive(Default)]
struct Samples(RefCell<Vec<(Setting, Vec<f64>)>>);

impl Samples {
    fn add(&self, setting: Setting, sample: f64) {
        let mut all = self.0.borrow_mut();
        match all.iter_mut().find(|(other, _)| *other == setting) {
            Some((_, samples)) => samples.push(sample),
            None => all.push((setting, vec![sample])),
        }
    }
}

/// One kind of pages.
struct Area<'a> {
    memory: &'a mut [u8],
    pages: Pages,
}

/// Measures `memory`, which nobody has touched yet (otherwise the kind of its pages is what it is), and if there is a pacer
/// the same accesses through it. `progress` hears of each round. 22023 when there is too little memory to measure.
pub fn measure(
    memory: &mut [u8],
    settings: &Settings,
    pacer: Option<&Pacer>,
    progress: &mut dyn FnMut(usize),
) -> Result<Measured> {
    let processors = &settings.processors;
    let area_bytes = memory.len().saturating_sub(HUGE_PAGE_BYTES) / 2 / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    // Each thread has at least two blocks, of which the mixes leave half to the writes.
    let bytes_min = (4 * HUGE_PAGE_BYTES).max(2 * processors.len() * stream::BLOCK_BYTES);
    if area_bytes < bytes_min {
        return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "there is too little memory to measure")
            .with_detail(format!(
                "{} threads need {}, and there are {}.",
                processors.len(),
                ByteSize((2 * bytes_min + HUGE_PAGE_BYTES) as u64),
                ByteSize(memory.len() as u64)
            )));
    }
    if settings.rounds == 0 || processors.is_empty() {
        return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "at least one round and one processor are needed"));
    }
    let mut areas = on_processor(processors[0], || prepare(memory, area_bytes));
    let clock = on_processor(processors[0], Clock::measure);
    let kernels = stream::detect();
    let sizes = working_sets(settings.working_set_bytes_max.clamp(2 * WORKING_SET_BYTES_MIN, area_bytes));
    let samples = Samples::default();
    for round in 0..settings.rounds {
        progress(round);
        loads(&mut areas, &sizes, processors[0], pacer, &samples);
        if let Some(pacer) = pacer {
            all_turns(&mut *areas[0].memory, &kernels, processors, pacer, &samples);
        }
        // The first area has the huge pages, if there are any.
        streams(&mut *areas[0].memory, &kernels, processors, round, pacer, &samples);
    }
    summed_up(samples, settings, clock, kernels, &areas, pacer)
}

fn on_processor<T: Send>(processor: usize, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            pin(processor);
            work()
        });
        thread.join().expect("a measuring thread does not panic")
    })
}

/// Touches the memory and finds out what kinds of pages can be had: one area of each, huge ones first.
fn prepare(memory: &mut [u8], area_bytes: usize) -> Vec<Area<'_>> {
    let start = memory.as_ptr().align_offset(HUGE_PAGE_BYTES);
    let (first, second) = memory[start..start + 2 * area_bytes].split_at_mut(area_bytes);
    // Both before either is touched: the kernel counts huge pages by stretches of memory with the same advice.
    pages::advise(first, true);
    pages::advise(second, false);
    let touched = [first, second].map(|memory| {
        let start = Instant::now();
        for page in memory.chunks_mut(PAGE_BYTES) {
            page[0] = 1;
        }
        (memory, start.elapsed().as_nanos() as f64 / (area_bytes / PAGE_BYTES) as f64)
    });
    let mut areas: Vec<Area<'_>> = touched
        .into_iter()
        .map(|(memory, first_touch_ns)| {
            let huge_share = pages::huge_share(memory);
            Area { memory, pages: Pages { huge: huge_share >= 0.5, huge_share, first_touch_ns } }
        })
        .collect();
    if areas[0].pages.huge == areas[1].pages.huge {
        areas.truncate(1);
    }
    areas
}

/// One round of loads and fenced writes.
fn loads(areas: &mut [Area<'_>], sizes: &[usize], processor: usize, pacer: Option<&Pacer>, samples: &Samples) {
    let found = on_processor(processor, || {
        let mut found = Vec::new();
        Cycle::lay(&mut areas[0].memory[..WORKING_SET_BYTES_MIN]).ns_per_line(1, WARM_UP_DURATION, &|_| ());
        for (index, area) in areas.iter_mut().enumerate() {
            let huge_pages = area.pages.huge;
            for &working_set_bytes in sizes {
                let mut cycle = Cycle::lay(&mut area.memory[..working_set_bytes]);
                let mut take = |in_flight, paced: Option<&Pacer>| {
                    let after = |lines| {
                        if let Some(pacer) = paced {
                            // Every line misses: the cycle comes round after many times what the caches hold.
                            pacer.charge(Access::read_random(lines, u64::MAX, in_flight as f64));
                        }
                    };
                    let ns = cycle.ns_per_line(in_flight, LOADS_DURATION, &after);
                    let paced = paced.is_some();
                    found.push((Setting::Loads { huge_pages, working_set_bytes, in_flight, paced }, ns));
                };
                take(1, None);
                if index == 0 && Some(&working_set_bytes) == sizes.last() {
                    for in_flight in 2..=IN_FLIGHT_MAX {
                        take(in_flight, None);
                    }
                    if pacer.is_some() {
                        for in_flight in PACED_IN_FLIGHT {
                            take(in_flight, pacer);
                        }
                    }
                    let ns = cycle::fenced_write_ns(&mut area.memory[..working_set_bytes], LOADS_DURATION);
                    found.push((Setting::FencedWrite, ns));
                }
            }
        }
        found
    });
    for (setting, ns) in found {
        samples.add(setting, ns);
    }
}

/// One round of turns. One thread's loads alone are among [`loads`].
fn all_turns(memory: &mut [u8], kernels: &Kernels, processors: &[usize], pacer: &Pacer, samples: &Samples) {
    let all = processors.len();
    let mut settings = vec![(1, TURN_SCAN_BYTES)];
    if all > 1 {
        settings.extend([(all, 0), (all, TURN_SCAN_BYTES)]);
    }
    for (threads, scan_bytes) in settings {
        for pacer in [None, Some(pacer)] {
            let ns = turns(memory, kernels, &processors[..threads], scan_bytes, pacer);
            samples.add(Setting::Turns { threads, scan_bytes, paced: pacer.is_some() }, ns);
        }
    }
}

/// Mean of the threads, ns a line.
fn turns(memory: &mut [u8], kernels: &Kernels, processors: &[usize], scan_bytes: usize, pacer: Option<&Pacer>) -> f64 {
    let threads = processors.len();
    let part_bytes = memory.len() / threads / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    let start = Barrier::new(threads);
    let sum: f64 = std::thread::scope(|scope| {
        let workers: Vec<_> = memory
            .chunks_exact_mut(part_bytes)
            .zip(processors)
            .map(|(part, &processor)| {
                let start = &start;
                scope.spawn(move || {
                    pin(processor);
                    // Most of it for the loads, which are to miss the caches.
                    let (chased, scanned) = part.split_at_mut(part_bytes / 4 * 3 / LINE_BYTES * LINE_BYTES);
                    let scanned = &scanned[..scanned.len() / stream::STEP_BYTES * stream::STEP_BYTES];
                    let next = Cell::new(0);
                    let after = |lines| {
                        // In turns, so charged one by one: nothing of the one goes on beneath the other.
                        if let Some(pacer) = pacer {
                            pacer.charge(Access::read_random(lines, u64::MAX, 1.0));
                        }
                        let mut left = scan_bytes;
                        while left > 0 {
                            let from = next.get();
                            let to = scanned.len().min(from + left);
                            (kernels.read)(&scanned[from..to]);
                            next.set(to % scanned.len());
                            left -= to - from;
                        }
                        if scan_bytes > 0
                            && let Some(pacer) = pacer
                        {
                            pacer.charge(Access::read_sequential(scan_bytes as u64));
                        }
                    };
                    let mut cycle = Cycle::lay(chased);
                    start.wait();
                    cycle.ns_per_line(1, STREAM_DURATION, &after)
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("a measuring thread does not panic")).sum()
    });
    sum / threads as f64
}

/// One round of streams.
fn streams(
    memory: &mut [u8],
    kernels: &Kernels,
    processors: &[usize],
    round: usize,
    pacer: Option<&Pacer>,
    samples: &Samples,
) {
    let all = processors.len();
    let mixes = MIXES.map(|(reads, writes)| Stream::Mixed { reads, writes });
    let mut take = |stream, threads: usize, paced: Option<&Pacer>| {
        let after = |read, written| {
            if let Some(pacer) = paced {
                let accesses = [Access::read_sequential(read), Access::write_sequential(written)];
                pacer.charge_all(match (read, written) {
                    (_, 0) => &accesses[..1],
                    (0, _) => &accesses[1..],
                    _ => &accesses,
                });
            }
        };
        let rate = gb_per_s(kernels, memory, stream, &processors[..threads], STREAM_DURATION, round, &after);
        samples.add(Setting::Stream { stream, threads, paced: paced.is_some() }, rate);
    };
    for threads in thread_counts(all) {
        for stream in [Stream::Read, Stream::Write, Stream::StreamedWrite] {
            take(stream, threads, None);
        }
        if threads == 1 || threads == all {
            for stream in mixes {
                take(stream, threads, None);
            }
            if pacer.is_some() {
                for stream in [Stream::Read, Stream::StreamedWrite].into_iter().chain(mixes) {
                    take(stream, threads, pacer);
                }
            }
        }
    }
}

fn summed_up(
    samples: Samples,
    settings: &Settings,
    clock: Clock,
    kernels: Kernels,
    areas: &[Area<'_>],
    pacer: Option<&Pacer>,
) -> Result<Measured> {
    let samples = samples.0.into_inner();
    let summary = |samples: &[f64]| Summary::of(samples).ok_or_else(|| Error::internal("a setting was not measured"));
    let unpaced = |wanted: Setting| {
        let found = samples.iter().find(|(setting, _)| *setting == wanted).map(|(_, samples)| samples.as_slice());
        Ok(summary(found.unwrap_or_default())?.median)
    };
    let mut measured = Measured {
        clock,
        vectors: kernels.name,
        rounds: settings.rounds,
        pages: areas.iter().map(|area| area.pages).collect(),
        dependent_loads: Vec::new(),
        loads_in_flight: Vec::new(),
        fenced_write: summary(
            samples.iter().find(|(setting, _)| *setting == Setting::FencedWrite).map_or(&[], |(_, samples)| samples),
        )?,
        bandwidth: Vec::new(),
        paced: Vec::new(),
    };
    let largest = samples.iter().filter_map(|(setting, _)| match setting {
        Setting::Loads { working_set_bytes, .. } => Some(*working_set_bytes),
        _ => None,
    });
    let largest = largest.max();
    for (setting, found) in &samples {
        let sum = summary(found)?;
        match *setting {
            Setting::Loads { huge_pages, working_set_bytes, in_flight, paced: false } => {
                let loads = Loads { huge_pages, working_set_bytes, in_flight, ns: sum };
                if in_flight == 1 {
                    measured.dependent_loads.push(loads);
                }
                if Some(working_set_bytes) == largest && huge_pages == areas[0].pages.huge {
                    measured.loads_in_flight.push(loads);
                }
            }
            Setting::FencedWrite | Setting::Turns { paced: false, .. } => {}
            Setting::Turns { threads, scan_bytes, paced: true } => {
                let Some(pacer) = pacer else { continue };
                let loads = Access::read_random(STRETCH_LINES as u64, u64::MAX, 1.0);
                let scan = Access::read_sequential(scan_bytes as u64);
                // Each thread's own time. What the threads move together is far below what the link carries.
                let turn_ns = pacer.model().device_ns(&loads) + pacer.model().device_ns(&scan);
                let unpaced = unpaced(Setting::Turns { threads, scan_bytes, paced: false })?;
                measured.paced.push(if scan_bytes == 0 {
                    let what = format!("dependent loads, {threads} threads");
                    Paced::new(what, "ns", turn_ns / STRETCH_LINES as f64, sum, unpaced)
                } else {
                    let what = format!(
                        "{STRETCH_LINES} dependent loads, then {} in sequence, {threads} thread{}",
                        ByteSize(scan_bytes as u64),
                        if threads == 1 { "" } else { "s" }
                    );
                    let us = STRETCH_LINES as f64 / 1e3;
                    Paced::new(what, "us", turn_ns / 1e3, sum.scaled(us), unpaced * us)
                });
            }
            Setting::Stream { stream, threads, paced: false } => {
                measured.bandwidth.push(Bandwidth { stream, threads, gb_per_s: sum });
            }
            Setting::Loads { huge_pages, working_set_bytes, in_flight, paced: true } => {
                let Some(pacer) = pacer else { continue };
                let lines = 1_000_000;
                let access = Access::read_random(lines, u64::MAX, in_flight as f64);
                let what =
                    if in_flight == 1 { "dependent loads".to_owned() } else { format!("{in_flight} loads in flight") };
                let unpaced = unpaced(Setting::Loads { huge_pages, working_set_bytes, in_flight, paced: false })?;
                let profile = pacer.model().device_ns(&access) / lines as f64;
                measured.paced.push(Paced::new(what, "ns", profile, sum, unpaced));
            }
            Setting::Stream { stream, threads, paced: true } => {
                let Some(pacer) = pacer else { continue };
                let (reads, writes) = match stream {
                    Stream::Read => (1, 0),
                    Stream::Write | Stream::StreamedWrite => (0, 1),
                    Stream::Mixed { reads, writes } => (reads, writes),
                };
                let transfer_ns = pacer.model().transfer_ns(f64::from(reads), f64::from(writes));
                let what = format!("{stream}, {threads} thread{}", if threads == 1 { "" } else { "s" });
                let unpaced = unpaced(Setting::Stream { stream, threads, paced: false })?;
                measured.paced.push(Paced::new(what, "GB/s", f64::from(reads + writes) / transfer_ns, sum, unpaced));
            }
        }
    }
    Ok(measured)
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::{CostModel, LOCAL_DRAM, Location, MapOptions, Mapping, Topology};

    fn with_memory<T>(settings: &Settings, work: impl FnOnce(&mut [u8]) -> T) -> T {
        let size = settings.memory_bytes() as u64;
        let mapping = Mapping::open(&Location::Anon, Some(size), MapOptions { huge_pages: true }).unwrap();
        // SAFETY: as long as the mapping, which nothing else borrows from.
        work(unsafe { std::slice::from_raw_parts_mut(mapping.base().as_ptr(), mapping.len()) })
    }

    fn settings(working_set_bytes_max: usize, rounds: usize) -> Settings {
        Settings { working_set_bytes_max, rounds, processors: processors().unwrap() }
    }

    #[test]
    fn sizes_and_counts_reach_from_the_least_to_the_most() {
        assert_eq!(working_sets(20 << 10), [4096, 6144, 8192, 12288, 16384, 20480]);
        assert_eq!(working_sets(8 << 10), [4096, 6144, 8192]);
        assert_eq!(thread_counts(1), [1]);
        assert_eq!(thread_counts(2), [1, 2]);
        assert_eq!(thread_counts(12), [1, 2, 3, 4, 5, 6, 7, 8, 12]);
        assert_eq!(thread_counts(64), [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64]);
    }

    #[test]
    fn memory_is_measured_and_paced() {
        let pacer = Pacer::new(CostModel::on_this_machine(Profile::preset("rdma-56g").unwrap()).unwrap());
        let settings = settings(16 << 20, 2);
        let mut rounds = 0;
        let measured =
            with_memory(&settings, |memory| measure(memory, &settings, Some(&pacer), &mut |_| rounds += 1).unwrap());
        assert_eq!(rounds, 2);
        assert!(measured.clock.reading_ns > 0.0 && measured.clock.step_ns >= 1.0);
        assert!(measured.pages.iter().all(|pages| pages.first_touch_ns > 0.0));
        let threads = settings.processors.len();
        for stream in [Stream::Read, Stream::Write, Stream::StreamedWrite, Stream::Mixed { reads: 2, writes: 1 }] {
            assert_eq!(measured.bandwidth_of(stream).unwrap().threads, threads, "{stream}");
        }
        assert_eq!(measured.loads_in_flight.len(), IN_FLIGHT_MAX);
        let paced = measured.paced.iter().find(|paced| paced.what == "dependent loads").unwrap();
        // 1,200 ns a line, and the link idle beside it. The device is charged beyond local memory, never less.
        assert!((paced.profile - 1200.0).abs() < 1e-6);
        assert!(paced.achieved.min > 1000.0, "{paced:?}");
        let paced = measured.paced.iter().find(|paced| paced.what.starts_with("read, ")).unwrap();
        assert!((paced.profile - 7.0).abs() < 1e-9);
        assert!(paced.achieved.min > 0.0 && paced.achieved.max < 7.7, "{paced:?}");
    }

    #[test]
    fn too_little_memory_is_refused() {
        let settings = settings(16 << 20, 1);
        let error = measure(&mut [0; 4096], &settings, None, &mut |_| ()).unwrap_err();
        assert_eq!(error.code(), SqlState::INVALID_PARAMETER_VALUE);
        assert!(error.detail().unwrap().contains("4 kB"), "{error:?}");
        let none = Settings { rounds: 0, ..settings };
        assert!(with_memory(&none, |memory| measure(memory, &none, None, &mut |_| ())).is_err());
    }

    fn summary(median: f64) -> Summary {
        Summary::of(&[median]).unwrap()
    }

    fn made_up(curve: &[(usize, f64)]) -> Measured {
        let loads =
            |&(working_set_bytes, ns)| Loads { huge_pages: true, working_set_bytes, in_flight: 1, ns: summary(ns) };
        let bandwidth = |(stream, gb_per_s)| Bandwidth { stream, threads: 2, gb_per_s: summary(gb_per_s) };
        let mixed = |reads, writes| Stream::Mixed { reads, writes };
        Measured {
            clock: Clock { reading_ns: 30.0, step_ns: 1.0 },
            vectors: "none",
            rounds: 1,
            pages: vec![Pages { huge: true, huge_share: 1.0, first_touch_ns: 100.0 }],
            dependent_loads: curve.iter().map(loads).collect(),
            loads_in_flight: Vec::new(),
            fenced_write: summary(321.04),
            bandwidth: [
                (Stream::Read, 17.801),
                (Stream::Write, 9.0),
                (Stream::StreamedWrite, 16.0),
                (mixed(3, 1), 23.6),
                (mixed(2, 1), 25.1),
                (mixed(1, 1), 27.2),
            ]
            .map(bandwidth)
            .to_vec(),
            paced: Vec::new(),
        }
    }

    #[test]
    fn what_was_measured_becomes_a_profile() {
        let measured = made_up(&[(4096, 1.0), (1 << 30, 250.26)]);
        let profile = measured.profile("own", "somewhere").unwrap();
        assert_eq!((profile.read_latency_ns, profile.write_latency_ns), (250.3, 321.0));
        assert_eq!((profile.read_gb_per_s, profile.write_gb_per_s), (17.8, 16.0));
        assert_eq!(profile.mixed_gb_per_s.to_string(), "3:1 23.6, 2:1 25.1, 1:1 27.2");
        // More in a mix than alone, because something else was at work when reads were measured alone.
        let mut noisy = measured;
        noisy.bandwidth[0].gb_per_s = summary(5.0);
        let error = noisy.profile("own", "somewhere").unwrap_err();
        assert!(error.hint().unwrap().contains("Measure again"), "{error:?}");
    }

    #[test]
    fn the_caches_reach_is_found_in_the_curve() {
        let cache = |level, size_bytes| Cache { level, size_bytes, processors: 1 };
        let caches = [cache(1, 32 << 10), cache(2, 1 << 20), cache(3, 1 << 30)];
        // 8 MiB of a cache at 20 ns before memory at 100 ns; every third figure is a tenth off.
        let curve: Vec<(usize, f64)> = (0..22)
            .map(|step| {
                let size = (1 << 20 << (step / 2)) * (2 + step % 2) / 2;
                let misses = (1.0 - 8.0 / (size >> 20) as f64).max(0.0);
                (size, (20.0 + 80.0 * misses) * if step % 3 == 0 { 1.1 } else { 1.0 })
            })
            .collect();
        let reach = made_up(&curve).cache_reach_bytes(&caches).unwrap();
        assert!((7 << 20..10 << 20).contains(&reach), "{reach}");
        // Nothing but a cache, and nothing at all.
        let flat: Vec<(usize, f64)> = (0..12).map(|doubling| (1 << 20 << doubling, 20.0)).collect();
        assert_eq!(made_up(&flat).cache_reach_bytes(&caches), None);
        assert_eq!(made_up(&[(4096, 1.0), (4 << 20, 20.0)]).cache_reach_bytes(&caches), None);
    }

    /// The cost model beside this machine's own memory. Ignored: other work on the machine moves what is compared.
    #[test]
    #[ignore = "needs a machine that does nothing else; docs/how-to/probe-a-device.md says how to run it"]
    fn the_model_tells_what_this_machine_does() {
        let settings = settings(512 << 20, 9);
        let (measured, mixed) = with_memory(&settings, |memory| {
            let measured = measure(memory, &settings, None, &mut |_| ()).unwrap();
            let kernels = stream::detect();
            let memory = &mut memory[..settings.working_set_bytes_max];
            let stream = Stream::Mixed { reads: 5, writes: 1 };
            let mixed =
                |turn| gb_per_s(&kernels, memory, stream, &settings.processors, STREAM_DURATION, turn, &|_, _| ());
            (measured, (0..9).map(mixed).collect::<Vec<f64>>())
        });
        // A first cache is several times faster than memory, and chains that overlap are faster than one alone.
        let (first, last) =
            (&measured.dependent_loads[0], &measured.dependent_loads[working_sets(512 << 20).len() - 1]);
        assert!(first.ns.median * 2.0 < last.ns.median, "{first:?} {last:?}");
        let (one, eight) = (&measured.loads_in_flight[0], &measured.loads_in_flight[7]);
        assert!(eight.ns.median < one.ns.median, "{one:?} {eight:?}");
        let reach = measured.cache_reach_bytes(&Topology::read().caches).unwrap();
        let profile = measured.profile("here", "a test").unwrap();
        let model = CostModel::new(profile.clone(), Profile::preset(LOCAL_DRAM).unwrap(), reach);
        let mut report = Vec::new();
        let mut compare = |what: String, modelled: f64, measured: f64, factor: f64| {
            let line = format!("{what}: modelled {modelled:.1}, measured {measured:.1}");
            println!("{line}");
            if !(1.0 / factor..factor).contains(&(modelled / measured)) {
                report.push(line);
            }
        };
        // Loads over a working set, of which the model counts the misses: what hits costs is added.
        let huge = measured.latency().unwrap().huge_pages;
        let curve: Vec<&Loads> = measured.dependent_loads.iter().filter(|loads| loads.huge_pages == huge).collect();
        let hit_ns = curve.iter().rfind(|loads| (loads.working_set_bytes as u64) < reach / 2).unwrap().ns.median;
        for loads in curve.iter().filter(|loads| loads.working_set_bytes as u64 >= 2 * reach) {
            let lines = 1_000_000;
            let missed =
                model.device_ns(&Access::read_random(lines, loads.working_set_bytes as u64, 1.0)) / lines as f64;
            let modelled = missed + hit_ns * reach as f64 / loads.working_set_bytes as f64;
            let what = format!("a load over {}", ByteSize(loads.working_set_bytes as u64));
            compare(what, modelled, loads.ns.median, 2.0);
        }
        // In flight: up to half of what a core keeps in the air.
        for loads in &measured.loads_in_flight[1..8] {
            let modelled = model.device_ns(&Access::read_random(1000, u64::MAX, loads.in_flight as f64)) / 1000.0;
            compare(format!("{} loads in flight", loads.in_flight), modelled, loads.ns.median, 1.5);
        }
        // A mix between those that the profile is made of, as the interpolation has it.
        let modelled = 6.0 / profile.transfer_ns(5.0, 1.0);
        compare("a mix of 5:1".into(), modelled, Summary::of(&mixed).unwrap().median, 2.0);
        assert!(report.is_empty(), "{report:#?}");
    }
}
