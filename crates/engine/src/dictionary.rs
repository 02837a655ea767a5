//! Dictionaries of text that one column of a query has over all of its row groups: rows carry codes.

use crate::text::{Owners, Text};

/// Distinct values, ascending by their bytes: codes order as the values do.
#[derive(Debug)]
pub struct Dictionary {
    values: Vec<Text>,
    owners: Owners,
}

impl PartialEq for Dictionary {
    fn eq(&self, other: &Dictionary) -> bool {
        let pairs = || self.values.iter().zip(&other.values);
        // SAFETY: the owners of both are here.
        self.len() == other.len() && pairs().all(|(own, other)| unsafe { own.equals(other) })
    }
}

impl Dictionary {
    /// Panics unless the values ascend. `owners` hold what long ones lie in.
    pub fn new(values: Vec<Text>, owners: Owners) -> Dictionary {
        // SAFETY: `owners` are here.
        assert!(values.is_sorted_by(|a, b| unsafe { a.compare(b) }.is_lt()), "a dictionary's values ascend");
        Dictionary { values, owners }
    }

    pub fn len(&self) -> usize {
        self.values.len()
    }

    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Panics past the last code.
    pub fn value(&self, code: i64) -> &Text {
        &self.values[code as usize]
    }

    pub fn values(&self) -> &[Text] {
        &self.values
    }

    pub fn owners(&self) -> &Owners {
        &self.owners
    }

    /// Panics past the last code.
    pub fn bytes(&self, code: i64) -> &[u8] {
        // SAFETY: `owners` live as long as `self`.
        unsafe { self.values[code as usize].bytes() }
    }

    /// The code of a value, or of the least one above it.
    pub fn find(&self, bytes: &[u8]) -> Result<i64, i64> {
        let found = self.values.binary_search_by(|value| {
            // SAFETY: `owners` live as long as `self`.
            unsafe { value.bytes() }.cmp(bytes)
        });
        found.map(|code| code as i64).map_err(|code| code as i64)
    }
}
