//! What clients of one server share: the tables as they know them, and what they were not told the end of.

use super::model::{Delta, Table, WRITERS};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use tokio::sync::{Notify, RwLock};
use tokio_postgres::{Client, NoTls};

/// Why a statement did not come to its end.
#[derive(Debug)]
pub enum Ended {
    /// The server is gone, or ends.
    Gone,
    /// It was undone, for a reason that any statement may have.
    Refused,
}

/// What a transaction changes, by table.
pub type Deltas = Vec<(usize, Delta)>;

/// What a table may have after the kill, and what decides: whichever it has.
pub struct InDoubt {
    pub table: usize,
    pub states: Vec<Table>,
}

pub struct World {
    pub about: String,
    /// Writers share a table; who changes its definition has it alone.
    pub tables: Vec<RwLock<Table>>,
    /// By writer, the rows by table of a transaction whose commit was asked for, and not answered.
    pub doubts: Mutex<[Option<Deltas>; WRITERS as usize]>,
    /// The definer's.
    pub definitions: Mutex<Option<InDoubt>>,
    keys: Vec<[AtomicI64; WRITERS as usize]>,
    versions: AtomicI64,
    steps: AtomicU64,
    stepped: Notify,
    /// The server was killed: nobody waits for another step.
    over: AtomicBool,
    failed: AtomicBool,
    /// The server was told to stop, and undoes what has not committed by then.
    stops: AtomicBool,
    /// What was done in the history, to be shown when something is wrong.
    notes: Mutex<Vec<String>>,
}

/// Of the notes, those that a failure shows.
const NOTES_SHOWN: usize = 120;

pub async fn connect(url: &str, user: &str) -> Option<Client> {
    let mut config: tokio_postgres::Config = url.parse().expect("the server's line has a URL");
    let (client, connection) = config.user(user).connect(NoTls).await.ok()?;
    tokio::spawn(connection);
    Some(client)
}

/// A statement's beginning.
pub fn short(sql: &str) -> String {
    let mut line: String = sql.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.len() > 240 {
        let cut = (0..=240).rev().find(|at| line.is_char_boundary(*at)).unwrap_or_default();
        line.truncate(cut);
        line.push('…');
    }
    line
}

/// The SQLSTATE, if the server said one.
pub fn sqlstate(error: &tokio_postgres::Error) -> Option<String> {
    error.code().map(|code| code.code().to_owned())
}

impl World {
    pub fn new(about: String, tables: Vec<Table>) -> World {
        World {
            about,
            keys: tables.iter().map(|_| std::array::from_fn(|of| AtomicI64::new(of as i64))).collect(),
            tables: tables.into_iter().map(RwLock::new).collect(),
            doubts: Mutex::default(),
            definitions: Mutex::default(),
            versions: AtomicI64::new(0),
            steps: AtomicU64::new(0),
            stepped: Notify::new(),
            over: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            stops: AtomicBool::new(false),
            notes: Mutex::default(),
        }
    }

    /// The server ends next, and may do so in its own way.
    pub fn end_next(&self, gently: bool) {
        self.stops.store(gently, Ordering::SeqCst);
        self.note(format!("-- {}", if gently { "told to stop" } else { "killed" }));
    }

    /// Whether the server was told to stop.
    pub fn stops(&self) -> bool {
        self.stops.load(Ordering::SeqCst)
    }

    /// The first of so many keys that a writer has not used in a table.
    pub fn take_keys(&self, table: usize, of: i64, count: i64) -> i64 {
        self.keys[table][of as usize].fetch_add(count * WRITERS, Ordering::Relaxed)
    }

    /// The first key that a writer has not used in a table.
    pub fn next_key(&self, table: usize, of: i64) -> i64 {
        self.keys[table][of as usize].load(Ordering::Relaxed)
    }

    pub fn next_version(&self) -> i64 {
        self.versions.fetch_add(1, Ordering::Relaxed)
    }

    pub fn step(&self) {
        self.steps.fetch_add(1, Ordering::SeqCst);
        self.stepped.notify_waiters();
    }

    pub fn steps(&self) -> u64 {
        self.steps.load(Ordering::SeqCst)
    }

    pub fn set_over(&self, over: bool) {
        self.over.store(over, Ordering::SeqCst);
        self.stepped.notify_waiters();
    }

    /// Until so many steps are done, or no more are.
    pub async fn until(&self, steps: u64) {
        loop {
            let stepped = self.stepped.notified();
            tokio::pin!(stepped);
            stepped.as_mut().enable();
            if self.steps() >= steps || self.over.load(Ordering::SeqCst) {
                return;
            }
            stepped.await;
        }
    }

    pub fn note(&self, note: String) {
        self.notes.lock().unwrap().push(note);
    }

    /// The text of a panic: what is wrong, and what led to it.
    pub fn failure(&self, what: &str) -> String {
        let notes = self.notes.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let shown = match self.failed.swap(true, Ordering::SeqCst) {
            true => "(as above)".to_owned(),
            false => notes[notes.len().saturating_sub(NOTES_SHOWN)..].join("\n"),
        };
        format!("{}: {what}\nwhat led to it:\n{shown}", self.about)
    }

    pub fn in_doubt(&self, of: i64, deltas: Deltas) {
        self.doubts.lock().unwrap()[of as usize] = Some(deltas);
    }

    /// Nothing of a table is in doubt; otherwise the server ends, and what a definition would come to could not be told.
    pub fn check_settled(&self, table: usize) -> Result<(), Ended> {
        let doubts = self.doubts.lock().unwrap();
        let is_in_doubt = doubts.iter().flatten().flatten().any(|(of, _)| *of == table);
        if is_in_doubt { Err(Ended::Gone) } else { Ok(()) }
    }

    /// What a statement came to. Only what may befall any statement is taken for a refusal.
    pub fn outcome(&self, of: i64, sql: &str, result: Result<u64, tokio_postgres::Error>) -> Result<u64, Ended> {
        let (said, outcome) = match result {
            Ok(rows) => (format!("{rows} rows"), Ok(rows)),
            Err(error) => match sqlstate(&error) {
                None => ("the connection is gone".to_owned(), Err(Ended::Gone)),
                Some(code) if code.starts_with("57") => (code, Err(Ended::Gone)),
                Some(code) if code.starts_with("40") || code.starts_with("53") => (code, Err(Ended::Refused)),
                Some(_) => panic!("{}", self.failure(&format!("{}: {error:?}", short(sql)))),
            },
        };
        self.note(format!("{of}: {} -> {said}", short(sql)));
        outcome
    }

    /// A command that changes no rows. Its refusal is the server's end.
    pub async fn command(&self, client: &Client, sql: &str) -> Result<(), Ended> {
        let result = client.batch_execute(sql).await;
        match self.outcome(-1, sql, result.map(|()| 0)) {
            Ok(_) => Ok(()),
            Err(_) => Err(Ended::Gone),
        }
    }
}
