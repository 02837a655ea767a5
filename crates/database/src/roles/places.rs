//! Row groups of main in the pool: where those are that this process made, and those that others made.
//!
//! The log names them (a load, a merge), and so will a manifest. A row group that lies in a tablespace over the pool is found
//! where it is. Of one that lies in memory of this process alone a copy is put into the pool, and kept as long as the row group is
//! in use here. What a process attaches it reads in place, wherever the table's placement says: in the tablespace of that
//! name, if it is over the pool, so that its costs are those, and else in one that is nobody's.
//!
//! Attaching touches nothing of a row group: each segment is mapped and looked at when something of it is wanted first
//! ([`Segment::attach_later`]). Until then the extents that it lies in count as used, and its place is known.
//!
//! | bytes of a place, for each column | |
//! | --- | --- |
//! | 8, 8 | where it begins in its first extent, and how long it is |
//! | 8 | checksum of its header and its tree |
//! | 4, then 4 each | the extents that it lies in |

use crate::Database;
use crate::durability::redo::{broken, number};
use crate::durability::small::MainPlaces;
use crate::durability::storage::SavedFile;
use crate::durability::tier1::{Placed, placed};
use crate::follow::RowGroups;
use crate::pool_host::PoolHost;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use tidepool_base::{Error, Result, RowGroupId, StoreId, TablespaceId};
use tidepool_device::Location;
use tidepool_pool::words::Extent;
use tidepool_table::rows::NewMain;
use tidepool_table::{Origin, Placement, RowGroup, Segment, Table, TableDef};
use tidepool_tablespace::{PoolPlace, Tablespace, TablespaceConfig};

/// No tablespace with a name comes this far.
const ID: TablespaceId = TablespaceId(u16::MAX);

/// Copies are looked through when there are twice as many as the last time, and these more.
const COPIES_MORE: usize = 64;

/// Where row groups are in the pool.
pub(crate) struct PoolPlaces {
    /// Nobody's by name.
    space: Arc<Tablespace>,
    copies: Mutex<Copies>,
    attached: Mutex<HashMap<RowGroupId, Weak<RowGroup>>>,
}

#[derive(Default)]
struct Copies {
    /// Of row groups that lie elsewhere: the columns that do.
    by_group: HashMap<RowGroupId, (Weak<RowGroup>, Vec<Option<Segment>>)>,
    looked_at: usize,
}

impl std::fmt::Debug for PoolPlaces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PoolPlaces({} copies)", self.copies.lock().by_group.len())
    }
}

impl PoolPlaces {
    pub fn new(host: &PoolHost) -> Result<PoolPlaces> {
        let config = TablespaceConfig {
            name: "pool".to_owned(),
            location: Location::Pool,
            size_bytes: None,
            profile: None,
            profiles: Vec::new(),
            huge_pages: false,
            populate_bytes: 0,
        };
        Ok(PoolPlaces { space: host.open(ID, config)?, copies: Mutex::default(), attached: Mutex::default() })
    }

    /// What is in the pool beside the tablespaces that have names.
    pub fn space(&self) -> &Arc<Tablespace> {
        &self.space
    }

    /// Lets go of copies of row groups that are not in use any more.
    pub fn tidy(&self) {
        let mut copies = self.copies.lock();
        copies.by_group.retain(|_, (of, _)| of.strong_count() > 0);
        copies.looked_at = copies.by_group.len();
    }

    /// Where a row group is, as the log and a manifest have it. It is put into the pool if it is not there yet, and stays there
    /// for as long as it is in use here.
    pub fn places(&self, group: &Arc<RowGroup>) -> Result<Vec<u8>> {
        let mut copies = self.copies.lock();
        copies.forget_unused();
        let mut bytes = Vec::new();
        let mut missing = Vec::new();
        let known = copies.by_group.get(&group.id()).filter(|(of, _)| of.as_ptr() == Arc::as_ptr(group));
        for (column, segment) in group.segments().iter().enumerate() {
            let copy = || known.and_then(|(_, copies)| copies.get(column)?.as_ref());
            let place = match segment.pool_place()? {
                Some(place) => Some(place),
                None => copy().map_or(Ok(None), Segment::pool_place)?,
            };
            match place {
                Some((place, head)) => put(&mut bytes, &place, head),
                None => missing.push(column),
            }
        }
        if missing.is_empty() {
            return Ok(bytes);
        }
        let mut made: Vec<Option<Segment>> = group.segments().iter().map(|_| None).collect();
        for column in missing {
            made[column] = Some(group.segments()[column].copy_to(&self.space)?);
        }
        bytes.clear();
        for (segment, copy) in group.segments().iter().zip(&made) {
            let lies = copy.as_ref().unwrap_or(segment).pool_place()?;
            let (place, head) = lies.ok_or_else(|| Error::internal("a row group's copy is not in the pool"))?;
            put(&mut bytes, &place, head);
        }
        copies.by_group.insert(group.id(), (Arc::downgrade(group), made));
        Ok(bytes)
    }

    /// The row group of so many rows that is at these places.
    pub fn attach(
        &self,
        database: &Arc<Database>,
        def: &Arc<TableDef>,
        placement: &Placement,
        id: RowGroupId,
        rows: usize,
        places: impl IntoIterator<Item = Result<Placed>>,
    ) -> Result<Arc<RowGroup>> {
        // Two tables may come to have the same rows, where one takes the other's place.
        if let Some(group) = self.attached.lock().get(&id).and_then(Weak::upgrade) {
            return Ok(group);
        }
        let schema = def.arrow_schema();
        let of_group = PoolOrigin {
            id,
            rows,
            def: Arc::clone(def),
            placement: placement.clone(),
            database: Arc::downgrade(database),
        };
        let origin: Arc<dyn Origin> = Arc::new(of_group);
        let mut places = places.into_iter();
        let mut segments = Vec::with_capacity(schema.fields().len());
        for (column, field) in schema.fields().iter().enumerate() {
            let Placed { at, head } = places.next().ok_or_else(|| broken("the places of a row group"))??;
            let named = database.tablespaces().get(placement.column(column));
            let space = named.ok().filter(|space| space.is_followed()).unwrap_or_else(|| Arc::clone(&self.space));
            let claimed = space.claim_published(at)?;
            segments.push(Arc::new(Segment::attach_later(claimed, head, rows, field, &origin, column)?));
        }
        if places.next().is_some() {
            return Err(broken("the places of a row group"));
        }
        let group = Arc::new(RowGroup::from_segments(id, segments)?);
        let mut attached = self.attached.lock();
        if attached.len() == attached.capacity() {
            attached.retain(|_, group| group.strong_count() > 0);
        }
        attached.insert(id, Arc::downgrade(&group));
        Ok(group)
    }
}

impl Copies {
    fn forget_unused(&mut self) {
        if self.by_group.len() < self.looked_at * 2 + COPIES_MORE {
            return;
        }
        self.by_group.retain(|_, (of, _)| of.strong_count() > 0);
        self.looked_at = self.by_group.len();
    }
}

pub(crate) fn put(bytes: &mut Vec<u8>, place: &PoolPlace, head: u64) {
    [place.offset, place.len, head].iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    bytes.extend((place.extents.len() as u32).to_le_bytes());
    place.extents.iter().for_each(|extent| bytes.extend(extent.0.to_le_bytes()));
}

pub(crate) fn take(rest: &mut &[u8]) -> Result<(PoolPlace, u64)> {
    let (offset, len, head) = (number(rest)?, number(rest)?, number(rest)?);
    let mut word = || -> Result<u32> {
        let (word, left) = rest.split_first_chunk().ok_or_else(|| broken("a place is cut off"))?;
        *rest = left;
        Ok(u32::from_le_bytes(*word))
    };
    let count = word()?;
    let extents = (0..count).map(|_| word().map(Extent)).collect::<Result<Vec<_>>>()?;
    Ok((PoolPlace { extents, offset, len }, head))
}

impl MainPlaces for PoolPlaces {
    fn place(&self, _: StoreId, _: u64, main: &NewMain) -> Result<Vec<u8>> {
        main.group.as_ref().map_or(Ok(Vec::new()), |group| self.places(group))
    }

    fn place_loaded(&self, group: &Arc<RowGroup>) -> Result<Option<Vec<u8>>> {
        self.places(group).map(Some)
    }
}

/// Row groups that others made, for a database that follows.
pub(crate) struct PoolGroups {
    pub places: Arc<PoolPlaces>,
    pub database: Weak<Database>,
}

impl PoolGroups {
    fn attach(&self, table: &Table, id: RowGroupId, rows: u64, places: &[u8]) -> Result<Arc<RowGroup>> {
        let database = self.database.upgrade().ok_or_else(|| Error::internal("the database is closed"))?;
        let rows = usize::try_from(rows).map_err(|_| broken("a row group has too many rows"))?;
        let places = placed(places)?.into_iter().map(Ok);
        self.places.attach(&database, &table.def, &table.placement, id, rows, places)
    }
}

impl RowGroups for PoolGroups {
    fn loaded(&self, table: &Table, group: RowGroupId, rows: u64, places: Option<&[u8]>) -> Result<Arc<RowGroup>> {
        let places = places.ok_or_else(|| broken("a load has no place in the pool"))?;
        self.attach(table, group, rows, places)
    }

    fn merged(&self, table: &Table, group: RowGroupId, rows: u64, places: &[u8]) -> Result<Arc<RowGroup>> {
        self.attach(table, group, rows, places)
    }
}

/// There is no other copy of what is in the pool, unless a second tier has the row group in a file.
struct PoolOrigin {
    id: RowGroupId,
    rows: usize,
    def: Arc<TableDef>,
    placement: Placement,
    database: Weak<Database>,
}

impl std::fmt::Debug for PoolOrigin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PoolOrigin({})", self.id.0)
    }
}

impl Origin for PoolOrigin {
    fn segment(&self, column: usize) -> Result<Box<Segment>> {
        let (id, number) = (self.id.0, column + 1);
        if let Some(database) = self.database.upgrade()
            && let Some(storage) = &database.storage
        {
            let file = SavedFile { id, rows: self.rows as u64, range: None };
            match storage.copy_of_segment(&self.def, &self.placement, &file, database.tablespaces(), column) {
                Ok(Some(copy)) => return Ok(copy),
                Ok(None) => {}
                Err(error) => tracing::error!("column {number} of row group {id} is damaged in the pool, and {error}"),
            }
        }
        let error = Error::corrupted(format!("column {number} of row group {id} is damaged in the pool"));
        Err(error.with_context(format!("table \"{}\"", self.def.name)))
    }
}
