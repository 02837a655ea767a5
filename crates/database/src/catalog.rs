//! What exists: one immutable state of the database, and what its tables take.

use std::collections::BTreeMap;
use std::sync::Arc;
use tidepool_base::{CommitTs, TableId};
use tidepool_table::{EncodingKind, TableVersion};

/// One immutable state of the database.
#[derive(Clone, Debug)]
pub struct DatabaseVersion {
    pub commit_ts: CommitTs,
    /// By name, schema `public`.
    pub tables: BTreeMap<String, Arc<TableVersion>>,
}

impl DatabaseVersion {
    pub fn table(&self, name: &str) -> Option<&Arc<TableVersion>> {
        self.tables.get(name)
    }

    pub fn table_by_id(&self, id: TableId) -> Option<&Arc<TableVersion>> {
        self.tables.values().find(|table| table.def.id == id)
    }

    /// This state with tables replaced, added (`Some`) or removed (`None`).
    pub(crate) fn with(&self, commit_ts: CommitTs, changes: &BTreeMap<TableId, Option<Arc<TableVersion>>>) -> Self {
        let mut tables: BTreeMap<_, _> =
            self.tables.iter().filter(|(_, table)| !changes.contains_key(&table.def.id)).map(cloned).collect();
        for table in changes.values().flatten() {
            tables.insert(table.def.name.clone(), table.clone());
        }
        DatabaseVersion { commit_ts, tables }
    }
}

fn cloned((name, table): (&String, &Arc<TableVersion>)) -> (String, Arc<TableVersion>) {
    (name.clone(), table.clone())
}

/// What one column's main takes.
#[derive(Clone, Debug, Default)]
pub struct ColumnSize {
    pub tablespace: String,
    /// As plain Arrow.
    pub raw_bytes: u64,
    pub encoded_bytes: u64,
    /// Each encoding once, with the number of segments that use it.
    pub encodings: Vec<(EncodingKind, usize)>,
}

/// What a table takes.
#[derive(Clone, Debug, Default)]
pub struct TableSize {
    pub main_rows: u64,
    pub delta_rows: u64,
    pub delta_bytes: u64,
    pub delta_chunks: usize,
    pub row_groups: usize,
    pub columns: Vec<ColumnSize>,
}

impl TableSize {
    pub fn of(table: &TableVersion) -> TableSize {
        let mut columns: Vec<ColumnSize> = (0..table.def.columns.len())
            .map(|column| ColumnSize { tablespace: table.placement.column(column).to_owned(), ..ColumnSize::default() })
            .collect();
        for group in &table.row_groups {
            for (segment, column) in group.segments().iter().zip(&mut columns) {
                column.raw_bytes += segment.raw_bytes();
                column.encoded_bytes += segment.bytes().len() as u64;
                match column.encodings.iter_mut().find(|(kind, _)| *kind == segment.encoding()) {
                    Some((_, count)) => *count += 1,
                    None => column.encodings.push((segment.encoding(), 1)),
                }
            }
        }
        TableSize {
            main_rows: table.row_groups.iter().map(|group| group.rows() as u64).sum(),
            delta_rows: table.delta.iter().map(|chunk| chunk.batch().num_rows() as u64).sum(),
            delta_bytes: table.delta.iter().map(|chunk| chunk.bytes()).sum(),
            delta_chunks: table.delta.len(),
            row_groups: table.row_groups.len(),
            columns,
        }
    }

    pub fn main_raw_bytes(&self) -> u64 {
        self.columns.iter().map(|column| column.raw_bytes).sum()
    }

    pub fn main_bytes(&self) -> u64 {
        self.columns.iter().map(|column| column.encoded_bytes).sum()
    }
}
