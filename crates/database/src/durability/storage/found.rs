//! Row groups that stay in memory when the process ends: the first of a checkpoint's two tiers (LegoBase, two-tier recovery).
//!
//! The manifest says where in a tablespace each segment lies, and what the device's content is called. A start that finds the
//! same content attaches the segments there, and reads files for what it does not find. That a segment is the right one
//! is told by a checksum of its head, at once, and of all its bytes when it is read first; what turns out to be damaged is
//! read from its file then. So nothing below is needed for answers to be right, only for places to be good for long:
//!
//! * Row groups that the manifest in force names are held here until the next one is, so that their memory becomes nobody
//!   else's. Those of dropped tables are let go of at once.
//! * Before the manifest is written, they are flushed to devices that outlive the machine.

use super::contents::SavedContents;
use super::log_place::{LogPlace, SavedLog};
use super::row_file::{self, Identity, Kind};
use super::{FileKey, Manifest, SavedFile, SavedTable, Storage, in_file};
use crate::DatabaseVersion;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidepool_base::{Error, Result, RowGroupId, StoreId, TablespaceId};
use tidepool_device::Access;
use tidepool_heap::QueryHeap;
use tidepool_log::files::Files;
use tidepool_table::{Origin, Placement, RowGroup, Segment, SegmentPlace, TableDef, TableVersion};
use tidepool_tablespace::{Left, Purpose, Region, Tablespace, Tablespaces};

/// Where a row group's segments lie: for each column the number of its tablespace among `Manifest::contents`, the offset
/// and the length there, and the checksum of its head, in hexadecimal; or `-` for one that goes with the process. As one
/// text: there are many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Places(Vec<Option<(usize, SegmentPlace)>>);

impl std::fmt::Display for Places {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (position, place) in self.0.iter().enumerate() {
            let space = if position == 0 { "" } else { " " };
            match place {
                Some((number, SegmentPlace { offset, len, head })) => {
                    write!(f, "{space}{number:x}:{offset:x}:{len:x}:{head:x}")?;
                }
                None => write!(f, "{space}-")?,
            }
        }
        Ok(())
    }
}

impl FromStr for Places {
    type Err = Error;

    fn from_str(text: &str) -> Result<Places> {
        let place = |text: &str| {
            if text == "-" {
                return Some(None);
            }
            let mut numbers = text.split(':').map(|number| u64::from_str_radix(number, 16).ok());
            let mut next = || numbers.next().flatten();
            let (number, place) = (next()?, SegmentPlace { offset: next()?, len: next()?, head: next()? });
            Some(Some((number as usize, place)))
        };
        let places = text.split(' ').map(place).collect::<Option<_>>();
        places.map(Places).ok_or_else(|| Error::corrupted("a row group's places cannot be understood"))
    }
}

/// Row groups that the manifest in force names in memory, by id.
#[derive(Debug, Default)]
pub(super) struct Held {
    groups: HashMap<RowGroupId, HeldGroup>,
    /// By delta file: the same bytes, in the tablespace of the table's delta.
    images: HashMap<u64, (StoreId, Arc<Region>)>,
    contents: Vec<SavedContents>,
}

impl Held {
    /// Lets go of what `stays` and `image_stays` are false of, and has it no longer kept in memory when the process ends. Says
    /// whether there was anything.
    fn retain(
        &mut self,
        stays: impl Fn(&RowGroupId, &HeldGroup) -> bool,
        image_stays: impl Fn(&(StoreId, Arc<Region>)) -> bool,
    ) -> bool {
        let mut spaces: BTreeMap<TablespaceId, Arc<Tablespace>> = BTreeMap::new();
        let of_group = |held: &HeldGroup| held.group.segments().to_vec();
        for (_, held) in self.groups.iter().filter(|(id, held)| !stays(id, held)) {
            let tablespaces = of_group(held).into_iter().map(|segment| Arc::clone(segment.tablespace()));
            spaces.extend(tablespaces.map(|space| (space.id(), space)));
        }
        for (_, image) in self.images.values().filter(|image| !image_stays(image)) {
            spaces.insert(image.tablespace().id(), Arc::clone(image.tablespace()));
        }
        if spaces.is_empty() {
            return false;
        }
        self.groups.retain(|id, held| stays(id, held));
        self.images.retain(|_, image| image_stays(image));
        let mut kept: BTreeMap<TablespaceId, Vec<(u64, usize)>> = BTreeMap::new();
        for segment in self.groups.values().flat_map(of_group) {
            kept.entry(segment.tablespace().id()).or_default().extend(segment.extent());
        }
        for (_, image) in self.images.values() {
            kept.entry(image.tablespace().id()).or_default().push((image.offset(), image.len()));
        }
        for space in spaces.values() {
            space.keep(kept.remove(&space.id()).unwrap_or_default());
        }
        true
    }
}

#[derive(Debug)]
struct HeldGroup {
    group: Arc<RowGroup>,
    store: StoreId,
    places: String,
}

/// What is gathered while a manifest is written.
#[derive(Default)]
pub(super) struct Gathered {
    next: Held,
    numbers: HashMap<TablespaceId, Option<usize>>,
    kept: BTreeMap<TablespaceId, Vec<(u64, usize)>>,
}

/// What became of the row groups of the last checkpoint at a start.
#[derive(Debug, Default)]
pub(crate) struct Restarted {
    /// Segments that were found in memory; and their bytes, images of delta included.
    pub attached: AtomicU64,
    pub attached_bytes: AtomicU64,
    /// Of delta that was found in memory: tables.
    pub images: AtomicU64,
    /// Segments that were read from files, and their bytes.
    pub read: AtomicU64,
    pub read_bytes: AtomicU64,
}

/// What was found in memory: segments by row group and column, and images of delta by file.
#[derive(Default)]
pub(crate) struct FoundGroups {
    groups: Mutex<HashMap<u64, Vec<Option<Segment>>>>,
    images: HashMap<u64, Region>,
}

impl FoundGroups {
    pub fn take_image(&mut self, file: u64) -> Option<Region> {
        self.images.remove(&file)
    }
}

/// A row group's file.
#[derive(Debug)]
struct FileOrigin {
    files: Arc<dyn Files>,
    path: PathBuf,
    identity: Identity,
    def: Arc<TableDef>,
    /// Of each column.
    spaces: Vec<Arc<Tablespace>>,
}

impl FileOrigin {
    fn read(&self) -> Result<Vec<u8>> {
        super::read_file(&*self.files, &self.path)
    }

    fn load(&self, bytes: &[u8], columns: &[usize]) -> Result<Vec<Segment>> {
        let schema = self.def.arrow_schema();
        let loaded = row_file::parts(bytes, &self.identity).and_then(|parts| {
            if parts.len() != self.spaces.len() {
                let (has, wants) = (parts.len(), self.spaces.len());
                return Err(Error::corrupted(format!("it has {has} columns, the table {wants}")));
            }
            let load = |column: &usize| Segment::load(parts[*column], schema.field(*column), &self.spaces[*column]);
            columns.iter().map(load).collect()
        });
        loaded.map_err(|error| in_file(&self.path, &error))
    }
}

impl FileOrigin {
    fn attach(self: &Arc<Self>, place: &SegmentPlace, column: usize) -> Option<Segment> {
        let region = self.spaces[column].attach(place.offset, usize::try_from(place.len).ok()?, Purpose::Main)?;
        let schema = self.def.arrow_schema();
        let origin: Arc<dyn Origin> = Arc::clone(self) as _;
        // An error: something else is there by now, as memory was wanted before the process ended.
        Segment::attach(region, place, schema.field(column), &origin, column).ok()
    }
}

impl Origin for FileOrigin {
    fn segment(&self, column: usize) -> Result<Box<Segment>> {
        QueryHeap::outside(|| {
            let (space, table) = (self.spaces[column].name(), &self.def.name);
            tracing::warn!(
                "a row group of table \"{table}\" was damaged in tablespace \"{space}\": its file \"{}\" is read",
                self.path.display()
            );
            let segment = self.load(&self.read()?, &[column])?.pop();
            segment.map(Box::new).ok_or_else(|| Error::internal("a row group has no such column"))
        })
    }
}

impl Storage {
    /// Attaches what is still in memory of tables' row groups. Before anything else takes memory there.
    pub fn find(&self, manifest: &Manifest, spaces: &Tablespaces, threads: usize) -> Result<FoundGroups> {
        self.held.lock().contents = manifest.contents.clone();
        let mut groups = Vec::new();
        for table in &manifest.tables {
            let def = Arc::new(table.def.clone());
            for (file, places) in table.row_groups.iter().zip(&table.places) {
                groups.push((self.origin(&def, &table.placement, file, spaces)?, places));
            }
        }
        let found = super::parallel(&groups, threads, |(origin, places)| {
            let places: Places = places.parse()?;
            let attach = |column: usize| {
                let (number, place) = places.0.get(column)?.as_ref()?;
                let space = &origin.spaces[column];
                let contents = manifest.contents.get(*number)?;
                if contents.tablespace == space.name() { origin.attach(place, column) } else { None }
            };
            Ok((origin.identity.id, (0..origin.spaces.len()).map(attach).collect()))
        })?;
        let mut images = HashMap::new();
        for table in &manifest.tables {
            let Some(places) = &table.delta_place else { continue };
            let space = spaces.get(&table.placement.delta)?;
            for (file, place) in table.delta.iter().zip(places.parse::<Places>()?.0) {
                let Some((number, place)) = place else { continue };
                let contents = manifest.contents.get(number);
                let is_there = contents.is_some_and(|contents| contents.tablespace == space.name());
                let len = usize::try_from(place.len).ok().filter(|_| is_there);
                images.extend(len.and_then(|len| Some((file.id, space.attach(place.offset, len, Purpose::Delta)?))));
            }
        }
        for space in spaces.list() {
            space.end_attaching();
        }
        Ok(FoundGroups { groups: Mutex::new(found.into_iter().collect()), images })
    }

    fn origin(
        &self,
        def: &Arc<TableDef>,
        placement: &Placement,
        file: &SavedFile,
        spaces: &Tablespaces,
    ) -> Result<Arc<FileOrigin>> {
        let path = self.path(FileKey { kind: Kind::Main, id: file.id });
        self.origin_at(path, def, placement, file, spaces).map(Arc::new)
    }

    fn origin_at(
        &self,
        path: PathBuf,
        def: &Arc<TableDef>,
        placement: &Placement,
        file: &SavedFile,
        spaces: &Tablespaces,
    ) -> Result<FileOrigin> {
        let spaces = (0..def.columns.len()).map(|column| spaces.get(placement.column(column)));
        Ok(FileOrigin {
            files: Arc::clone(&self.files),
            path,
            identity: super::identity(Kind::Main, def, file),
            def: Arc::clone(def),
            spaces: spaces.collect::<Result<_>>()?,
        })
    }

    /// A row group's segment from its file. `None`: there is no such file.
    pub fn copy_of_segment(
        &self,
        def: &Arc<TableDef>,
        placement: &Placement,
        file: &SavedFile,
        spaces: &Tablespaces,
        column: usize,
    ) -> Result<Option<Box<Segment>>> {
        if !self.state.lock().stored.contains_key(&FileKey { kind: Kind::Main, id: file.id }) {
            return Ok(None);
        }
        self.origin(def, placement, file, spaces)?.segment(column).map(Some)
    }

    /// Takes what was found of a row group, and reads the rest from its file.
    pub fn load_group(
        &self,
        def: &Arc<TableDef>,
        placement: &Placement,
        file: &SavedFile,
        spaces: &Tablespaces,
        found: &FoundGroups,
    ) -> Result<RowGroup> {
        let origin = self.origin(def, placement, file, spaces)?;
        let columns = origin.spaces.len();
        let mut segments = found.groups.lock().remove(&file.id).unwrap_or_default();
        segments.resize_with(columns, || None);
        let missing: Vec<usize> = (0..columns).filter(|column| segments[*column].is_none()).collect();
        let bytes =
            |segments: &[Option<Segment>]| -> u64 { segments.iter().flatten().map(Segment::encoded_bytes).sum() };
        let attached_bytes = bytes(&segments);
        self.restarted.attached.fetch_add((columns - missing.len()) as u64, Ordering::Relaxed);
        self.restarted.attached_bytes.fetch_add(attached_bytes, Ordering::Relaxed);
        if !missing.is_empty() {
            let loaded = origin.load(&origin.read()?, &missing)?;
            for (column, segment) in missing.iter().zip(loaded) {
                segments[*column] = Some(segment);
            }
            self.restarted.read.fetch_add(missing.len() as u64, Ordering::Relaxed);
            self.restarted.read_bytes.fetch_add(bytes(&segments) - attached_bytes, Ordering::Relaxed);
        }
        let segments = segments.into_iter().flatten().map(Arc::new).collect();
        let group =
            RowGroup::from_segments(RowGroupId(file.id), segments).map_err(|error| in_file(&origin.path, &error))?;
        if group.rows() as u64 != file.rows {
            let (has, says) = (group.rows(), file.rows);
            let error = Error::corrupted(format!("it has {has} rows, the manifest says {says}"));
            return Err(in_file(&origin.path, &error));
        }
        Ok(group)
    }

    /// Reads a row group from a file elsewhere.
    pub fn load_group_at(
        &self,
        path: &Path,
        def: &Arc<TableDef>,
        placement: &Placement,
        file: &SavedFile,
        spaces: &Tablespaces,
    ) -> Result<RowGroup> {
        let bytes = super::read_file(&*self.files, path)?;
        self.load_group_of(&bytes, path, def, placement, file, spaces)
    }

    /// Reads a row group from what was read of a file.
    pub fn load_group_of(
        &self,
        bytes: &[u8],
        path: &Path,
        def: &Arc<TableDef>,
        placement: &Placement,
        file: &SavedFile,
        spaces: &Tablespaces,
    ) -> Result<RowGroup> {
        let origin = self.origin_at(path.to_owned(), def, placement, file, spaces)?;
        let columns: Vec<usize> = (0..def.columns.len()).collect();
        let segments = origin.load(bytes, &columns)?.into_iter().map(Arc::new).collect();
        RowGroup::from_segments(RowGroupId(file.id), segments).map_err(|error| in_file(path, &error))
    }

    /// XX001, naming the file, unless these bytes of it are all of a row group, and undamaged.
    pub fn check_group(path: &Path, bytes: &[u8], id: RowGroupId, rows: u64) -> Result<()> {
        row_file::check_main(bytes, id.0, rows).map_err(|error| in_file(path, &error))
    }

    /// The file of a row group.
    pub fn group_path(&self, id: RowGroupId) -> PathBuf {
        self.path(FileKey { kind: Kind::Main, id: id.0 })
    }

    /// The row groups of a table that the manifest in force names in memory were made the table's.
    pub fn found(&self, saved: &SavedTable, store: StoreId, groups: &[Arc<RowGroup>]) {
        let mut held = self.held.lock();
        for (group, places) in groups.iter().zip(&saved.places) {
            // One that was read from its file is elsewhere, as the next manifest will say.
            let is_there = |(segment, place): (&Arc<Segment>, &Option<(usize, SegmentPlace)>)| {
                place.as_ref().is_none_or(|(_, place)| segment.extent() == Some((place.offset, place.len as usize)))
            };
            let known = places.parse::<Places>();
            if !known.is_ok_and(|places| group.segments().iter().zip(&places.0).all(is_there)) {
                continue;
            }
            let held_group = HeldGroup { group: Arc::clone(group), store, places: places.clone() };
            held.groups.insert(group.id(), held_group);
        }
    }

    /// A delta file's image was found, and is what it should be.
    pub fn found_image(&self, file: u64, store: StoreId, image: Region) {
        self.restarted.attached_bytes.fetch_add(image.len() as u64, Ordering::Relaxed);
        self.restarted.images.fetch_add(1, Ordering::Relaxed);
        self.held.lock().images.insert(file, (store, Arc::new(image)));
    }

    /// Lets go of what is held of a table that is nobody else's any more.
    pub fn let_go_of(&self, store: StoreId) {
        self.held.lock().retain(|_, held| held.store != store, |(of, _)| *of != store);
    }

    /// Lets go of all that is in a tablespace: memory of it is wanted for something else.
    pub fn let_go_of_all_in(&self, space: &Tablespace) {
        let is_in = |held: &HeldGroup| held.group.segments().iter().any(|one| one.tablespace().id() == space.id());
        self.held.lock().retain(|_, held| !is_in(held), |(_, image)| image.tablespace().id() != space.id());
    }

    /// Whether a manifest that is written now would say more of where row groups lie than the one in force.
    pub fn would_find_more(&self, version: &DatabaseVersion) -> bool {
        let held = self.held.lock();
        let is_new = |group: &Arc<RowGroup>| {
            let lasts = group.segments().iter().any(|segment| segment.tablespace().contents().is_some());
            lasts && !held.groups.get(&group.id()).is_some_and(|held| Arc::ptr_eq(&held.group, group))
        };
        version.versions().any(|table| table.row_groups.iter().any(is_new))
    }

    /// Lets go of row groups that tables have others for by now: memory is short. Says whether there were any.
    pub fn let_go_of_unused(&self, version: &DatabaseVersion) -> bool {
        let used: HashSet<RowGroupId> = version
            .versions()
            .flat_map(|table| table.row_groups.iter().map(|group| group.id()).collect::<Vec<_>>())
            .collect();
        self.held.lock().retain(|id, _| used.contains(id), |_| true)
    }

    /// What a start found in memory, and what it read.
    pub fn restarted(&self) -> &Restarted {
        &self.restarted
    }

    /// Where a table's row groups lie, for the manifest to come: empty when no place of them lasts. What was not there at the
    /// last one is flushed.
    pub(super) fn places(
        &self,
        gathered: &mut Gathered,
        store: StoreId,
        groups: &[Arc<RowGroup>],
    ) -> Result<Vec<String>> {
        let mut all = Vec::with_capacity(groups.len());
        let mut lasting = false;
        for group in groups {
            let (places, is_new) = self.places_of(gathered, group)?;
            let is_lasting = places.0.iter().any(Option::is_some);
            let text = places.to_string();
            if is_lasting {
                lasting = true;
                for (segment, place) in group.segments().iter().zip(&places.0) {
                    let Some((_, place)) = place else { continue };
                    if is_new {
                        segment.flush()?;
                    }
                    let kept = gathered.kept.entry(segment.tablespace().id()).or_default();
                    kept.push((place.offset, place.len as usize));
                }
                let held = HeldGroup { group: Arc::clone(group), store, places: text.clone() };
                gathered.next.groups.insert(group.id(), held);
            }
            all.push(text);
        }
        if !lasting {
            all.clear();
        }
        Ok(all)
    }

    /// Puts a delta file's bytes into the tablespace of the table's delta, if that outlives the process and has room to
    /// spare: whoever writes rows comes first.
    pub(super) fn put_image(&self, gathered: &mut Gathered, table: &TableVersion, file: u64, parts: &[&[u8]]) {
        let space = table.rows().memory().tablespace();
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if gathered.number(space).is_none() || len as u64 > space.available_bytes() / 2 {
            return;
        }
        let Ok(mut image) = space.allocate(len, Purpose::Delta) else { return };
        let mut rest = &mut image[..];
        for part in parts {
            rest[..part.len()].copy_from_slice(part);
            rest = &mut rest[part.len()..];
        }
        space.charge(Purpose::Delta, &[Access::write_sequential(len as u64)]);
        gathered.next.images.insert(file, (table.rows().id(), Arc::new(image)));
    }

    /// Where the images of delta files lie. `None`: there are none.
    pub(super) fn image_places(&self, gathered: &mut Gathered, files: &[SavedFile]) -> Result<Option<String>> {
        let places = files.iter().map(|file| self.image_place(gathered, file.id)).collect::<Result<Vec<_>>>()?;
        Ok(places.iter().any(Option::is_some).then(|| Places(places).to_string()))
    }

    fn image_place(&self, gathered: &mut Gathered, file: u64) -> Result<Option<(usize, SegmentPlace)>> {
        let new = gathered.next.images.get(&file);
        let (store, image) = match new {
            Some(new) => new.clone(),
            None => match self.held.lock().images.get(&file) {
                Some(held) => held.clone(),
                None => return Ok(None),
            },
        };
        if new.is_some() {
            image.flush()?;
        }
        let Some(number) = gathered.number(image.tablespace()) else { return Ok(None) };
        let place = SegmentPlace { offset: image.offset(), len: image.len() as u64, head: 0 };
        gathered.kept.entry(image.tablespace().id()).or_default().push((place.offset, image.len()));
        gathered.next.images.insert(file, (store, image));
        Ok(Some((number, place)))
    }

    /// And whether that is not what the manifest in force says.
    fn places_of(&self, gathered: &mut Gathered, group: &Arc<RowGroup>) -> Result<(Places, bool)> {
        let numbers: Vec<Option<usize>> =
            group.segments().iter().map(|segment| gathered.number(segment.tablespace())).collect();
        if numbers.iter().all(Option::is_none) {
            return Ok((Places::default(), false));
        }
        let place = |(segment, number): (&Arc<Segment>, &Option<usize>)| {
            number.map(|number| Ok((number, segment.place()?))).transpose()
        };
        let places = Places(group.segments().iter().zip(&numbers).map(place).collect::<Result<_>>()?);
        let held = self.held.lock();
        // The numbers may be others.
        let same = |before: Places| {
            let named = |contents: &[SavedContents], places: &Places| -> Vec<Option<(SavedContents, SegmentPlace)>> {
                let known = |(number, place): &(usize, SegmentPlace)| Some((contents.get(*number)?.clone(), *place));
                places.0.iter().map(|place| place.as_ref().and_then(known)).collect()
            };
            named(&held.contents, &before) == named(&gathered.next.contents, &places)
        };
        let before = held.groups.get(&group.id()).filter(|held| Arc::ptr_eq(&held.group, group));
        let is_new = !before.and_then(|held| held.places.parse().ok()).is_some_and(same);
        Ok((places, is_new))
    }

    /// The manifest is in force: `gathered` says what it names.
    pub(super) fn hold(&self, gathered: Gathered, spaces: &Tablespaces) {
        let Gathered { next, mut kept, .. } = gathered;
        for space in spaces.list() {
            space.keep(kept.remove(&space.id()).unwrap_or_default());
        }
        let before = std::mem::replace(&mut *self.held.lock(), next);
        drop(before);
    }
}

impl Gathered {
    fn number(&mut self, space: &Arc<Tablespace>) -> Option<usize> {
        let contents = &mut self.next.contents;
        *self.numbers.entry(space.id()).or_insert_with(|| {
            contents.push(SavedContents::new(space.name(), &space.contents()?));
            Some(contents.len() - 1)
        })
    }

    pub fn contents(&self) -> Vec<SavedContents> {
        self.next.contents.clone()
    }
}

/// What each tablespace may find on its device.
pub(crate) struct Finds(BTreeMap<String, Left>);

impl Finds {
    pub fn new(manifest: &Manifest) -> Finds {
        let left =
            |saved: &SavedContents| Some(Left { contents: saved.contents()?, places: Vec::new(), is_needed: false });
        let mut all: BTreeMap<String, Left> =
            manifest.contents.iter().filter_map(|saved| Some((saved.tablespace.clone(), left(saved)?))).collect();
        let tables = &manifest.tables;
        let texts = tables.iter().flat_map(|table| table.places.iter().chain(&table.delta_place));
        let places = texts.filter_map(|text| text.parse::<Places>().ok());
        for (number, place) in places.flat_map(|places| places.0).flatten() {
            let of = manifest.contents.get(number).and_then(|contents| all.get_mut(&contents.tablespace));
            if let (Some(left), Ok(len)) = (of, usize::try_from(place.len)) {
                left.places.push((place.offset, len));
            }
        }
        if let Some(SavedLog { place: LogPlace::Memory(region), closed, .. }) = &manifest.log
            && let Some(of_log) = left(&region.contents)
        {
            let left = all.entry(region.contents.tablespace.clone()).or_insert_with(|| of_log.clone());
            left.contents = of_log.contents;
            left.places.push(region.place());
            left.is_needed = !closed;
        }
        Finds(all)
    }

    pub fn of(&self, tablespace: &str) -> Option<&Left> {
        self.0.get(tablespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_were_written() {
        let place = |offset| SegmentPlace { offset, len: 77, head: u64::MAX };
        let places = Places(vec![Some((0, place(4096))), None, Some((17, place(u64::MAX)))]);
        let text = places.to_string();
        assert_eq!(text, "0:1000:4d:ffffffffffffffff - 11:ffffffffffffffff:4d:ffffffffffffffff");
        assert_eq!(text.parse::<Places>().unwrap(), places);
        for wrong in ["", "1:2:3", "x", "1:2:3:4 ", "1:2:3:11111111111111111"] {
            assert!(wrong.parse::<Places>().is_err(), "{wrong:?}");
        }
    }
}
