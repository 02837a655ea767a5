//! Conditions on one column: what a scan is asked, and how that is tested on values, on dictionary codes and on packed
//! integers.
//!
//! A [`ColumnFilter`] becomes a [`Predicate`] once a scan: its constants are turned into the form in which the column's
//! type is tested (a range of integers, a set, an order on bytes). A predicate becomes a [`SegmentTest`] once a segment:
//! nothing or everything where statistics decide, a test of packed integers or of dictionary codes where these decide,
//! and a test of decoded values in the rest.

use crate::bits;
use crate::blob::Blob;
use crate::encoding::ints::{Ahead, RANGES_MAX, tell_all};
use crate::encoding::packing::BLOCK;
use crate::encoding::{IntTest, Ints, Keys, Payload, Rows, Validity};
use crate::logical::Logical;
use crate::statistics::{ColumnStatistics, Datum, float_key};
use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Decimal128Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type, TimestampMicrosecondType,
};
use arrow_array::{Array, ArrayRef, BooleanArray, new_null_array};
use hashbrown::HashSet;
use std::cmp::Ordering;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use tidepool_base::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompareOp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl CompareOp {
    fn holds(self, ordering: Ordering) -> bool {
        match self {
            CompareOp::Eq => ordering.is_eq(),
            CompareOp::Ne => ordering.is_ne(),
            CompareOp::Lt => ordering.is_lt(),
            CompareOp::Le => ordering.is_le(),
            CompareOp::Gt => ordering.is_gt(),
            CompareOp::Ge => ordering.is_ge(),
        }
    }
}

/// Answers for each row of an array; NULL is not true.
pub type FilterFunction = Arc<dyn Fn(&ArrayRef) -> Result<BooleanArray> + Send + Sync>;

/// Whether integers are among some keys: of a join's other side. May let others pass.
pub trait KeyTest: std::fmt::Debug + Send + Sync {
    /// The least and the greatest key; `None` when there is none.
    fn bounds(&self) -> Option<(i64, i64)>;

    /// Clears bit `i` of `words` if `values[i]` is no key. What is cleared already stays so.
    fn and_values(&self, values: &[i64], words: &mut [u64]);

    /// It lets so many pass that it is not worth asking any more.
    fn is_retired(&self) -> bool {
        false
    }

    /// The keys, each once, if they are known one by one and come of at most `most` rows.
    fn listed(&self, _most: usize) -> Option<Vec<i64>> {
        None
    }
}

/// A condition on one column (by position in the table). A row passes when it is true; NULL is not true.
#[derive(Clone)]
pub enum ColumnFilter {
    Compare {
        column: usize,
        op: CompareOp,
        value: Datum,
    },
    In {
        column: usize,
        values: Vec<Datum>,
    },
    IsNull {
        column: usize,
    },
    IsNotNull {
        column: usize,
    },
    /// Any deterministic function of the one column, strict or not. Evaluated once per dictionary entry (and once for
    /// NULL) where the segment has a dictionary, else on decoded vectors.
    Function {
        column: usize,
        function: FilterFunction,
    },
    /// Of integers, dates and timestamps: among some keys, as far as the test tells.
    Keys {
        column: usize,
        keys: Arc<dyn KeyTest>,
    },
}

impl PartialEq for ColumnFilter {
    /// What nothing can be said of, a function or keys, is not the same as anything.
    fn eq(&self, other: &ColumnFilter) -> bool {
        use ColumnFilter::{Compare, In, IsNotNull, IsNull};
        match (self, other) {
            (Compare { column: a, op: b, value: c }, Compare { column: d, op: e, value: f }) => (a, b, c) == (d, e, f),
            (In { column: a, values: b }, In { column: c, values: d }) => (a, b) == (c, d),
            (IsNull { column: a }, IsNull { column: b }) | (IsNotNull { column: a }, IsNotNull { column: b }) => a == b,
            _ => false,
        }
    }
}

impl ColumnFilter {
    pub fn column(&self) -> usize {
        match self {
            ColumnFilter::Compare { column, .. }
            | ColumnFilter::In { column, .. }
            | ColumnFilter::IsNull { column }
            | ColumnFilter::IsNotNull { column }
            | ColumnFilter::Function { column, .. }
            | ColumnFilter::Keys { column, .. } => *column,
        }
    }
}

impl fmt::Debug for ColumnFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ColumnFilter::Compare { column, op, value } => write!(f, "#{column} {op:?} {value:?}"),
            ColumnFilter::In { column, values } => write!(f, "#{column} In ({} values)", values.len()),
            ColumnFilter::IsNull { column } => write!(f, "#{column} IsNull"),
            ColumnFilter::IsNotNull { column } => write!(f, "#{column} IsNotNull"),
            ColumnFilter::Function { column, .. } => write!(f, "#{column} Function"),
            ColumnFilter::Keys { column, .. } => write!(f, "#{column} Keys"),
        }
    }
}

/// Filters that become known while the scan runs (runtime filters of joins, the threshold of a top-N).
pub trait FilterSource: Send + Sync {
    /// Grows whenever `filters` would answer differently; asked once a batch.
    fn generation(&self) -> u64;
    fn filters(&self) -> Vec<ColumnFilter>;
}

/// A condition on a 128-bit integer, as [`IntTest`].
#[derive(Clone, Debug)]
pub(crate) enum WideTest {
    Within {
        lower: i128,
        upper: i128,
    },
    Outside {
        lower: i128,
        upper: i128,
    },
    /// Ascending.
    Set(Vec<i128>),
}

impl WideTest {
    fn passes(&self, value: i128) -> bool {
        match self {
            WideTest::Within { lower, upper } => (*lower..=*upper).contains(&value),
            WideTest::Outside { lower, upper } => !(*lower..=*upper).contains(&value),
            WideTest::Set(values) => values.binary_search(&value).is_ok(),
        }
    }

    /// The same on values that all fit 64 bits. `Ok`: a test; `Err`: what every value answers.
    fn narrow(&self) -> Result<IntTest, bool> {
        let clamp = |lower: i128, upper: i128| {
            let (lower, upper) = (lower.max(i64::MIN.into()), upper.min(i64::MAX.into()));
            (lower <= upper).then_some((lower as i64, upper as i64))
        };
        match self {
            WideTest::Within { lower, upper } => {
                clamp(*lower, *upper).map(|(lower, upper)| IntTest::Within { lower, upper }).ok_or(false)
            }
            WideTest::Outside { lower, upper } => {
                clamp(*lower, *upper).map(|(lower, upper)| IntTest::Outside { lower, upper }).ok_or(true)
            }
            WideTest::Set(values) => {
                let values = values.iter().filter_map(|value| i64::try_from(*value).ok()).collect();
                IntTest::any_of(values).ok_or(false)
            }
        }
    }
}

/// How non-null values are tested.
#[derive(Clone)]
pub(crate) enum Test {
    All,
    None,
    Ints(IntTest),
    Wide(WideTest),
    /// Of [`float_key`]s.
    Floats(IntTest),
    Order {
        op: CompareOp,
        bytes: Vec<u8>,
    },
    Strings(HashSet<Vec<u8>>),
    Function(FilterFunction),
}

/// A filter on a column of known type.
#[derive(Clone)]
pub(crate) struct Predicate {
    pub column: usize,
    pub test: Test,
    pub null_passes: bool,
    source: ColumnFilter,
}

/// `None`: no integer compares so.
fn int_range(op: CompareOp, value: i64) -> Option<IntTest> {
    let within = |lower, upper| Some(IntTest::Within { lower, upper });
    match op {
        CompareOp::Eq => within(value, value),
        CompareOp::Ne => Some(IntTest::Outside { lower: value, upper: value }),
        CompareOp::Lt => within(i64::MIN, value.checked_sub(1)?),
        CompareOp::Le => within(i64::MIN, value),
        CompareOp::Gt => within(value.checked_add(1)?, i64::MAX),
        CompareOp::Ge => within(value, i64::MAX),
    }
}

fn wide_range(op: CompareOp, value: i128) -> Option<WideTest> {
    let within = |lower, upper| Some(WideTest::Within { lower, upper });
    match op {
        CompareOp::Eq => within(value, value),
        CompareOp::Ne => Some(WideTest::Outside { lower: value, upper: value }),
        CompareOp::Lt => within(i128::MIN, value.checked_sub(1)?),
        CompareOp::Le => within(i128::MIN, value),
        CompareOp::Gt => within(value.checked_add(1)?, i128::MAX),
        CompareOp::Ge => within(value, i128::MAX),
    }
}

fn wrong_type(logical: Logical) -> Error {
    Error::internal(format!("a filter's value is not of its column's type, {}", logical.data_type()))
}

/// A value as the integer that its type is tested by.
fn int_of(value: &Datum, logical: Logical) -> Result<i64> {
    match (value, logical) {
        (Datum::Boolean(value), Logical::Boolean) => Ok(i64::from(*value)),
        (Datum::Int(value), _) if logical.is_int() && logical != Logical::Boolean => Ok(*value),
        (Datum::Float(value), _) if logical.is_float() => Ok(float_key(*value)),
        _ => Err(wrong_type(logical)),
    }
}

fn bytes_of(value: &Datum, logical: Logical) -> Result<&[u8]> {
    match (value, logical) {
        (Datum::Text(value), Logical::Text) => Ok(value.as_bytes()),
        (Datum::Bytes(value), Logical::Bytes | Logical::Numeric) => Ok(value),
        _ => Err(wrong_type(logical)),
    }
}

impl Predicate {
    pub fn new(filter: &ColumnFilter, logical: Logical) -> Result<Predicate> {
        let or_none = |test: Option<Test>| test.unwrap_or(Test::None);
        let ints = |test: IntTest| if logical.is_float() { Test::Floats(test) } else { Test::Ints(test) };
        let mut null_passes = false;
        let test = match filter {
            ColumnFilter::IsNull { .. } => {
                null_passes = true;
                Test::None
            }
            ColumnFilter::IsNotNull { .. } => Test::All,
            ColumnFilter::Compare { op, value, .. } => match (logical, value) {
                (Logical::Decimal { .. }, Datum::Decimal(value)) => or_none(wide_range(*op, *value).map(Test::Wide)),
                _ if logical.is_bytes() => Test::Order { op: *op, bytes: bytes_of(value, logical)?.to_vec() },
                _ => or_none(int_range(*op, int_of(value, logical)?).map(ints)),
            },
            ColumnFilter::In { values, .. } => match logical {
                Logical::Decimal { .. } => {
                    let mut set = values
                        .iter()
                        .map(|value| match value {
                            Datum::Decimal(value) => Ok(*value),
                            _ => Err(wrong_type(logical)),
                        })
                        .collect::<Result<Vec<_>>>()?;
                    set.sort_unstable();
                    if set.is_empty() { Test::None } else { Test::Wide(WideTest::Set(set)) }
                }
                _ if logical.is_bytes() => Test::Strings(
                    values
                        .iter()
                        .map(|value| bytes_of(value, logical).map(<[u8]>::to_vec))
                        .collect::<Result<HashSet<_>>>()?,
                ),
                _ => {
                    let values = values.iter().map(|value| int_of(value, logical)).collect::<Result<Vec<_>>>()?;
                    or_none(IntTest::any_of(values).map(ints))
                }
            },
            ColumnFilter::Keys { keys, .. } if logical.is_int() => match keys.bounds() {
                Some(_) => Test::Ints(IntTest::Keys(Keys(Arc::clone(keys)))),
                None => Test::None,
            },
            ColumnFilter::Keys { .. } => return Err(wrong_type(logical)),
            ColumnFilter::Function { function, .. } => {
                null_passes = is_true(function, &new_null_array(&logical.data_type(), 1))?[0] == 1;
                Test::Function(Arc::clone(function))
            }
        };
        Ok(Predicate { column: filter.column(), test, null_passes, source: filter.clone() })
    }

    /// What statistics of some rows decide: `Some(true)`, every value passes; `Some(false)`, none does. About NULLs they
    /// say nothing but how many there are.
    pub fn decided_by(&self, statistics: &ColumnStatistics) -> Option<bool> {
        match self.test {
            Test::All => return Some(true),
            Test::None => return Some(false),
            _ => {}
        }
        let outcome = |op: CompareOp, value: &Datum| {
            let against_min = statistics.min.as_ref().and_then(|min| min.compare(value));
            let against_max = statistics.max.as_ref().and_then(|max| max.compare(value));
            let (above_min, below_max) =
                (against_min.is_some_and(|o| o.is_gt()), against_max.is_some_and(|o| o.is_lt()));
            let at_least = against_min.is_some_and(|o| o.is_ge());
            let at_most = against_max.is_some_and(|o| o.is_le());
            match op {
                CompareOp::Eq if above_min || below_max => Some(false),
                CompareOp::Eq if at_least && at_most => Some(true),
                CompareOp::Ne if above_min || below_max => Some(true),
                CompareOp::Ne if at_least && at_most => Some(false),
                CompareOp::Lt if below_max => Some(true),
                CompareOp::Lt if at_least => Some(false),
                CompareOp::Le if at_most => Some(true),
                CompareOp::Le if above_min => Some(false),
                CompareOp::Gt if above_min => Some(true),
                CompareOp::Gt if at_most => Some(false),
                CompareOp::Ge if at_least => Some(true),
                CompareOp::Ge if below_max => Some(false),
                _ => None,
            }
        };
        match &self.source {
            ColumnFilter::Compare { op, value, .. } => outcome(*op, value),
            ColumnFilter::Keys { keys, .. } => {
                let (lower, upper) = keys.bounds()?;
                let outside = outcome(CompareOp::Ge, &Datum::Int(lower)) == Some(false)
                    || outcome(CompareOp::Le, &Datum::Int(upper)) == Some(false);
                outside.then_some(false)
            }
            ColumnFilter::In { values, .. } => {
                values.iter().all(|value| outcome(CompareOp::Eq, value) == Some(false)).then_some(false)
            }
            _ => None,
        }
    }

    /// No row of these can pass.
    pub fn excludes(&self, statistics: &ColumnStatistics, rows: usize) -> bool {
        let values_fail = statistics.null_count == rows as u64 || self.decided_by(statistics) == Some(false);
        values_fail && (statistics.null_count == 0 || !self.null_passes)
    }

    /// `words &= test(array)`, NULLs included.
    pub fn and_array(&self, array: &ArrayRef, words: &mut [u64]) -> Result<()> {
        with_nulls(words, array.nulls().map(null_words).as_deref(), self.null_passes, |words| {
            and_values(&self.test, array, words)
        })
    }
}

fn null_words(nulls: &arrow_buffer::NullBuffer) -> Vec<u64> {
    nulls.inner().bit_chunks().iter_padded().collect()
}

/// Runs `test` for the rows with a value and lets `null_passes` decide about the others.
fn with_nulls(
    words: &mut [u64],
    valid: Option<&[u64]>,
    null_passes: bool,
    test: impl FnOnce(&mut [u64]) -> Result<()>,
) -> Result<()> {
    let Some(valid) = valid else { return test(words) };
    let nulls: Vec<u64> =
        if null_passes { words.iter().zip(valid).map(|(word, valid)| word & !valid).collect() } else { Vec::new() };
    words.iter_mut().zip(valid).for_each(|(word, valid)| *word &= valid);
    test(words)?;
    words.iter_mut().zip(&nulls).for_each(|(word, null)| *word |= null);
    Ok(())
}

/// 1 for each row for which the function is true.
fn is_true(function: &FilterFunction, array: &ArrayRef) -> Result<Vec<u8>> {
    let answer = function(array)?;
    if answer.len() != array.len() {
        return Err(Error::internal("a filter function answered for another number of rows"));
    }
    Ok((0..answer.len()).map(|row| u8::from(answer.is_valid(row) && answer.value(row))).collect())
}

/// `words &= test(array)` for rows that are not NULL; what becomes of the others does not matter.
fn and_values(test: &Test, array: &ArrayRef, words: &mut [u64]) -> Result<()> {
    fn each<T: Copy>(values: &[T], words: &mut [u64], passes: impl Fn(T) -> bool) {
        for (word, chunk) in words.iter_mut().zip(values.chunks(64)) {
            if *word == 0 {
                continue;
            }
            let mut bytes = [0u8; 64];
            for (byte, value) in bytes.iter_mut().zip(chunk) {
                *byte = u8::from(passes(*value));
            }
            *word &= bits::word_of(&bytes);
        }
    }
    /// Visits only rows that are still in.
    fn each_string<'a>(value: impl Fn(usize) -> &'a [u8], words: &mut [u64], passes: impl Fn(&[u8]) -> bool) {
        for (i, word) in words.iter_mut().enumerate() {
            let mut left = *word;
            while left != 0 {
                let bit = left.trailing_zeros();
                left &= left - 1;
                if !passes(value(64 * i + bit as usize)) {
                    *word &= !(1 << bit);
                }
            }
        }
    }
    let logical = Logical::of(array.data_type())?;
    match test {
        Test::All => {}
        Test::None => words.fill(0),
        Test::Ints(test) => match logical {
            Logical::Boolean => {
                let array = array.as_boolean();
                let values: Vec<i64> = (0..array.len()).map(|row| i64::from(array.value(row))).collect();
                test.and_values(&values, words);
            }
            Logical::Int16 => {
                let values = array.as_primitive::<Int16Type>().values();
                test.and_values(&values.iter().map(|value| i64::from(*value)).collect::<Vec<_>>(), words);
            }
            Logical::Int32 => {
                let values = array.as_primitive::<Int32Type>().values();
                test.and_values(&values.iter().map(|value| i64::from(*value)).collect::<Vec<_>>(), words);
            }
            Logical::Date => {
                let values = array.as_primitive::<Date32Type>().values();
                test.and_values(&values.iter().map(|value| i64::from(*value)).collect::<Vec<_>>(), words);
            }
            Logical::Int64 => test.and_values(array.as_primitive::<Int64Type>().values(), words),
            Logical::Timestamp | Logical::TimestampTz => {
                test.and_values(array.as_primitive::<TimestampMicrosecondType>().values(), words);
            }
            _ => return Err(wrong_type(logical)),
        },
        Test::Wide(test) => {
            each(array.as_primitive::<Decimal128Type>().values(), words, |value| test.passes(value));
        }
        Test::Floats(test) => match logical {
            Logical::Float32 => {
                let values = array.as_primitive::<Float32Type>().values();
                test.and_values(&values.iter().map(|value| float_key((*value).into())).collect::<Vec<_>>(), words);
            }
            _ => {
                let values = array.as_primitive::<Float64Type>().values();
                test.and_values(&values.iter().map(|value| float_key(*value)).collect::<Vec<_>>(), words);
            }
        },
        Test::Order { .. } | Test::Strings(_) => {
            let passes = |value: &[u8]| match test {
                // Equality looks at lengths first.
                Test::Order { op: CompareOp::Eq, bytes } => value == bytes.as_slice(),
                Test::Order { op: CompareOp::Ne, bytes } => value != bytes.as_slice(),
                Test::Order { op, bytes } => op.holds(value.cmp(bytes.as_slice())),
                Test::Strings(set) => set.contains(value),
                _ => unreachable!("matched above"),
            };
            if logical == Logical::Text {
                let array = array.as_string_view();
                each_string(|row| array.value(row).as_bytes(), words, passes);
            } else if logical == Logical::Numeric {
                let array = array.as_fixed_size_binary();
                each_string(|row| array.value(row), words, passes);
            } else {
                let array = array.as_binary_view();
                each_string(|row| array.value(row), words, passes);
            }
        }
        Test::Function(function) => bits::and_bytes(words, &is_true(function, array)?),
    }
    Ok(())
}

/// A predicate made for one segment. Only about rows with a value.
pub(crate) enum SegmentTest {
    All,
    None,
    /// Of the packed integers, or the dictionary's codes.
    Packed(IntTest),
    Decoded(Test),
    /// Text that is (not) this one. Strings of another length need no look.
    Equal {
        len: i64,
        test: Test,
        negated: bool,
    },
}

/// The widest range of integers over which a function is evaluated ahead.
const FUNCTION_DOMAIN_MAX: i128 = 8192;

impl SegmentTest {
    pub fn new(
        predicate: &Predicate,
        statistics: &ColumnStatistics,
        payload: &Payload,
        blob: &Arc<Blob>,
        rows: usize,
        logical: Logical,
    ) -> Result<SegmentTest> {
        match predicate.decided_by(statistics) {
            Some(true) => return Ok(SegmentTest::All),
            Some(false) => return Ok(SegmentTest::None),
            None => {}
        }
        let packed = |test: Result<IntTest, bool>| match test {
            Ok(test) => SegmentTest::Packed(test),
            Err(true) => SegmentTest::All,
            Err(false) => SegmentTest::None,
        };
        Ok(match (&predicate.test, payload) {
            (Test::Ints(test), Payload::Ints(_)) => SegmentTest::Packed(test.clone()),
            (Test::Wide(test), Payload::Ints(_)) => packed(test.narrow()),
            (Test::Order { op, bytes }, Payload::Dictionary(dictionary)) => {
                // Codes ascend with their values, so an order on values is one on codes.
                let below = partition(dictionary.len(), |code| dictionary.string(blob, code) < bytes.as_slice());
                let found = below < dictionary.len() && dictionary.string(blob, below) == bytes.as_slice();
                let (below, through) = (below as i64, below as i64 + i64::from(found));
                let within = |lower: i64, upper: i64| {
                    if lower <= upper { Ok(IntTest::Within { lower, upper }) } else { Err(false) }
                };
                packed(match op {
                    CompareOp::Eq => within(below, through - 1),
                    CompareOp::Ne if found => Ok(IntTest::Outside { lower: below, upper: below }),
                    CompareOp::Ne => Err(true),
                    CompareOp::Lt => within(0, below - 1),
                    CompareOp::Le => within(0, through - 1),
                    CompareOp::Gt => within(through, dictionary.len() as i64 - 1),
                    CompareOp::Ge => within(below, dictionary.len() as i64 - 1),
                })
            }
            (test, Payload::Dictionary(dictionary)) => {
                let identity = Payload::Dictionary(dictionary.identity());
                let all = identity.gather(blob, &Rows::Range(0..dictionary.len()), logical, None)?;
                match table(test, &all, 0) {
                    Ok(test) => packed(test),
                    // The function fails on some value; whether that value is asked for depends on the other filters.
                    Err(_) => SegmentTest::Decoded(test.clone()),
                }
            }
            (test @ Test::Function(_), Payload::Ints(_)) => {
                match int_domain(statistics).filter(|(min, max)| {
                    let span = i128::from(*max) - i128::from(*min);
                    span < FUNCTION_DOMAIN_MAX && span < rows as i128 / 4
                }) {
                    Some((min, max)) => {
                        let domain = int_array(min..=max, logical)?;
                        match table(test, &domain, min) {
                            Ok(test) => packed(test),
                            Err(_) => SegmentTest::Decoded(test.clone()),
                        }
                    }
                    None => SegmentTest::Decoded(test.clone()),
                }
            }
            (
                test @ Test::Order { op: op @ (CompareOp::Eq | CompareOp::Ne), bytes },
                Payload::Fsst(_) | Payload::Strings(_),
            ) => SegmentTest::Equal { len: bytes.len() as i64, test: test.clone(), negated: *op == CompareOp::Ne },
            (test, _) => SegmentTest::Decoded(test.clone()),
        })
    }

    /// Relative cost a row, to run cheap tests first.
    pub fn cost(&self, payload: &Payload) -> u32 {
        match self {
            SegmentTest::All | SegmentTest::None => 0,
            SegmentTest::Packed(test) => {
                let ints = match payload {
                    Payload::Ints(ints) => ints,
                    Payload::Dictionary(dictionary) => dictionary.codes(),
                    _ => return 10,
                };
                match (ints, test) {
                    (Ints::Constant(_) | Ints::RunLength(_), _) => 1,
                    (Ints::Frame(_), IntTest::Within { .. } | IntTest::Outside { .. }) => 2,
                    (Ints::Frame(_), IntTest::Ranges(_)) => 4,
                    (_, IntTest::Set(_)) => 20,
                    // What joins leave is often little, but each value costs a look into their keys.
                    (_, IntTest::Keys(_)) => 15,
                    _ => 6,
                }
            }
            SegmentTest::Equal { len, .. } => {
                if *len == 0 {
                    4
                } else {
                    20
                }
            }
            SegmentTest::Decoded(Test::Function(_)) => 200,
            SegmentTest::Decoded(_)
                if matches!(payload, Payload::Fsst(_) | Payload::Strings(_) | Payload::Uuids(_)) =>
            {
                60
            }
            SegmentTest::Decoded(_) => 12,
        }
    }

    /// How many of 1,000 values pass, as far as a range and the values' bounds tell: to run the stricter of two equally
    /// dear tests first.
    pub fn passing_permille(&self, statistics: &ColumnStatistics, payload: &Payload) -> u64 {
        let SegmentTest::Packed(test) = self else { return 500 };
        let bounds = match payload {
            Payload::Dictionary(dictionary) => Some((0, dictionary.len() as i64 - 1)),
            _ => int_domain(statistics),
        };
        let Some((min, max)) = bounds else { return 500 };
        let within = |lower: i64, upper: i64| {
            let (lower, upper) = (i128::from(lower.max(min)), i128::from(upper.min(max)));
            let all = i128::from(max) - i128::from(min) + 1;
            ((upper - lower + 1).max(0) * 1_000 / all.max(1)) as u64
        };
        match test {
            IntTest::Within { lower, upper } => within(*lower, *upper),
            IntTest::Outside { lower, upper } => 1_000u64.saturating_sub(within(*lower, *upper)),
            IntTest::Ranges(ranges) => {
                ranges.iter().map(|(lower, upper)| within(*lower, *upper)).sum::<u64>().min(1_000)
            }
            IntTest::Set(_) | IntTest::Table { .. } | IntTest::Keys(_) => 500,
        }
    }

    /// `words &= test(rows)`, with `null_passes` for NULLs. `rows` starts at a multiple of 1,024. Tells `ahead` of blocks as they have been
    /// tested, before NULLs come back to them.
    #[expect(clippy::too_many_arguments, reason = "the parts of a segment, which is put together above this module")]
    pub fn and_rows(
        &self,
        payload: &Payload,
        validity: &Validity,
        blob: &Arc<Blob>,
        logical: Logical,
        rows: Range<usize>,
        null_passes: bool,
        words: &mut [u64],
        ahead: Ahead<'_>,
    ) -> Result<()> {
        if matches!(validity, Validity::AllNull) {
            if !null_passes {
                words.fill(0);
            }
            return Ok(());
        }
        let valid = validity.words(blob, rows.start);
        if let SegmentTest::Packed(IntTest::Keys(Keys(keys))) = self
            && keys.is_retired()
        {
            return Ok(());
        }
        with_nulls(words, valid, null_passes, |words| {
            match self {
                SegmentTest::All => {}
                SegmentTest::None => words.fill(0),
                SegmentTest::Packed(test) => match payload {
                    Payload::Ints(ints) => ints.filter_telling(blob, rows, test, words, ahead),
                    Payload::Dictionary(dictionary) => {
                        dictionary.codes().filter_telling(blob, rows, test, words, ahead)
                    }
                    _ => return Err(Error::internal("a segment without integers was tested as such")),
                },
                SegmentTest::Decoded(test) => {
                    let first = rows.start / BLOCK;
                    and_decoded(test, payload, blob, logical, rows, words)?;
                    tell_all(first, words, ahead);
                }
                SegmentTest::Equal { len, test, negated } => {
                    let lengths = match payload {
                        Payload::Fsst(text) => text.lengths(),
                        Payload::Strings(text) => text.lengths(),
                        _ => return Err(Error::internal("a segment without lengths was tested by them")),
                    };
                    let same = IntTest::Within { lower: *len, upper: *len };
                    if !negated {
                        lengths.filter(blob, rows.clone(), &same, words);
                        if *len > 0 {
                            and_decoded(test, payload, blob, logical, rows, words)?;
                        }
                        return Ok(());
                    }
                    let mut of_length = words.to_vec();
                    lengths.filter(blob, rows.clone(), &same, &mut of_length);
                    words.iter_mut().zip(&of_length).for_each(|(word, same)| *word &= !same);
                    if *len > 0 {
                        and_decoded(test, payload, blob, logical, rows, &mut of_length)?;
                        words.iter_mut().zip(&of_length).for_each(|(word, passing)| *word |= passing);
                    }
                }
            }
            Ok(())
        })
    }
}

/// `words &= test(rows)`, of rows whose values are decoded. `rows` starts at a multiple of 64.
fn and_decoded(
    test: &Test,
    payload: &Payload,
    blob: &Arc<Blob>,
    logical: Logical,
    rows: Range<usize>,
    words: &mut [u64],
) -> Result<()> {
    let selected = bits::count(words);
    if selected == rows.len() {
        let array = payload.gather(blob, &Rows::Range(rows), logical, None)?;
        and_values(test, &array, words)?;
    } else if selected > 0 {
        let mut list = Vec::with_capacity(selected);
        bits::positions(words, rows.start as u32, &mut list);
        let array = payload.gather(blob, &Rows::List(&list), logical, None)?;
        let mut passed = bits::ones(list.len());
        and_values(test, &array, &mut passed)?;
        for (i, row) in list.iter().enumerate() {
            if passed[i / 64] >> (i % 64) & 1 == 0 {
                let bit = *row as usize - rows.start;
                words[bit / 64] &= !(1 << (bit % 64));
            }
        }
    }
    Ok(())
}

/// The first code that does not hold, codes that hold coming first.
fn partition(len: usize, holds: impl Fn(usize) -> bool) -> usize {
    let (mut lower, mut upper) = (0, len);
    while lower < upper {
        let middle = lower + (upper - lower) / 2;
        if holds(middle) { lower = middle + 1 } else { upper = middle }
    }
    lower
}

/// The test of `base + i` that answers as `test` does for row `i`. `Err(Ok(…))` would be confusing: the outer error is
/// the function's own, the inner one what every row answers.
fn table(test: &Test, values: &ArrayRef, base: i64) -> Result<Result<IntTest, bool>> {
    let mut words = bits::ones(values.len());
    and_values(test, values, &mut words)?;
    let mut passing = Vec::new();
    bits::positions(&words, 0, &mut passing);
    if passing.len() == values.len() {
        return Ok(Err(true));
    }
    let (Some(first), Some(last)) = (passing.first(), passing.last()) else { return Ok(Err(false)) };
    let (first, last) = (*first as usize, *last as usize);
    if last - first + 1 == passing.len() {
        return Ok(Ok(IntTest::Within { lower: base + first as i64, upper: base + last as i64 }));
    }
    let follows = |a: &u32, b: &u32| a + 1 == *b;
    let code = |row: u32| base + i64::from(row);
    let ranges = passing.chunk_by(follows).take(RANGES_MAX + 1);
    let ranges: Vec<(i64, i64)> = ranges.map(|run| (code(run[0]), code(run[run.len() - 1]))).collect();
    if ranges.len() <= RANGES_MAX {
        return Ok(Ok(IntTest::Ranges(ranges)));
    }
    let mut passes = vec![0; values.len()];
    passing.iter().for_each(|row| passes[*row as usize] = 1);
    Ok(Ok(IntTest::Table { base, passes }))
}

/// The range of a segment's integers, if it is known.
fn int_domain(statistics: &ColumnStatistics) -> Option<(i64, i64)> {
    let int = |datum: &Datum| match datum {
        Datum::Boolean(value) => Some(i64::from(*value)),
        Datum::Int(value) => Some(*value),
        Datum::Decimal(value) => i64::try_from(*value).ok(),
        _ => None,
    };
    Some((int(statistics.min.as_ref()?)?, int(statistics.max.as_ref()?)?))
}

fn int_array(values: std::ops::RangeInclusive<i64>, logical: Logical) -> Result<ArrayRef> {
    use arrow_array::{
        BooleanArray, Date32Array, Decimal128Array, Int16Array, Int32Array, Int64Array, TimestampMicrosecondArray,
    };
    Ok(match logical {
        Logical::Boolean => Arc::new(values.map(|value| Some(value == 1)).collect::<BooleanArray>()),
        Logical::Int16 => Arc::new(Int16Array::from_iter_values(values.map(|value| value as i16))),
        Logical::Int32 => Arc::new(Int32Array::from_iter_values(values.map(|value| value as i32))),
        Logical::Int64 => Arc::new(Int64Array::from_iter_values(values)),
        Logical::Date => Arc::new(Date32Array::from_iter_values(values.map(|value| value as i32))),
        Logical::Timestamp => Arc::new(TimestampMicrosecondArray::from_iter_values(values)),
        Logical::TimestampTz => Arc::new(TimestampMicrosecondArray::from_iter_values(values).with_timezone("UTC")),
        Logical::Decimal { .. } => {
            Arc::new(Decimal128Array::from_iter_values(values.map(i128::from)).with_data_type(logical.data_type()))
        }
        _ => return Err(wrong_type(logical)),
    })
}
