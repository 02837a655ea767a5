//! Looking at a range 64 rows at a time, for scans.

use super::RowStore;
use super::range::{MainPart, Range, WORDS};
use super::store::Seen;
use super::version::Found;
use crate::RowGroup;
use std::sync::Arc;
use std::sync::atomic::Ordering;
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

    /// The rows of the window that main shows, unless versions hide them: a bit each.
    #[inline]
    pub fn main(&self, window: usize) -> u64 {
        self.main.map_or(0, |main| main.live(window))
    }

    /// The rows of the window that main shows, a bit each; and appends those that are in versions, as position in the range
    /// and image.
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
            match self.store.seen(self.view, version) {
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
