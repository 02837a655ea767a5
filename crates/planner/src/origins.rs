//! Where the outputs of a query come from.
//!
//! `RowDescription` names the table and the column that an output is of, when it is nothing but that column: what drivers
//! tell result sets apart by that can be edited. As in PostgreSQL (`markTargetListOrigin`), joins, subqueries, `WITH` and
//! grouping pass columns on, a view's columns are the view's own, and what set operations give back is nobody's.

use crate::facts::SessionFacts;
use crate::resolve::{self, Relation};
use crate::scan;
use crate::session::ResultColumn;
use crate::types::{declared_type, marked_oid};
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::common::{DFSchema, JoinType, TableReference};
use datafusion::datasource::source_as_provider;
use datafusion::logical_expr::{Distinct, Expr, ExprSchemable, Join, LogicalPlan, TableScan, Unnest};
use tidepool_base::{SqlType, TableId};
use tidepool_table::{ColumnDef, TableDef};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// 0 for what is computed.
    pub relation: u32,
    /// From 1, as `pg_attribute.attnum`.
    pub attribute: i16,
    /// The type, where it is one that a plan's fields forget: `json`, `jsonb`, `uuid`, `name`, and arrays of these. Else 0.
    pub type_oid: u32,
}

/// One an output; `None` for what is computed, and of a type that its field tells.
pub type Origins = Vec<Option<Origin>>;

/// The name that the plan of a view's query has below those that a query calls the view.
pub fn view_mark(view: TableId) -> TableReference {
    TableReference::bare(format!("{VIEW}{}", view.0))
}

/// No name that a user writes begins like this.
const VIEW: &str = "\u{1}view ";

/// The columns of a table, in order.
pub fn of_table(def: &TableDef) -> Origins {
    let of = |column: &ColumnDef| {
        let origin = origin(def.id.0, usize::from(column.number))?;
        let is_forgotten = column.sql_type.is_json() || column.sql_type == SqlType::Uuid;
        Some(Origin { type_oid: if is_forgotten { column.sql_type.oid() } else { 0 }, ..origin })
    };
    def.columns.iter().map(of).collect()
}

fn origin(relation: u32, attribute: usize) -> Option<Origin> {
    i16::try_from(attribute).ok().map(|attribute| Origin { relation, attribute, type_oid: 0 })
}

/// The origins of a plan's outputs, before anything was optimised.
pub fn of_plan(facts: &SessionFacts, plan: &LogicalPlan) -> Origins {
    let mut origins = match plan {
        LogicalPlan::Projection(projection) => {
            of_exprs(&projection.expr, &of_plan(facts, &projection.input), projection.input.schema())
        }
        LogicalPlan::Aggregate(aggregate) => {
            let (input, schema) = (of_plan(facts, &aggregate.input), aggregate.input.schema());
            let mut origins = of_exprs(&aggregate.group_expr, &input, schema);
            if origins.len() + aggregate.aggr_expr.len() == plan.schema().fields().len() {
                origins.extend(of_exprs(&aggregate.aggr_expr, &input, schema));
            }
            origins
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
        _ => computed(type_oid(expr, input, schema)?),
    }
}

fn computed(type_oid: u32) -> Option<Origin> {
    Some(Origin { relation: 0, attribute: 0, type_oid })
}

/// The type of an expression, if it is one that fields forget.
fn type_oid(expr: &Expr, input: &[Option<Origin>], schema: &DFSchema) -> Option<u32> {
    let of = |expr: &Expr| type_oid(expr, input, schema);
    match expr {
        Expr::Alias(alias) => of(&alias.expr),
        Expr::Column(column) => {
            let known = input.get(schema.maybe_index_of_column(column)?).copied().flatten();
            known.map(|origin| origin.type_oid).filter(|oid| *oid != 0).or_else(|| forgotten(expr, schema))
        }
        // It keeps what its operand's field says.
        Expr::Cast(cast) => of_field(&cast.field),
        Expr::ScalarSubquery(query) => type_of_query(&query.subquery),
        Expr::Case(case) => {
            let branches = case.when_then_expr.iter().map(|(_, then)| then.as_ref()).chain(case.else_expr.as_deref());
            common(branches, &of)
        }
        Expr::ScalarFunction(function) => match function.func.name() {
            "coalesce" | "greatest" | "least" => common(function.args.iter(), &of),
            "nullif" => of(function.args.first()?),
            "make_array" => array_of(common(function.args.iter(), &of)?),
            "array_element" => element_of(of(function.args.first()?)?),
            _ => forgotten(expr, schema),
        },
        Expr::AggregateFunction(function) => match (function.func.name(), function.params.args.as_slice()) {
            ("array_agg", [argument]) => array_of(of(argument)?),
            ("first_value" | "last_value" | "min" | "max", [argument, ..]) => of(argument),
            _ => None,
        },
        _ => forgotten(expr, schema),
    }
}

/// The type of a query's one output.
fn type_of_query(plan: &LogicalPlan) -> Option<u32> {
    match plan {
        LogicalPlan::Projection(projection) => type_oid(projection.expr.first()?, &[], projection.input.schema()),
        LogicalPlan::Sort(_) | LogicalPlan::Limit(_) | LogicalPlan::Distinct(_) | LogicalPlan::SubqueryAlias(_) => {
            type_of_query(plan.inputs().first()?)
        }
        _ => None,
    }
}

/// What an expression's own field says.
fn forgotten(expr: &Expr, schema: &DFSchema) -> Option<u32> {
    of_field(&expr.to_field(schema).ok()?.1)
}

fn of_field(field: &Field) -> Option<u32> {
    let said = |field: &Field| match declared_type(field) {
        Some(declared @ (SqlType::Json | SqlType::Jsonb | SqlType::Uuid)) => Some(declared.oid()),
        _ => marked_oid(field).filter(|oid| array_of(*oid).is_some()),
    };
    match field.data_type() {
        DataType::List(item) => said(item).and_then(array_of),
        _ => said(field),
    }
}

/// The type of all of these that have one. Literals take that of the others.
fn common<'e>(exprs: impl Iterator<Item = &'e Expr>, of: &dyn Fn(&Expr) -> Option<u32>) -> Option<u32> {
    let mut found = None;
    for expr in exprs {
        if matches!(expr, Expr::Literal(_, None)) {
            continue;
        }
        let oid = of(expr)?;
        if found.is_some_and(|found| found != oid) {
            return None;
        }
        found = Some(oid);
    }
    found
}

const NAME: u32 = 19;

const TEXT_ARRAY: u32 = 1009;

/// Types and the types of arrays of them.
const ARRAYS: [(u32, u32); 4] = [(NAME, 1003), (114, 199), (2950, 2951), (3802, 3807)];

fn array_of(oid: u32) -> Option<u32> {
    ARRAYS.iter().find(|(item, _)| *item == oid).map(|(_, array)| *array)
}

fn element_of(oid: u32) -> Option<u32> {
    ARRAYS.iter().find(|(_, array)| *array == oid).map(|(item, _)| *item)
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
    let of = |index: &usize| {
        let known = input.get(*index).copied().flatten();
        if is_spread(index) { computed(element_of(known?.type_oid)?) } else { known }
    };
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
        let Some(origin) = origin else { continue };
        (column.table_oid, column.attribute) = (origin.relation, origin.attribute);
        // What is described as text already is held as one.
        let described = match origin.type_oid {
            0 => continue,
            114 | 2950 | 3802 | NAME => column.type_oid == SqlType::Text.oid(),
            _ => column.type_oid == TEXT_ARRAY,
        };
        if described {
            column.type_oid = origin.type_oid;
            match origin.type_oid {
                114 => column.sql_type = SqlType::Json,
                3802 => column.sql_type = SqlType::Jsonb,
                2950 => column.sql_type = SqlType::Uuid,
                _ => {}
            }
        }
    }
}
