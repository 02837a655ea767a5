//! The second tier: the log of a pool in files, block for block.
//!
//! The files have the blocks at the places that they have in the pool, in segments of the same numbers, whose names say the term.
//! Only blocks that are part of the log for good are copied ([`Blocks`]), so that there is never one behind a seal, unless
//! another program put it there. Where a term ended is in the header of the next term's first segment, which is durable
//! before a block of that term is written: whoever reads the files looks for that before deciding where a term ended.

use crate::blocks::{Block, Blocks, Came, Cursor, Source, Verdict, damaged, read_header};
use crate::device::LogSegment;
use crate::file_device::{AlignedBuffer, FileSegment, fill, name_in_term, number_of_term};
use crate::files::{Files, OpenHow, StoredFile};
use crate::format::{BLOCK_ALIGNMENT, DatabaseIdentity, LogPosition, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::room::lock;
use crate::tail::Tail;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tidepool_base::{CommitTs, Error, Result, SqlState, crash_point};

/// How long after a failure of the files it is tried again.
const RETRY: Duration = Duration::from_millis(200);

/// How often the files catch up when nobody waits for it, and how often one who waits looks whether to give up.
const INTERVAL: Duration = Duration::from_millis(20);

/// The segments of terms in a folder, to be read.
#[derive(Clone, Debug)]
pub struct FileSource {
    files: Arc<dyn Files>,
    folder: PathBuf,
    segment_bytes: usize,
    identity: DatabaseIdentity,
    /// Files are as long as what they have.
    is_archive: bool,
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
        let source = FileSource { files, folder: folder.to_owned(), segment_bytes, identity, is_archive: false };
        for folder in folder.parent().filter(|parent| !parent.as_os_str().is_empty()).into_iter().chain([folder]) {
            source.sync_folder(folder)?;
        }
        Ok(source)
    }

    /// As they are in `folder`, which is there, to be read alone: nothing is made.
    pub fn of(files: Arc<dyn Files>, folder: &Path, segment_bytes: usize, identity: DatabaseIdentity) -> FileSource {
        FileSource { files, folder: folder.to_owned(), segment_bytes, identity, is_archive: false }
    }

    /// Its files are as long as what they have.
    pub(crate) fn into_archive(self, segment_bytes: usize) -> FileSource {
        FileSource { segment_bytes, is_archive: true, ..self }
    }

    pub(crate) fn files(&self) -> &Arc<dyn Files> {
        &self.files
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(crate) fn identity(&self) -> DatabaseIdentity {
        self.identity
    }

    pub(crate) fn sync_folder(&self, folder: &Path) -> Result<()> {
        let shown = folder.display();
        self.files.sync_folder(folder).map_err(|error| Error::io(format_args!("sync folder \"{shown}\""), &error))
    }

    pub(crate) fn path(&self, term: u64, number: u64) -> PathBuf {
        self.folder.join(name_in_term(term, number))
    }

    /// Term and number of each file.
    pub(crate) fn list(&self) -> Result<BTreeSet<(u64, u64)>> {
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

    /// The oldest segment that has a block, with its term.
    pub fn oldest(&self) -> Result<Option<(u64, u64)>> {
        for (term, number) in self.list()? {
            let mut cursor = Cursor::before_segment(self.identity, term, number);
            if cursor.next(self, None, &mut Vec::new())?.is_some() {
                return Ok(Some((term, number)));
            }
        }
        Ok(None)
    }

    /// Where the log in the files ends. `None`: there is none.
    pub fn end(&self) -> Result<Option<FilesEnd>> {
        for (term, number) in self.list()?.into_iter().rev() {
            let mut cursor = Cursor::before_segment(self.identity, term, number);
            let (mut buffer, mut floor) = (Vec::new(), CommitTs(0));
            while let Some(block) = cursor.next(self, None, &mut buffer)? {
                floor = floor.max(block.header.floor);
                buffer.clear();
            }
            if cursor.is_within() {
                return Ok(Some(FilesEnd { term, end: cursor.position(), chain: cursor.chain, floor }));
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
                if self.is_archive || file.len().map_err(failed)? == self.segment_bytes as u64 {
                    // Whether its name is durable nobody knows.
                    self.sync_folder(&self.folder)?;
                    return Ok(file);
                }
                file
            }
            made => made.map_err(failed)?,
        };
        if !self.is_archive {
            fill(&*file, self.segment_bytes).map_err(failed)?;
        }
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

    fn next_numbers(&self, term: u64, number: u64, _: bool) -> Result<Vec<u64>> {
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

    fn too_old(&self, term: u64) -> Error {
        Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("the log of term {term} is not in {} any more", self.name()),
        )
    }
}

impl Tail<FileSource> {
    /// Forgets which file it reads at its place: another one may have been put under that name, with more in it. Nothing changes where
    /// there is no such file any more.
    pub fn look_again(&mut self) -> Result<()> {
        let cursor = self.cursor();
        if cursor.is_within()
            && let Some(segment) = self.source().segment(cursor.term, cursor.number)?
        {
            self.set_segment(segment);
        }
        Ok(())
    }

    /// XX001 if the files have a block behind the place that the reader has come to, which found no more: what is between is
    /// damaged or missing.
    pub fn check_end(&self) -> Result<()> {
        let (cursor, source) = (self.cursor(), self.source());
        cursor.check_end(source)?;
        let here = match cursor.is_within() {
            true => (cursor.term, cursor.position()),
            // Of the segment from which on it was to read there is nothing yet.
            false => (cursor.term, LogPosition::new(cursor.number, 0)),
        };
        match source.end()? {
            Some(end) if (end.term, end.end) > here => Err(damaged(source, here.0, here.1)
                .with_detail(format!("There is no valid record there, and the log goes on up to {}.", end.end))),
            _ => Ok(()),
        }
    }
}

/// Where the log in files ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilesEnd {
    /// Of the last block.
    pub term: u64,
    pub end: LogPosition,
    chain: u64,
    /// Everything up to here is in the files, above what the checkpoint has from which they go on.
    pub floor: CommitTs,
}

/// Copies a log into files.
#[derive(Debug)]
pub struct Tee<S> {
    blocks: Blocks<S>,
    files: FileSource,
    current: Option<Arc<dyn StoredFile>>,
    current_path: PathBuf,
    is_unsynced: bool,
    /// The segment that is being copied, with its term.
    copying: Option<(u64, u64)>,
    /// The segment in which the last block is that is durable in the files: one that failed goes on from there.
    again_from: Option<(u64, u64)>,
    /// The first segment that this copy has.
    begins: Option<(u64, u64)>,
    /// The files are the log from a checkpoint in their folder on, without a gap.
    is_complete: bool,
    /// Where the last block ended that was copied, and that is durable in the files.
    copied_end: LogPosition,
    durable_end: LogPosition,
    /// The greatest floor that a block names which was copied.
    copied: CommitTs,
    /// Everything up to here is in the files, durably.
    durable: CommitTs,
}

impl<S: Source> Tee<S> {
    /// Goes on where the files end, if the log has that place; chains of checksums say so, and a pool that was made anew
    /// has another one. Otherwise it copies from the start of segment `number` of `term` on, or all of the log. Then it is
    /// [not complete](Tee::is_complete), unless there were no files. 55000 where files of the same or later terms are there
    /// that are not of this log: nothing says then which of two segments of one name is which.
    pub fn open(source: S, files: FileSource, from: Option<(u64, u64)>) -> Result<Tee<S>> {
        let end = files.end()?;
        let goes_on = match &end {
            Some(end) => Tee::goes_on(&source, &files, end, from)?,
            None => None,
        };
        let newest = files.list()?.last().map_or(0, |(term, _)| *term);
        if goes_on.is_none() && end.is_some() && !Tee::is_behind(&source, &files, newest, from)? {
            return Err(Error::new(
                SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!("the log in folder \"{}\" is not the one in {}", files.folder.display(), source.name()),
            )
            .with_detail(format!("The folder has it up to term {newest}, and {} has another one.", source.name()))
            .with_hint("Give the database an empty folder, or make it in the pool with later terms than those."));
        }
        let is_complete = goes_on.is_some() || end.is_none() && from.is_none();
        Ok(Tee::begin(source, files, end.filter(|_| goes_on.is_some()), goes_on.or(from), is_complete))
    }

    /// Goes on where an archive ends. Where the log does not go back to that place any more, the archive has a gap there, and goes
    /// on from segment `from`, a term and number; `None`: the log is there from its beginning on. 55000 where the archive has what the log has not: it is another one's.
    pub fn archive(source: S, files: FileSource, from: Option<(u64, u64)>) -> Result<Tee<S>> {
        let end = files.end()?;
        let goes_on = match &end {
            Some(end) => Tee::goes_on(&source, &files, end, from)?,
            None => None,
        };
        if let (Some(end), None) = (&end, goes_on) {
            let last = (end.term, end.end.segment());
            if from.is_none_or(|from| from <= last) {
                return Err(Error::new(
                    SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
                    format!("the archive in folder \"{}\" is not of this log", files.folder.display()),
                )
                .with_detail(format!(
                    "It has the log up to {} of term {}, and {} has another one there.",
                    end.end,
                    end.term,
                    source.name()
                ))
                .with_hint("Was the data folder copied, or brought back from such a copy? Name another folder."));
            }
            tracing::warn!(
                "the archive in folder \"{}\" has a gap from segment {} on: make a backup",
                files.folder.display(),
                last.1
            );
        }
        Ok(Tee::begin(source, files, end.filter(|_| goes_on.is_some()), goes_on.or(from), true))
    }

    /// Copies from segment `begins` on, a term and number, or all of the log. `end`: what the files have already, if that goes on.
    fn begin(
        source: S,
        files: FileSource,
        end: Option<FilesEnd>,
        begins: Option<(u64, u64)>,
        is_complete: bool,
    ) -> Tee<S> {
        let cursor = match begins {
            Some((term, number)) => Cursor::before_segment(files.identity, term, number),
            None => Cursor::at_start(files.identity),
        };
        let (durable, durable_end) = end.map_or((CommitTs(0), LogPosition::default()), |end| (end.floor, end.end));
        Tee {
            blocks: Blocks::new(source, cursor),
            files,
            current: None,
            current_path: PathBuf::new(),
            is_unsynced: false,
            copying: None,
            again_from: begins,
            begins,
            is_complete,
            copied_end: durable_end,
            durable_end,
            copied: durable,
            durable,
        }
    }

    /// The segment that the last block is in which is durable in the files, with its term.
    pub(crate) fn last_segment(&self) -> Option<(u64, u64)> {
        self.again_from
    }

    pub(crate) fn source_name(&self) -> String {
        self.blocks.source.name()
    }

    pub(crate) fn source_files(&self) -> &FileSource {
        &self.files
    }

    /// No header of the log that is copied names a term up to `newest`.
    fn is_behind(source: &S, files: &FileSource, newest: u64, from: Option<(u64, u64)>) -> Result<bool> {
        let first = match from {
            Some(from) => Some(from),
            None => source.next_terms(0)?.first().copied(),
        };
        let Some((term, number)) = first else { return Ok(false) };
        let Some(segment) = source.segment(term, number)? else { return Ok(false) };
        let header = read_header(source, &*segment, files.identity, term, number)?;
        let is_later = |header: SegmentHeader| header.previous_term == 0 || header.previous_term > newest;
        Ok(term > newest && header.is_some_and(is_later))
    }

    /// The segment from which on the log is to be copied, if it has the place where the files end. What they have of that
    /// segment is written again.
    fn goes_on(source: &S, files: &FileSource, end: &FilesEnd, from: Option<(u64, u64)>) -> Result<Option<(u64, u64)>> {
        let number = end.end.segment();
        let mut cursor = Cursor::before_segment(files.identity, end.term, number);
        cursor.run(source, Some(end.end))?;
        if cursor.is_within() {
            let is_there = (cursor.position(), cursor.chain) == (end.end, end.chain);
            return Ok(is_there.then_some((end.term, number)));
        }
        // A log that another pool's goes on in begins behind it.
        let Some((term, number)) = from else { return Ok(None) };
        let Some(segment) = source.segment(term, number)? else { return Ok(None) };
        let header = read_header(source, &*segment, files.identity, term, number)?;
        let follows = header.is_some_and(|header| {
            (header.previous_term, header.previous_end, header.chain) == (end.term, end.end, end.chain)
        });
        Ok(follows.then_some((term, number)))
    }

    pub fn durable(&self) -> CommitTs {
        self.durable
    }

    /// Where the last block ended that is in the files, durably.
    pub fn durable_end(&self) -> LogPosition {
        self.durable_end
    }

    /// The files have all of the log that a start needs which has the folder alone. Until then nothing that is copied may
    /// be promised to be there.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The first segment that the copy needs of the log.
    pub fn needed_from(&self) -> u64 {
        self.again_from.map_or(0, |(_, number)| number)
    }

    /// Copies what is new, and makes it durable. False: there was nothing. After an error it may be tried again.
    pub fn step(&mut self) -> Result<bool> {
        let stepped = self.step_once();
        if stepped.is_err() {
            // What was written and not synced may be lost. The segment is copied anew, from what is durable in it.
            self.current = None;
            self.is_unsynced = false;
            let cursor = match self.again_from {
                Some((term, number)) => Cursor::before_segment(self.files.identity, term, number),
                None => Cursor::at_start(self.files.identity),
            };
            self.blocks.restart(cursor);
            (self.copied, self.copied_end) = (self.durable, self.durable_end);
        }
        stepped
    }

    fn step_once(&mut self) -> Result<bool> {
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
            self.copying = Some((block.term, block.number));
            self.begins = self.begins.or(self.copying);
            self.is_unsynced = true;
            self.sync_file()?;
            crash_point("log.tee.header");
        }
        let Some(file) = &self.current else { return Err(Error::internal("a block has no segment")) };
        let bytes = &self.blocks.buffer[block.range.clone()];
        let offset = block.header.position.offset() as u64;
        file.write_all_at(offset, bytes).map_err(|error| self.failed(&error))?;
        self.is_unsynced = true;
        self.copied = self.copied.max(block.header.floor);
        self.copied_end =
            self.copied_end.max(LogPosition::new(block.number, block.header.end().next_multiple_of(BLOCK_ALIGNMENT)));
        crash_point("log.tee.block");
        Ok(())
    }

    fn failed(&self, error: &io::Error) -> Error {
        Error::io(format_args!("write log segment \"{}\"", self.current_path.display()), error)
    }

    fn sync_file(&mut self) -> Result<()> {
        if let Some(file) = &self.current
            && self.is_unsynced
        {
            file.sync_data().map_err(|error| self.failed(&error))?;
            self.is_unsynced = false;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.sync_file()?;
        (self.durable, self.durable_end) = (self.copied, self.copied_end);
        self.again_from = self.copying.or(self.again_from);
        Ok(())
    }

    /// A checkpoint in the folder has all that is before segment `number` of `term`, durably: the files before it go.
    pub fn remove_before(&mut self, term: u64, number: u64) -> Result<()> {
        let base = (term, number);
        // Without what follows, the checkpoint is no start.
        let Some(copying) = self.again_from.filter(|copying| base <= *copying) else { return Ok(()) };
        self.is_complete |= self.begins.is_some_and(|begins| begins <= base);
        if !self.is_complete {
            return Ok(());
        }
        let gone: Vec<_> = self.files.list()?.into_iter().filter(|file| *file < base.min(copying)).collect();
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

/// What is told that a commit is in the files, or why it is not.
pub type CopiedCall = Box<dyn FnOnce(Result<()>) + Send>;

#[derive(Debug, Default)]
struct Shared {
    durable: AtomicU64,
    durable_end: AtomicU64,
    needed_from: AtomicU64,
    is_complete: AtomicBool,
    is_stopped: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
    wanted: Condvar,
}

#[derive(Default)]
struct State {
    waiters: usize,
    /// Those who wait without a thread.
    calls: Vec<(CommitTs, CopiedCall)>,
    /// Why nothing is copied, if that is so.
    failure: Option<Error>,
    /// Files of segments before it go.
    base: (u64, u64),
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "State({} wait, {:?})", self.waiters + self.calls.len(), self.failure)
    }
}

/// However the thread ends, those who wait are told.
struct Ends<'a> {
    shared: &'a Shared,
    kept_from: &'a AtomicU64,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.kept_from.store(u64::MAX, Ordering::Release);
        let mut state = lock(&self.shared.state);
        let ended = || Error::new(SqlState::IO_ERROR, "the log is not copied into files any more");
        state.failure.get_or_insert_with(ended);
        drop(state);
        self.shared.tell();
    }
}

impl TeeWriter {
    /// `kept_from`: the device keeps the segments from there on ([`PoolDevice::kept_from`](crate::PoolDevice::kept_from)).
    pub fn start<S: Source + 'static>(mut tee: Tee<S>, kept_from: Arc<AtomicU64>) -> Result<TeeWriter> {
        let shared = Arc::<Shared>::default();
        shared.durable.store(tee.durable().0, Ordering::Release);
        shared.durable_end.store(tee.durable_end().to_bits(), Ordering::Release);
        shared.is_complete.store(tee.is_complete(), Ordering::Release);
        shared.needed_from.store(tee.needed_from(), Ordering::Release);
        kept_from.store(tee.needed_from(), Ordering::Release);
        let of_thread = shared.clone();
        let run = move || {
            let _ends = Ends { shared: &of_thread, kept_from: &kept_from };
            of_thread.copy(&mut tee, &kept_from);
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

    /// Where the last block ended that is in the files.
    pub fn durable_end(&self) -> LogPosition {
        LogPosition::from_bits(self.shared.durable_end.load(Ordering::Acquire))
    }

    /// As [`Tee::is_complete`].
    pub fn is_complete(&self) -> bool {
        self.shared.is_complete.load(Ordering::Acquire)
    }

    /// The first segment that the copy needs of the log.
    pub fn needed_from(&self) -> u64 {
        self.shared.needed_from.load(Ordering::Acquire)
    }

    /// Why nothing is copied, if that is so. It is tried again where the disk refused.
    pub fn failure(&self) -> Option<Error> {
        lock(&self.shared.state).failure.clone()
    }

    /// A checkpoint in the folder has all that is before segment `number` of `term`, durably. The files before it go when the
    /// copy is past them.
    pub fn remove_before(&self, term: u64, number: u64) {
        let mut state = lock(&self.shared.state);
        state.base = state.base.max((term, number));
        drop(state);
        self.shared.wanted.notify_all();
    }

    /// Waits until everything up to `ts`, which is durable in the pool, is in the files. `interrupted` is asked now and then,
    /// and its error ends the wait. So does a failure of the files: the commit is in the pool then, and not in the files yet.
    pub fn wait(&self, ts: CommitTs, interrupted: impl Fn() -> Result<()>) -> Result<()> {
        if self.durable() >= ts {
            return Ok(());
        }
        lock(&self.shared.state).waiters += 1;
        self.shared.wanted.notify_all();
        let outcome = loop {
            // Not under the lock: it may wait for something itself.
            if let Err(error) = interrupted() {
                break Err(error);
            }
            let state = lock(&self.shared.state);
            if self.durable() >= ts {
                break Ok(());
            }
            if let Some(failure) = &state.failure {
                break Err(failure.clone());
            }
            // Spurious wake-ups do no harm.
            drop(self.shared.changed.wait_timeout(state, INTERVAL));
        };
        lock(&self.shared.state).waiters -= 1;
        outcome
    }

    /// As `wait`, without a thread: `call` is told at once, or by the thread that copies.
    pub fn when_copied(&self, ts: CommitTs, call: CopiedCall) {
        if self.durable() >= ts {
            return call(Ok(()));
        }
        let mut state = lock(&self.shared.state);
        match &state.failure {
            _ if self.durable() >= ts => {}
            Some(failure) => {
                let failure = failure.clone();
                drop(state);
                return call(Err(failure));
            }
            None => {
                state.calls.push((ts, call));
                drop(state);
                self.shared.wanted.notify_all();
                return;
            }
        }
        drop(state);
        call(Ok(()));
    }
}

impl Shared {
    /// Tells those who wait for what is in the files by now; after a failure all of them.
    fn tell(&self) {
        let (told, failure) = {
            let mut state = lock(&self.state);
            let durable = self.durable.load(Ordering::Acquire);
            let failure = state.failure.clone();
            let told: Vec<_> = state.calls.extract_if(.., |(ts, _)| ts.0 <= durable || failure.is_some()).collect();
            (told, failure)
        };
        self.changed.notify_all();
        let durable = self.durable.load(Ordering::Acquire);
        for (ts, call) in told {
            call(failure.clone().filter(|_| ts.0 > durable).map_or(Ok(()), Err));
        }
    }

    fn copy<S: Source>(&self, tee: &mut Tee<S>, kept_from: &AtomicU64) {
        let mut base = (0, 0);
        while !self.is_stopped.load(Ordering::Acquire) {
            let wanted = lock(&self.state).base;
            let stepped = tee.step().and_then(|is_new| {
                if wanted > base || !tee.is_complete() && wanted > (0, 0) {
                    tee.remove_before(wanted.0, wanted.1)?;
                    base = wanted;
                }
                Ok(is_new)
            });
            kept_from.store(tee.needed_from(), Ordering::Release);
            self.needed_from.store(tee.needed_from(), Ordering::Release);
            self.is_complete.store(tee.is_complete(), Ordering::Release);
            let mut state = lock(&self.state);
            match stepped {
                Ok(is_new) => {
                    if state.failure.take().is_some() {
                        tracing::info!("the log is copied into files again");
                    }
                    if is_new {
                        // Under the lock, so that nobody sleeps who need not.
                        self.durable.store(tee.durable().0, Ordering::Release);
                        self.durable_end.store(tee.durable_end().to_bits(), Ordering::Release);
                        drop(state);
                        self.tell();
                    } else if !self.is_stopped.load(Ordering::Acquire) {
                        // What is waited for is in the pool, and found at the next step, unless the term's end is awaited.
                        let is_waited_for = state.waiters > 0 || !state.calls.is_empty();
                        let time = if is_waited_for { INTERVAL / 20 } else { INTERVAL };
                        drop(self.wanted.wait_timeout(state, time));
                    }
                }
                Err(error) => {
                    // The log itself is damaged, or gone from under the copy: that stays as it is.
                    let is_final =
                        matches!(error.code(), SqlState::DATA_CORRUPTED | SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
                    if state.failure.is_none() {
                        tracing::error!(%error, "the log is not copied into files");
                    }
                    state.failure = Some(error);
                    drop(state);
                    self.tell();
                    if is_final {
                        return;
                    }
                    let state = lock(&self.state);
                    if !self.is_stopped.load(Ordering::Acquire) {
                        drop(self.wanted.wait_timeout(state, RETRY));
                    }
                }
            }
        }
        // What was written before it was stopped, too.
        loop {
            match tee.step() {
                Ok(true) => {
                    self.durable.store(tee.durable().0, Ordering::Release);
                    self.durable_end.store(tee.durable_end().to_bits(), Ordering::Release);
                }
                Ok(false) => return self.tell(),
                Err(error) => {
                    tracing::error!(%error, "the end of the log is not copied into files");
                    return;
                }
            }
        }
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
