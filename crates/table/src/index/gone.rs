//! Entries of versions that nobody can see any more.

use super::{IndexKey, TableIndex};
use crate::RowGroup;
use crate::rows::{Gone, RowRef, RowStore};
use arrow_array::ArrayRef;
use parking_lot::RwLock;
use std::sync::{Arc, OnceLock, Weak};
use tidepool_base::{Result, RowId};
use tidepool_txn::View;

/// The indexes over a row store that entries are in, whatever the table's definition: one that was made by a transaction
/// under way, and one that was dropped by one, too.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    indexes: RwLock<Vec<Weak<TableIndex>>>,
    /// The row store tells of versions that are gone.
    is_told: OnceLock<()>,
}

struct Told(Arc<Entries>);

impl Entries {
    pub fn add(self: &Arc<Self>, rows: &RowStore, index: &Arc<TableIndex>) {
        let mut indexes = self.indexes.write();
        indexes.retain(|known| known.strong_count() > 0);
        if !indexes.iter().any(|known| std::ptr::eq(known.as_ptr(), Arc::as_ptr(index))) {
            indexes.push(Arc::downgrade(index));
        }
        drop(indexes);
        self.is_told.get_or_init(|| rows.set_gone(Box::new(Told(Arc::clone(self)))));
    }

    /// Those that are still somebody's.
    fn each(&self, mut take: impl FnMut(&TableIndex)) {
        for index in self.indexes.read().iter().filter_map(Weak::upgrade) {
            take(&index);
        }
    }
}

impl Gone for Told {
    fn gone(&self, store: &RowStore, horizon: &View, row: RowId, was: RowRef<'_>) {
        let (mut key, mut other) = (IndexKey::default(), IndexKey::default());
        self.0.each(|index| {
            // Of a row that cannot be read the entry stays, which does no harm.
            if index.key_of(store, was, &mut key).is_ok() {
                index.tree.remove_unless(horizon, key.bytes(), row, || {
                    store.any_version(horizon, row, &mut |version| {
                        index.key_of(store, version, &mut other).is_err() || other.bytes() == key.bytes()
                    })
                });
            }
        });
    }

    fn gone_range(&self, _: &RowStore, horizon: &View, number: u64, was: &RowGroup) {
        let mut key = IndexKey::default();
        self.0.each(|index| {
            let column = |column: &usize| was.segments()[*column].decode(0..was.rows());
            let Ok(columns) = index.positions.iter().map(column).collect::<Result<Vec<ArrayRef>>>() else { return };
            for row in 0..was.rows() {
                if index.key_at(&columns, row, &mut key).is_ok() {
                    index.tree.remove(horizon, key.bytes(), RowId::new(number, row));
                }
            }
        });
    }
}
