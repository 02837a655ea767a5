//! Accumulators: some bytes in the trailer of a group's row, all 0 when the group is made.
//!
//! A chunk's rows come to their groups in one of two shapes ([`Place`]): *scattered*, with a group for each row, or as
//! *runs* of rows of one group, over which an accumulator stays in registers.

use super::texts::{TextState, TextStore};
use crate::rows::RowPtr;
use crate::vector::{Values, Vector};
use std::borrow::Cow;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use tidepool_base::{Error, Result};

/// Groups of a chunk's rows.
#[derive(Debug)]
pub(super) struct Place<'a> {
    /// Rows that are taken; `None`: all, in order.
    pub rows: Option<Cow<'a, [u32]>>,
    /// `None`: scattered, `groups` has one for each row of the chunk. Else where each run ends, among the rows that are
    /// taken, and `groups` has one for each run. A run may be empty.
    pub ends: Option<Cow<'a, [u32]>>,
    pub groups: &'a [RowPtr],
}

impl<'a> Place<'a> {
    /// With those rows alone whose bit is set.
    pub fn narrowed(&self, take: &crate::mask::Mask) -> Place<'a> {
        let Some(ends) = &self.ends else {
            // Scattered places take all rows until they are narrowed.
            return Place { rows: Some(take.positions().into()), ends: None, groups: self.groups };
        };
        let rows = self.rows.as_deref();
        let most = rows.map_or(take.len(), <[u32]>::len);
        let mut kept = vec![0u32; most + 1];
        let (mut len, mut start) = (0, 0);
        let mut kept_ends = Vec::with_capacity(ends.len());
        for &end in ends.iter() {
            for at in start..end {
                let row = rows.map_or(at, |rows| rows[at as usize]);
                kept[len] = row;
                len += usize::from(take.get(row as usize));
            }
            kept_ends.push(len as u32);
            start = end;
        }
        kept.truncate(len);
        Place { rows: Some(kept.into()), ends: Some(kept_ends.into()), groups: self.groups }
    }

    /// Each row that is taken, and its group.
    pub fn for_each(&self, mut each: impl FnMut(usize, RowPtr) -> Result<()>) -> Result<()> {
        match (&self.ends, &self.rows) {
            (None, None) => self.groups.iter().enumerate().try_for_each(|(row, group)| each(row, *group)),
            (None, Some(rows)) => rows.iter().try_for_each(|row| each(*row as usize, self.groups[*row as usize])),
            (Some(ends), rows) => {
                let mut start = 0;
                for (end, group) in ends.iter().zip(self.groups) {
                    for at in start..*end {
                        each(rows.as_deref().map_or(at, |rows| rows[at as usize]) as usize, *group)?;
                    }
                    start = *end;
                }
                Ok(())
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Primitive {
    Count,
    /// Known to fit.
    SumInt64,
    /// As above.
    SumInt128,
    SumWide,
    SumFloat,
    Extreme {
        least: bool,
    },
    WideExtreme {
        least: bool,
    },
    TextExtreme {
        least: bool,
    },
    TextFirst,
    Moments,
    /// Of integers, all of whose sums are known to fit.
    ExactMoments,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Accumulator {
    pub primitive: Primitive,
    pub argument: Option<usize>,
    /// Which rows it takes: of those that the plan lists.
    pub take: usize,
    /// Fed by a set of distinct values.
    pub set: Option<usize>,
    /// In a group's row.
    pub offset: usize,
    /// What 1 of an integer means; of exact moments, how many make 1.
    pub unit: f64,
}

impl Accumulator {
    pub fn new(primitive: Primitive, argument: Option<usize>, take: usize, set: Option<usize>) -> Accumulator {
        Accumulator { primitive, argument, take, set, offset: 0, unit: 1.0 }
    }

    pub fn bytes(&self) -> usize {
        match self.primitive {
            Primitive::Count | Primitive::SumInt64 | Primitive::SumFloat | Primitive::Extreme { .. } => 8,
            Primitive::SumInt128 | Primitive::WideExtreme { .. } => 16,
            Primitive::SumWide => size_of::<SumWide>(),
            Primitive::TextExtreme { .. } | Primitive::TextFirst => size_of::<TextState>(),
            Primitive::Moments => size_of::<Moments>(),
            Primitive::ExactMoments => size_of::<ExactMoments>(),
        }
    }
}

/// An accumulator's state. Of nothing, it is `Default`, whose bytes are all 0.
pub(crate) trait State: Copy + Default {
    type Value: Copy;
    fn add(&mut self, value: Self::Value);
    fn merge(&mut self, other: Self);
}

#[derive(Clone, Copy, Default)]
pub(super) struct Count(pub u64);
#[derive(Clone, Copy, Default)]
pub(super) struct Sum64(pub i64);
#[derive(Clone, Copy, Default)]
pub(super) struct Sum128(pub i128);
#[derive(Clone, Copy, Default)]
pub(super) struct SumFloat(pub f64);
#[derive(Clone, Copy, Default)]
pub(super) struct Greatest64(pub u64);
#[derive(Clone, Copy, Default)]
pub(super) struct Greatest128(pub u128);

/// A sum in 192 bits, of two's complement: 2^64 of any values fit.
#[derive(Clone, Copy, Default)]
pub(crate) struct SumWide {
    low: [u64; 2],
    high: i64,
}

/// Count, mean and the sum of squared differences from it: Welford's method, merged as Chan, Golub and LeVeque (1979) do.
#[derive(Clone, Copy, Default)]
pub(super) struct Moments {
    pub count: f64,
    pub mean: f64,
    pub squares: f64,
}

/// Count, sum and the sum of squares.
#[derive(Clone, Copy, Default)]
pub(super) struct ExactMoments {
    pub count: u64,
    sum: i64,
    squares: u64,
}

impl ExactMoments {
    /// The sum of squared differences from the mean, times the count.
    pub fn spread(&self) -> u128 {
        u128::from(self.count) * u128::from(self.squares) - u128::from(self.sum.unsigned_abs()).pow(2)
    }
}

impl State for Count {
    type Value = ();
    #[inline(always)]
    fn add(&mut self, (): ()) {
        self.0 += 1;
    }
    #[inline(always)]
    fn merge(&mut self, other: Count) {
        self.0 += other.0;
    }
}

impl State for Sum64 {
    type Value = i64;
    #[inline(always)]
    fn add(&mut self, value: i64) {
        self.0 = self.0.wrapping_add(value);
    }
    #[inline(always)]
    fn merge(&mut self, other: Sum64) {
        self.add(other.0);
    }
}

impl State for Sum128 {
    type Value = i128;
    #[inline(always)]
    fn add(&mut self, value: i128) {
        self.0 = self.0.wrapping_add(value);
    }
    #[inline(always)]
    fn merge(&mut self, other: Sum128) {
        self.add(other.0);
    }
}

impl SumWide {
    /// Magnitude, lowest limb first, and whether it is below 0.
    pub fn magnitude(&self) -> ([u64; 3], bool) {
        let limbs = [self.low[0], self.low[1], self.high as u64];
        if self.high >= 0 {
            return (limbs, false);
        }
        let mut carry = true;
        let negated = limbs.map(|limb| {
            let (limb, next) = (!limb).overflowing_add(u64::from(carry));
            carry = next;
            limb
        });
        (negated, true)
    }

    /// `None` if it is beyond 128 bits.
    pub fn get(&self) -> Option<i128> {
        let low = u128::from(self.low[0]) | u128::from(self.low[1]) << 64;
        let value = low as i128;
        (self.high == if value < 0 { -1 } else { 0 }).then_some(value)
    }

    /// Of which nothing is lost: a sum of 192 bits has as many below 0 as above.
    pub fn negated(self) -> SumWide {
        let low = u128::from(self.low[0]) | u128::from(self.low[1]) << 64;
        let (low, carry) = (!low).overflowing_add(1);
        SumWide { low: [low as u64, (low >> 64) as u64], high: (!self.high).wrapping_add(i64::from(carry)) }
    }

    pub fn of(value: i128) -> SumWide {
        SumWide { low: [value as u64, (value >> 64) as u64], high: if value < 0 { -1 } else { 0 } }
    }
}

impl State for SumWide {
    type Value = i128;
    #[inline(always)]
    fn add(&mut self, value: i128) {
        self.merge(SumWide::of(value));
    }
    #[inline(always)]
    fn merge(&mut self, other: SumWide) {
        let (mine, its) = (
            u128::from(self.low[0]) | u128::from(self.low[1]) << 64,
            u128::from(other.low[0]) | u128::from(other.low[1]) << 64,
        );
        let (low, carry) = mine.overflowing_add(its);
        self.low = [low as u64, (low >> 64) as u64];
        self.high = self.high.wrapping_add(other.high).wrapping_add(i64::from(carry));
    }
}

impl State for SumFloat {
    type Value = f64;
    #[inline(always)]
    fn add(&mut self, value: f64) {
        self.0 += value;
    }
    #[inline(always)]
    fn merge(&mut self, other: SumFloat) {
        self.0 += other.0;
    }
}

impl State for Greatest64 {
    type Value = u64;
    #[inline(always)]
    fn add(&mut self, value: u64) {
        self.0 = self.0.max(value);
    }
    #[inline(always)]
    fn merge(&mut self, other: Greatest64) {
        self.add(other.0);
    }
}

impl State for Greatest128 {
    type Value = u128;
    #[inline(always)]
    fn add(&mut self, value: u128) {
        self.0 = self.0.max(value);
    }
    #[inline(always)]
    fn merge(&mut self, other: Greatest128) {
        self.add(other.0);
    }
}

impl State for ExactMoments {
    type Value = i64;
    #[inline(always)]
    fn add(&mut self, value: i64) {
        self.count += 1;
        self.sum = self.sum.wrapping_add(value);
        self.squares = self.squares.wrapping_add(value.wrapping_mul(value) as u64);
    }
    #[inline(always)]
    fn merge(&mut self, other: ExactMoments) {
        self.count += other.count;
        self.sum = self.sum.wrapping_add(other.sum);
        self.squares = self.squares.wrapping_add(other.squares);
    }
}

impl State for Moments {
    type Value = f64;
    #[inline(always)]
    fn add(&mut self, value: f64) {
        self.count += 1.0;
        let before = value - self.mean;
        self.mean += before / self.count;
        self.squares += before * (value - self.mean);
    }
    #[inline(always)]
    fn merge(&mut self, other: Moments) {
        if self.count == 0.0 {
            *self = other;
        } else if other.count > 0.0 {
            let (count, apart) = (self.count + other.count, other.mean - self.mean);
            self.squares += other.squares + apart * apart * self.count * other.count / count;
            self.mean += apart * other.count / count;
            self.count = count;
        }
    }
}

/// Integers and floats as keys whose order is theirs, and of which 0 is not above any: a state of nothing is below all.
#[inline(always)]
pub(super) fn int_key(value: i64) -> u64 {
    value as u64 ^ 1 << 63
}

#[inline(always)]
pub(super) fn int_of_key(key: u64) -> i64 {
    (key ^ 1 << 63) as i64
}

/// NaN is above all, as PostgreSQL has it.
#[inline(always)]
pub(super) fn float_key(value: f64) -> u64 {
    let bits = value.to_bits();
    let key = if bits >> 63 == 1 { !bits } else { bits | 1 << 63 };
    if value.is_nan() { f64::NAN.to_bits() | 1 << 63 } else { key }
}

#[inline(always)]
pub(super) fn float_of_key(key: u64) -> f64 {
    f64::from_bits(if key >> 63 == 1 { key ^ 1 << 63 } else { !key })
}

/// Runs of fewer rows are added one row after the other.
const SHORT_RUN: usize = 16;

/// # Safety
///
/// Each group that a row has is a row that is there and has a state of `S` at `offset`; nobody else has them.
#[inline(never)]
unsafe fn update<S: State, T: Copy>(
    offset: usize,
    values: &[T],
    place: &Place<'_>,
    map: impl Fn(T) -> S::Value + Copy,
) {
    // SAFETY: the caller's word.
    let one = |group: RowPtr, value: T| unsafe {
        let mut state = group.read::<S>(offset);
        state.add(map(value));
        group.write(offset, state);
    };
    // SAFETY: as above.
    let add = |group: RowPtr, more: S| unsafe {
        let mut state = group.read::<S>(offset);
        state.merge(more);
        group.write(offset, state);
    };
    let many = |group: RowPtr, lanes: [S; 4]| {
        let [mut first, second, mut third, fourth] = lanes;
        first.merge(second);
        third.merge(fourth);
        first.merge(third);
        add(group, first);
    };
    match (&place.ends, &place.rows) {
        (None, None) => place.groups.iter().zip(values).for_each(|(group, value)| one(*group, *value)),
        (None, Some(rows)) => {
            rows.iter().for_each(|row| one(place.groups[*row as usize], values[*row as usize]));
        }
        (Some(ends), rows) => {
            let mut start = 0;
            for (end, group) in ends.iter().zip(place.groups) {
                let range = start as usize..*end as usize;
                start = *end;
                // Four sums at a time: one would wait for itself.
                let mut lanes = [S::default(); 4];
                match (rows, range.len()) {
                    (_, 0) => continue,
                    (None, ..SHORT_RUN) => {
                        let lane = &mut lanes[0];
                        values[range].iter().for_each(|value| lane.add(map(*value)));
                        add(*group, lanes[0]);
                        continue;
                    }
                    (None, _) => {
                        let (fours, rest) = values[range].as_chunks::<4>();
                        for &[a, b, c, d] in fours {
                            lanes[0].add(map(a));
                            lanes[1].add(map(b));
                            lanes[2].add(map(c));
                            lanes[3].add(map(d));
                        }
                        rest.iter().for_each(|value| lanes[0].add(map(*value)));
                    }
                    (Some(rows), _) => {
                        let (fours, rest) = rows[range].as_chunks::<4>();
                        for &[a, b, c, d] in fours {
                            lanes[0].add(map(values[a as usize]));
                            lanes[1].add(map(values[b as usize]));
                            lanes[2].add(map(values[c as usize]));
                            lanes[3].add(map(values[d as usize]));
                        }
                        rest.iter().for_each(|row| lanes[0].add(map(values[*row as usize])));
                    }
                }
                many(*group, lanes);
            }
        }
    }
}

/// # Safety
///
/// As for [`update`].
unsafe fn count(offset: usize, place: &Place<'_>) {
    // SAFETY: the caller's word.
    let add = |group: RowPtr, rows: u64| unsafe { group.write(offset, group.read::<u64>(offset) + rows) };
    match (&place.ends, &place.rows) {
        (None, None) => place.groups.iter().for_each(|group| add(*group, 1)),
        (None, Some(rows)) => rows.iter().for_each(|row| add(place.groups[*row as usize], 1)),
        (Some(ends), _) => {
            let mut start = 0;
            for (end, group) in ends.iter().zip(place.groups) {
                if *end > start {
                    add(*group, u64::from(end - start));
                }
                start = *end;
            }
        }
    }
}

/// Adds a column's values (of the rows that `place` takes, none of which is NULL) to their groups.
///
/// # Safety
///
/// Each group that a row has is a row that is there, with this accumulator's state, which nobody else reads or writes.
/// `texts` made what states of text point to. `has_infinite` becomes true with the first infinite value that is summed up.
pub(super) unsafe fn accumulate(
    accumulator: &Accumulator,
    vector: Option<&Vector>,
    place: &Place<'_>,
    texts: &mut TextStore,
    has_infinite: &AtomicBool,
) -> Result<()> {
    let offset = accumulator.offset;
    let is_infinite = Cell::new(false);
    let noted = |value: f64| {
        is_infinite.set(is_infinite.get() | (value.abs() == f64::INFINITY));
        value
    };
    let flip = |least: bool| if least { u64::MAX } else { 0 };
    // SAFETY: `Primitive` says of which type the state is; the rest is the caller's word.
    unsafe {
        match (accumulator.primitive, vector.map(|vector| &vector.values)) {
            (Primitive::Count, _) => count(offset, place),
            (Primitive::SumInt64, Some(Values::Int(values))) => {
                update::<Sum64, _>(offset, values, place, |value| value);
            }
            (Primitive::SumInt128, Some(Values::Int(values))) => {
                update::<Sum128, _>(offset, values, place, i128::from);
            }
            (Primitive::SumInt128, Some(Values::Wide(values))) => {
                update::<Sum128, _>(offset, values, place, |value| value);
            }
            (Primitive::SumWide, Some(Values::Wide(values))) => {
                update::<SumWide, _>(offset, values, place, |value| value);
            }
            (Primitive::SumFloat, Some(Values::Float(values))) => {
                update::<SumFloat, _>(offset, values, place, noted);
            }
            (Primitive::Extreme { least }, Some(Values::Int(values))) => {
                let flip = flip(least);
                update::<Greatest64, _>(offset, values, place, |value| int_key(value) ^ flip);
            }
            (Primitive::Extreme { least }, Some(Values::Float(values))) => {
                let flip = flip(least);
                update::<Greatest64, _>(offset, values, place, |value| float_key(value) ^ flip);
            }
            (Primitive::Extreme { least }, Some(Values::Bool(values))) => {
                let flip = flip(least);
                let bits: Vec<u64> = (0..values.len()).map(|row| u64::from(values.get(row))).collect();
                update::<Greatest64, _>(offset, &bits, place, |value| value ^ flip);
            }
            (Primitive::WideExtreme { least }, Some(Values::Wide(values))) => {
                let flip = if least { u128::MAX } else { 0 };
                update::<Greatest128, _>(offset, values, place, |value| value as u128 ^ 1 << 127 ^ flip);
            }
            (Primitive::ExactMoments, Some(Values::Int(values))) => {
                update::<ExactMoments, _>(offset, values, place, |value| value);
            }
            (Primitive::Moments, Some(Values::Float(values))) => {
                update::<Moments, _>(offset, values, place, noted);
            }
            (Primitive::Moments, Some(Values::Int(values))) => {
                let unit = accumulator.unit;
                update::<Moments, _>(offset, values, place, |value| value as f64 * unit);
            }
            (Primitive::Moments, Some(Values::Wide(values))) => {
                let unit = accumulator.unit;
                update::<Moments, _>(offset, values, place, |value| value as f64 * unit);
            }
            (Primitive::TextExtreme { least }, Some(Values::Text(values))) => place.for_each(|row, group| {
                let mut state = group.read::<TextState>(offset);
                if state.is_beaten(values.bytes(row), least) {
                    texts.set(&mut state, values.bytes(row))?;
                    group.write(offset, state);
                }
                Ok(())
            })?,
            (Primitive::TextFirst, Some(Values::Text(values))) => place.for_each(|row, group| {
                let mut state = group.read::<TextState>(offset);
                if !state.is_there() {
                    texts.set(&mut state, values.bytes(row))?;
                    group.write(offset, state);
                }
                Ok(())
            })?,
            _ => return Err(Error::internal("an aggregate of a column of another class than planned")),
        }
    }
    if is_infinite.get() {
        has_infinite.store(true, Ordering::Relaxed);
    }
    Ok(())
}

/// Adds the states of some rows to those of the groups beside.
///
/// # Safety
///
/// All are rows that are there, with this accumulator's state, no row among both, and nobody else has them. What states of
/// text point to is there.
pub(super) unsafe fn merge(accumulator: &Accumulator, groups: &[RowPtr], rows: &[RowPtr]) {
    let offset = accumulator.offset;
    // SAFETY: the caller's word.
    unsafe fn each<S: State>(offset: usize, groups: &[RowPtr], rows: &[RowPtr]) {
        for (group, row) in groups.iter().zip(rows) {
            // SAFETY: the caller's word.
            unsafe {
                let mut state = group.read::<S>(offset);
                state.merge(row.read::<S>(offset));
                group.write(offset, state);
            }
        }
    }
    // SAFETY: `Primitive` says of which type the state is; the rest is the caller's word.
    unsafe {
        match accumulator.primitive {
            Primitive::Count => each::<Count>(offset, groups, rows),
            Primitive::SumInt64 => each::<Sum64>(offset, groups, rows),
            Primitive::SumInt128 => each::<Sum128>(offset, groups, rows),
            Primitive::SumWide => each::<SumWide>(offset, groups, rows),
            Primitive::SumFloat => each::<SumFloat>(offset, groups, rows),
            Primitive::Extreme { .. } => each::<Greatest64>(offset, groups, rows),
            Primitive::WideExtreme { .. } => each::<Greatest128>(offset, groups, rows),
            Primitive::Moments => each::<Moments>(offset, groups, rows),
            Primitive::ExactMoments => each::<ExactMoments>(offset, groups, rows),
            Primitive::TextExtreme { least } => {
                for (group, row) in groups.iter().zip(rows) {
                    let (state, other) = (group.read::<TextState>(offset), row.read::<TextState>(offset));
                    if other.is_there() && state.is_beaten(other.bytes(), least) {
                        group.write(offset, other);
                    }
                }
            }
            Primitive::TextFirst => {
                for (group, row) in groups.iter().zip(rows) {
                    if !group.read::<TextState>(offset).is_there() {
                        group.write(offset, row.read::<TextState>(offset));
                    }
                }
            }
        }
    }
}
