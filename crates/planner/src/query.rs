//! Queries: syntax to logical plan to physical plan, over the statement's one snapshot.

use crate::engine::EngineNodes;
use crate::errors::{carry, cross_database, from_datafusion};
use crate::facts::SessionFacts;
use crate::generic::{self, Request, Written};
use crate::names::OutputNames;
use crate::origins::{self, Origins};
use crate::planner::State;
use crate::privileges::{self, Acting};
use crate::resolve::{self, Relation};
use crate::session::ResultColumn;
use crate::statement::QualifiedName;
use crate::types::{canonical_schema, describe, scalar};
use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use datafusion::catalog::TableFunctionArgs;
use datafusion::catalog::TableProvider;
use datafusion::catalog::cte_worktable::CteWorkTable;
use datafusion::common::config::ConfigOptions;
use datafusion::common::{DFSchema, ParamValues, Result as PlanResult, TableReference, plan_datafusion_err};
use datafusion::datasource::provider_as_source;
use datafusion::execution::SessionState;
use datafusion::logical_expr::planner::{ContextProvider, ExprPlanner, RelationPlanner, TypePlanner};
use datafusion::logical_expr::simplify::SimplifyContext;
use datafusion::logical_expr::{
    AggregateUDF, Expr, HigherOrderUDF, LogicalPlan, LogicalPlanBuilder, ScalarUDF, TableSource, WindowUDF,
};
use datafusion::optimizer::simplify_expressions::ExprSimplifier;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_planner::{DefaultPhysicalPlanner, PhysicalPlanner};
use datafusion::sql::planner::{ParserOptions, PlannerContext, SqlToRel};
use datafusion::sql::sqlparser::ast;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState, SqlType, panic_point};
use tidepool_database::{AccessObject, ViewDef};

/// The view whose query is planned.
#[derive(Clone, Copy)]
pub struct Within<'a> {
    pub view: &'a ViewDef,
    /// Views around it.
    pub depth: usize,
}

/// Names in a statement resolved for DataFusion's planner.
pub(crate) struct Names<'a> {
    pub(crate) state: &'a SessionState,
    pub(crate) facts: &'a Arc<SessionFacts>,
    within: Option<Within<'a>>,
    /// What names in schema `pg_oid` stand for beside relations: the rows of an expression that is evaluated outside of
    /// queries, or of tables that a statement changes or locks.
    rows: BTreeMap<String, Arc<dyn TableProvider>>,
}

impl Names<'_> {
    /// The scalar function of a name.
    pub(crate) fn function(&self, name: &str) -> Option<&Arc<ScalarUDF>> {
        self.state.scalar_functions().get(unqualified(name))
    }

    /// What a name means, and what of it the query may read.
    fn readable(&self, schema: Option<&str>, name: &str) -> Result<(Relation, privileges::Readable)> {
        let Some(relation) = resolve::relation(self.facts, schema, name) else {
            let (schema, name) = (schema.map(str::to_owned), name.to_owned());
            return Err(resolve::missing_among(self.facts, &QualifiedName { schema, name }));
        };
        let acting = self.acting();
        if !acting.is_superuser {
            privileges::check_schema(self.facts, &acting, schema)?;
        }
        let readable = privileges::check_read(self.facts, &acting, &relation)?;
        Ok((relation, readable))
    }

    /// A table with its rows' ids in a column more, and the names of its own columns.
    pub(crate) fn sampled(
        &self,
        schema: Option<&str>,
        name: &str,
        id: &str,
    ) -> Result<(Arc<dyn TableProvider>, Vec<String>)> {
        if schema == Some(resolve::BY_ID) && self.rows.contains_key(name) {
            return Err(Error::unsupported("TABLESAMPLE is not supported here"));
        }
        let (relation, readable) = self.readable(schema, name)?;
        let Relation::Table(version) = &relation else {
            return Err(match relation {
                Relation::System(_) => Error::unsupported("TABLESAMPLE of system tables is not supported"),
                _ => crate::samples::not_a_table(),
            });
        };
        let table =
            crate::scan::TableProvider::to_lock(&self.facts.version, version.clone(), usize::MAX, id, readable)?;
        let table = match self.within {
            Some(within) => crate::view::as_it_was(within.view, &relation, table, Some(id))?,
            None => table,
        };
        let schema = table.schema();
        let columns = schema.fields().iter().map(|field| field.name().clone()).filter(|column| column != id).collect();
        Ok((table, columns))
    }

    /// The same, and these tables in schema `pg_oid`.
    fn with(&self, tables: &BTreeMap<String, Arc<dyn TableProvider>>) -> Names<'_> {
        let rows = self.rows.iter().chain(tables).map(|(name, table)| (name.clone(), table.clone())).collect();
        Names { state: self.state, facts: self.facts, within: self.within, rows }
    }

    /// Whom the query works for: the statement's role, or the owner of the view whose query it is.
    fn acting(&self) -> Cow<'_, Acting> {
        match self.within {
            Some(within) => {
                let catalog = &self.facts.version.catalog;
                Cow::Owned(Acting::of(catalog, catalog.owner_of(&AccessObject::Relation(within.view.id))))
            }
            None => Cow::Borrowed(&self.facts.role),
        }
    }

    /// The table, view or system table that a name means.
    fn table(&self, schema: Option<&str>, name: &str) -> Result<Arc<dyn TableProvider>> {
        if schema == Some(resolve::BY_ID)
            && let Some(rows) = self.rows.get(name).or_else(|| self.facts.parts.get(name))
        {
            return Ok(rows.clone());
        }
        let (relation, readable) = self.readable(schema, name)?;
        let provider = match &relation {
            Relation::Table(version) => {
                crate::scan::TableProvider::readable(&self.facts.version, version.clone(), readable)?
            }
            Relation::View(view) => {
                let depth = self.within.map_or(0, |within| within.depth + 1);
                crate::view::provider(self.state, self.facts, view, depth)?
            }
            Relation::Sequence(sequence) => crate::sequences::provider(sequence)?,
            Relation::System(system) => crate::catalog::table(system, self.facts),
        };
        match self.within {
            Some(within) => crate::view::as_it_was(within.view, &relation, provider, None),
            None => Ok(provider),
        }
    }
}

/// Functions may be called with their schema.
fn unqualified(name: &str) -> &str {
    name.strip_prefix("pg_catalog.").unwrap_or(name)
}

impl ContextProvider for Names<'_> {
    fn get_table_source(&self, name: TableReference) -> PlanResult<Arc<dyn TableSource>> {
        if let Some(database) = name.catalog()
            && database != self.facts.database
        {
            return Err(carry(cross_database(name)));
        }
        crate::planning::check().map_err(carry)?;
        let provider = self.table(name.schema(), name.table()).map_err(carry)?;
        Ok(provider_as_source(provider))
    }

    fn get_table_function_source(&self, name: &str, args: Vec<Expr>) -> PlanResult<Arc<dyn TableSource>> {
        let function = self
            .state
            .table_functions()
            .get(unqualified(name))
            .ok_or_else(|| plan_datafusion_err!("table function '{name}' not found"))?;
        let context = SimplifyContext::builder()
            .with_config_options(Arc::clone(self.state.config_options()))
            .with_query_execution_start_time(self.state.execution_props().query_execution_start_time)
            .build();
        let simplifier = ExprSimplifier::new(context);
        let schema = DFSchema::empty();
        let args = args
            .into_iter()
            .map(|arg| simplifier.coerce(arg, &schema).and_then(|arg| simplifier.simplify(arg)))
            .collect::<PlanResult<Vec<_>>>()?;
        let provider = function.create_table_provider_with_args(TableFunctionArgs::new(&args, self.state))?;
        Ok(provider_as_source(provider))
    }

    fn create_cte_work_table(&self, name: &str, schema: SchemaRef) -> PlanResult<Arc<dyn TableSource>> {
        Ok(provider_as_source(Arc::new(CteWorkTable::new(name, schema))))
    }

    fn get_expr_planners(&self) -> &[Arc<dyn ExprPlanner>] {
        self.state.expr_planners()
    }

    fn get_relation_planners(&self) -> &[Arc<dyn RelationPlanner>] {
        self.state.relation_planners()
    }

    fn get_type_planner(&self) -> Option<Arc<dyn TypePlanner>> {
        Some(Arc::new(crate::types::PostgresTypes))
    }

    fn get_function_meta(&self, name: &str) -> Option<Arc<ScalarUDF>> {
        self.function(name).cloned()
    }

    fn get_higher_order_meta(&self, name: &str) -> Option<Arc<HigherOrderUDF>> {
        self.state.higher_order_functions().get(unqualified(name)).cloned()
    }

    fn get_aggregate_meta(&self, name: &str) -> Option<Arc<AggregateUDF>> {
        self.state.aggregate_functions().get(unqualified(name)).cloned()
    }

    fn get_window_meta(&self, name: &str) -> Option<Arc<WindowUDF>> {
        self.state.window_functions().get(unqualified(name)).cloned()
    }

    fn get_variable_type(&self, _names: &[String]) -> Option<DataType> {
        None
    }

    fn options(&self) -> &ConfigOptions {
        self.state.config_options()
    }

    fn udf_names(&self) -> Vec<String> {
        self.state.scalar_functions().keys().cloned().collect()
    }

    fn higher_order_function_names(&self) -> Vec<String> {
        self.state.higher_order_functions().keys().cloned().collect()
    }

    fn udaf_names(&self) -> Vec<String> {
        self.state.aggregate_functions().keys().cloned().collect()
    }

    fn udwf_names(&self) -> Vec<String> {
        self.state.window_functions().keys().cloned().collect()
    }
}

/// What is known of `$1`, `$2`, …
pub type ParameterFields = Vec<Option<FieldRef>>;

/// Parameters as they are planned with: fields without metadata, so that every use of one agrees.
pub fn parameter_fields(parameters: &[ArrayRef]) -> ParameterFields {
    parameters.iter().map(|array| Some(Arc::new(Field::new("", array.data_type().clone(), true)))).collect()
}

/// Plans a query as it was written, literals and parameters untyped. `table_schema` gives the types of the columns that
/// `VALUES` fills, for `INSERT`.
pub fn logical_plan(
    state: &SessionState,
    facts: &Arc<SessionFacts>,
    query: Box<ast::Query>,
    parameters: ParameterFields,
    table_schema: Option<Schema>,
) -> Result<LogicalPlan> {
    logical_plan_within(state, facts, query, parameters, table_schema, None)
}

/// As `logical_plan`, perhaps of a view's query.
pub fn logical_plan_within(
    state: &SessionState,
    facts: &Arc<SessionFacts>,
    query: Box<ast::Query>,
    parameters: ParameterFields,
    table_schema: Option<Schema>,
    within: Option<Within<'_>>,
) -> Result<LogicalPlan> {
    planned_by(&Names { state, facts, within, rows: BTreeMap::new() }, query, parameters, table_schema)
}

/// The plan of a query that reads `pg_oid.row`.
pub fn logical_plan_of_rows(
    state: &SessionState,
    facts: &Arc<SessionFacts>,
    query: Box<ast::Query>,
    parameters: ParameterFields,
    rows: Arc<dyn TableProvider>,
) -> Result<LogicalPlan> {
    let rows = BTreeMap::from([(crate::row_expressions::ROW.to_owned(), rows)]);
    logical_plan_with_rows(state, facts, query, parameters, rows, None)
}

/// The plan of a query that reads these under their names in schema `pg_oid`.
pub fn logical_plan_with_rows(
    state: &SessionState,
    facts: &Arc<SessionFacts>,
    query: Box<ast::Query>,
    parameters: ParameterFields,
    rows: BTreeMap<String, Arc<dyn TableProvider>>,
    within: Option<Within<'_>>,
) -> Result<LogicalPlan> {
    planned_by(&Names { state, facts, within, rows }, query, parameters, None)
}

/// 0A000 for a query that locks rows where nobody would lock them: of a view.
fn refuse_locks(query: &ast::Query) -> Result<()> {
    match crate::statement::locking::has_locks(query) {
        false => Ok(()),
        true => Err(Error::unsupported("FOR UPDATE and FOR SHARE are not supported here")
            .with_hint("Lock the rows where the view is read.")),
    }
}

fn planned_by(
    names: &Names<'_>,
    query: Box<ast::Query>,
    parameters: ParameterFields,
    table_schema: Option<Schema>,
) -> Result<LogicalPlan> {
    refuse_locks(&query)?;
    panic_point("planner.names");
    crate::column_reads::check_rows(names.facts, &names.acting(), &query)?;
    let mut query = query;
    crate::terms::check(&query, names.state)?;
    crate::outer_aggregates::write_out(&mut query, names.state);
    crate::row_counts::write_out(&mut query)?;
    let samples = crate::samples::write_out(names, &mut query)?;
    let names = &names.with(&samples);
    let mut planned = |tables: &BTreeMap<String, Arc<dyn TableProvider>>, query: Box<ast::Query>| {
        planned_apart(&names.with(tables), query, parameters.clone(), None)
    };
    let tables = crate::with_queries::share(names, &mut query, &mut planned)?;
    if tables.is_empty() {
        return planned_apart(names, query, parameters, table_schema);
    }
    planned_apart(&names.with(&tables), query, parameters, table_schema)
}

/// The plan of a query whose `WITH` queries are settled.
fn planned_apart(
    names: &Names<'_>,
    mut query: Box<ast::Query>,
    parameters: ParameterFields,
    table_schema: Option<Schema>,
) -> Result<LogicalPlan> {
    crate::windows::write_out(&mut query)?;
    crate::group_sets::write_out(&mut query)?;
    crate::set_names::separate_orders(&mut query);
    let own_names = crate::order_names::separate(&mut query);
    crate::merged_columns::write_out(&mut query, &mut |part| {
        let plan = named_plan(names, part, &parameters, None)?;
        Ok(plan.schema().fields().iter().map(|field| field.name().clone()).collect())
    })?;
    let planned = match grouped_plan(names, query.clone(), &parameters, table_schema.as_ref()) {
        Err(error) if error.code() == SqlState::UNDEFINED_TABLE => {
            let mut renamed = query;
            if !crate::correlated::rename(&mut renamed) {
                return Err(error);
            }
            grouped_plan(names, renamed, &parameters, table_schema.as_ref()).map_err(|_| error)
        }
        planned => planned,
    }?;
    crate::column_reads::check(&planned)?;
    crate::outer_aggregates::check(&planned)?;
    crate::order_names::restore(planned, &own_names)
}

fn grouped_plan(
    names: &Names<'_>,
    query: Box<ast::Query>,
    parameters: &ParameterFields,
    table_schema: Option<&Schema>,
) -> Result<LogicalPlan> {
    match named_plan(names, query.clone(), parameters, table_schema) {
        Err(error) if error.code() == SqlState::GROUPING_ERROR => {
            let mut completed = query;
            if !crate::group_keys::complete(&mut completed, names.facts, names.state) {
                return Err(error);
            }
            named_plan(names, completed, parameters, table_schema)
        }
        planned => planned,
    }
}

/// A plan whose first `width` outputs are followed by the items of a `RETURNING` list, over what it has from `first`
/// on; with their names.
pub fn returning(
    state: &SessionState,
    facts: &Arc<SessionFacts>,
    items: Vec<ast::SelectItem>,
    plan: LogicalPlan,
    first: usize,
    width: usize,
    parameters: ParameterFields,
) -> Result<(LogicalPlan, Vec<String>)> {
    let output = |index: usize| Expr::Column(plan.schema().qualified_field(index).into());
    let mut outputs: Vec<Expr> = (0..width).map(output).collect();
    let mut names = Vec::new();
    for (position, (name, expr)) in returned(state, facts, items, &plan, first, parameters)?.into_iter().enumerate() {
        outputs.push(expr.alias(format!("\u{1}{position}")));
        names.push(name);
    }
    let plan = LogicalPlanBuilder::from(plan).project(outputs).and_then(LogicalPlanBuilder::build);
    Ok((plan.map_err(from_datafusion)?, names))
}

/// The items of a `RETURNING` list over a plan's outputs from `first` on: names and expressions.
pub fn returned(
    state: &SessionState,
    facts: &Arc<SessionFacts>,
    items: Vec<ast::SelectItem>,
    plan: &LogicalPlan,
    first: usize,
    parameters: ParameterFields,
) -> Result<Vec<(String, Expr)>> {
    let mut query = Box::new(crate::statement::parse_query("SELECT NULL")?);
    let written = items.iter().map(|item| match item {
        ast::SelectItem::UnnamedExpr(expr) => crate::names::expression_name(expr),
        _ => String::new(),
    });
    let written: Vec<String> = written.collect();
    if let ast::SetExpr::Select(select) = query.body.as_mut() {
        select.projection = items;
    }
    crate::row_types::prepare(&mut query, true)?;
    crate::numbers::type_numbers(&mut query, false);
    let ast::SetExpr::Select(select) = *query.body else {
        return Err(Error::internal("a SELECT that is none"));
    };
    let names = Names { state, facts, within: None, rows: BTreeMap::new() };
    let planner = SqlToRel::new_with_options(&names, parser_options());
    let mut context = PlannerContext::new().with_prepare_param_data_types(parameters);
    let schema = plan.schema();
    let mut outputs = Vec::new();
    for (item, name) in select.projection.into_iter().zip(written) {
        let (name, expr) = match item {
            ast::SelectItem::UnnamedExpr(expr) => (name, expr),
            ast::SelectItem::ExprWithAlias { expr, alias } => (crate::statement::fold(&alias), expr),
            ast::SelectItem::Wildcard(_) => {
                outputs.extend(columns_of(plan, first, None));
                continue;
            }
            ast::SelectItem::QualifiedWildcard(ast::SelectItemQualifiedWildcardKind::ObjectName(name), _) => {
                let relation = name.0.last().and_then(|part| part.as_ident()).map(crate::statement::fold);
                let relation = relation.unwrap_or_default();
                let columns = columns_of(plan, first, Some(&relation));
                if columns.is_empty() {
                    return Err(Error::new(
                        SqlState::UNDEFINED_TABLE,
                        format!("missing FROM-clause entry for table \"{relation}\""),
                    ));
                }
                outputs.extend(columns);
                continue;
            }
            _ => return Err(Error::unsupported("this form of RETURNING is not supported")),
        };
        outputs.push((name, planner.sql_to_expr(expr, schema, &mut context).map_err(from_datafusion)?));
    }
    Ok(outputs)
}

fn columns_of(plan: &LogicalPlan, first: usize, relation: Option<&str>) -> Vec<(String, Expr)> {
    let columns = plan.schema().iter().skip(first);
    columns
        .filter(|(qualifier, _)| relation.is_none() || qualifier.map(|qualifier| qualifier.table()) == relation)
        .map(|(qualifier, field)| {
            (crate::names::own_name(field.name()).to_owned(), Expr::Column((qualifier, field).into()))
        })
        .collect()
}

fn parser_options() -> ParserOptions {
    ParserOptions::new().with_parse_float_as_decimal(true)
}

fn named_plan(
    names: &Names<'_>,
    query: Box<ast::Query>,
    parameters: &ParameterFields,
    table_schema: Option<&Schema>,
) -> Result<LogicalPlan> {
    crate::names::check_order(&query)?;
    if let Some((probe, name)) = crate::names::ambiguous_key(&query)
        && let Err(error) = logical_plan_of(names, probe, parameters.clone(), table_schema.cloned())
        && error.code() == SqlState::UNDEFINED_COLUMN
    {
        // It is the name of no column, so it is that of an output, and of another one.
        return Err(Error::new(SqlState::AMBIGUOUS_COLUMN, format!("GROUP BY \"{name}\" is ambiguous")));
    }
    let mut named = query.clone();
    let mut shared = crate::names::prepare(&mut named, false);
    let planned = match logical_plan_of(names, named, parameters.clone(), table_schema.cloned()) {
        Err(error) if matches!(error.code(), SqlState::DUPLICATE_COLUMN | SqlState::AMBIGUOUS_COLUMN) => {
            let mut named = query;
            crate::set_names::separate(&mut named);
            shared = crate::names::prepare(&mut named, true);
            let planned = logical_plan_of(names, named, parameters.clone(), table_schema.cloned());
            if error.code() == SqlState::AMBIGUOUS_COLUMN { planned.map_err(|_| error) } else { planned }
        }
        planned => planned,
    };
    planned.map_err(|error| ambiguous(error, &shared))
}

/// 42702 for a name that is not there because several columns share it.
fn ambiguous(error: Error, shared: &HashSet<String>) -> Error {
    if shared.is_empty() || error.code() != SqlState::UNDEFINED_COLUMN {
        return error;
    }
    let message = error.message();
    let named = message.strip_prefix("column ").and_then(|rest| rest.strip_suffix(" does not exist"));
    let name = named.map(|named| named.trim_matches('"').rsplit('.').next().unwrap_or_default().trim_matches('"'));
    match name {
        Some(name) if shared.contains(name) => {
            Error::new(SqlState::AMBIGUOUS_COLUMN, format!("column reference \"{name}\" is ambiguous"))
        }
        _ => error,
    }
}

fn logical_plan_of(
    names: &Names<'_>,
    mut query: Box<ast::Query>,
    parameters: ParameterFields,
    table_schema: Option<Schema>,
) -> Result<LogicalPlan> {
    crate::row_types::prepare(&mut query, table_schema.is_some())?;
    crate::numbers::type_numbers(&mut query, table_schema.is_some());
    plan_query(names, query, parameters, table_schema)
}

fn plan_query(
    names: &Names<'_>,
    query: Box<ast::Query>,
    parameters: ParameterFields,
    table_schema: Option<Schema>,
) -> Result<LogicalPlan> {
    let planner = SqlToRel::new_with_options(names, parser_options());
    let mut context = PlannerContext::new().with_prepare_param_data_types(parameters);
    if let Some(schema) = table_schema {
        let schema = DFSchema::from_unqualified_fields(schema.fields, HashMap::new()).map_err(from_datafusion)?;
        context.set_table_schema(Some(Arc::new(schema)));
    }
    planner
        .sql_statement_to_plan_with_context(ast::Statement::Query(query), &mut context)
        .and_then(crate::row_types::settle)
        .and_then(crate::late_outputs::settle)
        .map_err(from_datafusion)
}

/// Puts parameter values into a plan.
pub fn bind(plan: LogicalPlan, parameters: &[ArrayRef]) -> Result<LogicalPlan> {
    if parameters.is_empty() {
        return Ok(plan);
    }
    crate::with_queries::bind(&plan, parameters)?;
    let values = parameters.iter().map(|array| scalar(array.as_ref())).collect::<Result<Vec<_>>>()?;
    plan.with_param_values(ParamValues::from(values)).map_err(from_datafusion)
}

/// The result columns of a planned query: names as PostgreSQL gives them, and no origins.
pub fn columns(schema: &Schema, names: &OutputNames) -> Vec<ResultColumn> {
    let names = names.apply(schema.fields().iter().map(|field| field.name().clone()));
    let columns = schema.fields().iter().zip(names);
    columns
        .map(|(field, name)| {
            let (sql_type, type_oid, type_modifier) = describe(field);
            ResultColumn { name, sql_type, type_oid, type_modifier, table_oid: 0, attribute: 0 }
        })
        .collect()
}

/// A query planned all the way.
pub(crate) struct Planned {
    pub plan: Arc<dyn ExecutionPlan>,
    pub state: State,
    pub columns: Vec<ResultColumn>,
    /// The batches' schema, under the columns' names.
    pub schema: SchemaRef,
    /// Of a statement that changes rows: what a plan is made of that can be run for some of them, where `plan` cannot.
    pub again: Option<LogicalPlan>,
}

/// Optimises a bound plan and makes its physical form.
pub async fn physical_plan(state: &SessionState, plan: &LogicalPlan) -> Result<Arc<dyn ExecutionPlan>> {
    physical_plan_of(state, optimized(state, plan)?, false).await
}

pub fn optimized(state: &SessionState, plan: &LogicalPlan) -> Result<LogicalPlan> {
    if let Some(facts) = SessionFacts::of(state.config_options()) {
        facts.planner.plans.note_made();
    }
    crate::optimizer::optimize(state, plan).map_err(from_datafusion)
}

/// The physical form of an optimised plan of rows that a statement changes; and what a plan is made of ([`physical_plan_of_targets`]) that can be run
/// again for some of them, where that form cannot: mostly nobody changes them meanwhile.
pub async fn physical_plan_of_change(
    state: &SessionState,
    optimized: &LogicalPlan,
) -> Result<(Arc<dyn ExecutionPlan>, Option<LogicalPlan>)> {
    let facts = SessionFacts::of(state.config_options());
    let by_engine = facts.is_some_and(|facts| facts.settings.own_engine())
        && crate::engine::may_take_targets(optimized).map_err(from_datafusion)?;
    let again = by_engine.then(|| optimized.clone());
    Ok((physical_plan_of(state, optimized.clone(), by_engine).await?, again))
}

/// The physical form of an optimised plan, of operators that can be restricted to some rows of its targets.
pub async fn physical_plan_of_targets(
    facts: &Arc<SessionFacts>,
    optimized: LogicalPlan,
) -> Result<Arc<dyn ExecutionPlan>> {
    physical_plan_of(&facts.planner.state(facts), optimized, false).await
}

/// The physical form of an optimised plan. With `targets`, rows that the statement changes may be found by the engine, too.
async fn physical_plan_of(
    state: &SessionState,
    mut optimized: LogicalPlan,
    targets: bool,
) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(facts) = SessionFacts::of(state.config_options())
        && facts.settings.own_engine()
    {
        optimized = crate::engine::lower(state, &optimized, targets).map_err(from_datafusion)?;
        // DataFusion's rules have nothing to do where the engine does everything.
        if let Some(whole) = crate::engine::whole(&optimized) {
            return Ok(whole);
        }
    }
    let planner = DefaultPhysicalPlanner::with_extension_planners(vec![Arc::new(EngineNodes)]);
    planner.create_physical_plan(&optimized, state).await.map_err(from_datafusion)
}

/// Plans a query to be run. `request`: other statements may be served by its plan, or it by theirs.
pub(crate) async fn plan(
    facts: Arc<SessionFacts>,
    query: Box<ast::Query>,
    parameters: Vec<ArrayRef>,
    request: Option<Request>,
) -> Result<Planned> {
    let state = facts.planner.state(&facts);
    let names = OutputNames::of(&query);
    let (optimized, origins) = optimized_plan(&state, &facts, query, &parameters, request)?;
    let plan = physical_plan_of(&state, optimized, false).await?;
    let mut planned = planned(state, plan, &names);
    origins::mark(&mut planned.columns, &origins);
    Ok(planned)
}

/// Whether the plan of a statement may serve others.
pub(crate) fn keeps_plans(facts: &SessionFacts) -> bool {
    facts.parts.is_empty() && facts.settings.keeps_plans()
}

fn optimized_plan(
    state: &SessionState,
    facts: &Arc<SessionFacts>,
    query: Box<ast::Query>,
    parameters: &[ArrayRef],
    request: Option<Request>,
) -> Result<(LogicalPlan, Arc<Origins>)> {
    let plans = keeps_plans(facts).then_some(&facts.planner.plans);
    let mut request = request.filter(|_| plans.is_some());
    let own = plans.filter(|_| parameters.is_empty());
    // The same text again: its own plan is as good as any, and there already.
    if !request.as_ref().is_some_and(Request::is_found)
        && let Some(known) = own.and_then(|plans| plans.find(facts, &query))
    {
        return Ok(known);
    }
    if let Some(request) = &mut request
        && let Some(planned) = generic::planned(state, facts, request, Written::Query(&query))?
    {
        return Ok((planned.plan, planned.origins));
    }
    let plans = own;
    let as_written = plans.is_some().then(|| query.as_ref().clone());
    let logical = logical_plan(state, facts, query, parameter_fields(parameters), None)?;
    let logical = bind(logical, parameters)?;
    let origins = Arc::new(origins::of_plan(facts, &logical));
    let optimized = optimized(state, &logical)?;
    if let Some(request) = &request {
        generic::note_own(facts, request, &optimized);
    }
    if let (Some(plans), Some(query)) = (plans, as_written)
        && crate::plan_cache::may_keep(&logical).map_err(from_datafusion)?
    {
        plans.keep(facts, query, &optimized, origins.clone());
    }
    Ok((optimized, origins))
}

pub(crate) fn planned(state: State, plan: Arc<dyn ExecutionPlan>, names: &OutputNames) -> Planned {
    let canonical = canonical_schema(&plan.schema());
    let columns = columns(&canonical, names);
    let fields: Vec<Field> = canonical
        .fields()
        .iter()
        .zip(&columns)
        .map(|(field, column)| field.as_ref().clone().with_name(&column.name))
        .collect();
    Planned { plan, state, columns, schema: Arc::new(Schema::new(fields)), again: None }
}

/// Type oids of a plan's parameters, those given first, the rest as inferred, text where nothing tells.
pub fn parameter_oids(plan: &LogicalPlan, given: &[u32]) -> Result<Vec<u32>> {
    parameter_oids_of([plan], given)
}

/// As `parameter_oids`, of a statement with several plans.
pub fn parameter_oids_of<'p>(plans: impl IntoIterator<Item = &'p LogicalPlan>, given: &[u32]) -> Result<Vec<u32>> {
    let inferred = plans.into_iter().map(crate::with_queries::parameter_fields).collect::<Result<Vec<_>>>()?;
    let mut oids = given.to_vec();
    for (name, field) in inferred.into_iter().flatten() {
        let Some(index) = name.strip_prefix('$').and_then(|digits| digits.parse::<usize>().ok()) else {
            return Err(Error::new(SqlState::UNDEFINED_PARAMETER, format!("there is no parameter {name}")));
        };
        if index == 0 || index > usize::from(u16::MAX) {
            return Err(Error::new(SqlState::UNDEFINED_PARAMETER, format!("there is no parameter ${index}")));
        }
        if oids.len() < index {
            oids.resize(index, 0);
        }
        let slot = &mut oids[index - 1];
        if *slot == 0
            && let Some(field) = field
            && *field.data_type() != DataType::Null
        {
            *slot = match crate::types::declared_type(&field) {
                // Compared without regard to blanks at its end, and so with values that lose them on the way.
                Some(declared @ SqlType::Char { .. }) => declared.oid(),
                // Its values have several texts.
                Some(declared @ (SqlType::Uuid | SqlType::Jsonb)) => declared.oid(),
                // A column's bound says nothing about the values it is compared with: text and numeric go unbounded.
                _ => describe(&Field::new("", field.data_type().clone(), true)).1,
            };
        }
    }
    for oid in &mut oids {
        if *oid == 0 {
            *oid = 25;
        }
    }
    Ok(oids)
}

/// The fields that parameters of these oids are planned with.
pub fn fields_of_oids(oids: &[u32]) -> ParameterFields {
    oids.iter()
        .map(|&oid| {
            if let Some(element) = crate::types::element_of_oid(oid) {
                let item = Field::new_list_field(tidepool_table::arrow_type(element), true);
                return Some(Arc::new(Field::new("", DataType::List(Arc::new(item)), true)));
            }
            let sql_type = crate::types::sql_type_of_oid(oid)?;
            Some(Arc::new(Field::new("", tidepool_table::arrow_type(sql_type), true)))
        })
        .collect()
}
