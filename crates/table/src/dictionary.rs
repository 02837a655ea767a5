//! One dictionary over all of a column of text, so that a scan can hand out codes that mean the same everywhere.

use crate::delta_columns::DeltaColumn;
use crate::encoding::primitive;
use crate::sketch::hash_bytes;
use crate::{RowGroup, TableVersion};
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{Array, ArrayRef};
use arrow_schema::DataType;
use hashbrown::{HashMap, HashTable};
use std::any::Any;
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use tidepool_base::{Error, Result, RowGroupId};

/// A dictionary has at most so many values, and bytes of them.
pub(crate) const DICTIONARY_VALUES_MAX: usize = 4096;
const DICTIONARY_BYTES_MAX: usize = 1 << 20;

/// The distinct values of a column that one version's rows have, ascending by their bytes: a value's code is its place. Some may
/// belong to rows that are not there any more.
#[derive(Debug)]
pub struct ColumnDictionary {
    values: Vec<Arc<[u8]>>,
    /// Of each row group, the code of each of its own codes. Row groups of the same values share one.
    maps: Vec<Arc<[i64]>>,
    /// Codes by the hash of their values: made when somebody asks for the code of a text.
    places: OnceLock<HashTable<u32>>,
    /// What its readers have made of it.
    derived: OnceLock<Arc<dyn Any + Send + Sync>>,
}

/// What was made last of a column's main, and of which row groups.
#[derive(Debug)]
pub(crate) struct MainDictionary {
    groups: Vec<RowGroupId>,
    /// `None`: it has none.
    dictionary: Option<Arc<ColumnDictionary>>,
}

impl TableVersion {
    /// Of a column of text. `None` unless each of its segments has a dictionary, and they and delta have few values together.
    /// Of main it is worked out once.
    pub fn dictionary(&self, column: usize, delta: &DeltaColumn) -> Result<Option<Arc<ColumnDictionary>>> {
        let Some(main) = self.main_dictionary(column)? else { return Ok(None) };
        if delta.rows == delta.nulls {
            return Ok(Some(main));
        }
        let Some(texts) = &delta.texts else { return Ok(None) };
        let mut joined = delta.joined.lock();
        if let Some((of, known)) = &*joined
            && Arc::ptr_eq(of, &main)
        {
            return Ok(known.clone());
        }
        let is_new = |text: &&[u8]| main.values.binary_search_by(|value| (**value).cmp(text)).is_err();
        let new: Vec<&[u8]> = texts.iter().map(|text| &**text).filter(is_new).collect();
        let both = if new.is_empty() { Some(main.clone()) } else { main.with(new).map(Arc::new) };
        *joined = Some((main, both.clone()));
        Ok(both)
    }

    /// Whether all of a column's main has dictionaries of few values, and can be read.
    pub fn main_has_dictionaries(&self, column: usize) -> bool {
        let few = |group: &Arc<RowGroup>| {
            let len = group.segments()[column].dictionary_len();
            len.is_ok_and(|len| len.is_some_and(|len| len <= DICTIONARY_VALUES_MAX))
        };
        self.row_groups.iter().all(few)
    }

    fn main_dictionary(&self, column: usize) -> Result<Option<Arc<ColumnDictionary>>> {
        if !self.main_has_dictionaries(column) {
            return Ok(None);
        }
        let groups = || self.row_groups.iter().map(|group| group.id());
        if let Some(Some(known)) = self.table().dictionaries().lock().get(column)
            && groups().eq(known.groups.iter().copied())
        {
            return Ok(known.dictionary.clone());
        }
        let dictionary = ColumnDictionary::of(&self.row_groups, column)?.map(Arc::new);
        let mut known = self.table().dictionaries().lock();
        if known.len() <= column {
            known.resize_with(column + 1, || None);
        }
        known[column] = Some(MainDictionary { groups: groups().collect(), dictionary: dictionary.clone() });
        Ok(dictionary)
    }
}

fn is_small<'a>(values: impl ExactSizeIterator<Item = &'a [u8]>) -> bool {
    values.len() <= DICTIONARY_VALUES_MAX && values.map(<[u8]>::len).sum::<usize>() <= DICTIONARY_BYTES_MAX
}

impl ColumnDictionary {
    fn of(groups: &[Arc<RowGroup>], column: usize) -> Result<Option<ColumnDictionary>> {
        let mut own: Vec<Vec<&[u8]>> = Vec::with_capacity(groups.len());
        let mut all: BTreeSet<&[u8]> = BTreeSet::new();
        for group in groups {
            let Some(texts) = group.segments()[column].dictionary_texts()? else { return Ok(None) };
            // Most row groups have the same values as the one before.
            if own.last() != Some(&texts) {
                all.extend(texts.iter().copied());
            }
            if all.len() > DICTIONARY_VALUES_MAX {
                return Ok(None);
            }
            own.push(texts);
        }
        if !is_small(all.iter().copied()) {
            return Ok(None);
        }
        let codes: HashMap<&[u8], i64> = all.iter().copied().zip(0..).collect();
        let code = |text: &&[u8]| codes.get(text).copied().ok_or_else(|| Error::internal("a value without a code"));
        let mut maps: Vec<Arc<[i64]>> = Vec::with_capacity(own.len());
        for (index, texts) in own.iter().enumerate() {
            let map = match maps.last() {
                Some(last) if own[index - 1] == *texts => Arc::clone(last),
                _ => texts.iter().map(code).collect::<Result<_>>()?,
            };
            maps.push(map);
        }
        let values = all.into_iter().map(Arc::from).collect();
        Ok(Some(ColumnDictionary { values, maps, places: OnceLock::new(), derived: OnceLock::new() }))
    }

    /// With values that it does not have, ascending. `None` if they are too many together.
    fn with(&self, new: Vec<&[u8]>) -> Option<ColumnDictionary> {
        let mut new = new.into_iter().peekable();
        let mut values: Vec<Arc<[u8]>> = Vec::with_capacity(self.values.len() + new.len());
        let mut moved = Vec::with_capacity(self.values.len());
        for value in &self.values {
            values.extend(std::iter::from_fn(|| new.next_if(|new| *new < &**value)).map(Arc::from));
            moved.push(values.len() as i64);
            values.push(Arc::clone(value));
        }
        values.extend(new.map(Arc::from));
        if !is_small(values.iter().map(|value| &**value)) {
            return None;
        }
        let mut maps: Vec<Arc<[i64]>> = Vec::with_capacity(self.maps.len());
        for (index, map) in self.maps.iter().enumerate() {
            maps.push(match maps.last() {
                Some(last) if Arc::ptr_eq(&self.maps[index - 1], map) => Arc::clone(last),
                _ => map.iter().map(|code| moved[*code as usize]).collect(),
            });
        }
        Some(ColumnDictionary { values, maps, places: OnceLock::new(), derived: OnceLock::new() })
    }

    /// What `derive` makes of it: once, as all of its readers make the same.
    pub fn derived<T: Send + Sync + 'static>(&self, derive: impl FnOnce() -> T) -> Result<Arc<T>> {
        let derived = self.derived.get_or_init(|| Arc::new(derive()));
        derived.clone().downcast().map_err(|_| Error::internal("two readers make different things of a dictionary"))
    }

    /// By code.
    pub fn values(&self) -> &[Arc<[u8]>] {
        &self.values
    }

    pub(crate) fn map(&self, group: usize) -> Result<&[i64]> {
        let map = self.maps.get(group).map(|map| &**map);
        map.ok_or_else(|| Error::internal("a dictionary of another version"))
    }

    fn places(&self) -> &HashTable<u32> {
        self.places.get_or_init(|| {
            let hash = |code: &u32| hash_bytes(&self.values[*code as usize]);
            let mut places = HashTable::with_capacity(self.values.len());
            for code in 0..self.values.len() as u32 {
                places.insert_unique(hash(&code), code, hash);
            }
            places
        })
    }

    /// Codes of text, as `Int64`.
    pub(crate) fn codes_of(&self, array: &ArrayRef) -> Result<ArrayRef> {
        let places = self.places();
        let code = |bytes: &[u8]| {
            let found = places.find(hash_bytes(bytes), |code| *self.values[*code as usize] == *bytes);
            found.map(|code| i64::from(*code)).ok_or_else(|| Error::internal("a value that no dictionary has"))
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
