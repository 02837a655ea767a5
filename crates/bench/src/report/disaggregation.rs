//! The page of `bench disaggregation`: slowdown by local memory, beside what the study prints.

use super::chart::{BarChart, Level, Line, LineChart, Point, Series};
use super::html::{self, escape, table};
use crate::disaggregation::{DisaggregationResult, Network, Share};
use std::fmt::Write;
use tidepool_base::ByteSize;

/// The study's slowdowns for MonetDB in memory on LegoOS, over Linux with the same hardware (Cost for In-memory Execution).
const PAPER_LOW_DEGREE: f64 = 1.7;
const PAPER_HIGH_DEGREE: f64 = 18.0;

const CLASSES: [&str; 4] = ["s1", "s4", "s3", "s2"];

pub fn disaggregation_page(result: &DisaggregationResult) -> String {
    let mut body = String::new();
    let machine = &result.machine;
    let _ = write!(
        body,
        "<header><p class=\"brand\">Tidepool</p><h1>Disaggregated memory: slowdown by local memory</h1><p class=\"sub\">TPC-H, \
         scale factor {} · {} threads · {} · {} · Linux {} · {}</p></header>",
        result.scale_factor,
        result.threads,
        escape(&machine.cpu),
        ByteSize(machine.memory_bytes),
        escape(&machine.kernel),
        html::utc(result.started_at_unix),
    );
    overview(&mut body, result);
    degrees(&mut body, result);
    for (network, class) in result.networks.iter().zip(CLASSES.into_iter().cycle()) {
        queries(&mut body, result, network, class);
    }
    let _ = write!(
        body,
        "<section><h2>How to read this</h2><ul>\
         <li>Tables and query heap lie in one paged tablespace: pages of 4 kB that a remote node holds, and a local cache of the \
         share that is given, of what the {} queries touch together. The queries run one after another, {} rounds of each share; \
         figures are medians. Every answer was checked.</li>\
         <li>Slowdown is the time over that of the same query with everything in local memory.</li>\
         <li><b>The network is modelled, the paging is real.</b> A fault waits until the network would have brought the page. What \
         the mechanism takes by itself counts towards that; what it takes beyond is shown apart, spread evenly over the threads: \
         the band below a line ends at the slowdown without it.</li>\
         <li>The study measured MonetDB (in memory) on LegoOS over InfiniBand, against Linux with the same hardware. It prints {} × \
         for a low degree of disaggregation, {} × for a high one (little local memory), and more than 100 × for single \
         queries; for PostgreSQL 1.08 × cold and 2 × hot at a low degree. It does not print its shares of local memory.</li>\
         </ul></section>",
        result.queries.len(),
        result.repeat,
        PAPER_LOW_DEGREE,
        PAPER_HIGH_DEGREE,
    );
    let _ = write!(body, "<footer><p>Tidepool {}</p></footer>", result.tidepool_version);
    html::document("Tidepool: disaggregated memory", &body)
}

fn section(body: &mut String, title: &str, text: &str, content: &str) {
    let _ = write!(body, "<section><h2>{}</h2><p class=\"note\">{text}</p>{content}</section>", escape(title));
}

fn overview(body: &mut String, result: &DisaggregationResult) {
    let lines = result.networks.iter().zip(CLASSES.into_iter().cycle()).map(|(network, class)| {
        let point = |share: &Share| Point {
            x: share.percent,
            y: share.slowdown,
            lower: share.slowdown_network.max(0.1),
            upper: share.slowdown,
        };
        Line { label: network.profile.name.clone(), class, points: network.shares.iter().rev().map(point).collect() }
    });
    let mut ticks: Vec<f64> =
        result.networks.iter().flat_map(|network| network.shares.iter().map(|share| share.percent)).collect();
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    let chart = LineChart {
        lines: lines.collect(),
        marks: Vec::new(),
        levels: vec![
            Level { y: PAPER_LOW_DEGREE, label: "the study, low degree: 1.7 ×".to_owned() },
            Level { y: PAPER_HIGH_DEGREE, label: "the study, high degree: 18 ×".to_owned() },
        ],
        unit: "×",
        x_ticks: Some(ticks),
        x_label: Box::new(|percent| format!("{percent} %")),
        width: 1100.0,
        height: 380.0,
    };
    section(
        body,
        "Slowdown by local memory",
        "Geometric mean of the queries, by the local cache’s share of what they touch. Below each line: without what the mechanism \
         takes beyond the network’s time.",
        &chart.svg(),
    );
    let mut rows = Vec::new();
    for network in &result.networks {
        for share in &network.shares {
            let sum = |figure: fn(&crate::disaggregation::Paging) -> f64| {
                share.queries.iter().map(|point| figure(&point.paging)).sum::<f64>()
            };
            let worst = share.queries.iter().zip(&result.queries).max_by(|a, b| a.0.slowdown.total_cmp(&b.0.slowdown));
            rows.push(vec![
                escape(&network.profile.name),
                format!("{} %", share.percent),
                ByteSize(share.cache_bytes).to_string(),
                format!("{:.2}", share.slowdown),
                format!("{:.2}", share.slowdown_network),
                format!("{:.2}", share.slowdown_total),
                worst.map_or("–".to_owned(), |(point, name)| format!("{:.1} ({})", point.slowdown, escape(name))),
                format!("{:.1} %", share.mechanism_share * 100.0),
                format!(
                    "{:.0}<br>{:.0} back",
                    sum(|paging| paging.fetched as f64),
                    sum(|paging| paging.written_back as f64)
                ),
                format!(
                    "{:.0} network<br>{:.0} mechanism<br>{:.0} waited",
                    sum(|paging| paging.modelled_ms),
                    sum(|paging| paging.mechanism_ms),
                    sum(|paging| paging.waited_ms)
                ),
            ]);
        }
    }
    section(
        body,
        "Figures",
        "Slowdowns: geometric mean, the same without the mechanism’s part, sum of all times, and the worst query. Pages and times of \
         one round, all threads added up; back: modified pages that left the cache.",
        &table(
            &[
                "Network",
                "Local",
                "Cache",
                "Slowdown",
                "Network only",
                "Of the sum",
                "Worst",
                "Mechanism’s part",
                "Pages",
                "Time, ms",
            ],
            &rows,
        ),
    );
}

/// The study's own figure: two bars.
fn degrees(body: &mut String, result: &DisaggregationResult) {
    let ends = |network: &Network| {
        let of = |share: Option<&Share>| share.map(|share| share.slowdown);
        vec![of(network.shares.first()), of(network.shares.last())]
    };
    let mut series = vec![Series {
        label: "the study: MonetDB on LegoOS".to_owned(),
        class: "paper",
        values: vec![Some(PAPER_LOW_DEGREE), Some(PAPER_HIGH_DEGREE)],
    }];
    for (network, class) in result.networks.iter().zip(CLASSES.into_iter().cycle()) {
        series.push(Series { label: network.profile.name.clone(), class, values: ends(network) });
    }
    let share =
        |share: Option<&Share>| share.map_or(String::new(), |share| format!(" (here: {} % local)", share.percent));
    let first = result.networks.first();
    let groups = vec![
        format!("low degree{}", share(first.and_then(|network| network.shares.first()))),
        format!("high degree{}", share(first.and_then(|network| network.shares.last()))),
    ];
    let chart = BarChart { groups, series, unit: "×", width: 640.0, height: 300.0, value_labels: true };
    section(
        body,
        "Low and high degree of disaggregation",
        "As the study draws it: in-memory execution, slowdown over local memory. Its shares of local memory are not printed.",
        &format!("<div class=\"figures\"><figure>{}</figure></div>", chart.svg()),
    );
}

fn queries(body: &mut String, result: &DisaggregationResult, network: &Network, class: &'static str) {
    let last = network.shares.last();
    let values = |share: &Share| share.queries.iter().map(|point| Some(point.slowdown)).collect();
    let series = last.map(|share| Series { label: format!("{} % local", share.percent), class, values: values(share) });
    let chart = BarChart {
        groups: result.queries.clone(),
        series: series.into_iter().collect(),
        unit: "×",
        width: 1100.0,
        height: 300.0,
        value_labels: true,
    };
    let mut head = vec!["Query".to_owned(), "Near".to_owned(), "Touches".to_owned()];
    head.extend(network.shares.iter().map(|share| format!("{} %", share.percent)));
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let rows: Vec<Vec<String>> = (result.queries.iter().enumerate())
        .map(|(index, name)| {
            let mut row = vec![
                escape(name),
                format!("{:.1} ms", network.near_ms[index]),
                ByteSize(network.query_touched_bytes[index]).to_string(),
            ];
            row.extend(network.shares.iter().map(|share| {
                let point = &share.queries[index];
                format!("{:.2}<br><span class=\"delta\">{:.2} network</span>", point.slowdown, point.slowdown_network)
            }));
            row
        })
        .collect();
    section(
        body,
        &format!("Queries, {}", network.profile.name),
        &format!(
            "Slowdown of each query with the least local memory, and with all shares. The queries touch {} together; a fault costs \
             {:.1} µs by itself here ({}). The network: {}.",
            ByteSize(network.touched_bytes),
            network.mechanism_fault_ns as f64 / 1e3,
            network.handling,
            escape(&network.profile.source),
        ),
        &format!("{}{}", chart.svg(), table(&head, &rows)),
    );
}
