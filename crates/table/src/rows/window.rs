//! Looking at a range 64 rows at a time, for scans.

use super::RowStore;
use super::range::{MainPart, Range, WORDS};
use super::store::Seen;
use super::version::Found;
use crate::RowGroup;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidepool_base::RowId;
use tidepool_tablespace::Tablespace;
use tidepool_txn::View;

/// A range as a view sees it.
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
        let seen = view.sees(&self.transactions, &range.begin, range.command.load(Ordering::Relaxed));
        Some(RangeView { store: self, view, range, main: if seen { range.main(view) } else { None } })
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
    /// Every row of a range that a main of `rows` rows does not show as `view` sees it: those in versions, and those of main that
    /// are gone. By position. The main is one that was there under the view; a merge may have put a shorter or longer one in its
    /// place since, with the same rows for the view.
    pub fn apart<'v>(&'v self, view: &'v View, number: u64, rows: usize) -> Vec<(RowId, Apart<'v>)> {
        let Some(range) = self.range(view, number) else { return Vec::new() };
        let mut apart = Vec::new();
        let mut versions = Vec::new();
        for window in 0..WORDS {
            let in_group = match rows.saturating_sub(window * 64) {
                left @ 0..64 => (1u64 << left) - 1,
                _ => u64::MAX,
            };
            let shown = range.window(window, &mut versions);
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

    /// Heads lie in memory that `space` is to give up.
    pub fn heads_must_move(&self, space: &Tablespace) -> bool {
        (0..self.directory.len()).filter_map(|number| self.directory.get(number)).any(|range| range.must_move(space))
    }
}

impl<'v> RangeView<'v> {
    /// Windows of 64 rows that a range has.
    pub const WINDOWS: usize = WORDS;

    /// The row group that positions of main are in.
    pub fn group(&self) -> Option<&'v Arc<RowGroup>> {
        self.main.map(|main| &main.group)
    }

    /// Whether main alone says everything about these 64 rows, which it then does as `main` says.
    #[inline]
    pub fn is_clean(&self, window: usize) -> bool {
        self.range.headed(window) == 0
    }

    /// Rows that may have versions, and those of main that are not dead.
    pub(crate) fn headed_rows(&self) -> usize {
        self.range.headed_rows()
    }

    pub(crate) fn live_rows(&self) -> usize {
        self.main.map_or(0, MainPart::live_rows)
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

    /// As `window`, without the versions.
    pub(crate) fn shown(&self, window: usize) -> u64 {
        let mut shown = self.main(window);
        let mut headed = self.range.headed(window) & shown;
        while headed != 0 {
            let bit = headed & headed.wrapping_neg();
            headed &= headed - 1;
            let position = window * 64 + bit.trailing_zeros() as usize;
            if let Some(Found::Version(version)) = self.range.head(self.view, position).map(|head| head.load())
                && !matches!(self.store.seen_charging(self.view, version, |_| ()), Seen::Main)
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
            match self.store.seen_charging(self.view, version, |_| ()) {
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
