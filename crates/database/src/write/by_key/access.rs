//! Finding and writing rows within a transaction.

use super::prepared::{PreparedIndex, PreparedTable, Resolved};
use super::scan::{KeyScan, ScanMemory, ScanRange};
use crate::catalog::relation::RelationName;
use crate::pod::Placed;
use crate::write::index::duplicate_key;
use crate::{Database, DatabaseState, Isolation};
use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::Arc;
use tidepool_base::{Error, Part, Result, RowId, SqlState, Subject};
use tidepool_index::{Direction, Fingers};
use tidepool_table::rows::typed::{Column, Field, FieldType, ImageWriter, KeyValues, RowValues};
use tidepool_table::rows::{Keys, Outcome, RangeView, RowRef, RowStore, ScanRead, WriteSet, is_pod_row};
use tidepool_table::{Entered, IndexAccess, IndexKey, RowGroup, Table, TableIndex};
use tidepool_txn::{View, Worker};

/// What a transaction does to rows. Everything is as of its snapshot, and with what it wrote itself.
#[derive(Clone, Copy)]
pub struct Access<'t> {
    pub(super) database: &'t Arc<Database>,
    pub(super) worker: &'t Worker,
    pub(super) view: &'t View,
    pub(super) work: &'t RefCell<Work>,
    pub(super) keeper: &'t dyn Keeper,
    pub(super) remembers_reads: bool,
    /// What exists to a transaction that has changed that.
    pub(super) changed: Option<&'t DatabaseState>,
}

/// What a transaction has done, and memory that is kept from one to the next.
#[derive(Default)]
pub(crate) struct Work {
    pub writes: WriteSet,
    /// Tables that rows were written of.
    pub written: Vec<Arc<Table>>,
    pub(super) key: IndexKey,
    pub(super) old_key: IndexKey,
    pub(super) image: Vec<u8>,
    pub(super) lookups: Lookups,
    pub(super) lately: Lately,
    pub(super) fingers: Fingers,
    pub(super) scans: Vec<ScanMemory>,
    pub(super) main_images: MainImages,
}

/// Images of the rows in main that the transaction came to last, which are put together from all columns: mostly it changes what it has just
/// read.
#[derive(Default)]
pub(super) struct MainImages {
    /// Of each the address of its table's rows, and its own.
    images: Vec<(usize, RowId, Vec<u8>)>,
    /// The one that the next takes the place of.
    next: usize,
}

/// Lines of an order, at most; or rows that a scan reads at once.
const MAIN_IMAGES: usize = 16;

impl MainImages {
    fn of(&self, store: &RowStore, row: RowId) -> Option<&[u8]> {
        let address = std::ptr::from_ref(store).addr();
        let mut images = self.images.iter();
        images.find(|(of, id, _)| (*of, *id) == (address, row)).map(|(.., image)| image.as_slice())
    }

    /// Of a row that was found: where it lies, or put together.
    #[inline]
    pub fn image_of<'a>(&mut self, store: &RowStore, id: RowId, row: RowRef<'a>) -> Result<Cow<'a, [u8]>> {
        match row {
            RowRef::Version(image) => Ok(Cow::Borrowed(image)),
            RowRef::Main { group, position } => self.in_main(store, id, group, position).map(Cow::Owned),
        }
    }

    #[cold]
    fn in_main(&mut self, store: &RowStore, id: RowId, group: &RowGroup, position: usize) -> Result<Vec<u8>> {
        if let Some(known) = self.of(store, id) {
            return Ok(known.to_vec());
        }
        let mut image = Vec::new();
        store.layout().image_in_main(group, position, &mut image)?;
        self.put(store, id, &image);
        Ok(image)
    }

    fn put(&mut self, store: &RowStore, row: RowId, image: &[u8]) {
        if self.images.len() < MAIN_IMAGES {
            self.images.push((0, RowId(0), Vec::new()));
        }
        let (of, id, known) = &mut self.images[self.next];
        (*of, *id) = (std::ptr::from_ref(store).addr(), row);
        known.clear();
        known.extend_from_slice(image);
        self.next = (self.next + 1) % MAIN_IMAGES;
    }

    /// After the transaction: another one's view may show other rows.
    #[inline]
    pub fn clear(&mut self) {
        // Their memory stays for the next transaction.
        if !self.images.is_empty() {
            self.images.iter_mut().for_each(|(of, ..)| *of = 0);
            self.next = 0;
        }
    }
}

/// Rows of paced memory that the transaction has read a moment ago, and so has in the processor's caches: what it reads of them again
/// is accounted for already. The last one for each place.
#[derive(Default)]
pub(super) struct Lately {
    /// Of each the address of its table's rows, and its own; none before the first.
    rows: Vec<(usize, RowId)>,
}

const LATELY_ROWS: usize = 64;

impl Lately {
    fn place(row: RowId) -> usize {
        row.0 as usize % LATELY_ROWS
    }

    #[inline]
    pub fn read(&mut self, store: &RowStore, row: RowId) {
        if store.is_paced() {
            self.rows.resize(LATELY_ROWS, (0, RowId(0)));
            self.rows[Lately::place(row)] = (std::ptr::from_ref(store).addr(), row);
        }
    }

    #[inline]
    pub fn has_read(&self, store: &RowStore, row: RowId) -> bool {
        self.rows.get(Lately::place(row)) == Some(&(std::ptr::from_ref(store).addr(), row))
    }

    #[inline]
    pub fn clear(&mut self) {
        self.rows.clear();
    }
}

/// Several look-ups at once: their keys, one behind the other, where each begins and the last ends, rows that may have them, and
/// which key.
#[derive(Default)]
pub(super) struct Lookups {
    keys: Vec<u8>,
    bounds: Vec<usize>,
    candidates: Vec<RowId>,
    candidate_of: Vec<usize>,
}

/// Keeps tables as they are while rows of them are written.
pub(super) trait Keeper {
    /// Returns when nobody changes the table, to the transaction's end.
    fn keep(&self, table: &RelationName) -> Result<()>;

    /// Asked while something is waited for.
    fn interrupted(&self) -> Result<()>;
}

/// A row that was found: what it holds, as the transaction sees it.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    id: RowId,
    image: Cow<'a, [u8]>,
}

impl<'a> Row<'a> {
    /// Its place, which it keeps as long as it lives.
    #[inline]
    pub fn id(&self) -> RowId {
        self.id
    }

    /// A column's value.
    #[inline]
    pub fn get<T: FieldType + ?Sized>(&self, column: Column<T>) -> T::Value<'_> {
        column.of(&self.image)
    }
}

/// A row that is being changed: its values as they were, and as they are to be.
pub struct RowChange<'c> {
    old: &'c [u8],
    writer: ImageWriter<'c>,
    /// A bit for each column that was set; of one beyond the 64th, all.
    set: u64,
}

impl<'c> RowChange<'c> {
    pub(super) fn new(old: &'c [u8], writer: ImageWriter<'c>) -> RowChange<'c> {
        RowChange { old, writer, set: 0 }
    }

    /// A bit for each column that was set.
    pub(super) fn set_columns(&self) -> u64 {
        self.set
    }

    /// A column's value before the change.
    #[inline]
    pub fn old<T: FieldType + ?Sized>(&self, column: Column<T>) -> T::Value<'_> {
        column.of(self.old)
    }

    /// Errors are those of [`Access::insert`].
    #[inline]
    pub fn set<T: ?Sized, F: Field + ?Sized>(&mut self, column: Column<T>, value: &F) -> Result<()> {
        self.set |= column_bit(column.index());
        self.writer.set(column, value)
    }
}

/// The places of a word's bits.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = (word != 0).then(|| word.trailing_zeros() as usize);
        word &= word.wrapping_sub(1);
        place
    })
}

/// The bit of a column among 64; those behind share all.
pub(super) fn column_bit(index: usize) -> u64 {
    if index < 64 { 1 << index } else { u64::MAX }
}

#[cold]
fn changed_meanwhile(table: &Table) -> Error {
    Error::new(SqlState::SERIALIZATION_FAILURE, "could not serialize access due to concurrent update")
        .with_detail(format!("Table \"{}\" was altered since the transaction's snapshot.", table.def.name))
}

/// Rows are added by their home.
#[inline]
fn is_here(placed: Option<&Placed>, index: &Arc<TableIndex>, key: &IndexKey) -> Result<()> {
    match placed {
        Some(placed) if placed.elsewhere(index, key.bytes())?.is_some() => {
            Err(Error::unsupported("adding a row to another host's part of a table"))
        }
        _ => Ok(()),
    }
}

#[cold]
fn newer() -> Error {
    Error::new(SqlState::SERIALIZATION_FAILURE, "could not serialize access due to concurrent update")
}

impl<'t> Access<'t> {
    /// A table as the transaction sees it.
    #[inline]
    pub(super) fn resolve<'a>(&self, table: &'a PreparedTable) -> Result<&'a Resolved> {
        let resolved = table.newest();
        let Resolved { table: known, since, .. } = resolved;
        let is_as_found = *since <= self.view.ts() && !known.is_superseded() && !known.rows.is_left(self.view);
        if !is_as_found || self.changed.is_some() { self.resolve_anew(table) } else { Ok(resolved) }
    }

    #[cold]
    fn resolve_anew<'a>(&self, table: &'a PreparedTable) -> Result<&'a Resolved> {
        let resolved = match self.database.state_as_of(self.view) {
            Some(state) => table.look_up(&state)?,
            // It was altered since the snapshot was drawn, in which it is as it was.
            None => match table.newest_for(self.view) {
                Some(resolved) if !resolved.table.rows.is_left(self.view) => resolved,
                // By another than the last who did so, and nobody looked in between.
                _ => return Err(changed_meanwhile(&table.newest().table)),
            },
        };
        if let Some(changed) = &self.changed
            && changed.table(table.name()).is_none_or(|own| !Arc::ptr_eq(own, &resolved.table))
        {
            let message = format!("row access to table \"{}\", which the transaction has altered", table.name().name);
            return Err(Error::unsupported(message));
        }
        Ok(resolved)
    }

    /// A table to write rows of: nobody alters it until the transaction's end.
    #[inline]
    fn resolve_to_write<'a>(&self, table: &'a PreparedTable) -> Result<&'a Resolved> {
        self.keeper.keep(table.name())?;
        let resolved = self.resolve(table)?;
        if resolved.table.is_superseded() || resolved.table.rows.is_left(self.view) {
            return Err(changed_meanwhile(&resolved.table));
        }
        resolved.check_writable()?;
        Ok(resolved)
    }

    /// The row with a key. 42809 where the index is not unique, or the key is not all of its columns'.
    #[inline]
    pub fn get<'a>(&self, index: &'a PreparedIndex, key: impl KeyValues) -> Result<Option<Row<'a>>>
    where
        't: 'a,
    {
        let resolved = self.resolve(&index.table)?;
        let way = index.table.index_in(resolved, index.way)?;
        if !way.is_unique() || key.count() != way.positions().len() {
            return Err(no_single_row(way));
        }
        if let Some(placed) = index.table.placed() {
            let mut work = self.work.borrow_mut();
            work.key.encode(way, &key)?;
            if let Some(home) = placed.elsewhere(way, work.key.bytes())? {
                let key = work.key.bytes().to_vec();
                drop(work);
                return self.get_elsewhere((placed, home), &resolved.table, way, &key);
            }
        }
        let work = &mut *self.work.borrow_mut();
        work.key.encode(way, &key)?;
        let _pausing = tidepool_fiber::pausing();
        self.find(&resolved.table, way, work)
    }

    /// The rows with these keys, as [`Access::get`] finds each, but what memory has to be waited for is waited for together: that
    /// is worth it from two keys on, and most where the index or the rows are far.
    pub fn get_all<'a, K: KeyValues>(&self, index: &'a PreparedIndex, keys: &[K]) -> Result<Vec<Option<Row<'a>>>>
    where
        't: 'a,
    {
        let resolved = self.resolve(&index.table)?;
        let table = &resolved.table;
        let way = index.table.index_in(resolved, index.way)?;
        if !way.is_unique() || keys.iter().any(|key| key.count() != way.positions().len()) {
            return Err(no_single_row(way));
        }
        if !way.is_ready_for(self.view) {
            return Err(changed_meanwhile(table));
        }
        let mut borrowed = self.work.borrow_mut();
        let Work { lookups, writes, old_key, lately, main_images, .. } = &mut *borrowed;
        let Lookups { keys: encoded, bounds, candidates, candidate_of } = lookups;
        encoded.clear();
        bounds.clear();
        candidates.clear();
        candidate_of.clear();
        bounds.push(0);
        for key in keys {
            key.encode(way.codec(), encoded)?;
            bounds.push(encoded.len());
        }
        let key = |place: usize| &encoded[bounds[place]..bounds[place + 1]];
        (0..keys.len()).try_for_each(|place| way.fetch_key(key(place)))?;
        let _pausing = tidepool_fiber::pausing();
        way.tree().get_together(self.view, keys.len(), key, |place, rows| {
            for row in rows.iter() {
                candidates.push(*row);
                candidate_of.push(place);
            }
        });
        let mut found: Vec<Option<Row<'a>>> = vec![None; keys.len()];
        let mut failed = None;
        table.rows.read_together(self.view, candidates, |at, row| {
            let (Some(row), place) = (row, candidate_of[at]) else { return };
            let image = main_images.image_of(&table.rows, candidates[at], row);
            let has_key = |image: &[u8], scratch: &mut IndexKey| {
                way.has_key(&table.rows, RowRef::Version(image), key(place), scratch)
            };
            match image.and_then(|image| Ok((has_key(&image, old_key)?, image))) {
                Ok((true, image)) => found[place] = Some(Row { id: candidates[at], image }),
                Ok((false, _)) => {}
                Err(error) => failed = Some(error),
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        found.iter().flatten().for_each(|row| lately.read(&table.rows, row.id));
        if self.remembers_reads {
            writes.read_rows(&table.rows, found.iter().flatten().map(|row| row.id));
            let is_here = |place: &usize| {
                let home = index.table.placed().map(|placed| placed.elsewhere(way, key(*place)));
                !matches!(home, Some(Ok(Some(_))))
            };
            for place in (0..found.len()).filter(|place| found[*place].is_none()).filter(is_here) {
                let access = IndexAccess::of_key(way, key(place));
                writes.read_scan(&table.rows, ScanRead::new(&[], Some(&access)));
            }
        }
        if let Some(placed) = index.table.placed() {
            let mut elsewhere = Vec::new();
            for place in 0..found.len() {
                if let Some(home) = placed.elsewhere(way, key(place))? {
                    elsewhere.push((place, home, key(place).to_vec()));
                }
            }
            drop(borrowed);
            for (place, home, key) in elsewhere {
                found[place] = self.get_elsewhere((placed, home), table, way, &key)?;
            }
        }
        Ok(found)
    }

    /// The row whose key is in `work.key`.
    #[inline]
    fn find<'a>(&self, table: &'a Arc<Table>, way: &Arc<TableIndex>, work: &mut Work) -> Result<Option<Row<'a>>>
    where
        't: 'a,
    {
        if !way.is_ready_for(self.view) {
            return Err(changed_meanwhile(table));
        }
        way.fetch_key(work.key.bytes())?;
        for row in way.tree().get(self.view, work.key.bytes()).iter() {
            let Some(found) = table.rows.read(self.view, *row) else { continue };
            let image = work.main_images.image_of(&table.rows, *row, found)?;
            if !way.has_key(&table.rows, RowRef::Version(&image), work.key.bytes(), &mut work.old_key)? {
                continue;
            }
            if self.remembers_reads {
                work.writes.read_row(&table.rows, *row);
            }
            work.lately.read(&table.rows, *row);
            return Ok(Some(Row { id: *row, image }));
        }
        if self.remembers_reads {
            let access = IndexAccess::of_key(way, work.key.bytes());
            work.writes.read_scan(&table.rows, ScanRead::new(&[], Some(&access)));
        }
        Ok(None)
    }

    /// A row by its place. `None`: it is not there, as the transaction sees it.
    pub fn get_by_id<'a>(&self, table: &'a PreparedTable, row: RowId) -> Result<Option<Row<'a>>>
    where
        't: 'a,
    {
        let resolved = self.resolve(table)?;
        if self.remembers_reads {
            self.work.borrow_mut().writes.read_row(&resolved.table.rows, row);
        }
        if is_pod_row(row) && table.placed().is_some() {
            return self.get_by_id_elsewhere(&resolved.table, row);
        }
        let _pausing = tidepool_fiber::pausing();
        let found = resolved.table.rows.read(self.view, row);
        self.work.borrow_mut().lately.read(&resolved.table.rows, row);
        let images = &mut self.work.borrow_mut().main_images;
        found.map(|found| Ok(Row { id: row, image: images.image_of(&resolved.table.rows, row, found)? })).transpose()
    }

    /// The rows in a range of an index's keys, in the order of keys or the other way round.
    pub fn scan<'a>(
        &self,
        index: &'a PreparedIndex,
        range: ScanRange<impl KeyValues>,
        direction: Direction,
    ) -> Result<KeyScan<'a>>
    where
        't: 'a,
    {
        let resolved = self.resolve(&index.table)?;
        let way = index.table.index_in(resolved, index.way)?;
        if !way.is_ready_for(self.view) {
            return Err(changed_meanwhile(&resolved.table));
        }
        KeyScan::new(*self, (&resolved.table, index.table.placed()), way, range, direction)
    }

    /// Hands all rows of a table to a function, in no order.
    pub fn scan_table<'a>(&self, table: &'a PreparedTable, mut take: impl FnMut(&Row<'_>) -> Result<()>) -> Result<()>
    where
        't: 'a,
    {
        let resolved = self.resolve(table)?;
        let rows = &resolved.table.rows;
        if self.remembers_reads {
            self.work.borrow_mut().writes.read_table(rows);
        }
        let mut images = MainImages::default();
        for number in 0..rows.ranges() {
            let Some(range) = rows.range(self.view, number) else { break };
            for window in 0..RangeView::WINDOWS {
                for position in bits(range.main(window) | range.headed(window)) {
                    let row = RowId::new(number, window * 64 + position);
                    if let Some(found) = rows.read(self.view, row) {
                        take(&Row { id: row, image: images.image_of(rows, row, found)? })?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds a row: a value for each of the table's columns, in order. 23505 where another row has one of its unique keys, 23502
    /// for NULL where none may be, 22001 and 22003 for what is too long or too large, 42804 and 42601 for other values than the
    /// table's columns take, 53200 when memory is full. The transaction goes on as if nothing had been added then.
    #[inline]
    pub fn insert(&self, table: &PreparedTable, values: impl RowValues) -> Result<RowId> {
        let resolved = self.resolve_to_write(table)?;
        let placed = table.placed();
        let table = &resolved.table;
        let work = &mut *self.work.borrow_mut();
        ImageWriter::make(table.rows.layout(), &table.def, &values, &mut work.image)?;
        let before = work.writes.savepoint();
        let row = table.rows.insert(self.worker, self.view, &mut work.writes, &work.image)?;
        work.wrote(table);
        for index in table.indexes() {
            let entered = index
                .key_of(&table.rows, RowRef::Version(&work.image), &mut work.key)
                .and_then(|()| is_here(placed, index, &work.key))
                .and_then(|()| self.enter(table, index, row, &work.key, &mut work.fingers));
            if let Err(error) = entered {
                work.writes.undo_to(before, self.worker);
                return Err(self.remembering_key(error, table, work));
            }
        }
        Ok(row)
    }

    /// Changes a row by its place. False: it is not there, as the transaction sees it. 40001 where another transaction changed it
    /// since the snapshot, 40P01 where waiting for another would be for ever; else as [`Access::insert`].
    #[inline]
    pub fn update(
        &self,
        table: &PreparedTable,
        row: RowId,
        change: impl FnOnce(&mut RowChange<'_>) -> Result<()>,
    ) -> Result<bool> {
        let resolved = self.resolve_to_write(table)?;
        let placed = table.placed();
        let table = &resolved.table;
        if placed.is_some() && is_pod_row(row) {
            return self.update_elsewhere(table, row, change);
        }
        let layout = table.rows.layout();
        let found = match self.work.borrow().lately.has_read(&table.rows, row) {
            true => table.rows.read_again(self.view, row),
            false => {
                let _pausing = tidepool_fiber::pausing();
                table.rows.read(self.view, row)
            }
        };
        let Some(found) = found else { return Ok(false) };
        let old = self.work.borrow_mut().main_images.image_of(&table.rows, row, found)?;
        // Not borrowed while the change is worked out, which may look at other rows.
        let mut image = std::mem::take(&mut self.work.borrow_mut().image);
        image.clear();
        image.extend_from_slice(&old);
        let mut changing = RowChange { old: &old, writer: ImageWriter::change(layout, &table.def, &mut image), set: 0 };
        change(&mut changing)?;
        let set = changing.set;
        let work = &mut *self.work.borrow_mut();
        work.image = image;
        let (mut changes_key, mut changes_unique) = (false, false);
        for index in table.indexes() {
            let has = index.positions().iter().any(|position| set & column_bit(*position) != 0);
            changes_key |= has;
            changes_unique |= has && index.is_unique();
        }
        let keys = match (changes_key, changes_unique) {
            (false, _) => Keys::Leave,
            (true, false) => Keys::LeaveUnique,
            (true, true) => Keys::Change,
        };
        let before = work.writes.savepoint();
        loop {
            let writes = &mut work.writes;
            match table.rows.update(self.worker, self.view, writes, row, &work.image, keys)? {
                Outcome::Written => break,
                Outcome::Conflict(tag) => self.worker.wait_for(tag, &|| self.interrupted_elsewhere())?,
                Outcome::Newer { .. } => return Err(newer()),
                Outcome::Deleted | Outcome::SelfModified => return Ok(false),
            }
        }
        work.wrote(table);
        if !changes_key {
            return Ok(true);
        }
        for index in table.indexes() {
            let entered = (|| {
                index.key_of(&table.rows, RowRef::Version(&old), &mut work.old_key)?;
                index.key_of(&table.rows, RowRef::Version(&work.image), &mut work.key)?;
                if work.key == work.old_key {
                    Ok(())
                } else {
                    self.enter(table, index, row, &work.key, &mut work.fingers)
                }
            })();
            if let Err(error) = entered {
                work.writes.undo_to(before, self.worker);
                return Err(self.remembering_key(error, table, work));
            }
        }
        Ok(true)
    }

    /// Takes a row away by its place. As [`Access::update`].
    pub fn delete(&self, table: &PreparedTable, row: RowId) -> Result<bool> {
        let resolved = self.resolve_to_write(table)?;
        let table = &resolved.table;
        if is_pod_row(row) {
            return Err(Error::unsupported("deleting a row of another host"));
        }
        let work = &mut *self.work.borrow_mut();
        loop {
            match table.rows.delete(self.worker, self.view, &mut work.writes, row)? {
                Outcome::Written => break,
                Outcome::Conflict(tag) => self.worker.wait_for(tag, &|| self.interrupted_elsewhere())?,
                Outcome::Newer { .. } => return Err(newer()),
                Outcome::Deleted | Outcome::SelfModified => return Ok(false),
            }
        }
        work.wrote(table);
        Ok(true)
    }

    #[inline]
    fn enter(
        &self,
        table: &Table,
        index: &Arc<TableIndex>,
        row: RowId,
        key: &IndexKey,
        fingers: &mut Fingers,
    ) -> Result<()> {
        loop {
            match index.enter(&table.rows, self.view, row, key, fingers)? {
                Entered::Done => return Ok(()),
                Entered::Taken(_) => return Err(self.taken(table, index, key)),
                Entered::Wait(tag) => self.worker.wait_for(tag, &|| self.keeper.interrupted())?,
            }
        }
    }

    #[cold]
    fn taken(&self, table: &Table, index: &TableIndex, key: &IndexKey) -> Error {
        match table.def.indexes.iter().find(|def| def.id == index.id()) {
            Some(def) => duplicate_key(&table.def, def, index, key.bytes()).with_subject(Subject {
                schema: self.database.state().schema_name(table.def.schema).to_owned(),
                table: table.def.name.clone(),
                part: Part::Constraint(def.name.clone()),
            }),
            None => Error::internal("an index is in no definition"),
        }
    }

    /// Who goes on after he was told that a key is taken knows of it.
    #[cold]
    fn remembering_key(&self, error: Error, table: &Table, work: &mut Work) -> Error {
        if self.remembers_reads {
            work.writes.read_table(&table.rows);
        }
        error
    }

    pub fn isolation(&self) -> Isolation {
        self.worker.isolation()
    }
}

impl Work {
    #[inline]
    fn wrote(&mut self, table: &Arc<Table>) {
        if !self.written.iter().any(|known| Arc::ptr_eq(known, table)) {
            self.written.push(table.clone());
        }
    }
}

impl<'a> Row<'a> {
    pub(super) fn new(id: RowId, image: Cow<'a, [u8]>) -> Row<'a> {
        Row { id, image }
    }
}

#[cold]
fn no_single_row(index: &TableIndex) -> Error {
    let what = match index.is_unique() {
        true => format!("a key of {} columns", index.positions().len()),
        false => "an index that is unique".to_owned(),
    };
    Error::new(SqlState::WRONG_OBJECT_TYPE, format!("a single row is found by {what}; others are scanned"))
}
