//! What was measured, as Markdown.

use super::{Beside, Cost, ReadersResult, Start};
use crate::result::quantile;
use std::fmt::Write;
use tidepool_base::ByteSize;

pub(super) fn markdown(result: &ReadersResult) -> String {
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = write(result, &mut text);
    text
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    quantile(&values, 0.5)
}

fn write(result: &ReadersResult, text: &mut String) -> std::fmt::Result {
    let machine = &result.machine;
    writeln!(text, "# Readers\n")?;
    writeln!(
        text,
        "By `tidepool bench readers --sf {}`. Machine: {}, {} CPUs, {} GB, Linux {}; servers and clients share it. TPC-H's tables, {} rows, \
         in a database that lives in a pool.\n",
        result.scale_factor,
        machine.cpu,
        machine.cpus,
        machine.memory_bytes >> 30,
        machine.kernel,
        result.rows
    )?;
    writeln!(text, "| reader | listens, ms | first right answer, ms | memory of its own |")?;
    writeln!(text, "| ---: | ---: | ---: | ---: |")?;
    for (number, Start { ready_ms, answer_ms, private_bytes }) in (1..).zip(&result.starts) {
        writeln!(text, "| {number} | {ready_ms:.1} | {answer_ms:.1} | {} |", ByteSize(*private_bytes))?;
    }
    writeln!(text, "\n| query | at the primary, ms | at a reader, ms | ratio |")?;
    writeln!(text, "| --- | ---: | ---: | ---: |")?;
    for query in &result.queries {
        let (primary, reader) = (query.primary_ms, query.reader_ms);
        writeln!(text, "| {} | {primary:.1} | {reader:.1} | {:.3} |", query.name, reader / primary)?;
    }
    writeln!(
        text,
        "\nAt {} updates a second, the last update that a reader shows is {:.0} us old (p50), {:.0} us (p99), of {} looks. The time of the update \
         itself, up to its commit, is part of that.\n",
        result.updates_a_second, result.age_p50_us, result.age_p99_us, result.looks
    )?;
    writeln!(
        text,
        "| beside | updates a second | of the primary's processors for each, us | ratio | queries at readers |"
    )?;
    writeln!(text, "| --- | ---: | ---: | ---: | ---: |")?;
    let of = |beside: Beside, value: fn(&Cost) -> f64| {
        median(result.costs.iter().filter(|cost| cost.beside == beside).map(value))
    };
    for (beside, name) in
        [(Beside::Nobody, "nobody"), (Beside::Idle, "4 idle readers"), (Beside::Busy, "4 busy readers")]
    {
        let cpu = of(beside, |cost| cost.cpu_us);
        writeln!(
            text,
            "| {name} | {:.0} | {cpu:.1} | {:.3} | {:.0} |",
            of(beside, |cost| cost.updates_a_second),
            cpu / of(Beside::Nobody, |cost| cost.cpu_us),
            of(beside, |cost| cost.queries as f64)
        )?;
    }
    writeln!(
        text,
        "\nA cursor at a reader that took {:.0} s beside {} updates saw the rows as they were when it was opened.",
        result.scan_seconds, result.scan_updates
    )
}
