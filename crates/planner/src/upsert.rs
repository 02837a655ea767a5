//! `ON CONFLICT`: which keys decide, and what becomes of a row that has one of them.

use crate::change;
use crate::errors::from_datafusion;
use crate::facts::SessionFacts;
use crate::insert::{self, Conform};
use crate::query::{self, ParameterFields};
use crate::statement::fold;
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::{DFSchema, TableReference};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{EmptyRelation, Expr, LogicalPlan, LogicalPlanBuilder};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::sql::sqlparser::ast;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState, TableId};
use tidepool_database::text::TextSettings;
use tidepool_table::{IndexDef, TableDef};

/// What the row that was to be inserted is called.
const EXCLUDED: &str = "excluded";

/// `ON CONFLICT`, read off its syntax.
#[derive(Clone)]
pub struct Clause {
    arbiters: Vec<TableId>,
    update: Option<Update>,
}

#[derive(Clone)]
struct Update {
    /// The expression of each assigned column, by position.
    assigned: BTreeMap<usize, ast::Expr>,
    selection: Option<ast::Expr>,
}

/// A clause, planned.
#[derive(Debug)]
pub struct Plan {
    arbiters: Vec<TableId>,
    update: Option<UpdatePlan>,
}

#[derive(Debug)]
struct UpdatePlan {
    condition: Option<String>,
    /// Over the row that there is and the one that was to be inserted: the assigned columns' values, as they are
    /// written, then whether the row is to be changed, if there is a condition.
    values: LogicalPlan,
    positions: Vec<usize>,
    /// Over the changed row: what `RETURNING` gives back.
    returning: Option<LogicalPlan>,
}

/// A clause, ready for rows.
pub struct Upsert {
    pub arbiters: Vec<TableId>,
    pub update: Option<ReadyUpdate>,
}

pub struct ReadyUpdate {
    /// Its `WHERE`, as it was written.
    pub condition: Option<String>,
    values: Projection,
    positions: Vec<usize>,
    returning: Option<Projection>,
    conform: Conform,
    schema: SchemaRef,
}

impl Clause {
    /// 42P10 when no key has the columns, 42704 when no constraint has the name.
    pub fn read(def: &TableDef, clause: ast::OnConflict) -> Result<Clause> {
        let unique = |index: &&IndexDef| index.unique && !index.building;
        let arbiters: Vec<TableId> = match &clause.conflict_target {
            None => def.indexes.iter().filter(unique).map(|index| index.id).collect(),
            Some(ast::ConflictTarget::OnConstraint(name)) => {
                let name = insert::object_name(name)?.name;
                let key = def.index(&name).filter(|index| index.constraint.is_some());
                let key = key.ok_or_else(|| {
                    Error::new(
                        SqlState::UNDEFINED_OBJECT,
                        format!("constraint \"{name}\" for table \"{}\" does not exist", def.name),
                    )
                })?;
                vec![key.id]
            }
            Some(ast::ConflictTarget::Columns(columns)) => {
                let names: Vec<String> = columns.iter().map(fold).collect();
                let numbers: BTreeSet<u16> =
                    insert::positions(def, &names)?.into_iter().map(|position| def.columns[position].number).collect();
                let has = |index: &&IndexDef| {
                    index.columns.iter().map(|column| column.number).collect::<BTreeSet<_>>() == numbers
                };
                def.indexes.iter().filter(unique).filter(has).map(|index| index.id).collect()
            }
        };
        if arbiters.is_empty() && clause.conflict_target.is_some() {
            return Err(Error::new(
                SqlState::INVALID_COLUMN_REFERENCE,
                "there is no unique or exclusion constraint matching the ON CONFLICT specification",
            ));
        }
        let update = match clause.action {
            ast::OnConflictAction::DoNothing => None,
            ast::OnConflictAction::DoUpdate(_) if clause.conflict_target.is_none() => {
                return Err(Error::new(
                    SqlState::SYNTAX_ERROR,
                    "ON CONFLICT DO UPDATE requires inference specification or constraint name",
                )
                .with_hint("For example, ON CONFLICT (column_name)."));
            }
            ast::OnConflictAction::DoUpdate(update) => {
                Some(Update { assigned: change::assignments(def, update.assignments)?, selection: update.selection })
            }
        };
        Ok(Clause { arbiters, update })
    }

    /// Type oids of the parameters: those given, else of a column for one that is assigned to it as it stands.
    pub fn parameters(&self, def: &TableDef, oids: &mut Vec<u32>) {
        insert::settle_values(def, self.update.iter().flat_map(|update| &update.assigned), oids);
    }

    /// `alias` is what the table's columns are qualified with.
    pub fn plan(
        self,
        state: &SessionState,
        facts: &Arc<SessionFacts>,
        def: &TableDef,
        alias: &str,
        returning: Option<Vec<ast::SelectItem>>,
        parameters: ParameterFields,
    ) -> Result<Plan> {
        let Some(Update { assigned, selection }) = self.update else {
            return Ok(Plan { arbiters: self.arbiters, update: None });
        };
        let input = rows_of(def, &[alias, EXCLUDED])?;
        let positions: Vec<usize> = assigned.keys().copied().collect();
        let condition = selection.as_ref().map(ToString::to_string);
        let items = assigned.into_values().chain(selection).map(ast::SelectItem::UnnamedExpr).collect();
        let outputs = numbered(query::returned(state, facts, items, &input, 0, parameters.clone())?);
        let read = project(input, outputs)?;
        let mut written = insert::assigned(&read, 0, &positions, def)?;
        if condition.is_some() {
            written.push(Expr::Column(read.schema().qualified_field(positions.len()).into()));
        }
        let values = project(read, written)?;
        let returning = match returning {
            None => None,
            Some(items) => {
                let row = rows_of(def, &[alias])?;
                let outputs = numbered(query::returned(state, facts, items, &row, 0, parameters)?);
                Some(project(row, outputs)?)
            }
        };
        Ok(Plan { arbiters: self.arbiters, update: Some(UpdatePlan { condition, values, positions, returning }) })
    }
}

impl Plan {
    /// What it computes beside the rows that are to be inserted.
    pub fn plans(&self) -> impl Iterator<Item = &LogicalPlan> {
        self.update.iter().flat_map(|update| std::iter::once(&update.values).chain(&update.returning))
    }

    pub fn ready(
        &self,
        state: &SessionState,
        def: &TableDef,
        parameters: &[ArrayRef],
        settings: TextSettings,
    ) -> Result<Upsert> {
        let arbiters = self.arbiters.clone();
        let Some(UpdatePlan { condition, values, positions, returning }) = &self.update else {
            return Ok(Upsert { arbiters, update: None });
        };
        let ready = |plan: &LogicalPlan| Projection::of(state, query::bind(plan.clone(), parameters)?);
        let values = ready(values)?;
        // What is not assigned is as the table has it.
        let schema = def.arrow_schema();
        let mut fields: Vec<Field> = schema.fields().iter().map(|field| field.as_ref().clone()).collect();
        for (position, field) in positions.iter().zip(values.schema.fields()) {
            fields[*position] = field.as_ref().clone();
        }
        let conform = Conform::new(def, &Schema::new(fields), settings);
        let returning = returning.as_ref().map(ready).transpose()?;
        let (condition, positions) = (condition.clone(), positions.clone());
        let update = ReadyUpdate { condition, values, positions, returning, conform, schema };
        Ok(Upsert { arbiters, update: Some(update) })
    }
}

impl ReadyUpdate {
    /// What a row becomes because of another that has its key, constraints yet to be checked; `None` when its condition
    /// does not hold. Both are of all of the table's columns.
    pub fn apply(&self, existing: &RecordBatch, excluded: &RecordBatch) -> Result<Option<RecordBatch>> {
        let columns = existing.columns().iter().chain(excluded.columns()).cloned().collect();
        let values = self.values.evaluate(columns)?;
        if let Some(condition) = values.get(self.positions.len()) {
            let holds = condition.as_boolean_opt().is_some_and(|condition| condition.is_valid(0) && condition.value(0));
            if !holds {
                return Ok(None);
            }
        }
        let mut columns = existing.columns().to_vec();
        for (position, value) in self.positions.iter().zip(values) {
            columns[*position] = value;
        }
        let fields = self.schema.fields().iter().zip(&columns);
        let fields: Vec<Field> = fields
            .map(|(field, column)| {
                field.as_ref().clone().with_data_type(column.data_type().clone()).with_nullable(true)
            })
            .collect();
        let row = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(crate::errors::from_arrow)?;
        self.conform.apply(&row).map(Some)
    }

    /// What `RETURNING` gives back of a changed row, in `schema`.
    pub fn returned(&self, row: &RecordBatch, schema: &SchemaRef) -> Result<Option<RecordBatch>> {
        let Some(returning) = &self.returning else { return Ok(None) };
        let columns = returning.evaluate(row.columns().to_vec())?;
        let columns = columns
            .iter()
            .zip(schema.fields())
            .map(|(column, field)| arrow::compute::cast(column, field.data_type()))
            .collect::<std::result::Result<_, _>>()
            .map_err(crate::errors::from_arrow)?;
        let options = RecordBatchOptions::new().with_row_count(Some(1));
        RecordBatch::try_new_with_options(schema.clone(), columns, &options)
            .map(Some)
            .map_err(crate::errors::from_arrow)
    }
}

/// Rows of a table under some names beside each other, of which nothing is known.
fn rows_of(def: &TableDef, names: &[&str]) -> Result<LogicalPlan> {
    let schema = def.arrow_schema();
    let fields = names.iter().flat_map(|name| {
        let fields = schema.fields().iter();
        fields.map(|field| {
            let field = Arc::new(field.as_ref().clone().with_nullable(true));
            (Some(TableReference::bare(*name)), field)
        })
    });
    let schema = DFSchema::new_with_metadata(fields.collect(), Default::default()).map_err(from_datafusion)?;
    Ok(LogicalPlan::EmptyRelation(EmptyRelation { produce_one_row: false, schema: Arc::new(schema) }))
}

fn numbered(outputs: Vec<(String, Expr)>) -> Vec<Expr> {
    outputs.into_iter().enumerate().map(|(place, (_, expr))| expr.alias(format!("\u{1}{place}"))).collect()
}

fn project(input: LogicalPlan, outputs: Vec<Expr>) -> Result<LogicalPlan> {
    LogicalPlanBuilder::from(input).project(outputs).and_then(LogicalPlanBuilder::build).map_err(from_datafusion)
}

/// Projections one over the other, ready for rows.
struct Projection {
    /// The first ones first, each with the schema of its input.
    steps: Vec<(SchemaRef, Vec<Arc<dyn PhysicalExpr>>)>,
    /// Of its outputs.
    schema: SchemaRef,
}

impl Projection {
    /// 0A000 for a subquery.
    fn of(state: &SessionState, plan: LogicalPlan) -> Result<Projection> {
        let plan = crate::optimizer::analyze(state, plan).map_err(from_datafusion)?;
        let schema = Arc::new(plan.schema().as_arrow().clone());
        let mut steps = Vec::new();
        let mut rest = &plan;
        while let LogicalPlan::Projection(projection) = rest {
            let input = projection.input.schema();
            let expressions = (projection.expr.iter())
                .map(|expr| {
                    use datafusion::common::tree_node::TreeNode;
                    let is_query = |expr: &Expr| {
                        Ok(matches!(expr, Expr::ScalarSubquery(_) | Expr::InSubquery(_) | Expr::Exists(_)))
                    };
                    if expr.exists(is_query).map_err(from_datafusion)? {
                        return Err(Error::unsupported("subqueries in ON CONFLICT are not supported"));
                    }
                    state.create_physical_expr(expr.clone().unalias(), input).map_err(from_datafusion)
                })
                .collect::<Result<_>>()?;
            steps.push((Arc::new(input.as_arrow().clone()), expressions));
            rest = &projection.input;
        }
        steps.reverse();
        Ok(Projection { steps, schema })
    }

    /// Of one row.
    fn evaluate(&self, mut columns: Vec<ArrayRef>) -> Result<Vec<ArrayRef>> {
        for (schema, expressions) in &self.steps {
            let fields = schema.fields().iter().zip(&columns);
            let fields: Vec<Field> = fields
                .map(|(field, column)| {
                    field.as_ref().clone().with_data_type(column.data_type().clone()).with_nullable(true)
                })
                .collect();
            let options = RecordBatchOptions::new().with_row_count(Some(1));
            let batch = RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)
                .map_err(crate::errors::from_arrow)?;
            columns = (expressions.iter())
                .map(|expr| expr.evaluate(&batch).and_then(|value| value.into_array(1)).map_err(from_datafusion))
                .collect::<Result<_>>()?;
        }
        Ok(columns)
    }
}
