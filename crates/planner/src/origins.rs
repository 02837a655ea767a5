//! Where the outputs of a query come from.
//!
//! `RowDescription` names the table and the column that an output is of, when it is nothing but that column: what drivers
//! tell result sets apart by that can be edited. As in PostgreSQL (`markTargetListOrigin`), joins, subqueries, `WITH` and
//! grouping pass columns on, a view's columns are the view's own, and what set operations give back is nobody's.

use crate::facts::SessionFacts;
use crate::resolve::{self, Relation};
use crate::scan;
use crate::session::ResultColumn;
use datafusion::common::{DFSchema, JoinType, TableReference};
use datafusion::datasource::source_as_provider;
use datafusion::logical_expr::{Distinct, Expr, Join, LogicalPlan, TableScan, Unnest};
use tidepool_base::TableId;
use tidepool_table::TableDef;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    pub relation: u32,
    /// From 1, as `pg_attribute.attnum`.
    pub attribute: i16,
}

/// One an output; `None` for what is computed.
pub type Origins = Vec<Option<Origin>>;

/// The name that the plan of a view's query has below those that a query calls the view.
pub fn view_mark(view: TableId) -> TableReference {
    TableReference::bare(format!("{VIEW}{}", view.0))
}

/// No name that a user writes begins like this.
const VIEW: &str = "\u{1}view ";

/// The columns of a table, in order.
pub fn of_table(def: &TableDef) -> Origins {
    let columns = def.columns.iter();
    columns.map(|column| origin(def.id.0, usize::from(column.number))).collect()
}

fn origin(relation: u32, attribute: usize) -> Option<Origin> {
    i16::try_from(attribute).ok().map(|attribute| Origin { relation, attribute })
}

/// The origins of a plan's outputs, before anything was optimised.
pub fn of_plan(facts: &SessionFacts, plan: &LogicalPlan) -> Origins {
    let mut origins = match plan {
        LogicalPlan::Projection(projection) => {
            of_exprs(&projection.expr, &of_plan(facts, &projection.input), projection.input.schema())
        }
        LogicalPlan::Aggregate(aggregate) => {
            of_exprs(&aggregate.group_expr, &of_plan(facts, &aggregate.input), aggregate.input.schema())
        }
        LogicalPlan::Distinct(Distinct::On(distinct)) => {
            of_exprs(&distinct.select_expr, &of_plan(facts, &distinct.input), distinct.input.schema())
        }
        LogicalPlan::Distinct(Distinct::All(input)) => of_plan(facts, input),
        LogicalPlan::Filter(filter) => of_plan(facts, &filter.input),
        LogicalPlan::Sort(sort) => of_plan(facts, &sort.input),
        LogicalPlan::Limit(limit) => of_plan(facts, &limit.input),
        LogicalPlan::Window(window) => of_plan(facts, &window.input),
        LogicalPlan::SubqueryAlias(alias) => match marked_view(&alias.alias) {
            Some(view) => of_view(facts, view),
            None => of_plan(facts, &alias.input),
        },
        LogicalPlan::Join(join) => of_join(facts, join),
        LogicalPlan::Unnest(unnest) => of_unnest(facts, unnest),
        LogicalPlan::TableScan(scan) => of_scan(facts, scan),
        _ => Vec::new(),
    };
    origins.resize(plan.schema().fields().len(), None);
    origins
}

/// Those of expressions over what has these.
pub fn of_exprs(exprs: &[Expr], input: &[Option<Origin>], schema: &DFSchema) -> Origins {
    exprs.iter().map(|expr| of_expr(expr, input, schema)).collect()
}

pub fn of_expr(expr: &Expr, input: &[Option<Origin>], schema: &DFSchema) -> Option<Origin> {
    match expr {
        Expr::Alias(alias) => of_expr(&alias.expr, input, schema),
        Expr::Column(column) => input.get(schema.maybe_index_of_column(column)?).copied().flatten(),
        _ => None,
    }
}

fn of_join(facts: &SessionFacts, join: &Join) -> Origins {
    match join.join_type {
        JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => of_plan(facts, &join.right),
        JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => of_plan(facts, &join.left),
        JoinType::Inner | JoinType::Left | JoinType::Right | JoinType::Full => {
            let mut origins = of_plan(facts, &join.left);
            origins.extend(of_plan(facts, &join.right));
            origins
        }
    }
}

fn of_unnest(facts: &SessionFacts, unnest: &Unnest) -> Origins {
    let input = of_plan(facts, &unnest.input);
    let is_spread = |index: &usize| {
        unnest.struct_type_columns.contains(index) || unnest.list_type_columns.iter().any(|(list, _)| list == index)
    };
    let of = |index: &usize| if is_spread(index) { None } else { input.get(*index).copied().flatten() };
    unnest.dependency_indices.iter().map(of).collect()
}

fn of_scan(facts: &SessionFacts, scan: &TableScan) -> Origins {
    let provider = source_as_provider(&scan.source);
    let table = provider.as_ref().ok().and_then(|provider| provider.downcast_ref::<scan::TableProvider>());
    let all = match table {
        Some(table) => of_table(table.def()),
        None => match resolve::relation(facts, scan.table_name.schema(), scan.table_name.table()) {
            Some(relation @ (Relation::System(_) | Relation::Sequence(_))) => {
                let columns = scan.source.schema().fields().len();
                (1..=columns).map(|attribute| origin(relation.oid(), attribute)).collect()
            }
            _ => Vec::new(),
        },
    };
    match &scan.projection {
        Some(projection) => projection.iter().map(|&column| all.get(column).copied().flatten()).collect(),
        None => all,
    }
}

fn marked_view(alias: &TableReference) -> Option<TableId> {
    alias.table().strip_prefix(VIEW)?.parse().ok().map(TableId)
}

fn of_view(facts: &SessionFacts, view: TableId) -> Origins {
    let columns = facts.version.catalog.view_by_id(view).map_or(0, |view| view.columns.len());
    (1..=columns).map(|attribute| origin(view.0, attribute)).collect()
}

/// Writes them into the columns that a statement describes.
pub fn mark(columns: &mut [ResultColumn], origins: &[Option<Origin>]) {
    for (column, origin) in columns.iter_mut().zip(origins) {
        if let Some(origin) = origin {
            (column.table_oid, column.attribute) = (origin.relation, origin.attribute);
        }
    }
}
