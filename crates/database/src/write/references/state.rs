//! Which foreign keys refer to which tables, as one state of everything has it.

use crate::catalog::state::DatabaseState;
use std::sync::Arc;
use tidepool_base::TableId;
use tidepool_table::{ForeignKeyDef, ReferencedPart, Table, TableDef};

/// A foreign key by which rows of a table may be referred to.
#[derive(Clone, Copy, Debug)]
pub struct Referring<'s> {
    /// Which has the foreign key.
    pub child: &'s Arc<Table>,
    pub key: &'s ForeignKeyDef,
    /// The index of the table referred to.
    pub index: TableId,
}

impl DatabaseState {
    /// The foreign keys that name a table as the one referred to, each with the table that has it: partitions' parts too.
    pub fn foreign_keys_to(&self, table: TableId) -> impl Iterator<Item = (&Arc<Table>, &ForeignKeyDef)> {
        let children = self.referencing.get(&table).into_iter().flatten();
        let children = children.filter_map(|child| self.table_of_id(*child));
        children.flat_map(move |child| {
            let keys = child.def.foreign_keys.iter().filter(move |key| key.referenced == table);
            keys.map(move |key| (child, key))
        })
    }

    /// The foreign keys that refer to a table or to one that it is within, each once: not the parts that partitions have.
    pub fn foreign_keys_on(&self, table: TableId) -> Vec<Referring<'_>> {
        let mut found = Vec::new();
        if self.referencing.is_empty() {
            return found;
        }
        let table = self.table_of_id(table);
        let mut within = table;
        while let (Some(table), Some(of)) = (table, within) {
            for (child, key) in self.foreign_keys_to(of.def.id).filter(|(_, key)| key.part_of.is_none()) {
                if let Some(index) = self.index_within(&table.def, of.def.id, key.index) {
                    found.push(Referring { child, key, index });
                }
            }
            within = of.def.partition_of.and_then(|parent| self.table_of_id(parent));
        }
        found
    }

    /// The index of a table that is the part of one of a table which it is within, or that one itself.
    pub(crate) fn index_within(&self, def: &TableDef, above: TableId, index: TableId) -> Option<TableId> {
        if def.id == above {
            return Some(index);
        }
        let parent = self.table_of_id(def.partition_of?)?;
        let of = self.index_within(&parent.def, above, index)?;
        def.indexes.iter().find(|own| own.partition_of == Some(of)).map(|own| own.id)
    }

    /// The partitions of a table, all the way down, each before those within it.
    pub fn partitions_within(&self, def: &TableDef) -> Vec<TableId> {
        let mut found = Vec::new();
        for partition in def.partitioning.iter().flat_map(|of| &of.partitions) {
            found.push(partition.id);
            if let Some(table) = self.table_of_id(partition.id) {
                found.extend(self.partitions_within(&table.def));
            }
        }
        found
    }

    /// What a foreign key to a partitioned table is to one of the partitions, as a constraint of its own. `None` where the
    /// partition is gone.
    pub fn referenced_part(&self, key: &ForeignKeyDef, part: &ReferencedPart) -> Option<ForeignKeyDef> {
        let (whole, own) = (&self.table_of_id(key.referenced)?.def, &self.table_of_id(part.referenced)?.def);
        let above = key.referenced_parts.iter().find(|known| Some(known.referenced) == own.partition_of);
        let positions = whole.positions(&key.referenced_columns);
        Some(ForeignKeyDef {
            oid: part.oid,
            name: part.name.clone(),
            referenced: own.id,
            referenced_columns: positions.iter().map(|position| own.columns[*position].number).collect(),
            index: self.index_within(own, whole.id, key.index)?,
            part_of: Some(above.map_or(key.oid, |above| above.oid)),
            referenced_parts: Vec::new(),
            ..key.clone()
        })
    }
}
