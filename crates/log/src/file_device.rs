//! A log in a folder of files.
//!
//! A segment is a file named by its number, `000000000000002a.log`. It is filled with zeroes under another name before its
//! first use: a disk that is full shows then, and later syncs have no blocks to note down. A segment that is recycled is
//! renamed. Beside them lies file `SEGMENTS`, with the note of which there have to be (`notes.rs`).

use crate::device::{LogDevice, LogSegment, NOTE_BYTES};
use crate::files::{Files, OpenHow, StoredFile};
use crate::format::PAGE_BYTES;
use crate::recovery::of_terms;
use crate::room::lock;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tidepool_base::{ByteSize, Error, Result, SqlState, crash_point};

const SUFFIX: &str = ".log";

/// The file that is to become a segment.
const NEXT: &str = "next";

/// The file that has the note of segments: a line at its start, the other a page behind.
const NOTES: &str = "SEGMENTS";

const NOTES_FILE_BYTES: u64 = 2 * PAGE_BYTES as u64;

#[derive(Debug)]
pub struct FileDevice {
    files: Arc<dyn Files>,
    folder: PathBuf,
    segment_bytes: usize,
    how: OpenHow,
    /// Once something was noted.
    notes: Mutex<Option<Arc<dyn StoredFile>>>,
}

impl FileDevice {
    /// What is in a folder beside segments.
    pub const NOTES: &str = NOTES;

    /// Segments of `segment_bytes` in `folder`, which is made if its parent is there.
    pub fn open(files: Arc<dyn Files>, folder: &Path, segment_bytes: usize, how: OpenHow) -> Result<FileDevice> {
        if !segment_bytes.is_multiple_of(PAGE_BYTES) || !(16 * PAGE_BYTES..=1 << 30).contains(&segment_bytes) {
            return Err(Error::new(
                SqlState::INVALID_PARAMETER_VALUE,
                format!("log segments of {} are not possible", ByteSize(segment_bytes as u64)),
            )
            .with_detail("A log segment has from 64 kB to 1 GB, in steps of 4 kB."));
        }
        let shown = folder.display();
        files.create_folder(folder).map_err(|error| Error::io(format_args!("create folder \"{shown}\""), &error))?;
        // The folder's name; and the names in it, which a process may have changed and not lived to make durable.
        for folder in folder.parent().filter(|parent| !parent.as_os_str().is_empty()).into_iter().chain([folder]) {
            files
                .sync_folder(folder)
                .map_err(|error| Error::io(format_args!("sync folder \"{}\"", folder.display()), &error))?;
        }
        Ok(FileDevice { files, folder: folder.to_owned(), segment_bytes, how, notes: Mutex::default() })
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file for the note: as it is, or a new one, durably there.
    fn notes_file(&self) -> Result<Arc<dyn StoredFile>> {
        let path = self.folder.join(NOTES);
        let failed = |error: io::Error| Error::io(format_args!("create file \"{}\"", path.display()), &error);
        let file = match self.files.create(&path, OpenHow::default()) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                self.files.open(&path, OpenHow::default()).map_err(failed)?
            }
            made => made.map_err(failed)?,
        };
        // Perhaps of a process that did not come further than to its name.
        if file.len().map_err(failed)? < NOTES_FILE_BYTES {
            file.allocate(NOTES_FILE_BYTES).map_err(failed)?;
            file.sync_data().map_err(failed)?;
        }
        self.sync_folder()?;
        Ok(file)
    }

    /// Removes the note, of a log that is to be no more.
    pub fn remove_notes(&self) -> Result<()> {
        let path = self.folder.join(NOTES);
        match self.files.remove(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.map_err(|error| Error::io(format_args!("remove file \"{}\"", path.display()), &error)),
        }
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number:016x}{SUFFIX}"))
    }

    fn sync_folder(&self) -> Result<()> {
        self.files
            .sync_folder(&self.folder)
            .map_err(|error| Error::io(format_args!("sync folder \"{}\"", self.folder.display()), &error))
    }

    fn handle(&self, number: u64, file: Arc<dyn StoredFile>) -> Arc<dyn LogSegment> {
        Arc::new(FileSegment { file, name: self.segment_name(number) })
    }

    fn open_file(&self, number: u64, path: &Path) -> Result<Arc<dyn StoredFile>> {
        self.files
            .open(path, self.how)
            .map_err(|error| Error::io(format_args!("open log segment \"{}\"", self.segment_name(number)), &error))
    }
}

/// Room for all of a segment, in blocks that have been written once. Written out step by step: who waits for another segment's blocks meanwhile
/// comes behind a step of this one's, not behind all of it.
pub(crate) fn fill(file: &dyn StoredFile, segment_bytes: usize) -> io::Result<()> {
    const STEP_BYTES: usize = 256 << 10;
    file.allocate(segment_bytes as u64)?;
    let zeroes = AlignedBuffer::zeroed(STEP_BYTES.min(segment_bytes));
    let mut done = 0;
    while done < segment_bytes {
        let step = zeroes.bytes().len().min(segment_bytes - done);
        file.write_all_at(done as u64, &zeroes.bytes()[..step])?;
        done += step;
        file.sync_data()?;
    }
    Ok(())
}

/// What the file of a segment of a term is called: `00000003-000000000000002a.log`. Term 0, of a log that one host has to itself, is
/// only in archives.
pub(crate) fn name_in_term(term: u64, number: u64) -> String {
    format!("{term:08x}-{number:016x}{SUFFIX}")
}

/// The term and number that a file's name has, if it is of a term.
pub(crate) fn number_of_term(name: &str) -> Option<(u64, u64)> {
    let (term, number) = name.strip_suffix(SUFFIX)?.split_once('-')?;
    let parse =
        |text: &str, len: usize| Some(text).filter(|text| text.len() == len).map(|text| u64::from_str_radix(text, 16));
    let (term, number) = (parse(term, 8)?.ok()?, parse(number, 16)?.ok()?);
    (1..1 << 32).contains(&number).then_some((term, number))
}

impl LogDevice for FileDevice {
    fn name(&self) -> String {
        self.folder.display().to_string()
    }

    fn segment_name(&self, number: u64) -> String {
        self.path(number).display().to_string()
    }

    fn segment_bytes(&self) -> usize {
        self.segment_bytes
    }

    fn segments_max(&self) -> u64 {
        u64::MAX
    }

    fn write_alignment(&self) -> usize {
        if self.how.direct { PAGE_BYTES } else { crate::format::BLOCK_ALIGNMENT }
    }

    fn block_alignment(&self) -> usize {
        PAGE_BYTES
    }

    fn segments(&self) -> Result<Vec<u64>> {
        let names = self
            .files
            .list(&self.folder)
            .map_err(|error| Error::io(format_args!("read folder \"{}\"", self.folder.display()), &error))?;
        if names.iter().any(|name| number_of_term(name).is_some()) {
            return Err(of_terms(&format!("the log in \"{}\"", self.folder.display())));
        }
        let mut numbers: Vec<u64> = names
            .iter()
            .filter_map(|name| name.strip_suffix(SUFFIX).filter(|number| number.len() == 16))
            .filter_map(|number| u64::from_str_radix(number, 16).ok())
            .filter(|number| (1..1 << 32).contains(number))
            .collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn open(&self, number: u64) -> Result<Arc<dyn LogSegment>> {
        Ok(self.handle(number, self.open_file(number, &self.path(number))?))
    }

    fn create(&self, number: u64) -> Result<Arc<dyn LogSegment>> {
        let (path, target) = (self.folder.join(NEXT), self.path(number));
        let shown = target.display();
        let file = match self.files.create(&path, self.how) {
            // Of an attempt that was cut short.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.open_file(number, &path)?,
            made => made.map_err(|error| Error::io(format_args!("create log segment \"{shown}\""), &error))?,
        };
        crash_point("log.segment.created");
        if let Err(error) = fill(&*file, self.segment_bytes) {
            drop(file);
            // Best effort, to take no room in vain. What stays is taken up by the next attempt.
            let _ = self.files.remove(&path);
            return Err(Error::io(
                format_args!("reserve {} for log segment \"{shown}\"", ByteSize(self.segment_bytes as u64)),
                &error,
            ));
        }
        crash_point("log.segment.filled");
        self.files
            .rename(&path, &target)
            .map_err(|error| Error::io(format_args!("create log segment \"{shown}\""), &error))?;
        self.sync_folder()?;
        Ok(self.handle(number, file))
    }

    fn recycle(&self, source: u64, target: u64) -> Result<Arc<dyn LogSegment>> {
        let (source, path) = (self.path(source), self.path(target));
        match self.files.rename(&source, &path) {
            // An earlier attempt came so far, or was one to remove it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if self.files.open(&path, self.how).is_err() {
                    return self.create(target);
                }
            }
            renamed => renamed
                .map_err(|error| Error::io(format_args!("rename log segment \"{}\"", source.display()), &error))?,
        }
        crash_point("log.segment.renamed");
        // Before it is written to: under its old name it would be a damaged segment.
        self.sync_folder()?;
        Ok(self.handle(target, self.open_file(target, &path)?))
    }

    fn remove(&self, number: u64) -> Result<()> {
        let path = self.path(number);
        match self.files.remove(&path) {
            // As above.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => {
                removed.map_err(|error| Error::io(format_args!("remove log segment \"{}\"", path.display()), &error))?
            }
        }
        crash_point("log.segment.removed");
        self.sync_folder()
    }

    fn notes(&self) -> Result<Vec<[u8; NOTE_BYTES]>> {
        let path = self.folder.join(NOTES);
        let bytes = match self.files.read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            read => read.map_err(|error| Error::io(format_args!("read file \"{}\"", path.display()), &error))?,
        };
        let line = |at: usize| bytes.get(at..at + NOTE_BYTES).and_then(|line| line.try_into().ok());
        Ok([0, PAGE_BYTES].into_iter().filter_map(line).collect())
    }

    fn write_note(&self, second: bool, line: &[u8; NOTE_BYTES]) -> Result<()> {
        let mut notes = lock(&self.notes);
        let file = match &*notes {
            Some(file) => file,
            None => notes.insert(self.notes_file()?),
        };
        let at = if second { PAGE_BYTES as u64 } else { 0 };
        file.write_all_at(at, line)
            .and_then(|()| file.sync_data())
            .map_err(|error| Error::io(format_args!("write file \"{}\"", self.folder.join(NOTES).display()), &error))
    }
}

#[derive(Debug)]
pub(crate) struct FileSegment {
    pub file: Arc<dyn StoredFile>,
    pub name: String,
}

impl LogSegment for FileSegment {
    fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<usize> {
        self.file
            .read_full_at(offset as u64, bytes)
            .map_err(|error| Error::io(format_args!("read log segment \"{}\"", self.name), &error))
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all_at(offset as u64, bytes)
            .map_err(|error| Error::io(format_args!("write log segment \"{}\"", self.name), &error))
    }

    fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|error| Error::io(format_args!("sync log segment \"{}\"", self.name), &error))
    }
}

/// Bytes that start at a multiple of 4,096, as direct writes need them.
#[derive(Debug)]
pub(crate) struct AlignedBuffer {
    bytes: Vec<u8>,
    start: usize,
}

impl AlignedBuffer {
    pub fn zeroed(len: usize) -> AlignedBuffer {
        let bytes = vec![0; len + PAGE_BYTES];
        let start = bytes.as_ptr().addr().next_multiple_of(PAGE_BYTES) - bytes.as_ptr().addr();
        AlignedBuffer { start, bytes }
    }

    pub fn len(&self) -> usize {
        self.bytes.len() - PAGE_BYTES
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len()]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.len();
        &mut self.bytes[self.start..self.start + len]
    }
}
