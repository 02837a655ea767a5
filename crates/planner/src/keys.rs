//! Keys and indexes as statements write them, made into what the database takes.

use crate::statement::fold;
use datafusion::sql::sqlparser::ast;
use tidepool_base::{Error, Result, SqlState};
use tidepool_database::NewIndex;
use tidepool_table::{ColumnDef, IndexColumn, TableDef};

/// `PRIMARY KEY`, `UNIQUE` or an index, columns by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyClause {
    pub name: Option<String>,
    /// It is a constraint: whether `PRIMARY KEY`.
    pub constraint: Option<bool>,
    pub unique: bool,
    pub columns: Vec<KeyColumnClause>,
    pub nulls_not_distinct: bool,
    pub tablespace: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyColumnClause {
    pub name: String,
    pub descending: bool,
    pub nulls_first: bool,
}

impl KeyColumnClause {
    pub fn ascending(name: String) -> KeyColumnClause {
        KeyColumnClause { name, descending: false, nulls_first: false }
    }
}

/// 0A000.
pub fn deferrable() -> Error {
    Error::unsupported("deferrable constraints are not supported")
        .with_hint("Constraints are checked as rows are written.")
}

impl KeyClause {
    /// A constraint of `CREATE TABLE`.
    fn new(
        primary: bool,
        name: Option<&ast::Ident>,
        columns: Vec<KeyColumnClause>,
        characteristics: Option<&ast::ConstraintCharacteristics>,
    ) -> Result<KeyClause> {
        if let Some(characteristics) = characteristics {
            let deferred = matches!(characteristics.initially, Some(ast::DeferrableInitial::Deferred));
            if characteristics.deferrable == Some(true) || deferred {
                return Err(deferrable());
            }
        }
        Ok(KeyClause {
            name: name.map(fold),
            constraint: Some(primary),
            unique: true,
            columns,
            nulls_not_distinct: false,
            tablespace: None,
        })
    }

    pub fn of_primary_key(key: &ast::PrimaryKeyConstraint) -> Result<KeyClause> {
        KeyClause::new(true, key.name.as_ref(), plain_columns(&key.columns)?, key.characteristics.as_ref())
    }

    pub fn of_unique(key: &ast::UniqueConstraint) -> Result<KeyClause> {
        let clause =
            KeyClause::new(false, key.name.as_ref(), plain_columns(&key.columns)?, key.characteristics.as_ref())?;
        Ok(KeyClause { nulls_not_distinct: key.nulls_distinct == ast::NullsDistinctOption::NotDistinct, ..clause })
    }

    /// Of one column, after its type.
    pub fn of_column(
        primary: bool,
        name: Option<&ast::Ident>,
        column: &str,
        characteristics: Option<&ast::ConstraintCharacteristics>,
    ) -> Result<KeyClause> {
        KeyClause::new(primary, name, vec![KeyColumnClause::ascending(column.to_owned())], characteristics)
    }

    pub fn is_primary(&self) -> bool {
        self.constraint == Some(true)
    }

    fn what(&self) -> &'static str {
        match self.constraint {
            Some(true) => "primary key constraint",
            Some(false) => "unique constraint",
            None => "index",
        }
    }

    /// Refuses columns that are not there, or there twice.
    pub fn check(&self, columns: &[ColumnDef]) -> Result<()> {
        for (place, column) in self.columns.iter().enumerate() {
            let name = &column.name;
            if !columns.iter().any(|known| known.name == *name) {
                let named = if self.constraint.is_some() { " named in key" } else { "" };
                return Err(Error::new(SqlState::UNDEFINED_COLUMN, format!("column \"{name}\"{named} does not exist")));
            }
            if self.constraint.is_some() && self.columns[..place].iter().any(|other| other.name == *name) {
                return Err(Error::new(
                    SqlState::DUPLICATE_COLUMN,
                    format!("column \"{name}\" appears twice in {}", self.what()),
                ));
            }
        }
        if self.columns.len() > COLUMNS_MAX {
            return Err(Error::new(
                SqlState::TOO_MANY_COLUMNS,
                format!("cannot use more than {COLUMNS_MAX} columns in an index"),
            ));
        }
        Ok(())
    }

    /// As the database takes it.
    pub fn resolve(&self, table: &TableDef) -> Result<NewIndex> {
        self.check(&table.columns)?;
        let number = |column: &KeyColumnClause| {
            let of_table = table.columns.iter().find(|known| known.name == column.name)?;
            Some(IndexColumn {
                number: of_table.number,
                descending: column.descending,
                nulls_first: column.nulls_first,
            })
        };
        if let Some(name) = &self.name
            && self.constraint.is_some()
            && crate::keys::constraint_names(table).contains(name)
        {
            return Err(taken(name, &table.name));
        }
        Ok(NewIndex {
            name: self.name.clone(),
            columns: self.columns.iter().filter_map(number).collect(),
            unique: self.unique,
            nulls_not_distinct: self.nulls_not_distinct,
            primary: self.constraint,
            tablespace: self.tablespace.clone(),
            partition_of: None,
        })
    }
}

/// PostgreSQL's limit.
const COLUMNS_MAX: usize = 32;

fn plain_columns(columns: &[ast::IndexColumn]) -> Result<Vec<KeyColumnClause>> {
    let plain = |column: &ast::IndexColumn| match &column.column.expr {
        ast::Expr::Identifier(ident) => Ok(KeyColumnClause::ascending(fold(ident))),
        _ => Err(Error::new(SqlState::SYNTAX_ERROR, "a key is made of plain columns")),
    };
    columns.iter().map(plain).collect()
}

/// Names of a table's constraints.
pub fn constraint_names(def: &TableDef) -> Vec<String> {
    let keys = def.indexes.iter().filter(|index| index.constraint.is_some()).map(|index| index.name.clone());
    let foreign = def.foreign_keys.iter().flat_map(|key| key.names().cloned());
    def.checks.iter().map(|check| check.name.clone()).chain(keys).chain(foreign).collect()
}

/// 42710.
pub fn taken(constraint: &str, table: &str) -> Error {
    Error::new(
        SqlState::DUPLICATE_OBJECT,
        format!("constraint \"{constraint}\" for relation \"{table}\" already exists"),
    )
}
