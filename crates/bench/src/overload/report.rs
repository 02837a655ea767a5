//! What was measured, as Markdown.

use super::{LOSS_GOAL, Load, OverloadResult};
use std::fmt::Write;
use tidepool_base::ByteSize;

pub(super) fn markdown(result: &OverloadResult) -> String {
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = write(result, &mut text);
    text
}

fn write(result: &OverloadResult, text: &mut String) -> std::fmt::Result {
    let machine = &result.machine;
    let load = &result.overload;
    writeln!(text, "# Overload\n")?;
    writeln!(
        text,
        "By `tidepool bench overload --connections {} --factor {} --seconds {}`. Machine: {}, {} CPUs, {} GB, Linux {}. Server and load \
         share it. Transactions of five messages: begin, a row changed and a row read by key, a row inserted, a commit that waits for the log. \
         Of the class of transactions {} run at once, {} may wait{}.\n",
        load.connections,
        result.factor,
        result.seconds,
        machine.cpu,
        machine.cpus,
        machine.memory_bytes >> 30,
        machine.kernel,
        result.running_max,
        result.queued_max,
        match result.queue_timeout_ms {
            Some(ms) => format!(", for {ms} ms at most"),
            None => String::new(),
        }
    )?;
    let verdict = if result.part >= 1.0 - LOSS_GOAL { "reached" } else { "missed" };
    writeln!(
        text,
        "With {} connections and {:.0} transactions a second offered, {:.1} times the peak, throughput is **{:.1} %** of the peak; the goal of at \
         least {:.0} % is {verdict}. Of {} transactions that arrived {} were sent, the rest met a connection that still waited; {} were refused. \
         {} acknowledged transactions are lost or were not acknowledged.\n",
        load.connections,
        load.offered_per_second.unwrap_or(0.0),
        result.factor,
        result.part * 100.0,
        (1.0 - LOSS_GOAL) * 100.0,
        load.arrived,
        load.sent,
        load.refused,
        result.lost
    )?;
    writeln!(
        text,
        "| connections | transactions/s | p50 ms | p99 ms | longest ms | refused/s | refused after, p99 ms | queued, most | running, most | server's memory |"
    )?;
    writeln!(text, "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")?;
    for load in result.peak.iter().chain([load]) {
        row(text, load, result)?;
    }
    for (code, count) in &load.failed {
        writeln!(text, "\n{count} transactions failed with {code}.")?;
    }
    Ok(())
}

fn row(text: &mut String, load: &Load, result: &OverloadResult) -> std::fmt::Result {
    writeln!(
        text,
        "| {} | {:.0} | {:.2} | {:.2} | {:.1} | {:.0} | {:.2} | {} | {} | {} |",
        load.connections,
        load.per_second,
        load.p50_ms,
        load.p99_ms,
        load.max_ms,
        load.refused as f64 / result.seconds,
        load.refused_p99_ms,
        load.queued_most,
        load.running_most,
        ByteSize(load.resident_bytes_most)
    )
}
