//! Which part of a plan the engine runs, and how: DataFusion's optimised plan, its covered parts replaced by nodes that stand for
//! plans of the engine's.
//!
//! A covered part ends where an operator or an expression is not the engine's. What is below such an operator is looked through
//! again, and what comes out of it is a stream that an engine's plan above may take, if it scans tables, too, or sorts, groups,
//! joins, unites or numbers rows.

use super::expressions::Scope;
use super::node::EngineNode;
use crate::optimizer::estimate::{self, Estimate};
use crate::scan::{Part, TableProvider};
use datafusion::arrow::datatypes::FieldRef;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, JoinType, NullEquality, Result as PlanResult, internal_datafusion_err};
use datafusion::datasource::source_as_provider;
use datafusion::execution::SessionState;
use datafusion::logical_expr::expr_rewriter::unnormalize_cols;
use datafusion::logical_expr::{
    Expr, Extension, FetchType, Join, Limit, LogicalPlan, SkipType, Sort, TableScan, Union,
};
use std::sync::Arc;
use tidepool_engine::expr::Expr as EngineExpr;
use tidepool_engine::join::{Join as EngineJoin, JoinKey, JoinKind};
use tidepool_engine::plan::{Plan, Subquery as SubqueryUse};
use tidepool_engine::scan::{ScanColumn, ScanPart, ScanSource};
use tidepool_engine::sort::SortKey;
use tidepool_engine::types::ColumnType;

/// Rows that a thread reads and makes in the time that it takes to wake another, or not much longer.
const SMALL_ROWS: f64 = 50_000.0;

/// Rows of the smaller side of a join that a thread makes by itself.
const PARTNERS_MAX: f64 = 2_000.0;

/// Rows of one side of a join whose keys the other's index is asked for, for certain.
const KEYS_FEW: f64 = 256.0;

/// Replaces what the engine covers. `targets`: also where it reads rows that the statement changes or locks.
pub fn lower(state: &SessionState, plan: &LogicalPlan, targets: bool) -> PlanResult<LogicalPlan> {
    if !targets && has_targets(plan) || !has_tables_or_work(plan)? {
        return Ok(plan.clone());
    }
    rewrite(state, plan)
}

/// Whether it, or a subquery of its expressions, has something for the engine to do.
fn has_tables_or_work(plan: &LogicalPlan) -> PlanResult<bool> {
    let mut found = false;
    plan.apply_with_subqueries(|node| {
        found |= matches!(node, LogicalPlan::TableScan(_)) || is_work(node) || is_constant_row(node);
        Ok(if found { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(found)
}

/// One row of constants, or what is easily worked out from them: what clients ask for to see whether the server answers.
fn is_constant_row(node: &LogicalPlan) -> bool {
    let LogicalPlan::Projection(projection) = node else { return false };
    let is_easy = |expr: &Expr| {
        let of_these =
            |expr: &Expr| Ok(!matches!(expr, Expr::Literal(..) | Expr::Alias(_) | Expr::Cast(_) | Expr::BinaryExpr(_)));
        !expr.exists(of_these).unwrap_or(true)
    };
    matches!(&*projection.input, LogicalPlan::EmptyRelation(empty) if empty.produce_one_row)
        && projection.expr.iter().all(is_easy)
}

/// An operator that is worth the way into the engine and out of it for rows that are others'.
fn is_work(node: &LogicalPlan) -> bool {
    use LogicalPlan::{Aggregate, Join, Sort, Union, Window};
    matches!(node, Aggregate(_) | Join(_) | Sort(_) | Union(_) | Window(_))
}

/// Rows that a statement changes or locks are found again by operators that can be restricted to some of them.
fn has_targets(plan: &LogicalPlan) -> bool {
    let own = match plan {
        LogicalPlan::TableScan(scan) => table_of(scan).is_some_and(|table| table.is_target()),
        _ => false,
    };
    own || plan.inputs().into_iter().any(has_targets)
}

/// Whether the engine may find the rows that a statement changes: another plan, which is made only once some of them have changed meanwhile, finds
/// for the same rows the same.
pub fn may_take_targets(plan: &LogicalPlan) -> PlanResult<bool> {
    let mut lasts = has_targets(plan);
    plan.apply_with_subqueries(|node| {
        lasts &= match node {
            LogicalPlan::TableScan(scan) => table_of(scan).is_some_and(|table| table.lasting().is_some()),
            LogicalPlan::Extension(_) | LogicalPlan::RecursiveQuery(_) => false,
            _ => true,
        };
        node.apply_expressions(|expr| {
            lasts &= !expr.is_volatile();
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(if lasts { TreeNodeRecursion::Continue } else { TreeNodeRecursion::Stop })
    })?;
    Ok(lasts)
}

fn table_of(scan: &TableScan) -> Option<Arc<TableProvider>> {
    let provider = source_as_provider(&scan.source).ok()?;
    let table: &TableProvider = provider.downcast_ref::<TableProvider>()?;
    Some(Arc::new(table.clone()))
}

fn rewrite(state: &SessionState, plan: &LogicalPlan) -> PlanResult<LogicalPlan> {
    let mut lowering = Lowering { state, inputs: Vec::new(), scans: 0, works: 0, rows: 0.0, subqueries: Vec::new() };
    if let Ok(lowered) = lowering.node(plan)
        && (lowering.scans > 0 || lowering.works > 0)
        && let Some(types) = promised(&lowered.plan, plan.schema())
    {
        let subqueries = lowering.subqueries.into_iter().map(|it| (SubqueryUse::Value, it.lowered)).collect();
        let whole = lowered.plan.with_subqueries(subqueries);
        let inputs = lowering.inputs.iter().map(|input| rewrite_children(state, input)).collect::<PlanResult<_>>()?;
        let is_small = lowering.rows <= SMALL_ROWS;
        let whole = whole.pruned_wholly().with_common();
        let node = EngineNode::new(whole, types, plan.schema().clone(), inputs, is_small);
        return Ok(LogicalPlan::Extension(Extension { node: Arc::new(node) }));
    }
    rewrite_children(state, plan)
}

fn rewrite_children(state: &SessionState, plan: &LogicalPlan) -> PlanResult<LogicalPlan> {
    let inputs = plan.inputs();
    if inputs.is_empty() {
        return Ok(plan.clone());
    }
    let inputs = inputs.into_iter().map(|input| rewrite(state, input)).collect::<PlanResult<Vec<_>>>()?;
    plan.with_new_exprs(plan.expressions(), inputs)
}

pub(super) struct Lowered {
    pub plan: Plan,
    pub estimate: Estimate,
    /// Of a scan that a join may narrow to rows with few keys: rows that it reads otherwise, and what the tables' indexes begin with.
    pub narrows: Option<Narrows>,
}

#[derive(Clone)]
pub(super) struct Narrows {
    rows: f64,
    /// By output column: an index of each of the scan's tables has it.
    indexed: Vec<bool>,
}

impl Lowered {
    pub fn new(plan: Plan, estimate: Estimate) -> Lowered {
        Lowered { plan, estimate, narrows: None }
    }
}

pub(super) struct Lowering<'a> {
    pub(super) state: &'a SessionState,
    /// What the engine takes as streams.
    inputs: Vec<LogicalPlan>,
    /// Of tables.
    scans: usize,
    /// Operators that are [work](is_work).
    works: usize,
    /// That scans read and operators make, about.
    rows: f64,
    /// What its expressions refer to by number.
    subqueries: Vec<Subquery>,
}

/// A subquery that gives one value, whatever row it is asked for.
struct Subquery {
    plan: Arc<LogicalPlan>,
    of: ColumnType,
    lowered: Plan,
}

pub(super) fn refused(what: &str) -> datafusion::common::DataFusionError {
    internal_datafusion_err!("the engine has no {what}")
}

pub(super) fn own<T>(result: tidepool_base::Result<T>) -> PlanResult<T> {
    result.map_err(crate::errors::carry)
}

fn column_types(schema: &DFSchema) -> Vec<ColumnType> {
    schema.fields().iter().map(|field| ColumnType::new(field.data_type().clone(), true)).collect()
}

impl Lowering<'_> {
    /// An operator of the engine's; or a stream, where there is none.
    pub(super) fn input(&mut self, plan: &LogicalPlan) -> PlanResult<Lowered> {
        let (inputs, scans, works) = (self.inputs.len(), self.scans, self.works);
        let subqueries = self.subqueries.len();
        match self.node(plan) {
            Ok(lowered) => return Ok(lowered),
            Err(error) => tracing::debug!(%error, plan = %plan.display(), "not the engine's"),
        }
        self.inputs.truncate(inputs);
        self.scans = scans;
        self.works = works;
        self.subqueries.truncate(subqueries);
        let types = column_types(plan.schema());
        let mut below = Vec::new();
        for input in plan.inputs() {
            below.push(self.estimate(input));
        }
        self.inputs.push(plan.clone());
        let estimate = estimate::of_node(plan, &below);
        Ok(Lowered::new(Plan::input(self.inputs.len() - 1, types), estimate))
    }

    fn estimate(&self, plan: &LogicalPlan) -> Estimate {
        let below: Vec<Estimate> = plan.inputs().into_iter().map(|input| self.estimate(input)).collect();
        estimate::of_node(plan, &below)
    }

    /// Those of an operator's own expressions.
    fn find_subqueries(&mut self, plan: &LogicalPlan) -> PlanResult<()> {
        let mut found = Vec::new();
        plan.apply_expressions(|expr| {
            expr.apply(|expr| {
                if let Expr::ScalarSubquery(subquery) = expr
                    && subquery.outer_ref_columns.is_empty()
                {
                    found.push(subquery.subquery.clone());
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })?;
        for plan in found {
            if self.subqueries.iter().any(|known| known.plan == plan) {
                continue;
            }
            // A function is given its arguments row by row, and a list would be written out for each.
            if plan.schema().field(0).data_type().is_nested() {
                return Err(refused("subquery of this type"));
            }
            let lowered = self.input(&plan)?.plan;
            let [of] = lowered.types.as_slice() else { return Err(refused("subquery of several columns")) };
            let value = EngineExpr::column(0, of.clone()).decoded();
            let lowered = lowered.project(vec![value]);
            let of = promised(&lowered, plan.schema()).ok_or_else(|| refused("subquery of this type"))?.swap_remove(0);
            self.subqueries.push(Subquery { plan, of, lowered });
        }
        Ok(())
    }

    fn node(&mut self, plan: &LogicalPlan) -> PlanResult<Lowered> {
        if !matches!(plan, LogicalPlan::TableScan(_)) {
            self.find_subqueries(plan)?;
        }
        let mut lowered = match plan {
            LogicalPlan::TableScan(scan) => self.scan(scan, plan)?,
            LogicalPlan::SubqueryAlias(alias) => {
                let Lowered { plan: below, estimate, narrows } = self.node(&alias.input)?;
                let estimate = estimate::of_node(plan, &[estimate]);
                return Ok(Lowered { plan: below, estimate, narrows });
            }
            LogicalPlan::Filter(filter) => {
                let below = self.input(&filter.input)?;
                let scope = self.scope(filter.input.schema(), &below.plan.types);
                let condition = scope.expr(&filter.predicate)?;
                let estimate = estimate::of_node(plan, &[below.estimate]);
                Lowered::new(below.plan.filter(condition), estimate)
            }
            LogicalPlan::Projection(projection) => {
                self.works += usize::from(is_constant_row(plan));
                let below = self.input(&projection.input)?;
                let scope = self.scope(projection.input.schema(), &below.plan.types);
                let outputs = projection.expr.iter().map(|expr| scope.expr(expr)).collect::<PlanResult<Vec<_>>>()?;
                let estimate = estimate::of_node(plan, &[below.estimate]);
                Lowered::new(below.plan.project(outputs), estimate)
            }
            LogicalPlan::Aggregate(aggregate) => self.aggregate(aggregate, plan)?,
            LogicalPlan::Window(window) => self.window(window, plan)?,
            LogicalPlan::Join(join) => self.join(join, plan)?,
            LogicalPlan::Sort(sort) => self.sort(sort, plan)?,
            LogicalPlan::Limit(limit) => self.limit(limit, plan)?,
            LogicalPlan::Union(union) => self.union(union, plan)?,
            LogicalPlan::Values(values) => self.values(values, plan)?,
            LogicalPlan::EmptyRelation(empty) => self.empty(empty, plan),
            _ => return Err(refused("such operator")),
        };
        self.works += usize::from(is_work(plan));
        lowered.plan.rows_estimated = Some(lowered.estimate.rows);
        self.rows += lowered.estimate.rows;
        Ok(lowered)
    }

    pub(super) fn scope<'s>(&'s self, schema: &'s DFSchema, types: &'s [ColumnType]) -> Scope<'s> {
        let subqueries = self.subqueries.iter().enumerate();
        let subqueries = subqueries
            .map(|(number, subquery)| (subquery.plan.clone(), EngineExpr::later(number, subquery.of.clone())));
        Scope { state: self.state, schema, types, subqueries: subqueries.collect() }
    }

    fn scan(&mut self, scan: &TableScan, plan: &LogicalPlan) -> PlanResult<Lowered> {
        let table = table_of(scan).ok_or_else(|| refused("scan of this table"))?;
        let projection: Vec<usize> = match &scan.projection {
            Some(projection) => projection.clone(),
            None => (0..scan.source.schema().fields().len()).collect(),
        };
        // As tables know their columns.
        let filters = unnormalize_cols(scan.filters.iter().cloned());
        let read = table.read(self.state, &projection, &filters, scan.fetch)?;
        let read = read.ok_or_else(|| refused("scan of rows' ids"))?;
        let versions: Vec<_> = read.parts().iter().map(|part| part.version.clone()).collect();
        let schema = scan.source.schema();
        let column = |index: &usize| {
            let field = schema.field(*index);
            (*index, ColumnType::new(field.data_type().clone(), field.is_nullable()))
        };
        // What comes through an index is mostly few rows; and what is known of rows that are changed holds for one statement.
        let is_whole = read.parts().iter().all(|part| part.access.is_none());
        let looks = is_whole && !table.is_target();
        let columns = own(ScanColumn::of(&versions, projection.iter().map(column).collect(), looks))?;
        let rows = |part: &Part| match &part.access {
            Some(access) => access.rows_estimated(),
            None => part.version.rows_max() as f64,
        };
        let rows = read.parts().iter().map(rows).sum::<f64>();
        self.rows += rows;
        let is_indexed = |column: &usize| {
            let mut indexes = versions.iter().map(|version| version.table().indexes());
            indexes.all(|indexes| indexes.iter().any(|index| index.positions().first() == Some(column)))
        };
        let indexed = if is_whole { projection.iter().map(is_indexed).collect() } else { Vec::new() };
        let part = |part: &Part| ScanPart { version: part.version.clone(), access: part.access.clone() };
        let parts = read.parts().iter().map(part).collect();
        let source = ScanSource::new(parts, columns, read.filters().to_vec(), scan.fetch, read);
        self.scans += 1;
        // What an index says of few rows is better than what a sample says of them, and known already.
        let estimate = match is_whole {
            true => estimate::of_node(plan, &[]),
            false => estimate::of_few(scan, rows),
        };
        let narrows = indexed.contains(&true).then_some(Narrows { rows: rows + estimate.rows, indexed });
        Ok(Lowered { plan: Plan::scan(source), estimate, narrows })
    }

    fn join(&mut self, join: &Join, plan: &LogicalPlan) -> PlanResult<Lowered> {
        use JoinKind as Kind;
        let left = self.input(&join.left)?;
        let right = self.input(&join.right)?;
        let estimate = estimate::of_node(plan, &[left.estimate.clone(), right.estimate.clone()]);
        let left_is_smaller = left.estimate.rows <= right.estimate.rows;
        // What the engine calls left is its probe side.
        let (kind, left_builds) = match join.join_type {
            JoinType::Inner => (Kind::Inner, left_is_smaller),
            JoinType::Left if left_is_smaller => (Kind::Right, true),
            JoinType::Left => (Kind::Left, false),
            JoinType::Right if left_is_smaller => (Kind::Left, true),
            JoinType::Right => (Kind::Right, false),
            JoinType::Full => (Kind::Full, left_is_smaller),
            JoinType::LeftSemi if left_is_smaller => (Kind::RightSemi, true),
            JoinType::LeftSemi => (Kind::LeftSemi, false),
            JoinType::RightSemi if left_is_smaller => (Kind::LeftSemi, true),
            JoinType::RightSemi => (Kind::RightSemi, false),
            JoinType::LeftAnti if left_is_smaller => (Kind::RightAnti, true),
            JoinType::LeftAnti => (Kind::LeftAnti, false),
            JoinType::RightAnti if left_is_smaller => (Kind::LeftAnti, true),
            JoinType::RightAnti => (Kind::RightAnti, false),
            JoinType::LeftMark => (Kind::LeftMark, false),
            JoinType::RightMark => (Kind::LeftMark, true),
        };
        // Estimates know little of how many partners a row has; of few rows they are few in any case.
        if left.estimate.rows.min(right.estimate.rows) > PARTNERS_MAX {
            self.rows = f64::INFINITY;
        }
        // Few keys of one side are looked up by the other's index.
        let (few, many) = if left_builds { (&left, &right) } else { (&right, &left) };
        if let Some(narrows) = &many.narrows
            && few.estimate.rows <= KEYS_FEW
        {
            let key = |(of_left, of_right): &(Expr, Expr)| {
                let (key, schema) = match left_builds {
                    true => (of_right, join.right.schema()),
                    false => (of_left, join.left.schema()),
                };
                let column = estimate::as_column(key).and_then(|column| schema.maybe_index_of_column(column));
                column.and_then(|column| narrows.indexed.get(column)).copied().unwrap_or(false)
            };
            if join.on.iter().any(key) {
                self.rows -= narrows.rows;
            }
        }
        let (left_len, right_len) = (left.plan.types.len(), right.plan.types.len());
        let mut sides = [(left.plan, join.left.schema()), (right.plan, join.right.schema())];
        let mut keys: Vec<[EngineExpr; 2]> = Vec::new();
        {
            let scopes = sides.each_ref().map(|(plan, schema)| self.scope(schema, &plan.types));
            for (left, right) in &join.on {
                let (left, right) = own(EngineExpr::matched(scopes[0].expr(left)?, scopes[1].expr(right)?))?;
                let bounds = hull([&left.of, &right.of].into_iter());
                keys.push([left.widened(bounds), right.widened(bounds)]);
            }
        }
        // Keys that are no columns become some.
        let mut places: Vec<[usize; 2]> = vec![[0; 2]; keys.len()];
        for (side, (plan, _)) in sides.iter_mut().enumerate() {
            let mut outputs: Vec<EngineExpr> =
                plan.types.iter().enumerate().map(|(index, of)| EngineExpr::column(index, of.clone())).collect();
            let width = outputs.len();
            for (key, places) in keys.iter().zip(&mut places) {
                places[side] = match key[side].as_column() {
                    Some(column) => column,
                    None => {
                        outputs.push(key[side].clone());
                        outputs.len() - 1
                    }
                };
            }
            if outputs.len() > width {
                let below = std::mem::replace(plan, Plan::chunks(Vec::new(), Vec::new()));
                *plan = below.project(outputs);
            }
        }
        let [(left, _), (right, _)] = sides;
        let (probe, build) = if left_builds { (right, left) } else { (left, right) };
        let (probe_side, build_side) = if left_builds { (1, 0) } else { (0, 1) };
        let (probe_len, build_len) = if left_builds { (right_len, left_len) } else { (left_len, right_len) };
        let nulls_equal = join.null_equality == NullEquality::NullEqualsNull;
        let engine_keys = places
            .iter()
            .map(|places| JoinKey { probe: places[probe_side], build: places[build_side], nulls_equal })
            .collect();
        let residual = match &join.filter {
            None => None,
            Some(filter) => {
                let both = join.left.schema().join(join.right.schema())?;
                let (of_left, of_right) = if left_builds { (&build, &probe) } else { (&probe, &build) };
                let types: Vec<ColumnType> =
                    of_left.types[..left_len].iter().chain(&of_right.types[..right_len]).cloned().collect();
                let residual = self.scope(&both, &types).expr(filter)?;
                let probe_width = probe.types.len();
                Some(residual.moved(&|column| {
                    let (side, column) = if column < left_len { (0, column) } else { (1, column - left_len) };
                    if side == probe_side { column } else { probe_width + column }
                }))
            }
        };
        let spec = EngineJoin {
            kind,
            null_aware: join.null_aware,
            probe_types: probe.types.clone(),
            build_types: build.types.clone(),
            keys: engine_keys,
            residual,
            probe_output: (0..probe_len).collect(),
            build_output: (0..build_len).collect(),
            filters: false,
        };
        own(spec.check())?;
        let keys: Vec<String> =
            join.on.iter().map(|(left, right)| format!("{} = {}", shown(left), shown(right))).collect();
        let mut joined = Plan::join(probe, build, spec).called(Some(crate::charge::named("hash join", &keys)));
        joined.rows_estimated = Some(estimate.rows);
        let joined = match kind {
            // Its columns come in the order of the engine's sides.
            Kind::Inner | Kind::Left | Kind::Right | Kind::Full if left_builds => {
                let columns: Vec<usize> = (probe_len..probe_len + build_len).chain(0..probe_len).collect();
                joined.columns(&columns)
            }
            _ => joined,
        };
        if joined.types.len() != plan.schema().fields().len() {
            return Err(refused("such join"));
        }
        Ok(Lowered::new(joined, estimate))
    }

    fn sort(&mut self, sort: &Sort, plan: &LogicalPlan) -> PlanResult<Lowered> {
        let below = self.input(&sort.input)?;
        let width = below.plan.types.len();
        let mut outputs: Vec<EngineExpr> =
            below.plan.types.iter().enumerate().map(|(index, of)| EngineExpr::column(index, of.clone())).collect();
        let mut keys = Vec::new();
        for key in &sort.expr {
            let expr = self.scope(sort.input.schema(), &below.plan.types).expr(&key.expr)?;
            if expr.class() == tidepool_engine::types::Class::Other {
                return Err(refused("order of this type"));
            }
            let column = match expr.as_column() {
                Some(column) => column,
                None => {
                    outputs.push(expr);
                    outputs.len() - 1
                }
            };
            keys.push(SortKey { column, descending: !key.asc, nulls_first: key.nulls_first });
        }
        let estimate = estimate::of_node(plan, &[below.estimate]);
        let has_more = outputs.len() > width;
        let input = if has_more { below.plan.project(outputs) } else { below.plan };
        let sorted = input.sort(keys, sort.fetch);
        let columns: Vec<usize> = (0..width).collect();
        Ok(Lowered::new(sorted.columns(&columns), estimate))
    }

    fn limit(&mut self, limit: &Limit, plan: &LogicalPlan) -> PlanResult<Lowered> {
        let (SkipType::Literal(skip), FetchType::Literal(fetch)) = (limit.get_skip_type()?, limit.get_fetch_type()?)
        else {
            return Err(refused("such limit"));
        };
        let below = self.input(&limit.input)?;
        let estimate = estimate::of_node(plan, &[below.estimate]);
        Ok(Lowered::new(below.plan.limit(skip, fetch), estimate))
    }

    fn union(&mut self, union: &Union, plan: &LogicalPlan) -> PlanResult<Lowered> {
        let mut inputs = Vec::new();
        let mut estimates = Vec::new();
        for input in &union.inputs {
            let Lowered { plan, estimate, .. } = self.input(input)?;
            let columns = plan.types.iter().enumerate();
            let outputs: Vec<EngineExpr> =
                columns.map(|(index, of)| EngineExpr::column(index, of.clone()).decoded()).collect();
            inputs.push((plan, outputs));
            estimates.push(estimate);
        }
        let mut types = Vec::new();
        for (column, field) in plan.schema().fields().iter().enumerate() {
            let all = || inputs.iter().map(|(_, outputs)| &outputs[column].of);
            let mut of = ColumnType::new(field.data_type().clone(), all().any(|of| of.nullable));
            of.bounds = hull(all()).or(of.bounds);
            types.push(of);
        }
        for (_, outputs) in &mut inputs {
            let all = std::mem::take(outputs).into_iter().zip(&types);
            *outputs = all.map(|(output, of)| output.widened(of.bounds)).collect();
            if outputs
                .iter()
                .zip(&types)
                .any(|(output, of)| output.class() != of.class() || output.of.scale() != of.scale())
            {
                return Err(refused("union of these types"));
            }
        }
        let inputs = inputs.into_iter().map(|(plan, outputs)| plan.project(outputs)).collect();
        let estimate = estimate::of_node(plan, &estimates);
        Ok(Lowered::new(Plan::union(inputs, types), estimate))
    }
}

/// Bounds of the values of some columns; `None` where those of one are not known.
fn hull<'a>(mut columns: impl Iterator<Item = &'a ColumnType>) -> Option<(i128, i128)> {
    let first = columns.next()?.bounds?;
    columns.try_fold(first, |(lower, upper), of| of.bounds.map(|(a, b)| (lower.min(a), upper.max(b))))
}

/// A key as people know it.
pub(super) fn shown(key: &Expr) -> String {
    match key {
        Expr::Column(column) => column.name.clone(),
        key => key.to_string(),
    }
}

/// The types that a result leaves the engine as: those that the plan promised. `None` where they are others.
fn promised(plan: &Plan, schema: &DFSchema) -> Option<Vec<ColumnType>> {
    let of = |(own, field): (&ColumnType, &FieldRef)| {
        let of = ColumnType { data_type: field.data_type().clone(), ..own.clone() };
        (of.class() == own.class() && of.scale() == own.scale()).then_some(of)
    };
    if plan.types.len() != schema.fields().len() {
        return None;
    }
    plan.types.iter().zip(schema.fields()).map(of).collect()
}
