//! What a client's connection is, kept where another process finds it when this one dies, so that its client notices nothing.
//!
//! Each connection has pages of its own ([`Pages`]), a file without a name that standbys have a descriptor of, beside one of the socket
//! ([`crate::handover`]). Whenever the connection has answered what it was asked, it *settles*: its session as bytes, how far it has
//! come in the client's bytes and in its own, and the answer itself are written down before the answer is sent. What it reads from then
//! on is read into the pages first. So whoever comes after it knows from the pages and from the kernel, which counts what was read
//! and written of a socket:
//!
//! * what of the answer was not sent: it sends the rest;
//! * what the client asked that was not answered: where nothing of it was committed, it does that anew if it was to go to its rows by itself, and
//!   ends any other statement with an error, as a statement may be what the process died of.
//!
//! A transaction's commit is the one step that may not be done twice. Before each, the transaction's id is put down, with the answer
//! that the client gets if it succeeds ([`CommitWitness`]). Whoever comes after looks by the id what became of it: where it was
//! committed, the answer is sent, and else it is as if it had not begun.
//!
//! What holds:
//!
//! * **Only a process that is dead is succeeded.** The pages are read once it is certain that no thread of it runs any more.
//! * **The pages are whole at each store.** What is written goes to parts that the generation in force does not use; the one store
//!   of the next generation's number puts them in force. Words that belong to a generation have its number.
//! * **One process goes on with a connection.** Whoever passes it on, and whoever goes on with one that was left, puts that down in the pages first.
//! * **Nothing is guessed.** Where the client's bytes or the answer did not fit, where a statement leaves more behind than a
//!   transaction, or where an answer went out in part, the connection ends, as it did before there were pages.
//!
//! Sockets in the file system have no counters in the kernel. Their connections count for themselves, and say when they are in a
//! call: who dies within one leaves a connection that ends.

use crate::incoming::Positions;
use crate::protocol::backend;
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use tidepool_database::CommitWitness;
use tidepool_planner::{PortableBlock, PortableBlockState, TransactionStatus};
use tidepool_pool::pages::Pages;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What the pages begin with; another form has other letters.
const MAGIC: u64 = u64::from_le_bytes(*b"TPKEPT01");

/// A length that says that there is nothing.
const NOTHING: u64 = u64::MAX;

/// Where the bytes of a socket are counted from that the kernel does not count. Some of them may have been read before, by another process.
const FIRST_POSITION: u64 = 1 << 32;

/// Instead of a generation: another process goes on with the connection.
const ELSEWHERE: u64 = u64::MAX;

const HEADER_BYTES: usize = 4096;
/// What a client asked since its connection settled.
const JOURNAL_BYTES: usize = 16 << 10;
const ANSWER_BYTES: usize = 16 << 10;
pub(crate) const SESSION_BYTES: usize = 256 << 10;

/// Of each generation, by whether its number is even. A third answer is that of a commit, and a third session that of the one in force while
/// a commit and the next generation have theirs.
const JOURNALS: usize = 2;
const ANSWERS: usize = 3;
const SESSIONS: usize = 3;
const COMMIT_ANSWER: usize = 2;

const ANSWERS_AT: usize = HEADER_BYTES + JOURNALS * JOURNAL_BYTES;
const SESSIONS_AT: usize = ANSWERS_AT + ANSWERS * ANSWER_BYTES;
const BYTES: usize = SESSIONS_AT + SESSIONS * SESSION_BYTES;

/// What a connection's pages take as a rule, as one page of each part is written to, but for sessions that are longer.
pub(crate) const FIRST_BYTES: u64 = ((1 + JOURNALS + ANSWERS + SESSIONS) * PAGE_BYTES) as u64;
const PAGE_BYTES: usize = 4096;

/// What the pages take beyond that for a session of so many bytes.
pub(crate) fn session_pages(bytes: usize) -> u64 {
    (SESSIONS * bytes.div_ceil(PAGE_BYTES).saturating_sub(1) * PAGE_BYTES) as u64
}

/// Words of the header, by their offsets.
mod at {
    pub const MAGIC: usize = 0;
    /// The number of the generation in force. 0: there is none.
    pub const GENERATION: usize = 8;
    /// Not 0 within a call that reads or writes the socket.
    pub const CALLING: usize = 16;
    /// Bytes read from the socket and written to it, as this process counts.
    pub const RECEIVED: usize = 24;
    pub const SENT: usize = 32;
    /// The generation within which a commit is decided, or has been.
    pub const COMMITTING: usize = 40;
    /// The generation whose requests leave behind what may not be done twice.
    pub const DONE_ONCE: usize = 48;
    /// The generation within which a statement has begun that does not begin anew.
    pub const BEGUN: usize = 56;
    /// Two records, by whether the generation's number is even.
    pub const RECORDS: usize = 64;
    pub const COMMIT: usize = RECORDS + 2 * super::RECORD_BYTES;
    pub const COMMIT_ID: usize = COMMIT + super::RECORD_BYTES;
}

const RECORD_BYTES: usize = 64;

/// Where a connection stands. Positions count bytes of the socket from its beginning, or from that of the pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Record {
    /// Up to here the client's bytes are done with.
    input: u64,
    /// Where the answer ends.
    output: u64,
    /// Bytes of the answer, or [`NOTHING`].
    answer: u64,
    /// Which of the sessions, and its bytes or [`NOTHING`].
    session: u64,
    session_bytes: u64,
    block: Block,
}

/// The transaction block that the client is in, which changes more often than the session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Block {
    /// It is in none.
    #[default]
    None,
    Some(BlockForm),
}

/// As [`PortableBlock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockForm {
    state: PortableBlockState,
    start_us: i64,
    /// Among [`ISOLATIONS`].
    isolation: u8,
    is_read_only: bool,
    is_deferrable: bool,
}

const ISOLATIONS: [&str; 4] = ["read uncommitted", "read committed", "repeatable read", "serializable"];

impl Block {
    /// `None` for a level that is not known here.
    pub(crate) fn of(block: Option<&PortableBlock>) -> Option<Block> {
        let Some(block) = block else { return Some(Block::None) };
        let isolation = ISOLATIONS.iter().position(|level| *level == block.isolation)? as u8;
        let &PortableBlock { state, start_us, is_read_only, is_deferrable, .. } = block;
        Some(Block::Some(BlockForm { state, start_us, isolation, is_read_only, is_deferrable }))
    }

    pub(crate) fn to_portable(self) -> Option<PortableBlock> {
        let Block::Some(BlockForm { state, start_us, isolation, is_read_only, is_deferrable }) = self else {
            return None;
        };
        let isolation = ISOLATIONS[usize::from(isolation) % ISOLATIONS.len()].to_owned();
        Some(PortableBlock { state, start_us, isolation, is_read_only, is_deferrable })
    }

    fn to_words(self) -> [u64; 2] {
        let Block::Some(form) = self else { return [0, 0] };
        let state = match form.state {
            PortableBlockState::Begun => 1,
            PortableBlockState::Failed => 2,
            PortableBlockState::Lost => 3,
        };
        let modes = u64::from(form.is_read_only) << 16 | u64::from(form.is_deferrable) << 17;
        [state | u64::from(form.isolation) << 8 | modes, form.start_us.cast_unsigned()]
    }

    fn of_words([word, start]: [u64; 2]) -> Option<Block> {
        let state = match word & 0xff {
            0 if word == 0 => return Some(Block::None),
            1 => PortableBlockState::Begun,
            2 => PortableBlockState::Failed,
            3 => PortableBlockState::Lost,
            _ => return None,
        };
        let isolation = (word >> 8 & 0xff) as u8;
        let is_known = usize::from(isolation) < ISOLATIONS.len() && word >> 18 == 0;
        is_known.then_some(Block::Some(BlockForm {
            state,
            start_us: start.cast_signed(),
            isolation,
            is_read_only: word >> 16 & 1 == 1,
            is_deferrable: word >> 17 & 1 == 1,
        }))
    }
}

impl Record {
    fn to_words(self) -> [u64; 7] {
        let [block, start] = self.block.to_words();
        [self.input, self.output, self.answer, self.session, self.session_bytes, block, start]
    }

    fn of_words(words: [u64; 7]) -> Option<Record> {
        let [input, output, answer, session, session_bytes, block, start] = words;
        let block = Block::of_words([block, start])?;
        let fits = |bytes: u64, max: usize| bytes == NOTHING || bytes <= max as u64;
        let is_sound = session < SESSIONS as u64 && fits(answer, ANSWER_BYTES) && fits(session_bytes, SESSION_BYTES);
        is_sound.then_some(Record { input, output, answer, session, session_bytes, block })
    }
}

/// The session, as a connection settles.
pub(crate) enum SessionForm {
    /// As it was written down last.
    Unchanged,
    Bytes(Vec<u8>),
    /// It cannot go over now.
    Unknown,
}

/// Of one connection.
#[derive(Debug)]
pub(crate) struct Keeper {
    inner: Mutex<Keeping>,
    /// The file of the pages, for others.
    file: OwnedFd,
    /// There is a process that would go on with connections.
    is_wanted: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Keeping {
    pages: Pages,
    /// 0: it has not settled yet.
    generation: u64,
    received: u64,
    sent: u64,
    record: Record,
    /// A commit of this generation has begun.
    commits: bool,
    expected: Option<Expected>,
    /// The session that was written down last.
    session: (u64, u64),
}

/// What the client is told if the next commit succeeds.
#[derive(Debug)]
struct Expected {
    record: Record,
    /// Of it, what is there by now, of the commit's answer.
    bytes: usize,
    /// The statement's tag is missing, and then that the connection is ready.
    lacks_tag: bool,
    /// What the session knows of sequences, as it is written down.
    sequences: u64,
    is_known: bool,
}

fn journal(generation: u64) -> usize {
    HEADER_BYTES + (generation % 2) as usize * JOURNAL_BYTES
}

fn answer(number: usize) -> usize {
    ANSWERS_AT + number * ANSWER_BYTES
}

fn session(number: u64) -> usize {
    SESSIONS_AT + number as usize * SESSION_BYTES
}

fn record_at(generation: u64) -> usize {
    at::RECORDS + (generation % 2) as usize * RECORD_BYTES
}

impl Keeper {
    /// `is_wanted`: whether there is a process that would go on with the connection.
    pub(crate) fn new(is_wanted: Arc<AtomicBool>) -> io::Result<Keeper> {
        let (mut pages, file) = Pages::new(BYTES)?;
        pages.store(at::MAGIC, MAGIC);
        let keeping = Keeping {
            pages,
            generation: 0,
            received: 0,
            sent: 0,
            record: Record::default(),
            commits: false,
            expected: None,
            session: (0, NOTHING),
        };
        Ok(Keeper { inner: Mutex::new(keeping), file, is_wanted })
    }

    pub(crate) fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Counts from here on, where the socket's connection goes on.
    fn begin(&self, positions: Option<Positions>) {
        let mut keeping = self.inner.lock();
        let own = Positions { consumed: FIRST_POSITION, written: FIRST_POSITION };
        let Positions { consumed, written } = positions.unwrap_or(own);
        (keeping.received, keeping.sent) = (consumed, written);
        keeping.pages.store(at::RECEIVED, consumed);
        keeping.pages.store(at::SENT, written);
    }

    /// The connection has answered all that it was asked. `left`: what it read and did not work on; `output`: of its answers, what is
    /// not sent yet.
    pub(crate) fn settle(&self, left: &[u8], output: &[u8], form: SessionForm, block: Block) {
        let keeping = &mut *self.inner.lock();
        keeping.write_session(form);
        let next = keeping.generation + 1;
        let (session, session_bytes) = keeping.session;
        let mut record = Record {
            input: keeping.received - left.len() as u64,
            output: keeping.sent + output.len() as u64,
            answer: NOTHING,
            session,
            session_bytes,
            block,
        };
        if output.len() <= ANSWER_BYTES {
            record.answer = output.len() as u64;
            keeping.write(answer((next % 2) as usize), output);
        }
        match left.len() <= JOURNAL_BYTES {
            true => keeping.write(journal(next), left),
            // What is asked is not known whole until it has settled again.
            false => record.session_bytes = NOTHING,
        }
        keeping.write_record(record_at(next), record);
        keeping.pages.store(at::GENERATION, next);
        (keeping.generation, keeping.record) = (next, record);
        (keeping.commits, keeping.expected) = (false, None);
    }

    /// A statement runs next whose transaction may be committed, and then the client has `output` of what is not sent yet, and the statement's tag
    /// and that the connection is ready behind it, but for the tag where it `has_tag` already. `left`: what is not worked on, then.
    pub(crate) fn expect(&self, left: usize, output: &[u8], form: SessionForm, has_tag: bool, sequences: u64) {
        let keeping = &mut *self.inner.lock();
        keeping.write_session(form);
        let (session, session_bytes) = keeping.session;
        let is_known = output.len() <= ANSWER_BYTES;
        if is_known {
            keeping.write(answer(COMMIT_ANSWER), output);
        }
        keeping.expected = Some(Expected {
            record: Record {
                input: keeping.received - left as u64,
                output: keeping.sent,
                answer: NOTHING,
                session,
                session_bytes,
                block: Block::None,
            },
            bytes: output.len(),
            lacks_tag: !has_tag,
            sequences,
            is_known,
        });
    }

    /// Of what was expected, the rows are there.
    pub(crate) fn expect_rows(&self, output: &[u8]) {
        let keeping = &mut *self.inner.lock();
        let fits = output.len() <= ANSWER_BYTES;
        if fits {
            keeping.write(answer(COMMIT_ANSWER), output);
        }
        if let Some(expected) = &mut keeping.expected {
            (expected.bytes, expected.is_known) = (output.len(), fits);
        }
    }

    /// What runs next is not answered as a commit is.
    pub(crate) fn expect_nothing(&self) {
        self.inner.lock().expected = None;
    }

    /// What runs next leaves behind what may not be done twice.
    pub(crate) fn runs_once(&self) {
        let keeping = &mut *self.inner.lock();
        keeping.pages.store(at::DONE_ONCE, keeping.generation);
    }

    /// What runs next ends with an error where it does not come to its end.
    pub(crate) fn begins(&self) {
        let keeping = &mut *self.inner.lock();
        keeping.pages.store(at::BEGUN, keeping.generation);
    }

    /// Another process is to go on with the connection.
    pub(crate) fn leave(&self) {
        self.inner.lock().pages.store(at::GENERATION, ELSEWHERE);
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }
}

impl CommitWitness for Keeper {
    fn is_wanted(&self) -> bool {
        Keeper::is_wanted(self)
    }

    fn will_say(&self, tag: &str, sequences: u64) {
        let keeping = &mut *self.inner.lock();
        let Some(expected) = &mut keeping.expected else { return };
        // What `currval` answers then is not written down.
        expected.is_known &= expected.sequences == sequences;
        if !std::mem::take(&mut expected.lacks_tag) || !expected.is_known {
            return;
        }
        let mut message = Vec::with_capacity(32);
        backend::command_complete(&mut message, tag);
        let start = expected.bytes;
        expected.bytes += message.len();
        match expected.bytes <= ANSWER_BYTES {
            true => keeping.write(answer(COMMIT_ANSWER) + start, &message),
            false => expected.is_known = false,
        }
    }

    fn committing(&self, id: Option<u64>) {
        let keeping = &mut *self.inner.lock();
        let generation = keeping.generation;
        let Some(id) = id else {
            // Whoever comes to have the pages before the connection settles cannot ask what became of it.
            keeping.commits = true;
            return keeping.pages.store(at::DONE_ONCE, generation);
        };
        if std::mem::replace(&mut keeping.commits, true) {
            // If this one is not committed, one before was.
            keeping.pages.store(at::DONE_ONCE, generation);
            // The words of the one before are in force.
            keeping.pages.store(at::COMMITTING, 0);
        }
        let mut record = Record { answer: NOTHING, session_bytes: NOTHING, ..Record::default() };
        if let Some(expected) = keeping.expected.take()
            && expected.is_known
            && !expected.lacks_tag
        {
            let mut ready = Vec::with_capacity(8);
            backend::ready_for_query(&mut ready, TransactionStatus::Idle);
            let bytes = expected.bytes + ready.len();
            if bytes <= ANSWER_BYTES {
                keeping.write(answer(COMMIT_ANSWER) + expected.bytes, &ready);
                record = expected.record;
                (record.answer, record.output) = (bytes as u64, record.output + bytes as u64);
            }
        }
        keeping.write_record(at::COMMIT, record);
        keeping.pages.store(at::COMMIT_ID, id);
        keeping.pages.store(at::COMMITTING, generation);
    }
}

impl Keeping {
    fn write(&mut self, start: usize, bytes: &[u8]) {
        self.pages.bytes_mut(start..start + bytes.len()).copy_from_slice(bytes);
    }

    fn write_record(&mut self, start: usize, record: Record) {
        for (number, word) in record.to_words().into_iter().enumerate() {
            self.pages.store(start + 8 * number, word);
        }
    }

    /// Where neither the generation in force nor a commit has its session.
    fn write_session(&mut self, form: SessionForm) {
        match form {
            SessionForm::Unchanged => {}
            SessionForm::Bytes(bytes) if bytes.len() <= SESSION_BYTES => {
                let committing = self.expected.as_ref().map(|expected| expected.record.session);
                let is_free = |number: &u64| {
                    *number != self.record.session && Some(*number) != committing && *number != self.session.0
                };
                let number = (0..SESSIONS as u64).find(is_free).unwrap_or((self.record.session + 1) % SESSIONS as u64);
                self.write(session(number), &bytes);
                self.session = (number, bytes.len() as u64);
            }
            SessionForm::Bytes(_) | SessionForm::Unknown => self.session.1 = NOTHING,
        }
    }

    /// Where in the pages the client's next bytes belong. Empty: they do not fit.
    fn room(&self) -> Range<usize> {
        let start = journal(self.generation);
        let used = (self.received - self.record.input).min(JOURNAL_BYTES as u64) as usize;
        match self.generation {
            0 => start..start,
            _ => start + used..start + JOURNAL_BYTES,
        }
    }
}

/// A socket whose bytes are kept.
pub(crate) struct KeptIo<T> {
    io: T,
    keeper: Arc<Keeper>,
}

impl<T> KeptIo<T> {
    /// `positions`: as the kernel has them of the socket.
    pub(crate) fn new(io: T, keeper: Arc<Keeper>, positions: Option<Positions>) -> KeptIo<T> {
        keeper.begin(positions);
        KeptIo { io, keeper }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for KeptIo<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let KeptIo { io, keeper } = &mut *self;
        let keeping = &mut *keeper.inner.lock();
        keeping.pages.store(at::CALLING, 1);
        let room = keeping.room();
        let (polled, count) = match room.len().min(buffer.remaining()) {
            0 => {
                let before = buffer.filled().len();
                let polled = Pin::new(io).poll_read(cx, buffer);
                (polled, buffer.filled().len() - before)
            }
            len => {
                let mut kept = ReadBuf::new(keeping.pages.bytes_mut(room.start..room.start + len));
                let polled = Pin::new(io).poll_read(cx, &mut kept);
                buffer.put_slice(kept.filled());
                (polled, kept.filled().len())
            }
        };
        keeping.received += count as u64;
        keeping.pages.store(at::RECEIVED, keeping.received);
        keeping.pages.store(at::CALLING, 0);
        polled
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for KeptIo<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let KeptIo { io, keeper } = &mut *self;
        let keeping = &mut *keeper.inner.lock();
        keeping.pages.store(at::CALLING, 1);
        let polled = Pin::new(io).poll_write(cx, bytes);
        if let Poll::Ready(Ok(count)) = &polled {
            keeping.sent += *count as u64;
            keeping.pages.store(at::SENT, keeping.sent);
        }
        keeping.pages.store(at::CALLING, 0);
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// What a process that has died left of a connection.
#[derive(Debug)]
pub(crate) struct Left {
    file: File,
    generation: u64,
    record: Record,
    positions: Positions,
    /// A commit that had begun, and its transaction's id.
    commit: Option<(u64, Record)>,
    is_done_once: bool,
    is_begun: bool,
}

/// How a connection goes on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GoingOn {
    /// The session, as [`tidepool_planner::PortableSession`] reads it, but for the client's bytes.
    pub(crate) session: Vec<u8>,
    pub(crate) block: Block,
    /// What the client asked that was not answered.
    pub(crate) input: Vec<u8>,
    /// Of an answer, what was not sent.
    pub(crate) output: Vec<u8>,
    /// The first of what was asked is answered by an error.
    pub(crate) fails: bool,
}

/// Why a connection does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// It does elsewhere.
    Elsewhere,
    /// It cannot.
    Because(&'static str),
}

impl From<&'static str> for Reason {
    fn from(why: &'static str) -> Reason {
        Reason::Because(why)
    }
}

impl Left {
    /// Takes what a process left that has ended, with all its threads. `positions`: what the kernel says of the socket, where it says that.
    pub(crate) fn take(file: OwnedFd, positions: Option<Positions>) -> Result<Left, Reason> {
        let file = File::from(file);
        let header = bytes_of(&file, 0..at::COMMIT_ID + 8)?;
        let word = |offset: usize| {
            let bytes = header.get(offset..offset + 8).and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u64::from_ne_bytes)
        };
        let record = |start: usize| {
            Record::of_words(std::array::from_fn(|number| word(start + 8 * number)))
                .ok_or(Reason::Because("its pages are damaged"))
        };
        if word(at::MAGIC) != MAGIC {
            return Err("its pages are of another release".into());
        }
        let generation = word(at::GENERATION);
        match generation {
            0 => return Err("it was not ready yet".into()),
            ELSEWHERE => return Err(Reason::Elsewhere),
            _ => {}
        }
        let counted = Positions { consumed: word(at::RECEIVED), written: word(at::SENT) };
        let positions = match (positions, word(at::CALLING) != 0) {
            (Some(positions), false) if positions != counted => return Err("another process went on with it".into()),
            (Some(positions), _) => positions,
            (None, true) => return Err("it was within a call".into()),
            (None, false) => counted,
        };
        let commit = (word(at::COMMITTING) == generation)
            .then(|| record(at::COMMIT).map(|record| (word(at::COMMIT_ID), record)))
            .transpose()?;
        // Whoever comes after this process does not find the connection as that one left it.
        let taken = file.write_all_at(&ELSEWHERE.to_ne_bytes(), at::GENERATION as u64);
        taken.map_err(|_| Reason::Because("its pages cannot be written"))?;
        let is_done_once = word(at::DONE_ONCE) == generation;
        let is_begun = word(at::BEGUN) == generation;
        Ok(Left { record: record(record_at(generation))?, file, generation, positions, commit, is_done_once, is_begun })
    }

    /// The transaction whose fate decides how the connection goes on.
    pub(crate) fn transaction(&self) -> Option<u64> {
        self.commit.map(|(id, _)| id)
    }

    /// `is_committed`: what became of that transaction.
    pub(crate) fn go_on(self, is_committed: bool) -> Result<GoingOn, Reason> {
        let Positions { consumed, written } = self.positions;
        let asked = consumed.checked_sub(self.record.input).filter(|asked| *asked <= JOURNAL_BYTES as u64);
        let asked = asked.ok_or(Reason::Because("what its client asked was too much to be kept"))? as usize;
        let commit = self.commit.filter(|_| is_committed);
        let fails = self.is_begun && commit.is_none();
        let (record, number, done) = match commit {
            Some((_, record)) => {
                let done = record.input.checked_sub(self.record.input).filter(|done| *done <= asked as u64);
                (record, COMMIT_ANSWER, done.unwrap_or(NOTHING))
            }
            None if self.is_done_once => return Err("what it was doing may not be done twice".into()),
            None => (self.record, (self.generation % 2) as usize, 0),
        };
        if record.session_bytes == NOTHING || done == NOTHING {
            return Err("its session was not kept".into());
        }
        // Nothing of it is left to be sent where all of it was, however long it was.
        let sent = match record.output.checked_sub(written) {
            Some(0) => record.answer.min(ANSWER_BYTES as u64),
            Some(left) if record.answer != NOTHING && left <= record.answer => record.answer - left,
            Some(_) => return Err("its answer was too long to be kept".into()),
            None => return Err("it was in the middle of an answer".into()),
        };
        let start = journal(self.generation);
        let input = bytes_of(&self.file, start + done as usize..start + asked)?;
        let start = answer(number);
        let end = if record.answer == NOTHING { sent } else { record.answer };
        let output = bytes_of(&self.file, start + sent as usize..start + end as usize)?;
        let start = session(record.session);
        let session = bytes_of(&self.file, start..start + record.session_bytes as usize)?;
        Ok(GoingOn { session, block: record.block, input, output, fails })
    }
}

fn bytes_of(file: &File, range: Range<usize>) -> Result<Vec<u8>, Reason> {
    let mut bytes = vec![0; range.len()];
    file.read_exact_at(&mut bytes, range.start as u64).map_err(|_| Reason::Because("its pages cannot be read"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

    /// A connection, its client, and how far the socket has come.
    struct Kept {
        keeper: Arc<Keeper>,
        io: KeptIo<DuplexStream>,
        client: DuplexStream,
        positions: Positions,
    }

    impl Kept {
        fn new() -> Kept {
            let keeper = Arc::new(Keeper::new(Arc::new(AtomicBool::new(true))).unwrap());
            let (client, server) = tokio::io::duplex(1 << 20);
            let positions = Positions { consumed: 100, written: 1000 };
            let io = KeptIo::new(server, keeper.clone(), Some(positions));
            Kept { keeper, io, client, positions }
        }

        /// The client asks, and the connection reads.
        async fn ask(&mut self, asked: &[u8]) {
            self.client.write_all(asked).await.unwrap();
            let mut read = vec![0; asked.len()];
            self.io.read_exact(&mut read).await.unwrap();
            assert_eq!(read, asked);
            self.positions.consumed += asked.len() as u64;
        }

        async fn send(&mut self, answer: &[u8]) {
            self.io.write_all(answer).await.unwrap();
            self.positions.written += answer.len() as u64;
        }

        fn settle(&self, left: &[u8], output: &[u8]) {
            self.keeper.settle(left, output, SessionForm::Unchanged, Block::None);
        }

        /// As a process finds it that comes then. The connection goes on all the same.
        fn left(&self) -> Result<Left, Reason> {
            self.taken(Some(self.positions))
        }

        fn taken(&self, positions: Option<Positions>) -> Result<Left, Reason> {
            let left = Left::take(self.keeper.file().try_clone().unwrap(), positions);
            let mut keeping = self.keeper.inner.lock();
            let generation = keeping.generation;
            keeping.pages.store(at::GENERATION, generation);
            left
        }

        fn go_on(&self, is_committed: bool) -> Result<GoingOn, Reason> {
            self.left()?.go_on(is_committed)
        }
    }

    fn going_on(session: &[u8], input: &[u8], output: &[u8]) -> GoingOn {
        let (session, input, output) = (session.to_vec(), input.to_vec(), output.to_vec());
        GoingOn { session, block: Block::None, input, output, fails: false }
    }

    #[tokio::test]
    async fn an_answer_is_sent_to_its_end_and_what_was_asked_is_there() {
        let mut kept = Kept::new();
        assert_eq!(kept.go_on(false).unwrap_err(), "it was not ready yet".into());
        kept.keeper.settle(b"", b"welcome", SessionForm::Bytes(b"one".to_vec()), Block::None);
        assert_eq!(kept.go_on(false), Ok(going_on(b"one", b"", b"welcome")));
        kept.send(b"welc").await;
        assert_eq!(kept.go_on(false), Ok(going_on(b"one", b"", b"ome")));
        kept.send(b"ome").await;
        assert_eq!(kept.go_on(false), Ok(going_on(b"one", b"", b"")));
        kept.ask(b"first").await;
        kept.ask(b"second").await;
        assert_eq!(kept.go_on(false), Ok(going_on(b"one", b"firstsecond", b"")));
        // The second was only read.
        let block = PortableBlock {
            state: PortableBlockState::Lost,
            start_us: -5,
            isolation: "serializable".to_owned(),
            is_read_only: false,
            is_deferrable: true,
        };
        let in_block = Block::of(Some(&block)).unwrap();
        assert_eq!(in_block.to_portable(), Some(block));
        kept.keeper.settle(b"second", b"answer", SessionForm::Bytes(b"two".to_vec()), in_block);
        let lost = GoingOn { block: in_block, ..going_on(b"two", b"second", b"answer") };
        assert_eq!(kept.go_on(false), Ok(lost));
        kept.send(b"answer").await;
        // Nobody knows where an answer that is not kept was broken off.
        kept.send(b"some rows").await;
        assert_eq!(kept.go_on(false).unwrap_err(), "it was in the middle of an answer".into());
        // Nothing that was written before shows through.
        kept.settle(b"", b"");
        assert_eq!(kept.go_on(false), Ok(going_on(b"two", b"", b"")));
    }

    #[tokio::test]
    async fn what_another_process_had_read_is_there_whoever_counts() {
        let mut kept = Kept::new();
        kept.keeper.begin(None);
        kept.keeper.settle(b"read before", b"", SessionForm::Bytes(b"one".to_vec()), Block::None);
        kept.ask(b" and since").await;
        assert_eq!(kept.taken(None).unwrap().go_on(false).unwrap().input, b"read before and since");
    }

    #[tokio::test]
    async fn what_runs_is_not_done_twice() {
        let mut kept = Kept::new();
        kept.keeper.settle(b"", b"", SessionForm::Bytes(b"one".to_vec()), Block::None);
        kept.ask(b"plan").await;
        kept.keeper.begins();
        assert!(kept.go_on(false).unwrap().fails);
        kept.settle(b"", b"");
        assert!(!kept.go_on(false).unwrap().fails);
        kept.ask(b"device").await;
        kept.keeper.runs_once();
        assert_eq!(kept.go_on(false).unwrap_err(), "what it was doing may not be done twice".into());
        kept.settle(b"", b"");
        assert_eq!(kept.go_on(false), Ok(going_on(b"one", b"", b"")));
    }

    #[tokio::test]
    async fn a_commit_is_answered_by_what_became_of_it() {
        let mut kept = Kept::new();
        kept.keeper.settle(b"", b"", SessionForm::Bytes(b"one".to_vec()), Block::None);
        kept.ask(b"UPDATEsyncnext").await;
        kept.keeper.expect(4, b"bound", SessionForm::Bytes(b"two".to_vec()), false, 3);
        kept.keeper.will_say("UPDATE 1", 3);
        assert_eq!(kept.left().unwrap().transaction(), None);
        kept.keeper.committing(Some(7));
        assert_eq!(kept.left().unwrap().transaction(), Some(7));
        // As if it had not begun.
        assert_eq!(kept.go_on(false), Ok(going_on(b"one", b"UPDATEsyncnext", b"")));
        let answer = b"boundC\0\0\0\x0dUPDATE 1\0Z\0\0\0\x05I";
        assert_eq!(kept.go_on(true), Ok(going_on(b"two", b"next", answer)));
        kept.settle(b"next", answer);
        assert_eq!(kept.left().unwrap().transaction(), None);
        assert_eq!(kept.go_on(false), Ok(going_on(b"two", b"next", answer)));
        kept.send(answer).await;
        // Of one whose rows are given back as they come, the answer is not known before.
        kept.keeper.expect(0, b"", SessionForm::Unchanged, false, 3);
        kept.keeper.expect_rows(b"row");
        kept.keeper.will_say("DELETE 1", 3);
        kept.keeper.committing(Some(8));
        assert_eq!(kept.go_on(true).unwrap().output, b"rowC\0\0\0\x0dDELETE 1\0Z\0\0\0\x05I");
        // What it drew of a sequence meanwhile is not known.
        kept.settle(b"", b"");
        kept.keeper.expect(0, b"", SessionForm::Unchanged, false, 3);
        kept.keeper.will_say("INSERT 0 1", 4);
        kept.keeper.committing(Some(8));
        assert_eq!(kept.go_on(true).unwrap_err(), "its session was not kept".into());
        // One that nobody asked an id of.
        let other = Kept::new();
        other.keeper.settle(b"", b"", SessionForm::Bytes(b"one".to_vec()), Block::None);
        other.keeper.committing(None);
        assert_eq!(other.go_on(false).unwrap_err(), "what it was doing may not be done twice".into());
        // A second one within one answer.
        kept.keeper.committing(Some(9));
        assert_eq!(kept.go_on(true).unwrap_err(), "its session was not kept".into());
        assert_eq!(kept.go_on(false).unwrap_err(), "what it was doing may not be done twice".into());
    }

    #[tokio::test]
    async fn what_does_not_fit_is_not_guessed() {
        let mut kept = Kept::new();
        kept.keeper.settle(b"", b"", SessionForm::Bytes(vec![1; SESSION_BYTES + 1]), Block::None);
        assert_eq!(kept.go_on(false).unwrap_err(), "its session was not kept".into());
        kept.keeper.settle(b"", b"", SessionForm::Bytes(vec![1; SESSION_BYTES]), Block::None);
        assert_eq!(kept.go_on(false).unwrap().session.len(), SESSION_BYTES);
        kept.ask(&vec![2; JOURNAL_BYTES]).await;
        assert_eq!(kept.go_on(false).unwrap().input, vec![2; JOURNAL_BYTES]);
        kept.ask(b"more").await;
        assert_eq!(kept.go_on(false).unwrap_err(), "what its client asked was too much to be kept".into());
        let long = vec![3; ANSWER_BYTES + 1];
        kept.settle(b"", &long);
        assert_eq!(kept.go_on(false).unwrap_err(), "its answer was too long to be kept".into());
        kept.send(&long).await;
        assert_eq!(kept.go_on(false).unwrap().output, b"");
        // More than fits of what was not worked on.
        kept.ask(&vec![4; JOURNAL_BYTES + 1]).await;
        kept.settle(&vec![4; JOURNAL_BYTES + 1], b"");
        assert!(kept.go_on(false).is_err());
    }

    #[tokio::test]
    async fn damage_and_a_call_that_did_not_end_are_errors() {
        let mut kept = Kept::new();
        kept.keeper.settle(b"", b"", SessionForm::Bytes(b"one".to_vec()), Block::None);
        // As of a socket that the kernel does not count.
        let read = |kept: &Kept| kept.taken(None);
        kept.ask(b"asked").await;
        assert_eq!(read(&kept).unwrap().go_on(false), Ok(going_on(b"one", b"asked", b"")));
        kept.keeper.inner.lock().pages.store(at::CALLING, 1);
        assert_eq!(read(&kept).unwrap_err(), "it was within a call".into());
        kept.keeper.inner.lock().pages.store(at::CALLING, 0);
        let words = [at::MAGIC, record_at(1) + 24, record_at(1) + 32, record_at(1) + 40];
        for word in words {
            let before = kept.keeper.inner.lock().pages.load(word);
            kept.keeper.inner.lock().pages.store(word, before ^ 1 << 40);
            assert!(kept.left().is_err(), "{word}");
            kept.keeper.inner.lock().pages.store(word, before);
        }
        kept.go_on(false).unwrap();
        // A process between went on with it, or the connection was passed on.
        kept.positions.written += 1;
        assert_eq!(kept.left().unwrap_err(), "another process went on with it".into());
        kept.positions.written -= 1;
        drop(Left::take(kept.keeper.file().try_clone().unwrap(), Some(kept.positions)).unwrap());
        let again = Left::take(kept.keeper.file().try_clone().unwrap(), Some(kept.positions));
        assert_eq!(again.unwrap_err(), Reason::Elsewhere);
    }
}
