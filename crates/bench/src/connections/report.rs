//! What was measured, as Markdown.

use super::{ConnectionsResult, Through};
use crate::result::quantile;
use std::fmt::Write;

pub(super) fn markdown(result: &ConnectionsResult) -> String {
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = write(result, &mut text);
    text
}

fn write(result: &ConnectionsResult, text: &mut String) -> std::fmt::Result {
    let machine = &result.machine;
    let what = match result.through {
        Through::Upgrade => "upgrades",
        Through::Kill => "kills of the primary",
    };
    writeln!(text, "# Connections through {what}\n")?;
    writeln!(
        text,
        "By `tidepool bench connections`. Machine: {}, {} CPUs, {} GB, Linux {}; servers and clients share it. {} idle clients, {} that update a \
         row each, with {} ms between two statements, and {} in transactions{}; {} {what}.\n",
        machine.cpu,
        machine.cpus,
        machine.memory_bytes >> 30,
        machine.kernel,
        result.idle,
        result.busy,
        result.think_ms,
        result.open,
        if result.tls { "; every second one has TLS" } else { "" },
        result.times.len(),
    )?;
    writeln!(
        text,
        "The longest statement of any busy client at each time: median **{:.1} ms**, longest **{:.1} ms**. Of each client at each time: p50 \
         {:.1} ms, p99 {:.1} ms. {} statements were acknowledged and {} transactions committed; {} connections ended; {} sums and sessions are wrong.\n",
        result.longest_p50_ms,
        result.longest_max_ms,
        result.p50_ms,
        result.p99_ms,
        result.acknowledged,
        result.committed,
        result.lost_connections,
        result.wrong
    )?;
    writeln!(text, "| time | shortest, ms | p50 | longest |")?;
    writeln!(text, "| ---: | ---: | ---: | ---: |")?;
    for (time, stalls) in (1..).zip(&result.times) {
        let [first, middle, last] = [0.0, 0.5, 1.0].map(|part| quantile(stalls, part));
        writeln!(text, "| {time} | {first:.1} | {middle:.1} | {last:.1} |")?;
    }
    for (code, count) in &result.failed {
        writeln!(text, "\n{count} statements failed with {code}.")?;
    }
    Ok(())
}
