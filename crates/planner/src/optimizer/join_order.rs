//! The order of joins.
//!
//! DataFusion joins tables in the order in which the query names them. This rule takes a plan apart into *regions* of
//! joins that may be done in any order, and puts each together again as the cheapest tree that [`super::join_graph`]
//! finds. Inner joins move freely. Outer, semi and anti joins keep their condition and move along the rows that they
//! preserve. Whatever else is in a plan (aggregates, unions, windows) bounds regions; its inputs are ordered by themselves.
//!
//! The smaller side of every join, by estimate, becomes its left one, which is the one that a hash join builds.

use super::estimate::{self, ColumnEstimate, Estimate};
use super::join_graph::{Class, Condition, JoinGraph, Relation, Role, Set, Tree};
use crate::rewrites::RewriteTree;
use datafusion::arrow::datatypes::FieldRef;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{
    Column, DFSchema, DFSchemaRef, JoinConstraint, JoinType, NullEquality, Result, ScalarValue, TableReference,
};
use datafusion::logical_expr::expr::{Exists, InSubquery};
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, Filter, Join, LogicalPlan, Operator, Projection, Subquery};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};
use std::sync::Arc;

#[derive(Debug)]
pub struct JoinOrder;

impl OptimizerRule for JoinOrder {
    fn name(&self) -> &str {
        "join_order"
    }

    fn rewrite(&self, plan: LogicalPlan, _config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        if !plan.exists(|node| Ok(matches!(node, LogicalPlan::Join(_))))? {
            return Ok(Transformed::no(plan));
        }
        let before = plan.clone();
        let (plan, _) = order(plan)?;
        let changed = plan != before;
        Ok(Transformed::new_transformed(plan, changed))
    }
}

/// The same plan with all its joins ordered.
fn order(plan: LogicalPlan) -> Result<(LogicalPlan, Estimate)> {
    if is_region(&plan)
        && let Some(ordered) = order_region(&plan)?
    {
        return Ok(ordered);
    }
    let plan = plan.map_subqueries(|subquery| Ok(Transformed::yes(order(subquery)?.0)))?.data;
    let mut inputs = Vec::new();
    let plan = plan
        .map_children(|child| {
            let (child, estimate) = order(child)?;
            inputs.push(estimate);
            Ok(Transformed::yes(child))
        })?
        .data;
    let estimate = estimate::of_node(&plan, &inputs);
    Ok((plan, estimate))
}

/// An expression whose uncorrelated subqueries have their joins ordered.
fn order_in_expr(expr: &Expr) -> Result<Expr> {
    expr.clone()
        .rewrite_up(&mut |node| {
            let ordered = |subquery: Subquery| -> Result<Subquery> {
                let (plan, _) = order(subquery.subquery.as_ref().clone())?;
                Ok(subquery.with_plan(Arc::new(plan)))
            };
            Ok(match node {
                Expr::ScalarSubquery(subquery) => Transformed::yes(Expr::ScalarSubquery(ordered(subquery)?)),
                Expr::Exists(exists) => {
                    Transformed::yes(Expr::Exists(Exists { subquery: ordered(exists.subquery)?, ..exists }))
                }
                Expr::InSubquery(inside) => {
                    Transformed::yes(Expr::InSubquery(InSubquery { subquery: ordered(inside.subquery)?, ..inside }))
                }
                node => Transformed::no(node),
            })
        })
        .data()
}

/// Whether a subquery inside an expression reads columns of the rows around it, which `column_refs` does not tell.
fn reads_from_inside(expr: &Expr) -> bool {
    let correlated = |subquery: &Subquery| !subquery.outer_ref_columns.is_empty();
    expr.exists(|node| {
        Ok(match node {
            Expr::ScalarSubquery(subquery) => correlated(subquery),
            Expr::Exists(exists) => correlated(&exists.subquery),
            Expr::InSubquery(inside) => correlated(&inside.subquery),
            Expr::SetComparison(_) => true,
            _ => false,
        })
    })
    .unwrap_or(true)
}

/// A join that a region can start with, under filters or not.
fn is_region(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Filter(filter) => is_region(&filter.input) && !filter.predicate.is_volatile(),
        LogicalPlan::Join(join) => moves(join),
        _ => false,
    }
}

/// Whether a join may change its place among others.
fn moves(join: &Join) -> bool {
    let conditions = join.on.iter().flat_map(|(left, right)| [left, right]).chain(&join.filter);
    if conditions.into_iter().any(Expr::is_volatile) {
        return false;
    }
    match join.join_type {
        JoinType::Inner => join.null_equality == NullEquality::NullEqualsNothing,
        JoinType::Left
        | JoinType::Right
        | JoinType::LeftSemi
        | JoinType::RightSemi
        | JoinType::LeftAnti
        | JoinType::RightAnti => true,
        JoinType::Full | JoinType::LeftMark | JoinType::RightMark => false,
    }
}

/// One input of a region.
struct Part {
    plan: LogicalPlan,
    estimate: Estimate,
    attachment: Option<Attachment>,
}

/// How an outer, semi or anti join takes its right input in. The join type is the one with preserved rows on the left.
struct Attachment {
    join_type: JoinType,
    on: Vec<(Expr, Expr)>,
    filter: Option<Expr>,
    null_equality: NullEquality,
    null_aware: bool,
    /// A part of the preserved side, for conditions that name none.
    beside: usize,
}

impl Part {
    /// Whether its columns can be seen above.
    fn is_visible(&self) -> bool {
        self.attachment.as_ref().is_none_or(|attachment| attachment.join_type == JoinType::Left)
    }

    fn is_inner(&self) -> bool {
        self.attachment.is_none()
    }
}

#[derive(Default)]
struct Region {
    parts: Vec<Part>,
    predicates: Vec<Expr>,
}

impl Region {
    fn collect(&mut self, plan: &LogicalPlan) -> Result<()> {
        match plan {
            LogicalPlan::Filter(filter) if is_region(plan) => {
                self.collect(&filter.input)?;
                self.predicates.extend(split_conjunction_owned(order_in_expr(&filter.predicate)?));
            }
            LogicalPlan::Projection(projection)
                if is_region(&projection.input) && projection.expr.iter().all(|e| matches!(e, Expr::Column(_))) =>
            {
                self.collect(&projection.input)?;
            }
            LogicalPlan::Join(join) if moves(join) => match join.join_type {
                JoinType::Inner => {
                    self.collect(&join.left)?;
                    self.collect(&join.right)?;
                    self.predicates.extend(join.on.iter().map(|(left, right)| left.clone().eq(right.clone())));
                    if let Some(filter) = &join.filter {
                        self.predicates.extend(split_conjunction_owned(order_in_expr(filter)?));
                    }
                }
                JoinType::Left | JoinType::LeftSemi | JoinType::LeftAnti => {
                    self.attach(join, &join.left, &join.right, join.join_type, join.on.clone())?;
                }
                join_type => {
                    let on = join.on.iter().map(|(left, right)| (right.clone(), left.clone())).collect();
                    self.attach(join, &join.right, &join.left, join_type.swap(), on)?;
                }
            },
            leaf => {
                let (plan, estimate) = order(leaf.clone())?;
                self.parts.push(Part { plan, estimate, attachment: None });
            }
        }
        Ok(())
    }

    fn attach(
        &mut self,
        join: &Join,
        preserved: &LogicalPlan,
        other: &LogicalPlan,
        join_type: JoinType,
        on: Vec<(Expr, Expr)>,
    ) -> Result<()> {
        let beside = self.parts.len();
        self.collect(preserved)?;
        let (plan, estimate) = order(other.clone())?;
        self.parts.push(Part {
            plan,
            estimate,
            attachment: Some(Attachment {
                join_type,
                on,
                filter: join.filter.clone(),
                null_equality: join.null_equality,
                null_aware: join.null_aware,
                beside,
            }),
        });
        Ok(())
    }

    /// Makes anti joins of outer ones of whose rows those alone are wanted that match none: one of the keys is NULL then, and only then. The
    /// other side's columns are all NULL, and left to [`restore_columns`].
    fn find_anti_joins(&mut self) {
        for index in 0..self.parts.len() {
            let part = &self.parts[index];
            let Some(attachment) = &part.attachment else { continue };
            let own = part.plan.schema();
            let is_missing_key = |expr: &Expr| match expr {
                Expr::IsNull(inner) => match inner.as_ref() {
                    Expr::Column(column) => {
                        attachment.on.iter().any(|(_, key)| key == inner.as_ref())
                            && self.part_of(column) == Some(index)
                    }
                    _ => false,
                },
                _ => false,
            };
            let reads = |expr: &Expr| reads_from_inside(expr) || expr.column_refs().iter().any(|it| own.has_column(it));
            let reads_attached = |other: &Attachment| {
                let keys = other.on.iter().map(|(left, _)| left);
                keys.chain(&other.filter).any(reads)
            };
            let others = self.parts.iter().enumerate().filter(|(other, _)| *other != index);
            let is_wanted = attachment.join_type == JoinType::Left
                && attachment.null_equality == NullEquality::NullEqualsNothing
                && self.predicates.iter().any(is_missing_key)
                && self.predicates.iter().all(|expr| is_missing_key(expr) || !reads(expr))
                && !others.filter_map(|(_, other)| other.attachment.as_ref()).any(reads_attached);
            if !is_wanted {
                continue;
            }
            let kept = self.predicates.iter().filter(|expr| !is_missing_key(expr)).cloned().collect();
            self.predicates = kept;
            if let Some(attachment) = &mut self.parts[index].attachment {
                attachment.join_type = JoinType::LeftAnti;
            }
        }
    }

    /// The one visible part that has a column.
    fn part_of(&self, column: &Column) -> Option<usize> {
        let mut found = None;
        for (index, part) in self.parts.iter().enumerate() {
            if part.is_visible() && part.plan.schema().has_column(column) {
                if found.is_some() {
                    return None;
                }
                found = Some(index);
            }
        }
        found
    }

    /// The parts that an expression reads; `None` if a column is unknown or ambiguous.
    fn parts_of(&self, expr: &Expr) -> Option<Set> {
        if reads_from_inside(expr) {
            return None;
        }
        expr.column_refs().into_iter().try_fold(0, |set, column| Some(set | 1 << self.part_of(column)?))
    }

    /// Estimate and schema of several parts side by side. Its rows are those of the largest.
    fn beside_each_other(&self, set: Set) -> Option<(Estimate, DFSchema)> {
        let mut together: Option<(Estimate, DFSchema)> = None;
        for (index, part) in self.parts.iter().enumerate() {
            if set & (1 << index) == 0 || !part.is_visible() {
                continue;
            }
            let (estimate, schema) = (&part.estimate, part.plan.schema().as_ref());
            together = Some(match together {
                None => (estimate.clone(), schema.clone()),
                Some((mut sum, sum_schema)) => {
                    sum.rows = sum.rows.max(estimate.rows);
                    sum.columns.extend(estimate.columns.iter().cloned());
                    (sum, sum_schema.join(schema).ok()?)
                }
            });
        }
        together
    }
}

/// Two columns that a predicate says are equal, when a class can hold them.
struct Equality {
    members: [(usize, Column); 2],
}

/// A predicate that is not part of a class.
struct Predicate {
    expr: Expr,
    relations: Set,
    sides: Option<(Set, Set)>,
}

/// A region ready to be put together.
struct Assembly {
    parts: Vec<Part>,
    classes: Vec<Vec<(usize, Column)>>,
    predicates: Vec<Predicate>,
}

fn order_region(plan: &LogicalPlan) -> Result<Option<(LogicalPlan, Estimate)>> {
    let mut region = Region::default();
    region.collect(plan)?;
    region.find_anti_joins();
    if region.parts.len() < 2 || region.parts.len() > 63 {
        return Ok(None);
    }
    let Some((assembly, graph)) = assemble(region)? else { return Ok(None) };
    let Some(tree) = graph.best_tree() else { return Ok(None) };
    let ordered = assembly.build(&tree, &graph)?;
    let estimate = assembly.estimate(plan.schema(), &graph);
    Ok(Some((restore_columns(ordered, plan.schema())?, estimate)))
}

/// Sorts a region's predicates and describes it to the search.
fn assemble(mut region: Region) -> Result<Option<(Assembly, JoinGraph)>> {
    let mut equalities: Vec<Equality> = Vec::new();
    let mut predicates: Vec<Predicate> = Vec::new();
    for expr in std::mem::take(&mut region.predicates) {
        let Some(relations) = region.parts_of(&expr) else { return Ok(None) };
        let mut sides = None;
        if let Expr::BinaryExpr(binary) = &expr
            && binary.op == Operator::Eq
            && let (Some(left), Some(right)) = (region.parts_of(&binary.left), region.parts_of(&binary.right))
            && left & right == 0
            && left != 0
            && right != 0
        {
            sides = Some((left, right));
            if let (Expr::Column(one), Expr::Column(other)) = (binary.left.as_ref(), binary.right.as_ref())
                && let Some(equality) = equality(&region, one, other)
            {
                equalities.push(equality);
                continue;
            }
        }
        predicates.push(Predicate { expr, relations, sides });
    }

    let classes = classes_of(equalities);
    for class in &classes {
        // Two columns of one part in a class: the part itself must see to it that they are equal.
        for (position, (part, column)) in class.iter().enumerate() {
            if let Some((_, first)) = class[..position].iter().find(|(other, _)| other == part) {
                let expr = Expr::Column(first.clone()).eq(Expr::Column(column.clone()));
                predicates.push(Predicate { expr, relations: 1 << part, sides: None });
            }
        }
    }
    let mut kept = Vec::new();
    for predicate in predicates {
        let part = predicate.relations.trailing_zeros() as usize;
        if predicate.relations.count_ones() == 1 && region.parts[part].is_inner() {
            let part = &mut region.parts[part];
            part.estimate.filter([&predicate.expr], part.plan.schema());
            part.plan = LogicalPlan::Filter(Filter::try_new(predicate.expr, Arc::new(part.plan.clone()))?);
        } else {
            kept.push(predicate);
        }
    }

    let Some(graph) = describe(&region, &classes, &kept) else { return Ok(None) };
    Ok(Some((Assembly { parts: region.parts, classes, predicates: kept }, graph)))
}

fn equality(region: &Region, one: &Column, other: &Column) -> Option<Equality> {
    let (left, right) = (region.part_of(one)?, region.part_of(other)?);
    let (left_part, right_part) = (&region.parts[left], &region.parts[right]);
    if !left_part.is_inner() || !right_part.is_inner() {
        return None;
    }
    let left_schema = left_part.plan.schema();
    let right_schema = right_part.plan.schema();
    let left_type = left_schema.field(left_schema.maybe_index_of_column(one)?).data_type();
    let right_type = right_schema.field(right_schema.maybe_index_of_column(other)?).data_type();
    (left_type == right_type).then(|| Equality { members: [(left, one.clone()), (right, other.clone())] })
}

fn classes_of(equalities: Vec<Equality>) -> Vec<Vec<(usize, Column)>> {
    let mut classes: Vec<Vec<(usize, Column)>> = Vec::new();
    for equality in equalities {
        let (touched, mut rest): (Vec<_>, Vec<_>) =
            classes.into_iter().partition(|class| equality.members.iter().any(|member| class.contains(member)));
        let mut merged: Vec<(usize, Column)> = touched.into_iter().flatten().collect();
        for member in equality.members {
            if !merged.contains(&member) {
                merged.push(member);
            }
        }
        rest.push(merged);
        classes = rest;
    }
    classes
}

fn describe(region: &Region, classes: &[Vec<(usize, Column)>], predicates: &[Predicate]) -> Option<JoinGraph> {
    let distinct_of = |part: usize, column: &Column| {
        let part = &region.parts[part];
        part.estimate.distinct(&Expr::Column(column.clone()), part.plan.schema())
    };
    let mut graph = JoinGraph::default();
    for part in &region.parts {
        let role = match &part.attachment {
            None => Role::Inner,
            Some(attachment) => attached_role(region, part, attachment)?,
        };
        graph.relations.push(Relation { rows: part.estimate.rows, role });
    }
    for class in classes {
        let mut members: Vec<(usize, f64)> = Vec::new();
        for (part, column) in class {
            let distinct = distinct_of(*part, column);
            match members.iter_mut().find(|(known, _)| known == part) {
                Some((_, known)) => *known = known.min(distinct),
                None => members.push((*part, distinct)),
            }
        }
        graph.classes.push(Class { members });
    }
    for predicate in predicates {
        let (estimate, schema) = match region.beside_each_other(predicate.relations) {
            Some(both) => both,
            None => continue,
        };
        let pass = estimate.pass(&predicate.expr, &schema);
        graph.conditions.push(Condition { relations: predicate.relations, sides: predicate.sides, pass });
    }
    for one in 0..region.parts.len() {
        for other in one + 1..region.parts.len() {
            let (mut keys, mut all, mut of_one, mut of_other) = (Vec::new(), 1.0, 1.0, 1.0);
            for class in &graph.classes {
                let find = |part: usize| class.members.iter().find(|(known, _)| *known == part).map(|(_, d)| *d);
                if let (Some(left), Some(right)) = (find(one), find(other)) {
                    keys.push((left, right));
                    all *= left.max(right);
                    of_one *= left;
                    of_other *= right;
                }
            }
            if keys.len() > 1 {
                let rows = |part: usize| region.parts[part].estimate.rows;
                let joint = estimate::joint_distinct(all, (of_one, rows(one)), (of_other, rows(other)));
                let share = estimate::share_with_partners(&keys, (rows(one), rows(other)));
                if joint < all || share < 1.0 {
                    graph.joint.push((1 << one | 1 << other, share * all / joint));
                }
            }
        }
    }
    Some(graph)
}

fn attached_role(region: &Region, part: &Part, attachment: &Attachment) -> Option<Role> {
    let own = part.plan.schema();
    let mut requires: Set = 0;
    for (left, right) in &attachment.on {
        requires |= region.parts_of(left)?;
        if !right.column_refs().into_iter().all(|column| own.has_column(column)) {
            return None;
        }
    }
    for column in attachment.filter.iter().flat_map(|filter| filter.column_refs()) {
        let outside = region.parts.iter().enumerate().find(|(_, other)| {
            !std::ptr::eq(*other, part) && other.is_visible() && other.plan.schema().has_column(column)
        });
        match (own.has_column(column), outside) {
            (true, None) => {}
            (false, Some((index, _))) => requires |= 1 << index,
            _ => return None,
        }
    }
    if requires == 0 {
        requires = 1 << attachment.beside;
    }
    let (left, left_schema) = region.beside_each_other(requires)?;
    let on: Vec<(&Expr, &Expr)> = attachment.on.iter().map(|(left, right)| (left, right)).collect();
    let (left, right) = ((&left, &left_schema), (&part.estimate, own.as_ref()));
    let filtered = attachment.filter.is_some();
    let factor = match attachment.join_type {
        JoinType::Left => {
            let matches = part.estimate.rows * estimate::equalities_pass(left, right, &on);
            (if filtered { matches * 0.5 } else { matches }).max(1.0)
        }
        JoinType::LeftSemi if on.is_empty() => 0.5,
        JoinType::LeftSemi => estimate::partner_share(left, right, &on, filtered),
        _ if on.is_empty() => 0.5,
        _ => (1.0 - estimate::partner_share(left, right, &on, filtered)).max(0.05),
    };
    Some(Role::Attached { requires, factor })
}

impl Assembly {
    fn build(&self, tree: &Tree, graph: &JoinGraph) -> Result<LogicalPlan> {
        let mut plan = self.build_tree(tree, graph)?;
        let constant = self.predicates.iter().filter(|predicate| predicate.relations == 0);
        if let Some(predicate) = conjunction(constant.map(|predicate| predicate.expr.clone())) {
            plan = LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(plan))?);
        }
        Ok(plan)
    }

    fn build_tree(&self, tree: &Tree, graph: &JoinGraph) -> Result<LogicalPlan> {
        match tree {
            Tree::Relation(index) => Ok(self.parts[*index].plan.clone()),
            Tree::Join { set, left, right } => {
                let (left_set, right_set) = (left.set(), right.set());
                let left = Arc::new(self.build_tree(left, graph)?);
                let right = Arc::new(self.build_tree(right, graph)?);
                let mut on = Vec::new();
                for class in &self.classes {
                    let member = |set: Set| class.iter().find(|(part, _)| set & (1 << part) != 0);
                    if let (Some((_, one)), Some((_, other))) = (member(left_set), member(right_set)) {
                        on.push((Expr::Column(one.clone()), Expr::Column(other.clone())));
                    }
                }
                let mut filters = Vec::new();
                for predicate in &self.predicates {
                    if predicate.relations & !set != 0
                        || predicate.relations & !left_set == 0
                        || predicate.relations & !right_set == 0
                    {
                        continue;
                    }
                    match (predicate.sides, &predicate.expr) {
                        (Some((one, other)), Expr::BinaryExpr(binary))
                            if one & !left_set == 0 && other & !right_set == 0 =>
                        {
                            on.push((binary.left.as_ref().clone(), binary.right.as_ref().clone()));
                        }
                        (Some((one, other)), Expr::BinaryExpr(binary))
                            if one & !right_set == 0 && other & !left_set == 0 =>
                        {
                            on.push((binary.right.as_ref().clone(), binary.left.as_ref().clone()));
                        }
                        _ => filters.push(predicate.expr.clone()),
                    }
                }
                let join = Join::try_new(
                    left,
                    right,
                    on,
                    conjunction(filters),
                    JoinType::Inner,
                    JoinConstraint::On,
                    NullEquality::NullEqualsNothing,
                    false,
                )?;
                Ok(LogicalPlan::Join(join))
            }
            Tree::Attach { set, input, relation } => {
                let input_set = input.set();
                let part = &self.parts[*relation];
                let Some(attachment) = &part.attachment else {
                    return datafusion::common::internal_err!("only outer, semi and anti joins are attached");
                };
                let preserved = Arc::new(self.build_tree(input, graph)?);
                let other = Arc::new(part.plan.clone());
                let swap = !attachment.null_aware && part.estimate.rows < graph.rows(input_set);
                let (left, right, join_type, on) = match swap {
                    false => (preserved, other, attachment.join_type, attachment.on.clone()),
                    true => {
                        let on = attachment.on.iter().map(|(left, right)| (right.clone(), left.clone())).collect();
                        (other, preserved, attachment.join_type.swap(), on)
                    }
                };
                let join = Join::try_new(
                    left,
                    right,
                    on,
                    attachment.filter.clone(),
                    join_type,
                    JoinConstraint::On,
                    attachment.null_equality,
                    attachment.null_aware,
                )?;
                let plan = LogicalPlan::Join(join);
                let now = self
                    .predicates
                    .iter()
                    .filter(|predicate| predicate.relations & !set == 0 && predicate.relations & !input_set != 0);
                match conjunction(now.map(|predicate| predicate.expr.clone())) {
                    Some(predicate) => Ok(LogicalPlan::Filter(Filter::try_new(predicate, Arc::new(plan))?)),
                    None => Ok(plan),
                }
            }
        }
    }

    fn estimate(&self, schema: &DFSchemaRef, graph: &JoinGraph) -> Estimate {
        let all = (1 << self.parts.len()) - 1;
        let rows = graph.rows(all);
        let one_row_source = self.parts.iter().filter(|part| part.is_visible()).count() == 1;
        let columns = schema
            .columns()
            .iter()
            .map(|column| {
                let found = self.parts.iter().filter(|part| part.is_visible()).find_map(|part| {
                    let index = part.plan.schema().maybe_index_of_column(column)?;
                    Some((part, part.estimate.columns.get(index)?))
                });
                match found {
                    Some((_, known)) => ColumnEstimate {
                        distinct: known.distinct.min(rows).max(1.0),
                        unique: known.unique && one_row_source,
                        ..known.clone()
                    },
                    None => ColumnEstimate { distinct: rows, min: None, max: None, null_fraction: 0.0, unique: false },
                }
            })
            .collect();
        Estimate { rows, columns }
    }
}

/// The columns of `schema` in its order, whatever order the joins left them in; NULL in place of those that they left out.
fn restore_columns(plan: LogicalPlan, schema: &DFSchemaRef) -> Result<LogicalPlan> {
    if plan.schema().columns() == schema.columns() {
        return Ok(plan);
    }
    let column = |(qualifier, field): (Option<&TableReference>, &FieldRef)| {
        let column = Column::from((qualifier, field));
        if plan.schema().has_column(&column) {
            return Ok(Expr::Column(column));
        }
        let null = Expr::Literal(ScalarValue::try_from(field.data_type())?, None);
        Ok(null.alias_qualified(qualifier.cloned(), field.name()))
    };
    let columns = schema.iter().map(column).collect::<Result<Vec<Expr>>>()?;
    Ok(LogicalPlan::Projection(Projection::try_new_with_schema(columns, Arc::new(plan), schema.clone())?))
}
