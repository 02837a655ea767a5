//! Rows of other hosts of a pod.

use super::access::{Access, Row};
use super::prepared::PreparedTable;
use crate::pod::{Placed, PodHost, ReadElsewhere};
use std::borrow::Cow;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;
use tidepool_base::{Error, Result, RowId, SqlState};
use tidepool_index::Direction;
use tidepool_index::key::KeyBounds;
use tidepool_pod::layout::HostId;
use tidepool_table::rows::typed::{ImageWriter, KeyValues};
use tidepool_table::rows::{Outcome, PodRow, RowRef, is_pod_row};
use tidepool_table::{IndexKey, Table, TableIndex};

/// Turns of looking a row up that has gone home in between.
const LOOKS: u32 = 100;

impl PreparedTable {
    /// Shares the table's rows out among the hosts of a pod: rows whose primary key's first column is below a bound are the host's that stands beside it,
    /// and those above all are the last one's. All hosts do so with the same, before rows are added. 42P16 where an index
    /// begins with another column than the primary key.
    pub fn share_out<K: KeyValues>(&self, host: &Arc<PodHost>, bounds: &[(K, u8)]) -> Result<()> {
        let table = self.current();
        let first = |index: &Arc<TableIndex>| index.positions().first().copied();
        let columns: Vec<_> = table.indexes().iter().map(first).collect();
        let has_primary = table.def.indexes.iter().any(|def| def.is_primary());
        if !has_primary || columns.windows(2).any(|pair| pair[0] != pair[1]) {
            let text = format!("the rows of table \"{}\" cannot be shared out among hosts", table.def.name);
            return Err(Error::new(SqlState::INVALID_TABLE_DEFINITION, text)
                .with_hint("All indexes begin with the first column of the primary key."));
        }
        let encode = |way: &Arc<TableIndex>, (values, host): &(K, u8)| {
            let mut key = Vec::new();
            values.encode(way.codec(), &mut key)?;
            Ok((key, *host))
        };
        let of_way = |way: &Arc<TableIndex>| {
            Ok((way.clone(), bounds.iter().map(|bound| encode(way, bound)).collect::<Result<Vec<_>>>()?))
        };
        let ways = table.indexes().iter().map(of_way).collect::<Result<Vec<_>>>()?;
        let placed = host.place(self, &table.def.name, ways)?;
        self.set_placed(placed)
    }
}

#[cold]
fn newer() -> Error {
    Error::new(SqlState::SERIALIZATION_FAILURE, "could not serialize access due to concurrent update")
        .with_detail("A row of another host was changed since the transaction's snapshot.")
}

fn way_number(table: &Table, way: &Arc<TableIndex>) -> Result<u16> {
    let place = table.indexes().iter().position(|index| Arc::ptr_eq(index, way));
    place.and_then(|place| u16::try_from(place).ok()).ok_or_else(|| Error::internal("an index is none of its table's"))
}

impl<'t> Access<'t> {
    /// A row as the transaction sees it, and whether it has the key. `None`: it has gone home.
    fn look_elsewhere<'a>(&self, table: &'a Arc<Table>, row: RowId) -> Result<Option<&'a [u8]>>
    where
        't: 'a,
    {
        match table.rows.read_pod(self.view, row)? {
            PodRow::Image(image) => Ok(Some(image)),
            PodRow::Left => Ok(None),
            PodRow::Newer => Err(newer()),
        }
    }

    pub(super) fn get_by_id_elsewhere<'a>(&self, table: &'a Arc<Table>, row: RowId) -> Result<Option<Row<'a>>>
    where
        't: 'a,
    {
        match self.look_elsewhere(table, row)? {
            Some(image) => Ok(Some(Row::new(row, Cow::Borrowed(image)))),
            // Where it is now only its key says.
            None => Err(newer()),
        }
    }

    /// The row with a unique key at another host.
    #[cold]
    pub(super) fn get_elsewhere<'a>(
        &self,
        (placed, home): (&Placed, HostId),
        table: &'a Arc<Table>,
        way: &Arc<TableIndex>,
        key: &[u8],
    ) -> Result<Option<Row<'a>>>
    where
        't: 'a,
    {
        let place = (placed.table, way_number(table, way)?);
        let mut scratch = IndexKey::default();
        for _ in 0..LOOKS {
            if let Some(row) = placed.host.handle(place, key) {
                if let Some(image) = self.look_elsewhere(table, row)?
                    && way.has_key(&table.rows, RowRef::Version(image), key, &mut scratch)?
                {
                    if self.remembers_reads {
                        self.work.borrow_mut().writes.read_row(&table.rows, row);
                    }
                    return Ok(Some(Row::new(row, Cow::Borrowed(image))));
                }
                placed.host.set_handle(place, key, None);
            }
            let bounds = KeyBounds { lower: Bound::Included(key.to_vec()), upper: Bound::Included(key.to_vec()) };
            let rows = placed.host.find_elsewhere(home, place, &bounds, self.view.ts())?;
            let mut found = None;
            let mut has_left = false;
            for row in rows {
                match self.look_elsewhere(table, row)? {
                    // A row has entries for what it was, too.
                    Some(image) if way.has_key(&table.rows, RowRef::Version(image), key, &mut scratch)? => {
                        found = Some(row);
                    }
                    Some(_) => {}
                    None => has_left = true,
                }
            }
            match found {
                Some(row) => placed.host.set_handle(place, key, Some(row)),
                None if has_left => {}
                None => {
                    self.remember_elsewhere(placed, home, place.1, bounds);
                    return Ok(None);
                }
            }
        }
        Err(newer())
    }

    fn remember_elsewhere(&self, placed: &Placed, home: HostId, way: u16, bounds: KeyBounds) {
        if self.remembers_reads {
            let read = ReadElsewhere { host: placed.host.clone(), home, table: placed.table, way, bounds };
            self.work.borrow_mut().writes.read_elsewhere(Box::new(read));
        }
    }

    /// The rows of a range at another host, in order.
    #[cold]
    pub(super) fn scan_elsewhere<'a>(
        &self,
        (placed, home): (&Placed, HostId),
        table: &'a Arc<Table>,
        way: &Arc<TableIndex>,
        bounds: KeyBounds,
        direction: Direction,
    ) -> Result<Vec<Row<'a>>>
    where
        't: 'a,
    {
        let number = way_number(table, way)?;
        'again: for _ in 0..LOOKS {
            let rows = placed.host.find_elsewhere(home, (placed.table, number), &bounds, self.view.ts())?;
            let mut found = Vec::with_capacity(rows.len());
            for row in rows {
                let Some(image) = self.look_elsewhere(table, row)? else { continue 'again };
                let mut key = IndexKey::default();
                way.key_of(&table.rows, RowRef::Version(image), &mut key)?;
                if RangeBounds::<[u8]>::contains(&bounds.range(), key.bytes()) {
                    found.push((key, Row::new(row, Cow::Borrowed(image))));
                }
            }
            found.sort_by(|(one, one_row), (two, two_row)| {
                (one.bytes(), one_row.id()).cmp(&(two.bytes(), two_row.id()))
            });
            if direction == Direction::Backward {
                found.reverse();
            }
            if self.remembers_reads {
                let ids = found.iter().map(|(_, row)| row.id());
                self.work.borrow_mut().writes.read_rows(&table.rows, ids);
            }
            self.remember_elsewhere(placed, home, number, bounds);
            return Ok(found.into_iter().map(|(_, row)| row).collect());
        }
        Err(newer())
    }

    /// Changes a row of another host, whose keys stay as they are.
    #[cold]
    pub(super) fn update_elsewhere(
        &self,
        table: &Arc<Table>,
        row: RowId,
        change: impl FnOnce(&mut super::RowChange<'_>) -> Result<()>,
    ) -> Result<bool> {
        debug_assert!(is_pod_row(row));
        let Some(old) = self.look_elsewhere(table, row)? else { return Err(newer()) };
        let mut image = old.to_vec();
        let writer = ImageWriter::change(table.rows.layout(), &table.def, &mut image);
        let mut changing = super::RowChange::new(old, writer);
        change(&mut changing)?;
        let set = changing.set_columns();
        let has_key = |index: &Arc<TableIndex>| {
            index.positions().iter().any(|position| set & super::access::column_bit(*position) != 0)
        };
        if table.indexes().iter().any(has_key) {
            return Err(Error::unsupported("changing keys of a row of another host"));
        }
        loop {
            let writes = &mut self.work.borrow_mut().writes;
            match table.rows.update_pod(self.worker, self.view, writes, row, &image)? {
                Outcome::Written => return Ok(true),
                Outcome::Conflict(tag) => self.worker.wait_for(tag, &|| self.interrupted_elsewhere())?,
                // It went home in between.
                Outcome::Newer { .. } | Outcome::Deleted => return Err(newer()),
                Outcome::SelfModified => return Ok(false),
            }
        }
    }

    /// While a transaction of another host is waited for, its host may wait for this one's answer.
    pub(super) fn interrupted_elsewhere(&self) -> Result<()> {
        if let Some(host) = self.database.pod_host() {
            host.serve();
        }
        self.keeper.interrupted()
    }
}
