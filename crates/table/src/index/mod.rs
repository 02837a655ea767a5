//! Indexes of a table: which rows have which keys.
//!
//! An entry says that some version of the row has the key, or had it until lately; who follows it looks at the version
//! that he sees, and whether that has it. So every version that anybody can see has an entry in each index, from when its
//! transaction commits at the latest until it is gone:
//!
//! * A writer puts its version into the row's head, then the entry into the index. It need not if the version that it
//!   replaces has the same key.
//! * When a version is gone for everybody (`rows::Gone`), its entry goes, unless another version of the row has the same
//!   key. That is asked under the leaf's lock, so that a writer who comes just then either is seen or comes after, and
//!   puts the entry in anew.
//!
//! An index that is made later has entries of the versions that its maker saw. Views from before it cannot use it
//! ([`TableIndex::is_complete_for`]). One that is made while rows are written is there first, for writers to put their
//! entries in; then its maker draws his view, and puts in what that shows ([`fill_index`]). And one that a process makes of tables
//! that it found is used before it is made (`backfill`).

mod access;
mod backfill;
mod build;
mod gone;
mod keys;
#[cfg(test)]
mod tests;
mod uses;

pub use access::IndexAccess;
pub(crate) use access::{Found, equal_to, within};
pub use build::{BuildRequest, build_indexes, fill_index};
pub(crate) use gone::Entries;
pub use keys::{IndexKey, key_value};
pub use uses::IndexUse;

use crate::rows::{Claim, RowLayout, RowRef, RowStore};
use crate::{IndexDef, RowGroup, TableDef};
use arrow_array::ArrayRef;
use backfill::Backfill;
use parking_lot::RwLock;
use std::cell::Cell;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use tidepool_base::{CommitTs, Error, Result, RowId, SqlType, TableId};
use tidepool_index::key::{KeyCodec, KeyColumn, KeyValue};
use tidepool_index::{Cursor, Direction, Fingers, Index, UniqueInsert, Verdict};
use tidepool_tablespace::Tablespace;
use tidepool_txn::{Tag, Transactions, View};

/// A tree over a table's rows, and what its keys are made of. What it is called is in the table's definition.
#[derive(Debug)]
pub struct TableIndex {
    id: TableId,
    tree: Arc<Index>,
    codec: KeyCodec,
    /// Of the key's columns.
    positions: Vec<usize>,
    /// Where all of these are integers.
    integers: Option<keys::IntegerKey>,
    unique: bool,
    nulls_not_distinct: bool,
    /// A timestamp.
    complete_from: AtomicU64,
    /// A transaction under way, or one that has committed, puts no entries in any more.
    is_left: AtomicBool,
    /// What it lacks of rows that were there before it.
    backfill: RwLock<Option<Arc<Backfill>>>,
}

/// What came of putting an entry in. Exhaustive and mutually exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Entered {
    Done,
    /// This row has the key, and only one may.
    Taken(RowId),
    /// This transaction may come to have it: wait for its end, then try again.
    Wait(Tag),
}

/// Keys of a row group's rows.
pub struct GroupKeys {
    keys: Vec<IndexKey>,
    order: Vec<u32>,
}

impl GroupKeys {
    /// Each with its position in the row group, in the order of the keys.
    pub fn in_order(&self) -> impl Iterator<Item = (&IndexKey, usize)> {
        self.order.iter().map(|row| (&self.keys[*row as usize], *row as usize))
    }
}

impl TableIndex {
    /// An index without entries, of a table without rows as views from `complete_from` on see it; `None`: it has rows, whose
    /// entries follow ([`fill_index`]). 42704 where a column's type has no order.
    pub fn create(
        table: &TableDef,
        def: &IndexDef,
        space: Arc<Tablespace>,
        transactions: &Arc<Transactions>,
        complete_from: Option<CommitTs>,
    ) -> Result<TableIndex> {
        let complete_from = complete_from.unwrap_or(CommitTs(u64::MAX));
        Ok(TableIndex {
            id: def.id,
            tree: Arc::new(Index::create(space, Arc::clone(transactions))?),
            integers: keys::IntegerKey::new(&codec(table, def)?, &RowLayout::new(table)?, &table.index_positions(def)),
            codec: codec(table, def)?,
            positions: table.index_positions(def),
            unique: def.unique,
            nulls_not_distinct: def.nulls_not_distinct,
            complete_from: AtomicU64::new(complete_from.0),
            is_left: AtomicBool::new(false),
            backfill: RwLock::default(),
        })
    }

    /// The same index, under the number of one whose place it takes. Who knows it as this one goes on putting entries in.
    pub fn in_place_of(&self, other: &TableIndex) -> TableIndex {
        TableIndex {
            id: other.id,
            tree: Arc::clone(&self.tree),
            codec: self.codec.clone(),
            positions: self.positions.clone(),
            integers: self.integers.clone(),
            unique: self.unique,
            nulls_not_distinct: self.nulls_not_distinct,
            complete_from: AtomicU64::new(self.complete_from.load(Ordering::Acquire)),
            is_left: AtomicBool::new(false),
            backfill: RwLock::default(),
        }
    }

    /// Whether what is put into the other is in this one.
    pub fn is_kept_by(&self, other: &TableIndex) -> bool {
        Arc::ptr_eq(&self.tree, &other.tree)
    }

    pub fn id(&self) -> TableId {
        self.id
    }

    pub fn tree(&self) -> &Index {
        &self.tree
    }

    pub fn codec(&self) -> &KeyCodec {
        &self.codec
    }

    /// Positions of the key's columns in the table.
    pub fn positions(&self) -> &[usize] {
        &self.positions
    }

    pub fn is_unique(&self) -> bool {
        self.unique
    }

    /// Whether every row that the view sees has an entry.
    pub fn is_complete_for(&self, view: &View) -> bool {
        view.ts().0 >= self.complete_from.load(Ordering::Acquire) && !self.is_left.load(Ordering::Acquire)
    }

    /// Every row that a view from then on sees has an entry.
    fn completed(&self, from: CommitTs) {
        self.complete_from.store(from.0, Ordering::Release);
    }

    /// To be called by who drops it, before he writes rows; and with false when that comes to nothing.
    pub fn set_left(&self, left: bool) {
        self.is_left.store(left, Ordering::Release);
    }

    /// The key of a row. 54000 from [`TableIndex::enter`] when it is too long.
    pub fn key_of(&self, rows: &RowStore, row: RowRef<'_>, key: &mut IndexKey) -> Result<()> {
        key.clear();
        match row {
            RowRef::Version(image) => keys::of_image(self, rows.layout(), image, key),
            RowRef::Main { group, position } => keys::of_main(self, rows.layout(), group, position, key),
        }
    }

    /// Whether a row has this key. `scratch`: kept from row to row, for its memory.
    // Asked for each row of a range: a call of its own costs as much as a short key's comparison.
    #[inline(always)]
    pub fn has_key(&self, rows: &RowStore, row: RowRef<'_>, key: &[u8], scratch: &mut IndexKey) -> Result<bool> {
        if let (RowRef::Version(image), Some(integers)) = (row, &self.integers)
            && let Some(is_same) = integers.is(image, key)
        {
            return Ok(is_same);
        }
        self.key_of(rows, row, scratch)?;
        Ok(scratch.bytes() == key)
    }

    /// The key of one row of arrays, which are the key's columns.
    pub fn key_at(&self, arrays: &[ArrayRef], row: usize, key: &mut IndexKey) -> Result<()> {
        key.clear();
        arrays.iter().enumerate().try_for_each(|(place, array)| keys::push(self, place, array, row, key))
    }

    /// Rows that may have these values in the index's first columns: whoever wants to know looks at the version that he
    /// sees. Each once, in order.
    pub fn candidates(&self, view: &View, values: &[KeyValue<'_>]) -> Result<Vec<RowId>> {
        let bounds = self.codec.bounds(values, Bound::Unbounded, Bound::Unbounded)?;
        let mut cursor = Cursor::new(bounds.range(), Direction::Forward);
        let mut rows = Vec::new();
        while let Some(row) = cursor.next_row(&self.tree, view) {
            rows.push(row);
        }
        rows.sort_unstable();
        rows.dedup();
        Ok(rows)
    }

    /// Whether no other row may have this key.
    pub fn is_exclusive(&self, key: &IndexKey) -> bool {
        self.unique && (self.nulls_not_distinct || !key.has_null())
    }

    /// Puts the entry of a row in whose version with this key is in the row's head, of the view's transaction.
    pub fn enter(
        &self,
        rows: &RowStore,
        view: &View,
        row: RowId,
        key: &IndexKey,
        fingers: &mut Fingers,
    ) -> Result<Entered> {
        // Between putting the version in the head and looking for the entry: see `Index::remove_unless`.
        fence(Ordering::SeqCst);
        if !self.is_exclusive(key) {
            self.tree.insert_near(view, key.bytes(), row, fingers)?;
            return Ok(Entered::Done);
        }
        self.fetch_key(key.bytes())?;
        let waits = Cell::new(None);
        let failed = Cell::new(None);
        let mut other_key = IndexKey::default();
        let judge = |other: RowId| match self.claim(rows, view, other, key, &mut other_key) {
            Ok(Claim::Free) => Verdict::Free,
            Ok(Claim::Has | Claim::Own) => Verdict::Taken,
            Ok(Claim::Undecided(tag)) => {
                waits.set(Some(tag));
                Verdict::Wait
            }
            Err(error) => {
                failed.set(Some(error));
                Verdict::Taken
            }
        };
        let inserted = self.tree.insert_unique_near(view, key.bytes(), row, fingers, judge)?;
        if let Some(error) = failed.take() {
            return Err(error);
        }
        Ok(match inserted {
            UniqueInsert::Inserted | UniqueInsert::Present => Entered::Done,
            UniqueInsert::Taken(other) => Entered::Taken(other),
            UniqueInsert::Wait(other) => match waits.get() {
                Some(tag) => Entered::Wait(tag),
                None => return Err(Error::internal(format!("row {other} is waited for without a transaction"))),
            },
        })
    }

    /// As `enter`, of a row that has its key whatever others have: that was decided where the log was written.
    #[inline]
    pub(crate) fn enter_decided(&self, view: &View, row: RowId, key: &IndexKey, fingers: &mut Fingers) -> Result<()> {
        // As in `enter`.
        fence(Ordering::SeqCst);
        self.tree.insert_near(view, key.bytes(), row, fingers).map(drop)
    }

    /// The keys of all rows of a row group.
    pub fn keys_of_group(&self, group: &RowGroup) -> Result<GroupKeys> {
        let column = |column: &usize| group.segments()[*column].decode(0..group.rows());
        let columns = self.positions.iter().map(column).collect::<Result<Vec<_>>>()?;
        let mut keys = vec![IndexKey::default(); group.rows()];
        for (row, key) in keys.iter_mut().enumerate() {
            self.key_at(&columns, row, key)?;
        }
        // One that is near another goes where that went, which is in the caches.
        let mut order: Vec<u32> = (0..group.rows() as u32).collect();
        order.sort_unstable_by(|a, b| keys[*a as usize].bytes().cmp(keys[*b as usize].bytes()));
        Ok(GroupKeys { keys, order })
    }

    /// Whether a row has a key, or may come to.
    pub fn claim(
        &self,
        rows: &RowStore,
        view: &View,
        row: RowId,
        key: &IndexKey,
        other_key: &mut IndexKey,
    ) -> Result<Claim> {
        let mut failed = None;
        let claim = rows.claim(view, row, &mut |other| match self.key_of(rows, other, other_key) {
            Ok(()) => other_key.bytes() == key.bytes(),
            Err(error) => {
                failed = Some(error);
                true
            }
        });
        failed.map_or(Ok(claim), Err)
    }
}

/// How an index's keys are made.
fn codec(table: &TableDef, def: &IndexDef) -> Result<KeyCodec> {
    let columns = (def.columns.iter())
        .map(|column| {
            let (_, of_table) = table
                .column_by_number(column.number)
                .ok_or_else(|| Error::internal("an index has a column that its table does not"))?;
            let key = KeyColumn::new(of_table.sql_type)?;
            let key = if column.descending { key.descending() } else { key };
            // Other columns may come to be nullable while there is the index.
            let key = key.nulls_first(column.nulls_first);
            Ok(if def.is_primary() { key.not_null() } else { key })
        })
        .collect::<Result<_>>()?;
    Ok(KeyCodec::new(columns))
}

impl TableIndex {
    fn sql_type(&self, place: usize) -> SqlType {
        self.codec.columns()[place].sql_type()
    }
}
