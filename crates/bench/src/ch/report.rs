//! What was measured, as Markdown.

use super::{ChResult, LOSS_GOAL};
use crate::result::median;
use std::fmt::Write;
use tidepool_tpcc::{KINDS, KindResult, RunResult};

pub(super) fn markdown(result: &ChResult) -> String {
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = write(result, &mut text);
    text
}

fn cores(cores: &[usize]) -> String {
    let list: Vec<String> = cores.iter().map(usize::to_string).collect();
    match list.len() {
        1 => format!("processor {}", list[0]),
        _ => format!("processors {}", list.join(", ")),
    }
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

fn ms(time: Option<f64>) -> String {
    time.map_or("–".to_owned(), |time| format!("{time:.1}"))
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn write(result: &ChResult, text: &mut String) -> std::fmt::Result {
    let machine = &result.machine;
    writeln!(text, "# CH-benCHmark: transactions beside analytics\n")?;
    writeln!(
        text,
        "By `tidepool bench ch --warehouses {} --threads {} --streams {} --seconds {} --repeat {} --merge {}{}`. Machine: {}, {} CPUs, {} GB, \
         Linux {}. {} of TPC-C on {}, without think time, {}, {}; {} of the 22 queries in turns, by SQL, with the engine's and the planner's \
         threads on {}. {} of {} s; in each, terminals alone, streams alone, both, and terminals alone again. What is lost is \
         told against the mean of the two.\n",
        result.warehouses,
        result.terminals,
        result.streams,
        result.seconds,
        result.rounds.len(),
        result.merge_policy,
        if result.durable { " --durable FOLDER" } else { "" },
        machine.cpu,
        machine.cpus,
        machine.memory_bytes >> 30,
        machine.kernel,
        counted(result.terminals, "terminal"),
        cores(&result.terminal_cores),
        result.isolation,
        if result.durable { "with a log" } else { "without a log" },
        counted(result.streams, "stream"),
        cores(&result.analytics_cores),
        counted(result.rounds.len(), "round"),
        result.seconds
    )?;
    let verdict = if result.loss <= LOSS_GOAL { "reached" } else { "missed" };
    writeln!(
        text,
        "Beside analytics transactions lose **{}**; the goal of at most {} is {verdict}.\n",
        percent(result.loss),
        percent(LOSS_GOAL)
    )?;
    writeln!(
        text,
        "| round | transactions/s alone | beside analytics | lost | queries/s alone | beside transactions |"
    )?;
    writeln!(text, "| ---: | ---: | ---: | ---: | ---: | ---: |")?;
    for (number, round) in (1..).zip(&result.rounds) {
        writeln!(
            text,
            "| {number} | {:.0} | {:.0} | {} | {:.1} | {:.1} |",
            round.transactions_alone.per_second,
            round.transactions_beside.per_second,
            percent(round.loss),
            round.queries_alone as f64 / result.seconds,
            round.queries_beside as f64 / (result.seconds + super::WARM_UP.as_secs_f64()),
        )?;
    }
    writeln!(text, "\n## Transactions\n")?;
    writeln!(text, "Microseconds from a transaction's begin to its commit, medians of the rounds.\n")?;
    writeln!(text, "| | alone: p50 | p99 | longest | beside: p50 | p99 | longest | retries |")?;
    writeln!(text, "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")?;
    for (place, kind) in KINDS.into_iter().enumerate() {
        let of = |run: fn(&super::Round) -> &RunResult, value: fn(&KindResult) -> f64| {
            let values: Vec<f64> = result.rounds.iter().map(|round| value(&run(round).kinds[place])).collect();
            median(&values).unwrap_or(0.0)
        };
        let alone: fn(&super::Round) -> &RunResult = |round| &round.transactions_alone;
        let beside: fn(&super::Round) -> &RunResult = |round| &round.transactions_beside;
        writeln!(
            text,
            "| {} | {:.1} | {:.1} | {:.0} | {:.1} | {:.1} | {:.0} | {:.0} |",
            format!("{kind:?}").to_lowercase(),
            of(alone, |kind| kind.p50_us),
            of(alone, |kind| kind.p99_us),
            of(alone, |kind| kind.max_us),
            of(beside, |kind| kind.p50_us),
            of(beside, |kind| kind.p99_us),
            of(beside, |kind| kind.max_us),
            of(beside, |kind| kind.retries as f64),
        )?;
    }
    writeln!(text, "\n## Queries\n")?;
    writeln!(
        text,
        "Milliseconds, medians of all runs; rows are those after a second of transactions, for which the engine's answers were held against those of \
         DataFusion's operators: {} of {} are the same.\n",
        result.answers.iter().filter(|answer| answer.agrees).count(),
        result.answers.len()
    )?;
    writeln!(text, "| query | rows | alone | beside transactions |")?;
    writeln!(text, "| ---: | ---: | ---: | ---: |")?;
    for (query, answer) in result.queries.iter().zip(&result.answers) {
        let wrong = if answer.agrees { "" } else { " (differ)" };
        writeln!(
            text,
            "| {} | {}{wrong} | {} | {} |",
            query.query,
            answer.rows,
            ms(query.alone_ms),
            ms(query.beside_ms)
        )?;
    }
    let freshness = &result.freshness;
    writeln!(text, "\n## What queries saw\n")?;
    writeln!(
        text,
        "Of {} queries, {} lacked an order whose commit had returned when the query was handed in, or had orders that their districts did not \
         count. At most {} orders more than those were seen, committed before the snapshot was drawn.",
        freshness.snapshots, freshness.stale, freshness.ahead_max
    )?;
    if let Some(first) = &freshness.first {
        writeln!(text, "The first: {first}.")?;
    }
    writeln!(text)?;
    match result.breaches.is_empty() {
        true => writeln!(text, "TPC-C's consistency conditions held after all rounds."),
        false => result.breaches.iter().try_for_each(|breach| writeln!(text, "* breached: {breach}")),
    }
}
