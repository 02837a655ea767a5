//! A run as one self-contained HTML page: inline style and SVG, nothing fetched, nothing scripted, light and dark.

mod chart;
mod disaggregation;
mod html;
pub mod probe;
mod study;

pub use disaggregation::disaggregation_page;
pub use study::study_page;

use crate::placement::PLACEMENTS;
use crate::progress::thousands;
use crate::result::{Answer, BenchResult, PlacementResult, QueryResult};
use chart::{BarChart, Series};
use html::{escape, table};
use serde::Serialize;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use tidepool_base::{ByteSize, Error, Result};

/// Groups of bars in one row of the per-query chart.
const QUERIES_PER_ROW: usize = 22;

/// Writes `index.html` and `result.json` into `dir`, making it if need be. Returns the page's path.
pub fn write(dir: &Path, result: &BenchResult) -> Result<PathBuf> {
    write_folder(dir, &page(result), result)
}

fn write_folder(dir: &Path, page: &str, result: &impl Serialize) -> Result<PathBuf> {
    std::fs::create_dir_all(dir).map_err(|error| Error::io(format!("create folder \"{}\"", dir.display()), &error))?;
    crate::write_json(&dir.join("result.json"), result)?;
    let path = dir.join("index.html");
    std::fs::write(&path, page).map_err(|error| Error::io(format!("write \"{}\"", path.display()), &error))?;
    Ok(path)
}

fn page(result: &BenchResult) -> String {
    let title = title(result);
    let mut body = String::new();
    header(&mut body, result, &title);
    tiles(&mut body, result);
    degradation(&mut body, result);
    per_query(&mut body, result);
    medians(&mut body, result);
    heap_and_traffic(&mut body, result);
    memory(&mut body, result);
    devices(&mut body, result);
    notes(&mut body, result);
    footer(&mut body, result);
    html::document(&format!("Tidepool: {title}"), &body)
}

fn title(result: &BenchResult) -> String {
    let name = if result.configuration.benchmark == "tpch" { "TPC-H" } else { "TPC-DS" };
    format!("{name}, scale factor {}", result.configuration.scale_factor)
}

fn header(body: &mut String, result: &BenchResult, title: &str) {
    let machine = &result.machine;
    let _ = write!(
        body,
        "<header><p class=\"brand\">Tidepool</p><h1>{}</h1><p class=\"sub\">{} · {} threads · {} · {} · Linux {} · {}</p></header>",
        escape(title),
        engine_name(result),
        result.configuration.threads,
        escape(&machine.cpu),
        ByteSize(machine.memory_bytes),
        escape(&machine.kernel),
        html::utc(result.started_at_unix),
    );
}

fn engine_name(result: &BenchResult) -> &'static str {
    use crate::engine::EngineKind;
    match result.configuration.engine {
        EngineKind::Tidepool => "Tidepool",
        EngineKind::Datafusion => "Tidepool’s tables, DataFusion’s operators",
        EngineKind::PlainDatafusion => "Plain DataFusion",
    }
}

fn label(placement: &PlacementResult) -> String {
    match &placement.profile {
        Some(profile) => format!("{} · {profile}", placement.title),
        None => placement.title.to_owned(),
    }
}

/// Titles are enough while there is one profile.
fn labels(result: &BenchResult) -> Vec<String> {
    let one_profile = result.configuration.profiles.len() == 1;
    result.placements.iter().map(|p| if one_profile { p.title.to_owned() } else { label(p) }).collect()
}

fn tiles(body: &mut String, result: &BenchResult) {
    let load = &result.load;
    let queries = || result.placements.iter().flat_map(|placement| &placement.queries);
    let good = queries().filter(|query| !query.answer.is_failure()).count();
    let published = queries().any(|query| query.answer == Answer::Published);
    let mut tile = |value: String, caption: String, class: &str| {
        let _ = write!(
            body,
            "<div class=\"tile {class}\"><p class=\"value\">{value}</p><p class=\"caption\">{caption}</p></div>"
        );
    };
    tile(
        format!("{good}<small> / {}</small>", queries().count()),
        if published { "answers equal the published ones".into() } else { "queries answered consistently".into() },
        if good == queries().count() { "good" } else { "bad" },
    );
    if let Some(first) = result.placements.first() {
        tile(
            format!("{:.1}<small> ms</small>", first.geometric_mean_ms),
            format!("geometric mean, {}", escape(first.title)),
            "",
        );
    }
    if load.encoded_bytes > 0 && load.encoded_bytes != load.raw_bytes {
        tile(
            size(load.encoded_bytes),
            format!(
                "in main, {:.1} × smaller than Arrow’s {}",
                load.raw_bytes as f64 / load.encoded_bytes as f64,
                ByteSize(load.raw_bytes)
            ),
            "",
        );
    } else {
        tile(size(load.raw_bytes), "of Arrow arrays".into(), "");
    }
    tile(
        format!("{:.1}<small> s</small>", load.seconds),
        format!("to generate and load {} rows", thousands(load.rows)),
        "",
    );
    let tiles = std::mem::take(body);
    // The tiles were appended to the header's text: put a grid around them alone.
    match tiles.split_once("</header>") {
        Some((header, tiles)) => *body = format!("{header}</header><section class=\"tiles\">{tiles}</section>"),
        None => *body = tiles,
    }
}

fn size(bytes: u64) -> String {
    let text = ByteSize(bytes).to_string();
    match text.split_once(' ') {
        Some((number, unit)) => format!("{number}<small> {unit}</small>"),
        None => text,
    }
}

fn degradation(body: &mut String, result: &BenchResult) {
    let far: Vec<&PlacementResult> =
        result.placements.iter().filter(|placement| placement.slowdown.is_some()).collect();
    if far.is_empty() {
        return;
    }
    let groups: Vec<String> = if result.configuration.profiles.len() == 1 {
        far.iter().map(|placement| placement.title.to_owned()).collect()
    } else {
        far.iter().map(|placement| label(placement)).collect()
    };
    let tpch = result.configuration.benchmark == "tpch";
    body.push_str("<section><h2>What far memory costs</h2>");
    let first = result.placements.first().map_or("", |placement| placement.title);
    let _ = write!(
        body,
        "<p>Time of all queries beside <b>{}</b>, one stream{}.</p><div class=\"figures\">",
        escape(first),
        if tpch {
            ", and what the far-memory study measured for SAP HANA at scale factor 10 on its FPGA prototype"
        } else {
            ""
        }
    );
    let mut series = vec![Series {
        label: "measured here".into(),
        class: "measured",
        values: far.iter().map(|placement| placement.slowdown.map(|ratio| ratio * 100.0)).collect(),
    }];
    let paced = far.iter().any(|placement| placement.profile.is_some());
    if paced {
        series.push(Series {
            label: "modelled: stalls alone".into(),
            class: "modelled",
            values: far.iter().map(|it| result.slowdown_modelled(it).map(|ratio| ratio * 100.0)).collect(),
        });
    }
    if tpch {
        series.push(Series {
            label: "the study".into(),
            class: "paper",
            values: far.iter().map(|placement| placement.paper_slowdown.map(|ratio| ratio * 100.0)).collect(),
        });
    }
    body.push_str(&figure(
        "Single stream: execution time increase",
        &BarChart { groups: groups.clone(), series, unit: "%", width: 520.0, height: 300.0, value_labels: true }.svg(),
    ));
    if far.iter().any(|placement| placement.throughput.is_some()) {
        let loss = |pick: fn(&crate::result::Throughput) -> Option<f64>| -> Vec<Option<f64>> {
            far.iter()
                .map(|placement| placement.throughput.as_ref().and_then(pick).map(|ratio| ratio * 100.0))
                .collect()
        };
        let mut series = vec![Series {
            label: "measured here".into(),
            class: "measured",
            values: loss(|throughput| throughput.loss),
        }];
        if tpch {
            series.push(Series {
                label: "the study, 8 streams".into(),
                class: "paper",
                values: loss(|t| t.paper_loss),
            });
        }
        body.push_str(&figure(
            &format!("{} streams: throughput lost", result.configuration.streams),
            &BarChart { groups, series, unit: "%", width: 520.0, height: 300.0, value_labels: true }.svg(),
        ));
    }
    body.push_str("</div>");
    for doubt in result.doubts() {
        let _ = write!(body, "<p class=\"doubt\">{}</p>", escape(&doubt));
    }
    let mut rows = Vec::new();
    for (placement, label) in result.placements.iter().zip(labels(result)) {
        let throughput = placement.throughput.as_ref();
        rows.push(vec![
            escape(&label),
            format!("{:.0} ms", placement.total_ms),
            format!("{:.1} ms", placement.geometric_mean_ms),
            format!("{:.0} ms", placement.stall_ms()),
            match placement.slowdown_noise {
                Some(noise) => format!("{} ± {:.1}", percent(placement.slowdown), noise * 100.0),
                None => percent(placement.slowdown),
            },
            percent(placement.slowdown.and_then(|_| result.slowdown_modelled(placement))),
            percent(placement.paper_slowdown),
            throughput.map_or("–".into(), |throughput| format!("{:.0}", throughput.queries_per_hour)),
            percent(throughput.and_then(|throughput| throughput.loss)),
            percent(throughput.and_then(|throughput| throughput.paper_loss)),
        ]);
    }
    let head = [
        "Placement",
        "Sum of medians",
        "Geometric mean",
        "Stalled",
        "Slower by",
        "Modelled",
        "Study",
        "Queries / h",
        "Lost",
        "Study",
    ];
    let columns = if rows.iter().any(|row| row[7] != "–") { 10 } else { 7 };
    let rows: Vec<Vec<String>> = rows.into_iter().map(|row| row.into_iter().take(columns).collect()).collect();
    body.push_str(&table(&head[..columns], &rows));
    body.push_str("</section>");
}

fn percent(ratio: Option<f64>) -> String {
    ratio.map_or("–".to_owned(), |ratio| format!("{:.1} %", ratio * 100.0))
}

fn figure(caption: &str, svg: &str) -> String {
    format!("<figure><figcaption>{}</figcaption>{svg}</figure>", escape(caption))
}

/// The series' colour: the placement's, so that it is the same in every chart.
fn class(placement: &PlacementResult, index: usize) -> &'static str {
    const EXTRA: [&str; 4] = ["s5", "s6", "s7", "s8"];
    if index < PLACEMENTS.len() {
        match placement.name {
            "both-near" => "s1",
            "main-far" => "s2",
            "heap-far" => "s3",
            _ => "s4",
        }
    } else {
        EXTRA[index % EXTRA.len()]
    }
}

fn per_query(body: &mut String, result: &BenchResult) {
    let Some(first) = result.placements.first() else { return };
    if first.queries.iter().all(|query| query.median_ms.is_none()) {
        return;
    }
    body.push_str("<section><h2>Query by query</h2><p>Median time of each query, milliseconds.</p>");
    for start in (0..first.queries.len()).step_by(QUERIES_PER_ROW) {
        let end = (start + QUERIES_PER_ROW).min(first.queries.len());
        let series = result
            .placements
            .iter()
            .zip(labels(result))
            .enumerate()
            .map(|(index, (placement, label))| Series {
                label,
                class: class(placement, index),
                values: placement.queries[start..end].iter().map(|query| query.median_ms).collect(),
            })
            .collect();
        let groups = first.queries[start..end].iter().map(|query| query.name.to_uppercase()).collect();
        let chart = BarChart { groups, series, unit: "ms", width: 1080.0, height: 320.0, value_labels: false };
        let _ = write!(body, "<figure>{}</figure>", chart.svg());
    }
    body.push_str("</section>");
}

fn medians(body: &mut String, result: &BenchResult) {
    let Some(first) = result.placements.first() else { return };
    let labels = labels(result);
    let mut head = vec!["Query".to_owned(), "Rows".to_owned(), "Answer".to_owned()];
    head.extend(labels.iter().map(|label| format!("{label}, ms")));
    let rows: Vec<Vec<String>> = (0..first.queries.len())
        .map(|index| {
            let base = first.queries[index].median_ms;
            let mut row = vec![
                first.queries[index].name.to_uppercase(),
                thousands(first.queries[index].rows as u64),
                answers(result, index),
            ];
            for (column, placement) in result.placements.iter().enumerate() {
                let cell = match (placement.queries[index].median_ms, base) {
                    (Some(median), Some(base)) if column > 0 && base > 0.0 => {
                        format!("{median:.1} <span class=\"delta\">{:+.0} %</span>", (median / base - 1.0) * 100.0)
                    }
                    (Some(median), _) => format!("{median:.1}"),
                    (None, _) => "–".to_owned(),
                };
                row.push(cell);
            }
            row
        })
        .collect();
    let runs = first.queries.iter().map(|query| query.runs_ms.len()).max().unwrap_or(0);
    let _ = write!(
        body,
        "<section><h2>Medians</h2><p>Of {runs} timed {} after a warm-up in which the answer was checked.</p>",
        if runs == 1 { "run" } else { "runs" }
    );
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    body.push_str(&table(&head, &rows));
    body.push_str("</section>");
}

/// One mark for a query over all placements.
fn answers(result: &BenchResult, index: usize) -> String {
    let all: Vec<&QueryResult> = result.placements.iter().map(|placement| &placement.queries[index]).collect();
    if let Some(failed) = all.iter().find(|query| query.answer.is_failure()) {
        let (word, detail) = match &failed.answer {
            Answer::Wrong(detail) => ("wrong", detail),
            Answer::Error(detail) => ("error", detail),
            _ => ("", &failed.name),
        };
        return format!("<span class=\"mark bad\" title=\"{}\">{word}</span>", escape(detail));
    }
    match all.first().map(|query| &query.answer) {
        Some(Answer::Published) => "<span class=\"mark good\">published</span>".to_owned(),
        Some(Answer::Reference) => "<span class=\"mark good\">agree</span>".to_owned(),
        _ => "<span class=\"mark\">not checked</span>".to_owned(),
    }
}

fn heap_and_traffic(body: &mut String, result: &BenchResult) {
    let any = result.placements.iter().flat_map(|placement| &placement.queries).any(|query| {
        query.facts.heap.iter().any(|heap| heap.bytes_peak > 0) || query.facts.scans.iter().any(|scan| scan.bytes > 0)
    });
    if !any {
        return;
    }
    let Some(last) = result.placements.last() else { return };
    let _ = write!(
        body,
        "<section><h2>Heap and reads, {}</h2><p>Of the warm-up run. The heap’s peak and the encoded bytes read, by tablespace, \
         and the time that pacing held threads back (summed over threads, so it can exceed the query’s own time).</p>",
        escape(&label(last))
    );
    let list = |rows: Vec<String>| if rows.is_empty() { "–".to_owned() } else { rows.join("<br>") };
    let rows: Vec<Vec<String>> = last
        .queries
        .iter()
        .map(|query| {
            let facts = &query.facts;
            let heap = facts.heap.iter().filter(|heap| heap.bytes_peak > 0);
            let scans = facts.scans.iter().filter(|scan| scan.bytes > 0);
            vec![
                query.name.to_uppercase(),
                list(heap.map(|heap| format!("{} {}", ByteSize(heap.bytes_peak), escape(&heap.tablespace))).collect()),
                list(
                    scans
                        .clone()
                        .map(|scan| format!("{} {}", ByteSize(scan.bytes), escape(&scan.tablespace)))
                        .collect(),
                ),
                format!("{:.1}", scans.map(|scan| scan.stall_ms).sum::<f64>()),
                format!("{:.1}", facts.heap_stall_ms),
            ]
        })
        .collect();
    body.push_str(&table(
        &["Query", "Heap peak", "Read from main", "Scan stall, ms", "Heap stall, ms (estimate)"],
        &rows,
    ));
    body.push_str("</section>");
}

fn memory(body: &mut String, result: &BenchResult) {
    let load = &result.load;
    body.push_str("<section><h2>Memory after loading</h2><div class=\"columns\"><div>");
    let largest = load.tables.iter().map(|table| table.raw_bytes).max().unwrap_or(1).max(1);
    let mut tables: Vec<_> = load.tables.iter().collect();
    tables.sort_by_key(|table| std::cmp::Reverse(table.raw_bytes));
    let mut rows: Vec<Vec<String>> = tables
        .iter()
        .map(|facts| {
            let bar = |class: &str, bytes: u64| {
                format!("<i class=\"{class}\" style=\"width:{:.1}%\"></i>", bytes as f64 / largest as f64 * 100.0)
            };
            vec![
                escape(&facts.name),
                thousands(facts.rows),
                ByteSize(facts.raw_bytes).to_string(),
                ByteSize(facts.encoded_bytes).to_string(),
                format!(
                    "<span class=\"meter\">{}{}</span>",
                    bar("raw", facts.raw_bytes),
                    bar("encoded", facts.encoded_bytes)
                ),
            ]
        })
        .collect();
    rows.push(vec![
        "<b>all</b>".into(),
        format!("<b>{}</b>", thousands(load.rows)),
        format!("<b>{}</b>", ByteSize(load.raw_bytes)),
        format!("<b>{}</b>", ByteSize(load.encoded_bytes)),
        String::new(),
    ]);
    body.push_str(&table(&["Table", "Rows", "As Arrow", "In main", "Arrow above, main below"], &rows));
    body.push_str("</div>");
    if !load.memory.is_empty() {
        body.push_str("<div>");
        let mut rows: Vec<Vec<String>> = load
            .memory
            .iter()
            .map(|facts| vec![escape(&facts.tablespace), facts.purpose.to_owned(), ByteSize(facts.bytes).to_string()])
            .collect();
        rows.push(vec!["process, resident".into(), String::new(), ByteSize(load.process_resident_bytes).to_string()]);
        body.push_str(&table(&["Tablespace", "Purpose", "Bytes"], &rows));
        body.push_str("</div>");
    }
    body.push_str("</div></section>");
}

fn devices(body: &mut String, result: &BenchResult) {
    if result.tablespaces.is_empty() {
        return;
    }
    body.push_str("<section><h2>Tablespaces</h2>");
    let rows: Vec<Vec<String>> = result
        .tablespaces
        .iter()
        .map(|space| {
            let profile = space.profile.as_ref();
            vec![
                escape(&space.name),
                format!("<code>{}</code>", escape(&space.location)),
                space.size_bytes.map_or("all".into(), |bytes| ByteSize(bytes).to_string()),
                if space.location.starts_with("paged:") {
                    "paged".into()
                } else if space.paced {
                    "paced".into()
                } else {
                    "real".into()
                },
                profile.map_or("–".into(), |profile| escape(&profile.name)),
                profile.map_or("–".into(), |p| format!("{:.0} / {:.0} ns", p.read_latency_ns, p.write_latency_ns)),
                profile.map_or("–".into(), |p| format!("{:.2} / {:.2} GB/s", p.read_gb_per_s, p.write_gb_per_s)),
            ]
        })
        .collect();
    let head =
        ["Tablespace", "Location", "Size", "Speed", "Profile", "Latency, read / write", "Bandwidth, read / write"];
    body.push_str(&table(&head, &rows));
    let mut sources: Vec<String> = Vec::new();
    for profile in result.tablespaces.iter().filter_map(|space| space.profile.as_ref()) {
        let line = format!("<p class=\"small\"><b>{}</b>: {}</p>", escape(&profile.name), escape(&profile.source));
        if !sources.contains(&line) {
            sources.push(line);
        }
    }
    body.push_str(&sources.concat());
    body.push_str("</section>");
}

fn notes(body: &mut String, result: &BenchResult) {
    body.push_str("<section><h2>How to read this</h2><ul>");
    let mut note = |text: &str| {
        let _ = write!(body, "<li>{text}</li>");
    };
    if result.tablespaces.iter().any(|space| space.paced) {
        note(
            "<b>Far memory is emulated.</b> The far tablespace is this machine’s DRAM, and each thread that reads main or works in \
             its heap there is held back by what the profile’s device would have cost beyond local memory. Bandwidth is shared by all \
             threads. Near memory is real.",
        );
        note(
            "<b>The heap’s share is an estimate</b> wherever an operator is DataFusion’s: it is charged from the operator’s own counts \
             (rows built, probed and grouped, bytes held), not from its actual accesses. Scans of main are charged for the encoded \
             bytes that they read.",
        );
    }
    if result.configuration.benchmark == "tpch" {
        note(
            "<b>The study’s figures are another system’s</b>: SAP HANA, scale factor 10, a whole socket, a real CXL prototype. They stand \
             here for the shape, not as a target.",
        );
        if result.configuration.scale_factor == 1.0 {
            note(
                "Answers are compared with the TPC’s answer set: counts, keys, text and dates exactly, decimals to 0.01 (closer \
                 than clause 2.1.3.5 asks). This is no TPC result: there are no refresh functions and no audit.",
            );
        } else {
            note(
                "Answers are published for scale factor 1 only; here the placements are held against each other. This is no TPC result.",
            );
        }
    }
    note(
        "“Slower by” compares sums of medians, so long queries weigh more; the geometric mean weighs all queries alike.",
    );
    note(
        "Near memory here is a virtual machine’s or a shared host’s as often as not: differences of a few percent between \
         placements are noise.",
    );
    body.push_str("</ul></section>");
}

fn footer(body: &mut String, result: &BenchResult) {
    let _ = write!(
        body,
        "<footer>Tidepool {} · configuration <code>{}</code> · {} · transparent huge pages: {} · <a href=\"result.json\">result.json</a> \
         ({})</footer>",
        result.tidepool_version,
        result.configuration_hash,
        result.machine.architecture,
        escape(&result.machine.transparent_huge_pages),
        result.schema,
    );
}
