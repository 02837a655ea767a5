//! Foreign keys made, checked and dropped. Each takes both tables for itself: others' writes wait, reads go on.

use super::convert::can_refer;
use super::link::Link;
use super::pending::Modes;
use crate::Transaction;
use crate::catalog::relation::RelationName;
use crate::write::transaction::check_name;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState, TableId};
use tidepool_heap::QueryHeap;
use tidepool_table::{ForeignKeyDef, ReferentialAction, Table, TableDef};

/// PostgreSQL's limit.
const COLUMNS_MAX: usize = 32;

/// A foreign key to be made, columns by number.
#[derive(Clone, Debug)]
pub struct NewForeignKey {
    /// `None`: one that is free, as PostgreSQL makes them: `t_a_b_fkey`.
    pub name: Option<String>,
    pub columns: Vec<u16>,
    pub referenced: TableId,
    /// None: those of the primary key.
    pub referenced_columns: Vec<u16>,
    pub match_full: bool,
    pub on_delete: ReferentialAction,
    pub on_update: ReferentialAction,
    pub not_valid: bool,
    pub deferrable: bool,
    pub initially_deferred: bool,
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(SqlState::INVALID_FOREIGN_KEY, message)
}

/// 42P16 for a foreign key between a table that is one session's alone and one that is not.
fn check_lasts_as_long(child: TableId, parent: TableId) -> Result<()> {
    let only = match (child.is_temporary(), parent.is_temporary()) {
        (true, true) | (false, false) => return Ok(()),
        (true, false) => "constraints on temporary tables may reference only temporary tables",
        (false, true) => "constraints on permanent tables may reference only permanent tables",
    };
    Err(Error::new(SqlState::INVALID_TABLE_DEFINITION, only))
}

impl Transaction {
    /// Makes a foreign key of a table, and of all its partitions. Returns its name. 42830 where the columns referred to are
    /// not a key, 42804 where the types do not compare, 42710 when the name is taken, 23503 where a row refers to nothing,
    /// 42809 for a partitioned table's that is not to be valid.
    pub fn create_foreign_key(&mut self, table: impl Into<RelationName>, new: NewForeignKey) -> Result<String> {
        let table = table.into();
        QueryHeap::outside(|| {
            let child = self.locked_table(&table)?;
            check_lasts_as_long(child.def.id, new.referenced)?;
            self.lock_within(&child.def)?;
            let parent = self.locked_parent(new.referenced)?;
            let child = self.table(&table)?;
            if new.not_valid && child.def.partitioning.is_some() {
                return Err(Error::new(
                    SqlState::WRONG_OBJECT_TYPE,
                    format!(
                        "cannot add NOT VALID foreign key on partitioned table \"{}\" referencing relation \"{}\"",
                        child.def.name, parent.def.name
                    ),
                )
                .with_detail("This feature is not yet supported on partitioned tables."));
            }
            let mut key = self.define_foreign_key(&child.def, &parent.def, new)?;
            let mut def = TableDef::clone(&child.def);
            key.referenced_parts = self.referenced_parts(&def, &key, self.state().partitions_within(&parent.def));
            def.foreign_keys.push(key.clone());
            self.change(child.with_def(Arc::new(def)));
            self.pass_on(&key, child.def.id)?;
            self.touch(key.referenced)?;
            if !key.not_valid {
                self.check_existing(child.def.id, key.oid)?;
            }
            Ok(key.name)
        })
    }

    /// Drops a table's foreign key, and its partitions' parts. 42704 when there is none of this name, 42P16 for a part.
    pub fn drop_foreign_key(&mut self, table: impl Into<RelationName>, name: &str) -> Result<()> {
        let table = table.into();
        QueryHeap::outside(|| {
            let child = self.locked_table(&table)?;
            self.lock_within(&child.def)?;
            let (_, key) = self.foreign_key(&table, name)?;
            self.locked_parent(key.referenced)?;
            let (child, key) = self.foreign_key(&table, name)?;
            if key.part_of.is_some() {
                return Err(Error::new(
                    SqlState::INVALID_TABLE_DEFINITION,
                    format!("cannot drop inherited constraint \"{name}\" of relation \"{}\"", child.def.name),
                ));
            }
            self.change_everywhere(child.def.id, key.oid, &|keys, oid| keys.retain(|known| known.oid != oid));
            self.touch(key.referenced)
        })
    }

    /// Checks the rows that a `NOT VALID` foreign key has not been checked for. 42704 when there is none of this name.
    pub fn validate_foreign_key(&mut self, table: impl Into<RelationName>, name: &str) -> Result<()> {
        let table = table.into();
        QueryHeap::outside(|| {
            self.locked_table(&table)?;
            let (_, key) = self.foreign_key(&table, name)?;
            if !key.not_valid {
                return Ok(());
            }
            self.locked_parent(key.referenced)?;
            let (child, key) = self.foreign_key(&table, name)?;
            self.check_existing(child.def.id, key.oid)?;
            self.change_everywhere(child.def.id, key.oid, &|keys, oid| {
                keys.iter_mut().filter(|known| known.oid == oid).for_each(|known| known.not_valid = false);
            });
            Ok(())
        })
    }

    /// Checks a table's foreign key anew, and that its columns' types compare: they have changed.
    pub fn recheck_foreign_key(&mut self, table: impl Into<RelationName>, name: &str) -> Result<()> {
        let table = table.into();
        QueryHeap::outside(|| {
            let child = self.locked_table(&table)?;
            self.lock_within(&child.def)?;
            let (_, key) = self.foreign_key(&table, name)?;
            let parent = self.locked_parent(key.referenced)?;
            let (child, key) = self.foreign_key(&table, name)?;
            check_types(&child.def, &parent.def, &key)?;
            if key.not_valid { Ok(()) } else { self.check_existing(child.def.id, key.oid) }
        })
    }

    /// `ALTER CONSTRAINT`: when a foreign key is checked, and its parts. 42704 when there is none of this name, 55000 for a
    /// part.
    pub fn set_deferrable(
        &mut self,
        table: impl Into<RelationName>,
        name: &str,
        deferrable: bool,
        initially_deferred: bool,
    ) -> Result<()> {
        let table = table.into();
        QueryHeap::outside(|| {
            let child = self.locked_table(&table)?;
            self.lock_within(&child.def)?;
            let (child, key) = self.foreign_key(&table, name)?;
            if let Some(of) = key.part_of {
                return Err(self.is_derived(&child.def, name, of));
            }
            self.change_everywhere(child.def.id, key.oid, &|keys, oid| {
                for key in keys.iter_mut().filter(|known| known.oid == oid) {
                    (key.deferrable, key.initially_deferred) = (deferrable, initially_deferred);
                }
            });
            Ok(())
        })
    }

    /// `SET CONSTRAINTS`: whether foreign keys, by number, or all, are deferred from now on, as far as they can be. Those
    /// that are not any more are checked at once.
    pub fn set_constraints(&mut self, keys: Option<&[u32]>, deferred: bool) -> Result<()> {
        QueryHeap::outside(|| {
            let keys = keys.map(|keys| self.with_parts(keys));
            match &keys {
                None => self.references.modes = Modes { all: Some(deferred), ..Modes::default() },
                Some(keys) => self.references.modes.single.extend(keys.iter().map(|key| (*key, deferred))),
            }
            if deferred {
                return Ok(());
            }
            self.check_deferred(&|key| keys.as_ref().is_none_or(|keys| keys.contains(&key)))
        })
    }

    fn foreign_key(&self, table: &RelationName, name: &str) -> Result<(Arc<Table>, ForeignKeyDef)> {
        let child = self.table(table)?;
        let key = child.def.foreign_key(name).cloned().ok_or_else(|| {
            Error::new(
                SqlState::UNDEFINED_OBJECT,
                format!("constraint \"{name}\" of relation \"{}\" does not exist", table.name),
            )
        })?;
        Ok((child, key))
    }

    /// A table to be referred to and its partitions, which this transaction has alone from now on.
    pub(super) fn locked_parent(&mut self, id: TableId) -> Result<Arc<Table>> {
        let parent = self.locked_by_id(id)?;
        self.lock_within(&parent.def)?;
        Ok(parent)
    }

    /// Locks the partitions of a table that is locked, all the way down.
    pub(super) fn lock_within(&mut self, def: &TableDef) -> Result<()> {
        for partition in def.partitioning.iter().flat_map(|of| &of.partitions) {
            let partition = self.locked_by_id(partition.id)?;
            self.lock_within(&partition.def)?;
        }
        Ok(())
    }

    fn locked_by_id(&mut self, id: TableId) -> Result<Arc<Table>> {
        let gone = || Error::new(SqlState::UNDEFINED_TABLE, "the referenced table was dropped by another transaction");
        loop {
            let name = RelationName::from(&*self.state().table_of_id(id).ok_or_else(gone)?.def);
            self.lock(&name)?;
            if let Some(table) = self.state().table_of_id(id)
                && RelationName::from(&*table.def) == name
            {
                self.check_current(table)?;
                return Ok(table.clone());
            }
        }
    }

    /// Puts other tables of the same definitions in the place of a table and its partitions: see the module above.
    pub(super) fn touch(&mut self, table: TableId) -> Result<()> {
        let state = self.state();
        let Some(table) = state.table_of_id(table) else { return Ok(()) };
        self.change(table.referred_anew());
        for partition in state.partitions_within(&table.def) {
            if let Some(partition) = state.table_of_id(partition) {
                self.change(partition.referred_anew());
            }
        }
        Ok(())
    }

    fn define_foreign_key(&self, child: &TableDef, parent: &TableDef, new: NewForeignKey) -> Result<ForeignKeyDef> {
        let mut referenced = new.referenced_columns;
        if referenced.is_empty() {
            let primary = parent.indexes.iter().find(|index| index.is_primary()).ok_or_else(|| {
                Error::new(
                    SqlState::UNDEFINED_OBJECT,
                    format!("there is no primary key for referenced table \"{}\"", parent.name),
                )
            })?;
            referenced = primary.columns.iter().map(|column| column.number).collect();
        }
        if referenced.len() > COLUMNS_MAX {
            return Err(Error::new(
                SqlState::TOO_MANY_COLUMNS,
                format!("cannot have more than {COLUMNS_MAX} keys in a foreign key"),
            ));
        }
        if (1..referenced.len()).any(|place| referenced[..place].contains(&referenced[place])) {
            return Err(invalid("foreign key referenced-columns list must not contain duplicates"));
        }
        let serves = |index: &&tidepool_table::IndexDef| {
            index.unique
                && !index.building
                && index.columns.len() == referenced.len()
                && referenced.iter().all(|number| index.has_column(*number))
        };
        let index = parent.indexes.iter().find(serves).ok_or_else(|| {
            invalid(format!(
                "there is no unique constraint matching given keys for referenced table \"{}\"",
                parent.name
            ))
        })?;
        if referenced.len() != new.columns.len() {
            return Err(invalid("number of referencing and referenced columns for foreign key disagree"));
        }
        let name = match new.name {
            Some(name) if constraints(child).any(|other| *other == name) => {
                return Err(Error::new(
                    SqlState::DUPLICATE_OBJECT,
                    format!("constraint \"{name}\" for relation \"{}\" already exists", child.name),
                ));
            }
            Some(name) => name,
            None => self.free_key_name(child, &new.columns, &[]),
        };
        check_name(&name)?;
        let key = ForeignKeyDef {
            oid: self.database.next_oid_in(child.schema).0,
            name,
            columns: new.columns,
            referenced: new.referenced,
            referenced_columns: referenced,
            index: index.id,
            match_full: new.match_full,
            on_delete: new.on_delete,
            on_update: new.on_update,
            not_valid: new.not_valid,
            deferrable: new.deferrable,
            initially_deferred: new.initially_deferred,
            part_of: None,
            referenced_parts: Vec::new(),
        };
        check_types(child, parent, &key)?;
        Ok(key)
    }

    /// A name for a foreign key over these columns, as PostgreSQL makes them.
    pub(super) fn free_key_name(&self, child: &TableDef, columns: &[u16], taken: &[String]) -> String {
        let names = columns.iter().filter_map(|number| child.column_by_number(*number));
        let names: Vec<&str> = names.map(|(_, column)| column.name.as_str()).collect();
        let avoid: Vec<&str> = constraints(child).chain(taken).map(String::as_str).collect();
        self.state().free_name(child.schema, [&child.name, &names.join("_")], "fkey", &avoid)
    }

    /// Checks all rows of a table, which this transaction has alone, as it has the one referred to; or those of its
    /// partitions, each by its part of the foreign key.
    pub(super) fn check_existing(&mut self, table: TableId, key: u32) -> Result<()> {
        let gone = || Error::internal("a locked table is gone");
        let state = self.state();
        let child = state.table_of_id(table).ok_or_else(gone)?;
        if child.def.partitioning.is_some() {
            let parts = self.parts_of(&child.def, key);
            return parts.into_iter().try_for_each(|(partition, part)| self.check_existing(partition, part));
        }
        let key = child.def.foreign_keys.iter().find(|known| known.oid == key).ok_or_else(gone)?;
        let parent = state.table_of_id(key.referenced).ok_or_else(gone)?;
        let mut link = Link::new(&state, key, child, vec![child.clone()], parent)?;
        link.open_all(&state)?;
        let patience = self.patience();
        let version = Arc::new(self.newest(child));
        link.each_orphan(&version, &|| patience.check(), &mut Err)
    }
}

/// Names of a table's constraints.
pub(super) fn constraints(def: &TableDef) -> impl Iterator<Item = &String> {
    let keys = def.indexes.iter().filter(|index| index.constraint.is_some()).map(|index| &index.name);
    let checks = def.checks.iter().map(|check| &check.name);
    keys.chain(checks).chain(def.foreign_keys.iter().flat_map(ForeignKeyDef::names))
}

/// 42804 unless the columns' types compare.
fn check_types(child: &TableDef, parent: &TableDef, key: &ForeignKeyDef) -> Result<()> {
    for (own, referenced) in key.columns.iter().zip(&key.referenced_columns) {
        let (Some((_, own)), Some((_, referenced))) =
            (child.column_by_number(*own), parent.column_by_number(*referenced))
        else {
            return Err(Error::internal("a foreign key has a column that its table does not"));
        };
        if !can_refer(own.sql_type, referenced.sql_type) {
            let plain = |column: &tidepool_table::ColumnDef| {
                let name = column.sql_type.to_string();
                match (name.find('('), name.find(')')) {
                    (Some(open), Some(close)) => format!("{}{}", &name[..open], &name[close + 1..]),
                    _ => name,
                }
            };
            return Err(Error::new(
                SqlState::DATATYPE_MISMATCH,
                format!("foreign key constraint \"{}\" cannot be implemented", key.name),
            )
            .with_detail(format!(
                "Key columns \"{}\" and \"{}\" are of incompatible types: {} and {}.",
                own.name,
                referenced.name,
                plain(own),
                plain(referenced)
            )));
        }
    }
    Ok(())
}
