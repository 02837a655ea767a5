//! An archive of the log: a folder of files that has it from some segment on, for good, to recover to a moment from.
//!
//! The files have the blocks at the places that they have in the log, in segments of the same terms and numbers, as the second
//! tier has them (`tee.rs`); file `END` says how far that is. Only blocks that are durable in the log are copied. The log keeps
//! a segment until the archive has all of it, however long that takes.
//!
//! A copy that was taken up again by another process, or another host, goes on where the files end: it is the same log. Nobody
//! removes a file here but who is told to ([`remove_before`]).

use crate::blocks::{Source, Verdict, read_header};
use crate::device::{LogDevice, LogSegment};
use crate::files::{Files, OpenHow};
use crate::format::{BLOCK_ALIGNMENT, DatabaseIdentity, LogPosition, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::room::lock;
use crate::tail::Tail;
use crate::tee::{FileSource, Tee};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};
use tidepool_base::{Error, Result, SqlState, crash_point};

/// The file that says how far the archive goes.
const END: &str = "END";

/// How often the log is looked at, and how long after a failure it is tried again.
const LOOK: Duration = Duration::from_millis(100);
const RETRY: Duration = Duration::from_secs(1);

impl FileSource {
    /// An archive to be written in `folder`, which is made if its parent is there. Segments of the log have `segment_bytes`.
    pub fn archive(
        files: Arc<dyn Files>,
        folder: &Path,
        segment_bytes: usize,
        identity: DatabaseIdentity,
    ) -> Result<FileSource> {
        Ok(FileSource::open(files, folder, segment_bytes, identity)?.into_archive(segment_bytes))
    }

    /// An archive that is there. 55000 if there is none of the database in `folder`.
    pub fn find_archive(files: Arc<dyn Files>, folder: &Path, identity: DatabaseIdentity) -> Result<FileSource> {
        let none = || {
            let message = format!("there is no archive of database {identity} in folder \"{}\"", folder.display());
            Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message)
        };
        let source = FileSource::of(files, folder, 0, identity);
        let found = source.list().map_err(|_| none())?;
        for (term, number) in found {
            let mut bytes = [0; 2 * BLOCK_ALIGNMENT];
            let Some(segment) = source.segment(term, number)? else { continue };
            let count = segment.read(0, &mut bytes)?;
            if let Some(header) = SegmentHeader::read_any(&bytes[..count])
                && header.identity == identity
            {
                return Ok(source.into_archive(header.segment_bytes as usize));
            }
        }
        Err(none())
    }

    /// What a segment's file is called, with its folder.
    fn shown(&self, term: u64, number: u64) -> String {
        self.path(term, number).display().to_string()
    }

    /// How far the archive goes, by its own word.
    pub fn archived_end(&self) -> Result<Option<(u64, LogPosition)>> {
        let path = self.folder().join(END);
        let bytes = match self.files().read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|error| Error::io(format_args!("read file \"{}\"", path.display()), &error))?,
        };
        let parse = || -> Option<(u64, LogPosition)> {
            let text = std::str::from_utf8(&bytes).ok()?.strip_suffix('\n')?;
            let mut words = text.split(' ');
            let mut number = |name: &str| words.next()?.strip_prefix(name)?.parse::<u64>().ok();
            let (term, segment, offset) = (number("term=")?, number("segment=")?, number("byte=")?);
            let is_sound = segment < 1 << 32 && offset < 1 << 32;
            is_sound.then(|| (term, LogPosition::new(segment, offset as usize)))
        };
        parse().map(Some).ok_or_else(|| Error::corrupted(format!("file \"{}\" is damaged", path.display())))
    }

    /// Says so. What another host said that came further stays.
    fn note_end(&self, term: u64, end: LogPosition) -> Result<()> {
        if self.archived_end().ok().flatten().is_some_and(|now| now >= (term, end)) {
            return Ok(());
        }
        let (path, next) = (self.folder().join(END), self.folder().join("END.new"));
        let text = format!("term={term} segment={} byte={}\n", end.segment(), end.offset());
        let written = || -> io::Result<()> {
            let file = match self.files().create(&next, OpenHow::default()) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    self.files().open(&next, OpenHow::default())?
                }
                made => made?,
            };
            file.set_len(0)?;
            file.write_all_at(0, text.as_bytes())?;
            file.sync_data()?;
            self.files().rename(&next, &path)
        };
        written().map_err(|error| Error::io(format_args!("write file \"{}\"", path.display()), &error))?;
        self.sync_folder(self.folder())
    }

    /// Removes what is before segment `number` of `term`, the oldest first. Returns how many files went.
    pub fn remove_before(&self, term: u64, number: u64) -> Result<u64> {
        let gone: Vec<_> = self.list()?.into_iter().filter(|file| *file < (term, number)).collect();
        for (term, number) in &gone {
            let path = self.path(*term, *number);
            self.files()
                .remove(&path)
                .map_err(|error| Error::io(format_args!("remove log segment \"{}\"", path.display()), &error))?;
        }
        self.sync_folder(self.folder())?;
        Ok(gone.len() as u64)
    }
}

impl Tail<FileSource> {
    /// XX001, naming the file, where the archive lacks something behind the place that the reader has come to, which found no
    /// more.
    pub fn check_archive(&self) -> Result<()> {
        let (source, cursor) = (self.source(), self.cursor());
        let missing = |term: u64, number: u64| {
            Error::corrupted(format!("log segment \"{}\" is missing in the archive", source.shown(term, number)))
                .with_detail("What was committed there, and later, cannot be recovered without it.")
        };
        let damaged = |term: u64, end: LogPosition| {
            let name = source.shown(term, end.segment());
            Error::corrupted(format!("log segment \"{name}\" is damaged at byte {}", end.offset()))
                .with_detail("There is no valid record there, and the archive goes on behind it.")
        };
        let listed = source.list()?;
        let here = match cursor.is_within() {
            true => (cursor.term, cursor.position()),
            false => (cursor.term, LogPosition::new(cursor.number, SEGMENT_HEADER_BYTES)),
        };
        let here_segment = (here.0, here.1.segment());
        if !cursor.is_within() {
            return Err(match listed.contains(&here_segment) {
                true => damaged(here.0, here.1),
                false => missing(here.0, here.1.segment()),
            });
        }
        let of = |term: u64, end: LogPosition| {
            let segment = (term, end.segment());
            if segment == here_segment {
                damaged(here.0, here.1)
            } else if listed.contains(&segment) {
                damaged(term, LogPosition::new(end.segment(), SEGMENT_HEADER_BYTES))
            } else {
                missing(term, end.segment())
            }
        };
        for (term, number) in listed.iter().copied().filter(|file| *file > here_segment) {
            let Some(segment) = source.segment(term, number)? else { continue };
            let Some(header) = read_header(source, &*segment, source.identity(), term, number)? else { continue };
            let before = (header.previous_term, header.previous_end);
            if before > here {
                return Err(of(before.0, before.1));
            }
        }
        match source.archived_end()? {
            Some((term, end)) if (term, end) > here => Err(of(term, end)),
            _ => Ok(()),
        }
    }
}

/// The segments of a log that one host has to itself, of term 0.
#[derive(Clone, Debug)]
pub struct DeviceSource(Arc<dyn LogDevice>);

impl DeviceSource {
    pub fn new(device: Arc<dyn LogDevice>) -> DeviceSource {
        DeviceSource(device)
    }
}

impl Source for DeviceSource {
    fn name(&self) -> String {
        self.0.name()
    }

    fn segment_bytes(&self) -> usize {
        self.0.segment_bytes()
    }

    fn segment(&self, term: u64, number: u64) -> Result<Option<Arc<dyn LogSegment>>> {
        match term == 0 && self.0.segments()?.binary_search(&number).is_ok() {
            true => self.0.open(number).map(Some),
            false => Ok(None),
        }
    }

    fn next_numbers(&self, _: u64, number: u64, _: bool) -> Result<Vec<u64>> {
        Ok(vec![number + 1])
    }

    fn next_terms(&self, _: u64) -> Result<Vec<(u64, u64)>> {
        Ok(Vec::new())
    }

    fn verdict(&self, _: u64, _: u64) -> Result<Verdict> {
        Ok(Verdict::Settled)
    }

    fn too_old(&self, _: u64) -> Error {
        Error::new(
            SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE,
            format!("the log in {} does not go back that far any more", self.name()),
        )
    }
}

/// A log up to a place, which moves on. All of earlier terms is before it.
#[derive(Debug)]
pub struct Bounded<S> {
    source: S,
    term: u64,
    bound: Arc<AtomicU64>,
}

/// A segment of the term that is written, as far as it is before the bound.
#[derive(Debug)]
struct Clipped {
    segment: Arc<dyn LogSegment>,
    number: u64,
    bound: Arc<AtomicU64>,
}

impl LogSegment for Clipped {
    fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<usize> {
        // A reader may hold the segment while the bound moves on.
        let bound = LogPosition::from_bits(self.bound.load(Ordering::Acquire));
        let end = if self.number < bound.segment() { usize::MAX } else { bound.offset() };
        let len = bytes.len().min(end.saturating_sub(offset));
        self.segment.read(offset, &mut bytes[..len])
    }

    fn write(&self, _: usize, _: &[u8]) -> Result<()> {
        Err(Error::internal("a log is written by who reads it"))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

impl<S: Source> Source for Bounded<S> {
    fn name(&self) -> String {
        self.source.name()
    }

    fn segment_bytes(&self) -> usize {
        self.source.segment_bytes()
    }

    fn segment(&self, term: u64, number: u64) -> Result<Option<Arc<dyn LogSegment>>> {
        let bound = LogPosition::from_bits(self.bound.load(Ordering::Acquire));
        if term > self.term || term == self.term && number > bound.segment() {
            return Ok(None);
        }
        let segment = self.source.segment(term, number)?;
        if term < self.term {
            return Ok(segment);
        }
        let clipped = |segment| Arc::new(Clipped { segment, number, bound: self.bound.clone() }) as Arc<dyn LogSegment>;
        Ok(segment.map(clipped))
    }

    fn next_numbers(&self, term: u64, number: u64, everywhere: bool) -> Result<Vec<u64>> {
        self.source.next_numbers(term, number, everywhere)
    }

    fn next_terms(&self, term: u64) -> Result<Vec<(u64, u64)>> {
        self.source.next_terms(term)
    }

    fn verdict(&self, term: u64, near: u64) -> Result<Verdict> {
        self.source.verdict(term, near)
    }

    fn too_old(&self, term: u64) -> Error {
        self.source.too_old(term)
    }
}

/// Says which segment is the oldest of a log, with its term.
pub type Oldest = Box<dyn Fn() -> Result<Option<(u64, u64)>> + Send>;

/// What an archive is made of.
pub struct Archiving<S> {
    /// The log, of which this process writes `term`.
    pub source: Box<dyn Fn() -> S + Send>,
    pub term: u64,
    /// Where the archive begins, or goes on behind a gap: the log's oldest segment. `None`: it is there from its beginning on.
    /// Asked for when the log has a block.
    pub from: Oldest,
    /// Where it is archived. Asked for until it answers.
    pub files: Box<dyn Fn() -> Result<FileSource> + Send>,
    /// Where the log is durable up to.
    pub position: Box<dyn Fn() -> LogPosition + Send>,
    /// Brings what records before that place name beside the log. Called after the place was asked for, and before the log is
    /// copied up to there.
    pub bring: Box<dyn FnMut() -> Result<()> + Send>,
    /// Told of the first segment that the archive does not have all of: the log keeps what is from there on.
    pub kept_from: Arc<AtomicU64>,
    /// What is durable waits no longer than this; a segment that is full is copied at once.
    pub timeout: Duration,
}

/// How an archive does.
#[derive(Clone, Debug, Default)]
pub struct ArchiveState {
    /// The archive has everything up to here.
    pub term: u64,
    pub end: LogPosition,
    /// Segments that this process has archived whole, the last of them, and when it was.
    pub segments: u64,
    pub last_segment: Option<(u64, u64)>,
    /// When something was archived last.
    pub archived_at: Option<SystemTime>,
    pub failures: u64,
    pub failed_at: Option<SystemTime>,
    /// The segment at which it failed last.
    pub failed_segment: Option<(u64, u64)>,
    /// Why nothing is archived, if that is so.
    pub failure: Option<Error>,
}

impl ArchiveState {
    /// What a segment is called in an archive.
    pub fn name_of((term, number): (u64, u64)) -> String {
        crate::file_device::name_in_term(term, number)
    }
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<ArchiveState>,
    is_stopped: AtomicBool,
    /// All that is durable is wanted, and then the end.
    finishes: AtomicBool,
    wanted: Mutex<()>,
    called: Condvar,
}

/// A thread that archives the log.
#[derive(Debug)]
pub struct Archiver {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Copier<S> {
    of: Archiving<S>,
    bound: Arc<AtomicU64>,
    tee: Option<Tee<Bounded<S>>>,
}

impl Archiver {
    /// Nothing of the log may go before this returns: from then on `kept_from` says what stays.
    pub fn start<S: Source + 'static>(of: Archiving<S>) -> Result<Archiver> {
        // What the archive has may be more: until that is known, all stays.
        of.kept_from.store(0, Ordering::Release);
        let shared = Arc::<Shared>::default();
        let of_thread = shared.clone();
        let mut copier = Copier { of, bound: Arc::default(), tee: None };
        let thread = std::thread::Builder::new()
            .name("log-archiver".to_owned())
            .spawn(move || of_thread.run(&mut copier))
            .map_err(|error| Error::io("start the archive's thread", &error))?;
        Ok(Archiver { shared, thread: Mutex::new(Some(thread)) })
    }

    pub fn state(&self) -> ArchiveState {
        lock(&self.shared.state).clone()
    }

    /// Archives all that is durable by now, and ends. The error with which that failed: the log keeps what is missing.
    pub fn finish(&self) -> Result<()> {
        self.shared.finishes.store(true, Ordering::Release);
        self.end();
        lock(&self.shared.state).failure.clone().map_or(Ok(()), Err)
    }

    /// Ends, whatever is missing.
    pub fn end(&self) {
        {
            let _wanted = lock(&self.shared.wanted);
            self.shared.is_stopped.store(true, Ordering::Release);
        }
        self.shared.called.notify_all();
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            // A panic of it has been told by its hook.
            let _ = thread.join();
        }
    }
}

impl Drop for Archiver {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn run<S: Source>(&self, copier: &mut Copier<S>) {
        let mut copied_at = Instant::now();
        let mut again_at: Option<Instant> = None;
        loop {
            let is_last = self.is_stopped.load(Ordering::Acquire);
            if is_last && !self.finishes.load(Ordering::Acquire) {
                return;
            }
            let at = (copier.of.position)();
            let archived = lock(&self.state).end;
            let is_new = at > LogPosition::default() && at != archived;
            let is_due = is_last || at.segment() != archived.segment() || copied_at.elapsed() >= copier.of.timeout;
            let waits = !is_last && again_at.is_some_and(|again| Instant::now() < again);
            if is_new && is_due && !waits {
                match copier.copy(at) {
                    Ok(()) => {
                        self.succeeded(copier, at);
                        (copied_at, again_at) = (Instant::now(), None);
                    }
                    Err(error) => {
                        self.failed(error);
                        again_at = Some(Instant::now() + RETRY);
                    }
                }
            }
            if is_last {
                return;
            }
            let wanted = lock(&self.wanted);
            if !self.is_stopped.load(Ordering::Acquire) {
                drop(self.called.wait_timeout(wanted, LOOK.min(copier.of.timeout)));
            }
        }
    }

    fn succeeded<S: Source>(&self, copier: &Copier<S>, at: LogPosition) {
        let last = copier.tee.as_ref().and_then(Tee::last_segment);
        let mut state = lock(&self.state);
        if state.failure.take().is_some() {
            tracing::info!("the log is archived again");
        }
        // Segments before the one that is written are whole.
        if let (Some(before), Some(last)) = (state.last_segment, last)
            && before.0 == last.0
        {
            state.segments += last.1 - before.1;
        }
        state.last_segment = last;
        (state.term, state.end) = (copier.of.term, at);
        state.archived_at = Some(SystemTime::now());
    }

    fn failed(&self, error: Error) {
        let mut state = lock(&self.state);
        if state.failure.is_none() {
            tracing::error!(%error, "the log is not archived, and kept until it is");
        }
        state.failures += 1;
        state.failed_at = Some(SystemTime::now());
        state.failed_segment = state.last_segment;
        state.failure = Some(error);
    }
}

impl<S: Source> Copier<S> {
    /// Archives everything up to `at`.
    fn copy(&mut self, at: LogPosition) -> Result<()> {
        (self.of.bring)()?;
        self.bound.store(at.to_bits(), Ordering::Release);
        if self.tee.is_none() {
            let bound = self.bound.clone();
            let source = Bounded { source: (self.of.source)(), term: self.of.term, bound };
            self.tee = Some(Tee::archive(source, (self.of.files)()?, (self.of.from)()?)?);
        }
        let Some(tee) = &mut self.tee else { return Err(Error::internal("an archive is not open")) };
        loop {
            match tee.step() {
                Ok(true) => crash_point("log.archived"),
                Ok(false) => break,
                Err(error) => {
                    // It is opened anew, from what there is then.
                    self.tee = None;
                    return Err(error);
                }
            }
        }
        if tee.durable_end() != at {
            let (place, reached) = (tee.source_name(), tee.durable_end());
            self.tee = None;
            return Err(Error::corrupted(format!("the log in {place} cannot be read from {reached} on"))
                .with_detail(format!("It was written up to {at}.")));
        }
        tee.source_files().note_end(self.of.term, at)?;
        crash_point("log.archive.noted");
        self.of.kept_from.store(tee.needed_from(), Ordering::Release);
        Ok(())
    }
}
