//! Looking at a range 64 rows at a time, for scans.

use super::RowStore;
use super::range::{MainPart, Range as RowRange, WORDS};
use super::store::Seen;
use super::sync::prefetch;
use super::version::{Found, Version};
use crate::RowGroup;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidepool_base::RowId;
use tidepool_tablespace::Tablespace;
use tidepool_txn::View;

/// Rows whose heads and versions are fetched from memory at the same time: more than a processor has misses under way.
const TOGETHER: usize = 32;

/// A range as a view sees it, by a main that was there under the view. Any number of looks agree with one another: see `range`.
#[derive(Clone, Copy)]
pub struct RangeView<'v> {
    store: &'v RowStore,
    view: &'v View,
    range: &'v RowRange,
    main: Option<&'v MainPart>,
}

impl RowStore {
    /// `None` when there is no range of that number.
    pub fn range<'v>(&'v self, view: &'v View, number: u64) -> Option<RangeView<'v>> {
        self.check_view(view);
        let range = self.directory.get(number)?;
        let main = if self.sees_main(view, range) { range.main(view) } else { None };
        Some(RangeView { store: self, view, range, main })
    }

    /// The main of a range as the view sees it, if it does.
    pub fn main(&self, view: &View, number: u64) -> Option<Arc<MainPart>> {
        self.check_view(view);
        let range = self.directory.get(number)?;
        if self.sees_main(view, range) { range.main_to_keep(view) } else { None }
    }

    fn sees_main(&self, view: &View, range: &RowRange) -> bool {
        view.sees(&self.transactions, &range.begin, range.command.load(Ordering::Relaxed))
    }

    /// As `range`, by the main that `main` once returned for the view.
    pub fn range_by<'v>(&'v self, view: &'v View, number: u64, main: Option<&'v MainPart>) -> Option<RangeView<'v>> {
        self.check_view(view);
        Some(RangeView { store: self, view, range: self.directory.get(number)?, main })
    }
}

/// A row that main does not show as it is.
#[derive(Clone, Copy, Debug)]
pub enum Apart<'v> {
    Image(&'v [u8]),
    /// A position of main that is no row.
    Deleted,
}

impl RowStore {
    /// Heads lie in memory that `space` is to give up.
    pub fn heads_must_move(&self, space: &Tablespace) -> bool {
        (0..self.directory.len()).filter_map(|number| self.directory.get(number)).any(|range| range.must_move(space))
    }
}

impl<'v> RangeView<'v> {
    /// Windows of 64 rows that a range has.
    pub const WINDOWS: usize = WORDS;

    /// Every row of the range that main does not show as the view sees it: those in versions, and those of main that are gone.
    /// By position.
    pub fn apart(&self, number: u64) -> Vec<(RowId, Apart<'v>)> {
        let rows = self.main.map_or(0, |main| main.group.rows());
        let mut apart = Vec::new();
        let mut versions = Vec::new();
        for window in 0..WORDS {
            let in_group = match rows.saturating_sub(window * 64) {
                left @ 0..64 => (1u64 << left) - 1,
                _ => u64::MAX,
            };
            let shown = self.window(window, &mut versions);
            let mut gone = in_group & !shown;
            for (position, image) in versions.drain(..) {
                gone &= !(1 << (position % 64));
                apart.push((RowId::new(number, position as usize), Apart::Image(image)));
            }
            while gone != 0 {
                let position = window * 64 + gone.trailing_zeros() as usize;
                gone &= gone - 1;
                apart.push((RowId::new(number, position), Apart::Deleted));
            }
        }
        apart
    }

    /// The row group that positions of main are in.
    pub fn group(&self) -> Option<&'v Arc<RowGroup>> {
        self.main.map(|main| &main.group)
    }

    /// Rows that may have versions.
    pub(crate) fn headed_rows(&self) -> usize {
        self.range.headed_rows()
    }

    /// Of 64 rows, those that may have versions.
    #[inline]
    pub fn headed(&self, window: usize) -> u64 {
        self.range.headed(window)
    }

    /// Main says everything about the range, and all its rows are there.
    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        !self.range.has_marks() && self.main.is_some_and(MainPart::is_whole)
    }

    /// Of a chain whose first version is in a head. What is read is the caller's to charge for.
    fn seen(&self, version: Version) -> Seen<'v> {
        self.store.seen_charging(self.view, version, self.main.map_or(0, MainPart::upto), |_| ())
    }

    /// Appends those of some positions whose rows are in versions, with their images. What is read is the caller's to charge
    /// for.
    pub fn images(&self, positions: &[u32], versions: &mut Vec<(u32, &'v [u8])>) {
        for positions in positions.chunks(TOGETHER) {
            self.look_at(positions, &mut |position, seen| {
                if let Seen::Image(image) = seen {
                    versions.push((position, image));
                }
            });
        }
    }

    /// What the view sees of rows that may have versions, in order: those that `headed` says of each window. As many as
    /// are looked at together wait for memory together, and not for one another.
    fn look(&self, windows: Range<usize>, headed: impl Fn(usize) -> u64, take: &mut impl FnMut(u32, Seen<'v>)) {
        let mut positions = [0; TOGETHER];
        let mut count = 0;
        for window in windows {
            let mut headed = headed(window);
            while headed != 0 {
                positions[count] = (window * 64) as u32 + headed.trailing_zeros();
                headed &= headed - 1;
                count += 1;
                if count == TOGETHER {
                    self.look_at(&positions, take);
                    count = 0;
                }
            }
        }
        self.look_at(&positions[..count], take);
    }

    fn look_at(&self, positions: &[u32], take: &mut impl FnMut(u32, Seen<'v>)) {
        let (versions, in_pod) = self.heads(positions);
        for ((at, position), version) in positions.iter().enumerate().zip(versions) {
            let seen = match version {
                Some(version) => self.seen(version),
                // No main has what the pod has of a row, whatever it was made at.
                None if in_pod >> at & 1 != 0 => self.store.seen_in_pod(self.view, self.range, *position as usize),
                None => Seen::Main,
            };
            take(*position, seen);
        }
    }

    /// What the heads at some positions hold, at most `TOGETHER` of them; and a bit for each row that is in the pod.
    fn heads(&self, positions: &[u32]) -> ([Option<Version>; TOGETHER], u32) {
        let mut versions = [None; TOGETHER];
        let mut in_pod = 0;
        if positions.len() > 1 {
            for position in positions {
                if let Some(head) = self.range.head(self.view, *position as usize) {
                    prefetch(head);
                }
            }
        }
        for (at, (position, place)) in positions.iter().zip(&mut versions).enumerate() {
            match self.range.head(self.view, *position as usize).map(|head| head.load()) {
                Some(Found::Version(version)) => {
                    version.prefetch();
                    *place = Some(version);
                }
                Some(Found::Pod(_)) => in_pod |= 1 << at,
                Some(Found::Null | Found::TakingOut) | None => {}
            }
        }
        if positions.len() > 1 {
            self.store.memory().about_to_read(versions.iter().flatten().map(|version| version.address()));
        }
        (versions, in_pod)
    }

    /// Appends the images of all rows from the newest down to the one that the view sees, or main's. What is read is the caller's
    /// to charge for.
    pub(crate) fn images_down_to_seen(&self, images: &mut Vec<&'v [u8]>) {
        let upto = self.main.map_or(0, MainPart::upto);
        let mut positions = Vec::with_capacity(TOGETHER);
        for window in 0..WORDS {
            let mut headed = self.range.headed(window);
            while headed != 0 {
                positions.push((window * 64) as u32 + headed.trailing_zeros());
                headed &= headed - 1;
                if positions.len() == TOGETHER {
                    self.images_of(&positions, upto, images);
                    positions.clear();
                }
            }
        }
        self.images_of(&positions, upto, images);
    }

    fn images_of(&self, positions: &[u32], upto: u64, images: &mut Vec<&'v [u8]>) {
        let (versions, in_pod) = self.heads(positions);
        for ((at, position), version) in positions.iter().enumerate().zip(versions) {
            match version {
                Some(version) => self.store.images_down_to_seen(self.view, version, upto, images),
                None if in_pod >> at & 1 != 0 => {
                    let head = self.range.head(self.view, *position as usize).map(|head| head.load());
                    if let Some(Found::Pod(tuple)) = head {
                        let base = self.store.images_in_pod(self.view, tuple, &mut |image, _| {
                            images.push(image);
                            true
                        });
                        if let Some(base) = base {
                            self.store.images_down_to_seen(self.view, base, 0, images);
                        }
                    }
                }
                None => {}
            }
        }
    }

    /// Of some positions, those whose rows main shows, and those whose rows are in versions.
    pub fn sorted_out(&self, positions: &[u32]) -> (Vec<u32>, Vec<u32>) {
        let (mut in_main, mut in_versions) = (Vec::new(), Vec::new());
        let main_has = |position: u32| self.main.is_some_and(|main| main.has(position as usize));
        for positions in positions.chunks(TOGETHER) {
            self.look_at(positions, &mut |position, seen| match seen {
                Seen::Image(_) => in_versions.push(position),
                Seen::Main if main_has(position) => in_main.push(position),
                Seen::Main | Seen::Deleted => {}
            });
        }
        (in_main, in_versions)
    }

    /// Of some rows, 64 a word from window `first` on, leaves those that main shows.
    pub(crate) fn and_shown(&self, first: usize, rows: &mut [u64]) {
        for (word, window) in rows.iter_mut().zip(first..) {
            *word &= self.main(window);
        }
        let wanted: &[Cell<u64>] = Cell::from_mut(rows).as_slice_of_cells();
        let headed = |window: usize| self.range.headed(window) & wanted[window - first].get();
        self.look(first..first + wanted.len(), headed, &mut |position, seen| {
            if !matches!(seen, Seen::Main) {
                let word = &wanted[position as usize / 64 - first];
                word.set(word.get() & !(1 << (position % 64)));
            }
        });
    }

    /// The rows of the window that main shows, unless versions hide them: a bit each.
    #[inline]
    pub fn main(&self, window: usize) -> u64 {
        self.main.map_or(0, |main| main.live(window))
    }

    /// The rows of the window that main shows, a bit each; and appends those that are in versions, as position in the
    /// range and image. What is read is the caller's to charge for.
    pub fn window(&self, window: usize, versions: &mut Vec<(u32, &'v [u8])>) -> u64 {
        let mut shown = self.main(window);
        self.look(window..window + 1, |window| self.range.headed(window), &mut |position, seen| {
            if !matches!(seen, Seen::Main) {
                shown &= !(1 << (position % 64));
            }
            if let Seen::Image(image) = seen {
                versions.push((position, image));
            }
        });
        shown
    }

    /// Appends the rows of some windows that are in versions, as `window` does.
    pub fn windows(&self, windows: Range<usize>, versions: &mut Vec<(u32, &'v [u8])>) {
        self.look(windows, |window| self.range.headed(window), &mut |position, seen| {
            if let Seen::Image(image) = seen {
                versions.push((position, image));
            }
        });
    }
}
