//! Rows of many chunks as one.

use crate::mask::Mask;
use crate::room;
use crate::text::Owners;
use crate::vector::{Chunk, Texts, Values, Vector};
use arrow_array::Array;
use tidepool_base::{Error, Result};

/// Where a row is: its worker, its chunk among the worker's, and its place in that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place(u64);

/// More rows of a chunk have no place.
pub(super) const PLACES: usize = 1 << 16;

impl Place {
    pub fn new(worker: usize, chunk: usize, row: usize) -> Place {
        debug_assert!(worker < 1 << 16 && chunk < 1 << 32 && row < PLACES);
        Place((worker as u64) << 48 | (chunk as u64) << 16 | row as u64)
    }

    /// Different for each row; the next one's in its chunk is one more.
    pub fn number(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub fn worker(self) -> usize {
        (self.0 >> 48) as usize
    }

    #[inline(always)]
    pub fn chunk(self) -> usize {
        (self.0 >> 16) as u32 as usize
    }

    #[inline(always)]
    pub fn row(self) -> usize {
        self.0 as u16 as usize
    }
}

/// Chunks of some workers.
#[derive(Debug, Default)]
pub(super) struct Parts {
    chunks: Vec<Chunk>,
    /// Where each worker's begin.
    starts: Vec<usize>,
    /// Of each column, what its texts lie in.
    owners: Vec<Owners>,
}

impl Parts {
    pub fn new(workers: Vec<Vec<Chunk>>) -> Parts {
        let mut parts = Parts::default();
        for chunks in workers {
            parts.starts.push(parts.chunks.len());
            parts.chunks.extend(chunks);
        }
        let columns = parts.chunks.first().map_or(0, |chunk| chunk.columns.len());
        let of_column = |column: usize| {
            Owners::union(parts.chunks.iter().filter_map(|chunk| match &chunk.columns[column].values {
                Values::Text(texts) => Some(texts.owners()),
                _ => None,
            }))
        };
        parts.owners = (0..columns).map(of_column).collect();
        parts
    }

    #[inline(always)]
    fn index(&self, place: Place) -> usize {
        self.starts[place.worker()] + place.chunk()
    }

    pub fn row(&self, place: Place) -> (&Chunk, usize) {
        (&self.chunks[self.index(place)], place.row())
    }

    /// Some rows, in that order.
    pub fn gather(&self, places: &[Place]) -> Result<Chunk> {
        let columns = (0..self.owners.len()).map(|column| self.column(column, places)).collect::<Result<_>>()?;
        Ok(Chunk { rows: places.len(), columns })
    }

    fn pick<'a, T: Copy + 'a>(
        &'a self,
        column: usize,
        places: &[Place],
        values: impl Fn(&'a Vector) -> Result<&'a [T]>,
    ) -> Result<Vec<T>> {
        let slices = self.chunks.iter().map(|chunk| values(&chunk.columns[column])).collect::<Result<Vec<_>>>()?;
        room::collected(places.len(), places.iter().map(|place| slices[self.index(*place)][place.row()]))
    }

    fn column(&self, column: usize, places: &[Place]) -> Result<Vector> {
        let vector = |place: Place| &self.chunks[self.index(place)].columns[column];
        let values = match &self.chunks[0].columns[column].values {
            Values::Int(_) => Values::Int(self.pick(column, places, Vector::as_ints)?.into()),
            Values::Wide(_) => Values::Wide(self.pick(column, places, Vector::as_wide)?.into()),
            Values::Float(_) => Values::Float(self.pick(column, places, Vector::as_floats)?.into()),
            Values::Bool(_) => {
                let masks =
                    self.chunks.iter().map(|chunk| chunk.columns[column].as_bools()).collect::<Result<Vec<_>>>()?;
                Values::Bool(Mask::of_values(places, |place: Place| masks[self.index(place)].get(place.row())))
            }
            Values::Text(_) => {
                let texts = self.pick(column, places, |vector| vector.as_texts().map(Texts::values))?;
                // SAFETY: the owners are those of all of the column's texts.
                Values::Text(unsafe { Texts::new(texts, self.owners[column].clone()) })
            }
            Values::Other(_) => {
                let arrays = self.chunks.iter().map(|chunk| match &chunk.columns[column].values {
                    Values::Other(array) => Ok(array.as_ref()),
                    _ => Err(Error::internal("a column is not like its other part")),
                });
                let arrays: Vec<&dyn Array> = arrays.collect::<Result<_>>()?;
                let rows: Vec<(usize, usize)> = places.iter().map(|place| (self.index(*place), place.row())).collect();
                let all = arrow_select::interleave::interleave(&arrays, &rows);
                Values::Other(all.map_err(|error| Error::internal(error.to_string()))?)
            }
        };
        let has_nulls = self.chunks.iter().any(|chunk| chunk.columns[column].valid.is_some());
        let valid = has_nulls.then(|| Mask::of_values(places, |place: Place| vector(place).is_valid(place.row())));
        Ok(Vector { values, valid: None }.with_valid(valid))
    }
}
