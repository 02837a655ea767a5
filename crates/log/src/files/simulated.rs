//! Files of a machine that crashes, by a seed. For tests, of other crates too.
//!
//! Each file has two contents: what the process sees, and what the disk holds. A write changes the first; a sync carries it
//! over. [`SimulatedFiles::crash`] lets each sector that was not synced hold any of its contents since the last sync,
//! lets each change to a folder that was not synced be or not be, and leaves files with either length.
//! [`SimulatedFiles::kill`] ends the process only: the system keeps what it has. After both, files that were open answer
//! with an error.

use super::{Files, OpenHow, StoredFile};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

/// What a disk writes as a whole.
pub const SECTOR_BYTES: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    Create,
    Open,
    Rename,
    Remove,
    SyncFolder,
    List,
    Read,
    Write,
    Sync,
    Allocate,
}

/// Errors to come.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub operation: Operation,
    /// So many of these operations go well first.
    pub after: u64,
    /// Then so many fail. `u64::MAX`: all.
    pub times: u64,
    /// With this error of the system, such as `libc::EIO`.
    pub errno: i32,
}

#[derive(Debug, Default)]
struct Inode {
    live: Vec<u8>,
    durable: Vec<u8>,
    /// Contents that a sector had since the last sync, oldest first; the last of them is what `live` holds.
    unsynced: BTreeMap<usize, Vec<Box<[u8]>>>,
    /// Bytes that it takes of the disk.
    room: u64,
}

#[derive(Clone, Debug)]
enum Change {
    Made { path: PathBuf, inode: u64 },
    Renamed { source: PathBuf, target: PathBuf, inode: u64 },
    Removed { path: PathBuf },
}

impl Change {
    fn folder(&self) -> Option<&Path> {
        match self {
            Change::Made { path, .. } | Change::Removed { path } => path.parent(),
            Change::Renamed { target, .. } => target.parent(),
        }
    }

    fn apply(self, names: &mut BTreeMap<PathBuf, u64>) {
        match self {
            Change::Made { path, inode } => _ = names.insert(path, inode),
            Change::Renamed { source, target, inode } => {
                names.remove(&source);
                names.insert(target, inode);
            }
            Change::Removed { path } => _ = names.remove(&path),
        }
    }
}

#[derive(Debug)]
struct State {
    random: u64,
    inodes: BTreeMap<u64, Inode>,
    inode_next: u64,
    names: BTreeMap<PathBuf, u64>,
    durable_names: BTreeMap<PathBuf, u64>,
    folders: BTreeSet<PathBuf>,
    changes: Vec<Change>,
    capacity: u64,
    faults: Vec<Fault>,
    is_unsteady: bool,
    /// Files that were opened before a crash are of an earlier one.
    life: u64,
}

/// A disk and its file system. Clones share it.
#[derive(Clone, Debug)]
pub struct SimulatedFiles(Arc<Mutex<State>>);

impl SimulatedFiles {
    pub fn new(seed: u64) -> SimulatedFiles {
        SimulatedFiles(Arc::new(Mutex::new(State {
            random: seed,
            inodes: BTreeMap::new(),
            inode_next: 1,
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            folders: BTreeSet::from([PathBuf::from("/")]),
            changes: Vec::new(),
            capacity: u64::MAX,
            faults: Vec::new(),
            is_unsteady: false,
            life: 0,
        })))
    }

    /// Bytes that the disk holds. What is there stays there.
    pub fn set_capacity(&self, bytes: u64) {
        self.state().capacity = bytes;
    }

    /// Bytes that files take.
    pub fn used_bytes(&self) -> u64 {
        self.state().used_bytes()
    }

    /// From now on reads and writes are interrupted, or do less than they were asked for, now and then.
    pub fn set_unsteady(&self, is_unsteady: bool) {
        self.state().is_unsteady = is_unsteady;
    }

    pub fn inject(&self, fault: Fault) {
        self.state().faults.push(fault);
    }

    pub fn clear_faults(&self) {
        self.state().faults.clear();
    }

    /// The machine loses power and starts again.
    pub fn crash(&self) {
        let mut state = self.state();
        state.life += 1;
        for change in std::mem::take(&mut state.changes) {
            if state.chance(2) {
                change.apply(&mut state.durable_names);
            }
        }
        state.names = state.durable_names.clone();
        let kept: BTreeSet<u64> = state.names.values().copied().collect();
        let mut inodes = std::mem::take(&mut state.inodes);
        inodes.retain(|inode, _| kept.contains(inode));
        for inode in inodes.values_mut() {
            let len = if state.chance(2) { inode.live.len() } else { inode.durable.len() };
            inode.durable.resize(len, 0);
            for (sector, contents) in std::mem::take(&mut inode.unsynced) {
                let Some(content) = contents.get(state.below(contents.len() as u64 + 1) as usize) else { continue };
                let start = sector * SECTOR_BYTES;
                let end = (start + content.len()).min(len);
                if start < end {
                    inode.durable[start..end].copy_from_slice(&content[..end - start]);
                }
            }
            inode.live.clone_from(&inode.durable);
        }
        state.inodes = inodes;
    }

    /// The process ends, and another one starts.
    pub fn kill(&self) {
        self.state().life += 1;
    }

    /// Changes bytes that are at rest.
    pub fn damage(&self, path: &Path, offset: usize, change: impl FnOnce(&mut u8)) {
        let mut state = self.state();
        let inode = state.names.get(path).copied().expect("a file of that name");
        let inode = state.inodes.get_mut(&inode).expect("names lead to files");
        change(&mut inode.live[offset]);
        inode.durable.resize(inode.live.len(), 0);
        inode.durable[offset] = inode.live[offset];
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn handle(&self, state: &State, inode: u64) -> Arc<dyn StoredFile> {
        Arc::new(SimulatedFile { files: self.clone(), inode, life: state.life })
    }
}

impl State {
    /// SplitMix64.
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random() % end
    }

    fn chance(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    fn used_bytes(&self) -> u64 {
        self.inodes.values().map(|inode| inode.room).sum()
    }

    fn fault(&mut self, operation: Operation) -> io::Result<()> {
        for fault in self.faults.iter_mut().filter(|fault| fault.operation == operation) {
            if fault.after > 0 {
                fault.after -= 1;
            } else if fault.times > 0 {
                fault.times -= u64::from(fault.times != u64::MAX);
                return Err(io::Error::from_raw_os_error(fault.errno));
            }
        }
        Ok(())
    }

    /// Gives a file room up to `end`, or as far as there is any. Returns how far that is.
    fn grow_room(&mut self, inode: u64, end: u64) -> u64 {
        let free = self.capacity.saturating_sub(self.used_bytes());
        let inode = self.inodes.get_mut(&inode).expect("an open file is there");
        inode.room = inode.room.max(end.min(inode.room.saturating_add(free)));
        end.min(inode.room)
    }

    fn forget_unnamed(&mut self) {
        // A removed file that was not synced away may be back after a crash.
        let named: BTreeSet<u64> = self.names.values().chain(self.durable_names.values()).copied().collect();
        let unnamed = |change: &Change| match change {
            Change::Made { inode, .. } | Change::Renamed { inode, .. } => Some(*inode),
            Change::Removed { .. } => None,
        };
        let pending: BTreeSet<u64> = self.changes.iter().filter_map(unnamed).collect();
        self.inodes.retain(|inode, _| named.contains(inode) || pending.contains(inode));
    }
}

impl Files for SimulatedFiles {
    fn create(&self, path: &Path, _how: OpenHow) -> io::Result<Arc<dyn StoredFile>> {
        let mut state = self.state();
        state.fault(Operation::Create)?;
        if !path.parent().is_some_and(|folder| state.folders.contains(folder)) {
            return Err(io::ErrorKind::NotFound.into());
        }
        if state.names.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let inode = state.inode_next;
        state.inode_next += 1;
        state.inodes.insert(inode, Inode::default());
        state.names.insert(path.to_owned(), inode);
        state.changes.push(Change::Made { path: path.to_owned(), inode });
        Ok(self.handle(&state, inode))
    }

    fn open(&self, path: &Path, _how: OpenHow) -> io::Result<Arc<dyn StoredFile>> {
        let mut state = self.state();
        state.fault(Operation::Open)?;
        let inode = *state.names.get(path).ok_or(io::ErrorKind::NotFound)?;
        Ok(self.handle(&state, inode))
    }

    fn rename(&self, source: &Path, target: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.fault(Operation::Rename)?;
        let inode = *state.names.get(source).ok_or(io::ErrorKind::NotFound)?;
        let change = Change::Renamed { source: source.to_owned(), target: target.to_owned(), inode };
        change.clone().apply(&mut state.names);
        state.changes.push(change);
        state.forget_unnamed();
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.fault(Operation::Remove)?;
        state.names.remove(path).ok_or(io::ErrorKind::NotFound)?;
        state.changes.push(Change::Removed { path: path.to_owned() });
        state.forget_unnamed();
        Ok(())
    }

    fn create_folder(&self, path: &Path) -> io::Result<()> {
        // Durable at once: losing folders would be another story than losing what is in them.
        self.state().folders.insert(path.to_owned());
        Ok(())
    }

    fn sync_folder(&self, path: &Path) -> io::Result<()> {
        let mut state = self.state();
        state.fault(Operation::SyncFolder)?;
        if !state.folders.contains(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let changes = std::mem::take(&mut state.changes);
        for change in changes {
            if change.folder() == Some(path) {
                change.apply(&mut state.durable_names);
            } else {
                state.changes.push(change);
            }
        }
        state.forget_unnamed();
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let mut state = self.state();
        state.fault(Operation::List)?;
        if !state.folders.contains(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let inside = state.names.keys().filter(|name| name.parent() == Some(path));
        Ok(inside.filter_map(|name| Some(name.file_name()?.to_str()?.to_owned())).collect())
    }
}

#[derive(Debug)]
struct SimulatedFile {
    files: SimulatedFiles,
    inode: u64,
    life: u64,
}

impl SimulatedFile {
    /// The disk, if this file is of the process that runs and no fault is due.
    fn at(&self, operation: Option<Operation>) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.files.state();
        if state.life != self.life || !state.inodes.contains_key(&self.inode) {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        if let Some(operation) = operation {
            if matches!(operation, Operation::Read | Operation::Write) && state.is_unsteady && state.chance(8) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            if let Err(error) = state.fault(operation) {
                if operation == Operation::Sync {
                    self.lose_some(&mut state);
                }
                return Err(error);
            }
        }
        Ok(state)
    }

    /// What a failed sync does: the system forgets that some sectors are not on the disk.
    fn lose_some(&self, state: &mut State) {
        let unsynced = std::mem::take(&mut state.inodes.get_mut(&self.inode).expect("checked").unsynced);
        for (sector, contents) in unsynced {
            let kept = state.chance(2);
            let inode = state.inodes.get_mut(&self.inode).expect("checked");
            if let Some(content) = contents.last().filter(|_| kept) {
                carry_over(inode, sector, content);
            }
        }
    }
}

fn carry_over(inode: &mut Inode, sector: usize, content: &[u8]) {
    let start = sector * SECTOR_BYTES;
    let end = start + content.len();
    if inode.durable.len() < end {
        inode.durable.resize(end, 0);
    }
    inode.durable[start..end].copy_from_slice(content);
}

impl StoredFile for SimulatedFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.at(None)?.inodes[&self.inode].live.len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.at(None)?;
        let inode = state.inodes.get_mut(&self.inode).expect("checked");
        inode.live.resize(len as usize, 0);
        inode.unsynced.retain(|sector, _| sector * SECTOR_BYTES < len as usize);
        inode.room = inode.room.min(len);
        Ok(())
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let mut state = self.at(Some(Operation::Allocate))?;
        if state.grow_room(self.inode, len) < len {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let inode = state.inodes.get_mut(&self.inode).expect("checked");
        if inode.live.len() < len as usize {
            inode.live.resize(len as usize, 0);
        }
        Ok(())
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        let mut state = self.at(Some(Operation::Read))?;
        let wanted = match bytes.len() as u64 {
            len if state.is_unsteady && len > 1 && state.chance(4) => 1 + state.below(len - 1),
            len => len,
        };
        let live = &state.inodes[&self.inode].live;
        let start = (offset as usize).min(live.len());
        let end = start.saturating_add(wanted as usize).min(live.len());
        bytes[..end - start].copy_from_slice(&live[start..end]);
        Ok(end - start)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.at(Some(Operation::Write))?;
        let wanted = match bytes.len() as u64 {
            len if state.is_unsteady && len > 1 && state.chance(4) => 1 + state.below(len - 1),
            len => len,
        };
        let end = state.grow_room(self.inode, offset + wanted);
        if end <= offset && wanted > 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let (start, end) = (offset as usize, end as usize);
        let inode = state.inodes.get_mut(&self.inode).expect("checked");
        if inode.live.len() < end {
            inode.live.resize(end, 0);
        }
        inode.live[start..end].copy_from_slice(&bytes[..end - start]);
        for sector in start / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES) {
            let from = sector * SECTOR_BYTES;
            let content = inode.live[from..(from + SECTOR_BYTES).min(inode.live.len())].into();
            inode.unsynced.entry(sector).or_default().push(content);
        }
        Ok(end - start)
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.at(Some(Operation::Sync))?;
        let inode = state.inodes.get_mut(&self.inode).expect("checked");
        inode.durable.resize(inode.live.len(), 0);
        for (sector, contents) in std::mem::take(&mut inode.unsynced) {
            if let Some(content) = contents.last() {
                carry_over(inode, sector, content);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(files: &SimulatedFiles) -> Arc<dyn StoredFile> {
        let file = files.create(Path::new("/a"), OpenHow::default()).unwrap();
        file.allocate(2048).unwrap();
        file
    }

    #[test]
    fn what_was_synced_is_there_and_the_rest_may_be() {
        let (mut kept, mut lost, mut torn, mut unnamed) = (0, 0, 0, 0);
        for seed in 0..if cfg!(miri) { 30 } else { 200 } {
            let files = SimulatedFiles::new(seed);
            let first = file(&files);
            first.write_all_at(0, &[1; 512]).unwrap();
            first.sync_data().unwrap();
            if seed % 2 == 0 {
                files.sync_folder(Path::new("/")).unwrap();
            }
            first.write_all_at(512, &[2; 1024]).unwrap();
            files.crash();
            assert!(first.len().is_err(), "an open file of before the crash");
            let Ok(content) = files.read(Path::new("/a")) else {
                assert!(seed % 2 == 1, "a synced name is gone");
                unnamed += 1;
                continue;
            };
            assert_eq!(content[..512], [1; 512]);
            match (content[512], content[1024]) {
                (2, 2) => kept += 1,
                (0, 0) => lost += 1,
                _ => torn += 1,
            }
        }
        assert!(kept > 0 && lost > 0 && torn > 0 && unnamed > 0, "{kept} {lost} {torn} {unnamed}");
    }

    #[test]
    fn a_killed_process_loses_nothing_that_it_wrote() {
        let files = SimulatedFiles::new(1);
        file(&files).write_all_at(0, &[3; 700]).unwrap();
        files.kill();
        assert_eq!(files.read(Path::new("/a")).unwrap()[..700], [3; 700]);
    }

    #[test]
    fn a_failed_sync_is_not_mended_by_another() {
        let mut forgotten = 0;
        for seed in 0..if cfg!(miri) { 10 } else { 50 } {
            let files = SimulatedFiles::new(seed);
            let file = file(&files);
            file.sync_data().unwrap();
            files.sync_folder(Path::new("/")).unwrap();
            files.inject(Fault { operation: Operation::Sync, after: 0, times: 1, errno: libc::EIO });
            file.write_all_at(0, &[4; 512]).unwrap();
            assert_eq!(file.sync_data().unwrap_err().raw_os_error(), Some(libc::EIO));
            file.sync_data().unwrap();
            files.crash();
            forgotten += usize::from(files.read(Path::new("/a")).unwrap()[0] == 0);
        }
        assert!(forgotten > 0);
    }

    #[test]
    fn a_full_disk_says_so_and_room_that_was_reserved_stays() {
        let files = SimulatedFiles::new(1);
        files.set_capacity(4096);
        let first = file(&files);
        let second = files.create(Path::new("/b"), OpenHow::default()).unwrap();
        assert_eq!(second.allocate(4096).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(files.used_bytes(), 4096, "as far as there was room");
        first.write_all_at(0, &[1; 2048]).unwrap();
        assert!(first.write_all_at(2048, &[1; 1]).is_err());
        drop(second);
        files.remove(Path::new("/b")).unwrap();
        files.sync_folder(Path::new("/")).unwrap();
        first.write_all_at(2048, &[1; 1]).unwrap();
    }
}
