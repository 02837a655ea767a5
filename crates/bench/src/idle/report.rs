//! What was measured, as Markdown.

use super::{FREE_GOAL_MS, IdleResult, NEAR_GOAL, TIME_GOAL, WHOLE, mib, size};
use crate::result::quantile;
use std::fmt::Write;

pub(super) fn markdown(result: &IdleResult) -> String {
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = write(result, &mut text);
    text
}

fn verdict(is_reached: bool) -> &'static str {
    if is_reached { "reached" } else { "missed" }
}

fn write(result: &IdleResult, text: &mut String) -> std::fmt::Result {
    let machine = &result.machine;
    writeln!(text, "# Idle compute\n")?;
    writeln!(
        text,
        "By `tidepool bench idle-compute --sf {} --repeat {}`. Machine: {}, {} CPUs, {} GB, Linux {}. TPC-H at scale factor {}; \
         one server has all its memory near, one its main in a pool that is paced as `{}`, one everything in that pool, its own \
         memory too. They take turns, query by query; of each query the median of {} rounds counts.\n",
        result.scale_factor,
        result.rounds,
        machine.cpu,
        machine.cpus,
        machine.memory_bytes >> 30,
        machine.kernel,
        result.scale_factor,
        result.profile,
        result.rounds,
    )?;
    if let Some((arm, ratio)) = result.arms.iter().zip(&result.ratios).find(|(arm, _)| arm.name == WHOLE) {
        writeln!(
            text,
            "With everything in the pool the queries take **{ratio:.2} times** as long as all near (geometric mean; the goal of \
             {TIME_GOAL} is {}). Of its own the process holds at most **{:.0} MiB near** while they run (the goal of {} is {}), and \
             {:.0} MiB of the program's code are mapped, which are the page cache's and the same for all processes of the program.\n",
            verdict(*ratio <= TIME_GOAL),
            mib(arm.peak[0]),
            size(NEAR_GOAL),
            verdict(arm.peak[0] <= NEAR_GOAL),
            mib(arm.peak[1]),
        )?;
    }
    writeln!(text, "Resident MiB outside the pool, of its own + of code, and in the pool:\n")?;
    writeln!(text, "| | near at start | after loading | most within queries | after them | in the pool | time |")?;
    writeln!(text, "| --- | ---: | ---: | ---: | ---: | ---: | ---: |")?;
    for (arm, ratio) in result.arms.iter().zip(&result.ratios) {
        let near = |resident: &super::Resident| format!("{:.0} + {:.0}", mib(resident.anonymous), mib(resident.code));
        writeln!(
            text,
            "| {} | {} | {} | {:.0} + {:.0} | {} | {:.0} | {ratio:.2} |",
            arm.name,
            near(&arm.at_start),
            near(&arm.after_load),
            mib(arm.peak[0]),
            mib(arm.peak[1]),
            near(&arm.after_queries),
            mib(arm.after_queries.pool),
        )?;
    }
    writeln!(text, "\nMilliseconds of each query, medians:\n")?;
    let names: Vec<&str> = result.arms.iter().map(|arm| arm.name).collect();
    writeln!(text, "| query | {} |", names.join(" | "))?;
    writeln!(text, "| --- |{}", " ---: |".repeat(names.len()))?;
    for query in &result.queries {
        write!(text, "| {} |", query.name)?;
        for times in &query.times_ms {
            let mut times = times.clone();
            times.sort_unstable_by(f64::total_cmp);
            write!(text, " {:.1} |", quantile(&times, 0.5))?;
        }
        writeln!(text)?;
    }
    if !result.differing.is_empty() {
        writeln!(text, "\nRows differ: {}.", result.differing.join(", "))?;
    }
    ends(result, text)
}

fn ends(result: &IdleResult, text: &mut String) -> std::fmt::Result {
    if result.ends.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "\n## Ends\n\nA server of the same kind with a table and two indexes in the pool is ended; the server of another database \
         of the pool finds out. Milliseconds from the end of the process, as its parent sees it, until every extent is free; where \
         that is negative the extents were free before.\n"
    )?;
    writeln!(text, "| by | ends | extents, most | process ends after, most | free p50 | p99 | most | left |")?;
    writeln!(text, "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")?;
    for how in ["KILL", "TERM", "ABRT"] {
        let of: Vec<_> = result.ends.iter().filter(|end| end.how == how).collect();
        let mut free: Vec<f64> = of.iter().map(|end| end.free_ms - end.ended_ms).collect();
        free.sort_unstable_by(f64::total_cmp);
        let most = |value: fn(&super::End) -> f64| of.iter().map(|end| value(end)).fold(0.0, f64::max);
        let [p50, p99, longest] = [0.5, 0.99, 1.0].map(|part| quantile(&free, part));
        writeln!(
            text,
            "| SIG{how} | {} | {:.0} | {:.1} | {p50:.1} | {p99:.1} | {longest:.1} | {:.0} |",
            of.len(),
            most(|end| end.extents as f64),
            most(|end| end.ended_ms),
            of.iter().map(|end| end.left).sum::<u64>(),
        )?;
    }
    let longest = result.ends.iter().map(|end| end.free_ms - end.ended_ms).fold(0.0, f64::max);
    let is_reached = longest <= FREE_GOAL_MS && result.ends.iter().all(|end| end.left == 0);
    writeln!(text, "\nThe goal of {FREE_GOAL_MS:.0} ms is {}.", verdict(is_reached))
}
