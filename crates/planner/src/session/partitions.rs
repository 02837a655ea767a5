//! `ALTER TABLE` of partitioned tables and of partitions: what reaches the partitions, and what only their table may
//! change.

use super::alter::Altering;
use crate::ddl;
use crate::partitions;
use crate::references::conform;
use crate::resolve;
use crate::row_expressions::RowExpressions;
use crate::statement::{AlterAction, BoundClause, QualifiedName};
use tidepool_base::{Error, Result, SqlState, TableId};
use tidepool_database::{ColumnSource, NewPartition, RelationName};
use tidepool_table::{CheckDef, ColumnDef, TableDef, TableVersion};

fn invalid(message: String) -> Error {
    Error::new(SqlState::INVALID_TABLE_DEFINITION, message)
}

/// 42P16 for a constraint that is the part of another.
pub(super) fn inherited(constraint: &str, table: &str) -> Error {
    invalid(format!("cannot drop inherited constraint \"{constraint}\" of relation \"{table}\""))
}

/// The partitions of a table, in the order in which they came.
pub(super) fn partitions_of(def: &TableDef) -> Vec<TableId> {
    let partitions = def.partitioning.iter().flat_map(|partitioning| &partitioning.partitions);
    partitions.map(|partition| partition.id).collect()
}

impl Altering<'_> {
    /// Refuses what would part a table from its partitions, or a partition from its table.
    pub(super) fn check_partitioned(&self, table: &TableVersion, action: &AlterAction) -> Result<()> {
        let def = &table.def;
        if let Some(partitioning) = &def.partitioning {
            let in_key = |column: &str| {
                let column = def.columns.iter().find(|known| known.name == column);
                column.is_some_and(|column| partitioning.columns.contains(&column.number))
            };
            let verb = match action {
                AlterAction::DropColumn { column, .. } if in_key(column) => Some(("drop", column)),
                AlterAction::SetType { column, .. } if in_key(column) => Some(("alter", column)),
                _ => None,
            };
            if let Some((verb, column)) = verb {
                return Err(invalid(format!(
                    "cannot {verb} column \"{column}\" because it is part of the partition key of relation \"{}\"",
                    def.name
                )));
            }
        }
        let Some(parent) = def.partition_of.filter(|_| !self.is_recursing) else { return Ok(()) };
        let parent =
            self.facts.version.table_of_id(parent).ok_or_else(|| Error::internal("a partition of no table"))?;
        let refused = |verb: &str, column: &str| Err(invalid(format!("cannot {verb} inherited column \"{column}\"")));
        match action {
            AlterAction::AddColumn { .. } => {
                Err(Error::new(SqlState::WRONG_OBJECT_TYPE, "cannot add column to a partition"))
            }
            AlterAction::DropColumn { column, .. } if def.column_index(column).is_some() => refused("drop", column),
            AlterAction::RenameColumn { column, .. } if def.column_index(column).is_some() => refused("rename", column),
            AlterAction::SetType { column, .. } if def.column_index(column).is_some() => refused("alter", column),
            AlterAction::SetNotNull { column, not_null: false }
                if parent.def.columns.iter().any(|known| known.name == *column && !known.nullable) =>
            {
                Err(invalid(format!("column \"{column}\" is marked NOT NULL in parent table")))
            }
            AlterAction::DropConstraint { name, .. } if is_inherited(&parent.def, def, name) => {
                Err(inherited(name, &def.name))
            }
            AlterAction::RenameConstraint { name, .. } if parent.def.checks.iter().any(|check| check.name == *name) => {
                Err(invalid(format!("cannot rename inherited constraint \"{name}\"")))
            }
            _ => Ok(()),
        }
    }

    /// What is done to a partitioned table, done to its partitions.
    pub(super) fn recurse(&mut self, before: &TableDef, action: &AlterAction) -> Result<()> {
        let partitions = partitions_of(before);
        if partitions.is_empty() {
            return Ok(());
        }
        let version = self.transaction.version();
        let now = version.table_of_id(before.id).ok_or_else(|| Error::internal("a locked table is gone"))?.def.clone();
        let repeated = match action {
            AlterAction::RenameColumn { .. }
            | AlterAction::SetType { .. }
            | AlterAction::SetDefault { .. }
            | AlterAction::SetNotNull { .. }
            | AlterAction::DropColumn { .. } => action.clone(),
            // Under the name that the table's has.
            AlterAction::AddCheck { condition, .. } => {
                let name = now.checks.last().map(|check| check.name.clone());
                AlterAction::AddCheck { name, condition: condition.clone() }
            }
            AlterAction::DropConstraint { name, cascade, .. }
                if before.checks.iter().any(|check| check.name == *name) =>
            {
                AlterAction::DropConstraint { name: name.clone(), if_exists: true, cascade: *cascade }
            }
            AlterAction::RenameConstraint { name, .. } if before.checks.iter().any(|check| check.name == *name) => {
                action.clone()
            }
            _ => return Ok(()),
        };
        partitions.into_iter().try_for_each(|partition| self.of_partition(partition, |of| of.apply(&repeated)))
    }

    /// Alters a partition along with its table, over what was done so far.
    fn of_partition(&mut self, partition: TableId, alter: impl FnOnce(&mut Altering<'_>) -> Result<()>) -> Result<()> {
        let facts = self.facts.over(self.transaction.version());
        alter(&mut Altering {
            facts: &facts,
            transaction: self.transaction,
            interrupt: self.interrupt,
            table: partition,
            is_recursing: true,
            told: self.told,
        })
    }

    /// Gives the partitions of a table a column that it has now, and the constraints that came with it.
    pub(super) fn add_to_partitions(
        &mut self,
        parent: &TableDef,
        added: &ColumnDef,
        checks: &[CheckDef],
    ) -> Result<()> {
        partitions_of(parent)
            .into_iter()
            .try_for_each(|partition| self.of_partition(partition, |of| of.add_inherited(parent, added, checks)))
    }

    fn add_inherited(&mut self, parent: &TableDef, added: &ColumnDef, checks: &[CheckDef]) -> Result<()> {
        let table = self.locked()?;
        let mut def = TableDef::clone(&table.def);
        let own_default = added.default.clone().filter(|_| added.identity.is_none());
        def.columns.push(ColumnDef { number: 0, identity: None, default: own_default, ..added.clone() });
        ddl::check_columns(&def.columns)?;
        def.number_columns();
        let database = self.facts.planner.database();
        let mut own: Vec<CheckDef> =
            checks.iter().map(|check| CheckDef { oid: database.next_table_id().0, ..check.clone() }).collect();
        ddl::renumber(&mut own, parent, &def.columns);
        def.checks.extend(own.iter().cloned());
        let mut sources: Vec<ColumnSource> = (0..table.def.columns.len()).map(ColumnSource::Kept).collect();
        sources.push(ColumnSource::Computed(0));
        let default = added.default.clone().unwrap_or_else(|| "NULL".to_owned());
        let texts = [(default, Some(added.sql_type))];
        let expressions = RowExpressions::plan(self.facts, &def.name, &[], &texts, "default expression")?;
        let conform = conform(self.facts, added);
        self.transaction.rewrite_table(&RelationName::from(&*table.def), def.clone(), &sources, &[], &|batch| {
            conform(expressions.evaluate(batch)?)
        })?;
        self.check_existing(&def, &own)?;
        self.add_to_partitions(&def, added, &own)
    }

    pub(super) fn attach(&mut self, table: &TableVersion, name: &QualifiedName, clause: &BoundClause) -> Result<()> {
        if table.def.partitioning.is_none() {
            return Err(Error::new(
                SqlState::INVALID_OBJECT_DEFINITION,
                format!("table \"{}\" is not partitioned", table.def.name),
            ));
        }
        let partition = resolve::table(self.facts, name)?;
        let bound = partitions::bound(self.facts, &table.def, clause)?;
        let new = NewPartition { parent: table.def.id, bound };
        self.transaction.attach_partition(&RelationName::from(&*partition.def), &new)
    }

    pub(super) fn detach(&mut self, table: &TableVersion, name: &QualifiedName) -> Result<()> {
        if table.def.partitioning.is_none() {
            return Err(Error::new(
                SqlState::INVALID_OBJECT_DEFINITION,
                format!("table \"{}\" is not partitioned", table.def.name),
            ));
        }
        let partition = resolve::table(self.facts, name)?;
        self.transaction.detach_partition(table.def.id, &RelationName::from(&*partition.def))
    }

    /// A partitioned table's constraint that a partition has already, under its name. 42710 where it says something else.
    pub(super) fn has_inherited_check(&self, def: &TableDef, check: &CheckDef) -> Result<bool> {
        match def.checks.iter().find(|known| known.name == check.name) {
            None => Ok(false),
            Some(known) if known.condition == check.condition => Ok(true),
            Some(_) => Err(Error::new(
                SqlState::DUPLICATE_OBJECT,
                format!("constraint \"{}\" for relation \"{}\" already exists", check.name, def.name),
            )),
        }
    }
}

fn is_inherited(parent: &TableDef, def: &TableDef, constraint: &str) -> bool {
    parent.checks.iter().any(|check| check.name == constraint)
        || def.index(constraint).is_some_and(|index| index.partition_of.is_some())
        || def.foreign_key(constraint).is_some_and(|key| key.part_of.is_some())
}
