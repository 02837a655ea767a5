//! Some of a table's rows, chosen evenly, for a planner to try conditions on.

use crate::rows::RangeView;
use crate::{RowGroup, TableVersion};
use arrow_array::ArrayRef;
use arrow_array::cast::AsArray;
use arrow_schema::DataType;
use arrow_select::concat::concat;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use tidepool_base::{Error, Result};

/// Rows of a sample. A share of the table is known to within a tenth of itself where it is a twentieth.
const SAMPLE_ROWS: u64 = 2048;

/// Bytes of versions that a sample may keep.
const IMAGE_BYTES_MAX: usize = 8 << 20;

/// Bytes of a column's values, as a scan hands them out, that a sample may keep.
const COLUMN_BYTES_MAX: f64 = (2u32 << 20) as f64;

/// Rows as they were when the sample was drawn. A column is decoded when it is first asked for.
#[derive(Debug)]
pub(crate) struct Sample {
    of: SampleOf,
    /// Positions in row groups, which nothing changes. Who replaces or moves one does not wait for a sample.
    main: Vec<(Weak<RowGroup>, Vec<u32>)>,
    /// Of rows in versions.
    images: Vec<Box<[u8]>>,
    columns: Mutex<Vec<Option<ArrayRef>>>,
}

/// How many rows there were.
#[derive(Clone, Copy, Debug)]
struct SampleOf {
    rows: u64,
    headed: u64,
}

impl SampleOf {
    /// A sample of the one is as good as one of the other.
    fn is_about(self, other: SampleOf) -> bool {
        let near = |a: u64, b: u64| a.abs_diff(b) <= self.rows / 16;
        near(self.rows, other.rows) && near(self.headed, other.headed)
    }
}

impl Sample {
    /// `None` where its rows are not there any more.
    fn column(&self, version: &TableVersion, column: usize) -> Result<Option<ArrayRef>> {
        if let Some(known) = &self.columns.lock()[column] {
            return Ok(Some(Arc::clone(known)));
        }
        let mut arrays = Vec::with_capacity(self.main.len() + 1);
        for (group, positions) in &self.main {
            let Some(group) = group.upgrade() else { return Ok(None) };
            arrays.push(group.segments()[column].take(positions)?);
        }
        if !self.images.is_empty() || arrays.is_empty() {
            let images: Vec<&[u8]> = self.images.iter().map(|image| &**image).collect();
            arrays.extend(version.rows().layout().decode(&images, &[column])?);
        }
        let arrays: Vec<&dyn arrow_array::Array> = arrays.iter().map(|array| &**array).collect();
        let all = concat(&arrays).map_err(|error| Error::internal(error.to_string()))?;
        // Views would keep whole segments where they are.
        let all: ArrayRef = match all.data_type() {
            DataType::Utf8View => Arc::new(all.as_string_view().gc()),
            DataType::BinaryView => Arc::new(all.as_binary_view().gc()),
            _ => all,
        };
        self.columns.lock()[column] = Some(Arc::clone(&all));
        Ok(Some(all))
    }
}

impl TableVersion {
    /// Some columns of about 2,000 rows, or of all where there are no more, chosen evenly over the table; the same for as long as
    /// the table stays about the same. They need not be as this view sees them. `None` where values are too long to keep some of
    /// them. Belongs to the table: to be called outside of a statement's heap.
    pub fn sample(&self, columns: &[usize]) -> Result<Option<Vec<ArrayRef>>> {
        let statistics = self.statistics();
        let bytes = |column: &usize| statistics.columns.get(*column).map_or(0.0, |known| known.value_bytes_avg);
        if columns.iter().map(bytes).any(|bytes| bytes * SAMPLE_ROWS as f64 > COLUMN_BYTES_MAX) {
            return Ok(None);
        }
        let of = SampleOf { rows: statistics.rows, headed: self.delta_rows() };
        // Row groups may be replaced meanwhile.
        for _ in 0..3 {
            let known = self.table().sample().lock().clone().filter(|known| known.of.is_about(of));
            let sample = match known {
                Some(known) => known,
                None => {
                    let Some(drawn) = self.draw(of).map(Arc::new) else { return Ok(None) };
                    *self.table().sample().lock() = Some(Arc::clone(&drawn));
                    drawn
                }
            };
            let arrays: Option<Vec<ArrayRef>> =
                columns.iter().map(|column| sample.column(self, *column)).collect::<Result<_>>()?;
            if arrays.is_some() {
                return Ok(arrays);
            }
            *self.table().sample().lock() = None;
        }
        Ok(None)
    }

    /// `None` if versions are too long.
    fn draw(&self, of: SampleOf) -> Option<Sample> {
        let parts: Vec<(u64, u64)> = self.parts().into_iter().map(|number| (number, self.positions(number))).collect();
        let all: u64 = parts.iter().map(|(_, positions)| positions).sum();
        let wanted = all.min(SAMPLE_ROWS);
        let mut sample = Sample {
            of,
            main: Vec::new(),
            images: Vec::new(),
            columns: Mutex::new(vec![None; self.def.columns.len()]),
        };
        let (mut next, mut before, mut image_bytes) = (0, 0, 0);
        for (number, positions) in parts {
            let mut chosen = Vec::new();
            while next < wanted {
                // One of each stretch of equal length, anywhere in it.
                let (start, end) = (next * all / wanted, (next + 1) * all / wanted);
                let position = start + spread(next) % (end - start);
                if position >= before + positions {
                    break;
                }
                chosen.push((position - before) as u32);
                next += 1;
            }
            before += positions;
            let Some(range) = self.range(number).filter(|_| !chosen.is_empty()) else { continue };
            let (in_main, in_versions) = range.sorted_out(&chosen);
            if let Some(group) = range.group().filter(|_| !in_main.is_empty()) {
                sample.main.push((Arc::downgrade(group), in_main));
            }
            let mut versions = Vec::new();
            range.images(&in_versions, &mut versions);
            image_bytes += versions.iter().map(|(_, image)| image.len()).sum::<usize>();
            if image_bytes > IMAGE_BYTES_MAX {
                return None;
            }
            sample.images.extend(versions.into_iter().map(|(_, image)| image.into()));
        }
        Some(sample)
    }

    /// Up to which position a range may have rows.
    fn positions(&self, number: u64) -> u64 {
        let Some(range) = self.range(number) else { return 0 };
        let in_main = range.group().map_or(0, |group| group.rows());
        let headed = (0..RangeView::WINDOWS).rev().find(|window| range.headed(*window) != 0);
        let in_delta = headed.map_or(0, |window| 64 * window + range.headed(window).ilog2() as usize + 1);
        in_main.max(in_delta) as u64
    }
}

/// A number that looks like any other.
fn spread(number: u64) -> u64 {
    let mixed = (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ mixed >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93) >> 17
}
