//! Frames: which rows of its partition a row's function sees.

use super::layout::{Layout, Partition};
use crate::room;
use crate::sort::SortKey;
use crate::sort::keys::float_order;
use crate::vector::{Values, Vector};
use std::cmp::Ordering;
use std::fmt;
use tidepool_base::{Error, Result};

/// What bounds of a frame count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameUnits {
    Rows,
    /// By the value of the only order key, where a bound has a distance.
    Range,
    /// Groups of peers: rows that the order does not tell apart.
    Groups,
}

/// How far a bound is from the current row, in the direction of the order: below 0 it precedes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distance {
    /// Rows or groups; of a range, units of the key: of a decimal's scale.
    Whole(i128),
    /// Of a range over floats.
    Float(f64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FrameBound {
    /// The partition's first row.
    First,
    /// The current row; of ranges and groups, the first or last of its peers.
    Current,
    At(Distance),
    /// The partition's last row.
    Last,
}

/// From one bound to another, both within.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frame {
    pub units: FrameUnits,
    pub start: FrameBound,
    pub end: FrameBound,
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = match self.units {
            FrameUnits::Rows => "rows",
            FrameUnits::Range => "range",
            FrameUnits::Groups => "groups",
        };
        let bound = |bound: FrameBound| match bound {
            FrameBound::First => "first".to_owned(),
            FrameBound::Current => "current".to_owned(),
            FrameBound::At(Distance::Whole(distance)) => format!("{distance:+}"),
            FrameBound::At(Distance::Float(distance)) => format!("{distance:+}"),
            FrameBound::Last => "last".to_owned(),
        };
        write!(f, "{units} {} to {}", bound(self.start), bound(self.end))
    }
}

impl Frame {
    /// All rows of the partition.
    pub const WHOLE: Frame = Frame { units: FrameUnits::Rows, start: FrameBound::First, end: FrameBound::Last };

    /// Whether it asks which rows are peers.
    pub(super) fn has_peers(&self) -> bool {
        self.units != FrameUnits::Rows
    }

    /// Whether it looks for values of the order key.
    pub(super) fn has_values(&self) -> bool {
        let at = |bound| matches!(bound, FrameBound::At(_));
        self.units == FrameUnits::Range && (at(self.start) || at(self.end))
    }
}

/// The frames of a segment's rows: those from `start` up to `end`, which is none where they are the same. Neither ever goes back
/// from one row to the next.
#[derive(Debug)]
pub(super) enum Spans {
    /// Each row's partition.
    Whole,
    Each {
        start: Vec<u32>,
        end: Vec<u32>,
    },
}

impl Spans {
    #[inline(always)]
    pub fn each(&self, layout: &Layout, mut each: impl FnMut(usize, u32, u32)) {
        match self {
            Spans::Whole => {
                for partition in layout.partitions() {
                    (partition.start..partition.end).for_each(|row| each(row as usize, partition.start, partition.end));
                }
            }
            Spans::Each { start, end } => {
                start.iter().zip(end).enumerate().for_each(|(row, (start, end))| each(row, *start, *end));
            }
        }
    }
}

impl Spans {
    /// The most rows of a frame, with those that go, that rows go of one by one.
    pub fn rows_left_behind(&self) -> usize {
        let Spans::Each { start, end } = self else { return 0 };
        let pairs = start.windows(2).zip(end.windows(2));
        let rows = pairs.filter_map(|(start, end)| {
            let is_left = start[0] < start[1] && start[1] < end[0];
            is_left.then(|| end[1] - start[0])
        });
        rows.max().unwrap_or(0) as usize
    }
}

fn mixed() -> Error {
    Error::internal("a frame's distance is of another kind than its order key")
}

/// The frames of a segment's rows. `key`: the order key and its values, for frames that look for some.
pub(super) fn spans(frame: &Frame, layout: &Layout, key: Option<(SortKey, &Vector)>) -> Result<Spans> {
    if (frame.start, frame.end) == (FrameBound::First, FrameBound::Last) {
        return Ok(Spans::Whole);
    }
    let mut start = room::filled(0, layout.rows as usize)?;
    let mut end = room::filled(0, layout.rows as usize)?;
    bounds(frame.units, frame.start, true, layout, key, &mut start)?;
    bounds(frame.units, frame.end, false, layout, key, &mut end)?;
    end.iter_mut().zip(&start).for_each(|(end, start)| *end = (*end).max(*start));
    Ok(Spans::Each { start, end })
}

/// The first row of each frame, or the row behind its last.
fn bounds(
    units: FrameUnits,
    bound: FrameBound,
    is_start: bool,
    layout: &Layout,
    key: Option<(SortKey, &Vector)>,
    out: &mut [u32],
) -> Result<()> {
    let behind = i128::from(!is_start);
    for partition in layout.partitions() {
        let Partition { start, end, groups } = partition;
        let rows = &mut out[start as usize..end as usize];
        match (units, bound) {
            (_, FrameBound::First) => rows.fill(start),
            (_, FrameBound::Last) => rows.fill(end),
            (FrameUnits::Rows, FrameBound::Current) => {
                rows.iter_mut().zip(start + u32::from(!is_start)..).for_each(|(out, row)| *out = row);
            }
            (FrameUnits::Rows, FrameBound::At(Distance::Whole(distance))) => {
                let shift = distance.saturating_add(behind);
                for (out, row) in rows.iter_mut().zip(start..) {
                    *out = i128::from(row).saturating_add(shift).clamp(start.into(), end.into()) as u32;
                }
            }
            (FrameUnits::Groups, FrameBound::At(Distance::Whole(distance))) => {
                of_groups(distance.saturating_add(behind), start, groups, rows);
            }
            (FrameUnits::Groups | FrameUnits::Range, FrameBound::Current) => of_groups(behind, start, groups, rows),
            (FrameUnits::Range, FrameBound::At(distance)) => {
                let (key, values) = key.ok_or_else(|| Error::internal("a range without an order"))?;
                within(distance, key, values, is_start, start, rows)?;
            }
            (_, FrameBound::At(Distance::Float(_))) => return Err(mixed()),
        }
    }
    Ok(())
}

/// Where the group begins that is `shift` after a row's own.
fn of_groups(shift: i128, start: u32, groups: &[u32], out: &mut [u32]) {
    let last = groups.len() - 1;
    for (group, ends) in groups.windows(2).enumerate() {
        let wanted = (group as i128).saturating_add(shift).clamp(0, last as i128) as usize;
        out[(ends[0] - start) as usize..(ends[1] - start) as usize].fill(groups[wanted]);
    }
}

/// Where rows begin, or end, that are not farther from a row than the distance by their values.
fn within(
    distance: Distance,
    key: SortKey,
    vector: &Vector,
    is_start: bool,
    start: u32,
    out: &mut [u32],
) -> Result<()> {
    match (&vector.values, distance) {
        (Values::Int(values), Distance::Whole(distance)) => {
            let distance = if key.descending { distance.saturating_neg() } else { distance };
            let shift = |value: i64| i128::from(value).saturating_add(distance);
            search(values, shift, |value, to| i128::from(value).cmp(&to), key, vector, is_start, start, out);
        }
        (Values::Wide(values), Distance::Whole(distance)) => {
            let distance = if key.descending { distance.saturating_neg() } else { distance };
            let shift = |value: i128| value.saturating_add(distance);
            search(values, shift, |value, to| value.cmp(&to), key, vector, is_start, start, out);
        }
        (Values::Float(values), Distance::Float(distance)) => {
            let distance = if key.descending { -distance } else { distance };
            let shift = |value: f64| value + distance;
            let compare = |value, to| float_order(value).cmp(&float_order(to));
            search(values, shift, compare, key, vector, is_start, start, out);
        }
        _ => return Err(mixed()),
    }
    Ok(())
}

/// `out` has the rows of one partition, from `start` on. A NULL is as far as can be from every value, and not from another NULL.
#[expect(clippy::too_many_arguments, reason = "one loop over what three classes of values differ in")]
#[inline(always)]
fn search<T: Copy, U: Copy>(
    values: &[T],
    shift: impl Fn(T) -> U,
    compare: impl Fn(T, U) -> Ordering,
    key: SortKey,
    vector: &Vector,
    is_start: bool,
    start: u32,
    out: &mut [u32],
) {
    let end = start + out.len() as u32;
    // The order of a row and what is looked for, in the direction of the rows.
    let order = |row: u32, to: Option<U>| match (vector.is_valid(row as usize), to) {
        (true, Some(to)) => {
            let order = compare(values[row as usize], to);
            if key.descending { order.reverse() } else { order }
        }
        (false, None) => Ordering::Equal,
        (is_valid, _) => {
            if is_valid == key.nulls_first {
                Ordering::Greater
            } else {
                Ordering::Less
            }
        }
    };
    let mut at = start;
    for (row, out) in out.iter_mut().enumerate() {
        let row = start as usize + row;
        let to = vector.is_valid(row).then(|| shift(values[row]));
        let is_passed = |order: Ordering| if is_start { order.is_lt() } else { order.is_le() };
        while at < end && is_passed(order(at, to)) {
            at += 1;
        }
        *out = at;
    }
}
