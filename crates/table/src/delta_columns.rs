//! What is certain of columns' values in delta, from a look at all of its rows: their bounds, and the distinct texts where they are
//! few.
//!
//! A look is kept beside the table and serves later views as long as nothing is committed to the table. Of each row it takes every
//! image from the head down to the one that its own view sees. So it holds for each view that is not older, that has the
//! same main, and for which no transaction began to commit since: what such a view sees of a row lies in between. What
//! a view's own transaction wrote may lie above, so a transaction that wrote rows looks for itself.

use crate::dictionary::{ColumnDictionary, DICTIONARY_VALUES_MAX};
use crate::encoding::ints_of;
use crate::logical::Logical;
use crate::tally::read_of_versions;
use crate::{BATCH_ROWS, ROW_GROUP_ROWS, TableVersion};
use arrow_array::cast::AsArray;
use arrow_array::types::{Decimal128Type, Int64Type};
use arrow_array::{Array, ArrayRef, ArrowPrimitiveType, PrimitiveArray};
use arrow_schema::DataType;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use tidepool_base::{CommitTs, Result, RowGroupId};
use tidepool_tablespace::Purpose;

/// With more rows in delta than this, and than a quarter of main's, a look would cost more than it can save.
const ROWS_MAX: u64 = 4 * ROW_GROUP_ROWS as u64;
const ROWS_FEW: u64 = ROW_GROUP_ROWS as u64 / 2;

/// Bytes of rows that are decoded at once, about, and of the texts that are kept: all of it is memory that no statement's budget counts.
const DECODED_BYTES_MAX: usize = 8 << 20;
const TEXT_BYTES_MAX: usize = 4 << 20;

/// One column's values in delta. Some may be of rows that the view does not see.
#[derive(Debug, Default)]
pub struct DeltaColumn {
    pub rows: u64,
    pub nulls: u64,
    /// Of integers, dates, timestamps and unscaled decimals, NULLs left out.
    pub bounds: Option<(i128, i128)>,
    /// Of text; `None` if there are more than a dictionary takes, or longer ones.
    pub texts: Option<BTreeSet<Box<[u8]>>>,
    /// The dictionary of some main, and what it and `texts` make together.
    pub(crate) joined: Mutex<Option<Joined>>,
}

/// `None`: too much for a dictionary.
pub(crate) type Joined = (Arc<ColumnDictionary>, Option<Arc<ColumnDictionary>>);

impl DeltaColumn {
    fn of(batches: impl Iterator<Item = Result<ArrayRef>>) -> Result<DeltaColumn> {
        let mut column = DeltaColumn { texts: Some(BTreeSet::new()), ..DeltaColumn::default() };
        for array in batches {
            let array = array?;
            column.rows += array.len() as u64;
            column.nulls += array.null_count() as u64;
            match array.data_type() {
                DataType::Utf8View => {
                    column.add_texts(array.as_string_view().iter().map(|text| text.map(str::as_bytes)))
                }
                DataType::BinaryView => column.add_texts(array.as_binary_view().iter()),
                DataType::FixedSizeBinary(_) => column.add_texts(array.as_fixed_size_binary().iter()),
                DataType::Decimal128(..) => column.add_bounds(array.as_primitive::<Decimal128Type>(), i128::from),
                of if Logical::of(of)?.is_int() && *of != DataType::Boolean => {
                    column.add_bounds(ints_of(&array)?.as_primitive::<Int64Type>(), i128::from);
                }
                _ => {}
            }
        }
        Ok(column)
    }

    fn add_bounds<T: ArrowPrimitiveType>(&mut self, array: &PrimitiveArray<T>, widen: impl Fn(T::Native) -> i128) {
        for value in array.iter().flatten().map(widen) {
            let (min, max) = self.bounds.unwrap_or((value, value));
            self.bounds = Some((min.min(value), max.max(value)));
        }
    }

    fn add_texts<'a>(&mut self, texts: impl Iterator<Item = Option<&'a [u8]>>) {
        let Some(known) = &mut self.texts else { return };
        let mut bytes: usize = known.iter().map(|text| text.len()).sum();
        let mut last = None;
        for text in texts.flatten() {
            if last == Some(text) {
                continue;
            }
            last = Some(text);
            if !known.contains(text) {
                bytes += text.len();
                if bytes <= TEXT_BYTES_MAX {
                    known.insert(text.into());
                }
            }
            if known.len() > DICTIONARY_VALUES_MAX || bytes > TEXT_BYTES_MAX {
                self.texts = None;
                return;
            }
        }
    }
}

/// Looks at one state of a table.
#[derive(Debug)]
pub(crate) struct DeltaLook {
    groups: Vec<(RowGroupId, usize)>,
    /// Transactions that had begun to commit before the first of its views was taken.
    writes: u64,
    /// No older view is served.
    ts: CommitTs,
    /// Those that were asked for.
    columns: Vec<Option<Arc<DeltaColumn>>>,
}

impl DeltaLook {
    fn serves(&self, version: &TableVersion) -> bool {
        self.writes == version.writes_begun
            && self.ts <= version.view().ts()
            && self.groups.iter().copied().eq(version.groups_live())
    }
}

/// Rows in parts of neither many rows nor many bytes.
fn batches<'i, 'r>(images: &'i [&'r [u8]]) -> impl Iterator<Item = &'i [&'r [u8]]> {
    let mut left = images;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let mut fits = |image: &&[u8]| {
            bytes += image.len();
            bytes <= DECODED_BYTES_MAX
        };
        let rows = left.iter().take(BATCH_ROWS).take_while(|image| fits(image)).count().max(1).min(left.len());
        let (part, rest) = left.split_at(rows);
        left = rest;
        (rows > 0).then_some(part)
    })
}

impl TableVersion {
    /// What is certain of some columns in delta. `None` where it has too many rows to be looked at for it.
    pub fn delta_columns(&self, columns: &[usize]) -> Result<Option<Vec<Arc<DeltaColumn>>>> {
        let rows = self.delta_rows();
        if rows == 0 {
            return Ok(Some(vec![Arc::default(); columns.len()]));
        }
        if rows > ROWS_FEW.max(ROWS_MAX.min(self.main_rows() / 4)) {
            return Ok(None);
        }
        let mut known = vec![None; self.def.columns.len()];
        if !self.has_own_writes
            && let Some(look) = &*self.table().look().lock()
            && look.serves(self)
        {
            known.clone_from(&look.columns);
        }
        let mut missing: Vec<usize> = columns.iter().copied().filter(|column| known[*column].is_none()).collect();
        missing.sort_unstable();
        missing.dedup();
        if !missing.is_empty() {
            let mut images = Vec::new();
            for range in self.headed().iter().filter_map(|(number, _)| self.range(*number)) {
                range.images_down_to_seen(&mut images);
            }
            let space = self.rows().memory().tablespace();
            images
                .chunks(BATCH_ROWS)
                .for_each(|images| _ = space.charge(Purpose::Delta, &[read_of_versions(images).0]));
            for column in missing {
                let decode =
                    |images: &[&[u8]]| self.rows().layout().decode(images, &[column]).map(|mut one| one.remove(0));
                known[column] = Some(Arc::new(DeltaColumn::of(batches(&images).map(decode))?));
            }
            if !self.has_own_writes {
                self.keep_look(&known);
            }
        }
        Ok(Some(columns.iter().filter_map(|column| known[*column].clone()).collect()))
    }

    fn keep_look(&self, columns: &[Option<Arc<DeltaColumn>>]) {
        let look = DeltaLook {
            groups: self.groups_live().collect(),
            writes: self.writes_begun,
            ts: self.view().ts(),
            columns: columns.to_vec(),
        };
        let mut kept = self.table().look().lock();
        // One that serves newer views alone is not to go for one that serves none of those to come.
        if kept.as_ref().is_none_or(|kept| kept.writes <= look.writes) {
            *kept = Some(look);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::StringViewArray;

    #[test]
    fn long_values_are_neither_decoded_at_once_nor_kept() {
        let long = vec![0u8; 3 << 20];
        let images: Vec<&[u8]> = vec![&long, &long, &long, b"a", b"b", &long];
        let parts: Vec<usize> = batches(&images).map(<[&[u8]]>::len).collect();
        assert_eq!(parts, [2, 4]);
        assert_eq!(batches(&[]).count(), 0);
        let text =
            |letter: &str| -> Result<ArrayRef> { Ok(Arc::new(StringViewArray::from(vec![letter.repeat(3 << 20)]))) };
        let few = DeltaColumn::of([text("a"), text("a")].into_iter()).unwrap();
        assert_eq!((few.rows, few.texts.unwrap().len()), (2, 1));
        let many = DeltaColumn::of([text("a"), text("b"), text("a")].into_iter()).unwrap();
        assert_eq!((many.rows, many.texts), (3, None));
    }
}
