//! Asking other hosts, and answering them.

use super::message::{Answer, BLOCKS_MAX, Message, Place, ROWS_MAX};
use crate::Database;
use crate::write::by_key::PreparedTable;
use parking_lot::{Mutex, RwLock};
use std::collections::{HashMap, VecDeque};
use std::ops::Bound;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tidepool_base::{CommitTs, Error, Result, RowId, SqlState};
use tidepool_index::key::KeyBounds;
use tidepool_index::{Cursor, Direction};
use tidepool_pod::layout::HostId;
use tidepool_pod::ring::{Receiver, Sender};
use tidepool_pod::tuples::Tuples;
use tidepool_pod::words::sequence_of;
use tidepool_table::TableIndex;
use tidepool_table::rows::{MovedIn, PodMember};
use tidepool_txn::{NO_SNAPSHOT, Reads, Tag, Validation, Worker};

/// As their caller gives them: where the keys of each host end, and the number of the host.
type GivenBounds = Vec<(Vec<u8>, u8)>;

/// So long another host is asked, again where it is busy, before the transaction gives up.
const PATIENCE: Duration = Duration::from_millis(20);

/// So long a host is waited for that does not answer.
const SILENCE: Duration = Duration::from_secs(2);

/// Turns of serving after which the horizon is looked at.
const HORIZON_EVERY: u64 = 64;

const HANDLE_SHARDS: usize = 16;

/// What one host knows of where rows of others are: by table, index and key.
type Handles = HashMap<(u32, u16, Box<[u8]>), RowId>;

/// What goes on between a host and the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodStats {
    /// Rows of this home that are in the pod.
    pub rows_in: u64,
    pub moved_in: u64,
    pub moved_out: u64,
    pub copies_read: u64,
    pub blocks_read: u64,
    pub versions_written: u64,
    pub conflicts: u64,
    pub asked: u64,
    pub answered: u64,
}

/// A database that is a host of a pod.
#[derive(Debug)]
pub struct PodHost {
    database: Arc<Database>,
    member: Arc<PodMember>,
    tables: RwLock<HashMap<u32, PreparedTable>>,
    /// By host.
    senders: Box<[Option<Mutex<Sender>>]>,
    serving: Mutex<Serving>,
    /// By number, what was asked and, once it has come, the answer.
    asked: Mutex<HashMap<u64, Option<Answer>>>,
    requests: AtomicU64,
    answered: AtomicU64,
    handles: Box<[Mutex<Handles>]>,
    /// Hosts that have died, a bit each.
    dead: AtomicU16,
    /// A message could not be read, or the pod's memory.
    fault: OnceLock<Error>,
}

/// What answering takes: one thread at a time does.
#[derive(Debug)]
struct Serving {
    worker: Worker,
    receivers: Vec<(HostId, Receiver)>,
    /// What rings had no room for yet.
    unsent: VecDeque<(HostId, Vec<u8>)>,
    turns: u64,
}

/// A table whose rows hosts share out by key.
#[derive(Debug)]
pub(crate) struct Placed {
    pub host: Arc<PodHost>,
    pub table: u32,
    /// By index, as its keys are encoded.
    ways: Vec<(Arc<TableIndex>, Bounds)>,
}

/// Keys that begin below one of these are of the host beside it, unless an earlier entry has them. What is above all is of the last.
type Bounds = Vec<(Vec<u8>, HostId)>;

fn home_in(bounds: &Bounds, is_above: impl Fn(&[u8]) -> bool) -> HostId {
    let place = bounds.partition_point(|(bound, _)| is_above(bound));
    bounds[place.min(bounds.len() - 1)].1
}

impl Placed {
    /// 0A000 for an index that came later.
    #[inline]
    fn bounds(&self, way: &Arc<TableIndex>) -> Result<&Bounds> {
        let known = self.ways.iter().find(|(index, _)| Arc::ptr_eq(index, way));
        known.map(|(_, bounds)| bounds).ok_or_else(|| {
            Error::unsupported("an index that was made after the rows of its table were shared out among hosts")
        })
    }

    fn other(&self, home: HostId) -> Option<HostId> {
        (home != self.host.member.host()).then_some(home)
    }

    /// The host that has the rows with keys in a range of an index, if it is another one. 0A000 where several have some.
    pub fn home_of(&self, way: &Arc<TableIndex>, range: &KeyBounds) -> Result<Option<HostId>> {
        let bounds = self.bounds(way)?;
        let first = match &range.lower {
            Bound::Included(key) | Bound::Excluded(key) => home_in(bounds, |bound| bound <= key.as_slice()),
            Bound::Unbounded => bounds[0].1,
        };
        let last = match &range.upper {
            Bound::Included(key) => home_in(bounds, |bound| bound <= key.as_slice()),
            // The keys are below it: they may all be of the host before.
            Bound::Excluded(key) => home_in(bounds, |bound| bound < key.as_slice()),
            Bound::Unbounded => bounds[bounds.len() - 1].1,
        };
        if first != last {
            return Err(Error::unsupported("a scan by key over the rows of several hosts")
                .with_hint("Scan the part of each by itself."));
        }
        Ok(self.other(first))
    }

    /// The host that has the rows with this key of an index, if it is another one.
    #[inline]
    pub fn elsewhere(&self, way: &Arc<TableIndex>, key: &[u8]) -> Result<Option<HostId>> {
        Ok(self.other(home_in(self.bounds(way)?, |bound| bound <= key)))
    }
}

impl PodHost {
    pub(super) fn new(database: &Arc<Database>, member: Arc<PodMember>) -> Result<Arc<PodHost>> {
        let (memory, layout, me) = (member.memory().clone(), member.layout(), member.host());
        let told = |error: &dyn std::fmt::Display| Error::corrupted(format!("the pod's memory is damaged: {error}"));
        let mut senders = Vec::new();
        let mut receivers = Vec::new();
        for other in layout.all_hosts() {
            if other == me {
                senders.push(None);
                continue;
            }
            let sender = Sender::attach(&*memory, layout, me, other).map_err(|error| told(&error))?;
            senders.push(Some(Mutex::new(sender)));
            receivers.push((other, Receiver::attach(&*memory, layout, other, me).map_err(|error| told(&error))?));
        }
        let worker = database.transactions().worker()?;
        let host = Arc::new(PodHost {
            database: database.clone(),
            member,
            tables: RwLock::default(),
            senders: senders.into(),
            serving: Mutex::new(Serving { worker, receivers, unsent: VecDeque::new(), turns: 0 }),
            asked: Mutex::default(),
            requests: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            handles: (0..HANDLE_SHARDS).map(|_| Mutex::default()).collect(),
            dead: AtomicU16::new(0),
            fault: OnceLock::new(),
        });
        database.set_pod_host(&host);
        Ok(host)
    }

    pub fn database(&self) -> &Arc<Database> {
        &self.database
    }

    pub fn number(&self) -> u8 {
        self.member.host().0
    }

    pub fn stats(&self) -> PodStats {
        let counters = &self.member.counters;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PodStats {
            rows_in: self.member.rows_in() as u64,
            moved_in: of(&counters.moved_in),
            moved_out: of(&counters.moved_out),
            copies_read: of(&counters.copies_read),
            blocks_read: of(&counters.blocks_read),
            versions_written: of(&counters.versions_written),
            conflicts: of(&counters.conflicts),
            asked: of(&self.requests),
            answered: of(&self.answered),
        }
    }

    /// Shares the rows of a table out among hosts, by the first column of its indexes' keys: those whose key begins below a bound are
    /// the host's that stands beside it, and those above all are the last one's. Bounds are keys as each index has them, in order. All hosts
    /// do so with the same, before any uses the table.
    pub(crate) fn place(
        self: &Arc<Self>,
        table: &PreparedTable,
        name: &str,
        ways: Vec<(Arc<TableIndex>, GivenBounds)>,
    ) -> Result<Placed> {
        let hosts = self.member.layout().hosts;
        let is_wrong = |bounds: &GivenBounds| {
            bounds.is_empty()
                || bounds.iter().any(|(_, host)| *host >= hosts)
                || bounds.windows(2).any(|pair| pair[0].0 >= pair[1].0)
        };
        if ways.iter().any(|(_, bounds)| is_wrong(bounds)) {
            let text = format!("the rows of table \"{name}\" cannot be shared out so");
            return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, text)
                .with_hint("Bounds go upwards, and each names a host of the pod."));
        }
        let number = xxhash_rust::xxh3::xxh3_64(name.as_bytes()) as u32;
        table.current().rows.join(&self.member);
        let mut tables = self.tables.write();
        if tables.get(&number).is_some_and(|known| known.name() != table.name()) {
            return Err(Error::internal("two tables of a pod have one number"));
        }
        tables.insert(number, table.clone());
        let of_hosts = |bounds: GivenBounds| bounds.into_iter().map(|(key, host)| (key, HostId(host))).collect();
        let ways = ways.into_iter().map(|(way, bounds)| (way, of_hosts(bounds))).collect();
        Ok(Placed { host: self.clone(), table: number, ways })
    }

    fn is_dead(&self, host: HostId) -> bool {
        self.dead.load(Ordering::Acquire) >> host.0 & 1 != 0
    }

    /// Ends what a host has begun that has died: what it committed is stamped, all else is taken back, and nothing waits for
    /// it any more. Its rows that are in the pod stay in use; for its others there is 57P03 from now on. Each survivor does so, one
    /// after the other, and doing it again changes nothing. 22023 where there is no such host, or it is this one.
    ///
    /// The caller knows that the host is dead: one that only slept would go on with what others have taken from it.
    pub fn recover_for(&self, dead: u8) -> Result<()> {
        let (layout, memory) = (self.member.layout(), self.member.memory());
        let dead = HostId(dead);
        if dead.0 >= layout.hosts || dead == self.member.host() {
            let text = format!("host {} of the pod is none that this one can recover for", dead.0);
            return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, text));
        }
        self.dead.fetch_or(1 << dead.0, Ordering::AcqRel);
        self.told(Tuples::new(&**memory, layout).recover(dead, |tuple| layout.home(tuple)))?;
        // No version bears a tag of it now.
        for worker in 0..layout.workers {
            let [sequence, standing, snapshot, held] = memory.slot(layout, dead, worker);
            sequence.store(sequence_of(sequence.load(Ordering::Acquire)) + 1, Ordering::Release);
            standing.store(0, Ordering::Release);
            snapshot.store(NO_SNAPSHOT, Ordering::Release);
            held.store(NO_SNAPSHOT, Ordering::Release);
            self.told(layout.standing(dead, worker).make_durable(&**memory))?;
        }
        memory.horizon(layout, dead).store(NO_SNAPSHOT, Ordering::Release);
        Ok(())
    }

    fn note_fault(&self, error: Error) -> Error {
        self.fault.get_or_init(|| error).clone()
    }

    fn told<T>(&self, outcome: tidepool_pod::memory::Outcome<T, tidepool_pod::mapped::Mapped>) -> Result<T> {
        outcome.map_err(|trouble| self.note_fault(Error::corrupted(format!("the pod's memory is damaged: {trouble}"))))
    }

    fn try_send(&self, to: HostId, message: &[u8]) -> Result<bool> {
        let Some(Some(sender)) = self.senders.get(usize::from(to.0)) else {
            return Err(Error::internal("a host of the pod sends to itself"));
        };
        let mut sender = sender.lock();
        if message.len() > sender.message_bytes_max() {
            return Err(Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "a message is too long for the pod's rings"));
        }
        self.told(sender.send(&**self.member.memory(), message))
    }

    /// Answers what other hosts have asked, if no other thread is at it. Waits for nobody.
    pub fn serve(&self) {
        let Some(mut serving) = self.serving.try_lock() else { return };
        if self.fault.get().is_some() {
            return;
        }
        // What goes wrong is remembered, and told to whoever asks next.
        let _ = self.serve_all(&mut serving);
    }

    fn serve_all(&self, serving: &mut Serving) -> Result<()> {
        let Serving { worker, receivers, unsent, turns } = serving;
        for (from, receiver) in receivers.iter_mut() {
            while let Some(message) = self.told(receiver.receive(&**self.member.memory()))? {
                let message = Message::read(message).map_err(|error| self.note_fault(error))?;
                if let Some((request, answer)) = self.answer(worker, message) {
                    self.answered.fetch_add(1, Ordering::Relaxed);
                    unsent.push_back((*from, Message::Answer { request, answer }.write()));
                }
            }
        }
        *turns += 1;
        if turns.is_multiple_of(HORIZON_EVERY) {
            worker.transactions().try_advance_horizon();
            self.member.tidy(worker);
            worker.collect();
            let mut blocks: HashMap<HostId, Vec<u64>> = HashMap::new();
            for (owner, word) in self.member.homeward() {
                blocks.entry(owner).or_default().push(word);
            }
            for (owner, words) in blocks {
                let messages = words.chunks(BLOCKS_MAX).map(|words| Message::Blocks(words.to_vec()).write());
                unsent.extend(messages.map(|message| (owner, message)));
            }
        }
        for _ in 0..unsent.len() {
            let Some((to, message)) = unsent.pop_front() else { break };
            // What was on its way to a host that has died stays in the pod until that one is there again.
            if self.is_dead(to) {
                continue;
            }
            if !self.try_send(to, &message)? {
                unsent.push_back((to, message));
            }
        }
        Ok(())
    }

    fn answer(&self, worker: &Worker, message: Message) -> Option<(u64, Answer)> {
        // What one host cannot do for another is that one's error.
        let or_unknown = |answer: Result<Answer>| answer.unwrap_or(Answer::Unknown);
        match message {
            Message::Find { request, place, snapshot } => {
                Some((request, or_unknown(self.find(worker, &place, snapshot))))
            }
            Message::Holds { request, place, snapshot, own, commit, round } => {
                let holds = self.holds(worker, &place, (snapshot, own, commit, round));
                Some((request, or_unknown(holds)))
            }
            Message::Blocks(words) => {
                words.into_iter().for_each(|word| self.member.take_home(word));
                None
            }
            Message::Answer { request, answer } => {
                // One that nobody waits for any more is dropped.
                if let Some(place) = self.asked.lock().get_mut(&request) {
                    *place = Some(answer);
                }
                None
            }
        }
    }

    fn candidates(&self, worker: &Worker, place: &Place) -> Result<Option<(Arc<tidepool_table::Table>, Vec<RowId>)>> {
        let Some(table) = self.tables.read().get(&place.table).cloned() else { return Ok(None) };
        let table = table.current();
        let Some(way) = table.indexes().get(usize::from(place.way)) else { return Ok(None) };
        way.fetch_range(place.bounds.range())?;
        let view = worker.snapshot_now();
        let mut cursor = Cursor::new(place.bounds.range(), Direction::Forward);
        let mut rows = Vec::new();
        while let Some(row) = cursor.next_row(way.tree(), &view) {
            if !rows.contains(&row) {
                rows.push(row);
            }
            if rows.len() > ROWS_MAX {
                break;
            }
        }
        drop(view);
        Ok(Some((table, rows)))
    }

    fn find(&self, worker: &Worker, place: &Place, snapshot: CommitTs) -> Result<Answer> {
        let Some((table, candidates)) = self.candidates(worker, place)? else { return Ok(Answer::Unknown) };
        if candidates.len() > ROWS_MAX {
            return Ok(Answer::TooMany);
        }
        let mut rows = Vec::with_capacity(candidates.len());
        for row in candidates {
            match table.rows.move_in(worker, row, place.table, snapshot)? {
                MovedIn::In(row) => rows.push(row),
                MovedIn::Gone => {}
                MovedIn::Busy => return Ok(Answer::Busy),
                MovedIn::Newer => return Ok(Answer::Newer),
                MovedIn::Full => return Ok(Answer::Full),
            }
        }
        Ok(Answer::Rows(rows))
    }

    fn holds(
        &self,
        worker: &Worker,
        place: &Place,
        (snapshot, own, commit, round): (CommitTs, u64, CommitTs, u32),
    ) -> Result<Answer> {
        let Some((table, rows)) = self.candidates(worker, place)? else { return Ok(Answer::Unknown) };
        let Some(own) = Tag::of_word(own) else { return Ok(Answer::Unknown) };
        if rows.len() > ROWS_MAX {
            return Ok(Answer::TooMany);
        }
        let view = worker.snapshot_now();
        let check = Validation::for_another(worker.transactions(), own, snapshot, commit, round, &view);
        for row in rows {
            if !table.rows.holds_for_another(&check, row)? {
                return Ok(Answer::Holds(false));
            }
        }
        Ok(Answer::Holds(true))
    }

    fn ask(&self, home: HostId, message: impl FnOnce(u64) -> Message) -> Result<Answer> {
        if let Some(error) = self.fault.get() {
            return Err(error.clone());
        }
        if self.is_dead(home) {
            return Err(Error::new(SqlState::CANNOT_CONNECT_NOW, format!("host {} of the pod has died", home.0))
                .with_detail("Rows of it that are not in the pod are there again when it is."));
        }
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        let message = message(request).write();
        self.asked.lock().insert(request, None);
        let until = Instant::now() + SILENCE;
        let asked = (|| {
            while !self.try_send(home, &message)? {
                self.serve();
                self.give_way(until, home)?;
            }
            loop {
                self.serve();
                if let Some(Some(answer)) = self.asked.lock().get_mut(&request).map(Option::take) {
                    return Ok(answer);
                }
                if let Some(error) = self.fault.get() {
                    return Err(error.clone());
                }
                self.give_way(until, home)?;
            }
        })();
        self.asked.lock().remove(&request);
        asked
    }

    /// Lets another session of the thread go on, or another thread. 57P03 where that was long enough.
    fn give_way(&self, until: Instant, home: HostId) -> Result<()> {
        match tidepool_fiber::is_fiber() {
            true => tidepool_fiber::pass(),
            false => std::thread::yield_now(),
        }
        if Instant::now() >= until {
            return Err(Error::new(
                SqlState::CANNOT_CONNECT_NOW,
                format!("host {} of the pod does not answer", home.0),
            ));
        }
        Ok(())
    }

    /// The rows of a range at another host, as they are known in the pod. 40001 where others are in the way, or have changed one
    /// since the snapshot.
    pub(crate) fn find_elsewhere(
        &self,
        home: HostId,
        (table, way): (u32, u16),
        bounds: &KeyBounds,
        snapshot: CommitTs,
    ) -> Result<Vec<RowId>> {
        let until = Instant::now() + PATIENCE;
        loop {
            let place = Place { table, way, bounds: bounds.clone() };
            let answer = self.ask(home, |request| Message::Find { request, place, snapshot })?;
            match answer {
                Answer::Rows(rows) => return Ok(rows),
                Answer::Busy if Instant::now() < until => self.serve(),
                Answer::Busy | Answer::Newer => return Err(in_the_way(home)),
                Answer::Full => {
                    return Err(Error::new(SqlState::OUT_OF_MEMORY, "the pod has no place for a row of another host"));
                }
                Answer::TooMany => {
                    return Err(Error::unsupported(format!("more than {ROWS_MAX} rows of another host at a time")));
                }
                Answer::Unknown | Answer::Holds(_) => {
                    return Err(Error::internal(format!("host {} of the pod cannot answer", home.0)));
                }
            }
        }
    }

    fn handles_of(&self, key: &[u8]) -> &Mutex<Handles> {
        &self.handles[xxhash_rust::xxh3::xxh3_64(key) as usize % HANDLE_SHARDS]
    }

    /// Where a row was that was found by a key.
    pub(crate) fn handle(&self, place: (u32, u16), key: &[u8]) -> Option<RowId> {
        self.handles_of(key).lock().get(&(place.0, place.1, Box::from(key))).copied()
    }

    pub(crate) fn set_handle(&self, place: (u32, u16), key: &[u8], row: Option<RowId>) {
        let mut handles = self.handles_of(key).lock();
        match row {
            Some(row) => {
                // Each costs a message when it is asked for again.
                if handles.len() * HANDLE_SHARDS > 2 * self.member.layout().tuples as usize {
                    handles.clear();
                }
                handles.insert((place.0, place.1, Box::from(key)), row);
            }
            None => drop(handles.remove(&(place.0, place.1, Box::from(key)))),
        }
    }
}

#[cold]
fn in_the_way(home: HostId) -> Error {
    Error::new(SqlState::SERIALIZATION_FAILURE, "could not serialize access due to concurrent update")
        .with_detail(format!("Transactions of host {} changed a row meanwhile, or are about to.", home.0))
}

/// What a serializable transaction read of a range at another host, rows that were not there included.
pub(crate) struct ReadElsewhere {
    pub host: Arc<PodHost>,
    pub home: HostId,
    pub table: u32,
    pub way: u16,
    pub bounds: KeyBounds,
}

impl Reads for ReadElsewhere {
    fn still_hold(&self, check: &Validation<'_>) -> Result<bool> {
        let place = Place { table: self.table, way: self.way, bounds: self.bounds.clone() };
        let answer = self.host.ask(self.home, |request| Message::Holds {
            request,
            place,
            snapshot: check.snapshot_ts(),
            own: check.own().word(),
            commit: check.commit_ts(),
            round: check.round(),
        })?;
        Ok(answer == Answer::Holds(true))
    }
}
