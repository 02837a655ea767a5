//! Tuples: rows that several hosts read and write, and the transactions that do.
//!
//! A tuple is one coherent word that refers to a block, its newest version. A version's first word is the tag of the
//! transaction that wrote it, until the timestamp takes its place. A running transaction's tag is the lock of the
//! tuple.
//!
//! # Who changes what
//!
//! | what | who | when |
//! | --- | --- | --- |
//! | word: free or dead → moving → live, live → frozen → dead | the tuple's home | live → frozen only if the newest version bears a timestamp |
//! | word: live → live, another block | any host's writer | the newest version bears a timestamp; the block is the writer's own |
//! | word: live → live, the older block | the writer that aborts, or the recoverer of its host | the newest version bears its tag |
//! | word: moving → dead, frozen → live | the recoverer of the home | the home is dead |
//! | lines of a block | the block's host | while no word refers to it |
//! | first word of a published block | the writer, or the recoverer of its host | once: the tag becomes the timestamp |
//! | words of a slot | its worker, or the recoverer of its host | |
//!
//! # Invariants
//!
//! * All of a transaction's versions bear its tag or its timestamp until its sequence moves on, and its timestamp
//!   from then on: stamps are written back before. So a host that finds a tag whose sequence is over reads the
//!   version once more.
//! * The words of a transaction's tuples are written back before it commits: what is committed must be found. A word
//!   that took a reference out is written back before the block is written again.
//! * *Committed* is written back before the first stamp and before the commit is acknowledged: it cannot be lost with
//!   its host while anything rests on it.
//! * A slot's words are one line. At its end a transaction begins to write it back, and the seal of the next one's
//!   first version waits for that: so before any host sees a tag, the slot says for good that the transaction before
//!   is over. Else a host could die and leave the standing of one transaction beside the sequence of the next.
//! * A version that was replaced may be written again when the sequence of the transaction that replaced it has moved
//!   on. Hosts that still read it find the tuple's word changed, and drop what they read.
//!
//! A host is recovered by one host at a time, after its death was confirmed: the pool's host word names the
//! recoverer. What a block that a dead host had taken and not published holds is of no use, and the block is free
//! when the host's extents are swept.

use crate::access::{Access, Line, Lines, Note};
use crate::layout::{HostId, Layout};
use crate::memory::{
    BlockRef, Blocks, Draft, FRAME_BYTES, Hw, Outcome, Publication, Published, Refers, Retired, Trouble, first_word,
    stamp_for_dead,
};
use crate::words::{Begin, Plain, Standing, Tag, TupleState, TupleWord, sequence_of};
use tidepool_base::CommitTs;
use tidepool_device::LINE_BYTES;

/// Which row a tuple has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The store at the tuple's home, as the hosts have agreed to number them.
    pub store: u32,
    /// How often the tuple was put to use. A tuple that has another row by now has another number.
    pub generation: u32,
    /// The row's id at the home.
    pub row: u64,
}

/// Of a version before the row: the block of the version before it, plus one, or zero; and its origin.
const HEAD_BYTES: usize = 24;

/// Bytes of a block that its row does not have.
pub const ROW_AT: usize = FRAME_BYTES + HEAD_BYTES;

/// A version as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub begin: Begin,
    pub older: Option<BlockRef>,
    pub origin: Origin,
    pub image: Vec<u8>,
}

fn head(older: Option<BlockRef>, origin: Origin) -> [u8; HEAD_BYTES] {
    let mut bytes = [0; HEAD_BYTES];
    bytes[..8].copy_from_slice(&older.map_or(0, |block| block.bits() + 1).to_le_bytes());
    bytes[8..12].copy_from_slice(&origin.store.to_le_bytes());
    bytes[12..16].copy_from_slice(&origin.generation.to_le_bytes());
    bytes[16..].copy_from_slice(&origin.row.to_le_bytes());
    bytes
}

impl Version {
    fn of(mut framed: Vec<u8>) -> Option<Version> {
        let begin = Begin::of_word(first_word(&framed));
        let head = framed.get(FRAME_BYTES..ROW_AT)?;
        let long = |at: usize| head[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let short = |at: usize| head[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let older = long(0).checked_sub(1).map(BlockRef::read);
        let origin = Origin { store: short(8), generation: short(12), row: long(16) };
        framed.drain(..ROW_AT);
        Some(Version { begin, older, origin, image: framed })
    }
}

/// What a transaction was found doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It may commit or abort.
    Running,
    Committed(CommitTs),
    /// It takes its versions back.
    Aborted,
    /// It is over: its versions bear their timestamp.
    Gone,
}

/// What a host found that read a tuple.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The newest version, which is committed.
    Row { begin: CommitTs, image: Vec<u8> },
    /// A transaction that is not decided writes it.
    Locked(Tag),
    /// The row is not here.
    Absent(TupleState),
    /// Another host changed the tuple meanwhile.
    Changed,
}

/// What became of locking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lock {
    Done,
    /// Another transaction has the lock, or has not stamped yet.
    Busy(Tag),
    Absent(TupleState),
    Changed,
    /// This host has no free block.
    NoBlock,
}

/// A row that a home has taken out of the pod.
#[derive(Debug)]
pub struct MovedOut {
    pub begin: CommitTs,
    pub image: Vec<u8>,
    /// Its block, which goes home to its host.
    pub retired: Retired,
}

/// The tuples and slots of a pod, as one host reaches them.
#[derive(Debug)]
pub struct Tuples<'a, A> {
    pub access: &'a A,
    pub layout: Layout,
}

impl<A> Clone for Tuples<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A> Copy for Tuples<'_, A> {}

impl<'a, A: Access> Tuples<'a, A> {
    pub fn new(access: &'a A, layout: Layout) -> Tuples<'a, A> {
        Tuples { access, layout }
    }

    pub fn load(&self, tuple: u32) -> Outcome<TupleWord, A> {
        self.layout.tuple(tuple).load(self.access)
    }

    /// A version that another one refers to as older, and that the caller's snapshot keeps.
    pub fn older(&self, block: BlockRef) -> Outcome<Version, A> {
        let broken = Trouble::Broken { line: block.first() };
        if !self.layout.has_block(block.first()) {
            return Err(broken);
        }
        Version::of(block.read_kept(self.access, self.layout.block_lines)?).ok_or(broken)
    }

    /// The longest row that a block has room for.
    pub fn row_bytes_max(&self) -> usize {
        (self.layout.block_lines as usize * LINE_BYTES).saturating_sub(ROW_AT)
    }

    /// The version that a tuple's word referred to when it was loaded. `None`: the word is another by now.
    #[track_caller]
    pub fn newest(&self, tuple: u32, word: TupleWord) -> Outcome<Option<Version>, A> {
        let tuple = self.layout.tuple(tuple);
        let Some(block) = word.block() else { return Ok(None) };
        let broken = Trouble::Broken { line: block.first() };
        if !self.layout.has_block(block.first()) {
            return Err(broken);
        }
        let Some(framed) = tuple.read_block(self.access, word, self.layout.block_lines)? else { return Ok(None) };
        Version::of(framed).map(Some).ok_or(broken)
    }

    /// What the transaction of a tag does. The tag was read in a version.
    pub fn status(&self, tag: Tag) -> Outcome<Status, A> {
        let broken = Trouble::Unknown { tag };
        let Some((sequence, standing)) = self.layout.slot_of(tag) else { return Err(broken) };
        // The sequence moves on before the standing changes again: a sequence that is still the tag's says that the
        // standing was, too.
        let standing = standing.load(self.access)?;
        let sequence = sequence_of(sequence.load(self.access)?.0);
        Ok(match standing {
            _ if sequence > tag.sequence() => Status::Gone,
            _ if sequence < tag.sequence() => return Err(broken),
            Standing::Running | Standing::Committing(_) => Status::Running,
            Standing::Committed(ts) => Status::Committed(ts),
            Standing::Aborted => Status::Aborted,
        })
    }

    /// The newest version of a tuple.
    pub fn read(&self, tuple: u32) -> Outcome<Seen, A> {
        let hw = self.layout.tuple(tuple);
        let word = hw.load(self.access)?;
        if word.block().is_none() {
            return Ok(Seen::Absent(word.state()));
        }
        let Some(version) = self.newest(tuple, word)? else { return Ok(Seen::Changed) };
        let tag = match version.begin {
            Begin::At(begin) => return Ok(Seen::Row { begin, image: version.image }),
            Begin::By(tag) => tag,
        };
        match self.status(tag)? {
            Status::Committed(begin) => Ok(Seen::Row { begin, image: version.image }),
            Status::Running | Status::Aborted => Ok(Seen::Locked(tag)),
            Status::Gone => {
                // It was stamped, or the word is another by now.
                let Some(version) = self.newest(tuple, word)? else { return Ok(Seen::Changed) };
                match version.begin {
                    Begin::At(begin) => Ok(Seen::Row { begin, image: version.image }),
                    Begin::By(tag) => Err(Trouble::Unknown { tag }),
                }
            }
        }
    }

    /// The home takes a tuple into use. `None` where it is in use. The caller shows a row in it, or gives it up.
    pub fn reserve(&self, tuple: u32) -> Outcome<Option<Moving>, A> {
        let hw = self.layout.tuple(tuple);
        let word = hw.load(self.access)?;
        if !matches!(word.state(), TupleState::Free | TupleState::Dead) {
            return Ok(None);
        }
        let moving = word.next(TupleState::Moving, None);
        hw.move_on(self.access, word, moving)?;
        let count = self.layout.generation(tuple);
        let generation = count.load(self.access)?;
        count.move_on(self.access, generation, Plain(generation.0 + 1))?;
        // A number of 32 bits: it comes again after as many moves of one tuple.
        Ok(Some(Moving { tuple, word: moving, generation: (generation.0 + 1) as u32 }))
    }

    /// Puts a row whose newest version is settled in a tuple that was reserved for it, for all hosts to use.
    ///
    /// # Panics
    /// Where a block has no room for the row.
    pub fn show(
        &self,
        moving: Moving,
        begin: CommitTs,
        (store, row): (u32, u64),
        image: &[u8],
        draft: Draft,
    ) -> Outcome<TupleWord, A> {
        let origin = Origin { store, generation: moving.generation, row };
        let sealed = draft.seal(self.access, Begin::At(begin).word(), &[&head(None, origin), image])?;
        let mut shown = moving.word;
        let live = |block| {
            shown = moving.word.next(TupleState::Live, Some(block));
            shown
        };
        self.layout.tuple(moving.tuple).publish_alone(self.access, moving.word, live, sealed)?;
        Ok(shown)
    }

    /// A tuple that was reserved in vain.
    pub fn give_up(&self, moving: Moving) -> Outcome<(), A> {
        let dead = moving.word.next(TupleState::Dead, None);
        self.layout.tuple(moving.tuple).move_on(self.access, moving.word, dead)
    }

    /// The home puts a row in whose newest version is settled. False where the tuple is in use.
    ///
    /// # Panics
    /// Where a block has no room for the row.
    pub fn move_in(&self, tuple: u32, begin: CommitTs, image: &[u8], blocks: &mut Blocks) -> Outcome<bool, A> {
        let Some(draft) = blocks.take() else { return Ok(false) };
        match self.reserve(tuple)? {
            Some(moving) => {
                self.show(moving, begin, (0, 0), image, draft)?;
                Ok(true)
            }
            None => {
                blocks.put_back(draft);
                Ok(false)
            }
        }
    }

    /// Puts a version of a transaction in the place of the newest, which `word` referred to and which is settled, or the
    /// transaction's own. That is the tuple's lock. The draft comes back where another host changed the tuple meanwhile.
    pub fn put(
        &self,
        tuple: u32,
        word: TupleWord,
        newest: &Version,
        tag: Tag,
        image: &[u8],
        draft: Draft,
    ) -> Outcome<Result<Written, Draft>, A> {
        let hw = self.layout.tuple(tuple);
        let before = word.block().ok_or(Trouble::Broken { line: self.layout.blocks(HostId(0)).first })?;
        // Beneath all that the transaction has written itself.
        let older = if newest.begin == Begin::By(tag) { newest.older } else { Some(before) };
        let sealed = draft.seal(self.access, tag.word(), &[&head(older, newest.origin), image])?;
        let to = |block| word.next(TupleState::Live, Some(block));
        Ok(match hw.publish(self.access, word, to, sealed)? {
            Publication::Changed(_, draft) => Err(draft),
            Publication::Done(block, word) => Ok(Written { tuple: hw, word, block, before }),
        })
    }

    /// Begins to have what a transaction put in outlive this host, and waits for that: before it commits.
    pub fn secure<'w>(&self, written: impl IntoIterator<Item = &'w Written>) -> Outcome<(), A> {
        Hw::make_all_durable(written.into_iter().map(|written| written.tuple), self.access)
    }

    /// Stamps what a transaction put in that has committed for good. What was replaced may be written again when no
    /// snapshot finds it any more.
    pub fn stamp(&self, written: impl IntoIterator<Item = Written>, ts: CommitTs) -> Outcome<Vec<Retired>, A> {
        let (blocks, replaced): (Vec<_>, Vec<_>) =
            written.into_iter().map(|written| (written.block, written.before)).unzip();
        Published::stamp_all(blocks, self.access, ts.0)?;
        Ok(replaced.into_iter().map(Retired::of).collect())
    }

    /// Takes back what a transaction put in, the last first. When this returns, no word refers to it for good.
    pub fn take_back(&self, written: impl DoubleEndedIterator<Item = Written>) -> Outcome<Vec<Retired>, A> {
        let mut tuples = Vec::new();
        let mut retired = Vec::new();
        for Written { tuple, before, .. } in written.rev() {
            // It is the transaction's lock: no other host changes it.
            let word = tuple.load(self.access)?;
            retired.extend(tuple.withdraw(self.access, word, word.next(TupleState::Live, Some(before)))?);
            tuples.push(tuple);
        }
        // Before the blocks are written again: a word that is lost would refer to them.
        Hw::make_all_durable(tuples, self.access)?;
        Ok(retired)
    }

    /// The home takes a row out, if no transaction has it locked and none changes it meanwhile.
    pub fn move_out(&self, tuple: u32) -> Outcome<Option<MovedOut>, A> {
        let hw = self.layout.tuple(tuple);
        let word = hw.load(self.access)?;
        if word.state() != TupleState::Live {
            return Ok(None);
        }
        let Some(version) = self.newest(tuple, word)? else { return Ok(None) };
        let Begin::At(begin) = version.begin else { return Ok(None) };
        self.move_out_as(tuple, word, begin, version.image)
    }

    /// As `move_out`, of a row whose newest version the home has read when the tuple's word was `word`.
    pub fn move_out_as(
        &self,
        tuple: u32,
        word: TupleWord,
        begin: CommitTs,
        image: Vec<u8>,
    ) -> Outcome<Option<MovedOut>, A> {
        let hw = self.layout.tuple(tuple);
        let frozen = word.next(TupleState::Frozen, word.block());
        // From here on no host writes it; what was read is the newest.
        if hw.swap(self.access, word, frozen)?.is_err() {
            return Ok(None);
        }
        let retired = hw.withdraw(self.access, frozen, frozen.next(TupleState::Dead, None))?;
        // Before the block is written again, and before the home changes the row: a word that is lost would bring
        // both back.
        hw.make_durable(self.access)?;
        Ok(retired.map(|retired| MovedOut { begin, image, retired }))
    }

    /// Begins a transaction of a worker, which has none.
    pub fn begin(&self, host: HostId, worker: u16) -> Outcome<Transaction<'a, A>, A> {
        let (sequence, standing) = (self.layout.sequence(host, worker), self.layout.standing(host, worker));
        let tag = Tag::new(host, worker, sequence_of(sequence.load(self.access)?.0));
        Ok(Transaction { tuples: *self, tag, sequence, standing, written: Vec::new() })
    }

    /// Ends what a dead host has begun. The caller is its one recoverer, its death is confirmed, and the lines of its
    /// blocks are the caller's to store to. `home_of`: whose a tuple is.
    pub fn recover(&self, dead: HostId, home_of: impl Fn(u32) -> HostId) -> Outcome<(), A> {
        let mut stamped = Vec::new();
        for tuple in 0..self.layout.tuples {
            while !self.recover_tuple(dead, tuple, home_of(tuple) == dead, &mut stamped)? {}
        }
        // Before another host is told that it is done: if this one dies, nobody looks again. The stamps are waited
        // for, too.
        let words = (0..self.layout.tuples).map(|tuple| self.layout.tuple(tuple));
        Hw::make_all_durable(words, self.access)?;
        stamped.into_iter().for_each(|first| self.access.note(Note::Sealed(Lines { first, count: 1 })));
        Ok(())
    }

    /// False where another host changed the tuple meanwhile.
    fn recover_tuple(&self, dead: HostId, tuple: u32, is_home: bool, stamped: &mut Vec<Line>) -> Outcome<bool, A> {
        let hw = self.layout.tuple(tuple);
        let word = hw.load(self.access)?;
        match word.state() {
            // No other host has seen the row here, and the home's log has it.
            TupleState::Moving if is_home => {
                hw.move_on(self.access, word, word.next(TupleState::Dead, None))?;
                return Ok(true);
            }
            TupleState::Frozen if is_home => {
                hw.move_on(self.access, word, word.next(TupleState::Live, word.block()))?;
                return Ok(true);
            }
            TupleState::Live => {}
            _ => return Ok(true),
        }
        let (Some(block), Some(version)) = (word.block(), self.newest(tuple, word)?) else { return Ok(false) };
        let Begin::By(tag) = version.begin else { return Ok(true) };
        if tag.host() != dead {
            return Ok(true);
        }
        match self.status(tag)? {
            Status::Committed(ts) => {
                stamp_for_dead(self.access, block, ts.0)?;
                stamped.push(block.first());
            }
            // The stamp was written back before the sequence moved on.
            Status::Gone => return Err(Trouble::Broken { line: block.first() }),
            Status::Running | Status::Aborted => {
                let older = version.older.ok_or(Trouble::Broken { line: block.first() })?;
                hw.withdraw(self.access, word, word.next(TupleState::Live, Some(older)))?;
            }
        }
        Ok(true)
    }
}

/// A tuple that its home is about to put a row in.
#[derive(Debug)]
#[must_use = "it is in use until a row is shown in it or it is given up"]
pub struct Moving {
    tuple: u32,
    word: TupleWord,
    generation: u32,
}

impl Moving {
    pub fn generation(&self) -> u32 {
        self.generation
    }
}

/// A version that a transaction has put in.
#[derive(Debug)]
#[must_use = "it is a lock until it is stamped or taken back"]
pub struct Written {
    tuple: Hw<TupleWord>,
    word: TupleWord,
    block: Published,
    /// What the word referred to before.
    before: BlockRef,
}

impl Written {
    /// The tuple's word since.
    pub fn word(&self) -> TupleWord {
        self.word
    }
}

/// A transaction under way. One that is dropped without having ended keeps its locks, as if its host had died.
#[derive(Debug)]
#[must_use = "it keeps its locks until it commits or aborts"]
pub struct Transaction<'a, A> {
    tuples: Tuples<'a, A>,
    tag: Tag,
    sequence: Hw<Plain>,
    standing: Hw<Standing>,
    written: Vec<Written>,
}

impl<A: Access> Transaction<'_, A> {
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// Puts a version of a tuple in: what `change` makes of the newest one, which must be settled. That is the
    /// tuple's lock.
    pub fn write(
        &mut self,
        tuple: u32,
        blocks: &mut Blocks,
        change: impl FnOnce(&[u8]) -> Vec<u8>,
    ) -> Outcome<Lock, A> {
        let word = self.tuples.load(tuple)?;
        if word.state() != TupleState::Live {
            return Ok(Lock::Absent(word.state()));
        }
        let Some(version) = self.tuples.newest(tuple, word)? else { return Ok(Lock::Changed) };
        if let Begin::By(tag) = version.begin {
            return Ok(Lock::Busy(tag));
        }
        let Some(draft) = blocks.take() else { return Ok(Lock::NoBlock) };
        let image = change(&version.image);
        Ok(match self.tuples.put(tuple, word, &version, self.tag, &image, draft)? {
            Err(draft) => {
                blocks.put_back(draft);
                Lock::Changed
            }
            Ok(written) => {
                self.written.push(written);
                Lock::Done
            }
        })
    }

    /// Commits at `ts`. `decided` is called when the commit can be acknowledged: it outlives this host. The versions
    /// that were replaced are the caller's to send home.
    pub fn commit(self, ts: CommitTs, decided: impl FnOnce()) -> Outcome<Vec<Retired>, A> {
        let access = self.tuples.access;
        // What is committed must be found.
        self.tuples.secure(&self.written)?;
        self.standing.move_on(access, Standing::Running, Standing::Committed(ts))?;
        // Before a stamp says so, and before the client hears it.
        self.standing.make_durable(access)?;
        decided();
        let replaced = self.tuples.stamp(self.written, ts)?;
        self.sequence.move_on(access, Plain(self.tag.sequence()), Plain(self.tag.sequence() + 1))?;
        self.standing.move_on(access, Standing::Committed(ts), Standing::Running)?;
        self.standing.begin_durable(access)?;
        Ok(replaced)
    }

    /// Takes everything back.
    pub fn abort(self, blocks: &mut Blocks) -> Outcome<(), A> {
        let access = self.tuples.access;
        self.standing.move_on(access, Standing::Running, Standing::Aborted)?;
        let retired = self.tuples.take_back(self.written.into_iter())?;
        // The blocks that a host publishes are its own.
        retired.into_iter().for_each(|retired| drop(blocks.retire(retired)));
        self.sequence.move_on(access, Plain(self.tag.sequence()), Plain(self.tag.sequence() + 1))?;
        self.standing.move_on(access, Standing::Aborted, Standing::Running)?;
        self.standing.begin_durable(access)
    }
}
