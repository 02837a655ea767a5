//! How the keys of rows lie: in how many runs of equal ones, in how many lines of a table by key, how many are new.
//!
//! Rows of a table often come in the order of a key. Then a row finds what it looks for in the lines that the row before it
//! used, and no model of random lines holds for it.

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type};
use datafusion::common::hash_utils::{RandomState, create_hashes};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use std::sync::Arc;

/// The columns that keys are, if they all are columns.
pub fn columns_of<'a>(keys: impl IntoIterator<Item = &'a Arc<dyn PhysicalExpr>>) -> Option<Vec<usize>> {
    keys.into_iter().map(|key| key.downcast_ref::<Column>().map(Column::index)).collect()
}

/// Hashes of the keys at which runs of equal keys start. One a row when the columns are not known, or cannot be hashed.
pub fn runs(batch: &RecordBatch, columns: Option<&[usize]>, mut each: impl FnMut(u64)) -> u64 {
    let rows = batch.num_rows() as u64;
    let Some(columns) = columns else { return rows };
    let mut hashes = vec![0; batch.num_rows()];
    let arrays = columns.iter().filter_map(|column| batch.columns().get(*column));
    if create_hashes(arrays, &RandomState::default(), &mut hashes).is_err() {
        return rows;
    }
    let (mut runs, mut last) = (0, None);
    for hash in hashes {
        if last.replace(hash) != Some(hash) {
            runs += 1;
            each(hash);
        }
    }
    runs
}

/// Rows of a table of four bytes a key, for integers in a narrow range.
const KEYS_PER_LINE_LOG2: u32 = 4;

/// How rows go over a table that is laid out by key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Rows whose line of the table is not the one of the row before.
    pub lines: u64,
    /// Each key is as large as the one before, or larger.
    pub ascending: bool,
}

/// `None` when the key is not an integer.
pub fn steps(key: &ArrayRef) -> Option<Steps> {
    if !key.data_type().is_integer() {
        return None;
    }
    let key = cast(key, &DataType::Int64).ok()?;
    let key = key.as_primitive::<Int64Type>();
    let (mut lines, mut ascending, mut last) = (0, true, None::<i64>);
    // Of a NULL, whatever is stored in its place: it is looked up nowhere.
    for &value in key.values() {
        let line = value >> KEYS_PER_LINE_LOG2;
        lines += u64::from(last.is_none_or(|last| last >> KEYS_PER_LINE_LOG2 != line));
        ascending &= last.is_none_or(|last| last <= value);
        last = Some(value);
    }
    Some(Steps { lines, ascending })
}

const REGISTERS: usize = 1024;

/// How many different keys were seen: HyperLogLog, with linear counting below 2.5 keys a register. 3 % off where it is exact no
/// longer, and right in the sum of its steps as it is in the whole.
#[derive(Debug)]
pub struct KeySketch {
    registers: [u8; REGISTERS],
}

impl Default for KeySketch {
    fn default() -> KeySketch {
        KeySketch { registers: [0; REGISTERS] }
    }
}

impl KeySketch {
    pub fn add(&mut self, hash: u64) {
        // Neighbouring integers have hashes that differ in few bits: mixed as SplitMix64 ends.
        let hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let hash = hash ^ (hash >> 31);
        let register = &mut self.registers[(hash >> 54) as usize];
        let rank = (hash << 10 | 1 << 9).leading_zeros() as u8 + 1;
        *register = (*register).max(rank);
    }

    pub fn estimate(&self) -> f64 {
        let count = REGISTERS as f64;
        // Two to the minus rank, exactly: ranks are 55 at most.
        let sum: f64 = self.registers.iter().map(|rank| f64::from_bits((1023 - u64::from(*rank)) << 52)).sum();
        let estimate = 0.7213 / (1.0 + 1.079 / count) * count * count / sum;
        let empty = self.registers.iter().filter(|rank| **rank == 0).count();
        if estimate <= 2.5 * count && empty > 0 { count * (count / empty as f64).ln() } else { estimate }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Int32Array, StringViewArray};

    fn batch(keys: Vec<i32>) -> RecordBatch {
        let texts = StringViewArray::from_iter_values(keys.iter().map(|key| format!("key {key}")));
        let columns: [(&str, ArrayRef); 2] = [("key", Arc::new(Int32Array::from(keys))), ("text", Arc::new(texts))];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    #[test]
    fn runs_are_counted_and_their_keys_told() {
        let keys = batch(vec![7, 7, 7, 1, 1, 7]);
        let mut hashes = Vec::new();
        assert_eq!(runs(&keys, Some(&[0]), |hash| hashes.push(hash)), 3);
        assert!(hashes[0] == hashes[2] && hashes[0] != hashes[1]);
        assert_eq!(runs(&keys, Some(&[0, 1]), |_| {}), 3);
        assert_eq!(runs(&keys, None, |_| {}), 6);
    }

    #[test]
    fn steps_tell_order_from_disorder() {
        let sorted: ArrayRef = Arc::new(Int32Array::from_iter_values(0..1600));
        assert_eq!(steps(&sorted), Some(Steps { lines: 100, ascending: true }));
        let mixed: ArrayRef = Arc::new(Int32Array::from_iter_values((0..1600).map(|key| key * 1009 % 1600)));
        assert_eq!(steps(&mixed), Some(Steps { lines: 1600, ascending: false }));
        let text: ArrayRef = Arc::new(StringViewArray::from_iter_values(["a"]));
        assert_eq!(steps(&text), None);
    }

    #[test]
    fn different_keys_are_estimated() {
        for count in [100, 2_000, 50_000] {
            let mut sketch = KeySketch::default();
            let keys = batch((0..2 * count).map(|key| key % count).collect());
            runs(&keys, Some(&[0]), |hash| sketch.add(hash));
            let estimate = sketch.estimate();
            assert!((estimate / f64::from(count) - 1.0).abs() < 0.1, "{count}: {estimate}");
        }
    }
}
