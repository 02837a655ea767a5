//! Looking for versions that contradict what the row store promises.

use super::RowStore;
use super::page::PAGE_HEADS;
use super::range::WORDS;
use super::version::{Found, Kind, Version};
use std::sync::atomic::Ordering;
use tidepool_base::RowId;
use tidepool_txn::{NEVER, Tag, View};

impl RowStore {
    /// Looks at every version of a range down to those that the view sees: that each can be read, that they are in the order
    /// of time, and that scans would find them. Tells `fault` of what is not so. Returns how many it looked at. Others go
    /// on meanwhile.
    pub fn check_range(&self, view: &View, number: u64, fault: &mut dyn FnMut(String)) -> u64 {
        self.check_view(view);
        let Some(range) = self.directory.get(number) else { return 0 };
        let mut versions = 0;
        for position in (0..WORDS * 64).step_by(PAGE_HEADS) {
            if range.head(view, position).is_none() {
                continue;
            }
            for position in position..position + PAGE_HEADS {
                let found = range.head(view, position).map(|head| head.load());
                let Some(Found::Version(first)) = found else { continue };
                let row = RowId::new(number, position);
                let (looked_at, is_seen) = self.check_chain(view, row, first, fault);
                versions += looked_at;
                let is_marked = range.headed(position / 64) >> (position % 64) & 1 != 0;
                // It may have been taken out since.
                if is_seen && !is_marked && range.head(view, position).map(|head| head.load()) == found {
                    fault(format!("row {row} has a version that scans do not look for"));
                }
            }
        }
        versions
    }

    /// How many versions, and whether the view sees one.
    fn check_chain(&self, view: &View, row: RowId, first: Version, fault: &mut dyn FnMut(String)) -> (u64, bool) {
        let (mut next, mut versions, mut newer) = (Some(first), 0, u64::MAX);
        while let Some(version) = next {
            // SAFETY: from a head under the view, and then from versions that it does not see: see the module.
            let header = unsafe { version.header() };
            versions += 1;
            let begin = header.begin.load(Ordering::Acquire);
            if Tag::of_word(begin).is_none() && begin != NEVER.0 {
                if begin > newer {
                    fault(format!("a version of row {row} is newer than the one that replaced it"));
                }
                newer = begin;
            }
            if header.kind() == Kind::Row {
                // SAFETY: as above.
                let image = unsafe { version.image() };
                if let Err(error) = self.layout().check(image) {
                    fault(format!("a version of row {row} cannot be read: {}", error.message()));
                }
            }
            if header.kind() != Kind::Lock && view.sees(&self.transactions, &header.begin, header.command()) {
                return (versions, true);
            }
            next = header.older();
        }
        (versions, false)
    }
}
