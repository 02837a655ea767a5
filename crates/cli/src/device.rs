//! `tidepool device`: what memory there is, and what it costs.

use crate::config::MemoryArgs;
use clap::{Args, Subcommand};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_bench::probe::{self, DeviceReport, ProbeOptions, ProbeReport};
use tidepool_bench::report::probe as page;
use tidepool_bench::write_json;
use tidepool_database::Config;
use tidepool_database::config::{ConfigBuilder, FILE_DEFAULT, profile_toml};
use tidepool_device::probe::{Measured, Stream, Summary};
use tidepool_device::{Profile, Topology, set_last_level_cache_bytes, set_local_profile};
use tidepool_tablespace::TablespaceConfig;

#[derive(Args, Clone, Debug)]
pub struct DeviceArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Clone, Debug, Subcommand)]
enum Action {
    /// Show caches, nodes, DAX devices, tablespaces and profiles
    List(ListArgs),
    /// Measure tablespaces: latency and bandwidth, and how far pacing keeps what a profile says
    Probe(ProbeArgs),
}

#[derive(Args, Clone, Debug)]
struct ListArgs {
    #[command(flatten)]
    memory: MemoryArgs,
}

#[derive(Args, Clone, Debug)]
struct ProbeArgs {
    /// Tablespaces to measure [default: all of the configuration]
    #[arg(value_name = "TABLESPACE")]
    tablespaces: Vec<String>,
    #[command(flatten)]
    memory: MemoryArgs,
    /// A device that is no tablespace: LOCATION,size=SIZE,profile=NAME, as in numa:1 or dax:/dev/dax0.0
    #[arg(long, value_name = "SPEC", conflicts_with = "tablespaces")]
    location: Option<String>,
    /// Largest working set [default: four times the last-level cache, within half of what is free]
    #[arg(long, value_name = "SIZE")]
    size_max: Option<ByteSize>,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 9)]
    rounds: usize,
    /// Write the figures as JSON (- for standard output, and nothing else there)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write result.json and index.html into this folder
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Add what was measured to the configuration file, as a profile of this name
    #[arg(long, value_name = "NAME")]
    save: Option<String>,
    /// Write the profile into a file of its own instead (- for standard output)
    #[arg(long, value_name = "FILE", requires = "save")]
    profile_out: Option<PathBuf>,
}

pub fn run(args: DeviceArgs) -> Result<ExitCode> {
    match args.action {
        Action::List(args) => list(&args),
        Action::Probe(args) => probe(&args),
    }
}

fn configuration(memory: &MemoryArgs) -> Result<Config> {
    let config = memory.builder()?.build()?;
    if let Some(bytes) = config.last_level_cache_bytes {
        set_last_level_cache_bytes(bytes)?;
    }
    if let Some(profile) = &config.local_profile {
        set_local_profile(profile.clone())?;
    }
    Ok(config)
}

fn tablespaces(config: &Config) -> impl Iterator<Item = &TablespaceConfig> {
    [&config.near, &config.far].into_iter().chain(&config.tablespaces)
}

// -------------------------------------------------------------------------------------------------------- measuring

fn probe(args: &ProbeArgs) -> Result<ExitCode> {
    let config = configuration(&args.memory)?;
    let chosen = match &args.location {
        Some(spec) => vec![bare(spec, &config)?],
        None => named(&args.tablespaces, &config)?,
    };
    let target = match &args.save {
        Some(_) if chosen.len() > 1 => {
            return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "only one device can be saved as a profile")
                .with_hint("Name one tablespace, as in: tidepool device probe far --save NAME"));
        }
        Some(name) => Some(SaveTarget::find(name, args, &config)?),
        None => None,
    };
    let options = ProbeOptions {
        working_set_bytes_max: args.size_max.map(|size| size.0),
        rounds: args.rounds,
        threads: args.memory.threads,
    };
    let report = probe::run(&chosen, &options)?;
    let to_standard_output = |path: &Option<PathBuf>| path.as_deref() == Some(Path::new("-"));
    if !to_standard_output(&args.json) && !to_standard_output(&args.profile_out) {
        print!("{}", table(&report));
    } else {
        for device in &report.devices {
            device.warnings.iter().for_each(|warning| eprintln!("{}: note: {warning}", device.tablespaces.join(", ")));
        }
    }
    if let Some(path) = &args.json {
        write_json(path, &report)?;
    }
    if let Some(dir) = &args.report {
        eprintln!("report: {}", page::write(dir, &report)?.display());
    }
    if let (Some(target), [device]) = (target, report.devices.as_slice()) {
        target.save(device, &report)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The tablespaces of these names, or all of them.
fn named(names: &[String], config: &Config) -> Result<Vec<TablespaceConfig>> {
    if names.is_empty() {
        return Ok(tablespaces(config).cloned().collect());
    }
    names
        .iter()
        .map(|name| {
            tablespaces(config).find(|space| space.name == *name).cloned().ok_or_else(|| {
                let known: Vec<&str> = tablespaces(config).map(|space| space.name.as_str()).collect();
                Error::new(SqlState::UNDEFINED_OBJECT, format!("tablespace \"{name}\" is not in the configuration"))
                    .with_hint(format!(
                        "Tablespaces are: {}. A device without one is given with --location.",
                        known.join(", ")
                    ))
            })
        })
        .collect()
}

/// A device as `--far` would have it, under a name that says so.
fn bare(spec: &str, config: &Config) -> Result<TablespaceConfig> {
    let far = ConfigBuilder::new().profiles(config.profiles.clone()).far(spec)?.build()?.far;
    Ok(TablespaceConfig { name: "device".to_owned(), ..far })
}

/// Where a profile goes. Found before anything is measured, so that minutes are not lost to a typing mistake.
struct SaveTarget {
    name: String,
    path: PathBuf,
    /// What the file holds already; `None`: it is to be made.
    present: Option<String>,
}

impl SaveTarget {
    fn find(name: &str, args: &ProbeArgs, config: &Config) -> Result<SaveTarget> {
        if name.trim().is_empty() {
            return Err(Error::new(SqlState::INVALID_NAME, "a profile needs a name"));
        }
        if let Some(path) = &args.profile_out {
            if path.exists() {
                return Err(Error::new(SqlState::DUPLICATE_FILE, format!("\"{}\" exists already", path.display())));
            }
            return Ok(SaveTarget { name: name.to_owned(), path: path.clone(), present: None });
        }
        if config.profiles.iter().any(|profile| profile.name == name) {
            return Err(Error::new(SqlState::DUPLICATE_OBJECT, format!("profile \"{name}\" exists already"))
                .with_hint("Choose another name, or take the old one out of the configuration file."));
        }
        let path = args.memory.file().unwrap_or_else(|| FILE_DEFAULT.into());
        let present = match std::fs::read_to_string(&path) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(Error::io(format_args!("read \"{}\"", path.display()), &error)),
        };
        Ok(SaveTarget { name: name.to_owned(), path, present })
    }

    fn save(self, device: &DeviceReport, report: &ProbeReport) -> Result<()> {
        let source = format!(
            "measured at {} on {}, {}, {} rounds",
            device.location,
            report.machine.cpu,
            threads(device.processors.len()),
            device.measured.rounds
        );
        let block = profile_toml(&device.measured.profile(&self.name, &source)?);
        if self.path == Path::new("-") {
            print!("{block}");
            return Ok(());
        }
        let text = match &self.present {
            None => block,
            Some(present) => format!("{}\n\n{block}", present.trim_end()),
        };
        // Before the file is touched: a key of the last table could have swallowed the block.
        Config::from_toml(&text)?;
        std::fs::write(&self.path, text)
            .map_err(|error| Error::io(format_args!("write \"{}\"", self.path.display()), &error))?;
        eprintln!("profile \"{}\": {}", self.name, self.path.display());
        Ok(())
    }
}

// ----------------------------------------------------------------------------------------------------------- as text

fn threads(count: usize) -> String {
    if count == 1 { "1 thread".to_owned() } else { format!("{count} threads") }
}

/// `187 (184–195)`: median and middle half.
fn spread(summary: &Summary, decimals: usize) -> String {
    format!(
        "{:.decimals$} ({:.decimals$}–{:.decimals$})",
        summary.median, summary.quartile_lower, summary.quartile_upper
    )
}

/// Columns, the first on the left and the others on the right.
fn columns(out: &mut String, rows: &[Vec<String>]) {
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    for row in rows {
        out.push_str("   ");
        for (column, cell) in row.iter().enumerate() {
            let width = width(column);
            let _ = if column == 0 { write!(out, " {cell:<width$}") } else { write!(out, "   {cell:>width$}") };
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
    }
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

fn table(report: &ProbeReport) -> String {
    let mut out = String::new();
    let machine = &report.machine;
    let _ = writeln!(
        out,
        "{}, {} processors{}, {}, Linux {}",
        machine.cpu,
        machine.cpus,
        if report.topology.guest { " of a virtual machine" } else { "" },
        ByteSize(machine.memory_bytes),
        machine.kernel
    );
    for device in &report.devices {
        out.push('\n');
        device_table(&mut out, device, report);
    }
    out
}

fn device_table(out: &mut String, device: &DeviceReport, report: &ProbeReport) {
    let measured = &device.measured;
    let paced = device.emulation().map_or(String::new(), |emulation| format!(", {emulation}"));
    let _ = writeln!(
        out,
        "{} at {}{paced}: {} rounds, up to {}, {}; medians, in brackets the middle half",
        device.tablespaces.join(", "),
        device.location,
        measured.rounds,
        threads(device.processors.len()),
        measured.vectors
    );
    for warning in &device.warnings {
        let _ = writeln!(out, "  note: {warning}");
    }
    dependent_loads(out, measured);
    if let Some(bytes) = device.cache_reach_bytes {
        let _ = writeln!(
            out,
            "  the last-level cache holds about {} for one thread, as the loads tell; the cost model counts with {}",
            ByteSize(bytes >> 20 << 20),
            ByteSize(report.topology.last_level_cache_bytes)
        );
    }

    let _ = writeln!(out, "  loads in flight over {}, ns a line", ByteSize(device.working_set_bytes_max as u64));
    let shown = |count: usize| count.is_power_of_two() || count == 12;
    let loads = || measured.loads_in_flight.iter().filter(|loads| shown(loads.in_flight));
    columns(
        out,
        &[
            ["in flight".to_owned()].into_iter().chain(loads().map(|loads| loads.in_flight.to_string())).collect(),
            ["ns".to_owned()].into_iter().chain(loads().map(|loads| format!("{:.1}", loads.ns.median))).collect(),
        ],
    );
    let _ = writeln!(out, "  a fenced write past the caches: {} ns", spread(&measured.fenced_write, 0));

    out.push_str("  streams, GB/s\n");
    let mut streams: Vec<Stream> = measured.bandwidth.iter().map(|found| found.stream).collect();
    streams.sort_by_key(|stream| match stream {
        Stream::Read => (0, 0),
        Stream::Write => (1, 0),
        Stream::StreamedWrite => (2, 0),
        Stream::Mixed { reads, .. } => (3, -i64::from(*reads)),
    });
    streams.dedup();
    let mut counts: Vec<usize> = measured.bandwidth.iter().map(|found| found.threads).collect();
    counts.sort_unstable();
    counts.dedup();
    let mut rows = vec![["threads".to_owned()].into_iter().chain(streams.iter().map(Stream::to_string)).collect()];
    for count in counts {
        let cell = |stream: &Stream| {
            let found = measured.bandwidth.iter().find(|found| found.stream == *stream && found.threads == count);
            found.map_or("–".to_owned(), |found| spread(&found.gb_per_s, 1))
        };
        rows.push([count.to_string()].into_iter().chain(streams.iter().map(cell)).collect());
    }
    columns(out, &rows);

    if !measured.paced.is_empty() {
        out.push_str("  paced, beside the profile\n");
        let mut rows = vec![row(["access", "profile", "achieved", "deviation", "unpaced"])];
        for paced in &measured.paced {
            rows.push(vec![
                paced.what.clone(),
                format!("{:.1} {}", paced.profile, paced.unit),
                format!("{} {}", spread(&paced.achieved, 1), paced.unit),
                format!("{:+.1} %{}", paced.deviation * 100.0, if paced.out_of_reach() { " *" } else { "" }),
                format!("{:.1} {}", paced.unpaced, paced.unit),
            ]);
        }
        columns(out, &rows);
        if measured.paced.iter().any(|paced| paced.out_of_reach()) {
            out.push_str("    * this machine is slower than the profile without pacing\n");
        }
    }
    for pages in &measured.pages {
        let _ = writeln!(
            out,
            "  {} pages: first touch of 4 kB {:.2} us, {:.0} % of the memory in huge pages",
            if pages.huge { "huge" } else { "ordinary" },
            pages.first_touch_ns / 1e3,
            pages.huge_share * 100.0
        );
    }
    let _ = writeln!(
        out,
        "  clock: {:.0} ns a reading, steps of {:.0} ns",
        measured.clock.reading_ns, measured.clock.step_ns
    );
}

/// The powers of two among the working sets; the report has all.
fn dependent_loads(out: &mut String, measured: &Measured) {
    let loads = &measured.dependent_loads;
    let mut sizes: Vec<usize> = loads.iter().map(|loads| loads.working_set_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let last = sizes.last().copied();
    let kinds: Vec<bool> = measured.pages.iter().map(|pages| pages.huge).collect();
    let head = kinds.iter().map(|huge| if *huge { "huge pages" } else { "4 kB pages" }.to_owned());
    let mut rows = vec![["working set".to_owned()].into_iter().chain(head).collect()];
    for size in sizes.into_iter().filter(|size| size.is_power_of_two() || Some(*size) == last) {
        let cell = |huge: &bool| {
            let found = loads.iter().find(|loads| loads.working_set_bytes == size && loads.huge_pages == *huge);
            found.map_or("–".to_owned(), |loads| spread(&loads.ns, 1))
        };
        rows.push([ByteSize(size as u64).to_string()].into_iter().chain(kinds.iter().map(cell)).collect());
    }
    out.push_str("  dependent loads, ns\n");
    columns(out, &rows);
}

// ------------------------------------------------------------------------------------------------------- what there is

fn list(args: &ListArgs) -> Result<ExitCode> {
    let config = configuration(&args.memory)?;
    print!("{}", overview(&config, &Topology::read()));
    Ok(ExitCode::SUCCESS)
}

fn overview(config: &Config, topology: &Topology) -> String {
    let mut out = String::from("Caches\n");
    let mut rows = vec![row(["level", "size", "processors"])];
    for cache in &topology.caches {
        rows.push(vec![
            format!("L{}", cache.level),
            ByteSize(cache.size_bytes).to_string(),
            cache.processors.to_string(),
        ]);
    }
    columns(&mut out, &rows);
    let _ = writeln!(
        out,
        "    the cost model counts with {} for the last one{}",
        ByteSize(topology.last_level_cache_bytes),
        if topology.guest { " (this is a virtual machine, whose host shares it out)" } else { "" }
    );

    out.push_str("\nNodes\n");
    let mut rows = vec![row(["node", "processors", "memory", "free", "distances", "firmware: ns", "MB/s"])];
    for node in &topology.nodes {
        let distances: Vec<String> = node.distances.iter().map(u32::to_string).collect();
        let figures = |of: fn(&tidepool_device::FirmwareFigures) -> (u64, u64)| {
            node.firmware.as_ref().map(of).map_or("–".to_owned(), |(read, write)| format!("{read} / {write}"))
        };
        rows.push(vec![
            format!("numa:{}", node.id),
            if node.processors.is_empty() { "none".to_owned() } else { node.processors.clone() },
            ByteSize(node.memory_bytes).to_string(),
            ByteSize(node.free_bytes).to_string(),
            distances.join(" "),
            figures(|firmware| (firmware.read_latency_ns, firmware.write_latency_ns)),
            figures(|firmware| (firmware.read_mb_per_s, firmware.write_mb_per_s)),
        ]);
    }
    columns(&mut out, &rows);

    out.push_str("\nDAX devices\n");
    if topology.dax_devices.is_empty() {
        out.push_str("    none\n");
    } else {
        let mut rows = vec![row(["device", "size", "align", "node", "use"])];
        for device in &topology.dax_devices {
            let node = device.target_node.map_or("–".to_owned(), |node| node.to_string());
            rows.push(vec![
                format!("dax:/dev/{}", device.name),
                ByteSize(device.size_bytes).to_string(),
                device.align_bytes.map_or("–".to_owned(), |bytes| ByteSize(bytes).to_string()),
                node.clone(),
                match device.driver.as_deref() {
                    Some("kmem") => format!("memory of numa:{node}"),
                    Some("device_dax") => "to be mapped".to_owned(),
                    Some(driver) => driver.to_owned(),
                    None => "no driver".to_owned(),
                },
            ]);
        }
        columns(&mut out, &rows);
    }

    out.push_str("\nTablespaces\n");
    let mut rows = vec![row(["name", "location", "size", "paced as"])];
    for space in tablespaces(config) {
        rows.push(vec![
            space.name.clone(),
            space.location.to_string(),
            space.size_bytes.map_or("all".to_owned(), |bytes| ByteSize(bytes).to_string()),
            space.profile.as_ref().map_or("–".to_owned(), |profile| profile.name.clone()),
        ]);
    }
    columns(&mut out, &rows);

    out.push_str("\nProfiles\n");
    let mut profiles = Profile::presets();
    profiles.retain(|preset| config.profiles.iter().all(|own| own.name != preset.name));
    profiles.extend(config.profiles.iter().cloned());
    let pair = |read: f64, write: f64| if read == write { read.to_string() } else { format!("{read} / {write}") };
    let mut rows = vec![row(["name", "ns", "GB/s", "mixed, GB/s"])];
    for profile in &profiles {
        rows.push(vec![
            profile.name.clone(),
            pair(profile.read_latency_ns, profile.write_latency_ns),
            pair(profile.read_gb_per_s, profile.write_gb_per_s),
            profile.mixed_gb_per_s.to_string(),
        ]);
    }
    columns(&mut out, &rows);
    for profile in &profiles {
        let _ = writeln!(out, "    {}: {}", profile.name, profile.source);
    }
    out
}
