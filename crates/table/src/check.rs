//! Whether a table is what it should be: its segments, its versions, its indexes.

use crate::index::IndexKey;
use crate::{BATCH_ROWS, ScanRequest, TableScan, TableVersion};
use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use std::sync::Arc;
use tidepool_base::{Result, RowId};

/// What was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableReport {
    pub segments: u64,
    /// Encoded bytes of main whose checksums were compared.
    pub main_bytes: u64,
    pub versions: u64,
    /// Rows that the view sees.
    pub rows: u64,
    pub indexes: u64,
    pub entries: u64,
}

impl TableVersion {
    /// Reads all of the table as the view sees it: compares checksums and looks at every value of main, follows every chain of
    /// versions, and looks up every row in every index. Tells `fault` of what is wrong. Others go on meanwhile. An error
    /// is `interrupted`'s.
    pub fn check(
        self: &Arc<Self>,
        fault: &mut dyn FnMut(String),
        interrupted: &dyn Fn() -> Result<()>,
    ) -> Result<TableReport> {
        let mut report = TableReport::default();
        let mut readable = true;
        for (group, range) in self.row_groups.iter().zip(self.ranges()) {
            for (column, segment) in self.def.columns.iter().zip(group.segments()) {
                interrupted()?;
                report.segments += 1;
                report.main_bytes += segment.encoded_bytes();
                if let Err(error) = segment.check() {
                    readable = false;
                    fault(format!("column \"{}\" of row group {range}: {}", column.name, error.message()));
                }
            }
        }
        for (number, _) in self.headed() {
            interrupted()?;
            report.versions += self.rows().check_range(self.view(), *number, fault);
        }
        if readable && let Err(error) = self.check_rows(&mut report, fault, interrupted)? {
            fault(error);
        }
        Ok(report)
    }

    /// The inner error: why rows could not be read.
    fn check_rows(
        self: &Arc<Self>,
        report: &mut TableReport,
        fault: &mut dyn FnMut(String),
        interrupted: &dyn Fn() -> Result<()>,
    ) -> Result<std::result::Result<(), String>> {
        let name = |index: &crate::TableIndex| {
            let def = self.def.indexes.iter().find(|def| def.id == index.id());
            def.map_or("", |def| def.name.as_str())
        };
        for index in self.table().indexes() {
            loop {
                interrupted()?;
                match index.backfill_next(&|| Ok(())) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        fault(format!("index \"{}\" is not complete: {}", name(index), error.message()));
                        break;
                    }
                }
            }
        }
        let complete = |index: &&Arc<crate::TableIndex>| index.is_complete_for(self.view());
        let indexes: Vec<_> = self.table().indexes().iter().filter(complete).collect();
        for index in &indexes {
            report.indexes += 1;
            match index.tree().check(self.view()) {
                Ok(tree) => report.entries += tree.entries,
                Err(error) => {
                    let detail = error.detail().unwrap_or_default();
                    fault(format!("index \"{}\": {} {detail}", name(index), error.message()));
                }
            }
        }
        let mut columns: Vec<usize> = indexes.iter().flat_map(|index| index.positions()).copied().collect();
        columns.sort_unstable();
        columns.dedup();
        let ids = columns.len();
        let projection = columns.iter().copied().chain([self.def.columns.len()]).collect();
        let request = ScanRequest {
            projection,
            filters: Vec::new(),
            dynamic: None,
            limit: None,
            batch_rows: BATCH_ROWS,
            forms: Vec::new(),
        };
        let mut reader = TableScan::new(Arc::clone(self), request).reader();
        let (mut key, mut other) = (IndexKey::default(), IndexKey::default());
        loop {
            interrupted()?;
            let batch = match reader.next_batch() {
                Ok(Some(batch)) => batch,
                Ok(None) => return Ok(Ok(())),
                Err(error) => return Ok(Err(error.message().to_owned())),
            };
            report.rows += batch.num_rows() as u64;
            for index in &indexes {
                let place = |column: &usize| columns.binary_search(column).unwrap_or_default();
                let of_key: Vec<_> =
                    index.positions().iter().map(|column| batch.column(place(column)).clone()).collect();
                for row in 0..batch.num_rows() {
                    let id = RowId(batch.column(ids).as_primitive::<UInt64Type>().value(row));
                    if let Err(error) = index.key_at(&of_key, row, &mut key) {
                        return Ok(Err(error.message().to_owned()));
                    }
                    // Not among all rows of the key, of which there may be as many as the table has.
                    if !index.tree().has(self.view(), key.bytes(), id) {
                        fault(format!("index \"{}\" does not have row {id}", name(index)));
                    }
                    if !index.is_exclusive(&key) {
                        continue;
                    }
                    let found = index.tree().get(self.view(), key.bytes());
                    if found.len() > 1 {
                        let has_key = |row: &&RowId| {
                            let read = self.rows().read(self.view(), **row);
                            read.is_some_and(|read| index.key_of(self.rows(), read, &mut other).is_ok() && other == key)
                        };
                        if found.iter().filter(has_key).count() > 1 {
                            fault(format!("index \"{}\" has the key of row {id} more than once", name(index)));
                        }
                    }
                }
            }
        }
    }
}
