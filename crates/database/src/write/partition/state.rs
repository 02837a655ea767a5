//! The trees of partitioned tables as one state of the database has them.

use super::tree::{Membership, PartitionTree};
use crate::catalog::state::DatabaseState;
use std::sync::Arc;
use tidepool_base::{Error, Result};
use tidepool_table::TableDef;

impl DatabaseState {
    /// `None` for a table that is not partitioned.
    pub fn partition_tree(&self, def: &Arc<TableDef>) -> Result<Option<Arc<PartitionTree>>> {
        self.trees.tree(def, &|id| self.table_of_id(id))
    }
}

impl Membership {
    /// Of a table that is no partition: anything may be in it.
    pub fn of(state: &DatabaseState, def: &TableDef) -> Result<Membership> {
        let mut within = Vec::new();
        let (mut id, mut parent) = (def.id, def.partition_of);
        while let Some(of) = parent {
            let table = state.table_of_id(of).ok_or_else(|| Error::internal("a partition's table is gone"))?;
            let tree = state.partition_tree(&table.def)?.ok_or_else(|| Error::internal("a partition of no table"))?;
            let partitions = table.def.partitioning.iter().flat_map(|partitioning| &partitioning.partitions);
            let place = partitions.clone().position(|partition| partition.id == id);
            within.push((tree, place.ok_or_else(|| Error::internal("a partition that its table does not know"))?));
            (id, parent) = (of, table.def.partition_of);
        }
        Ok(Membership::within(within))
    }
}
