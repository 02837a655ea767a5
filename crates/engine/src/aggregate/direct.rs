//! Groups whose number is computed from their keys: integers with narrow bounds.

use super::directory::HASH;
use super::states::Place;
use crate::observed::{Hold, Observer};
use crate::room;
use crate::rows::{RowPtr, Rows};
use crate::types::{Class, ColumnType};
use crate::vector::{Values, Vector};
use tidepool_base::{Error, Result};

/// Most numbers that there may be, whatever the rows.
const NUMBERS_FEW: usize = 1 << 16;
/// Most numbers that there may be for many rows.
const NUMBERS_MANY: usize = 1 << 20;

/// Numbers that there may be for so many rows: enough of these for each that looking a number up, which may miss the cache, costs less than
/// finding groups by hash, and putting them aside where they outgrow it.
pub(super) fn numbers_max(rows_expected: f64) -> usize {
    ((rows_expected / 4.0) as usize).clamp(NUMBERS_FEW, NUMBERS_MANY)
}

/// Up to so many groups, a chunk's rows are ordered by group first: then no sum waits for the one of the row before.
const SORTED_GROUPS_MAX: usize = 64;

/// How keys are numbered: like digits, each from its lower bound, and from 1 if 0 is for NULL.
#[derive(Clone, Debug)]
pub(super) struct Numbering {
    digits: Vec<Digit>,
    pub size: usize,
}

#[derive(Clone, Copy, Debug)]
struct Digit {
    lower: i64,
    stride: u32,
    is_nullable: bool,
}

impl Numbering {
    /// `None` for more numbers than `most`.
    pub fn of(keys: &[ColumnType], most: usize) -> Option<Numbering> {
        let (mut digits, mut size) = (Vec::with_capacity(keys.len()), 1usize);
        for of in keys {
            let (lower, upper) = match of.class() {
                Class::Int => of.bounds?,
                Class::Bool => (0, 1),
                _ => return None,
            };
            let values = usize::try_from((upper - lower).max(0)).ok()?.checked_add(1 + usize::from(of.nullable))?;
            digits.push(Digit { lower: lower as i64, stride: size as u32, is_nullable: of.nullable });
            size = size.checked_mul(values).filter(|size| *size <= most)?;
        }
        Some(Numbering { digits, size })
    }

    /// The numbers of some keys. Fails for values outside their bounds.
    fn numbers(&self, keys: &[&Vector], rows: usize) -> Result<Vec<u32>> {
        let mut numbers = vec![0u32; rows];
        for (digit, key) in self.digits.iter().zip(keys) {
            let Digit { lower, stride, is_nullable } = *digit;
            let lower = lower.wrapping_sub(i64::from(is_nullable));
            let of = |value: i64| (value.wrapping_sub(lower) as u32).wrapping_mul(stride);
            match (&key.values, &key.valid) {
                (Values::Int(values), None) => {
                    numbers
                        .iter_mut()
                        .zip(values)
                        .for_each(|(number, value)| *number = number.wrapping_add(of(*value)));
                }
                (Values::Int(values), Some(valid)) => {
                    for (row, (number, value)) in numbers.iter_mut().zip(values).enumerate() {
                        *number = number.wrapping_add(if valid.get(row) { of(*value) } else { 0 });
                    }
                }
                (Values::Bool(values), _) => {
                    for (row, number) in numbers.iter_mut().enumerate() {
                        let value = if key.is_valid(row) { of(i64::from(values.get(row))) } else { 0 };
                        *number = number.wrapping_add(value);
                    }
                }
                _ => return Err(Error::internal("a key of another class than planned")),
            }
        }
        if numbers.iter().fold(0, |most, number| most.max(*number)) as usize >= self.size && rows > 0 {
            return Err(Error::internal("a key outside its bounds"));
        }
        Ok(numbers)
    }
}

#[derive(Debug)]
pub(super) struct DirectTable {
    numbering: Numbering,
    groups: Vec<RowPtr>,
    pub rows: Rows,
    _hold: Hold,
}

impl DirectTable {
    pub fn new(numbering: &Numbering, rows: Rows, observer: &Observer) -> Result<DirectTable> {
        let groups = room::filled(RowPtr::NONE, numbering.size)?;
        Ok(DirectTable { numbering: numbering.clone(), _hold: observer.hold_vec(&groups), groups, rows })
    }

    /// Makes rows for numbers that have none. `columns`: the keys first.
    fn make(&mut self, numbers: &[u32], columns: &[&Vector]) -> Result<()> {
        let is_new = |(_, number): &(usize, &u32)| self.groups[**number as usize].is_none();
        let mut new: Vec<(u32, u32)> =
            numbers.iter().enumerate().filter(is_new).map(|(row, number)| (*number, row as u32)).collect();
        new.sort_unstable();
        new.dedup_by_key(|(number, _)| *number);
        let rows: Vec<u32> = new.iter().map(|(_, row)| *row).collect();
        let mut made = Vec::new();
        self.rows.append(columns, Some(&rows), numbers.len(), &mut made)?;
        for ((number, _), row) in new.iter().zip(made) {
            // SAFETY: made just now, with a header.
            unsafe { row.write(HASH, u64::from(*number)) };
            self.groups[*number as usize] = row;
        }
        Ok(())
    }

    /// The groups of a chunk's rows. `columns`: the keys first.
    pub fn place<'a>(&mut self, columns: &[&Vector], rows: usize, groups: &'a mut Vec<RowPtr>) -> Result<Place<'a>> {
        let numbers = self.numbering.numbers(columns, rows)?;
        groups.clear();
        if self.numbering.size <= SORTED_GROUPS_MAX {
            let (order, counts) = sorted(&numbers);
            let mut ends = Vec::new();
            let mut end = 0;
            let present = || counts.iter().enumerate().filter(|(_, count)| **count > 0);
            if present().any(|(number, _)| self.groups[number].is_none()) {
                self.make(&numbers, columns)?;
            }
            for (number, count) in present() {
                end += *count;
                ends.push(end);
                groups.push(self.groups[number]);
            }
            return Ok(Place { rows: Some(order.into()), ends: Some(ends.into()), groups });
        }
        groups.extend(numbers.iter().map(|number| self.groups[*number as usize]));
        if groups.iter().any(|group| group.is_none()) {
            self.make(&numbers, columns)?;
            groups.clear();
            groups.extend(numbers.iter().map(|number| self.groups[*number as usize]));
        }
        Ok(Place { rows: None, ends: None, groups })
    }
}

/// Rows ordered by their number, below [`SORTED_GROUPS_MAX`], and how many each number has.
fn sorted(numbers: &[u32]) -> (Vec<u32>, [u32; SORTED_GROUPS_MAX]) {
    const LANES: usize = 4;
    let number = |number: u32| number as usize & (SORTED_GROUPS_MAX - 1);
    // Each quarter of the rows counts by itself: neighbours of one group would wait for each other.
    let quarter = numbers.len() / LANES;
    let (a, rest) = numbers.split_at(quarter);
    let (b, rest) = rest.split_at(quarter);
    let (c, rest) = rest.split_at(quarter);
    let (d, rest) = rest.split_at(quarter);
    let mut places = [[0u32; SORTED_GROUPS_MAX]; LANES];
    let [of_a, of_b, of_c, of_d] = &mut places;
    for row in 0..quarter {
        of_a[number(a[row])] += 1;
        of_b[number(b[row])] += 1;
        of_c[number(c[row])] += 1;
        of_d[number(d[row])] += 1;
    }
    rest.iter().for_each(|of| of_d[number(*of)] += 1);
    let (mut counts, mut sum) = ([0; SORTED_GROUPS_MAX], 0);
    for (number, count) in counts.iter_mut().enumerate() {
        let start = sum;
        for places in &mut places {
            sum += std::mem::replace(&mut places[number], sum);
        }
        *count = sum - start;
    }
    let mut order = vec![0u32; numbers.len()];
    #[inline(always)]
    fn put(order: &mut [u32], place: &mut u32, row: usize) {
        order[*place as usize] = row as u32;
        *place += 1;
    }
    let [of_a, of_b, of_c, of_d] = &mut places;
    for row in 0..quarter {
        put(&mut order, &mut of_a[number(a[row])], row);
        put(&mut order, &mut of_b[number(b[row])], quarter + row);
        put(&mut order, &mut of_c[number(c[row])], 2 * quarter + row);
        put(&mut order, &mut of_d[number(d[row])], 3 * quarter + row);
    }
    for (row, of) in rest.iter().enumerate() {
        put(&mut order, &mut of_d[number(*of)], LANES * quarter + row);
    }
    (order, counts)
}
