//! Tables made without SQL.

use crate::Tidepool;
use tidepool_base::{Error, Result, SqlState, SqlType};
use tidepool_database::{Database, NewIndex, RelationName};
use tidepool_table::{ColumnDef, IndexColumn, MergePolicy, Placement, StorageParameters, TableDef};

/// A table that is to be made: columns, keys, and where its parts go.
#[derive(Clone, Debug)]
pub struct TableBuilder {
    name: String,
    columns: Vec<ColumnDef>,
    primary_key: Vec<String>,
    indexes: Vec<NamedIndex>,
    main: Option<String>,
    delta: Option<String>,
    index_tablespace: Option<String>,
    parameters: StorageParameters,
}

#[derive(Clone, Debug)]
struct NamedIndex {
    name: String,
    columns: Vec<String>,
    unique: bool,
}

fn names<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Vec<String> {
    names.into_iter().map(Into::into).collect()
}

impl TableBuilder {
    pub fn new(name: impl Into<String>) -> TableBuilder {
        TableBuilder {
            name: name.into(),
            columns: Vec::new(),
            primary_key: Vec::new(),
            indexes: Vec::new(),
            main: None,
            delta: None,
            index_tablespace: None,
            parameters: StorageParameters::default(),
        }
    }

    /// A column that is never NULL.
    pub fn column(mut self, name: impl Into<String>, sql_type: SqlType) -> TableBuilder {
        self.columns.push(ColumnDef { nullable: false, ..ColumnDef::new(name, sql_type) });
        self
    }

    /// A column that may be NULL.
    pub fn nullable(mut self, name: impl Into<String>, sql_type: SqlType) -> TableBuilder {
        self.columns.push(ColumnDef::new(name, sql_type));
        self
    }

    pub fn primary_key<N: Into<String>>(mut self, columns: impl IntoIterator<Item = N>) -> TableBuilder {
        self.primary_key = names(columns);
        self
    }

    /// An index in which several rows may have the same key.
    pub fn index<N: Into<String>>(
        mut self,
        name: impl Into<String>,
        columns: impl IntoIterator<Item = N>,
    ) -> TableBuilder {
        self.indexes.push(NamedIndex { name: name.into(), columns: names(columns), unique: false });
        self
    }

    pub fn unique<N: Into<String>>(
        mut self,
        name: impl Into<String>,
        columns: impl IntoIterator<Item = N>,
    ) -> TableBuilder {
        self.indexes.push(NamedIndex { name: name.into(), columns: names(columns), unique: true });
        self
    }

    /// Where rows and indexes go, unless it is said of one of them. Otherwise the configuration's default tablespace.
    pub fn tablespace(mut self, name: impl Into<String>) -> TableBuilder {
        let name = name.into();
        self.main = Some(name.clone());
        self.delta = Some(name);
        self
    }

    /// Where indexes go.
    pub fn index_tablespace(mut self, name: impl Into<String>) -> TableBuilder {
        self.index_tablespace = Some(name.into());
        self
    }

    /// When rows are moved into main, where scans are quicker and single rows slower.
    pub fn merge_policy(mut self, policy: MergePolicy) -> TableBuilder {
        self.parameters.merge = Some(policy);
        self
    }

    /// Makes it, with its indexes. 42P07 when it exists, 42703 for a key of columns that it does not have, 42704 for a tablespace that
    /// there is not.
    pub fn create(self, tidepool: &Tidepool) -> Result<()> {
        let database: &std::sync::Arc<Database> = tidepool.database();
        let default = &database.config().default_tablespace;
        let position = |column: &String| {
            self.columns.iter().position(|known| known.name == *column).ok_or_else(|| {
                let message = format!("column \"{column}\" named in key does not exist");
                Error::new(SqlState::UNDEFINED_COLUMN, message)
            })
        };
        let primary_key = self.primary_key.iter().map(position).collect::<Result<Vec<_>>>()?;
        let placement = Placement {
            main: self.main.as_ref().unwrap_or(default).clone(),
            delta: self.delta.as_ref().unwrap_or(default).clone(),
            columns: Default::default(),
        };
        let mut transaction = database.begin()?;
        let has_key = !primary_key.is_empty();
        let separate = has_key && self.index_tablespace.is_some();
        // The key's own index goes where the others do.
        let with_key = if separate { Vec::new() } else { primary_key.clone() };
        let table = transaction.create_table(self.name.as_str(), self.columns.clone(), with_key, placement)?;
        if !self.parameters.is_empty() {
            let def = TableDef { parameters: self.parameters, ..TableDef::clone(&table.def) };
            transaction.set_table_def(&RelationName::from(&*table.def), def)?;
        }
        let number = |position: usize| table.def.columns[position].number;
        if separate {
            let columns = primary_key.iter().map(|position| number(*position));
            let key = NewIndex { tablespace: self.index_tablespace.clone(), ..NewIndex::primary_key(columns) };
            transaction.create_index(self.name.as_str(), key)?;
        }
        for index in &self.indexes {
            let columns = index.columns.iter().map(position).collect::<Result<Vec<_>>>()?;
            transaction.create_index(
                self.name.as_str(),
                NewIndex {
                    name: Some(index.name.clone()),
                    columns: columns.into_iter().map(|column| IndexColumn::ascending(number(column))).collect(),
                    unique: index.unique,
                    primary: None,
                    tablespace: self.index_tablespace.clone(),
                    ..NewIndex::primary_key([])
                },
            )?;
        }
        transaction.commit()?;
        Ok(())
    }
}
