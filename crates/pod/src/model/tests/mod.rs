//! The product's code under the model, right, and with each access left out.

mod canaries;
mod rings;
mod tuples;

use super::{Plan, Report, Site};
use crate::layout::HostId;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// A number of the environment.
fn variable(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

/// Seeds that are run at least, and on until `TIDEPOOL_STRESS_SECONDS` have passed, from `TIDEPOOL_STRESS_SEED` on.
fn for_seeds(least: u64, mut run: impl FnMut(u64)) {
    let (first, seconds) = (variable("TIDEPOOL_STRESS_SEED", 1), variable("TIDEPOOL_STRESS_SECONDS", 0));
    let start = Instant::now();
    let mut seed = first;
    while seed < first + least || start.elapsed() < Duration::from_secs(seconds) {
        run(seed);
        seed += 1;
    }
    println!("seeds {first} to {}", seed - 1);
}

/// Some hosts that do something by seed.
#[derive(Clone, Copy)]
struct Scenario {
    name: &'static str,
    run: fn(Plan) -> Report,
    /// Hosts of which some may die, and how many.
    mortals: &'static [HostId],
    deaths: usize,
    /// Deaths are spread over so many accesses of a host.
    accesses: usize,
    /// Runs of one seed: small ones cost little.
    runs: u64,
}

impl Scenario {
    /// How a seed has it: in two of three runs a host dies, at any of its accesses, and in one of three another one
    /// does.
    fn plan(&self, seed: u64, left_out: Option<Site>) -> Plan {
        let mut plan = Plan { left_out, ..Plan::new(seed) };
        if !seed.is_multiple_of(3) && !self.mortals.is_empty() {
            let mut random = super::Random::new(seed ^ 0xdead);
            let first = random.below(self.mortals.len());
            plan.ends[0] = Some((self.mortals[first], 1 + random.below(self.accesses) as u64));
            if self.deaths > 1 && random.one_in(2) {
                let second = (first + 1 + random.below(self.mortals.len() - 1)) % self.mortals.len();
                plan.ends[1] = Some((self.mortals[second], 1 + random.below(self.accesses) as u64));
            }
        }
        plan
    }

    fn run(&self, seed: u64, left_out: Option<Site>) -> Report {
        (self.run)(self.plan(seed, left_out))
    }

    /// What goes wrong in the runs of a seed where this is left out.
    fn fault(&self, seed: u64, left_out: Site) -> Option<String> {
        (0..self.runs).find_map(|run| self.run(seed * self.runs + run, Some(left_out)).fault)
    }

    fn hold(&self, seed: u64) -> Report {
        let report = self.run(seed, None);
        assert!(report.fault.is_none(), "{}, seed {seed}: {}", self.name, report.fault.unwrap_or_default());
        report
    }
}

const SCENARIOS: &[Scenario] = &[
    rings::MESSAGES,
    rings::HEIRS,
    tuples::TRANSFERS,
    tuples::REUSE,
    tuples::ABORTS,
    tuples::DUEL,
    tuples::RECOVERERS,
    tuples::MOVERS,
    tuples::KEPT,
];

#[test]
fn what_is_right_is_never_flagged() {
    for scenario in SCENARIOS {
        println!("{}", scenario.name);
        let mut most = 0;
        for_seeds(300, |seed| {
            most = most.max(scenario.hold(seed).accesses.into_iter().max().unwrap_or(0));
        });
        println!("at most {most} accesses of a host");
    }
}

/// A host ends after its first access, after its second, and so on to its last: no place in the code is left out.
#[test]
fn a_host_may_die_at_each_of_its_accesses() {
    let seeds = if is_large() { 40 } else { 1 };
    let mut deaths = 0;
    for scenario in [rings::HEIRS, tuples::RECOVERERS, tuples::MOVERS] {
        for (host, seed) in scenario.mortals.iter().flat_map(|host| (1..=seeds).map(move |seed| (*host, seed))) {
            for access in 1.. {
                let plan = Plan { ends: [Some((host, access)), None], ..Plan::new(seed) };
                let report = (scenario.run)(plan);
                let name = scenario.name;
                assert!(report.fault.is_none(), "{name}, {plan:?}: {}", report.fault.unwrap_or_default());
                if report.accesses[usize::from(host.0)] < access {
                    break;
                }
                deaths += 1;
            }
        }
    }
    println!("{deaths} deaths");
    assert!(deaths > 200, "only {deaths} deaths");
}

/// A host that is only suspected goes on with words and lines that another has taken for its own.
#[test]
fn recovering_before_a_death_is_confirmed_is_found() {
    let fault = (1..=400).find_map(|seed| tuples::hasty(Plan::new(seed)).fault);
    println!("{}", fault.as_deref().unwrap_or("not found"));
    assert!(fault.is_some(), "nothing is wrong with recovering for a host that lives");
}

/// Larger bounds than every change can wait for.
fn is_large() -> bool {
    std::env::var("TIDEPOOL_MODEL").is_ok_and(|value| value == "large")
}

/// Seeds that a mutant survives before it is taken for right, and how many may: some need hosts that sleep at one
/// place for just so long, and are looked for where there is time.
fn bounds() -> (u64, usize) {
    if is_large() { (4000, 0) } else { (40, 20) }
}

/// Lines of the modules that make accesses, as the compiler names them.
fn written() -> BTreeSet<(&'static str, u32)> {
    let sources = [("ring.rs", include_str!("../../ring.rs")), ("tuples.rs", include_str!("../../tuples.rs"))];
    let calls = [
        ".swap(",
        ".move_on(",
        ".publish(",
        ".publish_alone(",
        ".withdraw(",
        ".seal(",
        ".make_durable(",
        "make_all_durable(",
        ".begin_durable(",
        "stamp_all(",
        "stamp_for_dead(",
        "fetch_framed(",
        ".newest(",
        ".read_kept(",
    ];
    let is_call = |line: &str| calls.iter().any(|call| line.contains(call)) && !line.contains("fn ");
    let lines = sources.into_iter().flat_map(|(file, text)| (1..).zip(text.lines()).map(move |line| (file, line)));
    lines.filter(|(_, (_, line))| is_call(line)).map(|(file, (number, _))| (file, number)).collect()
}

/// Each write-back, discard, fence, order and swap is needed, wherever the code has it.
///
/// `TIDEPOOL_MODEL=large cargo test --release -p tidepool-pod --lib left_out -- --nocapture` finds all.
#[test]
fn each_access_that_is_left_out_is_found() {
    let mut met: BTreeMap<Site, Vec<&Scenario>> = BTreeMap::new();
    for scenario in SCENARIOS {
        let sites: BTreeSet<_> = (1..=200).flat_map(|seed| scenario.hold(seed).sites).collect();
        sites.into_iter().for_each(|site| met.entry(site).or_default().push(scenario));
    }
    let (seeds, survivors_max) = bounds();
    let mut survivors = Vec::new();
    let mut found = 0;
    for (site, scenarios) in &met {
        let file = site.file.rsplit('/').next().unwrap_or(site.file);
        let name = format!("{file}:{}:{} {:?}", site.line, site.column, site.omission);
        let fault = (1..=seeds).find_map(|seed| {
            scenarios.iter().find_map(|scenario| Some((seed, scenario.name, scenario.fault(seed, *site)?)))
        });
        match fault {
            Some((seed, scenario, fault)) => {
                found += 1;
                println!("{name}: found by {scenario}, seed {seed}: {}", fault.lines().next().unwrap_or_default());
            }
            None => {
                println!("{name}: NOT FOUND");
                survivors.push(name);
            }
        }
    }
    println!("{found} of {} found", met.len());
    let file_name = |path: &'static str| path.rsplit('/').next().unwrap_or(path);
    let lines: BTreeSet<_> = met.keys().map(|site| (file_name(site.file), site.line)).collect();
    let missed: Vec<_> = written().difference(&lines).copied().collect();
    assert!(missed.is_empty(), "no scenario comes by: {missed:?}");
    assert!(survivors.len() <= survivors_max, "nothing comes of leaving out: {survivors:#?}");
}
