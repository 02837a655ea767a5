//! Partitions added and taken away, and indexes that each of them has its part of.
//!
//! A partitioned table is locked before its partitions, by whoever changes which it has.

use super::text::range_text;
use super::tree::read_text;
use super::{Membership, PARTITIONS_MAX};
use crate::catalog::relation::RelationName;
use crate::{DatabaseState, NewIndex, Transaction};
use std::sync::Arc;
use tidepool_base::{Error, Part, Result, SqlState, Subject, TableId};
use tidepool_heap::QueryHeap;
use tidepool_table::{
    IndexColumn, IndexDef, Misfit, PartitionBound, PartitionDef, PartitionMap, Partitioning, Table, TableDef,
};

/// Whose partition a table is to be, and with which rows.
#[derive(Clone, Debug)]
pub struct NewPartition {
    pub parent: TableId,
    pub bound: PartitionBound,
}

impl Transaction {
    /// Locks a partitioned table.
    fn locked_partitioned(&mut self, id: TableId) -> Result<Arc<Table>> {
        let gone = || Error::new(SqlState::UNDEFINED_TABLE, "the partitioned table was dropped by another transaction");
        let name = RelationName::from(&*self.state().table_of_id(id).ok_or_else(gone)?.def);
        self.locked_table(&name)?;
        self.state().table_of_id(id).cloned().ok_or_else(gone)
    }

    /// Makes a table, and all its rows, a partition. 42P17 where its bound meets another's, 42804 where it is not like the
    /// partitioned table, 23514 where rows of it or of the default partition do not belong where they are.
    pub fn attach_partition(&mut self, table: &RelationName, new: &NewPartition) -> Result<()> {
        QueryHeap::outside(|| {
            let parent = self.locked_partitioned(new.parent)?;
            let table = self.locked_table(table)?;
            if table.def.is_temporary() {
                let message = format!(
                    "cannot attach a temporary relation as partition of permanent relation \"{}\"",
                    parent.def.name
                );
                return Err(Error::new(SqlState::WRONG_OBJECT_TYPE, message));
            }
            self.check_attachable(&parent.def, &table.def)?;
            let partitioning = partitioning_of(&parent.def)?;
            check_bound(&self.state(), &parent.def, partitioning, &table.def, &new.bound)?;
            self.change_def(&table, |def| def.partition_of = Some(new.parent));
            let added = PartitionDef { id: table.def.id, bound: new.bound.clone() };
            self.change_def(&parent, |def| {
                def.partitioning.iter_mut().for_each(|of| of.partitions.push(added.clone()))
            });
            let leaves =
                self.state().partition_tree(&self.root_of(&parent.def)?)?.map_or(0, |tree| tree.leaves().len());
            if leaves > PARTITIONS_MAX {
                return Err(Error::new(
                    SqlState::PROGRAM_LIMIT_EXCEEDED,
                    format!("a partitioned table can have at most {PARTITIONS_MAX} partitions"),
                ));
            }
            self.check_members(table.def.id, |def| {
                format!("partition constraint of relation \"{}\" is violated by some row", def.name)
            })?;
            let is_default = |partition: &&PartitionDef| partition.bound == PartitionBound::Default;
            if let Some(default) = partitioning.partitions.iter().find(is_default) {
                self.check_members(default.id, |def| {
                    format!(
                        "updated partition constraint for default partition \"{}\" would be violated by some row",
                        def.name
                    )
                })?;
            }
            for index in &parent.def.indexes {
                self.index_partition(&parent.def, table.def.id, index)?;
            }
            self.inherit_foreign_keys(parent.def.id, table.def.id)
        })
    }

    /// Makes a partition a table like any. 42P01 when it is none of this table's.
    pub fn detach_partition(&mut self, parent: TableId, table: &RelationName) -> Result<()> {
        QueryHeap::outside(|| {
            let parent = self.locked_partitioned(parent)?;
            let table = self.locked_table(table)?;
            if table.def.partition_of != Some(parent.def.id) {
                return Err(Error::new(
                    SqlState::UNDEFINED_TABLE,
                    format!("relation \"{}\" is not a partition of relation \"{}\"", table.def.name, parent.def.name),
                ));
            }
            self.leave_foreign_keys(parent.def.id, table.def.id)?;
            let gone = || Error::internal("a locked table is gone");
            let state = self.state();
            let parent = state.table_of_id(parent.def.id).ok_or_else(gone)?;
            let table = state.table_of_id(table.def.id).ok_or_else(gone)?;
            self.forget_partition(parent, table.def.id);
            self.change_def(table, |def| {
                def.partition_of = None;
                def.indexes.iter_mut().for_each(|index| index.partition_of = None);
            });
            Ok(())
        })
    }

    /// Locks the table that a partition is of, before the partition, and takes it out there.
    pub(crate) fn leave_parent(&mut self, name: &RelationName) -> Result<()> {
        let Some(parent) = self.table(name)?.def.partition_of else { return Ok(()) };
        let parent = self.locked_partitioned(parent)?;
        let table = self.locked_table(name)?;
        if table.def.partition_of == Some(parent.def.id) {
            self.forget_partition(&parent, table.def.id);
        }
        Ok(())
    }

    fn forget_partition(&mut self, parent: &Table, partition: TableId) {
        self.change_def(parent, |def| {
            def.partitioning.iter_mut().for_each(|of| of.partitions.retain(|known| known.id != partition));
        });
    }

    fn change_def(&mut self, table: &Table, change: impl FnOnce(&mut TableDef)) {
        let mut def = TableDef::clone(&table.def);
        change(&mut def);
        self.change(table.with_def(Arc::new(def)));
    }

    fn root_of(&self, def: &Arc<TableDef>) -> Result<Arc<TableDef>> {
        let state = self.state();
        let mut id = def.id;
        loop {
            let table = state.table_of_id(id).ok_or_else(|| Error::internal("a partition's table is gone"))?;
            match table.def.partition_of {
                Some(parent) => id = parent,
                None => return Ok(table.def.clone()),
            }
        }
    }

    fn check_attachable(&self, parent: &TableDef, table: &TableDef) -> Result<()> {
        let mismatch = |message: String| Error::new(SqlState::DATATYPE_MISMATCH, message);
        if table.partition_of.is_some() {
            return Err(Error::new(SqlState::WRONG_OBJECT_TYPE, format!("\"{}\" is already a partition", table.name)));
        }
        let mut above = Some(parent.id);
        while let Some(id) = above {
            if id == table.id {
                return Err(Error::new(SqlState::DUPLICATE_TABLE, "circular inheritance not allowed")
                    .with_detail(format!("\"{}\" is already a child of \"{}\".", parent.name, table.name)));
            }
            above = self.state().table_of_id(id).and_then(|table| table.def.partition_of);
        }
        if let Some(extra) = table.columns.iter().find(|column| parent.column_index(&column.name).is_none()) {
            return Err(mismatch(format!(
                "table \"{}\" contains column \"{}\" not found in parent \"{}\"",
                table.name, extra.name, parent.name
            ))
            .with_detail("The new partition may contain only the columns present in parent."));
        }
        for column in &parent.columns {
            let Some(position) = table.column_index(&column.name) else {
                return Err(mismatch(format!("child table is missing column \"{}\"", column.name)));
            };
            let own = &table.columns[position];
            if own.sql_type != column.sql_type {
                let message =
                    format!("child table \"{}\" has different type for column \"{}\"", table.name, column.name);
                return Err(mismatch(message));
            }
            if own.nullable && !column.nullable {
                return Err(mismatch(format!("column \"{}\" in child table must be marked NOT NULL", column.name)));
            }
        }
        if !table.columns.iter().map(|column| &column.name).eq(parent.columns.iter().map(|column| &column.name)) {
            return Err(Error::unsupported(format!(
                "table \"{}\" has its columns in another order than \"{}\"",
                table.name, parent.name
            ))
            .with_hint("Make a table whose columns are in the same order, and insert the rows into it."));
        }
        for check in &parent.checks {
            let Some(own) = table.checks.iter().find(|own| own.name == check.name) else {
                return Err(mismatch(format!("child table is missing constraint \"{}\"", check.name)));
            };
            if own.condition != check.condition {
                return Err(mismatch(format!(
                    "child table \"{}\" has different definition for check constraint \"{}\"",
                    table.name, check.name
                )));
            }
        }
        Ok(())
    }

    /// 23514 where a row of a partition, or of one of its own partitions, may not be there.
    fn check_members(&mut self, partition: TableId, message: impl Fn(&TableDef) -> String) -> Result<()> {
        let state = self.state();
        let missing = || Error::internal("a partition is gone");
        let def = state.table_of_id(partition).ok_or_else(missing)?.def.clone();
        let membership = Membership::of(&state, &def)?;
        let leaves = match state.partition_tree(&def)? {
            Some(tree) => tree.leaves().to_vec(),
            None => vec![partition],
        };
        for leaf in leaves {
            let name = RelationName::from(&*state.table_of_id(leaf).ok_or_else(missing)?.def);
            self.locked_table(&name)?;
            for (level, key) in membership.keys().enumerate() {
                self.check_rows(&name, key, &|batch| match membership.stranger_at(
                    level,
                    batch.columns(),
                    batch.num_rows(),
                )? {
                    None => Ok(()),
                    Some(_) => Err(Error::new(SqlState::CHECK_VIOLATION, message(&def)).with_subject(Subject {
                        schema: state.schema_name(def.schema).to_owned(),
                        table: def.name.clone(),
                        part: Part::Whole,
                    })),
                })?;
            }
        }
        Ok(())
    }

    /// Gives a partition its part of an index of its table: one that it has, or a new one.
    fn index_partition(&mut self, parent: &TableDef, partition: TableId, index: &IndexDef) -> Result<()> {
        let missing = || Error::internal("a partition is gone");
        let table = self.state().table_of_id(partition).cloned().ok_or_else(missing)?;
        let column = |column: &IndexColumn| {
            let (position, _) = parent.column_by_number(column.number)?;
            Some(IndexColumn { number: table.def.columns.get(position)?.number, ..*column })
        };
        let columns = index.columns.iter().map(column).collect::<Option<Vec<_>>>().ok_or_else(missing)?;
        let primary = |index: &IndexDef| index.constraint.map(|constraint| constraint.primary);
        let serves = |own: &&IndexDef| {
            own.partition_of.is_none()
                && !own.building
                && own.columns == columns
                && (own.unique, own.nulls_not_distinct) == (index.unique, index.nulls_not_distinct)
                && primary(own) == primary(index)
        };
        if table.def.indexes.iter().any(|own| own.partition_of == Some(index.id)) {
            return Ok(());
        }
        if let Some(own) = table.def.indexes.iter().find(serves).map(|own| own.id) {
            self.change_def(&table, |def| {
                def.indexes
                    .iter_mut()
                    .filter(|known| known.id == own)
                    .for_each(|own| own.partition_of = Some(index.id));
            });
            return Ok(());
        }
        let new = NewIndex {
            name: None,
            columns,
            unique: index.unique,
            nulls_not_distinct: index.nulls_not_distinct,
            primary: primary(index),
            tablespace: index.tablespace.clone(),
            partition_of: Some(index.id),
        };
        self.create_index(RelationName::from(&*table.def), new).map(drop)
    }

    /// Gives all partitions their part of a new index. `name` is the table's.
    pub(crate) fn index_partitions(&mut self, name: &RelationName, index: TableId) -> Result<()> {
        let table = self.table(name)?;
        let Some(partitioning) = &table.def.partitioning else { return Ok(()) };
        let index = table.def.indexes.iter().find(|known| known.id == index);
        let index = index.ok_or_else(|| Error::internal("a new index is gone"))?;
        for partition in &partitioning.partitions {
            self.index_partition(&table.def, partition.id, index)?;
        }
        Ok(())
    }

    /// The parts of an index of a partitioned table.
    pub(crate) fn parts_of_index(&self, table: &TableDef, index: TableId) -> Vec<RelationName> {
        let state = self.state();
        let partitions = table.partitioning.iter().flat_map(|partitioning| &partitioning.partitions);
        let tables = partitions.filter_map(|partition| state.table_of_id(partition.id));
        tables
            .flat_map(|table| table.def.indexes.iter().map(move |own| (table, own)))
            .filter(|(_, own)| own.partition_of == Some(index))
            .map(|(table, own)| RelationName::new(table.def.schema, &own.name))
            .collect()
    }
}

/// 42P17 for a table that is not partitioned.
fn partitioning_of(def: &TableDef) -> Result<&Partitioning> {
    let error = || Error::new(SqlState::INVALID_OBJECT_DEFINITION, format!("\"{}\" is not partitioned", def.name));
    def.partitioning.as_ref().ok_or_else(error)
}

/// 42P17 where a bound meets another's.
fn check_bound(
    state: &DatabaseState,
    parent: &TableDef,
    partitioning: &Partitioning,
    table: &TableDef,
    bound: &PartitionBound,
) -> Result<()> {
    let map = PartitionMap::new(parent, partitioning, &read_text)?;
    let invalid = |message: String| Error::new(SqlState::INVALID_OBJECT_DEFINITION, message);
    let name = &table.name;
    let other = |place: usize| {
        let id = partitioning.partitions[place].id;
        state.table_of_id(id).map_or_else(String::new, |table| table.def.name.clone())
    };
    let modulus_at = |place: usize| match partitioning.partitions[place].bound {
        PartitionBound::Hash { modulus, .. } => modulus,
        _ => 0,
    };
    let modulus = match bound {
        PartitionBound::Hash { modulus, .. } => *modulus,
        _ => 0,
    };
    let factor = "every hash partition modulus must be a factor of the next larger modulus";
    Err(match map.misfit(bound, &read_text)? {
        None => return Ok(()),
        Some(Misfit::Empty) => {
            let error = invalid(format!("empty range bound specified for partition \"{name}\""));
            match bound {
                PartitionBound::Range { from, to } => error.with_detail(format!(
                    "Specified lower bound {} is greater than or equal to upper bound {}.",
                    range_text(parent, partitioning, from),
                    range_text(parent, partitioning, to)
                )),
                _ => error,
            }
        }
        Some(Misfit::Overlaps(place)) => {
            invalid(format!("partition \"{name}\" would overlap partition \"{}\"", other(place)))
        }
        Some(Misfit::SecondDefault(place)) => {
            invalid(format!("partition \"{name}\" conflicts with existing default partition \"{}\"", other(place)))
        }
        Some(Misfit::NoFactor(place)) => invalid(factor.to_owned()).with_detail(format!(
            "The new modulus {modulus} is not a factor of {}, the modulus of existing partition \"{}\".",
            modulus_at(place),
            other(place)
        )),
        Some(Misfit::NotDivisible(place)) => invalid(factor.to_owned()).with_detail(format!(
            "The new modulus {modulus} is not divisible by {}, the modulus of existing partition \"{}\".",
            modulus_at(place),
            other(place)
        )),
    })
}
