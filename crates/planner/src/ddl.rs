//! `CREATE TABLE` and `CREATE TABLESPACE`: syntax to definitions.

use crate::facts::SessionFacts;
use crate::insert;
use crate::keys::KeyClause;
use crate::partitions;
use crate::references::{ForeignKeyClause, take_references};
use crate::resolve;
use crate::row_expressions;
use crate::sequences::{Generated, SequenceOptions};
use crate::statement::{AlterTablespaceAction, PartitionClauses, fold};
use crate::types::sql_type;
use datafusion::common::DFSchema;
use datafusion::logical_expr::{Expr, ExprSchemable};
use datafusion::sql::sqlparser::ast::{self, ColumnOption, GeneratedAs, TableConstraint};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use tidepool_base::{ByteSize, Error, Result, SqlState, SqlType};
use tidepool_database::{Config, NewPartition, RelationName, TablespaceChange};
use tidepool_device::CacheSize;
use tidepool_table::{CheckDef, ColumnDef, Identity, OnCommit, Partitioning, Placement, StorageParameters, TableDef};
use tidepool_tablespace::TablespaceConfig;

/// Columns of a table: PostgreSQL's limit.
const COLUMNS_MAX: usize = 1600;

/// Bytes of a name: PostgreSQL cuts longer ones with a notice, here they are refused, which is easier to notice.
pub(crate) const NAME_LEN_MAX: usize = 63;

/// A table to be made.
pub struct NewTable {
    pub name: RelationName,
    pub if_not_exists: bool,
    pub on_commit: OnCommit,
    pub columns: Vec<ColumnDef>,
    pub keys: Vec<KeyClause>,
    pub checks: Vec<CheckDef>,
    pub foreign_keys: Vec<ForeignKeyClause>,
    /// Columns with sequences of their own, which are still to be made.
    pub generated: Vec<Generated>,
    pub placement: Placement,
    pub parameters: StorageParameters,
    pub partitioning: Option<Partitioning>,
    pub partition: Option<NewPartition>,
    /// `CREATE TABLE AS`: the query, and the names that its columns take.
    pub query: Option<(Box<ast::Query>, Vec<String>)>,
}

fn check_name(name: &str, what: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::new(SqlState::SYNTAX_ERROR, "zero-length delimited identifier"));
    }
    if name.len() > NAME_LEN_MAX {
        return Err(Error::new(SqlState::NAME_TOO_LONG, format!("{what} name \"{name}\" is too long"))
            .with_detail(format!("A name has at most {NAME_LEN_MAX} bytes.")));
    }
    Ok(())
}

pub fn check_table_name(name: &str) -> Result<()> {
    check_name(name, "table")
}

/// Reads a `CREATE TABLE`.
pub fn new_table(
    facts: &Arc<SessionFacts>,
    mut table: ast::CreateTable,
    tablespace: Option<String>,
    partitions: &PartitionClauses,
) -> Result<NewTable> {
    let qualified = insert::object_name(&table.name)?;
    check_table_name(&qualified.name)?;
    let name = match table.temporary {
        true => resolve::new_temporary_name(facts, &qualified)?,
        false => resolve::new_name(facts, &qualified)?,
    };
    let on_commit = on_commit(&name, table.on_commit)?;
    if name.schema.is_temporary() && partitions.by.is_some() {
        return Err(Error::unsupported("temporary tables cannot be partitioned"));
    }
    if table.like.is_some() || table.inherits.is_some() || table.clone.is_some() {
        return Err(Error::unsupported("this form of CREATE TABLE is not supported")
            .with_hint("Inheritance and LIKE are not supported; CREATE TABLE AS and PARTITION OF are."));
    }
    let parent = match &partitions.of {
        None => None,
        Some((parent, clause)) => Some((partitions::parent(facts, parent)?, clause)),
    };
    if let Some((parent, _)) = parent.as_ref().filter(|_| name.schema.is_temporary()) {
        let parent = &parent.def.name;
        let message = format!("cannot create a temporary relation as partition of permanent relation \"{parent}\"");
        return Err(Error::new(SqlState::WRONG_OBJECT_TYPE, message));
    }
    // What is not said is as the partitioned table has it.
    let inherited = parent.as_ref().map(|(parent, _)| parent.def.parameters);
    let parameters = storage_parameters(&table.table_options, inherited.unwrap_or_default())?;

    let placement = match (&parent, tablespace) {
        (Some((parent, _)), None) => parent.placement.clone(),
        (_, tablespace) => {
            let tablespace = tablespace.unwrap_or_else(|| facts.settings.default_tablespace().to_owned());
            facts.planner.database().tablespaces().get(&tablespace)?;
            Placement { main: tablespace.clone(), delta: tablespace, columns: BTreeMap::new() }
        }
    };

    if let Some(query) = table.query.take() {
        if partitions.by.is_some() || parent.is_some() {
            return Err(Error::new(SqlState::SYNTAX_ERROR, "CREATE TABLE AS makes no partitions")
                .with_hint("Create the table, and then insert the query's rows."));
        }
        let mut names = Vec::with_capacity(table.columns.len());
        for column in &table.columns {
            if column.data_type != ast::DataType::Unspecified || !column.options.is_empty() {
                return Err(Error::new(SqlState::SYNTAX_ERROR, "CREATE TABLE AS takes column names only"));
            }
            names.push(fold(&column.name));
        }
        return Ok(NewTable {
            name,
            if_not_exists: table.if_not_exists,
            on_commit,
            columns: Vec::new(),
            keys: Vec::new(),
            checks: Vec::new(),
            foreign_keys: Vec::new(),
            generated: Vec::new(),
            placement,
            parameters,
            partitioning: None,
            partition: None,
            query: Some((query, names)),
        });
    }

    let mut columns = parent.as_ref().map_or_else(Vec::new, |(parent, _)| partitions::columns_of(&parent.def));
    let mut keys: Vec<KeyClause> = Vec::new();
    let mut generated = Vec::new();
    let mut conditions: Vec<Condition> = Vec::new();
    let mut foreign_keys: Vec<ForeignKeyClause> = Vec::new();
    for column in table.columns {
        let (column, own) = take_checks(column);
        conditions.extend(own);
        let (column, own) = take_references(column)?;
        foreign_keys.extend(own);
        if parent.is_some() {
            keys.extend(overridden(facts, &name.name, &mut columns, column)?);
            continue;
        }
        let position = columns.len();
        let (definition, own_keys, sequence) = column_def(facts, &name.name, column)?;
        generated.extend(sequence.map(|(options, identity)| Generated { column: position, options, identity }));
        keys.extend(own_keys);
        columns.push(definition);
    }
    check_columns(&columns)?;
    for constraint in table.constraints {
        match constraint {
            TableConstraint::PrimaryKey(key) => keys.push(KeyClause::of_primary_key(&key)?),
            TableConstraint::Unique(key) => keys.push(KeyClause::of_unique(&key)?),
            TableConstraint::ForeignKey(key) => foreign_keys.push(ForeignKeyClause::of(&key, None, None)?),
            TableConstraint::Check(check) => conditions.push((check.name.as_ref().map(fold), *check.expr)),
            _ => return Err(Error::unsupported("this table constraint is not supported")),
        }
    }
    keys.iter().try_for_each(|key| key.check(&columns))?;
    if keys.iter().filter(|key| key.is_primary()).count() > 1 {
        return Err(multiple_keys(&name.name));
    }
    // As PostgreSQL makes and lists them; those with a name keep it from those without.
    keys.sort_by_key(|key| (!key.is_primary(), key.name.is_none()));
    for key in keys.iter().filter(|key| key.is_primary()) {
        for column in &mut columns {
            column.nullable &= !key.columns.iter().any(|of_key| of_key.name == column.name);
        }
    }
    // Conditions name columns by number, which the table gives in order.
    for (column, number) in columns.iter_mut().zip(1..) {
        column.number = number;
    }
    let mut checks: Vec<CheckDef> = Vec::with_capacity(conditions.len());
    for check in parent.iter().flat_map(|(parent, _)| &parent.def.checks) {
        checks.push(CheckDef { oid: facts.planner.database().next_table_id().0, ..check.clone() });
    }
    if let Some((parent, _)) = &parent {
        renumber(&mut checks, &parent.def, &columns);
    }
    // Those with a name keep it from those without.
    conditions.sort_by_key(|(name, _)| name.is_none());
    for (constraint, condition) in conditions {
        let others: Vec<String> = checks.iter().map(|check| check.name.clone()).collect();
        if let Some(constraint) = constraint.as_ref().filter(|constraint| others.contains(constraint)) {
            return Err(Error::new(
                SqlState::DUPLICATE_OBJECT,
                format!("check constraint \"{constraint}\" already exists"),
            ));
        }
        checks.push(row_expressions::check(facts, &name.name, &columns, &others, constraint, &condition)?);
    }
    let partitioning = partitions.by.as_ref().map(|by| partitions::partitioning(by, &columns)).transpose()?;
    let partition = match &parent {
        None => None,
        Some((parent, clause)) => {
            Some(NewPartition { parent: parent.def.id, bound: partitions::bound(facts, &parent.def, clause)? })
        }
    };
    Ok(NewTable {
        name,
        if_not_exists: table.if_not_exists,
        on_commit,
        columns,
        keys,
        checks,
        foreign_keys,
        generated,
        placement,
        parameters,
        partitioning,
        partition,
        query: None,
    })
}

/// What becomes of a new table when transactions commit. 42P16 for one that is not temporary and would not stay.
fn on_commit(name: &RelationName, given: Option<ast::OnCommit>) -> Result<OnCommit> {
    if given.is_some() && !name.schema.is_temporary() {
        let message = "ON COMMIT can only be used on temporary tables";
        return Err(Error::new(SqlState::INVALID_TABLE_DEFINITION, message));
    }
    Ok(match given {
        None | Some(ast::OnCommit::PreserveRows) => OnCommit::PreserveRows,
        Some(ast::OnCommit::DeleteRows) => OnCommit::DeleteRows,
        Some(ast::OnCommit::Drop) => OnCommit::Drop,
    })
}

/// What a partition says of a column that it has from its table.
fn overridden(
    facts: &Arc<SessionFacts>,
    table: &str,
    columns: &mut [ColumnDef],
    mut column: ast::ColumnDef,
) -> Result<Vec<KeyClause>> {
    let name = fold(&column.name);
    let Some(inherited) = columns.iter_mut().find(|known| known.name == name) else {
        return Err(Error::new(SqlState::UNDEFINED_COLUMN, format!("column \"{name}\" does not exist")));
    };
    column.data_type = ast::DataType::Unspecified;
    let (own, keys, sequence) = typed_column_def(facts, table, column, Some(inherited.sql_type))?;
    if sequence.is_some() {
        return Err(Error::unsupported("identity columns are not supported on partitions"));
    }
    inherited.nullable &= own.nullable;
    if own.default.is_some() {
        inherited.default = own.default;
    }
    Ok(keys)
}

/// Constraints of a partitioned table, over a partition's columns, which are in the same places.
pub fn renumber(checks: &mut [CheckDef], parent: &TableDef, columns: &[ColumnDef]) {
    for number in checks.iter_mut().flat_map(|check| &mut check.columns) {
        if let Some(column) = parent.column_by_number(*number).and_then(|(position, _)| columns.get(position)) {
            *number = column.number;
        }
    }
}

/// Refuses too many columns and names that are taken twice.
pub fn check_columns(columns: &[ColumnDef]) -> Result<()> {
    if columns.len() > COLUMNS_MAX {
        return Err(Error::new(SqlState::TOO_MANY_COLUMNS, format!("tables can have at most {COLUMNS_MAX} columns")));
    }
    let mut names = HashSet::new();
    for column in columns {
        check_name(&column.name, "column")?;
        if !names.insert(&column.name) {
            return Err(Error::new(
                SqlState::DUPLICATE_COLUMN,
                format!("column \"{}\" specified more than once", column.name),
            ));
        }
    }
    Ok(())
}

fn multiple_keys(table: &str) -> Error {
    Error::new(
        SqlState::INVALID_TABLE_DEFINITION,
        format!("multiple primary keys for table \"{table}\" are not allowed"),
    )
}

fn storage_parameters(
    options: &ast::CreateTableOptions,
    mut parameters: StorageParameters,
) -> Result<StorageParameters> {
    let options = match options {
        ast::CreateTableOptions::None => &[][..],
        ast::CreateTableOptions::With(options)
        | ast::CreateTableOptions::Options(options)
        | ast::CreateTableOptions::Plain(options)
        | ast::CreateTableOptions::TableProperties(options) => options,
    };
    for option in options {
        match option {
            ast::SqlOption::KeyValue { key, value } => {
                let value = match value {
                    ast::Expr::Value(value) => {
                        value.value.clone().into_string().unwrap_or_else(|| value.value.to_string())
                    }
                    other => other.to_string(),
                };
                parameters.set(&fold(key), Some(&value))?;
            }
            ast::SqlOption::Ident(name) => parameters.set(&fold(name), Some("true"))?,
            other => parameters.set(&other.to_string(), None)?,
        }
    }
    Ok(parameters)
}

/// A `CHECK`'s name, if it was given one, and its condition.
type Condition = (Option<String>, ast::Expr);

/// Takes a column's `CHECK` constraints out of its options.
pub fn take_checks(mut column: ast::ColumnDef) -> (ast::ColumnDef, Vec<Condition>) {
    let mut conditions = Vec::new();
    column.options.retain(|option| match &option.option {
        ColumnOption::Check(check) => {
            let name = option.name.as_ref().or(check.name.as_ref());
            conditions.push((name.map(fold), check.expr.as_ref().clone()));
            false
        }
        _ => true,
    });
    (column, conditions)
}

/// The options of a column's own sequence, and whether it is an identity column's.
type OwnSequence = Option<(SequenceOptions, bool)>;

/// A column, the keys that it is by itself, and the sequence to be made for it.
pub fn column_def(
    facts: &Arc<SessionFacts>,
    table: &str,
    column: ast::ColumnDef,
) -> Result<(ColumnDef, Vec<KeyClause>, OwnSequence)> {
    typed_column_def(facts, table, column, None)
}

/// As `column_def`, perhaps of a column whose type is known.
fn typed_column_def(
    facts: &Arc<SessionFacts>,
    table: &str,
    column: ast::ColumnDef,
    known: Option<SqlType>,
) -> Result<(ColumnDef, Vec<KeyClause>, OwnSequence)> {
    let name = fold(&column.name);
    let serial = serial_type(&column.data_type);
    let sql_type = serial.or(known).map_or_else(|| sql_type(&column.data_type), Ok)?;
    let mut nullable = serial.map(|_| false);
    let mut default = None;
    let mut identity: Option<(Identity, SequenceOptions)> = None;
    let mut keys: Vec<KeyClause> = Vec::new();
    for option in column.options {
        match option.option {
            ColumnOption::Null => set_nullable(&mut nullable, true, &name)?,
            ColumnOption::NotNull => set_nullable(&mut nullable, false, &name)?,
            ColumnOption::Default(expr) => {
                if default.replace(expr).is_some() || serial.is_some() {
                    return Err(Error::new(
                        SqlState::SYNTAX_ERROR,
                        format!("multiple default values specified for column \"{name}\" of table \"{table}\""),
                    ));
                }
            }
            ColumnOption::PrimaryKey(key) => {
                keys.push(KeyClause::of_column(true, option.name.as_ref(), &name, key.characteristics.as_ref())?);
            }
            ColumnOption::Unique(key) => {
                let clause = KeyClause::of_column(false, option.name.as_ref(), &name, key.characteristics.as_ref())?;
                let nulls_not_distinct = key.nulls_distinct == ast::NullsDistinctOption::NotDistinct;
                keys.push(KeyClause { nulls_not_distinct, ..clause });
            }
            ColumnOption::Generated {
                generated_as: kind @ (GeneratedAs::Always | GeneratedAs::ByDefault),
                sequence_options,
                generation_expr: None,
                ..
            } => {
                let kind = if kind == GeneratedAs::Always { Identity::Always } else { Identity::ByDefault };
                let options = SequenceOptions::of_identity(sequence_options.as_deref().unwrap_or(&[]))?;
                if identity.replace((kind, options)).is_some() {
                    return Err(Error::new(
                        SqlState::SYNTAX_ERROR,
                        format!("multiple identity specifications for column \"{name}\" of table \"{table}\""),
                    ));
                }
                set_nullable(&mut nullable, false, &name)?;
            }
            ColumnOption::Generated { .. } | ColumnOption::Identity(_) => {
                return Err(Error::unsupported("generated columns are not supported"));
            }
            ColumnOption::Collation(collation) => {
                let collation = collation.0.last().and_then(|part| part.as_ident()).map(fold).unwrap_or_default();
                if !matches!(collation.as_str(), "c" | "C" | "posix" | "POSIX" | "default") {
                    return Err(Error::unsupported(format!("collation \"{collation}\" is not supported"))
                        .with_hint("Text is ordered by its bytes, which is collation \"C\"."));
                }
            }
            other => return Err(Error::unsupported(format!("column option {other} is not supported"))),
        }
    }
    if identity.is_some() && (default.is_some() || serial.is_some()) {
        return Err(Error::new(
            SqlState::SYNTAX_ERROR,
            format!("both default and identity specified for column \"{name}\" of table \"{table}\""),
        ));
    }
    if identity.is_some() && !matches!(sql_type, SqlType::SmallInt | SqlType::Integer | SqlType::BigInt) {
        return Err(Error::new(
            SqlState::INVALID_PARAMETER_VALUE,
            "identity column type must be smallint, integer, or bigint",
        ));
    }
    let kind = identity.as_ref().map(|identity| identity.0);
    let own = match identity {
        Some((_, options)) => Some((options, true)),
        None => serial.map(|_| (SequenceOptions::default(), false)),
    };
    let own = own.map(|(options, identity)| {
        (SequenceOptions { data_type: options.data_type.or(Some(sql_type)), ..options }, identity)
    });
    let default = match default {
        Some(expr) => Some(check_default(facts, &name, sql_type, expr)?),
        None => None,
    };
    let primary = keys.iter().any(KeyClause::is_primary);
    let nullable = nullable.unwrap_or(!primary);
    if primary && nullable {
        return Err(Error::new(
            SqlState::SYNTAX_ERROR,
            format!("conflicting NULL/NOT NULL declarations for column \"{name}\""),
        ));
    }
    Ok((ColumnDef { nullable, default, identity: kind, ..ColumnDef::new(name, sql_type) }, keys, own))
}

/// The type of a `serial` column.
fn serial_type(data_type: &ast::DataType) -> Option<SqlType> {
    let ast::DataType::Custom(name, _) = data_type else { return None };
    let [part] = name.0.as_slice() else { return None };
    match part.as_ident().map(fold)?.as_str() {
        "smallserial" | "serial2" => Some(SqlType::SmallInt),
        "serial" | "serial4" => Some(SqlType::Integer),
        "bigserial" | "serial8" => Some(SqlType::BigInt),
        _ => None,
    }
}

fn set_nullable(slot: &mut Option<bool>, nullable: bool, column: &str) -> Result<()> {
    match slot.replace(nullable) {
        Some(before) if before != nullable => Err(Error::new(
            SqlState::SYNTAX_ERROR,
            format!("conflicting NULL/NOT NULL declarations for column \"{column}\""),
        )),
        _ => Ok(()),
    }
}

/// Plans a default (and evaluates what is constant in it), so that an insert never meets one that cannot be.
pub fn check_default(
    facts: &Arc<SessionFacts>,
    column: &str,
    sql_type: tidepool_base::SqlType,
    mut expr: ast::Expr,
) -> Result<String> {
    use datafusion::logical_expr::simplify::SimplifyContext;
    use datafusion::optimizer::simplify_expressions::ExprSimplifier;
    crate::sequences::freeze(facts, &mut expr)?;
    crate::moments::settle(facts, &mut expr, &[]);
    crate::moments::settle_literal(facts, &mut expr, sql_type);
    let text = expr.to_string();
    crate::catalog::rewrite_expression(&mut expr);
    let state = facts.planner.state(facts);
    let planned = insert::default_expression(&state, facts, expr).map_err(|error| match error.code() {
        SqlState::UNDEFINED_COLUMN => Error::unsupported("cannot use column reference in DEFAULT expression"),
        _ => error,
    })?;
    if planned.any_column_refs() {
        return Err(Error::unsupported("cannot use column reference in DEFAULT expression"));
    }
    let typed = insert::default(&state, facts, Some(&text), sql_type)?;
    let literal = matches!(planned, Expr::Literal(..));
    let from = planned.get_type(&DFSchema::empty()).map_err(crate::errors::from_datafusion)?;
    if !literal
        && crate::types::type_of(&arrow::datatypes::Field::new("", from, true))
            .is_some_and(|from| from.is_text() != sql_type.is_text() && !sql_type.is_text())
    {
        return Err(Error::new(
            SqlState::DATATYPE_MISMATCH,
            format!("column \"{column}\" is of type {sql_type} but default expression is of another"),
        )
        .with_hint("You will need to rewrite or cast the expression."));
    }
    let context = SimplifyContext::builder()
        .with_config_options(Arc::clone(state.config_options()))
        .with_query_execution_start_time(state.execution_props().query_execution_start_time)
        .build();
    let plan = datafusion::logical_expr::LogicalPlanBuilder::empty(true)
        .project(vec![typed])
        .and_then(datafusion::logical_expr::LogicalPlanBuilder::build)
        .map_err(crate::errors::from_datafusion)?;
    // The whole analysis: literals are read with the column's type, which is where a bad one shows.
    let analyzed = crate::optimizer::analyze(&state, plan).map_err(crate::errors::from_datafusion)?;
    if let datafusion::logical_expr::LogicalPlan::Projection(projection) = analyzed {
        for expr in projection.expr {
            ExprSimplifier::new(context.clone()).simplify(expr).map_err(crate::errors::from_datafusion)?;
        }
    }
    Ok(text)
}

/// Reads an `ALTER TABLESPACE`.
pub fn tablespace_change(action: &AlterTablespaceAction) -> Result<TablespaceChange> {
    match action {
        AlterTablespaceAction::Set { options } => {
            let (mut size, mut cache) = (None, None);
            for (option, value) in options {
                let twice = match option.as_str() {
                    "size" => size.replace(value.parse::<ByteSize>()?.0).is_some(),
                    "cache" => cache.replace(value.parse::<CacheSize>()?).is_some(),
                    _ => return Err(unsettable(format!("tablespace parameter \"{option}\" cannot be changed"))),
                };
                if twice {
                    return Err(unsettable(format!("tablespace parameter \"{option}\" is given twice")));
                }
            }
            match (size, cache) {
                (size_bytes, Some(cache)) => Ok(TablespaceChange::Cache { cache, size_bytes }),
                (Some(bytes), None) => Ok(TablespaceChange::Size { bytes }),
                (None, None) => Err(unsettable("no tablespace parameter is given".to_owned())),
            }
        }
        AlterTablespaceAction::AddLocation { location, options } => {
            let mut profile = None;
            for (option, value) in options {
                if option != "profile" {
                    return Err(Error::new(
                        SqlState::INVALID_PARAMETER_VALUE,
                        format!("unrecognized parameter \"{option}\""),
                    )
                    .with_hint("A location has a profile; its room follows from its weight."));
                }
                profile = Some(value.clone());
            }
            Ok(TablespaceChange::AddLocation { stripe: location.parse()?, profile })
        }
        AlterTablespaceAction::DropLocation { location } => {
            Ok(TablespaceChange::DropLocation { location: location.parse()? })
        }
    }
}

fn unsettable(message: String) -> Error {
    Error::new(SqlState::INVALID_PARAMETER_VALUE, message).with_hint(
        "What can be set is the size of a tablespace, and the cache of a paged one: \
         ALTER TABLESPACE far SET (size = '8GB', cache = '25%').",
    )
}

/// Reads a `CREATE TABLESPACE`, whose profile is one of the configuration's or a preset.
pub fn tablespace(
    name: &str,
    location: &str,
    options: &[(String, String)],
    configuration: &Config,
) -> Result<TablespaceConfig> {
    check_name(name, "tablespace")?;
    if name.starts_with("pg_") {
        return Err(Error::new(SqlState::RESERVED_NAME, format!("unacceptable tablespace name \"{name}\""))
            .with_detail("The prefix \"pg_\" is reserved for system tablespaces."));
    }
    let mut config = TablespaceConfig {
        name: name.to_owned(),
        location: location.parse()?,
        size_bytes: None,
        profile: None,
        profiles: Vec::new(),
        huge_pages: true,
        populate_bytes: 0,
    };
    for (option, value) in options {
        match option.as_str() {
            "size" => config.size_bytes = Some(value.parse::<ByteSize>()?.0),
            "populate" => config.populate_bytes = value.parse::<ByteSize>()?.0,
            "profile" => (config.profile, config.profiles) = configuration.profiles(value, &config.location)?,
            "huge_pages" => {
                config.huge_pages = match value.to_ascii_lowercase().as_str() {
                    "on" | "true" | "1" => true,
                    "off" | "false" | "0" => false,
                    _ => {
                        return Err(Error::new(
                            SqlState::INVALID_PARAMETER_VALUE,
                            format!("invalid value for boolean option \"huge_pages\": {value}"),
                        ));
                    }
                }
            }
            _ => {
                return Err(Error::new(
                    SqlState::INVALID_PARAMETER_VALUE,
                    format!("unrecognized parameter \"{option}\""),
                )
                .with_hint("Tablespaces have size, profile, huge_pages and populate."));
            }
        }
    }
    config.check_populate()?;
    Ok(config)
}
