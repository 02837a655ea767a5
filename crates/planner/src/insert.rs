//! `INSERT` and what it shares with `CREATE TABLE AS` and `COPY FROM`: rows of a plan into a table, with PostgreSQL's
//! assignment casts and the table's defaults.

use crate::errors::{cross_database, from_datafusion};
use crate::facts::SessionFacts;
use crate::literal_rows;
use crate::query::{self, ParameterFields};
use crate::resolve::{self, Relation};
use crate::rounding;
use crate::statement::{Overriding, QualifiedName, fold, parse_expression};
use crate::types::{declared_type, type_of};
use crate::upsert::{self, Clause};
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::{DFSchema, TableReference};
use datafusion::execution::SessionState;
use datafusion::logical_expr::{Cast, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder};
use datafusion::sql::sqlparser::ast;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState, SqlType};
use tidepool_database::text::{TextReader, TextSettings};
use tidepool_table::{Identity, TableDef, TableVersion};

/// Positions of the columns named, or of all.
pub fn positions(def: &TableDef, columns: &[String]) -> Result<Vec<usize>> {
    if columns.is_empty() {
        return Ok((0..def.columns.len()).collect());
    }
    let mut positions = Vec::with_capacity(columns.len());
    for column in columns {
        let Some(position) = def.column_index(column) else {
            return Err(Error::new(
                SqlState::UNDEFINED_COLUMN,
                format!("column \"{column}\" of relation \"{}\" does not exist", def.name),
            ));
        };
        if positions.contains(&position) {
            return Err(Error::new(
                SqlState::DUPLICATE_COLUMN,
                format!("column \"{column}\" specified more than once"),
            ));
        }
        positions.push(position);
    }
    Ok(positions)
}

pub fn object_name(name: &ast::ObjectName) -> Result<QualifiedName> {
    let parts: Vec<String> = name.0.iter().filter_map(|part| part.as_ident().map(fold)).collect();
    match parts.as_slice() {
        [name] => Ok(QualifiedName { schema: None, name: name.clone() }),
        [schema, name] => Ok(QualifiedName { schema: Some(schema.clone()), name: name.clone() }),
        [database, schema, name] if database == crate::facts::DATABASE => {
            Ok(QualifiedName { schema: Some(schema.clone()), name: name.clone() })
        }
        _ => Err(cross_database(name)),
    }
}

/// What an `INSERT` is to do, read off its syntax.
pub struct Target {
    pub version: Arc<TableVersion>,
    pub columns: Vec<usize>,
    /// `None`: `DEFAULT VALUES`.
    source: Option<Box<ast::Query>>,
    overriding: Overriding,
    /// What `RETURNING` may qualify columns with.
    pub alias: String,
    returning: Option<Vec<ast::SelectItem>>,
    /// `ON CONFLICT`.
    conflict: Option<Clause>,
    /// The parameters', each an array of one; none where the statement is only described.
    values: Vec<ArrayRef>,
}

/// An `INSERT`, planned.
pub struct Planned {
    /// The rows, all of the table's columns in order and in its types, then what `RETURNING` asks for.
    pub plan: LogicalPlan,
    /// Names of the columns that `RETURNING` gives back.
    pub returning: Option<Vec<String>>,
    pub conflict: Option<upsert::Plan>,
}

pub fn read(facts: &Arc<SessionFacts>, insert: ast::Insert, overriding: Overriding) -> Result<Target> {
    if insert.overwrite || insert.replace_into || insert.partitioned.is_some() || !insert.assignments.is_empty() {
        return Err(Error::unsupported("this form of INSERT is not supported"));
    }
    let ast::TableObject::TableName(name) = &insert.table else {
        return Err(Error::unsupported("this form of INSERT is not supported"));
    };
    let name = object_name(name)?;
    if let Some(Relation::View(view)) = resolve::relation(facts, name.schema.as_deref(), &name.name) {
        return Err(Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("cannot insert into view \"{}\"", view.name),
        )
        .with_detail("Views cannot be written to.")
        .with_hint("Insert into the tables that it reads."));
    }
    let version = resolve::table(facts, &name)?;
    let columns: Vec<String> = insert
        .columns
        .iter()
        .map(|column| match column.0.as_slice() {
            [part] => part
                .as_ident()
                .map(fold)
                .ok_or_else(|| Error::unsupported("only plain column names can be inserted into")),
            _ => Err(Error::unsupported("only plain column names can be inserted into")),
        })
        .collect::<Result<_>>()?;
    let mut columns = positions(&version.def, &columns)?;
    let mut source = insert.source;
    if let Some(query) = &mut source {
        if let ast::SetExpr::Values(values) = query.body.as_mut() {
            let width = values.rows.first().map_or(0, |row| row.content.len());
            if values.rows.iter().any(|row| row.content.len() != width) {
                return Err(Error::new(SqlState::SYNTAX_ERROR, "VALUES lists must all be the same length"));
            }
            fit(&mut columns, width, !insert.columns.is_empty())?;
            for row in &mut values.rows {
                for (value, &column) in row.content.iter_mut().zip(&columns) {
                    let null = ast::Expr::value(ast::Value::Null);
                    let written = std::mem::replace(value, null.clone());
                    *value = match given(&version.def, column, written, overriding)? {
                        Some(written) => written,
                        // Generated with the rows, whatever stands here.
                        None if version.def.columns[column].identity.is_some()
                            && overriding == Overriding::UserValue =>
                        {
                            null
                        }
                        None => match &version.def.columns[column].default {
                            Some(text) => parse_expression(text)?,
                            None => null,
                        },
                    };
                }
            }
        }
    } else {
        columns.clear();
    }
    let alias = match &insert.table_alias {
        Some(alias) => fold(&alias.alias),
        None => version.def.name.clone(),
    };
    let conflict = match insert.on {
        None => None,
        Some(ast::OnInsert::OnConflict(clause)) => Some(Clause::read(&version.def, clause)?),
        Some(_) => return Err(Error::new(SqlState::SYNTAX_ERROR, "this form of INSERT is not PostgreSQL's")),
    };
    Ok(Target { version, columns, source, overriding, alias, returning: insert.returning, conflict, values: vec![] })
}

/// What is written for a column; `None` where it has its default. 428C9 for a value of what is always generated.
pub fn given(def: &TableDef, column: usize, value: ast::Expr, overriding: Overriding) -> Result<Option<ast::Expr>> {
    let definition = &def.columns[column];
    let generated = definition.identity.is_some() && overriding == Overriding::UserValue;
    if generated || is_default(&value) {
        return Ok(None);
    }
    if definition.identity == Some(Identity::Always) && overriding == Overriding::Nothing {
        return Err(always_generated(&definition.name));
    }
    Ok(Some(value))
}

/// The word `DEFAULT` in the place of a value.
pub fn is_default(value: &ast::Expr) -> bool {
    matches!(value, ast::Expr::Identifier(ident)
        if ident.quote_style.is_none() && ident.value.eq_ignore_ascii_case("default"))
}

fn always_generated(column: &str) -> Error {
    Error::new(SqlState::GENERATED_ALWAYS, format!("cannot insert a non-DEFAULT value into column \"{column}\""))
        .with_detail(format!("Column \"{column}\" is an identity column defined as GENERATED ALWAYS."))
        .with_hint("Use OVERRIDING SYSTEM VALUE to override.")
}

/// Without a column list, fewer values than columns leave the last ones to their defaults.
pub fn fit(columns: &mut Vec<usize>, width: usize, listed: bool) -> Result<()> {
    if width > columns.len() {
        return Err(Error::new(SqlState::SYNTAX_ERROR, "INSERT has more expressions than target columns"));
    }
    if width < columns.len() {
        if listed {
            return Err(Error::new(SqlState::SYNTAX_ERROR, "INSERT has more target columns than expressions"));
        }
        columns.truncate(width);
    }
    Ok(())
}

impl Target {
    /// What the parameters are.
    pub fn give(&mut self, values: &[ArrayRef]) {
        self.values = values.to_vec();
    }

    /// Gives parameters that `ON CONFLICT` assigns types, unless they have some.
    pub fn settle_parameters(&self, oids: &mut Vec<u32>) {
        if let Some(conflict) = &self.conflict {
            conflict.parameters(&self.version.def, oids);
        }
    }

    pub fn plan(
        mut self,
        state: &SessionState,
        facts: &Arc<SessionFacts>,
        parameters: ParameterFields,
    ) -> Result<Planned> {
        let returning = self.returning.take();
        let def = self.version.def.clone();
        let conflict = match self.conflict.take() {
            None => None,
            Some(clause) => {
                let parameters = parameters.clone();
                Some(clause.plan(state, facts, &def, &self.alias, returning.clone(), parameters)?)
            }
        };
        let plan = self.rows(state, facts, parameters.clone())?;
        match returning {
            None => Ok(Planned { plan, returning: None, conflict }),
            Some(items) => {
                let (plan, names) = query::returning(state, facts, items, plan, 0, def.columns.len(), parameters)?;
                Ok(Planned { plan, returning: Some(names), conflict })
            }
        }
    }

    fn rows(
        mut self,
        state: &SessionState,
        facts: &Arc<SessionFacts>,
        parameters: ParameterFields,
    ) -> Result<LogicalPlan> {
        let def = self.version.def.clone();
        let Some(query) = self.source.take() else {
            let row = LogicalPlanBuilder::empty(true).build().map_err(from_datafusion)?;
            return self.project(state, facts, row, &def);
        };
        let values = matches!(*query.body, ast::SetExpr::Values(_));
        let schema = values.then(|| {
            let columns = self.columns.iter().map(|&column| &def.columns[column]);
            Schema::new(columns.map(|column| value_field(&column.name, column.sql_type)).collect::<Vec<_>>())
        });
        let named = |&column: &usize| (def.columns[column].name.as_str(), def.columns[column].sql_type);
        let columns: Vec<_> = self.columns.iter().map(named).collect();
        let given = literal_rows::Given { fields: &parameters, values: &self.values };
        let plan = match literal_rows::plan(&query, &columns, facts.settings.shared_text_settings(), &given)? {
            Some(plan) => plan,
            None => {
                let query = typed_values(query, &columns);
                query::logical_plan(state, facts, query, parameters, schema)?
            }
        };
        let listed = self.columns.len() < def.columns.len();
        fit(&mut self.columns, plan.schema().fields().len(), listed)?;
        for column in self.columns.iter().map(|&column| &def.columns[column]).filter(|_| !values) {
            if column.identity == Some(Identity::Always) && self.overriding == Overriding::Nothing {
                return Err(always_generated(&column.name));
            }
        }
        self.project(state, facts, plan, &def)
    }

    fn project(
        &self,
        state: &SessionState,
        facts: &Arc<SessionFacts>,
        source: LogicalPlan,
        def: &TableDef,
    ) -> Result<LogicalPlan> {
        let values = assigned(&source, 0, &self.columns, def)?;
        let kept = |column: &usize| def.columns[*column].identity.is_none() || self.overriding != Overriding::UserValue;
        let mut given: BTreeMap<usize, Expr> =
            self.columns.iter().copied().zip(values).filter(|(column, _)| kept(column)).collect();
        let expressions = def
            .columns
            .iter()
            .enumerate()
            .map(|(position, column)| {
                let expr = match given.remove(&position) {
                    Some(expr) => expr,
                    None => default(state, facts, column.default.as_deref(), column.sql_type)?,
                };
                Ok(expr.alias_qualified(Some(TableReference::bare(self.alias.as_str())), &column.name))
            })
            .collect::<Result<Vec<_>>>()?;
        LogicalPlanBuilder::from(source)
            .project(expressions)
            .and_then(LogicalPlanBuilder::build)
            .map_err(from_datafusion)
    }
}

/// The rows of `VALUES` with casts to the types of the columns of numbers and texts that they fill: DataFusion casts no numbers that each
/// have a scale. A length is left to the writer, as an assignment does not cut.
fn typed_values(mut query: Box<ast::Query>, columns: &[(&str, SqlType)]) -> Box<ast::Query> {
    let ast::SetExpr::Values(values) = query.body.as_mut() else { return query };
    for row in &mut values.rows {
        for (value, (_, sql_type)) in row.content.iter_mut().zip(columns) {
            let is_plain =
                matches!(value, ast::Expr::Value(value) if !matches!(value.value, ast::Value::Placeholder(_)));
            let data_type = match sql_type {
                SqlType::UnconstrainedNumeric => ast::DataType::Numeric(ast::ExactNumberInfo::None),
                _ if is_plain => continue,
                SqlType::Numeric { precision, scale } => ast::DataType::Numeric(
                    ast::ExactNumberInfo::PrecisionAndScale(u64::from(*precision), i64::from(*scale)),
                ),
                SqlType::SmallInt => ast::DataType::Int2(None),
                SqlType::Integer => ast::DataType::Int4(None),
                SqlType::BigInt => ast::DataType::Int8(None),
                SqlType::Real => ast::DataType::Float4,
                SqlType::DoublePrecision => ast::DataType::Float8,
                SqlType::Text | SqlType::Varchar { .. } | SqlType::Char { .. } => ast::DataType::Text,
                _ => continue,
            };
            let written = std::mem::replace(value, ast::Expr::value(ast::Value::Null));
            *value = ast::Expr::Cast {
                kind: ast::CastKind::DoubleColon,
                expr: Box::new(ast::Expr::Nested(Box::new(written))),
                data_type,
                array: false,
                format: None,
            };
        }
    }
    query
}

/// A plan's outputs from `first` on, each as its column of the table takes it. 42804 where PostgreSQL casts nothing by
/// itself.
pub fn assigned(source: &LogicalPlan, first: usize, columns: &[usize], def: &TableDef) -> Result<Vec<Expr>> {
    let assign = |(index, &column): (usize, &usize)| {
        let expr = Expr::Column(source.schema().qualified_field(index).into());
        let target = &def.columns[column];
        let source_field = source.schema().field(index);
        if !assignable(source, index, source_field, target.sql_type) {
            let from = type_of(source_field).map_or_else(|| "record".to_owned(), |sql_type| sql_type.to_string());
            return Err(Error::new(
                SqlState::DATATYPE_MISMATCH,
                format!(
                    "column \"{}\" is of type {} but expression is of type {from}",
                    target.name,
                    plain(target.sql_type)
                ),
            )
            .with_hint("You will need to rewrite or cast the expression."));
        }
        let target_type = tidepool_table::arrow_type(target.sql_type);
        let same = *source_field.data_type() == target_type;
        let value = if same { expr } else { Expr::Cast(Cast::new(Box::new(expr), target_type)) };
        Ok(rounding::assigned(value, source_field, target.sql_type))
    };
    (first..).zip(columns).map(assign).collect()
}

/// The field that a value in `VALUES` is cast to. Lengths are the writer's to check: an assignment does not cut.
fn value_field(name: &str, sql_type: SqlType) -> Field {
    Field::new(name, tidepool_table::arrow_type(sql_type), true)
}

/// A type's name without its bounds, as in PostgreSQL's messages.
fn plain(sql_type: SqlType) -> String {
    let name = sql_type.to_string();
    name.split('(').next().unwrap_or(&name).to_owned()
}

/// Whether PostgreSQL casts from the source to the column's type by itself in an assignment.
fn assignable(plan: &LogicalPlan, index: usize, source: &Field, target: SqlType) -> bool {
    let Some(from) = crate::types::marked_type(source).or_else(|| type_of(source)) else { return false };
    *source.data_type() == DataType::Null
        || assignable_types(from, target)
        || from.is_text() && untyped_output(plan, index)
        || from == SqlType::Text && (target.is_json() || target == SqlType::Uuid) && is_item(plan, index)
}

/// Whether PostgreSQL casts values of one type to another by itself in an assignment.
pub fn assignable_types(from: SqlType, target: SqlType) -> bool {
    if target.is_text() && !target.is_json() && target != SqlType::Uuid {
        return true;
    }
    let number = |sql_type: SqlType| {
        matches!(
            sql_type,
            SqlType::SmallInt
                | SqlType::Integer
                | SqlType::BigInt
                | SqlType::Real
                | SqlType::DoublePrecision
                | SqlType::Numeric { .. }
                | SqlType::UnconstrainedNumeric
        )
    };
    let time =
        |sql_type: SqlType| matches!(sql_type, SqlType::Date | SqlType::Timestamp { .. } | SqlType::TimestampTz { .. });
    if number(from) && number(target) || time(from) && time(target) {
        return true;
    }
    if from.is_text() {
        return from == target || from.is_json() && target.is_json();
    }
    std::mem::discriminant(&from) == std::mem::discriminant(&target)
}

/// Whether an output is an item of an array. Items of `json[]` and `uuid[]` lose their type on the way; they are read again when they are
/// written.
fn is_item(plan: &LogicalPlan, index: usize) -> bool {
    match plan {
        LogicalPlan::Unnest(_) => true,
        LogicalPlan::Projection(projection) => match projection.expr.get(index).map(|expr| expr.clone().unalias()) {
            Some(Expr::Column(column)) => {
                let place = projection.input.schema().maybe_index_of_column(&column);
                place.is_some_and(|place| is_item(&projection.input, place))
            }
            _ => false,
        },
        LogicalPlan::Sort(_) | LogicalPlan::Limit(_) | LogicalPlan::Filter(_) | LogicalPlan::SubqueryAlias(_) => {
            plan.inputs().first().is_some_and(|input| is_item(input, index))
        }
        _ => false,
    }
}

/// Whether an output is a literal or parameter that nothing has given a type.
fn untyped_output(plan: &LogicalPlan, index: usize) -> bool {
    match plan {
        LogicalPlan::Projection(projection) => match projection.expr.get(index).map(|expr| expr.clone().unalias()) {
            Some(Expr::Literal(..) | Expr::Placeholder(_)) => true,
            Some(Expr::Column(column)) => match projection.input.schema().maybe_index_of_column(&column) {
                Some(index) => untyped_output(&projection.input, index),
                None => false,
            },
            _ => false,
        },
        LogicalPlan::Values(_) => true,
        LogicalPlan::Sort(_) | LogicalPlan::Limit(_) | LogicalPlan::SubqueryAlias(_) => {
            plan.inputs().first().is_some_and(|input| untyped_output(input, index))
        }
        LogicalPlan::Union(union) => union.inputs.iter().all(|input| untyped_output(input, index)),
        _ => false,
    }
}

/// A column's default as an expression of the column's type.
pub fn default(state: &SessionState, facts: &Arc<SessionFacts>, text: Option<&str>, sql_type: SqlType) -> Result<Expr> {
    let target = tidepool_table::arrow_type(sql_type);
    let Some(text) = text else {
        return Ok(Expr::Cast(Cast::new(Box::new(crate::casts::null()), target)));
    };
    let expr = default_expression(state, facts, parse_expression(text)?)?;
    let (_, known) = expr.to_field(&DFSchema::empty()).map_err(from_datafusion)?;
    let same = *known.data_type() == target;
    let value = if same { expr } else { Expr::Cast(Cast::new(Box::new(expr), target)) };
    Ok(rounding::assigned(value, &known, sql_type))
}

/// Plans an expression that refers to no columns.
pub fn default_expression(state: &SessionState, facts: &Arc<SessionFacts>, expr: ast::Expr) -> Result<Expr> {
    let mut query = crate::statement::parse_query("SELECT NULL")?;
    if let ast::SetExpr::Select(select) = query.body.as_mut() {
        select.projection = vec![ast::SelectItem::UnnamedExpr(expr)];
    }
    let plan = query::logical_plan(state, facts, Box::new(query), Vec::new(), None)?;
    match plan {
        LogicalPlan::Projection(mut projection) if matches!(*projection.input, LogicalPlan::EmptyRelation(_)) => {
            match projection.expr.pop() {
                Some(expr) => Ok(expr.unalias()),
                None => Err(Error::internal("a default has no expression")),
            }
        }
        _ => Err(Error::unsupported("this default expression is not supported")),
    }
}

/// Makes batches of a plan what a table's writer takes: validates what Arrow's types do not tell apart.
pub struct Conform {
    schema: SchemaRef,
    /// Columns whose texts are read, or whose timestamps are rounded, with the declared type.
    fitted: Vec<(usize, SqlType)>,
    settings: TextSettings,
}

impl Conform {
    pub fn new(def: &TableDef, plan_schema: &Schema, settings: TextSettings) -> Conform {
        let columns = def.columns.iter().enumerate().zip(plan_schema.fields());
        let fitted = columns
            .filter(|((_, column), field)| {
                let checked = match column.sql_type {
                    SqlType::Uuid | SqlType::Json | SqlType::Jsonb | SqlType::Char { .. } => true,
                    SqlType::Varchar { length_max } => length_max.is_some(),
                    sql_type => sql_type.rounds_to().is_some(),
                };
                checked && declared_type(field) != Some(column.sql_type)
            })
            .map(|((position, column), _)| (position, column.sql_type))
            .collect();
        Conform { schema: def.arrow_schema(), fitted, settings }
    }

    pub fn apply(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let mut columns: Vec<ArrayRef> = batch.columns().to_vec();
        for &(position, sql_type) in &self.fitted {
            columns[position] = self.fitted(&columns[position], sql_type)?;
        }
        for (column, field) in columns.iter_mut().zip(self.schema.fields()) {
            if column.data_type() != field.data_type() {
                *column = crate::numerics::cast(column, field.data_type()).map_err(from_datafusion)?;
            }
        }
        // Nullability is the writer's to check, with PostgreSQL's message; a schema that forbids it would come first.
        let fields: Vec<Field> =
            self.schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true)).collect();
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).map_err(crate::errors::from_arrow)
    }

    fn fitted(&self, column: &ArrayRef, sql_type: SqlType) -> Result<ArrayRef> {
        if sql_type.rounds_to().is_some() {
            let target = tidepool_table::arrow_type(sql_type);
            let times = crate::numerics::cast(column, &target).map_err(from_datafusion)?;
            return Ok(tidepool_database::rounded(&times, sql_type).unwrap_or(times));
        }
        let texts = cast_with_options(column, &DataType::Utf8View, &CastOptions::default())
            .map_err(crate::errors::from_arrow)?;
        let view = texts.as_string_view();
        let fits = |text: &str| match sql_type {
            SqlType::Varchar { length_max: Some(length) } => text.len() <= length as usize,
            SqlType::Char { length } => text.len() <= length as usize && !text.ends_with(' '),
            _ => false,
        };
        if view.iter().flatten().all(fits) {
            return Ok(texts);
        }
        let mut reader = TextReader::new(sql_type, &self.settings);
        for row in 0..view.len() {
            if view.is_null(row) { reader.append_null() } else { reader.append(view.value(row))? }
        }
        Ok(reader.finish())
    }
}

/// Type oids of the parameters that stand alone in a `VALUES` list: those given, else the columns'.
pub fn value_parameters(insert: &ast::Insert, column_oids: &[u32], given: &[u32]) -> Vec<u32> {
    let mut oids = given.to_vec();
    let Some(source) = &insert.source else { return oids };
    let ast::SetExpr::Values(values) = source.body.as_ref() else { return oids };
    for row in &values.rows {
        for (value, &oid) in row.content.iter().zip(column_oids) {
            settle_parameter(&mut oids, value, oid);
        }
    }
    oids
}

/// Gives parameters that stand alone the types of the columns that they are assigned to, by position, unless they have some.
pub fn settle_values<'v>(
    def: &TableDef,
    values: impl IntoIterator<Item = (&'v usize, &'v ast::Expr)>,
    oids: &mut Vec<u32>,
) {
    for (position, value) in values {
        settle_parameter(oids, value, def.columns[*position].sql_type.oid());
    }
}

/// Gives a parameter that stands alone a type, unless it has one.
fn settle_parameter(oids: &mut Vec<u32>, value: &ast::Expr, oid: u32) {
    if let ast::Expr::Value(value) = value
        && let ast::Value::Placeholder(name) = &value.value
        && let Some(index @ 1..=65_535) = name.strip_prefix('$').and_then(|digits| digits.parse::<usize>().ok())
    {
        if oids.len() < index {
            oids.resize(index, 0);
        }
        if oids[index - 1] == 0 {
            oids[index - 1] = oid;
        }
    }
}
