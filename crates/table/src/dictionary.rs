//! One dictionary over all row groups of a column of text, so that a scan can hand out codes that mean the same everywhere.

use crate::encoding::primitive;
use crate::segment::Segment;
use crate::{RowGroup, TableVersion};
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use hashbrown::HashMap;
use std::collections::BTreeSet;
use std::sync::Arc;
use tidepool_base::{Error, Result};

/// The distinct values of a column that one version's rows have, ascending by their bytes: a value's code is its place. Some may
/// belong to rows that are not there any more.
#[derive(Debug)]
pub struct ColumnDictionary {
    values: Vec<Box<[u8]>>,
    /// Of each row group, the code of each of its own codes.
    maps: Vec<Vec<i64>>,
}

impl ColumnDictionary {
    /// `None` unless the column is text, each of its segments has a dictionary, they have no more than `values_max` values
    /// together, and no row is in delta.
    pub fn of(version: &TableVersion, column: usize, values_max: usize) -> Result<Option<ColumnDictionary>> {
        if !version.headed.is_empty() {
            return Ok(None);
        }
        let segment = |group: &Arc<RowGroup>| -> Option<usize> { group.segments()[column].dictionary_len() };
        let is_small = |group: &Arc<RowGroup>| segment(group).is_some_and(|len| len <= values_max);
        if !version.row_groups.iter().all(is_small) {
            return Ok(None);
        }
        let mut own: Vec<Vec<&[u8]>> = Vec::with_capacity(version.row_groups.len());
        let mut all: BTreeSet<&[u8]> = BTreeSet::new();
        for group in &version.row_groups {
            let segment: &Segment = &group.segments()[column];
            let Some(texts) = segment.dictionary_texts()? else { return Ok(None) };
            // Most row groups have the same values as the one before.
            if own.last() != Some(&texts) {
                all.extend(texts.iter().copied());
            }
            if all.len() > values_max {
                return Ok(None);
            }
            own.push(texts);
        }
        let codes: HashMap<&[u8], i64> = all.iter().copied().zip(0..).collect();
        let code = |text: &&[u8]| codes.get(text).copied().ok_or_else(|| Error::internal("a value without a code"));
        let maps = own.iter().map(|texts| texts.iter().map(code).collect()).collect::<Result<Vec<Vec<i64>>>>()?;
        Ok(Some(ColumnDictionary { values: all.into_iter().map(Box::from).collect(), maps }))
    }

    /// By code.
    pub fn values(&self) -> &[Box<[u8]>] {
        &self.values
    }

    pub(crate) fn map(&self, group: usize) -> Result<&[i64]> {
        let map = self.maps.get(group).map(Vec::as_slice);
        map.ok_or_else(|| Error::internal("a dictionary of another version"))
    }

    /// Codes of text, as `Int64`.
    pub(crate) fn codes_of(&self, array: &ArrayRef) -> Result<ArrayRef> {
        let code = |bytes: &[u8]| {
            let found = self.values.binary_search_by(|value| value.as_ref().cmp(bytes));
            found.map(|code| code as i64).map_err(|_| Error::internal("a value that no dictionary has"))
        };
        let value = |row: usize| -> &[u8] {
            match array.data_type() {
                DataType::BinaryView => array.as_binary_view().value(row),
                _ => array.as_string_view().value(row).as_bytes(),
            }
        };
        let of = |row: usize| if array.is_null(row) { Ok(0) } else { code(value(row)) };
        let codes = (0..array.len()).map(of).collect::<Result<Vec<i64>>>()?;
        Ok(primitive::<Int64Type>(codes, array.nulls().cloned()))
    }
}
