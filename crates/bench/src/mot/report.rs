//! What was measured, as Markdown.

use super::{AccessResult, MatrixResult, MotResult};
use std::fmt::Write;

/// Goals for TPC-C with everything far, as a part of the transactions a second that may be lost.
const GOALS: [(&str, f64); 2] = [("cxl-asic", 0.05), ("fpga-prototype", 0.15)];

/// Of all near, with as many terminals a thread as are best there.
fn ratio(result: &MotResult, of: &MatrixResult) -> f64 {
    let is_near = |near: &&MatrixResult| near.profile.is_none() && (near.mix, near.threads) == (of.mix, of.threads);
    let near = result.matrix.iter().filter(is_near).map(|near| near.median_per_second).fold(f64::NAN, f64::max);
    of.median_per_second / near
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn cfg(devices: usize) -> String {
    format!("cfg_{devices}")
}

pub(super) fn markdown(result: &MotResult) -> String {
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = write(result, &mut text);
    text
}

fn write(result: &MotResult, text: &mut String) -> std::fmt::Result {
    let machine = &result.machine;
    writeln!(text, "# TPC-C by what of it is far\n")?;
    writeln!(
        text,
        "By `tidepool bench mot`. Machine: {}, {} CPUs, {} GB, Linux {}. Far memory is this machine's own, paced as the profile says; \
         `cfg_1` has one such device and `cfg_2` two that pages are spread over. {} warehouses, terminals without think time, one a thread \
         or several that take turns while they wait for far memory, \
         serializable, no log but in the part on logs; medians of {} of {} s. The heads of rows are near in all; a row is drafted near, and stored where \
         the table's rows are before its transaction commits.\n",
        machine.cpu,
        machine.cpus,
        machine.memory_bytes >> 30,
        machine.kernel,
        result.warehouses,
        counted(result.rounds, "round"),
        result.seconds
    )?;
    writeln!(text, "## What falls short\n")?;
    let mut is_short = false;
    for (profile, loss) in GOALS {
        for of in &result.matrix {
            let is_it = of.profile.as_deref() == Some(profile) && of.placement == "all" && of.mix == "standard";
            // The one that is best is what is had.
            let is_best = !result.matrix.iter().any(|other| {
                (other.profile.as_ref(), other.placement, other.devices, other.mix, other.threads)
                    == (of.profile.as_ref(), of.placement, of.devices, of.mix, of.threads)
                    && other.median_per_second > of.median_per_second
            });
            if is_it && is_best && ratio(result, of) < 1.0 - loss {
                is_short = true;
                writeln!(
                    text,
                    "* {profile}, {}, {}, {} each, everything far: {:.3} of all near; the goal is {:.2}.",
                    cfg(of.devices),
                    counted(of.threads, "thread"),
                    counted(of.terminals, "terminal"),
                    ratio(result, of),
                    1.0 - loss
                )?;
            }
        }
    }
    for breach in &result.breaches {
        is_short = true;
        writeln!(text, "* **A consistency condition does not hold**: {breach}")?;
    }
    if !is_short {
        writeln!(text, "Nothing.")?;
    }
    matrix(result, text)?;
    log(result, text)?;
    accesses(result, text)
}

fn matrix(result: &MotResult, text: &mut String) -> std::fmt::Result {
    writeln!(text, "\n## Transactions a second, and as a part of all near\n")?;
    writeln!(text, "Of all near, with as many terminals as are best there. The number of terminals is a thread's.\n")?;
    let mut mixes: Vec<(&str, usize)> = Vec::new();
    for of in &result.matrix {
        if !mixes.contains(&(of.mix, of.threads)) {
            mixes.push((of.mix, of.threads));
        }
    }
    let title = |(mix, threads): &(&str, usize)| format!("{mix}, {}", counted(*threads, "thread"));
    writeln!(text, "| | {} |", mixes.iter().map(title).collect::<Vec<_>>().join(" | "))?;
    writeln!(text, "| --- |{}", " ---: |".repeat(mixes.len()))?;
    let mut lines: Vec<(Option<&str>, &str, usize, usize)> = Vec::new();
    for of in &result.matrix {
        let line = (of.profile.as_deref(), of.placement, of.devices, of.terminals);
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines.sort_unstable();
    for line in lines {
        let name = match line {
            (None, placement, _, terminals) => format!("{placement}, {}", counted(terminals, "terminal")),
            (Some(profile), placement, devices, terminals) => {
                format!("{profile}, {}, {placement}, {}", cfg(devices), counted(terminals, "terminal"))
            }
        };
        write!(text, "| {name} |")?;
        for (mix, threads) in &mixes {
            let of = result.matrix.iter().find(|of| {
                (of.profile.as_deref(), of.placement, of.devices, of.terminals) == line
                    && (of.mix, of.threads) == (*mix, *threads)
            });
            match of {
                Some(of) if of.profile.is_some() => {
                    write!(text, " {:.0} ({:.2}) |", of.median_per_second, ratio(result, of))?;
                }
                Some(of) => write!(text, " {:.0} |", of.median_per_second)?,
                None => write!(text, " |")?,
            }
        }
        writeln!(text)?;
    }
    Ok(())
}

fn log(result: &MotResult, text: &mut String) -> std::fmt::Result {
    writeln!(text, "\n## The log\n")?;
    writeln!(
        text,
        "The standard mix with rows and indexes near, and the log on a file of this machine's disk (`file`), in memory that keeps \
         what it holds (`memory`, a file on tmpfs), and in such memory paced as a profile. A transaction is durable when the log has it.\n"
    )?;
    writeln!(
        text,
        "| log | threads | transactions/s | durable after, p50 ms | p99 ms |\n| --- | ---: | ---: | ---: | ---: |"
    )?;
    for of in &result.log {
        let (p50, p99) = (of.acknowledged_p50_us / 1e3, of.acknowledged_p99_us / 1e3);
        writeln!(text, "| {} | {} | {:.0} | {p50:.2} | {p99:.2} |", of.device, of.threads, of.per_second)?;
    }
    Ok(())
}

fn accesses(result: &MotResult, text: &mut String) -> std::fmt::Result {
    writeln!(text, "\n## Single accesses\n")?;
    writeln!(
        text,
        "Nanoseconds of one access, without the delay before it, by the part of them that goes to far memory. *Index*: a cache line; *row*: \
         512 bytes. *Cold*: each misses the caches; *hot*: one in eight does. Each read depends on the one before. Where there \
         is a delay, the 40 to 70 ns that it takes to look at the clock are in it.\n"
    )?;
    let mut shares: Vec<u32> = result.accesses.iter().map(|of| of.far_percent).collect();
    shares.sort_unstable();
    shares.dedup();
    writeln!(text, "| | delay, ns |{}", shares.iter().map(|share| format!(" {share} % far |")).collect::<String>())?;
    writeln!(text, "| --- | ---: |{}", " ---: |".repeat(shares.len()))?;
    let same = |a: &AccessResult, b: &AccessResult| {
        (&a.profile, a.access, a.is_hot, a.writes, a.delay_ns) == (&b.profile, b.access, b.is_hot, b.writes, b.delay_ns)
    };
    for row in result.accesses.chunk_by(same) {
        let first = &row[0];
        write!(
            text,
            "| {}, {} {}, {} | {} |",
            first.profile,
            if first.is_hot { "hot" } else { "cold" },
            first.access,
            if first.writes { "write" } else { "read" },
            first.delay_ns
        )?;
        row.iter().try_for_each(|of| write!(text, " {:.0} |", of.ns))?;
        writeln!(text)?;
    }
    Ok(())
}
