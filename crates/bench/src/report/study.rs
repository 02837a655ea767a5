//! The page of `bench placement`: the study's figures 5 to 8, ours beside what it prints.

use super::chart::{BarChart, Series};
use super::html::{self, escape, table};
use crate::instance::Point;
use crate::oltp::{self, OltpLine, OltpPoint};
use crate::placement::PLACEMENTS;
use crate::study::{IConfig, OltpConfig, StudyResult, YConfig};
use std::fmt::Write;
use tidepool_base::ByteSize;

/// Loss of throughput with eight streams from running alone to running beside the other instance, percent (section 5.3).
const PAPER_Y_HEAP_FAR: f64 = 42.1;
const PAPER_Y_MAIN_FAR: f64 = 54.8;

pub fn study_page(result: &StudyResult) -> String {
    let mut body = String::new();
    let machine = &result.machine;
    let _ = write!(
        body,
        "<header><p class=\"brand\">Tidepool</p><h1>Far memory: placements and streams</h1><p class=\"sub\">TPC-H, scale \
         factor {} · {} threads · {} · {} · Linux {} · {}</p></header>",
        result.scale_factor,
        result.threads,
        escape(&machine.cpu),
        ByteSize(machine.memory_bytes),
        escape(&machine.kernel),
        html::utc(result.started_at_unix),
    );
    let streams = result.streams();
    for config in &result.oltp {
        oltp_config(&mut body, config);
    }
    for config in &result.i_config {
        i_config(&mut body, config, &streams);
    }
    for config in &result.y_config {
        y_config(&mut body, config, &streams);
    }
    let _ = write!(
        body,
        "<section><h2>How to read this</h2><ul><li>Every stream runs the {} queries once, in an order of its own; figures are \
         medians of {} rounds.</li><li>Far memory is paced: the device is emulated, its bandwidth shared by all threads. \
         Reading main is charged by the bytes read; the heap of operators is an estimate.</li><li>Traffic is what the cost \
         model takes to have crossed the device’s link.</li><li>The study measured SAP HANA at scale factor 10 with an FPGA \
         prototype and two sockets. Its figures are shown where its text prints them.</li></ul></section>",
        result.queries.len(),
        result.repeat.max(1),
    );
    let _ = write!(body, "<footer><p>Tidepool {}</p></footer>", result.tidepool_version);
    html::document("Tidepool: placements and streams", &body)
}

fn section(body: &mut String, title: &str, text: &str, chart: &str) {
    let _ = write!(body, "<section><h2>{}</h2><p class=\"note\">{text}</p>{chart}</section>", escape(title));
}

fn by_streams(streams: &[usize], series: Vec<Series>, unit: &'static str) -> String {
    let groups = streams.iter().map(|count| format!("{count} stream{}", if *count == 1 { "" } else { "s" })).collect();
    BarChart { groups, series, unit, width: 1100.0, height: 300.0, value_labels: true }.svg()
}

fn series(label: &str, class: &'static str, points: &[Point], value: impl Fn(&Point) -> f64) -> Series {
    Series { label: label.to_owned(), class, values: points.iter().map(|point| Some(value(point))).collect() }
}

fn last(points: &[Point]) -> f64 {
    points.last().map_or(f64::NAN, |point| point.queries_per_hour)
}

fn i_config(body: &mut String, config: &IConfig, streams: &[usize]) {
    const CLASSES: [&str; 4] = ["s1", "s2", "s3", "s4"];
    let base = last(&config.near);
    let rows = || {
        let far = config.far.iter().map(|far| (far.title, far.points.as_slice()));
        std::iter::once((PLACEMENTS[0].title, config.near.as_slice())).chain(far).zip(CLASSES)
    };
    let throughput =
        rows().map(|((title, points), class)| series(title, class, points, |point| point.queries_per_hour / base));
    section(
        body,
        &format!("Throughput, I-config, {} (figure 6a)", config.profile),
        "Queries an hour, beside Both DRAM with most streams.",
        &by_streams(streams, throughput.collect(), ""),
    );
    let traffic = rows().skip(1).flat_map(|((title, points), class)| {
        [
            series(&format!("{title}, read"), class, points, |point| point.link_read / 1e9),
            series(&format!("{title}, written"), "paper", points, |point| point.link_written / 1e9),
        ]
    });
    section(
        body,
        &format!("Traffic, I-config, {} (figure 6b)", config.profile),
        "What crossed the emulated device’s link, GB/s; writes in grey beside their placement’s reads.",
        &by_streams(streams, traffic.collect(), "GB/s"),
    );
    // Time is the inverse of throughput with one stream; the study gives loss of throughput with eight.
    let single = |points: &[Point]| points.first().map_or(f64::NAN, |point| point.queries_per_hour);
    let slower = config.far.iter().map(|far| Some(100.0 * (single(&config.near) / single(&far.points) - 1.0)));
    let lost = config.far.iter().map(|far| Some(100.0 * (1.0 - last(&far.points) / base)));
    let paper = |figure: fn(&crate::placement::Placement) -> Option<f64>| {
        let figures = PLACEMENTS[1..].iter().map(|placement| figure(placement).map(|ratio| ratio * 100.0));
        Series { label: "the study".to_owned(), class: "paper", values: figures.collect() }
    };
    let pair = |ours: Vec<Option<f64>>, theirs: Series| {
        let ours = Series { label: "measured here".to_owned(), class: "s1", values: ours };
        let groups = config.far.iter().map(|far| far.title.to_owned()).collect();
        let chart =
            BarChart { groups, series: vec![ours, theirs], unit: "%", width: 520.0, height: 300.0, value_labels: true };
        format!("<div class=\"figures\">{}</div>", chart.svg())
    };
    section(
        body,
        &format!("One stream, {} (figure 7a)", config.profile),
        "How much longer the queries took than with Both DRAM.",
        &pair(slower.collect(), paper(|placement| placement.paper_single_stream)),
    );
    let theirs = if streams.last() == Some(&8) {
        paper(|placement| placement.paper_eight_streams)
    } else {
        Series { label: "the study: eight streams only".to_owned(), class: "paper", values: Vec::new() }
    };
    section(
        body,
        &format!("{} streams, {} (figure 7b)", streams.last().copied().unwrap_or(0), config.profile),
        "How much of Both DRAM’s throughput was lost.",
        &pair(lost.collect(), theirs),
    );
    let cells = rows().map(|((title, points), _)| {
        let cells = points.iter().map(|point| {
            format!(
                "{:.0} q/h<br>{:.2} + {:.2} GB/s<br>{:.1} ms stalled",
                point.queries_per_hour,
                point.link_read / 1e9,
                point.link_written / 1e9,
                point.stall_ms
            )
        });
        std::iter::once(escape(title)).chain(cells).collect::<Vec<_>>()
    });
    figures(body, &config.profile, streams, cells.collect());
}

fn figures(body: &mut String, profile: &str, streams: &[usize], rows: Vec<Vec<String>>) {
    let heads: Vec<String> =
        std::iter::once(String::new()).chain(streams.iter().map(|count| format!("{count} streams"))).collect();
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    section(
        body,
        &format!("Figures, {profile}"),
        "Queries an hour, traffic read and written, and stall a query (threads added up).",
        &table(&heads, &rows),
    );
}

fn oltp_config(body: &mut String, config: &OltpConfig) {
    const CLASSES: [&str; 4] = ["s1", "s2", "s3", "s4"];
    let groups = || {
        let points = config.lines.first().map_or(&[][..], |line| &line.points);
        points.iter().map(|point| format!("{} connections", point.connections)).collect()
    };
    let of = |lines: &[OltpLine], value: &dyn Fn(&OltpPoint) -> f64| {
        let series = lines.iter().zip(CLASSES).map(|(line, class)| Series {
            label: line.title.clone(),
            class,
            values: line.points.iter().map(|point| Some(value(point))).collect(),
        });
        series.collect::<Vec<_>>()
    };
    let chart = |series: Vec<Series>, unit| {
        BarChart { groups: groups(), series, unit, width: 1100.0, height: 300.0, value_labels: true }.svg()
    };
    let most = oltp::most(&config.lines);
    section(
        body,
        &format!("TPC-C, {} (figure 5)", config.profile),
        &format!(
            "Transactions a second of {} warehouses, beside the most of all; the study found no loss with its main or heap far.",
            config.warehouses
        ),
        &chart(of(&config.lines, &|point| point.transactions_per_second / most), ""),
    );
    section(
        body,
        &format!("Traffic of TPC-C, {} (figure 5)", config.profile),
        "What crossed the emulated device’s link, read and written, GB/s.",
        &chart(of(config.lines.get(1..).unwrap_or(&[]), &|point| (point.link_read + point.link_written) / 1e9), "GB/s"),
    );
}

fn y_config(body: &mut String, config: &YConfig, streams: &[usize]) {
    let base = last(&config.near);
    let of = |label: &str, class, points: &[Point]| series(label, class, points, |point| point.queries_per_hour / base);
    section(
        body,
        &format!("Throughput, Y-config, {} (figure 8)", config.profile),
        "Two instances, processes of their own, on one device’s bandwidth, each on half of the threads; beside Both DRAM with most streams on as many.",
        &by_streams(
            streams,
            vec![
                of("Heap FAR, alone", "s3", &config.heap_far_separate),
                of("Heap FAR, beside the other", "s4", &config.heap_far_concurrent),
                of("Main FAR, alone", "s2", &config.main_far_separate),
                of("Main FAR, beside the other", "s1", &config.main_far_concurrent),
            ],
            "",
        ),
    );
    let lost = |alone: &[Point], beside: &[Point]| 100.0 * (1.0 - last(beside) / last(alone));
    let row = |title: &str, alone: &[Point], beside: &[Point], paper: f64| {
        vec![
            title.to_owned(),
            format!("{:.2}", last(alone) / base),
            format!("{:.2}", last(beside) / base),
            format!("{:.1} %", lost(alone, beside)),
            format!("{paper:.1} %"),
        ]
    };
    section(
        body,
        &format!("What the other instance takes, {}", config.profile),
        "With most streams; the study’s figures are of eight.",
        &table(
            &["", "alone", "beside the other", "lost", "the study"],
            &[
                row("Heap FAR", &config.heap_far_separate, &config.heap_far_concurrent, PAPER_Y_HEAP_FAR),
                row("Main FAR", &config.main_far_separate, &config.main_far_concurrent, PAPER_Y_MAIN_FAR),
            ],
        ),
    );
}
