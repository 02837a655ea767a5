//! Rows in the order of their partitions: where partitions begin, and groups of peers within them.

use crate::mask::Mask;
use crate::room;
use crate::sort::keys::KeyPlan;
use crate::vector::{Chunk, Vector};
use tidepool_base::{Error, Result};

/// The beginnings among the rows of a piece.
#[derive(Debug)]
pub(super) struct Marks {
    pub partitions: Mask,
    /// `None`: nobody asks, or rows without an order, which are all peers.
    pub groups: Option<Mask>,
}

/// Rows whose keys are not those of the row before. `before`: the piece before this one.
pub(super) fn changes(plan: &KeyPlan, piece: &Chunk, before: Option<&Chunk>) -> Result<Mask> {
    let keys = plan.encode(piece)?;
    let is_first = before.is_none_or(|before| plan.compare((before, before.rows - 1), (piece, 0)).is_ne());
    Ok(Mask::from_fn(piece.rows, |row| match row {
        0 => is_first,
        row if keys[row] != keys[row - 1] => true,
        row => !plan.is_decisive && plan.compare((piece, row - 1), (piece, row)).is_ne(),
    }))
}

/// Some partitions, each whole: what one task computes.
#[derive(Debug)]
pub(super) struct Segment {
    /// Their rows, in order. None is empty.
    pub runs: Vec<Chunk>,
    pub layout: Layout,
}

/// Where partitions and groups of a segment begin, and a last value where the last of them ends.
#[derive(Debug)]
pub(super) struct Layout {
    pub rows: u32,
    partitions: Vec<u32>,
    groups: Vec<u32>,
}

/// A partition's rows. `groups`: where each of its groups begins, and then where the last one ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Partition<'a> {
    pub start: u32,
    pub end: u32,
    pub groups: &'a [u32],
}

impl Layout {
    /// Without groups, a partition is one.
    pub fn new(partitions: Vec<u32>, groups: Option<Vec<u32>>) -> Layout {
        let rows = partitions.last().copied().unwrap_or(0);
        let groups = groups.unwrap_or_else(|| partitions.clone());
        Layout { rows, partitions, groups }
    }

    pub fn partitions(&self) -> impl Iterator<Item = Partition<'_>> {
        let mut at = 0;
        self.partitions.windows(2).map(move |bounds| {
            let (start, end) = (bounds[0], bounds[1]);
            let first = at;
            while self.groups[at] < end {
                at += 1;
            }
            Partition { start, end, groups: &self.groups[first..=at] }
        })
    }
}

impl Segment {
    pub fn column(&self, column: usize) -> Result<Vector> {
        match self.runs.as_slice() {
            [run] => Ok(run.columns[column].clone()),
            runs => Vector::concat(&runs.iter().map(|run| &run.columns[column]).collect::<Vec<_>>()),
        }
    }
}

/// Rows of one piece, from one to before another.
#[derive(Clone, Copy, Debug)]
struct Range {
    piece: usize,
    start: usize,
    end: usize,
}

/// Cuts pieces where partitions begin: into about as many segments as there are pieces, which a partition may be longer than.
pub(super) fn segments(pieces: &[Chunk], marks: &[Marks]) -> Result<Vec<Segment>> {
    let mut segments = Vec::new();
    let mut ranges: Vec<Range> = Vec::new();
    for (piece, (chunk, marks)) in pieces.iter().zip(marks).enumerate() {
        let first = (0..chunk.rows).find(|row| marks.partitions.get(*row)).unwrap_or(chunk.rows);
        if first > 0 {
            ranges.push(Range { piece, start: 0, end: first });
        }
        if first < chunk.rows {
            if !ranges.is_empty() {
                segments.push(std::mem::take(&mut ranges));
            }
            ranges.push(Range { piece, start: first, end: chunk.rows });
        }
    }
    if !ranges.is_empty() {
        segments.push(ranges);
    }
    segments.into_iter().map(|ranges| segment(pieces, marks, &ranges)).collect()
}

/// All rows as one partition, if there are any.
pub(super) fn whole(runs: Vec<Chunk>) -> Result<Vec<Segment>> {
    if runs.is_empty() {
        return Ok(Vec::new());
    }
    let rows = counted(runs.iter().map(|run| run.rows).sum())?;
    Ok(vec![Segment { runs, layout: Layout::new(vec![0, rows], None) }])
}

/// Where there is no row is told by the greatest number.
fn counted(rows: usize) -> Result<u32> {
    let rows = u32::try_from(rows).ok().filter(|rows| *rows < u32::MAX);
    rows.ok_or_else(|| Error::unsupported("a window's partition of more than 4,294,967,294 rows"))
}

fn segment(pieces: &[Chunk], marks: &[Marks], ranges: &[Range]) -> Result<Segment> {
    let rows = counted(ranges.iter().map(|range| range.end - range.start).sum())?;
    let starts = |mask: &dyn Fn(&Marks) -> Option<&Mask>| -> Result<Option<Vec<u32>>> {
        let mut starts = Vec::new();
        let mut passed = 0;
        for Range { piece, start, end } in ranges {
            let Some(mask) = mask(&marks[*piece]) else { return Ok(None) };
            let of_piece = || (*start..*end).filter(|row| mask.get(*row));
            room::grow(&mut starts, of_piece().count())?;
            starts.extend(of_piece().map(|row| (passed + row - start) as u32));
            passed += end - start;
        }
        starts.push(rows);
        Ok(Some(starts))
    };
    let partitions = starts(&|marks| Some(&marks.partitions))?.unwrap_or_default();
    let groups = starts(&|marks| marks.groups.as_ref())?;
    let cut = |Range { piece, start, end }: &Range| {
        let chunk = &pieces[*piece];
        if end - start == chunk.rows { chunk.clone() } else { chunk.slice(*start, end - start) }
    };
    Ok(Segment { runs: ranges.iter().map(cut).collect(), layout: Layout::new(partitions, groups) })
}
