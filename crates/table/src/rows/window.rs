//! Looking at a range 64 rows at a time, for scans.

use super::RowStore;
use super::range::{MainPart, Range, WORDS};
use super::store::Seen;
use super::version::{Found, Version};
use crate::RowGroup;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidepool_base::RowId;
use tidepool_tablespace::Tablespace;
use tidepool_txn::View;

/// A range as a view sees it, by a main that was there under the view. Any number of looks agree with one another: see `range`.
#[derive(Clone, Copy)]
pub struct RangeView<'v> {
    store: &'v RowStore,
    view: &'v View,
    range: &'v Range,
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

    fn sees_main(&self, view: &View, range: &Range) -> bool {
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

    /// Whether main alone says everything about these 64 rows, which it then does as `main` says.
    #[inline]
    pub fn is_clean(&self, window: usize) -> bool {
        self.range.headed(window) == 0
    }

    /// Rows that may have versions.
    pub(crate) fn headed_rows(&self) -> usize {
        self.range.headed_rows()
    }

    /// Of 64 rows, those that may have versions.
    #[inline]
    pub(crate) fn headed(&self, window: usize) -> u64 {
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

    /// The image of a row that is in a version.
    pub fn image(&self, position: usize) -> Option<&'v [u8]> {
        let Found::Version(version) = self.range.head(self.view, position)?.load() else { return None };
        match self.seen(version) {
            Seen::Image(image) => Some(image),
            Seen::Deleted | Seen::Main => None,
        }
    }

    /// Whether main shows a row.
    pub fn is_in_main(&self, position: usize) -> bool {
        let is_there = self.main.is_some_and(|main| main.has(position));
        is_there
            && match self.range.head(self.view, position).map(|head| head.load()) {
                Some(Found::Version(version)) => matches!(self.seen(version), Seen::Main),
                _ => true,
            }
    }

    /// As `window`, without the versions.
    pub(crate) fn shown(&self, window: usize) -> u64 {
        let mut shown = self.main(window);
        let mut headed = self.range.headed(window) & shown;
        while headed != 0 {
            let bit = headed & headed.wrapping_neg();
            headed &= headed - 1;
            let position = window * 64 + bit.trailing_zeros() as usize;
            if let Some(Found::Version(version)) = self.range.head(self.view, position).map(|head| head.load())
                && !matches!(self.seen(version), Seen::Main)
            {
                shown &= !bit;
            }
        }
        shown
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
        let mut headed = self.range.headed(window);
        while headed != 0 {
            let bit = headed & headed.wrapping_neg();
            headed &= headed - 1;
            let position = window * 64 + bit.trailing_zeros() as usize;
            let Some(Found::Version(version)) = self.range.head(self.view, position).map(|head| head.load()) else {
                continue;
            };
            match self.seen(version) {
                Seen::Main => {}
                Seen::Deleted => shown &= !bit,
                Seen::Image(image) => {
                    shown &= !bit;
                    versions.push((position as u32, image));
                }
            }
        }
        shown
    }
}
