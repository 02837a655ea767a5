//! The second tier: the log of a pool in files, block for block.
//!
//! The files have the blocks at the places that they have in the pool, in segments of the same numbers, whose names say the term.
//! Only blocks that are part of the log for good are copied ([`Blocks`]), so that there is never one behind a seal, unless
//! another program put it there. Where a term ended is in the header of the next term's first segment, which is durable
//! before a block of that term is written: whoever reads the files looks for that before deciding where a term ended.

use crate::blocks::{Block, Blocks, Came, Cursor, Source, Verdict, read_header};
use crate::device::LogSegment;
use crate::file_device::{AlignedBuffer, FileSegment, fill, name_in_term, number_of_term};
use crate::files::{Files, OpenHow, StoredFile};
use crate::format::{DatabaseIdentity, SEGMENT_HEADER_BYTES};
use crate::room::lock;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tidepool_base::{CommitTs, Error, Result, crash_point};

/// How often the files catch up when nobody waits for it, and how often one who waits looks whether to give up.
const INTERVAL: Duration = Duration::from_millis(20);

/// The segments of terms in a folder, to be read.
#[derive(Clone, Debug)]
pub struct FileSource {
    files: Arc<dyn Files>,
    folder: PathBuf,
    segment_bytes: usize,
    identity: DatabaseIdentity,
}

impl FileSource {
    /// Segments of `segment_bytes`, which are those of the pool, in `folder`, which is made if its parent is there.
    pub fn open(
        files: Arc<dyn Files>,
        folder: &Path,
        segment_bytes: usize,
        identity: DatabaseIdentity,
    ) -> Result<FileSource> {
        let shown = folder.display();
        files.create_folder(folder).map_err(|error| Error::io(format_args!("create folder \"{shown}\""), &error))?;
        let source = FileSource { files, folder: folder.to_owned(), segment_bytes, identity };
        for folder in folder.parent().filter(|parent| !parent.as_os_str().is_empty()).into_iter().chain([folder]) {
            source.sync_folder(folder)?;
        }
        Ok(source)
    }

    fn sync_folder(&self, folder: &Path) -> Result<()> {
        let shown = folder.display();
        self.files.sync_folder(folder).map_err(|error| Error::io(format_args!("sync folder \"{shown}\""), &error))
    }

    fn path(&self, term: u64, number: u64) -> PathBuf {
        self.folder.join(name_in_term(term, number))
    }

    /// Term and number of each file.
    fn list(&self) -> Result<BTreeSet<(u64, u64)>> {
        let shown = self.folder.display();
        let names = self
            .files
            .list(&self.folder)
            .map_err(|error| Error::io(format_args!("read folder \"{shown}\""), &error))?;
        Ok(names.iter().filter_map(|name| number_of_term(name)).collect())
    }

    /// The first file of each later term.
    fn later(&self, term: u64) -> Result<Vec<(u64, u64)>> {
        let mut firsts: Vec<(u64, u64)> = Vec::new();
        for (of, number) in self.list()?.into_iter().filter(|(of, _)| *of > term) {
            if firsts.last().is_none_or(|(last, _)| *last < of) {
                firsts.push((of, number));
            }
        }
        Ok(firsts)
    }

    /// The oldest segment that is there and begun, with its term.
    pub fn oldest(&self) -> Result<Option<(u64, u64)>> {
        for (term, number) in self.list()? {
            if let Some(segment) = self.segment(term, number)?
                && read_header(self, &*segment, self.identity, term, number)?.is_some()
            {
                return Ok(Some((term, number)));
            }
        }
        Ok(None)
    }

    /// The file of a segment, full of zeroes if it was not there.
    fn create(&self, term: u64, number: u64) -> Result<Arc<dyn StoredFile>> {
        let path = self.path(term, number);
        let failed = |error: io::Error| Error::io(format_args!("create log segment \"{}\"", path.display()), &error);
        let file = match self.files.create(&path, OpenHow::default()) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let file = self.files.open(&path, OpenHow::default()).map_err(failed)?;
                if file.len().map_err(failed)? == self.segment_bytes as u64 {
                    return Ok(file);
                }
                file
            }
            made => made.map_err(failed)?,
        };
        fill(&*file, self.segment_bytes).map_err(failed)?;
        self.sync_folder(&self.folder)?;
        Ok(file)
    }
}

impl Source for FileSource {
    fn name(&self) -> String {
        format!("folder \"{}\"", self.folder.display())
    }

    fn segment_bytes(&self) -> usize {
        self.segment_bytes
    }

    fn segment(&self, term: u64, number: u64) -> Result<Option<Arc<dyn LogSegment>>> {
        let path = self.path(term, number);
        let name = path.display().to_string();
        match self.files.open(&path, OpenHow::default()) {
            Ok(file) => Ok(Some(Arc::new(FileSegment { file, name }))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(format_args!("open log segment \"{name}\""), &error)),
        }
    }

    fn next_numbers(&self, term: u64, number: u64) -> Result<Vec<u64>> {
        let next = self.list()?.range((term, number + 1)..(term + 1, 0)).next().copied();
        Ok(next.map(|(_, number)| number).into_iter().collect())
    }

    fn next_terms(&self, term: u64) -> Result<Vec<(u64, u64)>> {
        self.later(term)
    }

    /// What is in files was part of the log for good when it was copied, unless a later term says that it ended before.
    fn verdict(&self, term: u64, _: u64) -> Result<Verdict> {
        for (of, number) in self.later(term)? {
            if let Some(segment) = self.segment(of, number)?
                && let Some(header) = read_header(self, &*segment, self.identity, of, number)?
                && header.previous_term == term
            {
                return Ok(Verdict::Ended(Some(header.previous_end)));
            }
        }
        Ok(Verdict::Settled)
    }
}

/// Copies a log into files.
#[derive(Debug)]
pub struct Tee<S> {
    blocks: Blocks<S>,
    files: FileSource,
    current: Option<Arc<dyn StoredFile>>,
    current_path: PathBuf,
    is_unsynced: bool,
    /// The greatest floor that a block names which was copied.
    copied: CommitTs,
    /// Everything up to here is in the files, durably.
    durable: CommitTs,
}

impl<S: Source> Tee<S> {
    /// Copies from the start of segment `number` of `term` on, or all of the log. What is there already is written again.
    pub fn open(source: S, files: FileSource, from: Option<(u64, u64)>) -> Tee<S> {
        let cursor = match from {
            Some((term, number)) => Cursor::before_segment(files.identity, term, number),
            None => Cursor::at_start(files.identity),
        };
        Tee {
            blocks: Blocks::new(source, cursor),
            files,
            current: None,
            current_path: PathBuf::new(),
            is_unsynced: false,
            copied: CommitTs(0),
            durable: CommitTs(0),
        }
    }

    pub fn durable(&self) -> CommitTs {
        self.durable
    }

    /// The first segment that the copy needs of the log.
    pub fn needed_from(&self) -> u64 {
        self.blocks.cursor.number
    }

    /// Copies what is new, and makes it durable. False: there was nothing.
    pub fn step(&mut self) -> Result<bool> {
        if self.blocks.read()? != Came::Blocks {
            return Ok(false);
        }
        for index in 0..self.blocks.blocks.len() {
            let block = self.blocks.blocks[index].clone();
            self.copy(&block)?;
        }
        self.sync()?;
        Ok(true)
    }

    fn copy(&mut self, block: &Block) -> Result<()> {
        if let Some(header) = block.begins {
            // What is before it is durable first; and with the header of a term the seal of the one before is.
            self.sync()?;
            let file = self.files.create(block.term, block.number)?;
            self.current_path = self.files.path(block.term, block.number);
            let mut page = AlignedBuffer::zeroed(SEGMENT_HEADER_BYTES);
            header.write(page.bytes_mut());
            file.write_all_at(0, page.bytes()).map_err(|error| self.failed(&error))?;
            self.current = Some(file);
            self.is_unsynced = true;
            self.sync()?;
            crash_point("log.tee.header");
        }
        let Some(file) = &self.current else { return Err(Error::internal("a block has no segment")) };
        let bytes = &self.blocks.buffer[block.range.clone()];
        let offset = block.header.position.offset() as u64;
        file.write_all_at(offset, bytes).map_err(|error| self.failed(&error))?;
        self.is_unsynced = true;
        self.copied = self.copied.max(block.header.floor);
        crash_point("log.tee.block");
        Ok(())
    }

    fn failed(&self, error: &io::Error) -> Error {
        Error::io(format_args!("write log segment \"{}\"", self.current_path.display()), error)
    }

    fn sync(&mut self) -> Result<()> {
        if let Some(file) = &self.current
            && self.is_unsynced
        {
            file.sync_data().map_err(|error| self.failed(&error))?;
            self.is_unsynced = false;
        }
        self.durable = self.copied;
        Ok(())
    }

    /// Removes the files of segments before `number`: a checkpoint of the folder has what is in them.
    pub fn remove_before(&mut self, number: u64) -> Result<()> {
        let number = number.min(self.blocks.cursor.number);
        let gone: Vec<_> = self.files.list()?.into_iter().filter(|(_, of)| *of < number).collect();
        for (term, number) in &gone {
            let path = self.files.path(*term, *number);
            match self.files.files.remove(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                removed => removed
                    .map_err(|error| Error::io(format_args!("remove log segment \"{}\"", path.display()), &error))?,
            }
            // One at a time and the oldest first: a crash leaves no gap.
            self.files.sync_folder(&self.files.folder)?;
        }
        Ok(())
    }
}

/// A thread that copies the log, and those who wait for it (`synchronous_commit = on`).
#[derive(Debug)]
pub struct TeeWriter {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    durable: AtomicU64,
    /// Files of segments before it go.
    remove_before: AtomicU64,
    needed_from: AtomicU64,
    is_stopped: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
    wanted: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiters: usize,
    failure: Option<Error>,
}

impl TeeWriter {
    pub fn start<S: Source + 'static>(mut tee: Tee<S>) -> Result<TeeWriter> {
        let shared = Arc::<Shared>::default();
        let of_thread = shared.clone();
        let run = move || {
            if let Err(error) = of_thread.copy(&mut tee) {
                tracing::error!(%error, "the log's files are not written any more");
                lock(&of_thread.state).failure = Some(error);
                of_thread.changed.notify_all();
            }
        };
        let thread = std::thread::Builder::new()
            .name("log-tee".to_owned())
            .spawn(run)
            .map_err(|error| Error::io("start the log's thread", &error))?;
        Ok(TeeWriter { shared, thread: Some(thread) })
    }

    /// Everything up to here is in the files.
    pub fn durable(&self) -> CommitTs {
        CommitTs(self.shared.durable.load(Ordering::Acquire))
    }

    /// The first segment that the copy needs of the log.
    pub fn needed_from(&self) -> u64 {
        self.shared.needed_from.load(Ordering::Acquire)
    }

    /// Why nothing is copied any more, if that is so.
    pub fn failure(&self) -> Option<Error> {
        lock(&self.shared.state).failure.clone()
    }

    /// Has the files of segments before `number` removed, when the copy is past them.
    pub fn remove_before(&self, number: u64) {
        self.shared.remove_before.fetch_max(number, Ordering::AcqRel);
    }

    /// Waits until everything up to `ts`, which is durable in the pool, is in the files. `interrupted` is asked now and then, and
    /// its error ends the wait.
    pub fn wait(&self, ts: CommitTs, interrupted: impl Fn() -> Result<()>) -> Result<()> {
        if self.durable() >= ts {
            return Ok(());
        }
        let mut state = lock(&self.shared.state);
        state.waiters += 1;
        self.shared.wanted.notify_all();
        let outcome = loop {
            if self.durable() >= ts {
                break Ok(());
            }
            if let Some(failure) = &state.failure {
                break Err(failure.clone());
            }
            // Spurious wake-ups do no harm.
            let waited = self.shared.changed.wait_timeout(state, INTERVAL);
            state = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
            if let Err(error) = interrupted() {
                break Err(error);
            }
        };
        state.waiters -= 1;
        outcome
    }
}

impl Shared {
    fn copy<S: Source>(&self, tee: &mut Tee<S>) -> Result<()> {
        let mut removed = 0;
        while !self.is_stopped.load(Ordering::Acquire) {
            let is_new = tee.step()?;
            self.needed_from.store(tee.needed_from(), Ordering::Release);
            let remove_before = self.remove_before.load(Ordering::Acquire);
            if remove_before > removed {
                tee.remove_before(remove_before)?;
                removed = remove_before;
            }
            let state = lock(&self.state);
            if is_new {
                // Under the lock, so that nobody sleeps who need not.
                self.durable.store(tee.durable().0, Ordering::Release);
                drop(state);
                self.changed.notify_all();
            } else if !self.is_stopped.load(Ordering::Acquire) {
                // What is waited for is in the pool, and found at the next step, unless the term's end is awaited.
                let time = if state.waiters == 0 { INTERVAL } else { INTERVAL / 20 };
                drop(self.wanted.wait_timeout(state, time));
            }
        }
        // What was written before it was stopped, too.
        while tee.step()? {}
        self.durable.store(tee.durable().0, Ordering::Release);
        Ok(())
    }
}

impl Drop for TeeWriter {
    fn drop(&mut self) {
        {
            let _state = lock(&self.shared.state);
            self.shared.is_stopped.store(true, Ordering::Release);
        }
        self.shared.wanted.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of it has been told by its hook.
            let _ = thread.join();
        }
    }
}
