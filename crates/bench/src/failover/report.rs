//! What was measured, as Markdown.

use super::{FailoverResult, Signal};
use crate::result::quantile;
use std::fmt::Write;
use tidepool_base::ByteSize;

pub(super) fn markdown(result: &FailoverResult) -> String {
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = write(result, &mut text);
    text
}

fn write(result: &FailoverResult, text: &mut String) -> std::fmt::Result {
    let machine = &result.machine;
    let times = result.kills.len() + result.pauses;
    let ended = match result.signal {
        _ if result.apart => {
            "Hosts shared memory alone, as if each was on a machine of its own; the host that takes writes was stopped (SIGSTOP)"
        }
        Signal::Kill => "The host that takes writes was killed (SIGKILL)",
        Signal::Stop => "The host that takes writes was stopped (SIGSTOP)",
        Signal::Pause => "A host was stopped for a moment (SIGSTOP, SIGCONT)",
    };
    writeln!(text, "# Failover\n")?;
    writeln!(
        text,
        "By `tidepool bench failover --kills {times} --connections {}`. Machine: {}, {} CPUs, {} GB, Linux {}; hosts and clients \
         share it. Hosts: {}{}. {ended} {times} times, under {} clients that insert rows as fast as they are \
         acknowledged.\n",
        result.connections,
        machine.cpu,
        machine.cpus,
        machine.memory_bytes >> 30,
        machine.kernel,
        result.hosts,
        match result.resident_bytes {
            0 => String::new(),
            bytes if result.index => {
                format!(", with {} of other rows, an index of which was made before each kill", ByteSize(bytes))
            }
            bytes => format!(", with {} of other rows", ByteSize(bytes)),
        },
        result.connections,
    )?;
    let rows = format!(
        "Of {} acknowledged rows {} are lost; {} statements ended without an answer, {} of them are there; {} rows are there \
         that nobody wrote.",
        result.acknowledged, result.lost, result.in_doubt, result.in_doubt_there, result.invented
    );
    if result.signal == Signal::Pause {
        writeln!(text, "Another host took over **{} times**. {rows}", result.false_failovers)?;
        return failures(result, text);
    }
    writeln!(
        text,
        "From the kill to a client's first acknowledgement of a statement that it began afterwards: p50 **{:.1} ms**, \
         p99 **{:.1} ms**, longest {:.1} ms. {rows}\n",
        result.p50_ms, result.p99_ms, result.max_ms
    )?;
    writeln!(text, "| kill | first client, ms | p50 | last client |")?;
    writeln!(text, "| ---: | ---: | ---: | ---: |")?;
    for (kill, times) in (1..).zip(&result.kills) {
        let [first, middle, last] = [0.0, 0.5, 1.0].map(|part| quantile(times, part));
        writeln!(text, "| {kill} | {first:.1} | {middle:.1} | {last:.1} |")?;
    }
    failures(result, text)
}

fn failures(result: &FailoverResult, text: &mut String) -> std::fmt::Result {
    for (code, count) in &result.failed {
        writeln!(text, "\n{count} statements or connections failed with {code}.")?;
    }
    Ok(())
}
