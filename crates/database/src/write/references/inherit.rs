//! Foreign keys of partitioned tables, and to them, as partitions come and go.

use super::define::constraints;
use super::link::{Link, Reference};
use crate::Transaction;
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState, TableId};
use tidepool_table::{ForeignKeyDef, ReferencedPart, TableDef};

/// Changes a table's foreign keys; of one by this number it is the turn.
type ChangeKeys<'a> = &'a dyn Fn(&mut Vec<ForeignKeyDef>, u32);

impl Transaction {
    /// What a foreign key of `child` is to each of these partitions of the table that it refers to.
    pub(super) fn referenced_parts(
        &self,
        child: &TableDef,
        key: &ForeignKeyDef,
        partitions: Vec<TableId>,
    ) -> Vec<ReferencedPart> {
        let mut taken = vec![key.name.clone()];
        let part = |referenced: TableId| {
            let name = self.free_key_name(child, &key.columns, &taken);
            taken.push(name.clone());
            ReferencedPart { oid: self.database.next_table_id().0, name, referenced }
        };
        partitions.into_iter().map(part).collect()
    }

    /// The parts of a table's foreign key, by number, each with the partition that has it.
    pub(super) fn parts_of(&self, def: &TableDef, key: u32) -> Vec<(TableId, u32)> {
        let state = self.state();
        let partitions = def.partitioning.iter().flat_map(|of| &of.partitions);
        let partitions = partitions.filter_map(|partition| state.table_of_id(partition.id));
        let parts = partitions.flat_map(|partition| {
            let parts = partition.def.foreign_keys.iter().filter(|own| own.part_of == Some(key));
            parts.map(|own| (partition.def.id, own.oid))
        });
        parts.collect()
    }

    /// Foreign keys by number, with the parts of each, all the way down.
    pub(super) fn with_parts(&self, keys: &[u32]) -> Vec<u32> {
        let state = self.state();
        let mut all = keys.to_vec();
        let mut seen = 0;
        while seen < all.len() {
            let of = all[seen];
            seen += 1;
            let every = state.tables.values().flat_map(|table| &table.def.foreign_keys);
            let parts: Vec<u32> = every.filter(|key| key.part_of == Some(of)).map(|key| key.oid).collect();
            for part in parts {
                if !all.contains(&part) {
                    all.push(part);
                }
            }
        }
        all
    }

    /// Changes a foreign key of a table, by number, and all its parts. The tables are locked.
    pub(super) fn change_everywhere(&mut self, table: TableId, key: u32, change: ChangeKeys<'_>) {
        let state = self.state();
        let Some(table) = state.table_of_id(table) else { return };
        for (partition, part) in self.parts_of(&table.def, key) {
            self.change_everywhere(partition, part, change);
        }
        self.change_keys(table.def.id, |keys| change(keys, key));
    }

    fn change_keys(&mut self, table: TableId, change: impl FnOnce(&mut Vec<ForeignKeyDef>)) {
        let state = self.state();
        if let Some(table) = state.table_of_id(table) {
            let mut def = TableDef::clone(&table.def);
            change(&mut def.foreign_keys);
            self.change(table.with_def(Arc::new(def)));
        }
    }

    fn change_key(&mut self, table: TableId, key: u32, change: impl FnOnce(&mut ForeignKeyDef)) {
        self.change_keys(table, |keys| {
            if let Some(key) = keys.iter_mut().find(|known| known.oid == key) {
                change(key);
            }
        });
    }

    /// Gives the partitions of a table their parts of a foreign key. Rows are not looked at.
    pub(super) fn pass_on(&mut self, key: &ForeignKeyDef, table: TableId) -> Result<()> {
        let state = self.state();
        let Some(of) = state.table_of_id(table) else { return Ok(()) };
        for partition in of.def.partitioning.iter().flat_map(|of| &of.partitions) {
            self.inherit(&of.def, key, partition.id)?;
        }
        Ok(())
    }

    /// Gives a partition, and its own, its part of a foreign key of `of`: one that it has, or a new one. Whether it is new.
    fn inherit(&mut self, of: &TableDef, key: &ForeignKeyDef, partition: TableId) -> Result<bool> {
        let state = self.state();
        let missing = || Error::internal("a partition is gone");
        let def = state.table_of_id(partition).ok_or_else(missing)?.def.clone();
        if key.referenced == partition {
            return Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!(
                    "cannot attach table \"{}\" as a partition because it is referenced by foreign key \"{}\"",
                    def.name, key.name
                ),
            ));
        }
        let columns: Vec<u16> = of.positions(&key.columns).into_iter().map(|place| def.columns[place].number).collect();
        let serves = |own: &&ForeignKeyDef| {
            own.part_of.is_none()
                && !own.not_valid
                && (own.referenced, &own.columns, &own.referenced_columns)
                    == (key.referenced, &columns, &key.referenced_columns)
                && (own.match_full, own.on_delete, own.on_update) == (key.match_full, key.on_delete, key.on_update)
                && (own.deferrable, own.initially_deferred) == (key.deferrable, key.initially_deferred)
        };
        if let Some(own) = def.foreign_keys.iter().find(serves).map(|own| own.oid) {
            self.change_key(partition, own, |own| {
                own.part_of = Some(key.oid);
                own.referenced_parts.clear();
            });
            return Ok(false);
        }
        let name = match constraints(&def).any(|taken| *taken == key.name) {
            true => self.free_key_name(&def, &columns, &[]),
            false => key.name.clone(),
        };
        let own = ForeignKeyDef {
            oid: self.database.next_table_id().0,
            name,
            columns,
            part_of: Some(key.oid),
            referenced_parts: Vec::new(),
            ..key.clone()
        };
        self.change_keys(partition, |keys| keys.push(own.clone()));
        self.pass_on(&own, partition)?;
        Ok(true)
    }

    /// Gives a new partition, which is locked as its table is, its parts of the table's foreign keys, and lets those that
    /// refer to the table refer to it too. 23503 where a row of it refers to nothing.
    pub(crate) fn inherit_foreign_keys(&mut self, parent: TableId, partition: TableId) -> Result<()> {
        let missing = || Error::internal("a locked table is gone");
        let state = self.state();
        let (of, def) =
            (state.table_of_id(parent).ok_or_else(missing)?, state.table_of_id(partition).ok_or_else(missing)?);
        self.lock_within(&def.def)?;
        let referring = self.lock_referring(parent)?;
        for (child, key) in &referring {
            let state = self.state();
            let child = state.table_of_id(*child).ok_or_else(missing)?;
            let of_key = child.def.foreign_keys.iter().find(|known| known.oid == *key).ok_or_else(missing)?;
            let mut partitions = vec![partition];
            partitions.extend(state.partitions_within(&def.def));
            let parts = self.referenced_parts(&child.def, of_key, partitions);
            self.change_key(child.def.id, *key, |key| key.referenced_parts.extend(parts));
        }
        if !referring.is_empty() {
            self.touch(partition)?;
        }
        // As the table has them by now: one may refer to the table itself.
        let state = self.state();
        let keys = &state.table_of_id(parent).ok_or_else(missing)?.def.foreign_keys;
        for key in keys {
            self.locked_parent(key.referenced)?;
            if self.inherit(&of.def, key, partition)? {
                let state = self.state();
                let own = state.table_of_id(partition).ok_or_else(missing)?;
                let part = own.def.foreign_keys.iter().find(|own| own.part_of == Some(key.oid)).ok_or_else(missing)?;
                self.check_existing(partition, part.oid)?;
            }
        }
        Ok(())
    }

    /// Locks the tables, and their partitions, whose foreign keys refer to a table or to one that it is within: their
    /// numbers, each with its table.
    fn lock_referring(&mut self, table: TableId) -> Result<Vec<(TableId, u32)>> {
        loop {
            let found = |transaction: &Transaction| -> Vec<(TableId, u32)> {
                let state = transaction.state();
                let referring = state.foreign_keys_on(table);
                let mut found: Vec<_> = referring.iter().map(|of| (of.child.def.id, of.key.oid)).collect();
                found.sort_by_key(|(_, key)| *key);
                found
            };
            let referring = found(self);
            for (child, _) in &referring {
                self.locked_parent(*child)?;
            }
            if found(self) == referring {
                return Ok(referring);
            }
        }
    }

    /// Takes from a partition, which is locked as its table is, what it is to foreign keys that refer to the table, and
    /// leaves it the parts that it has of the table's, as foreign keys of its own. 23503 where a row refers to it through
    /// the table.
    pub(crate) fn leave_foreign_keys(&mut self, parent: TableId, partition: TableId) -> Result<()> {
        let referring = self.lock_referring(parent)?;
        for (child, key) in &referring {
            self.check_removal(*child, *key, partition)?;
        }
        self.forget_referenced_parts(&referring, partition);
        let state = self.state();
        let missing = || Error::internal("a locked table is gone");
        let def = &state.table_of_id(partition).ok_or_else(missing)?.def;
        for key in def.foreign_keys.iter().filter(|key| key.part_of.is_some()) {
            let of = state.table_of_id(key.referenced).ok_or_else(missing)?;
            let parts = self.referenced_parts(def, key, state.partitions_within(&of.def));
            self.change_key(partition, key.oid, |own| (own.part_of, own.referenced_parts) = (None, parts));
        }
        Ok(())
    }

    fn forget_referenced_parts(&mut self, referring: &[(TableId, u32)], partition: TableId) {
        let state = self.state();
        let mut gone = vec![partition];
        gone.extend(state.table_of_id(partition).into_iter().flat_map(|table| state.partitions_within(&table.def)));
        for (child, key) in referring {
            self.change_key(*child, *key, |key| key.referenced_parts.retain(|part| !gone.contains(&part.referenced)));
        }
    }

    /// 23503 where a row of `child` refers to one of a partition.
    fn check_removal(&mut self, child: TableId, key: u32, partition: TableId) -> Result<()> {
        let missing = || Error::internal("a locked table is gone");
        let state = self.state();
        let child = state.table_of_id(child).ok_or_else(missing)?;
        let key = child.def.foreign_keys.iter().find(|known| known.oid == key).ok_or_else(missing)?;
        let parent = state.table_of_id(key.referenced).ok_or_else(missing)?;
        let leaves = |def: &Arc<TableDef>| {
            let tree = state.partition_tree(def)?;
            Ok::<_, Error>(tree.map_or_else(|| vec![def.id], |tree| tree.leaves().to_vec()))
        };
        let partition = &state.table_of_id(partition).ok_or_else(missing)?.def;
        let (members, all) = (leaves(partition)?, leaves(&parent.def)?);
        let children = leaves(&child.def)?.into_iter().map(|leaf| state.table_of_id(leaf).cloned());
        let children = children.collect::<Option<Vec<_>>>().ok_or_else(missing)?;
        let mut link = Link::new(&state, key, child, children, parent)?;
        link.open_all(&state)?;
        let patience = self.patience();
        for leaf in &link.leaves {
            let version = Arc::new(self.newest(leaf));
            link.each_reference(&version, &|| patience.check(), &mut |columns, row, reference, key| {
                if reference == Reference::Key
                    && let Some((place, _)) = link.referenced(version.view(), key)?
                    && members.contains(&all[place])
                {
                    return Err(link.removed(partition, columns, row)?);
                }
                Ok(true)
            })?;
        }
        Ok(())
    }

    /// 55000 for a foreign key that is the part of another.
    pub(super) fn is_derived(&self, def: &TableDef, name: &str, of: u32) -> Error {
        let state = self.state();
        let above = def.partition_of.and_then(|parent| state.table_of_id(parent));
        let above_name = above.map_or("", |above| &above.def.name);
        let key = above.and_then(|above| above.def.foreign_keys.iter().find(|key| key.oid == of));
        let key = key.map_or("", |key| &key.name);
        let message = format!("cannot alter constraint \"{name}\" on relation \"{}\"", def.name);
        Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message)
            .with_detail(format!(
                "Constraint \"{name}\" is derived from constraint \"{key}\" of relation \"{above_name}\"."
            ))
            .with_hint("You may alter the constraint it derives from, instead.")
    }
}
