//! The clock that everything is measured with.

use super::Summary;
use serde::Serialize;
use std::time::Instant;

const READINGS: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Clock {
    /// One reading, ns.
    pub reading_ns: f64,
    /// The least step between two readings that differ, ns.
    pub step_ns: f64,
}

impl Clock {
    pub fn measure() -> Clock {
        let mut costs = Vec::with_capacity(9);
        let mut step_ns = f64::INFINITY;
        for _ in 0..9 {
            let start = Instant::now();
            let mut last = start;
            for _ in 0..READINGS {
                let now = Instant::now();
                let passed = (now - last).as_nanos() as f64;
                if passed > 0.0 {
                    step_ns = step_ns.min(passed);
                }
                last = now;
            }
            costs.push((last - start).as_nanos() as f64 / READINGS as f64);
        }
        let reading_ns = Summary::of(&costs).map_or(0.0, |costs| costs.median);
        Clock { reading_ns, step_ns }
    }
}
