//! From an analysed plan to a program: which rows of which tables, found by which keys, and what is done with them.

use super::access::{Access, Bounds, Equal};
use super::aggregate::Aggregate;
use super::datum::{is_covered, is_ordered};
use super::expr::{Comparison, Compiler, Expr, Inputs};
use crate::scan::TableProvider;
use arrow::datatypes::DataType;
use datafusion::common::{DFSchema, JoinType, NullEquality};
use datafusion::datasource::source_as_provider;
use datafusion::logical_expr::expr::Sort;
use datafusion::logical_expr::{Expr as PlanExpr, ExprSchemable, LogicalPlan};
use std::sync::{Arc, Weak};
use tidepool_base::{SqlType, TableId};
use tidepool_database::RelationName;
use tidepool_table::{Table, TableVersion};

/// Tables that rows are put together of, at most.
const TABLES_MAX: usize = 3;

/// A table that a program reads, in the order in which it comes to them.
pub struct Source {
    pub id: TableId,
    pub name: RelationName,
    /// Not held while nobody runs the program: it may be dropped.
    pub table: Weak<Table>,
    pub types: Vec<SqlType>,
    pub access: Access,
    /// What is tested once a row of it is there.
    pub conditions: Vec<Expr>,
    /// Positions of the columns that are read.
    pub reads: Vec<usize>,
}

#[derive(Clone)]
pub struct SortKey {
    pub expr: Expr,
    pub descending: bool,
    pub nulls_first: bool,
}

/// Rows of some tables, and what a query makes of them.
pub struct Query {
    pub sources: Vec<Source>,
    /// Without those that the first table's index gives already.
    pub sort: Vec<SortKey>,
    pub skip: Option<Expr>,
    pub fetch: Option<Expr>,
    /// Then the outputs, and what rows are sorted by, are made of what this gives, as slots: the group's values first.
    pub aggregate: Option<Vec<Aggregate>>,
    /// What rows are grouped by. Empty: all of them are one group, even if there are none.
    pub groups: Vec<Expr>,
    pub outputs: Vec<Option<Expr>>,
}

struct Reading {
    version: Arc<TableVersion>,
}

/// A plan's relation, as far as it goes.
pub struct Relation {
    tables: Vec<Reading>,
    outputs: Vec<Option<Expr>>,
    conditions: Vec<Expr>,
    sort: Vec<SortKey>,
    skip: Option<Expr>,
    fetch: Option<Expr>,
    is_limited: bool,
    aggregate: Option<Vec<Aggregate>>,
    groups: Vec<Expr>,
}

impl Compiler<'_> {
    fn all(&self, exprs: &[PlanExpr], schema: &DFSchema, inputs: &Inputs) -> Vec<Option<Expr>> {
        exprs.iter().map(|expr| self.compile(expr, schema, inputs)).collect()
    }

    /// `None`: it is more than there is a program for.
    pub fn relation(&self, plan: &LogicalPlan) -> Option<Relation> {
        Some(match plan {
            LogicalPlan::TableScan(scan) => {
                if scan.fetch.is_some() {
                    return None;
                }
                let provider = source_as_provider(&scan.source).ok()?;
                let version = provider.downcast_ref::<TableProvider>()?.wholly_readable()?.clone();
                if version.def.partitioning.is_some() {
                    return None;
                }
                let count = version.def.columns.len();
                let column = |column: usize| match column == count {
                    true => Some(Expr::RowId(0)),
                    false => Some(Expr::Column { table: 0, column }),
                };
                let outputs: Vec<Option<Expr>> = match &scan.projection {
                    Some(columns) => columns.iter().map(|index| column(*index)).collect(),
                    None => (0..scan.source.schema().fields().len()).map(column).collect(),
                };
                let mut relation = Relation::of(vec![Reading { version }], outputs);
                for filter in &scan.filters {
                    self.restrict(&mut relation, filter, &scan.projected_schema)?;
                }
                relation
            }
            // The one row of a query without FROM.
            LogicalPlan::EmptyRelation(empty) if empty.produce_one_row && empty.schema.fields().is_empty() => {
                Relation::of(Vec::new(), Vec::new())
            }
            LogicalPlan::SubqueryAlias(alias) => self.relation(&alias.input)?,
            LogicalPlan::Filter(filter) => {
                let mut relation = self.relation(&filter.input)?;
                if relation.is_limited || relation.aggregate.is_some() {
                    return None;
                }
                self.restrict(&mut relation, &filter.predicate, filter.input.schema())?;
                relation
            }
            LogicalPlan::Projection(projection) => {
                let mut relation = self.relation(&projection.input)?;
                let outputs = self.all(&projection.expr, projection.input.schema(), &relation.outputs);
                if outputs.iter().flatten().any(Expr::is_volatile) {
                    return None;
                }
                relation.outputs = outputs;
                relation
            }
            LogicalPlan::Sort(sort) => {
                let mut relation = self.relation(&sort.input)?;
                if relation.is_limited || !relation.sort.is_empty() || sort.fetch.is_some() {
                    return None;
                }
                // One row is in order.
                if relation.aggregate.is_none() || !relation.groups.is_empty() {
                    relation.sort = self.sort(&sort.expr, sort.input.schema(), &relation.outputs)?;
                }
                relation
            }
            LogicalPlan::Limit(limit) => {
                let mut relation = self.relation(&limit.input)?;
                if relation.is_limited || relation.aggregate.is_some() && relation.groups.is_empty() {
                    return None;
                }
                let count = |expr: &Option<Box<PlanExpr>>| match expr {
                    None => Some(None),
                    Some(expr) => self.compile(expr, &DFSchema::empty(), &[]).map(Some),
                };
                (relation.skip, relation.fetch) = (count(&limit.skip)?, count(&limit.fetch)?);
                relation.is_limited = true;
                relation
            }
            LogicalPlan::Join(join) => {
                let may = join.join_type == JoinType::Inner
                    && join.null_equality == NullEquality::NullEqualsNothing
                    && !join.null_aware;
                let (mut left, right) = (self.relation(&join.left)?, self.relation(&join.right)?);
                let is_plain = |relation: &Relation| {
                    let is_whole = !relation.is_limited && relation.aggregate.is_none();
                    is_whole && relation.sort.is_empty() && !relation.tables.is_empty()
                };
                if !may || !is_plain(&left) || !is_plain(&right) || left.tables.len() + right.tables.len() > TABLES_MAX
                {
                    return None;
                }
                let first = left.tables.len();
                let moved = |mut expr: Expr| {
                    expr.renumbered(&|table| table + first);
                    expr
                };
                left.tables.extend(right.tables);
                left.conditions.extend(right.conditions.into_iter().map(moved));
                left.outputs.extend(right.outputs.into_iter().map(|output| output.map(moved)));
                for (one, other) in &join.on {
                    let equal = one.clone().eq(other.clone());
                    self.restrict(&mut left, &equal, &join.schema)?;
                }
                if let Some(filter) = &join.filter {
                    self.restrict(&mut left, filter, &join.schema)?;
                }
                left
            }
            LogicalPlan::Aggregate(aggregate) => {
                let mut relation = self.relation(&aggregate.input)?;
                if relation.is_limited || !relation.sort.is_empty() || relation.aggregate.is_some() {
                    return None;
                }
                let schema = aggregate.input.schema();
                let group = |expr: &PlanExpr| {
                    let data_type = expr.get_type(schema).ok()?;
                    is_ordered(&data_type).then_some(())?;
                    self.compile(expr, schema, &relation.outputs)
                };
                let groups = aggregate.group_expr.iter().map(group).collect::<Option<Vec<_>>>()?;
                let of = |expr: &PlanExpr| Aggregate::of(self, expr, schema, &relation.outputs);
                let all = aggregate.aggr_expr.iter().map(of).collect::<Option<Vec<_>>>()?;
                relation.outputs = (0..groups.len() + all.len()).map(|slot| Some(Expr::Slot(slot))).collect();
                relation.groups = groups;
                relation.aggregate = Some(all);
                relation
            }
            _ => return None,
        })
    }

    fn restrict(&self, relation: &mut Relation, condition: &PlanExpr, schema: &DFSchema) -> Option<()> {
        match self.compile(condition, schema, &relation.outputs)? {
            Expr::And(all) => relation.conditions.extend(all),
            one => relation.conditions.push(one),
        }
        Some(())
    }

    fn sort(&self, keys: &[Sort], schema: &DFSchema, inputs: &Inputs) -> Option<Vec<SortKey>> {
        keys.iter()
            .map(|key| {
                let data_type = key.expr.get_type(schema).ok()?;
                is_ordered(&data_type).then_some(())?;
                let expr = self.compile(&key.expr, schema, inputs)?;
                Some(SortKey { expr, descending: !key.asc, nulls_first: key.nulls_first })
            })
            .collect()
    }
}

impl Relation {
    fn of(tables: Vec<Reading>, outputs: Vec<Option<Expr>>) -> Relation {
        Relation {
            tables,
            outputs,
            conditions: Vec::new(),
            sort: Vec::new(),
            skip: None,
            fetch: None,
            is_limited: false,
            aggregate: None,
            groups: Vec::new(),
        }
    }

    /// With a way to each table's rows. `None` where there is one to none: all of a table would have to be read.
    pub fn query(mut self) -> Option<Query> {
        let count = self.tables.len();
        // Conditions are tested once a table's row is there.
        (count > 0 || self.conditions.is_empty()).then_some(())?;
        let order = orders(count)
            .into_iter()
            .filter_map(|order| self.tried(&order))
            .min_by(|(left, ..), (right, ..)| left.total_cmp(right));
        let (_, order, accesses) = order.or_else(|| self.first_in_order())?;
        // From a table's number in the plan to its turn.
        let turn = |table: usize| order.iter().position(|of| *of == table).unwrap_or(table);
        let mut all: Vec<&mut Expr> = self.conditions.iter_mut().collect();
        all.extend(self.outputs.iter_mut().flatten());
        all.extend(self.sort.iter_mut().map(|key| &mut key.expr));
        all.extend(self.aggregate.iter_mut().flatten().flat_map(Aggregate::arguments_mut));
        all.extend(self.groups.iter_mut());
        all.into_iter().for_each(|expr| expr.renumbered(&turn));

        let mut sources: Vec<Source> = Vec::with_capacity(count);
        for (table, access) in order.iter().zip(accesses) {
            let version = &self.tables[*table].version;
            sources.push(Source {
                id: version.def.id,
                name: RelationName::from(&*version.def),
                table: Arc::downgrade(version.table()),
                types: version.def.columns.iter().map(|column| column.sql_type).collect(),
                access,
                conditions: Vec::new(),
                reads: Vec::new(),
            });
        }
        for condition in std::mem::take(&mut self.conditions) {
            let last = condition.tables().max(1) - 1;
            sources[last].conditions.push(condition);
        }
        let mut query = Query {
            sort: self.sort,
            skip: self.skip,
            fetch: self.fetch,
            aggregate: self.aggregate,
            groups: self.groups,
            outputs: self.outputs,
            sources,
        };
        if let [source] = query.sources.as_mut_slice()
            && !query.sort.is_empty()
            && query.aggregate.is_none()
        {
            let version = &self.tables[0].version;
            if let Some(backward) = source.access.gives(version, &query.sort) {
                source.access.backward = backward;
                query.sort.clear();
            }
        }
        query.note_reads();
        Some(query)
    }

    /// The way through all of an index in whose order the rows of a table are wanted, and only the first ones.
    fn first_in_order(&self) -> Option<(f64, Vec<usize>, Vec<Access>)> {
        let [Reading { version }] = self.tables.as_slice() else { return None };
        let is_short = self.fetch.is_some() && self.conditions.is_empty() && self.aggregate.is_none();
        if !is_short || self.sort.is_empty() {
            return None;
        }
        let mut whole = version.table().indexes().iter().map(|index| Access {
            index: index.id(),
            equal: Vec::new(),
            any: Vec::new(),
            bounds: Bounds::default(),
            types: index.codec().columns().iter().map(|column| column.sql_type()).collect(),
            is_point: false,
            backward: false,
        });
        let access = whole.find(|access| access.gives(version, &self.sort).is_some())?;
        Some((0.0, vec![0], vec![access]))
    }

    /// The ways to tables that come one after the other, and what they cost together.
    fn tried(&self, order: &[usize]) -> Option<(f64, Vec<usize>, Vec<Access>)> {
        let turn = |table: usize| order.iter().position(|of| *of == table).unwrap_or(table);
        let conditions: Vec<Expr> = (self.conditions.iter())
            .map(|condition| {
                let mut condition = condition.clone();
                condition.renumbered(&turn);
                condition
            })
            .collect();
        let (mut cost, mut rows) = (0.0, 1.0);
        let mut accesses = Vec::with_capacity(order.len());
        for (place, table) in order.iter().enumerate() {
            let (access, found) = best_access(&self.tables[*table].version, place, &conditions)?;
            rows *= found;
            cost += rows;
            accesses.push(access);
        }
        Some((cost, order.to_vec(), accesses))
    }
}

impl Query {
    fn note_reads(&mut self) {
        let mut reads: Vec<Vec<usize>> = self.sources.iter().map(|_| Vec::new()).collect();
        {
            let mut see = |expr: &Expr| {
                expr.visit(&mut |expr| {
                    if let Expr::Column { table, column } = expr {
                        reads[*table].push(*column);
                    }
                });
            };
            self.outputs.iter().flatten().for_each(&mut see);
            self.sort.iter().for_each(|key| see(&key.expr));
            self.sources.iter().flat_map(|source| &source.conditions).for_each(&mut see);
            self.groups.iter().for_each(&mut see);
            for aggregate in self.aggregate.iter().flatten() {
                aggregate.arguments().for_each(&mut see);
            }
        }
        for (source, mut reads) in self.sources.iter_mut().zip(reads) {
            reads.sort_unstable();
            reads.dedup();
            source.reads = reads;
        }
    }
}

/// All orders of so many tables.
fn orders(count: usize) -> Vec<Vec<usize>> {
    match count {
        0 => vec![Vec::new()],
        _ => {
            let put = |order: Vec<usize>, at: usize| {
                let mut order = order;
                order.insert(at, count - 1);
                order
            };
            // As they were written first.
            orders(count - 1)
                .into_iter()
                .flat_map(|order| (0..count).rev().map(move |at| put(order.clone(), at)))
                .collect()
        }
    }
}

/// What conditions say of a column of the table whose turn is `place`, in terms of what is known by then.
fn comparisons(conditions: &[Expr], place: usize) -> Vec<(usize, Comparison, Equal)> {
    let known = |expr: &Expr| expr.tables() <= place && !expr.is_volatile();
    let mut found = Vec::new();
    for condition in conditions {
        match condition {
            Expr::Compare { op, of } => {
                let [left, right] = of.as_ref();
                for (side, other, op) in [(left, right, *op), (right, left, op.swapped())] {
                    if let Expr::Column { table, column } = side
                        && *table == place
                        && known(other)
                    {
                        found.push((*column, op, Equal::One(other.clone())));
                    }
                }
            }
            Expr::In { of, list, negated: false } => {
                if let Expr::Column { table, column } = of.as_ref()
                    && *table == place
                    && list.iter().all(known)
                {
                    found.push((*column, Comparison::Equal, Equal::Any(list.clone())));
                }
            }
            // `BETWEEN`.
            Expr::And(both) => found.extend(comparisons(both, place)),
            _ => {}
        }
    }
    found
}

/// Of each condition that is an `OR`, what each of its sides says a column equals: `(a, b) IN ((1, 2), (3, 4))` is one, too.
fn alternatives(conditions: &[Expr], place: usize) -> Vec<Vec<Vec<(usize, Expr)>>> {
    let equalities = |side: &Expr| {
        let of = comparisons(std::slice::from_ref(side), place).into_iter();
        of.filter_map(|(column, op, equal)| match (op, equal) {
            (Comparison::Equal, Equal::One(value)) => Some((column, value)),
            _ => None,
        })
        .collect::<Vec<_>>()
    };
    let of = conditions.iter().filter_map(|condition| match condition {
        Expr::Or(sides) => Some(sides.iter().map(equalities).collect::<Vec<_>>()),
        _ => None,
    });
    of.filter(|sides| sides.iter().all(|side| !side.is_empty())).collect()
}

/// Values of an index's first columns for each side of an `OR`, of as many columns as all sides have; of columns that no side names
/// what holds beside it.
fn prefixes(
    sides: &[Vec<(usize, Expr)>],
    positions: &[usize],
    beside: &[(usize, Comparison, Equal)],
) -> Vec<Vec<Expr>> {
    let beside = |position: usize| {
        beside.iter().find_map(|(column, op, equal)| match equal {
            Equal::One(value) if *column == position && *op == Comparison::Equal => Some(value),
            _ => None,
        })
    };
    let of = |side: &Vec<(usize, Expr)>| -> Vec<Expr> {
        let value = |position: &usize| {
            let own = side.iter().find(|(column, _)| column == position).map(|(_, value)| value);
            own.or_else(|| beside(*position)).cloned()
        };
        positions.iter().map_while(value).collect()
    };
    let mut all: Vec<Vec<Expr>> = sides.iter().map(of).collect();
    let width = all.iter().map(Vec::len).min().unwrap_or(0);
    all.iter_mut().for_each(|values| values.truncate(width));
    if width == 0 { Vec::new() } else { all }
}

/// The index that leaves the fewest rows, and about how many.
fn best_access(version: &TableVersion, place: usize, conditions: &[Expr]) -> Option<(Access, f64)> {
    let (comparisons, alternatives) = (comparisons(conditions, place), alternatives(conditions, place));
    let mut best: Option<(Access, f64)> = None;
    let mut offer = |access: Access, rows: f64| {
        if best.as_ref().is_none_or(|(_, fewest)| rows < *fewest) {
            best = Some((access, rows));
        }
    };
    for index in version.table().indexes() {
        let positions = index.positions();
        let types: Vec<SqlType> = index.codec().columns().iter().map(|column| column.sql_type()).collect();
        let mut equal = Vec::new();
        for position in positions {
            let of = |(column, op, _): &&(usize, Comparison, Equal)| column == position && *op == Comparison::Equal;
            // One value rather than several.
            let mut ways: Vec<&(usize, Comparison, Equal)> = comparisons.iter().filter(of).collect();
            ways.sort_by_key(|(.., equal)| matches!(equal, Equal::Any(_)));
            match ways.first() {
                Some((.., way)) => equal.push(way.clone()),
                None => break,
            }
        }
        let mut bounds = Bounds::default();
        if let Some(position) = positions.get(equal.len()) {
            for (column, op, equal) in &comparisons {
                let Equal::One(value) = equal else { continue };
                if column != position {
                    continue;
                }
                match op {
                    Comparison::Greater if bounds.lower.is_none() => bounds.lower = Some((value.clone(), false)),
                    Comparison::GreaterOrEqual if bounds.lower.is_none() => bounds.lower = Some((value.clone(), true)),
                    Comparison::Less if bounds.upper.is_none() => bounds.upper = Some((value.clone(), false)),
                    Comparison::LessOrEqual if bounds.upper.is_none() => bounds.upper = Some((value.clone(), true)),
                    _ => {}
                }
            }
        }
        // The rows themselves are not asked: the program lasts longer than what they are now.
        let each = |width: usize, ranged: f64| match (width == positions.len(), index.is_unique()) {
            (true, true) => 1.0,
            (true, false) => 8.0,
            // Of two indexes with as many columns left, more values known leave fewer rows.
            _ => 10f64.powi((positions.len() - width) as i32 + 1) / 3f64.powf(ranged) / (1 + width) as f64,
        };
        let access = |equal, any, bounds, width| {
            let is_point = width == positions.len();
            Access { index: index.id(), equal, any, bounds, types: types.clone(), is_point, backward: false }
        };
        for sides in &alternatives {
            let any = prefixes(sides, positions, &comparisons);
            if let Some(width) = any.first().map(Vec::len) {
                let rows = each(width, 0.0) * any.len() as f64;
                offer(access(Vec::new(), any, Bounds::default(), width), rows);
            }
        }
        if equal.is_empty() && bounds.is_none() {
            continue;
        }
        let several: usize = equal.iter().map(|equal| equal.count()).product();
        let ranged = f64::from(u8::from(bounds.lower.is_some()) + u8::from(bounds.upper.is_some()));
        let (rows, width) = (each(equal.len(), ranged) * several as f64, equal.len());
        offer(access(equal, Vec::new(), bounds, width), rows);
    }
    best
}

impl Access {
    /// Whether rows come in this order: and if so, whether from the index's end.
    fn gives(&self, version: &TableVersion, sort: &[SortKey]) -> Option<bool> {
        if !self.any.is_empty() || self.equal.iter().any(|equal| matches!(equal, Equal::Any(_))) {
            return None;
        }
        let def = version.def.indexes.iter().find(|index| index.id == self.index)?;
        let positions = version.def.index_positions(def);
        let mut backward = None;
        let mut next = self.equal.len();
        for key in sort {
            let Expr::Column { table: 0, column } = key.expr else { return None };
            if positions[..self.equal.len()].contains(&column) {
                // The same in all rows.
                continue;
            }
            if positions.get(next) != Some(&column) {
                return None;
            }
            let of_index = &def.columns[next];
            let is_nullable = version.def.columns[column].nullable;
            let same = key.descending == of_index.descending;
            let nulls = (key.nulls_first == of_index.nulls_first) == same || !is_nullable;
            if !nulls || backward.is_some_and(|backward| backward == same) {
                return None;
            }
            backward = Some(!same);
            next += 1;
        }
        Some(backward.unwrap_or(false))
    }
}

/// Types of a plan's outputs, if all can be held.
pub fn output_types(schema: &DFSchema) -> Option<Vec<DataType>> {
    let types: Vec<DataType> = schema.fields().iter().map(|field| field.data_type().clone()).collect();
    types.iter().all(is_covered).then_some(types)
}
