//! `EXPLAIN`: a plan as lines of text, laid out as PostgreSQL lays its own out.
//!
//! An operator's line has what the planner expected of it (`rows`, `width`) and, once it ran, what it did: rows, and
//! time inside the operator itself, added up over its threads. Below follow the memory it held and, for a scan, what it
//! read from each tablespace and how long pacing stalled it there.

pub mod format;
mod words;

use crate::charge::OperatorAccount;
use crate::engine::EngineExec;
use crate::pass::PassExec;
use crate::plain;
use crate::scan::{TidepoolScanExec, paced, scan_metrics};
use crate::statement::{ExplainFormat, ExplainOptions};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::display::DisplayableExecutionPlan;
use datafusion::physical_plan::metrics::MetricValue;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use std::sync::Arc;
use std::time::Duration;
use tidepool_base::ByteSize;
use tidepool_device::PacingCounters;
use tidepool_engine::observed::Observed;
use tidepool_engine::plan::{Op, Plan};
use tidepool_table::{TableScan, TablespaceRead};

/// Columns that a level of the plan is moved to the right by.
const INDENT: usize = 6;

/// What a statement does with the rows of its plan.
pub struct Node {
    /// `Update on t`.
    what: String,
    details: Vec<String>,
}

impl Node {
    pub fn new(what: impl Into<String>) -> Node {
        Node { what: what.into(), details: Vec::new() }
    }

    pub fn detail(&mut self, detail: String) {
        self.details.push(detail);
    }
}

/// An operator of a plan as it is shown, and those below it.
pub struct Shown {
    pub label: String,
    /// Rows, and bytes of one, where they are known.
    pub expected: Option<(u64, Option<u64>)>,
    pub actual: Actual,
    pub details: Vec<String>,
    /// Names of the plan's columns, of the topmost operator.
    pub output: Vec<String>,
    pub children: Vec<Shown>,
}

#[derive(Clone, Copy)]
pub enum Actual {
    Ran {
        ms: Option<f64>,
        rows: Option<u64>,
    },
    Never,
    /// It was not run, or measures nothing of the kind.
    Unknown,
}

impl Shown {
    fn new(label: String) -> Shown {
        Shown {
            label,
            expected: None,
            actual: Actual::Unknown,
            details: Vec::new(),
            output: Vec::new(),
            children: Vec::new(),
        }
    }

    /// As text, laid out as PostgreSQL lays its own out.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        self.write(0, &mut lines);
        lines
    }

    fn write(&self, depth: usize, lines: &mut Vec<String>) {
        let line = match depth {
            0 => self.line(),
            _ => format!("{}->  {}", " ".repeat(depth * INDENT - 4), self.line()),
        };
        lines.push(line);
        let margin = " ".repeat(depth * INDENT + 2);
        lines.extend(self.details.iter().map(|detail| format!("{margin}{detail}")));
        for child in &self.children {
            child.write(depth + 1, lines);
        }
    }

    /// What is below, drawn with branches.
    fn branches(&self, margin: &str, lines: &mut Vec<String>) {
        let trunk = if self.children.is_empty() { "  " } else { "│ " };
        lines.extend(self.details.iter().map(|detail| format!("{margin}{trunk}{detail}")));
        for (place, child) in self.children.iter().enumerate() {
            let (branch, below) =
                if place + 1 == self.children.len() { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            lines.push(format!("{margin}{branch}{}", child.line()));
            child.branches(&format!("{margin}{below}"), lines);
        }
    }

    fn line(&self) -> String {
        let mut line = self.label.clone();
        match self.expected {
            Some((rows, Some(width))) => line += &format!("  (rows={rows} width={width})"),
            Some((rows, None)) => line += &format!("  (rows={rows})"),
            None => {}
        }
        line += &match self.actual {
            Actual::Ran { ms: Some(ms), rows: Some(rows) } => format!(" (actual time={ms:.3} ms rows={rows})"),
            Actual::Ran { ms: None, rows: Some(rows) } => format!(" (actual rows={rows})"),
            Actual::Ran { ms: Some(ms), rows: None } => format!(" (actual time={ms:.3} ms)"),
            Actual::Never => " (never executed)".to_owned(),
            _ => String::new(),
        };
        line
    }
}

/// A plan, under a node that takes its rows, if there is one. Once it has `ran`, with what its operators measured; then it is how long
/// that took, and what number of rows came of it.
pub fn shown(
    plan: &Arc<dyn ExecutionPlan>,
    node: Option<&Node>,
    ran: Option<(Duration, u64)>,
    options: ExplainOptions,
) -> Shown {
    let explain = Explain { analyze: ran.is_some(), options, statistics: StatisticsContext::new() };
    let mut shown = explain.node(plan.as_ref(), Vec::new());
    if let Some(node) = node {
        let mut above = Shown::new(node.what.clone());
        if let Some((elapsed, rows)) = ran {
            let ms = (!options.hides_timing).then_some(elapsed.as_secs_f64() * 1e3);
            above.actual = Actual::Ran { ms, rows: Some(rows) };
        }
        above.details.clone_from(&node.details);
        above.children.push(shown);
        shown = above;
    } else if options.verbose {
        shown.output = plan.schema().fields().iter().map(|field| plain_text(field.name())).collect();
    }
    shown
}

/// The lines of a plan as text.
pub fn lines(
    plan: &Arc<dyn ExecutionPlan>,
    node: Option<&Node>,
    ran: Option<(Duration, u64)>,
    options: ExplainOptions,
) -> Vec<String> {
    let shown = shown(plan, node, ran, options);
    if options.format == ExplainFormat::Tree {
        let mut lines = vec![shown.line()];
        shown.branches("", &mut lines);
        return lines;
    }
    shown.lines()
}

struct Explain {
    analyze: bool,
    options: ExplainOptions,
    statistics: StatisticsContext,
}

impl Explain {
    /// `known`: details that nodes which are left out have of this one.
    fn node(&self, plan: &dyn ExecutionPlan, known: Vec<String>) -> Shown {
        if let Some(pass) = plan.downcast_ref::<PassExec>().filter(|pass| pass.is_hidden())
            && let [child] = plan.children().as_slice()
        {
            let known = known.into_iter().chain(pass.details(self.options.verbose)).collect::<Vec<_>>();
            return self.node(child.as_ref(), known);
        }
        let line = DisplayableExecutionPlan::new(plan).one_line().to_string();
        let mut shown = Shown::new(words::label(plan.name(), line.trim_end()));
        shown.expected = self.expected(plan).filter(|_| !self.options.hides_costs);
        if self.analyze {
            shown.actual = actual(plan, self.options.hides_timing);
            shown.details = match plan.downcast_ref::<TidepoolScanExec>() {
                Some(scan) => scan_details(&scan.scans(), self.options.verbose),
                None => self.details(plan),
            };
            shown.details.extend(known);
        }
        match plan.downcast_ref::<EngineExec>() {
            Some(engine) => self.engine(engine, &mut shown),
            None => {
                let children = plan.children().into_iter();
                shown.children = children.map(|child| self.node(child.as_ref(), Vec::new())).collect();
            }
        }
        shown
    }

    /// The engine's plan, and what goes into it.
    fn engine(&self, engine: &EngineExec, shown: &mut Shown) {
        let nodes = engine.plan().nodes();
        let account = |node: &Plan| {
            let number = nodes.iter().position(|other| std::ptr::eq(*other, node))?;
            engine.account()?.operator(number)
        };
        if self.analyze
            && let Some(account) = engine.account()
        {
            shown.details.extend(crate::charge::details(account.way(), self.options.verbose));
        }
        shown.children = self.engine_node(engine.plan(), &engine.children(), &account).into_iter().collect();
    }

    /// An operator of the engine's, and those below it, down to streams of other operators'.
    fn engine_node<'e>(
        &self,
        plan: &Plan,
        inputs: &[&Arc<dyn ExecutionPlan>],
        account: &dyn Fn(&Plan) -> Option<&'e OperatorAccount>,
    ) -> Option<Shown> {
        if let Op::Input(number) = plan.op {
            return inputs.get(number).map(|input| self.node(input.as_ref(), Vec::new()));
        }
        let mut shown = Shown::new(plain_text(plan.label()));
        shown.expected =
            plan.rows_estimated.filter(|_| !self.options.hides_costs).map(|rows| (rows.ceil() as u64, None));
        if self.analyze {
            let did = plan.counters.get();
            let ms = (!self.options.hides_timing).then_some(did.ns as f64 / 1e6);
            shown.actual = Actual::Ran { ms, rows: Some(did.rows_out) };
        }
        shown.details = self.keys(plan);
        if self.analyze {
            if let Op::Filter(_) = &plan.op {
                let did = plan.counters.get();
                shown.details.push(format!("Rows Removed by Filter: {}", did.rows_in - did.rows_out));
            }
            if let Op::Scan(scan) = &plan.op {
                shown.details.extend(scan_details(&scan.history(), self.options.verbose));
            }
            if let Some(observed) = plan.counters.observed() {
                let details = observed_details(observed, self.options.verbose);
                shown.details.extend(details.into_iter().map(plain_text));
            }
            if let Some(account) = account(plan) {
                shown.details.extend(crate::charge::details(account, self.options.verbose));
            }
        }
        shown.children = plan.inputs.iter().filter_map(|input| self.engine_node(input, inputs, account)).collect();
        Some(shown)
    }

    /// What an operator of the engine's joins or groups by, and what its sides were chosen by.
    fn keys(&self, plan: &Plan) -> Vec<String> {
        let name = match &plan.op {
            Op::Join(join) if !join.keys.is_empty() => "Join Cond",
            Op::Aggregate(_) | Op::GroupingSets(_) => "Group Key",
            _ => "",
        };
        let keys = plan.name.as_ref().and_then(|known| known.split_once(": ")).filter(|_| !name.is_empty());
        let mut details: Vec<String> = keys.iter().map(|(_, keys)| format!("{name}: {}", plain_text(keys))).collect();
        if let (Op::Join(_), [probe, build]) = (&plan.op, plan.inputs.as_slice())
            && let Some((probe, build)) = probe.rows_estimated.zip(build.rows_estimated)
            && !self.options.hides_costs
        {
            let (probe, build) = (probe.ceil() as u64, build.ceil() as u64);
            details.push(format!("Build Side: the second, expected {build} rows against {probe}"));
        }
        details
    }

    fn expected(&self, plan: &dyn ExecutionPlan) -> Option<(u64, Option<u64>)> {
        let statistics = self.statistics.compute(plan, &StatisticsArgs::new()).ok()?;
        let rows = *statistics.num_rows.get_value()? as u64;
        let width = match statistics.total_byte_size.get_value() {
            Some(bytes) if rows > 0 => Some(*bytes as u64 / rows),
            _ => None,
        };
        Some((rows, width))
    }

    /// Memory always, everything else an operator measures with `VERBOSE`.
    fn details(&self, plan: &dyn ExecutionPlan) -> Vec<String> {
        let Some(metrics) = plan.metrics() else { return Vec::new() };
        let mut details = Vec::new();
        for metric in metrics.aggregate_by_name().sorted_for_display().timestamps_removed().iter() {
            let value = metric.value();
            if matches!(value, MetricValue::OutputRows(_) | MetricValue::ElapsedCompute(_)) || value.as_usize() == 0 {
                continue;
            }
            let name = value.name();
            let memory = matches!(value, MetricValue::CurrentMemoryUsage(_) | MetricValue::PeakMemoryUsage { .. })
                || name.contains("mem_used");
            if memory {
                details.push(format!("Memory: {} ({name})", ByteSize(value.as_usize() as u64)));
            } else if self.options.verbose {
                details.push(format!("{name}: {value}"));
            }
        }
        details
    }
}

/// What pacing accounted, to the byte.
pub fn counters(spent: &PacingCounters) -> String {
    format!(
        "bytes_read={} bytes_written={} lines={} link_bytes_read={} link_bytes_written={} stall_ns={}",
        spent.bytes_read,
        spent.bytes_written,
        spent.lines,
        spent.link_bytes_read,
        spent.link_bytes_written,
        spent.stall_ns
    )
}

fn actual(plan: &dyn ExecutionPlan, hides_timing: bool) -> Actual {
    let Some(metrics) = plan.metrics() else { return Actual::Unknown };
    let rows = metrics.output_rows().map(|rows| rows as u64);
    let ms = metrics.elapsed_compute().filter(|_| !hides_timing).map(|ns| ns as f64 / 1e6);
    match (rows, ms) {
        // What it measures follows on lines of its own.
        (None, None) if metrics.iter().next().is_some() => Actual::Unknown,
        (None, None) => Actual::Never,
        (rows, ms) => Actual::Ran { ms, rows },
    }
}

fn scan_details(scans: &[Arc<TableScan>], verbose: bool) -> Vec<String> {
    let metrics = scan_metrics(scans);
    let mut details = vec![format!(
        "Rows Scanned: {}  Row Groups Skipped: {} of {}",
        metrics.rows_scanned, metrics.row_groups_skipped, metrics.row_groups,
    )];
    if let Some((_, used)) = &metrics.index {
        details.push(format!(
            "Index Lookups: {}  Entries Found: {}  Index Read: {}",
            used.lookups,
            used.entries,
            ByteSize(used.touched.bytes_read())
        ));
    }
    for TablespaceRead { tablespace, delta_rows, .. } in &metrics.tablespaces {
        if *delta_rows > 0 {
            details.push(format!(
                "Rows Not Yet Merged: {delta_rows}, in delta in {tablespace}; columns are where they were placed after a merge"
            ));
        }
    }
    for TablespaceRead { tablespace, bytes, decoded_bytes, stall_ns, .. } in &metrics.tablespaces {
        let stall_ms = *stall_ns as f64 / 1e6;
        let (read, decoded) = (size(*bytes, verbose), size(*decoded_bytes, verbose));
        details.push(format!("Tablespace {tablespace}: read {read}, decoded {decoded}, stalled {stall_ms:.3} ms"));
    }
    if verbose {
        for (tablespace, purpose, spent) in paced(scans) {
            details.push(format!("Paced {} in {tablespace}: {}", purpose.name(), counters(&spent)));
        }
    }
    details
}

/// To the byte, for who wants all details.
fn size(bytes: u64, verbose: bool) -> String {
    if verbose { format!("{bytes} B") } else { ByteSize(bytes).to_string() }
}

/// How an operator went about it, and what it held of the query heap at most.
fn observed_details(observed: &Observed, verbose: bool) -> Vec<String> {
    let mut details = observed.notes();
    let peak = |(tablespace, peak): (Option<String>, u64)| match tablespace {
        Some(tablespace) => format!("{} in {tablespace}", size(peak, verbose)),
        None => format!("{} of the process", size(peak, verbose)),
    };
    let peaks: Vec<String> = observed.peaks().into_iter().map(peak).collect();
    if !peaks.is_empty() {
        details.push(format!("Memory: {}", peaks.join(", ")));
    }
    details
}

/// In SQL's words. Names of Tidepool's own columns begin with a character that no terminal shows, and its functions' with its name.
fn plain_text(text: impl std::fmt::Display) -> String {
    plain::text(&text.to_string()).replace('\u{1}', "").replace("tidepool_", "")
}
