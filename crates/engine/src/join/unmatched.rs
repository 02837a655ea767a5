//! Rows of the build side that come out once the probe side is over.

use super::JoinKind;
use super::table::{JoinTable, MATCHED, Range, ranges};
use crate::pipeline::{Next, Reader, Source};
use crate::touch::Touches;
use crate::vector::{CHUNK_ROWS, Chunk, Vector};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use tidepool_base::Result;

/// Rows that a reader takes at a time.
const PIECE_ROWS: usize = 16 << 10;

/// For [`JoinKind::emits_build`]: those rows of the build side that the probe side has no match for, or for
/// [`JoinKind::RightSemi`] those that it has one for. What columns [`super::Join::output`] has of the probe side are
/// NULL.
pub struct BuildRows {
    table: Arc<JoinTable>,
    pieces: Arc<OnceLock<Pieces>>,
}

struct Pieces {
    ranges: Vec<Range>,
    next: AtomicUsize,
}

impl BuildRows {
    pub fn new(table: &Arc<JoinTable>) -> BuildRows {
        BuildRows { table: Arc::clone(table), pieces: Arc::default() }
    }

    fn pieces(&self) -> Result<&Pieces> {
        let built = self.table.built()?;
        let join = &self.table.join;
        Ok(self.pieces.get_or_init(|| {
            let mut ranges = ranges(&built.rows, PIECE_ROWS);
            ranges.extend(self::ranges(&built.keyless, PIECE_ROWS));
            if join.null_aware && join.residual.is_none() {
                // NOT IN: true for no row if the list has a NULL, nor for a NULL unless the list is empty.
                if self.table.probe_null_came.load(Ordering::Relaxed) {
                    ranges.clear();
                } else if self.table.probe_came.load(Ordering::Relaxed) {
                    ranges.retain(|range| !built.keyless.iter().any(|rows| Arc::ptr_eq(rows, &range.rows)));
                }
            }
            Pieces { ranges, next: AtomicUsize::new(0) }
        }))
    }
}

impl Source for BuildRows {
    fn reader(&self) -> Result<Box<dyn Reader>> {
        self.pieces()?;
        let (table, pieces) = (Arc::clone(&self.table), Arc::clone(&self.pieces));
        let touches = table.touches();
        Ok(Box::new(BuildReader { table, pieces, range: None, start: 0, touches }))
    }

    fn parallelism(&self) -> Result<usize> {
        Ok(self.pieces()?.ranges.len().max(1))
    }
}

struct BuildReader {
    table: Arc<JoinTable>,
    pieces: Arc<OnceLock<Pieces>>,
    range: Option<Range>,
    /// Rows of the range that were looked at.
    start: usize,
    touches: Touches,
}

impl Reader for BuildReader {
    fn next(&mut self) -> Result<Next> {
        let Some(pieces) = self.pieces.get() else { return Ok(Next::End) };
        let built = self.table.built()?;
        let wanted = if self.table.join.kind == JoinKind::RightSemi { MATCHED } else { 0 };
        loop {
            let range = match &self.range {
                Some(range) => range,
                None => {
                    let Some(range) = pieces.ranges.get(pieces.next.fetch_add(1, Ordering::Relaxed)) else {
                        return Ok(Next::End);
                    };
                    self.start = 0;
                    self.range.insert(range.clone())
                }
            };
            let mut rows = Vec::with_capacity(CHUNK_ROWS);
            let first = self.start;
            for row in range.pointers().skip(self.start) {
                if rows.len() == CHUNK_ROWS {
                    break;
                }
                self.start += 1;
                // SAFETY: the range has the row; headers are used as shared everywhere.
                if unsafe { row.header() }.load(Ordering::Relaxed) & MATCHED == wanted {
                    rows.push(row);
                }
            }
            self.touches.read(&self.table.pools.rows, (self.start - first) * self.table.layout.width());
            if self.start == range.count {
                self.range = None;
            }
            if rows.is_empty() {
                continue;
            }
            let join = &self.table.join;
            let mut columns = Vec::new();
            if join.kind.emits_probe() {
                let null = |column: &usize| Vector::nulls(&join.probe_types[*column], rows.len());
                columns.extend(join.probe_output.iter().map(null));
            }
            let layout = &self.table.layout;
            // SAFETY: the table has the rows, and they are complete.
            let stored = |field: &usize| unsafe { layout.gather(*field, &rows, &built.owners) };
            columns.extend(self.table.output_fields.iter().map(stored));
            return Ok(Next::Chunk(Chunk::new(rows.len(), columns)));
        }
    }
}
