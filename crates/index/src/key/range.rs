//! Ranges of keys from conditions on leading columns.

use super::{KeyCodec, KeyValue, NULL_FIRST, VALUE};
use crate::cursor::KeyRange;
use std::ops::Bound;
use tidepool_base::{Error, Result};

/// The ends of a range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyBounds {
    pub lower: Bound<Vec<u8>>,
    pub upper: Bound<Vec<u8>>,
}

impl KeyBounds {
    pub fn range(&self) -> KeyRange<'_> {
        (self.lower.as_ref().map(Vec::as_slice), self.upper.as_ref().map(Vec::as_slice))
    }
}

impl KeyCodec {
    /// The keys whose first columns have the values `equal` (NULL: `IS NULL`), and whose next one lies within the bounds.
    ///
    /// The bounds are as in SQL: from the lesser value to the greater, whichever way the column is ordered, and no NULL is
    /// within, unless both are unbounded. XX000 for values that are not of the columns' types, or a bound at NULL.
    pub fn bounds(
        &self,
        equal: &[KeyValue<'_>],
        lower: Bound<&KeyValue<'_>>,
        upper: Bound<&KeyValue<'_>>,
    ) -> Result<KeyBounds> {
        let mut prefix = Vec::new();
        self.encode_into(equal.iter().cloned(), &mut prefix)?;
        if (lower, upper) == (Bound::Unbounded, Bound::Unbounded) {
            return Ok(KeyBounds { upper: after(prefix.clone()), lower: Bound::Included(prefix) });
        }
        let Some(column) = self.columns().get(equal.len()) else {
            return Err(Error::internal("an index has no column for a bound"));
        };
        let (first, last) = if column.is_descending() { (upper, lower) } else { (lower, upper) };
        let key_of = |value: &KeyValue<'_>| {
            if *value == KeyValue::Null {
                return Err(Error::internal("an index cannot be searched from null on"));
            }
            let mut key = prefix.clone();
            self.push(equal.len(), value, &mut key)?;
            Ok(key)
        };
        // All values but NULL.
        let mut values = prefix.clone();
        if column.nullable {
            values.push(VALUE);
        }
        const { assert!(NULL_FIRST < VALUE) };
        Ok(KeyBounds {
            lower: match first {
                Bound::Included(value) => Bound::Included(key_of(value)?),
                Bound::Excluded(value) => match after(key_of(value)?) {
                    Bound::Excluded(key) => Bound::Included(key),
                    // Nothing is above a key of nothing but 255: no key comes behind.
                    _ => Bound::Excluded(vec![u8::MAX; crate::KEY_BYTES_MAX]),
                },
                Bound::Unbounded => Bound::Included(values.clone()),
            },
            upper: match last {
                Bound::Included(value) => after(key_of(value)?),
                Bound::Excluded(value) => Bound::Excluded(key_of(value)?),
                Bound::Unbounded => after(values),
            },
        })
    }
}

/// Below all keys that come after those that begin with `prefix`.
fn after(mut prefix: Vec<u8>) -> Bound<Vec<u8>> {
    while let Some(last) = prefix.pop() {
        if last < u8::MAX {
            prefix.push(last + 1);
            return Bound::Excluded(prefix);
        }
    }
    Bound::Unbounded
}
