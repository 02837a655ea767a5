//! TPC-C by itself: `cargo run --release -p tidepool-tpcc --example tpcc -- [WAREHOUSES [THREADS [SECONDS [MIX [FOLDER
//! [TERMINALS]]]]]]`.
//! With a folder, commits go to a log there, and wait for it. `tidepool bench tpcc` has more to say.

use std::time::{Duration, Instant};
use tidepool_embedded::{Isolation, Result, Tidepool};
use tidepool_tpcc::{Mix, Plan, Tables, Tablespaces, check, create, load, run};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(default);
    let (warehouses, threads, seconds) = (number(0, 1) as i32, number(1, 1) as usize, number(2, 10));
    let mix = Mix::parse(arguments.get(3).map_or("standard", String::as_str))?;
    let tidepool = match arguments.get(4) {
        Some(folder) => Tidepool::open_folder(folder)?,
        None => Tidepool::in_memory()?,
    };
    create(&tidepool, &Tablespaces { rows: "near".to_owned(), indexes: "near".to_owned() })?;
    let tables = Tables::prepare(&tidepool)?;
    let start = Instant::now();
    load(&tidepool, &tables, warehouses, threads)?;
    println!("loaded in {:.1} s", start.elapsed().as_secs_f64());
    let plan = Plan {
        warehouses,
        threads,
        terminals: number(5, 1) as usize,
        warm_up: Duration::from_secs(2),
        duration: Duration::from_secs(seconds),
        mix,
        isolation: Isolation::Serializable,
        seed: 7,
    };
    let result = run(&tidepool, &tables, &plan)?;
    println!("{}", serde_json::to_string_pretty(&result).unwrap_or_default());
    let start = Instant::now();
    let breaches = check(&tidepool, &tables, warehouses)?;
    println!("checked in {:.1} s: {breaches:?}", start.elapsed().as_secs_f64());
    Ok(())
}
