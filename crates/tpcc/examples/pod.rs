//! New orders and payments over the hosts of a pod, by shares of rows of other hosts: `cargo run --release -p tidepool-tpcc --example
//! pod -- [HOSTS [WAREHOUSES-OF-EACH [SECONDS]]]`. Each host is one thread; nothing is paced.

use std::time::Duration;
use tidepool_embedded::{Isolation, PodSettings, Result};
use tidepool_tpcc::{Mix, PodPlan, RemoteShares, run_pod};

/// New orders and payments, percent, as in the papers on Pasha and Tigon.
const SHARES: [(u8, u8); 7] = [(0, 0), (10, 15), (20, 30), (30, 45), (40, 60), (50, 75), (60, 90)];

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u64| arguments.get(at).and_then(|text| text.parse().ok()).unwrap_or(default);
    let hosts = number(0, 2) as u8;
    for (new_order, payment) in SHARES {
        let plan = PodPlan {
            hosts,
            warehouses_of_each: number(1, 1) as i32,
            warm_up: Duration::from_secs(3),
            duration: Duration::from_secs(number(2, 5)),
            mix: Mix::parse("neworder-payment")?,
            remote: RemoteShares { new_order, payment },
            isolation: Isolation::Serializable,
            seed: 7,
            settings: PodSettings { hosts, ..PodSettings::default() },
        };
        println!("{}", serde_json::to_string(&run_pod(&plan)?).unwrap_or_default());
    }
    Ok(())
}
