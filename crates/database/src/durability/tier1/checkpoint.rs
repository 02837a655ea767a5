//! Writing manifests: what the primary does every few seconds, and at a clean stop.
//!
//! A manifest is of one moment: a view that no change of what exists comes into. Main is named where it lies; what of a table
//! main does not show is written beside it as an *image*, unless the image before still has all of it. The view's commits
//! are durable, and a mark with a later timestamp is in the log behind them, before the root is swapped: whoever takes over
//! goes on above it, so no commit that the manifest lacks comes to have a timestamp that it covers.
//!
//! # What goes back to the pool
//!
//! An extent in which the primary uses nothing any more is named by no record that is still to come. What it has attached to counts as
//! used, be it mapped or not. So those that were unused *before* a manifest was begun, and that it does not name, are named by none from its position on. They
//! go back when the manifest *after* that is in force and every host holds that: the pool keeps the manifest before the one
//! in force, with the log from there on and all that it and that log name, for hosts that find the one in force damaged.
//! Both facts stay true of what an extent was then. A primary that sleeps, and acts on them when another host has used the
//! extent anew, does no harm either: what goes back is the extent with the word that it had.
//!
//! A primary that followed before may still look at what its predecessor let go of: by statements that began then, and by mains
//! that have not taken the place of others yet. Its predecessor may be asleep, and wake. So the primary holds what it held when
//! it followed, until it uses nothing any more that another process made and the manifest in force does not name.

use super::found::FoundManifest;
use super::room::{Run, shared_extents};
use super::{LogPoint, ManifestHeader, ManifestWriter, Placed, placed};
use crate::durability::commit::counts;
use crate::durability::redo::{CHECKPOINT, point};
use crate::durability::storage::{Manifest, SavedTable, delta_bytes, save_catalogue};
use crate::roles::places::PoolPlaces;
use crate::{Database, DatabaseVersion};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Weak};
use tidepool_base::{CommitTs, Error, Result, RowGroupId, SqlState, TableId};
use tidepool_log::{Log, PoolDevice, Primary};
use tidepool_pool::member::Member;
use tidepool_pool::words::{Extent, Generation, Kind, Owner, Reign, Root, Word};
use tidepool_table::rows::RowStore;
use tidepool_table::{RowGroup, TableDef, TableVersion};

/// A primary's writer of manifests.
#[derive(Debug)]
pub(crate) struct Checkpoints {
    member: Arc<Member>,
    reign: Reign,
    groups: Arc<PoolPlaces>,
    log: Arc<Log>,
    device: Arc<PoolDevice<Member>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    root: Root,
    /// The manifest in force; `None`: there is none.
    in_force: Option<InForce>,
    /// Extents in which nothing was used here when the manifest in force was begun.
    unused: HashMap<Extent, Owner>,
    /// Those that go back as soon as every host holds a root from the one of this generation on.
    owed: HashMap<Extent, (Owner, Generation)>,
    images: HashMap<TableId, Images>,
    /// Mains that waited to be adopted when the process took over. `None`: nothing is left of that time, and the process holds the
    /// root in force.
    inherited: Option<Vec<(Arc<RowStore>, u64)>>,
    /// Of row groups that are in use.
    places: HashMap<RowGroupId, (Weak<RowGroup>, Arc<[Placed]>)>,
}

#[derive(Debug)]
struct InForce {
    commit_ts: CommitTs,
    named: HashSet<Extent>,
    /// Of all but its header; `None`: another process wrote it.
    digest: Option<u64>,
}

/// What of a table main does not show, as it was written last.
#[derive(Clone, Debug)]
struct Images {
    rows: Weak<RowStore>,
    /// As `Table::writes` counts, from before the view was drawn.
    writes: u64,
    groups: Vec<RowGroupId>,
    /// By range, words of the positions of main that are no rows.
    dead: BTreeMap<u64, Vec<u64>>,
    /// By their numbers, with their rows.
    images: Vec<(u64, u64, Placed)>,
}

/// What a manifest was written of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub generation: Generation,
    pub commit_ts: CommitTs,
    /// Extents that went back.
    pub freed: usize,
    /// Segments of the log that went.
    pub recycled: u64,
}

impl Checkpoints {
    /// Of a database that has just become primary.
    pub fn new(
        database: &Database,
        member: &Arc<Member>,
        groups: &Arc<PoolPlaces>,
        primary: &Primary,
    ) -> Result<Checkpoints> {
        let found = FoundManifest::in_force(member)?;
        let in_force = found.map(|found| {
            let named = found.view()?.named_extents().collect();
            Ok(InForce { commit_ts: found.header.commit_ts, named, digest: None })
        });
        Ok(Checkpoints {
            member: Arc::clone(member),
            reign: primary.reign,
            groups: Arc::clone(groups),
            log: Arc::clone(&primary.log),
            device: Arc::clone(&primary.device),
            state: Mutex::new(State {
                root: primary.root,
                in_force: in_force.transpose()?,
                unused: HashMap::new(),
                owed: HashMap::new(),
                images: HashMap::new(),
                inherited: Some(database.unfinished_merges()),
                places: HashMap::new(),
            }),
        })
    }

    /// Writes a manifest of what is committed, and puts it in force; then gives back what none names any more. `None`: the one
    /// in force says the same. 57P02 when another host has taken over, 53100 when the pool is full; then the one in force
    /// stays.
    pub fn write(&self, database: &Database) -> Result<Option<Written>> {
        let mut state = self.state.lock();
        let state = &mut *state;
        self.groups.tidy();
        state.places.retain(|_, (group, _)| group.strong_count() > 0);
        // Before the view is drawn: what is let go of from here on may be named by the log behind it.
        let unused = self.unused(database)?;
        let (version, writes) = {
            // No change of what exists comes between the state and the view.
            let _commit = database.commit.lock();
            // Nor between a main's record and the main. Who attaches passes over the records that the view covers.
            let _told = database.told.write();
            let writes = counts(&database.state());
            (database.version(), writes)
        };
        let commit_ts = version.view().ts();
        let mut run = Run::new(&self.member, Kind::Image);
        let mut written = HashMap::new();
        let mut manifest = ManifestWriter::default();
        for table in version.versions() {
            let writes = writes.get(&table.def.id).copied().unwrap_or(0);
            self.table(database, &mut manifest, &table, writes, state, &mut written, &mut run)?;
        }
        // Once all ids are drawn that it names.
        manifest.set_catalogue(catalogue(database, &version)?);
        let digest = manifest.digest();
        let is_same =
            run.extents().is_empty() && state.in_force.as_ref().is_some_and(|known| known.digest == Some(digest));
        if is_same && !self.is_wanted(state, &unused)? {
            drop(version);
            self.hold(database, state)?;
            if !state.owed.is_empty() {
                self.reclaim(state)?;
            }
            if !state.owed.is_empty() {
                // Others come to hold the root once time has passed the moment that it is of, which it does for them with the log.
                self.mark(database, state.root.generation)?;
            }
            return Ok(None);
        }
        run.publish()?;
        point("tier1.images");
        // What is below it is durable, and who takes over begins above it.
        let generation = Generation(state.root.generation.0 + 1);
        self.mark(database, generation)?;
        let needed = self.log.needed_from(commit_ts);
        let log = match needed {
            0 => None,
            segment => Some(LogPoint { term: self.device.term_of(segment)?, segment }),
        };
        let header = ManifestHeader {
            term: self.reign.term.0,
            generation: generation.0,
            previous: if state.root.place == Root::NEW.place { 0 } else { state.root.bits() },
            commit_ts,
            log,
        };
        let mut run = Run::new(&self.member, Kind::Manifest);
        let bytes = manifest.finish(&header, self.member.pool().extent_bytes() as usize, |count| {
            run.lease(count)?;
            Ok(run.extents().to_vec())
        })?;
        run.add(&bytes)?;
        let own = run.publish()?;
        point("tier1.manifest");
        let place = own.first().copied().ok_or_else(|| Error::internal("a manifest lies nowhere"))?;
        let root = self.member.publish_root(state.root, place)?.ok_or_else(|| self.lost())?;
        point("tier1.root");
        // The view's rows are what others find there.
        drop(version);
        let named: HashSet<Extent> = super::ManifestView::read(&bytes)?.named_extents().collect();
        let before = state.in_force.replace(InForce { commit_ts, named, digest: Some(digest) });
        state.root = root;
        state.images = written;
        self.hold(database, state)?;
        let (freed, recycled) = match before {
            Some(before) => {
                let before_this = std::mem::take(&mut state.owed);
                let since = |extent: &Extent, owner: Owner| {
                    let known = before_this.get(extent).filter(|(before, _)| *before == owner);
                    known.map_or(root.generation, |(_, since)| *since)
                };
                let unnamed = self.unnamed(database, state, &unused, &before);
                let owed = unnamed.into_iter().map(|(extent, owner)| (extent, (owner, since(&extent, owner))));
                state.owed = owed.collect();
                let freed = self.reclaim(state)?;
                (freed, self.log.recycle_below(before.commit_ts)?)
            }
            // The log is all that there was before.
            None => (0, 0),
        };
        state.unused = unused;
        Ok(Some(Written { generation: root.generation, commit_ts, freed, recycled }))
    }

    /// Whether a manifest that says the same as the one in force would have memory go back that the pool is short of: what is unused and
    /// not named goes with the second that does not name it.
    fn is_wanted(&self, state: &State, unused: &HashMap<Extent, Owner>) -> Result<bool> {
        let waits = |(extent, owner): (&Extent, &Owner)| {
            let (Owner::Shared { kind, .. } | Owner::Orphan { kind, .. }) = owner else { return false };
            // Each manifest has the one before it wait.
            *kind != Kind::Manifest
                && !state.owed.contains_key(extent)
                && state.in_force.as_ref().is_some_and(|now| !now.named.contains(extent))
        };
        Ok(unused.iter().any(waits) && self.member.pool_room()?.lack() > 0)
    }

    /// Holds the root in force, once nothing is left of the time when this process followed.
    fn hold(&self, database: &Database, state: &mut State) -> Result<()> {
        if let Some(inherited) = &mut state.inherited {
            inherited.retain(|(rows, number)| rows.is_adopting(*number));
            let is_named = |extent: &Extent| state.in_force.as_ref().is_some_and(|now| now.named.contains(extent));
            let spaces = database.tablespaces().list();
            let mut all = spaces.iter().chain([self.groups.space()]);
            if !inherited.is_empty() || !all.all(|space| space.attached_extents().iter().all(is_named)) {
                return Ok(());
            }
            state.inherited = None;
        }
        self.member.raise_hold(state.root.generation)
    }

    /// What of the pool waits to go back: several hosts may still read it, though it is of no use here, nor to who attaches now.
    pub fn limbo(&self, database: &Database) -> Result<Vec<Extent>> {
        let unused = self.unused(database)?;
        let state = self.state.lock();
        let is_named = |extent: &&Extent| state.in_force.as_ref().is_some_and(|now| now.named.contains(extent));
        Ok(unused.into_keys().filter(|extent| !is_named(&extent)).collect())
    }

    /// For each extent that waits to go back, from which root on each host has to hold; `None`: a manifest is being written.
    pub fn owed(&self) -> Option<Vec<Generation>> {
        let state = self.state.try_lock()?;
        Some(state.owed.values().map(|(_, since)| *since).collect())
    }

    /// Term and number of a segment of the log that this primary writes.
    pub fn segment(&self, number: u64) -> Result<(u64, u64)> {
        Ok((self.device.term_of(number)?, number))
    }

    fn lost(&self) -> Error {
        Error::new(SqlState::CRASH_SHUTDOWN, "another host has taken the database over")
            .with_detail(format!("This host was its primary in term {}.", self.reign.term.0))
    }

    /// Extents of the database that several hosts may read, and in which this one uses nothing.
    fn unused(&self, database: &Database) -> Result<HashMap<Extent, Owner>> {
        // First what there is: what is published from here on is used.
        let mut unused = shared_extents(&self.member)?;
        for space in database.tablespaces().list().iter().chain([self.groups.space()]) {
            for extent in space.used_extents() {
                unused.remove(&extent);
            }
        }
        Ok(unused)
    }

    /// What was unused before the manifest before was begun, too, and what neither of the two names.
    fn unnamed(
        &self,
        database: &Database,
        state: &State,
        unused: &HashMap<Extent, Owner>,
        before: &InForce,
    ) -> Vec<(Extent, Owner)> {
        let is_named = |extent: &Extent| {
            before.named.contains(extent) || state.in_force.as_ref().is_none_or(|now| now.named.contains(extent))
        };
        let spaces = database.tablespaces().list();
        // One that came to be used meanwhile has been named by something all the time: none is.
        let used: HashSet<Extent> =
            spaces.iter().chain([self.groups.space()]).flat_map(|space| space.used_extents()).collect();
        let was_unused = |extent: &Extent, owner: &Owner| state.unused.get(extent) == Some(owner);
        let goes =
            |extent: &Extent, owner: &Owner| was_unused(extent, owner) && !is_named(extent) && !used.contains(extent);
        unused.iter().filter(|(extent, owner)| goes(extent, owner)).map(|(extent, owner)| (*extent, *owner)).collect()
    }

    /// Gives back what is owed, as far as other hosts let it go. How many extents went.
    fn reclaim(&self, state: &mut State) -> Result<usize> {
        let owed: Vec<_> = state.owed.iter().map(|(extent, owed)| (*extent, *owed)).collect();
        let mut freed = 0;
        for (extent, (owner, since)) in owed {
            if self.member.reclaim(extent, owner, since)? {
                state.owed.remove(&extent);
                freed += 1;
            }
        }
        Ok(freed)
    }

    /// Puts a mark into the log, above all timestamps so far.
    fn mark(&self, database: &Database, generation: Generation) -> Result<()> {
        let marked = database.commit_small(CHECKPOINT, &generation.0.to_le_bytes())?;
        self.log.wait_durable(marked, || Ok(()))
    }

    #[expect(clippy::too_many_arguments, reason = "what is gathered while a manifest is written")]
    fn table(
        &self,
        database: &Database,
        manifest: &mut ManifestWriter,
        table: &TableVersion,
        writes: u64,
        state: &mut State,
        written: &mut HashMap<TableId, Images>,
        run: &mut Run,
    ) -> Result<()> {
        let groups: Vec<RowGroupId> = table.row_groups.iter().map(|group| group.id()).collect();
        let is_same = |images: &&Images| {
            (images.writes, &images.groups) == (table.table().writes_begun(), &groups)
                && images.rows.ptr_eq(&Arc::downgrade(table.rows()))
        };
        let images = match state.images.get(&table.def.id).filter(is_same) {
            Some(known) => known.clone(),
            None => self.images(database, table, writes, groups, run)?,
        };
        manifest.table(table.def.id, table.rows().id(), table.def.columns.len() as u32);
        for ((group, range), made_at) in table.row_groups.iter().zip(table.ranges()).zip(table.made_at()) {
            let places = match state.places.get(&group.id()) {
                Some((known, places)) if std::ptr::eq(known.as_ptr(), Arc::as_ptr(group)) => Arc::clone(places),
                _ => {
                    let places: Arc<[Placed]> = placed(&self.groups.places(group)?)?.into();
                    state.places.insert(group.id(), (Arc::downgrade(group), Arc::clone(&places)));
                    places
                }
            };
            let dead = images.dead.get(range).map_or(&[][..], Vec::as_slice);
            manifest.range(*range, group.id(), group.rows() as u64, made_at, &places, dead)?;
        }
        for (number, rows, place) in &images.images {
            manifest.image(*number, *rows, place)?;
        }
        written.insert(table.def.id, images);
        Ok(())
    }

    fn images(
        &self,
        database: &Database,
        table: &TableVersion,
        writes: u64,
        groups: Vec<RowGroupId>,
        run: &mut Run,
    ) -> Result<Images> {
        let (mut dead, mut images): (BTreeMap<u64, Vec<u64>>, _) = (BTreeMap::new(), Vec::new());
        let mut gone = |row: tidepool_base::RowId| {
            let words = dead.entry(row.range()).or_default();
            let (word, bit) = (row.position() / 64, row.position() % 64);
            if words.len() <= word {
                words.resize(word + 1, 0);
            }
            words[word] |= 1 << bit;
        };
        delta_bytes(table, &mut gone, &mut |rows, write| {
            let number = database.ids.draw_chunk();
            let at = run.add(&write(number)?)?;
            images.push((number, rows, Placed { at, head: 0 }));
            Ok(())
        })?;
        Ok(Images { rows: Arc::downgrade(table.rows()), writes, groups, dead, images })
    }
}

/// All but what tables have in memory.
fn catalogue(database: &Database, version: &DatabaseVersion) -> Result<Vec<u8>> {
    // The timestamp is in the header: what is the same at another time is the same.
    // And what a host has beside the pool is its own.
    let mut saved = Manifest { commit_ts: CommitTs(0), identity: None, log: None, ..database.manifest(CommitTs(0)) };
    saved.tables = version
        .versions()
        .map(|table| SavedTable {
            def: TableDef::clone(&table.def),
            placement: table.placement.clone(),
            store: Some(table.rows().id()),
            row_groups: Vec::new(),
            delta: Vec::new(),
            places: Vec::new(),
            delta_place: None,
        })
        .collect();
    save_catalogue(&mut saved, version);
    saved.transaction_ids = database.transaction_ids.saved(version.view().ts(), database.transactions());
    saved.set_next_ids(database.ids.next());
    serde_json::to_vec(&saved).map_err(|error| Error::internal(format!("the catalogue cannot be written: {error}")))
}
