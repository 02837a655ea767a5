//! `EXPLAIN`: a plan as lines of text, laid out as PostgreSQL lays its own out.
//!
//! An operator's line has what the planner expected of it (`rows`, `width`) and, once it ran, what it did: rows, and
//! time inside the operator itself, added up over its threads. Below follow the memory it held and, for a scan, what it
//! read from each tablespace and how long pacing stalled it there.

use crate::charge::OperatorAccount;
use crate::engine::EngineExec;
use crate::pass::PassExec;
use crate::scan::{TidepoolScanExec, paced, scan_metrics};
use crate::statement::ExplainOptions;
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

/// The lines of a plan, under a node that takes its rows, if there is one. Once it has `ran`, with what its operators
/// measured; then it is how long that took, and what number of rows came of it.
pub fn lines(
    plan: &Arc<dyn ExecutionPlan>,
    node: Option<&Node>,
    ran: Option<(Duration, u64)>,
    options: ExplainOptions,
) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(node) = node {
        let actual = ran.map(|(elapsed, rows)| match options.hides_timing {
            true => format!(" (actual rows={rows})"),
            false => format!(" (actual time={:.3} ms rows={rows})", elapsed.as_secs_f64() * 1e3),
        });
        lines.push(format!("{}{}", node.what, actual.unwrap_or_default()));
        lines.extend(node.details.iter().map(|detail| format!("  {detail}")));
    }
    if options.tree && ran.is_none() {
        let text = shown(DisplayableExecutionPlan::new(plan.as_ref()).tree_render());
        lines.extend(text.lines().map(str::to_owned));
        return lines;
    }
    let explain = Explain { analyze: ran.is_some(), options, statistics: StatisticsContext::new() };
    explain.node(plan.as_ref(), usize::from(node.is_some()), Vec::new(), &mut lines);
    lines
}

struct Explain {
    analyze: bool,
    options: ExplainOptions,
    statistics: StatisticsContext,
}

impl Explain {
    /// `known`: details that nodes which are left out have of this one.
    fn node(&self, plan: &dyn ExecutionPlan, depth: usize, known: Vec<String>, lines: &mut Vec<String>) {
        if let Some(pass) = plan.downcast_ref::<PassExec>().filter(|pass| pass.is_hidden()) {
            let known = known.into_iter().chain(pass.details(self.options.verbose)).collect::<Vec<_>>();
            for child in plan.children() {
                self.node(child.as_ref(), depth, known.clone(), lines);
            }
            return;
        }
        let text = shown(DisplayableExecutionPlan::new(plan).one_line());
        let mut line = match depth {
            0 => text.trim_end().to_owned(),
            _ => format!("{}->  {}", " ".repeat(depth * INDENT - 4), text.trim_end()),
        };
        if let Some(expected) = self.expected(plan).filter(|_| !self.options.hides_costs) {
            line += &expected;
        }
        if self.analyze {
            line += &actual(plan, self.options.hides_timing);
        }
        lines.push(line);
        if self.analyze {
            let margin = " ".repeat(depth * INDENT + 2);
            let details = match plan.downcast_ref::<TidepoolScanExec>() {
                Some(scan) => scan_details(&scan.scans(), self.options.verbose),
                None => self.details(plan),
            };
            lines.extend(details.into_iter().chain(known).map(|detail| format!("{margin}{detail}")));
        }
        if let Some(engine) = plan.downcast_ref::<EngineExec>() {
            self.engine(engine, depth + 1, lines);
            return;
        }
        for child in plan.children() {
            self.node(child.as_ref(), depth + 1, Vec::new(), lines);
        }
    }

    /// The engine's plan, and what goes into it.
    fn engine(&self, engine: &EngineExec, depth: usize, lines: &mut Vec<String>) {
        let nodes = engine.plan().nodes();
        let account = |node: &Plan| {
            let number = nodes.iter().position(|other| std::ptr::eq(*other, node))?;
            engine.account()?.operator(number)
        };
        if self.analyze
            && let Some(account) = engine.account()
        {
            let margin = " ".repeat((depth - 1) * INDENT + 2);
            let details = crate::charge::details(account.way(), self.options.verbose);
            lines.extend(details.into_iter().map(|detail| format!("{margin}{detail}")));
        }
        self.engine_node(engine.plan(), &engine.children(), &account, depth, lines);
    }

    /// An operator of the engine's, and those below it, down to streams of other operators'.
    fn engine_node<'e>(
        &self,
        plan: &Plan,
        inputs: &[&Arc<dyn ExecutionPlan>],
        account: &dyn Fn(&Plan) -> Option<&'e OperatorAccount>,
        depth: usize,
        lines: &mut Vec<String>,
    ) {
        if let Op::Input(number) = plan.op {
            if let Some(input) = inputs.get(number) {
                self.node(input.as_ref(), depth, Vec::new(), lines);
            }
            return;
        }
        let mut line = format!("{}->  {}", " ".repeat(depth * INDENT - 4), shown(plan.label()));
        if let Some(rows) = plan.rows_estimated.filter(|_| !self.options.hides_costs) {
            line += &format!("  (rows={})", rows.ceil() as u64);
        }
        if self.analyze {
            let did = plan.counters.get();
            line += &match self.options.hides_timing {
                true => format!(" (actual rows={})", did.rows_out),
                false => format!(" (actual time={:.3} ms rows={})", did.ns as f64 / 1e6, did.rows_out),
            };
        }
        lines.push(line);
        let margin = " ".repeat(depth * INDENT + 2);
        lines.extend(self.keys(plan).into_iter().map(|detail| format!("{margin}{detail}")));
        if self.analyze {
            if let Op::Filter(_) = &plan.op {
                let did = plan.counters.get();
                lines.push(format!("{margin}Rows Removed by Filter: {}", did.rows_in - did.rows_out));
            }
            if let Op::Scan(scan) = &plan.op {
                let details = scan_details(&scan.history(), self.options.verbose);
                lines.extend(details.into_iter().map(|detail| format!("{margin}{detail}")));
            }
            if let Some(observed) = plan.counters.observed() {
                let details = observed_details(observed, self.options.verbose);
                lines.extend(details.into_iter().map(|detail| format!("{margin}{}", shown(detail))));
            }
            if let Some(account) = account(plan) {
                let details = crate::charge::details(account, self.options.verbose);
                lines.extend(details.into_iter().map(|detail| format!("{margin}{detail}")));
            }
        }
        for input in &plan.inputs {
            self.engine_node(input, inputs, account, depth + 1, lines);
        }
    }

    /// What an operator of the engine's joins or groups by, and what its sides were chosen by.
    fn keys(&self, plan: &Plan) -> Vec<String> {
        let name = match &plan.op {
            Op::Join(join) if !join.keys.is_empty() => "Join Cond",
            Op::Aggregate(_) | Op::GroupingSets(_) => "Group Key",
            _ => "",
        };
        let keys = plan.name.as_ref().and_then(|known| known.split_once(": ")).filter(|_| !name.is_empty());
        let mut details: Vec<String> = keys.iter().map(|(_, keys)| format!("{name}: {}", shown(keys))).collect();
        if let (Op::Join(_), [probe, build]) = (&plan.op, plan.inputs.as_slice())
            && let Some((probe, build)) = probe.rows_estimated.zip(build.rows_estimated)
            && !self.options.hides_costs
        {
            let (probe, build) = (probe.ceil() as u64, build.ceil() as u64);
            details.push(format!("Build Side: the second, expected {build} rows against {probe}"));
        }
        details
    }

    fn expected(&self, plan: &dyn ExecutionPlan) -> Option<String> {
        let statistics = self.statistics.compute(plan, &StatisticsArgs::new()).ok()?;
        let rows = *statistics.num_rows.get_value()?;
        let width = match statistics.total_byte_size.get_value() {
            Some(bytes) if rows > 0 => format!(" width={}", bytes / rows),
            _ => String::new(),
        };
        Some(format!("  (rows={rows}{width})"))
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

fn actual(plan: &dyn ExecutionPlan, hides_timing: bool) -> String {
    let Some(metrics) = plan.metrics() else { return String::new() };
    match (metrics.output_rows(), metrics.elapsed_compute().filter(|_| !hides_timing)) {
        (Some(rows), Some(ns)) => format!(" (actual time={:.3} ms rows={rows})", ns as f64 / 1e6),
        (Some(rows), None) => format!(" (actual rows={rows})"),
        (None, Some(ns)) => format!(" (actual time={:.3} ms)", ns as f64 / 1e6),
        // What it measures follows on lines of its own.
        (None, None) if metrics.iter().next().is_some() => String::new(),
        (None, None) => " (never executed)".to_owned(),
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
    for TablespaceRead { tablespace, bytes, decoded_bytes, stall_ns } in &metrics.tablespaces {
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

/// Names of Tidepool's own begin with a character that no terminal shows.
fn shown(text: impl std::fmt::Display) -> String {
    text.to_string().replace('\u{1}', "")
}
