//! Foreign keys as statements write them, made into what the database takes, and what the database asks of SQL for them.

use crate::catalog::quote_identifier;
use crate::facts::SessionFacts;
use crate::insert::{self, Conform};
use crate::resolve::{self, Relation};
use crate::row_expressions::{Checks, RowExpressions};
use crate::statement::{QualifiedName, fold};
use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Field, Schema};
use datafusion::sql::sqlparser::ast::{self, ColumnOption};
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState, TableId};
use tidepool_database::{NewForeignKey, RowChecks, RowRules};
use tidepool_table::{ColumnDef, ReferentialAction, TableDef};

/// `FOREIGN KEY`, columns by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignKeyClause {
    pub name: Option<String>,
    pub columns: Vec<String>,
    pub referenced: QualifiedName,
    /// None: those of the primary key.
    pub referenced_columns: Vec<String>,
    pub match_full: bool,
    pub on_delete: ReferentialAction,
    pub on_update: ReferentialAction,
    pub not_valid: bool,
    pub deferrable: bool,
    pub initially_deferred: bool,
}

impl ForeignKeyClause {
    /// A constraint of `CREATE TABLE`, of a table or, with `column`, after a column's type.
    pub fn of(key: &ast::ForeignKeyConstraint, name: Option<&ast::Ident>, column: Option<&str>) -> Result<Self> {
        let action = |action: Option<ast::ReferentialAction>| match action {
            None | Some(ast::ReferentialAction::NoAction) => ReferentialAction::NoAction,
            Some(ast::ReferentialAction::Restrict) => ReferentialAction::Restrict,
            Some(ast::ReferentialAction::Cascade) => ReferentialAction::Cascade,
            Some(ast::ReferentialAction::SetNull) => ReferentialAction::SetNull,
            Some(ast::ReferentialAction::SetDefault) => ReferentialAction::SetDefault,
        };
        let match_full = match key.match_kind {
            None | Some(ast::ConstraintReferenceMatchKind::Simple) => false,
            Some(ast::ConstraintReferenceMatchKind::Full) => true,
            Some(ast::ConstraintReferenceMatchKind::Partial) => return Err(match_partial()),
        };
        let (deferrable, initially_deferred) = match &key.characteristics {
            None => (false, false),
            Some(given) => {
                if given.enforced == Some(false) {
                    return Err(Error::unsupported("NOT ENFORCED constraints are not supported"));
                }
                let deferred = matches!(given.initially, Some(ast::DeferrableInitial::Deferred));
                deferrability(given.deferrable, deferred)?
            }
        };
        let columns = match column {
            Some(column) => vec![column.to_owned()],
            None => key.columns.iter().map(fold).collect(),
        };
        Ok(ForeignKeyClause {
            name: name.or(key.name.as_ref()).map(fold),
            columns,
            referenced: insert::object_name(&key.foreign_table)?,
            referenced_columns: key.referred_columns.iter().map(fold).collect(),
            match_full,
            on_delete: action(key.on_delete),
            on_update: action(key.on_update),
            not_valid: false,
            deferrable,
            initially_deferred,
        })
    }

    /// As the database takes it. `def` is the table's that is to have it.
    pub fn resolve(&self, facts: &Arc<SessionFacts>, def: &TableDef) -> Result<NewForeignKey> {
        let name = &self.referenced;
        if let Some(Relation::View(_) | Relation::Sequence(_) | Relation::System(_)) =
            resolve::relation(facts, name.schema.as_deref(), &name.name)
        {
            return Err(Error::new(
                SqlState::WRONG_OBJECT_TYPE,
                format!("referenced relation \"{}\" is not a table", name.name),
            ));
        }
        let parent = resolve::table(facts, name)?;
        Ok(NewForeignKey {
            name: self.name.clone(),
            columns: numbers(&self.columns, &def.columns)?,
            referenced: parent.def.id,
            referenced_columns: numbers(&self.referenced_columns, &parent.def.columns)?,
            match_full: self.match_full,
            on_delete: self.on_delete,
            on_update: self.on_update,
            not_valid: self.not_valid,
            deferrable: self.deferrable,
            initially_deferred: self.initially_deferred,
        })
    }
}

fn numbers(names: &[String], columns: &[ColumnDef]) -> Result<Vec<u16>> {
    let number = |name: &String| {
        let column = columns.iter().find(|column| column.name == *name);
        column.map(|column| column.number).ok_or_else(|| {
            Error::new(
                SqlState::UNDEFINED_COLUMN,
                format!("column \"{name}\" referenced in foreign key constraint does not exist"),
            )
        })
    };
    names.iter().map(number).collect()
}

/// 0A000.
pub fn match_partial() -> Error {
    Error::unsupported("MATCH PARTIAL not yet implemented")
}

/// Whether a constraint is deferrable, and deferred from the beginning. 42601 when it is to be deferred and not to be
/// deferrable.
pub fn deferrability(deferrable: Option<bool>, deferred: bool) -> Result<(bool, bool)> {
    if deferred && deferrable == Some(false) {
        return Err(Error::new(SqlState::SYNTAX_ERROR, "constraint declared INITIALLY DEFERRED must be DEFERRABLE"));
    }
    Ok((deferrable.unwrap_or(deferred), deferred))
}

/// Takes a column's `REFERENCES` out of its options.
pub fn take_references(mut column: ast::ColumnDef) -> Result<(ast::ColumnDef, Vec<ForeignKeyClause>)> {
    let name = fold(&column.name);
    let mut keys = Vec::new();
    for option in &column.options {
        if let ColumnOption::ForeignKey(key) = &option.option {
            keys.push(ForeignKeyClause::of(key, option.name.as_ref(), Some(&name))?);
        }
    }
    column.options.retain(|option| !matches!(option.option, ColumnOption::ForeignKey(_)));
    Ok((column, keys))
}

/// What SQL tells of rows that change because others do.
pub struct Rules {
    pub facts: Arc<SessionFacts>,
}

impl RowRules for Rules {
    fn checks(&self, table: &Arc<TableDef>) -> Result<Arc<dyn RowChecks>> {
        Ok(Arc::new(Checks::of(&self.facts, table)?))
    }

    fn defaults(&self, table: &Arc<TableDef>, column: usize, rows: usize) -> Result<ArrayRef> {
        let column = &table.columns[column];
        let default = column.default.clone().unwrap_or_else(|| "NULL".to_owned());
        let what = "default expression";
        let expressions =
            RowExpressions::plan(&self.facts, &table.name, &[], &[(default, Some(column.sql_type))], what)?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let none = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), Vec::new(), &options);
        let values = conform(&self.facts, column)(expressions.evaluate(&none.map_err(crate::errors::from_arrow)?)?)?;
        values.into_iter().next().ok_or_else(|| Error::internal("a default has no value"))
    }
}

/// What an expression's values need to be a column's: the checks of an assignment.
pub fn conform(facts: &SessionFacts, column: &ColumnDef) -> impl Fn(Vec<ArrayRef>) -> Result<Vec<ArrayRef>> + use<> {
    let column = ColumnDef { nullable: true, ..column.clone() };
    let def = TableDef::new(TableId(0), "", vec![column.clone()], Vec::new());
    let values = Field::new(&column.name, tidepool_table::arrow_type(column.sql_type), true);
    let schema = Arc::new(Schema::new(vec![values]));
    let conform = Conform::new(&def, &schema, facts.settings.text_settings());
    move |columns| {
        let options = RecordBatchOptions::new().with_row_count(columns.first().map(|column| column.len()));
        let batch =
            RecordBatch::try_new_with_options(schema.clone(), columns, &options).map_err(crate::errors::from_arrow)?;
        Ok(conform.apply(&batch)?.columns().to_vec())
    }
}

/// The constraint as `ALTER TABLE` takes it.
pub fn definition(facts: &SessionFacts, table: &TableDef, key: &tidepool_table::ForeignKeyDef) -> String {
    let list = |def: &TableDef, numbers: &[u16]| {
        let names = def.positions(numbers).into_iter().map(|position| quote_identifier(&def.columns[position].name));
        names.collect::<Vec<_>>().join(", ")
    };
    let parent = facts.version.table_of_id(key.referenced);
    let name = crate::catalog::relation_text(facts, key.referenced.0).unwrap_or_default();
    let referenced = parent.map_or_else(String::new, |parent| list(&parent.def, &key.referenced_columns));
    let mut text = format!("FOREIGN KEY ({}) REFERENCES {name}({referenced})", list(table, &key.columns));
    if key.match_full {
        text.push_str(" MATCH FULL");
    }
    for (when, action) in [("UPDATE", key.on_update), ("DELETE", key.on_delete)] {
        if action != ReferentialAction::NoAction {
            text.push_str(&format!(" ON {when} {}", rule(action)));
        }
    }
    if key.deferrable {
        text.push_str(" DEFERRABLE");
    }
    if key.initially_deferred {
        text.push_str(" INITIALLY DEFERRED");
    }
    if key.not_valid {
        text.push_str(" NOT VALID");
    }
    text
}

/// An action as the standard names it.
pub fn rule(action: ReferentialAction) -> &'static str {
    match action {
        ReferentialAction::NoAction => "NO ACTION",
        ReferentialAction::Restrict => "RESTRICT",
        ReferentialAction::Cascade => "CASCADE",
        ReferentialAction::SetNull => "SET NULL",
        ReferentialAction::SetDefault => "SET DEFAULT",
    }
}
