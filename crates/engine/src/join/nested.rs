//! Rows that are tried with each of the other side's: joins without keys, and keys that NULL may make equal.

use super::JoinKind;
use super::probe::Prober;
use super::table::{Built, JoinTable, MATCHED, ranges};
use crate::mask::Mask;
use crate::pipeline::Out;
use crate::rows::{FrozenRows, RowPtr};
use crate::vector::{CHUNK_ROWS, Chunk};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidepool_base::Result;

impl Prober {
    /// A join without keys.
    pub(super) fn all_pairs(&mut self, chunk: &Chunk, built: &Built, out: Out<'_>) -> Result<()> {
        let kind = self.table.join.kind;
        if self.table.is_set() {
            self.matched.fill(u8::from(built.total > 0));
            return Ok(());
        }
        if self.table.residual.is_none() && !kind.pairs() {
            // Each row of the build side matches any.
            if !std::mem::replace(&mut self.has_marked_all, true) {
                for range in ranges(&built.rows, CHUNK_ROWS) {
                    self.touches.write(&self.table.pools.rows, range.count * self.table.layout.width());
                    let rows: Vec<RowPtr> = range.pointers().collect();
                    // SAFETY: the table's rows.
                    unsafe { JoinTable::mark_matched(&rows) };
                }
            }
            return Ok(());
        }
        let rows = (0..chunk.rows as u32).collect();
        self.tile(chunk, built, rows, &built.rows, false, out)
    }

    /// Pairs whose keys may be equal because one of them is NULL.
    pub(super) fn try_nulls(&mut self, chunk: &Chunk, built: &Built, keyed: Option<&Mask>, out: Out<'_>) -> Result<()> {
        self.unknown.clear();
        self.unknown.resize(chunk.rows, 0);
        let keyed = keyed.cloned().unwrap_or_else(|| Mask::all(chunk.rows));
        let is_open = |matched: &[u8]| Mask::of_values(matched, |matched| matched == 0);
        let open = if self.table.join.kind.tests_probe() { is_open(&self.matched) } else { Mask::all(chunk.rows) };
        self.tile(chunk, built, open.and(&keyed).positions(), &built.keyless, true, out)?;
        let without = open.and_not(&keyed).positions();
        self.tile(chunk, built, without.clone(), &built.keyless, true, out)?;
        self.tile(chunk, built, without, &built.rows, true, out)
    }

    /// Tries rows of the chunk with each of some stored ones, about a chunk's worth of pairs at a time.
    fn tile(
        &mut self,
        chunk: &Chunk,
        built: &Built,
        mut rows: Vec<u32>,
        stored: &[Arc<FrozenRows>],
        unknown: bool,
        out: Out<'_>,
    ) -> Result<()> {
        let kind = self.table.join.kind;
        let only_once = matches!(kind, JoinKind::RightSemi | JoinKind::RightAnti);
        let mut pairs = std::mem::take(&mut self.pairs);
        pairs.clear();
        for range in ranges(stored, usize::MAX) {
            if !rows.is_empty() {
                self.touches.read(&self.table.pools.rows, range.count * self.table.layout.width());
            }
            for row in range.pointers() {
                // SAFETY: a row of the table's; headers are used as shared everywhere.
                if only_once && unsafe { row.header() }.load(Ordering::Relaxed) & MATCHED != 0 {
                    continue;
                }
                if rows.is_empty() {
                    break;
                }
                pairs.rows.extend_from_slice(&rows);
                pairs.stored.extend(std::iter::repeat_n(row, rows.len()));
                if pairs.len() + rows.len() > CHUNK_ROWS {
                    self.take_pairs(chunk, built, &mut pairs, unknown, out)?;
                    self.table.check()?;
                    if kind.tests_probe() {
                        let hits = if unknown { &self.unknown } else { &self.matched };
                        rows.retain(|row| hits[*row as usize] == 0);
                    }
                }
            }
        }
        self.take_pairs(chunk, built, &mut pairs, unknown, out)?;
        self.pairs = pairs;
        Ok(())
    }
}
