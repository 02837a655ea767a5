use crate::{DeltaChunk, RowGroup, TableDef, TableStatistics};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Which tablespace, by name, each part of a table uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub main: String,
    pub delta: String,
    /// Columns whose main is elsewhere than `main`, by position.
    pub columns: std::collections::BTreeMap<usize, String>,
}

impl Placement {
    pub fn column(&self, index: usize) -> &str {
        self.columns.get(&index).map_or(&self.main, String::as_str)
    }
}

/// One immutable state of a table. Cheap to share; making the next one copies two vectors of pointers.
#[derive(Clone, Debug)]
pub struct TableVersion {
    pub def: Arc<TableDef>,
    pub placement: Placement,
    pub row_groups: Vec<Arc<RowGroup>>,
    pub delta: Vec<Arc<DeltaChunk>>,
}

impl TableVersion {
    pub fn new(_def: Arc<TableDef>, _placement: Placement) -> TableVersion {
        unimplemented!()
    }
    pub fn rows(&self) -> u64 {
        unimplemented!()
    }
    /// Over main and delta; computed once a version and kept.
    pub fn statistics(&self) -> Arc<TableStatistics> {
        unimplemented!()
    }
}
