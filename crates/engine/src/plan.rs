//! Plans: trees of operators, and how they become pipelines.

use crate::aggregate::{Aggregate, AggregateCall, AggregateSink, AggregateSource, AggregateTable};
use crate::common::{CommonRows, CommonSink, CommonSource};
use crate::counters::Counters;
use crate::determined::Uniqueness;
use crate::evaluate::simplify;
use crate::expr::{Expr, Node};
use crate::grouping::{Expand, GroupingSets, KeySet, Level};
use crate::join::{BuildRows, BuildSink, Join, JoinKind, JoinTable, Probe};
use crate::later::{LaterSink, LaterValue};
use crate::limit::Limit;
use crate::operators::{Filter, Project};
use crate::pipeline::{Operator, Pipeline, Sink, SinkState, Source, Task};
use crate::run::Interruption;
use crate::scan::{ChunkSource, KeysLater, Opened, ScanSource};
use crate::sort::{Sort, SortKey, SortSink, Sorted, SortedSource};
use crate::stream::{Inlet, InletSource};
use crate::touch::{Account, Meter};
use crate::types::{Class, ColumnType};
use crate::vector::Chunk;
use crate::window::{NumberRows, Window, WindowCall, WindowSink, WindowSource, WindowTable};
use hashbrown::HashMap;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use tidepool_base::{Error, Result};
use tidepool_table::KeyTest;

/// What a node of a plan does.
pub enum Op {
    Scan(Arc<ScanSource>),
    /// A stream from elsewhere, by number.
    Input(usize),
    Chunks(Vec<Chunk>),
    Filter(Expr),
    Project(Vec<Expr>),
    /// Its inputs are the probe side and the build side.
    Join(Join),
    Aggregate(Aggregate),
    GroupingSets(Arc<GroupingSets>),
    Sort {
        keys: Vec<SortKey>,
        limit: Option<usize>,
    },
    /// Its input's rows, with columns computed of other rows.
    Window(Window),
    Limit {
        skip: usize,
        fetch: Option<usize>,
    },
    /// All rows of all inputs.
    Union,
    /// The first input's rows. The others are its subqueries, which it and later ones refer to; they run before it, in their order.
    Subqueries(Vec<Subquery>),
    /// The rows of a subquery.
    Common(usize),
}

/// What a subquery is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subquery {
    /// Its only row's only column, which expressions refer to: by number, among subqueries that are values.
    Value,
    /// Its rows, which several parts of the plan have in common, under this number.
    Rows(usize),
}

/// An operator over its inputs.
pub struct Plan {
    pub op: Op,
    pub inputs: Vec<Plan>,
    pub types: Vec<ColumnType>,
    pub rows_estimated: Option<f64>,
    /// What it is called where costs are listed, if that is not what [`Plan::label`] says.
    pub name: Option<String>,
    pub counters: Arc<Counters>,
}

impl Plan {
    fn new(op: Op, inputs: Vec<Plan>, types: Vec<ColumnType>) -> Plan {
        Plan { op, inputs, types, rows_estimated: None, name: None, counters: Arc::default() }
    }

    /// What people see of it.
    pub fn label(&self) -> String {
        let shown = |parts: &mut dyn Iterator<Item = String>| parts.collect::<Vec<_>>().join(", ");
        match &self.op {
            Op::Scan(scan) => format!("Scan: {}", scan.shown),
            Op::Input(number) => format!("Stream {number}"),
            Op::Chunks(_) => "Values".to_owned(),
            Op::Filter(condition) => format!("Filter: {condition}"),
            Op::Project(outputs) => format!("Project: {}", shown(&mut outputs.iter().map(Expr::to_string))),
            Op::Join(join) => {
                let keys = shown(&mut join.keys.iter().map(|key| format!("#{} = #{}", key.probe, key.build)));
                let residual = join.residual.as_ref().map(|residual| format!(" if {residual}")).unwrap_or_default();
                format!("{:?} join: {keys}{residual}", join.kind)
            }
            Op::GroupingSets(grouping) => {
                let calls = shown(&mut grouping.functions.iter().map(called));
                let set = |set: &KeySet| {
                    let keys = grouping.keys.iter().zip(&set.keys).filter(|(_, is_kept)| **is_kept);
                    format!("({})", shown(&mut keys.map(|(column, _)| format!("#{column}"))))
                };
                format!("Aggregate by sets [{}]: {calls}", shown(&mut grouping.sets.iter().map(set)))
            }
            Op::Aggregate(aggregate) => {
                let keys = shown(&mut aggregate.keys.iter().map(|column| format!("#{column}")));
                format!("Aggregate by [{keys}]: {}", shown(&mut aggregate.functions.iter().map(called)))
            }
            Op::Sort { keys, limit } => {
                let key = |key: &SortKey| format!("#{}{}", key.column, if key.descending { " desc" } else { "" });
                let limited = limit.map(|limit| format!(" limit {limit}")).unwrap_or_default();
                format!("Sort: {}{limited}", shown(&mut keys.iter().map(key)))
            }
            Op::Window(window) => {
                let partition = shown(&mut window.partition.iter().map(|column| format!("#{column}")));
                let key = |key: &SortKey| format!("#{}{}", key.column, if key.descending { " desc" } else { "" });
                let order = shown(&mut window.order.iter().map(key));
                let calls = shown(&mut window.functions.iter().map(WindowCall::to_string));
                let first = window.first.map(|most| format!(" up to rank {most}")).unwrap_or_default();
                format!("Window by [{partition}] in [{order}]: {calls}{first}")
            }
            Op::Limit { skip, fetch: Some(fetch) } => format!("Limit: {fetch} after {skip}"),
            Op::Limit { skip, fetch: None } => format!("Limit: all after {skip}"),
            Op::Union => "Union".to_owned(),
            Op::Subqueries(uses) => {
                let mut values = 0..;
                let mut name = |used: &Subquery| match used {
                    Subquery::Value => format!("$subquery{}", values.next().unwrap_or_default()),
                    Subquery::Rows(number) => format!("$rows{number}"),
                };
                format!("Subqueries: {}", shown(&mut uses.iter().map(&mut name)))
            }
            Op::Common(number) => format!("Rows: $rows{number}"),
        }
    }

    pub fn scan(source: ScanSource) -> Plan {
        let types = source.columns.iter().map(|column| column.of.clone()).collect();
        Plan::new(Op::Scan(Arc::new(source)), Vec::new(), types)
    }

    pub fn input(number: usize, types: Vec<ColumnType>) -> Plan {
        Plan::new(Op::Input(number), Vec::new(), types)
    }

    pub fn chunks(chunks: Vec<Chunk>, types: Vec<ColumnType>) -> Plan {
        Plan::new(Op::Chunks(chunks), Vec::new(), types)
    }

    pub fn filter(mut self, condition: Expr) -> Plan {
        let types = self.types.clone();
        let condition = simplify(condition);
        for (column, most) in condition.upper_bounds() {
            self.begin_with(column, most);
        }
        Plan::new(Op::Filter(condition), vec![self], types)
    }

    /// Rows in which a column is above `most` are not wanted: a window whose rank it is need not sort them.
    fn begin_with(&mut self, column: usize, most: i64) {
        match &mut self.op {
            Op::Project(outputs) => {
                if let Node::Column(inner) = outputs[column].node {
                    self.inputs[0].begin_with(inner, most);
                }
            }
            Op::Filter(_) => self.inputs[0].begin_with(column, most),
            Op::Window(window) => {
                let function = column.checked_sub(window.output.len());
                let most = u64::try_from(most).unwrap_or(0).max(1);
                if function.is_some_and(|function| window.can_begin_with(function, most)) {
                    window.first = Some(window.first.map_or(most, |known| known.min(most)));
                }
            }
            _ => {}
        }
    }

    pub fn project(self, outputs: Vec<Expr>) -> Plan {
        let outputs: Vec<Expr> = outputs.into_iter().map(simplify).collect();
        let types = outputs.iter().map(|output| output.of.clone()).collect();
        let rows = self.rows_estimated;
        Plan::new(Op::Project(outputs), vec![self], types).like(&rows)
    }

    /// Of which only some columns, in some order.
    pub fn columns(self, columns: &[usize]) -> Plan {
        if columns.iter().copied().eq(0..self.types.len()) {
            return self;
        }
        let rows = self.rows_estimated;
        let outputs = columns.iter().map(|column| Expr::column(*column, self.types[*column].clone())).collect();
        self.project(outputs).like(&rows)
    }

    pub fn join(probe: Plan, build: Plan, join: Join) -> Plan {
        let types = join.output();
        Plan::new(Op::Join(join), vec![probe, build], types)
    }

    pub fn aggregate(self, aggregate: Aggregate) -> Plan {
        let types = aggregate.columns();
        Plan::new(Op::Aggregate(aggregate), vec![self], types)
    }

    pub fn grouping_sets(self, grouping: GroupingSets) -> Plan {
        let types = grouping.columns();
        Plan::new(Op::GroupingSets(Arc::new(grouping)), vec![self], types)
    }

    pub fn sort(self, keys: Vec<SortKey>, limit: Option<usize>) -> Plan {
        let types = self.types.clone();
        Plan::new(Op::Sort { keys, limit }, vec![self], types)
    }

    pub fn window(self, window: Window) -> Plan {
        let types = window.columns();
        Plan::new(Op::Window(window), vec![self], types)
    }

    pub fn limit(self, skip: usize, fetch: Option<usize>) -> Plan {
        let types = self.types.clone();
        Plan::new(Op::Limit { skip, fetch }, vec![self], types)
    }

    /// Inputs have as many columns, of the same classes; their text is in no dictionary.
    pub fn union(inputs: Vec<Plan>, types: Vec<ColumnType>) -> Plan {
        Plan::new(Op::Union, inputs, types)
    }

    /// Which refers to subqueries.
    pub fn with_subqueries(self, subqueries: Vec<(Subquery, Plan)>) -> Plan {
        if subqueries.is_empty() {
            return self;
        }
        let (types, rows) = (self.types.clone(), self.rows_estimated);
        let (uses, subqueries): (Vec<Subquery>, Vec<Plan>) = subqueries.into_iter().unzip();
        let inputs = std::iter::once(self).chain(subqueries).collect();
        Plan::new(Op::Subqueries(uses), inputs, types).like(&rows)
    }

    /// The rows of a subquery, which are of these types.
    pub fn common(number: usize, types: Vec<ColumnType>) -> Plan {
        Plan::new(Op::Common(number), Vec::new(), types)
    }

    /// It and all below it: before its inputs, in their order.
    pub fn nodes(&self) -> Vec<&Plan> {
        let below = self.inputs.iter().flat_map(Plan::nodes);
        std::iter::once(self).chain(below).collect()
    }

    /// No more rows come out.
    pub fn rows_max(&self) -> u64 {
        self.rows_bounded(&mut Uniqueness::default())
    }

    fn rows_bounded(&self, known: &mut Uniqueness) -> u64 {
        let inputs: Vec<u64> = self.inputs.iter().map(|input| input.rows_bounded(known)).collect();
        let input = |index: usize| inputs.get(index).copied().unwrap_or(u64::MAX);
        match &self.op {
            Op::Scan(scan) => {
                let rows = scan.parts.iter().map(|part| part.version.rows_max()).sum();
                scan.limit.map_or(rows, |limit| rows.min(limit as u64))
            }
            Op::Input(_) | Op::Common(_) => u64::MAX,
            Op::Chunks(chunks) => chunks.iter().map(|chunk| chunk.rows as u64).sum(),
            Op::Filter(_) | Op::Project(_) | Op::Window(_) | Op::Subqueries(_) => input(0),
            // Without keys there is a row for no rows.
            Op::Aggregate(_) => input(0).max(1),
            Op::GroupingSets(grouping) => input(0).max(1).saturating_mul(grouping.sets.len() as u64),
            Op::Sort { limit, .. } => limit.map_or(input(0), |limit| input(0).min(limit as u64)),
            Op::Limit { fetch, .. } => fetch.map_or(input(0), |fetch| input(0).min(fetch as u64)),
            Op::Union => inputs.iter().copied().fold(0, u64::saturating_add),
            Op::Join(join) => match join.kind {
                JoinKind::LeftSemi | JoinKind::LeftAnti | JoinKind::LeftMark => input(0),
                JoinKind::RightSemi | JoinKind::RightAnti => input(1),
                JoinKind::Inner if known.matches_once(self, join) => input(0),
                JoinKind::Inner if known.is_matched_once(self, join) => input(1),
                _ if known.matches_once(self, join) => input(0).saturating_add(input(1)),
                _ if known.is_matched_once(self, join) => input(0).saturating_add(input(1)),
                JoinKind::Inner | JoinKind::Left | JoinKind::Right | JoinKind::Full => {
                    input(0).max(1).saturating_mul(input(1).max(1)).saturating_add(input(0)).saturating_add(input(1))
                }
            },
        }
    }

    /// The same result with what nobody looks at left out. `needed`: of its columns, ascending. Gives the plan of these alone.
    pub fn pruned(mut self, needed: &BTreeSet<usize>) -> Plan {
        let is_whole = match &self.op {
            Op::Aggregate(_)
            | Op::GroupingSets(_)
            | Op::Union
            | Op::Input(_)
            | Op::Chunks(_)
            | Op::Scan(_)
            | Op::Common(_) => true,
            _ => needed.len() == self.types.len(),
        };
        if is_whole {
            let mut columns: Vec<usize> = needed.iter().copied().collect();
            if let Op::Aggregate(aggregate) = &mut self.op
                && !aggregate.keys.is_empty()
            {
                let keys = aggregate.keys.len();
                let (of_keys, of_functions): (Vec<usize>, Vec<usize>) = columns.iter().partition(|it| **it < keys);
                aggregate.functions =
                    of_functions.iter().map(|column| aggregate.functions[column - keys].clone()).collect();
                self.types = aggregate.columns();
                columns = of_keys.into_iter().chain(keys..keys + of_functions.len()).collect();
            }
            self = self.pruned_within();
            return if let Op::Scan(_) = self.op { self.narrowed(&columns) } else { self.columns(&columns) };
        }
        let columns: Vec<usize> = needed.iter().copied().collect();
        match self.op {
            Op::Filter(condition) => {
                let mut wanted = needed.clone();
                condition.columns_into(&mut wanted);
                let place = places(&wanted);
                let input = take(&mut self.inputs).pruned(&wanted);
                let plan = input.filter(condition.moved(&place)).like(&self.rows_estimated);
                plan.columns(&columns.iter().map(|column| place(*column)).collect::<Vec<_>>())
            }
            Op::Project(outputs) => {
                let outputs: Vec<Expr> = outputs
                    .into_iter()
                    .enumerate()
                    .filter(|(index, _)| needed.contains(index))
                    .map(|(_, o)| o)
                    .collect();
                projected(take(&mut self.inputs), outputs)
            }
            Op::Join(join) => {
                let (probe_output, build_output) = (join.probe_output.len(), join.build_output.len());
                let of_probe = if join.kind.emits_probe() { probe_output } else { 0 };
                let has_build = !matches!(join.kind, JoinKind::LeftSemi | JoinKind::LeftAnti | JoinKind::LeftMark);
                let of_build = if has_build { build_output } else { 0 };
                let has_mark = join.kind == JoinKind::LeftMark;
                let probe =
                    (0..of_probe).filter(|index| needed.contains(index)).map(|i| join.probe_output[i]).collect();
                let build = (0..of_build)
                    .filter(|index| needed.contains(&(of_probe + index)))
                    .map(|index| join.build_output[index])
                    .collect();
                let mark = of_probe + of_build;
                let plan =
                    joined(take_two(&mut self.inputs), Join { probe_output: probe, build_output: build, ..join });
                let plan = plan.like(&self.rows_estimated).called(self.name);
                // The mark always comes.
                if has_mark && !needed.contains(&mark) {
                    let without: Vec<usize> = (0..plan.types.len() - 1).collect();
                    return plan.columns(&without);
                }
                plan
            }
            Op::Sort { mut keys, limit } => {
                let mut wanted = needed.clone();
                wanted.extend(keys.iter().map(|key| key.column));
                let place = places(&wanted);
                keys.iter_mut().for_each(|key| key.column = place(key.column));
                let plan = take(&mut self.inputs).pruned(&wanted).sort(keys, limit).like(&self.rows_estimated);
                plan.columns(&columns.iter().map(|column| place(*column)).collect::<Vec<_>>())
            }
            Op::Window(mut window) => {
                let own = window.output.len();
                let (of_input, of_functions): (Vec<usize>, Vec<usize>) =
                    needed.iter().partition(|column| **column < own);
                window.output = of_input.into_iter().map(|column| window.output[column]).collect();
                window.functions =
                    of_functions.into_iter().map(|column| window.functions[column - own].clone()).collect();
                windowed(take(&mut self.inputs), window).like(&self.rows_estimated)
            }
            Op::Subqueries(uses) => {
                let mut inputs = self.inputs.into_iter();
                let main = inputs.next().map(|main| main.pruned(needed));
                let main = main.unwrap_or_else(|| unreachable!("subqueries are somebody's"));
                main.with_subqueries(uses.into_iter().zip(inputs.map(Plan::pruned_wholly)).collect())
            }
            Op::Limit { skip, fetch } => {
                take(&mut self.inputs).pruned(needed).limit(skip, fetch).like(&self.rows_estimated)
            }
            _ => self,
        }
    }

    pub(crate) fn like(mut self, rows: &Option<f64>) -> Plan {
        self.rows_estimated = *rows;
        self
    }

    pub fn called(self, name: Option<String>) -> Plan {
        Plan { name, ..self }
    }

    /// As `pruned`, all of its columns being needed.
    pub fn pruned_wholly(self) -> Plan {
        let all = (0..self.types.len()).collect();
        self.pruned(&all)
    }

    /// The same columns, with inputs pruned.
    fn pruned_within(mut self) -> Plan {
        match self.op {
            Op::Scan(_) | Op::Input(_) | Op::Chunks(_) | Op::Common(_) => self,
            Op::Union => {
                self.inputs = self.inputs.into_iter().map(Plan::pruned_within).collect();
                self
            }
            Op::Filter(_) | Op::Sort { .. } | Op::Limit { .. } | Op::Subqueries(_) => {
                self.inputs = self.inputs.into_iter().map(Plan::pruned_wholly).collect();
                self
            }
            Op::Project(outputs) => projected(take(&mut self.inputs), outputs).like(&self.rows_estimated),
            Op::Join(join) => joined(take_two(&mut self.inputs), join).like(&self.rows_estimated).called(self.name),
            Op::Window(window) => windowed(take(&mut self.inputs), window).like(&self.rows_estimated),
            Op::GroupingSets(grouping) => {
                let mut grouping = Arc::unwrap_or_clone(grouping);
                let mut wanted: BTreeSet<usize> = grouping.keys.iter().copied().collect();
                wanted.extend(grouping.functions.iter().flat_map(|call| call.argument.into_iter().chain(call.filter)));
                let place = places(&wanted);
                grouping.keys.iter_mut().for_each(|key| *key = place(*key));
                for call in &mut grouping.functions {
                    call.argument = call.argument.map(&place);
                    call.filter = call.filter.map(&place);
                }
                let input = take(&mut self.inputs).pruned(&wanted);
                grouping.input = input.types.clone();
                input.grouping_sets(grouping).like(&self.rows_estimated).called(self.name)
            }
            Op::Aggregate(mut aggregate) => {
                let mut wanted: BTreeSet<usize> = aggregate.keys.iter().copied().collect();
                wanted.extend(aggregate.functions.iter().flat_map(|call| call.argument.into_iter().chain(call.filter)));
                let place = places(&wanted);
                aggregate.keys.iter_mut().for_each(|key| *key = place(*key));
                for call in &mut aggregate.functions {
                    call.argument = call.argument.map(&place);
                    call.filter = call.filter.map(&place);
                }
                let input = take(&mut self.inputs).pruned(&wanted);
                aggregate.input = input.types.clone();
                input.aggregate(aggregate).like(&self.rows_estimated).called(self.name)
            }
        }
    }

    /// A scan of some of its columns.
    fn narrowed(self, columns: &[usize]) -> Plan {
        let Op::Scan(source) = self.op else { return self };
        Plan::scan(source.narrowed(columns)).like(&self.rows_estimated)
    }
}

/// What people see of a call.
fn called(call: &AggregateCall) -> String {
    let argument = call.argument.map_or("*".to_owned(), |column| format!("#{column}"));
    let distinct = if call.distinct { "distinct " } else { "" };
    format!("{:?}({distinct}{argument})", call.function).to_lowercase()
}

fn take(inputs: &mut Vec<Plan>) -> Plan {
    inputs.pop().unwrap_or_else(|| unreachable!("an operator of one input has it"))
}

fn take_two(inputs: &mut Vec<Plan>) -> (Plan, Plan) {
    let second = take(inputs);
    (take(inputs), second)
}

/// Where a column is among those that are kept.
fn places(kept: &BTreeSet<usize>) -> impl Fn(usize) -> usize + use<> {
    let kept: Vec<usize> = kept.iter().copied().collect();
    move |column| kept.binary_search(&column).unwrap_or_else(|_| unreachable!("a column that is used is kept"))
}

fn projected(input: Plan, outputs: Vec<Expr>) -> Plan {
    let mut wanted = BTreeSet::new();
    outputs.iter().for_each(|output| output.columns_into(&mut wanted));
    let place = places(&wanted);
    let rows = input.rows_estimated;
    let input = input.pruned(&wanted);
    let outputs: Vec<Expr> = outputs.into_iter().map(|output| output.moved(&place)).collect();
    let is_identity = outputs.len() == input.types.len()
        && outputs
            .iter()
            .enumerate()
            .all(|(index, output)| matches!(output.node, Node::Column(column) if column == index));
    if is_identity { input } else { input.project(outputs).like(&rows) }
}

fn joined((probe, build): (Plan, Plan), mut join: Join) -> Plan {
    let of_probe = probe.types.len();
    let mut wanted: (BTreeSet<usize>, BTreeSet<usize>) = join.keys.iter().map(|key| (key.probe, key.build)).unzip();
    wanted.0.extend(&join.probe_output);
    wanted.1.extend(&join.build_output);
    let mut of_residual = BTreeSet::new();
    if let Some(residual) = &join.residual {
        residual.columns_into(&mut of_residual);
    }
    for column in of_residual {
        if column < of_probe {
            wanted.0.insert(column)
        } else {
            wanted.1.insert(column - of_probe)
        };
    }
    let (of_probe_place, of_build_place) = (places(&wanted.0), places(&wanted.1));
    let (probe, build) = (probe.pruned(&wanted.0), build.pruned(&wanted.1));
    for key in &mut join.keys {
        (key.probe, key.build) = (of_probe_place(key.probe), of_build_place(key.build));
    }
    join.probe_output.iter_mut().for_each(|column| *column = of_probe_place(*column));
    join.build_output.iter_mut().for_each(|column| *column = of_build_place(*column));
    let probe_len = probe.types.len();
    join.residual = join.residual.map(|residual| {
        residual.moved(&|column| match column.checked_sub(of_probe) {
            None => of_probe_place(column),
            Some(column) => probe_len + of_build_place(column),
        })
    });
    (join.probe_types, join.build_types) = (probe.types.clone(), build.types.clone());
    Plan::join(probe, build, join)
}

/// A window over its input, pruned to what it looks at.
fn windowed(input: Plan, mut window: Window) -> Plan {
    let mut wanted: BTreeSet<usize> = window.output.iter().chain(&window.partition).copied().collect();
    wanted.extend(window.order.iter().map(|key| key.column));
    wanted.extend(window.functions.iter().flat_map(|call| call.argument.into_iter().chain(call.filter)));
    let place = places(&wanted);
    window.output.iter_mut().chain(&mut window.partition).for_each(|column| *column = place(*column));
    window.order.iter_mut().for_each(|key| key.column = place(key.column));
    for call in &mut window.functions {
        call.argument = call.argument.map(&place);
        call.filter = call.filter.map(&place);
    }
    let input = input.pruned(&wanted);
    if window.functions.is_empty() {
        return input.columns(&window.output);
    }
    window.input = input.types.clone();
    input.window(window)
}

/// Rows on their way: from one of several sources, through operators.
struct Branch {
    source: Arc<dyn Source>,
    operators: Vec<Arc<dyn Operator>>,
    counters: Vec<Arc<Counters>>,
}

/// Puts pipelines together, in the order in which they run.
struct Compiler<'a> {
    inlets: &'a [Arc<Inlet>],
    /// The plan's, in the order of their numbers.
    nodes: Vec<&'a Plan>,
    account: Option<Arc<dyn Account>>,
    /// Whether what operators do is noted in their counters.
    observes: bool,
    interruption: Arc<dyn Interruption>,
    /// A scan of this execution's for each of the plan's, by the address of its specification.
    scans: HashMap<*const ScanSource, Arc<ScanSource>>,
    /// Of its subqueries.
    later: Vec<LaterValue>,
    /// Rows that parts of it have in common, by their number.
    common: HashMap<usize, Arc<CommonRows>>,
    pipelines: Vec<Pipeline>,
}

/// The pipelines of a plan whose rows go into `sink`, for one execution. `inlets` are what its inputs come from; `opened` is told of
/// storage scans; `account` has operators by their number among the plan's [`Plan::nodes`]; with `observes`, what operators were
/// seen to do stays in their counters.
pub fn compile(
    plan: &Plan,
    inlets: &[Arc<Inlet>],
    opened: Option<Opened>,
    account: Option<Arc<dyn Account>>,
    observes: bool,
    interruption: Arc<dyn Interruption>,
    sink: Arc<dyn Sink>,
) -> Result<Vec<Pipeline>> {
    let mut compiler = Compiler {
        inlets,
        nodes: if account.is_some() { plan.nodes() } else { Vec::new() },
        account,
        observes,
        interruption,
        scans: HashMap::new(),
        later: Vec::new(),
        common: HashMap::new(),
        pipelines: Vec::new(),
    };
    compiler.gather_scans(plan, false, &opened);
    let branches = compiler.flow(plan)?;
    compiler.end_in(branches, sink, Arc::default());
    Ok(compiler.pipelines)
}

impl Compiler<'_> {
    /// `in_one`: the plan's rows make one group.
    fn gather_scans(&mut self, plan: &Plan, in_one: bool, opened: &Option<Opened>) {
        if let Op::Scan(scan) = &plan.op {
            let afresh = scan.afresh(opened.clone(), self.account.clone());
            let afresh = if in_one && scan.reads_nothing() { afresh.in_row_groups() } else { afresh };
            self.scans.insert(Arc::as_ptr(scan), Arc::new(afresh));
        }
        let in_one = matches!(&plan.op, Op::Aggregate(aggregate) if aggregate.keys.is_empty());
        plan.inputs.iter().for_each(|input| self.gather_scans(input, in_one, opened));
    }

    fn scan(&self, scan: &Arc<ScanSource>) -> Result<Arc<ScanSource>> {
        let own = self.scans.get(&Arc::as_ptr(scan)).cloned();
        own.ok_or_else(|| Error::internal("a scan that was not prepared"))
    }

    /// Its operators are numbered as [`Plan::nodes`] has them.
    fn meter(&self, plan: &Plan) -> Meter {
        let number = self.nodes.iter().position(|node| std::ptr::eq(*node, plan));
        let meter = match (&self.account, number) {
            (Some(account), Some(number)) => Meter::new(Arc::clone(account), number),
            _ => Meter::default(),
        };
        meter.observed(self.observes.then(|| plan.counters.observe()))
    }

    /// With this execution's values of subqueries.
    fn bound(&self, expr: &Expr) -> Expr {
        expr.clone().with_later(&self.later)
    }

    fn flow(&mut self, plan: &Plan) -> Result<Vec<Branch>> {
        let source = |source: Arc<dyn Source>| {
            vec![Branch { source, operators: Vec::new(), counters: vec![Arc::clone(&plan.counters)] }]
        };
        let input =
            |index: usize| plan.inputs.get(index).ok_or_else(|| Error::internal("an operator's input is missing"));
        let through = |mut branches: Vec<Branch>, operator: Arc<dyn Operator>| {
            for branch in &mut branches {
                branch.operators.push(Arc::clone(&operator));
                branch.counters.push(Arc::clone(&plan.counters));
            }
            branches
        };
        Ok(match &plan.op {
            Op::Scan(scan) => source(self.scan(scan)?),
            Op::Input(number) => {
                let inlet = self.inlets.get(*number).ok_or_else(|| Error::internal("a plan's stream is missing"))?;
                source(Arc::new(InletSource(Arc::clone(inlet))))
            }
            Op::Chunks(chunks) => source(Arc::new(ChunkSource::new(chunks.clone()))),
            Op::Filter(condition) => {
                let branches = self.flow(input(0)?)?;
                through(branches, Arc::new(Filter::new(self.bound(condition))?))
            }
            Op::Project(outputs) => {
                let branches = self.flow(input(0)?)?;
                through(branches, Arc::new(Project::new(outputs.iter().map(|output| self.bound(output)).collect())?))
            }
            Op::Limit { skip, fetch } => {
                let branches = self.flow(input(0)?)?;
                through(branches, Arc::new(Limit::new(*skip, *fetch)))
            }
            Op::Join(join) => {
                let (probe, build) = (input(0)?, input(1)?);
                let mut scans = Vec::new();
                for (index, key) in join.filtering_keys() {
                    reached(probe, key.probe, &mut |scan, column| scans.push((index, scan, column)));
                }
                let table = JoinTable::metered(
                    Join {
                        filters: !scans.is_empty(),
                        residual: join.residual.as_ref().map(|residual| self.bound(residual)),
                        ..join.clone()
                    },
                    Arc::clone(&self.interruption),
                    self.meter(plan),
                )?;
                let branches = self.flow(build)?;
                let sink = Arc::new(BuildSink::new(&table));
                self.end_in(branches, sink, Arc::clone(&plan.counters));
                for (index, scan, column) in scans {
                    let keys = Keys::later(&table, index);
                    self.scan(&scan)?.runtime.lock().push((column, keys));
                }
                let branches = self.flow(probe)?;
                let mut branches = through(branches, Arc::new(Probe::new(&table)));
                if join.kind.emits_build() {
                    branches.push(Branch {
                        source: Arc::new(BuildRows::new(&table)),
                        operators: Vec::new(),
                        counters: vec![Arc::clone(&plan.counters)],
                    });
                }
                branches
            }
            Op::Aggregate(aggregate) => source(Arc::new(AggregateSource::new(&self.groups(plan, aggregate)?))),
            Op::GroupingSets(grouping) => {
                if let Op::Aggregate(finest) = &input(0)?.op
                    && let Some(levels) = grouping.cascade(finest)
                {
                    let finest = self.groups(input(0)?, finest)?;
                    return self.cascade(plan, grouping, &finest, &levels);
                }
                let table = AggregateTable::metered(&grouping.aggregate(), None, self.meter(plan))?;
                let expand = Expand::new(grouping);
                let groups = expand.groups(&table);
                let branches = self.flow(input(0)?)?;
                let branches = through(branches, Arc::new(expand));
                self.end_in(branches, Arc::new(AggregateSink::new(&table)), Arc::clone(&plan.counters));
                source(Arc::new(groups))
            }
            Op::Sort { keys, limit } => {
                let types = plan.types.clone();
                let sorted = Sorted::metered(Sort { keys: keys.clone(), limit: *limit, types }, self.meter(plan));
                if let (Some(first), Some(bound)) = (keys.first(), sorted.bound()) {
                    let mut scans = Vec::new();
                    reached(input(0)?, first.column, &mut |scan, column| scans.push((scan, column)));
                    for (scan, column) in scans {
                        let bound = Arc::clone(&bound);
                        self.scan(&scan)?.runtime.lock().push((column, Arc::new(move || Some(Arc::clone(&bound)))));
                    }
                }
                let branches = self.flow(input(0)?)?;
                let sink = Arc::new(SortSink(Arc::clone(&sorted)));
                self.end_in(branches, sink, Arc::clone(&plan.counters));
                source(Arc::new(SortedSource(sorted)))
            }
            Op::Window(window) if window.numbers_rows() => {
                self.meter(plan).observer().note(|| "Window Method: rows numbered as they come".to_owned());
                let branches = self.flow(input(0)?)?;
                through(branches, Arc::new(NumberRows::new(window)?))
            }
            Op::Window(window) => {
                let table = WindowTable::metered(window, Arc::clone(&self.interruption), self.meter(plan))?;
                let branches = self.flow(input(0)?)?;
                self.end_in(branches, Arc::new(WindowSink(Arc::clone(&table))), Arc::clone(&plan.counters));
                source(Arc::new(WindowSource(table)))
            }
            Op::Subqueries(uses) => {
                for (subquery, used) in plan.inputs[1..].iter().zip(uses) {
                    let branches = self.flow(subquery)?;
                    let sink: Arc<dyn Sink> = match used {
                        Subquery::Value => {
                            let value = LaterValue::default();
                            self.later.push(Arc::clone(&value));
                            Arc::new(LaterSink(value))
                        }
                        Subquery::Rows(number) => {
                            let rows = CommonRows::metered(self.meter(plan));
                            self.common.insert(*number, Arc::clone(&rows));
                            Arc::new(CommonSink(rows))
                        }
                    };
                    self.end_in(branches, sink, Arc::clone(&plan.counters));
                }
                self.flow(input(0)?)?
            }
            Op::Common(number) => {
                let rows =
                    self.common.get(number).ok_or_else(|| Error::internal("a plan's common rows are missing"))?;
                source(Arc::new(CommonSource::new(rows)))
            }
            Op::Union => {
                let mut branches = Vec::new();
                for input in &plan.inputs {
                    branches.append(&mut self.flow(input)?);
                }
                branches
            }
        })
    }

    /// The groups of an aggregate, which a pipeline makes.
    fn groups(&mut self, plan: &Plan, aggregate: &Aggregate) -> Result<Arc<AggregateTable>> {
        let input = plan.inputs.first().ok_or_else(|| Error::internal("an operator's input is missing"))?;
        let table = AggregateTable::metered(aggregate, input.rows_estimated, self.meter(plan))?;
        let branches = self.flow(input)?;
        self.end_in(branches, Arc::new(AggregateSink::new(&table)), Arc::clone(&plan.counters));
        Ok(table)
    }

    /// The groups of sets, level by level. `finest`: those by all keys.
    fn cascade(
        &mut self,
        plan: &Plan,
        sets: &Arc<GroupingSets>,
        finest: &Arc<AggregateTable>,
        levels: &[Level],
    ) -> Result<Vec<Branch>> {
        self.meter(plan).observer().note(|| {
            let made = |level: &Level| level.aggregate.as_ref().map(|_| level.of.map(|of| &levels[of]));
            let of_others = levels.iter().filter_map(made).flatten().count();
            format!(
                "Grouping Sets: {} of {} made of the groups of a smaller one than that of all keys",
                of_others,
                levels.len()
            )
        });
        let input = plan.inputs.first().ok_or_else(|| Error::internal("an operator's input is missing"))?;
        let rows = input.rows_estimated;
        // Groups count once, however often they are read.
        let mut of_all = Some(Arc::clone(&input.counters));
        let mut tables: Vec<Arc<AggregateTable>> = Vec::with_capacity(levels.len());
        let mut branches = Vec::new();
        for level in levels {
            let table = match &level.aggregate {
                None => Arc::clone(finest),
                Some(aggregate) => {
                    let table = AggregateTable::metered(aggregate, rows, self.meter(plan))?;
                    let of = level.of.map_or(finest, |of| &tables[of]);
                    let source: Arc<dyn Source> = Arc::new(AggregateSource::new(of));
                    let counters = if level.of.is_none() { of_all.take() } else { None };
                    let branch = Branch { source, operators: Vec::new(), counters: vec![counters.unwrap_or_default()] };
                    self.end_in(vec![branch], Arc::new(AggregateSink::new(&table)), Arc::clone(&plan.counters));
                    table
                }
            };
            let counters = if level.aggregate.is_none() { of_all.take() } else { None };
            branches.push(Branch {
                source: Arc::new(AggregateSource::new(&table)),
                operators: vec![Arc::new(sets.of_level(level))],
                counters: vec![counters.unwrap_or_default(), Arc::clone(&plan.counters)],
            });
            tables.push(table);
        }
        Ok(branches)
    }

    /// Each branch becomes a pipeline. The sink finishes after the last of them.
    fn end_in(&mut self, branches: Vec<Branch>, sink: Arc<dyn Sink>, counters: Arc<Counters>) {
        let shared = Arc::new(Shared { sink, left: AtomicUsize::new(branches.len()), states: Mutex::default() });
        for Branch { source, operators, counters: mut own } in branches {
            own.push(Arc::clone(&counters));
            let sink = Arc::clone(&shared) as Arc<dyn Sink>;
            let account = self.account.clone();
            self.pipelines.push(Pipeline { source, operators, sink, counters: own, account });
        }
    }
}

/// The scans whose rows can only matter if a column of theirs is among those that a column of the plan's has to be.
pub(crate) fn reached(plan: &Plan, column: usize, found: &mut dyn FnMut(Arc<ScanSource>, usize)) {
    let of = &plan.types[column];
    if of.class() != Class::Int || of.dictionary.is_some() {
        return;
    }
    match &plan.op {
        Op::Scan(scan) => {
            let is_number = !matches!(of.data_type, arrow_schema::DataType::Decimal128(..));
            if is_number && scan.limit.is_none() {
                found(Arc::clone(scan), scan.columns[column].column);
            }
        }
        Op::Filter(_) | Op::Subqueries(_) => reached(&plan.inputs[0], column, found),
        Op::Sort { limit: None, .. } => reached(&plan.inputs[0], column, found),
        Op::Project(outputs) => {
            if let Node::Column(inner) = outputs[column].node {
                reached(&plan.inputs[0], inner, found);
            }
        }
        // Partitions without such a row can be left out, and no partition loses some of its rows.
        Op::Window(window) => {
            if let Some(own) = window.output.get(column).filter(|own| window.partition.contains(own)) {
                reached(&plan.inputs[0], *own, found);
            }
        }
        Op::Aggregate(aggregate) => {
            if let Some(key) = aggregate.keys.get(column) {
                reached(&plan.inputs[0], *key, found);
            }
        }
        Op::Join(join) => {
            let of_probe = if join.kind.emits_probe() { join.probe_output.len() } else { 0 };
            if column < of_probe {
                // A row of the probe side that is missing could only have matched.
                if matches!(
                    join.kind,
                    JoinKind::Inner | JoinKind::Left | JoinKind::LeftSemi | JoinKind::LeftAnti | JoinKind::LeftMark
                ) {
                    let probe = join.probe_output[column];
                    reached(&plan.inputs[0], probe, found);
                }
            } else if let Some(build) = join.build_output.get(column - of_probe)
                && matches!(join.kind, JoinKind::Inner | JoinKind::Right | JoinKind::RightSemi | JoinKind::RightAnti)
            {
                reached(&plan.inputs[1], *build, found);
            }
        }
        Op::Union => plan.inputs.iter().for_each(|input| reached(input, column, found)),
        _ => {}
    }
}

/// A sink of several pipelines.
struct Shared {
    sink: Arc<dyn Sink>,
    left: AtomicUsize,
    states: Mutex<Vec<Box<dyn SinkState>>>,
}

impl Sink for Shared {
    fn worker(&self) -> Result<Box<dyn SinkState>> {
        self.sink.worker()
    }

    fn finish(&self, round: usize, states: &mut Vec<Box<dyn SinkState>>) -> Result<Vec<Task>> {
        if round == 0 && self.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            self.states.lock().append(states);
            return Ok(Vec::new());
        }
        if round == 0 {
            states.append(&mut self.states.lock());
        }
        self.sink.finish(round, states)
    }

    fn is_ready(&self) -> bool {
        self.sink.is_ready()
    }

    fn is_satisfied(&self) -> bool {
        self.sink.is_satisfied()
    }
}

/// The keys of a join's build side, for a scan of its probe side.
struct Keys {
    table: Arc<JoinTable>,
    key: usize,
    bounds: Option<(i64, i64)>,
    is_retired: AtomicBool,
    judged: Judged,
}

/// On a line of its own: all workers write it, and read what is beside it for each test.
#[derive(Default)]
#[repr(align(64))]
struct Judged {
    seen: AtomicU64,
    kept: AtomicU64,
}

/// Values that keys must have been asked about before they are judged.
const JUDGED_AFTER_VALUES: u64 = 64 * 1024;

/// Fewer values at a time are tested without being counted.
const COUNTED_VALUES_MIN: usize = 256;

/// Keys that let more than this share of values pass are not asked any more: what the join would do with the others costs less.
const KEPT_MAX: f64 = 0.8;

impl Keys {
    fn later(table: &Arc<JoinTable>, key: usize) -> KeysLater {
        let table = Arc::clone(table);
        Arc::new(move || {
            let bounds = table.key_filter(key)?.bounds();
            let (is_retired, judged) = Default::default();
            let keys = Arc::new(Keys { table: Arc::clone(&table), key, bounds, is_retired, judged });
            let seen = Arc::downgrade(&keys);
            table.observer().note_late(move || seen.upgrade().map(|keys| keys.described()));
            Some(keys as Arc<dyn KeyTest>)
        })
    }

    fn described(&self) -> String {
        let kind = self.table.key_filter(self.key).map_or("bounds", |filter| filter.kind());
        let (kept, seen) = (self.judged.kept.load(Ordering::Relaxed), self.judged.seen.load(Ordering::Relaxed));
        let retired = if self.is_retired() { ", then retired" } else { "" };
        let build = self.table.join().keys[self.key].build;
        format!("Keys in Scan: {kind} of #{build}, {kept} of {seen} counted values passed{retired}")
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("key", &self.key).field("bounds", &self.bounds).finish_non_exhaustive()
    }
}

impl KeyTest for Keys {
    fn bounds(&self) -> Option<(i64, i64)> {
        self.bounds
    }

    fn and_values(&self, values: &[i64], words: &mut [u64]) {
        let Some(filter) = self.table.key_filter(self.key) else { return };
        // Values of runs come by ones and twos: counting would take longer than the test.
        if values.len() < COUNTED_VALUES_MIN {
            return filter.test_ints(values, words);
        }
        let count = |words: &[u64]| words.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
        let before = count(words);
        filter.test_ints(values, words);
        let kept = self.judged.kept.fetch_add(count(words), Ordering::Relaxed);
        let seen = self.judged.seen.fetch_add(before, Ordering::Relaxed);
        if seen >= JUDGED_AFTER_VALUES && kept as f64 > KEPT_MAX * seen as f64 {
            self.is_retired.store(true, Ordering::Relaxed);
        }
    }

    fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Relaxed)
    }

    fn listed(&self, most: usize) -> Option<Vec<i64>> {
        self.table.keys_listed(self.key, most)
    }
}
