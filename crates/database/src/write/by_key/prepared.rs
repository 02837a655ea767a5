//! Tables and indexes, looked up once.

use crate::catalog::relation::RelationName;
use crate::catalog::state::DatabaseState;
use crate::pod::Placed;
use crate::write::transaction::table_of;
use crate::{Database, DatabaseVersion};
use std::sync::{Arc, OnceLock, Weak};
use tidepool_base::{CommitTs, Error, Result, SqlState};
use tidepool_index::Index;
use tidepool_table::rows::typed::{Column, FieldType};
use tidepool_table::{Table, TableDef, TableIndex};
use tidepool_txn::View;

/// A table to read and write rows of. Cheap to clone; for any number of threads.
#[derive(Clone, Debug)]
pub struct PreparedTable(pub(super) Arc<Names>);

/// An index of a table to find rows by.
#[derive(Clone, Debug)]
pub struct PreparedIndex {
    pub(super) table: PreparedTable,
    /// Its place among the table's ways.
    pub(super) way: usize,
}

#[derive(Debug)]
pub(super) struct Names {
    database: Weak<Database>,
    table: RelationName,
    /// Of indexes that were prepared, by place: names, or the primary key.
    ways: parking_lot::RwLock<Vec<Option<String>>>,
    first: Link,
    /// Of a table whose rows the hosts of a pod share out.
    placed: OnceLock<Placed>,
}

/// A table, and, once another definition has taken its place, that one.
#[derive(Debug)]
struct Link {
    resolved: Resolved,
    next: OnceLock<Box<Link>>,
}

/// A table as it is defined now, and what row access needs of it.
#[derive(Debug)]
pub(super) struct Resolved {
    pub table: Arc<Table>,
    /// Views from before may have had another in its place.
    pub since: CommitTs,
    /// Why no rows are written.
    refused: Option<Error>,
    /// By place of the prepared index.
    ways: Vec<OnceLock<Option<Arc<TableIndex>>>>,
}

/// Indexes of a table that can be prepared.
const WAYS_MAX: usize = 64;

impl Database {
    /// A table by its name in schema `public`, or in another. 42P01 when there is none, 0A000 for a partitioned one.
    pub fn prepare_table(self: &Arc<Self>, table: impl Into<RelationName>) -> Result<PreparedTable> {
        let name = table.into();
        let state = self.state();
        let table = table_of(&state, &name)?;
        if table.def.partitioning.is_some() {
            return Err(Error::unsupported(format!("row access to the partitioned table \"{}\"", name.name))
                .with_hint("Its partitions are tables, too."));
        }
        let first = Link { resolved: Resolved::new(&state, table), next: OnceLock::new() };
        Ok(PreparedTable(Arc::new(Names {
            database: Arc::downgrade(self),
            table: name,
            ways: parking_lot::RwLock::default(),
            first,
            placed: OnceLock::new(),
        })))
    }
}

impl Resolved {
    fn new(state: &DatabaseState, table: Arc<Table>) -> Resolved {
        let refused = |what: &str| {
            Error::unsupported(format!("writing rows of table \"{}\" directly, as {what}", table.def.name))
                .with_hint("Write them by SQL.")
        };
        let refused = if !table.def.checks.is_empty() {
            Some(refused("it has CHECK constraints"))
        } else if !state.foreign_keys_on(table.def.id).is_empty() || !table.def.foreign_keys.is_empty() {
            Some(refused("foreign keys are to be checked"))
        } else if table.def.partition_of.is_some() {
            Some(refused("it is a partition"))
        } else {
            None
        };
        Resolved { table, since: state.commit_ts, refused, ways: (0..WAYS_MAX).map(|_| OnceLock::new()).collect() }
    }

    /// 0A000 where only SQL can.
    #[inline]
    pub fn check_writable(&self) -> Result<()> {
        self.refused.as_ref().map_or(Ok(()), |refused| Err(refused.clone()))
    }
}

impl PreparedTable {
    pub fn name(&self) -> &RelationName {
        &self.0.table
    }

    /// As it is defined now.
    pub fn def(&self) -> Arc<TableDef> {
        self.newest().table.def.clone()
    }

    /// A column, to read its values as `T`. 42703 where the table has none of this name, 42804 where its values are of another
    /// type, or may be NULL and `T` is no `Option`.
    pub fn column<T: FieldType + ?Sized>(&self, name: &str) -> Result<Column<T>> {
        let resolved = self.newest();
        Column::new(resolved.table.rows.layout(), &resolved.table.def, name)
    }

    /// The way to rows by the primary key. 42704 where there is none.
    pub fn primary_key(&self) -> Result<PreparedIndex> {
        self.way(None)
    }

    /// The way to rows by an index. 42704 where there is none of this name.
    pub fn index(&self, name: &str) -> Result<PreparedIndex> {
        self.way(Some(name.to_owned()))
    }

    fn way(&self, name: Option<String>) -> Result<PreparedIndex> {
        let way = {
            let mut ways = self.0.ways.write();
            match ways.iter().position(|known| *known == name) {
                Some(way) => way,
                None if ways.len() == WAYS_MAX => {
                    return Err(Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "too many indexes of a table are in use"));
                }
                None => {
                    ways.push(name);
                    ways.len() - 1
                }
            }
        };
        let index = PreparedIndex { table: self.clone(), way };
        index.table.index_in(self.newest(), way)?;
        Ok(index)
    }

    /// The table as it is defined now.
    pub(crate) fn current(&self) -> Arc<Table> {
        self.newest().table.clone()
    }

    /// 55000 where its rows are shared out already.
    pub(super) fn set_placed(&self, placed: Placed) -> Result<()> {
        self.0.placed.set(placed).map_err(|_| {
            let text = format!("the rows of table \"{}\" are shared out already", self.0.table.name);
            Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, text)
        })
    }

    #[inline]
    pub(super) fn placed(&self) -> Option<&Placed> {
        self.0.placed.get()
    }

    /// The newest that anybody looked up.
    #[inline]
    pub(super) fn newest(&self) -> &Resolved {
        let mut link = &self.0.first;
        while let Some(next) = link.next.get() {
            link = next;
        }
        &link.resolved
    }

    /// The newest that was there already when a view was drawn. `None`: none was looked up by then.
    #[cold]
    pub(super) fn newest_for(&self, view: &View) -> Option<&Resolved> {
        let links = std::iter::successors(Some(&self.0.first), |link| link.next.get().map(|next| &**next));
        links.map(|link| &link.resolved).take_while(|resolved| resolved.since <= view.ts()).last()
    }

    /// Looks up what has taken the table's place. 42P01 where nothing has.
    #[cold]
    pub(super) fn look_up(&self, state: &DatabaseState) -> Result<&Resolved> {
        let table = table_of(state, &self.0.table)?;
        let mut link = &self.0.first;
        loop {
            if Arc::ptr_eq(&link.resolved.table, &table) {
                return Ok(&link.resolved);
            }
            let new = || Box::new(Link { resolved: Resolved::new(state, table.clone()), next: OnceLock::new() });
            link = link.next.get_or_init(new);
        }
    }

    /// 42704 where the index is no more.
    #[inline]
    pub(super) fn index_in<'r>(&self, resolved: &'r Resolved, way: usize) -> Result<&'r Arc<TableIndex>> {
        match resolved.ways[way].get() {
            Some(Some(index)) => Ok(index),
            _ => self.find_index(resolved, way),
        }
    }

    #[cold]
    fn find_index<'r>(&self, resolved: &'r Resolved, way: usize) -> Result<&'r Arc<TableIndex>> {
        let name = self.0.ways.read()[way].clone();
        let found = resolved.ways[way].get_or_init(|| {
            let def = resolved.table.def.indexes.iter().find(|def| match &name {
                Some(name) => def.name == *name,
                None => def.is_primary(),
            });
            def.and_then(|def| resolved.table.index(def.id)).cloned()
        });
        found.as_ref().ok_or_else(|| {
            let message = match name {
                Some(name) => format!("index \"{name}\" of relation \"{}\" does not exist", self.0.table.name),
                None => format!("relation \"{}\" has no primary key", self.0.table.name),
            };
            Error::new(SqlState::UNDEFINED_OBJECT, message)
        })
    }

    pub(super) fn database(&self) -> Result<Arc<Database>> {
        self.0.database.upgrade().ok_or_else(|| Error::internal("the database of a prepared table is closed"))
    }
}

impl PreparedIndex {
    pub fn table(&self) -> &PreparedTable {
        &self.table
    }

    /// Entries, and bytes of the tablespace that they take.
    pub fn size(&self) -> Result<(u64, u64)> {
        let database = self.table.database()?;
        let version: Arc<DatabaseVersion> = database.version();
        let resolved = self.table.newest();
        let tree: &Index = self.table.index_in(resolved, self.way)?.tree();
        Ok((tree.check(version.view())?.entries, tree.memory().held_bytes))
    }
}
