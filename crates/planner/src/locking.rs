//! `SELECT … FOR UPDATE` and its kin: which rows are locked, as a plan.
//!
//! The plan is the query's, with the rows' ids of each table whose rows are locked before its outputs.

use crate::errors::from_datafusion;
use crate::facts::SessionFacts;
use crate::insert::object_name;
use crate::names::OutputNames;
use crate::query::{self, ParameterFields};
use crate::resolve::{self, BY_ID, Relation};
use crate::session::ResultColumn;
use crate::statement::{LockClause, fold};
use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Schema};
use datafusion::catalog::TableProvider as DataFusionTable;
use datafusion::common::{Column, ScalarValue};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Cast, Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::sqlparser::ast;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState};
use tidepool_database::{LockWait, PartitionTree};
use tidepool_table::rows::RowLock;
use tidepool_table::{ROW_ID, TableVersion};

/// A table in `FROM` whose rows are locked.
#[derive(Clone)]
pub struct Target {
    pub version: Arc<TableVersion>,
    pub lock: RowLock,
    pub wait: LockWait,
    /// Of a partitioned table: what rows' ids name them within.
    pub tree: Option<Arc<PartitionTree>>,
    /// What its columns are qualified with.
    alias: ast::Ident,
}

/// A query that locks rows, planned.
pub struct Planned {
    /// Ids, one column a target, and then the query's outputs.
    pub plan: LogicalPlan,
    pub targets: Vec<Target>,
    /// Of the rows that are locked, those passed over, and then how many are given back: where others may be skipped, so
    /// that the plan cannot count them.
    pub skip: usize,
    pub fetch: Option<usize>,
    /// The plan counts them.
    pub is_limited: bool,
    names: OutputNames,
}

impl Planned {
    /// What the query gives back. `schema` is the plan's, coerced.
    pub fn columns(&self, schema: &Schema) -> Vec<ResultColumn> {
        let mut columns = query::columns(schema, &OutputNames::none()).split_off(self.targets.len());
        let names = self.names.apply(columns.iter().map(|column| column.name.clone()));
        for (column, name) in columns.iter_mut().zip(names) {
            column.name = name;
        }
        columns
    }
}

/// `parameters` are the statement's; they are bound here.
pub fn plan(
    state: &SessionState,
    facts: &Arc<SessionFacts>,
    mut query: Box<ast::Query>,
    clauses: &[LockClause],
    fields: ParameterFields,
    parameters: &[ArrayRef],
) -> Result<Planned> {
    let names = OutputNames::of(&query);
    let has_limit = query.limit_clause.is_some() || query.fetch.is_some();
    let first = clauses.first().map_or("FOR UPDATE", LockClause::name);
    let refused = |what: &str| Err(Error::unsupported(format!("{first} is not allowed with {what}")));
    let with: Vec<String> =
        query.with.iter().flat_map(|with| &with.cte_tables).map(|table| fold(&table.alias.name)).collect();
    let select = match query.body.as_mut() {
        ast::SetExpr::Select(select) => select,
        ast::SetExpr::Values(_) => return Err(Error::unsupported(format!("{first} cannot be applied to VALUES"))),
        _ => return refused("UNION/INTERSECT/EXCEPT"),
    };
    if select.distinct.is_some() {
        return refused("DISTINCT clause");
    }
    if !matches!(&select.group_by, ast::GroupByExpr::Expressions(keys, _) if keys.is_empty()) {
        return refused("GROUP BY clause");
    }
    if select.having.is_some() {
        return refused("HAVING clause");
    }
    let mut found = Found { facts, clauses, with: &with, targets: Vec::new(), named: vec![Vec::new(); clauses.len()] };
    for table in &mut select.from {
        found.joined(table, false)?;
    }
    for (clause, named) in clauses.iter().zip(&found.named) {
        if let Some(missing) = clause.of.iter().find(|name| !named.contains(name)) {
            return Err(Error::new(
                SqlState::UNDEFINED_TABLE,
                format!("relation \"{missing}\" in {} clause not found in FROM clause", clause.name()),
            ));
        }
    }
    let targets = found.targets;
    let column = |target: &Target| {
        ast::Expr::CompoundIdentifier(vec![target.alias.clone(), ast::Ident::with_quote('"', ROW_ID)])
    };
    for (place, target) in targets.iter().enumerate() {
        let alias = ast::Ident::with_quote('"', id_name(place));
        select.projection.push(ast::SelectItem::ExprWithAlias { expr: column(target), alias });
    }
    let mut rows: BTreeMap<String, Arc<dyn DataFusionTable>> = BTreeMap::new();
    for (place, target) in targets.iter().enumerate() {
        let version = target.version.clone();
        rows.insert(source_name(place), crate::scan::TableProvider::with_row_ids(&facts.version, version, place)?);
    }
    let plan = query::logical_plan_with_rows(state, facts, query, fields, rows).map_err(|error| {
        // The ids are no keys of a group.
        match error.code() == SqlState::GROUPING_ERROR {
            true => Error::unsupported(format!("{first} is not allowed with aggregate functions")),
            false => error,
        }
    })?;
    let mut plan = query::bind(plan, parameters)?;
    refuse_windows(&plan, first)?;
    let (mut skip, mut fetch) = (0, None);
    let mut is_limited = has_limit;
    if targets.iter().any(|target| target.wait == LockWait::Skip)
        && let LogicalPlan::Limit(limit) = &plan
    {
        skip = count(limit.skip.as_deref(), first)?.unwrap_or(0);
        fetch = count(limit.fetch.as_deref(), first)?;
        plan = limit.input.as_ref().clone();
        is_limited = false;
    }
    let schema = plan.schema().clone();
    let ids = schema.fields().len() - targets.len();
    let output = |index: usize| Expr::Column(Column::from(schema.qualified_field(index)));
    // What leaves a plan has a type of SQL's.
    let id = |index: usize| Expr::Cast(Cast::new(Box::new(output(index)), DataType::Int64)).alias(id_name(index - ids));
    let outputs = (ids..schema.fields().len()).map(id);
    // A wildcard finds the ids, too.
    let shown = (0..ids).filter(|index| schema.field(*index).name() != ROW_ID).map(output);
    let plan = LogicalPlanBuilder::from(plan)
        .project(outputs.chain(shown).collect::<Vec<_>>())
        .and_then(LogicalPlanBuilder::build)
        .map_err(from_datafusion)?;
    Ok(Planned { plan, targets, skip, fetch, is_limited, names })
}

/// The number that a `LIMIT` or `OFFSET` comes to. 0A000 for one that is not known before the query runs.
fn count(expr: Option<&Expr>, clause: &str) -> Result<Option<usize>> {
    let mut expr = match expr {
        Some(expr) => expr,
        None => return Ok(None),
    };
    while let Expr::Cast(Cast { expr: inner, .. }) = expr {
        expr = inner;
    }
    let number = match expr {
        Expr::Literal(value, _) => value.cast_to(&DataType::Int64).ok(),
        _ => None,
    };
    match number {
        Some(ScalarValue::Int64(None)) => Ok(None),
        Some(ScalarValue::Int64(Some(number))) => usize::try_from(number)
            .map(Some)
            .map_err(|_| Error::new(SqlState::INVALID_ROW_COUNT_IN_LIMIT, "LIMIT must not be negative")),
        _ => Err(Error::unsupported(format!("with {clause} SKIP LOCKED, LIMIT and OFFSET must be numbers"))),
    }
}

fn id_name(place: usize) -> String {
    format!("\u{1}lock{place}")
}

fn source_name(place: usize) -> String {
    format!("{}{place}", crate::row_expressions::ROW)
}

fn refuse_windows(plan: &LogicalPlan, clause: &str) -> Result<()> {
    let mut plan = plan;
    loop {
        plan = match plan {
            LogicalPlan::Projection(projection) => &projection.input,
            LogicalPlan::Sort(sort) => &sort.input,
            LogicalPlan::Limit(limit) => &limit.input,
            LogicalPlan::Window(_) => {
                return Err(Error::unsupported(format!("{clause} is not allowed with window functions")));
            }
            LogicalPlan::Unnest(_) => {
                let what = "set-returning functions in the target list";
                return Err(Error::unsupported(format!("{clause} is not allowed with {what}")));
            }
            _ => return Ok(()),
        }
    }
}

/// Whether a query has relations in `FROM`, and not functions only.
fn reads_tables(query: &ast::Query) -> bool {
    struct Tables;
    impl ast::Visitor for Tables {
        type Break = ();
        fn pre_visit_table_factor(&mut self, factor: &ast::TableFactor) -> ControlFlow<()> {
            match factor {
                ast::TableFactor::Table { args: None, .. } => ControlFlow::Break(()),
                _ => ControlFlow::Continue(()),
            }
        }
    }
    ast::Visit::visit(query, &mut Tables).is_break()
}

/// What of `FROM` is locked.
struct Found<'a> {
    facts: &'a Arc<SessionFacts>,
    clauses: &'a [LockClause],
    /// Names that `WITH` gives.
    with: &'a [String],
    targets: Vec<Target>,
    /// Of each clause the names that it was found to mean.
    named: Vec<Vec<String>>,
}

impl Found<'_> {
    fn joined(&mut self, table: &mut ast::TableWithJoins, nullable: bool) -> Result<()> {
        use ast::JoinOperator::{FullOuter, Left, LeftOuter, Right, RightOuter};
        let is_right = |join: &ast::Join| matches!(join.join_operator, Right(_) | RightOuter(_) | FullOuter(_));
        self.factor(&mut table.relation, nullable || table.joins.iter().any(is_right))?;
        for place in 0..table.joins.len() {
            let later = table.joins[place + 1..].iter().any(is_right);
            let join = &mut table.joins[place];
            let own = matches!(join.join_operator, Left(_) | LeftOuter(_) | FullOuter(_));
            self.factor(&mut join.relation, nullable || later || own)?;
        }
        Ok(())
    }

    /// The strongest lock, and the most impatient wait, that clauses ask of a name.
    fn asked(&mut self, name: &str) -> Option<(RowLock, LockWait, &'static str)> {
        let mut asked: Option<(RowLock, LockWait, &'static str)> = None;
        for (clause, named) in self.clauses.iter().zip(&mut self.named) {
            if !clause.of.is_empty() && !clause.of.iter().any(|known| known == name) {
                continue;
            }
            named.push(name.to_owned());
            let (lock, wait, text) = asked.unwrap_or((clause.lock, clause.wait, clause.name()));
            let text = if clause.lock > lock { clause.name() } else { text };
            asked = Some((lock.max(clause.lock), wait.max(clause.wait), text));
        }
        asked
    }

    fn factor(&mut self, factor: &mut ast::TableFactor, nullable: bool) -> Result<()> {
        match factor {
            ast::TableFactor::NestedJoin { table_with_joins, alias: None } => self.joined(table_with_joins, nullable),
            ast::TableFactor::Table { name, alias, args: None, .. } => {
                let named = object_name(name)?;
                let shown = alias.as_ref().map_or_else(|| named.name.clone(), |alias| fold(&alias.name));
                let Some((lock, wait, text)) = self.asked(&shown) else { return Ok(()) };
                if named.schema.is_none() && self.with.contains(&named.name) {
                    return self.unlockable(&shown, text, "a WITH query");
                }
                let version = match resolve::relation(self.facts, named.schema.as_deref(), &named.name) {
                    Some(Relation::Table(version)) => version,
                    None => return Err(resolve::missing(&named)),
                    Some(Relation::View(view)) => {
                        return Err(Error::unsupported(format!("{text} cannot be applied to view \"{}\"", view.name))
                            .with_hint("Query the tables that it reads."));
                    }
                    Some(Relation::Sequence(sequence)) => {
                        return Err(Error::new(
                            SqlState::WRONG_OBJECT_TYPE,
                            format!("cannot lock rows in sequence \"{}\"", sequence.def.name),
                        ));
                    }
                    Some(Relation::System(relation)) => {
                        return Err(crate::errors::system_relation(relation.name));
                    }
                };
                if nullable {
                    return Err(Error::unsupported(format!(
                        "{text} cannot be applied to the nullable side of an outer join"
                    )));
                }
                let own = ast::Ident::with_quote('"', source_name(self.targets.len()));
                *name = ast::ObjectName::from(vec![ast::Ident::with_quote('"', BY_ID), own]);
                let alias = alias.get_or_insert_with(|| ast::TableAlias {
                    explicit: true,
                    name: ast::Ident::with_quote('"', &named.name),
                    columns: Vec::new(),
                    at: None,
                });
                if !alias.columns.is_empty() {
                    return Err(Error::unsupported(format!("{text} of a table whose columns are renamed")));
                }
                let tree = self.facts.version.partition_tree(&version.def)?;
                self.targets.push(Target { version, lock, wait, tree, alias: alias.name.clone() });
                Ok(())
            }
            ast::TableFactor::Derived { alias, subquery, .. } => {
                let shown = alias.as_ref().map(|alias| fold(&alias.name)).unwrap_or_default();
                match self.asked(&shown) {
                    Some((_, _, text)) if !reads_tables(subquery) => self.unlockable(&shown, text, "a function"),
                    Some((_, _, text)) => Err(Error::unsupported(format!("{text} cannot be applied to a subquery"))
                        .with_hint("Name the tables whose rows are to be locked after OF.")),
                    None => Ok(()),
                }
            }
            // Functions and the like have no rows that others change.
            ast::TableFactor::Function { alias, .. }
            | ast::TableFactor::Table { alias, .. }
            | ast::TableFactor::UNNEST { alias, .. } => {
                let shown = alias.as_ref().map(|alias| fold(&alias.name)).unwrap_or_default();
                match self.asked(&shown) {
                    Some((_, _, text)) => self.unlockable(&shown, text, "a function"),
                    None => Ok(()),
                }
            }
            _ => Err(Error::unsupported("rows of this form of FROM cannot be locked")),
        }
    }

    /// What has no rows to lock is passed over, unless it is named.
    fn unlockable(&self, name: &str, text: &str, what: &str) -> Result<()> {
        if self.clauses.iter().any(|clause| clause.of.iter().any(|known| known == name)) {
            return Err(Error::unsupported(format!("{text} cannot be applied to {what}")));
        }
        Ok(())
    }
}
