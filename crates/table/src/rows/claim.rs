//! Whether a row has something, a key for one, or may come to have it: for whoever wants to be the only one.

use super::sync::{AtomicU64, spin};
use super::version::{Found, Kind};
use super::{RowRef, RowStore};
use std::sync::atomic::Ordering;
use tidepool_base::RowId;
use tidepool_txn::{NEVER, Status, Tag, View};

/// Whose a row's state is, as far as it matters to another one. Exhaustive and mutually exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The row does not have it, and will not unless somebody writes the row anew.
    Free,
    /// It has it, and that is committed.
    Has,
    /// It has it, as the view's own transaction wrote it.
    Own,
    /// It has it if this transaction commits, or if it does not.
    Undecided(Tag),
}

/// What a version's `begin` says.
enum Begin {
    Settled,
    Own,
    /// It will never be there.
    Never,
    Open(Tag),
    /// Read it again.
    Changing,
}

impl RowStore {
    fn begin(&self, view: &View, begin: &AtomicU64) -> Begin {
        let word = begin.load(Ordering::Acquire);
        let Some(tag) = Tag::of_word(word) else {
            return if word == NEVER.0 { Begin::Never } else { Begin::Settled };
        };
        if tag == view.own() {
            return Begin::Own;
        }
        match self.transactions.status(tag) {
            Status::Running | Status::Committing(_) => Begin::Open(tag),
            Status::Committed(_) => Begin::Settled,
            Status::Aborted => Begin::Never,
            Status::Gone => Begin::Changing,
        }
    }

    /// Whether the row has what `has` finds in its newest state, whatever the view's snapshot. Waits for nobody.
    pub fn claim(&self, view: &View, row: RowId, has: &mut dyn FnMut(RowRef<'_>) -> bool) -> Claim {
        self.check_view(view);
        loop {
            if let Some(claim) = self.try_claim(view, row, has) {
                return claim;
            }
            spin();
        }
    }

    /// `None` when it changed meanwhile.
    fn try_claim(&self, view: &View, row: RowId, has: &mut dyn FnMut(RowRef<'_>) -> bool) -> Option<Claim> {
        let Some(range) = self.directory.get(row.range()) else { return Some(Claim::Free) };
        // Who may still take back what he did, and whether the row has it in one of those states.
        let mut open: Option<(Tag, bool)> = None;
        let settled = |open: Option<(Tag, bool)>, is: bool| match open {
            Some((tag, may)) if may || is => Claim::Undecided(tag),
            None if is => Claim::Has,
            _ => Claim::Free,
        };
        let mut found = range.head(view, row.position()).map(|head| head.load());
        if let Some(Found::Pod(tuple)) = found {
            // A row in the pod keeps its keys, so any of its versions says whether it has one.
            let mut is = None;
            let base = self.images_in_pod(view, tuple, &mut |image, _| {
                is = Some(has(RowRef::Version(image)));
                false
            });
            match is {
                Some(is) => return Some(settled(open, is)),
                None => found = base.map(Found::Version),
            }
        }
        while let Some(Found::Version(version)) = found {
            // SAFETY: from a head under the view, and then from versions that are not committed, were taken back, or only
            // lock the row: see the module above.
            let header = unsafe { version.header() };
            found = header.older().map(Found::Version);
            if header.kind() == Kind::Lock {
                continue;
            }
            let begin = self.begin(view, &header.begin);
            if let Begin::Never = begin {
                continue;
            }
            // SAFETY: as above.
            let is = header.kind() == Kind::Row && has(RowRef::Version(unsafe { version.image() }));
            match begin {
                Begin::Settled => return Some(settled(open, is)),
                Begin::Own => return Some(if is { Claim::Own } else { Claim::Free }),
                Begin::Open(tag) => open = Some((tag, is || open.is_some_and(|(_, may)| may))),
                Begin::Changing => return None,
                Begin::Never => {}
            }
        }
        let begin = self.begin(view, &range.begin);
        let is = range.main(view).is_some_and(|main| {
            main.has(row.position()) && has(RowRef::Main { group: &main.group, position: row.position() })
        });
        match begin {
            Begin::Settled => Some(settled(open, is)),
            Begin::Own if is && open.is_none() => Some(Claim::Own),
            Begin::Own => Some(settled(open, is)),
            Begin::Never => Some(settled(open, false)),
            Begin::Open(tag) => Some(if is { Claim::Undecided(tag) } else { settled(open, false) }),
            Begin::Changing => None,
        }
    }
}
