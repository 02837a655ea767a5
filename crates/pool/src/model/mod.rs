//! The words of the pool under every interleaving.
//!
//! Each scenario has a few hosts over a few words, and what must hold in every state. The right code holds it. Every
//! *mutant* breaks it, and the checker shows the shortest way there: so the model would have found the fault. Mutants are
//! each fence and each swap of the product's code, removed where it stands, and the executions that broke earlier designs,
//! put back.
//!
//! `TIDEPOOL_MODEL=large cargo test --release -p tidepool-pool --lib model -- --nocapture` takes larger bounds, and prints each mutant's
//! counterexample.

mod engine;
mod leases;
mod reigns;
mod roots;
mod upper;

use engine::{Options, Scenario, Site, explore};
use std::collections::{BTreeMap, BTreeSet};

/// Larger state spaces than every change can wait for.
fn is_large() -> bool {
    std::env::var("TIDEPOOL_MODEL").is_ok_and(|value| value == "large")
}

/// A scenario as it must be, and the mutants of it.
struct Subject<'a, M> {
    build: fn(Option<M>) -> Scenario,
    mutants: &'a [(&'a str, M)],
}

impl<M: Copy> Subject<'_, M> {
    /// The right one holds; every mutant does not.
    fn hold(&self) {
        let right = (self.build)(None);
        let explored = explore(&right, Options::RIGHT);
        println!("{}: {} states", right.name, explored.states);
        assert!(explored.counterexample.is_none(), "{}", explored.counterexample.unwrap_or_default());
        for (about, mutant) in self.mutants {
            let scenario = (self.build)(Some(*mutant));
            let explored = explore(&scenario, Options { removed: None, no_lost_updates: false });
            let found = explored.counterexample.unwrap_or_else(|| {
                panic!("{}: nothing is wrong with this in {} states: {about}", scenario.name, explored.states)
            });
            println!("MUTANT: {about}\n{found}");
        }
    }
}

/// The scenarios as they must be.
fn scenarios() -> Vec<Scenario> {
    let mut all = Vec::new();
    all.extend(leases::scenarios());
    all.extend(reigns::scenarios());
    all.extend(roots::scenarios());
    all
}

/// Lines of the transitions that swap or fence, as the compiler names them.
fn written() -> BTreeSet<(&'static str, u32)> {
    let sources = [
        ("hosts.rs", include_str!("../hosts.rs")),
        ("extents.rs", include_str!("../extents.rs")),
        ("databases.rs", include_str!("../databases.rs")),
    ];
    let is_site = |line: &str| line.contains("self.swap(") || line.contains("self.fence(");
    let lines = sources.into_iter().flat_map(|(file, text)| (1..).zip(text.lines()).map(move |line| (file, line)));
    lines.filter(|(_, (_, line))| is_site(line)).map(|(file, (number, _))| (file, number)).collect()
}

/// Every fence and every swap of the transitions is needed.
#[test]
fn each_fence_and_each_swap_that_is_removed_is_found() {
    let scenarios = scenarios();
    let mut where_met: BTreeMap<Site, Vec<usize>> = BTreeMap::new();
    for (index, scenario) in scenarios.iter().enumerate() {
        let explored = explore(scenario, Options::RIGHT);
        assert!(explored.counterexample.is_none(), "{}", explored.counterexample.unwrap_or_default());
        for site in explored.sites {
            where_met.entry(site).or_default().push(index);
        }
    }
    let mut survivors = BTreeSet::new();
    for (site, met) in &where_met {
        let found = |no_lost_updates| {
            let options = Options { removed: Some(*site), no_lost_updates };
            met.iter().find_map(|index| explore(&scenarios[*index], options).counterexample)
        };
        let (by, counterexample) = match found(false) {
            Some(counterexample) => ("by what it does", Some(counterexample)),
            None => ("as a lost update", found(true)),
        };
        match counterexample {
            Some(counterexample) => println!("REMOVED: {site:?}, found {by}\n{counterexample}"),
            None => {
                println!("REMOVED: {site:?}, not found in {met:?}");
                survivors.insert(*site);
            }
        }
    }
    assert!(survivors.is_empty(), "nothing comes of removing: {survivors:#?}");
    let file_name = |path: &'static str| path.rsplit('/').next().unwrap_or(path);
    let met: BTreeSet<_> = where_met.keys().map(|(file, line, _)| (file_name(file), *line)).collect();
    let missed: Vec<_> = written().difference(&met).copied().collect();
    assert!(missed.is_empty(), "no scenario comes by: {missed:?}");
}
