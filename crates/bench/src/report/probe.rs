//! What `tidepool device probe` measured, as a page.

use super::chart::{BarChart, Line, LineChart, Mark, Point, Series};
use super::html::{self, escape, table};
use crate::probe::{DeviceReport, ProbeReport};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use tidepool_base::{ByteSize, Result};
use tidepool_device::probe::{Bandwidth, Loads, Stream, Summary};

/// Writes `index.html` and `result.json` into `dir`, making it if need be. Returns the page's path.
pub fn write(dir: &Path, report: &ProbeReport) -> Result<PathBuf> {
    super::write_folder(dir, &page(report), report)
}

fn page(report: &ProbeReport) -> String {
    let machine = &report.machine;
    let mut body = String::new();
    let _ = write!(
        body,
        "<header><p class=\"brand\">Tidepool</p><h1>What memory costs here</h1><p class=\"sub\">{} · {} processors{} · {} · \
         Linux {} · {}</p></header>",
        escape(&machine.cpu),
        machine.cpus,
        if report.topology.guest { " of a virtual machine" } else { "" },
        ByteSize(machine.memory_bytes),
        escape(&machine.kernel),
        html::utc(report.started_at_unix),
    );
    for device in &report.devices {
        section(&mut body, device, report);
    }
    notes(&mut body, report);
    let _ = write!(
        body,
        "<footer>Tidepool {} · transparent huge pages: {} · <a href=\"result.json\">result.json</a> ({})</footer>",
        report.tidepool_version,
        escape(&machine.transparent_huge_pages),
        report.schema
    );
    html::document("Tidepool: what memory costs here", &body)
}

fn section(body: &mut String, device: &DeviceReport, report: &ProbeReport) {
    let measured = &device.measured;
    let _ = write!(
        body,
        "<section class=\"tiles\">{}</section><section><h2>{} · <code>{}</code></h2><p>{} rounds of everything, up to {} (processors {}), {}.{}</p>",
        tiles(device),
        escape(&device.tablespaces.join(", ")),
        escape(&device.location),
        measured.rounds,
        threads(device.processors.len()),
        list(&device.processors),
        escape(measured.vectors),
        device.emulation().map_or(String::new(), |emulation| format!(" It is {}.", escape(&emulation)))
    );
    for warning in &device.warnings {
        let _ = write!(body, "<p><span class=\"mark bad\">note</span> {}</p>", escape(warning));
    }
    let in_flight = format!("Loads in flight over {}", ByteSize(device.working_set_bytes_max as u64));
    let figures = [
        ("Dependent loads, by working set", loads_chart(device, report)),
        (in_flight.as_str(), in_flight_chart(&measured.loads_in_flight)),
        ("Streams, by threads", threads_chart(&measured.bandwidth)),
        ("Reads and writes mixed, all threads", mix_chart(&measured.bandwidth, device.processors.len())),
    ];
    body.push_str("<div class=\"figures\">");
    for (caption, svg) in &figures {
        body.push_str(&super::figure(caption, svg));
    }
    body.push_str("</div></section>");
    paced(body, device);
    let _ = write!(
        body,
        "<section><h2>Figures</h2><p>Medians; in brackets the middle half of the rounds.</p>{}<details><summary>Every working \
         set</summary>{}</details>",
        streams_table(&measured.bandwidth),
        loads_table(device)
    );
    let first_touch: Vec<String> = measured
        .pages
        .iter()
        .map(|pages| {
            format!(
                "{} pages: first touch of 4 kB {:.2} µs, {:.0} % of the memory in huge pages",
                if pages.huge { "huge" } else { "ordinary" },
                pages.first_touch_ns / 1e3,
                pages.huge_share * 100.0
            )
        })
        .collect();
    let _ = write!(
        body,
        "<p class=\"small\">A fenced write past the caches takes {} ns. {}. The clock takes {:.0} ns to read and moves in steps of {:.0} \
         ns.</p></section>",
        spread(&measured.fenced_write, 0),
        first_touch.join("; "),
        measured.clock.reading_ns,
        measured.clock.step_ns
    );
}

/// `0–3, 8`
fn list(numbers: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => parts.push((number, number)),
        }
    }
    let parts: Vec<String> = parts
        .into_iter()
        .map(|(first, last)| if first == last { first.to_string() } else { format!("{first}–{last}") })
        .collect();
    parts.join(", ")
}

fn threads(count: usize) -> String {
    if count == 1 { "1 thread".to_owned() } else { format!("{count} threads") }
}

fn spread(summary: &Summary, decimals: usize) -> String {
    format!(
        "{:.decimals$} <span class=\"delta\">({:.decimals$}–{:.decimals$})</span>",
        summary.median, summary.quartile_lower, summary.quartile_upper
    )
}

fn tiles(device: &DeviceReport) -> String {
    let measured = &device.measured;
    let mut tiles = String::new();
    let mut tile = |value: String, caption: &str| {
        let _ =
            write!(tiles, "<div class=\"tile\"><p class=\"value\">{value}</p><p class=\"caption\">{caption}</p></div>");
    };
    if let Some(loads) = measured.latency() {
        let pages = if loads.huge_pages { "in huge pages" } else { "in ordinary pages" };
        tile(
            format!("{:.0}<small> ns</small>", loads.ns.median),
            &format!("a dependent load from {}, {pages}", escape(&device.tablespaces.join(", "))),
        );
    }
    for (stream, caption) in
        [(Stream::Read, "read by all threads"), (Stream::StreamedWrite, "written by all threads, past the caches")]
    {
        if let Some(found) = measured.bandwidth_of(stream) {
            tile(format!("{:.1}<small> GB/s</small>", found.gb_per_s.median), caption);
        }
    }
    if let Some(bytes) = device.cache_reach_bytes {
        tile(super::size(bytes), "is what the last-level cache holds for one thread, as the loads tell");
    }
    tiles
}

fn point(x: f64, summary: &Summary) -> Point {
    Point { x, y: summary.median, lower: summary.quartile_lower, upper: summary.quartile_upper }
}

fn loads_chart(device: &DeviceReport, report: &ProbeReport) -> String {
    let line = |huge: bool, label: &str, class| Line {
        label: label.to_owned(),
        class,
        points: device
            .measured
            .dependent_loads
            .iter()
            .filter(|loads| loads.huge_pages == huge)
            .map(|loads| point(loads.working_set_bytes as f64, &loads.ns))
            .collect(),
    };
    let lines = [line(true, "huge pages", "s1"), line(false, "4 kB pages", "s3")];
    let caches = &report.topology.caches;
    let mut marks: Vec<Mark> =
        caches.iter().map(|cache| Mark { x: cache.size_bytes as f64, label: format!("L{}", cache.level) }).collect();
    let counted = report.topology.last_level_cache_bytes;
    if caches.iter().all(|cache| cache.size_bytes != counted) {
        marks.push(Mark { x: counted as f64, label: "counted with".to_owned() });
    }
    LineChart {
        lines: lines.into_iter().filter(|line| !line.points.is_empty()).collect(),
        marks,
        levels: Vec::new(),
        unit: "ns",
        x_ticks: None,
        x_label: Box::new(|bytes| ByteSize(bytes as u64).to_string()),
        width: 520.0,
        height: 320.0,
    }
    .svg()
}

fn in_flight_chart(loads: &[Loads]) -> String {
    let points = loads.iter().map(|loads| point(loads.in_flight as f64, &loads.ns)).collect();
    let alone = loads.iter().find(|loads| loads.in_flight == 1).map_or(0.0, |loads| loads.ns.median);
    let ideal = loads
        .iter()
        .map(|loads| {
            let y = alone / loads.in_flight as f64;
            Point { x: loads.in_flight as f64, y, lower: y, upper: y }
        })
        .collect();
    LineChart {
        lines: vec![
            Line { label: "measured, a line".to_owned(), class: "s1", points },
            Line { label: "one load’s time shared evenly".to_owned(), class: "s8", points: ideal },
        ],
        marks: Vec::new(),
        levels: Vec::new(),
        unit: "ns",
        x_ticks: None,
        x_label: Box::new(|count| format!("{count:.0}")),
        width: 520.0,
        height: 320.0,
    }
    .svg()
}

fn threads_chart(bandwidth: &[Bandwidth]) -> String {
    let mut counts: Vec<usize> = bandwidth.iter().map(|found| found.threads).collect();
    counts.sort_unstable();
    counts.dedup();
    let series = |label: &str, class, stream| Series {
        label: label.to_owned(),
        class,
        values: counts
            .iter()
            .map(|threads| {
                let found = bandwidth.iter().find(|found| found.threads == *threads && found.stream == stream);
                found.map(|found| found.gb_per_s.median)
            })
            .collect(),
    };
    BarChart {
        series: vec![
            series("read", "s1", Stream::Read),
            series("write", "s3", Stream::Write),
            series("past the caches", "s2", Stream::StreamedWrite),
        ],
        value_labels: counts.len() <= 4,
        groups: counts.into_iter().map(threads).collect(),
        unit: "GB/s",
        width: 520.0,
        height: 320.0,
    }
    .svg()
}

/// From reads alone to writes alone.
fn mix_chart(bandwidth: &[Bandwidth], all: usize) -> String {
    let mut found: Vec<(f64, String, f64)> = bandwidth
        .iter()
        .filter(|found| found.threads == all)
        .filter_map(|found| {
            let (share, label) = match found.stream {
                Stream::Read => (0.0, "reads".to_owned()),
                Stream::Write => return None,
                Stream::StreamedWrite => (1.0, "writes".to_owned()),
                Stream::Mixed { reads, writes } => {
                    (f64::from(writes) / f64::from(reads + writes), found.stream.to_string())
                }
            };
            Some((share, label, found.gb_per_s.median))
        })
        .collect();
    found.sort_by(|left, right| left.0.total_cmp(&right.0));
    BarChart {
        groups: found.iter().map(|(_, label, _)| label.clone()).collect(),
        series: vec![Series {
            label: "both directions together".to_owned(),
            class: "s5",
            values: found.iter().map(|(_, _, gb_per_s)| Some(*gb_per_s)).collect(),
        }],
        unit: "GB/s",
        width: 520.0,
        height: 320.0,
        value_labels: true,
    }
    .svg()
}

fn paced(body: &mut String, device: &DeviceReport) {
    let Some(profile) = &device.profile else { return };
    let rows: Vec<Vec<String>> = device
        .measured
        .paced
        .iter()
        .map(|paced| {
            let deviation = paced.deviation;
            let mark = if deviation.abs() <= 0.05 {
                "mark good"
            } else if paced.out_of_reach() {
                "mark"
            } else {
                "mark bad"
            };
            vec![
                escape(&paced.what),
                format!("{:.1} {}", paced.profile, paced.unit),
                format!("{} {}", spread(&paced.achieved, 1), paced.unit),
                format!("<span class=\"{mark}\">{:+.1} %</span>", deviation * 100.0),
                format!("{:.1} {}", paced.unpaced, paced.unit),
            ]
        })
        .collect();
    let _ = write!(
        body,
        "<section><h2>Paced as {}</h2><p>The same accesses, charged as the database charges its own. Where this machine without \
         pacing is slower than the profile, pacing cannot make it faster.</p>{}<p class=\"small\">{}</p></section>",
        escape(&profile.name),
        table(&["Access", "Profile", "Achieved", "Deviation", "Unpaced"], &rows),
        escape(&profile.source)
    );
}

fn loads_table(device: &DeviceReport) -> String {
    let loads = &device.measured.dependent_loads;
    let mut sizes: Vec<usize> = loads.iter().map(|loads| loads.working_set_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let cell = |size: usize, huge: bool| {
        let found = loads.iter().find(|loads| loads.working_set_bytes == size && loads.huge_pages == huge);
        found.map_or("–".to_owned(), |loads| spread(&loads.ns, 1))
    };
    let rows: Vec<Vec<String>> = sizes
        .into_iter()
        .map(|size| vec![ByteSize(size as u64).to_string(), cell(size, true), cell(size, false)])
        .collect();
    table(&["Working set, one load at a time", "ns, huge pages", "ns, 4 kB pages"], &rows)
}

fn streams_table(bandwidth: &[Bandwidth]) -> String {
    let rows: Vec<Vec<String>> = bandwidth
        .iter()
        .map(|found| vec![found.stream.to_string(), found.threads.to_string(), spread(&found.gb_per_s, 2)])
        .collect();
    table(&["Stream", "Threads", "GB/s"], &rows)
}

fn notes(body: &mut String, report: &ProbeReport) {
    let caches: Vec<String> =
        report.topology.caches.iter().map(|cache| format!("L{} {}", cache.level, ByteSize(cache.size_bytes))).collect();
    let _ = write!(
        body,
        "<section><h2>How to read this</h2><ul>\
         <li><b>Dependent loads</b> follow one chain through every cache line of the working set in random order. The steps are the \
         caches: the kernel says {}, and the cost model counts with {} for the last one. Where ordinary pages lie above huge ones, \
         the difference is the translation of addresses.</li>\
         <li><b>Loads in flight</b> follow several chains at once. Where the curve leaves the even share, the processor keeps no more \
         loads in the air, or the link is full.</li>\
         <li><b>Ordinary writes</b> fetch each line first, so that twice their figure crosses the link. Those past the caches, which \
         the mixes are made of, do not.</li>\
         <li>Everything was measured once a round, so that what else the machine did hit all settings alike. Bars and lines are \
         medians, bands the middle half.</li></ul></section>",
        escape(&if caches.is_empty() { "nothing of them".to_owned() } else { caches.join(", ") }),
        ByteSize(report.topology.last_level_cache_bytes),
    );
}
