//! What a scan reads: a table, or the partitions of one.
//!
//! A partitioned table is read by one operator whose streams go through its partitions one after the other, and share
//! the work within each: filters, projections, run-time filters and limits are the operator's, and as many streams run
//! as for one table of all the rows.

use std::sync::Arc;
use tidepool_base::Result;
use tidepool_database::{DatabaseVersion, PartitionTree};
use tidepool_heap::QueryHeap;
use tidepool_table::{ColumnFilter, IndexAccess, IndexDef, TableStatistics, TableVersion};

#[derive(Debug)]
pub struct Source {
    /// The table that is named. A partitioned one has no rows of its own.
    pub version: Arc<TableVersion>,
    partitions: Option<(Arc<PartitionTree>, Arc<DatabaseVersion>)>,
}

/// A table that has rows, and how they are reached.
#[derive(Clone, Debug)]
pub struct Part {
    pub version: Arc<TableVersion>,
    /// Among the partitions of the table that is named.
    pub ordinal: usize,
    /// Through an index, instead of all of the table.
    pub access: Option<Arc<IndexAccess>>,
}

impl Source {
    pub fn of(database: &Arc<DatabaseVersion>, version: Arc<TableVersion>) -> Result<Source> {
        let tree = database.partition_tree(&version.def)?;
        Ok(Source { version, partitions: tree.map(|tree| (tree, database.clone())) })
    }

    pub fn is_partitioned(&self) -> bool {
        self.partitions.is_some()
    }

    /// Partitions that there are.
    pub fn partitions(&self) -> usize {
        self.partitions.as_ref().map_or(0, |(tree, _)| tree.leaves().len())
    }

    /// The tables that may have rows for which all conditions hold.
    pub fn tables(&self, filters: &[ColumnFilter]) -> Vec<(usize, Arc<TableVersion>)> {
        let Some((tree, database)) = &self.partitions else { return vec![(0, self.version.clone())] };
        let kept = tree.prune(filters).into_iter();
        kept.filter_map(|ordinal| Some((ordinal, database.table_by_id(tree.leaves()[ordinal])?))).collect()
    }

    /// As `tables`, each with the cheapest way to its rows.
    pub fn parts(&self, filters: &[ColumnFilter], reads: &[usize]) -> Vec<Part> {
        if self.is_partitioned() {
            // Which partitions there are.
            QueryHeap::outside(|| self.version.read_by(&[], None));
        }
        let part = |(ordinal, version): (usize, Arc<TableVersion>)| {
            let access = IndexAccess::choose(&version, filters, reads).map(Arc::new);
            Part { version, ordinal, access }
        };
        self.tables(filters).into_iter().map(part).collect()
    }

    /// Of all its rows, or those of some partitions.
    pub fn statistics(&self, parts: Option<&[Part]>) -> Arc<TableStatistics> {
        if !self.is_partitioned() {
            return self.version.statistics();
        }
        let versions: Vec<Arc<TableVersion>> = match parts {
            Some(parts) => parts.iter().map(|part| part.version.clone()).collect(),
            None => self.tables(&[]).into_iter().map(|(_, version)| version).collect(),
        };
        self.version.statistics_of(&versions)
    }
}

impl Part {
    pub fn index_def(&self) -> Option<&IndexDef> {
        let access = self.access.as_ref()?;
        self.version.def.indexes.iter().find(|def| def.id == access.index().id())
    }

    /// Pieces that threads can take.
    pub fn morsels(&self) -> usize {
        match self.access {
            Some(_) => 1,
            None => self.version.row_groups.len() + self.version.headed().len(),
        }
    }
}
