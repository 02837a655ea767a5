//! Indexes made, renamed, moved and dropped. Each takes the table for itself: others' writes wait, reads go on.

use super::NewIndex;
use crate::Transaction;
use crate::catalog::relation::RelationName;
use crate::write::locks::LockMode;
use crate::write::transaction::{check_name, exists};
use std::collections::BTreeSet;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState, TableId};
use tidepool_heap::QueryHeap;
use tidepool_table::{IndexColumn, IndexDef, KeyConstraint, Table, TableDef};

impl Transaction {
    /// Makes an index. Returns its name. 42P07 when that is taken, 42P16 for a second primary key, 23502 where a primary
    /// key has NULLs, 23505 where a key that is to be unique is there twice, 42704 for a tablespace that is not there or a
    /// type without an order.
    pub fn create_index(&mut self, table: impl Into<RelationName>, new: NewIndex) -> Result<String> {
        let table = table.into();
        QueryHeap::outside(|| {
            let before = self.locked_table(&table)?;
            let mut def = TableDef::clone(&before.def);
            if new.primary == Some(true) {
                self.make_primary(&table, &mut def, &new.columns)?;
            }
            check_has_partition_key(&def, &new)?;
            let index = self.define(&def, new)?;
            let (id, name) = (index.id, index.name.clone());
            def.indexes.push(index);
            let made = self.indexed(before.with_def(Arc::new(def)))?;
            self.change(made);
            self.index_partitions(&table, id)?;
            Ok(name)
        })
    }

    /// A table's key is in these columns: 42P16 when it has one, 23502 where they have NULLs.
    fn make_primary(&mut self, table: &RelationName, def: &mut TableDef, columns: &[IndexColumn]) -> Result<()> {
        if !def.primary_key.is_empty() {
            return Err(Error::new(
                SqlState::INVALID_TABLE_DEFINITION,
                format!("multiple primary keys for table \"{}\" are not allowed", def.name),
            ));
        }
        for column in columns {
            let Some((position, of_table)) = def.column_by_number(column.number) else { continue };
            if of_table.nullable {
                self.check_not_null(table, position)?;
            }
            def.primary_key.push(position);
        }
        for position in def.primary_key.clone() {
            def.columns[position].nullable = false;
        }
        Ok(())
    }

    /// Makes a constraint, `PRIMARY KEY` or `UNIQUE`, of an index that a table has, which takes its name. 42704 when there is
    /// none, 55000 when it is not finished or serves another, 42809 when it is not unique or has another order than keys
    /// have; else as `create_index`.
    pub fn constrain(&mut self, table: impl Into<RelationName>, index: &str, name: &str, primary: bool) -> Result<()> {
        let table = table.into();
        QueryHeap::outside(|| {
            let before = self.locked_table(&table)?;
            let mut def = TableDef::clone(&before.def);
            if def.partitioning.is_some() {
                let message = "ALTER TABLE / ADD CONSTRAINT USING INDEX is not supported on partitioned tables";
                return Err(Error::unsupported(message));
            }
            let missing = || Error::new(SqlState::UNDEFINED_OBJECT, format!("index \"{index}\" does not exist"));
            let known = def.index(index).cloned().ok_or_else(missing)?;
            check_may_constrain(&known, primary)?;
            if name != index {
                self.rename_index(&RelationName::new(table.schema, index), name)?;
                def = TableDef::clone(&self.table(&table)?.def);
            }
            if primary {
                self.make_primary(&table, &mut def, &known.columns)?;
            }
            let oid = self.database.next_oid_in(table.schema).0;
            for index in def.indexes.iter_mut().filter(|index| index.id == known.id) {
                index.constraint = Some(KeyConstraint { oid, primary });
            }
            self.change(before.with_def(Arc::new(def)));
            Ok(())
        })
    }

    /// The definition of a table's new index, its name locked.
    pub(crate) fn define(&mut self, def: &TableDef, new: NewIndex) -> Result<IndexDef> {
        if let Some(space) = &new.tablespace {
            self.database.tablespaces().get(space)?;
        }
        let name = match new.name {
            Some(name) => name,
            None => {
                let label = match new.primary {
                    Some(true) => "pkey",
                    Some(false) => "key",
                    None => "idx",
                };
                let names = new.columns.iter().filter_map(|column| def.column_by_number(column.number));
                let names: Vec<&str> = names.map(|(_, column)| column.name.as_str()).collect();
                let names = if new.primary == Some(true) { String::new() } else { names.join("_") };
                let mut avoid: Vec<&str> = def.checks.iter().map(|check| check.name.as_str()).collect();
                avoid.extend(def.indexes.iter().map(|index| index.name.as_str()));
                self.state().free_name(def.schema, [&def.name, &names], label, &avoid)
            }
        };
        check_name(&name)?;
        let full = RelationName::new(def.schema, &name);
        self.lock(&full)?;
        if self.state().is_taken(&full) || def.index(&name).is_some() || name == def.name {
            return Err(exists(&name));
        }
        let id = self.database.next_oid_in(def.schema);
        let constraint =
            new.primary.map(|primary| KeyConstraint { oid: self.database.next_oid_in(def.schema).0, primary });
        Ok(IndexDef {
            id,
            name,
            columns: new.columns,
            unique: new.unique,
            nulls_not_distinct: new.nulls_not_distinct,
            constraint,
            tablespace: new.tablespace,
            partition_of: new.partition_of,
            building: false,
        })
    }

    /// Drops an index, with the constraint that it serves. 42704 when there is none.
    pub fn drop_index(&mut self, name: &RelationName) -> Result<()> {
        QueryHeap::outside(|| {
            let (table, index) = self.locked_index(name, LockMode::AccessExclusive)?;
            for part in self.parts_of_index(&table.def, index.id) {
                self.drop_index(&part)?;
            }
            let mut def = TableDef::clone(&table.def);
            def.indexes.retain(|known| known.id != index.id);
            if index.is_primary() {
                def.primary_key.clear();
            }
            self.change(table.with_def(Arc::new(def)));
            Ok(())
        })
    }

    /// Gives an index, and the constraint that it serves, another name. 42P07 when it is taken.
    pub fn rename_index(&mut self, name: &RelationName, new_name: &str) -> Result<()> {
        QueryHeap::outside(|| {
            check_name(new_name)?;
            let (table, index) = self.locked_index(name, LockMode::AccessExclusive)?;
            let full = RelationName::new(name.schema, new_name);
            self.lock(&full)?;
            if self.state().is_taken(&full) {
                return Err(exists(new_name));
            }
            self.change_index(&table, index.id, |def| new_name.clone_into(&mut def.name));
            Ok(())
        })
    }

    /// Makes an index anew in another tablespace; `None`: where its table's delta is. 42704 when there is none.
    pub fn set_index_tablespace(&mut self, name: &RelationName, tablespace: Option<&str>) -> Result<()> {
        QueryHeap::outside(|| {
            let space = tablespace.map(|space| self.database.tablespaces().get(space)).transpose()?;
            let (table, index) = self.locked_index(name, LockMode::AccessExclusive)?;
            let mut def = TableDef::clone(&table.def);
            for known in def.indexes.iter_mut().filter(|known| known.id == index.id) {
                known.tablespace = space.as_ref().map(|space| space.name().to_owned());
            }
            self.remake(&table, def, &BTreeSet::from([index.id]))
        })
    }

    /// Makes an index anew.
    pub fn reindex(&mut self, name: &RelationName) -> Result<()> {
        QueryHeap::outside(|| {
            let (table, index) = self.locked_index(name, LockMode::AccessExclusive)?;
            for part in self.parts_of_index(&table.def, index.id) {
                self.reindex(&part)?;
            }
            self.remake(&table, TableDef::clone(&table.def), &BTreeSet::from([index.id]))
        })
    }

    /// Makes all of a table's indexes anew, and all of its partitions'.
    pub fn reindex_table(&mut self, name: &RelationName) -> Result<()> {
        QueryHeap::outside(|| {
            let table = self.locked_table(name)?;
            for partition in table.def.partitioning.iter().flat_map(|of| &of.partitions) {
                let state = self.state();
                if let Some(partition) = state.table_of_id(partition.id) {
                    self.reindex_table(&RelationName::from(&*partition.def))?;
                }
            }
            let all = table.def.indexes.iter().map(|index| index.id).collect();
            self.remake(&table, TableDef::clone(&table.def), &all)
        })
    }

    fn remake(&mut self, table: &Table, mut def: TableDef, which: &BTreeSet<TableId>) -> Result<()> {
        def.indexes.iter_mut().filter(|index| which.contains(&index.id)).for_each(|index| index.building = false);
        let without = table.with_def(Arc::new(def)).without_indexes(|id| which.contains(&id));
        let made = self.indexed(without)?;
        self.change(made);
        Ok(())
    }

    pub(super) fn change_index(&mut self, table: &Table, id: TableId, change: impl FnOnce(&mut IndexDef)) {
        let mut def = TableDef::clone(&table.def);
        if let Some(index) = def.indexes.iter_mut().find(|index| index.id == id) {
            change(index);
        }
        self.change(table.with_def(Arc::new(def)));
    }

    /// An index, and its table as this transaction has it, locked. 42704 when there is none.
    pub(super) fn locked_index(&mut self, name: &RelationName, mode: LockMode) -> Result<(Arc<Table>, IndexDef)> {
        let missing = || Error::new(SqlState::UNDEFINED_OBJECT, format!("index \"{}\" does not exist", name.name));
        let find = |state: &crate::DatabaseState| state.index(name).map(|(table, _)| RelationName::from(&*table.def));
        loop {
            let table = find(&self.state()).ok_or_else(missing)?;
            self.lock(name)?;
            self.table(&table)?;
            self.lock_as(&table, mode)?;
            // Whoever had the table may have renamed it, or the index.
            let state = self.state();
            let Some((found, index)) = state.index(name) else { return Err(missing()) };
            if RelationName::from(&*found.def) == table {
                return Ok((found.clone(), index.clone()));
            }
        }
    }
}

fn check_may_constrain(index: &IndexDef, primary: bool) -> Result<()> {
    let not_so = |state, message: String| Err(Error::new(state, message));
    let name = &index.name;
    if index.constraint.is_some() {
        let message = format!("index \"{name}\" is already associated with a constraint");
        return not_so(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message);
    }
    if index.building {
        return not_so(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, format!("index \"{name}\" is not valid"));
    }
    if !index.unique {
        return not_so(SqlState::WRONG_OBJECT_TYPE, format!("\"{name}\" is not a unique index"));
    }
    if let Some(place) = index.columns.iter().position(|column| column.descending || column.nulls_first) {
        let message = format!("index \"{name}\" column number {} does not have default sorting behavior", place + 1);
        return not_so(SqlState::WRONG_OBJECT_TYPE, message);
    }
    if primary && index.nulls_not_distinct {
        return Err(Error::unsupported("a primary key of an index with NULLS NOT DISTINCT"));
    }
    Ok(())
}

/// 0A000 for a unique index of a partitioned table that could not tell from one partition what is in another.
fn check_has_partition_key(def: &TableDef, new: &NewIndex) -> Result<()> {
    let Some(partitioning) = def.partitioning.as_ref().filter(|_| new.unique) else { return Ok(()) };
    let has = |number: &u16| new.columns.iter().any(|column| column.number == *number);
    let Some(lacks) = partitioning.columns.iter().find(|number| !has(number)) else { return Ok(()) };
    let column = def.column_by_number(*lacks).map_or("", |(_, column)| &column.name);
    let kind = if new.primary == Some(true) { "PRIMARY KEY" } else { "UNIQUE" };
    Err(Error::unsupported("unique constraint on partitioned table must include all partitioning columns").with_detail(
        format!(
            "{kind} constraint on table \"{}\" lacks column \"{column}\" which is part of the partition key.",
            def.name
        ),
    ))
}
